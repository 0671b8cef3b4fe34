// SPDX-License-Identifier: Apache-2.0
// `forebay plan --dataset SIZE --cache SIZE ...`: computes what a cache of that size saves, and
// what the rest costs. It runs the store's own policy on a small model of a training job. The model
// has BLOCKS blocks. Its cache holds the same share of them as the real cache holds of the data
// set. Each epoch reads the blocks in a new order.
#include "commands/commands.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/human.h"
#include "cli/client/command_client.h"
#include "config/config.h"
#include "stats/stats.h"
#include "store/offline/offline.h"
#include "store/store.h"

#define BLOCKS 6000u
#define BLOCK_BYTES 65536u
#define HEADROOM 0.9 // part of cache.size for data, like the default of cache.headroom
#define EPOCHS_MAX 1000u
#define NODES_MAX 100000u
#define ACCESSES_MAX 3000000u // maximum reads of one simulation; later epochs show nothing new
#define OUTPUT_MAX_BYTES 65536u
#define SPARES 2u
#define BATCH 16u

#define PRICE_MAX 1e6
#define REQUEST_BYTES_MAX (4u << 20) // maximum bytes that a fill requests at once

struct plan {
    uint64_t dataset_bytes, cache_bytes, nodes, epochs;
    uint64_t request_bytes; // bytes of a mean request
    double price_gb, price_requests;
    bool has_prices;                           // the user gave prices
    bool has_binary_dataset, has_binary_cache; // the user gave the size in GiB, not in GB
    uint32_t lens[BLOCKS], order[BLOCKS];
    uint64_t random;
    struct buf out;
};

static uint64_t next_random(struct plan *p)
{
    uint64_t z = (p->random +=
                  0x9e3779b97f4a7c15u); // a fixed sequence, so that the same plan prints the same
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void shuffle(struct plan *p)
{
    for (uint32_t i = BLOCKS - 1; i > 0; i--) {
        uint32_t k = (uint32_t)(next_random(p) % (i + 1)), kept = p->order[i];
        p->order[i] = p->order[k];
        p->order[k] = kept;
    }
}

// Returns the share of hits among the reads after the first epoch. The cache has room for `share`
// of the data. Each epoch reads `part` of the data in a new order, and another part each time.
static double hit_ratio(struct plan *p, double share, double part)
{
    uint32_t count = (uint32_t)fmax(1, part * BLOCKS);
    uint64_t epochs = max_u64(2, min_u64(p->epochs, ACCESSES_MAX / count)), hits = 0, reads = 0;
    struct store_replay_options options = {
        .policy = STORE_POLICY_EPOCH,
        .capacity_bytes = (uint64_t)fmax(BLOCK_BYTES, share * BLOCKS * BLOCK_BYTES),
        .lens = p->lens,
        .block_count = BLOCKS,
        .mean_bytes = BLOCK_BYTES,
        .spares = SPARES,
        .batch = BATCH};
    if (share >= 1 && part >= 1) {
        return 1; // the cache holds all of it after the first epoch
    }
    struct store_replay *replay = store_replay_new(&options);
    p->random = 7;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        p->order[i] = i;
    }
    for (uint64_t epoch = 0; epoch < epochs; epoch++) {
        shuffle(p);
        for (uint32_t i = 0; i < count; i++) {
            bool is_hit = store_replay_access(replay, p->order[i], false);
            hits += epoch > 0 && is_hit;
            reads += epoch > 0;
        }
    }
    store_replay_free(replay);
    return (double)hits / (double)reads;
}

// Formats bytes in the units that the user has typed. A result is valid until the fourth later
// call.
static const char *in_units(bool is_binary, double bytes)
{
    static char texts[4][HUMAN_BYTES_MAX];
    static unsigned turn;
    char *text = texts[turn++ % ARRAY_LEN(texts)];
    return is_binary ? human_bytes(bytes, text) : human_bytes_decimal(bytes, text);
}

static double cost_of(const struct plan *p, double bytes)
{
    return bytes / 1e9 * p->price_gb + bytes / (double)p->request_bytes / 1000 * p->price_requests;
}

static json_t *json_of(const struct plan *p, double hit_ratio, double bytes)
{
    return json_pack("{s:f, s:I, s:I, s:f}", "hit_ratio", hit_ratio, "origin_bytes",
                     (json_int_t)bytes, "origin_requests",
                     (json_int_t)(bytes / (double)p->request_bytes), "cost", cost_of(p, bytes));
}

static void render_text(struct plan *p, double hit_ratio, double bytes)
{
    buf_printf(&p->out, "   %5.1f %% %11s %10.2f", 100 * hit_ratio,
               in_units(p->has_binary_dataset, bytes), cost_of(p, bytes));
}

static void render_row(struct plan *p, double factor)
{
    double cache = factor * (double)p->cache_bytes,
           share = HEADROOM * cache / (double)p->dataset_bytes;
    double nodes = (double)p->nodes, dataset = (double)p->dataset_bytes;
    double all = hit_ratio(p, share, 1),
           parts = p->nodes > 1 ? hit_ratio(p, share, 1 / nodes) : all;
    double gateway = p->nodes > 1 ? hit_ratio(p, share * nodes, 1) : all;
    if (commands_common()->is_json) {
        commands_line("item",
                      json_pack("{s:I, s:o, s:o, s:o}", "cache", (json_int_t)cache,
                                "each_reads_all", json_of(p, all, nodes * dataset * (1 - all)),
                                "nodes_share", json_of(p, parts, dataset * (1 - parts)), "gateway",
                                json_of(p, gateway, dataset * (1 - gateway))));
        return;
    }
    buf_printf(&p->out, "%12s", in_units(p->has_binary_cache, cache));
    render_text(p, all, nodes * dataset * (1 - all));
    if (p->nodes > 1) {
        render_text(p, parts, dataset * (1 - parts));
        render_text(p, gateway, dataset * (1 - gateway));
    }
    buf_append_cstr(&p->out, factor > 0.99 && factor < 1.01 ? "   <- as asked\n" : "\n");
}

static void render_end(struct plan *p)
{
    double dataset = (double)p->dataset_bytes, holds_all = dataset / HEADROOM;
    double uncached = cost_of(p, (double)p->nodes * dataset);
    buf_printf(
        &p->out,
        "\n%s hold all of it (a tenth is cache.headroom). Without a cache an epoch costs "
        "%.2f%s, by %g a GB and %g for 1000 requests%s.\n`forebay profile` tells the same of "
        "an access log.\n",
        in_units(p->has_binary_cache, holds_all), uncached,
        p->nodes > 1 ? " where each node reads all" : "", p->price_gb, p->price_requests,
        p->has_prices ? ""
                      : "\n(US dollars, AWS us-east-1 to the internet, list prices of 2025; "
                        "within a region give --price-gb 0)");
}

static void render(struct plan *p)
{
    static const double factors[] = {0.25, 0.5, 0.75, 1, 1.5, 2};
    if (!commands_common()->is_json) {
        buf_printf(
            &p->out,
            "%s of data, %llu node%s, %llu epochs; hits, origin bytes and what they cost, of an "
            "epoch after the first\n\n",
            in_units(p->has_binary_dataset, (double)p->dataset_bytes), (unsigned long long)p->nodes,
            p->nodes > 1 ? "s" : "", (unsigned long long)p->epochs);
        buf_printf(&p->out, "%12s   each node reads all%s\n", "cache.size",
                   p->nodes > 1
                       ? "              nodes share the data             one cache of all nodes"
                       : "");
    }
    for (size_t i = 0; i < ARRAY_LEN(factors); i++) {
        render_row(p, factors[i]);
    }
    if (!commands_common()->is_json) {
        render_end(p);
    }
}

static json_t *result_of(const struct plan *p)
{
    double dataset = (double)p->dataset_bytes;
    return json_pack("{s:I, s:f, s:f, s:I, s:f}", "holds_all", (json_int_t)(dataset / HEADROOM),
                     "price_gb", p->price_gb, "price_requests", p->price_requests, "request_bytes",
                     (json_int_t)p->request_bytes, "uncached_cost",
                     cost_of(p, (double)p->nodes * dataset));
}

static bool bytes_of(const char *text, uint64_t least, uint64_t *ret_bytes, bool *ret_is_binary)
{
    char why[CONFIG_WHY_MAX];
    *ret_is_binary = text != NULL && strchr(text, 'i') != NULL;
    return text != NULL && config_value_parse_bytes(span_from_cstr(text), ret_bytes, why) &&
           *ret_bytes >= least && *ret_bytes <= 1ull << 60;
}

// Parses a plain number. Refuses the other forms that strtod() accepts.
static bool price_of(struct plan *p, const char *text, double *price)
{
    if (text == NULL) {
        return true;
    }
    char *end = NULL;
    p->has_prices = true;
    *price = strspn(text, "0123456789.") == strlen(text) ? strtod(text, &end) : -1;
    return end != NULL && end != text && *end == '\0' && *price >= 0 && *price <= PRICE_MAX;
}

int command_plan(int argc, char **argv)
{
    struct plan *p = calloc(1, sizeof(*p));
    check(p != NULL);
    p->nodes = 1;
    p->epochs = 10;
    p->request_bytes = REQUEST_BYTES_MAX;
    p->price_gb = STATS_PRICE_GB;
    p->price_requests = STATS_PRICE_REQUESTS;
    const char *dataset = commands_argument_take_value(&argc, argv, "--dataset");
    const char *cache = commands_argument_take_value(&argc, argv, "--cache");
    const char *object = commands_argument_take_value(&argc, argv, "--object");
    const char *price_gb = commands_argument_take_value(&argc, argv, "--price-gb");
    const char *price_requests = commands_argument_take_value(&argc, argv, "--price-requests");
    int code = EXIT_CODE_USAGE;
    buf_init(&p->out, OUTPUT_MAX_BYTES);
    bool is_binary;
    if (!bytes_of(dataset, BLOCK_BYTES, &p->dataset_bytes, &p->has_binary_dataset) ||
        !bytes_of(cache, BLOCK_BYTES, &p->cache_bytes, &p->has_binary_cache)) {
        (void)commands_usage_error(
            "plan", "--dataset and --cache are sizes such as 2TB and 500GiB, at least 64KiB");
    } else if (!commands_argument_take_number(&argc, argv, "--nodes", 1, NODES_MAX, &p->nodes) ||
               !commands_argument_take_number(&argc, argv, "--epochs", 2, EPOCHS_MAX, &p->epochs)) {
        (void)commands_usage_error("plan", "--nodes is 1 to 100000, --epochs 2 to 1000");
    } else if (object != NULL && !bytes_of(object, 1, &p->request_bytes, &is_binary)) {
        (void)commands_usage_error("plan", "--object is a size such as 100KiB");
    } else if (!price_of(p, price_gb, &p->price_gb) ||
               !price_of(p, price_requests, &p->price_requests)) {
        (void)commands_usage_error("plan", "a price is a number such as 0.09, up to a million");
    } else {
        p->request_bytes = min_u64(p->request_bytes, REQUEST_BYTES_MAX);
        for (uint32_t i = 0; i < BLOCKS; i++) {
            p->lens[i] = BLOCK_BYTES;
        }
        render(p);
        code = commands_result(commands_print_result(&p->out), result_of(p));
    }
    buf_done(&p->out);
    free(p);
    return code;
}

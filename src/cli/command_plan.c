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
#include "cli/cli_private.h"
#include "cli/client/command_client.h"
#include "config/config.h"
#include "stats/stats.h"
#include "store/offline/offline.h"
#include "store/store.h"

#define BLOCKS 6000u
#define BLOCK_BYTES 65536u
#define EPOCHS_MAX 1000u
#define NODES_MAX 100000u
#define ACCESSES_MAX 3000000u // maximum reads of one simulation; later epochs show nothing new
#define OUTPUT_MAX_BYTES 65536u
#define SPARES 2u
#define BATCH 16u

#define ROWS 6u
#define CASES 3u
#define MONEY_MAX 32
#define PRICE_MAX 1e6
#define SIZE_MAX_BYTES (1ull << 60)
#define REQUEST_BYTES_MAX (4u << 20) // maximum bytes that a fill requests at once

struct outcome {
    double hit_ratio, bytes; // bytes from the origin
};

// Outcomes of a cache of one size in each of the three cases.
struct row {
    double cache_bytes;
    bool is_asked; // the size is the one that the user gave
    struct outcome cases[CASES];
};

struct plan {
    uint64_t dataset_bytes, cache_bytes, nodes, epochs;
    struct store_plan store;
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

// Returns the bytes of the data set that a cache of this size has room for.
static double room_of(const struct plan *p, double cache_bytes)
{
    return (double)store_plan_holds(&p->store, (uint64_t)cache_bytes);
}

static uint64_t holds_all(const struct plan *p)
{
    return store_plan_size(&p->store, p->dataset_bytes);
}

// Computes a row for a cache of `factor` times the size that the user gave.
static void compute(struct plan *p, struct row *row, double factor)
{
    double nodes = (double)p->nodes, dataset = (double)p->dataset_bytes;
    row->cache_bytes = factor * (double)p->cache_bytes;
    row->is_asked = factor > 0.99 && factor < 1.01;
    double share = room_of(p, row->cache_bytes) / dataset;
    double all = hit_ratio(p, share, 1);
    double parts = p->nodes > 1 ? hit_ratio(p, share, 1 / nodes) : all;
    double gateway_share = room_of(p, nodes * row->cache_bytes) / dataset;
    double gateway = p->nodes > 1 ? hit_ratio(p, gateway_share, 1) : all;
    row->cases[0] = (struct outcome){all, nodes * dataset * (1 - all)};
    row->cases[1] = (struct outcome){parts, dataset * (1 - parts)};
    row->cases[2] = (struct outcome){gateway, dataset * (1 - gateway)};
}

static json_t *json_of(const struct plan *p, const struct outcome *outcome)
{
    return json_pack("{s:f, s:I, s:I, s:f}", "hit_ratio", outcome->hit_ratio, "origin_bytes",
                     (json_int_t)outcome->bytes, "origin_requests",
                     (json_int_t)(outcome->bytes / (double)p->request_bytes), "cost",
                     cost_of(p, outcome->bytes));
}

static void print_json(const struct plan *p, const struct row *row)
{
    commands_line("item",
                  json_pack("{s:o, s:o, s:o, s:o}", "cache",
                            json_integer((json_int_t)row->cache_bytes), "each_reads_all",
                            json_of(p, &row->cases[0]), "nodes_share", json_of(p, &row->cases[1]),
                            "gateway", json_of(p, &row->cases[2])));
}

// --- for people ----------------------------------------------------------------------------------

// Formats a cost. Prices that the user gave are in a currency that only the user knows.
static const char *money(const struct plan *p, double cost, char ret_text[MONEY_MAX])
{
    (void)snprintf(ret_text, MONEY_MAX, "%s%.2f", p->has_prices ? "" : "$", cost);
    return ret_text;
}

static void render_table(struct plan *p, const struct row rows[ROWS], unsigned which)
{
    static const char *const titles[] = {"each node reads all of the data",
                                         "the nodes share the data, in a new split each epoch",
                                         "one cache for all nodes, as large as theirs together"};
    char cost[MONEY_MAX];
    if (p->nodes > 1) {
        buf_printf(&p->out, "\n%s\n", titles[which]);
    }
    buf_printf(&p->out, "%12s %8s %11s %13s\n", "cache.size", "hits", "origin", "cost");
    for (size_t i = 0; i < ROWS; i++) {
        const struct outcome *outcome = &rows[i].cases[which];
        buf_printf(&p->out, "%12s %6.1f %% %11s %13s%s\n",
                   in_units(p->has_binary_cache, rows[i].cache_bytes), 100 * outcome->hit_ratio,
                   in_units(p->has_binary_dataset, outcome->bytes),
                   money(p, cost_of(p, outcome->bytes), cost),
                   rows[i].is_asked ? "  <- as asked" : "");
    }
}

static void render_end(struct plan *p)
{
    char cost[MONEY_MAX];
    double dataset = (double)p->dataset_bytes, all = (double)holds_all(p);
    all = p->has_binary_cache ? human_bytes_up(all) : human_bytes_decimal_up(all);
    buf_printf(&p->out,
               "\n%s hold all of it, with %u workers and objects of %s. A tenth is\n"
               "cache.headroom, and some segments are spare or being filled.\n"
               "Without a cache an epoch costs %s%s.\nPrices: %s%g a GB and %s%g for 1000 "
               "requests%s.\n`forebay profile` tells "
               "the same of an access log.\n",
               in_units(p->has_binary_cache, all), p->store.workers,
               in_units(p->has_binary_dataset, (double)p->store.object_bytes),
               money(p, cost_of(p, (double)p->nodes * dataset), cost),
               p->nodes > 1 ? " where each node reads all" : "", p->has_prices ? "" : "$",
               p->price_gb, p->has_prices ? "" : "$", p->price_requests,
               p->has_prices ? ""
                             : ": list prices of AWS in 2025,\nfrom us-east-1 to the internet. "
                               "Within a region give --price-gb 0");
}

static void render(struct plan *p, const struct row rows[ROWS])
{
    buf_printf(&p->out, "%s of data, %llu node%s, %llu epochs. Of an epoch after the first:\n%s",
               in_units(p->has_binary_dataset, (double)p->dataset_bytes),
               (unsigned long long)p->nodes, p->nodes > 1 ? "s" : "", (unsigned long long)p->epochs,
               p->nodes > 1 ? "" : "\n");
    for (unsigned which = 0; which < (p->nodes > 1 ? CASES : 1); which++) {
        render_table(p, rows, which);
    }
    render_end(p);
}

static void show(struct plan *p)
{
    static const double factors[ROWS] = {0.25, 0.5, 0.75, 1, 1.5, 2};
    struct row rows[ROWS];
    for (size_t i = 0; i < ROWS; i++) {
        compute(p, &rows[i], factors[i]);
        if (commands_common()->is_json) {
            print_json(p, &rows[i]);
        }
    }
    if (!commands_common()->is_json) {
        render(p, rows);
        command_screen_print(0, "%s", buf_cstr(&p->out));
    }
}

static json_t *result_of(const struct plan *p)
{
    double dataset = (double)p->dataset_bytes;
    return json_pack("{s:I, s:f, s:f, s:I, s:f}", "holds_all", (json_int_t)holds_all(p), "price_gb",
                     p->price_gb, "price_requests", p->price_requests, "request_bytes",
                     (json_int_t)p->request_bytes, "uncached_cost",
                     cost_of(p, (double)p->nodes * dataset));
}

// Parses the size of an option. If it returns false, `why` has the reason.
static bool bytes_of(const char *option, const char *text, uint64_t least, uint64_t *ret_bytes,
                     struct buf *why)
{
    char reason[CONFIG_WHY_MAX];
    if (!config_value_parse_bytes(span_from_cstr(text), ret_bytes, reason)) {
        buf_printf(why, "%s: %s", option, reason);
        return false;
    }
    if (*ret_bytes < least || *ret_bytes > SIZE_MAX_BYTES) {
        buf_printf(why, "%s: \"%.80s\" is not between %lu bytes and 1EiB", option, text,
                   (unsigned long)least);
        return false;
    }
    return true;
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
    p->store = (struct store_plan){.headroom_percent = COMMAND_PLAN_HEADROOM_PERCENT,
                                   .object_bytes = REQUEST_BYTES_MAX};
    uint64_t workers = COMMAND_PLAN_WORKERS;
    p->price_gb = STATS_PRICE_GB;
    p->price_requests = STATS_PRICE_REQUESTS;
    const char *dataset = commands_argument_take_value(&argc, argv, "--dataset");
    const char *cache = commands_argument_take_value(&argc, argv, "--cache");
    const char *object = commands_argument_take_value(&argc, argv, "--object");
    const char *price_gb = commands_argument_take_value(&argc, argv, "--price-gb");
    const char *price_requests = commands_argument_take_value(&argc, argv, "--price-requests");
    int code = EXIT_CODE_USAGE;
    buf_init(&p->out, OUTPUT_MAX_BYTES);
    struct buf why;
    buf_init(&why, CONFIG_WHY_MAX + 64);
    if (dataset == NULL || cache == NULL) {
        (void)commands_usage_error(
            "plan", "--dataset and --cache are sizes such as 2TB and 1.5TiB, at least 64KiB");
    } else if (!bytes_of("--dataset", dataset, BLOCK_BYTES, &p->dataset_bytes, &why) ||
               !bytes_of("--cache", cache, BLOCK_BYTES, &p->cache_bytes, &why) ||
               (object != NULL && !bytes_of("--object", object, 1, &p->store.object_bytes, &why))) {
        (void)commands_usage_error("plan", buf_cstr(&why));
    } else if (!commands_argument_take_number(&argc, argv, "--nodes", 1, NODES_MAX, &p->nodes) ||
               !commands_argument_take_number(&argc, argv, "--epochs", 2, EPOCHS_MAX, &p->epochs)) {
        (void)commands_usage_error("plan", "--nodes is 1 to 100000, --epochs 2 to 1000");
    } else if (!commands_argument_take_number(&argc, argv, "--node-workers", 1, CONFIG_WORKERS_MAX,
                                              &workers)) {
        (void)commands_usage_error("plan", "--node-workers is 1 to 64");
    } else if (!price_of(p, price_gb, &p->price_gb) ||
               !price_of(p, price_requests, &p->price_requests)) {
        (void)commands_usage_error("plan", "a price is a number such as 0.09, up to a million");
    } else {
        p->has_binary_dataset = strchr(dataset, 'i') != NULL;
        p->has_binary_cache = strchr(cache, 'i') != NULL;
        p->store.workers = (unsigned)workers;
        p->request_bytes = min_u64(p->store.object_bytes, REQUEST_BYTES_MAX);
        for (uint32_t i = 0; i < BLOCKS; i++) {
            p->lens[i] = BLOCK_BYTES;
        }
        show(p);
        code = commands_result(EXIT_CODE_OK, result_of(p));
    }
    buf_done(&why);
    buf_done(&p->out);
    free(p);
    return code;
}

// SPDX-License-Identifier: Apache-2.0
// `forebay plan --dataset SIZE --cache SIZE [--nodes N] [--epochs N]`: what a cache of that size is good for. The store's own policy is
// driven by a training job in small: BLOCKS blocks, each epoch in a new order, and a cache of the same share of them.
#include "commands/commands.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "commands/commands_private.h"
#include "config/config.h"
#include "store/store.h"

#define BLOCKS 6000u
#define BLOCK_BYTES 65536u
#define HEADROOM 0.9 // of cache.size is for data, as cache.headroom says by default
#define EPOCHS_MAX 1000u
#define NODES_MAX 100000u
#define ACCESSES_MAX 3000000u // of a simulation: later epochs tell nothing new
#define OUTPUT_MAX_BYTES 65536u
#define SPARES 2u
#define BATCH 16u

struct plan {
    uint64_t dataset_bytes, cache_bytes, nodes, epochs;
    uint32_t lens[BLOCKS], order[BLOCKS];
    uint64_t random;
    struct buf out;
};

static uint64_t next_random(struct plan *p)
{
    uint64_t z = (p->random += 0x9e3779b97f4a7c15u); // the same plan prints the same
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

// Share of the reads after the first epoch that are hits, when a cache of `share` of the data sees `part` of it each epoch, in a
// new order and another part each time.
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
        return 1; // all of it is there after the first
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

static void render_row(struct plan *p, double factor)
{
    double cache = factor * (double)p->cache_bytes,
           share = HEADROOM * cache / (double)p->dataset_bytes;
    double nodes = (double)p->nodes, dataset = (double)p->dataset_bytes;
    double all = hit_ratio(p, share, 1),
           parts = p->nodes > 1 ? hit_ratio(p, share, 1 / nodes) : all;
    double gateway = p->nodes > 1 ? hit_ratio(p, share * nodes, 1) : all;
    char size[COMMANDS_BYTES_MAX], of_all[COMMANDS_BYTES_MAX], of_parts[COMMANDS_BYTES_MAX],
        of_gateway[COMMANDS_BYTES_MAX];
    if (commands_common()->is_json) {
        buf_printf(&p->out,
                   "{\"type\": \"item\", \"cache\": %.0f, \"each_reads_all\": {\"hit_ratio\": "
                   "%.4f, \"origin_bytes\": %.0f}, "
                   "\"nodes_share\": {\"hit_ratio\": %.4f, \"origin_bytes\": %.0f}, \"gateway\": "
                   "{\"hit_ratio\": %.4f, \"origin_bytes\": %.0f}}\n",
                   cache, all, nodes * dataset * (1 - all), parts, dataset * (1 - parts), gateway,
                   dataset * (1 - gateway));
        return;
    }
    commands_human_bytes((uint64_t)cache, size);
    commands_human_bytes((uint64_t)(nodes * dataset * (1 - all)), of_all);
    commands_human_bytes((uint64_t)(dataset * (1 - parts)), of_parts);
    commands_human_bytes((uint64_t)(dataset * (1 - gateway)), of_gateway);
    buf_printf(&p->out, "%12s   %5.1f %% %11s", size, 100 * all, of_all);
    if (p->nodes > 1) {
        buf_printf(&p->out, "   %5.1f %% %11s   %5.1f %% %11s", 100 * parts, of_parts,
                   100 * gateway, of_gateway);
    }
    buf_append_cstr(&p->out, factor > 0.99 && factor < 1.01 ? "   <- as asked\n" : "\n");
}

static void render(struct plan *p)
{
    static const double factors[] = {0.25, 0.5, 0.75, 1, 1.5, 2};
    char dataset[COMMANDS_BYTES_MAX], needed[COMMANDS_BYTES_MAX];
    bool is_json = commands_common()->is_json;
    uint64_t all_bytes = (uint64_t)((double)p->dataset_bytes / HEADROOM);
    commands_human_bytes(p->dataset_bytes, dataset);
    commands_human_bytes(all_bytes, needed);
    if (!is_json) {
        buf_printf(&p->out,
                   "%s of data, %llu node%s, %llu epochs; hits and origin bytes of an epoch after "
                   "the first\n\n",
                   dataset, (unsigned long long)p->nodes, p->nodes > 1 ? "s" : "",
                   (unsigned long long)p->epochs);
        buf_printf(&p->out, "%12s   %s%s\n", "cache.size", "each node reads all  ",
                   p->nodes > 1 ? "   nodes share the data   one cache of all nodes" : "");
    }
    for (size_t i = 0; i < ARRAY_LEN(factors); i++) {
        render_row(p, factors[i]);
    }
    if (is_json) {
        buf_printf(&p->out, "{\"type\": \"result\", \"exit\": 0, \"holds_all\": %llu}\n",
                   (unsigned long long)all_bytes);
    } else {
        buf_printf(&p->out,
                   "\n%s hold all of it (a tenth is cache.headroom). `forebay profile` tells the "
                   "same of an access log.\n",
                   needed);
    }
}

static bool size_of(const char *text, uint64_t *ret_bytes)
{
    char why[CONFIG_WHY_MAX];
    return text != NULL && config_value_parse_bytes(span_from_cstr(text), ret_bytes, why) &&
           *ret_bytes >= BLOCK_BYTES && *ret_bytes <= 1ull << 60;
}

static bool number_of(const char *text, uint64_t most, uint64_t *number)
{
    return text == NULL ||
           (span_to_u64(span_from_cstr(text), number) && *number >= 1 && *number <= most);
}

int command_plan(int argc, char **argv)
{
    bool bad = false;
    struct plan *p = calloc(1, sizeof(*p));
    check(p != NULL);
    p->nodes = 1;
    p->epochs = 10;
    const char *dataset = commands_argument_take_value(&argc, argv, "--dataset", &bad);
    const char *cache = commands_argument_take_value(&argc, argv, "--cache", &bad);
    const char *nodes = commands_argument_take_value(&argc, argv, "--nodes", &bad);
    const char *epochs = commands_argument_take_value(&argc, argv, "--epochs", &bad);
    int code = EXIT_CODE_USAGE;
    buf_init(&p->out, OUTPUT_MAX_BYTES);
    if (!size_of(dataset, &p->dataset_bytes) || !size_of(cache, &p->cache_bytes)) {
        (void)commands_usage_error(
            "plan", "--dataset and --cache are sizes such as 2TB and 500GiB, at least 64KiB");
    } else if (!number_of(nodes, NODES_MAX, &p->nodes) ||
               !number_of(epochs, EPOCHS_MAX, &p->epochs) || p->epochs < 2) {
        (void)commands_usage_error("plan", "--nodes is 1 to 100000, --epochs 2 to 1000");
    } else {
        for (uint32_t i = 0; i < BLOCKS; i++) {
            p->lens[i] = BLOCK_BYTES;
        }
        render(p);
        code = commands_print_result(&p->out);
    }
    buf_done(&p->out);
    free(p);
    return code;
}

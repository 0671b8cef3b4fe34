// SPDX-License-Identifier: Apache-2.0
// Feeds a trace to the retention policy on a log of segments, without a disk. A row of CSV for each
// (trace, share of the data that the cache holds).
//
//   trace_runner [--traces NAME,...] [--trace FILE] [--capacity SHARE,...] [--policy epoch|lru]
//                [-n BLOCKS] [--seed N] [--segment BYTES] [--spares N] [--batch N] [--no-optimum]
//   trace_runner --checksums [-n BLOCKS] [--seed N]
//   trace_runner --requests --traces NAME [-n BLOCKS] [--seed N]: block and whether it counts, a line each
//
// --trace FILE: a line with the bytes that share 1 stands for; then for each request a line: block
// number, bytes of the block, and the sum of 1 if it counts, 2 if it counts for the second ratio, 4 if
// only a part of the block is wanted, an eighth. Blocks of the built-in traces are 64 KiB, unless they say otherwise.
#include "store/policy.h"
#include "store/store.h"
#include "traces.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"

#define UNIT_BYTES 65536u
#define BATCH_MAX 1024u

struct options {
    const char *names, *file, *shares;
    enum policy_kind kind;
    uint32_t n, segment_bytes, spares, batch;
    uint64_t seed;
    bool checksums, requests, no_optimum;
};

// --- a run -----------------------------------------------------------------------------------------

static uint32_t unit_of(const struct trace *trace)
{
    return trace->len_units != NULL ? 1 : UNIT_BYTES;
}

static struct store_replay *replay_new(const struct trace *trace, const struct options *options,
                                       double share, const uint32_t *lens)
{
    uint64_t units = max_u64((uint64_t)((double)trace->base_units * share + 0.5), 1);
    struct store_replay_options replay = {
        .policy = options->kind == POLICY_LRU ? STORE_POLICY_LRU : STORE_POLICY_EPOCH,
        .capacity_bytes = units * unit_of(trace),
        .lens = lens,
        .block_count = trace->block_count,
        .mean_bytes = trace->len_units != NULL ? max_u64(1, trace->base_units / trace->block_count)
                                               : UNIT_BYTES,
        .segment_bytes = options->segment_bytes,
        .segment_bytes_min = trace->len_units != NULL ? 400000 : 0, // twice the longest block
        .spares = options->spares,
        .batch = options->batch};
    return store_replay_new(&replay);
}

static double cpu_ns(void)
{
    struct timespec now;
    check(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now) == 0);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static double ratio(uint64_t part, uint64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : 0;
}

static void run(const struct trace *trace, const struct options *options, double share)
{
    uint32_t *lens = calloc(trace->block_count, sizeof(*lens));
    check(lens != NULL);
    for (uint32_t i = 0; i < trace->block_count; i++) {
        lens[i] = trace_len(trace, i) * unit_of(trace);
    }
    struct store_replay *replay = replay_new(trace, options, share, lens);
    uint64_t counted[2] = {0}, hits[2] = {0}, asked = 0;
    struct store_replay_figures before = {0}, after;
    double began = cpu_ns();
    for (uint32_t i = 0; i < trace->request_count; i++) {
        if (i == trace->first_counted) {
            store_replay_figures(replay, &before);
        }
        bool is_part = (trace->flags[i] & TRACE_PART) != 0;
        bool is_hit = store_replay_access(replay, trace->blocks[i], is_part);
        for (unsigned k = 0; k < 2; k++) {
            if ((trace->flags[i] >> k & 1) != 0) {
                counted[k]++;
                hits[k] += is_hit;
            }
        }
        asked += i >= trace->first_counted
                     ? lens[trace->blocks[i]] / (is_part ? STORE_REPLAY_PARTS : 1)
                     : 0;
    }
    store_replay_figures(replay, &after);
    double ns = (cpu_ns() - began) / trace->request_count;
    check(after.unranked_runs == 0);
    uint64_t admitted = after.admitted_bytes - before.admitted_bytes;
    uint64_t rewritten = after.rewritten_bytes - before.rewritten_bytes;
    double hit_ratio = ratio(hits[0], counted[0]);
    double optimum = 0;
    if (!options->no_optimum) {
        uint64_t units = max_u64((uint64_t)((double)trace->base_units * share + 0.5), 1);
        optimum = ratio(trace_optimum(trace, units), counted[0]);
    }
    printf("%s,%u,%.2f,%s,%llu,%.4f,%.4f,%.4f,%.3f,%.4f,%.4f,%.3f,%.0f\n", trace->name, options->n,
           share, options->kind == POLICY_LRU ? "lru" : "epoch", (unsigned long long)counted[0],
           hit_ratio, ratio(hits[1], counted[1]), optimum, optimum > 0 ? hit_ratio / optimum : 0,
           ratio(admitted, asked), ratio(rewritten, asked), ratio(rewritten, admitted), ns);
    (void)fflush(stdout);
    store_replay_free(replay);
    free(lens);
}

static void run_shares(const struct trace *trace, const struct options *options)
{
    const char *at = options->shares;
    while (*at != 0) {
        char *end;
        double share = strtod(at, &end);
        if (end == at || share <= 0) {
            fprintf(stderr, "trace_runner: --capacity wants shares above 0\n");
            exit(2);
        }
        run(trace, options, share);
        at = *end == ',' ? end + 1 : end;
    }
}

// --- the command -----------------------------------------------------------------------------------

static bool is_in(const char *names, const char *name)
{
    size_t len = strlen(name);
    for (const char *at = names; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, len) == 0 && (at[len] == 0 || at[len] == ',')) {
            return true;
        }
    }
    return names == NULL;
}

static struct options options_of(int argc, char **argv)
{
    static const struct option longs[] = {
        {"traces", 1, NULL, 't'},    {"trace", 1, NULL, 'f'},    {"capacity", 1, NULL, 'c'},
        {"policy", 1, NULL, 'p'},    {"seed", 1, NULL, 's'},     {"segment", 1, NULL, 'g'},
        {"spares", 1, NULL, 'r'},    {"batch", 1, NULL, 'b'},    {"no-optimum", 0, NULL, 'o'},
        {"checksums", 0, NULL, 'x'}, {"requests", 0, NULL, 'q'}, {NULL, 0, NULL, 0},
    };
    struct options options = {
        .shares = "0.25,0.50,0.75", .kind = POLICY_EPOCH, .n = 20000, .spares = 2, .batch = 16};
    int option;
    while ((option = getopt_long(argc, argv, "n:", longs, NULL)) != -1) {
        switch (option) {
        case 't':
            options.names = optarg;
            break;
        case 'f':
            options.file = optarg;
            break;
        case 'c':
            options.shares = optarg;
            break;
        case 'p':
            options.kind = strcmp(optarg, "lru") == 0 ? POLICY_LRU : POLICY_EPOCH;
            break;
        case 'n':
            options.n = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 's':
            options.seed = strtoull(optarg, NULL, 10);
            break;
        case 'g':
            options.segment_bytes = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'r':
            options.spares = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'b':
            options.batch = (uint32_t)strtoul(optarg, NULL, 10);
            break;
        case 'o':
            options.no_optimum = true;
            break;
        case 'q':
            options.requests = true;
            break;
        case 'x':
            options.checksums = true;
            break;
        default:
            exit(2);
        }
    }
    if (options.n < 100 || options.batch < 1 || options.batch > BATCH_MAX) {
        fprintf(stderr, "trace_runner: -n is at least 100, --batch from 1 to %u\n", BATCH_MAX);
        exit(2);
    }
    return options;
}

int main(int argc, char **argv)
{
    struct options options = options_of(argc, argv);
    struct trace trace;
    printf(options.requests ? "block,counts\n"
           : options.checksums
               ? "trace,n,requests,blocks,base,checksum\n"
               : "trace,n,share,policy,requests,hit_ratio,hit_ratio2,optimum,share_of_optimum,"
                 "admitted_per_asked,rewritten_per_asked,rewritten_per_admitted,ns_per_access\n");
    if (options.file != NULL) {
        unsigned line;
        if (!trace_read(&trace, options.file, &line)) {
            fprintf(stderr, "trace_runner: %s: line %u cannot be read\n", options.file, line);
            return 1;
        }
        run_shares(&trace, &options);
        trace_done(&trace);
        return 0;
    }
    for (unsigned i = 0; trace_names[i] != NULL; i++) {
        if (!is_in(options.names, trace_names[i]) ||
            !trace_make(&trace, trace_names[i], options.n, options.seed)) {
            continue;
        }
        if (options.requests) {
            for (uint32_t k = 0; k < trace.request_count; k++) {
                printf("%u,%u\n", trace.blocks[k], trace.flags[k] & TRACE_COUNTS);
            }
        } else if (options.checksums) {
            printf("%s,%u,%u,%u,%llu,%016llx\n", trace.name, options.n, trace.request_count,
                   trace.block_count, (unsigned long long)trace.base_units,
                   (unsigned long long)trace_checksum(&trace));
        } else {
            run_shares(&trace, &options);
        }
        trace_done(&trace);
    }
    return 0;
}

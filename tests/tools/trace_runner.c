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
#include "traces.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"

#define UNIT_BYTES 65536u
#define BATCH_MAX 1024u
#define PARTS 8u        // of a block that is read in parts
#define RECLAIMS_MAX 8u // for one segment wanted

struct options {
    const char *names, *file, *shares;
    enum policy_kind kind;
    uint32_t n, segment_bytes, spares, batch;
    uint64_t seed;
    bool checksums, requests, no_optimum;
};

struct segment {
    uint32_t number, used_bytes, run_count;
    uint32_t *blocks; // of its runs
};

struct place {
    uint32_t number, start;
};

// The store, as far as the policy sees it.
struct runner {
    const struct trace *trace;
    struct policy *policy;
    void *region;
    uint32_t unit_bytes, segment_bytes, runs_max; // runs_max: in a segment
    uint32_t segment_max, used_segments, spares;
    uint32_t table_size, next_number;
    struct segment *table;                         // by number
    struct segment *fresh, *survivors, *probation; // open
    struct place *places;                          // by block; number 0: not stored
    uint32_t *indices;
    uint64_t *keys;
    struct policy_event events[BATCH_MAX];
    uint32_t event_count, batch;
};

static uint64_t key_of(uint32_t block)
{
    return policy_key((struct hash128){block, block * 0x2545f4914f6cdd1du}, block);
}

static uint32_t len_of(const struct runner *r, uint32_t block)
{
    return trace_len(r->trace, block) * r->unit_bytes;
}

static void runner_drain(struct runner *r)
{
    if (r->event_count > 0) {
        policy_take(r->policy, r->events, r->event_count);
        r->event_count = 0;
    }
}

static void runner_tell(struct runner *r, struct policy_event event)
{
    r->events[r->event_count++] = event;
    if (r->event_count >= r->batch) {
        runner_drain(r);
    }
}

static struct segment *segment_begin(struct runner *r)
{
    check(r->used_segments < r->segment_max);
    struct segment *segment;
    do {
        segment = &r->table[++r->next_number % r->table_size];
    } while (segment->number != 0 || r->next_number == 0);
    segment->number = r->next_number;
    segment->used_bytes = segment->run_count = 0;
    r->used_segments++;
    check(policy_segment_begin(r->policy, segment->number));
    return segment;
}

static bool segment_takes(const struct runner *r, const struct segment *segment, uint32_t len)
{
    return segment != NULL && segment->used_bytes + len <= r->segment_bytes &&
           segment->run_count < r->runs_max;
}

// An open segment with room for `len` bytes.
static struct segment *segment_with_room(struct runner *r, struct segment **open, uint32_t len)
{
    if (!segment_takes(r, *open, len)) {
        runner_drain(r); // what it holds is known before it is sealed
        if (*open != NULL) {
            policy_segment_seal(r->policy, (*open)->number);
        }
        *open = segment_begin(r);
    }
    return *open;
}

static uint32_t segment_add(struct runner *r, struct segment *segment, uint32_t block)
{
    uint32_t start = segment->used_bytes;
    segment->blocks[segment->run_count++] = block;
    segment->used_bytes += len_of(r, block);
    r->places[block] = (struct place){segment->number, start};
    return start;
}

static bool runner_reclaim(struct runner *r)
{
    struct policy_victim victim;
    runner_drain(r);
    if (!policy_victim(r->policy, NULL, NULL, r->indices, r->runs_max, &victim)) {
        return false;
    }
    struct segment *from = &r->table[victim.number % r->table_size];
    uint32_t next = 0;
    r->used_segments--; // its room is what survivors may need
    for (uint32_t i = 0; i < from->run_count; i++) {
        uint32_t block = from->blocks[i];
        if (next < victim.survivor_count && r->indices[next] == i) {
            next++;
            uint32_t len = len_of(r, block);
            struct segment *to = segment_with_room(r, &r->survivors, len);
            uint32_t start = segment_add(r, to, block);
            policy_segment_move(r->policy, victim.number, i, to->number, start, len);
        } else {
            r->places[block].number = 0;
            policy_segment_drop(r->policy, victim.number, i, r->keys[block]);
        }
    }
    policy_segment_free(r->policy, victim.number);
    from->number = 0;
    if (policy_probation_ended(r->policy) && r->probation != NULL) {
        policy_segment_seal(r->policy, r->probation->number);
        r->probation = NULL;
    }
    return true;
}

static void runner_store(struct runner *r, uint32_t block, bool on_probation, uint32_t stamp)
{
    uint32_t len = len_of(r, block);
    struct segment **open = on_probation ? &r->probation : &r->fresh;
    if (!segment_takes(r, *open, len)) {
        for (unsigned i = 0; i < RECLAIMS_MAX && r->segment_max - r->used_segments <= r->spares;
             i++) {
            if (!runner_reclaim(r)) {
                break;
            }
        }
        if (r->segment_max - r->used_segments == 0) {
            return;
        }
    }
    struct segment *segment = segment_with_room(r, open, len);
    uint32_t start = segment_add(r, segment, block);
    runner_tell(r, (struct policy_event){.kind = POLICY_STORED,
                                         .key = r->keys[block],
                                         .segment = segment->number,
                                         .start = start,
                                         .len = len,
                                         .stamp = stamp,
                                         .on_probation = on_probation});
}

static bool runner_access(struct runner *r, uint32_t block, bool is_part)
{
    struct place place = r->places[block];
    uint64_t key = r->keys[block];
    uint32_t len = len_of(r, block);
    if (place.number != 0) {
        runner_tell(r, (struct policy_event){.kind = POLICY_READ,
                                             .key = key,
                                             .segment = place.number,
                                             .start = place.start,
                                             .len = is_part ? len / PARTS : len});
        return true;
    }
    uint32_t stamp;
    enum policy_verdict verdict = policy_admit(r->policy, key, 0, is_part, &stamp);
    bool admitted = verdict != POLICY_REFUSE && len <= r->segment_bytes;
    bool on_probation = verdict == POLICY_PROBATION;
    runner_tell(r, (struct policy_event){.kind = admitted ? POLICY_ADMITTED : POLICY_REFUSED,
                                         .key = key,
                                         .len = len,
                                         .stamp = stamp,
                                         .is_part = is_part,
                                         .on_probation = admitted && on_probation});
    if (admitted) {
        runner_store(r, block, on_probation, stamp);
    }
    return false;
}

// --- a run -----------------------------------------------------------------------------------------

static void *take(size_t count, size_t size)
{
    void *taken = calloc(count, size);
    check(taken != NULL);
    return taken;
}

// Segments of 64 blocks, fewer where the cache would not have 64 of them.
static void runner_measure(struct runner *r, const struct options *options, uint64_t capacity_bytes)
{
    uint64_t mean = r->trace->len_units != NULL
                        ? max_u64(1, r->trace->base_units / r->trace->block_count)
                        : r->unit_bytes;
    uint64_t blocks = 64;
    while (blocks > 4 && capacity_bytes / mean / blocks < 64) {
        blocks /= 2;
    }
    uint64_t least = r->trace->len_units != NULL ? 400000 : 0; // twice the longest block
    r->segment_bytes = options->segment_bytes != 0 ? options->segment_bytes
                                                   : (uint32_t)max_u64(blocks * mean, least);
    r->segment_max = (uint32_t)max_u64(capacity_bytes / r->segment_bytes, 6);
    uint32_t shortest = UINT32_MAX;
    for (uint32_t i = 0; i < r->trace->block_count; i++) {
        shortest = (uint32_t)min_u64(shortest, len_of(r, i));
    }
    r->runs_max = r->segment_bytes / shortest + 1;
}

static void runner_init(struct runner *r, const struct trace *trace, const struct options *options,
                        double share)
{
    memset(r, 0, sizeof(*r));
    r->trace = trace;
    r->unit_bytes = trace->len_units != NULL ? 1 : UNIT_BYTES;
    r->batch = options->batch;
    r->spares = options->spares;
    uint64_t units = max_u64((uint64_t)((double)trace->base_units * share + 0.5), 1);
    uint64_t capacity_bytes = units * r->unit_bytes;
    runner_measure(r, options, capacity_bytes);
    struct policy_options policy = {
        .kind = options->kind,
        .capacity_bytes = capacity_bytes,
        .segment_max = r->segment_max + 1,
        .run_max = (uint32_t)max_u64(64, capacity_bytes / r->segment_bytes * r->runs_max),
    };
    size_t bytes = align_up_u64(policy_region_bytes(&policy), 64);
    r->region = aligned_alloc(64, bytes);
    check(r->region != NULL);
    memset(r->region, 0, bytes);
    r->policy = policy_new(&policy, r->region);
    r->table_size = policy.segment_max;
    r->table = take(r->table_size, sizeof(*r->table));
    for (uint32_t i = 0; i < r->table_size; i++) {
        r->table[i].blocks = take(r->runs_max, sizeof(uint32_t));
    }
    r->indices = take(r->runs_max, sizeof(*r->indices));
    r->places = take(trace->block_count, sizeof(*r->places));
    r->keys = take(trace->block_count, sizeof(*r->keys));
    for (uint32_t i = 0; i < trace->block_count; i++) {
        r->keys[i] = key_of(i);
    }
}

static void runner_done(struct runner *r)
{
    policy_free(r->policy);
    for (uint32_t i = 0; i < r->table_size; i++) {
        free(r->table[i].blocks);
    }
    free(r->region);
    free(r->table);
    free(r->indices);
    free(r->places);
    free(r->keys);
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
    struct runner *r = take(1, sizeof(*r));
    runner_init(r, trace, options, share);
    uint64_t counted[2] = {0}, hits[2] = {0}, asked = 0;
    struct policy_stats before = {0}, after;
    double began = cpu_ns();
    for (uint32_t i = 0; i < trace->request_count; i++) {
        if (i == trace->first_counted) {
            runner_drain(r);
            policy_stats(r->policy, &before);
        }
        bool is_hit = runner_access(r, trace->blocks[i], (trace->flags[i] & TRACE_PART) != 0);
        for (unsigned k = 0; k < 2; k++) {
            if ((trace->flags[i] >> k & 1) != 0) {
                counted[k]++;
                hits[k] += is_hit;
            }
        }
        uint32_t parts = (trace->flags[i] & TRACE_PART) != 0 ? PARTS : 1;
        asked += i >= trace->first_counted ? len_of(r, trace->blocks[i]) / parts : 0;
    }
    runner_drain(r);
    double ns = (cpu_ns() - began) / trace->request_count;
    policy_stats(r->policy, &after);
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
    runner_done(r);
    free(r);
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

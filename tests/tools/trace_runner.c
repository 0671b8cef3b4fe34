// SPDX-License-Identifier: Apache-2.0
// Feeds a trace to the retention policy on a log of segments, without a disk. Prints a row of CSV
// for each trace and capacity (a share of the trace's data).
//
//   trace_runner [--traces NAME,...] [--trace FILE] [--capacity SHARE,...] [--policy epoch|lru]
//                [-n BLOCKS] [--seed N] [--segment BYTES] [--spares N] [--batch N] [--no-optimum]
//   trace_runner --checksums [-n BLOCKS] [--seed N]
//   trace_runner --requests --traces NAME [-n BLOCKS] [--seed N]
//                prints a line for each request: block, and whether it counts
//
// --trace FILE: the first line is the number of bytes that share 1 stands for. Then comes a line
// for each request: block number, bytes of the block, and the sum of 1 if it counts, 2 if it counts
// for the second ratio, 4 if only an eighth of the block is wanted. Blocks of the built-in traces
// are 64 KiB, unless they say otherwise.
//
// `optimum` is the ratio of a cache that knows the future, if all blocks have one length. Otherwise
// it is an upper bound. `optimum_is` says which: exact, bound, or none with --no-optimum.
//
// Exit status 2: an argument is unknown or wrong. Exit status 1: the trace cannot be read, or does
// not suit a cache of that size. The message is on standard error.
#include "store/offline/offline.h"
#include "store/store.h"
#include "traces.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"

#define UNIT_BYTES 65536u
#define BATCH_MAX 1024u
#define SHARES_MAX 64u
#define SEGMENTS_MAX (1u << 22)
#define SHARE_MOST 1000.0
#define BLOCKS_MIN 100u
#define BLOCKS_MAX 10000000u
#define LONGEST_IN_SEGMENT 2u // of blocks of several lengths, at least,
#define SEGMENTS_FOR_LONG 16u // unless that would leave fewer segments than this

struct options {
    const char *names, *file;
    double shares[SHARES_MAX];
    unsigned share_count;
    enum store_policy policy;
    uint32_t n, segment_bytes, spares, batch;
    uint64_t seed;
    bool checksums, requests, no_optimum;
};

// --- a run ---------------------------------------------------------------------------------------

static uint32_t unit_of(const struct trace *trace)
{
    return trace->len_units != NULL ? 1 : UNIT_BYTES;
}

static uint64_t capacity_units(const struct trace *trace, double share)
{
    return max_u64((uint64_t)((double)trace->base_units * share + 0.5), 1);
}

static uint32_t *lens_of(const struct trace *trace)
{
    uint32_t *lens = calloc(trace->block_count, sizeof(*lens));
    check(lens != NULL);
    for (uint32_t i = 0; i < trace->block_count; i++) {
        lens[i] = trace_len(trace, i) * unit_of(trace);
    }
    return lens;
}

static struct store_replay_options replay_options(const struct trace *trace,
                                                  const struct options *options, double share,
                                                  const uint32_t *lens)
{
    uint64_t capacity = capacity_units(trace, share) * unit_of(trace), sum = 0, longest = 0;
    for (uint32_t i = 0; i < trace->block_count; i++) {
        sum += lens[i];
        longest = max_u64(longest, lens[i]);
    }
    uint64_t least = min_u64(LONGEST_IN_SEGMENT * longest, capacity / SEGMENTS_FOR_LONG);
    return (struct store_replay_options){
        .policy = options->policy,
        .capacity_bytes = capacity,
        .lens = lens,
        .block_count = trace->block_count,
        .mean_bytes = trace->len_units != NULL ? max_u64(1, sum / trace->block_count) : UNIT_BYTES,
        .segment_bytes = options->segment_bytes,
        .segment_bytes_min = trace->len_units != NULL ? (uint32_t)least : 0,
        .spares = options->spares,
        .batch = options->batch};
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
    uint32_t *lens = lens_of(trace);
    struct store_replay_options how = replay_options(trace, options, share, lens);
    struct store_replay *replay = store_replay_new(&how);
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
    double optimum = options->no_optimum
                         ? 0
                         : ratio(trace_optimum(trace, capacity_units(trace, share)), counted[0]);
    printf("%s,%u,%.*f,%s,%llu,%.4f,%.4f,%.4f,%.3f,%.4f,%.4f,%.3f,%.0f,%s\n", trace->name,
           options->n, share < 0.01 ? 6 : 2, share,
           options->policy == STORE_POLICY_LRU ? "lru" : "epoch", (unsigned long long)counted[0],
           hit_ratio, ratio(hits[1], counted[1]), optimum, optimum > 0 ? hit_ratio / optimum : 0,
           ratio(admitted, asked), ratio(rewritten, asked), ratio(rewritten, admitted), ns,
           options->no_optimum             ? "none"
           : trace_is_of_one_length(trace) ? "exact"
                                           : "bound");
    (void)fflush(stdout);
    store_replay_free(replay);
    free(lens);
}

static bool shares_fit(const struct trace *trace, const struct options *options)
{
    uint32_t *lens = lens_of(trace);
    bool fits = true;
    for (unsigned i = 0; i < options->share_count && fits; i++) {
        struct store_replay_options how = replay_options(trace, options, options->shares[i], lens);
        uint64_t count = store_replay_segments(&how);
        uint64_t least = max_u64(STORE_REPLAY_SEGMENTS_MIN, 2ull * how.spares);
        fits = count >= least && count <= SEGMENTS_MAX;
        if (!fits) {
            fprintf(stderr,
                    "trace_runner: %s: a share of %g is %llu bytes, which make %llu segments, not "
                    "from %llu to %u of them\n",
                    trace->name, options->shares[i], (unsigned long long)how.capacity_bytes,
                    (unsigned long long)count, (unsigned long long)least, SEGMENTS_MAX);
        }
    }
    free(lens);
    return fits;
}

// --- the command ---------------------------------------------------------------------------------

static const char header[] = "trace,n,share,policy,requests,hit_ratio,hit_ratio2,optimum,"
                             "share_of_optimum,admitted_per_asked,rewritten_per_asked,"
                             "rewritten_per_admitted,ns_per_access,optimum_is\n";

static void refuse(const char *what, const char *value) __attribute__((noreturn));
static void refuse(const char *what, const char *value)
{
    fprintf(stderr, "trace_runner: %s, not '%s'\n", what, value);
    exit(2);
}

static uint64_t number_of(const char *option, const char *text, uint64_t least, uint64_t most)
{
    char *end, what[128];
    errno = 0;
    uint64_t number = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end != 0 || errno != 0 || number < least ||
        number > most) {
        (void)snprintf(what, sizeof(what), "%s wants a number from %llu to %llu", option,
                       (unsigned long long)least, (unsigned long long)most);
        refuse(what, text);
    }
    return number;
}

static void take_shares(struct options *options, const char *text)
{
    const char *at = text;
    options->share_count = 0;
    do {
        char *end;
        double share = strtod(at, &end);
        if (end == at || (*end != 0 && *end != ',') || !(share > 0) || share > SHARE_MOST ||
            options->share_count == SHARES_MAX) {
            refuse("--capacity wants shares above 0 and up to 1000, at most 64 of them", text);
        }
        options->shares[options->share_count++] = share;
        at = *end == ',' ? end + 1 : NULL;
    } while (at != NULL);
}

static bool is_known(const char *name, size_t len)
{
    for (unsigned i = 0; trace_names[i] != NULL; i++) {
        if (strlen(trace_names[i]) == len && strncmp(trace_names[i], name, len) == 0) {
            return true;
        }
    }
    return false;
}

static const char *names_of(const char *text)
{
    for (const char *at = text; at != NULL;) {
        size_t len = strcspn(at, ",");
        if (!is_known(at, len)) {
            fprintf(stderr, "trace_runner: --traces wants some of");
            for (unsigned i = 0; trace_names[i] != NULL; i++) {
                fprintf(stderr, " %s", trace_names[i]);
            }
            fprintf(stderr, ", not '%.*s'\n", (int)len, at);
            exit(2);
        }
        at = at[len] == ',' ? at + len + 1 : NULL;
    }
    return text;
}

static bool is_wanted(const char *names, const char *name)
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

static enum store_policy policy_of(const char *text)
{
    if (strcmp(text, "lru") != 0 && strcmp(text, "epoch") != 0) {
        refuse("--policy wants epoch or lru", text);
    }
    return strcmp(text, "lru") == 0 ? STORE_POLICY_LRU : STORE_POLICY_EPOCH;
}

static struct options options_of(int argc, char **argv)
{
    static const struct option longs[] = {
        {"traces", 1, NULL, 't'},    {"trace", 1, NULL, 'f'},    {"capacity", 1, NULL, 'c'},
        {"policy", 1, NULL, 'p'},    {"seed", 1, NULL, 's'},     {"segment", 1, NULL, 'g'},
        {"spares", 1, NULL, 'r'},    {"batch", 1, NULL, 'b'},    {"no-optimum", 0, NULL, 'o'},
        {"checksums", 0, NULL, 'x'}, {"requests", 0, NULL, 'q'}, {NULL, 0, NULL, 0},
    };
    struct options options = {.policy = STORE_POLICY_EPOCH, .n = 20000, .spares = 2, .batch = 16};
    int option;
    take_shares(&options, "0.25,0.50,0.75");
    while ((option = getopt_long(argc, argv, "n:", longs, NULL)) != -1) {
        switch (option) {
        case 't':
            options.names = names_of(optarg);
            break;
        case 'f':
            options.file = optarg;
            break;
        case 'c':
            take_shares(&options, optarg);
            break;
        case 'p':
            options.policy = policy_of(optarg);
            break;
        case 'n':
            options.n = (uint32_t)number_of("-n", optarg, BLOCKS_MIN, BLOCKS_MAX);
            break;
        case 's':
            options.seed = number_of("--seed", optarg, 0, UINT64_MAX);
            break;
        case 'g':
            options.segment_bytes = (uint32_t)number_of("--segment", optarg, 1, INT32_MAX);
            break;
        case 'r':
            options.spares = (uint32_t)number_of("--spares", optarg, 0, SEGMENTS_MAX);
            break;
        case 'b':
            options.batch = (uint32_t)number_of("--batch", optarg, 1, BATCH_MAX);
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
            exit(2); // getopt has said why
        }
    }
    if (optind < argc) {
        refuse("there are only options", argv[optind]);
    }
    if (options.file != NULL && (options.names != NULL || options.requests || options.checksums)) {
        refuse("--trace is instead of --traces, --requests and --checksums", options.file);
    }
    return options;
}

static int run_file(const struct options *options)
{
    struct trace trace;
    unsigned line;
    const char *wrong = trace_read(&trace, options->file, &line);
    if (wrong != NULL) {
        char where[32] = "";
        if (line > 0) {
            (void)snprintf(where, sizeof(where), "line %u: ", line);
        }
        fprintf(stderr, "trace_runner: %s: %s%s\n", options->file, where, wrong);
        return 1;
    }
    bool fits = shares_fit(&trace, options);
    if (fits) {
        printf("%s", header);
        for (unsigned i = 0; i < options->share_count; i++) {
            run(&trace, options, options->shares[i]);
        }
    }
    trace_done(&trace);
    return fits ? 0 : 1;
}

static void show_requests(const struct trace *trace)
{
    for (uint32_t k = 0; k < trace->request_count; k++) {
        printf("%u,%u\n", trace->blocks[k], trace->flags[k] & TRACE_COUNTS);
    }
}

static void show_checksum(const struct trace *trace, const struct options *options)
{
    printf("%s,%u,%u,%u,%llu,%016llx\n", trace->name, options->n, trace->request_count,
           trace->block_count, (unsigned long long)trace->base_units,
           (unsigned long long)trace_checksum(trace));
}

// False: its shares do not fit.
static bool run_built_in(const struct options *options, const char *name)
{
    struct trace trace;
    bool fits = true;
    check(trace_make(&trace, name, options->n, options->seed));
    if (options->requests) {
        show_requests(&trace);
    } else if (options->checksums) {
        show_checksum(&trace, options);
    } else {
        fits = shares_fit(&trace, options);
        for (unsigned i = 0; fits && i < options->share_count; i++) {
            run(&trace, options, options->shares[i]);
        }
    }
    trace_done(&trace);
    return fits;
}

int main(int argc, char **argv)
{
    struct options options = options_of(argc, argv);
    if (options.file != NULL) {
        return run_file(&options);
    }
    printf("%s", options.requests    ? "block,counts\n"
                 : options.checksums ? "trace,n,requests,blocks,base,checksum\n"
                                     : header);
    for (unsigned i = 0; trace_names[i] != NULL; i++) {
        if (is_wanted(options.names, trace_names[i]) && !run_built_in(&options, trace_names[i])) {
            return 1;
        }
    }
    return 0;
}

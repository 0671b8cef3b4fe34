// SPDX-License-Identifier: Apache-2.0
// `forebay profile FILE`: replays an access log (log.keys: full) with the store's own policy, for
// caches of several sizes, which hold as much as `forebay plan` says of them. To limit its memory,
// it leaves out blocks beyond BLOCKS_MAX and reads beyond READS_MAX, and reports that.
#include "commands/commands.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/human.h"
#include "cli/cli_private.h"
#include "cli/client/command_client.h"
#include "config/config.h"
#include "store/offline/offline.h"
#include "store/store.h"

#define BLOCK_BYTES (1u << 20) // the default of cache.block_size
#define BLOCK_BYTES_MIN 1024u  // the smallest space that an object takes on disk
#define BLOCKS_MAX (1u << 20)
#define READS_MAX (16u << 20)
#define READS_OF_LINE_MAX 65536u // blocks that one line may read: 64 GiB
#define SLOTS (4u * BLOCKS_MAX)  // entries of the hash table of blocks; a power of two
#define PREFIXES_MAX 1024u
#define PREFIXES_SHOWN 8u
#define LINE_MAX_BYTES 65536u
#define OUTPUT_MAX_BYTES (1u << 20)
#define SPARES 2u
#define BATCH 16u

struct prefix {
    uint64_t hash, bytes, reads;
    char name[256];
};

struct profile {
    // `hashes` and `slots` are a hash table of SLOTS entries: the hash of a block (0: the entry is
    // free), and the block's number. `lens` has the bytes of each block, by number.
    uint64_t *hashes;
    uint32_t *slots, *lens;
    uint32_t *reads; // numbers of the blocks that were read, in the order of the log
    uint32_t block_count, read_count, again_count;
    // Bytes of all distinct blocks, of all reads, and of the reads that were not the first of a
    // block.
    uint64_t held_bytes, read_bytes, again_bytes;
    double objects; // the objects of the distinct blocks; of one with n blocks, each is 1/n
    struct store_plan plan;
    uint64_t lines, bad_lines, other_lines, left_out;
    struct prefix prefixes[PREFIXES_MAX];
    unsigned prefix_count;
    struct buf out;
};

// --- Reading the log -----------------------------------------------------------------------------

// Returns the number of a block of an object of `size` bytes; BLOCKS_MAX if there is no more room.
static uint32_t find_block(struct profile *p, uint64_t hash, uint32_t len, uint64_t size)
{
    hash = hash != 0 ? hash : 1;
    uint64_t at = hash & (SLOTS - 1);
    // The table is never full: at most a quarter is in use.
    while (p->hashes[at] != 0 && p->hashes[at] != hash) {
        at = (at + 1) & (SLOTS - 1);
    }
    if (p->hashes[at] == 0) {
        if (p->block_count == BLOCKS_MAX) {
            return BLOCKS_MAX;
        }
        p->hashes[at] = hash;
        p->slots[at] = p->block_count;
        p->lens[p->block_count++] = len;
        p->held_bytes += len;
        p->objects += 1 / ceil((double)size / BLOCK_BYTES);
    } else {
        p->again_count++;
        p->again_bytes += len;
    }
    return p->slots[at];
}

static void count_prefix(struct profile *p, struct span bucket, struct span key, uint64_t bytes)
{
    size_t slash = span_find(key, '/');
    struct span folder = {key.ptr, slash < key.len ? slash + 1 : 0};
    uint64_t hash = hash64(bucket.ptr, bucket.len, hash64(folder.ptr, folder.len, 1));
    unsigned i = 0;
    while (i < p->prefix_count && p->prefixes[i].hash != hash) {
        i++;
    }
    if (i == PREFIXES_MAX) {
        return; // the first PREFIXES_MAX prefixes are enough to find those that are read most
    }
    struct prefix *prefix = &p->prefixes[i];
    if (i == p->prefix_count) {
        p->prefix_count++;
        prefix->hash = hash;
        (void)snprintf(prefix->name, sizeof(prefix->name), "%.*s/%.*s",
                       (int)min_u64(bucket.len, 100), bucket.ptr, (int)min_u64(folder.len, 150),
                       folder.ptr);
    }
    prefix->bytes += bytes;
    prefix->reads++;
}

static struct span text_of(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return (struct span){json_string_value(value), json_string_length(value)};
}

// Returns the part of the object that was read, [*first, *end). Returns false if nothing was read.
static bool extent_of(const json_t *line, uint64_t *ret_first, uint64_t *ret_end,
                      uint64_t *ret_size)
{
    uint64_t size = command_client_u64(line, "object_size"),
             bytes = command_client_u64(line, "bytes"), first = 0;
    struct span range = text_of(line, "range"), digits;
    if (span_starts_with(range, SPAN("bytes="))) {
        range = (struct span){range.ptr + 6, range.len - 6};
        if (!span_split(&range, '-', &digits) || (digits.len > 0 && !span_to_u64(digits, &first))) {
            return false;
        }
        if (digits.len == 0) { // a suffix range
            first = size > bytes ? size - bytes : 0;
        }
    }
    uint64_t end;
    if (bytes == 0 || !add_u64(first, bytes, &end)) {
        return false;
    }
    *ret_first = first;
    *ret_end = end;
    *ret_size = max_u64(size, end);
    return true;
}

static void take_read(struct profile *p, const json_t *line)
{
    struct span bucket = text_of(line, "bucket"), key = text_of(line, "key");
    uint64_t first, end, size;
    if (!span_equal(text_of(line, "op"), SPAN("GetObject")) || bucket.len == 0 || key.len == 0 ||
        !extent_of(line, &first, &end, &size)) {
        p->other_lines++;
        return;
    }
    count_prefix(p, bucket, key, end - first);
    uint64_t object = hash64(key.ptr, key.len, hash64(bucket.ptr, bucket.len, 0));
    uint64_t block = first / BLOCK_BYTES, all_end = (end - 1) / BLOCK_BYTES + 1;
    uint64_t counted_end = min_u64(all_end, block + READS_OF_LINE_MAX);
    for (; block < counted_end && p->read_count < READS_MAX; block++) {
        uint64_t len = min_u64(BLOCK_BYTES, size - block * BLOCK_BYTES);
        uint32_t number = find_block(p, hash64(&block, sizeof(block), object),
                                     (uint32_t)max_u64(len, BLOCK_BYTES_MIN), size);
        if (number == BLOCKS_MAX) {
            p->left_out++;
        } else {
            p->reads[p->read_count++] = number;
            p->read_bytes += p->lens[number];
        }
    }
    p->left_out += all_end - block;
}

static void read_lines(struct profile *p, FILE *file)
{
    static char text[LINE_MAX_BYTES];
    while (fgets(text, sizeof(text), file) != NULL) {
        json_t *line = json_loads(text, JSON_ALLOW_NUL, NULL);
        p->lines++;
        if (json_is_object(line)) {
            take_read(p, line);
        } else {
            p->bad_lines++;
        }
        json_decref(line);
    }
}

// --- Results -------------------------------------------------------------------------------------

// Replays the log to a cache of this size. Returns the hits, and their bytes.
static uint64_t replay(const struct profile *p, uint64_t cache_bytes, uint64_t *ret_hit_bytes)
{
    struct store_replay_options options = {.policy = STORE_POLICY_EPOCH,
                                           .capacity_bytes =
                                               store_plan_holds(&p->plan, cache_bytes),
                                           .lens = p->lens,
                                           .block_count = p->block_count,
                                           .mean_bytes = p->held_bytes / p->block_count,
                                           .segment_bytes_min = 2 * BLOCK_BYTES,
                                           .spares = SPARES,
                                           .batch = BATCH};
    struct store_replay *replay = store_replay_new(&options);
    uint64_t hits = 0;
    *ret_hit_bytes = 0;
    for (uint32_t i = 0; i < p->read_count; i++) {
        bool is_hit = store_replay_access(replay, p->reads[i], false);
        hits += is_hit;
        *ret_hit_bytes += is_hit ? p->lens[p->reads[i]] : 0;
    }
    store_replay_free(replay);
    return hits;
}

static void render_size(struct profile *p, uint64_t cache_bytes, bool holds_all)
{
    uint64_t hits = p->again_count, hit_bytes = p->again_bytes;
    if (!holds_all) {
        hits = replay(p, cache_bytes, &hit_bytes);
    }
    double ratio = (double)hits / p->read_count;
    double byte_ratio = (double)hit_bytes / (double)p->read_bytes;
    if (commands_common()->is_json) {
        commands_line("item", json_pack("{s:I, s:f, s:f, s:I}", "cache", (json_int_t)cache_bytes,
                                        "hit_ratio", ratio, "byte_hit_ratio", byte_ratio,
                                        "origin_bytes", (json_int_t)(p->read_bytes - hit_bytes)));
        return;
    }
    buf_printf(&p->out, "%12s   %5.1f %%   %5.1f %%   %12s%s\n",
               command_bytes(human_bytes_up((double)cache_bytes)), 100 * ratio, 100 * byte_ratio,
               command_bytes((double)(p->read_bytes - hit_bytes)),
               holds_all ? "   <- holds all that was read" : "");
}

// Shows caches that hold parts of the data, and the least one that holds all of it. The smallest
// cache that Forebay allows may hold several of these parts, so such rows are left out.
static void render_sizes(struct profile *p)
{
    static const double shares[] = {0.1, 0.25, 0.5, 0.75};
    uint64_t all = store_plan_size(&p->plan, p->held_bytes), last = 0;
    for (size_t i = 0; i < ARRAY_LEN(shares); i++) {
        uint64_t size = store_plan_size(&p->plan, (uint64_t)(shares[i] * (double)p->held_bytes));
        if (size > last && size < all) {
            render_size(p, size, false);
        }
        last = size;
    }
    render_size(p, all, true);
    if (!commands_common()->is_json) {
        buf_printf(&p->out,
                   "\nSizes are for %u workers and objects of %s. A tenth is cache.headroom, and "
                   "some\nsegments are spare or being filled.\n",
                   p->plan.workers, command_bytes((double)p->plan.object_bytes));
    }
}

static int compare_prefixes(const void *a, const void *b)
{
    const struct prefix *left = a, *right = b;
    return (left->bytes < right->bytes) - (left->bytes > right->bytes);
}

static void render_prefixes(struct profile *p)
{
    qsort(p->prefixes, p->prefix_count, sizeof(*p->prefixes), compare_prefixes);
    if (!commands_common()->is_json) {
        buf_append_cstr(&p->out, "\nread most\n");
    }
    for (unsigned i = 0; i < p->prefix_count && i < PREFIXES_SHOWN; i++) {
        const struct prefix *prefix = &p->prefixes[i];
        if (commands_common()->is_json) {
            commands_line("item",
                          json_pack("{s:o, s:I, s:I}", "prefix",
                                    control_text(span_from_cstr(prefix->name)), "bytes",
                                    (json_int_t)prefix->bytes, "reads", (json_int_t)prefix->reads));
        } else {
            buf_printf(&p->out, "%12s in %llu reads of %s\n", command_bytes((double)prefix->bytes),
                       (unsigned long long)prefix->reads, command_client_visible(prefix->name));
        }
    }
}

static int render(struct profile *p)
{
    int code = p->bad_lines > 0 || p->left_out > 0 ? EXIT_CODE_PARTLY : EXIT_CODE_OK;
    if (!commands_common()->is_json) {
        buf_printf(&p->out,
                   "%llu lines: %u reads of blocks, %s in all, of %s that differ; %.1f %% of them "
                   "not the first\n\n%12s   %7s   %7s   %12s\n",
                   (unsigned long long)p->lines, p->read_count,
                   command_bytes((double)p->read_bytes), command_bytes((double)p->held_bytes),
                   100.0 * p->again_count / p->read_count, "cache.size", "hits", "bytes",
                   "from origin");
    }
    p->plan.object_bytes = (uint64_t)fmax(1, round((double)p->held_bytes / p->objects));
    render_sizes(p);
    render_prefixes(p);
    if (p->bad_lines > 0) {
        command_screen_tell(
            2,
            "forebay profile: %llu lines are no JSON objects (access_log.format: json "
            "is wanted)\n",
            (unsigned long long)p->bad_lines);
    }
    if (p->left_out > 0) {
        command_screen_tell(
            2,
            "forebay profile: %llu reads of blocks are left out: the log has too many "
            "reads or blocks, or a line reads more than 64 GiB\n",
            (unsigned long long)p->left_out);
    }
    return code;
}

static json_t *result_of(const struct profile *p)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "lines", (json_int_t)p->lines, "unreadable",
                     (json_int_t)p->bad_lines, "left_out", (json_int_t)p->left_out, "bytes",
                     (json_int_t)p->read_bytes, "different", (json_int_t)p->held_bytes);
}

static struct profile *profile_new(void)
{
    struct profile *p = calloc(1, sizeof(*p));
    check(p != NULL);
    p->hashes = calloc(SLOTS, sizeof(*p->hashes));
    p->slots = calloc(SLOTS, sizeof(*p->slots));
    p->lens = calloc(BLOCKS_MAX, sizeof(*p->lens));
    p->reads = calloc(READS_MAX, sizeof(*p->reads)); // pages that are not used take no memory
    check(p->hashes != NULL && p->slots != NULL && p->lens != NULL && p->reads != NULL);
    buf_init(&p->out, OUTPUT_MAX_BYTES);
    return p;
}

static void profile_free(struct profile *p)
{
    free(p->hashes);
    free(p->slots);
    free(p->lens);
    free(p->reads);
    buf_done(&p->out);
    free(p);
}

int command_profile(int argc, char **argv)
{
    uint64_t workers = COMMAND_PLAN_WORKERS;
    if (!commands_argument_take_number(&argc, argv, "--node-workers", 1, CONFIG_WORKERS_MAX,
                                       &workers)) {
        return commands_usage_error("profile", "--node-workers is 1 to 64");
    }
    check(argc == 1);
    struct command_client to = {.name = "profile", .is_json = commands_common()->is_json};
    FILE *file = strcmp(argv[0], "-") == 0 ? stdin : fopen(argv[0], "re");
    if (file == NULL) {
        command_client_error(&to, "%s: %s", argv[0], strerror(errno));
        return commands_result(EXIT_CODE_FAILED, NULL);
    }
    struct profile *p = profile_new();
    p->plan.workers = (unsigned)workers;
    p->plan.headroom_percent = COMMAND_PLAN_HEADROOM_PERCENT;
    read_lines(p, file);
    int failed = ferror(file) ? errno : 0; // the error of the last read
    if (file != stdin) {
        (void)fclose(file); // the file was only read
    }
    int code = EXIT_CODE_FAILED;
    if (failed != 0) {
        command_client_error(&to, "%s: %s", argv[0], strerror(failed));
        code = commands_result(code, NULL);
    } else if (p->read_count == 0) {
        command_client_error(&to, "no read of an object is in it");
        code = commands_result(code, NULL);
    } else {
        code = render(p);
        int printed = commands_print_result(&p->out);
        code = commands_result(printed != EXIT_CODE_OK ? printed : code, result_of(p));
    }
    profile_free(p);
    return code;
}

// SPDX-License-Identifier: Apache-2.0
// `forebay bench [--origin s3://BUCKET/KEY] [--disk] [--quick]`: measures the limits of this disk
// and this origin, and what a server on this host achieves with them. It names the bottleneck,
// within a minute. It starts a private server, whose empty cache is next to cache.dir, and removes
// that cache at the end. The user's own cache is not touched.
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/version.h"
#include "cli/client/command_client.h"
#include "cli/client/command_endpoint.h"
#include "cli/client/command_probe.h"
#include "cli/client/command_server.h"
#include "commands/commands.h"
#include "loop/loop.h"
#include "origin/origin.h"
#include "store/offline/offline.h"

#define MIB (1u << 20)
#define PIECE (8u * MIB)   // bytes of one large read
#define SMALL (128u << 10) // bytes of one random read
#define READERS 16u        // connections to the server
#define DIRECT_MAX 64u     // concurrent requests to the origin
#define DISK_THREADS 8u
#define SAMPLES_MAX 200000u
#define START_TIMEOUT_MS 30000u
#define STOP_TIMEOUT_MS 20000u
#define ASK_TIMEOUT_MS 30000u
#define OUTPUT_MAX_BYTES 65536u
#define CACHE_SIZE "4GiB"
#define SIGNAL_OVER SIGUSR1   // ends the thread that waits for signals
#define DATA_MAX (1ull << 30) // maximum bytes that are read from the object
#define GOOD_SHARE 0.95
#define ROUND_MS 6000u // duration of each measurement
#define QUICK_MS 500u

struct bench {
    struct config *config;
    struct command_probe probe;
    struct command_server server;
    struct buf out;
    char dir[PATH_MAX], dir_flag[PATH_MAX + 16], socket_flag[256], url[2 * 1024 + 4096];
    char bucket[256], key[PROBE_KEY_MAX];
    struct origin *origin;
    const char *origin_bucket;
    uint64_t object_bytes, data_bytes;  // size of the object; of the part that is read
    uint64_t round_ms;                  // duration of each measurement
    double disk, one, many, cold, warm; // bytes per second
    double small_per_s, first_p50_ms, first_p99_ms;
    unsigned direct;  // concurrent requests of the measurement straight to the origin
    sigset_t signals; // signals that end the process; run_watch() waits for them
    pthread_t watch;
};

// --- A crew: threads that repeat one task until the time is over ---------------------------------

struct crew {
    struct bench *bench;
    bool (*work)(struct bench *b, uint64_t n, void *tool, uint64_t *ret_bytes,
                 uint64_t *ret_first_us);
    void *(*tool_new)(struct bench *b);
    void (*tool_free)(void *tool);
    uint64_t until_ms, count_max; // count_max: most calls of work() by all threads together
    atomic_uint_fast64_t next, bytes, done, failed, sample_count;
    uint32_t *samples; // times to the first byte, in us
};

static void *crew_run(void *ctx)
{
    struct crew *crew = ctx;
    void *tool = crew->tool_new(crew->bench);
    while (tool != NULL && clock_monotonic_ms() < crew->until_ms) {
        uint64_t n = atomic_fetch_add(&crew->next, 1), bytes = 0, first_us = 0;
        if (n >= crew->count_max) {
            break;
        }
        if (!crew->work(crew->bench, n, tool, &bytes, &first_us)) {
            atomic_fetch_add(&crew->failed, 1);
            break;
        }
        uint64_t at = atomic_fetch_add(&crew->sample_count, 1);
        if (crew->samples != NULL && at < SAMPLES_MAX) {
            crew->samples[at] = (uint32_t)min_u64(first_us, UINT32_MAX);
        }
        atomic_fetch_add(&crew->bytes, bytes);
        atomic_fetch_add(&crew->done, 1);
    }
    if (tool != NULL) {
        crew->tool_free(tool);
    }
    return NULL;
}

// Runs the crew. Returns the seconds that it took; 0 on failure.
static double crew_work(struct crew *crew, unsigned threads, uint64_t round_ms)
{
    pthread_t ids[READERS];
    check(threads <= READERS);
    uint64_t began_us = clock_monotonic_us();
    crew->until_ms = began_us / 1000 + round_ms;
    unsigned count = 0;
    while (count < threads && pthread_create(&ids[count], NULL, crew_run, crew) == 0) {
        count++;
    }
    for (unsigned i = 0; i < count; i++) {
        check(pthread_join(ids[i], NULL) == 0);
    }
    double took_s = (double)(clock_monotonic_us() - began_us) / 1e6;
    return atomic_load(&crew->failed) == 0 && atomic_load(&crew->done) > 0 ? took_s : 0;
}

// --- Disk ----------------------------------------------------------------------------------------

struct disk_tool {
    int fd;
    char *bytes;
};

static char disk_path[64]; // path of the unnamed file, by its descriptor

static void *disk_tool_new(struct bench *b)
{
    struct disk_tool *tool = calloc(1, sizeof(*tool));
    (void)b;
    check(tool != NULL);
    tool->bytes = aligned_alloc(4096, MIB);
    check(tool->bytes != NULL);
    tool->fd = open(disk_path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    return tool;
}

static void disk_tool_free(void *ptr)
{
    struct disk_tool *tool = ptr;
    if (tool->fd >= 0) {
        (void)close(tool->fd); // the file was only read
    }
    free(tool->bytes);
    free(tool);
}

static uint64_t disk_file_bytes(const struct bench *b)
{
    return b->round_ms == QUICK_MS ? 64ull * MIB : 512ull * MIB;
}

static bool disk_read(struct bench *b, uint64_t n, void *ptr, uint64_t *ret_bytes,
                      uint64_t *ret_first_us)
{
    struct disk_tool *tool = ptr;
    uint64_t at = n * MIB % disk_file_bytes(b);
    *ret_first_us = 0;
    *ret_bytes = MIB;
    return pread(tool->fd, tool->bytes, MIB, (off_t)at) == (ssize_t)MIB;
}

static bool measure_disk(struct bench *b)
{
    char above[PATH_MAX];
    char *bytes = calloc(1, MIB);
    bool ok = true;
    check(bytes != NULL);
    commands_nearest_directory(b->config->cache_dir, above);
    int fd = open(above, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    for (uint64_t at = 0; ok && fd >= 0 && at < disk_file_bytes(b); at += MIB) {
        memset(bytes, (int)(at / MIB), MIB);
        ok = pwrite(fd, bytes, MIB, (off_t)at) == (ssize_t)MIB;
    }
    if (!ok || fd < 0 || fdatasync(fd) != 0) {
        command_screen_tell(2, "forebay bench: %s cannot be written to: %s\n", above,
                            strerror(errno));
        ok = false;
    } else {
        struct crew crew = {.bench = b,
                            .work = disk_read,
                            .tool_new = disk_tool_new,
                            .tool_free = disk_tool_free,
                            .count_max = UINT64_MAX};
        (void)snprintf(disk_path, sizeof(disk_path), "/proc/self/fd/%d", fd);
        double took_s = crew_work(&crew, DISK_THREADS, b->round_ms);
        b->disk = took_s > 0 ? (double)atomic_load(&crew.bytes) / took_s : 0;
    }
    if (fd >= 0) {
        (void)close(fd); // the file has no name, so closing it also frees it
    }
    free(bytes);
    return ok;
}

// --- Directly from the origin --------------------------------------------------------------------

// Sends rounds of `count` concurrent requests until the time is over. Returns bytes per second; 0
// if one failed.
static double measure_direct(struct bench *b, unsigned count)
{
    struct command_probe_ask asks[DIRECT_MAX];
    struct command_probe_answer *answers = calloc(count, sizeof(*answers));
    check(answers != NULL && count <= DIRECT_MAX);
    uint64_t bytes = 0, next = 0, began_us = clock_monotonic_us(), now_us = began_us;
    bool ok = true;
    while (ok && now_us - began_us < 1000 * b->round_ms) {
        for (unsigned i = 0; i < count; i++) {
            uint64_t first = next++ * PIECE % b->data_bytes;
            asks[i] = (struct command_probe_ask){.kind = PROBE_GET,
                                                 .origin = b->origin,
                                                 .bucket = b->origin_bucket,
                                                 .key = b->key,
                                                 .first = first,
                                                 .last = min_u64(first + PIECE, b->data_bytes) - 1};
        }
        command_probe_ask_all(&b->probe, asks, count, ASK_TIMEOUT_MS, answers);
        for (unsigned i = 0; i < count && ok; i++) {
            ok = answers[i].err == ERR_OK;
            bytes += answers[i].bytes;
        }
        now_us = clock_monotonic_us();
    }
    if (!ok) {
        command_screen_tell(
            2, "forebay bench: the origin refuses reads of %s/%s: see `forebay doctor`\n",
            b->bucket, b->key);
    }
    free(answers);
    return ok ? (double)bytes / ((double)(now_us - began_us) / 1e6) : 0;
}

// --- Through a server ----------------------------------------------------------------------------

static size_t on_data(char *data, size_t size, size_t count, void *ctx)
{
    (void)data;
    *(uint64_t *)ctx += size * count;
    return size * count;
}

static void *client_new(struct bench *b)
{
    CURL *easy = curl_easy_init();
    check(easy != NULL);
    // These options cannot fail with this libcurl.
    (void)curl_easy_setopt(easy, CURLOPT_URL, b->url);
    (void)curl_easy_setopt(easy, CURLOPT_PROXY, "");
    (void)curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_FAILONERROR, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, 256L << 10);
    (void)curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)ASK_TIMEOUT_MS);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_data);
    return easy;
}

static bool read_range(void *easy, uint64_t first, uint64_t last, uint64_t *ret_bytes,
                       uint64_t *ret_first_us)
{
    char range[64];
    curl_off_t first_us = 0;
    (void)snprintf(range, sizeof(range), "%llu-%llu", (unsigned long long)first,
                   (unsigned long long)last);
    (void)curl_easy_setopt(easy, CURLOPT_RANGE, range);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEDATA, ret_bytes);
    bool ok = curl_easy_perform(easy) == CURLE_OK;
    (void)curl_easy_getinfo(easy, CURLINFO_STARTTRANSFER_TIME_T, &first_us);
    *ret_first_us = (uint64_t)first_us;
    return ok && *ret_bytes == last - first + 1;
}

static bool read_large(struct bench *b, uint64_t n, void *tool, uint64_t *ret_bytes,
                       uint64_t *ret_first_us)
{
    uint64_t first = n * PIECE % b->data_bytes;
    return read_range(tool, first, min_u64(first + PIECE, b->data_bytes) - 1, ret_bytes,
                      ret_first_us);
}

// Reads at positions from a fixed sequence, so that each run of the command reads the same ones.
static bool read_small(struct bench *b, uint64_t n, void *tool, uint64_t *ret_bytes,
                       uint64_t *ret_first_us)
{
    uint64_t places = max_u64(b->data_bytes / SMALL, 1);
    uint64_t first = (n * 0x9e3779b97f4a7c15u >> 20) % places * SMALL;
    return read_range(tool, first, min_u64(first + SMALL, b->data_bytes) - 1, ret_bytes,
                      ret_first_us);
}

static int compare_samples(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return (left > right) - (left < right);
}

static bool start_server(struct bench *b, int argc, char **argv)
{
    static const char *const ours[] = {"--cache.dir",
                                       "--cache.size",
                                       "--admin.socket",
                                       "--admin.listen",
                                       "--access_log.path",
                                       "--auth.mode",
                                       NULL};
    struct buf why;
    buf_init(&why, OUTPUT_MAX_BYTES);
    bool ok = command_server_init(&b->server, &why);
    if (ok) {
        (void)snprintf(b->dir, sizeof(b->dir), "%.4000s-bench-%d", b->config->cache_dir,
                       (int)getpid());
        (void)snprintf(b->dir_flag, sizeof(b->dir_flag), "--cache.dir=%s", b->dir);
        (void)snprintf(b->socket_flag, sizeof(b->socket_flag), "--admin.socket=%s",
                       b->server.admin + strlen("unix:"));
        command_server_settings(&b->server, argc, argv, ours);
        command_server_word(&b->server, b->dir_flag);
        command_server_word(&b->server, b->socket_flag);
        command_server_word(&b->server, "--cache.size=" CACHE_SIZE);
        command_server_word(&b->server, "--admin.listen=off");
        command_server_word(&b->server, "--access_log.path=off");
        command_server_word(&b->server, "--auth.mode=open");
        ok = command_server_start(&b->server, START_TIMEOUT_MS, &why);
    }
    if (!ok) {
        command_screen_tell(2, "forebay bench: %s\n", buf_cstr(&why));
    }
    buf_done(&why);
    return ok;
}

static bool make_url(struct bench *b)
{
    struct buf url;
    buf_init(&url, sizeof(b->url) - 1);
    buf_printf(&url, "http://127.0.0.1:%u/%s/", b->server.port, b->bucket);
    buf_append_uri_encoded(&url, span_from_cstr(b->key), true);
    bool ok = buf_ok(&url);
    (void)snprintf(b->url, sizeof(b->url), "%s", buf_cstr(&url));
    buf_done(&url);
    return ok;
}

// Reads each piece of the object once (cold). Then reads the same pieces until the time is over
// (warm), and then small pieces at random positions.
static bool measure_server(struct bench *b)
{
    struct crew crew = {.bench = b,
                        .work = read_large,
                        .tool_new = client_new,
                        .tool_free = curl_easy_cleanup,
                        .count_max = (b->data_bytes + PIECE - 1) / PIECE};
    double took_s = crew_work(&crew, READERS, 4 * b->round_ms);
    b->cold = took_s > 0 ? (double)atomic_load(&crew.bytes) / took_s : 0;
    b->data_bytes =
        min_u64(b->data_bytes, atomic_load(&crew.bytes)); // measure the part that was read in time
    struct crew again = {.bench = b,
                         .work = read_large,
                         .tool_new = client_new,
                         .tool_free = curl_easy_cleanup,
                         .count_max = UINT64_MAX};
    took_s = b->cold > 0 ? crew_work(&again, READERS, b->round_ms) : 0;
    b->warm = took_s > 0 ? (double)atomic_load(&again.bytes) / took_s : 0;
    struct crew small = {.bench = b,
                         .work = read_small,
                         .tool_new = client_new,
                         .tool_free = curl_easy_cleanup,
                         .count_max = UINT64_MAX};
    small.samples = calloc(SAMPLES_MAX, sizeof(*small.samples));
    check(small.samples != NULL);
    took_s = b->warm > 0 ? crew_work(&small, READERS, b->round_ms) : 0;
    uint64_t count = min_u64(atomic_load(&small.sample_count), SAMPLES_MAX);
    if (took_s > 0) {
        qsort(small.samples, count, sizeof(*small.samples), compare_samples);
        b->small_per_s = (double)atomic_load(&small.done) / took_s;
        b->first_p50_ms = (double)small.samples[count / 2] / 1000;
        b->first_p99_ms = (double)small.samples[count * 99 / 100] / 1000;
    }
    free(small.samples);
    return took_s > 0;
}

// --- The object ----------------------------------------------------------------------------------

static bool split_uri(struct bench *b, const char *uri)
{
    struct s3_uri parsed;
    const char *why;
    if (!s3_uri_parse_object(span_from_cstr(uri), &parsed, &why) ||
        parsed.bucket.len >= sizeof(b->bucket) || parsed.key.len >= sizeof(b->key)) {
        return false;
    }
    (void)snprintf(b->bucket, sizeof(b->bucket), "%.*s", (int)parsed.bucket.len, parsed.bucket.ptr);
    (void)snprintf(b->key, sizeof(b->key), "%.*s", (int)parsed.key.len, parsed.key.ptr);
    return true;
}

static void find_origin(struct bench *b)
{
    const struct command_origins *o = &b->probe.origins;
    b->origin = o->origins[0];
    b->origin_bucket = b->bucket;
    for (unsigned i = 0; i < b->config->bucket_count; i++) {
        if (strcmp(o->buckets[i].name, b->bucket) == 0) {
            b->origin = o->buckets[i].origin;
            b->origin_bucket = o->buckets[i].origin_bucket;
        }
    }
}

// Appends "ORIGIN: WHAT: REASON", or "ORIGIN: NONE" if the origin has answered.
static void append_reason(struct buf *why, const struct origin *origin,
                          const struct command_probe_answer *answer, const char *what,
                          const char *none)
{
    struct origin_trouble_text trouble;
    bool is_answered = answer->err == ERR_OK && (answer->status == 200 || answer->status == 206);
    buf_printf(why, "%s: %s", origin_shown(origin), is_answered ? none : what);
    if (is_answered) {
        return;
    }
    if (origin_in_trouble(origin, &trouble)) {
        buf_printf(why, ": %s", trouble.text);
    } else if (answer->err != ERR_OK) {
        buf_printf(why, ": %s", error_row(answer->err)->text);
    } else {
        buf_printf(why, ": status %u", answer->status);
    }
}

static bool find_bucket(struct bench *b, struct buf *why)
{
    struct command_probe_answer answer;
    struct command_probe_ask ask = {.kind = PROBE_BUCKETS, .origin = b->probe.origins.origins[0]};
    if (b->bucket[0] == '\0' && b->config->bucket_count > 0) {
        (void)snprintf(b->bucket, sizeof(b->bucket), "%s", b->config->buckets[0].name);
    } else if (b->bucket[0] == '\0') {
        command_probe_ask(&b->probe, &ask, ASK_TIMEOUT_MS, &answer);
        (void)snprintf(b->bucket, sizeof(b->bucket), "%.255s", answer.key);
    }
    if (b->bucket[0] == '\0') {
        append_reason(why, ask.origin, &answer, "its buckets cannot be listed", "it has no bucket");
    }
    return b->bucket[0] != '\0';
}

// Chooses the object of --origin, otherwise the first object of the first bucket. If there is none,
// returns false and appends the reason.
static bool find_object(struct bench *b, struct buf *why)
{
    struct command_probe_answer answer;
    if (!find_bucket(b, why)) {
        return false;
    }
    find_origin(b);
    struct command_probe_ask ask = {
        .kind = PROBE_LIST, .origin = b->origin, .bucket = b->origin_bucket};
    if (b->key[0] == '\0') {
        command_probe_ask(&b->probe, &ask, ASK_TIMEOUT_MS, &answer);
        (void)snprintf(b->key, sizeof(b->key), "%s", answer.key);
    }
    if (b->key[0] == '\0') {
        append_reason(why, b->origin, &answer, "the bucket cannot be listed",
                      "the bucket is empty");
        buf_printf(why, " (%s)", b->bucket);
        return false;
    }
    ask.kind = PROBE_HEAD;
    ask.key = b->key;
    command_probe_ask(&b->probe, &ask, ASK_TIMEOUT_MS, &answer);
    b->object_bytes = answer.err == ERR_OK ? answer.size_bytes : 0;
    b->data_bytes = min_u64(b->object_bytes, b->round_ms == QUICK_MS ? DATA_MAX / 8 : DATA_MAX);
    if (b->data_bytes == 0) {
        append_reason(why, b->origin, &answer, "the object cannot be read",
                      "the object has no bytes");
        buf_printf(why, " (s3://%s/%s)", b->bucket, b->key);
    }
    return b->data_bytes > 0;
}

// Appends which origin a running server uses, because the user may have meant that one.
static void append_server(const struct bench *b, struct buf *why)
{
    struct buf body;
    unsigned status = 0;
    buf_init(&body, OUTPUT_MAX_BYTES);
    bool is_there =
        commands_ask_server(b->config, "/version", &status, &body) == ERR_OK && status == 200;
    json_t *version = is_there ? json_loadb(body.ptr, body.len, 0, NULL) : NULL;
    buf_done(&body);
    if (version != NULL) {
        buf_printf(why,
                   "; the running server uses %s: give its settings with -c FILE to measure that",
                   command_client_shown(version, "origin"));
    }
    json_decref(version);
}

// --- Output --------------------------------------------------------------------------------------

static void row(struct bench *b, const char *name, double bytes_per_s, double of,
                const char *verdict)
{
    char share[16] = "-";
    if (of > 0) {
        (void)snprintf(share, sizeof(share), "%.0f %%", 100 * bytes_per_s / of);
    }
    buf_printf(&b->out, "%-32s %10s/s %10s%s%s\n", name, command_bytes(bytes_per_s), share,
               verdict[0] != '\0' ? "   " : "", verdict);
}

static void render_verdict(struct bench *b)
{
    bool by_connection = b->many > 0.7 * b->one * b->direct;
    if (b->object_bytes < PIECE) {
        buf_printf(&b->out, "The object is small, so this tells little of throughput: name one of "
                            "64 MiB or more with --origin.\n");
    } else if (b->cold < GOOD_SHARE * b->many && b->cold > 0.8 * b->disk) {
        buf_append_cstr(&b->out, "Cold reads are limited by the disk: what it cannot take in time "
                                 "is streamed and stored later.\n");
    } else if (b->cold < GOOD_SHARE * b->many) {
        buf_append_cstr(
            &b->out,
            "Cold reads are limited by this host's CPUs: compare `workers` with what it has.\n");
    } else if (by_connection) {
        buf_printf(&b->out,
                   "Cold reads are limited by the origin's speed for each connection (%s/s x %u): "
                   "origin.connections may be raised.\n",
                   command_bytes(b->one), b->direct);
    } else {
        buf_append_cstr(&b->out, "Cold reads are limited by the origin, or the network to it.\n");
    }
    if (b->warm > 0) {
        buf_printf(&b->out, "Warm reads are %.1f times as fast as cold ones%s\n",
                   b->cold > 0 ? b->warm / b->cold : 0,
                   b->disk > 0 && b->warm > b->disk
                       ? ": more than the disk gives, out of the page cache."
                       : ".");
    }
}

static void render_head(struct bench *b)
{
    struct utsname host;
    struct loop_options options = {.worker_count = 1,
                                   .engine = (enum disk_engine)b->config->io_engine,
                                   .disk_threads = 1,
                                   .disk_queue_depth = 16};
    struct loop *loop = NULL;
    struct buf why;
    buf_init(&why, 4096);
    bool has_loop = loop_new(&options, &loop, &why) == ERR_OK;
    if (uname(&host) != 0) {
        host.release[0] = '\0';
    }
    buf_printf(&b->out, "forebay %s (%s, %s), Linux %s, %ld CPUs, %u workers, %s\n", version_text(),
               version_revision(), version_build(), host.release, sysconf(_SC_NPROCESSORS_ONLN),
               b->config->workers, has_loop ? loop_engine_why(loop) : buf_cstr(&why));
    buf_printf(&b->out, "%-32s %12s %10s   %s\n", "", "value", "of ceiling", "verdict");
    loop_free(loop);
    buf_done(&why);
}

static void render(struct bench *b)
{
    char name[64];
    if (b->disk <= 0 && b->many <= 0) {
        return; // nothing was measured
    }
    render_head(b);
    if (b->disk > 0) {
        row(b, "disk read ceiling, 1 MiB", b->disk, 0, "");
    }
    if (b->many > 0) {
        row(b, "origin, one connection", b->one, 0, "");
        (void)snprintf(name, sizeof(name), "origin ceiling (direct, %u)", b->direct);
        row(b, name, b->many, 0, "");
    }
    if (b->cold > 0) {
        row(b, "cold through Forebay", b->cold, b->many,
            b->cold >= GOOD_SHARE * b->many ? "ok (target 95 %)" : "below 95 %");
        row(b, "warm, 8 MiB", b->warm, b->disk, b->warm >= b->cold ? "ok" : "slower than cold");
        buf_printf(&b->out, "%-32s %11.0f/s %10s\n", "warm, 128 KiB random", b->small_per_s, "-");
        (void)snprintf(name, sizeof(name), "%.2f / %.2f ms", b->first_p50_ms, b->first_p99_ms);
        buf_printf(&b->out, "%-32s %13s %9s\n", "first byte of these, p50 / p99", name, "-");
        buf_printf(&b->out, "%s of s3://%s/%s by %u connections.\n",
                   command_bytes((double)b->data_bytes), b->bucket, b->key, READERS);
    }
    if (b->many > 0 && b->cold > 0) {
        render_verdict(b);
    }
}

static json_t *result_of(const struct bench *b)
{
    return json_pack(
        "{s:I, s:I, s:I, s:i, s:I, s:I, s:f, s:f, s:f, s:I, s:o, s:o}", "disk", (json_int_t)b->disk,
        "origin_one", (json_int_t)b->one, "origin", (json_int_t)b->many, "origin_connections",
        (int)b->direct, "cold", (json_int_t)b->cold, "warm", (json_int_t)b->warm,
        "random_per_second", b->small_per_s, "first_byte_p50", b->first_p50_ms / 1000,
        "first_byte_p99", b->first_p99_ms / 1000, "bytes", (json_int_t)b->data_bytes, "bucket",
        control_text(span_from_cstr(b->bucket)), "key", control_text(span_from_cstr(b->key)));
}

// --- The command ---------------------------------------------------------------------------------

static void drop_server(struct bench *b, uint64_t grace_ms)
{
    command_server_stop(&b->server, grace_ms);
    store_discard(b->dir);
    command_server_done(&b->server);
}

// Waits for a signal. Then ends the server, removes its files, and ends the process by that signal.
static void *run_watch(void *ctx)
{
    struct bench *b = ctx;
    int number;
    sigset_t this_one;
    check(sigwait(&b->signals, &number) == 0);
    if (number == SIGNAL_OVER) {
        return NULL;
    }
    drop_server(b, 0);
    check(signal(number, SIG_DFL) != SIG_ERR);
    (void)sigemptyset(&this_one);
    (void)sigaddset(&this_one, number);
    check(pthread_sigmask(SIG_UNBLOCK, &this_one, NULL) == 0);
    (void)raise(number); // does not return
    return NULL;
}

static bool watch_start(struct bench *b)
{
    return pthread_create(&b->watch, NULL, run_watch, b) == 0;
}

static void watch_stop(struct bench *b)
{
    check(pthread_kill(b->watch, SIGNAL_OVER) == 0); // the thread lives until it is joined
    check(pthread_join(b->watch, NULL) == 0);
}

static void block_signals(struct bench *b)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGNAL_OVER};
    (void)sigemptyset(&b->signals);
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        (void)sigaddset(&b->signals, numbers[i]);
    }
    check(pthread_sigmask(SIG_BLOCK, &b->signals, NULL) == 0);
}

// Warns that bench ignores the endpoint that the environment sets for S3 clients.
static void tell_of_client(const struct config *config)
{
    struct origin_client_value endpoint;
    if (command_endpoint_unused(config, &endpoint)) {
        command_screen_tell(2,
                            "forebay bench: %s names an endpoint, and bench does not use it: to "
                            "measure that store, give --origin.endpoint %s\n",
                            command_client_visible(endpoint.source), endpoint.word);
    }
}

// Call it before this process starts any thread, because a process with threads must not fork.
static int measure_origin(struct bench *b, int argc, char **argv)
{
    struct buf why;
    int code = EXIT_CODE_ORIGIN;
    if (!start_server(b, argc, argv)) {
        return EXIT_CODE_ORIGIN;
    }
    if (!watch_start(b)) {
        command_screen_tell(2, "forebay bench: a thread could not be started: raise the limit on "
                               "tasks (ulimit -u)\n");
        return EXIT_CODE_FAILED;
    }
    buf_init(&why, OUTPUT_MAX_BYTES);
    if (command_probe_open(&b->probe, b->config, ASK_TIMEOUT_MS, &why) != ERR_OK) {
        command_screen_tell(2, "forebay bench: %s\n", buf_cstr(&why));
    } else if (!find_object(b, &why)) {
        append_server(b, &why);
        command_screen_tell(2,
                            "forebay bench: there is nothing to read (%s): name an object with "
                            "--origin s3://BUCKET/KEY, or another origin with "
                            "--origin.endpoint URL, and see `forebay doctor`\n",
                            commands_visible(buf_cstr(&why), why.len));
    } else if (make_url(b)) {
        b->direct = (unsigned)min_u64(DIRECT_MAX, b->config->origin_connections);
        b->one = measure_direct(b, 1);
        b->many = b->one > 0 ? measure_direct(b, b->direct) : 0;
        code = b->many > 0 && measure_server(b) ? EXIT_CODE_OK : EXIT_CODE_ORIGIN;
    }
    command_probe_close(&b->probe);
    buf_done(&why);
    watch_stop(b);
    return code;
}

static int measure(struct bench *b, bool only_disk, int argc, char **argv)
{
    int code = EXIT_CODE_OK;
    if (!only_disk) {
        tell_of_client(b->config);
        block_signals(b);
        code = measure_origin(b, argc, argv);
        drop_server(b, STOP_TIMEOUT_MS);
        check(pthread_sigmask(SIG_UNBLOCK, &b->signals, NULL) ==
              0); // a signal that arrived in between acts now
    }
    if (code == EXIT_CODE_OK && !measure_disk(b)) {
        code = EXIT_CODE_FAILED;
    }
    return code;
}

int command_bench(int argc, char **argv)
{
    struct bench *b = calloc(1, sizeof(*b));
    check(b != NULL);
    bool only_disk = commands_argument_take(&argc, argv, "--disk");
    b->round_ms = commands_argument_take(&argc, argv, "--quick") ? QUICK_MS : ROUND_MS;
    const char *uri = commands_argument_take_value(&argc, argv, "--origin");
    int code = EXIT_CODE_USAGE;
    buf_init(&b->out, OUTPUT_MAX_BYTES);
    if (uri != NULL && !split_uri(b, uri)) {
        (void)commands_usage_error("bench", "--origin is s3://BUCKET/KEY");
    } else if ((b->config = commands_load_config(argc, argv)) == NULL) {
        code = commands_result(EXIT_CODE_CONFIGURATION, NULL);
    } else {
        log_init(LOG_LEVEL_ERROR, false); // the output below reports all that matters
        code = measure(b, only_disk, argc, argv);
        if (!commands_common()->is_json) {
            render(b);
        }
        command_screen_print(2, "%s", buf_cstr(&b->out));
        code = commands_result(code, result_of(b));
    }
    config_free(b->config);
    buf_done(&b->out);
    free(b);
    return code;
}

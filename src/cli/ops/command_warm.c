// SPDX-License-Identifier: Apache-2.0
// `forebay warm URI...`: makes a running server fetch what is not cached yet. The job belongs to
// the server and continues when this command ends. If somebody requests the same again, the server
// fetches only the rest. Options:
// - --wait follows the job
// - --check fetches nothing and counts what is cached
// - --dry-run also lists what would be fetched
// - --pin first pins what is named
// - --node-features turns the counts into labels
#include "cli/client/command_pages.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ops/command_warm.h"
#include "config/config.h"
#include "s3/s3.h"

#define LINE_MAX_BYTES 8192u
#define PATH_MAX_BYTES 16384u
#define BATCH_MAX 2000u
#define BATCH_BYTES (128u << 10) // bytes of the URIs in a batch, which may be longer in JSON
#define CHECK_SPELLING "check its spelling; --allow-empty accepts an empty prefix"
#define EVERY_MIN_MS 1000u
#define EVERY_MAX_MS 86400000u
#define STANDS_MAX_MS (30ull * EVERY_MAX_MS)

struct warm {
    struct command_client client;
    bool is_check, is_dry_run; // is_dry_run implies is_check
    bool pins, is_fluid, allows_empty;
    bool makes_labels;   // command_warm_features() reports what is empty
    uint64_t pin_ttl_ms; // 0: the pins do not expire
    double least;        // share that must be cached for success
    uint64_t concurrency, rate;
    json_t *batch;
    size_t batch_bytes;
    const char *uri; // the URI being added
    struct buf path; // URI of an object below `uri`
    uint64_t uris;   // how many have been added
    uint64_t job;    // number of the job; 0: it has not started
    struct command_warm_count count;
};

// --- the URIs ------------------------------------------------------------------------------------

// Sends the collected URIs to the server. `more`: another batch follows.
static int send_batch(struct warm *w, bool more)
{
    json_t *answer = NULL;
    json_t *body = json_pack("{s:o, s:b}", "uris", w->batch, "more", more);
    check(body != NULL);
    if (w->job != 0) {
        check(json_object_set_new(body, "job", json_integer((json_int_t)w->job)) == 0);
    } else {
        json_int_t concurrency = (json_int_t)w->concurrency, rate = (json_int_t)w->rate;
        check(json_object_set_new(body, "concurrency", json_integer(concurrency)) == 0);
        check(json_object_set_new(body, "rate", json_integer(rate)) == 0);
        if (w->allows_empty) { // a server of an older version does not know the member
            check(json_object_set_new(body, "allow_empty", json_true()) == 0);
        }
    }
    w->batch = json_array();
    w->batch_bytes = 0;
    w->client.tells_wait = w->job == 0;
    int code = command_client_post(&w->client, "/api/v1/warm", body, &answer);
    w->job = code == EXIT_CODE_OK ? command_client_u64(answer, "id") : w->job;
    json_decref(answer);
    return code;
}

// With --dry-run, reports a part that is not cached. `bytes` is UINT64_MAX if its size is unknown.
static void tell_missing(struct warm *w, const char *uri, const char *range, uint64_t bytes)
{
    if (!w->is_dry_run) {
        return;
    }
    if (!w->client.is_json) {
        struct buf line, name;
        buf_init(&line, PATH_MAX_BYTES);
        buf_init(&name, PATH_MAX_BYTES);
        buf_printf(&line, "would fetch %10s  ",
                   bytes == UINT64_MAX ? "?" : command_bytes((double)bytes));
        buf_printf(&name, "%s%s%s", command_client_visible(uri), range != NULL ? " " : "",
                   range != NULL ? range : "");
        command_screen_row_named(&line, buf_cstr(&name));
        buf_done(&line);
        buf_done(&name);
    }
    json_t *item = json_pack("{s:s, s:s*, s:o}", "uri", uri, "range", range, "missing_bytes",
                             bytes == UINT64_MAX ? json_null() : json_integer((json_int_t)bytes));
    check(item != NULL);
    commands_line("item", item);
}

// Counts a part of an object that is not cached. `object` is the server's answer about the object.
static void count_missing(struct warm *w, const json_t *object, const char *uri, const char *range,
                          uint64_t bytes)
{
    const json_t *excluded = json_object_get(object, "excluded"); // absent: an older server
    if (!json_is_object(excluded)) {
        tell_missing(w, uri, range, bytes);
        return;
    }
    w->count.objects_refused++;
    w->count.bytes_refused += bytes == UINT64_MAX ? 0 : bytes;
    if (w->is_dry_run) { // as a job does
        command_client_warn(&w->client, "%s: %s", uri, command_client_text(excluded, "text"));
    }
}

static int count_object(void *ctx, const json_t *object)
{
    struct warm *w = ctx;
    uint64_t size = command_client_u64(object, "size");
    uint64_t cached = command_client_u64(object, "cached_bytes");
    bool is_whole = command_client_bool(object, "known") &&
                    !command_client_bool(object, "changed") && cached >= size;
    w->count.objects++;
    w->count.bytes += size;
    cached = command_client_bool(object, "changed") ? 0 : cached;
    w->count.objects_done += is_whole;
    w->count.bytes_done += cached;
    if (!is_whole) {
        command_pages_uri(w->uri, command_client_text(object, "key"), &w->path);
        count_missing(w, object, buf_cstr(&w->path), NULL, size - min_u64(size, cached));
    }
    return EXIT_CODE_OK;
}

// Counts by blocks how much of an object, or of a range of it, is cached.
static int count_range(struct warm *w, const char *uri, const char *range)
{
    struct buf path;
    json_t *e = NULL;
    buf_init(&path, PATH_MAX_BYTES);
    buf_append_cstr(&path, "/api/v1/explain");
    command_client_parameter(&path, "uri", span_from_cstr(uri));
    if (range != NULL) {
        command_client_parameter(&path, "range", span_from_cstr(range));
    }
    int code = command_client_get(&w->client, buf_cstr(&path), &e);
    const json_t *r = json_object_get(e, "range");
    uint64_t blocks = command_client_u64(r, "blocks"),
             cached = command_client_u64(r, "cached_blocks");
    uint64_t bytes = command_client_u64(r, "end") - command_client_u64(r, "first");
    bool is_whole = command_client_bool(e, "known") && cached == blocks;
    w->count.objects++;
    w->count.objects_done += is_whole;
    w->count.unsized += !command_client_bool(e, "known");
    uint64_t done = is_whole ? bytes : blocks > 0 ? bytes * cached / blocks : 0;
    w->count.bytes += bytes;
    w->count.bytes_done += done;
    if (code == EXIT_CODE_OK && !is_whole) {
        count_missing(w, e, uri, range,
                      command_client_bool(e, "known") ? bytes - done : UINT64_MAX);
    }
    json_decref(e);
    buf_done(&path);
    return code;
}

static int count_prefix(struct warm *w, const char *uri)
{
    uint64_t before = w->count.objects;
    int code = command_pages_walk(&w->client, uri, count_object, w);
    if (code == EXIT_CODE_OK && w->count.objects == before && !w->allows_empty) {
        w->count.empty++;
        if (!w->makes_labels) {
            command_client_warn(&w->client, "nothing lies below %s: " CHECK_SPELLING, uri);
        }
    }
    return code;
}

static int add(struct warm *w, const char *uri, const char *range)
{
    struct s3_uri parsed = {0};
    if (!command_client_take_uri(&w->client, uri, &parsed)) {
        return EXIT_CODE_USAGE;
    }
    command_client_warn_of_star(&w->client, uri, &parsed);
    w->uri = uri;
    w->uris++;
    if (w->is_check) {
        return parsed.is_prefix ? count_prefix(w, uri) : count_range(w, uri, range);
    }
    json_t *item =
        range != NULL ? json_pack("{s:s, s:s}", "uri", uri, "range", range) : json_string(uri);
    check(item != NULL && json_array_append_new(w->batch, item) == 0);
    w->batch_bytes += strlen(uri);
    bool is_full = json_array_size(w->batch) >= BATCH_MAX || w->batch_bytes >= BATCH_BYTES;
    return is_full ? send_batch(w, true) : EXIT_CODE_OK;
}

// Adds "URI" or "URI FIRST-LAST". Ignores a line that begins with '#'.
static int add_line(struct warm *w, char *line)
{
    struct span text = {line, strcspn(line, "\r\n")};
    text = span_trim(text);
    if (text.len == 0 || text.ptr[0] == '#') {
        return EXIT_CODE_OK;
    }
    line = line + (text.ptr - line);
    line[text.len] = '\0';
    char *blank = strrchr(line, ' ');
    uint64_t first, end;
    bool has_range = blank != NULL && s3_uri_parse_range(span_from_cstr(blank + 1), &first, &end);
    if (has_range) {
        *blank = '\0';
    }
    return add(w, line, has_range ? blank + 1 : NULL);
}

// Reads the next line, ended by NUL. Returns false at the end of the file, or if it cannot be read;
// *ret_why then has the reason.
static bool read_line(FILE *file, char ret_line[LINE_MAX_BYTES], const char **ret_why)
{
    size_t len = 0;
    int byte;
    while ((byte = getc(file)) != EOF && byte != '\n') {
        if (byte == '\0') {
            *ret_why = "it has a NUL: a name in each line is wanted (find -print, not -print0)";
            return false;
        }
        if (len + 1 < LINE_MAX_BYTES) {
            ret_line[len++] = (char)byte;
        } else if (ret_line[0] != '#') { // ignore the rest of a comment
            *ret_why = "it is too long for a name";
            return false;
        }
    }
    ret_line[len] = '\0';
    *ret_why = ferror(file) ? strerror(errno) : NULL;
    return *ret_why == NULL && (len > 0 || byte != EOF);
}

static int add_file(struct warm *w, const char *path)
{
    // Byte order mark that some editors put in front of UTF-8.
    static const char mark[] = "\xef\xbb\xbf";
    char line[LINE_MAX_BYTES];
    const char *why = NULL;
    bool is_stdin = strcmp(path, "-") == 0;
    FILE *file = is_stdin ? stdin : fopen(path, "re");
    if (file == NULL) {
        command_client_error(&w->client, "%s: %s", path, strerror(errno));
        return EXIT_CODE_FAILED;
    }
    int code = EXIT_CODE_OK;
    uint64_t number = 0;
    while (code == EXIT_CODE_OK && read_line(file, line, &why)) {
        bool is_marked = number++ == 0 && strncmp(line, mark, sizeof(mark) - 1) == 0;
        code = add_line(w, is_marked ? line + sizeof(mark) - 1 : line);
    }
    if (why != NULL) {
        command_client_error(&w->client, "%s: line %llu: %s", is_stdin ? "standard input" : path,
                             (unsigned long long)number + 1, why);
        code = EXIT_CODE_FAILED;
    }
    if (!is_stdin) {
        (void)fclose(file); // the file was only read
    }
    return code;
}

static int add_of_fluid(void *ctx, const char *uri)
{
    return add(ctx, uri, NULL);
}

// Pins before anything is fetched, so that bytes are stored as pinned.
static int pin_all(struct warm *w, int argc, char **argv, uint64_t ttl_ms)
{
    json_t *uris = json_array(), *answer = NULL;
    json_t *body = json_pack("{s:o}", "uris", uris);
    check(body != NULL);
    for (int i = 0; i < argc; i++) {
        struct s3_uri parsed;
        if (!command_client_take_uri(&w->client, argv[i], &parsed)) {
            json_decref(body);
            return EXIT_CODE_USAGE;
        }
        check(json_array_append_new(uris, json_string(argv[i])) == 0);
    }
    if (ttl_ms > 0) {
        json_int_t ttl_s = (json_int_t)((ttl_ms + 999) / 1000);
        check(json_object_set_new(body, "ttl_s", json_integer(ttl_s)) == 0);
    }
    int code = command_client_post(&w->client, "/api/v1/pin", body, &answer);
    if (code == EXIT_CODE_OK && !command_client_bool(answer, "kept")) {
        const char *why = "this cache keeps no pins: see forebay pins";
        command_client_warn(&w->client, "%s", why);
    }
    json_decref(answer);
    return code;
}

// --- the result ----------------------------------------------------------------------------------

// Returns what the job would leave behind, if it fetched all that the rules store.
static struct command_warm_count count_after(const struct command_warm_count *now)
{
    struct command_warm_count after = *now;
    after.objects_done = now->objects - min_u64(now->objects, now->objects_refused);
    after.bytes_done = now->bytes - min_u64(now->bytes, now->bytes_refused);
    return after;
}

static void print_dry_run(const struct command_warm_count *now)
{
    struct command_warm_count after = count_after(now);
    uint64_t missing = after.bytes_done - min_u64(after.bytes_done, now->bytes_done);
    command_screen_print(2, "would fetch %s of %s, of %llu of %llu objects, %llu not kept\n",
                         command_bytes((double)missing), command_bytes((double)now->bytes),
                         (unsigned long long)(after.objects_done - now->objects_done),
                         (unsigned long long)now->objects,
                         (unsigned long long)now->objects_refused);
}

static int end_check(struct warm *w)
{
    const struct command_warm_count *count = &w->count;
    struct command_warm_count judged = w->is_dry_run ? count_after(count) : *count;
    double part = command_warm_share(&judged);
    if (!w->client.is_json && w->is_dry_run) {
        print_dry_run(count);
    } else if (!w->client.is_json) {
        command_screen_print(2, "%s of %s are cached (%.1f %%), %llu of %llu objects as a whole\n",
                             command_bytes((double)count->bytes_done),
                             command_bytes((double)count->bytes), 100 * part,
                             (unsigned long long)count->objects_done,
                             (unsigned long long)count->objects);
    }
    bool is_short = count->empty > 0 || part + 1e-9 < w->least;
    int code = !is_short                                 ? EXIT_CODE_OK
               : count->empty > 0 && count->objects == 0 ? EXIT_CODE_ORIGIN
                                                         : EXIT_CODE_PARTLY;
    return commands_result(
        code, json_pack("{s:I, s:I, s:I, s:I, s:I}", "objects", (json_int_t)count->objects,
                        "objects_done", (json_int_t)count->objects_done, "objects_refused",
                        (json_int_t)count->objects_refused, "bytes", (json_int_t)count->bytes,
                        "bytes_done", (json_int_t)count->bytes_done));
}

static int end_begun(struct warm *w)
{
    if (!w->client.is_json) {
        printf("job %llu has begun; forebay jobs shows it\n", (unsigned long long)w->job);
    }
    return commands_result(EXIT_CODE_OK, json_pack("{s:I}", "job", (json_int_t)w->job));
}

static bool read_share(const char *text, double *ret_share)
{
    struct span s = span_from_cstr(text);
    uint64_t percent;
    if (s.len > 0 && s.ptr[s.len - 1] == '%') {
        s.len--;
    }
    if (!span_to_u64(s, &percent) || percent > 100) {
        return false;
    }
    *ret_share = (double)percent / 100;
    return true;
}

static int run(struct warm *w, int argc, char **argv, const char *list, bool waits)
{
    int code = EXIT_CODE_OK;
    if (w->pins && !w->is_check) {
        code = pin_all(w, argc, argv, w->pin_ttl_ms);
    }
    w->batch = json_array();
    buf_init(&w->path, PATH_MAX_BYTES);
    for (int i = 0; i < argc && code == EXIT_CODE_OK; i++) {
        code = add(w, argv[i], NULL);
    }
    if (code == EXIT_CODE_OK && list != NULL) {
        code = add_file(w, list);
    }
    if (code == EXIT_CODE_OK && list != NULL && w->uris == 0 && !w->allows_empty) {
        command_client_error(&w->client, "%s names nothing to fetch; --allow-empty accepts that",
                             strcmp(list, "-") == 0 ? "standard input" : list);
        code = EXIT_CODE_ORIGIN;
    }
    if (code == EXIT_CODE_OK && w->is_fluid) {
        code = command_warm_fluid(&w->client, add_of_fluid, w);
    }
    if (code == EXIT_CODE_OK && !w->is_check) {
        code = send_batch(w, false);
    }
    if (code != EXIT_CODE_OK) {
        code = commands_result(code, NULL);
    } else if (w->is_check) {
        code = end_check(w);
    } else if (!waits) {
        code = end_begun(w);
    } else {
        code = command_warm_follow(&w->client, w->job, w->least);
    }
    json_decref(w->batch);
    buf_done(&w->path);
    return code;
}

// --- labels --------------------------------------------------------------------------------------

static int count_for_label(void *ctx, const char *uri, struct command_warm_count *count)
{
    struct warm *w = ctx;
    w->count = *count;
    int code = add(w, uri, NULL);
    *count = w->count;
    return code;
}

static int run_features(struct warm *w, struct command_warm_features *features, int argc,
                        char **argv)
{
    features->client = &w->client;
    features->least = w->least;
    features->count = count_for_label;
    features->ctx = w;
    w->makes_labels = true;
    buf_init(&w->path, PATH_MAX_BYTES);
    int code = command_warm_features(features, argc, argv);
    buf_done(&w->path);
    return code;
}

// Reads the options of --node-features. Returns NULL, or a message about the option that is wrong.
static const char *take_features(const struct warm *w, const char *every, const char *ttl,
                                 struct command_warm_features *features)
{
    char why[CONFIG_WHY_MAX];
    if (features->file == NULL) {
        return every == NULL ? NULL : "--every is for --node-features";
    }
    if (!w->is_check || w->is_dry_run || w->pins || w->is_fluid) {
        return "--node-features goes with --check, and not with --dry-run, --pin or --fluid";
    }
    if (every != NULL && (!config_value_parse_ms(span_from_cstr(every), &features->every_ms, why) ||
                          features->every_ms < EVERY_MIN_MS || features->every_ms > EVERY_MAX_MS)) {
        return "--every is a time from 1s to 1d";
    }
    features->stands_ms = command_warm_features_stands_ms(features->every_ms);
    if (ttl != NULL && (!config_value_parse_ms(span_from_cstr(ttl), &features->stands_ms, why) ||
                        features->stands_ms <= max_u64(features->every_ms, EVERY_MIN_MS) ||
                        features->stands_ms > STANDS_MAX_MS)) {
        return "--ttl of a label is a time, longer than --every and at most 30d";
    }
    return NULL;
}

int command_warm(int argc, char **argv)
{
    struct warm w = {.least = 1, .concurrency = 64};
    char why[CONFIG_WHY_MAX];
    bool waits = commands_argument_take(&argc, argv, "--wait");
    w.is_dry_run = commands_argument_take(&argc, argv, "--dry-run");
    w.is_check = commands_argument_take(&argc, argv, "--check") || w.is_dry_run;
    w.pins = commands_argument_take(&argc, argv, "--pin");
    w.allows_empty = commands_argument_take(&argc, argv, "--allow-empty");
    w.is_fluid = commands_argument_take(&argc, argv, "--fluid");
    const char *list = commands_argument_take_value(&argc, argv, "-f");
    const char *least = commands_argument_take_value(&argc, argv, "--min");
    const char *rate = commands_argument_take_value(&argc, argv, "--rate");
    const char *ttl = commands_argument_take_value(&argc, argv, "--ttl");
    const char *every = commands_argument_take_value(&argc, argv, "--every");
    struct command_warm_features features = {
        .file = commands_argument_take_value(&argc, argv, "--node-features")};
    if (least != NULL && !read_share(least, &w.least)) {
        return commands_usage_error("warm", "--min is a share, as 90%");
    }
    if (!commands_argument_take_number(&argc, argv, "--jobs", 1, 1024, &w.concurrency)) {
        return commands_usage_error("warm", "--jobs is a number from 1 to 1024");
    }
    if (rate != NULL && !config_value_parse_rate(span_from_cstr(rate), &w.rate, why)) {
        return commands_usage_error("warm", "--rate is bytes a second, as 200MiB/s");
    }
    const char *wrong = list != NULL && features.file != NULL
                            ? "--node-features is for NAME=URI, not for a list"
                            : take_features(&w, every, ttl, &features);
    if (wrong != NULL) {
        return commands_usage_error("warm", wrong);
    }
    if (ttl != NULL && features.file == NULL &&
        (!w.pins || !config_value_parse_ms(span_from_cstr(ttl), &w.pin_ttl_ms, why) ||
         w.pin_ttl_ms == 0)) {
        return commands_usage_error("warm", "--ttl is a time, as 12h or 7d, that --pin lasts");
    }
    if (w.pins && (list != NULL || w.is_fluid)) {
        return commands_usage_error("warm",
                                    "--pin is for URIs, not for what a list or Fluid names");
    }
    if (argc == 0 && list == NULL && !w.is_fluid) {
        return commands_usage_error("warm", "name what to fetch: s3://BUCKET/PREFIX/, or -f LIST");
    }
    int code = command_client_open(&w.client, "warm");
    w.client.waits = true; // a list may be longer than a job accepts at once
    if (code == EXIT_CODE_OK) {
        code = features.file != NULL ? run_features(&w, &features, argc, argv)
                                     : run(&w, argc, argv, list, waits);
        command_client_close(&w.client);
    }
    return code;
}

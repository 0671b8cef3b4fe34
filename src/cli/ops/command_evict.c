// SPDX-License-Identifier: Apache-2.0
// `forebay evict URI...`: removes objects, prefixes or buckets from the cache. For a prefix it
// removes the cached objects that the origin lists below it. A bucket is removed as a whole, listed
// or not. Its objects are counted first, because nobody can count them afterwards.
//
// If nothing of a URI was cached, the command says so. If the origin does not know the name either,
// it is probably misspelt, and the command fails, unless --allow-empty is given.
#include "cli/client/command_pages.h"

#include <stdio.h>
#include <string.h>

#include "s3/s3.h"

#define BATCH_MAX 500u           // objects in one call
#define BATCH_BYTES (128u << 10) // bytes of the names in one call
#define URI_MAX_BYTES 4096u
#define LINE_MAX_BYTES 32768u
#define COUNTED_MAX 20000u // objects of a whole bucket that are counted before it is evicted

struct evict {
    struct command_client client;
    const char *uri;
    bool dry_run, allows_empty;
    bool is_walk;  // the argument is a prefix: reports only objects that were cached
    json_t *batch; // URIs of the next call
    size_t batch_bytes;
    struct buf path;
    uint64_t listed; // objects of the prefix or bucket at hand that the origin lists
    bool is_unsure;  // the listing does not show all that may be cached below the prefix or bucket
    uint64_t objects, bytes, failed, buckets;
    uint64_t counted_objects, counted_bytes; // in the cache, of the bucket at hand
    uint64_t empty;                          // URIs of which nothing was cached
    uint64_t unknown;                        // those of them that the origin does not know either
};

// Warns that nothing of a URI was cached, unless --allow-empty is given. `why` says what is wrong
// with a name that the origin does not know. It is empty for a name that the origin knows.
static void tell_empty(struct evict *e, const char *uri, const char *why)
{
    bool is_unknown = why[0] != '\0';
    e->empty++;
    e->unknown += is_unknown;
    if (!e->allows_empty) {
        command_client_warn(&e->client, "nothing of %s %s cached%s%s", uri,
                            e->dry_run ? "is" : "was", why,
                            is_unknown ? "; --allow-empty accepts that" : "");
    }
}

struct first_key {
    struct s3_uri wanted;
    bool is_any, is_wanted;
};

static int on_first_key(void *ctx, const json_t *object)
{
    struct first_key *first = ctx;
    first->is_any = true;
    first->is_wanted =
        span_equal(first->wanted.key, span_from_cstr(command_client_text(object, "key")));
    return EXIT_CODE_PARTLY; // ends the walk
}

// Looks at the first key that the origin lists for `uri` with `end` appended.
static struct first_key look_at_first(struct evict *e, const char *uri, const char *end)
{
    const char *why;
    struct first_key first = {.is_any = false};
    struct buf prefix;
    buf_init(&prefix, URI_MAX_BYTES + 1);
    buf_printf(&prefix, "%s%s", uri, end);
    check(s3_uri_parse(span_from_cstr(uri), &first.wanted, &why));
    e->client.keeps_why = true;
    (void)command_pages_walk(&e->client, buf_cstr(&prefix), on_first_key, &first);
    e->client.keeps_why = false;
    buf_done(&prefix);
    return first;
}

// Warns that nothing of an object was cached. Says so if the name is that of a prefix. Does not ask
// the origin if --allow-empty is given, because a list may have thousands of names.
static void tell_empty_object(struct evict *e, const char *uri)
{
    const char *why = ": check its spelling";
    if (e->allows_empty || look_at_first(e, uri, "*").is_wanted) {
        why = "";
    } else if (look_at_first(e, uri, "/").is_any) {
        why = ", but the origin lists objects below it: end the name with / to mean those";
    }
    tell_empty(e, uri, why);
}

// Prints a line for people. `amount` is how much was cached.
static void print_row(const struct evict *e, const char *uri, const char *amount, bool ok)
{
    struct buf line;
    buf_init(&line, LINE_MAX_BYTES);
    buf_printf(&line, "%s %10s  ", !ok ? "FAILED " : e->dry_run ? "would  " : "evicted", amount);
    command_screen_row_named(&line, command_client_visible(uri));
    buf_done(&line);
}

// Reports an object or a bucket. Objects below a prefix have lines for people only with -v or
// --dry-run, and if they failed.
static void tell(const struct evict *e, const char *uri, const char *amount, uint64_t bytes,
                 const char *why)
{
    bool ok = why == NULL;
    bool is_shown = !ok || !e->is_walk || e->dry_run || commands_common()->is_verbose;
    if (!e->client.is_json && is_shown) {
        print_row(e, uri, amount, ok);
    }
    json_t *item =
        json_pack("{s:s, s:b, s:I}", "uri", uri, "ok", ok, "cached_bytes", (json_int_t)bytes);
    check(item != NULL);
    if (!ok) {
        command_screen_tell(2, "forebay evict: %s: %s\n", command_client_visible(uri),
                            command_client_visible(why));
        check(json_object_set_new(item, "why", json_string(why)) == 0);
    }
    commands_line("item", item);
}

// Counts and reports an item of the server's answer.
static void take_answer(struct evict *e, const json_t *row)
{
    const char *uri = command_client_text(row, "uri");
    bool ok = command_client_bool(row, "ok"), known = command_client_bool(row, "known");
    uint64_t bytes = command_client_u64(row, "cached_bytes");
    e->failed += !ok;
    e->objects += ok && known;
    e->bytes += ok ? bytes : 0;
    if (ok && !known && !e->is_walk) {
        tell_empty_object(e, uri);
    } else if (!ok || known) {
        tell(e, uri, command_bytes((double)bytes), bytes,
             ok ? NULL : command_client_text(row, "why"));
    }
}

static int send_batch(struct evict *e)
{
    if (json_array_size(e->batch) == 0) {
        return EXIT_CODE_OK;
    }
    json_t *body = json_pack("{s:o}", "uris", e->batch), *answer = NULL;
    check(body != NULL);
    e->batch = json_array();
    e->batch_bytes = 0;
    int code = command_client_post(&e->client, "/api/v1/evict", body, &answer);
    const json_t *objects = json_object_get(answer, "objects");
    for (size_t i = 0; i < json_array_size(objects); i++) {
        take_answer(e, json_array_get(objects, i));
    }
    json_decref(answer);
    return code;
}

static int add(struct evict *e, const char *uri, json_t *item)
{
    check(item != NULL && json_array_append_new(e->batch, item) == 0);
    e->batch_bytes += strlen(uri);
    bool is_full = json_array_size(e->batch) >= BATCH_MAX || e->batch_bytes >= BATCH_BYTES;
    return is_full ? send_batch(e) : EXIT_CODE_OK;
}

static int on_object(void *ctx, const json_t *object)
{
    struct evict *e = ctx;
    uint64_t bytes = command_client_u64(object, "cached_bytes");
    // The cache may hold copies for clients with a realm of their own, and answers of HEAD. The
    // listing does not say of which objects.
    bool realms = command_client_bool(object, "realms");
    bool answers = command_client_bool(object, "answers");
    e->listed++;
    e->is_unsure |= realms || answers;
    if (!command_client_bool(object, "known") && !realms && (!answers || e->dry_run)) {
        return EXIT_CODE_OK;
    }
    command_pages_uri(e->uri, command_client_text(object, "key"), &e->path);
    if (!e->dry_run) {
        const char *uri = buf_cstr(&e->path);
        const char *form = command_client_bool(object, "coded") ? "coded" : "object";
        return add(e, uri, json_pack("{s:s}", form, uri));
    }
    e->objects++;
    e->bytes += bytes;
    tell(e, buf_cstr(&e->path), command_bytes((double)bytes), bytes, NULL);
    return EXIT_CODE_OK;
}

// With --dry-run, shows the cached part of an object.
static int try_object(struct evict *e)
{
    json_t *explanation = NULL;
    e->path.len = 0;
    buf_append_cstr(&e->path, "/api/v1/explain");
    command_client_parameter(&e->path, "uri", span_from_cstr(e->uri));
    int code = command_client_get(&e->client, buf_cstr(&e->path), &explanation);
    uint64_t bytes = command_client_u64(explanation, "cached_bytes");
    bool known = command_client_bool(explanation, "known");
    bool is_unsure =
        command_client_bool(explanation, "realms") || command_client_bool(explanation, "answers");
    e->objects += known;
    e->bytes += bytes;
    if (code == EXIT_CODE_OK && !known && !is_unsure) {
        tell_empty_object(e, e->uri);
    } else if (code == EXIT_CODE_OK) {
        tell(e, e->uri, command_bytes((double)bytes), bytes, NULL);
    }
    json_decref(explanation);
    return code;
}

// --- prefixes and buckets ------------------------------------------------------------------------

static int evict_prefix(struct evict *e)
{
    uint64_t objects = e->objects, bytes = e->bytes, failed = e->failed;
    e->listed = 0;
    e->is_unsure = false;
    e->is_walk = true;
    int code = command_pages_walk(&e->client, e->uri, on_object, e);
    if (code == EXIT_CODE_OK) {
        code = send_batch(e);
    }
    e->is_walk = false;
    bool is_empty = e->objects == objects && e->failed == failed;
    if (code == EXIT_CODE_OK && is_empty && !(e->dry_run && e->is_unsure)) {
        tell_empty(e, e->uri,
                   e->listed == 0 ? ", and the origin lists nothing there: check its spelling"
                                  : "");
    } else if (!e->client.is_json && !e->dry_run && e->objects > objects) {
        print_row(e, e->uri, command_bytes((double)(e->bytes - bytes)), true);
    }
    return code;
}

static int count_object(void *ctx, const json_t *object)
{
    struct evict *e = ctx;
    e->is_unsure |= command_client_bool(object, "realms") || command_client_bool(object, "answers");
    e->counted_objects += command_client_bool(object, "known");
    e->counted_bytes += command_client_u64(object, "cached_bytes");
    return ++e->listed < COUNTED_MAX ? EXIT_CODE_OK : EXIT_CODE_PARTLY;
}

// Counts and reports a bucket that was evicted. `counted` is the exit code of the walk that counted
// what the cache had of it.
static void tell_bucket(struct evict *e, int counted, bool is_absent)
{
    char amount[64];
    bool is_whole = counted == EXIT_CODE_OK;
    if (is_absent || (is_whole && e->counted_objects == 0 && !e->is_unsure)) {
        tell_empty(e, e->uri,
                   is_absent ? ", and the origin has no such bucket: check its spelling" : "");
        return;
    }
    (void)snprintf(amount, sizeof(amount), "%s%s", is_whole ? "" : "over ",
                   command_bytes((double)e->counted_bytes));
    e->buckets++;
    e->objects += e->counted_objects;
    e->bytes += e->counted_bytes;
    tell(e, e->uri, e->counted_objects > 0 ? amount : "all of", e->counted_bytes, NULL);
    if (!is_whole && counted != EXIT_CODE_PARTLY) {
        command_client_warn(&e->client, "how much of %s was cached is not known: %s", e->uri,
                            e->client.why);
    }
}

static int evict_bucket(struct evict *e)
{
    e->counted_objects = e->counted_bytes = e->listed = 0;
    e->is_unsure = false;
    e->client.keeps_why = true;
    int counted = command_pages_walk(&e->client, e->uri, count_object, e);
    bool is_absent = e->client.status == COMMAND_PAGES_NO_BUCKET;
    e->client.keeps_why = false;
    if (counted == EXIT_CODE_UNREACHABLE) {
        return counted;
    }
    json_t *body = json_pack("{s:[s]}", "uris", e->uri), *answer = NULL;
    check(body != NULL);
    int code = command_client_post(&e->client, "/api/v1/evict", body, &answer);
    const json_t *row = json_array_get(json_object_get(answer, "objects"), 0);
    if (command_client_bool(row, "ok")) {
        tell_bucket(e, counted, is_absent);
    } else if (code == EXIT_CODE_OK) {
        e->failed++;
        tell(e, e->uri, "all of", 0, command_client_text(row, "why"));
    }
    json_decref(answer);
    return code;
}

static int evict_uri(struct evict *e, const char *text)
{
    struct s3_uri uri = {0};
    e->uri = text;
    if (!command_client_take_uri(&e->client, text, &uri)) {
        return EXIT_CODE_USAGE;
    }
    command_client_warn_of_star(&e->client, text, &uri);
    if (uri.is_prefix) {
        int code = send_batch(e); // sends the URIs before this one
        return code != EXIT_CODE_OK              ? code
               : uri.key.len == 0 && !e->dry_run ? evict_bucket(e)
                                                 : evict_prefix(e);
    }
    return e->dry_run ? try_object(e) : add(e, text, json_string(text));
}

static void print_total(const struct evict *e, int code)
{
    const char *end = e->dry_run ? "" : ": their room on disk goes to what is stored next";
    bool has_reason = code != EXIT_CODE_OK || (e->empty > 0 && !e->allows_empty);
    if (e->objects + e->buckets == 0 && has_reason) {
        return; // a message has said why nothing was evicted
    }
    if (e->buckets > 0 && e->objects == 0) {
        command_screen_print(2, "evicted %llu whole bucket%s%s\n", (unsigned long long)e->buckets,
                             e->buckets > 1 ? "s" : "", end);
        return;
    }
    command_screen_print(2, "%s%llu object%s, %s%s\n", e->dry_run ? "would evict " : "evicted ",
                         (unsigned long long)e->objects, e->objects == 1 ? "" : "s",
                         command_bytes((double)e->bytes), end);
}

// Returns the exit code of a command whose server answered for all `count` URIs.
static int outcome(const struct evict *e, uint64_t count)
{
    uint64_t unknown = e->allows_empty ? 0 : e->unknown;
    if (e->failed == 0 && unknown == 0) {
        return EXIT_CODE_OK;
    }
    bool is_nothing = e->objects + e->buckets == 0 && (e->failed > 0 || unknown == count);
    return is_nothing ? EXIT_CODE_FAILED : EXIT_CODE_PARTLY;
}

int command_evict(int argc, char **argv)
{
    struct evict e = {.dry_run = commands_argument_take(&argc, argv, "--dry-run"),
                      .allows_empty = commands_argument_take(&argc, argv, "--allow-empty")};
    int code = command_client_open(&e.client, "evict");
    if (code != EXIT_CODE_OK) {
        return code;
    }
    e.batch = json_array();
    buf_init(&e.path, URI_MAX_BYTES + URI_MAX_BYTES);
    for (int i = 0; i < argc && code == EXIT_CODE_OK; i++) {
        code = evict_uri(&e, argv[i]);
    }
    if (code == EXIT_CODE_OK) {
        code = send_batch(&e);
    }
    if (code == EXIT_CODE_OK) {
        code = outcome(&e, (uint64_t)argc);
    }
    if (!e.client.is_json && code != EXIT_CODE_USAGE) {
        print_total(&e, code);
    }
    json_decref(e.batch);
    buf_done(&e.path);
    return command_client_end(
        &e.client, code,
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:b}", "objects", (json_int_t)e.objects, "bytes",
                  (json_int_t)e.bytes, "failed", (json_int_t)e.failed, "empty", (json_int_t)e.empty,
                  "buckets", (json_int_t)e.buckets, "dry_run", e.dry_run));
}

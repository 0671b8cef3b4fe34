// SPDX-License-Identifier: Apache-2.0
// GET /api/v1/top: ranks the keys, prefixes, buckets, clients or reasons that occur most in
// requests. Sends a line of JSON every `seconds`, to at most ADMIN_RANKERS_MAX clients. For each
// client it counts lines of /api/v1/log from the moment the client connects; without clients
// nothing is counted. With `where` it counts only matching requests. Runs on the admin thread.
//
// Clients choose the names without limit, so memory is bounded by the space-saving algorithm:
// TOP_ROWS names are counted. A new name replaces the one with the lowest count and inherits its
// count. `over` says by how much a count may be too high. A name with more than one in TOP_ROWS
// requests is always listed. Lines that arrived faster than they were read are reported as
// `dropped`.
#include "control/admin_private.h"

#include <event2/keyvalq_struct.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"

#define TOP_ROWS 1024u
#define TOP_SHOWN 50u
#define NAME_SHOWN_MAX 255u
#define NAME_MAX_BYTES 2048u // a key with its bucket
#define INTERVAL_MAX_S 3600u
#define SILENCE_S 5u

enum top_by { BY_KEYS, BY_PREFIXES, BY_BUCKETS, BY_CLIENTS, BY_REASONS, BY_COUNT };
static const char *const by_names[BY_COUNT] = {"keys", "prefixes", "buckets", "clients", "reasons"};

struct top_row {
    uint64_t hits, bytes, over, before; // before: the row's requests at the time of the last line
    char name[NAME_SHOWN_MAX + 1];
};

struct admin_top {
    enum top_by by;
    uint64_t since_us, told_us, interval_s, tick;
    uint64_t requests, dropped;
    unsigned count;
    uint64_t hashes[TOP_ROWS], asked[TOP_ROWS]; // by row: hash of the name; requests
    struct top_row rows[TOP_ROWS];
};

// --- counting ------------------------------------------------------------------------------------

static struct span member(const json_t *line, const char *name)
{
    const json_t *value = json_object_get(line, name);
    return (struct span){json_string_value(value), json_string_length(value)};
}

// Writes to `name` the name under which a log line is counted: for BY_BUCKETS its bucket, for
// example. Returns false if the line has no such name.
static bool name_of(enum top_by by, const json_t *line, struct buf *name)
{
    struct span bucket = member(line, "bucket"), key = member(line, "key");
    struct span client = member(line, "client"), who = member(line, "requester");
    name->len = 0;
    switch (by) {
    case BY_KEYS:
    case BY_PREFIXES:
        while (by == BY_PREFIXES && key.len > 0 && key.ptr[key.len - 1] != '/') {
            key.len--;
        }
        buf_append_span(name, bucket);
        buf_append_char(name, '/');
        buf_append_span(name, key);
        return bucket.len > 0 && (by == BY_PREFIXES || key.len > 0);
    case BY_BUCKETS:
        buf_append_span(name, bucket);
        return bucket.len > 0;
    case BY_CLIENTS: // without the port, which differs for each connection
        while (client.len > 0 && client.ptr[client.len - 1] != ':') {
            client.len--;
        }
        client.len -= client.len > 0;
        buf_append_span(name, who.len > 0 ? who : client);
        return name->len > 0;
    case BY_REASONS:
        buf_append_span(name, member(line, "reason"));
        if (name->len == 0) {
            buf_append_span(name, member(line, "unstored"));
        }
        return name->len > 0;
    case BY_COUNT:
    default:
        return false;
    }
}

static unsigned row_of(struct admin_top *top, struct span name)
{
    uint64_t hash = hash64(name.ptr, name.len, 0);
    unsigned least = 0;
    for (unsigned i = 0; i < top->count; i++) {
        if (top->hashes[i] == hash) {
            return i;
        }
    }
    bool has_room = top->count < TOP_ROWS;
    for (unsigned i = 1; i < top->count && !has_room; i++) {
        least = top->asked[i] < top->asked[least] ? i : least;
    }
    unsigned at = has_room ? top->count++ : least;
    struct top_row *row = &top->rows[at];
    *row = (struct top_row){.over = top->asked[at], .before = top->asked[at]};
    size_t len = min_u64(name.len, NAME_SHOWN_MAX);
    memcpy(row->name, name.ptr, len);
    top->hashes[at] = hash;
    return at;
}

static void count_line(struct admin_stream *stream, struct span text)
{
    struct admin_top *top = stream->top;
    struct buf name;
    if (stream->where != NULL && !admin_where_holds(stream->where, text)) {
        return;
    }
    json_t *line = json_loadb(text.ptr, text.len, 0, NULL);
    buf_init(&name, NAME_MAX_BYTES);
    if (line != NULL && name_of(top->by, line, &name)) {
        struct span result = member(line, "result");
        unsigned at = row_of(top, buf_span(&name));
        top->requests++;
        top->asked[at]++;
        top->rows[at].hits += span_equal_cstr(result, "hit") ||
                              span_equal_cstr(result, "revalidated") ||
                              span_equal_cstr(result, "stale");
        top->rows[at].bytes += (uint64_t)json_integer_value(json_object_get(line, "bytes"));
    }
    buf_done(&name);
    json_decref(line);
}

// --- reporting -----------------------------------------------------------------------------------

// Returns the row with the most requests among those that `is_told` does not mark. Returns
// top->count if all are marked.
static unsigned next_row(const struct admin_top *top, const bool *is_told)
{
    unsigned best = top->count;
    for (unsigned i = 0; i < top->count; i++) {
        if (!is_told[i] && (best == top->count || top->asked[i] > top->asked[best])) {
            best = i;
        }
    }
    return best;
}

static void tell(struct admin_stream *stream)
{
    struct admin_top *top = stream->top;
    uint64_t now_us = clock_monotonic_us();
    double interval_s = (double)max_u64(now_us - top->told_us, 1) / 1e6;
    bool is_told[TOP_ROWS] = {false};
    json_t *rows = json_array();
    for (unsigned n = 0; n < TOP_SHOWN; n++) {
        unsigned i = next_row(top, is_told);
        if (i == top->count) {
            break;
        }
        struct top_row *row = &top->rows[i];
        is_told[i] = true;
        json_t *json = json_pack(
            "{s:o, s:I, s:f, s:I, s:I, s:I}", "name", admin_json_text(span_from_cstr(row->name)),
            "requests", (json_int_t)top->asked[i], "requests_per_s",
            (double)(top->asked[i] - row->before) / interval_s, "hits", (json_int_t)row->hits,
            "bytes", (json_int_t)row->bytes, "over", (json_int_t)row->over);
        check(json != NULL && json_array_append_new(rows, json) == 0);
    }
    for (unsigned i = 0; i < top->count; i++) {
        top->rows[i].before = top->asked[i];
    }
    json_t *json =
        json_pack("{s:s, s:f, s:f, s:I, s:I, s:b, s:o}", "by", by_names[top->by], "time",
                  (double)clock_wall_us() / 1e6, "seconds", (double)(now_us - top->since_us) / 1e6,
                  "requests", (json_int_t)top->requests, "dropped", (json_int_t)top->dropped,
                  "is_full", top->count == TOP_ROWS, "rows", rows);
    check(json != NULL);
    struct buf line;
    buf_init(&line, ADMIN_ANSWER_MAX);
    admin_json_append(&line, json);
    buf_append_char(&line, '\n');
    check(buf_ok(&line)); // at most TOP_SHOWN rows
    admin_stream_add(stream, buf_span(&line));
    admin_stream_send(stream);
    buf_done(&line);
    top->told_us = now_us;
}

void admin_top_tick(struct admin *admin)
{
    list_for_each(node, &admin->streams)
    {
        struct admin_stream *stream = container_of(node, struct admin_stream, node);
        if (stream->kind != ADMIN_STREAM_TOP || admin_stream_waiting(stream) > 0) {
            continue; // a client that does not read misses lines; counting continues
        }
        struct admin_top *top = stream->top;
        if (++top->tick % top->interval_s == 0) {
            top->dropped += stream->lost;
            stream->lost = 0;
            tell(stream);
        } else if (top->tick % SILENCE_S == 0) {
            admin_stream_add(stream, SPAN("\n")); // detects a client that has left
            admin_stream_send(stream);
        }
    }
}

// Returns NULL, and the reason in *ret_why, if the parameters are wrong.
static struct admin_top *top_new(const struct evkeyvalq *parameters, const char **ret_why)
{
    const char *by = evhttp_find_header(parameters, "by");
    const char *seconds = evhttp_find_header(parameters, "seconds");
    uint64_t interval_s = 1;
    enum top_by kind = BY_COUNT;
    for (int i = 0; i < BY_COUNT && by != NULL; i++) {
        kind = strcmp(by, by_names[i]) == 0 ? (enum top_by)i : kind;
    }
    if (kind == BY_COUNT) {
        *ret_why = "by is keys, prefixes, buckets, clients or reasons";
        return NULL;
    }
    if (seconds != NULL && (!span_to_u64(span_from_cstr(seconds), &interval_s) || interval_s == 0 ||
                            interval_s > INTERVAL_MAX_S)) {
        *ret_why = "seconds is 1 to 3600";
        return NULL;
    }
    struct admin_top *top = calloc(1, sizeof(*top));
    check(top != NULL);
    top->by = kind;
    top->interval_s = interval_s;
    top->since_us = top->told_us = clock_monotonic_us();
    return top;
}

void admin_page_top(struct admin *admin, struct evhttp_request *req)
{
    const char *why;
    struct evkeyvalq parameters;
    (void)admin_reply_query(req, &parameters); // the dispatcher has checked it
    struct admin_top *top = top_new(&parameters, &why);
    if (top != NULL) {
        admin_log_follow(admin, req, &parameters, top, count_line);
    } else {
        admin_reply_refusal(req, HTTP_BADREQUEST, why);
    }
    evhttp_clear_headers(&parameters);
}

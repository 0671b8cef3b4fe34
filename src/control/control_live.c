// SPDX-License-Identifier: Apache-2.0
// The live view: recent requests and per-bucket counters. Called on the admin thread; a worker
// answers.
#include "base/clock.h"
#include "control/control_private.h"

static json_t *recent_json(const struct proxy_recent *r)
{
    uint64_t now_us = clock_monotonic_us(), wall_us = clock_wall_us();
    uint64_t ago_us = now_us > r->ended_us ? now_us - r->ended_us : 0;
    json_t *row = json_pack(
        "{s:f, s:s, s:o, s:s, s:o, s:o, s:b, s:i, s:s, s:s, s:o, s:s, s:s, s:I, s:f, s:f, s:f}",
        "time", (double)(wall_us - ago_us) / 1e6, "id", r->id, "client",
        control_text(span_from_cstr(r->client)), "op", r->op, "bucket",
        control_text(span_from_cstr(r->bucket)), "key", control_text(span_from_cstr(r->key)),
        "key_is_cut", r->key_is_cut, "status", (int)r->status, "result", r->result, "reason",
        r->reason, "error", control_text(span_from_cstr(r->error)), "why", r->why, "source",
        r->source, "bytes", (json_int_t)r->bytes, "first_byte_s", (double)r->first_byte_us / 1e6,
        "origin_s", (double)r->origin_us / 1e6, "total_s", (double)r->total_us / 1e6);
    check(row != NULL);
    return row;
}

static void on_recent(void *ctx, const struct proxy_recent *items, unsigned count)
{
    struct admin_call *call = ctx;
    json_t *rows = json_array();
    for (unsigned i = 0; i < count; i++) {
        check(json_array_append_new(rows, recent_json(&items[i])) == 0);
    }
    json_t *json = json_pack("{s:o}", "requests", rows);
    check(json != NULL);
    admin_call_answer(&call, 200, json);
}

void control_requests(void *ctx, struct admin_call *call)
{
    const struct control *control = ctx;
    proxy_recent(control->proxy, on_recent, call);
}

// Answers with the recent request that has the id of the call.
static void on_traced(void *ctx, const struct proxy_recent *items, unsigned count)
{
    struct admin_call *call = ctx;
    struct span id = admin_call_parameter(call, "id");
    for (unsigned i = 0; i < count; i++) {
        if (span_equal_cstr(id, items[i].id)) {
            admin_call_answer(&call, 200, recent_json(&items[i]));
            return;
        }
    }
    admin_call_refuse(&call, 404, "none of the last requests has this id: see the access log");
}

void control_trace(void *ctx, struct admin_call *call)
{
    const struct control *control = ctx;
    proxy_recent(control->proxy, on_traced, call);
}

static void on_bucket(void *ctx, const struct proxy_bucket_sum *b)
{
    json_t *row = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "bucket", b->name, "requests",
                            (json_int_t)b->requests, "hits", (json_int_t)b->hits, "bypassed",
                            (json_int_t)b->bypassed, "memory_bytes", (json_int_t)b->memory_bytes,
                            "disk_bytes", (json_int_t)b->disk_bytes, "origin_bytes",
                            (json_int_t)b->origin_bytes);
    check(row != NULL && json_array_append_new(ctx, row) == 0);
}

void control_buckets(void *ctx, struct admin_call *call)
{
    const struct control *control = ctx;
    json_t *rows = json_array();
    proxy_buckets(control->proxy, on_bucket, rows);
    json_t *json = json_pack("{s:o}", "buckets", rows);
    check(json != NULL);
    admin_call_answer(&call, 200, json);
}

// SPDX-License-Identifier: Apache-2.0
#include "doors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

struct doors doors;

#define must(condition) cr_assert(condition, "%s", doors.told)

void doors_open(void)
{
    memset(&doors, 0, sizeof(doors));
    list_init(&doors.deferred);
}

void doors_close(void)
{
    must(!doors.relay_running);
    for (unsigned i = 0; i < doors.dead_count; i++) {
        doors.dead[i].fn(doors.dead[i].ptr);
    }
    doors.dead_count = 0;
}

// --- http ----------------------------------------------------------------------------------------

void http_body_start(struct http_exchange *x, struct http_sink *sink)
{
    (void)x;
    doors.sink = sink;
}

void http_body_pause(struct http_exchange *x)
{
    (void)x;
    doors.body_paused = true;
}

void http_body_resume(struct http_exchange *x)
{
    (void)x;
    doors.body_paused = false;
}

void http_reply_start(struct http_exchange *x, const struct http_reply *reply)
{
    (void)x;
    doors.replies++;
    doors.reply = *reply;
}

void http_reply_ready(struct http_exchange *x)
{
    (void)x;
    doors.ready_calls++;
}

void http_reply_cut(struct http_exchange *x)
{
    (void)x;
    doors.reply_cut = true;
}

uint64_t http_reply_body_bytes(const struct http_exchange *x)
{
    (void)x;
    return 123;
}

uint64_t http_reply_first_byte_us(const struct http_exchange *x)
{
    (void)x;
    return 0;
}

// --- a request's life ----------------------------------------------------------------------------

enum step_result request_fail(struct request *r, enum err err, struct s3_error_detail *detail)
{
    doors.failures++;
    doors.fail_err = err;
    doors.fail_detail = detail != NULL ? *detail : (struct s3_error_detail){0};
    r->err = err;
    return STEP_DONE;
}

void request_go(struct request *r)
{
    (void)r;
    doors.went++;
}

void request_header(struct request *r, struct headers *headers, const char *name, struct span value)
{
    must(headers_add(headers, r->arena, span_from_cstr(name), value));
}

void request_common_headers(struct request *r, struct headers *headers)
{
    request_header(r, headers, "x-amz-request-id", SPAN("1"));
}

const struct sigv4_credentials *request_origin_credentials(const struct request *r)
{
    (void)r;
    return NULL;
}

struct span request_realm(const struct request *r)
{
    (void)r;
    return (struct span){NULL, 0};
}

struct span serve_get_version(const struct request *r)
{
    (void)r;
    return (struct span){NULL, 0};
}

uint64_t request_epoch(const struct request *r)
{
    (void)r;
    return doors.epoch;
}

static struct object_key *key_new(struct span realm, struct span key)
{
    struct object_key *k = calloc(1, sizeof(*k) + key.len + 1);
    char *copy = (char *)(k + 1);
    memcpy(copy, key.ptr != NULL ? key.ptr : "", key.len);
    k->key = (struct span){copy, key.len};
    k->realm = realm;
    return k;
}

struct object_key *request_object_key(struct request *r)
{
    return key_new((struct span){NULL, 0}, r->s3.key);
}

void fill_describe_listed(struct fill_worker *fw, struct span bucket, struct span key,
                          uint64_t size_bytes)
{
    (void)fw, (void)bucket, (void)key, (void)size_bytes;
}

uint64_t fill_epoch(const struct store *store, const struct origin *origin, struct span bucket)
{
    (void)store, (void)origin, (void)bucket;
    return 0;
}

struct object_key *object_key_new(const struct store *store, const struct object_key *from)
{
    (void)store;
    return key_new(from->realm, from->key);
}

struct object_key *object_key_ref(struct object_key *key)
{
    return key_new(key->realm, key->key);
}

void object_key_unref(struct object_key *key)
{
    free(key);
}

// --- fill ----------------------------------------------------------------------------------------

void invalidate_begin(struct fill_worker *fw, struct key_write *kw)
{
    (void)fw;
    must(doors.begun_count < DOORS_WRITES_MAX);
    doors.begun[doors.begun_count++] = kw;
}

void invalidate_end(struct fill_worker *fw, struct key_write *kw)
{
    (void)fw;
    must(doors.ending_count < DOORS_WRITES_MAX);
    doors.ending[doors.ending_count++] = kw;
}

void invalidate_listed_begin(struct fill_worker *fw, struct key_write *kw)
{
    invalidate_begin(fw, kw);
}

void invalidate_listed_end(struct fill_worker *fw, struct key_write *kw)
{
    invalidate_end(fw, kw);
}

size_t open_keys_bytes(size_t max)
{
    return max;
}

struct open_keys *open_keys_new(struct fill_worker *fw, size_t max)
{
    (void)fw, (void)max;
    return (struct open_keys *)(void *)&doors.open_count;
}

void open_keys_add(struct open_keys *keys, const struct origin *origin, struct span bucket,
                   struct span key)
{
    (void)keys, (void)origin, (void)bucket, (void)key;
    doors.open_count++;
}

void open_keys_close(struct open_keys *keys)
{
    if (keys != NULL) {
        doors.open_count = 0;
    }
}

void invalidate_bucket_begin(struct fill_worker *fw, struct bucket_write *bw,
                             const struct origin *origin, struct span origin_bucket)
{
    (void)fw, (void)origin;
    must(span_equal_cstr(origin_bucket, "b"));
    bw->err = ERR_OK;
    doors.bucket_begun = bw;
}

void invalidate_bucket_end(struct fill_worker *fw, struct bucket_write *bw)
{
    (void)fw;
    doors.bucket_ending = bw;
}

struct subscription *
subscription_ask(struct fill_worker *fw, const struct fill_ask *ask,
                 void (*on_change)(void *ctx, struct subscription *subscription), void *ctx)
{
    (void)fw;
    bool asks = ask->kind == FILL_ASK_CURRENT;
    must(asks != (ask->kind == FILL_ASK_TELL) && ask->strict == asks && doors.telling == NULL);
    if (asks) {
        (void)snprintf(doors.told_etag, sizeof(doors.told_etag), "asked");
    }
    struct subscription *sub = calloc(1, sizeof(*sub));
    sub->on_change = on_change;
    sub->ctx = ctx;
    doors.tells++;
    doors.telling = sub;
    return sub;
}

void subscription_leave(struct subscription *sub)
{
    must(sub == doors.telling);
    doors.telling = NULL;
    free(sub);
}

void doors_told(void)
{
    if (doors.telling != NULL) {
        doors.telling->state = SUBSCRIPTION_ENDED;
        doors.telling->on_change(doors.telling->ctx, doors.telling);
    }
}

struct store_object *store_object_new(struct hash128 hash, struct span realm, struct span bucket,
                                      struct span key, struct span etag, struct span version_id,
                                      struct span headers, uint64_t size_bytes,
                                      uint32_t block_size_bytes, time_t last_modified)
{
    (void)hash, (void)realm, (void)bucket, (void)key, (void)version_id, (void)headers;
    (void)size_bytes, (void)block_size_bytes, (void)last_modified;
    memcpy(doors.told_etag, etag.ptr, min_u64(etag.len, sizeof(doors.told_etag) - 1));
    return NULL;
}

void store_object_unref(struct store_object *object)
{
    must(object == NULL);
}

// --- origin --------------------------------------------------------------------------------------

// Each at an endpoint of its own.
const char *origin_place(const struct origin *origin)
{
    static char texts[2][32];
    static unsigned next;
    char *text = texts[next++ % 2];
    (void)snprintf(text, sizeof(texts[0]), "%p", (const void *)origin);
    return text;
}

const struct origin_capabilities *origin_capabilities(const struct origin *origin)
{
    static const struct origin_capabilities directory,
        s3 = {.relays_reads = true, .has_parts = true, .has_checksums = true, .is_remote = true};
    (void)origin;
    return doors.is_directory ? &directory : &s3;
}

void origin_relay_start(struct worker *w, struct origin *origin, struct origin_relay *relay)
{
    (void)w;
    must(!doors.relay_running);
    doors.relay = relay;
    doors.relay_origin = origin;
    doors.relay_running = true;
    doors.relay_starts++;
    doors.relay_body_length = relay->body_length;
    doors.relay_arena = arena_new(1u << 20);
}

void origin_relay_pause(struct origin_relay *relay)
{
    must(relay == doors.relay);
    doors.relay_paused = true;
}

void origin_relay_resume(struct origin_relay *relay)
{
    must(relay == doors.relay);
    doors.relay_paused = false;
}

void origin_relay_resume_upload(struct origin_relay *relay)
{
    must(relay == doors.relay);
    must(doors.upload_waits);
    doors.upload_waits = false;
}

void origin_relay_cancel(struct origin_relay *relay)
{
    must(relay == doors.relay && doors.relay_running);
    must(!doors.relay_cancelled);
    doors.relay_cancelled = true;
}

enum err doors_relay_upload(char *buf, size_t max, size_t *ret_len)
{
    enum err err = doors.relay->on_upload(doors.relay, buf, max, ret_len);
    doors.upload_waits = err == ERR_AGAIN;
    return err;
}

enum err doors_relay_head(unsigned status, int64_t length)
{
    struct origin_relay *relay = doors.relay;
    relay->status = status;
    relay->has_length = length >= 0;
    relay->length = length >= 0 ? (uint64_t)length : 0;
    relay->arena = doors.relay_arena;
    const char *etag = doors.etag != NULL ? doors.etag : "\"e\"";
    must(headers_add(&relay->headers_answered, relay->arena, SPAN("ETag"), span_from_cstr(etag)));
    must(headers_add(&relay->headers_answered, relay->arena, SPAN("Server"), SPAN("x")));
    enum err err = relay->on_head(relay);
    if (!doors.holds_told) {
        doors_told();
    }
    return err;
}

void doors_relay_end(enum err err)
{
    must(doors.relay_running);
    doors.relay_running = false;
    doors.relay->on_end(doors.relay, err);
    arena_free(doors.relay_arena);
    doors.relay_arena = NULL;
}

void origin_fetch_start(struct worker *w, struct origin *origin, struct origin_fetch *fetch)
{
    (void)w, (void)origin;
    doors.fetch_starts++;
    doors.fetch = fetch;
}

void origin_fetch_pause(struct origin_fetch *fetch)
{
    must(fetch == doors.fetch);
}

void origin_fetch_resume(struct origin_fetch *fetch)
{
    must(fetch == doors.fetch);
}

void origin_fetch_cancel(struct origin_fetch *fetch)
{
    must(fetch == doors.fetch);
}

// --- loop ----------------------------------------------------------------------------------------

uint64_t worker_now_us(const struct worker *w)
{
    (void)w;
    return doors.now_us;
}

void mailbox_send(struct worker *to, struct message *message)
{
    must(doors.mail_count < DOORS_MAIL_MAX);
    unsigned i = doors.mail_count++;
    doors.mail[i].from = doors.current;
    doors.mail[i].to = to;
    doors.mail[i].message = message;
}

void doors_deliver(unsigned i)
{
    unsigned first = 0;
    while (doors.mail[first].from != doors.mail[i].from ||
           doors.mail[first].to != doors.mail[i].to) {
        first++;
    }
    struct worker *to = doors.mail[first].to;
    struct message *message = doors.mail[first].message;
    doors.mail_count--;
    memmove(&doors.mail[first], &doors.mail[first + 1],
            (doors.mail_count - first) * sizeof(doors.mail[0]));
    doors.current = to;
    message->deliver(to, message);
}

void doors_deliver_all(void)
{
    while (doors.mail_count > 0) {
        doors_deliver(0);
    }
}

void timer_init(struct worker *w, struct timer *timer, void (*fire)(struct timer *timer))
{
    (void)w;
    timer->fn = fire;
}

void worker_task_init(struct task *task, void (*fn)(struct task *task))
{
    list_node_init(&task->node);
    task->fn = fn;
}

void worker_defer(struct worker *w, struct task *task)
{
    (void)w;
    if (!list_node_linked(&task->node)) {
        list_push_back(&doors.deferred, &task->node);
    }
}

void worker_task_cancel(struct task *task)
{
    list_remove(&task->node);
}

bool doors_turn(void)
{
    struct list batch;
    struct list_node *node;
    list_init(&batch);
    list_append_all(&batch, &doors.deferred);
    bool any = !list_empty(&batch);
    while ((node = list_pop_front(&batch)) != NULL) {
        struct task *task = container_of(node, struct task, node);
        task->fn(task);
    }
    return any;
}

void timer_start(struct timer *timer, uint64_t ms)
{
    (void)ms;
    doors.timer = timer;
}

void timer_stop(struct timer *timer)
{
    (void)timer;
}

void timer_done(struct timer *timer)
{
    if (doors.timer == timer) {
        doors.timer = NULL;
    }
}

void worker_free_later(struct worker *w, void (*fn)(void *ptr), void *ptr)
{
    (void)w;
    must(doors.dead_count < DOORS_DEAD_MAX);
    doors.dead[doors.dead_count].fn = fn;
    doors.dead[doors.dead_count++].ptr = ptr;
}

void store_doubt(struct store *store, struct span origin, struct span bucket)
{
    (void)store;
    (void)origin;
    (void)bucket;
}

bool fill_is_doubted(const struct store *store, const struct origin *origin, struct span bucket,
                     uint64_t age_ms)
{
    (void)store;
    (void)origin;
    (void)bucket;
    (void)age_ms;
    return false;
}

bool store_write_is_noted(const struct store *store, struct span origin, struct span bucket)
{
    (void)store, (void)origin, (void)bucket;
    return !doors.is_unnoted;
}

bool store_notes_hang(const struct store *store)
{
    (void)store;
    return doors.notes_hang;
}

bool store_waits_for_readers(struct store *store)
{
    (void)store;
    return false;
}

uint64_t store_run_bytes_max(const struct store *store)
{
    (void)store;
    return STORE_RUN_MAX;
}

void store_write_note(struct worker *w, struct store *store, struct span origin, struct span bucket,
                      struct store_note *note)
{
    (void)w, (void)store, (void)origin, (void)bucket;
    doors.note = note;
}

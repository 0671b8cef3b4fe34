// SPDX-License-Identifier: Apache-2.0
// Handles writes whose outcome is unknown: the origin has the request, or may still get it, and has
// not reported the outcome (a timeout, a reset, a gateway's failure). The origin may apply the
// write at any time, even long after the client has its answer. Bytes that are read before then are
// current at that moment, and may be outdated a moment later, so they must not be cached.
//
// Therefore a second write to the same key stays open for STORE_DOUBT_MS. This write is a doubt,
// and sends nothing to the origin. While a write is open, nothing of the key is published, and when
// it ends the key is invalidated once more (rule 28). In addition, the key's home lets no reader
// share a request that was sent before the reader came.
//
// Copies, completed uploads and batch deletes report their outcome in a document that follows a
// 200. If that document is missing or reports a failure inside the origin, the outcome is also
// unknown.
//
// A doubt begins before its write ends, so that nothing is cached in between. It belongs to the
// worker of its write. In three cases the bucket is put in doubt instead of the key
// (state_doubt.c): there are PASS_DOUBTS_MAX doubts already, their share of memory is used up, or
// the change is of unknown extent.
#include "proxy/pass/pass_private.h"

#include <stdlib.h>
#include <string.h>

struct pass_doubt {
    struct list_node node; // in proxy_worker.doubts
    struct proxy_worker *pw;
    struct key_write write;
    struct timer timer;
};

static void doubt_free(void *ptr)
{
    struct pass_doubt *d = ptr;
    list_remove(&d->node);
    timer_done(&d->timer);
    object_key_unref(d->write.key);
    atomic_fetch_sub(&d->pw->proxy->doubt_count, 1);
    chunk_budget_discharge(BUDGET_WRITES, PROXY_KEY_BYTES);
    stats_sub(COUNTER_writes_in_doubt, 1);
    free(d);
}

static void on_over(struct timer *timer)
{
    struct pass_doubt *d = container_of(timer, struct pass_doubt, timer);
    check(d->write.is_doubt);
    check(list_node_linked(&d->node));
    invalidate_end(d->pw->fill, &d->write);
}

static void on_ready(struct key_write *write)
{
    struct pass_doubt *d = write->ctx;
    check(write == &d->write);
    timer_start(&d->timer, STORE_DOUBT_MS);
}

static void on_ended(struct key_write *write)
{
    struct pass_doubt *d = write->ctx;
    check(write == &d->write);
    worker_free_later(d->pw->worker, doubt_free, d);
}

static void doubt_bucket(struct proxy_worker *pw, const struct object_key *key)
{
    store_doubt(pw->store, span_from_cstr(origin_place(key->origin)), key->bucket);
}

// Counts and charges one more doubt. Returns false if there is no room for it.
static bool doubt_takes(struct proxy *proxy)
{
    if (atomic_fetch_add(&proxy->doubt_count, 1) < PASS_DOUBTS_MAX &&
        chunk_budget_try_charge(BUDGET_WRITES, 0, PROXY_KEY_BYTES)) {
        return true;
    }
    atomic_fetch_sub(&proxy->doubt_count, 1);
    return false;
}

static void doubt_key(struct proxy_worker *pw, struct object_key *key)
{
    check(key != NULL);
    struct pass_doubt *d = calloc(1, sizeof(*d));
    check(d != NULL);
    d->pw = pw;
    d->write.key = object_key_ref(key);
    d->write.ctx = d;
    d->write.is_doubt = true;
    d->write.on_ready = on_ready;
    d->write.on_ended = on_ended;
    list_node_init(&d->node);
    list_push_back(&pw->doubts, &d->node);
    timer_init(pw->worker, &d->timer, on_over);
    stats_add(COUNTER_writes_in_doubt, 1);
    invalidate_begin(pw->fill, &d->write);
}

void pass_doubt_name(struct pass_state *p, struct object_key *name)
{
    check(p->phase == PASS_CLOSE);
    struct pass_writes *w = &p->writes;
    if (!w->is_in_doubt || span_equal(name->bucket, w->doubted_bucket)) {
        return;
    }
    if (doubt_takes(p->pw->proxy)) {
        doubt_key(p->pw, name);
    } else {
        doubt_bucket(p->pw, name);
        w->doubted_bucket = w->keys[w->at.key].bucket;
    }
}

// --- the outcome in a document -------------------------------------------------------------------

static bool code_is_unsure(struct span code)
{
    return span_equal_cstr(code, "InternalError") || span_equal_cstr(code, "ServiceUnavailable") ||
           span_equal_cstr(code, "InternalServerError");
}

// Scans for "<Code>" and collects the text after it, up to the next element. A '<' in the middle of
// the tag restarts the match.
static void document_step(struct pass_document *d, char c)
{
    check(d->matched < sizeof("<Code>"));
    static const char OPEN[] = "<Code>";
    d->has_text |= strchr(" \t\r\n", c) == NULL;
    if (d->matched == sizeof(OPEN) - 1 && c != '<') {
        d->code[min_u64(d->code_len++, sizeof(d->code) - 1)] = c;
        return;
    }
    if (d->matched == sizeof(OPEN) - 1) {
        d->is_unsure |=
            d->code_len < sizeof(d->code) && code_is_unsure((struct span){d->code, d->code_len});
        d->code_len = 0;
    }
    d->matched = c == '<' ? 1 : c == OPEN[d->matched] ? d->matched + 1 : 0;
}

void pass_doubt_take(struct pass_state *p, struct span data)
{
    for (size_t i = 0; p->is_streamed && i < data.len; i++) {
        document_step(&p->document, data.ptr[i]);
    }
}

// Returns true if the document leaves the outcome unknown. For operations that may have nothing to
// report, an empty document is a known outcome.
static bool document_is_unsure(const struct pass_state *p)
{
    bool lacks_verdict = !p->document.has_text && p->s3.operation != S3_Unknown &&
                         p->s3.operation != S3_RestoreObject;
    return p->call.err != ERR_OK || p->document.is_unsure || lacks_verdict;
}

// --- doubts --------------------------------------------------------------------------------------

// Returns true if the outcome of the write is unknown. The origin does not apply an upload whose
// last byte it does not have.
static bool is_doubtful(const struct pass_state *p)
{
    check(p->phase == PASS_CLOSE);
    if (p->call.phase == CALL_NONE) {
        return false;
    }
    if (p->is_streamed) {
        return document_is_unsure(p);
    }
    return p->relay.is_unsure && p->body.taken == p->body.length;
}

void pass_doubt_begin(struct pass_state *p)
{
    if (!is_doubtful(p)) {
        return;
    }
    stats_add(COUNTER_write_doubts, 1);
    check(!p->writes.is_in_doubt);
    p->writes.is_in_doubt = true;
    if (p->changes_bucket) {
        store_doubt(p->pw->store, p->bucket_place, p->relay.bucket);
    }
}

// A reload may have given the bucket another origin since the write began. That may be another name
// of the same store, under which the write has invalidated nothing.
void pass_doubt_moved(const struct pass_state *p, struct span *ret_place, struct span *ret_bucket)
{
    check(p->phase == PASS_CLOSE);
    const struct origin *now =
        live_find_origin(p->pw->proxy, p->pw->live, p->s3.bucket, ret_bucket);
    *ret_place = span_from_cstr(origin_place(now));
    if (now != p->origin || !span_equal(*ret_bucket, p->relay.bucket)) {
        store_doubt(p->pw->store, *ret_place, *ret_bucket);
    }
}

// The next process will not know the doubts of keys, so their buckets are put in doubt.
void pass_doubt_free_all(struct proxy_worker *pw)
{
    struct list_node *node;
    while ((node = list_first(&pw->doubts)) != NULL) {
        struct pass_doubt *d = container_of(node, struct pass_doubt, node);
        doubt_bucket(pw, d->write.key);
        doubt_free(d);
    }
}

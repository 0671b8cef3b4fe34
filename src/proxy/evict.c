// SPDX-License-Identifier: Apache-2.0
// What is cached of an object is made untrue, as by a write that nobody makes: the key's home invalidates it
// in each realm that may hold it, so no reader on any worker is given it after, also if a run of it is on
// its way now. A whole bucket goes to its next epoch. The bytes stay on disk until their segment goes. On
// one worker.
#include "proxy/inspect_private.h"

#include <stdlib.h>
#include <string.h>

struct eviction {
    struct message message;
    struct proxy *proxy;
    void (*done)(void *ctx, enum err err);
    void *ctx;
    struct span bucket, key;
    enum err err;
    unsigned left; // of writes
    struct key_write *writes;
    unsigned write_count;
    struct bucket_write bucket_write;
    char names[];
};

static void eviction_end(struct eviction *e, struct worker *w)
{
    e->done(e->ctx, e->err);
    for (unsigned i = 0; i < e->write_count; i++) {
        object_key_unref(e->writes[i].key);
    }
    worker_free_later(w, free, e->writes);
    worker_free_later(w, free, e);
}

static void on_key_ready(struct key_write *kw)
{
    struct eviction *e = kw->ctx;
    e->err = kw->err != ERR_OK ? ERR_LIMIT : e->err;
    invalidate_end(proxy_worker_of(worker_current())->fill, kw);
}

static void on_key_ended(struct key_write *kw)
{
    struct eviction *e = kw->ctx;
    if (--e->left == 0) {
        eviction_end(e, worker_current());
    }
}

static void on_bucket_ready(struct bucket_write *bw)
{
    struct eviction *e = bw->ctx;
    e->err = bw->err != ERR_OK ? ERR_LIMIT : ERR_OK;
    invalidate_bucket_end(proxy_worker_of(worker_current())->fill, bw);
}

static void on_bucket_ended(struct bucket_write *bw)
{
    eviction_end(bw->ctx, worker_current());
}

// In the common realm and in those of the keys file.
static void evict_key(struct eviction *e, struct proxy_worker *pw)
{
    size_t realm_count = 0;
    const struct span *realms =
        pw->known != NULL ? access_keys_realms(pw->known, &realm_count) : NULL;
    e->write_count = e->left = (unsigned)realm_count + 1;
    e->writes = calloc(e->write_count, sizeof(*e->writes));
    check(e->writes != NULL);
    for (unsigned i = 0; i < e->write_count; i++) {
        struct key_write *kw = &e->writes[i];
        kw->key = inspect_key(e->proxy, pw->live, i == 0 ? e->proxy->realm : realms[i - 1],
                              e->bucket, e->key);
        kw->ctx = e;
        kw->on_ready = on_key_ready;
        kw->on_ended = on_key_ended;
    }
    for (unsigned i = 0; i < e->write_count; i++) {
        invalidate_begin(pw->fill, &e->writes[i]);
    }
}

static void on_evict(struct worker *to, struct message *message)
{
    struct eviction *e = container_of(message, struct eviction, message);
    struct proxy_worker *pw = proxy_worker_of(to);
    if (e->key.len > 0) {
        evict_key(e, pw);
        return;
    }
    struct span origin_bucket;
    struct origin *origin = serve_find_origin(e->proxy, pw->live, e->bucket, &origin_bucket);
    e->bucket_write.ctx = e;
    e->bucket_write.on_ready = on_bucket_ready;
    e->bucket_write.on_ended = on_bucket_ended;
    invalidate_bucket_begin(pw->fill, &e->bucket_write, origin, origin_bucket);
}

void proxy_evict(struct proxy *proxy, struct span bucket, struct span key,
                 void (*done)(void *ctx, enum err err), void *ctx)
{
    struct eviction *e = calloc(1, sizeof(*e) + bucket.len + key.len + 1);
    check(e != NULL && bucket.len > 0);
    e->proxy = proxy;
    e->done = done;
    e->ctx = ctx;
    memcpy(e->names, bucket.ptr, bucket.len);
    if (key.len > 0) {
        memcpy(e->names + bucket.len, key.ptr, key.len);
    }
    e->bucket = (struct span){e->names, bucket.len};
    e->key = (struct span){e->names + bucket.len, key.len};
    e->message.deliver = on_evict;
    mailbox_send_from_any_thread(inspect_worker(proxy)->worker, &e->message);
}

// SPDX-License-Identifier: Apache-2.0
// Lists a page of a bucket at its origin, with the cached parts of each object. The index contains
// only hashes of names, so the names come from the origin, by one request for each page. It runs on
// one worker, with a bounded number of look-ups in each turn of the loop.
#include "proxy/ops/inspect_private.h"

#include <stdlib.h>

struct listing {
    struct message message;
    void (*done)(void *ctx, const struct proxy_listing *listing);
    void *ctx;
    struct proxy_worker *pw;
    struct task task;
    struct list_call call;
    struct span bucket, prefix, after;
    unsigned max;
    struct live *live;
    struct proxy_object *objects; // their rules belong to `live`
    unsigned count;               // number of objects looked up so far
    bool is_looking;
    struct inspect_look look;
    char names[];
};

static void listing_end(struct listing *l)
{
    check(l->count == l->call.count && !l->is_looking);
    struct proxy_listing answer = {
        .err = l->call.err, .objects = l->objects, .count = l->count, .next = l->call.next};
    l->done(l->ctx, &answer);
    list_call_release(&l->call);
    live_unref(l->live);
    free(l->objects);
    worker_free_later(l->pw->worker, free, l);
}

static void look_begin(struct listing *l)
{
    check(l->count < l->call.count && !l->is_looking);
    const struct list_entry *entry = &l->call.entries[l->count];
    l->look = (struct inspect_look){
        .live = l->live, .listed_etag_hash = entry->etag_hash, .has_listed = true};
    l->look.object.bucket = l->bucket;
    l->look.object.key = entry->key;
    l->look.object.size_bytes = entry->size_bytes;
    l->look.object.end_byte = UINT64_MAX;
    inspect_look_begin(l->pw, &l->look, false);
    l->is_looking = true;
}

static void listing_go(struct task *task)
{
    struct listing *l = container_of(task, struct listing, task);
    unsigned windows = INSPECT_WINDOWS_MAX;
    while (l->count < l->call.count && windows > 0) {
        if (!l->is_looking) {
            windows--;
            look_begin(l);
        }
        if (inspect_look_step(l->pw, &l->look, &windows)) {
            l->is_looking = false;
            l->objects[l->count++] = l->look.object;
        }
    }
    if (l->count < l->call.count) {
        worker_defer(l->pw->worker, &l->task);
    } else {
        listing_end(l);
    }
}

static void on_listed(struct list_call *call)
{
    struct listing *l = container_of(call, struct listing, call);
    check(l->objects == NULL && call->count <= l->max);
    l->objects = calloc(call->count + 1, sizeof(*l->objects));
    check(l->objects != NULL);
    worker_defer(l->pw->worker, &l->task);
}

static void on_list(struct worker *to, struct message *message)
{
    struct listing *l = container_of(message, struct listing, message);
    check(l->pw == NULL && l->max > 0 && l->max <= PROXY_LIST_MAX);
    l->pw = proxy_worker_of(to);
    l->live = live_ref(l->pw->live);
    worker_task_init(&l->task, listing_go);
    l->call.done = on_listed;
    list_call_start(l->pw, &l->call, l->bucket, l->prefix, l->after, l->max);
}

void proxy_list(struct proxy *proxy, struct span bucket, struct span prefix, struct span after,
                unsigned max, void (*done)(void *ctx, const struct proxy_listing *listing),
                void *ctx)
{
    struct listing *l = calloc(1, sizeof(*l) + bucket.len + prefix.len + after.len + 1);
    check(l != NULL);
    check(bucket.len > 0 && done != NULL);
    char *at = l->names;
    l->done = done;
    l->ctx = ctx;
    l->bucket = ops_name_copy(&at, bucket);
    l->prefix = ops_name_copy(&at, prefix);
    l->after = ops_name_copy(&at, after);
    l->max = max;
    l->message.deliver = on_list;
    mailbox_send_from_any_thread(ops_worker(proxy)->worker, &l->message);
}

// SPDX-License-Identifier: Apache-2.0
// Reports to operators which parts of an object are cached, and which rule holds for it. It changes
// nothing. It reads the index as a request on this worker would see it, and a run's header if that
// needs no wait. Each turn of the loop handles a bounded number of the object's windows.
#include "proxy/ops/inspect_private.h"

#include <stdlib.h>
#include <string.h>

struct object_key *inspect_key(struct proxy *proxy, const struct live *live, struct span realm,
                               struct span bucket, struct span key)
{
    const struct proxy_rule *rule = rules_find(live, bucket, key);
    struct object_key from = {.realm = realm, .key = key};
    from.origin = live_find_origin(proxy, live, bucket, &from.bucket);
    from.epoch = fill_epoch(proxy->store, from.origin, from.bucket);
    from.limits = (struct object_limits){.cache = rule->cache,
                                         .max_object_size_bytes = rule->max_object_size_bytes,
                                         .block_size_bytes = rule->block_size_bytes,
                                         .group = rules_group(live, rule, bucket, key)};
    return object_key_new(proxy->store, &from);
}

static const char *checksums_word(struct span headers, const struct store_sums *record)
{
    static const char *const WORDS[] = {[CHECKSUMS_UNKNOWN] = "unknown",
                                        [CHECKSUMS_TOO_LONG] = "unknown",
                                        [CHECKSUMS_NONE] = "none",
                                        [CHECKSUMS_KNOWN] = "known"};
    return WORDS[checksums_known(headers, record)];
}

static void take_etag(struct proxy_worker *pw, struct inspect_look *look,
                      const struct store_view *view)
{
    const struct store_place *place = view->place_count > 0 ? &view->places[0] : &view->any;
    struct store_object *found = NULL;
    const struct object_key *key = look->key;
    if (place->segment == NULL ||
        store_object_get(pw->worker, pw->store, place, key->hash, key->realm, key->bucket, key->key,
                         &found) != ERR_OK) {
        return;
    }
    struct proxy_object *o = &look->object;
    o->checksums = checksums_word(found->headers, &view->sums);
    size_t len = min_u64(found->etag.len, sizeof(o->etag) - 1);
    memcpy(o->etag, found->etag.ptr, len);
    o->etag[len] = '\0';
    store_object_unref(found);
}

static void take_record(struct proxy_worker *pw, struct inspect_look *look,
                        const struct store_view *view)
{
    struct proxy_object *o = &look->object;
    check(view->found && o->copy == PROXY_COPY_NONE);
    o->copy = view->rebuilt                                       ? PROXY_COPY_REBUILT
              : freshness_check(o->rule, view) == FRESHNESS_FRESH ? PROXY_COPY_FRESH
                                                                  : PROXY_COPY_STALE;
    o->is_doubted = fill_is_doubted(pw->store, look->key->origin, look->key->bucket, view->age_ms);
    o->doubted_until_s = fill_doubt_until_s(pw->store, look->key->origin, look->key->bucket);
    o->is_changed = look->has_listed &&
                    ((look->listed_etag_hash != 0 && look->listed_etag_hash != view->etag_hash) ||
                     o->size_bytes != view->size_bytes);
    o->checksums = checksums_word((struct span){NULL, 0}, &view->sums);
    o->may_be_stale = freshness_stale_allowed(o->rule, view) && !o->is_doubted;
    o->age_ms = view->age_ms;
    o->size_bytes = view->size_bytes;
    o->block_size_bytes = view->block_size_bytes;
    look->etag_hash = view->etag_hash;
    look->generation = view->generation;
}

static uint64_t blocks_of(uint64_t bytes, uint64_t block_size)
{
    return max_u64((bytes + block_size - 1) / block_size, 1); // an empty object has one block
}

// Divides the range into cells with equal numbers of blocks.
static void cells_begin(struct proxy_object *o)
{
    check(o->block_size_bytes > 0 && o->cell_count == 0);
    o->first_byte = min_u64(o->first_byte, o->size_bytes);
    o->end_byte = min_u64(o->end_byte, o->size_bytes);
    o->block_count = blocks_of(o->size_bytes, o->block_size_bytes);
    if (o->end_byte <= o->first_byte && o->size_bytes > 0) {
        return;
    }
    uint64_t first = o->first_byte / o->block_size_bytes;
    o->range_blocks = blocks_of(o->end_byte, o->block_size_bytes) - first;
    o->cell_count = (unsigned)min_u64(o->range_blocks, PROXY_MAP_CELLS);
    check(o->range_blocks > 0 && o->range_blocks <= o->block_count);
    for (unsigned i = 0; i < o->cell_count; i++) {
        o->cell_blocks[i] = (uint32_t)((i + 1) * o->range_blocks / o->cell_count -
                                       i * o->range_blocks / o->cell_count);
    }
}

void inspect_look_begin(struct proxy_worker *pw, struct inspect_look *look, bool with_etag)
{
    static _Thread_local struct store_view view;
    struct proxy *proxy = pw->proxy;
    struct proxy_object *o = &look->object;
    size_t realm_count = 0;
    check(look->key == NULL && look->live != NULL);
    check(o->bucket.len > 0 && o->first_byte <= o->end_byte);
    look->key = inspect_key(proxy, look->live, proxy->realm, o->bucket, o->key);
    o->rule = rules_find(look->live, o->bucket, o->key);
    o->origin = origin_describe(look->key->origin);
    o->is_at_default = look->key->origin == proxy->options.default_origin;
    for (unsigned i = 0; i < ORIGIN_ODDITIES; i++) {
        o->oddities[i] = origin_is_odd(look->key->origin, (enum origin_oddity)i);
    }
    (void)live_find_origin(proxy, look->live, o->bucket, &o->origin_bucket);
    o->home = (unsigned)(look->key->hash.lo % proxy->worker_count);
    o->block_size_bytes = o->rule->block_size_bytes;
    o->age_ms = UINT64_MAX;
    o->checksums = checksums_word((struct span){NULL, 0}, NULL);
    o->is_wanted = store_would_keep(pw->store, look->key->hash, 0, look->key->limits.group);
    o->forbids = fill_uncacheable(pw->fill, look->key->hash);
    if (pw->known != NULL) {
        (void)access_keys_realms(pw->known, &realm_count);
    }
    o->has_realms = realm_count > 0;
    o->has_answers = chunk_budget_kind_bytes(BUDGET_ANSWERS) > 0;
    look->at = 0;
    store_lookup(pw->worker, pw->store, look->key->hash, 0, STORE_WINDOW_MAX,
                 fill_floor(pw->fill, look->key->hash), &view);
    if (view.found) {
        take_record(pw, look, &view);
    }
    if (view.found && with_etag) {
        take_etag(pw, look, &view);
    }
    store_view_done(&view);
    cells_begin(o);
}

static void count_block(struct proxy_object *o, uint64_t block, uint64_t bytes)
{
    check(block < o->block_count && bytes <= o->block_size_bytes);
    uint64_t first = o->first_byte / o->block_size_bytes;
    o->cached_blocks++;
    o->cached_bytes += bytes;
    if (block < first || block >= first + o->range_blocks) {
        return;
    }
    o->range_cached_blocks++;
    // Find the first cell that ends after the block.
    uint64_t cell = (block - first) * o->cell_count / o->range_blocks;
    while ((cell + 1) * o->range_blocks / o->cell_count <= block - first) {
        cell++;
    }
    check(cell < o->cell_count);
    o->cell_cached_blocks[cell]++;
}

static void count_window(struct inspect_look *look, const struct store_view *view, uint64_t end)
{
    struct proxy_object *o = &look->object;
    uint64_t size = o->block_size_bytes,
             next = look->at / size; // runs may overlap; count no block twice
    for (unsigned i = 0; i < view->place_count; i++) {
        const struct store_place *place = &view->places[i];
        uint64_t last = place->first_block + place->block_count;
        for (uint64_t b = max_u64(next, place->first_block); b < last && b * size < max_u64(end, 1);
             b++) {
            count_block(o, b, min_u64(size, o->size_bytes - b * size));
            next = b + 1;
        }
    }
}

bool inspect_look_step(struct proxy_worker *pw, struct inspect_look *look, unsigned *windows)
{
    check(look->key != NULL);
    static _Thread_local struct store_view view;
    struct proxy_object *o = &look->object;
    bool is_over = o->copy == PROXY_COPY_NONE;
    while (!is_over && *windows > 0) {
        uint64_t end = min_u64(look->at + STORE_WINDOW_MAX, max_u64(o->size_bytes, 1));
        --*windows;
        store_lookup(pw->worker, pw->store, look->key->hash, look->at, end,
                     fill_floor(pw->fill, look->key->hash), &view);
        bool is_same =
            view.found && view.generation == look->generation && view.etag_hash == look->etag_hash;
        if (is_same) {
            count_window(look, &view, end);
        }
        store_view_done(&view);
        look->at = end;
        is_over = !is_same || end >= o->size_bytes;
    }
    if (is_over) {
        object_key_unref(look->key);
        look->key = NULL;
    }
    return is_over;
}

// --- one object ----------------------------------------------------------------------------------

struct explanation {
    struct message message;
    struct proxy *proxy;
    void (*done)(void *ctx, const struct proxy_object *object);
    void *ctx;
    struct proxy_worker *pw;
    struct task task;
    struct live *live;
    struct inspect_look look;
    bool asks_policy, asks_origin;
    struct store_explain policy;
    struct blocking_job job;
    struct object_key *key; // a reference, until the origin has answered
    struct origin_fetch fetch;
    struct timer patience;
    char names[];
};

static void explain_end(struct explanation *e)
{
    e->done(e->ctx, &e->look.object);
    live_unref(e->live);
    worker_free_later(e->pw->worker, free, e);
}

// Runs on a thread of the blocking pool, because workers must not wait for the policy's lock.
static void on_judge(struct blocking_job *job)
{
    struct explanation *e = container_of(job, struct explanation, job);
    store_explain_judge(e->proxy->store, &e->policy);
}

static void on_judged(struct blocking_job *job)
{
    struct explanation *e = container_of(job, struct explanation, job);
    check(e->asks_policy && e->look.object.policy == NULL);
    e->look.object.policy =
        job->err == ERR_OK ? &e->policy : NULL; // NULL: the blocking pool was full
    explain_end(e);
}

static void policy_look(struct explanation *e)
{
    const struct proxy_object *o = &e->look.object;
    check(e->asks_policy && e->look.key != NULL);
    uint64_t first = o->first_byte, end = max_u64(o->end_byte, first + 1);
    end = min_u64(end, first + STORE_WINDOW_MAX);
    store_explain_look(e->pw->worker, e->pw->store, e->look.key->hash, first, end,
                       fill_floor(e->pw->fill, e->look.key->hash), o->rule->block_size_bytes,
                       e->look.key->limits.group, &e->policy);
}

// Returns true if the policy decides whether the object is cached. Otherwise something else forbids
// to store it, such as a full disk, so that what the policy would do with it misleads.
static bool policy_decides(const struct proxy_object *o, const struct store *store)
{
    struct store_summary summary;
    store_summarize(store, &summary);
    return (o->copy != PROXY_COPY_NONE && o->range_cached_blocks == o->range_blocks) ||
           (proxy_rule_excludes(o->rule, o->size_bytes) == REFUSAL_none &&
            o->origin_err == ERR_OK && o->forbids == ORIGIN_FORBIDS_NOTHING &&
            summary.refusal == REFUSAL_none);
}

static void explain_judge(struct explanation *e)
{
    struct proxy_object *o = &e->look.object;
    check(e->look.key == NULL); // the look has ended
    if (!policy_decides(o, e->proxy->store)) {
        o->is_wanted = false;
        e->policy.run_count = 0;
    }
    if (!e->asks_policy) {
        explain_end(e);
        return;
    }
    e->job.lane = BLOCKING_STORE;
    e->job.work = on_judge;
    e->job.done = on_judged;
    blocking_pool_run(e->pw->worker, &e->job);
}

// --- is it at the origin? ------------------------------------------------------------------------

static enum err on_origin_head(struct origin_fetch *f)
{
    struct proxy_object *o = &container_of(f, struct explanation, fetch)->look.object;
    o->size_bytes = f->size_bytes;
    if (f->forbids != ORIGIN_FORBIDS_NOTHING) { // the last GET may have had another reason
        o->forbids = f->forbids;
    }
    return ERR_OK;
}

static enum err on_origin_body(struct origin_fetch *f, struct span data)
{
    (void)f;
    (void)data;
    return ERR_OK;
}

static void on_origin_end(struct origin_fetch *f, enum err err)
{
    struct explanation *e = container_of(f, struct explanation, fetch);
    struct proxy_object *o = &e->look.object;
    check(o->copy == PROXY_COPY_NONE && e->key != NULL);
    timer_done(&e->patience);
    o->origin_err = err;
    if (err != ERR_NO_SUCH_KEY && err != ERR_NO_SUCH_BUCKET && err != ERR_OK) {
        // This request may have found the origin's trouble.
        (void)origin_in_trouble(e->key->origin, &o->trouble);
    }
    object_key_unref(e->key);
    explain_judge(e);
}

static void on_impatient(struct timer *timer)
{
    struct explanation *e = container_of(timer, struct explanation, patience);
    origin_fetch_cancel(&e->fetch);
}

static void explain_ask_origin(struct explanation *e)
{
    check(e->asks_origin && e->key != NULL);
    struct origin_fetch *f = &e->fetch;
    f->kind = ORIGIN_HEAD;
    f->get_decides = true;
    f->bucket = e->key->bucket;
    f->key = e->key->key;
    f->on_head = on_origin_head;
    f->on_body = on_origin_body;
    f->on_end = on_origin_end;
    timer_init(e->pw->worker, &e->patience, on_impatient);
    timer_start(&e->patience, PROXY_EXPLAIN_ASK_MS);
    origin_fetch_start(e->pw->worker, e->key->origin, f);
}

static void explain_go(struct task *task)
{
    struct explanation *e = container_of(task, struct explanation, task);
    struct proxy_object *o = &e->look.object;
    unsigned windows = INSPECT_WINDOWS_MAX;
    if (!inspect_look_step(e->pw, &e->look, &windows)) {
        worker_defer(e->pw->worker, &e->task);
        return;
    }
    bool is_whole = o->copy != PROXY_COPY_NONE && o->range_cached_blocks == o->range_blocks;
    bool needs_origin = !is_whole || !proxy_object_is_fresh(o);
    bool in_trouble = needs_origin && origin_in_trouble(e->key->origin, &o->trouble);
    if (!in_trouble && e->asks_origin && o->copy == PROXY_COPY_NONE) {
        explain_ask_origin(e);
        return;
    }
    object_key_unref(e->key);
    explain_judge(e);
}

static void on_explain(struct worker *to, struct message *message)
{
    struct explanation *e = container_of(message, struct explanation, message);
    check(e->pw == NULL && e->done != NULL);
    e->pw = proxy_worker_of(to);
    worker_task_init(&e->task, explain_go);
    e->look.live = e->live = live_ref(e->pw->live);
    inspect_look_begin(e->pw, &e->look, true);
    e->key = object_key_ref(e->look.key);
    if (e->asks_policy) {
        policy_look(e);
    }
    worker_defer(to, &e->task);
}

void proxy_explain(struct proxy *proxy, struct span bucket, struct span key, uint64_t first_byte,
                   uint64_t end_byte, bool asks_policy, bool asks_origin,
                   void (*done)(void *ctx, const struct proxy_object *object), void *ctx)
{
    struct explanation *e = calloc(1, sizeof(*e) + bucket.len + key.len + 1);
    check(e != NULL && done != NULL && first_byte <= end_byte);
    e->proxy = proxy;
    e->asks_policy = asks_policy;
    e->asks_origin = asks_origin;
    list_node_init(&e->job.node);
    e->done = done;
    e->ctx = ctx;
    char *at = e->names;
    e->look.object.bucket = ops_name_copy(&at, bucket);
    e->look.object.key = ops_name_copy(&at, key);
    e->look.object.first_byte = first_byte;
    e->look.object.end_byte = end_byte;
    e->message.deliver = on_explain;
    mailbox_send_from_any_thread(ops_worker(proxy)->worker, &e->message);
}

// SPDX-License-Identifier: Apache-2.0
// Rules by command: pins that an operator adds and removes while the process runs. A call makes all
// its changes or none. A thread of the blocking pool makes the next table, lets the store save it,
// and publishes it like a reload (live_publish()). When all workers have the table, the store
// reviews its runs (store_review()). Calls that arrive during a change wait for their turn.
// ADMIN_CALLS_MAX bounds their number.
//
// A worker may read or store runs under an earlier table. These runs keep their classification
// until they are read or reviewed again.
#include "proxy/ops/inspect_private.h"
#include "proxy/ops/ops.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

#define RETRY_S 60u // time until expired pins are removed again, after a failure

struct change {
    struct list_node node;
    struct proxy *proxy;
    bool pins;
    struct proxy_pin *items; // borrowed until done()
    unsigned count;
    void (*done)(void *ctx, enum err err, const char *why); // NULL: nobody waits for the result
    void *ctx;
    unsigned reviews; // flags for store_review() after the change
};

struct pins_room {
    struct proxy *proxy;
    struct message message; // `message` and `job` serve one job at a time
    struct blocking_job job;
    struct {
        pthread_mutex_t lock; // held only briefly; no other lock is taken under it
        struct list changes;
        bool is_running;
        uint64_t retry_s; // wall time; expired pins are not removed before it
    } guarded;
};

static void change_end(struct change *change, enum err err, const char *why)
{
    if (change->done != NULL) {
        change->done(change->ctx, err, why);
    } else if (err != ERR_OK) {
        log_warn_condition("pins_not_ended", "err=%s", error_name(err));
    }
    free(change);
}

static void on_published(void *ctx)
{
    struct change *change = ctx;
    check(change->proxy != NULL && (change->count == 0 || change->items != NULL));
    store_review(change->proxy->store, change->reviews);
    change_end(change, ERR_OK, "");
}

// --- names under which runs are cached -----------------------------------------------------------

// Returns the group of an object, given `group`, its group under other names of its bucket, and one
// more name, `bucket`. Clients may know a bucket of an origin by several names, and a pin under any
// of them applies.
static unsigned group_by_name(const struct live *live, struct span bucket, struct span key,
                              unsigned group)
{
    const struct proxy_rule *rule = rules_find(live, bucket, key);
    unsigned by_name = rules_group(live, rule, bucket, key);
    if (group == STORE_GROUP_PINS || by_name == STORE_GROUP_PINS) {
        return STORE_GROUP_PINS;
    }
    return rule->pin || group == STORE_PRIORITY_NORMAL ? by_name : group;
}

static unsigned group_of(void *ctx, struct span realm, struct span bucket, struct span key)
{
    struct proxy *proxy = ctx;
    unsigned group = STORE_PRIORITY_NORMAL;
    const struct origin *origin = NULL; // NULL: the configuration no longer has it
    bool is_listed = false;
    pthread_mutex_lock(&proxy->live.lock);
    const struct live *live = proxy->live.now;
    check(live != NULL);
    for (unsigned i = 0; i < live->settings.bucket_count; i++) {
        const struct proxy_bucket *b = &live->settings.buckets[i];
        is_listed |= span_equal_cstr(bucket, b->name);
        if (span_equal_cstr(bucket, b->origin_bucket) && object_key_realm_is_of(realm, b->origin)) {
            origin = b->origin;
            group = group_by_name(live, span_from_cstr(b->name), key, group);
        }
    }
    if (!is_listed && object_key_realm_is_of(realm, proxy->options.default_origin)) {
        origin = proxy->options.default_origin;
        group = group_by_name(live, bucket, key, group);
    }
    pthread_mutex_unlock(&proxy->live.lock);
    bool is_gone =
        origin != NULL && object_key_realm_epoch(realm) < fill_epoch(proxy->store, origin, bucket);
    return is_gone ? STORE_GROUP_GONE : group;
}

// --- changes: on a thread of the pool ------------------------------------------------------------

// Applies the change to a copy of `before`, lets the store save the copy, and returns it. On
// failure returns NULL and sets *ret_err; nothing has changed then.
static struct pins_table *table_make(struct pins_room *room, const struct pins_table *before,
                                     struct change *change, enum err *ret_err, struct buf *why)
{
    struct pins_table *table = pins_table_change(before, change->pins, change->items, change->count,
                                                 (uint64_t)clock_wall_s());
    if (table == NULL) {
        stats_add(COUNTER_pins_list_refused, 1);
        buf_printf(
            why,
            "at most %u objects and prefixes may be pinned: unpin some, or pin a prefix that "
            "holds them",
            PROXY_PINS_MAX);
        *ret_err = ERR_LIMIT;
        return NULL;
    }
    struct buf text;
    buf_init(&text, PROXY_PINS_BYTES_MAX);
    pins_table_render(table, &text);
    *ret_err = store_pins_save(room->proxy->store, buf_span(&text), why);
    buf_done(&text);
    if (*ret_err != ERR_OK) {
        pins_table_unref(table);
        table = NULL;
    }
    return table;
}

// Makes a change and publishes the new table. Only one change runs at a time, so nobody else
// replaces the table.
static void change_do(struct pins_room *room, struct change *change)
{
    struct pins_table *before = live_pins(room->proxy);
    check(change->proxy == room->proxy && before != NULL);
    enum err err = ERR_OK;
    struct buf why;
    buf_init(&why, 512);
    bool ends = !change->pins || before->next_until_s != 0;
    change->reviews = (change->pins ? STORE_REVIEW_OTHERS : 0u) | (ends ? STORE_REVIEW_PINNED : 0u);
    struct pins_table *table = table_make(room, before, change, &err, &why);
    pthread_mutex_lock(&room->guarded.lock);
    room->guarded.retry_s = table != NULL ? 0 : (uint64_t)clock_wall_s() + RETRY_S;
    pthread_mutex_unlock(&room->guarded.lock);
    if (table != NULL) {
        stats_add(COUNTER_pins_listed, table->count - (uint64_t)before->count);
        store_set_pins(room->proxy->store, table->count > 0);
        live_publish(room->proxy, NULL, table, on_published, change);
    } else {
        change_end(change, err, buf_cstr(&why));
    }
    pins_table_unref(table);
    pins_table_unref(before);
    buf_done(&why);
}

static struct change *change_take(struct pins_room *room)
{
    pthread_mutex_lock(&room->guarded.lock);
    struct list_node *node = list_pop_front(&room->guarded.changes);
    pthread_mutex_unlock(&room->guarded.lock);
    return node != NULL ? container_of(node, struct change, node) : NULL;
}

static void on_work(struct blocking_job *job)
{
    struct pins_room *room = container_of(job, struct pins_room, job);
    struct change *change;
    while ((change = change_take(room)) != NULL) { // each waiting call is one change
        change_do(room, change);
    }
    job->err = ERR_OK;
}

static void on_worked(struct blocking_job *job);

static void job_run(struct pins_room *room, struct worker *w)
{
    room->job = (struct blocking_job){.lane = BLOCKING_STORE, .work = on_work, .done = on_worked};
    blocking_pool_run(w, &room->job);
}

static void on_worked(struct blocking_job *job)
{
    struct pins_room *room = container_of(job, struct pins_room, job);
    check(job == &room->job);
    struct change *change;
    while (job->err != ERR_OK && (change = change_take(room)) != NULL) {
        change_end(change, job->err, "the cache directory is busy");
    }
    pthread_mutex_lock(&room->guarded.lock);
    room->guarded.is_running = !list_empty(&room->guarded.changes);
    bool goes_on = room->guarded.is_running;
    pthread_mutex_unlock(&room->guarded.lock);
    if (goes_on) {
        job_run(room, worker_current());
    }
}

static void on_begin(struct worker *to, struct message *message)
{
    job_run(container_of(message, struct pins_room, message), to);
}

static void change_begin(struct pins_room *room, const struct change *from)
{
    struct change *change = malloc(sizeof(*change));
    check(change != NULL);
    *change = *from;
    change->proxy = room->proxy;
    check(!list_node_linked(&change->node) || from->node.next == NULL);
    list_node_init(&change->node);
    pthread_mutex_lock(&room->guarded.lock);
    list_push_back(&room->guarded.changes, &change->node);
    bool begins = !room->guarded.is_running;
    room->guarded.is_running = true;
    pthread_mutex_unlock(&room->guarded.lock);
    if (begins) {
        room->message = (struct message){.deliver = on_begin};
        mailbox_send_from_any_thread(ops_worker(room->proxy)->worker, &room->message);
    }
}

// --- the door ------------------------------------------------------------------------------------

void proxy_pin(struct proxy *proxy, bool pins, struct proxy_pin *items, unsigned count,
               void (*done)(void *ctx, enum err err, const char *why), void *ctx)
{
    change_begin(
        proxy->pins,
        &(struct change){.pins = pins, .items = items, .count = count, .done = done, .ctx = ctx});
}

void proxy_pins_tend(struct proxy *proxy)
{
    struct pins_room *room = proxy->pins;
    struct pins_table *table = live_pins(proxy);
    uint64_t until_s = table->next_until_s, now_s = (uint64_t)clock_wall_s();
    pins_table_unref(table);
    pthread_mutex_lock(&room->guarded.lock);
    bool has_ended = until_s != 0 && until_s <= now_s && now_s >= room->guarded.retry_s &&
                     !room->guarded.is_running;
    pthread_mutex_unlock(&room->guarded.lock);
    if (has_ended) {
        change_begin(room, &(struct change){.pins = false});
    }
}

void proxy_pins_list(struct proxy *proxy, void (*on_pin)(void *ctx, const struct proxy_pin *pin),
                     void *ctx)
{
    struct pins_table *table = live_pins(proxy);
    char text[PINS_NAME_MAX];
    for (unsigned i = 0; i < table->count; i++) {
        struct proxy_pin pin = {.until_s = table->rules[i].until_s};
        pin.key = pins_table_name(&table->rules[i], text, &pin.is_prefix);
        (void)span_split(&pin.key, '/', &pin.bucket);
        on_pin(ctx, &pin);
    }
    pins_table_unref(table);
}

// --- start and end -------------------------------------------------------------------------------

struct pins_table *pins_load(struct proxy *proxy)
{
    struct buf text;
    buf_init(&text, PROXY_PINS_BYTES_MAX);
    enum err err = store_pins_load(proxy->store, &text); // the store has logged ERR_CORRUPT
    struct pins_table *table = pins_table_parse(buf_span(&text));
    if (table == NULL) {
        store_pins_put_aside(proxy->store, "line");
        table = pins_table_parse((struct span){0});
    }
    buf_done(&text);
    if (err == ERR_OK && table->count > 0) {
        log_info("pins", "count=%u", table->count);
    }
    return table;
}

void pins_room_new(struct proxy *proxy)
{
    struct pins_room *room = calloc(1, sizeof(*room));
    check(room != NULL);
    proxy->pins = room;
    check(proxy->live.now != NULL);
    room->proxy = proxy;
    list_init(&room->guarded.changes);
    check(pthread_mutex_init(&room->guarded.lock, NULL) == 0);
    unsigned count = proxy->live.now->pins->count;
    stats_add(COUNTER_pins_listed, count);
    store_set_pins(proxy->store, count > 0);
    store_set_group_of(proxy->store, group_of, proxy);
    // Review the pinned runs, because after a crash some may not be in the list of pins.
    store_review(proxy->store, STORE_REVIEW_PINNED);
}

void pins_room_free(struct proxy *proxy)
{
    struct pins_room *room = proxy->pins;
    check(!room->guarded.is_running && list_empty(&room->guarded.changes));
    store_set_group_of(proxy->store, NULL, NULL);
    stats_sub(COUNTER_pins_listed, proxy->live.now->pins->count);
    check(pthread_mutex_destroy(&room->guarded.lock) == 0);
    free(room);
}

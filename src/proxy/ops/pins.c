// SPDX-License-Identifier: Apache-2.0
// Pins that are given, and taken back, while the process runs. A call changes the list as a whole
// or not at all: a thread of the blocking pool makes the next table, has the store keep it, and
// publishes it: each worker gets a reference by message. When all have it, what is held is reviewed
// (store_review()). Calls that come while one is under way wait for their turn; their number is
// bounded by who calls (ADMIN_CALLS_MAX).
//
// What a worker still reads or stores by the table of before counts by that until it is read, or
// reviewed, again.
#include "proxy/core/pins_table.h"
#include "proxy/ops/inspect_private.h"
#include "proxy/ops/ops.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

#define RETRY_S 60u // what has ended and could not be taken from the list

struct change {
    struct list_node node;
    bool pins;
    struct proxy_pin *items; // borrowed until done()
    unsigned count;
    void (*done)(void *ctx, enum err err, const char *why); // NULL: nobody asks
    void *ctx;
};

struct pins_room {
    struct proxy *proxy;
    struct message message; // both of the one job that there is
    struct blocking_job job;
    struct {
        pthread_mutex_t lock; // held for a moment; none is taken under it
        struct pins_table *now;
        struct live *live; // the rules that are in force
        struct list changes;
        bool is_running;
        uint64_t retry_s; // wall: nothing is taken from the list for its end until then
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

// --- workers -------------------------------------------------------------------------------------

struct publication {
    struct proxy *proxy;
    struct pins_table *table;
    struct change *change; // is over when every worker has the table
    unsigned reviews;
    atomic_uint left;
};

struct publication_message {
    struct message message;
    struct publication *publication;
};

static void on_published(struct worker *to, struct message *message)
{
    struct publication_message *m = container_of(message, struct publication_message, message);
    struct publication *p = m->publication;
    struct proxy_worker *pw = proxy_worker_of(to);
    free(m);
    pins_table_unref(pw->pins); // changes are published one after another: this one is newer
    pw->pins = pins_table_ref(p->table);
    if (atomic_fetch_sub(&p->left, 1) == 1) {
        store_review(p->proxy->store, p->reviews);
        pins_table_unref(p->table);
        change_end(p->change, ERR_OK, "");
        free(p);
    }
}

static void publish(struct proxy *proxy, struct pins_table *table, struct change *change,
                    unsigned reviews)
{
    struct publication *p = calloc(1, sizeof(*p));
    check(p != NULL);
    *p = (struct publication){
        .proxy = proxy, .table = pins_table_ref(table), .change = change, .reviews = reviews};
    unsigned count = proxy->worker_count; // the last message may be the end of all of this
    atomic_init(&p->left, count);
    for (unsigned i = 0; i < count; i++) {
        struct publication_message *m = calloc(1, sizeof(*m));
        check(m != NULL);
        m->message.deliver = on_published;
        m->publication = p;
        mailbox_send_from_any_thread(proxy->workers[i].worker, &m->message);
    }
}

// --- names that runs are held under --------------------------------------------------------------

// Of "realm|origin", "\001number" and "\0epoch" behind it: object_key.c.
static bool is_of_origin(struct span realm, const struct origin *origin)
{
    struct span name = span_from_cstr(origin_name(origin));
    for (size_t i = 0; i < realm.len; i++) {
        if (realm.ptr[i] == '\0' || realm.ptr[i] == '\001') {
            realm.len = i;
        }
    }
    return realm.len > name.len && realm.ptr[realm.len - name.len - 1] == '|' &&
           memcmp(realm.ptr + realm.len - name.len, name.ptr, name.len) == 0;
}

// Clients may know a bucket of an origin by several names: a pin by any of them counts.
static unsigned group_by_name(const struct live *live, const struct pins_table *table,
                              struct span bucket, struct span key, unsigned group)
{
    const struct proxy_rule *rule = rules_find(live, bucket, key);
    if (group == STORE_GROUP_PINS ||
        (rule->cache && !rule->pin && pins_table_has(table, bucket, key))) {
        return STORE_GROUP_PINS;
    }
    return rule->pin ? rule->group : group != STORE_PRIORITY_NORMAL ? group : rule->group;
}

static unsigned group_of(void *ctx, struct span realm, struct span bucket, struct span key)
{
    struct pins_room *room = ctx;
    const struct proxy *proxy = room->proxy;
    unsigned group = STORE_PRIORITY_NORMAL;
    bool is_listed = false;
    pthread_mutex_lock(&room->guarded.lock);
    const struct pins_table *table = room->guarded.now;
    const struct live *live = room->guarded.live;
    for (unsigned i = 0; i < live->settings.bucket_count; i++) {
        const struct proxy_bucket *b = &live->settings.buckets[i];
        is_listed |= span_equal_cstr(bucket, b->name);
        if (span_equal_cstr(bucket, b->origin_bucket) && is_of_origin(realm, b->origin)) {
            group = group_by_name(live, table, span_from_cstr(b->name), key, group);
        }
    }
    if (!is_listed && is_of_origin(realm, proxy->options.default_origin)) {
        group = group_by_name(live, table, bucket, key, group);
    }
    pthread_mutex_unlock(&room->guarded.lock);
    return group;
}

void pins_room_set(struct proxy *proxy, const struct proxy_settings *settings)
{
    struct pins_room *room = proxy->pins;
    struct live *live = live_new(settings);
    pthread_mutex_lock(&room->guarded.lock);
    struct live *former = room->guarded.live;
    room->guarded.live = live;
    pthread_mutex_unlock(&room->guarded.lock);
    live_unref(former);
}

// --- changes: on a thread of the pool ------------------------------------------------------------

// The table that they make, kept; NULL: *ret_err, and nothing has changed.
static struct pins_table *table_make(struct pins_room *room, struct change *change,
                                     enum err *ret_err, struct buf *why)
{
    struct pins_table *table =
        pins_table_change(room->guarded.now, change->pins, change->items, change->count,
                          (uint64_t)clock_wall_s()); // only this thread changes `now`
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

static void change_do(struct pins_room *room, struct change *change)
{
    struct pins_table *before = room->guarded.now;
    enum err err = ERR_OK;
    struct buf why;
    buf_init(&why, 512);
    bool ends = !change->pins || before->next_until_s != 0;
    unsigned reviews =
        (change->pins ? STORE_REVIEW_OTHERS : 0u) | (ends ? STORE_REVIEW_PINNED : 0u);
    struct pins_table *table = table_make(room, change, &err, &why);
    pthread_mutex_lock(&room->guarded.lock);
    room->guarded.now = table != NULL ? table : before;
    room->guarded.retry_s = table != NULL ? 0 : (uint64_t)clock_wall_s() + RETRY_S;
    pthread_mutex_unlock(&room->guarded.lock);
    if (table != NULL) {
        stats_add(COUNTER_pins_listed, table->count - (uint64_t)before->count);
        store_set_pins(room->proxy->store, table->count > 0);
        publish(room->proxy, table, change, reviews);
        pins_table_unref(before);
    } else {
        change_end(change, err, buf_cstr(&why));
    }
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
    while ((change = change_take(room)) != NULL) { // one for each caller that waits
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
    uint64_t now_s = (uint64_t)clock_wall_s();
    pthread_mutex_lock(&room->guarded.lock);
    uint64_t until_s = room->guarded.now->next_until_s;
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
    struct pins_room *room = proxy->pins;
    pthread_mutex_lock(&room->guarded.lock);
    struct pins_table *table = pins_table_ref(room->guarded.now);
    pthread_mutex_unlock(&room->guarded.lock);
    for (unsigned i = 0; i < table->count; i++) {
        const struct pins_line *line = &table->lines[i];
        struct proxy_pin pin = {
            .key = line->name, .is_prefix = line->is_prefix, .until_s = line->until_s};
        (void)span_split(&pin.key, '/', &pin.bucket);
        on_pin(ctx, &pin);
    }
    pins_table_unref(table);
}

// --- start and end -------------------------------------------------------------------------------

void pins_room_new(struct proxy *proxy)
{
    struct pins_room *room = calloc(1, sizeof(*room));
    struct buf text;
    check(room != NULL);
    buf_init(&text, PROXY_PINS_BYTES_MAX);
    proxy->pins = room;
    room->proxy = proxy;
    room->guarded.live = live_new(&proxy->options.settings);
    list_init(&room->guarded.changes);
    check(pthread_mutex_init(&room->guarded.lock, NULL) == 0);
    enum err err = store_pins_load(proxy->store, &text); // ERR_CORRUPT: the log has it
    room->guarded.now = pins_table_parse(buf_span(&text));
    if (room->guarded.now == NULL) {
        store_pins_put_aside(proxy->store, "line");
        room->guarded.now = pins_table_parse((struct span){0});
    }
    buf_done(&text);
    unsigned count = room->guarded.now->count;
    if (err == ERR_OK && count > 0) {
        log_info("pins", "count=%u", count);
    }
    for (unsigned i = 0; i < proxy->worker_count; i++) {
        proxy->workers[i].pins = pins_table_ref(room->guarded.now);
    }
    stats_add(COUNTER_pins_listed, count);
    store_set_pins(proxy->store, count > 0);
    store_set_group_of(proxy->store, group_of, room);
    store_review(proxy->store, STORE_REVIEW_PINNED); // a crash may have left what the list has not
}

void pins_room_free(struct proxy *proxy)
{
    struct pins_room *room = proxy->pins;
    store_set_group_of(proxy->store, NULL, NULL);
    for (unsigned i = 0; i < proxy->worker_count; i++) {
        pins_table_unref(proxy->workers[i].pins);
    }
    stats_sub(COUNTER_pins_listed, room->guarded.now->count);
    pins_table_unref(room->guarded.now);
    live_unref(room->guarded.live);
    check(pthread_mutex_destroy(&room->guarded.lock) == 0);
    free(room);
}

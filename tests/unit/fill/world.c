// SPDX-License-Identifier: Apache-2.0
// The door of loop, played: workers, mailboxes, timers, the clock; and the events of the world.
#include "world_private.h"

#include "proxy/get/get.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct world world;

unsigned rnd(unsigned below)
{
    world.random ^= world.random << 13;
    world.random ^= world.random >> 7;
    world.random ^= world.random << 17;
    return (unsigned)((world.random >> 11) % below);
}

uint64_t counter(enum counter c)
{
    return stats_sum(c) - world.counters[c];
}

// --- loop ----------------------------------------------------------------------------------------

void worker_slot_set(struct worker *w, enum worker_slot slot, void *value)
{
    w->slots[slot] = value;
}

void *worker_slot_get(const struct worker *w, enum worker_slot slot)
{
    return w->slots[slot];
}

unsigned loop_worker_count(const struct loop *loop)
{
    (void)loop;
    return WORLD_WORKERS;
}

struct worker *loop_worker(struct loop *loop, unsigned i)
{
    (void)loop;
    return &world.workers[i];
}

uint64_t worker_now_us(const struct worker *w)
{
    (void)w;
    return world.now_us;
}

void worker_task_init(struct task *task, void (*fn)(struct task *task))
{
    list_node_init(&task->node);
    task->fn = fn;
}

void worker_defer(struct worker *w, struct task *task)
{
    if (!list_node_linked(&task->node)) {
        list_push_back(&w->tasks, &task->node);
    }
}

void worker_task_cancel(struct task *task)
{
    list_remove(&task->node);
}

void timer_init(struct worker *w, struct timer *timer, void (*fn)(struct timer *timer))
{
    timer->fn = fn;
    timer->worker = w;
    timer->heap_slot = 0;
}

void timer_start(struct timer *timer, uint64_t delay_ms)
{
    (void)delay_ms;
    timer_stop(timer);
    check(world.timer_count < ARRAY_LEN(world.timers));
    world.timers[world.timer_count++] = timer;
    timer->heap_slot = world.timer_count;
}

void timer_stop(struct timer *timer)
{
    if (timer->heap_slot != 0) {
        struct timer *last = world.timers[--world.timer_count];
        world.timers[timer->heap_slot - 1] = last;
        last->heap_slot = timer->heap_slot;
        timer->heap_slot = 0;
    }
}

void timer_done(struct timer *timer)
{
    timer_stop(timer);
}

void worker_free_later(struct worker *w, void (*fn)(void *ptr), void *ptr)
{
    (void)w;
    check(world.dead_count < ARRAY_LEN(world.dead));
    world.dead[world.dead_count].fn = fn;
    world.dead[world.dead_count++].ptr = ptr;
}

void mail_push(struct queue *q, struct message *message)
{
    message->next = NULL;
    *q->last = message;
    q->last = &message->next;
}

static void mail_from_here(struct worker *to, struct message *message)
{
    unsigned from = world.current != NULL ? world.current->index : WORLD_WORKERS;
    mail_push(&world.mail[from][to->index], message);
}

void mailbox_send(struct worker *to, struct message *message)
{
    world.fill_deliver = message->deliver; // only the room's messages come this way
    mail_from_here(to, message);
}

void mailbox_send_from_any_thread(struct worker *to, struct message *message)
{
    mail_from_here(to, message);
}

// Deferred work, then the dead.
void turn_end(struct worker *w)
{
    struct list_node *node;
    while ((node = list_pop_front(&w->tasks)) != NULL) {
        struct task *task = container_of(node, struct task, node);
        task->fn(task);
    }
    for (unsigned i = 0; i < world.dead_count; i++) {
        world.dead[i].fn(world.dead[i].ptr);
    }
    world.dead_count = 0;
    world.current = NULL;
}

// --- names ---------------------------------------------------------------------------------------

struct hash128 hash_of(const struct world_key *key)
{
    return (struct hash128){0, (uint64_t)key->index * FILL_MAP_BUCKETS};
}

struct world_key *key_of_hash(struct hash128 hash)
{
    check(hash.lo / FILL_MAP_BUCKETS < WORLD_KEYS);
    return &world.keys[hash.lo / FILL_MAP_BUCKETS];
}

char letter_of(const struct world_key *key, int version)
{
    return (char)(version + WORLD_VERSIONS * (int)key->index);
}

bool all_bytes_are(struct span bytes, char letter)
{
    return bytes.len == 0 ||
           (bytes.ptr[0] == letter && memcmp(bytes.ptr, bytes.ptr + 1, bytes.len - 1) == 0);
}

void world_use_key(unsigned key)
{
    check(key < WORLD_KEYS);
    world.key = &world.keys[key];
}

void world_advance_ms(uint64_t ms)
{
    world.now_us += ms * 1000;
}

// --- events --------------------------------------------------------------------------------------

struct event {
    enum event_kind kind;
    int a, b;
    void *ptr;
};

struct events {
    struct event items[MAX_EVENTS];
    unsigned count;
    bool with_held;
};

static int message_type_of(struct message *message)
{
    if (message->deliver != world.fill_deliver) {
        return -1;
    }
    return (int)container_of(message, struct fill_message, message)->type;
}

static bool event_is_held(const struct event *e)
{
    for (unsigned i = 0; i < world.hold_count; i++) {
        const struct hold *h = &world.holds[i];
        bool same = h->kind == e->kind && (h->a < 0 || h->a == e->a) && (h->b < 0 || h->b == e->b);
        if (same &&
            (h->message < 0 || h->message == message_type_of(world.mail[e->a][e->b].first))) {
            return true;
        }
    }
    return false;
}

static void events_add(struct events *events, struct event e)
{
    if (events->with_held || !event_is_held(&e)) {
        check(events->count < MAX_EVENTS);
        events->items[events->count++] = e;
    }
}

static void events_find_clients(struct events *events)
{
    for (int i = 0; i < MAX_CLIENTS; i++) {
        struct client *c = &world.clients[i];
        if (c->used && c->wants) {
            events_add(events, (struct event){EVENT_PULL, i, 0, c});
        } else if (c->used && c->ended && !c->told) {
            events_add(events, (struct event){EVENT_DONE, i, 0, c});
        }
    }
}

static struct events *events_find(bool with_held)
{
    static struct events events;
    events.count = 0;
    events.with_held = with_held;
    for (int from = 0; from <= (int)WORLD_WORKERS; from++) {
        for (int to = 0; to < (int)WORLD_WORKERS; to++) {
            if (world.mail[from][to].first != NULL) {
                events_add(&events, (struct event){EVENT_MESSAGE, from, to, NULL});
            }
        }
    }
    for (int i = 0; i < MAX_FETCHES; i++) {
        struct fetch_play *p = &world.fetches[i];
        if (p->used && (!p->paused || p->cancelled)) {
            events_add(&events, (struct event){EVENT_ORIGIN, i, 0, p});
        }
    }
    int number = 0;
    list_for_each(node, &world.runs)
    {
        struct store_run *run = container_of(node, struct store_run, node);
        if (run->finishing || run->is_writing) {
            events_add(&events, (struct event){EVENT_WRITTEN, number, 0, run});
        }
        number++;
    }
    if (commit_wanted()) {
        events_add(&events, (struct event){EVENT_COMMIT, 0, 0, NULL});
    }
    for (int i = 0; i < (int)world.read_count; i++) {
        events_add(&events, (struct event){EVENT_READ, i, 0, NULL});
    }
    for (unsigned i = 0; i < world.timer_count; i++) {
        events_add(&events, (struct event){EVENT_TIMER, (int)i, 0, world.timers[i]});
    }
    events_find_clients(&events);
    return &events;
}

static void message_deliver(int from, int to)
{
    struct queue *q = &world.mail[from][to];
    struct message *message = q->first;
    q->first = message->next;
    if (q->first == NULL) {
        q->last = &q->first;
    }
    world.current = &world.workers[to];
    message->deliver(world.current, message);
    turn_end(&world.workers[to]);
}

static void timer_fire(struct timer *timer)
{
    struct worker *w = timer->worker;
    timer_stop(timer);
    world.current = w;
    timer->fn(timer);
    turn_end(w);
}

static void event_run(struct event e)
{
    world.now_us++; // no two events are at once
    switch (e.kind) {
    case EVENT_MESSAGE:
        message_deliver(e.a, e.b);
        break;
    case EVENT_ORIGIN:
        fetch_step(e.ptr);
        break;
    case EVENT_WRITTEN:
        run_step(e.ptr);
        break;
    case EVENT_COMMIT:
        commit();
        break;
    case EVENT_READ:
        read_complete((unsigned)e.a);
        break;
    case EVENT_TIMER:
        timer_fire(e.ptr);
        break;
    case EVENT_PULL:
        client_pull(e.ptr);
        break;
    case EVENT_DONE:
        client_tell_done(e.ptr);
        break;
    }
    judge_crash();
}

bool world_step(void)
{
    struct events *events = events_find(false);
    if (events->count == 0) {
        return false;
    }
    struct event *e = &events->items[rnd(events->count)];
    if (e->kind == EVENT_PULL && ((struct client *)e->ptr)->slow && rnd(50) != 0) {
        e = &events->items[rnd(events->count)];
    }
    event_run(*e);
    return true;
}

bool world_do(enum event_kind kind, int a, int b)
{
    struct events *events = events_find(true);
    for (unsigned i = 0; i < events->count; i++) {
        const struct event *e = &events->items[i];
        if (e->kind == kind && (a < 0 || e->a == a) && (b < 0 || e->b == b)) {
            event_run(*e);
            return true;
        }
    }
    return false;
}

static void hold_add(struct hold hold)
{
    check(world.hold_count < MAX_HOLDS);
    world.holds[world.hold_count++] = hold;
}

void world_hold(enum event_kind kind, int a, int b)
{
    hold_add((struct hold){kind, a, b, -1});
}

void world_hold_message(enum fill_message_type type, int from, int to)
{
    hold_add((struct hold){EVENT_MESSAGE, from, to, (int)type});
}

void world_release(void)
{
    world.hold_count = 0;
}

bool world_has_message(enum fill_message_type type)
{
    for (unsigned from = 0; from < WORLD_WORKERS; from++) {
        for (unsigned to = 0; to < WORLD_WORKERS; to++) {
            struct message *first = world.mail[from][to].first;
            if (first != NULL && message_type_of(first) == (int)type) {
                return true;
            }
        }
    }
    return false;
}

bool world_has_floor(unsigned worker)
{
    return world.pw[worker].fill->floors.count > 0;
}

void world_deliver_all(void)
{
    for (unsigned bound = 0; bound < 100000; bound++) {
        struct events *events = events_find(false);
        if (events->count == 0 || events->items[0].kind != EVENT_MESSAGE) {
            return;
        }
        event_run(events->items[0]);
    }
    cr_assert_fail("messages without end");
}

void world_run(void)
{
    unsigned bound = 300000;
    while (world_step()) {
        cr_assert(--bound > 0, "endless: seed %llu", (unsigned long long)world.options.seed);
    }
}

// --- begin and end -------------------------------------------------------------------------------

static void on_invalidated(void *ctx, struct worker *w, const struct object_key *key)
{
    (void)ctx, (void)w, (void)key;
}

static void begin_workers(void)
{
    world.proxy.worker_count = WORLD_WORKERS;
    world.proxy.workers = world.pw;
    for (unsigned from = 0; from <= WORLD_WORKERS; from++) {
        for (unsigned to = 0; to < WORLD_WORKERS; to++) {
            world.mail[from][to].last = &world.mail[from][to].first;
        }
    }
    for (unsigned i = 0; i < WORLD_WORKERS; i++) {
        world.workers[i].index = i;
        list_init(&world.workers[i].tasks);
        struct proxy_worker *pw = &world.pw[i];
        pw->proxy = &world.proxy;
        pw->live = &world.live;
        pw->worker = &world.workers[i];
        pw->index = i;
        worker_slot_set(pw->worker, WORKER_SLOT_PROXY, pw);
    }
    struct fill_options options = {.stripe_bytes = WORLD_STRIPE, .on_invalidated = on_invalidated};
    world.live.settings.obey_no_cache = true;
    world.room = fill_room_new(&options);
    for (unsigned i = 0; i < WORLD_WORKERS; i++) {
        world.pw[i].fill = fill_worker_of(&world.workers[i]);
    }
}

void world_begin(const struct world_options *options)
{
    memset(&world, 0, sizeof(world));
    world.options = *options;
    world.random = options->seed * 0x9E3779B97F4A7C15u + 0x1234567u;
    world.now_us = 1000000000000;
    world.refuse = options->refuse_store;
    world.is_noted = options->noted;
    uint64_t size = options->size_bytes != 0 ? options->size_bytes : WORLD_SIZE;
    world.next_size_bytes = size;
    world.rule = (struct proxy_rule){.match = "**",
                                     .cache = true,
                                     .freshness = options->strict ? PROXY_FRESHNESS_STRICT
                                                  : options->ttl  ? PROXY_FRESHNESS_TTL
                                                                  : PROXY_FRESHNESS_IMMUTABLE,
                                     .ttl_ms = 60000,
                                     .stale_if_error_ms = 3600000,
                                     .block_size_bytes = options->block_size_bytes != 0
                                                             ? options->block_size_bytes
                                                             : WORLD_BLOCK,
                                     .readahead_bytes = options->readahead ? WORLD_SIZE : 0};
    for (unsigned i = 0; i < WORLD_KEYS; i++) {
        world.keys[i].index = i;
        world.keys[i].version = 1;
        world.keys[i].size_bytes[1] = size;
    }
    world.key = &world.keys[0];
    list_init(&world.segments);
    list_init(&world.runs);
    chunk_budget_init(options->buffer_bytes != 0 ? options->buffer_bytes : 256u << 20);
    begin_workers();
    for (unsigned i = 0; i < COUNTER_COUNT_; i++) {
        world.counters[i] = stats_sum((enum counter)i);
    }
}

// For a person who examines a failed seed.
static void describe_rest(void)
{
    for (int i = 0; i < MAX_CLIENTS; i++) {
        const struct client *c = &world.clients[i];
        if (c->used && !c->told) {
            fprintf(stderr, "client %d of key %u: status %u, %llu of %llu bytes\n", i,
                    c->key->index, c->status, (unsigned long long)c->received,
                    (unsigned long long)c->length);
        }
    }
    for (int i = 0; i < MAX_FETCHES; i++) {
        const struct fetch_play *p = &world.fetches[i];
        if (p->used) {
            fprintf(stderr, "fetch %d of key %u: byte %llu of %llu%s\n", i, p->key->index,
                    (unsigned long long)p->next, (unsigned long long)p->end,
                    p->paused ? ", paused" : "");
        }
    }
    fprintf(stderr, "payload memory: %llu of %llu\n", (unsigned long long)chunk_budget_used_bytes(),
            (unsigned long long)chunk_budget_max_bytes());
}

void world_end(void)
{
    world_release();
    world_run();
    unsigned long long seed = (unsigned long long)world.options.seed;
    for (int i = 0; i < MAX_CLIENTS; i++) {
        if (world.clients[i].used && !world.clients[i].told) {
            describe_rest();
            break;
        }
    }
    for (int i = 0; i < MAX_CLIENTS; i++) {
        cr_assert(!world.clients[i].used || world.clients[i].told,
                  "client %d never ended: seed %llu", i, seed);
    }
    for (int i = 0; i < MAX_TELLERS; i++) {
        cr_assert(!world.tellers[i].used || world.tellers[i].answered,
                  "teller %d never ended: seed %llu", i, seed);
    }
    for (int i = 0; i < MAX_WRITERS; i++) {
        cr_assert(!world.writers[i].used || world.writers[i].ready,
                  "writer %d never began: seed %llu", i, seed);
        cr_assert(!world.writers[i].wrote || world.writers[i].replied,
                  "writer %d never ended: seed %llu", i, seed);
    }
    for (unsigned i = 0; i < WORLD_WORKERS; i++) {
        cr_assert(world.pw[i].fill->fills.count == 0, "a fill is left: seed %llu", seed);
        cr_assert(world.pw[i].fill->homes.count == 0, "a home is left: seed %llu", seed);
        cr_assert(world.pw[i].fill->floors.count == 0, "a floor is left: seed %llu", seed);
    }
    for (unsigned i = 0; i < WORLD_WORKERS; i++) {
        readahead_free(world.pw[i].readahead);
    }
    store_end();
    for (int i = 0; i < MAX_WRITERS; i++) {
        bool is_unlisted = world.writers[i].used && world.writers[i].open == NULL;
        world.epoch_holds -= is_unlisted && !world.writers[i].wrote ? 1 : 0;
        open_keys_close(world.writers[i].open);
    }
    fill_room_free(world.room);
    cr_assert(world.epoch_holds == 0, "a hold is left: seed %llu", seed);
    cr_assert(world.longs_promised == 0, "a promise is left: seed %llu", seed);
    cr_assert(world.reads_late == 0, "a late read is left: seed %llu", seed);
    cr_assert(world.objects == 0, "a version is left: seed %llu", seed);
    cr_assert(chunk_budget_used_bytes() == 0, "payload memory is left: seed %llu", seed);
    cr_assert(counter(COUNTER_fills_inflight) == 0, "seed %llu", seed);
    cr_assert(counter(COUNTER_coalesced_waiters) == 0, "seed %llu", seed);
}

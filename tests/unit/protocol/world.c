// SPDX-License-Identifier: Apache-2.0
// The doors of loop, store, origin and http, played in memory. See world.h.
#include "world.h"

#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CLIENTS 64
#define MAX_FETCHES 256
#define MAX_WRITERS 16
#define MAX_EVENTS 1024

struct worker {
    unsigned index;
    void *slot;
    struct list tasks;
};

struct queue {
    struct message *first, **last;
};

struct segment { // one run
    struct list_node node;
    bool dying, indexed;
    unsigned pins, holds;
    uint64_t first_block;
    uint32_t block_count;
    int version;
    uint64_t generation;
};

struct store_run {
    struct list_node node;
    int version;
    uint64_t first_block;
    uint32_t blocks;
    struct chunk *chunks[64];
    unsigned chunk_count;
    bool finishing;
    void (*done)(void *ctx, enum err err, const struct store_place *place);
    void *ctx;
    struct worker *worker;
};

struct fetch_play {
    struct origin_fetch *f;
    struct worker *worker;
    bool used, cancelled, paused, answered;
    int version;
    uint64_t next, end;
    bool will_reset;
    struct arena *arena;
};

struct client {
    bool used;
    struct worker *worker;
    struct http_request http;
    struct arena *arena;
    struct request *r;
    struct http_exchange *x;
    enum client_outcome outcome;
    enum err err;
    bool replied, ended, told, has_source, wants;
    unsigned status;
    int version, floor_version;
    uint64_t length, received, first;
    char range[64];
};

struct http_exchange {
    int client;
    struct http_user *user;
    struct http_source *source;
    struct http_request *request;
};

struct writer {
    bool used, ready, wrote, replied;
    struct key_write kw;
    int version;
};

static struct {
    struct world_options options;
    uint64_t random;
    struct proxy proxy;
    struct proxy_worker pw[WORLD_WORKERS];
    struct worker workers[WORLD_WORKERS];
    struct worker *current;
    struct queue mail[WORLD_WORKERS + 1][WORLD_WORKERS];
    struct timer *timers[64];
    unsigned timer_count;
    struct {
        void (*fn)(void *);
        void *ptr;
    } dead[4096];
    unsigned dead_count;
    struct proxy_rule rule;
    struct origin *origin;
    // origin
    int version;
    int acked_version;
    struct fetch_play fetches[MAX_FETCHES];
    unsigned sent[64][WORLD_BLOCKS];
    unsigned requests;
    enum err fail_next;
    bool reset_next;
    // store
    bool refuse;
    bool fail_commit;
    uint64_t generation;
    bool found;
    uint64_t record_generation;
    int record_version;
    struct list segments;
    struct list runs;
    struct store_post *posts[256];
    unsigned post_count;
    struct store_read *reads[64];
    unsigned read_count;
    unsigned objects;
    // clients
    struct client clients[MAX_CLIENTS];
    struct writer writers[MAX_WRITERS];
    uint64_t counters[COUNTER_COUNT_];
    uint64_t chunks_before;
} world;

static unsigned rnd(unsigned below)
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

static struct object_key *key_of(struct worker *w);

// --- loop
// ------------------------------------------------------------------------------------------------------------

void worker_slot_set(struct worker *w, enum worker_slot slot, void *value)
{
    (void)slot;
    w->slot = value;
}

void *worker_slot_get(const struct worker *w, enum worker_slot slot)
{
    (void)slot;
    return w->slot;
}

uint64_t worker_now_us(const struct worker *w)
{
    (void)w;
    return 1;
}

void task_init(struct task *task, void (*fn)(struct task *task))
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

void task_cancel(struct task *task)
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

static void mail_push(struct queue *q, struct message *message)
{
    message->next = NULL;
    *q->last = message;
    q->last = &message->next;
}

void mailbox_send(struct worker *to, struct message *message)
{
    unsigned from = world.current != NULL ? world.current->index : WORLD_WORKERS;
    mail_push(&world.mail[from][to->index], message);
}

void mailbox_send_from_any_thread(struct worker *to, struct message *message)
{
    mailbox_send(to, message);
}

// What follows every event on a worker: deferred work, then the dead.
static void pass_end(struct worker *w)
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

// --- store
// ---------------------------------------------------------------------------------------------------------------

struct hash128 store_hash(const struct store *store, struct span a, struct span b, struct span c)
{
    (void)store;
    struct span pieces[3] = {a, b, c};
    return hash128_of(pieces, 3, 7);
}

uint64_t store_generation_next(struct store *store)
{
    (void)store;
    return ++world.generation;
}

static int version_of(struct span etag)
{
    uint64_t v = 0;
    struct span digits = {etag.ptr + 2, etag.len - 3};
    check(etag.len > 3 && span_to_u64(digits, &v));
    return (int)v;
}

static struct span etag_of(int version, char *buf, size_t size)
{
    int n = snprintf(buf, size, "\"v%d\"", version);
    return (struct span){buf, (size_t)n};
}

struct store_object *store_object_new(struct hash128 hash, struct span realm, struct span bucket,
                                      struct span key, struct span etag, struct span version_id,
                                      struct span headers, uint64_t size_bytes,
                                      uint32_t block_size_bytes, time_t last_modified)
{
    (void)realm, (void)bucket, (void)key, (void)version_id, (void)headers;
    struct store_object *o = calloc(1, sizeof(*o) + etag.len);
    check(o != NULL);
    atomic_init(&o->refs, 1);
    o->hash = hash;
    o->size_bytes = size_bytes;
    o->block_size_bytes = block_size_bytes;
    o->last_modified = last_modified;
    memcpy((char *)(o + 1), etag.ptr, etag.len);
    o->etag = (struct span){(char *)(o + 1), etag.len};
    world.objects++;
    return o;
}

struct store_object *store_object_ref(struct store_object *o)
{
    atomic_fetch_add(&o->refs, 1);
    return o;
}

void store_object_unref(struct store_object *o)
{
    if (o != NULL && atomic_fetch_sub(&o->refs, 1) == 1) {
        world.objects--;
        free(o);
    }
}

struct store_object *store_object_with_generation(const struct store_object *o, uint64_t generation)
{
    struct span none = {0};
    struct store_object *copy =
        store_object_new(o->hash, none, none, none, o->etag, none, none, o->size_bytes,
                         o->block_size_bytes, o->last_modified);
    copy->generation = generation;
    return copy;
}

uint64_t store_object_block_count(const struct store_object *o)
{
    return max_u64((o->size_bytes + o->block_size_bytes - 1) / o->block_size_bytes, 1);
}

static void segment_settle(struct segment *s)
{
    if (s->dying && s->pins == 0 && !s->indexed) {
        list_remove(&s->node);
        free(s);
    }
}

bool store_place_pin(struct store_place *place)
{
    if (place->segment->dying) {
        return false;
    }
    place->segment->pins++;
    return true;
}

void store_place_unpin(struct store_place *place)
{
    if (place->segment != NULL) {
        check(place->segment->pins > 0);
        place->segment->pins--;
        segment_settle(place->segment);
        place->segment = NULL;
    }
}

void store_place_unhold(struct store_place *place)
{
    check(place->segment->holds > 0);
    place->segment->holds--;
    if (!place->segment->indexed && place->segment->holds == 0) {
        place->segment->dying = true; // dropped: nobody will find it again
    }
}

static struct store_place place_of(struct segment *s)
{
    uint64_t first = s->first_block * WORLD_BLOCK;
    return (struct store_place){.segment = s,
                                .payload_len = (uint32_t)(min_u64(
                                    (uint64_t)s->block_count * WORLD_BLOCK, WORLD_SIZE - first)),
                                .generation = s->generation,
                                .first_block = s->first_block,
                                .block_count = s->block_count,
                                .block_size_bytes = WORLD_BLOCK};
}

void store_lookup(struct worker *w, struct store *store, struct hash128 hash, uint64_t first_byte,
                  uint64_t end_byte, uint64_t min_generation, struct store_view *v)
{
    (void)w, (void)store, (void)hash;
    v->found = world.found && world.record_generation >= min_generation;
    v->place_count = 0;
    v->any.segment = NULL;
    if (!v->found) {
        return;
    }
    char text[32];
    struct span etag = etag_of(world.record_version, text, sizeof(text));
    v->generation = world.record_generation;
    v->size_bytes = WORLD_SIZE;
    v->block_size_bytes = WORLD_BLOCK;
    v->etag_hash = hash64(etag.ptr, etag.len, 0);
    v->age_ms = 0;
    v->rebuilt = false;
    for (uint64_t b = 0; b < WORLD_BLOCKS; b++) {
        list_for_each(node, &world.segments)
        {
            struct segment *s = container_of(node, struct segment, node);
            bool in_window = s->first_block * WORLD_BLOCK < end_byte &&
                             (s->first_block + s->block_count) * WORLD_BLOCK > first_byte;
            if (s->indexed && s->generation == v->generation && s->first_block == b) {
                struct store_place place = place_of(s);
                if (store_place_pin(&place)) {
                    if (in_window) {
                        v->places[v->place_count++] = place;
                    } else if (v->any.segment == NULL) {
                        v->any = place;
                    } else {
                        store_place_unpin(&place);
                    }
                }
            }
        }
    }
    if (v->place_count > 0) {
        store_place_unpin(&v->any);
    }
}

void store_view_done(struct store_view *v)
{
    for (unsigned i = 0; i < v->place_count; i++) {
        store_place_unpin(&v->places[i]);
    }
    v->place_count = 0;
    store_place_unpin(&v->any);
}

enum err store_object_get(struct worker *w, struct store *store, const struct store_place *place,
                          struct hash128 hash, struct span realm, struct span bucket,
                          struct span key, struct store_object **ret_object)
{
    (void)w, (void)store;
    char text[32];
    *ret_object = store_object_new(hash, realm, bucket, key,
                                   etag_of(place->segment->version, text, sizeof(text)),
                                   (struct span){0}, (struct span){0}, WORLD_SIZE, WORLD_BLOCK, 0);
    return ERR_OK;
}

enum err store_read_small(struct worker *w, struct store *store, const struct store_place *place,
                          struct hash128 hash, struct span realm, struct span bucket,
                          struct span key, struct store_object **ret_object,
                          struct chunk **ret_chunk, struct span *ret_payload)
{
    (void)w, (void)store, (void)place, (void)hash, (void)realm, (void)bucket, (void)key;
    (void)ret_object, (void)ret_chunk, (void)ret_payload;
    return ERR_AGAIN;
}

bool store_range_ready(struct worker *w, struct store *store, const struct store_place *place,
                       uint64_t first_byte, uint64_t len, struct file_range *ret_range)
{
    (void)w, (void)store, (void)place, (void)first_byte, (void)len, (void)ret_range;
    return false;
}

void store_read_start(struct worker *w, struct store_read *read)
{
    read->worker = w;
    check(world.read_count < ARRAY_LEN(world.reads));
    world.reads[world.read_count++] = read;
}

void store_read_cancel(struct store_read *read)
{
    (void)read;
}

static void read_complete(unsigned i)
{
    struct store_read *read = world.reads[i];
    world.reads[i] = world.reads[--world.read_count];
    world.current = read->worker;
    check(read->place.segment->pins > 0);
    uint64_t left = read->len;
    while (left > 0) {
        struct chunk *chunk = chunk_new_forced();
        size_t n = (size_t)min_u64(left, CHUNK_SIZE);
        memset(chunk->data, read->place.segment->version, n);
        read->chunks[read->span_count] = chunk;
        read->spans[read->span_count++] = (struct span){chunk->data, n};
        left -= n;
    }
    struct worker *w = read->worker;
    read->done(read);
    pass_end(w);
}

enum err store_run_begin(struct worker *w, struct store *store, struct store_object *object,
                         uint64_t first_block, uint32_t block_count, struct store_run **ret_run)
{
    (void)store, (void)block_count;
    if (world.refuse) {
        return ERR_DISK_FULL;
    }
    struct store_run *run = calloc(1, sizeof(*run));
    check(run != NULL);
    list_node_init(&run->node);
    list_push_back(&world.runs, &run->node);
    run->version = version_of(object->etag);
    run->first_block = first_block;
    run->worker = w;
    *ret_run = run;
    return ERR_OK;
}

void store_run_append(struct store_run *run, struct chunk *chunk)
{
    for (unsigned i = 0; i < chunk->len; i++) {
        cr_assert(chunk->data[i] == (char)run->version, "a stored byte is of another version");
    }
    run->chunks[run->chunk_count++] = chunk_ref(chunk);
}

static void run_free(struct store_run *run)
{
    for (unsigned i = 0; i < run->chunk_count; i++) {
        chunk_unref(run->chunks[i]);
    }
    list_remove(&run->node);
    free(run);
}

void store_run_finish(struct store_run *run, uint32_t block_count,
                      void (*done)(void *ctx, enum err err, const struct store_place *place),
                      void *ctx)
{
    check(block_count > 0 && run->chunk_count >= block_count);
    run->blocks = block_count;
    run->done = done;
    run->ctx = ctx;
    run->finishing = true;
}

void store_run_abort(struct store_run *run)
{
    run_free(run);
}

static void run_written(struct store_run *run)
{
    struct segment *s = calloc(1, sizeof(*s));
    check(s != NULL);
    list_node_init(&s->node);
    list_push_back(&world.segments, &s->node);
    s->first_block = run->first_block;
    s->block_count = run->blocks;
    s->version = run->version;
    s->pins = s->holds = 1;
    struct store_place place = place_of(s);
    world.current = run->worker;
    run->done(run->ctx, ERR_OK, &place);
    struct worker *w = run->worker;
    run_free(run);
    pass_end(w);
}

void store_post(struct worker *w, struct store_post *post)
{
    post->worker = w;
    check(world.post_count < ARRAY_LEN(world.posts));
    world.posts[world.post_count++] = post;
}

void store_renew(struct worker *w, struct store *store, const struct store_renewal *renewals,
                 size_t count, uint64_t began_us)
{
    (void)w, (void)store, (void)renewals, (void)count, (void)began_us;
}

static void unindex(struct segment *s)
{
    s->indexed = false;
    s->dying = true;
    segment_settle(s);
}

// A record lives as long as one of its blocks.
static void record_settle(void)
{
    bool any = false;
    list_for_each(node, &world.segments)
    {
        struct segment *s = container_of(node, struct segment, node);
        any |= s->indexed && s->generation == world.record_generation;
    }
    world.found = world.found && any;
}

static void index_delete_below(uint64_t floor)
{
    list_for_each(node, &world.segments)
    {
        struct segment *s = container_of(node, struct segment, node);
        if (s->indexed && s->generation < floor) {
            unindex(s);
        }
    }
    record_settle();
}

static enum err index_put(struct store_post *post)
{
    if (world.found && post->object->generation < world.record_generation) {
        return ERR_CANCELLED;
    }
    struct segment *s = post->place.segment;
    cr_assert(s->pins > 0 && !s->dying, "the index names a freed segment");
    s->indexed = true;
    s->generation = post->object->generation;
    cr_assert(!(world.found && world.record_generation == s->generation &&
                world.record_version != s->version),
              "one generation names two versions");
    world.found = true;
    world.record_generation = s->generation;
    world.record_version = s->version;
    index_delete_below(s->generation);
    return ERR_OK;
}

// done() runs on the posting worker, by a message.
struct post_message {
    struct message message;
    struct store_post *post;
};

static void on_post_message(struct worker *to, struct message *message)
{
    (void)to;
    struct post_message *m = container_of(message, struct post_message, message);
    struct store_post *post = m->post;
    free(m);
    post->done(post);
}

static void commit(void)
{
    bool fail = world.fail_commit;
    world.fail_commit = false;
    for (unsigned i = 0; i < world.post_count; i++) {
        struct store_post *post = world.posts[i];
        post->err = ERR_OK;
        if (fail && post->kind == STORE_POST_PUT) {
            post->err = ERR_IO;
        } else if (post->kind == STORE_POST_PUT) {
            post->err = index_put(post);
        } else {
            index_delete_below(post->generation_floor);
        }
        struct post_message *m = calloc(1, sizeof(*m));
        check(m != NULL);
        m->message.deliver = on_post_message;
        m->post = post;
        mail_push(&world.mail[WORLD_WORKERS][post->worker->index], &m->message);
    }
    world.post_count = 0;
}

void store_evict(unsigned block)
{
    list_for_each(node, &world.segments)
    {
        struct segment *s = container_of(node, struct segment, node);
        if (s->indexed && s->holds == 0 && block >= s->first_block &&
            block < s->first_block + s->block_count) {
            s->dying = true; // the delete follows with the next commit; here at once or later is
                             // the same to readers
            s->pins++;
            unindex(s);
            struct store_place place = {.segment = s};
            store_place_unpin(&place);
            break;
        }
    }
    record_settle();
}

bool store_visible(unsigned block)
{
    list_for_each(node, &world.segments)
    {
        struct segment *s = container_of(node, struct segment, node);
        if (s->indexed && block >= s->first_block && block < s->first_block + s->block_count) {
            return true;
        }
    }
    return false;
}

int store_visible_version(void)
{
    return world.found ? world.record_version : 0;
}

void store_fail_next_commit(void)
{
    world.fail_commit = true;
}

void store_refuse(bool refuse)
{
    world.refuse = refuse;
}

// --- origin
// ------------------------------------------------------------------------------------------------------------------

const char *origin_name(const struct origin *origin)
{
    (void)origin;
    return "o";
}

const char *origin_server_header(const struct origin *origin)
{
    (void)origin;
    return "S";
}

bool origin_is_directory(const struct origin *origin)
{
    (void)origin;
    return false;
}

void origin_fetch_start(struct worker *w, struct origin *origin, struct origin_fetch *f)
{
    (void)origin;
    for (unsigned i = 0; i < MAX_FETCHES; i++) {
        struct fetch_play *p = &world.fetches[i];
        if (!p->used) {
            *p = (struct fetch_play){.used = true, .f = f, .worker = w};
            f->driver = p;
            world.requests++;
            return;
        }
    }
    check(false);
}

void origin_fetch_pause(struct origin_fetch *f)
{
    ((struct fetch_play *)f->driver)->paused = true;
}

void origin_fetch_resume(struct origin_fetch *f)
{
    ((struct fetch_play *)f->driver)->paused = false;
}

void origin_fetch_cancel(struct origin_fetch *f)
{
    ((struct fetch_play *)f->driver)->cancelled = true;
}

static void fetch_end(struct fetch_play *p, enum err err)
{
    struct origin_fetch *f = p->f;
    struct worker *w = p->worker;
    struct arena *arena = p->arena;
    p->used = false;
    world.current = w;
    f->on_end(f, err);
    arena_free(arena);
    pass_end(w);
}

// The origin looks at the request: this is the moment that decides its version.
static void fetch_answer(struct fetch_play *p)
{
    struct origin_fetch *f = p->f;
    char text[32];
    struct span etag = etag_of(world.version, text, sizeof(text));
    enum err fail = world.fail_next;
    world.fail_next = ERR_OK;
    if (fail == ERR_OK && rnd(100) < world.options.fail_percent) {
        fail = ERR_ORIGIN_5XX;
    }
    if (fail != ERR_OK) {
        fetch_end(p, fail);
        return;
    }
    if (f->if_match.len > 0 && !span_equal(f->if_match, etag)) {
        fetch_end(p, ERR_ORIGIN_CHANGED);
        return;
    }
    if (f->if_none_match.len > 0 && span_equal(f->if_none_match, etag)) {
        fetch_end(p, ERR_NOT_MODIFIED);
        return;
    }
    p->answered = true;
    p->version = world.version;
    p->arena = arena_new(1 << 16);
    p->will_reset = world.reset_next || rnd(100) < world.options.reset_percent;
    world.reset_next = false;
    p->next = f->has_range ? f->first : 0;
    p->end = f->has_range ? min_u64(f->last + 1, WORLD_SIZE) : WORLD_SIZE;
    f->status = 206;
    f->size_bytes = WORLD_SIZE;
    f->body_first = p->next;
    f->body_len = p->end - p->next;
    f->etag = arena_copy(p->arena, etag);
    f->storable = true;
    world.current = p->worker;
    enum err err = f->on_head(f);
    pass_end(p->worker);
    if (err != ERR_OK || f->head) {
        if (p->used) {
            fetch_end(p, err);
        }
    }
}

static void fetch_step(struct fetch_play *p)
{
    if (p->cancelled) {
        fetch_end(p, ERR_CANCELLED);
        return;
    }
    if (!p->answered) {
        fetch_answer(p);
        return;
    }
    if (p->next == p->end) {
        fetch_end(p, ERR_OK);
        return;
    }
    if (p->will_reset && p->next > p->f->body_first) {
        fetch_end(p, ERR_ORIGIN_RESET);
        return;
    }
    static char bytes[WORLD_BLOCK];
    size_t n = (size_t)min_u64(p->end - p->next, 20000 + rnd(40000));
    memset(bytes, p->version, n);
    world.current = p->worker;
    for (uint64_t b = p->next / WORLD_BLOCK; b < WORLD_BLOCKS; b++) {
        uint64_t block_end = min_u64((b + 1) * WORLD_BLOCK, WORLD_SIZE);
        world.sent[p->version][b] += block_end > p->next && block_end <= p->next + n;
    }
    p->next += n;
    enum err err = p->f->on_body(p->f, (struct span){bytes, n});
    pass_end(p->worker);
    if (err != ERR_OK && p->used) {
        fetch_end(p, err);
    }
}

int origin_version(void)
{
    return world.version;
}

void origin_overwrite(void)
{
    world.version++;
    check(world.version < 64);
}

unsigned origin_sent(int version, unsigned block)
{
    return world.sent[version][block];
}

unsigned origin_requests(void)
{
    return world.requests;
}

void origin_fail_next(enum err err)
{
    world.fail_next = err;
}

void origin_reset_next(void)
{
    world.reset_next = true;
}

// --- http
// ----------------------------------------------------------------------------------------------------------------------

bool http_exchange_can_sendfile(const struct http_exchange *x)
{
    (void)x;
    return false;
}

bool http_reply_head_sent(const struct http_exchange *x)
{
    return world.clients[x->client].replied;
}

void http_reply_ready(struct http_exchange *x)
{
    struct client *c = &world.clients[x->client];
    c->wants = c->replied && !c->ended;
}

static void client_end(struct client *c, enum client_outcome outcome)
{
    check(!c->ended);
    c->ended = true;
    c->wants = false;
    c->outcome = outcome;
}

static int reply_version(const struct request *r);

void http_reply_start(struct http_exchange *x, const struct http_reply *reply)
{
    struct client *c = &world.clients[x->client];
    check(!c->replied);
    c->replied = true;
    c->status = reply->status;
    c->length = reply->length;
    c->has_source = reply->source != NULL;
    x->source = reply->source;
    if (reply->status == 200 || reply->status == 206) {
        c->version = reply_version(c->r);
        cr_assert(c->version >= c->floor_version, "stale read after a write's reply");
        c->wants = true;
    } else {
        client_end(c, CLIENT_ERROR);
    }
}

static void client_pull(struct client *c)
{
    c->wants = false;
    world.current = c->worker;
    if (c->x->source == NULL) {
        client_end(c, CLIENT_COMPLETE);
        pass_end(c->worker);
        return;
    }
    struct http_slice slice = {0};
    enum http_pull pulled = c->x->source->pull(c->x->source, &slice);
    if (pulled == HTTP_PULL_SLICE) {
        for (size_t i = 0; i < slice.bytes.len; i++) {
            cr_assert(slice.bytes.ptr[i] == (char)c->version,
                      "a byte is of another version than the ETag");
        }
        c->received += slice.bytes.len;
        cr_assert(c->received <= c->length);
        if (slice.release != NULL) {
            slice.release(slice.release_ctx);
        }
        c->wants = true;
    } else if (pulled == HTTP_PULL_END) {
        cr_assert(c->received == c->length, "a clean end before the announced length");
        client_end(c, CLIENT_COMPLETE);
    } else if (pulled == HTTP_PULL_CUT) {
        client_end(c, CLIENT_CUT);
    }
    pass_end(c->worker);
}

// --- the request around serve_get.c
// ------------------------------------------------------------------------------------------------

typedef enum step_result step_fn(struct request *r);

void request_go(struct request *r)
{
    static step_fn *const steps[] = {
        [REQUEST_GET_LOOKUP] = serve_get_step_lookup,
        [REQUEST_GET_DESCRIBE] = serve_get_step_describe,
        [REQUEST_GET_FRESHNESS] = serve_get_step_freshness,
        [REQUEST_GET_CHECKED] = serve_get_step_checked,
        [REQUEST_GET_FIRST] = serve_get_step_first,
        [REQUEST_GET_REPLY] = serve_get_step_reply,
    };
    if (r->going || r->ended) {
        return;
    }
    r->going = true;
    enum step_result result = STEP_AGAIN;
    for (unsigned i = 0; result == STEP_AGAIN; i++) {
        check(i < 64 && r->step < ARRAY_LEN(steps) && steps[r->step] != NULL);
        result = steps[r->step](r);
    }
    r->going = false;
}

void request_go_to(struct request *r, enum request_step step)
{
    r->step = step;
    request_go(r);
}

enum step_result request_fail(struct request *r, enum err err, struct s3_error_detail *detail)
{
    (void)detail;
    struct client *c = &world.clients[r->x->client];
    c->err = err;
    struct http_reply reply = {.status = error_row(err)->status};
    r->step = REQUEST_WAIT;
    http_reply_start(r->x, &reply);
    return STEP_DONE;
}

void request_header(struct request *r, struct headers *headers, const char *name, struct span value)
{
    (void)r, (void)headers, (void)name, (void)value;
}

void request_common_headers(struct request *r, struct headers *headers)
{
    (void)r, (void)headers;
}

struct object_key *object_key_ref(struct object_key *key)
{
    atomic_fetch_add(&key->refs, 1);
    return key;
}

void object_key_unref(struct object_key *key)
{
    if (key != NULL && atomic_fetch_sub(&key->refs, 1) == 1) {
        free(key);
    }
}

struct proxy_worker *object_key_owner(const struct proxy_worker *pw, const struct object_key *key,
                                      uint64_t first_byte)
{
    (void)key;
    return &pw->proxy->workers[(first_byte / PROXY_STRIPE_BYTES) % WORLD_WORKERS];
}

static struct object_key *key_of(struct worker *w)
{
    (void)w;
    struct object_key *k = calloc(1, sizeof(*k));
    check(k != NULL);
    atomic_init(&k->refs, 1);
    k->hash = (struct hash128){1, 2};
    k->rule = &world.rule;
    k->key = SPAN("key");
    return k;
}

struct object_key *request_object_key(struct request *r)
{
    return key_of(r->pw->worker);
}

void request_recycle(struct request *r)
{
    free(r->get);
    free(r);
}

void key_map_init(struct key_map *map)
{
    for (unsigned i = 0; i < PROXY_MAP_BUCKETS; i++) {
        list_init(&map->buckets[i]);
    }
    map->count = 0;
}

void list_cache_drop_key(struct proxy_worker *pw, const struct object_key *key)
{
    (void)pw, (void)key;
}

const struct s3_param *s3_param_find(const struct s3_request *r, const char *name)
{
    (void)r, (void)name;
    return NULL;
}

const char *s3_status_reason(unsigned status)
{
    (void)status;
    return "";
}

bool s3_error_read(struct arena *arena, struct span document, struct s3_error_body *ret_body)
{
    (void)arena, (void)document, (void)ret_body;
    return false;
}

static int reply_version(const struct request *r)
{
    return serve_get_version(r).len > 0 ? version_of(serve_get_version(r)) : 0;
}

// --- clients and writers
// --------------------------------------------------------------------------------------------------------------

int client_get(unsigned worker, uint64_t first, uint64_t last)
{
    int i = 0;
    while (world.clients[i].used) {
        i++;
        check(i < MAX_CLIENTS);
    }
    struct client *c = &world.clients[i];
    *c = (struct client){
        .used = true, .worker = &world.workers[worker], .floor_version = world.acked_version};
    c->arena = arena_new(1 << 20);
    if (first != 0 || last != UINT64_MAX) {
        int n = snprintf(c->range, sizeof(c->range), "bytes=%llu-%llu", (unsigned long long)first,
                         (unsigned long long)last);
        struct span value = {c->range, (size_t)n};
        check(headers_add(&c->http.headers, c->arena, SPAN("Range"), value));
    }
    c->http.method = SPAN("GET");
    c->x = calloc(1, sizeof(*c->x));
    c->r = calloc(1, sizeof(*c->r));
    check(c->x != NULL && c->r != NULL);
    c->x->client = i;
    c->r->magic = REQUEST_MAGIC;
    c->r->pw = &world.pw[worker];
    c->r->x = c->x;
    c->r->http = &c->http;
    c->r->arena = c->arena;
    c->r->rule = &world.rule;
    c->r->origin = world.origin;
    world.current = c->worker;
    request_go_to(c->r, REQUEST_GET_LOOKUP);
    pass_end(c->worker);
    return i;
}

static void client_tell_done(struct client *c)
{
    c->told = true;
    struct request *r = c->r;
    world.current = c->worker;
    r->ended = true;
    if (serve_get_done(r)) {
        request_recycle(r);
    }
    pass_end(c->worker);
    free(c->x);
    arena_free(c->arena);
    c->x = NULL;
    c->r = NULL;
}

void client_leave(int client)
{
    struct client *c = &world.clients[client];
    if (!c->ended) {
        client_end(c, CLIENT_LEFT);
        client_tell_done(c);
    }
}

enum client_outcome client_outcome(int client)
{
    return world.clients[client].outcome;
}

int client_version(int client)
{
    return world.clients[client].version;
}

enum err client_err(int client)
{
    return world.clients[client].err;
}

uint64_t client_received(int client)
{
    return world.clients[client].received;
}

static void on_write_ready(struct key_write *kw)
{
    container_of(kw, struct writer, kw)->ready = true;
}

static void on_write_ended(struct key_write *kw)
{
    struct writer *w = container_of(kw, struct writer, kw);
    w->replied = true;
    if (w->version > world.acked_version) {
        world.acked_version = w->version;
    }
    object_key_unref(kw->key);
}

int writer_begin(unsigned worker)
{
    int i = 0;
    while (world.writers[i].used) {
        i++;
        check(i < MAX_WRITERS);
    }
    struct writer *w = &world.writers[i];
    *w = (struct writer){.used = true};
    w->kw.key = key_of(&world.workers[worker]);
    w->kw.on_ready = on_write_ready;
    w->kw.on_ended = on_write_ended;
    world.current = &world.workers[worker];
    invalidate_begin(&world.pw[worker], &w->kw);
    pass_end(&world.workers[worker]);
    return i;
}

bool writer_ready(int writer)
{
    return world.writers[writer].ready;
}

void writer_write(int writer)
{
    struct writer *w = &world.writers[writer];
    check(w->ready && !w->wrote);
    w->wrote = true;
    origin_overwrite();
    w->version = world.version;
    world.current = w->kw.at->worker;
    invalidate_end(w->kw.at, &w->kw);
    pass_end(w->kw.at->worker);
}

bool writer_replied(int writer)
{
    return world.writers[writer].replied;
}

// --- events
// -----------------------------------------------------------------------------------------------------------------------------

struct event {
    enum event_kind kind;
    int a, b;
    void *ptr;
};

static unsigned events_find(struct event *events)
{
    unsigned n = 0;
    for (int from = 0; from <= WORLD_WORKERS; from++) {
        for (int to = 0; to < WORLD_WORKERS; to++) {
            if (world.mail[from][to].first != NULL) {
                events[n++] = (struct event){EVENT_MESSAGE, from, to, NULL};
            }
        }
    }
    for (int i = 0; i < MAX_FETCHES; i++) {
        struct fetch_play *p = &world.fetches[i];
        if (p->used && (!p->paused || p->cancelled)) {
            events[n++] = (struct event){EVENT_ORIGIN, i, 0, p};
        }
    }
    list_for_each(node, &world.runs)
    {
        struct store_run *run = container_of(node, struct store_run, node);
        if (run->finishing) {
            events[n++] = (struct event){EVENT_WRITTEN, 0, 0, run};
        }
    }
    if (world.post_count > 0) {
        events[n++] = (struct event){EVENT_COMMIT, 0, 0, NULL};
    }
    for (int i = 0; i < (int)world.read_count; i++) {
        events[n++] = (struct event){EVENT_READ, i, 0, NULL};
    }
    for (unsigned i = 0; i < world.timer_count; i++) {
        events[n++] = (struct event){EVENT_TIMER, 0, 0, world.timers[i]};
    }
    for (int i = 0; i < MAX_CLIENTS; i++) {
        struct client *c = &world.clients[i];
        if (c->used && c->wants) {
            events[n++] = (struct event){EVENT_PULL, i, 0, c};
        } else if (c->used && c->ended && !c->told) {
            events[n++] = (struct event){EVENT_DONE, i, 0, c};
        }
    }
    check(n < MAX_EVENTS);
    return n;
}

static void event_run(struct event e)
{
    switch (e.kind) {
    case EVENT_MESSAGE: {
        struct queue *q = &world.mail[e.a][e.b];
        struct message *message = q->first;
        q->first = message->next;
        if (q->first == NULL) {
            q->last = &q->first;
        }
        world.current = &world.workers[e.b];
        message->deliver(world.current, message);
        pass_end(&world.workers[e.b]);
        break;
    }
    case EVENT_ORIGIN:
        fetch_step(e.ptr);
        break;
    case EVENT_WRITTEN:
        run_written(e.ptr);
        break;
    case EVENT_COMMIT:
        commit();
        break;
    case EVENT_READ:
        read_complete((unsigned)e.a);
        break;
    case EVENT_TIMER: {
        struct timer *timer = e.ptr;
        timer_stop(timer);
        world.current = timer->worker;
        struct worker *w = timer->worker;
        timer->fn(timer);
        pass_end(w);
        break;
    }
    case EVENT_PULL:
        client_pull(e.ptr);
        break;
    case EVENT_DONE:
        client_tell_done(e.ptr);
        break;
    }
}

bool world_step(void)
{
    static struct event events[MAX_EVENTS];
    unsigned n = events_find(events);
    if (n == 0) {
        return false;
    }
    event_run(events[rnd(n)]);
    return true;
}

bool world_do(enum event_kind kind, int a, int b)
{
    static struct event events[MAX_EVENTS];
    unsigned n = events_find(events);
    for (unsigned i = 0; i < n; i++) {
        if (events[i].kind == kind && (a < 0 || events[i].a == a) && (b < 0 || events[i].b == b)) {
            event_run(events[i]);
            return true;
        }
    }
    return false;
}

void world_deliver_all(void)
{
    unsigned bound = 100000;
    while (world_do(EVENT_MESSAGE, -1, -1)) {
        check(--bound > 0);
    }
}

void world_run(void)
{
    unsigned bound = 200000;
    while (world_step()) {
        cr_assert(--bound > 0, "endless: seed %llu", (unsigned long long)world.options.seed);
    }
}

void world_begin(const struct world_options *options)
{
    memset(&world, 0, sizeof(world));
    world.options = *options;
    world.random = options->seed * 0x9E3779B97F4A7C15u + 0x1234567u;
    world.refuse = options->refuse_store;
    world.version = 1;
    world.rule = (struct proxy_rule){.match = "**",
                                     .cache = true,
                                     .freshness = PROXY_FRESHNESS_IMMUTABLE,
                                     .block_size_bytes = WORLD_BLOCK};
    list_init(&world.segments);
    list_init(&world.runs);
    chunk_budget_init(256u << 20);
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
        pw->worker = &world.workers[i];
        pw->index = i;
        key_map_init(&pw->fills);
        key_map_init(&pw->homes);
        key_map_init(&pw->bars);
        worker_slot_set(pw->worker, WORKER_SLOT_PROXY, pw);
    }
    for (unsigned i = 0; i < COUNTER_COUNT_; i++) {
        world.counters[i] = stats_sum((enum counter)i);
    }
}

void world_end(void)
{
    unsigned long long seed = (unsigned long long)world.options.seed;
    for (int i = 0; i < MAX_CLIENTS; i++) {
        cr_assert(!world.clients[i].used || world.clients[i].told,
                  "client %d never ended: seed %llu", i, seed);
    }
    for (int i = 0; i < MAX_WRITERS; i++) {
        cr_assert(!world.writers[i].wrote || world.writers[i].replied, "writer %d: seed %llu", i,
                  seed);
    }
    for (unsigned i = 0; i < WORLD_WORKERS; i++) {
        cr_assert(world.pw[i].fills.count == 0, "a fill is left: seed %llu", seed);
        cr_assert(world.pw[i].homes.count == 0, "a home is left: seed %llu", seed);
        cr_assert(world.pw[i].bars.count == 0, "a bar is left: seed %llu", seed);
    }
    list_for_each(node, &world.segments)
    {
        struct segment *s = container_of(node, struct segment, node);
        cr_assert(s->pins == 0 && s->holds == 0, "a pin is left: seed %llu", seed);
        list_remove(&s->node);
        free(s);
    }
    cr_assert(list_empty(&world.runs), "a run is left: seed %llu", seed);
    cr_assert(world.objects == 0, "a version is left: seed %llu", seed);
    cr_assert(chunk_budget_used_bytes() == 0, "payload memory is left: seed %llu", seed);
    cr_assert(counter(COUNTER_fills_inflight) == 0, "seed %llu", seed);
    cr_assert(counter(COUNTER_coalesced_waiters) == 0, "seed %llu", seed);
}

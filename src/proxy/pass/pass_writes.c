// SPDX-License-Identifier: Apache-2.0
// Invalidates the keys of a write, in two rounds: before the origin is asked and after it has
// answered. A copy of one key may be cached under many names: in each realm, under each name that a
// present or earlier configuration gives the bucket (places.c), and under the path that a directory
// origin makes of the key. A batch delete has a thousand keys. So no record is kept for each name.
// A round iterates over the names, with a limited number of them in flight. Between the rounds
// open_keys holds the keys themselves open (fill.h).
//
// Slices: each turn of the worker's loop starts at most PROXY_KEYS_PER_TURN names of a request, so
// that hits on this worker and on the keys' homes wait for no more than that.
//
// Memory: the names in flight, the open keys and doubts are charged to BUDGET_WRITES. If memory is
// short, fewer names are in flight and the round is slow. A request whose keys do not fit is
// refused before the origin is asked.
//
// The second round includes the names that a reload has added since the first (realms, places). On
// the request's worker; the rounds may outlive the request.
#include "proxy/pass/pass_private.h"

#include <stdlib.h>
#include <string.h>

struct write_slot {
    struct key_write kw;
    struct list_node node; // in writes.idle
};

// --- the names of a key --------------------------------------------------------------------------

static const struct span *realms_of(const struct access_keys *table, size_t *ret_count)
{
    *ret_count = 0;
    return table != NULL ? access_keys_realms(table, ret_count) : NULL;
}

static bool table_has(const struct access_keys *table, struct span realm)
{
    size_t count;
    const struct span *realms = realms_of(table, &count);
    for (size_t i = 0; i < count; i++) {
        if (span_equal(realms[i], realm)) {
            return true;
        }
    }
    return false;
}

// Returns the next realm: first the common one, then those of the request's keys file, then those
// that only the newest keys file has. Returns false if there is none left.
static bool realm_at(const struct pass_state *p, size_t *index, struct span *ret_realm)
{
    size_t own, newest;
    const struct span *realms = realms_of(p->table, &own);
    const struct span *others = realms_of(p->writes.newest, &newest);
    struct span common = p->pw->proxy->realm;
    for (; *index <= own + newest; ++*index) {
        size_t i = *index;
        struct span realm = i == 0 ? common : i <= own ? realms[i - 1] : others[i - 1 - own];
        bool is_new = i <= own || (!span_equal(realm, common) && !table_has(p->table, realm));
        if (is_new) {
            *ret_realm = realm;
            return true;
        }
    }
    return false;
}

static bool is_same_place(const struct origin *a, const struct origin *b)
{
    return b != NULL && a != b && strcmp(origin_place(a), origin_place(b)) == 0;
}

// Returns the next origin through which the bucket may be cached: first the request's, then the
// default one, then those of buckets with settings of their own. The last two count only if they
// reach the same bucket at the same place. Returns false if there is none left.
static bool origin_at(const struct pass_state *p, unsigned *index, struct span bucket,
                      struct origin **ret_origin)
{
    const struct proxy *proxy = p->pw->proxy;
    for (; *index < 2 + p->writes.place_count; ++*index) {
        unsigned i = *index;
        const struct place *place = i >= 2 ? &proxy->places.items[i - 2] : NULL;
        struct origin *origin = i == 0   ? p->origin
                                : i == 1 ? proxy->options.default_origin
                                         : place->origin;
        if (i == 0 || (is_same_place(p->origin, origin) &&
                       (i == 1 || span_equal_cstr(bucket, place->bucket)))) {
            *ret_origin = origin;
            return true;
        }
    }
    return false;
}

// Sets *ret_key to the first reading of a key from number *index on, and *index to its number. The
// first reading is the key itself. The others are paths that origins on files make of it. Returns
// false if there is no further reading.
static bool reading_at(const struct pass_key *k, unsigned *index, struct s3_path *path,
                       struct span *ret_key)
{
    if (*index == 0) {
        *ret_key = k->key;
        return true;
    }
    for (; *index <= S3_PATH_READINGS; (*index)++) {
        if (s3_key_as_path(k->key, *index - 1, path) && path->differs && path->len > 0) {
            *ret_key = (struct span){path->text, path->len};
            return true;
        }
    }
    return false;
}

// Returns a reference to the next name, or NULL if the round has had all names.
static struct object_key *next_name(struct pass_state *p)
{
    struct pass_writes *w = &p->writes;
    check(w->at.key <= w->key_count);
    for (; w->at.key < w->key_count; w->at.key++, w->at.reading = 0) {
        const struct pass_key *k = &w->keys[w->at.key];
        struct s3_path path;
        struct object_key name = {.bucket = k->bucket};
        for (; reading_at(k, &w->at.reading, &path, &name.key); w->at.reading++, w->at.origin = 0) {
            for (; origin_at(p, &w->at.origin, k->bucket, &name.origin);
                 w->at.origin++, w->at.realm = 0) {
                if (realm_at(p, &w->at.realm, &name.realm)) {
                    w->at.realm++;
                    name.epoch = fill_epoch(p->pw->store, name.origin, name.bucket);
                    return object_key_new(p->pw->store, &name);
                }
            }
        }
    }
    return NULL;
}

// --- a round -------------------------------------------------------------------------------------

static void on_name_ready(struct key_write *kw);
static void on_name_ended(struct key_write *kw);

// Returns true if the origin was not asked and will not be. The remaining names need not be
// invalidated then.
static bool is_given_up(const struct pass_state *p)
{
    check(p->phase == PASS_OPEN || p->phase == PASS_CLOSE);
    const struct pass_writes *w = &p->writes;
    return p->phase == PASS_OPEN && (w->err != ERR_OK || p->err != ERR_OK || p->request == NULL);
}

static void start_one(struct pass_state *p, struct write_slot *slot, struct object_key *name)
{
    struct key_write *kw = &slot->kw;
    check(kw->key == NULL);
    check(p->writes.open != NULL);
    *kw = (struct key_write){
        .key = name, .ctx = p, .on_ready = on_name_ready, .on_ended = on_name_ended};
    p->writes.in_flight++;
    if (p->phase == PASS_CLOSE) {
        pass_doubt_name(p, name);
        invalidate_listed_end(p->pw->fill, kw);
    } else {
        invalidate_listed_begin(p->pw->fill, kw);
    }
}

static void start_some(struct pass_state *p, unsigned most)
{
    struct pass_writes *w = &p->writes;
    for (; most > 0 && !w->is_through && !list_empty(&w->idle); most--) {
        struct object_key *name = is_given_up(p) ? NULL : next_name(p);
        if (name == NULL) {
            w->is_through = true;
        } else {
            struct list_node *node = list_pop_front(&w->idle);
            start_one(p, container_of(node, struct write_slot, node), name);
        }
    }
}

static void on_turn(struct task *task)
{
    struct pass_state *p = as_pass(container_of(task, struct pass_state, writes.task));
    struct pass_writes *w = &p->writes;
    check(p->phase == PASS_OPEN || p->phase == PASS_CLOSE);
    check(w->on_round != NULL);
    start_some(p, PROXY_KEYS_PER_TURN);
    if (w->is_through && w->in_flight == 0) {
        w->on_round(p, w->err);
    } else if (!w->is_through && !list_empty(&w->idle)) {
        worker_defer(p->pw->worker, &w->task);
    }
}

static void slot_back(struct key_write *kw)
{
    struct pass_state *p = as_pass(kw->ctx);
    struct write_slot *slot = container_of(kw, struct write_slot, kw);
    check(p->writes.in_flight > 0);
    check(!list_node_linked(&slot->node));
    object_key_unref(kw->key);
    kw->key = NULL;
    list_push_back(&p->writes.idle, &slot->node);
    p->writes.in_flight--;
    if (!p->writes.is_through || p->writes.in_flight == 0) {
        worker_defer(p->pw->worker, &p->writes.task);
    }
}

static void on_name_ready(struct key_write *kw)
{
    struct pass_writes *w = &as_pass(kw->ctx)->writes;
    check(as_pass(kw->ctx)->phase == PASS_OPEN);
    w->err = kw->err != ERR_OK ? ERR_NOT_RECORDED : w->err;
    slot_back(kw);
}

static void on_name_ended(struct key_write *kw)
{
    check(as_pass(kw->ctx)->phase == PASS_CLOSE);
    slot_back(kw);
}

// Starts again at the first name. Reloads may add names at any time, so a round uses those that
// exist when it begins.
static void names_take(struct pass_state *p)
{
    struct pass_writes *w = &p->writes;
    check(w->in_flight == 0);
    access_keys_unref(w->newest);
    w->newest =
        p->pw->known != NULL && p->pw->known != p->table ? access_keys_ref(p->pw->known) : NULL;
    w->place_count = places_count(p->pw->proxy);
    memset(&w->at, 0, sizeof(w->at));
    w->is_through = false;
}

static void round_begin(struct pass_state *p)
{
    check(p->writes.open != NULL);
    check(p->writes.slots != NULL);
    names_take(p);
    start_some(p, PROXY_KEYS_AT_ONCE);
    worker_defer(p->pw->worker, &p->writes.task);
}

// --- memory --------------------------------------------------------------------------------------

// Allocates a slot for each name, or as many as the window and the memory budget allow. At least
// PROXY_KEYS_AT_ONCE are always allowed.
static bool slots_new(struct pass_state *p)
{
    struct pass_writes *w = &p->writes;
    check(w->slots == NULL);
    check(w->key_count > 0);
    size_t own, newest;
    (void)realms_of(p->table, &own);
    (void)realms_of(p->pw->known, &newest);
    size_t names = w->reading_count * (1 + own + newest);
    size_t count = min_u64(names, PROXY_KEYS_WINDOW);
    if (count > PROXY_KEYS_AT_ONCE &&
        !chunk_budget_try_charge(BUDGET_WRITES, w->charged_bytes, count * PROXY_KEY_BYTES)) {
        count = PROXY_KEYS_AT_ONCE;
    } else if (count > PROXY_KEYS_AT_ONCE) {
        w->charged_bytes += count * PROXY_KEY_BYTES;
    }
    w->slots = calloc(count, sizeof(*w->slots));
    for (size_t i = 0; w->slots != NULL && i < count; i++) {
        list_node_init(&w->slots[i].node);
        list_push_back(&w->idle, &w->slots[i].node);
    }
    return w->slots != NULL;
}

// Allocates room for all readings of each key. A few keys of one request are not charged.
static bool open_new(struct pass_state *p)
{
    struct pass_writes *w = &p->writes;
    check(w->open == NULL);
    check(w->charged_bytes == 0);
    size_t bytes = open_keys_bytes(w->reading_count);
    if (w->key_count > PROXY_KEYS_AT_ONCE) {
        if (!chunk_budget_try_charge(BUDGET_WRITES, 0, bytes)) {
            return false;
        }
        w->charged_bytes += bytes;
    }
    w->open = open_keys_new(p->pw->fill, w->reading_count);
    return w->open != NULL;
}

static void open_all(struct pass_state *p)
{
    struct s3_path path;
    struct span key;
    for (size_t i = 0; i < p->writes.key_count; i++) {
        const struct pass_key *k = &p->writes.keys[i];
        for (unsigned reading = 0; reading_at(k, &reading, &path, &key); reading++) {
            open_keys_add(p->writes.open, p->origin, k->bucket, key);
        }
    }
}

static void release(struct pass_state *p)
{
    struct pass_writes *w = &p->writes;
    check(w->in_flight == 0);
    open_keys_close(w->open);
    w->open = NULL;
    free(w->slots); // on_turn() does not run in a callback of a slot
    w->slots = NULL;
    list_init(&w->idle);
    access_keys_unref(w->newest);
    w->newest = NULL;
    chunk_budget_discharge(BUDGET_WRITES, w->charged_bytes);
    w->charged_bytes = 0;
}

// --- calls for the other files -------------------------------------------------------------------

void pass_writes_init(struct pass_state *p)
{
    list_init(&p->writes.idle);
    worker_task_init(&p->writes.task, on_turn);
}

enum err pass_writes_add(struct pass_state *p, struct span bucket, struct span key)
{
    struct pass_writes *w = &p->writes;
    struct s3_path path;
    check(p->phase == PASS_READ);
    check(w->key_count <= w->keys_max);
    if (w->key_count == w->keys_max) {
        size_t max = w->keys_max > 0 ? 4 * w->keys_max : 2;
        struct pass_key *keys = arena_alloc(p->arena, max * sizeof(*keys));
        if (keys == NULL) {
            return ERR_NO_MEMORY;
        }
        if (w->key_count > 0) {
            memcpy(keys, w->keys, w->key_count * sizeof(*keys));
        }
        w->keys = keys;
        w->keys_max = max;
    }
    struct pass_key *k = &w->keys[w->key_count++];
    *k = (struct pass_key){bucket, key};
    for (unsigned reading = 0; reading_at(k, &reading, &path, &key); reading++) {
        w->reading_count++;
    }
    return ERR_OK;
}

void pass_writes_open(struct pass_state *p, void (*on_round)(struct pass_state *p, enum err err))
{
    struct pass_writes *w = &p->writes;
    check(p->phase == PASS_OPEN);
    check(w->on_round == NULL);
    w->on_round = on_round;
    if (open_new(p) && slots_new(p)) {
        open_all(p);
        round_begin(p);
    } else {
        w->err = ERR_OVERLOAD;
        w->is_through = true;
        worker_defer(p->pw->worker, &w->task);
    }
}

void pass_writes_close(struct pass_state *p, void (*on_round)(struct pass_state *p, enum err err))
{
    struct pass_writes *w = &p->writes;
    check(p->phase == PASS_CLOSE);
    check(w->in_flight == 0 && w->is_through);
    w->on_round = on_round;
    if (p->call.phase != CALL_NONE) {
        round_begin(p);
    } else { // the origin was not asked, so no copy is out of date
        worker_defer(p->pw->worker, &w->task);
    }
}

void pass_writes_done(struct pass_state *p)
{
    worker_task_cancel(&p->writes.task);
    release(p);
}

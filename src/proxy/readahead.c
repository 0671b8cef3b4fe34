// SPDX-License-Identifier: Apache-2.0
// Read-ahead: what a sequential reader will want next is asked for before it asks, so that many runs
// come from the origin side by side. Runs on the request's worker.
//
// A *track* follows one object: how far its readers are, how far runs have been asked for. Sequential
// is a request for more than a run, up to its end, and who asks for range after range in order, up to
// the end of the object, over whatever connections (a worker sees only its share of them, so small
// gaps are jumped). A run that is asked for ahead has no reader of its bytes: it is only stored, and
// who comes to it joins it or finds it in the index.
//
// How many runs are asked for at once follows bandwidth and delay: those that fit the time that a run
// takes at the pace of the reader, twice. It is bounded by cache.readahead and a quarter of
// limits.max_buffer; and nothing is asked for ahead while memory is short, the disk is behind, or the
// origin's places are nearly used up: demand goes first.
#include "proxy/get_private.h"

#include <stdlib.h>

#define TRACKS 64u    // by key, on each worker
#define RUNS_MAX 32u  // asked for ahead at once, of one track
#define RUNS_FIRST 4u // until it is known how long a run takes
#define STREAK_MIN 2u // ranges in order before the next ones are asked for
#define TRACK_KEEP_US                                                                              \
    250000u // another object does not take the place of one that was read this recently

struct ahead_run {
    struct readahead_track *track;
    struct subscription *sub; // NULL: free
    uint64_t asked_us;
};

struct readahead_track {
    struct proxy_worker *pw;
    struct object_key *key;      // references; NULL: unused
    struct store_object *object; // the version
    uint32_t block_size_bytes;
    uint64_t client;     // the last reader's
    uint64_t most_bytes; // in front of its readers, as the rule of the last one says
    uint64_t used_us;
    uint64_t edge;      // how far its readers have come
    uint64_t next;      // where the next range would begin
    uint64_t limit;     // nothing is asked for from here on
    uint64_t asked_end; // runs have been asked for up to here
    unsigned streak;
    unsigned serial, readers; // requests that have noted themselves under this serial
    bool is_missing;          // readers find that it is not there
    uint64_t paced_us, paced_edge, run_us, reader_us; // how long a run takes; the reader, for one
    struct ahead_run runs[RUNS_MAX];
};

struct readahead {
    struct readahead_track tracks[TRACKS];
    unsigned last_serial;
};

static uint64_t run_bytes(const struct readahead_track *t)
{
    return max_u64(store_run_bytes_max(t->pw->store), t->block_size_bytes);
}

static uint64_t block_end(const struct readahead_track *t, uint64_t byte)
{
    return (byte + t->block_size_bytes - 1) / t->block_size_bytes * t->block_size_bytes;
}

static uint64_t average(uint64_t former, uint64_t sample)
{
    return former == 0 ? max_u64(sample, 1) : (3 * former + max_u64(sample, 1)) / 4;
}

// --- the runs asked for --------------------------------------------------------------------------

static void track_ask(struct readahead_track *t);

static void run_end(struct ahead_run *run)
{
    struct subscription *sub = run->sub;
    run->sub = NULL;
    subscription_leave(sub);
}

static void on_change(void *ctx, struct subscription *sub)
{
    struct ahead_run *run = ctx;
    struct readahead_track *t = run->track;
    if (sub->state == SUBSCRIPTION_ENDED) {
        uint64_t now_us = worker_now_us(t->pw->worker);
        if (sub->outcome == OUTCOME_DONE && !sub->joined && !sub->whole) {
            t->run_us = average(t->run_us, now_us - run->asked_us);
            stats_add(COUNTER_readahead_bytes, sub->run_end_byte - sub->ask.first_byte);
        }
        // Already there (AGAIN), or it cannot be had: no use to go on before a reader misses something.
        t->is_missing &= sub->outcome == OUTCOME_DONE;
        run_end(run);
        track_ask(t);
    } else if (sub->answer != NULL && !sub->stored) {
        t->is_missing = false;
        run_end(run); // nobody would find it
    }
}

// Asked for, and not yet known to the origin's places; and the run that the reader asks for next.
static unsigned runs_on_their_way(const struct readahead_track *t)
{
    unsigned count = 1;
    for (unsigned i = 0; i < RUNS_MAX; i++) {
        count += t->runs[i].sub != NULL && t->runs[i].sub->state == SUBSCRIPTION_ASKED;
    }
    return count;
}

// Bytes in front of the readers that should have been asked for.
static uint64_t window(const struct readahead_track *t)
{
    uint64_t runs = RUNS_FIRST;
    if (t->run_us != 0 && t->reader_us != 0) {
        runs = 2 * t->run_us / t->reader_us + 1;
    }
    uint64_t most = min_u64(t->most_bytes, chunk_budget_max_bytes() / 4);
    return min_u64(min_u64(runs, RUNS_MAX) * run_bytes(t), most);
}

static void ask_run(struct readahead_track *t, struct ahead_run *run, uint64_t end)
{
    uint64_t size = t->block_size_bytes;
    struct fill_ask ask = {.key = t->key,
                           .client = t->client,
                           .object = t->object,
                           .ahead = true,
                           .first_byte = t->asked_end,
                           .block = t->asked_end / size,
                           .block_size_bytes = t->block_size_bytes};
    ask.block_count =
        (uint32_t)min_u64(block_end(t, end - t->asked_end), run_bytes(t)) / t->block_size_bytes;
    t->asked_end += ask.block_count * size;
    run->track = t;
    run->asked_us = worker_now_us(t->pw->worker);
    run->sub = subscription_ask(t->pw->fill, &ask, on_change, run);
}

static void track_ask(struct readahead_track *t)
{
    while (t->is_missing) {
        uint64_t end = min_u64(t->limit, t->edge + window(t));
        bool is_whole = end == t->limit || end >= t->asked_end + run_bytes(t);
        if (t->asked_end >= end || !is_whole || chunk_budget_is_short() ||
            !store_keeps_up(t->pw->worker, t->pw->store) ||
            !origin_has_room(t->pw->worker, t->key->origin, runs_on_their_way(t))) {
            return;
        }
        unsigned i = 0;
        while (i < RUNS_MAX && t->runs[i].sub != NULL) {
            i++;
        }
        if (i == RUNS_MAX) {
            return;
        }
        ask_run(t, &t->runs[i], end);
    }
}

// --- tracks --------------------------------------------------------------------------------------

static void track_stop(struct readahead_track *t)
{
    for (unsigned i = 0; i < RUNS_MAX; i++) {
        if (t->runs[i].sub != NULL) {
            run_end(&t->runs[i]);
        }
    }
}

static void track_clear(struct readahead_track *t)
{
    if (t->key == NULL) {
        return;
    }
    track_stop(t);
    uint64_t read_end = max_u64(t->edge, t->next);
    uint64_t asked = min_u64(t->asked_end, t->object->size_bytes);
    stats_add(COUNTER_readahead_unread_bytes, asked > read_end ? asked - read_end : 0);
    object_key_unref(t->key);
    store_object_unref(t->object);
    *t = (struct readahead_track){.pw = t->pw};
}

static struct readahead_track *track_slot(const struct request *r)
{
    return &r->pw->readahead->tracks[r->get->key->hash.lo % TRACKS];
}

// The track of the request's object. NULL: its place is taken.
static struct readahead_track *track_of(struct request *r)
{
    struct get_state *g = get_of(r);
    if (r->pw->readahead == NULL) {
        r->pw->readahead = calloc(1, sizeof(*r->pw->readahead));
        check(r->pw->readahead != NULL);
    }
    struct readahead_track *t = track_slot(r);
    uint64_t now_us = worker_now_us(r->pw->worker);
    bool is_same = t->key != NULL && hash128_equal(t->key->hash, g->key->hash) &&
                   span_equal(t->object->etag, g->object->etag);
    if (!is_same && t->key != NULL && now_us - t->used_us < TRACK_KEEP_US) {
        return NULL;
    }
    if (!is_same) {
        track_clear(t);
        t->pw = r->pw;
        t->serial = ++r->pw->readahead->last_serial;
        t->object = store_object_ref(g->object);
        t->block_size_bytes = g->object->block_size_bytes;
        t->next = UINT64_MAX;
    }
    if (t->key == NULL || !object_key_asks_alike(t->key, g->key)) {
        struct object_key *key = object_key_ref(g->key); // the origin is asked as this reader would
        object_key_unref(t->key);
        t->key = key;
    }
    t->used_us = now_us;
    t->client = request_client(r);
    t->most_bytes = r->rule->readahead_bytes;
    return t;
}

// A reader that begins: does it go on where others have ended?
static void track_begin(struct readahead_track *t, const struct get_state *g)
{
    uint64_t gap = 2 * t->pw->proxy->worker_count * (g->end - g->first);
    bool goes_on = t->next != UINT64_MAX && g->first <= t->next + gap && g->end > t->next;
    bool is_behind = t->next != UINT64_MAX && g->end <= t->next && g->end + gap >= t->next;
    if (goes_on) {
        t->streak++;
    } else if (!is_behind) { // it reads elsewhere
        t->streak = 0;
        t->edge = t->paced_edge = g->first;
        t->asked_end = t->limit = 0;
        t->paced_us = t->used_us;
    }
    t->next = goes_on || t->next == UINT64_MAX || !is_behind ? g->end : t->next;
    bool is_long = g->end - g->first > run_bytes(t);
    if (t->streak >= STREAK_MIN) {
        t->limit = g->object->size_bytes;
    } else if (is_long) {
        t->limit = max_u64(t->limit, g->end);
    }
}

static void track_pace(struct readahead_track *t)
{
    if (t->edge < t->paced_edge + run_bytes(t)) {
        return;
    }
    uint64_t runs = (t->edge - t->paced_edge) / run_bytes(t);
    t->reader_us = average(t->reader_us, (t->used_us - t->paced_us) / runs);
    t->paced_edge = t->edge;
    t->paced_us = t->used_us;
}

void readahead_note(struct request *r)
{
    struct get_state *g = get_of(r);
    g->readahead_at = g->pos + STORE_RUN_MAX;
    const struct subscription *run = g->runs[0];
    bool is_cached = r->rule->cache && g->object->etag.len > 0 && (run == NULL || !run->weak);
    if (!is_cached || r->rule->readahead_bytes == 0) {
        return;
    }
    struct readahead_track *t = track_of(r);
    if (t == NULL) {
        return;
    }
    if (g->track_serial != t->serial) {
        g->track_serial = t->serial;
        t->readers++;
        track_begin(t, g);
    }
    t->is_missing |= run != NULL && !run->whole;
    t->edge = max_u64(t->edge, g->pos);
    track_pace(t);
    // What this reader asks for itself: the run under way and one more.
    uint64_t own_end = max_u64(run != NULL ? run->run_end_byte : 0, g->pos) + run_bytes(t);
    t->asked_end = max_u64(t->asked_end, block_end(t, min_u64(own_end, g->end)));
    if (t->streak >= STREAK_MIN) {
        t->asked_end = max_u64(t->asked_end, block_end(t, t->next));
    }
    track_ask(t);
}

void readahead_leave(struct request *r)
{
    struct get_state *g = get_of(r);
    if (g->track_serial == 0) {
        return;
    }
    struct readahead_track *t = track_slot(r);
    if (t->serial != g->track_serial) {
        return;
    }
    check(t->readers > 0);
    t->readers--;
    if (t->readers == 0 && g->pos < g->end) { // it broke off
        t->is_missing = false;
        track_stop(t);
    }
}

void readahead_free(struct readahead *readahead)
{
    for (unsigned i = 0; readahead != NULL && i < TRACKS; i++) {
        struct readahead_track *t = &readahead->tracks[i];
        object_key_unref(t->key);
        store_object_unref(t->object);
    }
    free(readahead);
}

// SPDX-License-Identifier: Apache-2.0
// Read-ahead: fetches the runs that a sequential reader will want next, so that several runs are
// fetched from the origin at the same time. Runs on the request's worker.
//
// A *track* follows one sequence of reads of an object. It knows how far its readers are, and up to
// where runs have been requested. Two kinds of reads are sequential:
// - One request for more bytes than a run has, up to its end.
// - Ranges that a client requests in order, over any connections, up to the object's end.
//
// A worker sees only its share of a client's connections, and ranges that are requested at once
// arrive in any order. So a track tolerates small gaps. Each reader of a part of an object has a
// track. Each random read begins a track too. Unless a second read continues that track, another
// sequence may take it over.
//
// If the distances between single reads are equal STRIDE_MIN times in a row, the track fetches
// parts ahead at that distance, the *stride*. A run that is fetched ahead is only stored; nobody
// receives its bytes yet. A reader that reaches it joins it or finds it in the index. When a track
// is forgotten, the bytes that no reader reached count as unread.
//
// When a reader reads large objects in the order of a listing (series.c), read-ahead continues past
// an object's end. The rest of the window then fetches the next object, whose track begins without
// a reader. If any of that object is cached, nothing of it is fetched ahead. Otherwise a HEAD asks
// for its existence, its version and the origin's checksums, so that its readers are as safe as if
// they had asked themselves. The track is cancelled if the reader of the previous object stops
// before its end. Bytes that no reader reached are counted; series.c also uses this to judge
// whether readers follow the order.
//
// The number of runs in flight depends on bandwidth and delay: twice as many as the reader reads in
// the time that a run takes, and the next one also for a slow reader. Its limits are
// cache.readahead, a quarter of limits.max_buffer and, for a client that requests range after
// range, four times what it has read in order. No run is requested ahead while memory is short, the
// disk lags behind, or nearly all slots at the origin are used, because requests of clients take
// precedence.
#include "proxy/get/get_private.h"

#include <stdlib.h>

#define TRACKS 64u    // number of tracks of each worker
#define RUNS_MAX 32u  // maximum runs of a track that are requested ahead and not read yet
#define RUNS_FIRST 4u // runs ahead while the time that a run takes is not known
#define RUNS_LEAST 2u // runs ahead of a slow reader: only whole ones, so fewer would come too late
#define STREAK_MIN 2u // ranges that must be read in order before any are fetched ahead
#define STRIDE_MIN 3u // equal distances that must be seen before parts are fetched ahead
#define TRACK_KEEP_US 250000u // a track used less than this long ago is not reused
// A range longer than this must continue a track exactly, or it begins a new track.
#define GAP_RANGE_MAX (16u << 20)
// A track without readers is forgotten after one to two times this long.
#define TRACK_IDLE_MS 30000u
// How many names are tried as the next object after one object of a series.
#define NEXT_NAMES_MAX 4u
#define NEXT_LOOK_BYTES (1u << 20)

struct ahead_run {
    struct readahead_track *track;
    struct subscription *sub; // NULL: the run has ended
    uint64_t asked_us;
    uint64_t first_byte, end_byte; // set once stored, until read; else both 0
};

struct readahead_track {
    struct proxy_worker *pw;
    struct object_key *key;      // the object (reference); NULL: the track is unused
    struct store_object *object; // the version (reference); NULL: not known until `head` ends
    uint32_t block_size_bytes;
    uint64_t client;     // identifies the last reader's client
    uint64_t most_bytes; // maximum bytes to fetch ahead, by the cache rule of the last reader
    uint64_t used_us;
    uint64_t edge;      // offset that the foremost reader has reached
    uint64_t limit;     // nothing is requested at or after this offset
    uint64_t asked_end; // runs have been requested up to this offset
    unsigned streak;
    uint64_t part, stride; // of single reads: their length, and the distance between them
    unsigned strides;      // count of equal distances; from STRIDE_MIN on, only parts are fetched
    unsigned serial;       // identifies this use of the track, see get_state.track_serial
    bool is_idle;          // had no reader when the timer last ran
    bool is_missing;       // readers have requested bytes that are not cached
    bool is_unfit;         // those bytes are not stored, whoever requests them
    bool is_expected;      // no reader yet: the reader of the previous object is expected here
    bool is_series_read;   // this or another worker fetched the object ahead
    struct subscription *head;
    // Track of the next object. Valid only while its serial is next_serial; 0: there is none.
    struct readahead_track *next;
    unsigned next_serial;
    unsigned named; // how many names were tried as the next object
    // Time to fetch one run, and the reader's time for one; 0: unknown. paced_*: when and where
    // reader_us was last measured.
    uint64_t paced_us, paced_edge, run_us, reader_us;
    unsigned run_count; // used entries of `runs`
    struct ahead_run runs[RUNS_MAX];
};

// The part of each track that every new request is compared with. It is separate from the tracks,
// because each random read scans all of them.
struct sequence {
    uint64_t name;        // low half of the key's hash
    uint64_t begin, next; // offset of the first range; expected offset of the next one
    unsigned readers;     // number of requests that read the sequence now
};

struct readahead {
    struct sequence sequences[TRACKS];
    struct readahead_track tracks[TRACKS];
    struct readahead_track *last; // the track that was begun last; NULL: none
    unsigned hand;                // index at which the search for a reusable track continues
    struct timer idle_timer;
    bool is_timed; // the timer is running
    unsigned last_serial;
};

static uint64_t run_bytes(const struct readahead_track *t)
{
    return max_u64(store_run_bytes_max(t->pw->store), t->block_size_bytes);
}

static uint64_t block_end(const struct readahead_track *t, uint64_t byte)
{
    check(t->block_size_bytes > 0);
    return (byte + t->block_size_bytes - 1) / t->block_size_bytes * t->block_size_bytes;
}

static uint64_t average(uint64_t former, uint64_t sample)
{
    return former == 0 ? max_u64(sample, 1) : (3 * former + max_u64(sample, 1)) / 4;
}

static struct sequence *sequence_of(const struct readahead_track *t)
{
    struct readahead *readahead = t->pw->readahead;
    check(t >= readahead->tracks && t < readahead->tracks + TRACKS);
    return &readahead->sequences[t - readahead->tracks];
}

// --- the runs requested --------------------------------------------------------------------------

static void track_ask(struct readahead_track *t);

static void run_end(struct ahead_run *run)
{
    struct subscription *sub = run->sub;
    run->sub = NULL;
    check(sub != NULL && run->track->run_count > 0);
    run->track->run_count -= run->end_byte == 0;
    subscription_leave(sub);
}

static void run_free(struct ahead_run *run)
{
    check(run->sub == NULL && run->track->run_count > 0);
    run->first_byte = run->end_byte = 0;
    run->track->run_count--;
}

// Frees the runs that end before `edge`, because readers have read them.
static void runs_read(struct readahead_track *t)
{
    for (unsigned i = 0; i < RUNS_MAX && t->run_count > 0; i++) {
        struct ahead_run *run = &t->runs[i];
        if (run->end_byte > 0 && run->end_byte <= t->edge) {
            run_free(run);
        }
    }
}

static void on_change(void *ctx, struct subscription *sub)
{
    struct ahead_run *run = ctx;
    struct readahead_track *t = run->track;
    check(run->sub == sub && t->key != NULL);
    check(run >= t->runs && run < t->runs + RUNS_MAX);
    if (sub->state == SUBSCRIPTION_ENDED) {
        uint64_t now_us = worker_now_us(t->pw->worker);
        if (sub->outcome == OUTCOME_DONE && !sub->joined && !sub->whole) {
            t->run_us = average(t->run_us, now_us - run->asked_us);
            stats_add(COUNTER_readahead_bytes, sub->run_end_byte - sub->ask.first_byte);
            run->first_byte = sub->ask.first_byte;
            run->end_byte = sub->run_end_byte;
        }
        // If the outcome is not DONE, the bytes are cached already (AGAIN), or the run failed. Then
        // nothing more is requested until a reader misses bytes.
        t->is_missing &= sub->outcome == OUTCOME_DONE;
        run_end(run);
        runs_read(t);
        track_ask(t);
    } else if (sub->answer != NULL && !sub->stored) {
        t->is_missing = false;
        run_end(run); // the run will not be stored, so no reader would find it
    }
}

// Returns the number of runs that are requested but do not occupy a slot at the origin yet, plus
// one for the run that the reader requests next.
static unsigned runs_on_their_way(const struct readahead_track *t)
{
    unsigned count = 1;
    for (unsigned i = 0; i < RUNS_MAX; i++) {
        count += t->runs[i].sub != NULL && t->runs[i].sub->state == SUBSCRIPTION_ASKED;
    }
    return count;
}

// Returns how many bytes after `edge` should be requested already.
static uint64_t window(const struct readahead_track *t)
{
    bool is_known = t->run_us != 0 && t->reader_us != 0;
    uint64_t runs = is_known ? max_u64(2 * t->run_us / t->reader_us + 1, RUNS_LEAST) : RUNS_FIRST;
    uint64_t most = min_u64(t->most_bytes, chunk_budget_max_bytes() / 4);
    if (t->streak >= STREAK_MIN) {
        const struct sequence *s = sequence_of(t);
        most = min_u64(most, max_u64(4 * (s->next - s->begin), run_bytes(t)));
    }
    return min_u64(min_u64(runs, RUNS_MAX) * run_bytes(t), most);
}

static bool is_strided(const struct readahead_track *t)
{
    return t->strides >= STRIDE_MIN;
}

// Returns the end of the next part to request. Moves `asked_end` over the gap before that part.
static uint64_t part_end(struct readahead_track *t)
{
    check(is_strided(t) && t->part > 0 && t->part <= t->stride);
    uint64_t begin = sequence_of(t)->begin;
    uint64_t at = t->asked_end > begin ? t->asked_end - begin : 0;
    uint64_t part = at / t->stride * t->stride;
    if (at - part >= t->part) {
        part += t->stride;
        t->asked_end = begin + part;
    }
    return min_u64(begin + part + t->part, t->limit);
}

static void ask_run(struct readahead_track *t, struct ahead_run *run, uint64_t end)
{
    uint64_t size = t->block_size_bytes;
    struct fill_ask ask = {.key = t->key,
                           .client = t->client,
                           .object = t->object,
                           .purpose = FILL_TO_READ_AHEAD,
                           .first_byte = t->asked_end,
                           .block = t->asked_end / size,
                           .block_size_bytes = t->block_size_bytes};
    uint64_t first = ask.block * size;
    ask.block_count =
        (uint32_t)min_u64(block_end(t, end - first), run_bytes(t)) / t->block_size_bytes;
    check(ask.block_count > 0 && run->sub == NULL && run->end_byte == 0);
    t->asked_end = first + ask.block_count * size;
    run->track = t;
    t->run_count++;
    check(t->run_count <= RUNS_MAX);
    run->asked_us = worker_now_us(t->pw->worker);
    run->sub = subscription_ask(t->pw->fill, &ask, on_change, run);
}

// Returns the end of the next run to request. 0: request none now.
static uint64_t ask_end(struct readahead_track *t)
{
    if (is_strided(t)) {
        uint64_t parts = max_u64(window(t) / t->part, 1);
        uint64_t end = part_end(t);
        return t->asked_end < end && end <= t->edge + parts * t->stride ? end : 0;
    }
    uint64_t end = min_u64(t->limit, t->edge + window(t));
    bool is_whole = end == t->limit || end >= t->asked_end + run_bytes(t);
    return t->asked_end < end && is_whole ? end : 0;
}

// Returns true if memory, store and origin have room for one more run, in addition to the requests
// of readers.
static bool has_room(const struct readahead_track *t)
{
    return !chunk_budget_is_short() && store_keeps_up(t->pw->worker, t->pw->store) &&
           origin_has_room(t->pw->worker, t->key->origin, runs_on_their_way(t));
}

static void track_ask(struct readahead_track *t)
{
    while (t->is_missing && t->object != NULL) {
        uint64_t end = ask_end(t);
        if (end == 0 || !has_room(t)) {
            return;
        }
        if (!store_would_take(t->pw->store, t->key->hash, t->asked_end / t->block_size_bytes,
                              t->key->limits.group)) {
            return; // the run would not be stored, so no reader would find it
        }
        unsigned i = 0;
        while (i < RUNS_MAX && (t->runs[i].sub != NULL || t->runs[i].end_byte > 0)) {
            i++;
        }
        if (i == RUNS_MAX) {
            return;
        }
        ask_run(t, &t->runs[i], end);
    }
}

// --- tracks --------------------------------------------------------------------------------------

static void head_leave(struct readahead_track *t)
{
    if (t->head != NULL) {
        subscription_leave(t->head);
        t->head = NULL;
    }
}

static void track_stop(struct readahead_track *t)
{
    head_leave(t);
    for (unsigned i = 0; i < RUNS_MAX && t->run_count > 0; i++) {
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
    // The expected reader may have read the object on another worker.
    bool is_unread =
        !t->is_expected || t->asked_end == 0 || series_missed(t->pw->proxy->series, t->key);
    for (unsigned i = 0; i < RUNS_MAX && t->run_count > 0; i++) {
        struct ahead_run *run = &t->runs[i];
        if (run->end_byte > 0) {
            stats_add(COUNTER_readahead_unread_bytes,
                      is_unread ? run->end_byte - max_u64(run->first_byte, t->edge) : 0);
            run_free(run);
        }
    }
    object_key_unref(t->key);
    store_object_unref(t->object);
    t->key = NULL;
    t->object = NULL;
    t->is_expected = false;
    *sequence_of(t) = (struct sequence){0};
}

static void on_idle(struct timer *timer)
{
    struct readahead *readahead = container_of(timer, struct readahead, idle_timer);
    bool is_any_left = false;
    for (unsigned i = 0; i < TRACKS; i++) {
        struct readahead_track *t = &readahead->tracks[i];
        if (t->key == NULL || readahead->sequences[i].readers > 0) {
            continue;
        }
        if (t->is_idle) {
            track_clear(t);
        } else {
            t->is_idle = is_any_left = true;
        }
    }
    readahead->is_timed = is_any_left;
    if (is_any_left) {
        timer_start(timer, TRACK_IDLE_MS);
    }
}

static struct readahead *readahead_of(struct proxy_worker *pw)
{
    if (pw->readahead == NULL) {
        pw->readahead = calloc(1, sizeof(*pw->readahead));
        check(pw->readahead != NULL);
        timer_init(pw->worker, &pw->readahead->idle_timer, on_idle);
    }
    return pw->readahead;
}

static bool is_of(const struct readahead_track *t, const struct get_state *g)
{
    return t->key != NULL && hash128_equal(t->key->hash, g->key->hash) &&
           (t->object == NULL || span_equal(t->object->etag, g->object->etag));
}

// Returns the distance between the request's first byte and the sequence's expected offset.
// UINT64_MAX: the request does not belong to the sequence.
static uint64_t distance(const struct sequence *s, unsigned worker_count, const struct get_state *g)
{
    uint64_t len = g->end - g->first;
    check(g->first <= g->end);
    uint64_t off = g->first > s->next ? g->first - s->next : s->next - g->first;
    if (len > GAP_RANGE_MAX) {
        return off == 0 || g->first == s->begin ? off : UINT64_MAX;
    }
    // Ranges that a client requests at once arrive in any order, and some of them at other workers.
    uint64_t gap = 2 * (worker_count + s->readers) * len;
    return off <= gap + len ? off : UINT64_MAX;
}

// Returns a track for a new sequence: an unused one, one with a single read, or one that was not
// used lately. NULL: all are in use.
static struct readahead_track *track_spare(struct readahead *readahead, uint64_t now_us)
{
    for (unsigned i = 0; i < TRACKS; i++) {
        struct readahead_track *t = &readahead->tracks[readahead->hand];
        readahead->hand = (readahead->hand + 1) % TRACKS;
        bool is_alone =
            t->key == NULL || (t->streak == 0 && sequence_of(t)->readers == 0 && !t->is_expected);
        if (is_alone || now_us - t->used_us >= TRACK_KEEP_US) {
            return t;
        }
    }
    return NULL;
}

static void track_open(struct readahead_track *t, struct proxy_worker *pw, struct object_key *key,
                       uint64_t first)
{
    track_clear(t);
    check(t->run_count == 0 && t->head == NULL && t->object == NULL);
    t->pw = pw;
    t->key = object_key_ref(key);
    t->block_size_bytes = key->limits.block_size_bytes;
    t->edge = t->paced_edge = first;
    t->limit = t->asked_end = 0;
    t->streak = t->strides = t->named = t->next_serial = 0;
    t->serial = ++pw->readahead->last_serial;
    t->is_idle = t->is_missing = t->is_unfit = t->is_expected = t->is_series_read = false;
    t->paced_us = t->used_us = worker_now_us(pw->worker);
    t->run_us = t->reader_us = 0;
    *sequence_of(t) = (struct sequence){.name = key->hash.lo, .begin = first, .next = first};
}

// Sets the version that the track reads.
static void track_learn(struct readahead_track *t, struct store_object *object)
{
    check(t->object == NULL && object != NULL);
    t->object = store_object_ref(object);
    t->block_size_bytes = object->block_size_bytes;
}

// Compares the new track with the one that was begun before it. Counts in `strides` how many equal
// distances there were in a row. From STRIDE_MIN on, the track fetches parts.
static void track_measure(struct readahead_track *t, const struct get_state *g)
{
    struct readahead_track *last = t->pw->readahead->last;
    t->pw->readahead->last = t;
    t->part = g->end - g->first;
    t->stride = 0;
    t->strides = 0;
    if (last == NULL || last == t || !is_of(last, g) || last->part != t->part ||
        g->first < sequence_of(last)->begin + t->part) {
        return;
    }
    t->stride = g->first - sequence_of(last)->begin;
    t->strides = t->stride == last->stride ? last->strides + 1 : 1;
    if (is_strided(t)) {
        t->streak = STREAK_MIN;
        t->limit = g->object->size_bytes;
        sequence_of(t)->next = g->first + t->stride;
    }
}

// Returns the request's track: the nearest one that fits, otherwise a new one. NULL: all tracks are
// in use.
static struct readahead_track *track_find(struct request *r)
{
    struct get_state *g = get_of(r);
    struct readahead *readahead = readahead_of(r->pw);
    struct readahead_track *nearest = NULL;
    uint64_t least = UINT64_MAX;
    for (unsigned i = 0; i < TRACKS; i++) {
        struct readahead_track *t = &readahead->tracks[i];
        if (readahead->sequences[i].name != g->key->hash.lo) {
            continue;
        }
        if (t->is_expected && hash128_equal(t->key->hash, g->key->hash) && !is_of(t, g)) {
            t->is_expected = false; // the reader reads another version than the one fetched ahead
            track_clear(t);
            continue;
        }
        uint64_t off = distance(&readahead->sequences[i], r->pw->proxy->worker_count, g);
        if (off < least && is_of(t, g)) {
            least = off;
            nearest = t;
        }
    }
    if (nearest == NULL) {
        nearest = track_spare(readahead, worker_now_us(r->pw->worker));
        if (nearest != NULL) {
            track_open(nearest, r->pw, g->key, g->first);
            track_learn(nearest, g->object);
            track_measure(nearest, g);
        }
    }
    return nearest;
}

// Returns true if the request reads a large object from its first byte on (series.c).
static bool is_of_series(const struct get_state *g, const struct store *store)
{
    return g->first == 0 && g->object->size_bytes > store_run_bytes_max(store);
}

// Adds the request as a reader of the track.
static void track_join(struct readahead_track *t, struct get_state *g)
{
    check(t->key != NULL && g->track_serial == 0);
    check(get_phase_has_replied(g) && g->object != NULL);
    struct sequence *s = sequence_of(t);
    if (t->object == NULL) {
        head_leave(t);
        track_learn(t, g->object);
    }
    if (t->is_expected) {
        t->is_expected = false;
        t->limit = 0; // this reader may want only a part of the object
        t->paced_us = worker_now_us(t->pw->worker);
    }
    if (is_of_series(g, t->pw->store)) {
        t->is_series_read |= series_begin(t->pw->proxy->series, g->key);
    }
    if (is_strided(t) && g->first == s->next && g->end - g->first <= t->part) {
        s->next += t->stride;
    } else if (is_strided(t) && g->first != s->begin) { // the request does not continue the stride
        t->strides = t->streak = 0;
        t->limit = 0;
    }
    if (!is_strided(t) && g->end > s->next) {
        t->streak += s->next > s->begin;
        s->next = g->end;
    }
    s->begin = min_u64(s->begin, g->first);
    if (t->streak >= STREAK_MIN) {
        t->limit = g->object->size_bytes;
    } else if (g->end - g->first > run_bytes(t)) {
        t->limit = max_u64(t->limit, g->end);
    }
    s->readers++;
    g->track = (unsigned)(t - t->pw->readahead->tracks);
    g->track_serial = t->serial;
}

// Returns the request's track. NULL: the track now belongs to another sequence.
static struct readahead_track *track_of(const struct request *r)
{
    const struct get_state *g = r->get;
    check(g->track_serial != 0 && g->track < TRACKS);
    struct readahead_track *t = &r->pw->readahead->tracks[g->track];
    return t->key != NULL && t->serial == g->track_serial ? t : NULL;
}

static void track_pace(struct readahead_track *t)
{
    if (t->edge < t->paced_edge + run_bytes(t)) {
        return;
    }
    uint64_t runs = (t->edge - t->paced_edge) / run_bytes(t);
    check(runs > 0 && t->used_us >= t->paced_us);
    t->reader_us = average(t->reader_us, (t->used_us - t->paced_us) / runs);
    t->paced_edge = t->edge;
    t->paced_us = t->used_us;
}

// --- the next object -----------------------------------------------------------------------------

// Returns the track of the next object. NULL: there is none, or a reader has reached it already.
static struct readahead_track *next_of(const struct readahead_track *t)
{
    struct readahead_track *next = t->next;
    bool is_there = t->next_serial != 0 && next->key != NULL && next->serial == t->next_serial;
    return is_there && next->is_expected ? next : NULL;
}

static bool is_fit(const struct readahead_track *next, const struct store_object *object)
{
    uint64_t most = next->key->limits.max_object_size_bytes;
    return object->etag.len > 0 && !span_starts_with(object->etag, SPAN("W/")) &&
           object->size_bytes > store_run_bytes_max(next->pw->store) &&
           (most == 0 || object->size_bytes <= most);
}

static void on_head(void *ctx, struct subscription *sub)
{
    struct readahead_track *next = ctx;
    check(next->head == sub && sub->state == SUBSCRIPTION_ENDED);
    bool is_told = sub->outcome == OUTCOME_REVALIDATED || sub->outcome == OUTCOME_ERROR;
    // validated_us above 0: the home knew the version, so another client is about to read it.
    if (sub->outcome == OUTCOME_REVALIDATED && sub->err == ERR_OK && sub->validated_us == 0 &&
        is_fit(next, sub->answer)) {
        track_learn(next, sub->answer);
        next->limit = next->object->size_bytes;
        head_leave(next);
        track_ask(next);
        return;
    }
    unsigned status = is_told && sub->err != ERR_OK ? error_row(sub->err)->status : 0;
    if (status >= 400 && status < 500) {
        series_refuse(next->pw->proxy->series, next->key, status == 404);
    }
    track_clear(next);
}

static bool is_held(struct proxy_worker *pw, const struct object_key *key)
{
    static _Thread_local struct store_view view;
    store_lookup(pw->worker, pw->store, key->hash, 0, 1, fill_floor(pw->fill, key->hash), &view);
    bool is_held = view.found || view.unknown;
    store_view_done(&view);
    return is_held;
}

static bool is_tracked(const struct readahead *readahead, const struct object_key *key)
{
    for (unsigned i = 0; i < TRACKS; i++) {
        const struct readahead_track *t = &readahead->tracks[i];
        if (t->key != NULL && hash128_equal(t->key->hash, key->hash)) {
            return true;
        }
    }
    return false;
}

// Begins the track of the next object with a HEAD, which learns its version.
static void next_begin(struct readahead_track *t, struct object_key *key)
{
    struct readahead *readahead = t->pw->readahead;
    if (is_tracked(readahead, key) || is_held(t->pw, key) ||
        !store_would_take(t->pw->store, key->hash, 0, key->limits.group)) {
        return;
    }
    struct readahead_track *next = track_spare(readahead, t->used_us);
    if (next == NULL || next == t) {
        return;
    }
    track_open(next, t->pw, key, 0);
    check(next->key == key && next != t);
    next->is_missing = next->is_expected = true;
    next->client = t->client;
    next->run_us = t->run_us;
    next->reader_us = t->reader_us;
    t->next = next;
    t->next_serial = next->serial;
    struct fill_ask ask = {.kind = FILL_ASK_CURRENT, .key = key, .client = t->client};
    next->head = subscription_ask(t->pw->fill, &ask, on_head, next);
    stats_add(COUNTER_readahead_objects, 1);
}

// Begins the next object's track if this reader may read that object and the same cache rule
// applies.
static void next_look(struct readahead_track *t, struct request *r)
{
    char text[S3_KEY_MAX];
    struct span name;
    if (r->s3.presigned || t->named >= NEXT_NAMES_MAX || !has_room(t) ||
        !series_next(r->pw->proxy->series, t->key, text, &name)) {
        return;
    }
    t->named++;
    if (rules_find(r->live, r->s3.bucket, name) == r->rule && gate_allows(r, S3_ALLOW_READ, name)) {
        struct object_key *key = request_object_key_beside(r, name);
        next_begin(t, key);
        object_key_unref(key);
    }
}

// Uses the part of the window after the object's end for the next object. Does so once all bytes up
// to the object's end are requested, or soon will be.
static void track_follow(struct readahead_track *t, struct request *r)
{
    check(t->object != NULL);
    uint64_t bytes = window(t), end = t->object->size_bytes;
    bool is_cold = t->is_missing || (t->is_series_read && !t->is_unfit);
    bool is_read_to_end = sequence_of(t)->next >= end;
    if (!is_cold || (t->limit < end && !is_read_to_end) || is_strided(t) ||
        t->edge + 2 * bytes < end) {
        return;
    }
    struct readahead_track *next = next_of(t);
    get_of(r)->readahead_at -= STORE_RUN_MAX - NEXT_LOOK_BYTES; // the next call comes sooner
    if (next == NULL) {
        next_look(t, r);
        next = next_of(t);
    }
    if (next == NULL) {
        return;
    }
    bool is_all_asked = is_read_to_end || t->asked_end >= end;
    next->used_us = t->used_us;
    next->is_idle = false;
    next->most_bytes = is_all_asked && t->edge + bytes > end ? t->edge + bytes - end : 0;
    track_ask(next);
}

// Returns true if the rest of the object will not be stored either, so that read-ahead is useless.
// Refusals by policy, disk or index do not count: they are about one run only, or temporary.
static bool is_unfit(const struct subscription *run)
{
    enum refusal why = refusal_of_word(run->unstored_why);
    return run->unstored_why != NULL && why != REFUSAL_not_admitted && why != REFUSAL_disk_busy &&
           why != REFUSAL_buffer_full && why != REFUSAL_index_busy && why != REFUSAL_index_full &&
           why != REFUSAL_disk_slow;
}

static void track_note(struct readahead_track *t, struct request *r)
{
    struct get_state *g = get_of(r);
    check(sequence_of(t)->readers > 0 && t->serial == g->track_serial);
    const struct subscription *run = g->runs[0];
    if (!object_key_asks_alike(t->key, g->key)) {
        object_key_unref(t->key);
        t->key = object_key_ref(g->key); // further runs use this reader's credentials and rule
    }
    t->used_us = worker_now_us(r->pw->worker);
    t->is_idle = false;
    t->client = request_client(r);
    t->most_bytes = r->rule->readahead_bytes;
    if (run != NULL && run->answer != NULL) {
        t->is_unfit = is_unfit(run);
    }
    t->is_missing = !t->is_unfit && (t->is_missing || (run != NULL && !run->whole));
    t->edge = max_u64(t->edge, g->pos);
    runs_read(t);
    track_pace(t);
    // The reader itself requests the run in flight and the one after it, so only later runs are
    // requested ahead.
    uint64_t own_end = max_u64(run != NULL ? run->run_end_byte : 0, g->pos) + run_bytes(t);
    t->asked_end = max_u64(t->asked_end, block_end(t, min_u64(own_end, g->end)));
    if (t->streak >= STREAK_MIN && !is_strided(t)) {
        t->asked_end = max_u64(t->asked_end, block_end(t, sequence_of(t)->next));
    }
    track_ask(t);
    track_follow(t, r);
}

void readahead_note(struct request *r)
{
    struct get_state *g = get_of(r);
    check(get_phase_has_replied(g) && g->pos <= g->end);
    g->readahead_at = g->pos + STORE_RUN_MAX;
    const struct subscription *run = g->runs[0];
    bool is_cached = r->rule->cache && g->object->etag.len > 0 && (run == NULL || !run->weak);
    // If one run covers the whole object for its reader, nothing is left to fetch ahead.
    bool is_all = g->first == 0 && g->end == g->object->size_bytes &&
                  g->end <= store_run_bytes_max(r->pw->store);
    if (!is_cached || is_all || r->rule->readahead_bytes == 0) {
        return;
    }
    struct readahead_track *t = g->track_serial == 0 ? track_find(r) : track_of(r);
    if (t == NULL) {
        return;
    }
    if (g->track_serial == 0) {
        track_join(t, g);
    }
    track_note(t, r);
}

void readahead_leave(struct request *r)
{
    struct get_state *g = get_of(r);
    if (g->track_serial != 0 && is_of_series(g, r->pw->store)) {
        series_end(r->pw->proxy->series);
    }
    struct readahead_track *t = g->track_serial != 0 ? track_of(r) : NULL;
    if (t == NULL) {
        return;
    }
    struct sequence *s = sequence_of(t);
    check(s->readers > 0);
    s->readers--;
    t->edge = max_u64(t->edge, g->pos);
    runs_read(t);
    if (s->readers > 0) {
        return;
    }
    if (g->pos < g->end) { // the reply ended before its last byte was sent
        struct readahead_track *next = next_of(t);
        t->is_missing = false;
        track_stop(t);
        if (next != NULL) {
            track_clear(next);
        }
    }
    struct readahead *readahead = t->pw->readahead;
    if (!readahead->is_timed) {
        readahead->is_timed = true;
        timer_start(&readahead->idle_timer, TRACK_IDLE_MS);
    }
}

void readahead_free(struct readahead *readahead)
{
    if (readahead == NULL) {
        return;
    }
    for (unsigned i = 0; i < TRACKS; i++) {
        struct readahead_track *t = &readahead->tracks[i];
        object_key_unref(t->key);
        store_object_unref(t->object);
    }
    timer_done(&readahead->idle_timer);
    free(readahead);
}

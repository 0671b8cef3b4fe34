// SPDX-License-Identifier: Apache-2.0
// Keeps doubts. A bucket is in doubt while a write with an unknown outcome may still change it: the
// write was sent to the origin, and the origin may apply it later. Even if the origin has just
// confirmed a cached object, the write may change that object afterwards.
//
// Each doubt has a time at which it ends. Until then, each use of a record of the bucket
// revalidates it. After that, a record that was last confirmed before the end is revalidated once.
// So nothing has to happen at the end of a doubt. Only the time of the end is kept, permanently.
// The design assumes that no origin applies a write later than STORE_DOUBT_MS after the last sign
// of that write.
//
// Restarts. Before the first write to a bucket is sent, `format` notes that the bucket is being
// written to. If the process ends without a clean stop, the outcome of its writes is unknown. The
// next process finds the note and puts the bucket in doubt. A clean stop removes the notes and
// keeps the times. The next process compares these times with the wall clock. Within one process,
// times are compared with the monotonic clock. A note is also removed after STORE_DOUBT_MS without
// a write and without a doubt, so a crash after that puts nothing in doubt. It stays while a delete
// of a write is not durable that went on because of the note. If a note cannot be written, the
// failure is counted and the write is sent without a note, because a full disk must not make a
// request fail. The doubt is then lost only if the process is killed during that write.
//
// An origin that comes back after starts that did not name it is in doubt, too (state_holder.c).
// Others may have changed its objects in the meantime. Such a doubt covers all buckets of the
// origin. It has a slot like a bucket's, with the origin's name and no bucket. It ends at once,
// unless writes of the former process may still be applied. So each record that was confirmed
// before the origin came back is revalidated once.
//
// If an origin leaves at a start, all others are in doubt in the same way (state_holder.c). A
// reload that gives a bucket another origin puts the bucket in doubt at both (command_origins.c).
// These doubts are saved in `format`, because a start cannot know that the bucket was elsewhere: by
// the next write before it is sent, by the next write that ends before its client is answered, and
// by the supply thread while a write is in flight.
//
// At most STATE_DOUBTS_MAX buckets and origins have a time of their own. All others share one time,
// so a doubt about one of them is a doubt about all of them. A start frees the rows that say no
// more than the shared time does, such as those of buckets whose writes all had a known outcome.
//
// Threads:
// - Look-ups: any thread, without a lock.
// - Doubts: any thread, which holds a lock for a moment.
// - Notes: a thread of the blocking pool, which holds store_dir.format_lock.
#include "store/state/state_doubt.h"
#include "base/clock.h"
#include "base/log.h"
#include "stats/stats.h"

static struct hash128 doubt_hash(const struct store_doubts *doubts, struct span origin,
                                 struct span bucket)
{
    return disk_hash(doubts->disk, origin, bucket, SPAN("doubt"));
}

static const struct store_doubt_slot *doubt_find(const struct store_doubts *doubts,
                                                 struct hash128 bucket)
{
    unsigned count = atomic_load_explicit(&doubts->count, memory_order_acquire);
    for (unsigned i = 0; i < count; i++) {
        if (hash128_equal(doubts->slots[i].bucket, bucket)) {
            return &doubts->slots[i];
        }
    }
    return &doubts->others;
}

static bool is_before(uint64_t until_ms, uint64_t now_ms, uint64_t age_ms)
{
    return until_ms > 0 && (now_ms < until_ms || age_ms >= now_ms - until_ms);
}

bool state_is_doubted(const struct store_doubts *doubts, struct span origin, struct span bucket,
                      uint64_t age_ms)
{
    if (!atomic_load(&doubts->any)) {
        return false;
    }
    const struct store_doubt_slot *slot = doubt_find(doubts, doubt_hash(doubts, origin, bucket));
    return is_before(atomic_load(&slot->until_mono_ms), clock_monotonic_ms(), age_ms) ||
           is_before(atomic_load(&slot->until_wall_ms), clock_wall_us() / 1000, age_ms);
}

static struct store_doubt_slot *doubt_slot_locked(struct store_doubts *doubts,
                                                  struct hash128 bucket)
{
    // The cast removes `const`: look-ups only read a slot, but this thread holds the lock and may
    // write it.
    struct store_doubt_slot *slot =
        (struct store_doubt_slot *)(uintptr_t)doubt_find(doubts, bucket);
    unsigned count = atomic_load(&doubts->count);
    check(count <= STATE_DOUBTS_MAX);
    if (slot != &doubts->others || count == STATE_DOUBTS_MAX) {
        return slot;
    }
    slot = &doubts->slots[count];
    check(atomic_load(&slot->until_mono_ms) == 0 && atomic_load(&slot->until_wall_ms) == 0);
    slot->bucket = bucket;
    atomic_store(&slot->until_mono_ms, atomic_load(&doubts->others.until_mono_ms));
    atomic_store(&slot->until_wall_ms, atomic_load(&doubts->others.until_wall_ms));
    atomic_store_explicit(&doubts->count, count + 1, memory_order_release);
    return slot;
}

// Each doubt of a slot has a later end than those before, by which state_doubt_end() knows it.
static void doubt_add(struct store_doubts *doubts, struct span origin, struct span bucket,
                      struct store_doubt_open *ret_open)
{
    struct hash128 hash = doubt_hash(doubts, origin, bucket);
    pthread_mutex_lock(&doubts->lock);
    struct store_doubt_slot *slot = doubt_slot_locked(doubts, hash);
    uint64_t before_ms = atomic_load(&slot->until_mono_ms);
    uint64_t until_ms = max_u64(clock_monotonic_ms() + STORE_DOUBT_MS, before_ms + 1);
    atomic_store(&slot->until_mono_ms, until_ms);
    atomic_store(&doubts->any, true);
    pthread_mutex_unlock(&doubts->lock);
    *ret_open = (struct store_doubt_open){slot, before_ms, until_ms};
    stats_add(COUNTER_bucket_doubts, 1);
    stats_add(COUNTER_bucket_doubts_shared, slot == &doubts->others ? 1 : 0);
}

void state_doubt(struct store_doubts *doubts, struct span origin, struct span bucket)
{
    struct store_doubt_open open; // ends by itself
    doubt_add(doubts, origin, bucket, &open);
}

void state_doubt_begin(struct store_doubts *doubts, struct span origin, struct span bucket,
                       struct store_doubt_open *ret_open)
{
    doubt_add(doubts, origin, bucket, ret_open);
    atomic_fetch_add(&doubts->unsaved, 1); // after the doubt, which on_note() then sees
}

void state_doubt_end(struct store_doubts *doubts, const struct store_doubt_open *open)
{
    pthread_mutex_lock(&doubts->lock);
    if (atomic_load(&open->slot->until_mono_ms) == open->until_ms) {
        atomic_store(&open->slot->until_mono_ms, max_u64(clock_monotonic_ms(), open->before_ms));
    }
    pthread_mutex_unlock(&doubts->lock);
}

// --- `format` ------------------------------------------------------------------------------------

// Returns the later of the slot's two times, as a time of the wall clock.
static uint64_t slot_until(const struct store_doubt_slot *slot)
{
    uint64_t until_ms = atomic_load(&slot->until_mono_ms), now_ms = clock_monotonic_ms();
    uint64_t wall_ms = clock_wall_us() / 1000, before_ms = atomic_load(&slot->until_wall_ms);
    uint64_t left_ms = until_ms > now_ms ? until_ms - now_ms : 0;
    uint64_t ago_ms = until_ms > 0 && until_ms < now_ms ? min_u64(now_ms - until_ms, wall_ms) : 0;
    return max_u64(before_ms, until_ms > 0 ? wall_ms + left_ms - ago_ms : 0);
}

// Returns the row of a slot. Rows are in the order of slots.
static struct state_row *row_of(struct store_doubts *doubts, const struct store_doubt_slot *slot)
{
    check(slot == &doubts->others ||
          (slot >= doubts->slots && slot < doubts->slots + STATE_DOUBTS_MAX));
    struct state_table *state = &doubts->disk->dir.format.state;
    return slot == &doubts->others ? &state->others[STATE_DOUBTS]
                                   : &state_table_rows(state, STATE_DOUBTS)[slot - doubts->slots];
}

static void row_from_slot(struct store_doubts *doubts, const struct store_doubt_slot *slot)
{
    struct state_row *row = row_of(doubts, slot);
    row->key = slot->bucket;
    row->number = slot_until(slot);
    row->flag = atomic_load(&slot->is_noted);
}

static void rows_from_slots(struct store_doubts *doubts)
{
    unsigned count = atomic_load_explicit(&doubts->count, memory_order_acquire);
    doubts->disk->dir.format.state.count[STATE_DOUBTS] = count;
    for (unsigned i = 0; i < count; i++) {
        row_from_slot(doubts, &doubts->slots[i]);
    }
    row_from_slot(doubts, &doubts->others);
}

// Returns the end of the last doubt of any bucket, as a time of the wall clock.
static uint64_t last_until(const struct store_doubts *doubts)
{
    uint64_t until_ms = slot_until(&doubts->others);
    for (unsigned i = 0; i < atomic_load(&doubts->count); i++) {
        until_ms = max_u64(until_ms, slot_until(&doubts->slots[i]));
    }
    return until_ms;
}

// Returns the end of the slot's doubt in seconds of the wall clock. 0: there is none now.
static uint64_t slot_ends_s(const struct store_doubt_slot *slot)
{
    uint64_t until_ms = slot_until(slot);
    return until_ms > clock_wall_us() / 1000 ? (until_ms + 999) / 1000 : 0;
}

uint64_t state_doubt_until_s(const struct store_doubts *doubts, struct span origin,
                             struct span bucket)
{
    return slot_ends_s(doubt_find(doubts, doubt_hash(doubts, origin, bucket)));
}

void state_doubted(const struct store_doubts *doubts, struct store_doubted *ret_doubted)
{
    *ret_doubted = (struct store_doubted){.has_others = slot_ends_s(&doubts->others) > 0,
                                          .after_crash = clock_monotonic_ms() <
                                                         atomic_load(&doubts->crash_until_ms),
                                          .until_s = (last_until(doubts) + 999) / 1000};
    unsigned count = atomic_load_explicit(&doubts->count, memory_order_acquire);
    for (unsigned i = 0; i < count; i++) {
        ret_doubted->buckets += slot_ends_s(&doubts->slots[i]) > 0;
    }
}

static void slot_doubt_past(struct store_doubt_slot *slot, uint64_t until_wall_ms)
{
    uint64_t mono_ms = max_u64(clock_monotonic_ms(), atomic_load(&slot->until_mono_ms));
    atomic_store(&slot->until_mono_ms, mono_ms);
    atomic_store(&slot->until_wall_ms, until_wall_ms);
}

void state_doubt_origin(struct store_doubts *doubts, struct span origin)
{
    struct hash128 hash = doubt_hash(doubts, origin, SPAN(""));
    pthread_mutex_lock(&doubts->lock);
    struct store_doubt_slot *slot = doubt_slot_locked(doubts, hash);
    slot_doubt_past(slot, last_until(doubts));
    atomic_store(&doubts->any, true);
    pthread_mutex_unlock(&doubts->lock);
    stats_add(COUNTER_bucket_doubts_shared, slot == &doubts->others ? 1 : 0);
    rows_from_slots(doubts);
}

void state_doubt_all(struct store_doubts *doubts)
{
    pthread_mutex_lock(&doubts->lock);
    uint64_t until_ms = last_until(doubts);
    for (unsigned i = 0; i < atomic_load(&doubts->count); i++) {
        slot_doubt_past(&doubts->slots[i], until_ms);
    }
    slot_doubt_past(&doubts->others, until_ms);
    atomic_store(&doubts->any, true);
    pthread_mutex_unlock(&doubts->lock);
    rows_from_slots(doubts);
}

static void slot_load(struct store_doubts *doubts, struct store_doubt_slot *slot)
{
    struct state_row *row = row_of(doubts, slot);
    if (row->flag) {
        uint64_t until_ms = clock_wall_us() / 1000 + STORE_DOUBT_MS;
        row->number = max_u64(row->number, until_ms);
        row->flag = false;
        atomic_store(&slot->until_mono_ms, clock_monotonic_ms() + STORE_DOUBT_MS);
        atomic_store(&doubts->crash_until_ms, atomic_load(&slot->until_mono_ms));
        stats_add(COUNTER_bucket_doubts, 1);
    }
    slot->bucket = row->key;
    atomic_store(&slot->until_wall_ms, row->number);
    if (row->number > 0) {
        atomic_store(&doubts->any, true);
    }
}

static void rows_free_unneeded(struct state_table *state)
{
    const struct state_row *rows = state_table_rows(state, STATE_DOUBTS);
    const struct state_row *others = &state->others[STATE_DOUBTS];
    for (unsigned i = state->count[STATE_DOUBTS]; i-- > 0;) {
        if (!rows[i].flag && !others->flag && rows[i].number <= others->number) {
            state_table_remove(state, STATE_DOUBTS, rows[i].key);
        }
    }
}

void state_doubts_load(struct store_doubts *doubts)
{
    rows_free_unneeded(&doubts->disk->dir.format.state);
    unsigned count = doubts->disk->dir.format.state.count[STATE_DOUBTS];
    check(atomic_load(&doubts->count) == 0 && count <= STATE_DOUBTS_MAX);
    slot_load(doubts, &doubts->others);
    for (unsigned i = 0; i < count; i++) {
        slot_load(doubts, &doubts->slots[i]);
    }
    atomic_store(&doubts->count, count);
}

void state_doubts_settle(struct store_doubts *doubts)
{
    rows_from_slots(doubts);
    if (stats_sum(COUNTER_writes_inflight) > 0 || atomic_load(&doubts->owed) > 0) {
        return; // some writes or their deletes have not ended, so the notes must stay
    }
    row_of(doubts, &doubts->others)->flag = false;
    for (unsigned i = 0; i < doubts->disk->dir.format.state.count[STATE_DOUBTS]; i++) {
        row_of(doubts, &doubts->slots[i])->flag = false;
    }
}

// --- notes ---------------------------------------------------------------------------------------

bool state_write_is_noted(const struct store_doubts *doubts, struct span origin, struct span bucket)
{
    // The caller has already counted the write: see notes_take_locked(). The cast removes `const`.
    // The increment changes no doubt; it only orders this check and the removal of notes.
    atomic_fetch_add((atomic_uint *)(uintptr_t)&doubts->passings, 1);
    return !doubts->disk->attached ||
           (atomic_load(&doubts->unsaved) == 0 &&
            atomic_load(&doubt_find(doubts, doubt_hash(doubts, origin, bucket))->is_noted));
}

// Saves the doubts, for a write that is in flight or will be. Notes the slot, unless it is NULL.
static enum err save_locked(struct store_doubts *doubts, const struct store_doubt_slot *slot)
{
    unsigned unsaved = atomic_load(&doubts->unsaved); // before the rows
    rows_from_slots(doubts);
    if (slot != NULL) {
        row_of(doubts, slot)->flag = true;
    }
    state_table_clear(&doubts->disk->dir.format.state, STATE_FORMER);
    enum err err = disk_commit_state(doubts->disk);
    atomic_fetch_sub(&doubts->unsaved, err == ERR_OK ? unsaved : 0);
    return err;
}

static void on_note(struct blocking_job *job)
{
    struct store_note *note = container_of(job, struct store_note, job);
    struct store_doubts *doubts = note->doubts;
    check(doubts != NULL && note->done != NULL);
    pthread_mutex_lock(&doubts->disk->dir.format_lock);
    pthread_mutex_lock(&doubts->lock);
    struct store_doubt_slot *slot = doubt_slot_locked(doubts, note->bucket);
    pthread_mutex_unlock(&doubts->lock);
    if (!atomic_load(&slot->is_noted) || atomic_load(&doubts->unsaved) > 0) {
        job->err = save_locked(doubts, slot);
        atomic_store(&slot->is_noted, job->err == ERR_OK);
    }
    pthread_mutex_unlock(&doubts->disk->dir.format_lock);
}

static void on_noted(struct blocking_job *job)
{
    struct store_note *note = container_of(job, struct store_note, job);
    if (job->err != ERR_OK) {
        log_warn_condition("write_not_noted", "err=%s dir=%s", error_name(job->err),
                           log_quote(span_from_cstr(note->doubts->disk->dir.path)));
    }
    note->done(note);
}

void state_write_note(struct worker *w, struct store_doubts *doubts, struct span origin,
                      struct span bucket, struct store_note *note)
{
    check(note->done != NULL);
    note->doubts = doubts;
    note->bucket = doubt_hash(doubts, origin, bucket);
    note->job = (struct blocking_job){.lane = BLOCKING_STORE, .work = on_note, .done = on_noted};
    blocking_pool_run(w, &note->job);
}

static bool writes_are_open(void)
{
    return stats_sum(COUNTER_writes_inflight) > 0 || stats_sum(COUNTER_writes_in_doubt) > 0;
}

// Sets is_noted to `noted` in the slots selected by `which` (NULL: in all slots). Returns how many
// slots changed. Stores the former values in ret_which, unless it is NULL.
static unsigned notes_set(struct store_doubts *doubts, bool noted, const bool *which,
                          bool *ret_which)
{
    unsigned changed = 0;
    check(which == NULL || ret_which == NULL); // no caller needs both arrays
    for (unsigned i = 0; i <= STATE_DOUBTS_MAX; i++) {
        struct store_doubt_slot *slot = i < STATE_DOUBTS_MAX ? &doubts->slots[i] : &doubts->others;
        if (which == NULL || which[i]) {
            bool was = atomic_exchange(&slot->is_noted, noted);
            changed += was != noted;
            if (ret_which != NULL) {
                ret_which[i] = was;
            }
        }
    }
    return changed;
}

void state_doubts_note_all(struct store_doubts *doubts)
{
    (void)notes_set(doubts, true, NULL, NULL);
    rows_from_slots(doubts);
    check(row_of(doubts, &doubts->others)->flag);
}

bool state_doubts_owe(struct store_doubts *doubts, struct span origin, struct span bucket)
{
    atomic_fetch_add(&doubts->owed, 1); // before the check: see notes_take_locked()
    bool is_noted = state_write_is_noted(doubts, origin, bucket);
    atomic_fetch_sub(&doubts->owed, is_noted ? 0 : 1);
    return is_noted;
}

void state_doubts_pay(struct store_doubts *doubts)
{
    check(atomic_fetch_sub(&doubts->owed, 1) > 0);
}

static bool notes_are_needed(const struct store_doubts *doubts)
{
    return writes_are_open() || atomic_load(&doubts->owed) > 0;
}

// Clears the notes, and then checks once more for writes. A write does the reverse: it is counted,
// and then checks for its note. Between its two steps, each side increments `passings`. So
// whichever increments second sees the first step of the other.
static void notes_take_locked(struct store_doubts *doubts)
{
    bool were[STATE_DOUBTS_MAX + 1] = {false};
    enum err err = ERR_OK;
    if (notes_set(doubts, false, NULL, were) == 0) {
        return;
    }
    atomic_fetch_add(&doubts->passings, 1);
    bool open = notes_are_needed(doubts);
    if (!open) {
        rows_from_slots(doubts);
        err = disk_commit_state(doubts->disk);
    }
    if (open || err != ERR_OK) {
        (void)notes_set(doubts, true, were, NULL); // a later tick tries again
    }
}

// Saves doubts that a reload has begun, if a write is in flight: a kill before its end would lose
// them. If the lock of `format` is held, a later tick tries again, and so it does after an error.
static void unsaved_save(struct store_doubts *doubts)
{
    if (atomic_load(&doubts->unsaved) > 0 && writes_are_open() &&
        pthread_mutex_trylock(&doubts->disk->dir.format_lock) == 0) {
        (void)!save_locked(doubts, NULL);
        pthread_mutex_unlock(&doubts->disk->dir.format_lock);
    }
}

void state_doubts_tick(struct store_doubts *doubts)
{
    unsaved_save(doubts);
    uint64_t now_ms = clock_monotonic_ms();
    uint64_t since_ms = atomic_load(&doubts->idle_since_ms);
    check(since_ms <= now_ms); // no race: only this thread sets idle_since_ms
    if (since_ms == 0 || notes_are_needed(doubts)) {
        atomic_store(&doubts->idle_since_ms, now_ms);
    } else if (now_ms - since_ms > STORE_DOUBT_MS) {
        atomic_store(&doubts->idle_since_ms, now_ms);
        pthread_mutex_lock(&doubts->disk->dir.format_lock);
        notes_take_locked(doubts);
        pthread_mutex_unlock(&doubts->disk->dir.format_lock);
    }
}

void state_doubts_init(struct store_doubts *doubts, struct store_disk *disk)
{
    check(disk != NULL && atomic_load(&doubts->count) == 0);
    doubts->disk = disk;
    check(pthread_mutex_init(&doubts->lock, NULL) == 0);
}

void state_doubts_done(struct store_doubts *doubts)
{
    check(pthread_mutex_destroy(&doubts->lock) == 0);
}

// SPDX-License-Identifier: Apache-2.0
// The list of places of freed segments that the index must still forget. The freeing thread adds
// them. The index writer takes a slice with each commit. If many wait, it makes a separate commit
// for them. No thread waits until a place is forgotten. Until then the place is a miss, because
// segment numbers and salts are never reused. A newer place of the same blocks stays, because only
// the exact place is removed.
//
// If the index has no room for a commit, the writer leaves the slice out, so that no run and no
// delete fails because of places that can wait.
//
// A slice is sorted by key, because neighbours share pages of the tree.
//
// At most INDEX_FORGET_MAX places wait. At this limit the freeing thread waits, but only after it
// has returned the space. If the index forgets nothing for INDEX_FORGET_WAIT_MS, the new places
// stay in the index, and each is removed when a look-up finds it. The freeing thread then does not
// wait again until the index has forgotten something. A stop does not wait for room, because few
// places are left then.
#include "store/index/index_forget.h"

#include <stdlib.h>
#include <time.h>

#include "base/check.h"
#include "base/clock.h"
#include "stats/stats.h"
#include "store/index/index.h"
#include "store/index/index_apply.h"

static_assert(INDEX_FORGET_SLICE_LAST % INDEX_FORGET_SLICE == 0, "the last slices are whole ones");

struct forget_list {
    struct forget_list *next;
    struct segment_removal *removals;
    unsigned count, taken;
};

void index_forget_init(struct index_forget *forget)
{
    *forget = (struct index_forget){0};
    check(pthread_mutex_init(&forget->guarded.lock, NULL) == 0);
    clock_cond_init(&forget->guarded.room);
    forget->guarded.last = &forget->guarded.first;
}

static void list_free(struct forget_list *list)
{
    free(list->removals);
    free(list);
}

void index_forget_done(struct index_forget *forget)
{
    struct forget_list *next;
    check(forget->slice_count <= atomic_load(&forget->waiting));
    for (struct forget_list *list = forget->guarded.first; list != NULL; list = next) {
        next = list->next;
        list_free(list);
    }
    stats_sub(COUNTER_index_forgets_waiting, atomic_load(&forget->waiting));
    free(forget->slice);
    check(pthread_mutex_destroy(&forget->guarded.lock) == 0);
    pthread_cond_destroy(&forget->guarded.room);
}

static bool is_full_locked(const struct index_forget *forget, unsigned count)
{
    unsigned waiting = atomic_load(&forget->waiting);
    return waiting > 0 && waiting + count > INDEX_FORGET_MAX && !forget->guarded.hurries;
}

// Waits for room. Returns false after INDEX_FORGET_WAIT_MS without room. The next calls then do not
// wait until something is forgotten.
static bool wait_for_room_locked(struct index_forget *forget, unsigned count)
{
    struct timespec until;
    check(clock_gettime(CLOCK_MONOTONIC, &until) == 0);
    until.tv_sec += INDEX_FORGET_WAIT_MS / 1000;
    while (is_full_locked(forget, count) && !forget->guarded.is_stuck) {
        forget->guarded.is_stuck =
            pthread_cond_timedwait(&forget->guarded.room, &forget->guarded.lock, &until) != 0;
    }
    return !is_full_locked(forget, count);
}

void index_forget_add(struct index_forget *forget, struct segment_removal *removals, unsigned count)
{
    check(removals != NULL || count == 0);
    struct forget_list *list = calloc(1, sizeof(*list));
    check(list != NULL);
    list->removals = removals;
    list->count = count;
    pthread_mutex_lock(&forget->guarded.lock);
    if (count > 0 && wait_for_room_locked(forget, count)) {
        check(*forget->guarded.last == NULL);
        *forget->guarded.last = list;
        forget->guarded.last = &list->next;
        atomic_fetch_add(&forget->waiting, count);
        stats_add(COUNTER_index_forgets_waiting, count);
        list = NULL;
    }
    pthread_mutex_unlock(&forget->guarded.lock);
    if (list != NULL) {
        stats_add(COUNTER_index_forgets_dropped, count);
        list_free(list);
    }
}

void index_forget_hurry(struct index_forget *forget)
{
    pthread_mutex_lock(&forget->guarded.lock);
    forget->guarded.hurries = true;
    pthread_cond_broadcast(&forget->guarded.room);
    pthread_mutex_unlock(&forget->guarded.lock);
}

static int removal_compare(const void *a, const void *b)
{
    const struct segment_removal *x = a;
    const struct segment_removal *y = b;
    if (x->hash.hi != y->hash.hi) {
        return x->hash.hi < y->hash.hi ? -1 : 1;
    }
    if (x->hash.lo != y->hash.lo) {
        return x->hash.lo < y->hash.lo ? -1 : 1;
    }
    return (x->place.first_block > y->place.first_block) -
           (x->place.first_block < y->place.first_block);
}

unsigned index_forget_take(struct index_forget *forget, unsigned max)
{
    check(max > 0 && forget->slice_count <= forget->slice_max);
    if (forget->slice_count > 0 || atomic_load(&forget->waiting) == 0) {
        // Some places of the last slice may be left, because the disk or cache.size had no room to
        // remove them. They are tried again before new places are taken.
        return forget->slice_count;
    }
    if (forget->slice_max < max) {
        free(forget->slice);
        forget->slice = calloc(max, sizeof(*forget->slice));
        check(forget->slice != NULL);
        forget->slice_max = max;
    }
    pthread_mutex_lock(&forget->guarded.lock);
    while (forget->guarded.first != NULL && forget->slice_count < max) {
        struct forget_list *list = forget->guarded.first;
        check(list->taken < list->count);
        unsigned count = (unsigned)min_u64(max - forget->slice_count, list->count - list->taken);
        memcpy(forget->slice + forget->slice_count, list->removals + list->taken,
               count * sizeof(*forget->slice));
        forget->slice_count += count;
        list->taken += count;
        if (list->taken == list->count) {
            forget->guarded.first = list->next;
            if (list->next == NULL) {
                forget->guarded.last = &forget->guarded.first;
            }
            list_free(list);
        }
    }
    pthread_mutex_unlock(&forget->guarded.lock);
    check(forget->slice_count > 0 && forget->slice_count <= max);
    qsort(forget->slice, forget->slice_count, sizeof(*forget->slice), removal_compare);
    return forget->slice_count;
}

void index_forget_apply(const struct index_forget *forget, unsigned at, struct index_txn *t)
{
    check(at < forget->slice_count);
    struct index_change change = {
        .kind = INDEX_DELETE_AT, .hash = forget->slice[at].hash, .place = forget->slice[at].place};
    (void)index_txn_apply(t, &change); // an LMDB error is in t->rc
}

void index_forget_forgotten(struct index_forget *forget, unsigned count)
{
    check(count <= forget->slice_count);
    forget->slice_count -= count;
    memmove(forget->slice, forget->slice + count, forget->slice_count * sizeof(*forget->slice));
    pthread_mutex_lock(&forget->guarded.lock);
    check(atomic_fetch_sub(&forget->waiting, count) >= count);
    stats_sub(COUNTER_index_forgets_waiting, count);
    forget->guarded.is_stuck = false;
    pthread_cond_broadcast(&forget->guarded.room);
    pthread_mutex_unlock(&forget->guarded.lock);
}

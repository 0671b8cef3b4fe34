// SPDX-License-Identifier: Apache-2.0
// Applies a batch in the order of keys, because neighbours share pages of the tree. Changes of one
// key keep their order. Between keys the order does not matter, because no answer is sent before
// all of the batch is committed. Before a transaction, all pages that it will touch are read
// together, so that the transaction does not wait for single pages.
//
// A transaction ends when it has used INDEX_TXN_CPU_US of the thread's CPU time, because the time
// of a change depends on the size of the index and on the processor's caches. It also ends when it
// has taken as many changes as there was room for (index_apply.c). The remaining changes are
// applied in another transaction. Queued changes are applied first, then renewals, then places to
// forget. Index writer only.
#include "store/index/index_batch.h"

#include <stdlib.h>
#include <time.h>

#include "store/index/index_forget.h"
#include "store/index/index_writer.h"
#include "store/segment/segment_log.h"

#define CHANGES_PER_LOOK 16u // changes that are applied between two checks of the CPU time
static_assert(CHANGES_PER_LOOK < INDEX_BATCH_MAX, "a full batch looks at the time");

// --- order

struct ordered {
    struct index_change *change;
    unsigned at;
};

static int ordered_compare(const void *a, const void *b)
{
    const struct ordered *x = a;
    const struct ordered *y = b;
    if (x->change->hash.hi != y->change->hash.hi) {
        return x->change->hash.hi < y->change->hash.hi ? -1 : 1;
    }
    if (x->change->hash.lo != y->change->hash.lo) {
        return x->change->hash.lo < y->change->hash.lo ? -1 : 1;
    }
    return (x->at > y->at) - (x->at < y->at);
}

// Returns true if the change adds a run.
static bool change_adds(const struct index_change *c)
{
    return c->kind == INDEX_PUT || c->kind == INDEX_PUT_REBUILT || c->kind == INDEX_MOVE;
}

// Returns true if the index may need new pages for the change, because a record grows or its places
// get other keys.
static bool change_grows(const struct index_change *c)
{
    return change_adds(c) || c->kind == INDEX_REDESCRIBE;
}

void index_batch_init(struct index_batch *batch, struct index_change *owed,
                      struct index_change *changes, unsigned count)
{
    check((owed == NULL && changes == NULL) == (count == 0));
    *batch = (struct index_batch){.count = count};
    struct ordered *ordered = calloc(max_u64(1, count), sizeof(*ordered));
    batch->changes = calloc(max_u64(1, count), sizeof(*batch->changes));
    batch->generations = calloc(max_u64(1, count), sizeof(*batch->generations));
    check(ordered != NULL && batch->changes != NULL && batch->generations != NULL);
    unsigned at = 0;
    for (struct index_change *c = owed; c != NULL; c = c->next) {
        check(at < count);
        ordered[at] = (struct ordered){c, at};
        at++;
    }
    for (struct index_change *c = changes; c != NULL; c = c->next) {
        check(at < count);
        ordered[at] = (struct ordered){c, at};
        at++;
    }
    check(at == count);
    qsort(ordered, count, sizeof(*ordered), ordered_compare);
    for (unsigned i = 0; i < count; i++) {
        batch->changes[i] = ordered[i].change;
        batch->changes[i]->is_in = false;
    }
    free(ordered);
}

void index_batch_done(struct index_batch *batch)
{
    free(batch->changes);
    free(batch->generations);
    batch->changes = NULL;
    batch->generations = NULL;
}

struct index_batch_left index_batch_left(const struct index_batch *batch)
{
    check(batch->in.changes <= batch->count && batch->in.renewals <= batch->renewal_count);
    check(batch->forget == NULL || batch->in.removals <= batch->forget->slice_count);
    struct index_batch_left left = {
        .puts = batch->renewal_count - batch->in.renewals,
        .forgets = batch->forget != NULL ? batch->forget->slice_count - batch->in.removals : 0,
    };
    for (unsigned i = batch->in.changes; i < batch->count; i++) {
        bool puts = change_grows(batch->changes[i]);
        left.puts += puts;
        left.deletes += !puts;
    }
    return left;
}

// --- the pages that the batch will touch

static struct memory_put put_of(const struct index_change *c)
{
    return (struct memory_put){
        .hash = c->hash,
        .generation = c->generation,
        .size_bytes = c->size_bytes,
        .etag_hash = c->etag_hash,
        .block_size_bytes = c->block_size_bytes,
    };
}

static bool touch_of(struct index_batch *batch, unsigned i, struct index *index,
                     struct index_touch *ret_touch)
{
    const struct index_change *c = batch->changes[i];
    check(i >= batch->in.changes && !c->is_in);
    struct index_touch touch = {.hash = c->hash, .is_whole = true};
    switch (c->kind) {
    case INDEX_PUT:
        touch.generation = c->generation;
        touch.is_whole = index_change_is_whole(c);
        break;
    case INDEX_PUT_REBUILT: {
        struct memory_put found = put_of(c);
        touch.generation = index_memory_judge_rebuilt(&index->memory, &found);
        touch.is_whole = index_change_is_whole(c);
        batch->generations[i] = touch.generation;
        break;
    }
    case INDEX_REDESCRIBE:
        // The check covers the generation of the existing record, too.
        touch.generation = c->generation;
        touch.is_whole = false;
        break;
    case INDEX_DELETE:
    case INDEX_DELETE_AT:
    case INDEX_MOVE:
        break;
    case INDEX_CONDEMN:
    case INDEX_DROP:
    case INDEX_FIT:
    case INDEX_NOTHING:
        return false;
    }
    *ret_touch = touch;
    return true;
}

bool index_batch_ready(struct index_batch *batch, struct index *index)
{
    unsigned forget_count = batch->forget != NULL ? batch->forget->slice_count : 0;
    struct index_batch_left left = index_batch_left(batch);
    unsigned max = left.puts + left.deletes + left.forgets;
    struct index_touch *touches = calloc(max_u64(1, max), sizeof(*touches));
    check(touches != NULL);
    unsigned count = 0;
    for (unsigned i = batch->in.changes; i < batch->count; i++) {
        count += touch_of(batch, i, index, &touches[count]);
    }
    for (unsigned i = batch->in.renewals; i < batch->renewal_count; i++) {
        touches[count++] = (struct index_touch){batch->renewals[i].hash, 0, true};
    }
    for (unsigned i = batch->in.removals; i < forget_count; i++) {
        touches[count++] = (struct index_touch){batch->forget->slice[i].hash, 0, true};
    }
    check(count <= max);
    bool good = index_proof_touches(index, touches, count);
    free(touches);
    return good;
}

// --- applying

// Returns true if the change's segment still exists. Otherwise its place must not enter the index.
static bool change_segment_lives(struct index *index, const struct index_change *change)
{
    struct segment *segment = segment_log_entry(index->log, change->place.segment_number);
    if (!segment_pin(segment, change->place.segment_number)) {
        return false;
    }
    segment_unpin(segment);
    return true;
}

// Applies a change. A run may enter the index only if its segment exists. A run that recovery found
// may enter only if the key's home has nothing newer. If a put's run is lost, the records that it
// replaces are deleted all the same, because they are hidden already.
static enum err change_apply(struct index *index, struct index_txn *t, struct index_change *c,
                             uint64_t generation)
{
    struct index_memory *memory = &index->memory;
    bool lives = !change_adds(c) || change_segment_lives(index, c);
    check(c->kind != INDEX_PUT || c->place.segment != NULL);
    check(!c->is_in);
    if (c->kind == INDEX_PUT && !lives) {
        struct index_change hide = *c;
        hide.kind = INDEX_DELETE;
        enum err err = index_txn_apply(t, &hide);
        return err == ERR_OK ? ERR_IO : err;
    }
    if (!lives) {
        return ERR_IO;
    }
    // Take the latest validation time, because the version may have been renewed since the put.
    if (c->kind == INDEX_PUT) {
        (void)!index_memory_validated(memory, c->hash, c->generation, &c->validated_mono_ms,
                                      &c->validated_wall_ms);
    } else if (c->kind == INDEX_PUT_REBUILT) {
        struct memory_put found = put_of(c);
        c->generation = index_memory_judge_rebuilt(memory, &found);
        // Also cancel the change if the key's home has given the version another generation since
        // index_batch_ready().
        if (c->generation == 0 || c->generation != generation) {
            return ERR_CANCELLED;
        }
    }
    return index_txn_apply(t, c);
}

static uint64_t thread_cpu_us(void)
{
    struct timespec now;
    check(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

struct applying {
    uint64_t until_us; // at this CPU time of the thread, stop adding changes
    unsigned count, max;
    bool is_over;
};

// Counts a change that was applied.
static void applied(struct applying *a)
{
    a->count++;
    a->is_over =
        a->count >= a->max || (a->count % CHANGES_PER_LOOK == 0 && thread_cpu_us() >= a->until_us);
}

void index_batch_apply(struct index_batch *batch, struct index *index, struct index_txn *t,
                       uint64_t cpu_us)
{
    struct applying a = {.until_us = thread_cpu_us() + cpu_us, .max = t->changes_max};
    struct index_progress *at = &batch->at;
    unsigned removals = batch->forget != NULL ? batch->forget->slice_count : 0;
    check(t->txn != NULL && t->changes_max > 0);
    *at = batch->in;
    for (; at->changes < batch->count && !a.is_over; applied(&a), at->changes++) {
        struct index_change *change = batch->changes[at->changes];
        change->err = change_apply(index, t, change, batch->generations[at->changes]);
        if (change->err == ERR_AGAIN) {
            return;
        }
    }
    for (; at->renewals < batch->renewal_count && !a.is_over; applied(&a), at->renewals++) {
        index_txn_renew(t, &batch->renewals[at->renewals]);
    }
    for (; at->removals < removals && !a.is_over; applied(&a), at->removals++) {
        index_forget_apply(batch->forget, at->removals, t);
    }
}

bool index_batch_committed(struct index_batch *batch)
{
    check(batch->at.changes >= batch->in.changes && batch->at.changes <= batch->count);
    check(batch->at.renewals >= batch->in.renewals && batch->at.removals >= batch->in.removals);
    check(batch->at.renewals == 0 || batch->at.changes == batch->count);
    for (unsigned i = batch->in.changes; i < batch->at.changes; i++) {
        check(batch->changes[i]->err != ERR_AGAIN);
        batch->changes[i]->is_in = true;
    }
    batch->in = batch->at;
    struct index_batch_left left = index_batch_left(batch);
    return left.puts + left.deletes + left.forgets == 0;
}

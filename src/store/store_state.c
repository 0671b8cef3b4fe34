// SPDX-License-Identifier: Apache-2.0
// Functions of store.h for state other than cached bytes: epochs and doubts of buckets, holders,
// pins.
#include "store/retention/retention_pins.h"
#include "store/retention/retention_review.h"
#include "store/store_private.h"

uint64_t store_epoch(const struct store *store, struct span origin, struct span bucket)
{
    return state_epoch(&store->epochs, origin, bucket);
}

void store_epoch_begin(struct worker *w, struct store *store, struct span origin,
                       struct span bucket, struct store_epoch_change *change)
{
    check(change->done != NULL);
    state_epoch_begin(w, &store->epochs, origin, bucket, change);
}

uint64_t store_epoch_hold(struct store *store, struct span origin, struct span bucket)
{
    return state_epoch_hold(&store->epochs, origin, bucket);
}

void store_epoch_release(struct store *store, struct span origin, struct span bucket)
{
    state_epoch_release(&store->epochs, origin, bucket);
}

void store_doubt(struct store *store, struct span origin, struct span bucket)
{
    state_doubt(&store->doubts, origin, bucket);
}

void store_doubt_begin(struct store *store, struct span origin, struct span bucket,
                       struct store_doubt_open *ret_open)
{
    state_doubt_begin(&store->doubts, origin, bucket, ret_open);
}

void store_doubt_end(struct store *store, const struct store_doubt_open *open)
{
    check(open->slot != NULL);
    state_doubt_end(&store->doubts, open);
}

bool store_is_doubted(const struct store *store, struct span origin, struct span bucket,
                      uint64_t age_ms)
{
    return state_is_doubted(&store->doubts, origin, bucket, age_ms);
}

uint64_t store_doubt_until_s(const struct store *store, struct span origin, struct span bucket)
{
    return state_doubt_until_s(&store->doubts, origin, bucket);
}

void store_doubted(const struct store *store, struct store_doubted *ret_doubted)
{
    state_doubted(&store->doubts, ret_doubted);
}

bool store_write_is_noted(const struct store *store, struct span origin, struct span bucket)
{
    return state_write_is_noted(&store->doubts, origin, bucket);
}

bool store_notes_hang(const struct store *store)
{
    return disk_call_age_ms(&store->disk, DISK_CALL_FORMAT) >= STORE_NOTE_WAIT_MS;
}

void store_write_note(struct worker *w, struct store *store, struct span origin, struct span bucket,
                      struct store_note *note)
{
    check(note->done != NULL);
    state_write_note(w, &store->doubts, origin, bucket, note);
}

enum err store_holders_add(struct store *store, struct store_holder *holders, unsigned count)
{
    check(count == 0 || holders != NULL);
    return state_holders_add(&store->disk, &store->doubts, holders, count);
}

// --- pins

enum err store_pins_load(struct store *store, struct buf *ret_text)
{
    return store->disk.attached ? state_pins_load(&store->pins, ret_text) : ERR_OK;
}

void store_pins_put_aside(struct store *store, const char *why)
{
    state_pins_put_aside(&store->pins, why);
}

enum err store_pins_save(struct store *store, struct span text, struct buf *ret_why)
{
    if (!store->disk.attached) {
        buf_append_cstr(ret_why, "the cache directory cannot be used");
        return ERR_IO;
    }
    return state_pins_save(&store->pins, text, ret_why);
}

void store_set_group_of(struct store *store, store_group_fn group_of, void *ctx)
{
    if (!store_late_group_of(store, group_of, ctx)) {
        retention_set_group_of(&store->retention, group_of, ctx);
    }
}

void store_set_pins(struct store *store, bool has_pins)
{
    retention_set_listed_pins(&store->retention, has_pins);
}

void store_review(struct store *store, unsigned reviews)
{
    if (store->disk.attached) {
        retention_review_want(&store->retention, reviews);
    }
}

void store_pins_figures(struct store *store, struct store_pins_figures *ret_figures)
{
    *ret_figures = (struct store_pins_figures){0};
    if (store->disk.attached) {
        retention_pins_figures(&store->retention, ret_figures);
    }
}

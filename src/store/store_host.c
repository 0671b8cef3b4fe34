// SPDX-License-Identifier: Apache-2.0
// The store's callbacks for its segments and its index. They only forward calls to other parts. The
// comments of struct segment_host and struct index_host name the thread of each call.
#include "store/retention/retention_pins.h"
#include "store/store_private.h"

// --- for segments

static size_t host_fit(void *ctx, struct segment_file *files, size_t count)
{
    return store_fit(ctx, files, count);
}

static void host_turn(void *ctx)
{
    struct store *store = ctx;
    store_size_follow(store);
    page_admission_tick(&store->page_admission, atomic_load(&store->disk.used_bytes));
    state_doubts_tick(&store->doubts);
    if (state_condemned_save(&store->condemned) != ERR_OK) {
        return; // the disk refuses it; the next turn tries again
    }
}

static void host_begin(void *ctx, struct segment *segment, uint32_t number)
{
    struct store *store = ctx;
    retention_begin(&store->retention, segment, number);
}

static void host_has_room(void *ctx)
{
    struct store *store = ctx;
    retention_has_room(&store->retention);
}

static enum segment_pick host_pick(void *ctx, bool (*may_go)(void *picking, uint32_t number),
                                   void *picking, bool may_rewrite, uint32_t *ret_number)
{
    struct store *store = ctx;
    return retention_pick(&store->retention, may_go, picking, may_rewrite, ret_number);
}

static bool host_probation_ended(void *ctx)
{
    struct store *store = ctx;
    return retention_probation_ended(&store->retention);
}

static bool host_has_survivors(void *ctx)
{
    const struct store *store = ctx;
    return retention_learns(&store->retention);
}

static bool host_rewrites(void *ctx)
{
    const struct store *store = ctx;
    return atomic_load(&store->retention.job) != NULL;
}

static bool host_has_long_runs(void *ctx)
{
    return store_long_are_used(ctx);
}

static unsigned host_spares_kept(void *ctx, const struct segment_slot *slot)
{
    const struct store *store = ctx;
    return retention_pins_spares(&store->retention, slot);
}

static void host_dies(void *ctx, struct segment *segment, const struct segment_removal *removals,
                      unsigned count)
{
    struct store *store = ctx;
    retention_forget(&store->retention, segment, removals, count);
}

static void host_forget(void *ctx, struct segment_removal *removals, unsigned count)
{
    struct store *store = ctx;
    index_writer_forget(&store->writer, removals, count);
}

static void host_want_round(void *ctx)
{
    struct store *store = ctx;
    recovery_want_round(&store->recovery);
}

struct segment_host store_segment_host(struct store *store)
{
    return (struct segment_host){.ctx = store,
                                 .fit = host_fit,
                                 .turn = host_turn,
                                 .begin = host_begin,
                                 .has_room = host_has_room,
                                 .pick = host_pick,
                                 .probation_ended = host_probation_ended,
                                 .has_survivors = host_has_survivors,
                                 .rewrites = host_rewrites,
                                 .has_long_runs = host_has_long_runs,
                                 .spares_kept = host_spares_kept,
                                 .dies = host_dies,
                                 .forget = host_forget,
                                 .forget_unlisted = host_want_round};
}

// --- for the index

static void host_want_rebuild(void *ctx)
{
    struct store *store = ctx;
    recovery_want_rebuild(&store->recovery);
}

static void host_want_new_index(void *ctx)
{
    struct store *store = ctx;
    recovery_want_new_index(&store->recovery);
}

static bool host_may_stay(void *ctx, uint64_t index_bytes)
{
    return store_fit_index(ctx, index_bytes);
}

static void host_gone(void *ctx, struct hash128 hash, uint64_t first_block, uint32_t number,
                      uint32_t header_offset)
{
    struct store *store = ctx;
    retention_gone(&store->retention, hash, first_block, number, header_offset);
}

static enum err host_condemned_save(void *ctx)
{
    struct store *store = ctx;
    return state_condemned_save(&store->condemned);
}

struct index_host store_index_host(struct store *store)
{
    return (struct index_host){.ctx = store,
                               .want_rebuild = host_want_rebuild,
                               .want_new_index = host_want_new_index,
                               .want_round = host_want_round,
                               .may_stay = host_may_stay,
                               .gone = host_gone,
                               .condemned_save = host_condemned_save};
}

// SPDX-License-Identifier: Apache-2.0
// Explains why a range of an object is cached or not. A worker copies the data of the index,
// through its own reader. Another thread then adds the data of the policy, because that may have to
// wait for the policy's lock.
#include "store/store_private.h"

static struct store_explain_run *run_add(struct store_explain *explain, uint64_t first_block,
                                         uint32_t block_count)
{
    check(explain->run_count < STORE_EXPLAIN_RUNS_MAX);
    struct store_explain_run *run = &explain->runs[explain->run_count++];
    *run = (struct store_explain_run){.first_block = first_block,
                                      .block_count = block_count,
                                      .age_bytes = UINT64_MAX,
                                      .priority = STORE_PRIORITY_NORMAL,
                                      .state = STORE_EXPLAIN_WANTED};
    return run;
}

// Adds each absent block on its own, because each may be the first block of a run that was refused.
static void add_absent(struct store_explain *explain, uint64_t from_block, uint64_t end_block,
                       unsigned runs_max)
{
    for (uint64_t block = from_block; block < end_block && explain->run_count < runs_max; block++) {
        (void)run_add(explain, block, 1);
    }
}

static void add_runs(struct store_explain *explain, const struct store_view *view,
                     uint64_t from_block, uint64_t end_block)
{
    for (unsigned i = 0; i < view->place_count; i++) {
        const struct store_place *place = &view->places[i];
        unsigned left = view->place_count - i; // places that still need an entry in the list
        check(explain->run_count + left <= STORE_EXPLAIN_RUNS_MAX);
        add_absent(explain, from_block, place->first_block, STORE_EXPLAIN_RUNS_MAX - left);
        struct store_explain_run *run = run_add(explain, place->first_block, place->block_count);
        run->state = STORE_EXPLAIN_UNRANKED;
        run->segment_number = place->segment_number;
        run->header_offset = place->header_offset;
        from_block = max_u64(from_block, place->first_block + place->block_count);
    }
    add_absent(explain, from_block, end_block, STORE_EXPLAIN_RUNS_MAX);
}

void store_explain_look(struct worker *w, struct store *store, struct hash128 hash,
                        uint64_t first_byte, uint64_t end_byte, uint64_t floor,
                        uint32_t block_size_bytes, unsigned group,
                        struct store_explain *ret_explain)
{
    check(block_size_bytes >= STORE_BLOCK_SIZE_MIN);
    check(group <= STORE_GROUP_PINS);
    struct store_view view;
    store_lookup(w, store, hash, first_byte, end_byte, floor, &view);
    *ret_explain = (struct store_explain){
        .hash = hash,
        .group = group,
        .refusal = store_refuses(store),
        .keeps_up = store_keeps_up(w, store),
    };
    if (view.found) {
        block_size_bytes = view.block_size_bytes;
        end_byte = min_u64(end_byte, max_u64(view.size_bytes, 1)); // an empty object has one block
    }
    add_runs(ret_explain, &view, first_byte / block_size_bytes,
             (end_byte + block_size_bytes - 1) / block_size_bytes);
    store_view_done(&view);
}

static bool is_blank(const struct store_explain_run *run)
{
    return run->segment_number == 0 && run->age_bytes == UINT64_MAX;
}

// Merges adjacent absent blocks without a history into one entry.
static void merge_blank(struct store_explain *explain)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < explain->run_count; i++) {
        struct store_explain_run *run = &explain->runs[i];
        struct store_explain_run *before = kept > 0 ? &explain->runs[kept - 1] : NULL;
        if (before != NULL && is_blank(before) && is_blank(run) &&
            before->first_block + before->block_count == run->first_block) {
            before->block_count += run->block_count;
        } else {
            explain->runs[kept++] = *run;
        }
    }
    check(kept <= explain->run_count && kept <= STORE_EXPLAIN_RUNS_MAX);
    explain->run_count = kept;
}

void store_explain_judge(struct store *store, struct store_explain *explain)
{
    if (store->disk.attached) {
        retention_explain(&store->retention, explain);
    }
    merge_blank(explain);
}

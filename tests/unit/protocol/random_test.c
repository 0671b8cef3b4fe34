// SPDX-License-Identifier: Apache-2.0
// Proves: under any order of events, with overwrites, writes, evictions, failures and leaving
// readers, every reply that looks complete is of the one version its ETag names and not older than
// the last write that had been answered; every reader ends; nothing leaks. A failure names its
// seed. FOREBAY_SEEDS sets how many (default 2,000); FOREBAY_SEED runs one.
#include "world.h"

#include "test.h"

#include <stdlib.h>

static uint64_t state;

static unsigned pick(unsigned below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((state >> 33) % below);
}

static void start_reader(int *readers, unsigned *count)
{
    if (*count >= 24) {
        return;
    }
    uint64_t first = 0, last = UINT64_MAX;
    if (pick(2) == 0) {
        first = pick((unsigned)WORLD_SIZE);
        last = first + pick(2 * WORLD_BLOCK);
    }
    readers[(*count)++] = client_get(pick(WORLD_WORKERS), first, last);
}

// One run of the world; `calm`: nothing fails, nothing is written, nobody leaves.
static void run_seed(uint64_t seed, bool calm)
{
    state = seed;
    struct world_options options = {.seed = seed,
                                    .refuse_store = !calm && pick(8) == 0,
                                    .reset_percent = calm ? 0 : pick(3) * 10,
                                    .fail_percent = calm ? 0 : pick(3) * 5};
    world_begin(&options);
    int readers[32], writers[8];
    unsigned reader_count = 0, writer_count = 0;
    start_reader(readers, &reader_count);
    for (unsigned step = 0; step < 1000; step++) {
        unsigned what = pick(100);
        if (what < 4) {
            start_reader(readers, &reader_count);
        } else if (!calm && what < 5) {
            client_leave(readers[pick(reader_count)]);
        } else if (!calm && what < 6 && origin_version() < 30) {
            origin_overwrite();
        } else if (!calm && what < 7 && writer_count < ARRAY_LEN(writers)) {
            writers[writer_count++] = writer_begin(pick(WORLD_WORKERS));
        } else if (!calm && what < 8) {
            store_evict(pick(WORLD_BLOCKS));
        } else if (!calm && what == 8 && pick(4) == 0) {
            store_fail_next_commit();
        } else {
            (void)world_step();
        }
        for (unsigned i = 0; i < writer_count; i++) {
            if (writers[i] >= 0 && writer_ready(writers[i]) && pick(4) == 0) {
                writer_write(writers[i]);
                writers[i] = -1;
            }
        }
    }
    world_run();
    for (unsigned i = 0; i < writer_count; i++) {
        if (writers[i] >= 0) {
            writer_write(writers[i]);
        }
    }
    world_run();
    for (unsigned i = 0; calm && i < reader_count; i++) {
        cr_assert_eq(client_outcome(readers[i]), CLIENT_COMPLETE, "reader %u of seed %llu: %d", i,
                     (unsigned long long)seed, (int)client_outcome(readers[i]));
    }
    for (unsigned block = 0; calm && block < WORLD_BLOCKS; block++) {
        cr_assert(origin_sent(1, block) <= 1, "block %u came %u times: seed %llu", block,
                  origin_sent(1, block), (unsigned long long)seed);
    }
    world_end();
}

static unsigned long long from_environment(const char *name, unsigned long long otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoull(text, NULL, 10) : otherwise;
}

static void run_seeds(bool calm)
{
    unsigned long long one = from_environment("FOREBAY_SEED", 0);
    if (one != 0) {
        run_seed(one, calm);
        return;
    }
    unsigned long long count = from_environment("FOREBAY_SEEDS", 1000);
    for (unsigned long long seed = 1; seed <= count; seed++) {
        run_seed(seed, calm);
    }
}

Test(random, calm_every_block_is_asked_once)
{
    run_seeds(true);
}

Test(random, wild_no_wrong_byte_no_stale_read_no_lost_reader)
{
    run_seeds(false);
}

// SPDX-License-Identifier: Apache-2.0
// Proves, under any order of events, with overwrites, writes, evictions, failures, slow and leaving
// readers, look-ups that are switched off and commits that fail:
// - Every reply that looks complete is of the one version that its ETag names.
// - That version is not older than the last write that was answered, nor than any version that a
//   reader was given.
// - A crash at any moment brings nothing older back.
// - Every reader ends, and nothing leaks.
//
// A failure names its seed; seeds.h says which of each kind are run.
#include "world.h"

#include "seeds.h"
#include "test.h"

#define READERS_MAX 28u
#define WRITERS_MAX 10u

enum kind {
    CALM,     // nothing fails, nothing is written, nobody leaves: each block is asked once
    STEADY,   // the disk, the clients and the evictions misbehave, the origin does not
    WILD,     // everything
    PAST,     // the origin's objects are overwritten past the cache, and some readers ask for the
              // newest
    BLIND,    // writes pass through while the index can now and then not be looked at
    DOUBTFUL, // writes pass through, and of some the outcome is not known
    BROKEN,   // writes pass through, and commits fail
    BEHIND    // runs longer than what a reader may queue, readers slower than their runs
};

static uint64_t state;

static unsigned pick(unsigned below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((state >> 33) % below);
}

struct run {
    enum kind kind;
    uint64_t seed;
    struct world_options options;
    int readers[READERS_MAX];
    unsigned reader_count;
    int writers[WRITERS_MAX]; // -1: written
    bool is_doubt[WRITERS_MAX];
    unsigned writer_count;
    int past[WORLD_KEYS]; // version that the origin has answered with past the cache; 0: none
    unsigned past_count;
    bool is_touched;          // headers change alone; all records can be read
    bool changed[WORLD_KEYS]; // versions came and went
};

static uint64_t pick_size(void)
{
    static const uint64_t sizes[] = {WORLD_SIZE, WORLD_SIZE, 2 * WORLD_BLOCK, 10000, 0};
    return sizes[pick(ARRAY_LEN(sizes))];
}

static void start_reader(struct run *run)
{
    if (run->reader_count >= READERS_MAX) {
        return;
    }
    world_use_key(pick(4) == 0);
    struct client_ask ask = {
        .worker = pick(WORLD_WORKERS), .checksums = pick(3) == 0, .last = UINT64_MAX};
    uint64_t size = run->kind == BEHIND ? run->options.size_bytes : WORLD_SIZE;
    switch (pick(11)) {
    case 0:
        ask.head = true;
        break;
    case 10:
        ask.if_match = origin_version() + (int)pick(2);
        ask.suffix = pick(2) * (1 + pick(WORLD_BLOCK));
        break;
    case 1:
        ask.suffix = 1 + pick(2 * WORLD_BLOCK);
        break;
    case 2:
        ask.if_none_match = origin_version();
        break;
    case 3:
        ask.no_cache = pick(2) == 0;
        break;
    case 4:
    case 5:
    case 6:
        ask.has_range = true;
        ask.first = pick((unsigned)size);
        ask.last = ask.first + pick(run->kind == BEHIND ? (unsigned)size : 2 * WORLD_BLOCK);
        break;
    default:
        break;
    }
    run->readers[run->reader_count++] = client_start(&ask);
}

static void disturb_cache(struct run *run)
{
    world_use_key(pick(4) == 0);
    switch (pick(6)) {
    case 0:
    case 1:
        store_evict(pick(WORLD_BLOCKS));
        break;
    case 2:
        if (pick(4) == 0) {
            store_fail_next_commit();
        }
        break;
    case 3:
        if (pick(4) == 0) {
            store_fail_next_write();
        }
        break;
    case 4:
        client_leave(run->readers[pick(run->reader_count)]);
        break;
    default:
        if (pick(8) == 0) {
            store_refuse(pick(2) == 0);
        }
        break;
    }
}

// Readers that were given a version ask again, and so do readers that want the newest version.
static void ask_past(struct run *run)
{
    if (run->reader_count >= READERS_MAX) {
        return;
    }
    world_use_key(pick(4) == 0);
    struct client_ask ask = {.worker = pick(WORLD_WORKERS), .last = UINT64_MAX};
    ask.head = pick(4) == 0;
    ask.no_cache = pick(3) == 0;
    if (!ask.head && pick(2) == 0) {
        ask.has_range = true;
        ask.first = pick((unsigned)WORLD_SIZE);
        ask.last = ask.first + pick(WORLD_BLOCK);
    }
    if (pick(8) == 0) {
        ask.if_match = origin_version();
    }
    run->readers[run->reader_count++] = client_start(&ask);
}

// The origin answers past the cache, and later the home gets TOLD.
static void read_past(struct run *run)
{
    unsigned key = pick(4) == 0;
    world_use_key(key);
    if (run->past[key] == 0) {
        run->past[key] = origin_version();
    } else if (run->past_count < 30) {
        (void)teller_start(pick(WORLD_WORKERS), run->past[key]);
        run->past[key] = 0;
        run->past_count++;
    }
}

static void disturb_past(struct run *run)
{
    if (pick(4) == 0) {
        read_past(run);
        return;
    }
    world_use_key(pick(4) == 0);
    if (run->is_touched && pick(2) == 0) {
        origin_redescribe();
    } else if (!run->is_touched && pick(3) == 0) {
        store_evict(pick(WORLD_BLOCKS));
    } else if (origin_version() < 30) {
        origin_overwrite();
    }
}

static void write_through(struct run *run)
{
    world_use_key(pick(4) == 0);
    if (run->writer_count < WRITERS_MAX) {
        bool is_doubt = run->kind == DOUBTFUL && pick(2) == 0;
        run->is_doubt[run->writer_count] = is_doubt;
        run->writers[run->writer_count++] =
            is_doubt ? doubt_begin(pick(WORLD_WORKERS)) : writer_begin(pick(WORLD_WORKERS));
    }
}

static void disturb_origin(struct run *run)
{
    unsigned key = pick(4) == 0;
    world_use_key(key);
    unsigned what = pick(16);
    if (what < 7 && run->writer_count < WRITERS_MAX) {
        run->changed[key] = true;
        run->writers[run->writer_count++] = writer_begin(pick(WORLD_WORKERS));
    } else if (origin_version() < 30) {
        run->changed[key] = true;
        origin_resize(pick(4) == 0 ? pick_size() : WORLD_SIZE);
        if (what == 7) {
            origin_remove();
        } else {
            origin_overwrite();
        }
    }
}

static void go_on_writing(struct run *run, unsigned patience)
{
    for (unsigned i = 0; i < run->writer_count; i++) {
        if (run->writers[i] < 0 || !writer_ready(run->writers[i]) || pick(patience) != 0) {
            continue;
        }
        if (!run->is_doubt[i]) {
            writer_write(run->writers[i]);
            run->writers[i] = -1;
        } else if (patience == 1 || pick(30) == 0) {
            doubt_end(run->writers[i]);
            run->writers[i] = -1;
        } else if (pick(30) == 0 && origin_version() < 50) {
            doubt_apply(run->writers[i]);
        }
    }
}

static bool refused_rightly(enum err err)
{
    return err == ERR_NO_SUCH_KEY || err == ERR_INVALID_RANGE || err == ERR_PRECONDITION_FAILED;
}

static void judge(struct run *run)
{
    unsigned long long seed = (unsigned long long)run->seed;
    bool none_fails = run->kind < WILD || run->kind == BEHIND;
    for (unsigned i = 0; i < run->reader_count && none_fails; i++) {
        enum client_outcome outcome = client_outcome(run->readers[i]);
        cr_assert(outcome == CLIENT_COMPLETE || outcome == CLIENT_LEFT ||
                      (outcome == CLIENT_ERROR && refused_rightly(client_err(run->readers[i]))),
                  "reader %u of seed %llu: outcome %d, %s", i, seed, (int)outcome,
                  error_row(client_err(run->readers[i]))->name);
    }
    for (unsigned key = 0; key < WORLD_KEYS && run->kind == CALM; key++) {
        world_use_key(key);
        for (unsigned block = 0; block < WORLD_BLOCKS; block++) {
            // The home's run for the end of an object whose size nobody knows is not its owner's
            // (rule 2).
            unsigned by_suffix = origin_sent_by_suffix(1, block);
            cr_assert(by_suffix <= 1 && origin_sent(1, block) - by_suffix <= 1,
                      "block %u came %u times, %u times by its suffix: seed %llu", block,
                      origin_sent(1, block), by_suffix, seed);
        }
    }
}

static void choose_options(struct run *run)
{
    struct world_options *o = &run->options;
    o->seed = run->seed;
    o->strict = pick(4) == 0 && run->kind < PAST;
    o->ttl = !o->strict && pick(3) == 0;
    o->noted = run->seed % 3 == 0;
    o->cold_percent = pick(3) * 20;
    o->slow_percent = pick(3) * 30;
    o->buffer_bytes = pick(4) == 0 ? (2 + pick(8)) * CHUNK_SIZE : 0;
    o->readahead = pick(2) == 0;
    o->long_runs = o->readahead && run->seed % 2 == 0;
    if (o->readahead && pick(3) == 0) { // so small that the window reaches into the object behind
        o->size_bytes = 2 * WORLD_BLOCK - pick(100);
    }
    if (run->kind != CALM) {
        o->refuse_store = pick(8) == 0;
        o->full_percent = run->seed % 5 == 0 ? run->seed / 5 % 101 : 0;
        o->unwanted_percent = run->seed % 7 == 0 ? run->seed / 7 % 101 : 0;
        o->bad_percent = pick(3) * 5;
        o->limit_percent = run->seed % 3 * 45;
        o->slow_disk = run->seed % 9 == 1;
    }
    run->is_touched = run->kind == PAST && run->seed % 2 == 1;
    if (run->is_touched) {
        o->bad_percent = 0;
        o->cold_percent = o->limit_percent > 0 ? 0 : o->cold_percent; // no header is late
    }
    if (run->kind == BEHIND) {
        o->strict = false;
        o->block_size_bytes = 8 * WORLD_BLOCK;
        o->size_bytes = 2 * 8 * WORLD_BLOCK + pick(8 * WORLD_BLOCK);
        o->piece_bytes = pick(2) == 0 ? WORLD_BLOCK : 0;
        o->buffer_bytes = (4 + pick(60)) * CHUNK_SIZE;
        o->pages_percent = pick(4) * 33;
        o->gathers = pick(2) == 0;
        o->refuse_store = false;
    }
    if (run->kind == WILD) {
        o->size_bytes = pick(4) == 0 ? pick_size() : 0;
        o->no_etag = pick(20) == 0;
        o->reset_percent = pick(3) * 10;
        o->fail_percent = pick(3) * 5;
    }
}

static void run_seed(uint64_t seed, enum kind kind)
{
    state = seed * 3 + kind;
    struct run run = {.kind = kind, .seed = seed};
    choose_options(&run);
    world_begin(&run.options);
    start_reader(&run);
    for (unsigned step = 0; step < 1000; step++) {
        unsigned what = pick(200);
        if (what < 8 && kind >= PAST && kind != BEHIND) {
            ask_past(&run);
        } else if (what < 12 && kind == PAST) {
            disturb_past(&run);
        } else if (what < 10 && kind >= BLIND && kind <= BROKEN) {
            write_through(&run);
        } else if (what < 14 && kind == BLIND) {
            store_hide(pick(2) == 0);
        } else if (what < 12 && kind == BROKEN) {
            store_fail_next_commit();
        } else if (what < 8) {
            start_reader(&run);
        } else if (what < 12 && kind != CALM) {
            disturb_cache(&run);
        } else if (what < 15 && kind == WILD) {
            disturb_origin(&run);
        } else if (what == 15 && run.options.ttl) {
            world_advance_ms(25000);
        } else {
            (void)world_step();
        }
        go_on_writing(&run, 4);
    }
    store_hide(false);
    world_run();
    go_on_writing(&run, 1);
    world_end();
    judge(&run);
}

static void run_seeds(enum kind kind)
{
    struct seeds seeds = seeds_wanted(1500);
    for (uint64_t seed = seeds.first; seed <= seeds.last; seed++) {
        run_seed(seed, kind);
    }
}

Test(random, calm_every_block_is_asked_once)
{
    run_seeds(CALM);
}

Test(random, steady_origin_no_reader_fails)
{
    run_seeds(STEADY);
}

Test(random, wild_no_wrong_byte_no_stale_read_no_lost_reader)
{
    run_seeds(WILD);
}

Test(random, past_nobody_goes_back_in_time)
{
    run_seeds(PAST);
}

Test(random, blind_no_stale_read)
{
    run_seeds(BLIND);
}

Test(random, doubtful_no_stale_read)
{
    run_seeds(DOUBTFUL);
}

Test(random, behind_no_reader_fails)
{
    run_seeds(BEHIND);
}

Test(random, broken_commits_no_stale_read)
{
    run_seeds(BROKEN);
}

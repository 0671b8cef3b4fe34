// SPDX-License-Identifier: Apache-2.0
// Verifies the whole index in rounds, at a limited rate, on the recovery thread. The first round
// begins at the start, unless the child process has verified all of it. Later rounds begin a day
// after the previous one, or when a segment was freed whose runs could not be listed.
//
// A round is a sequence of slices. A slice begins a read transaction of LMDB and continues after
// the last key of the previous slice. It reads each page from the file first, because an unreadable
// page causes an error there but SIGBUS in the map. It verifies the page, and the checksums of its
// records. It queues the removal of each place whose segment is gone. Then it ends the transaction,
// because an open one keeps LMDB from reusing pages. If a page is bad, or more than a hundredth of
// the records are, the index is dropped and rebuilt from segments. index_verify.c uses the same
// limit at the start.
//
// A round that was completed in one environment has verified all pages that this process did not
// write. Between two slices the trees change only in pages that this process writes.
#include "store/index/index_roll.h"

#include "base/clock.h"
#include "stats/stats.h"
#include "store/index/index_writer.h"
#include "store/segment/segment_log.h"

static_assert(INDEX_ROLL_US < INDEX_ROLL_PAUSE_MS * 1000 / 10, "it rests most of the time");
static_assert(INDEX_PAGE_KEY_LEN == INDEX_OBJECT_KEY_LEN, "one key fits both tables");

static void round_begin(struct index_roll *roll, const struct index_env *env)
{
    check(env->id != 0);
    roll->env_id = env->id;
    roll->table = INDEX_TABLE_OBJECTS;
    roll->begun = false;
    roll->records = roll->bad_records = 0;
}

// Queues the removal of a place whose segment is gone, unless too many removals wait.
static void place_look(struct index *index, struct hash128 owner, const struct store_place *place)
{
    check(place->segment_number != 0);
    struct segment *segment = segment_log_entry(index->log, place->segment_number);
    if (segment_pin(segment, place->segment_number)) {
        segment_unpin(segment);
        return;
    }
    index_writer_remove_later(index->writer, owner, place, false);
}

static void record_look(struct index_roll *roll, struct index *index, const char *key,
                        struct span value)
{
    roll->records++;
    if (roll->table == INDEX_TABLE_OBJECTS) {
        struct index_record record;
        struct hash128 hash = index_object_key_parse(key);
        if (!index_object_decode(hash, value, &record)) {
            roll->bad_records++;
        } else if ((record.flags & INDEX_WHOLE) != 0) {
            struct store_place place =
                index_place_to_store(&record.place, record.generation, 0, record.block_size_bytes);
            place_look(index, hash, &place);
        }
        return;
    }
    uint64_t generation, first_block;
    struct hash128 owner;
    struct index_place found;
    index_place_key_parse(key, &generation, &first_block);
    if (!index_place_decode(generation, first_block, value, &owner, &found)) {
        roll->bad_records++;
        return;
    }
    struct store_place place = index_place_to_store(&found, generation, first_block, 0);
    place_look(index, owner, &place);
}

static enum index_walked table_look(struct index_roll *roll, struct index *index,
                                    const struct index_env *env)
{
    uint64_t until_us = clock_monotonic_us() + INDEX_ROLL_US;
    struct index_walk walk;
    static const char first[INDEX_PAGE_KEY_LEN];
    check(roll->reader.env == env && roll->env_id == env->id);
    enum index_walked walked = index_proof_begin(&walk, env, roll->reader.txn, roll->table, true);
    walked =
        walked == INDEX_WALKED ? index_proof_seek(&walk, roll->begun ? roll->key : first) : walked;
    for (unsigned i = 0; i < INDEX_ROLL_PAGES && walked == INDEX_WALKED; i++) {
        unsigned at;
        const char *leaf = index_proof_leaf(&walk, &at);
        const char *last = index_page_key(leaf, index_page_count(leaf) - 1);
        bool on = !roll->begun || memcmp(last, roll->key, INDEX_PAGE_KEY_LEN) > 0;
        for (; at < index_page_count(leaf); at++) {
            const char *key = index_page_key(leaf, at);
            if (!roll->begun || memcmp(key, roll->key, INDEX_PAGE_KEY_LEN) > 0) {
                record_look(roll, index, key, index_page_value(leaf, at));
            }
        }
        if (on) {
            memcpy(roll->key, last, INDEX_PAGE_KEY_LEN);
            roll->begun = true;
        }
        walked = index_proof_next_leaf(&walk);
        if (on && walked == INDEX_WALKED && clock_monotonic_us() >= until_us) {
            break;
        }
    }
    return walked;
}

bool index_roll_slice(struct index_roll *roll, struct index *index)
{
    int failed = store_fault_strike(STORE_FAULT_ROLL);
    struct index_env *env = index_reader_enter(index, &roll->reader);
    if (env == NULL) {
        roll->env_id = 0;
        return true;
    }
    if (roll->env_id != env->id) {
        round_begin(roll, env);
    }
    enum index_walked walked = failed == 0 ? table_look(roll, index, env) : INDEX_WALK_BAD;
    bool bad = walked == INDEX_WALK_BAD || roll->bad_records * 100 > roll->records + 100;
    if (bad) {
        index_proof_failed(index, env, "round");
    } else if (walked == INDEX_WALK_ENDS && roll->table == INDEX_TABLE_OBJECTS) {
        roll->table = INDEX_TABLE_PLACES;
        roll->begun = false;
        walked = INDEX_WALKED;
    } else if (walked == INDEX_WALK_ENDS) {
        bad = roll->bad_records * 100 > roll->records;
        if (bad) {
            index_proof_failed(index, env, "round");
        } else {
            atomic_store_explicit(&env->proof.is_whole, true, memory_order_release);
        }
        stats_add(COUNTER_index_rounds, 1);
    }
    check(roll->bad_records <= roll->records);
    index_reader_leave(&roll->reader);
    bool over = bad || walked == INDEX_WALK_ENDS;
    roll->env_id = over ? 0 : roll->env_id;
    return over;
}

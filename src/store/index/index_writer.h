// SPDX-License-Identifier: Apache-2.0
// The one thread that writes the index.
#ifndef FOREBAY_STORE_INDEX_WRITER_H
#define FOREBAY_STORE_INDEX_WRITER_H

#include "store/index/index.h"
#include "store/index/index_forget.h"
#include "store/segment/page_window.h"
#include "store/segment/segment_table.h"

#define INDEX_BATCH_MAX 1024u
// A batch is begun this long after its first change: with sync and commit under 200 ms.
#define INDEX_LINGER_MS 100u
#define INDEX_RENEW_LINGER_MS 500u // renewals wait longer
// Deletes that the disk refused are tried again after this long, doubled up to 64 times.
#define INDEX_AGAIN_MS 1000u
// Changes of our own that may wait; puts are bounded when their runs begin, deletes by what they
// answer.
#define INDEX_QUEUE_MAX 4096u

enum index_change_kind {
    INDEX_PUT,
    INDEX_PUT_REBUILT,
    INDEX_REDESCRIBE, // a version by other headers and another generation
    INDEX_DELETE,     // below a generation
    INDEX_DELETE_AT,  // if still at that place
    INDEX_MOVE,       // to another place, if still at the one it was copied from
    INDEX_CONDEMN,    // the runs of a key are bad: marked where they lie, see index_condemn.c
    INDEX_DROP,       // the whole index, if it is injured
    INDEX_FIT,        // the cache has become smaller
    INDEX_NOTHING,    // only to be waited for
};

struct index_waiter;

// A run that lies elsewhere, too. Its owner's; err is set when a flush behind it has returned.
// ERR_CANCELLED: it was not at `from` any more.
struct index_move {
    struct hash128 hash;
    struct store_place from, to; // to: pinned and held, until it is settled
    enum err err;
};

// Told on its worker, by its message, what has become of a change.
struct index_answer {
    struct message message;
    struct worker *worker;
    enum err err;
};

struct index_change {
    struct index_change *next;
    enum index_change_kind kind;
    struct hash128 hash;
    uint64_t generation, size_bytes,
        etag_hash; // PUT; DELETE: generation is the floor; CONDEMN: the line
    uint32_t block_size_bytes;
    uint64_t from;   // REDESCRIBE: the generation that it has
    char *described; // REDESCRIBE, and its length
    size_t described_len;
    bool urgent, is_ours;
    bool is_bad;                                   // DELETE_AT: its run fails its checksum
    uint64_t validated_mono_ms, validated_wall_ms; // PUT
    struct store_sums sums;                        // PUT
    struct store_place place;                      // PUT, MOVE: pinned and held
    struct index_move *move;                       // MOVE
    struct index_answer *answer;                   // who waits for a delete, or NULL
    struct index_waiter *waiter;                   // to answer, or NULL
    enum err err;
    bool is_in; // committed
};

struct index_writer {
    struct index *index;
    struct page_window written;
    uint64_t txn_cpu_us; // see index_batch.h
    pthread_t thread;
    bool runs;
    struct {
        pthread_mutex_t lock;
        pthread_cond_t wake;    // of the thread
        pthread_cond_t changed; // of those that wait for room
        struct index_change *first, **last;
        unsigned count, ours_count, urgent_count;
        bool stop;
    } guarded;
    struct index_forget forget;
    // Of the thread.
    bool stopping;
    uint64_t forget_due_us;    // real; a refused slice is tried again then
    uint64_t renewed_us;       // last draining
    bool waited_in_vain;       // for room; nobody waits again until a transaction has found some
    struct index_change *owed; // deletes that the disk refused
    uint64_t owed_due_us;      // real; when they are tried again
    unsigned owed_count, owed_failures;
    bool given_up;      // more were refused than are remembered: what data.mdb held is not believed
    bool marked;        // the next process is told not to believe the index, for their sake
    atomic_bool silent; // the workers are gone: no answers
    atomic_uint condemning; // INDEX_CONDEMN that wait
};

// `written_pages_bytes`: where memory is short, of what was written so much stays in the page
// cache; 0: all of it.
void index_writer_init(struct index_writer *writer, struct index *index,
                       uint64_t written_pages_bytes, bool (*memory_is_short)(void));
void index_writer_start(struct index_writer *writer);
// The workers are gone: no answers from now on.
void index_writer_silence(struct index_writer *writer);
// Commits all that waits, renewals included, and joins.
void index_writer_stop(struct index_writer *writer);

// From a worker. What they enter is in the memory side already.
void index_writer_put(struct index_writer *writer, const struct memory_put *put);
// Copies `change`, whose `described` becomes the writer's. Its answer comes with the commit.
void index_writer_redescribe(struct index_writer *writer, const struct index_change *change);
// `answer`: told when the delete is durable, or why it is not; then it is urgent. NULL: nobody
// waits.
void index_writer_delete(struct index_writer *writer, struct hash128 hash, uint64_t floor,
                         struct index_answer *answer);
void index_writer_remove_later(struct index_writer *writer, struct hash128 hash,
                               const struct store_place *place, bool is_bad);
// `line`: the key's in state_condemned.c.
void index_writer_condemn(struct index_writer *writer, struct hash128 hash, unsigned line,
                          const struct store_place *place);
void index_writer_renewals_wait(struct index_writer *writer);

// From the room's own threads: these are done in the writer's own time. `removals` is taken over.
void index_writer_forget(struct index_writer *writer, struct segment_removal *removals,
                         unsigned count);
// In its own time as well: the cache has become smaller.
void index_writer_fit(struct index_writer *writer);
// Any thread: the index was found to be injured, and goes.
void index_writer_drop_injured(struct index_writer *writer);
// Waits until what came before is committed.
enum err index_writer_flush(struct index_writer *writer);
// These wait only while too much is queued.
void index_writer_move(struct index_writer *writer, struct index_move *move);
void index_writer_put_rebuilt(struct index_writer *writer, const struct segment_row *row,
                              const struct store_place *place);

#endif

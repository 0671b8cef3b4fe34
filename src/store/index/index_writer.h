// SPDX-License-Identifier: Apache-2.0
// Declares the only thread that writes the index; see index_writer.c.
#ifndef FOREBAY_STORE_INDEX_WRITER_H
#define FOREBAY_STORE_INDEX_WRITER_H

#include "store/disk/disk_thread.h"
#include "store/index/index.h"
#include "store/index/index_forget.h"
#include "store/segment/page_window.h"
#include "store/segment/segment_table.h"

#define INDEX_BATCH_MAX 1024u
// A batch is written this long after its first change. Including sync and commit, it is on disk in
// less than 200 ms.
#define INDEX_LINGER_MS 100u
#define INDEX_RENEW_LINGER_MS 500u // like INDEX_LINGER_MS, for renewals
static_assert(INDEX_RENEW_LINGER_MS > INDEX_LINGER_MS, "renewals can wait for other changes");
// Owed deletes are retried after this delay. It doubles after each failure, up to 64 times as long.
#define INDEX_AGAIN_MS 1000u
// Limit on queued changes that the store itself makes. The number of puts is limited when runs
// begin, and the number of deletes by the client writes that wait for them.
#define INDEX_QUEUE_MAX 4096u
static_assert(INDEX_QUEUE_MAX >= INDEX_BATCH_MAX, "a full queue makes a full batch");
static_assert(INDEX_FORGET_SLICE <= INDEX_BATCH_MAX, "a commit forgets no more than it may put");
static_assert(INDEX_FORGET_SLICE_LAST <= INDEX_FORGET_MAX, "a slice is a part of what waits");

enum index_change_kind {
    INDEX_PUT,
    INDEX_PUT_REBUILT,
    INDEX_REDESCRIBE, // gives a version other headers and another generation
    INDEX_DELETE,     // deletes the key's runs below a generation
    INDEX_DELETE_AT,  // deletes a run if it is still at that place
    INDEX_MOVE, // moves a run to another place if it is still at the place from which it was copied
    INDEX_CONDEMN, // marks the runs of a key as bad in their segments; see index_condemn.c
    INDEX_DROP,    // drops the index because it is damaged
    INDEX_FIT,     // shrinks the file because the cache has become smaller
    INDEX_NOTHING, // changes nothing; index_writer_flush() queues it and waits until it is settled
};

struct index_waiter;

// A run that was copied to another place. The caller owns this struct and keeps it until a later
// index_writer_flush() has returned. `err` is set by then. It is ERR_CANCELLED if the run was no
// longer at `from`.
struct index_move {
    struct hash128 hash;
    struct store_place from, to; // `to` is pinned and has a hold until the move is settled
    enum err err;
};

// The answer to a change, sent as a message to its worker.
struct index_answer {
    struct message message;
    struct worker *worker;
    enum err err;
};

struct index_change {
    struct index_change *next;
    enum index_change_kind kind;
    struct hash128 hash;
    // PUT: values of the version. DELETE: runs below this generation are deleted.
    uint64_t generation, size_bytes, etag_hash;
    uint32_t block_size_bytes;
    uint64_t from;   // REDESCRIBE: generation of the record before the change
    char *described; // REDESCRIBE: the new description
    size_t described_len;
    // urgent: a batch with this change is due at once. is_ours: the change counts towards
    // INDEX_QUEUE_MAX, the limit on changes that the store itself makes.
    bool urgent, is_ours;
    bool is_bad;                                   // DELETE_AT: the run fails its checksum
    uint64_t validated_mono_ms, validated_wall_ms; // PUT
    struct store_sums sums;                        // PUT
    struct store_place place;                      // PUT, MOVE: the place is pinned and has a hold
    struct index_move *move;                       // MOVE
    struct index_answer *answer;                   // the answer that a worker waits for, or NULL
    struct index_waiter *waiter;                   // the thread that waits for this change, or NULL
    enum err err;
    bool is_in; // the change is committed
};

struct index_writer {
    struct index *index;
    struct page_window written;
    uint64_t txn_cpu_us; // see index_batch.h
    struct {             // the queue
        pthread_mutex_t lock;
        pthread_cond_t wake;    // wakes the writer
        pthread_cond_t changed; // wakes threads that wait for room in the queue
        struct index_change *first, **last;
        unsigned count, ours_count, urgent_count;
        struct disk_thread thread;
    } guarded;
    struct index_forget forget;
    // Used by the thread only.
    bool stopping; // the thread has seen the order to stop
    // Real monotonic time before which no places are forgotten, and renewals are not early, because
    // the disk refused a commit or had no room.
    uint64_t again_due_us;
    // The last wait for room timed out. No batch waits again until a transaction has found room.
    bool waited_in_vain;
    struct index_change *owed; // deletes that the disk refused
    uint64_t owed_due_us;      // real monotonic time at which they are retried
    unsigned owed_count, owed_failures;
    // The disk refused more deletes than the writer can remember, so it dropped the index and does
    // not trust data.mdb.
    bool given_up;
    bool marked;            // a marker tells the next process not to trust the index
    atomic_bool silent;     // send no answers, because the workers have stopped
    atomic_uint condemning; // INDEX_CONDEMN changes in the queue
};

// `written_pages_bytes`: while memory is short, this many of the bytes written last stay in the
// page cache; 0: no limit.
void index_writer_init(struct index_writer *writer, struct index *index,
                       uint64_t written_pages_bytes, bool (*memory_is_short)(void));
void index_writer_start(struct index_writer *writer);
// Sends no answers from now on. Called when the workers have stopped.
void index_writer_silence(struct index_writer *writer);
// Commits everything in the queue, including renewals, and joins the thread.
void index_writer_stop(struct index_writer *writer);

// Queues a put, which the caller has entered in the memory side.
void index_writer_put(struct index_writer *writer, const struct memory_put *put);
// Queues a copy of `change` and takes ownership of its `described`. The answer is sent after the
// commit.
void index_writer_redescribe(struct index_writer *writer, const struct index_change *change);
// Queues a delete of the key's runs below `floor`, which the caller has hidden in the memory side.
// `answer` is sent when the delete is durable or has failed; NULL: no worker waits for it. A delete
// with an answer is urgent.
void index_writer_delete(struct index_writer *writer, struct hash128 hash, uint64_t floor,
                         struct index_answer *answer);
// Queues the removal of the run at this place, unless the queue is full. Any thread.
void index_writer_remove_later(struct index_writer *writer, struct hash128 hash,
                               const struct store_place *place, bool is_bad);
// Queues the marks of a condemned key's runs. The caller has called state_condemned_add().
void index_writer_condemn(struct index_writer *writer, struct hash128 hash,
                          const struct store_place *place);
// Wakes the writer, so that it looks again whether a batch is due. Any thread.
void index_writer_wake(struct index_writer *writer);

// Has the index forget these places when the writer has time. Takes ownership of `removals`. Waits
// while the list of such places is full, so it must not be called on a worker.
void index_writer_forget(struct index_writer *writer, struct segment_removal *removals,
                         unsigned count);
// Queues an attempt to shrink the index file. Called when the cache has become smaller.
void index_writer_fit(struct index_writer *writer);
// Queues a drop of the index, because it was found damaged. Any thread.
void index_writer_drop_injured(struct index_writer *writer);
// Waits until all earlier changes are committed or have failed. Returns an error if the last batch
// of them has failed. Must not be called on a worker.
enum err index_writer_flush(struct index_writer *writer);
// Queue a move, and a run that was found in a segment. Both wait while the queue is full, so they
// must not be called on a worker.
void index_writer_move(struct index_writer *writer, struct index_move *move);
void index_writer_put_rebuilt(struct index_writer *writer, const struct segment_row *row,
                              const struct store_place *place);

#endif

// SPDX-License-Identifier: Apache-2.0
// What the cache's device owes: payload that runs were given and that is not on the device yet, of
// all workers together. Storing never slows reading, so a run is begun only while the device keeps
// up; what it cannot take in time is streamed, and stored when it is read again. Any thread.
#ifndef FOREBAY_STORE_WRITE_BACKLOG_H
#define FOREBAY_STORE_WRITE_BACKLOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

// A write that takes longer is nothing to wait for.
#define WRITE_BACKLOG_SLOW_US 250000u
// So long after one that did, the device is taken for slow still. Then it is tried again: those who
// wait for it to be quick (read-ahead, warm) may be the only ones who would write.
#define WRITE_BACKLOG_DOUBT_US 1000000u
// Above it no run is begun: most of a second of a disk of 300 MB/s, so that a burst is stored.
// Where memory is short the chunks that wait to be written are the narrower bound.
#define WRITE_BACKLOG_MAX (256u << 20)
// Least memory for chunks that wait to be written, whatever limits.max_buffer is.
#define WRITE_BACKLOG_QUEUE_MIN (1u << 20)

struct write_backlog {
    _Atomic uint64_t promised_bytes; // of runs begun, still to come
    _Atomic uint64_t queued_bytes;   // in chunks: appended, not yet written
    _Atomic uint64_t dirty_bytes;    // written and on their way to the device
    atomic_bool stalled;             // a run was given up, and no write has ended since
    _Atomic uint64_t slow_until_us;  // the last write took longer than a reader should wait
    atomic_uint writing_count;
    _Atomic uint64_t moved_us; // when a write last ended, or the first of those under way began
};

// May one more run begin?
bool write_backlog_takes(const struct write_backlog *backlog);
// Chunks that wait for the device hold more memory than they may: who brings more gives up.
bool write_backlog_is_over(const struct write_backlog *backlog);
// A run is given up: none begins until a write that is under way has ended.
void write_backlog_stall(struct write_backlog *backlog);
// Is the device quick enough for a reader to wait until something is on it?
bool write_backlog_is_quick(const struct write_backlog *backlog, uint64_t now_us);
void write_backlog_begins(struct write_backlog *backlog, uint64_t now_us); // a write
void write_backlog_ends(struct write_backlog *backlog, uint64_t now_us, uint64_t took_us);

void write_backlog_promise(struct write_backlog *backlog, uint64_t bytes);
void write_backlog_forget(struct write_backlog *backlog, uint64_t bytes); // promised, will not come
void write_backlog_append(struct write_backlog *backlog, uint64_t bytes); // came, as promised
void write_backlog_written(struct write_backlog *backlog, uint64_t bytes); // or dropped
void write_backlog_push(struct write_backlog *backlog, uint64_t bytes);
void write_backlog_pushed(struct write_backlog *backlog, uint64_t bytes);

#endif

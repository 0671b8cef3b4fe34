// SPDX-License-Identifier: Apache-2.0
// What the cache's device owes: payload that runs were given and that is not on the device yet, of
// all workers together. Storing never slows reading, so a run is begun only while the device keeps
// up; what it cannot take in time is streamed, and stored when it is read again. Any thread.
#ifndef FOREBAY_STORE_WRITE_BACKLOG_H
#define FOREBAY_STORE_WRITE_BACKLOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

// Above it no run is begun: a fifth of a second of a disk of 300 MB/s.
#define WRITE_BACKLOG_MAX (64u << 20)
// Least memory for chunks that wait to be written, whatever limits.max_buffer is.
#define WRITE_BACKLOG_QUEUE_MIN (1u << 20)

struct write_backlog {
    _Atomic uint64_t promised_bytes; // of runs begun, still to come
    _Atomic uint64_t queued_bytes;   // in chunks: appended, not yet written
    _Atomic uint64_t dirty_bytes;    // written and on their way to the device
    atomic_bool stalled;             // a run was given up, and no write has ended since
};

// May one more run begin?
bool write_backlog_takes(const struct write_backlog *backlog);
// Chunks that wait for the device hold more memory than they may: who brings more gives up.
bool write_backlog_is_over(const struct write_backlog *backlog);
void write_backlog_stall(struct write_backlog *backlog); // a run is given up: none begins until
void write_backlog_moves(struct write_backlog *backlog); // a write has ended

void write_backlog_promise(struct write_backlog *backlog, uint64_t bytes);
void write_backlog_forget(struct write_backlog *backlog, uint64_t bytes); // promised, will not come
void write_backlog_append(struct write_backlog *backlog, uint64_t bytes); // came, as promised
void write_backlog_written(struct write_backlog *backlog, uint64_t bytes); // or dropped
void write_backlog_push(struct write_backlog *backlog, uint64_t bytes);
void write_backlog_pushed(struct write_backlog *backlog, uint64_t bytes);

#endif

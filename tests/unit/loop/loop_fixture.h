// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of this room: loops on either disk engine, running a function on a worker and
// waiting for it, and temporary files.
#ifndef FOREBAY_TESTS_UNIT_LOOP_FIXTURE_H
#define FOREBAY_TESTS_UNIT_LOOP_FIXTURE_H

#include <semaphore.h>
#include <stdbool.h>

#include "loop/loop.h"

// Starts a loop, and aborts the test if that fails. Returns NULL, with a message, if this machine
// refuses the engine.
struct loop *fixture_loop(enum disk_engine engine, unsigned worker_count, unsigned queue_depth);
void fixture_loop_end(struct loop **loop); // stops and frees

// Runs fn(w, ctx) on the worker and returns when it has run.
void fixture_run_on(struct worker *w, void (*fn)(struct worker *w, void *ctx), void *ctx);

// A flag that one thread raises and another waits for.
struct signal {
    sem_t sem;
};
void signal_init(struct signal *signal);
void signal_raise(struct signal *signal);
void signal_wait(struct signal *signal); // fails the test after 60 s
void signal_done(struct signal *signal);

// A fresh directory under $TMPDIR; removed with its files by fixture_dir_remove().
void fixture_dir_make(char *ret_path, size_t cap);
void fixture_dir_remove(const char *path);
// Creates a file with these bytes. Returns a descriptor for reading and writing.
int fixture_file(const char *dir, const char *name, const void *bytes, size_t len);
void fixture_fill(char *bytes, size_t len, unsigned seed);

#endif

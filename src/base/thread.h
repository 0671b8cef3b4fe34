// SPDX-License-Identifier: Apache-2.0
// Sets the name of a new thread and its scheduling kind.
#ifndef FOREBAY_BASE_THREAD_H
#define FOREBAY_BASE_THREAD_H

enum thread_kind {
    THREAD_SERVES, // short bursts of work that a client waits for
    THREAD_HELPS,  // work that another thread waits for: the kernel's default scheduling
    THREAD_BEHIND, // background work: it may begin a little later after a wake-up
};

// Call it once, on the new thread. `name` has at most 15 bytes. A scheduling policy and a nice
// value that somebody chose for the process stay. Settings that the kernel does not know or refuses
// are skipped.
void thread_begin(const char *name, enum thread_kind kind);

#endif

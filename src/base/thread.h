// SPDX-License-Identifier: Apache-2.0
// What a thread says of itself when it begins: its name, for people, and who waits for it, for the
// kernel's scheduler.
#ifndef FOREBAY_BASE_THREAD_H
#define FOREBAY_BASE_THREAD_H

enum thread_kind {
    THREAD_SERVES, // short bursts of work that a client waits for
    THREAD_HELPS,  // is waited for by whoever has asked it: as the kernel has it
    THREAD_BEHIND, // nobody waits for it at once: what it is woken for may begin a little later
};

// Of the calling thread, once. NAME: at most 15 bytes. A scheduling policy that somebody chose for
// the process stays, and so does its nice value; what a kernel does not know or refuses is left
// out.
void thread_begin(const char *name, enum thread_kind kind);

#endif

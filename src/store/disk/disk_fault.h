// SPDX-License-Identifier: Apache-2.0
// Lets tests make calls of the store's own threads fail. Only builds with FOREBAY_FAULTS have this.
#ifndef FOREBAY_STORE_DISK_DISK_FAULT_H
#define FOREBAY_STORE_DISK_DISK_FAULT_H

#include <stdbool.h>

#ifdef FOREBAY_FAULTS
// The kinds of calls that can fail. In scripts (FOREBAY_DISK_FAULTS) they are named store.sync,
// store.commit and so on.
enum store_fault {
    STORE_FAULT_SYNC,
    STORE_FAULT_COMMIT,
    STORE_FAULT_CREATE,
    STORE_FAULT_ALLOCATE,
    STORE_FAULT_UNLINK,
    STORE_FAULT_OPEN,
    STORE_FAULT_SCAN,
    STORE_FAULT_TABLE,
    STORE_FAULT_MARK,
    STORE_FAULT_NOTE,    // writing the line of a condemned key
    STORE_FAULT_DISOWN,  // writing the marker that makes the index invalid
    STORE_FAULT_REMOVE,  // removing the index, if the marker failed
    STORE_FAULT_REWRITE, // writing a run that survives the eviction of its segment
    STORE_FAULT_ROLL,    // reading a page of the index in a round
    STORE_FAULT_SCRUB,
    STORE_FAULT_PINS,    // writing the list of pins; syncing its folder entry
    STORE_FAULT_REBUILD, // adding a segment's runs to the index; this call can only stall, not fail
    STORE_FAULT_TRIM,    // returning the unused bytes of a segment
    STORE_FAULT_COUNT_
};
// Makes the `nth` call of this kind from now on fail with `errno_value` (1: the next one; 0: none).
// With `repeat`, all later calls of this kind fail too. Any thread.
void store_fault_set(enum store_fault fault, unsigned nth, bool repeat, int errno_value);
// Counts a call of this kind. Returns the errno value with which it must fail, or 0.
int store_fault_strike(enum store_fault fault);
// Makes calls of this kind wait until `stall` is set to false.
void store_fault_stall(enum store_fault fault, bool stall);
// Waits until a call of this kind is stalled.
void store_fault_stall_reached(enum store_fault fault);
// Returns true if FOREBAY_TEST_STEADY=1 is set, for tests that count hits. The speed of the machine
// then does not affect which runs are stored or read: no write and no read is late. Also, the store
// does not refuse a run for lack of a spare segment or of room in the queue of the index, but waits
// for it.
bool store_fault_is_steady(void);
// Waits a moment for another thread of the store. Returns false, without waiting, if
// store_fault_is_steady() is false or the caller has waited long enough. `tries`: how often the
// caller has waited already.
bool store_fault_waits(unsigned tries);
// Returns true if the script says "pages.gone": memory keeps nothing, so nothing is admitted to the
// page cache.
#define store_fault_pages_are_gone() (disk_fault_errno("pages.gone") != 0)
#else
#define store_fault_pages_are_gone() false
#define store_fault_strike(fault) 0
#define store_fault_is_steady() false
#define store_fault_waits(tries) ((void)(tries), false)
#endif

#endif

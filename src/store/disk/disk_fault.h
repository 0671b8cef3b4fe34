// SPDX-License-Identifier: Apache-2.0
// Faults that tests inject into calls of the store's own threads. Only builds with FOREBAY_FAULTS
// have them.
#ifndef FOREBAY_STORE_DISK_DISK_FAULT_H
#define FOREBAY_STORE_DISK_DISK_FAULT_H

#include <stdbool.h>

#ifdef FOREBAY_FAULTS
// The n-th call of a kind from now fails (1: the next). With `repeat`, all later calls of that kind
// fail too. In scripts (FOREBAY_DISK_FAULTS) the kinds are named store.sync, store.commit and so
// on. Any thread.
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
    STORE_FAULT_DISOWN,  // writing the marker that distrusts the index
    STORE_FAULT_REMOVE,  // removing the index, if the marker failed
    STORE_FAULT_REWRITE, // writing a survivor
    STORE_FAULT_ROLL,    // reading a page of the index in a round
    STORE_FAULT_SCRUB,
    STORE_FAULT_PINS,    // writing the list of pins; syncing its name
    STORE_FAULT_REBUILD, // adding the runs of a segment to the index; can only stall
    STORE_FAULT_TRIM,    // returning the unused bytes of a segment
    STORE_FAULT_COUNT_
};
void store_fault_set(enum store_fault fault, unsigned nth, bool repeat, int errno_value);
int store_fault_strike(enum store_fault fault); // returns an errno value or 0
// Makes calls of that kind wait until `stall` is false again.
void store_fault_stall(enum store_fault fault, bool stall);
// Waits until the first call of that kind is stalled.
void store_fault_stall_reached(enum store_fault fault);
// FOREBAY_TEST_STEADY=1: what is stored does not depend on how fast the machine is. No write is
// late, and the store waits for a spare segment and for room in the queue of the index, where it
// would refuse a run otherwise. For tests that count hits.
bool store_fault_is_steady(void);
// Waits a moment for another thread of the store. False: the store is not steady, or it has waited
// long enough. `tries` counts the calls that waited already.
bool store_fault_waits(unsigned tries);
#else
#define store_fault_strike(fault) 0
#define store_fault_is_steady() false
#define store_fault_waits(tries) ((void)(tries), false)
#endif

#endif

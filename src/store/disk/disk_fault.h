// SPDX-License-Identifier: Apache-2.0
// Faults that tests play to the calls of the store's own threads. A build without faults has none
// of this.
#ifndef FOREBAY_STORE_DISK_DISK_FAULT_H
#define FOREBAY_STORE_DISK_DISK_FAULT_H

#include <stdbool.h>

#ifdef FOREBAY_FAULTS
// The n-th call from now of a kind fails (1 is the next one). With `repeat` all calls from that one
// on fail. Scripts (FOREBAY_DISK_FAULTS) name the kinds store.sync, store.commit and so on. Any
// thread.
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
    STORE_FAULT_NOTE,    // the line that a key is condemned
    STORE_FAULT_DISOWN,  // the marker that the index is not to be believed
    STORE_FAULT_REMOVE,  // removing the index instead
    STORE_FAULT_REWRITE, // writing a survivor
    STORE_FAULT_ROLL,    // reading a page of the index on its round
    STORE_FAULT_SCRUB,
    STORE_FAULT_PINS,    // writing the list of what is pinned; syncing its name
    STORE_FAULT_REBUILD, // putting the runs of a segment back; only stalls
    STORE_FAULT_TRIM,    // giving back what is left over of a segment
    STORE_FAULT_COUNT_
};
void store_fault_set(enum store_fault fault, unsigned nth, bool repeat, int errno_value);
int store_fault_strike(enum store_fault fault); // errno value or 0
// Calls of that kind wait until it is let go.
void store_fault_stall(enum store_fault fault, bool stall);
// Waits for the first to do so.
void store_fault_stall_reached(enum store_fault fault);
#else
#define store_fault_strike(fault) 0
#endif

#endif

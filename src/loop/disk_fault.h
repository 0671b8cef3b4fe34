// SPDX-License-Identifier: Apache-2.0
// The fault hook of disk_io: which fault, if any, the next operation of a kind gets. Absent from
// release builds. Any thread.
#ifndef FOREBAY_LOOP_DISK_FAULT_H
#define FOREBAY_LOOP_DISK_FAULT_H

#ifdef FOREBAY_FAULTS

#include "loop/loop.h"

enum disk_fault_what {
    DISK_FAULT_NONE,
    DISK_FAULT_ERRNO,
    DISK_FAULT_SHORT,
    DISK_FAULT_SLOW,
    DISK_FAULT_HOLD
};

#define DISK_FAULT_HOLD_MS 5u

struct disk_fault {
    enum disk_fault_what what;
    int errno_value;   // ERRNO
    uint64_t delay_ms; // SLOW
    uint64_t
        bytes_per_second; // SLOW: how long it takes follows from its bytes and from those before
};

// Counts the operation in every rule of its kind; the first rule that strikes wins.
struct disk_fault disk_fault_next(enum disk_op_kind kind, uint64_t bytes);
// Does a rule still hold operations of that kind?
bool disk_fault_is_held(enum disk_op_kind kind);

#endif
#endif

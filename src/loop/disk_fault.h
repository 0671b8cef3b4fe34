// SPDX-License-Identifier: Apache-2.0
// Fault injection for disk_io: decides which fault, if any, the next operation of a kind gets. Not
// in release builds. Any thread.
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
    int errno_value;   // The errno to inject, for DISK_FAULT_ERRNO.
    uint64_t delay_ms; // The delay of the operation, for DISK_FAULT_SLOW.
    // Simulated speed of the device. From it, disk_fault_next() computes delay_ms for the bytes of
    // this operation and of those before it. 0: delay_ms is fixed.
    uint64_t bytes_per_second;
};

// Counts the operation in every rule of its kind. Returns the fault of the first rule that applies
// now.
struct disk_fault disk_fault_next(enum disk_op_kind kind, uint64_t bytes);
// Returns true while a `hold` rule applies to operations of that kind.
bool disk_fault_is_held(enum disk_op_kind kind);

#endif
#endif

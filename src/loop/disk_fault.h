// SPDX-License-Identifier: Apache-2.0
// The fault hook of disk_io: which fault, if any, the next operation of a kind gets. Absent from
// release builds. Any thread.
#ifndef FOREBAY_LOOP_DISK_FAULT_H
#define FOREBAY_LOOP_DISK_FAULT_H

#ifdef FOREBAY_FAULTS

#include "loop/loop.h"

enum disk_fault_what { DISK_FAULT_NONE, DISK_FAULT_ERRNO, DISK_FAULT_SHORT, DISK_FAULT_SLOW };

struct disk_fault {
    enum disk_fault_what what;
    int errno_value;   // ERRNO
    uint64_t delay_ms; // SLOW
};

// Counts the operation in every rule of its kind; the first rule that strikes wins.
struct disk_fault disk_fault_next(enum disk_op_kind kind);

#endif
#endif

// SPDX-License-Identifier: Apache-2.0
// The played disk: real files below one folder. Every call of the code under test and of its
// libraries that touches them passes through here. At a power cut, unsynced changes may be lost:
// - any subset of the writes, sector by sector where a write is torn;
// - names that changed since the last sync of their folder, the newest first.
// A sync may lie, once. A call may fail or take long.
#ifndef FOREBAY_TESTS_UNIT_SIMULATION_DISK_H
#define FOREBAY_TESTS_UNIT_SIMULATION_DISK_H

#include <stdbool.h>
#include <stdint.h>

enum disk_end {
    DISK_END_KILL,   // the process alone: everything is there
    DISK_END_ALL,    // the power: whatever is not synced is lost
    DISK_END_SUBSET, // any of it
};

struct disk_plan {
    unsigned strike_at; // the call that changes something before which the life ends; 0: none does
    enum disk_end end;
    unsigned lie_at;     // the first sync that does nothing and says it did; 0: none
    unsigned lie_count;  // how many do
    unsigned fail_per_k; // of 1,000 calls that change something fail
    unsigned read_fail_per_k;
    unsigned full_per_k; // of 1,000 calls find the disk full; it stays so for a while
    unsigned slow_per_k; // take up to half a minute
};

// `dir` exists. A folder beside it holds the files that have lost their name.
void disk_begin(const char *dir, const struct disk_plan *plan);
void disk_is_bystander(void);
void disk_strike(void) __attribute__((noreturn)); // now
bool disk_has_lied(void);
unsigned disk_calls(void);
unsigned disk_refusals(void); // calls that failed
// Bytes of all files below `dir`.
uint64_t disk_used_bytes(const char *dir);
void disk_remove_all(const char *dir);

#endif

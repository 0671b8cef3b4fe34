// SPDX-License-Identifier: Apache-2.0
// Shared by both kinds of life: the process that runs, the bytes of versions, and the check of each
// version that is found.
#ifndef FOREBAY_TESTS_UNIT_SIMULATION_JUDGE_H
#define FOREBAY_TESTS_UNIT_SIMULATION_JUDGE_H

#include "past.h"
#include "store/store.h"

#define BLOCK 65536u

struct alive {
    struct store *store;
    const char *dir;
    bool is_attached;      // the store uses its directory
    uint64_t floors[KEYS]; // of this process: nothing below is found, whatever it is
    unsigned open;         // calls that have not ended
};
extern struct alive alive;

void tell(const char *format, ...) PRINTF_LIKE(1, 2); // of a seed that is run aloud
void life_over(int code) __attribute__((noreturn));

uint64_t size_of(unsigned key, unsigned number);
// `offset` is a multiple of 8.
void bytes_of(unsigned key, unsigned number, uint64_t offset, char *ret_bytes, size_t len);
void judge_bytes(unsigned key, unsigned number, uint64_t offset, struct span bytes);
struct span etag_of(unsigned number, char *text, size_t size);
struct span name_of(unsigned key, char *text, size_t size);
unsigned number_of(unsigned key, uint64_t etag_hash);
// Returns the version's number. `least`: that of the last write acknowledged before the reader
// began.
unsigned judge_view(unsigned key, const struct store_view *view, unsigned least);

#endif

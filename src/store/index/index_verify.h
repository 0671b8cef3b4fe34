// SPDX-License-Identifier: Apache-2.0
// Looks through the index in a child process, which may die of what it finds.
#ifndef FOREBAY_STORE_INDEX_VERIFY_H
#define FOREBAY_STORE_INDEX_VERIFY_H

#include <sys/types.h>

#include "store/index/index_format.h"

// For the verdict, which the child gives 45 ms after it began to run.
#define INDEX_VERIFY_WAIT_MS 1000u

enum index_verdict {
    INDEX_VERDICT_GOOD,   // all of it was walked
    INDEX_VERDICT_PARTLY, // nothing bad in what was
    INDEX_VERDICT_BAD,
};

// Has a child look, before there are threads.
enum index_verdict index_verify(const char *path, uint64_t map_bytes,
                                const uint8_t cache_id[CACHE_ID_LEN]) MUST_USE;
// Looks at the two meta pages without LMDB: is the file as long as they say? What LMDB would
// stumble over before any child could.
bool index_verify_size(int index_fd);
// And at the few pages that say where its tables are.
bool index_verify_tables(int index_fd);
// What data.mdb takes up. Before the index is opened.
uint64_t index_file_bytes(int index_fd);
// Gives back what was allocated ahead in data.mdb and never used; what it takes up then.
uint64_t index_file_cut(int index_fd);

#endif

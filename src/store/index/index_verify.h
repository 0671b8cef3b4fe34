// SPDX-License-Identifier: Apache-2.0
// Verifies the index in a child process, because damage may kill the process that reads it.
#ifndef FOREBAY_STORE_INDEX_VERIFY_H
#define FOREBAY_STORE_INDEX_VERIFY_H

#include <sys/types.h>

#include "store/index/index_format.h"

// The parent's longest wait for the verdict. The child needs about 25 ms of running time for it.
#define INDEX_VERIFY_WAIT_MS 1000u

enum index_verdict {
    INDEX_VERDICT_GOOD,   // everything was verified
    INDEX_VERDICT_PARTLY, // the time ran out; the part that was verified is good
    INDEX_VERDICT_BAD,
};

// Runs the child and returns its verdict. Called before threads start.
enum index_verdict index_verify(const char *path, uint64_t map_bytes,
                                const uint8_t cache_id[CACHE_ID_LEN]) MUST_USE;
// Verifies three things without LMDB: the two meta pages, the length of the file that they state,
// and the few pages with the roots of the tables. If these were damaged, LMDB could crash before
// the child runs.
bool index_verify_tables(int index_fd);
// Truncates the unused end of data.mdb. Returns its disk usage after that.
uint64_t index_file_cut(int index_fd);

#endif

// SPDX-License-Identifier: Apache-2.0
// Looks through the index in a child process, which may die of what it finds.
#ifndef FOREBAY_STORE_INDEX_VERIFY_H
#define FOREBAY_STORE_INDEX_VERIFY_H

#include <sys/types.h>

#include "store/index_format.h"

// For the first verdict, which the child gives 45 ms after it began to run.
#define INDEX_VERIFY_WAIT_MS 1000u

struct index_verify {
    pid_t pid; // 0: none
    int fd;    // verdicts come here
};

enum index_verdict {
    INDEX_VERDICT_GOOD,   // all of it was walked
    INDEX_VERDICT_PARTLY, // nothing bad so far; the child goes on
    INDEX_VERDICT_BAD,
};

// Starts the child, before there are threads, and waits for its first verdict.
// With PARTLY it goes on and index_verify_wait() has the last word.
enum index_verdict index_verify_start(struct index_verify *check, const char *path,
                                      uint64_t map_bytes, const uint8_t cache_id[CACHE_ID_LEN]);
// Looks at the two meta pages without LMDB: is the file as long as they say? What LMDB would
// stumble over before any child could.
bool index_verify_size(int index_fd);
// What data.mdb takes up. Before the index is opened.
uint64_t index_file_bytes(int index_fd);
// Gives back what was allocated ahead in data.mdb and never used; what it takes up then.
uint64_t index_file_cut(int index_fd);
// Blocks until the child is done (GOOD or BAD; GOOD when there is none) or `stop_fd` is readable
// (PARTLY).
enum index_verdict index_verify_wait(struct index_verify *check, int stop_fd);
// Ends the child and forgets it.
void index_verify_stop(struct index_verify *check);

#endif

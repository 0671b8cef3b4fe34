// SPDX-License-Identifier: Apache-2.0
// The access log, the list of the last requests, and counters by bucket.
#ifndef FOREBAY_PROXY_LOG_LOG_H
#define FOREBAY_PROXY_LOG_LOG_H

#include "proxy/core/core.h"

// A request that has ended, as the logs show it.
struct log_entry {
    const struct request *r;
    enum http_outcome outcome;
    uint64_t body_bytes; // bytes of the reply's body that were sent
    // Times since the request's head arrived. first_byte_us is 0 if no byte was sent.
    uint64_t first_byte_us, total_us;
};
// Returns S3's code of the error, or how the reply was cut; "": neither.
const char *log_entry_error(const struct log_entry *entry);
// Returns why the bytes that were fetched for the request are not stored. Returns "" if they are
// stored, or if none were fetched.
const char *log_entry_unstored(const struct log_entry *entry);
// Returns why an origin failed, or why Forebay refused the request; "": neither.
const char *log_entry_why(const struct log_entry *entry);

// --- access_log.c --------------------------------------------------------------------------------

// Starts the access log, and takes ownership of the file.
struct access_log *access_log_new(struct proxy_access_log_file *file, unsigned worker_count);
// Writes the lines of requests that end from now on to `file`, and takes ownership of it. Only one
// thread may call it.
void access_log_switch(struct access_log *log, struct proxy_access_log_file *file);
void access_log_free(struct access_log *log); // writes all lines in the rings first
void access_log_write(struct access_log *log, const struct log_entry *entry);
void access_log_reopen(struct access_log *log);

// --- access_log_live.c ---------------------------------------------------------------------------

struct access_log_live *access_log_live_new(unsigned worker_count);
void access_log_live_free(struct access_log_live *live); // accepts NULL
// Call it when the request ends, on its worker.
void access_log_live_write(struct access_log_live *live, const struct log_entry *entry);

// --- recent.c, bucket_counts.c: one of each per worker; requests are noted when they end ---------

struct recent *recent_new(void);
void recent_free(struct recent *recent); // accepts NULL
void recent_note(struct recent *recent, const struct log_entry *entry);
struct bucket_counts *bucket_counts_new(void);
void bucket_counts_free(struct bucket_counts *counts); // accepts NULL
void bucket_counts_note(struct bucket_counts *counts, const struct request *r);

#endif

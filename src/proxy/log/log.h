// SPDX-License-Identifier: Apache-2.0
// The access log, the list of the last requests, and counters by bucket.
#ifndef FOREBAY_PROXY_LOG_LOG_H
#define FOREBAY_PROXY_LOG_LOG_H

#include "proxy/core/core.h"

// --- access_log.c --------------------------------------------------------------------------------

// Starts the access log, and takes ownership of the file.
struct access_log *access_log_new(struct proxy_access_log_file *file, unsigned worker_count);
// Writes the lines of requests that end from now on to `file`, and takes ownership of it. Only one
// thread may call it.
void access_log_switch(struct access_log *log, struct proxy_access_log_file *file);
void access_log_free(struct access_log *log); // writes all lines in the rings first
void access_log_write(struct access_log *log, const struct request *r, enum http_outcome outcome);
void access_log_reopen(struct access_log *log);

// --- access_log_live.c ---------------------------------------------------------------------------

struct access_log_live *access_log_live_new(unsigned worker_count);
void access_log_live_free(struct access_log_live *live); // accepts NULL
// Call it when the request ends, on its worker.
void access_log_live_write(struct access_log_live *live, const struct request *r,
                           enum http_outcome outcome);

// --- recent.c, bucket_counts.c: one of each per worker; requests are noted when they end ---------

struct recent *recent_new(void);
void recent_free(struct recent *recent); // accepts NULL
void recent_note(struct recent *recent, const struct request *r);
struct bucket_counts *bucket_counts_new(void);
void bucket_counts_free(struct bucket_counts *counts); // accepts NULL
void bucket_counts_note(struct bucket_counts *counts, const struct request *r);

#endif

// SPDX-License-Identifier: Apache-2.0
// A line of the access log and what goes into it, for the files that write its forms:
// access_log_json.c, access_log_s3.c, access_log_text.c. On the request's worker.
#ifndef FOREBAY_PROXY_LOG_ACCESS_LOG_PRIVATE_H
#define FOREBAY_PROXY_LOG_ACCESS_LOG_PRIVATE_H

#include "base/date.h"
#include "proxy/log/log.h"

#define ACCESS_LOG_LINE_MAX 32768u

// Room is checked once per piece; a line that does not fit is not written at all. So that no client
// can keep a request out of the log, the forms shorten what it chose: their longest lines, every
// byte of it coded, fit.
struct access_log_line {
    size_t len;
    bool is_full;
    char bytes[ACCESS_LOG_LINE_MAX];
};

// The second that was written last, in words; a worker's.
struct access_log_date {
    int64_t s;
    char text[DATE_ISO_LEN + 1];
};

// A request at its end.
struct access_log_entry {
    const struct request *r;
    enum http_outcome outcome;
    struct access_log_date *date;
    uint64_t first_byte_us, total_us; // since its head came; 0: none was sent
};

// --- access_log_ring.c: lines from one thread to another, without a lock -------------------------

// Bytes: `filled` is moved by the writer only, `emptied` by the reader only, both ever rising.
struct access_log_ring {
    _Alignas(64) atomic_ulong filled;
    _Alignas(64) atomic_ulong emptied;
    char *bytes;
    size_t size_bytes;
};

void access_log_ring_init(struct access_log_ring *ring, size_t size_bytes);
void access_log_ring_done(struct access_log_ring *ring);
// The writer. False: the line does not fit, and nothing of it is there.
bool access_log_ring_put(struct access_log_ring *ring, const char *bytes, size_t len);
// How much was ever put in. Any thread.
unsigned long access_log_ring_filled(const struct access_log_ring *ring);
// The reader: of what was in when so much had been put in, as many whole lines as fit `max`, which
// is at least ACCESS_LOG_LINE_MAX; 0: there are none.
size_t access_log_ring_take(struct access_log_ring *ring, char *ret_bytes, size_t max,
                            unsigned long filled);
void access_log_ring_clear(struct access_log_ring *ring); // the reader, too

// --- access_log.c --------------------------------------------------------------------------------

struct access_log_entry access_log_entry_of(const struct request *r, enum http_outcome outcome,
                                            struct access_log_date *date);

// --- access_log_line.c ---------------------------------------------------------------------------

void access_log_line_bytes(struct access_log_line *line, const char *bytes, size_t len);
#define access_log_line_literal(line, literal)                                                     \
    access_log_line_bytes(line, "" literal, sizeof(literal) - 1)
void access_log_line_text(struct access_log_line *line, const char *text);
void access_log_line_u64(struct access_log_line *line, uint64_t value);
// Microseconds as milliseconds with three digits behind the point.
void access_log_line_ms(struct access_log_line *line, uint64_t us);
// "2026-01-31T12:00:00.000Z".
void access_log_line_date(struct access_log_line *line, struct access_log_date *date,
                          uint64_t wall_us);
// For inside double quotes of JSON. Bytes that are no UTF-8 become \u00XX, one each.
void access_log_line_escaped(struct access_log_line *line, struct span s);
// Percent coding of everything that could be read as more than one field.
void access_log_line_coded(struct access_log_line *line, struct span s, bool keep_blanks);
// As much of it as ends at `end` of the line.
void access_log_line_coded_up_to(struct access_log_line *line, struct span s, bool keep_blanks,
                                 size_t end);
const char *access_log_line_error(const struct access_log_entry *entry); // S3's code; "": none
struct span access_log_line_shortened(struct span header);               // to what is shown of one

// --- the forms -----------------------------------------------------------------------------------

void access_log_json(struct access_log_line *line, const struct access_log_entry *entry);
void access_log_s3(struct access_log_line *line, const struct access_log_entry *entry);
void access_log_text(struct access_log_line *line, const struct access_log_entry *entry);

#endif

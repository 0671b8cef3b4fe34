// SPDX-License-Identifier: Apache-2.0
// A line of the access log and its content, for the files that write the formats:
// access_log_json.c, access_log_s3.c, access_log_text.c. They run on the request's worker.
#ifndef FOREBAY_PROXY_LOG_ACCESS_LOG_PRIVATE_H
#define FOREBAY_PROXY_LOG_ACCESS_LOG_PRIVATE_H

#include "base/date.h"
#include "proxy/log/log.h"

#define ACCESS_LOG_LINE_MAX 32768u

// The date text that this worker wrote last, so that each second is formatted only once.
struct access_log_date {
    int64_t s;
    char text[DATE_ISO_LEN + 1];
};

// A line while it is written. Each append checks once that there is room. A line that does not fit
// is not logged at all. So each format shortens the values that the client chose, until its longest
// line fits even if every byte of them is encoded. Otherwise a client could keep its request out of
// the log.
struct access_log_line {
    struct access_log_date *date;
    size_t len;
    bool is_full;
    char bytes[ACCESS_LOG_LINE_MAX];
};

// --- access_log_ring.c: passes lines from one thread to another, without a lock ------------------

// `filled` counts all bytes ever written, and `emptied` all bytes ever read. Only the writer
// changes `filled`, and only the reader changes `emptied`.
struct access_log_ring {
    _Alignas(64) atomic_ulong filled;
    _Alignas(64) atomic_ulong emptied;
    char *bytes;
    size_t size_bytes;
};

void access_log_ring_init(struct access_log_ring *ring, size_t size_bytes);
void access_log_ring_done(struct access_log_ring *ring);
// Writer: adds a line. Returns false, and adds no part of it, if it does not fit.
bool access_log_ring_put(struct access_log_ring *ring, const char *bytes, size_t len);
// Returns the number of bytes ever written to the ring. Any thread.
unsigned long access_log_ring_filled(const struct access_log_ring *ring);
// Reader: takes as many whole lines as fit in `max` bytes, which is at least ACCESS_LOG_LINE_MAX.
// Takes only lines that were in the ring when access_log_ring_filled() returned `filled`. Returns
// their length; 0: there are none.
size_t access_log_ring_take(struct access_log_ring *ring, char *ret_bytes, size_t max,
                            unsigned long filled);
void access_log_ring_clear(struct access_log_ring *ring); // reader: drops all lines

// --- access_log_line.c ---------------------------------------------------------------------------

void access_log_line_init(struct access_log_line *line, struct access_log_date *date);
void access_log_line_bytes(struct access_log_line *line, const char *bytes, size_t len);
#define access_log_line_literal(line, literal)                                                     \
    access_log_line_bytes(line, "" literal, sizeof(literal) - 1)
void access_log_line_text(struct access_log_line *line, const char *text);
void access_log_line_u64(struct access_log_line *line, uint64_t value);
// Appends microseconds as milliseconds with three digits after the point.
void access_log_line_ms(struct access_log_line *line, uint64_t us);
// Appends a time in the form "2026-01-31T12:00:00.000Z".
void access_log_line_date(struct access_log_line *line, uint64_t wall_us);
// Appends text for the inside of a JSON string. Each byte that is not UTF-8 becomes \u00XX.
void access_log_line_escaped(struct access_log_line *line, struct span s);
// Percent-encodes each byte that could end a field or a line: spaces (unless keep_blanks), quotes,
// backslashes, and all that is not printable ASCII.
void access_log_line_coded(struct access_log_line *line, struct span s, bool keep_blanks);
// The same, but appends only as much as keeps the line at most `end` bytes long.
void access_log_line_coded_up_to(struct access_log_line *line, struct span s, bool keep_blanks,
                                 size_t end);
struct span access_log_line_shortened(struct span header); // returns the part that the log shows

// --- the formats ---------------------------------------------------------------------------------

void access_log_json(struct access_log_line *line, const struct log_entry *entry);
void access_log_s3(struct access_log_line *line, const struct log_entry *entry);
void access_log_text(struct access_log_line *line, const struct log_entry *entry);

#endif

// SPDX-License-Identifier: Apache-2.0
// The access log for a person at a terminal: a line that fits its width, the most important fields
// first.
//
//   12:00:01 200 hit        1.0 MiB     0.2 ms     1.4 ms GetObject bkt/train/shard-7
//   12:00:01 503 -            224 B   503.7 ms   503.7 ms GetObject bkt/k SlowDown why=slowdown
//
// UTC; status, result, bytes, time to the first byte and to the last. Text that a client chose is
// percent-coded. Pure.
#include <stdio.h>

#include "proxy/log/access_log_private.h"

// Appends a number of at most five digits, right-aligned.
static void put_size(struct access_log_line *line, uint64_t bytes)
{
    static const char *const units[] = {"B  ", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    char text[32];
    double value = (double)bytes;
    unsigned unit = 0;
    for (; value >= 1000 && unit + 1 < ARRAY_LEN(units); unit++) {
        value /= 1024;
    }
    (void)snprintf(text, sizeof(text), " %5.*f %s", unit > 0, value, units[unit]);
    access_log_line_text(line, text);
}

static void put_time(struct access_log_line *line, uint64_t us)
{
    char text[32];
    (void)snprintf(text, sizeof(text), " %8.1f ms", (double)us / 1000);
    access_log_line_text(line, text);
}

static void put_word(struct access_log_line *line, const char *before, struct span word)
{
    if (word.len > 0) {
        access_log_line_text(line, before);
        access_log_line_coded(line, word, false);
    }
}

void access_log_text(struct access_log_line *line, const struct log_entry *entry)
{
    const struct request *r = entry->r;
    char hash[LOG_KEY_HASH_SIZE], head[64];
    struct access_log_line date;
    struct span range = {NULL, 0};
    const char *result = request_result_name(r->result);
    access_log_line_init(&date, line->date);
    access_log_line_date(&date, clock_wall_us());
    (void)snprintf(head, sizeof(head), "%.8s %3u %-11s", date.bytes + sizeof("2026-01-31"),
                   r->status, result[0] != '\0' ? result : "-");
    access_log_line_text(line, head);
    put_size(line, entry->body_bytes);
    put_time(line, entry->first_byte_us);
    put_time(line, entry->total_us);
    put_word(line, " ", span_from_cstr(s3_operation_name(r->s3.operation)));
    put_word(line, " ", access_log_line_shortened(r->s3.bucket));
    put_word(line, "/", log_key_shown(r->s3.key, hash));
    (void)headers_get(&r->http->headers, SPAN("range"), &range);
    put_word(line, " ", access_log_line_shortened(range));
    put_word(line, " ", span_from_cstr(log_entry_error(entry)));
    put_word(line, " why=", span_from_cstr(log_entry_why(entry)));
    put_word(line, " reason=", span_from_cstr(r->reason));
    put_word(line, " unstored=", span_from_cstr(log_entry_unstored(entry)));
    access_log_line_literal(line, "\n");
}

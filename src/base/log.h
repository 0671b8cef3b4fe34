// SPDX-License-Identifier: Apache-2.0
// Server log: one line per event, `ts=... level=... event=name key=value ...` (text) or the same as
// one JSON object, to stderr. No prose, no secrets. Control bytes in values are escaped, values
// with blanks quoted. Rate limited per event name (100 lines a second), and never waited for: what
// stderr does not take at once is lost. What was dropped or lost is told in the next line of that
// event as dropped=N. Any thread; one write per line.
#ifndef FOREBAY_BASE_LOG_H
#define FOREBAY_BASE_LOG_H

#include <stdbool.h>

#include "base/bytes.h"

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

// Before threads start.
void log_init(enum log_level level, bool json);
void log_set_level(enum log_level level); // any thread
void log_set_json(bool json);             // any thread
bool log_enabled(enum log_level level);
// A start that fails says why before anything else: from here on lines are kept, for LOG_HOLD_MS at
// most and as many as there is room for, until log_release() writes those up to `least`. Main
// thread.
#define LOG_HOLD_MS 2000u
void log_hold(void);
void log_release(enum log_level least);
// `format` is printf for "key=value key=value"; a value that may hold blanks or outside bytes must
// go through %s of log_quote().
void log_event(enum log_level level, const char *event, const char *format, ...) PRINTF_LIKE(3, 4);
// The same of what repeats while a condition lasts: once a minute for each condition, which is the
// event with its text but for digits. What was held back is told as dropped=N when the next one is
// written. True: this one was.
bool log_condition(enum log_level level, const char *event, const char *format, ...)
    PRINTF_LIKE(3, 4);
// Quoted and escaped copy of outside bytes, cut at 256 bytes; thread-local, four results may live
// at once.
const char *log_quote(struct span s);
// How object keys appear in logs: log.keys. Any thread; full until then.
enum log_keys { LOG_KEYS_FULL, LOG_KEYS_PREFIX, LOG_KEYS_HASH };
#define LOG_KEY_HASH_SIZE 17u
void log_keys_set(enum log_keys keys);
bool log_keys_are_full(void);
// What may be seen of a key: itself, what is in front of its last '/', or 16 hex digits in
// ret_hash.
struct span log_key_shown(struct span key, char *ret_hash);
const char *log_key(struct span key); // that, by log_quote()
// Lines written per level since start, for metrics.
unsigned long log_lines(enum log_level level);
unsigned long log_lines_lost(void);      // that stderr did not take
unsigned long log_lines_held_back(void); // by log_condition()

#define log_warn_condition(event, ...) log_condition(LOG_LEVEL_WARN, event, __VA_ARGS__)
#define log_error(event, ...) log_event(LOG_LEVEL_ERROR, event, __VA_ARGS__)
#define log_warn(event, ...) log_event(LOG_LEVEL_WARN, event, __VA_ARGS__)
#define log_info(event, ...) log_event(LOG_LEVEL_INFO, event, __VA_ARGS__)
#define log_debug(event, ...)                                                                      \
    (log_enabled(LOG_LEVEL_DEBUG) ? log_event(LOG_LEVEL_DEBUG, event, __VA_ARGS__) : (void)0)

#endif

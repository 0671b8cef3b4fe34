// SPDX-License-Identifier: Apache-2.0
// Server log, to stderr: one line per event, `ts=... level=... event=name key=value ...` as text,
// or the same as a JSON object. No prose, no secrets. Control bytes in values are escaped, and
// values with blanks are quoted. Each event name may write 100 lines a second. No thread waits for
// the log: lines that stderr does not accept at once are lost. The next line of an event reports
// its dropped and lost lines as dropped=N. Any thread; one write per line.
#ifndef FOREBAY_BASE_LOG_H
#define FOREBAY_BASE_LOG_H

#include <stdbool.h>

#include "base/bytes.h"

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

// Call it before threads start.
void log_init(enum log_level level, bool json);
void log_set_level(enum log_level level); // any thread
void log_set_json(bool json);             // any thread
bool log_enabled(enum log_level level);
// If a start fails, its reason should be the first line. So from this call on, lines are held in
// memory, for at most LOG_HOLD_MS and while there is room. log_release() writes those up to level
// `least`. Main thread.
#define LOG_HOLD_MS 2000u
void log_hold(void);
void log_release(enum log_level least);
// `format` is a printf format for "key=value key=value". Print a value that may hold blanks or
// bytes from outside with %s and log_quote().
void log_event(enum log_level level, const char *event, const char *format, ...) PRINTF_LIKE(3, 4);
// The same for an event that repeats while a condition lasts. It is written once a minute for each
// condition, which is the event name and its text without digits. The next line reports how many
// were held back as dropped=N. Returns true if the line was written.
bool log_condition(enum log_level level, const char *event, const char *format, ...)
    PRINTF_LIKE(3, 4);
// Returns a quoted and escaped copy of bytes from outside, cut at 256 bytes. It is thread-local;
// four results may be in use at once.
const char *log_quote(struct span s);
// How logs show object keys: the setting log.keys. Any thread; before the call, keys are shown in
// full.
enum log_keys { LOG_KEYS_FULL, LOG_KEYS_PREFIX, LOG_KEYS_HASH };
#define LOG_KEY_HASH_SIZE 17u
void log_keys_set(enum log_keys keys);
bool log_keys_are_full(void);
// Returns the part of a key that the log may show: the key, the part before its last '/', or 16 hex
// digits in ret_hash.
struct span log_key_shown(struct span key, char *ret_hash);
const char *log_key(struct span key); // the same, through log_quote()
// Lines written per level since the start, for metrics.
unsigned long log_lines(enum log_level level);
unsigned long log_lines_lost(void);      // lines that stderr did not accept
unsigned long log_lines_held_back(void); // held back by log_condition()

#define log_warn_condition(event, ...) log_condition(LOG_LEVEL_WARN, event, __VA_ARGS__)
#define log_error(event, ...) log_event(LOG_LEVEL_ERROR, event, __VA_ARGS__)
#define log_warn(event, ...) log_event(LOG_LEVEL_WARN, event, __VA_ARGS__)
#define log_info(event, ...) log_event(LOG_LEVEL_INFO, event, __VA_ARGS__)
#define log_debug(event, ...)                                                                      \
    (log_enabled(LOG_LEVEL_DEBUG) ? log_event(LOG_LEVEL_DEBUG, event, __VA_ARGS__) : (void)0)

#endif

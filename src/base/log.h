// SPDX-License-Identifier: Apache-2.0
// Server log, to stderr: one line per event, `ts=... level=... event=name key=value ...` as text,
// or the same as a JSON object. No prose, no secrets. Control bytes in values are escaped, and
// values with blanks are quoted. Each event name may write 100 lines a second; further lines are
// dropped. No thread waits for the log, so a line that stderr does not accept at once is lost. The
// next line of an event reports its dropped and lost lines as dropped=N. Any thread; one write per
// line.
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
// Holds all further lines in memory, so that the reason for a failed start can be the first line.
// Lines are held for at most LOG_HOLD_MS, and while there is room. log_release() writes those up to
// level `least` and ends the hold. Main thread.
#define LOG_HOLD_MS 2000u
void log_hold(void);
void log_release(enum log_level least);
// Writes a line. `format` is a printf format for "key=value key=value". Print a value that may have
// blanks or bytes from outside with %s and log_quote().
void log_event(enum log_level level, const char *event, const char *format, ...) PRINTF_LIKE(3, 4);
// Like log_event(), for an event that repeats while a condition lasts. Writes one line a minute for
// each condition. Calls are about the same condition if event name and text are equal apart from
// digits. The next line reports the number of lines held back as dropped=N. Returns true if the
// line was written.
bool log_condition(enum log_level level, const char *event, const char *format, ...)
    PRINTF_LIKE(3, 4);
// Returns a quoted and escaped copy of bytes from outside, cut at 256 bytes. It is thread-local;
// four results may be in use at once.
const char *log_quote(struct span s);
// The setting log.keys: how logs show object keys. Until log_keys_set() is called, keys are shown
// in full. Any thread.
enum log_keys { LOG_KEYS_FULL, LOG_KEYS_PREFIX, LOG_KEYS_HASH };
#define LOG_KEY_HASH_SIZE 17u
void log_keys_set(enum log_keys keys);
bool log_keys_are_full(void);
// Returns the part of a key that the log may show: all of it, the part up to its last '/', or its
// hash as 16 hex digits in ret_hash.
struct span log_key_shown(struct span key, char *ret_hash);
const char *log_key(struct span key); // log_key_shown() and log_quote() in one call
// Numbers of lines since the start, for metrics. log_lines() counts those written, by level.
unsigned long log_lines(enum log_level level);
unsigned long log_lines_lost(void);      // lines that stderr did not accept
unsigned long log_lines_held_back(void); // lines that log_condition() held back

#define log_warn_condition(event, ...) log_condition(LOG_LEVEL_WARN, event, __VA_ARGS__)
#define log_error(event, ...) log_event(LOG_LEVEL_ERROR, event, __VA_ARGS__)
#define log_warn(event, ...) log_event(LOG_LEVEL_WARN, event, __VA_ARGS__)
#define log_info(event, ...) log_event(LOG_LEVEL_INFO, event, __VA_ARGS__)
#define log_debug(event, ...)                                                                      \
    (log_enabled(LOG_LEVEL_DEBUG) ? log_event(LOG_LEVEL_DEBUG, event, __VA_ARGS__) : (void)0)

#endif

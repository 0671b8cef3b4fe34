// SPDX-License-Identifier: Apache-2.0
// The server log. Any thread. A line is composed on the caller's stack and written with one call,
// which keeps lines whole. Writing takes no lock, except while the lines of a start are held
// (log_hold()). The rate limit is a table of atomics. Each event name is hashed to a row, and names
// with the same row share its 100 lines a second. log_init() runs before threads start.
//
// The reader of the log may stall, and no thread waits for it: if a pipe, socket or terminal does
// not accept a line at once, the line is lost and counted.
//
// A line is first composed as text, `key=value ...`. For JSON that text is parsed again.
// log_quote() uses JSON string syntax in both formats, so a quoted value is copied unchanged. A
// bare value becomes a number, a boolean or a string.
#include "base/log.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/date.h"
#include "base/hash.h"
#include "base/headers.h"

#define LINE_MAX_BYTES 4096
#define QUOTE_MAX_BYTES 256
#define LINES_PER_SECOND 100
#define RATE_ROWS 256
#define HELD_MAX_BYTES 32768u
#define CONDITION_QUIET_US 60000000u

static atomic_int current_level = LOG_LEVEL_INFO;
static atomic_bool json_lines;
static atomic_int keys_shown = LOG_KEYS_FULL;
static bool is_file; // stderr is a regular file
static atomic_ulong lines_written[LOG_LEVEL_DEBUG + 1];
static atomic_ulong lines_lost, lines_held_back;

static struct rate_row {
    atomic_ulong second; // the second of the monotonic clock to which `count` refers
    atomic_ulong count;  // lines that were requested in that second, written or not
    atomic_ulong dropped;
} rate_rows[RATE_ROWS];

static struct condition_row {
    atomic_ulong hash; // hash of the condition; 0: the row was never used
    atomic_ulong quiet_until_us;
    atomic_ulong dropped;
} condition_rows[RATE_ROWS];

// Lines held since log_hold(), one after the other: level in one byte, length in two bytes, text.
static struct {
    pthread_mutex_t lock;
    char bytes[HELD_MAX_BYTES];
    size_t len;
    uint64_t until_us;
} held = {.lock = PTHREAD_MUTEX_INITIALIZER};
static atomic_bool is_holding; // changes under held.lock

void log_set_json(bool json)
{
    atomic_store(&json_lines, json);
}

void log_init(enum log_level level, bool json)
{
    atomic_store(&current_level, (int)level);
    log_set_json(json);
    struct stat st;
    is_file = fstat(STDERR_FILENO, &st) == 0 && S_ISREG(st.st_mode);
}

void log_set_level(enum log_level level)
{
    atomic_store(&current_level, (int)level);
}

bool log_enabled(enum log_level level)
{
    return (int)level <= atomic_load_explicit(&current_level, memory_order_relaxed);
}

unsigned long log_lines(enum log_level level)
{
    return atomic_load_explicit(&lines_written[level], memory_order_relaxed);
}

unsigned long log_lines_lost(void)
{
    return atomic_load_explicit(&lines_lost, memory_order_relaxed);
}

unsigned long log_lines_held_back(void)
{
    return atomic_load_explicit(&lines_held_back, memory_order_relaxed);
}

static struct rate_row *row_of(const char *event)
{
    return &rate_rows[hash64(event, strlen(event), 0) % RATE_ROWS];
}

// Returns true if a line of this event may be written now. *ret_dropped then becomes the number of
// lines dropped since the last one. Threads that race at the end of a second may write a few lines
// more or less than the limit.
static bool rate_allows(struct rate_row *row, unsigned long *ret_dropped)
{
    unsigned long second = (unsigned long)(clock_monotonic_us() / 1000000);
    if (atomic_load_explicit(&row->second, memory_order_relaxed) != second) {
        atomic_store_explicit(&row->second, second, memory_order_relaxed);
        atomic_store_explicit(&row->count, 0, memory_order_relaxed);
    }
    if (atomic_fetch_add_explicit(&row->count, 1, memory_order_relaxed) >= LINES_PER_SECOND) {
        atomic_fetch_add_explicit(&row->dropped, 1, memory_order_relaxed);
        return false;
    }
    *ret_dropped = atomic_exchange_explicit(&row->dropped, 0, memory_order_relaxed);
    return true;
}

// Returns the length of the UTF-8 sequence at the start of `s`, 0 if it is not UTF-8 (RFC 3629).
static size_t utf8_len(struct span s)
{
    const unsigned char *p = (const unsigned char *)s.ptr;
    size_t len = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if (len == 0 || p[0] > 0xf4 || len > s.len) {
        return 0;
    }
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
        (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f)) {
        return 0;
    }
    return len;
}

// Appends `s` to text[*len] with JSON escapes, and stops when the next character would not fit into
// `cap`. Bytes that are not UTF-8 become \u00XX.
static void escape(char *text, size_t cap, size_t *len, struct span s)
{
    for (size_t i = 0; i < s.len;) {
        unsigned char c = (unsigned char)s.ptr[i];
        size_t taken = utf8_len((struct span){s.ptr + i, s.len - i});
        char piece[8];
        int piece_len;
        if (c == '"' || c == '\\') {
            piece_len = snprintf(piece, sizeof(piece), "\\%c", c);
        } else if (taken == 0 || c < 0x20 || c == 0x7f) {
            taken = 1;
            piece_len = snprintf(piece, sizeof(piece), "\\u%04x", c);
        } else {
            memcpy(piece, s.ptr + i, taken);
            piece_len = (int)taken;
        }
        if (cap - *len < (size_t)piece_len) {
            return;
        }
        memcpy(text + *len, piece, (size_t)piece_len);
        *len += (size_t)piece_len;
        i += taken;
    }
}

const char *log_quote(struct span s)
{
    static _Thread_local char results[4][QUOTE_MAX_BYTES + 3];
    static _Thread_local unsigned next;
    char *text = results[next++ % 4];
    size_t len = 1;
    text[0] = '"';
    escape(text, QUOTE_MAX_BYTES + 1, &len, s);
    text[len++] = '"';
    text[len] = '\0';
    return text;
}

void log_keys_set(enum log_keys keys)
{
    atomic_store(&keys_shown, (int)keys);
}

bool log_keys_are_full(void)
{
    return atomic_load_explicit(&keys_shown, memory_order_relaxed) == LOG_KEYS_FULL;
}

struct span log_key_shown(struct span key, char *ret_hash)
{
    size_t len = key.len;
    switch ((enum log_keys)atomic_load_explicit(&keys_shown, memory_order_relaxed)) {
    case LOG_KEYS_HASH: {
        if (len == 0) {
            return key;
        }
        uint64_t hash = hash64(key.ptr, len, 0);
        hex_encode(&hash, sizeof(hash), ret_hash);
        return (struct span){ret_hash, LOG_KEY_HASH_SIZE - 1};
    }
    case LOG_KEYS_PREFIX:
        while (len > 0 && key.ptr[len - 1] != '/') {
            len--;
        }
        return (struct span){key.ptr, len};
    case LOG_KEYS_FULL:
    default:
        return key;
    }
}

const char *log_key(struct span key)
{
    char hash[LOG_KEY_HASH_SIZE];
    return log_quote(log_key_shown(key, hash));
}

// Removes one value from the front of *rest and returns it. A quoted value keeps its quotes; a bare
// one ends at the next blank.
static struct span take_value(struct span *rest)
{
    size_t len = 0;
    if (rest->len > 0 && rest->ptr[0] == '"') {
        len = 1;
        while (len < rest->len && rest->ptr[len] != '"') {
            len += rest->ptr[len] == '\\' && len + 1 < rest->len ? 2 : 1;
        }
        len += len < rest->len;
    } else {
        len = span_find(*rest, ' ');
    }
    struct span value = {rest->ptr, len};
    rest->ptr += len;
    rest->len -= len;
    return value;
}

static bool is_json_number(struct span s)
{
    size_t i = s.len > 0 && s.ptr[0] == '-';
    size_t first = i;
    while (i < s.len && s.ptr[i] >= '0' && s.ptr[i] <= '9') {
        i++;
    }
    if (i == first || (s.ptr[first] == '0' && i > first + 1)) {
        return false;
    }
    if (i < s.len && s.ptr[i] == '.') {
        first = ++i;
        while (i < s.len && s.ptr[i] >= '0' && s.ptr[i] <= '9') {
            i++;
        }
        if (i == first) {
            return false;
        }
    }
    return i == s.len;
}

struct line {
    char text[LINE_MAX_BYTES];
    size_t len;
};

// Leaves room for the characters that end every line.
#define LINE_ROOM (LINE_MAX_BYTES - 4)

static void line_append(struct line *line, struct span s)
{
    size_t len = s.len < LINE_ROOM - line->len ? s.len : LINE_ROOM - line->len;
    memcpy(line->text + line->len, s.ptr, len);
    line->len += len;
}

// Appends one member completely or not at all, so that a truncated line is still a valid object.
static void append_json_member(struct line *line, struct span key, struct span value)
{
    size_t before = line->len;
    bool quoted = value.len >= 2 && value.ptr[0] == '"' && value.ptr[value.len - 1] == '"';
    bool bare = quoted || is_json_number(value) || span_equal_cstr(value, "true") ||
                span_equal_cstr(value, "false");
    line_append(line, before == 1 ? SPAN("\"") : SPAN(",\""));
    escape(line->text, LINE_ROOM, &line->len, key);
    line_append(line, bare ? SPAN("\":") : SPAN("\":\""));
    if (bare) {
        line_append(line, value);
    } else {
        escape(line->text, LINE_ROOM, &line->len, value);
        line_append(line, SPAN("\""));
    }
    if (line->len >= LINE_ROOM) {
        line->len = before;
    }
}

static void build_json(struct line *line, struct span text)
{
    line_append(line, SPAN("{"));
    while (text.len > 0) {
        size_t equals = span_find(text, '=');
        if (equals == text.len) {
            break;
        }
        struct span key = span_trim((struct span){text.ptr, equals});
        text.ptr += equals + 1;
        text.len -= equals + 1;
        append_json_member(line, key, take_value(&text));
    }
    line->text[line->len++] = '}';
}

// Copies the text, with '?' for control bytes. A value from outside that was printed with a plain
// %s must not be able to begin a forged line.
static void build_text(struct line *line, struct span text)
{
    for (size_t i = 0; i < text.len && line->len < LINE_ROOM; i++) {
        char c = text.ptr[i];
        line->text[line->len++] = (unsigned char)c < 0x20 || c == 0x7f ? '?' : c;
    }
}

// Writes a line. Returns false if the line is lost. A line is at most PIPE_BUF bytes, so one write
// to a pipe is atomic.
static bool line_write(const char *text, size_t len)
{
    struct iovec iov = {(char *)(uintptr_t)text, len};
    if (!is_file) {
        ssize_t written = pwritev2(STDERR_FILENO, &iov, 1, -1, RWF_NOWAIT);
        if (written >= 0 || (errno != EOPNOTSUPP && errno != ENOSYS && errno != ESPIPE)) {
            return written > 0;
        }
        struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
        // RWF_NOWAIT does not work on a terminal or an old kernel, so ask first.
        if (poll(&room, 1, 0) <= 0) {
            return false;
        }
    }
    return write(STDERR_FILENO, text, len) > 0;
}

static void held_write_locked(enum log_level least)
{
    size_t at = 0;
    while (at < held.len) {
        enum log_level level = (enum log_level)held.bytes[at];
        uint16_t len;
        memcpy(&len, held.bytes + at + 1, sizeof(len));
        at += 1 + sizeof(len);
        if (level <= least && !line_write(held.bytes + at, len)) {
            atomic_fetch_add_explicit(&lines_lost, 1, memory_order_relaxed);
        }
        at += len;
    }
    held.len = 0;
    atomic_store(&is_holding, false);
}

void log_hold(void)
{
    pthread_mutex_lock(&held.lock);
    held.until_us = clock_monotonic_us() + LOG_HOLD_MS * 1000u;
    atomic_store(&is_holding, true);
    pthread_mutex_unlock(&held.lock);
}

void log_release(enum log_level least)
{
    pthread_mutex_lock(&held.lock);
    held_write_locked(least);
    pthread_mutex_unlock(&held.lock);
}

// Holds the line if lines are held at present. Returns false if the caller must write it now.
static bool line_keep(enum log_level level, const struct line *line)
{
    uint16_t len = (uint16_t)line->len;
    bool keeps = false;
    if (!atomic_load_explicit(&is_holding, memory_order_relaxed)) {
        return false;
    }
    static_assert(LINE_MAX_BYTES <= UINT16_MAX, "a line's length is kept in two bytes");
    pthread_mutex_lock(&held.lock);
    if (atomic_load(&is_holding)) {
        keeps = clock_monotonic_us() < held.until_us &&
                held.len + 1 + sizeof(len) + line->len <= HELD_MAX_BYTES;
        if (keeps) {
            held.bytes[held.len] = (char)level;
            memcpy(held.bytes + held.len + 1, &len, sizeof(len));
            memcpy(held.bytes + held.len + 1 + sizeof(len), line->text, line->len);
            held.len += 1 + sizeof(len) + line->len;
        } else {
            held_write_locked(LOG_LEVEL_DEBUG);
        }
    }
    pthread_mutex_unlock(&held.lock);
    return keeps;
}

static PRINTF_LIKE(5, 0) void write_event(enum log_level level, const char *event,
                                          struct rate_row *row, unsigned long dropped,
                                          const char *format, va_list args)
{
    static const char level_names[][6] = {"error", "warn", "info", "debug"};
    char text[LINE_MAX_BYTES];
    char date[DATE_ISO_LEN + 1];
    uint64_t now_us = clock_wall_us();
    date_format_iso((time_t)(now_us / 1000000), (unsigned)(now_us / 1000 % 1000), date);
    int head =
        snprintf(text, sizeof(text), "ts=%s level=%s event=%s", date, level_names[level], event);
    size_t len = head > 0 ? min_u64((uint64_t)head, sizeof(text) - 1) : 0;
    if (dropped > 0) {
        int more = snprintf(text + len, sizeof(text) - len, " dropped=%lu", dropped);
        len = min_u64(len + (size_t)(more > 0 ? more : 0), sizeof(text) - 1);
    }
    if (format[0] != '\0' && len < sizeof(text) - 1) {
        text[len++] = ' ';
        int more = vsnprintf(text + len, sizeof(text) - len, format, args);
        len = min_u64(len + (size_t)(more > 0 ? more : 0), sizeof(text) - 1);
    }
    struct line line = {.len = 0};
    if (atomic_load_explicit(&json_lines, memory_order_relaxed)) {
        build_json(&line, (struct span){text, len});
    } else {
        build_text(&line, (struct span){text, len});
    }
    line.text[line.len++] = '\n';
    if (line_keep(level, &line) || line_write(line.text, line.len)) {
        atomic_fetch_add_explicit(&lines_written[level], 1, memory_order_relaxed);
    } else { // the next line of this event reports the loss as dropped=N
        atomic_fetch_add_explicit(&lines_lost, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&row->dropped, dropped + 1, memory_order_relaxed);
    }
}

void log_event(enum log_level level, const char *event, const char *format, ...)
{
    struct rate_row *row = row_of(event);
    unsigned long dropped = 0;
    if (!log_enabled(level) || !rate_allows(row, &dropped)) {
        return;
    }
    va_list args;
    va_start(args, format);
    write_event(level, event, row, dropped, format, args);
    va_end(args);
}

static PRINTF_LIKE(2, 0) uint64_t
    condition_hash(const char *event, const char *format, va_list args)
{
    char text[LINE_MAX_BYTES];
    int printed = vsnprintf(text, sizeof(text), format, args);
    size_t len = printed > 0 ? min_u64((uint64_t)printed, sizeof(text) - 1) : 0, kept = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9') {
            text[kept++] = text[i];
        }
    }
    return hash64(text, kept, hash64(event, strlen(event), 0)) | 1;
}

// Returns true once a minute for each condition. A condition takes over a row that another
// condition had. Threads that race at the end of a minute may both get true.
static bool condition_is_due(uint64_t hash, unsigned long *ret_dropped)
{
    struct condition_row *row = &condition_rows[(hash >> 1) % RATE_ROWS];
    uint64_t now_us = clock_monotonic_us();
    bool is_same = atomic_load_explicit(&row->hash, memory_order_relaxed) == hash;
    if (is_same && now_us < atomic_load_explicit(&row->quiet_until_us, memory_order_relaxed)) {
        atomic_fetch_add_explicit(&row->dropped, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&lines_held_back, 1, memory_order_relaxed);
        return false;
    }
    atomic_store_explicit(&row->hash, hash, memory_order_relaxed);
    atomic_store_explicit(&row->quiet_until_us, now_us + CONDITION_QUIET_US, memory_order_relaxed);
    unsigned long dropped = atomic_exchange_explicit(&row->dropped, 0, memory_order_relaxed);
    *ret_dropped += is_same ? dropped : 0;
    return true;
}

bool log_condition(enum log_level level, const char *event, const char *format, ...)
{
    struct rate_row *row = row_of(event);
    unsigned long dropped = 0;
    va_list args;
    if (!log_enabled(level)) {
        return false;
    }
    va_start(args, format);
    uint64_t hash = condition_hash(event, format, args);
    va_end(args);
    unsigned long by_rate = 0;
    if (!condition_is_due(hash, &dropped) || !rate_allows(row, &by_rate)) {
        return false;
    }
    va_start(args, format);
    write_event(level, event, row, dropped + by_rate, format, args);
    va_end(args);
    return true;
}

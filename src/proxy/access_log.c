// SPDX-License-Identifier: Apache-2.0
// One line per request. A worker writes the line into a ring of its own, without a lock and without
// ever waiting: what does not fit is counted and gone. The log thread copies the rings to the file
// or to stdout, whatever that takes.
//
// A ring is bytes: `filled` is moved by its worker only, `emptied` by the log thread only, both
// ever rising. The thread sleeps on an eventfd and says so in `is_asleep`; the first line after
// that wakes it, and it lets LINGER_MS pass before it copies, so that a busy server pays one
// wake-up for many lines.
//
// Nothing secret reaches a line: no header that signs, no token, and of a query only what is not a
// signature. What a client chose (key, user agent, range) is escaped, so that a line is a line.
#include "base/date.h"
#include "base/random.h"
#include "proxy/proxy_private.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#define RING_BYTES (1u << 20)
#define LINE_MAX_BYTES 32768u
#define HEADER_SHOWN_MAX 512u
#define LINGER_MS 10
#define FILE_WRITE_MAX (256u * 1024u)
#define PIPE_WRITE_MAX 4096u // a pipe takes that much whole and without waiting when it is writable
#define STOP_WAIT_MS 1000    // for a reader that does not read, at the end

struct ring {
    _Alignas(64) atomic_ulong filled;
    _Alignas(64) atomic_ulong emptied;
    char *bytes; // RING_BYTES
    // the worker's own
    uint64_t sample_state;
    int64_t date_s;
    char date[DATE_ISO_LEN + 1];
};

struct access_log {
    enum proxy_access_log_format format;
    enum proxy_log_keys keys;
    double sample;
    char *path; // NULL: stdout
    int fd;
    bool is_file; // regular: writes do not wait
    bool has_failed;
    struct ring *rings;
    unsigned ring_count;
    int wake_fd;
    atomic_bool is_asleep;
    atomic_bool stopping;
    atomic_bool reopening;
    pthread_t thread;
    char *batch; // FILE_WRITE_MAX, the thread's
};

// --- the log thread ------------------------------------------------------------------------------

static void wake(struct access_log *log)
{
    uint64_t one = 1;
    (void)!write(log->wake_fd, &one, sizeof(one)); // a full counter wakes as well
}

static int open_path(const char *path)
{
    return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
}

static bool fd_is_file(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
}

static void reopen(struct access_log *log)
{
    if (log->path == NULL) {
        return;
    }
    int fd = open_path(log->path);
    if (fd < 0) {
        log_warn("access_log_reopen_failed", "path=%s errno=%d",
                 log_quote(span_from_cstr(log->path)), errno);
        return;
    }
    (void)close(log->fd);
    log->fd = fd;
    log->is_file = fd_is_file(fd);
    log->has_failed = false;
}

static void lines_lost(struct access_log *log, const char *bytes, size_t len, int errno_value)
{
    unsigned long lines = 0;
    for (size_t i = 0; i < len; i++) {
        lines += bytes[i] == '\n';
    }
    stats_add(COUNTER_access_log_dropped, lines);
    if (!log->has_failed) {
        log->has_failed = true;
        log_warn("access_log_write_failed", "errno=%d", errno_value);
    }
}

// Whole lines as long as they fit one write.
static size_t write_len(const struct access_log *log, const char *bytes, size_t len)
{
    if (log->is_file || len <= PIPE_WRITE_MAX) {
        return len;
    }
    const char *end = memrchr(bytes, '\n', PIPE_WRITE_MAX);
    return end != NULL ? (size_t)(end - bytes) + 1 : PIPE_WRITE_MAX;
}

static void write_all(struct access_log *log, const char *bytes, size_t len)
{
    while (len > 0) {
        if (!log->is_file) {
            struct pollfd p = {.fd = log->fd, .events = POLLOUT};
            int rc = poll(&p, 1, STOP_WAIT_MS);
            if (rc <= 0 && !atomic_load(&log->stopping)) {
                continue;
            }
            if (rc <= 0) {
                lines_lost(log, bytes, len, ETIMEDOUT);
                return;
            }
        }
        ssize_t n = write(log->fd, bytes, write_len(log, bytes, len));
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
            continue;
        }
        if (n <= 0) {
            lines_lost(log, bytes, len, errno);
            return;
        }
        bytes += n;
        len -= (size_t)n;
    }
}

// Copies what a ring holds; false when it was empty.
static bool ring_drain(struct access_log *log, struct ring *ring)
{
    unsigned long emptied = atomic_load_explicit(&ring->emptied, memory_order_relaxed);
    unsigned long filled = atomic_load_explicit(&ring->filled, memory_order_acquire);
    if (filled == emptied) {
        return false;
    }
    while (emptied != filled) {
        size_t len = min_u64(filled - emptied, FILE_WRITE_MAX);
        size_t at = emptied % RING_BYTES;
        size_t first = min_u64(len, RING_BYTES - at);
        memcpy(log->batch, ring->bytes + at, first);
        memcpy(log->batch + first, ring->bytes, len - first);
        if (emptied + len != filled) { // lines stay whole from one write to the next
            const char *end = memrchr(log->batch, '\n', len);
            check(end != NULL);
            len = (size_t)(end - log->batch) + 1;
        }
        emptied += len;
        atomic_store_explicit(&ring->emptied, emptied, memory_order_release);
        write_all(log, log->batch, len);
    }
    return true;
}

static bool drain(struct access_log *log)
{
    bool any = false;
    for (unsigned i = 0; i < log->ring_count; i++) {
        any = ring_drain(log, &log->rings[i]) || any;
    }
    return any;
}

static void *run_thread(void *ctx)
{
    struct access_log *log = ctx;
    for (;;) {
        bool stopping = atomic_load(&log->stopping);
        if (atomic_exchange(&log->reopening, false)) {
            reopen(log);
        }
        if (drain(log)) {
            continue;
        }
        if (stopping) {
            return NULL;
        }
        atomic_store(&log->is_asleep,
                     true); // sequentially consistent, as is the workers' look at it
        if (drain(log)) {
            atomic_store(&log->is_asleep, false);
            continue;
        }
        uint64_t count;
        (void)!read(log->wake_fd, &count, sizeof(count));
        atomic_store(&log->is_asleep, false);
        if (!atomic_load(&log->stopping)) {
            (void)poll(NULL, 0, LINGER_MS);
        }
    }
}

// --- birth and end -------------------------------------------------------------------------------

enum err access_log_new(const struct proxy_options *options, unsigned worker_count,
                        struct access_log **ret_log, struct buf *ret_why)
{
    bool is_stdout = strcmp(options->access_log_path, "-") == 0;
    int fd = is_stdout ? dup(STDOUT_FILENO) : open_path(options->access_log_path);
    if (fd < 0) {
        buf_printf(ret_why, "access_log.path %s cannot be opened: %s", options->access_log_path,
                   strerror(errno));
        return error_from_errno(errno);
    }
    struct access_log *log = calloc(1, sizeof(*log));
    check(log != NULL);
    log->format = options->access_log_format;
    log->keys = options->log_keys;
    log->sample = options->access_log_sample;
    log->path = is_stdout ? NULL : strdup(options->access_log_path);
    log->fd = fd;
    log->is_file = fd_is_file(fd);
    log->ring_count = worker_count;
    log->rings = aligned_alloc(64, worker_count * sizeof(*log->rings));
    check(log->rings != NULL);
    memset(log->rings, 0, worker_count * sizeof(*log->rings));
    for (unsigned i = 0; i < worker_count; i++) {
        log->rings[i].bytes = malloc(RING_BYTES);
        check(log->rings[i].bytes != NULL);
        log->rings[i].sample_state = random_u64() | 1;
        log->rings[i].date_s = INT64_MIN;
    }
    log->batch = malloc(FILE_WRITE_MAX);
    check(log->batch != NULL);
    log->wake_fd = eventfd(0, EFD_CLOEXEC);
    check(log->wake_fd >= 0);
    int rc = pthread_create(&log->thread, NULL, run_thread, log);
    check(rc == 0);
    *ret_log = log;
    return ERR_OK;
}

void access_log_free(struct access_log *log)
{
    if (log == NULL) {
        return;
    }
    atomic_store(&log->stopping, true);
    wake(log);
    (void)pthread_join(log->thread, NULL);
    for (unsigned i = 0; i < log->ring_count; i++) {
        free(log->rings[i].bytes);
    }
    free(log->rings);
    free(log->batch);
    free(log->path);
    (void)close(log->wake_fd);
    (void)close(log->fd);
    free(log);
}

void access_log_reopen(struct access_log *log)
{
    if (log != NULL) {
        atomic_store(&log->reopening, true);
        wake(log);
    }
}

// --- building a line -----------------------------------------------------------------------------

// Room is checked once per piece; a line that does not fit is not written at all.
struct line {
    size_t len;
    bool is_full;
    char bytes[LINE_MAX_BYTES];
};

static void put_bytes(struct line *line, const char *bytes, size_t len)
{
    if (len > sizeof(line->bytes) - line->len) {
        line->is_full = true;
        return;
    }
    if (len > 0) {
        memcpy(line->bytes + line->len, bytes, len);
    }
    line->len += len;
}

#define put_literal(line, literal) put_bytes(line, "" literal, sizeof(literal) - 1)

static void put_text(struct line *line, const char *text)
{
    put_bytes(line, text, strlen(text));
}

static void put_u64(struct line *line, uint64_t value)
{
    char digits[U64_DIGITS_MAX];
    struct span text = span_of_u64(value, digits);
    put_bytes(line, text.ptr, text.len);
}

// Microseconds as milliseconds with three digits behind the point.
static void put_ms(struct line *line, uint64_t us)
{
    put_u64(line, us / 1000);
    char rest[4] = {'.', (char)('0' + us / 100 % 10), (char)('0' + us / 10 % 10),
                    (char)('0' + us % 10)};
    put_bytes(line, rest, sizeof(rest));
}

static bool is_plain(unsigned char c)
{
    return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
}

#define EACH(byte) ((byte)*UINT64_C(0x0101010101010101))

// The same of eight bytes at once. Nearly all that is logged is plain.
static bool are_plain(const char *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof(word));
    uint64_t quote = word ^ EACH('"'), backslash = word ^ EACH('\\'), del = word ^ EACH(0x7f);
    uint64_t low = (word - EACH(0x20)) & ~word; // top bits: below 0x20, or behind such a byte
    uint64_t zero = ((quote - EACH(1)) & ~quote) | ((backslash - EACH(1)) & ~backslash) |
                    ((del - EACH(1)) & ~del);
    return ((word | low | zero) & EACH(0x80)) == 0;
}

// How long is the UTF-8 sequence at the start of `s`; 0 when it is none.
static size_t utf8_len(struct span s)
{
    const unsigned char *p = (const unsigned char *)s.ptr;
    size_t len = p[0] >= 0xc2 && p[0] <= 0xdf   ? 2
                 : p[0] >= 0xe0 && p[0] <= 0xef ? 3
                 : p[0] >= 0xf0 && p[0] <= 0xf4 ? 4
                                                : 0;
    if (len == 0 || s.len < len) {
        return 0;
    }
    for (size_t i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
        (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f) ||
        (p[0] == 0xc2 && p[1] < 0xa0)) { // the last: C1 controls
        return 0;
    }
    return len;
}

// For inside double quotes of JSON. Bytes that are no UTF-8 become \u00XX, one each.
static void put_escaped(struct line *line, struct span s)
{
    while (s.len > 0) {
        size_t plain = 0;
        while (plain < s.len && is_plain((unsigned char)s.ptr[plain])) {
            plain += s.len - plain >= 8 && are_plain(s.ptr + plain) ? 8 : 1;
        }
        put_bytes(line, s.ptr, plain);
        s.ptr += plain;
        s.len -= plain;
        if (s.len == 0) {
            return;
        }
        size_t wide = utf8_len(s);
        if (wide > 0) {
            put_bytes(line, s.ptr, wide);
        } else if (*s.ptr == '"' || *s.ptr == '\\') {
            char pair[2] = {'\\', *s.ptr};
            put_bytes(line, pair, 2);
        } else {
            char hex[3], text[6] = {'\\', 'u', '0', '0'};
            hex_encode(s.ptr, 1, hex);
            text[4] = hex[0];
            text[5] = hex[1];
            put_bytes(line, text, sizeof(text));
        }
        s.ptr += wide > 0 ? wide : 1;
        s.len -= wide > 0 ? wide : 1;
    }
}

// For the space-separated form: percent coding of everything that could be read as more than one
// field.
static void put_coded(struct line *line, struct span s, bool keep_blanks)
{
    static const char HEX[] = "0123456789ABCDEF";
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        if (c > 0x20 && c < 0x7f && c != '"' && c != '\\') {
            put_bytes(line, s.ptr + i, 1);
        } else if (c == ' ' && keep_blanks) {
            put_literal(line, " ");
        } else {
            char coded[3] = {'%', HEX[c >> 4], HEX[c & 15]};
            put_bytes(line, coded, 3);
        }
    }
}

static struct span key_shown(const struct access_log *log, struct span key, char *ret_hash)
{
    switch (log->keys) {
    case PROXY_LOG_KEYS_HASH: {
        if (key.len == 0) {
            return key;
        }
        uint64_t hash = hash64(key.ptr, key.len, 0);
        hex_encode(&hash, sizeof(hash), ret_hash);
        return (struct span){ret_hash, 16};
    }
    case PROXY_LOG_KEYS_PREFIX: {
        size_t len = key.len;
        while (len > 0 && key.ptr[len - 1] != '/') {
            len--;
        }
        return (struct span){key.ptr, len};
    }
    case PROXY_LOG_KEYS_FULL:
    default:
        return key;
    }
}

static const char *source_name(const struct request *r)
{
    if (r->bytes_origin > 0) {
        return "origin";
    }
    if (r->bytes_disk > 0) {
        return "disk";
    }
    return r->bytes_memory > 0 ? "memory" : "";
}

static const char *error_code(const struct request *r, enum http_outcome outcome)
{
    if (outcome == HTTP_CLIENT_GONE) {
        return "ClientGone";
    }
    if (outcome == HTTP_CUT) {
        return "Cut";
    }
    return r->err != ERR_OK ? error_row(r->err)->s3_code : "";
}

static void put_json_string(struct line *line, struct span begin, struct span value)
{
    put_bytes(line, begin.ptr, begin.len);
    put_escaped(line, value);
    put_literal(line, "\"");
}

static void put_json_number(struct line *line, struct span begin, uint64_t value)
{
    put_bytes(line, begin.ptr, begin.len);
    put_u64(line, value);
}

// Fields that nearly every request leaves empty are left out.
static void put_json_string_if(struct line *line, struct span begin, struct span value)
{
    if (value.len > 0) {
        put_json_string(line, begin, value);
    }
}

#define put_json_text(line, name, value) put_json_string(line, SPAN(",\"" name "\":\""), value)
#define put_json_if(line, name, value) put_json_string_if(line, SPAN(",\"" name "\":\""), value)
#define put_json_u64(line, name, value) put_json_number(line, SPAN(",\"" name "\":"), value)

static void put_date(struct line *line, struct ring *ring, uint64_t wall_us)
{
    int64_t s = (int64_t)(wall_us / 1000000);
    if (s != ring->date_s) {
        ring->date_s = s;
        date_format_iso((time_t)s, 0, ring->date);
    }
    unsigned ms = (unsigned)(wall_us / 1000 % 1000);
    char rest[5] = {'.', (char)('0' + ms / 100), (char)('0' + ms / 10 % 10), (char)('0' + ms % 10),
                    'Z'};
    put_bytes(line, ring->date, DATE_ISO_LEN - sizeof(rest));
    put_bytes(line, rest, sizeof(rest));
}

struct timing {
    uint64_t first_byte_us, total_us;
};

static struct timing timing_of(const struct request *r)
{
    uint64_t now = clock_monotonic_us(), started = r->http->started_us;
    uint64_t first = http_reply_first_byte_us(r->x);
    return (struct timing){first > started ? first - started : 0,
                           now > started ? now - started : 0};
}

static struct span shortened(struct span value)
{
    value.len = min_u64(value.len, HEADER_SHOWN_MAX);
    return value;
}

static void put_json_header(struct line *line, const struct request *r, struct span begin,
                            struct span name)
{
    struct span value;
    if (headers_get(&r->http->headers, name, &value)) {
        put_json_string_if(line, begin, shortened(value));
    }
}

static void line_json(struct line *line, const struct access_log *log, struct ring *ring,
                      const struct request *r, enum http_outcome outcome)
{
    char hash[17];
    struct timing timing = timing_of(r);
    struct span value;
    put_literal(line, "{\"ts\":\"");
    put_date(line, ring, clock_wall_us());
    put_literal(line, "\"");
    put_json_text(line, "id", span_from_cstr(r->id));
    if (headers_get(&r->http->headers, SPAN("traceparent"), &value) && value.len >= 35) {
        value = (struct span){value.ptr + 3, 32};
        put_json_text(line, "trace_id", value);
    }
    put_json_text(line, "client", r->http->peer);
    put_json_text(line, "op", span_from_cstr(s3_operation_name(r->s3.operation)));
    put_json_text(line, "bucket", r->s3.bucket);
    put_json_text(line, "key", key_shown(log, r->s3.key, hash));
    put_json_header(line, r, SPAN(",\"range\":\""), SPAN("range"));
    put_json_u64(line, "status", r->status);
    put_json_if(line, "error", span_from_cstr(error_code(r, outcome)));
    put_json_text(line, "result", span_from_cstr(request_result_name(r->result)));
    put_json_if(line, "reason", span_from_cstr(r->reason));
    put_json_if(line, "source", span_from_cstr(source_name(r)));
    if (r->blocks_total > 0) {
        put_json_u64(line, "blocks_hit", r->blocks_hit);
        put_json_u64(line, "blocks_total", r->blocks_total);
    }
    put_json_u64(line, "bytes", http_reply_body_bytes(r->x));
    if (r->object_size_bytes > 0) {
        put_json_u64(line, "object_size", r->object_size_bytes);
    }
    put_json_if(line, "etag", serve_get_version(r));
    put_literal(line, ",\"ttfb_ms\":");
    put_ms(line, timing.first_byte_us);
    put_literal(line, ",\"total_ms\":");
    put_ms(line, timing.total_us);
    if (r->attempts > 0) {
        put_literal(line, ",\"origin_ms\":");
        put_ms(line, r->origin_us);
        put_json_u64(line, "attempts", r->attempts);
    }
    put_json_header(line, r, SPAN(",\"ua\":\""), SPAN("user-agent"));
    put_literal(line, "}\n");
}

// --- the form of S3's own server access log ------------------------------------------------------

// "REST.GET.OBJECT" and its kin, as S3 writes them.
static void put_s3_operation(struct line *line, const struct request *r)
{
    static const struct {
        enum s3_operation operation;
        const char *name;
    } NAMES[] = {
        {S3_DeleteObjects, "REST.POST.MULTI_OBJECT_DELETE"},
        {S3_CopyObject, "REST.COPY.OBJECT"},
        {S3_UploadPart, "REST.PUT.PART"},
        {S3_UploadPartCopy, "REST.COPY.PART"},
        {S3_CreateMultipartUpload, "REST.POST.UPLOADS"},
        {S3_CompleteMultipartUpload, "REST.POST.UPLOAD"},
        {S3_AbortMultipartUpload, "REST.DELETE.UPLOAD"},
        {S3_ListParts, "REST.GET.UPLOAD"},
        {S3_ListMultipartUploads, "REST.GET.UPLOADS"},
        {S3_ListObjectVersions, "REST.GET.BUCKETVERSIONS"},
        {S3_GetBucketLocation, "REST.GET.LOCATION"},
        {S3_GetBucketVersioning, "REST.GET.VERSIONING"},
        {S3_GetObjectAcl, "REST.GET.ACL"},
        {S3_PutObjectAcl, "REST.PUT.ACL"},
        {S3_GetBucketAcl, "REST.GET.ACL"},
        {S3_PutBucketAcl, "REST.PUT.ACL"},
        {S3_GetObjectTagging, "REST.GET.OBJECT_TAGGING"},
        {S3_PutObjectTagging, "REST.PUT.OBJECT_TAGGING"},
        {S3_DeleteObjectTagging, "REST.DELETE.OBJECT_TAGGING"},
        {S3_GetObjectAttributes, "REST.GET.OBJECT_ATTRIBUTES"},
        {S3_RestoreObject, "REST.POST.RESTORE"},
    };
    for (size_t i = 0; i < ARRAY_LEN(NAMES); i++) {
        if (NAMES[i].operation == r->s3.operation) {
            put_text(line, NAMES[i].name);
            return;
        }
    }
    put_literal(line, "REST.");
    put_coded(line, r->http->method, false);
    put_text(line, r->s3.key.len > 0 ? ".OBJECT" : r->s3.bucket.len > 0 ? ".BUCKET" : ".SERVICE");
}

static void put_s3_field(struct line *line, struct span value)
{
    put_literal(line, " ");
    if (value.len == 0) {
        put_literal(line, "-");
    } else {
        put_coded(line, value, false);
    }
}

static void put_s3_quoted(struct line *line, struct span value)
{
    if (value.len == 0) {
        put_literal(line, " \"-\"");
        return;
    }
    put_literal(line, " \"");
    put_coded(line, value, true);
    put_literal(line, "\"");
}

static void put_s3_number(struct line *line, uint64_t value, bool is_known)
{
    if (!is_known) {
        put_literal(line, " -");
        return;
    }
    put_literal(line, " ");
    put_u64(line, value);
}

static bool is_secret_parameter(struct span name)
{
    static const char *const SECRET[] = {"X-Amz-Signature", "X-Amz-Security-Token", "Signature"};
    for (size_t i = 0; i < ARRAY_LEN(SECRET); i++) {
        if (span_equal_nocase(name, span_from_cstr(SECRET[i]))) {
            return true;
        }
    }
    return false;
}

// The request line, without signatures; with a shortened key also without anything else that might
// name it.
static void put_s3_request_line(struct line *line, const struct access_log *log,
                                const struct request *r)
{
    char hash[17];
    put_literal(line, " \"");
    put_coded(line, r->http->method, false);
    put_literal(line, " ");
    if (log->keys != PROXY_LOG_KEYS_FULL) {
        put_literal(line, "/");
        put_coded(line, r->s3.bucket, false);
        put_literal(line, "/");
        put_coded(line, key_shown(log, r->s3.key, hash), false);
    } else {
        size_t question = span_find(r->http->target, '?');
        put_coded(line, (struct span){r->http->target.ptr, question}, false);
        for (unsigned i = 0; i < r->s3.param_count; i++) {
            const struct s3_param *p = &r->s3.params[i];
            put_text(line, i == 0 ? "?" : "&");
            put_coded(line, p->raw_name, false);
            if (p->has_value) {
                put_literal(line, "=");
                put_coded(line, is_secret_parameter(p->name) ? SPAN("-") : p->raw_value, false);
            }
        }
    }
    put_text(line, r->http->version_minor == 0 ? " HTTP/1.0\"" : " HTTP/1.1\"");
}

static void line_s3(struct line *line, const struct access_log *log, const struct request *r,
                    enum http_outcome outcome)
{
    static const char MONTHS[][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    char hash[17];
    struct timing timing = timing_of(r);
    struct span none = {NULL, 0}, referer = none, agent = none;
    struct tm tm;
    time_t now = (time_t)clock_wall_s();
    (void)gmtime_r(&now, &tm);
    char *text =
        arena_printf(r->arena, "[%02d/%s/%04d:%02d:%02d:%02d +0000]", tm.tm_mday, MONTHS[tm.tm_mon],
                     tm.tm_year + 1900, tm.tm_hour, tm.tm_min, tm.tm_sec);
    struct span date = span_from_cstr(text);

    put_literal(line, "-"); // bucket owner: not known here
    put_s3_field(line, r->s3.bucket);
    put_literal(line, " ");
    put_bytes(line, date.ptr, date.len);
    put_s3_field(line, request_address(r));
    put_s3_field(line, r->principal.verified ? r->principal.name : none);
    put_s3_field(line, span_from_cstr(r->id));
    put_literal(line, " ");
    put_s3_operation(line, r);
    put_s3_field(line, key_shown(log, r->s3.key, hash));
    put_s3_request_line(line, log, r);
    put_s3_number(line, r->status, true);
    put_s3_field(line, span_from_cstr(error_code(r, outcome)));
    uint64_t bytes = http_reply_body_bytes(r->x);
    put_s3_number(line, bytes, bytes > 0);
    put_s3_number(line, r->object_size_bytes, r->object_size_bytes > 0);
    put_s3_number(line, timing.total_us / 1000, true);
    put_s3_number(line, timing.first_byte_us / 1000, timing.first_byte_us > 0);
    if (log->keys == PROXY_LOG_KEYS_FULL &&
        headers_get(&r->http->headers, SPAN("referer"), &referer)) {
        referer.len = span_find(referer, '?');
    }
    put_s3_quoted(line, shortened(referer));
    (void)headers_get(&r->http->headers, SPAN("user-agent"), &agent);
    put_s3_quoted(line, shortened(agent));
    put_s3_field(line, r->s3.has_version_id ? r->s3.version_id : none);
    put_s3_field(line, span_from_cstr(r->id)); // host id
    put_s3_field(line, r->principal.verified ? SPAN("SigV4") : none);
    put_literal(line, " -"); // cipher suite
    put_s3_field(line, !r->principal.verified ? none
                       : r->s3.presigned      ? SPAN("QueryString")
                                              : SPAN("AuthHeader"));
    put_s3_field(line, shortened(r->http->host));
    put_literal(line, " - - -\n"); // TLS version, access point, ACL required
}

// --- from a request to the ring ------------------------------------------------------------------

static bool is_sampled(const struct access_log *log, struct ring *ring)
{
    if (log->sample >= 1) {
        return true;
    }
    uint64_t x = ring->sample_state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    ring->sample_state = x;
    return (double)(x >> 11) * 0x1p-53 < log->sample;
}

static bool ring_put(struct ring *ring, const char *bytes, size_t len)
{
    unsigned long filled = atomic_load_explicit(&ring->filled, memory_order_relaxed);
    unsigned long emptied = atomic_load_explicit(&ring->emptied, memory_order_acquire);
    if (RING_BYTES - (filled - emptied) < len) {
        return false;
    }
    size_t at = filled % RING_BYTES;
    size_t first = min_u64(len, RING_BYTES - at);
    memcpy(ring->bytes + at, bytes, first);
    memcpy(ring->bytes, bytes + first, len - first);
    atomic_store(&ring->filled,
                 filled + len); // sequentially consistent: the thread may be falling asleep
    return true;
}

void access_log_write(struct access_log *log, const struct request *r, enum http_outcome outcome)
{
    if (log == NULL) {
        return;
    }
    check(r->pw->index < log->ring_count);
    struct ring *ring = &log->rings[r->pw->index];
    bool is_error = r->status >= 400 || r->err != ERR_OK || outcome != HTTP_DONE;
    if (!is_error && !is_sampled(log, ring)) {
        return;
    }
    struct line line;
    line.len = 0;
    line.is_full = false;
    if (log->format == PROXY_ACCESS_LOG_S3) {
        line_s3(&line, log, r, outcome);
    } else {
        line_json(&line, log, ring, r, outcome);
    }
    if (line.is_full || !ring_put(ring, line.bytes, line.len)) {
        stats_add(COUNTER_access_log_dropped, 1);
        return;
    }
    if (atomic_load(&log->is_asleep) && atomic_exchange(&log->is_asleep, false)) {
        wake(log);
    }
}

// SPDX-License-Identifier: Apache-2.0
// Parses one text into one value, by kind. Pure except for config_value_is_secret_file(); any
// thread.
#include "base/host.h"
#include "config/config_private.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit time_units[] = {
    {"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}, {"d", 86400000}};
static const struct unit size_units[] = {{"B", 1},
                                         {"KiB", 1ull << 10},
                                         {"MiB", 1ull << 20},
                                         {"GiB", 1ull << 30},
                                         {"TiB", 1ull << 40},
                                         {"PiB", 1ull << 50},
                                         {"EiB", 1ull << 60},
                                         {"KB", 1000ull},
                                         {"MB", 1000000ull},
                                         {"GB", 1000000000ull},
                                         {"TB", 1000000000000ull},
                                         {"PB", 1000000000000000ull}};

// Truncates values in messages, so that every message fits into WHY_MAX bytes.
#define SHOWN(s) (int)((s).len < 80 ? (s).len : 80), (s).ptr

static bool refuse(char *ret_why, const char *format, ...) PRINTF_LIKE(2, 3);
static bool refuse(char *ret_why, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(ret_why, WHY_MAX, format, args); // truncates a longer reason
    va_end(args);
    return false;
}

// A number without sign or exponent, such as the 1.5 of "1.5GiB". `fraction` has the digits after
// the point, `text` the whole number as it is written.
struct number {
    uint64_t whole;
    struct span fraction;
    struct span text;
};

static size_t count_digits(struct span s)
{
    size_t digits = 0;
    while (digits < s.len && s.ptr[digits] >= '0' && s.ptr[digits] <= '9') {
        digits++;
    }
    return digits;
}

// Splits "1.5MiB" into its number and the rest. Returns false if there is no number, if digits are
// missing before or after a point, if there are two points, or if the number is too large.
static bool split_number(struct span s, struct number *ret_number, struct span *ret_unit)
{
    size_t digits = count_digits(s), end = digits;
    *ret_number = (struct number){0};
    if (end < s.len && s.ptr[end] == '.') {
        struct span *fraction = &ret_number->fraction;
        *fraction = (struct span){s.ptr + end + 1, s.len - end - 1};
        fraction->len = count_digits(*fraction);
        end += 1 + fraction->len;
        if (fraction->len == 0 || (end < s.len && s.ptr[end] == '.')) {
            return false;
        }
    }
    ret_number->text = (struct span){s.ptr, end};
    *ret_unit = (struct span){s.ptr + end, s.len - end};
    return span_to_u64((struct span){s.ptr, digits}, &ret_number->whole);
}

// Returns the part of `factor` that a fraction is, rounded down. It is exact however many digits
// there are: each step divides by 10, and a remainder cannot change the digits above it. The sum
// stays below 10 times the largest factor, 2^60.
static uint64_t fraction_of(uint64_t factor, struct span fraction)
{
    uint64_t part = 0;
    for (size_t i = fraction.len; i > 0; i--) {
        part = ((uint64_t)(fraction.ptr[i - 1] - '0') * factor + part) / 10;
    }
    return part;
}

static bool is_zero(const struct number *number)
{
    size_t zeros = 0;
    while (zeros < number->fraction.len && number->fraction.ptr[zeros] == '0') {
        zeros++;
    }
    return number->whole == 0 && zeros == number->fraction.len;
}

// Returns the unit that the user probably meant, or NULL. `unit` may differ in case, or be a short
// form as in Kubernetes ("Gi", "G", "sec").
static const char *nearest_unit(struct span unit, const struct unit *units, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct span name = span_from_cstr(units[i].name);
        if (span_equal_nocase(unit, name)) {
            return units[i].name;
        }
    }
    for (size_t i = 0; i < count && unit.len > 0; i++) {
        struct span name = span_from_cstr(units[i].name);
        size_t len = unit.len < name.len ? unit.len : name.len;
        if (span_equal_nocase((struct span){unit.ptr, len}, (struct span){name.ptr, len})) {
            return units[i].name;
        }
    }
    return NULL;
}

// Multiplies a number with its unit. A value that rounds down to 0 is refused, because 0 often
// means "no limit". The first of `units` is the smallest.
static bool apply_unit(struct span s, const struct number *number, struct span unit,
                       const struct unit *units, size_t count, uint64_t *ret_value, char *ret_why)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t value;
        if (!span_equal_cstr(unit, units[i].name)) {
            continue;
        }
        if (!mul_u64(number->whole, units[i].factor, &value) ||
            !add_u64(value, fraction_of(units[i].factor, number->fraction), &value)) {
            return refuse(ret_why, "\"%.*s\" is too large", SHOWN(s));
        }
        if (value == 0 && !is_zero(number)) {
            return refuse(ret_why, "\"%.*s\" is less than 1%s", SHOWN(s), units[0].name);
        }
        *ret_value = value;
        return true;
    }
    const char *near = nearest_unit(unit, units, count);
    if (near != NULL) {
        return refuse(ret_why, "\"%.*s\" has an unknown unit (%.*s%s?)", SHOWN(s),
                      SHOWN(number->text), near);
    }
    return refuse(ret_why, "\"%.*s\" has an unknown unit \"%.*s\"", SHOWN(s), SHOWN(unit));
}

bool config_value_parse_ms(struct span s, uint64_t *ret_ms, char *ret_why)
{
    struct number number;
    struct span unit;
    if (!split_number(s, &number, &unit)) {
        return refuse(ret_why, "\"%.*s\" is not a time such as 250ms, 30s, 1.5h or 7d", SHOWN(s));
    }
    if (unit.len == 0) {
        return refuse(ret_why, "\"%.*s\" needs a unit (%.*ss?)", SHOWN(s), SHOWN(s));
    }
    return apply_unit(s, &number, unit, time_units, ARRAY_LEN(time_units), ret_ms, ret_why);
}

// Returns whether a unit counts bits, as in "2Gbit" or "500Mbps".
static bool is_in_bits(struct span unit)
{
    static const char *const tails[] = {"bit", "bits", "bps"};
    for (size_t i = 0; i < ARRAY_LEN(tails); i++) {
        struct span tail = span_from_cstr(tails[i]);
        if (unit.len >= tail.len &&
            span_equal_nocase((struct span){unit.ptr + unit.len - tail.len, tail.len}, tail)) {
            return true;
        }
    }
    return false;
}

bool config_value_parse_bytes(struct span s, uint64_t *ret_bytes, char *ret_why)
{
    struct number number;
    struct span unit;
    if (!split_number(s, &number, &unit)) {
        return refuse(ret_why, "\"%.*s\" is not a size such as 64MiB, 1.5GiB or 2GB", SHOWN(s));
    }
    if (unit.len == 0 && number.fraction.len > 0) {
        return refuse(ret_why, "\"%.*s\" needs a unit (%.*sGiB?)", SHOWN(s), SHOWN(s));
    }
    if (unit.len == 0) {
        *ret_bytes = number.whole;
        return true;
    }
    if (is_in_bits(unit)) {
        return refuse(ret_why, "\"%.*s\" is in bits; write bytes: 2Gbit/s is 250MB/s", SHOWN(s));
    }
    return apply_unit(s, &number, unit, size_units, ARRAY_LEN(size_units), ret_bytes, ret_why);
}

void config_value_format_bytes(uint64_t bytes, char *ret_text)
{
    for (int i = 6; i >= 1; i--) { // EiB down to KiB
        if (bytes > 0 && bytes % size_units[i].factor == 0) {
            (void)snprintf(ret_text, WHY_MAX, "%lu%s",
                           (unsigned long)(bytes / size_units[i].factor), size_units[i].name);
            return;
        }
    }
    (void)snprintf(ret_text, WHY_MAX, "%lu", (unsigned long)bytes);
}

#define BLOCK_MIN_BYTES (64ull << 10)
#define BLOCK_MAX_BYTES (16ull << 20)

static uint64_t nearest_block_size(uint64_t bytes)
{
    uint64_t size = BLOCK_MIN_BYTES;
    while (size < BLOCK_MAX_BYTES && size + size / 2 <= bytes) {
        size *= 2;
    }
    return size;
}

bool config_value_parse_block_size(struct span s, uint64_t *ret_bytes, char *ret_why)
{
    uint64_t bytes;
    if (!config_value_parse_bytes(s, &bytes, ret_why)) {
        return false;
    }
    if (bytes < BLOCK_MIN_BYTES || bytes > BLOCK_MAX_BYTES || (bytes & (bytes - 1)) != 0) {
        char near[WHY_MAX];
        config_value_format_bytes(nearest_block_size(bytes), near);
        return refuse(ret_why, "\"%.*s\" is not a power of two between 64KiB and 16MiB (%.32s?)",
                      SHOWN(s), near);
    }
    *ret_bytes = bytes;
    return true;
}

bool config_value_parse_percent(struct span s, unsigned *ret_percent, char *ret_why)
{
    struct number number;
    struct span unit;
    if (!split_number(s, &number, &unit) || !span_equal(unit, SPAN("%")) || number.whole > 100 ||
        number.fraction.len > 0) {
        uint64_t bare;
        if (span_to_u64(s, &bare) && bare <= 100) {
            return refuse(ret_why, "\"%.*s\" needs a unit (%lu%%?)", SHOWN(s), (unsigned long)bare);
        }
        return refuse(ret_why, "\"%.*s\" is not a share in whole percent such as 10%%", SHOWN(s));
    }
    *ret_percent = (unsigned)number.whole;
    return true;
}

bool config_value_parse_size(struct span s, struct config_size *ret_size, char *ret_why)
{
    struct config_size size = {0, 0};
    if (span_ends_with(s, SPAN("%"))) {
        if (!config_value_parse_percent(s, &size.percent, ret_why)) {
            return false;
        }
        if (size.percent == 0) {
            return refuse(ret_why, "\"%.*s\" leaves no room at all", SHOWN(s));
        }
    } else if (!config_value_parse_bytes(s, &size.bytes, ret_why)) {
        return false;
    }
    *ret_size = size;
    return true;
}

bool config_value_parse_rate(struct span s, uint64_t *ret_bytes_per_s, char *ret_why)
{
    uint64_t bytes;
    struct span size = s;
    if (span_ends_with(s, SPAN("/s"))) {
        size.len -= 2;
    } else if (!span_equal(s, SPAN("0"))) {
        if (!config_value_parse_bytes(s, &bytes, ret_why)) {
            return false;
        }
        return refuse(ret_why, "\"%.*s\" is not a rate (%.*s/s?)", SHOWN(s), SHOWN(s));
    }
    return config_value_parse_bytes(size, ret_bytes_per_s, ret_why);
}

bool config_value_parse_count(struct span s, uint64_t *ret_count, char *ret_why)
{
    return span_to_u64(s, ret_count) || refuse(ret_why, "\"%.*s\" is not a whole number", SHOWN(s));
}

// Accepts digits with at most one point: no sign, no exponent, no locale.
bool config_value_parse_ratio(struct span s, double *ret_ratio, char *ret_why)
{
    double value = 0, scale = 1;
    bool point = false, digit = false;
    for (size_t i = 0; i < s.len && s.len < 20; i++) {
        if (s.ptr[i] == '.' && !point) {
            point = true;
        } else if (s.ptr[i] >= '0' && s.ptr[i] <= '9') {
            digit = true;
            value = value * 10 + (s.ptr[i] - '0');
            scale *= point ? 10 : 1;
        } else {
            digit = false;
            break;
        }
    }
    if (!digit || value / scale > 1) {
        return refuse(ret_why, "\"%.*s\" is not a share between 0 and 1", SHOWN(s));
    }
    *ret_ratio = value / scale;
    return true;
}

bool config_value_parse_choice(struct span s, const char *choices, unsigned *ret_choice,
                               char *ret_why)
{
    char words[128];
    const char *candidates[16];
    unsigned count = 0;
    size_t len = strlen(choices);
    check(len < sizeof(words));
    memcpy(words, choices, len + 1);
    for (char *at = words; at != NULL && count < ARRAY_LEN(candidates);) {
        candidates[count++] = at;
        at = strchr(at, '|');
        if (at != NULL) {
            *at++ = '\0';
        }
    }
    for (unsigned i = 0; i < count; i++) {
        if (span_equal_cstr(s, candidates[i])) {
            *ret_choice = i;
            return true;
        }
    }
    const char *near = settings_suggest(s, candidates, count);
    char listed[192];
    size_t at = 0;
    for (unsigned i = 0; i < count; i++) {
        at += (size_t)snprintf(listed + at, sizeof(listed) - at, "%s%s", i > 0 ? ", " : "",
                               candidates[i]);
        check(at < sizeof(listed)); // the words come from settings.def, so they fit
    }
    if (near != NULL) {
        return refuse(ret_why, "\"%.*s\" is not one of %s (did you mean \"%s\"?)", SHOWN(s), listed,
                      near);
    }
    return refuse(ret_why, "\"%.*s\" is not one of %s", SHOWN(s), listed);
}

// --- Ranges --------------------------------------------------------------------------------------

static bool number_of(enum setting_kind kind, struct span s, uint64_t *ret_value, char *why)
{
    unsigned percent = 0;
    switch (kind) {
    case KIND_MS:
        return config_value_parse_ms(s, ret_value, why);
    case KIND_BLOCK_SIZE:
        return config_value_parse_block_size(s, ret_value, why);
    case KIND_RATE:
        return config_value_parse_rate(s, ret_value, why);
    case KIND_PERCENT:
        if (!config_value_parse_percent(s, &percent, why)) {
            return false;
        }
        *ret_value = percent;
        return true;
    case KIND_COUNT:
    case KIND_COUNT_AUTO:
        return config_value_parse_count(s, ret_value, why);
    default:
        return config_value_parse_bytes(s, ret_value, why);
    }
}

static uint64_t range_end(enum setting_kind kind, struct span s)
{
    char why[WHY_MAX];
    uint64_t value = 0;
    check(number_of(kind, s, &value, why)); // the limits come from settings.def, so they parse
    return value;
}

// Checks a number against the row's range "LOW..HIGH". Both limits are written like values of the
// row.
static bool in_range(enum setting_kind kind, const char *accepts, struct span s, uint64_t value,
                     char *ret_why)
{
    const char *dots = strstr(accepts, "..");
    check(dots != NULL);
    struct span low = {accepts, (size_t)(dots - accepts)}, high = span_from_cstr(dots + 2);
    if (value < range_end(kind, low) || value > range_end(kind, high)) {
        return refuse(ret_why, "\"%.*s\" is not between %.*s and %.*s", SHOWN(s), SHOWN(low),
                      SHOWN(high));
    }
    return true;
}

// --- Addresses -----------------------------------------------------------------------------------

static bool is_loopback(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, host, &v4) == 1) {
        return ntohl(v4.s_addr) >> 24 == 127;
    }
    return inet_pton(AF_INET6, host, &v6) == 1 &&
           (IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127));
}

static bool parse_unix(struct loader *l, struct span text, struct span path,
                       struct config_listen *ret_listen, char *ret_why)
{
    struct sockaddr_un address;
    if (path.len == 0 || path.ptr[0] != '/' || path.len >= sizeof(address.sun_path)) {
        return refuse(ret_why, "\"%.*s\" does not name an absolute path of at most %zu bytes",
                      SHOWN(text), sizeof(address.sun_path) - 1);
    }
    ret_listen->kind = CONFIG_LISTEN_UNIX;
    ret_listen->path = config_loader_cstr(l, path);
    ret_listen->loopback = true;
    return true;
}

bool config_value_parse_listen(struct loader *l, struct span s, struct config_listen *ret_listen,
                               char *ret_why)
{
    struct config_listen listen = {.kind = CONFIG_LISTEN_TCP, .text = config_loader_cstr(l, s)};
    struct span rest = s;
    if (span_starts_with(s, SPAN("unix:"))) {
        rest = (struct span){s.ptr + 5, s.len - 5};
        bool ok = parse_unix(l, s, rest, &listen, ret_why);
        *ret_listen = listen;
        return ok;
    }
    if (span_starts_with(s, SPAN("tls:"))) {
        listen.kind = CONFIG_LISTEN_TLS;
        rest = (struct span){s.ptr + 4, s.len - 4};
    }
    if (span_starts_with(rest, SPAN("http://")) || span_starts_with(rest, SPAN("https://"))) {
        return refuse(ret_why,
                      "\"%.*s\": write HOST:PORT for http, tls:HOST:PORT for https, no URL",
                      SHOWN(s));
    }
    size_t colon = rest.len;
    while (colon > 0 && rest.ptr[colon - 1] != ':') {
        colon--;
    }
    uint64_t port;
    if (colon == 0 || !span_to_u64((struct span){rest.ptr + colon, rest.len - colon}, &port) ||
        port > 65535) {
        return refuse(ret_why, "\"%.*s\" is not HOST:PORT (127.0.0.1:9000?)", SHOWN(s));
    }
    struct span host = {rest.ptr, colon - 1};
    if (host.len == 0) {
        return refuse(ret_why,
                      "\"%.*s\" names no host (127.0.0.1:%lu? 0.0.0.0:%lu is every address)",
                      SHOWN(s), (unsigned long)port, (unsigned long)port);
    }
    if (host.len >= 2 && host.ptr[0] == '[' && host.ptr[host.len - 1] == ']') {
        host = (struct span){host.ptr + 1, host.len - 2};
    } else if (span_find(host, ':') < host.len) {
        return refuse(ret_why, "\"%.*s\": write an IPv6 address in brackets ([::1]:9000?)",
                      SHOWN(s));
    }
    listen.host = span_equal_nocase(host, SPAN("localhost"))
                      ? "127.0.0.1"
                      : (const char *)config_loader_cstr(l, host);
    unsigned char address[sizeof(struct in6_addr)];
    if (inet_pton(AF_INET, listen.host, address) != 1 &&
        inet_pton(AF_INET6, listen.host, address) != 1) {
        return refuse(ret_why, "\"%.*s\": the host must be an IP address or localhost", SHOWN(s));
    }
    listen.port = (uint16_t)port;
    listen.loopback = is_loopback(listen.host);
    *ret_listen = listen;
    return true;
}

// --- Files, endpoints, globs ---------------------------------------------------------------------

// A file that we own must be closed to group and others. A file of root or of another owner may be
// readable for its group: volumes of Kubernetes belong to root, and root checks the configuration
// of a unit that runs as another user.
bool config_value_is_secret_file(const struct loader *l, const char *path, char *ret_why)
{
    struct stat st;
    if (l->is_client) {
        return true;
    }
    if (stat(path, &st) != 0) {
        return refuse(ret_why, "\"%.200s\" cannot be read: %s", path, strerror(errno));
    }
    if (access(path, R_OK) != 0) {
        return refuse(ret_why,
                      "\"%.200s\" cannot be read: %s; only the server's user has to read it: "
                      "run this as that user or as root. If this is that user, %s",
                      path, strerror(errno), host_secret_file_remedy(st.st_uid));
    }
    if (!S_ISREG(st.st_mode)) {
        return refuse(ret_why, "\"%.200s\" is not a file", path);
    }
    bool is_own = st.st_uid == geteuid() && st.st_uid != 0;
    unsigned allowed = is_own ? 0700 : 0740;
    if ((st.st_mode & 0777 & ~allowed) != 0) {
        return refuse(ret_why, "\"%.200s\" is open to other users (mode %04o); %s", path,
                      (unsigned)st.st_mode & 0777, host_secret_file_remedy(st.st_uid));
    }
    return true;
}

// Returns the length of the host in HOST or HOST:PORT. An IPv6 address keeps its brackets.
static size_t host_len(struct span s)
{
    bool is_bracketed = s.len > 0 && s.ptr[0] == '[';
    return is_bracketed ? min_u64(span_find(s, ']') + 1, s.len) : span_find(s, ':');
}

bool config_value_find_port(struct span s, uint64_t *ret_port)
{
    struct span rest = {s.ptr + host_len(s), s.len - host_len(s)};
    *ret_port = 0;
    return rest.len == 0 || (rest.ptr[0] == ':' &&
                             span_to_u64((struct span){rest.ptr + 1, rest.len - 1}, ret_port) &&
                             *ret_port > 0 && *ret_port <= UINT16_MAX);
}

// Returns the host of an http or https endpoint without its port. An IPv6 address keeps its
// brackets. *ret_path becomes the path after host and port.
static struct span endpoint_host(struct span s, struct span *ret_path)
{
    size_t scheme = span_starts_with(s, SPAN("https://")) ? 8 : 7;
    struct span rest = {s.ptr + scheme, s.len - scheme};
    struct span host = {rest.ptr, span_find(rest, '/')};
    *ret_path = (struct span){rest.ptr + host.len, rest.len - host.len};
    host.len = host_len(host);
    return host;
}

// Refuses an endpoint of AWS that names a bucket or has a path. Endpoints of private links are
// accepted unchecked, because their host may begin with the word "bucket".
static bool is_place_of_aws(struct span s, char *ret_why)
{
    struct span path, host = endpoint_host(s, &path), place = host;
    const char *dot = memmem(host.ptr, host.len, ".s3", 3);
    bool is_aws = span_ends_with(host, SPAN(".amazonaws.com")) ||
                  span_ends_with(host, SPAN(".amazonaws.com.cn"));
    if (!is_aws || memmem(host.ptr, host.len, ".vpce.", 6) != NULL) {
        return true;
    }
    if (span_starts_with(host, SPAN("s3express-"))) {
        return refuse(ret_why,
                      "\"%.*s\": Forebay does not support directory buckets (S3 Express): let "
                      "clients ask S3 for them",
                      SHOWN(s));
    }
    bool has_bucket = dot != NULL && (dot[3] == '.' || dot[3] == '-');
    if (has_bucket) {
        place = (struct span){dot + 1, (size_t)(host.ptr + host.len - dot - 1)};
    }
    return (!has_bucket && path.len <= 1) ||
           refuse(ret_why,
                  "\"%.*s\": an endpoint must not name a bucket, because clients name it "
                  "(https://%.*s?)",
                  SHOWN(s), SHOWN(place));
}

bool config_value_is_address(struct span endpoint)
{
    struct span path, host = endpoint_host(endpoint, &path);
    bool is_v4 = host.len > 0;
    for (size_t i = 0; i < host.len; i++) {
        is_v4 = is_v4 && (host.ptr[i] == '.' || (host.ptr[i] >= '0' && host.ptr[i] <= '9'));
    }
    return is_v4 || (host.len > 0 && host.ptr[0] == '[');
}

// Refuses an endpoint, and suggests the form that the user probably meant.
static bool refuse_endpoint(struct span s, char *ret_why)
{
    static const char kinds[] = "is neither http://..., https://... nor dir:/PATH";
    if (span_starts_with(s, SPAN("/"))) {
        return refuse(ret_why, "\"%.*s\" %s (dir:%.*s?)", SHOWN(s), kinds, SHOWN(s));
    }
    if (span_starts_with(s, SPAN("s3://")) || span_starts_with(s, SPAN("s3a://"))) {
        return refuse(ret_why,
                      "\"%.*s\" is a bucket, and an origin has many: name the server alone "
                      "(https://s3.REGION.amazonaws.com?), clients name the bucket",
                      SHOWN(s));
    }
    if (span_starts_with(s, SPAN("./")) || span_starts_with(s, SPAN("../"))) {
        return refuse(ret_why, "\"%.*s\" %s, by its whole path", SHOWN(s), kinds);
    }
    bool is_here = span_starts_with(s, SPAN("localhost")) || span_starts_with(s, SPAN("[")) ||
                   (s.len > 0 && s.ptr[0] >= '0' && s.ptr[0] <= '9');
    bool has_scheme = memmem(s.ptr, s.len, "://", 3) != NULL;
    return has_scheme ? refuse(ret_why, "\"%.*s\" %s", SHOWN(s), kinds)
                      : refuse(ret_why, "\"%.*s\" %s (%s://%.*s?)", SHOWN(s), kinds,
                               is_here ? "http" : "https", SHOWN(s));
}

bool config_value_is_endpoint(struct span s, char *ret_why)
{
    if (span_starts_with(s, SPAN("dir:"))) {
        return (s.len > 4 && s.ptr[4] == '/') ||
               refuse(ret_why, "\"%.*s\" does not name an absolute path (dir:/data?)", SHOWN(s));
    }
    struct span rest = s;
    if (span_starts_with(s, SPAN("http://"))) {
        rest = (struct span){s.ptr + 7, s.len - 7};
    } else if (span_starts_with(s, SPAN("https://"))) {
        rest = (struct span){s.ptr + 8, s.len - 8};
    } else {
        return refuse_endpoint(s, ret_why);
    }
    struct span host = {rest.ptr, span_find(rest, '/')};
    if (host.len == 0 || host.ptr[0] == ':') {
        return refuse(ret_why, "\"%.*s\" has no host", SHOWN(s));
    }
    uint64_t port;
    if (!config_value_find_port(host, &port)) {
        return refuse(ret_why,
                      "\"%.*s\": the host may be followed by one port from 1 to 65535 "
                      "(%.*s%.*s:9000?); write an IPv6 address in brackets",
                      SHOWN(s), (int)(rest.ptr - s.ptr), s.ptr, (int)host_len(host), host.ptr);
    }
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        if (c <= 0x20 || c >= 0x7f || c == '@' || c == '?' || c == '#') {
            return refuse(ret_why, "\"%.*s\" may hold scheme, host, port and path only", SHOWN(s));
        }
    }
    return is_place_of_aws(s, ret_why);
}

// Appends a path without repeated slashes.
static void append_path(struct span path, struct buf *out)
{
    for (size_t i = 0; i < path.len; i++) {
        if (i == 0 || path.ptr[i] != '/' || path.ptr[i - 1] != '/') {
            buf_append_char(out, path.ptr[i]);
        }
    }
}

static struct span without_last_slashes(struct span s, size_t least)
{
    while (s.len > least && s.ptr[s.len - 1] == '/') {
        s.len--;
    }
    return s;
}

void config_value_endpoint_render(struct span s, struct buf *out)
{
    if (span_starts_with(s, SPAN("dir:"))) {
        append_path(without_last_slashes(s, sizeof("dir:/") - 1), out);
        return;
    }
    bool is_https = span_starts_with(s, SPAN("https://"));
    size_t scheme = is_https ? sizeof("https://") - 1 : sizeof("http://") - 1;
    struct span rest = without_last_slashes((struct span){s.ptr + scheme, s.len - scheme}, 0);
    struct span host = {rest.ptr, span_find(rest, '/')};
    struct span port = is_https ? SPAN(":443") : SPAN(":80");
    size_t shown = span_ends_with(host, port) ? host.len - port.len : host.len;
    buf_append(out, s.ptr, scheme);
    for (size_t i = 0; i < shown; i++) {
        buf_append_char(out, (char)tolower((unsigned char)host.ptr[i]));
    }
    buf_append(out, rest.ptr + host.len, rest.len - host.len);
}

const char *config_value_endpoint(struct loader *l, struct span value)
{
    struct buf text;
    buf_init(&text, value.len + 1);
    config_value_endpoint_render(value, &text);
    check(buf_ok(&text));
    const char *endpoint = arena_printf(l->arena, "%s", buf_cstr(&text));
    buf_done(&text);
    return endpoint;
}

bool config_value_is_glob(struct span s, char *ret_why)
{
    bool in_braces = false;
    if (s.len == 0 || s.len > 1200) {
        return refuse(ret_why, "\"%.*s\" is not a pattern of 1 to 1200 bytes", SHOWN(s));
    }
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        if (c == '\\') {
            if (++i == s.len) {
                return refuse(ret_why, "\"%.*s\" ends with a backslash", SHOWN(s));
            }
            continue; // the next byte is quoted
        }
        if (c == '{' && in_braces) {
            return refuse(ret_why, "\"%.*s\" has braces inside braces", SHOWN(s));
        }
        if (c == '}' && !in_braces) {
            return refuse(ret_why, "\"%.*s\" closes a brace that is not open", SHOWN(s));
        }
        in_braces = c == '{' || (in_braces && c != '}');
    }
    return !in_braces || refuse(ret_why, "\"%.*s\" opens a brace and does not close it", SHOWN(s));
}

// --- Any row -------------------------------------------------------------------------------------

static bool is_auto(struct span s)
{
    return span_equal(s, SPAN("auto"));
}

static bool parse_number(const struct setting *row, struct span s, void *field, char *why)
{
    uint64_t value = 0;
    if (!number_of(row->kind, s, &value, why) ||
        !in_range(row->kind, row->public_.accepts, s, value, why)) {
        return false;
    }
    if (row->kind == KIND_PERCENT || row->kind == KIND_COUNT || row->kind == KIND_COUNT_AUTO) {
        *(unsigned *)field = (unsigned)value;
    } else {
        *(uint64_t *)field = value;
    }
    return true;
}

static bool parse_size(const struct setting *row, struct span s, struct config_size *field,
                       char *why)
{
    return config_value_parse_size(s, field, why) &&
           (field->percent != 0 ||
            in_range(KIND_BYTES, row->public_.accepts, s, field->bytes, why));
}

static bool parse_address(struct loader *l, struct span s, struct config_listen *field, char *why)
{
    if (span_equal(s, SPAN("off"))) {
        *field = (struct config_listen){.kind = CONFIG_LISTEN_OFF, .text = "off"};
        return true;
    }
    if (!config_value_parse_listen(l, s, field, why)) {
        return false;
    }
    if (field->kind != CONFIG_LISTEN_TCP) {
        (void)snprintf(why, WHY_MAX, "\"%.80s\" is not HOST:PORT", field->text);
        return false;
    }
    return true;
}

bool config_value_parse(struct loader *l, const struct setting *row, struct span s, void *field,
                        char *why)
{
    unsigned choice;
    switch (row->kind) {
    case KIND_TEXT:
        *(const char **)field = s.len > 0 ? s.ptr : NULL;
        return true;
    case KIND_SECRET_FILE:
        *(const char **)field = s.len > 0 ? s.ptr : NULL;
        return s.len == 0 || config_value_is_secret_file(l, s.ptr, why);
    case KIND_CHOICE:
        return config_value_parse_choice(s, row->public_.accepts, (unsigned *)field, why);
    case KIND_BOOL:
        if (!config_value_parse_choice(s, row->public_.accepts, &choice, why)) {
            return false;
        }
        *(bool *)field = choice == 0;
        return true;
    case KIND_ADDRESS:
        return parse_address(l, s, field, why);
    case KIND_SIZE:
        return parse_size(row, s, field, why);
    case KIND_RATIO:
        return config_value_parse_ratio(s, (double *)field, why);
    case KIND_BYTES_AUTO:
    case KIND_COUNT_AUTO:
        // auto leaves 0 in the field, until config_load() resolves it
        return is_auto(s) || parse_number(row, s, field, why);
    default:
        return parse_number(row, s, field, why);
    }
}

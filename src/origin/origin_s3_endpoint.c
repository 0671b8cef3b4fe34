// SPDX-License-Identifier: Apache-2.0
// Parses the configured endpoint of an S3 origin, and builds the URL of a bucket or key there.
// Forebay sends requests only to hosts from here and from redirects (origin_s3_redirect.c), never
// to a host that a client names. Pure; any thread.
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "origin/origin_s3_private.h"

#define HOST_MAX 255u
#define REGION_TEMPLATE "{region}"

static bool host_byte_is_valid(char c)
{
    return isalnum((unsigned char)c) || c == '.' || c == '-' || c == '_';
}

bool origin_s3_host_is_valid(struct span host, bool may_be_template)
{
    struct span name = host, port = {NULL, 0};
    size_t name_end = 0;
    if (host.len > 0 && host.ptr[0] == '[') {
        name_end = span_find(host, ']');
        for (size_t i = 1; i < name_end; i++) {
            if (!isxdigit((unsigned char)host.ptr[i]) && host.ptr[i] != ':' && host.ptr[i] != '.') {
                return false;
            }
        }
        if (name_end < 2 || name_end == host.len) {
            return false;
        }
        name_end++;
    } else {
        while (name_end < host.len && host.ptr[name_end] != ':') {
            struct span rest = {host.ptr + name_end, host.len - name_end};
            if (may_be_template && span_starts_with(rest, SPAN(REGION_TEMPLATE))) {
                name_end += strlen(REGION_TEMPLATE);
            } else if (host_byte_is_valid(host.ptr[name_end])) {
                name_end++;
            } else {
                return false;
            }
        }
    }
    name.len = name_end;
    if (name.len == 0 || host.len > HOST_MAX) {
        return false;
    }
    if (name_end < host.len) {
        uint64_t number = 0;
        port = (struct span){host.ptr + name_end + 1, host.len - name_end - 1};
        return host.ptr[name_end] == ':' && span_to_u64(port, &number) && number >= 1 &&
               number <= 65535;
    }
    return true;
}

static bool path_is_valid(struct span path)
{
    for (size_t i = 0; i < path.len; i++) {
        unsigned char c = (unsigned char)path.ptr[i];
        if (c <= ' ' || c >= 0x7f || c == '?' || c == '#' || c == '"' || c == '<' || c == '>' ||
            c == '\\') {
            return false;
        }
    }
    return true;
}

// Returns true for labels like "us-east-1": two letters first, at least two dashes, and a final
// digit.
static bool label_is_region(struct span label)
{
    unsigned dashes = 0;
    for (size_t i = 0; i < label.len; i++) {
        dashes += label.ptr[i] == '-';
        if (!isalnum((unsigned char)label.ptr[i]) && label.ptr[i] != '-') {
            return false;
        }
    }
    return dashes >= 2 && label.len >= 8 && isdigit((unsigned char)label.ptr[label.len - 1]) &&
           isalpha((unsigned char)label.ptr[0]) && isalpha((unsigned char)label.ptr[1]);
}

// Replaces the region in a host name of Amazon with "{region}", so that buckets in other regions
// can be reached.
static void make_template(struct origin_s3_endpoint *endpoint)
{
    struct span host = span_from_cstr(endpoint->host), rest = host, label;
    struct buf out;
    bool found = false;
    if (!span_starts_with(host, SPAN("s3.")) && !span_starts_with(host, SPAN("s3-"))) {
        return;
    }
    buf_init(&out, HOST_MAX + 32);
    if (span_equal_cstr(host, "s3.amazonaws.com")) {
        buf_append_cstr(&out, "s3." REGION_TEMPLATE ".amazonaws.com");
        endpoint->default_region = strdup("us-east-1");
        found = true;
    }
    while (!found && span_split(&rest, '.', &label)) {
        if (out.len > 0) {
            buf_append_char(&out, '.');
        }
        if (endpoint->default_region == NULL && label_is_region(label)) {
            endpoint->default_region = strndup(label.ptr, label.len);
            buf_append_cstr(&out, REGION_TEMPLATE);
        } else {
            buf_append_span(&out, label);
        }
    }
    if (endpoint->default_region != NULL && buf_ok(&out)) {
        free(endpoint->host);
        endpoint->host = strdup(buf_cstr(&out));
        check(endpoint->host != NULL);
    }
    buf_done(&out);
}

enum err origin_s3_endpoint_parse(const char *setting, const char *text,
                                  struct origin_s3_endpoint *ret_endpoint, struct buf *ret_why)
{
    struct origin_s3_endpoint endpoint = {0};
    struct span rest = span_from_cstr(text);
    if (span_starts_with(rest, SPAN("https://"))) {
        endpoint.is_https = true;
        rest = (struct span){rest.ptr + 8, rest.len - 8};
    } else if (span_starts_with(rest, SPAN("http://"))) {
        rest = (struct span){rest.ptr + 7, rest.len - 7};
    } else {
        buf_printf(ret_why, "%s: %s must be https://HOST, http://HOST or dir:/PATH", text, setting);
        return ERR_INVALID;
    }
    size_t slash = span_find(rest, '/');
    struct span host = {rest.ptr, slash}, path = {rest.ptr + slash, rest.len - slash};
    while (path.len > 0 && path.ptr[path.len - 1] == '/') {
        path.len--;
    }
    if (!origin_s3_host_is_valid(host, true) || !path_is_valid(path)) {
        buf_printf(ret_why,
                   "%s: %s must name a host and nothing else, for example "
                   "https://s3.eu-west-1.amazonaws.com",
                   text, setting);
        return ERR_INVALID;
    }
    endpoint.host = strndup(host.ptr, host.len);
    endpoint.base_path = strndup(path.ptr != NULL ? path.ptr : "", path.len);
    check(endpoint.host != NULL && endpoint.base_path != NULL);
    for (char *c = endpoint.host; *c != '\0'; c++) {
        *c = (char)tolower((unsigned char)*c);
    }
    host = span_from_cstr(endpoint.host);
    endpoint.is_aws = span_ends_with(host, SPAN(".amazonaws.com")) ||
                      span_ends_with(host, SPAN(".amazonaws.com.cn"));
    if (endpoint.is_aws && strstr(endpoint.host, REGION_TEMPLATE) == NULL &&
        strstr(endpoint.host, ".vpce.") == NULL) {
        make_template(&endpoint);
    }
    *ret_endpoint = endpoint;
    return ERR_OK;
}

static void append_host(struct buf *out, const char *host, struct span region)
{
    const char *at = strstr(host, REGION_TEMPLATE);
    if (at == NULL) {
        buf_append_cstr(out, host);
        return;
    }
    buf_append(out, host, (size_t)(at - host));
    buf_append_span(out, region);
    buf_append_cstr(out, at + strlen(REGION_TEMPLATE));
}

// Returns true for Amazon's own host names for S3: regional, global, dual-stack, FIPS, accelerated,
// private link.
static bool name_is_aws_s3(struct span name)
{
    struct span rest = name, label;
    bool found = false;
    while (!found && span_split(&rest, '.', &label)) {
        found = span_equal_cstr(label, "s3") || span_starts_with(label, SPAN("s3-"));
    }
    return found && (span_ends_with(name, SPAN(".amazonaws.com")) ||
                     span_ends_with(name, SPAN(".amazonaws.com.cn")));
}

static void place_append_name(struct span name, struct buf *out)
{
    bool is_s3 = span_starts_with(name, SPAN("s3.")) || span_starts_with(name, SPAN("s3-"));
    struct span rest = name, label;
    size_t begin = out->len;
    while (span_split(&rest, '.', &label)) {
        if (out->len > begin) {
            buf_append_char(out, '.');
        }
        buf_append_span(out, is_s3 && label_is_region(label) ? SPAN(REGION_TEMPLATE) : label);
    }
}

// Appends the canonical form of a host. IPv6 addresses stay as written.
static void place_append(struct span host, bool is_https, struct buf *out)
{
    bool is_address = host.len > 0 && host.ptr[0] == '[';
    size_t name_end = is_address ? span_find(host, ']') + 1 : span_find(host, ':');
    struct span name = {host.ptr, name_end};
    uint64_t port = 0;
    while (name.len > 1 && name.ptr[name.len - 1] == '.') {
        name.len--;
    }
    if (name_is_aws_s3(name)) {
        bool is_china = span_ends_with(name, SPAN(".cn"));
        buf_append_cstr(out, "https://s3." REGION_TEMPLATE ".amazonaws.com");
        buf_append_cstr(out, is_china ? ".cn" : "");
        return;
    }
    buf_append_cstr(out, is_https ? "https://" : "http://");
    place_append_name(name, out);
    if (name_end < host.len &&
        span_to_u64((struct span){host.ptr + name_end + 1, host.len - name_end - 1}, &port) &&
        port != (is_https ? 443 : 80)) {
        buf_printf(out, ":%llu", (unsigned long long)port);
    }
}

void origin_s3_endpoint_place(const struct origin_s3_endpoint *endpoint, const char *region,
                              struct buf *out)
{
    struct buf host;
    buf_init(&host, 2 * HOST_MAX);
    append_host(&host, endpoint->host, span_from_cstr(region));
    place_append(buf_span(&host), endpoint->is_https, out);
    buf_append_cstr(out, endpoint->base_path);
    buf_done(&host);
}

void origin_s3_endpoint_done(struct origin_s3_endpoint *endpoint)
{
    free(endpoint->host);
    free(endpoint->base_path);
    free(endpoint->default_region);
    memset(endpoint, 0, sizeof(*endpoint));
}

bool origin_s3_endpoint_has_region(const struct origin_s3_endpoint *endpoint)
{
    return strstr(endpoint->host, REGION_TEMPLATE) != NULL;
}

// Returns true for regions of Amazon's largest partition, such as "us-east-1" but not
// "us-gov-east-1".
static bool region_is_common(struct span region)
{
    unsigned dashes = 0;
    for (size_t i = 0; i < region.len; i++) {
        dashes += region.ptr[i] == '-';
    }
    return label_is_region(region) && dashes == 2 && !span_starts_with(region, SPAN("cn-"));
}

// Amazon's buckets have unique names within a partition, which is a group of regions. The domain of
// China is that of one partition. Other regional hosts may be anybody's, such as load balancers.
bool origin_s3_endpoint_is_one_store(const struct origin_s3_endpoint *endpoint, const char *region)
{
    static const char *const forms[] = {"s3." REGION_TEMPLATE, "s3-" REGION_TEMPLATE,
                                        "s3.dualstack." REGION_TEMPLATE, "s3-fips." REGION_TEMPLATE,
                                        "s3-fips.dualstack." REGION_TEMPLATE};
    struct span host = span_from_cstr(endpoint->host);
    bool is_one_store = !origin_s3_endpoint_has_region(endpoint);
    for (size_t i = 0; i < ARRAY_LEN(forms) && !is_one_store; i++) {
        struct span form = span_from_cstr(forms[i]);
        struct span domain = {host.ptr + form.len, host.len - form.len};
        if (span_starts_with(host, form)) {
            is_one_store = span_equal_cstr(domain, ".amazonaws.com.cn") ||
                           (span_equal_cstr(domain, ".amazonaws.com") &&
                            region_is_common(span_from_cstr(region)));
        }
    }
    return is_one_store;
}

static bool bucket_fits_host(struct span bucket, bool *ret_dotted)
{
    *ret_dotted = false;
    if (bucket.len < 3 || bucket.len > 63) {
        return false;
    }
    for (size_t i = 0; i < bucket.len; i++) {
        char c = bucket.ptr[i];
        bool edge = i == 0 || i + 1 == bucket.len;
        if (c == '.') {
            *ret_dotted = true;
            if (edge || bucket.ptr[i - 1] == '.') {
                return false;
            }
        } else if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && !(c == '-' && !edge)) {
            return false;
        }
    }
    return true;
}

bool origin_s3_endpoint_is_virtual(const struct origin_s3_endpoint *endpoint,
                                   enum origin_addressing addressing, struct span bucket)
{
    bool dotted = false;
    if (addressing == ORIGIN_ADDRESSING_PATH ||
        (addressing == ORIGIN_ADDRESSING_AUTO && !endpoint->is_aws) ||
        !bucket_fits_host(bucket, &dotted)) {
        return false;
    }
    // a wildcard certificate covers no bucket name with a dot
    return !dotted || !endpoint->is_https;
}

void origin_s3_endpoint_show(const struct origin_s3_endpoint *endpoint, struct span region,
                             struct buf *out)
{
    buf_append_cstr(out, endpoint->is_https ? "https://" : "http://");
    append_host(out, endpoint->host, region);
    buf_append_cstr(out, endpoint->base_path);
}

enum err origin_s3_url_build(struct arena *arena, const struct origin_s3_endpoint *endpoint,
                             enum origin_addressing addressing, struct span region,
                             struct span bucket, struct span key, struct span query,
                             struct origin_s3_url *ret_url)
{
    bool is_virtual = origin_s3_endpoint_is_virtual(endpoint, addressing, bucket);
    const char *scheme = endpoint->is_https ? "https://" : "http://";
    struct buf out;
    buf_init(&out, 65536);
    buf_append_cstr(&out, scheme);
    if (is_virtual) {
        buf_append_span(&out, bucket);
        buf_append_char(&out, '.');
    }
    append_host(&out, endpoint->host, region);
    size_t host_end = out.len;
    buf_append_cstr(&out, endpoint->base_path);
    if (!is_virtual && bucket.len > 0) {
        buf_append_char(&out, '/');
        buf_append_uri_encoded(&out, bucket, false);
    }
    if (key.len > 0 || out.len == host_end) {
        buf_append_char(&out, '/');
        buf_append_uri_encoded(&out, key, true);
    }
    size_t path_end = out.len;
    if (query.len > 0) {
        buf_append_char(&out, '?');
        buf_append_span(&out, query);
    }
    struct span all = buf_ok(&out) ? arena_copy(arena, buf_span(&out)) : (struct span){NULL, 0};
    buf_done(&out);
    if (all.ptr == NULL) {
        return ERR_NO_MEMORY;
    }
    size_t host_start = strlen(scheme);
    ret_url->url = all.ptr;
    ret_url->host = (struct span){all.ptr + host_start, host_end - host_start};
    ret_url->path = (struct span){all.ptr + host_end, path_end - host_end};
    ret_url->query = query;
    return ERR_OK;
}

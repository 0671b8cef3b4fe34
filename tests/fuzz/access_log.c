// SPDX-License-Identifier: Apache-2.0
// Any bytes in a log line's fields: the JSON form is one line that a reader of JSON takes, the other
// form has as many fields as before.
#include "proxy/proxy_private.h"

#include <jansson.h>
#include <stddef.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

#define access_log_new fuzz_log_new
#define access_log_free fuzz_log_free
#define access_log_write fuzz_log_write
#define access_log_reopen fuzz_log_reopen
#include "../../src/proxy/access_log.c"

static void check_json(struct span value)
{
    static struct line line;
    line.len = 0;
    line.is_full = false;
    put_literal(&line, "{\"a\":1");
    put_json_text(&line, "value", value);
    put_json_if(&line, "more", value);
    put_literal(&line, "}");
    if (!line.is_full) {
        json_t *json = json_loadb(line.bytes, line.len, JSON_ALLOW_NUL, NULL);
        check(json != NULL && json_is_object(json));
        check(json_string_value(json_object_get(json, "value")) != NULL || value.len > 0);
        check(json_object_size(json) == (value.len > 0 ? 3 : 2));
        json_decref(json);
        check(memchr(line.bytes, '\n', line.len) == NULL);
    }
}

static void check_fields(struct span value)
{
    static struct line line;
    size_t blanks = 0, quotes = 0;
    line.len = 0;
    line.is_full = false;
    put_s3_field(&line, value);
    for (size_t i = 0; i < line.len; i++) {
        check(line.bytes[i] >= ' ' && line.bytes[i] < 0x7f);
        blanks += line.bytes[i] == ' ';
    }
    check(blanks == 1 || line.is_full);
    line.len = 0;
    put_s3_quoted(&line, value);
    for (size_t i = 0; i < line.len; i++) {
        check(line.bytes[i] >= ' ' && line.bytes[i] < 0x7f);
        quotes += line.bytes[i] == '"';
    }
    check(quotes == 2 || line.is_full);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct span value = {(const char *)bytes, len};
    if (len <= 4096) {
        check_json(value);
        check_fields(value);
    }
    return 0;
}

// SPDX-License-Identifier: Apache-2.0
// Any bytes in a log line's fields: the JSON form is one line that a JSON parser accepts. The other
// form keeps its number of fields.
#include "proxy/log/access_log_private.h"

#include <jansson.h>
#include <stddef.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check_json(struct span value)
{
    static struct access_log_line line;
    line.len = 0;
    line.is_full = false;
    access_log_line_literal(&line, "{\"value\":\"");
    access_log_line_escaped(&line, value);
    access_log_line_literal(&line, "\"}");
    if (!line.is_full) {
        json_t *json = json_loadb(line.bytes, line.len, JSON_ALLOW_NUL, NULL);
        check(json != NULL && json_is_object(json));
        check(json_string_value(json_object_get(json, "value")) != NULL);
        check(json_object_size(json) == 1);
        json_decref(json);
        check(memchr(line.bytes, '\n', line.len) == NULL);
    }
}

static void check_fields(struct span value)
{
    static struct access_log_line line;
    line.len = 0;
    line.is_full = false;
    access_log_line_coded(&line, value, false);
    for (size_t i = 0; i < line.len; i++) {
        check(line.bytes[i] > ' ' && line.bytes[i] < 0x7f && line.bytes[i] != '"');
    }
    line.len = 0;
    access_log_line_coded(&line, value, true);
    for (size_t i = 0; i < line.len; i++) {
        check(line.bytes[i] >= ' ' && line.bytes[i] < 0x7f && line.bytes[i] != '"');
    }
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

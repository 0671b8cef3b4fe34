// SPDX-License-Identifier: Apache-2.0
// Parses URIs in calls of the control interface, and converts texts for the answers. Runs on the
// admin thread; texts on any thread.
#include <stdio.h>
#include <string.h>

#include "control/control_private.h"

// Returns a JSON string. Returns NULL if the text is not UTF-8, or contains NUL, where C programs
// would stop reading.
static json_t *as_text(struct span text)
{
    bool has_nul = text.len > 0 && memchr(text.ptr, '\0', text.len) != NULL;
    return has_nul ? NULL : json_stringn(text.ptr != NULL ? text.ptr : "", text.len);
}

bool control_is_text(struct span text)
{
    json_t *json = as_text(text);
    json_decref(json);
    return json != NULL;
}

json_t *control_text(struct span text)
{
    json_t *json = as_text(text);
    if (json != NULL) {
        return json;
    }
    struct buf coded; // not text: percent coding keeps the exact bytes
    buf_init(&coded, 3 * text.len + 1);
    buf_append_uri_encoded(&coded, text, true);
    json = json_stringn(buf_cstr(&coded), coded.len);
    check(json != NULL);
    buf_done(&coded);
    return json;
}

static void refuse_uri(struct admin_call **call, struct span text, const char *why)
{
    char told[256];
    (void)snprintf(told, sizeof(told), "uri \"%.*s\": %s", (int)min_u64(text.len, 128),
                   text.ptr != NULL ? text.ptr : "", why);
    admin_call_refuse(call, 400, told);
}

bool control_take_uri(struct admin_call **call, struct span text, struct s3_uri *ret_uri)
{
    const char *why = NULL;
    bool is_good = s3_uri_parse(text, ret_uri, &why);
    if (!is_good) {
        refuse_uri(call, text, why);
    }
    return is_good;
}

bool control_take_object(struct admin_call **call, struct span text, struct s3_uri *ret_uri)
{
    const char *why = NULL;
    bool is_good = s3_uri_parse_object(text, ret_uri, &why);
    if (!is_good) {
        refuse_uri(call, text, why);
    }
    return is_good;
}

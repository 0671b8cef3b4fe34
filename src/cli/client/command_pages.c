// SPDX-License-Identifier: Apache-2.0
#include "cli/client/command_pages.h"

#include <string.h>

#include "base/circle.h"
#include "base/hash.h"
#include "s3/s3.h"

#define PATH_MAX_BYTES 16384u

static int get_page(struct command_client *client, const char *uri, const char *after,
                    json_t **ret_page)
{
    struct buf path;
    buf_init(&path, PATH_MAX_BYTES);
    buf_append_cstr(&path, "/api/v1/ls");
    command_client_parameter(&path, "uri", span_from_cstr(uri));
    if (after != NULL) {
        command_client_parameter(&path, "after", span_from_cstr(after));
    }
    int code = command_client_get(client, buf_cstr(&path), ret_page);
    buf_done(&path);
    return client->status == COMMAND_PAGES_NO_BUCKET ? EXIT_CODE_ORIGIN : code;
}

int command_pages_walk(struct command_client *client, const char *uri, command_pages_fn *on_object,
                       void *ctx)
{
    json_t *page = NULL;
    const char *after = NULL;
    struct circle circle = {0};
    int code = EXIT_CODE_OK;
    do {
        json_t *next = NULL;
        code = get_page(client, uri, after, &next);
        json_decref(page); // also releases `after`
        page = next;
        const json_t *objects = json_object_get(page, "objects");
        for (size_t i = 0; code == EXIT_CODE_OK && i < json_array_size(objects); i++) {
            code = on_object(ctx, json_array_get(objects, i));
        }
        after = json_string_value(json_object_get(page, "next"));
        if (code == EXIT_CODE_OK && after != NULL &&
            circle_closes(&circle, hash64(after, strlen(after), 0))) {
            command_client_error(client, "the origin's listing leads in a circle");
            code = EXIT_CODE_ORIGIN;
        }
    } while (code == EXIT_CODE_OK && after != NULL);
    json_decref(page);
    return code;
}

void command_pages_uri(const char *uri, const char *key, struct buf *ret_uri)
{
    struct s3_uri parsed = {0};
    const char *why;
    ret_uri->len = 0;
    buf_append_cstr(ret_uri, "s3://");
    if (s3_uri_parse(span_from_cstr(uri), &parsed, &why)) {
        buf_append_span(ret_uri, parsed.bucket);
    }
    buf_append_char(ret_uri, '/');
    buf_append_cstr(ret_uri, key);
}

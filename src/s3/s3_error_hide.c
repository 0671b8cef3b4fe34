// SPDX-License-Identifier: Apache-2.0
// Removes from an origin's error document the elements that name something outside the client's
// rights. Pure; any thread.
#include <string.h>

#include "s3/s3_private.h"

#define DOCUMENT_MAX 65536u

struct hiding {
    const struct s3_request *asked;
    s3_list_names_fn *may_show;
    void *ctx;
    struct buf *out;
    bool is_error, has_hidden;
};

// Elements whose text is a name that the client may not be allowed to see. If the text equals the
// request parameter `param`, it may be shown. NULL: no parameter.
static const struct {
    const char *element, *param;
} NAMING[] = {
    {"Key", NULL},
    {"ObjectName", NULL},
    {"Object", NULL},
    {"Prefix", "prefix"},
    {"Marker", "marker"},
    {"NextMarker", NULL},
    {"KeyMarker", "key-marker"},
    {"NextKeyMarker", NULL},
    {"StartAfter", "start-after"},
};

static bool may_name(const struct hiding *h, struct span name, const char *param)
{
    const struct s3_param *said = param != NULL ? s3_param_find(h->asked, param) : NULL;
    return name.len == 0 || span_equal(name, h->asked->key) ||
           (said != NULL && span_equal(name, said->value)) || h->may_show(h->ctx, name);
}

// Returns true if `resource` is the path of the request itself, its bucket, or a "/KEY" or
// "/BUCKET/KEY" whose key may be shown.
static bool may_name_resource(const struct hiding *h, struct span resource)
{
    if (span_equal(resource, h->asked->raw_path)) {
        return true;
    }
    struct span rest = span_starts_with(resource, SPAN("/")) ? span_after(resource, 1) : resource;
    size_t slash = span_find(rest, '/');
    bool is_bucket = slash == rest.len && span_equal(rest, h->asked->bucket);
    return is_bucket || may_name(h, rest, NULL) ||
           (slash < rest.len && may_name(h, span_after(rest, slash + 1), NULL));
}

static bool may_show_leaf(const struct hiding *h, const char *element, struct span text)
{
    if (strcmp(element, "Resource") == 0) {
        return may_name_resource(h, text);
    }
    for (size_t i = 0; i < ARRAY_LEN(NAMING); i++) {
        if (strcmp(element, NAMING[i].element) == 0) {
            return may_name(h, text, NAMING[i].param);
        }
    }
    return true;
}

static void on_leaf(void *ctx, const char *path, struct span text)
{
    struct hiding *h = ctx;
    const char *element = path + sizeof("Error/") - 1;
    if (strncmp(path, "Error/", sizeof("Error/") - 1) != 0) {
        return;
    }
    h->is_error = true;
    const char *last = strrchr(path, '/') + 1;
    if (!may_show_leaf(h, last, text)) {
        h->has_hidden = true;
    } else if (last == element) { // a nested element is dropped: no known error needs it
        s3_xml_element(h->out, element, text);
    }
}

bool s3_error_hide(struct span document, const struct s3_request *asked, s3_list_names_fn *may_show,
                   void *ctx, struct buf *out)
{
    struct buf shown;
    struct hiding h = {.asked = asked, .may_show = may_show, .ctx = ctx, .out = &shown};
    buf_init(&shown, DOCUMENT_MAX);
    buf_append_cstr(&shown, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error>");
    bool is_read = s3_xml_read(document, on_leaf, &h) == ERR_OK;
    buf_append_cstr(&shown, "</Error>");
    bool has_hidden = is_read && h.is_error && h.has_hidden;
    if (has_hidden && buf_ok(&shown)) {
        buf_append_span(out, buf_span(&shown));
    }
    buf_done(&shown);
    return has_hidden;
}

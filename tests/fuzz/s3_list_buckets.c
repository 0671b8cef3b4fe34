// SPDX-License-Identifier: Apache-2.0
// Any bytes, in pieces of any size: no crash, the same result as in one piece, and no more names
// than may be shown. Names with an x may not.
#include "s3/s3.h"

#include <stddef.h>

#define DOCUMENT_MAX S3_LIST_BUCKETS_PIECE

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static bool may_show(void *ctx, struct span name)
{
    unsigned *shown = ctx;
    bool is_plain = span_find(name, 'x') == name.len;
    *shown += is_plain;
    return is_plain;
}

// Returns the number of buckets shown, or -1 if the document is refused.
static int filter(struct span document, size_t step)
{
    unsigned count = 0;
    bool ok = true;
    struct s3_list_buckets *list = s3_list_buckets_new(may_show, &count);
    while (ok && document.len > 0) {
        struct span shown, piece = {document.ptr, step < document.len ? step : document.len};
        ok = s3_list_buckets_feed(list, piece, &shown);
        document.ptr += piece.len;
        document.len -= piece.len;
    }
    ok = ok && s3_list_buckets_end(list);
    s3_list_buckets_free(list);
    return ok ? (int)count : -1;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct span document = {(const char *)bytes, len < DOCUMENT_MAX ? len : DOCUMENT_MAX};
    check(filter(document, document.len + 1) == filter(document, 1 + len % 7));
    return 0;
}

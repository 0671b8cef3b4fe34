// SPDX-License-Identifier: Apache-2.0
// Any bytes, in pieces of any size: no crash, and the same entries as in one piece.
#include "s3/s3.h"

#include <stddef.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

struct entries {
    unsigned count;
    uint64_t hash;
};

static void on_entry(void *ctx, struct span key, uint64_t size_bytes)
{
    struct entries *entries = ctx;
    check(key.len <= 3 * S3_KEY_MAX);
    entries->count++;
    for (size_t i = 0; i < key.len; i++) {
        entries->hash = entries->hash * 31 + (uint8_t)key.ptr[i];
    }
    entries->hash = entries->hash * 31 + size_bytes;
}

static struct entries scan(struct span document, bool is_encoded, size_t step)
{
    struct s3_list_scan scan;
    struct entries entries = {0};
    s3_list_scan_begin(&scan, is_encoded);
    while (document.len > 0) {
        struct span piece = {document.ptr, step < document.len ? step : document.len};
        s3_list_scan_feed(&scan, piece, on_entry, &entries);
        document.ptr += piece.len;
        document.len -= piece.len;
    }
    return entries;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct span document = {(const char *)bytes, len};
    bool is_encoded = len % 2 == 0;
    struct entries whole = scan(document, is_encoded, len + 1);
    struct entries pieces = scan(document, is_encoded, 1 + len % 7);
    check(whole.count == pieces.count && whole.hash == pieces.hash);
    return 0;
}

// SPDX-License-Identifier: Apache-2.0
// Any body that names keys: no crash. It is refused, or means the same after it is rendered again,
// so that the origin reads what Forebay has judged.
#include "s3/s3.h"

#include <stddef.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check_delete(struct arena *arena, struct span document)
{
    struct s3_delete d, again;
    struct buf out;
    if (s3_delete_read(arena, document, &d) != ERR_OK) {
        return;
    }
    check(d.count >= 1 && d.count <= 1000);
    buf_init(&out, 8u << 20);
    s3_delete_render(&d, &out);
    check(buf_ok(&out));
    enum err err = s3_delete_read(arena, buf_span(&out), &again);
    check(err == ERR_OK || err == ERR_NO_MEMORY);
    for (size_t i = 0; i < d.count && err == ERR_OK; i++) {
        check(again.count == d.count && again.is_quiet == d.is_quiet);
        check(span_equal(again.objects[i].key, d.objects[i].key));
        check(span_equal(again.objects[i].version_id, d.objects[i].version_id));
    }
    buf_done(&out);
}

static void check_restore(struct arena *arena, struct span document)
{
    struct s3_restore r, again;
    struct buf out;
    if (s3_restore_read(arena, document, &r) != ERR_OK) {
        return;
    }
    buf_init(&out, 8u << 20);
    s3_restore_render(&r, &out);
    check(buf_ok(&out) && s3_restore_read(arena, buf_span(&out), &again) == ERR_OK);
    check(span_equal(again.days, r.days) && span_equal(again.tier, r.tier));
    check(span_equal(again.description, r.description));
    buf_done(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct arena *arena = arena_new(8 << 20);
    struct span document = {(const char *)bytes, len};
    if (len <= 65536) {
        check_delete(arena, document);
        check_restore(arena, document);
    }
    arena_free(arena);
    return 0;
}

// SPDX-License-Identifier: Apache-2.0
// Any bytes as a cache directory's `format`: no crash. It is refused, or reads the same after it is
// written again. Each input is also tried with a correct checksum line at its end.
#include "store/disk/store_dir.h"

#include <stddef.h>

#include "store/segment/segment_format.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check_text(struct span bytes)
{
    struct store_format format, again;
    struct buf text;
    if (store_format_parse(bytes, &format) != ERR_OK) {
        return;
    }
    buf_init(&text, 1 << 20);
    store_format_render(&format, &text);
    check(buf_ok(&text) && store_format_parse(buf_span(&text), &again) == ERR_OK);
    check(again.hash_key == format.hash_key && again.next_segment == format.next_segment);
    check(again.next_generation == format.next_generation && again.clean == format.clean);
    check(again.append_count == format.append_count && again.index_txn == format.index_txn);
    buf_done(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct buf text;
    check_text((struct span){(const char *)bytes, len});
    buf_init(&text, 1 << 20);
    buf_append(&text, bytes, len);
    buf_printf(&text, "checksum %08x\n", disk_crc32c(bytes, len));
    if (buf_ok(&text)) {
        check_text(buf_span(&text));
    }
    buf_done(&text);
    return 0;
}

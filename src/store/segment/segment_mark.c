// SPDX-License-Identifier: Apache-2.0
// A run known to be bad leaves the index, but a scan would find it again. So its header is
// rewritten in its place with a hash that is not that of its key. A look-up refuses it like every
// header that differs from the index. A scan jumps over it as it jumps over runs of other caches.
// Versions of Forebay without marks do the same. A header torn by a power cut fails its checksum,
// which has the same effect.
#include "store/segment/segment_mark.h"

#include <stdlib.h>
#include <unistd.h>

enum err segment_mark_bad(int fd, const struct store_place *place)
{
    if (place->header_len < RUN_HEADER_FIXED || place->header_len > RUN_HEADER_MAX) {
        return ERR_OK; // not a header of ours
    }
    char *bytes = malloc(place->header_len);
    char *marked = malloc(place->header_len);
    check(bytes != NULL);
    check(marked != NULL);
    struct run_header h;
    ssize_t got = pread(fd, bytes, place->header_len, place->header_offset);
    enum err err = got < 0 ? ERR_IO : ERR_OK;
    if (got == (ssize_t)place->header_len &&
        segment_run_header_decode((struct span){bytes, place->header_len}, &h) == ERR_OK &&
        h.header_len == place->header_len && h.number == place->segment_number &&
        h.salt == place->salt && h.header_offset == place->header_offset &&
        hash128_equal(h.hash, place->hash)) {
        h.hash = (struct hash128){~h.hash.hi, ~h.hash.lo};
        segment_run_header_encode(&h, marked);
        ssize_t put = pwrite(fd, marked, h.header_len, h.header_offset);
        err = put == (ssize_t)h.header_len ? ERR_OK : ERR_IO;
    }
    free(bytes);
    free(marked);
    return err;
}

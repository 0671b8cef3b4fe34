// SPDX-License-Identifier: Apache-2.0
// Wraps XXH3 in two functions. Any thread. hash128_of() names objects on disk, so the bytes that it
// hashes are part of the disk format: for each piece, its length as 8 little-endian bytes, then the
// piece.
#include "base/hash.h"

#include <endian.h>
#include <string.h>
#include <xxhash.h>

#define STACK_BYTES 1536 // enough for realm, bucket, a key of up to 1,024 bytes, and their lengths

uint64_t hash64(const void *bytes, size_t len, uint64_t seed)
{
    return XXH3_64bits_withSeed(bytes, len, seed);
}

static struct hash128 hash128_long(const struct span *pieces, unsigned count, uint64_t seed)
{
    XXH3_state_t *state = XXH3_createState();
    check(state != NULL);
    check(XXH3_128bits_reset_withSeed(state, seed) == XXH_OK);
    for (unsigned i = 0; i < count; i++) {
        uint64_t len = htole64(pieces[i].len);
        check(XXH3_128bits_update(state, &len, sizeof(len)) == XXH_OK);
        if (pieces[i].len > 0) {
            check(XXH3_128bits_update(state, pieces[i].ptr, pieces[i].len) == XXH_OK);
        }
    }
    XXH128_hash_t hash = XXH3_128bits_digest(state);
    (void)XXH3_freeState(state); // always XXH_OK
    return (struct hash128){hash.high64, hash.low64};
}

struct hash128 hash128_of(const struct span *pieces, unsigned count, uint64_t seed)
{
    char bytes[STACK_BYTES];
    size_t used = 0;
    for (unsigned i = 0; i < count; i++) {
        uint64_t len = htole64(pieces[i].len);
        if (sizeof(len) > sizeof(bytes) - used ||
            pieces[i].len > sizeof(bytes) - used - sizeof(len)) {
            return hash128_long(pieces, count, seed);
        }
        memcpy(bytes + used, &len, sizeof(len));
        used += sizeof(len);
        if (pieces[i].len > 0) {
            memcpy(bytes + used, pieces[i].ptr, pieces[i].len);
            used += pieces[i].len;
        }
    }
    XXH128_hash_t hash = XXH3_128bits_withSeed(bytes, used, seed);
    return (struct hash128){hash.high64, hash.low64};
}

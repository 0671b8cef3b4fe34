// SPDX-License-Identifier: Apache-2.0
#include "proxy/log/access_log_private.h"

#include <stdlib.h>
#include <string.h>

void access_log_ring_init(struct access_log_ring *ring, size_t size_bytes)
{
    check(size_bytes >= ACCESS_LOG_LINE_MAX);
    *ring = (struct access_log_ring){.bytes = malloc(size_bytes), .size_bytes = size_bytes};
    check(ring->bytes != NULL);
}

void access_log_ring_done(struct access_log_ring *ring)
{
    free(ring->bytes);
    ring->bytes = NULL;
}

bool access_log_ring_put(struct access_log_ring *ring, const char *bytes, size_t len)
{
    unsigned long filled = atomic_load_explicit(&ring->filled, memory_order_relaxed);
    unsigned long emptied = atomic_load_explicit(&ring->emptied, memory_order_acquire);
    check(ring->bytes != NULL);
    check(filled - emptied <= ring->size_bytes);
    check(len > 0 && bytes[len - 1] == '\n');
    if (ring->size_bytes - (filled - emptied) < len) {
        return false;
    }
    size_t at = filled % ring->size_bytes;
    size_t first = min_u64(len, ring->size_bytes - at);
    memcpy(ring->bytes + at, bytes, first);
    memcpy(ring->bytes, bytes + first, len - first);
    // Sequentially consistent, so that a reader that falls asleep does not miss the line.
    atomic_store(&ring->filled, filled + len);
    return true;
}

unsigned long access_log_ring_filled(const struct access_log_ring *ring)
{
    return atomic_load(&ring->filled); // sequentially consistent, as in access_log_ring_put()
}

size_t access_log_ring_take(struct access_log_ring *ring, char *ret_bytes, size_t max,
                            unsigned long filled)
{
    check(max >= ACCESS_LOG_LINE_MAX);
    unsigned long emptied = atomic_load_explicit(&ring->emptied, memory_order_relaxed);
    if (filled <= emptied) {
        return 0;
    }
    size_t len = min_u64(filled - emptied, max);
    check(filled - emptied <= ring->size_bytes);
    size_t at = emptied % ring->size_bytes;
    size_t first = min_u64(len, ring->size_bytes - at);
    memcpy(ret_bytes, ring->bytes + at, first);
    memcpy(ret_bytes + first, ring->bytes, len - first);
    if (emptied + len != filled) {
        const char *end = memrchr(ret_bytes, '\n', len);
        check(end != NULL);
        len = (size_t)(end - ret_bytes) + 1;
    }
    atomic_store_explicit(&ring->emptied, emptied + len, memory_order_release);
    return len;
}

void access_log_ring_clear(struct access_log_ring *ring)
{
    check(ring->bytes != NULL);
    atomic_store_explicit(&ring->emptied, atomic_load(&ring->filled), memory_order_release);
}

// SPDX-License-Identifier: Apache-2.0
// Payload bytes between a source and a sink, in chunks of the process's budget. One thread. The
// queue appends to its last chunk until the chunk is full, even while slices of that chunk's
// beginning are being sent: bytes that were handed out never change. The queue keeps its last chunk
// when it is empty. So a slow stream whose slices are sent at once fills one chunk after the other,
// instead of using a chunk for each slice.
//
// Above the budget the queue still takes a chunk, but then reports "full" until it is empty. So
// every stream continues, at least one chunk at a time. A queue of one byte counts as empty,
// because users hold back a stream's last byte until its source has declared the end. A paused
// source would never do that.
#include "proxy/core/core.h"

#include <stdlib.h>
#include <string.h>

void byte_queue_init(struct byte_queue *q)
{
    list_init(&q->pieces);
    q->tail = NULL;
    q->bytes = 0;
}

static void piece_free(struct piece *piece)
{
    chunk_unref(piece->chunk);
    free(piece);
}

static struct piece *piece_first(struct byte_queue *q)
{
    struct list_node *node = list_first(&q->pieces);
    return node != NULL ? container_of(node, struct piece, node) : NULL;
}

void byte_queue_done(struct byte_queue *q)
{
    check(q->bytes > 0 || list_empty(&q->pieces));
    struct list_node *node;
    while ((node = list_pop_front(&q->pieces)) != NULL) {
        piece_free(container_of(node, struct piece, node));
    }
    chunk_unref(q->tail);
    byte_queue_init(q);
}

static void tail_renew(struct byte_queue *q)
{
    chunk_unref(q->tail);
    q->tail = chunk_new();
    if (q->tail == NULL) {
        q->tail = chunk_new_forced();
        stats_add(COUNTER_buffer_paused, 1);
    }
}

void byte_queue_append(struct byte_queue *q, struct span data)
{
    while (data.len > 0) {
        if (q->tail == NULL || q->tail->len == CHUNK_SIZE) {
            tail_renew(q);
        }
        struct chunk *chunk = q->tail;
        check(chunk->len < CHUNK_SIZE);
        uint32_t n = (uint32_t)min_u64(data.len, CHUNK_SIZE - chunk->len);
        memcpy(chunk->data + chunk->len, data.ptr, n);
        struct list_node *last = list_last(&q->pieces);
        struct piece *piece = last != NULL ? container_of(last, struct piece, node) : NULL;
        if (piece == NULL || piece->chunk != chunk || piece->offset + piece->len != chunk->len) {
            piece = calloc(1, sizeof(*piece));
            check(piece != NULL);
            list_node_init(&piece->node);
            piece->chunk = chunk_ref(chunk);
            piece->offset = chunk->len;
            list_push_back(&q->pieces, &piece->node);
        }
        piece->len += n;
        chunk->len += n;
        check(piece->offset + piece->len == chunk->len);
        q->bytes += n;
        data.ptr += n;
        data.len -= n;
    }
    check(q->bytes > 0 || list_empty(&q->pieces));
}

bool byte_queue_full(const struct byte_queue *q)
{
    return q->bytes > 1 && q->bytes >= chunk_budget_share(BYTE_QUEUE_HIGH);
}

bool byte_queue_low(const struct byte_queue *q)
{
    return q->bytes <= 1 || q->bytes < chunk_budget_share(BYTE_QUEUE_LOW);
}

size_t byte_queue_read(struct byte_queue *q, char *buf, size_t max)
{
    size_t len = 0;
    while (len < max && q->bytes > 0) {
        struct piece *piece = piece_first(q);
        uint32_t n = (uint32_t)min_u64(piece->len, max - len);
        check(n > 0 && n <= q->bytes);
        check(piece->offset + piece->len <= piece->chunk->len);
        memcpy(buf + len, piece->chunk->data + piece->offset, n);
        len += n;
        piece->offset += n;
        piece->len -= n;
        q->bytes -= n;
        if (piece->len == 0) {
            list_remove(&piece->node);
            piece_free(piece);
        }
    }
    return len;
}

static void slice_release(void *ctx)
{
    piece_free(ctx);
}

void byte_queue_slice(struct byte_queue *q, uint64_t max, struct http_slice *ret_slice)
{
    struct piece *piece = piece_first(q);
    check(piece != NULL);
    check(max > 0);
    if (piece->len > max) {
        struct piece *part = calloc(1, sizeof(*part));
        check(part != NULL);
        list_node_init(&part->node);
        part->chunk = chunk_ref(piece->chunk);
        part->offset = piece->offset;
        part->len = (uint32_t)max;
        piece->offset += part->len;
        piece->len -= part->len;
        piece = part;
    } else {
        list_remove(&piece->node);
    }
    check(piece->len > 0 && piece->len <= q->bytes);
    check(piece->offset + piece->len <= piece->chunk->len);
    q->bytes -= piece->len;
    *ret_slice = (struct http_slice){.kind = HTTP_SLICE_BYTES,
                                     .bytes = {piece->chunk->data + piece->offset, piece->len},
                                     .release = slice_release,
                                     .release_ctx = piece};
}

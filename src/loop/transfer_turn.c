// SPDX-License-Identifier: Apache-2.0
// How much a pool's transfers receive in a turn of the loop. Runs on the pool's worker.
//
// curl receives for as long as a socket holds something, up to a hundred buffers in one call: of a near
// origin a whole run, of which nobody is sent anything before, and for which everybody else waits. So a
// turn has room for TURN_BYTES of long bodies, and for less while short work is expected. Who comes when
// they are used up waits: it is held up in curl and stands in a list, from which the next turns go on, in
// order. While anybody stands there, who comes stands behind them. Heads and short bodies never wait.
//
// The first bytes of a long body use the turn up: somebody waits for them, and they leave before anything
// else is received.
//
// What a waiting one has not received stays in its socket: curl keeps nothing of it.
#include "loop/transfer_private.h"

#define TURN_BYTES (1024u << 10)
// While short work is expected. With half of it long bodies come a fifth slower; with twice as much they
// come no faster, and short work waits longer.
#define TURN_SHORT_BYTES (128u << 10)
#define LONG_BYTES (64u << 10) // as much as curl receives at once

static struct transfer_turn *turn_now(struct transfer_pool *pool)
{
    struct transfer_turn *turn = &pool->turn;
    uint64_t now_us = worker_now_us(pool->worker);
    if (turn->at_us != now_us) {
        turn->at_us = now_us;
        turn->left = worker_expects_short(pool->worker) ? TURN_SHORT_BYTES : TURN_BYTES;
    }
    return turn;
}

// Has it come far enough to know, and is there more of it?
static bool has_long_body(const struct transfer *t)
{
    if (!t->has_length) {
        return t->body_received > LONG_BYTES;
    }
    return t->body_announced > LONG_BYTES && t->body_received > 0 &&
           t->body_received < t->body_announced;
}

bool transfer_turn_received(struct transfer *t, uint64_t len)
{
    bool is_first = t->body_received == 0;
    if (is_first) {
        curl_off_t length = -1;
        (void)curl_easy_getinfo(t->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
        t->has_length = length >= 0;
        t->body_announced = t->has_length ? (uint64_t)length : 0;
    }
    t->body_received += len;
    if (!has_long_body(t)) {
        return true;
    }
    struct transfer_turn *turn = turn_now(t->pool);
    turn->left -= is_first ? turn->left : min_u64(turn->left, len);
    return turn->left > 0;
}

bool transfer_turn_takes(const struct transfer *t)
{
    return !has_long_body(t) || (turn_now(t->pool)->left > 0 && list_empty(&t->pool->waiting));
}

void transfer_turn_wait(struct transfer *t)
{
    if (!list_node_linked(&t->turn_node)) {
        list_push_back(&t->pool->waiting, &t->turn_node);
        worker_defer(t->pool->worker, &t->pool->drive);
    }
}

struct transfer *transfer_turn_next(struct transfer_pool *pool)
{
    struct list_node *node = turn_now(pool)->left > 0 ? list_pop_front(&pool->waiting) : NULL;
    return node != NULL ? container_of(node, struct transfer, turn_node) : NULL;
}

// SPDX-License-Identifier: Apache-2.0
// How much a pool's transfers receive in a turn of the loop, and for how long. Runs on the pool's
// worker.
//
// curl receives for as long as a socket holds something, up to a hundred buffers in one call: of a
// near origin a whole run, of which nobody is sent anything before, and for which everybody else
// waits. So a turn has room for TURN_BYTES of long bodies, and for less while short work is
// expected. Who comes when they are used up waits: it is held up in curl and stands in a list, from
// which the next turns go on, in order. While anybody stands there, who comes stands behind them.
// Heads and short bodies never wait.
//
// The first bytes of a long body use the turn up: somebody waits for them, and they leave before
// anything else is received.
//
// What a waiting one has not received stays in its socket: curl keeps nothing of it.
//
// A short reply of the origin's costs several times what a hit does, and with many cold requests
// many come at once. So while requests are answered in the turn in which they come (hits), sockets
// are received from for SHARE_LEAST_US of a turn, or for a SHARE_PART-th of what all else took in
// the turn before. That is no small share: of all else a part is what follows from receiving, which
// takes several times as long. The others are passed over, and nothing is to be done for that:
// their events come again in the next turn. Which come first is the kernel's to say, so nobody is
// passed over for more than PASSED_OVER_MAX_US. What lies in a socket meanwhile is not late. One
// that connects is not passed over: curl counts that time.
#include "base/clock.h"
#include "net/transfer_private.h"

#define TURN_BYTES (1024u << 10)
// While short work is expected. With half of it long bodies come a fifth slower; with twice as much
// they come no faster, and short work waits longer.
#define TURN_SHORT_BYTES (128u << 10)
#define LONG_BYTES (64u << 10) // as much as curl receives at once
#define SHARE_LEAST_US 80u
#define SHARE_PART 10u
#define PASSED_OVER_MAX_US 100000u

static struct transfer_turn *turn_now(struct transfer_pool *pool)
{
    struct transfer_turn *turn = &pool->turn;
    uint64_t now_us = worker_now_us(pool->worker);
    if (turn->at_us != now_us) {
        const struct worker *w = pool->worker;
        struct worker_turn_time last = worker_last_turn(w);
        uint64_t spent_us = turn->at_us == last.began_us ? turn->spent_us : 0;
        uint64_t else_us = last.lasted_us - min_u64(last.lasted_us, spent_us);
        turn->room_us =
            worker_expects_quick(w) ? max_u64(SHARE_LEAST_US, else_us / SHARE_PART) : UINT64_MAX;
        turn->spent_us = 0;
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

bool transfer_turn_takes_socket(struct transfer *t)
{
    const struct transfer_turn *turn = turn_now(t->pool);
    bool is_over = t->passed_over_us != 0 && turn->at_us - t->passed_over_us >= PASSED_OVER_MAX_US;
    if (turn->spent_us < turn->room_us || is_over || t->wait == WAIT_CONNECT) {
        t->passed_over_us = 0;
        return true;
    }
    t->passed_over_us = t->passed_over_us != 0 ? t->passed_over_us : turn->at_us;
    return false;
}

bool transfer_turn_is_passed_over(const struct transfer *t)
{
    // Twice as long, and it was received in some other way.
    return t->passed_over_us != 0 &&
           worker_now_us(t->pool->worker) - t->passed_over_us < 2ull * PASSED_OVER_MAX_US;
}

uint64_t transfer_turn_begun(struct transfer_pool *pool)
{
    return turn_now(pool)->room_us != UINT64_MAX ? clock_monotonic_us() : 0;
}

void transfer_turn_spent(struct transfer_pool *pool, uint64_t begun_us)
{
    if (begun_us != 0) {
        uint64_t now_us = clock_monotonic_us();
        turn_now(pool)->spent_us += now_us - min_u64(now_us, begun_us);
    }
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

// SPDX-License-Identifier: Apache-2.0
// Limits how much a pool's transfers receive in one turn of the loop, and how long they may take
// for it. Runs on the pool's worker.
//
// The limit on bytes. In one call, curl reads from a socket as long as data is there, up to a
// hundred buffers. From a near origin that can be a whole run. Until the call returns, no client
// gets any of the data, and all other work waits. So each turn may receive TURN_BYTES of long
// bodies, or TURN_SHORT_BYTES while short work is expected.
//
// When the limit of a turn is used up, further long bodies are paused in curl and queued. The next
// turns resume them in order. While any transfer is queued, others join the end of the queue. This
// limit never delays heads and short bodies.
//
// The first bytes of a long body use up the whole limit of a turn. A client waits for them, and so
// they are sent on before anything else is received.
//
// The data of a queued transfer stays in its socket. curl buffers none of it.
//
// The limit on time. A short reply from the origin costs several times as much as a hit, and with
// many cold requests many replies arrive at once. So the time for reading from sockets is limited
// while there are hits: requests that are answered in the turn in which they arrive.
//
// The limit for a turn is SHARE_LEAST_US or, if longer, 1/SHARE_PART of the time of all other work
// in the previous turn. This is enough: a part of the other work is caused by what was received,
// and takes several times as long as receiving it.
//
// Sockets beyond the limit are passed over: they are left unread. This needs no bookkeeping,
// because their events come again in the next turn. The kernel decides which events come first. So
// a socket that was passed over for PASSED_OVER_MAX_US is read in any case. Data that waits for
// this reason does not count as late. A transfer that is connecting is never passed over, because
// curl's connect timeout is running.
#include "base/clock.h"
#include "net/transfer_private.h"

#define TURN_BYTES (1024u << 10)
// The limit while short work is expected. Measured: with half of this, long bodies are a fifth
// slower. With twice as much, they are no faster, and short work waits longer.
#define TURN_SHORT_BYTES (128u << 10)
// Longer bodies count as long. This is the size of most receive buffers.
#define LONG_BYTES (64u << 10)
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

// Returns true if the body is long, as far as its head or the received part shows, and is not
// complete.
static bool has_long_body(const struct transfer *t)
{
    if (t->body_announced == TRANSFER_LENGTH_UNKNOWN) {
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
        t->body_announced = length >= 0 ? (uint64_t)length : TRANSFER_LENGTH_UNKNOWN;
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
    // A mark that is older than twice the maximum is stale: the data was received in another way.
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

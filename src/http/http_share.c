// SPDX-License-Identifier: Apache-2.0
// Each connection's share of what its worker sends in a turn of the loop. Runs on that worker.
//
// A small reply waits for everything that other connections send in the same turn. So while there
// are small replies, all connections together send about HTTP_TURN_BYTES in a turn. The share of
// each connection is HTTP_TURN_BYTES divided by the number of connections that have sent in the
// previous turn, or in this one if these are more. If all replies are large, shorter turns help
// nobody, and each connection may send HTTP_SHARE_MOST. A connection that runs again in the same
// turn has the rest of its share.
#include "http/http_private.h"

static uint64_t share_of(const struct http_turn *turn, uint64_t now_us)
{
    if (now_us >= turn->small_until_us) {
        return HTTP_SHARE_MOST;
    }
    uint64_t part = HTTP_TURN_BYTES /
                    (turn->senders > turn->senders_before ? turn->senders : turn->senders_before);
    return part > HTTP_SHARE_LEAST ? part : HTTP_SHARE_LEAST;
}

uint64_t http_share_left(struct http_turn *turn, struct http_share *share, uint64_t now_us)
{
    if (turn->at_us != now_us) {
        turn->at_us = now_us;
        turn->senders_before = turn->senders;
        turn->senders = 0;
    }
    if (share->at_us != now_us) {
        turn->senders++;
        *share = (struct http_share){now_us, share_of(turn, now_us)};
    }
    return share->left;
}

void http_share_note_reply(struct http_turn *turn, uint64_t body_bytes, uint64_t now_us)
{
    if (body_bytes <= HTTP_SHARE_LEAST) {
        turn->small_until_us = now_us + HTTP_SMALL_LASTS_US;
    }
}

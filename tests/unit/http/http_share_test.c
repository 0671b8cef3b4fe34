// SPDX-License-Identifier: Apache-2.0
// Proves: when there are small replies, the others share the bytes of a turn, however often each
// comes. Without small replies, large ones are not limited.
#include "test.h"

#include "http/http_private.h"

#define MANY 1000

// Returns the bytes that `count` connections may send together in one turn, each asked twice.
static uint64_t turn_bytes(struct http_turn *turn, struct http_share *shares, unsigned count,
                           uint64_t now_us)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < 2 * count; i++) {
        struct http_share *share = &shares[i % count];
        bytes += http_share_left(turn, share, now_us);
        share->left = 0;
    }
    return bytes;
}

Test(http_share, the_rest_of_a_share_lasts_until_the_turn_is_over)
{
    struct http_turn turn = {0};
    struct http_share share = {0};
    for (uint64_t now_us = 1; now_us < 10; now_us++) {
        cr_assert_eq(http_share_left(&turn, &share, now_us), HTTP_SHARE_MOST);
        share.left -= 1000;
        cr_assert_eq(http_share_left(&turn, &share, now_us), HTTP_SHARE_MOST - 1000);
        share.left = 0;
        cr_assert_eq(http_share_left(&turn, &share, now_us), 0);
    }
}

Test(http_share, with_a_small_reply_all_others_share_the_bytes_of_one_turn)
{
    static struct http_share shares[MANY];
    struct http_turn turn = {0};
    http_share_note_reply(&turn, HTTP_SHARE_LEAST, 1);
    for (unsigned count = 1; count <= HTTP_TURN_BYTES / HTTP_SHARE_LEAST; count++) {
        (void)turn_bytes(&turn, shares, count, 2 * count); // one turn to know how many there are
        uint64_t bytes = turn_bytes(&turn, shares, count, 2 * count + 1);
        cr_assert(bytes <= HTTP_TURN_BYTES && bytes > HTTP_TURN_BYTES - count, "%u", count);
    }
}

Test(http_share, no_reply_starves_among_many)
{
    static struct http_share shares[MANY];
    struct http_turn turn = {0};
    http_share_note_reply(&turn, 0, 1);
    for (uint64_t now_us = 1; now_us < 4; now_us++) {
        cr_assert(turn_bytes(&turn, shares, MANY, now_us) >= MANY * (uint64_t)HTTP_SHARE_LEAST);
    }
    (void)turn_bytes(&turn, shares, 1, 10); // the others are gone
    cr_assert_eq(turn_bytes(&turn, shares, 1, 11), HTTP_TURN_BYTES);
}

Test(http_share, large_replies_alone_have_long_turns)
{
    static struct http_share shares[4];
    struct http_turn turn = {0};
    http_share_note_reply(&turn, 1000, 5);
    http_share_note_reply(&turn, HTTP_SHARE_LEAST + 1, 90000); // not small
    (void)turn_bytes(&turn, shares, 4, 10);
    cr_assert_eq(turn_bytes(&turn, shares, 4, 5 + HTTP_SMALL_LASTS_US - 1), HTTP_TURN_BYTES);
    cr_assert_eq(turn_bytes(&turn, shares, 4, 5 + HTTP_SMALL_LASTS_US), 4 * HTTP_SHARE_MOST);
}

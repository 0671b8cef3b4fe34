// SPDX-License-Identifier: Apache-2.0
// Decides whether a difference that a check found is a real change or an oddity of the origin.
// Clients get what GET returns, so a HEAD that contradicts it proves nothing by itself. An upload
// has a later Last-Modified. If a HEAD reports a change without a later date, or only a date of
// this moment, the home asks once more with GET of one byte before it drops anything. The origin
// remembers the result (origin_doubt.c), so that later checks need only one request.
#include "fill/home_private.h"

#include "origin/origin.h"

// Gives the answer the headers of the version asked about. If an origin dates every answer with the
// current time, an answer that differs only in its date describes the unchanged version.
static void take_as_it_was(struct revalidation *c)
{
    struct store_object *same = fill_version_described_by(c->found, c->asked);
    if (same != NULL) {
        same->generation = 0;
        same->learnt_us = c->found->learnt_us;
        store_object_unref(c->found);
        c->found = same;
    }
}

// Uses the HEAD's answer, which a GET has confirmed, because it also has the checksums.
static void take_head(struct revalidation *c)
{
    store_object_unref(c->found);
    c->found = store_object_ref(c->by_head);
}

static bool is_alike(const struct store_object *a, const struct store_object *b)
{
    return fill_same_version(a, b) && fill_version_is_alike(a, b);
}

static bool is_alike_but_date(const struct store_object *a, const struct store_object *b)
{
    return fill_same_version(a, b) && fill_version_is_alike_but_date(a, b);
}

bool home_doubts_answer(struct revalidation *c)
{
    const struct store_object *asked = c->asked;
    struct origin *origin = c->key->origin;
    if (c->err != ERR_OK || asked == NULL || asked->headers.len == 0 ||
        !origin_capabilities(origin)->is_remote) {
        return false;
    }
    check(c->found != NULL && (c->by_head == NULL || c->fetch.kind == ORIGIN_HEAD_BY_GET));
    bool stays = is_alike(asked, c->found);
    if (c->by_head != NULL && stays) {
        fill_version_take_checksums(&c->found, c->by_head);
    }
    if (c->by_head != NULL && (stays || !is_alike_but_date(c->by_head, c->found))) {
        origin_doubt_head(origin);
    } else if (c->by_head != NULL) {
        take_head(c);
    }
    time_t date = c->found->last_modified;
    bool is_now = origin_is_now(origin, date);
    if (date != 0 && !is_now) {
        origin_note_date(origin, false);
    }
    if (stays) {
        return false;
    }
    bool moves = is_now && is_alike_but_date(asked, c->found);
    if (moves && c->fetch.kind == ORIGIN_HEAD_BY_GET) {
        origin_note_date(origin, true);
    }
    if (moves && origin_dates_move(origin)) {
        take_as_it_was(c);
        return false;
    }
    bool is_later = date != 0 && asked->last_modified != 0 && date != asked->last_modified;
    return c->fetch.kind != ORIGIN_HEAD_BY_GET && (moves || !is_later);
}

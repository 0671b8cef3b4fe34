// SPDX-License-Identifier: Apache-2.0
#include "origin_play.h"

#include <string.h>

#include "judge.h"
#include "origin/origin.h"
#include "schedule.h"
#include "turns.h"

#define PLAYS_MAX 128u
#define PIECE 40000u

enum stage { STAGE_SENT, STAGE_LOOKED_AT, STAGE_BODY };

struct play {
    struct origin_fetch *f; // NULL: free
    struct worker *worker;
    enum stage stage;
    bool is_paused, is_cancelled, breaks_off;
    enum err refused;
    unsigned key, number;
    uint64_t next, end;
    struct arena *arena;
};

static struct play plays[PLAYS_MAX];

const char *origin_endpoint(const struct origin *origin)
{
    (void)origin;
    return "played";
}

const char *origin_place(const struct origin *origin)
{
    return origin_endpoint(origin);
}

uint64_t origin_number(const struct origin *origin)
{
    (void)origin;
    return 0;
}

const char *origin_name(const struct origin *origin)
{
    (void)origin;
    return "origin";
}

void origin_doubt_head(struct origin *origin)
{
    (void)origin;
}

bool origin_is_now(const struct origin *origin, time_t last_modified)
{
    (void)origin, (void)last_modified;
    return false;
}

void origin_note_date(struct origin *origin, bool has_moved)
{
    (void)origin, (void)has_moved;
}

bool origin_dates_move(const struct origin *origin)
{
    (void)origin;
    return false;
}

bool origin_retry_take(struct origin *origin)
{
    (void)origin;
    return true;
}

void origin_fetch_start(struct worker *w, struct origin *origin, struct origin_fetch *f)
{
    (void)origin;
    unsigned i = 0;
    while (plays[i].f != NULL) {
        i++;
        check(i < PLAYS_MAX);
    }
    uint64_t key = 0;
    check(f->key.len > 4);
    check(span_to_u64((struct span){f->key.ptr + 4, f->key.len - 4}, &key));
    plays[i] = (struct play){.f = f, .worker = w, .key = (unsigned)key};
    f->driver = &plays[i];
}

const struct origin_capabilities *origin_capabilities(const struct origin *origin)
{
    static const struct origin_capabilities some = {.has_parts = true, .is_remote = true};
    (void)origin;
    return &some;
}

void origin_fetch_hasten(struct origin_fetch *f, uint64_t client)
{
    (void)f, (void)client; // nobody waits for a place
}

void origin_fetch_pause(struct origin_fetch *f)
{
    ((struct play *)f->driver)->is_paused = true;
}

void origin_fetch_resume(struct origin_fetch *f)
{
    ((struct play *)f->driver)->is_paused = false;
}

void origin_fetch_cancel(struct origin_fetch *f)
{
    ((struct play *)f->driver)->is_cancelled = true;
}

static void play_end(struct play *p, enum err err)
{
    struct origin_fetch *f = p->f;
    struct arena *arena = p->arena;
    p->f = NULL;
    f->on_end(f, err);
    arena_free(arena);
}

static void look_at(struct play *p)
{
    const struct origin_fetch *f = p->f;
    char text[16];
    p->number = past->keys[p->key].number;
    struct span etag = etag_of(p->number, text, sizeof(text));
    uint64_t size = size_of(p->key, p->number);
    p->stage = STAGE_LOOKED_AT;
    p->refused = f->if_match.len > 0 && !span_equal(f->if_match, etag) ? ERR_ORIGIN_CHANGED
                 : f->if_none_match.len > 0 && span_equal(f->if_none_match, etag) ? ERR_NOT_MODIFIED
                 : f->kind == ORIGIN_GET_RANGE && f->first >= size ? ERR_INVALID_RANGE
                                                                   : ERR_OK;
}

static void answer(struct play *p)
{
    struct origin_fetch *f = p->f;
    if (p->refused != ERR_OK) {
        play_end(p, p->refused);
        return;
    }
    char text[16];
    uint64_t size = size_of(p->key, p->number);
    p->stage = STAGE_BODY;
    p->arena = arena_new(1 << 16);
    p->next = f->kind == ORIGIN_GET_RANGE ? f->first : 0;
    p->end = f->kind == ORIGIN_GET_RANGE ? min_u64(f->last + 1, size) : size;
    p->breaks_off = schedule_random(16) == 0;
    f->status = f->kind == ORIGIN_GET_RANGE ? 206 : 200;
    f->size_bytes = size;
    f->body_first = p->next;
    f->body_len = p->end - p->next;
    f->etag = arena_copy(p->arena, etag_of(p->number, text, sizeof(text)));
    enum err err = f->on_head(f);
    if (p->f != NULL && (err != ERR_OK || origin_fetch_is_head(f))) {
        play_end(p, err);
    }
}

static void piece(struct play *p)
{
    static char bytes[PIECE];
    size_t len = (size_t)min_u64(p->end - p->next, (1 + schedule_random(PIECE / 8)) * 8);
    bytes_of(p->key, p->number, p->next, bytes, len);
    p->next += len;
    enum err err = p->f->on_body(p->f, (struct span){bytes, len});
    if (err != ERR_OK && p->f != NULL) {
        play_end(p, err);
    }
}

static void step(struct worker *w, void *ctx)
{
    (void)w;
    struct play *p = ctx;
    if (p->is_cancelled) {
        play_end(p, ERR_CANCELLED);
    } else if (p->stage == STAGE_SENT) {
        look_at(p);
    } else if (p->stage == STAGE_LOOKED_AT) {
        answer(p);
    } else if (p->next == p->end) {
        play_end(p, ERR_OK);
    } else if (p->breaks_off && p->next > p->f->body_first) {
        play_end(p, ERR_ORIGIN_RESET);
    } else {
        piece(p);
    }
}

bool origin_play_step(void)
{
    unsigned first = schedule_random(PLAYS_MAX);
    for (unsigned i = 0; i < PLAYS_MAX; i++) {
        struct play *p = &plays[(first + i) % PLAYS_MAX];
        if (p->f != NULL && (!p->is_paused || p->is_cancelled)) {
            turns_on_worker(worker_index(p->worker), step, p);
            return true;
        }
    }
    return false;
}

bool origin_play_is_over(void)
{
    for (unsigned i = 0; i < PLAYS_MAX; i++) {
        if (plays[i].f != NULL) {
            return false;
        }
    }
    return true;
}

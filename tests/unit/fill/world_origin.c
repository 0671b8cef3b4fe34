// SPDX-License-Identifier: Apache-2.0
// The played door of origin. A fetch's first step is the moment in which the origin looks at its
// key. The second brings the answer, then the body comes piece by piece.
#include "world_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int version_of(struct span etag)
{
    uint64_t v = 0;
    check(etag.len > 3);
    struct span digits = {etag.ptr + 2, etag.len - 3};
    check(span_to_u64(digits, &v));
    return (int)v;
}

struct span etag_of(int version, char *buf, size_t size)
{
    int n = snprintf(buf, size, "\"v%d\"", version);
    return (struct span){buf, (size_t)n};
}

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
    return "o";
}

const char *origin_server_header(const struct origin *origin)
{
    (void)origin;
    return "S";
}

const struct origin_capabilities *origin_capabilities(const struct origin *origin)
{
    static const struct origin_capabilities all = {
        .relays_reads = true, .has_parts = true, .has_checksums = true, .is_remote = true};
    (void)origin;
    return &all;
}

bool origin_has_answered(const struct origin *origin)
{
    (void)origin;
    return true;
}

bool origin_is_silent(const struct origin *origin)
{
    (void)origin;
    return world.is_silent;
}

bool origin_has_room(struct worker *w, struct origin *origin, unsigned more)
{
    (void)w, (void)origin, (void)more;
    return true;
}

uint64_t origin_recent_us(struct worker *w, struct origin *origin)
{
    (void)w, (void)origin;
    unsigned percent = world.options.limit_percent;
    return percent > 0 && rnd(100) < percent && !world.is_in_trouble ? 1000 : UINT64_MAX;
}

void origin_trouble(bool is_in_trouble)
{
    world.is_in_trouble = is_in_trouble;
}

void origin_doubt_head(struct origin *origin)
{
    (void)origin;
}

bool origin_is_odd(const struct origin *origin, enum origin_oddity oddity)
{
    (void)origin, (void)oddity;
    return false;
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
    check(f->key.len == 1);
    f->headers = f->checksums = (struct headers){0};
    for (unsigned i = 0; i < MAX_FETCHES; i++) {
        struct fetch_play *p = &world.fetches[i];
        if (!p->used) {
            *p = (struct fetch_play){
                .used = true, .f = f, .worker = w, .key = &world.keys[f->key.ptr[0] - '0']};
            f->driver = p;
            world.requests++;
            world.heads += origin_fetch_is_head(f);
            return;
        }
    }
    check(false);
}

void origin_fetch_pause(struct origin_fetch *f)
{
    ((struct fetch_play *)f->driver)->paused = true;
}

void origin_fetch_resume(struct origin_fetch *f)
{
    ((struct fetch_play *)f->driver)->paused = false;
}

void origin_fetch_hasten(struct origin_fetch *f, uint64_t client)
{
    f->ahead = false;
    f->client = client;
}

void origin_fetch_cancel(struct origin_fetch *f)
{
    ((struct fetch_play *)f->driver)->cancelled = true;
}

static void fetch_end(struct fetch_play *p, enum err err)
{
    struct origin_fetch *f = p->f;
    struct worker *w = p->worker;
    struct arena *arena = p->arena;
    p->used = false;
    world.current = w;
    f->on_end(f, err);
    arena_free(arena);
    turn_end(w);
}

static uint64_t range_first(const struct fetch_play *p, int version)
{
    uint64_t size = p->key->size_bytes[version];
    return p->f->suffix > 0 ? size - min_u64(p->f->suffix, size) : p->f->first;
}

static enum err judge_condition(const struct origin_condition *condition, struct span etag)
{
    bool is_this = span_equal_cstr(etag, condition->value);
    return condition->kind == ORIGIN_IF_MATCH && !is_this       ? ERR_ORIGIN_CHANGED
           : condition->kind == ORIGIN_IF_NONE_MATCH && is_this ? ERR_NOT_MODIFIED
                                                                : ERR_OK;
}

// Why the request ends without a head; ERR_OK: it has one.
static enum err fetch_refuse(struct fetch_play *p, struct span etag)
{
    struct origin_fetch *f = p->f;
    enum err fail = world.fail_next;
    world.fail_next = ERR_OK;
    if (fail == ERR_OK && rnd(100) < world.options.fail_percent) {
        fail = ERR_ORIGIN_5XX;
    }
    if (fail != ERR_OK) {
        return fail;
    }
    if (world.denied != 0 && f->credentials == credentials_of(world.denied)) {
        return ERR_ACCESS_DENIED;
    }
    if (p->key->missing[p->key->version]) {
        return ERR_NO_SUCH_KEY;
    }
    if (f->if_match.len > 0 && !span_equal(f->if_match, etag)) {
        return ERR_ORIGIN_CHANGED;
    }
    if (f->if_none_match.len > 0 && span_equal(f->if_none_match, etag)) {
        return ERR_NOT_MODIFIED;
    }
    enum err err = f->condition != NULL ? judge_condition(f->condition, etag) : ERR_OK;
    if (err != ERR_OK) {
        return err;
    }
    if (f->kind == ORIGIN_GET_RANGE &&
        range_first(p, p->key->version) >= p->key->size_bytes[p->key->version]) {
        return ERR_INVALID_RANGE;
    }
    return ERR_OK;
}

static void fetch_evaluate(struct fetch_play *p)
{
    char text[32];
    p->evaluated = true;
    p->version = p->key->version;
    p->edition = p->key->edition;
    p->refused = fetch_refuse(p, etag_of(p->version, text, sizeof(text)));
}

static void fetch_answer(struct fetch_play *p)
{
    struct origin_fetch *f = p->f;
    char text[32];
    struct span etag = etag_of(p->version, text, sizeof(text));
    if (p->refused != ERR_OK) {
        p->arena = arena_new(1 << 16);
        if (p->refused == ERR_NOT_MODIFIED) {
            check(headers_add(&f->headers, p->arena, SPAN("ETag"), arena_copy(p->arena, etag)));
        }
        fetch_end(p, p->refused);
        return;
    }
    uint64_t size = p->key->size_bytes[p->version] - world.shorten_next;
    world.has_shortened |= world.shorten_next;
    world.shorten_next = false;
    p->answered = true;
    p->arena = arena_new(1 << 16);
    p->will_reset = !origin_fetch_is_head(f) &&
                    (world.reset_next > 0 || rnd(100) < world.options.reset_percent);
    world.reset_next -= world.reset_next > 0 && !origin_fetch_is_head(f);
    p->next = f->kind == ORIGIN_GET_RANGE ? range_first(p, p->version) : 0;
    p->end = f->kind == ORIGIN_GET_RANGE && f->suffix == 0 ? min_u64(f->last + 1, size) : size;
    f->status = f->kind == ORIGIN_GET_RANGE ? 206 : 200;
    f->size_bytes = size;
    f->body_first = p->next;
    f->body_len = p->end - p->next;
    f->weak_or_no_etag = world.options.no_etag;
    f->etag = world.options.no_etag ? (struct span){0} : arena_copy(p->arena, etag);
    f->last_modified = (time_t)p->version * 1000 + p->edition + 1;
    f->forbids = world.options.no_etag ? ORIGIN_FORBIDS_ETAG : ORIGIN_FORBIDS_NOTHING;
    check(headers_add(&f->headers, p->arena, SPAN("x-amz-meta-edition"),
                      span_from_cstr(arena_printf(p->arena, "%d", p->edition))));
    if (f->wants_checksums != ORIGIN_CHECKSUMS_NONE && f->kind != ORIGIN_GET_RANGE &&
        !world.names_no_checksums) {
        // Parts of a body cannot be judged.
        const char *parts = world.names_wrong_checksums ? "" : "-1";
        char *value = arena_printf(p->arena, "v%d%s", p->version, parts);
        check(headers_add(&f->checksums, p->arena, SPAN("x-amz-checksum-crc32"),
                          span_from_cstr(value)));
    }
    world.current = p->worker;
    enum err err = f->on_head(f);
    turn_end(p->worker);
    if (p->used && (err != ERR_OK || origin_fetch_is_head(f))) {
        fetch_end(p, err);
    }
}

// Returns true if the request is for an object's last bytes, or goes on with such a request on the
// key's home, which does not own the block.
static bool is_for_last_bytes(const struct fetch_play *p, uint64_t block)
{
    uint64_t stripe = block * world.rule.block_size_bytes / WORLD_STRIPE;
    return p->f->suffix > 0 || p->worker->index != (p->key->index + stripe) % WORLD_WORKERS;
}

static void fetch_piece(struct fetch_play *p)
{
    static char bytes[WORLD_BLOCK];
    uint32_t most = world.options.piece_bytes != 0 ? world.options.piece_bytes : 20000 + rnd(40000);
    size_t n = (size_t)min_u64(p->end - p->next, min_u64(most, sizeof(bytes)));
    memset(bytes, letter_of(p->key, p->version), n);
    world.current = p->worker;
    uint64_t block_size = world.rule.block_size_bytes, size = p->key->size_bytes[p->version];
    for (uint64_t b = p->next / block_size; b * block_size < size && b < MAX_BLOCKS; b++) {
        uint64_t block_end = min_u64((b + 1) * block_size, size);
        // A part of a block, in front of a suffix, is none.
        bool is_sent = block_end > p->next && block_end <= p->next + n &&
                       (p->f->suffix == 0 || b * block_size >= p->f->body_first);
        p->key->sent[p->version][b] += is_sent;
        p->key->sent_by_suffix[p->version][b] += is_sent && is_for_last_bytes(p, b);
    }
    p->next += n;
    enum err err = p->f->on_body(p->f, (struct span){bytes, n});
    turn_end(p->worker);
    if (err != ERR_OK && p->used) {
        fetch_end(p, err);
    }
}

void fetch_step(struct fetch_play *p)
{
    if (p->cancelled) {
        fetch_end(p, ERR_CANCELLED);
    } else if (!p->evaluated) {
        fetch_evaluate(p);
    } else if (!p->answered) {
        fetch_answer(p);
    } else if (p->next == p->end) {
        fetch_end(p, ERR_OK);
    } else if (p->will_reset && p->next > p->f->body_first) {
        fetch_end(p, ERR_ORIGIN_RESET);
    } else {
        fetch_piece(p);
    }
}

int origin_version(void)
{
    return world.key->version;
}

void origin_overwrite(void)
{
    struct world_key *k = world.key;
    k->replaced_us[k->version] = world.now_us;
    k->version++;
    check(k->version < WORLD_VERSIONS);
    k->size_bytes[k->version] = world.next_size_bytes;
}

void origin_redescribe(void)
{
    world.key->redescribed_us[world.key->edition] = world.now_us;
    world.key->edition++;
    check(world.key->edition < MAX_EDITIONS);
}

void origin_resize(uint64_t size_bytes)
{
    world.next_size_bytes = size_bytes;
}

void origin_remove(void)
{
    origin_overwrite();
    world.key->missing[world.key->version] = true;
}

unsigned origin_sent(int version, unsigned block)
{
    return world.key->sent[version][block];
}

unsigned origin_sent_by_suffix(int version, unsigned block)
{
    return world.key->sent_by_suffix[version][block];
}

unsigned origin_ahead(void)
{
    unsigned count = 0;
    for (unsigned i = 0; i < MAX_FETCHES; i++) {
        count += world.fetches[i].used && world.fetches[i].f->ahead;
    }
    return count;
}

void origin_falls_silent(void)
{
    world.is_silent = true;
}

unsigned origin_heads(void)
{
    return world.heads;
}

void origin_name_wrong_checksums(void)
{
    world.names_wrong_checksums = true;
}

void origin_shorten_next(void)
{
    world.shorten_next = true;
}

void origin_name_no_checksums(void)
{
    world.names_no_checksums = true;
}

unsigned origin_requests(void)
{
    return world.requests;
}

void origin_deny(unsigned principal)
{
    world.denied = principal;
}

void origin_fail_next(enum err err)
{
    world.fail_next = err;
}

void origin_reset_next(unsigned times)
{
    world.reset_next = times;
}

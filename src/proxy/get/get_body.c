// SPDX-License-Identifier: Apache-2.0
// The body of a GET's reply, which http pulls in slices. body_go() runs one phase of get_phases.def
// after the other, until a slice is ready, or the body must wait, or it is cut.
//
//   CHOOSE   chooses the source of the next byte: a run in flight that covers it, or else its place
//            in the cache, sent as a file range (sendfile) or by READ. If there is neither, looks
//            up the next window, and asks for a run of the missing bytes
//   RUN      takes the pieces of runs[0], and asks for the run after it ahead of time
//   READ     waits for a disk read that verifies the bytes
//   RACE     waits for that read and for runs[0], and takes the bytes that come first
//   SPANS    takes the bytes of that read
//
// Runs on the request's worker.
#include "proxy/get/get_private.h"

#include <stdlib.h>
#include <string.h>

#define BODY_STEPS_MAX (3u * GET_AGAIN_MAX) // maximum steps of one pull without a result

// --- places --------------------------------------------------------------------------------------

// Returns how many bytes one read takes from a place. If memory is short, that is one checksum unit
// at most.
static uint64_t read_len(const struct get_state *g, const struct store_place *place)
{
    uint64_t begin = place->first_block * place->block_size_bytes;
    check(begin <= g->pos && g->pos - begin < place->payload_len);
    check(g->pos < g->end);
    uint64_t most = chunk_budget_is_short()
                        ? STORE_CHECKSUM_UNIT - (g->pos - begin) % STORE_CHECKSUM_UNIT
                        : GET_READ_BYTES;
    return min_u64(min_u64(g->end, begin + place->payload_len) - g->pos, most);
}

// Notes an access to the place that holds the byte at g->pos. Each run counts once, even if many
// slices send it.
static void note_read(struct request *r, const struct store_place *place)
{
    struct get_state *g = get_of(r);
    check(place->segment != NULL);
    if (g->pos >= g->noted_end) {
        uint64_t end = place->first_block * place->block_size_bytes + place->payload_len;
        check(end > g->pos);
        g->noted_end = end;
        store_note_read(r->pw->worker, r->pw->store, place, min_u64(g->end, end) - g->pos,
                        rules_group(r->pw->live, r->rule, r->s3.bucket, r->s3.key));
    }
}

static uint64_t clamp(uint64_t value, uint64_t least, uint64_t most)
{
    return max_u64(least, min_u64(value, most));
}

// Counts the next bytes of the reply. Those that it waited for, and those that read-ahead fetched
// for it, count as sent by the origin, the others as sent by `source`: memory or disk. Returns how
// many count as sent by the origin.
static uint64_t count_sent(struct request *r, uint64_t *source, uint64_t len)
{
    struct get_state *g = get_of(r);
    struct fill_worker *fw = r->pw->fill;
    uint64_t first = g->pos, end = g->pos + len;
    uint64_t awaited = clamp(g->awaited_first, first, end);
    uint64_t awaited_end = clamp(g->awaited_end, awaited, end);
    uint64_t origin = awaited_end - awaited;
    origin += fill_ahead_read(fw, g->key, g->object, first, awaited);
    (void)fill_ahead_read(fw, g->key, g->object, awaited, awaited_end);
    origin += fill_ahead_read(fw, g->key, g->object, awaited_end, end);
    r->bytes_origin += origin;
    *source += len - origin;
    return origin;
}

static void on_read(struct request *r)
{
    struct get_state *g = get_of(r);
    const struct store_read *read = &g->read->read;
    check(g->phase == GET_PHASE_READ || g->phase == GET_PHASE_RACE);
    if (read->err == ERR_OK) {
        check(read->first_byte == g->pos && read->len > 0 && read->span_count > 0);
        get_phase_enter(g, GET_PHASE_SPANS);
        get_state_leave(&g->runs[0]);
        g->read_span = 0;
        note_read(r, &read->place);
        uint64_t *source = read->source == STORE_READ_MEMORY ? &r->bytes_memory : &r->bytes_disk;
        (void)count_sent(r, source, read->len);
        stats_add(read->source == STORE_READ_DIRECT ? COUNTER_hit_direct : COUNTER_hit_read, 1);
    } else { // the bytes are lost or wrong, so this reply fetches them again
        bool has_run = g->phase == GET_PHASE_RACE;
        get_phase_enter(g, has_run ? GET_PHASE_RUN : GET_PHASE_CHOOSE);
        get_read_leave(&g->read, false);
        g->index = has_run ? FILL_INDEX_COUNTS : FILL_INDEX_UNREADABLE;
        get_state_view_done(g);
        store_place_unpin(&g->extra);
    }
    http_reply_ready(r->x);
}

// Asks the origin for the bytes that a slow disk should bring.
static void race_ask(struct request *r)
{
    struct get_state *g = get_of(r);
    enum fill_index index = g->index;
    check(g->runs[0] == NULL && index != FILL_INDEX_SLOW);
    g->index = FILL_INDEX_SLOW;
    g->runs[0] = get_ask_run(r, g->pos, g->end);
    g->index = index;
}

static void race_begin(struct request *r)
{
    race_ask(r);
    get_phase_enter(get_of(r), GET_PHASE_RACE);
}

// Returns how long the disk may take. 0: the reply waits for it, because the bytes are in memory,
// or because the origin has just failed to bring them.
static uint64_t read_limit_ms(struct request *r, const struct store_read *read)
{
    bool waits = get_of(r)->has_origin_failed ||
                 store_is_in_memory(r->pw->worker, &read->place, read->first_byte, read->len);
    return waits ? 0 : get_read_limit_ms(r);
}

static void read_start(struct request *r, const struct store_place *place)
{
    struct get_state *g = get_of(r);
    check(g->runs[0] == NULL);
    struct get_read *read = get_read_new(r, place);
    read->read.first_byte = g->pos;
    read->read.len = read_len(g, place);
    read->on_end = on_read;
    read->on_late = race_begin;
    if (get_read_begin(read, read_limit_ms(r, &read->read))) {
        get_phase_enter(g, GET_PHASE_READ);
    } else {
        race_begin(r);
    }
}

// --- pulling -------------------------------------------------------------------------------------

static void release_chunk(void *ctx)
{
    chunk_unref(ctx);
}

static void progress(struct request *r, uint64_t bytes)
{
    struct get_state *g = get_of(r);
    g->pos += bytes;
    g->again = 0;
    g->has_origin_failed = false;
    check(bytes > 0 && g->pos <= g->end);
    get_state_release_passed(g);
}

// Counts the blocks whose bytes were not cached when the reply reached them.
static void note_missed(struct request *r, uint64_t first_byte, uint64_t end_byte)
{
    struct get_state *g = get_of(r);
    check(first_byte < end_byte && g->reply_block_size_bytes > 0);
    uint64_t first = max_u64(first_byte / g->reply_block_size_bytes, g->missed_end);
    uint64_t end = (end_byte - 1) / g->reply_block_size_bytes + 1;
    if (end > first) {
        r->blocks_missed += (unsigned)(end - first);
        g->missed_end = end;
    }
}

enum body_result {
    BODY_SLICE, // *ret_slice is filled
    BODY_WAIT,  // nothing to send yet; http_reply_ready() will be called
    BODY_AGAIN, // the phase or runs[0] has changed: take another step
    BODY_CUT
};

// The phase SPANS: sends the next span of the read. The slice has a reference to the span's chunk.
static enum body_result pull_span(struct request *r, struct http_slice *ret_slice)
{
    struct get_state *g = get_of(r);
    check(g->read_span < g->read->read.span_count);
    const struct store_read *read = &g->read->read;
    struct span bytes = read->spans[g->read_span];
    struct chunk *chunk = read->chunks[g->read_span];
    check(chunk != NULL && bytes.len > 0);
    ret_slice->kind = HTTP_SLICE_BYTES;
    ret_slice->bytes = bytes;
    ret_slice->release = release_chunk;
    ret_slice->release_ctx = chunk_ref(chunk);
    g->read_span++;
    if (g->read_span == read->span_count) {
        get_phase_enter(g, GET_PHASE_CHOOSE);
        get_read_leave(&g->read, false);
    }
    progress(r, bytes.len);
    return BODY_SLICE;
}

static bool pull_range(struct request *r, const struct store_place *place,
                       struct http_slice *ret_slice)
{
    struct get_state *g = get_of(r);
    if (!http_exchange_can_sendfile(r->x) || g->pos < g->buffer_until) {
        return false;
    }
    uint64_t place_end = place->first_block * place->block_size_bytes + place->payload_len;
    check(g->pos < place_end && g->pos < g->end);
    uint64_t len = min_u64(min_u64(g->end, place_end) - g->pos, HTTP_FILE_SLICE_MAX);
    if (!store_range_ready(r->pw->worker, r->pw->store, place, g->pos, len, &ret_slice->range)) {
        return false;
    }
    ret_slice->kind = HTTP_SLICE_FILE;
    note_read(r, place);
    g->slice_origin = count_sent(r, &r->bytes_memory, len);
    stats_add(COUNTER_hit_sendfile, 1);
    progress(r, len);
    return true;
}

// Notes which bytes of the run had not come when this request asked for them.
static void note_awaited(struct get_state *g, const struct subscription *sub)
{
    if (sub->run_end_byte > g->awaited_end) {
        g->awaited_first = g->pos < g->awaited_end ? g->awaited_first : sub->here_end_byte;
        g->awaited_end = sub->run_end_byte;
    }
}

// Sends the first piece of a run that reaches beyond g->pos, if it begins at or before g->pos.
// Skips bytes that were already sent.
static bool pull_piece(struct request *r, struct subscription *sub, struct http_slice *ret_slice)
{
    struct get_state *g = get_of(r);
    struct list_node *node;
    while ((node = list_first(&sub->pieces)) != NULL) {
        struct piece *piece = container_of(node, struct piece, node);
        check(piece->len > 0);
        if (piece->first_byte > g->pos) {
            return false;
        }
        uint64_t skip = g->pos - piece->first_byte;
        if (skip >= piece->len) {
            subscription_pop(sub);
            continue;
        }
        if (piece->chunk == NULL) {
            uint64_t pos = g->pos;
            note_awaited(g, sub);
            if (pull_range(r, &piece->pages, ret_slice)) {
                if (!sub->whole) {
                    note_missed(r, pos, g->pos);
                }
                return true;
            }
            subscription_refuse_pages(sub);
            g->buffer_until = max_u64(g->buffer_until, g->pos + 1);
            return false;
        }
        uint64_t len = min_u64(piece->len - skip, g->end - g->pos);
        // The chunk may still grow after `len`.
        check(len > 0 && piece->offset + skip + len <= CHUNK_SIZE);
        ret_slice->kind = HTTP_SLICE_BYTES;
        ret_slice->bytes = (struct span){piece->chunk->data + piece->offset + skip, (size_t)len};
        ret_slice->release = release_chunk;
        ret_slice->release_ctx = chunk_ref(piece->chunk);
        subscription_pop(sub);
        note_awaited(g, sub);
        (void)count_sent(r, &r->bytes_memory, len);
        if (!sub->whole) {
            note_missed(r, g->pos, g->pos + len);
        }
        progress(r, len);
        return true;
    }
    return false;
}

// Asks for the run after the one that is being sent, ahead of time. A streamed run may be long, and
// the next one would wait for a long time, with its transfer paused.
static void prefetch(struct request *r)
{
    struct get_state *g = get_of(r);
    struct subscription *current = g->runs[0];
    if (g->runs[1] != NULL || current == NULL || current->answer == NULL || current->weak ||
        chunk_budget_is_short()) {
        return;
    }
    uint64_t next = current->run_end_byte;
    if (next >= g->end || next <= g->pos || next - g->pos > STORE_RUN_MAX ||
        get_state_place(g, next) != NULL) {
        return;
    }
    g->runs[1] = get_ask_run(r, next, g->end);
    check(g->runs[1] != current);
}

// Called when all pieces of the run are sent. The run's place and outcome decide how the reply
// continues.
static enum body_result run_ended(struct request *r)
{
    struct get_state *g = get_of(r);
    struct subscription *sub = g->runs[0];
    check(sub->state == SUBSCRIPTION_ENDED);
    enum subscription_outcome outcome = sub->outcome;
    bool has_cached = sub->ask.index == FILL_INDEX_SLOW;
    if (sub->place.segment != NULL) {
        store_place_unpin(&g->extra);
        g->extra = sub->place;
        sub->place.segment = NULL;
    }
    get_state_leave(&g->runs[0]);
    bool has_failed = outcome == OUTCOME_GONE || outcome == OUTCOME_ERROR;
    if (has_failed && !has_cached) {
        return BODY_CUT;
    }
    check(has_failed || outcome == OUTCOME_DONE || outcome == OUTCOME_REJOIN);
    g->has_origin_failed = has_failed; // then the disk has the bytes, where the view says
    if (outcome != OUTCOME_DONE) {
        if (!has_failed) {
            get_state_view_done(g);
        }
        g->index = FILL_INDEX_COUNTS;
        g->again++;
    }
    get_phase_enter(g, GET_PHASE_CHOOSE);
    return BODY_AGAIN;
}

// A step of the phase RUN: sends the next piece of runs[0], or waits for it.
static enum body_result pull_run(struct request *r, struct http_slice *ret_slice)
{
    struct get_state *g = get_of(r);
    struct subscription *sub = g->runs[0];
    check(sub != NULL);
    if (!get_state_run_covers(sub, g->pos) && get_state_run_covers(g->runs[1], g->pos)) {
        get_state_leave(&g->runs[0]);
        g->runs[0] = g->runs[1];
        g->runs[1] = NULL;
        return BODY_AGAIN;
    }
    if (pull_piece(r, sub, ret_slice)) {
        prefetch(r);
        return BODY_SLICE;
    }
    if (sub->state == SUBSCRIPTION_ENDED) {
        return run_ended(r);
    }
    if (!get_state_run_covers(sub, g->pos)) { // the reply has passed the run's end
        get_state_leave(&g->runs[0]);
        get_phase_enter(g, GET_PHASE_CHOOSE);
        return BODY_AGAIN;
    }
    subscription_want(sub, g->pos);
    prefetch(r);
    return BODY_WAIT;
}

// A step of the phase RACE: takes the first piece of runs[0] if it comes before the disk read.
static enum body_result race(struct request *r, struct http_slice *ret_slice)
{
    struct get_state *g = get_of(r);
    if (pull_piece(r, g->runs[0], ret_slice)) {
        get_phase_enter(g, GET_PHASE_RUN);
        get_read_leave(&g->read, false);
        return BODY_SLICE;
    }
    if (g->runs[0]->state != SUBSCRIPTION_ENDED && get_state_run_covers(g->runs[0], g->pos)) {
        subscription_want(g->runs[0], g->pos);
        return BODY_WAIT;
    }
    bool must_ask_again = g->runs[0]->state == SUBSCRIPTION_ENDED &&
                          g->runs[0]->outcome == OUTCOME_REJOIN && g->again < GET_AGAIN_MAX;
    get_state_leave(&g->runs[0]);
    if (must_ask_again) {
        g->again++;
        race_ask(r);
        return BODY_WAIT;
    }
    get_phase_enter(g, GET_PHASE_READ); // the origin does not bring the bytes
    get_read_insist(g->read);
    return BODY_WAIT;
}

// A step of the phase CHOOSE: chooses the source of the byte at g->pos.
static enum body_result choose(struct request *r, struct http_slice *ret_slice)
{
    struct get_state *g = get_of(r);
    if (g->runs[0] == NULL && get_state_run_covers(g->runs[1], g->pos)) {
        g->runs[0] = g->runs[1];
        g->runs[1] = NULL;
    }
    if (g->runs[0] != NULL) {
        get_phase_enter(g, GET_PHASE_RUN);
        return BODY_AGAIN;
    }
    const struct store_place *place = get_state_place(g, g->pos);
    bool is_in_view = g->pos >= g->view_first && g->pos < g->view_end;
    if (place == NULL && g->index == FILL_INDEX_COUNTS && !is_in_view) {
        get_state_view(r, g->pos, g->end);
        place = get_state_place(g, g->pos);
    }
    if (place != NULL && pull_range(r, place, ret_slice)) {
        return BODY_SLICE;
    }
    if (place != NULL) {
        read_start(r, place);
        return BODY_WAIT;
    }
    if (g->again > GET_AGAIN_MAX) {
        return BODY_CUT;
    }
    g->runs[0] = get_ask_run(r, g->pos, g->end);
    g->index = FILL_INDEX_COUNTS;
    get_phase_enter(g, GET_PHASE_RUN);
    return BODY_WAIT;
}

static void slice_drop(struct http_slice *slice)
{
    if (slice->kind == HTTP_SLICE_BYTES) {
        slice->release(slice->release_ctx);
    } else if (slice->range.release != NULL) {
        slice->range.release(slice->range.release_ctx);
    }
}

static enum body_result body_step(struct request *r, struct http_slice *ret_slice)
{
    check(get_of(r)->pos < get_of(r)->end);
    switch (get_of(r)->phase) {
    case GET_PHASE_CHOOSE:
        return choose(r, ret_slice);
    case GET_PHASE_RUN:
        return pull_run(r, ret_slice);
    case GET_PHASE_READ:
        return BODY_WAIT;
    case GET_PHASE_RACE:
        return race(r, ret_slice);
    case GET_PHASE_SPANS:
        return pull_span(r, ret_slice);
    default:
        check_failed(__FILE__, __LINE__, "the phase has a body");
    }
}

static enum body_result body_go(struct request *r, struct http_slice *ret_slice)
{
    enum body_result result = BODY_AGAIN;
    for (unsigned i = 0; result == BODY_AGAIN && i < BODY_STEPS_MAX; i++) {
        result = body_step(r, ret_slice);
    }
    return result;
}

// Returns true if this request must compare the reply's bytes with the object's checksum. It must
// if it has asked the origin for a run and the object is larger than one run. A run that is the
// whole object was compared by the worker that fetched it.
static bool needs_judging(const struct request *r)
{
    const struct get_state *g = r->get;
    return g->has_asked && r->status == 200 &&
           g->object->size_bytes > store_run_bytes_max(r->pw->store);
}

enum http_pull get_body_pull(struct http_source *source, struct http_slice *ret_slice)
{
    struct request *r = container_of(source, struct request, source);
    struct get_state *g = get_of(r);
    get_state_check(r);
    if (g->pos >= g->readahead_at) {
        readahead_note(r);
    }
    if (g->pos == g->end) {
        return HTTP_PULL_END;
    }
    enum body_result result = body_go(r, ret_slice);
    if (result == BODY_WAIT) {
        return HTTP_PULL_WAIT;
    }
    if (result != BODY_SLICE) { // CUT, or AGAIN after too many steps
        get_state_cut(g);
        return HTTP_PULL_CUT;
    }
    if (needs_judging(r) && checksums_reply_is_wrong(r->pw->fill, g->object, &g->sum, g->pos)) {
        if (g->sum.verdicts > 0) {
            invalidate_wrong(r->pw->fill, g->key);
        }
        slice_drop(ret_slice);
        get_state_cut(g);
        return HTTP_PULL_CUT;
    }
    return HTTP_PULL_SLICE;
}

// Called when the last bytes of a file range are no longer in the page cache. They are sent from
// memory instead. http pulls nothing after a file range until the range is sent.
void get_body_recall(struct http_source *source, uint64_t unsent)
{
    struct request *r = container_of(source, struct request, source);
    struct get_state *g = get_of(r);
    get_state_check(r);
    check(g->phase == GET_PHASE_CHOOSE || g->phase == GET_PHASE_RUN);
    check(unsent <= g->pos - g->first);
    uint64_t origin = min_u64(unsent, g->slice_origin);
    check(unsent - origin <= r->bytes_memory && origin <= r->bytes_origin);
    if (origin > 0) { // they count as before when they are sent again
        g->awaited_first = g->pos - origin;
        g->awaited_end = max_u64(g->awaited_end, g->pos);
    }
    g->buffer_until = g->pos;
    g->pos -= unsent;
    r->bytes_origin -= origin;
    r->bytes_memory -= unsent - origin;
    if (get_state_place(g, g->pos) == NULL) {
        get_state_view_done(g); // the place is no longer pinned, so look it up again
    }
}

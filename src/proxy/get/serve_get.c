// SPDX-License-Identifier: Apache-2.0
// Answers GET and HEAD of an object that may be cached: hit, partial hit, miss, range.
//
// Before the reply, the request takes these steps (steps.def):
//   LOOKUP       looks up the first wanted bytes in the index, at most a window of
//                STORE_WINDOW_MAX; reads a small object and its header in one read
//   DESCRIBE     loads the version's headers from the header of a run
//   FRESHNESS    continues if the version is fresh; asks the home if it is stale, or if If-Match
//                names another version
//   REVALIDATED  continues with the cached version if it is unchanged, or with the new version,
//                whose body comes from a run; may use the stale version if the origin is down;
//                asks again if If-Match names a version newer than the answer may be
//   FIRST        if the first byte is not cached: asks for a run and waits for its head. Asks the
//                home if no version is known, else the owner of the stripe. Asks the home for the
//                current version if the run is of a stale one, or of another than If-Match names
//   REPLY        evaluates conditions and range, writes the reply head (get_reply.c)
// After that, http pulls slices of the body (get_body.c). They come from pieces of a run, or from a
// place (sendfile, or a verified read). If neither has the next byte, the request looks up the next
// window or fetches the missing run. With its first byte the reply is bound to its version: bytes
// under another ETag are not used. If the origin answers 412 to a later fetch, because the version
// is not current any more, the reply is cut.
//
// A place is read in one of three ways: small (header and body in one NOWAIT read), fast (verified
// and resident: sendfile), or by an asynchronous read whose checksum is verified before a byte is
// sent. The store drops a bad block, which is then a miss. An asynchronous read has a time limit
// (get_read.c).
//
// In addition to its step, a GET has a phase (get_phases.def), which tells where its next bytes
// come from.
//
// Each file calls only files above it in this list:
// - get_phase.c: the order of phases
// - get_read.c: a disk read and its time limit
// - get_state.c: the resources of a GET
// - get_ask.c: questions to other workers
// - series.c: the next object of a series
// - readahead.c: runs ahead of the reader
// - get_body.c, get_reply.c
// - serve_get.c: the steps before the reply

#include "proxy/get/get_private.h"

#include <string.h>

void serve_get_done(struct request *r)
{
    if (r->get != NULL && r->get->key != NULL) {
        readahead_leave(r);
    }
    get_state_release(r);
}

void serve_get_sum_up(struct request *r)
{
    const struct get_state *g = r->get;
    bool has_body = g != NULL && g->key != NULL && get_phase_has_replied(g) && g->small.len == 0;
    if (!has_body || r->http->is_head || g->pos <= g->first) {
        return;
    }
    uint64_t block = g->reply_block_size_bytes;
    check(block > 0);
    uint64_t sent = (g->pos - 1) / block - g->first / block + 1;
    r->blocks_hit = (unsigned)min_u64(sent - min_u64(sent, r->blocks_missed), UINT32_MAX);
    if (r->result == RESULT_HIT && r->blocks_missed > 0) {
        // Blocks were missing after the window that the head was based on.
        r->result = RESULT_PARTIAL;
    }
}

struct span serve_get_version(const struct request *r)
{
    const struct get_state *g = r->get;
    return g != NULL && g->key != NULL && g->object != NULL ? g->object->etag : (struct span){0};
}

static enum step_result go_to(struct request *r, enum request_step step)
{
    check(!r->ended && get_of(r)->phase == GET_PHASE_STEPS);
    r->step = step;
    return STEP_AGAIN;
}

// Called when another worker has answered. It may have waited for the origin, for this request or
// for an earlier one. The time that it waited for workers and the disk does not count.
static void note_wait(struct request *r, const struct subscription *sub)
{
    struct get_state *g = get_of(r);
    uint64_t now_us = clock_monotonic_us();
    uint64_t waited_us = now_us - g->asked_us;
    r->origin_us += waited_us - min_u64(waited_us, sub->settle_us);
    g->asked_us = now_us;
}

// Makes `version` the version of the reply. Takes ownership of the reference.
static void set_version(struct get_state *g, struct store_object *version)
{
    check(g->object == NULL && version != NULL);
    g->object = version;
    g->etag_hash = hash64(version->etag.ptr, version->etag.len, 0);
}

// Restarts the request, of which nothing has been sent. If the object changes PROXY_RESTARTS_MAX
// times during the request, passes it through, because only the origin can then say which version
// is current.
static enum step_result restart(struct request *r)
{
    struct get_state *g = get_of(r);
    check(g->phase == GET_PHASE_STEPS);
    get_state_forget_version(g);
    g->is_confirmed = false;
    g->index = g->index == FILL_INDEX_SLOW ? FILL_INDEX_COUNTS : g->index; // wait for the disk
    r->result = RESULT_NONE;
    r->reason = NULL;
    r->collapsed = r->has_run = false;
    if (++g->restarts > PROXY_RESTARTS_MAX) {
        return get_state_bypass(r, "changing");
    }
    return go_to(r, REQUEST_GET_LOOKUP);
}

// --- LOOKUP --------------------------------------------------------------------------------------

// Passes the request through, because the origin's answer has a form that the cache cannot use. The
// client may understand it.
static enum step_result answer_fits_not(struct request *r)
{
    fill_uncacheable_note(r->pw->fill, get_of(r)->key->hash, ORIGIN_FORBIDS_SHAPE);
    return get_state_bypass(r, "answer");
}

// Returns true if replicas of the origin's store have lately answered with different versions. A
// reply that is made of several runs might then be cut.
static bool replicas_differ(struct request *r)
{
    struct get_state *g = get_of(r);
    return !r->http->is_head &&
           fill_uncacheable(r->pw->fill, g->key->hash) == ORIGIN_FORBIDS_VERSIONS;
}

// Returns true if the object lately had no strong ETag and the request needs one. Runs of such an
// object are not stored, and a reply cannot be made of two of them. If-Match can never match such
// an ETag, so the origin evaluates If-Match, too.
static bool has_no_etag(struct request *r)
{
    struct get_state *g = get_of(r);
    return (!r->http->is_head || g->conditions.has_if_match) &&
           fill_uncacheable(r->pw->fill, g->key->hash) == ORIGIN_FORBIDS_ETAG;
}

// Returns true if a HEAD wants checksums and the origin's store is one whose objects Forebay
// describes by a GET of one byte. The answer to that GET has no checksums.
static bool only_head_tells(struct request *r)
{
    return r->http->is_head && get_state_wants_checksums(r) &&
           origin_is_odd(r->origin, ORIGIN_HEAD_DIFFERS);
}

// Chooses the next step if the index has no record, or none that may be used.
static enum step_result lookup_missed(struct request *r)
{
    check(get_of(r)->object == NULL);
    if (r->hops > 0 && !origin_has_answered(r->origin)) {
        return get_state_bypass(r, "hops");
    }
    struct get_state *g = get_of(r);
    if (!g->view.found && fill_uncacheable(r->pw->fill, g->key->hash) == ORIGIN_FORBIDS_SHAPE) {
        return get_state_bypass(r, "answer");
    }
    if (replicas_differ(r)) {
        return get_state_bypass(r, "versions");
    }
    if (!g->view.found && only_head_tells(r)) {
        return get_state_bypass(r, "checksum");
    }
    if (!g->view.found && has_no_etag(r)) {
        return get_state_bypass(r, "no-etag");
    }
    // If a record is visible but its bytes cannot be read, other readers may still get its version.
    // So the home must find out which version is current (rule 31).
    bool asks = g->needs_head || (g->index != FILL_INDEX_COUNTS && g->view.found);
    return asks ? get_ask_home(r) : go_to(r, REQUEST_GET_FIRST);
}

// Reads the header and the body of a small object in one read. Returns false if the object is not
// small, if its only run is not cached, or if the read would wait.
static bool read_small(struct request *r)
{
    struct get_state *g = get_of(r);
    if (g->view.place_count != 1 || g->view.size_bytes > STORE_SMALL_MAX ||
        g->view.places[0].payload_len != g->view.size_bytes) {
        return false;
    }
    return store_read_small(r->pw->worker, r->pw->store, &g->view.places[0], g->key->hash,
                            g->key->realm, g->key->bucket, g->key->key, &g->object, &g->small_chunk,
                            &g->small) == ERR_OK;
}

enum step_result serve_get_step_lookup(struct request *r)
{
    if (r->get == NULL || r->get->key == NULL) {
        get_state_begin(r);
    }
    struct get_state *g = get_of(r);
    get_state_check(r);
    uint64_t first = 0, end = 0;
    get_ask_wanted(g, &first, &end);
    get_state_view(r, first, end);
    // Rule 9: the look-up may still find the version to which the origin answered 412. The home
    // removes it.
    bool refused = g->refused != NULL && g->view.found &&
                   g->view.etag_hash == hash64(g->refused->etag.ptr, g->refused->etag.len, 0);
    if (!g->view.found || g->index != FILL_INDEX_COUNTS || refused) {
        return lookup_missed(r);
    }
    r->known = true;
    g->etag_hash = g->view.etag_hash;
    check(get_state_has_record(g));
    if (replicas_differ(r) && !get_state_covers(g, first, end)) {
        return get_state_bypass(r, "versions"); // the missing runs might be of another version
    }
    return go_to(r, read_small(r) ? REQUEST_GET_FRESHNESS : REQUEST_GET_DESCRIBE);
}

// --- DESCRIBE ------------------------------------------------------------------------------------

// Called when the run in the index cannot be read from the disk. Restarts, and asks the origin.
static enum step_result unreadable(struct request *r)
{
    get_of(r)->index = FILL_INDEX_UNREADABLE;
    return restart(r);
}

static void on_header_read(struct request *r)
{
    struct get_state *g = get_of(r);
    struct store_read *read = &g->read->read;
    check(g->object == NULL && get_phase_is_reading(g));
    bool has_failed = read->err != ERR_OK;
    g->object = read->object;
    read->object = NULL;
    get_phase_enter(g, GET_PHASE_STEPS);
    get_read_leave(&g->read, false);
    get_state_leave(&g->revalidation);
    g->index = FILL_INDEX_COUNTS;
    r->step = REQUEST_GET_DESCRIBE;
    if (has_failed) {
        (void)unreadable(r);
    }
    request_go(r);
}

// Asks the home which version is current, because the disk does not say in time what is cached.
static void header_race_begin(struct request *r)
{
    struct get_state *g = get_of(r);
    g->index = FILL_INDEX_SLOW;
    (void)get_ask_home(r);
    get_phase_enter(g, GET_PHASE_HEADER_RACE);
}

// Called when the home has answered before the disk. Returns false if the answer names no version.
// The request then waits for the disk, unless it must ask the home again.
static bool header_race_ends(struct request *r)
{
    struct get_state *g = get_of(r);
    const struct subscription *sub = g->revalidation;
    bool is_good = sub->validated_us != 0 || sub->err == ERR_OK || sub->err == ERR_NOT_MODIFIED;
    if (is_good && sub->answer != NULL) {
        get_phase_enter(g, GET_PHASE_STEPS);
        get_read_leave(&g->read, false);
        return true;
    }
    bool must_ask_again = sub->outcome == OUTCOME_REJOIN && g->restarts < PROXY_RESTARTS_MAX;
    get_state_leave(&g->revalidation);
    if (must_ask_again) {
        g->restarts++;
        (void)get_ask_home(r);
        return false;
    }
    g->index = FILL_INDEX_COUNTS;
    get_phase_enter(g, GET_PHASE_HEADER);
    get_read_insist(g->read);
    return false;
}

static enum step_result header_read_start(struct request *r, const struct store_place *place)
{
    struct get_state *g = get_of(r);
    struct get_read *read = get_read_new(r, place);
    read->read.header = true;
    read->on_end = on_header_read;
    read->on_late = header_race_begin;
    // After a restart the request waits for the disk.
    if (get_read_begin(read, g->restarts == 0 ? get_read_limit_ms(r) : 0)) {
        get_phase_enter(g, GET_PHASE_HEADER);
    } else {
        header_race_begin(r);
    }
    return STEP_WAIT;
}

enum step_result serve_get_step_describe(struct request *r)
{
    struct get_state *g = get_of(r);
    check(g->phase == GET_PHASE_STEPS);
    if (g->object != NULL) {
        return go_to(r, REQUEST_GET_FRESHNESS);
    }
    check(get_state_has_record(g));
    struct store_place *place = g->view.place_count > 0 ? &g->view.places[0] : &g->view.any;
    if (place->segment == NULL) {
        return unreadable(r);
    }
    enum err err = store_object_get(r->pw->worker, r->pw->store, place, g->key->hash, g->key->realm,
                                    g->key->bucket, g->key->key, &g->object);
    if (err == ERR_OK) {
        return go_to(r, REQUEST_GET_FRESHNESS);
    }
    return err == ERR_AGAIN ? header_read_start(r, place) : unreadable(r);
}

// --- FRESHNESS and REVALIDATED -------------------------------------------------------------------

static void use_stale(struct request *r)
{
    r->result = RESULT_STALE;
    stats_add(COUNTER_stale_served, 1);
}

enum step_result serve_get_step_freshness(struct request *r)
{
    struct get_state *g = get_of(r);
    check(g->phase == GET_PHASE_STEPS && g->object != NULL);
    bool stale = freshness_check(r->rule, &g->view) == FRESHNESS_STALE || g->is_doubted ||
                 request_is_no_cache(r);
    bool is_other = get_state_is_other(g, g->object->etag);
    if (g->is_confirmed || (!stale && !is_other)) {
        return go_to(r, REQUEST_GET_REPLY);
    }
    // The probe asks a silent origin, so readers do not.
    if (!is_other && get_state_may_be_stale(r) && origin_is_silent(r->origin)) {
        use_stale(r);
        g->is_confirmed = true;
        return go_to(r, REQUEST_GET_REPLY);
    }
    return get_ask_home(r);
}

// Uses the version that the home has sent, if any. The home sends none if the version asked about
// is current.
static void take_found(struct get_state *g, const struct subscription *sub)
{
    check(sub->state == SUBSCRIPTION_ENDED);
    if (sub->answer != NULL) {
        struct store_object *found = store_object_ref(sub->answer);
        get_state_forget_version(g);
        set_version(g, found);
    }
}

// Notes that the version was found `age_ms` ago, for another request, and not in the index.
static void note_age(struct request *r, uint64_t age_ms)
{
    struct get_state *g = get_of(r);
    g->is_home_known = true;
    r->known = true;
    g->view.rebuilt = false;
    g->view.age_ms = age_ms;
    get_state_judge_doubt(r, age_ms);
}

// Rule 32: uses the version that the home knows as if the index had it.
static enum step_result take_known(struct request *r, const struct subscription *sub)
{
    struct get_state *g = get_of(r);
    uint64_t now_us = worker_now_us(r->pw->worker);
    uint64_t validated_us = min_u64(sub->validated_us, now_us);
    check(sub == g->revalidation || sub == g->runs[0]);
    take_found(g, sub);
    note_age(r, (now_us - validated_us) / 1000);
    return go_to(r, REQUEST_GET_FRESHNESS);
}

// Called when the home has answered a HEAD's question for the version's checksums. If they are not
// available, the request is passed through, unless the origin refuses HEAD.
static enum step_result described(struct request *r)
{
    struct get_state *g = get_of(r);
    check(r->http->is_head);
    check(g->object != NULL);
    fill_version_take_checksums(&g->object, g->revalidation->answer);
    get_state_leave(&g->revalidation);
    if (get_reply_lacks_checksums(r) && !origin_is_odd(r->origin, ORIGIN_REFUSES_HEAD)) {
        return get_state_bypass(r, "checksum");
    }
    return go_to(r, REQUEST_GET_REPLY);
}

// Rule 29. Returns true if the client would get 412, although the version in its If-Match may have
// been written after the answer's request was sent.
static bool answer_predates_if_match(const struct get_state *g, const struct subscription *sub)
{
    return sub->shares_check && sub->answer != NULL && get_state_is_other(g, sub->answer->etag);
}

enum step_result serve_get_step_revalidated(struct request *r)
{
    struct get_state *g = get_of(r);
    struct subscription *sub = g->revalidation;
    bool has_ended = sub != NULL && sub->state == SUBSCRIPTION_ENDED;
    if (!has_ended || (g->phase == GET_PHASE_HEADER_RACE && !header_race_ends(r))) {
        return STEP_WAIT;
    }
    note_wait(r, sub);
    if (sub->validated_us != 0) {
        return take_known(r, sub);
    }
    enum err err = sub->err;
    bool is_absent = err == ERR_NO_SUCH_KEY || err == ERR_NO_SUCH_BUCKET;
    if (sub->outcome == OUTCOME_DESCRIBED ||
        (fill_ask_is_for_checksums(sub->ask.kind) && sub->outcome == OUTCOME_REVALIDATED &&
         err != ERR_OK && !is_absent)) {
        return described(r);
    }
    r->attempts++;
    bool origin_failed = error_row(err)->status == 503 || err == ERR_INTERNAL;
    if (sub->outcome == OUTCOME_REJOIN) {
        return restart(r);
    }
    if (err == ERR_ORIGIN_UNFIT) {
        return answer_fits_not(r);
    }
    if (answer_predates_if_match(g, sub)) {
        return get_ask_home_again(r);
    }
    if (err == ERR_OK || err == ERR_NOT_MODIFIED) {
        take_found(g, sub);
    }
    if (err == ERR_NOT_MODIFIED) {
        r->result = RESULT_REVALIDATED;
        r->reason = request_is_no_cache(r) ? "client-no-cache" : NULL;
    } else if (origin_failed && get_state_may_be_stale(r)) {
        use_stale(r);
    } else if (err != ERR_OK) {
        return request_fail_by_origin(r, err, sub->error_answer);
    }
    get_state_leave(&g->revalidation);
    g->is_confirmed = true;
    return go_to(r, REQUEST_GET_REPLY);
}

// --- FIRST ---------------------------------------------------------------------------------------

// Rule 32. Returns true if the run's version was stale when the reader asked. Notes its age then.
static bool run_is_stale(struct request *r, const struct subscription *sub)
{
    // The clock of the run's worker may be behind, so a run that was asked for because of this
    // reader is not judged by the times.
    bool is_own = !sub->joined && !sub->whole && sub->ask.object == NULL;
    uint64_t learnt_us = min_u64(sub->answer->learnt_us, sub->asked_us);
    uint64_t age_ms = (sub->asked_us - learnt_us) / 1000;
    if (is_own || r->rule->freshness != PROXY_FRESHNESS_TTL || age_ms <= r->rule->ttl_ms) {
        return false; // a strict reader shares no run before the version is confirmed
    }
    note_age(r, age_ms);
    return true;
}

// Handles the answer that names the version: the run's head, or the place of a run that is stored
// already.
static enum step_result first_answered(struct request *r, const struct subscription *sub)
{
    struct get_state *g = get_of(r);
    check(sub == g->runs[0] && sub->answer != NULL);
    // A run that began before this request came tells nothing about a version written since.
    bool may_be_older = (sub->joined || sub->whole) && !g->is_confirmed;
    bool must_ask = may_be_older && get_state_is_other(g, sub->answer->etag);
    if (g->object == NULL) {
        set_version(g, store_object_ref(sub->answer));
        must_ask |= run_is_stale(r, sub);
    } else if (!span_equal(g->object->etag, sub->answer->etag)) {
        return restart(r); // the conditions were evaluated for another version
    }
    memcpy(r->origin_id, sub->origin_id, sizeof(r->origin_id));
    r->attempts += sub->whole ? 0 : 1;
    g->is_home_known |= sub->whole;
    return must_ask ? get_ask_home(r) : go_to(r, REQUEST_GET_REPLY);
}

// Replies with the origin's verdict on the condition that it got with the run.
static enum step_result first_judged(struct request *r, const struct subscription *sub)
{
    if (sub->err == ERR_NOT_MODIFIED) {
        return get_reply_not_modified(r, sub->error_answer);
    }
    r->result = RESULT_MISS;
    struct s3_error_detail detail = {
        .condition = span_from_cstr(origin_condition_name(sub->ask.condition.kind))};
    return request_fail(r, sub->err, &detail);
}

// Returns true if the origin does not support suffix ranges, or sends more than the suffix.
static bool refuses_suffix(const struct subscription *sub)
{
    return sub->ask.suffix_bytes > 0 &&
           (sub->err == ERR_ORIGIN_UNFIT || sub->err == ERR_NOT_IMPLEMENTED ||
            sub->err == ERR_INVALID);
}

// Called if the index has a run of the version that the origin has just confirmed. Looks that run
// up, so that the origin is not asked again.
static enum step_result look_again(struct request *r)
{
    struct get_state *g = get_of(r);
    if (++g->restarts > PROXY_RESTARTS_MAX) {
        return get_state_bypass(r, "changing");
    }
    get_state_leave(&g->runs[0]);
    get_state_view(r, g->pos, max_u64(g->end, g->pos + 1));
    return go_to(r, REQUEST_GET_REPLY);
}

static enum step_result first_ended(struct request *r, const struct subscription *sub)
{
    struct get_state *g = get_of(r);
    check(sub == g->runs[0] && sub->state == SUBSCRIPTION_ENDED);
    check(sub->answer == NULL);
    if (sub->outcome == OUTCOME_REJOIN && g->is_confirmed && g->object != NULL) {
        return look_again(r);
    }
    r->attempts++;
    if (sub->outcome == OUTCOME_ERROR &&
        (sub->err == ERR_NOT_MODIFIED || sub->err == ERR_PRECONDITION_FAILED)) {
        return first_judged(r, sub);
    }
    if (sub->outcome == OUTCOME_ERROR && g->object == NULL &&
        (sub->err == ERR_INVALID_RANGE || refuses_suffix(sub))) {
        get_state_leave(&g->runs[0]);
        return get_ask_home(r); // a HEAD learns the size of the object
    }
    if (sub->outcome == OUTCOME_ERROR && sub->err == ERR_ORIGIN_UNFIT) {
        return answer_fits_not(r);
    }
    if (sub->outcome == OUTCOME_ERROR) {
        return request_fail_by_origin(r, sub->err, sub->error_answer);
    }
    // The run was requested before this request came, so the request must ask which version is
    // current now.
    g->needs_head |= sub->outcome == OUTCOME_REJOIN && sub->ask.strict;
    if (sub->outcome == OUTCOME_GONE && g->object != NULL) {
        store_object_unref(g->refused);
        g->refused = store_object_ref(g->object);
    }
    return restart(r);
}

enum step_result serve_get_step_first(struct request *r)
{
    struct get_state *g = get_of(r);
    check(g->phase == GET_PHASE_STEPS && g->runs[1] == NULL);
    const struct subscription *sub = g->runs[0];
    if (sub == NULL) {
        uint64_t first = g->pos, end = g->end;
        if (g->object == NULL) {
            get_ask_wanted(g, &first, &end);
        }
        g->runs[0] = get_ask_run(r, first, end);
        return STEP_WAIT;
    }
    if (sub->answer == NULL && sub->state != SUBSCRIPTION_ENDED) {
        return STEP_WAIT;
    }
    note_wait(r, sub);
    if (sub->answer == NULL) {
        return first_ended(r, sub);
    }
    return sub->outcome == OUTCOME_REVALIDATED ? take_known(r, sub) : first_answered(r, sub);
}

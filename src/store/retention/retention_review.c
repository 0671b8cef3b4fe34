// SPDX-License-Identifier: Apache-2.0
// Reviews stored runs after the list of pins has changed, or after a bucket was evicted, and moves
// each run to the group of its name. The policy knows a run only by a hash. So a review reads the
// names in the headers of runs, segment by segment, but only of runs whose group may change. A step
// reads at most STEP_RUNS headers. Between steps the thread rewrites survivors, drains rings and
// records the time.
//
// A run whose name nobody looks up any more is removed. Otherwise the policy would keep it for what
// it was worth, and would refuse new runs for its sake.
//
// No other thread waits for a review. A run that is removed during the review is skipped. A run
// whose header cannot be read keeps its group until a client reads the run.
#include "store/retention/retention_review.h"

#include <stdlib.h>

#include "store/index/index_writer.h"
#include "store/retention/retention_rewrite.h"
#include "store/segment/segment_list.h"
#include "store/segment/segment_log.h"

#define STEP_RUNS 128u      // most headers that one step reads
#define STEP_SEGMENTS 1024u // most entries of the segment table that one step visits

static_assert((RETENTION_REVIEW_MARKED & (STORE_REVIEW_PINNED | STORE_REVIEW_OTHERS)) == 0,
              "a bit of its own");
static_assert((RETENTION_REVIEW_LAST & (STORE_REVIEW_PINNED | STORE_REVIEW_OTHERS)) == 0 &&
                  RETENTION_REVIEW_LAST != RETENTION_REVIEW_MARKED,
              "a bit of its own");

struct retention_review {
    unsigned wants; // reviews in progress: a bit set, like retention.reviews
    uint32_t at;    // next entry of the log's table to visit
    // The segment that is reviewed now, pinned, and its runs to review. NULL: none.
    struct segment *segment;
    uint32_t number;
    uint64_t salt;
    struct segment_row *rows;
    uint32_t row_count, row_max, row_at;
    bool takes_all;
    char head[RUN_HEADER_MAX];
};

void retention_review_want(struct retention *r, unsigned reviews)
{
    if (retention_learns(r) && reviews != 0) {
        atomic_fetch_or(&r->reviews, reviews);
        retention_wake(r);
    }
}

bool retention_review_is_wanted(const struct retention *r)
{
    return atomic_load(&r->reviews) != 0 || atomic_load(&r->review) != NULL;
}

void retention_review_again(struct retention *r)
{
    if (r->reviews_again) {
        r->reviews_again = false;
        retention_review_want(r, STORE_REVIEW_PINNED);
        atomic_fetch_or(&r->reviews, RETENTION_REVIEW_LAST);
    }
}

// --- runs to review

static bool is_wanted_locked(const struct retention *r, const struct retention_review *review,
                             uint32_t header_offset)
{
    uint32_t index;
    check(review->segment != NULL);
    check(retention_is_ready(r));
    if (!policy_segment_find(r->policy, review->number, header_offset, &index)) {
        return false;
    }
    bool is_pinned = policy_segment_group(r->policy, review->number, index) == STORE_GROUP_PINS;
    return review->takes_all || (is_pinned && (review->wants & STORE_REVIEW_PINNED) != 0) ||
           (!is_pinned && (review->wants & STORE_REVIEW_OTHERS) != 0);
}

static bool on_row(void *ctx, const struct segment_row *row)
{
    struct retention *r = ctx;
    struct retention_review *review = r->review;
    check(review != NULL);
    check(review->row_count <= review->row_max);
    pthread_mutex_lock(&r->lock);
    bool is_wanted = !row->is_bad && is_wanted_locked(r, review, row->header_offset);
    pthread_mutex_unlock(&r->lock);
    if (is_wanted && review->row_count == review->row_max) {
        review->row_max = review->row_max > 0 ? 2 * review->row_max : STEP_RUNS;
        review->rows = reallocarray(review->rows, review->row_max, sizeof(*review->rows));
        check(review->rows != NULL);
    }
    if (is_wanted) {
        review->rows[review->row_count++] = *row;
    }
    return !retention_stopping(r);
}

static bool has_pins(struct retention *r, uint32_t number)
{
    bool has = false;
    pthread_mutex_lock(&r->lock);
    uint32_t count = policy_segment_run_count(r->policy, number);
    for (uint32_t i = 0; i < count && !has; i++) {
        has = policy_segment_group(r->policy, number, i) == STORE_GROUP_PINS;
    }
    pthread_mutex_unlock(&r->lock);
    return has;
}

static void segment_begin(struct retention *r, struct segment *segment, uint32_t number)
{
    struct retention_review *review = r->review;
    struct retention_segment *known = retention_segment_of(r, segment);
    check(number != 0);
    check(review->segment == NULL); // only one segment is reviewed at a time
    review->takes_all = known->wants_review;
    known->wants_review = false;
    review->number = number;
    review->row_count = review->row_at = 0;
    bool looks = review->takes_all || (review->wants & STORE_REVIEW_OTHERS) != 0 ||
                 ((review->wants & STORE_REVIEW_PINNED) != 0 && has_pins(r, number));
    if (!looks || !segment_pin(segment, number)) {
        return;
    }
    review->segment = segment;
    if (segment_list(segment, on_row, r, &review->salt) != ERR_OK) {
        review->row_count = 0;
    }
}

static void segment_end(struct retention *r)
{
    struct retention_review *review = r->review;
    check(review->row_at <= review->row_count);
    if (review->segment != NULL) {
        bool is_over = review->row_at == review->row_count;
        retention_segment_of(r, review->segment)->wants_review |= review->takes_all && !is_over;
        segment_unpin(review->segment);
        review->segment = NULL;
    }
}

// --- names of runs

// Returns true if it has queued the removal of the run, because its name is gone.
static bool run_regroup(struct retention *r, const struct segment_row *row, int fd)
{
    struct retention_review *review = r->review;
    struct store_place place = segment_row_place(row, review->number, review->salt);
    struct run_header header;
    check(review->segment != NULL);
    check(place.segment_number == review->number);
    place.segment = review->segment;
    if (retention_head_read(r->disk, &place, fd, review->head, &header) != ERR_OK) {
        return false; // skip the run: if a client reads it later, that read reports the error
    }
    pthread_mutex_lock(&r->names.lock);
    bool knows = r->names.group_of != NULL;
    unsigned group = knows
                         ? r->names.group_of(r->names.ctx, header.realm, header.bucket, header.key)
                         : STORE_PRIORITY_NORMAL;
    pthread_mutex_unlock(&r->names.lock);
    if (group == STORE_GROUP_GONE) {
        index_writer_remove_later(r->writer, header.hash, &place, false);
        return true;
    }
    uint32_t index;
    pthread_mutex_lock(&r->lock);
    if (knows && policy_segment_find(r->policy, review->number, row->header_offset, &index) &&
        policy_segment_group(r->policy, review->number, index) != retention_policy_group(group)) {
        policy_segment_regroup(r->policy, review->number, index, retention_policy_group(group));
    }
    pthread_mutex_unlock(&r->lock);
    return false;
}

static void runs_regroup(struct retention *r)
{
    struct retention_review *review = r->review;
    bool any_gone = false;
    int fd;
    check(review->segment != NULL);
    check(review->row_at <= review->row_count);
    if (review->row_at < review->row_count && segment_borrow_wait(review->segment, &fd) == ERR_OK) {
        uint32_t end = (uint32_t)min_u64(review->row_count, review->row_at + STEP_RUNS);
        for (; review->row_at < end && !retention_stopping(r); review->row_at++) {
            any_gone |= run_regroup(r, &review->rows[review->row_at], fd);
        }
        segment_return(review->segment);
    } else {
        review->row_at = review->row_count;
    }
    if (any_gone) { // so that the writer's queue has room for the removals of the next step
        (void)index_writer_flush(r->writer); // a removal that failed leaves its run as it was
    }
    if (review->row_at == review->row_count) {
        segment_end(r);
    }
}

// --- all segments

// Adds the newly wanted reviews to the review in progress, which then starts over. Creates the
// review if there is none.
static void rounds_join(struct retention *r)
{
    if (atomic_load(&r->reviews) == 0) {
        return;
    }
    struct retention_review *review = r->review;
    if (review == NULL) {
        review = calloc(1, sizeof(*review));
        check(review != NULL);
        // Set `review` before `reviews` is cleared, so that retention_review_is_wanted() never
        // misses the review.
        atomic_store(&r->review, review);
    }
    unsigned wants = atomic_exchange(&r->reviews, 0);
    r->reviews_again = r->reviews_again ||
                       ((wants & STORE_REVIEW_PINNED) != 0 && (wants & RETENTION_REVIEW_LAST) == 0);
    check(wants != 0); // only this thread clears `reviews`
    review->wants |= wants;
    review->at = 0;
    segment_end(r);
}

void retention_review_end(struct retention *r)
{
    if (r->review != NULL) {
        segment_end(r);
        struct retention_review *review = atomic_exchange(&r->review, NULL);
        free(review->rows);
        free(review);
    }
}

static bool is_ready(struct retention *r)
{
    pthread_mutex_lock(&r->names.lock);
    bool knows = r->names.group_of != NULL;
    pthread_mutex_unlock(&r->names.lock);
    return knows && retention_is_ready(r);
}

bool retention_review_step(struct retention *r)
{
    struct segment_log *log = r->log;
    if ((atomic_load(&r->reviews) == 0 && r->review == NULL) || !is_ready(r)) {
        return false;
    }
    rounds_join(r);
    check(r->review != NULL);
    check(retention_learns(r));
    struct retention_review *review = r->review;
    for (unsigned i = 0;
         i < STEP_SEGMENTS && review->segment == NULL && review->at <= log->table_mask;
         i++, review->at++) {
        struct segment *segment = &log->table[review->at];
        uint32_t number = atomic_load(&segment->number);
        if (number != 0) {
            segment_begin(r, segment, number);
        }
    }
    if (review->segment != NULL) {
        runs_regroup(r);
    }
    if (review->segment != NULL || review->at <= log->table_mask) {
        return true;
    }
    retention_review_end(r);
    return atomic_load(&r->reviews) != 0;
}

// SPDX-License-Identifier: Apache-2.0
// Moves stored runs to the groups that their names now have. All functions run on the retention
// thread, unless a comment says any thread.
#ifndef FOREBAY_STORE_RETENTION_REVIEW_H
#define FOREBAY_STORE_RETENTION_REVIEW_H

#include "store/retention/retention.h"

// Reviews in addition to enum store_review:
//
// All runs of the segments for which retention_segment.wants_review is set.
#define RETENTION_REVIEW_MARKED 4u
// A flag that retention_review_again() adds to the review for which it asks. After a review with
// this flag, no further one is due.
#define RETENTION_REVIEW_LAST 8u

// Asks for these reviews. Any thread.
void retention_review_want(struct retention *retention, unsigned reviews);
// Returns true if a review is wanted or in progress. Any thread.
bool retention_review_is_wanted(const struct retention *retention);
// Reviews a few more runs. Returns true if there is more to do.
bool retention_review_step(struct retention *retention) MUST_USE;
// Asks for one more review of pinned runs, if one is due. Runs that began under the previous list
// of pins may have been stored since the last review.
void retention_review_again(struct retention *retention);
// Cancels the review in progress.
void retention_review_end(struct retention *retention);

#endif

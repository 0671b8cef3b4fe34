// SPDX-License-Identifier: Apache-2.0
// Moves stored runs to the groups that their names now have. On the retention thread, unless said
// otherwise.
#ifndef FOREBAY_STORE_RETENTION_REVIEW_H
#define FOREBAY_STORE_RETENTION_REVIEW_H

#include "store/retention/retention.h"

// In addition to enum store_review: all runs of the segments that are marked (wants_review).
#define RETENTION_REVIEW_MARKED 4u
#define RETENTION_REVIEW_LAST 8u // no other review follows this one

// Asks for these reviews. Any thread.
void retention_review_want(struct retention *retention, unsigned reviews);
// Returns true if a review is wanted or in progress. Any thread.
bool retention_review_is_wanted(const struct retention *retention);
// Reviews a few more runs. Returns true if there is more to do.
bool retention_review_step(struct retention *retention) MUST_USE;
// Asks for one more review. Runs that began under the previous list may have been stored since the
// last one.
void retention_review_again(struct retention *retention);
// Cancels the review in progress.
void retention_review_end(struct retention *retention);

#endif

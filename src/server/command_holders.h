// SPDX-License-Identifier: Apache-2.0
// The origins and realms to which the store assigns numbers; see command_holders.c.
#ifndef FOREBAY_SERVER_COMMAND_HOLDERS_H
#define FOREBAY_SERVER_COMMAND_HOLDERS_H

#include "base/error.h"

struct access_keys;
struct origin;
struct proxy_bucket;
struct store_holder;

// Returns the origins, followed by the realms of the loaded table (NULL: none), and by the names
// that buckets have at their origins. The caller frees the list with free(). The list points to the
// names in `origins` and `table`, and owns the others.
struct store_holder *command_holders_list(struct origin *const *origins, unsigned origin_count,
                                          const struct access_keys *table,
                                          const struct proxy_bucket *buckets, unsigned bucket_count,
                                          unsigned *ret_count);
// Passes the assigned numbers to the origins and the table. Errors: ERR_NO_MEMORY.
enum err command_holders_apply(const struct store_holder *holders, struct origin *const *origins,
                               unsigned origin_count, struct access_keys *table) MUST_USE;

#endif

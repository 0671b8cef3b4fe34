// SPDX-License-Identifier: Apache-2.0
// Who holds copies, see command_holders.c.
#ifndef FOREBAY_SERVER_COMMAND_HOLDERS_H
#define FOREBAY_SERVER_COMMAND_HOLDERS_H

#include "base/error.h"

struct access_keys;
struct origin;
struct store_holder;

// Origins first, then the realms of a table as it was loaded (NULL: none). For free(); names are
// those of origins and table.
struct store_holder *command_holders_list(struct origin *const *origins, unsigned origin_count,
                                          const struct access_keys *table, unsigned *ret_count);
// They have their numbers now. ERR_NO_MEMORY.
enum err command_holders_apply(const struct store_holder *holders, struct origin *const *origins,
                               unsigned origin_count, struct access_keys *table) MUST_USE;

#endif

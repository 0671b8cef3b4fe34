// SPDX-License-Identifier: Apache-2.0
// Under whose names copies may lie, see store_holder.c.
#ifndef FOREBAY_STORE_STORE_HOLDER_H
#define FOREBAY_STORE_STORE_HOLDER_H

struct store;
struct store_holder;
// At the opening, with `format` read and not yet written.
void store_holders_load(struct store *store, struct store_holder *holders, unsigned count);

#endif

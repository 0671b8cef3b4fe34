// SPDX-License-Identifier: Apache-2.0
// Lists the origins and realms of this process for the store, and applies the numbers that the
// store assigns to them (state_holder.c). Runs on the main thread.
#include "server/command_holders.h"

#include <stdlib.h>

#include "auth/auth.h"
#include "base/check.h"
#include "origin/origin.h"
#include "s3/s3.h"
#include "store/store.h"

struct store_holder *command_holders_list(struct origin *const *origins, unsigned origin_count,
                                          const struct access_keys *table, unsigned *ret_count)
{
    size_t realm_count = 0;
    const struct span *realms = table != NULL ? access_keys_realms(table, &realm_count) : NULL;
    struct store_holder *holders = calloc(origin_count + realm_count + 1, sizeof(*holders));
    check(holders != NULL);
    for (unsigned i = 0; i < origin_count; i++) {
        holders[i] = (struct store_holder){.kind = SPAN("origin"),
                                           .name = span_from_cstr(origin_name(origins[i])),
                                           .is_origin = true,
                                           .was_shared = origin_name_was_shared(origins[i])};
    }
    for (size_t i = 0; i < realm_count; i++) {
        holders[origin_count + i] = (struct store_holder){.kind = SPAN("realm"), .name = realms[i]};
    }
    *ret_count = origin_count + (unsigned)realm_count;
    return holders;
}

enum err command_holders_apply(const struct store_holder *holders, struct origin *const *origins,
                               unsigned origin_count, struct access_keys *table)
{
    for (unsigned i = 0; i < origin_count; i++) {
        origin_set_number(origins[i], holders[i].number);
    }
    size_t realm_count = 0;
    uint64_t numbers[ACCESS_KEYS_REALMS_MAX];
    if (table == NULL) {
        return ERR_OK;
    }
    (void)access_keys_realms(table, &realm_count);
    check(realm_count <= ACCESS_KEYS_REALMS_MAX);
    for (size_t i = 0; i < realm_count; i++) {
        numbers[i] = holders[origin_count + i].number;
    }
    return access_keys_number_realms(table, numbers);
}

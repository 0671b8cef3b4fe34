// SPDX-License-Identifier: Apache-2.0
// Lists the origins and realms of this process for the store, and applies the numbers that the
// store assigns to them (state_holder.c). Runs on the main thread.
#include "server/command_holders.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "auth/auth.h"
#include "base/check.h"
#include "origin/origin.h"
#include "proxy/proxy.h"
#include "s3/s3.h"
#include "store/store.h"

// Maximum groups of the buckets that have another name at their origin. The store keeps only some
// hundred holders.
#define NAME_GROUPS 64u
#define NAME_GROUP_MAX 24u // bytes of a group's text

static uint64_t hash_text(const char *text, uint64_t seed)
{
    return hash64(text, strlen(text), seed);
}

// Lists the names that buckets have at their origins, if these are not the names that clients use.
// A change of one is then seen as a holder that leaves: another name may be one of the same bucket.
// Returns their number. `texts` receives their texts.
static unsigned list_names(const struct proxy_bucket *buckets, unsigned count,
                           struct store_holder *ret_holders, char (*texts)[NAME_GROUP_MAX])
{
    uint64_t groups[NAME_GROUPS] = {0};
    for (unsigned i = 0; i < count; i++) {
        const struct proxy_bucket *b = &buckets[i];
        if (strcmp(b->name, b->origin_bucket) != 0) {
            uint64_t name = hash_text(b->name, 0);
            uint64_t place = hash_text(origin_place(b->origin), name);
            groups[name % NAME_GROUPS] ^= hash_text(b->origin_bucket, place); // in any order
        }
    }
    unsigned listed = 0;
    for (unsigned i = 0; i < NAME_GROUPS; i++) {
        if (groups[i] != 0) {
            (void)snprintf(texts[listed], NAME_GROUP_MAX, "%u %016llx", i,
                           (unsigned long long)groups[i]);
            ret_holders[listed] = (struct store_holder){.kind = SPAN("bucket"),
                                                        .name = span_from_cstr(texts[listed])};
            listed++;
        }
    }
    return listed;
}

struct store_holder *command_holders_list(struct origin *const *origins, unsigned origin_count,
                                          const struct access_keys *table,
                                          const struct proxy_bucket *buckets, unsigned bucket_count,
                                          unsigned *ret_count)
{
    size_t realm_count = 0;
    const struct span *realms = table != NULL ? access_keys_realms(table, &realm_count) : NULL;
    size_t max = origin_count + realm_count + NAME_GROUPS;
    struct store_holder *holders = calloc(1, max * sizeof(*holders) + NAME_GROUPS * NAME_GROUP_MAX);
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
    unsigned count = origin_count + (unsigned)realm_count;
    char(*texts)[NAME_GROUP_MAX] = (char(*)[NAME_GROUP_MAX])(holders + max);
    *ret_count = count + list_names(buckets, bucket_count, holders + count, texts);
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

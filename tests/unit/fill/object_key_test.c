// SPDX-License-Identifier: Apache-2.0
// Proves: the names under which keys are stored, and the reuse of a released key's memory.
#include "fill/object_key.h"

#include <stdlib.h>
#include <string.h>

#include "test.h"

static struct object_key *make(struct object_key **spare, const char *name)
{
    struct object_key from = {.realm = SPAN("realm"),
                              .bucket = SPAN("bucket"),
                              .key = span_from_cstr(name),
                              .epoch = 7,
                              .limits = {.cache = true, .block_size_bytes = 65536}};
    return object_key_new_in(spare, NULL, &from);
}

static void expect(const struct object_key *key, const char *name)
{
    cr_assert(span_equal_cstr(key->key, name), "%zu", key->key.len);
    cr_assert(span_equal_cstr(key->bucket, "bucket"));
    cr_assert(span_starts_with(key->realm, SPAN("realm|")));
    cr_assert(key->realm_own_len == 5 && key->epoch == 7 && key->limits.cache);
    cr_assert_eq(object_key_realm_epoch(key->realm), 7);
    cr_assert_eq(object_key_realm_epoch(SPAN("realm|origin\0011")), 0);
    cr_assert(key->table == NULL && key->credentials == NULL);
}

// Proves that a hit after a hit allocates no memory, unless its names are longer than the buffer.
Test(object_key, memory_of_the_last_one_is_used_again)
{
    struct object_key *spare = NULL;
    struct object_key *first = make(&spare, "0");
    expect(first, "0");
    object_key_unref_to(first, &spare);
#ifndef FOREBAY_ASAN
    cr_assert(spare == first);
#endif
    struct object_key *second = make(&spare, "0 and more");
    expect(second, "0 and more");
    cr_assert(spare == NULL);
#ifndef FOREBAY_ASAN
    cr_assert(second == first);
#endif
    object_key_unref_to(second, &spare);
    char name[1025];
    memset(name, '1', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    struct object_key *third = make(&spare, name);
    expect(third, name);
    object_key_unref_to(third, &spare);
    struct object_key *fourth = make(&spare, "1");
    expect(fourth, "1");
    object_key_unref(fourth);
    cr_assert(spare == NULL);
}

// Proves that memory with a reference is not given to another key.
Test(object_key, a_shared_key_keeps_its_memory)
{
    struct object_key *spare = NULL;
    struct object_key *key = make(&spare, "0");
    struct object_key *kept = object_key_ref(key);
    object_key_unref_to(key, &spare);
    cr_assert(spare == NULL);
    struct object_key *next = make(&spare, "1");
    cr_assert(next != kept);
    expect(kept, "0");
    cr_assert(object_key_asks_alike(kept, next));
    next->limits.cache = false;
    cr_assert_not(object_key_asks_alike(kept, next));
    object_key_unref(next);
    object_key_unref_to(kept, &spare);
    free(spare);
}

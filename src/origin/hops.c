// SPDX-License-Identifier: Apache-2.0
// Detects requests that loop. Each request to an origin has a Via header (RFC 9110, 7.6.3) that
// names this process, after the proxies that the client's request named.
//
// So a request that arrives with our own name has come back: through another Forebay, a load
// balancer, or a host name that leads here. A load balancer may send each round to another of its
// members. So a request that names more Forebays than anybody chains counts as a loop too.
//
// This works only if each member passes on the whole path so far. A fill cannot, because its
// readers came by many paths. Two Forebays whose fills wait for each other would never finish. So a
// request from another Forebay joins no fill before the origin has given an answer other than a
// timeout or 508 (origin_has_answered()).
//
// All functions are pure, except that the name of the process is random. Any thread.
#include <stdatomic.h>
#include <stdio.h>

#include "base/random.h"
#include "origin/origin_private.h"

#define HOPS_MAX 8u
#define NAME_PREFIX "forebay-"
#define NAME_LEN (sizeof(NAME_PREFIX) - 1 + 16)

static const char *own_name(void)
{
    static _Atomic uint64_t shared;
    static _Thread_local char name[NAME_LEN + 1];
    if (name[0] != '\0') {
        return name;
    }
    uint64_t number = atomic_load(&shared);
    if (number == 0) {
        uint64_t fresh = random_u64() | 1;
        number = atomic_compare_exchange_strong(&shared, &number, fresh) ? fresh : number;
    }
    (void)snprintf(name, sizeof(name), NAME_PREFIX "%016llx", (unsigned long long)number);
    return name;
}

// Adds the Forebays in one Via header to *hops. Returns false if this process is among them.
static bool count_hops(struct span via, unsigned *hops)
{
    struct span piece, word;
    const char *name = own_name();
    while (span_split(&via, ',', &piece)) {
        while (span_split(&piece, ' ', &word)) {
            if (span_equal_cstr(word, name)) {
                return false;
            }
            *hops += word.len == NAME_LEN && span_starts_with(word, SPAN(NAME_PREFIX));
        }
    }
    return true;
}

enum err origin_hops_judge(const struct headers *client, unsigned *ret_hops)
{
    unsigned hops = 0;
    for (unsigned i = 0; i < client->count; i++) {
        if (span_equal_nocase(client->items[i].name, SPAN("Via")) &&
            !count_hops(client->items[i].value, &hops)) {
            return ERR_LOOP;
        }
    }
    *ret_hops = hops;
    return hops > HOPS_MAX ? ERR_LOOP : ERR_OK;
}

bool origin_hops_add(struct arena *arena, const struct headers *client, struct headers *headers)
{
    for (unsigned i = 0; client != NULL && i < client->count; i++) {
        if (span_equal_nocase(client->items[i].name, SPAN("Via")) &&
            !headers_add(headers, arena, SPAN("Via"), client->items[i].value)) {
            return false;
        }
    }
    const char *own = arena_printf(arena, "1.1 %s", own_name());
    return own != NULL && headers_add(headers, arena, SPAN("Via"), span_from_cstr(own));
}

void origin_hops_learn(struct origin *origin, unsigned status)
{
    if (status == 508) {
        atomic_store(&origin->has_answered, false);
    } else if (status < 500 && !atomic_load(&origin->has_answered)) {
        atomic_store(&origin->has_answered, true);
    }
}

void origin_hops_doubt(struct origin *origin)
{
    atomic_store(&origin->has_answered, false);
}

bool origin_has_answered(const struct origin *origin)
{
    return !origin->driver->capabilities.is_remote || atomic_load(&origin->has_answered);
}

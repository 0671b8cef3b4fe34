// SPDX-License-Identifier: Apache-2.0
// The names of an origin. The driver sets them, because it knows the region. Any thread.
#include <stdlib.h>
#include <string.h>

#include "origin/origin_private.h"

const char *origin_name(const struct origin *origin)
{
    return origin->name;
}

bool origin_name_was_shared(const struct origin *origin)
{
    return origin->name_was_shared;
}

char *origin_name_at(const struct origin *origin, const char *endpoint)
{
    const char *bucket = origin->options.bucket;
    struct buf text;
    buf_init(&text, 16384);
    buf_append_cstr(&text, endpoint);
    buf_printf(&text, "%s%s", bucket != NULL ? "#" : "", bucket != NULL ? bucket : "");
    char *name = strdup(buf_cstr(&text));
    check(name != NULL);
    buf_done(&text);
    return name;
}

const char *origin_shown(const struct origin *origin)
{
    return origin->shown;
}

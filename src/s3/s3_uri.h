// SPDX-License-Identifier: Apache-2.0
// Parses the URIs that people use to name cached data: s3://BUCKET/KEY. Pure.
#ifndef FOREBAY_S3_S3_URI_H
#define FOREBAY_S3_S3_URI_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"

struct s3_uri {
    struct span bucket, key; // views; an empty key means the bucket
    bool is_prefix;          // names a bucket, or ended in '/' or '*'; the '*' is not in `key`
};
// Returns false if the text is no such URI. *ret_why is then the reason in a few words.
bool s3_uri_parse(struct span text, struct s3_uri *ret_uri, const char **ret_why);
// Returns true if the key has a '*' that is not at its end. Such a '*' is part of the key, which
// may not be what the user meant. *ret_prefix is then the text up to and including the first one.
bool s3_uri_has_star(struct span text, const struct s3_uri *uri, struct span *ret_prefix);
// Parses the URI of one object. The key is taken literally, even if it ends in '/' or '*'.
bool s3_uri_parse_object(struct span text, struct s3_uri *ret_uri, const char **ret_why);
// Parses "A-B", inclusive as in HTTP, or "A-". *ret_end is exclusive; it is UINT64_MAX for "A-".
bool s3_uri_parse_range(struct span text, uint64_t *ret_first, uint64_t *ret_end);

#endif

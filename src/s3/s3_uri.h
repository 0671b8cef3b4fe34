// SPDX-License-Identifier: Apache-2.0
// Parses the URIs that people use to name cached data: s3://BUCKET/KEY, or BUCKET/KEY in short.
// Pure.
#ifndef FOREBAY_S3_S3_URI_H
#define FOREBAY_S3_S3_URI_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"

struct s3_uri {
    struct span bucket, key; // views into the parsed text; an empty key stands for the whole bucket
    bool is_prefix; // the URI names a bucket, or ends in '/' or '*'; `key` is without the '*'
};
// Returns false, with the reason in *ret_why in a few words, if the text is not such a URI. A whole
// bucket is s3://BUCKET or BUCKET/.
bool s3_uri_parse(struct span text, struct s3_uri *ret_uri, const char **ret_why);
// Returns true if the parsed key has a '*', which s3_uri_parse() removes only at the end. That '*'
// is part of the key, but the user may have meant a pattern. *ret_prefix becomes the text up to and
// including the first '*'.
bool s3_uri_has_star(struct span text, const struct s3_uri *uri, struct span *ret_prefix);
// Parses the URI of one object. The key is taken literally, even if it ends in '/' or '*'.
bool s3_uri_parse_object(struct span text, struct s3_uri *ret_uri, const char **ret_why);
// Parses "A-B" (B included, as in HTTP) or "A-". *ret_end is the position after the last byte;
// UINT64_MAX for "A-".
bool s3_uri_parse_range(struct span text, uint64_t *ret_first, uint64_t *ret_end);

#endif

// SPDX-License-Identifier: Apache-2.0
// How people name what is cached: s3://BUCKET/KEY. Pure.
#ifndef FOREBAY_S3_S3_URI_H
#define FOREBAY_S3_S3_URI_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"

struct s3_uri {
    struct span bucket, key; // views; key empty: the bucket
    bool is_prefix; // the bucket, what ends in '/', and what ends in '*' (which key is without)
};
// False: no such URI; *ret_why says in a few words what is wrong.
bool s3_uri_parse(struct span text, struct s3_uri *ret_uri, const char **ret_why);
// A '*' that does not stand at the end is a letter of the key, which may not be what was meant:
// then *ret_prefix is the text up to and with the first one.
bool s3_uri_has_star(struct span text, const struct s3_uri *uri, struct span *ret_prefix);
// An object's, its key by the letter, also one that ends in '/' or '*'.
bool s3_uri_parse_object(struct span text, struct s3_uri *ret_uri, const char **ret_why);
// "A-B", inclusive as in HTTP, or "A-": *ret_end is exclusive, UINT64_MAX for the latter.
bool s3_uri_parse_range(struct span text, uint64_t *ret_first, uint64_t *ret_end);

#endif

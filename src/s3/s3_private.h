// SPDX-License-Identifier: Apache-2.0
// Shared by the files of this room.
#ifndef FOREBAY_S3_S3_PRIVATE_H
#define FOREBAY_S3_S3_PRIVATE_H

#include "s3/s3.h"

#define SIGV4_REGION_MAX 128u
#define SIGV4_SERVICE_MAX 32u
// "20130524/us-east-1/s3/aws4_request"
#define SIGV4_SCOPE_MAX (8 + 1 + SIGV4_REGION_MAX + 1 + SIGV4_SERVICE_MAX + sizeof("/aws4_request"))

// 32 bytes; `ret_mac` may be `key`.
void hmac_sha256(const void *key, size_t key_len, struct span data, uint8_t *ret_mac);

#endif

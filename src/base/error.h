// SPDX-License-Identifier: Apache-2.0
// The errors, from the table errors.def. A function that may fail returns enum err, and its caller
// must use the result. ERR_OK is 0.
#ifndef FOREBAY_BASE_ERROR_H
#define FOREBAY_BASE_ERROR_H

#include <stdbool.h>

#include "base/check.h"

enum err {
    ERR_OK = 0,
#define ERROR(name, status, s3_code, retry, text) ERR_##name,
#include "base/errors.def"
#undef ERROR
    ERR_COUNT_
};

// Says whether the same request may be sent to the origin again.
enum err_retry {
    RETRY_NEVER,
    RETRY_SAFE // a safe request may be retried within the retry budget
};

struct error_row {
    const char *name;    // "ORIGIN_TIMEOUT"
    unsigned status;     // HTTP status towards an S3 client
    const char *s3_code; // "ServiceUnavailable"
    enum err_retry retry;
    const char *text; // one sentence, no secrets
};

// Return values are never NULL. Any thread.
const struct error_row *error_row(enum err err);
const char *error_name(enum err err);

// Maps the errno of a file operation: ENOSPC/EDQUOT -> ERR_DISK_FULL, ENOMEM -> ERR_NO_MEMORY,
// ENOENT/ENOTDIR -> ERR_NOT_FOUND, EACCES/EPERM -> ERR_PERMISSION, else ERR_IO.
enum err error_from_errno(int errno_value);

#endif

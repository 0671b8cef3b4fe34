// SPDX-License-Identifier: Apache-2.0
// The rows of errors.def. Immutable; any thread.
#include "base/error.h"

#include <errno.h>

static const struct error_row rows[ERR_COUNT_] = {
    [ERR_OK] = {"OK", 200, "OK", RETRY_NEVER, "no error"},
#define ERROR(name, status, s3_code, retry, text)                                                  \
    [ERR_##name] = {#name, status, s3_code, retry, text},
#include "base/errors.def"
#undef ERROR
};

const struct error_row *error_row(enum err err)
{
    check((unsigned)err < ERR_COUNT_);
    return &rows[err];
}

const char *error_name(enum err err)
{
    return error_row(err)->name;
}

enum err error_from_errno(int errno_value)
{
    switch (errno_value) {
    case ENOSPC:
    case EDQUOT:
        return ERR_DISK_FULL;
    case ENOMEM:
        return ERR_NO_MEMORY;
    case ENOENT:
    case ENOTDIR:
        return ERR_NOT_FOUND;
    case EACCES:
    case EPERM:
        return ERR_PERMISSION;
    default:
        return ERR_IO;
    }
}

// SPDX-License-Identifier: Apache-2.0
#include "origin/origin_private.h"
const struct origin_driver origin_s3_driver;
enum err origin_s3_open(struct origin *origin, struct buf *ret_why)
{
    (void)origin;
    (void)ret_why;
    return ERR_INVALID;
}

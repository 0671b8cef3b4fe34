// SPDX-License-Identifier: Apache-2.0
#include "base/human.h"

#include <stdio.h>

#include "base/bytes.h"

const char *human_bytes(double bytes, char ret_text[HUMAN_BYTES_MAX])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    unsigned unit = 0;
    while (bytes >= 1024 && unit + 1 < ARRAY_LEN(units)) {
        bytes /= 1024;
        unit++;
    }
    (void)snprintf(ret_text, HUMAN_BYTES_MAX, unit == 0 ? "%.0f %s" : "%.1f %s", bytes,
                   units[unit]);
    return ret_text;
}

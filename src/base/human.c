// SPDX-License-Identifier: Apache-2.0
#include "base/human.h"

#include <math.h>
#include <stdio.h>

#include "base/bytes.h"

static const char *render(double bytes, double factor, const char *const units[7],
                          char ret_text[HUMAN_BYTES_MAX])
{
    unsigned unit = 0;
    while (bytes >= factor && unit + 1 < 7) {
        bytes /= factor;
        unit++;
    }
    (void)snprintf(ret_text, HUMAN_BYTES_MAX, unit == 0 ? "%.0f %s" : "%.1f %s", bytes,
                   units[unit]);
    return ret_text;
}

const char *human_bytes(double bytes, char ret_text[HUMAN_BYTES_MAX])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    return render(bytes, 1024, units, ret_text);
}

const char *human_bytes_decimal(double bytes, char ret_text[HUMAN_BYTES_MAX])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    return render(bytes, 1000, units, ret_text);
}

static double round_up(double bytes, double factor)
{
    double step = 1, unit = factor; // step: what one more in the last digit shown means
    for (; bytes >= unit; unit *= factor) {
        step = unit / 10;
    }
    return ceil(bytes / step) * step;
}

double human_bytes_up(double bytes)
{
    return round_up(bytes, 1024);
}

double human_bytes_decimal_up(double bytes)
{
    return round_up(bytes, 1000);
}

const char *human_time(int64_t time_s, char ret_text[HUMAN_TIME_MAX])
{
    const int64_t hour_s = 3600, day_s = 24 * hour_s;
    int64_t unit_s = time_s >= 2 * day_s ? day_s : time_s >= 2 * hour_s ? hour_s : 60;
    const char *unit = unit_s == day_s ? "days" : unit_s == hour_s ? "hours" : "min";
    (void)snprintf(ret_text, HUMAN_TIME_MAX, "%lld %s", (long long)(time_s / unit_s), unit);
    return ret_text;
}

const char *human_wait(uint64_t wait_us, char ret_text[HUMAN_TIME_MAX])
{
    bool is_s = wait_us >= 999500, is_ms = wait_us >= 1000;
    double wait = (double)wait_us / (is_s ? 1e6 : is_ms ? 1e3 : 1);
    (void)snprintf(ret_text, HUMAN_TIME_MAX, "%.*f %s", is_ms && wait < 9.95 ? 1 : 0, wait,
                   is_s    ? "s"
                   : is_ms ? "ms"
                           : "us");
    return ret_text;
}

const char *human_clock(uint64_t wall_s, char ret_text[HUMAN_TIME_MAX])
{
    unsigned day_s = (unsigned)(wall_s % 86400); // days of Unix time have no leap seconds
    (void)snprintf(ret_text, HUMAN_TIME_MAX, "%02u:%02u:%02u UTC", day_s / 3600, day_s / 60 % 60,
                   day_s % 60);
    return ret_text;
}

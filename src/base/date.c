// SPDX-License-Identifier: Apache-2.0
// The date formats that HTTP, S3 and SigV4 use. Pure; any thread.
#include "base/date.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"

static const char day_names[7][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
static const char long_day_names[7][10] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                           "Thursday", "Friday", "Saturday"};
static const char month_names[12][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                        "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};

// Splits a time into its fields. No format can express a year outside 1 to 9999, so such a time
// becomes the epoch.
static void split_time(time_t t, struct tm *ret_tm)
{
    if (gmtime_r(&t, ret_tm) == NULL || ret_tm->tm_year < -1899 || ret_tm->tm_year > 8099) {
        time_t epoch = 0;
        check(gmtime_r(&epoch, ret_tm) != NULL);
    }
}

void date_format_http(time_t t, char *ret_date)
{
    struct tm tm;
    split_time(t, &tm);
    char text[64];
    int len = snprintf(text, sizeof(text), "%s, %02d %s %04d %02d:%02d:%02d GMT",
                       day_names[tm.tm_wday], tm.tm_mday, month_names[tm.tm_mon], tm.tm_year + 1900,
                       tm.tm_hour, tm.tm_min, tm.tm_sec);
    check(len == DATE_HTTP_LEN);
    memcpy(ret_date, text, DATE_HTTP_LEN + 1);
}

void date_format_iso(time_t t, unsigned ms, char *ret_date)
{
    struct tm tm;
    split_time(t, &tm);
    char text[64];
    int len = snprintf(text, sizeof(text), "%04d-%02d-%02dT%02d:%02d:%02d.%03uZ", tm.tm_year + 1900,
                       tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, ms % 1000);
    check(len == DATE_ISO_LEN);
    memcpy(ret_date, text, DATE_ISO_LEN + 1);
}

void date_format_amz(time_t t, char *ret_date)
{
    struct tm tm;
    split_time(t, &tm);
    char text[64];
    int len = snprintf(text, sizeof(text), "%04d%02d%02dT%02d%02d%02dZ", tm.tm_year + 1900,
                       tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec);
    check(len == DATE_AMZ_LEN);
    memcpy(ret_date, text, DATE_AMZ_LEN + 1);
}

// --- Parsing: each take_ function removes its piece from the front of *rest ----------------------

static bool take(struct span *rest, struct span literal)
{
    if (!span_starts_with(*rest, literal)) {
        return false;
    }
    rest->ptr += literal.len;
    rest->len -= literal.len;
    return true;
}

// Removes `count` digits, at most four, from the front of *rest.
static inline bool take_digits(struct span *rest, size_t count, int *ret_value)
{
    int value = 0;
    if (rest->len < count) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        unsigned digit = (unsigned char)rest->ptr[i] - (unsigned)'0';
        if (digit > 9) {
            return false;
        }
        value = value * 10 + (int)digit;
    }
    rest->ptr += count;
    rest->len -= count;
    *ret_value = value;
    return true;
}

static bool take_month(struct span *rest, int *ret_month)
{
    for (int i = 0; i < 12; i++) {
        if (take(rest, (struct span){month_names[i], 3})) {
            *ret_month = i;
            return true;
        }
    }
    return false;
}

static bool take_clock(struct span *rest, struct tm *tm)
{
    return take_digits(rest, 2, &tm->tm_hour) && take(rest, SPAN(":")) &&
           take_digits(rest, 2, &tm->tm_min) && take(rest, SPAN(":")) &&
           take_digits(rest, 2, &tm->tm_sec);
}

static bool is_leap_year(int year)
{
    return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

// Returns the number of days since 1 January 1970. The years of the formula begin in March, so that
// the leap day is the last day of its year.
static int64_t days_since_1970(int64_t year, int month, int day)
{
    int64_t y = month < 2 ? year - 1 : year;
    int64_t leap_days = y < 0 ? -1 : y / 4 - y / 100 + y / 400; // rounded down
    int months_since_march = (month + 10) % 12;
    return y * 365 + leap_days + (153 * months_since_march + 2) / 5 + day - 1 - 719468;
}

// Converts the fields to a time. Refuses a date that does not exist, such as 31 February, which
// timegm() would silently change. Does not call timegm(), because it takes a lock, and every signed
// request has a time.
static bool join_time(struct tm *tm, time_t *ret_t)
{
    static const int month_days[12] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    if (tm->tm_mon < 0 || tm->tm_mon > 11 || tm->tm_hour > 23 || tm->tm_min > 59 ||
        tm->tm_sec > 60) {
        return false;
    }
    int last = month_days[tm->tm_mon] + (tm->tm_mon == 1 && is_leap_year(tm->tm_year + 1900));
    if (tm->tm_mday < 1 || tm->tm_mday > last) {
        return false;
    }
    int64_t days = days_since_1970(tm->tm_year + 1900, tm->tm_mon, tm->tm_mday);
    *ret_t = ((days * 24 + tm->tm_hour) * 60 + tm->tm_min) * 60 + tm->tm_sec;
    return true;
}

static bool parse_imf_fixdate(struct span s, struct tm *tm)
{
    for (int i = 0; i < 7; i++) {
        if (take(&s, (struct span){day_names[i], 3})) {
            int year;
            bool ok = take(&s, SPAN(", ")) && take_digits(&s, 2, &tm->tm_mday) &&
                      take(&s, SPAN(" ")) && take_month(&s, &tm->tm_mon) && take(&s, SPAN(" ")) &&
                      take_digits(&s, 4, &year) && take(&s, SPAN(" ")) && take_clock(&s, tm) &&
                      take(&s, SPAN(" GMT")) && s.len == 0;
            tm->tm_year = ok ? year - 1900 : 0;
            return ok;
        }
    }
    return false;
}

// Completes a two-digit year. A year that would be more than 50 years ahead belongs to the last
// century.
static int full_year(int year)
{
    time_t now = (time_t)clock_wall_s();
    struct tm tm;
    split_time(now, &tm);
    int this_year = tm.tm_year + 1900;
    int candidate = this_year - this_year % 100 + year;
    return candidate > this_year + 50 ? candidate - 100 : candidate;
}

static bool parse_rfc850(struct span s, struct tm *tm)
{
    for (int i = 0; i < 7; i++) {
        if (take(&s, span_from_cstr(long_day_names[i]))) {
            int year;
            bool ok = take(&s, SPAN(", ")) && take_digits(&s, 2, &tm->tm_mday) &&
                      take(&s, SPAN("-")) && take_month(&s, &tm->tm_mon) && take(&s, SPAN("-")) &&
                      take_digits(&s, 2, &year) && take(&s, SPAN(" ")) && take_clock(&s, tm) &&
                      take(&s, SPAN(" GMT")) && s.len == 0;
            tm->tm_year = ok ? full_year(year) - 1900 : 0;
            return ok;
        }
    }
    return false;
}

static bool parse_asctime(struct span s, struct tm *tm)
{
    for (int i = 0; i < 7; i++) {
        if (take(&s, (struct span){day_names[i], 3})) {
            int year;
            bool ok = take(&s, SPAN(" ")) && take_month(&s, &tm->tm_mon) && take(&s, SPAN(" ")) &&
                      (take(&s, SPAN(" ")) ? take_digits(&s, 1, &tm->tm_mday)
                                           : take_digits(&s, 2, &tm->tm_mday)) &&
                      take(&s, SPAN(" ")) && take_clock(&s, tm) && take(&s, SPAN(" ")) &&
                      take_digits(&s, 4, &year) && s.len == 0;
            tm->tm_year = ok ? year - 1900 : 0;
            return ok;
        }
    }
    return false;
}

bool date_parse_http(struct span s, time_t *ret_t)
{
    struct tm tm = {0};
    s = span_trim(s);
    if (parse_imf_fixdate(s, &tm)) {
        return join_time(&tm, ret_t);
    }
    tm = (struct tm){0};
    if (parse_rfc850(s, &tm)) {
        return join_time(&tm, ret_t);
    }
    tm = (struct tm){0};
    return parse_asctime(s, &tm) && join_time(&tm, ret_t);
}

bool date_parse_amz(struct span s, time_t *ret_t)
{
    struct tm tm = {0};
    int year;
    if (!take_digits(&s, 4, &year) || !take_digits(&s, 2, &tm.tm_mon) ||
        !take_digits(&s, 2, &tm.tm_mday) || !take(&s, SPAN("T")) ||
        !take_digits(&s, 2, &tm.tm_hour) || !take_digits(&s, 2, &tm.tm_min) ||
        !take_digits(&s, 2, &tm.tm_sec) || !take(&s, SPAN("Z")) || s.len != 0) {
        return false;
    }
    if (year == 0 || tm.tm_sec > 59) {
        // date_format_amz() cannot write such a time: year 0, or a leap second
        return false;
    }
    tm.tm_year = year - 1900;
    tm.tm_mon -= 1;
    return join_time(&tm, ret_t);
}

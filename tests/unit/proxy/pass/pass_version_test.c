// SPDX-License-Identifier: Apache-2.0
// Proves: a read past the cache reports the version of its answer to the key's home. The client
// gets the answer afterwards, whatever happens in between.
#include "proxy/ask.h"

#include "test.h"

#include <string.h>

static void ask_past(const char *method, const char *target)
{
    ask_init(method, target);
    doors.holds_told = true;
    ask_start();
    cr_assert(doors.relay_running);
}

// The answers that name a version.
Test(pass_version, an_answer_that_names_a_version_is_reported_to_the_home)
{
    static const struct {
        const char *method, *target, *etag;
        unsigned status;
        const char *told; // NULL: nobody
    } rows[] = {
        {"GET", "/b/k?partNumber=2", "\"e\"", 206, "\"e\""},
        {"HEAD", "/b/k?partNumber=2", "\"e\"", 200, "\"e\""},
        {"GET", "/b/k?partNumber=2", "W/\"e\"", 200, "\"e\""},
        {"GET", "/b/k?partNumber=2", "\"e\"", 304, "\"e\""},
        {"GET", "/b/k?partNumber=2", "", 200, NULL},
        {"GET", "/b/k?partNumber=2", "", 404, ""},
        {"GET", "/b/k?partNumber=2", "", 416, "asked"},
        {"GET", "/b/k?partNumber=2", "", 412, "asked"},
        {"GET", "/b/k?partNumber=2", "", 403, NULL},
        {"GET", "/b/k?nothing", "\"e\"", 200, "\"e\""},
        {"GET", "/b/k?nothing", "", 404, NULL},
        {"GET", "/b/k?versionId=v", "\"e\"", 200, NULL},
        {"GET", "/b/k?versionId=v&VersionID=v", "\"e\"", 200, NULL},
        {"GET", "/b/k?acl", "\"e\"", 200, NULL},
        {"GET", "/b?list-type=2", "\"e\"", 200, NULL},
        {"GET", "/b?nothing", "\"e\"", 200, NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        ask_past(rows[i].method, rows[i].target);
        doors.etag = rows[i].etag;
        ask_origin_head(rows[i].status, 0);
        cr_assert_eq(doors.tells, rows[i].told != NULL, "row %zu", i);
        cr_assert_eq(doors.replies, rows[i].told == NULL, "row %zu", i);
        cr_assert(rows[i].told == NULL || strcmp(doors.told_etag, rows[i].told) == 0, "row %zu", i);
        doors_told();
        doors_relay_end(ERR_OK);
        cr_assert_eq(doors.replies, 1, "row %zu", i);
        cr_assert_eq(doors.reply.status, rows[i].status, "row %zu", i);
        ask_finish();
    }
}

// The origin continues and ends, with or without an error, before the home has answered.
Test(pass_version, the_origin_is_faster)
{
    for (unsigned is_broken = 0; is_broken < 2; is_broken++) {
        ask_past("GET", "/b/k?partNumber=2");
        ask_origin_head(206, 5);
        ask_origin_body("he");
        ask_origin_body(is_broken ? "" : "llo");
        doors_relay_end(is_broken ? ERR_ORIGIN_RESET : ERR_OK);
        cr_assert_eq(doors.replies + doors.failures, 0);
        doors_told();
        cr_assert_eq(doors.replies, 1);
        cr_assert_eq(ask_reads(), is_broken ? HTTP_PULL_CUT : HTTP_PULL_END);
        cr_assert(span_equal_cstr(buf_span(&ask.received), is_broken ? "he" : "hello"));
        ask_finish();
    }
}

// The client does not wait for it.
Test(pass_version, the_client_leaves)
{
    for (unsigned has_ended = 0; has_ended < 2; has_ended++) {
        ask_past("GET", "/b/k?partNumber=2");
        ask_origin_head(206, 5);
        if (has_ended) {
            doors_relay_end(ERR_OK);
        }
        ask_exchange_ends();
        cr_assert_null(doors.telling);
        if (!has_ended) {
            cr_assert(doors.relay_cancelled);
            doors_relay_end(ERR_CANCELLED);
        }
        cr_assert_eq(doors.replies, 0);
        ask_finish();
    }
}

// SPDX-License-Identifier: Apache-2.0
// Proves: which lines an expression matches, and that a wrong expression is refused with the
// position.
#include "test.h"

#include "control/admin_private.h"

static const char LINE[] =
    "{\"ts\":\"2026-01-31T12:00:00.000Z\",\"id\":\"A1\",\"op\":\"GetObject\","
    "\"bucket\":\"b\",\"key\":\"a \\\"q\\\",}\\u00ff/7.tar\",\"status\":200,"
    "\"result\":\"miss\",\"bytes\":1048576,\"ttfb_ms\":120.500,\"total_ms\":250.000,"
    "\"ua\":\"\"}\n";

Test(admin_where, an_expression_matches_the_right_lines)
{
    static const struct {
        const char *text;
        bool holds;
    } cases[] = {
        {"result=miss", true},
        {"result=hit", false},
        {"result!=hit", true},
        {"result = miss and ttfb>0.1", true},
        {"result=miss and ttfb>100ms", true},
        {"result=miss and ttfb>0.2s", false},
        {"ttfb_ms>=120.5", true},
        {"ttfb_ms<120.5", false},
        {"total<=250ms and total>249999us", true},
        {"bytes=1MiB", true},
        {"bytes<1MB", false},
        {"status>=400 or result=miss", true},
        {"result=hit or result=miss and status=500", false}, // and binds closer
        {"(result=hit or result=miss) and status=200", true},
        {"not result=hit", true},
        {"not not result=hit", false},
        {"not (result=miss and status=200)", false},
        {"NOT result=hit AND status=200", true},
        {"key~7.tar", true},
        {"key!~7.tar", false},
        {"key^='a \"q'", true},
        {"key^=q", false},
        {"key='a \"q\",}\xc3\xbf/7.tar'", true},
        {"ua=''", true},
        {"error=x", false}, // it is not there
        {"error!=x", true},
        {"error~''", false},
        {"attempts>0", false},
        {"attempts<=0", false},
        {"attempts!=3", true},
    };
    char why[ADMIN_WHERE_WHY_MAX];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct admin_where *where = admin_where_new(cases[i].text, why);
        cr_assert(where != NULL, "%s: %s", cases[i].text, why);
        cr_assert_eq(admin_where_holds(where, SPAN(LINE)), cases[i].holds, "%s", cases[i].text);
        admin_where_free(where);
    }
}

Test(admin_where, a_wrong_where_is_refused_with_its_position)
{
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"", "where: a term is wanted, FIELD=VALUE, at \"\""},
        {"result=miss and", "where: a term is wanted, FIELD=VALUE, at \"\""},
        {"result miss", "where: = != ~ !~ ^= < <= > or >= is wanted at \"miss\""},
        {"result>miss", "where: this field is no number at \">miss\""},
        {"status~2", "where: this field is no text at \"~2\""},
        {"status=2x", "where: a number is wanted at \"2x\""},
        {"status=10ms", "where: a number is wanted at \"10ms\""},
        {"ttfb>1MiB", "where: a number is wanted at \"1MiB\""},
        {"result=", "where: a value is wanted at \"\""},
        {"result='x", "where: a quote is not closed at \"x\""},
        {"(result=x", "where: a parenthesis is not closed at \"\""},
        {"result=x)", "where: a parenthesis is not opened at \")\""},
        {"result=x result=y", "where: and, or is wanted at \"result=y\""},
        {"=x", "where: a field is wanted at \"=x\""},
    };
    char why[ADMIN_WHERE_WHY_MAX];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        cr_assert(admin_where_new(cases[i].text, why) == NULL, "%s", cases[i].text);
        cr_assert_str_eq(why, cases[i].why);
    }
    cr_assert(admin_where_new("result=miss and reslt=hit", why) == NULL);
    cr_assert(span_starts_with(span_from_cstr(why),
                               SPAN("where: no such field: reslt; fields are ts, id, trace_id")));
    cr_assert(span_ends_with(span_from_cstr(why), SPAN(", attempts, ua")), "%s", why);
}

Test(admin_where, is_bounded)
{
    char text[4096], why[ADMIN_WHERE_WHY_MAX];
    struct buf b;
    buf_init(&b, sizeof(text));
    for (int i = 0; i < 33; i++) {
        buf_append_cstr(&b, i > 0 ? " or id=x" : "id=x");
    }
    cr_assert(admin_where_new(buf_cstr(&b), why) == NULL);
    b.len -= strlen(" or id=x");
    struct admin_where *where = admin_where_new(buf_cstr(&b), why);
    cr_assert(where != NULL, "%s", why);
    admin_where_free(where);
    b.len = 0;
    for (int i = 0; i < 1000; i++) {
        buf_append_cstr(&b, "(");
    }
    cr_assert(admin_where_new(buf_cstr(&b), why) == NULL);
    b.len = 0;
    for (int i = 0; i < 3000; i++) {
        buf_append_cstr(&b, " ");
    }
    cr_assert(admin_where_new(buf_cstr(&b), why) == NULL);
    buf_done(&b);
}

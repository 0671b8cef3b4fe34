// SPDX-License-Identifier: Apache-2.0
// Rules are found by the first glob that matches bucket/key, in time that no pattern can blow up.
#include "proxy/core/core.h"

#include <string.h>

#include "test.h"

static bool matches(const char *pattern, const char *text)
{
    return rules_glob_match(pattern, span_from_cstr(text));
}

// Every sign of the glob does what the configuration says, at the beginning, in the middle and at
// the end.
Test(rules, glob)
{
    static const struct {
        const char *pattern, *text;
        bool matches;
    } rows[] = {
        {"**", "a/b/c", true},
        {"**", "", true},
        {"", "", true},
        {"", "a", false},
        {"imagenet/**", "imagenet/train/x", true},
        {"imagenet/**", "imagenet/", true},
        {"imagenet/**", "imagenet", false},
        {"imagenet/**", "imagenet2/x", false},
        {"*/manifests/**", "ckpt/manifests/a/b", true},
        {"*/manifests/**", "a/b/manifests/c", false},
        {"**/manifests/*", "a/b/manifests/c", true},
        {"**/manifests/*", "a/b/manifests/c/d", false},
        {"b/*.tar", "b/x.tar", true},
        {"b/*.tar", "b/x.tar.gz", false},
        {"b/*.tar", "b/x/y.tar", false},
        {"b/**.tar", "b/x/y.tar", true},
        {"b/?.txt", "b/a.txt", true},
        {"b/?.txt", "b/.txt", false},
        {"b?a", "b/a", false},
        {"{a,b}/**", "a/x", true},
        {"{a,b}/**", "b/x", true},
        {"{a,b}/**", "c/x", false},
        {"b/{x*,y?}.bin", "b/xyz.bin", true},
        {"b/{x*,y?}.bin", "b/y1.bin", true},
        {"b/{x*,y?}.bin", "b/y12.bin", false},
        {"b/{,pre-}k", "b/k", true},
        {"b/{,pre-}k", "b/pre-k", true},
        {"b/{a}", "b/a", true},
        {"b/\\*", "b/*", true},
        {"b/\\*", "b/a", false},
        {"b/\\{a", "b/{a", true},
        {"b/\\*\\,x", "b/*,x", true},
        {"b/\\*\\,x", "b/*,y", false},
        {"b/\\**", "b/*x", true},
        {"b/\\***", "b/*x/y", true},
        {"b/k\\", "b/k", false},
        {"b/k\\", "b/k\\", false},
        {"b/{a", "b/{a", true},
        {"b/a,c", "b/a,c", true},
        {"b/a,c", "b/a", false},
        {"b/{a,c},d", "b/c,d", true},
        {"b/{a\\,c,d}", "b/a,c", true},
        {"b/{a\\,c,d}", "b/a", false},
        {"***", "x/y", true},
        {"a**b**c", "a//b//c", true},
        {"a**b**c", "a//b//d", false},
        {"a/*", "a/", true},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        cr_expect(matches(rows[i].pattern, rows[i].text) == rows[i].matches, "%s against %s",
                  rows[i].pattern, rows[i].text);
    }
}

// A pattern made to backtrack ends at once, and one that is too long matches nothing.
Test(rules, no_blow_up)
{
    char text[1280];
    memset(text, 'a', sizeof(text));
    struct span span = {text, sizeof(text)};
    cr_assert(!rules_glob_match("b/**", span));
    cr_assert(!rules_glob_match("**a**a**a**a**a**a**a**a**a**a**a**a**a**a**a**b", span));
    cr_assert(rules_glob_match("**a**a**a**a**a**a**a**a**a**a**a**a**a**a**a**", span));
    char pattern[1200];
    memset(pattern, '*', sizeof(pattern) - 1);
    pattern[sizeof(pattern) - 1] = '\0';
    cr_assert(!rules_glob_match(pattern, span));
}

// The first rule that matches wins and the last one takes the rest, bucket level included.
Test(rules, first_wins)
{
    struct proxy_rule rules[] = {{.match = "imagenet/val/**"},
                                 {.match = "imagenet/**"},
                                 {.match = "ckpt/**"},
                                 {.match = "**"}};
    struct live live = {.settings = {.rules = rules, .rule_count = ARRAY_LEN(rules)}};
    cr_assert_eq(rules_find(&live, SPAN("imagenet"), SPAN("val/1.jpg")), &rules[0]);
    cr_assert_eq(rules_find(&live, SPAN("imagenet"), SPAN("train/1.jpg")), &rules[1]);
    cr_assert_eq(rules_find(&live, SPAN("ckpt"), (struct span){0}), &rules[2]);
    cr_assert_eq(rules_find(&live, SPAN("other"), SPAN("x")), &rules[3]);
    cr_assert_eq(rules_find(&live, (struct span){0}, (struct span){0}), &rules[3]);
}

// SPDX-License-Identifier: Apache-2.0
// Proves: a text is cut and wrapped by the columns that it takes on a terminal, and never inside a
// character.
#include "test.h"

#include "commands/commands.h"

#include <stdio.h>
#include <stdlib.h>

static unsigned width(const char *text)
{
    return command_screen_width(span_from_cstr(text));
}

Test(screen, columns_are_those_that_a_terminal_shows)
{
    cr_assert_eq(width(""), 0u);
    cr_assert_eq(width("abc"), 3u);
    cr_assert_eq(width("Zürich"), 6u);
    cr_assert_eq(width("▁▂█"), 3u);
    cr_assert_eq(width("東京"), 4u);
    cr_assert_eq(width("한국"), 4u);
    cr_assert_eq(width("\xf0\x9f\x90\xb3"), 2u);          // a whale
    cr_assert_eq(width("\033[1;31mDEGRADED\033[0m"), 8u); // a colour takes none
    cr_assert_eq(width("a\tb"), 9u);
    cr_assert_eq(width("\xff\xfe"), 2u); // no UTF-8
    cr_assert_eq(width("\xe6\x9d"), 1u); // cut off
}

Test(screen, a_line_is_cut_between_characters)
{
    cr_assert_eq(command_screen_fit(span_from_cstr("abc"), 0), 3u);
    cr_assert_eq(command_screen_fit(span_from_cstr("abc"), 2), 2u);
    cr_assert_eq(command_screen_fit(span_from_cstr("東京"), 3), 3u);
    cr_assert_eq(command_screen_fit(span_from_cstr("\033[1mab"), 1), 5u);
}

static const char *text_of(struct buf *out)
{
    static char text[256];
    (void)snprintf(text, sizeof(text), "%s", buf_cstr(out));
    buf_done(out);
    return text;
}

static const char *end_of(const char *text, unsigned columns)
{
    struct buf out;
    buf_init(&out, 256);
    command_screen_append_end(&out, span_from_cstr(text), columns);
    return text_of(&out);
}

static const char *wrapped(const char *text, unsigned columns, unsigned indent)
{
    struct buf out;
    buf_init(&out, 256);
    command_screen_wrap(&out, span_from_cstr(text), columns, indent);
    return text_of(&out);
}

Test(screen, a_name_that_is_too_long_keeps_its_end)
{
    cr_assert_str_eq(end_of("train/7.tar", 11), "train/7.tar");
    cr_assert_str_eq(end_of("train/7.tar", 8), "../7.tar");
    cr_assert_str_eq(end_of("東京/7", 5), "../7");
    cr_assert_str_eq(end_of("abc", 1), "..");
}

Test(screen, lines_are_wrapped_at_spaces_and_indented)
{
    cr_assert_str_eq(wrapped("one two three\n", 0, 4), "one two three\n");
    cr_assert_str_eq(wrapped("one two three\n", 13, 4), "one two three\n");
    cr_assert_str_eq(wrapped("one two three\n", 10, 4), "one two\n    three\n");
    cr_assert_str_eq(wrapped("one two\n\nthree", 5, 2), "one\n  two\n\nthree");
    cr_assert_str_eq(wrapped("abcdefgh", 4, 2), "abcd\n  ef\n  gh");        // no space to wrap at
    cr_assert_str_eq(wrapped("one two", 5, 40), "one\n  two");              // too deep an indent
    cr_assert_str_eq(wrapped("  a abcdefgh", 10, 4), "  a abcdef\n    gh"); // beside its label
}

// A user who copies it from the terminal gets no line ends inside it.
Test(screen, a_command_in_backquotes_is_not_broken)
{
    cr_assert_str_eq(wrapped("run `a b c` now", 12, 4), "run `a b c`\n    now");
    cr_assert_str_eq(wrapped("then run `a b c`, or", 14, 2), "then run\n  `a b c`, or");
    cr_assert_str_eq(wrapped("run (`a b c`)", 8, 2), "run\n  (`a b c`)");
    cr_assert_str_eq(wrapped("`a b` or `c d e f g h`", 8, 2), "`a b` or\n  `c d e f g h`");
    cr_assert_str_eq(wrapped("`a b c d e` end\nnext", 6, 2), "`a b c d e`\n  end\nnext");
    cr_assert_str_eq(wrapped("one ` two three", 10, 2), "one ` two\n  three"); // no second one
}

Test(screen, the_environment_says_whether_the_terminal_shows_utf8)
{
    cr_assert(setenv("LANG", "C.UTF-8", 1) == 0 && unsetenv("LC_ALL") == 0);
    cr_assert(unsetenv("LC_CTYPE") == 0);
    cr_assert(command_screen_has_utf8());
    cr_assert(setenv("LC_ALL", "C", 1) == 0); // wins
    cr_assert_not(command_screen_has_utf8());
}

// SPDX-License-Identifier: Apache-2.0
#include "commands/command_screen.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "commands/commands.h"

#define OUTPUT_MAX_BYTES (1u << 20)
#define TAB_COLUMNS 8u
#define INDENT_MIN 2u
#define CUT ".."
#define CUT_COLUMNS 2u

static struct winsize size_of(int fd)
{
    struct winsize size = {0};
    if (ioctl(fd, TIOCGWINSZ, &size) != 0) {
        size = (struct winsize){0};
    }
    return size;
}

bool command_screen_is_wanted(bool is_once)
{
    return !is_once && !commands_common()->is_json && isatty(STDOUT_FILENO) == 1;
}

unsigned command_screen_columns(int fd)
{
    unsigned columns = size_of(fd).ws_col;
    return columns == 0 && isatty(fd) == 1 ? COMMAND_SCREEN_COLUMNS : columns;
}

bool command_screen_has_utf8(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const char *value = getenv(names[i]);
        if (value != NULL && value[0] != '\0') { // the first one decides
            return strcasestr(value, "UTF-8") != NULL || strcasestr(value, "UTF8") != NULL;
        }
    }
    return false;
}

unsigned command_screen_rows(bool is_screen, unsigned rows)
{
    unsigned all = is_screen ? size_of(STDOUT_FILENO).ws_row : 0;
    return all > 1 ? all - 1 : rows; // the last row stays empty
}

// --- columns -------------------------------------------------------------------------------------

// Returns the length of an escape sequence that sets a colour; 0 if the text begins with none.
static size_t colour_len(struct span text)
{
    size_t len = 2;
    if (text.len < 3 || text.ptr[0] != '\033' || text.ptr[1] != '[') {
        return 0;
    }
    while (len < text.len &&
           (text.ptr[len] == ';' || (text.ptr[len] >= '0' && text.ptr[len] <= '9'))) {
        len++;
    }
    return len < text.len && text.ptr[len] == 'm' ? len + 1 : 0;
}

// Returns the bytes of the first character, and its columns at the column `at`. A byte that is not
// UTF-8 counts as a character.
static size_t character(struct span text, unsigned at, unsigned *ret_columns)
{
    unsigned char first = (unsigned char)text.ptr[0];
    size_t want = first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4, len = 1;
    size_t colour = colour_len(text);
    while (len < want && len < text.len && (text.ptr[len] & 0xc0) == 0x80) {
        len++;
    }
    // From U+2E80 on; U+1100 to U+115F, which are wide, too, begin with E1 84 or E1 85.
    bool is_wide =
        len == 4 ||
        (len == 3 && (first > 0xe2 || (first == 0xe2 && (unsigned char)text.ptr[1] >= 0xba) ||
                      (first == 0xe1 && ((unsigned char)text.ptr[1] & 0xfe) == 0x84)));
    *ret_columns = colour > 0      ? 0
                   : first == '\t' ? TAB_COLUMNS - at % TAB_COLUMNS
                   : is_wide       ? 2
                                   : 1;
    return colour > 0 ? colour : len;
}

static size_t fit(struct span line, unsigned columns, unsigned *ret_width)
{
    size_t at = 0;
    unsigned width = 0;
    while (at < line.len) {
        unsigned more;
        size_t len = character((struct span){line.ptr + at, line.len - at}, width, &more);
        if (width + more > columns) {
            break;
        }
        width += more;
        at += len;
    }
    *ret_width = width;
    return at;
}

unsigned command_screen_width(struct span text)
{
    unsigned width;
    (void)fit(text, UINT_MAX, &width); // all of it fits
    return width;
}

size_t command_screen_fit(struct span line, unsigned columns)
{
    unsigned width;
    return columns > 0 ? fit(line, columns, &width) : line.len;
}

void command_screen_append_end(struct buf *out, struct span text, unsigned columns)
{
    unsigned width = command_screen_width(text);
    if (width <= columns) {
        buf_append_span(out, text);
        return;
    }
    while (text.len > 0 && width + CUT_COLUMNS > columns) {
        unsigned less;
        size_t len = character(text, 0, &less);
        text = (struct span){text.ptr + len, text.len - len};
        width -= less;
    }
    buf_append_cstr(out, CUT);
    buf_append_span(out, text);
}

// --- output --------------------------------------------------------------------------------------

// Returns true if the byte at `at` is inside a pair of backquotes: [*ret_first, *ret_end).
static bool is_in_command(struct span line, size_t at, size_t *ret_first, size_t *ret_end)
{
    size_t first = span_find(line, '`');
    while (first < at) {
        struct span rest = {line.ptr + first + 1, line.len - first - 1};
        size_t len = span_find(rest, '`'), end = first + 1 + len;
        if (len == rest.len || at <= end) {
            *ret_first = first;
            *ret_end = end + 1;
            return len < rest.len;
        }
        rest = (struct span){line.ptr + end + 1, line.len - end - 1};
        first = end + 1 + span_find(rest, '`');
    }
    return false;
}

// Returns the end of a row in which `len` bytes fit. A break at a space before `least` would win no
// room. A command in backquotes is not broken, so that a user can paste it: one that is too long
// for a row exceeds it. Any other word that is too long is cut.
static size_t row_end(struct span line, size_t len, size_t least)
{
    size_t command_first, command_end;
    bool is_command = is_in_command(line, len, &command_first, &command_end);
    size_t end = is_command ? command_first : len;
    while (end > 0 && line.ptr[end] != ' ') {
        end--;
    }
    while (end > 0 && line.ptr[end - 1] == ' ') {
        end--;
    }
    if (end > least) {
        return end;
    }
    if (is_command) {
        struct span rest = {line.ptr + command_end, line.len - command_end};
        return command_end + span_find(rest, ' ');
    }
    return max_u64(len, 1);
}

// Appends a line in as many rows as it needs.
static void wrap_line(struct buf *out, struct span line, unsigned columns, unsigned indent)
{
    unsigned room = columns;
    size_t len, least = indent;
    while ((len = command_screen_fit(line, room)) < line.len) {
        size_t end = row_end(line, len, least);
        buf_append(out, line.ptr, end);
        line = (struct span){line.ptr + end, line.len - end};
        while (line.len > 0 && line.ptr[0] == ' ') {
            line = (struct span){line.ptr + 1, line.len - 1};
        }
        if (line.len == 0) {
            return;
        }
        buf_printf(out, "\n%*s", (int)indent, "");
        room = columns - indent;
        least = 0;
    }
    buf_append_span(out, line);
}

void command_screen_wrap(struct buf *out, struct span text, unsigned columns, unsigned indent)
{
    indent = indent < columns / 2 ? indent : INDENT_MIN;
    while (text.len > 0) {
        size_t len = span_find(text, '\n');
        wrap_line(out, (struct span){text.ptr, len}, columns, indent);
        buf_append_cstr(out, len < text.len ? "\n" : "");
        text = (struct span){text.ptr + len, text.len - len};
        text = text.len > 0 ? (struct span){text.ptr + 1, text.len - 1} : text;
    }
}

static PRINTF_LIKE(3, 0) void print_wrapped(FILE *to, unsigned indent, const char *format,
                                            va_list args)
{
    char *text = NULL;
    struct buf out;
    int len = vasprintf(&text, format, args);
    check(len >= 0);
    buf_init(&out, OUTPUT_MAX_BYTES);
    command_screen_wrap(&out, (struct span){text, (size_t)len}, command_screen_columns(fileno(to)),
                        indent);
    (void)fwrite(out.ptr, 1, out.len, to); // commands_result() reports a failure of stdout
    buf_done(&out);
    free(text);
}

void command_screen_print(unsigned indent, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_wrapped(stdout, indent, format, args);
    va_end(args);
}

void command_screen_tell(unsigned indent, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_wrapped(stderr, indent, format, args);
    va_end(args);
}

void command_screen_inform(unsigned indent, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!commands_common()->is_quiet) {
        print_wrapped(stderr, indent, format, args);
    }
    va_end(args);
}

void command_screen_inform_more(unsigned indent, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (commands_common()->is_verbose) {
        print_wrapped(stderr, indent, format, args);
    }
    va_end(args);
}

void command_screen_row(struct span line)
{
    size_t len = command_screen_fit(line, command_screen_columns(STDOUT_FILENO));
    printf("%.*s\n", (int)len, line.ptr);
}

void command_screen_row_named(struct buf *line, const char *name)
{
    unsigned columns = command_screen_columns(STDOUT_FILENO);
    unsigned used = command_screen_width(buf_span(line));
    command_screen_append_end(line, span_from_cstr(name),
                              columns == 0     ? UINT_MAX
                              : columns > used ? columns - used
                                               : 1);
    command_screen_row(buf_span(line));
}

void command_screen_show(struct span frame, bool is_screen, unsigned rows)
{
    struct span line;
    unsigned columns = command_screen_columns(STDOUT_FILENO);
    rows = command_screen_rows(is_screen, rows);
    if (is_screen) {
        printf("\033[H\033[J");
    }
    for (unsigned i = 0; i < rows && frame.len > 0 && span_split(&frame, '\n', &line); i++) {
        size_t len = command_screen_fit(line, columns);
        while (len > 0 && line.ptr[len - 1] == ' ') {
            len--;
        }
        printf("%.*s\n", (int)len, line.ptr);
    }
    (void)fflush(stdout); // commands_result() reports a failure
}

// SPDX-License-Identifier: Apache-2.0
#include "cli/client/command_log_line.h"

#include "base/human.h"

// Fields that are a text for people, the best one first.
static const char *const texts[] = {"text", "hint", "why", "reason", "effect"};

struct field {
    struct span name, value; // the value without its quotes, but with its escapes
};

// Takes the next field off the line. Returns false at the end of the line.
static bool take_field(struct span *line, struct field *ret_field)
{
    *line = span_trim(*line);
    size_t equals = span_find(*line, '=');
    if (equals == line->len) {
        return false;
    }
    ret_field->name = (struct span){line->ptr, equals};
    struct span rest = {line->ptr + equals + 1, line->len - equals - 1};
    bool is_quoted = rest.len > 0 && rest.ptr[0] == '"';
    size_t begin = is_quoted ? 1 : 0, end = begin;
    while (end < rest.len && rest.ptr[end] != (is_quoted ? '"' : ' ')) {
        end += is_quoted && rest.ptr[end] == '\\' && end + 1 < rest.len ? 2 : 1;
    }
    ret_field->value = (struct span){rest.ptr + begin, end - begin};
    end += is_quoted && end < rest.len ? 1 : 0;
    *line = (struct span){rest.ptr + end, rest.len - end};
    return true;
}

static bool find_field(struct span line, const char *name, struct span *ret_value)
{
    struct field field;
    while (take_field(&line, &field)) {
        if (span_equal_cstr(field.name, name)) {
            *ret_value = field.value;
            return field.value.len > 0;
        }
    }
    return false;
}

// Appends the name of an event or a field, with spaces instead of underscores.
static void append_name(struct buf *out, struct span name)
{
    for (size_t i = 0; i < name.len; i++) {
        buf_append_char(out, name.ptr[i] == '_' ? ' ' : name.ptr[i]);
    }
}

// Appends a text without the backslashes of escaped quotes. Its underscores stay, because they are
// parts of settings, paths and variables.
static void append_text(struct buf *out, struct span text)
{
    for (size_t i = 0; i < text.len; i++) {
        bool is_escaped = text.ptr[i] == '\\' && i + 1 < text.len &&
                          (text.ptr[i + 1] == '"' || text.ptr[i + 1] == '\\');
        i += is_escaped;
        buf_append_char(out, text.ptr[i]);
    }
}

// Appends " NAME VALUE". A size in bytes loses the unit of its name, and gets one of its own.
static void append_field(struct buf *out, const struct field *field)
{
    const struct span unit = SPAN("_bytes");
    struct span name = field->name;
    char bytes[HUMAN_BYTES_MAX];
    uint64_t value;
    bool is_size = span_ends_with(name, unit) && span_to_u64(field->value, &value);
    name.len -= is_size ? unit.len : 0;
    append_name(out, name);
    buf_append_char(out, ' ');
    if (is_size) {
        buf_append_cstr(out, human_bytes((double)value, bytes));
    } else {
        buf_append_span(out, field->value);
    }
}

static void append_all(struct buf *out, struct span line)
{
    struct field field;
    const char *before = " (";
    while (take_field(&line, &field)) {
        if (!span_equal_cstr(field.name, "ts") && !span_equal_cstr(field.name, "level") &&
            !span_equal_cstr(field.name, "event") && !span_equal_cstr(field.name, "remedy")) {
            buf_append_cstr(out, before);
            append_field(out, &field);
            before = ", ";
        }
    }
    buf_append_cstr(out, before[0] == ',' ? ")" : "");
}

// Only the line of a condition has a severity. The name of the condition says more than the event.
struct span command_log_line_name(struct span line, bool *ret_is_condition)
{
    struct span name = {NULL, 0}, severity;
    *ret_is_condition = find_field(line, "severity", &severity);
    return find_field(line, *ret_is_condition ? "name" : "event", &name) ? name : SPAN("");
}

void command_log_line_append(struct buf *out, struct span line)
{
    struct span value;
    size_t i = 0;
    bool is_condition;
    append_name(out, command_log_line_name(line, &is_condition));
    while (i < ARRAY_LEN(texts) && !find_field(line, texts[i], &value)) {
        i++;
    }
    if (i < ARRAY_LEN(texts)) {
        buf_append_cstr(out, ": ");
        append_text(out, value);
    } else {
        append_all(out, line);
    }
    if (find_field(line, "remedy", &value)) {
        buf_append_cstr(out, "; ");
        append_text(out, value);
    }
}

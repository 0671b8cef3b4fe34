// SPDX-License-Identifier: Apache-2.0
// The part of `forebay help WORD` that describes settings. WORD is a key (cache.ttl), a section
// (cache), the end of a key (ttl), a list of the file (rules), or a field of a list (rules.ttl,
// freshness).
#include "cli/cli_private.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORDS_MAX 512u
#define INDENT 2u
#define FACT_COLUMN 14u  // of a setting
#define KEY_COLUMN 26u   // of a section
#define FIELD_COLUMN 20u // of a list

unsigned command_help_columns(void)
{
    unsigned columns = command_screen_columns(STDOUT_FILENO);
    return columns > 0 ? columns : COMMAND_SCREEN_COLUMNS;
}

static const char *or_none(const char *text)
{
    return text[0] != '\0' ? text : "none";
}

// Appends text that fits the terminal. Further rows of a line begin at the column `indent`.
PRINTF_LIKE(3, 4)
static void append(struct buf *out, unsigned indent, const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int len = vasprintf(&text, format, args);
    va_end(args);
    check(len >= 0);
    command_screen_wrap(out, (struct span){text, (size_t)len}, command_help_columns(), indent);
    free(text);
}

// --- settings ------------------------------------------------------------------------------------

static bool is_in_section(const char *key, const char *section)
{
    size_t len = strlen(section);
    return strncmp(key, section, len) == 0 && key[len] == '.';
}

static bool is_end_of(const char *key, const char *name)
{
    const char *dot = strchr(key, '.');
    return dot != NULL && strcmp(dot + 1, name) == 0;
}

// Appends the fields of lists whose default is the setting.
static void append_fields_of(struct buf *out, const char *key)
{
    for (unsigned i = 0; i < config_field_count(); i++) {
        const struct config_field field = config_field(i);
        if (strcmp(field.default_text, key) == 0) {
            append(out, FACT_COLUMN, "  in lists    %s[].%s: %s\n", field.list, field.name,
                   field.help);
        }
    }
}

static void append_facts(struct buf *out, const char *accepts, const char *default_text,
                         bool is_live)
{
    append(out, FACT_COLUMN, "  values      %s\n  default     %s\n  changed by  %s\n", accepts,
           or_none(default_text), is_live ? "reload" : "restart");
}

static void append_setting(struct buf *out, const struct config_setting *row)
{
    char name[CONFIG_NAME_MAX];
    const char *value = row->default_text[0] != '\0' ? row->default_text : "VALUE";
    const char *dot = strchr(row->key, '.');
    config_environment_name(row->key, name);
    append(out, INDENT, "%s: %s\n\n", row->key, row->help);
    append_facts(out, row->accepts, row->default_text, row->live);
    append(out, FACT_COLUMN, "  flag        --%s %s\n  variable    %s=%s\n  file        ", row->key,
           value, name, value);
    append(out, FACT_COLUMN, "%.*s%s%s: %s%s\n", dot != NULL ? (int)(dot - row->key) : 0, row->key,
           dot != NULL ? ": {" : "", dot != NULL ? dot + 1 : row->key, value,
           dot != NULL ? "}" : "");
    append_fields_of(out, row->key);
    buf_append_char(out, '\n');
}

// --- lists ---------------------------------------------------------------------------------------

static void append_example(struct buf *out, const struct config_list *list)
{
    struct span rest = span_from_cstr(list->example), line;
    buf_append_cstr(out, "An example, in the file that -c names:\n\n");
    while (span_split(&rest, '\n', &line)) {
        buf_printf(out, "  %.*s\n", (int)line.len, line.ptr);
    }
    buf_append_char(out, '\n');
}

static void append_list(struct buf *out, const struct config_list *list)
{
    append(out, INDENT, "%s: %s\n\n", list->name, list->help);
    for (unsigned i = 0; i < config_field_count(); i++) {
        const struct config_field field = config_field(i);
        if (strcmp(field.list, list->name) == 0) {
            append(out, FIELD_COLUMN, "  %-17s %s (%s)\n", field.name, field.help, field.accepts);
        }
    }
    buf_append_char(out, '\n');
    append_example(out, list);
}

static void append_field(struct buf *out, const struct config_field *field)
{
    append(out, INDENT, "%s[].%s: %s\n\n", field->list, field->name, field->help);
    append_facts(out, field->accepts, field->default_text, true);
    buf_append_char(out, '\n');
    append_example(out, config_list_of(span_from_cstr(field->list)));
}

// Returns true if the word is one of the choices a|b|c.
static bool is_choice(const char *accepts, const char *word)
{
    struct span rest = span_from_cstr(accepts), piece;
    bool is_one = false;
    while (!is_one && strchr(accepts, '|') != NULL && span_split(&rest, '|', &piece)) {
        is_one = span_equal_cstr(piece, word);
    }
    return is_one;
}

// Returns true if the word names the field, with or without its list, or one of its values.
static bool is_field(const struct config_field *field, const char *word)
{
    const struct config_list *list = config_list_of(span_from_cstr(word));
    const char *dot = strchr(word, '.');
    if (list != NULL && dot != NULL) {
        return strcmp(list->name, field->list) == 0 && strcmp(field->name, dot + 1) == 0;
    }
    return strcmp(field->name, word) == 0 || is_choice(field->accepts, word);
}

// --- the words of help ---------------------------------------------------------------------------

// Appends the setting of that key. Returns false if there is none.
static bool append_key(struct buf *out, const char *word)
{
    for (unsigned i = 0; i < config_setting_count(); i++) {
        if (strcmp(config_setting(i)->key, word) == 0) {
            append_setting(out, config_setting(i));
            return true;
        }
    }
    return false;
}

static void append_section(struct buf *out, const char *word)
{
    for (unsigned i = 0; i < config_setting_count(); i++) {
        const struct config_setting *row = config_setting(i);
        if (is_in_section(row->key, word)) {
            append(out, KEY_COLUMN, "%-25s %s (%s)\n", row->key, row->help,
                   or_none(row->default_text));
        }
    }
    buf_append_cstr(out, out->len > 0 ? "\n`forebay help KEY` tells more of one.\n\n" : "");
}

bool command_help_setting(struct buf *out, const char *word)
{
    const struct config_list *list = config_list_of(span_from_cstr(word));
    if (list != NULL && strchr(word, '.') == NULL) {
        append_list(out, list);
        return true;
    }
    if (append_key(out, word)) {
        return true;
    }
    append_section(out, word);
    for (unsigned i = 0; i < config_setting_count(); i++) {
        if (is_end_of(config_setting(i)->key, word)) {
            append_setting(out, config_setting(i));
        }
    }
    for (unsigned i = 0; i < config_field_count(); i++) {
        const struct config_field field = config_field(i);
        if (is_field(&field, word)) {
            append_field(out, &field);
        }
    }
    return out->len > 0;
}

int command_help_unknown(const char *word)
{
    const char *words[WORDS_MAX];
    unsigned count = 0;
    check(command_line_count() + config_setting_count() + config_field_count() <= WORDS_MAX);
    for (unsigned i = 0; i < command_line_count(); i++) {
        words[count++] = command_line_row(i)->name;
    }
    for (unsigned i = 0; i < config_setting_count(); i++) {
        words[count++] = config_setting(i)->key;
    }
    for (unsigned i = 0; i < config_field_count(); i++) {
        words[count++] = config_field(i).name;
    }
    const char *near = settings_suggest(span_from_cstr(word), words, count);
    near = near != NULL ? near : settings_suggest_key(span_from_cstr(word)); // may be a section
    command_screen_tell(2,
                        "forebay: %s: no such command or setting%s%s%s; `forebay help` lists "
                        "commands, `forebay config docs` settings\n",
                        commands_visible(word, strlen(word)),
                        near != NULL ? " (did you mean \"" : "", near != NULL ? near : "",
                        near != NULL ? "\"?)" : "");
    return EXIT_CODE_USAGE;
}

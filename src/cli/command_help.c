// SPDX-License-Identifier: Apache-2.0
// `forebay help [WORD]`: lists the commands, or describes a command or a setting. With --man prints
// the same tables as a manual page.
#include "cli/cli_private.h"
#include "commands/commands.h"

#include "base/version.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define OUTPUT_MAX_BYTES (1u << 20)
#define FLAG_COLUMN 26
#define HELP_COLUMN (FLAG_COLUMN + 4)
#define USAGE_COLUMN 9
#define SUMMARY_COLUMN 14
#define DETAILS_COLUMNS 90u // no line of `details` is longer

static void option_usage(struct buf *out, const struct command_option *option)
{
    buf_append_cstr(out, option->flag);
    if (option->kind != OPTION_FLAG) {
        buf_printf(out, " %s", option->value);
    }
}

// Lists the options that may also precede a command.
static void list_common(struct buf *out)
{
    static const struct command all = {.name = "", .takes = TAKES_ALL};
    static const struct command some = {.name = "",
                                        .takes = TAKES_SETTINGS | TAKES_SERVER | TAKES_OUTPUT};
    const struct command *const who[] = {&all, &some};
    static const char *const says[] = {"\n  any command:", "\n  some commands:"};
    for (size_t i = 0; i < ARRAY_LEN(who); i++) {
        const struct command_option *option = NULL;
        buf_append_cstr(out, says[i]);
        while ((option = command_line_next_option(who[i], option)) != NULL) {
            buf_append_cstr(out, "  ");
            option_usage(out, option);
        }
    }
    buf_append_char(out, '\n');
}

// Ends a group of commands. `group` is NULL before the first one.
static void list_examples(struct buf *out, const struct command_group *group)
{
    for (size_t i = 0; group != NULL && i < ARRAY_LEN(group->examples); i++) {
        buf_printf(out, "    $ %s\n", group->examples[i]);
    }
    buf_append_cstr(out, group != NULL ? "\n" : "");
}

void command_help_hint(struct buf *out)
{
    buf_append_cstr(
        out, "Forebay keeps what jobs read from S3 on a local disk. Three ways to begin:\n\n"
             "  forebay run -- python train.py   gives one command a cache of its own\n"
             "  forebay serve                    serves all programs of this host\n"
             "  forebay doctor                   says what is wrong here, with remedies\n\n");
    buf_printf(out, "`forebay help` lists all %u commands, `forebay help serve` tells about one.\n",
               command_line_count());
}

static void list_commands(struct buf *out)
{
    buf_append_cstr(out, "usage: forebay COMMAND [OPTION]... [OPERAND]...\n\n");
    const struct command_group *group = NULL;
    for (unsigned i = 0; i < command_line_count(); i++) {
        const struct command *command = command_line_row(i);
        const struct command_group *next = command_line_group(command);
        if (next != NULL) {
            list_examples(out, group);
            group = next;
            buf_printf(out, "%s\n", group->title);
        }
        buf_printf(out, "  %-10s  %s\n", command->name, command->summary);
    }
    list_examples(out, group);
    buf_append_cstr(out, "Options, before or after the command");
    list_common(out);
    buf_append_cstr(out,
                    "\n`forebay help COMMAND` tells more; `forebay help --man | man -l -` all.\n");
}

static void command_usage(struct buf *out, const struct command *command)
{
    buf_printf(out, "forebay %s", command->name);
    if (command_line_next_option(command, NULL) != NULL) {
        buf_append_cstr(out, " [OPTION]...");
    }
    if ((command->takes & TAKES_SETTINGS) != 0) {
        buf_append_cstr(out, " [--KEY VALUE]...");
    }
    if (command->operands[0] != '\0') {
        buf_printf(out, " %s", command->operands);
    }
}

// Appends the details. Their lines become one paragraph on a terminal that is too narrow for them.
static void append_details(struct buf *out, const char *details, unsigned columns)
{
    struct buf paragraph;
    if (columns >= DETAILS_COLUMNS) {
        buf_append_cstr(out, details);
        return;
    }
    buf_init(&paragraph, OUTPUT_MAX_BYTES);
    for (const char *at = details; *at != '\0'; at++) {
        buf_append_char(&paragraph, *at == '\n' && at[1] != '\0' ? ' ' : *at);
    }
    command_screen_wrap(out, buf_span(&paragraph), columns, 0);
    buf_done(&paragraph);
}

static void append_option(struct buf *out, const struct command_option *option, unsigned columns)
{
    struct buf line;
    buf_init(&line, OUTPUT_MAX_BYTES);
    buf_append_cstr(&line, "  ");
    option_usage(&line, option);
    buf_printf(&line, "%*s  %s", (int)(FLAG_COLUMN + 2 - min_u64(line.len, FLAG_COLUMN + 2)), "",
               option->help);
    if (option->default_text[0] != '\0') {
        buf_printf(&line, " (%s)", option->default_text);
    }
    buf_append_char(&line, '\n');
    command_screen_wrap(out, buf_span(&line), columns, HELP_COLUMN);
    buf_done(&line);
}

void command_help_render(const struct command *command, struct buf *out)
{
    static const struct command_option setting = {.flag = "--KEY",
                                                  .kind = OPTION_TEXT,
                                                  .value = "VALUE",
                                                  .default_text = "",
                                                  .help = "any key of `forebay config docs`"};
    unsigned columns = command_help_columns();
    const struct command_option *option = command_line_next_option(command, NULL);
    struct buf usage;
    buf_init(&usage, OUTPUT_MAX_BYTES);
    buf_append_cstr(&usage, "usage: ");
    command_usage(&usage, command);
    buf_printf(&usage, "\n\n%s\n", command->summary);
    command_screen_wrap(out, buf_span(&usage), columns, USAGE_COLUMN);
    buf_done(&usage);
    append_details(out, command->details, columns);
    buf_append_cstr(out, option != NULL ? "\n" : "");
    for (; option != NULL; option = command_line_next_option(command, option)) {
        append_option(out, option, columns);
    }
    if ((command->takes & TAKES_SETTINGS) != 0) {
        append_option(out, &setting, columns);
    }
}

// --- mdoc ----------------------------------------------------------------------------------------

// Appends a text inside a line, and quotes whatever mdoc would interpret.
static void man_text(struct buf *out, const char *text)
{
    bool is_line_start = out->len == 0 || out->ptr[out->len - 1] == '\n';
    for (; *text != '\0'; text++) {
        if (is_line_start && (*text == '.' || *text == '\'')) {
            buf_append_cstr(out, "\\&");
        }
        is_line_start = *text == '\n';
        if (text[0] == '.' && text[1] == ' ' && text[2] >= 'A' && text[2] <= 'Z') {
            buf_append_cstr(out, ".\n"); // each sentence is a line
            text++;
            continue;
        }
        if (*text == '\\') {
            buf_append_cstr(out, "\\e");
        } else if (*text == '"') {
            buf_append_cstr(out, "\\(dq");
        } else if (*text == '`') {
            buf_append_cstr(out, "\\(ga");
        } else if (*text == '\'') {
            buf_append_cstr(out, "\\(aq");
        } else if (*text == '~') {
            buf_append_cstr(out, "\\(ti");
        } else if (*text == '-') {
            buf_append_cstr(out, "\\-");
        } else {
            buf_append_char(out, *text);
        }
    }
}

// Appends a text, and ends its last line.
static void man_line(struct buf *out, const char *text)
{
    man_text(out, text);
    if (out->len > 0 && out->ptr[out->len - 1] != '\n') {
        buf_append_char(out, '\n');
    }
}

static void man_option(struct buf *out, const struct command_option *option)
{
    buf_append_cstr(out, ".It Fl ");
    man_text(out, option->flag + 1);
    if (option->kind != OPTION_FLAG) {
        buf_append_cstr(out, " Ar \"");
        man_text(out, option->value);
        buf_append_char(out, '"');
    }
    buf_append_char(out, '\n');
    man_text(out, option->help);
    if (option->default_text[0] != '\0') {
        buf_append_cstr(out, "; default: ");
        man_text(out, option->default_text);
    }
    buf_append_cstr(out, ".\n");
}

static void man_options(struct buf *out, const struct command *command)
{
    const struct command_option *option = NULL;
    bool is_open = false;
    while ((option = command_line_next_option(command, option)) != NULL) {
        if (option->command == NULL) {
            continue; // man_common() describes it once, for all commands
        }
        if (!is_open) {
            buf_append_cstr(out, ".Bl -tag -width Ds\n");
            is_open = true;
        }
        man_option(out, option);
    }
    if (is_open) {
        buf_append_cstr(out, ".El\n");
    }
}

// Describes the common options, with the commands that take them.
static void man_common(struct buf *out)
{
    static const struct {
        unsigned takes;
        const char *who;
    } groups[] = {{TAKES_ALL, "All commands take, as those below also in front of\n.Ar COMMAND ,"},
                  {TAKES_SETTINGS, "Commands that use the configuration take"},
                  {TAKES_SERVER, "Commands that ask a running server take"},
                  {TAKES_OUTPUT, "Commands with a result that other programs may read take"}};
    for (size_t i = 0; i < ARRAY_LEN(groups); i++) {
        struct command all = {.name = "", .takes = groups[i].takes};
        buf_printf(out, ".Pp\n%s\n.Bl -tag -width Ds\n", groups[i].who);
        const struct command_option *option = NULL;
        while ((option = command_line_next_option(&all, option)) != NULL) {
            man_option(out, option);
        }
        if (groups[i].takes == TAKES_SETTINGS) {
            buf_append_cstr(out, ".It Fl \\-KEY Ar VALUE\nAny key of\n.Xr forebay.yaml 5 .\n");
        }
        buf_append_cstr(out, ".El\n");
    }
}

static const char man_tail[] =
    ".Sh ENVIRONMENT\n"
    ".Bl -tag -width Ds\n"
    ".It Ev FOREBAY_CONFIG\nThe configuration file, where\n.Fl c\ndoes not name one.\n"
    ".It Ev FOREBAY_ADMIN\nWhere a running server is asked, where\n.Fl \\-admin\ndoes not say so.\n"
    ".It Ev FOREBAY_\\&*\nAny key of\n.Xr forebay.yaml 5\nin upper case, its dots as underscores.\n"
    ".It Ev NO_COLOR\nNo colour, where it is not empty.\n"
    ".El\n"
    ".Sh FILES\n"
    ".Bl -tag -width Ds\n"
    ".It Pa /etc/forebay/forebay.yaml\nThe configuration, where no other file is named.\n"
    ".El\n"
    ".Sh EXIT STATUS\n"
    ".Bl -tag -width Ds -compact\n"
    ".It 0\nDone.\n"
    ".It 1\nFailed.\n"
    ".It 2\nThe command line is not right.\n"
    ".It 3\nThe configuration is not valid.\n"
    ".It 4\nThe origin, or the credentials for it.\n"
    ".It 5\nDone in part.\n"
    ".It 6\nNo server answers.\n"
    ".El\n"
    ".Sh SEE ALSO\n"
    ".Xr forebay.yaml 5\n";

static void man_head(struct buf *out, const char *title, const char *section, const char *name,
                     const char *summary)
{
    buf_printf(out, ".Dd %s\n.Dt %s %s\n.Os forebay %s\n.Sh NAME\n.Nm %s\n.Nd %s\n", version_date(),
               title, section, version_text(), name, summary);
}

static void man_group(struct buf *out, const struct command_group *group, bool is_first)
{
    buf_printf(out, "%s.Ss %s\n", is_first ? "" : ".El\n", group->title);
    for (size_t i = 0; i < ARRAY_LEN(group->examples); i++) {
        buf_append_cstr(out, ".Dl ");
        man_text(out, group->examples[i]);
        buf_append_char(out, '\n');
    }
    buf_append_cstr(out, ".Bl -tag -width Ds\n");
}

static void man_commands(struct buf *out)
{
    man_head(out, "FOREBAY", "1", "forebay", "S3 cache on local NVMe for training jobs");
    buf_append_cstr(
        out,
        ".Sh SYNOPSIS\n.Nm\n.Op Ar OPTION ...\n.Ar COMMAND\n.Op Ar OPTION ...\n.Op Ar OPERAND ...\n"
        ".Sh DESCRIPTION\n"
        ".Nm\nspeaks S3 on this host, answers ranged reads from a cache on its disk, and "
        "asks the real object\nstore once for each byte.\n");
    for (unsigned i = 0; i < command_line_count(); i++) {
        const struct command *command = command_line_row(i);
        const struct command_group *group = command_line_group(command);
        if (group != NULL) {
            man_group(out, group, i == 0);
        }
        buf_printf(out, ".It Cm %s", command->name);
        if (command->operands[0] != '\0') {
            buf_append_cstr(out, " Ar \"");
            man_text(out, command->operands);
            buf_append_char(out, '"');
        }
        buf_append_char(out, '\n');
        man_text(out, command->summary);
        buf_append_cstr(out, ".\n");
        man_line(out, command->details);
        man_options(out, command);
    }
    buf_append_cstr(out, ".El\n");
    man_common(out);
    buf_append_cstr(out, man_tail);
}

static void man_row(struct buf *out, const char *key, const char *help, const char *accepts,
                    const char *default_text)
{
    buf_append_cstr(out, ".It Cm ");
    man_text(out, key);
    buf_append_char(out, '\n');
    man_text(out, help);
    buf_append_cstr(out, ".\nValues: ");
    man_text(out, accepts);
    buf_append_cstr(out, "; default: ");
    man_text(out, default_text[0] != '\0' ? default_text : "none");
}

// Describes the lists that only the file can have, and their fields. Ends the list of settings.
static void man_lists(struct buf *out)
{
    const struct config_list *list;
    for (unsigned i = 0; (list = config_list(i)) != NULL; i++) {
        buf_printf(out, ".El\n.Ss %s\n", list->name);
        man_text(out, list->help);
        buf_append_cstr(out, ".\nThe list can only be set in the file.\n.Bl -tag -width Ds\n");
        for (unsigned k = 0; k < config_field_count(); k++) {
            const struct config_field field = config_field(k);
            if (strcmp(field.list, list->name) == 0) {
                man_row(out, field.name, field.help, field.accepts, field.default_text);
                buf_append_cstr(out, ".\n");
            }
        }
    }
    buf_append_cstr(out, ".El\n");
}

static void man_settings(struct buf *out)
{
    man_head(out, "FOREBAY.YAML", "5", "forebay.yaml", "configuration of forebay");
    buf_append_cstr(out, ".Sh DESCRIPTION\n"
                         "Each key may be set in the file, in the environment, or as a flag\n"
                         ".Fl \\-KEY Ar VALUE .\n"
                         "The environment overrides the file, and a flag overrides both.\n"
                         "The variable of a key is\n.Ev FOREBAY_\n"
                         "and the key in upper case, with underscores instead of dots.\n"
                         "A sample file with all of them comes from\n.Ql forebay config default .\n"
                         ".Bl -tag -width Ds\n");
    for (unsigned i = 0; i < config_setting_count(); i++) {
        const struct config_setting *row = config_setting(i);
        man_row(out, row->key, row->help, row->accepts, row->default_text);
        buf_printf(out, "; %s.\n", row->live ? "counts on reload" : "a change needs a restart");
    }
    man_lists(out);
    buf_append_cstr(out, ".Sh SEE ALSO\n.Xr forebay 1\n");
}

int command_help(int argc, char **argv)
{
    bool is_man = commands_argument_take(&argc, argv, "--man");
    const char *name = argc > 0 ? argv[0] : NULL;
    const struct command *command = name != NULL ? command_line_find(name) : NULL;
    struct buf out, text;
    buf_init(&out, OUTPUT_MAX_BYTES);
    buf_init(&text, OUTPUT_MAX_BYTES);
    int code = EXIT_CODE_OK;
    if (is_man && name != NULL && strcmp(name, "forebay.yaml") == 0) {
        man_settings(&out);
    } else if (is_man && name == NULL) {
        man_commands(&out);
    } else if (is_man) {
        code = commands_usage_error("help", "--man stands alone, or with forebay.yaml");
    } else if (name == NULL) {
        list_commands(&text);
        command_screen_wrap(&out, buf_span(&text), command_help_columns(), SUMMARY_COLUMN);
    } else if (command != NULL) {
        command_help_render(command, &out);
    } else if (!command_help_setting(&out, name)) {
        code = command_help_unknown(name);
    }
    if (code == EXIT_CODE_OK) {
        code = commands_print_result(&out);
    }
    buf_done(&out);
    buf_done(&text);
    return code;
}

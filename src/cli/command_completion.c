// SPDX-License-Identifier: Apache-2.0
// `forebay completion bash|zsh|fish`: prints a completion script, which it makes from the tables of
// commands and settings.
#include "cli/cli_private.h"
#include "commands/commands.h"

#include <stdio.h>
#include <string.h>

#define OUTPUT_MAX_BYTES (1u << 20)

static void append_words(struct buf *out, const char *choices)
{
    for (; *choices != '\0'; choices++) {
        buf_append_char(out, *choices == '|' ? ' ' : *choices);
    }
}

// Appends a text inside single quotes. Each single quote in the text becomes `quote`.
static void append_quoted(struct buf *out, const char *text, const char *quote)
{
    for (; *text != '\0'; text++) {
        if (*text == '\'') {
            buf_append_cstr(out, quote);
        } else {
            buf_append_char(out, *text);
        }
    }
}

static bool operands_are_words(const struct command *command)
{
    return strchr(command->operands, '|') != NULL && command->most == 1;
}

// Appends the possible operands of a command: its words, or the names of commands for `help`.
static void append_operand_words(struct buf *out, const struct command *command)
{
    if (operands_are_words(command)) {
        buf_append_char(out, ' ');
        append_words(out, command->operands);
    } else if (strcmp(command->name, "help") == 0) {
        for (unsigned i = 0; i < command_line_count(); i++) {
            buf_printf(out, " %s", command_line_row(i)->name);
        }
    }
}

static void append_setting_flags(struct buf *out)
{
    for (unsigned i = 0; i < config_setting_count(); i++) {
        buf_printf(out, " --%s", config_setting(i)->key);
    }
}

static bool setting_is_choice(const struct config_setting *row)
{
    return strcmp(row->kind, "CHOICE") == 0 || strcmp(row->kind, "BOOL") == 0;
}

// Lists the options that may precede a command's name, as a command without a name.
static const struct command leading = {
    .name = "", .takes = TAKES_SETTINGS | TAKES_SERVER | TAKES_OUTPUT | TAKES_ALL};

// Appends the options that may precede a command's name, separated by `between`: those with a value
// if `has_value`, otherwise those without one.
static void append_leading(struct buf *out, bool has_value, const char *between)
{
    const struct command_option *option = NULL;
    const char *before = "";
    while ((option = command_line_next_option(&leading, option)) != NULL) {
        if (has_value == (option->kind != OPTION_FLAG)) {
            buf_printf(out, "%s%s", before, option->flag);
            before = between;
        }
    }
}

// --- bash ----------------------------------------------------------------------------------------

// Appends the values of one command's options, as a branch of `case $command$previous`.
static void bash_values(struct buf *out, const struct command *command)
{
    const struct command_option *option = NULL;
    while ((option = command_line_next_option(command, option)) != NULL) {
        if (option->kind == OPTION_CHOICE) {
            buf_printf(out, "    '%s %s') words='", command->name, option->flag);
            append_words(out, option->value);
            buf_append_cstr(out, "' ;;\n");
        } else if (option->kind == OPTION_PATH) {
            buf_printf(out, "    '%s %s') COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n",
                       command->name, option->flag);
        } else if (option->kind != OPTION_FLAG) {
            buf_printf(out, "    '%s %s') return ;;\n", command->name, option->flag);
        }
    }
}

static void bash_words(struct buf *out, const struct command *command)
{
    buf_printf(out, "        %s) words='--help", command->name);
    const struct command_option *option = NULL;
    while ((option = command_line_next_option(command, option)) != NULL) {
        buf_printf(out, " %s", option->flag);
    }
    append_operand_words(out, command);
    buf_append_char(out, '\'');
    if ((command->takes & TAKES_SETTINGS) != 0) {
        buf_append_cstr(out, "$settings");
    }
    buf_append_cstr(out, " ;;\n");
}

static void render_bash(struct buf *out)
{
    buf_append_cstr(out, "# bash completion for forebay\n"
                         "_forebay() {\n"
                         "    local word=${COMP_WORDS[COMP_CWORD]} previous= command= at=1 words=\n"
                         "    local settings='");
    append_setting_flags(out);
    buf_append_cstr(out, "'\n"
                         "    COMPREPLY=()\n"
                         "    [ \"$COMP_CWORD\" -gt 1 ] && previous=${COMP_WORDS[COMP_CWORD - 1]}\n"
                         "    while [ \"$at\" -lt \"$COMP_CWORD\" ]; do\n" // skips leading options
                         "        case ${COMP_WORDS[at]} in\n"
                         "            ");
    append_leading(out, true, "|");
    buf_append_cstr(out,
                    ") [ \"${COMP_WORDS[at + 1]}\" = = ] && at=$((at + 3)) || at=$((at + 2)) ;;\n"
                    "            ");
    append_leading(out, false, "|");
    buf_append_cstr(out, ") at=$((at + 1)) ;;\n"
                         "            *) break ;;\n"
                         "        esac\n"
                         "    done\n"
                         "    [ \"$at\" -lt \"$COMP_CWORD\" ] && command=${COMP_WORDS[at]}\n"
                         "    if [ \"$COMP_CWORD\" -eq \"$at\" ]; then\n"
                         "        words='");
    for (unsigned i = 0; i < command_line_count(); i++) {
        buf_printf(out, "%s ", command_line_row(i)->name);
    }
    append_leading(out, true, " ");
    buf_append_char(out, ' ');
    append_leading(out, false, " ");
    buf_append_cstr(out, " --help --version'\n"
                         "        COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
                         "        return\n"
                         "    fi\n"
                         "    case \"$command $previous\" in\n");
    bash_values(out, &leading);
    for (unsigned i = 0; i < command_line_count(); i++) {
        bash_values(out, command_line_row(i));
    }
    for (unsigned i = 0; i < config_setting_count(); i++) {
        const struct config_setting *row = config_setting(i);
        if (setting_is_choice(row)) {
            buf_printf(out, "    *' --%s') words='", row->key);
            append_words(out, row->accepts);
            buf_append_cstr(out, "' ;;\n");
        }
    }
    buf_append_cstr(out, "    esac\n"
                         "    if [ -z \"$words\" ]; then\n"
                         "        case $command in\n");
    for (unsigned i = 0; i < command_line_count(); i++) {
        bash_words(out, command_line_row(i));
    }
    buf_append_cstr(out, "        esac\n"
                         "    fi\n"
                         "    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
                         "}\n"
                         "complete -o default -F _forebay forebay\n");
}

// --- zsh -----------------------------------------------------------------------------------------

static void zsh_row(struct buf *out, const char *name, const char *help)
{
    buf_printf(out, " '%s:", name);
    append_quoted(out, help, "'\\''");
    buf_append_char(out, '\'');
}

// Describes the commands group by group, in the order of `forebay help`.
static void zsh_groups(struct buf *out)
{
    const struct command_group *group = NULL;
    for (unsigned i = 0; i <= command_line_count(); i++) {
        const struct command *command = i < command_line_count() ? command_line_row(i) : NULL;
        const struct command_group *next = command != NULL ? command_line_group(command) : NULL;
        if (group != NULL && (next != NULL || command == NULL)) {
            buf_printf(out, " )\n        _describe -t '%s' '%s' commands\n        ", group->first,
                       group->title);
        }
        if (next != NULL) {
            group = next;
            buf_append_cstr(out, "commands=(");
        }
        if (command != NULL) {
            zsh_row(out, command->name, command->summary);
        }
    }
}

static void zsh_command(struct buf *out, const struct command *command)
{
    buf_printf(out, "    %s)\n        choices=(", command->name);
    append_operand_words(out, command);
    buf_append_cstr(out, " )\n        rows=( '--help:more about this command'");
    const struct command_option *option = NULL;
    while ((option = command_line_next_option(command, option)) != NULL) {
        zsh_row(out, option->flag, option->help);
    }
    buf_append_cstr(out, " )\n");
    if ((command->takes & TAKES_SETTINGS) != 0) {
        buf_append_cstr(out, "        rows+=( $settings )\n");
    }
    buf_append_cstr(out, "        ;;\n");
}

static void zsh_values(struct buf *out, const struct command *command)
{
    const struct command_option *option = NULL;
    while ((option = command_line_next_option(command, option)) != NULL) {
        if (option->kind == OPTION_CHOICE) {
            buf_printf(out, "    '%s %s') compadd -- ", command->name, option->flag);
            append_words(out, option->value);
            buf_append_cstr(out, "; return ;;\n");
        } else if (option->kind == OPTION_PATH) {
            buf_printf(out, "    '%s %s') _files; return ;;\n", command->name, option->flag);
        } else if (option->kind != OPTION_FLAG) {
            buf_printf(out, "    '%s %s') return ;;\n", command->name, option->flag);
        }
    }
}

// Completes the value of an option in front of the command.
static void zsh_leading_values(struct buf *out)
{
    const struct command_option *option = NULL;
    while ((option = command_line_next_option(&leading, option)) != NULL) {
        if (option->kind != OPTION_FLAG) {
            buf_printf(out, "    '%s %s') %sreturn ;;\n", option->flag, option->flag,
                       option->kind == OPTION_PATH ? "_files; " : "");
        }
    }
}

static void render_zsh(struct buf *out)
{
    buf_append_cstr(out, "#compdef forebay\n"
                         "_forebay() {\n"
                         "    local -a commands settings rows choices common\n"
                         "    settings=(");
    char flag[CONFIG_NAME_MAX + 2];
    for (unsigned i = 0; i < config_setting_count(); i++) {
        const struct config_setting *row = config_setting(i);
        (void)snprintf(flag, sizeof(flag), "--%s", row->key);
        zsh_row(out, flag, row->help);
    }
    buf_append_cstr(out, " )\n    common=(");
    const struct command_option *option = NULL;
    while ((option = command_line_next_option(&leading, option)) != NULL) {
        zsh_row(out, option->flag, option->help);
    }
    buf_append_cstr(out, " )\n"
                         "    while (( CURRENT > 2 )); do\n" // skips leading options
                         "        case ${words[2]} in\n"
                         "            ");
    append_leading(out, true, "|");
    buf_append_cstr(out, ")\n"
                         "                (( CURRENT == 3 )) && break\n"
                         "                words[2,3]=()\n"
                         "                (( CURRENT -= 2 )) ;;\n"
                         "            ");
    append_leading(out, false, "|");
    buf_append_char(out, '|');
    append_leading(out, true, "=*|");
    buf_append_cstr(out, "=*)\n"
                         "                words[2]=()\n"
                         "                (( CURRENT -= 1 )) ;;\n"
                         "            *) break ;;\n"
                         "        esac\n"
                         "    done\n"
                         "    if (( CURRENT == 2 )); then\n"
                         "        ");
    zsh_groups(out);
    buf_append_cstr(out, "_describe option common\n"
                         "        return\n"
                         "    fi\n"
                         "    case \"${words[2]} ${words[CURRENT-1]}\" in\n");
    zsh_leading_values(out);
    for (unsigned i = 0; i < command_line_count(); i++) {
        zsh_values(out, command_line_row(i));
    }
    buf_append_cstr(out, "    esac\n    case ${words[2]} in\n");
    for (unsigned i = 0; i < command_line_count(); i++) {
        zsh_command(out, command_line_row(i));
    }
    buf_append_cstr(out, "    esac\n"
                         "    (( $#choices )) && compadd -a choices\n"
                         "    _describe option rows\n"
                         "}\n"
                         // true if zsh has loaded this file from $fpath
                         "if [ \"$funcstack[1]\" = _forebay ]; then\n"
                         "    _forebay \"$@\"\n"
                         "else\n"
                         "    compdef _forebay forebay\n"
                         "fi\n");
}

// --- fish ----------------------------------------------------------------------------------------

static void fish_help(struct buf *out, const char *help)
{
    buf_append_cstr(out, " -d '");
    append_quoted(out, help, "\\'");
    buf_append_cstr(out, "'\n");
}

static void fish_option(struct buf *out, const char *where, const char *name,
                        const struct command_option *option)
{
    bool is_long = option->flag[1] == '-';
    buf_printf(out, "complete -c forebay -n '%s%s' %s %s", where, name, is_long ? "-l" : "-s",
               option->flag + (is_long ? 2 : 1));
    if (option->kind == OPTION_CHOICE) {
        buf_append_cstr(out, " -x -a '");
        append_words(out, option->value);
        buf_append_char(out, '\'');
    } else if (option->kind == OPTION_PATH) {
        buf_append_cstr(out, " -r -F");
    } else if (option->kind != OPTION_FLAG) {
        buf_append_cstr(out, " -x");
    }
    fish_help(out, option->help);
}

static void fish_settings(struct buf *out, const struct command *command)
{
    for (unsigned i = 0; i < config_setting_count(); i++) {
        const struct config_setting *row = config_setting(i);
        buf_printf(out, "complete -c forebay -n '__fish_seen_subcommand_from %s' -l %s -r",
                   command->name, row->key);
        if (setting_is_choice(row)) {
            buf_append_cstr(out, " -f -a '");
            append_words(out, row->accepts);
            buf_append_char(out, '\'');
        }
        fish_help(out, row->help);
    }
}

static void render_fish(struct buf *out)
{
    buf_append_cstr(out, "# fish completion for forebay\n"
                         "function __forebay_needs_command\n"
                         "    not __fish_seen_subcommand_from");
    for (unsigned i = 0; i < command_line_count(); i++) {
        buf_printf(out, " %s", command_line_row(i)->name);
    }
    buf_append_cstr(out, "\nend\ncomplete -c forebay -f\n");
    const struct command_option *common = NULL;
    while ((common = command_line_next_option(&leading, common)) != NULL) {
        fish_option(out, "__forebay_needs_command", "", common);
    }
    for (unsigned i = 0; i < command_line_count(); i++) {
        const struct command *command = command_line_row(i);
        buf_printf(out, "complete -c forebay -n __forebay_needs_command -a %s", command->name);
        fish_help(out, command->summary);
        buf_printf(out, "complete -c forebay -n '__fish_seen_subcommand_from %s' -l help",
                   command->name);
        fish_help(out, "more about this command");
        if (operands_are_words(command) || strcmp(command->name, "help") == 0) {
            buf_printf(out, "complete -c forebay -n '__fish_seen_subcommand_from %s' -a '",
                       command->name);
            append_operand_words(out, command);
            buf_append_cstr(out, "'\n");
        }
        const struct command_option *option = NULL;
        while ((option = command_line_next_option(command, option)) != NULL) {
            fish_option(out, "__fish_seen_subcommand_from ", command->name, option);
        }
        if ((command->takes & TAKES_SETTINGS) != 0) {
            fish_settings(out, command);
        }
    }
}

int command_completion(int argc, char **argv)
{
    struct buf out;
    check(argc == 1);
    buf_init(&out, OUTPUT_MAX_BYTES);
    if (strcmp(argv[0], "bash") == 0) {
        render_bash(&out);
    } else if (strcmp(argv[0], "zsh") == 0) {
        render_zsh(&out);
    } else {
        render_fish(&out);
    }
    int code = commands_print_result(&out);
    buf_done(&out);
    return code;
}

// SPDX-License-Identifier: Apache-2.0
// Proves: a command line is checked against the table of commands. The message names a word that is
// misspelt, lacks a value, is given twice or is one too many, and suggests the word that was
// probably meant.
#include "test.h"

#include "commands/commands.h"
#include "config/config.h"

#include <stdio.h>
#include <string.h>

static char *word(const char *text)
{
    return (char *)(uintptr_t)text; // argv is not const, and nothing writes to it
}

// Returns the fault of `forebay NAME words...`; "" if there is none.
static const char *fault_of(const char *name, const char *a, const char *b, const char *c)
{
    static char text[1024];
    char *argv[] = {word(a), word(b), word(c), NULL};
    int argc = a == NULL ? 0 : b == NULL ? 1 : c == NULL ? 2 : 3;
    struct buf why;
    buf_init(&why, sizeof(text) - 1);
    unsigned operand_count = 0;
    bool is_good = command_line_check(command_line_find(name), &argc, argv, &operand_count, &why);
    cr_assert_eq(is_good, why.len == 0);
    memcpy(text, buf_cstr(&why), why.len + 1);
    buf_done(&why);
    return text;
}

Test(command_line, a_correct_command_line_passes)
{
    cr_assert_str_eq(fault_of("serve", NULL, NULL, NULL), "");
    cr_assert_str_eq(fault_of("serve", "--cache.size", "1GiB", "--listen=127.0.0.1:1"), "");
    cr_assert_str_eq(fault_of("check", "-T", "-c", "/x"), "");
    cr_assert_str_eq(fault_of("check", "--timeout=5", "--admin", "127.0.0.1:1"), "");
    cr_assert_str_eq(fault_of("env", "--shell", "fish", "--global"), "");
    cr_assert_str_eq(fault_of("config", "docs", NULL, NULL), "");
    cr_assert_str_eq(fault_of("config", "--", "docs", NULL), "");
    cr_assert_str_eq(fault_of("version", "--json", NULL, NULL), "");
}

Test(command_line, a_wrong_command_line_is_reported)
{
    static const struct {
        const char *command, *words[3], *why;
    } rows[] = {
        {"check", {"--lve"}, "--lve: no such option (did you mean \"--live\"?)"},
        {"check", {"-X"}, "-X: no such option"},
        {"serve", {"--listn", "x"}, "--listn: no such option (did you mean \"--listen\"?)"},
        {"env",
         {"--shell", "csh"},
         "--shell: expected one of bash|fish|dotenv|k8s|docker, not \"csh\""},
        {"serve",
         {"--admin", "x"},
         "--admin: serve does not take it, but commands that ask a running server do"},
        {"status", {"--wait"}, "--wait: status does not take it; it is for warm, upgrade, drain"},
        {"serve", {"--origin", "x"}, "--origin: no such option (did you mean \"--origin.KEY\"?)"},
        {"serve", {"--ttl", "5s"}, "--ttl: no such option (did you mean \"--cache.ttl\"?)"},
        {"env", {"--endpoint"}, "--endpoint needs a value: URL"},
        {"check", {"-T", "-T"}, "-T is given twice; remove one"},
        {"check", {"--live=yes"}, "--live has no value"},
        {"check", {"--timeout", "soon"}, "--timeout is a number, not \"soon\""},
        {"check", {"file"}, "unexpected argument \"file\""},
        {"config", {"sample"}, "expected one of default|schema|docs, not \"sample\""},
        {"config", {NULL}, "missing operand: default|schema|docs"},
        {"config", {"docs", "docs"}, "unexpected argument \"docs\""},
        {"config", {"--", "--live"}, "expected one of default|schema|docs, not \"--live\""},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const char *const *w = rows[i].words;
        cr_assert_str_eq(fault_of(rows[i].command, w[0], w[1], w[2]), rows[i].why);
    }
}

// config_load() names the position and the nearest key of a misspelt setting.
Test(command_line, settings_are_left_to_the_configuration)
{
    cr_assert_str_eq(fault_of("serve", "--cache.sise", "1", NULL), "");
    cr_assert_str_eq(fault_of("version", "--cache.size", "1", NULL),
                     "--cache.size: no such option: it is a setting, and version reads none");
}

Test(command_line, operands_come_first_and_the_dashes_are_removed)
{
    char *argv[] = {word("-T"), word("--listen"), word("1"), word("a"),
                    word("--"), word("-b"),       NULL};
    const struct command command = {
        .name = "check", .takes = TAKES_SETTINGS, .most = COMMAND_OPERANDS_MANY, .operands = "X"};
    int argc = 6;
    unsigned count = 0;
    struct buf why;
    buf_init(&why, 4096);
    cr_assert(command_line_check(&command, &argc, argv, &count, &why), "%s", buf_cstr(&why));
    static const char *const wanted[] = {"a", "-b", "-T", "--listen", "1"};
    cr_assert_eq(count, 2);
    cr_assert_eq(argc, 5);
    for (int i = 0; i < argc; i++) {
        cr_assert_str_eq(argv[i], wanted[i]);
    }
    cr_assert_null(argv[argc]);
    buf_done(&why);
}

Test(command_line, every_command_takes_the_common_options)
{
    static const char *const flags[] = {"-q", "-v", "--no-color"};
    for (unsigned i = 0; i < command_line_count(); i++) {
        const struct command *command = command_line_row(i);
        for (size_t k = 0; k < ARRAY_LEN(flags); k++) {
            const char *fault = fault_of(command->name, flags[k], NULL, NULL);
            cr_assert(fault[0] == '\0' || strstr(fault, "missing operand: ") == fault, "%s %s: %s",
                      command->name, flags[k], fault);
        }
        cr_assert_str_eq(fault_of(command->name, "-v", "-q", NULL), "-q or -v, not both");
    }
}

// Returns how many of these words come before a command; -1: one of them lacks its value.
static int leading(const char *a, const char *b, const char *c, const char *d)
{
    char *argv[] = {word(a), word(b), word(c), word(d), NULL};
    struct buf why;
    buf_init(&why, 1024);
    int argc = a == NULL ? 0 : b == NULL ? 1 : c == NULL ? 2 : d == NULL ? 3 : 4;
    int count = command_line_leading(argc, argv, &why);
    cr_assert_eq(count<0, why.len> 0);
    buf_done(&why);
    return count;
}

Test(command_line, options_in_front_of_a_command)
{
    cr_assert_eq(leading(NULL, NULL, NULL, NULL), 0);
    cr_assert_eq(leading("status", "-q", NULL, NULL), 0);
    cr_assert_eq(leading("-q", "status", "-v", NULL), 1);
    cr_assert_eq(leading("--admin", "x", "-q", "status"), 3);
    cr_assert_eq(leading("--admin=x", "--json", "status", NULL), 2);
    cr_assert_eq(leading("--admin=", "status", NULL, NULL), 1);
    cr_assert_eq(leading("-c", "-q", "status", NULL), -1);
    cr_assert_eq(leading("-c", "-x", "status", NULL), 2);
    cr_assert_eq(leading("-c", NULL, NULL, NULL), -1);
    cr_assert_eq(leading("-q", "--timeout", NULL, NULL), -1);
    cr_assert_eq(leading("-q", NULL, NULL, NULL), 1);
    cr_assert_eq(leading("-q", "--live", "check", NULL), 1);
    cr_assert_eq(leading("-", "check", NULL, NULL), 0);
    cr_assert_eq(leading("--", "check", NULL, NULL), 0);
}

// Checks the command line `words`, after as many operands as the command needs. If it is good,
// takes the common options and `wanted` as a command does. Returns the fault; "" if there is none.
static const char *fault_or_taken(const struct command *command, const char *const words[3],
                                  const struct command_option *wanted, const char **ret_taken)
{
    static char text[1024];
    char *argv[8], operand[64];
    int argc = 0;
    unsigned operand_count = 0;
    struct buf why;
    (void)snprintf(operand, sizeof(operand), "%s",
                   command->operands + strspn(command->operands, "- "));
    operand[strcspn(operand, "| ")] = '\0';            // a choice must be one of its words
    bool is_last = command_line_runs_another(command); // options end at its operand
    for (unsigned i = 0; i < command->least && !is_last; i++) {
        argv[argc++] = operand;
    }
    for (unsigned i = 0; i < 3 && words[i] != NULL; i++) {
        argv[argc++] = word(words[i]);
    }
    if (is_last) {
        argv[argc++] = operand;
    }
    argv[argc] = NULL;
    buf_init(&why, sizeof(text) - 1);
    bool is_good = command_line_check(command, &argc, argv, &operand_count, &why);
    memcpy(text, buf_cstr(&why), why.len + 1);
    buf_done(&why);
    *ret_taken = NULL;
    if (is_good) {
        commands_common_take(command, operand_count, &argc, argv);
        *ret_taken = wanted->kind != OPTION_FLAG
                         ? commands_argument_take_value(&argc, argv, wanted->flag)
                     : commands_argument_take(&argc, argv, wanted->flag) ? wanted->flag
                                                                         : NULL;
    }
    return text;
}

Test(command_line, an_option_is_never_the_value_of_another_one)
{
    for (unsigned i = 0; i < command_line_count(); i++) {
        const struct command *command = command_line_row(i);
        const struct command_option *a = NULL, *b;
        while ((a = command_line_next_option(command, a)) != NULL) {
            for (b = NULL; (b = command_line_next_option(command, b)) != NULL;) {
                const char *const rows[][3] = {{a->flag, b->flag}, {a->flag, b->flag, "7"}};
                char wanted[256];
                (void)snprintf(wanted, sizeof(wanted), "%s needs a value: %s; \"%s\" is an option",
                               a->flag, a->value, b->flag);
                for (size_t row = 0; row < ARRAY_LEN(rows); row++) {
                    const char *taken;
                    const char *fault = fault_or_taken(command, rows[row], b, &taken);
                    if (a->kind != OPTION_FLAG) {
                        cr_assert_str_eq(fault, wanted, "%s: %s", command->name, fault);
                    }
                }
            }
        }
    }
}

// config_load() reports the setting that lacks its value.
Test(command_line, the_value_of_a_setting_is_not_taken_as_an_option)
{
    const struct command *command = command_line_find("check");
    const struct command_option *option = NULL;
    while ((option = command_line_next_option(command, option)) != NULL) {
        const char *const words[3] = {"--listen", option->flag};
        const char *taken;
        cr_assert_str_eq(fault_or_taken(command, words, option, &taken), "");
        cr_assert_null(taken, "%s", option->flag);
        cr_assert_null(commands_common()->admin);
        cr_assert_not(commands_common()->is_json || commands_common()->is_quiet);
    }
}

Test(command_line, commands_are_suggested)
{
    cr_assert_str_eq(command_line_suggest("sevre"), "serve");
    cr_assert_str_eq(command_line_suggest("chekc"), "check");
    cr_assert_null(command_line_suggest("xyzzy"));
}

Test(command_line, the_table_is_sound)
{
    for (unsigned i = 0; i < command_line_count(); i++) {
        const struct command *command = command_line_row(i);
        const struct command_option *option = NULL;
        size_t len = strlen(command->details);
        cr_assert_eq(command_line_find(command->name), command);
        cr_assert(command->least <= command->most);
        cr_assert(len == 0 || command->details[len - 1] == '\n');
        while ((option = command_line_next_option(command, option)) != NULL) {
            cr_assert_eq(option->flag[0], '-');
            cr_assert_neq(option->kind == OPTION_FLAG, option->value[0] != '\0');
            for (unsigned k = 0; k < config_setting_count(); k++) {
                cr_assert_str_neq(option->flag + 2, config_setting(k)->key);
            }
        }
    }
}

Test(command_line, examples_of_each_group_are_correct_command_lines)
{
    unsigned group_count = 0;
    cr_assert_not_null(command_line_group(command_line_row(0)));
    for (unsigned i = 0; i < command_line_count(); i++) {
        const struct command_group *group = command_line_group(command_line_row(i));
        group_count += group != NULL;
        for (size_t n = 0; group != NULL && n < ARRAY_LEN(group->examples); n++) {
            char text[256], *argv[16] = {NULL};
            int argc = 0;
            unsigned operand_count;
            struct buf why;
            buf_init(&why, 1024);
            cr_assert_lt(snprintf(text, sizeof(text), "%s", group->examples[n]), 256);
            struct span rest = span_from_cstr(text), piece;
            while (span_split(&rest, ' ', &piece)) {
                argv[argc] = text + (piece.ptr - text);
                argv[argc++][piece.len] = '\0';
            }
            const struct command *command = command_line_find(argv[1]);
            cr_assert_str_eq(argv[0], "forebay");
            cr_assert_not_null(command, "%s", group->examples[n]);
            argc -= 2;
            cr_assert(command_line_check(command, &argc, argv + 2, &operand_count, &why), "%s: %s",
                      group->examples[n], buf_cstr(&why));
            buf_done(&why);
        }
    }
    cr_assert_eq(group_count, 5u);
}

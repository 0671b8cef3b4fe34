// SPDX-License-Identifier: Apache-2.0
// The table of commands, and the check of a command line against it before the command runs. The
// check stops at the first misspelt word, missing value, repeated option or surplus operand. It
// suggests the word that the user probably meant.
#include "commands/command_line.h"

#include "config/config.h"

#define MANY COMMAND_OPERANDS_MANY
static const struct command commands[] = {
#define COMMAND(name, takes, least, most, operands, summary, details)                              \
    {#name, (takes) | TAKES_ALL, least, most, operands, summary, details},
#include "commands/commands.def"
};

static const struct command_option options[] = {
#define OPTION(command, flag, kind, value, default_text, help)                                     \
    {#command, 0, flag, OPTION_##kind, value, default_text, help},
#define COMMON(takes, flag, kind, value, default_text, help)                                       \
    {NULL, takes, flag, OPTION_##kind, value, default_text, help},
#include "commands/commands.def"
};

static const struct command_group groups[] = {
#define GROUP(first, title, example, other) {#first, title, {example, other}},
#include "commands/commands.def"
};

#define WORDS_MAX 256u

unsigned command_line_count(void)
{
    return ARRAY_LEN(commands);
}

const struct command *command_line_row(unsigned i)
{
    check(i < ARRAY_LEN(commands));
    return &commands[i];
}

unsigned command_line_number(const struct command *command)
{
    check(command >= commands && command < commands + ARRAY_LEN(commands));
    return (unsigned)(command - commands);
}

const struct command *command_line_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        if (strcmp(commands[i].name, name) == 0) {
            return &commands[i];
        }
    }
    return NULL;
}

const struct command_group *command_line_group(const struct command *command)
{
    for (size_t i = 0; i < ARRAY_LEN(groups); i++) {
        if (strcmp(groups[i].first, command->name) == 0) {
            return &groups[i];
        }
    }
    return NULL;
}

const char *command_line_suggest(const char *name)
{
    const char *names[ARRAY_LEN(commands)];
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        names[i] = commands[i].name;
    }
    return settings_suggest(span_from_cstr(name), names, ARRAY_LEN(names));
}

static bool is_taken(const struct command *command, const struct command_option *option)
{
    return option->command != NULL ? strcmp(option->command, command->name) == 0
                                   : (option->takes & command->takes) != 0;
}

const struct command_option *command_line_next_option(const struct command *command,
                                                      const struct command_option *after)
{
    for (size_t i = after == NULL ? 0 : (size_t)(after - options) + 1; i < ARRAY_LEN(options);
         i++) {
        if (is_taken(command, &options[i])) {
            return &options[i];
        }
    }
    return NULL;
}

// --- Checking a command line ---------------------------------------------------------------------

struct judge {
    const struct command *command;
    struct buf *why;
    unsigned operand_count;
    bool is_seen[ARRAY_LEN(options)];
};

static const struct command_option *find_option(const struct command *command, struct span flag)
{
    const struct command_option *option = NULL;
    do {
        option = command_line_next_option(command, option);
    } while (option != NULL && !span_equal_cstr(flag, option->flag));
    return option;
}

static struct span flag_of(const char *word)
{
    const char *equals = strchr(word, '=');
    return (struct span){word, equals != NULL ? (size_t)(equals - word) : strlen(word)};
}

int command_line_words(const struct command *command, char *const *argv)
{
    struct span flag = flag_of(argv[0]);
    const struct command_option *option = find_option(command, flag);
    bool is_flag = option != NULL && option->kind == OPTION_FLAG;
    return is_flag || argv[0][flag.len] == '=' || argv[1] == NULL ? 1 : 2;
}

// Returns false, with the reason in *ret_why, if `word` is not a value of the option: it is NULL or
// an option itself, so that the value was probably forgotten.
static bool has_value(const struct command *command, const struct command_option *option,
                      const char *word, struct buf *ret_why)
{
    if (word == NULL) {
        buf_printf(ret_why, "%s needs a value: %s", option->flag, option->value);
    } else if (find_option(command, flag_of(word)) != NULL) {
        buf_printf(ret_why, "%s needs a value: %s; \"%.100s\" is an option", option->flag,
                   option->value, word);
    } else {
        return true;
    }
    return false;
}

int command_line_leading(int argc, char *const *argv, struct buf *ret_why)
{
    static const struct command any = {
        .name = "", .takes = TAKES_SETTINGS | TAKES_SERVER | TAKES_OUTPUT | TAKES_ALL};
    int i = 0;
    while (i < argc && argv[i][0] == '-') {
        const struct command_option *option = find_option(&any, flag_of(argv[i]));
        if (option == NULL) {
            break;
        }
        bool needs_value = option->kind != OPTION_FLAG && strchr(argv[i], '=') == NULL;
        if (needs_value && !has_value(&any, option, i + 1 < argc ? argv[i + 1] : NULL, ret_why)) {
            return -1;
        }
        i += command_line_words(&any, argv + i);
    }
    return i;
}

static bool is_setting(struct span key)
{
    for (unsigned i = 0; i < config_setting_count(); i++) {
        if (span_equal_cstr(key, config_setting(i)->key)) {
            return true;
        }
    }
    // config_load() reports a misspelt key, and a list that only the file can have
    return span_find(key, '.') < key.len || config_list_of(key) != NULL;
}

// Says which commands take an option that this one does not take. Returns false if none does.
static bool tell_takers(struct judge *judge, struct span flag, bool is_common)
{
    static const struct {
        unsigned takes;
        const char *who;
    } takers[] = {{TAKES_SETTINGS, "commands that read the configuration do"},
                  {TAKES_SERVER, "commands that ask a running server do"},
                  {TAKES_OUTPUT, "commands with a result for programs do"}};
    bool is_taken = false;
    for (size_t i = 0; i < ARRAY_LEN(options); i++) {
        bool is_it =
            (options[i].command == NULL) == is_common && span_equal_cstr(flag, options[i].flag);
        for (size_t k = 0; is_it && is_common && k < ARRAY_LEN(takers); k++) {
            if ((takers[k].takes & options[i].takes) != 0) {
                buf_printf(judge->why, "%s: %s does not take it, but %s", options[i].flag,
                           judge->command->name, takers[k].who);
                break;
            }
        }
        if (is_it && !is_common && is_taken) {
            buf_printf(judge->why, ", %s", options[i].command);
        } else if (is_it && !is_common) {
            buf_printf(judge->why, "%s: %s does not take it; it is for %s", options[i].flag,
                       judge->command->name, options[i].command);
        }
        is_taken |= is_it;
    }
    return is_taken;
}

static void unknown_option(struct judge *judge, struct span flag)
{
    const char *words[WORDS_MAX];
    unsigned count = 0;
    struct span name = flag;
    while (name.len > 0 && name.ptr[0] == '-') {
        name = (struct span){name.ptr + 1, name.len - 1};
    }
    const struct command_option *option = NULL;
    while ((option = command_line_next_option(judge->command, option)) != NULL &&
           count < WORDS_MAX) {
        words[count++] = option->flag;
    }
    const char *near = settings_suggest(flag, words, count);
    bool is_key = near == NULL && (judge->command->takes & TAKES_SETTINGS) != 0;
    near = is_key ? settings_suggest_key(name) : near;
    // settings_suggest_key() may return a section, such as "origin", which is no key.
    bool is_section = is_key && near != NULL && !is_setting(span_from_cstr(near));
    if (tell_takers(judge, flag, true) || (near == NULL && tell_takers(judge, flag, false))) {
        return;
    }
    buf_printf(judge->why, "%.*s: no such option", (int)min_u64(flag.len, 100), flag.ptr);
    if (near != NULL) {
        buf_printf(judge->why, " (did you mean \"%s%s%s\"?)", is_key ? "--" : "", near,
                   is_section ? ".KEY" : "");
    } else if (!is_key && is_setting(name)) {
        buf_printf(judge->why, ": it is a setting, and %s reads none", judge->command->name);
    }
}

static bool is_choice(const char *choices, const char *word)
{
    struct span rest = span_from_cstr(choices), piece;
    bool is_one = false;
    while (!is_one && span_split(&rest, '|', &piece)) {
        is_one = span_equal_cstr(piece, word);
    }
    return is_one;
}

static bool value_is_good(struct judge *judge, const struct command_option *option,
                          const char *value)
{
    uint64_t number;
    if (option->kind == OPTION_CHOICE && !is_choice(option->value, value)) {
        buf_printf(judge->why, "%s: expected one of %s, not \"%.100s\"", option->flag,
                   option->value, value);
    } else if (option->kind == OPTION_NUMBER && !span_to_u64(span_from_cstr(value), &number)) {
        buf_printf(judge->why, "%s is a number, not \"%.100s\"", option->flag, value);
    } else {
        return true;
    }
    return false;
}

// Checks the option at argv[0]. *ret_taken becomes the number of its words.
static bool option_is_good(struct judge *judge, char **argv, int *ret_taken)
{
    struct span flag = flag_of(argv[0]);
    const char *equals = argv[0][flag.len] == '=' ? argv[0] + flag.len : NULL;
    const struct command_option *option = find_option(judge->command, flag);
    const char *value = equals != NULL ? equals + 1 : argv[1];
    *ret_taken = command_line_words(judge->command, argv);
    if (option == NULL) {
        bool is_long = flag.len > 2 && flag.ptr[0] == '-' && flag.ptr[1] == '-';
        if (is_long && (judge->command->takes & TAKES_SETTINGS) != 0 &&
            is_setting((struct span){flag.ptr + 2, flag.len - 2})) {
            return true;
        }
        unknown_option(judge, flag);
        return false;
    }
    bool was_seen = judge->is_seen[option - options];
    judge->is_seen[option - options] = true;
    if (was_seen && option->kind != OPTION_TEXTS) {
        buf_printf(judge->why, "%s is given twice; remove one", option->flag);
        return false;
    }
    if (option->kind != OPTION_FLAG) {
        return (equals != NULL || has_value(judge->command, option, value, judge->why)) &&
               value_is_good(judge, option, value);
    }
    if (equals != NULL) {
        buf_printf(judge->why, "%s has no value", option->flag);
        return false;
    }
    return true;
}

static bool is_seen(const struct judge *judge, const char *flag)
{
    const struct command_option *option = find_option(judge->command, span_from_cstr(flag));
    return option != NULL && judge->is_seen[option - options];
}

static bool operand_is_good(struct judge *judge, const char *word)
{
    const struct command *command = judge->command;
    if (judge->operand_count++ >= command->most) {
        buf_printf(judge->why, "unexpected argument \"%.100s\"", word);
        return false;
    }
    if (strchr(command->operands, '|') != NULL && command->most == 1 &&
        !is_choice(command->operands, word)) {
        buf_printf(judge->why, "expected one of %s, not \"%.100s\"", command->operands, word);
        return false;
    }
    return true;
}

// Moves the operand at `from` to the position `to`. The words between them keep their order.
static void move_to_front(char **argv, int from, unsigned to)
{
    char *word = argv[from];
    memmove(argv + to + 1, argv + to, ((size_t)from - to) * sizeof(*argv));
    argv[to] = word;
}

bool command_line_runs_another(const struct command *command)
{
    return strncmp(command->operands, "-- ", 3) == 0;
}

bool command_line_check(const struct command *command, int *argc, char **argv,
                        unsigned *ret_operand_count, struct buf *ret_why)
{
    struct judge judge = {.command = command, .why = ret_why};
    bool only_operands = false;
    for (int i = 0, taken; i < *argc; i += taken) {
        taken = 1;
        bool is_option = !only_operands && argv[i][0] == '-' && argv[i][1] != '\0';
        if (is_option && strcmp(argv[i], "--") == 0) {
            only_operands = true;
            memmove(argv + i, argv + i + 1,
                    (size_t)(*argc - i) * sizeof(*argv)); // the NULL at the end is moved too
            (*argc)--;
            taken = 0;
        } else if (is_option) {
            if (!option_is_good(&judge, argv + i, &taken)) {
                return false;
            }
        } else if (!operand_is_good(&judge, argv[i])) {
            return false;
        } else {
            move_to_front(argv, i, judge.operand_count - 1);
            only_operands = only_operands || command_line_runs_another(command);
        }
    }
    if (is_seen(&judge, "-q") && is_seen(&judge, "-v")) {
        buf_append_cstr(ret_why, "-q or -v, not both");
        return false;
    }
    if (judge.operand_count < command->least) {
        buf_printf(ret_why, "missing operand: %s", command->operands);
        return false;
    }
    *ret_operand_count = judge.operand_count;
    return true;
}

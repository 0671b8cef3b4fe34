// SPDX-License-Identifier: Apache-2.0
// Filters requests: `result=miss and ttfb>0.1`. The text is parsed once into postfix form, then
// applied to lines of the access log in JSON, whose members are texts and numbers. Pure.
//
//   words    and, or, not, ( ), and terms: FIELD OPERATOR VALUE
//   fields   those of log_fields.def
//   texts    = != ~ !~ (contains) ^= (begins with)
//   numbers  = != < <= > >=; a value may have a unit: 100ms, 0.1s, 1MiB
// A member that the line does not have differs from every value.
#include "control/admin_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TERMS_MAX 32u
#define STEPS_MAX (4u * TERMS_MAX)
#define TEXT_MAX_BYTES 2048u // longest filter

enum comparison { EQUAL, UNEQUAL, CONTAINS, LACKS, BEGINS, LESS, LESS_EQUAL, MORE, MORE_EQUAL };
static const char *const comparisons[] = {"=", "!=", "~", "!~", "^=", "<", "<=", ">", ">="};

struct term {
    const struct log_field *field;
    enum comparison comparison;
    double number;
    struct span text;
};

enum { STEP_NOT = -1, STEP_AND = -2, STEP_OR = -3, STEP_OPEN = -4 }; // >= 0: a term's index

struct admin_where {
    char *words; // holds the texts of all terms
    struct term terms[TERMS_MAX];
    unsigned term_count;
    int steps[STEPS_MAX];
    unsigned step_count;
};

// --- reading -------------------------------------------------------------------------------------

struct reader {
    struct admin_where *where;
    const char *at;
    char *words; // the next text is written here
    int waiting[STEPS_MAX];
    unsigned waiting_count;
    bool wants_term;
    char *why;
};

static bool refuse(struct reader *r, const char *what)
{
    (void)snprintf(r->why, ADMIN_WHERE_WHY_MAX, "where: %s at \"%.40s\"", what, r->at);
    return false;
}

static bool is_word_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

static void skip_blanks(struct reader *r)
{
    while (*r->at == ' ' || *r->at == '\t') {
        r->at++;
    }
}

static bool take_word(struct reader *r, const char *word)
{
    size_t len = strlen(word);
    if (strncasecmp(r->at, word, len) != 0 || is_word_byte(r->at[len])) {
        return false;
    }
    r->at += len;
    return true;
}

static bool add_step(struct reader *r, int step)
{
    if (r->where->step_count == STEPS_MAX) {
        return refuse(r, "too much");
    }
    r->where->steps[r->where->step_count++] = step;
    return true;
}

static bool add_waiting(struct reader *r, int step)
{
    if (r->waiting_count == STEPS_MAX) {
        return refuse(r, "too much");
    }
    r->waiting[r->waiting_count++] = step;
    return true;
}

// Emits pending operators that bind at least as closely as `step`. With STEP_OPEN, emits all of
// them down to a parenthesis.
static bool settle(struct reader *r, int step)
{
    while (r->waiting_count > 0 && r->waiting[r->waiting_count - 1] != STEP_OPEN &&
           (step == STEP_OPEN || r->waiting[r->waiting_count - 1] >= step)) {
        if (!add_step(r, r->waiting[--r->waiting_count])) {
            return false;
        }
    }
    return true;
}

static bool read_field(struct reader *r, const struct log_field **ret_field)
{
    size_t len = 0;
    while (is_word_byte(r->at[len])) {
        len++;
    }
    *ret_field = log_fields_find((struct span){r->at, len});
    if (*ret_field != NULL) {
        r->at += len;
        return true;
    }
    if (len == 0) {
        return refuse(r, "a field is wanted");
    }
    (void)snprintf(r->why, ADMIN_WHERE_WHY_MAX, "where: no such field: %.*s; fields are %s",
                   (int)min_u64(len, 40), r->at, log_fields_names());
    return false;
}

static bool read_comparison(struct reader *r, const struct log_field *field, enum comparison *ret)
{
    size_t best = 0;
    skip_blanks(r);
    for (unsigned i = 0; i < ARRAY_LEN(comparisons); i++) {
        size_t len = strlen(comparisons[i]);
        if (len > best && strncmp(r->at, comparisons[i], len) == 0) {
            best = len;
            *ret = (enum comparison)i;
        }
    }
    bool is_order = *ret >= LESS, is_search = *ret == CONTAINS || *ret == LACKS || *ret == BEGINS;
    if (best == 0) {
        return refuse(r, "= != ~ !~ ^= < <= > or >= is wanted");
    }
    if (field->scale == 0 ? is_order : is_search) {
        return refuse(r, field->scale == 0 ? "this field is no number" : "this field is no text");
    }
    r->at += best;
    return true;
}

// Reads a word, or anything between quotes.
static bool read_text(struct reader *r, struct span *ret_text)
{
    char *out = r->words;
    skip_blanks(r);
    char quote = *r->at == '"' || *r->at == '\'' ? *r->at++ : '\0';
    const char *begin = r->at;
    while (*r->at != '\0' && (quote != '\0' ? *r->at != quote : strchr(" \t()", *r->at) == NULL)) {
        *out++ = *r->at++;
    }
    if (quote != '\0' && *r->at++ != quote) {
        r->at = begin;
        return refuse(r, "a quote is not closed");
    }
    if (quote == '\0' && r->at == begin) {
        return refuse(r, "a value is wanted");
    }
    *ret_text = (struct span){r->words, (size_t)(out - r->words)};
    *out++ = '\0';
    r->words = out;
    return true;
}

static bool read_number(struct reader *r, const struct log_field *field, struct term *term)
{
    static const struct {
        const char *unit;
        double scale;
        enum log_field_unit is_for;
    } units[] = {
        {"us", 1e-6, LOG_FIELD_UNIT_TIME},
        {"ms", 1e-3, LOG_FIELD_UNIT_TIME},
        {"s", 1, LOG_FIELD_UNIT_TIME},
        {"KiB", 1024, LOG_FIELD_UNIT_BYTES},
        {"MiB", 1048576, LOG_FIELD_UNIT_BYTES},
        {"GiB", 1073741824, LOG_FIELD_UNIT_BYTES},
        {"KB", 1000, LOG_FIELD_UNIT_BYTES},
        {"MB", 1000000, LOG_FIELD_UNIT_BYTES},
        {"GB", 1000000000, LOG_FIELD_UNIT_BYTES},
    };
    const char *begin = r->at;
    char *end = NULL;
    if (!read_text(r, &term->text)) {
        return false;
    }
    term->number = strtod(term->text.ptr, &end);
    bool is_good = end != term->text.ptr && (*end == '\0');
    for (size_t i = 0; i < ARRAY_LEN(units) && !is_good && end != term->text.ptr; i++) {
        if (strcmp(end, units[i].unit) == 0 && field->unit == units[i].is_for) {
            term->number *= units[i].scale;
            is_good = true;
        }
    }
    if (!is_good) {
        r->at = begin;
    }
    return is_good || refuse(r, "a number is wanted");
}

static bool read_term(struct reader *r)
{
    if (r->where->term_count == TERMS_MAX) {
        return refuse(r, "too much");
    }
    struct term *term = &r->where->terms[r->where->term_count];
    if (!read_field(r, &term->field) || !read_comparison(r, term->field, &term->comparison)) {
        return false;
    }
    bool is_number = term->field->scale != 0;
    if (is_number ? !read_number(r, term->field, term) : !read_text(r, &term->text)) {
        return false;
    }
    r->wants_term = false;
    return add_step(r, (int)r->where->term_count++);
}

static bool read_piece(struct reader *r)
{
    if (r->wants_term) {
        if (*r->at == '(') {
            r->at++;
            return add_waiting(r, STEP_OPEN);
        }
        return take_word(r, "not") ? add_waiting(r, STEP_NOT) : read_term(r);
    }
    if (*r->at == ')') {
        if (!settle(r, STEP_OPEN)) {
            return false;
        }
        if (r->waiting_count == 0) {
            return refuse(r, "a parenthesis is not opened");
        }
        r->at++;
        r->waiting_count--;
        return true;
    }
    int step = take_word(r, "and") ? STEP_AND : take_word(r, "or") ? STEP_OR : 0;
    if (step == 0) {
        return refuse(r, "and, or is wanted");
    }
    r->wants_term = true;
    return settle(r, step) && add_waiting(r, step);
}

struct admin_where *admin_where_new(const char *text, char ret_why[ADMIN_WHERE_WHY_MAX])
{
    struct admin_where *where = calloc(1, sizeof(*where));
    check(where != NULL);
    where->words = calloc(2, TEXT_MAX_BYTES);
    check(where->words != NULL);
    struct reader r = {
        .where = where, .at = text, .words = where->words, .wants_term = true, .why = ret_why};
    bool is_good = strlen(text) < TEXT_MAX_BYTES || refuse(&r, "too much");
    for (skip_blanks(&r); is_good && *r.at != '\0'; skip_blanks(&r)) {
        is_good = read_piece(&r);
    }
    if (is_good && r.wants_term) {
        is_good = refuse(&r, "a term is wanted, FIELD=VALUE,");
    }
    is_good = is_good && settle(&r, STEP_OPEN);
    if (is_good && r.waiting_count > 0) {
        is_good = refuse(&r, "a parenthesis is not closed");
    }
    if (!is_good) {
        admin_where_free(where);
        where = NULL;
    }
    return where;
}

void admin_where_free(struct admin_where *where)
{
    if (where != NULL) {
        free(where->words);
        free(where);
    }
}

// --- a line --------------------------------------------------------------------------------------

// Returns the end of a member's value or name; the line's end if it has none.
static const char *value_end(const char *at, const char *end)
{
    bool is_text = at < end && *at == '"';
    for (at += is_text; at < end; at++) {
        if (is_text && *at == '\\') {
            at++;
        } else if (is_text ? *at == '"' : *at == ',' || *at == '}') {
            return at + is_text;
        }
    }
    return end;
}

static void find_members(struct span line, struct span ret_values[LOG_FIELDS_COUNT_])
{
    memset(ret_values, 0, LOG_FIELDS_COUNT_ * sizeof(*ret_values));
    if (line.len == 0) {
        return; // there is nothing to copy, and line.ptr may be NULL
    }
    const char *at = line.ptr, *end = line.ptr + line.len;
    while (at < end && (*at == '{' || *at == ',')) {
        const char *name = at + 1, *name_end = value_end(name, end);
        const char *value = name_end < end ? name_end + 1 : end, *stop = value_end(value, end);
        size_t len = name_end - name >= 2 ? (size_t)(name_end - name) - 2 : 0;
        for (unsigned i = 0; i < LOG_FIELDS_COUNT_; i++) {
            if (strlen(log_fields[i].member) == len &&
                memcmp(log_fields[i].member, name + 1, len) == 0) {
                ret_values[i] = (struct span){value, (size_t)(stop - value)};
            }
        }
        at = stop;
    }
}

static bool text_holds(const struct term *term, struct span value)
{
    json_t *json = NULL;
    if (value.len >= 2 && memchr(value.ptr, '\\', value.len) == NULL) {
        value = (struct span){value.ptr + 1, value.len - 2};
    } else if (value.len > 0) {
        json = json_loadb(value.ptr, value.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        value = (struct span){json_string_value(json), json_string_length(json)};
    }
    const struct span *text = &term->text;
    bool holds = false;
    if (value.ptr != NULL && (term->comparison == CONTAINS || term->comparison == LACKS)) {
        holds = memmem(value.ptr, value.len, text->ptr, text->len) != NULL;
    } else if (value.ptr != NULL) {
        holds =
            term->comparison == BEGINS ? span_starts_with(value, *text) : span_equal(value, *text);
    }
    json_decref(json);
    return holds == (term->comparison != UNEQUAL && term->comparison != LACKS);
}

static bool number_holds(const struct term *term, double scale, struct span value)
{
    char text[32];
    if (value.len == 0 || value.len >= sizeof(text)) {
        return term->comparison == UNEQUAL;
    }
    memcpy(text, value.ptr, value.len);
    text[value.len] = '\0';
    double number = strtod(text, NULL) * scale;
    switch (term->comparison) {
    case LESS:
        return number < term->number;
    case LESS_EQUAL:
        return number <= term->number;
    case MORE:
        return number > term->number;
    case MORE_EQUAL:
        return number >= term->number;
    default:
        return (number == term->number) == (term->comparison == EQUAL);
    }
}

bool admin_where_holds(const struct admin_where *where, struct span line)
{
    struct span values[LOG_FIELDS_COUNT_];
    bool stack[STEPS_MAX];
    unsigned depth = 0;
    find_members(line, values);
    for (unsigned i = 0; i < where->step_count; i++) {
        int step = where->steps[i];
        if (step >= 0) {
            const struct term *term = &where->terms[step];
            struct span value = values[term->field - log_fields];
            double scale = term->field->scale;
            stack[depth++] =
                scale != 0 ? number_holds(term, scale, value) : text_holds(term, value);
        } else if (step == STEP_NOT) {
            stack[depth - 1] = !stack[depth - 1];
        } else {
            depth--;
            stack[depth - 1] = step == STEP_AND ? stack[depth - 1] && stack[depth]
                                                : stack[depth - 1] || stack[depth];
        }
    }
    check(depth == 1);
    return stack[0];
}

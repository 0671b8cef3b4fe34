// SPDX-License-Identifier: Apache-2.0
#include "origin/shared_profile.h"

#include <stdlib.h>
#include <string.h>

#include "origin/credentials_chain.h"

// --- Sections ------------------------------------------------------------------------------------

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

// Reads the text inside the brackets of a line "[ text ]". Returns false for other lines.
static bool section_text(struct span line, struct span *ret_text)
{
    line = span_trim(line);
    if (line.len < 2 || line.ptr[0] != '[') {
        return false;
    }
    size_t end = span_find(line, ']');
    if (end == line.len) {
        return false;
    }
    *ret_text = span_trim((struct span){line.ptr + 1, end - 1});
    return true;
}

static struct span without_quotes(struct span s)
{
    bool is_quoted =
        s.len >= 2 && (s.ptr[0] == '"' || s.ptr[0] == '\'') && s.ptr[s.len - 1] == s.ptr[0];
    return is_quoted ? (struct span){s.ptr + 1, s.len - 2} : s;
}

// Reads the name of a section from the text in its brackets. Returns false if its kind is another
// one.
static bool section_name(struct span text, const char *kind, struct span *ret_name)
{
    if (kind != NULL) {
        struct span word = span_from_cstr(kind);
        if (!span_starts_with(text, word) || text.len == word.len ||
            !is_blank(text.ptr[word.len])) {
            return false;
        }
        text = span_trim((struct span){text.ptr + word.len, text.len - word.len});
    }
    *ret_name = without_quotes(text);
    return true;
}

static bool section_is(struct span text, struct shared_profile_section section)
{
    struct span name;
    return section_name(text, section.kind, &name) && span_equal(name, section.name);
}

static bool next_line(struct span *rest, struct span *ret_line)
{
    if (!span_split(rest, '\n', ret_line)) {
        return false;
    }
    if (ret_line->len > 0 && ret_line->ptr[ret_line->len - 1] == '\r') {
        ret_line->len--;
    }
    return true;
}

bool shared_profile_has_section(struct span text, struct shared_profile_section section)
{
    struct span line, found;
    while (next_line(&text, &line)) {
        if (section_text(line, &found) && section_is(found, section)) {
            return true;
        }
    }
    return false;
}

bool shared_profile_next_section(struct span *text, const char *kind, struct span *ret_name)
{
    struct span line, found;
    while (next_line(text, &line)) {
        if (section_text(line, &found) && section_name(found, kind, ret_name)) {
            return true;
        }
    }
    return false;
}

// Splits "name = value". Returns false for other lines, among them comments.
static bool setting_of(struct span line, struct span *ret_name, struct span *ret_value)
{
    line = span_trim(line);
    if (line.len == 0 || line.ptr[0] == '#' || line.ptr[0] == ';') {
        return false;
    }
    size_t equals = span_find(line, '=');
    if (equals == line.len) {
        return false;
    }
    *ret_name = span_trim((struct span){line.ptr, equals});
    *ret_value = span_trim((struct span){line.ptr + equals + 1, line.len - equals - 1});
    return true;
}

bool shared_profile_section_value(struct span text, struct shared_profile_section section,
                                  const char *outer, const char *name, struct span *ret_value)
{
    struct span line, found, key, value;
    bool is_inside = false, is_below_outer = false;
    while (next_line(&text, &line)) {
        if (section_text(line, &found)) {
            is_inside = section_is(found, section);
            is_below_outer = false;
            continue;
        }
        if (!is_inside || !setting_of(line, &key, &value)) {
            continue;
        }
        bool is_nested = is_blank(line.ptr[0]); // indented lines belong to the line above them
        if (!is_nested) {
            is_below_outer = outer != NULL && span_equal_nocase(key, span_from_cstr(outer));
        }
        if (is_nested == (outer != NULL) && is_nested == is_below_outer &&
            span_equal_nocase(key, span_from_cstr(name))) {
            *ret_value = value;
            return value.len > 0;
        }
    }
    return false;
}

// --- The profile ---------------------------------------------------------------------------------

static enum err read_shared(const char *variable, const char *name, struct buf *ret_text,
                            struct buf *ret_why)
{
    struct buf path;
    const char *chosen = getenv(variable), *home = getenv("HOME");
    enum err err = ERR_NOT_FOUND;
    buf_init(&path, 4096);
    if (credentials_text_is_set(chosen)) {
        buf_append_cstr(&path, chosen);
    } else if (home != NULL) {
        buf_printf(&path, "%s/.aws/%s", home, name);
    }
    if (path.len > 0) {
        err = credentials_read_file(buf_cstr(&path), ret_text);
    }
    if (err == ERR_PERMISSION) {
        buf_printf(ret_why, "%s: the shared file may not be read", buf_cstr(&path));
    }
    buf_done(&path);
    return err == ERR_PERMISSION ? err : ERR_OK;
}

enum err shared_profile_read(struct shared_profile *p, struct buf *ret_why)
{
    const char *chosen = getenv("AWS_PROFILE");
    bool is_chosen = credentials_text_is_set(chosen);
    *p = (struct shared_profile){.name = span_from_cstr(is_chosen ? chosen : "default"),
                                 .is_chosen = is_chosen};
    buf_init(&p->credentials_text, CREDENTIALS_FILE_MAX);
    buf_init(&p->config_text, CREDENTIALS_FILE_MAX);
    enum err err =
        read_shared("AWS_SHARED_CREDENTIALS_FILE", "credentials", &p->credentials_text, ret_why);
    if (err == ERR_OK) {
        err = read_shared("AWS_CONFIG_FILE", "config", &p->config_text, ret_why);
    }
    struct shared_profile_section named = {"profile", p->name};
    if (!span_equal_cstr(p->name, "default") ||
        shared_profile_has_section(buf_span(&p->config_text), named)) {
        p->config_kind = named.kind;
    }
    return err;
}

void shared_profile_done(struct shared_profile *p)
{
    credentials_buf_done(&p->credentials_text);
    credentials_buf_done(&p->config_text);
}

bool shared_profile_value(const struct shared_profile *p, const char *name, struct span *ret_value)
{
    struct shared_profile_section keys = {NULL, p->name}, config = {p->config_kind, p->name};
    return shared_profile_section_value(buf_span(&p->credentials_text), keys, NULL, name,
                                        ret_value) ||
           shared_profile_section_value(buf_span(&p->config_text), config, NULL, name, ret_value);
}

bool shared_profile_service_value(const struct shared_profile *p, const char *service,
                                  const char *name, struct span *ret_value)
{
    struct shared_profile_section services = {.kind = "services"};
    return shared_profile_value(p, "services", &services.name) &&
           shared_profile_section_value(buf_span(&p->config_text), services, service, name,
                                        ret_value);
}

// SPDX-License-Identifier: Apache-2.0
// The table of settings in memory, look-up by key, and suggestions for misspelt keys. Immutable;
// any thread.
#include "config/config_private.h"

#include <string.h>

#define LIVE true
#define RESTART false
static const struct setting settings[SETTING_COUNT_] = {
#define SETTING(field, kind, key, default_text, accepts, live, help)                               \
    [SETTING_##field] = {{key, default_text, accepts, help, #kind, live},                          \
                         KIND_##kind,                                                              \
                         offsetof(struct config, field)},
#include "config/settings.def"
#undef SETTING
};

#define WORD_MAX 64

const struct setting *settings_row(unsigned id)
{
    check(id < SETTING_COUNT_);
    return &settings[id];
}

unsigned config_setting_count(void)
{
    return SETTING_COUNT_;
}

const struct config_setting *config_setting(unsigned i)
{
    return &settings_row(i)->public_;
}

unsigned settings_find(struct span key)
{
    unsigned id = 0;
    while (id < SETTING_COUNT_ && !span_equal_cstr(key, settings[id].public_.key)) {
        id++;
    }
    return id;
}

bool settings_is_list(enum setting_kind kind)
{
    return kind == KIND_TEXTS || kind == KIND_LISTENS;
}

void config_environment_name(const char *key, char *ret_name)
{
    static const char prefix[] = "FOREBAY_";
    size_t len = strlen(key);
    check(sizeof(prefix) + len <= CONFIG_NAME_MAX);
    memcpy(ret_name, prefix, sizeof(prefix) - 1);
    char *at = ret_name + sizeof(prefix) - 1;
    for (size_t i = 0; i < len; i++) {
        char c = key[i];
        at[i] = c == '.' ? '_' : (char)(c >= 'a' && c <= 'z' ? c - 32 : c);
    }
    at[len] = '\0';
}

// Returns how many insertions, deletions, replacements and swaps of neighbours turn `a` into `b`.
// Both have at most WORD_MAX bytes.
static unsigned edit_distance(struct span a, struct span b)
{
    unsigned rows[3][WORD_MAX + 1];
    unsigned *before = rows[0], *last = rows[1], *current = rows[2];
    for (size_t j = 0; j <= b.len; j++) {
        last[j] = (unsigned)j;
        before[j] = 0;
    }
    for (size_t i = 1; i <= a.len; i++) {
        current[0] = (unsigned)i;
        for (size_t j = 1; j <= b.len; j++) {
            unsigned best = last[j - 1] + (a.ptr[i - 1] != b.ptr[j - 1]);
            best = best < last[j] + 1 ? best : last[j] + 1;
            best = best < current[j - 1] + 1 ? best : current[j - 1] + 1;
            if (i > 1 && j > 1 && a.ptr[i - 1] == b.ptr[j - 2] && a.ptr[i - 2] == b.ptr[j - 1] &&
                before[j - 2] + 1 < best) {
                best = before[j - 2] + 1;
            }
            current[j] = best;
        }
        unsigned *spare = before;
        before = last;
        last = current;
        current = spare;
    }
    return last[b.len];
}

const char *settings_suggest(struct span word, const char *const *candidates, unsigned count)
{
    const char *nearest = NULL;
    unsigned nearest_distance = 4;
    for (unsigned i = 0; i < count; i++) {
        struct span candidate = span_from_cstr(candidates[i]);
        if (word.len > WORD_MAX || candidate.len > WORD_MAX) {
            continue;
        }
        unsigned distance = edit_distance(word, candidate);
        if (distance < nearest_distance && 2 * distance < candidate.len) {
            nearest = candidates[i];
            nearest_distance = distance;
        }
    }
    return nearest;
}

// Returns the full key that ends in `key`, such as "cache.ttl" for "ttl"; NULL if there is none.
static const char *full_key_of(struct span key)
{
    for (unsigned id = 0; id < SETTING_COUNT_; id++) {
        const char *dot = strchr(settings[id].public_.key, '.');
        if (dot != NULL && span_equal_cstr(key, dot + 1)) {
            return settings[id].public_.key;
        }
    }
    return NULL;
}

// Returns the section that is most like `name`. Sections are compared alone, because a misspelt
// section is unlike every full key.
static const char *suggest_section(struct span name)
{
    static const char *const sections[] = {"access_log",  "admin", "auth",   "buckets",    "cache",
                                           "credentials", "io",    "limits", "listen_tls", "log",
                                           "origin",      "rules", "s3",     "shutdown"};
    return settings_suggest(name, sections, ARRAY_LEN(sections));
}

const char *settings_suggest_key(struct span key)
{
    const char *keys[SETTING_COUNT_];
    for (unsigned id = 0; id < SETTING_COUNT_; id++) {
        keys[id] = settings[id].public_.key;
    }
    const char *nearest = settings_suggest(key, keys, SETTING_COUNT_);
    if (nearest == NULL && span_find(key, '.') == key.len) {
        nearest = full_key_of(key);
        nearest = nearest != NULL ? nearest : suggest_section(key);
    }
    return nearest;
}

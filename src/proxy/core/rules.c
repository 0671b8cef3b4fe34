// SPDX-License-Identifier: Apache-2.0
// Finds the rule that applies to an object: the first rule whose glob matches "bucket/key". Pure;
// any thread.
//
// A pin by command is a rule that ends at a given time (pins_table.c). Its glob is matched here as
// well. The pin only makes its objects pinned; everything else comes from the rule of the
// configuration.
//
// The matcher keeps a set of positions in the pattern, which it advances over the text byte by
// byte. So a match takes at most (length of pattern) * (length of text) steps. The syntax:
// - `*` matches any bytes but '/', `**` any bytes, `?` one byte but '/'.
// - `{a,b}` matches one of the alternatives. It cannot be nested.
// - `\` quotes the next byte. A brace that is never closed is a plain byte.
#include "proxy/core/core.h"

#include <string.h>

#define PATTERN_MAX 1023u
#define WORD_BITS 64u
#define WORDS ((PATTERN_MAX + 1 + WORD_BITS - 1) / WORD_BITS)
#define TEXT_MAX (255u + 1u + S3_KEY_MAX)

// A set of positions in the pattern at which the rest of the text may continue. A position equal to
// the pattern's length is its end.
struct positions {
    uint64_t bits[WORDS];
};

static void positions_add(struct positions *set, size_t at)
{
    check(at <= PATTERN_MAX);
    set->bits[at / WORD_BITS] |= UINT64_C(1) << (at % WORD_BITS);
}

static bool positions_has(const struct positions *set, size_t at)
{
    check(at <= PATTERN_MAX);
    return (set->bits[at / WORD_BITS] >> (at % WORD_BITS) & 1) != 0;
}

// Returns the index of the brace that closes the one opened before `at`. Returns `len` if none
// closes it, or if another brace opens first.
static size_t brace_end(const char *pattern, size_t len, size_t at)
{
    for (size_t i = at; i < len; i++) {
        if (pattern[i] == '\\') {
            i++;
        } else if (pattern[i] == '}') {
            return i;
        } else if (pattern[i] == '{') {
            return len;
        }
    }
    return len;
}

// Adds the beginning of every alternative of the brace at `at`.
static void add_alternatives(const char *pattern, size_t at, size_t end, struct positions *set)
{
    check(pattern[at] == '{' && at < end && pattern[end] == '}');
    positions_add(set, at + 1);
    for (size_t i = at + 1; i < end; i++) {
        if (pattern[i] == '\\') {
            i++;
        } else if (pattern[i] == ',') {
            positions_add(set, i + 1);
        }
    }
}

// Adds every position that is reached without consuming a byte. All of them are after the position
// from which they are reached, so one pass is enough.
static void close_over(const char *pattern, size_t len, struct positions *set)
{
    size_t words = len / WORD_BITS + 1;
    for (size_t w = 0; w < words; w++) {
        uint64_t done = 0;
        while ((set->bits[w] & ~done) != 0) {
            size_t bit = (size_t)__builtin_ctzll(set->bits[w] & ~done);
            done |= UINT64_C(1) << bit;
            size_t at = w * WORD_BITS + bit;
            if (at >= len) {
                continue;
            }
            size_t end;
            switch (pattern[at]) {
            case '*':
                positions_add(set, at + (at + 1 < len && pattern[at + 1] == '*' ? 2 : 1));
                break;
            case '{':
                end = brace_end(pattern, len, at + 1);
                if (end < len) {
                    add_alternatives(pattern, at, end, set);
                }
                break;
            case ',':
            case '}':
                end = brace_end(pattern, len, at);
                if (end < len) {
                    positions_add(set, end + 1);
                }
                break;
            default:
                break;
            }
        }
    }
}

// Adds to `next` the positions that follow position `at` if the text's next byte is `c`.
static void advance(const char *pattern, size_t len, size_t at, char c, struct positions *next)
{
    check(at < len);
    switch (pattern[at]) {
    case '*':
        if (at + 1 < len && pattern[at + 1] == '*') {
            positions_add(next, at);
        } else if (c != '/') {
            positions_add(next, at);
        }
        break;
    case '?':
        if (c != '/') {
            positions_add(next, at + 1);
        }
        break;
    case '\\':
        if (at + 1 < len && pattern[at + 1] == c) {
            positions_add(next, at + 2);
        }
        break;
    case '{':
        if (c == '{' && brace_end(pattern, len, at + 1) == len) {
            positions_add(next, at + 1);
        }
        break;
    case ',':
    case '}':
        if (c == pattern[at] && brace_end(pattern, len, at) == len) {
            positions_add(next, at + 1);
        }
        break;
    default:
        if (pattern[at] == c) {
            positions_add(next, at + 1);
        }
        break;
    }
}

static bool is_plain(char c)
{
    return c != '*' && c != '?' && c != '{' && c != '}' && c != ',' && c != '\\';
}

bool rules_glob_match(const char *pattern, struct span text)
{
    // Most patterns are a plain prefix and `**`. The prefix is compared without a set.
    while (*pattern != '\0' && (is_plain(*pattern) || (*pattern == '\\' && pattern[1] != '\0'))) {
        pattern += *pattern == '\\';
        if (text.len == 0 || *text.ptr != *pattern) {
            return false;
        }
        pattern++;
        text.ptr++;
        text.len--;
    }
    size_t len = strlen(pattern);
    if (len == 0) {
        return text.len == 0;
    }
    if (len == 2 && pattern[0] == '*' && pattern[1] == '*') {
        return true;
    }
    if (len > PATTERN_MAX) {
        return false;
    }
    struct positions sets[2];
    size_t words = len / WORD_BITS + 1;
    memset(sets, 0, sizeof(sets));
    struct positions *now = &sets[0], *next = &sets[1];
    positions_add(now, 0);
    close_over(pattern, len, now);
    for (size_t i = 0; i < text.len; i++) {
        uint64_t any = 0;
        memset(next->bits, 0, words * sizeof(next->bits[0]));
        for (size_t w = 0; w < words; w++) {
            for (uint64_t rest = now->bits[w]; rest != 0; rest &= rest - 1) {
                size_t at = w * WORD_BITS + (size_t)__builtin_ctzll(rest);
                if (at < len) {
                    advance(pattern, len, at, text.ptr[i], next);
                }
            }
        }
        for (size_t w = 0; w < words; w++) {
            any |= next->bits[w];
        }
        if (any == 0) {
            return false;
        }
        close_over(pattern, len, next);
        struct positions *swap = now;
        now = next;
        next = swap;
    }
    return positions_has(now, len);
}

// Writes "bucket/key". Returns false if it would be longer than any valid name.
static bool name_make(struct span bucket, struct span key, char ret_text[TEXT_MAX],
                      struct span *ret_name)
{
    if (bucket.len + 1 + key.len > TEXT_MAX) {
        return false;
    }
    size_t len = bucket.len;
    if (bucket.len > 0) {
        memcpy(ret_text, bucket.ptr, bucket.len);
    }
    ret_text[len++] = '/';
    check(len + key.len <= TEXT_MAX);
    if (key.len > 0) {
        memcpy(ret_text + len, key.ptr, key.len);
        len += key.len;
    }
    *ret_name = (struct span){ret_text, len};
    return true;
}

// Returns the first rule that matches; NULL: none does.
static const struct proxy_rule *find(const struct proxy_rule *rules, unsigned count,
                                     struct span bucket, struct span key)
{
    char text[TEXT_MAX];
    struct span name;
    if (count == 0 || !name_make(bucket, key, text, &name)) {
        return NULL;
    }
    for (unsigned i = 0; i < count; i++) {
        if (rules_glob_match(rules[i].match, name)) {
            return &rules[i];
        }
    }
    return NULL;
}

const struct proxy_rule *proxy_rules_find(const struct proxy_rule *rules, unsigned count,
                                          struct span bucket, struct span key)
{
    check(count > 0);
    const struct proxy_rule *found = find(rules, count - 1, bucket, key);
    check(found == NULL || (found >= rules && found < rules + count));
    return found != NULL ? found : &rules[count - 1];
}

const struct proxy_rule *rules_find(const struct live *live, struct span bucket, struct span key)
{
    return proxy_rules_find(live->settings.rules, live->settings.rule_count, bucket, key);
}

unsigned rules_group(const struct live *live, const struct proxy_rule *rule, struct span bucket,
                     struct span key)
{
    const struct pins_table *pins = live->pins;
    check(rule != NULL);
    bool may_pin = pins != NULL && rule->cache && !rule->pin;
    const struct proxy_rule *pin = may_pin ? find(pins->rules, pins->count, bucket, key) : NULL;
    check(pin == NULL || pin->pin);
    return pin != NULL ? pin->group : rule->group;
}

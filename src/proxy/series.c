// SPDX-License-Identifier: Apache-2.0
// Objects that are read one after the other in the order of their names, as shards of a data set are. A
// *series* is keys that differ in one number. Nothing is listed: who names its shards by number does not
// list them either. Which one would come next is a guess; whether it is there the origin says.
//
// Several readers may share a series, each with an object of its own, and a worker sees only its share of
// them: so what is begun counts as in order if it is not far from the highest number that was. Runs on one
// worker.
#include "proxy/get_private.h"

#include <string.h>

#define STREAK_MIN 2u  // begun in order before the next one is named
#define DIGITS_MAX 18u // longer ones are no numbers

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static struct span span_from(struct span s, size_t at)
{
    return (struct span){s.ptr + at, s.len - at};
}

// The digits that begin at `at`, and what they say. False: there are none, or too many.
static bool number_at(struct span name, size_t at, struct span *ret_digits, uint64_t *ret_number)
{
    struct span digits = {name.ptr + at, 0};
    while (at + digits.len < name.len && is_digit(digits.ptr[digits.len])) {
        digits.len++;
    }
    *ret_digits = digits;
    return digits.len <= DIGITS_MAX && span_to_u64(digits, ret_number);
}

// Do they count in one way? "9" and "10", "099" and "100", but not "9" and "010".
static bool is_counted_alike(struct span a, struct span b)
{
    struct span longer = a.len > b.len ? a : b;
    return a.len == b.len || longer.ptr[0] != '0';
}

struct numbers {
    size_t at; // where both begin
    uint64_t a, b;
};

static bool differ_in_number(struct span a, struct span b, struct numbers *ret)
{
    size_t at = 0;
    while (at < a.len && at < b.len && a.ptr[at] == b.ptr[at]) {
        at++;
    }
    while (at > 0 && is_digit(a.ptr[at - 1])) {
        at--;
    }
    struct span digits_a, digits_b;
    if (!number_at(a, at, &digits_a, &ret->a) || !number_at(b, at, &digits_b, &ret->b)) {
        return false;
    }
    ret->at = at;
    return is_counted_alike(digits_a, digits_b) &&
           span_equal(span_from(a, at + digits_a.len), span_from(b, at + digits_b.len));
}

// Is the key of the series? `a` is then the highest number that was begun, `b` the key's.
static bool fits(const struct series *s, const struct object_key *key, struct numbers *ret)
{
    if (s->key == NULL || !span_equal(s->key->realm, key->realm) ||
        !span_equal(s->key->bucket, key->bucket)) {
        return false;
    }
    if (span_equal(s->key->key, key->key)) {
        *ret = (struct numbers){s->at, s->last, s->last};
        return true;
    }
    return differ_in_number(s->key->key, key->key, ret) && (s->streak == 0 || ret->at == s->at);
}

static struct series *find(struct series_table *table, const struct object_key *key,
                           struct numbers *ret)
{
    for (unsigned i = 0; i < SERIES_MAX; i++) {
        if (fits(&table->items[i], key, ret)) {
            return &table->items[i];
        }
    }
    return NULL;
}

static void go_on(struct series *s, struct object_key *key, const struct numbers *n, uint64_t reach)
{
    if (n->b <= n->a && n->a - n->b <= reach) {
        return; // beside the highest one
    }
    bool in_order = n->b > n->a && n->b - n->a <= reach;
    s->streak = in_order ? s->streak + 1 : 0;
    s->named = in_order ? max_u64(s->named, n->b) : n->b;
    s->at = n->at;
    s->last = n->b;
    object_key_unref(s->key);
    s->key = object_key_ref(key);
}

void series_begin(struct series_table *table, struct object_key *key, uint64_t reach,
                  uint64_t now_us)
{
    struct numbers numbers;
    struct series *s = find(table, key, &numbers);
    if (s != NULL) {
        go_on(s, key, &numbers, reach);
    } else {
        s = &table->items[0];
        for (unsigned i = 1; i < SERIES_MAX; i++) {
            s = table->items[i].used_us < s->used_us ? &table->items[i] : s;
        }
        object_key_unref(s->key);
        *s = (struct series){.key = object_key_ref(key)};
    }
    s->used_us = now_us;
}

bool series_next(struct series_table *table, const struct object_key *key, uint64_t reach,
                 char ret_text[S3_KEY_MAX], struct span *ret_name)
{
    struct numbers numbers;
    struct series *s = find(table, key, &numbers);
    if (s == NULL || s->streak < STREAK_MIN || s->named - s->last >= reach) {
        return false;
    }
    struct span name = s->key->key, former;
    uint64_t number;
    bool is_number = number_at(name, s->at, &former, &number);
    check(is_number);
    static const char zeros[DIGITS_MAX + 1] = "000000000000000000";
    char text[U64_DIGITS_MAX];
    struct span digits = span_of_u64(++s->named, text);
    size_t padding = former.len > digits.len ? former.len - digits.len : 0;
    const struct span pieces[] = {
        {name.ptr, s->at}, {zeros, padding}, digits, span_from(name, s->at + former.len)};
    size_t len = 0;
    for (size_t i = 0; i < ARRAY_LEN(pieces); i++) {
        if (len + pieces[i].len > S3_KEY_MAX) {
            return false;
        }
        memcpy(ret_text + len, pieces[i].ptr, pieces[i].len);
        len += pieces[i].len;
    }
    *ret_name = (struct span){ret_text, len};
    return true;
}

void series_end(struct series_table *table, const struct object_key *key)
{
    struct numbers numbers;
    struct series *s = find(table, key, &numbers);
    if (s != NULL) {
        s->streak = 0;
    }
}

void series_forget(struct series_table *table)
{
    for (unsigned i = 0; i < SERIES_MAX; i++) {
        object_key_unref(table->items[i].key);
    }
    *table = (struct series_table){0};
}

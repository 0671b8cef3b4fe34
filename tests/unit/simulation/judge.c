// SPDX-License-Identifier: Apache-2.0
#include "judge.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "life.h"
#include "schedule.h"

struct past *past;
struct alive alive;

// --- ends

bool is_durable_since(uint64_t at_us)
{
    return past->plan.is_honest && past->plan.lives[past->life].disk.slow_per_k == 0 &&
           schedule_monotonic_us() >= at_us + DURABLE_US;
}

static void past_becomes_durable(void)
{
    for (unsigned i = 0; i < past->put_count; i++) {
        struct put_past *put = &past->puts[i];
        put->is_durable |= put->life == past->life && is_durable_since(put->at_us);
    }
    for (unsigned i = 0; i < KEYS; i++) {
        struct key_past *k = &past->keys[i];
        k->is_kept = k->is_kept && (k->is_durable || is_durable_since(k->kept_at_us));
        k->is_durable = k->is_kept;
    }
}

void life_over(int code)
{
    past_becomes_durable();
    past->monotonic_us = schedule_monotonic_us();
    past->wall_us = schedule_wall_us();
    if (disk_has_lied() && !past->has_lied) {
        past->has_lied = true;
        past->tally[TALLY_LIES]++;
    }
    _exit(code);
}

void life_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int len = snprintf(past->failure, sizeof(past->failure), "life %u: ", past->life);
    (void)vsnprintf(past->failure + len, sizeof(past->failure) - (size_t)len, format, args);
    va_end(args);
    life_over(LIFE_FAILED);
}

void life_end(void)
{
    bool is_kill = past->plan.lives[past->life].disk.end == DISK_END_KILL;
    past->tally[is_kill ? TALLY_KILLS : TALLY_CUTS]++;
    past->tally[TALLY_CUTS_AT_START] += past->is_opening;
    life_over(LIFE_STRUCK);
}

void life_is_bystander(void)
{
    disk_is_bystander();
}

void tell(const char *format, ...)
{
    if (!past->is_loud) {
        return;
    }
    va_list args;
    va_start(args, format);
    fprintf(stderr, "    %llu ms, call %u: ", (unsigned long long)schedule_monotonic_us() / 1000,
            disk_calls());
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

// --- versions

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t size_of(unsigned key, unsigned number)
{
    uint64_t dice = mix(key * 1000 + number + 1);
    if (key >= PLAN_KEYS) {
        return 3 * BLOCK + dice % BLOCK;
    }
    static const uint64_t sizes[] = {0, 700, 9000, 70000, BLOCK, 2 * BLOCK + 1, 150000, 5 * BLOCK};
    return sizes[dice % ARRAY_LEN(sizes)];
}

static uint64_t word_of(unsigned key, unsigned number, uint64_t at)
{
    return mix(((uint64_t)key << 32 | number) * 0x9e3779b97f4a7c15u + at);
}

// `offset` is a multiple of 8.
void bytes_of(unsigned key, unsigned number, uint64_t offset, char *ret_bytes, size_t len)
{
    for (size_t i = 0; i < len; i += 8) {
        uint64_t word = word_of(key, number, (offset + i) / 8);
        memcpy(ret_bytes + i, &word, min_u64(8, len - i));
    }
}

void judge_bytes(unsigned key, unsigned number, uint64_t offset, struct span bytes)
{
    static char expected[CHUNK_SIZE];
    for (size_t at = 0; at < bytes.len; at += sizeof(expected)) {
        size_t len = min_u64(sizeof(expected), bytes.len - at);
        bytes_of(key, number, offset + at, expected, len);
        if (memcmp(expected, bytes.ptr + at, len) != 0) {
            life_fail("key %u version %u: wrong bytes from %llu on", key, number,
                      (unsigned long long)(offset + at));
        }
    }
}

struct span etag_of(unsigned number, char *text, size_t size)
{
    return (struct span){text, (size_t)snprintf(text, size, "\"v%u\"", number)};
}

struct span name_of(unsigned key, char *text, size_t size)
{
    return (struct span){text, (size_t)snprintf(text, size, "key-%u", key)};
}

// --- what is found

unsigned number_of(unsigned key, uint64_t etag_hash)
{
    char text[16];
    for (unsigned n = past->keys[key].number + 1; n-- > 0;) {
        struct span etag = etag_of(n, text, sizeof(text));
        if (hash64(etag.ptr, etag.len, 0) == etag_hash) {
            return n;
        }
    }
    life_fail("key %u: a version that never was", key);
}

unsigned judge_view(unsigned key, const struct store_view *view, unsigned least)
{
    const struct key_past *k = &past->keys[key];
    unsigned number = number_of(key, view->etag_hash);
    unsigned long long generation = view->generation;
    tell("found key %u version %u generation %llu%s, %u places", key, number, generation,
         view->rebuilt ? ", to be confirmed" : "", view->place_count);
    if (view->size_bytes != size_of(key, number)) {
        life_fail("key %u version %u: wrong size", key, number);
    }
    if (generation < alive.floors[key]) {
        life_fail("key %u: found below a floor of this process", key);
    }
    if (generation < k->condemned_below && !past->has_lied) {
        life_fail("key %u: what was condemned is found, generation %llu", key, generation);
    }
    if (!view->rebuilt && generation < k->floor && !past->has_lied) { // they may have restarted
        life_fail("key %u: generation %llu is found, deletes were answered up to %llu", key,
                  generation, (unsigned long long)k->floor);
    }
    if (!view->rebuilt && number < least) {
        life_fail("key %u: version %u after an acknowledged write of %u", key, number, least);
    }
    return number;
}

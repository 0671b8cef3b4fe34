// SPDX-License-Identifier: Apache-2.0
// Predicts which object is read next when clients read large objects in the order of a listing, as
// they read the shards of a data set.
//
// The names are from listings that passed through (pass_listing.c). Forebay sends no listings of
// its own for this, and invents no names. A *series* is the large objects of one folder. A listed
// object may be gone or replaced by now, so a name is only a hint. The request to the origin finds
// out.
//
// The table judges by the objects that readers begin whether they read a series in order. With one
// reader, an object is in order if its predecessor was the last one begun. With several readers,
// each may read a part of its own, or each may read every n-th object. Then the predecessor may be
// as many positions before the object as there are readers, and must be among about twice as many
// objects begun last. The table demands so long a streak of objects in order that chance produces
// it once in 64 times. It demands a longer one after each object that was fetched ahead and not
// read. So it predicts nothing for objects that are read in random order.
//
// One table serves the process, because a worker sees only some of a series' readers. Its lock is
// held briefly, and a request that begins an object does not wait for the lock. Any thread.
#include "proxy/core/core.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define SERIES_MAX 32u
#define NAMES_MAX 16384u    // maximum names of all series together
#define TEXT_MAX (1u << 20) // maximum bytes of all names together
#define STREAK_MIN 2u
#define CHANCE 64u
#define PENALTY_MAX 1024u

struct series_name {
    char *text; // the name without its folder
    uint16_t len;
    uint16_t streak; // objects begun in order, up to and including this one; 0: not in order
    bool follows; // also in the listing, no large object is between this name and the one before it
    bool is_refused; // the origin refused a request for the object
    uint32_t begun;  // value of begun_count when a reader began it last; 0: never
    uint32_t
        named_after; // value of begun_count when it was named for read-ahead; 0: it was not named
};

struct series {
    char *text; // bucket, then the folder with its '/'; NULL: this entry is unused
    size_t bucket_len, folder_len;
    const struct origin *origin; // only its address is compared
    struct series_name *names;   // sorted by name
    unsigned count, capacity;
    uint32_t begun_count;
    unsigned near; // an object is in order if its predecessor is among the last `near` begun
    unsigned penalty;
    uint64_t used; // value of guarded.clock at the last use
};

struct series_table {
    atomic_uint readers; // reads of large objects in progress
    struct {
        pthread_mutex_t lock; // no other lock is taken under it
        struct series items[SERIES_MAX];
        unsigned name_count;
        size_t text_bytes;
        uint64_t clock;
    } guarded;
};

// --- the table -----------------------------------------------------------------------------------

struct series_table *series_table_new(void)
{
    struct series_table *table = calloc(1, sizeof(*table));
    check(table != NULL);
    check(pthread_mutex_init(&table->guarded.lock, NULL) == 0);
    return table;
}

static void lock(struct series_table *table)
{
    check(pthread_mutex_lock(&table->guarded.lock) == 0);
}

static void unlock(struct series_table *table)
{
    check(pthread_mutex_unlock(&table->guarded.lock) == 0);
}

static void drop_locked(struct series_table *table, struct series *s)
{
    check(s->count <= table->guarded.name_count && s->count <= s->capacity);
    for (unsigned i = 0; i < s->count; i++) {
        table->guarded.text_bytes -= s->names[i].len;
        free(s->names[i].text);
    }
    table->guarded.name_count -= s->count;
    free(s->names);
    free(s->text);
    *s = (struct series){0};
}

void series_table_free(struct series_table *table)
{
    if (table == NULL) {
        return;
    }
    for (unsigned i = 0; i < SERIES_MAX; i++) {
        drop_locked(table, &table->guarded.items[i]);
    }
    check(pthread_mutex_destroy(&table->guarded.lock) == 0);
    free(table);
}

static struct span folder_of(struct span key)
{
    while (key.len > 0 && key.ptr[key.len - 1] != '/') {
        key.len--;
    }
    return key;
}

static struct span name_of(struct span key)
{
    size_t folder_len = folder_of(key).len;
    check(folder_len <= key.len);
    return (struct span){key.ptr + folder_len, key.len - folder_len};
}

static struct series *find_locked(struct series_table *table, const struct origin *origin,
                                  struct span bucket, struct span folder)
{
    for (unsigned i = 0; i < SERIES_MAX; i++) {
        struct series *s = &table->guarded.items[i];
        if (s->text != NULL && s->origin == origin &&
            span_equal((struct span){s->text, s->bucket_len}, bucket) &&
            span_equal((struct span){s->text + s->bucket_len, s->folder_len}, folder)) {
            s->used = ++table->guarded.clock;
            return s;
        }
    }
    return NULL;
}

// Returns true if the series has the name. *ret_at: its index, or the index to insert it at.
static bool name_find(const struct series *s, struct span name, unsigned *ret_at)
{
    unsigned low = 0, high = s->count;
    while (low < high) {
        unsigned middle = low + (high - low) / 2;
        struct span other = {s->names[middle].text, s->names[middle].len};
        int order = span_compare(other, name);
        if (order == 0) {
            *ret_at = middle;
            return true;
        }
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    *ret_at = low;
    return false;
}

static struct series_name *find_key_locked(struct series_table *table, const struct object_key *key,
                                           struct series **ret_series)
{
    struct series *s = find_locked(table, key->origin, key->bucket, folder_of(key->key));
    unsigned at;
    if (s == NULL || !name_find(s, name_of(key->key), &at)) {
        return NULL;
    }
    check(at < s->count);
    *ret_series = s;
    return &s->names[at];
}

// --- what is listed ------------------------------------------------------------------------------

static struct series *oldest_locked(struct series_table *table, const struct series *but)
{
    struct series *oldest = NULL;
    for (unsigned i = 0; i < SERIES_MAX; i++) {
        struct series *s = &table->guarded.items[i];
        if (s != but && s->text != NULL && (oldest == NULL || s->used < oldest->used)) {
            oldest = s;
        }
    }
    return oldest;
}

static void left_out(uint64_t names)
{
    stats_add(COUNTER_readahead_names_left_out, names);
}

static struct series *make_locked(struct series_table *table, const struct origin *origin,
                                  struct span bucket, struct span folder)
{
    struct series *s = NULL;
    for (unsigned i = 0; i < SERIES_MAX && s == NULL; i++) {
        s = table->guarded.items[i].text == NULL ? &table->guarded.items[i] : NULL;
    }
    if (s == NULL) {
        s = oldest_locked(table, NULL);
        check(s != NULL); // all entries are used
        left_out(s->count);
        drop_locked(table, s);
    }
    s->text = malloc(bucket.len + folder.len + 1);
    check(s->count == 0 && s->names == NULL);
    check(s->text != NULL);
    memcpy(s->text, bucket.ptr, bucket.len);
    if (folder.len > 0) {
        memcpy(s->text + bucket.len, folder.ptr, folder.len);
    }
    s->bucket_len = bucket.len;
    s->folder_len = folder.len;
    s->origin = origin;
    s->used = ++table->guarded.clock;
    return s;
}

// Returns true if there is room for one more name in this series. Drops other series for it, the
// least recently used first.
static bool has_room_locked(struct series_table *table, const struct series *s, size_t len)
{
    while (table->guarded.name_count == NAMES_MAX || table->guarded.text_bytes + len > TEXT_MAX) {
        struct series *oldest = oldest_locked(table, s);
        if (oldest == NULL) {
            return false;
        }
        left_out(oldest->count);
        drop_locked(table, oldest);
    }
    return true;
}

static void insert_locked(struct series_table *table, struct series *s, unsigned at,
                          struct span name, bool follows)
{
    check(at <= s->count && s->count <= s->capacity);
    check(name.len > 0 && name.len <= S3_KEY_MAX);
    check(table->guarded.name_count < NAMES_MAX);
    if (s->count == s->capacity) {
        s->capacity = s->capacity == 0 ? 16 : 2 * s->capacity;
        s->names = realloc(s->names, s->capacity * sizeof(*s->names));
        check(s->names != NULL);
    }
    memmove(&s->names[at + 1], &s->names[at], (s->count - at) * sizeof(*s->names));
    s->count++;
    // If the name after `at` follows the name before `at` in the listing, then the new name, which
    // sorts between them, also follows the name before it.
    bool between = at + 1 < s->count && s->names[at + 1].follows;
    s->names[at] = (struct series_name){.text = malloc(name.len + 1),
                                        .len = (uint16_t)name.len,
                                        .follows = at > 0 && (follows || between)};
    check(s->names[at].text != NULL);
    memcpy(s->names[at].text, name.ptr, name.len);
    table->guarded.name_count++;
    table->guarded.text_bytes += name.len;
}

static void listed_locked(struct series_table *table, const struct origin *origin,
                          struct span bucket, struct span key, bool follows)
{
    struct span folder = folder_of(key), name = name_of(key);
    struct series *s = find_locked(table, origin, bucket, folder);
    if (s == NULL) {
        s = make_locked(table, origin, bucket, folder);
    }
    unsigned at;
    if (name_find(s, name, &at)) {
        s->names[at].follows |= follows && at > 0;
        s->names[at].is_refused = false;
    } else if (has_room_locked(table, s, name.len)) {
        insert_locked(table, s, at, name, follows);
    } else {
        left_out(1);
    }
}

void series_listed(struct series_table *table, const struct origin *origin, struct span bucket,
                   struct span key, bool follows)
{
    if (name_of(key).len == 0 || key.len > S3_KEY_MAX) {
        return;
    }
    lock(table);
    listed_locked(table, origin, bucket, key, follows);
    unlock(table);
}

// --- what is read --------------------------------------------------------------------------------

// Returns the new value of `near`. It shrinks by at most one for each object begun, because a
// reader that is between two objects is not counted.
static unsigned near_now(struct series_table *table, const struct series *s)
{
    unsigned readers = atomic_load_explicit(&table->readers, memory_order_relaxed);
    uint64_t near = 2 * max_u64(readers, 1) - 1;
    return (unsigned)max_u64(near, s->near > 0 ? s->near - 1 : 0);
}

// Returns the maximum number of positions that an object's predecessor may be before it.
static unsigned reach(const struct series *s)
{
    return (s->near + 1) / 2;
}

// Returns the streak of an object that is being begun.
static unsigned streak_of(const struct series *s, const struct series_name *n)
{
    check(n >= s->names && n < s->names + s->count);
    check(!s->names[0].follows); // so the loop below stops at the first name
    for (unsigned i = 0; i < reach(s) && n->follows; i++) {
        n--;
        if (n->begun != 0 && s->begun_count - n->begun <= s->near) {
            return n->streak + 1u;
        }
    }
    return 0;
}

static bool begin_locked(struct series_table *table, const struct object_key *key)
{
    struct series *s;
    struct series_name *n = find_key_locked(table, key, &s);
    if (n == NULL) {
        return false;
    }
    unsigned near = near_now(table, s);
    if (n->begun != 0 && s->begun_count - n->begun < near) {
        return false; // another reader began the object shortly before
    }
    s->near = near;
    s->begun_count++;
    check(near > 0);
    n->streak = (uint16_t)min_u64(streak_of(s, n), UINT16_MAX);
    n->begun = s->begun_count;
    bool was_named = n->named_after != 0;
    s->penalty = was_named ? 0 : s->penalty;
    n->named_after = 0;
    return was_named;
}

bool series_begin(struct series_table *table, const struct object_key *key)
{
    atomic_fetch_add_explicit(&table->readers, 1, memory_order_relaxed);
    bool was_named = false;
    if (pthread_mutex_trylock(&table->guarded.lock) == 0) {
        was_named = begin_locked(table, key);
        unlock(table);
    }
    return was_named;
}

void series_end(struct series_table *table)
{
    unsigned before = atomic_fetch_sub_explicit(&table->readers, 1, memory_order_relaxed);
    check(before > 0);
}

static unsigned streak_needed(const struct series *s)
{
    check(s->near > 0); // because an object of the series was begun
    uint64_t ratio = s->count / ((uint64_t)s->near * reach(s)), odds = 1;
    unsigned streak = 0;
    if (ratio < 2) {
        return UINT_MAX; // random order could produce the same reads
    }
    while (streak < STREAK_MIN || odds < CHANCE) {
        odds *= ratio;
        streak++;
    }
    return streak + s->penalty;
}

// Returns true if `at`, a value of begun_count, belongs to the current pass through the series.
static bool is_recent(const struct series *s, uint32_t at)
{
    return at != 0 && s->begun_count - at < max_u64(s->count / 2, 1);
}

static struct series_name *next_locked(struct series *s, struct series_name *n)
{
    bool is_read = n->begun != 0 && s->begun_count - n->begun < s->near;
    if (!is_read || n->streak < streak_needed(s)) {
        return NULL;
    }
    const struct series_name *end = s->names + s->count;
    check(n >= s->names && n < end);
    for (unsigned i = 0; i < s->near; i++) {
        n++;
        if (n == end || !n->follows || n->is_refused) {
            return NULL;
        }
        if (!is_recent(s, n->begun) && !is_recent(s, n->named_after)) {
            n->named_after = s->begun_count;
            return n;
        }
    }
    return NULL;
}

bool series_next(struct series_table *table, const struct object_key *key,
                 char ret_text[S3_KEY_MAX], struct span *ret_name)
{
    lock(table);
    struct series *s;
    struct series_name *n = find_key_locked(table, key, &s);
    n = n != NULL ? next_locked(s, n) : NULL;
    if (n != NULL) {
        check(s->folder_len + n->len <= S3_KEY_MAX);
        memcpy(ret_text, s->text + s->bucket_len, s->folder_len);
        memcpy(ret_text + s->folder_len, n->text, n->len);
        *ret_name = (struct span){ret_text, s->folder_len + n->len};
    }
    unlock(table);
    return n != NULL;
}

static void remove_locked(struct series_table *table, struct series *s, struct series_name *n)
{
    unsigned at = (unsigned)(n - s->names);
    check(at < s->count && table->guarded.name_count > 0);
    check(table->guarded.text_bytes >= n->len);
    table->guarded.text_bytes -= n->len;
    table->guarded.name_count--;
    free(n->text);
    s->count--;
    memmove(&s->names[at], &s->names[at + 1], (s->count - at) * sizeof(*s->names));
    if (at == 0 && s->count > 0) {
        s->names[0].follows = false;
    }
}

void series_refuse(struct series_table *table, const struct object_key *key, bool is_gone)
{
    lock(table);
    struct series *s;
    struct series_name *n = find_key_locked(table, key, &s);
    if (n != NULL && is_gone) {
        remove_locked(table, s, n);
    } else if (n != NULL) {
        n->is_refused = true;
    }
    unlock(table);
}

bool series_missed(struct series_table *table, const struct object_key *key)
{
    lock(table);
    struct series *s;
    const struct series_name *n = find_key_locked(table, key, &s);
    bool is_unread = n == NULL || n->named_after != 0;
    if (n != NULL && is_unread) {
        s->penalty = (unsigned)min_u64(2 * s->penalty + 2, PENALTY_MAX);
    }
    unlock(table);
    return is_unread;
}

// SPDX-License-Identifier: Apache-2.0
// Keeps the known checksums of objects, and decides which hits make the home learn more.
// checksums.h has an overview.
//
// Limits the HEADs that no client waits for. A hit checks these limits before it asks the key's
// home, so that a refusal costs only a few loads:
//
//   limit                                             effect
//   LEARNING_MAX of these HEADs are in flight         the next read of the object tries again
//   one failed at the origin within PAUSE_MS          the same, for all objects of that origin
//   the home is being asked about this version        other hits of it neither ask nor wait
//
// All workers share the slots. A slot holds a name of 36 bits and a time. The slot belongs to that
// name until the home releases it, or until PAUSE_MS have passed. A version can use any of WAYS
// slots. If other versions hold all of them, the next read of the version tries again. Any worker
// may call these functions.
#include "fill/fill_private.h"

#define LEARNING_MAX 1024u
#define PAUSE_MS 10000u
#define WAYS 8u
#define NAME_SHIFT 28u // the time in the lower bits is in milliseconds and wraps after three days
#define TIME_MASK ((UINT64_C(1) << NAME_SHIFT) - 1)
static_assert(FILL_LEARN_VERSIONS % WAYS == 0, "the sets fill the table");
static_assert(PAUSE_MS < TIME_MASK, "a pause fits the field of the time");

static_assert(S3_SUMS_MAX == STORE_SUMS_MAX, "what is packed is kept");

#define LINE_PREFIX "x-amz-checksum-"
// Header line of a version for which the origin names no checksums. Never sent to a client.
#define LINE_NONE "x-amz-checksum-none: -\r\n"

// --- what is known -------------------------------------------------------------------------------

struct span checksums_lines(struct span headers)
{
    struct span rest = headers, line;
    while (rest.len > 0 && span_split(&rest, '\n', &line)) {
        if (span_starts_with(line, SPAN(LINE_PREFIX))) {
            return (struct span){line.ptr, (size_t)(headers.ptr + headers.len - line.ptr)};
        }
    }
    return (struct span){NULL, 0};
}

static struct span packed_in(const struct store_sums *record)
{
    check(record == NULL || record->len <= sizeof(record->bytes));
    return record != NULL ? (struct span){(const char *)record->bytes, record->len}
                          : (struct span){NULL, 0};
}

enum checksums_known checksums_known(struct span headers, const struct store_sums *record)
{
    struct span lines = checksums_lines(headers), packed = packed_in(record);
    if (lines.len > 0) {
        return span_equal(lines, SPAN(LINE_NONE)) ? CHECKSUMS_NONE : CHECKSUMS_KNOWN;
    }
    return packed.len == 0                ? CHECKSUMS_UNKNOWN
           : s3_sums_are_too_long(packed) ? CHECKSUMS_TOO_LONG
           : s3_sums_has_none(packed)     ? CHECKSUMS_NONE
                                          : CHECKSUMS_KNOWN;
}

struct span checksums_render(const struct store_sums *record, char ret_text[S3_SUMS_TEXT_MAX])
{
    return s3_sums_render(packed_in(record), ret_text);
}

static void append_line(struct buf *out, const struct header *header)
{
    for (size_t i = 0; i < header->name.len; i++) {
        char c = header->name.ptr[i];
        buf_append_char(out, c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c);
    }
    buf_append_cstr(out, ": ");
    buf_append_span(out, header->value);
    buf_append_cstr(out, "\r\n");
}

void checksums_append(struct buf *out, const struct origin *origin, const struct origin_fetch *f,
                      const struct store_object *known)
{
    struct span lines = {NULL, 0};
    for (unsigned i = 0; i < f->checksums.count; i++) {
        append_line(out, &f->checksums.items[i]);
    }
    if (f->checksums.count == 0 && known != NULL) {
        lines = checksums_lines(known->headers);
        buf_append_span(out, lines);
    }
    bool has_none = f->wants_checksums != ORIGIN_CHECKSUMS_NONE && f->status == 200 &&
                    f->checksums.count == 0 && lines.len == 0 &&
                    origin_capabilities(origin)->has_checksums;
    if (has_none && buf_span(out).len + sizeof(LINE_NONE) <= STORE_HEADERS_MAX) {
        buf_append_cstr(out, LINE_NONE);
    }
}

bool checksums_are_named(const struct store_object *known, const struct store_object *object)
{
    return known != NULL && fill_same_version(known, object) &&
           known->size_bytes == object->size_bytes && checksums_lines(known->headers).len > 0;
}

struct store_sums checksums_of(const struct store_object *object)
{
    struct store_sums sums = {0};
    sums.len = (uint8_t)s3_sums_pack(checksums_lines(object->headers), sums.bytes);
    return sums;
}

// If the run holds the whole object, every reply reads the run's headers, so the record only refers
// to them. Otherwise the record keeps the checksums itself, because a reply may find only runs that
// were fetched without checksums.
struct store_sums checksums_of_run(const struct store_object *object, uint64_t first_byte,
                                   uint64_t end_byte, const struct store_object *described)
{
    check(first_byte <= end_byte && end_byte <= object->size_bytes);
    bool has_lines = checksums_lines(object->headers).len > 0;
    if (has_lines && first_byte == 0 && end_byte == object->size_bytes) {
        return (struct store_sums){.len = 1, .bytes = {S3_SUMS_ELSEWHERE}};
    }
    return checksums_of(!has_lines && checksums_are_named(described, object) ? described : object);
}

// If the answer has another size, its checksums are not those of the record's bytes. The value
// returned then prevents further HEADs for checksums, unless a client waits for them.
struct store_sums checksums_learnt(const struct store_object *found, uint64_t size_bytes)
{
    if (found->size_bytes != size_bytes) {
        return (struct store_sums){.len = 1, .bytes = {S3_SUMS_TOO_LONG}};
    }
    stats_add(COUNTER_checksums_learnt, 1);
    return checksums_of(found);
}

// --- HEADs that no client waits for --------------------------------------------------------------

static uint64_t now_ms(const struct fill_worker *fw)
{
    return worker_now_us(fw->worker) / 1000;
}

static uint64_t name_of(uint64_t hash)
{
    return max_u64(hash >> NAME_SHIFT, 1) << NAME_SHIFT; // 0 is a free slot
}

static bool is_over(const struct fill_worker *fw, uint64_t value)
{
    return value == 0 || ((now_ms(fw) - value) & TIME_MASK) >= PAUSE_MS;
}

static uint64_t version_of(const struct object_key *key, const struct store_object *object)
{
    return hash64(object->etag.ptr, object->etag.len, key->hash.lo);
}

// Returns the first of the WAYS slots that the version can use.
static _Atomic uint64_t *version_slots(struct fill_worker *fw, uint64_t version)
{
    return &fw->room->learning.versions[version % (FILL_LEARN_VERSIONS / WAYS) * WAYS];
}

static bool is_named(uint64_t value, uint64_t hash)
{
    return value >> NAME_SHIFT == name_of(hash) >> NAME_SHIFT;
}

static uint64_t origin_hash(const struct origin *origin)
{
    return hash64(&origin, sizeof(origin), 0);
}

static _Atomic uint64_t *origin_slot(struct fill_worker *fw, const struct origin *origin)
{
    return &fw->room->learning.paused[origin_hash(origin) % FILL_LEARN_ORIGINS];
}

static bool is_paused(struct fill_worker *fw, const struct origin *origin)
{
    uint64_t value = atomic_load_explicit(origin_slot(fw, origin), memory_order_relaxed);
    return is_named(value, origin_hash(origin)) && !is_over(fw, value);
}

bool checksums_learn_may_ask(struct fill_worker *fw, const struct origin *origin)
{
    bool may =
        atomic_load_explicit(&fw->room->learning.in_flight, memory_order_relaxed) < LEARNING_MAX &&
        !is_paused(fw, origin);
    stats_add(COUNTER_checksum_heads_skipped, may ? 0 : 1);
    return may;
}

bool checksums_learn_claim(struct fill_worker *fw, const struct object_key *key,
                           const struct store_object *object)
{
    uint64_t version = version_of(key, object);
    _Atomic uint64_t *slots = version_slots(fw, version), *free = NULL;
    uint64_t free_value = 0;
    for (unsigned i = 0; i < WAYS; i++) {
        uint64_t value = atomic_load_explicit(&slots[i], memory_order_relaxed);
        if (is_over(fw, value)) {
            free = &slots[i];
            free_value = value;
        } else if (is_named(value, version)) {
            return false;
        }
    }
    return free != NULL && checksums_learn_may_ask(fw, key->origin) &&
           atomic_compare_exchange_strong(free, &free_value,
                                          name_of(version) | (now_ms(fw) & TIME_MASK));
}

void checksums_learn_release(struct fill_worker *fw, const struct object_key *key,
                             const struct store_object *object)
{
    uint64_t version = version_of(key, object);
    _Atomic uint64_t *slots = version_slots(fw, version);
    for (unsigned i = 0; i < WAYS; i++) {
        uint64_t value = atomic_load_explicit(&slots[i], memory_order_relaxed);
        if (is_named(value, version)) {
            (void)atomic_compare_exchange_strong(&slots[i], &value, 0); // fails if reused meanwhile
        }
    }
}

void checksums_learn_begin(struct fill_worker *fw)
{
    atomic_fetch_add(&fw->room->learning.in_flight, 1);
}

void checksums_learn_end(struct fill_worker *fw, const struct origin *origin, bool has_failed)
{
    unsigned before = atomic_fetch_sub(&fw->room->learning.in_flight, 1);
    check(before > 0);
    if (has_failed) {
        uint64_t value = name_of(origin_hash(origin)) | (now_ms(fw) & TIME_MASK);
        atomic_store_explicit(origin_slot(fw, origin), value, memory_order_relaxed);
    }
}

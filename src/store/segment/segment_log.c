// SPDX-License-Identifier: Apache-2.0
// Segments in memory: a table of entries, indexed by number, their pins and marks, and the choice
// of the segment for the next run. segment_supply.c creates segments, segment_free.c frees them.
//
// The life of a segment:
//   SPARE   The supply thread has created its file.
//   OPEN    A slot has taken it, because the slot's previous segment was full.
//   SEALED  It is full, and the slot has taken another one.
//   DYING   The policy has picked it, or an operation on its file has failed. It accepts no new
//           pins, its entries leave the index in batches, and its file is unlinked. When the last
//           pin is gone, the freeing thread closes the file and returns its space.
//
// An entry is at index `number` modulo the table size, so any thread finds it without a lock.
// number_take() chooses numbers so that no two live segments share an entry. A pin is one
// compare-and-swap, refused when SEGMENT_PIN_LIVE is clear. Because entries are reused, the number
// is compared after pinning.
//
// Marks. A checksum unit is *verified* if this process has seen its bytes match their checksum, or
// has written them and the write has ended. The marks exist only in memory. Units are numbered
// through the segment. Only payloads of at least 32 KiB have marks; shorter ones are verified at
// every read.
//
// The bytes in the page cache may change when they are read again from the device. So such a read
// first clears the unit's mark, and a send checks the mark again once it holds the pages.
// POSIX_FADV_RANDOM keeps the kernel's read-ahead from reading neighbours. A scan reads everything,
// so it clears all marks of its segment. One gap remains: another process may read or write the
// cache files through the page cache. `cache.verify: always` closes it.
//
// A run is *bad* if it failed its checksum or could not be read. Look-ups treat it as a miss from
// then on, even before the index has forgotten it.
#include "store/segment/segment_log.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "stats/stats.h"
#include "store/segment/segment_files.h"
#include "store/segment/segment_free.h"
#include "store/segment/segment_supply.h"

#define NUMBERS_AHEAD_AT_START 64u
#define TABLE_MIN 256u
#define VERIFIED_BITS 64u
// A cache has about SEGMENT_PARTS segments: fewer, but at least SEGMENT_PARTS_MIN, if they would be
// smaller than SEGMENT_SIZE_USUAL, and more if they would be larger than SEGMENT_SIZE_MAX.
#define SEGMENT_PARTS_MIN 64u
#define SEGMENT_PARTS 512u
#define SEGMENT_SIZE_USUAL (32u << 20)
#define SPARE_EMPTY_MAX 4u                      // empty segments kept after a crash, at most
#define SPARE_FOUND_MAX (SEGMENT_SPARE_MAX - 1) // one less: the supply thread may be creating one

uint64_t segment_cost_bytes(uint32_t segment_size_bytes)
{
    check(segment_size_bytes > 0 && (segment_size_bytes & (segment_size_bytes - 1)) == 0);
    uint32_t file_bytes = segment_file_bytes(segment_size_bytes);
    return file_bytes + max_u64(4096, file_bytes >> 12);
}

uint32_t segment_size_for(uint64_t capacity_bytes, uint64_t block_size_bytes_max)
{
    uint32_t fixed = disk_segment_size_fixed();
    uint64_t size = SEGMENT_SIZE_MIN;
    check(block_size_bytes_max <= SEGMENT_SIZE_MAX / 2);
    if (fixed >= 2 * block_size_bytes_max && fixed != 0) {
        return fixed;
    }
    // Each worker fills a segment, and some spare ones are ready. So in a cache of a few GiB, large
    // segments would take much of it before it holds much.
    uint64_t wanted = max_u64(min_u64(capacity_bytes / SEGMENT_PARTS_MIN, SEGMENT_SIZE_USUAL),
                              capacity_bytes / SEGMENT_PARTS);
    while (size < SEGMENT_SIZE_MAX && (size * 2 <= wanted || size < 2 * block_size_bytes_max)) {
        size *= 2;
    }
    check(size <= SEGMENT_SIZE_MAX && size >= 2 * block_size_bytes_max);
    return (uint32_t)size;
}

// --- phases

void segment_enter_state(struct segment *segment, enum segment_state to)
{
    static const unsigned next[] = {
#define NEXT(name) (1u << SEGMENT_##name)
#define SEGMENT_PHASE(name, successors, ...) [SEGMENT_##name] = (successors),
#include "store/segment/segment_phases.def"
#undef NEXT
    };
    check_step(next, segment->state, to);
    segment->state = to;
}

// --- the table

void segment_unmark_all(struct segment *segment)
{
    _Atomic uint64_t *bits = atomic_load(&segment->verified);
    for (uint32_t i = 0; bits != NULL && i < segment->log->unit_max / VERIFIED_BITS + 1; i++) {
        atomic_store(&bits[i], 0);
    }
}

// Turns a free entry into segment `number`. Called under the log's lock, or before threads start.
void segment_enter(struct segment_log *log, uint32_t number, enum segment_state state)
{
    struct segment *segment = segment_log_entry(log, number);
    check(atomic_load(&segment->verified) == NULL && atomic_load(&segment->bad) == NULL);
    check(number != 0 && atomic_load(&segment->number) == 0);
    check(segment->rows == NULL);
    // No thread can pin a segment that is not LIVE, so no pin of an earlier segment is left.
    check((atomic_load(&segment->pins) & (SEGMENT_PIN_LIVE | SEGMENT_PIN_COUNT)) == 0);
    check(atomic_load(&segment->holds) == 0);
    segment->log = log;
    segment_enter_state(segment, state);
    segment->seal_written = false;
    segment->recovered = false;
    segment->is_distrusted = false;
    segment->moved_blocks = segment->moved_bytes = 0;
    segment->salt = 0;
    segment->append_offset = SEGMENT_DATA_OFFSET;
    segment->unit_count = segment->run_count = segment->given_bytes = 0;
    atomic_store(&segment->bad_count, 0);
    atomic_store(&segment->number, number);
    atomic_fetch_and(&segment->pins, ~SEGMENT_PIN_UNLINKED);
    atomic_fetch_or(&segment->pins, SEGMENT_PIN_LIVE);
    atomic_fetch_add(&log->segment_count, 1);
    stats_add(COUNTER_segments, 1);
}

void segment_free_marks(struct segment *segment)
{
    free(atomic_exchange(&segment->verified, NULL));
    free(atomic_exchange(&segment->bad, NULL));
}

uint32_t segment_log_entries(uint64_t segments)
{
    uint32_t size = TABLE_MIN;
    while (size < SEGMENT_TABLE_MAX && size / 4 < segments) {
        size *= 2;
    }
    return size;
}

// Returns the smallest table size at which no two files share an entry.
static uint32_t table_size_for(const struct segment_file *files, size_t count,
                               unsigned segments_max)
{
    uint32_t size = segment_log_entries((uint64_t)segments_max + count);
    for (; size < SEGMENT_TABLE_MAX; size *= 2) {
        uint8_t *taken = calloc(size, 1);
        check(taken != NULL);
        bool meet = false;
        for (size_t i = 0; i < count && !meet; i++) {
            meet = taken[files[i].number & (size - 1)]++ != 0;
        }
        free(taken);
        if (!meet) {
            break;
        }
    }
    check(size >= TABLE_MIN && size <= SEGMENT_TABLE_MAX && (size & (size - 1)) == 0);
    return size;
}

static void log_enter_files(struct segment_log *log, const struct segment_file *files, size_t count)
{
    struct store_disk *disk = log->disk;
    for (size_t i = 0; i < count; i++) {
        uint32_t number = files[i].number;
        check(number != 0 && files[i].given_bytes <= log->segment_size_bytes);
        struct segment *segment = segment_log_entry(log, number);
        if (segment->state != SEGMENT_FREE) {
            // Another file has this entry. table_size_for() finds a size without such collisions,
            // unless the two numbers differ by a multiple of SEGMENT_TABLE_MAX.
            char name[SEGMENT_NAME_LEN];
            segment_name(number, name);
            (void)unlinkat(disk->dir.segments_fd, name, 0);
            continue;
        }
        atomic_fetch_add(&disk->used_bytes, log->segment_cost_bytes - files[i].given_bytes);
        stats_add(COUNTER_cache_bytes, log->segment_cost_bytes - files[i].given_bytes);
        segment_enter(log, number, SEGMENT_SEALED);
        segment->given_bytes = files[i].given_bytes;
        segment->recovered = true;
        segment->seal_written = true;
        log->guarded.next_number =
            (uint32_t)max_u64(log->guarded.next_number, (uint64_t)number + 1);
    }
}

uint64_t segment_log_most(const struct segment_log *log)
{
    check((log->table_mask & (log->table_mask + 1)) == 0); // the size is a power of two
    return min_u64(((uint64_t)log->table_mask + 1) / 2, SEGMENT_TABLE_MAX / 8);
}

unsigned segment_log_slots(uint64_t segments, unsigned workers)
{
    return (unsigned)min_u64(max_u64(1, segments / 8), workers);
}

void segment_log_limit(struct segment_log *log)
{
    const struct store_disk *disk = log->disk;
    check(log->segment_cost_bytes >= log->segment_size_bytes);
    check(log->slot_max > 0);
    uint64_t limit = atomic_load(&disk->segment_limit_bytes);
    uint64_t room = limit > disk->other_bytes ? limit - disk->other_bytes : 0;
    uint64_t segments = min_u64(room / log->segment_cost_bytes, segment_log_most(log));
    atomic_store(&log->segments_max, (unsigned)segments);
    atomic_store(&log->slot_count, segment_log_slots(segments, log->slot_max));
}

void segment_log_open(struct segment_log *log, const struct segment_log_options *options)
{
    struct store_disk *disk = options->disk;
    check(options->worker_count > 0 && options->descriptors_max > 0);
    check(options->host.fit != NULL && options->host.turn != NULL && options->host.begin != NULL);
    check(options->host.pick != NULL && options->host.dies != NULL && options->host.forget != NULL);
    *log = (struct segment_log){.disk = disk, .host = options->host};
    pthread_mutex_init(&log->guarded.lock, NULL);
    pthread_mutex_init(&log->rows_guard, NULL);
    pthread_mutex_init(&log->seal_lock, NULL);
    clock_cond_init(&log->guarded.wake);
    clock_cond_init(&log->guarded.free_wake);
    log->segment_size_bytes = segment_file_bytes(disk->dir.format.segment_size_bytes);
    log->segment_cost_bytes = segment_cost_bytes(disk->dir.format.segment_size_bytes);
    log->unit_max = log->segment_size_bytes / RUN_PACKED_MAX;
    log->slot_max = options->worker_count;
    // Assume the largest possible table during segment_log_limit().
    log->table_mask = SEGMENT_TABLE_MAX - 1;
    segment_log_limit(log);
    log->guarded.next_number = disk->dir.format.next_segment;
    segment_pool_init(&log->pool, disk->dir.segments_fd, options->descriptors_max);

    size_t count;
    struct segment_file *files = segment_files_list(&disk->dir, &count);
    size_t kept = log->host.fit(log->host.ctx, files, count);
    check(kept <= count);
    count = kept;
    uint32_t size = table_size_for(files, count, log->segments_max);
    log->table_mask = size - 1;
    log->table = calloc(size, sizeof(*log->table));
    check(log->table != NULL);
    log_enter_files(log, files, count);
    free(files);

    log->slots = calloc(log->slot_max + SEGMENT_SLOTS_APART, sizeof(*log->slots));
    check(log->slots != NULL);
    check(atomic_load(&log->slot_count) > 0 && atomic_load(&log->slot_count) <= log->slot_max);
    for (unsigned i = 0; i < log->slot_max + SEGMENT_SLOTS_APART; i++) {
        pthread_mutex_init(&log->slots[i].guarded.lock, NULL);
    }
}

struct segment *segment_log_entry(struct segment_log *log, uint32_t number)
{
    return &log->table[number & log->table_mask];
}

bool segment_is_full(struct segment *segment)
{
    pthread_mutex_lock(&segment->log->guarded.lock);
    bool full = segment->state == SEGMENT_SEALED && atomic_load(&segment->holds) == 0;
    pthread_mutex_unlock(&segment->log->guarded.lock);
    return full;
}

void segment_note_moved(struct segment *segment, uint64_t blocks, uint64_t bytes)
{
    segment->moved_blocks += blocks;
    segment->moved_bytes += bytes;
}

static void want_locked(struct segment_log *log, enum segment_wish wish)
{
    check(wish != SEGMENT_WISH_NOTHING);
    if (log->guarded.wish < wish) {
        log->guarded.wish = wish;
    }
    pthread_cond_signal(&log->guarded.wake);
}

void segment_log_want(struct segment_log *log, bool evict)
{
    pthread_mutex_lock(&log->guarded.lock);
    want_locked(log, evict ? SEGMENT_WISH_EVICT : SEGMENT_WISH_LOOK);
    pthread_mutex_unlock(&log->guarded.lock);
}

void segment_log_set_examined(struct segment_log *log)
{
    atomic_store(&log->examined, true);
    segment_log_want(log, false);
}

uint32_t segment_log_promise(struct segment_log *log)
{
    log->guarded.number_limit =
        (uint32_t)min_u64(UINT32_MAX, (uint64_t)log->guarded.next_number + NUMBERS_AHEAD_AT_START);
    check(log->guarded.number_limit >= log->guarded.next_number);
    return log->guarded.number_limit;
}

bool segment_log_lacks(struct segment_log *log, uint32_t number)
{
    return atomic_load(&segment_log_entry(log, number)->number) != number;
}

// --- pins and holds

bool segment_pin(struct segment *segment, uint32_t number)
{
    unsigned pins = atomic_load_explicit(&segment->pins, memory_order_relaxed);
    do {
        if ((pins & SEGMENT_PIN_LIVE) == 0) {
            return false;
        }
        check((pins & SEGMENT_PIN_COUNT) < SEGMENT_PIN_COUNT);
    } while (!atomic_compare_exchange_weak_explicit(&segment->pins, &pins, pins + 1,
                                                    memory_order_acquire, memory_order_relaxed));
    if (atomic_load_explicit(&segment->number, memory_order_relaxed) != number) {
        segment_unpin(segment);
        return false;
    }
    return true;
}

void segment_pin_again(struct segment *segment)
{
    unsigned before = atomic_fetch_add_explicit(&segment->pins, 1, memory_order_relaxed);
    check((before & SEGMENT_PIN_COUNT) > 0);
}

void segment_unpin(struct segment *segment)
{
    unsigned before = atomic_fetch_sub_explicit(&segment->pins, 1, memory_order_acq_rel);
    check((before & SEGMENT_PIN_COUNT) > 0);
    check((before & SEGMENT_PIN_LIVE) == 0 || (before & SEGMENT_PIN_UNLINKED) == 0);
    if (before - 1 == SEGMENT_PIN_UNLINKED) {
        segment_free_close(segment);
    }
}

void segment_hold_again(struct segment *segment)
{
    unsigned before = atomic_fetch_add(&segment->holds, 1);
    check(before > 0 && before < UINT32_MAX);
}

void segment_unhold(struct segment *segment)
{
    check((atomic_load(&segment->pins) & SEGMENT_PIN_COUNT) > 0); // a thread with a hold has a pin
    unsigned before = atomic_fetch_sub(&segment->holds, 1);
    check(before > 0);
    if (before == 1 && atomic_load_explicit(&segment->log->room, memory_order_relaxed) == 0) {
        segment_log_want(segment->log, false); // the segment may now be evicted
    }
}

// --- marks

static _Atomic uint64_t *segment_bits(struct segment *segment)
{
    _Atomic uint64_t *bits = atomic_load_explicit(&segment->verified, memory_order_acquire);
    if (bits != NULL) {
        return bits;
    }
    _Atomic uint64_t *made = calloc(segment->log->unit_max / VERIFIED_BITS + 1, sizeof(*made));
    check(made != NULL);
    if (!atomic_compare_exchange_strong(&segment->verified, &bits, made)) {
        free(made);
        return bits;
    }
    return made;
}

static bool units_are_ours(const struct segment *segment, uint32_t first_unit, uint32_t unit_count)
{
    return (uint64_t)first_unit + unit_count <= segment->log->unit_max;
}

bool segment_is_verified(struct segment *segment, uint32_t first_unit, uint32_t unit_count)
{
    _Atomic uint64_t *bits = atomic_load_explicit(&segment->verified, memory_order_acquire);
    if (bits == NULL || !units_are_ours(segment, first_unit, unit_count)) {
        return false;
    }
    for (uint32_t unit = first_unit; unit < first_unit + unit_count; unit++) {
        uint64_t word = atomic_load_explicit(&bits[unit / VERIFIED_BITS], memory_order_relaxed);
        if ((word >> (unit % VERIFIED_BITS) & 1) == 0) {
            return false;
        }
    }
    return true;
}

void segment_set_verified(struct segment *segment, uint32_t first_unit, uint32_t unit_count,
                          bool verified)
{
    if (!units_are_ours(segment, first_unit, unit_count)) {
        return;
    }
    _Atomic uint64_t *bits = segment_bits(segment);
    for (uint32_t unit = first_unit; unit < first_unit + unit_count; unit++) {
        uint64_t bit = (uint64_t)1 << (unit % VERIFIED_BITS);
        if (verified) {
            atomic_fetch_or_explicit(&bits[unit / VERIFIED_BITS], bit, memory_order_relaxed);
        } else {
            atomic_fetch_and_explicit(&bits[unit / VERIFIED_BITS], ~bit, memory_order_relaxed);
        }
    }
}

void segment_unmark_neighbour(struct segment *segment, uint32_t offset, uint32_t first_unit, int fd)
{
    if (offset % RUN_PAYLOAD_ALIGN != 0 && first_unit > 0 &&
        segment_is_verified(segment, first_unit - 1, 1) && !disk_io_resident(fd, offset, 1)) {
        segment_set_verified(segment, first_unit - 1, 1, false);
    }
}

bool segment_is_bad(struct segment *segment, uint32_t header_offset)
{
    unsigned count = atomic_load_explicit(&segment->bad_count, memory_order_acquire);
    if (count == 0) {
        return false;
    }
    const atomic_uint *bad = atomic_load_explicit(&segment->bad, memory_order_acquire);
    for (unsigned i = 0; i < SEGMENT_BAD_MAX; i++) {
        if (atomic_load_explicit(&bad[i], memory_order_relaxed) == header_offset) {
            return true;
        }
    }
    return false;
}

static atomic_uint *segment_bad_list(struct segment *segment)
{
    atomic_uint *bad = atomic_load_explicit(&segment->bad, memory_order_acquire);
    if (bad != NULL) {
        return bad;
    }
    atomic_uint *made = calloc(SEGMENT_BAD_MAX, sizeof(*made));
    check(made != NULL);
    if (!atomic_compare_exchange_strong(&segment->bad, &bad, made)) {
        free(made);
        return bad;
    }
    return made;
}

void segment_set_bad(struct segment *segment, uint32_t header_offset)
{
    if (segment_is_bad(segment, header_offset)) {
        return;
    }
    atomic_uint *bad = segment_bad_list(segment);
    for (unsigned i = 0; i < SEGMENT_BAD_MAX; i++) {
        uint32_t empty = 0;
        if (atomic_compare_exchange_strong(&bad[i], &empty, header_offset)) {
            atomic_fetch_add_explicit(&segment->bad_count, 1, memory_order_release);
            return;
        }
    }
    // The list is full. With this many bad runs, the rest of the segment cannot be trusted either.
    segment_log_abandon(segment->log, segment);
}

void segment_clear_bad(struct segment *segment, uint32_t header_offset)
{
    atomic_uint *bad = atomic_load_explicit(&segment->bad, memory_order_acquire);
    for (unsigned i = 0; i < SEGMENT_BAD_MAX && bad != NULL; i++) {
        uint32_t expected = header_offset;
        if (atomic_compare_exchange_strong(&bad[i], &expected, 0)) {
            atomic_fetch_sub_explicit(&segment->bad_count, 1, memory_order_release);
        }
    }
}

// --- room for the next run

static void segment_fill_up(struct segment_log *log, struct segment *segment)
{
    pthread_mutex_lock(&log->guarded.lock);
    if (segment != NULL && segment->state == SEGMENT_OPEN) {
        segment_enter_state(segment, SEGMENT_SEALED);
    }
    pthread_mutex_unlock(&log->guarded.lock);
}

static struct segment *spare_take(struct segment_slot *slot, struct segment_log *log)
{
    struct segment *next = NULL;
    pthread_mutex_lock(&log->guarded.lock);
    check(log->guarded.spare_count <= SEGMENT_SPARE_MAX);
    if (log->guarded.spare_count > log->host.spares_kept(log->host.ctx, slot)) {
        next = log->guarded.spare[--log->guarded.spare_count];
        atomic_store(&log->room, log->guarded.spare_count);
        segment_enter_state(next, SEGMENT_OPEN);
        check(next->append_offset <= log->segment_size_bytes && next->given_bytes == 0);
    }
    want_locked(log, SEGMENT_WISH_LOOK);
    pthread_mutex_unlock(&log->guarded.lock);
    return next;
}

static bool reserve_in(struct segment_log *log, struct segment *segment,
                       const struct segment_want *want, struct segment_reservation *ret_reservation)
{
    struct run_layout layout;
    segment_run_layout_make(segment->append_offset, want->header_len, want->payload_len, &layout);
    uint32_t units = want->payload_len < RUN_PACKED_MAX ? 0 : run_unit_count(want->payload_len);
    uint32_t table_bytes = segment_table_bytes(segment->run_count + 1);
    if (layout.end_offset + table_bytes > log->segment_size_bytes ||
        (uint64_t)segment->unit_count + units > log->unit_max) { // a scan may have found any count
        return false;
    }
    uint32_t number = atomic_load_explicit(&segment->number, memory_order_relaxed);
    if (!segment_pin(segment, number)) {
        return false; // abandoned by another thread
    }
    check(number != 0);
    check(layout.end_offset > segment->append_offset && layout.end_offset % RUN_ALIGN == 0);
    atomic_fetch_add(&segment->holds, 1);
    *ret_reservation = (struct segment_reservation){
        .segment = segment,
        .layout = layout,
        .number = number,
        .first_unit = segment->unit_count,
        .salt = segment->salt,
    };
    segment->append_offset = (uint32_t)layout.end_offset;
    segment->unit_count += units;
    segment->run_count++;
    return true;
}

// Keeps the segment that has more room left as the slot's current one, and seals the other. So a
// run that is as long as a segment does not cause a nearly empty segment to be sealed.
static void slot_keep_roomier(struct segment_slot *slot, struct segment_log *log,
                              struct segment *next)
{
    struct segment *current = slot->guarded.current;
    check(next != NULL && next != current);
    pthread_mutex_lock(&log->guarded.lock);
    bool stays = current != NULL && current->state == SEGMENT_OPEN &&
                 current->append_offset < next->append_offset;
    pthread_mutex_unlock(&log->guarded.lock);
    segment_fill_up(log, stays ? next : current);
    slot->guarded.current = stays ? current : next;
}

static enum err slot_reserve(struct segment_log *log, struct segment_slot *slot,
                             const struct segment_want *want,
                             struct segment_reservation *ret_reservation)
{
    struct run_layout layout;
    segment_run_layout_make(SEGMENT_DATA_OFFSET, want->header_len, want->payload_len, &layout);
    if (layout.end_offset + segment_table_bytes(1) > log->segment_size_bytes) {
        return ERR_LIMIT;
    }
    pthread_mutex_lock(&slot->guarded.lock);
    struct segment *segment = slot->guarded.current;
    bool fits = segment != NULL && reserve_in(log, segment, want, ret_reservation);
    for (unsigned tries = 0; tries < SEGMENT_SPARE_MAX && !fits; tries++) {
        segment = spare_take(slot, log);
        if (segment == NULL) {
            break;
        }
        fits = reserve_in(log, segment, want, ret_reservation);
        slot_keep_roomier(slot, log, segment);
    }
    if (!fits && !want->is_long) {
        // Neither the current segment nor a spare one has room. Seal the current segment, so that
        // it may be evicted.
        segment_fill_up(log, slot->guarded.current);
        slot->guarded.current = NULL;
    }
    pthread_mutex_unlock(&slot->guarded.lock);
    ret_reservation->slot = slot;
    check(!fits || ret_reservation->segment != NULL);
    return fits ? ERR_OK : ERR_NO_SEGMENT;
}

enum err segment_log_reserve(struct segment_log *log, unsigned worker_index,
                             const struct segment_want *want,
                             struct segment_reservation *ret_reservation)
{
    check(worker_index < log->slot_max);
    return slot_reserve(log, &log->slots[worker_index % log->slot_count], want, ret_reservation);
}

enum err segment_log_reserve_apart(struct segment_log *log, unsigned slot,
                                   const struct segment_want *want,
                                   struct segment_reservation *ret_reservation)
{
    check(slot < SEGMENT_SLOTS_APART);
    return slot_reserve(log, &log->slots[log->slot_max + slot], want, ret_reservation);
}

bool segment_log_shorten(const struct segment_reservation *reservation, uint32_t end_offset,
                         uint32_t unit_count)
{
    struct segment_slot *slot = reservation->slot;
    struct segment *segment = reservation->segment;
    const struct run_layout *layout = &reservation->layout;
    check(end_offset >= layout->start && end_offset <= layout->end_offset);
    check(end_offset % RUN_ALIGN == 0);
    // The segment is pinned, so its entry is not reused.
    check((atomic_load(&segment->pins) & SEGMENT_PIN_COUNT) > 0);
    pthread_mutex_lock(&slot->guarded.lock);
    bool last = slot->guarded.current == segment && segment->append_offset == layout->end_offset;
    if (last) {
        check(segment->run_count > 0 && segment->unit_count >= reservation->first_unit);
        segment->append_offset = end_offset;
        segment->unit_count = reservation->first_unit + unit_count;
        segment->run_count -= end_offset == layout->start; // as if the run had never begun
    }
    pthread_mutex_unlock(&slot->guarded.lock);
    return last;
}

bool segment_log_adopt(struct segment_log *log, struct segment *segment,
                       struct segment_found *found)
{
    bool kept = true;
    pthread_mutex_lock(&log->guarded.lock);
    if (segment->state == SEGMENT_SEALED && segment->recovered) {
        check(found->sealed || found->rows != NULL);
        check(found->sealed || found->end_offset >= SEGMENT_DATA_OFFSET);
        check(found->sealed || found->end_offset <= log->segment_size_bytes);
        // A segment that has given unused bytes back to the file system takes no more runs.
        found->sealed |= segment->given_bytes > 0;
        segment->recovered = false;
        segment->append_offset = found->end_offset;
        segment->unit_count = found->unit_count;
        segment->run_count = found->run_count;
        segment->seal_written = found->sealed;
        pthread_mutex_lock(&log->rows_guard);
        segment->salt = found->salt;
        segment->rows = found->sealed ? NULL : found->rows;
        pthread_mutex_unlock(&log->rows_guard);
        found->rows = found->sealed ? found->rows : NULL;
        bool room = found->end_offset <= log->segment_size_bytes - log->segment_size_bytes / 16;
        bool is_wanted = found->run_count > 0 || found->was_spare;
        bool enough = log->guarded.spare_count >= (is_wanted ? SPARE_FOUND_MAX : SPARE_EMPTY_MAX);
        if (!found->sealed && room && !enough) {
            segment_enter_state(segment, SEGMENT_SPARE);
            check(log->guarded.spare_count < SEGMENT_SPARE_MAX);
            log->guarded.spare[log->guarded.spare_count++] = segment;
            atomic_store(&log->room, log->guarded.spare_count);
        }
        kept = found->sealed || found->run_count > 0 || !enough;
    }
    pthread_mutex_unlock(&log->guarded.lock);
    segment_rows_free(found->rows);
    found->rows = NULL;
    return kept;
}

bool segment_log_is_recovered(struct segment *segment)
{
    pthread_mutex_lock(&segment->log->guarded.lock);
    bool recovered = segment->recovered;
    pthread_mutex_unlock(&segment->log->guarded.lock);
    return recovered;
}

// --- reading a segment

static enum err identify_file(struct segment *segment, int fd, struct segment_header *ret_header,
                              struct segment_seal *ret_seal)
{
    char head[2 * SECTOR_SIZE];
    ssize_t len = pread(fd, head, sizeof(head), 0);
    if (len != (ssize_t)sizeof(head)) {
        return len < 0 ? ERR_IO : ERR_CORRUPT;
    }
    struct segment_log *log = segment->log;
    struct segment_header header;
    enum err err = segment_header_decode(head, &header);
    if (err != ERR_OK) {
        return err;
    }
    struct stat st;
    if (fstat(fd, &st) != 0) {
        return ERR_IO;
    }
    if (header.number != atomic_load(&segment->number) ||
        header.size_bytes != log->segment_size_bytes || (uint64_t)st.st_size != header.size_bytes ||
        memcmp(header.cache_id, log->disk->dir.format.cache_id, CACHE_ID_LEN) != 0) {
        return ERR_CORRUPT;
    }
    bool sealed = segment_seal_decode(head + SEGMENT_SEAL_OFFSET, ret_seal) == ERR_OK &&
                  ret_seal->number == header.number && ret_seal->salt == header.salt;
    if (!sealed) {
        ret_seal->number = 0;
    }
    *ret_header = header;
    return ERR_OK;
}

enum err segment_log_identify(struct segment *segment, struct segment_header *ret_header,
                              struct segment_seal *ret_seal)
{
    int fd;
    enum err err = segment_borrow_wait(segment, &fd);
    if (err == ERR_OK) {
        err = identify_file(segment, fd, ret_header, ret_seal);
        segment_return(segment);
    }
    return err;
}

struct scan_io {
    struct segment *segment;
    int fd;
    bool failed; // some bytes could not be read
};

// Reads for a scan. It brings unverified bytes from the device while other threads read and send,
// so it first clears all marks of the segment. It clears them again at the end, because a mark may
// have become wrong: another thread verified a page during the read, then the kernel dropped the
// page, and the read brought it back.
static void scan_read(void *ctx, uint64_t offset, char *buf, size_t len)
{
    struct scan_io *io = ctx;
    size_t done = 0;
    check(offset + len <= io->segment->log->segment_size_bytes);
    stats_add(COUNTER_segment_list_bytes, len);
    segment_unmark_all(io->segment);
    while (done < len) {
        int failed = store_fault_strike(STORE_FAULT_SCAN);
        ssize_t got =
            failed != 0 ? -1 : pread(io->fd, buf + done, len - done, (off_t)(offset + done));
        if (failed == 0 && got < 0 && errno == EINTR) {
            continue;
        }
        // Treat bytes that are unreadable, or missing at the end of the file, as zeros.
        if (got <= 0) {
            size_t hole = got == 0 ? len - done : (size_t)min_u64(4096, len - done);
            memset(buf + done, 0, hole);
            done += hole;
            io->failed = true;
            continue;
        }
        done += (size_t)got;
    }
    segment_unmark_all(io->segment);
}

static uint64_t scan_next_data(void *ctx, uint64_t offset)
{
    off_t next = lseek(((struct scan_io *)ctx)->fd, (off_t)offset, SEEK_DATA);
    if (next < 0) {
        // ENXIO: no data follows. Other errors: the file system cannot tell.
        return errno == ENXIO ? UINT64_MAX : offset;
    }
    return (uint64_t)next;
}

enum err segment_log_scan(struct segment *segment, uint64_t salt,
                          bool (*on_run)(void *ctx, const struct run_header *header), void *ctx,
                          struct segment_scan_result *ret_result)
{
    struct scan_io io = {.segment = segment};
    enum err err = segment_borrow_wait(segment, &io.fd);
    if (err != ERR_OK) {
        return err;
    }
    struct segment_scan scan = {
        .read = scan_read,
        .next_data = scan_next_data,
        .on_run = on_run,
        .ctx = ctx,
        .io_ctx = &io,
        .number = atomic_load(&segment->number),
        .salt = salt,
        .size_bytes = segment->log->segment_size_bytes,
    };
    err = segment_scan_run(&scan, ret_result);
    check(err != ERR_OK || ret_result->end_offset <= segment->log->segment_size_bytes);
    check(err != ERR_OK || ret_result->end_offset >= SEGMENT_DATA_OFFSET);
    segment_return(segment);
    if (err == ERR_OK && io.failed) {
        // Some content is unknown, so nothing more may be written to the segment.
        ret_result->end_offset = segment->log->segment_size_bytes;
        ret_result->is_partial = true;
    }
    return err;
}

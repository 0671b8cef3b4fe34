// SPDX-License-Identifier: Apache-2.0
// Trouble with the disk. After a failed write nothing is stored for 5 s, after the next for 10 s
// and so on, up to 60 s. If the directory was removed, nothing is stored until a restart. Many
// failed reads stop look-ups for 10 s. If the process has no free descriptor, nothing is stored for
// a second. After some late reads in a row the disk is slow, until reads come in time. A slow disk
// gets only a few reads, as probes. Any thread.
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "store/disk/disk.h"

#define FILLING_OFF_MS_MIN 5000u
#define FILLING_OFF_MS_MAX 60000u
#define READ_ERRORS_MAX 100u
#define READ_ERRORS_WINDOW_US 60000000u
#define READING_OFF_US 10000000u
#define SHORT_US 1000000u
#define SLOWNESS_LATE 2u        // a late read adds this; a read in time takes 1
#define SLOWNESS_SLOW 8u        // from here on the disk is slow: after four late reads in a row
#define SLOWNESS_MAX 12u        // so that a disk that works again is soon not slow any more
#define LATE_MAX 8u             // late reads in flight with which a slow disk gets no more reads
#define PROBE_EVERY_US 1000000u // interval of the probes of a slow disk

void disk_filling_off(struct store_disk *disk, const char *what, int errno_value)
{
    check(what != NULL && errno_value >= 0);
    unsigned pause_ms = atomic_load(&disk->filling_off_ms);
    uint64_t now_us = clock_monotonic_us();
    // With these errors the process lacks descriptors, but the disk works.
    if (errno_value == EMFILE || errno_value == ENFILE) {
        disk_fall_short(disk, ERR_DESCRIPTORS);
        log_warn_condition("descriptors_short", "cause=%s errno=%d error=%s remedy=%s", what,
                           errno_value, log_quote(span_from_cstr(strerrordesc_np(errno_value))),
                           "raise_the_limit_on_open_files");
        return;
    }
    if (atomic_load(&disk->filling_off_until_us) > now_us) {
        return; // storing is stopped already
    }
    pause_ms =
        pause_ms == 0 ? FILLING_OFF_MS_MIN : (unsigned)min_u64(2ull * pause_ms, FILLING_OFF_MS_MAX);
    check(pause_ms >= FILLING_OFF_MS_MIN && pause_ms <= FILLING_OFF_MS_MAX);
    atomic_store(&disk->filling_off_ms, pause_ms);
    atomic_store(&disk->filling_off_errno, errno_value);
    atomic_store(&disk->filling_off_until_us, now_us + pause_ms * 1000ull);
    atomic_store(&disk->is_in_trouble, true);
    log_warn("filling_off", "cause=%s errno=%d error=%s pause_ms=%u", what, errno_value,
             log_quote(span_from_cstr(strerrordesc_np(errno_value))), pause_ms);
}

void disk_look_at_directory(struct store_disk *disk)
{
    if (atomic_load(&disk->filling_off_until_us) == DISK_FOREVER ||
        !store_dir_is_removed(&disk->dir)) {
        return;
    }
    atomic_store(&disk->filling_off_ms, FILLING_OFF_MS_MAX);
    atomic_store(&disk->filling_off_errno, ENOENT);
    atomic_store(&disk->filling_off_until_us, DISK_FOREVER);
    atomic_store(&disk->is_in_trouble, true);
    log_warn("filling_off", "cause=directory_removed errno=%d error=%s until=restart", ENOENT,
             log_quote(span_from_cstr(strerrordesc_np(ENOENT))));
}

void disk_filling_well(struct store_disk *disk)
{
    if (atomic_load_explicit(&disk->filling_off_ms, memory_order_relaxed) != 0 &&
        disk_is_filling(disk)) {
        atomic_store(&disk->filling_off_ms, 0);
        atomic_store(&disk->filling_off_until_us, 0);
        atomic_store(&disk->is_in_trouble, false);
    }
}

bool disk_is_filling(const struct store_disk *disk)
{
    uint64_t until_us = atomic_load_explicit(&disk->filling_off_until_us, memory_order_relaxed);
    return until_us == 0 || clock_monotonic_us() >= until_us;
}

bool disk_is_reading(const struct store_disk *disk)
{
    uint64_t until_us = atomic_load_explicit(&disk->reading_off_until_us, memory_order_relaxed);
    return until_us == 0 || clock_monotonic_us() >= until_us;
}

void disk_read_failed(struct store_disk *disk)
{
    uint64_t now_us = clock_monotonic_us();
    if (now_us - atomic_load(&disk->read_errors_since_us) > READ_ERRORS_WINDOW_US) {
        atomic_store(&disk->read_errors_since_us, now_us);
        atomic_store(&disk->read_errors, 0);
    }
    if (atomic_fetch_add(&disk->read_errors, 1) + 1 == READ_ERRORS_MAX) {
        atomic_store(&disk->read_errors, 0);
        atomic_store(&disk->reading_off_until_us, now_us + READING_OFF_US);
        log_condition(LOG_LEVEL_ERROR, "reading_off", "errors=%u pause_ms=%u", READ_ERRORS_MAX,
                      READING_OFF_US / 1000);
    }
}

// Several threads may change the slowness at once. Then one of the changes is lost, which does no
// harm.
void disk_read_late(struct store_disk *disk, uint64_t bytes)
{
    atomic_fetch_add(&disk->reads_late, 1);
    unsigned before = atomic_load(&disk->slowness);
    unsigned after = (unsigned)min_u64(before + SLOWNESS_LATE, SLOWNESS_MAX);
    atomic_store(&disk->late_bytes,
                 max_u64(before > 0 ? atomic_load(&disk->late_bytes) : 0, bytes));
    atomic_store(&disk->slowness, after);
    if (before < SLOWNESS_SLOW && after >= SLOWNESS_SLOW) {
        log_warn_condition("disk_slow", "late_reads_in_flight=%u largest_bytes=%llu",
                           atomic_load(&disk->reads_late),
                           (unsigned long long)atomic_load(&disk->late_bytes));
    }
}

void disk_read_late_over(struct store_disk *disk)
{
    check(atomic_fetch_sub(&disk->reads_late, 1) > 0);
}

// A read that is smaller than the late ones proves less: it needs less of a limited bandwidth.
void disk_read_in_time(struct store_disk *disk, uint64_t bytes)
{
    unsigned before = atomic_load_explicit(&disk->slowness, memory_order_relaxed);
    if (before > 0) {
        bool is_as_large = bytes >= atomic_load(&disk->late_bytes);
        atomic_store(&disk->slowness, is_as_large ? 0 : before - 1);
    }
}

bool disk_is_slow(const struct store_disk *disk)
{
    return atomic_load_explicit(&disk->slowness, memory_order_relaxed) >= SLOWNESS_SLOW;
}

bool disk_is_stuck(const struct store_disk *disk)
{
    return disk_is_slow(disk) && atomic_load(&disk->reads_late) >= LATE_MAX;
}

bool disk_takes_read(struct store_disk *disk)
{
    if (!disk_is_slow(disk)) {
        return true;
    }
    uint64_t now_us = clock_monotonic_us(), at_us = atomic_load(&disk->probe_at_us);
    return !disk_is_stuck(disk) && now_us >= at_us &&
           atomic_compare_exchange_strong(&disk->probe_at_us, &at_us, now_us + PROBE_EVERY_US);
}

void disk_fall_short(struct store_disk *disk, enum err err)
{
    check(err == ERR_DESCRIPTORS || err == ERR_UNREADABLE);
    atomic_store(&disk->short_err, (int)err);
    atomic_store(&disk->short_until_us, clock_monotonic_us() + SHORT_US);
}

enum err disk_shortage(const struct store_disk *disk)
{
    uint64_t until_us = atomic_load(&disk->short_until_us);
    if (until_us == 0 || clock_monotonic_us() >= until_us) {
        return ERR_OK;
    }
    enum err err = (enum err)atomic_load(&disk->short_err);
    check(err != ERR_OK); // disk_fall_short() sets short_err before short_until_us
    return err;
}

void disk_set_make_err(struct store_disk *disk, enum err err)
{
    check(err == ERR_OK || err == ERR_DESCRIPTORS || err == ERR_IO);
    atomic_store(&disk->make_err, (int)err);
}

enum refusal disk_trouble(const struct store_disk *disk)
{
    int failed = atomic_load(&disk->filling_off_errno);
    if (!atomic_load(&disk->attached)) {
        return disk_room_is_short(disk, DISK_ROOM_OF_SPACE) ? REFUSAL_disk_full
                                                            : REFUSAL_disk_degraded;
    }
    return !atomic_load(&disk->is_in_trouble)     ? REFUSAL_none
           : failed == ENOSPC || failed == EDQUOT ? REFUSAL_disk_full
                                                  : REFUSAL_disk_degraded;
}

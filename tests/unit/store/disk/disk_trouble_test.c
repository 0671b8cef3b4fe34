// SPDX-License-Identifier: Apache-2.0
// A disk is slow after late reads in a row, gets only probes then, and is not slow any more when
// reads come in time.
#include "store/disk/disk.h"

#include "base/clock.h"
#include "test.h"

#define LARGE 262144u
#define SMALL 4096u

// Ends each late read at once unless `stay`.
static void late(struct store_disk *disk, unsigned count, uint64_t bytes, bool stay)
{
    for (unsigned i = 0; i < count; i++) {
        disk_read_late(disk, bytes);
        if (!stay) {
            disk_read_late_over(disk);
        }
    }
}

Test(disk_trouble, disk_is_slow_after_four_late_reads_in_a_row)
{
    struct store_disk disk = {0};
    for (unsigned i = 0; i < 10; i++) {
        late(&disk, 3, LARGE, false);
        cr_assert(!disk_is_slow(&disk) && disk_takes_read(&disk));
        disk_read_in_time(&disk, LARGE);
    }
    late(&disk, 4, LARGE, false);
    cr_assert(disk_is_slow(&disk));
}

Test(disk_trouble, slow_disk_gets_one_read_a_second)
{
    struct store_disk disk = {0};
    late(&disk, 4, LARGE, false);
    for (unsigned i = 0; i < 3; i++) {
        cr_assert(disk_takes_read(&disk));
        cr_assert_not(disk_takes_read(&disk));
        clock_test_advance_us(1000000);
    }
}

Test(disk_trouble, slow_disk_with_many_late_reads_in_flight_gets_no_read)
{
    struct store_disk disk = {0};
    late(&disk, 7, LARGE, true);
    cr_assert(disk_is_slow(&disk) && !disk_is_stuck(&disk));
    late(&disk, 1, LARGE, true);
    cr_assert(disk_is_stuck(&disk) && !disk_takes_read(&disk));
    disk_read_late_over(&disk);
    cr_assert(!disk_is_stuck(&disk) && disk_takes_read(&disk));
}

Test(disk_trouble, one_read_in_time_as_large_as_the_late_ones_ends_it)
{
    struct store_disk disk = {0};
    late(&disk, 100, LARGE, false);
    disk_read_in_time(&disk, LARGE);
    cr_assert_not(disk_is_slow(&disk));
    late(&disk, 3, LARGE, false);
    cr_assert_not(disk_is_slow(&disk));
}

// A disk with little bandwidth brings them in time, too.
Test(disk_trouble, several_smaller_reads_in_time_end_it)
{
    struct store_disk disk = {0};
    late(&disk, 100, LARGE, false);
    disk_read_in_time(&disk, SMALL);
    cr_assert(disk_is_slow(&disk));
    for (unsigned i = 0; i < 4; i++) {
        disk_read_in_time(&disk, SMALL);
    }
    cr_assert_not(disk_is_slow(&disk));
    late(&disk, 1, LARGE, false);
    cr_assert(disk_is_slow(&disk), "the next late read shows that it is slow still");
}

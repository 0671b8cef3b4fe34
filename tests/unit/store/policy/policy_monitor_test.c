// SPDX-License-Identifier: Apache-2.0
// Proves: a reuse is one event at its age and an exposure at every younger one; what is not read
// again is exposed, too; the sample halves when it is full and stays within its bound, and doubles
// again when few of it are asked for; how often a use has many requests is known.
#include "store/policy/policy_fixture.h"
#include "test.h"

#include <stdlib.h>

static struct policy_monitor *monitor_new(struct policy_clock *clock)
{
    struct policy_monitor *monitor = calloc(1, sizeof(*monitor));
    cr_assert_not_null(monitor);
    policy_monitor_init(monitor);
    policy_clock_init(clock, 1024 * 1000);
    clock->same_use = 2;
    return monitor;
}

static float lived(const struct policy_monitor *monitor, unsigned c, unsigned bucket)
{
    float sum = 0;
    for (unsigned b = 0; b <= bucket; b++) {
        sum += monitor->exposures[c][b];
    }
    return sum;
}

Test(policy_monitor, a_reuse_is_an_event_at_its_age)
{
    struct policy_clock clock;
    struct policy_monitor *monitor = monitor_new(&clock);
    policy_monitor_touch(monitor, &clock, 1ull << 40, POLICY_CLASS_NEW, false, false);
    clock.tick += 1; // the same use
    policy_monitor_touch(monitor, &clock, 1ull << 40, 5, true, false);
    clock.tick += 99;
    policy_monitor_touch(monitor, &clock, 1ull << 40, 5, true, false);
    unsigned bucket = policy_bucket(100);
    cr_assert_eq(monitor->events[POLICY_CLASS_NEW][bucket], 1.0f);
    cr_assert_eq(lived(monitor, POLICY_CLASS_NEW, bucket - 1), 1.0f);
    cr_assert_eq(lived(monitor, POLICY_CLASS_NEW, bucket), 0.0f);
    cr_assert_eq(monitor->count, 1u);
    cr_assert_eq(monitor->followed[0].reuse_class, 5u);
    free(monitor);
}

Test(policy_monitor, runs_that_are_not_read_again_count_as_exposed)
{
    struct policy_clock clock;
    struct policy_monitor *monitor = monitor_new(&clock);
    policy_monitor_touch(monitor, &clock, 1ull << 40, POLICY_CLASS_NEW, false, false);
    clock.tick += 1000;
    policy_monitor_sweep(monitor, clock.tick, 10);
    policy_monitor_sweep(monitor, clock.tick, 10); // once is enough
    cr_assert_eq(lived(monitor, POLICY_CLASS_NEW, 0), 1.0f);
    cr_assert_eq(lived(monitor, POLICY_CLASS_NEW, policy_bucket(1000) - 1), 1.0f);
    cr_assert_eq(lived(monitor, POLICY_CLASS_NEW, policy_bucket(1000)), 0.0f);
    free(monitor);
}

Test(policy_monitor, the_sample_halves_when_it_is_full)
{
    struct policy_clock clock;
    struct policy_monitor *monitor = monitor_new(&clock);
    for (uint64_t i = 0; i < 10 * POLICY_MONITOR_MAX; i++) {
        policy_monitor_touch(monitor, &clock, shelf_key(i), POLICY_CLASS_NEW, false, false);
        cr_assert_leq(monitor->count, POLICY_MONITOR_MAX);
    }
    cr_assert_leq(monitor->key_max, UINT32_MAX / 8);
    cr_assert_gt(monitor->count, POLICY_MONITOR_MAX / 4);
    uint32_t found = 0; // those that are left are found again
    for (uint32_t i = 0; i < monitor->count; i++) {
        cr_assert_leq(monitor->followed[i].key, monitor->key_max);
    }
    uint32_t before = monitor->count;
    clock.tick += 100;
    for (uint64_t i = 0; i < 10 * POLICY_MONITOR_MAX; i++) {
        policy_monitor_touch(monitor, &clock, shelf_key(i), 1, true, false);
    }
    for (unsigned b = 0; b < POLICY_BUCKETS; b++) {
        found += (uint32_t)monitor->events[POLICY_CLASS_NEW][b];
    }
    cr_assert_geq(found, before - 2);
    free(monitor);
}

Test(policy_monitor, counts_the_misses_that_are_asked_for_again)
{
    struct policy_clock clock;
    struct policy_monitor *monitor = monitor_new(&clock);
    for (unsigned asks = 1; asks <= 3; asks++) {
        for (uint64_t i = 0; i < 1000; i++) {
            policy_monitor_touch(monitor, &clock, shelf_key(i), 1, true, true);
            for (unsigned again = 1; again < asks; again++) {
                policy_monitor_again(monitor, shelf_key(i));
            }
            clock.tick += i == 999 ? 100 : 0;
        }
        cr_assert(asks == 1 ? monitor->again_share < 0.1f : monitor->again_share > 0.9f);
        cr_assert_leq(monitor->again_share, 1.01f, "the second request of a use counts, no other");
    }
    free(monitor);
}

Test(policy_monitor, the_past_fades)
{
    struct policy_clock clock;
    struct policy_monitor *monitor = monitor_new(&clock);
    for (unsigned round = 0; round < 100; round++) {
        clock.tick += 100;
        policy_monitor_touch(monitor, &clock, 1ull << 40, POLICY_CLASS_NEW, round > 0, false);
        policy_monitor_decay(monitor, 1);
        cr_assert(monitor->weight <= 2e9f);
    }
    float events = monitor->events[POLICY_CLASS_NEW][policy_bucket(100)] / monitor->weight;
    cr_assert_gt(events, 0.9f); // 1/2 + 1/4 + ...
    cr_assert_lt(events, 1.1f);
    free(monitor);
}

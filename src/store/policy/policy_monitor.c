// SPDX-License-Identifier: Apache-2.0
// Learns at which age keys are read again. The monitor follows a sample of keys, chosen by hash,
// whether their runs are stored or not. When a key is read again, the monitor counts an event for
// the key's class and age bucket. When a key's age passes a bucket without reuse, it counts an
// exposure. When the table is full, the monitor removes keys that were not read for very long. If
// that is not enough, it removes half of the sample.
//
// The weight of new counts rises, so that older counts matter less. When the weight exceeds
// WEIGHT_MAX, all counts are scaled down.
#include "store/policy/policy_private.h"

#include <math.h>

// The monitor may remove a key that was not read for longer than this, because the key's age is
// past the last bucket.
#define FOLLOW_TICKS_MAX (64 * POLICY_CAPACITY_TICKS)
#define WEIGHT_MAX 1e9f
#define AGAIN_WINDOW 64.0f // window of the mean again_share, in uses that began with a miss

static_assert(POLICY_MONITOR_MAX < UINT16_MAX, "slots hold index + 1");

void policy_monitor_init(struct policy_monitor *monitor)
{
    monitor->key_max = UINT32_MAX;
    monitor->weight = 1;
}

// Returns the slot of this key, or the free slot for it.
static uint32_t monitor_slot(const struct policy_monitor *monitor, uint32_t key)
{
    check(monitor->count <= POLICY_MONITOR_MAX);
    uint32_t slot = key * 0x9e3779b1u >> 17;
    static_assert(POLICY_MONITOR_SLOTS == 1u << 15, "as many bits are left");
    while (monitor->slots[slot] != 0 && monitor->followed[monitor->slots[slot] - 1].key != key) {
        // The loop ends, because half of the slots are free.
        slot = (slot + 1) % POLICY_MONITOR_SLOTS;
    }
    return slot;
}

static void monitor_set_due(struct policy_followed *one)
{
    check(one->bucket < POLICY_BUCKETS);
    one->due = one->tick + (policy_bucket_begin_quarters(one->bucket + 1u) + 3) / 4;
}

static void monitor_live_through(struct policy_monitor *monitor, struct policy_followed *one,
                                 unsigned bucket)
{
    check(bucket < POLICY_BUCKETS);
    check(one->reuse_class < POLICY_CLASSES);
    if (bucket > one->bucket) {
        monitor->exposures[one->reuse_class][one->bucket] += monitor->weight;
        monitor->exposures[one->reuse_class][bucket] -= monitor->weight;
        monitor->has_news[one->reuse_class] = true;
        one->bucket = (uint8_t)bucket;
    }
    monitor_set_due(one);
}

static void monitor_purge(struct policy_monitor *monitor, uint32_t tick)
{
    uint32_t kept = 0;
    memset(monitor->slots, 0, sizeof(monitor->slots));
    for (uint32_t i = 0; i < monitor->count; i++) {
        struct policy_followed one = monitor->followed[i];
        if (one.key <= monitor->key_max && tick - one.tick < FOLLOW_TICKS_MAX) {
            monitor->followed[kept++] = one;
            monitor->slots[monitor_slot(monitor, one.key)] = (uint16_t)kept;
        }
    }
    monitor->count = kept;
}

static void monitor_ask(struct policy_monitor *monitor, struct policy_followed *one)
{
    monitor->again_share += one->waits_again != 0 ? 1 / AGAIN_WINDOW : 0;
    one->waits_again = 0;
    check(monitor->again_share >= 0);
}

void policy_monitor_touch(struct policy_monitor *monitor, struct policy_clock *clock,
                          uint64_t key64, unsigned reuse_class, bool is_known, bool is_missed)
{
    uint32_t key = (uint32_t)(key64 >> 32);
    check(reuse_class < POLICY_CLASSES);
    if (key > monitor->key_max) {
        return;
    }
    uint32_t slot = monitor_slot(monitor, key);
    struct policy_followed *one;
    if (monitor->slots[slot] != 0) {
        one = &monitor->followed[monitor->slots[slot] - 1];
        uint32_t age = clock->tick - one->tick;
        if (age <= clock->same_use) {
            monitor_ask(monitor, one);
            return;
        }
        unsigned bucket = policy_bucket(age);
        monitor_live_through(monitor, one, bucket);
        monitor->events[one->reuse_class][bucket] += monitor->weight;
        monitor->has_news[one->reuse_class] = true;
        policy_clock_learn(clock, true);
        policy_clock_learn_newcomer(clock, one->reuse_class == POLICY_CLASS_SILENT);
    } else {
        policy_clock_learn(clock, is_known);
        if (monitor->count == POLICY_MONITOR_MAX) {
            monitor_purge(monitor, clock->tick);
            if (monitor->count > POLICY_MONITOR_MAX / 4 * 3) {
                monitor->key_max /= 2;
                monitor_purge(monitor, clock->tick);
            }
            if (key > monitor->key_max) {
                return;
            }
            slot = monitor_slot(monitor, key);
        }
        check(monitor->count < POLICY_MONITOR_MAX);
        check(monitor->slots[slot] == 0);
        one = &monitor->followed[monitor->count++];
        monitor->slots[slot] = (uint16_t)monitor->count;
        one->key = key;
    }
    one->tick = clock->tick;
    one->reuse_class = (uint8_t)reuse_class;
    one->bucket = 0;
    one->waits_again = is_missed;
    monitor->again_share -= is_missed ? monitor->again_share / AGAIN_WINDOW : 0;
    monitor_set_due(one);
}

// Returns NULL if the key is not followed.
static struct policy_followed *monitor_find(struct policy_monitor *monitor, uint64_t key64)
{
    uint32_t key = (uint32_t)(key64 >> 32);
    uint32_t slot = key <= monitor->key_max ? monitor_slot(monitor, key) : 0;
    bool is_there = key <= monitor->key_max && monitor->slots[slot] != 0;
    return is_there ? &monitor->followed[monitor->slots[slot] - 1] : NULL;
}

void policy_monitor_again(struct policy_monitor *monitor, uint64_t key)
{
    struct policy_followed *one = monitor_find(monitor, key);
    if (one != NULL) {
        monitor_ask(monitor, one);
    }
}

void policy_monitor_put(struct policy_monitor *monitor, const struct policy_followed *one)
{
    check(one->reuse_class < POLICY_CLASSES);
    check(one->bucket < POLICY_BUCKETS);
    uint32_t slot = monitor_slot(monitor, one->key);
    if (monitor->slots[slot] == 0 && one->key <= monitor->key_max &&
        monitor->count < POLICY_MONITOR_MAX) {
        monitor->followed[monitor->count++] = *one;
        monitor->slots[slot] = (uint16_t)monitor->count;
    }
}

void policy_monitor_sweep(struct policy_monitor *monitor, uint32_t tick, uint32_t count)
{
    for (uint32_t i = 0; i < count && i < monitor->count; i++) {
        if (monitor->swept >= monitor->count) {
            monitor->swept = 0;
        }
        struct policy_followed *one = &monitor->followed[monitor->swept++];
        if ((int32_t)(tick - one->due) >= 0) {
            monitor_live_through(monitor, one, policy_bucket(tick - one->tick));
        }
    }
}

void policy_monitor_decay(struct policy_monitor *monitor, double half_lives)
{
    check(half_lives >= 0);
    monitor->weight *= (float)exp2(half_lives);
    check(monitor->weight >= 1);
    if (monitor->weight < WEIGHT_MAX) {
        return;
    }
    float scale = 1 / monitor->weight;
    for (unsigned c = 0; c < POLICY_CLASSES; c++) {
        for (unsigned b = 0; b < POLICY_BUCKETS; b++) {
            monitor->events[c][b] *= scale;
            monitor->exposures[c][b] *= scale;
        }
        monitor->has_news[c] = true;
    }
    monitor->weight = 1;
}

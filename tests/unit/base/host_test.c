// SPDX-License-Identifier: Apache-2.0
// Proves: the memory of a cgroup is limited by the lowest memory.max or memory.high of the cgroup
// and of those above it, or by the limit of version 1. The periods in which a CPU limit was used up
// are counted for each cgroup, in both versions.
#include "base/host.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test.h"

#define MIB (1ull << 20)

static char root[64], own[96];

static void put(const char *name, const char *text)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", root, name);
    FILE *file = fopen(path, "w");
    cr_assert(file != NULL);
    cr_assert(fputs(text, file) >= 0);
    cr_assert(fclose(file) == 0);
}

static void begin(const char *folder, const char *line)
{
    char path[256];
    (void)snprintf(root, sizeof(root), "/tmp/forebay-host-XXXXXX");
    cr_assert(mkdtemp(root) != NULL);
    (void)snprintf(path, sizeof(path), "%s/%s", root, folder);
    cr_assert(mkdir(path, 0700) == 0);
    (void)snprintf(path, sizeof(path), "%s/%s/pod", root, folder);
    cr_assert(mkdir(path, 0700) == 0);
    put("own", line);
    (void)snprintf(own, sizeof(own), "%s/own", root);
    host_test_cgroups(root, own);
}

static int on_left(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st, (void)kind, (void)ftw;
    return remove(path);
}

static void end(void)
{
    cr_assert(nftw(root, on_left, 8, FTW_DEPTH | FTW_PHYS) == 0);
    host_test_cgroups("/sys/fs/cgroup", "/proc/self/cgroup");
}

static void expect(uint64_t most, uint64_t room, uint64_t free_bytes)
{
    struct host_memory memory;
    cr_assert_eq(host_memory_limit_bytes(), most);
    cr_assert(host_memory_look(&memory));
    cr_assert_eq(memory.most_bytes, most);
    cr_assert_eq(memory.room_bytes, room);
    cr_assert_eq(memory.free_bytes, free_bytes);
}

Test(host, the_lowest_limit_of_the_cgroups_counts)
{
    begin("kube", "0::/kube/pod\n");
    put("kube/pod/memory.max", "67108864\n");
    put("kube/pod/memory.high", "max\n");
    put("kube/pod/memory.current", "25165824\n"); // 24 MiB
    put("kube/pod/memory.stat", "anon 8388608\nfile 16777216\nshmem 4194304\n");
    put("kube/memory.max", "max\n");
    put("kube/memory.current", "33554432\n");
    put("kube/memory.stat", "file 16777216\nshmem 0\n");
    expect(64 * MIB, 52 * MIB, 40 * MIB); // 12 MiB are neither free nor page cache
    cr_assert(!host_memory_is_short());
    put("kube/pod/memory.high", "33554432\n");
    expect(32 * MIB, 20 * MIB, 8 * MIB);
    put("kube/pod/memory.high", "25165824\n");
    expect(24 * MIB, 12 * MIB, 0);
    cr_assert(host_memory_is_short());
    put("kube/pod/memory.high", "33554432\n");
    put("kube/memory.high", "18874368\n"); // 18 MiB, of which 32 are in use
    expect(18 * MIB, 2 * MIB, 0);
    end();
}

Test(host, the_limit_of_version_1_counts)
{
    begin("memory", "5:cpu:/\n4:memory:/pod\n");
    put("memory/pod/memory.limit_in_bytes", "67108864\n");
    put("memory/pod/memory.usage_in_bytes", "25165824\n");
    put("memory/pod/memory.stat", "total_cache 16777216\ntotal_shmem 4194304\n");
    expect(64 * MIB, 52 * MIB, 40 * MIB);
    end();
}

static struct host_cpu_limit used_up_since(const struct host_cpu *before)
{
    struct host_cpu after;
    host_cpu_look(&after);
    return host_cpu_between(before, &after);
}

Test(host, the_cpu_limit_that_was_used_up_most_is_named)
{
    struct host_cpu before;
    begin("kube", "0::/kube/pod\n");
    put("kube/pod/cpu.max", "50000 100000\n");
    put("kube/pod/cpu.stat", "usage_usec 9\nnr_periods 100\nnr_throttled 10\nthrottled_usec 5\n");
    put("kube/cpu.max", "30000 50000\n");
    put("kube/cpu.stat", "nr_periods 1000\nnr_throttled 700\n");
    put("cpu.stat", "usage_usec 99\n"); // as at the root of the machine: no limit is counted
    host_cpu_look(&before);
    cr_assert_eq(before.count, 2);
    cr_assert_eq(used_up_since(&before).throttled, 0);
    put("kube/pod/cpu.stat", "usage_usec 9\nnr_periods 200\nnr_throttled 93\nthrottled_usec 5\n");
    put("kube/cpu.stat", "nr_periods 1200\nnr_throttled 720\n");
    struct host_cpu_limit most = used_up_since(&before);
    cr_assert_eq(most.throttled, 83);
    cr_assert_eq(most.periods, 100);
    cr_assert_eq(most.quota_us, 50000);
    cr_assert_eq(most.period_us, 100000);
    put("kube/cpu.stat", "nr_periods 1200\nnr_throttled 900\n"); // 200 of 200 half as long periods
    cr_assert_eq(used_up_since(&before).throttled, 200);
    cr_assert_eq(used_up_since(&before).quota_us, 30000);
    put("kube/cpu.max", "max 50000\n"); // a limit that is gone holds nobody back
    cr_assert_eq(used_up_since(&before).throttled, 83);
    put("kube/pod/cpu.stat", "nr_periods 3\nnr_throttled 1\n"); // the process is in another cgroup
    cr_assert_eq(used_up_since(&before).throttled, 0);
    end();
}

Test(host, the_cpu_limit_of_version_1_is_counted)
{
    struct host_cpu before;
    begin("cpu", "4:memory:/\n1:cpu,cpuacct:/pod\n");
    put("cpu/pod/cpu.cfs_quota_us", "1000\n");
    put("cpu/pod/cpu.cfs_period_us", "100000\n");
    put("cpu/pod/cpu.stat", "nr_periods 700\nnr_throttled 690\nthrottled_time 17\n");
    put("cpu/cpu.cfs_quota_us", "-1\n");
    put("cpu/cpu.cfs_period_us", "100000\n");
    put("cpu/cpu.stat", "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n");
    host_cpu_look(&before);
    put("cpu/pod/cpu.stat", "nr_periods 720\nnr_throttled 709\nthrottled_time 18\n");
    struct host_cpu_limit most = used_up_since(&before);
    cr_assert_eq(most.throttled, 19);
    cr_assert_eq(most.periods, 20);
    cr_assert_eq(most.quota_us, 1000);
    end();
}

Test(host, without_a_cgroup_no_cpu_limit_is_counted)
{
    struct host_cpu before;
    begin("kube", "");
    host_cpu_look(&before);
    cr_assert_eq(before.count, 0);
    cr_assert_eq(used_up_since(&before).throttled, 0);
    end();
}

// SPDX-License-Identifier: Apache-2.0
// The number of CPUs and the memory that this process may use, by the limits of its cgroup and of
// all cgroups above it, and how often a CPU limit was used up. Uses cgroup version 2 if it is
// mounted, else version 1 as a container sees it.
#include "base/host.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"

#define STAT_BYTES 8192 // enough for /proc/meminfo and memory.stat
#define PATH_BYTES 1024

static const char *cgroup_root = "/sys/fs/cgroup", *cgroup_own = "/proc/self/cgroup";

#ifdef FOREBAY_FAULTS
void host_test_cgroups(const char *root, const char *own)
{
    cgroup_root = root;
    cgroup_own = own;
}
#endif

bool host_read_file(const char *path, char *ret_text, size_t size)
{
    ret_text[0] = '\0';
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    ssize_t len = read(fd, ret_text, size - 1);
    (void)close(fd); // the file was only read, so a failure loses nothing
    if (len <= 0) {
        return false;
    }
    ret_text[len] = '\0';
    return true;
}

bool host_file_is_regular(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

const char *host_secret_file_remedy(uid_t owner)
{
    return owner == geteuid() ? "chmod 600 it"
                              : "chmod 640 it and give it a group that only the server's user is "
                                "in; in a Kubernetes volume set defaultMode: 0440";
}

// Parses the next number of a list and removes it from *rest. Returns false for "max" and at the
// end of the list.
static bool take_number(struct span *rest, uint64_t *ret_value)
{
    size_t len = 0;
    while (len < rest->len && rest->ptr[len] != ' ' && rest->ptr[len] != '\n') {
        len++;
    }
    bool ok = span_to_u64((struct span){rest->ptr, len}, ret_value);
    size_t skip = len < rest->len ? len + 1 : len;
    rest->ptr += skip;
    rest->len -= skip;
    return ok;
}

static bool read_numbers(const char *folder, const char *file, uint64_t *ret_values, unsigned count)
{
    char path[PATH_BYTES], text[128];
    if (snprintf(path, sizeof(path), "%s/%s", folder, file) >= (int)sizeof(path) ||
        !host_read_file(path, text, sizeof(text))) {
        return false;
    }
    struct span rest = span_from_cstr(text);
    for (unsigned i = 0; i < count; i++) {
        if (!take_number(&rest, &ret_values[i])) {
            return false;
        }
    }
    return true;
}

// Returns true if a line of /proc/self/cgroup, "number:controllers:/path", is for `controller`. In
// version 2 a line has no controller, and `controller` is empty.
static bool names_controller(struct span line, struct span controller, struct span *ret_path)
{
    struct span number, names, name;
    if (!span_split(&line, ':', &number) || !span_split(&line, ':', &names) || line.len == 0 ||
        line.ptr[0] != '/') {
        return false;
    }
    *ret_path = line;
    if (names.len == 0) {
        return controller.len == 0; // version 2
    }
    while (span_split(&names, ',', &name)) {
        if (span_equal(name, controller)) {
            return true;
        }
    }
    return false;
}

// Finds this process's cgroup folder below `root`. In a container with version 1, the path may be
// one of the host, and its folders do not exist here. Such folders set no limit, and the walk up
// ends at the root.
static void own_cgroup(const char *root, struct span controller, char *ret_folder)
{
    char text[PATH_BYTES] = "";
    struct span rest, line, path;
    (void)snprintf(ret_folder, PATH_BYTES, "%s", root);
    if (!host_read_file(cgroup_own, text, sizeof(text))) {
        return;
    }
    rest = span_from_cstr(text);
    while (span_split(&rest, '\n', &line)) {
        if (names_controller(line, controller, &path) && path.len < PATH_BYTES / 2 &&
            path.len > 1) {
            (void)snprintf(ret_folder, PATH_BYTES, "%s%.*s", root, (int)path.len, path.ptr);
        }
    }
}

struct limits {
    uint64_t cpu_count, memory_bytes;
    char memory_folder[PATH_BYTES]; // the folder that sets memory_bytes
    const char *memory_file;        // its file with the memory in use
};

static void apply_cpu_quota(struct limits *limits, uint64_t quota_us, uint64_t period_us)
{
    if (quota_us > 0 && period_us > 0) {
        uint64_t cpus = quota_us / period_us + (quota_us % period_us != 0);
        limits->cpu_count = min_u64(limits->cpu_count, cpus);
    }
}

// Reads the CPU time in us that a folder's cgroup may use in each period, and the period. Returns
// false if it has no limit.
static bool read_cpu_quota(const char *folder, uint64_t ret_pair[2])
{
    return read_numbers(folder, "cpu.max", ret_pair, 2) ||
           (read_numbers(folder, "cpu.cfs_quota_us", &ret_pair[0], 1) &&
            read_numbers(folder, "cpu.cfs_period_us", &ret_pair[1], 1));
}

static void apply_folder(void *ctx, const char *folder)
{
    struct limits *limits = ctx;
    uint64_t pair[2], value;
    if (read_cpu_quota(folder, pair)) {
        apply_cpu_quota(limits, pair[0], pair[1]);
    }
    // Above memory.high the kernel reclaims the cgroup's memory and slows its processes down.
    static const struct {
        const char *limit, *used;
    } files[] = {{"memory.max", "memory.current"},
                 {"memory.high", "memory.current"},
                 {"memory.limit_in_bytes", "memory.usage_in_bytes"}};
    for (unsigned i = 0; i < ARRAY_LEN(files); i++) {
        if (read_numbers(folder, files[i].limit, &value, 1) && value < limits->memory_bytes) {
            limits->memory_bytes = value;
            (void)snprintf(limits->memory_folder, PATH_BYTES, "%s", folder);
            limits->memory_file = files[i].used;
        }
    }
}

// Calls `look` for the folder of this process's cgroup in each hierarchy, and for those above it.
static void walk_cgroups(void (*look)(void *ctx, const char *folder), void *ctx)
{
    static const struct {
        const char *folder;
        struct span controller;
    } trees[] = {{"", SPAN("")}, {"/cpu", SPAN("cpu")}, {"/memory", SPAN("memory")}};
    for (unsigned i = 0; i < ARRAY_LEN(trees); i++) {
        char root[PATH_BYTES / 4], folder[PATH_BYTES];
        (void)snprintf(root, sizeof(root), "%s%s", cgroup_root, trees[i].folder);
        own_cgroup(root, trees[i].controller, folder);
        while (strlen(folder) >= strlen(root)) {
            look(ctx, folder);
            *strrchr(folder, '/') = '\0'; // finds a slash, because the name begins with the root
        }
    }
}

static struct limits cgroup_limits(void)
{
    struct limits limits = {.cpu_count = UINT64_MAX, .memory_bytes = UINT64_MAX};
    walk_cgroups(apply_folder, &limits);
    return limits;
}

unsigned host_workers(unsigned most)
{
    uint64_t count = 1;
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        count = (uint64_t)CPU_COUNT(&set);
    } else {
        long online = sysconf(_SC_NPROCESSORS_ONLN); // there are more CPUs than cpu_set_t can hold
        count = online > 0 ? (uint64_t)online : 1;
    }
    count = min_u64(count, cgroup_limits().cpu_count);
    return (unsigned)min_u64(max_u64(count, 1), most);
}

static uint64_t machine_memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : UINT64_MAX;
}

uint64_t host_memory_bytes(void)
{
    return min_u64(machine_memory_bytes(), cgroup_limits().memory_bytes);
}

// The cgroup with the lowest memory limit. host_memory_limit_bytes() sets it, and
// host_memory_is_short() and host_memory_look() read it.
static struct {
    pthread_mutex_t lock;
    struct limits limits;
} limited_by = {.lock = PTHREAD_MUTEX_INITIALIZER};

uint64_t host_memory_limit_bytes(void)
{
    struct limits now = cgroup_limits();
    pthread_mutex_lock(&limited_by.lock);
    limited_by.limits = now;
    pthread_mutex_unlock(&limited_by.lock);
    return now.memory_bytes < machine_memory_bytes() ? now.memory_bytes : 0;
}

static struct limits limits_found(void)
{
    pthread_mutex_lock(&limited_by.lock);
    struct limits limits = limited_by.limits;
    pthread_mutex_unlock(&limited_by.lock);
    return limits;
}

bool host_memory_is_short(void)
{
    uint64_t used;
    const struct limits by = limits_found();
    return by.memory_file != NULL && read_numbers(by.memory_folder, by.memory_file, &used, 1) &&
           used >= by.memory_bytes - by.memory_bytes / 8;
}

// Finds the line `name` in a text of lines "name number" or "name: number kB".
static bool find_number(struct span text, const char *name, uint64_t *ret_number)
{
    struct span line, wanted = span_from_cstr(name);
    while (span_split(&text, '\n', &line)) {
        if (line.len > wanted.len && memcmp(line.ptr, wanted.ptr, wanted.len) == 0 &&
            line.ptr[wanted.len] == ' ') {
            struct span rest = {line.ptr + wanted.len, line.len - wanted.len};
            while (rest.len > 0 && *rest.ptr == ' ') {
                rest = (struct span){rest.ptr + 1, rest.len - 1};
            }
            return take_number(&rest, ret_number);
        }
    }
    return false;
}

static bool machine_memory(struct host_memory *ret_memory)
{
    char text[STAT_BYTES];
    uint64_t available_kib, free_kib;
    uint64_t most = machine_memory_bytes();
    if (most == UINT64_MAX || !host_read_file("/proc/meminfo", text, sizeof(text)) ||
        !find_number(span_from_cstr(text), "MemAvailable:", &available_kib) ||
        !find_number(span_from_cstr(text), "MemFree:", &free_kib)) {
        return false;
    }
    uint64_t room = min_u64(most, max_u64(available_kib, free_kib) * 1024);
    *ret_memory = (struct host_memory){most, room, min_u64(room, free_kib * 1024)};
    return true;
}

static bool cgroup_memory(const struct limits *by, struct host_memory *ret_memory)
{
    char path[PATH_BYTES], text[STAT_BYTES];
    uint64_t used, pages, shared = 0;
    if (!read_numbers(by->memory_folder, by->memory_file, &used, 1) ||
        snprintf(path, sizeof(path), "%s/memory.stat", by->memory_folder) >= (int)sizeof(path) ||
        !host_read_file(path, text, sizeof(text)) ||
        (!find_number(span_from_cstr(text), "total_cache", &pages) && // version 1
         !find_number(span_from_cstr(text), "file", &pages))) {
        return false;
    }
    if (!find_number(span_from_cstr(text), "total_shmem", &shared)) { // tmpfs is no page cache
        (void)find_number(span_from_cstr(text), "shmem", &shared);    // kernels before 4.5 lack it
    }
    uint64_t most = by->memory_bytes;
    uint64_t others = used - min_u64(used, pages - min_u64(pages, shared));
    uint64_t room = most - min_u64(most, others);
    *ret_memory = (struct host_memory){most, room, min_u64(room, most - min_u64(most, used))};
    return true;
}

bool host_memory_look(struct host_memory *ret_memory)
{
    struct host_memory group;
    const struct limits by = limits_found();
    if (!machine_memory(ret_memory)) {
        return false;
    }
    if (by.memory_file == NULL || by.memory_bytes >= ret_memory->most_bytes) {
        return true;
    }
    if (!cgroup_memory(&by, &group)) {
        return false;
    }
    uint64_t room = min_u64(ret_memory->room_bytes, group.room_bytes);
    *ret_memory = (struct host_memory){
        group.most_bytes, room, min_u64(room, min_u64(ret_memory->free_bytes, group.free_bytes))};
    return true;
}

// --- CPU limits that were used up ----------------------------------------------------------------

static void look_at_cpu(void *ctx, const char *folder)
{
    struct host_cpu *cpu = ctx;
    char path[PATH_BYTES], text[STAT_BYTES];
    uint64_t pair[2] = {0, 0};
    struct host_cpu_limit limit = {0};
    if (cpu->count == HOST_CPU_LIMITS_MAX ||
        snprintf(path, sizeof(path), "%s/cpu.stat", folder) >= (int)sizeof(path) ||
        !host_read_file(path, text, sizeof(text)) ||
        !find_number(span_from_cstr(text), "nr_periods", &limit.periods) ||
        !find_number(span_from_cstr(text), "nr_throttled", &limit.throttled)) {
        return;
    }
    if (read_cpu_quota(folder, pair)) {
        limit.quota_us = pair[0];
        limit.period_us = pair[1];
    }
    cpu->limits[cpu->count++] = limit;
}

void host_cpu_look(struct host_cpu *ret_cpu)
{
    *ret_cpu = (struct host_cpu){0};
    walk_cgroups(look_at_cpu, ret_cpu);
}

struct host_cpu_limit host_cpu_between(const struct host_cpu *before, const struct host_cpu *after)
{
    struct host_cpu_limit most = {0};
    for (unsigned i = 0; i < min_u64(before->count, after->count); i++) {
        struct host_cpu_limit now = after->limits[i];
        // Counts fall only if the process has moved to another cgroup.
        now.throttled -= min_u64(now.throttled, before->limits[i].throttled);
        now.periods -= min_u64(now.periods, before->limits[i].periods);
        now.throttled = min_u64(now.throttled, now.periods);
        if (now.throttled * now.period_us > most.throttled * most.period_us) {
            most = now;
        }
    }
    return most;
}

bool host_cpu_is_short(const struct host_cpu_limit *between, uint64_t time_us)
{
    return between->throttled * between->period_us >= time_us / 10 * 3;
}

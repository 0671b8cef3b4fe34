// SPDX-License-Identifier: Apache-2.0
// `forebay doctor`: checks this host: the cache directory and its disk, the I/O engine, limits and
// ports.
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/client/command_client.h"
#include "cli/doctor/command_doctor.h"
#include "loop/loop.h"
#include "server/server.h"

// Time for a check of the disk, in addition to d->timeout_ms. One reads for up to 2 * PROBE_MAX_US.
#define DISK_MS 8000u
#define PROBE_BYTES (1u << 20)
#define PROBE_READS 16u
#define PROBE_MAX_US 2000000u // longest duration of the test
#define SLOW_4K_US 10000u
#define SLOW_1M_US 100000u
#define ALIGNMENT 4096u
#define FREE_INODES_MIN 1000u

// --- The directory -------------------------------------------------------------------------------

static const char *state_of_directory(const struct doctor *d)
{
    return d->look->is_in_use                    ? "in use by a running server"
           : d->look->found == STORE_FOUND_CACHE ? "a cache, not in use"
           : d->look->found == STORE_FOUND_EMPTY ? "empty"
           : d->look->found == STORE_FOUND_OTHER ? "shared: a folder of its own"
                                                 : "does not exist; a start makes it";
}

static void check_directory(struct doctor *d)
{
    const char *dir = d->config->cache_dir;
    char above[PATH_MAX];
    commands_nearest_directory(dir, above);
    if (store_look(dir, d->look) != ERR_OK) {
        command_doctor_find(
            d, DOCTOR_RED, "directory",
            "make it this user's: forebay prepare DIR --owner UID:GID, or choose another cache.dir",
            "%s cannot be opened: %s", dir, strerror(errno));
        return;
    }
    const json_t *degraded = command_doctor_peer_condition(d->peer, "disk-degraded");
    bool is_writable = access(above, W_OK | X_OK) == 0;
    if (d->look->is_in_use && !d->peer->has_cache && !d->peer->is_unknown) {
        command_doctor_find(d, DOCTOR_RED, "directory",
                            "stop that process, or choose another cache.dir: no two share one",
                            "%s is in use by another process, which is no server with these "
                            "settings",
                            dir);
    } else if (degraded != NULL) {
        command_doctor_find(d, DOCTOR_RED, "directory", command_client_text(degraded, "remedy"),
                            "%s: the running server stores nothing there", dir);
    } else if (!is_writable && !d->look->is_in_use) {
        command_doctor_find(d, DOCTOR_RED, "directory",
                            errno == EROFS ? "mount it for writing, or choose another cache.dir"
                                           : "make it this user's: forebay prepare DIR --owner "
                                             "UID:GID, or choose another cache.dir",
                            "%s: %s cannot be written to: %s", dir, above, strerror(errno));
    } else if (d->look->found == STORE_FOUND_OLDER) {
        command_doctor_find(d, DOCTOR_RED, "directory",
                            "forebay prepare DIR --wipe-older, or choose another cache.dir",
                            "%s holds a cache of the older format version %u", dir,
                            d->look->version);
    } else if (d->look->found == STORE_FOUND_NEWER) {
        command_doctor_find(
            d, DOCTOR_RED, "directory", "run the newer program, or choose another cache.dir",
            "%s holds a cache of the newer format version %u", dir, d->look->version);
    } else if (d->look->found == STORE_FOUND_OTHER && d->look->uid == geteuid() &&
               (d->look->mode & (S_IWGRP | S_IWOTH)) ==
                   0) { // if not empty, the cache uses a folder of its own in it
        command_doctor_find(
            d, DOCTOR_RED, "directory",
            "set cache.dir to an empty directory or to one that does not exist",
            "%s is not empty and not a Forebay cache, so the server refuses to start", dir);
    } else {
        command_doctor_find(d, DOCTOR_GREEN, "directory", NULL, "%s: %s", dir,
                            state_of_directory(d));
    }
}

// --- The file system -----------------------------------------------------------------------------

static const struct {
    unsigned long magic;
    const char *name, *why; // why: what makes it unsuitable; NULL: suitable
} kinds[] = {
    {0xef53, "ext4", NULL},
    {0x58465342, "xfs", NULL},
    {0x9123683e, "btrfs", NULL},
    {0x2fc12fc1, "zfs", NULL},
    {0xf2f52010, "f2fs", NULL},
    {0x01021994, "tmpfs", "it is memory, not disk"},
    {0x858458f6, "ramfs", "it is memory, not disk"},
    {0x794c7630, "overlayfs", "it is a container's layer: slow, and full when the node's disk is"},
    {0x6969, "NFS", "network file system: put the index on a local disk"},
    {0xff534d42, "CIFS", "network file system: put the index on a local disk"},
    {0xfe534d42, "SMB2", "network file system: put the index on a local disk"},
    {0x65735546, "FUSE", "a program's or a network file system: put the index on a local disk"},
    {0x0bd00bd0, "Lustre", "network file system: put the index on a local disk"},
    {0x00c36400, "Ceph", "network file system: put the index on a local disk"},
};

static void check_file_system(struct doctor *d)
{
    char above[PATH_MAX];
    commands_nearest_directory(d->config->cache_dir, above);
    struct statfs fs;
    if (statfs(above, &fs) != 0) {
        command_doctor_find(d, DOCTOR_RED, "file system", "choose another cache.dir", "%s: %s",
                            above, strerror(errno));
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        if (kinds[i].magic == (unsigned long)fs.f_type) {
            command_doctor_find(
                d, kinds[i].why == NULL ? DOCTOR_GREEN : DOCTOR_YELLOW, "file system",
                kinds[i].why == NULL ? NULL : "put cache.dir on a local disk (xfs or ext4 on NVMe)",
                "%s%s%s", kinds[i].name, kinds[i].why == NULL ? "" : ": ",
                kinds[i].why == NULL ? "" : kinds[i].why);
            return;
        }
    }
    command_doctor_find(d, DOCTOR_GREEN, "file system", NULL, "of a kind not known here (0x%lx)",
                        (unsigned long)fs.f_type);
}

static void check_size(struct doctor *d)
{
    char above[PATH_MAX];
    commands_nearest_directory(d->config->cache_dir, above);
    struct statvfs fs;
    if (statvfs(above, &fs) != 0) {
        return; // check_file_system() has reported it
    }
    uint64_t unit = fs.f_frsize, total = fs.f_blocks * unit, free_bytes = fs.f_bavail * unit;
    uint64_t wanted = d->config->cache_size.bytes;
    uint64_t room = commands_cache_room(d->config, commands_cache_bytes(d->config->cache_dir));
    bool has_cache = d->look->found == STORE_FOUND_CACHE;
    if (wanted > total) {
        command_doctor_find(d, DOCTOR_RED, "size",
                            "make cache.size smaller, or a share such as 80%",
                            "cache.size is %s, the file system has %s",
                            config_value_text(d->config, commands_setting("cache.size")),
                            command_bytes((double)total));
    } else if (wanted > room) {
        command_doctor_find(
            d, DOCTOR_YELLOW, "size",
            "make cache.size smaller, or free space: it holds what there is room for",
            "cache.size is %s, the file system has room for %s (%s are free)",
            config_value_text(d->config, commands_setting("cache.size")),
            command_bytes((double)room), command_bytes((double)free_bytes));
    } else if (fs.f_files > 0 && fs.f_favail < FREE_INODES_MIN) {
        command_doctor_find(d, DOCTOR_YELLOW, "size",
                            "remove small files: a cache has one file for 4 to 256 MiB",
                            "%llu inodes are free", (unsigned long long)fs.f_favail);
    } else if (100 * (free_bytes / (unit > 0 ? unit : 1)) <
                   d->config->cache_min_free_percent * (total / (unit > 0 ? unit : 1)) &&
               !has_cache) {
        command_doctor_find(
            d, DOCTOR_YELLOW, "size",
            "free space, or make cache.min_free smaller: nothing is stored until then",
            "%s of %s are free, less than cache.min_free wants", command_bytes((double)free_bytes),
            command_bytes((double)total));
    } else {
        command_doctor_find(d, DOCTOR_GREEN, "size", NULL, "cache.size %s; %s of %s are free",
                            config_value_text(d->config, commands_setting("cache.size")),
                            command_bytes((double)free_bytes), command_bytes((double)total));
    }
}

static uint64_t median_read_us(int fd, char *bytes, size_t len)
{
    uint64_t took_us[PROBE_READS], began_us = clock_monotonic_us();
    unsigned count = 0;
    while (count < PROBE_READS && clock_monotonic_us() - began_us < PROBE_MAX_US) {
        uint64_t from_us = clock_monotonic_us();
        if (pread(fd, bytes, len, 0) != (ssize_t)len) {
            return UINT64_MAX;
        }
        uint64_t value = clock_monotonic_us() - from_us;
        unsigned at = count++;
        for (; at > 0 && took_us[at - 1] > value; at--) {
            took_us[at] = took_us[at - 1];
        }
        took_us[at] = value;
    }
    return took_us[count / 2];
}

// Reads past the page cache from a file without a name, so nothing is left behind.
static void check_disk(struct doctor *d)
{
    char above[PATH_MAX], found[128];
    struct doctor_cpu cpu;
    commands_nearest_directory(d->config->cache_dir, above);
    char *bytes = aligned_alloc(ALIGNMENT, PROBE_BYTES);
    check(bytes != NULL);
    memset(bytes, 'x', PROBE_BYTES);
    int fd = open(above, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0 || pwrite(fd, bytes, PROBE_BYTES, 0) != PROBE_BYTES || fdatasync(fd) != 0) {
        // EISDIR means that the file system does not support O_TMPFILE.
        int failed = errno == EISDIR ? EOPNOTSUPP : errno;
        if (access(above, W_OK) == 0) { // if not, check_directory() has reported it
            command_doctor_find(
                d, failed == EOPNOTSUPP ? DOCTOR_GREEN : DOCTOR_RED, "disk",
                failed == EOPNOTSUPP ? NULL
                : failed == ENOSPC || failed == EDQUOT
                    ? "free space there, or choose another cache.dir"
                    : "look at the kernel's log (dmesg), or choose another cache.dir",
                failed == EOPNOTSUPP ? "%s: not measured (%s)" : "%s: a file cannot be written: %s",
                above, strerror(failed));
        }
    } else if (fcntl(fd, F_SETFL, O_DIRECT) != 0) {
        command_doctor_find(d, DOCTOR_YELLOW, "disk",
                            "use xfs or ext4: cache.scrub_rate needs direct I/O",
                            "direct I/O is refused");
    } else {
        command_doctor_cpu_begin(&cpu);
        uint64_t small_us = median_read_us(fd, bytes, ALIGNMENT);
        uint64_t large_us = median_read_us(fd, bytes, PROBE_BYTES);
        (void)snprintf(found, sizeof(found), "median reads: 4 KiB in %.2f ms, 1 MiB in %.2f ms",
                       (double)small_us / 1000, (double)large_us / 1000);
        command_doctor_cpu_find(d, &cpu, "disk",
                                "use an NVMe disk: an object store may be as fast as this one",
                                small_us > SLOW_4K_US || large_us > SLOW_1M_US, found);
    }
    if (fd >= 0) {
        (void)close(fd); // the file has no name, so closing it also frees it
    }
    free(bytes);
}

// --- The engine, limits --------------------------------------------------------------------------

static void check_engine(struct doctor *d)
{
    struct loop_options options = {.worker_count = 1,
                                   .engine = (enum disk_engine)d->config->io_engine,
                                   .disk_threads = 1,
                                   .disk_queue_depth = 16};
    struct loop *loop = NULL;
    struct buf why;
    buf_init(&why, 4096);
    if (loop_new(&options, &loop, &why) != ERR_OK) {
        command_doctor_find(d, DOCTOR_RED, "engine",
                            "set io.engine to auto, or permit io_uring (a seccomp profile, sysctl "
                            "kernel.io_uring_disabled)",
                            "%s", buf_cstr(&why));
    } else {
        bool is_fallback =
            d->config->io_engine == CONFIG_IO_AUTO && loop_engine(loop) == DISK_ENGINE_THREADS;
        command_doctor_find(d, is_fallback ? DOCTOR_YELLOW : DOCTOR_GREEN, "engine",
                            is_fallback
                                ? "permit io_uring (a seccomp profile, sysctl "
                                  "kernel.io_uring_disabled), or leave it: threads serve as well"
                                : NULL,
                            "%s", loop_engine_why(loop));
    }
    loop_free(loop);
    buf_done(&why);
}

// Checks the limit on open files. Returns true if it suffices.
static bool check_descriptors(struct doctor *d, const struct command_limits_plan *plan)
{
    const struct config *c = d->config;
    if (plan->descriptors < plan->least) {
        command_doctor_find(d, DOCTOR_RED, "limits",
                            "raise the hard limit on open files (ulimit -Hn, LimitNOFILE=), or set "
                            "workers lower",
                            "%llu open files: %u workers need at least %llu",
                            (unsigned long long)plan->descriptors, c->workers,
                            (unsigned long long)plan->least);
    } else if (plan->is_short) {
        command_doctor_find(
            d, DOCTOR_YELLOW, "limits",
            "raise the hard limit on open files (ulimit -Hn, LimitNOFILE=)",
            "%llu open files: %u clients of %u, %u connections to each origin of %u",
            (unsigned long long)plan->descriptors, plan->clients, c->limits_max_connections,
            plan->origin_connections, c->origin_connections);
    }
    return plan->descriptors >= plan->least && !plan->is_short;
}

// Returns how a running server divides its open files, otherwise how a server that starts here
// would divide those of this process.
static struct command_limits_plan plan_of_files(const struct doctor *d)
{
    bool has_server = !d->is_local && d->peer->has_cache;
    uint64_t files = has_server ? command_client_u64(d->peer->version, "open_files_max") : 0;
    return files > 0 ? command_limits_plan_with(d->config, files) : command_limits_plan(d->config);
}

static void check_limits(struct doctor *d)
{
    const struct config *c = d->config;
    cpu_set_t cpus;
    struct command_limits_plan plan = plan_of_files(d);
    bool is_good = check_descriptors(d, &plan);
    if (c->memory_limit_bytes > 0 && c->limits_max_buffer_bytes > c->memory_limit_bytes / 2) {
        is_good = false;
        command_doctor_find(
            d, DOCTOR_YELLOW, "limits",
            "make limits.max_buffer a quarter of it (auto), or raise the memory limit",
            "limits.max_buffer is %s of a memory limit of %s",
            command_bytes((double)c->limits_max_buffer_bytes),
            command_bytes((double)c->memory_limit_bytes));
    }
    if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0 &&
        c->workers > 2u * (unsigned)CPU_COUNT(&cpus)) {
        is_good = false;
        command_doctor_find(d, DOCTOR_YELLOW, "limits", "set workers to auto",
                            "%u workers on %d CPUs", c->workers, CPU_COUNT(&cpus));
    }
    if (is_good) {
        command_doctor_find(
            d, DOCTOR_GREEN, "limits", NULL, "%llu open files, %u workers, buffers of %s%s%s",
            (unsigned long long)plan.descriptors, c->workers,
            command_bytes((double)c->limits_max_buffer_bytes),
            c->memory_limit_bytes > 0 ? " in a memory limit of " : "",
            c->memory_limit_bytes > 0 ? command_bytes((double)c->memory_limit_bytes) : "");
    }
}

// --- Ports ---------------------------------------------------------------------------------------

// Binds the address and releases it. Returns 0 or errno.
static int try_bind(const struct config_listen *at)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE};
    struct addrinfo *found = NULL;
    char port[8];
    (void)snprintf(port, sizeof(port), "%u", at->port);
    if (getaddrinfo(at->host, port, &hints, &found) != 0) {
        return EADDRNOTAVAIL;
    }
    int failed = 0, one = 1;
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
        bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 1) != 0) {
        failed = errno;
    }
    if (fd >= 0) {
        (void)close(fd); // the socket has accepted no connection
    }
    freeaddrinfo(found);
    return failed;
}

static void check_port(struct doctor *d, const char *key, const struct config_listen *at)
{
    char remedy[256];
    if ((at->kind != CONFIG_LISTEN_TCP && at->kind != CONFIG_LISTEN_TLS) || at->inherited ||
        at->port == 0) {
        return;
    }
    int failed = try_bind(at);
    bool is_ours = failed == EADDRINUSE && (command_doctor_peer_listens(d, at) ||
                                            (d->look->is_in_use && d->peer->is_unknown));
    if (failed == 0 || is_ours) {
        command_doctor_find(d, DOCTOR_GREEN, "port", NULL, "%s %s: %s", key, at->text,
                            is_ours ? "in use by the running server" : "free");
        return;
    }
    (void)snprintf(remedy, sizeof(remedy),
                   failed == EADDRINUSE
                       ? "stop what listens there (ss -ltnp 'sport = :%u'), or change %s"
                   : failed == EACCES ? "ports below 1024 want CAP_NET_BIND_SERVICE (%u): change %s"
                                      : "no interface has that address (port %u): change %s",
                   at->port, key);
    command_doctor_find(d, DOCTOR_RED, "port", remedy, "%s %s: %s", key, at->text,
                        strerror(failed));
}

// Checks the disk in processes of their own. After one that hangs, the others would hang too.
static void check_cache(struct doctor *d)
{
    static const struct {
        const char *name;
        void (*check)(struct doctor *d);
    } checks[] = {{"directory", check_directory},
                  {"file system", check_file_system},
                  {"size", check_size},
                  {"disk", check_disk}};
    bool is_back = true;
    for (size_t i = 0; i < ARRAY_LEN(checks) && is_back; i++) {
        is_back = command_doctor_apart(d, checks[i].name, checks[i].check, d->timeout_ms + DISK_MS);
    }
}

void command_doctor_host(struct doctor *d)
{
    // Shared memory, because the check of the directory runs in another process.
    d->look =
        mmap(NULL, sizeof(*d->look), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(d->look != MAP_FAILED);
    check_cache(d);
    check_engine(d);
    check_limits(d);
    for (unsigned i = 0; i < d->config->listen.count; i++) {
        check_port(d, "listen", &d->config->listen.items[i]);
    }
    check_port(d, "admin.listen", &d->config->admin_listen);
    check(munmap(d->look, sizeof(*d->look)) == 0);
    d->look = NULL;
}

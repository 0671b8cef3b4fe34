// SPDX-License-Identifier: Apache-2.0
// The number of CPUs and the memory that the machine and the cgroup let this process use.
#ifndef FOREBAY_BASE_HOST_H
#define FOREBAY_BASE_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// returns the number of workers that suits the CPUs: 1 to `most`
unsigned host_workers(unsigned most);
uint64_t host_memory_bytes(void);
// Returns the lowest memory limit of a cgroup, memory.max or memory.high; 0 if none is below the
// machine's memory.
// host_memory_is_short() uses the limit that this function found last. Any thread.
uint64_t host_memory_limit_bytes(void);
// Reads a small file of the kernel, at most size - 1 bytes, and ends the text with '\0'. If the
// file cannot be read or is empty, returns false and makes the text empty. Any thread.
bool host_read_file(const char *path, char *ret_text, size_t size);
// Returns true if `path` is a regular file. Call it before a library opens the file, because
// opening a FIFO would wait for a writer. Any thread.
bool host_file_is_regular(const char *path);
// Returns what to do with a file of `owner` that holds secrets, so that the server can read it and
// other users cannot. Any thread.
const char *host_secret_file_remedy(uid_t owner);
// The memory that the page cache can use: the machine's, or the cgroup's if that is less.
struct host_memory {
    uint64_t most_bytes; // all of it
    uint64_t room_bytes; // what the page cache has now, and what is free
    uint64_t free_bytes; // what nothing uses
};
// Reads it from small files of the kernel. The cgroup is that of the last
// host_memory_limit_bytes(). Returns false if they cannot be read. Any thread; takes some 50
// microseconds.
bool host_memory_look(struct host_memory *ret_memory);
// Returns true if at least 7/8 of the cgroup's memory is in use, page cache included. Reads a small
// file. Any thread.
bool host_memory_is_short(void);
// A CPU limit of a cgroup, and how often it was used up since the cgroup was made. The kernel holds
// all threads of the cgroup back for the rest of such a period.
struct host_cpu_limit {
    uint64_t periods, throttled;  // `throttled`: those periods in which the limit was used up
    uint64_t quota_us, period_us; // CPU time for each period; 0: no limit now
};
#define HOST_CPU_LIMITS_MAX 16u
struct host_cpu {
    unsigned count;
    struct host_cpu_limit limits[HOST_CPU_LIMITS_MAX]; // the process's own cgroup first
};
// Reads the limits of the cgroup and of those above it, from small files of the kernel. Any thread.
void host_cpu_look(struct host_cpu *ret_cpu);
// Returns the limit that held the process back for longest between two looks, with the number of
// periods between them. `throttled` is 0 if none did.
struct host_cpu_limit host_cpu_between(const struct host_cpu *before, const struct host_cpu *after);
// Returns true if the limit was used up in periods that make up at least three tenths of the time.
bool host_cpu_is_short(const struct host_cpu_limit *between, uint64_t time_us);
// For tests: replaces /sys/fs/cgroup and /proc/self/cgroup. Both must outlive all later calls.
void host_test_cgroups(const char *root, const char *own);

#endif

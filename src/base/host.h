// SPDX-License-Identifier: Apache-2.0
// The CPUs and the memory that this machine, and the cgroup of this process, let the process use.
#ifndef FOREBAY_BASE_HOST_H
#define FOREBAY_BASE_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

unsigned host_workers(unsigned most); // the CPUs for workers: 1 to `most`
uint64_t host_memory_bytes(void);
// The memory limit of a cgroup; 0: no limit is below the machine's memory. host_memory_is_short()
// judges by the limit that was found last. Call it before other threads start.
uint64_t host_memory_limit_bytes(void);
// Reads a small file of the kernel, at most size - 1 bytes, and ends the text with '\0'. Returns
// false if the file cannot be read or is empty; the text is empty then. Any thread.
bool host_read_file(const char *path, char *ret_text, size_t size);
// Is most of the cgroup's memory in use, page cache included? Reads a small file. Any thread.
bool host_memory_is_short(void);

#endif

// SPDX-License-Identifier: Apache-2.0
// The number of CPUs and the memory that the machine and the cgroup let this process use.
#ifndef FOREBAY_BASE_HOST_H
#define FOREBAY_BASE_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

unsigned host_workers(unsigned most); // number of workers for the CPUs: 1 to `most`
uint64_t host_memory_bytes(void);
// Returns the lowest memory limit of a cgroup; 0 if none is below the machine's memory.
// host_memory_is_short() uses the limit that this function found last. Called before other threads
// start.
uint64_t host_memory_limit_bytes(void);
// Reads a small file of the kernel, at most size - 1 bytes, and ends the text with '\0'. Returns
// false if the file cannot be read or is empty; the text is empty then. Any thread.
bool host_read_file(const char *path, char *ret_text, size_t size);
// Returns whether most of the cgroup's memory is in use, page cache included. Reads a small file.
// Any thread.
bool host_memory_is_short(void);

#endif

// SPDX-License-Identifier: Apache-2.0
// Random bytes from the kernel. Any thread.
#ifndef FOREBAY_BASE_RANDOM_H
#define FOREBAY_BASE_RANDOM_H

#include <stddef.h>
#include <stdint.h>

// Calls getrandom(2). Aborts if the call fails.
void random_bytes(void *ret_bytes, size_t len);
uint64_t random_u64(void);

#endif

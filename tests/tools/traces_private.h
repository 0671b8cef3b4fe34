// SPDX-License-Identifier: Apache-2.0
// Shared by the code that generates traces, reads them and judges them.
#ifndef FOREBAY_TESTS_TOOLS_TRACES_PRIVATE_H
#define FOREBAY_TESTS_TOOLS_TRACES_PRIVATE_H

#include "traces.h"

#define TRACE_FNV_BEGIN 0xcbf29ce484222325u

uint64_t trace_fnv(uint64_t hash, const void *bytes, size_t len);
void *trace_take(size_t count, size_t size); // zeroed; the process ends where there is no memory
void trace_add(struct trace *trace, uint32_t block, unsigned flags);

#endif

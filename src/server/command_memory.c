// SPDX-License-Identifier: Apache-2.0
// Divides limits.max_buffer, renders its metrics, returns freed memory of the allocator to the
// kernel, and keeps other processes from reading the memory.

#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "http/http.h"
#include "loop/loop.h"
#include "server/server_private.h"

#define MMAP_THRESHOLD_BYTES (128 * 1024) // malloc's initial value
#define TRIM_BYTES (1u << 20) // least memory of requests and transfers that counts as a burst

void command_memory_begin(const struct config *config)
{
    chunk_budget_init(config->limits_max_buffer_bytes);
    socket_room_init(config->memory_limit_bytes);
    // Fix the threshold, so that free() always returns larger allocations to the kernel. Otherwise
    // glibc raises it when it frees such an allocation, up to 32 MiB. Other allocators may ignore
    // the setting.
    (void)mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES);
}

// Keys and tokens are in the environment, the heap, buffers of libraries and registers. Therefore
// this process writes no core file. Should another process raise the limit, the core file would
// still contain no memory. Other processes of the same user cannot read its memory, except in test
// builds, whose tools need that.
void command_memory_keep_private(void)
{
    (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}); // lowering it cannot fail
    int fd = open("/proc/self/coredump_filter", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        (void)!write(fd, "0", 1); // without /proc only the limit applies
        (void)close(fd);
    }
#ifndef FOREBAY_FAULTS
    (void)prctl(PR_SET_DUMPABLE, 0); // cannot fail with this value
#endif
}

uint64_t command_memory_clients_max(uint64_t max_buffer_bytes)
{
    return max_buffer_bytes / 8 * 3;
}

unsigned command_memory_inflight_max(uint64_t max_buffer_bytes)
{
    uint64_t fit = command_memory_clients_max(max_buffer_bytes) / HTTP_EXCHANGE_BYTES;
    return (unsigned)min_u64(fit, UINT_MAX);
}

// Returns the memory of freed requests to the kernel after a burst. Requests use small allocations,
// and one that lives on can keep much freed memory in its heap. After a burst this may be most of
// the process's memory. Does nothing during a burst, because trimming locks each heap for some ms.
void command_memory_trim(uint64_t *high_bytes)
{
    uint64_t used = chunk_budget_used_bytes() - chunk_budget_kind_bytes(BUDGET_PAYLOAD);
    *high_bytes = max_u64(*high_bytes, used);
    if (*high_bytes >= TRIM_BYTES && used <= *high_bytes / 2) {
        *high_bytes = used;
        (void)malloc_trim(0); // it does not matter whether memory was released
    }
}

static void render_gauge(struct buf *out, const char *name, const char *help, uint64_t value)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s gauge\n%s %llu\n", name, help, name, name,
               (unsigned long long)value);
}

void command_memory_metrics(struct buf *out)
{
    static const struct {
        const char *name;
        enum chunk_budget_kind kind;
    } kinds[] = {{"payload", BUDGET_PAYLOAD},   {"clients", BUDGET_CLIENTS},
                 {"origins", BUDGET_ORIGINS},   {"runs", BUDGET_RUNS},
                 {"bodies", BUDGET_BODIES},     {"folders", BUDGET_FOLDERS},
                 {"warm", BUDGET_WARM},         {"writes", BUDGET_WRITES},
                 {"listings", BUDGET_LISTINGS}, {"answers", BUDGET_ANSWERS}};
    buf_append_cstr(out, "# HELP forebay_buffer_bytes memory held between origins and clients\n"
                         "# TYPE forebay_buffer_bytes gauge\n");
    for (unsigned i = 0; i < ARRAY_LEN(kinds); i++) {
        buf_printf(out, "forebay_buffer_bytes{kind=\"%s\"} %llu\n", kinds[i].name,
                   (unsigned long long)chunk_budget_kind_bytes(kinds[i].kind));
    }
    buf_append_cstr(out, "# HELP forebay_socket_room_bytes most that the kernel may hold for "
                         "sockets, where memory is limited\n"
                         "# TYPE forebay_socket_room_bytes gauge\n");
    buf_printf(out, "forebay_socket_room_bytes{of=\"clients\"} %llu\n",
               (unsigned long long)socket_room_bytes(SOCKETS_CLIENTS));
    buf_printf(out, "forebay_socket_room_bytes{of=\"origins\"} %llu\n",
               (unsigned long long)socket_room_bytes(SOCKETS_ORIGINS));
    render_gauge(out, "forebay_buffer_used_bytes", "all kinds together", chunk_budget_used_bytes());
    render_gauge(out, "forebay_buffer_peak_bytes", "most of all kinds together so far",
                 chunk_budget_peak_bytes());
    render_gauge(out, "forebay_buffer_limit_bytes", "limits.max_buffer", chunk_budget_max_bytes());
    render_gauge(out, "forebay_buffer_resting_bytes", "free payload memory kept for the next",
                 chunk_budget_resting_bytes());
}

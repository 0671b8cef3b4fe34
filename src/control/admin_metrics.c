// SPDX-License-Identifier: Apache-2.0
// /metrics: the counters of all threads, and the kernel's numbers of this process. Any thread.
#include "base/host.h"
#include "base/version.h"
#include "control/admin.h"
#include "stats/stats.h"

#include <dirent.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

// Fields of /proc/self/stat after the command's name, which may contain any byte. The first one is
// field 3.
struct stat_fields {
    uint64_t user_ticks, system_ticks, threads, start_ticks, resident_pages;
};

static bool read_stat(struct stat_fields *ret_fields)
{
    char text[1024];
    if (!host_read_file("/proc/self/stat", text, sizeof(text))) {
        return false;
    }
    const char *end = strrchr(text, ')');
    struct span rest = span_from_cstr(end != NULL ? end + 1 : ""), word;
    rest = span_trim(rest);
    for (unsigned number = 3; number <= 24 && span_split(&rest, ' ', &word); number++) {
        uint64_t value = 0;
        if (!span_to_u64(word, &value)) {
            continue; // a letter, or a negative number that we do not use
        }
        switch (number) {
        case 14:
            ret_fields->user_ticks = value;
            break;
        case 15:
            ret_fields->system_ticks = value;
            break;
        case 20:
            ret_fields->threads = value;
            break;
        case 22:
            ret_fields->start_ticks = value;
            break;
        case 24:
            ret_fields->resident_pages = value;
            break;
        default:
            break;
        }
    }
    return true;
}

static uint64_t boot_time_s(void)
{
    char text[16384];
    if (!host_read_file("/proc/stat", text, sizeof(text))) {
        return 0;
    }
    struct span rest = span_from_cstr(text), line;
    uint64_t value = 0;
    while (span_split(&rest, '\n', &line)) {
        if (span_starts_with(line, SPAN("btime ")) &&
            span_to_u64((struct span){line.ptr + 6, line.len - 6}, &value)) {
            break;
        }
    }
    return value;
}

static uint64_t open_fd_count(void)
{
    DIR *folder = opendir("/proc/self/fd");
    uint64_t count = 0;
    if (folder != NULL) {
        while (readdir(folder) != NULL) {
            count++;
        }
        (void)closedir(folder); // the folder was only read, so a failure loses nothing
    }
    return count > 3 ? count - 3 : 0; // ".", "..", and the folder itself
}

static void render_row(struct buf *out, const char *name, const char *type, const char *help,
                       uint64_t value)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n%s %lu\n", name, help, name, type, name,
               (unsigned long)value);
}

static void render_process(struct buf *out)
{
    struct stat_fields fields = {0};
    uint64_t hertz = (uint64_t)sysconf(_SC_CLK_TCK);
    if (read_stat(&fields) && hertz > 0) {
        uint64_t ticks = fields.user_ticks + fields.system_ticks;
        buf_printf(
            out,
            "# HELP process_cpu_seconds_total user and system CPU time\n"
            "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total %lu.%02lu\n",
            (unsigned long)(ticks / hertz), (unsigned long)(ticks % hertz * 100 / hertz));
        render_row(out, "process_resident_memory_bytes", "gauge", "resident memory",
                   fields.resident_pages * (uint64_t)sysconf(_SC_PAGESIZE));
        render_row(out, "process_threads", "gauge", "threads", fields.threads);
        render_row(out, "process_start_time_seconds", "gauge", "start time since the epoch",
                   boot_time_s() + fields.start_ticks / hertz);
    }
    struct rlimit limit;
    render_row(out, "process_open_fds", "gauge", "open descriptors", open_fd_count());
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        render_row(out, "process_max_fds", "gauge", "most open descriptors", limit.rlim_cur);
    }
}

void admin_render_metrics(struct buf *out, const char *io_engine)
{
    buf_append_cstr(out, "# HELP forebay_build_info what runs here\n"
                         "# TYPE forebay_build_info gauge\n");
    buf_printf(out,
               "forebay_build_info{version=\"%s\",revision=\"%s\",io_engine=\"%s\","
               "tls=\"openssl\"} 1\n",
               version_text(), version_revision(), io_engine);
    render_process(out);
    stats_render(out);
}

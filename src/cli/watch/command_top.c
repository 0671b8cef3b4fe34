// SPDX-License-Identifier: Apache-2.0
// `forebay top`: what a running server does, on one screen. The figures are those of `forebay
// stats`; the rows below are counters.def, those that change most first.
//
// A terminal gets its second screen and no echo while this runs, and is given back as it was,
// whatever ends it: q, signals, a stop (Ctrl-Z) for as long as it lasts, a server that has ended.
#include "cli/watch/command_stats.h"
#include "cli/watch/command_top_rank.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/human.h"

#define INTERVAL_MAX_S 86400u
#define RANK_INTERVAL_MAX_S 3600u // what a server takes
#define FRAME_MAX_BYTES (256u << 10)
#define ROWS_DEFAULT 40u
#define WIDTH_DEFAULT 100u
#define BAR_CELLS 30u
#define REASONS_MAX 3u

struct top {
    struct command_client client;
    uint64_t interval_ms;
    bool is_screen; // a terminal that is ours
    struct termios before;
    unsigned rows, width;
    struct command_sample from, to;
    json_t *summary; // of `to`
};

// --- a frame -------------------------------------------------------------------------------------

struct row {
    enum counter counter;
    double rate;
};

static int by_rate(const void *a, const void *b)
{
    double x = ((const struct row *)a)->rate, y = ((const struct row *)b)->rate;
    return (x < y) - (x > y);
}

static void render_head(const struct top *top, struct buf *out)
{
    char up[HUMAN_BYTES_MAX];
    const json_t *degraded = json_object_get(top->summary, "degraded");
    buf_printf(out, "forebay %s at %s, up %s: %s", command_client_text(top->summary, "version"),
               top->client.address,
               command_client_time(command_client_double(top->summary, "uptime_s"), up),
               command_client_visible(command_client_text(top->summary, "reason")));
    for (size_t i = 0; i < json_array_size(degraded); i++) {
        buf_printf(out, "%s%s", i == 0 ? "; DEGRADED " : ", ",
                   json_string_value(json_array_get(degraded, i)));
    }
    buf_append_cstr(out, "\n\n");
}

static void render_figures(const struct top *top, struct buf *out)
{
    struct command_figure f;
    for (unsigned i = 0; command_stats_column(i, &top->from, &top->to, &f); i++) {
        buf_printf(out, "%-11s %9.1f%s", f.title, f.value * f.scale, i % 4 == 3 ? "\n" : "   ");
    }
    buf_append_cstr(out, "\n");
}

// What holds data, what is only reserved for it, what is free.
static void render_space(const struct top *top, struct buf *out)
{
    char held_text[HUMAN_BYTES_MAX], reserved_text[HUMAN_BYTES_MAX];
    char size[HUMAN_BYTES_MAX], bar[BAR_CELLS + 1];
    double used = top->to.value[COUNTER_cache_bytes];
    double held = top->to.value[COUNTER_cache_held_bytes] < used
                      ? top->to.value[COUNTER_cache_held_bytes]
                      : used;
    double capacity = top->to.value[COUNTER_cache_capacity_bytes];
    double cells = capacity > 0 ? BAR_CELLS / capacity : 0;
    memset(bar, '.', BAR_CELLS);
    memset(bar, '-', min_u64((uint64_t)(used * cells), BAR_CELLS));
    memset(bar, '#', min_u64((uint64_t)(held * cells), BAR_CELLS));
    bar[BAR_CELLS] = '\0';
    buf_printf(out, "cache [%s] %s held of %s (%s reserved), %.0f objects\n", bar,
               human_bytes(held, held_text), human_bytes(capacity, size),
               human_bytes(used - held, reserved_text), top->to.value[COUNTER_cache_objects]);
}

// Since the start, the most frequent first.
static void render_bypass(const struct top *top, struct buf *out)
{
    const json_t *reasons = json_object_get(top->summary, "bypass");
    const char *told[REASONS_MAX] = {NULL};
    for (unsigned n = 0; n < REASONS_MAX; n++) {
        const char *name;
        json_t *value;
        uint64_t most = 0;
        json_object_foreach((json_t *)(uintptr_t)reasons, name, value)
        {
            bool is_told = false;
            for (unsigned i = 0; i < n; i++) {
                is_told |= told[i] != NULL && strcmp(told[i], name) == 0;
            }
            if (!is_told && (uint64_t)json_integer_value(value) > most) {
                most = (uint64_t)json_integer_value(value);
                told[n] = name;
            }
        }
        if (told[n] != NULL) {
            buf_printf(out, "%s%s %llu", n == 0 ? "not cached: " : ", ", told[n],
                       (unsigned long long)most);
        }
    }
    buf_append_cstr(out, told[0] != NULL ? "\n\n" : "\n");
}

static unsigned lines_of(const struct buf *text)
{
    unsigned lines = 0;
    for (size_t i = 0; i < text->len; i++) {
        lines += text->ptr[i] == '\n';
    }
    return lines;
}

static void render_rows(const struct top *top, struct buf *out)
{
    struct row rows[COUNTER_COUNT_];
    unsigned count = 0;
    double seconds = top->to.time > top->from.time ? top->to.time - top->from.time : 1;
    for (int c = 0; c < COUNTER_COUNT_; c++) {
        double change = top->to.value[c] - top->from.value[c];
        if (change != 0) {
            rows[count++] =
                (struct row){(enum counter)c, (change < 0 ? -change : change) / seconds};
        }
    }
    qsort(rows, count, sizeof(*rows), by_rate);
    unsigned taken = lines_of(out) + 2; // its own head, and the last line, which stays empty
    buf_printf(out, "%14s %14s  metric\n", "now", "change/s");
    for (unsigned i = 0; i < count && taken < top->rows; i++, taken++) {
        enum counter c = rows[i].counter;
        double change = (top->to.value[c] - top->from.value[c]) / seconds;
        const char *labels = stats_labels(c);
        buf_printf(out, "%14.0f %+14.1f  %s%s%s%s\n", top->to.value[c], change, stats_metric(c),
                   labels[0] != '\0' ? "{" : "", labels, labels[0] != '\0' ? "}" : "");
    }
}

static void render(const struct top *top, struct buf *out)
{
    render_head(top, out);
    render_figures(top, out);
    render_space(top, out);
    render_bypass(top, out);
    render_rows(top, out);
}

// --- the terminal --------------------------------------------------------------------------------

static void print(const char *text, size_t len)
{
    (void)fwrite(text, 1, len, stdout); // the result's flush tells
    (void)fflush(stdout);
}

static void screen_measure(struct top *top)
{
    struct winsize size;
    bool is_known =
        ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0;
    top->rows = is_known ? size.ws_row : ROWS_DEFAULT;
    top->width = is_known ? size.ws_col : WIDTH_DEFAULT;
}

static void screen_enter(struct top *top)
{
    struct termios ours = top->before;
    ours.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &ours); // without it keys need Enter
    print("\033[?1049h\033[?25l", 14);
    screen_measure(top);
}

static void screen_leave(const struct top *top)
{
    print("\033[?25h\033[?1049l", 14);
    (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &top->before);
}

// Lines cut to the width, so that none wraps: names are ASCII, others may lose a column more.
static void screen_show(const struct top *top, struct span frame)
{
    struct buf out;
    struct span line;
    buf_init(&out, FRAME_MAX_BYTES + 16u * ROWS_DEFAULT * 64u);
    buf_append_cstr(&out, "\033[H");
    for (unsigned i = 0; i + 1 < top->rows && span_split(&frame, '\n', &line); i++) {
        line.len = min_u64(line.len, top->width);
        buf_append_span(&out, line);
        buf_append_cstr(&out, "\033[K\n");
    }
    buf_append_cstr(&out, "\033[J");
    print(out.ptr, out.len);
    buf_done(&out);
}

// --- one after the other -------------------------------------------------------------------------

static int take_next(struct top *top)
{
    json_t *summary = NULL;
    struct command_sample sample;
    int code = command_stats_take(&top->client, &sample, &summary);
    if (code == EXIT_CODE_OK) {
        json_decref(top->summary);
        top->summary = summary;
        top->from = top->to;
        top->to = sample;
    }
    return code;
}

static void show(const struct top *top)
{
    struct buf frame;
    buf_init(&frame, FRAME_MAX_BYTES);
    render(top, &frame);
    if (top->is_screen) {
        screen_show(top, buf_span(&frame));
    } else {
        print(frame.ptr, frame.len);
    }
    buf_done(&frame);
}

// What a signal says. False: it is the end.
static bool on_signal(struct top *top, int signal_fd)
{
    struct signalfd_siginfo info;
    if (read(signal_fd, &info, sizeof(info)) != sizeof(info)) {
        return true;
    }
    if (info.ssi_signo == SIGTSTP) {
        screen_leave(top);
        (void)raise(SIGSTOP); // until SIGCONT
        screen_enter(top);
    } else if (info.ssi_signo == SIGWINCH) {
        screen_measure(top);
    } else {
        return false;
    }
    show(top);
    return true;
}

// Until the next frame is due. False: it is the end.
static bool wait_next(struct top *top, int signal_fd)
{
    uint64_t end_ms = clock_monotonic_ms() + top->interval_ms, now_ms;
    while ((now_ms = clock_monotonic_ms()) < end_ms) {
        struct pollfd fds[] = {{.fd = signal_fd, .events = POLLIN},
                               {.fd = STDIN_FILENO, .events = POLLIN}};
        if (poll(fds, 2, (int)(end_ms - now_ms)) <= 0) {
            continue;
        }
        char key = 'q'; // a terminal that has gone says so
        if (fds[1].revents != 0 && (read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q')) {
            return false;
        }
        if (fds[0].revents != 0 && !on_signal(top, signal_fd)) {
            return false;
        }
    }
    return true;
}

static int follow(struct top *top)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH};
    sigset_t set, before;
    sigemptyset(&set);
    for (size_t i = 0; i < ARRAY_LEN(signals); i++) {
        sigaddset(&set, signals[i]);
    }
    check(sigprocmask(SIG_BLOCK, &set, &before) == 0);
    int signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK), code = EXIT_CODE_OK;
    check(signal_fd >= 0);
    screen_enter(top);
    while (code == EXIT_CODE_OK && (show(top), wait_next(top, signal_fd))) {
        code = take_next(top);
    }
    screen_leave(top);
    if (code != EXIT_CODE_OK) { // what was said of it went with the screen
        command_client_error(&top->client, "the server has ended");
    }
    (void)close(signal_fd); // nothing is read from it any more
    check(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
    return code;
}

static json_t *frame_json(const struct top *top)
{
    struct command_figure f;
    json_t *json = json_object(), *changes = json_object();
    double seconds = top->to.time > top->from.time ? top->to.time - top->from.time : 1;
    for (unsigned i = 0; command_stats_column(i, &top->from, &top->to, &f); i++) {
        check(json_object_set_new(json, f.field, json_real(f.value)) == 0);
    }
    for (int c = 0; c < COUNTER_COUNT_; c++) {
        double change = top->to.value[c] - top->from.value[c];
        const char *name = stats_name((enum counter)c);
        if (change != 0) {
            check(json_object_set_new(changes, name, json_real(change / seconds)) == 0);
        }
    }
    check(json_object_set_new(json, "changes_per_s", changes) == 0);
    return json;
}

static int run(struct top *top)
{
    int code = command_stats_take(&top->client, &top->to, &top->summary);
    top->from = top->to;
    if (code == EXIT_CODE_OK && top->is_screen) {
        return command_client_result(&top->client, follow(top), NULL);
    }
    if (code == EXIT_CODE_OK) {
        (void)poll(NULL, 0, (int)top->interval_ms); // a signal ends the process
        code = take_next(top);
    }
    if (code == EXIT_CODE_OK && !top->client.is_json) {
        show(top);
    }
    return command_client_result(&top->client, code, code == EXIT_CODE_OK ? frame_json(top) : NULL);
}

int command_top(int argc, char **argv)
{
    struct top top = {.rows = ROWS_DEFAULT, .width = WIDTH_DEFAULT};
    bool bad = false, is_once = commands_argument_take(&argc, argv, "--once");
    uint64_t seconds = 1;
    const char *interval = commands_argument_take_value(&argc, argv, "-i", &bad);
    const char *where = commands_argument_take_value(&argc, argv, "--where", &bad);
    if (bad || (interval != NULL && (!span_to_u64(span_from_cstr(interval), &seconds) ||
                                     seconds == 0 || seconds > INTERVAL_MAX_S))) {
        return commands_usage_error("top", "-i is a number above 0");
    }
    if (argc == 1) {
        return command_top_rank(argv[0], min_u64(seconds, RANK_INTERVAL_MAX_S), where, is_once);
    }
    if (where != NULL) {
        return commands_usage_error(
            "top", "--where wants one of keys, prefixes, buckets, clients, reasons");
    }
    top.interval_ms = seconds * 1000;
    int code = command_client_open(&top.client, "top");
    if (code == EXIT_CODE_OK) {
        top.is_screen = !is_once && !top.client.is_json && isatty(STDOUT_FILENO) == 1 &&
                        tcgetattr(STDIN_FILENO, &top.before) == 0;
        code = run(&top);
        json_decref(top.summary);
        command_client_close(&top.client);
    }
    return code;
}

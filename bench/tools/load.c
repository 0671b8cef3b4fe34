// SPDX-License-Identifier: Apache-2.0
// A client to measure with: N connections, each asks again as soon as its reply is whole.
//
//     bench_load --port N --plan FILE --connections N
//                (--seconds S | --requests N | once over the plan)
//                [--random] [--rate MB/S] [--pace N] [--blind | --discard]
//
// FILE: requests as they go over the wire, each ended by a zero byte. They are sent in order, one
// after the other by whichever connection is free, or with --random in any order. --rate: no
// connection reads faster (10^6 bytes a second). --pace: no more than N requests a second are sent,
// by all together; a connection waits for its turn, which is not part of what its request takes.
// Every byte of a 200 or 206 is compared with what pattern.h says of it, unless --blind; with
// --discard bodies are not even copied out of the kernel, so that the server is what is busy.
// Prints one JSON object: counts, wall time, CPU time of this process, TCP segments with data that
// came, what the connections got that got least and most, and percentiles in microseconds, counted
// from when the request was sent until the first byte of the body and until the last, of hits
// apart, too. One thread.
#include "pattern.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    HEAD_MAX = 8192,
    READ_BYTES = 1 << 18,
    DISCARD_BYTES = 1 << 22,
    TICK_US = 1000,
    BURST_US = 20000,
    PATIENCE_US = 60000000, // how long after the end a reply may still come
};

struct request {
    const char *text;
    size_t length;
    uint64_t start; // in the pattern, of the first byte that is asked for
};

struct conn {
    int fd;
    const struct request *request;
    char head[HEAD_MAX];
    size_t head_length;
    bool in_body, judged, limited, is_hit;
    uint64_t left, at, bytes;
    int64_t sent_us, paid_us;
    struct conn *next; // in the list that it waits in
};

struct times {
    uint32_t *us;
    size_t count, room;
};

static struct sockaddr_in server;
static struct request *plan;
static size_t plan_length, next_request;
static uint64_t to_send = UINT64_MAX;
static int64_t end_us = INT64_MAX;
static bool in_any_order, blind, discard;
static double rate;
static int poll_fd, busy;
static const unsigned char *pattern;
static unsigned char *buffer;
static struct conn *limited_first, *waiting_first, **waiting_last = &waiting_first;
// Between two requests, and when the next may be sent: thousandths of a microsecond.
static int64_t pace_us_1000, turn_us_1000;
static struct times first_bytes, last_bytes,
    hit_bytes; // hit_bytes: the last of those that were hits
static uint64_t replies, refused, failed, wrong, bytes, hits, segments;

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void times_add(struct times *t, int64_t us)
{
    if (t->count == t->room) {
        t->room = t->room ? 2 * t->room : 65536;
        t->us = realloc(t->us, t->room * sizeof *t->us);
        if (!t->us)
            abort();
    }
    t->us[t->count++] = (uint32_t)us;
}

static int by_value(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static uint32_t times_at(const struct times *t, double share)
{
    return t->count ? t->us[(size_t)((double)(t->count - 1) * share)] : 0;
}

static void read_plan(const char *path)
{
    FILE *in = fopen(path, "rb");
    struct stat st;
    if (!in || fstat(fileno(in), &st) != 0) {
        perror(path);
        exit(2);
    }
    char *text = malloc((size_t)st.st_size + 1);
    if (!text || fread(text, 1, (size_t)st.st_size, in) != (size_t)st.st_size)
        abort();
    fclose(in);
    size_t room = 0;
    for (char *at = text; at < text + st.st_size; at += strlen(at) + 1) {
        if (plan_length == room) {
            room = room ? 2 * room : 1024;
            plan = realloc(plan, room * sizeof *plan);
            if (!plan)
                abort();
        }
        const char *target = strchr(at, ' ') + 1, *range = strcasestr(at, "\r\nrange: bytes=");
        plan[plan_length++] = (struct request){at, strlen(at),
                                               pattern_start(target, strcspn(target, " ?")) +
                                                   (range ? strtoull(range + 15, NULL, 10) : 0)};
    }
    if (!plan_length)
        exit(2);
}

static void limit(struct conn *c)
{
    struct epoll_event e = {.data.ptr = c};
    epoll_ctl(poll_fd, EPOLL_CTL_MOD, c->fd, &e);
    c->limited = true;
    c->next = limited_first;
    limited_first = c;
}

static void open_conn(struct conn *c)
{
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&server, sizeof server) != 0) {
        perror("bench_load: connect");
        exit(1);
    }
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, c->fd, &e);
}

static void count_segments(const struct conn *c)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    if (getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0)
        segments += info.tcpi_data_segs_in;
}

static void send_next(struct conn *c, int64_t now)
{
    static uint32_t x = 2463534242u;
    to_send--;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    c->request = &plan[in_any_order ? x % plan_length : next_request++ % plan_length];
    c->head_length = 0;
    c->in_body = false;
    c->sent_us = c->paid_us = now;
    busy++;
    if (send(c->fd, c->request->text, c->request->length, MSG_NOSIGNAL) !=
        (ssize_t)c->request->length)
        perror("bench_load: send");
}

// Sends the connection's next request, or has it wait for its turn; one that has none is idle.
static void ask(struct conn *c, int64_t now)
{
    c->request = NULL;
    if (!to_send || now >= end_us)
        return;
    if (pace_us_1000 == 0) {
        send_next(c, now);
        return;
    }
    c->next = NULL;
    *waiting_last = c;
    waiting_last = &c->next;
}

// A turn that nobody was free for is lost, but for what the clock of this loop cannot tell apart.
static void take_turns(int64_t now)
{
    if (turn_us_1000 < (now - 2 * TICK_US) * 1000)
        turn_us_1000 = (now - 2 * TICK_US) * 1000;
    while (waiting_first && (now >= end_us || !to_send || turn_us_1000 <= now * 1000)) {
        struct conn *c = waiting_first;
        waiting_first = c->next;
        if (!waiting_first)
            waiting_last = &waiting_first;
        if (to_send && now < end_us) {
            turn_us_1000 += pace_us_1000;
            send_next(c, now);
        }
    }
}

static void end_reply(struct conn *c, int64_t now)
{
    times_add(&last_bytes, now - c->sent_us);
    if (c->is_hit)
        times_add(&hit_bytes, now - c->sent_us);
    replies++;
    busy--;
    ask(c, now);
}

static void broken(struct conn *c, int64_t now)
{
    count_segments(c);
    close(c->fd);
    open_conn(c);
    if (!c->request)
        return;
    failed++;
    busy--;
    ask(c, now);
}

// LENGTH bytes of the body have come.
static void body(struct conn *c, const unsigned char *data, size_t length)
{
    if (length > c->left)
        length = (size_t)c->left;
    for (size_t done = 0; c->judged && done < length;) {
        const size_t some = length - done < PATTERN_BYTES ? length - done : PATTERN_BYTES;
        if (memcmp(pattern + c->at, data + done, some) != 0) {
            wrong++;
            c->judged = false;
        }
        c->at = (c->at + some) % PATTERN_BYTES;
        done += some;
    }
    c->left -= length;
    c->bytes += length;
    bytes += length;
}

static void receive(struct conn *c, int64_t now)
{
    const bool away = discard && c->in_body;
    size_t want = away ? DISCARD_BYTES : READ_BYTES;
    if (rate > 0 && c->in_body) {
        if (now - c->paid_us > BURST_US)
            c->paid_us = now - BURST_US;
        const double given = (double)(now - c->paid_us) * rate;
        if (given < 1) {
            limit(c);
            return;
        }
        if (want > (size_t)given)
            want = (size_t)given;
    }
    ssize_t n = recv(c->fd, away ? NULL : buffer, want, away ? MSG_TRUNC : 0);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0 || !c->request) {
        broken(c, now);
        return;
    }
    if (rate > 0)
        c->paid_us += (int64_t)((double)n / rate);
    const unsigned char *at = buffer;
    if (!c->in_body) {
        const size_t before = c->head_length, room = HEAD_MAX - 1 - before;
        const size_t some = (size_t)n < room ? (size_t)n : room;
        memcpy(c->head + before, buffer, some);
        c->head[before + some] = 0;
        const char *end = strstr(c->head, "\r\n\r\n");
        if (!end) {
            c->head_length += some;
            if (some == room)
                broken(c, now);
            return;
        }
        const char *length = strcasestr(c->head, "\r\ncontent-length:");
        const bool good = memcmp(c->head, "HTTP/1.1 20", 11) == 0;
        refused += !good;
        c->is_hit = strstr(c->head, "; hit") != NULL;
        hits += c->is_hit;
        c->left = length && length < end && c->request->text[0] != 'H'
                      ? strtoull(length + 17, NULL, 10)
                      : 0;
        c->at = c->request->start % PATTERN_BYTES;
        c->judged = good && !blind;
        c->in_body = true;
        const size_t used = (size_t)(end + 4 - c->head) - before;
        at += used;
        n -= (ssize_t)used;
        if (n > 0 || !c->left)
            times_add(&first_bytes, now - c->sent_us);
        else
            c->head_length = 0; // the first byte is still to come
    } else if (!c->head_length) {
        times_add(&first_bytes, now - c->sent_us);
        c->head_length = 1;
    }
    body(c, at, (size_t)n);
    if (!c->left)
        end_reply(c, now);
}

static void run(void)
{
    int64_t tick = 0;
    while (busy || waiting_first) {
        struct epoll_event ready[256];
        const int n = epoll_wait(poll_fd, ready, 256, limited_first || waiting_first ? 1 : 1000);
        const int64_t now = now_us();
        for (int i = 0; i < n; i++)
            receive(ready[i].data.ptr, now);
        take_turns(now);
        if (now - PATIENCE_US >= end_us) {
            failed += (uint64_t)busy;
            return;
        }
        if (!limited_first || now - tick < TICK_US)
            continue;
        tick = now;
        struct conn *c = limited_first;
        limited_first = NULL;
        while (c) {
            struct conn *next = c->next;
            struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
            c->limited = false;
            epoll_ctl(poll_fd, EPOLL_CTL_MOD, c->fd, &e);
            c = next;
        }
    }
}

int main(int argc, char **argv)
{
    long connections = 1;
    double seconds = 0;
    const char *plan_path = NULL;
    bool counted = false;
    server = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int i = 1; i < argc; i++) {
        const char *option = argv[i];
        if (strcmp(option, "--random") == 0) {
            in_any_order = true;
            continue;
        }
        if (strcmp(option, "--blind") == 0 || strcmp(option, "--discard") == 0) {
            blind = true;
            discard = option[2] == 'd';
            continue;
        }
        const char *value = i + 1 < argc ? argv[++i] : "";
        if (strcmp(option, "--port") == 0)
            server.sin_port = htons((uint16_t)strtoul(value, NULL, 10));
        else if (strcmp(option, "--plan") == 0)
            plan_path = value;
        else if (strcmp(option, "--connections") == 0)
            connections = strtol(value, NULL, 10);
        else if (strcmp(option, "--seconds") == 0)
            seconds = atof(value);
        else if (strcmp(option, "--requests") == 0) {
            to_send = strtoull(value, NULL, 10);
            counted = true;
        } else if (strcmp(option, "--rate") == 0)
            rate = atof(value);
        else if (strcmp(option, "--pace") == 0 && atof(value) > 0)
            pace_us_1000 = (int64_t)(1e9 / atof(value));
        else {
            fprintf(stderr, "bench_load: unknown option %s\n", option);
            return 2;
        }
    }
    if (!plan_path || connections < 1)
        return 2;
    read_plan(plan_path);
    if (seconds == 0 && !counted)
        to_send = plan_length;
    pattern = pattern_make();
    buffer = malloc(READ_BYTES);
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct conn *conns = calloc((size_t)connections, sizeof *conns);
    if (!buffer || !conns)
        abort();
    for (long i = 0; i < connections; i++)
        open_conn(&conns[i]);
    const int64_t began = now_us();
    if (seconds > 0)
        end_us = began + (int64_t)(seconds * 1e6);
    for (long i = 0; i < connections; i++)
        ask(&conns[i], began);
    run();
    const int64_t us = now_us() - began;
    uint64_t least = UINT64_MAX, most = 0;
    for (long i = 0; i < connections; i++) {
        count_segments(&conns[i]);
        least = conns[i].bytes < least ? conns[i].bytes : least;
        most = conns[i].bytes > most ? conns[i].bytes : most;
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    qsort(first_bytes.us, first_bytes.count, sizeof(uint32_t), by_value);
    qsort(last_bytes.us, last_bytes.count, sizeof(uint32_t), by_value);
    qsort(hit_bytes.us, hit_bytes.count, sizeof(uint32_t), by_value);
    printf("{\"requests\":%llu,\"refused\":%llu,\"failed\":%llu,\"wrong\":%llu,\"hits\":%llu,"
           "\"bytes\":%llu,\"us\":%lld,\"segments\":%llu,\"conn_least\":%llu,\"conn_most\":%llu,"
           "\"cpu_us\":%lld,\"first_p50\":%u,\"first_p99\":%u,\"last_p50\":%u,\"last_p99\":%u,"
           "\"last_max\":%u,\"hit_p50\":%u,\"hit_p99\":%u}\n",
           (unsigned long long)replies, (unsigned long long)refused, (unsigned long long)failed,
           (unsigned long long)wrong, (unsigned long long)hits, (unsigned long long)bytes,
           (long long)us, (unsigned long long)segments, (unsigned long long)least,
           (unsigned long long)most,
           (long long)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
               usage.ru_utime.tv_usec + usage.ru_stime.tv_usec,
           times_at(&first_bytes, 0.5), times_at(&first_bytes, 0.99), times_at(&last_bytes, 0.5),
           times_at(&last_bytes, 0.99), times_at(&last_bytes, 1.0), times_at(&hit_bytes, 0.5),
           times_at(&hit_bytes, 0.99));
    return 0;
}

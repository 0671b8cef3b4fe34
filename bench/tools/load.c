// SPDX-License-Identifier: Apache-2.0
// A client to measure with: N connections, each asks again as soon as its reply is whole.
//
//     bench_load --port N --plan FILE --connections N
//                (--seconds S | --requests N | once over the plan)
//                [--random] [--rate MB/S] [--pace N] [--blind | --discard | --keep]
//                [--tls] [--processes N]
//
// FILE: requests as they go over the wire, each ended by a zero byte. They are sent in order, one
// after the other by whichever connection is free, or with --random in any order. --rate: no
// connection reads faster (10^6 bytes a second). --pace: no more than N requests a second are sent,
// by all together; a connection waits for its turn, which is not part of what its request takes.
// Every byte of a 200 or 206 is compared with what pattern.h says of it, unless --blind; with
// --discard bodies are not even copied out of the kernel, so that the server is what is busy. With
// --keep each connection has memory for a whole body, and receives into that; nothing is compared.
// --processes: N share the connections and the plan; each has one thread.
// Prints one JSON object: counts, wall time, CPU time of the processes, TCP segments with data that
// came, what the connections got that got least and most, and percentiles in microseconds, counted
// from when the request was sent until the first byte of the body and until the last, of hits
// apart, too.
#include "pattern.h"
#include "tls.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    HEAD_MAX = 8192,
    READ_BYTES = 1 << 18,
    DISCARD_BYTES = 1 << 22,
    TICK_US = 1000,
    BURST_US = 20000,
    PATIENCE_US = 60000000, // how long after the end a reply may still come
    PROCESSES_MAX = 64,
};

struct request {
    const char *text;
    size_t length;
    uint64_t start; // in the pattern, of the first byte that is asked for
};

struct conn {
    int fd;
    SSL *session;        // NULL: plain
    unsigned char *kept; // with --keep: memory for a body
    uint64_t kept_room;
    const struct request *request;
    char head[HEAD_MAX];
    size_t head_length;
    bool in_body, judged, limited, is_hit;
    uint64_t length, left, at, bytes;
    int64_t sent_us, paid_us;
    struct conn *next; // in the list that it waits in
};

struct times {
    uint32_t *us;
    size_t count, room;
};

static struct sockaddr_in server;
static struct request *plan;
static size_t plan_length, next_request, request_step = 1;
static uint64_t to_send = UINT64_MAX;
static int64_t end_us = INT64_MAX;
static bool in_any_order, blind, discard, keep;
static SSL_CTX *tls;
static uint32_t random_state = 2463534242u;
static double rate;
static int poll_fd, busy;
static const unsigned char *pattern;
static unsigned char *buffer;
static struct conn *limited_first, *waiting_first, **waiting_last = &waiting_first;
// Between two requests, and when the next may be sent: thousandths of a microsecond.
static int64_t pace_us_1000, turn_us_1000;
enum { FIRST_BYTES, LAST_BYTES, HIT_BYTES, TIMES }; // HIT_BYTES: the last of those that were hits
static struct times times[TIMES];
static struct result {
    uint64_t replies, refused, failed, wrong, bytes, hits, segments, conn_least, conn_most;
    int64_t us;
} result;

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
    c->session = tls ? tls_session(tls, c->fd) : NULL;
    if (tls && SSL_connect(c->session) != 1) {
        ERR_print_errors_fp(stderr);
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
        result.segments += info.tcpi_data_segs_in;
}

static void send_next(struct conn *c, int64_t now)
{
    to_send--;
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    c->request = &plan[in_any_order ? random_state % plan_length : next_request % plan_length];
    next_request += request_step;
    c->head_length = 0;
    c->in_body = false;
    c->sent_us = c->paid_us = now;
    busy++;
    const struct request *r = c->request;
    if ((tls ? tls_send(c->session, r->text, r->length)
             : send(c->fd, r->text, r->length, MSG_NOSIGNAL)) != (ssize_t)r->length)
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
    times_add(&times[LAST_BYTES], now - c->sent_us);
    if (c->is_hit)
        times_add(&times[HIT_BYTES], now - c->sent_us);
    result.replies++;
    busy--;
    ask(c, now);
}

static void broken(struct conn *c, int64_t now)
{
    count_segments(c);
    SSL_free(c->session);
    close(c->fd);
    open_conn(c);
    if (!c->request)
        return;
    result.failed++;
    busy--;
    ask(c, now);
}

// Memory for the whole body. Its pages are touched before any byte comes.
static void make_room(struct conn *c)
{
    if (c->length <= c->kept_room)
        return;
    if (c->kept)
        munmap(c->kept, c->kept_room);
    c->kept = mmap(NULL, c->length, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    c->kept_room = c->length;
    if (c->kept == MAP_FAILED)
        abort();
}

// LENGTH bytes of the body have come.
static void body(struct conn *c, const unsigned char *data, size_t length)
{
    if (length > c->left)
        length = (size_t)c->left;
    for (size_t done = 0; c->judged && done < length;) {
        const size_t some = length - done < PATTERN_BYTES ? length - done : PATTERN_BYTES;
        if (memcmp(pattern + c->at, data + done, some) != 0) {
            result.wrong++;
            c->judged = false;
        }
        c->at = (c->at + some) % PATTERN_BYTES;
        done += some;
    }
    if (keep && length > 0 && data != c->kept + (c->length - c->left))
        memcpy(c->kept + (c->length - c->left), data, length);
    c->left -= length;
    c->bytes += length;
    result.bytes += length;
}

static void receive(struct conn *c, int64_t now)
{
    const bool away = discard && c->in_body, keeps = keep && c->in_body && !tls;
    unsigned char *const to = keeps ? c->kept + (c->length - c->left) : buffer;
    size_t want = away || keeps ? DISCARD_BYTES : READ_BYTES;
    if (keeps && want > c->left)
        want = (size_t)c->left;
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
    ssize_t n = tls ? tls_recv(c->session, to, want)
                    : recv(c->fd, away ? NULL : to, want, away ? MSG_TRUNC : 0);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0 || !c->request) {
        broken(c, now);
        return;
    }
    if (rate > 0)
        c->paid_us += (int64_t)((double)n / rate);
    const unsigned char *at = to;
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
        result.refused += !good;
        c->is_hit = strstr(c->head, "; hit") != NULL;
        result.hits += c->is_hit;
        c->length = c->left = length && length < end && c->request->text[0] != 'H'
                                  ? strtoull(length + 17, NULL, 10)
                                  : 0;
        if (keep)
            make_room(c);
        c->at = c->request->start % PATTERN_BYTES;
        c->judged = good && !blind;
        c->in_body = true;
        const size_t used = (size_t)(end + 4 - c->head) - before;
        at += used;
        n -= (ssize_t)used;
        if (n > 0 || !c->left)
            times_add(&times[FIRST_BYTES], now - c->sent_us);
        else
            c->head_length = 0; // the first byte is still to come
    } else if (!c->head_length) {
        times_add(&times[FIRST_BYTES], now - c->sent_us);
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
            result.failed += (uint64_t)busy;
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

static void write_all(int fd, const void *data, size_t length)
{
    for (size_t done = 0; done < length;) {
        const ssize_t n = write(fd, (const char *)data + done, length - done);
        if (n <= 0)
            exit(1);
        done += (size_t)n;
    }
}

// False if the writer ended first.
static bool read_all(int fd, void *to, size_t length)
{
    for (size_t done = 0; done < length;) {
        const ssize_t n = read(fd, (char *)to + done, length - done);
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

// One of the processes: opens its connections, waits for the start, asks, and writes its result.
static _Noreturn void work(long connections, double seconds, int start, int out)
{
    pattern = pattern_make();
    buffer = malloc(READ_BYTES);
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct conn *conns = calloc((size_t)connections, sizeof *conns);
    if (!buffer || !conns)
        abort();
    for (long i = 0; i < connections; i++)
        open_conn(&conns[i]);
    char byte = 0;
    write_all(out, &byte, 1);
    read_all(start, &byte, 1); // until the parent closes its end
    const int64_t began = now_us();
    if (seconds > 0)
        end_us = began + (int64_t)(seconds * 1e6);
    for (long i = 0; i < connections; i++)
        ask(&conns[i], began);
    run();
    result.us = now_us() - began;
    result.conn_least = UINT64_MAX;
    for (long i = 0; i < connections; i++) {
        const uint64_t got = conns[i].bytes;
        count_segments(&conns[i]);
        result.conn_least = got < result.conn_least ? got : result.conn_least;
        result.conn_most = got > result.conn_most ? got : result.conn_most;
    }
    write_all(out, &result, sizeof result);
    for (int i = 0; i < TIMES; i++) {
        write_all(out, &times[i].count, sizeof times[i].count);
        write_all(out, times[i].us, times[i].count * sizeof *times[i].us);
    }
    exit(0);
}

// Adds the result of another process.
static void take_result(int in)
{
    struct result some;
    if (!read_all(in, &some, sizeof some))
        exit(1);
    result.replies += some.replies;
    result.refused += some.refused;
    result.failed += some.failed;
    result.wrong += some.wrong;
    result.bytes += some.bytes;
    result.hits += some.hits;
    result.segments += some.segments;
    if (some.conn_least < result.conn_least)
        result.conn_least = some.conn_least;
    if (some.conn_most > result.conn_most)
        result.conn_most = some.conn_most;
    if (some.us > result.us)
        result.us = some.us;
    for (int i = 0; i < TIMES; i++) {
        struct times *t = &times[i];
        size_t count;
        if (!read_all(in, &count, sizeof count))
            exit(1);
        t->room = t->count + count;
        t->us = realloc(t->us, (t->room + 1) * sizeof *t->us);
        if (!t->us || !read_all(in, t->us + t->count, count * sizeof *t->us))
            exit(1);
        t->count = t->room;
    }
}

// Share I of N of a TOTAL.
static uint64_t share(uint64_t total, long i, long n)
{
    return total / (uint64_t)n + ((uint64_t)i < total % (uint64_t)n);
}

static void run_processes(long processes, long connections, double seconds)
{
    int start[2], results[PROCESSES_MAX];
    const uint64_t all = to_send;
    if (pipe(start) != 0)
        abort();
    for (long i = 0; i < processes; i++) {
        int ends[2];
        if (pipe(ends) != 0)
            abort();
        const pid_t child = fork();
        if (child < 0)
            abort();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            close(start[1]);
            if (all != UINT64_MAX)
                to_send = share(all, i, processes);
            next_request = (size_t)i;
            request_step = (size_t)processes;
            pace_us_1000 *= processes;
            random_state += (uint32_t)i;
            work((long)share((uint64_t)connections, i, processes), seconds, start[0], ends[1]);
        }
        close(ends[1]);
        results[i] = ends[0];
    }
    char ready;
    for (long i = 0; i < processes; i++) {
        if (!read_all(results[i], &ready, 1))
            exit(1);
    }
    close(start[1]);
    result.conn_least = UINT64_MAX;
    for (long i = 0; i < processes; i++)
        take_result(results[i]);
    while (wait(NULL) > 0) {
    }
}

static void print_result(void)
{
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    for (int i = 0; i < TIMES; i++)
        qsort(times[i].us, times[i].count, sizeof(uint32_t), by_value);
    const struct times *first = &times[FIRST_BYTES], *last = &times[LAST_BYTES];
    printf("{\"requests\":%llu,\"refused\":%llu,\"failed\":%llu,\"wrong\":%llu,\"hits\":%llu,"
           "\"bytes\":%llu,\"us\":%lld,\"segments\":%llu,\"conn_least\":%llu,\"conn_most\":%llu,"
           "\"cpu_us\":%lld,\"first_p50\":%u,\"first_p99\":%u,\"last_p50\":%u,\"last_p99\":%u,"
           "\"last_max\":%u,\"hit_p50\":%u,\"hit_p99\":%u}\n",
           (unsigned long long)result.replies, (unsigned long long)result.refused,
           (unsigned long long)result.failed, (unsigned long long)result.wrong,
           (unsigned long long)result.hits, (unsigned long long)result.bytes, (long long)result.us,
           (unsigned long long)result.segments, (unsigned long long)result.conn_least,
           (unsigned long long)result.conn_most,
           (long long)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
               usage.ru_utime.tv_usec + usage.ru_stime.tv_usec,
           times_at(first, 0.5), times_at(first, 0.99), times_at(last, 0.5), times_at(last, 0.99),
           times_at(last, 1.0), times_at(&times[HIT_BYTES], 0.5),
           times_at(&times[HIT_BYTES], 0.99));
}

int main(int argc, char **argv)
{
    long connections = 1, processes = 1;
    double seconds = 0;
    const char *plan_path = NULL;
    bool counted = false;
    server = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    signal(SIGPIPE, SIG_IGN);
    for (int i = 1; i < argc; i++) {
        const char *option = argv[i];
        if (strcmp(option, "--random") == 0) {
            in_any_order = true;
            continue;
        }
        if (strcmp(option, "--blind") == 0 || strcmp(option, "--discard") == 0 ||
            strcmp(option, "--keep") == 0) {
            blind = true;
            discard = option[2] == 'd';
            keep = option[2] == 'k';
            continue;
        }
        if (strcmp(option, "--tls") == 0) {
            tls = tls_client();
            continue;
        }
        const char *value = i + 1 < argc ? argv[++i] : "";
        if (strcmp(option, "--port") == 0)
            server.sin_port = htons((uint16_t)strtoul(value, NULL, 10));
        else if (strcmp(option, "--plan") == 0)
            plan_path = value;
        else if (strcmp(option, "--connections") == 0)
            connections = strtol(value, NULL, 10);
        else if (strcmp(option, "--processes") == 0)
            processes = strtol(value, NULL, 10);
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
    if (!plan_path || processes < 1 || processes > PROCESSES_MAX || connections < processes ||
        (tls && (discard || rate > 0))) {
        fprintf(stderr, "bench_load: these options do not go together\n");
        return 2;
    }
    read_plan(plan_path);
    if (seconds == 0 && !counted)
        to_send = plan_length;
    run_processes(processes, connections, seconds);
    print_result();
    return 0;
}

// SPDX-License-Identifier: Apache-2.0
// An object store to measure against: bytes from memory at no cost, and the limits that a real one
// has.
//
//     bench_origin [--latency MS] [--rate MB/S] [--max-rps N] [--port N] [--listen ADDRESS]
//                  [--tar FILE] [--tls FILE] [--processes N]
//
// Any path is an object; what follows the last '.' of it is its size in bytes, with K, M or G for
// 1,024s: /bench/train/17.100K. Its bytes are those of pattern.h. GET with one range, HEAD,
// If-Match, If-None-Match. --latency: each reply begins that late. --rate: no connection gets more
// (10^6 bytes a second). --max-rps: what comes faster is answered 503 SlowDown. Without them it is
// as fast as one core is. --tar: an object whose name ends in .tar has the bytes of FILE. A listing
// (ListObjectsV2) names as many of these as its max-keys, below its prefix: PREFIX0000.tar,
// PREFIX0001.tar and so on. GET /-/stats answers JSON and resets its counts. --tls: FILE has the
// certificate and its key. --processes: N share the connections; each has --max-rps. The port is
// the first line on stdout. Each process has one thread, and ends with its parent's stdin.
#include "pattern.h"
#include "tls.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    HEAD_MAX = 16384,
    TICK_US = 1000,   // how often a connection that is held to a rate gets its share
    BURST_US = 20000, // what such a connection may catch up after the machine was busy
    LAST_MODIFIED = 1700000000,
    LISTED_MAX = 64,
    PROCESSES_MAX = 64,
};

struct conn {
    int fd;
    SSL *session; // NULL: plain
    bool writing; // waits for room in the socket
    bool waiting; // in the queue of replies that are due later
    bool limited; // in the list of those that are fed by the tick
    bool close;
    char in[HEAD_MAX];
    size_t in_length;
    char head[1024];
    size_t head_length, head_sent;
    const unsigned char *bytes; // of the object: the pattern or the file
    uint64_t period;            // after this many they repeat
    uint64_t at, left;          // of the body: next one of them, bytes to send
    int64_t due_us;             // the reply begins
    int64_t paid_us;            // what the rate has given counts from here
    struct conn *next;          // by due_us, or in the limited list
};

static const unsigned char *pattern, *tar;
static uint64_t tar_size;
static int poll_fd;
static int64_t latency_us;
static double rate; // bytes per microsecond; 0: none
static long max_rps;
static struct conn *queue_first, **queue_end = &queue_first;
static struct conn *limited_first;
static SSL_CTX *tls;
static struct {
    uint64_t requests, bytes, slowdowns;
    long open, most_open, busy, most_busy;
} * seen; // shared by all processes

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void count(uint64_t *what, uint64_t by)
{
    __atomic_fetch_add(what, by, __ATOMIC_RELAXED);
}

static void one_more(long *now, long *most)
{
    const long n = __atomic_add_fetch(now, 1, __ATOMIC_RELAXED);
    long before = __atomic_load_n(most, __ATOMIC_RELAXED);
    while (before < n && !__atomic_compare_exchange_n(most, &before, n, true, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED)) {
    }
}

static void one_less(long *now)
{
    __atomic_fetch_sub(now, 1, __ATOMIC_RELAXED);
}

static ssize_t send_bytes(struct conn *c, const void *data, size_t length, int flags)
{
    return c->session ? tls_send(c->session, data, length)
                      : send(c->fd, data, length, MSG_NOSIGNAL | flags);
}

static void wait_for_room(struct conn *c, bool yes)
{
    if (c->writing == yes)
        return;
    c->writing = yes;
    struct epoll_event e = {.events = EPOLLIN | (yes ? (unsigned)EPOLLOUT : 0u), .data.ptr = c};
    epoll_ctl(poll_fd, EPOLL_CTL_MOD, c->fd, &e);
}

static void end_conn(struct conn *c)
{
    // A connection in a list is freed when its turn comes.
    if (c->fd >= 0) {
        SSL_free(c->session);
        close(c->fd);
        c->fd = -1;
        one_less(&seen->open);
    }
    if (!c->waiting && !c->limited)
        free(c);
}

// The value of header NAME (with its colon) in HEAD, or NULL.
static const char *header(const char *head, const char *name)
{
    const size_t length = strlen(name);
    for (const char *line = strchr(head, '\n'); line; line = strchr(line + 1, '\n')) {
        if (strncasecmp(line + 1, name, length) == 0) {
            line += 1 + length;
            return line + strspn(line, " ");
        }
    }
    return NULL;
}

static bool size_of(const char *path, size_t length, uint64_t *size)
{
    const char *dot = memrchr(path, '.', length);
    if (!dot)
        return false;
    char *end;
    *size = strtoull(dot + 1, &end, 10);
    const char *units = "KMG", *unit = end < path + length && *end ? strchr(units, *end) : NULL;
    if (unit)
        *size <<= 10 * (unit - units + 1);
    return end > dot + 1;
}

static void answer(struct conn *c, const char *status, const char *extra, uint64_t length,
                   bool body)
{
    char date[64];
    const time_t modified = LAST_MODIFIED;
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime(&modified));
    c->head_length = (size_t)snprintf(
        c->head, sizeof c->head,
        "HTTP/1.1 %s\r\nContent-Length: %llu\r\nLast-Modified: %s\r\nAccept-Ranges: bytes\r\n"
        "Content-Type: application/octet-stream\r\nServer: bench\r\n%s\r\n",
        status, (unsigned long long)length, date, extra);
    c->head_sent = 0;
    c->left = body ? length : 0;
}

static void answer_object(struct conn *c, const char *path, size_t length, bool get)
{
    const bool is_tar = tar && length > 4 && memcmp(path + length - 4, ".tar", 4) == 0;
    uint64_t size = tar_size;
    if (!is_tar && !size_of(path, length, &size)) {
        answer(c, "404 Not Found", "", 0, false);
        return;
    }
    const uint64_t start = pattern_start(path, length);
    c->bytes = is_tar ? tar : pattern;
    c->period = is_tar ? tar_size : PATTERN_BYTES;
    char tag[40], extra[256];
    snprintf(tag, sizeof tag, "\"%016llx%016llx\"", (unsigned long long)start,
             (unsigned long long)size);
    snprintf(extra, sizeof extra, "ETag: %s\r\n", tag);
    const char *match = header(c->in, "if-match:"), *none = header(c->in, "if-none-match:");
    if (match && strncmp(match, tag, strlen(tag)) != 0) {
        answer(c, "412 Precondition Failed", "", 0, false);
        return;
    }
    if (none && strncmp(none, tag, strlen(tag)) == 0) {
        answer(c, "304 Not Modified", extra, 0, false);
        return;
    }
    const char *range = get ? header(c->in, "range: bytes=") : NULL;
    uint64_t first = 0, last = size ? size - 1 : 0;
    if (range) {
        char *end;
        first = strtoull(range, &end, 10);
        if (*end == '-' && end[1] >= '0' && end[1] <= '9')
            last = strtoull(end + 1, NULL, 10);
        if (last >= size)
            last = size - 1;
        if (first >= size) {
            snprintf(extra, sizeof extra, "Content-Range: bytes */%llu\r\n",
                     (unsigned long long)size);
            answer(c, "416 Range Not Satisfiable", extra, 0, false);
            return;
        }
        snprintf(extra, sizeof extra, "ETag: %s\r\nContent-Range: bytes %llu-%llu/%llu\r\n", tag,
                 (unsigned long long)first, (unsigned long long)last, (unsigned long long)size);
    }
    answer(c, range ? "206 Partial Content" : "200 OK", extra, size ? last - first + 1 : 0, get);
    c->at = is_tar ? first : (start + first) % PATTERN_BYTES;
}

static bool too_many(int64_t now)
{
    static double tokens;
    static int64_t before;
    if (!max_rps)
        return false;
    tokens += (double)(now - before) * (double)max_rps / 1e6;
    before = now;
    if (tokens > (double)max_rps / 10)
        tokens = (double)max_rps / 10;
    if (tokens < 1)
        return true;
    tokens -= 1;
    return false;
}

static void answer_stats(struct conn *c)
{
    char text[256];
    const int length =
        snprintf(text, sizeof text,
                 "{\"requests\":%llu,\"bytes\":%llu,\"slowdowns\":%llu,\"connections\":%ld,\"at_"
                 "once\":%ld}\n",
                 (unsigned long long)seen->requests, (unsigned long long)seen->bytes,
                 (unsigned long long)seen->slowdowns, seen->most_open - 1, seen->most_busy);
    answer(c, "200 OK", "", (uint64_t)length, false);
    memcpy(c->head + c->head_length, text, (size_t)length);
    c->head_length += (size_t)length;
    seen->requests = seen->bytes = seen->slowdowns = 0;
    seen->most_open = seen->open;
    seen->most_busy = 0;
}

// One at a time: the next one's names take their place.
static void answer_listing(struct conn *c, const char *query)
{
    static char text[HEAD_MAX / 2];
    char prefix[64] = "";
    const char *asked = strstr(query, "prefix="), *count = strstr(query, "max-keys=");
    for (size_t i = 0; asked && i + 1 < sizeof prefix && !strchr("& ", asked[7]); i++, asked++) {
        const bool is_slash = strncasecmp(asked + 7, "%2f", 3) == 0;
        prefix[i] = is_slash ? '/' : asked[7];
        asked += is_slash ? 2 : 0;
    }
    const long asked_count = count ? strtol(count + 9, NULL, 10) : 0;
    int length = snprintf(text, sizeof text, "<?xml version=\"1.0\"?><ListBucketResult>");
    for (long i = 0; tar && i < asked_count && i < LISTED_MAX; i++)
        length += snprintf(text + length, sizeof text - (size_t)length,
                           "<Contents><Key>%s%04ld.tar</Key><Size>%llu</Size></Contents>", prefix,
                           i, (unsigned long long)tar_size);
    length += snprintf(text + length, sizeof text - (size_t)length, "</ListBucketResult>");
    answer(c, "200 OK", "", (uint64_t)length, true);
    c->bytes = (const unsigned char *)text;
    c->period = (uint64_t)length;
    c->at = 0;
}

static void send_some(struct conn *c, int64_t now);

// One whole request is in c->in, ended by a zero; true if a reply has been made.
static void take_request(struct conn *c, int64_t now)
{
    char *path = strchr(c->in, ' ');
    char *end = path ? strpbrk(path + 1, " ?") : NULL;
    if (!end) {
        end_conn(c);
        return;
    }
    path++;
    const size_t length = (size_t)(end - path);
    c->due_us = now + latency_us;
    one_more(&seen->busy, &seen->most_busy);
    if (length == 8 && memcmp(path, "/-/stats", 8) == 0) {
        answer_stats(c);
        c->due_us = now;
    } else {
        count(&seen->requests, 1);
        if (too_many(now)) {
            count(&seen->slowdowns, 1);
            answer(c, "503 Slow Down", "", 0, false);
        } else if (*end == '?' && strstr(end, "list-type=2"))
            answer_listing(c, end);
        else
            answer_object(c, path, length, c->in[0] == 'G');
    }
    if (c->due_us > now) {
        c->waiting = true;
        c->next = NULL;
        *queue_end = c;
        queue_end = &c->next;
        return;
    }
    c->paid_us = now;
    send_some(c, now);
}

static void receive(struct conn *c, int64_t now)
{
    const size_t room = sizeof c->in - 1 - c->in_length;
    const ssize_t n = c->session ? tls_recv(c->session, c->in + c->in_length, room)
                                 : read(c->fd, c->in + c->in_length, room);
    if (n <= 0) {
        if (n == 0 || errno != EAGAIN) {
            if (c->head_length)
                one_less(&seen->busy);
            end_conn(c);
        }
        return;
    }
    c->in_length += (size_t)n;
    c->in[c->in_length] = 0;
    // No pipelining: nobody here sends a request before the last reply has come.
    if (c->in_length >= 4 && memcmp(c->in + c->in_length - 4, "\r\n\r\n", 4) == 0)
        take_request(c, now);
    else if (c->in_length == sizeof c->in - 1)
        end_conn(c);
}

static void join_limited(struct conn *c)
{
    if (c->limited)
        return;
    c->limited = true;
    c->next = limited_first;
    limited_first = c;
}

// Sends until the socket is full, the rate is used up or the reply is whole.
static void send_some(struct conn *c, int64_t now)
{
    while (c->head_sent < c->head_length) {
        const ssize_t n = send_bytes(c, c->head + c->head_sent, c->head_length - c->head_sent,
                                     c->left ? MSG_MORE : 0);
        if (n < 0) {
            wait_for_room(c, errno == EAGAIN);
            if (errno != EAGAIN)
                goto broken;
            return;
        }
        c->head_sent += (size_t)n;
    }
    while (c->left) {
        // The pattern is in memory twice, so a period is contiguous wherever it begins.
        size_t want = c->left < PATTERN_BYTES ? (size_t)c->left : PATTERN_BYTES;
        if (rate > 0) {
            if (now - c->paid_us > BURST_US)
                c->paid_us = now - BURST_US;
            const double given = (double)(now - c->paid_us) * rate;
            if (given < 1) {
                wait_for_room(c, false);
                join_limited(c);
                return;
            }
            if (want > (size_t)given)
                want = (size_t)given;
        }
        const ssize_t n = send_bytes(c, c->bytes + c->at, want, 0);
        if (n < 0) {
            if (errno != EAGAIN)
                goto broken;
            wait_for_room(c, true);
            return;
        }
        c->left -= (uint64_t)n;
        c->at = (c->at + (uint64_t)n) % c->period;
        count(&seen->bytes, (uint64_t)n);
        if (rate > 0)
            c->paid_us += (int64_t)((double)n / rate);
    }
    wait_for_room(c, false);
    c->in_length = c->head_length = 0;
    one_less(&seen->busy);
    return;
broken:
    one_less(&seen->busy);
    end_conn(c);
}

static void accept_all(int listener)
{
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct conn *c = calloc(1, sizeof *c);
        if (!c)
            abort();
        c->fd = fd;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &e);
        one_more(&seen->open, &seen->most_open);
        if (tls) {
            c->session = tls_session(tls, fd);
            SSL_set_accept_state(c->session);
        }
    }
}

// Replies whose time has come, then a share for each that is held to a rate. How long to sleep, in
// ms.
static int run_late(int64_t now)
{
    while (queue_first && queue_first->due_us <= now) {
        struct conn *c = queue_first;
        queue_first = c->next;
        if (!queue_first)
            queue_end = &queue_first;
        c->waiting = false;
        c->paid_us = now;
        if (c->fd < 0)
            end_conn(c);
        else
            send_some(c, now);
    }
    static int64_t tick;
    if (limited_first && now - tick >= TICK_US) {
        tick = now;
        struct conn *all = limited_first;
        limited_first = NULL;
        while (all) {
            struct conn *c = all;
            all = c->next;
            c->limited = false;
            if (c->fd < 0)
                end_conn(c);
            else
                send_some(c, now);
        }
    }
    if (limited_first)
        return 1;
    return queue_first ? (int)((queue_first->due_us - now + 999) / 1000) : -1;
}

static void map_tar(const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) {
        perror(path);
        exit(2);
    }
    tar_size = (uint64_t)st.st_size;
    tar = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (tar == MAP_FAILED) {
        perror(path);
        exit(2);
    }
    close(fd);
}

// Returns a socket that listens, and sets the port of AT if it was 0.
static int listen_at(struct sockaddr_in *at)
{
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    socklen_t length = sizeof *at;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    setsockopt(listener, SOL_SOCKET, SO_REUSEPORT, &(int){1}, sizeof(int));
    if (bind(listener, (struct sockaddr *)at, sizeof *at) != 0 || listen(listener, 4096) != 0 ||
        getsockname(listener, (struct sockaddr *)at, &length) != 0) {
        perror("bench_origin");
        exit(1);
    }
    return listener;
}

// Forks until there are PROCESSES. Returns the listener of this one, and closes the others.
static int share(const int *listeners, long processes)
{
    long mine = 0;
    for (long i = 1; i < processes && mine == 0; i++) {
        if (fork() == 0) {
            mine = i;
            prctl(PR_SET_PDEATHSIG, SIGTERM);
        }
    }
    for (long i = 0; i < processes; i++) {
        if (i != mine)
            close(listeners[i]);
    }
    return listeners[mine];
}

static _Noreturn void serve(int listener)
{
    // Told apart from a connection by where the pointer points.
    char input;
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = &poll_fd};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, listener, &e);
    e.data.ptr = &input;
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, STDIN_FILENO, &e);
    for (int sleep_ms = -1;;) {
        struct epoll_event ready[256];
        const int n = epoll_wait(poll_fd, ready, 256, sleep_ms);
        const int64_t now = now_us();
        for (int i = 0; i < n; i++) {
            struct conn *c = ready[i].data.ptr;
            if ((void *)c == &poll_fd)
                accept_all(listener);
            else if ((void *)c == &input) {
                if (read(STDIN_FILENO, &input, 1) <= 0)
                    exit(0);
            } else if (c->writing && (ready[i].events & EPOLLOUT))
                send_some(c, now);
            else
                receive(c, now);
        }
        sleep_ms = run_late(now);
    }
}

int main(int argc, char **argv)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    const char *listen_on = "127.0.0.1";
    long processes = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        const double value = atof(argv[i + 1]);
        if (strcmp(argv[i], "--latency") == 0)
            latency_us = (int64_t)(value * 1000);
        else if (strcmp(argv[i], "--rate") == 0)
            rate = value;
        else if (strcmp(argv[i], "--max-rps") == 0)
            max_rps = (long)value;
        else if (strcmp(argv[i], "--port") == 0)
            at.sin_port = htons((uint16_t)value);
        else if (strcmp(argv[i], "--listen") == 0)
            listen_on = argv[i + 1];
        else if (strcmp(argv[i], "--tar") == 0)
            map_tar(argv[i + 1]);
        else if (strcmp(argv[i], "--tls") == 0)
            tls = tls_server(argv[i + 1]);
        else if (strcmp(argv[i], "--processes") == 0)
            processes = value > PROCESSES_MAX ? PROCESSES_MAX : (long)value;
        else {
            fprintf(stderr, "bench_origin: unknown option %s\n", argv[i]);
            return 2;
        }
    }
    signal(SIGPIPE, SIG_IGN);
    pattern = pattern_make();
    seen = mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seen == MAP_FAILED)
        abort();
    if (inet_pton(AF_INET, listen_on, &at.sin_addr) != 1) {
        fprintf(stderr, "bench_origin: --listen takes an IPv4 address\n");
        return 2;
    }
    int listeners[PROCESSES_MAX] = {listen_at(&at)};
    for (long i = 1; i < processes; i++)
        listeners[i] = listen_at(&at);
    printf("%d\n", ntohs(at.sin_port));
    fflush(stdout);
    serve(share(listeners, processes));
}

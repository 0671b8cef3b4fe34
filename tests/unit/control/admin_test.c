// SPDX-License-Identifier: Apache-2.0
// Proves: probes, metrics and version answer over TCP and a unix socket; who may see settings; bind
// errors are reported.
#include "test.h"

#include "base/log.h"
#include "control/admin.h"
#include "stats/stats.h"
#include "waiting.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

static atomic_bool alive;

static bool probe_alive(void *ctx, struct buf *why)
{
    (void)ctx;
    buf_append_cstr(why, atomic_load(&alive) ? "2 workers" : "worker 1 is \"stuck\"");
    return atomic_load(&alive);
}

static void render_config(void *ctx, struct buf *out)
{
    (void)ctx;
    buf_append_cstr(out, "cache.size: 80%\n");
}

static void render_more(void *ctx, struct buf *out)
{
    (void)ctx;
    buf_append_cstr(out, "# TYPE forebay_more gauge\nforebay_more 1\n");
}

static const char *const listen_texts[] = {"127.0.0.1:9000", "unix:/x"};

static struct admin_options options(void)
{
    return (struct admin_options){.host = "127.0.0.1",
                                  .listen = listen_texts,
                                  .listen_count = 2,
                                  .io_engine = "threads",
                                  .alive = probe_alive,
                                  .metrics = render_more,
                                  .config = render_config};
}

static struct admin *start(const struct admin_options *o)
{
    struct buf why;
    struct admin *admin = NULL;
    buf_init(&why, 4096);
    cr_assert_eq(admin_start(o, &admin, &why), ERR_OK);
    buf_done(&why);
    return admin;
}

// Sends `request` as it is, and returns everything that comes back.
static char answer[1 << 20];

// Sends a request. Returns the connection.
static int talk_open(const char *address, const char *request)
{
    unsigned port = 0;
    cr_assert_eq(sscanf(address, "127.0.0.1:%u", &port), 1);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct timeval t = {.tv_sec = 20};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    cr_assert_eq(send(fd, request, strlen(request), MSG_NOSIGNAL), (ssize_t)strlen(request));
    return fd;
}

static const char *talk(const char *address, const char *request)
{
    int fd = talk_open(address, request);
    size_t len = 0;
    ssize_t got;
    while ((got = recv(fd, answer + len, sizeof(answer) - 1 - len, 0)) > 0) {
        len += (size_t)got;
    }
    answer[len] = '\0';
    close(fd);
    return answer;
}

Test(admin, probes_say_why)
{
    struct admin_options o = options();
    struct admin *admin = start(&o);
    struct buf body;
    unsigned status = 0;
    buf_init(&body, 1 << 20);
    atomic_store(&alive, true);
    cr_assert_eq(admin_client_get(admin_listen_address(admin), "/livez", 5000, &status, &body),
                 ERR_OK);
    cr_assert_eq(status, 200);
    cr_assert_str_eq(buf_cstr(&body), "{\"status\":\"ok\",\"reason\":\"2 workers\"}\n");
    atomic_store(&alive, false);
    body.len = 0;
    cr_assert_eq(admin_client_get(admin_listen_address(admin), "/livez?x=1", 5000, &status, &body),
                 ERR_OK);
    cr_assert_eq(status, 503);
    cr_assert_str_eq(buf_cstr(&body),
                     "{\"status\":\"unavailable\",\"reason\":\"worker 1 is \\\"stuck\\\"\"}\n");
    body.len = 0;
    cr_assert_eq(admin_client_get(admin_listen_address(admin), "/readyz", 5000, &status, &body),
                 ERR_OK);
    cr_assert_eq(status, 200); // no callback: nothing to wait for
    buf_done(&body);
    admin_stop(admin);
    admin_stop(NULL);
}

// `forebay drain --wait` takes the end of its connection for the end of the server.
Test(admin, open_connections_end_with_stop_and_not_with_halt)
{
    struct admin_options o = options();
    struct admin *admin = start(&o);
    char at[64], text[4096];
    unsigned status = 0;
    struct buf body;
    buf_init(&body, 4096);
    snprintf(at, sizeof(at), "%s", admin_listen_address(admin));
    int fd = talk_open(at, "GET /api/v1/events HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n");
    cr_assert_gt(recv(fd, text, sizeof(text), 0), 0);
    admin_halt(admin);
    admin_halt(admin);
    ssize_t got;
    while ((got = recv(fd, text, sizeof(text), MSG_DONTWAIT)) > 0) {
    }
    cr_assert(got < 0 && errno == EAGAIN);
    cr_assert_eq(admin_client_get(at, "/livez", 5000, &status, &body), ERR_ORIGIN_CONNECT);
    admin_stop(admin);
    cr_assert_eq(recv(fd, text, sizeof(text), 0), 0);
    close(fd);
    buf_done(&body);
}

Test(admin, metrics_have_the_exact_type_and_end_in_a_newline)
{
    struct admin_options o = options();
    struct admin *admin = start(&o);
    stats_add(COUNTER_hit_small, 1);
    const char *text =
        talk(admin_listen_address(admin), "GET /metrics HTTP/1.1\r\nHost: forebay.svc\r\n\r\n");
    cr_assert_eq(strncmp(text, "HTTP/1.1 200 ", 13), 0);
    cr_assert_not_null(strstr(text, "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    const char *expected[] = {"\nforebay_build_info{version=\"",
                              ",io_engine=\"threads\",",
                              "\nprocess_cpu_seconds_total ",
                              "\nprocess_resident_memory_bytes ",
                              "\nprocess_open_fds ",
                              "\nprocess_max_fds ",
                              "\nprocess_start_time_seconds ",
                              "\nprocess_threads ",
                              "\nforebay_hit_blocks_total{path=\"small\"} 1\n",
                              "\nforebay_more 1\n"};
    for (size_t i = 0; i < ARRAY_LEN(expected); i++) {
        cr_assert_not_null(strstr(text, expected[i]), "%s", expected[i]);
    }
    cr_assert_eq(text[strlen(text) - 1], '\n');
    admin_stop(admin);
}

Test(admin, settings_are_for_callers_that_name_an_address)
{
    struct admin_options o = options();
    struct admin *admin = start(&o);
    const char *at = admin_listen_address(admin);
    cr_assert_not_null(strstr(talk(at, "GET /api/v1/config HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n"),
                              "cache.size: 80%"));
    cr_assert_not_null(strstr(talk(at, "GET /api/v1/config HTTP/1.1\r\nHost: [::1]:80\r\n\r\n"),
                              "cache.size: 80%"));
    cr_assert_not_null(strstr(talk(at, "GET /api/v1/config HTTP/1.1\r\nHost: localhost.:1\r\n\r\n"),
                              "cache.size: 80%"));
    const char *bad[] = {"evil.example",
                         "evil.example.",
                         "localhost..",
                         "127.0.0.1.evil.example",
                         "localhost.evil",
                         "",
                         "[::1"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        char request[200];
        snprintf(request, sizeof(request), "GET /api/v1/config HTTP/1.1\r\nHost: %s\r\n\r\n",
                 bad[i]);
        const char *text = talk(at, request);
        cr_assert_eq(strncmp(text, "HTTP/1.1 403 ", 13), 0, "%s", bad[i]);
        cr_assert_null(strstr(text, "cache.size"));
    }
    admin_stop(admin);
}

Test(admin, other_paths_and_methods)
{
    struct admin_options o = options();
    o.config = NULL;
    struct admin *admin = start(&o);
    const char *at = admin_listen_address(admin);
    atomic_store(&alive, true);
    cr_assert_eq(strncmp(talk(at, "GET /x HTTP/1.1\r\nHost: x\r\n\r\n"), "HTTP/1.1 404 ", 13), 0);
    cr_assert_eq(strncmp(talk(at, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"), "HTTP/1.1 200 ", 13), 0);
    cr_assert_eq(strncmp(talk(at, "GET /api/v1/config HTTP/1.1\r\nHost: [::1]\r\n\r\n"),
                         "HTTP/1.1 404 ", 13),
                 0);
    const char *text = talk(at, "POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi");
    cr_assert_eq(strncmp(text, "HTTP/1.1 405 ", 13), 0);
    cr_assert_not_null(strstr(text, "Allow: GET, HEAD\r\n"));
    text = talk(at, "HEAD /livez HTTP/1.1\r\nHost: x\r\n\r\n");
    cr_assert_eq(strncmp(text, "HTTP/1.1 200 ", 13), 0);
    cr_assert_str_eq(strstr(text, "\r\n\r\n"), "\r\n\r\n");
    static char big[40000];
    snprintf(big, sizeof(big), "GET /livez HTTP/1.1\r\nX: %030000d\r\n\r\n", 1);
    cr_assert_eq(strncmp(talk(at, big), "HTTP/1.1 200", 12) == 0, false);
    cr_assert_eq(strncmp(talk(at, "nonsense\r\n\r\n"), "HTTP/1.1 200", 12) == 0, false);
    cr_assert_eq(strncmp(talk(at, "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"), "HTTP/1.1 200 ", 13),
                 0);
    admin_stop(admin);
}

Test(admin, unix_socket_is_private_and_replaces_a_dead_one)
{
    // A socket's name must be short. If TMPDIR is too long, /tmp is used.
    const char *tmp = getenv("TMPDIR");
    char folder[80], path[100], address[120];
    snprintf(folder, sizeof(folder), "%s/forebay-admin-XXXXXX",
             tmp != NULL && strlen(tmp) < 50 ? tmp : "/tmp");
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/s", folder);
    snprintf(address, sizeof(address), "unix:%s", path);
    struct sockaddr_un dead = {.sun_family = AF_UNIX};
    memcpy(dead.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    cr_assert_eq(bind(fd, (struct sockaddr *)&dead, sizeof(dead)), 0);
    close(fd); // the file stays, nobody listens

    struct admin_options o = options();
    o.host = NULL;
    o.socket_path = path;
    struct admin *admin = start(&o), *second = NULL;
    struct stat st;
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq(st.st_mode & 0777, 0600);
    cr_assert_str_eq(admin_listen_address(admin), "");
    struct buf body;
    unsigned status = 0;
    buf_init(&body, 1 << 16);
    cr_assert_eq(admin_client_get(address, "/version", 5000, &status, &body), ERR_OK);
    cr_assert_eq(status, 200);
    cr_assert_not_null(strstr(buf_cstr(&body), "\"listen\":[\"127.0.0.1:9000\",\"unix:/x\"]"));
    cr_assert_eq(strstr(buf_cstr(&body), "\"pod\":null,") == NULL,
                 getenv("KUBERNETES_SERVICE_HOST") != NULL);
    cr_assert_not_null(strstr(buf_cstr(&body), "\"origin\":\"\","));
    setenv("NODE_NAME", "\xff", 1); // names of hosts may contain any bytes
    setenv("POD_NAME", "\xff", 1);
    body.len = 0;
    cr_assert_eq(admin_client_get(address, "/version", 5000, &status, &body), ERR_OK);
    cr_assert_eq(status, 200);
    cr_assert_eq(admin_client_get(address, "/api/v1/config", 5000, &status, &body), ERR_OK);
    cr_assert_eq(status, 200);

    body.len = 0;
    cr_assert_neq(admin_start(&o, &second, &body), ERR_OK);
    cr_assert_not_null(strstr(buf_cstr(&body), "another server listens there"));
    cr_assert_eq(admin_client_get(address, "/version", 5000, &status, &body),
                 ERR_OK); // still there
    o.socket_optional = true;
    cr_assert_eq(admin_start(&o, &second, &body), ERR_OK);
    admin_stop(second);
    cr_assert_eq(stat(path, &st), 0); // not the second's to remove
    admin_stop(admin);
    cr_assert_neq(stat(path, &st), 0);
    cr_assert_eq(admin_client_get(address, "/version", 5000, &status, &body), ERR_ORIGIN_CONNECT);
    buf_done(&body);
    rmdir(folder);
}

static atomic_uint alarms;

static void on_alarm(int number)
{
    (void)number;
    atomic_fetch_add(&alarms, 1);
}

// Accepts connections, but only after three signals. Answers the first one that asks something.
static void *answer_late(void *ctx)
{
    int listener = *(int *)ctx, fd;
    char text[1024];
    while (atomic_load(&alarms) < 3) {
        poll(NULL, 0, 1);
    }
    while ((fd = accept(listener, NULL, NULL)) >= 0) {
        bool asks = recv(fd, text, sizeof(text), 0) > 0;
        if (asks) {
            cr_assert_gt(send(fd, "HTTP/1.1 200 OK\r\n\r\nlate", 23, 0), 0);
        }
        close(fd);
        if (asks) {
            break;
        }
    }
    return NULL;
}

// A signal ends connect(2) of a socket with a timeout, also if its handler has SA_RESTART. The
// doctor gets such signals when its output is read, and reported that the server sent no report.
Test(admin, signals_do_not_end_a_connection_that_the_server_takes_late)
{
    char folder[] = "/tmp/admin_testXXXXXX", address[128];
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval often = {{.tv_usec = 2000}, {.tv_usec = 2000}}, never = {0};
    sigset_t alarm_set;
    pthread_t thread;
    unsigned status = 0;
    struct buf body;
    buf_init(&body, 4096);
    cr_assert_not_null(mkdtemp(folder));
    snprintf(name.sun_path, sizeof(name.sun_path), "%s/s", folder);
    snprintf(address, sizeof(address), "unix:%s", name.sun_path);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0), first = socket(AF_UNIX, SOCK_STREAM, 0);
    cr_assert_eq(bind(listener, (struct sockaddr *)&name, sizeof(name)), 0);
    cr_assert_eq(listen(listener, 0), 0);
    cr_assert_eq(connect(first, (struct sockaddr *)&name, sizeof(name)), 0); // fills the queue
    close(first);
    sigemptyset(&alarm_set);
    sigaddset(&alarm_set, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm_set, NULL);
    cr_assert_eq(pthread_create(&thread, NULL, answer_late, &listener), 0);
    cr_assert_eq(sigaction(SIGALRM, &action, NULL), 0);
    pthread_sigmask(SIG_UNBLOCK, &alarm_set, NULL);
    cr_assert_eq(setitimer(ITIMER_REAL, &often, NULL), 0);
    cr_assert_eq(admin_client_get(address, "/version", 60000, &status, &body), ERR_OK);
    cr_assert_eq(setitimer(ITIMER_REAL, &never, NULL), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_assert_str_eq(buf_cstr(&body), "late");
    buf_done(&body);
    close(listener);
    unlink(name.sun_path);
    rmdir(folder);
}

static void *close_first(void *ctx)
{
    char text[1024];
    int fd = accept(*(int *)ctx, NULL, NULL);
    cr_assert_gt(recv(fd, text, sizeof(text), 0), 0);
    close(fd);
    return NULL;
}

Test(admin, client_tells_a_closed_connection_from_a_timeout)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(at);
    pthread_t thread;
    char address[64];
    unsigned status = 0;
    struct buf body;
    buf_init(&body, 4096);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
    cr_assert_eq(listen(listener, 8), 0);
    cr_assert_eq(getsockname(listener, (struct sockaddr *)&at, &len), 0);
    snprintf(address, sizeof(address), "127.0.0.1:%u", ntohs(at.sin_port));
    cr_assert_eq(pthread_create(&thread, NULL, close_first, &listener), 0);
    cr_assert_eq(admin_client_get(address, "/", 60000, &status, &body), ERR_ORIGIN_RESET);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_assert_eq(admin_client_get(address, "/", 10, &status, &body), ERR_ORIGIN_TIMEOUT);
    close(listener);
    buf_done(&body);
}

// A service manager passes in a listening socket in blocking mode. The admin answers there, answers
// again after that, and its thread ends when it is stopped.
Test(admin, inherited_blocking_socket_is_served_and_lets_the_thread_end)
{
    struct admin_options o = options();
    unsigned status = 0;
    struct buf body;
    buf_init(&body, 1 << 16);
    o.inherited_fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(listen(o.inherited_fd, 16), 0);
    int fd = o.inherited_fd;
    struct admin *admin = start(&o);
    char address[32];
    (void)snprintf(address, sizeof(address), "127.0.0.1%s",
                   strrchr(admin_listen_address(admin), ':'));
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(admin_client_get(address, "/version", 5000, &status, &body), ERR_OK);
        cr_assert_eq(status, 200);
    }
    cr_assert(fcntl(fd, F_GETFL) & O_NONBLOCK);
    cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    admin_stop(admin);
    buf_done(&body);
}

// A connection that cannot be accepted for lack of a descriptor waits until one is free.
Test(admin, a_process_without_descriptors)
{
    enum { MANY = 4096 };
    struct admin_options o = options();
    struct admin *admin = start(&o);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    to.sin_port = htons((uint16_t)strtoul(strrchr(admin_listen_address(admin), ':') + 1, NULL, 10));
    struct rlimit before, few = {MANY, MANY};
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    few.rlim_max = before.rlim_max;
    few.rlim_cur = min_u64(MANY, before.rlim_max);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    int client = socket(AF_INET, SOCK_STREAM, 0), taken[MANY], count = 0;
    while (count < MANY && (taken[count] = dup(client)) >= 0) {
        count++;
    }
    cr_assert_eq(errno, EMFILE);
    unsigned long lines = log_lines(LOG_LEVEL_WARN);
    cr_assert_eq(connect(client, (struct sockaddr *)&to, sizeof(to)), 0);
    static const char request[] = "GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    cr_assert_eq(write(client, request, sizeof(request) - 1), (ssize_t)sizeof(request) - 1);
    wait_for(log_lines(LOG_LEVEL_WARN) > lines); // it was not accepted
    while (count > 0) {
        close(taken[--count]);
    }
    cr_assert_gt(read(client, answer, sizeof(answer)), 0);
    cr_assert_eq(strncmp(answer, "HTTP/1.1 200", 12), 0);
    close(client);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    admin_stop(admin);
}

Test(admin, a_taken_port_is_reported_with_its_remedy)
{
    struct admin_options o = options();
    struct admin *admin = start(&o), *second = NULL;
    struct buf why;
    unsigned port = 0;
    buf_init(&why, 4096);
    cr_assert_eq(sscanf(admin_listen_address(admin), "127.0.0.1:%u", &port), 1);
    o.port = (uint16_t)port;
    cr_assert_eq(admin_start(&o, &second, &why), ERR_IN_USE);
    cr_assert_not_null(
        strstr(buf_cstr(&why), "Address already in use (another server? stop it, or choose"));
    cr_assert_null(second);
    buf_done(&why);
    admin_stop(admin);
}

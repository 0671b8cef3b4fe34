// SPDX-License-Identifier: Apache-2.0
// Bounds the time that a stop takes after its drain. A request to a hung disk or file server cannot
// be cancelled, and the threads that wait for it cannot be joined. After the limit the process
// exits at once, as after kill -9. The cache directory survives that. Runs on the main thread, in
// signal handlers.
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "server/command_notify.h"
#include "server/server_private.h"

#define STOP_MAX_S 30u    // longest time from the end of the drain to the exit
#define STOP_HURRIED_S 1u // the same after a second request to stop
#define STOP_LATE_S 5u    // longest time by which a busy host may delay that exit

// EXTEND_TIMEOUT_USEC never shortens the time that the service manager grants by itself.
void command_stop_begin(uint64_t until_ms)
{
    char text[80];
    uint64_t drain_ms = until_ms - min_u64(clock_monotonic_ms(), until_ms);
    uint64_t stop_ms = drain_ms + (STOP_MAX_S + STOP_LATE_S) * 1000;
    (void)snprintf(text, sizeof(text), "STOPPING=1\nEXTEND_TIMEOUT_USEC=%llu",
                   (unsigned long long)stop_ms * 1000);
    command_notify(text);
}

static void on_stop_too_long(int number)
{
    static const char text[] = "level=error event=stop_cut_short remedy=check_the_disk\n";
    struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
    (void)number;
    if (poll(&room, 1, 0) > 0) {
        (void)!write(STDERR_FILENO, text, sizeof(text) - 1); // a signal handler cannot use the log
    }
    _exit(EXIT_CODE_FAILED);
}

static volatile sig_atomic_t is_hurried;

static void on_stop_hurried(int number)
{
    (void)number;
    is_hurried = 1;
    (void)alarm(STOP_HURRIED_S);
}

bool command_stop_bound_end(const sigset_t *signals)
{
    check(pthread_sigmask(SIG_BLOCK, signals, NULL) == 0);
    (void)alarm(0);
    return is_hurried != 0;
}

void command_stop_bound(const sigset_t *signals)
{
    struct sigaction too_long = {.sa_handler = on_stop_too_long};
    struct sigaction hurried = {.sa_handler = on_stop_hurried, .sa_flags = SA_RESTART};
    sigset_t wanted = *signals;
    check(sigaction(SIGALRM, &too_long, NULL) == 0);
    check(sigaction(SIGTERM, &hurried, NULL) == 0);
    check(sigaction(SIGINT, &hurried, NULL) == 0);
    (void)sigdelset(&wanted, SIGTERM);
    (void)sigdelset(&wanted, SIGINT);
    (void)alarm(STOP_MAX_S);
    check(pthread_sigmask(SIG_SETMASK, &wanted, NULL) == 0);
}

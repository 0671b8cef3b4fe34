// SPDX-License-Identifier: Apache-2.0
// The sockets of a side together get no more room than their share of the memory limit.
#include <sys/socket.h>
#include <unistd.h>

#include "loop/loop.h"
#include "test.h"

#define KIB 1024u
#define MIB (1024u * KIB)
#define GIB (UINT64_C(1024) * MIB)
#define SOCKETS_MAX 40000u
#define LEAST (24 * KIB)

TestSuite(socket_room, .timeout = 60);

static unsigned counts[4 * KIB]; // sockets with this many KiB of room

// Returns how many sockets have at least this room.
static unsigned with_at_least(unsigned kib)
{
    unsigned sum = 0;
    for (unsigned i = kib; i < ARRAY_LEN(counts); i++) {
        sum += counts[i];
    }
    return sum;
}

static int size_of(int fd, int option)
{
    int size = 0;
    socklen_t len = sizeof(size);
    cr_assert(getsockopt(fd, SOL_SOCKET, option, &size, &len) == 0);
    return size;
}

// Returns a socket whose receive buffer has this size; 0: the kernel's.
static int socket_with(unsigned receive_bytes)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0), half = (int)receive_bytes / 2;
    cr_assert(fd >= 0);
    cr_assert(half == 0 || setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &half, sizeof(half)) == 0);
    return fd;
}

// Takes room until it is refused. Returns how many sockets got some.
static unsigned take_all(enum socket_side side)
{
    struct socket_room room;
    uint64_t last = UINT64_MAX;
    unsigned count = 0;
    int fd = socket_with(12 * KIB);
    while (count < SOCKETS_MAX && socket_room_take(side, fd, &room)) {
        cr_assert(room.bytes <= last && room.bytes <= 2 * MIB);
        last = room.bytes;
        counts[room.bytes / KIB]++;
        count++;
    }
    close(fd);
    return count;
}

Test(socket_room, without_a_limit_the_kernel_chooses)
{
    struct socket_room room = {1, 1};
    uint64_t listener = 0;
    int fd = socket_with(0), before = size_of(fd, SO_SNDBUF);
    socket_room_init(0);
    cr_assert(socket_room_take(SOCKETS_CLIENTS, fd, &room));
    socket_room_apply_listener(fd, &listener);
    cr_assert_not(socket_room_is_scarce(SOCKETS_CLIENTS));
    cr_assert_eq(room.bytes, 0);
    cr_assert_eq(room.piece, 0);
    cr_assert_eq(size_of(fd, SO_SNDBUF), before);
    cr_assert_eq(listener, 0);
    close(fd);
}

// Before an upgrade, many clients had made the buffers small. The next process has none yet.
Test(socket_room, a_listener_of_a_former_process_does_not_stay_small)
{
    static const uint64_t limits[] = {0, 2 * GIB};
    for (size_t i = 0; i < ARRAY_LEN(limits); i++) {
        uint64_t small = 0, usual = 0;
        int fd = socket_with(12 * KIB), other = socket_with(0), before = size_of(other, SO_RCVBUF);
        socket_room_init(limits[i]);
        socket_room_apply_listener(fd, &small);
        socket_room_apply_listener(other, &usual);
        cr_assert_geq(size_of(fd, SO_RCVBUF), (int)(128 * KIB));
        cr_assert_eq(size_of(other, SO_RCVBUF), before);
        close(fd);
        close(other);
    }
}

Test(socket_room, clients_get_less_as_their_share_fills_and_are_then_refused)
{
    struct socket_room room = {LEAST, 0};
    socket_room_init(128 * MIB);
    cr_assert_eq(take_all(SOCKETS_CLIENTS), 128 + 256 + 341);
    cr_assert_eq(counts[128], 128);
    cr_assert_eq(counts[32], 256);
    cr_assert_eq(counts[24], 341);
    cr_assert(socket_room_bytes(SOCKETS_CLIENTS) <= 32 * MIB);
    cr_assert(socket_room_is_scarce(SOCKETS_CLIENTS));
    socket_room_give_back(SOCKETS_CLIENTS, &room);
    cr_assert_eq(take_all(SOCKETS_CLIENTS), 1);
}

Test(socket_room, the_kernel_chooses_for_the_first_clients_of_a_large_pod)
{
    struct socket_room room;
    int fd = socket_with(0), before = size_of(fd, SO_SNDBUF);
    socket_room_init(2 * GIB);
    cr_assert(socket_room_take(SOCKETS_CLIENTS, fd, &room));
    cr_assert_eq(room.bytes, 2 * MIB);
    cr_assert_eq(size_of(fd, SO_SNDBUF), before);
    cr_assert_eq(take_all(SOCKETS_CLIENTS), 127 + 256 + 128 * KIB / 24);
    cr_assert_eq(counts[2048], 127);
    cr_assert_eq(counts[512], 256);
    close(fd);
}

Test(socket_room, a_lower_limit_is_for_new_sockets)
{
    struct socket_room first, room;
    int fd = socket_with(12 * KIB);
    socket_room_init(2 * GIB);
    cr_assert(socket_room_take(SOCKETS_CLIENTS, fd, &first));
    socket_room_init(2 * MIB);
    cr_assert(!socket_room_take(SOCKETS_CLIENTS, fd, &room));
    socket_room_give_back(SOCKETS_CLIENTS, &first);
    cr_assert(socket_room_take(SOCKETS_CLIENTS, fd, &room));
    cr_assert_eq(room.bytes, LEAST);
    close(fd);
}

Test(socket_room, an_origin_always_gets_a_little)
{
    socket_room_init(128 * MIB);
    cr_assert_eq(take_all(SOCKETS_ORIGINS), SOCKETS_MAX);
    cr_assert_eq(counts[512], 1);
    cr_assert_gt(with_at_least(64), 50);
    cr_assert_gt(with_at_least(25), 110);
    cr_assert_gt(counts[24], SOCKETS_MAX - 120);
}

// A job with small objects reads over hundreds of connections. None of them should need many round
// trips for an object.
Test(socket_room, hundreds_of_origin_connections_get_more_than_a_little)
{
    socket_room_init(1 * GIB);
    (void)take_all(SOCKETS_ORIGINS);
    cr_assert_gt(counts[2048], 16);
    cr_assert_gt(with_at_least(128), 150);
    cr_assert_gt(with_at_least(32), 300);
}

Test(socket_room, a_large_limit_does_not_overflow)
{
    struct socket_room room;
    int fd = socket_with(0);
    socket_room_init(UINT64_C(1) << 44);
    for (unsigned side = 0; side < SOCKETS_SIDES; side++) {
        cr_assert(socket_room_take(side, fd, &room));
        cr_assert_eq(room.bytes, 2 * MIB);
    }
    close(fd);
}

Test(socket_room, both_buffers_fit_into_the_room)
{
    struct socket_room room;
    int client = socket_with(32 * KIB), origin = socket_with(0);
    socket_room_init(128 * MIB);
    cr_assert(socket_room_take(SOCKETS_CLIENTS, client, &room));
    cr_assert_eq(size_of(client, SO_RCVBUF), 32 * KIB);
    cr_assert_eq(size_of(client, SO_SNDBUF), 96 * KIB);
    cr_assert_eq(room.piece, 0);
    cr_assert(socket_room_take(SOCKETS_ORIGINS, origin, &room));
    cr_assert_eq(size_of(origin, SO_RCVBUF), 256 * KIB);
    cr_assert_eq(size_of(origin, SO_SNDBUF), 256 * KIB);
    close(client);
    close(origin);
}

Test(socket_room, a_small_buffer_is_written_in_pieces)
{
    struct socket_room room;
    int fd = socket_with(12 * KIB);
    socket_room_init(4 * MIB);
    cr_assert(socket_room_take(SOCKETS_CLIENTS, fd, &room));
    cr_assert_eq(room.bytes, LEAST);
    cr_assert_eq(size_of(fd, SO_SNDBUF), 12 * KIB);
    cr_assert_eq(room.piece, 3 * KIB);
    close(fd);
}

Test(socket_room, a_client_keeps_the_receive_buffer_that_it_has_and_takes_room_for_it)
{
    struct socket_room room;
    int fd = socket_with(128 * KIB);
    socket_room_init(4 * MIB);
    cr_assert(socket_room_take(SOCKETS_CLIENTS, fd, &room));
    cr_assert_eq(room.bytes, 128 * KIB + 12 * KIB);
    cr_assert_eq(size_of(fd, SO_RCVBUF), 128 * KIB);
    cr_assert_eq(room.piece, 3 * KIB);
    close(fd);
}

Test(socket_room, a_unix_socket_has_only_a_send_buffer)
{
    struct socket_room room;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0), before = size_of(fd, SO_RCVBUF);
    socket_room_init(128 * MIB);
    cr_assert(socket_room_take(SOCKETS_CLIENTS, fd, &room));
    cr_assert_eq(room.bytes, 128 * KIB);
    cr_assert_eq(size_of(fd, SO_RCVBUF), before);
    cr_assert_eq(size_of(fd, SO_SNDBUF), 96 * KIB);
    close(fd);
}

Test(socket_room, a_listener_follows_the_room_of_the_next_connection)
{
    struct socket_room room = {0, 0};
    uint64_t set = 0;
    int listener = socket_with(0), fd = socket_with(12 * KIB);
    int before = size_of(listener, SO_RCVBUF);
    socket_room_init(2 * GIB);
    socket_room_apply_listener(listener, &set);
    cr_assert_eq(size_of(listener, SO_RCVBUF), before, "left to the kernel");
    for (unsigned i = 0; i < 128; i++) {
        cr_assert(socket_room_take(SOCKETS_CLIENTS, fd, &room));
    }
    socket_room_apply_listener(listener, &set);
    cr_assert_eq(size_of(listener, SO_RCVBUF), 128 * KIB);
    cr_assert_gt(take_all(SOCKETS_CLIENTS), 0);
    socket_room_apply_listener(listener, &set);
    cr_assert_eq(size_of(listener, SO_RCVBUF), 12 * KIB);
    for (unsigned i = 0; i < 128; i++) {
        socket_room_give_back(SOCKETS_CLIENTS, &room);
    }
    socket_room_apply_listener(listener, &set);
    cr_assert_eq(size_of(listener, SO_RCVBUF), 512 * KIB);
    close(listener);
    close(fd);
}

Test(socket_room, a_listener_gets_plenty_again_when_a_reload_lifts_the_limit)
{
    struct socket_room room;
    uint64_t set = 0;
    int listener = socket_with(0), fd = socket_with(12 * KIB);
    socket_room_init(4 * MIB);
    cr_assert(socket_room_take(SOCKETS_CLIENTS, fd, &room));
    socket_room_apply_listener(listener, &set);
    cr_assert_eq(size_of(listener, SO_RCVBUF), 12 * KIB);
    socket_room_init(0);
    socket_room_give_back(SOCKETS_CLIENTS, &room); // a connection may end later than its limit
    cr_assert_eq(socket_room_bytes(SOCKETS_CLIENTS), 0);
    socket_room_apply_listener(listener, &set);
    cr_assert_geq(size_of(listener, SO_RCVBUF), 128 * KIB);
    socket_room_init(4 * MIB);
    socket_room_apply_listener(listener, &set);
    cr_assert_eq(size_of(listener, SO_RCVBUF), 12 * KIB);
    close(listener);
    close(fd);
}

// SPDX-License-Identifier: Apache-2.0
// The room that sockets have is an atomic number for each side.
//
// The receive buffer of a client's socket is never made smaller once it is accepted, because the
// kernel would drop what the client then sends into the window that it was promised. So a
// connection that was made before its listener got a smaller size takes as much room as it has.
#include <stdatomic.h>
#include <sys/socket.h>

#include "base/check.h"
#include "loop/loop.h"

#define BUFFER_LEAST (12u << 10) // less makes uploads over the loopback slow
#define LEAST (2u * BUFFER_LEAST)
// A smaller send buffer gets pieces of a quarter: a packet of 64 KiB more would be too much, and
// the peer acknowledges late what comes in one packet. A larger buffer may exceed its size by that.
#define SEND_SMALL (96u << 10)
// A socket with this much room is left to the kernel, which usually stops at 4 MiB to send and 6
// MiB to receive. Few sockets fill both, and much of the share remains for others.
#define PLENTY (2u << 20)
// A listener that this process has not set usually has more.
#define LISTENER_USUAL (64u << 10)

static const struct {
    unsigned of_the_limit; // the share is the memory limit divided by this
    unsigned of_the_share; // the first sockets get the share divided by this
    unsigned to_receive;   // the receive buffer gets a socket's room divided by this
} sides[SOCKETS_SIDES] = {[SOCKETS_CLIENTS] = {4, 256, 4}, [SOCKETS_ORIGINS] = {8, 32, 2}};

static atomic_ulong limit;
static atomic_ulong taken[SOCKETS_SIDES];

void socket_room_init(uint64_t memory_limit_bytes)
{
    atomic_store(&limit, memory_limit_bytes);
}

uint64_t socket_room_bytes(enum socket_side side)
{
    return atomic_load(&taken[side]);
}

static uint64_t share_of(enum socket_side side)
{
    return atomic_load(&limit) / sides[side].of_the_limit;
}

// The sockets in the first half of the share get the most, those in the third quarter get a quarter
// of that, and the others LEAST.
static uint64_t client_part(uint64_t share, uint64_t first, uint64_t used)
{
    return used < share / 2 ? first : used < share / 4 * 3 ? first / 4 : LEAST;
}

// A connection to a distant origin receives at most one buffer in each round trip. So the room
// falls with the square of what is left of the share: a few connections have much, and hundreds
// still have more than LEAST.
static uint64_t origin_part(uint64_t share, uint64_t first, uint64_t used)
{
    uint64_t left_kib = (share - min_u64(used, share)) >> 10, share_kib = share >> 10;
    return left_kib * left_kib / share_kib * (first >> 10) / share_kib << 10;
}

// Returns the room for the next socket where others have `used`.
static uint64_t part(enum socket_side side, uint64_t share, uint64_t used)
{
    uint64_t first = share / sides[side].of_the_share;
    uint64_t bytes = side == SOCKETS_CLIENTS ? client_part(share, min_u64(first, PLENTY), used)
                                             : origin_part(share, first, used);
    return max_u64(min_u64(bytes, PLENTY), LEAST);
}

static uint64_t to_receive(enum socket_side side, uint64_t room)
{
    return max_u64(room / sides[side].to_receive, BUFFER_LEAST);
}

static int get(int fd, int option)
{
    int value = 0;
    socklen_t len = sizeof(value);
    return getsockopt(fd, SOL_SOCKET, option, &value, &len) == 0 ? value : 0;
}

// The kernel doubles the number, for its overhead. If the call fails, the kernel's own size stays.
static void set(int fd, int option, uint64_t bytes)
{
    int half = (int)(bytes / 2);
    (void)setsockopt(fd, SOL_SOCKET, option, &half, sizeof(half));
}

bool socket_room_take(enum socket_side side, int fd, struct socket_room *ret_room)
{
    *ret_room = (struct socket_room){0};
    uint64_t share = share_of(side);
    if (share == 0) {
        return true;
    }
    // The kernel counts the bytes that wait at a Unix socket for their sender.
    bool is_receiver = get(fd, SO_DOMAIN) != AF_UNIX;
    bool is_accepted = is_receiver && side == SOCKETS_CLIENTS;
    uint64_t receive = is_accepted ? (uint64_t)get(fd, SO_RCVBUF) : 0;
    unsigned long used = atomic_load(&taken[side]);
    uint64_t bytes;
    do {
        bytes = max_u64(part(side, share, used), receive + BUFFER_LEAST);
        if (side == SOCKETS_CLIENTS && used + bytes > share) {
            return false;
        }
    } while (!atomic_compare_exchange_weak(&taken[side], &used, used + bytes));
    ret_room->bytes = bytes;
    if (bytes < PLENTY) {
        receive = is_accepted ? receive : to_receive(side, bytes);
        if (is_receiver) {
            set(fd, SO_RCVBUF, receive); // even if it has this size: now it no longer grows
        }
        uint64_t send = bytes - receive;
        set(fd, SO_SNDBUF, send);
        ret_room->piece = send < SEND_SMALL ? (unsigned)send / 4 : 0;
    }
    return true;
}

bool socket_room_is_scarce(enum socket_side side)
{
    uint64_t share = share_of(side);
    return share > 0 && socket_room_bytes(side) >= share / 4 * 3;
}

void socket_room_give_back(enum socket_side side, const struct socket_room *room)
{
    unsigned long before = atomic_fetch_sub(&taken[side], room->bytes);
    check(before >= room->bytes);
}

void socket_room_apply_listener(int fd, uint64_t *set_bytes)
{
    uint64_t share = share_of(SOCKETS_CLIENTS);
    // The listener may have a small buffer from before a reload that lifted the limit.
    uint64_t bytes =
        share > 0 ? part(SOCKETS_CLIENTS, share, socket_room_bytes(SOCKETS_CLIENTS)) : PLENTY;
    if (bytes == *set_bytes) {
        return;
    }
    // The kernel chooses a larger size, so this one is from before an upgrade or a reload.
    bool is_small = bytes == PLENTY && get(fd, SO_RCVBUF) < (int)LISTENER_USUAL;
    if (bytes < PLENTY || *set_bytes > 0 || is_small) {
        set(fd, SO_RCVBUF, to_receive(SOCKETS_CLIENTS, bytes));
        *set_bytes = bytes;
    }
}

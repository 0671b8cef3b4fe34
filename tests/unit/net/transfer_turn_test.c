// SPDX-License-Identifier: Apache-2.0
// Proves: long bodies share the bytes of a turn, however many they are. Short bodies and heads
// never wait for them. A turn that answers hits receives from only a few of many sockets.
#include "loop/loop_fixture.h"
#include "loop/loop_private.h"
#include "net/transfer_private.h"
#include "test.h"

#define MANY 40
#define PIECE 16384u
#define BUFFER 65536u

// A pool whose sockets always hold more bytes than a turn receives.
struct turn_rig {
    struct loop *loop;
    struct worker *worker;
    struct transfer_pool pool;
    struct transfer transfers[MANY];
    bool is_in_epoll[MANY];
    unsigned count;
    uint64_t short_until_us, turn_bytes, bytes[MANY];
};

static void nothing(struct task *task)
{
    (void)task;
}

static void rig_begin(struct turn_rig *rig, unsigned count)
{
    rig->loop = fixture_loop(DISK_ENGINE_THREADS, 1, 0);
    rig->worker = loop_worker(rig->loop, 0);
    rig->count = count;
    rig->pool.worker = rig->worker;
    list_init(&rig->pool.waiting);
    worker_task_init(&rig->pool.drive, nothing);
    for (unsigned i = 0; i < count; i++) {
        struct transfer *t = &rig->transfers[i];
        t->pool = &rig->pool;
        list_node_init(&t->turn_node);
        t->body_announced = 1ull << 40;
        t->body_received = 1;
        rig->is_in_epoll[i] = true;
    }
}

static void rig_end(struct turn_rig *rig)
{
    fixture_loop_end(&rig->loop);
}

// Does what curl does for a transfer that may receive.
static void receive(struct turn_rig *rig, struct transfer *t)
{
    bool goes_on = true;
    while (goes_on) {
        for (unsigned piece = 0; piece < BUFFER / PIECE; piece++) { // of one buffer it takes all
            goes_on &= transfer_turn_received(t, PIECE);
            rig->bytes[t - rig->transfers] += PIECE;
            rig->turn_bytes += PIECE;
        }
    }
    transfer_turn_wait(t);
    rig->is_in_epoll[t - rig->transfers] = false;
}

// One turn: the socket events, always in the same order, then the transfers that have waited.
static void turn(struct worker *w, void *ctx)
{
    struct turn_rig *rig = ctx;
    worker_expect_short(w, rig->short_until_us);
    rig->turn_bytes = 0;
    for (unsigned i = 0; i < rig->count; i++) {
        struct transfer *t = &rig->transfers[i];
        if (!rig->is_in_epoll[i]) {
            continue;
        }
        if (transfer_turn_takes(t)) {
            receive(rig, t);
        } else {
            transfer_turn_wait(t);
            rig->is_in_epoll[i] = false;
        }
    }
    struct transfer *t;
    while ((t = transfer_turn_next(&rig->pool)) != NULL) {
        receive(rig, t);
    }
}

static void run_turns(struct turn_rig *rig, unsigned turns, uint64_t most)
{
    for (unsigned i = 0; i < turns; i++) {
        fixture_run_on(rig->worker, turn, rig);
        cr_assert(rig->turn_bytes > 0, "turn %u of %u", i, rig->count);
        cr_assert(rig->turn_bytes <= most, "%llu in turn %u of %u",
                  (unsigned long long)rig->turn_bytes, i, rig->count);
    }
}

// Proves that a turn's bytes are bounded, whatever the number of transfers, and that the bound is
// lower while short work is expected. All transfers get the same share, and so does a single one.
Test(transfer_turn, all_share_a_turn)
{
    static const unsigned counts[] = {1, 2, 3, 5, 16, MANY};
    for (unsigned is_short = 0; is_short < 2; is_short++) {
        for (unsigned c = 0; c < ARRAY_LEN(counts); c++) {
            struct turn_rig *rig = calloc(1, sizeof(*rig));
            cr_assert(rig != NULL);
            rig_begin(rig, counts[c]);
            rig->short_until_us = is_short != 0 ? UINT64_MAX : 0;
            uint64_t most = is_short != 0 ? 128u << 10 : 1024u << 10;
            run_turns(rig, 10 * counts[c], most + BUFFER);
            uint64_t least_bytes = UINT64_MAX, most_bytes = 0, sum = 0;
            for (unsigned i = 0; i < counts[c]; i++) {
                least_bytes = min_u64(least_bytes, rig->bytes[i]);
                most_bytes = max_u64(most_bytes, rig->bytes[i]);
                sum += rig->bytes[i];
            }
            cr_assert(most_bytes - least_bytes <= 2 * most + BUFFER, "%llu and %llu of %u",
                      (unsigned long long)least_bytes, (unsigned long long)most_bytes, counts[c]);
            cr_assert(sum >= 10 * counts[c] * most, "%u", counts[c]);
            rig_end(rig);
            free(rig);
        }
    }
}

static void short_body(struct worker *w, void *ctx)
{
    (void)w;
    struct turn_rig *rig = ctx;
    struct transfer *t = &rig->transfers[MANY - 1];
    t->body_announced = BUFFER;
    t->body_received = 0;
    receive(rig, &rig->transfers[0]); // the turn is used up
    cr_assert(!transfer_turn_takes(&rig->transfers[1]));
    cr_assert(transfer_turn_takes(t));
    t->body_received = PIECE;
    cr_assert(transfer_turn_takes(t));
    cr_assert(transfer_turn_received(t, PIECE));
    struct transfer *unknown = &rig->transfers[MANY - 2];
    unknown->body_announced = TRANSFER_LENGTH_UNKNOWN;
    unknown->body_received = PIECE;
    cr_assert(transfer_turn_received(unknown, PIECE));
    cr_assert(!transfer_turn_received(unknown, BUFFER));
}

// Proves that a transfer whose body is short, or not yet known to be long, does not wait for those
// with a long body.
Test(transfer_turn, short_bodies_never_wait)
{
    struct turn_rig *rig = calloc(1, sizeof(*rig));
    cr_assert(rig != NULL);
    rig_begin(rig, MANY);
    rig->count = MANY - 2;
    run_turns(rig, 3, (1024u << 10) + BUFFER);
    fixture_run_on(rig->worker, short_body, rig);
    rig_end(rig);
    free(rig);
}

// As transfer_turn.c has them.
#define SHARE_LEAST_US 80u
#define SHARE_PART 10u
#define PASSED_OVER_MAX_US 100000u
#define RECEIVING_US 40u

struct socket_rig {
    struct turn_rig turn;
    bool has_hits;
    uint64_t else_us; // of the turn before
    unsigned taken, over_at;
    uint64_t over_us; // for how long transfer over_at has been passed over; 0: as it is
};

// A turn in which all sockets hold bytes. Nothing here takes real time.
static void socket_turn(struct worker *w, void *ctx)
{
    struct socket_rig *rig = ctx;
    struct transfer_pool *pool = &rig->turn.pool;
    w->quick_until_us = 0;
    if (rig->has_hits) {
        worker_note_quick(w);
    }
    w->last_turn_at_us = pool->turn.at_us;
    w->last_turn_us = pool->turn.spent_us + rig->else_us;
    rig->taken = 0;
    for (unsigned i = 0; i < MANY; i++) {
        struct transfer *t = &rig->turn.transfers[i];
        bool is_over = rig->over_us != 0 && i == rig->over_at;
        t->passed_over_us = is_over ? worker_now_us(w) - rig->over_us : 0;
        if (transfer_turn_takes_socket(t)) {
            cr_assert(t->passed_over_us == 0);
            rig->taken++;
            pool->turn.spent_us += RECEIVING_US;
        } else {
            cr_assert(t->passed_over_us != 0);
            cr_assert(transfer_turn_is_passed_over(t));
        }
    }
}

static struct socket_rig *sockets_begin(void)
{
    struct socket_rig *rig = calloc(1, sizeof(*rig));
    cr_assert(rig != NULL);
    rig_begin(&rig->turn, MANY);
    for (unsigned i = 0; i < MANY; i++) {
        rig->turn.transfers[i].wait = WAIT_FIRST_BYTE;
    }
    return rig;
}

static void sockets_end(struct socket_rig *rig)
{
    rig_end(&rig->turn);
    free(rig);
}

// Proves that a turn with hits receives from few sockets, and from more if other work takes long,
// too. Without hits, no transfer is passed over.
Test(transfer_turn, receiving_has_a_share_in_a_turn_with_hits)
{
    struct socket_rig *rig = sockets_begin();
    fixture_run_on(rig->turn.worker, socket_turn, rig);
    cr_assert(rig->taken == MANY);
    rig->has_hits = true;
    static const uint64_t else_us[] = {0, 100, 800, 4000, 1000000};
    static const unsigned taken[] = {2, 2, 2, 10, MANY};
    for (unsigned i = 0; i < ARRAY_LEN(else_us); i++) {
        rig->else_us = else_us[i];
        for (unsigned again = 0; again < 3; again++) { // earlier receiving is no other work
            fixture_run_on(rig->turn.worker, socket_turn, rig);
            cr_assert(rig->taken == taken[i], "%u after %llu us", rig->taken,
                      (unsigned long long)else_us[i]);
        }
    }
    rig->has_hits = false;
    fixture_run_on(rig->turn.worker, socket_turn, rig);
    cr_assert(rig->taken == MANY);
    sockets_end(rig);
}

// Proves that no transfer is passed over for too long, and none while it connects.
Test(transfer_turn, no_transfer_is_passed_over_for_long)
{
    struct socket_rig *rig = sockets_begin();
    rig->has_hits = true;
    rig->over_at = MANY - 1;
    rig->over_us = PASSED_OVER_MAX_US;
    fixture_run_on(rig->turn.worker, socket_turn, rig);
    cr_assert(rig->turn.transfers[MANY - 1].passed_over_us == 0);
    rig->over_us = 0;
    rig->turn.transfers[MANY - 1].wait = WAIT_CONNECT;
    fixture_run_on(rig->turn.worker, socket_turn, rig);
    cr_assert(rig->turn.transfers[MANY - 1].passed_over_us == 0);
    sockets_end(rig);
}

static void mark_ages(struct worker *w, void *ctx)
{
    struct transfer *t = ctx;
    t->passed_over_us = worker_now_us(w) - PASSED_OVER_MAX_US;
    cr_assert(transfer_turn_is_passed_over(t));
    t->passed_over_us = worker_now_us(w) - 2 * PASSED_OVER_MAX_US;
    cr_assert(!transfer_turn_is_passed_over(t));
}

static void hit(struct worker *w, void *ctx)
{
    (void)ctx;
    cr_assert(!worker_expects_quick(w));
    worker_note_quick(w);
    cr_assert(worker_expects_quick(w));
}

static void look(struct worker *w, void *ctx)
{
    *(bool *)ctx = worker_expects_quick(w);
}

// Proves that hits of long ago are forgotten, and so is that a socket was passed over: such a mark,
// left by something else, does not keep a timeout away for ever.
Test(transfer_turn, hits_and_marks_grow_old)
{
    struct socket_rig *rig = sockets_begin();
    fixture_run_on(rig->turn.worker, mark_ages, &rig->turn.transfers[0]);
    fixture_run_on(rig->turn.worker, hit, NULL);
    for (bool is_expected = true; is_expected;) { // ends as soon as they are
        fixture_run_on(rig->turn.worker, look, &is_expected);
    }
    sockets_end(rig);
}

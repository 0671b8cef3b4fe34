// SPDX-License-Identifier: Apache-2.0
// Proves: under random schedules, only permitted bytes are on the wire (schedule_wire.c), each
// callback comes when it may, and nothing is left over. The schedules have pieces, pauses, early
// and late replies, errors, cuts, timeouts, half-closes, closes and resets, with pipelined
// requests. seeds.h says which schedules run. FOREBAY_SEED runs one and prints all its events.
//
// Batches run in child processes, so that a crash names its seed as well.
#include "schedule.h"

#include "seeds.h"
#include "test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"

#ifdef FOREBAY_ASAN
#include <sanitizer/lsan_interface.h>
#endif

#define SEEDS 3000
#define BATCH 1000
#define STEPS_MAX 400
#define ROUNDS_MAX 20000 // of the end: far more than any schedule needs
#define STILL_ROUNDS 20  // the longest body is read in fewer passes, while nobody else moves

enum temper {
    CALM,  // every client sends all, reads all and waits; the handler cuts nothing
    CROSS, // the handler cuts, sources and sinks fail
    WILD   // clients leave, stall and time out as well
};

static uint32_t pick_len(uint32_t large)
{
    switch (pick(16)) {
    case 0:
        return 0;
    case 1:
        return 1 + pick(large);
    case 2:
    case 3:
        return 1 + pick(20000);
    default:
        return 1 + pick(600);
    }
}

static void plan_request(struct turn *t, enum temper temper)
{
    t->is_head = one_in(8);
    t->framing = one_in(2) ? NO_BODY : one_in(3) ? BY_CHUNKS : BY_LENGTH;
    t->body_len = t->framing == NO_BODY ? 0 : pick_len(REQUEST_BODY_MAX);
    t->is_http10 = t->framing != BY_CHUNKS && one_in(12);
    t->asks_keep_alive = one_in(t->is_http10 ? 2 : 12);
    t->asks_close = !t->asks_keep_alive && one_in(12);
    t->expects = !t->is_http10 && one_in(6);
    if (temper != CALM && one_in(20)) {
        t->flaw = BAD_HEAD;
        t->is_head = false;
    } else if (temper != CALM && t->framing == BY_CHUNKS && one_in(6)) {
        t->flaw = BAD_CHUNK;
    }
}

static void plan_answer(struct turn *t, enum temper temper)
{
    static const unsigned statuses[] = {200, 200, 206, 403, 404, 502, 503};
    t->body_when = one_in(4) ? AT_NO_TIME : one_in(2) ? AT_TICK : AT_ONCE;
    t->reply_when = t->body_when == AT_NO_TIME ? AT_ONCE + pick(2) : AT_ONCE + pick(4);
    t->reply_at = t->body_len == 0 ? 0 : pick(t->body_len);
    t->sink_fails_at = one_in(8) && t->body_len > 0 ? pick(t->body_len) : NEVER;
    t->pause_one_in = one_in(3) ? 1 + pick(4) : 0;
    t->wait_one_in = one_in(2) ? 2 + pick(6) : 0;
    t->recall_one_in = one_in(2) ? 3 + pick(6) : 0;
    t->status = statuses[pick(ARRAY_LEN(statuses))];
    t->kind = (enum reply_kind)pick(4);
    t->reply_len = pick_len(t->kind == BY_BODY ? 100000 : 700000);
    t->slice_max = 1 + pick(one_in(2) ? 2000 : 200000);
    t->slice_max = t->slice_max > t->reply_len / 50 ? t->slice_max : t->reply_len / 50 + 1;
    t->has_length = t->kind != BY_SOURCE || one_in(2);
    t->closes = one_in(12);
    t->source_cut_at = NEVER;
    if (t->kind == BY_NOTHING) {
        t->status = 204;
        t->reply_len = 0;
    }
    if (temper != CALM && one_in(10)) {
        t->cut_after = 1 + pick(6);
    }
    if (temper != CALM && one_in(10) && t->reply_len > 0) {
        t->source_cut_at = pick(t->reply_len);
    }
    if (temper == WILD && one_in(20)) {
        t->reply_when = AT_NO_TIME;
    }
}

static void plan_talk(struct talk *talk, unsigned number, enum temper temper)
{
    *talk = (struct talk){.number = number, .turn_count = 1 + pick(TURNS_MAX)};
    buf_init(&talk->out, 8u << 20);
    buf_init(&talk->in, 8u << 20);
    for (unsigned i = 0; i < talk->turn_count; i++) {
        struct turn *t = &talk->turns[i];
        t->talk = talk;
        t->index = i;
        plan_request(t, temper);
        plan_answer(t, temper);
        schedule_note(
            "talk %u turn %u: framing %d of %u, flaw %d, expects %d, close %d, 1.0 %d; body "
            "at %d, reply at %d, kind %d of %u, cut after %u, at %u",
            number, i, (int)t->framing, t->body_len, (int)t->flaw, t->expects, t->asks_close,
            t->is_http10, (int)t->body_when, (int)t->reply_when, (int)t->kind, t->reply_len,
            t->cut_after, t->source_cut_at);
    }
    talk_compose(talk);
    must(talk_connect(talk, one_in(16)), "no connection");
}

// --- clients -------------------------------------------------------------------------------------

static bool talk_send(struct talk *talk, size_t max)
{
    size_t len = talk->out.len - talk->sent;
    len = len < max ? len : max;
    if (talk->fd < 0 || talk->is_shut || talk->is_reset || len == 0) {
        return false;
    }
    ssize_t n = send(talk->fd, talk->out.ptr + talk->sent, len, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
        talk->is_reset = errno != EAGAIN;
        return false;
    }
    schedule_note("talk %u: sent %zd", talk->number, n);
    talk->sent += (size_t)n;
    return true;
}

static bool talk_read(struct talk *talk, size_t max)
{
    static char bytes[1u << 18];
    if (talk->fd < 0 || talk->at_end) {
        return false;
    }
    ssize_t n = recv(talk->fd, bytes, max < sizeof(bytes) ? max : sizeof(bytes), MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN) {
        return false;
    }
    schedule_note("talk %u: read %zd", talk->number, n);
    if (n <= 0) {
        talk->at_end = true;
        return true;
    }
    buf_append(&talk->in, bytes, (size_t)n);
    return true;
}

static void talk_shut(struct talk *talk)
{
    if (talk->fd >= 0 && !talk->is_shut) {
        schedule_note("talk %u: shuts its side, %zu of %zu sent", talk->number, talk->sent,
                      talk->out.len);
        talk->is_shut = true;
        (void)shutdown(talk->fd, SHUT_WR); // the server may have gone already
    }
}

static void talk_leave(struct talk *talk, bool reset)
{
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    if (talk->fd < 0) {
        return;
    }
    schedule_note("talk %u: leaves%s", talk->number, reset ? " with a reset" : "");
    if (reset) {
        (void)setsockopt(talk->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now)); // a close will do
    }
    close(talk->fd);
    talk->fd = -1;
}

// --- a schedule ----------------------------------------------------------------------------------

static size_t pick_piece(void)
{
    return one_in(4) ? 1 + pick(3) : one_in(2) ? 1 + pick(1000) : 1 + pick(200000);
}

static void disturb(struct talk *talk, bool *is_late)
{
    switch (pick(12)) {
    case 0:
        talk_shut(talk);
        break;
    case 1:
        talk->client_left |= talk->fd >= 0;
        talk_leave(talk, one_in(2));
        break;
    case 2:
        schedule_note("time passes");
        schedule_advance((uint64_t)(1 + pick(120)) * 1000000);
        *is_late = true;
        break;
    default:
        break;
    }
}

static void step(struct talk *talk, enum temper temper, bool *is_late)
{
    switch (pick(12)) {
    case 0:
    case 1:
        (void)talk_send(talk, pick_piece());
        break;
    case 2:
    case 3:
        (void)talk_read(talk, pick_piece());
        break;
    case 4:
    case 5:
        for (unsigned i = 0; i < talk->turn_count; i++) {
            (void)turn_tick(&talk->turns[i]);
        }
        break;
    case 6:
        if (temper == WILD) {
            disturb(talk, is_late);
        }
        break;
    default:
        schedule_turn();
        break;
    }
}

// Runs until nothing moves any more. A client that has sent everything may shut its side.
static void run_out(struct talk *talks, unsigned count, const bool *shuts)
{
    unsigned still = 0;
    for (unsigned round = 0; still < STILL_ROUNDS; round++) {
        bool moved = false;
        must(round < ROUNDS_MAX, "it goes on for ever");
        for (unsigned i = 0; i < count; i++) {
            struct talk *talk = &talks[i];
            moved |= talk_send(talk, SIZE_MAX);
            if (shuts[i] && talk->fd >= 0 && !talk->is_shut && talk->sent == talk->out.len) {
                talk_shut(talk);
                moved = true;
            }
            for (unsigned k = 0; k < talk->turn_count; k++) {
                moved |= turn_tick(&talk->turns[k]);
            }
            moved |= talk_read(talk, SIZE_MAX);
        }
        schedule_turn();
        still = moved ? 0 : still + 1;
    }
}

// A client that has gone is dropped in time, even if nothing is ever sent to it. The exception is
// an end of stream behind bytes that are not read yet: then the handler has to end the exchange.
static void let_go(struct talk *talks, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        talk_leave(&talks[i], false);
    }
    for (unsigned i = 0; i < 12 && schedule_connections() > 0; i++) {
        schedule_turn();
        if (i > 4) {
            schedule_advance(101000000);
        }
    }
    for (unsigned i = 0; i < count && schedule_connections() > 0; i++) {
        for (unsigned k = 0; k < talks[i].begun; k++) {
            struct turn *t = &talks[i].turns[k];
            bool is_behind = k + 1 < talks[i].turn_count || t->is_paused ||
                             (!t->body_started && t->body_len > 20000);
            must(t->is_done || is_behind, "talk %u turn %u is held for nobody", talks[i].number, k);
            t->cut_after = 1;
            (void)turn_tick(t);
        }
    }
    // Its close reads what came behind, 64 KiB in a turn.
    for (unsigned i = 0; i < 12 && schedule_connections() > 0; i++) {
        schedule_turn();
    }
}

static void run_seed(uint64_t seed, bool trace)
{
    static struct talk talks[TALKS_MAX];
    bool is_late = false, shuts[TALKS_MAX];
    chance_seed(seed);
    enum temper temper = (enum temper)pick(3);
    unsigned count = 1 + (one_in(2) ? 0 : pick(TALKS_MAX));
    schedule_begin(talks, count, trace);
    for (unsigned i = 0; i < count; i++) {
        plan_talk(&talks[i], (unsigned)(seed % 100000) * TALKS_MAX + i, temper);
        shuts[i] = one_in(3);
    }
    unsigned steps = 20 + pick(STEPS_MAX);
    for (unsigned i = 0; i < steps; i++) {
        step(&talks[pick(count)], temper, &is_late);
    }
    run_out(talks, count, shuts);
    for (unsigned i = 0; i < count; i++) {
        talk_judge(&talks[i], is_late);
    }
    let_go(talks, count);
    schedule_end();
    for (unsigned i = 0; i < count; i++) {
        buf_done(&talks[i].out);
        buf_done(&talks[i].in);
    }
}

// --- batches -------------------------------------------------------------------------------------

static volatile uint64_t *present; // seed, shared with the children

// In a child. False: it ended badly.
static bool run_batch(uint64_t first, uint64_t last, bool trace)
{
    pid_t child = fork();
    cr_assert(child >= 0);
    if (child == 0) {
        log_init(LOG_LEVEL_ERROR, false);
        schedule_open();
        for (uint64_t seed = first; seed <= last; seed++) {
            *present = seed;
            run_seed(seed, trace);
        }
        schedule_close();
#ifdef FOREBAY_ASAN
        __lsan_do_leak_check();
#endif
        _exit(0);
    }
    int status;
    while (waitpid(child, &status, 0) < 0) {
        cr_assert(errno == EINTR);
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Seeds far out that found a fault: a test rig that read on for ever; timeouts of a half-closed
// client and of a slow one; cuts before a reply and inside it that lost unread bytes of earlier
// replies; a client that sends too late.
static const uint64_t FOUND[] = {167553, 208231, 332101, 209135, 515436, 585933};

Test(front_schedules, only_permitted_bytes_are_on_the_wire, .timeout = 0)
{
    struct seeds seeds = seeds_wanted(SEEDS);
    present =
        mmap(NULL, sizeof(*present), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(present != MAP_FAILED);
    if (seeds.is_one) {
        cr_assert(run_batch(seeds.first, seeds.last, true));
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(FOUND); i++) {
        cr_assert(run_batch(FOUND[i], FOUND[i], false), "seed %llu", (unsigned long long)FOUND[i]);
    }
    for (uint64_t first = seeds.first; first <= seeds.last; first += BATCH) {
        if (!run_batch(first, min_u64(first + BATCH - 1, seeds.last), false)) {
            uint64_t seed = *present;
            (void)run_batch(seed, seed, true);
            cr_assert(false, "seed %llu", (unsigned long long)seed);
        }
    }
}

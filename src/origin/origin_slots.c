// SPDX-License-Identifier: Apache-2.0
// Slots of an origin, which limit how many calls of a worker run at once. Runs on the worker.
//
// Each worker has its share of the origin's slots. A call without a slot waits in line, for a
// bounded time. Relays leave some slots to fetches, so that slow clients of pass-through requests
// do not delay misses. Apart from that, fetches and relays take turns, and so do the clients of
// each kind (struct origin_lines).
//
// Calls for read-ahead come last, and leave a quarter of the slots to the others. When a client
// begins to wait for the bytes of such a call, the call becomes an ordinary fetch.
//
// The number of slots follows demand, up to `connections`. It begins small, but with small objects
// and a distant origin more slots are needed at once. So while calls wait, each answer adds one
// slot, which doubles the number in one round trip. The number does not grow while first bytes take
// longer than before.
//
// The first SlowDown or timeout halves the number and ends this phase. From then on, a slot is
// added only after as many answers as there are slots, and each refusal takes half a slot. So the
// number is halved again if all calls of a round trip are refused. If the origin refuses only one
// hot key, other keys lose little. When the origin has refused nothing for ten seconds, each answer
// adds a slot again, up to the first number, however late first bytes come: so few calls do not
// make an origin late, and a slow origin needs more slots for the same rate.
//
// With origin.max_rate, each received byte takes time. All workers share two clocks, which tell
// when bytes are paid for. One counts the bytes for clients, the other counts all bytes. A call for
// a client waits for the first clock only, so clients may use the whole rate. Read-ahead and warm
// jobs wait for the second clock, so they take what clients leave, and pay back what they took
// before.
//
// A call that has received bytes pauses until they are paid for. Until all bytes of its clock are,
// no fetch starts. The exception: each worker starts one fetch of a client when those bytes are
// paid for that were received before the fetch waited. So clients get their turn however much is
// received. Relays start at once, because most of them receive little.
//
// Calls that the rate delays look again several times a second. A debt may last for hours at a
// small rate, but a reload may change the rate, and read-ahead may become a call for a client.
//
// A refused call keeps its slot while it backs off. If there are fewer slots by then, the call
// returns its slot and is first in line. So an origin that refuses gets no more calls than there
// are slots, however many calls wait.
#include "base/clock.h"
#include "origin/origin_private.h"
#include "stats/stats.h"

// Read-ahead leaves 1/4 of the slots, at least one, to other calls. If there is only one slot, all
// calls share it.
#define SPARED_SHARE 4u
// First bytes count as late if they take on average more than twice the best time, plus this time.
#define LATE_SLACK_US 20000u
#define BEST_KEPT_US 10000000u
// After this time without a refusal or timeout, slots return quickly to their first number.
#define CALM_US 10000000u

// --- Lines of waiting calls ----------------------------------------------------------------------
// A line is the queue of one client's waiting calls. The lines take turns, so that a client with
// many calls does not delay the others. A client has a line while one of its calls waits. If all
// ORIGIN_LINES are taken, clients share lines.

static void lines_init(struct origin_lines *lines)
{
    *lines = (struct origin_lines){.count = 0};
    for (unsigned i = 0; i < ORIGIN_LINES; i++) {
        list_init(&lines->calls[i]);
    }
}

static unsigned line_of(const struct origin_lines *lines, uint64_t client)
{
    unsigned unused = ORIGIN_LINES;
    for (unsigned i = 0; i < ORIGIN_LINES; i++) {
        bool is_taken = (lines->taken >> i & 1) != 0;
        if (is_taken && lines->client[i] == client) {
            return i;
        }
        unused = !is_taken && unused == ORIGIN_LINES ? i : unused;
    }
    return unused < ORIGIN_LINES ? unused : (unsigned)(client % ORIGIN_LINES);
}

static void lines_push(struct origin_lines *lines, struct origin_call *call, bool is_first)
{
    unsigned i = line_of(lines, call->client);
    if ((lines->taken >> i & 1) == 0) {
        lines->taken |= (uint64_t)1 << i;
        lines->client[i] = call->client;
    }
    call->line = i;
    if (is_first) {
        list_push_front(&lines->calls[i], &call->waiting);
    } else {
        list_push_back(&lines->calls[i], &call->waiting);
    }
    lines->count++;
}

struct origin_call *origin_lines_first(struct origin_lines *lines)
{
    if (lines->count == 0) {
        return NULL;
    }
    uint64_t later = lines->taken >> lines->turn << lines->turn;
    unsigned i = (unsigned)__builtin_ctzll(later != 0 ? later : lines->taken);
    return container_of(list_first(&lines->calls[i]), struct origin_call, waiting);
}

static void lines_remove(struct origin_lines *lines, struct origin_call *call)
{
    check(lines->count > 0 && list_node_linked(&call->waiting));
    list_remove(&call->waiting);
    lines->count--;
    if (list_empty(&lines->calls[call->line])) {
        lines->taken &= ~((uint64_t)1 << call->line);
    }
}

void origin_lines_next(struct origin_lines *lines, const struct origin_call *served)
{
    lines->turn = (served->line + 1) % ORIGIN_LINES;
}

// --- The rate ------------------------------------------------------------------------------------

// Debts below this time delay nothing, because timers are coarse.
#define RATE_SLACK_US 5000u
// Longest time until a delayed call looks again whether it must still wait.
#define RATE_LOOK_US 250000u

static bool is_wanted(const struct origin_worker *ow)
{
    return ow->waiters[ORIGIN_CALL_FETCH].count + ow->waiters[ORIGIN_CALL_RELAY].count > 0;
}

// Returns when the bytes received so far are paid for, by the clock of this kind of calls.
static uint64_t rate_paid_us(const struct origin *origin, enum origin_call_kind kind)
{
    return atomic_load(kind == ORIGIN_CALL_AHEAD ? &origin->rate_paid_us
                                                 : &origin->rate_clients_paid_us);
}

// Returns how long a call must wait for bytes that are paid for at `paid_us`.
static uint64_t rate_delay_us(const struct origin *origin, uint64_t paid_us)
{
    uint64_t now_us = clock_monotonic_us();
    bool is_limited = atomic_load(&origin->live.max_rate_bytes_per_s) > 0;
    return is_limited && paid_us > now_us + RATE_SLACK_US ? paid_us - now_us : 0;
}

// Returns how long the bytes received so far delay a call of this kind.
static uint64_t rate_debt_us(const struct origin *origin, enum origin_call_kind kind)
{
    return rate_delay_us(origin, rate_paid_us(origin, kind));
}

static uint64_t rate_look_ms(uint64_t delay_us)
{
    return delay_us > 0 ? min_u64(delay_us, RATE_LOOK_US) / 1000 + 1 : 0;
}

// Returns true if a call of this kind may start now.
static bool rate_allows(const struct origin_worker *ow, enum origin_call_kind kind)
{
    bool has_turn = kind == ORIGIN_CALL_FETCH && ow->rate_turn_us > 0 &&
                    clock_monotonic_us() >= ow->rate_turn_us;
    return kind == ORIGIN_CALL_RELAY || has_turn || rate_debt_us(ow->origin, kind) == 0;
}

static void on_rate_timer(struct timer *timer)
{
    struct origin_worker *ow = container_of(timer, struct origin_worker, rate_timer);
    worker_defer(ow->w, &ow->wake);
}

// If the rate delays calls that wait, sets the time of the next turn.
static void rate_wait(struct origin_worker *ow)
{
    if (ow->waiting_count == 0) {
        return;
    }
    bool is_client = is_wanted(ow);
    uint64_t now_us = clock_monotonic_us();
    uint64_t debt_us = rate_debt_us(ow->origin, is_client ? ORIGIN_CALL_FETCH : ORIGIN_CALL_AHEAD);
    if (debt_us == 0) {
        return; // only the slots delay them
    }
    if (ow->rate_turn_us == 0) {
        stats_add(COUNTER_origin_rate_waits, 1);
    }
    // A client keeps a turn that has come, and takes an earlier one than read-ahead.
    if (ow->rate_turn_us == 0 || (ow->rate_turn_us <= now_us && !is_client) ||
        ow->rate_turn_us > now_us + debt_us) {
        ow->rate_turn_us = now_us + debt_us;
    }
    if (ow->rate_turn_us > now_us) {
        timer_start(&ow->rate_timer, rate_look_ms(ow->rate_turn_us - now_us));
    }
}

// Adds the cost of bytes to a clock. Returns when they are paid for.
static uint64_t rate_pay(_Atomic uint64_t *clock_us, uint64_t now_us, uint64_t cost_us)
{
    uint64_t paid_us = atomic_load(clock_us), next_us;
    do {
        next_us = max_u64(paid_us, now_us) + cost_us;
    } while (!atomic_compare_exchange_weak(clock_us, &paid_us, next_us));
    return next_us;
}

uint64_t origin_rate_received(struct origin_call *call, uint64_t bytes)
{
    struct origin *origin = call->ow->origin;
    uint64_t rate = atomic_load_explicit(&origin->live.max_rate_bytes_per_s, memory_order_relaxed);
    if (rate == 0) {
        return 0;
    }
    uint64_t now_us = clock_monotonic_us(), cost_us = bytes * 1000000 / rate;
    uint64_t paid_us = rate_pay(&origin->rate_paid_us, now_us, cost_us);
    if (call->kind != ORIGIN_CALL_AHEAD) {
        paid_us = rate_pay(&origin->rate_clients_paid_us, now_us, cost_us);
    }
    call->rate_paid_us = paid_us;
    uint64_t look_ms = rate_look_ms(rate_delay_us(origin, paid_us));
    stats_add(COUNTER_origin_rate_waits, look_ms > 0);
    return look_ms;
}

uint64_t origin_rate_wait_ms(const struct origin_call *call)
{
    const struct origin *origin = call->ow->origin;
    // Only a change of the rate, or of the call's kind, puts its clock before the call's own time.
    uint64_t paid_us = rate_paid_us(origin, call->kind);
    bool is_ahead = call->kind == ORIGIN_CALL_AHEAD;
    return rate_look_ms(
        rate_delay_us(origin, is_ahead ? paid_us : min_u64(paid_us, call->rate_paid_us)));
}

// --- Slots ---------------------------------------------------------------------------------------

static void on_slot_timer(struct timer *timer)
{
    struct origin_call *call = container_of(timer, struct origin_call, slot_timer);
    check(list_node_linked(&call->waiting));
    if (call->kind == ORIGIN_CALL_AHEAD && rate_debt_us(call->ow->origin, call->kind) > 0) {
        timer_start(timer, ORIGIN_SLOT_WAIT_MS); // it may take long, and nobody waits for it
        return;
    }
    origin_slot_stop_waiting(call);
    stats_add(COUNTER_origin_waits_timed_out, 1);
    call->ops->refused(call, ERR_ORIGIN_FULL);
}

void origin_slot_init(struct origin_call *call)
{
    call->has_slot = false;
    list_node_init(&call->waiting);
    timer_init(call->ow->w, &call->slot_timer, on_slot_timer);
}

unsigned origin_slots_spared(const struct origin_worker *ow)
{
    return ow->limit > 1 ? (unsigned)max_u64(ow->limit / SPARED_SHARE, 1) : 0;
}

static bool has_slot_for(const struct origin_worker *ow, enum origin_call_kind kind)
{
    unsigned kept = ow->limit > 1 ? max_u64(ow->limit / ORIGIN_KEPT_SHARE, 1) : 0;
    switch (kind) {
    case ORIGIN_CALL_AHEAD:
        return !is_wanted(ow) && ow->running_count + origin_slots_spared(ow) < ow->limit;
    case ORIGIN_CALL_RELAY:
        return ow->running_count < ow->limit && ow->relay_count < ow->limit - kept;
    default:
        return ow->running_count < ow->limit;
    }
}

static bool may_run(const struct origin_worker *ow, enum origin_call_kind kind)
{
    return has_slot_for(ow, kind) && rate_allows(ow, kind);
}

bool origin_slot_is_free(const struct origin_worker *ow)
{
    return !is_wanted(ow) && may_run(ow, ORIGIN_CALL_FETCH);
}

static void slot_take(struct origin_call *call)
{
    call->has_slot = true;
    if (call->kind == ORIGIN_CALL_FETCH) {
        call->ow->rate_turn_us = 0; // the next fetch waits for a turn of its own
    }
    call->ow->running_count++;
    stats_add(COUNTER_origin_calls_active, 1);
    call->ow->relay_count += call->kind == ORIGIN_CALL_RELAY;
}

static void slot_give(struct origin_call *call)
{
    check(call->ow->running_count > 0);
    call->has_slot = false;
    call->ow->running_count--;
    stats_sub(COUNTER_origin_calls_active, 1);
    call->ow->relay_count -= call->kind == ORIGIN_CALL_RELAY;
}

// Returns the waiting call that gets the next slot. Returns NULL if no waiting call may run now.
static struct origin_call *next_waiter(struct origin_worker *ow)
{
    for (unsigned i = 0; i < ORIGIN_CALL_AHEAD; i++) {
        enum origin_call_kind kind = (ow->turn + i) % ORIGIN_CALL_AHEAD;
        struct origin_call *call = origin_lines_first(&ow->waiters[kind]);
        if (call != NULL && may_run(ow, kind)) {
            return call;
        }
    }
    return may_run(ow, ORIGIN_CALL_AHEAD) ? origin_lines_first(&ow->waiters[ORIGIN_CALL_AHEAD])
                                          : NULL;
}

static void slots_wake(struct origin_worker *ow)
{
    if (next_waiter(ow) != NULL) {
        worker_defer(ow->w, &ow->wake);
    } else {
        rate_wait(ow);
    }
}

void origin_slot_stop_waiting(struct origin_call *call)
{
    timer_stop(&call->slot_timer);
    if (list_node_linked(&call->waiting)) {
        lines_remove(&call->ow->waiters[call->kind], call);
        call->ow->waiting_count--;
        stats_sub(COUNTER_origin_calls_waiting, 1);
    }
}

void origin_slot_leave(struct origin_call *call)
{
    struct origin_worker *ow = call->ow;
    origin_slot_stop_waiting(call);
    if (call->has_slot) {
        slot_give(call);
        slots_wake(ow);
    }
}

static void wait_begin(struct origin_call *call, bool is_first)
{
    lines_push(&call->ow->waiters[call->kind], call, is_first);
    call->ow->waiting_count++;
    stats_add(COUNTER_origin_calls_waiting, 1);
    timer_start(&call->slot_timer, ORIGIN_SLOT_WAIT_MS);
    rate_wait(call->ow);
}

enum err origin_slot_enter(struct origin_call *call, bool *ret_now)
{
    struct origin_worker *ow = call->ow;
    check(!call->has_slot && !list_node_linked(&call->waiting));
    if (may_run(ow, call->kind) && ow->waiters[call->kind].count == 0) {
        slot_take(call);
        *ret_now = true;
        return ERR_OK;
    }
    if (ow->waiting_count >= ORIGIN_WAITERS_MAX) {
        stats_add(COUNTER_origin_waiters_refused, 1);
        return ERR_ORIGIN_FULL;
    }
    wait_begin(call, false);
    *ret_now = false;
    return ERR_OK;
}

bool origin_slot_yield(struct origin_call *call)
{
    struct origin_worker *ow = call->ow;
    check(call->has_slot);
    if (ow->running_count <= ow->limit) {
        return false;
    }
    slot_give(call);
    wait_begin(call, true);
    return true;
}

void origin_slot_hasten(struct origin_call *call, uint64_t client)
{
    if (call->kind != ORIGIN_CALL_AHEAD) {
        return;
    }
    bool waits = list_node_linked(&call->waiting);
    origin_slot_stop_waiting(call);
    call->kind = ORIGIN_CALL_FETCH;
    call->client = client;
    if (waits) {
        wait_begin(call, false);
        slots_wake(call->ow);
    }
}

static void on_wake(struct task *task)
{
    struct origin_worker *ow = container_of(task, struct origin_worker, wake);
    struct origin_call *call;
    while ((call = next_waiter(ow)) != NULL) {
        ow->turn = (call->kind + 1) % ORIGIN_CALL_AHEAD;
        origin_lines_next(&ow->waiters[call->kind], call);
        origin_slot_stop_waiting(call);
        slot_take(call);
        call->ops->ready(call);
    }
    rate_wait(ow);
}

void origin_slots_init(struct origin_worker *ow, unsigned most, unsigned first)
{
    ow->slots_max = most;
    ow->slots_first = first < most ? first : most;
    ow->limit = ow->slots_first;
    for (unsigned kind = 0; kind < ORIGIN_CALL_KINDS; kind++) {
        lines_init(&ow->waiters[kind]);
    }
    worker_task_init(&ow->wake, on_wake);
    timer_init(ow->w, &ow->rate_timer, on_rate_timer);
}

static void limit_lower(struct origin_worker *ow, unsigned limit)
{
    if (limit > 0 && limit < ow->limit) {
        ow->lowered_from = ow->lowered_from > ow->limit ? ow->lowered_from : ow->limit;
        ow->limit = limit;
    }
}

static void limit_raise(struct origin_worker *ow)
{
    ow->limit++;
    if (ow->limit >= ow->lowered_from) {
        ow->lowered_from = 0;
    }
}

void origin_slot_slow_down(struct origin_worker *ow)
{
    ow->refused_at_us = clock_monotonic_us();
    if (!ow->is_settled) {
        ow->is_settled = true;
        ow->successes = 0;
        limit_lower(ow, ow->limit / 2);
        return;
    }
    ow->refusals++;
    if (ow->refusals == 2) {
        ow->refusals = 0;
        limit_lower(ow, ow->limit - 1);
    }
}

// Updates the average and the best time to the first byte. The best time covers only the last ten
// to twenty seconds, because the round trip to an origin may become longer.
static void learn_first_byte(struct origin_worker *ow, uint64_t first_byte_us)
{
    uint64_t now_us = worker_now_us(ow->w);
    if (now_us - ow->best_since_us >= BEST_KEPT_US) {
        ow->former_best_us = ow->best_us;
        ow->best_us = first_byte_us;
        ow->best_since_us = now_us;
    }
    ow->best_us = ow->best_us == 0 ? first_byte_us : min_u64(ow->best_us, first_byte_us);
    ow->recent_us = ow->recent_us == 0 ? first_byte_us : (7 * ow->recent_us + first_byte_us) / 8;
}

static bool is_late(const struct origin_worker *ow)
{
    uint64_t best_us =
        ow->former_best_us == 0 ? ow->best_us : min_u64(ow->best_us, ow->former_best_us);
    return ow->recent_us > 2 * best_us + LATE_SLACK_US;
}

void origin_slot_success(struct origin_worker *ow, uint64_t first_byte_us)
{
    atomic_store_explicit(&ow->origin->answered_at_us, clock_monotonic_us(), memory_order_relaxed);
    if (first_byte_us > 0) {
        learn_first_byte(ow, first_byte_us);
    }
    bool is_low = ow->limit < ow->slots_first;
    bool recovers = is_low && clock_monotonic_us() - ow->refused_at_us >= CALM_US;
    if (ow->limit >= ow->slots_max || !(is_wanted(ow) || is_low) || (is_late(ow) && !recovers)) {
        return;
    }
    ow->successes++;
    if (!ow->is_settled || recovers || ow->successes >= ow->limit) {
        ow->successes = 0;
        limit_raise(ow);
        slots_wake(ow);
    }
}

struct origin_calls origin_calls(const struct origin *origin)
{
    struct origin_calls calls = {0};
    for (unsigned i = 0; i < origin->worker_count; i++) {
        const struct origin_worker *ow = &origin->workers[i];
        calls.limit += ow->limit;
        calls.most += ow->slots_max;
        calls.is_lowered |= ow->lowered_from > 0;
    }
    return calls;
}

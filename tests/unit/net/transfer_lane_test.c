// SPDX-License-Identifier: Apache-2.0
// Proves: transfers spread over lanes of few connections and over all addresses of a name, past
// those that fail. Unused connections are closed. A name server that does not answer delays only
// requests for its names.
#include <arpa/inet.h>
#include <netdb.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "loop/loop_fixture.h"
#include "net/tiny_origin.h"
#include "net/transfer_private.h"
#include "test.h"
#include "waiting.h"

enum { CALLS_MAX = 100 };

struct lane_rig {
    struct tiny_origin *origin, *beside;
    bool has_name; // "both", whose addresses are those of the two, and one where nobody listens
    char names[64];
    struct loop *loop;
    struct worker *worker;
    struct transfer_pool *pool;
    unsigned most, to_start, ended;
    unsigned most_kept; // the most unused handles at any end
    const struct list_node *watched;
    struct signal all_over;
};

static enum err on_line(void *ctx, struct span line)
{
    (void)ctx;
    (void)line;
    return ERR_OK;
}

static void on_end(void *ctx, enum err err, const char *detail)
{
    struct lane_rig *rig = ctx;
    (void)detail;
    cr_assert_eq(err, ERR_OK);
    unsigned kept = rig->pool->idle_count, left = rig->pool->transfer_count;
    cr_assert_leq(kept, left > IDLE_HANDLES_LEAST ? left : IDLE_HANDLES_LEAST);
    rig->most_kept = rig->most_kept > kept ? rig->most_kept : kept;
    if (++rig->ended == rig->to_start) {
        signal_raise(&rig->all_over);
    }
}

static void make_pool(struct worker *w, void *ctx)
{
    struct lane_rig *rig = ctx;
    struct transfer_pool_options options = {.max_connections = rig->most,
                                            .connect_timeout_ms = 10000,
                                            .first_byte_timeout_ms = 60000,
                                            .idle_timeout_ms = 60000,
                                            .keepalive_ms = 4000,
                                            .names = rig->has_name ? rig->names : NULL};
    rig->pool = transfer_pool_new(w, &options);
}

static void free_pool(struct worker *w, void *ctx)
{
    (void)w;
    transfer_pool_free(((struct lane_rig *)ctx)->pool);
}

static void rig_begin(struct lane_rig *rig)
{
    rig->origin = tiny_origin_new(NULL);
    if (rig->has_name) {
        rig->beside = tiny_origin_new_beside(rig->origin);
        snprintf(rig->names, sizeof(rig->names), "both:%u:127.0.0.1,127.0.0.2,127.0.0.3",
                 tiny_origin_port(rig->origin));
    }
    rig->loop = fixture_loop(DISK_ENGINE_THREADS, 1, 0);
    rig->worker = loop_worker(rig->loop, 0);
    fixture_run_on(rig->worker, make_pool, rig);
}

static void rig_end(struct lane_rig *rig)
{
    fixture_run_on(rig->worker, free_pool, rig);
    fixture_loop_end(&rig->loop);
    tiny_origin_free(rig->origin);
    if (rig->has_name) {
        tiny_origin_free(rig->beside);
    }
}

static void start_all(struct worker *w, void *ctx)
{
    (void)w;
    static const struct transfer_calls calls = {
        .on_header_line = on_line, .on_body = on_line, .on_end = on_end};
    struct lane_rig *rig = ctx;
    char url[64];
    snprintf(url, sizeof(url), "http://%s:%u/bytes/100", rig->has_name ? "both" : "127.0.0.1",
             tiny_origin_port(rig->origin));
    struct transfer_request request = {.method = SPAN("GET"), .url = url};
    rig->ended = 0;
    for (unsigned i = 0; i < rig->to_start; i++) {
        (void)transfer_start(rig->pool, &request, &calls, rig);
    }
    unsigned running = 0;
    for (unsigned i = 0; i < rig->pool->lane_count; i++) {
        struct transfer_lane *lane = &rig->pool->lanes[i];
        cr_assert_leq(lane->running, lane->most);
        cr_assert_leq(lane->most, LANE_CONNECTIONS);
        running += lane->running;
    }
    cr_assert_eq(running, rig->to_start);
}

static void run(struct lane_rig *rig, unsigned count)
{
    rig->to_start = count;
    signal_init(&rig->all_over);
    fixture_run_on(rig->worker, start_all, rig);
    signal_wait(&rig->all_over);
    signal_done(&rig->all_over);
}

static void look_at_open_lanes(struct worker *w, void *ctx)
{
    (void)w;
    struct lane_rig *rig = ctx;
    rig->to_start = 0;
    for (unsigned i = 0; i < rig->pool->lane_count; i++) {
        bool is_open = rig->pool->lanes[i].multi != NULL;
        cr_assert(is_open || list_empty(&rig->pool->lanes[i].connections));
        rig->to_start += is_open;
    }
}

static unsigned open_lanes(struct lane_rig *rig)
{
    fixture_run_on(rig->worker, look_at_open_lanes, rig);
    return rig->to_start;
}

Test(transfer_lane, no_lane_has_more_transfers_than_connections)
{
    struct lane_rig rig = {.most = CALLS_MAX};
    rig_begin(&rig);
    run(&rig, CALLS_MAX);
    cr_assert_eq(open_lanes(&rig), (CALLS_MAX + LANE_CONNECTIONS - 1) / LANE_CONNECTIONS);
    cr_assert_leq(tiny_origin_connections(rig.origin), CALLS_MAX);
    rig_end(&rig);
}

// The more transfers run, the more handles are kept for the next ones. A burst leaves only a few.
Test(transfer_lane, kept_handles_follow_the_number_of_transfers)
{
    struct lane_rig rig = {.most = CALLS_MAX};
    rig_begin(&rig);
    run(&rig, CALLS_MAX);
    cr_assert_gt(rig.most_kept, IDLE_HANDLES_LEAST);
    cr_assert_eq(rig.pool->idle_count, IDLE_HANDLES_LEAST);
    rig_end(&rig);
}

Test(transfer_lane, few_transfers_stay_on_few_connections)
{
    struct lane_rig rig = {.most = CALLS_MAX};
    rig_begin(&rig);
    for (unsigned i = 0; i < 10; i++) {
        run(&rig, 3);
    }
    cr_assert_eq(open_lanes(&rig), 1);
    cr_assert_leq(tiny_origin_connections(rig.origin), 3);
    rig_end(&rig);
}

static void look_at_watched(struct worker *w, void *ctx)
{
    (void)w;
    struct lane_rig *rig = ctx;
    rig->watched = list_first(&rig->pool->lanes[0].sockets);
}

static const struct list_node *watched(struct lane_rig *rig)
{
    fixture_run_on(rig->worker, look_at_watched, rig);
    return rig->watched;
}

// Bytes that arrive between two requests end the connection, and are no part of the next answer.
Test(transfer_lane, a_connection_stays_watched_between_requests)
{
    struct lane_rig rig = {.most = 1};
    rig_begin(&rig);
    run(&rig, 1);
    const struct list_node *first = watched(&rig);
    cr_assert_neq(first, NULL);
    for (unsigned i = 0; i < 5; i++) {
        run(&rig, 1);
        cr_assert_eq(watched(&rig), first);
    }
    cr_assert_eq(tiny_origin_connections(rig.origin), 1);
    tiny_origin_answer_unasked(rig.origin);
    wait_for(watched(&rig) == NULL);
    run(&rig, 1);
    cr_assert_neq(watched(&rig), NULL);
    cr_assert_eq(tiny_origin_connections(rig.origin), 2);
    rig_end(&rig);
}

Test(transfer_lane, unused_lanes_are_closed)
{
    struct lane_rig rig = {.most = CALLS_MAX};
    rig_begin(&rig);
    run(&rig, CALLS_MAX);
    clock_test_advance_us(3500 * 1000);
    run(&rig, 1); // in the first lane, whose idle time starts again
    clock_test_advance_us(1000 * 1000);
    fixture_run_on(rig.worker, look_at_open_lanes, &rig); // a turn for the timers
    cr_assert_eq(open_lanes(&rig), 1);
    clock_test_advance_us(4000 * 1000);
    fixture_run_on(rig.worker, look_at_open_lanes, &rig);
    cr_assert_eq(open_lanes(&rig), 0);
    unsigned before = tiny_origin_connections(rig.origin);
    run(&rig, 1);
    cr_assert_eq(tiny_origin_connections(rig.origin), before + 1);
    rig_end(&rig);
}

Test(transfer_lane, connections_lead_to_every_address_of_a_name)
{
    struct lane_rig rig = {.most = CALLS_MAX, .has_name = true};
    rig_begin(&rig);
    run(&rig, CALLS_MAX); // none fails for the address where nobody listens
    cr_assert_gt(tiny_origin_requests(rig.origin), 0);
    cr_assert_gt(tiny_origin_requests(rig.beside), 0);
    cr_assert_eq(tiny_origin_requests(rig.origin) + tiny_origin_requests(rig.beside), CALLS_MAX);
    rig_end(&rig);
}

// --- Names and their addresses -------------------------------------------------------------------

#define PATIENCE_S 20 // of the name server with who waits for it

// The played look-ups of the C library; curl calls them in threads of its own.
static struct {
    bool is_silent;      // no answer, until `answers`
    unsigned dead_count; // addresses where nobody listens, before that of the origin
    unsigned dead_asks;  // the number of look-ups that get no other address
    sem_t answers;
    atomic_uint asked, answered;
} names;

static struct addrinfo *address_new(uint32_t ip, const char *service)
{
    struct {
        struct addrinfo info;
        struct sockaddr_in addr;
    } *one = calloc(1, sizeof(*one));
    cr_assert_not_null(one);
    one->addr = (struct sockaddr_in){.sin_family = AF_INET,
                                     .sin_port = htons((uint16_t)strtoul(service, NULL, 10)),
                                     .sin_addr = {htonl(ip)}};
    one->info = (struct addrinfo){.ai_family = AF_INET,
                                  .ai_socktype = SOCK_STREAM,
                                  .ai_addrlen = sizeof(one->addr),
                                  .ai_addr = (struct sockaddr *)&one->addr};
    return &one->info;
}

void freeaddrinfo(struct addrinfo *all)
{
    while (all != NULL) {
        struct addrinfo *next = all->ai_next;
        free(all);
        all = next;
    }
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **ret_addresses)
{
    (void)name;
    (void)hints;
    struct timespec until;
    cr_assert_eq(clock_gettime(CLOCK_REALTIME, &until), 0);
    until.tv_sec += PATIENCE_S;
    unsigned number = atomic_fetch_add(&names.asked, 1);
    if (names.is_silent) {
        (void)sem_timedwait(&names.answers, &until);
        atomic_fetch_add(&names.answered, 1);
        return EAI_AGAIN;
    }
    struct addrinfo *all = number < names.dead_asks ? NULL : address_new(INADDR_LOOPBACK, service);
    for (unsigned i = 0; i < names.dead_count; i++) {
        struct addrinfo *dead = address_new(INADDR_LOOPBACK + 1 + i, service);
        dead->ai_next = all;
        all = dead;
    }
    *ret_addresses = all;
    return 0;
}

static void names_reset(void)
{
    names.is_silent = false;
    names.dead_count = names.dead_asks = 0;
    atomic_store(&names.asked, 0);
    atomic_store(&names.answered, 0);
}

struct named_fetch {
    struct lane_rig *rig;
    const char *name;
    struct transfer *transfer;
    enum err err;
    struct signal over;
};

static void on_named_end(void *ctx, enum err err, const char *detail)
{
    (void)detail;
    struct named_fetch *fetch = ctx;
    fetch->err = err;
    signal_raise(&fetch->over);
}

static void start_named(struct worker *w, void *ctx)
{
    (void)w;
    static const struct transfer_calls calls = {
        .on_header_line = on_line, .on_body = on_line, .on_end = on_named_end};
    struct named_fetch *fetch = ctx;
    char url[64];
    snprintf(url, sizeof(url), "http://%s:%u/bytes/100", fetch->name,
             tiny_origin_port(fetch->rig->origin));
    struct transfer_request request = {.method = SPAN("GET"), .url = url};
    fetch->transfer = transfer_start(fetch->rig->pool, &request, &calls, fetch);
}

static void fetch_begin(struct named_fetch *fetch, struct lane_rig *rig, const char *name)
{
    *fetch = (struct named_fetch){.rig = rig, .name = name};
    signal_init(&fetch->over);
    fixture_run_on(rig->worker, start_named, fetch);
}

static enum err fetch_from(struct lane_rig *rig, const char *name)
{
    struct named_fetch fetch;
    fetch_begin(&fetch, rig, name);
    signal_wait(&fetch.over);
    signal_done(&fetch.over);
    return fetch.err;
}

static void cancel_named(struct worker *w, void *ctx)
{
    (void)w;
    transfer_cancel(((struct named_fetch *)ctx)->transfer);
}

Test(transfer_lane, a_name_server_that_does_not_answer_holds_no_worker_up)
{
    names_reset();
    names.is_silent = true;
    cr_assert_eq(sem_init(&names.answers, 0, 0), 0);
    struct lane_rig rig = {.most = CALLS_MAX};
    rig_begin(&rig);
    struct named_fetch fetches[2];
    fetch_begin(&fetches[0], &rig, "a.test");
    fetch_begin(&fetches[1], &rig, "b.test");
    wait_for(atomic_load(&names.asked) == 2);
    fixture_run_on(rig.worker, cancel_named, &fetches[0]);
    signal_wait(&fetches[0].over);
    cr_assert_eq(fetches[0].err, ERR_CANCELLED);
    rig_end(&rig);
    cr_assert_eq(fetches[1].err, ERR_CANCELLED);
    cr_assert_eq(atomic_load(&names.answered), 0);
    for (unsigned i = 0; i < 2; i++) {
        cr_assert_eq(sem_post(&names.answers), 0);
        signal_done(&fetches[i].over);
    }
    wait_for(atomic_load(&names.answered) == 2);
}

Test(transfer_lane, addresses_that_refuse_are_passed_over)
{
    names_reset();
    names.dead_count = 31;
    struct lane_rig rig = {.most = CALLS_MAX};
    rig_begin(&rig);
    cr_assert_eq(fetch_from(&rig, "a.test"), ERR_OK); // any of the 32 that curl begins with
    cr_assert_eq(fetch_from(&rig, "b.test"), ERR_OK);
    rig_end(&rig);
}

Test(transfer_lane, a_name_whose_addresses_fail_is_looked_up_again)
{
    names_reset();
    names.dead_count = names.dead_asks = 1;
    struct lane_rig rig = {.most = CALLS_MAX};
    rig_begin(&rig);
    cr_assert_eq(fetch_from(&rig, "a.test"), ERR_ORIGIN_CONNECT);
    cr_assert_eq(fetch_from(&rig, "a.test"), ERR_OK);
    rig_end(&rig);
}

// SPDX-License-Identifier: Apache-2.0
// Keeps the current credential set on every worker, and renews it.
//
// Worker 0 manages the set: only worker 0 starts loads on the pool for blocking calls and gets
// their results. It sends a new set to every worker by message, and each worker keeps one reference
// to its set. So a look-up takes no lock. A renewal begins 15 to 17 minutes before expiry, at a
// random time. Sources that are files are read again every REREAD_S. If a load fails, the old set
// stays in use until it has expired.
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "origin/credentials_chain.h"
#include "stats/stats.h"

#define RENEW_AHEAD_S 900
#define RENEW_JITTER_S 120u
#define RENEW_FAILED_S 30
#define REREAD_S 15
#define RENEW_AGAIN_MS 2000u // The shortest time between two forced renewals.

struct part {
    struct credentials_renewer *renewer;
    struct worker *w;
    struct credentials_set *set;
    struct list waiters, woken;
    struct task wake;
    bool has_asked; // This worker has asked worker 0, which will send a result.
};

struct credentials_renewer {
    struct loop *loop;
    struct credentials_options options;
    struct part *parts;
    unsigned part_count;

    // Only worker 0 uses these fields.
    struct timer timer;
    struct blocking_job job;
    bool job_running;
    struct credentials_set *loaded; // The set that the job has loaded.
    struct buf why;
    uint64_t loaded_at_ms;
    bool last_failed;
    struct credentials_update *now; // Owns the texts of `options`. NULL: the caller owns them.
    // Waits for the end of the job, which reads the texts. May be NULL.
    struct credentials_update *next;
};

struct credentials_update {
    struct message message;
    struct credentials_renewer *renewer;
    struct credentials_options options;
    char *texts[4]; // Owned copies; `options` points to them.
    struct credentials_set *set;
};

struct renewer_message {
    struct message message;
    struct credentials_renewer *renewer;
    struct credentials_set *set; // NULL: the load failed.
    unsigned part;
};

// --- Waiters -------------------------------------------------------------------------------------

void credentials_waiter_init(struct credentials_waiter *waiter,
                             void (*done)(struct credentials_waiter *waiter, enum err err))
{
    list_node_init(&waiter->node);
    waiter->done = done;
    waiter->err = ERR_OK;
}

void credentials_waiter_cancel(struct credentials_waiter *waiter)
{
    list_remove(&waiter->node);
}

static void on_wake(struct task *task)
{
    struct part *part = container_of(task, struct part, wake);
    struct list_node *node;
    while ((node = list_pop_front(&part->woken)) != NULL) {
        struct credentials_waiter *waiter = container_of(node, struct credentials_waiter, node);
        waiter->done(waiter, waiter->err);
    }
}

static void part_wake(struct part *part, enum err err)
{
    struct list_node *node;
    while ((node = list_pop_front(&part->waiters)) != NULL) {
        container_of(node, struct credentials_waiter, node)->err = err;
        list_push_back(&part->woken, node);
    }
    if (!list_empty(&part->woken)) {
        worker_defer(part->w, &part->wake);
    }
}

// --- Results, on every worker --------------------------------------------------------------------

static void on_result(struct worker *to, struct message *message)
{
    struct renewer_message *m = container_of(message, struct renewer_message, message);
    struct part *part = &m->renewer->parts[worker_index(to)];
    if (m->set != NULL) {
        credentials_set_unref(part->set);
        part->set = m->set;
    }
    part->has_asked = false;
    part_wake(part, m->set != NULL ? ERR_OK : ERR_ORIGIN_CREDENTIALS);
    free(m);
}

static struct renewer_message *message_new(struct credentials_renewer *renewer,
                                           void (*deliver)(struct worker *to,
                                                           struct message *message))
{
    struct renewer_message *m = calloc(1, sizeof(*m));
    check(m != NULL);
    m->message.deliver = deliver;
    m->renewer = renewer;
    return m;
}

static void send_result(struct credentials_renewer *renewer, unsigned i,
                        struct credentials_set *set)
{
    struct renewer_message *m = message_new(renewer, on_result);
    m->set = set != NULL ? credentials_set_ref(set) : NULL;
    mailbox_send(renewer->parts[i].w, &m->message);
}

// --- Worker 0 ------------------------------------------------------------------------------------

// Returns the seconds until the set must be loaded again. 0: never.
static uint64_t next_load_s(const struct credentials_set *set, bool failed)
{
    if (failed) {
        return RENEW_FAILED_S + random_u64() % RENEW_FAILED_S;
    }
    if (set->expires_at_s != 0) {
        int64_t left_s = set->expires_at_s - clock_wall_s();
        int64_t ahead_s = RENEW_AHEAD_S + (int64_t)(random_u64() % RENEW_JITTER_S);
        if (left_s > ahead_s) {
            return (uint64_t)(left_s - ahead_s);
        }
        return left_s > 20 ? (uint64_t)left_s / 2 : 10;
    }
    return set->is_from_files ? REREAD_S : 0;
}

static void schedule(struct credentials_renewer *renewer)
{
    uint64_t delay_s = next_load_s(renewer->parts[0].set, renewer->last_failed);
    if (delay_s > 0) {
        timer_start(&renewer->timer, delay_s * 1000);
    } else {
        timer_stop(&renewer->timer);
    }
}

static void publish_expiry(struct credentials_renewer *renewer)
{
    if (renewer->options.expires_at_s != NULL) {
        atomic_store(renewer->options.expires_at_s, renewer->parts[0].set->expires_at_s);
    }
}

static void on_job_work(struct blocking_job *job)
{
    struct credentials_renewer *renewer = container_of(job, struct credentials_renewer, job);
    renewer->why.len = 0;
    job->err = credentials_chain_load(&renewer->options, &renewer->loaded, &renewer->why);
}

static void update_take(struct credentials_renewer *renewer);

// Ends a load and sends its set to every worker. Takes ownership of the set. NULL: the load failed.
static void set_take(struct credentials_renewer *renewer, struct credentials_set *set)
{
    struct credentials_set *held = renewer->parts[0].set;
    renewer->loaded_at_ms = clock_monotonic_ms();
    renewer->last_failed = set == NULL;
    for (unsigned i = 0; i < renewer->part_count; i++) {
        send_result(renewer, i, set);
    }
    // The message will set worker 0's set too. But the timer needs the new set now.
    if (set != NULL) {
        if (!credentials_set_same_keys(set, held)) {
            log_info("credentials_renewed", "source=%s", log_quote(span_from_cstr(set->source)));
        }
        credentials_set_unref(held);
        renewer->parts[0].set = set;
    }
    publish_expiry(renewer);
    schedule(renewer);
}

static void on_job_done(struct blocking_job *job)
{
    struct credentials_renewer *renewer = container_of(job, struct credentials_renewer, job);
    struct credentials_set *loaded = renewer->loaded;
    check(renewer->job_running && (job->err != ERR_OK || loaded != NULL));
    renewer->loaded = NULL;
    renewer->job_running = false;
    if (job->err != ERR_OK) {
        stats_add(COUNTER_credentials_refresh_failures, 1);
        log_warn_condition("credentials_not_renewed", "why=%s expired=%d",
                           log_quote(buf_span(&renewer->why)),
                           credentials_set_is_expired(renewer->parts[0].set, clock_wall_s()));
    }
    set_take(renewer, loaded);
    update_take(renewer);
}

static void renewer_load(struct credentials_renewer *renewer)
{
    if (!renewer->job_running) {
        renewer->job_running = true;
        // If the pool refuses the job, on_job_work() does not run, and this is the reason.
        renewer->why.len = 0;
        buf_append_cstr(&renewer->why, "the queue for blocking calls is full");
        blocking_pool_run(renewer->parts[0].w, &renewer->job);
    }
}

static void on_timer(struct timer *timer)
{
    renewer_load(container_of(timer, struct credentials_renewer, timer));
}

static void on_begin(struct worker *to, struct message *message)
{
    (void)to;
    struct renewer_message *m = container_of(message, struct renewer_message, message);
    schedule(m->renewer);
    free(m);
}

// Applies the waiting update, unless the job is running. When the job ends, it calls this again.
static void update_take(struct credentials_renewer *renewer)
{
    struct credentials_update *update = renewer->next;
    if (update == NULL || renewer->job_running) {
        return;
    }
    renewer->next = NULL;
    credentials_update_free(renewer->now);
    renewer->now = update;
    renewer->options = update->options;
    set_take(renewer, update->set);
    update->set = NULL;
}

static void on_update(struct worker *to, struct message *message)
{
    (void)to;
    struct credentials_update *update = container_of(message, struct credentials_update, message);
    struct credentials_renewer *renewer = update->renewer;
    credentials_update_free(renewer->next);
    renewer->next = update;
    update_take(renewer);
}

static void on_ask(struct worker *to, struct message *message)
{
    (void)to;
    struct renewer_message *m = container_of(message, struct renewer_message, message);
    struct credentials_renewer *renewer = m->renewer;
    if (!renewer->job_running && renewer->loaded_at_ms != 0 &&
        clock_monotonic_ms() - renewer->loaded_at_ms < RENEW_AGAIN_MS) {
        // A load has ended less than RENEW_AGAIN_MS ago, so its result is new enough.
        send_result(renewer, m->part, renewer->last_failed ? NULL : renewer->parts[0].set);
    } else {
        renewer_load(renewer); // all workers get its result
    }
    free(m);
}

// --- Calls ---------------------------------------------------------------------------------------

struct credentials_renewer *credentials_renewer_new(struct loop *loop,
                                                    const struct credentials_options *options,
                                                    struct credentials_set **first)
{
    struct credentials_renewer *renewer = calloc(1, sizeof(*renewer));
    check(renewer != NULL);
    renewer->loop = loop;
    renewer->options = *options;
    renewer->part_count = loop_worker_count(loop);
    renewer->parts = calloc(renewer->part_count, sizeof(renewer->parts[0]));
    check(renewer->parts != NULL);
    buf_init(&renewer->why, 4096);
    for (unsigned i = 0; i < renewer->part_count; i++) {
        struct part *part = &renewer->parts[i];
        part->renewer = renewer;
        part->w = loop_worker(loop, i);
        part->set = credentials_set_ref(*first);
        list_init(&part->waiters);
        list_init(&part->woken);
        worker_task_init(&part->wake, on_wake);
    }
    timer_init(renewer->parts[0].w, &renewer->timer, on_timer);
    list_node_init(&renewer->job.node);
    renewer->job.work = on_job_work;
    renewer->job.done = on_job_done;
    publish_expiry(renewer);
    if (next_load_s(*first, false) > 0) {
        struct renewer_message *m = message_new(renewer, on_begin);
        mailbox_send_from_any_thread(renewer->parts[0].w, &m->message);
    }
    credentials_set_unref(*first);
    *first = NULL;
    return renewer;
}

static const char *update_keep(struct credentials_update *update, unsigned i, const char *text)
{
    update->texts[i] = text != NULL ? strdup(text) : NULL;
    check(text == NULL || update->texts[i] != NULL);
    return update->texts[i];
}

enum err credentials_update_new(struct credentials_renewer *renewer,
                                const struct credentials_options *options,
                                struct credentials_update **ret_update, struct buf *ret_why)
{
    struct credentials_set *set = NULL;
    enum err err = credentials_chain_load(options, &set, ret_why);
    if (err != ERR_OK) {
        return err;
    }
    struct credentials_update *update = calloc(1, sizeof(*update));
    check(update != NULL);
    update->message.deliver = on_update;
    update->renewer = renewer;
    update->set = set;
    update->options = *options;
    update->options.access_key_file = update_keep(update, 0, options->access_key_file);
    update->options.secret_key_file = update_keep(update, 1, options->secret_key_file);
    update->options.session_token_file = update_keep(update, 2, options->session_token_file);
    update->options.ca_file = update_keep(update, 3, options->ca_file);
    *ret_update = update;
    return ERR_OK;
}

void credentials_update_use(struct credentials_update *update)
{
    mailbox_send_from_any_thread(update->renewer->parts[0].w, &update->message);
}

void credentials_update_free(struct credentials_update *update)
{
    if (update != NULL) {
        credentials_set_unref(update->set);
        for (unsigned i = 0; i < ARRAY_LEN(update->texts); i++) {
            free(update->texts[i]);
        }
        free(update);
    }
}

void credentials_renewer_free(struct credentials_renewer *renewer)
{
    if (renewer == NULL) {
        return;
    }
    timer_done(&renewer->timer);
    for (unsigned i = 0; i < renewer->part_count; i++) {
        credentials_set_unref(renewer->parts[i].set);
    }
    credentials_set_unref(renewer->loaded);
    credentials_update_free(renewer->now);
    credentials_update_free(renewer->next);
    buf_done(&renewer->why);
    free(renewer->parts);
    free(renewer);
}

struct credentials_set *credentials_renewer_get(struct credentials_renewer *renewer,
                                                struct worker *w)
{
    return renewer->parts[worker_index(w)].set;
}

void credentials_renewer_ask(struct credentials_renewer *renewer, struct worker *w,
                             const struct credentials_set *used, struct credentials_waiter *waiter)
{
    struct part *part = &renewer->parts[worker_index(w)];
    if (part->set != used && !credentials_set_is_expired(part->set, clock_wall_s())) {
        waiter->err = ERR_OK;
        list_push_back(&part->woken, &waiter->node);
        worker_defer(w, &part->wake);
        return;
    }
    list_push_back(&part->waiters, &waiter->node);
    if (part->has_asked) {
        return;
    }
    part->has_asked = true;
    struct renewer_message *m = message_new(renewer, on_ask);
    m->part = worker_index(w);
    mailbox_send(renewer->parts[0].w, &m->message);
}

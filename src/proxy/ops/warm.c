// SPDX-License-Identifier: Apache-2.0
// Warm jobs. An item of a job names an object, or a prefix whose objects the origin lists. The
// missing bytes of each object are fetched (warm_object.c). A job runs on one worker, and its
// requests have a lower priority than those of all clients.
//
//   items -> pages (two: one is processed while the next is listed) -> objects -> runs
//
// A job holds at most PROXY_WARM_PENDING_MAX items and two pages. It has as many runs in flight as
// its concurrency, and twice as many objects and a few more. The memory of all jobs together is
// bounded (warm_room.c). A job pauses while memory is short, while the store has a backlog, or
// while its rate is used up (warm_pace.c).
//
// A job ends when everything is done, when it is cancelled, and with the process. The bytes that
// are cached by then stay, and a new job for the same items continues from there. Any thread may
// read the job's published progress.
#include "proxy/ops/warm_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define YOUNG_WAIT_MS 2100u // a file at a directory origin is young for two seconds
#define STEPS_MAX 64u       // maximum steps of objects in one turn
#define FAILURE_MAX_BYTES 1536u

// --- life ----------------------------------------------------------------------------------------

static void job_go(struct task *task);

static struct proxy_warm *job_ref(struct proxy_warm *job)
{
    check(atomic_load(&job->refs) > 0);
    atomic_fetch_add(&job->refs, 1);
    return job;
}

void proxy_warm_unref(struct proxy_warm *job)
{
    if (job == NULL || atomic_fetch_sub(&job->refs, 1) != 1) {
        return;
    }
    for (unsigned i = 0; i < PROXY_WARM_FAILURES_MAX; i++) {
        free(job->published.failures[i]);
    }
    for (unsigned i = 0; i < PROXY_WARM_REASONS_MAX; i++) {
        free(job->published.reasons[i].why);
        free(job->published.reasons[i].first);
    }
    free(job);
}

static void job_unref(void *ptr)
{
    proxy_warm_unref(ptr);
}

static void on_timer(struct timer *timer)
{
    struct proxy_warm *job = container_of(timer, struct proxy_warm, timer);
    worker_defer(job->pw->worker, &job->task);
}

struct proxy_warm *proxy_warm_new(struct proxy *proxy, const struct proxy_warm_options *options)
{
    struct proxy_warm *job = calloc(1, sizeof(*job));
    check(job != NULL && options->concurrency > 0);
    atomic_init(&job->refs, 1);
    job->proxy = proxy;
    job->options = *options;
    job->client = (uint64_t)(uintptr_t)job;
    job->pw = ops_worker(proxy);
    list_init(&job->items);
    list_init(&job->ready);
    list_init(&job->waiting);
    list_init(&job->later);
    warm_pace_begin(job);
    worker_task_init(&job->task, job_go);
    stats_add(COUNTER_warm_jobs, 1);
    atomic_init(&job->published.began_us, clock_monotonic_us());
    return job;
}

static char *text_copy(const char *text)
{
    char *copy = malloc(FAILURE_MAX_BYTES);
    check(copy != NULL);
    (void)snprintf(copy, FAILURE_MAX_BYTES, "%s", text);
    return copy;
}

// Returns the counted reason `why`, or a new one without a first failure; NULL: there are enough.
static struct warm_reason *reason_of(struct warm_published *p, const char *why)
{
    unsigned count = atomic_load(&p->reason_count);
    for (unsigned i = 0; i < count; i++) {
        if (strcmp(p->reasons[i].why, why) == 0) {
            return &p->reasons[i];
        }
    }
    if (count == PROXY_WARM_REASONS_MAX) {
        return NULL;
    }
    p->reasons[count].why = text_copy(why);
    return &p->reasons[count];
}

// Counts the failure under its reason. Keeps the text "BEFOREs3://BUCKET/KEY: WHY", unless there
// are enough texts.
static void note_failure(struct proxy_warm *job, const char *before, struct span bucket,
                         struct span key, const char *why)
{
    struct warm_published *p = &job->published;
    unsigned count = atomic_load(&p->failure_count);
    check(count <= PROXY_WARM_FAILURES_MAX && why != NULL);
    struct warm_reason *reason = reason_of(p, why);
    char text[FAILURE_MAX_BYTES];
    (void)snprintf(text, sizeof(text), "%ss3://%.*s/%.*s: %s", before, (int)bucket.len, bucket.ptr,
                   (int)key.len, key.len > 0 ? key.ptr : "", why);
    if (reason != NULL) {
        atomic_fetch_add(&reason->count, 1);
    }
    if (reason != NULL && reason->first == NULL) {
        reason->first = text_copy(text);
        atomic_fetch_add(&p->reason_count, 1);
    }
    if (count < PROXY_WARM_FAILURES_MAX) {
        p->failures[count] = text_copy(text);
        atomic_store(&p->failure_count, count + 1);
    }
}

static void job_end(struct proxy_warm *job)
{
    struct warm_published *p = &job->published;
    check(job->object_count == 0 && job->run_count == 0 && !job->is_over);
    check(list_empty(&job->ready) && list_empty(&job->waiting) && list_empty(&job->later));
    check(job->listed == NULL && list_empty(&job->items));
    job->is_over = true;
    timer_done(&job->timer);
    worker_task_cancel(&job->task);
    stats_sub(COUNTER_warm_jobs, 1);
    atomic_store(&p->is_counted, true);
    atomic_store(&p->waits, REFUSAL_none);
    atomic_store(&p->ended_us, clock_monotonic_us());
    atomic_store(&p->state, job->is_cancelled ? PROXY_WARM_CANCELLED : PROXY_WARM_DONE);
    log_info("warm_done", "cancelled=%d objects=%llu failed=%llu refused=%llu fetched_bytes=%llu",
             job->is_cancelled, (unsigned long long)p->objects,
             (unsigned long long)p->objects_failed, (unsigned long long)p->objects_refused,
             (unsigned long long)p->bytes_fetched);
    worker_free_later(job->pw->worker, job_unref, job);
}

// --- objects -------------------------------------------------------------------------------------

// Counts an object that failed, or a prefix that stands for one.
static void count_failure(struct proxy_warm *job, bool is_missing)
{
    stats_add(COUNTER_warm_objects_failed, 1);
    atomic_fetch_add(&job->published.objects_failed, 1);
    atomic_fetch_add(&job->published.objects_missing, is_missing ? 1 : 0);
}

static bool is_missing(enum err err)
{
    return err == ERR_NO_SUCH_KEY || err == ERR_NO_SUCH_BUCKET;
}

static void object_end(struct warm_object *o)
{
    struct proxy_warm *job = o->job;
    check(job->object_count > 0 && o->run_count == 0);
    struct warm_published *p = &job->published;
    if (o->phase == WARM_PHASE_FAILED) {
        count_failure(job, is_missing(o->err));
        const char *why = o->why != NULL ? o->why : error_row(o->err)->text;
        bool is_named = o->err == ERR_NO_SUCH_KEY && !o->item->is_prefix;
        note_failure(job, "", o->item->bucket, o->key->key,
                     is_named ? "there is no such object; a prefix ends in / or *" : why);
    } else if (o->phase == WARM_PHASE_REFUSED) {
        stats_add(COUNTER_warm_objects_refused, 1);
        atomic_fetch_add(&p->objects_excluded, o->is_excluded ? 1 : 0);
        atomic_fetch_add(&p->objects_refused, 1); // after objects_excluded: see proxy_warm_read()
        note_failure(job, "", o->item->bucket, o->key->key, o->why);
    } else {
        check(o->phase == WARM_PHASE_DONE);
        stats_add(COUNTER_warm_objects_done, 1);
        atomic_fetch_add(&p->objects_done, 1);
        atomic_fetch_add(&p->objects_cached, o->has_fetched ? 0 : 1);
        atomic_fetch_add(&p->bytes_done, o->wanted_bytes - min_u64(o->wanted_bytes, o->done_bytes));
    }
    list_remove(&o->node);
    warm_room_object_gone(o);
    warm_object_free(o);
}

static struct warm_object *object_add(struct proxy_warm *job, struct warm_item *item,
                                      struct span key, const struct list_entry *entry)
{
    struct warm_object *o = warm_object_new(job, item, key, entry);
    list_push_back(&job->ready, &o->node);
    warm_room_object_come(o);
    return o;
}

// --- pages ---------------------------------------------------------------------------------------

static struct warm_page *page_at(struct proxy_warm *job, unsigned i)
{
    return &job->pages[(job->page + i) % 2];
}

static void page_enter(struct warm_page *page, enum warm_page_phase phase)
{
    static const unsigned next[] = {
        [WARM_PAGE_EMPTY] = 1u << WARM_PAGE_RUNS,
        [WARM_PAGE_RUNS] = 1u << WARM_PAGE_LATER | 1u << WARM_PAGE_READY,
        [WARM_PAGE_LATER] = 1u << WARM_PAGE_RUNS | 1u << WARM_PAGE_EMPTY,
        [WARM_PAGE_READY] = 1u << WARM_PAGE_EMPTY,
    };
    check_step(next, page->phase, phase);
    page->phase = phase;
}

static bool page_runs(const struct proxy_warm *job)
{
    return job->pages[0].phase == WARM_PAGE_RUNS || job->pages[1].phase == WARM_PAGE_RUNS;
}

static void page_release(struct warm_page *page)
{
    if (page->phase == WARM_PAGE_READY) {
        warm_room_page_gone(page);
    }
    if (page->phase == WARM_PAGE_READY || page->phase == WARM_PAGE_LATER) {
        list_call_release(&page->call);
        page_enter(page, WARM_PAGE_EMPTY);
    }
}

// Puts a page off for which no connection came free. Returns false if it has failed.
static bool page_put_off(struct warm_page *page)
{
    struct proxy_warm *job = page->job;
    if (page->call.err != ERR_ORIGIN_FULL || job->is_cancelled) {
        return false;
    }
    warm_pace_refused(job, page->asked_us, REFUSAL_no_connection);
    if (!warm_pace_tries(job, page->tries)) {
        return false;
    }
    page->tries++;
    page_enter(page, WARM_PAGE_LATER);
    return true;
}

// The prefix counts as one object that failed, because nobody knows how many it should have.
static void prefix_failed(struct proxy_warm *job, enum err err, const char *before, const char *why)
{
    count_failure(job, is_missing(err));
    atomic_fetch_add(&job->published.prefixes_failed, 1);
    atomic_fetch_add(&job->published.objects, 1);
    note_failure(job, before, job->listed->bucket, job->listed->key, why);
}

static void on_page(struct list_call *call)
{
    struct warm_page *page = container_of(call, struct warm_page, call);
    check(page->phase == WARM_PAGE_RUNS);
    check(page->job->listed != NULL);
    struct proxy_warm *job = page->job;
    worker_defer(job->pw->worker, &job->task);
    if (page_put_off(page)) {
        return;
    }
    page_enter(page, WARM_PAGE_READY);
    page->next = 0;
    warm_room_page_come(page);
    bool is_circle = call->next.len > 0 &&
                     circle_closes(&job->circle, hash64(call->next.ptr, call->next.len, 0));
    if (is_circle) {
        call->next = (struct span){NULL, 0}; // the listing ends here
    }
    job->has_listed |= call->count > 0;
    if ((call->err != ERR_OK || is_circle) && !job->is_cancelled) {
        char why[256];
        (void)snprintf(why, sizeof(why), "the origin cannot list it: %s",
                       is_circle ? "its pages lead in a circle" : error_row(call->err)->text);
        prefix_failed(job, call->err, "", why);
    } else if (call->next.len == 0 && !job->has_listed && !job->is_cancelled &&
               !job->options.allows_empty) {
        prefix_failed(job, ERR_NO_SUCH_KEY, "nothing lies below ",
                      "check its spelling; --allow-empty accepts an empty prefix");
    }
    uint64_t bytes = 0;
    for (unsigned i = 0; i < call->count; i++) {
        bytes += call->entries[i].size_bytes;
    }
    atomic_fetch_add(&job->published.bytes, bytes);
    atomic_fetch_add(&job->published.objects, call->count);
}

static void page_list(struct proxy_warm *job, struct warm_page *page, struct span after)
{
    check(job->listed != NULL && job->listed->is_prefix);
    page_enter(page, WARM_PAGE_RUNS);
    page->job = job;
    page->tries = 0;
    page->asked_us = worker_now_us(job->pw->worker);
    page->call.done = on_page;
    list_call_start(job->pw, &page->call, job->listed->bucket, job->listed->key, after,
                    PROXY_LIST_MAX);
}

static void page_list_again(struct warm_page *page)
{
    struct proxy_warm *job = page->job;
    page_enter(page, WARM_PAGE_RUNS);
    page->asked_us = worker_now_us(job->pw->worker);
    list_call_again(&page->call, job->listed->bucket);
}

// Returns the next listed object. NULL: the next page has not come yet, or the listing has ended
// (then job->listed is NULL).
static struct warm_object *next_listed(struct proxy_warm *job)
{
    for (unsigned i = 0; i < 2; i++) {
        struct warm_page *page = page_at(job, 0), *other = page_at(job, 1);
        if (page->phase == WARM_PAGE_LATER) {
            page_list_again(page);
        }
        if (page->phase != WARM_PAGE_READY) {
            return NULL;
        }
        // Fetch the next page while the objects of this one are warmed.
        bool is_over = page->next == page->call.count;
        check(page->next <= page->call.count);
        if (other->phase == WARM_PAGE_EMPTY && page->call.next.len > 0 &&
            (is_over || warm_room_lists_ahead(job))) {
            page_list(job, other, page->call.next);
        }
        if (!is_over) {
            const struct list_entry *entry = &page->call.entries[page->next++];
            return object_add(job, job->listed, entry->key, entry);
        }
        bool has_more = page->call.next.len > 0;
        page_release(page);
        job->page = (job->page + 1) % 2;
        if (!has_more) {
            warm_room_item_unref(job, job->listed);
            job->listed = NULL;
            return NULL;
        }
    }
    return NULL;
}

// --- what comes next -----------------------------------------------------------------------------

static struct warm_object *next_object(struct proxy_warm *job)
{
    check(!job->is_cancelled && !job->is_over);
    if (!warm_room_takes_object(job)) {
        return NULL;
    }
    if (job->listed != NULL) {
        struct warm_object *o = next_listed(job);
        if (o != NULL || job->listed != NULL) {
            return o;
        }
    }
    struct list_node *node = list_pop_front(&job->items);
    if (node == NULL) {
        return NULL;
    }
    struct warm_item *item = container_of(node, struct warm_item, node);
    check(job->listed == NULL && item->refs > 0 && atomic_load(&job->pending) > 0);
    atomic_fetch_sub(&job->pending, 1);
    if (item->is_prefix) {
        job->listed = item;
        job->circle = (struct circle){0};
        job->has_listed = false;
        page_list(job, page_at(job, 0), (struct span){NULL, 0});
        return NULL;
    }
    struct warm_object *o = object_add(job, item, item->key, NULL);
    warm_room_item_unref(job, item); // the object has a reference of its own
    return o;
}

static bool is_exhausted(struct proxy_warm *job)
{
    return job->object_count == 0 && job->listed == NULL && list_empty(&job->items) &&
           (job->is_closed || job->is_cancelled) && !page_runs(job);
}

static void publish_idle(struct proxy_warm *job)
{
    bool is_idle = job->object_count == 0 && job->listed == NULL && list_empty(&job->items);
    atomic_store(&job->published.is_idle, is_idle && !job->is_closed);
}

static void objects_drop(struct list *list)
{
    list_for_each(node, list)
    {
        struct warm_object *o = container_of(node, struct warm_object, node);
        warm_object_leave(o);
        if (o->phase != WARM_PHASE_HEADER) { // otherwise the read's callback calls this again
            list_remove(&o->node);
            warm_room_object_gone(o);
            warm_object_free(o);
        }
    }
}

// Releases everything that waits and cancels the rest. A cancelled listing ends later, and a disk
// read cannot be cancelled. When they end, this runs again.
static void job_drop(struct proxy_warm *job)
{
    struct list_node *node;
    objects_drop(&job->ready);
    objects_drop(&job->waiting);
    objects_drop(&job->later);
    while ((node = list_pop_front(&job->items)) != NULL) {
        warm_room_item_unref(job, container_of(node, struct warm_item, node));
    }
    for (unsigned i = 0; i < 2; i++) {
        list_call_cancel(&job->pages[i].call);
        page_release(&job->pages[i]);
    }
    if (!page_runs(job)) {
        warm_room_item_unref(job, job->listed);
        job->listed = NULL;
    }
}

// Ends the object, unless it is worth another try later.
static void object_over(struct warm_object *o)
{
    if (o->phase == WARM_PHASE_LATER) {
        if (warm_pace_keep(o->job, o, o->later == REFUSAL_too_young ? YOUNG_WAIT_MS : 0)) {
            return;
        }
        o->why = refusal_text(o->later)->text;
        warm_phase_enter(o, WARM_PHASE_REFUSED);
    }
    object_end(o);
}

static void job_work(struct proxy_warm *job)
{
    uint64_t later_ms = warm_pace_wake(job);
    for (unsigned i = 0; i < STEPS_MAX; i++) {
        uint64_t wait_ms = warm_pace_wait_ms(job);
        if (wait_ms > 0) {
            timer_start(&job->timer, wait_ms);
            return;
        }
        struct list_node *node = list_first(&job->ready);
        struct warm_object *o = NULL;
        if (!warm_pace_is_full(job)) {
            o = node != NULL ? container_of(node, struct warm_object, node) : next_object(job);
        }
        if (o == NULL) { // the job is woken when a run or object ends, or when a page arrives
            if (later_ms > 0) {
                timer_start(&job->timer, later_ms);
            }
            return;
        }
        enum warm_step step = warm_object_step(o);
        if (step == WARM_WAITS) {
            list_remove(&o->node);
            list_push_back(&job->waiting, &o->node);
        } else if (step == WARM_OVER) {
            object_over(o);
            later_ms = warm_pace_wake(job);
        }
    }
    worker_defer(job->pw->worker, &job->task);
}

static void job_go(struct task *task)
{
    struct proxy_warm *job = container_of(task, struct proxy_warm, task);
    check(job->timer.worker == job->pw->worker);
    if (job->is_over) {
        return;
    }
    if (job->is_cancelled) {
        job_drop(job);
    } else {
        job_work(job);
    }
    if (is_exhausted(job)) {
        job_end(job);
    } else if (job->is_closed && job->listed == NULL && list_empty(&job->items)) {
        atomic_store(&job->published.is_counted, true);
    }
    publish_idle(job);
}

// --- from other threads --------------------------------------------------------------------------

struct warm_message {
    struct message message;
    struct proxy_warm *job; // reference
    bool closes, cancels;
    struct list items;
};

static void on_told(struct worker *to, struct message *message)
{
    struct warm_message *m = container_of(message, struct warm_message, message);
    struct proxy_warm *job = m->job;
    struct list_node *node;
    check(to == job->pw->worker);
    if (job->timer.worker == NULL) { // this is its first message, so the job begins
        timer_init(to, &job->timer, on_timer);
        (void)job_ref(job);
    }
    atomic_store(&job->published.is_idle, false); // before the job begins any of the items
    bool is_late = job->is_over || job->is_cancelled || job->is_closed;
    while ((node = list_pop_front(&m->items)) != NULL) {
        if (is_late) {
            warm_room_item_unref(job, container_of(node, struct warm_item, node));
        } else {
            list_push_back(&job->items, node);
        }
    }
    job->is_closed |= m->closes;
    job->is_cancelled |= m->cancels;
    if (!job->is_over) {
        worker_defer(to, &job->task);
    }
    proxy_warm_unref(job);
    free(m);
}

static struct warm_message *message_new(struct proxy_warm *job)
{
    struct warm_message *m = calloc(1, sizeof(*m));
    check(m != NULL);
    m->message.deliver = on_told;
    m->job = job_ref(job);
    list_init(&m->items);
    return m;
}

enum err proxy_warm_add(struct proxy_warm *job, const struct proxy_warm_item *items, unsigned count)
{
    if (atomic_load(&job->pending) + count > PROXY_WARM_PENDING_MAX ||
        !proxy_warm_has_room(job->proxy, job, items, count)) {
        return ERR_LIMIT;
    }
    atomic_fetch_add(&job->pending, count);
    struct warm_message *m = message_new(job);
    for (unsigned i = 0; i < count; i++) {
        struct warm_item *item = warm_room_item_new(job, &items[i]);
        atomic_fetch_add(&job->published.objects, items[i].is_prefix ? 0 : 1);
        list_push_back(&m->items, &item->node);
    }
    mailbox_send_from_any_thread(job->pw->worker, &m->message);
    return ERR_OK;
}

void proxy_warm_close(struct proxy_warm *job)
{
    struct warm_message *m = message_new(job);
    m->closes = true;
    mailbox_send_from_any_thread(job->pw->worker, &m->message);
}

void proxy_warm_cancel(struct proxy_warm *job)
{
    struct warm_message *m = message_new(job);
    m->cancels = true;
    mailbox_send_from_any_thread(job->pw->worker, &m->message);
}

void proxy_warm_read(const struct proxy_warm *job, struct proxy_warm_progress *ret_progress)
{
    const struct warm_published *p = &job->published;
    uint64_t ended_us = atomic_load(&p->ended_us);
    // Read before objects_excluded, so that a refused object that is excluded counts as both.
    uint64_t objects_refused = atomic_load(&p->objects_refused);
    bool has_begun_all = atomic_load(&job->pending) == 0; // read first: see on_told()
    *ret_progress = (struct proxy_warm_progress){
        .state = (enum proxy_warm_state)atomic_load(&p->state),
        .is_counted = atomic_load(&p->is_counted),
        .is_idle = has_begun_all && atomic_load(&p->is_idle),
        .objects = atomic_load(&p->objects),
        .bytes = atomic_load(&p->bytes),
        .objects_done = atomic_load(&p->objects_done),
        .bytes_done = atomic_load(&p->bytes_done),
        .objects_cached = atomic_load(&p->objects_cached),
        .objects_failed = atomic_load(&p->objects_failed),
        .objects_missing = atomic_load(&p->objects_missing),
        .objects_refused = objects_refused,
        .objects_excluded = atomic_load(&p->objects_excluded),
        .prefixes_failed = atomic_load(&p->prefixes_failed),
        .bytes_fetched = atomic_load(&p->bytes_fetched),
        .inflight = atomic_load(&p->inflight),
        .waits = (enum refusal)atomic_load(&p->waits),
        .elapsed_us = (ended_us != 0 ? ended_us : clock_monotonic_us()) - atomic_load(&p->began_us),
        .ended_us = ended_us,
        .failure_count = atomic_load(&p->failure_count),
        .reason_count = atomic_load(&p->reason_count)};
    for (unsigned i = 0; i < ret_progress->failure_count; i++) {
        ret_progress->failures[i] = p->failures[i];
    }
    for (unsigned i = 0; i < ret_progress->reason_count; i++) {
        ret_progress->reasons[i] =
            (struct proxy_warm_reason){p->reasons[i].first, atomic_load(&p->reasons[i].count)};
    }
}

// SPDX-License-Identifier: Apache-2.0
// The warm jobs of a running server, by number. The admin thread starts and reads them, and the
// main thread may end them too. Therefore a lock protects their table; it is held only for short
// accesses. A worker runs the job and publishes its progress (proxy/ops/warm.c).
//
// The table has room for JOBS_MAX jobs. A further one replaces the oldest that has ended.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/human.h"
#include "base/log.h"
#include "control/control_private.h"
#include "stats/stats.h"

#define JOBS_MAX 32u
#define CONCURRENCY_DEFAULT 64
#define CONCURRENCY_MAX 1024
#define URIS_MAX 8192u // most URIs in one call; ADMIN_BODY_MAX limits their length

struct job {
    unsigned id; // 0: the slot is free
    struct proxy_warm *warm;
    bool is_closed;      // no URIs may be added any more
    char what[128];      // the job's first URI, for display
    uint64_t items_hash; // of all items that were added
};

struct command_jobs {
    struct proxy *proxy;
    struct {
        pthread_mutex_t lock;
        struct job items[JOBS_MAX];
        unsigned last_id;
        bool is_ended;
    } guarded;
};

struct command_jobs *control_jobs_new(struct proxy *proxy)
{
    struct command_jobs *jobs = calloc(1, sizeof(*jobs));
    check(jobs != NULL);
    jobs->proxy = proxy;
    check(pthread_mutex_init(&jobs->guarded.lock, NULL) == 0);
    return jobs;
}

void control_jobs_cancel(struct command_jobs *jobs)
{
    if (jobs == NULL) {
        return;
    }
    pthread_mutex_lock(&jobs->guarded.lock);
    for (unsigned i = 0; i < JOBS_MAX && !jobs->guarded.is_ended; i++) {
        if (jobs->guarded.items[i].id != 0) {
            proxy_warm_cancel(jobs->guarded.items[i].warm);
        }
    }
    jobs->guarded.is_ended = true;
    pthread_mutex_unlock(&jobs->guarded.lock);
}

void control_jobs_free(struct command_jobs *jobs)
{
    if (jobs == NULL) {
        return;
    }
    for (unsigned i = 0; i < JOBS_MAX; i++) {
        proxy_warm_unref(jobs->guarded.items[i].warm);
    }
    check(pthread_mutex_destroy(&jobs->guarded.lock) == 0);
    free(jobs);
}

// --- the table -----------------------------------------------------------------------------------

// Returns true if the job has ended, or has done all its URIs and waits for more.
static bool job_is_over(const struct job *job)
{
    struct proxy_warm_progress p;
    proxy_warm_read(job->warm, &p);
    return p.state != PROXY_WARM_RUNS || p.is_idle;
}

static struct job *job_find_locked(struct command_jobs *jobs, uint64_t id)
{
    for (unsigned i = 0; i < JOBS_MAX; i++) {
        if (id != 0 && jobs->guarded.items[i].id == id) {
            return &jobs->guarded.items[i];
        }
    }
    return NULL;
}

// Frees the job's slot and number, and cancels the job if it still runs.
static void job_drop_locked(struct job *job)
{
    proxy_warm_cancel(job->warm);
    proxy_warm_unref(job->warm);
    *job = (struct job){0};
}

// Returns a slot for a new job; NULL if all jobs are running.
static struct job *job_slot_locked(struct command_jobs *jobs)
{
    struct job *oldest = NULL;
    for (unsigned i = 0; i < JOBS_MAX; i++) {
        struct job *job = &jobs->guarded.items[i];
        if (job->id == 0) {
            return job;
        }
        if (job_is_over(job) && (oldest == NULL || job->id < oldest->id)) {
            oldest = job;
        }
    }
    if (oldest != NULL) {
        job_drop_locked(oldest);
    }
    return oldest;
}

// --- the condition warm-failed -------------------------------------------------------------------

// Returns how many objects a job could not fetch or keep. An object that the origin does not have
// does not count, because the caller named it and the server is well. Nor does one that its rule
// does not store, because the same job would never succeed.
static uint64_t lacks(const struct proxy_warm_progress *p)
{
    return p->objects_failed - min_u64(p->objects_failed, p->objects_missing) + p->objects_refused -
           min_u64(p->objects_refused, p->objects_excluded);
}

static bool is_mended_locked(const struct command_jobs *jobs, const struct job *failed)
{
    for (unsigned i = 0; i < JOBS_MAX; i++) {
        const struct job *job = &jobs->guarded.items[i];
        struct proxy_warm_progress p;
        if (job->id > failed->id && job->items_hash == failed->items_hash) {
            proxy_warm_read(job->warm, &p);
            if (p.state == PROXY_WARM_DONE && lacks(&p) == 0) {
                return true;
            }
        }
    }
    return false;
}

bool control_warm_failed(struct control *control, unsigned window_s)
{
    struct command_jobs *jobs = control->jobs;
    uint64_t now_us = clock_monotonic_us();
    bool has_failed = false;
    pthread_mutex_lock(&jobs->guarded.lock);
    for (unsigned i = 0; i < JOBS_MAX && !has_failed; i++) {
        const struct job *job = &jobs->guarded.items[i];
        struct proxy_warm_progress p;
        if (job->id == 0) {
            continue;
        }
        proxy_warm_read(job->warm, &p);
        bool is_recent = p.ended_us == 0 || now_us - p.ended_us < window_s * 1000000ull;
        has_failed = lacks(&p) > 0 && is_recent && !is_mended_locked(jobs, job);
    }
    pthread_mutex_unlock(&jobs->guarded.lock);
    return has_failed;
}

// --- what callers read ---------------------------------------------------------------------------

static json_t *failures_json(const struct proxy_warm_progress *p)
{
    json_t *failures = json_array();
    for (unsigned i = 0; i < p->failure_count; i++) {
        check(json_array_append_new(failures, control_text(span_from_cstr(p->failures[i]))) == 0);
    }
    return failures;
}

static json_t *reasons_json(const struct proxy_warm_progress *p)
{
    json_t *reasons = json_array();
    for (unsigned i = 0; i < p->reason_count; i++) {
        const struct proxy_warm_reason *reason = &p->reasons[i];
        json_t *row = json_pack("{s:I, s:o}", "count", (json_int_t)reason->count, "first",
                                control_text(span_from_cstr(reason->first)));
        check(row != NULL && json_array_append_new(reasons, row) == 0);
    }
    return reasons;
}

static json_t *job_json(const struct job *job)
{
    static const char *const states[] = {"running", "done", "cancelled"};
    struct proxy_warm_progress p;
    proxy_warm_read(job->warm, &p);
    double elapsed_s = (double)p.elapsed_us / 1e6;
    double rate = elapsed_s > 0 ? (double)p.bytes_fetched / elapsed_s : 0;
    uint64_t left = p.bytes - min_u64(p.bytes, p.bytes_done);
    const struct refusal_text *waits = p.waits != REFUSAL_none ? refusal_text(p.waits) : NULL;
    json_t *json = json_pack(
        "{s:i, s:s, s:o, s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:s?, s:s?, "
        "s:f, s:f, s:o, s:o, s:o}",
        "id", (int)job->id, "kind", "warm", "what", control_text(span_from_cstr(job->what)),
        "state", states[p.state], "counted", p.is_counted, "objects", (json_int_t)p.objects,
        "objects_done", (json_int_t)p.objects_done, "objects_cached", (json_int_t)p.objects_cached,
        "objects_failed", (json_int_t)p.objects_failed, "objects_refused",
        (json_int_t)p.objects_refused, "prefixes_failed", (json_int_t)p.prefixes_failed, "bytes",
        (json_int_t)p.bytes, "bytes_done", (json_int_t)p.bytes_done, "bytes_fetched",
        (json_int_t)p.bytes_fetched, "inflight", (int)p.inflight, "waits",
        waits != NULL ? waits->word : NULL, "waits_text", waits != NULL ? waits->text : NULL,
        "elapsed_s", elapsed_s, "rate", rate, "eta_s",
        p.state == PROXY_WARM_RUNS && rate > 0 ? json_real((double)left / rate) : json_null(),
        "failures", failures_json(&p), "reasons", reasons_json(&p));
    check(json != NULL);
    return json;
}

static uint64_t call_id(const struct admin_call *call)
{
    uint64_t id = 0;
    return span_to_u64(admin_call_parameter(call, "id"), &id) ? id : 0;
}

void control_jobs(void *ctx, struct admin_call *call)
{
    struct command_jobs *jobs = ((struct control *)ctx)->jobs;
    json_t *all = json_array();
    pthread_mutex_lock(&jobs->guarded.lock);
    for (unsigned i = 0; i < JOBS_MAX; i++) {
        if (jobs->guarded.items[i].id != 0) {
            check(json_array_append_new(all, job_json(&jobs->guarded.items[i])) == 0);
        }
    }
    pthread_mutex_unlock(&jobs->guarded.lock);
    admin_call_answer(&call, 200, json_pack("{s:o}", "jobs", all));
}

// Answers with the job whose id is in the path. Cancels the job first if `cancels` is true.
static void answer_job(struct command_jobs *jobs, struct admin_call *call, bool cancels)
{
    json_t *json = NULL;
    pthread_mutex_lock(&jobs->guarded.lock);
    struct job *job = job_find_locked(jobs, call_id(call));
    if (job != NULL && cancels) {
        job->is_closed = true;
        proxy_warm_cancel(job->warm);
    }
    if (job != NULL) {
        json = job_json(job);
    }
    pthread_mutex_unlock(&jobs->guarded.lock);
    if (json != NULL) {
        admin_call_answer(&call, 200, json);
    } else {
        admin_call_refuse(&call, 404, "there is no such job");
    }
}

void control_job(void *ctx, struct admin_call *call)
{
    answer_job(((struct control *)ctx)->jobs, call, false);
}

void control_job_cancel(void *ctx, struct admin_call *call)
{
    answer_job(((struct control *)ctx)->jobs, call, true);
}

// --- warm ----------------------------------------------------------------------------------------

// Reads "URI", or {"uri": URI, "range": "FIRST-LAST"} without further members. Returns false if it
// has answered the call.
static bool item_take(struct admin_call **call, const json_t *from,
                      struct proxy_warm_item *ret_item)
{
    const json_t *uri_json = json_is_object(from) ? json_object_get(from, "uri") : from;
    const json_t *range = json_is_object(from) ? json_object_get(from, "range") : NULL;
    struct span text = {json_string_value(uri_json), json_string_length(uri_json)};
    struct span range_text = {json_string_value(range), json_string_length(range)};
    struct s3_uri uri;
    if (json_is_object(from) && json_object_size(from) != 1u + (range != NULL)) {
        admin_call_refuse(call, 400, "of uris each is a URI, or an object of uri and range");
        return false;
    }
    if (!control_take_uri(call, text, &uri)) {
        return false;
    }
    *ret_item = (struct proxy_warm_item){
        .bucket = uri.bucket, .key = uri.key, .is_prefix = uri.is_prefix, .end_byte = UINT64_MAX};
    if (range == NULL) {
        return true;
    }
    if (uri.is_prefix ||
        !s3_uri_parse_range(range_text, &ret_item->first_byte, &ret_item->end_byte)) {
        admin_call_refuse(call, 400, "range is FIRST-LAST or FIRST-, of an object, in bytes");
        return false;
    }
    return true;
}

static struct proxy_warm_item *items_take(struct admin_call **call, const json_t *uris)
{
    size_t count = json_array_size(uris);
    if (!json_is_array(uris) || count > URIS_MAX) {
        admin_call_refuse(call, 400, "uris is a list of at most 8192");
        return NULL;
    }
    struct proxy_warm_item *items = calloc(count + 1, sizeof(*items));
    check(items != NULL);
    for (size_t i = 0; i < count; i++) {
        if (!item_take(call, json_array_get(uris, i), &items[i])) {
            free(items);
            return NULL;
        }
    }
    return items;
}

static uint64_t items_hash(const struct proxy_warm_item *items, unsigned count, uint64_t seed)
{
    for (unsigned i = 0; i < count; i++) {
        const struct proxy_warm_item *item = &items[i];
        uint64_t rest[] = {item->is_prefix, item->first_byte, item->end_byte};
        seed = hash64(item->bucket.ptr, item->bucket.len, seed);
        seed = hash64(item->key.ptr, item->key.len, seed);
        seed = hash64(rest, sizeof(rest), seed);
    }
    return seed;
}

static bool number_take(struct admin_call **call, const char *name, json_int_t least,
                        json_int_t most, json_int_t *ret_value)
{
    const json_t *member = admin_call_member(*call, name);
    if (member == NULL) {
        return true;
    }
    json_int_t value = json_integer_value(member);
    if (!json_is_integer(member) || value < least || value > most) {
        char why[128];
        (void)snprintf(why, sizeof(why), "%s is a number from %lld to %lld", name, (long long)least,
                       (long long)most);
        admin_call_refuse(call, 400, why);
        return false;
    }
    *ret_value = value;
    return true;
}

static bool flag_take(struct admin_call **call, const char *name, bool *ret_is)
{
    const json_t *member = admin_call_member(*call, name);
    if (member != NULL && !json_is_boolean(member)) {
        char why[64];
        (void)snprintf(why, sizeof(why), "%s is true or false", name);
        admin_call_refuse(call, 400, why);
        return false;
    }
    *ret_is = json_is_true(member);
    return true;
}

// Returns the job with this number, or a new one if `id` is 0. Returns NULL, and the reason in
// *ret_why, on failure.
static struct job *job_get_locked(struct command_jobs *jobs, const struct admin_call *call,
                                  uint64_t id, const struct proxy_warm_options *options,
                                  const char **ret_why)
{
    if (id != 0) {
        struct job *known = job_find_locked(jobs, id);
        *ret_why = known != NULL ? "the job accepts no more URIs: it was closed or cancelled"
                                 : "there is no such job";
        return known != NULL && !known->is_closed && !jobs->guarded.is_ended ? known : NULL;
    }
    *ret_why = "the server is draining";
    struct job *job = jobs->guarded.is_ended ? NULL : job_slot_locked(jobs);
    if (job == NULL) {
        *ret_why = jobs->guarded.is_ended ? *ret_why : "too many jobs are running";
        return NULL;
    }
    job->id = ++jobs->guarded.last_id;
    job->warm = proxy_warm_new(jobs->proxy, options);
    const json_t *first = json_array_get(admin_call_member(call, "uris"), 0);
    const json_t *uri = json_is_object(first) ? json_object_get(first, "uri") : first;
    const char *text = json_string_value(uri);
    (void)snprintf(job->what, sizeof(job->what), "%s", text != NULL ? text : "");
    return job;
}

static const char *names_refused(char *ret_text, size_t size)
{
    char names[HUMAN_BYTES_MAX], most[HUMAN_BYTES_MAX];
    (void)snprintf(ret_text, size,
                   "the names that warm jobs have yet to do take %s of %s (limits.max_buffer) or "
                   "are %u of one "
                   "job: add more when some are done, or name a prefix",
                   human_bytes((double)stats_sum(COUNTER_warm_names), names),
                   human_bytes((double)proxy_warm_room_bytes(), most), PROXY_WARM_PENDING_MAX);
    return ret_text;
}

void control_warm(void *ctx, struct admin_call *call)
{
    struct control *control = ctx;
    struct command_jobs *jobs = control->jobs;
    struct store_summary summary;
    const json_t *uris = admin_call_member(call, "uris");
    json_int_t id = 0, concurrency = CONCURRENCY_DEFAULT, rate = 0;
    bool has_more = false, allows_empty = false;
    if (!number_take(&call, "job", 1, UINT32_MAX, &id) ||
        !number_take(&call, "concurrency", 1, CONCURRENCY_MAX, &concurrency) ||
        !number_take(&call, "rate", 0, INT64_MAX / 1000000, &rate) ||
        !flag_take(&call, "more", &has_more) || !flag_take(&call, "allow_empty", &allows_empty)) {
        return;
    }
    store_summarize(control->store, &summary);
    if (summary.degraded && summary.refusal != REFUSAL_none &&
        id == 0) { // a job that has begun is not refused: it waits until the cache stores again
        char why[256];
        (void)snprintf(why, sizeof(why), "%s: nothing would be stored",
                       refusal_text(summary.refusal)->text);
        admin_call_refuse(&call, 503, why);
        return;
    }
    struct proxy_warm_item *items = items_take(&call, uris);
    if (items == NULL) {
        return;
    }
    struct proxy_warm_options options = {.concurrency = (unsigned)concurrency,
                                         .bytes_per_s = (uint64_t)rate,
                                         .allows_empty = allows_empty};
    const char *why = NULL;
    char room[256];
    unsigned count = (unsigned)json_array_size(uris);
    unsigned status = 503;
    json_t *json = NULL;
    pthread_mutex_lock(&jobs->guarded.lock);
    struct job *job = NULL;
    if (id == 0 && !proxy_warm_has_room(jobs->proxy, NULL, items, count)) {
        status = ADMIN_STATUS_BUSY;
        why = names_refused(room, sizeof(room));
    } else {
        job = job_get_locked(jobs, call, (uint64_t)id, &options, &why);
    }
    if (job != NULL && proxy_warm_add(job->warm, items, count) != ERR_OK) {
        status = ADMIN_STATUS_BUSY;
        why = names_refused(room, sizeof(room));
        // Other calls have used up the room. Drop a new job, because its caller gets no number and
        // could never close it.
        if (id == 0) {
            job_drop_locked(job);
        }
    } else if (job != NULL) {
        job->items_hash = items_hash(items, count, job->items_hash);
        if (!has_more) {
            job->is_closed = true;
            proxy_warm_close(job->warm);
        }
        json = job_json(job);
    }
    pthread_mutex_unlock(&jobs->guarded.lock);
    free(items);
    if (json != NULL) {
        admin_call_answer(&call, 200, json);
    } else {
        admin_call_refuse(&call, status, why);
    }
}

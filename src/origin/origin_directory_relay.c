// SPDX-License-Identifier: Apache-2.0
// Answers the requests of a `dir:` origin that are not reads of objects: listings, HeadBucket,
// ListBuckets, GetBucketLocation. All other requests get S3's error NotImplemented, because a wrong
// answer would be worse.
//
// The steps of a relay: a job on the pool makes the status and the body; then the worker calls
// on_head -> on_body -> on_end. The job owns the relay until it has run. So a cancelled relay ends
// only when its job is done.
#include <stdlib.h>
#include <string.h>

#include "base/chunk.h"
#include "base/clock.h"
#include "origin/origin_directory_private.h"
#include "stats/stats.h"

#define BODY_MAX (16u << 20)
#define JOB_ARENA_MAX (32u << 20)

struct origin_directory_relay {
    struct origin_call call; // Must be the first member.
    struct blocking_job job;
    bool job_running, job_done, paused, cancelled, head_done;
    enum err start_err;
    int root_fd;
    struct origin_directory_scans *scans;
    enum err answer;               // The result. ERR_OK: `body` is the body of a 200.
    struct s3_error_detail detail; // Details of the error, if `answer` is one.
    struct buf body;
    struct task task;
    uint64_t started_us;
};

static struct origin_directory_relay *as_origin_directory_relay(struct origin_call *call)
{
    return container_of(call, struct origin_directory_relay, call);
}

// --- The answer, on a pool thread ----------------------------------------------------------------

static void answer_listing(struct origin_directory_relay *d, struct arena *arena)
{
    struct s3_listing_query query;
    struct s3_listing_page page;
    memset(&query, 0, sizeof(query));
    memset(&page, 0, sizeof(page));
    d->answer = s3_listing_parse(arena, d->call.r->request, &query, &d->detail);
    if (d->answer == ERR_OK) {
        d->answer = origin_directory_scan_page(d->scans, d->call.r->bucket, &query, arena, &page);
    }
    if (d->answer == ERR_OK) {
        s3_listing_render(&query, &page, &d->body);
    }
}

static void answer_buckets(struct origin_directory_relay *d, struct arena *arena)
{
    struct s3_bucket_entry *buckets = NULL;
    size_t count = 0;
    d->answer = origin_directory_buckets(d->root_fd, arena, &buckets, &count);
    if (d->answer == ERR_OK) {
        s3_buckets_render(buckets, count, &d->body);
    }
}

static void on_job_work(struct blocking_job *job)
{
    struct origin_directory_relay *d = container_of(job, struct origin_directory_relay, job);
    struct arena *arena = arena_new_counted(JOB_ARENA_MAX, BUDGET_FOLDERS);
    switch (d->call.r->request->operation) {
    case S3_ListObjects:
    case S3_ListObjectsV2:
        answer_listing(d, arena);
        break;
    case S3_ListBuckets:
        answer_buckets(d, arena);
        break;
    case S3_HeadBucket:
        d->answer = origin_directory_bucket(d->root_fd, d->call.r->bucket);
        break;
    case S3_GetBucketLocation:
        d->answer = origin_directory_bucket(d->root_fd, d->call.r->bucket);
        if (d->answer == ERR_OK) {
            s3_location_render((struct span){NULL, 0}, &d->body);
        }
        break;
    default:
        d->answer = ERR_NOT_IMPLEMENTED;
    }
    if (d->answer == ERR_OK && !buf_ok(&d->body)) {
        d->answer = ERR_NO_MEMORY;
    }
    arena_free(arena);
}

// --- Delivery ------------------------------------------------------------------------------------

static void relay_free(void *ptr)
{
    struct origin_directory_relay *d = ptr;
    buf_done(&d->body);
    free(d);
}

static void relay_end(struct origin_directory_relay *d, enum err err)
{
    struct origin_relay *r = d->call.r;
    check(!d->job_running);
    worker_task_cancel(&d->task);
    if (err != ERR_CANCELLED) {
        stats_count_origin(s3_operation_name(r->request->operation),
                           err == ERR_OK ? r->status : error_row(err)->status);
        stats_observe_us(HISTOGRAM_origin_request, clock_monotonic_us() - d->started_us);
        origin_count_error(err);
    }
    origin_call_end(&d->call, err);
}

// Fills in the head of the answer. An error becomes a status with an error document, as S3 sends
// it.
static enum err prepare_head(struct origin_directory_relay *d)
{
    struct origin_relay *r = d->call.r;
    bool is_head = span_equal_cstr(r->method, "HEAD");
    r->status = d->answer == ERR_OK ? 200 : error_row(d->answer)->status;
    if (d->answer != ERR_OK) {
        struct s3_error_detail detail = d->detail;
        detail.resource = r->request->raw_path;
        if (d->answer == ERR_NOT_IMPLEMENTED) {
            detail.message = SPAN("The origin is a directory, which is only read from: GetObject, "
                                  "HeadObject and listings. Write to the directory itself");
        }
        if (d->answer == ERR_NO_SUCH_BUCKET) {
            detail.bucket_name = r->request->bucket;
        }
        d->body.len = 0;
        r->error_code = span_from_cstr(error_row(d->answer)->s3_code);
        s3_error_render(d->answer, &detail, &d->body);
    }
    r->has_length = true;
    r->length = d->body.len;
    if (is_head) {
        d->body.len = 0;
    }
    bool ok = buf_ok(&d->body);
    if (r->length > 0) {
        ok = ok && headers_add(&r->headers_answered, r->arena, SPAN("Content-Type"),
                               SPAN("application/xml"));
    }
    if (r->request->operation == S3_HeadBucket && d->answer == ERR_OK) {
        ok = ok && headers_add(&r->headers_answered, r->arena, SPAN("x-amz-bucket-region"),
                               SPAN("us-east-1"));
    }
    return ok ? ERR_OK : ERR_NO_MEMORY;
}

static void relay_go(struct origin_directory_relay *d)
{
    enum err err = d->cancelled ? ERR_CANCELLED : d->start_err;
    if (d->job_running) {
        return;
    }
    if (err == ERR_OK && !d->job_done) {
        d->job_running = true;
        d->job.lane = BLOCKING_ORIGIN;
        blocking_pool_run(d->call.ow->w, &d->job);
        return;
    }
    if (err == ERR_OK && !d->head_done) {
        d->head_done = true;
        err = prepare_head(d);
        if (err == ERR_OK) {
            err = d->call.r->on_head(d->call.r);
        }
    }
    if (err == ERR_OK && d->paused && !d->cancelled) {
        return;
    }
    if (err == ERR_OK && !d->cancelled && d->body.len > 0) {
        stats_add(COUNTER_origin_received_bytes, d->body.len);
        err = d->call.r->on_body(d->call.r, buf_span(&d->body));
    }
    relay_end(d, d->cancelled ? ERR_CANCELLED : err);
}

static void on_job_done(struct blocking_job *job)
{
    struct origin_directory_relay *d = container_of(job, struct origin_directory_relay, job);
    d->job_running = false;
    d->job_done = true;
    if (job->err != ERR_OK && d->start_err == ERR_OK) {
        d->start_err = job->err; // the pool's queue is full
    }
    relay_go(d);
}

static void on_task(struct task *task)
{
    relay_go(container_of(task, struct origin_directory_relay, task));
}

static void on_ready(struct origin_call *call)
{
    relay_go(as_origin_directory_relay(call));
}

static void on_refused(struct origin_call *call, enum err err)
{
    relay_end(as_origin_directory_relay(call), err);
}

// --- Driver calls --------------------------------------------------------------------------------

static void relay_pause(struct origin_call *call)
{
    as_origin_directory_relay(call)->paused = true;
}

static void relay_resume(struct origin_call *call)
{
    struct origin_directory_relay *d = as_origin_directory_relay(call);
    if (d->paused) {
        d->paused = false;
        if (d->job_done) {
            worker_defer(d->call.ow->w, &d->task);
        }
    }
}

static void relay_resume_upload(struct origin_call *call)
{
    (void)call; // this driver reads no request bodies
}

static void relay_cancel(struct origin_call *call)
{
    struct origin_directory_relay *d = as_origin_directory_relay(call);
    d->cancelled = true;
    origin_slot_stop_waiting(call);
    if (!d->job_running) {
        worker_defer(d->call.ow->w, &d->task);
    }
}

void origin_directory_relay_start(struct origin_worker *ow, struct origin_relay *r)
{
    static const struct origin_call_ops ops = {.ready = on_ready,
                                               .refused = on_refused,
                                               .pause = relay_pause,
                                               .resume = relay_resume,
                                               .resume_upload = relay_resume_upload,
                                               .cancel = relay_cancel,
                                               .free = relay_free};
    struct origin_directory *directory = ow->origin->driver_state;
    struct origin_directory_relay *d = calloc(1, sizeof(*d));
    check(d != NULL);
    origin_call_init(&d->call, &ops, ow, NULL, r);
    d->root_fd = directory->root_fd;
    d->scans = directory->scans;
    d->started_us = clock_monotonic_us();
    buf_init_counted(&d->body, BODY_MAX, BUDGET_FOLDERS);
    worker_task_init(&d->task, on_task);
    list_node_init(&d->job.node);
    d->job.work = on_job_work;
    d->job.done = on_job_done;
    bool now = false;
    d->start_err = origin_slot_enter(&d->call, &now);
    if (now || d->start_err != ERR_OK) {
        worker_defer(ow->w, &d->task);
    }
}

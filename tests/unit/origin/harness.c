// SPDX-License-Identifier: Apache-2.0
#include "harness.h"

#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test.h"

struct origin_options harness_options(const char *endpoint)
{
    return (struct origin_options){.endpoint = endpoint,
                                   .connections = 8,
                                   .keepalive_ms = 4000,
                                   .connect_timeout_ms = 3000,
                                   .first_byte_timeout_ms = 10000,
                                   .idle_timeout_ms = 10000,
                                   .retries = 3,
                                   .retry_budget_percent = 10};
}

enum err harness_init(struct harness *h, unsigned workers, enum disk_engine engine,
                      const struct origin_options *options)
{
    buf_init(&h->why, 65536);
    struct loop_options loop_options = {.worker_count = workers, .engine = engine};
    cr_assert_eq(loop_new(&loop_options, &h->loop, &h->why), ERR_OK);
    enum err err = origin_new(options, h->loop, &h->origin, &h->why);
    if (err != ERR_OK) {
        h->origin = NULL;
        loop_free(h->loop);
        h->loop = NULL;
        return err;
    }
    cr_assert_eq(loop_start(h->loop), ERR_OK);
    return ERR_OK;
}

void harness_init_directory(struct harness *h, unsigned workers, enum disk_engine engine)
{
    char endpoint[300];
    snprintf(endpoint, sizeof(endpoint), "dir:%s", h->root);
    struct origin_options options = harness_options(endpoint);
    cr_assert_eq(harness_init(h, workers, engine, &options), ERR_OK);
}

void harness_done(struct harness *h)
{
    if (h->loop != NULL) {
        loop_stop(h->loop);
        origin_free(h->origin);
        loop_free(h->loop);
    }
    buf_done(&h->why);
    harness_remove_root(h);
}

void harness_make_root(struct harness *h)
{
    const char *base = getenv("TMPDIR");
    snprintf(h->root, sizeof(h->root), "%s/origin-XXXXXX", base != NULL ? base : "/tmp");
    cr_assert_not_null(mkdtemp(h->root));
}

static int remove_one(const char *path, const struct stat *stat, int kind, struct FTW *ftw)
{
    (void)stat;
    (void)kind;
    (void)ftw;
    return remove(path);
}

void harness_remove_root(struct harness *h)
{
    if (h->root[0] != '\0') {
        (void)nftw(h->root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
        h->root[0] = '\0';
    }
}

void harness_path(const struct harness *h, const char *path, char *ret_path, size_t size)
{
    cr_assert((size_t)snprintf(ret_path, size, "%s/%s", h->root, path) < size);
}

void harness_mkdir(const struct harness *h, const char *path)
{
    char full[8192];
    harness_path(h, path, full, sizeof(full));
    for (char *at = full + strlen(h->root) + 1; *at != '\0'; at++) {
        if (*at == '/') {
            *at = '\0';
            (void)mkdir(full, 0755);
            *at = '/';
        }
    }
    (void)mkdir(full, 0755);
}

void harness_write(const struct harness *h, const char *path, const void *bytes, size_t len)
{
    char full[8192], folder[8192];
    snprintf(folder, sizeof(folder), "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash != NULL) {
        *slash = '\0';
        harness_mkdir(h, folder);
    }
    harness_path(h, path, full, sizeof(full));
    FILE *file = fopen(full, "w");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, len, file), len);
    cr_assert_eq(fclose(file), 0);
}

// --- Waiting -------------------------------------------------------------------------------------

void harness_wait_init(struct harness_wait *wait)
{
    pthread_mutex_init(&wait->mutex, NULL);
    pthread_cond_init(&wait->changed, NULL);
    wait->done = false;
}

void harness_signal(struct harness_wait *wait)
{
    pthread_mutex_lock(&wait->mutex);
    wait->done = true;
    pthread_cond_signal(&wait->changed);
    pthread_mutex_unlock(&wait->mutex);
}

void harness_wait_for(struct harness_wait *wait)
{
    pthread_mutex_lock(&wait->mutex);
    while (!wait->done) {
        pthread_cond_wait(&wait->changed, &wait->mutex);
    }
    pthread_mutex_unlock(&wait->mutex);
    pthread_cond_destroy(&wait->changed);
    pthread_mutex_destroy(&wait->mutex);
}

struct call_message {
    struct message message;
    void (*fn)(struct worker *w, void *ctx);
    void *ctx;
};

static void on_call(struct worker *to, struct message *message)
{
    struct call_message *call = container_of(message, struct call_message, message);
    call->fn(to, call->ctx);
    free(call);
}

void harness_on_worker(struct harness *h, unsigned worker, void (*fn)(struct worker *w, void *ctx),
                       void *ctx)
{
    struct call_message *call = calloc(1, sizeof(*call));
    call->message.deliver = on_call;
    call->fn = fn;
    call->ctx = ctx;
    mailbox_send_from_any_thread(loop_worker(h->loop, worker), &call->message);
}

// --- A fetch -------------------------------------------------------------------------------------

struct fetch_test {
    struct origin_fetch f; // first
    struct harness *h;
    struct fetch_run *run;
    struct harness_wait wait;
    struct timer timer;
};

static void copy_span(char *to, size_t size, struct span s)
{
    snprintf(to, size, "%.*s", (int)s.len, s.ptr != NULL ? s.ptr : "");
}

static void take_answer(struct fetch_test *t)
{
    struct fetch_run *run = t->run;
    struct span type = {NULL, 0};
    run->status = t->f.status;
    run->size_bytes = t->f.size_bytes;
    run->body_first = t->f.body_first;
    run->body_len = t->f.body_len;
    run->storable = t->f.forbids == ORIGIN_FORBIDS_NOTHING;
    run->too_young = t->f.too_young;
    run->weak_or_no_etag = t->f.weak_or_no_etag;
    run->last_modified = t->f.last_modified;
    run->header_count = t->f.headers.count;
    run->checksum_count = t->f.checksums.count;
    copy_span(run->etag, sizeof(run->etag), t->f.etag);
    copy_span(run->version_id, sizeof(run->version_id), t->f.version_id);
    copy_span(run->bucket_region, sizeof(run->bucket_region), t->f.bucket_region);
    copy_span(run->error_answer, sizeof(run->error_answer), t->f.error_answer);
    (void)headers_get(&t->f.headers, SPAN("Content-Type"), &type);
    copy_span(run->content_type, sizeof(run->content_type), type);
}

static enum err on_fetch_head(struct origin_fetch *f)
{
    struct fetch_test *t = (struct fetch_test *)f;
    t->run->heads++;
    take_answer(t);
    if (t->run->on_head_hook != NULL) {
        t->run->on_head_hook(t->run);
    }
    return t->run->head_answer;
}

static enum err on_fetch_body(struct origin_fetch *f, struct span data)
{
    struct fetch_test *t = (struct fetch_test *)f;
    cr_assert_eq(t->run->heads, 1);
    t->run->pieces++;
    buf_append_span(&t->run->body, data);
    if (t->run->on_body_hook != NULL) {
        t->run->on_body_hook(t->run);
    }
    if (t->run->cancel_at_piece == t->run->pieces) {
        origin_fetch_cancel(f);
    } else if (t->run->pause_every_piece) {
        origin_fetch_pause(f);
        timer_start(&t->timer, 1);
    }
    return ERR_OK;
}

static void on_fetch_timer(struct timer *timer)
{
    struct fetch_test *t = container_of(timer, struct fetch_test, timer);
    origin_fetch_resume(&t->f);
}

static void on_fetch_end(struct origin_fetch *f, enum err err)
{
    struct fetch_test *t = (struct fetch_test *)f;
    t->run->err = err;
    t->run->ends++;
    if (t->run->heads == 0) {
        take_answer(t);
    }
    timer_done(&t->timer);
    harness_signal(&t->wait);
}

static void start_fetch(struct worker *w, void *ctx)
{
    struct fetch_test *t = ctx;
    timer_init(w, &t->timer, on_fetch_timer);
    origin_fetch_start(w, t->h->origin, &t->f);
    cr_assert_eq(t->run->ends, 0);
    if (t->run->cancel_at_once) {
        origin_fetch_cancel(&t->f);
        origin_fetch_cancel(&t->f);
        cr_assert_eq(t->run->ends, 0);
    }
}

void fetch_run(struct harness *h, unsigned worker, struct fetch_run *run)
{
    struct fetch_test t = {.h = h, .run = run};
    buf_init(&run->body, 64u << 20);
    t.f.kind = run->head ? ORIGIN_HEAD : run->has_range ? ORIGIN_GET_RANGE : ORIGIN_GET_WHOLE;
    t.f.get_decides = run->get_decides;
    t.f.is_bound = run->is_bound;
    t.f.has_stale = run->has_stale;
    t.f.first = run->first;
    t.f.last = run->last;
    t.f.wants_checksums = run->ask_checksums ? ORIGIN_CHECKSUMS_TOO : ORIGIN_CHECKSUMS_NONE;
    t.f.credentials = run->credentials;
    t.f.bucket = span_from_cstr(run->bucket != NULL ? run->bucket : "bkt");
    t.f.key = span_from_cstr(run->key);
    t.f.if_match = span_from_cstr(run->if_match);
    t.f.if_none_match = span_from_cstr(run->if_none_match);
    t.f.on_head = on_fetch_head;
    t.f.on_body = on_fetch_body;
    t.f.on_end = on_fetch_end;
    harness_wait_init(&t.wait);
    harness_on_worker(h, worker, start_fetch, &t);
    harness_wait_for(&t.wait);
    cr_assert_eq(run->ends, 1);
}

void fetch_run_done(struct fetch_run *run)
{
    buf_done(&run->body);
}

// --- A relay -------------------------------------------------------------------------------------

struct relay_test {
    struct origin_relay r; // first
    struct harness *h;
    struct relay_run *run;
    struct harness_wait wait;
    struct timer timer;
    struct s3_request request;
    struct headers headers;
    struct arena *arena;
    uint64_t uploaded;
    bool upload_paused, is_paused, is_cancelled;
};

static void relay_test_pause(struct relay_test *t)
{
    t->is_paused = true;
    origin_relay_pause(&t->r);
    timer_start(&t->timer, 1);
}

static enum err on_relay_head(struct origin_relay *r)
{
    struct relay_test *t = (struct relay_test *)r;
    t->run->heads++;
    t->run->status = r->status;
    t->run->has_length = r->has_length;
    t->run->names_part = r->part_etag.len > 0;
    t->run->length = r->length;
    for (unsigned i = 0; i < r->headers_answered.count; i++) {
        const struct header *header = &r->headers_answered.items[i];
        buf_printf(&t->run->answer_headers, "%.*s: %.*s\n", (int)header->name.len, header->name.ptr,
                   (int)header->value.len, header->value.ptr);
    }
    if (t->run->pause_at_head) {
        relay_test_pause(t);
    }
    if (t->run->cancel_at_head) {
        t->is_cancelled = true;
        origin_relay_cancel(r);
    }
    return ERR_OK;
}

static enum err on_relay_body(struct origin_relay *r, struct span data)
{
    struct relay_test *t = (struct relay_test *)r;
    cr_assert(!t->is_paused && !t->is_cancelled);
    buf_append_span(&t->run->answer, data);
    if (t->run->pause_every_piece) {
        relay_test_pause(t);
    }
    return ERR_OK;
}

static enum err on_relay_upload(struct origin_relay *r, char *buf, size_t max, size_t *ret_len)
{
    struct relay_test *t = (struct relay_test *)r;
    t->run->uploads++;
    if (t->run->pause_upload && !t->upload_paused) {
        t->upload_paused = true;
        timer_start(&t->timer, 1);
        return ERR_AGAIN;
    }
    t->upload_paused = false;
    uint64_t len = min_u64(max, t->r.body_length - t->uploaded);
    len = min_u64(len, 1000);
    memcpy(buf, t->run->upload + t->uploaded, len);
    t->uploaded += len;
    *ret_len = len;
    return ERR_OK;
}

static void on_relay_timer(struct timer *timer)
{
    struct relay_test *t = container_of(timer, struct relay_test, timer);
    t->is_paused = false;
    origin_relay_resume(&t->r);
    if (t->upload_paused) {
        origin_relay_resume_upload(&t->r);
    }
    if (t->run->cancel_on_resume) {
        t->is_cancelled = true;
        origin_relay_cancel(&t->r);
    }
}

static void on_relay_end(struct origin_relay *r, enum err err)
{
    struct relay_test *t = (struct relay_test *)r;
    t->run->err = err;
    t->run->ends++;
    timer_done(&t->timer);
    harness_signal(&t->wait);
}

static void start_relay(struct worker *w, void *ctx)
{
    struct relay_test *t = ctx;
    timer_init(w, &t->timer, on_relay_timer);
    origin_relay_start(w, t->h->origin, &t->r);
    cr_assert_eq(t->run->ends, 0);
}

void relay_run(struct harness *h, unsigned worker, struct relay_run *run)
{
    struct relay_test t = {.h = h, .run = run};
    buf_init(&run->answer, 64u << 20);
    buf_init(&run->answer_headers, 65536);
    t.arena = arena_new(1 << 20);
    struct span host = {NULL, 0};
    for (unsigned i = 0; i < ARRAY_LEN(run->headers) && run->headers[i] != NULL; i++) {
        struct span line = span_from_cstr(run->headers[i]);
        size_t colon = span_find(line, ':');
        cr_assert(
            headers_add(&t.headers, t.arena, (struct span){line.ptr, colon},
                        span_trim((struct span){line.ptr + colon + 1, line.len - colon - 1})));
    }
    if (!headers_get(&t.headers, SPAN("Host"), &host)) {
        host = SPAN("127.0.0.1:9000");
        cr_assert(headers_add(&t.headers, t.arena, SPAN("Host"), host));
    }
    struct s3_domains domains = {NULL, 0};
    cr_assert_eq(s3_request_parse(t.arena, span_from_cstr(run->method), host,
                                  span_from_cstr(run->target), &t.headers, &domains, &t.request),
                 ERR_OK);
    t.r.request = &t.request;
    t.r.method = t.request.method;
    t.r.bucket = run->bucket != NULL ? span_from_cstr(run->bucket) : t.request.bucket;
    t.r.headers = &t.headers;
    t.r.body = run->body;
    t.r.body_length = run->upload == NULL   ? 0
                      : run->upload_len > 0 ? run->upload_len
                                            : strlen(run->upload);
    t.r.payload_hash = span_from_cstr(run->payload_hash);
    t.r.on_upload = on_relay_upload;
    t.r.on_head = on_relay_head;
    t.r.on_body = on_relay_body;
    t.r.on_end = on_relay_end;
    harness_wait_init(&t.wait);
    harness_on_worker(h, worker, start_relay, &t);
    harness_wait_for(&t.wait);
    cr_assert_eq(run->ends, 1);
    arena_free(t.arena);
}

void relay_run_done(struct relay_run *run)
{
    buf_done(&run->answer);
    buf_done(&run->answer_headers);
}

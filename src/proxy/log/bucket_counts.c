// SPDX-License-Identifier: Apache-2.0
// Counts, for each bucket, the requests by result and the reply bytes by source. Each worker has a
// table, which only that worker writes and any thread reads. Clients choose the names, so the table
// has a limit: the first BUCKETS_MAX buckets that were answered without an error have rows of their
// own. The others are counted together.
#include <stdlib.h>
#include <string.h>

#include "proxy/log/log.h"

#define BUCKETS_MAX 64u // rows of named buckets; the metrics have a label value for each
#define RESULTS (RESULT_BYPASS + 1u)
#define SOURCES 3u
#define NAME_MAX_BYTES 64u
#define OTHER "_other" // label of all other buckets; not a valid bucket name

struct row {
    atomic_bool is_there; // the row is in use; set after the name
    char name[NAME_MAX_BYTES];
    atomic_ulong results[RESULTS], bytes[SOURCES];
};

struct bucket_counts {
    struct row rows[BUCKETS_MAX + 1]; // the last row counts all other buckets
    unsigned count, latest;           // only the worker uses them
};

struct bucket_counts *bucket_counts_new(void)
{
    struct bucket_counts *counts = calloc(1, sizeof(*counts));
    check(counts != NULL);
    memcpy(counts->rows[BUCKETS_MAX].name, OTHER, sizeof(OTHER));
    return counts;
}

void bucket_counts_free(struct bucket_counts *counts)
{
    free(counts);
}

// Returns true if S3 allows the name. A metric label needs no escapes for such a name.
static bool is_name(struct span s)
{
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!is_letter && c != '-' && c != '.' && (c != '_' || i == 0)) {
            return false;
        }
    }
    return s.len > 0 && s.len < NAME_MAX_BYTES;
}

static bool is_named(const struct row *row, struct span name)
{
    check(row->name[NAME_MAX_BYTES - 1] == 0);
    return strlen(row->name) == name.len && memcmp(row->name, name.ptr, name.len) == 0;
}

static struct row *row_of(struct bucket_counts *counts, const struct request *r)
{
    check(counts->count <= BUCKETS_MAX);
    check(counts->latest <= counts->count);
    struct span name = r->s3.bucket;
    if (counts->count > 0 && is_named(&counts->rows[counts->latest], name)) {
        return &counts->rows[counts->latest];
    }
    for (unsigned i = 0; i < counts->count; i++) {
        if (is_named(&counts->rows[i], name)) {
            counts->latest = i;
            return &counts->rows[i];
        }
    }
    if (counts->count == BUCKETS_MAX || r->status == 0 || r->status >= 400 || !is_name(name)) {
        atomic_store_explicit(&counts->rows[BUCKETS_MAX].is_there, true, memory_order_relaxed);
        return &counts->rows[BUCKETS_MAX];
    }
    struct row *row = &counts->rows[counts->count++];
    check(!atomic_load_explicit(&row->is_there, memory_order_relaxed));
    memcpy(row->name, name.ptr, name.len); // the rest of row->name is zero
    atomic_store_explicit(&row->is_there, true, memory_order_release);
    return row;
}

static void add(atomic_ulong *slot, uint64_t n)
{
    atomic_store_explicit(slot, atomic_load_explicit(slot, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

void bucket_counts_note(struct bucket_counts *counts, const struct request *r)
{
    if (r->s3.bucket.len == 0) {
        return; // the request is to the service, not to a bucket
    }
    struct row *row = row_of(counts, r);
    check((unsigned)r->result < RESULTS);
    add(&row->results[r->result], 1);
    add(&row->bytes[0], r->bytes_memory);
    add(&row->bytes[1], r->bytes_disk);
    add(&row->bytes[2], r->bytes_origin);
}

// --- sums over all workers -----------------------------------------------------------------------

struct sum {
    const char *name;
    uint64_t results[RESULTS], bytes[SOURCES];
};

struct sums {
    struct sum rows[BUCKETS_MAX + 1]; // the last one counts all other buckets
    unsigned count;
};

static struct sum *sum_of(struct sums *sums, const char *name)
{
    check(sums->count <= BUCKETS_MAX);
    for (unsigned i = 0; i < sums->count; i++) {
        if (strcmp(sums->rows[i].name, name) == 0) {
            return &sums->rows[i];
        }
    }
    if (sums->count == BUCKETS_MAX || strcmp(name, OTHER) == 0) {
        sums->rows[BUCKETS_MAX].name = OTHER;
        return &sums->rows[BUCKETS_MAX];
    }
    sums->rows[sums->count].name = name;
    return &sums->rows[sums->count++];
}

static int compare(const void *a, const void *b)
{
    const struct sum *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static struct sums *sums_new(const struct proxy *proxy)
{
    struct sums *sums = calloc(1, sizeof(*sums));
    check(sums != NULL);
    for (unsigned w = 0; w < proxy->worker_count; w++) {
        const struct bucket_counts *counts = proxy->workers[w].bucket_counts;
        for (unsigned i = 0; i <= BUCKETS_MAX; i++) {
            const struct row *row = &counts->rows[i];
            if (!atomic_load_explicit(&row->is_there, memory_order_acquire)) {
                continue;
            }
            struct sum *sum = sum_of(sums, row->name);
            for (unsigned k = 0; k < RESULTS; k++) {
                sum->results[k] += atomic_load_explicit(&row->results[k], memory_order_relaxed);
            }
            for (unsigned k = 0; k < SOURCES; k++) {
                sum->bytes[k] += atomic_load_explicit(&row->bytes[k], memory_order_relaxed);
            }
        }
    }
    qsort(sums->rows, sums->count, sizeof(sums->rows[0]), compare);
    check(sums->count <= BUCKETS_MAX + 1);
    if (sums->rows[BUCKETS_MAX].name != NULL) {
        sums->rows[sums->count++] = sums->rows[BUCKETS_MAX]; // the same row if all are used
    }
    return sums;
}

void proxy_buckets(const struct proxy *proxy, proxy_bucket_fn *on_bucket, void *ctx)
{
    struct sums *sums = sums_new(proxy);
    for (unsigned i = 0; i < sums->count; i++) {
        const struct sum *sum = &sums->rows[i];
        struct proxy_bucket_sum row = {.name = sum->name,
                                       .hits = sum->results[RESULT_HIT] +
                                               sum->results[RESULT_REVALIDATED] +
                                               sum->results[RESULT_STALE],
                                       .bypassed = sum->results[RESULT_BYPASS],
                                       .memory_bytes = sum->bytes[0],
                                       .disk_bytes = sum->bytes[1],
                                       .origin_bytes = sum->bytes[2]};
        for (unsigned k = 0; k < RESULTS; k++) {
            row.requests += sum->results[k];
        }
        on_bucket(ctx, &row);
    }
    free(sums);
}

void proxy_bucket_metrics(const struct proxy *proxy, struct buf *out)
{
    static const char *const sources[SOURCES] = {"memory", "disk", "origin"};
    struct sums *sums = sums_new(proxy);
    buf_append_cstr(out,
                    "# HELP forebay_bucket_requests_total requests that name a bucket, by what "
                    "the cache did\n# TYPE forebay_bucket_requests_total counter\n");
    for (unsigned i = 0; i < sums->count; i++) {
        for (unsigned k = 0; k < RESULTS; k++) {
            const char *result = k == RESULT_NONE ? "none" : request_result_name(k);
            if (sums->rows[i].results[k] > 0) {
                buf_printf(out, "forebay_bucket_requests_total{bucket=\"%s\",result=\"%s\"} %llu\n",
                           sums->rows[i].name, result,
                           (unsigned long long)sums->rows[i].results[k]);
            }
        }
    }
    buf_append_cstr(out,
                    "# HELP forebay_bucket_response_bytes_total object bytes sent to clients, by "
                    "bucket\n# TYPE forebay_bucket_response_bytes_total counter\n");
    for (unsigned i = 0; i < sums->count; i++) {
        for (unsigned k = 0; k < SOURCES; k++) {
            buf_printf(out,
                       "forebay_bucket_response_bytes_total{bucket=\"%s\",source=\"%s\"} %llu\n",
                       sums->rows[i].name, sources[k], (unsigned long long)sums->rows[i].bytes[k]);
        }
    }
    free(sums);
}

// SPDX-License-Identifier: Apache-2.0
// Keeps the last requests of each worker in a ring that only this worker uses. A caller reads them
// by a message to every worker. Keys are kept as log.keys shows them, and cut. A bucket, key or
// address may be invalid UTF-8, which the caller must handle.
#include <stdlib.h>
#include <string.h>

#include "proxy/log/log.h"

struct recent {
    uint64_t count; // requests ever noted; the next entry is count % PROXY_RECENT_MAX
    struct proxy_recent items[PROXY_RECENT_MAX];
};

struct recent *recent_new(void)
{
    struct recent *recent = calloc(1, sizeof(*recent));
    check(recent != NULL);
    return recent;
}

void recent_free(struct recent *recent)
{
    free(recent);
}

static void copy_text(char *to, size_t size, struct span from)
{
    check(size > 0);
    size_t len = min_u64(from.len, size - 1);
    if (len > 0) {
        memcpy(to, from.ptr, len);
    }
    to[len] = '\0';
}

void recent_note(struct recent *recent, const struct log_entry *entry)
{
    const struct request *r = entry->r;
    struct proxy_recent *item = &recent->items[recent->count++ % PROXY_RECENT_MAX];
    uint64_t started_us = r->http->started_us;
    char hash[LOG_KEY_HASH_SIZE];
    check(r->magic == REQUEST_MAGIC);
    check(started_us > 0);
    item->ended_us = max_u64(worker_now_us(r->pw->worker), started_us + entry->first_byte_us);
    item->total_us = item->ended_us - started_us;
    item->first_byte_us = entry->first_byte_us;
    item->origin_us = r->origin_us;
    item->op = s3_operation_name(r->s3.operation);
    item->result = request_result_name(r->result);
    item->reason = r->reason != NULL ? r->reason : log_entry_unstored(entry);
    item->source = request_source_name(r);
    const char *error = r->error_code != NULL ? r->error_code : "";
    copy_text(item->error, sizeof(item->error), span_from_cstr(error));
    item->why = log_entry_why(entry);
    item->status = r->status;
    item->bytes = entry->body_bytes;
    memcpy(item->id, r->id, sizeof(item->id));
    copy_text(item->client, sizeof(item->client), r->http->peer);
    copy_text(item->bucket, sizeof(item->bucket), r->s3.bucket);
    struct span key = log_key_shown(r->s3.key, hash);
    item->key_is_cut = key.len >= sizeof(item->key);
    copy_text(item->key, sizeof(item->key), key);
}

// --- all workers' --------------------------------------------------------------------------------

struct gather {
    proxy_recent_fn *done;
    void *ctx;
    unsigned worker_count;
    atomic_uint left;
    struct gather_part {
        struct message message;
        struct gather *gather;
        unsigned count;
        struct proxy_recent items[PROXY_RECENT_MAX];
    } parts[];
};

static int compare(const void *a, const void *b)
{
    const struct proxy_recent *x = a, *y = b;
    return (x->ended_us < y->ended_us) - (x->ended_us > y->ended_us); // the latest request first
}

static void gather_end(struct gather *gather)
{
    check(atomic_load(&gather->left) == 0);
    struct proxy_recent *all =
        calloc((size_t)gather->worker_count * PROXY_RECENT_MAX, sizeof(*all));
    unsigned count = 0;
    check(all != NULL);
    for (unsigned i = 0; i < gather->worker_count; i++) {
        const struct gather_part *part = &gather->parts[i];
        check(part->count <= PROXY_RECENT_MAX);
        memcpy(&all[count], part->items, part->count * sizeof(*all));
        count += part->count;
    }
    qsort(all, count, sizeof(*all), compare);
    gather->done(gather->ctx, all, (unsigned)min_u64(count, PROXY_RECENT_MAX));
    free(all);
    free(gather);
}

static void on_gather(struct worker *to, struct message *message)
{
    struct gather_part *part = container_of(message, struct gather_part, message);
    const struct recent *recent = proxy_worker_of(to)->recent;
    check(recent != NULL);
    check(part->gather != NULL);
    part->count = (unsigned)min_u64(recent->count, PROXY_RECENT_MAX);
    memcpy(part->items, recent->items, part->count * sizeof(part->items[0]));
    if (atomic_fetch_sub(&part->gather->left, 1) == 1) {
        gather_end(part->gather);
    }
}

void proxy_recent(struct proxy *proxy, proxy_recent_fn *done, void *ctx)
{
    check(done != NULL);
    unsigned count = proxy->worker_count;
    check(count > 0);
    struct gather *gather = calloc(1, sizeof(*gather) + count * sizeof(gather->parts[0]));
    check(gather != NULL);
    gather->done = done;
    gather->ctx = ctx;
    gather->worker_count = count;
    atomic_init(&gather->left, count);
    for (unsigned i = 0; i < count; i++) { // all parts are ready before the first message is sent
        gather->parts[i].gather = gather;
        gather->parts[i].message.deliver = on_gather;
    }
    for (unsigned i = 0; i < count; i++) {
        mailbox_send_from_any_thread(proxy->workers[i].worker, &gather->parts[i].message);
    }
}

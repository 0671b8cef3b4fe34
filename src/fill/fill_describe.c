// SPDX-License-Identifier: Apache-2.0
// The origin's checksums of an object that is fetched for the first time, by a reader who wants them. A
// run is asked for by its range, and S3 names them in answers to HEAD and of whole objects only. So
//
//   where objects of its kind fit in a run    the run is asked for without a range: nothing is asked
//                                             twice. One that turns out larger is asked for again,
//                                             by its range; its checksums are known then
//   else                                      HEAD goes out beside the run, whose head waits for the
//                                             answer, not for ever
//
// A kind is a bucket and the ending of a key's name. Runs on the stripe's owner.
#include "fill/fill_private.h"

#define ENDING_MAX 16u
#define DESCRIBE_WAIT_MS 1000u // that the head of a run waits for the answer to HEAD

// --- kinds ---------------------------------------------------------------------------------------

static uint64_t kind_of(const struct object_key *key)
{
    struct span name = key->key;
    size_t from = name.len;
    while (from > 0 && name.ptr[from - 1] != '.' && name.ptr[from - 1] != '/') {
        from--;
    }
    bool has_ending = from > 0 && name.ptr[from - 1] == '.' && name.len - from <= ENDING_MAX;
    struct span ending = {name.ptr + from, has_ending ? name.len - from : 0};
    return hash64(ending.ptr, ending.len, hash64(key->bucket.ptr, key->bucket.len, 0));
}

static uint32_t kind_name(uint64_t kind)
{
    return (uint32_t)(kind >> 32) | 1; // 0: nothing is known
}

void fill_describe_learn(const struct fill *fill)
{
    uint64_t kind = kind_of(fill->key);
    _Atomic uint32_t *slot = &fill->fw->room->small_kinds[kind % FILL_KINDS];
    uint32_t known = atomic_load_explicit(slot, memory_order_relaxed);
    uint64_t run_bytes =
        min_u64(store_run_bytes_max(fill->fw->store), fill->fw->room->options.stripe_bytes);
    bool is_small = fill->object->size_bytes <= run_bytes;
    if (is_small != (known == kind_name(kind))) {
        atomic_store_explicit(slot, is_small ? kind_name(kind) : 0, memory_order_relaxed);
    }
}

bool fill_describe_asks_whole(const struct fill *fill)
{
    uint64_t kind = kind_of(fill->key);
    const _Atomic uint32_t *slot = &fill->fw->room->small_kinds[kind % FILL_KINDS];
    return atomic_load_explicit(slot, memory_order_relaxed) == kind_name(kind);
}

// --- HEAD ----------------------------------------------------------------------------------------

static enum err on_describe_head(struct origin_fetch *f)
{
    struct fill *fill = fill_of(f->ctx);
    check(fill->describing && fill->described == NULL);
    fill->described = fill_version_from_fetch(fill->key, f, NULL);
    return ERR_OK;
}

static enum err on_describe_body(struct origin_fetch *f, struct span data)
{
    (void)f;
    (void)data;
    return ERR_OK;
}

static void on_describe_end(struct origin_fetch *f, enum err err)
{
    struct fill *fill = fill_of(f->ctx);
    (void)err; // whatever it is, the run goes on without
    check(fill->describing);
    fill->describing = false;
    if (!fill->head_waits) {
        fill_maybe_free(fill);
        return;
    }
    fill->head_waits = false;
    timer_stop(&fill->pause_timer);
    fill->head_err = fill_take_head(fill);
    if (fill->head_err != ERR_OK) {
        origin_fetch_cancel(&fill->fetch); // on_fetch_end() says why
    } else {
        fill_pause_update(fill);
    }
    fill_assert_run(fill);
}

void fill_describe_start(struct fill *fill)
{
    struct origin_fetch *f = &fill->describe;
    check(!fill->describing && fill->fetching && !fill->has_head);
    f->head = true;
    f->bucket = fill->key->bucket;
    f->key = fill->key->key;
    f->credentials = fill->key->credentials;
    f->ask_checksums = true;
    f->on_head = on_describe_head;
    f->on_body = on_describe_body;
    f->on_end = on_describe_end;
    f->ctx = fill;
    fill->describing = true;
    stats_add(COUNTER_fills_described, 1);
    origin_fetch_start(fill->fw->worker, fill->key->origin, f);
}

bool fill_describe_holds(struct fill *fill)
{
    const struct origin_fetch *f = &fill->fetch;
    if (!fill->describing || f->checksums.count > 0 || f->body_len == 0) {
        return false;
    }
    fill->head_waits = true;
    fill_pause_update(fill);
    timer_start(&fill->pause_timer, DESCRIBE_WAIT_MS);
    return true;
}

void fill_describe_stop(struct fill *fill)
{
    fill->head_waits = false;
    if (fill->describing) {
        origin_fetch_cancel(&fill->describe);
    }
}

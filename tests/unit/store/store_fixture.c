// SPDX-License-Identifier: Apache-2.0
#include "store/store_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "test.h"
#include "waiting.h"

// --- waiting

struct wake {
    sem_t sem;
};

static void wake_init(struct wake *wake)
{
    cr_assert(sem_init(&wake->sem, 0, 0) == 0);
}

static void wake_wait(struct wake *wake)
{
    struct timespec until;
    cr_assert(clock_gettime(CLOCK_REALTIME, &until) == 0);
    until.tv_sec += 60;
    int rc;
    do {
        rc = sem_timedwait(&wake->sem, &until);
    } while (rc != 0 && errno == EINTR);
    cr_assert(rc == 0);
}

struct run_on {
    struct message message;
    void (*fn)(struct worker *w, void *ctx);
    void *ctx;
    struct wake wake;
};

static void on_run_on(struct worker *w, struct message *message)
{
    struct run_on *run = container_of(message, struct run_on, message);
    run->fn(w, run->ctx);
    sem_post(&run->wake.sem);
}

void box_on_worker(struct box *box, unsigned index, void (*fn)(struct worker *w, void *ctx),
                   void *ctx)
{
    struct run_on *run = calloc(1, sizeof(*run));
    cr_assert(run != NULL);
    run->message.deliver = on_run_on;
    run->fn = fn;
    run->ctx = ctx;
    wake_init(&run->wake);
    mailbox_send_from_any_thread(loop_worker(box->loop, index), &run->message);
    wake_wait(&run->wake);
    free(run);
}

// --- a store

void box_init(struct box *box, enum disk_engine engine, uint64_t size_bytes)
{
    memset(box, 0, sizeof(*box));
    chunk_budget_init(256 * MIB);
    const char *tmp = getenv("TMPDIR");
    int len =
        snprintf(box->dir, sizeof(box->dir), "%s/forebay-store-XXXXXX", tmp != NULL ? tmp : "/tmp");
    cr_assert(len > 0 && (size_t)len < sizeof(box->dir));
    cr_assert(mkdtemp(box->dir) != NULL);
    box->engine = engine;
    box->options = (struct store_options){
        .dir = box->dir,
        .size_bytes = size_bytes,
        .headroom_percent = 10,
        .min_free_percent = 0,
        .block_size_bytes_max = 1 * MIB,
    };
}

static uint64_t memory_room;

static bool look_at_memory(struct host_memory *ret_memory)
{
    *ret_memory = (struct host_memory){max_u64(memory_room, MIB), memory_room, 0};
    return true;
}

void box_has_little_memory(struct box *box, uint64_t room_bytes)
{
    memory_room = room_bytes;
    box->options.memory = look_at_memory;
}

bool box_has_direct_io(const struct box *box)
{
    char path[600];
    (void)snprintf(path, sizeof(path), "%s/direct", box->dir);
    int fd = open(path, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
    if (fd >= 0) {
        (void)close(fd);
        (void)unlink(path);
    }
    return fd >= 0;
}

static bool box_loop(struct box *box, unsigned workers)
{
    struct loop_options options = {
        .worker_count = workers, .engine = box->engine, .disk_queue_depth = 64};
    struct buf why;
    buf_init(&why, 1000);
    enum err err = loop_new(&options, &box->loop, &why);
    if (err != ERR_OK) {
        fprintf(stderr, "io_uring: not run: %s\n", buf_cstr(&why));
        cr_assert(box->engine == DISK_ENGINE_URING);
    }
    buf_done(&why);
    return err == ERR_OK;
}

bool box_open_workers(struct box *box, unsigned workers)
{
    if (!box_loop(box, workers)) {
        return false;
    }
    struct buf why;
    buf_init(&why, 4000);
    enum err err = store_open(&box->options, box->loop, &box->store, &why);
    cr_assert(err == ERR_OK, "%s", buf_cstr(&why));
    buf_done(&why);
    (void)disk_io_probe_residency(box->dir);
    page_admission_look(&box->store->page_admission, box->options.size_bytes);
    cr_assert(loop_start(box->loop) == ERR_OK);
    return true;
}

bool box_open(struct box *box)
{
    return box_open_workers(box, 2);
}

enum err box_try_open(struct box *box, struct buf *ret_why)
{
    cr_assert(box_loop(box, 1));
    enum err err = store_open(&box->options, box->loop, &box->store, ret_why);
    if (err != ERR_OK) {
        loop_free(box->loop);
        box->loop = NULL;
    } else {
        cr_assert(loop_start(box->loop) == ERR_OK);
    }
    return err;
}

void box_close(struct box *box)
{
    loop_stop(box->loop);
    store_close(box->store);
    loop_free(box->loop);
    box->store = NULL;
    box->loop = NULL;
}

static int on_removed(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

void box_remove(struct box *box)
{
    (void)nftw(box->dir, on_removed, 16, FTW_DEPTH | FTW_PHYS);
}

static uint64_t counted_bytes;

static int on_counted(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)path;
    (void)ftw;
    if (kind != FTW_NS) {
        counted_bytes += (uint64_t)st->st_blocks * 512;
    }
    return 0;
}

uint64_t dir_bytes(const char *path)
{
    counted_bytes = 0;
    (void)nftw(path, on_counted, 16, FTW_PHYS);
    return counted_bytes;
}

bool box_is_sealed(struct box *box)
{
    struct segment_log *log = &box->store->log;
    bool well = true;
    pthread_mutex_lock(&log->guarded.lock);
    pthread_mutex_lock(&log->rows_guard);
    for (uint32_t i = 0; i <= log->table_mask; i++) {
        well &= log->table[i].state != SEGMENT_SEALED || log->table[i].rows == NULL;
    }
    pthread_mutex_unlock(&log->rows_guard);
    pthread_mutex_unlock(&log->guarded.lock);
    return well;
}

// --- objects

struct hash128 box_hash(const struct box *box, const char *key)
{
    return store_hash(box->store, SPAN("default"), SPAN("bkt"), span_from_cstr(key));
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

void object_bytes(const struct object *object, uint64_t offset, char *ret_bytes, size_t len)
{
    uint64_t seed =
        hash64(object->key, strlen(object->key), hash64(object->etag, strlen(object->etag), 0));
    for (size_t i = 0; i < len; i++) {
        uint64_t at = offset + i;
        if (at % 8 == 0 && len - i >= 8) {
            uint64_t word = mix(seed + at / 8);
            memcpy(ret_bytes + i, &word, 8);
            i += 7;
        } else {
            ret_bytes[i] = (char)(mix(seed + at / 8) >> at % 8 * 8);
        }
    }
}

struct store_object *box_object(const struct box *box, const struct object *object)
{
    struct store_object *made = store_object_new(
        box_hash(box, object->key), SPAN("default"), SPAN("bkt"), span_from_cstr(object->key),
        span_from_cstr(object->etag), (struct span){NULL, 0}, SPAN("Content-Type: text/plain\r\n"),
        object->size, object->block_size != 0 ? object->block_size : BLOCK, 1700000000);
    cr_assert(made != NULL);
    made->generation = object->generation;
    return made;
}

struct write_call {
    struct box *box;
    struct store_object *made;
    const struct object *object;
    uint64_t first_block;
    uint32_t block_count, finish_blocks;
    struct store_place place;
    enum err err;
    struct wake wake;
};

static void on_written(void *ctx, enum err err, const struct store_place *place)
{
    struct write_call *call = ctx;
    call->err = err;
    if (err == ERR_OK) {
        call->place = *place;
    }
    sem_post(&call->wake.sem);
}

static void do_write(struct worker *w, void *ctx)
{
    struct write_call *call = ctx;
    struct store_run *run = NULL;
    call->err =
        store_run_begin(w, call->box->store, call->made, call->first_block, call->block_count,
                        (struct store_run_use){.group = STORE_PRIORITY_NORMAL}, &run);
    if (call->err != ERR_OK) {
        sem_post(&call->wake.sem);
        return;
    }
    uint64_t len = segment_run_payload_len(call->made->size_bytes, call->made->block_size_bytes,
                                           call->first_block, call->block_count);
    uint64_t begin = call->first_block * call->made->block_size_bytes;
    for (uint64_t at = 0; at < len; at += CHUNK_SIZE) {
        struct chunk *chunk = chunk_new_forced();
        chunk->len = (uint32_t)min_u64(CHUNK_SIZE, len - at);
        object_bytes(call->object, begin + at, chunk->data, chunk->len);
        store_run_append(run, chunk);
        chunk_unref(chunk);
    }
    if (call->finish_blocks == 0) {
        store_run_abort(run);
        call->err = ERR_CANCELLED;
        sem_post(&call->wake.sem);
    } else {
        store_run_finish(run, call->finish_blocks, on_written, call);
    }
}

enum err box_write(struct box *box, unsigned index, const struct object *object,
                   uint64_t first_block, uint32_t block_count, uint32_t finish_blocks,
                   struct store_place *ret_place)
{
    struct write_call *call = calloc(1, sizeof(*call));
    cr_assert(call != NULL);
    *call = (struct write_call){.box = box,
                                .made = box_object(box, object),
                                .object = object,
                                .first_block = first_block,
                                .block_count = block_count,
                                .finish_blocks = finish_blocks};
    enum err err;
    unsigned looks = 0;
    do {
        (void)usleep(looks > 0 ? 1000 : 0);
        wake_init(&call->wake);
        box_on_worker(box, index, do_write, call);
        wake_wait(&call->wake);
        err = call->err;
    } while (err == ERR_NO_SEGMENT && ++looks < WAIT_LOOKS_MAX);
    if (err == ERR_OK) {
        *ret_place = call->place;
    }
    store_object_unref(call->made);
    free(call);
    return err;
}

struct put_call {
    struct box *box;
    struct store_object *made;
    const struct store_place *place;
    bool visible;
};

static void do_put(struct worker *w, void *ctx)
{
    struct put_call *call = ctx;
    store_put(w, call->box->store, call->made, call->place, NULL, worker_now_us(w));
}

static void do_look_for(struct worker *w, void *ctx)
{
    struct put_call *call = ctx;
    const struct store_object *o = call->made;
    uint64_t begin = call->place->first_block * o->block_size_bytes;
    struct store_view *view = calloc(1, sizeof(*view));
    cr_assert(view != NULL);
    store_lookup(w, call->box->store, o->hash, begin, begin + 1, 0, view);
    for (unsigned i = 0; i < view->place_count; i++) {
        call->visible |= view->places[i].segment_number == call->place->segment_number &&
                         view->places[i].header_offset == call->place->header_offset;
    }
    store_view_done(view);
    free(view);
}

void box_enter(struct box *box, const struct object *object, const struct store_place *place)
{
    struct put_call call = {.box = box, .made = box_object(box, object), .place = place};
    box_on_worker(box, 0, do_put, &call);
    store_object_unref(call.made);
}

struct condemn_call {
    struct box *box;
    const char *key;
    const struct store_place *place;
};

static void do_condemn(struct worker *w, void *ctx)
{
    const struct condemn_call *call = ctx;
    while (store_generation_next(call->box->store) <
           100) { // tests number their versions themselves
    }
    store_condemn(w, call->box->store, box_hash(call->box, call->key), call->place);
}

void box_condemn(struct box *box, const char *key, const struct store_place *place)
{
    struct condemn_call call = {box, key, place};
    box_on_worker(box, 0, do_condemn, &call);
}

enum err box_post_put(struct box *box, const struct object *object, const struct store_place *place)
{
    box_enter(box, object, place);
    enum err err = index_writer_flush(&box->store->writer);
    struct put_call call = {.box = box, .made = box_object(box, object), .place = place};
    box_on_worker(box, 0, do_look_for, &call);
    store_object_unref(call.made);
    return err == ERR_OK && !call.visible ? ERR_CANCELLED : err;
}

struct delete_call {
    struct box *box;
    struct store_delete deletion;
    struct wake wake;
};

static void on_deleted(struct store_delete *d)
{
    struct delete_call *call = container_of(d, struct delete_call, deletion);
    sem_post(&call->wake.sem);
}

static void do_delete(struct worker *w, void *ctx)
{
    struct delete_call *call = ctx;
    store_delete(w, call->box->store, &call->deletion);
}

enum err box_post_delete(struct box *box, const char *key, uint64_t floor)
{
    struct delete_call call = {.box = box};
    call.deletion =
        (struct store_delete){.hash = box_hash(box, key), .floor = floor, .done = on_deleted};
    wake_init(&call.wake);
    box_on_worker(box, 0, do_delete, &call);
    wake_wait(&call.wake);
    return call.deletion.err;
}

enum err box_post_delete_at(struct box *box, const char *key, const struct store_place *place)
{
    index_writer_remove_later(&box->store->writer, box_hash(box, key), place, false);
    return index_writer_flush(&box->store->writer);
}

void box_let_go(struct store_place *place)
{
    store_place_unhold(place);
    store_place_unpin(place);
}

enum err box_put_run(struct box *box, const struct object *object, uint64_t first_block,
                     uint32_t block_count)
{
    struct store_place place;
    enum err err = box_write(box, 0, object, first_block, block_count, block_count, &place);
    if (err == ERR_OK) {
        err = box_post_put(box, object, &place);
        box_let_go(&place);
    }
    return err;
}

enum err box_put(struct box *box, const struct object *object)
{
    uint32_t block = object->block_size != 0 ? object->block_size : BLOCK;
    uint64_t blocks = segment_run_object_blocks(object->size, block);
    uint64_t run =
        box->has_long_runs ? store_run_bytes_long(box->store) : store_run_bytes_max(box->store);
    uint32_t step = (uint32_t)max_u64(1, run / block);
    enum err err = ERR_OK;
    for (uint64_t first = 0; first < blocks && err == ERR_OK; first += step) {
        err = box_put_run(box, object, first, (uint32_t)min_u64(step, blocks - first));
    }
    return err;
}

struct renew_call {
    struct box *box;
    struct store_renewal renewal;
};

static void do_renew(struct worker *w, void *ctx)
{
    struct renew_call *call = ctx;
    store_renew(w, call->box->store, &call->renewal, 1, worker_now_us(w));
}

void box_renew(struct box *box, const char *key, uint64_t generation)
{
    struct renew_call call = {box, {.hash = box_hash(box, key), .generation = generation}};
    box_on_worker(box, 0, do_renew, &call);
}

// --- reading

struct look_call {
    struct box *box;
    const struct object *object;
    struct store_view *view;
};

static void do_look(struct worker *w, void *ctx)
{
    struct look_call *call = ctx;
    store_lookup(w, call->box->store, box_hash(call->box, call->object->key), 0,
                 min_u64(call->object->size, STORE_WINDOW_MAX), 0, call->view);
    store_view_done(call->view);
}

void box_look(struct box *box, const struct object *object, struct store_view *ret_view)
{
    struct look_call call = {box, object, ret_view};
    box_on_worker(box, 0, do_look, &call);
}

struct read_call {
    struct store_read read; // first
    struct box *box;
    const struct object *object;
    struct store_view view;
    unsigned place_index;
    uint64_t at; // object byte
    uint64_t good;
    struct wake wake;
};

static void judge(const struct object *object, uint64_t offset, struct span bytes)
{
    static _Thread_local char expected[CHUNK_SIZE];
    cr_assert(bytes.len <= sizeof(expected));
    object_bytes(object, offset, expected, bytes.len);
    cr_assert(bytes.len == 0 || memcmp(expected, bytes.ptr, bytes.len) == 0, "wrong byte in %s",
              object->key);
}

static void read_next(struct worker *w, struct read_call *call);

static void on_read(struct store_read *read)
{
    struct read_call *call = container_of(read, struct read_call, read);
    if (read->err == ERR_OK) {
        call->box->reads[read->source]++;
        call->box->most_spans = max_u64(call->box->most_spans, read->span_count);
        for (unsigned i = 0; i < read->span_count; i++) {
            judge(call->object, call->at, read->spans[i]);
            call->at += read->spans[i].len;
            call->good += read->spans[i].len;
        }
    } else {
        cr_assert(read->err == ERR_CORRUPT || read->err == ERR_IO || read->err == ERR_UNREADABLE ||
                  read->err == ERR_DESCRIPTORS);
        call->place_index++;
        call->at = UINT64_MAX;
    }
    for (unsigned i = 0; i < ARRAY_LEN(read->chunks); i++) {
        chunk_unref(read->chunks[i]);
    }
    read_next(read->worker, call);
}

// The fast way, when it is open, gives the same bytes.
static void judge_range(struct worker *w, struct read_call *call, const struct store_place *place,
                        uint64_t len)
{
    struct file_range range;
    if (len == 0 || !store_range_ready(w, call->box->store, place, call->at, len, &range)) {
        return;
    }
    static _Thread_local char bytes[STORE_READ_MAX];
    int fd = range.borrow(range.release_ctx);
    cr_assert(pread(fd, bytes, range.len, (off_t)range.offset) == (ssize_t)range.len);
    range.give_back(range.release_ctx);
    for (uint64_t i = 0; i < range.len; i += CHUNK_SIZE) {
        judge(call->object, call->at + i,
              (struct span){bytes + i, (size_t)min_u64(CHUNK_SIZE, range.len - i)});
    }
    range.release(range.release_ctx);
}

static void read_next(struct worker *w, struct read_call *call)
{
    while (call->place_index < call->view.place_count) {
        const struct store_place *place = &call->view.places[call->place_index];
        uint64_t begin = place->first_block * place->block_size_bytes;
        call->at = call->at == UINT64_MAX || call->at < begin ? begin : call->at;
        uint64_t left = begin + place->payload_len - call->at;
        if (left > 0) {
            uint64_t len = min_u64(left, STORE_READ_MAX - 12345); // not aligned
            judge_range(w, call, place, len);
            call->read.store = call->box->store;
            call->read.place = *place;
            call->read.header = false;
            call->read.first_byte = call->at;
            call->read.len = len;
            call->read.done = on_read;
            store_read_start(w, &call->read);
            return;
        }
        call->place_index++;
        call->at = UINT64_MAX;
    }
    store_view_done(&call->view);
    sem_post(&call->wake.sem);
}

static void do_read(struct worker *w, void *ctx)
{
    struct read_call *call = ctx;
    const struct object *object = call->object;
    struct hash128 hash = box_hash(call->box, object->key);
    store_lookup(w, call->box->store, hash, 0, min_u64(object->size, STORE_WINDOW_MAX), 0,
                 &call->view);
    bool same = call->view.found &&
                call->view.etag_hash == hash64(object->etag, strlen(object->etag), 0) &&
                call->view.size_bytes == object->size;
    if (!same) {
        store_view_done(&call->view);
    }
    if (call->view.place_count == 1 && call->view.places[0].payload_len == object->size &&
        object->size <= STORE_SMALL_MAX) {
        struct store_object *found = NULL;
        struct chunk *chunk = NULL;
        struct span payload;
        enum err err = ERR_AGAIN;
        for (unsigned tries = 0; tries < 2 && err == ERR_AGAIN; tries++) {
            int fd; // the small way opens no segment, and waits for no page
            char page[4096];
            if (segment_borrow_wait(call->view.places[0].segment, &fd) == ERR_OK) {
                off_t at = call->view.places[0].header_offset;
                (void)!(tries > 0 && pread(fd, page, sizeof(page), at) > 0); // judged later
                segment_return(call->view.places[0].segment);
            }
            err = store_read_small(w, call->box->store, &call->view.places[0], hash,
                                   SPAN("default"), SPAN("bkt"), span_from_cstr(object->key),
                                   &found, &chunk, &payload);
        }
        if (err == ERR_OK) {
            cr_assert(payload.len == object->size);
            judge(object, 0, payload);
            cr_assert(span_equal_cstr(found->etag, object->etag));
            store_object_unref(found);
            chunk_unref(chunk);
        }
        if (err == ERR_OK && object->size == 0) {
            call->good = 1; // found, and nothing to read
        }
    }
    call->at = UINT64_MAX;
    read_next(w, call);
}

uint64_t box_read(struct box *box, unsigned index, const struct object *object)
{
    struct read_call *call = calloc(1, sizeof(*call));
    cr_assert(call != NULL);
    call->box = box;
    call->object = object;
    wake_init(&call->wake);
    box_on_worker(box, index, do_read, call);
    wake_wait(&call->wake);
    uint64_t good = call->good;
    free(call);
    return good;
}

// SPDX-License-Identifier: Apache-2.0
// Proves: the descriptors of segments never exceed the limit, and none is taken while in use. A
// file that cannot be opened costs a miss, and keeps its data.
#include "store/segment/segment_pool.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "stats/stats.h"
#include "store/store_fixture.h"
#include "test.h"
#include "waiting.h"

#define OBJECTS 40u
#define OBJECT_BYTES 65000u // one fills a segment

struct many {
    struct box box;
    struct object objects[OBJECTS];
    char keys[OBJECTS][16];
    struct store_place places[OBJECTS]; // pinned
    bool (*memory)(struct host_memory *ret_memory);
};

static bool has_users(struct segment_pool *pool)
{
    uint64_t users = 0;
    pthread_mutex_lock(&pool->guarded.lock);
    for (unsigned i = 0; i < pool->guarded.open_count; i++) {
        users += atomic_load(&pool->guarded.open[i]->word) & INT32_MAX;
    }
    pthread_mutex_unlock(&pool->guarded.lock);
    return users > 0;
}

// Returns when no thread of the store uses a descriptor any more.
static bool many_open(struct many *m, enum disk_engine engine)
{
    cr_assert(setenv("FOREBAY_SEGMENT_SIZE", "131072", 1) == 0);
    box_init(&m->box, engine, 32 * MIB);
    m->box.options.block_size_bytes_max = BLOCK;
    m->box.options.descriptors_max = SEGMENT_POOL_MIN;
    m->box.options.memory = m->memory;
    if (!box_open(&m->box)) {
        return false;
    }
    for (unsigned i = 0; i < OBJECTS; i++) {
        (void)snprintf(m->keys[i], sizeof(m->keys[i]), "key-%u", i);
        m->objects[i] = (struct object){m->keys[i], "\"e\"", OBJECT_BYTES, BLOCK,
                                        store_generation_next(m->box.store)};
        enum err err;
        wait_for(!box_has_no_segment(
            err = box_write(&m->box, i % 2, &m->objects[i], 0, 1, 1, &m->places[i])));
        cr_assert(err == ERR_OK);
        cr_assert(box_post_put(&m->box, &m->objects[i], &m->places[i]) == ERR_OK);
        segment_unhold(m->places[i].segment);
    }
    wait_for(box_is_sealed(&m->box) && !has_users(&m->box.store->log.pool)); // sealing uses them
    return true;
}

static void many_close(struct many *m)
{
    for (unsigned i = 0; i < OBJECTS; i++) {
        store_place_unpin(&m->places[i]);
    }
    box_close(&m->box);
    box_remove(&m->box);
    cr_assert(unsetenv("FOREBAY_SEGMENT_SIZE") == 0);
}

static void all_are_read(struct many *m)
{
    for (unsigned i = 0; i < OBJECTS; i++) {
        cr_assert(box_read(&m->box, i % 2, &m->objects[i]) == OBJECT_BYTES, "%u", i);
        cr_assert(stats_sum(COUNTER_segment_descriptors) <= SEGMENT_POOL_MIN);
    }
}

Test(segment_pool, more_segments_than_descriptors_are_read)
{
    static const enum disk_engine engines[] = {DISK_ENGINE_THREADS, DISK_ENGINE_URING};
    for (unsigned i = 0; i < ARRAY_LEN(engines); i++) {
        struct many m = {0};
        if (!many_open(&m, engines[i])) {
            continue;
        }
        uint64_t closes = stats_sum(COUNTER_segment_closes);
        all_are_read(&m);
        all_are_read(&m);
        cr_assert(stats_sum(COUNTER_segment_closes) > closes + OBJECTS);
        many_close(&m);
        cr_assert(stats_sum(COUNTER_segment_descriptors) == 0);
    }
}

struct waiter {
    struct segment *segment;
    enum err err;
    int fd;
};

static void *wait_for_one(void *ctx)
{
    struct waiter *waiter = ctx;
    waiter->err = segment_borrow_wait(waiter->segment, &waiter->fd);
    return NULL;
}

static bool somebody_waits(void *ctx)
{
    return atomic_load(&((struct segment_pool *)ctx)->waiting) > 0;
}

Test(segment_pool, one_in_use_is_not_closed_and_the_next_waits_for_it)
{
    struct many m = {0};
    cr_assert(many_open(&m, DISK_ENGINE_THREADS));
    int fds[SEGMENT_POOL_MIN];
    for (unsigned i = 0; i < SEGMENT_POOL_MIN; i++) {
        cr_assert(segment_borrow_wait(m.places[i].segment, &fds[i]) == ERR_OK);
    }
    int fd;
    uint64_t failures = stats_sum(COUNTER_segment_open_failures);
    cr_assert(segment_borrow(m.places[0].segment) == fds[0]); // by two at once
    segment_return(m.places[0].segment);
    cr_assert(segment_borrow_wait(m.places[SEGMENT_POOL_MIN].segment, &fd) == ERR_DESCRIPTORS);
    cr_assert(stats_sum(COUNTER_segment_open_failures) == failures + 1);
    cr_assert(disk_shortage(&m.box.store->disk) == ERR_DESCRIPTORS);
    struct waiter waiter = {.segment = m.places[SEGMENT_POOL_MIN].segment};
    pthread_t thread;
    cr_assert(pthread_create(&thread, NULL, wait_for_one, &waiter) == 0);
    wait_for(somebody_waits(&m.box.store->log.pool));
    segment_return(m.places[3].segment);
    cr_assert(pthread_join(thread, NULL) == 0);
    cr_assert(waiter.err == ERR_OK);
    cr_assert(segment_borrow(m.places[3].segment) == -1); // it was the one
    for (unsigned i = 0; i <= SEGMENT_POOL_MIN; i++) {
        if (i != 3) {
            segment_return(m.places[i].segment);
        }
    }
    all_are_read(&m);
    many_close(&m);
}

struct racer {
    struct many *m;
    unsigned seed;
};

// Reads the numbers of segments through the descriptors that it gets.
static void *race(void *ctx)
{
    struct racer *racer = ctx;
    for (unsigned i = 0; i < 3000; i++) {
        racer->seed = racer->seed * 1103515245u + 12345u;
        const struct store_place *place = &racer->m->places[(racer->seed >> 16) % OBJECTS];
        int fd;
        cr_assert(segment_borrow_wait(place->segment, &fd) == ERR_OK);
        char sector[SECTOR_SIZE];
        struct segment_header header;
        cr_assert(pread(fd, sector, sizeof(sector), 0) == (ssize_t)sizeof(sector));
        cr_assert(segment_header_decode(sector, &header) == ERR_OK);
        cr_assert(header.number == place->segment_number);
        segment_return(place->segment);
    }
    return NULL;
}

Test(segment_pool, a_reader_gets_the_file_it_asked_for)
{
    struct many m = {0};
    cr_assert(many_open(&m, DISK_ENGINE_THREADS));
    pthread_t threads[8];
    struct racer racers[8];
    uint64_t failures = stats_sum(COUNTER_segment_open_failures);
    for (unsigned i = 0; i < ARRAY_LEN(threads); i++) {
        racers[i] = (struct racer){&m, i};
        cr_assert(pthread_create(&threads[i], NULL, race, &racers[i]) == 0);
    }
    all_are_read(&m);
    for (unsigned i = 0; i < ARRAY_LEN(threads); i++) {
        cr_assert(pthread_join(threads[i], NULL) == 0);
    }
    cr_assert(stats_sum(COUNTER_segment_open_failures) == failures);
    many_close(&m);
}

// Closes all that is open by using others.
static void close_first(struct many *m)
{
    for (unsigned turn = 0; turn < 2; turn++) {
        for (unsigned i = SEGMENT_POOL_MIN; i < 3 * SEGMENT_POOL_MIN && i < OBJECTS; i++) {
            int fd;
            cr_assert(segment_borrow_wait(m->places[i].segment, &fd) == ERR_OK);
            segment_return(m->places[i].segment);
        }
    }
    cr_assert(segment_borrow(m->places[0].segment) == -1);
}

Test(segment_pool, no_failure_to_open_takes_a_run_out_of_the_index)
{
    static const int errors[] = {EMFILE, ENFILE, EACCES, EIO, ENOMEM};
    struct many m = {0};
    cr_assert(many_open(&m, DISK_ENGINE_THREADS));
    uint64_t failures = stats_sum(COUNTER_segment_open_failures);
    for (unsigned i = 0; i < ARRAY_LEN(errors); i++) {
        close_first(&m);
        store_fault_set(STORE_FAULT_OPEN, 1, true, errors[i]);
        cr_assert(box_read(&m.box, 0, &m.objects[0]) == 0, "%d", errors[i]);
        struct store_place place;
        cr_assert(box_write(&m.box, 0, &m.objects[1], 0, 1, 1, &place) != ERR_OK); // unstored
        store_fault_set(STORE_FAULT_OPEN, 0, false, 0);
        cr_assert(box_read(&m.box, 0, &m.objects[0]) == OBJECT_BYTES, "%d", errors[i]);
    }
    cr_assert(stats_sum(COUNTER_segment_open_failures) >= failures + ARRAY_LEN(errors));
    many_close(&m);
}

static bool has_no_name(void *ctx)
{
    return (atomic_load(&((struct segment *)ctx)->pins) & SEGMENT_PIN_UNLINKED) != 0;
}

static bool has_been_given_back(void *ctx)
{
    return atomic_load(&((struct segment *)ctx)->number) == 0;
}

Test(segment_pool, a_segment_that_goes_under_a_pin_is_opened_before_its_name_is_gone)
{
    struct many m = {0};
    cr_assert(many_open(&m, DISK_ENGINE_THREADS));
    struct segment *segment = m.places[0].segment;
    close_first(&m);
    segment_log_abandon(&m.box.store->log, segment);
    wait_for(has_no_name(segment));
    uint64_t used = atomic_load(&m.box.store->disk.used_bytes);
    for (unsigned i = SEGMENT_POOL_MIN; i < OBJECTS; i++) { // it stays while others have a name
        int fd;
        cr_assert(segment_borrow_wait(m.places[i].segment, &fd) == ERR_OK);
        segment_return(m.places[i].segment);
    }
    int fd = segment_borrow(segment);
    cr_assert(fd >= 0);
    char sector[SECTOR_SIZE];
    struct segment_header header;
    cr_assert(pread(fd, sector, sizeof(sector), 0) == (ssize_t)sizeof(sector));
    cr_assert(segment_header_decode(sector, &header) == ERR_OK);
    cr_assert(header.number == m.places[0].segment_number);
    segment_return(segment);
    cr_assert(atomic_load(&m.box.store->disk.used_bytes) >=
              used); // counted until the last pin goes
    store_place_unpin(&m.places[0]);
    wait_for(has_been_given_back(segment));
    many_close(&m);
}

struct direct_asking {
    struct segment *segment;
    bool is_queued;
    enum err err;
    atomic_bool is_answered;
};

static void on_direct_asked(void *ctx, enum err err, int fd)
{
    struct direct_asking *asking = ctx;
    cr_assert((err == ERR_OK) == (fd >= 0));
    asking->err = err;
    atomic_store(&asking->is_answered, true);
}

static void ask_direct(struct worker *w, void *ctx)
{
    struct direct_asking *asking = ctx;
    asking->is_queued = segment_borrow_direct_start(w, asking->segment, on_direct_asked, asking);
}

static bool direct_is_answered(void *ctx)
{
    return atomic_load(&((struct direct_asking *)ctx)->is_answered);
}

Test(segment_pool, no_unlinked_segment_is_closed_for_a_descriptor_past_the_page_cache)
{
    struct many m = {0};
    cr_assert(many_open(&m, DISK_ENGINE_THREADS));
    struct segment *segment = m.places[0].segment;
    close_first(&m);
    segment_log_abandon(&m.box.store->log, segment);
    wait_for(has_no_name(segment));
    for (unsigned i = 1; i < SEGMENT_POOL_MIN; i++) {
        int fd;
        cr_assert(segment_borrow_wait(m.places[i].segment, &fd) == ERR_OK);
    }
    static struct direct_asking other, own;
    other.segment = m.places[1].segment;
    box_on_worker(&m.box, 0, ask_direct, &other);
    cr_assert(other.is_queued);
    wait_for(direct_is_answered(&other));
    cr_assert(other.err == ERR_UNREADABLE);
    own.segment = segment;
    box_on_worker(&m.box, 0, ask_direct, &own);
    cr_assert(!own.is_queued); // its name is gone
    cr_assert(segment_borrow(segment) >= 0);
    segment_return(segment);
    for (unsigned i = 1; i < SEGMENT_POOL_MIN; i++) {
        segment_return(m.places[i].segment);
    }
    many_close(&m);
}

#define ASKED (OBJECTS - SEGMENT_POOL_MIN)

struct asking {
    struct many *m;
    unsigned failed;
    atomic_uint answered;
};

static void on_asked(void *ctx, enum err err, int fd)
{
    struct asking *asking = ctx;
    cr_assert(fd < 0);
    asking->failed += err == ERR_DESCRIPTORS;
    atomic_fetch_add(&asking->answered, 1);
}

static void ask_for_all(struct worker *w, void *ctx)
{
    struct asking *asking = ctx;
    for (unsigned i = 0; i < ASKED; i++) {
        segment_borrow_start(w, asking->m->places[SEGMENT_POOL_MIN + i].segment, on_asked, asking);
    }
}

static bool all_are_answered(void *ctx)
{
    return atomic_load(&((struct asking *)ctx)->answered) == ASKED;
}

Test(segment_pool, while_all_are_in_use_workers_do_not_wait_for_each_other)
{
    struct many m = {0};
    cr_assert(many_open(&m, DISK_ENGINE_THREADS));
    int fd;
    for (unsigned i = 0; i < SEGMENT_POOL_MIN; i++) {
        cr_assert(segment_borrow_wait(m.places[i].segment, &fd) == ERR_OK);
    }
    uint64_t waits = stats_sum(COUNTER_segment_open_waits);
    struct asking asking = {.m = &m};
    box_on_worker(&m.box, 0, ask_for_all, &asking);
    wait_for(all_are_answered(&asking));
    cr_assert(asking.failed == ASKED);
    cr_assert(stats_sum(COUNTER_segment_open_waits) < waits + ASKED); // the room's own wait, too
    for (unsigned i = 0; i < SEGMENT_POOL_MIN; i++) {
        segment_return(m.places[i].segment);
    }
    all_are_read(&m);
    many_close(&m);
}

static bool look_full(struct host_memory *ret_memory)
{
    *ret_memory = (struct host_memory){MIB, 0, 0};
    return true;
}

struct reading {
    struct many *m;
    struct store_read reads[OBJECTS];
    unsigned good;
    atomic_uint ended;
};

static struct reading reading;

static void on_read_ended(struct store_read *read)
{
    reading.good += read->err == ERR_OK && read->source == STORE_READ_DIRECT;
    for (unsigned i = 0; i < ARRAY_LEN(read->chunks); i++) {
        chunk_unref(read->chunks[i]);
    }
    atomic_fetch_add(&reading.ended, 1);
}

static void read_all_at_once(struct worker *w, void *ctx)
{
    (void)ctx;
    for (unsigned i = 0; i < OBJECTS; i++) {
        struct store_read *read = &reading.reads[i];
        read->store = reading.m->box.store;
        read->place = reading.m->places[i];
        read->len = OBJECT_BYTES;
        read->done = on_read_ended;
        store_read_start(w, read);
    }
}

static bool all_reads_ended(void *ctx)
{
    (void)ctx;
    return atomic_load(&reading.ended) == OBJECTS;
}

Test(segment_pool, reads_past_the_page_cache_do_not_wait_for_each_others_descriptors)
{
    struct many m = {.memory = look_full};
    cr_assert(many_open(&m, DISK_ENGINE_THREADS));
    page_admission_look(&m.box.store->page_admission, 64 * MIB);
    all_are_read(&m); // stores the headers in the run cache
    close_first(&m);
    uint64_t failures = stats_sum(COUNTER_segment_open_failures);
    disk_fault_set("pages.gone:1+:eio");
    reading = (struct reading){.m = &m};
    box_on_worker(&m.box, 0, read_all_at_once, NULL);
    wait_for(all_reads_ended(NULL));
    disk_fault_set("");
    cr_assert(stats_sum(COUNTER_segment_open_failures) == failures);
    cr_assert(reading.good > 0, "%u", reading.good);
    for (unsigned i = 0; i < OBJECTS; i++) {
        cr_assert(reading.reads[i].err == ERR_OK, "%u", i);
    }
    many_close(&m);
}

Test(segment_pool, a_store_closes_over_one_that_never_came_back)
{
    struct many m = {0};
    cr_assert(many_open(&m, DISK_ENGINE_THREADS));
    int fd;
    cr_assert(segment_borrow_wait(m.places[0].segment, &fd) == ERR_OK); // a read the disk has lost
    many_close(&m);
    cr_assert(stats_sum(COUNTER_segment_descriptors) == 0);
    cr_assert(fcntl(fd, F_GETFD) == -1);
}

Test(segment_pool, a_new_segment_frees_a_descriptor_that_is_not_in_use)
{
    static const int errors[] = {EMFILE, ENFILE};
    struct many m = {0};
    cr_assert(many_open(&m, DISK_ENGINE_THREADS));
    for (unsigned i = 0; i < ARRAY_LEN(errors); i++) {
        uint64_t closes = stats_sum(COUNTER_segment_closes);
        store_fault_set(STORE_FAULT_CREATE, 1, false, errors[i]);
        for (unsigned k = 0; k < OBJECTS; k++) {
            struct store_place place;
            enum err err;
            wait_for(
                !box_has_no_segment(err = box_write(&m.box, 0, &m.objects[k], 0, 1, 1, &place)));
            cr_assert(err == ERR_OK, "%d", errors[i]);
            box_let_go(&place);
        }
        cr_assert(store_fault_strike(STORE_FAULT_CREATE) == 0); // it has struck
        cr_assert(disk_trouble(&m.box.store->disk) == REFUSAL_none, "%d", errors[i]);
        cr_assert(stats_sum(COUNTER_segment_closes) > closes);
    }
    many_close(&m);
}

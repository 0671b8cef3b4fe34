// SPDX-License-Identifier: Apache-2.0
// What fill.c, fill_deliver.c and fill_fetch.c share: a run in flight and the readers attached to it.
// All of it belongs to the worker that owns the run's stripe.
#ifndef FOREBAY_PROXY_FILL_PRIVATE_H
#define FOREBAY_PROXY_FILL_PRIVATE_H

#include "proxy/proxy_private.h"

#define FILL_MAGIC 0x46494C4Cu
#define FILL_RESUMES_MAX 3u
#define FILL_RESUME_DELAY_MS 50u
#define FILL_UNSTORED_WINDOW (1u << 20)
// How far a reader of an unstored run may be behind the fastest before it goes on alone; less while
// memory is short.
#define FILL_DETACH_BEHIND (2u << 20)
#define FILL_CHUNKS_MAX (STORE_BLOCK_SIZE_MAX / CHUNK_SIZE)

enum fill_state { FILL_ASKED, FILL_BODY, FILL_WRITING, FILL_WRITTEN };

struct fill {
    uint32_t magic;
    struct list_node map_node;
    struct proxy_worker *pw;
    struct object_key *key;
    enum fill_state state;
    bool in_table, doomed, unstored, abandoned, dead;
    uint64_t token;                 // of the home's first request; 0: none
    enum err failed;                // why there never was a head; told with FIRSTEND
    struct span failed_document;    // valid while the fill fails
    struct store_object *object;    // asked for with If-Match, or learned from the head
    struct store_object *described; // may have this version's checksums; NULL: nothing has
    bool has_head, weak;
    uint64_t first_block;
    uint32_t block_count, block_size_bytes;
    uint64_t first_byte, end_byte; // end is exact after the head
    uint64_t received;             // next byte expected, absolute
    uint64_t retained_from;        // chunks below this were given up
    struct chunk *chunks[FILL_CHUNKS_MAX];
    struct store_run *run;
    struct s3_checksum_state *checksum; // of what has come; NULL: the origin named none
    struct store_place place;
    struct list readers;
    unsigned resumes;
    struct origin_fetch fetch;
    bool fetching, finishing, memory_waiting;
    bool paused_memory, paused_window, paused;
    struct message memory_message;
    struct task deliver_task;
    struct timer resume_timer;
    bool resume_waiting;
};

struct fill_reader {
    struct list_node node;
    struct fill *fill; // NULL once FINAL was sent
    struct reader *reader;
    struct proxy_worker *at;
    struct store_object *wanted; // bound to it when has_sent
    bool has_sent, waiting_place, left;
    uint64_t next_byte; // delivered up to here
    uint64_t acked_byte;
};

static inline struct fill *fill_of(void *ptr)
{
    struct fill *fill = ptr;
    check(fill != NULL && fill->magic == FILL_MAGIC);
    return fill;
}

static inline bool fill_same_version(const struct store_object *a, const struct store_object *b)
{
    return a->etag.len > 0 && span_equal(a->etag, b->etag);
}

// --- fill.c --------------------------------------------------------------------------------------

void fill_maybe_free(struct fill *fill);   // frees it when nothing holds it any more
void fill_leave_table(struct fill *fill);  // no more joins; its home is told; may free it
void fill_send_version(struct fill *fill); // the home learns what the head said, if it waits for it
// Takes the reader out with its one FINAL. document: the origin's error, copied.
void fill_reader_final(struct fill_reader *fr, enum reader_outcome outcome, enum err err,
                       struct span document);
void fill_final_all(struct fill *fill, enum reader_outcome outcome, enum err err,
                    struct span document);
void fill_send_head(struct fill *fill, struct fill_reader *fr);

// --- fill_deliver.c ------------------------------------------------------------------------------

void fill_deliver(struct fill *fill); // sends readers what has come; paces an unstored run
void fill_on_deliver(struct task *task);
struct chunk *fill_chunk(struct fill *fill); // never NULL: a run out of memory pauses instead
// May this stored run go on though memory is used up? One of each worker may.
bool fill_take_lead(struct fill *fill);
void fill_pass_lead(struct fill *fill);
void fill_pause_update(struct fill *fill);

// --- fill_fetch.c --------------------------------------------------------------------------------

void fill_fetch(struct fill *fill); // asks the origin for what has not come yet
void fill_on_resume_timer(struct timer *timer);
void fill_complete(struct fill *fill);                 // everything wanted has come
void fill_shorten(struct fill *fill, uint64_t blocks); // no more than these are wanted
void fill_drop_run(struct fill *fill);                 // nothing of it is stored

#endif

// SPDX-License-Identifier: Apache-2.0
// What serve_get.c, get_reply.c and get_body.c share: a GET or HEAD that may be answered from the
// cache, on its worker.
#ifndef FOREBAY_PROXY_GET_PRIVATE_H
#define FOREBAY_PROXY_GET_PRIVATE_H

#include "proxy/proxy_private.h"

#define GET_AGAIN_MAX 16u // look-ups that lead nowhere without a byte of progress
#define GET_READ_BYTES STORE_READ_MAX

struct get_state {
    struct request *owner;
    bool is_head;
    bool needs_head; // suffix range, condition or partNumber: an unknown object is described first
    struct http_range range;
    struct http_conditions conditions;
    bool client_no_cache;

    bool view_open;
    struct store_view view;
    uint64_t view_first, view_end; // bytes the view covers
    struct store_place extra;      // pinned by a fill's answer; before the index shows it
    bool have_record;              // the version is the index's
    bool checked;                  // the origin has confirmed it for this request
    bool stale_allowed;

    struct store_object *object; // the version answered with (reference)
    uint64_t etag_hash;
    struct chunk *small_chunk;
    struct span small;

    struct object_key *key; // made on the first look-up
    struct subscription *check;
    struct subscription *readers[2];
    struct store_object *refused; // answered 412: the home is told
    bool skip_index;              // what the index names could not be read
    unsigned restarts, again;

    bool replied;
    bool from_origin;         // first bytes come from a fill
    uint64_t first, end, pos; // bytes of the object to send, and how far
    uint64_t buffer_until;    // a range was recalled: bytes below this go by the read way

    struct store_read read;
    bool reading, read_ready;
    unsigned read_span; // next span to hand out
    bool read_header;
};

static inline struct get_state *get_of(struct request *r)
{
    check(r->get != NULL);
    return r->get;
}

// --- serve_get.c ---------------------------------------------------------------------------------

void get_view(struct request *r, uint64_t first_byte, uint64_t end_byte); // looks a window up
void get_view_done(struct get_state *g);
void get_drop_reader(struct subscription **slot);
void get_drop_read_buffers(struct get_state *g);
void get_forget_version(struct get_state *g); // everything that belongs to the version tried so far
uint32_t get_block_size(const struct request *r);
// Asks for the run that begins at `byte`: not past `end` or the next block that is there.
struct subscription *get_ask(struct request *r, uint64_t byte, uint64_t end);
void get_on_header_read(struct request *r);

// --- get_body.c ----------------------------------------------------------------------------------

// Where `byte` of this very version lies; NULL: nowhere we know.
const struct store_place *get_place(struct get_state *g, uint64_t byte);
enum http_pull get_pull(struct http_source *source, struct http_slice *ret_slice);
void get_recall(struct http_source *source, uint64_t unsent);
void get_on_read_done(struct store_read *read);

#endif

// SPDX-License-Identifier: Apache-2.0
// A reader: one attachment of a request to a run in flight, or one question to a key's home; and
// the wires that carry the protocol between workers.
//
// A reader lives on its request's worker. Each ask (ROUTE, JOIN, CHECK) gets exactly one answer:
// ATTACHED, PLACE, AGAIN, ERROR or CHECKED. ATTACHED is followed by exactly one FINAL and owes
// exactly one LEAVE. A request that ends earlier lets go with reader_drop(); the reader then waits
// alone for what it still owes and is owed, and gives back whatever arrives.

#include "proxy/proxy_private.h"

#include <stdlib.h>
#include <string.h>

// --- wires ---------------------------------------------------------------------------------------

struct wire *wire_new(struct proxy_worker *from, enum wire_type type, struct object_key *key)
{
    struct wire *wire = calloc(1, sizeof(*wire));
    check(wire != NULL);
    wire->type = type;
    wire->from = from;
    wire->key = key != NULL ? object_key_ref(key) : NULL;
    return wire;
}

typedef void wire_fn(struct proxy_worker *pw, struct wire *wire);

static void wire_deliver(struct worker *to, struct message *message)
{
    static wire_fn *const receivers[] = {
#define WIRE(name, fn) [WIRE_##name] = fn,
#include "proxy/wires.def"
#undef WIRE
    };
    struct wire *wire = container_of(message, struct wire, message);
    check(wire->type < WIRE_COUNT_);
    receivers[wire->type](proxy_worker_of(to), wire);
    object_key_unref(wire->key);
    store_object_unref(wire->object);
    chunk_unref(wire->chunk);
    s3_checksum_free(wire->sum);
    free((void *)(uintptr_t)wire->document.ptr);
    free(wire);
}

struct span span_heap_copy(struct span s)
{
    char *copy = s.len > 0 ? malloc(s.len) : NULL;
    if (copy == NULL) {
        return (struct span){0};
    }
    memcpy(copy, s.ptr, s.len);
    return (struct span){copy, s.len};
}

void wire_send(struct proxy_worker *to, struct wire *wire)
{
    wire->message.deliver = wire_deliver;
    mailbox_send(to->worker, &wire->message);
}

// --- life ----------------------------------------------------------------------------------------

struct reader *reader_new(struct proxy_worker *pw, struct request *r, struct object_key *key)
{
    struct reader *reader = calloc(1, sizeof(*reader));
    check(reader != NULL);
    reader->magic = READER_MAGIC;
    reader->request = r;
    reader->at = pw;
    reader->key = object_key_ref(key);
    list_init(&reader->pieces);
    return reader;
}

static struct reader *as_reader(struct reader *reader)
{
    check(reader != NULL && reader->magic == READER_MAGIC);
    return reader;
}

static void reader_drop_pieces(struct reader *reader)
{
    struct list_node *node;
    while ((node = list_pop_front(&reader->pieces)) != NULL) {
        struct piece *piece = container_of(node, struct piece, node);
        chunk_unref(piece->chunk);
        free(piece);
    }
    reader->queued_bytes = 0;
}

static void reader_free(void *ptr)
{
    struct reader *reader = ptr;
    check(reader->request == NULL);
    reader_drop_pieces(reader);
    store_place_unpin(&reader->place);
    store_object_unref(reader->object);
    store_object_unref(reader->refused);
    store_object_unref(reader->described);
    store_object_unref(reader->answer);
    object_key_unref(reader->key);
    free((void *)(uintptr_t)reader->error_answer.ptr);
    reader->magic = 0;
    free(reader);
}

static void reader_leave(struct reader *reader)
{
    if (reader->attachment == NULL || reader->left) {
        return;
    }
    reader->left = true;
    struct wire *wire = wire_new(reader->at, WIRE_LEAVE, NULL);
    wire->attachment = reader->attachment;
    wire_send(reader->owner, wire);
}

void reader_drop(struct reader *reader)
{
    as_reader(reader);
    check(reader->request != NULL);
    reader->request = NULL;
    reader_drop_pieces(reader);
    if (reader->state == READER_IDLE || reader->state == READER_ENDED) {
        worker_free_later(reader->at->worker, reader_free, reader);
    } else if (reader->state == READER_ATTACHED) {
        reader_leave(reader);
    }
}

// --- asks ----------------------------------------------------------------------------------------

static void reader_ask(struct reader *reader, enum wire_type type, struct proxy_worker *to)
{
    check(reader->state == READER_IDLE);
    reader->state = READER_ASKED;
    struct wire *wire = wire_new(reader->at, type, reader->key);
    wire->reader = reader;
    wire_send(to, wire);
}

void reader_route(struct reader *reader)
{
    reader_ask(reader, WIRE_ROUTE, object_key_home(reader->at, reader->key));
}

void reader_join(struct reader *reader)
{
    check(reader->object != NULL);
    reader_ask(reader, WIRE_JOIN,
               object_key_owner(reader->at, reader->key, reader->block * reader->block_size_bytes));
}

void reader_check(struct reader *reader)
{
    reader->check = true;
    reader_ask(reader, WIRE_CHECK, object_key_home(reader->at, reader->key));
}

void reader_taken(struct reader *reader, uint64_t bytes)
{
    check(reader->queued_bytes >= bytes);
    reader->queued_bytes -= bytes;
    if (reader->state == READER_ATTACHED && !reader->left && !reader->stored) {
        struct wire *wire = wire_new(reader->at, WIRE_TAKEN, NULL);
        wire->attachment = reader->attachment;
        wire->len = (uint32_t)bytes;
        wire_send(reader->owner, wire);
    }
}

// --- answers -------------------------------------------------------------------------------------

static void reader_tell(struct reader *reader)
{
    if (reader->request != NULL) {
        serve_get_on_reader(reader->request, reader);
    }
}

// The last answer: the reader ends, or is freed when its request has gone.
static void reader_end(struct reader *reader, enum reader_outcome outcome, struct wire *wire)
{
    reader->state = READER_ENDED;
    reader->outcome = outcome;
    reader->err = wire->err;
    reader->place = wire->place;
    if (wire->object != NULL && reader->answer == NULL) {
        reader->answer = wire->object;
        wire->object = NULL;
    }
    reader->error_answer = wire->document;
    wire->document = (struct span){0};
    if (reader->request == NULL) {
        worker_free_later(reader->at->worker, reader_free, reader);
    } else {
        reader_tell(reader);
    }
}

void reader_on_attached(struct proxy_worker *pw, struct wire *wire)
{
    (void)pw;
    struct reader *reader = as_reader(wire->reader);
    check(reader->state == READER_ASKED);
    reader->state = READER_ATTACHED;
    reader->attachment = wire->attachment;
    reader->owner = wire->from;
    if (reader->request == NULL) {
        reader_leave(reader);
        return;
    }
    reader->request->collapsed |= wire->flag;
}

void reader_on_head(struct proxy_worker *pw, struct wire *wire)
{
    (void)pw;
    struct reader *reader = as_reader(wire->reader);
    check(reader->answer == NULL);
    reader->answer = wire->object;
    wire->object = NULL;
    reader->stored = wire->flag;
    reader->run_end_byte = wire->end_byte;
    reader->weak = wire->block != 0;
    reader_tell(reader);
}

void reader_on_body(struct proxy_worker *pw, struct wire *wire)
{
    (void)pw;
    struct reader *reader = as_reader(wire->reader);
    if (reader->request == NULL || reader->lagging) {
        return;
    }
    if (reader->stored && reader->queued_bytes > chunk_budget_lean(PROXY_READER_QUEUE_MAX)) {
        reader->lagging = true; // the rest comes from disk
        stats_add(COUNTER_readers_detached, 1);
        return;
    }
    struct piece *piece = calloc(1, sizeof(*piece));
    check(piece != NULL);
    list_node_init(&piece->node);
    piece->chunk = wire->chunk;
    wire->chunk = NULL;
    piece->offset = wire->offset;
    piece->len = wire->len;
    piece->first_byte = wire->first_byte;
    list_push_back(&reader->pieces, &piece->node);
    reader->queued_bytes += piece->len;
    reader_tell(reader);
}

void reader_on_final(struct proxy_worker *pw, struct wire *wire)
{
    (void)pw;
    struct reader *reader = as_reader(wire->reader);
    check(reader->state == READER_ATTACHED);
    reader_leave(reader);
    if (reader->request == NULL) {
        store_place_unpin(&wire->place);
    }
    reader_end(reader, wire->outcome, wire);
}

void reader_on_place(struct proxy_worker *pw, struct wire *wire)
{
    (void)pw;
    struct reader *reader = as_reader(wire->reader);
    if (reader->request == NULL) {
        store_place_unpin(&wire->place);
    }
    reader_end(reader, OUTCOME_DONE, wire);
}

void reader_on_again(struct proxy_worker *pw, struct wire *wire)
{
    (void)pw;
    reader_end(as_reader(wire->reader), OUTCOME_REJOIN, wire);
}

void reader_on_error(struct proxy_worker *pw, struct wire *wire)
{
    (void)pw;
    reader_end(as_reader(wire->reader), OUTCOME_ERROR, wire);
}

void reader_on_checked(struct proxy_worker *pw, struct wire *wire)
{
    (void)pw;
    reader_end(as_reader(wire->reader), wire->outcome, wire);
}

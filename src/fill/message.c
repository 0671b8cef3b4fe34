// SPDX-License-Identifier: Apache-2.0
// The messages that carry the protocol between workers.
#include "fill/fill_private.h"

#include <stdlib.h>
#include <string.h>

struct wire *wire_new(struct fill_worker *from, enum wire_type type, struct object_key *key)
{
    struct wire *wire = calloc(1, sizeof(*wire));
    check(wire != NULL);
    wire->type = type;
    wire->from = from;
    wire->key = key != NULL ? object_key_ref(key) : NULL;
    return wire;
}

typedef void wire_fn(struct fill_worker *fw, struct wire *wire);

static void wire_deliver(struct worker *to, struct message *message)
{
    static wire_fn *const receivers[] = {
#define WIRE(name, fn) [WIRE_##name] = fn,
#include "fill/wires.def"
#undef WIRE
    };
    struct wire *wire = container_of(message, struct wire, message);
    check(wire->type < WIRE_COUNT_);
    receivers[wire->type](fill_worker_of(to), wire);
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

void wire_send(struct fill_worker *to, struct wire *wire)
{
    wire->message.deliver = wire_deliver;
    mailbox_send(to->worker, &wire->message);
}

// SPDX-License-Identifier: Apache-2.0
// Creates and sends messages between workers, and releases what the receiver has left in them. Runs
// on the sender's worker, then on the receiver's; message_dispatch.c calls the receiver in between.
#include "fill/message.h"

#include <stdlib.h>
#include <string.h>

#include "fill/fill_private.h"

struct fill_message *message_new(struct fill_worker *from, enum fill_message_type type,
                                 struct object_key *key)
{
    static const size_t sizes[] = {
#define MESSAGE(name, payload, ...) [MESSAGE_##name] = sizeof(struct payload##_message),
#include "fill/messages.def"
#undef MESSAGE
    };
    check(type < MESSAGE_COUNT_ && from != NULL);
    struct fill_message *message = calloc(1, sizes[type]);
    check(message != NULL);
    message->type = type;
    message->from = from;
    message->key = key != NULL ? object_key_ref(key) : NULL;
    return message;
}

struct span message_document(struct span s)
{
    char *copy = s.len > 0 ? malloc(s.len) : NULL;
    if (copy == NULL) {
        return (struct span){0};
    }
    memcpy(copy, s.ptr, s.len);
    return (struct span){copy, s.len};
}

static void document_free(struct span document)
{
    free((void *)(uintptr_t)document.ptr);
}

#define AS(payload) container_of(message, struct payload##_message, base)

void message_release(struct fill_message *message)
{
    switch (message->type) {
    case MESSAGE_version:
    case MESSAGE_version_gone:
        store_object_unref(AS(version)->object);
        break;
    case MESSAGE_first_end:
        document_free(AS(first_end)->document);
        break;
    case MESSAGE_publish:
        store_object_unref(AS(publish)->object);
        s3_checksum_free(AS(publish)->sum);
        break;
    case MESSAGE_head:
        store_object_unref(AS(head)->object);
        break;
    case MESSAGE_body:
        chunk_unref(AS(body)->chunk);
        break;
    case MESSAGE_final:
    case MESSAGE_place:
    case MESSAGE_again:
    case MESSAGE_error:
    case MESSAGE_revalidated:
        store_object_unref(AS(answer)->object);
        document_free(AS(answer)->document);
        break;
    case MESSAGE_route:
    case MESSAGE_revalidate:
    case MESSAGE_told:
    case MESSAGE_floor_ack:
    case MESSAGE_write_begin:
    case MESSAGE_write_end:
    case MESSAGE_join:
    case MESSAGE_first:
    case MESSAGE_visible:
    case MESSAGE_dropped:
    case MESSAGE_leave:
    case MESSAGE_taken:
    case MESSAGE_want:
    case MESSAGE_pages:
    case MESSAGE_attached:
    case MESSAGE_write_ready:
    case MESSAGE_write_done:
    case MESSAGE_invalidate:
    case MESSAGE_floor_lift:
    case MESSAGE_COUNT_:
        break; // these messages own nothing but the key
    }
    object_key_unref(message->key);
    free(message);
}

void message_send(struct fill_worker *to, struct fill_message *message)
{
    check(message->type < MESSAGE_COUNT_ && message->from != NULL);
    check(to != NULL && to->room == message->from->room);
    message->message.deliver = to->room->deliver;
    mailbox_send(to->worker, &message->message);
}

void message_send_again(struct fill_worker *from, struct subscription *sub)
{
    struct answer_message *m = message_again_new(from, NULL);
    m->subscription = sub;
    m->outcome = OUTCOME_REJOIN;
    message_send(sub->at, &m->base);
}

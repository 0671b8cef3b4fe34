// SPDX-License-Identifier: Apache-2.0
// Calls the receiver that messages.def names. Runs on the receiver's worker. Only this file depends
// on every receiver. Receivers send messages through message.c, which depends on none of them.
#include "fill/message.h"

#include "fill/fill_private.h"

#define AS(payload) container_of(message, struct payload##_message, base)

void message_dispatch(struct worker *to, struct message *delivered)
{
    struct fill_message *message = container_of(delivered, struct fill_message, message);
    struct fill_worker *fw = fill_worker_of(to);
    switch (message->type) {
#define MESSAGE(name, payload, receiver, ...)                                                      \
    case MESSAGE_##name:                                                                           \
        receiver(fw, AS(payload));                                                                 \
        break;
#include "fill/messages.def"
#undef MESSAGE
    case MESSAGE_COUNT_:
        check(false);
    }
    message_release(message);
}

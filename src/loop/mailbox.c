// SPDX-License-Identifier: Apache-2.0
// Messages between workers, and from other threads to workers. The sender gives the message to the
// receiver, which runs deliver() and frees it.
//
// A mailbox is a lock-free stack. Any thread pushes with one compare-and-swap. The owner takes the
// whole stack with one exchange, and reverses it to get the order of arrival. A push writes to the
// owner's eventfd only if the stack was empty. A worker chains the messages of one turn for each
// receiver, and pushes each chain at the end of the turn.
//
// Messages from one sender to one receiver arrive in order, because a chain keeps the sender's
// order, and the compare-and-swap orders all pushes.
#include <stdatomic.h>

#include "loop/loop_private.h"
#include "stats/stats.h"

// Limits on the messages of one turn. If some are left, the next turn does not wait.
#define DELIVER_MAX 4096
#define SELF_ROUNDS_MAX 8

// Pushes a chain of messages, linked from `newest` to `oldest`. They then belong to the receiver.
static void mailbox_push(struct worker *to, struct message *newest, struct message *oldest)
{
    struct message *head = atomic_load_explicit(&to->mailbox.pushed, memory_order_relaxed);
    do {
        oldest->next = head;
    } while (!atomic_compare_exchange_weak_explicit(&to->mailbox.pushed, &head, newest,
                                                    memory_order_release, memory_order_relaxed));
    if (head == NULL) {
        worker_wake(to);
    }
}

void mailbox_send_from_any_thread(struct worker *to, struct message *message)
{
    check(to->magic == WORKER_MAGIC);
    check(message->deliver != NULL);
    stats_add(COUNTER_mailbox_messages, 1);
    atomic_fetch_add_explicit(&to->loop->outside_sent_count, 1, memory_order_relaxed);
    mailbox_push(to, message, message);
}

static void mailbox_send_to_self(struct worker *w, struct message *message)
{
    struct mailbox *box = &w->mailbox;
    message->next = NULL;
    if (box->self_last == NULL) {
        box->self_first = message;
    } else {
        box->self_last->next = message;
    }
    box->self_last = message;
}

void mailbox_send(struct worker *to, struct message *message)
{
    struct worker *from = worker_current();
    if (from == NULL || from->loop != to->loop) {
        mailbox_send_from_any_thread(to, message);
        return;
    }
    check(message->deliver != NULL);
    stats_add(COUNTER_mailbox_messages, 1);
    from->mailbox.sent_count++;
    if (from == to) {
        mailbox_send_to_self(from, message);
        return;
    }
    struct message **newest = &from->mailbox.outgoing[to->index].newest;
    if (*newest == NULL) {
        from->mailbox.outgoing[to->index].oldest = message;
    }
    message->next = *newest;
    *newest = message;
    from->mailbox.has_outgoing = true;
}

void mailbox_flush(struct worker *w)
{
    check(worker_is_mine(w));
    if (!w->mailbox.has_outgoing) {
        return;
    }
    w->mailbox.has_outgoing = false;
    for (unsigned i = 0; i < w->loop->worker_count; i++) {
        struct message *newest = w->mailbox.outgoing[i].newest;
        if (newest != NULL) {
            struct message *oldest = w->mailbox.outgoing[i].oldest;
            check(oldest != NULL);
            w->mailbox.outgoing[i].newest = w->mailbox.outgoing[i].oldest = NULL;
            mailbox_push(&w->loop->workers[i], newest, oldest);
        }
    }
}

static struct message *mailbox_reversed(struct message *newest)
{
    struct message *first = NULL;
    while (newest != NULL) {
        struct message *older = newest->next;
        newest->next = first;
        first = newest;
        newest = older;
    }
    return first;
}

void mailbox_deliver_inbox(struct worker *w)
{
    struct mailbox *box = &w->mailbox;
    if (box->inbox == NULL) {
        if (atomic_load_explicit(&box->pushed, memory_order_relaxed) == NULL) {
            return;
        }
        box->inbox =
            mailbox_reversed(atomic_exchange_explicit(&box->pushed, NULL, memory_order_acquire));
    }
    for (unsigned i = 0; i < DELIVER_MAX && box->inbox != NULL; i++) {
        struct message *message = box->inbox;
        box->inbox = message->next;
        message->next = NULL;
        message->deliver(w, message);
        box->delivered_count++;
    }
}

void mailbox_deliver_self(struct worker *w)
{
    struct mailbox *box = &w->mailbox;
    for (unsigned round = 0; round < SELF_ROUNDS_MAX && box->self_first != NULL; round++) {
        struct message *message = box->self_first;
        box->self_first = box->self_last = NULL;
        while (message != NULL) {
            struct message *next = message->next;
            message->next = NULL;
            message->deliver(w, message);
            box->delivered_count++;
            message = next;
        }
    }
}

bool mailbox_has_work(const struct worker *w)
{
    return w->mailbox.inbox != NULL || w->mailbox.self_first != NULL || w->mailbox.has_outgoing ||
           atomic_load_explicit(&w->mailbox.pushed, memory_order_relaxed) != NULL;
}

// SPDX-License-Identifier: Apache-2.0
// Messages: order per sender, from workers and from other threads, to oneself, and at volume.
#include <pthread.h>
#include <stdlib.h>

#include "loop/loop.h"
#include "loop_fixture.h"
#include "stats/stats.h"
#include "test.h"

#define SENDERS 4
#define MESSAGES 20000

struct numbered {
    struct message message;
    unsigned sender, number;
};

struct receiver {
    unsigned next[SENDERS];
    unsigned total, expected;
    struct signal over;
};

static struct receiver receiver;

static void on_numbered(struct worker *w, struct message *message)
{
    struct numbered *numbered = container_of(message, struct numbered, message);
    cr_assert(worker_index(w) == 0);
    cr_assert(receiver.next[numbered->sender] == numbered->number);
    receiver.next[numbered->sender]++;
    if (++receiver.total == receiver.expected) {
        signal_raise(&receiver.over);
    }
    free(numbered);
}

static struct message *numbered_new(unsigned sender, unsigned number)
{
    struct numbered *numbered = calloc(1, sizeof(*numbered));
    cr_assert(numbered != NULL);
    *numbered = (struct numbered){{NULL, on_numbered}, sender, number};
    return &numbered->message;
}

struct sender {
    struct worker *to;
    unsigned index;
};

static void *send_from_thread(void *ctx)
{
    struct sender *sender = ctx;
    for (unsigned i = 0; i < MESSAGES; i++) {
        mailbox_send(sender->to, numbered_new(sender->index, i));
    }
    return NULL;
}

// Proves that messages of several threads, sent at once, all arrive, in each thread's order, and
// are counted.
Test(mailbox, fifo_from_threads)
{
    struct loop *loop = fixture_loop(DISK_ENGINE_THREADS, 1, 0);
    receiver = (struct receiver){.expected = SENDERS * MESSAGES};
    signal_init(&receiver.over);
    uint64_t counted = stats_sum(COUNTER_mailbox_messages);
    pthread_t threads[SENDERS];
    struct sender senders[SENDERS];
    for (unsigned i = 0; i < SENDERS; i++) {
        senders[i] = (struct sender){loop_worker(loop, 0), i};
        cr_assert(pthread_create(&threads[i], NULL, send_from_thread, &senders[i]) == 0);
    }
    for (unsigned i = 0; i < SENDERS; i++) {
        cr_assert(pthread_join(threads[i], NULL) == 0);
    }
    signal_wait(&receiver.over);
    cr_assert(stats_sum(COUNTER_mailbox_messages) - counted == SENDERS * MESSAGES);
    fixture_loop_end(&loop);
    signal_done(&receiver.over);
}

static void send_from_worker(struct worker *w, void *ctx)
{
    struct worker *to = ctx;
    for (unsigned i = 0; i < MESSAGES; i++) {
        mailbox_send(to, numbered_new(worker_index(w), i));
    }
    // Sent at the end of the turn; a message to oneself, after this callback.
    cr_assert(w != to || receiver.next[0] == 0);
}

// Proves that messages between workers, to oneself included, keep each sender's order.
Test(mailbox, fifo_between_workers)
{
    struct loop *loop = fixture_loop(DISK_ENGINE_THREADS, SENDERS, 0);
    receiver = (struct receiver){.expected = SENDERS * MESSAGES};
    signal_init(&receiver.over);
    for (unsigned i = SENDERS; i-- > 0;) {
        fixture_run_on(loop_worker(loop, i), send_from_worker, loop_worker(loop, 0));
    }
    signal_wait(&receiver.over);
    fixture_loop_end(&loop);
    signal_done(&receiver.over);
}

struct pingpong {
    struct message message;
    struct loop *loop;
    unsigned left;
    struct signal over;
};

static void on_pingpong(struct worker *w, struct message *message)
{
    struct pingpong *ball = container_of(message, struct pingpong, message);
    if (ball->left-- == 0) {
        signal_raise(&ball->over);
    } else {
        mailbox_send(loop_worker(ball->loop, 1 - worker_index(w)), message);
    }
}

// Proves that no wake-up is lost when each worker sleeps between two messages.
Test(mailbox, no_wakeup_is_lost)
{
    struct loop *loop = fixture_loop(DISK_ENGINE_THREADS, 2, 0);
    struct pingpong ball = {.message = {.deliver = on_pingpong}, .loop = loop, .left = 20000};
    signal_init(&ball.over);
    mailbox_send_from_any_thread(loop_worker(loop, 0), &ball.message);
    signal_wait(&ball.over);
    fixture_loop_end(&loop);
    signal_done(&ball.over);
}

// SPDX-License-Identifier: Apache-2.0
// Proves: each broken invariant aborts, and sound states pass.
#include "fill/home_private.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

static struct {
    struct fill_room room;
    struct fill_worker fw;
    struct store_object object;
    struct segment *segment;
    struct list table;
    struct fill fill;
    struct attachment attachment;
    struct chunk chunk;
    struct home_key home;
    struct key_write write;
    struct {
        struct list_node node;
    } held;
    struct held_publish publish;
    struct revalidation concluded;
    struct subscription sub;
    struct piece piece;
    struct chunk *chunks[2];
} it;

static void on_change(void *ctx, struct subscription *sub)
{
    (void)ctx, (void)sub;
}

// A run with its first chunk and one reader; a home that knows a version, a write open; an attached
// subscription with one piece.
static void make_sound(void)
{
    memset(&it, 0, sizeof(it));
    it.room.worker_count = 1;
    it.fw.room = &it.room;
    it.object.generation = 5;
    list_init(&it.table);
    struct fill *fill = &it.fill;
    *fill = (struct fill){.magic = FILL_MAGIC,
                          .fw = &it.fw,
                          .phase = FILL_BODY,
                          .transfer = TRANSFER_RUNNING,
                          .token = 1,
                          .object = &it.object,
                          .block_count = 1,
                          .block_size_bytes = CHUNK_SIZE,
                          .end_byte = CHUNK_SIZE,
                          .limit_byte = CHUNK_SIZE,
                          .received = 10};
    it.chunks[0] = &it.chunk;
    fill->chunks = it.chunks;
    fill->chunk_count = ARRAY_LEN(it.chunks);
    list_init(&fill->readers);
    list_node_init(&fill->map_node);
    list_push_back(&it.table, &fill->map_node);
    it.attachment = (struct attachment){.fill = fill, .subscription = &it.sub, .next_byte = 10};
    list_node_init(&it.attachment.node);
    list_push_back(&fill->readers, &it.attachment.node);
    struct home_key *h = &it.home;
    *h = (struct home_key){.fw = &it.fw,
                           .state = HOME_KNOWN,
                           .known = &it.object,
                           .token = 1,
                           .floor = 4,
                           .has_floor = true,
                           .deletes = 1,
                           .open_writes = 1};
    h->acked[0] = 4;
    list_init(&h->held);
    list_init(&h->starting);
    list_init(&h->closing);
    list_init(&h->next_revalidation);
    list_init(&h->concluded);
    list_init(&h->publishing);
    list_node_init(&it.held.node);
    list_node_init(&it.publish.node);
    list_node_init(&it.concluded.node);
    struct subscription *sub = &it.sub;
    *sub = (struct subscription){.magic = SUBSCRIPTION_MAGIC,
                                 .state = SUBSCRIPTION_ATTACHED,
                                 .on_change = on_change,
                                 .at = &it.fw,
                                 .owner = &it.fw,
                                 .attachment = &it.attachment,
                                 .answer = &it.object,
                                 .run_end_byte = CHUNK_SIZE,
                                 .next_byte = 10,
                                 .queued_bytes = 10};
    list_init(&sub->pieces);
    it.piece = (struct piece){.chunk = &it.chunk, .len = 10};
    list_node_init(&it.piece.node);
    list_push_back(&sub->pieces, &it.piece.node);
    list_node_init(&it.write.node);
}

static void look_at_all(void)
{
    fill_assert_run(&it.fill);
    fill_assert_home(&it.home);
    fill_assert_subscription(&it.sub);
}

#define INJURIES                                                                                   \
    INJURY(run_with_a_head_and_no_version, it.fill.object = NULL)                                  \
    INJURY(run_with_more_bytes_than_it_has, it.fill.received = it.fill.end_byte + 1)               \
    INJURY(run_beyond_its_limit, it.fill.limit_byte = it.fill.end_byte - 1)                        \
    INJURY(streamed_and_stored, it.fill.refused = REFUSAL_disk_full)                               \
    INJURY(stored_and_not_of_whole_blocks, it.fill.first_byte = 1)                                 \
    INJURY(token_outside_the_table, list_remove(&it.fill.map_node); it.fill.phase = FILL_LEFT;     \
           list_remove(&it.attachment.node); it.fill.chunks[0] = NULL)                             \
    INJURY(in_the_table_and_not, list_remove(&it.fill.map_node); it.fill.token = 0)                \
    INJURY(written_with_readers, it.fill.phase = FILL_WRITTEN; it.fill.received = CHUNK_SIZE;      \
           it.fill.transfer = TRANSFER_IDLE; it.fill.chunks[0] = NULL)                             \
    INJURY(written_before_all_has_come, it.fill.phase = FILL_WRITING;                              \
           it.fill.transfer = TRANSFER_IDLE)                                                       \
    INJURY(body_that_nothing_brings, it.fill.transfer = TRANSFER_IDLE)                             \
    INJURY(runs_with_a_reason_to_pause, it.fill.pause = FILL_PAUSE_MEMORY)                         \
    INJURY(parked_without_a_reason, it.fill.transfer = TRANSFER_PARKED)                            \
    INJURY(held_after_its_head, it.fill.transfer = TRANSFER_HELD; it.fill.describing = true)       \
    INJURY(stored_and_waits_for_its_readers, it.fill.transfer = TRANSFER_PAUSED;                   \
           it.fill.pause = FILL_PAUSE_WINDOW)                                                      \
    INJURY(waits_for_the_disk_without_a_run, it.fill.transfer = TRANSFER_PAUSED;                   \
           it.fill.pause = FILL_PAUSE_DISK)                                                        \
    INJURY(written_and_waits_for_memory, it.fill.phase = FILL_WRITING;                             \
           it.fill.transfer = TRANSFER_IDLE; it.fill.received = CHUNK_SIZE;                        \
           it.fill.pause = FILL_PAUSE_MEMORY)                                                      \
    INJURY(promised_after_the_head, it.fill.is_promised = true)                                    \
    INJURY(judged_before_all_has_come, it.fill.verdict = FILL_VERDICT_PASSED)                      \
    INJURY(leads_and_fetches_nothing, it.fill.transfer = TRANSFER_RESUMING;                        \
           it.fw.memory_lead = &it.fill)                                                           \
    INJURY(attachment_of_another_run, it.attachment.fill = NULL)                                   \
    INJURY(taken_before_it_was_sent, it.attachment.acked_byte = 11)                                \
    INJURY(bytes_without_their_chunk, it.fill.chunks[0] = NULL)                                    \
    INJURY(known_without_a_version, it.home.known = NULL)                                          \
    INJURY(known_below_the_floor, it.object.generation = 3)                                        \
    INJURY(known_for_ever, it.home.token = 0)                                                      \
    INJURY(found_and_nothing_to_decide, it.home.found.has = true)                                  \
    INJURY(held_and_known, list_push_back(&it.home.held, &it.held.node))                           \
    INJURY(publish_held_and_known, list_push_back(&it.home.publishing, &it.publish.node))          \
    INJURY(held_for_no_delete, it.home.state = HOME_NONE; it.home.token = 0; it.home.known = NULL; \
           it.home.deletes = 0; list_push_back(&it.home.held, &it.held.node))                      \
    INJURY(decides_before_all_have_acknowledged, it.home.acked[0] = 3)                             \
    INJURY(answer_kept_for_nothing, it.home.deletes = 0;                                           \
           list_push_back(&it.home.concluded, &it.concluded.node))                                 \
    INJURY(deciding_without_a_token, it.home.state = HOME_DECIDING; it.home.known = NULL;          \
           it.home.token = 0)                                                                      \
    INJURY(floor_lifted_inside_a_write, it.home.has_floor = false)                                 \
    INJURY(acknowledged_what_was_not_sent, it.home.acked[0] = 5)                                   \
    INJURY(a_write_waits_for_no_delete, it.home.deletes = 0;                                       \
           list_push_back(&it.home.starting, &it.write.node))                                      \
    INJURY(ended_without_an_outcome, it.sub.state = SUBSCRIPTION_ENDED)                            \
    INJURY(gone_and_still_attached, it.sub.on_change = NULL)                                       \
    INJURY(queue_and_count_differ, it.sub.queued_bytes = 11)                                       \
    INJURY(piece_behind_the_run, it.piece.first_byte = CHUNK_SIZE)                                 \
    INJURY(pages_and_chunk_in_one_piece, it.piece.pages.segment = (struct segment *)&it)           \
    INJURY(piece_before_the_next_byte, it.sub.next_byte = 11)                                      \
    INJURY(wants_what_has_come, it.sub.stored = true; it.sub.flow = FLOW_WANTS)                    \
    INJURY(pages_of_no_run, it.fill.pages.segment = (struct segment *)&it)                         \
    INJURY(lags_behind_what_is_not_stored, it.sub.flow = FLOW_LAGS)

#define INJURY(name, ...)                                                                          \
    static void name(void)                                                                         \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }
INJURIES
#undef INJURY

static bool aborts(void (*injure)(void))
{
    pid_t pid = fork();
    if (pid == 0) {
        (void)signal(SIGABRT, SIG_DFL);
        int quiet = open("/dev/null", O_WRONLY | O_CLOEXEC);
        (void)dup2(quiet, STDERR_FILENO);
        make_sound();
        if (injure != NULL) {
            injure();
        }
        look_at_all();
        _exit(0);
    }
    int status = 0;
    cr_assert(pid > 0 && waitpid(pid, &status, 0) == pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

Test(fill_assert, each_broken_invariant_aborts)
{
    static const struct {
        const char *name;
        void (*injure)(void);
    } cases[] = {
#define INJURY(name, ...) {#name, name},
        INJURIES
#undef INJURY
    };
    cr_assert(!aborts(NULL), "what is sound aborts");
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        cr_assert(aborts(cases[i].injure), "%s", cases[i].name);
    }
}

// SPDX-License-Identifier: Apache-2.0
// Proves: a request that passes through aborts the process if it breaks the order of its phases. So
// no write asks the origin before its first invalidation, and no client is answered before the
// second.
#include "proxy/ask.h"

#include "test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

// Starts a PUT. Its keys are invalidated, and the origin is asked, unless the test stops it.
static struct pass_state *put(void)
{
    ask_init("PUT", "/b/k");
    ask_body_of(5);
    ask_start();
    return ask.r.pass;
}

static struct pass_state *put_asked(void)
{
    struct pass_state *p = put();
    ask_all_ready();
    cr_assert_eq(p->phase, PASS_ASK);
    return p;
}

static struct pass_state *get(void)
{
    ask_init("GET", "/b/k?acl");
    ask_start();
    return ask.r.pass;
}

static enum pass_phase goes_over(const struct pass_state *p)
{
    return p->phase == PASS_ASK ? PASS_OVER : p->phase;
}
static enum pass_phase goes_answer(const struct pass_state *p)
{
    return p->phase == PASS_ASK ? PASS_ANSWER : p->phase;
}
static enum pass_phase goes_ask(const struct pass_state *p)
{
    return p->phase == PASS_OPEN ? PASS_ASK : p->phase;
}

static void go_by(struct pass_state *p, enum pass_phase (*next)(const struct pass_state *p))
{
    static struct pass_row rows[PASS_PHASE_COUNT_];
    for (unsigned i = 0; i < PASS_PHASE_COUNT_; i++) {
        rows[i].next = next;
    }
    p->rows = rows;
    pass_go(p);
}

// The steps of each machine that its table forbids, or that the phases of the others forbid.
#define STEPS                                                                                      \
    STEP(a_request_is_over_before_its_answer, go_by(get(), goes_over))                             \
    STEP(a_write_is_answered_before_its_second_invalidation, go_by(put_asked(), goes_answer))      \
    STEP(a_write_asks_before_its_first_invalidation, go_by(put(), goes_ask))                       \
    STEP(a_call_starts_while_keys_are_invalidated, pass_enter_call(put(), CALL_RUNNING))           \
    STEP(a_running_call_is_parked, pass_enter_call(put_asked(), CALL_PARKED))                      \
    STEP(a_relay_runs_again_after_its_end, struct pass_state *p = get();                           \
         pass_enter_call(p, CALL_ENDED); pass_enter_call(p, CALL_RUNNING))                         \
    STEP(a_dropped_body_flows_again, struct pass_state *p = put_asked();                           \
         pass_enter_upload(p, UPLOAD_DROPPED); pass_enter_upload(p, UPLOAD_FLOWS))                 \
    STEP(a_body_that_is_no_form_has_a_key_to_find, struct pass_state *p = put_asked();             \
         pass_enter_upload(p, UPLOAD_FORM_HEAD))                                                   \
    STEP(a_client_gets_a_head_that_is_not_there, pass_enter_answer(get(), ANSWER_SENT))            \
    STEP(a_client_is_answered_twice, struct pass_state *p = get(); ask_origin_head(200, 5);        \
         pass_enter_answer(p, ANSWER_REFUSED))                                                     \
    STEP(a_client_hears_of_a_write_too_early, struct pass_state *p = put_asked();                  \
         pass_enter_answer(p, ANSWER_HEAD); pass_enter_answer(p, ANSWER_SENT))

#define STEP(name, ...)                                                                            \
    static void name(void)                                                                         \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }
STEPS
#undef STEP

static void nothing_forbidden(void)
{
    struct pass_state *p = put_asked();
    pass_go(p);
    cr_assert_eq(p->phase, PASS_ASK);
}

static bool aborts(void (*step)(void))
{
    pid_t pid = fork();
    if (pid == 0) {
        (void)signal(SIGABRT, SIG_DFL);
        int quiet = open("/dev/null", O_WRONLY | O_CLOEXEC);
        (void)dup2(quiet, STDERR_FILENO);
        step();
        _exit(0);
    }
    int status = 0;
    cr_assert(pid > 0 && waitpid(pid, &status, 0) == pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

Test(pass_state, each_forbidden_step_aborts)
{
    static const struct {
        const char *name;
        void (*step)(void);
    } steps[] = {
#define STEP(name, ...) {#name, name},
        STEPS
#undef STEP
    };
    cr_assert(!aborts(nothing_forbidden));
    for (unsigned i = 0; i < ARRAY_LEN(steps); i++) {
        cr_assert(aborts(steps[i].step), "%s", steps[i].name);
    }
}

// SPDX-License-Identifier: Apache-2.0
// Proves: our own name in a Via is found at any position. Other names are counted and kept in
// order. The name is drawn once. An origin is trusted to lead nowhere else only after it has
// answered.
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "harness.h"
#include "test.h"

static enum err check_via(struct arena *arena, const char *value, unsigned *ret_hops)
{
    struct headers client = {0};
    cr_assert(headers_add(&client, arena, SPAN("vIA"), span_from_cstr(value)));
    return origin_hops_judge(&client, ret_hops);
}

Test(hops, own_name_is_a_loop_and_others_are_counted)
{
    struct arena *arena = arena_new(65536);
    struct headers client = {0}, sent = {0};
    unsigned hops = 99;
    cr_assert_eq(origin_hops_judge(&client, &hops), ERR_OK);
    cr_assert_eq(hops, 0);
    cr_assert(headers_add(&client, arena, SPAN("Via"), SPAN("1.0 fred, 1.1 p.example (x, y)")));
    cr_assert(headers_add(&client, arena, SPAN("via"), SPAN("1.1 forebay-0123456789abcdef")));
    cr_assert_eq(origin_hops_judge(&client, &hops), ERR_OK);
    cr_assert_eq(hops, 1);
    cr_assert(origin_hops_add(arena, &client, &sent));
    cr_assert_eq(sent.count, 3);
    cr_assert(span_equal(sent.items[1].value, SPAN("1.1 forebay-0123456789abcdef")));
    cr_assert_eq(origin_hops_judge(&sent, &hops), ERR_LOOP);
    const char *own = arena_printf(arena, "1.0 fred,%.*s , 1.1 other", (int)sent.items[2].value.len,
                                   sent.items[2].value.ptr);
    cr_assert_eq(check_via(arena, own, &hops), ERR_LOOP);
    cr_assert_eq(check_via(arena, "1.1 forebay-01234567", &hops), ERR_OK);
    cr_assert_eq(hops, 0, "not a name of ours");
    arena_free(arena);
}

Test(hops, a_row_without_end_is_a_loop)
{
    struct arena *arena = arena_new(65536);
    struct buf via;
    unsigned hops = 0;
    buf_init(&via, 4096);
    for (unsigned i = 0; i < 8; i++) {
        buf_printf(&via, "1.1 forebay-%016x,", i);
    }
    cr_assert_eq(check_via(arena, buf_cstr(&via), &hops), ERR_OK);
    cr_assert_eq(hops, 8);
    buf_append_cstr(&via, "1.1 forebay-0000000000000008");
    cr_assert_eq(check_via(arena, buf_cstr(&via), &hops), ERR_LOOP);
    buf_done(&via);
    arena_free(arena);
}

Test(hops, an_answer_is_trusted_until_there_is_none)
{
    static const struct {
        unsigned status; // 0: a time-out
        bool trusted;
    } rows[] = {{503, false}, {508, false}, {404, true}, {500, true},
                {508, false}, {206, true},  {0, false},  {403, true}};
    struct origin origin = {.driver = &origin_s3_driver};
    cr_assert_not(origin_has_answered(&origin));
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        if (rows[i].status == 0) {
            origin_hops_doubt(&origin);
        } else {
            origin_hops_learn(&origin, rows[i].status);
        }
        cr_assert_eq(origin_has_answered(&origin), rows[i].trusted, "row %zu", i);
    }
    origin.driver = &origin_directory_driver;
    origin_hops_doubt(&origin);
    cr_assert(origin_has_answered(&origin), "a directory asks nobody");
}

#ifndef FOREBAY_TSAN // a seccomp filter stays for the rest of the process

static void refuse_random(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getrandom, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {ARRAY_LEN(code), code};
    cr_assert(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    cr_assert(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

Test(hops, a_request_asks_the_kernel_for_nothing)
{
    struct arena *arena = arena_new(65536);
    struct headers none = {0}, first = {0}, second = {0};
    unsigned hops = 0;
    cr_assert(origin_hops_add(arena, NULL, &first));
    refuse_random();
    cr_assert_eq(origin_hops_judge(&none, &hops), ERR_OK);
    cr_assert_eq(origin_hops_judge(&first, &hops), ERR_LOOP);
    cr_assert(origin_hops_add(arena, NULL, &second));
    cr_assert(span_equal(first.items[0].value, second.items[0].value));
    arena_free(arena);
}

#endif

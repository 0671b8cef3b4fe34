// SPDX-License-Identifier: Apache-2.0
// Proves: the lock file of the index, which look-ups write to, is in memory. Where the kernel gives
// no file in memory, the index works with a lock file on disk.
#include "store/index/index.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "store/store_fixture.h"
#include "test.h"

static const struct object OBJECT = {"bkt/a", "\"a\"", BLOCK, BLOCK, 1};

static bool maps(const char *name)
{
    char line[1024];
    bool found = false;
    FILE *file = fopen("/proc/self/maps", "r");
    cr_assert_not_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        found = found || strstr(line, name) != NULL;
    }
    (void)fclose(file);
    return found;
}

// Opens a cache twice. The second time, the index holds what was put the first time.
static void index_works(const char *lock_file)
{
    struct box box;
    struct store_place place;
    static struct store_view view;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    cr_assert(maps(lock_file));
    cr_assert_eq(box_write(&box, 0, &OBJECT, 0, 1, 1, &place), ERR_OK);
    cr_assert_eq(box_post_put(&box, &OBJECT, &place), ERR_OK);
    box_let_go(&place);
    box_close(&box);
    cr_assert(box_open(&box));
    box_look(&box, &OBJECT, &view);
    cr_assert(view.found);
    store_view_done(&view);
    box_close(&box);
    cr_assert_not(maps(lock_file));
    box_remove(&box);
}

Test(index, the_lock_file_is_in_memory)
{
    index_works("memfd:forebay-index-lock");
}

#ifndef FOREBAY_TSAN // a seccomp filter stays for the rest of the process
// A filter for system calls refuses memfd_create(), as the profile of a container may.
Test(index, the_lock_file_is_on_disk_where_no_file_can_be_in_memory)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {ARRAY_LEN(rules), rules};
    cr_assert_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    cr_assert_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
    index_works("/index/lock.mdb");
}
#endif

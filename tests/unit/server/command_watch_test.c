// SPDX-License-Identifier: Apache-2.0
// Proves: each change of a watched file after it was noted is reported once it has settled.
#include "server/command_watch.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "test.h"

static struct command_watch watch;
static char folder[32], one[64], two[64];

static void begin(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/forebay-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    (void)snprintf(one, sizeof(one), "%s/one", folder);
    (void)snprintf(two, sizeof(two), "%s/two", folder);
}

static void end(void)
{
    command_watch_done(&watch);
    (void)unlink(one);
    (void)unlink(two);
    (void)rmdir(folder);
}

static void append(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    cr_assert(fd >= 0 && write(fd, "x", 1) == 1);
    (void)close(fd);
}

// Returns what the second of two checks reports.
static const char *look(void)
{
    clock_test_advance_us(3000000);
    (void)command_watch_look(&watch);
    clock_test_advance_us(3000000);
    return command_watch_look(&watch);
}

Test(command_watch, a_change_after_the_path_was_set_is_reported)
{
    begin();
    append(one);
    command_watch_set(&watch, 2, one);
    cr_assert_null(look());
    append(one); // as after it was read
    cr_assert_str_eq(look(), one);
    command_watch_set(&watch, 2, one);
    cr_assert_str_eq(look(), one, "the same path is not noted again");
    command_watch_note(&watch);
    cr_assert_null(look());
    end();
}

Test(command_watch, another_path_takes_the_place_of_the_former)
{
    begin();
    append(one);
    command_watch_set(&watch, 0, one);
    command_watch_set(&watch, 0, two); // missing
    append(one);
    cr_assert_null(look());
    append(two);
    cr_assert_str_eq(look(), two);
    command_watch_set(&watch, 0, NULL);
    cr_assert_null(look());
    end();
}

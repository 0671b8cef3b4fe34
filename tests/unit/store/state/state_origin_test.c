// SPDX-License-Identifier: Apache-2.0
// Proves: a start learns the default origin of the last start only if it has another one.
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/state/state_origin.h"
#include "test.h"

Test(state_origin, a_start_learns_the_origin_of_the_last_one_if_it_has_another)
{
    char path[] = "/tmp/forebay-XXXXXX", former[STATE_ORIGIN_MAX + 1];
    cr_assert_not_null(mkdtemp(path));
    struct store_dir dir = {.fd = open(path, O_RDONLY | O_DIRECTORY)};
    static const char *const starts[][2] = {
        {"http://a", ""}, {"http://a", ""}, {"http://b", "http://a"}, {"http://a", "http://b"}};
    for (size_t i = 0; i < ARRAY_LEN(starts); i++) {
        state_origin_exchange(&dir, starts[i][0], former);
        cr_assert_str_eq(former, starts[i][1], "%zu: %s", i, former);
    }
    cr_assert_eq(unlinkat(dir.fd, "origin", 0), 0);
    cr_assert_eq(rmdir(path), 0, "no other file is left");
    (void)close(dir.fd);
}

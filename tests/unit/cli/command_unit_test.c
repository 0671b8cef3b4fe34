// SPDX-License-Identifier: Apache-2.0
// Proves: a variable that the unit has and this environment lacks is found in the unit's file.
#include "test.h"

#include "cli/client/command_unit.h"

#include <stdlib.h>
#include <unistd.h>

// Writes the file, and returns the variable that is found; "" for none.
static const char *found(const char *text)
{
    static char name[COMMAND_UNIT_NAME_MAX];
    char path[] = "/tmp/forebay-unit-XXXXXX";
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
    bool is_found = command_unit_sets(path, name);
    cr_assert_eq(unlink(path), 0);
    return is_found ? name : "";
}

Test(command_unit, first_variable_that_is_not_set_here_is_found)
{
    setenv("UNIT_TEST_SET", "x", 1);
    unsetenv("UNIT_TEST_A");
    cr_assert_str_eq(found("# UNIT_TEST_A=1\n; UNIT_TEST_A=1\n\nUNIT_TEST_SET=y\n"), "");
    cr_assert_str_eq(found("UNIT_TEST_SET=y\n  UNIT_TEST_A=\"b c\"\nOTHER=1\n"), "UNIT_TEST_A");
    cr_assert_str_eq(found("UNIT_TEST_A\n"), "");
    char name[COMMAND_UNIT_NAME_MAX];
    cr_assert_not(command_unit_sets("/dev/null/none", name));
}

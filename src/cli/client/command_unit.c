// SPDX-License-Identifier: Apache-2.0
#include "cli/client/command_unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_MAX_BYTES 8192

bool command_unit_sets(const char *path, char ret_name[COMMAND_UNIT_NAME_MAX])
{
    char line[LINE_MAX_BYTES];
    bool is_missing = false;
    FILE *file = fopen(path, "re");
    while (file != NULL && !is_missing && fgets(line, sizeof(line), file) != NULL) {
        struct span text = span_trim(span_from_cstr(line));
        size_t len = span_find(text, '=');
        bool is_set = len > 0 && len < text.len && text.ptr[0] != '#' && text.ptr[0] != ';';
        if (is_set && len < COMMAND_UNIT_NAME_MAX) {
            (void)snprintf(ret_name, COMMAND_UNIT_NAME_MAX, "%.*s", (int)len, text.ptr);
            is_missing = getenv(ret_name) == NULL;
        }
    }
    if (file != NULL) {
        (void)fclose(file); // it was only read
    }
    return is_missing;
}

bool command_unit_differs(const struct config *config, char ret_name[COMMAND_UNIT_NAME_MAX])
{
    return commands_is_of_unit(config) && command_unit_sets(COMMAND_UNIT_VARIABLES, ret_name);
}

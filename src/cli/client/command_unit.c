// SPDX-License-Identifier: Apache-2.0
#include "cli/client/command_unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/server.h"

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

bool command_unit_is_another_user(const struct config *config)
{
    return geteuid() == 0 && config->file != NULL && commands_is_of_unit(config);
}

enum err command_unit_check_access_log(const struct config *config, struct buf *ret_why)
{
    static const char folder[] = COMMAND_UNIT_LOGS "/";
    const char *path = command_settings_access_log(config);
    bool is_file = path != NULL && strcmp(path, "-") != 0;
    if (!is_file || !command_unit_is_another_user(config)) {
        return command_settings_check_access_log(config, ret_why);
    }
    bool is_in_folder = strncmp(path, folder, sizeof(folder) - 1) == 0 &&
                        strchr(path + sizeof(folder) - 1, '/') == NULL;
    if (is_in_folder) {
        return ERR_OK;
    }
    enum err err = command_settings_check_access_log(config, ret_why);
    if (err == ERR_OK) {
        buf_printf(
            ret_why,
            "access_log.path: warning: the packaged unit can write a log to " COMMAND_UNIT_LOGS
            " only, unless a drop-in permits %s",
            path);
    }
    return err;
}

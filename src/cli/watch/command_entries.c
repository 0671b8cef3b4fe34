// SPDX-License-Identifier: Apache-2.0
#include "cli/watch/command_entries.h"

#include <stdio.h>

#define PATH_MAX_BYTES 16384u

static bool on_line(void *ctx, struct span line)
{
    struct command_entries *e = ctx;
    json_t *entry = json_loadb(line.ptr, line.len, JSON_ALLOW_NUL, NULL); // a key may contain NUL
    uint64_t dropped = command_client_u64(entry, "dropped");
    if (dropped > 0) {
        e->dropped += dropped;
        command_screen_tell(2, "forebay %s: %llu %s\n", e->client.name, (unsigned long long)dropped,
                            e->dropped_text);
        commands_line("warning", json_pack("{s:I}", "dropped", (json_int_t)dropped));
    } else if (entry != NULL) {
        e->count++;
        if (!e->client.is_json) {
            e->print(e->ctx, entry);
        }
        commands_line("item", json_incref(entry));
    }
    json_decref(entry);
    bool is_taken = fflush(stdout) == 0; // flush now, because the reader wants each entry at once
    return is_taken && (e->max == 0 || e->count < e->max);
}

int command_entries_follow(struct command_entries *e, const char *where)
{
    struct buf path;
    buf_init(&path, PATH_MAX_BYTES);
    buf_append_cstr(&path, "/api/v1/log");
    if (where != NULL) {
        command_client_parameter(&path, "where", span_from_cstr(where));
    }
    int code = command_client_follow(&e->client, buf_cstr(&path), on_line, e);
    buf_done(&path);
    return code;
}

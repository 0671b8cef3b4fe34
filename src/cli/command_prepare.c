// SPDX-License-Identifier: Apache-2.0
// `forebay prepare DIR [--owner UID:GID] [--wipe-older]`: for an init container or a node's set-up,
// which has no shell. What it does and refuses to do: store_prepare().
#include "commands/commands.h"

#include "store/offline/offline.h"

#include <stdio.h>
#include <string.h>

#define OUTPUT_MAX_BYTES 65536u
#define ID_MAX 0xfffffffeu // the one above says "unchanged" to chown(2)

static bool owner_parse(const char *text, struct store_prepare_options *options)
{
    struct span gid = span_from_cstr(text), uid;
    uint64_t numbers[2];
    if (!span_split(&gid, ':', &uid) || gid.ptr == NULL || !span_to_u64(uid, &numbers[0]) ||
        !span_to_u64(gid, &numbers[1]) || numbers[0] > ID_MAX || numbers[1] > ID_MAX) {
        return false;
    }
    options->has_owner = true;
    options->uid = (unsigned)numbers[0];
    options->gid = (unsigned)numbers[1];
    return true;
}

static void render_result(struct buf *out, int code, const char *text)
{
    if (!commands_common()->is_json) {
        buf_printf(out, "%s\n", text);
        return;
    }
    buf_printf(out, "{\"type\": \"result\", \"ok\": %s, \"exit\": %d, \"text\": ",
               code == EXIT_CODE_OK ? "true" : "false", code);
    commands_append_json(out, text);
    buf_append_cstr(out, "}\n");
}

int command_prepare(int argc, char **argv)
{
    bool bad = false;
    struct store_prepare_options options = {
        .wipe_older = commands_argument_take(&argc, argv, "--wipe-older")};
    const char *owner = commands_argument_take_value(&argc, argv, "--owner", &bad);
    struct buf what;
    if (owner != NULL && !owner_parse(owner, &options)) {
        return commands_usage_error("prepare",
                                    "--owner is UID:GID, two numbers such as 65532:65532");
    }
    options.dir = argv[0];
    buf_init(&what, OUTPUT_MAX_BYTES);
    enum err err = store_prepare(&options, &what);
    int code = err == ERR_OK ? EXIT_CODE_OK : EXIT_CODE_FAILED;
    if (err != ERR_OK && !commands_common()->is_json) {
        (void)fprintf(stderr, "forebay: %s\n", buf_cstr(&what));
    } else {
        struct buf out;
        buf_init(&out, OUTPUT_MAX_BYTES);
        render_result(&out, code, buf_cstr(&what));
        int printed = commands_print_result(&out);
        code = printed == EXIT_CODE_OK ? code : printed;
        buf_done(&out);
    }
    buf_done(&what);
    return code;
}

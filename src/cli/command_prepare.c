// SPDX-License-Identifier: Apache-2.0
// `forebay prepare DIR [--owner UID:GID] [--wipe-older]`: prepares a cache directory. It is for
// init containers and the set-up of nodes, and needs no shell. store_prepare() describes what it
// does and refuses.
#include "commands/commands.h"

#include "store/offline/offline.h"

#include <stdio.h>
#include <string.h>

#define OUTPUT_MAX_BYTES 65536u
#define ID_MAX 0xfffffffeu // to chown(2) the next number means "unchanged"

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

int command_prepare(int argc, char **argv)
{
    struct store_prepare_options options = {
        .wipe_older = commands_argument_take(&argc, argv, "--wipe-older")};
    const char *owner = commands_argument_take_value(&argc, argv, "--owner");
    struct buf what;
    if (owner != NULL && !owner_parse(owner, &options)) {
        return commands_usage_error("prepare",
                                    "--owner is UID:GID, two numbers such as 65532:65532");
    }
    options.dir = argv[0];
    buf_init(&what, OUTPUT_MAX_BYTES);
    enum err err = store_prepare(&options, &what);
    int code = err == ERR_OK ? EXIT_CODE_OK : EXIT_CODE_FAILED;
    if (!commands_common()->is_json) {
        (void)fprintf(err == ERR_OK ? stdout : stderr, "%s%s\n",
                      err == ERR_OK ? "" : "forebay: ", buf_cstr(&what));
    }
    code = commands_result(code, json_pack("{s:o}", "text", control_text(buf_span(&what))));
    buf_done(&what);
    return code;
}

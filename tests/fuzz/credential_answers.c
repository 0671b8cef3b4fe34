// SPDX-License-Identifier: Apache-2.0
// Any answer of a credential endpoint or program, any profile file, command line, time and URL: no
// crash. Accepted credentials are complete.
#include "origin/credentials_chain.h"
#include "origin/shared_profile.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void check_json(struct span text, bool needs_version)
{
    struct credentials_set *set = NULL;
    struct buf why;
    buf_init(&why, 4096);
    if (credentials_parse_json("test", text, needs_version, &set, &why) == ERR_OK) {
        check(set != NULL && set->keys.access_key.len > 0 && set->keys.secret_key.len > 0);
        credentials_set_unref(set);
    } else {
        check(why.len > 0);
    }
    buf_done(&why);
}

static void check_command(struct span text)
{
    char *command = malloc(text.len + 1), *storage = malloc(text.len + 1), *words[8];
    unsigned count;
    memcpy(command, text.ptr, text.len);
    command[text.len] = '\0';
    if (credentials_split_command(command, storage, words, ARRAY_LEN(words), &count)) {
        check(count <= ARRAY_LEN(words));
        for (unsigned i = 0; i < count; i++) {
            check(words[i] >= storage && words[i] + strlen(words[i]) <= storage + text.len);
        }
    }
    (void)credentials_container_url_is_allowed(command);
    free(storage);
    free(command);
}

static void check_profile(struct span text)
{
    static const char *const outers[] = {NULL, "s3"};
    struct shared_profile_section section = {NULL, SPAN("default")};
    struct span value;
    for (size_t i = 0; i < ARRAY_LEN(outers); i++) {
        if (shared_profile_section_value(text, section, outers[i], "aws_access_key_id", &value)) {
            check(value.ptr >= text.ptr && value.ptr + value.len <= text.ptr + text.len);
            check(shared_profile_has_section(text, section));
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct span text = {(const char *)bytes, len};
    int64_t s;
    if (len == 0 || len > 16384) {
        return 0;
    }
    check_json(text, false);
    check_json(text, true);
    check_profile(text);
    (void)credentials_parse_time(text, &s);
    check_command(text);
    return 0;
}

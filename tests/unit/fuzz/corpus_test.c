// SPDX-License-Identifier: Apache-2.0
// Proves: no target of tests/fuzz finds anything in its corpus, in what is left of each file when
// its end is cut off, and in nothing at all. New inputs are found by tests/fuzz/run.
#include "test.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/log.h"

#define INPUT_MAX (1u << 20)

typedef int target_fn(const uint8_t *bytes, size_t len);

#define TARGET(name) target_fn fuzz_##name;
FUZZ_TARGETS
#undef TARGET

static const struct {
    const char *name;
    target_fn *fn;
} TARGETS[] = {
#define TARGET(name) {#name, fuzz_##name},
    FUZZ_TARGETS
#undef TARGET
};

// A copy of its own, so that ASan finds a byte read past its end.
static void feed(target_fn *fn, const uint8_t *bytes, size_t len)
{
    uint8_t *copy = malloc(len + (len == 0));
    for (size_t i = 0; i < len; i++) {
        copy[i] = bytes[i];
    }
    cr_assert(fn(copy, len) == 0);
    free(copy);
}

static void feed_file(target_fn *fn, const char *path)
{
    uint8_t *bytes = malloc(INPUT_MAX);
    FILE *file = fopen(path, "rb");
    cr_assert(file != NULL, "%s", path);
    size_t len = fread(bytes, 1, INPUT_MAX, file);
    cr_assert(len < INPUT_MAX, "%s", path);
    (void)fclose(file); // nothing was written to it
    feed(fn, bytes, len);
    for (unsigned i = 1; i < 8; i++) {
        feed(fn, bytes, len * i / 8);
    }
    free(bytes);
}

static unsigned feed_folder(target_fn *fn, const char *name)
{
    char path[4096];
    unsigned count = 0;
    snprintf(path, sizeof(path), "%s/%s", FUZZ_CORPUS, name);
    DIR *dir = opendir(path);
    cr_assert(dir != NULL, "%s has no corpus", name);
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (entry->d_name[0] != '.') {
            snprintf(path, sizeof(path), "%s/%s/%s", FUZZ_CORPUS, name, entry->d_name);
            fprintf(stderr, "%s\n", path);
            feed_file(fn, path);
            count++;
        }
    }
    closedir(dir);
    return count;
}

Test(fuzz, corpora)
{
    log_init(LOG_LEVEL_ERROR, false);
    for (unsigned i = 0; i < ARRAY_LEN(TARGETS); i++) {
        cr_assert(feed_folder(TARGETS[i].fn, TARGETS[i].name) > 0, "%s", TARGETS[i].name);
    }
}

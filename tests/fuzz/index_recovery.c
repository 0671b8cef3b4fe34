// SPDX-License-Identifier: Apache-2.0
// An LMDB file of anybody's making: the child that looks through it may die, the parent must not,
// and decoded records are sane. The records' decoders are fuzzed directly as well.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/index_check.h"
#include "store/store_dir.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char dir[256];

static void dir_make(void)
{
    if (dir[0] == '\0') {
        const char *tmp = getenv("TMPDIR");
        (void)snprintf(dir, sizeof(dir), "%s/fuzz-index-XXXXXX", tmp != NULL ? tmp : "/tmp");
        check(mkdtemp(dir) != NULL);
    }
}

static void records(const uint8_t *data, size_t size)
{
    struct span value = {(const char *)data, size};
    struct index_record record;
    struct index_place place;
    struct index_meta meta;
    struct hash128 owner;
    struct store_format format;
    if (index_object_decode((struct hash128){0, 0}, value, &record) &&
        (record.flags & INDEX_WHOLE) != 0) {
        check(record.place.header_len <= RUN_HEADER_MAX);
    }
    if (index_place_decode(0, 0, value, &owner, &place)) {
        check(place.block_count > 0);
    }
    (void)!index_meta_decode(value, &meta);
    (void)(store_format_parse(value, &format) == ERR_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    records(data, size);
    if (size < 8192 || size > 1u << 20) {
        return 0;
    }
    dir_make();
    char path[300];
    (void)snprintf(path, sizeof(path), "%s/data.mdb", dir);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    check(fd >= 0);
    check(write(fd, data, size) == (ssize_t)size);
    (void)close(fd);
    int folder = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    check(folder >= 0);
    if (index_check_size(folder)) {
        static const uint8_t cache_id[CACHE_ID_LEN];
        struct index_check child;
        (void)index_check_start(&child, dir, 1u << 30, cache_id);
        index_check_stop(&child);
    }
    (void)close(folder);
    return 0;
}

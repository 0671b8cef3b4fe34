// SPDX-License-Identifier: Apache-2.0
// A damaged index: the child that verifies it may die, the parent must not, and decoded records are
// sane. Each input is a record under a correct checksum. If it is long enough, it is also offsets
// and bytes to write into one of our LMDB files.
#include <fcntl.h>
#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/disk/store_dir.h"
#include "store/index/index_verify.h"

#define OBJECTS 64u
#define MAP_BYTES (1u << 20)
#define POKE_BYTES 4u
#define POKES_MAX 64u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t cache_id[CACHE_ID_LEN];

// --- records -------------------------------------------------------------------------------------

// Stores the input's bytes as a value of `len`, with a correct version and checksum.
static struct span sealed(const uint8_t *data, size_t size, char *value, size_t len, bool is_meta)
{
    static const char key[16];
    memset(value, 0, len);
    memcpy(value, data, min_u64(size, len));
    if (is_meta) {
        wire_put_u32(value + 4, INDEX_FORMAT_VERSION);
        wire_put_u32(value, disk_crc32c(value + 4, len - 4));
    } else {
        wire_put_u16(value + 4, INDEX_FORMAT_VERSION);
        wire_put_u32(value, disk_crc32c_more(disk_crc32c(key, sizeof(key)), value + 4, len - 4));
    }
    return (struct span){value, len};
}

static void check_place(const struct index_place *place)
{
    check(place->block_count > 0 && place->header_len <= RUN_HEADER_MAX);
    check((uint64_t)place->payload_offset + place->payload_len <= SEGMENT_FILE_MAX);
}

static void record(const uint8_t *data, size_t size)
{
    struct hash128 hash = {0, 0};
    struct index_record record, again;
    struct index_place place;
    struct index_meta meta;
    struct hash128 owner;
    char bytes[INDEX_OBJECT_MAX], encoded[INDEX_OBJECT_MAX];
    size_t len = INDEX_OBJECT_LEN + size % (STORE_SUMS_MAX + 1);
    if (index_object_decode(hash, sealed(data, size, bytes, len, false), &record)) {
        if ((record.flags & INDEX_WHOLE) != 0) {
            check_place(&record.place);
        }
        struct span value = {encoded, index_object_encode(hash, &record, encoded)};
        check(index_object_decode(hash, value, &again));
        check(again.generation == record.generation && again.size_bytes == record.size_bytes);
    }
    if (index_place_decode(0, 0, sealed(data, size, bytes, INDEX_PLACE_LEN, false), &owner,
                           &place)) {
        check_place(&place);
    }
    check(index_meta_decode(sealed(data, size, bytes, INDEX_META_LEN, true), &meta));
    struct span raw = {(const char *)data, size};
    (void)!index_object_decode(hash, raw, &record);
    (void)!index_place_decode(0, 0, raw, &owner, &place);
    (void)!index_meta_decode(raw, &meta);
}

// --- files ---------------------------------------------------------------------------------------

static char dir[256];
static char path[300];
static char *template;
static size_t template_len;

static void put(MDB_txn *txn, MDB_dbi table, const char *key, size_t key_len, char *value,
                size_t len)
{
    MDB_val k = {key_len, (void *)(uintptr_t)key}, v = {len, value};
    check(mdb_put(txn, table, &k, &v, 0) == 0);
}

static void fill(MDB_txn *txn)
{
    MDB_dbi objects, places, meta;
    check(mdb_dbi_open(txn, "objects", MDB_CREATE, &objects) == 0);
    check(mdb_dbi_open(txn, "places", MDB_CREATE, &places) == 0);
    check(mdb_dbi_open(txn, "meta", MDB_CREATE, &meta) == 0);
    char key[16], value[INDEX_OBJECT_MAX];
    for (unsigned i = 0; i < OBJECTS; i++) {
        struct hash128 hash = {hash64(&i, sizeof(i), 1), hash64(&i, sizeof(i), 2)};
        struct index_record record = {
            .generation = i + 1, .size_bytes = 2u << 20, .block_size_bytes = 1u << 20};
        record.sums.len = (uint8_t)(i % (STORE_SUMS_MAX + 1));
        index_object_key(hash, key);
        put(txn, objects, key, INDEX_OBJECT_KEY_LEN, value,
            index_object_encode(hash, &record, value));
        struct index_place place = {.number = 1,
                                    .header_offset = SEGMENT_DATA_OFFSET,
                                    .header_len = RUN_HEADER_FIXED,
                                    .payload_offset = 1u << 16,
                                    .payload_len = 2u << 20,
                                    .block_count = 2,
                                    .salt = 1};
        index_place_key(record.generation, 0, key);
        index_place_encode(record.generation, 0, hash, &place, value);
        put(txn, places, key, INDEX_PLACE_KEY_LEN, value, INDEX_PLACE_LEN);
    }
    struct index_meta m = {.blocks = OBJECTS};
    memcpy(m.cache_id, cache_id, CACHE_ID_LEN);
    index_meta_encode(&m, value);
    put(txn, meta, "m", 1, value, INDEX_META_LEN);
}

// An index of ours, once.
static void template_make(void)
{
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(dir, sizeof(dir), "%s/fuzz-index-XXXXXX", tmp != NULL ? tmp : "/tmp");
    check(mkdtemp(dir) != NULL);
    (void)snprintf(path, sizeof(path), "%s/data.mdb", dir);
    MDB_env *env;
    MDB_txn *txn;
    check(mdb_env_create(&env) == 0 && mdb_env_set_maxdbs(env, 3) == 0);
    check(mdb_env_set_mapsize(env, MAP_BYTES) == 0);
    check(mdb_env_open(env, dir, MDB_NOTLS | MDB_NOSYNC, 0600) == 0);
    check(mdb_txn_begin(env, NULL, 0, &txn) == 0);
    fill(txn);
    check(mdb_txn_commit(txn) == 0);
    mdb_env_close(env);
    FILE *file = fopen(path, "rb");
    check(file != NULL);
    template = malloc(MAP_BYTES);
    check(template != NULL);
    template_len = fread(template, 1, MAP_BYTES, file);
    check(template_len > 0 && fclose(file) == 0);
}

static void file(const uint8_t *data, size_t size)
{
    if (template == NULL) {
        template_make();
    }
    char *bytes = malloc(template_len);
    check(bytes != NULL);
    memcpy(bytes, template, template_len);
    for (unsigned i = 0; i < POKES_MAX && size >= POKE_BYTES; i++) {
        size_t at = ((size_t)data[0] << 16 | (size_t)data[1] << 8 | data[2]) % template_len;
        bytes[at] = (char)data[3];
        data += POKE_BYTES;
        size -= POKE_BYTES;
    }
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    check(fd >= 0 && write(fd, bytes, template_len) == (ssize_t)template_len);
    (void)close(fd);
    free(bytes);
    int folder = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    check(folder >= 0);
    if (index_verify_tables(folder)) {
        (void)!index_verify(dir, MAP_BYTES, cache_id);
    }
    (void)close(folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    record(data, size);
    if (size >= POKE_BYTES && size <= INDEX_META_LEN - 1) {
        file(data, size);
    }
    return 0;
}

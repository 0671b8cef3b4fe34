// SPDX-License-Identifier: Apache-2.0
// The directory: one owner, a format that is ours or refused, sizes that make sense.
#include "store/disk/store_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "store/store_fixture.h"
#include "test.h"

static void put_row(struct state_table *state, enum state_kind kind, struct hash128 key,
                    uint64_t number, bool flag)
{
    struct state_row *row = state_table_put(state, kind, key);
    row->number = number;
    row->flag = flag;
}

static struct store_format format_sample(void)
{
    struct store_format f = {
        .hash_key = 0x0123456789abcdefu,
        .segment_size_bytes = SEGMENT_SIZE_MIN,
        .next_segment = 17,
        .next_generation = 1ull << 40,
        .boot_id = "abc-def",
        .clean = true,
        .index_txn = 99,
        .append_count = 2,
        .append = {{5, 4096, 0, 0, 0, 3}, {6, 81920, 7, 9, 8, UINT32_MAX}},
    };
    memset(f.cache_id, 0xa5, sizeof(f.cache_id));
    f.state.others[STATE_EPOCHS].number = 12;
    put_row(&f.state, STATE_EPOCHS, (struct hash128){1, UINT64_MAX}, 3, false);
    put_row(&f.state, STATE_EPOCHS, (struct hash128){1ull << 63, 0}, INT64_MAX, false);
    f.state.others[STATE_HOLDERS].number = 7;
    put_row(&f.state, STATE_HOLDERS, (struct hash128){3, UINT64_MAX}, 0, false);
    put_row(&f.state, STATE_HOLDERS, (struct hash128){1ull << 63, 5}, 7, false);
    f.state.others[STATE_DOUBTS].number = 5;
    put_row(&f.state, STATE_DOUBTS, (struct hash128){8, 1}, 0, true);
    put_row(&f.state, STATE_DOUBTS, (struct hash128){9, 2}, INT64_MAX, false);
    return f;
}

Test(store_dir, the_format_file_is_parsed_as_rendered_and_refused_when_damaged)
{
    struct store_format in = format_sample();
    struct store_format out;
    struct buf text;
    buf_init(&text, 10000);
    store_format_render(&in, &text);
    cr_assert(buf_ok(&text));
    cr_assert(store_format_parse(buf_span(&text), &out) == ERR_OK);
    cr_assert(memcmp(&in, &out, sizeof(in)) == 0);
    for (size_t bit = 0; bit < 8 * text.len; bit++) {
        text.ptr[bit / 8] ^= (char)(1 << bit % 8);
        cr_assert(store_format_parse(buf_span(&text), &out) == ERR_FORMAT);
        text.ptr[bit / 8] ^= (char)(1 << bit % 8);
    }
    for (size_t len = 0; len < text.len; len++) {
        cr_assert(store_format_parse((struct span){text.ptr, len}, &out) == ERR_FORMAT);
    }
    buf_done(&text);
}

static void put_file(const struct box *box, const char *name, const char *text)
{
    char path[1024];
    (void)snprintf(path, sizeof(path), "%s/%s", box->dir, name);
    FILE *file = fopen(path, "w");
    cr_assert(file != NULL);
    fputs(text, file);
    fclose(file);
}

static void refused(struct box *box, enum err expected, const char *says)
{
    struct buf why;
    buf_init(&why, 4000);
    cr_assert_eq(box_try_open(box, &why), expected);
    cr_assert(strstr(buf_cstr(&why), says) != NULL, "%s", buf_cstr(&why));
    buf_done(&why);
}

Test(store_dir, a_second_process_is_refused_with_a_clear_line)
{
    struct box box, second;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    second = box;
    refused(&second, ERR_IN_USE, "in use by another process");
    char path[600]; // somebody tidies up
    (void)snprintf(path, sizeof(path), "%s/lock", box.dir);
    cr_assert_eq(unlink(path), 0);
    second = box;
    refused(&second, ERR_IN_USE, "in use by another process");
    box_close(&box);
    cr_assert(box_open(&box));
    box_close(&box);
    box_remove(&box);
}

// The admin socket is in the cache directory if there is no better folder for it.
Test(store_dir, a_socket_is_opened_in_the_folder_that_is_locked)
{
    struct box box;
    struct unix_listener listener;
    struct buf why;
    char path[UNIX_PATH_SIZE];
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    buf_init(&why, 4000);
    cr_assert(snprintf(path, sizeof(path), "%s/admin.sock", box.dir) < (int)sizeof(path));
    cr_assert_eq(unix_socket_open(path, 0600, &listener, &why), ERR_OK, "%s", buf_cstr(&why));
    unix_socket_remove(&listener);
    close(listener.fd);
    buf_done(&why);
    box_close(&box);
    box_remove(&box);
}

Test(store_dir, a_format_that_is_not_ours_is_refused_and_left_alone)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    put_file(&box, "format", "something else\n");
    refused(&box, ERR_FORMAT, "remove the directory");
    char path[1024];
    char text[64] = {0};
    (void)snprintf(path, sizeof(path), "%s/format", box.dir);
    FILE *file = fopen(path, "r");
    cr_assert(file != NULL && fgets(text, sizeof(text), file) != NULL);
    fclose(file);
    cr_assert_str_eq(text, "something else\n");
    box_remove(&box);
}

Test(store_dir, a_cache_of_an_earlier_version_is_refused_with_the_remedy)
{
    struct box box;
    char text[80];
    const char *body = "forebay-cache 1\nid 00\n";
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    (void)snprintf(text, sizeof(text), "%schecksum %08x\n", body, disk_crc32c(body, strlen(body)));
    put_file(&box, "format", text);
    refused(&box, ERR_FORMAT, "of format version 1, this program's is version 2: empty it with");
    box_remove(&box);
}

Test(store_dir, a_pipe_in_place_of_the_format_holds_nothing_up)
{
    static const char *const names[] = {"format", "format.new"};
    for (unsigned i = 0; i < ARRAY_LEN(names); i++) {
        struct box box;
        char path[600];
        box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
        (void)snprintf(path, sizeof(path), "%s/%s", box.dir, names[i]);
        cr_assert(mkfifo(path, 0600) == 0);
        struct store_dir dir;
        struct buf why;
        buf_init(&why, 1000);
        cr_assert(store_dir_open(&dir, box.dir, &why) != ERR_OK, "%s", names[i]);
        store_dir_close(&dir);
        buf_done(&why);
        box_remove(&box);
    }
}

Test(store_dir, folders_of_ours_without_a_format_are_refused)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    char path[1024];
    (void)snprintf(path, sizeof(path), "%s/segments", box.dir);
    cr_assert(mkdir(path, 0700) == 0);
    refused(&box, ERR_FORMAT, "no file format");
    box_remove(&box);
}

Test(store_dir, a_size_below_the_minimum_is_refused_with_the_least_that_works)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 15 * MIB);
    refused(&box, ERR_INVALID, "raise cache.size");
    box.options.size_bytes = 32 * MIB;
    box.options.block_size_bytes_max = 16 * MIB;
    refused(&box, ERR_INVALID, "raise cache.size");
    box.options.size_bytes = 16 * MIB;
    box.options.block_size_bytes_max = 1 * MIB;
    cr_assert(box_open(&box));
    box_close(&box);
    box_remove(&box);
}

Test(store_dir, segment_sizes_follow_cache_and_block_size)
{
    cr_assert_eq(segment_size_for(16 * MIB, MIB), 4 * MIB);
    cr_assert_eq(segment_size_for(256 * MIB, MIB), 4 * MIB);
    cr_assert_eq(segment_size_for(1024 * MIB, MIB), 16 * MIB);
    cr_assert_eq(segment_size_for(1023 * MIB, MIB), 8 * MIB);
    cr_assert_eq(segment_size_for(2048 * MIB, MIB), 32 * MIB);
    cr_assert_eq(segment_size_for(20480 * MIB, MIB), 32 * MIB);
    cr_assert_eq(segment_size_for(32768 * MIB, MIB), 64 * MIB);
    cr_assert_eq(segment_size_for(1ull << 37, MIB), 256 * MIB);
    cr_assert_eq(segment_size_for(1ull << 44, MIB), 256 * MIB);
    cr_assert_eq(segment_size_for(64 * MIB, 16 * MIB), 32 * MIB);
}

Test(store_dir, another_segment_size_empties_the_cache_and_says_so)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 256 * MIB);
    cr_assert(box_open(&box));
    struct object object = {"k", "\"e\"", 1000, BLOCK, store_generation_next(box.store)};
    cr_assert(box_put(&box, &object) == ERR_OK);
    box_close(&box);
    box.options.block_size_bytes_max = 8 * MIB;
    cr_assert(box_open(&box));
    cr_assert_eq(box_read(&box, 0, &object), 0u);
    cr_assert(box_put(&box, &object) == ERR_OK);
    cr_assert_eq(box_read(&box, 0, &object), 1000u);
    cr_assert(dir_bytes(box.dir) <= 256 * MIB);
    box_close(&box);
    box_remove(&box);
}

Test(store_dir, a_directory_that_cannot_be_made_is_degraded_not_fatal)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    put_file(&box, "file", "x");
    char path[1024];
    (void)snprintf(path, sizeof(path), "%s/file/cache", box.dir);
    box.options.dir = path;
    cr_assert(box_open(&box));
    struct store_summary summary;
    store_summarize(box.store, &summary);
    cr_assert(summary.degraded);
    struct object object = {"k", "\"e\"", 1000, BLOCK, store_generation_next(box.store)};
    struct store_place place;
    cr_assert_neq(box_write(&box, 0, &object, 0, 1, 1, &place), ERR_OK);
    cr_assert_eq(box_read(&box, 0, &object), 0u);
    cr_assert_eq(box_post_delete(&box, "k", 100), ERR_OK);
    box_renew(&box, "k", 1);
    box_close(&box);
    box_remove(&box);
}

// --- directories that others may change ----------------------------------------------------------

static bool is_there(const struct box *box, const char *name)
{
    char path[1024];
    (void)snprintf(path, sizeof(path), "%s/%s", box->dir, name);
    struct stat st;
    return lstat(path, &st) == 0;
}

static void set_folder(const struct box *box, const char *name, uid_t owner, mode_t mode)
{
    char path[1024];
    (void)snprintf(path, sizeof(path), "%s/%s", box->dir, name);
    cr_assert(mkdir(path, 0700) == 0 || errno == EEXIST);
    cr_assert(geteuid() != 0 || chown(path, owner, (gid_t)-1) == 0);
    cr_assert(chmod(path, mode) == 0);
}

// Modes as Kubernetes and people set them. A foreign owner is tested only where this test may make
// one.
Test(store_dir, a_folder_that_others_may_change_gets_a_private_folder_for_the_cache)
{
    static const struct {
        bool foreign;
        mode_t mode;
        bool inner;
    } rows[] = {{false, 0700, false}, {false, 0755, false}, {false, 0770, true},
                {false, 0777, true},  {false, 01777, true}, {false, 02777, true},
                {true, 0755, true},   {true, 0700, true},   {true, 0777, true}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct box box;
        if (rows[i].foreign && geteuid() != 0) {
            continue;
        }
        box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
        set_folder(&box, "", rows[i].foreign ? 12345 : geteuid(), rows[i].mode);
        for (unsigned round = 0; round < 2; round++) {
            cr_assert(box_open(&box));
            struct store_summary summary;
            store_summarize(box.store, &summary);
            cr_assert_not(summary.degraded, "row %zu", i);
            cr_assert_eq(strcmp(summary.dir, box.dir) == 0, !rows[i].inner, "row %zu", i);
            struct buf index; // by way of the descriptor: a parent may be renamed
            buf_init(&index, 1024);
            store_dir_index_path(&box.store->disk.dir, &index);
            cr_assert(span_starts_with(buf_span(&index), SPAN("/proc/self/fd/")));
            buf_done(&index);
            box_close(&box);
            cr_assert_eq(is_there(&box, "format"), !rows[i].inner, "row %zu", i);
            cr_assert_eq(is_there(&box, "forebay/format"), rows[i].inner, "row %zu", i);
        }
        set_folder(&box, "", geteuid(), 0700); // once private, the cache stays where it is
        cr_assert(box_open(&box));
        box_close(&box);
        cr_assert_eq(is_there(&box, "format"), !rows[i].inner, "row %zu", i);
        box_remove(&box);
    }
}

Test(store_dir, a_private_folder_that_is_not_ours_is_refused)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    set_folder(&box, "", geteuid(), 0777);
    set_folder(&box, "forebay", geteuid(), 0755);
    refused(&box, ERR_FORMAT, "closed to others");
    if (geteuid() == 0) {
        set_folder(&box, "forebay", 12345, 0700);
        refused(&box, ERR_FORMAT, "belongs to this user");
        set_folder(&box, "forebay", 0, 0700);
    }
    char path[1024], other[1024];
    (void)snprintf(path, sizeof(path), "%s/forebay", box.dir);
    (void)snprintf(other, sizeof(other), "%s/other", box.dir);
    cr_assert(rename(path, other) == 0 && symlink("other", path) == 0);
    refused(&box, ERR_FORMAT, "closed to others");
    cr_assert(unlink(path) == 0 && rmdir(other) == 0);
    put_file(&box, "forebay", "x");
    refused(&box, ERR_FORMAT, "closed to others");
    cr_assert(unlink(path) == 0);
    box_remove(&box);
}

Test(store_dir, a_cache_that_others_may_change_is_refused)
{
    struct box box;
    box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
    cr_assert(box_open(&box));
    box_close(&box);
    set_folder(&box, "", geteuid(), 0777);
    refused(&box, ERR_FORMAT, "holds a cache that others may change");
    set_folder(&box, "", geteuid(), 0700);
    cr_assert(box_open(&box));
    box_close(&box);
    box_remove(&box);
}

static void remove_folder(const struct box *box, const char *name)
{
    struct box part = *box;
    (void)snprintf(part.dir, sizeof(part.dir), "%.64s/%s", box->dir, name);
    box_remove(&part);
}

Test(store_dir, a_directory_that_is_removed_while_it_is_used_is_noticed_without_a_write)
{
    static const char *const removed[] = {"", "segments", "index"};
    for (size_t i = 0; i < ARRAY_LEN(removed); i++) {
        struct box box;
        struct store_summary summary;
        box_init(&box, DISK_ENGINE_THREADS, 64 * MIB);
        cr_assert(box_open(&box));
        cr_assert_not(store_dir_is_removed(&box.store->disk.dir));
        remove_folder(&box, removed[i]);
        cr_assert(store_dir_is_removed(&box.store->disk.dir), "%s", removed[i]);
        do { // the supply thread looks once a second
            store_summarize(box.store, &summary);
        } while (summary.refusal != REFUSAL_disk_degraded);
        cr_assert_eq(summary.disk_errno, ENOENT);
        clock_test_advance_us(3600000000u);
        store_summarize(box.store, &summary);
        cr_assert(summary.degraded, "until a restart, because no write makes the directory again");
        box_close(&box);
        box_remove(&box);
    }
}

// SPDX-License-Identifier: Apache-2.0
// Small functions that several commands share: output files, texts that are safe for a terminal,
// settings, paths and
// the space of a cache directory. Main thread.
#include "commands/commands.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define VISIBLE_MAX 32768u // bytes; enough for any name with each byte written as "\xNN"

const char *commands_visible(const char *text, size_t text_len)
{
    static char texts[2][VISIBLE_MAX + 8];
    static unsigned turn;
    char *out = texts[turn++ % 2];
    json_t *as_json = json_stringn(text, text_len);
    bool is_utf8 = as_json != NULL, is_c1 = false;
    size_t len = 0;
    json_decref(as_json);
    for (const unsigned char *at = (const unsigned char *)text, *end = at + text_len;
         at < end && len < VISIBLE_MAX; at++) {
        bool begins_c1 = is_utf8 && at[0] == 0xc2 && at[1] < 0xa0; // U+0080 to U+009F
        bool is_odd = *at < 0x20 || *at == 0x7f || begins_c1 || is_c1 || (*at >= 0x80 && !is_utf8);
        len += (size_t)snprintf(out + len, 5, is_odd ? "\\x%02x" : "%c", *at); // at most four bytes
        is_c1 = begins_c1;
    }
    out[len] = '\0';
    return out;
}

unsigned commands_setting(const char *key)
{
    unsigned i = 0;
    while (i + 1 < config_setting_count() && strcmp(config_setting(i)->key, key) != 0) {
        i++;
    }
    check(strcmp(config_setting(i)->key, key) == 0);
    return i;
}

void commands_nearest_directory(const char *path, char ret_path[PATH_MAX])
{
    (void)snprintf(ret_path, PATH_MAX, "%s", path);
    while (access(ret_path, F_OK) != 0 && strlen(ret_path) > 1) {
        char *slash = strrchr(ret_path, '/');
        *(slash == ret_path ? slash + 1 : slash) = '\0';
    }
}

// Returns the bytes on disk of the files in a folder; 0 if the folder does not exist.
static uint64_t folder_bytes(const char *dir, const char *name)
{
    char path[PATH_MAX];
    uint64_t bytes = 0;
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    DIR *folder = opendir(path);
    struct dirent *entry;
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        struct stat st;
        if (fstatat(dirfd(folder), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(st.st_mode)) {
            bytes += (uint64_t)st.st_blocks * 512;
        }
    }
    if (folder != NULL) {
        (void)closedir(folder); // only read, so an error loses nothing
    }
    return bytes;
}

uint64_t commands_cache_bytes(const char *dir)
{
    static const char *const folders[] = {".", "segments", "index", "forebay/segments",
                                          "forebay/index"};
    uint64_t bytes = 0;
    for (size_t i = 0; i < ARRAY_LEN(folders); i++) {
        bytes += folder_bytes(dir, folders[i]);
    }
    return bytes;
}

uint64_t commands_cache_room(const struct config *config, uint64_t cache_bytes)
{
    char above[PATH_MAX];
    struct statvfs fs;
    commands_nearest_directory(config->cache_dir, above);
    if (statvfs(above, &fs) != 0) {
        return UINT64_MAX;
    }
    uint64_t kept = (uint64_t)fs.f_blocks * fs.f_frsize / 100 * config->cache_min_free_percent;
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize + cache_bytes;
    return room > kept ? room - kept : 0;
}

bool commands_open_special(const char *path, int *ret_fd)
{
    struct stat st;
    *ret_fd = -1;
    if (stat(path, &st) != 0 || S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) {
        return false;
    }
    *ret_fd = open(path, O_WRONLY | O_NOCTTY | O_CLOEXEC);
    return true;
}

bool commands_write_all(int fd, struct span bytes)
{
    while (bytes.len > 0) {
        ssize_t n = write(fd, bytes.ptr, bytes.len);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            errno = n == 0 ? ENOSPC : errno;
            return false;
        }
        bytes.ptr += n;
        bytes.len -= (size_t)n;
    }
    return true;
}

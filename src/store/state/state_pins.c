// SPDX-License-Identifier: Apache-2.0
// The file `pins` of the cache directory has the pins that operators set while the process runs.
// Its first line has the version. Then comes the caller's text (store.h). The last line has the
// CRC32C of all lines before it.
//
//   forebay-pins 1
//   ...
//   checksum <8 hex>
//
// The file is replaced as a whole: a new file is written, synced and renamed, and then the folder
// is synced. So a crash leaves the old file or the new one. The file's bytes count in cache.size,
// and are reserved before they are written. A damaged file is renamed to `pins.bad`, so that an
// operator can read it. Cached objects are not affected.
#include "store/state/state_pins.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

#define PINS_FILE "pins"
#define PINS_FILE_NEW "pins.new"
#define PINS_FILE_BAD "pins.bad"
#define PINS_HEAD "forebay-pins 1\n"
#define PINS_CHECKSUM_LEN (sizeof("checksum 00000000\n") - 1)
#define PINS_BYTES_MAX (4u << 20)
#define PINS_PAGE 4096u

void state_pins_init(struct store_pins *pins, struct store_disk *disk)
{
    check(disk != NULL && atomic_load(&pins->bytes) == 0);
    pins->disk = disk;
}

void state_pins_set_unread(struct store_pins *pins)
{
    // If there is a file, this process has not loaded its pins, so a new list must not replace
    // them.
    atomic_store(&pins->is_unread, atomic_load(&pins->bytes_then) > 0);
}

void state_pins_open(struct store_pins *pins)
{
    check(pins->disk->dir.fd >= 0);
    struct stat st;
    bool there = fstatat(pins->disk->dir.fd, PINS_FILE, &st, AT_SYMLINK_NOFOLLOW) == 0;
    uint64_t bytes = there ? (uint64_t)st.st_blocks * 512 : 0;
    atomic_store(&pins->bytes_then, bytes);
    atomic_store(&pins->bytes, bytes);
}

int64_t state_pins_bytes(const struct store_pins *pins)
{
    return (int64_t)(atomic_load(&pins->bytes) - atomic_load(&pins->bytes_then));
}

// --- reading -------------------------------------------------------------------------------------

static void checksum_line(struct span text, char ret_line[PINS_CHECKSUM_LEN + 1])
{
    check(text.ptr != NULL);
    (void)snprintf(ret_line, PINS_CHECKSUM_LEN + 1, "checksum %08x\n",
                   disk_crc32c(text.ptr, text.len));
}

// Sets *ret_text to the caller's text in the file. Returns false if the file is damaged.
static bool text_of(struct span file, struct span *ret_text)
{
    const size_t head = sizeof(PINS_HEAD) - 1;
    char line[PINS_CHECKSUM_LEN + 1];
    if (file.len < head + PINS_CHECKSUM_LEN || memcmp(file.ptr, PINS_HEAD, head) != 0) {
        return false;
    }
    struct span before = {file.ptr, file.len - PINS_CHECKSUM_LEN};
    checksum_line(before, line);
    *ret_text = (struct span){file.ptr + head, before.len - head};
    return memcmp(file.ptr + before.len, line, PINS_CHECKSUM_LEN) == 0;
}

// Returns 0 or an errno value. If there is no file, returns 0 and leaves ret_file empty.
static int file_read(struct store_pins *pins, struct buf *ret_file)
{
    char bytes[4096];
    struct stat st;
    int fd = openat(pins->disk->dir.fd, PINS_FILE, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        return errno == ENOENT ? 0 : errno;
    }
    int failed = fstat(fd, &st) != 0 ? errno : S_ISREG(st.st_mode) ? 0 : EINVAL;
    ssize_t got = failed == 0 ? 1 : 0;
    while (got > 0 && buf_ok(ret_file)) {
        got = read(fd, bytes, sizeof(bytes));
        buf_append_span(ret_file, (struct span){bytes, got > 0 ? (size_t)got : 0});
    }
    failed = got < 0 ? errno : failed == 0 && ret_file->len == 0 ? EINVAL : failed;
    (void)close(fd); // only read, so an error loses nothing
    return failed;
}

enum err state_pins_load(struct store_pins *pins, struct buf *ret_text)
{
    struct buf file;
    struct span text;
    buf_init(&file, PINS_BYTES_MAX);
    int failed = file_read(pins, &file);
    check(failed >= 0);
    bool is_none = failed == 0 && file.len == 0;
    bool is_whole = failed == 0 && buf_ok(&file) && !is_none && text_of(buf_span(&file), &text);
    if (is_whole) {
        buf_append_span(ret_text, text);
    }
    if (is_none || is_whole) {
        buf_done(&file);
        return ERR_OK;
    }
    state_pins_put_aside(pins, failed != 0 ? strerrorname_np(failed) : "checksum");
    buf_done(&file);
    return ERR_CORRUPT;
}

void state_pins_put_aside(struct store_pins *pins, const char *why)
{
    bool is_aside = renameat(pins->disk->dir.fd, PINS_FILE, pins->disk->dir.fd, PINS_FILE_BAD) == 0;
    if (is_aside) { // pins.bad still counts in used_bytes, like any file that existed at the start
        // Clear bytes_then first. Between the two steps the file then counts twice, which is safer
        // than not at all.
        atomic_store(&pins->bytes_then, 0);
        atomic_store(&pins->bytes, 0);
    }
    log_error("pins_damaged", "why=%s file=%s remedy=%s", why != NULL ? why : "0",
              is_aside ? PINS_FILE_BAD : PINS_FILE, "pin_again");
}

// --- writing -------------------------------------------------------------------------------------

static int all_write(int fd, const char *bytes, size_t len)
{
    check(fd >= 0 && bytes != NULL);
    for (size_t done = 0; done < len;) {
        ssize_t put = write(fd, bytes + done, len - done);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            return put < 0 ? errno : ENOSPC;
        }
        done += (size_t)put;
    }
    return 0;
}

// Replaces the file. Returns 0 or an errno value. Sets *ret_is_there if the name now refers to the
// new file, even if that is not durable.
static int file_replace(struct store_pins *pins, struct span file, bool *ret_is_there)
{
    int folder = pins->disk->dir.fd, failed = store_fault_strike(STORE_FAULT_PINS);
    int fd = openat(folder, PINS_FILE_NEW,
                    O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0) {
        return errno;
    }
    failed = failed != 0 ? failed : all_write(fd, file.ptr, file.len);
    if (failed == 0 && fsync(fd) != 0) {
        failed = errno;
    }
    if (close(fd) != 0 && failed == 0) {
        failed = errno;
    }
    if (failed == 0 && renameat(folder, PINS_FILE_NEW, folder, PINS_FILE) != 0) {
        failed = errno;
    }
    if (failed != 0) {
        (void)unlinkat(folder, PINS_FILE_NEW, 0); // if this fails, the next process counts the file
        return failed;
    }
    *ret_is_there = true;
    failed = store_fault_strike(STORE_FAULT_PINS);
    return failed != 0 ? failed : fsync(folder) != 0 ? errno : 0;
}

enum err state_pins_save(struct store_pins *pins, struct span text, struct buf *ret_why)
{
    if (atomic_load(&pins->is_unread)) {
        buf_append_cstr(ret_why,
                        "the cache directory became usable after the start, so its list of pins "
                        "is not loaded; restart Forebay first");
        return ERR_IO;
    }
    struct buf file;
    char line[PINS_CHECKSUM_LEN + 1];
    buf_init(&file, PINS_BYTES_MAX);
    buf_append_cstr(&file, PINS_HEAD);
    buf_append_span(&file, text);
    checksum_line(buf_span(&file), line);
    buf_append_cstr(&file, line);
    uint64_t bytes = align_up_u64(file.len, PINS_PAGE);
    enum err err = ERR_OK;
    if (!buf_ok(&file)) {
        buf_append_cstr(ret_why, "the list of pins is too long");
        err = ERR_LIMIT;
    } else if (!disk_space_reserve(pins->disk, bytes, pins->disk->capacity_bytes)) {
        buf_append_cstr(ret_why, "cache.size leaves no room for the list of pins");
        err = ERR_DISK_FULL;
    }
    check(err != ERR_OK || bytes >= file.len);
    bool is_there = false;
    int failed = err == ERR_OK ? file_replace(pins, buf_span(&file), &is_there) : 0;
    check(err != ERR_OK || failed != 0 || is_there);
    if (err == ERR_OK) {
        disk_space_give(pins->disk, is_there ? atomic_exchange(&pins->bytes, bytes) : bytes);
    }
    if (failed != 0) {
        buf_printf(ret_why, "cannot write the list of pins to the cache directory: %s",
                   strerror(failed));
        err = error_from_errno(failed);
    }
    buf_done(&file);
    return err;
}

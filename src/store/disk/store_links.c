// SPDX-License-Identifier: Apache-2.0
// Refuses symbolic links in the cache directory. Runs at the start, before Forebay writes anything
// there and before LMDB opens its files.
//
// If a name that Forebay opens were a link, Forebay would write to another file of this user.
// Forebay itself opens with O_NOFOLLOW, so that opening a link fails, but LMDB opens by path and
// follows links. So the names are checked first, and the message says which one is a link and what
// to do. A link in place of a segment need not be refused: opening it fails, and the segment counts
// as lost. Nor need one in place of index/lock.mdb: index_open() replaces it.
#include "store/disk/store_links.h"

#include <fcntl.h>
#include <sys/stat.h>

bool store_links_is_link(int folder_fd, const char *name)
{
    check(folder_fd >= 0 && name[0] != '/');
    struct stat st;
    return fstatat(folder_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode);
}

enum err store_links_refuse(int dir_fd, const char *path, struct buf *ret_why)
{
    check(dir_fd >= 0 && path != NULL && ret_why != NULL);
    // Folders come before their content, because the paths of the content lead through them.
    static const char *const NAMES[] = {"lock",           "format",    "format.new", "index",
                                        "index/data.mdb", "index/bad", "pins",       "pins.new",
                                        "pins.bad",       "policy",    "policy.new", "policy.map",
                                        "segments",       "origin",    "origin.new"};
    for (size_t i = 0; i < ARRAY_LEN(NAMES); i++) {
        if (store_links_is_link(dir_fd, NAMES[i])) {
            buf_printf(
                ret_why,
                "%s/%s is a symbolic link, and none is followed in a cache directory: remove "
                "the link (what the cache held by it is fetched again), or choose another "
                "cache.dir",
                path, NAMES[i]);
            return ERR_FORMAT;
        }
    }
    return ERR_OK;
}

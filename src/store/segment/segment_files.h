// SPDX-License-Identifier: Apache-2.0
// The files of segments in their folder. Shared inside the room only.
#ifndef FOREBAY_STORE_SEGMENT_FILES_H
#define FOREBAY_STORE_SEGMENT_FILES_H

#include "store/disk/store_dir.h"

#define SEGMENT_NAME_LEN 24u

struct stat;

struct segment_file {
    uint32_t number;
    uint32_t given_bytes; // back to the file system: segment_trim.c
};

void segment_name(uint32_t number, char ret_name[SEGMENT_NAME_LEN]);
// What they take up of the file system.
uint64_t segment_files_bytes(int segments_fd);
// All of them, in no order: any entry named like a segment counts. The caller frees.
struct segment_file *segment_files_list(const struct store_dir *dir, size_t *ret_count) MUST_USE;
// Removes all of them.
void segment_files_wipe(int segments_fd);
// Does none of them hold a run? False as well when there are too many to look.
bool segment_files_are_empty(int segments_fd);
// Has this file no run at its beginning, or cannot be read?
bool segment_file_is_empty(int segments_fd, uint32_t number);
// So much of a file of that size the file system does not keep; 0 where it is of another size.
uint32_t segment_file_missing(const struct stat *st, uint32_t size_bytes);

#endif

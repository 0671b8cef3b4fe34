// SPDX-License-Identifier: Apache-2.0
// Names, sizes and content of the segment files in their folder. Shared inside the room only.
#ifndef FOREBAY_STORE_SEGMENT_FILES_H
#define FOREBAY_STORE_SEGMENT_FILES_H

#include "store/disk/store_dir.h"

#define SEGMENT_NAME_LEN 24u

struct stat;

struct segment_file {
    uint32_t number;
    uint32_t given_bytes; // bytes of the file that segment_trim.c returned to the file system
};

void segment_name(uint32_t number, char ret_name[SEGMENT_NAME_LEN]);
// Returns the disk usage of all segment files.
uint64_t segment_files_bytes(int segments_fd);
// Returns all files named like a segment, in no order. The caller frees the array.
struct segment_file *segment_files_list(const struct store_dir *dir, size_t *ret_count) MUST_USE;
// Removes all segment files.
void segment_files_wipe(int segments_fd);
// Returns true if no file holds a run. Also returns false if there are too many files to check.
bool segment_files_are_empty(int segments_fd);
// Returns true if the file has no run at its beginning, or if it cannot be read.
bool segment_file_is_empty(int segments_fd, uint32_t number);
// Returns how many bytes of the file are not allocated; 0 if its size is not `size_bytes`.
uint32_t segment_file_missing(const struct stat *st, uint32_t size_bytes);

#endif

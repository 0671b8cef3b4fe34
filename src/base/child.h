// SPDX-License-Identifier: Apache-2.0
// Signals and output of a child process. A child inherits its parent's blocked and ignored signals,
// and programs do not expect any: with SIGPIPE ignored, a program whose reader has ended goes on
// writing.
#ifndef FOREBAY_BASE_CHILD_H
#define FOREBAY_BASE_CHILD_H

#include <spawn.h>

#include "base/bytes.h"

// Sets the attributes for a posix_spawn() whose child blocks no signal and has the default action
// for SIGPIPE. The caller destroys them.
void child_attributes_init(posix_spawnattr_t *ret_attributes);
// Does the same in a child after fork(), before it calls execve(). Uses only calls that are allowed
// there.
void child_reset_signals(void);
// Appends what the child writes to the pipe `fd`, until it closes its end. Returns false if that
// takes longer than limit_ms, if the output is longer than `out` may be, or if a read fails.
// Blocks.
bool child_read_output(int fd, uint64_t limit_ms, struct buf *out) MUST_USE;
// Lets this process end as soon as nobody can read from the pipe `fd` any more, even if it has
// nothing to write: a parent that is killed leaves no child behind. Does nothing if `fd` is no
// pipe. Handles SIGIO.
void child_end_with_reader(int fd);

#endif

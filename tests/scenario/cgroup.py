# SPDX-License-Identifier: Apache-2.0
"""Puts a server into a memory cgroup of its own, and reads what the kernel counts for it. The
kernel kills the server when it exceeds the limit."""

import contextlib
import os
import re
from pathlib import Path

from waiting import wait_for

ROOT = Path("/sys/fs/cgroup")
WORDS = {
    1: ("memory.limit_in_bytes", "total_rss", "total_cache", "memory.oom_control"),
    2: ("memory.max", "anon", "file", "memory.events"),
}


class NoCgroup(Exception):
    """This machine does not let us create a memory cgroup."""


class MemoryCgroup:
    """A memory cgroup of version 1 or 2 below the root of the hierarchy. `wrapper` starts a server
    in it."""

    def __init__(self, name, limit):
        self.version = 1 if (ROOT / "memory").is_dir() else 2
        top = ROOT / "memory" if self.version == 1 else ROOT
        self.folder = top / f"forebay-test-{os.getpid()}-{name}"
        self.limit_file, self.anon_word, self.file_word, self.kills_file = WORDS[self.version]
        try:
            if self.version == 2:
                (top / "cgroup.subtree_control").write_text("+memory")
            self.folder.mkdir()
            (self.folder / self.limit_file).write_text(str(limit))
            if self.version == 1:  # counts sockets only where they have a limit of their own
                (self.folder / "memory.kmem.tcp.limit_in_bytes").write_text(str(1 << 40))
            self.stat()
        except (OSError, KeyError) as error:
            with contextlib.suppress(OSError):
                self.folder.rmdir()
            raise NoCgroup(str(error)) from None
        self.wrapper = [
            "/bin/sh",
            "-c",
            f'echo $$ >"{self.folder}/cgroup.procs" && exec "$@"',
            "sh",
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        def gone():
            with contextlib.suppress(OSError):
                self.folder.rmdir()
            return not self.folder.exists()

        wait_for(gone, "the cgroup's last process to end")

    def stat(self):
        """Returns (anonymous bytes, page cache bytes)."""
        rows = dict(line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
        return int(rows[self.anon_word]), int(rows[self.file_word])

    def anonymous_bytes(self):
        return self.stat()[0]

    def socket_bytes(self):
        """Returns the memory that the kernel holds for sockets, with its overhead."""
        if self.version == 1:
            return int((self.folder / "memory.kmem.tcp.usage_in_bytes").read_text())
        text = (self.folder / "memory.stat").read_text()
        return int(re.search(r"^sock (\d+)", text, re.MULTILINE).group(1))

    def kills(self):
        return int(
            re.search(r"oom_kill (\d+)", (self.folder / self.kills_file).read_text()).group(1)
        )

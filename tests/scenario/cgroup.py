# SPDX-License-Identifier: Apache-2.0
"""Puts a server into a cgroup of its own with a limit on memory or CPU time, and reads what the
kernel counts for it. The kernel kills a server that exceeds its memory limit, and stops one that
has used its CPU time up until the next period."""

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
# Pages that the disk does not have yet.
UNWRITTEN = {1: ("total_dirty", "total_writeback"), 2: ("file_dirty", "file_writeback")}


class NoCgroup(Exception):
    """This machine does not let us create such a cgroup."""


class Cgroup:
    """A cgroup of version 1 or 2 below the root of a controller's hierarchy. `wrapper` starts a
    server in it."""

    def __init__(self, controller, name):
        self.version = 1 if (ROOT / controller).is_dir() else 2
        top = ROOT / controller if self.version == 1 else ROOT
        self.folder = top / f"forebay-test-{os.getpid()}-{name}"
        try:
            if self.version == 2:
                (top / "cgroup.subtree_control").write_text(f"+{controller}")
            self.folder.mkdir()
            self.limit()
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

    def limit(self):
        """Sets the limit. Raises OSError or KeyError where the kernel cannot do that."""
        raise NotImplementedError

    def __enter__(self):
        return self

    def __exit__(self, *_):
        def gone():
            with contextlib.suppress(OSError):
                self.folder.rmdir()
            return not self.folder.exists()

        wait_for(gone, "the cgroup's last process to end")


class CpuCgroup(Cgroup):
    """A cgroup whose processes get `percent` of one CPU."""

    def __init__(self, name, percent):
        self.percent = percent
        super().__init__("cpu", name)

    def limit(self):
        file = "cpu.cfs_quota_us" if self.version == 1 else "cpu.max"
        (self.folder / file).write_text(str(1000 * self.percent))

    def lift(self):
        """Removes the limit."""
        if self.version == 1:
            (self.folder / "cpu.cfs_quota_us").write_text("-1")
        else:
            (self.folder / "cpu.max").write_text("max")


class MemoryCgroup(Cgroup):
    """A cgroup with a limit on memory, in bytes."""

    def __init__(self, name, limit):
        self.limit_bytes = limit
        super().__init__("memory", name)

    def limit(self):
        self.limit_file, self.anon_word, self.file_word, self.kills_file = WORDS[self.version]
        (self.folder / self.limit_file).write_text(str(self.limit_bytes))
        if self.version == 1:  # counts sockets only where they have a limit of their own
            (self.folder / "memory.kmem.tcp.limit_in_bytes").write_text(str(1 << 40))
        self.stat()

    def stat(self):
        """Returns (anonymous bytes, page cache bytes)."""
        rows = self._rows()
        return int(rows[self.anon_word]), int(rows[self.file_word])

    def _rows(self):
        text = (self.folder / "memory.stat").read_text()
        return dict(line.split() for line in text.splitlines())

    def unwritten_bytes(self):
        """Returns the bytes in the page cache that the disk does not have yet."""
        rows = self._rows()
        return sum(int(rows[word]) for word in UNWRITTEN[self.version])

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

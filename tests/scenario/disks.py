# SPDX-License-Identifier: Apache-2.0
"""Small file systems for single tests (loop images; they need root), and edits beneath the page
cache."""

import contextlib
import mmap
import os
import shutil
import subprocess

from conftest import not_run
from waiting import NeverCame, wait_for

PAGE = 4096


def last_words(stderr):
    """Extracts the reason from a tool's output, without names that differ between tests."""
    lines = stderr.decode(errors="replace").strip().splitlines() or ["it does not say why"]
    return lines[0].rsplit(": ", 1)[-1]


class LoopDisk:
    """An ext4 image mounted through a loop device. The block's end unmounts it."""

    def __init__(self, folder, size):
        self.image = folder / "disk.img"
        self.mount = folder / "mnt"
        self.mount.mkdir(parents=True)
        with open(self.image, "wb") as image:
            image.truncate(size)

    def __enter__(self):
        if os.geteuid() != 0 or not shutil.which("mkfs.ext4"):
            not_run("a small file system needs root and mkfs.ext4")
        made = subprocess.run(
            ["mkfs.ext4", "-q", "-F", "-m", "0", str(self.image)], capture_output=True
        )
        mounted = subprocess.run(
            ["mount", "-o", "loop", str(self.image), str(self.mount)], capture_output=True
        )
        if made.returncode or mounted.returncode:
            not_run("no loop device here: " + last_words(mounted.stderr))
        self.empty = self.used()
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", "-l", str(self.mount)], capture_output=True)
        with contextlib.suppress(OSError):
            self.image.unlink()

    def used(self):
        """Bytes in use according to statfs."""
        info = os.statvfs(self.mount)
        return (info.f_blocks - info.f_bfree) * info.f_frsize

    def remount(self, how):
        """Remounts the file system. Returns False if the kernel says "busy", which open files can
        cause."""
        return (
            subprocess.run(
                ["mount", "-o", f"remount,{how}", str(self.mount)], capture_output=True
            ).returncode
            == 0
        )

    @contextlib.contextmanager
    def frozen(self):
        """Freezes the file system: until the block ends, whatever writes to it waits in the kernel,
        and not even SIGKILL ends the wait."""
        if not shutil.which("fsfreeze"):
            not_run("a frozen file system needs fsfreeze")
        subprocess.run(["fsfreeze", "-f", str(self.mount)], check=True)
        try:
            yield
        finally:
            subprocess.run(["fsfreeze", "-u", str(self.mount)], check=True)


class SmallMemory:
    """A file system in memory of SIZE bytes and INODES inodes. The block's end unmounts it."""

    def __init__(self, folder, size, inodes):
        self.mount, self.options = folder, f"size={size},nr_inodes={inodes},mode=0700"
        self.mount.mkdir(parents=True)

    def __enter__(self):
        if os.geteuid() != 0:
            not_run("a file system in memory needs root")
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", self.options, "tmpfs", str(self.mount)],
            capture_output=True,
        )
        if mounted.returncode:
            not_run("no file system in memory here: " + last_words(mounted.stderr))
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", "-l", str(self.mount)], capture_output=True)


class FaultyDisk:
    """An ext4 file system whose device returns EIO while a trigger file exists (nbdkit)."""

    def __init__(self, folder, size, reads="100%", writes="100%"):
        self.folder = folder
        self.size, self.reads, self.writes = size, reads, writes
        self.mount = folder / "mnt"
        self.trigger = folder / "trigger"
        self.processes = []
        self.loop = None

    def __enter__(self):
        for tool in ("nbdkit", "nbdfuse", "losetup", "mkfs.ext4"):
            if os.geteuid() != 0 or not shutil.which(tool):
                not_run(f"disk errors need root and {tool}")
        if not os.path.exists("/dev/fuse"):
            not_run("disk errors need /dev/fuse")
        self.mount.mkdir(parents=True)
        fuse = self.folder / "fuse"
        fuse.mkdir()
        image, sock = self.folder / "disk.img", self.folder / "nbd.sock"
        with open(image, "wb") as out:
            out.truncate(self.size)
        self._run(
            [
                "nbdkit",
                "-f",
                "-U",
                str(sock),
                "--filter=error",
                "file",
                str(image),
                "error=EIO",
                f"error-pread-rate={self.reads}",
                f"error-pwrite-rate={self.writes}",
                f"error-file={self.trigger}",
            ]
        )
        self._wait(sock.exists)
        self._run(["nbdfuse", str(fuse / "disk"), "--unix", str(sock)])
        self._wait((fuse / "disk").exists)
        made = subprocess.run(
            ["losetup", "-f", "--show", "--direct-io=on", str(fuse / "disk")], capture_output=True
        )
        if made.returncode:
            self.__exit__()
            not_run("no loop device over FUSE here: " + last_words(made.stderr))
        self.loop = made.stdout.decode().strip()
        subprocess.run(["mkfs.ext4", "-q", "-F", self.loop], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "errors=continue", self.loop, str(self.mount)], check=True)
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self.trigger.unlink()
        subprocess.run(["umount", "-l", str(self.mount)], capture_output=True)
        if self.loop:
            subprocess.run(["losetup", "-d", self.loop], capture_output=True)
        subprocess.run(
            ["fusermount3", "-u", "-z", str(self.folder / "fuse" / "disk")], capture_output=True
        )
        for process in reversed(self.processes):
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)

    def _run(self, command):
        self.processes.append(
            subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )

    def _wait(self, ready):
        try:
            wait_for(ready, "nbdkit", 10)
        except NeverCame:
            self.__exit__()
            not_run("nbdkit did not come up")


def drop_pages(path):
    """Asks the kernel to drop the file's clean pages."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def read_beneath(path, at=0, length=None):
    """Reads bytes of a file from the device, past the page cache.

    A read through the page cache would load the pages without the server noticing. AT and LENGTH
    are multiples of 4 KiB; at the end of the file fewer bytes may come.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        length = min(os.fstat(fd).st_size - at, length or 1 << 62)
        with mmap.mmap(
            -1, max(PAGE, -(-length // PAGE) * PAGE)
        ) as buf:  # aligned, as O_DIRECT requires
            return buf[: max(0, min(length, os.preadv(fd, [buf], at)))]
    finally:
        os.close(fd)


def edit_beneath(path, page, change):
    """Rewrites one 4 KiB page with O_DIRECT. CHANGE receives a bytearray. Returns False if that is
    not possible."""
    with contextlib.ExitStack() as stack:
        try:
            fd = os.open(path, os.O_RDWR | os.O_DIRECT)
        except OSError:
            return False
        stack.callback(os.close, fd)
        buf = mmap.mmap(-1, PAGE)  # aligned, as O_DIRECT requires
        stack.callback(buf.close)
        if os.preadv(fd, [buf], page * PAGE) != PAGE:
            return False
        data = bytearray(buf[:])
        change(data)
        buf[:] = bytes(data)
        os.pwritev(fd, [buf], page * PAGE)
        os.fsync(fd)
        os.posix_fadvise(fd, page * PAGE, PAGE, os.POSIX_FADV_DONTNEED)
        return True


def direct_works(folder):
    """Whether files in FOLDER can be opened with O_DIRECT."""
    path = folder / "direct-probe"
    path.write_bytes(b"\0" * PAGE)
    try:
        return edit_beneath(path, 0, lambda data: None)
    except OSError:
        return False
    finally:
        path.unlink()

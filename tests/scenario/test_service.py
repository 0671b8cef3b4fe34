# SPDX-License-Identifier: Apache-2.0
"""Notifications to a service manager while the server runs.

The server sends WATCHDOG=1 (sd_notify(3)) as long as each worker makes progress, and stops when one
hangs. The test is the manager: its socket shows each sender and message.
"""

import ctypes
import os
import re
import select
import signal
import socket
import struct
import time
from pathlib import Path

import pytest
from client import request_bytes
from conftest import not_run
from upgrading import adopt_orphans, follow
from waiting import WAIT_S, wait_for

SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000
LIMIT_US = 400_000


class Manager:
    """The socket of $NOTIFY_SOCKET."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.socket.bind(str(path))
        self.env = {"NOTIFY_SOCKET": str(path)}

    def next(self, wait=WAIT_S):
        """Returns (process id, text) of the next message, or None if none came in time. Closes
        descriptors that come with it."""
        if not select.select([self.socket], [], [], wait)[0]:
            return None
        data, more, _, _ = self.socket.recvmsg(500, 500)
        pid = None
        for _, kind, content in more:
            if kind == socket.SCM_CREDENTIALS:
                pid = struct.unpack("iii", content)[0]
            elif kind == socket.SCM_RIGHTS:
                for (fd,) in struct.iter_unpack("i", content):
                    os.close(fd)
        return pid, data.decode()

    def words(self, seconds):
        """Returns all messages of the next SECONDS."""
        out, until = [], time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if word := self.next(left):
                out.append(word)
        return out

    def wait(self, text):
        while (word := self.next()) is not None:
            if word[1].startswith(text):
                return word
        raise AssertionError(f"{text} never came")


@pytest.fixture
def manager(tmp_path):
    made = Manager(tmp_path / "notify")
    yield made
    made.socket.close()


class Standing:
    """Stops one worker's thread as a debugger would. It goes on at the end."""

    def __init__(self, pid, name):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.task = next(
            int(t.name)
            for t in Path(f"/proc/{pid}/task").iterdir()
            if (t / "comm").read_text().strip() == name
        )

    def _trace(self, request):
        if self.libc.ptrace(request, self.task, None, None) != 0:
            not_run(f"ptrace is refused here: {os.strerror(ctypes.get_errno())}")

    def __enter__(self):
        self._trace(SEIZE)
        self._trace(INTERRUPT)
        os.waitpid(self.task, WALL)
        return self

    def __exit__(self, *_):
        self._trace(DETACH)


def test_watchdog_is_fed(start, origin, manager):
    """The server sends WATCHDOG=1 four times within its limit, and once more at the end, for as
    long as a stop may take."""
    server = start(origin, env={**manager.env, "WATCHDOG_USEC": str(LIMIT_US)})
    pid = server.process.pid
    assert [manager.next() for _ in range(3)] == [
        (pid, "READY=1"),
        (pid, f"WATCHDOG_USEC={LIMIT_US}"),
        (pid, "WATCHDOG=1"),
    ]
    signs = 20
    assert [manager.next(WAIT_S) for _ in range(signs)] == [(pid, "WATCHDOG=1")] * signs
    # Since the start: a reader that comes late finds several messages waiting.
    assert time.monotonic() - server.spawned_at > signs * LIMIT_US / 4 / 1e6 * 0.9, (
        "more than it has to say"
    )
    server.stop()
    manager.wait("STOPPING=1")
    assert int(manager.wait("WATCHDOG_USEC=")[1].partition("=")[2]) > 60_000_000


@pytest.mark.parametrize("grace_s", [0, 25, 3600])
def test_a_stop_asks_for_the_time_that_it_may_take(start, origin, manager, grace_s):
    """A unit's TimeoutStopSec may be shorter than shutdown.grace and what the stop needs after it.
    The server asks the service manager for both, before it waits for anything."""
    server = start(origin, env=manager.env, settings={"shutdown.grace": f"{grace_s}s"})
    pid = server.process.pid
    server.stop()
    sender, text = manager.wait("STOPPING=1")
    asked = re.fullmatch(r"STOPPING=1\nEXTEND_TIMEOUT_USEC=(\d+)", text)
    assert sender == pid and asked, text
    assert int(asked.group(1)) > (grace_s + 30) * 1_000_000, text


def test_a_stop_of_an_upgrade_asks_for_what_is_left(start, origin, orphans, manager):
    """A stop during the drain of an upgrade ends at the end of that drain."""
    origin.put("slow", 100)
    server = start(origin, env=manager.env, settings={"shutdown.grace": "600s"})
    with origin.hold("slow"), server.connection() as connection:
        connection.send(request_bytes("GET", "/bkt/slow", f"127.0.0.1:{server.port}"))
        origin.wait_for(1, key="slow")
        os.kill(server.process.pid, signal.SIGUSR2)
        server.wait_stderr('"draining"')
        os.kill(server.process.pid, signal.SIGTERM)
        text = manager.wait("STOPPING=1")[1]
        asked = re.fullmatch(r"STOPPING=1\nEXTEND_TIMEOUT_USEC=(\d+)", text)
        assert asked and 30_000_000 < int(asked.group(1)) < 640_000_000, text
        server.stop()


def test_watchdog_stops_when_one_worker_hangs(start, origin, manager):
    """One of two workers hangs while the other answers, so half of the clients get nothing. The
    server stops sending WATCHDOG=1 until the worker goes on."""
    server = start(
        origin,
        ahead_s=0,
        env={**manager.env, "WATCHDOG_USEC": str(LIMIT_US)},
        settings={"workers": 2},
    )

    def named():  # each on its own timer
        names = [
            (t / "comm").read_text().strip()
            for t in Path(f"/proc/{server.process.pid}/task").iterdir()
        ]
        return sorted(name for name in names if re.fullmatch(r"worker[- ]?\d+", name))

    wait_for(lambda: len(named()) == 2, "two workers' threads")
    workers = named()
    with Standing(server.process.pid, workers[1]):
        server.ahead_s += 6
        server._move_clock(6)
        server.wait_stderr("condition_begun.*worker-stuck")
        while manager.next(0):  # earlier messages
            pass
        assert manager.words(1.5) == []
        assert server.admin("/livez").status == 503
    server.wait_stderr("condition_ended.*worker-stuck")
    for _ in range(4):
        manager.wait("WATCHDOG=1")
    assert server.admin("/livez").status == 200


@pytest.mark.parametrize(
    "value", ["soon", "0", "-1", "99999999999999999999", "4611686018427387904"]
)
def test_watchdog_limits_that_are_none(start, origin, manager, value):
    """An invalid watchdog limit is reported in the log. The server serves and sends no
    WATCHDOG=1."""
    server = start(origin, env={**manager.env, "WATCHDOG_USEC": value})
    server.wait_stderr("watchdog_ignored")
    assert manager.next() == (server.process.pid, "READY=1")
    assert manager.words(1) == []


def test_watchdog_of_another_process(start, origin, manager):
    """If WATCHDOG_PID names another process, the server sends no WATCHDOG=1. This happens when a
    watched service starts it."""
    server = start(origin, env={**manager.env, "WATCHDOG_USEC": "200000", "WATCHDOG_PID": "1"})
    assert manager.next() == (server.process.pid, "READY=1")
    assert manager.words(1) == []
    assert "watchdog_ignored" not in server.output()


@pytest.fixture
def orphans():
    adopt_orphans(True)
    yield
    adopt_orphans(False)


def test_watchdog_goes_on_with_an_upgrade(orphans, start, origin, manager):
    """On an upgrade the old process asks for the time that it takes. The new one sends WATCHDOG=1,
    although WATCHDOG_PID named the old one."""
    server = start(origin, run=False, env={**manager.env, "WATCHDOG_USEC": str(LIMIT_US)})
    server.wrapper = ["/bin/sh", "-c", 'WATCHDOG_PID=$$ exec "$@"', "sh"]
    server.start()
    old = server.process
    manager.wait("READY=1")
    manager.wait("WATCHDOG=1")
    os.kill(old.pid, signal.SIGUSR2)
    while (word := manager.next())[1].partition("=")[0] == "WATCHDOG":
        pass
    assert word[0] == old.pid and int(word[1].removeprefix("WATCHDOG_USEC=")) > 10_000_000
    said = manager.wait("MAINPID=")
    assert said[0] == old.pid and said[1].endswith(f"\nWATCHDOG_USEC={LIMIT_US}")
    new = int(re.match(r"MAINPID=(\d+)", said[1]).group(1))
    wait_for(lambda: manager.next() == (new, "WATCHDOG=1"), "a sign of the new process")
    assert old.wait(WAIT_S) == 0
    follow(server, new)
    for _ in range(3):
        assert manager.wait("WATCHDOG=1")[0] == new

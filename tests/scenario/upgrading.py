# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of `forebay upgrade`.

A server is started through a name that can be given to another program. The next process becomes a
child of the test when the old one ends.
"""

import ctypes
import json
import os

from client import Closed, ProtocolError, Truncated
from forebay import PATIENT, binary, run_forebay
from waiting import WAIT_S, wait_for

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans(on):
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) == 0


class Successor:
    """The part of subprocess.Popen that Forebay uses, for a process that another one has
    started."""

    def __init__(self, pid, former):
        self.pid, self.returncode = pid, None
        self.stdout, self.stderr = former.stdout, former.stderr

    def poll(self):
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # its parent, the old server, is still there
                return None
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout=None):
        wait_for(lambda: self.poll() is not None, f"process {self.pid} to end", timeout or WAIT_S)
        return self.returncode


class Installed:
    """The name by which the server is started, and the program that it leads to."""

    def __init__(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.new = folder / "forebay", folder / "forebay.new"
        self.link(binary())

    def link(self, target):
        self.new.symlink_to(target)
        self.new.replace(self.path)

    def write(self, text, mode=0o755):
        self.new.write_text(text)
        self.new.chmod(mode)
        self.new.replace(self.path)


def control(server, *words, code=0):
    """Runs `forebay upgrade` and returns its output."""
    got = run_forebay(
        *PATIENT,
        "upgrade",
        *words,
        "--json",
        env={"FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"},
    )
    assert got.returncode == code, (got.returncode, got.stdout, got.stderr, server.output())
    return got.stdout + got.stderr


def upgrade(server, *words):
    """Returns when the next process serves and the old one has ended with 0."""
    answer = json.loads(control(server, *words).splitlines()[-1])
    old = server.process
    assert answer["pid"] == old.pid and answer["next_pid"] != old.pid
    assert old.wait(WAIT_S) == 0, server.output()
    follow(server, answer["next_pid"])
    return answer


def follow(server, pid):
    server.process = Successor(pid, server.process)


def pid_of(server):
    """The id of the process that answers now, or None."""
    try:
        return json.loads(bytes(server.admin("/version").body))["pid"]
    except (OSError, Closed, ProtocolError, Truncated):
        return None

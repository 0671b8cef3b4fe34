# SPDX-License-Identifier: Apache-2.0
"""deploy/quickstart.sh tells each step with its time, and how to go on. The packages are there and
the build is played: a cmake that counts files as ninja does, and copies the binary."""

import os
import pty
import re
import signal
import subprocess
import time

import pytest

from forebay import ROOT, binary
from ports import free_ports
from waiting import WAIT_S

CMAKE = """#!/bin/sh
case $1 in
--build)
    for i in 1 2 3 4; do echo "[$i/4] Building C object $i.o"; done
    {more}
    cp {binary} "$2/forebay" ;;
*) while [ "$1" != -B ]; do shift; done; mkdir -p "$2" ;;
esac
"""


@pytest.fixture
def quickstart(tmp_path):
    """quickstart(*words, more=...) returns the command and its environment."""

    def make(*words, more=":"):
        tools = tmp_path / "tools"
        tools.mkdir()
        (tools / "cmake").write_text(CMAKE.format(more=more, binary=binary()))
        (tools / "dpkg-query").write_text("#!/bin/sh\necho install ok installed\n")
        for tool in tools.iterdir():
            tool.chmod(0o755)
        env = {"PATH": f"{tools}:{os.environ['PATH']}", "FOREBAY_BUILD_ROOT": str(tmp_path)}
        return ["sh", str(ROOT / "deploy/quickstart.sh"), *words], env

    return make


def test_quickstart_writes_plain_lines_without_a_terminal(quickstart, tmp_path):
    """Elsewhere than on a terminal there is a line for each quarter of the build, and no bar."""
    command, env = quickstart("--check")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"1/3 packages: .*\n      all there after \d+ s\n"
        r"2/3 build: .*\n(?:      (?:25|50|75) % after \d+ s\n){3}      built after \d+ s: .*\n"
        r"3/3 serve\n",
        done.stderr,
    ), done.stderr
    assert "\x1b" not in done.stderr and "\r" not in done.stderr


def test_quickstart_reports_a_failed_build(quickstart):
    """If the build fails, the end of its log and its path are shown."""
    command, env = quickstart("--check", more="echo no such header; exit 1")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "no such header\nthe build failed: " in done.stderr


def read_until(main, seen, pattern):
    """Reads from the terminal until the pattern is there. Returns all that was seen."""
    until = time.monotonic() + WAIT_S
    while not re.search(pattern, seen):
        assert time.monotonic() < until, seen
        try:
            seen += os.read(main, 65536).decode()
        except OSError:  # the last process on the terminal has ended
            raise AssertionError(f"ended before {pattern!r} was seen:\n{seen}") from None
    return seen


def test_quickstart_on_a_terminal_shows_a_bar_and_how_to_go_on(quickstart, tmp_path):
    """On a terminal the build has a bar. The text at the end names the page and `forebay status`,
    and its PATH makes that work."""
    port, _ = free_ports(2)
    go = tmp_path / "go"
    os.mkfifo(go)
    command, env = quickstart("--port", str(port), more=f"read -r line <{go}")
    main, child = pty.openpty()
    server = subprocess.Popen(
        command, env=env, stdin=child, stdout=child, stderr=child, start_new_session=True
    )
    os.close(child)
    try:
        seen = read_until(main, "", r"\r\x1b\[K      \[#{30}\] 100 %, \d+ s, linking")
        go.write_text("go\n")
        seen = read_until(main, seen, r"event=started")
        assert re.search(rf"page       http://127\.0\.0\.1:{port + 1}/ in a browser", seen)
        assert f"The page, in a browser: http://127.0.0.1:{port + 1}/" in seen
        (export,) = re.findall(r"^ +(export PATH=.*?)\r?$", seen, re.M)
        status = subprocess.run(
            ["sh", "-c", f"{export}\nforebay status"],
            env={"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert status.returncode == 0 and "state    ready" in status.stdout, status
    finally:
        os.killpg(server.pid, signal.SIGINT)
    assert server.wait(WAIT_S) == 0
    os.close(main)

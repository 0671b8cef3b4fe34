# SPDX-License-Identifier: Apache-2.0
"""`forebay upgrade`: a new process takes over the sockets, the cache and idle connections, and no
request is refused. If the new program does not start, whenever it fails, the old one goes on
serving."""

import collections
import contextlib
import http.client
import http.server
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading

import pytest

import upgrading
from client import Connection, judge, request_bytes
from forebay import PATIENT, binary, parallel, run_forebay, scaled
from test_origin_trouble import certificate  # noqa: F401 (a fixture)
from test_reload import certificate as pair_of_keys
from upgrading import Installed, control, follow, pid_of, upgrade
from waiting import WAIT_S, wait_for

MIB = 1 << 20
FOREVER = {"rules": [{"match": "**", "freshness": "immutable"}]}


@pytest.fixture
def installed(tmp_path):
    upgrading.adopt_orphans(True)
    yield Installed(tmp_path / "installed")
    upgrading.adopt_orphans(False)


@pytest.fixture
def serve(start, installed):
    def make(origin, **more):
        server = start(origin, run=False, file=FOREVER, **more)
        server.binary_path = str(installed.path)
        return server.start()

    return make


def ask(connection, server, key):
    connection.send(request_bytes("GET", f"/bkt/{key}", f"127.0.0.1:{server.port}"))
    return connection.read_reply()


def warm(server, origin, keys):
    with server.client() as client:
        for key in keys:
            judge(client.get(key), origin, key)
    server.settle()


@contextlib.contextmanager
def hears(server, busy):
    """Begins an upgrade in the `with` block and waits until the worker has heard of it.

    The server has one worker and BUSY busy connections. The worker has heard once it has passed on
    an idle connection. Later connections wait for the next process.
    """
    with server.connection():
        server.wait_metric("forebay_http_connections", lambda v: v == busy + 1)
        yield
        server.wait_stderr('"draining"')
        server.wait_metric("forebay_http_connections", lambda v: v == busy)


class Load:
    """Clients that never retry, so that every failure counts. Half of them keep their connections
    as long as possible."""

    def __init__(self, server, origin, keys, count):
        self.server, self.origin, self.keys = server, origin, keys
        self.over = threading.Event()
        self.replies = [0] * count
        self.runner = threading.Thread(target=self._run, args=(count,))
        self.error = None

    def _run(self, count):
        with contextlib.suppress(BaseException):  # the error is in self.error
            parallel(count, self._client)

    def _client(self, i):
        try:
            self._ask_on(i)
        except BaseException as error:  # noqa: BLE001: raised in __exit__()
            self.error = self.error or error
            self.over.set()
            raise

    def _ask_on(self, i):
        connection = None
        while not self.over.is_set():
            key = self.keys[(i + self.replies[i]) % len(self.keys)]
            if connection is None:
                connection = self.server.connection()
            reply = ask(connection, self.server, key)
            judge(reply, self.origin, key)
            self.replies[i] += 1
            if i % 2 == 0 or reply.closes:
                connection.close()
                connection = None
        if connection:
            connection.close()

    def more(self, count):
        """Waits until each client has had COUNT more replies, or one has failed."""
        before = list(self.replies)
        wait_for(
            lambda: self.error or all(now >= was + count for now, was in zip(self.replies, before)),
            "replies to every client",
        )
        if self.error:
            raise self.error

    def __enter__(self):
        self.runner.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.runner.join(WAIT_S)
        if self.error:
            raise self.error


@pytest.mark.both_engines
@pytest.mark.tsan
def test_upgrades_under_load(serve, origin, engine, figure):
    """During upgrades no request fails, no byte is wrong, and the origin sees no repeated fetch."""
    keys = [f"k{i}" for i in range(12)]
    for i, key in enumerate(keys):
        origin.put(key, 1000 if i % 3 else 2 * MIB)
    server = serve(origin, engine=engine)
    warm(server, origin, keys)
    mark = origin.mark()
    with Load(server, origin, keys, 6) as load:
        for _ in range(scaled(50, 4)):
            load.more(2)
            upgrade(server)
        load.more(2)
    figure(f"upgrades under load ({engine}): {sum(load.replies)} replies, 0 failed")
    assert [r.target for r in origin.requests(since=mark)] == []
    upgraded = lambda: len([line for line in server.stderr if '"upgraded"' in line])  # noqa: E731
    wait_for(
        lambda: upgraded() >= scaled(50, 4), lambda: f"all upgrades to be told, not {upgraded()}"
    )
    assert upgraded() == scaled(50, 4)


def test_idle_connections_go_on_in_the_new_process(serve, origin, engine):
    """Idle connections stay open over many upgrades. Requests sent on them in between are
    answered."""
    origin.put("a", 1000)
    server = serve(origin, engine=engine)
    connections = [server.connection() for _ in range(20)]
    for connection in connections[:10]:
        judge(ask(connection, server, "a"), origin, "a")
    upgrade(server)
    upgrade(server)
    for connection in connections:
        reply = ask(connection, server, "a")
        judge(reply, origin, "a")
        assert not reply.closes
        connection.close()
    assert len(origin.requests(key="a")) == 1


def test_requests_in_flight_end_in_the_old_process(serve, origin, engine):
    """A reply from a slow origin and a write both end well in the old process, and the new one
    knows of the write."""
    go = threading.Event()
    origin.put("slow", 1000)
    origin.put("w", 1000)
    server = serve(origin, engine=engine, settings={"workers": 1})
    warm(server, origin, ["w"])
    server.wait_metric("forebay_http_connections", lambda v: v == 0)
    origin.fault("slow", "hold", (go,))
    origin.fault("w", "hold", (go,), method="PUT")
    with server.connection() as reader, server.connection() as writer:
        reader.send(request_bytes("GET", "/bkt/slow", f"127.0.0.1:{server.port}"))
        writer.send(request_bytes("PUT", "/bkt/w", f"127.0.0.1:{server.port}", (), b"x" * 500))
        origin.wait_for(1, key="slow")
        origin.wait_for(1, key="w", method="PUT")
        done = []
        asker = threading.Thread(target=lambda: done.append(upgrade(server)))
        with hears(server, busy=2):
            asker.start()
        with server.connection() as new:  # it waits in the queue during this
            new.send(request_bytes("GET", "/bkt/w", f"127.0.0.1:{server.port}"))
            assert not done
            go.set()
            judge(reader.read_reply(), origin, "slow")
            assert writer.read_reply("PUT").status == 200
            reply = new.read_reply()
        assert bytes(reply.body) == b"x" * 500, "what was written is read"
        asker.join(WAIT_S)
    assert done


FAILS = {
    "no program": ("not a program\n", 0o755, "Exec format error"),
    "not executable": ("#!/bin/sh\n", 0o644, "Permission denied"),
    "gone": (None, 0, "No such file"),
    "exits": ("#!/bin/sh\nexit 7\n", 0o755, "exit code 7"),
    "hangs": ("#!/bin/sh\nexec sleep 1000\n", 0o755, "not ready within 1 s"),
    "killed": ("#!/bin/sh\nkill -9 $$\n", 0o755, "ended before it was ready"),
    "other settings": (f'#!/bin/sh\nexec {binary()} "$@" --cache.size=x\n', 0o755, "cache.size"),
}


def test_a_program_that_does_not_start_changes_nothing(serve, origin, installed):
    origin.put("a", 1000)
    server = serve(origin)
    warm(server, origin, ["a"])
    with Load(server, origin, ["a"], 2) as load:
        for name, (text, mode, word) in FAILS.items():
            if text is None:
                installed.path.unlink()
            else:
                installed.write(text, mode)
            said = control(server, "--wait", "1" if name == "hangs" else "30", code=1)
            assert word in said, (name, said)
            load.more(1)
        assert pid_of(server) == server.process.pid
        failed = lambda: len(  # noqa: E731
            [line for line in server.stderr if '"upgrade_failed"' in line]
        )
        wait_for(lambda: failed() >= len(FAILS), lambda: f"all failures to be told, not {failed()}")
        assert failed() == len(FAILS)
        installed.link(binary())
        upgrade(server)
        load.more(1)
    assert len(origin.requests(key="a")) == 1


def test_mistakes_in_the_settings_are_one_line_of_an_upgrade(serve, origin, installed):
    """The mistakes that the new program finds are one line in the output and in the log."""
    server = serve(origin)
    installed.write(f'#!/bin/sh\nexec {binary()} "$@" --cache.size=x --cache.ttl=y\n')
    got = run_forebay(
        *PATIENT, "upgrade", env={"FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"}
    )
    assert got.returncode == 1, got
    mistakes = r"--cache\.size[^\\]*; --cache\.ttl: .* or 7d( \(exit code 3\))?"
    assert re.fullmatch(f"forebay upgrade: {mistakes}\n", got.stderr), got.stderr
    server.wait_stderr(f'"upgrade_failed".*{mistakes}"}}$')


def is_gone(pid):
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # an orphan that the test has adopted
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("last", ["wait", "exit 0"])
def test_children_of_a_failed_program_end_with_it(serve, origin, installed, last):
    """If the new program fails, its child processes end too. Otherwise they would keep the
    listening sockets and the port."""
    origin.put("a", 1000)
    server = serve(origin)
    group = os.getpgid(server.process.pid)
    installed.write(f"#!/bin/sh\nsleep 54321 &\necho $! > {server.folder}/started\n{last}\n")
    note, wait_s = server.folder / "started", 1
    while not (text := note.read_text() if note.exists() else "").endswith(
        "\n"
    ):  # a slow machine has not reached this point
        control(server, "--wait", wait_s, code=1)
        wait_s = min(2 * wait_s, 45)
    started = int(text)
    wait_for(lambda: is_gone(started), "what the program has started to end")
    installed.link(binary())
    upgrade(server)
    assert os.getpgid(server.process.pid) == group, (
        "a signal of the terminal reaches whoever serves"
    )
    warm(server, origin, ["a"])


@pytest.mark.both_engines
def test_a_program_that_fails_with_the_cache_in_hand(serve, origin, engine, installed):
    """The new program fails when it already has the cache. The old process starts itself again with
    the same id, and clients notice nothing."""
    origin.put("a", 1000)
    name = installed.path.with_name("s3.sock")
    server = serve(origin, engine=engine, settings={"listen": f"127.0.0.1:0,unix:{name}"})
    warm(server, origin, ["a"])
    pid = server.process.pid
    path = server.folder / "no" / "admin.sock"  # opened after the cache directory
    installed.write(f'#!/bin/sh\nexec {binary()} "$@" --admin.socket={path}\n')
    with Load(server, origin, ["a"], 4) as load, server.connection() as idle:
        judge(ask(idle, server, "a"), origin, "a")
        assert "does not serve" in control(server, code=1)
        server.wait_stderr('"upgrade_undone"')
        wait_for(lambda: pid_of(server) == pid, "the old process to serve again")
        assert "does not serve" in control(server, code=1), (
            "it starts what is installed, not itself"
        )
        wait_for(lambda: pid_of(server) == pid, "the old process to serve again")
        load.more(2)
        judge(ask(idle, server, "a"), origin, "a")
        with Connection(None, path=str(name)) as by_name:
            judge(ask(by_name, server, "a"), origin, "a")
        installed.link(binary())
        upgrade(server)
        load.more(2)
    assert len(origin.requests(key="a")) == 1


@pytest.mark.both_engines
def test_either_side_may_be_killed_during_an_upgrade(serve, origin, engine, installed):
    """While the old process drains, one side is killed. Without the new one the old one serves
    again; without the old one the new one goes on."""
    origin.put("a", 300_000)
    go = threading.Event()
    server = serve(origin, engine=engine, settings={"workers": 1})
    for victim in ("new", "old"):
        origin.put(victim, 1000)
        warm(server, origin, ["a"])
        go.clear()
        origin.fault(victim, "hold", (go,))
        mark = len(server.stderr)
        with server.connection() as busy:
            busy.send(request_bytes("GET", f"/bkt/{victim}", f"127.0.0.1:{server.port}"))
            origin.wait_for(1, key=victim)
            old = server.process.pid
            with hears(server, busy=1):
                os.kill(old, signal.SIGUSR2)
                wait_for(
                    lambda: any('"draining"' in line for line in server.stderr[mark:]), "the drain"
                )
            children = open(f"/proc/{old}/task/{old}/children").read().split()
            new = int(children[-1])
            with server.connection() as waits:
                waits.send(request_bytes("GET", "/bkt/a", f"127.0.0.1:{server.port}"))
                if victim == "new":
                    os.kill(new, signal.SIGKILL)
                    go.set()
                    judge(busy.read_reply(), origin, victim)
                    expected = old
                else:
                    os.kill(old, signal.SIGKILL)
                    expected = new
                    server.process.wait(WAIT_S)
                    server.kills += 1
                    follow(server, new)
                judge(waits.read_reply(), origin, "a")
            wait_for(lambda: pid_of(server) == expected, "who is left to serve")
        go.set()
        warm(server, origin, ["a"])
    upgrade(server)
    warm(server, origin, ["a"])


def test_a_stop_during_an_upgrade_ends_both_processes(serve, origin, engine):
    """SIGTERM reaches the old process while it drains. Requests in flight end well, and afterwards
    no process serves."""
    origin.put("slow", 1000)
    go = threading.Event()
    origin.fault("slow", "hold", (go,))
    server = serve(origin, engine=engine)
    old = server.process.pid
    with server.connection() as busy:
        busy.send(request_bytes("GET", "/bkt/slow", f"127.0.0.1:{server.port}"))
        origin.wait_for(1, key="slow")
        os.kill(old, signal.SIGUSR2)
        server.wait_stderr('"draining"')
        (new,) = map(int, open(f"/proc/{old}/task/{old}/children").read().split())
        os.kill(old, signal.SIGTERM)
        server.wait_stderr('"upgrade_failed"')
        wait_for(lambda: is_gone(new), "the one that was to follow to end")
        go.set()
        judge(busy.read_reply(), origin, "slow")
    assert server.wait_exit() == 0
    server.start()  # the cache directory is free
    warm(server, origin, ["slow"])


def test_a_stop_during_an_upgrade_leaves_no_client_waiting(serve, origin, engine, tmp_path):
    """SIGTERM reaches the old process during an upgrade. Clients that were passed on, or that wait
    for the new process, are answered. The next one is refused."""
    origin.put("a", 1000)
    name = tmp_path / "s3.sock"
    server = serve(
        origin, engine=engine, settings={"workers": 1, "listen": f"127.0.0.1:0,unix:{name}"}
    )
    warm(server, origin, ["a"])
    with server.connection() as idle:
        judge(ask(idle, server, "a"), origin, "a")
        with draining(server, origin) as new:
            server.wait_metric("forebay_http_connections", lambda v: v == 1)
            idle.send(request_bytes("GET", "/bkt/a", f"127.0.0.1:{server.port}"))
            with server.connection() as waits:
                waits.send(request_bytes("GET", "/bkt/a", f"127.0.0.1:{server.port}"))
                os.kill(server.process.pid, signal.SIGTERM)
                judge(idle.read_reply(), origin, "a")
                judge(waits.read_reply(), origin, "a")
            assert is_gone(new)
            with pytest.raises(ConnectionRefusedError):
                server.connection()
            assert not name.exists()
    assert server.wait_exit() == 0


def threads_of(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


def is_waiting(pid):
    """Whether the process is in a system call that waits for others."""
    return open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] == "S"


def child_of(pid):
    (child,) = map(int, open(f"/proc/{pid}/task/{pid}/children").read().split())
    return child


@contextlib.contextmanager
def draining(server, origin):
    """A server that upgrades by a signal while one request delays it. Returns the id of the next
    process."""
    go = threading.Event()
    origin.put("slow", 1000)
    origin.fault("slow", "hold", (go,))
    with server.connection() as busy:
        busy.send(request_bytes("GET", "/bkt/slow", f"127.0.0.1:{server.port}"))
        origin.wait_for(1, key="slow")
        os.kill(server.process.pid, signal.SIGUSR2)
        server.wait_stderr('"draining"')
        yield child_of(server.process.pid)
        go.set()
        judge(busy.read_reply(), origin, "slow")


def test_a_late_stop_during_an_upgrade_ends_both_processes(serve, origin, engine):
    """SIGTERM reaches the old process while the cache passes to the new one, which has not reported
    yet that it serves. Both end."""
    origin.put("a", 1000)
    server = serve(origin, engine=engine)
    warm(server, origin, ["a"])
    old = server.process.pid
    with draining(server, origin) as new:
        os.kill(new, signal.SIGSTOP)  # it takes nothing over during this
    wait_for(lambda: threads_of(old) == 1, "the old one to have closed the cache")
    os.kill(old, signal.SIGTERM)
    os.kill(new, signal.SIGCONT)
    try:
        wait_for(lambda: is_gone(new), "the one that was to follow to end")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(new, signal.SIGKILL)  # it would hold the server's output open
    assert server.wait_exit() == 0, server.output()
    server.start()  # the cache directory is free
    warm(server, origin, ["a"])


@pytest.mark.parametrize("told", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_do_not_end_an_old_process_that_serves_again(serve, origin, told):
    """A signal to reload files reaches the old process after it released the cache. The new process
    fails, and the old one starts again and serves."""
    origin.put("a", 1000)
    server = serve(origin)
    old = server.process.pid
    with draining(server, origin) as new:
        os.kill(new, signal.SIGSTOP)
    wait_for(
        lambda: threads_of(old) == 1 and is_waiting(old),
        "the old one to wait for the one that follows",
    )
    os.kill(old, told)
    os.kill(new, signal.SIGKILL)
    server.wait_stderr('"upgrade_undone"')
    wait_for(
        lambda: server.process.poll() is None and pid_of(server) == old,
        "the old process to serve again",
    )
    warm(server, origin, ["a"])


def test_signals_to_the_old_process_reach_the_new_one(serve, origin, tmp_path):
    """SIGHUP and SIGUSR1 go to the old process, whose id is known. The new one has already read its
    files, so it reads them again."""
    log, rotated = tmp_path / "access.log", tmp_path / "access.log.1"
    server = serve(origin, settings={"access_log.path": log})
    old = server.process
    with draining(server, origin) as new:
        log.rename(rotated)
        os.kill(old.pid, signal.SIGUSR1)
        os.kill(old.pid, signal.SIGHUP)
    assert old.wait(WAIT_S) == 0, server.output()
    follow(server, new)
    server.wait_stderr('"reloaded"')
    wait_for(log.exists, "the log's file under its name")


def test_commands_during_an_upgrade_are_refused(serve, origin):
    """An upgrade or a reload during an upgrade is refused at once. Otherwise it would wait until
    the old process ends."""
    server = serve(origin, settings={"shutdown.grace": "10m"})
    old = server.process
    with draining(server, origin) as new:
        for order in ("upgrade", "reload"):
            got = run_forebay(order, env={"FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"})
            assert got.returncode == 1 and "about to take its place" in got.stderr, got
            assert old.poll() is None, "refused only when the old process had ended"
    assert old.wait(WAIT_S) == 0, server.output()
    follow(server, new)


def test_a_server_killed_while_another_gets_ready(serve, origin, installed):
    """The old server is killed before it hands anything over. The new process ends too, and the
    next start finds the cache free."""
    origin.put("a", 1000)
    server = serve(origin)
    warm(server, origin, ["a"])
    server.settle()
    installed.write(
        f"#!/bin/sh\nmkfifo {server.folder}/gate; read x < {server.folder}/gate\n"
        f'exec {binary()} "$@"\n'
    )
    os.kill(server.process.pid, signal.SIGUSR2)
    server.wait_stderr('"upgrade_begun"')
    wait_for(lambda: os.path.exists(f"{server.folder}/gate"), "the new program")
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait(WAIT_S)
    server.kills += 1
    with open(f"{server.folder}/gate", "w") as gate:
        gate.write("\n")
    server.wait_stderr("the former process continues to serve, so this one ends")
    server._join()
    server.process = None
    installed.link(binary())
    server.start()
    warm(server, origin, ["a"])


def test_an_unfinished_renewal_of_the_certificate_refuses_the_upgrade(
    serve, origin, certificate, tmp_path
):
    """Only the certificate has been replaced, and its key not yet. `check` and `doctor` say so, a
    start ends with 3, and an upgrade is refused before the old process stops serving."""
    origin.put("a", 1000)
    cert = tmp_path / "t.crt"
    shutil.copy(certificate[0], cert)
    tls = {
        "listen": "127.0.0.1:0,tls:127.0.0.1:0",
        "listen_tls.cert": str(cert),
        "listen_tls.key": certificate[1],
    }
    server = serve(origin, settings=tls)
    shutil.copy(pair_of_keys(tmp_path, "other")[0], cert)
    said = "does not belong to the certificate"
    assert said in control(server, "--wait", "30", code=1)
    server.wait_stderr(f'"upgrade_failed".*{said}')
    assert pid_of(server) == server.process.pid
    warm(server, origin, ["a"])
    words = [f"--{name}={value}" for name, value in tls.items()]
    for command in ("check", "doctor"):
        got = run_forebay(command, *words)
        assert got.returncode == 3 and said in got.stdout + got.stderr, (command, got)
    server.stop()
    assert server.spawn().wait_exit() == 3


def test_upgrade_returns_when_both_processes_have_died():
    """The command does not wait for the longest start when nobody is left who could answer."""

    class Died(http.server.BaseHTTPRequestHandler):
        """Answers the order by the ids of two processes that have died, and nothing after it."""

        def do_POST(self):
            body = json.dumps(dict(zip(("pid", "next_pid"), dead, strict=True))).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    ended = [subprocess.Popen(["true"]) for _ in range(2)]
    dead = [process.pid for process in ended if process.wait() == 0]
    with http.server.HTTPServer(("127.0.0.1", 0), Died) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        got = run_forebay("--admin", f"http://127.0.0.1:{server.server_port}", "upgrade")
        server.shutdown()
    assert got.returncode == 1 and "does not serve" in got.stderr, got


def test_unix_and_tls_listeners(serve, origin, certificate, tmp_path):
    """Unix and TLS listeners are handed over as such. The unix socket's name stays, and the last
    process removes it."""
    origin.put("a", 1000)
    path = tmp_path / "s3.sock"
    server = serve(
        origin,
        settings={
            "listen": f"127.0.0.1:0,tls:127.0.0.1:0,unix:{path}",
            "listen_tls.cert": certificate[0],
            "listen_tls.key": certificate[1],
        },
    )
    inode = path.stat().st_ino
    tls = server.tls_port
    trust = ssl.create_default_context(cafile=certificate[0])

    def https():
        got = http.client.HTTPSConnection("127.0.0.1", tls, timeout=WAIT_S, context=trust)
        got.connect()
        return got

    def get(connection):
        connection.request("GET", "/bkt/a")
        reply = connection.getresponse()
        assert reply.status == 200 and reply.read() == origin.bytes_of("a", 0, 1000)
        return reply.getheader("connection")

    waits = https()
    assert get(waits) is None
    os.kill(server.process.pid, signal.SIGUSR2)
    server.wait_stderr('"draining"')
    # A TLS connection's keys cannot be handed over. It ends with a reply: the next one, or one
    # later if its worker had not heard yet.
    wait_for(lambda: get(waits) == "close", "the end of the connection")
    # A connection that such a worker accepted is closed as well. The next one belongs to the new
    # process.
    wait_for(lambda: get(https()) is None, "a connection that goes on")
    old = server.process
    assert old.wait(WAIT_S) == 0
    follow(server, pid_of(server))
    upgrade(server)
    assert path.stat().st_ino == inode
    with Connection(None, path=str(path)) as connection:
        connection.send(request_bytes("GET", "/bkt/a", "127.0.0.1"))
        judge(connection.read_reply(), origin, "a")
    server.stop()
    assert not path.exists()


def test_systemd_learns_the_new_process(serve, origin, tmp_path):
    """systemd gets MAINPID from the old process, which stays until systemd has read it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify"))
        notify.settimeout(WAIT_S)
        origin.put("a", 1000)
        server = serve(origin, env={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert notify.recv(500) == b"READY=1"
        old = server.process
        os.kill(old.pid, signal.SIGUSR2)
        words, fds = [], []
        while not fds:  # the new one's READY=1 may come first, and systemd then ignores it
            data, fds, _, _ = socket.recv_fds(notify, 500, 1)
            words.append(data.decode())
        assert words[-1] == "BARRIER=1" and len(fds) == 1
        (word,) = [w for w in words[:-1] if w != "READY=1"]
        assert word.startswith("MAINPID=") and int(word[8:]) != old.pid
        assert old.poll() is None
        os.close(fds[0])
        assert old.wait(WAIT_S) == 0
        follow(server, int(word[8:]))
        warm(server, origin, ["a"])


def held(pid):
    """How often each file, pipe and socket is open in the process."""
    links = []
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            links.append(os.readlink(entry.path))
    return collections.Counter(links)


@pytest.mark.both_engines
def test_only_what_is_handed_over_is_inherited(serve, origin, engine):
    """The new process inherits only what is handed over: not the index, not the log's pipe, and no
    socket of a library."""
    origin.put("a", 3 * MIB)
    server = serve(origin, engine=engine)
    warm(server, origin, ["a"])
    first = held(server.process.pid)
    index, pipe = (
        str(server.cache / "index" / "data.mdb"),
        os.readlink(f"/proc/{server.process.pid}/fd/1"),
    )
    for _ in range(3):
        upgrade(server)
        warm(server, origin, ["a"])
    last = held(server.process.pid)
    assert first[index] and (last[index], last[pipe]) == (first[index], first[pipe])
    both = [name for name in last if name in first and name.startswith("socket:")]
    assert len(both) == 2, both  # the listener and the admin port

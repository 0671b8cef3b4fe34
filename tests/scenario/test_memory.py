# SPDX-License-Identifier: Apache-2.0
"""Slow and fast readers of large objects in a pod of 128 MiB, a real memory cgroup. A slow disk
there. A soak in a pod of 256 MiB.

FOREBAY_SOAK_S is the length of the soak (4, at scale 1 1800). From 120 on the test judges growth.
"""

import contextlib
import hashlib
import os
import random
import shutil
import socket
import threading
import time
from pathlib import Path

import pytest
from cgroup import MemoryCgroup, NoCgroup
from client import Connection, judge, judge_streamed
from conftest import not_run
from forebay import REQUEST_BYTES, build_kind, parallel, scale, scaled
from oracle import oracle_bytes, oracle_judge, oracle_pieces

MIB = 1 << 20
POD = 128 * MIB
SOAK_POD = 256 * MIB
SOAK_JUDGED_S = 120  # earlier not all of it has been used
ANONYMOUS_MAX = 96 * MIB
SLOW = 100
FAST = 4
WAITING_RUN_BYTES = 2048  # MEMORY_PENDING_BYTES
CHUNK = 65536  # CHUNK_SIZE
LEAD = 512 * 1024  # FILL_LEAD_AHEAD
# Slow readers of the same object as the fast ones. The others have an object each.
BESIDE = 20
FILLED = 2 * MIB  # the most they may read of those; in a folder the rest is a hole


class Tree:
    """A folder as an origin, with the oracle's bytes. The tail of an object that only slow readers
    read is sparse."""

    def __init__(self, folder):
        self.folder, self.sizes = Path(folder), {}
        self.endpoint = f"dir:{folder}"

    def put(self, key, size, filled=None):
        path = self.folder / "bkt" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for piece in oracle_pieces(self.name(key), 1, 0, size if filled is None else filled):
                file.write(piece)
            file.truncate(size)
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    @staticmethod
    def name(key, bucket=None):
        return f"{bucket or 'bkt'}/{key}"

    @staticmethod
    def number_of(key, etag, bucket=None):
        assert etag
        return 1


class SlowReader:
    """Reads a little at a time and judges it."""

    def __init__(self, server, origin, key, size):
        self.server, self.origin, self.key, self.size = server, origin, key, size
        self.connection = Connection(server.port, receive_buffer=4096)
        self.connection.send(f"GET /bkt/{key} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        self.taken = 0
        self.version = None

    def begin(self):
        reply = self.connection.read_head()
        assert reply.status == 200 and int(reply.header("content-length")) == self.size, reply
        self.version = self.origin.number_of(self.key, reply.etag)
        self._judge(bytes(self.connection.buf))
        self.connection.buf.clear()

    def _judge(self, data):
        assert self.taken + len(data) <= self.size
        oracle_judge(self.origin.name(self.key), data, self.taken, self.version)
        self.taken += len(data)

    def sip(self, most=1024):
        if self.taken > FILLED - 65536:
            return
        with contextlib.suppress(BlockingIOError):
            data = self.connection.sock.recv(most, socket.MSG_DONTWAIT)
            assert data, self._cut()
            self._judge(data)

    def _cut(self):
        """Says which limit for clients cut it, or which fault of the origin or the disk."""
        said = "".join(self.server.stderr)[-2000:]
        return f"{self.key}: cut after {self.taken} bytes\n{self.server.troubles()}\n{said}"

    def drink(self, goal):
        while self.taken < goal:
            data = self.connection.sock.recv(65536)
            assert data, self._cut()
            self._judge(data)

    def close(self):
        self.connection.close()


class Watch:
    """Records the highest anonymous memory while the block runs, during slow reads."""

    def __init__(self, read, slow):
        self.read, self.slow = read, slow
        self.highest = self.rounds = 0
        self.error = None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            while not self.over.wait(0.02):
                self.highest = max(self.highest, self.read())
                self.rounds += 1
                for reader in self.slow[self.rounds % 10 :: 10]:
                    reader.sip()
        except (AssertionError, OSError) as error:
            self.error = error

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def anonymous_of(server):
    """Without a cgroup: RssAnon of the one process."""
    status = Path(f"/proc/{server._pid()}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def sockets_of(group):
    """Returns what reads the memory that the kernel holds for the pod's sockets; 0 without one."""
    return group.socket_bytes if group else lambda: 0


@pytest.fixture
def group(request):
    """The cgroup, or None where this machine lets us make none.

    A test must ask for it before `start`, because its servers must have ended before it is removed.
    """
    try:
        made = MemoryCgroup(hashlib.sha256(request.node.name.encode()).hexdigest()[:8], POD)
    except NoCgroup:
        yield None
        return
    with made:
        yield made


def settings_of_the_pod(group, **more):
    """The server itself chooses limits.max_buffer where it can see the cgroup."""
    return {"access_log.path": "off", "limits.max_buffer": None if group else "32MiB"} | more


def keys_of(fast_size, slow_size):
    fast = {f"fast/{i}": fast_size for i in range(FAST)}
    slow = {f"slow/{i}": slow_size for i in range(SLOW - BESIDE)}
    return fast, slow


@pytest.mark.parametrize("workers", (1, 16))
@pytest.mark.parametrize("kind", ("dir", "s3"))
def test_a_pod_of_128_mib(group, start, origin, engine, kind, workers, tmp_path, figure):
    """In a pod of 128 MiB, 100 clients read large objects slowly and four fast, cold. Nothing is
    killed and every byte is right. The fast ones finish while the slow ones still read."""
    if build_kind() in ("asan-ubsan", "tsan"):
        not_run("memory is not judged under a sanitizer")
    size = scaled(256 * MIB, 32 * MIB)
    fast, slow = keys_of(size, 256 * MIB)
    source = origin
    if kind == "dir":
        source = Tree(tmp_path / "tree")
    for key, length in fast.items():
        source.put(key, length)
    for key, length in slow.items():
        source.put(key, length, FILLED) if kind == "dir" else source.put(key, length)
    server = start(
        source,
        engine=engine,
        ahead_s=3 if kind == "dir" else None,
        wrapper=group.wrapper if group else (),
        settings=settings_of_the_pod(
            group, **{"workers": workers, "cache.size": "2GiB", "origin.connections": 512}
        ),
    )
    assert server.metric("forebay_buffer_limit_bytes") == POD // 4
    readers = []
    try:
        for i in range(SLOW):
            key = f"fast/{i % FAST}" if i < BESIDE else f"slow/{i - BESIDE}"
            readers.append(SlowReader(server, source, key, (fast | slow)[key]))
        for reader in readers:
            reader.begin()

        def read_whole(i):
            with server.connection() as connection:
                connection.send(f"GET /bkt/fast/{i} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
                judge_streamed(connection, source, f"fast/{i}", 0, size)

        read = group.anonymous_bytes if group else lambda: anonymous_of(server)
        with Watch(read, readers) as watch, Watch(sockets_of(group), []) as sockets:
            parallel(FAST, read_whole)
        if watch.error is not None:
            raise watch.error
        assert sockets.error is None
        assert all(reader.taken < reader.size for reader in readers)
        dropped = server.metric("forebay_page_cache_dropped_bytes_total")
        for reader in readers:
            reader.drink(min(reader.taken + 256 * 1024, FILLED))
        peak = server.metric("forebay_buffer_peak_bytes")
        figure(
            f"{'cgroup v%d' % group.version if group else 'no cgroup, RssAnon'}, {engine}, {kind}, "
            f"{workers} workers, objects of {size // MIB} MiB: anonymous memory up to "
            f"{watch.highest / MIB:.1f} MiB of {watch.rounds} samples, buffers up to "
            f"{peak / MIB:.1f} MiB, {dropped / MIB:.0f} MiB of pages dropped, sockets up to "
            f"{sockets.highest / MIB:.1f} MiB"
        )
        # Each reply and each worker may use this much more when all of the memory is in use. A
        # reply holds a chunk that is being sent. Of each of the two runs that it may read, it holds
        # one that is being filled and two that wait.
        over = (SLOW + FAST) * (1 + 2 * 3) * CHUNK + workers * LEAD
        assert peak <= POD // 4 + over, f"buffers up to {peak / MIB:.1f} MiB"
        assert sockets.highest <= POD // 8 * 3, f"{sockets.highest / MIB:.0f} MiB in sockets"
        assert group is None or dropped > 0, "written pages stay where memory is short"
        assert watch.rounds > 3 and watch.highest > MIB
        assert watch.highest <= ANONYMOUS_MAX, f"{watch.highest / MIB:.0f} MiB anonymous"
        assert group is None or group.kills() == 0
        assert server.alive
    finally:
        for reader in readers:
            reader.close()
        shutil.rmtree(tmp_path / "tree", ignore_errors=True)


@pytest.mark.both_engines
@pytest.mark.parametrize("size", (200_000, 16 * MIB))
def test_a_slow_disk_does_not_fill_a_pod_with_unwritten_pages(
    group, start, origin, engine, size, tmp_path, figure
):
    """Clients read from the origin in a pod of 128 MiB, and the disk completes no write-back. The
    written bytes that the disk does not have yet take a quarter of its memory at most."""
    if group is None:
        not_run("this machine lets us make no memory cgroup")
    if build_kind() == "release":
        not_run("a release has no faults")
    count = 2 * POD // size
    held = tmp_path / "held"
    held.touch()
    for i in range(count):
        origin.put(f"cold/{i}", size)
    server = start(
        origin,
        engine=engine,
        wrapper=group.wrapper,
        env={"FOREBAY_DISK_FAULTS": f"push:file={held}:hold,sync:file={held}:hold"},
        settings=settings_of_the_pod(group, **{"cache.size": "2GiB", "workers": 1}),
    )

    def read_some(first):
        with server.connection() as connection:
            for i in range(first, count, 8):
                connection.send(f"GET /bkt/cold/{i} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
                judge_streamed(connection, origin, f"cold/{i}", 0, size)

    try:
        with Watch(group.unwritten_bytes, []) as watch:
            parallel(8, read_some)
    finally:
        held.unlink()
    assert watch.error is None and watch.rounds > 3
    figure(f"{engine}, objects of {size} bytes: unwritten up to {watch.highest / MIB:.1f} MiB")
    assert 0 < watch.highest <= POD // 4 + 2 * MIB
    assert group.kills() == 0


def test_requests_that_wait_at_the_origin_are_counted(start, origin, engine, figure):
    """More requests wait for a slow origin than the buffers of a pod have room for. The excess gets
    SlowDown, the others are answered, and their memory is given back. No memory limit bounds the
    sockets, so that only the requests count."""
    if build_kind() in ("asan-ubsan", "tsan"):
        not_run("memory is not judged under a sanitizer")
    room = POD // 4 // 8 * 3 // REQUEST_BYTES
    count = scaled(4096, room + 200)
    with contextlib.ExitStack() as held:
        server = start(origin, engine=engine, settings=settings_of_the_pod(None))
        for i in range(count):
            origin.put(f"waits/{i}", 1000)
        with origin.hold(None):
            clients = [held.enter_context(server.connection()) for _ in range(count)]
            for i, client in enumerate(clients):
                client.send(f"GET /bkt/waits/{i} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            server.wait_metric(
                "forebay_http_shed_total", lambda v: v == count - room, reason="memory"
            )
            rows = server.condition_rows()
            words = f"limits.max_buffer ({POD // 4 // MIB}.0 MiB) was used up"
            assert words in rows["memory"]["text"] and "requests-shed" not in rows
            server.wait_metric(
                "forebay_buffer_bytes", lambda v: v == room * REQUEST_BYTES, kind="clients"
            )
            anonymous = anonymous_of(server)
        figure(f"{room} of {count} requests wait ({engine}): {anonymous / MIB:.1f} MiB anonymous")
        assert anonymous <= ANONYMOUS_MAX
        shed = 0
        for i, client in enumerate(clients):
            reply = client.read_reply()
            if reply.status == 200:
                oracle_judge(origin.name(f"waits/{i}"), reply.body, 0)
                assert len(reply.body) == 1000
            else:
                assert (reply.status, reply.code) == (503, "SlowDown"), reply
                shed += 1
        assert shed == count - room
        server.wait_metric("forebay_buffer_bytes", lambda v: v == 0, kind="clients")
        server.wait_metric("forebay_buffer_bytes", lambda v: v == 0, kind="origins")


@pytest.mark.both_engines
def test_memory_stays_flat_while_no_sync_ends(group, start, engine, tmp_path, figure):
    """Clients keep reading small objects while the disk completes no sync. Memory stays flat and
    every read is right. When the disk goes on, the waiting objects are stored."""
    if build_kind() in ("asan-ubsan", "tsan"):
        not_run("memory is not judged under a sanitizer")
    if build_kind() == "release":
        not_run("a release has no faults")
    buffer = 8 * MIB
    waiting = buffer // 8 * 3 // WAITING_RUN_BYTES
    half = scaled(25_000, waiting + 1000)
    size = 4096
    tree = Tree(tmp_path / "tree")
    (tree.folder / "bkt").mkdir(parents=True)
    for i in range(2 * half):
        (tree.folder / "bkt" / f"o{i}").write_bytes(oracle_bytes(tree.name(f"o{i}"), 1, 0, size))
    held = tmp_path / "held"
    server = start(
        tree,
        engine=engine,
        ahead_s=3,
        wrapper=group.wrapper if group else (),
        env={"FOREBAY_DISK_FAULTS": f"sync:file={held}:hold"},
        settings=settings_of_the_pod(group, **{"cache.size": "1GiB", "limits.max_buffer": buffer}),
    )
    read = group.anonymous_bytes if group else lambda: anonymous_of(server)

    def read_all(first, count):
        def one(worker):
            numbers = range(first + worker, first + count, 4)
            with server.connection() as connection:
                for at in range(0, len(numbers), 50):
                    part = numbers[at : at + 50]
                    connection.send(
                        b"".join(
                            f"GET /bkt/o{i} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
                            for i in part
                        )
                    )
                    for i in part:
                        reply = connection.read_reply()
                        assert reply.status == 200 and len(reply.body) == size, reply
                        oracle_judge(tree.name(f"o{i}"), reply.body, 0, 1)

        parallel(4, one)
        return read()

    try:
        read_all(0, 1)
        server.settle()
        held.touch()
        asked, runs_before = 1, 0
        while (
            runs_before < waiting * WAITING_RUN_BYTES
        ):  # once, unless the disk is so slow that it accepts few writes
            assert asked <= 20 * half, f"{runs_before} bytes wait: never full"
            middle = read_all(1, half)
            asked += half
            server.settle()  # written, so that each one that is to be stored waits for the sync
            runs_before = server.metric("forebay_buffer_bytes", kind="runs")
        unstored_before = server.metric("forebay_fills_total", state="unstored")
        last = read_all(half + 1, half - 1)
        server.settle()
        unstored = server.metric("forebay_fills_total", state="unstored")
        runs = server.metric("forebay_buffer_bytes", kind="runs")
        held.unlink()
        server.settle()
        server.wait_metric("forebay_buffer_bytes", lambda v: v == 0, kind="runs")
        figure(
            f"{2 * half} objects of {size} bytes while no sync ends "
            f"({engine}): {middle / MIB:.1f} MiB anonymous "
            f"in the middle, {last / MIB:.1f} MiB at the end, "
            f"{runs / WAITING_RUN_BYTES:.0f} runs wait, "
            f"{unstored:.0f} unstored"
        )
        assert last <= middle + 4 * MIB, f"grows: {middle / MIB:.1f} then {last / MIB:.1f} MiB"
        assert last <= ANONYMOUS_MAX
        assert runs == runs_before and unstored - unstored_before == half - 1, (
            f"where {runs_before} bytes waited already, {runs} do, and "
            f"{unstored - unstored_before} of {half - 1} went unstored"
        )
        stored = server.metric("forebay_fills_total", state="stored")
        hits = server.metric("forebay_cache_requests_total", result="hit")
        assert stored + unstored + hits == asked + half - 1, (stored, unstored, hits)
        assert group is None or group.kills() == 0
    finally:
        held.unlink(missing_ok=True)
        shutil.rmtree(tree.folder, ignore_errors=True)


@pytest.fixture
def larger_group(request):
    try:
        made = MemoryCgroup(hashlib.sha256(request.node.name.encode()).hexdigest()[:8], SOAK_POD)
    except NoCgroup:
        yield None
        return
    with made:
        yield made


class Soaker:
    """One client that reads and writes at random. The objects are four times the cache in total,
    and some are read much more often."""

    def __init__(self, server, origin, keys, seed):
        self.server, self.origin, self.keys, self.dice, self.asked = (
            server,
            origin,
            keys,
            random.Random(seed),
            0,
        )

    def run(self, until):
        with self.server.client() as client:
            while time.monotonic() < until:
                self.asked += 1
                self.dice.choices(
                    (self.read, self.part, self.head, self.leave, self.absent, self.write),
                    (60, 15, 10, 5, 5, 5),
                )[0](client)

    def pick(self):
        return self.keys[int(len(self.keys) * self.dice.random() ** 3)]

    def read(self, client):
        key = self.pick()
        judge(client.get(key), self.origin, key, 0, self.origin.version(key).size)

    def part(self, client):
        key = self.pick()
        size = self.origin.version(key).size
        first = self.dice.randrange(size)
        judge(client.get(key, first), self.origin, key, first, size - first)

    def head(self, client):
        assert client.head(self.pick()).status == 200

    def absent(self, client):
        assert client.get(f"absent/{self.dice.random()}").status == 404

    def write(self, client):
        assert (
            client.request(
                "PUT",
                f"/bkt/new/{self.dice.randrange(1000)}",
                body=bytes(self.dice.randrange(200_000)),
            ).status
            == 200
        )

    def leave(self, _):
        with self.server.connection() as connection:
            connection.send(f"GET /bkt/{self.pick()} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())


@pytest.mark.long(covered="test_a_pod_of_128_mib")
def test_a_soak_in_a_pod_of_256_mib(larger_group, start, origin, engine, figure):
    """In a pod of 256 MiB nothing is killed, every byte is right, and memory stops growing once all
    of it has been used."""
    if build_kind() in ("asan-ubsan", "tsan"):
        not_run("memory is not judged under a sanitizer")
    dice = random.Random(5)
    keys = [f"soak/{i}" for i in range(800)]
    for key in keys:
        origin.put(key, dice.choice((700, 10_000, 112_000, 400_000, 1_500_000, 5_000_000)))
    server = start(
        origin,
        engine=engine,
        wrapper=larger_group.wrapper if larger_group else (),
        file={"rules": [{"match": "**", "freshness": "immutable"}]},
        settings={"access_log.path": "off", "cache.size": "256MiB", "workers": 2},
    )
    seconds = float(os.environ.get("FOREBAY_SOAK_S", 1800 if scale() >= 1 else 4))
    began = time.monotonic()
    soakers = [Soaker(server, origin, keys, seed) for seed in range(8)]
    samples, over = [], threading.Event()

    def watch():
        while not over.wait(min(1, seconds / 20)):
            samples.append((time.monotonic() - began, anonymous_of(server)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        parallel(len(soakers), lambda i: soakers[i].run(began + seconds), wait=seconds + 120)
    finally:
        over.set()
        watcher.join()

    def highest(first, last):
        return max(bytes_ for at, bytes_ in samples if first * seconds <= at <= last * seconds + 1)

    growth = highest(0.8, 1) - highest(1 / 3, 0.6)
    figure(
        f"soak of {seconds:.0f} s, "
        f"{f'cgroup v{larger_group.version}' if larger_group else 'no cgroup'} ({engine}): "
        f"{sum(s.asked for s in soakers)} requests, "
        f"{server.metric('forebay_cache_evicted_bytes_total') / MIB:.0f} MiB evicted, anonymous "
        f"memory up to {highest(0, 1) / MIB:.1f} MiB, in the last fifth "
        f"{growth / MIB:+.2f} MiB to what it was from a third on"
    )
    assert highest(0, 1) <= ANONYMOUS_MAX
    assert seconds < SOAK_JUDGED_S or growth <= MIB
    assert larger_group is None or larger_group.kills() == 0

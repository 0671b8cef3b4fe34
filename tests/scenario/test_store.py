# SPDX-License-Identifier: Apache-2.0
"""The cache on disk: restarts, kill -9, flipped bits, damaged indexes, full and broken disks, and
the size limit."""

import base64
import contextlib
import hashlib
import json
import math
import os
import random
import re
import shutil
import signal
import socket
import statistics
import threading
import time

import numpy as np
import pytest
from client import Closed, Connection, ProtocolError, Truncated, judge
from conftest import not_run
from disks import (
    PAGE,
    FaultyDisk,
    LoopDisk,
    SmallMemory,
    direct_works,
    drop_pages,
    edit_beneath,
    read_beneath,
)
from forebay import REQUEST_BYTES, build_kind, parallel, run_forebay, scale, scaled
from oracle import CELL, name_hash
from test_control import said
from waiting import wait_for

MIB = 1 << 20
IMMUTABLE = {"rules": [{"match": "bkt/**", "freshness": "immutable"}]}


def fill(server, origin, keys):
    """Reads everything once and judges it. Waits until it is stored."""

    def one(worker):
        with server.client() as client:
            for key in keys[worker::4]:
                judge(client.get(key), origin, key, 0, origin.version(key).size)

    parallel(4, one)
    server.settle()


def mixed(origin, small=60, large=4):
    """Makes objects of many sizes at the origin."""
    dice = random.Random(7)
    keys = []
    for i in range(small):
        key = f"small/{i:04d}"
        origin.put(key, dice.choice((1, 500, 5000, 16384, 16385, 40_000, 65_536, 200_000)))
        keys.append(key)
    for i in range(large):
        origin.put(f"large/{i}", 5 * MIB + i * 12345)
        keys.append(f"large/{i}")
    return keys


@pytest.mark.both_engines
@pytest.mark.tsan
def test_a_clean_restart_keeps_everything(start, origin, engine, figure):
    server = start(origin, engine=engine, file=IMMUTABLE)
    keys = mixed(origin, scaled(2000, 200))
    fill(server, origin, keys)
    server.stop()
    server.start()
    mark = origin.mark()
    with server.client() as client:
        judge(client.get(keys[0]), origin, keys[0], 0)
        figure(
            f"first hit after a clean start ({engine}): "
            f"{(time.monotonic() - server.spawned_at) * 1000:.0f} ms from exec"
        )
    fill(server, origin, keys)
    assert not origin.requests(since=mark), origin.requests(since=mark)[:3]
    assert server.metric("forebay_cache_checksum_failures_total") == 0


KILL_KEYS = 400  # the newest ones are checked
KILL_FRESH = 20  # this many rounds fit one cache without evictions


@pytest.mark.both_engines
def test_kill_9_in_a_loop(start, origin, engine, figure):
    """After kill -9 at random moments no byte is wrong, an object complete for a second is a hit,
    and no index is reported as damaged.

    The test checks objects that were complete a second before the kill of the process that fetched
    them, and all hits after an earlier kill. Younger ones may be lost, and are only counted.
    """
    server = start(origin, engine=engine, file=IMMUTABLE, settings={"cache.size": "8GiB"})
    rounds = int(os.environ.get("FOREBAY_KILLS", 500 if scale() >= 1 else 25))
    dice = random.Random(11)
    ages = {}  # key -> age at the kill of its process; inf: was a hit later
    old = old_bytes = asked = asked_bytes = young = young_asked = serial = 0
    first_hits, dropped = [], []
    for turn in range(rounds):
        if turn % KILL_FRESH == 0 and turn > 0:
            server.stop()
            server.wipe_cache()
            ages.clear()
            server.start()
        stop = threading.Event()
        born, wrong = [], []

        def work(seed):
            nonlocal serial
            inner = random.Random(seed)
            try:
                with server.client() as client:
                    while not stop.is_set():
                        with origin.lock:
                            serial += 1
                            key = f"k{serial}"
                        origin.put(key, inner.choice((700, 9000, 70_000, 400_000, 2_500_000)))
                        judge(client.get(key), origin, key, 0, origin.version(key).size)
                        born.append((key, time.monotonic()))
            except (Closed, Truncated, ProtocolError, OSError) as error:
                if not stop.is_set():  # else killed in the meantime
                    wrong.append(error)
            except AssertionError as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(dice.random(),)) for _ in range(3)]
        for thread in threads:
            thread.start()
        stop.wait(dice.uniform(0.02, 0.5) if turn % 5 else dice.uniform(1.2, 2.0))
        killed_at = time.monotonic()
        stop.set()  # requests in flight go on into the kill
        server.kill9()
        for thread in threads:
            thread.join(60)
        assert not wrong, wrong[0]
        ages.update((key, killed_at - at) for key, at in born)
        # A fast machine completes more objects in the last second than the test keeps. It keeps and
        # checks as many of either age.
        of_age = [key for key in ages if ages[key] >= 1.0][-KILL_KEYS // 2 :]
        ages = {
            key: ages[key]
            for key in of_age + [key for key in ages if ages[key] < 1.0][-KILL_KEYS // 2 :]
        }
        server.start()
        dropped += [line for line in server.stderr if "index_dropped" in line]
        sample = dice.sample(of_age, min(20, len(of_age)))
        others = [key for key in ages if key not in sample]
        sample += dice.sample(others, min(40 - len(sample), len(others)))
        mark = origin.mark()
        with server.client() as client:
            for n, key in enumerate(sample):
                size = origin.version(key).size
                judge(client.get(key), origin, key, 0, size)
                if n == 0:
                    first_hits.append(time.monotonic() - server.spawned_at)
                sent = origin.bytes_sent(key, since=mark)
                if ages[key] >= 1.0:
                    old, old_bytes = old + 1, old_bytes + size
                    asked, asked_bytes = asked + (sent > 0), asked_bytes + sent
                else:
                    young, young_asked = young + 1, young_asked + (sent > 0)
                if sent:
                    del ages[key]
                else:
                    ages[key] = math.inf
    first_hits.sort()
    figure(
        f"kill -9 x {rounds} ({engine}): {serial} objects, {old} complete a second before "
        f"({old_bytes / 1e6:.0f} MB) looked at, {asked} not whole ({asked_bytes / 1e6:.1f} MB), of "
        f"{young} younger ones {young_asked}; "
        f"exec to first answer median {first_hits[len(first_hits) // 2] * 1000:.0f} ms, "
        f"slowest {first_hits[-1] * 1000:.0f} ms; indexes dropped: {len(dropped)}"
    )
    fill(server, origin, list(ages))
    assert old > rounds, old  # enough to tell one in a hundred
    assert asked <= old * 0.01, f"{asked} of {old} objects complete a second before were lost"
    assert not dropped, dropped[:3]


class Cells:
    """Offsets of the cells of known keys in the segments, of all copies that were ever written."""

    def __init__(self, server, origin, keys):
        self.server, self.keys = server, keys
        self.by_hash = {name_hash(f"bkt/{key}"): key for key in keys}
        self.hashes = np.sort(np.array(list(self.by_hash), dtype=np.uint64))
        # key -> arrays by cell, one for each look that found any: number of file << 32 | offset, or
        # -1
        self.at = {key: [] for key in keys}
        self.count = {key: origin.version(key).size // CELL for key in keys}
        self.files, self.seen = [], {}  # seen: path -> offset at which the last cell found begins

    def look(self):
        """Finds cells written since the last look. Nothing may be in flight."""
        self.found = {}
        for path in self.server.segment_files():
            if path not in self.seen:
                self.files.append(path)
                self.seen[path] = PAGE
            with open(path, "rb") as file:
                at, end = self.seen[path] // PAGE * PAGE, os.fstat(file.fileno()).st_size
                while at < end:
                    try:
                        at = os.lseek(file.fileno(), at, os.SEEK_DATA) // PAGE * PAGE
                    except OSError:
                        break  # only a hole up to the end
                    data = read_beneath(path, at, 4 * MIB)
                    self._find(self.files.index(path), path, at, data)
                    at += max(PAGE, len(data))

    def _find(self, number, path, at, data):
        seen = self.seen[path]
        for shift in range(8):  # short payloads begin anywhere
            words = np.frombuffer(data[shift : len(data) - (len(data) - shift) % 8], dtype="<u8")
            place = np.searchsorted(self.hashes, words)
            place[place == len(self.hashes)] = 0
            hits = np.nonzero(self.hashes[place] == words)[0]
            hits = hits[(hits + 2 < len(words)) & (at + shift + hits * 8 > seen)]
            for value in np.unique(words[hits]):
                mine = hits[words[hits] == value]
                cell = words[mine + 2]
                key = self.by_hash[int(value)]
                if key not in self.found:
                    self.found[key] = np.full(self.count[key], -1, dtype=np.int64)
                    self.at[key].append(self.found[key])
                there = self.found[key]
                good = cell < len(there)
                there[cell[good].astype(np.int64)] = (number << 32) + at + shift + mine[good] * 8
                self.seen[path] = max(self.seen[path], at + shift + int(mine[-1]) * 8)

    def pick(self, dice, key):
        """Returns [(path, offset in the file)] of all copies of one cell of KEY."""
        cell = dice.randrange(self.count[key])
        places = [int(there[cell]) for there in self.at[key] if there[cell] >= 0]
        assert places, f"{key}: cell {cell} is nowhere in the segments"
        return [(self.files[place >> 32], place & 0xFFFFFFFF) for place in places]


def flip_beneath(dice, path, at):
    """Flips one bit of the cell at AT beneath the page cache. Returns whether the cell is still
    there."""
    at += dice.randrange(CELL)
    flipped = None

    def change(data):
        nonlocal flipped
        data[at % PAGE] ^= 1 << dice.randrange(8)
        flipped = data[at % PAGE]

    assert edit_beneath(path, at // PAGE, change)
    return lambda: read_beneath(path, at // PAGE * PAGE, PAGE)[at % PAGE] == flipped


@pytest.mark.both_engines
@pytest.mark.parametrize("verify", ["page-in", "always"])
def test_bit_flips_beneath_the_page_cache(start, origin, engine, verify, figure, tmp_path):
    """Each flipped bit is found when its page is next read from the device, and repaired within
    that response. Other clients read at the same time.

    Under `page-in` none of them reads the same object at the moment of the flip. A page that
    somebody drops between our check and our send need not be verified again. `always` promises
    that, so there they do.
    """
    if verify == "always" and engine != "threads" and scale() < 1:
        pytest.skip("all combinations run at scale 1")
    if not direct_works(tmp_path):
        not_run("O_DIRECT does not work in the temporary directory")
    server = start(
        origin,
        engine=engine,
        file=IMMUTABLE,
        settings={"cache.size": "4GiB", "cache.verify": verify, "access_log.path": "off"},
    )
    keys = [key for key in mixed(origin, 100, 6) if origin.version(key).size >= CELL]
    fill(server, origin, keys)
    server.restart()  # everything is on the device now
    fill(server, origin, keys)
    cells = Cells(server, origin, keys)
    cells.look()
    dice = random.Random(5)
    wanted = scaled(1000, 60)
    locks = {key: threading.Lock() for key in keys}
    stop = threading.Event()
    errors = []
    counts = {"found by others": 0, "missed": 0}

    def noise(seed):
        inner = random.Random(seed)
        try:
            with server.client() as client:
                while not stop.is_set():
                    key = inner.choice(keys)
                    size = origin.version(key).size
                    first = inner.randrange(size)
                    with locks[key] if verify == "page-in" else contextlib.nullcontext():
                        judge(client.get(key, first), origin, key, first, size - first)
        except BaseException as error:  # noqa: BLE001: judged below
            errors.append(error)

    def flip(client, key):
        """Flips a bit of KEY and reads it. Returns False if the flip was not found although the
        copy in use had it."""
        for _ in range(10):
            places = cells.pick(dice, key)
            before = server.metric("forebay_cache_checksum_failures_total")
            with locks[key]:
                flips = [
                    flip_beneath(dice, *place) for place in places
                ]  # only one of them is in use
            others = server.metric("forebay_cache_checksum_failures_total") > before
            counts["found by others"] += others
            judge(client.get(key), origin, key, 0, origin.version(key).size)
            if server.metric("forebay_cache_checksum_failures_total") > before:
                return True
            # Is the old page still in memory, because somebody read it at that moment?
            for path in {path for path, _ in places}:
                drop_pages(path)
            judge(client.get(key), origin, key, 0, origin.version(key).size)
            if server.metric("forebay_cache_checksum_failures_total") > before:
                return True
            # Was it rewritten since the last look, by a reader that met an older flip in another
            # copy? Or was a neighbour written to the same page, over the flip?
            copies = len(cells.at[key])
            server.settle()
            cells.look()
            if len(cells.at[key]) == copies and all(is_there() for is_there in flips):
                return False
            counts["missed"] += 1
        return False

    noisy = [threading.Thread(target=noise, args=(i,)) for i in range(2)]
    for thread in noisy:
        thread.start()
    done = 0
    try:
        with server.client() as client:
            while done < wanted and not errors:
                batch = dice.sample(keys, min(20, wanted - done))
                for key in batch:
                    assert flip(client, key), f"not found: {key}"
                    done += 1
                for key in batch:  # blocks of a dropped run that were already sent
                    judge(client.get(key), origin, key, 0, origin.version(key).size)
                server.settle()
                cells.look()
    finally:
        stop.set()
        for thread in noisy:
            thread.join(60)
    assert not errors, errors[0]
    figure(
        f"bit flips ({engine}, {verify}): {done} made, {done} found, "
        f"{counts['found by others']} of them by another reader first; {counts['missed']} more met "
        "no copy in use"
    )
    fill(server, origin, keys)
    found = server.metric("forebay_cache_checksum_failures_total")
    mark = origin.mark()
    fill(server, origin, keys)
    assert not origin.requests(since=mark), "all is healed: all hits"
    assert server.metric("forebay_cache_checksum_failures_total") == found


@pytest.mark.both_engines
def test_flips_while_stopped(start, origin, engine):
    """Bits flip in payload, headers and tails of segments while the server is down. It serves no
    wrong byte."""
    server = start(origin, engine=engine, file=IMMUTABLE)
    keys = mixed(origin, 60, 3)
    fill(server, origin, keys)
    dice = random.Random(3)
    for _ in range(scaled(50, 5)):
        server.stop()
        for path in server.segment_files():
            size = path.stat().st_size
            with open(path, "r+b") as file:
                for _ in range(5):
                    at = dice.randrange(size)
                    file.seek(at)
                    byte = file.read(1)
                    file.seek(at)
                    file.write(bytes([byte[0] ^ (1 << dice.randrange(8))]))
            drop_pages(path)
        server.start()
        fill(server, origin, keys)


def injuries(dice, index, other):
    """Returns [(name, function)]: ways to damage an index file while the server is down."""
    size = index.stat().st_size

    def patch(at, data):
        with open(index, "r+b") as file:
            file.seek(at)
            file.write(data)

    def flip():
        at = dice.randrange(size)
        with open(index, "r+b") as file:
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ (1 << dice.randrange(8))]))

    def many_flips():
        for _ in range(200):
            flip()

    def copy_page():
        pages = size // PAGE
        with open(index, "r+b") as file:
            file.seek(dice.randrange(pages) * PAGE)
            data = file.read(PAGE)
            file.seek(dice.randrange(pages) * PAGE)
            file.write(data)

    def directory():
        index.unlink()
        index.mkdir()
        (index / "x").write_text("y")

    return [
        ("removed", index.unlink),
        ("folder removed", lambda: shutil.rmtree(index.parent)),
        ("empty", lambda: index.write_bytes(b"")),
        ("truncated", lambda: os.truncate(index, dice.randrange(size))),
        ("truncated to pages", lambda: os.truncate(index, dice.randrange(size // PAGE) * PAGE)),
        ("one byte", lambda: os.truncate(index, 1)),
        ("bit flipped", flip),
        ("many bits flipped", many_flips),
        ("sector zeroed", lambda: patch(dice.randrange(size // 512) * 512, b"\0" * 512)),
        ("meta pages zeroed", lambda: patch(0, b"\0" * 2 * PAGE)),
        ("meta page flipped", lambda: patch(dice.randrange(2 * PAGE), os.urandom(8))),
        ("page over another", copy_page),
        ("garbage", lambda: index.write_bytes(os.urandom(min(size, 1 << 20)))),
        ("another cache's", lambda: shutil.copyfile(other, index)),
        ("a directory", directory),
        ("grown", lambda: os.truncate(index, size + 10 * PAGE)),
        ("lock file garbage", lambda: (index.parent / "lock.mdb").write_bytes(os.urandom(8192))),
    ]


GONE = {
    "removed",
    "folder removed",
    "empty",
    "one byte",
    "meta pages zeroed",
    "garbage",
    "another cache's",
    "a directory",
}  # others may hit objects that are not in use


@pytest.mark.both_engines
def test_injured_indexes(start, origin, engine, figure, tmp_path):
    """A damaged index causes a normal start, no wrong byte, and a rebuild from the segments in the
    background.

    Every other index is too large for the child process that checks it. The first worker that meets
    the damage finds it, or at last the verification round in the background.
    """
    stranger = start(origin, engine=engine, file=IMMUTABLE)
    for i in range(50):
        origin.put(f"other/{i}", 3000)
    fill(stranger, origin, [f"other/{i}" for i in range(50)])
    stranger.stop()
    other = stranger.cache / "index" / "data.mdb"
    server = start(origin, engine=engine, file=IMMUTABLE, settings={"access_log.path": "off"})
    keys = mixed(origin, 120, 3)
    total = sum(origin.version(key).size for key in keys)
    fill(server, origin, keys)
    server.stop()
    pristine = tmp_path / "pristine"
    shutil.copytree(server.cache, pristine)
    dice = random.Random(99)
    count = scaled(200, 20)
    rebuilt = lost_rows = 0
    slowest = 0.0
    for n in range(count):
        shutil.rmtree(server.cache)
        shutil.copytree(pristine, server.cache)
        index = server.cache / "index" / "data.mdb"
        options = injuries(dice, index, other)
        name, harm = options[n % len(options)]
        harm()
        unseen = n % 2 == 1 and build_kind() != "release"
        server.env["FOREBAY_INDEX_WALK_US"] = "0" if unseen else "25000"
        server.start()
        if n // len(options) % 2 == 1:  # clients read at once, during the rebuild
            with server.client() as client:
                for key in dice.sample(keys, 30):
                    judge(client.get(key), origin, key, 0, origin.version(key).size)
        slowest = (
            max(slowest, time.monotonic() - server.spawned_at) if n < len(options) else slowest
        )
        dropped = any("index_dropped" in line for line in server.stderr)
        assert dropped or name not in GONE, f"{name}: taken for good: {server.output()}"
        if unseen and not dropped:
            wait_for(
                lambda: (
                    server.metric("forebay_store_events_total", event="index-round")
                    + server.metric("forebay_store_events_total", event="index-damaged")
                ),
                "a round through the index",
            )
            dropped = server.metric("forebay_store_events_total", event="index-damaged") > 0
        if dropped:
            server.wait_stderr("index_rebuild_done")
            # An object that was read before the rebuild found it counts with the commit of its new
            # run.
            server.wait_metric("forebay_cache_objects", lambda v: v == len(keys))
            rebuilt += 1
        # All of it comes from disk. Recovered runs are only revalidated, with requests that have no
        # body.
        mark = origin.mark()
        fill(server, origin, keys)
        sent = origin.bytes_sent(since=mark)
        if dropped:
            assert sent == 0, f"{name}: not rebuilt from segments: {sent} bytes asked again"
        else:
            lost_rows += sent > 0
            assert sent < total / 2, f"{name}: {sent} of {total} bytes asked again"
            fill(server, origin, keys)
        mark = origin.mark()
        fill(server, origin, keys)
        assert not origin.requests(since=mark), f"{name}: {origin.requests(since=mark)[:3]}"
        code = server.stop(code=None)
        assert code == 0, f"{name}: exit {code}: {server.output()}"
    figure(
        f"index injuries ({engine}): {count} starts, {rebuilt} rebuilt from segments, {lost_rows} "
        f"lost some rows, the rest unharmed; slowest start {slowest * 1000:.0f} ms"
    )


@pytest.mark.both_engines
def test_reads_during_an_index_rebuild_lose_nothing(start, origin, engine, tmp_path):
    """Reads during a rebuild lose nothing. Runs that the rebuild finds with the ETag that readers
    got count again."""
    hold = tmp_path / "hold"
    server = start(
        origin,
        engine=engine,
        file=IMMUTABLE,
        env={"FOREBAY_DISK_FAULTS": f"store.scan:file={hold}:hold"},
    )
    keys = mixed(origin, 40, 4)
    changed = "large/3"
    fill(server, origin, keys)
    server.kill9()
    (server.cache / "index" / "data.mdb").unlink()
    origin.put(changed, 6 * MIB)
    hold.write_text("")
    server.start()
    with server.client() as client:
        for key in keys:  # a part of each, from the origin
            size = origin.version(key).size
            judge(client.get(key, 0, 99), origin, key, 0, min(100, size))
    server.settle()
    hold.unlink()
    server.wait_stderr("index_rebuild_done")
    mark = origin.mark()
    fill(server, origin, [key for key in keys if key != changed])
    assert origin.bytes_sent(since=mark) == 0, origin.requests(since=mark)[:3]
    fill(server, origin, [changed])


@pytest.mark.both_engines
def test_injured_segments_and_strange_files(start, origin, engine):
    server = start(origin, engine=engine, file=IMMUTABLE)
    keys = mixed(origin, 80, 4)
    fill(server, origin, keys)
    dice = random.Random(17)
    for name in (
        "truncated",
        "empty",
        "removed",
        "swapped",
        "extra",
        "directory",
        "garbage",
        "format removed",
        "all removed",
    ):
        server.stop()
        segments = server.segment_files()
        victim = dice.choice(segments) if segments else None
        if name == "truncated" and victim:
            os.truncate(victim, dice.randrange(victim.stat().st_size))
        elif name == "empty" and victim:
            os.truncate(victim, 0)
        elif name == "removed" and victim:
            victim.unlink()
        elif name == "swapped" and len(segments) > 1:
            data = segments[0].read_bytes()
            segments[0].write_bytes(segments[-1].read_bytes())
            segments[-1].write_bytes(data)
        elif name == "extra":
            (server.cache / "segments" / "99999990.seg").write_bytes(os.urandom(1 << 20))
            (server.cache / "segments" / "notes.txt").write_text("hello")
        elif name == "directory":
            numbers = [int(path.stem) for path in (server.cache / "segments").glob("*.seg")]
            in_the_way = server.cache / "segments" / f"{max(numbers) + 1:08d}.seg"
            in_the_way.mkdir()
            server.start()
            fill(server, origin, keys)
            in_the_way.rmdir()
        elif name == "garbage" and victim:
            victim.write_bytes(os.urandom(victim.stat().st_size))
        elif name == "format removed":
            continue_with = server.cache / "format"
            saved = continue_with.read_bytes()
            continue_with.unlink()
            server.expect_failure = False
            server.spawn()
            try:
                server._wait_ready(60)
            except AssertionError:
                server.wait_exit() if server.process else None
                continue_with.write_bytes(saved)
                server.start()
        elif name == "all removed":
            shutil.rmtree(server.cache)
        if server.process is None:
            server.start()
        fill(server, origin, keys)


class Sampler:
    """Records the highest value of a function while the block runs."""

    def __init__(self, read, every=0.02):
        self.read, self.every, self.highest = read, every, 0
        self.values = []
        self.stop = threading.Event()
        self.count = 0
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        while not self.stop.wait(self.every):
            try:
                self.values.append(self.read())
                self.highest = max(self.highest, self.values[-1])
                self.count += 1
            except OSError:
                pass

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


class SlowReaders:
    """Readers that take a little of an object and then hardly go on."""

    def __init__(self, server, keys, count):
        self.connections = []
        for i in range(count):
            connection = Connection(server.port, receive_buffer=4096)
            connection.send(
                f"GET /bkt/{keys[i % len(keys)]} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
            )
            self.connections.append(connection)

    def sip(self):
        for connection in self.connections:
            with contextlib.suppress(
                OSError
            ):  # nothing came, or the reader was cut for being too slow
                connection.sock.recv(1024, socket.MSG_DONTWAIT)

    def close(self):
        for connection in self.connections:
            connection.close()


def freed_bytes(server):
    """Bytes of segments that are unlinked and still open."""
    total, folder = 0, f"/proc/{server._pid()}/fd"
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            target = os.readlink(f"{folder}/{name}")
            if target.startswith(str(server.cache)) and target.endswith(".seg (deleted)"):
                total += os.stat(f"{folder}/{name}").st_blocks * 512
    return total


def overread(server, origin, size, total, slow):
    """Reads TOTAL bytes of always new objects while SLOW readers hold on to old ones. Then goes on
    until the whole cache was replaced four times."""
    count = total // (2 * MIB)
    for i in range(count + 1000):
        origin.put(f"flood/{i}", 2 * MIB)
    origin.put("held", 32 * MIB)
    fill(server, origin, ["flood/0", "flood/1", "flood/2", "flood/3"])
    readers = SlowReaders(server, ["flood/0", "flood/1", "flood/2", "flood/3", "held"], slow)
    try:

        def one(worker):
            with server.client() as client:
                for n, i in enumerate(range(worker, count, 4)):
                    judge(client.get(f"flood/{i}"), origin, f"flood/{i}", 0, 2 * MIB)
                    if worker == 0 and n % 10 == 0:
                        readers.sip()

        parallel(4, one)
        with server.client() as client:
            for i in range(count, count + 1000):
                judge(client.get(f"flood/{i}"), origin, f"flood/{i}", 0, 2 * MIB)
                server.settle()
                if (
                    server.metric("forebay_cache_evicted_bytes_total", reason="capacity")
                    >= 4 * size
                ):
                    break
                if i % 10 == 0:
                    readers.sip()
    finally:
        readers.close()
    server.settle()
    evicted = server.metric("forebay_cache_evicted_bytes_total", reason="capacity")
    assert evicted >= 4 * size, f"only {evicted} bytes evicted"


@pytest.mark.both_engines
def test_the_disk_limit_is_hard(start, origin, engine, figure, tmp_path):
    """du and statfs stay within cache.size at every moment, while clients read ten times as much
    and some are slow."""
    size = 64 * MIB
    with LoopDisk(tmp_path / "disk", 512 * MIB) as disk:
        server = start(
            origin,
            engine=engine,
            cache=disk.mount / "cache",
            settings={
                "cache.size": "64MiB",
                "cache.policy": "lru",
                "limits.min_rate": None,
                "access_log.path": "off",
            },
        )
        with (
            Sampler(server.disk_bytes) as du,
            Sampler(lambda: freed_bytes(server)) as freed,
            Sampler(lambda: disk.used() - disk.empty) as statfs,
        ):
            overread(server, origin, size, 10 * size, scaled(200, 40))
        figure(
            f"cache.size 64 MiB, 640 MiB read, {scaled(200, 40)} "
            f"slow readers ({engine}): highest du "
            f"{du.highest / MIB:.1f} MiB of {du.count} samples, statfs "
            f"{statfs.highest / MIB:.1f} MiB of {statfs.count}; freed and still open up to "
            f"{freed.highest / MIB:.0f} MiB"
        )
        assert du.highest <= size, f"du {du.highest} > {size}"
        assert statfs.highest <= size, f"statfs {statfs.highest} > {size}"
        assert freed.highest > 0, "no slow reader held a segment that was freed"
        server.stop()


@pytest.mark.both_engines
def test_the_limit_holds_without_a_file_system_of_its_own(start, origin, engine):
    size = 64 * MIB
    server = start(
        origin,
        engine=engine,
        settings={"cache.size": "64MiB", "cache.policy": "lru", "access_log.path": "off"},
    )
    with Sampler(server.disk_bytes) as du:
        overread(server, origin, size, 6 * size, 20)
    assert du.highest <= size, f"du {du.highest} > {size}"
    server.stop()
    server.start()
    assert server.disk_bytes() <= size


@pytest.mark.both_engines
def test_tiny_objects_never_fill_the_index(start, origin, engine, figure):
    """In a cache of 24 MiB with slow commits, each commit has many tiny objects. The index makes
    room for them by eviction."""
    size, count = 24 * MIB, scaled(60_000, 24_000)
    env = {"FOREBAY_DISK_FAULTS": "store.commit:1+:slow:20", "FOREBAY_TEST_STEADY": "1"}
    server = start(
        origin,
        engine=engine,
        file=IMMUTABLE,
        env={} if build_kind() == "release" else env,
        settings={"cache.size": "24MiB", "cache.policy": "lru", "access_log.path": "off"},
    )
    keys = [f"tiny/{i:06d}" for i in range(count)]
    for key in keys:
        origin.put(key, 10)
    with Sampler(server.disk_bytes) as du:
        fill(server, origin, keys)
    figure(
        f"cache.size 24 MiB, {count} objects of 10 bytes ({engine}): "
        f"highest du {du.highest / MIB:.1f} MiB, index "
        f"{server.metric('forebay_index_bytes') / MIB:.1f} MiB, "
        f"{server.metric('forebay_cache_objects'):.0f} objects held"
    )
    assert du.highest <= size, f"du {du.highest} > {size}"
    assert server.metric("forebay_store_events_total", event="index-commit-failed") == 0
    assert server.metric("forebay_limit_reached_total", limit="index-room") == 0
    for reason in ("disk-degraded", "disk-full", "index-full"):
        assert server.metric("forebay_cache_admission_rejected_total", reason=reason) == 0
    assert not server.disk_trouble()
    assert not any(
        "event=filling_off" in line or '"event":"filling_off"' in line for line in server.stderr
    )
    last = keys[-500:]
    fill(server, origin, last)
    before = origin.mark()
    fill(server, origin, last)
    assert origin.requests(since=before) == []
    batch = (
        b"<Delete>"
        + b"".join(b"<Object><Key>%s</Key></Object>" % key.encode() for key in keys[-1000:])
        + b"</Delete>"
    )
    with server.client() as client:
        assert (
            client.request(
                "POST",
                "/bkt?delete",
                [("Content-MD5", base64.b64encode(hashlib.md5(batch).digest()).decode())],
                batch,
            ).status
            == 200
        )
    said(server, "evict", "s3://bkt/tiny/")
    server.wait_metric("forebay_cache_objects", lambda v: v == 0)
    assert (
        server.metric("forebay_limit_reached_total", limit="index-room") == 0
        and server.metric("forebay_store_events_total", event="index-commit-failed") == 0
    )
    assert not any("index_disowned" in line for line in server.stderr)


@pytest.mark.both_engines
def test_a_full_file_system(start, origin, engine, tmp_path):
    """If cache.size exceeds the file system, every read succeeds: before it is full, while it fills
    and afterwards."""
    with LoopDisk(tmp_path / "disk", 48 * MIB) as disk:
        server = start(
            origin, engine=engine, cache=disk.mount / "cache", settings={"cache.size": "1GiB"}
        )
        for i in range(60):
            origin.put(f"k{i}", 2 * MIB)
        with server.client() as client:
            for turn in range(2):
                for i in range(60):
                    judge(client.get(f"k{i}"), origin, f"k{i}", 0, 2 * MIB)
        (disk.mount / "hog").write_bytes(b"\0" * 1)
        server.stop()


@pytest.mark.both_engines
def test_somebody_else_fills_the_file_system(start, origin, engine, tmp_path):
    with LoopDisk(tmp_path / "disk", 128 * MIB) as disk:
        server = start(
            origin, engine=engine, cache=disk.mount / "cache", settings={"cache.size": "64MiB"}
        )
        keys = mixed(origin, 40, 4)
        fill(server, origin, keys)
        with open(disk.mount / "hog", "wb", buffering=0) as hog:
            try:
                while True:
                    hog.write(b"\0" * 65536)
            except OSError:
                pass
        more = []
        for i in range(30):
            origin.put(f"more/{i}", MIB + i)
            more.append(f"more/{i}")
        fill(server, origin, keys + more)
        (disk.mount / "hog").unlink()
        fill(server, origin, keys + more)
        server.stop()


def hog(folder, leave):
    """A file of another program that leaves LEAVE bytes of the file system. unlink() removes it."""
    path = folder / "hog"
    info = os.statvfs(folder)
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(fd, 0, info.f_bavail * info.f_frsize - leave)
    finally:
        os.close(fd)
    return path


def told(server, of):
    """How often the log has said that this is short."""
    return sum("event=cache_short" in line and f"of={of}" in line for line in server.stderr)


@pytest.mark.both_engines
def test_space_is_given_back_to_others(start, origin, engine, tmp_path):
    """Below cache.min_free the cache evicts and stores no more. It fills again when there is
    space."""
    with LoopDisk(tmp_path / "disk", 200 * MIB) as disk:
        server = start(
            origin,
            engine=engine,
            cache=disk.mount / "cache",
            file=IMMUTABLE,
            settings={"cache.size": "100MiB", "cache.min_free": "20%", "log.format": "text"},
        )
        least = os.statvfs(disk.mount).f_blocks * os.statvfs(disk.mount).f_frsize // 5

        def free():
            info = os.statvfs(disk.mount)
            return info.f_bavail * info.f_frsize

        keys = [f"k{i}" for i in range(80)]
        for key in keys:
            origin.put(key, MIB)
        fill(server, origin, keys)
        before = server.disk_bytes()
        assert before > 50 * MIB and free() > least
        other = hog(disk.mount, least - 20 * MIB)
        wait_for(lambda: free() >= least, lambda: f"{free()} of {least} free: {server.output()}")
        server.wait_condition("disk-short")  # as long as the file system has no room for cache.size
        assert server.disk_bytes() < before
        seen = []
        with Sampler(lambda: seen.append(server.conditions()) or least - free()) as missing:
            for _ in range(3):
                fill(server, origin, keys)
        assert missing.highest <= 64 * 1024, (
            f"{missing.highest} of {least} missing"
        )  # folders grow, too
        assert server.metric("forebay_store_events_total", event="segment-given-back") > 0
        assert not server.disk_trouble()
        assert told(server, "min_free") == 1, server.output()
        seen.append(server.conditions())
        assert all("disk-short" in names for names in seen)  # evictions do not end it
        other.unlink()
        server.wait_condition("disk-short", False)

        def holds():
            fill(server, origin, keys)
            return server.disk_bytes() > before - 10 * MIB

        wait_for(holds, server.output)
        server.stop()


def test_a_share_of_the_file_system(start, origin, engine, tmp_path):
    """With cache.size 50%, the cache takes half of the space that others leave, while they take and
    free space."""
    with LoopDisk(tmp_path / "disk", 200 * MIB) as disk:
        server = start(
            origin,
            engine=engine,
            cache=disk.mount / "cache",
            settings={"cache.size": "50%", "cache.min_free": "0%"},
        )
        full = server.metric("forebay_cache_capacity_bytes")
        assert 70 * MIB < full < 100 * MIB
        keys = [f"k{i}" for i in range(90)]
        for key in keys:
            origin.put(key, MIB)
        fill(server, origin, keys)
        assert server.metric("forebay_cache_capacity_bytes") == full, "what is ours counts as free"
        other = hog(disk.mount, MIB)
        small = server.wait_metric("forebay_cache_capacity_bytes", lambda v: v < full * 0.6)
        wait_for(lambda: server.disk_bytes() <= small, server.output)
        fill(server, origin, keys)
        other.unlink()
        server.wait_metric("forebay_cache_capacity_bytes", lambda v: v > full * 0.95)
        server.stop()


def fill_up(path):
    """Another program takes all that is left of a file system."""
    with open(path, "wb", buffering=0) as other, contextlib.suppress(OSError):
        for piece in (MIB, 4096, 512, 1):
            with contextlib.suppress(OSError):
                while True:
                    other.write(bytes(piece))
    return path


@pytest.mark.both_engines
def test_a_cache_that_had_no_room_at_the_start_comes_on_when_there_is_some(
    start, origin, engine, tmp_path
):
    """A cache without room at the start reports that, serves, and relays writes. When there is room
    it stores, above cache.min_free, as if it had started with it."""
    with SmallMemory(tmp_path / "memory", 300 * MIB, 4000) as disk:
        other = fill_up(disk.mount / "other")
        server = start(
            origin,
            engine=engine,
            cache=disk.mount / "cache",
            file=IMMUTABLE,
            ahead_s=0,
            settings={"cache.size": "100MiB", "cache.min_free": "10%", "log.format": "text"},
        )
        server.wait_stderr("event=cache_unusable")
        keys = [f"k{i}" for i in range(40)]
        for key in keys:
            origin.put(key, MIB)
        fill(server, origin, keys[:10])
        assert server.disk_trouble() == {"disk-full"} and told(server, "space") == 1, (
            server.output()
        )
        with server.client() as client:
            assert client.get(keys[1]).header("cache-status").endswith("detail=disk-full")
            assert client.request("PUT", client.target(keys[0]), body=b"x" * 1000).status == 200
        rule = {
            "match": "bkt/large/**",
            "freshness": "immutable",
            "block_size": "4MiB",
        }  # a reload in this state holds
        (server.folder / "forebay.yaml").write_text(
            json.dumps({"rules": [rule, *IMMUTABLE["rules"]]})
        )
        server.process.send_signal(signal.SIGHUP)
        server.wait_stderr("event=reloaded")
        other.unlink()
        wait_for(lambda: not server.disk_trouble(), server.output)
        server.wait_stderr("event=cache_usable")
        assert "disk-full" not in server.conditions()
        assert server.metric("forebay_cache_capacity_bytes") == 100 * MIB
        fill_up(disk.mount / "other")  # and it gives space back again
        server.wait_condition("disk-full")
        other.unlink()
        wait_for(lambda: not server.conditions() & {"disk-full", "disk-short"}, server.output)

        def all_hits():
            fill(server, origin, keys[1:])
            mark = origin.mark()
            fill(server, origin, keys[1:])
            return not origin.requests(since=mark)

        wait_for(all_hits, server.output)
        with server.client() as client:
            assert bytes(client.get(keys[0]).body) == b"x" * 1000
        origin.put("large/1", 8 * MIB)

        def large_hit():
            mark = origin.mark()
            with server.client() as client:
                judge(client.get("large/1"), origin, "large/1", 0, 8 * MIB)
            server.settle()
            return not origin.requests(since=mark)

        wait_for(large_hit, server.output)
        server.restart()
        mark = origin.mark()
        fill(server, origin, keys[1:])
        assert not origin.requests(since=mark)
        server.stop()


@contextlib.contextmanager
def on_small_memory(start, origin, engine, tmp_path, inodes, objects):
    """A disk, a server with a cache of 100 MiB there that may take all of it, and OBJECTS keys of 1
    MiB."""
    with SmallMemory(tmp_path / "memory", 300 * MIB, inodes) as disk:
        server = start(
            origin,
            engine=engine,
            cache=disk.mount / "cache",
            file=IMMUTABLE,
            settings={"cache.size": "100MiB", "cache.min_free": "0%", "log.format": "text"},
        )
        keys = [f"k{i}" for i in range(objects)]
        for key in keys:
            origin.put(key, MIB)
        yield disk, server, keys


@pytest.mark.both_engines
def test_a_cache_on_a_full_disk_is_kept(start, origin, engine, tmp_path):
    """Another program took all space while the server was stopped. The start evicts one old segment
    for room, and the rest is still cached."""
    with on_small_memory(start, origin, engine, tmp_path, inodes=4000, objects=60) as (
        disk,
        server,
        keys,
    ):
        fill(server, origin, keys)
        for stop in (server.stop, server.kill9):
            stop()
            other = fill_up(disk.mount / "other")
            server.start()
            assert not server.disk_trouble(), server.output()
            mark = origin.mark()
            fill(server, origin, keys)
            assert "removed=1 " in [line for line in server.stderr if "cache_shrunk" in line][-1], (
                server.output()
            )
            # The objects of that segment, and of those evicted for them while the disk is full.
            assert len(origin.requests(since=mark, method="GET")) <= len(keys) // 2
            other.unlink()
            fill(server, origin, keys)
        server.stop()


@pytest.mark.both_engines
def test_no_inodes_left(start, origin, engine, tmp_path):
    """Another program has the last inode. Runs that cannot be stored are streamed, older segments
    make room, and nothing breaks."""
    with on_small_memory(start, origin, engine, tmp_path, inodes=400, objects=70) as (
        disk,
        server,
        keys,
    ):
        fill(server, origin, keys[:20])
        taken = []
        with contextlib.suppress(OSError):
            for i in range(1000):
                path = disk.mount / f"inode-{i}"
                path.touch()
                taken.append(path)
        fill(server, origin, keys)
        server.wait_condition("disk-short")
        assert not server.disk_trouble()
        assert told(server, "inodes") == 1, server.output()
        assert not any("filling_off" in line for line in server.stderr), server.output()
        for path in taken:
            path.unlink()
        server.wait_condition("disk-short", False)

        def all_hits():
            fill(server, origin, keys)
            mark = origin.mark()
            fill(server, origin, keys)
            return not origin.requests(since=mark)

        wait_for(all_hits, server.output)
        server.stop()


@pytest.mark.both_engines
@pytest.mark.parametrize("was_used", [False, True])
def test_a_read_only_file_system(start, origin, engine, tmp_path, was_used):
    """If the file system is read-only at the start, the server relays from the origin without
    caching. This holds with an existing cache, and where none is required."""
    with LoopDisk(tmp_path / "disk", 128 * MIB) as disk:
        (disk.mount / "cache").mkdir()
        server = start(
            origin,
            engine=engine,
            cache=disk.mount / "cache",
            run=False,
            settings={"cache.size": "64MiB", "cache.optional": str(not was_used).lower()},
        )
        if was_used:
            server.start()
            server.stop()
        assert disk.remount("ro")
        server.start()
        keys = mixed(origin, 20, 2)
        fill(server, origin, keys)
        fill(server, origin, keys)
        assert server.disk_trouble()
        assert server.admin("/readyz").status == 200
        server.stop()
        assert any("EROFS" in line for line in server.stderr), server.output()
        assert not any("recovered" in line for line in server.stderr), server.output()


def test_written_while_the_cache_directory_could_not_be_used(start, origin, engine):
    """While the cache directory could not be used, a write went past it. The next process, which
    can use it, does not trust its old copies unchecked."""
    new = b"written by a process without a cache" * 100
    server = start(origin, engine=engine, file=IMMUTABLE)
    keys = mixed(origin, 20, 2)
    fill(server, origin, keys)
    server.stop()
    in_the_way = server.cache / "format.new"
    in_the_way.mkdir()
    server.start()
    assert server.disk_trouble()
    with server.client() as client:
        reply = client.request(
            "PUT", client.target(keys[0]), [("Content-Length", str(len(new)))], new
        )
        assert reply.status == 200, reply
    server.stop()
    in_the_way.rmdir()
    server.start()
    server.wait_stderr("index_rebuild_done")
    with server.client() as client:
        assert bytes(client.get(keys[0]).body) == new
    mark = origin.mark()
    fill(server, origin, keys[1:])
    assert origin.bytes_sent(since=mark) == 0, "what lies in the segments is there"


@pytest.mark.both_engines
def test_disk_errors(start, origin, engine, tmp_path):
    """Every read and write of the device gives EIO, and every request still succeeds."""
    with FaultyDisk(tmp_path / "disk", 256 * MIB) as disk:
        server = start(
            origin, engine=engine, cache=disk.mount / "cache", settings={"cache.size": "128MiB"}
        )
        keys = mixed(origin, 40, 4)
        fill(server, origin, keys)
        disk.trigger.write_text("")
        for path in server.segment_files():
            try:
                drop_pages(path)
            except OSError:
                pass
        fill(server, origin, keys)
        more = []
        for i in range(20):
            origin.put(f"more/{i}", MIB)
            more.append(f"more/{i}")
        fill(server, origin, more)
        disk.trigger.unlink()
        fill(server, origin, keys + more)
        server.expect_failure = True
        server.stop(code=None)
        assert not server.complaints()


def test_cache_directory_that_cannot_be_made(start, origin, tmp_path):
    """If a file blocks the path of the cache directory, the start gives one clear refusal, or
    serves without a cache."""
    (tmp_path / "file").write_text("x")
    server = start(origin, run=False, cache=tmp_path / "file" / "cache")
    server.expect_failure = True
    origin.put("a", 100)
    server.spawn()
    try:
        server._wait_ready(30)
    except AssertionError:
        assert any("file" in line for line in server.stderr), server.output()
        return
    with server.client() as client:
        judge(client.get("a"), origin, "a", 0, 100)


@pytest.mark.both_engines
def test_memory_stays_flat_with_slow_readers(start, origin, engine, figure):
    """Many slow readers of 1 GiB objects, stored and unstored, use memory within
    limits.max_buffer."""
    from forebay import build_kind

    if build_kind() in ("asan-ubsan", "tsan"):
        not_run("memory is not judged under a sanitizer")
    buffer = 16 * MIB
    kinds = ("kept", "large", "never")  # stored; streamed through fills; streamed past them
    server = start(
        origin,
        engine=engine,
        settings={
            "limits.max_buffer": f"{buffer}",
            "cache.size": "512MiB",
            "access_log.path": "off",
            "workers": 2,
            "origin.connections": 512,
        },  # a slow reader of what is never kept holds one
        file={
            "rules": [
                {"match": "bkt/never/**", "cache": False},
                {"match": "bkt/large/**", "max_object_size": "512MiB"},
            ]
        },
    )
    readers = scaled(200, 60)
    keys = [f"{kind}/{i}" for kind in kinds for i in range(3)]
    for key in keys:
        origin.put(key, 1 << 30)
    origin.put("warm", 5 * MIB)
    with server.client() as client:
        judge(client.get("warm"), origin, "warm", 0, 5 * MIB)
    before = server.memory_bytes()
    slow = SlowReaders(server, keys, readers)
    try:
        with Sampler(server.memory_bytes, 0.05) as memory:
            taken = [0] * len(keys)

            def one(worker):
                with server.connection(receive_buffer=1 << 16) as connection:
                    connection.send(
                        f"GET /bkt/{keys[worker]} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
                    )
                    assert connection.read_head().status == 200
                    taken[worker] = len(connection.buf)
                    goal = scaled(1 << 30, 64 * MIB)
                    while taken[worker] < goal:
                        piece = connection.sock.recv(1 << 18)
                        assert piece, f"cut: {keys[worker]} after {taken[worker]} bytes"
                        taken[worker] += len(piece)
                        if worker == 0:
                            slow.sip()

            parallel(len(keys), one)
    finally:
        slow.close()
    middle = len(memory.values) // 2
    halves = memory.values[:middle], memory.values[middle:]
    early, late = map(statistics.median, halves)
    peak = server.metric("forebay_buffer_peak_bytes")
    figure(
        f"memory with {readers} slow readers ({engine}), "
        f"{sum(taken) / (1 << 30):.1f} GiB streamed: "
        f"buffers up to {peak / MIB:.1f} of {buffer // MIB} MiB; {before / MIB:.0f} MiB before, "
        f"median {early / MIB:.0f} MiB in the first half, {late / MIB:.0f} MiB later, "
        f"highest {memory.highest / MIB:.0f} MiB"
    )
    # Above the limit a reply continues with the bytes in transit, a chunk or two, and each worker
    # with 512 KiB more. The further memory of a request is charged on arrival, even when chunks
    # have taken all of it.
    assert peak > buffer / 2, "memory was never short"
    assert peak <= buffer + (readers + len(keys)) * (2 * 65536 + REQUEST_BYTES) + 2 * (512 << 10), (
        f"buffers of {peak / MIB:.0f} MiB"
    )
    assert late <= early + 8 * MIB, f"grows: {early / MIB:.0f} then {late / MIB:.0f} MiB"
    highest = [max(half) for half in halves]
    assert highest[1] <= highest[0] + 32 * MIB, f"grows: {highest} at most"
    grown = memory.highest - before
    # In addition to limits.max_buffer: memory of each connection, and of each busy one to the
    # origin.
    streams = readers // len(kinds) + 4
    assert grown <= buffer + 16 * MIB + readers * 64 * 1024 + streams * MIB // 2, (
        f"grew by {grown / MIB:.0f} MiB"
    )


def test_a_slow_reader_beside_a_fast_one_holds_little(start, origin, engine, figure):
    """Two clients read one run. The bytes that only the slower one still needs are bounded."""
    buffer, size, count = 4 * MIB, 4 * MIB, 30
    server = start(
        origin,
        engine=engine,
        settings={"limits.max_buffer": f"{buffer}"},
        file={"rules": [{"match": "bkt/**", "max_object_size": "1MiB"}]},
    )
    keys = [f"large/{i}" for i in range(count)]
    for key in keys:
        origin.put(key, size)
    gate = threading.Event()
    for key in keys:
        origin.fault(key, "hold_at", (1000, gate))
    slow = SlowReaders(server, keys, count)
    try:
        origin.wait_for(count, method="GET")

        def read_or_let_go(worker):
            if worker < count:
                with server.client() as client:
                    judge(client.get(keys[worker]), origin, keys[worker], 0, size)
            else:
                server.wait_metric("forebay_fills_total", lambda v: v >= count, state="joined")
                gate.set()

        parallel(count + 1, read_or_let_go)
    finally:
        slow.close()
    peak = server.metric("forebay_buffer_peak_bytes")
    figure(
        f"buffers with {count} slow readers beside as many fast ones ({engine}): "
        f"up to {peak / MIB:.1f} of {buffer // MIB} MiB"
    )
    # For each run: how far the slower may be behind while memory is short, and a chunk or two for
    # each reply.
    assert peak <= buffer + count * (256 * 1024 + 4 * 65536), f"buffers of {peak / MIB:.0f} MiB"


@pytest.mark.both_engines
@pytest.mark.tsan
def test_eviction_under_load(start, origin, engine):
    """Many clients read a working set larger than the cache. Bytes are right, and eviction makes
    room."""
    server = start(origin, engine=engine, settings={"cache.size": "64MiB"})
    for i in range(60):
        origin.put(f"k{i}", 3 * MIB + i)

    def one(worker):
        dice = random.Random(worker)
        with server.client() as client:
            for _ in range(scaled(300, 30)):
                i = dice.randrange(60)
                first = dice.randrange(3 * MIB)
                judge(client.get(f"k{i}", first), origin, f"k{i}", first, 3 * MIB + i - first)

    parallel(8, one)
    server.settle()
    assert server.metric("forebay_cache_bytes") <= 64 * MIB


@pytest.mark.both_engines
def test_scrub_finds_what_nobody_reads(start, origin, engine, tmp_path):
    """`scrub` finds bits that flip beneath the page cache without any read. Objects that were hits
    are fetched again, once."""
    if not direct_works(tmp_path):
        not_run("no direct I/O on this file system")
    server = start(
        origin,
        engine=engine,
        file={**IMMUTABLE, "cache": {"scrub_rate": "0"}},
        settings={"cache.size": "128MiB", "workers": 1, "log.format": "text"},
    )
    keys = [f"k{i}" for i in range(60)]
    for i, key in enumerate(keys):
        origin.put(key, (90_000, 700_000, 20_000)[i % 3])
    fill(server, origin, keys)
    cells = Cells(server, origin, keys)
    cells.look()
    dice = random.Random(5)

    def full():  # those with a seal
        return {
            path for path in server.segment_files() if any(read_beneath(path, 0, PAGE)[512:1024])
        }

    wait_for(lambda: len(full()) >= 3, lambda: f"{full()} of {server.segment_files()}")
    sealed, flipped = full(), {}
    for key in dice.sample(keys, 20):
        ((path, at),) = cells.pick(dice, key)
        if path in sealed:  # else the server still writes to it
            flipped[key] = flip_beneath(dice, path, at)
    assert len(flipped) > 5
    path = server.folder / "forebay.yaml"
    path.write_text(path.read_text().replace('"scrub_rate": "0"', '"scrub_rate": "1GiB/s"'))
    os.kill(server._pid(), signal.SIGHUP)
    server.wait_metric("forebay_store_events_total", lambda v: v == 1, event="scrub-round")
    found = int(server.metric("forebay_cache_checksum_failures_total", found_by="scrub"))
    assert found == len(flipped), f"{found} of {len(flipped)}"
    server.wait_stderr(f"event=scrub_done .* bad={found} ")
    mark = origin.mark()
    fill(server, origin, keys)  # judged: no wrong byte, and the others are hits
    asked = {request.target for request in origin.requests(since=mark, method="GET")}
    assert len(asked) == len(flipped), (asked, sorted(flipped))
    assert server.metric("forebay_cache_checksum_failures_total", found_by="read") == 0
    mark = origin.mark()
    fill(server, origin, keys)
    assert not origin.requests(since=mark), "healed"
    path, at = next(
        (path, at)
        for key in keys
        if key not in flipped
        for path, at in cells.pick(dice, key)
        if path in sealed
    )
    flip_beneath(dice, path, at)
    admin = {"FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"}
    told = run_forebay("scrub", "--rate", "10GiB/s", env=admin)
    assert (
        told.returncode == 5
        and re.match(r"done: .* 1 bad\n", told.stdout)
        and "look at the disk" in told.stdout
    ), told
    told = run_forebay("scrub", env=admin)
    assert told.returncode == 0 and ", 0 bad" in told.stdout, told


@pytest.mark.both_engines
def test_verify_always(start, origin, engine):
    """With cache.verify always, every byte of every hit is verified, and none is sent by
    sendfile."""
    server = start(origin, engine=engine, file=IMMUTABLE, settings={"cache.verify": "always"})
    keys = mixed(origin, 40, 3)
    fill(server, origin, keys)
    fill(server, origin, keys)
    assert server.metric("forebay_hit_blocks_total", path="sendfile") == 0
    assert server.metric("forebay_hit_blocks_total", path="read") > 0
    # Even a write through the page cache is found.
    dice = random.Random(2)
    cells = Cells(server, origin, keys)
    cells.look()
    for key in [key for key in dice.sample(keys, 20) if cells.count[key]]:
        before = server.metric("forebay_cache_checksum_failures_total")
        ((path, at),) = cells.pick(dice, key)
        with open(path, "r+b") as file:
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 1]))
        with server.client() as client:
            judge(client.get(key), origin, key, 0, origin.version(key).size)
        assert server.metric("forebay_cache_checksum_failures_total") > before, (key, path, at)
    fill(server, origin, keys)


@pytest.mark.both_engines
def test_the_three_paths_of_a_hit(start, origin, engine):
    server = start(origin, engine=engine, file=IMMUTABLE)
    origin.put("small", 9000)
    origin.put("large", 3 * MIB)
    fill(server, origin, ["small", "large"])
    fill(server, origin, ["small", "large"])
    rows = {
        path: server.metric("forebay_hit_blocks_total", path=path)
        for path in ("small", "sendfile", "read")
    }
    assert rows["small"] + rows["sendfile"] + rows["read"] > 0, rows
    for path in server.segment_files():
        drop_pages(path)
    fill(server, origin, ["small", "large"])
    assert server.metric("forebay_hit_blocks_total", path="read") > rows["read"], rows

# SPDX-License-Identifier: Apache-2.0
"""What is on disk: restarts, kill -9, flipped bits, injured indexes, full and broken disks, the limit."""
import os
import random
import shutil
import threading
import time

import numpy as np
import pytest
from client import Connection, Truncated, judge
from conftest import not_run
from disks import PAGE, FaultyDisk, LoopDisk, direct_works, drop_pages, edit_beneath
from forebay import parallel, scaled
from oracle import name_hash

MIB = 1 << 20
IMMUTABLE = {"rules": [{"match": "bkt/**", "freshness": "immutable"}]}


def fill(server, origin, keys):
    """Reads everything once, judged; waits until it is stored."""
    def one(worker):
        with server.client() as client:
            for key in keys[worker::4]:
                judge(client.get(key), origin, key, 0, origin.version(key).size)
    parallel(4, one)
    server.settle()


def mixed(origin, small=60, large=4):
    """Keys of all sorts of sizes, made at the origin."""
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
        figure(f"first hit after a clean start ({engine}): "
               f"{(time.monotonic() - server.spawned_at) * 1000:.0f} ms from exec")
    fill(server, origin, keys)
    assert not origin.requests(since=mark), origin.requests(since=mark)[:3]
    assert server.metric("forebay_cache_checksum_failures_total") == 0


def test_kill_9_in_a_loop(start, origin, engine, figure):
    """At random moments: no wrong byte ever; what was complete a second before is a hit."""
    server = start(origin, engine=engine, file=IMMUTABLE, settings={"cache.size": "1GiB"})
    rounds = scaled(500, 25)
    keys = []
    complete = {}                    # key -> when its fill was known to be complete
    old = asked = 0
    slowest = 0.0
    dice = random.Random(11)
    serial = 0
    for _ in range(rounds):
        # What was complete one second before the kill has to be there now.
        killed_at = time.monotonic()
        sample = [k for k, t in complete.items()]
        dice.shuffle(sample)
        if server.kills:
            mark = origin.mark()
            with server.client() as client:
                for n, key in enumerate(sample[:40]):
                    judge(client.get(key), origin, key, 0, origin.version(key).size)
                    if n == 0:
                        slowest = max(slowest, time.monotonic() - server.spawned_at)
            for key in sample[:40]:
                if complete[key] < last_kill - 1.0:
                    old += 1
                    asked += origin.bytes_sent(key, since=mark) > 0
        stop = threading.Event()
        born = []

        def work(i):
            inner = random.Random(dice.random())
            try:
                with server.client() as client:
                    while not stop.is_set():
                        with origin.lock:
                            nonlocal serial
                            serial += 1
                            key = f"k{serial}"
                            origin.put(key, inner.choice((700, 9000, 70_000, 400_000, 2_500_000)))
                        judge(client.get(key), origin, key, 0, origin.version(key).size)
                        born.append((key, time.monotonic()))
            except (Truncated, OSError, Exception) as error:
                if isinstance(error, AssertionError) and not stop.is_set():
                    raise
        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        stop.wait(dice.uniform(0.02, 0.5))
        last_kill = time.monotonic()
        stop.set()
        server.kill9()
        for thread in threads:
            thread.join(60)
        complete.update(born)
        keys += [k for k, _ in born]
        assert killed_at
        server.start()
    figure(f"kill -9 x {rounds} ({engine}): {len(keys)} objects, {old} old ones looked at, {asked} "
           f"lost; slowest first hit {slowest * 1000:.0f} ms after exec")
    fill(server, origin, keys)
    assert asked <= old * 0.01, f"{asked} of {old} blocks complete a second before were lost"


def payload_pages(path, keys):
    """[(page, key, offset)]: pages of a segment that hold cells of the known keys."""
    by_hash = {name_hash(f"bkt/{key}"): key for key in keys}
    with open(path, "rb") as file:
        data = file.read()
    words = np.frombuffer(data[:len(data) // PAGE * PAGE], dtype="<u8").reshape(-1, PAGE // 8)
    ret = []
    for page in range(len(words)):
        row = words[page]
        for at in range(0, 8):                 # payloads start at multiples of 512 or anywhere
            key = by_hash.get(int(row[at]))
            if key is not None and int(row[at + 4]) == int(row[at]) \
                    and int(row[at + 6]) == int(row[at + 2]) + 1:
                ret.append((page, key, int(row[at + 2]) * 32))
                break
    return ret


def test_bit_flips_beneath_the_page_cache(start, origin, engine, figure, tmp_path):
    """Each is found when the page is next brought in, and healed inside the response."""
    if not direct_works(tmp_path):
        not_run("O_DIRECT does not work in the temporary directory")
    server = start(origin, engine=engine, file=IMMUTABLE)
    keys = mixed(origin, 100, 6)
    fill(server, origin, keys)
    server.stop()                              # everything is on the device now
    server.start()
    fill(server, origin, keys)
    dice = random.Random(5)
    flips = scaled(1000, 60)
    done = healed = 0
    stop = threading.Event()

    def noise(i):
        inner = random.Random(i)
        with server.client() as client:
            while not stop.is_set():
                key = inner.choice(keys)
                size = origin.version(key).size
                first = inner.randrange(size)
                judge(client.get(key, first), origin, key, first, size - first)
    noisy = [threading.Thread(target=noise, args=(i,)) for i in range(2)]
    errors = []

    def guarded(i):
        try:
            noise(i)
        except BaseException as error:  # noqa: BLE001: judged below
            errors.append(error)
    noisy = [threading.Thread(target=guarded, args=(i,)) for i in range(2)]
    for thread in noisy:
        thread.start()
    try:
        while done < flips and not errors:
            segments = server.segment_files()
            places = []
            for path in segments:
                places += [(path, *place) for place in payload_pages(path, keys)]
            assert places, "no payload found in the segments"
            dice.shuffle(places)
            for path, page, key, offset in places[:20]:
                bit = dice.randrange(PAGE * 8)

                def change(data):
                    data[bit // 8] ^= 1 << (bit % 8)
                if not path.exists() or not edit_beneath(path, page, change):
                    continue
                done += 1
                size = origin.version(key).size
                before = origin.mark()
                with server.client() as client:
                    judge(client.get(key), origin, key, 0, size)
                healed += len(origin.requests(key=key, since=before)) > 0
                if done >= flips:
                    break
            server.settle()
    finally:
        stop.set()
        for thread in noisy:
            thread.join(60)
    assert not errors, errors[0]
    found = server.metric("forebay_cache_checksum_failures_total")
    figure(f"bit flips ({engine}): {done} made, {found:.0f} checksum failures counted")
    # Two flips may meet in one stretch, and one may hit a run that was already replaced.
    assert found >= 0.5 * done, f"{found} found of {done}"
    fill(server, origin, keys)


def test_flips_while_stopped(start, origin, engine):
    """Payload, headers and tails of segments, edited while the server is down."""
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
    """[(name, function)]: ways to harm an index file while the server is down."""
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
    return [("removed", index.unlink),
            ("folder removed", lambda: shutil.rmtree(index.parent)),
            ("empty", lambda: index.write_bytes(b"")),
            ("truncated", lambda: os.truncate(index, dice.randrange(size))),
            ("truncated to pages", lambda: os.truncate(index, dice.randrange(size // PAGE) * PAGE)),
            ("one byte", lambda: os.truncate(index, 1)),
            ("bit flipped", flip), ("many bits flipped", many_flips),
            ("sector zeroed", lambda: patch(dice.randrange(size // 512) * 512, b"\0" * 512)),
            ("meta pages zeroed", lambda: patch(0, b"\0" * 2 * PAGE)),
            ("meta page flipped", lambda: patch(dice.randrange(2 * PAGE), os.urandom(8))),
            ("page over another", copy_page),
            ("garbage", lambda: index.write_bytes(os.urandom(min(size, 1 << 20)))),
            ("another cache's", lambda: shutil.copyfile(other, index)),
            ("a directory", directory),
            ("grown", lambda: os.truncate(index, size + 10 * PAGE)),
            ("lock file garbage", lambda: (index.parent / "lock.mdb").write_bytes(
                os.urandom(8192)))]


def test_injured_indexes(start, origin, engine, figure, tmp_path):
    """Normal start, no wrong byte, and the index is rebuilt from the segments behind serving."""
    stranger = start(origin, engine=engine, file=IMMUTABLE)
    for i in range(50):
        origin.put(f"other/{i}", 3000)
    fill(stranger, origin, [f"other/{i}" for i in range(50)])
    stranger.stop()
    other = stranger.cache / "index" / "data.mdb"
    server = start(origin, engine=engine, file=IMMUTABLE)
    keys = mixed(origin, 120, 3)
    fill(server, origin, keys)
    server.stop()
    pristine = tmp_path / "pristine"
    shutil.copytree(server.cache, pristine)
    dice = random.Random(99)
    count = scaled(200, 20)
    rebuilt = 0
    for n in range(count):
        shutil.rmtree(server.cache)
        shutil.copytree(pristine, server.cache)
        index = server.cache / "index" / "data.mdb"
        options = injuries(dice, index, other)
        name, harm = options[n % len(options)]
        harm()
        server.start()
        with server.client() as client:
            for key in dice.sample(keys, 30):
                judge(client.get(key), origin, key, 0, origin.version(key).size)
        if n % len(options) < 6:            # the index is surely gone: it must come back
            server.wait_metric("forebay_cache_objects", lambda v: v >= len(keys))
            mark = origin.mark()
            fill(server, origin, keys)
            assert origin.bytes_sent(since=mark) == 0, f"{name}: not rebuilt from segments"
            rebuilt += 1
        code = server.stop(code=None)
        assert code == 0, f"{name}: exit {code}: {server.output()}"
    figure(f"index injuries ({engine}): {count}, {rebuilt} full rebuilds watched")


def test_injured_segments_and_strange_files(start, origin, engine):
    server = start(origin, engine=engine, file=IMMUTABLE)
    keys = mixed(origin, 80, 4)
    fill(server, origin, keys)
    dice = random.Random(17)
    for name in ("truncated", "empty", "removed", "swapped", "extra", "directory", "garbage",
                 "format removed", "all removed"):
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
            (server.cache / "segments" / "99999991.seg").mkdir()
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
    """The highest value of a function while the block runs."""

    def __init__(self, read, every=0.02):
        self.read, self.every, self.highest = read, every, 0
        self.stop = threading.Event()
        self.count = 0
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        while not self.stop.wait(self.every):
            try:
                self.highest = max(self.highest, self.read())
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
    """Readers that took a little of an object and then hardly go on."""

    def __init__(self, server, keys, count):
        self.connections = []
        for i in range(count):
            connection = Connection(server.port, receive_buffer=4096)
            connection.send(f"GET /bkt/{keys[i % len(keys)]} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                            f"\r\n".encode())
            self.connections.append(connection)

    def sip(self):
        for connection in self.connections:
            try:
                connection.sock.settimeout(5)
                connection.sock.recv(1024)
            except OSError:
                pass

    def close(self):
        for connection in self.connections:
            connection.close()


def overread(server, origin, total, slow):
    """Reads TOTAL bytes of ever new objects beside SLOW readers that hold on to old ones."""
    count = total // (2 * MIB)
    for i in range(count):
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
    finally:
        readers.close()
    server.settle()


def test_the_disk_limit_is_hard(start, origin, engine, figure, tmp_path):
    """du and statfs, sampled while ten times cache.size is read with slow readers about."""
    size = 64 * MIB
    with LoopDisk(tmp_path / "disk", 512 * MIB) as disk:
        server = start(origin, engine=engine, cache=disk.mount / "cache",
                       settings={"cache.size": "64MiB", "limits.min_rate": None})
        with Sampler(server.disk_bytes) as du, \
                Sampler(lambda: disk.used() - disk.empty) as statfs:
            overread(server, origin, 10 * size, scaled(200, 40))
        figure(f"cache.size 64 MiB, 640 MiB read ({engine}): highest du "
               f"{du.highest / MIB:.1f} MiB of {du.count} samples, statfs "
               f"{statfs.highest / MIB:.1f} MiB of {statfs.count}")
        assert du.highest <= size, f"du {du.highest} > {size}"
        assert statfs.highest <= size, f"statfs {statfs.highest} > {size}"
        assert server.metric("forebay_cache_evicted_bytes_total", reason="capacity") > 0
        assert server.metric("forebay_fills_total", state="stored") > 100
        server.stop()


def test_the_limit_holds_without_a_file_system_of_its_own(start, origin, engine):
    size = 64 * MIB
    server = start(origin, engine=engine, settings={"cache.size": "64MiB"})
    with Sampler(server.disk_bytes) as du:
        overread(server, origin, 6 * size, 20)
    assert du.highest <= size, f"du {du.highest} > {size}"
    server.stop()
    server.start()
    assert server.disk_bytes() <= size


def test_a_full_file_system(start, origin, engine, tmp_path):
    """cache.size says more than there is: every read succeeds, before, while and after."""
    with LoopDisk(tmp_path / "disk", 48 * MIB) as disk:
        server = start(origin, engine=engine, cache=disk.mount / "cache",
                       settings={"cache.size": "1GiB"})
        for i in range(60):
            origin.put(f"k{i}", 2 * MIB)
        with server.client() as client:
            for turn in range(2):
                for i in range(60):
                    judge(client.get(f"k{i}"), origin, f"k{i}", 0, 2 * MIB)
        (disk.mount / "hog").write_bytes(b"\0" * 1)
        server.stop()


def test_somebody_else_fills_the_file_system(start, origin, engine, tmp_path):
    with LoopDisk(tmp_path / "disk", 128 * MIB) as disk:
        server = start(origin, engine=engine, cache=disk.mount / "cache",
                       settings={"cache.size": "64MiB"})
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


def test_a_read_only_file_system(start, origin, engine, tmp_path):
    """Found read-only at the start: served from the origin, uncached."""
    with LoopDisk(tmp_path / "disk", 128 * MIB) as disk:
        (disk.mount / "cache").mkdir()
        assert disk.remount("ro")
        server = start(origin, engine=engine, cache=disk.mount / "cache",
                       settings={"cache.size": "64MiB"})
        keys = mixed(origin, 20, 2)
        fill(server, origin, keys)
        fill(server, origin, keys)
        assert server.metric("forebay_degraded", component="disk") == 1
        assert server.admin("/readyz").status == 200
        server.stop()


def test_disk_errors(start, origin, engine, tmp_path):
    """EIO on every read and write of the device: every request still succeeds."""
    with FaultyDisk(tmp_path / "disk", 256 * MIB) as disk:
        server = start(origin, engine=engine, cache=disk.mount / "cache",
                       settings={"cache.size": "128MiB"})
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
    """Where a file stands in the way: one clear refusal, or service without a cache."""
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


def test_memory_stays_flat_with_slow_readers(start, origin, engine, figure):
    """1 GiB objects to many slow readers, stored and unstored: bounded by limits.max_buffer."""
    from forebay import build_kind
    if build_kind() in ("asan-ubsan", "tsan"):
        not_run("memory is not judged under a sanitizer")
    buffer = 32 * MIB
    server = start(origin, engine=engine, settings={
        "limits.max_buffer": "32MiB", "cache.size": "512MiB"},
        file={"rules": [{"match": "bkt/never/**", "cache": False}]})
    readers = scaled(200, 60)
    for i in range(4):
        origin.put(f"kept/{i}", 1 << 30)
        origin.put(f"never/{i}", 1 << 30)
    origin.put("warm", 5 * MIB)
    with server.client() as client:
        judge(client.get("warm"), origin, "warm", 0, 5 * MIB)
    before = server.memory_bytes()
    slow = SlowReaders(server, [f"{kind}/{i}" for kind in ("kept", "never") for i in range(4)],
                       readers)
    try:
        with Sampler(server.memory_bytes, 0.05) as memory:
            taken = [0] * 8

            def one(worker):
                key = f"{'kept' if worker % 2 else 'never'}/{worker % 4}"
                with server.connection(receive_buffer=1 << 16) as connection:
                    connection.send(f"GET /bkt/{key} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
                    assert connection.read_head().status == 200
                    goal = scaled(1 << 30, 64 * MIB)
                    while taken[worker] < goal:
                        piece = connection.sock.recv(1 << 18)
                        assert piece, "cut"
                        taken[worker] += len(piece)
                        if worker == 0:
                            slow.sip()
            parallel(8, one)
    finally:
        slow.close()
    grown = memory.highest - before
    figure(f"memory with {readers} slow readers ({engine}): {before / MIB:.0f} MiB before, "
           f"{memory.highest / MIB:.0f} MiB at most")
    assert grown <= buffer + 48 * MIB + readers * 128 * 1024, f"grew by {grown / MIB:.0f} MiB"


@pytest.mark.tsan
def test_eviction_under_load(start, origin, engine):
    """A working set larger than the cache, read by many: right bytes, and room is made."""
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


def test_verify_always(start, origin, engine):
    """cache.verify always: every byte of every hit is checked, none goes by sendfile."""
    server = start(origin, engine=engine, file=IMMUTABLE, settings={"cache.verify": "always"})
    keys = mixed(origin, 40, 3)
    fill(server, origin, keys)
    fill(server, origin, keys)
    assert server.metric("forebay_hit_blocks_total", way="sendfile") == 0
    assert server.metric("forebay_hit_blocks_total", way="read") > 0
    # Even a write through the page cache is found.
    dice = random.Random(2)
    places = [(p, *x) for p in server.segment_files() for x in payload_pages(p, keys)]
    for path, page, key, offset in dice.sample(places, min(20, len(places))):
        with open(path, "r+b") as file:
            file.seek(page * PAGE + 100)
            byte = file.read(1)
            file.seek(page * PAGE + 100)
            file.write(bytes([byte[0] ^ 1]))
        with server.client() as client:
            judge(client.get(key), origin, key, 0, origin.version(key).size)
    server.settle()
    assert server.metric("forebay_cache_checksum_failures_total") > 0


def test_the_three_ways_of_a_hit(start, origin, engine):
    server = start(origin, engine=engine, file=IMMUTABLE)
    origin.put("small", 9000)
    origin.put("large", 3 * MIB)
    fill(server, origin, ["small", "large"])
    fill(server, origin, ["small", "large"])
    rows = {way: server.metric("forebay_hit_blocks_total", way=way)
            for way in ("small", "sendfile", "read")}
    assert rows["small"] + rows["sendfile"] + rows["read"] > 0, rows
    for path in server.segment_files():
        drop_pages(path)
    fill(server, origin, ["small", "large"])
    assert server.metric("forebay_hit_blocks_total", way="read") > rows["read"], rows

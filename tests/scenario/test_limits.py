# SPDX-License-Identifier: Apache-2.0
"""Limits of the process: a cache.size that changes, descriptors, connections and log lines."""

import contextlib
import json
import os
import random
import re
import select
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time

import pytest
from client import judge, judge_streamed
from conftest import not_run
from disks import LoopDisk, drop_pages
from forebay import build_kind, parallel, scaled
from test_control import ask
from waiting import WAIT_S, wait_for

MIB = 1 << 20
IMMUTABLE = {"rules": [{"match": "bkt/**", "freshness": "immutable"}]}


def read_all(server, origin, keys, readers=4):
    """Reads and judges everything, then waits until it is stored."""

    def one(worker):
        with server.client() as client:
            for key in keys[worker::readers]:
                judge(client.get(key), origin, key, 0, origin.version(key).size)

    parallel(readers, one)
    server.settle()


def hits(server, origin, keys):
    """Counts the KEYS that are answered rightly without a request at the origin."""
    count = 0
    with server.client() as client:
        for key in keys:
            mark = origin.mark()
            judge(client.get(key), origin, key, 0, origin.version(key).size)
            count += not origin.requests(since=mark)
    return count


# --- cache.size, smaller and larger again ---------------------------------------------------------


def capacity(server):
    return int(server.metric("forebay_cache_capacity_bytes"))


def stores_and_is_within(server, origin, key):
    """A new object becomes a hit, the server is not degraded, and du stays within the current
    limit."""
    assert server.disk_bytes() <= capacity(server), f"{server.disk_bytes()} > {capacity(server)}"
    origin.put(key, 300_000)

    def is_hit():  # while the cache shrinks, it may be streamed unstored
        read_all(server, origin, [key])
        return hits(server, origin, [key]) == 1

    wait_for(is_hit, lambda: f"a hit: {server.output()}")
    assert not server.disk_trouble(), server.output()
    assert server.disk_bytes() <= capacity(server), f"{server.disk_bytes()} > {capacity(server)}"


@pytest.mark.both_engines
@pytest.mark.parametrize("end", ["stop", "kill9"])
def test_an_empty_cache_made_smaller(start, origin, engine, end):
    """A cache that was made for 50 GiB and never used can start again with 1 GiB."""
    server = start(origin, engine=engine, file=IMMUTABLE, settings={"cache.size": "50GiB"})
    getattr(server, end)()
    server.settings["cache.size"] = "1GiB"
    server.start()
    stores_and_is_within(server, origin, "a")


def test_small_data_takes_little_of_a_large_cache(start, origin, engine, figure):
    """Segments that are being filled and spare ones take a small part of the cache. Starts add
    none, and only objects count as held."""
    settings = {"cache.size": "20GiB", "workers": 2}
    server = start(origin, engine=engine, file=IMMUTABLE, settings=settings)
    keys = [f"k{i}" for i in range(38)]
    for key in keys:
        origin.put(key, MIB)
    read_all(server, origin, keys)
    server.settle()
    taken, files = [], []
    for _ in range(4):
        server.restart()
        server.wait_metric("forebay_cache_held_bytes", lambda held: held >= 38 * MIB)
        assert server.metric("forebay_cache_held_bytes") <= 39 * MIB
        taken.append(server.disk_bytes() // MIB)
        files.append(len(server.segment_files()))
    figure(f"38 MiB of data in a cache of 20 GiB take {taken[-1]} MiB ({engine})")
    assert max(taken) <= 300 and max(files) == files[0], (taken, files)
    assert hits(server, origin, keys) == len(keys)


def test_objects_that_fit_stay_hits(start, origin, engine):
    """A few objects in a large cache are still hits after the cache shrinks and grows again."""
    server = start(origin, engine=engine, file=IMMUTABLE, settings={"cache.size": "1GiB"})
    keys = [f"k{i}" for i in range(12)]
    for key in keys:
        origin.put(key, 400_000)
    read_all(server, origin, keys)
    assert hits(server, origin, keys) == len(keys)
    for end, size in (
        ("stop", "64MiB"),
        ("kill9", "60MiB"),
        ("stop", "50GiB"),
        ("kill9", "64MiB"),
        ("kill9", "1GiB"),
    ):
        getattr(server, end)()
        server.settings["cache.size"] = size
        server.start()
        assert server.disk_bytes() <= capacity(server)
        assert hits(server, origin, keys) == len(keys), f"at {size}: {server.output()}"
        stores_and_is_within(server, origin, f"more/{size}/{end}")


@pytest.mark.both_engines
def test_an_index_larger_than_the_new_size(start, origin, engine):
    """The index of many small objects must fit the new, smaller size too. The newest objects stay
    hits."""
    server = start(origin, engine=engine, file=IMMUTABLE, settings={"cache.size": "4GiB"})
    keys = [f"small/{i:05d}" for i in range(scaled(20000, 2000))]
    for key in keys:
        origin.put(key, 50)
    read_all(server, origin, keys)
    for end, size in (("stop", "256MiB"), ("kill9", "16MiB"), ("stop", "4GiB"), ("stop", "16MiB")):
        getattr(server, end)()
        server.settings["cache.size"] = size
        server.start()
        stores_and_is_within(server, origin, f"more/{size}/{end}")


SIZES = ["16MiB", "20MiB", "64MiB", "300MiB", "1GiB", "5GiB", "50GiB", "1%", "20%"]


@pytest.mark.both_engines
@pytest.mark.parametrize("seed", range(scaled(20, 2)))
def test_any_order_of_sizes(start, origin, engine, seed):
    """After each sequence of sizes, of an empty or full cache, after a stop or kill -9, the server
    serves, stores and keeps its limit."""
    dice = random.Random(seed)
    server = start(origin, run=False, engine=engine, file=IMMUTABLE)
    for turn in range(10):
        server.settings["cache.size"] = dice.choice(SIZES)
        server.start()
        stores_and_is_within(server, origin, f"{turn}/first")
        if dice.random() < 0.6:
            keys = [f"{turn}/{i}" for i in range(dice.randrange(1, 30))]
            for key in keys:
                origin.put(key, dice.choice((10, 70_000, 2 * MIB + 1)))
            read_all(server, origin, keys)
            assert server.disk_bytes() <= capacity(server)
        stores_and_is_within(server, origin, f"{turn}/last")
        dice.choice((server.stop, server.kill9))()


# --- while it runs --------------------------------------------------------------------------------


def reload(server, cache, **more):
    """Rewrites the file, sends SIGHUP and waits for the answer. Returns whether the server accepted
    it."""
    server.file = {**server.file, "cache": cache, **more}
    (server.folder / "forebay.yaml").write_text(json.dumps(server.file, indent=1))

    def answers():
        return [
            line
            for line in server.stderr
            if "event=reload_failed" in line or "event=reloaded" in line
        ]

    before = len(answers())
    os.kill(server._pid(), signal.SIGHUP)
    with server.changed:
        assert server.changed.wait_for(lambda: len(answers()) > before, WAIT_S), server.output()
    return "event=reloaded" in answers()[before]


@contextlib.contextmanager
def readers(server, origin, keys, size, count=2):
    """During the block, threads read and judge KEYS of that size continuously."""
    stop, wrong = threading.Event(), []

    def read_on(seed):
        dice = random.Random(seed)
        try:
            with server.client() as client:
                while not stop.is_set():
                    key = dice.choice(keys)
                    judge(client.get(key), origin, key, 0, size)
        except Exception as error:  # raised by the test's own thread
            wrong.append(error)

    threads = [threading.Thread(target=read_on, args=(seed,)) for seed in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(WAIT_S)
    assert not wrong, wrong[0]


def live(start, origin, engine, size, **more):
    return start(
        origin,
        engine=engine,
        file={**IMMUTABLE, "cache": {"size": size}},
        settings={"cache.size": None, "log.format": "text", **more},
    )


@pytest.mark.both_engines
def test_a_size_that_changes_while_it_runs(start, origin, engine):
    """The size changes while readers go on. A smaller size evicts the excess, and a larger one
    makes room."""
    server = live(start, origin, engine, "128MiB")
    keys = [f"k{i}" for i in range(120)]
    for key in keys:
        origin.put(key, 700_000)
    read_all(server, origin, keys)
    assert server.disk_bytes() > 64 * MIB
    with readers(server, origin, keys, 700_000):
        for size in ("40MiB", "20MiB"):
            assert reload(server, {"size": size})
            limit = int(size[:-3]) * MIB
            wait_for(
                lambda: capacity(server) == limit and server.disk_bytes() <= limit, server.output
            )
        highest = max(server.disk_bytes() for _ in range(50))
        assert highest <= 20 * MIB, highest
    assert reload(server, {"size": "128MiB"})
    wait_for(lambda: capacity(server) == 128 * MIB, server.output)
    read_all(server, origin, keys)
    wait_for(
        lambda: (read_all(server, origin, keys), hits(server, origin, keys))[1] > 60, server.output
    )
    assert server.disk_bytes() <= 128 * MIB
    settings = {
        row["key"]: row for row in json.loads(server.admin("/api/v1/config").body)["settings"]
    }
    assert (
        settings["cache.size"]["value"] == "128MiB" and settings["cache.size"]["reload"] == "live"
    ), settings["cache.size"]
    assert not server.disk_trouble()


def test_a_reload_is_taken_whole_or_not_at_all(start, origin, engine):
    """A bad file or an impossible size changes nothing, and the log names the place. It also names
    the settings that need a restart."""
    server = live(start, origin, engine, "128MiB")
    stores_and_is_within(server, origin, "a")
    for cache, word in (
        ({"size": "4MiB"}, "forebay.yaml:"),
        ({"sise": "64MiB"}, "cache.size"),
        ({"size": "64MiB", "min_free": "99%"}, "forebay.yaml:"),
    ):
        assert not reload(server, cache)
        assert any("event=reload_failed" in line and word in line for line in server.stderr), (
            server.output()
        )
        assert capacity(server) == 128 * MIB
        assert "reload-refused" in server.conditions()
    assert reload(server, {"size": "64MiB", "policy": "lru"}, workers=1, buckets=[{"name": "b"}])
    assert "reload-refused" not in server.conditions()
    wait_for(lambda: capacity(server) == 64 * MIB, server.output)
    named = {
        line.split("key=")[1] for line in server.stderr if "event=reload_needs_restart" in line
    }
    assert named == {"cache.policy"}, named  # `workers` is a flag here, which beats the file
    stores_and_is_within(server, origin, "b")


def test_reloads_without_end(start, origin, engine):
    """Many reloads, one after the other and at once, half of them with a bad file, disturb no
    reader. The last valid file is in force."""
    server = live(start, origin, engine, "64MiB")
    keys = [f"k{i}" for i in range(60)]
    for key in keys:
        origin.put(key, 400_000)
    read_all(server, origin, keys)
    dice, path = random.Random(11), server.folder / "forebay.yaml"
    good = [
        json.dumps({**server.file, "cache": {"size": size, "min_free": "1%"}})
        for size in ("16MiB", "64MiB", "30MiB", "48MiB")
    ]
    bad = ["{", "cache: {size: 1MiB}", "cache: {size: 64MiB}\nrulse: []", "\0"]
    with readers(server, origin, keys, 400_000):
        for _ in range(scaled(400, 40)):
            path.write_text(dice.choice(good + bad))
            for _ in range(dice.choice((1, 1, 5))):
                os.kill(server._pid(), signal.SIGHUP)
        wait_for(
            lambda: not reload(server, {"size": "1MiB"}), server.output
        )  # the answer may be to an earlier one
        wait_for(
            lambda: reload(server, {"size": "32MiB"}) and capacity(server) == 32 * MIB,
            server.output,
        )
    wait_for(lambda: server.disk_bytes() <= 32 * MIB, server.output)
    stores_and_is_within(server, origin, "last")
    assert "reload-refused" not in server.conditions()


@pytest.mark.both_engines
@pytest.mark.parametrize("seed", range(scaled(10, 1)))
def test_killed_while_the_size_changes(start, origin, engine, seed):
    """After kill -9 at any moment of the change, the next process keeps to the size in the file.
    Every byte is right."""
    dice = random.Random(seed)
    server = live(start, origin, engine, "128MiB")
    keys = [f"k{i}" for i in range(50)]
    for key in keys:
        origin.put(key, dice.choice((10, 70_000, 2 * MIB + 1)))
    for _ in range(4):
        read_all(server, origin, keys)
        for _ in range(dice.choice((1, 3))):
            server.file = {
                **server.file,
                "cache": {"size": dice.choice(("16MiB", "24MiB", "40MiB", "128MiB"))},
            }
            (server.folder / "forebay.yaml").write_text(json.dumps(server.file))
            os.kill(server._pid(), signal.SIGHUP)
            with server.client() as client:  # the change takes this long
                for key in dice.sample(keys, dice.randrange(8)):
                    judge(client.get(key), origin, key, 0, origin.version(key).size)
        server.kill9()
        server.start()
        stores_and_is_within(server, origin, "after")


@pytest.mark.both_engines
def test_a_size_below_what_is_being_read(start, origin, engine):
    """If the cache shrinks below the data that paused readers hold, they keep their bytes, all of
    them right. Their space is freed when they leave."""
    server = live(start, origin, engine, "128MiB", **{"cache.policy": "lru"})
    keys = [f"k{i}" for i in range(24)]
    for key in keys:
        origin.put(key, 4 * MIB)
    read_all(server, origin, keys)
    with contextlib.ExitStack() as stack:
        slow = []
        for key in keys[-16:]:
            connection = stack.enter_context(server.connection(receive_buffer=65536))
            connection.send(f"GET /bkt/{key} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            slow.append((key, connection, connection.read_head()))
        assert reload(server, {"size": "16MiB"})
        wait_for(lambda: capacity(server) == 16 * MIB, server.output)
        for key, connection, head in slow:
            judge_streamed(connection, origin, key, 0, 4 * MIB, head=head)
    wait_for(lambda: server.disk_bytes() <= 16 * MIB, server.output)
    stores_and_is_within(server, origin, "after")


def test_a_reload_says_how_far_a_cache_grows_without_a_restart(start, origin, engine):
    """If the cache cannot grow to the new size without a restart, it grows as far as it can. The
    answer and the log name that size; a restart reaches the new one."""
    server = start(
        origin,
        engine=engine,
        settings={"cache.size": None, "log.format": "text"},
        file={**IMMUTABLE, "cache": {"size": "256MiB", "min_free": "0%"}},
    )
    path = server.folder / "forebay.yaml"

    def resize(size):
        server.file = {**server.file, "cache": {"size": size, "min_free": "0%"}}
        path.write_text(json.dumps(server.file))
        return ask(server, "reload")[-1]

    assert resize("400MiB")["needs_restart"] == []
    wait_for(lambda: capacity(server) == 400 * MIB, server.output)
    said = resize("100GiB")
    wait_for(lambda: capacity(server) > 400 * MIB, server.output)
    most = capacity(server)
    assert 512 * MIB < most < 100 << 30
    assert said["needs_restart"] == [f"cache.size (until then it is {most} bytes)"], said
    server.wait_stderr(f"event=reload_needs_restart key=cache.size most_bytes={most}")
    stores_and_is_within(server, origin, "a")
    assert resize("300MiB")["needs_restart"] == []
    wait_for(lambda: capacity(server) == 300 * MIB, server.output)
    resize("100GiB")
    server.restart()
    assert capacity(server) == 100 << 30
    assert resize("100GiB")["needs_restart"] == []
    stores_and_is_within(server, origin, "b")


def test_a_size_beyond_the_file_system(start, origin, engine, tmp_path):
    """If cache.size exceeds the file system, the cache fills it except for cache.min_free, and goes
    on replacing objects."""
    with LoopDisk(tmp_path / "disk", 200 * MIB) as disk:
        server = start(
            origin,
            engine=engine,
            cache=disk.mount / "cache",
            settings={"cache.size": None, "log.format": "text"},
            file={**IMMUTABLE, "cache": {"size": "64MiB", "min_free": "10%"}},
        )
        keys = [f"k{i}" for i in range(200)]
        for key in keys:
            origin.put(key, MIB)
        read_all(server, origin, keys[:60])
        assert reload(server, {"size": "1TiB", "min_free": "10%"})
        wait_for(lambda: capacity(server) > 64 * MIB, server.output)
        wait_for(
            lambda: (read_all(server, origin, keys), server.disk_bytes())[1] > 110 * MIB,
            server.output,
        )
        info = os.statvfs(disk.mount)
        assert info.f_bavail * 10 >= info.f_blocks - 10 * 16, f"{info}"
        assert hits(server, origin, keys[::5]) > 10
        assert not server.disk_trouble()
        server.stop()


def test_other_certificate_files(start, origin, tmp_path):
    """A reload can name other certificate files. A certificate whose key does not match is refused,
    and nothing changes. One that expires soon, or has expired, is a condition. Forebay reads
    renewed files although no client connects."""
    files = []
    for name, days in (("first", "2"), ("second", "90"), ("third", "180")):
        files.append({"cert": str(tmp_path / f"{name}.pem"), "key": str(tmp_path / f"{name}.key")})
        subprocess.run(
            [
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-keyout",
                files[-1]["key"],
                "-out",
                files[-1]["cert"],
                "-days",
                days,
                "-subj",
                f"/CN={name}",
            ],
            check=True,
            capture_output=True,
        )
    server = start(
        origin,
        settings={
            "cache.size": None,
            "log.format": "text",
            "listen": "127.0.0.1:0,tls:127.0.0.1:0",
        },
        file={"cache": {"size": "64MiB"}, "listen_tls": files[0]},
        ahead_s=0,
    )
    port = next(
        int(found[1])
        for line in server.stderr
        if (found := re.search(r"listening\s+https://[^/]*:(\d+)", line))
    )

    def served():
        return ssl.get_server_certificate(("127.0.0.1", port))

    first, second = ((tmp_path / name).read_text() for name in ("first.pem", "second.pem"))
    assert served() == first
    assert not reload(server, {"size": "32MiB"}, listen_tls={**files[0], "cert": files[1]["cert"]})
    assert served() == first and capacity(server) == 64 * MIB
    # Files that only a refused configuration names are watched, too.
    late = {"cert": files[0]["cert"], "key": shutil.copy(files[1]["key"], tmp_path / "late")}
    late = {kind: str(path) for kind, path in late.items()}
    assert not reload(server, {"size": "64MiB"}, listen_tls=late)
    shutil.copyfile(files[0]["key"], late["key"])
    server.wait_condition("reload-refused", holds=False)
    assert late["key"] in bytes(server.admin("/api/v1/config").body).decode()
    server.wait_condition("certificate-expiring", holds=False)
    expires = server.metric("forebay_tls_certificate_expiry_timestamp_seconds")
    date = time.strftime("expires on %Y-%m-%d %H:%M UTC, in ", time.gmtime(expires))
    server.advance(46 * 3600)
    server.wait_condition("certificate-expiring")
    assert date in server.condition_rows()["certificate-expiring"]["text"]
    server.advance(3 * 3600)
    server.wait_condition("certificate-expired")
    row = server.condition_rows()["certificate-expired"]
    assert row["severity"] == "critical" and date[8:26] in row["text"], row
    assert "certificate-expiring" not in server.conditions()
    assert reload(server, {"size": "64MiB"}, listen_tls=files[1])
    wait_for(lambda: served() == second, server.output)
    assert files[1]["cert"] in bytes(server.admin("/api/v1/config").body).decode()
    server.wait_condition("certificate-expired", holds=False)
    for kind in ("cert", "key"):
        shutil.copyfile(files[2][kind], files[1][kind])
    server.wait_metric(
        "forebay_tls_certificate_expiry_timestamp_seconds", lambda v: v > expires + 100 * 86400
    )
    assert served() == (tmp_path / "third.pem").read_text()
    # A renewal that is not complete holds up no other change.
    with open(files[1]["key"], "w") as key:
        key.write("half a key")
    assert reload(server, {"size": "32MiB"}, listen_tls=files[1])
    # The server may have read the changed key, and so have reloaded, before the new size was there.
    wait_for(lambda: capacity(server) == 32 * MIB, server.output)
    assert served() == (tmp_path / "third.pem").read_text()


@pytest.mark.both_engines
def test_segments_too_large_for_a_size(start, origin, engine):
    """The size of segments does not change while the server runs. A size with room for fewer than
    three of them is refused until a restart."""
    server = live(start, origin, engine, "2GiB")  # segments of 32 MiB
    stores_and_is_within(server, origin, "a")
    assert not reload(server, {"size": "64MiB"})
    assert any("event=reload_failed" in line and "restart" in line for line in server.stderr), (
        server.output()
    )
    assert capacity(server) == 2048 * MIB
    assert hits(server, origin, ["a"]) == 1
    server.restart()
    assert capacity(server) == 64 * MIB
    stores_and_is_within(server, origin, "b")


# --- descriptors ----------------------------------------------------------------------------------

MANY = scaled(2000, 800)
DESCRIPTORS = 256
# A small segment holds one of these objects: a test with many segments stays small on disk.
SMALL_SEGMENT, ONE_A_SEGMENT = 131072, 65_000


class Descriptors:
    """The most descriptors that the server had open at once, as seen from outside."""

    def __init__(self, server):
        self.folder = f"/proc/{server._pid()}/fd"
        self.highest = 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self):
        while not self.over.wait(0.002):
            with contextlib.suppress(OSError):
                self.highest = max(self.highest, len(os.listdir(self.folder)))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def limited(start, origin, engine, count, **more):
    """A server with at most COUNT descriptors and one segment for each object."""
    return start(
        origin,
        engine=engine,
        file=IMMUTABLE,
        wrapper=["prlimit", f"--nofile={count}:{count}"],
        env={"FOREBAY_SEGMENT_SIZE": str(SMALL_SEGMENT)},
        settings={
            "cache.size": "420MiB",
            "cache.block_size": "64KiB",
            "access_log.path": "off",
            **more,
        },
    )


def all_are_hits(server, origin, keys, readers=8):
    """Reads and judges everything over READERS connections. Nothing of it comes from the origin."""
    mark = origin.mark()
    read_all(server, origin, keys, readers)
    asked = origin.requests(since=mark)
    assert not asked, f"{len(asked)} of {len(keys)} asked again: {asked[:3]}\n{server.output()}"


def test_many_segments_and_few_descriptors(start, origin, engine, figure):
    """With hundreds of segments (at full scale 2,000) and 256 descriptors, no client is turned
    away. Every byte is right and hits stay hits, over restarts and a rebuilt index."""
    if build_kind() == "release":
        not_run("small segments are for builds for tests")
    server = limited(start, origin, engine, DESCRIPTORS)
    keys = [f"k{i:04d}" for i in range(MANY)]
    for key in keys:
        origin.put(key, ONE_A_SEGMENT)
    peaks = []

    def look(what):
        with Descriptors(server) as seen:
            what()
        peaks.append(seen.highest)
        assert seen.highest <= DESCRIPTORS - 8, f"{seen.highest} of {DESCRIPTORS}"

    def look_at_hits():
        all_are_hits(server, origin, keys)
        dice = random.Random(5)
        parallel(24, lambda _: all_are_hits_of_one(server, origin, dice.sample(keys, 100)))

    look(lambda: read_all(server, origin, keys, 8))
    assert len(server.segment_files()) >= MANY
    look(look_at_hits)
    server.stop()
    server.start()
    look(look_at_hits)
    for path in server.segment_files():
        drop_pages(path)
    look(look_at_hits)
    server.kill9()
    server.start()
    look(look_at_hits)
    server.stop()
    (server.cache / "index" / "data.mdb").unlink()
    server.start()
    server.wait_condition("index-rebuilding", False)
    look(
        lambda: read_all(server, origin, keys, 8)
    )  # revalidated once, because they may have changed
    assert not [r for r in origin.requests() if r.status not in (200, 206, 304)]
    look(look_at_hits)
    assert server.metric("forebay_cache_checksum_failures_total") == 0
    assert server.metric("forebay_cache_evicted_bytes_total") == 0
    assert server.metric("forebay_store_events_total", event="segment-open-failed") == 0
    figure(f"{MANY} segments, {DESCRIPTORS} descriptors ({engine}): most open at once {max(peaks)}")


def all_are_hits_of_one(server, origin, keys):
    with server.client() as client:
        for key in keys:
            judge(client.get(key), origin, key, 0, origin.version(key).size)


# --- connections and lines of log -----------------------------------------------------------------


def connect(port, source="127.0.0.1"):
    return socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(source, 0))


def stderr_bytes(server):
    return sum(len(line) + 1 for line in server.stderr)


@pytest.mark.parametrize("count", (64, 96, 128))
def test_too_few_descriptors_for_the_workers(start, origin, engine, count):
    """If the descriptor limit is too low for the workers, the server does not start and says how
    many it needs. With that number, requests without a connection to the origin get an error, and
    the others are served."""
    server = start(
        origin,
        run=False,
        engine=engine,
        wrapper=["prlimit", f"--nofile={count}:{count}"],
        settings={"workers": 16, "access_log.path": "off"},
    )
    server.spawn()
    assert server.wait_exit() == 1, server.output()
    least = re.search(
        r"limit of (\d+) open files .* 16 workers, .* at least (\d+)", server.output()
    )
    assert least and int(least[1]) == count and "ulimit" in server.output(), server.output()
    server.wrapper = ["prlimit", f"--nofile={least[2]}:{least[2]}"]
    server.start()
    right = 0
    with server.client() as client:
        for i in range(60):
            origin.put(f"k{i}", 300_000)
            reply = client.get(f"k{i}")
            assert reply.status in (200, 503), reply
            if reply.status == 200:
                judge(reply, origin, f"k{i}", 0, 300_000)
                right += 1
    assert right > 0 and server.admin("/livez").status == 200, right


def test_idle_admin_connections_under_a_small_descriptor_limit(start, origin, engine, figure):
    """160 idle connections to the admin port do not keep probes and clients from an answer. The log
    stays small."""
    server = start(
        origin,
        engine=engine,
        wrapper=["prlimit", "--nofile=128:128"],
        settings={"access_log.path": "off"},
    )
    origin.put("a", 100_000)
    before, cpu = stderr_bytes(server), server.cpu_seconds()
    with contextlib.ExitStack() as held:
        for _ in range(160):
            held.enter_context(connect(server.admin_port))
        for _ in range(50):
            assert server.admin("/livez").status == 200
        read_all(server, origin, ["a"])
        assert server.metric("forebay_admin_connections") <= 32
        assert server.metric("forebay_limit_reached_total", limit="admin-connections") >= 128
        with Descriptors(server) as seen:
            assert server.admin("/readyz").status == 200
        written = stderr_bytes(server) - before
        figure(
            f"160 idle admin connections, 128 descriptors ({engine}): {written} bytes of log, "
            f"{server.cpu_seconds() - cpu:.2f} s of CPU, {seen.highest} descriptors open"
        )
        assert written < 65536, server.output()


def test_connections_of_one_source(start, origin):
    """A source with more connections than its share gets SlowDown. Other sources do not, and closed
    connections make room again."""
    server = start(origin, settings={"limits.max_connections_per_source": 5})
    origin.put("a", 1000)

    def ask(source):
        with connect(server.port, source) as sock:
            sock.sendall(b"GET /bkt/a HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            return sock.makefile("rb").read()

    with contextlib.ExitStack() as held:
        for _ in range(5):
            sock = held.enter_context(connect(server.port))
            sock.sendall(b"HEAD /bkt/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        with connect(server.port) as sock:
            assert b" 503 " in sock.makefile("rb").readline()
        assert server.metric("forebay_http_shed_total", reason="source") == 1
        assert ask("127.0.0.2").startswith(b"HTTP/1.1 200")
    server.wait_metric("forebay_http_connections", lambda v: v == 0)
    assert ask("127.0.0.1").startswith(b"HTTP/1.1 200")


def test_clients_without_descriptors(start, origin, engine, figure):
    """With far more connections than descriptors, admitted clients are served and others get an
    error. Nothing is evicted from the cache."""
    server = start(
        origin,
        engine=engine,
        file=IMMUTABLE,
        wrapper=["prlimit", "--nofile=128:128"],
        settings={"access_log.path": "off"},
    )
    keys = [f"k{i}" for i in range(20)]
    for key in keys:
        origin.put(key, 200_000)
    read_all(server, origin, keys)
    before = stderr_bytes(server)
    with contextlib.ExitStack() as held, Descriptors(server) as seen:
        for _ in range(400):
            held.enter_context(connect(server.port))
        server.wait_metric("forebay_http_shed_total", lambda v: v >= 300, reason="connections")
        rows = server.condition_rows()
        assert set(rows) == {"requests-shed"}
        assert "the limit on open files, for connections (" in rows["requests-shed"]["text"], rows
    server.wait_metric("forebay_http_connections", lambda v: v == 0)
    all_are_hits(server, origin, keys, 4)
    figure(
        f"400 connections, 128 descriptors ({engine}): at most {seen.highest} open, "
        f"{stderr_bytes(server) - before} bytes of log"
    )
    assert seen.highest < 128
    assert stderr_bytes(server) - before < 65536


def test_long_heads_that_never_end(start, origin, figure):
    """Endless heads of 30 KB, from more clients than there is memory for, get SlowDown above
    limits.max_buffer. All others are served, and closed connections make room."""
    server = start(
        origin,
        settings={
            "limits.max_buffer": "4MiB",
            "access_log.path": "off",
            "limits.header_timeout": "10m",
        },
    )
    origin.put("a", 100_000)
    read_all(server, origin, ["a"])
    before, count = server.memory_bytes(), 600
    head = (
        b"GET /bkt/a HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "
        + b"x" * 15_000
        + b"\r\nY: "
        + b"y" * 15_000
    )
    with contextlib.ExitStack() as held:
        socks = [held.enter_context(connect(server.port)) for _ in range(count)]
        for sock in socks:
            sock.sendall(head)
        server.wait_metric(
            "forebay_http_shed_total",
            lambda v: v >= count - 4 * MIB // len(head) // 2,
            reason="memory",
        )
        assert server.metric("forebay_http_held_bytes") <= 4 * MIB
        grown = server.memory_bytes() - before
        read_all(server, origin, ["a"])
        figure(f"{count} heads of 30 KB without an end: {grown / MIB:.1f} MiB for them")
        assert build_kind() != "debug" or grown < 8 * MIB
        assert b" 503 " in socks[-1].recv(4096).splitlines()[0]
        answered = set(select.select(socks, [], [], 0)[0])
        waiting = [sock for sock in socks if sock not in answered]
        for sock in set(socks) - {waiting[0]}:
            sock.close()
        server.wait_metric("forebay_http_held_bytes", lambda v: v <= 4 * len(head))
        waiting[0].sendall(b"\r\nConnection: close\r\n\r\n")
        assert waiting[0].makefile("rb").readline().startswith(b"HTTP/1.1 200")
    server.wait_metric("forebay_http_held_bytes", lambda v: v == 0)
    read_all(server, origin, ["a"])

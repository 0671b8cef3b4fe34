# SPDX-License-Identifier: Apache-2.0
"""A slow cache disk is never worse than no cache: the origin then sends what the disk has."""

import contextlib
import threading

import pytest
from client import judge
from conftest import not_run
from forebay import build_kind
from waiting import wait_for

MIB = 1 << 20


class SlowDisk:
    """A server whose disk holds every read for as long as `held` exists."""

    def __init__(self, start, origin, engine, folder):
        if build_kind() == "release":
            not_run("a release has no fault hook")
        self.gate = folder / "gate"
        self.origin = origin
        self.server = start(
            origin,
            engine=engine,
            settings={"workers": 1, "cache.ttl": "1h"},
            env={
                "FOREBAY_DISK_FAULTS": f"read:file={self.gate}:hold,pages.gone:file={self.gate}:eio"
            },
        )

    def put(self, keys, size, headers=True):
        """Stores objects in the cache. HEADERS: their headers are in memory, too."""
        for key in keys:
            self.origin.put(key, size)
            self.read(key, size)
        self.server.durable()
        for key in keys:
            if headers:
                self.read(key, size)

    @contextlib.contextmanager
    def held(self):
        self.gate.touch()
        try:
            yield
        finally:
            self.gate.unlink(missing_ok=True)

    def read(self, key, size, first=0):
        with self.server.client() as client:
            judge(client.get(key, first or None), self.origin, key, first, size - first)

    def outrun(self):
        return sum(
            self.server.metric("forebay_hit_outrun_total", reason=reason)
            for reason in ("late", "slow")
        )


@pytest.fixture
def disk(start, origin, engine, tmp_path):
    return SlowDisk(start, origin, engine, tmp_path)


@pytest.mark.both_engines
@pytest.mark.tsan
def test_hit_comes_from_the_origin_while_the_disk_holds_it(disk, origin):
    """The origin is asked once, with the ETag of the cached version, and the bytes are not stored
    again. Afterwards the hit comes from the cache."""
    disk.put(["a"], 3 * MIB)
    stored = disk.server.metric("forebay_fills_total", state="stored")
    mark = origin.mark()
    with disk.held():
        disk.read("a", 3 * MIB)
        (request,) = origin.requests(key="a", since=mark)
        assert request.header("if-match") == origin.version("a").etag
        assert disk.outrun() == 1
    disk.server.settle()
    assert disk.server.metric("forebay_fills_total", state="stored") == stored
    mark = origin.mark()
    disk.read("a", 3 * MIB)
    assert not origin.requests(since=mark)


@pytest.mark.both_engines
@pytest.mark.parametrize("size", (1000, 100_000))
def test_headers_come_from_the_origin_while_the_disk_holds_them(disk, origin, size):
    """Not even the headers of the object are in memory. One HEAD at the origin brings them, and one
    GET the bytes. Afterwards the hit comes from the cache."""
    disk.put(["a"], size, headers=False)
    mark = origin.mark()
    with disk.held():
        with disk.server.client() as client:
            assert client.head("a").etag == origin.version("a").etag
        (request,) = origin.requests(key="a", since=mark)
        assert request.method == "HEAD"
        mark = origin.mark()
        disk.read("a", size)
        head, get = origin.requests(key="a", since=mark)
        assert (head.method, get.method) == ("HEAD", "GET")
        assert get.header("if-match") == origin.version("a").etag
    mark = origin.mark()
    disk.read("a", size)
    assert not origin.requests(since=mark)


@pytest.mark.both_engines
def test_readers_of_late_headers_share_their_requests(disk, origin):
    """Many hits whose headers the disk holds cost one HEAD and one GET."""
    disk.put(["a"], MIB, headers=False)
    mark = origin.mark()
    count = 8
    with (
        disk.held(),
        origin.hold("a", method="HEAD") as head,
        origin.hold("a", method="GET") as get,
    ):
        readers = [threading.Thread(target=disk.read, args=("a", MIB)) for _ in range(count)]
        for reader in readers:
            reader.start()
        wait_for(lambda: disk.outrun() >= count, "all ask for the version")
        head.set()
        disk.server.wait_metric("forebay_fills_total", lambda n: n >= count - 1, state="joined")
        get.set()
        for reader in readers:
            reader.join()
    assert [e.method for e in origin.requests(key="a", since=mark)] == ["HEAD", "GET"]


@pytest.mark.both_engines
def test_readers_of_the_same_blocks_share_one_request(disk, origin):
    """Many hits that the disk holds cost one request at the origin."""
    disk.put(["a"], MIB)
    mark = origin.mark()
    count = 8
    with disk.held(), origin.hold("a") as go:
        readers = [threading.Thread(target=disk.read, args=("a", MIB)) for _ in range(count)]
        for reader in readers:
            reader.start()
        disk.server.wait_metric("forebay_fills_total", lambda n: n >= count - 1, state="joined")
        go.set()
        for reader in readers:
            reader.join()
    assert len(origin.requests(key="a", since=mark)) == 1


@pytest.mark.both_engines
@pytest.mark.tsan
@pytest.mark.parametrize("headers", (True, False))
def test_disk_answers_if_the_origin_does_not(disk, origin, headers):
    """The origin holds its answer as well. The disk brings the bytes first, and the client gets
    them."""
    disk.put(["a"], MIB, headers)
    mark = origin.mark()
    with disk.held(), origin.hold("a"):
        reader = threading.Thread(target=disk.read, args=("a", MIB))
        reader.start()
        origin.wait_for(1, key="a", since=mark)
        disk.gate.unlink()
        reader.join()


@pytest.mark.both_engines
@pytest.mark.parametrize("headers", (True, False))
@pytest.mark.parametrize("word,argument", (("reset", None), ("status", 500)))
def test_failing_origin_costs_no_hit(disk, origin, word, argument, headers):
    """The origin fails when it is asked in place of the disk. The hit waits for the disk."""
    disk.put(["a"], MIB, headers)
    mark = origin.mark()
    origin.fault("a", word, argument, times=None)
    with disk.held():
        reader = threading.Thread(target=disk.read, args=("a", MIB))
        reader.start()
        origin.wait_for(1, key="a", since=mark, done=True)
        disk.gate.unlink()
        reader.join()
    assert disk.server.metric("forebay_http_responses_cut_total") == 0


@pytest.mark.both_engines
def test_hits_wait_for_the_disk_while_the_origin_is_down(disk, origin):
    """An origin in trouble is not asked in place of the disk, neither for bytes nor for headers."""
    disk.put(["a"], MIB)
    disk.put(["b"], 1000, headers=False)
    origin.put("new", 1000)
    origin.down()
    with disk.server.client() as client:
        assert client.get("new").status == 503
    disk.server.wait_condition("origin-unreachable")
    with disk.held():
        readers = [
            threading.Thread(target=disk.read, args=(key, size))
            for key, size in (("a", MIB), ("b", 1000))
        ]
        for reader in readers:
            reader.start()
        disk.server.wait_metric("forebay_http_requests_inflight", lambda n: n == 2)
        disk.gate.unlink()
        for reader in readers:
            reader.join()
    assert disk.outrun() == 0


@pytest.mark.both_engines
def test_disk_is_slow_until_a_read_comes_in_time(disk, origin):
    """After late reads in a row the condition disk-slow holds. When the disk works again, hits come
    from the cache, without a restart."""
    keys = [f"k{i}" for i in range(12)]
    disk.put(keys, 100_000)
    with disk.held():
        for key in keys:
            disk.read(key, 100_000)
        assert disk.server.metric("forebay_hit_outrun_total", reason="slow") > 0
        disk.server.wait_condition("disk-slow")

    def all_hit():
        mark = origin.mark()
        for key in keys:
            disk.read(key, 100_000)
        return not origin.requests(since=mark)

    wait_for(all_hit, "hits from the cache")


@pytest.mark.both_engines
@pytest.mark.parametrize("first,size", ((0, 40 * MIB), (3 * MIB + 7, 11 * MIB + 7)))
def test_slow_disk_costs_the_origin_one_request_as_without_a_cache(disk, origin, first, size):
    """While the disk is slow, a read of a whole object or of a range is one request, and the origin
    sends no byte more than the client wants."""
    keys = [f"k{i}" for i in range(12)]
    disk.put(keys, 100_000)
    disk.put(["a"], 40 * MIB)
    with disk.held():
        for key in keys:
            disk.read(key, 100_000)
        disk.server.wait_condition("disk-slow")
        mark = origin.mark()
        with disk.server.client() as client:
            judge(client.get("a", first, size - 1), origin, "a", first, size - first)
        (request,) = origin.requests(key="a", since=mark)
        assert request.header("if-match") == origin.version("a").etag
        assert origin.bytes_sent("a", since=mark) == size - first


@pytest.mark.both_engines
@pytest.mark.tsan
def test_reader_that_leaves_a_late_read_leaves_nothing_behind(disk, origin):
    """The client leaves while the disk and the origin hold its bytes. The next hit comes from the
    cache."""
    disk.put(["a"], MIB)
    with disk.held(), origin.hold("a"):
        with disk.server.connection() as connection:
            connection.send(b"GET /bkt/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            disk.server.wait_metric("forebay_fills_inflight", lambda n: n == 1)
        disk.server.wait_metric("forebay_fills_inflight", lambda n: n == 0)
    disk.server.settle()
    mark = origin.mark()
    disk.read("a", MIB)
    assert not origin.requests(since=mark)


@pytest.mark.both_engines
def test_reply_is_never_continued_in_another_version(disk, origin):
    """The object was overwritten at the origin, past Forebay. The origin denies the version whose
    head the client has. The body of that version comes from the disk."""
    disk.put(["a"], MIB)
    old = origin.version("a").etag
    origin.overwrite("a", MIB)
    mark = origin.mark()
    replies = []

    def read():
        with disk.server.client() as client:
            replies.append(client.get("a"))

    with disk.held():
        reader = threading.Thread(target=read)
        reader.start()
        origin.wait_for(1, key="a", since=mark, conditional=True, done=True)
        disk.gate.unlink()
        reader.join()
    assert 412 in {e.status for e in origin.requests(key="a", since=mark, conditional=True)}
    assert replies[0].etag == old
    judge(replies[0], origin, "a", 0, MIB)


@pytest.mark.both_engines
def test_server_stops_while_the_disk_holds_a_late_read(disk, origin):
    """The client has its reply from the origin. The server ends when the disk gives its read back,
    and its next process finds the object in the cache."""
    disk.put(["a"], MIB)
    with disk.held():
        disk.read("a", MIB)
        assert disk.server.metric("forebay_disk_io_inflight") >= 1
        stopper = threading.Thread(target=disk.server.stop)
        stopper.start()
        disk.server.wait_stderr('"draining"')
        disk.gate.unlink()
        stopper.join()
    disk.server.start()
    mark = origin.mark()
    disk.read("a", MIB)
    assert not origin.requests(since=mark)


@pytest.mark.both_engines
def test_long_object_comes_from_the_origin_while_the_disk_holds_it(disk, origin):
    """The reply looks into the index several times, and asks for the bytes after each part of the
    index ahead of time. It never waits for the disk."""
    disk.put(["a"], 40 * MIB)
    with disk.held():
        disk.read("a", 40 * MIB)

# SPDX-License-Identifier: Apache-2.0
"""Slow readers and slow disks do not hold up other clients."""

import base64
import contextlib
import hashlib
import threading

import pytest
from client import Truncated, judge, judge_streamed
from conftest import not_run
from disks import LoopDisk
from forebay import build_kind, parallel
from oracle import oracle_judge
from test_memory import Tree
from waiting import wait_for

MIB = 1 << 20
PLACES = 2


PASSING = {"rules": [{"match": "bkt/slow*", "cache": False}]}
FILLS_PARKED = ("forebay_fills_total", {"state": "parked"})
PASS_PARKED = ("forebay_pass_parked_total", {})


@contextlib.contextmanager
def slow_readers(server, keys, parked=FILLS_PARKED, query="", status=200):
    """Opens a connection for each key, whose reader takes the head and no more. Waits until each
    slot at the origin is free again."""
    with contextlib.ExitStack() as stack:
        readers = []
        for key in keys:
            connection = stack.enter_context(server.connection(receive_buffer=65536))
            connection.send(f"GET /bkt/{key}{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            reply = connection.read_head()
            assert reply.status == status
            readers.append((connection, reply))
        name, labels = parked
        server.wait_metric(name, lambda n: n >= len(keys), **labels)
        yield readers


@pytest.mark.tsan
def test_slow_readers_give_their_slots_at_the_origin_back(start, origin, engine):
    """With as many slow readers as slots at the origin, other clients' misses are served. The slow
    ones then get all of their version, by conditional requests for the rest."""
    server = start(
        origin,
        engine=engine,
        settings={
            "workers": 1,
            "origin.connections": PLACES,
            "cache.max_object_size": "4MiB",
        },
    )
    keys = [f"slow{i}" for i in range(PLACES)]
    size = 24 * MIB
    for key in keys:
        origin.put(key, size)
    for i in range(8):
        origin.put(f"fast{i}", MIB)
    with slow_readers(server, keys) as readers:
        with server.client() as client:
            for i in range(8):
                judge(client.get(f"fast{i}"), origin, f"fast{i}", 0, MIB)
        for key, (connection, reply) in zip(keys, readers):
            judge_streamed(connection, origin, key, 0, size, head=reply)
    for key in keys:
        first, *rest = origin.requests(key=key)
        assert rest and all(r.header("if-match") and r.header("range") for r in rest), rest
        assert len(rest) < 40, "a request for each piece of a window, not for each chunk"
    assert server.metric("forebay_fills_total", state="failed") == 0


def test_an_object_that_changes_while_its_reader_is_slow_is_cut(start, origin, engine):
    """If an object changes while its reader is slow, the reader gets bytes of the version that its
    reply began with, or a cut."""
    server = start(
        origin,
        engine=engine,
        settings={
            "workers": 1,
            "origin.connections": PLACES,
            "cache.max_object_size": "4MiB",
        },
    )
    size = 24 * MIB
    old = origin.put("slow0", size)
    with slow_readers(server, ["slow0"]) as [(connection, reply)]:
        origin.overwrite("slow0", size)
        with pytest.raises(Truncated) as cut:
            connection.read_body(size, reply)
    body = bytes(cut.value.reply.body)
    assert 0 < len(body) < size
    oracle_judge(origin.name("slow0"), body, 0, old)


def test_deletes_time_out_while_no_sync_ends(start, origin, engine, tmp_path):
    """No sync ends, so no delete becomes durable.

    A client whose object was found changed at the origin gets the new version when the delete is
    late. So do later clients, who do not wait while the disk hangs. None of that time counts as the
    origin's. Then Forebay refuses a write before the origin sees it, unless the disk has the note
    that its bucket is written to. When the disk goes on, all of this ends.
    """
    if build_kind() == "release":
        not_run("a release has no fault hook")
    gate = tmp_path / "gate"
    server = start(
        origin,
        engine=engine,
        ahead_s=0,
        settings={"cache.ttl": "1h"},
        env={"FOREBAY_DISK_FAULTS": f"sync:file={gate}:hold"},
    )
    for key in ("over", "next", "written", "behind"):
        origin.put(key, 1000)
    read_all(server, origin, ("over", "next", "written"), 1000)
    server.durable()
    gate.touch()
    read_all(server, origin, ("behind",), 1000)  # all others wait for its sync
    server.settle()
    new = origin.overwrite("over", 1000)
    origin.overwrite("next", 1000)
    mark = origin.mark()
    write = b"PUT /bkt/written HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3\r\n\r\nnew"
    read = b"GET /bkt/over HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    with server.connection() as checks, server.connection() as reads:
        checks.send(read + b"Cache-Control: no-cache\r\n\r\n")
        server.wait_metric("forebay_invalidations_total", lambda n: n >= 1, of="key")
        reads.send(read + b"\r\n")
        server.wait_metric("forebay_http_requests_inflight", lambda n: n == 2)
        server.advance(3)
        for connection in (checks, reads):
            reply = connection.read_reply()
            assert reply.status == 200, reply
            oracle_judge(origin.name("over"), reply.body, 0, new)
    with server.client() as client:
        for headers in ([("Cache-Control", "no-cache")], []):
            judge(client.get("next", headers=headers), origin, "next", 0, 1000, version=2)

    def waits():
        return [e.get("origin_ms", 0) for e in server.access_log() if e.get("key") == "over"]

    wait_for(lambda: len(waits()) == 3, "the access log")
    assert max(waits()) < 3000, waits()

    def written():
        with server.connection() as writes:
            writes.send(write)
            server.wait_metric("forebay_http_requests_inflight", lambda n: n == 1)
            for _ in range(4):  # two waits before the origin is asked, and two after that
                if server.metric("forebay_http_requests_inflight") == 1:
                    server.advance(25)
            return writes.read_reply().status

    in_the_way = server.cache / "format.new"
    in_the_way.mkdir()  # so the note fails
    assert written() == 503
    assert server.metric("forebay_limit_reached_total", limit="index-delete-time") >= 2
    assert not origin.requests(key="written", since=mark, method="PUT")
    in_the_way.rmdir()
    assert written() == 200
    assert origin.requests(key="written", since=mark, method="PUT")
    gate.unlink()
    with server.connection() as writes:
        writes.send(write)
        assert writes.read_reply().status == 200
    with server.client() as client:
        assert bytes(client.get("written").body) == b"new"


def misses_are_served(server, origin):
    with server.client(timeout=20) as client:
        for i in range(8):
            judge(client.get(f"fast{i}"), origin, f"fast{i}", 0, MIB)


@pytest.mark.tsan
@pytest.mark.parametrize("part", (None, 2))
def test_slow_readers_past_the_cache_give_their_slots_back(start, origin, engine, part):
    """Slow clients read whole objects and parts past the cache. Neither misses nor other relayed
    reads wait for them. They get all of their version, by conditional requests for the rest."""
    server = start(
        origin,
        engine=engine,
        file=PASSING,
        settings={"workers": 1, "origin.connections": PLACES},
    )
    sizes = [5 * MIB + 7, 24 * MIB]
    keys = [f"slow{i}" for i in range(PLACES)]
    for key in keys:
        origin.put(key, sum(sizes), parts=sizes)
    for i in range(8):
        origin.put(f"fast{i}", MIB)
    query, first, status = ("", 0, 200) if part is None else (f"?partNumber={part}", sizes[0], 206)
    with slow_readers(server, keys, PASS_PARKED, query, status) as readers:
        misses_are_served(server, origin)
        with server.client(timeout=20) as client:
            assert client.head("slow0").status == 200
        for key, (connection, reply) in zip(keys, readers):
            judge_streamed(connection, origin, key, first, sum(sizes) - first, head=reply)
    for key in keys:
        asked, *rest = origin.requests(key=key, method="GET")
        assert asked.header("range") is None and rest
        assert all(r.header("if-match") and r.header("range") for r in rest), rest
        assert len(rest) < 40, "a request for each piece"
    server.wait_metric("forebay_cache_objects", lambda n: n == 8)


def test_a_directory_s_slow_readers_past_the_cache(start, engine, tmp_path):
    """The same holds for a `dir:` origin."""
    tree = Tree(tmp_path / "tree")
    for i in range(PLACES):
        tree.put(f"slow{i}", 24 * MIB)
    for i in range(8):
        tree.put(f"fast{i}", MIB)
    server = start(
        tree,
        engine=engine,
        ahead_s=3,
        file=PASSING,
        settings={"workers": 1, "origin.connections": PLACES},
    )
    keys = [f"slow{i}" for i in range(PLACES)]
    with slow_readers(server, keys, PASS_PARKED) as readers:
        misses_are_served(server, tree)
        for key, (connection, reply) in zip(keys, readers):
            judge_streamed(connection, tree, key, 0, 24 * MIB, head=reply)


def test_an_object_past_the_cache_that_changes_while_its_reader_is_slow_is_cut(
    start, origin, engine
):
    server = start(
        origin,
        engine=engine,
        file=PASSING,
        settings={"workers": 1, "origin.connections": PLACES},
    )
    size = 24 * MIB
    old = origin.put("slow0", size)
    with slow_readers(server, ["slow0"], PASS_PARKED) as [(connection, reply)]:
        origin.overwrite("slow0", size)
        with pytest.raises(Truncated) as cut:
            connection.read_body(size, reply)
    body = bytes(cut.value.reply.body)
    assert 0 < len(body) < size
    oracle_judge(origin.name("slow0"), body, 0, old)


def test_slow_uploads_leave_a_slot_to_misses(start, origin, engine):
    """An upload cannot be repeated, so a slow one keeps its slot at the origin. Uploads never take
    all slots."""
    server = start(origin, engine=engine, settings={"workers": 1, "origin.connections": PLACES})
    for i in range(8):
        origin.put(f"fast{i}", MIB)
    body = b"slow" * 1000
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(server.connection()) for _ in range(PLACES)]
        for i, writer in enumerate(writers):
            writer.send(
                f"PUT /bkt/up{i} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body[:100]
            )
        origin.wait_for(1, method="PUT")
        server.wait_metric("forebay_writes_inflight", lambda v: v == PLACES)
        misses_are_served(server, origin)
        for writer in writers:
            writer.send(body[100:])
        for i, writer in enumerate(writers):
            assert writer.read_reply().status == 200
            assert origin.bytes_of(f"up{i}", 0, len(body)) == body


@pytest.mark.parametrize("kind", ("s3", "dir"))
def test_a_wait_for_a_slot_ends_with_an_error(start, origin, engine, kind, tmp_path):
    """The only slot is taken by a request that does not advance. Another miss is refused after its
    timeout."""
    if build_kind() == "release":
        not_run("a release has no movable clock")
    held = tmp_path / "held"
    source = origin if kind == "s3" else Tree(tmp_path / "tree")
    for key in ("first", "second"):
        source.put(key, 1000)
    server = start(
        source,
        engine=engine,
        ahead_s=3 if kind == "dir" else 0,
        env={"FOREBAY_DISK_FAULTS": f"read:file={held}:hold"},
        settings={
            "workers": 1,
            "origin.connections": 1,
            "origin.first_byte_timeout": "10m",
        },
    )
    requests = [
        f"GET /bkt/{key} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
        for key in ("first", "second")
    ]
    with (
        server.connection() as first,
        server.connection() as second,
        contextlib.ExitStack() as stack,
    ):
        if kind == "s3":
            stack.enter_context(origin.hold("first"))
        else:
            held.touch()
            stack.callback(held.unlink)
        first.send(requests[0])
        server.wait_metric("forebay_fills_inflight", lambda v: v == 1)
        second.send(requests[1])
        server.wait_metric("forebay_fills_inflight", lambda v: v == 2)
        server.advance(31)
        reply = second.read_reply()
        assert (reply.status, reply.code) == (
            503,
            "SlowDown",
        ) and b"origin.connections" in reply.body
        assert server.metric("forebay_origin_waits_timed_out_total") == 1
        stack.close()
        reply = first.read_reply()
        assert reply.status == 200
        oracle_judge(source.name("first"), reply.body, 0)


def read_all(server, origin, keys, size):
    with server.client() as client:
        for key in keys:
            judge(client.get(key), origin, key, 0, size)


@pytest.mark.both_engines
def test_a_frozen_file_system_holds_up_no_read(start, origin, engine, tmp_path):
    """While the file system of the cache takes no write, every worker serves hits and misses, and
    the server counts as alive. It stores again when the file system takes writes."""
    with LoopDisk(tmp_path / "disk", 128 * MIB) as disk:
        server = start(
            origin,
            engine=engine,
            cache=disk.mount / "cache",
            settings={"cache.size": "64MiB", "cache.ttl": "1h", "workers": 2},
        )
        held, new = [f"held{i}" for i in range(8)], [f"new{i}" for i in range(8)]
        for key in [*held, *new, "after"]:
            origin.put(key, MIB)
        read_all(server, origin, held, MIB)
        server.durable()
        with disk.frozen():
            for keys in (held, new, held):
                parallel(8, lambda i: read_all(server, origin, keys[i:] + keys[:i], MIB))
            assert all(len(origin.requests(key=key)) == 1 for key in held)
            assert server.admin("/livez").status == 200
            assert "worker-stuck" not in server.conditions()

        def stores():
            mark = origin.mark()
            read_all(server, origin, ["after"], MIB)
            return not origin.requests(since=mark)

        wait_for(stores, server.output)
        read_all(server, origin, held + new, MIB)
        server.stop()


@pytest.mark.both_engines
def test_a_disk_that_never_returns_is_a_condition(start, origin, engine, tmp_path):
    """Writes that neither succeed nor fail are named after ten seconds, until they return."""
    if build_kind() == "release":
        not_run("a release has no fault hook")
    gate = tmp_path / "gate"
    gate.touch()
    server = start(
        origin,
        engine=engine,
        ahead_s=0,
        env={
            "FOREBAY_DISK_FAULTS": f"write:file={gate}:hold",
            "FOREBAY_TEST_STEADY": "0",
        },
    )
    origin.put("a", MIB)
    read_all(server, origin, ["a"], MIB)
    server.wait_metric("forebay_cache_write_backlog_bytes", lambda v: v > 0)
    assert "disk-stuck" not in server.conditions()
    server.advance(11)
    server.wait_condition("disk-stuck")
    row = server.condition_rows()["disk-stuck"]
    assert row["severity"] == "critical" and "frozen" in row["remedy"], row
    assert str(server.cache) in row["text"], row
    gate.unlink()
    server.wait_condition("disk-stuck", holds=False)


@pytest.mark.both_engines
def test_a_frozen_file_system_holds_up_no_write(start, origin, engine, tmp_path):
    """No upload waits for a disk that stands still, not even one to a cached key of a bucket that
    was written to before. The store's own calls make a condition, too."""
    with LoopDisk(tmp_path / "disk", 128 * MIB) as disk:
        server = start(
            origin,
            engine=engine,
            ahead_s=0,
            cache=disk.mount / "cache",
            settings={"cache.size": "64MiB"},
            env={"FOREBAY_TEST_STEADY": "0"},
        )
        origin.make_bucket("noted")
        keys = [f"k{i}" for i in range(3)]
        for key in keys:
            origin.put(key, 1000, "noted")
        with server.client(bucket="noted") as client:
            assert client.request("PUT", "/noted/first", body=b"x").status == 200
            for key in keys:
                assert len(client.get(key).body) == 1000
        server.durable()
        with server.client(bucket="noted") as client:
            with disk.frozen():
                for i in range(4):
                    assert client.request("PUT", f"/bkt/new{i}", body=b"x").status == 200
                late = "forebay_limit_reached_total"
                assert server.metric(late, limit="write-note-time") == 4
                for key in keys:
                    assert client.request("PUT", f"/noted/{key}", body=b"new").status == 200
                    assert client.get(key).body == b"new"
                assert server.metric(late, limit="write-note-time") == 4
                server.advance(11)
                server.wait_condition("disk-stuck")
            server.wait_condition("disk-stuck", holds=False)
        server.stop()


@pytest.mark.both_engines
@pytest.mark.tsan
def test_a_hanging_disk_holds_up_nobody(start, origin, engine, tmp_path):
    """No write ends while clients read cold objects of several times the write backlog.

    Every byte arrives, unstored runs are counted, and memory stays within its limit. When the disk
    goes on, the started runs are stored. The others are stored when they are read again.
    """
    if build_kind() == "release":
        not_run("a release has no fault hook")
    gate = tmp_path / "gate"
    gate.touch()
    server = start(
        origin,
        engine=engine,
        settings={"workers": 1, "limits.max_buffer": "64MiB", "cache.ttl": "1h"},
        env={"FOREBAY_DISK_FAULTS": f"write:file={gate}:hold"},
    )
    count, size = 24, 8 * MIB
    keys = [f"cold{i}" for i in range(count)]
    for key in keys:
        origin.put(key, size)
    read_all(server, origin, keys, size)
    busy = server.metric("forebay_cache_admission_rejected_total", reason="disk-busy")
    assert busy > 0
    assert server.metric("forebay_fills_total", state="unstored") >= busy - 1
    assert server.metric("forebay_fills_total", state="stored") == 0
    assert server.metric("forebay_cache_write_backlog_bytes") <= 40 * MIB
    assert server.metric("forebay_buffer_peak_bytes") <= 72 * MIB
    gate.unlink()
    server.settle()
    begun = server.metric("forebay_fills_total", state="stored")
    assert begun > 0, "what had begun is finished"
    for _ in range(8):
        mark = origin.mark()
        read_all(server, origin, keys, size)
        server.settle()
        if not any(origin.requests(key=key, since=mark, method="GET") for key in keys):
            break
    else:
        pytest.fail("what was skipped is not stored later")


@pytest.mark.both_engines
def test_pages_that_are_gone_while_the_disk_stands_still_cut_nobody(
    start, origin, engine, tmp_path
):
    """The written part of a run has left memory, and the disk accepts no more. A slow reader of the
    run does not wait for the disk, and is not sent back and forth until it is cut."""
    if build_kind() == "release":
        not_run("a release has no fault hook")
    size, come = 16 * MIB, 12 * MIB
    gate = tmp_path / "gate"
    server = start(
        origin,
        engine=engine,
        settings={
            "workers": 1,
            "cache.block_size": "16MiB",
            "limits.max_buffer": "64MiB",
            "cache.ttl": "1h",
        },
        env={"FOREBAY_DISK_FAULTS": f"write:file={gate}:hold,pages.gone:file={gate}:eio"},
    )
    origin.put("a", size)
    go = threading.Event()
    origin.fault("a", "hold_at", (come, go))
    with server.connection(receive_buffer=65536) as connection:
        connection.send(b"GET /bkt/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        reply = connection.read_head()
        server.wait_metric("forebay_origin_received_bytes_total", lambda n: n >= come)
        server.wait_metric("forebay_cache_write_backlog_bytes", lambda n: n < MIB)
        gate.touch()
        go.set()
        server.wait_metric("forebay_origin_received_bytes_total", lambda n: n >= size)
        oracle_judge(
            origin.name("a"),
            connection.read_body(size, reply),
            0,
            origin.number_of("a", reply.etag),
        )
        assert server.metric("forebay_http_responses_cut_total") == 0
        gate.unlink()


@contextlib.contextmanager
def nothing_read_back(server):
    """No block is read back for verification before the block's end. The exception is a worker that
    reads from a device itself, as for a page of the program that the kernel had dropped. The kernel
    counts a thread's reads, not their files, so the worker then verifies pages again
    (loop/file_send.c)."""
    before = server.device_reads("worker-")
    yield
    read = server.metric("forebay_hit_blocks_total", path="read")
    assert read == 0 or server.device_reads("worker-") > before


@pytest.mark.both_engines
@pytest.mark.tsan
def test_a_reader_behind_its_run_goes_on_from_our_own_pages(start, origin, engine):
    """The origin stalls inside a run whose reader takes nothing until then. Memory keeps the
    reader's share. It then gets all that has arrived, from written pages: nothing is fetched, read
    or verified twice."""
    size, come = 16 * MIB, 12 * MIB
    server = start(
        origin,
        engine=engine,
        settings={
            "workers": 1,
            "cache.block_size": "16MiB",
            "limits.max_buffer": "64MiB",
            "cache.ttl": "1h",
        },
    )
    origin.put("a", size)
    go = threading.Event()
    origin.fault("a", "hold_at", (come, go))
    with (
        nothing_read_back(server),
        server.connection(receive_buffer=65536) as connection,
    ):
        connection.send(b"GET /bkt/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        reply = connection.read_head()
        server.wait_metric("forebay_origin_received_bytes_total", lambda n: n >= come)
        server.wait_metric("forebay_cache_write_backlog_bytes", lambda n: n < MIB)
        version = origin.number_of("a", reply.etag)
        oracle_judge(origin.name("a"), connection.read_body(come - MIB, reply), 0, version)
        go.set()
        oracle_judge(
            origin.name("a"),
            connection.read_body(size - come + MIB, reply),
            come - MIB,
            version,
        )
    server.settle()
    assert len(origin.requests(key="a")) == 1
    assert server.metric("forebay_fill_readers_detached_total") >= 1
    assert server.metric("forebay_hit_blocks_total", path="sendfile") >= 4


def begun(stack, server, key, path=None):
    """Opens a connection that has read the head of KEY's reply and takes little more. STACK closes
    it. The kernel keeps megabytes for a TCP client that does not read, but only some 200 KiB for
    one of the unix socket PATH."""
    connection = stack.enter_context(server.connection(receive_buffer=65536, path=path))
    connection.send(f"GET /bkt/{key} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    return connection, connection.read_head()


@pytest.mark.both_engines
def test_many_readers_behind_their_runs_cost_nothing_twice(start, origin, engine, tmp_path):
    """Each connection asks for more than may be queued for it, and takes nothing until all is
    stored. Then it gets its object: no byte came twice, and none was read back for verification."""
    count, size = (
        8,
        2 * MIB,
    )  # no more than may wait for the disk: a quarter of the memory
    path = str(tmp_path / "socket")
    server = start(
        origin,
        engine=engine,
        settings={
            "workers": 1,
            "listen": f"127.0.0.1:0,unix:{path}",
            "limits.max_buffer": "64MiB",
            "cache.ttl": "1h",
        },
    )
    keys = [f"many{i}" for i in range(count)]
    for key in keys:
        origin.put(key, size)
    with contextlib.ExitStack() as stack:
        readers = [begun(stack, server, key, path) for key in keys]
        server.settle()
        assert server.metric("forebay_fills_total", state="stored") == count
        assert server.metric("forebay_fill_readers_detached_total") == count
        with nothing_read_back(server):
            for key, (connection, reply) in zip(keys, readers):
                judge_streamed(connection, origin, key, 0, size, head=reply)
    assert all(len(origin.requests(key=key)) == 1 for key in keys)


def log_line(server, key):
    return server.access_log(wait_for=lambda e: e.get("key") == key and "error" in e)[-1]


def test_a_reader_of_a_hit_may_pause_for_minutes_and_is_cut_after_ten(start, origin, engine):
    """A training job that pauses between two reads for validation gets the rest. A reader that
    never goes on is cut, and the access log says ClientSlow."""
    server = start(origin, engine=engine, settings={"workers": 1, "cache.ttl": "1h"}, ahead_s=0)
    keys = ["pauses", "stops"]
    with server.client() as client:
        for key in keys:
            origin.put(key, 24 * MIB)
            judge(client.get(key), origin, key, 0, 24 * MIB)
    server.settle()
    with contextlib.ExitStack() as stack:
        readers = [begun(stack, server, key) for key in keys]
        (pauses, reply), (stops, stopped) = readers
        server.advance(200)
        server.wait_metric("forebay_http_slow_readers_kept_total", lambda n: n >= 2)
        asked = len(origin.requests())
        judge_streamed(pauses, origin, "pauses", 0, 24 * MIB, head=reply)
        server.advance(700)
        server.wait_metric("forebay_http_timeouts_total", lambda n: n == 1, reason="rate")
        line = log_line(server, "stops")
        assert (line["error"], line["status"], line["result"]) == (
            "ClientSlow",
            200,
            "hit",
        ), line
        with pytest.raises(Truncated):
            stops.read_body(24 * MIB, stopped)
    assert len(origin.requests()) == asked
    assert all("error" not in line for line in server.access_log() if line.get("key") == "pauses")


def test_an_upload_that_stalls_is_cut_after_half_a_minute(start, origin):
    """An upload that stalls is cut, because it holds a connection of the origin. The log says that
    the client was slow, not that it left."""
    server = start(origin, settings={"workers": 1}, ahead_s=0)
    with server.connection() as connection:
        connection.send(
            b"PUT /bkt/up HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\nfirst"
        )
        server.wait_metric("forebay_http_requests_inflight", lambda n: n >= 1)
        server.advance(40)
        server.wait_metric("forebay_http_timeouts_total", lambda n: n == 1, reason="rate")
        assert log_line(server, "up")["error"] == "ClientSlow"
    with server.connection() as connection:
        connection.send(
            b"PUT /bkt/left HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\nfirst"
        )
        server.wait_metric("forebay_http_requests_inflight", lambda n: n >= 1)
        connection.reset()
        assert log_line(server, "left")["error"] == "ClientGone"
    assert server.metric("forebay_http_slow_readers_kept_total") == 0
    with server.client() as client:
        assert client.head("up").status == client.head("left").status == 404


@pytest.mark.both_engines
def test_readers_that_hold_evicted_segments_are_cut_after_half_a_minute(start, origin, engine):
    """The space of an evicted segment is free when its last reader has left. When paused readers
    hold a quarter of the segments, they get half a minute instead of ten. Then the whole cache
    serves the others again."""
    size, count = 7200 << 10, 8  # more than the kernel keeps for a reader
    server = start(
        origin,
        engine=engine,
        ahead_s=0,
        env={"FOREBAY_SEGMENT_SIZE": str(8 * MIB)},
        settings={
            "workers": 1,
            "cache.ttl": "1h",
            "cache.size": "128MiB",
            "cache.block_size": "64KiB",
            "cache.policy": "lru",
            "cache.readahead": 0,
            "limits.max_buffer": "4MiB",
        },
    )
    held, new = [f"held{i}" for i in range(count)], [f"new{i}" for i in range(count)]
    for key in held + new:
        origin.put(key, size)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(server.client())

        def read(keys):
            for key in keys:
                judge(client.get(key), origin, key, 0, size)
                server.settle()

        def is_cached(keys):
            mark = origin.mark()
            read(keys)
            return not origin.requests(since=mark)

        wait_for(lambda: is_cached(held), lambda: f"all of them fit: {server.metrics()}")
        for key in held:
            connection = stack.enter_context(server.connection(receive_buffer=16384))
            connection.send(f"GET /bkt/{key} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            assert "hit" in connection.read_head().header("cache-status")
        for _ in range(4):
            read(new)
        assert not is_cached(new), "readers hold what is evicted"
        server.advance(40)
        server.wait_metric("forebay_http_timeouts_total", lambda n: n >= 1, reason="rate")
        wait_for(lambda: is_cached(new), lambda: f"all of them fit: {server.metrics()}")
    assert server.metric("forebay_http_slow_readers_kept_total") < count


@pytest.mark.parametrize(
    "buffer,is_short", [("16MiB", True), ("256MiB", False)], ids=["short", "ample"]
)
def test_bodies_that_are_collected_must_come_faster_while_their_memory_is_short(
    start, origin, buffer, is_short
):
    """A batch delete of 2 MiB counts as soon as it begins, and others are refused while it holds
    their share. One that arrives at 2.5 KiB/s, above limits.min_rate, is then cut after half a
    minute."""
    server = start(origin, ahead_s=0, settings={"workers": 1, "limits.max_buffer": buffer})
    body = b"<Delete><Object><Key>one</Key></Object></Delete>"
    header = "Content-MD5: " + base64.b64encode(hashlib.md5(body).digest()).decode()
    other = (
        f"POST /bkt?delete HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"{header}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    with server.connection() as slow:
        slow.send(
            b"POST /bkt?delete HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2097152\r\n\r\n"
            + b" " * 100_000
        )
        server.wait_metric("forebay_buffer_bytes", lambda n: n >= 4 * MIB, kind="bodies")
        server.wait_metric("forebay_http_requests_inflight", lambda n: n >= 1)
        with server.connection() as quick:
            quick.send(other)
            assert quick.read_head().status == (503 if is_short else 200)
        server.advance(40)

        def is_cut(count):
            with contextlib.suppress(OSError):
                slow.send(b" " * 1500)
            return count == 1

        if is_short:
            server.wait_metric("forebay_http_timeouts_total", is_cut, reason="rate")
            server.wait_metric("forebay_buffer_bytes", lambda n: n == 0, kind="bodies")
        with server.connection() as quick:
            quick.send(other)
            assert quick.read_head().status == 200
    assert server.metric("forebay_http_timeouts_total", reason="rate") == (1 if is_short else 0)

# SPDX-License-Identifier: Apache-2.0
"""Slow readers and slow disks: neither is in the way of anybody else."""
import contextlib
import threading

import pytest
from client import Truncated, judge, judge_streamed
from conftest import not_run
from forebay import build_kind
from oracle import oracle_judge

MIB = 1 << 20
PLACES = 2


@contextlib.contextmanager
def slow_readers(server, keys):
    """A connection for each key whose reader has taken the head and no more, and its place has gone back."""
    with contextlib.ExitStack() as stack:
        readers = []
        for key in keys:
            connection = stack.enter_context(server.connection(receive_buffer=65536))
            connection.send(f"GET /bkt/{key} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            reply = connection.read_head()
            assert reply.status == 200
            readers.append((connection, reply))
        server.wait_metric("forebay_fills_total", lambda n: n >= len(keys), state="parked")
        yield readers


@pytest.mark.tsan
def test_slow_readers_give_their_places_at_the_origin_back(start, origin, engine):
    """As many slow readers as places: somebody else's misses are served. The slow ones then get all
    of their version, by conditional requests for what is missing."""
    server = start(origin, engine=engine, settings={
        "workers": 1, "origin.connections": PLACES, "cache.max_object_size": "4MiB"})
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
    """What is asked for later is of the version that the reply began with, or nothing."""
    server = start(origin, engine=engine, settings={
        "workers": 1, "origin.connections": PLACES, "cache.max_object_size": "4MiB"})
    size = 24 * MIB
    old = origin.put("slow0", size)
    with slow_readers(server, ["slow0"]) as [(connection, reply)]:
        origin.overwrite("slow0", size)
        with pytest.raises(Truncated) as cut:
            connection.read_body(size, reply)
    body = bytes(cut.value.reply.body)
    assert 0 < len(body) < size
    oracle_judge(origin.name("slow0"), body, 0, old)


def test_nobody_waits_for_ever_for_a_delete(start, origin, engine, tmp_path):
    """Not one sync ends: who was told by the origin that its object is another one gets that after a while, and who
    comes later too; a write is refused before the origin hears of it. All is well when the disk goes on."""
    if build_kind() == "release":
        not_run("a release has no fault hook")
    gate = tmp_path / "gate"
    server = start(origin, engine=engine, ahead_s=0, settings={"cache.ttl": "1h"},
                   env={"FOREBAY_DISK_FAULTS": f"sync:file={gate}:hold"})
    for key in ("over", "written", "behind"):
        origin.put(key, 1000)
    read_all(server, origin, ("over", "written"), 1000)
    server.wait_metric("forebay_buffer_bytes", lambda n: n == 0, kind="runs")
    gate.touch()
    read_all(server, origin, ("behind",), 1000)     # its sync is what all others wait for
    server.settle()
    new = origin.overwrite("over", 1000)
    mark = origin.mark()
    write = b"PUT /bkt/written HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3\r\n\r\nnew"
    read = b"GET /bkt/over HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    with server.connection() as checks, server.connection() as reads, server.connection() as writes:
        checks.send(read + b"Cache-Control: no-cache\r\n\r\n")
        writes.send(write)
        server.wait_metric("forebay_invalidations_total", lambda n: n >= 2)
        reads.send(read + b"\r\n")
        server.wait_metric("forebay_http_requests_inflight", lambda n: n == 3)
        server.advance(25)
        for connection in (checks, reads):
            reply = connection.read_reply()
            assert reply.status == 200, reply
            oracle_judge(origin.name("over"), reply.body, 0, new)
        assert writes.read_reply().status == 503
    assert server.metric("forebay_index_deletes_late_total") >= 2
    assert not origin.requests(key="written", since=mark, method="PUT")
    gate.unlink()
    with server.connection() as writes:
        writes.send(write)
        assert writes.read_reply().status == 200
    with server.client() as client:
        assert bytes(client.get("written").body) == b"new"


def read_all(server, origin, keys, size):
    with server.client() as client:
        for key in keys:
            judge(client.get(key), origin, key, 0, size)


@pytest.mark.tsan
def test_a_disk_that_stands_still_is_in_nobodys_way(start, origin, engine, tmp_path):
    """Not one write ends while cold objects of several times the backlog are read: every byte comes,
    what is not stored is counted, and memory stays within its limit. When the disk moves again what had
    begun is stored; the rest is stored when it is read the next time."""
    if build_kind() == "release":
        not_run("a release has no fault hook")
    gate = tmp_path / "gate"
    gate.touch()
    server = start(origin, engine=engine,
                   settings={"workers": 1, "limits.max_buffer": "64MiB", "cache.ttl": "1h"},
                   env={"FOREBAY_DISK_FAULTS": f"write:file={gate}:hold"})
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


@pytest.mark.tsan
def test_a_reader_behind_its_run_goes_on_from_our_own_pages(start, origin, engine):
    """The origin stands still inside a run, whose reader takes nothing until then: memory keeps its share
    for it. It then gets all that has come, from pages that were written: nothing is asked for, read or
    checked a second time."""
    size, come = 16 * MIB, 12 * MIB
    server = start(origin, engine=engine, settings={
        "workers": 1, "cache.block_size": "16MiB", "limits.max_buffer": "64MiB", "cache.ttl": "1h"})
    origin.put("a", size)
    go = threading.Event()
    origin.fault("a", "hold_at", (come, go))
    with server.connection(receive_buffer=65536) as connection:
        connection.send(b"GET /bkt/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        reply = connection.read_head()
        server.wait_metric("forebay_origin_received_bytes_total", lambda n: n >= come)
        server.wait_metric("forebay_cache_write_backlog_bytes", lambda n: n < MIB)
        version = origin.number_of("a", reply.etag)
        oracle_judge(origin.name("a"), connection.read_body(come - MIB, reply), 0, version)
        go.set()
        oracle_judge(origin.name("a"), connection.read_body(size - come + MIB, reply), come - MIB, version)
    server.settle()
    assert len(origin.requests(key="a")) == 1
    assert server.metric("forebay_fill_readers_detached_total") >= 1
    assert server.metric("forebay_hit_blocks_total", path="sendfile") >= 4
    assert server.metric("forebay_hit_blocks_total", path="read") == 0


def test_many_readers_behind_their_runs_cost_nothing_twice(start, origin, engine):
    """Each connection asks for more than may be queued for it and takes nothing until all is stored. Then it
    gets its object: no byte came twice, none was read back to be checked."""
    count, size = 8, 2 * MIB            # no more than may wait for the disk: a quarter of the memory
    server = start(origin, engine=engine, settings={
        "workers": 1, "limits.max_buffer": "64MiB", "cache.ttl": "1h"})
    keys = [f"many{i}" for i in range(count)]
    for key in keys:
        origin.put(key, size)
    with contextlib.ExitStack() as stack:
        readers = []
        for key in keys:
            connection = stack.enter_context(server.connection(receive_buffer=65536))
            connection.send(f"GET /bkt/{key} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            readers.append((connection, connection.read_head()))
        server.settle()
        assert server.metric("forebay_fills_total", state="stored") == count
        assert server.metric("forebay_fill_readers_detached_total") == count
        for key, (connection, reply) in zip(keys, readers):
            judge_streamed(connection, origin, key, 0, size, head=reply)
    assert all(len(origin.requests(key=key)) == 1 for key in keys)
    assert server.metric("forebay_hit_blocks_total", path="read") == 0

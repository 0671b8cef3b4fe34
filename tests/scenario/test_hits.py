# SPDX-License-Identifier: Apache-2.0
"""The bytes that count as hits. The metrics, `status`, the counts by bucket and the access log
agree."""

import threading

import pytest
from client import judge, judge_streamed
from forebay import parallel, read_in_parallel
from oracle import oracle_judge
from test_control import ask

MIB = 1 << 20
SIZE = 20 * MIB


def read_whole(server, origin, key, size):
    with server.connection() as connection:
        connection.send(f"GET /bkt/{key} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        judge_streamed(connection, origin, key, 0, size)


def sources(server, total):
    """Returns (bytes from here, bytes of the origin) once TOTAL bytes have been counted. Checks
    that all figures are of these bytes."""
    name = "forebay_http_response_bytes_total"
    server.wait_metric(name, lambda v: v == total)
    from_origin = server.metric(name, source="origin")
    from_here = total - from_origin
    bucket = "forebay_bucket_response_bytes_total"
    assert server.metric(bucket, bucket="bkt") == total
    assert server.metric(bucket, bucket="bkt", source="origin") == from_origin
    status = ask(server, "status")[-1]
    assert status["served_origin_bytes"] == from_origin
    assert status["served_memory_bytes"] + status["served_disk_bytes"] == from_here
    assert abs(status["byte_hit_ratio"] - from_here / total) < 1e-6
    return from_here, from_origin


def logged(server, key, count):
    """Returns result and source of the first COUNT requests for KEY."""

    def lines():
        found = [e for e in server.access_log() if e.get("key") == key and e["op"] == "GetObject"]
        return [(e["result"], "origin" if e["source"] == "origin" else "here") for e in found]

    server.access_log(wait_for=lambda e: len(lines()) >= count)
    return lines()[:count]


def test_the_first_read_is_the_origins_and_the_second_is_a_hit(start, origin, engine):
    server = start(origin, engine=engine)
    origin.put("a", SIZE)
    read_whole(server, origin, "a", SIZE)
    assert sources(server, SIZE) == (0, SIZE)
    assert server.metric("forebay_readahead_bytes_total") > 0
    server.settle()
    read_whole(server, origin, "a", SIZE)
    assert sources(server, 2 * SIZE) == (SIZE, SIZE)
    assert logged(server, "a", 2) == [("miss", "origin"), ("hit", "here")]
    assert origin.bytes_sent("a") == SIZE


def test_warmed_bytes_are_hits_from_the_first_read_on(start, origin, engine):
    server = start(origin, engine=engine)
    origin.put("w", SIZE)
    assert ask(server, "warm", "s3://bkt/w", "--wait", "-q")[-1]["bytes_fetched"] == SIZE
    read_whole(server, origin, "w", SIZE)
    assert sources(server, SIZE) == (SIZE, 0)
    assert logged(server, "w", 1) == [("hit", "here")]
    assert origin.bytes_sent("w") == SIZE


def test_warmed_bytes_that_read_ahead_comes_to_are_hits(start, origin, engine, tmp_path):
    """The first half of an object is cold. Read-ahead goes on to the other half, which is warm."""
    server = start(origin, engine=engine)
    origin.put("half", 2 * SIZE)
    names = tmp_path / "names"
    names.write_text(f"s3://bkt/half {SIZE}-{2 * SIZE - 1}\n")
    ask(server, "warm", "-f", str(names), "--wait", "-q")
    assert origin.bytes_sent("half") == SIZE
    read_whole(server, origin, "half", 2 * SIZE)
    assert sources(server, 2 * SIZE) == (SIZE, SIZE)
    server.settle()
    assert origin.bytes_sent("half") == 2 * SIZE


def test_readers_of_one_range_at_once_wait_for_the_origin_and_save_its_bytes(start, origin, engine):
    """All wait for the one request at the origin. So none has its bytes from here, but they are
    saved."""
    server = start(origin, engine=engine)
    origin.put("crowd", MIB)
    gate = threading.Event()
    origin.fault("crowd", "hold_at", (0, gate), times=None)

    def read(number):
        with server.client() as client:
            judge(client.get("crowd"), origin, "crowd", 0, MIB)

    crowd = threading.Thread(target=parallel, args=(8, read))
    crowd.start()
    server.wait_metric("forebay_coalesced_waiters", lambda v: v == 8)
    gate.set()
    crowd.join()
    assert sources(server, 8 * MIB) == (0, 8 * MIB)
    assert origin.bytes_sent("crowd") == MIB
    assert ask(server, "status")[-1]["savings"]["bytes"] == 7 * MIB
    assert sorted(logged(server, "crowd", 8)) == [("coalesced", "origin")] * 7 + [
        ("miss", "origin")
    ]


@pytest.mark.tsan
def test_readers_of_all_ranges_at_once_have_each_byte_from_the_origin(start, origin, engine):
    """Eight readers share the ranges of one object, and read each once."""
    server = start(origin, engine=engine, settings={"workers": 4})
    origin.put("ranges", SIZE)
    read_in_parallel(8, server, origin, "ranges", SIZE // MIB, MIB)
    assert sources(server, SIZE) == (0, SIZE)
    server.settle()
    assert origin.bytes_sent("ranges") == SIZE


def test_a_reader_that_joins_a_run_has_what_came_before_from_here(start, origin, engine):
    """The first reader waits for all bytes. The second one comes when half of them are here, and
    waits for the others only."""
    server = start(origin, engine=engine, settings={"cache.readahead": "0"})
    size, half = 4 * MIB, 2 * MIB
    origin.put("late", size)
    gate = threading.Event()
    origin.fault("late", "hold_at", (half, gate), times=None)
    readers = [server.connection() for _ in range(2)]
    for connection in readers:
        connection.send(b"GET /bkt/late HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        reply = connection.read_head()
        oracle_judge(origin.name("late"), connection.read_body(half, reply), 0)
    gate.set()
    for connection in readers:
        oracle_judge(origin.name("late"), connection.read_body(half, None), half)
        connection.close()
    assert sources(server, 2 * size) == (half, size + half)
    assert origin.bytes_sent("late") == size

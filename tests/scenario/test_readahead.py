# SPDX-License-Identifier: Apache-2.0
"""Read-ahead fetches many runs at once for clients that read in sequence, and none for others. Each
byte is fetched once."""

import random
import threading

import pytest
from client import judge, judge_streamed
from forebay import parallel, read_in_parallel
from waiting import wait_for

MIB = 1 << 20
RUN = 4 * MIB


def read_whole(server, origin, key, size):
    with server.connection() as connection:
        connection.send(f"GET /bkt/{key} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        judge_streamed(connection, origin, key, 0, size)


def judge_once(origin, key, size):
    """Checks that each of SIZE bytes was sent once."""
    assert origin.sent_twice(key) == 0 and origin.bytes_sent(key) == size, origin.coverage(key)[:20]


def asked_bytes(origin, key):
    """Every byte that was ever asked for."""
    return sum(
        last - first + 1
        for first, last in {e.range for e in origin.requests(key=key, method="GET")}
    )


def test_a_long_read_is_fetched_by_many_requests_at_once(forebay, origin):
    """At least four requests of a long read are in flight before any reply ends."""
    size = 64 * MIB + 77
    origin.put("long", size)
    gate = threading.Event()
    origin.fault("long", "hold_at", (MIB, gate), times=None)
    reader = threading.Thread(target=read_whole, args=(forebay, origin, "long", size))
    reader.start()
    origin.wait_for(4, key="long")  # before anybody knows how long a run takes
    gate.set()
    reader.join()
    judge_once(origin, "long", size)
    forebay.settle()
    mark = origin.mark()
    read_whole(forebay, origin, "long", size)
    assert not origin.requests(since=mark, key="long")
    assert forebay.metric("forebay_readahead_bytes_total") >= 4 * RUN


def test_ranges_in_order_on_several_connections(start, origin, engine):
    """A client reads ranges in order on several connections. The next ranges are fetched ahead, up
    to the object's end, and once."""
    server = start(origin, engine=engine, settings={"workers": 2})
    size = 48 * MIB + 5
    origin.put("parts", size)
    part = 2 * MIB
    clients = [server.client() for _ in range(4)]
    for number, first in enumerate(range(0, size, part)):
        last = min(first + part, size) - 1
        judge(
            clients[number % 4].get("parts", first, last), origin, "parts", first, last - first + 1
        )
    judge_once(origin, "parts", size)
    assert len(origin.requests(key="parts", method="GET")) < size // part
    assert server.metric("forebay_readahead_bytes_total") > 0


def test_readers_with_a_part_each_are_run_ahead_of_each(start, origin, engine):
    """Six connections each read one part of one object, range after range. Read-ahead serves each,
    and each byte is fetched once."""
    server = start(origin, engine=engine)
    count, part = 6, 24 * MIB
    origin.put("shared", count * part)
    clients = [server.client() for _ in range(count)]
    for first in range(0, part, MIB):
        for number, client in enumerate(clients):
            judge(
                client.get("shared", number * part + first, number * part + first + MIB - 1),
                origin,
                "shared",
                number * part + first,
                MIB,
            )
    server.settle()
    judge_once(origin, "shared", count * part)
    assert server.metric("forebay_readahead_bytes_total") > 0


@pytest.mark.parametrize("part,stride", [(2 * MIB, 16 * MIB), (700_000, 5_000_003)])
def test_parts_in_a_stride(start, origin, engine, part, stride):
    """A client reads at a constant stride. Only those parts are fetched ahead, and nothing after
    the end."""
    server = start(origin, engine=engine, settings={"workers": 1})
    size = 24 * stride
    origin.put("strided", size)
    blocks = set()
    with server.client() as client:
        for first in range(0, size, stride):
            judge(client.get("strided", first, first + part - 1), origin, "strided", first, part)
            blocks |= set(range(first // MIB, (first + part - 1) // MIB + 1))
    server.settle()
    judge_once(origin, "strided", len(blocks) * MIB)
    assert server.metric("forebay_readahead_bytes_total") > 0
    mark = origin.mark()
    rng = random.Random(7)
    with server.client() as client:
        for _ in range(20):
            first = rng.randrange(size - part)
            judge(client.get("strided", first, first + part - 1), origin, "strided", first, part)
            blocks |= set(range(first // MIB, (first + part - 1) // MIB + 1))
    server.settle()
    assert sum(e.range[1] + 1 - e.range[0] for e in origin.requests(since=mark)) <= 20 * (
        part + 2 * MIB
    )


@pytest.mark.tsan
def test_ranges_of_one_object_in_any_order(start, origin, engine):
    """Readers of one object also share its read-ahead."""
    server = start(origin, engine=engine)
    count, part = 64, 2 * MIB
    origin.put("ranges", count * part)
    read_in_parallel(16, server, origin, "ranges", count, part)
    server.settle()
    judge_once(origin, "ranges", count * part)


def served(server, source):
    return server.metric("forebay_http_response_bytes_total", source=source)


def read_ranges(server, origin, key, size, connections):
    """Reads ranges in order, on connections that take turns."""
    clients = [server.client() for _ in range(connections)]
    for number, first in enumerate(range(0, size, MIB)):
        last = min(first + MIB, size) - 1
        client = clients[number % connections]
        judge(client.get(key, first, last), origin, key, first, last + 1 - first)


def test_bytes_fetched_ahead_of_a_reader_are_the_origins_when_it_reads_them(start, origin, engine):
    """The first read of an object has all its bytes from the origin, whether or not they were
    stored before the reader came to them. The second one has them from the cache."""
    server = start(origin, engine=engine)
    size = 40 * MIB + 77
    origin.put("cold", size)
    read_whole(server, origin, "cold", size)
    server.wait_metric("forebay_http_response_bytes_total", lambda v: v == size)
    server.settle()
    assert served(server, "origin") == size
    judge_once(origin, "cold", size)
    assert server.metric("forebay_readahead_bytes_total") > 0
    read_whole(server, origin, "cold", size)
    server.wait_metric("forebay_http_response_bytes_total", lambda v: v == 2 * size)
    assert served(server, "origin") == size


@pytest.mark.parametrize("connections", [1, 4])
def test_ranges_fetched_ahead_of_a_client_are_the_origins(start, origin, engine, connections):
    """A client that reads ranges in order has them from the origin, over any connections."""
    server = start(origin, engine=engine, settings={"workers": 1})
    size = 40 * MIB + 77
    origin.put("parts", size)
    read_ranges(server, origin, "parts", size, connections)
    server.wait_metric("forebay_http_response_bytes_total", lambda v: v == size)
    assert served(server, "origin") == size
    server.settle()
    judge_once(origin, "parts", size)


def test_parts_fetched_ahead_are_hits_from_the_second_read_on(start, origin, engine):
    """A client that reads only parts of blocks has them from the origin once."""
    server = start(origin, engine=engine)
    part, stride, count = 700_000, 5_000_003, 12
    origin.put("parts", count * stride)
    for times in (1, 2, 3):
        with server.client() as client:
            for first in range(0, count * stride, stride):
                judge(client.get("parts", first, first + part - 1), origin, "parts", first, part)
        server.wait_metric(
            "forebay_http_response_bytes_total", lambda v, n=times: v == n * count * part
        )
        assert served(server, "origin") == count * part
    assert server.metric("forebay_readahead_bytes_total") > 0


def test_ranges_of_one_object_over_all_workers_are_the_origins(start, origin, engine):
    """Connections on several workers share the ranges of one object. Bytes that one worker has
    requested ahead come from the origin for readers on another."""
    server = start(origin, engine=engine, settings={"workers": 4})
    count, part = 64, 2 * MIB
    origin.put("ranges", count * part)
    read_in_parallel(16, server, origin, "ranges", count, part)
    server.wait_metric("forebay_http_response_bytes_total", lambda v: v == count * part)
    assert served(server, "origin") == count * part


def test_unread_bytes_are_counted(start, origin, engine):
    """Bytes fetched ahead that nobody read are counted once their readers have been gone for a
    minute. Bytes that were read do not count."""
    server = start(origin, engine=engine, ahead_s=0, settings={"workers": 1})
    for key, size in (("half", 96 * MIB), ("whole", 24 * MIB)):
        origin.put(key, size)
        with server.client() as client:
            for first in range(0, 24 * MIB, MIB):
                if first >= 20 * MIB:  # nothing is fetched ahead while the disk is behind
                    server.settle()
                    server.wait_metric("forebay_cache_write_backlog_bytes", lambda v: v == 0)
                judge(client.get(key, first, first + MIB - 1), origin, key, first, MIB)
        server.settle()
    assert server.metric("forebay_readahead_unread_bytes_total") == 0
    server.advance(31)
    server.advance(31)
    unread = origin.bytes_sent("half") - 24 * MIB
    assert 0 < unread < server.metric("forebay_readahead_bytes_total")
    server.wait_metric("forebay_readahead_unread_bytes_total", lambda v: v == unread)


def test_a_slow_reader_is_run_ahead_of(start, origin, engine):
    """A reader takes much longer for a run than the origin does. Each next run is there before the
    reader needs it, so no read waits for the origin."""
    server = start(origin, engine=engine, ahead_s=0, settings={"workers": 1})
    origin.put("slow", 64 * MIB)
    with server.client() as client:
        for first in range(0, 28 * MIB, MIB):
            if first == 16 * MIB:
                mark = origin.mark()
            judge(client.get("slow", first, first + MIB - 1), origin, "slow", first, MIB)
            server.settle()
            server.advance(2)
    ranges = [entry.range for entry in origin.requests(key="slow", since=mark)]
    assert ranges and all(last + 1 - first == 4 * MIB for first, last in ranges), ranges


def test_nothing_is_fetched_ahead_of_random_reads(forebay, origin):
    """For random reads only the requested blocks are fetched, and nothing after the reads end."""
    size = 256 * MIB
    origin.put("random", size)
    rng = random.Random(3)
    blocks = set()
    with forebay.client() as client:
        for _ in range(60):
            first = rng.randrange(size - 5000)
            judge(client.get("random", first, first + 4999), origin, "random", first, 5000)
            blocks |= {first // MIB, (first + 4999) // MIB}
    judge_once(origin, "random", len(blocks) * MIB)
    assert forebay.metric("forebay_readahead_bytes_total") == 0


@pytest.mark.parametrize("how", ["off", "off by rule", "rule"])
def test_read_ahead_can_be_switched_off(start, origin, engine, how):
    """cache.readahead 0, in general or in a rule, and a rule that caches nothing switch read-ahead
    off, from the current run on."""
    rule = {"rule": {"cache": False}, "off by rule": {"readahead": 0}, "off": None}[how]
    rules = {"rules": [{"match": "bkt/**", **rule}]} if rule else None
    server = start(
        origin, engine=engine, settings={"cache.readahead": 0} if how == "off" else None, file=rules
    )
    origin.put("plain", 40 * MIB)
    gate = threading.Event()
    origin.fault("plain", "hold_at", (MIB, gate), times=None)
    reader = threading.Thread(target=read_whole, args=(server, origin, "plain", 40 * MIB))
    reader.start()
    origin.wait_for(1 if how == "rule" else 2, key="plain")
    gate.set()
    reader.join()
    assert server.metric("forebay_readahead_bytes_total") == 0
    assert origin.bytes_sent("plain") == 40 * MIB


@pytest.mark.parametrize("how", ["too large", "the origin's wish"])
def test_nothing_is_fetched_ahead_that_is_not_stored(start, origin, engine, how):
    """Objects that are never stored are not fetched ahead, even if read in the order of a listing.
    Each byte is fetched once."""
    server = start(
        origin,
        engine=engine,
        settings={
            "workers": 1,
            **({"cache.max_object_size": "1MiB"} if how == "too large" else {}),
        },
    )
    keys = [f"never/{number}" for number in range(5)]
    for key in keys:
        origin.put(key, 24 * MIB, headers={"Vary": "Cookie"} if how != "too large" else None)
    with server.client() as client:
        assert client.list("list-type=2&prefix=never/").status == 200
    for key in keys:
        read_whole(server, origin, key, 24 * MIB)
    server.settle()
    assert [origin.bytes_sent(key) // MIB for key in keys] == [24] * len(keys)
    assert not origin.requests(method="HEAD")


def test_a_reader_that_leaves_stops_it(forebay, origin):
    """When the reader leaves, read-ahead ends with the current block. The rest counts as not
    read."""
    size = 512 * MIB
    origin.put("left", size)
    gate = threading.Event()
    origin.fault("left", "hold_at", (MIB // 2, gate), times=None)
    connection = forebay.connection()
    connection.send(b"GET /bkt/left HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert connection.read_head().status == 200
    origin.wait_for(4, key="left")
    connection.close()
    wait_for(
        lambda: forebay.metric("forebay_http_connections", state="active") == 0,
        "the client is gone",
    )
    gate.set()
    forebay.settle()
    assert origin.bytes_sent("left") < 64 * MIB


def test_an_origin_that_slows_down(start, origin, engine):
    """If the origin answers some requests with 503 SlowDown, the others go on. No byte is fetched
    twice."""
    server = start(origin, engine=engine, settings={"origin.connections": 8, "workers": 1})
    origin.put("slow", 60 * MIB)
    origin.fault("slow", "status", 503, at=3, times=4)
    read_whole(server, origin, "slow", 60 * MIB)
    judge_once(origin, "slow", 60 * MIB)


def test_slots_at_the_origin_are_left_for_demand(start, origin, engine):
    """With four slots at the origin, read-ahead never takes three of them, so that other reads find
    one."""
    server = start(origin, engine=engine, settings={"origin.connections": 4, "workers": 1})
    origin.put("long", 64 * MIB)
    origin.put("small", 1000)
    gate = threading.Event()
    origin.fault("long", "hold_at", (MIB, gate), times=None)
    reader = threading.Thread(target=read_whole, args=(server, origin, "long", 64 * MIB))
    reader.start()
    origin.wait_for(3, key="long")
    with server.client() as client:
        judge(client.get("small"), origin, "small", 0, 1000)
    assert len(origin.requests(key="long")) == 3
    gate.set()
    reader.join()


def test_readers_of_many_objects_share_what_there_is(start, origin, engine):
    """With little memory, readers of many objects are all served, and each byte is fetched once or
    nearly so."""
    server = start(origin, engine=engine, settings={"limits.max_buffer": "8MiB"})
    size = 12 * MIB
    for i in range(16):
        origin.put(f"many{i}", size)
    parallel(16, lambda i: read_whole(server, origin, f"many{i}", size))
    assert server.alive

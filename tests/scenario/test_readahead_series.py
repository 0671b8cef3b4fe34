# SPDX-License-Identifier: Apache-2.0
"""Read-ahead across objects: large objects that were listed and are read in that order are fetched
ahead, and no others."""

import json
import random
import threading

import pytest
import test_readahead
from client import Truncated, judge, judge_streamed
from forebay import parallel
from oracle import oracle_bytes
from signer import Signer, crc32_of
from waiting import wait_for

MIB = 1 << 20
SHARD = 6 * MIB
COUNT = 8  # enough that two in order are not chance


def shard(number):
    return f"set/shard-{number:04}.tar"


def put_shards(origin, numbers, size=SHARD):
    for number in numbers:
        origin.put(shard(number), size)


def list_all(server, prefix="set/"):
    with server.client() as client:
        assert client.list(f"list-type=2&prefix={prefix}").status == 200


def ask(server, number):
    """Reads the whole object on a connection of its own. The test ensures that the disk is not
    behind, because otherwise nothing is fetched ahead."""
    server.wait_metric("forebay_cache_write_backlog_bytes", lambda v: v == 0)
    connection = server.connection()
    connection.send(f"GET /bkt/{shard(number)} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    return connection


def read(server, origin, number, size=SHARD):
    """Reads from the beginning to the end."""
    server.settle()
    with ask(server, number) as connection:
        judge_streamed(connection, origin, shard(number), 0, size)


def asked_about(server):
    return server.metric("forebay_readahead_objects_total")


def judge_once(origin, numbers, size=SHARD):
    for number in numbers:
        test_readahead.judge_once(origin, shard(number), size)


@pytest.mark.parametrize("workers", [1, 16])
def test_the_next_of_a_series(start, origin, engine, workers):
    """From the third object in order on, Forebay fetches the next one ahead, after one HEAD. Each
    byte is fetched once. A warm pass fetches nothing, and neither does the end of the series."""
    server = start(origin, engine=engine, ahead_s=0, settings={"workers": workers})
    put_shards(origin, range(COUNT))
    list_all(server)
    for number in (0, 1):
        read(server, origin, number)
    server.settle()
    assert not origin.requests(key=shard(2))
    for number in range(2, COUNT):
        read(server, origin, number)
        if number + 1 < COUNT:
            origin.wait_for(1, key=shard(number + 1), method="GET")
            assert len(origin.requests(key=shard(number + 1), method="HEAD")) == 1
    server.settle()
    judge_once(origin, range(COUNT))
    assert asked_about(server) == COUNT - 3
    assert server.metric("forebay_readahead_bytes_total") >= (COUNT - 3) * SHARD / 2

    def epoch():
        for number in range(COUNT):
            read(server, origin, number)

    mark = origin.mark()
    for _ in range(2):
        epoch()
    server.settle()
    assert not origin.requests(since=mark)
    server.advance(31)
    server.advance(31)
    server.settle()
    assert server.metric("forebay_readahead_unread_bytes_total") == 0


@pytest.mark.parametrize("part", [2 * MIB, 5 * MIB])
def test_objects_in_ranges_over_several_connections(start, origin, engine, part):
    """Objects are read in ranges over several connections, as CRT and boto3 do. The next object is
    fetched ahead, and each byte once."""
    server = start(origin, engine=engine, settings={"workers": 1})
    put_shards(origin, range(COUNT))
    list_all(server)
    clients = [server.client() for _ in range(2)]
    for number in range(COUNT):
        server.settle()
        server.wait_metric("forebay_cache_write_backlog_bytes", lambda v: v == 0)
        for at, first in enumerate(range(0, SHARD, part)):
            last = min(first + part, SHARD) - 1
            judge(
                clients[at % 2].get(shard(number), first, last),
                origin,
                shard(number),
                first,
                last - first + 1,
            )
    server.settle()
    judge_once(origin, range(COUNT))
    assert asked_about(server) == COUNT - 3
    for client in clients:
        client.close()


def test_nothing_without_a_listing_or_in_any_order(start, origin, engine):
    """Forebay makes up no names. Shuffled objects, reads from the middle, a single object and small
    objects cause no read-ahead."""
    server = start(origin, engine=engine, settings={"workers": 1})
    put_shards(origin, range(40), SHARD)
    for number in range(4):
        read(server, origin, number)
    list_all(server)
    order = [20, 21, 35, 10, 11, 30, 38, 6, 39, 15]
    for number in order:
        read(server, origin, number)
    with server.client() as client:
        for number in range(24, 29):
            judge(client.get(shard(number), MIB, 5 * MIB - 1), origin, shard(number), MIB, 4 * MIB)
        for number in range(8):
            origin.put(f"small/{number}", 50_000)
        list_all(server, "small/")
        for number in range(8):
            judge(client.get(f"small/{number}"), origin, f"small/{number}", 0, 50_000)
    server.settle()
    assert asked_about(server) == 0 and not origin.requests(method="HEAD")
    assert {e.key for e in origin.requests(method="GET") if e.key and e.key.startswith("set/")} == {
        shard(number) for number in [*range(4), *order, *range(24, 29)]
    }


def test_holes_in_the_numbers_and_small_ones_between(start, origin, engine):
    """The order is that of the listing. Missing numbers are not asked for, and objects read in one
    run are not part of the series."""
    server = start(origin, engine=engine, settings={"workers": 1})
    numbers = [1, 2, 5, 9, 10, 31, 77, 78]
    put_shards(origin, numbers)
    for number in numbers:
        origin.put(f"set/shard-{number:04}.json", 500)
    list_all(server)
    for number in numbers:
        read(server, origin, number)
    server.settle()
    judge_once(origin, numbers)
    assert asked_about(server) == len(numbers) - 3
    assert {e.key for e in origin.requests() if e.key and e.key.startswith("set/")} == {
        shard(n) for n in numbers
    }


@pytest.mark.parametrize("how", ["gone", "denied"])
def test_an_unavailable_next_object_is_asked_about_once(start, origin, engine, how):
    """The next object was deleted, or is denied. Its reader gets that answer, and Forebay does not
    ask ahead again. After a deleted object the following one is next."""
    server = start(origin, engine=engine, settings={"workers": 1})
    put_shards(origin, range(COUNT))
    list_all(server)
    if how == "gone":
        origin.delete(shard(3))
    else:
        origin.fault(shard(3), "status", 403, times=None)
    for number in (0, 1, 2):
        read(server, origin, number)
    origin.wait_for(1, key=shard(3), method="HEAD")
    server.settle()
    for _ in range(2):
        with server.client() as client:
            for number in (0, 1, 2):
                reply = client.get(shard(number), headers=[("Cache-Control", "no-cache")])
                judge(reply, origin, shard(number), 0, SHARD)
    server.settle()
    # At a store that has answered no HEAD yet, one denial may mean that all HEADs are denied. A GET
    # of one byte finds out, once.
    asked = [entry.method for entry in origin.requests(key=shard(3))]
    assert asked == (["HEAD"] if how == "gone" else ["HEAD", "GET"])
    with server.client() as client:
        assert client.get(shard(3)).status == (404 if how == "gone" else 403)


def test_rights_and_rules_hold_for_the_next_one(tmp_path, start, origin, engine):
    """If the next object is under another rule, or the reader may not read it, Forebay does not ask
    about it."""
    put_shards(origin, range(COUNT))
    keys = tmp_path / "keys.yaml"
    allowed = [{"bucket": "bkt", "prefix": shard(number), "ops": ["read"]} for number in (0, 1, 2)]
    keys.write_text(
        json.dumps(
            [
                {
                    "id": "LISTER",
                    "secret": "of-the-lister",
                    "allow": [{"bucket": "bkt", "ops": ["list"]}],
                },
                {"id": "READER", "secret": "of-the-reader", "allow": allowed},
            ]
        )
    )
    keys.chmod(0o600)
    other = {"rules": [{"match": f"bkt/{shard(3)}", "cache": False}]}
    for verified in (True, False):
        server = start(
            origin,
            engine=engine,
            file=None if verified else other,
            settings={
                "workers": 1,
                **({"auth.mode": "verify", "auth.keys_file": keys} if verified else {}),
            },
        )
        with server.client() as client:
            query = "list-type=2&prefix=set%2F"
            headers = (
                Signer("LISTER", "of-the-lister").headers("GET", f"/bkt?{query}", client.host)
                if verified
                else ()
            )
            assert client.request("GET", f"/bkt?{query}", headers).status == 200
            signer = Signer("READER", "of-the-reader") if verified else None
            for number in (0, 1, 2):
                headers = (
                    signer.headers("GET", f"/bkt/{shard(number)}", client.host) if verified else ()
                )
                judge(client.get(shard(number), headers=headers), origin, shard(number), 0, SHARD)
        server.settle()
        assert not origin.requests(key=shard(3)) and asked_about(server) == 0


@pytest.mark.parametrize("how", ["off", "off by rule"])
def test_series_read_ahead_can_be_switched_off(start, origin, engine, how):
    rules = {"rules": [{"match": "bkt/**", "readahead": 0}]} if how == "off by rule" else None
    server = start(
        origin,
        engine=engine,
        settings={"workers": 1, **({"cache.readahead": 0} if how == "off" else {})},
        file=rules,
    )
    put_shards(origin, range(COUNT))
    list_all(server)
    for number in range(5):
        read(server, origin, number)
    server.settle()
    assert asked_about(server) == 0 and not origin.requests(key=shard(5))


def test_an_object_overwritten_after_read_ahead(start, origin, engine):
    """An object is overwritten after it was fetched ahead. Past its ttl a reader gets the new
    version, and the unread bytes are counted. A write through Forebay is seen at once."""
    server = start(origin, engine=engine, ahead_s=0, settings={"workers": 1, "cache.ttl": "10s"})
    put_shards(origin, range(COUNT))
    list_all(server)
    for number in (0, 1, 2):
        read(server, origin, number)
    origin.wait_for(1, key=shard(3), method="GET")
    server.settle()
    ahead = origin.bytes_sent(shard(3))
    origin.put(shard(3), SHARD)
    server.advance(11)
    read(server, origin, 3)
    server.settle()
    assert server.metric("forebay_readahead_unread_bytes_total") == ahead > 0
    with server.client() as client:
        body = oracle_bytes(origin.name(shard(4)), 2, 0, SHARD)
        assert (
            client.request(
                "PUT", client.target(shard(4)), [("Content-Length", str(SHARD))], body
            ).status
            == 200
        )
        read(server, origin, 4)
        judge(client.get(shard(4)), origin, shard(4), 0, SHARD)


@pytest.mark.parametrize("large", [True, False])
def test_a_wrong_byte_in_what_was_fetched_ahead(start, origin, engine, large):
    """The origin names a checksum and sends other bytes. A reader is protected from them if the
    object was fetched ahead, whether it asks for checksums or not."""
    server = start(origin, engine=engine, settings={"workers": 1})
    size = SHARD if large else 4 * MIB + 1000
    for number in range(COUNT):
        body = oracle_bytes(origin.name(shard(number)), 1, 0, size)
        origin.put(
            shard(number),
            size,
            checksums={
                "x-amz-checksum-crc32": crc32_of(body),
                "x-amz-checksum-type": "FULL_OBJECT",
            },
        )
    list_all(server)
    for number in (0, 1):
        read(server, origin, number, size)
    fault = origin.fault(shard(3), "flip", MIB + 17, method="GET", times=None)
    read(server, origin, 2, size)
    origin.wait_for(1, key=shard(3), method="GET")
    server.settle()
    for headers in ((), [("x-amz-checksum-mode", "ENABLED")]):
        with server.client() as client:
            try:
                reply = client.get(shard(3), headers=headers)
                assert reply.status >= 500, reply
            except Truncated:
                pass
        server.settle()
    with origin.lock:
        origin.faults.remove(fault)
    read(server, origin, 3, size)


def test_unread_read_ahead_is_counted_and_stops_it(start, origin, engine):
    """If the reader goes elsewhere, the bytes fetched ahead count as unread. More objects in order
    are needed before the next read-ahead."""
    server = start(origin, engine=engine, ahead_s=0, settings={"workers": 1})
    put_shards(origin, range(40))
    list_all(server)
    for number in (0, 1, 2):
        read(server, origin, number)
    origin.wait_for(1, key=shard(3), method="GET")
    server.settle()
    unread = origin.bytes_sent(shard(3))
    server.advance(31)
    server.advance(31)
    server.wait_metric("forebay_readahead_unread_bytes_total", lambda v: v == unread)
    for number in (20, 21, 22, 23):
        read(server, origin, number)
    server.settle()
    assert asked_about(server) == 1
    read(server, origin, 24)
    server.wait_metric("forebay_readahead_objects_total", lambda v: v == 2)


def test_a_reader_who_leaves_a_series_stops_it(start, origin, engine):
    """If the reader leaves the series, the fetch of the next object ends with the current block."""
    server = start(origin, engine=engine, settings={"workers": 1})
    put_shards(origin, range(COUNT), 10 * MIB)
    list_all(server)
    for number in (0, 1):
        read(server, origin, number, 10 * MIB)
    server.settle()
    gate = threading.Event()
    for number in (2, 3):
        origin.fault(shard(number), "hold_at", (MIB // 2, gate), times=None, method="GET")
    connection = server.connection()
    connection.send(f"GET /bkt/{shard(2)} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    origin.wait_for(1, key=shard(3), method="GET")
    connection.close()
    wait_for(
        lambda: server.metric("forebay_http_connections", state="active") == 0, "the client is gone"
    )
    gate.set()
    server.settle()
    assert origin.bytes_sent(shard(3)) <= 8 * MIB and not origin.requests(key=shard(4))


@pytest.mark.tsan
@pytest.mark.parametrize("workers", [2, 16])
def test_readers_of_a_series_side_by_side(start, origin, engine, workers):
    """Two readers each read every other object at once. The origin sends each byte once and gets at
    most one HEAD per object, while listings go on."""
    server = start(origin, engine=engine, settings={"workers": workers})
    count = 24
    put_shards(origin, range(count))
    list_all(server)

    def reader(first):
        for number in range(first, count, 2):
            with server.connection() as connection:
                connection.send(
                    f"GET /bkt/{shard(number)} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
                )
                judge_streamed(connection, origin, shard(number), 0, SHARD)
            list_all(server)

    parallel(2, reader)
    server.settle()
    judge_once(origin, range(count))
    assert all(
        len(origin.requests(key=shard(number), method="HEAD")) <= 1 for number in range(count)
    )


def test_random_readers_cost_little(start, origin, engine):
    """Two readers read whole objects in random order. Nothing is fetched ahead. (Enough objects in
    order occur by chance once in 64 times, and not in this order.)"""
    server = start(origin, engine=engine, settings={"workers": 2})
    count, size = 24, 4 * MIB + 1000
    put_shards(origin, range(count), size)
    list_all(server)
    under_way = []

    def end_oldest():
        number, connection, go = under_way.pop(0)
        go.set()
        with connection:
            judge_streamed(connection, origin, shard(number), 0, size)
        server.wait_metric("forebay_http_requests_inflight", lambda v: v == len(under_way))

    for number in random.Random(5).sample(range(count), count):
        if len(under_way) == 2:
            end_oldest()
        go = threading.Event()
        origin.fault(shard(number), "hold", (go,), at=2, method="GET")
        under_way.append((number, ask(server, number), go))
        origin.wait_for(2, key=shard(number), method="GET")
    while under_way:
        end_oldest()
    server.settle()
    assert asked_about(server) == 0

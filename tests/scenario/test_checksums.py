# SPDX-License-Identifier: Apache-2.0
"""Forebay keeps the origin's checksums with an object and sends them only where S3 does. A whole
object that does not match its own checksum is not kept."""

import base64
import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from client import Closed, Truncated
from origin import WrongByte
from signer import crc32_of

MODE = [("x-amz-checksum-mode", "ENABLED")]
SIZE = 300_000  # one run


def sums(reply):
    return {n: v for n, v in reply.headers if n.startswith("x-amz-checksum-")}


def crc32c(data):
    table = []
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
        table.append(i)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 255]
    return base64.b64encode((crc ^ 0xFFFFFFFF).to_bytes(4, "big")).decode()


def b64(digest):
    return base64.b64encode(digest).decode()


BODY = bytes(range(256)) * (SIZE // 256)
RIGHT = {
    "crc32": crc32_of(BODY),
    "crc32c": crc32c(BODY),
    "sha1": b64(hashlib.sha1(BODY).digest()),
    "sha256": b64(hashlib.sha256(BODY).digest()),
    "composite": b64(hashlib.sha256(BODY[:100]).digest()) + "-2",
    "xxhash3": "AAAAAAAAAAA=",
}


def describe(kind, value):
    name = "crc32" if kind == "composite" else kind
    return {
        f"x-amz-checksum-{name}": value,
        "x-amz-checksum-type": "COMPOSITE" if kind == "composite" else "FULL_OBJECT",
    }


@pytest.mark.parametrize("kind", sorted(RIGHT))
def test_sent_where_s3_sends_them(forebay, origin, kind):
    """Forebay sends checksums in the same replies as S3 does."""
    want = describe(kind, RIGHT[kind])
    origin.put("a", len(BODY), body=BODY, checksums=want)
    with forebay.client() as client:
        # HEAD gives the same answer as a direct one, cold and warm, whether or not it asks for
        # checksums.
        assert sums(client.head("a", headers=MODE)) == want
        assert sums(client.head("a")) == {}
        # For a condition Forebay describes the object by a HEAD. The checksums in its reply are
        # kept with the bytes.
        reply = client.get("a", headers=MODE + [("If-None-Match", '"x"')])
        assert reply.status == 200 and bytes(reply.body) == BODY
        forebay.settle()
        reply = client.get("a", headers=MODE)
        assert "hit" in reply.header("cache-status") and bytes(reply.body) == BODY
        assert sums(reply) == want
        assert sums(client.get("a", headers=[("X-Amz-Checksum-Mode", "enabled")])) == want
        assert sums(client.head("a", headers=MODE)) == want
        mark = origin.mark()
        for more in (
            {"first": 0, "last": 99},
            {"first": 0, "last": len(BODY) - 1},
            {"first": 5},
            {"query": "partNumber=1"},
        ):
            reply = client.get("a", headers=MODE, **more)
            assert reply.status == 206 and sums(reply) == {}, (more, reply)
        assert sums(client.get("a")) == {} and sums(client.head("a")) == {}
        reply = client.get("a", headers=MODE + [("If-None-Match", origin.version("a").etag)])
        assert reply.status == 304 and sums(reply) == {}
        reply = client.get("a", query="response-content-type=a%2Fb", headers=MODE)
        assert reply.status in (200, 400) and (reply.status == 400 or sums(reply) == want)
        assert not origin.requests(since=mark)
    forebay.restart()
    with forebay.client() as client:
        assert sums(client.get("a", headers=MODE)) == want
    assert forebay.metric("forebay_origin_checksums_total", result="mismatch") == 0


def ranged(request):
    return "range" in {name.lower() for name in dict(request.headers)}


@pytest.mark.parametrize("kind", sorted(RIGHT))
def test_first_read_has_them(origin, start, engine, kind):
    """The first read has the checksums, cold and warm as in a direct read, from the one request
    that fetches the object."""
    want = describe(kind, RIGHT[kind])
    server = start(origin, engine=engine)
    for key in ("d/a.bin", "d/b.bin", "e/c.bin"):
        origin.put(key, len(BODY), body=BODY, checksums=want)
    with server.client() as client:
        for key in ("d/a.bin", "d/b.bin", "e/c.bin"):
            reply = client.get(key, headers=MODE)
            assert bytes(reply.body) == BODY and sums(reply) == want, reply
            assert "hit" not in reply.header("cache-status")
            (request,) = origin.requests(key=key)
            assert request.method == "GET" and not ranged(request)
            assert origin.bytes_sent(key) == len(BODY)
        server.settle()
    for _ in range(2):
        mark = origin.mark()
        with server.client() as client:
            for key in ("d/a.bin", "d/b.bin"):
                reply = client.get(key, headers=MODE)
                assert "hit" in reply.header("cache-status") and bytes(reply.body) == BODY
                assert sums(reply) == want and sums(client.head(key, headers=MODE)) == want
                assert (
                    sums(client.get(key))
                    == {}
                    == sums(client.get(key, headers=MODE, first=0, last=9))
                )
        assert not origin.requests(since=mark)
        server.restart()
    assert server.metric("forebay_origin_checksums_total", result="mismatch") == 0


@pytest.mark.parametrize("small_cache", [False, True])
def test_objects_of_a_new_kind_read_at_once_cost_no_cut(origin, start, engine, small_cache):
    """The origin sends no byte twice when many chunks of an array are read at once, before the
    first has shown their size.

    In a small cache most of them have no room for a long run. Forebay asks for these by range, with
    a HEAD in addition. The HEADs are answered first, because Forebay does not hold a reply long for
    them.
    """
    settings = (
        {"workers": "1", "cache.size": "256MiB", "cache.min_free": "0%"} if small_cache else {}
    )
    server = start(origin, engine=engine, settings=settings)
    keys = [f"array/c/{i // 16}/{i // 4 % 4}/{i % 4}" for i in range(40)]
    for key in keys:
        origin.put(key, len(BODY), body=BODY, checksums=describe("crc32", RIGHT["crc32"]))
    connections = []
    with origin.hold(None, method="GET"):
        for key in keys:
            connections.append(server.connection())
            connections[-1].send(
                f"GET /bkt/{key} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                "x-amz-checksum-mode: ENABLED\r\n\r\n".encode()
            )
        gets = origin.wait_for(len(keys), method="GET")
        origin.wait_for(sum(map(ranged, gets)), method="HEAD", done=True)
    for connection in connections:
        reply = connection.read_reply()
        connection.close()
        assert bytes(reply.body) == BODY and sums(reply) == describe("crc32", RIGHT["crc32"])
    assert sorted(r.key for r in origin.requests(method="GET")) == sorted(keys)
    heads = [r.key for r in origin.requests(method="HEAD")]
    assert sorted(heads) == sorted(r.key for r in gets if ranged(r)) and (small_cache or not heads)
    assert server.metric("forebay_checksum_requests_total", kind="whole-cut") == 0


SCORE = 16  # enough small objects make up for one that is larger than a run


def read_small(forebay, origin, client, name, count, headers=()):
    """Reads `count` small objects for the first time. Returns for each whether Forebay asked for it
    by range."""
    by_range = []
    for i in range(count):
        key = name.format(i)
        origin.put(key, 1000, body=BODY[:1000], checksums=describe("crc32", crc32_of(BODY[:1000])))
        reply = client.get(key, headers=list(headers))
        assert bytes(reply.body) == BODY[:1000]
        forebay.settle()
        (request,) = origin.requests(key=key, method="GET")
        assert origin.bytes_sent(key) == 1000
        by_range.append(int(ranged(request)))
        if headers and not by_range[-1]:
            assert sums(reply) == describe("crc32", crc32_of(BODY[:1000]))
            assert not origin.requests(key=key, method="HEAD")
    return by_range


@pytest.mark.parametrize(
    "name", ["d/{}.bin", "array/c/{}/3/2", "array/{}/0.3.2", "tree/{}/part.bin"]
)
def test_after_a_large_object_its_kind_is_asked_for_by_ranges(forebay, origin, name):
    """After one large object, Forebay asks for further objects of its kind by range.

    A kind is a bucket, a folder and an ending. Chunks with a few in each folder belong to the kind
    of the first folder.
    """
    with forebay.client() as client:
        assert read_small(forebay, origin, client, name, 3, MODE) == [0] * 3
        for i in range(2):
            origin.put(name.format(f"large{i}"), len(LARGE), body=LARGE)
            assert bytes(client.get(name.format(f"large{i}"), headers=MODE).body) == LARGE
        assert forebay.metric("forebay_checksum_requests_total", kind="whole-cut") == 1
        by_range = read_small(
            forebay, origin, client, name.replace("{}", "again{}"), SCORE + 3, MODE
        )
        assert by_range == [1] * SCORE + [0] * 3
        assert read_small(forebay, origin, client, "other/c/{}/3/2", 1, MODE) == [0]


@pytest.mark.parametrize("query", ["list-type=2", "list-type=2&encoding-type=url", ""])
def test_a_listing_says_what_is_asked_for_whole(forebay, origin, query):
    """A listing decides whether Forebay asks for the whole object, whatever its kind is.

    An object listed as small costs one request. One listed as large is asked for by range. If an
    object has grown since, its first request ends with its first run.
    """
    small, sums_of_small = BODY[:1000], describe("crc32", crc32_of(BODY[:1000]))
    sums_of_large = describe("crc32", crc32_of(LARGE))
    names = ["d/a.bin", "d/b c+&<é%41>.bin", "e/grown.bin"]
    for key in names:
        origin.put(key, len(small), body=small, checksums=sums_of_small)
    origin.put("d/large.bin", len(LARGE), body=LARGE, checksums=sums_of_large)
    with forebay.client() as client:
        assert client.list(query).status == 200
        for key in names[:2]:
            reply = client.get(key, headers=MODE)
            assert bytes(reply.body) == small and sums(reply) == sums_of_small
            (request,) = origin.requests(key=key)
            assert not ranged(request) and request.method == "GET"
        origin.put("e/grown.bin", len(LARGE), body=LARGE, checksums=sums_of_large)
        for key, cut in (("d/large.bin", 0), ("e/grown.bin", 1)):
            reply = client.get(key, headers=MODE)
            assert bytes(reply.body) == LARGE and (sums(reply) == sums_of_large or not cut)
            forebay.settle()
            assert sum(not ranged(r) for r in origin.requests(key=key, method="GET")) == cut
            assert len(origin.requests(key=key, method="HEAD")) == 1 - cut
            assert forebay.metric("forebay_checksum_requests_total", kind="whole-cut") == cut
            assert sums(client.get(key, headers=MODE)) == sums_of_large


def test_reader_who_does_not_ask_sees_no_other_requests(forebay, origin):
    """A client that asks for no checksums causes one range request for each run, and nothing more,
    whatever is known of the kind."""
    with forebay.client() as client:
        assert read_small(forebay, origin, client, "d/{}.bin", SCORE + 3) == [1] * (SCORE + 3)
        origin.put("d/large.bin", len(LARGE), body=LARGE)
        assert bytes(client.get("d/large.bin").body) == LARGE
    assert all(ranged(r) and r.method == "GET" for r in origin.requests())
    assert origin.bytes_sent("d/large.bin") == len(LARGE)
    assert (
        forebay.metric("forebay_checksum_requests_total", kind="whole")
        == 0
        == forebay.metric("forebay_checksum_requests_total", kind="head-with-get")
    )


@pytest.mark.parametrize(
    "asked", [{"first": 0, "last": 99}, {"first": 5}, {"headers": [("Range", "bytes=-100")]}]
)
def test_reader_of_a_range_who_asks_causes_no_head(forebay, origin, asked):
    """A client that reads a range causes no HEAD, because S3 sends no checksums with a range."""
    origin.put("a.tar", len(LARGE), body=LARGE, checksums=describe("crc32", crc32_of(LARGE)))
    teach_large(forebay, origin, "taught.tar")
    with forebay.client() as client:
        reply = client.get("a.tar", **{**asked, "headers": MODE + asked.get("headers", [])})
        assert reply.status == 206 and sums(reply) == {}
        forebay.settle()
    assert all(ranged(r) and r.method == "GET" for r in origin.requests(key="a.tar"))


# The most that a socket on this machine may hold of a cut transfer, on either side.
IN_FLIGHT = 16 << 20


def test_large_first_read_has_them(forebay, origin):
    """The first read of an object of several runs, of an unknown kind, has checksums.

    Each run costs one request, the first of them without a range. There are no further requests,
    and every run is kept with the checksums.
    """
    want = describe("crc32", crc32_of(LARGE))
    origin.put("a.tar", len(LARGE), body=LARGE, checksums=want)
    with forebay.client() as client:
        reply = client.get("a.tar", headers=MODE)
        assert bytes(reply.body) == LARGE and sums(reply) == want
        forebay.settle()
        requests = origin.requests(key="a.tar")
        assert [ranged(r) for r in requests] == [False] + [True] * (len(LARGE) // (4 << 20) - 1)
        assert all(r.method == "GET" for r in requests)
        assert origin.bytes_sent("a.tar") < len(LARGE) + IN_FLIGHT
        assert forebay.metric("forebay_origin_received_bytes_total") < len(LARGE) + (1 << 20)
        assert forebay.metric("forebay_checksum_requests_total", kind="whole-cut") == 1
        mark = origin.mark()
        assert (
            sums(client.get("a.tar", headers=MODE))
            == want
            == sums(client.head("a.tar", headers=MODE))
        )
        assert not origin.requests(since=mark)
    for metric in ("failures", "cut", "unjudged"):
        assert forebay.metric(f"forebay_origin_checksum_{metric}_total") == 0


def teach_large(forebay, origin, key):
    """Reads an object of this kind that is larger than a run, so that Forebay knows the kind as
    large."""
    origin.put(key, len(LARGE), body=LARGE)
    with forebay.client() as client:
        assert client.get(key, first=0, last=99).status == 206
    forebay.settle()


def test_large_kind_has_a_head_beside_its_first_run(forebay, origin):
    """An object of a kind known as large costs one HEAD in addition to its first run. No byte is
    fetched twice.

    If the HEAD answers before the run's head, the reply has its checksums and is judged by them.
    """
    want = describe("crc32", crc32_of(LARGE))
    origin.put("a.tar", len(LARGE), body=LARGE, checksums=want)
    teach_large(forebay, origin, "taught.tar")
    with forebay.client() as client, ThreadPoolExecutor(1) as pool:
        with origin.hold("a.tar", method="GET"):
            reading = pool.submit(client.get, "a.tar", headers=MODE)
            origin.wait_for(1, key="a.tar", method="HEAD", done=True)
            origin.wait_for(1, key="a.tar", method="GET")
        reply = reading.result()
        assert bytes(reply.body) == LARGE and sums(reply) == want
        forebay.settle()
        assert len(origin.requests(key="a.tar", method="HEAD")) == 1
        assert all(ranged(r) for r in origin.requests(key="a.tar", method="GET"))
        assert origin.bytes_sent("a.tar") == len(LARGE)


def test_large_first_read_goes_without_where_head_hangs(forebay, origin):
    """If the HEAD hangs, the reply goes out without checksums after as long again as the reply
    itself took. Forebay then sends another HEAD, for which nobody waits."""
    want = describe("crc32", crc32_of(LARGE))
    origin.put("a.tar", len(LARGE), body=LARGE, checksums=want)
    teach_large(forebay, origin, "taught.tar")
    with forebay.client() as client:
        with origin.hold("a.tar", method="HEAD"):
            reply = client.get("a.tar", headers=MODE)
            assert bytes(reply.body) == LARGE and sums(reply) == {}
        forebay.wait_metric("forebay_checksum_requests_total", lambda v: v == 1, kind="learnt")
        assert sums(client.get("a.tar", headers=MODE)) == want
    assert len(origin.requests(key="a.tar", method="HEAD")) == 2
    assert origin.bytes_sent("a.tar") == len(LARGE)


def test_unknown_checksums_cost_one_head(forebay, origin):
    """An object that was stored without checksums, or has none at the origin, costs one HEAD and no
    more. A client that reads bytes does not wait for it."""
    want = describe("crc32c", RIGHT["crc32c"])
    origin.put("a", len(BODY), body=BODY, checksums=want)
    origin.put("none", len(BODY), body=BODY)
    origin.put("never", len(BODY), body=BODY)
    with forebay.client() as client:
        for key in ("a", "none"):
            assert bytes(client.get(key).body) == BODY
        forebay.settle()
        for known, (key, sent) in enumerate((("a", want), ("none", {}), ("never", {})), start=1):
            mark = origin.mark()
            for i in range(3):
                reply = client.get(key, headers=MODE)
                assert bytes(reply.body) == BODY and sums(reply) == (sent if i > 0 else {})
                forebay.settle()
                forebay.wait_metric(
                    "forebay_checksum_requests_total",
                    lambda v, n=min(known, 2): v == n,
                    kind="learnt",
                )
                assert sums(client.head(key, headers=MODE)) == sent
            assert len(origin.requests(since=mark)) == 1


def test_a_read_does_without_where_head_fails(start, origin, engine):
    """If the keys may GET but not HEAD, the client still gets the bytes, without checksums."""
    forebay = start(origin, engine=engine, ahead_s=0)
    teach_large(forebay, origin, "large")
    origin.put("a", len(BODY), body=BODY, checksums=describe("crc32", RIGHT["crc32"]))
    origin.fault(None, "status", 403, method="HEAD", times=None)
    with forebay.client() as client:
        for _ in range(2):
            reply = client.get("a", headers=MODE)
            assert bytes(reply.body) == BODY and reply.status == 200 and sums(reply) == {}
            forebay.settle()
        assert "hit" in reply.header("cache-status")
        origin.clear_faults()
        forebay.advance(11)
        client.get("a", headers=MODE)
        forebay.wait_metric("forebay_checksum_requests_total", lambda v: v == 1, kind="learnt")
        assert sums(client.get("a", headers=MODE)) == describe("crc32", RIGHT["crc32"])


def test_a_hit_does_not_wait_for_an_origin_that_hangs(origin, start, engine):
    """If the origin hangs, a hit is sent at once without checksums, and they are learnt in the
    background. A client's HEAD that asks for them waits."""
    want = describe("crc32", RIGHT["crc32"])
    server = start(origin, engine=engine, ahead_s=0, settings={"workers": 1})
    for key in ("a", "b"):
        origin.put(key, len(BODY), body=BODY, checksums=want)
    with server.client() as client, server.client() as other, ThreadPoolExecutor(1) as pool:
        for key in ("a", "b"):
            assert bytes(client.get(key).body) == BODY
        server.settle()
        mark = origin.mark()
        with origin.hold(None):
            for key in ("a", "b", "a"):
                reply = client.get(key, headers=MODE)
                assert bytes(reply.body) == BODY and sums(reply) == {}
                assert "hit" in reply.header("cache-status")
            head = pool.submit(other.head, "b", headers=MODE)
            origin.wait_for(1, key="b", method="HEAD")
            origin.wait_for(1, key="a", method="HEAD")
        assert sums(head.result()) == want
        server.wait_metric("forebay_checksum_requests_total", lambda v: v == 2, kind="learnt")
        for key in ("a", "b"):
            assert sums(client.get(key, headers=MODE)) == want
        assert sorted((r.key, r.method) for r in origin.requests(since=mark)) == [
            ("a", "HEAD"),
            ("b", "HEAD"),
        ]


def test_no_read_holds_the_slot_that_its_head_waits_for(origin, start, engine):
    """With one slot at the origin and many clients of large objects, no read holds the slot that
    its own HEAD waits for. The HEAD gets the slot first."""
    server = start(origin, engine=engine, settings={"workers": 1, "origin.connections": 1})
    keys, connections = [f"d/{i}" for i in range(8)], []
    teach_large(server, origin, "d/taught")
    for key in keys:
        origin.put(key, len(BODY), body=BODY, checksums=describe("crc32", RIGHT["crc32"]))
    mark = origin.mark()
    with origin.hold(None):
        for i, key in enumerate(keys):
            connections.append(server.connection(address=f"127.0.0.{i + 1}"))
            connections[-1].send(
                f"GET /bkt/{key} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                "x-amz-checksum-mode: ENABLED\r\n\r\n".encode()
            )
            server.wait_metric("forebay_fills_inflight", lambda v: v == len(connections))
    for key, connection in zip(keys, connections):
        reply = connection.read_reply()
        connection.close()
        assert bytes(reply.body) == BODY and sums(reply) == describe("crc32", RIGHT["crc32"])
        assert [r.method for r in origin.requests(key=key, since=mark)] == ["HEAD", "GET"]


def test_head_that_asks_is_never_without(forebay, origin):
    """A HEAD that asks for checksums always gets them. If fills stored the version without them,
    Forebay asks the origin."""
    want = describe("crc32", crc32_of(BODY))
    origin.put("a", len(BODY), body=BODY, checksums=want)
    with forebay.client() as client:
        assert bytes(client.get("a").body) == BODY
        forebay.settle()
        assert sums(client.head("a", headers=MODE)) == want
        assert sums(client.head("a")) == {} and "hit" in client.head("a").header("cache-status")


@pytest.mark.parametrize("kind", ["crc32", "crc32c", "sha1", "sha256"])
def test_a_whole_object_that_does_not_match_is_not_kept(forebay, origin, kind):
    """A whole object whose bytes differ from the origin's own checksum is counted, logged, and cut
    or refused. It never becomes a hit."""
    wrong = {
        "crc32": crc32_of(b"x"),
        "crc32c": crc32c(b"x"),
        "sha1": b64(hashlib.sha1(b"x").digest()),
        "sha256": b64(hashlib.sha256(b"x").digest()),
    }[kind]
    origin.put("a", len(BODY), body=BODY, checksums=describe(kind, wrong))
    ask = MODE + [("If-None-Match", '"x"')]
    for times in (1, 2):
        with forebay.client() as client:
            try:
                reply = client.get("a", headers=ask)
                # Its last bytes may have been sent before the sum was known. The client can check
                # it too.
                assert reply.status == 503 or sums(reply) == describe(kind, wrong), reply
            except (Truncated, Closed):
                pass
            forebay.settle()
            assert forebay.metric("forebay_origin_checksums_total", result="mismatch") == times
            assert forebay.metric("forebay_fills_total", state="stored") == 0
    forebay.wait_stderr("origin_checksum_mismatch")
    origin.put("a", len(BODY), body=BODY, checksums=describe(kind, RIGHT[kind]))
    with forebay.client() as client:
        client.head(
            "a", headers=[("Cache-Control", "no-cache")]
        )  # the earlier HEAD described the other version
        for _ in range(2):
            reply = client.get("a", headers=ask)
            assert bytes(reply.body) == BODY and sums(reply) == describe(kind, RIGHT[kind])
            forebay.settle()
        assert "hit" in reply.header("cache-status")


@pytest.mark.parametrize("kind", ["crc32", "sha1", "sha256"])
def test_a_run_that_its_reader_leaves_needs_no_sum_of_the_whole(forebay, origin, kind):
    """The only reader leaves in the middle of an object that is one run. The blocks that have come
    are kept, and the object is whole after the next read."""
    body = bytes(range(256)) * (3 * 4096)
    whole = {
        "crc32": crc32_of,
        "sha1": lambda data: b64(hashlib.sha1(data).digest()),
        "sha256": lambda data: b64(hashlib.sha256(data).digest()),
    }[kind](body)
    origin.put("a", len(body), body=body, checksums=describe(kind, whole))
    gate = threading.Event()
    origin.fault("a", "hold_at", (len(body) // 2 + 1000, gate), method="GET")
    with forebay.connection() as reader:
        reader.send(
            b"GET /bkt/a HTTP/1.1\r\nHost: 127.0.0.1\r\nx-amz-checksum-mode: ENABLED\r\n\r\n"
        )
        assert reader.read_head().status == 200
        while len(reader.buf) < len(body) // 3:
            assert reader._fill()
        reader.reset()
        forebay.wait_metric("forebay_http_connections", lambda n: n == 0, state="active")
        gate.set()
        forebay.settle()
    with forebay.client() as client:
        for _ in range(2):
            assert bytes(client.get("a", headers=MODE).body) == body
            forebay.settle()
        assert "hit" in client.get("a").header("cache-status")
    assert forebay.metric("forebay_origin_checksums_total", result="mismatch") == 0


LARGE = bytes(range(256)) * (80 * 4096)  # 80 MiB: many runs, of more than one worker


@pytest.mark.parametrize("right", [True, False])
def test_an_object_in_several_runs_is_judged_when_it_is_whole(forebay, origin, right):
    """If an object is read in pieces and out of order, its checksum is verified when the last run
    arrives. If it does not match, nothing stays cached."""
    origin.put(
        "a", len(LARGE), body=LARGE, checksums=describe("crc32", crc32_of(LARGE if right else b"x"))
    )
    with forebay.client() as client:
        assert client.head("a").status == 200  # brings the checksum
        for first in (48 << 20, 0, 16 << 20, 64 << 20, 32 << 20):
            reply = client.get("a", first=first, last=first + (16 << 20) - 1)
            assert bytes(reply.body) == LARGE[first : first + (16 << 20)]
        forebay.settle()
        assert forebay.metric("forebay_origin_checksums_total", result="mismatch") == (
            0 if right else 1
        )
        mark = origin.mark()
        if right:
            reply = client.get("a")
            assert bytes(reply.body) == LARGE
            assert "hit" in reply.header("cache-status")
            assert not origin.requests(since=mark, method="GET")
        else:  # fetched again, and still unlike the origin's checksum
            with pytest.raises(Truncated):
                client.get("a")
            assert origin.requests(since=mark, method="GET")
    if not right:
        forebay.wait_stderr("origin_checksum_mismatch")


@pytest.mark.parametrize("at", [1000, 42 << 20, len(LARGE) - 1])
def test_a_wrong_byte_of_a_large_object_is_seen_before_its_last(origin, start, engine, at):
    """A reply with a wrong byte is cut, never complete, wherever the byte is. Nothing of the object
    is kept, and the next read is right."""
    want = describe("crc32", crc32_of(LARGE))
    origin.put("a", len(LARGE), body=LARGE, checksums=want)
    server = start(origin, engine=engine)
    wrong = WrongByte(at)
    origin.fault("a", "wrong_byte", wrong, times=None, method="GET")
    with server.client() as client:
        with pytest.raises(Truncated):
            client.get("a", headers=MODE)
    assert wrong.is_sent
    assert server.metric("forebay_origin_checksums_total", result="cut") == 1
    server.wait_stderr("reply_cut_by_checksum")
    server.wait_metric("forebay_origin_checksums_total", lambda v: v == 1, result="mismatch")
    server.settle()
    mark = origin.mark()
    with server.client() as client:
        reply = client.get("a", headers=MODE)
        assert bytes(reply.body) == LARGE and sums(reply) == want
        assert origin.requests(since=mark, method="GET")
        server.settle()
        mark = origin.mark()
        reply = client.get("a", headers=MODE)
        assert bytes(reply.body) == LARGE and "hit" in reply.header("cache-status")
        assert not origin.requests(since=mark)
    assert server.metric("forebay_origin_checksums_total", result="cut") == 1
    assert server.metric("forebay_origin_checksums_total", result="unjudged") == 0


def test_unstored_objects_are_verified_too(origin, start, engine):
    """An object that is not stored is verified too, by its reply alone."""
    origin.put("a", len(LARGE), body=LARGE, checksums=describe("crc32", crc32_of(LARGE)))
    server = start(origin, engine=engine, settings={"cache.max_object_size": "1MiB"})
    with server.client() as client:
        assert bytes(client.get("a", headers=MODE).body) == LARGE
    origin.fault("a", "flip", 1000, method="GET")
    with server.client() as client:
        with pytest.raises(Truncated):
            client.get("a", headers=MODE)
    with server.client() as client:
        assert bytes(client.get("a", headers=MODE).body) == LARGE
    assert server.metric("forebay_origin_checksums_total", result="cut") == 1


def test_bytes_that_were_judged_wrong_do_not_come_back(origin, start, engine):
    """Runs that were found wrong do not come back after a kill and the loss of the index.

    The server recovers runs from the segments, but not those. The origin would confirm their
    version, which is still current.
    """
    origin.put("a", len(LARGE), body=LARGE, checksums=describe("crc32", crc32_of(LARGE)))
    origin.put("b", len(BODY), body=BODY)
    server = start(origin, engine=engine)
    with server.client() as client:
        assert client.head("a").status == 200  # brings the checksum
        assert bytes(client.get("b").body) == BODY
        origin.fault("a", "flip", 1000, method="GET")
        wrong = 0
        for first in range(0, len(LARGE), 16 << 20):
            reply = client.get("a", first=first, last=first + (16 << 20) - 1)
            wrong += bytes(reply.body) != LARGE[first : first + (16 << 20)]
        assert wrong == 1  # nobody could know yet
        server.wait_metric("forebay_origin_checksums_total", lambda v: v == 1, result="mismatch")
        server.settle()
        # It follows the marks in the index's queue. When this is stored, the marks are too.
        origin.put("c", len(BODY), body=BODY)
        assert bytes(client.get("c").body) == BODY
        server.settle()
    server.kill9()
    shutil.rmtree(server.cache / "index")
    server.start()
    server.wait_stderr("index_rebuild_done")
    with server.client() as client:
        assert bytes(client.get("b").body) == BODY
        assert bytes(client.get("a").body) == LARGE


def test_a_broken_body_is_summed_once(forebay, origin):
    """A body that breaks and is resumed gives the same checksum."""
    origin.put("a", len(BODY), body=BODY, checksums=describe("crc32", RIGHT["crc32"]))
    origin.fault("a", "cut", 100_000, method="GET")
    with forebay.client() as client:
        reply = client.get("a", headers=MODE + [("If-None-Match", '"x"')])
        assert bytes(reply.body) == BODY
        forebay.settle()
        assert "hit" in client.get("a").header("cache-status")
    assert forebay.metric("forebay_origin_checksums_total", result="mismatch") == 0


def test_boto3_and_the_aws_cli_verify_what_they_get(forebay, origin, tmp_path):
    """boto3 and the AWS command line ask for checksums, by default or by a flag. Cold and warm they
    get the checksum, and never a wrong object."""
    boto3 = pytest.importorskip("boto3", reason="NOT RUN: boto3 is not installed")
    config = importlib.import_module("botocore.config").Config(
        s3={"addressing_style": "path"},
        retries={"max_attempts": 1},
        response_checksum_validation="when_supported",
    )
    for key, body, named in (
        ("small", BODY, BODY),
        ("large", LARGE, LARGE),
        ("cli", LARGE, LARGE),
        ("wrong-small", BODY, b"x"),
        ("wrong-large", LARGE, b"x"),
    ):
        origin.put(key, len(body), body=body, checksums=describe("crc32", crc32_of(named)))
    s3 = boto3.client(
        "s3",
        endpoint_url=forebay.endpoint,
        aws_access_key_id="a",
        aws_secret_access_key="b",
        region_name="us-east-1",
        config=config,
    )
    for key, body in (("small", BODY), ("large", LARGE)):
        for _ in range(2):
            reply = s3.get_object(Bucket=origin.bucket, Key=key)
            assert reply["Body"].read() == body
            assert (reply["ChecksumCRC32"], reply["ChecksumType"]) == (
                crc32_of(body),
                "FULL_OBJECT",
            )
            forebay.settle()
        head = s3.head_object(Bucket=origin.bucket, Key=key, ChecksumMode="ENABLED")
        assert head["ChecksumCRC32"] == crc32_of(body)
    for key in ("wrong-small", "wrong-large"):
        with pytest.raises(importlib.import_module("botocore.exceptions").BotoCoreError):
            s3.get_object(Bucket=origin.bucket, Key=key)["Body"].read()
    for _ in range(2):
        got = tmp_path / "got"
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "awscli",
                "--endpoint-url",
                forebay.endpoint,
                "s3api",
                "get-object",
                "--bucket",
                origin.bucket,
                "--key",
                "cli",
                "--checksum-mode",
                "ENABLED",
                got,
            ],
            capture_output=True,
            text=True,
            timeout=120,
            env={
                **os.environ,
                "AWS_ACCESS_KEY_ID": "a",
                "AWS_SECRET_ACCESS_KEY": "b",
                "AWS_DEFAULT_REGION": "us-east-1",
            },
        )
        assert done.returncode == 0, done.stderr
        assert (
            json.loads(done.stdout)["ChecksumCRC32"] == crc32_of(LARGE)
            and got.read_bytes() == LARGE
        )
        forebay.settle()
    # The first of its kind, so Forebay asked for its first run without a range.
    assert len(LARGE) <= origin.bytes_sent("large") < len(LARGE) + IN_FLIGHT
    assert origin.bytes_sent("cli") == len(LARGE)


@pytest.mark.parametrize("right", [True, False])
def test_an_object_that_is_one_long_run_of_a_small_cache_is_judged(start, origin, engine, right):
    """An object of 3 MiB in a cache of 256 MiB is verified, whether it is one run or several. It is
    several where there is no room for a long run, and a reply does not know which."""
    body = BODY * (3 * (1 << 20) // len(BODY))
    origin.put(
        "a", len(body), body=body, checksums=describe("crc32", crc32_of(body if right else b"x"))
    )
    server = start(
        origin,
        engine=engine,
        settings={"workers": "1", "cache.size": "256MiB", "cache.min_free": "0%"},
    )
    server.wait_metric("forebay_segments", lambda segments: segments >= 4)
    with server.client() as client:
        if right:
            assert client.get("a", headers=MODE).body == body
            assert len(origin.requests(key="a", method="GET")) == 1
        else:
            with pytest.raises(Truncated):
                client.get("a", headers=MODE)
    assert server.metric("forebay_origin_checksums_total", result="unjudged") == 0
    assert server.metric("forebay_origin_checksums_total", result="mismatch") == (0 if right else 1)

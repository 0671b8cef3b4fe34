# SPDX-License-Identifier: Apache-2.0
"""Stores whose HEAD and GET describe an object differently, and stores that give every object the
current date.

Cached objects stay usable: a check costs a request or two, not the object. No GET shows headers
that only HEAD has.
"""

import email.utils
import itertools
import time

import pytest
from client import judge
from test_odd_stores import explained

MIB = 1 << 20
SIZE = 9 * MIB
RULES = {
    "rules": [
        {"match": "bkt/strict/**", "freshness": "strict"},
        {"match": "bkt/short/**", "freshness": "ttl", "ttl": "1s"},
    ]
}


CALLS = itertools.count()


def now(_=None):
    """The time of the answer, different each time."""
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() - next(CALLS) % 2))


TALES = {
    "type": {"Content-Type": "application/xml"},
    "no date": {"Last-Modified": None},
    "weak tag": {"ETag": lambda v: "W/" + v},
    "bare tag": {"ETag": lambda v: v.strip('"')},
    "upper tag": {"ETag": str.upper},
    "other tag": {"ETag": '"' + "f" * 32 + '"'},
    "length": {"Content-Length": "1234"},
    "now": {"Last-Modified": now},
    "no metadata": {"x-amz-meta-owner": None},
    "no version": {"x-amz-version-id": None},
}


@pytest.fixture
def ruled(start, origin, engine):
    return start(origin, engine=engine, file=RULES, ahead_s=0)


@pytest.mark.parametrize("tale", TALES)
@pytest.mark.parametrize("size", [5000, SIZE])
def test_head_tells_another_tale(ruled, origin, tale, size):
    origin.fault(None, "replace", TALES[tale], times=None, method="HEAD")
    keys = ["strict/a", "strict/b"]
    for key in keys:
        origin.put(key, size, headers={"x-amz-meta-owner": "me", "x-amz-version-id": "first"})
    with ruled.client() as client:
        for turn in range(6):
            for key in keys:
                reply = client.get(key)
                judge(reply, origin, key, 0, size)
                assert reply.header("content-type") == "binary/octet-stream"
                assert reply.header("x-amz-meta-owner") == "me"
                assert reply.header("x-amz-version-id") == "first"
            ruled.settle()
    for key in keys:
        assert origin.bytes_sent(key) <= size + 10
        assert len(origin.requests(key=key)) <= 12 + size // (4 * MIB)


def test_every_answer_calls_the_object_new(ruled, origin):
    """After three checks, the current date no longer counts as a change. A real change still
    does."""
    origin.fault(None, "replace", {"Last-Modified": now}, times=None)
    origin.put("short/a", SIZE)
    with ruled.client() as client:
        for turn in range(10):
            if turn == 8:
                sent = origin.bytes_sent("short/a")
                origin.redescribe("short/a", {"Content-Type": "text/plain"})
            reply = client.get("short/a")
            judge(reply, origin, "short/a", 0, SIZE)
            assert turn < 8 or reply.header("content-type") == "text/plain"
            ruled.settle()
            ruled.advance(3)
        assert sent <= 4 * SIZE + 8
        assert "dates-move" in explained(ruled, "short/a")
        origin.clear_faults()  # an old date ends that state: then a current one is a change again
        for mtime in (time.time() - 3600, time.time()):
            origin.redescribe("short/a", mtime=mtime)
            ruled.advance(3)
            reply = client.get("short/a")  # stored by GET, so the next check compares with it
            judge(reply, origin, "short/a", 0, SIZE)
            assert reply.header("last-modified") == email.utils.formatdate(mtime, usegmt=True)
            ruled.settle()


def test_a_store_without_head_is_asked_for_checksums_once(ruled, origin):
    """A store that refuses HEAD cannot name checksums, so Forebay does not ask it again for a
    while."""
    origin.fault(None, "error", (405, "MethodNotAllowed"), times=None, method="HEAD")
    origin.put("long/a", SIZE)
    with ruled.client() as client:
        judge(client.get("long/a"), origin, "long/a", 0, SIZE)
        for turn in range(6):
            judge(
                client.get("long/a", headers=[("x-amz-checksum-mode", "ENABLED")]),
                origin,
                "long/a",
                0,
                SIZE,
            )
            ruled.settle()
            if turn == 1:
                mark = origin.mark()
        assert origin.requests(key="long/a", since=mark) == []


def test_a_head_that_differs_tells_checksums_once(ruled, origin):
    origin.fault(None, "replace", {"Content-Type": "application/xml"}, times=None, method="HEAD")
    origin.put("long/a", SIZE, checksums={"x-amz-checksum-crc64nvme": "AAAAAAAAAAA="})
    with ruled.client() as client:
        judge(client.get("long/a", 0, SIZE - 2), origin, "long/a", 0)
        ruled.settle()
        asks = [("x-amz-checksum-mode", "ENABLED")]
        for turn in range(4):
            judge(client.get("long/a", 70, 99, headers=asks), origin, "long/a", 70)
            ruled.settle()
        assert len(origin.requests(key="long/a", method="HEAD")) <= 2
        assert client.get("long/a", 70, 99).header("content-type") == "binary/octet-stream"


@pytest.mark.parametrize(
    "word, argument",
    [
        ("no_length", None),
        ("chunked", None),
        ("raw", b"HTTP/1.1 204 No Content\r\nx-amz-request-id: 1\r\n\r\n"),
    ],
)
def test_a_head_that_names_no_length(ruled, origin, word, argument):
    """If HEAD names no length, a GET of one byte describes the object. It is stored and checked
    like any other."""
    origin.fault(None, word, argument, times=None, method="HEAD")
    keys = [f"short/{word}{i}" for i in range(3)]
    for key in keys:
        origin.put(key, SIZE)
    with ruled.client() as client:
        for i, key in enumerate(keys):
            for _ in range(2):
                reply = client.head(key)
                assert (reply.status, reply.etag) == (200, origin.version(key).etag), reply
                assert int(reply.header("content-length")) == SIZE
            assert len(origin.requests(key=key)) == (2 if i == 0 else 1)
            judge(client.get(key), origin, key, 0, SIZE)
        ruled.settle()
        for _ in range(3):
            ruled.advance(3)
            mark = origin.mark()
            for key in keys:
                judge(client.get(key), origin, key, 0, SIZE)
            assert len(origin.requests(since=mark)) == len(keys)
            assert sum(origin.bytes_sent(key, since=mark) for key in keys) <= len(keys)
    assert explained(ruled, keys[0]) == ["head-differs"]


@pytest.mark.parametrize(
    "word, argument", [("error", (405, "MethodNotAllowed")), ("no_length", None)]
)
def test_a_head_for_checksums_of_a_store_with_an_odd_head(ruled, origin, word, argument):
    """A HEAD for checksums costs one request, as it does directly. Where the store refuses HEAD,
    the answer has no checksums."""
    origin.fault(None, word, argument, times=None, method="HEAD")
    keys = [f"short/{word}{i}" for i in range(3)]
    for key in keys:
        origin.put(key, SIZE)
    with ruled.client() as client:
        assert client.head(keys[0]).status == 200  # Forebay learns it
        for key in keys[1:]:
            mark = origin.mark()
            reply = client.head(key, headers=[("x-amz-checksum-mode", "ENABLED")])
            assert (reply.status, reply.etag) == (200, origin.version(key).etag), reply
            assert len(origin.requests(since=mark)) == 1

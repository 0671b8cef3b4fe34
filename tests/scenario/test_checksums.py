# SPDX-License-Identifier: Apache-2.0
"""The origin's checksums: kept with the object, sent only where S3 sends them, and believed: a whole object that does
not match its own is not kept."""
import base64
import hashlib
import shutil

import pytest

from client import Closed, Truncated
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
RIGHT = {"crc32": crc32_of(BODY), "crc32c": crc32c(BODY), "sha1": b64(hashlib.sha1(BODY).digest()),
         "sha256": b64(hashlib.sha256(BODY).digest()),
         "composite": b64(hashlib.sha256(BODY[:100]).digest()) + "-2", "xxhash3": "AAAAAAAAAAA="}


def describe(kind, value):
    name = "crc32" if kind == "composite" else kind
    return {f"x-amz-checksum-{name}": value,
            "x-amz-checksum-type": "COMPOSITE" if kind == "composite" else "FULL_OBJECT"}


@pytest.mark.parametrize("kind", sorted(RIGHT))
def test_sent_where_s3_sends_them(forebay, origin, kind):
    want = describe(kind, RIGHT[kind])
    origin.put("a", len(BODY), body=BODY, checksums=want)
    with forebay.client() as client:
        # HEAD is the same as direct, cold and warm, whether or not it asks.
        assert sums(client.head("a", headers=MODE)) == want
        assert sums(client.head("a")) == {}
        # A condition has the object described by a HEAD, whose checksums are kept with the bytes.
        reply = client.get("a", headers=MODE + [("If-None-Match", '"x"')])
        assert reply.status == 200 and bytes(reply.body) == BODY
        forebay.settle()
        reply = client.get("a", headers=MODE)
        assert "hit" in reply.header("cache-status") and bytes(reply.body) == BODY
        assert sums(reply) == want
        assert sums(client.get("a", headers=[("X-Amz-Checksum-Mode", "enabled")])) == want
        assert sums(client.head("a", headers=MODE)) == want
        mark = origin.mark()
        for more in ({"first": 0, "last": 99}, {"first": 0, "last": len(BODY) - 1}, {"first": 5},
                     {"query": "partNumber=1"}):
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
    assert forebay.metric("forebay_origin_checksum_failures_total") == 0


def test_head_that_asks_is_never_without(forebay, origin):
    """A version that fills brought without checksums is asked about when they are wanted by name."""
    want = describe("crc32", crc32_of(BODY))
    origin.put("a", len(BODY), body=BODY, checksums=want)
    with forebay.client() as client:
        assert bytes(client.get("a").body) == BODY
        forebay.settle()
        assert sums(client.head("a", headers=MODE)) == want
        assert sums(client.head("a")) == {} and "hit" in client.head("a").header("cache-status")


@pytest.mark.parametrize("kind", ["crc32", "crc32c", "sha1", "sha256"])
def test_a_whole_object_that_does_not_match_is_not_kept(forebay, origin, kind):
    """Bytes that are not what the origin itself says they are: counted, logged, cut or refused, never a hit."""
    wrong = {"crc32": crc32_of(b"x"), "crc32c": crc32c(b"x"), "sha1": b64(hashlib.sha1(b"x").digest()),
             "sha256": b64(hashlib.sha256(b"x").digest())}[kind]
    origin.put("a", len(BODY), body=BODY, checksums=describe(kind, wrong))
    ask = MODE + [("If-None-Match", '"x"')]
    for times in (1, 2):
        with forebay.client() as client:
            try:
                reply = client.get("a", headers=ask)
                # Its last bytes may have gone out before the sum was known; the client can see it too.
                assert reply.status == 503 or sums(reply) == describe(kind, wrong), reply
            except (Truncated, Closed):
                pass
            forebay.settle()
            assert forebay.metric("forebay_origin_checksum_failures_total") == times
            assert "hit" not in (client.head("a").header("cache-status") or "")
    forebay.wait_stderr("origin_checksum_mismatch")
    origin.put("a", len(BODY), body=BODY, checksums=describe(kind, RIGHT[kind]))
    with forebay.client() as client:
        for _ in range(2):
            reply = client.get("a", headers=ask)
            assert bytes(reply.body) == BODY and sums(reply) == describe(kind, RIGHT[kind])
            forebay.settle()
        assert "hit" in reply.header("cache-status")


LARGE = bytes(range(256)) * (80 * 4096)  # 80 MiB: many runs, of more than one worker


@pytest.mark.parametrize("right", [True, False])
def test_an_object_in_several_runs_is_judged_when_it_is_whole(forebay, origin, right):
    """Read in pieces, out of order: the last run to come says whether what is kept may stay."""
    origin.put("a", len(LARGE), body=LARGE,
               checksums=describe("crc32", crc32_of(LARGE if right else b"x")))
    with forebay.client() as client:
        assert client.head("a").status == 200    # brings the checksum
        for first in (48 << 20, 0, 16 << 20, 64 << 20, 32 << 20):
            reply = client.get("a", first=first, last=first + (16 << 20) - 1)
            assert bytes(reply.body) == LARGE[first:first + (16 << 20)]
        forebay.settle()
        assert forebay.metric("forebay_origin_checksum_failures_total") == (0 if right else 1)
        mark = origin.mark()
        reply = client.get("a")
        assert bytes(reply.body) == LARGE
        assert ("hit" in reply.header("cache-status")) == right
        assert bool(origin.requests(since=mark, method="GET")) != right
    if not right:
        forebay.wait_stderr("origin_checksum_mismatch")


def test_bytes_that_were_judged_wrong_do_not_come_back(origin, start, engine):
    """Killed and with its index gone, the server finds its runs again in the segments, but not the ones that are known
    to be wrong: the origin would confirm their version, which is still current."""
    origin.put("a", len(LARGE), body=LARGE, checksums=describe("crc32", crc32_of(LARGE)))
    origin.put("b", len(BODY), body=BODY)
    server = start(origin, engine=engine)
    with server.client() as client:
        assert client.head("a").status == 200    # brings the checksum
        assert bytes(client.get("b").body) == BODY
        origin.fault("a", "flip", 1000, method="GET")
        wrong = 0
        for first in range(0, len(LARGE), 16 << 20):
            reply = client.get("a", first=first, last=first + (16 << 20) - 1)
            wrong += bytes(reply.body) != LARGE[first:first + (16 << 20)]
        assert wrong == 1    # nobody could know yet
        server.wait_metric("forebay_origin_checksum_failures_total", lambda v: v == 1)
        server.settle()
        # Behind it in the index's queue: when this is stored the marks are, too.
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
    """A body that breaks off and is resumed adds up to the same sum."""
    origin.put("a", len(BODY), body=BODY, checksums=describe("crc32", RIGHT["crc32"]))
    origin.fault("a", "cut", 100_000, method="GET")
    with forebay.client() as client:
        reply = client.get("a", headers=MODE + [("If-None-Match", '"x"')])
        assert bytes(reply.body) == BODY
        forebay.settle()
        assert "hit" in client.get("a").header("cache-status")
    assert forebay.metric("forebay_origin_checksum_failures_total") == 0

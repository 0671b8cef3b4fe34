# SPDX-License-Identifier: Apache-2.0
"""Origins that answer in unusual but legal ways: clients get at least what they would get without the cache."""
import pytest

from client import judge

SIZE = 3000
HEADERS_MAX = 1024          # RESPONSE_HEADERS_MAX of src/origin/response_head.h
HEAD_MAX = 256 << 10        # RESPONSE_HEAD_MAX


def metadata(count, value="v"):
    return {f"x-amz-meta-{i:04}": value for i in range(count)}


def names_of(reply):
    return {name.lower() for name, _ in reply.headers if name.lower().startswith("x-amz-meta-")}


# --- many headers -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("count, value", [(119, "v"), (300, "v")])
def test_several_hundred_small_headers_are_stored(start, origin, engine, count, value):
    server = start(origin, engine=engine, settings={"cache.ttl": "1h"})
    origin.put("a", SIZE, headers=metadata(count, value))
    with server.client() as client:
        def read():
            reply = client.get("a")
            judge(reply, origin, "a", 0, SIZE)
            assert names_of(reply) == set(metadata(count))
        server.until_stored(read)
        mark = origin.mark()
        for method, status in (("HEAD", 200), ("GET", 200)):
            reply = client.get("a", method=method)
            assert reply.status == status and names_of(reply) == set(metadata(count))
        assert "hit" in reply.header("cache-status")
    assert not origin.requests(since=mark)


@pytest.mark.parametrize("count, value", [(119, "v" * 100), (900, "v"), (60, "v" * 4000)])
def test_more_headers_than_a_run_stores_pass_through(start, origin, count, value):
    """Above 8 KiB they are not cached: all of them reach the client, and each request is one at the origin."""
    server = start(origin, settings={"cache.ttl": "1h"})
    origin.put("a", SIZE, headers=metadata(count, value))
    asked = [("GET", []), ("HEAD", []), ("GET", [("Range", "bytes=100-199")]), ("GET", [("Range", "bytes=-50")]),
             ("GET", [("If-None-Match", '"other"')])]
    with server.client() as client:
        for turn in range(2):
            mark = origin.mark()
            for method, headers in asked:
                reply = client.get("a", headers=headers, method=method)
                assert reply.status in (200, 206), reply
                assert names_of(reply) == set(metadata(count)), (method, headers)
                if method == "GET":
                    judge(reply, origin, "a", reply.span[0] if reply.status == 206 else 0, reply.length)
            assert len(origin.requests(since=mark)) == len(asked) + (1 if turn == 0 else 0)
        assert server.metric("forebay_cache_bypass_total", reason="answer") == 2 * len(asked)
        assert server.metric("forebay_fills_uncacheable_total") == 1
        # A write makes the key unknown again: its next version fits.
        assert client.request("PUT", "/bkt/a", body=b"x" * 100).status == 200

        def read():
            assert bytes(client.get("a").body) == b"x" * 100
        server.until_stored(read)
        mark = origin.mark()
        read()
    assert not origin.requests(since=mark)


def test_a_cached_object_that_is_overwritten_with_many_headers(start, origin):
    """The new version passes through; nobody is given the old one."""
    server = start(origin, settings={"cache.ttl": "0s"})
    origin.put("a", SIZE)
    with server.client() as client:
        server.until_stored(lambda: judge(client.get("a"), origin, "a", 0, SIZE))
        origin.put("a", SIZE, headers=metadata(200, "v" * 100))
        for _ in range(3):
            reply = client.get("a")
            judge(reply, origin, "a", 0, SIZE)
            assert reply.etag == origin.version("a").etag and len(names_of(reply)) == 200


@pytest.mark.parametrize("headers", [metadata(HEADERS_MAX), metadata(70, "v" * 4000), {"x-amz-meta-a": "v" * HEAD_MAX}])
def test_headers_above_the_hard_limits_are_an_error_that_says_so(start, origin, headers):
    server = start(origin)
    origin.put("a", SIZE, headers=headers)
    with server.client() as client:
        reply = client.get("a")
        assert reply.status == 501 and reply.code == "NotImplemented", reply
        assert b"1,024 headers" in bytes(reply.body)
        assert client.head("a").status == 501
        assert client.get("a", headers=[("Range", "bytes=0-9")]).status == 501
    assert server.metric("forebay_origin_heads_too_large_total") >= 3
    assert len(origin.requests()) == 3

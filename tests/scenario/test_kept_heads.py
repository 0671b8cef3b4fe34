# SPDX-License-Identifier: Apache-2.0
"""The answer to a HEAD that went to the origin is kept for as long as the rule says. It answers
later HEADs and conditions, and places a suffix range."""

import pytest
from client import judge
from forebay import parallel, run_forebay
from test_auth import ALL, ORIGIN_SECRETS, Caller, keys_file, origin_keys, verify

MIB = 1 << 20
PAST_TTL_S = 61
RULES = {
    "rules": [
        {"match": "bkt/immutable/**", "freshness": "immutable"},
        {"match": "bkt/strict/**", "freshness": "strict"},
    ]
}


@pytest.fixture
def server(start, origin, engine):
    return start(origin, engine=engine, file=RULES, ahead_s=0)


def methods(origin, key, **more):
    return [e.method for e in origin.requests(key=key, **more)]


def head(client, origin, key, times=1):
    """Returns the replies, which name the origin's version."""
    replies = [client.head(key) for _ in range(times)]
    for reply in replies:
        assert (reply.status, reply.etag) == (200, origin.version(key).etag), reply
        assert int(reply.header("content-length")) == origin.version(key).size
    return replies


@pytest.mark.tsan
def test_six_heads_and_a_get_are_one_of_each(server, origin):
    """Six HEADs and a GET cost one HEAD and one GET at the origin, as cloudpathlib asks before it
    reads."""
    origin.put("a", 3 * MIB)
    with server.client() as client:
        first, *others = head(client, origin, "a", times=6)
        assert "fwd=uri-miss; fwd-status=200" in first.header("cache-status"), first
        for reply in others:
            assert "hit" in reply.header("cache-status") and reply.header("age") is not None, reply
            assert reply.header("last-modified") == first.header("last-modified")
        judge(client.get("a"), origin, "a", 0, 3 * MIB)
    assert methods(origin, "a") == ["HEAD", "GET"]
    assert server.metric("forebay_kept_answers_used_total") == 5


def test_heads_of_many_objects_before_any_is_read(server, origin):
    keys = [f"many/{i}" for i in range(200)]
    for key in keys:
        origin.put(key, 1000)

    def read(some):
        with server.client() as client:
            for key in some:
                head(client, origin, key, times=2)
            for key in some:
                judge(
                    client.get(key, headers=[("If-Match", origin.version(key).etag)]),
                    origin,
                    key,
                    0,
                    1000,
                )
                head(client, origin, key)

    parallel(4, lambda i: read(keys[i::4]))
    asked = [methods(origin, key) for key in keys]
    assert all(each == ["HEAD", "GET"] for each in asked), asked


def test_if_match_of_what_the_head_named(server, origin):
    """An If-Match with the ETag that the HEAD named works, as s3fs opens a file."""
    origin.put("a", 3 * MIB)
    with server.client() as client:
        (named,) = head(client, origin, "a")
        judge(client.get("a", 10, 99, headers=[("If-Match", named.etag)]), origin, "a", 10, 90)
        assert methods(origin, "a") == ["HEAD", "GET"]
        assert origin.requests(key="a")[1].header("if-match") == named.etag


def test_conditions_are_judged_by_a_kept_answer(server, origin):
    origin.put("a", 3 * MIB)
    with server.client() as client:
        (named,) = head(client, origin, "a")
        for condition in (
            ("If-None-Match", named.etag),
            ("If-Modified-Since", named.header("last-modified")),
        ):
            for ask in (client.get, client.head):
                reply = ask("a", headers=[condition])
                assert (reply.status, reply.etag) == (304, named.etag), reply
                assert "hit" in reply.header("cache-status")
        assert methods(origin, "a") == ["HEAD"]
        reply = client.get("a", headers=[("If-Match", '"another"')])
        assert reply.status == 412
        assert methods(origin, "a") == ["HEAD", "GET"], "the origin says so"


@pytest.mark.parametrize("size", [3 * MIB, 200 * MIB + 5000])
def test_a_kept_answer_places_a_suffix_range(server, origin, size):
    origin.put("a", size)
    with server.client() as client:
        head(client, origin, "a")
        judge(client.get("a", headers=[("Range", "bytes=-1000")]), origin, "a", size - 1000, 1000)
        assert methods(origin, "a") == ["HEAD", "GET"]
        assert origin.bytes_sent("a") <= MIB, "no more than the block that holds it"
        reply = client.get("a", headers=[("Range", f"bytes={size}-")])
        assert reply.status == 416


def test_past_the_ttl_one_head_asks_again(server, origin):
    origin.put("a", 1000)
    with server.client() as client:
        head(client, origin, "a", times=2)
        server.advance(PAST_TTL_S)
        first, second = head(client, origin, "a", times=2)
        assert "fwd=stale" in first.header("cache-status") and "hit" in second.header(
            "cache-status"
        ), (first, second)
        origin.overwrite("a", 2000)
        server.advance(PAST_TTL_S)
        head(client, origin, "a", times=2)
        assert methods(origin, "a") == ["HEAD"] * 3
        origin.overwrite("a", 3000)
        server.advance(PAST_TTL_S)
        judge(client.get("a"), origin, "a", 0, 3000)
        assert methods(origin, "a") == ["HEAD"] * 3 + ["GET"]


def test_a_change_at_the_origin_is_met_by_the_first_get(server, origin):
    """A GET never returns an older object than the origin has, even if the answer of an earlier
    HEAD is still fresh."""
    origin.put("a", 1000)
    with server.client() as client:
        head(client, origin, "a")
        origin.overwrite("a", 2000)
        judge(client.get("a"), origin, "a", 0, 2000)
        server.settle()
        head(client, origin, "a")
        origin.put("b", 1000)
        head(client, origin, "b")
        origin.overwrite("b", 3 * MIB)
        judge(client.get("b", headers=[("Range", "bytes=-10")]), origin, "b", 3 * MIB - 10, 10)
        server.settle()
        head(client, origin, "b")


def test_immutable_never_asks_again(server, origin):
    origin.put("immutable/a", 1000)
    with server.client() as client:
        head(client, origin, "immutable/a")
        server.advance(3600)
        head(client, origin, "immutable/a", times=3)
        assert methods(origin, "immutable/a") == ["HEAD"]


def test_strict_and_no_cache_ask_each_time(server, origin):
    origin.put("strict/a", 1000)
    origin.put("a", 1000)
    with server.client() as client:
        head(client, origin, "strict/a", times=6)
        assert methods(origin, "strict/a") == ["HEAD"] * 6
        for _ in range(3):
            assert client.head("a", headers=[("Cache-Control", "no-cache")]).status == 200
        head(client, origin, "a", times=3)
        assert methods(origin, "a") == ["HEAD"] * 3


@pytest.mark.tsan
def test_a_write_through_forebay_drops_it(server, origin):
    origin.put("a", 1000)
    with server.client() as client:
        head(client, origin, "a")
        body = b"x" * 2000
        assert (
            client.request("PUT", "/bkt/a", [("Content-Length", str(len(body)))], body).status
            == 200
        )
        head(client, origin, "a", times=2)
        assert methods(origin, "a") == ["HEAD", "PUT", "HEAD"]
        assert client.request("DELETE", "/bkt/a", []).status == 204
        for _ in range(2):
            assert client.head("a").status == 404
        assert methods(origin, "a") == ["HEAD", "PUT", "HEAD", "DELETE", "HEAD", "HEAD"], (
            "404s are not kept"
        )


def test_a_deletion_past_the_cache_is_met_by_the_first_get(server, origin):
    origin.put("a", 1000)
    with server.client() as client:
        head(client, origin, "a")
        origin.delete("a")
        assert client.get("a").status == 404
        assert client.head("a").status == 404


@pytest.mark.parametrize(
    "target", ["s3://bkt/immutable/a", "s3://bkt/immutable/*", "s3://bkt/*", "s3://bkt"]
)
def test_evict_drops_a_kept_answer(server, origin, target):
    """`evict` drops a kept answer. So an operator can make a change past Forebay visible, even
    under `immutable`."""
    for key in ("immutable/a", "immutable/never-asked"):
        origin.put(key, 1000)
    environment = {"FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"}
    with server.client() as client:
        head(client, origin, "immutable/a")
        origin.overwrite("immutable/a", 2000)
        for _ in range(2):  # the second finds nothing
            got = run_forebay("evict", target, env=environment)
            assert got.returncode == 0, got.stderr
            assert "never-asked" not in got.stdout
        head(client, origin, "immutable/a", times=2)
        assert methods(origin, "immutable/a") == ["HEAD", "HEAD"]


@pytest.mark.parametrize(
    "word,argument", [("header", ("Vary", "Cookie")), ("weak_etag", None), ("no_etag", None)]
)
def test_answers_for_unstorable_objects_are_not_kept(server, origin, word, argument):
    """The answer for an object that must not be stored is not kept."""
    origin.put("a", 1000)
    origin.fault("a", word, argument, times=None)
    with server.client() as client:
        for _ in range(3):
            assert client.head("a").status == 200
    assert methods(origin, "a") == ["HEAD"] * 3


def test_it_is_served_stale_while_the_origin_is_down(server, origin):
    origin.put("a", 1000)
    with server.client() as client:
        head(client, origin, "a")
        server.advance(PAST_TTL_S)
        origin.down()
        (reply,) = head(client, origin, "a")
        assert "hit" in reply.header("cache-status") and "stale" in reply.header("cache-status"), (
            reply
        )
        origin.start()


def test_a_kept_answer_serves_one_realm(tmp_path, origin, start, engine):
    """A kept answer serves one realm only: one principal's origin may deny an object that another's
    allows."""
    allow = {who: [("*", "", ALL)] for who in ("ALICE", "BOB")}
    path = keys_file(tmp_path, allow, extra={who: origin_keys(tmp_path, who) for who in allow})
    origin.credentials = {
        **origin.credentials,
        **{k: v for k, v in ORIGIN_SECRETS.items() if k != "origin-alice"},
    }
    server = start(origin, engine=engine, settings=verify(path, **{"cache.ttl": "1h"}))
    callers = {who: Caller(server, who) for who in allow}
    origin.put("a", 1000)
    for _ in range(3):
        assert callers["BOB"].ask("HEAD", "/bkt/a").status == 200
    assert len(origin.requests(key="a")) == 1
    for _ in range(2):
        assert callers["ALICE"].ask("HEAD", "/bkt/a").status == 403
    assert len(origin.requests(key="a")) == 3


def test_memory_of_kept_answers_is_bounded(start, origin):
    """Kept answers of 1,000 objects take at most a sixteenth of the memory for data in transit. The
    oldest make room."""
    server = start(origin, settings={"limits.max_buffer": "4MiB"})
    for i in range(1000):
        origin.put(f"many/{i:04}", 10, headers={"x-amz-meta-note": "n" * 500})
    with server.client() as client:
        for i in range(1000):
            head(client, origin, f"many/{i:04}")
        share = (4 << 20) // 16
        assert share // 2 < server.metric("forebay_buffer_bytes", kind="answers") <= share
        assert server.metric("forebay_limit_reached_total", limit="kept-answers") > 0
        mark = origin.mark()
        head(client, origin, "many/0999")
        assert not origin.requests(since=mark)
        head(client, origin, "many/0000")
        assert len(origin.requests(since=mark)) == 1

# SPDX-License-Identifier: Apache-2.0
"""Stores that refuse what S3 promises: HEAD although GET works, or If-Match with the store's own
ETag.

Cached objects stay usable, no reply is cut, and no versions are mixed.
"""

import threading
from collections import defaultdict

import pytest
from client import Truncated, judge
from test_auth import ALL, ORIGIN_SECRETS, Caller, judge_nothing, keys_file, origin_keys, verify
from test_control import ask, said
from waiting import wait_for

MIB = 1 << 20
SIZE = 9 * MIB
RULES = {
    "rules": [
        {"match": "bkt/strict/**", "freshness": "strict"},
        {"match": "bkt/short/**", "freshness": "ttl", "ttl": "1s"},
    ]
}
REFUSALS = {405: "MethodNotAllowed", 403: "AccessDenied", 400: "BadRequest", 501: "NotImplemented"}


@pytest.fixture
def ruled(start, origin, engine):
    return start(origin, engine=engine, file=RULES, ahead_s=0)


def explained(server, key):
    """The oddities of the key's store that `explain` names."""
    return [odd["word"] for odd in ask(server, "explain", f"s3://bkt/{key}")[-1]["oddities"]]


@pytest.mark.parametrize("status", REFUSALS)
def test_head_refused(ruled, origin, status):
    """If HEAD is refused, a GET of one byte confirms the object past its ttl, and Forebay remembers
    the refusal. New versions and deletions are still seen."""
    origin.fault(None, "error", (status, REFUSALS[status]), times=None, method="HEAD")
    for key in ("short/a", "short/b", "short/empty"):
        origin.put(key, 0 if "empty" in key else SIZE)
    with ruled.client() as client:
        for key in ("short/a", "short/b", "short/empty"):
            judge(client.get(key), origin, key, 0, origin.version(key).size)
        ruled.settle()
        assert explained(ruled, "short/a") == []
        for turn in range(3):
            ruled.advance(3)
            mark = origin.mark()
            for key in ("short/a", "short/b", "short/empty"):
                judge(client.get(key), origin, key, 0, origin.version(key).size)
                assert client.head(key).header("content-length") == str(origin.version(key).size)
            heads = origin.requests(since=mark, method="HEAD")
            assert len(heads) == (1 if turn == 0 else 0), heads
            assert origin.bytes_sent("short/a", since=mark) <= 1
        origin.redescribe("short/a", {"Content-Type": "text/plain"})
        origin.overwrite("short/b", 5000)
        origin.delete("short/empty")
        ruled.advance(3)
        assert client.head("short/a").header("content-type") == "text/plain"
        judge(client.get("short/a"), origin, "short/a", 0, SIZE)
        judge(client.get("short/b"), origin, "short/b", 0, 5000, version=2)
        assert client.get("short/empty").status == 404
    assert ruled.metric("forebay_origin_odd_total", kind="head-by-get") >= 9
    assert explained(ruled, "short/a") == ["refuses-head"]
    assert not origin.violations


def test_a_check_does_not_share_the_refusal_of_a_question_for_checksums(start, origin, engine):
    """A question for checksums can only be a HEAD. A reader past the ttl that arrives during it
    does not share its refusal, and asks by itself."""
    origin.put("a", 5000)
    origin.fault(None, "status", 405, times=None, method="HEAD")
    server = start(
        origin,
        engine=engine,
        ahead_s=0,
        file={"rules": [{"match": "**", "freshness": "ttl", "ttl": "60s"}]},
    )
    replies = []

    def read():
        with server.client() as client:
            replies.append(client.get("a"))

    with server.client() as client:
        client.get("a", first=0, last=9)
        server.durable()
        with origin.hold(None, method="HEAD"):
            assert client.get("a", headers=[("x-amz-checksum-mode", "ENABLED")]).status == 200
            origin.wait_for(1, method="HEAD")
            server.advance(61)
            reader = threading.Thread(target=read, daemon=True)
            reader.start()
            server.wait_metric("forebay_revalidations_joined_total", lambda v: v == 1)
        reader.join(60)
        judge(replies[0], origin, "a", 0, 5000)


@pytest.mark.parametrize("size", [0, 5000, SIZE])
@pytest.mark.parametrize("status", [403, 400])
def test_a_store_that_refuses_head_of_single_keys_serves_their_bytes(ruled, origin, status, size):
    """If a store refuses HEAD of one key only, a GET of one byte decides past the ttl. Forebay
    remembers the key, and still asks for all others by HEAD."""
    keys = ("short/refused", "short/granted")
    for key in keys:
        origin.put(key, size)
    origin.fault("short/refused", "error", (status, REFUSALS[status]), times=None, method="HEAD")
    with ruled.client() as client:
        for key in keys:
            judge(client.get(key), origin, key, 0, size)
        ruled.settle()
        for turn in range(3):
            ruled.advance(3)
            mark = origin.mark()
            for key in reversed(keys):  # the store answers HEADs before it refuses one
                judge(client.get(key), origin, key, 0, size)
            assert [e.method for e in origin.requests(key="short/granted", since=mark)] == ["HEAD"]
            asked = [e.method for e in origin.requests(key="short/refused", since=mark)]
            assert asked[:2] == (["HEAD", "GET"] if turn == 0 else ["GET"] + asked[1:2]), asked
            assert origin.bytes_sent("short/refused", since=mark) <= 1
        origin.overwrite("short/refused", 7000)
        ruled.advance(3)
        judge(client.get("short/refused"), origin, "short/refused", 0, 7000, version=2)


def test_a_refused_head_of_an_object_that_is_not_cached(ruled, origin):
    """A client's HEAD gets the store's own refusal. A GET that must first learn the size does not
    fail with it, whether that HEAD is its own or shared."""
    for key in ("granted", "a", "b"):
        origin.put(f"short/{key}", 5000)
    for key in ("a", "b"):
        origin.fault(f"short/{key}", "error", (403, "AccessDenied"), times=None, method="HEAD")
    replies = []

    def head():
        with ruled.client() as client:
            replies.append(client.head("short/b"))

    with ruled.client() as client:
        assert client.head("short/granted").status == 200
        assert client.head("short/a").status == 403
        assert [e.method for e in origin.requests(key="short/a")] == ["HEAD"]
        assert client.get("short/a", 40 * MIB, 40 * MIB + 1).status == 416
        reader = threading.Thread(target=head, daemon=True)
        with origin.hold("short/b", method="HEAD"):
            reader.start()
            origin.wait_for(1, key="short/b", method="HEAD")
            past = threading.Thread(
                target=lambda: replies.append(client.get("short/b", 40 * MIB, 40 * MIB + 1)),
                daemon=True,
            )
            past.start()
            ruled.wait_metric("forebay_revalidations_joined_total", lambda v: v == 1)
        reader.join(60)
        past.join(60)
    assert sorted(reply.status for reply in replies) == [200, 416]


def test_no_rights_are_not_taken_for_a_refused_head(ruled, origin):
    """If GET is refused like HEAD, the client gets 403. From then on that costs one request."""
    origin.put("short/a", 5000)
    origin.put("strict/b", 5000)
    with ruled.client() as client:
        for _ in range(2):
            judge(client.get("strict/b"), origin, "strict/b", 0, 5000)
        ruled.settle()
        origin.fault("strict/b", "error", (403, "AccessDenied"), times=None)
        for methods in (["HEAD", "GET"], ["GET"], ["GET"]):
            mark = origin.mark()
            assert client.get("strict/b").status == 403
            asked = origin.requests(key="strict/b", since=mark)
            assert [e.method for e in asked] == methods, asked
        origin.clear_faults()
        judge(client.get("strict/b"), origin, "strict/b", 0, 5000)
    assert ruled.metric("forebay_origin_odd_total", kind="head-by-get") == 1


def test_a_get_that_decides_is_nobody_elses(tmp_path, origin, start, engine):
    """Two principals have their own keys at a store that refuses HEAD to both and GET to one. The
    other's success serves only itself, although the refusal of HEAD is remembered for both."""
    allow = {who: [("*", "", ALL)] for who in ("ALICE", "BOB")}
    path = keys_file(tmp_path, allow, extra={who: origin_keys(tmp_path, who) for who in allow})
    origin.credentials = {**origin.credentials, **ORIGIN_SECRETS}
    server = start(
        origin, engine=engine, settings=verify(path), file={"rules": RULES["rules"]}, ahead_s=0
    )
    origin.put("short/a", 5000)
    callers = {who: Caller(server, who) for who in allow}
    for caller in callers.values():
        assert caller.ask("HEAD", "/bkt/short/a").status == 200
        judge(caller.get("short/a"), origin, "short/a", 0, 5000)
    server.settle()
    origin.fault(None, "error", (403, "AccessDenied"), times=None, method="HEAD")
    for denied, granted in (("ALICE", "BOB"), ("BOB", "ALICE")):
        server.advance(3)
        origin.credentials = {
            k: v
            for k, v in {**origin.credentials, **ORIGIN_SECRETS}.items()
            if k != f"origin-{denied.lower()}"
        }
        for _ in range(2):
            judge(callers[granted].get("short/a"), origin, "short/a", 0, 5000)
            for method in ("GET", "HEAD"):
                judge_nothing(callers[denied].ask(method, "/bkt/short/a"))


def test_more_keys_refuse_head_than_are_remembered(ruled, origin):
    """If more keys refuse HEAD than Forebay remembers, each read is still right. A forgotten key
    costs one HEAD again."""
    keys = [f"strict/{i}" for i in range(300)]
    for key in keys:
        origin.put(key, 10)
    origin.put("strict/granted", 10)
    with ruled.client() as client:
        for key in ["strict/granted", *keys]:
            judge(client.get(key), origin, key, 0, 10)
        ruled.settle()
        assert client.get("strict/granted").status == 200
        origin.fault(None, "error", (403, "AccessDenied"), times=None, method="HEAD")
        for _ in range(2):
            mark = origin.mark()
            for key in keys:
                judge(client.get(key), origin, key, 0, 10)
        heads = origin.requests(since=mark, method="HEAD")
        assert len(keys) - 256 <= len(heads) < len(keys)


@pytest.mark.parametrize("status", [412, 400, 501])
def test_if_match_fails(start, origin, engine, status):
    """If the store refuses If-Match with its own ETag, an object of several runs still arrives
    whole. After the first refusal Forebay leaves If-Match out."""
    server = start(origin, engine=engine, file=RULES)
    origin.fault(None, "no_if_match", status, times=None)
    for key in ("a", "b"):
        origin.put(key, 3 * SIZE)
    with server.client() as client:
        for key in ("a", "b"):
            judge(client.get(key), origin, key, 0, 3 * SIZE)
            server.settle()
    refused = [e for e in origin.requests() if e.status == status]
    assert 1 <= len(refused) <= 4, refused
    assert server.metric("forebay_origin_odd_total", kind="no-if-match") >= 4
    assert origin.sent_twice("a") == origin.sent_twice("b") == 0
    assert explained(server, "a") == ["fails-if-match"]
    assert "fails If-Match for its own ETag" in said(server, "explain", "s3://bkt/a")


def test_without_if_match_versions_are_not_mixed(start, origin, engine):
    """Without If-Match, the object changes between two runs. Forebay sees it in the answer's ETag
    and cuts the reply."""
    server = start(origin, engine=engine, file=RULES)
    origin.fault(None, "no_if_match", 412, times=None)
    origin.put("a", 3 * SIZE)
    origin.put("b", 3 * SIZE)
    with server.client() as client:
        judge(client.get("a"), origin, "a", 0, 3 * SIZE)
    gate = threading.Event()
    origin.fault("b", "hold", (gate,), at=2)
    with server.connection() as connection:
        connection.send(b"GET /bkt/b HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        origin.wait_for(2, key="b")
        origin.overwrite("b", 3 * SIZE)
        gate.set()
        with pytest.raises(Truncated):
            connection.read_reply()
    with server.client() as client:
        judge(client.get("b"), origin, "b", 0, 3 * SIZE, version=2)


@pytest.mark.parametrize("other", ["version", "shorter", "absent"])
def test_replicas_that_differ_cut_no_reply(start, origin, engine, other):
    """Two replicas behind one endpoint have different versions of a key, or one lacks it.

    No reply is cut or mixed where a direct GET would not be: Forebay asks on other connections.
    Later reads of the key are relayed.
    """
    server = start(origin, engine=engine, settings={"cache.block_size": "1MiB", "cache.ttl": "1h"})
    replicas = []
    for size in (3 * SIZE, SIZE if other == "shorter" else 3 * SIZE):
        origin.put("a", size)
        replicas.append(origin.version("a"))
    if other == "absent":
        replicas[1] = None
    origin.put("b", 3 * SIZE)
    asked = defaultdict(list)

    def answers(entry):
        """The object's first range has the first version. The other replica answers the other
        ranges, twice."""
        asked[entry.header("range")].append(entry.connection)
        return replicas[len(asked) > 1 and len(asked[entry.header("range")]) < 3]

    with server.client() as client:
        judge(client.get("b"), origin, "b", 0, 3 * SIZE)  # the store accepts If-Match
        origin.replicas["a"] = answers
        judge(client.get("a"), origin, "a", 0, 3 * SIZE, version=1)
        assert explained(server, "a") == ["versions-differ"]
        for _ in range(3):
            reply = client.get("a")
            if other == "absent" and reply.status == 404:
                continue
            number = origin.number_of("a", reply.etag.strip('"'))
            judge(reply, origin, "a", 0, replicas[number - 1].size, version=number)
        mark = origin.mark()
        reply = client.get("a", 100, 199)
        assert reply.status in (206, 404) and "versions" in reply.header("cache-status")
        assert len(origin.requests(since=mark)) == 1
        judge(client.get("b"), origin, "b", 0, 3 * SIZE)
    assert server.metric("forebay_origin_odd_total", kind="other-version") >= 1
    assert server.metric("forebay_fills_uncacheable_total", why="versions") >= 1


def test_an_old_replica_serves_only_replies_that_began_with_it(start, origin, engine):
    """A reply continues with the version that it began, from a replica that a write has not
    reached. A client that asks after the write's reply gets none of that version, even while it is
    in flight."""
    server = start(
        origin,
        engine=engine,
        settings={"cache.block_size": "1MiB", "cache.ttl": "1h", "cache.readahead": "0"},
    )
    origin.put("b", 3 * SIZE)
    origin.put("a", 3 * SIZE)
    old, begun, gate = origin.version("a"), threading.Event(), threading.Event()
    body = b"new" * SIZE
    origin.fault("a", "hold_at", (1000, begun), method="GET")
    asked = []

    def answers(entry):
        """The second replica that is asked for a range of the old version has it."""
        asked.append((entry.header("range"), entry.header("if-match")))
        return (
            old if asked[-1][1] == old.etag and asked.count(asked[-1]) > 1 else origin.version("a")
        )

    with (
        server.client() as client,
        server.connection(receive_buffer=65536) as slow,
        server.connection() as later,
    ):
        judge(client.get("b"), origin, "b", 0, 3 * SIZE)  # the store accepts If-Match
        slow.send(b"GET /bkt/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        origin.wait_for(1, key="a", method="GET")
        assert (
            client.request("PUT", "/bkt/a", [("Content-Length", str(len(body)))], body).status
            == 200
        )
        origin.replicas["a"] = answers
        origin.fault("a", "hold", (gate,), at=3, method="GET")
        mark = origin.mark()
        begun.set()
        reply = slow.read_head()
        # The third run is asked for while the second is being sent. The socket alone must not hold
        # the whole first run.
        body_begin = slow.read_body(origin.requests(key="a", method="GET")[1].range[0] + 1, reply)
        origin.wait_for(3, key="a", method="GET", since=mark)
        held = origin.requests(key="a", method="GET", since=mark)[2]
        first = int(held.header("range").split("=")[1].split("-")[0])
        joined, now = server.metric("forebay_fills_total", state="joined"), origin.mark()
        later.send(
            b"GET /bkt/a HTTP/1.1\r\nHost: 127.0.0.1\r\nRange: bytes=%d-%d\r\n\r\n"
            % (first, first + 999)
        )
        wait_for(
            lambda: (
                server.metric("forebay_fills_total", state="joined") > joined
                or any(
                    e.header("if-match") is None
                    for e in origin.requests(key="a", method="GET", since=now)
                )
            ),
            "the later reader has asked",
        )
        gate.set()
        given = later.read_reply()
        assert bytes(given.body) == body[first : first + 1000], given
        reply.body = body_begin + slow.read_body(3 * SIZE - len(body_begin), reply)
        judge(reply, origin, "a", 0, 3 * SIZE, version=old.number)


def test_a_version_that_was_replaced_is_asked_for_a_few_times(start, origin, engine):
    """If no replica has the old version any more, the reply is cut after two more requests. The
    next client gets the new version."""
    server = start(origin, engine=engine, settings={"cache.block_size": "1MiB"})
    origin.put("a", 3 * SIZE)
    gate = threading.Event()
    origin.fault("a", "hold", (gate,), at=2, times=None)
    with server.connection() as connection:
        connection.send(b"GET /bkt/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        origin.wait_for(2, key="a")
        origin.overwrite("a", 3 * SIZE)
        gate.set()
        with pytest.raises(Truncated):
            connection.read_reply()
    refused = [e for e in origin.requests(key="a") if e.status == 412]
    assert len(refused) <= 2 * (1 + 2), refused
    with server.client() as client:
        judge(client.get("a"), origin, "a", 0, 3 * SIZE, version=2)
    assert explained(server, "a") == []


@pytest.mark.parametrize("word", ["weak_etag", "no_etag"])
def test_the_store_judges_if_match_where_its_own_etag_is_weak(start, origin, engine, word):
    """Forebay sends If-Match with a weak ETag to a store that accepts it, although no strong
    comparison holds. The client gets what it would get directly."""
    server = start(origin, engine=engine)
    origin.put("a", 5000)
    origin.fault("a", word, times=None)
    etag = origin.version("a").etag
    with server.client() as client:
        for turn in range(3):
            mark = origin.mark()
            judge(client.get("a", headers=[("If-Match", etag)]), origin, "a", 0, 5000, version=1)
            reply = client.get("a", 10, 19, headers=[("If-Match", etag)])
            assert reply.status == 206 and reply.body == origin.bytes_of("a", 10, 10)
            assert client.head("a", headers=[("If-Match", etag)]).status == 200
            assert len(origin.requests(since=mark)) <= (5 if turn == 0 else 3)
            assert client.get("a", headers=[("If-Match", '"other"')]).status == 412


@pytest.mark.parametrize("word", ["weak_etag", "no_etag"])
def test_objects_without_a_strong_etag_cost_what_they_cost_directly(start, origin, engine, word):
    """Objects without a strong ETag are not stored. Each read costs one request, for the bytes that
    the client wants."""
    server = start(origin, engine=engine)
    origin.put("a", 9 * MIB)
    origin.fault("a", word, times=None)
    with server.client() as client:
        judge(client.get("a"), origin, "a", 0, 9 * MIB, version=1)
        for more in ([], [("x-amz-checksum-mode", "ENABLED")]):
            mark = origin.mark()
            judge(client.get("a", headers=more), origin, "a", 0, 9 * MIB, version=1)
            judge(client.get("a", 100, 199, headers=more), origin, "a", 100, 100, version=1)
            assert [e.method for e in origin.requests(since=mark)] == ["GET", "GET"]
            assert origin.bytes_sent("a", since=mark) == 9 * MIB + 100

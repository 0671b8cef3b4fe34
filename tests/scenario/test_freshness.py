# SPDX-License-Identifier: Apache-2.0
"""Freshness: ttl, immutable, strict, one revalidation for all readers, and stale answers while the
origin is down.

A ttl runs on the server's own clock, which these tests move past it. All other waits are for
events.
"""

import threading

import pytest
from client import judge
from forebay import parallel

MIB = 1 << 20
RULES = {
    "rules": [
        {"match": "bkt/immutable/**", "freshness": "immutable"},
        {"match": "bkt/strict/**", "freshness": "strict"},
        {"match": "bkt/short/**", "freshness": "ttl", "ttl": "1s"},
        {"match": "bkt/long/**", "freshness": "ttl", "ttl": "1h"},
        {"match": "bkt/never/**", "cache": False},
    ]
}


PAST_TTL_S = 3  # past a ttl of 1s


@pytest.fixture
def ruled(start, origin, engine):
    return start(origin, engine=engine, file=RULES, ahead_s=0)


def read_all(server, origin, keys, size):
    with server.client() as client:
        for key in keys:
            judge(client.get(key), origin, key, 0, size)
    server.settle()


@pytest.mark.tsan
def test_the_three_kinds(ruled, origin):
    """`immutable` never revalidates. A ttl revalidates once when it is over, without a body.
    `strict` revalidates for each request."""
    keys = {
        kind: [f"{kind}/{i}" for i in range(20)]
        for kind in ("immutable", "strict", "short", "long")
    }
    everything = [key for some in keys.values() for key in some]
    for key in everything:
        origin.put(key, 20_000)
    read_all(ruled, origin, everything, 20_000)
    mark = origin.mark()
    ruled.advance(PAST_TTL_S)
    read_all(ruled, origin, everything, 20_000)
    assert not [e for e in origin.requests(since=mark) if e.key.startswith(("immutable", "long"))]
    for key in keys["short"] + keys["strict"]:
        asked = origin.requests(key=key, since=mark)
        assert [(e.method, e.status, e.sent) for e in asked] == [("HEAD", 200, 0)], (
            key,
            asked,
        )
    mark = origin.mark()
    read_all(ruled, origin, everything, 20_000)
    asked = {e.key.split("/")[0] for e in origin.requests(since=mark)}
    assert asked <= {"strict", "short"}, asked
    assert len([e for e in origin.requests(since=mark) if e.key.startswith("strict")]) == 20
    assert origin.bytes_sent(since=mark) == 0
    with ruled.client() as client:
        assert "hit" in client.get("immutable/0").header("cache-status")
        assert "detail=strict" in client.get("strict/0").header("cache-status")


def test_cache_false_is_never_stored(ruled, origin):
    origin.put("never/a", 5000)
    with ruled.client() as client:
        for turn in range(3):
            judge(client.get("never/a"), origin, "never/a", 0, 5000)
            assert "bypass" in client.get("never/a").header("cache-status")
    assert len(origin.requests(key="never/a", method="GET")) == 6


def test_one_revalidation_serves_all_readers(ruled, origin):
    size = 3 * MIB
    origin.put("short/a", size)
    read_all(ruled, origin, ["short/a"], size)
    ruled.advance(PAST_TTL_S)
    mark = origin.mark()
    with origin.hold("short/a") as gate:
        started = threading.Barrier(31)

        def one(i):
            with ruled.connection() as connection:
                connection.send(b"GET /bkt/short/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                started.wait(60)
                judge(connection.read_reply(), origin, "short/a", 0, size)

        joined = ruled.metric("forebay_revalidations_joined_total") + 29
        opener = threading.Thread(
            target=lambda: (
                started.wait(60),
                origin.wait_for(1, key="short/a", since=mark),
                ruled.wait_metric("forebay_revalidations_joined_total", lambda v: v >= joined),
                gate.set(),
            )
        )
        opener.start()
        parallel(30, one)
        opener.join()
    asked = origin.requests(key="short/a", since=mark)
    assert [(e.method, e.status) for e in asked] == [("HEAD", 200)], asked


def test_a_new_version_is_seen_after_the_ttl_and_at_once_under_strict(ruled, origin):
    for key in ("short/a", "strict/a", "long/a", "immutable/a"):
        origin.put(key, 2 * MIB)
    read_all(ruled, origin, ["short/a", "strict/a", "long/a", "immutable/a"], 2 * MIB)
    for key in ("short/a", "strict/a", "long/a", "immutable/a"):
        origin.overwrite(key, 2 * MIB + 7)
    with ruled.client() as client:
        assert judge(client.get("strict/a"), origin, "strict/a", 0, 2 * MIB + 7) == 2
        assert judge(client.get("long/a"), origin, "long/a", 0, 2 * MIB) == 1
        ruled.advance(PAST_TTL_S)
        assert judge(client.get("short/a"), origin, "short/a", 0, 2 * MIB + 7) == 2
        assert client.head("short/a").header("content-length") == str(2 * MIB + 7)
        assert judge(client.get("long/a"), origin, "long/a", 0, 2 * MIB) == 1
        assert judge(client.get("immutable/a"), origin, "immutable/a", 0, 2 * MIB) == 1


def test_deleted_at_the_origin(ruled, origin):
    origin.put("short/a", 5000)
    origin.put("strict/a", 5000)
    read_all(ruled, origin, ["short/a", "strict/a"], 5000)
    origin.delete("short/a")
    origin.delete("strict/a")
    ruled.advance(PAST_TTL_S)
    with ruled.client() as client:
        assert client.get("strict/a").status == 404
        assert client.get("short/a").status == 404
        assert client.head("short/a").status == 404


@pytest.mark.tsan
def test_strict_sees_an_overwrite_that_came_before_the_request(ruled, origin):
    """Under `strict`, a reader that starts after an overwrite never joins a revalidation that began
    before it."""
    origin.put("strict/a", 30_000)
    read_all(ruled, origin, ["strict/a"], 30_000)
    stop = threading.Event()
    failed = []

    def noise(i):
        try:
            with ruled.client() as client:
                while not stop.is_set():
                    least = origin.version("strict/a").number
                    found = judge(client.get("strict/a"), origin, "strict/a", 0)
                    assert found >= least, f"stale: {found}, not {least}"
        except BaseException as error:  # noqa: BLE001: judged below
            failed.append(error)

    threads = [threading.Thread(target=noise, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    try:
        with ruled.client() as client:
            for _ in range(60):
                number = origin.overwrite("strict/a")
                found = judge(client.get("strict/a"), origin, "strict/a", 0)
                assert found == number, f"stale: {found} instead of {number}"
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not failed, failed[0]


def test_stale_if_error(start, origin):
    """While the origin is down, cached objects are served and marked as stale. Uncached objects
    give 503, never 404."""
    server = start(
        origin,
        settings={"cache.ttl": "1s", "cache.stale_if_error": "1h"},
        ahead_s=0,
        file={
            "rules": [
                {"match": "bkt/hard/**", "ttl": "1s", "stale_if_error": "0s"},
                {"match": "bkt/strict/**", "freshness": "strict"},
            ]
        },
    )
    keys = ["soft/a", "hard/a", "strict/a"]
    for key in keys:
        origin.put(key, 20_000)
    read_all(server, origin, keys, 20_000)
    server.advance(PAST_TTL_S)
    for how in ("down", "503"):
        if how == "down":
            origin.down()
        else:
            origin.start()
            origin.fault(None, "status", 503, times=None)
        with server.client() as client:
            reply = client.get("soft/a")
            judge(reply, origin, "soft/a", 0, 20_000, version=1)
            assert "stale-if-error" in reply.header("cache-status"), reply
            assert client.head("soft/a").status == 200
            assert client.get("hard/a").status == 503
            assert client.get("absent").status == 503
    origin.clear_faults()
    with server.client() as client:
        judge(client.get("hard/a"), origin, "hard/a", 0, 20_000)
        origin.overwrite("soft/a")
        server.advance(PAST_TTL_S)
        assert judge(client.get("soft/a"), origin, "soft/a", 0, 20_000) == 2


def test_stale_objects_do_not_wait_for_a_silent_origin(start, origin):
    """The origin accepts connections and answers nothing. One check without a retry finds that out.
    While Forebay knows it, reads of stale objects send no request: the probe notices the end.
    Clients that may not get stale bytes wait as ever."""
    server = start(
        origin,
        settings={
            "cache.ttl": "1m",
            "origin.probe": "true",
            "origin.retries": 3,
            "origin.first_byte_timeout": "200ms",
        },
        ahead_s=0,
        file={
            "rules": [
                {"match": "bkt/hard/**", "stale_if_error": "0s"},
                {"match": "bkt/strict/**", "freshness": "strict"},
            ]
        },
    )
    soft = [f"soft/{i}" for i in range(6)]
    for key in (*soft, "hard/a", "strict/a"):
        origin.put(key, 20_000)
    read_all(server, origin, [*soft, "hard/a", "strict/a"], 20_000)
    server.settle()
    server.advance(61)
    with server.client() as client, origin.hold(None):

        def read_stale(key):
            reply = client.get(key)
            judge(reply, origin, key, 0, 20_000, version=1)
            assert "stale-if-error" in reply.header("cache-status"), reply

        mark = origin.mark()
        read_stale(soft[0])
        assert [e.method for e in origin.requests(key=soft[0], since=mark)] == ["HEAD"]
        server.wait_condition("origin-unreachable")
        mark = origin.mark()
        for key in soft:
            read_stale(key)
            assert client.head(key).status == 200
        assert [e for e in origin.requests(since=mark) if e.key in soft] == []
        no_cache = [("Cache-Control", "no-cache")]
        assert client.get(soft[0], headers=no_cache).status == 503
        assert len(origin.requests(key=soft[0], since=mark)) > 1
        for key in ("hard/a", "strict/a"):
            assert client.get(key).status == 503
            assert len(origin.requests(key=key, since=mark)) > 1, key
        origin.overwrite(soft[0])
    server.wait_condition("origin-unreachable", holds=False)
    with server.client() as client:
        assert judge(client.get(soft[0]), origin, soft[0], 0, 20_000) == 2


@pytest.mark.parametrize(
    "answer", [("error", (501, "NotImplemented", "No")), ("close", None)], ids=["501", "none"]
)
def test_stale_objects_are_checked_where_the_probe_shows_no_recovery(start, origin, answer):
    """The store answers requests for objects only. The probe gets 501, or no answer. After a short
    silence of the store, objects past their ttl are checked again."""
    origin.fault("", *answer, times=None).bucket = ""
    server = start(
        origin,
        settings={
            "cache.ttl": "1m",
            "origin.probe": "true",
            "origin.retries": 0,
            "origin.first_byte_timeout": "200ms",
        },
        ahead_s=0,
    )
    origin.put("a", 20_000)
    read_all(server, origin, ["a"], 20_000)
    server.settle()
    server.advance(61)
    with server.client() as client:
        with origin.hold("a"):
            judge(client.get("a"), origin, "a", 0, 20_000, version=1)
        origin.overwrite("a")
        server.wait_condition("origin-unreachable", holds=answer[0] == "close")
        assert judge(client.get("a"), origin, "a", 0, 20_000) == 2


def test_head_alone_revalidates_too(ruled, origin):
    origin.put("short/a", 5000)
    read_all(ruled, origin, ["short/a"], 5000)
    ruled.advance(PAST_TTL_S)
    mark = origin.mark()
    with ruled.client() as client:
        assert client.head("short/a").status == 200
        judge(client.get("short/a"), origin, "short/a", 0, 5000)
    assert len(origin.requests(key="short/a", since=mark)) == 1


@pytest.mark.parametrize("how", ["stop", "kill9"])
def test_freshness_survives_a_restart(start, origin, engine, how):
    """After a restart immutable objects are hits. An object whose ttl is over is revalidated
    once."""
    server = start(origin, engine=engine, file=RULES)
    keys = [f"{kind}/{i}" for kind in ("immutable", "short", "long") for i in range(10)]
    for key in keys:
        origin.put(key, 20_000)
    read_all(server, origin, keys, 20_000)
    assert server.metric("forebay_fills_total", state="stored") == len(keys), server.output()
    if how == "kill9":
        server.wait_metric("forebay_cache_objects", lambda v: v == len(keys))  # committed
        server.kill9()
    else:
        server.stop()
    server.start()
    mark = origin.mark()
    read_all(server, origin, keys, 20_000)
    asked = origin.requests(since=mark)
    again = [e for e in asked if e.key.startswith("immutable")]
    assert not again, (again, server.output())
    assert origin.bytes_sent(since=mark) == 0
    assert all(e.method == "HEAD" and e.status == 200 for e in asked), asked


def test_client_directives(start, origin):
    """With cache.client_directives revalidate, no-cache asks the origin and no-store has no
    effect."""
    server = start(origin, settings={"cache.ttl": "1h"})
    origin.put("a", 5000)
    read_all(server, origin, ["a"], 5000)
    origin.overwrite("a")
    with server.client() as client:
        assert judge(client.get("a"), origin, "a", 0, 5000) == 1
        reply = client.get("a", headers=[("Cache-Control", "no-cache")])
        assert judge(reply, origin, "a", 0, 5000) == 2
        origin.overwrite("a")
        reply = client.get(
            "a", headers=[("Cache-Control", "max-age=0"), ("Cache-Control", "no-cache")]
        )
        assert judge(reply, origin, "a", 0, 5000) == 3

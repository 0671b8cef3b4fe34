# SPDX-License-Identifier: Apache-2.0
"""A delivered object is a hit for the next client. No client gets an older version than another got
before, even if objects are overwritten past the cache or the server is killed."""

import contextlib
import random
import threading
import time
from collections import Counter

import pytest
from client import Closed, Truncated, judge
from conftest import not_run
from forebay import build_kind, scaled
from oracle import oracle_judge

RULES = {
    "rules": [
        {"match": "bkt/immutable/**", "freshness": "immutable"},
        {"match": "bkt/strict/**", "freshness": "strict"},
    ]
}
SIZE = 200_000


def cache_status(reply):
    return reply.header("cache-status")


@pytest.mark.tsan
@pytest.mark.parametrize("workers", [1, 4])
def test_a_delivered_object_is_a_hit(start, origin, engine, workers):
    """After a GET, a HEAD, a condition and a range on new connections are hits at once. No request
    reaches the origin. With no-cache there is one revalidation without a body."""
    server = start(origin, engine=engine, file=RULES, settings={"workers": workers})
    keys = [f"immutable/{i}" for i in range(scaled(600))]
    for key in keys:
        origin.put(key, SIZE)
    clients = [server.client() for _ in range(6)]
    try:
        for i, key in enumerate(keys):
            first = clients[i % 6].get(key)
            judge(first, origin, key, 0, SIZE)
            head = clients[(i + 1) % 6].head(key)
            same = clients[(i + 2) % 6].get(key, headers=[("If-None-Match", first.etag)])
            part = clients[(i + 3) % 6].get(key, 70_000, 79_999)
            judge(part, origin, key, 70_000, 10_000)
            assert (head.status, same.status, part.status) == (200, 304, 206)
            for reply in (head, same, part):
                assert "; hit" in cache_status(reply), (key, cache_status(reply))
            asked = origin.requests(key=key)
            assert [e.method for e in asked] == ["GET"], (key, asked)
            fresh = clients[(i + 4) % 6].get(key, headers=[("Cache-Control", "no-cache")])
            judge(fresh, origin, key, 0, SIZE)
            asked = origin.requests(key=key)
            assert [(e.method, e.status) for e in asked[1:]] == [("HEAD", 200)], (key, asked)
            assert origin.sent_twice(key) == 0
    finally:
        for client in clients:
            client.close()
    # Each of three requests for a key was answered from the cache, and the metrics count it so.
    server.wait_metric("forebay_cache_requests_total", lambda v: v >= 3 * len(keys), result="hit")


@pytest.mark.parametrize("workers", [1, 4])
def test_an_object_whose_runs_are_being_written_is_a_hit(start, origin, engine, workers, tmp_path):
    """Three runs have arrived and the disk accepts none of them. A further read is a full hit, not
    a partial one."""
    if build_kind() == "release":
        not_run("a release has no faults")
    gate = tmp_path / "gate"
    gate.touch()
    server = start(
        origin,
        engine=engine,
        file=RULES,
        settings={"workers": workers, "limits.max_buffer": "256MiB"},
        env={"FOREBAY_DISK_FAULTS": f"write:file={gate}:hold"},
    )
    size = 12 << 20
    origin.put("immutable/big", size)
    try:
        with server.client() as client:
            judge(client.get("immutable/big"), origin, "immutable/big", 0, size)
        asked = len(origin.requests())
        for _ in range(2 * workers):
            with server.client() as client:
                reply = client.get("immutable/big")
                judge(reply, origin, "immutable/big", 0, size)
                assert "; hit" in cache_status(reply), cache_status(reply)
        assert len(origin.requests()) == asked
    finally:
        gate.unlink()


def test_strict_fetches_no_second_body(start, origin, engine):
    """Under `strict` each reader after the first costs one revalidation without a body."""
    server = start(origin, engine=engine, file=RULES, settings={"workers": 4})
    keys = [f"strict/{i}" for i in range(scaled(600))]
    for key in keys:
        origin.put(key, SIZE)
    with server.client() as one, server.client() as other:
        for key in keys:
            first = one.get(key)
            judge(first, origin, key, 0, SIZE)
            judge(other.get(key), origin, key, 0, SIZE)
            asked = origin.requests(key=key)
            assert [(e.method, e.status) for e in asked[:1]] == [("GET", 206)], (key, asked)
            assert [(e.method, e.status) for e in asked[1:]] == [("HEAD", 200)], (key, asked)


# --- reads past the cache -------------------------------------------------------------------------

PAGE = "http://page.example"
PAST = {
    "part": {"query": "partNumber=2"},
    "unknown": {"query": "nothing=1"},
    "page": {"headers": [("Origin", PAGE)]},
    "payer": {"headers": [("x-amz-request-payer", "requester")]},
    "no-store": {"headers": [("Cache-Control", "no-store")]},
}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("kind", PAST)
def test_nobody_gets_older_bytes_after_a_read_past_the_cache(start, origin, engine, kind, method):
    """A read past the cache returned the newer version, or that the object is deleted. No client
    gets the old version afterwards, even after a crash."""
    server = start(
        origin,
        engine=engine,
        file=RULES,
        settings={"workers": 4, "auth.allowed_origins": PAGE, "cache.client_directives": "all"},
    )
    keys = [f"immutable/{i}" for i in range(12)]
    for key in keys:
        origin.put(key, SIZE, parts=[100_000, 100_000])
    clients = [server.client() for _ in range(6)]
    try:
        for i, key in enumerate(keys):
            judge(clients[i % 6].get(key), origin, key, 0, SIZE, version=1)
        server.settle()
        for i, key in enumerate(keys[:6]):
            origin.overwrite(key)
            past = clients[i % 6].get(key, method=method, **PAST[kind])
            assert "bypass" in cache_status(past) and origin.number_of(key, past.etag) == 2, past
            for client in clients:
                judge(client.get(key), origin, key, 0, SIZE, version=2)
        for i, key in enumerate(keys[6:9]):
            origin.delete(key)
            past = clients[i % 6].get(key, method=method, **PAST[kind])
            assert past.status == 404, past
            if kind != "unknown":  # the 404 may be of something else
                assert [client.get(key).status for client in clients] == 6 * [404]
        for key in keys[9:]:
            origin.overwrite(key)
            clients[0].get(key, method=method, **PAST[kind])
    finally:
        for client in clients:
            client.close()
    server.kill9()
    server.start()
    with server.client() as client:
        for key in keys[:6] + keys[9:]:
            judge(client.get(key), origin, key, 0, SIZE, version=2)


@pytest.mark.parametrize(
    "query,headers",
    [("partNumber=2", "If-Match"), ("nothing=1", "If-Match"), ("partNumber=3", None)],
)
def test_a_version_that_a_relayed_read_found_gone_is_not_served(
    start, origin, engine, query, headers
):
    """A download by parts that finds its version gone starts again, and does not get the same old
    version from the cache."""
    server = start(origin, engine=engine, file=RULES, settings={"workers": 4})
    key = "immutable/a"
    origin.put(key, SIZE, parts=[100_000, 50_000, 50_000])
    with server.client() as client, server.client() as other:
        first = client.get(key)
        judge(first, origin, key, 0, SIZE, version=1)
        server.settle()
        origin.put(key, SIZE - 50_000, parts=[100_000, 50_000])
        denied = client.get(key, query=query, headers=[(headers, first.etag)] if headers else [])
        assert denied.status == (412 if headers else 416), denied
        judge(client.get(key), origin, key, 0, SIZE - 50_000, version=2)
        judge(other.get(key), origin, key, 0, SIZE - 50_000, version=2)


def test_a_read_of_an_old_version_changes_nothing(start, origin, engine):
    """A read of an old version, by its id, says nothing about the current one."""
    server = start(origin, engine=engine, file=RULES)
    origin.put("immutable/a", SIZE)
    with server.client() as client:
        judge(client.get("immutable/a"), origin, "immutable/a", 0, SIZE)
        server.settle()
        for query in ("versionId=null", "versionId=null&versionId=1", "nothing=1"):
            judge(client.get("immutable/a", query=query), origin, "immutable/a", 0, SIZE)
            assert "; hit" in cache_status(client.get("immutable/a"))
        origin.overwrite("immutable/a")
        for query in ("versionId=null", "versionId=null&versionId=1"):
            client.get("immutable/a", query=query)
            assert "; hit" in cache_status(client.get("immutable/a"))
        assert len(origin.requests(key="immutable/a")) == 6


# --- overwrites past the cache --------------------------------------------------------------------


class Reader:
    """Reads on connections of its own. Records each version and when it was read."""

    def __init__(self, origin, keys, seed, wants_newest):
        self.origin, self.keys, self.rng = origin, keys, random.Random(seed)
        self.wants_newest = wants_newest
        self.rows, self.counts = [], Counter()

    def one(self, client):
        key = self.rng.choice(self.keys)
        headers, first = [], 0
        method = "HEAD" if self.rng.random() < 0.25 else "GET"
        if self.wants_newest and self.rng.random() < 0.5:
            headers.append(("Cache-Control", "no-cache"))
        elif self.wants_newest:
            etag = self.origin.version(key).etag
            headers.append(("If-Match", etag))
        query = (
            "nothing=1" if self.wants_newest and self.rng.random() < 0.2 else ""
        )  # past the cache
        if method == "GET" and self.rng.random() < 0.5:
            first = self.rng.choice([0, 32, 4096])
            headers.append(("Range", f"bytes={first}-{first + 999}"))
        began = time.monotonic()
        try:
            reply = client.get(key, headers=headers, method=method, query=query)
        except (Closed, ConnectionError, Truncated):
            self.counts["cut"] += 1
            return
        ended = time.monotonic()
        self.counts[reply.status] += 1
        if reply.status in (200, 206):
            number = self.origin.number_of(key, reply.etag)
            if method == "GET":
                name = self.origin.name(key)
                seen = oracle_judge(name, reply.body, first if reply.status == 206 else 0)
                assert seen == number, f"{key}: ETag of {number}, bytes of {seen}"
            self.rows.append((key, began, ended, number))

    def run(self, server, until):
        with server.client() as client:
            while not until.is_set():
                self.one(client)


def steps_back(rows):
    """Returns the reads that got an older version than another read that had ended before they
    began."""
    back = []
    for key in {row[0] for row in rows}:
        ended = sorted((row[2], row[3]) for row in rows if row[0] == key)
        at, newest = 0, 0
        for _, began, _, number in sorted((r for r in rows if r[0] == key), key=lambda r: r[1]):
            while at < len(ended) and ended[at][0] < began:
                newest = max(newest, ended[at][1])
                at += 1
            if number < newest:
                back.append((key, number, newest))
    return back


def test_the_judge_of_steps_back():
    assert steps_back([("a", 1, 2, 2), ("a", 3, 4, 1)]) == [("a", 1, 2)]
    assert not steps_back([("a", 1, 3.5, 2), ("a", 3, 4, 1), ("b", 5, 6, 1), ("a", 5, 6, 2)])


@pytest.mark.parametrize("workers", [1, 4])
def test_nobody_goes_back_in_time(start, origin, engine, workers, figure):
    """Immutable objects are overwritten at the origin while some clients ask for the newest and
    others do not. The process is killed in between. No client sees a version go back."""
    server = start(origin, engine=engine, file=RULES, settings={"workers": workers})
    keys = [f"immutable/{i}" for i in range(4)]
    for key in keys:
        origin.put(key, 6000)
    readers = [Reader(origin, keys, seed, seed % 3 == 0) for seed in range(6)]
    total, kills = scaled(10_000) // (4 if scaled(1000) < 1000 else 1), 3
    for phase in range(kills + 1):
        done = threading.Event()
        threads = [threading.Thread(target=r.run, args=(server, done)) for r in readers]
        for thread in threads:
            thread.start()
        for i in range(total // (kills + 1)):
            asked = sum(r.counts.total() for r in readers)
            origin.overwrite(keys[i % len(keys)])
            while sum(r.counts.total() for r in readers) < asked + 4 and any(
                t.is_alive() for t in threads
            ):
                time.sleep(0.0005)  # until some have read
        if phase < kills:
            server.kill9()
        done.set()
        for thread in threads:
            thread.join()
        if phase < kills:
            server.restart()
    rows = [row for r in readers for row in r.rows]
    counts = sum((r.counts for r in readers), Counter())
    back = steps_back(rows)
    figure(
        f"overwrites past the cache ({engine}, {workers} workers): {total}, reads {dict(counts)}, "
        f"hits {server.metric('forebay_cache_requests_total', result='hit'):.0f}, "
        f"steps back {len(back)}"
    )
    assert not back, back[:5]
    assert len(rows) > total


@contextlib.contextmanager
def stands_still(start, origin, engine, tmp_path):
    """A server with an old `k` in its cache, in a bucket that has been written to. Its disk
    completes no more syncs, so a delete now is not durable."""
    if build_kind() == "release":
        not_run("a release has no faults")
    held = tmp_path / "held"
    origin.put("k", 3000)
    origin.put("ahead", 3000)
    server = start(
        origin,
        engine=engine,
        file={"rules": [{"match": "**", "freshness": "immutable"}]},
        env={"FOREBAY_DISK_FAULTS": f"sync:file={held}:hold"},
    )
    with server.client() as client:
        assert client.request("PUT", "/bkt/other", body=b"x").status == 200
        judge(client.get("k"), origin, "k", 0, 3000, version=1)
        server.wait_metric("forebay_cache_objects", lambda v: v == 1)  # of `k`, and durable
        held.touch()
        judge(client.get("ahead"), origin, "ahead", 0, 3000)
        server.wait_metric(
            "forebay_fills_total", lambda v: v == 2, state="stored"
        )  # its sync is the first
    try:
        yield server, held
    finally:
        held.unlink(missing_ok=True)


def test_a_slow_disk_holds_no_check_where_the_bucket_is_written_to(start, origin, engine, tmp_path):
    """An object was overwritten past the cache, and the disk completes no sync. A revalidation and
    later reads still get the new version. After a kill the old record is there again, and is not
    trusted."""
    with stands_still(start, origin, engine, tmp_path) as (server, _):
        origin.overwrite("k", 3000)
        with server.client(timeout=20) as client:
            judge(
                client.get("k", headers=[("Cache-Control", "no-cache")]),
                origin,
                "k",
                0,
                3000,
                version=2,
            )
            judge(client.get("k"), origin, "k", 0, 3000, version=2)
            assert client.head("k").etag == origin.version("k").etag
        server.kill9()
    server.start()
    mark = origin.mark()
    with server.client() as client:
        judge(client.get("k"), origin, "k", 0, 3000, version=2)
    assert origin.requests(key="k", since=mark, method="HEAD"), "the delete was durable"


def test_a_write_that_waits_for_the_disk_holds_no_reader(start, origin, engine, tmp_path):
    """While a PUT waits for its delete to reach the disk, and so has not reached the origin, its
    key can be read."""
    new = b"new" * 1000
    with (
        stands_still(start, origin, engine, tmp_path) as (server, held),
        server.client() as writer,
        server.client(timeout=20) as client,
    ):
        reply = []
        thread = threading.Thread(
            target=lambda: reply.append(writer.request("PUT", "/bkt/k", body=new))
        )
        thread.start()
        server.wait_metric("forebay_writes_inflight", lambda v: v == 1)
        for _ in range(3):
            judge(client.get("k"), origin, "k", 0, 3000, version=1)
            assert client.head("k").etag == origin.version("k").etag
        assert not origin.requests(key="k", method="PUT") and not reply
        held.unlink()
        thread.join()
        assert reply[0].status == 200
        assert bytes(client.get("k").body) == new

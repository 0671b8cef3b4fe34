# SPDX-License-Identifier: Apache-2.0
"""An object's headers change while its bytes and ETag stay. Every revalidation shows the new
headers, and no later read shows the old ones.

Such changes are a copy onto itself, `rclone touch`, and an upload of the same bytes to a versioned
bucket.
"""

import hashlib
import threading
import time

import pytest
from client import judge
from oracle import oracle_bytes

MIB = 1 << 20
RULES = {
    "rules": [
        {"match": "bkt/immutable/**", "freshness": "immutable"},
        {"match": "bkt/strict/**", "freshness": "strict"},
        {"match": "bkt/short/**", "freshness": "ttl", "ttl": "1s"},
        {"match": "bkt/long/**", "freshness": "ttl", "ttl": "1h"},
    ]
}
PAST_TTL_S = 3
CHANGES = {
    "content-type": ({"Content-Type": "text/plain"}, 0),
    "metadata": ({"x-amz-meta-owner": "new"}, 0),
    "more metadata": ({"x-amz-meta-second": "2"}, 0),
    "date": ({}, 60),
    "version id": ({"x-amz-version-id": "second"}, 0),
    "storage class": ({"x-amz-storage-class": "STANDARD_IA"}, 0),
}
FIRST = {"x-amz-meta-owner": "old", "x-amz-version-id": "first"}
SHOWN = (
    "content-type",
    "x-amz-meta-owner",
    "x-amz-meta-second",
    "last-modified",
    "x-amz-version-id",
    "x-amz-storage-class",
)


@pytest.fixture
def ruled(start, origin, engine):
    return start(origin, engine=engine, file=RULES, ahead_s=0)


def shown(reply):
    return {name: reply.header(name) for name in SHOWN}


def direct(origin, key):
    """The headers of the object as the origin has it now."""
    version = origin.version(key)
    have = {name.lower(): value for name, value in version.headers.items()}
    have["last-modified"] = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(version.mtime))
    return {name: have.get(name) for name in SHOWN}


def change(origin, key, what):
    headers, later_s = CHANGES[what]
    origin.redescribe(key, headers, mtime=origin.version(key).mtime + later_s)


@pytest.mark.parametrize("what", CHANGES)
def test_new_headers_are_shown_after_the_ttl_and_by_strict_and_no_cache(ruled, origin, what):
    """After a change of headers, GET and HEAD show the new ones under every rule that revalidates,
    however often they change. The bytes are right."""
    ways = {"short": [], "strict": [], "long": [("Cache-Control", "no-cache")]}
    for size in (5000, 9 * MIB):
        for kind in ways:
            for method in ("get", "head"):
                origin.put(f"{kind}/{method}{size}", size, headers=FIRST)
    with ruled.client() as client:
        for size in (5000, 9 * MIB):
            for kind in ways:
                for method in ("get", "head"):
                    judge(
                        client.get(f"{kind}/{method}{size}"),
                        origin,
                        f"{kind}/{method}{size}",
                        0,
                        size,
                    )
        ruled.settle()
        for size in (5000, 9 * MIB):
            for kind in ways:
                for method in ("get", "head"):
                    change(origin, f"{kind}/{method}{size}", what)
        ruled.advance(PAST_TTL_S)
        for size in (5000, 9 * MIB):
            for kind, headers in ways.items():
                for method in ("get", "head"):
                    key = f"{kind}/{method}{size}"
                    now = direct(origin, key)
                    first = getattr(client, method)(key, headers=headers)
                    assert shown(first) == now, (key, what)
                    for again in (client.head(key), client.get(key), client.get(key, 70, 99)):
                        assert shown(again) == now, (key, what)
                    judge(client.get(key), origin, key, 0, size)
    assert ruled.metric("forebay_revalidations_changed_headers_total") == 12


def test_headers_that_stay_are_confirmed_by_one_head(ruled, origin):
    """If nothing changes, one HEAD confirms the object, and nothing is fetched again."""
    origin.put("short/a", 9 * MIB, headers=FIRST)
    with ruled.client() as client:
        judge(client.get("short/a"), origin, "short/a", 0, 9 * MIB)
        ruled.settle()
        for _ in range(3):
            ruled.advance(PAST_TTL_S)
            mark = origin.mark()
            judge(client.get("short/a"), origin, "short/a", 0, 9 * MIB)
            asked = origin.requests(key="short/a", since=mark)
            assert [(e.method, e.status, e.conditional) for e in asked] == [("HEAD", 200, False)], (
                asked
            )
    assert ruled.metric("forebay_revalidations_changed_headers_total") == 0


def judge_again(client, origin, key, size):
    """Reads the object in every way, and compares with the origin's current headers."""
    now = direct(origin, key)
    for reply in (client.head(key), client.get(key, 0, 9), client.get(key, size - 10, size - 1)):
        assert shown(reply) == now
    reply = client.get(key)
    judge(reply, origin, key, 0, size)
    assert shown(reply) == now


@pytest.mark.parametrize("what", CHANGES)
def test_new_headers_cost_one_head_and_no_byte(ruled, origin, what):
    """New headers cost one HEAD and no byte. The bytes stay cached, in one run or several,
    whichever headers change and however often."""
    sizes = (1, 5000, 300_000, 40 * MIB)
    for size in sizes:
        origin.put(f"short/{size}", size, headers=FIRST, parts=[size] if size == 300_000 else None)
    with ruled.client() as client:
        for size in sizes:
            judge(client.get(f"short/{size}"), origin, f"short/{size}", 0, size)
        ruled.durable()
        for turn in range(3):
            mark = origin.mark()
            for size in sizes:
                change(origin, f"short/{size}", what)
                headers = {"x-amz-meta-turn": str(turn)}
                origin.redescribe(
                    f"short/{size}", headers, mtime=origin.version(f"short/{size}").mtime + 60
                )
            ruled.advance(PAST_TTL_S)
            for size in sizes:
                judge_again(client, origin, f"short/{size}", size)
            asked = [(e.key, e.method) for e in origin.requests(since=mark)]
            assert asked == [(f"short/{size}", "HEAD") for size in sizes], asked
    assert ruled.metric("forebay_revalidations_kept_total") == 3 * len(sizes)


@pytest.mark.parametrize("how", ["stop", "kill9"])
def test_kept_bytes_and_their_new_headers_outlast_a_restart(start, origin, engine, how):
    """Clients that got the new headers do not get the old ones from the next process. The origin is
    not asked."""
    server = start(origin, engine=engine, file=RULES, ahead_s=0)
    sizes = (5000, 40 * MIB)
    with server.client() as client:
        for size in sizes:
            origin.put(f"long/{size}", size, headers=FIRST)
            judge(client.get(f"long/{size}"), origin, f"long/{size}", 0, size)
        server.durable()
        mark = origin.mark()
        for size in sizes:
            change(origin, f"long/{size}", "metadata")
            change(
                origin, f"long/{size}", "date"
            )  # a later one: else the check asks once more, by GET of one byte
            reply = client.get(f"long/{size}", headers=[("Cache-Control", "no-cache")])
            assert shown(reply) == direct(origin, f"long/{size}")
    if how == "kill9":
        server.kill9()
    else:
        server.stop()
    server.start()
    with server.client() as client:
        for size in sizes:
            judge_again(client, origin, f"long/{size}", size)
    assert [e.method for e in origin.requests(since=mark)] == ["HEAD"] * len(sizes)


def test_kept_bytes_of_a_rebuilt_index_are_confirmed_first(start, origin, engine):
    """Segments contain only the old headers. After a rebuild of the index, Forebay revalidates such
    an object before it is used, and then keeps it."""
    server = start(origin, engine=engine, file=RULES, ahead_s=0)
    origin.put("long/a", 40 * MIB, headers=FIRST)
    with server.client() as client:
        judge(client.get("long/a"), origin, "long/a", 0, 40 * MIB)
        server.durable()
        change(origin, "long/a", "metadata")
        change(origin, "long/a", "date")
        client.head("long/a", headers=[("Cache-Control", "no-cache")])
    server.stop()
    (server.cache / "index" / "data.mdb").unlink()
    server.start()
    mark = origin.mark()
    with server.client() as client:
        server.wait_metric(
            "forebay_store_events_total", lambda runs: runs >= 3, event="run-recovered"
        )
        server.durable()
        judge_again(client, origin, "long/a", 40 * MIB)
    assert [e.method for e in origin.requests(since=mark)] == ["HEAD"]


def test_bytes_do_not_stay_where_they_may_have_changed(ruled, origin):
    """The bytes are fetched again if they may have changed: another size, another ETag, a weak
    ETag, or headers too long for the index."""
    origin.put("short/long", 5000, headers=FIRST)
    origin.put("short/etag", 5000, headers=FIRST)
    origin.put("short/size", 5000, headers=FIRST)
    with ruled.client() as client:
        for key in ("short/long", "short/etag", "short/size"):
            judge(client.get(key), origin, key, 0, 5000)
        ruled.durable()
        origin.redescribe("short/long", {"x-amz-meta-long": "x" * 800}, mtime=time.time() - 60)
        etag = origin.version("short/size").etag
        origin.put("short/size", 6000, headers=FIRST, etag=etag, mtime=time.time() - 60)
        origin.put("short/etag", 5000, headers=FIRST, mtime=time.time() - 60)
        ruled.advance(PAST_TTL_S)
        mark = origin.mark()
        for key, size in (("short/long", 5000), ("short/etag", 5000), ("short/size", 6000)):
            reply = client.get(key)
            assert reply.status == 200 and len(reply.body) == size
            assert shown(reply) == direct(origin, key)
            assert [e.method for e in origin.requests(key=key, since=mark)] == ["HEAD", "GET"], key
    assert ruled.metric("forebay_revalidations_kept_total") == 0


@pytest.mark.parametrize("how", ["stop", "kill9"])
def test_new_headers_stay_after_a_restart(start, origin, engine, how):
    server = start(origin, engine=engine, file=RULES, ahead_s=0)
    origin.put("short/a", 9 * MIB, headers=FIRST)
    with server.client() as client:
        judge(client.get("short/a"), origin, "short/a", 0, 9 * MIB)
        server.settle()
        change(origin, "short/a", "metadata")
        server.advance(PAST_TTL_S)
        now = direct(origin, "short/a")
        assert shown(client.head("short/a")) == now
        judge(client.get("short/a"), origin, "short/a", 0, 9 * MIB)
        server.settle()
    if how == "kill9":
        server.kill9()
    else:
        server.stop()
    server.start()
    with server.client() as client:
        for reply in (
            client.head("short/a"),
            client.get("short/a"),
            client.get("short/a", 8 * MIB, 9 * MIB - 1),
        ):
            assert shown(reply) == now


@pytest.mark.tsan
def test_a_reader_in_mid_body_stores_no_headers_older_than_a_copy(ruled, origin):
    """An object is copied onto itself with other metadata, through Forebay, while a reader is in
    the middle of it. Forebay fetches the rest for that reader after the copy's reply. It does not
    store the rest under the earlier headers: later readers are shown the new ones."""
    size = 12 * MIB
    body = oracle_bytes("bkt/long/a", 7, 0, size)
    etag = '"' + hashlib.md5(body).hexdigest() + '"'
    origin.put("long/a", size, body=body, etag=etag, headers=FIRST)
    gate = threading.Event()
    origin.fault("long/a", "hold_at", (MIB, gate))
    with ruled.connection() as reading, ruled.client() as client:
        reading.send(b"GET /bkt/long/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        head = reading.read_head()
        begin = reading.read_body(1000, head)
        reply = client.request(
            "PUT",
            "/bkt/long/a",
            [
                ("Content-Length", "0"),
                ("x-amz-copy-source", "/bkt/long/a"),
                ("x-amz-metadata-directive", "REPLACE"),
                ("x-amz-meta-owner", "new"),
            ],
        )
        assert reply.status == 200
        gate.set()
        assert begin + reading.read_body(size - 1000, head) == body
        ruled.settle()
        for first in range(0, size, MIB):
            again = client.get("long/a", first, first + MIB - 1)
            assert bytes(again.body) == body[first : first + MIB]
            assert again.header("x-amz-meta-owner") == "new", (first, again)


@pytest.mark.tsan
def test_a_first_reader_after_a_copy_shares_no_request_for_the_earlier_headers(ruled, origin):
    """An object is copied onto itself with other metadata, through Forebay, while a reader is in
    the middle of it. After the copy's reply Forebay fetches the rest for that reader. Another
    reader that asks for the same bytes meanwhile is shown the new headers."""
    size = 24 * MIB
    body = oracle_bytes("bkt/long/a", 7, 0, size)
    etag = '"' + hashlib.md5(body).hexdigest() + '"'
    origin.put("long/a", size, body=body, etag=etag, headers=FIRST)
    gate = threading.Event()
    origin.fault("long/a", "hold_at", (MIB, gate))
    with ruled.connection() as reading, ruled.client() as client, ruled.connection() as later:
        reading.send(b"GET /bkt/long/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        head = reading.read_head()
        begin = reading.read_body(1000, head)
        reply = client.request(
            "PUT",
            "/bkt/long/a",
            [
                ("Content-Length", "0"),
                ("x-amz-copy-source", "/bkt/long/a"),
                ("x-amz-metadata-directive", "REPLACE"),
                ("x-amz-meta-owner", "new"),
            ],
        )
        assert reply.status == 200
        rest = []
        thread = threading.Thread(target=lambda: rest.append(reading.read_body(size - 1000, head)))
        with origin.hold("long/a", method="GET"):
            since = origin.mark()
            gate.set()
            thread.start()
            held = origin.wait_for(1, key="long/a", method="GET", since=since)[0]
            first = int(held.header("range").removeprefix("bytes=").split("-")[0])
            joined = ruled.metric("forebay_fills_total", state="joined")
            later.send(
                f"GET /bkt/long/a HTTP/1.1\r\nHost: 127.0.0.1\r\nRange: bytes={first}-{first + 9}"
                "\r\n\r\n".encode()
            )
            ruled.wait_metric("forebay_fills_total", lambda v: v > joined, state="joined")
        again = later.read_reply("GET")
        assert bytes(again.body) == body[first : first + 10]
        assert again.header("x-amz-meta-owner") == "new"
        thread.join()
        assert begin + rest[0] == body


@pytest.mark.tsan
def test_nobody_who_asks_later_is_shown_older_headers(start, origin, engine):
    """A counter in the metadata never falls for a client that asks after a reply, on any worker, at
    any offset. A slow reader still continues with the version that it began."""
    server = start(
        origin,
        engine=engine,
        file=RULES,
        settings={"workers": 4, "cache.block_size": "1MiB"},
        ahead_s=0,
    )
    size = 12 * MIB
    origin.put("short/a", size, headers={"x-amz-meta-count": "0"})
    failed, least, lock, stop = [], [0], threading.Lock(), threading.Event()

    def reader(number):
        ways = [
            {},
            {"first": 5 * MIB, "last": 5 * MIB + 999},
            {"first": size - 100, "last": size - 1},
            None,
        ]
        try:
            with server.client() as client:
                while not stop.is_set():
                    before = least[0]
                    way = ways[number % len(ways)]
                    if way is None:
                        reply = client.head("short/a", headers=[("Cache-Control", "no-cache")])
                    else:
                        reply = client.get("short/a", *way.values())
                        judge(reply, origin, "short/a", way.get("first", 0))
                    count = int(reply.header("x-amz-meta-count"))
                    assert count >= before, f"{count} after {before}"
                    with lock:
                        least[0] = max(least[0], count)
        except BaseException as error:  # noqa: BLE001: judged below
            failed.append(error)

    threads = [threading.Thread(target=reader, args=(i,)) for i in range(8)]
    with server.connection(receive_buffer=4096) as slow:
        slow.send(b"GET /bkt/short/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        for thread in threads:
            thread.start()
        try:
            for count in range(1, 15):
                mark = origin.mark()
                origin.redescribe("short/a", {"x-amz-meta-count": str(count)})
                origin.wait_for(3, key="short/a", since=mark, method="HEAD", done=True)
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
        judge(slow.read_reply(), origin, "short/a", 0, size)
    assert not failed, failed[0]
    assert least[0] >= 10, "nobody was shown the new headers"


def test_headers_that_only_one_method_names_are_fetched_again_once(ruled, origin):
    """If a store's HEAD names headers that its GET does not, the object is fetched once more and
    described by HEAD from then on."""
    origin.put("strict/a", 9 * MIB, headers=FIRST)
    origin.fault(None, "header", ("x-amz-storage-class", "ODD"), times=None, method="HEAD")
    with ruled.client() as client:
        for _ in range(6):
            judge(client.get("strict/a"), origin, "strict/a", 0, 9 * MIB)
            ruled.settle()
    assert ruled.metric("forebay_revalidations_changed_headers_total") <= 1
    assert origin.bytes_sent("strict/a") <= 2 * 9 * MIB


def test_a_tag_count_that_head_leaves_out_and_a_computed_expires_change_nothing(ruled, origin):
    origin.put("strict/a", 5000, headers=FIRST)
    origin.fault(None, "header", ("x-amz-tagging-count", "2"), times=None, method="GET")
    with ruled.client() as client:
        for turn in range(4):
            origin.fault(
                None, "header", ("Expires", f"Thu, 01 Jan 2099 00:00:0{turn} GMT"), times=1
            )
            judge(client.get("strict/a"), origin, "strict/a", 0, 5000)
            ruled.settle()
    assert origin.bytes_sent("strict/a") == 5000


def test_immutable_objects_are_not_asked_about(ruled, origin):
    origin.put("immutable/a", 5000, headers=FIRST)
    with ruled.client() as client:
        judge(client.get("immutable/a"), origin, "immutable/a", 0, 5000)
        ruled.settle()
        before = direct(origin, "immutable/a")
        change(origin, "immutable/a", "metadata")
        ruled.advance(PAST_TTL_S)
        assert shown(client.get("immutable/a")) == before
    assert len(origin.requests(key="immutable/a")) == 1


@pytest.mark.tsan
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("what", ["headers", "version"])
def test_an_overtaken_check_brings_nothing_older_back(start, origin, engine, stored, what):
    """The origin looks at an object for a HEAD, and answers late. Meanwhile the object changes, and
    a GET shows the change. The late answer does not replace it for readers that ask after that GET,
    whether the GET's bytes were stored or not."""
    server = start(
        origin,
        engine=engine,
        file=RULES,
        settings={"cache.max_object_size": "1MiB" if stored else "1KiB"},
        ahead_s=0,
    )
    origin.put("long/a", 5000, headers=FIRST)
    before = origin.version("long/a")
    looked = []

    def answers(entry):
        looked.append(entry.method)
        return before if looked == ["GET", "HEAD"] else origin.version("long/a")

    def is_new(reply):
        owner = reply.header("x-amz-meta-owner")
        return owner == "new" if what == "headers" else reply.etag != before.etag

    origin.replicas["long/a"] = answers
    if what == "headers":
        origin.redescribe("long/a", {"x-amz-meta-owner": "new"})
    else:
        origin.overwrite("long/a")
    with server.client() as client, server.connection() as late, server.connection() as later:
        with origin.hold("long/a", method="HEAD"):
            late.send(b"HEAD /bkt/long/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            origin.wait_for(1, key="long/a", method="HEAD")
            assert is_new(client.get("long/a"))
            server.settle()
            later.send(b"HEAD /bkt/long/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert late.read_reply("HEAD").status == 200
        assert is_new(later.read_reply("HEAD"))
        assert is_new(client.get("long/a"))
        assert is_new(client.head("long/a"))

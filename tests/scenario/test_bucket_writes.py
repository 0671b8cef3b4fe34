# SPDX-License-Identifier: Apache-2.0
"""A request that may change any key of a bucket invalidates everything that is cached of the
bucket, for good."""

import shutil
import threading

import pytest
from client import judge
from forebay import parallel

MIB = 1 << 20
IMMUTABLE = {"rules": [{"match": "**", "freshness": "immutable"}]}
SIZES = {"small": 2000, "middle": 300_000, "large": 5 * MIB}
DELETE_X = b"<Delete><Object><Key>gone</Key></Object></Delete>"


def populate(origin, server):
    for key, size in SIZES.items():
        origin.put(key, size)
    origin.put("gone", 2000)
    read(origin, server, [*SIZES, "gone"])
    server.settle()


def read(origin, server, keys, version=None):
    with server.client() as client:
        for key in keys:
            judge(client.get(key), origin, key, 0, origin.version(key).size, version=version)


def write(client, target="/bkt?delete&z=1", method="POST", body=DELETE_X):
    """Sends a write that Forebay does not know. The origin deletes "gone"."""
    return client.request(method, target, [("Content-Length", str(len(body)))], body)


def is_new(origin, server, connections=8):
    """Checks every worker: "gone" is deleted, and everything else is as the origin has it now."""

    def one(_):
        with server.client() as client:
            assert client.get("gone").status == 404
            assert client.head("gone").status == 404
            for key, size in SIZES.items():
                version = origin.version(key)
                assert client.head(key).etag == version.etag
                judge(client.get(key), origin, key, 0, size, version=version.number)

    parallel(connections, one)


def overwrite_all(origin):
    for key in SIZES:
        origin.overwrite(key)


def while_held(origin, server, act, key="", method="POST"):
    """Runs ACT while the origin holds the write."""
    replies = []

    def run():
        with server.client() as client:
            replies.append(write(client))

    with origin.hold(key, method=method):
        mark = origin.mark()
        thread = threading.Thread(target=run)
        thread.start()
        origin.wait_for(1, since=mark, key=key, method=method)
        act()
    thread.join()
    return replies[0]


@pytest.mark.tsan
@pytest.mark.parametrize("workers", [1, 3, 16])
def test_every_key_of_the_bucket_is_fetched_again(start, origin, engine, workers):
    """After such a write, every cached key of the bucket is fetched again."""
    origin.make_bucket("other")
    server = start(origin, engine=engine, file=IMMUTABLE, settings={"workers": workers})
    populate(origin, server)
    origin.put("kept", 3000, bucket="other")
    with server.client() as client:
        judge(client.get("kept", bucket="other"), origin, "kept", bucket="other")
    server.settle()
    reply = while_held(origin, server, lambda: overwrite_all(origin))
    assert reply.status == 200, reply
    assert server.metric("forebay_invalidations_total", of="bucket") == 1
    is_new(origin, server)
    server.settle()
    mark = origin.mark()
    is_new(origin, server)
    asked = [e for e in origin.requests(since=mark) if e.key != "gone"]
    assert not asked, "what is new is cached again"
    with server.client() as client:
        judge(client.get("kept", bucket="other"), origin, "kept", bucket="other")
    assert not origin.requests(since=mark, bucket="other"), "another bucket is not touched"


@pytest.mark.parametrize(
    "method,target",
    [
        ("DELETE", "/bkt"),
        ("PUT", "/bkt?what=1"),
        ("POST", "/bkt?delete&delete"),
        ("DELETE", "/bkt/?z"),
        ("POST", "/bkt"),
    ],
)
def test_bucket_is_invalidated_whatever_the_origin_answers(start, origin, engine, method, target):
    """The bucket is invalidated whatever status the origin answers with."""
    server = start(origin, engine=engine, file=IMMUTABLE)
    populate(origin, server)
    overwrite_all(origin)
    origin.delete("gone")
    with server.client() as client:
        write(client, target, method)
    is_new(origin, server)


def test_a_browser_asking_first_drops_nothing(start, origin, engine):
    """A browser's preflight invalidates nothing."""
    server = start(origin, engine=engine, file=IMMUTABLE)
    populate(origin, server)
    with server.client() as client:
        client.request("OPTIONS", "/bkt")
    mark = origin.mark()
    read(origin, server, SIZES)
    assert not origin.requests(since=mark)


def test_listings(start, origin, engine):
    """Kept listings of the bucket are dropped too."""
    server = start(origin, engine=engine, file=IMMUTABLE, settings={"cache.list_ttl": "1h"})
    populate(origin, server)
    with server.client() as client:
        assert b"gone" in bytes(client.list().body)
        mark = origin.mark()
        assert b"gone" in bytes(client.list().body)
        assert not origin.requests(since=mark)
        held = []

        def list_slowly():
            with server.client() as other:
                held.append(other.list("list-type=2&prefix=g"))

        with origin.hold("", method="GET"):
            mark = origin.mark()
            thread = threading.Thread(target=list_slowly)
            thread.start()
            origin.wait_for(1, since=mark, key="", method="GET")
            write(client)
        thread.join()
        assert held[0].status == 200
        mark = origin.mark()
        assert b"gone" not in bytes(client.list().body)
        assert b"gone" not in bytes(client.list("list-type=2&prefix=g").body)
        # A fill that was in flight while the bucket changed is not kept.
        assert len(origin.requests(since=mark, key="", method="GET")) == 2


@pytest.mark.parametrize("workers", [1, 3])
def test_fills_across_the_write(start, origin, engine, workers):
    """Fills that began before the write, and fills that began during it, give their readers whole
    old versions. Every later reader gets the new version."""
    server = start(origin, engine=engine, file=IMMUTABLE, settings={"workers": workers})
    populate(origin, server)
    origin.put("before", 3 * MIB)
    origin.put("within", 3 * MIB)
    gate = threading.Event()
    origin.fault("before", "hold_at", (1 * MIB, gate), method="GET")
    origin.fault("within", "hold_at", (1 * MIB, gate), method="GET")
    replies = {}

    def reader(key):
        with server.client() as client:
            replies[key] = client.get(key)

    threads = [threading.Thread(target=reader, args=(key,)) for key in ("before", "within")]
    threads[0].start()
    origin.wait_for(1, key="before", method="GET")

    def act():
        threads[1].start()
        origin.wait_for(1, key="within", method="GET")
        overwrite_all(origin)
        origin.overwrite("before")
        origin.overwrite("within")

    while_held(origin, server, act)
    with server.client() as client:
        for key in ("before", "within"):
            judge(client.get(key), origin, key, 0, 3 * MIB, version=2)
    gate.set()
    for thread in threads:
        thread.join()
    server.settle()
    for key in ("before", "within"):
        judge(replies[key], origin, key, 0, 3 * MIB, version=1)
        with server.client() as client:
            judge(client.get(key), origin, key, 0, 3 * MIB, version=2)
    is_new(origin, server)
    server.kill9()
    server.start()
    is_new(origin, server)
    with server.client() as client:
        for key in ("before", "within"):
            judge(client.get(key), origin, key, 0, 3 * MIB, version=2)


def lose_index(server):
    shutil.rmtree(server.cache / "index")


@pytest.mark.parametrize("end", ["stop", "kill9"])
@pytest.mark.parametrize("harm", [lambda server: None, lose_index], ids=["", "index-lost"])
def test_invalidation_outlasts_restarts_and_kills(start, origin, engine, end, harm):
    """Objects stay invalid over restarts, kills and losses of the index, and the fresh copies stay
    hits."""
    server = start(origin, engine=engine, file=IMMUTABLE)
    populate(origin, server)
    reply = while_held(origin, server, lambda: overwrite_all(origin))
    assert reply.status == 200
    getattr(server, end)()
    for _ in range(2):
        harm(server)
        server.start()
        if harm is lose_index:
            server.wait_stderr("index_rebuild_done")
        is_new(origin, server)
        server.durable()
        getattr(server, end)()
    server.start()
    mark = origin.mark()
    read(origin, server, SIZES)
    assert origin.bytes_sent(since=mark) == 0, "what was fetched afterwards lasts"


def test_kill_during_the_write(start, origin, engine):
    """The server is killed during the write. Nobody got a reply, but the origin has applied it, and
    the next process serves nothing old."""
    server = start(origin, engine=engine, file=IMMUTABLE)
    populate(origin, server)
    with origin.hold("", method="POST"):
        mark = origin.mark()
        with server.connection() as connection:
            connection.send(
                b"POST /bkt?delete&z=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: "
                b"%d\r\n\r\n%s" % (len(DELETE_X), DELETE_X)
            )
            origin.wait_for(1, since=mark, key="", method="POST")
            read(origin, server, [*SIZES, "gone"], version=1)  # the old state, fetched again
            server.settle()
            server.kill9()
    overwrite_all(origin)
    origin.delete("gone")
    server.start()
    is_new(origin, server)


def test_a_write_to_one_key_that_is_open_meanwhile(start, origin, engine):
    """A key's old version is fetched after the bucket's change, while a write to that key is open.
    The reply to that write invalidates it."""
    server = start(origin, engine=engine, file=IMMUTABLE)
    populate(origin, server)
    replies = []

    def put():
        with server.client() as client:
            replies.append(client.request("PUT", "/bkt/small", [("Content-Length", "5")], b"hello"))

    with origin.hold("small", method="PUT"):
        mark = origin.mark()
        thread = threading.Thread(target=put)
        thread.start()
        origin.wait_for(1, since=mark, key="small", method="PUT")
        with server.client() as client:
            assert write(client).status == 200
        read(origin, server, ["small"], version=1)
        server.settle()
    thread.join()
    assert replies[0].status == 200

    def has_new(_=0):
        with server.client() as client:
            assert bytes(client.get("small").body) == b"hello"

    parallel(4, has_new)
    server.kill9()
    server.start()
    has_new()


def test_a_damaged_epoch_record_stops_the_start(start, origin, engine):
    """The file `format` records the epoch of the bucket. If the file is missing or damaged, or
    lacks the record, the server does not start with this cache directory."""
    server = start(origin, engine=engine, file=IMMUTABLE)
    populate(origin, server)
    with server.client() as client:
        assert write(client).status == 200
    overwrite_all(origin)
    server.stop()
    path = server.cache / "format"
    good = path.read_bytes()
    assert b"\nepoch " in good
    lines = good.splitlines(keepends=True)
    without = b"".join(line for line in lines if not line.startswith(b"epoch "))
    flipped = bytearray(good)
    flipped[good.index(b"\nepoch ") + 45] ^= 1
    for bad in (None, b"", good[: len(good) // 2], good[:-1], bytes(flipped), without):
        path.unlink(missing_ok=True)
        if bad is not None:
            path.write_bytes(bad)
        server.spawn()
        assert server.wait_exit() != 0
    path.write_bytes(good)
    server.start()
    is_new(origin, server)


def test_a_write_that_cannot_be_recorded_is_refused(start, origin, engine):
    """If the cache directory cannot record the change, Forebay refuses the write before it asks the
    origin. Otherwise a restart would serve old copies."""
    server = start(origin, engine=engine, file=IMMUTABLE)
    populate(origin, server)
    (server.cache / "format.new").mkdir()
    mark = origin.mark()
    with server.client() as client:
        assert write(client).status == 503
    assert not origin.requests(since=mark)
    assert server.metric("forebay_invalidations_total", of="bucket-failed") == 1
    read(origin, server, [*SIZES, "gone"], version=1)
    assert not origin.requests(since=mark), "nothing has changed"
    (server.cache / "format.new").rmdir()
    with server.client() as client:
        assert write(client).status == 200
    overwrite_all(origin)
    with server.client() as client:
        assert write(client).status == 200
    is_new(origin, server)


@pytest.mark.parametrize("own", [False, True], ids=["same-origin", "own-origin"])
def test_a_second_name_of_the_bucket(start, origin, engine, own):
    """The write invalidates copies under every name of the bucket."""
    second = {"name": "second", "origin": "s3://bkt"}
    if own:
        second["endpoint"] = origin.endpoint
    server = start(origin, engine=engine, file={**IMMUTABLE, "buckets": [second]})
    populate(origin, server)
    with server.client() as client:
        for key in SIZES:
            assert client.get(key, bucket="second").status == 200
        server.settle()
        overwrite_all(origin)
        assert write(client, "/second?delete&z=1").status == 200
        is_new(origin, server)
        overwrite_all(origin)
        assert write(client).status == 200
        for key in SIZES:
            assert client.get(key, bucket="second").etag == origin.version(key).etag


def test_more_buckets_than_are_noted_one_by_one(start, origin, engine):
    """The invalidation holds even for more buckets than the directory records individually."""
    server = start(origin, engine=engine, file=IMMUTABLE)
    populate(origin, server)
    for name in ("late", "later"):
        origin.make_bucket(name)
        origin.put("k", 2000, bucket=name)
    with server.client() as client:
        assert write(client).status == 200  # "bkt" has a record of its own
        for i in range(255):
            write(client, f"/none-{i}?z", "PUT")
        assert server.metric("forebay_limit_reached_total", limit="bucket-epochs") == 0
        read(origin, server, SIZES)
        for name in ("late", "later"):
            judge(client.get("k", bucket=name), origin, "k", 0, 2000, bucket=name)
        server.settle()
        for name in ("late", "later"):
            origin.overwrite("k", bucket=name)
        assert write(client, "/late?delete&z=1").status == 200
        assert server.metric("forebay_limit_reached_total", limit="bucket-epochs") == 1
        mark = origin.mark()
        for name in ("late", "later"):
            judge(client.get("k", bucket=name), origin, "k", 0, 2000, bucket=name, version=2)
        read(origin, server, SIZES)
        assert not origin.requests(since=mark, bucket="bkt")
    server.kill9()
    server.start()
    with server.client() as client:
        for name in ("late", "later"):
            judge(client.get("k", bucket=name), origin, "k", 0, 2000, bucket=name, version=2)

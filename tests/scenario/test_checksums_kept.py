# SPDX-License-Identifier: Apache-2.0
"""An object's checksums are kept with its bytes. Forebay asks the origin for them at most once, no
client that reads bytes waits for them, and they last as long as the object."""

import base64
import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from forebay import parallel, run_forebay, scaled
from signer import crc32_of
from test_control import ask

MODE = [("x-amz-checksum-mode", "ENABLED")]
IMMUTABLE = {"rules": [{"match": "**", "freshness": "immutable"}]}
MIB = 1 << 20


def sums(reply):
    return {n: v for n, v in reply.headers if n.startswith("x-amz-checksum-")}


def named(body):
    return {"x-amz-checksum-crc32": crc32_of(body), "x-amz-checksum-type": "FULL_OBJECT"}


def sha256_of(body):
    return base64.b64encode(hashlib.sha256(body).digest()).decode()


def body_of(i, version=1):
    return f"{version}-{i:06}-".encode() * 100


def put_some(origin, count, none_every=0):
    """Puts objects; every none_every-th has no checksum."""
    want = {}
    for i in range(count):
        body = body_of(i)
        want[f"k/{i:06}"] = {} if none_every and i % none_every == 0 else named(body)
        origin.put(f"k/{i:06}", len(body), body=body, checksums=want[f"k/{i:06}"])
    return want


def read_ranged(server, count):
    """Reads as clients that ask for ranges and for no checksums."""

    def read(part):
        with server.client() as client:
            for i in range(part, count, 4):
                body = body_of(i)
                reply = client.get(f"k/{i:06}", first=0, last=len(body) - 1)
                assert reply.status == 206 and bytes(reply.body) == body and sums(reply) == {}

    parallel(4, read)
    server.durable()


def read_as_boto3(server, want, step=None):
    """Reads everything once, as boto3 does. `step`: after this many reads, waits for the answers to
    the HEADs that they caused."""
    given = 0
    with server.client() as client:
        for i, key in enumerate(sorted(want)):
            reply = client.get(key, headers=MODE)
            assert reply.status == 200 and bytes(reply.body) == body_of(int(key[2:]))
            assert "hit" in reply.header("cache-status")
            assert sums(reply) in ({}, want[key]), key
            given += sums(reply) == want[key]
            if step and (i + 1) % step == 0:
                learnt(server, i + 1)
    return given


def learnt(server, count):
    server.wait_metric("forebay_checksum_requests_total", lambda v: v >= count, kind="learnt")


def on_disk(server):
    server.durable()
    server.wait_metric("forebay_index_renewals_waiting", lambda v: v == 0)


def test_many_objects_stored_by_ranged_readers_are_asked_about_once(start, origin, engine):
    """The first clients that want checksums cause one HEAD for each object, and wait for none.
    Later reads, restarts and kills cause no more."""
    count = scaled(10_000, least=500)
    want = put_some(origin, count, none_every=10)
    server = start(origin, engine=engine, settings={"access_log.path": "off"}, file=IMMUTABLE)
    read_ranged(server, count)
    assert not origin.requests(method="HEAD")
    mark = origin.mark()
    read_as_boto3(server, want, step=250)
    learnt(server, count)
    heads = origin.requests(since=mark)
    assert len(heads) == count and {r.method for r in heads} == {"HEAD"}
    assert server.metric("forebay_checksum_requests_total", kind="head") == count
    assert server.metric("forebay_limit_reached_total", limit="checksum-heads") == 0
    mark = origin.mark()
    for end in (None, server.restart, None):
        assert read_as_boto3(server, want) == count
        if end is not None:
            on_disk(server)
            end()
    on_disk(server)
    server.kill9()
    server.start()
    assert read_as_boto3(server, want) == count
    assert not origin.requests(since=mark)


def test_warm_learns_them_before_any_reader(start, origin, engine):
    """`warm` learns checksums: of a small listed object with its bytes, of an object of several
    runs by a HEAD, and of an object already cached by one HEAD."""
    count = 60
    want = put_some(origin, count, none_every=7)
    large = bytes(range(256)) * (9 * MIB // 256)
    origin.put("k/large", len(large), body=large, checksums=named(large))
    server = start(origin, engine=engine, file=IMMUTABLE)
    with server.client() as client:
        for i in range(20):
            assert client.get(f"k/{i:06}", first=0, last=9).status == 206
    server.durable()
    for expected in (21, 0):
        mark = origin.mark()
        done = ask(server, "warm", "s3://bkt/k/", "--wait", "-q")[-1]
        assert done["objects_done"] == count + 1 and done["objects_failed"] == 0
        server.durable()
        assert len(origin.requests(method="HEAD", since=mark)) == expected
        mark = origin.mark()
        assert read_as_boto3(server, want) == count
        with server.client() as client:
            reply = client.get("k/large", headers=MODE)
            assert bytes(reply.body) == large and sums(reply) == named(large)
            assert sums(client.head("k/large", headers=MODE)) == named(large)
        assert not origin.requests(since=mark)
        on_disk(server)
        server.restart()


def test_an_overwritten_object_has_its_own(start, origin, engine):
    """Checksums of one version are never sent with bytes of the next, even if they were learnt
    while the object was overwritten."""
    server = start(origin, engine=engine, file={"rules": [{"match": "**", "freshness": "strict"}]})
    with server.client() as client:
        for version in range(1, 12):
            body = body_of(0, version)
            origin.put("a", len(body), body=body, checksums=named(body))
            if version % 3 == 0:
                client.get("a", first=0, last=9)
                server.durable()
            if version % 4 == 0:  # the HEAD is sent, and its answer is about the next version
                mark = origin.mark()
                with ThreadPoolExecutor(1) as pool, origin.hold("a", method="HEAD"):
                    reading = pool.submit(client.get, "a", first=0, last=9)
                    origin.wait_for(1, method="HEAD", since=mark)
                    body = body_of(0, version + 100)
                    origin.put("a", len(body), body=body, checksums=named(body))
                assert reading.result().status == 206
            for _ in range(3):
                reply = client.get("a", headers=MODE)
                assert bytes(reply.body) == body
                assert sums(reply) in ({}, named(body)), "of another version"
                server.settle()
            assert sums(client.head("a", headers=MODE)) == named(body)


def test_a_write_through_forebay_forgets_them(start, origin, engine):
    """A write through Forebay drops the old checksums."""
    server = start(origin, engine=engine, file=IMMUTABLE)
    with server.client() as client:
        for version in range(1, 6):
            body = body_of(1, version)
            assert client.request("PUT", "/bkt/a", body=body).status == 200
            origin.put(
                "a", len(body), body=body, checksums=named(body)
            )  # as the store would name them
            assert bytes(client.get("a", first=0, last=len(body) - 1).body) == body
            server.durable()
            for expected in ({}, named(body)):
                reply = client.get("a", headers=MODE)
                assert bytes(reply.body) == body and sums(reply) == expected
                learnt(server, version)


def test_they_are_sent_with_whole_objects_only(start, origin, engine):
    """Checksums are sent only with a whole object, and only if the client asks: not with 206, not
    with 304."""
    body = body_of(2)
    origin.put("a", len(body), body=body, checksums=named(body))
    server = start(origin, engine=engine, file=IMMUTABLE)
    with server.client() as client:
        client.get("a", first=0, last=len(body) - 1)
        server.durable()
        client.get("a", headers=MODE)
        learnt(server, 1)
        mark = origin.mark()
        etag = origin.version("a").etag
        assert sums(client.get("a", headers=MODE)) == named(body)
        for more in (
            {"first": 0, "last": 9},
            {"first": 0, "last": len(body) - 1},
            {"first": 5},
            {"query": "partNumber=1"},
        ):
            reply = client.get("a", headers=MODE, **more)
            assert reply.status == 206 and sums(reply) == {}
        reply = client.get("a", headers=MODE + [("If-None-Match", etag)])
        assert reply.status == 304 and sums(reply) == {}
        assert sums(client.get("a")) == {} == sums(client.head("a"))
        assert sums(client.head("a", headers=MODE)) == named(body)
        assert not origin.requests(since=mark)


def test_an_object_in_several_runs_keeps_them(start, origin, engine):
    """An object whose first runs were stored by range readers, and others later, costs one HEAD."""
    large = bytes(range(256)) * (10 * MIB // 256)
    origin.put("a", len(large), body=large, checksums=named(large))
    server = start(origin, engine=engine, file=IMMUTABLE)
    with server.client() as client:
        client.get("a", first=5 * MIB, last=5 * MIB + 9)
        server.durable()
        assert bytes(client.get("a", headers=MODE).body) == large
        server.durable()
        learnt(server, 1)
        for end in (None, server.restart, None):
            mark = origin.mark()
            with server.client() as other:
                reply = other.get("a", headers=MODE)
                assert bytes(reply.body) == large and sums(reply) == named(large)
            assert not origin.requests(since=mark)
            on_disk(server)
            if end is not None:
                end()
    assert len(origin.requests(key="a", method="HEAD")) == 1


def test_long_checksums_are_never_sent_as_none_or_in_part(start, origin, engine):
    """A HEAD never reports long checksums as absent or in part.

    SHA-512 is kept. Several that are too long together are not: each HEAD of a client then asks the
    origin, while a GET goes without and causes no further request.
    """
    body = body_of(5)
    sha512 = {"x-amz-checksum-sha512": base64.b64encode(hashlib.sha512(body).digest()).decode()}
    for key, named_so, heads in (
        ("a", sha512, 1),
        ("b", sha512 | named(body) | {"x-amz-checksum-sha256": sha256_of(body)}, 3),
    ):
        origin.put(key, len(body), body=body, checksums=named_so)
        server = start(origin, engine=engine, file=IMMUTABLE)
        with server.client() as client:
            client.get(key, first=0, last=9)
            server.durable()
            client.get(key, headers=MODE)
            learnt(server, 1)
            for _ in range(2):
                assert sums(client.head(key, headers=MODE)) == named_so
                assert sums(client.get(key, headers=MODE)) == (named_so if heads == 1 else {})
        assert len(origin.requests(key=key, method="HEAD")) == heads
        server.stop()


def test_no_more_heads_than_their_limit_are_out(start, origin, engine):
    """At most 1,024 such HEADs are in flight, over all workers. Further objects are asked about
    when they are read again."""
    count = 1100
    for i in range(count):
        origin.put(f"k/{i:06}", len(body_of(i)), body=body_of(i), checksums=named(body_of(i)))
    server = start(
        origin, engine=engine, settings={"workers": 1, "access_log.path": "off"}, file=IMMUTABLE
    )
    read_ranged(server, count)
    want = {f"k/{i:06}": named(body_of(i)) for i in range(count)}
    with origin.hold(None):
        assert read_as_boto3(server, want) == 0
        server.wait_metric(
            "forebay_limit_reached_total", lambda v: v == count - 1024, limit="checksum-heads"
        )
        assert server.metric("forebay_checksum_requests_total", kind="head") == 1024
    learnt(server, 1024)
    read_as_boto3(server, want)
    learnt(server, count)
    assert len(origin.requests(method="HEAD")) == count
    mark = origin.mark()
    assert read_as_boto3(server, want) == count
    assert not origin.requests(since=mark)


def messages_of_hits(server, count, key="a"):
    """Returns how many messages workers send each other during COUNT hits whose checksums are
    unknown."""
    before = server.metric("forebay_mailbox_messages_total")
    with server.client() as client:
        for _ in range(count):
            reply = client.get(key, headers=MODE)
            assert (
                reply.status == 200 and sums(reply) == {} and "hit" in reply.header("cache-status")
            )
    return server.metric("forebay_mailbox_messages_total") - before


@pytest.mark.parametrize("workers", [1, 3])
def test_hits_send_no_message_while_no_head_can_be_sent(start, origin, engine, workers):
    """Hits send no message to other workers while no HEAD can be sent: the object is being asked
    about, 1,024 other HEADs are in flight, or one has failed."""
    count = 1023
    for key in ["a", "b", *(f"k/{i:06}" for i in range(count))]:
        origin.put(key, len(body_of(0)), body=body_of(0), checksums=named(body_of(0)))
    server = start(
        origin,
        engine=engine,
        ahead_s=0,
        settings={"workers": workers, "access_log.path": "off"},
        file=IMMUTABLE,
    )
    with server.client() as client:
        for key in ["a", "b", *(f"k/{i:06}" for i in range(count))]:
            assert client.get(key, first=0, last=9).status == 206
    server.durable()
    with server.client() as client, origin.hold(None):
        client.get("a", headers=MODE)
        origin.wait_for(1, key="a", method="HEAD")
        assert messages_of_hits(server, 500) < 100, "being asked about"
        for i in range(count):
            client.get(f"k/{i:06}", headers=MODE)
        server.wait_metric("forebay_checksum_requests_total", lambda v: v == 1024, kind="head")
        assert messages_of_hits(server, 500, "b") < 100, "too many are out"
        assert server.metric("forebay_checksum_requests_total", kind="head") == 1024
    learnt(server, 1024)
    origin.fault("b", "status", 405, method="HEAD", times=None)
    with server.client() as client:
        client.get("b", headers=MODE)
        origin.wait_for(1, key="b", method="HEAD", done=True)
        server.wait_metric("forebay_origin_connections", lambda v: v == 0, state="active")
        assert messages_of_hits(server, 500, "b") < 100, "paused"
    assert len(origin.requests(key="b", method="HEAD")) == 1


def test_a_head_that_names_another_size_is_sent_once(start, origin, engine):
    """A HEAD that names another size is sent once, and says nothing about the stored bytes, even
    after a restart. A client's HEAD goes to the origin."""
    body = body_of(6)
    origin.put("a", len(body), body=body, checksums=named(body))
    server = start(origin, engine=engine, file=IMMUTABLE)
    with server.client() as client:
        client.get("a", first=0, last=9)
        server.durable()
        origin.fault(
            "a", "replace", {"Content-Length": str(len(body) + 1)}, method="HEAD", times=None
        )
        client.get("a", headers=MODE)
        origin.wait_for(1, key="a", method="HEAD", done=True)
        server.settle()
    for end in (None, server.restart, None):
        with server.client() as client:
            for _ in range(3):
                reply = client.get("a", headers=MODE)
                assert bytes(reply.body) == body and sums(reply) == {}
                server.settle()
        assert len(origin.requests(key="a", method="HEAD")) == 1
        on_disk(server)
        if end is not None:
            end()
    assert server.metric("forebay_checksum_requests_total", kind="learnt") == 0
    origin.clear_faults()
    with server.client() as client:
        assert sums(client.head("a", headers=MODE)) == named(body)


def test_explain_and_trace_say_what_is_known(start, origin, engine):
    """`explain` and `trace` say whether the checksums are known."""
    body = body_of(3)
    origin.put("a", len(body), body=body, checksums=named(body))
    origin.put("none", len(body), body=body)
    server = start(origin, engine=engine, file=IMMUTABLE, settings={"access_log.format": "json"})

    def explained(key):
        done = run_forebay(
            "explain",
            f"s3://bkt/{key}",
            env={"FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"},
        )
        (line,) = [text for text in done.stdout.splitlines() if text.startswith("checksum ")]
        return line

    with server.client() as client:
        for count, (key, word) in enumerate((("a", "sent"), ("none", "none"))):
            client.get(key, first=0, last=9)
            server.durable()
            assert "unknown" in explained(key)
            client.get(key, headers=MODE)
            learnt(server, count + 1)
            client.get(key, headers=MODE)
            client.get(key)
            assert ("origin names none" if word == "none" else "known;") in explained(key)
            server.access_log(
                wait_for=lambda e, k=key: e["key"] == k and e.get("checksums") == word
            )
            words = [
                e.get("checksums")
                for e in server.access_log(wait_for=lambda e, k=key: e["key"] == k)
            ]
            assert words[:3] == [None, "unknown", word]


@pytest.mark.parametrize("status", [403, 405, 501])
def test_a_store_that_refuses_head_is_not_asked_again_at_once(start, origin, engine, status):
    """If the store refuses HEAD, Forebay does not ask it again at once."""
    body = body_of(4)
    for key in ("a", "b"):
        origin.put(key, len(body), body=body, checksums=named(body))
    server = start(origin, engine=engine, ahead_s=0, settings={"workers": 1}, file=IMMUTABLE)
    with server.client() as client:
        for key in ("a", "b"):
            client.get(key, first=0, last=9)
        server.durable()
        origin.fault(None, "status", status, method="HEAD", times=None)
        for _ in range(3):
            for key in ("a", "b"):
                reply = client.get(key, headers=MODE)
                assert reply.status == 200 and bytes(reply.body) == body and sums(reply) == {}
                origin.wait_for(1, method="HEAD", done=True)
                server.wait_metric("forebay_origin_connections", lambda v: v == 0, state="active")
        assert len(origin.requests(method="HEAD")) == 1
        origin.clear_faults()
        server.advance(11)
        for key in ("a", "b"):
            client.get(key, headers=MODE)
        learnt(server, 2)
        assert sums(client.get("a", headers=MODE)) == named(body)


@pytest.mark.parametrize("status", [403, 405])
def test_warm_goes_on_without_checksums_where_the_store_refuses_head(start, origin, engine, status):
    """If the store refuses HEAD, `warm` goes on without checksums. Only the HEADs that were in
    flight at the first refusal are sent, one for each object in flight."""
    count = 800
    put_some(origin, count)
    server = start(
        origin, engine=engine, settings={"workers": 1, "access_log.path": "off"}, file=IMMUTABLE
    )
    read_ranged(server, count)
    origin.fault(None, "status", status, method="HEAD", times=None)
    mark = origin.mark()
    done = ask(server, "warm", "s3://bkt/k/", "--wait", "-q")[-1]
    assert done["objects_done"] == count and done["objects_failed"] == 0
    asked = [r for r in origin.requests(since=mark) if r.key]
    assert len(asked) < count / 2
    assert server.metric("forebay_limit_reached_total", limit="checksum-heads") > count / 2

# SPDX-License-Identifier: Apache-2.0
"""The first read of an object never costs more requests at the origin than the client itself would
have sent."""

import threading

import pytest
from client import judge
from forebay import parallel

MIB = 1 << 20


def asked(origin, key="a", **more):
    return [
        (e.method, e.range, e.header("if-match"), e.header("if-none-match"), e.status)
        for e in origin.requests(key=key, **more)
    ]


@pytest.mark.tsan
def test_if_match_goes_to_the_origin_with_the_run(start, origin, engine):
    """The client's If-Match goes to the origin with the run's request."""
    server = start(origin, engine=engine)
    origin.put("a", 3 * MIB)
    etag = origin.version("a").etag
    with server.client() as client:
        judge(client.get("a", 100, 199, headers=[("If-Match", etag)]), origin, "a", 100, 100)
        server.settle()
        (only,) = origin.requests(key="a")
        assert only.method == "GET" and only.header("if-match") == etag
        judge(client.get("a", 100, 199, headers=[("If-Match", etag)]), origin, "a", 100, 100)
        assert len(origin.requests(key="a")) == 1, "it is stored"


@pytest.mark.parametrize(
    "name,value,status",
    [
        ("If-Match", '"nothing"', 412),
        ("If-Unmodified-Since", "Mon, 01 Jan 2001 00:00:00 GMT", 412),
        ("If-None-Match", None, 304),
        ("If-Modified-Since", "Tue, 01 Jan 2036 00:00:00 GMT", 304),
    ],
)
def test_a_condition_that_fails_costs_one_request_and_no_other_reader(
    start, origin, engine, name, value, status
):
    """A failed condition costs one request. The client gets the origin's 412 or 304, and a client
    without a condition gets the bytes."""
    server = start(origin, engine=engine)
    origin.put("a", 3 * MIB)
    etag = origin.version("a").etag
    with server.client() as client:
        reply = client.get("a", headers=[(name, value or etag)])
        assert reply.status == status, reply
        assert len(origin.requests(key="a")) == 1 and origin.bytes_sent("a") == 0
        assert f"fwd=uri-miss; fwd-status={status}" in reply.header("cache-status")
        if status == 304:
            assert reply.etag == etag and reply.header("last-modified"), reply
        else:
            assert (reply.code, reply.element("Condition")) == ("PreconditionFailed", name)
        judge(client.get("a"), origin, "a", 0, 3 * MIB)
        reply = client.get("a", headers=[(name, value or etag)])
        assert reply.status == status, reply


@pytest.mark.parametrize(
    "name,value",
    [
        ("If-Match", "*"),
        ("If-Match", '"x", {etag}'),
        ("If-Match", "{bare}"),
        ("If-None-Match", '"x"'),
        ("If-Modified-Since", "Mon, 01 Jan 2001 00:00:00 GMT"),
        ("If-Unmodified-Since", "Tue, 01 Jan 2036 00:00:00 GMT"),
        ("If-Range", "{etag}"),
    ],
)
def test_a_condition_that_holds_costs_one_request(start, origin, name, value):
    """A condition that holds costs one request."""
    server = start(origin)
    origin.put("a", 3 * MIB)
    etag = origin.version("a").etag
    with server.client() as client:
        reply = client.get(
            "a", 100, 199, headers=[(name, value.format(etag=etag, bare=etag.strip('"')))]
        )
        judge(reply, origin, "a", 100, 100)
    assert len(origin.requests(key="a")) == 1, asked(origin)


def test_if_range_of_another_version_gives_the_whole_object(forebay, origin):
    """If-Range with another version's ETag returns the whole object."""
    origin.put("a", 3 * MIB)
    with forebay.client() as client:
        reply = client.get("a", 2 * MIB, 2 * MIB + 99, headers=[("If-Range", '"nothing"')])
        assert reply.status == 200
        judge(reply, origin, "a", 0, 3 * MIB)


@pytest.mark.tsan
@pytest.mark.parametrize("size", [100, MIB, 3 * MIB + 777, 70 * MIB + 5])
@pytest.mark.parametrize("suffix", [8, 65536])
def test_a_suffix_costs_one_request(start, origin, engine, size, suffix):
    """A suffix range costs one request. The block in which it begins is fetched and stored with it,
    whatever the object's size and whichever worker owns its stripe."""
    server = start(origin, engine=engine, settings={"workers": "4"})
    origin.put("a", size)
    first = max(size - suffix, 0)
    with server.client() as client:
        reply = client.get("a", headers=[("Range", f"bytes=-{suffix}")])
        assert reply.status == 206 and reply.span == (first, size - 1, size), reply
        judge(reply, origin, "a", first, size - first)
        assert len(origin.requests(key="a")) == 1, asked(origin)
        server.settle()
        judge(
            client.get("a", headers=[("Range", f"bytes=-{suffix}")]),
            origin,
            "a",
            first,
            size - first,
        )
        start_of_block = first // MIB * MIB
        judge(
            client.get("a", start_of_block, first + 1),
            origin,
            "a",
            start_of_block,
            first + 2 - start_of_block,
        )
        assert len(origin.requests(key="a")) == 1, asked(origin)
        judge(client.get("a"), origin, "a", 0, size)


def test_a_suffix_that_is_longer_than_a_run(forebay, origin):
    """A suffix range that is longer than a run returns the right bytes."""
    origin.put("a", 40 * MIB)
    with forebay.client() as client:
        judge(
            client.get("a", headers=[("Range", f"bytes=-{30 * MIB}")]),
            origin,
            "a",
            10 * MIB,
            30 * MIB,
        )


def test_a_suffix_of_an_empty_object(forebay, origin):
    """A suffix range of an empty object is answered as S3 does."""
    origin.put("a", 0)
    with forebay.client() as client:
        for _ in range(2):
            assert client.get("a", headers=[("Range", "bytes=-5")]).status in (200, 416)


@pytest.mark.tsan
def test_many_readers_of_one_suffix_ask_once(start, origin, engine):
    """Many clients that ask for one suffix range cause one request."""
    server = start(origin, engine=engine, settings={"workers": "4"})
    origin.put("a", 200 * MIB + 3)

    def one(i):
        with server.client() as client:
            judge(
                client.get("a", headers=[("Range", "bytes=-65536")]),
                origin,
                "a",
                200 * MIB + 3 - 65536,
                65536,
            )

    with origin.hold("a") as gate:
        runner = threading.Thread(target=lambda: (origin.wait_for(1, key="a"), gate.set()))
        runner.start()
        parallel(20, one)
        runner.join()
    assert len(origin.requests(key="a")) == 1, asked(origin)


@pytest.mark.tsan
def test_a_failed_condition_is_no_answer_for_a_reader_without_one(start, origin, engine):
    """Requests with a failing condition and without one are in flight at once on several workers.
    Each gets the answer to its own request."""
    server = start(origin, engine=engine, settings={"workers": "4"})
    for turn in range(10):
        key = f"k{turn}"
        origin.put(key, 3 * MIB)
        etag = origin.version(key).etag
        asks = [
            ([("If-Match", '"nothing"')], 412),
            ([], 200),
            ([("If-None-Match", etag)], 304),
            ([("If-Match", etag)], 200),
        ]

        def one(i):
            headers, status = asks[(i + turn) % len(asks)]
            with server.client() as client:
                reply = client.get(key, headers=headers)
                assert reply.status == status, (headers, reply)
                if status == 200:
                    judge(reply, origin, key, 0, 3 * MIB)

        with origin.hold(key) as gate:
            runner = threading.Thread(target=lambda: (origin.wait_for(1, key=key), gate.set()))
            runner.start()
            parallel(8, one)
            runner.join()


def test_wrong_conditions_alike_share_one_answer(start, origin):
    """Requests that fail with the same condition share one answer."""
    server = start(origin)
    origin.put("a", 1000)

    def one(i):
        with server.client() as client:
            assert client.get("a", headers=[("If-Match", '"nothing"')]).status == 412

    with origin.hold("a") as gate:
        runner = threading.Thread(target=lambda: (origin.wait_for(1, key="a"), gate.set()))
        runner.start()
        parallel(10, one)
        runner.join()
    assert len(origin.requests(key="a")) < 10


def test_if_match_of_a_newer_version_than_a_run_in_flight(start, origin):
    """The object changes after a run began. The run's old version does not decide an If-Match that
    names the new one."""
    server = start(origin)
    origin.put("a", 3 * MIB)
    go = threading.Event()
    origin.fault("a", "hold_at", (MIB, go))
    with server.client() as slow, server.client() as client:
        reader = threading.Thread(target=lambda: slow.get("a"))
        reader.start()
        server.wait_metric("forebay_fills_inflight", lambda n: n >= 1)
        origin.wait_for(1, key="a")
        origin.overwrite("a", 3 * MIB)
        reply = client.get("a", 0, 9, headers=[("If-Match", origin.version("a").etag)])
        go.set()
        reader.join()
        assert reply.status == 206 and judge(reply, origin, "a", 0, 10) == 2

# SPDX-License-Identifier: Apache-2.0
"""After a write of unknown outcome, no cached copy of its keys is trusted until the outcome is
certain."""

import threading

import pytest
from client import judge
from forebay import parallel
from waiting import wait_for

DOUBT_S = 300
SILENT_S = 20  # of the server's clock, which the test moves: no test takes that long
IMMUTABLE = {"rules": [{"match": "**", "freshness": "immutable"}]}
SETTINGS = {"origin.first_byte_timeout": f"{SILENT_S}s", "cache.list_ttl": "1h"}
NEW = b"written by nobody knows whom" * 100


def serve(start, origin, engine, **more):
    origin.put("k", 3000)
    origin.put("other", 3000)
    server = start(origin, engine=engine, file=IMMUTABLE, settings={**SETTINGS, **more}, ahead_s=0)
    with server.client() as client:
        for key in ("k", "other"):
            judge(client.get(key), origin, key, 0, 3000, version=1)
    server.settle()
    return server


def delete_xml(*keys):
    return b"<Delete>%s</Delete>" % b"".join(
        b"<Object><Key>%s</Key></Object>" % key.encode() for key in keys
    )


WRITES = {
    "PUT": ("k", "PUT", "/bkt/k", [], NEW),
    "DELETE": ("k", "DELETE", "/bkt/k", [], b""),
    "copy": ("k", "PUT", "/bkt/k", [("x-amz-copy-source", "/bkt/new")], b""),
    "batch": ("", "POST", "/bkt?delete", [], delete_xml("k")),
}


def request(client, name):
    _, method, target, headers, body = WRITES[name]
    return client.request(method, target, [*headers, ("Content-Length", str(len(body)))], body)


def unanswered(server, origin, ask):
    """Returns the answer to ASK() when the origin has the request and stays silent for longer than
    its timeout."""
    mark, replies = origin.mark(), []
    asker = threading.Thread(target=lambda: replies.append(ask()))
    asker.start()
    origin.wait_for(1, since=mark)
    while (
        asker.is_alive()
    ):  # the server may begin to wait for the answer only after the clock has moved
        server.advance(SILENT_S + 1)
        asker.join(1)
    assert replies and replies[0].status == 503, replies


def is_old(server, origin):
    with server.client() as client:
        judge(client.get("k"), origin, "k", 0, 3000, version=1)
        assert client.head("k").etag == origin.version("k").etag
        assert b"<Key>k</Key>" in bytes(client.list().body)


def is_new(server, name):
    def one(_):
        with server.client() as client:
            if name in ("DELETE", "batch"):
                assert client.get("k").status == client.head("k").status == 404
                assert b"<Key>k</Key>" not in bytes(client.list().body)
            else:
                assert bytes(client.get("k").body) == NEW
                assert client.head("k").header("content-length") == str(len(NEW))

    parallel(4, one)


def applied(origin, name):
    with origin.lock:
        have = origin.buckets["bkt"].get("k")
        return (
            have is None if name in ("DELETE", "batch") else have is not None and have.body == NEW
        )


@pytest.mark.parametrize("readers", ["reading", "silent"])
@pytest.mark.parametrize("name", WRITES)
def test_applied_after_the_time_out(start, origin, engine, name, readers):
    server = serve(start, origin, engine)
    origin.put("new", len(NEW), body=NEW)
    held = WRITES[name][0]
    with server.client() as client, origin.hold(held, method=WRITES[name][1]):
        mark = origin.mark()
        if name == "copy":
            with (
                server.connection() as connection
            ):  # its answer may take minutes: the client does not wait
                connection.send(
                    b"PUT /bkt/k HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n"
                    b"x-amz-copy-source: /bkt/new\r\n\r\n"
                )
                origin.wait_for(1, since=mark, key=held, method="PUT")
            origin.drop_connections()
        else:
            unanswered(server, origin, lambda: request(client, name))
        server.wait_metric("forebay_writes_in_doubt", lambda count: count >= 1)
        for _ in range(3):
            mark = origin.mark()
            is_old(server, origin)
            # Each answer comes from the origin itself.
            assert (
                len(origin.requests(since=mark, key="k")) >= 2
                and len(origin.requests(since=mark, key="")) == 1
            )
            server.settle()
        mark = origin.mark()
        judge(client.get("other"), origin, "other", 0, 3000, version=1)
        assert not origin.requests(since=mark), "nothing else is in doubt"
    wait_for(lambda: applied(origin, name), "the origin to apply it")
    if readers == "reading":
        is_new(server, name)
        server.settle()
    server.advance(DOUBT_S + 5)
    server.wait_metric("forebay_writes_in_doubt", lambda count: count == 0)
    is_new(server, name)
    server.settle()
    mark = origin.mark()
    is_new(server, name)
    assert name in ("DELETE", "batch") or not origin.requests(since=mark, key="k"), "kept again"


@pytest.mark.parametrize("end", ["kill9", "stop"])
@pytest.mark.parametrize("readers", ["reading", "silent"])
def test_applied_after_a_restart(start, origin, engine, end, readers):
    """The server is killed while the origin works on the write, or stopped after the timeout. The
    next process serves no old copy."""
    server = serve(start, origin, engine, **{"shutdown.grace": "1s"})
    origin.put("far", 3000, bucket="far")
    with server.client() as client, origin.hold("k", method="PUT"):
        judge(client.get("far", bucket="far"), origin, "far", 0, 3000, bucket="far")
        server.settle()
        if end == "kill9":
            with server.connection() as connection:
                connection.send(
                    b"PUT /bkt/k HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%s"
                    % (len(NEW), NEW)
                )
                origin.wait_for(1, key="k", method="PUT")
                server.wait_metric(
                    "forebay_origin_sent_bytes_total", lambda count: count >= len(NEW)
                )
                server.kill9()
        else:
            unanswered(server, origin, lambda: request(client, "PUT"))
            server.stop()
        server.start()
        for _ in range(2):
            is_old(server, origin)
            server.settle()
    wait_for(lambda: applied(origin, "PUT"), "the origin to apply it")
    if readers == "reading":
        is_new(server, "PUT")
    server.advance(DOUBT_S + 5)
    server.settle()
    end_again = server.kill9 if end == "kill9" else server.stop
    end_again()  # unconfirmed writes are still remembered
    server.start()
    is_new(server, "PUT")
    server.settle()
    with server.client() as client:
        assert (
            client.get("k").status == 200
        )  # the simultaneous reads above may have found each other's fills outdated
        server.settle()
        for key, asked in (("other", 1), ("other", 0), ("k", 0)):
            mark = origin.mark()
            assert client.get(key).status == 200
            server.settle()
            assert len(origin.requests(since=mark)) == asked, key
        mark = origin.mark()
        judge(client.get("far", bucket="far"), origin, "far", 0, 3000, bucket="far")
        assert not origin.requests(since=mark), "a bucket that nobody wrote to"


def test_later_readers_do_not_join_an_old_transfer(start, origin, engine):
    """A long transfer of the old version goes on, but later readers do not join it."""
    server = serve(start, origin, engine)
    gate, got = threading.Event(), []
    with server.client() as client, origin.hold("k", method="PUT"):
        unanswered(server, origin, lambda: request(client, "PUT"))
        origin.fault("k", "hold_at", (1000, gate), method="GET")

        def read():
            with server.client() as other:
                got.append(other.get("k"))

        reader = threading.Thread(target=read)
        mark = origin.mark()
        reader.start()
        origin.wait_for(1, since=mark, key="k", method="GET")
    wait_for(lambda: applied(origin, "PUT"), "the origin to apply it")
    is_new(server, "PUT")
    gate.set()
    reader.join()
    judge(got[0], origin, "k", 0, 3000, version=1) if got[0].etag != origin.version(
        "k"
    ).etag else None
    is_new(server, "PUT")


@pytest.mark.parametrize(
    "status,doubted",
    [(500, True), (502, True), (504, True), (408, True), (503, False), (403, False), (409, False)],
)
def test_only_an_answer_of_the_origin_decides(start, origin, engine, status, doubted):
    """An error of a gateway leaves the outcome unknown. A refusal by the origin decides it."""
    server = serve(start, origin, engine)
    origin.fault("k", "status", status, method="PUT")
    with server.client() as client:
        client.request("PUT", "/bkt/k", [], NEW)
    assert server.metric("forebay_writes_in_doubt") == (1 if doubted else 0)
    assert server.metric("forebay_doubts_total", of="write") == (1 if doubted else 0)
    is_old(server, origin)


IN_A_DOCUMENT = {
    "internal": (
        b"<?xml version='1.0'?>\n<Error><Code>InternalError</Code><Message>Again</Message></Error>",
        True,
    ),
    "one-key": (
        b"<DeleteResult><Deleted><Key>a</Key></Deleted><Error>"
        b"<Key>k</Key><Code>InternalError</Code></Error>"
        b"</DeleteResult>",
        True,
    ),
    "denied": (
        b"<Error><Code>AccessDenied</Code>"
        b"<Message>&lt;Code>InternalError&lt;/Code></Message></Error>",
        False,
    ),
    "blanks": (b"  \n  ", True),
    "done": (b"<Result><ETag>x</ETag></Result>", False),
}


@pytest.mark.parametrize("framing", ["length", "chunks"])
@pytest.mark.parametrize("operation", ["copy", "batch", "complete"])
@pytest.mark.parametrize("kind", IN_A_DOCUMENT)
def test_a_document_after_a_200_decides(start, origin, kind, operation, framing):
    server = serve(start, origin, "auto")
    document, doubted = IN_A_DOCUMENT[kind]
    length = (
        b"Content-Length: %d\r\n\r\n%s" % (len(document), document)
        if framing == "length"
        else (
            b"Transfer-Encoding: chunked\r\n\r\n"
            + b"".join(b"1\r\n%c\r\n" % c for c in document)
            + b"0\r\n\r\n"
        )
    )
    origin.fault(
        "" if operation == "batch" else "k",
        "raw",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\n" + length,
        method="PUT" if operation == "copy" else "POST",
    )
    with server.client() as client:
        if operation == "complete":
            reply = client.request("POST", "/bkt/k?uploadId=u", [], b"<CompleteMultipartUpload/>")
        else:
            reply = request(client, operation)
        assert reply.status == 200 and bytes(reply.body) == document, reply
    assert server.metric("forebay_doubts_total", of="write") == (1 if doubted else 0)
    is_old(server, origin)


def test_a_write_that_was_never_sent_leaves_no_doubt(start, origin, engine):
    server = serve(start, origin, engine)
    with server.client() as client:
        origin.down()
        assert client.request("PUT", "/bkt/k", [], NEW).status == 503
        assert client.request("DELETE", "/bkt/k").status == 503
        origin.start()
        with server.connection() as connection:  # a cut upload has no effect
            connection.send(
                b"PUT /bkt/k HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\n"
                + b"x" * 70000
            )
            wait_for(lambda: server.metric("forebay_writes_inflight") == 1, "the write")
        server.wait_metric("forebay_writes_inflight", lambda count: count == 0)
    assert server.metric("forebay_doubts_total", of="write") == 0
    is_old(server, origin)


def test_a_change_of_unknown_extent(start, origin, engine):
    """After a change of unknown extent, every use of the bucket is confirmed at the origin, and
    later one of each object."""
    server = serve(start, origin, engine)
    with server.client() as client:
        with origin.hold("", method="POST"):
            unanswered(
                server,
                origin,
                lambda: client.request("POST", "/bkt?delete&z=1", [], delete_xml("gone")),
            )
            for _ in range(2):
                is_old(server, origin)
                server.settle()
                mark = origin.mark()
                judge(client.get("other"), origin, "other", 0, 3000, version=1)
                assert len(origin.requests(since=mark, key="other")) == 1
        origin.overwrite("k")
        server.advance(DOUBT_S + 5)
        for _ in range(2):
            judge(client.get("k"), origin, "k", 0, 3000, version=2)
            judge(client.get("other"), origin, "other", 0, 3000, version=1)
            server.settle()
        mark = origin.mark()
        judge(client.get("k"), origin, "k", 0, 3000, version=2)
        assert not origin.requests(since=mark, key="k")


def test_more_keys_than_are_noted_one_by_one(start, origin, engine):
    """If more than 4,096 keys are in this state, the whole bucket is revalidated."""
    server = serve(start, origin, engine)
    with server.client() as client:
        for i in range(5):
            origin.fault("", "status", 500, method="POST")
            body = delete_xml(*(f"{i}-{j}" for j in range(999)), "k")
            assert client.request("POST", "/bkt?delete", [], body).status == 500
        assert server.metric("forebay_writes_in_doubt") == 4096
        assert server.metric("forebay_doubts_total", of="bucket") > 0
        mark = origin.mark()
        judge(client.get("other"), origin, "other", 0, 3000, version=1)
        assert len(origin.requests(since=mark, key="other")) == 1
        server.advance(DOUBT_S + 5)
        server.wait_metric("forebay_writes_in_doubt", lambda count: count == 0)
        judge(client.get("other"), origin, "other", 0, 3000, version=1)
        server.settle()
        mark = origin.mark()
        judge(client.get("other"), origin, "other", 0, 3000, version=1)
        assert not origin.requests(since=mark, key="other")


@pytest.mark.parametrize("outcome", ["unknown", "open"])
def test_heads_during_a_write_cost_one_request_each(start, origin, engine, outcome):
    """During the write each HEAD costs one request and gets a right answer, although the write has
    created the entry that it belongs to."""
    server = start(origin, engine=engine, file=IMMUTABLE)
    origin.put("k", 3000)

    def asked_three_times():
        mark = origin.mark()
        with server.client() as client:
            for _ in range(3):
                reply = client.head("k")
                assert (reply.status, reply.etag) == (200, origin.version("k").etag)
                assert "bypass" not in reply.header("cache-status"), reply
        assert len(origin.requests(since=mark, key="k")) == 3

    if outcome == "unknown":
        origin.fault("k", "status", 500, method="PUT", times=None)
        with server.client() as client:
            assert request(client, "PUT").status == 500
        asked_three_times()
        return
    writer = threading.Thread(
        target=lambda: [request(client, "PUT") for client in [server.client()]]
    )
    with origin.hold("k", method="PUT"):
        writer.start()
        origin.wait_for(1, key="k", method="PUT")
        asked_three_times()
    writer.join()
    is_new(server, "PUT")

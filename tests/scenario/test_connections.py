# SPDX-License-Identifier: Apache-2.0
"""Connections to the origin, over plain HTTP and TLS: which of them may carry another request."""

import subprocess
import threading
from pathlib import Path

import pytest

from client import judge
from conftest import strict
from forebay import KEYS
from origin import Origin

STRAY = (
    b'HTTP/1.1 200 OK\r\nETag: "stray"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n'
    b"Content-Length: 3000\r\n\r\n" + b"wrong" * 600
)
CLOSED = "forebay_origin_connections_closed_total"


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    names = [str(folder / name) for name in ("certificate.pem", "key.pem")]
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-keyout",
            names[1],
            "-out",
            names[0],
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
        ],
        check=True,
        capture_output=True,
    )
    return tuple(names)


@pytest.fixture(params=["plain", "tls"])
def wire(request, start):
    """An origin, and a server with one worker in front of it, over plain HTTP or TLS."""
    tls = request.getfixturevalue("certificate") if request.param == "tls" else None
    with strict(Origin(credentials=KEYS, tls=tls)) as origin:
        settings = {"workers": 1, "origin.keepalive": "60s", "origin.retries": 0}
        if tls:
            settings["origin.ca_file"] = tls[0]
        yield origin, start(origin, settings=settings)


def connections(origin, since=0):
    return {entry.connection for entry in origin.requests(since=since)}


def test_connections_are_kept(wire):
    """One connection carries all requests. The other tests of this file compare with this one."""
    origin, server = wire
    with server.client() as client:
        for i in range(5):
            origin.put(f"k{i}", 70000)
            judge(client.get(f"k{i}"), origin, f"k{i}")
            assert client.request("PUT", f"/bkt/p{i}", body=b"x" * 1000).status == 200
    assert len(connections(origin)) == 1
    assert server.metric(CLOSED) == 0


def test_certificates_are_not_read_for_each_connection(certificate, start, tmp_path):
    """Certificates are not read for each connection, because parsing all authorities takes 35 ms of
    a worker. The test deletes the file after the first read."""
    authorities = tmp_path / "authorities.pem"
    authorities.write_bytes(Path(certificate[0]).read_bytes())
    with Origin(credentials=KEYS, tls=certificate) as origin:
        origin.keep_alive = False
        server = start(
            origin,
            ahead_s=0,
            settings={"workers": 1, "origin.retries": 0, "origin.ca_file": str(authorities)},
        )
        with server.client() as client:
            origin.put("first", 3000)
            judge(client.get("first"), origin, "first")
            authorities.unlink()
            for i in range(3):
                origin.put(f"k{i}", 3000)
                judge(client.get(f"k{i}"), origin, f"k{i}")
                server.advance(10)  # unused connections are not kept for so long
        assert len(connections(origin)) == 4


@pytest.mark.parametrize("size", [0, 100, 16000, 70000, 1 << 20])
def test_a_second_answer_is_not_taken_for_the_next(wire, size):
    """A second answer arrives in one piece with the first. The next request gets its own answer,
    not a wrong byte."""
    origin, server = wire
    origin.put("first", size)
    origin.put("second", 3000)
    origin.fault("first", "stray", STRAY, method="GET")
    with server.client() as client:
        judge(client.get("first"), origin, "first")
        judge(client.get("second"), origin, "second")
        for name in ("first", "second"):
            judge(client.get(name), origin, name)  # and none was kept
    assert (
        len(connections(origin)) == 2 or size == 0
    )  # all of it came with the head of an empty body


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_a_late_second_answer_is_not_taken_for_the_next(wire, method):
    """A second answer arrives later, while the connection idles. The next request uses another
    connection, and is sent once."""
    origin, server = wire
    gone, go = threading.Event(), threading.Event()
    origin.put("first", 70000)
    origin.put("second", 3000)
    origin.fault("first", "late_stray", (STRAY, gone, go), method="GET")
    with server.client() as client:
        judge(client.get("first"), origin, "first")
        go.set()
        assert gone.wait(60)
        mark = origin.mark()
        reply = client.request(method, "/bkt/second", body=b"new" if method == "PUT" else b"")
        assert reply.status == (204 if method == "DELETE" else 200), reply
        if method == "GET":
            judge(reply, origin, "second")
        if method == "HEAD":
            assert reply.header("content-length") == "3000" and reply.etag != '"stray"'
        if method == "PUT":
            assert origin.bytes_of("second") == b"new"
    assert len(origin.requests(since=mark)) == 1
    assert len(connections(origin)) == 2
    # A deletion never uses a connection again, so it closes none.
    assert server.metric(CLOSED, reason="stray") == (0 if method == "DELETE" else 1)


@pytest.mark.parametrize(
    "status,code",
    [(503, "SlowDown"), (403, "AccessDenied"), (412, "PreconditionFailed"), (400, "BadDigest")],
)
def test_a_refused_upload_costs_its_connection(wire, status, code):
    """The origin refuses an upload after its whole body and would keep the connection. The next
    request still uses a new one."""
    origin, server = wire
    origin.put("k", 1000)
    with server.client() as client:
        judge(client.get("k"), origin, "k")
        for round_ in range(3):
            origin.fault("up", "error", (status, code), method="PUT")
            reply = client.request("PUT", "/bkt/up", body=b"x" * 70000)
            assert reply.status == status and reply.code == code, reply
            assert client.request("PUT", "/bkt/up", body=b"x" * 70000).status == 200
            assert len(connections(origin)) == 2 + round_
    assert server.metric(CLOSED, reason="upload") == 3


@pytest.mark.parametrize("status", [499, 444, 520, 599])
def test_an_invalid_status_is_no_answer(wire, status):
    """On a reused connection an invalid status is not an answer. Forebay repeats a read on a new
    connection, and does not repeat an upload."""
    origin, server = wire
    origin.put("first", 1000)
    origin.put("k", 3000)
    with server.client() as client:
        judge(client.get("first"), origin, "first")
        origin.fault("k", "error", (status, "Odd"), method="GET")
        judge(client.get("k"), origin, "k")
        assert len(origin.requests(key="k")) == 2 and len(connections(origin)) == 2
        origin.fault("up", "error", (status, "Odd"), method="PUT")
        mark = origin.mark()
        reply = client.request("PUT", "/bkt/up", body=b"x" * 1000)
        assert reply.status == 503 and reply.code == "ServiceUnavailable", reply
        assert len(origin.requests(since=mark)) == 1
        assert client.request("PUT", "/bkt/up", body=b"x" * 1000).status == 200
        assert len(connections(origin)) == 3
    assert server.metric(CLOSED, reason="status") == 2


def test_a_region_is_learnt_once(start):
    """Eight workers use a bucket in another region. Only one request goes to the wrong region,
    whichever worker sends it."""
    with Origin(credentials=KEYS, region="eu-central-1") as origin:
        server = start(origin, settings={"workers": 8, "origin.region": "auto"})
        for i in range(64):
            origin.put(f"k{i}", 100)
            with server.client() as client:
                judge(client.get(f"k{i}"), origin, f"k{i}")
        assert [e.status for e in origin.requests() if e.status != 206].count(400) == 1
        assert len(origin.requests()) == 65


@pytest.mark.parametrize(
    "status,code", [(503, "SlowDown"), (403, "AccessDenied"), (400, "RequestTimeout")]
)
def test_an_upload_refused_in_its_middle(wire, status, code):
    """The origin answers an upload while the client pauses. The client gets the answer at once, and
    the connection is closed."""
    origin, server = wire
    origin.put("k", 1000)
    half, head = (
        b"x" * 100000,
        "PUT /bkt/up HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 200000\r\n\r\n",
    )
    with server.client() as client, server.connection() as raw:
        judge(client.get("k"), origin, "k")
        origin.fault("up", "early", (status, code), method="PUT")
        raw.send(head.encode() + half)
        reply = raw.read_reply("PUT")  # nothing more was sent by then
        assert reply.status == status and reply.code == code, reply
        mark = origin.mark()
        for i in range(20):
            assert client.request("PUT", f"/bkt/p{i}", body=b"x" * 1000).status == 200
            judge(client.get("k", headers=[("Cache-Control", "no-cache")]), origin, "k")
        assert all(e.status in (200, 304) for e in origin.requests(since=mark))
        assert len(connections(origin)) == 2
    assert server.metric(CLOSED, reason="upload") == 1

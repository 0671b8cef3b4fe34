# SPDX-License-Identifier: Apache-2.0
"""However a write ends, nothing of it stays counted or open, and the cache agrees with the
origin."""

import base64
import contextlib
import hashlib
import threading

import pytest
from client import Closed, judge

MIB = 1 << 20
KEYS = [f"batch/{i:03}" for i in range(300)]
SIZE = 4096
HOST = b"Host: 127.0.0.1\r\n"


def batch(keys):
    return (
        b"<Delete>"
        + b"".join(b"<Object><Key>%s</Key></Object>" % key.encode() for key in keys)
        + b"</Delete>"
    )


def head_of(method, target, length=None, more=b""):
    framing = (
        b"Transfer-Encoding: chunked\r\n" if length is None else b"Content-Length: %d\r\n" % length
    )
    return b"%s %s HTTP/1.1\r\n%s%s%s\r\n" % (method.encode(), target.encode(), HOST, framing, more)


def delete_head(body, digest=None):
    md5 = base64.b64encode(hashlib.md5(body if digest is None else digest).digest())
    return head_of("POST", "/bkt?delete", len(body), b"Content-MD5: %s\r\n" % md5)


def is_clean(server):
    server.settle()
    server.wait_metric("forebay_writes_inflight", lambda n: n == 0)
    server.wait_metric("forebay_writes_in_doubt", lambda n: n == 0)
    for kind in ("payload", "clients", "origins", "runs", "bodies", "folders", "writes"):
        server.wait_metric("forebay_buffer_bytes", lambda n: n == 0, kind=kind)


def exists(origin, key):
    with origin.lock:
        return origin.buckets[origin.bucket].get(key) is not None


def agrees(server, origin, keys):
    with server.client() as client:
        for key in keys:
            reply = client.get(key)
            if not exists(origin, key):
                assert reply.status == 404, (key, reply)
            else:
                judge(reply, origin, key, 0, SIZE)


@pytest.mark.parametrize(
    "fault",
    [
        ("close", None),
        ("reset", None),
        ("status", 500),
        ("error", (503, "SlowDown")),
        ("stall", 0),
        ("cut", 40),
        ("early", 403),
        ("raw", b"HTTP/1.1 200 OK\r\n\r\n"),
        ("raw", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n     "),
    ],
    ids=str,
)
def test_batch_deletes_that_fail_at_the_origin_leave_nothing(start, origin, fault):
    """A batch delete of 300 keys, which must be counted, fails at the origin in different ways. In
    each the origin may or may not have deleted the keys. All doubts end, and later reads agree with
    the origin."""
    server = start(
        origin,
        ahead_s=0,
        settings={
            "cache.ttl": "1h",
            "origin.first_byte_timeout": "10s",
            "limits.max_buffer": "4MiB",
        },
    )
    for key in KEYS:
        origin.put(key, SIZE)
    agrees(server, origin, KEYS[:20])
    origin.fault(None, *fault, times=None, method="POST")
    with server.connection() as connection:
        connection.send(delete_head(batch(KEYS)) + batch(KEYS))
        if fault[0] == "stall":
            origin.wait_for(1, method="POST")
            connection.reset()
            server.advance(120)
        else:
            with contextlib.suppress(Closed):
                connection.read_head()
    server.wait_metric("forebay_writes_inflight", lambda n: n == 0)
    origin.clear_faults()
    origin.release()
    server.advance(301)
    is_clean(server)
    agrees(server, origin, KEYS[:20])


def test_clients_that_leave_a_write_at_any_step_leave_nothing(start, origin):
    """The client sends each piece, and then resets or half-closes the connection. Nothing stays
    open or counted."""
    server = start(origin, ahead_s=0, settings={"cache.ttl": "1h", "limits.max_buffer": "4MiB"})
    for key in KEYS:
        origin.put(key, SIZE)
    agrees(server, origin, KEYS[:20])
    body = batch(KEYS)
    form = (
        b'--b\r\nContent-Disposition: form-data; name="key"\r\n\r\n'
        b"batch/000\r\n--b\r\nContent-Disposition: form-data; "
        b'name="file"; filename="x"\r\n\r\n' + b"x" * 5000 + b"\r\n--b--\r\n"
    )
    form_head = head_of(
        "POST", "/bkt", len(form), b"Content-Type: multipart/form-data; boundary=b\r\n"
    )
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    pieces = {  # sent by the client before it leaves
        "head": delete_head(body),
        "half": delete_head(body) + body[: len(body) // 2],
        "digest": delete_head(body, b"other") + body,
        "xml": delete_head(body[:-3]) + body[:-3],
        "form head": form_head,
        "form key": form_head + form[:100],
        "form file": form_head + form[:3000],
        "form end": form_head + form[:-4] + b"xxxx",
        "chunks": head_of("PUT", "/bkt/batch/001") + chunk * 3,
        "chunks too many": head_of("PUT", "/bkt/batch/001") + chunk * 40,
        "chunk bad": head_of("PUT", "/bkt/batch/001") + chunk + b"zz\r\n",
        "put half": head_of("PUT", "/bkt/batch/002", 9000) + b"x" * 5000,
    }
    for sent in pieces.values():
        for resets in (True, False):
            with server.connection() as connection:
                with contextlib.suppress(OSError):
                    connection.send(sent)
                if resets:
                    connection.reset()
                else:
                    with contextlib.suppress(Closed, OSError):  # the server may have closed already
                        connection.finish_sending()
                        connection.read_head()
    # Everything is sent, the origin works on it, and the client disconnects.
    for sent in (delete_head(batch(KEYS[100:])) + batch(KEYS[100:]), form_head + form):
        with origin.hold(None) as go:
            mark = origin.mark()
            with server.connection() as connection:
                connection.send(sent)
                origin.wait_for(1, since=mark)
                connection.reset()
            go.set()
    server.wait_metric("forebay_writes_inflight", lambda n: n == 0)
    server.advance(301)
    is_clean(server)
    with server.client() as client:
        assert client.get("batch/200").status == (200 if exists(origin, "batch/200") else 404)
        agrees(server, origin, KEYS[3:20])


def test_two_writes_of_one_key_with_overlapping_windows(start, origin, engine):
    """A second write of a key begins before the first ends, and ends after it. Versions read in
    between are not kept."""
    server = start(origin, engine=engine, settings={"cache.ttl": "1h", "workers": 2})
    for key in KEYS[:20]:
        origin.put(key, SIZE)
    agrees(server, origin, KEYS[:20])
    with server.connection() as one, server.connection() as two, server.client() as client:
        first, second = threading.Event(), threading.Event()
        origin.fault(None, "hold", ("first", first), method="POST")
        origin.fault(None, "hold", ("second", second), at=2, method="POST")
        one.send(delete_head(batch(KEYS[:10])) + batch(KEYS[:10]))
        origin.wait_for(1, method="POST")
        two.send(delete_head(batch(KEYS[:20])) + batch(KEYS[:20]))
        origin.wait_for(2, method="POST")
        judge(client.get(KEYS[3]), origin, KEYS[3], 0, SIZE)
        first.set()
        assert one.read_head().status == 200
        assert client.get(KEYS[3]).status == 404
        origin.put(KEYS[3], SIZE)  # past the cache; the second write then deletes it
        judge(client.get(KEYS[3]), origin, KEYS[3], 0, SIZE)
        judge(client.get(KEYS[15]), origin, KEYS[15], 0, SIZE)
        server.settle()
        second.set()
        assert two.read_head().status == 200
        assert client.get(KEYS[3]).status == client.get(KEYS[15]).status == 404
    agrees(server, origin, KEYS[:20])
    is_clean(server)


def test_a_server_that_ends_in_the_middle_of_a_write_starts_again_without_stale_objects(
    start, origin, engine
):
    """The server ends by SIGTERM or kill -9 while the origin works on a write. The next process
    confirms its cached copies of these keys before it serves them."""
    server = start(origin, engine=engine, settings={"cache.ttl": "1h", "shutdown.grace": "1s"})
    for key in KEYS:
        origin.put(key, SIZE)
    for end, some in ((server.restart, KEYS[:100]), (server.kill9, KEYS[100:200])):
        agrees(server, origin, [some[0], some[-1], KEYS[250]])
        server.settle()
        with origin.hold(None, method="POST") as go:
            mark = origin.mark()
            with server.connection() as connection:
                connection.send(delete_head(batch(some)) + batch(some))
                origin.wait_for(1, method="POST", since=mark)
                agrees(server, origin, [some[0]])
                end()
            go.set()
        if end == server.kill9:
            server.start()
        origin.wait_for(1, method="POST", since=mark, done=True)
        agrees(server, origin, [some[0], some[-1], KEYS[250]])
    is_clean(server)

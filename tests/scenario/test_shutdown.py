# SPDX-License-Identifier: Apache-2.0
"""SIGTERM while requests are in flight.

All resources are freed (the sanitizer build reports leaks), the grace period lets requests finish,
and no write is forgotten.
"""

import contextlib
import http.server
import json
import os
import signal
import threading

import pytest

from client import Connection, judge, judge_streamed, request_bytes
from conftest import ENGINES, not_run
from forebay import build_kind
from test_origin_trouble import certificate  # noqa: F401 (a fixture)
from waiting import WAIT_S

MIB = 1 << 20
PAGE = "http://console.example"
LONG = "1h"  # a grace period that no test waits for
RULES = {
    "rules": [
        {"match": "bkt/checked*", "freshness": "strict"},
        {"match": "**", "freshness": "immutable"},
    ]
}
DELETE = b"<Delete><Object><Key>a</Key></Object></Delete>"
FINISH = (
    b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber></Part></CompleteMultipartUpload>"
)


class Rig:
    """A server over a scripted origin, and requests that are stuck half-way."""

    def __init__(self, server, origin, root):
        self.server, self.origin, self.root = server, origin, root
        self.open = contextlib.ExitStack()
        self.gate = threading.Event()  # releases the requests that the origin holds

    def ask(self, method, target, headers=(), body=b"", **more):
        connection = self.open.enter_context(self.server.connection(**more))
        connection.send(
            request_bytes(method, target, f"127.0.0.1:{self.server.port}", headers, body)
        )
        connection.method = method
        return connection

    def hold(self, key, method, at=None):
        if at is None:
            self.origin.fault(key, "hold", (self.gate,), method=method, times=None)
        else:
            self.origin.fault(key, "hold_at", (at, self.gate), method=method, times=None)

    def stuck(self, key, method, target, *more, at=None, **which):
        """Sends a request that the origin receives and does not answer, or not to the end."""
        mark = self.origin.mark()
        self.hold(key, method, at)
        connection = self.ask(which.pop("asked", method), target, *more)
        self.origin.wait_for(1, since=mark, key=key, method=method)
        return connection

    def put(self, key="a", size=1000, query=""):
        """Sends a PUT whose whole body is at the origin, which does not answer."""
        before = self.server.metric("forebay_origin_sent_bytes_total")
        connection = self.stuck(key, "PUT", f"/bkt/{key}{query}", [], b"x" * size)
        self.server.wait_metric("forebay_origin_sent_bytes_total", lambda v: v >= before + size)
        return connection


def get_without_head(rig):
    return rig.stuck("a", "GET", "/bkt/a")


def get_half_the_body(rig):
    connection = rig.stuck("big", "GET", "/bkt/big", at=MIB)
    head = connection.read_head()
    assert head.status == 200 and connection._fill()
    return None


def get_many_readers(rig):
    connection = rig.stuck("big", "GET", "/bkt/big", at=3 * MIB // 2)
    for first in (0, 100, MIB, 2 * MIB, 5 * MIB):
        rig.ask("GET", "/bkt/big", [("Range", f"bytes={first}-")])
    connection.read_head()
    return None


def check_with_the_origin(rig):
    rig.origin.put("checked", 1000)
    with rig.server.client() as client:
        assert client.get("checked").status == 200
    rig.server.settle()
    connection = rig.stuck("checked", "HEAD", "/bkt/checked", asked="GET")
    for _ in range(3):
        rig.ask("GET", "/bkt/checked")
    return connection


def head_of_unknown(rig):
    return rig.stuck("a", "HEAD", "/bkt/a", [("If-None-Match", '"x"')])


def passed_get(rig):
    return rig.stuck("a", "GET", "/bkt/a?tagging")


def passed_get_half(rig):
    connection = rig.stuck("big", "GET", "/bkt/big", [("Origin", PAGE)], at=MIB)
    assert connection.read_head().status == 200 and connection._fill()
    return None


def put_half(rig):
    mark = rig.origin.mark()
    connection = rig.ask("PUT", "/bkt/a", [("Content-Length", "1000")], b"x" * 500)
    rig.origin.wait_for(1, since=mark, key="a", method="PUT")
    return None


def put_unanswered(rig):
    return rig.put()


def put_chunked_half(rig):
    rig.ask(
        "PUT",
        "/bkt/a",
        [
            ("Content-Length", "1089"),
            ("x-amz-decoded-content-length", "1000"),
            ("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"),
            ("x-amz-trailer", "x-amz-checksum-crc32"),
            ("Content-Encoding", "aws-chunked"),
        ],
        b"3e8\r\n" + b"x" * 500,
    )
    rig.server.wait_metric("forebay_http_requests_inflight", lambda v: v == 1)
    return None


def put_without_client(rig):
    rig.put().reset()
    rig.server.wait_metric("forebay_http_connections", lambda v: v == 0)
    return None


def delete_many(rig):
    return rig.stuck("", "POST", "/bkt?delete", [], DELETE)


def delete_many_half(rig):
    rig.ask("POST", "/bkt?delete", [("Content-Length", "1000")], DELETE)
    rig.server.wait_metric("forebay_http_requests_inflight", lambda v: v == 1)
    return None


def change_of_unknown_extent(rig):
    return rig.stuck("", "POST", "/bkt?delete&z=1", [], DELETE)


def listing(rig):
    return rig.stuck("", "GET", "/bkt?list-type=2")


def listing_never_kept(rig):
    return rig.stuck("", "GET", "/bkt?list-type=2", [("Cache-Control", "no-store")])


def form_half(rig):
    boundary = "xxBOUNDARYxx"
    body = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="key"\r\n\r\na\r\n--{boundary}\r\n'
        'Content-Disposition: form-data; name="file"\r\n\r\nhalf of it'
    ).encode()
    rig.ask(
        "POST",
        "/bkt",
        [
            ("Content-Type", f"multipart/form-data; boundary={boundary}"),
            ("Content-Length", str(len(body) + 500)),
        ],
        body,
    )
    rig.origin.wait_for(1, key="", method="POST")
    return None


def complete_upload(rig):
    """200 and blanks came at once, and the outcome is missing."""
    with rig.server.client() as client:
        upload = client.request("POST", "/bkt/a?uploads").element("UploadId")
        assert (
            client.request("PUT", f"/bkt/a?partNumber=1&uploadId={upload}", [], b"x").status == 200
        )
    rig.origin.fault("a", "late_result", (b" ", rig.gate), method="POST")
    connection = rig.ask("POST", f"/bkt/a?uploadId={upload}", [], FINISH)
    assert connection.read_head().status == 200
    return None


def browser_question(rig):
    return rig.stuck(
        "a", "OPTIONS", "/bkt/a", [("Origin", PAGE), ("Access-Control-Request-Method", "GET")]
    )


def buckets(rig):
    return rig.stuck("", "GET", "/")


def slow_readers(rig):
    """Slow readers of a hit, of a miss and of a relayed reply, and one that disconnected in
    mid-body."""
    with rig.server.client() as client:
        assert client.get("big").status == 200
    rig.server.settle()
    for target, more in (("/bkt/big", []), ("/bkt/huge", []), ("/bkt/huge", [("Origin", PAGE)])):
        for _ in range(2):
            assert rig.ask("GET", target, more, receive_buffer=4096).read_head().status == 200
        connection = rig.ask("GET", target, more, receive_buffer=4096)
        connection.read_head()
        connection.reset()
    return None


def half_heads(rig):
    for text in (b"", b"GET", b"GET /bkt/a HTTP/1.1\r\nHost: x\r\n"):
        rig.open.enter_context(rig.server.connection()).send(text)
    return None


def admin(rig):
    for text in (
        b"",
        b"GET",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 50,
    ):
        connection = rig.open.enter_context(Connection(rig.server.admin_port, receive_buffer=4096))
        connection.send(text)
    return None


def retry_is_due(rig):
    """The origin answers 503 twice, and the next attempt waits."""
    rig.origin.fault("a", "status", 503, times=None)
    rig.ask("GET", "/bkt/a")
    rig.ask("GET", "/bkt/a?tagging")
    rig.origin.wait_for(2, key="a")
    return None


def body_to_be_resumed(rig):
    rig.origin.fault("big", "cut", MIB + 1000, times=None)
    connection = rig.ask("GET", "/bkt/big")
    assert connection.read_head().status == 200
    rig.origin.wait_for(2, key="big")
    return None


def waits_for_a_place(rig):
    """More calls than connections to the origin."""
    with_place = 2
    for i in range(6):
        rig.origin.put(f"n{i}", 1000)
        rig.hold(f"n{i}", "GET")
        rig.hold(f"w{i}", "PUT")
    for i in range(6):
        rig.ask("GET", f"/bkt/n{i}")
        rig.ask("PUT", f"/bkt/w{i}", [], b"x")
    rig.server.wait_metric("forebay_http_requests_inflight", lambda v: v == 12)
    rig.origin.wait_for(with_place)
    return None


waits_for_a_place.settings = {
    "origin.connections": 2,
    "workers": 1,
}  # each of several has its share, which their keys need not use

STUCK = [
    get_without_head,
    get_half_the_body,
    get_many_readers,
    check_with_the_origin,
    head_of_unknown,
    passed_get,
    passed_get_half,
    put_half,
    put_unanswered,
    put_chunked_half,
    put_without_client,
    delete_many,
    delete_many_half,
    change_of_unknown_extent,
    listing,
    listing_never_kept,
    form_half,
    complete_upload,
    browser_question,
    buckets,
    slow_readers,
    half_heads,
    admin,
    retry_is_due,
    body_to_be_resumed,
    waits_for_a_place,
]


def make(start, origin, tmp_path, engine, what=None, **settings):
    origin.put("a", 1000)
    origin.put("big", 8 * MIB)
    origin.put("huge", 32 * MIB)
    more = {
        "cache.list_ttl": "1h",
        "auth.allowed_origins": PAGE,
        "shutdown.grace": LONG,
        "origin.first_byte_timeout": "10m",
        "origin.idle_timeout": "10m",
        **getattr(what, "settings", {}),
        **settings,
    }
    server = start(origin, engine=engine, file=RULES, settings=more)
    return Rig(server, origin, tmp_path)


def term(server):
    os.kill(server._pid(), signal.SIGTERM)


def drain(server):
    term(server)
    server.wait_stderr('"name":"draining"')


def ended(server):
    """Waits for the server's end. A leak has an exit code of its own, and is reported."""
    code = server.process.wait(WAIT_S)
    server._join()
    server.process = None
    assert code == 0, f"exit {code}: " + "\n".join(server.stderr[-80:])
    assert not server.complaints()
    assert not [line for line in server.stderr if "loop_stop_timeout" in line], server.output()


@pytest.mark.both_engines
@pytest.mark.parametrize("what", STUCK, ids=lambda what: what.__name__)
def test_no_grace(start, origin, engine, tmp_path, what):
    """The grace period is over at once. On one engine a second signal ends it."""
    impatient = engine == ENGINES[0]
    rig = make(
        start, origin, tmp_path, engine, what, **({} if impatient else {"shutdown.grace": "0s"})
    )
    with rig.open:
        what(rig)
        drain(rig.server)
        if impatient and rig.server.alive:
            term(rig.server)
        ended(rig.server)
        rig.gate.set()
        origin.clear_faults()


@pytest.mark.parametrize(
    "what",
    [
        get_without_head,
        check_with_the_origin,
        head_of_unknown,
        passed_get,
        put_unanswered,
        delete_many,
        change_of_unknown_extent,
        listing,
        browser_question,
        buckets,
        put_without_client,
    ],
    ids=lambda what: what.__name__,
)
def test_within_the_grace(start, origin, engine, tmp_path, what):
    """Requests that the origin answers within the grace period are answered."""
    rig = make(start, origin, tmp_path, engine, what)
    with rig.open:
        connection = what(rig)
        drain(rig.server)
        rig.gate.set()
        if connection is not None:
            assert connection.read_reply(connection.method).status in (200, 403, 404, 412)
            connection.close()
        rig.open.close()
        ended(rig.server)


def test_a_reply_in_progress_is_sent_to_its_end(start, origin, engine):
    """The head of a reply was sent before SIGTERM, and does not announce a close. The connection
    closes after its last byte, and then the server ends."""
    origin.put("large", 32 << 20)
    server = start(origin, engine=engine, settings={"shutdown.grace": LONG})
    with server.connection(receive_buffer=4096) as connection:
        connection.send(request_bytes("GET", "/bkt/large", f"127.0.0.1:{server.port}"))
        head = connection.read_head()
        assert not head.closes
        os.kill(server.process.pid, signal.SIGTERM)
        server.wait_stderr('"draining"')
        judge_streamed(connection, origin, "large", 0, 32 << 20, head=head)
        assert connection.at_end()
        assert server.stop() == 0


def test_stalled_credentials(start, origin, engine, tmp_path):
    """The server ends although the origin refuses a token and the provider of the next one does not
    answer."""
    asked, gate = threading.Semaphore(0), threading.Event()

    class Giver(http.server.BaseHTTPRequestHandler):
        count = 0

        def do_GET(self):
            Giver.count += 1
            if Giver.count > 1:
                asked.release()
                gate.wait(WAIT_S)
                return
            body = json.dumps(
                {
                    "AccessKeyId": "origin-key",
                    "Token": "token",
                    "SecretAccessKey": "origin-secret-canary-7f3a",
                    "Expiration": "2099-01-01T00:00:00Z",
                }
            ).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    giver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Giver)
    threading.Thread(target=giver.serve_forever, daemon=True).start()
    origin.fault(None, "expired_token", times=None)
    origin.put("a", 1000)
    url = f"http://127.0.0.1:{giver.server_port}/"
    server = start(
        origin,
        engine=engine,
        env={"AWS_CONTAINER_CREDENTIALS_FULL_URI": url},
        settings={"credentials.source": "container", "shutdown.grace": "0s"},
    )
    rig = Rig(server, origin, tmp_path)
    with rig.open:
        rig.ask("GET", "/bkt/a")
        rig.ask("GET", "/bkt/a?tagging")
        rig.ask("PUT", "/bkt/a", [("Content-Length", "10")], b"x")
        assert asked.acquire(timeout=WAIT_S)
        server.wait_metric("forebay_http_requests_inflight", lambda v: v == 3)
        drain(server)
        gate.set()  # the server waits for a job's thread
        ended(server)
    giver.shutdown()
    giver.server_close()


def test_stalled_look_for_a_region(start, origin, engine, tmp_path):
    """The server ends during an upload to a bucket whose region it is still looking up."""
    gate = threading.Event()
    origin.fault(None, "hold", (gate,), method="HEAD", bucket="s3.us-east-1", times=None)
    port = origin.endpoint.rpartition(":")[2]
    server = start(
        f"http://s3.{{region}}.localhost:{port}",
        engine=engine,
        settings={
            "origin.addressing": "path",
            "origin.region": "auto",
            "shutdown.grace": "0s",
            "origin.first_byte_timeout": "10m",
        },
    )
    rig = Rig(server, origin, tmp_path)
    with rig.open:
        rig.ask("PUT", "/bkt/a", [], b"x")
        origin.wait_for(1, method="HEAD")
        drain(server)
        ended(server)
        gate.set()


@pytest.mark.parametrize("grace", ["0s", "1h"])
def test_directory(start, engine, tmp_path, grace):
    """The server ends while clients slowly read files, through the cache and past it, and
    listings."""
    folder = tmp_path / "tree" / "bkt"
    folder.mkdir(parents=True)
    (folder / "big").write_bytes(bytes(64 * MIB))
    for i in range(1000):
        (folder / f"n{i}").touch()
    server = start(
        f"dir:{tmp_path / 'tree'}",
        engine=engine,
        settings={"shutdown.grace": grace, "auth.allowed_origins": PAGE},
    )
    rig = Rig(server, None, tmp_path)
    with rig.open:
        for more in ([], [("Range", "bytes=40000000-")], [("Origin", PAGE)]):
            slow = rig.ask("GET", "/bkt/big", more, receive_buffer=4096)
            assert slow.read_head().status in (200, 206)
        for _ in range(8):
            rig.ask("GET", "/bkt?list-type=2")
            rig.ask("GET", "/bkt/n1")
            rig.ask("HEAD", "/bkt/none")
        drain(server)
        if grace != "0s":
            term(server)
        ended(server)


# --- writes --------------------------------------------------------------------------------------


def cached(rig, *keys):
    with rig.server.client() as client:
        for key in keys:
            assert client.get(key).status == 200
    rig.server.settle()


def test_a_stop_waits_for_a_write_whose_client_left(start, origin, engine, tmp_path):
    """The process waits for a write whose client has disconnected, until the origin answers."""
    rig = make(start, origin, tmp_path, engine)
    cached(rig, "a")
    mark = origin.mark()
    with rig.open:
        put_without_client(rig)
        drain(rig.server)
        assert rig.server.metric("forebay_writes_inflight") == 1
        assert rig.server.alive
        rig.gate.set()
        ended(rig.server)
    [entry] = origin.requests(since=mark, method="PUT")
    assert entry.done and entry.status == 200
    rig.server.start()
    with rig.server.client() as client:
        assert bytes(client.get("a").body) == b"x" * 1000


def put_open(rig):
    rig.put()


def put_open_without_client(rig):
    rig.put().reset()
    rig.server.wait_metric("forebay_http_connections", lambda v: v == 0)


def put_open_and_read(rig):
    """Fetches the old version again during the write. One of its fetches is still in flight."""
    rig.put("big", 2 * MIB)
    rig.put("a")
    cached(rig, "a")
    rig.hold("big", "GET", at=3 * MIB)
    half = rig.ask("GET", "/bkt/big")
    assert half.read_head().status == 200 and half._fill()


def delete_open(rig):
    rig.stuck("a", "DELETE", "/bkt/a")


def delete_many_open(rig):
    rig.stuck("", "POST", "/bkt?delete", [], DELETE)


def bucket_open(rig):
    rig.stuck("", "POST", "/bkt?delete&z=1", [], DELETE)
    cached(rig, "a")


@pytest.mark.parametrize("end", ["stop", "kill9"])
@pytest.mark.parametrize(
    "write",
    [
        put_open,
        put_open_without_client,
        put_open_and_read,
        delete_open,
        delete_many_open,
        bucket_open,
    ],
    ids=lambda write: write.__name__,
)
def test_a_write_of_unknown_outcome(start, origin, engine, tmp_path, write, end):
    """The origin applies the write after the process has ended. The next process asks the
    origin."""
    rig = make(start, origin, tmp_path, engine, **{"shutdown.grace": "0s"})
    cached(rig, "a", "big")
    mark = origin.mark()
    with rig.open:
        write(rig)
        if end == "stop":
            drain(rig.server)
            ended(rig.server)
        else:
            rig.server.kill9()
        rig.gate.set()
        origin.clear_faults()
        origin.wait_for(len(origin.requests(since=mark)), since=mark, done=True)
    rig.server.start()
    with rig.server.client() as client:
        for key in ("a", "big"):
            reply = client.get(key)
            with origin.lock:
                have = origin.buckets["bkt"].get(key)
            if have is None:
                assert reply.status == 404, reply
            elif have.body is not None:
                assert bytes(reply.body) == have.body, key
            else:
                judge(reply, origin, key, 0, have.size)


@pytest.mark.both_engines
def test_a_disk_that_stands_still(start, origin, engine, tmp_path):
    """A disk that hangs cannot be cancelled. One more signal still ends the process, and the next
    one finds its cache."""
    if build_kind() == "release":
        not_run("a release has no faults")
    gate = tmp_path / "held"
    rig = make(start, origin, tmp_path, engine)
    rig.server.stop()
    rig.server.env["FOREBAY_DISK_FAULTS"] = f"sync:file={gate}:hold"
    rig.server.start()
    cached(rig, "a")
    rig.server.durable()
    gate.touch()
    with rig.server.client() as client:
        judge(client.get("big"), origin, "big", 0, 8 * MIB)
    drain(rig.server)
    rig.server.wait_stderr('"name":"draining"')
    term(rig.server)
    assert rig.server.process.wait(WAIT_S) == 1
    rig.server._join()
    rig.server.process = None
    gate.unlink()
    rig.server.start()
    mark = origin.mark()
    with rig.server.client() as client:
        judge(client.get("a"), origin, "a", 0, 1000)
    assert not origin.requests(key="a", since=mark)


def test_a_tls_client_that_has_said_nothing(start, origin, certificate):
    """A TLS client that has sent nothing does not delay the end."""
    server = start(
        origin,
        settings={
            "shutdown.grace": LONG,
            "limits.header_timeout": "10m",
            "listen": "127.0.0.1:0,tls:127.0.0.1:0",
            "listen_tls.cert": certificate[0],
            "listen_tls.key": certificate[1],
        },
    )
    with Connection(server.tls_port):
        server.wait_metric("forebay_http_connections", lambda v: v == 1)
        server.stop()

# SPDX-License-Identifier: Apache-2.0
"""S3 reads as clients see them: ranges, conditionals, empty objects, headers and error bodies."""

import email.utils
import random
import threading

import pytest
from client import Client, judge, quote
from forebay import parallel, scaled
from oracle import oracle_judge

WHOLE = (200, None)
RANGES = {  # of an object of 100 bytes: (status, (first, last))
    "bytes=0-0": (206, (0, 0)),
    "bytes=00-01": (206, (0, 1)),
    "bytes=10-19": (206, (10, 19)),
    "bytes=0-99": (206, (0, 99)),
    "bytes=0-": (206, (0, 99)),
    "bytes=0-999999": (206, (0, 99)),
    "bytes=99-": (206, (99, 99)),
    "bytes=99-99": (206, (99, 99)),
    "bytes=-1": (206, (99, 99)),
    "bytes=-100": (206, (0, 99)),
    "bytes=-101": (206, (0, 99)),
    "bytes=50-18446744073709551615": (206, (50, 99)),
    "bytes=50-99999999999999999999999": (206, (50, 99)),
    "bytes=-99999999999999999999999": (206, (0, 99)),
    "bytes=-0": (416, None),
    "bytes=100-": (416, None),
    "bytes=100-110": (416, None),
    "bytes=18446744073709551615-": (416, None),
    "bytes=99999999999999999999999-": (416, None),
    "bytes=10-5": WHOLE,
    "bytes=abc": WHOLE,
    "bytes=,": WHOLE,
    "bytes= -1": WHOLE,
    "bytes=--1": WHOLE,
    "bytes=0--1": WHOLE,
    "bytes=0 -1": WHOLE,
    "bytes=100-x": WHOLE,
    "foo=0-1": WHOLE,
    "bytes=0-0,1-2": WHOLE,
    "bytes=0-0, 5-6": WHOLE,
    "bytes=": WHOLE,
    "bytes": WHOLE,
    "bytes=-": WHOLE,
    "bytes=1-2-3": WHOLE,
    "bytes=0x1-2": WHOLE,
}
EMPTY_RANGES = {
    "bytes=-1": 200,
    "bytes=0-0": 416,
    "bytes=0-": 416,
    "bytes=-0": 416,
    "bytes=00-01": 416,
}
ERROR_HEADERS = ("x-amz-request-id", "date", "server")


def check_range(client, origin, text, want, method):
    status, span = want
    reply = client.get("hundred", method=method, headers=[("Range", text)])
    assert reply.status == status, (method, text, reply)
    if status == 206:
        first, last = span
        assert reply.span == (first, last, 100), (text, reply)
        assert reply.header("content-length") == str(last - first + 1), (text, reply)
        if method == "GET":
            judge(reply, origin, "hundred", first, last - first + 1)
    elif status == 200:
        assert reply.header("content-range") is None, (text, reply)
        assert reply.header("content-length") == "100"
        if method == "GET":
            judge(reply, origin, "hundred", 0, 100)
    else:
        assert reply.header("content-range") == "bytes */100", (text, reply)
        if method == "GET":
            assert reply.code == "InvalidRange", reply
            assert reply.element("ActualObjectSize") == "100"
            assert reply.element("RangeRequested") == text
            assert reply.header("content-type") == "application/xml"


@pytest.mark.tsan
def test_range_table_cold_and_warm(forebay, origin):
    """Every row of the table gets the same answer from the origin and from the cache, for GET and
    HEAD."""
    with forebay.client() as client:
        for method in ("GET", "HEAD"):
            for text, want in RANGES.items():
                origin.put("hundred", 100)  # a new version: not in cache for strict rules
                check_range(client, origin, text, want, method)
        client.get("hundred")
        forebay.settle()
        for method in ("GET", "HEAD"):
            for text, want in RANGES.items():
                check_range(client, origin, text, want, method)


def test_range_table_of_unknown_objects(start, origin):
    """Each row is asked first of an object that Forebay does not know."""
    server = start(origin)
    with server.client() as client:
        for i, (text, (status, span)) in enumerate(RANGES.items()):
            key = f"unknown/{i}"
            origin.put(key, 100)
            reply = client.get(key, headers=[("Range", text)])
            assert reply.status == status, (text, reply)
            if status == 206:
                judge(reply, origin, key, span[0], span[1] - span[0] + 1)
            elif status == 200:
                judge(reply, origin, key, 0, 100)


def test_empty_objects(forebay, origin):
    origin.put("empty", 0)
    with forebay.client() as client:
        for turn in range(2):
            reply = client.get("empty")
            assert (reply.status, reply.header("content-length")) == (200, "0"), reply
            assert reply.etag == origin.version("empty").etag
            assert client.head("empty").header("content-length") == "0"
            for text, status in EMPTY_RANGES.items():
                reply = client.get("empty", headers=[("Range", text)])
                assert reply.status == status, (turn, text, reply)
                if status == 416:
                    assert reply.element("ActualObjectSize") == "0", reply
                    assert reply.header("content-type") == "application/xml"
            reply = client.get("empty", query="partNumber=1")
            assert reply.status in (200, 206) and len(reply.body) == 0, reply
            assert reply.header("content-range") is None


def test_first_range_of_an_unknown_empty_object(start, origin):
    server = start(origin)
    with server.client() as client:
        for i, (text, status) in enumerate(EMPTY_RANGES.items()):
            origin.put(f"empty{i}", 0)
            assert client.get(f"empty{i}", headers=[("Range", text)]).status == status, text
        server.settle()
        mark = origin.mark()  # kept like any other object, though nothing was sent
        for i, (text, status) in enumerate(EMPTY_RANGES.items()):
            assert client.get(f"empty{i}", headers=[("Range", text)]).status == status, text
            assert client.head(f"empty{i}").status == 200
        assert not origin.requests(since=mark), origin.requests(since=mark)


@pytest.mark.parametrize(
    "size",
    [1, 63, 16384, 16385, 65536, 65537, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (5 << 20) + 7],
)
def test_sizes_around_every_boundary(forebay, origin, size):
    origin.put("a", size)
    with forebay.client() as client:
        for turn in range(3):
            judge(client.get("a"), origin, "a", 0, size)
            if turn == 0:
                forebay.settle()
            edges = {
                0,
                1,
                size // 2,
                size - 1,
                min(size - 1, 16384),
                min(size - 1, 65536),
                min(size - 1, 1 << 20),
            }
            for first in edges:
                for last in edges:
                    if first <= last < size:
                        reply = client.get("a", first, last)
                        assert reply.status == 206
                        judge(reply, origin, "a", first, last - first + 1)
    assert origin.sent_twice("a") == 0


@pytest.mark.tsan
def test_random_ranges_by_many_clients(forebay, origin):
    """Cold and warm blocks mixed: each block is fetched from the origin once."""
    size = (12 << 20) + 12345
    origin.put("a", size)
    origin.put("b", size // 3)

    def one(i):
        dice = random.Random(i)
        with forebay.client() as client:
            for _ in range(scaled(400, 20)):
                key, whole = ("a", size) if dice.random() < 0.6 else ("b", size // 3)
                first = dice.randrange(whole)
                last = min(whole - 1, first + int(10 ** dice.uniform(0, 6.3)))
                judge(client.get(key, first, last), origin, key, first, last - first + 1)

    parallel(8, one)
    assert origin.sent_twice("a") == 0 and origin.sent_twice("b") == 0


def test_conditionals(forebay, origin):
    mtime = 1_700_000_000
    origin.put("c", 1000, mtime=mtime)
    etag = origin.version("c").etag
    date = email.utils.formatdate(mtime, usegmt=True)
    before = email.utils.formatdate(mtime - 60, usegmt=True)
    after = email.utils.formatdate(mtime + 60, usegmt=True)
    table = [
        ([("If-Match", etag)], 200),
        ([("If-Match", etag.strip('"'))], 200),
        ([("If-Match", '"' + etag + '"')], 200),
        ([("If-Match", "*")], 200),
        ([("If-Match", f'"x", {etag}')], 200),
        ([("If-Match", '"nothing"')], 412),
        ([("If-None-Match", etag)], 304),
        ([("If-None-Match", etag.strip('"'))], 304),
        ([("If-None-Match", "*")], 304),
        ([("If-None-Match", '"nothing"')], 200),
        ([("If-Modified-Since", date)], 304),
        ([("If-Modified-Since", after)], 304),
        ([("If-Modified-Since", before)], 200),
        ([("If-Unmodified-Since", before)], 412),
        ([("If-Unmodified-Since", date)], 200),
        ([("If-Unmodified-Since", after)], 200),
        ([("If-Match", etag), ("If-Unmodified-Since", before)], 200),
        ([("If-None-Match", etag), ("If-Modified-Since", before)], 304),
        ([("If-None-Match", '"nothing"'), ("If-Modified-Since", after)], 200),
        ([("If-Match", '"nothing"'), ("Range", "bytes=0-9")], 412),
        ([("If-None-Match", etag), ("Range", "bytes=0-9")], 304),
        ([("If-Match", etag), ("Range", "bytes=0-9")], 206),
        ([("If-Match", etag), ("Range", "bytes=5000-")], 416),
        ([("If-Range", etag), ("Range", "bytes=0-9")], 206),
        ([("If-Range", '"nothing"'), ("Range", "bytes=0-9")], 200),
    ]
    with forebay.client() as client:
        for turn in ("cold", "warm", "warm"):
            for method in ("GET", "HEAD"):
                for i, (headers, status) in enumerate(table):
                    key = "c"
                    if turn == "cold":
                        key = f"cold/{method}{i}"
                        origin.put(key, 1000, mtime=mtime, etag=etag)
                    reply = client.get(key, headers=headers, method=method)
                    assert reply.status == status, (turn, method, headers, reply)
                    if status == 304:
                        assert reply.etag == etag and len(reply.body) == 0
                        assert reply.header("content-length") in (None,), reply
                        assert not [n for n, _ in reply.headers if "checksum" in n]
                    if status == 412 and method == "GET":
                        assert reply.code == "PreconditionFailed"
                        assert reply.element("Condition") in ("If-Match", "If-Unmodified-Since")
                    if status in (200, 206) and method == "GET" and turn == "warm":
                        judge(reply, origin, key, 0)
            client.get("c")


def test_a_clients_condition_reaches_a_first_run_alone(start, origin):
    """The If-Match of each part is answered from the cached version. Only a first run carries the
    client's condition, and other fills carry Forebay's own."""
    server = start(origin)
    origin.put("a", 6 << 20)
    etag = origin.version("a").etag
    with server.client() as client:
        for first in range(0, 6 << 20, 1 << 20):
            reply = client.get("a", first, first + (1 << 20) - 1, headers=[("If-Match", etag)])
            judge(reply, origin, "a", first, 1 << 20)
            client.get("a", first, first + 99, headers=[("If-None-Match", '"x"')])
    assert origin.sent_twice("a") == 0
    for entry in origin.requests(key="a", method="GET"):
        assert entry.header("if-none-match") in (None, etag)
        assert entry.header("if-match") in (None, etag)


def test_if_match_mismatch_asks_the_origin_before_412(start, origin):
    """The cache may be older than the client. So Forebay asks the origin before it answers 412."""
    server = start(origin, settings={"cache.ttl": "1h"})
    origin.put("a", 1000)
    with server.client() as client:
        client.get("a")
        server.settle()
        origin.overwrite("a")
        reply = client.get("a", headers=[("If-Match", origin.version("a").etag)])
        assert reply.status == 200, reply
        assert judge(reply, origin, "a", 0, 1000) == 2
        assert client.get("a", headers=[("If-Match", '"nothing"')]).status == 412


def test_part_number(forebay, origin):
    origin.put("single", 1000)
    origin.put("multi", 12 << 20, parts=[5 << 20, 5 << 20, 2 << 20])
    with forebay.client() as client:
        for turn in range(2):
            reply = client.get("single", query="partNumber=1")
            assert reply.status == 206 and reply.span == (0, 999, 1000), reply
            assert reply.header("x-amz-mp-parts-count") is None
            judge(reply, origin, "single", 0, 1000)
            reply = client.get("single", query="partNumber=2")
            assert (reply.status, reply.code) == (416, "InvalidPartNumber"), reply
            reply = client.get("single", 0, 9, query="partNumber=1")
            assert (reply.status, reply.code) == (400, "InvalidRequest"), reply
            for part, (first, length) in enumerate(
                [(0, 5 << 20), (5 << 20, 5 << 20), (10 << 20, 2 << 20)], 1
            ):
                reply = client.get("multi", query=f"partNumber={part}")
                if reply.status == 501:
                    continue
                assert reply.status == 206, reply
                judge(reply, origin, "multi", first, length)
                assert reply.header("x-amz-mp-parts-count") == "3"
            judge(client.get("multi"), origin, "multi", 0, 12 << 20)
            assert client.head("multi").header("content-length") == str(12 << 20)
            assert client.get("single").header("content-length") == "1000"


def test_head_and_get_agree_in_any_order(start, origin):
    server = start(origin)
    extra = {
        "Content-Type": "image/jpeg",
        "x-amz-meta-label": "cat",
        "x-amz-meta-mtime": "17.5",
        "Cache-Control": "max-age=60",
        "Content-Language": "de",
        "Content-Disposition": 'attachment; filename="a.jpg"',
        "x-amz-storage-class": "STANDARD_IA",
        "x-amz-version-id": "null",
        "x-amz-server-side-encryption": "AES256",
        "x-amz-tagging-count": "2",
        "Expires": "Thu, 01 Dec 2033 16:00:00 GMT",
    }
    names = [n.lower() for n in extra] + [
        "etag",
        "last-modified",
        "content-length",
        "accept-ranges",
    ]
    with server.client() as client:
        for i, order in enumerate(("GH", "HG", "RH", "HR", "GR")):
            key = f"o{i}"
            origin.put(key, 5000, headers=extra)
            seen = []
            for what in order + order:
                reply = (
                    client.get(key, method="HEAD")
                    if what == "H"
                    else client.get(key, 0, 99)
                    if what == "R"
                    else client.get(key)
                )
                have = {n: reply.header(n) for n in names}
                if what == "R":
                    have["content-length"] = "5000"
                    assert not [n for n, _ in reply.headers if n.startswith("x-amz-checksum")]
                seen.append(have)
                server.settle()
            for have in seen[1:]:
                assert have == seen[0], (order, have, seen[0])
            for name, value in extra.items():
                assert seen[0][name.lower()] == value, (name, seen[0])


def test_reply_headers_of_hits(forebay, origin):
    """Hits have their own ids and dates, no hop-by-hop header or origin id of the fill, and
    Cache-Status."""
    origin.put(
        "a",
        50000,
        headers={
            "Content-Encoding": "gzip",
            "Connection-Extra": "x",
            "x-amz-id-2": "upstream-id-canary",
        },
    )
    ids = set()
    with forebay.client() as client:
        for turn in range(4):
            reply = client.get("a")
            judge(reply, origin, "a", 0, 50000)
            assert reply.header("content-encoding") == "gzip"
            assert reply.header("accept-ranges") == "bytes"
            assert reply.header("transfer-encoding") is None
            for name in (
                "x-amz-request-id",
                "date",
                "last-modified",
                "content-type",
                "cache-status",
            ):
                assert len(reply.all(name)) == 1, (name, reply)
            assert not reply.header("x-amz-request-id").startswith("origin"), reply
            assert reply.header("x-amz-id-2") != "upstream-id-canary"
            ids.add(reply.header("x-amz-request-id"))
            status = reply.header("cache-status")
            assert status.startswith("forebay; "), status
            if turn:
                assert "hit" in status, status
            forebay.settle()
    assert len(ids) == 4
    for entry in origin.requests(key="a"):
        assert (entry.header("accept-encoding") or "identity") == "identity"


def test_checksum_headers_go_only_where_s3_sends_them(start, origin):
    server = start(origin)
    origin.put(
        "a",
        5000,
        checksums={"x-amz-checksum-crc32": "AAAAAA==", "x-amz-checksum-type": "FULL_OBJECT"},
    )
    mode = [("x-amz-checksum-mode", "ENABLED")]
    with server.client() as client:
        for turn in range(2):
            for headers in ([], mode):
                reply = client.get("a", 0, 99, headers=headers)
                assert not [n for n, _ in reply.headers if n.startswith("x-amz-checksum")], reply
                reply = client.get(
                    "a", headers=headers + [("If-None-Match", origin.version("a").etag)]
                )
                assert reply.status == 304
                assert not [n for n, _ in reply.headers if n.startswith("x-amz-checksum")], reply
                judge(client.get("a", headers=headers), origin, "a", 0, 5000)


def test_error_bodies(start, origin):
    server = start(origin)
    origin.put("a", 10)
    with server.client() as client:
        for method in ("GET", "HEAD"):
            reply = client.get("missing/ke y&<x>", method=method)
            assert reply.status == 404, reply
            assert reply.header("x-amz-request-id") and reply.header("date")
            if method == "GET":
                assert reply.code == "NoSuchKey"
                assert reply.header("content-type") == "application/xml"
                assert reply.element("RequestId") and reply.element("Resource")
                assert b"missing/ke y&amp;&lt;x&gt;" in bytes(reply.body)
        reply = client.get("a", bucket="nosuchbucket")
        assert (reply.status, reply.code) == (404, "NoSuchBucket"), reply
        assert client.get("a").status == 200  # the connection is still usable
        for target, method in (
            ("/bkt/a?acl", "GET"),
            ("/bkt/a?tagging", "GET"),
            ("/bkt?versioning", "GET"),
            ("/bkt?whatever=1", "GET"),
            ("/bkt/a?torrent", "GET"),
        ):
            reply = client.request(method, target)
            assert reply.status in (404, 501, 200), (target, reply)
            if reply.status == 501:
                assert reply.code == "NotImplemented", reply
            assert origin.bytes_of("a") not in bytes(reply.body), "a sub-resource got the object"


def test_every_reply_has_a_reason_phrase(start, origin):
    server = start(origin)
    origin.put("a", 10)
    origin.fault("slow", "status", 503, times=None)
    with server.client() as client:
        assert client.get("slow").reason, "no reason"
        assert client.get("slow").reason == "Slow Down" or client.get("slow").reason
        assert client.get("a").reason == "OK"


ODD_KEYS = [
    "a b",
    "a+b",
    "a%b",
    "a%20b",
    "a%2Fb",
    "a//b",
    "a/./b",
    "a/../b",
    "./a",
    "../a",
    "/a",
    "a/",
    "ä/ö/ü",
    "写真/1.jpg",
    "a?b",
    "a#b",
    "a&b=c",
    "a;b",
    "a:b",
    "a@b",
    "a,b",
    "a'b",
    'a"b',
    "a<b>",
    "a\\b",
    "a|b",
    "a^b",
    "a`b",
    "a{b}",
    "a[b]",
    "a~b",
    "a*b",
    "a!b",
    "(a)",
    "a$b",
    "a=b",
    ".",
    "..",
    "...",
    "%",
    "%25",
    "x" * 1024,
    "d/" * 300 + "f",
    "🙂",
]


def test_odd_keys(forebay, origin):
    """Every key is an object of its own, decoded once and never normalised."""
    for key in ODD_KEYS:
        origin.put(key, 700)
    with forebay.client() as client:
        for turn in range(2):
            for key in ODD_KEYS:
                reply = client.get(key)
                assert reply.status == 200, (key, reply)
                judge(reply, origin, key, 0, 700)
            forebay.settle()
        for key in ODD_KEYS:
            assert len(origin.requests(key=key, method="GET")) == 1, key
        full = "".join(f"%{b:02X}" for b in "a b".encode())
        judge(client.request("GET", f"/bkt/{full}"), origin, "a b", 0, 700)
        judge(client.request("GET", f"/bkt/{full.lower()}"), origin, "a b", 0, 700)
        assert client.get("x" * 1025).status == 400


def test_addressing_styles(start, origin):
    """Path style, the bucket in the host name, dotted buckets, localhost and absolute form all
    work."""
    server = start(origin, settings={"s3.domains": "s3.example.test"})
    origin.put("dir/a", 500)
    origin.put("dir/a", 600, bucket="my.dotted.bkt")
    port = server.port
    for host in (
        f"127.0.0.1:{port}",
        f"localhost:{port}",
        "127.0.0.1",
        "localhost",
        f"LOCALHOST:{port}",
        f"s3.example.test:{port}",
        "s3.example.test.",
        f"s3.example.test.:{port}",
        f"localhost.:{port}",
    ):
        with Client(port, host=host) as client:
            judge(client.get("dir/a"), origin, "dir/a", 0, 500)
    for host in (
        f"bkt.127.0.0.1:{port}",
        f"bkt.localhost:{port}",
        "bkt.localhost",
        f"bkt.s3.example.test:{port}",
        "bkt.s3.example.test.",
        f"bkt.s3.example.test.:{port}",
        f"bkt.localhost.:{port}",
    ):
        with Client(port, host=host) as client:
            judge(client.request("GET", "/dir/a"), origin, "dir/a", 0, 500)
            assert client.request("HEAD", "/").status == 200
    for host in (f"my.dotted.bkt.127.0.0.1:{port}", f"my.dotted.bkt.localhost:{port}"):
        with Client(port, host=host) as client:
            judge(client.request("GET", "/dir/a"), origin, "dir/a", 0, 600, bucket="my.dotted.bkt")
    with Client(port) as client:
        judge(client.request("GET", f"http://127.0.0.1:{port}/bkt/dir/a"), origin, "dir/a", 0, 500)
    assert len(origin.requests(key="dir/a", bucket="bkt", method="GET")) == 1


def test_host_names_that_are_not_ours_are_refused(start, origin):
    """Requests with a foreign host name are refused, so that a browser in the pod cannot read the
    cache through DNS rebinding."""
    server = start(origin)
    origin.put("a", 10)
    for host in (
        "evil.example",
        "evil.example:9000",
        "localhost.evil.example",
        "127.0.0.1.evil",
        "bkt.evil.example",
        "metadata.google.internal",
        "localhostx",
        "xlocalhost",
        "evil.example.",
        "localhost..",
        "127.0.0.1.evil.",
    ):
        with Client(server.port, host=host) as client:
            reply = client.get("a")
            assert reply.status in (400, 403), (host, reply)
    assert not origin.log


def test_waiting_readers_get_bytes_as_they_arrive(start, origin):
    """A waiting reader does not wait for a whole block. It gets the first bytes while the origin is
    still sending."""
    server = start(origin)
    origin.put("a", 1 << 20)
    gate = threading.Event()
    origin.fault("a", "hold_at", (100_000, gate))
    with server.connection() as connection:
        connection.send(f"GET /bkt/{quote('a')} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        reply = connection.read_head()
        assert reply.status == 200
        while len(connection.buf) < 100_000:  # arrives although the block is not complete
            assert connection._fill()
        oracle_judge("bkt/a", bytes(connection.buf[:100_000]), 0)
        gate.set()
        while len(connection.buf) < 1 << 20:
            assert connection._fill()
        oracle_judge("bkt/a", bytes(connection.buf), 0, 1)


@pytest.mark.parametrize("source", ["s3", "dir"])
def test_an_empty_object_asked_for_by_many_at_once(start, origin, engine, tmp_path, source):
    """Many clients ask for an empty object at once, such as a marker that all workers of a job wait
    for. Each gets the right answer to its own request."""
    keys = [f"job{i}/_SUCCESS" for i in range(scaled(40, least=15))]
    for key in keys:
        origin.put(key, 0)
        (tmp_path / "data" / "bkt" / key).parent.mkdir(parents=True)
        (tmp_path / "data" / "bkt" / key).touch()
    server = start(origin if source == "s3" else f"dir:{tmp_path}/data", engine=engine)
    asked = [
        (("GET", None), 200),
        (("HEAD", None), 200),
        (("GET", "bytes=0-9"), 416),
        (("GET", None), 200),
        (("GET", "bytes=-5"), 200),
        (("GET", "bytes=9999999-"), 416),
        (("GET", None), 200),
        (("GET", None), 200),
    ]

    def one(index):
        (method, text), status = asked[index]
        with server.client() as client:
            reply = client.get(key, method=method, headers=[("Range", text)] if text else [])
            assert reply.status == status and (status == 416 or len(reply.body) == 0), (
                key,
                asked[index],
                reply,
            )

    for key in keys:
        parallel(len(asked), one)
    server.settle()
    mark = origin.mark()
    with server.client() as client:
        for key in keys:
            assert client.get(key).status == client.head(key).status == 200
    assert not origin.requests(since=mark), "kept like any other object"

# SPDX-License-Identifier: Apache-2.0
"""Origins that answer in unusual but legal ways. Clients get at least what they would get without
the cache."""

import gzip
import threading

import pytest

from client import judge
from conftest import strict
from forebay import KEYS
from origin import Origin
from test_control import ask

SIZE = 3000
HEADERS_MAX = 1024  # RESPONSE_HEADERS_MAX of src/net/net.h
HEAD_MAX = 256 << 10  # RESPONSE_HEAD_MAX


def metadata(count, value="v"):
    return {f"x-amz-meta-{i:04}": value for i in range(count)}


def names_of(reply):
    return {name.lower() for name, _ in reply.headers if name.lower().startswith("x-amz-meta-")}


# --- many headers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count, value", [(119, "v"), (300, "v")])
def test_several_hundred_small_headers_are_stored(start, origin, engine, count, value):
    server = start(origin, engine=engine, settings={"cache.ttl": "1h"})
    origin.put("a", SIZE, headers=metadata(count, value))
    with server.client() as client:

        def read():
            reply = client.get("a")
            judge(reply, origin, "a", 0, SIZE)
            assert names_of(reply) == set(metadata(count))

        read()
        server.settle()
        mark = origin.mark()
        for method, status in (("HEAD", 200), ("GET", 200)):
            reply = client.get("a", method=method)
            assert reply.status == status and names_of(reply) == set(metadata(count))
        assert "hit" in reply.header("cache-status")
    assert not origin.requests(since=mark)


@pytest.mark.parametrize("count, value", [(119, "v" * 100), (900, "v"), (60, "v" * 4000)])
def test_more_headers_than_a_run_stores_pass_through(start, origin, count, value):
    """An object with more than 8 KiB of headers is not cached. The client gets all of them, and
    each request costs one at the origin."""
    server = start(origin, settings={"cache.ttl": "1h"})
    origin.put("a", SIZE, headers=metadata(count, value))
    asked = [
        ("GET", []),
        ("HEAD", []),
        ("GET", [("Range", "bytes=100-199")]),
        ("GET", [("Range", "bytes=-50")]),
        ("GET", [("If-None-Match", '"other"')]),
    ]
    with server.client() as client:
        for turn in range(2):
            mark = origin.mark()
            for method, headers in asked:
                reply = client.get("a", headers=headers, method=method)
                assert reply.status in (200, 206), reply
                assert names_of(reply) == set(metadata(count)), (method, headers)
                if method == "GET":
                    judge(
                        reply,
                        origin,
                        "a",
                        reply.span[0] if reply.status == 206 else 0,
                        reply.length,
                    )
            assert len(origin.requests(since=mark)) == len(asked) + (1 if turn == 0 else 0)
        server.wait_metric(
            "forebay_cache_bypass_total", lambda v: v == 2 * len(asked), reason="answer"
        )
        assert server.metric("forebay_fills_uncacheable_total", why="answer") == 1
        # A write resets what is known of the key, so that its next version can be stored.
        assert client.request("PUT", "/bkt/a", body=b"x" * 100).status == 200

        def read():
            assert bytes(client.get("a").body) == b"x" * 100

        read()
        server.settle()
        mark = origin.mark()
        read()
    assert not origin.requests(since=mark)


def test_a_cached_object_that_is_overwritten_with_many_headers(start, origin):
    """A cached object is overwritten with too many headers. The new version is relayed, and no
    client gets the old one."""
    server = start(origin, settings={"cache.ttl": "0s"})
    origin.put("a", SIZE)
    with server.client() as client:
        judge(client.get("a"), origin, "a", 0, SIZE)
        server.settle()
        origin.put("a", SIZE, headers=metadata(200, "v" * 100))
        for _ in range(3):
            reply = client.get("a")
            judge(reply, origin, "a", 0, SIZE)
            assert reply.etag == origin.version("a").etag and len(names_of(reply)) == 200


@pytest.mark.parametrize(
    "headers", [metadata(HEADERS_MAX), metadata(70, "v" * 4000), {"x-amz-meta-a": "v" * HEAD_MAX}]
)
def test_headers_above_the_hard_limits_are_an_error_that_says_so(start, origin, headers):
    server = start(origin)
    origin.put("a", SIZE, headers=headers)
    with server.client() as client:
        reply = client.get("a")
        assert reply.status == 501 and reply.code == "NotImplemented", reply
        assert b"1,024 headers" in bytes(reply.body)
        assert client.head("a").status == 501
        assert client.get("a", headers=[("Range", "bytes=0-9")]).status == 501
    assert server.metric("forebay_limit_reached_total", limit="origin-head") >= 3
    assert len(origin.requests()) == 3


# --- headers that forbid storing ------------------------------------------------------------------


def test_a_cookie_of_a_balancer_is_dropped_and_the_object_stored(start, origin, engine):
    origin.put("a", SIZE)
    origin.fault("a", "header", ("Set-Cookie", "AWSALB=secret; Path=/"), times=None)
    server = start(origin, engine=engine, settings={"cache.ttl": "1h"})
    with server.client() as client:

        def read():
            reply = client.get("a")
            judge(reply, origin, "a", 0, SIZE)
            assert reply.header("set-cookie") is None

        read()
        server.settle()
        mark = origin.mark()
        read()
        assert client.get("a", query="versionId=1").header("set-cookie") is None
    assert len(origin.requests(since=mark)) == 1
    assert not [path for path in server.segment_files() if b"AWSALB" in path.read_bytes()]


@pytest.mark.parametrize(
    "header, word",
    [
        (("Vary", "Cookie"), "vary"),
        (("Vary", "*"), "vary"),
        (("x-amz-server-side-encryption-customer-algorithm", "AES256"), "customer-key"),
    ],
)
def test_a_header_that_forbids_storing_is_named(start, origin, header, word):
    """If a header forbids storing, Cache-Status, `explain` and a counter name it, until it
    disappears."""
    origin.put("a", SIZE)
    origin.fault("a", "header", header, times=None)
    server = start(origin, settings={"cache.ttl": "1h"})
    with server.client() as client:
        for _ in range(2):
            reply = client.get("a")
            judge(reply, origin, "a", 0, SIZE)
            assert f"stored=?0; detail={word}" in reply.header("cache-status"), reply.header(
                "cache-status"
            )
        server.wait_metric("forebay_fills_uncacheable_total", lambda v: v == 2, why=word)
        assert ask(server, "explain", "s3://bkt/a")[-1]["verdict"]["reason"] == word
        origin.clear_faults()
        judge(client.get("a"), origin, "a", 0, SIZE)
        server.settle()
        assert ask(server, "explain", "s3://bkt/a")[-1]["verdict"]["reason"] == "hit"


# --- redirects to another host --------------------------------------------------------------------


@pytest.fixture
def node():
    """A second origin, to which the first one redirects."""
    with strict(Origin(credentials=KEYS)) as made:
        yield made


def both(origin, node, key, size=SIZE):
    origin.put(key, size)
    node.put(key, size)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirected_reads_are_followed_and_stored(start, origin, node, engine, status):
    """For a redirected read Forebay signs the request again for the other host, which verifies it.
    The client sees neither host."""
    both(origin, node, "a", 5 << 20)
    origin.fault("a", "moved", (status, f"{node.endpoint}/bkt/a?pid=t%5B1&x"), times=None)
    server = start(origin, engine=engine, settings={"cache.ttl": "1h"})
    with server.client() as client:
        assert client.head("a").status == 200
        judge(client.get("a", 100, 199), node, "a", 100, 100)
        judge(client.get("a"), node, "a", 0, 5 << 20)
        server.settle()
        assert node.requests(key="a")[-1].query == {"pid": "t[1", "x": ""}
        assert len(origin.requests(key="a")) == len(node.requests(key="a"))
        mark = origin.mark()
        judge(client.get("a"), node, "a", 0, 5 << 20)
        assert client.get("a?acl".split("?")[0], query="versionId=x").status == 200  # relayed
    assert len(origin.requests(since=mark)) == 1
    assert server.metric("forebay_origin_redirects_total", outcome="followed") == len(node.log)
    assert server.metric("forebay_origin_redirects_total", outcome="passed-on") == 0


def test_redirected_listings_and_deletes_are_followed(start, origin, node):
    both(origin, node, "a")
    origin.fault("", "moved", (307, f"{node.endpoint}/bkt?list-type=2"), times=None)
    origin.fault("a", "moved", (307, f"{node.endpoint}/bkt/a"), times=None)
    server = start(origin)
    with server.client() as client:
        assert b"<Key>a</Key>" in bytes(client.list().body)
        assert client.request("DELETE", "/bkt/a").status == 204
        assert client.request("PUT", "/bkt/a", [("Content-Length", "0")]).status == 200
    assert [e.method for e in node.requests(key="a")] == ["DELETE", "PUT"]


@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest",
        "https://127.0.0.1:1/bkt/a",
        "ftp://127.0.0.1/a",
        "http://user@127.0.0.1:1/bkt/a",
        "http://[::ffff:169.254.169.254]/x",
        "",
    ],
)
def test_a_redirect_that_may_not_be_followed_is_passed_on(start, origin, location):
    """If Forebay may not follow a redirect, the client gets the origin's answer. It is not
    retried."""
    origin.put("a", SIZE)
    origin.fault("a", "moved", (307, location), times=None)
    server = start(origin)
    with server.client() as client:
        for method, headers in (("GET", []), ("HEAD", []), ("GET", [("Range", "bytes=0-9")])):
            reply = client.get("a", method=method, headers=headers)
            assert reply.status == 307 and reply.header("location") == location, reply
            assert reply.code == "TemporaryRedirect" or method == "HEAD"
    assert server.metric("forebay_origin_redirects_total", outcome="passed-on") >= 3
    assert server.metric("forebay_origin_errors_total", reason="slowdown") == 0


@pytest.mark.parametrize(
    "path", ["/", "/bkt", "/other/a", "/bkt/b", "/bkt/x/a", "/bkt/a/", "/bkt/a%2Fb"]
)
def test_a_redirect_to_something_else_is_not_signed(start, origin, node, path):
    """Forebay does not sign a redirect to another object, bucket or listing. Otherwise a user who
    may set one object's redirect could read others with its keys."""
    for key in ("a", "b", "x/a"):
        both(origin, node, key)
    node.put("a", SIZE, bucket="other")
    origin.fault("a", "moved", (307, node.endpoint + path), times=None)
    server = start(origin)
    with server.client() as client:
        for method in ("GET", "HEAD", "DELETE"):
            assert client.request(method, "/bkt/a").status == 307
    assert not node.requests()


def test_a_circle_of_redirects_ends(start, origin):
    origin.put("a", SIZE)
    origin.fault("a", "moved", (302, f"{origin.endpoint}/bkt/a"), times=None)
    server = start(origin)
    with server.client() as client:
        assert client.get("a").status == 302
        mark = origin.mark()
        assert client.get("a").status == 302
    assert len(origin.requests(since=mark)) == 5  # ORIGIN_S3_REDIRECTS_MAX, and the first


def test_a_redirected_upload_is_passed_on(start, origin, node):
    """A redirect of an upload is passed on to the client, because the body has been sent and cannot
    be sent twice."""
    both(origin, node, "a")
    origin.fault("a", "moved", (307, f"{node.endpoint}/bkt/a"), times=None)
    server = start(origin)
    with server.client() as client:
        reply = client.request("PUT", "/bkt/a", body=b"x" * 100)
        assert reply.status == 307 and reply.header("location") == f"{node.endpoint}/bkt/a", reply
    assert not node.requests()


def test_keys_of_customers_follow_no_redirect(start, origin, node):
    both(origin, node, "a")
    origin.fault("a", "moved", (307, f"{node.endpoint}/bkt/a"), times=None)
    server = start(origin)
    with server.client() as client:
        reply = client.get(
            "a",
            headers=[
                ("x-amz-server-side-encryption-customer-algorithm", "AES256"),
                ("x-amz-server-side-encryption-customer-key", "a" * 44),
            ],
        )
        assert reply.status == 307, reply
    assert not node.requests()


def test_a_url_with_a_signature_of_its_own_goes_out_without_ours(start, origin, node):
    node.credentials = None
    both(origin, node, "a")
    origin.fault(
        "a", "moved", (307, f"{node.endpoint}/bkt/a?X-Amz-Signature=0&X-Amz-Expires=9"), times=None
    )
    server = start(origin)
    with server.client() as client:
        judge(client.get("a"), node, "a", 0, SIZE)
    [entry] = node.requests(method="GET")
    assert entry.header("authorization") is None and entry.header("x-amz-content-sha256") is None
    assert entry.target == "/bkt/a?X-Amz-Signature=0&X-Amz-Expires=9"


def test_a_node_that_is_down_is_asked_for_at_the_endpoint_again(start, origin, node):
    """If the node named by a redirect is down, Forebay asks the endpoint again, which may now name
    another node."""
    both(origin, node, "a")
    origin.fault("a", "moved", (307, "http://127.0.0.1:1/bkt/a"), times=1)
    origin.fault("a", "moved", (307, f"{node.endpoint}/bkt/a"), at=2, times=None)
    server = start(origin)
    with server.client() as client:
        judge(client.get("a"), node, "a", 0, SIZE)
    assert len(origin.requests(key="a")) == 2


# --- a clock that is wrong ------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize("hours", [-5, 7])
def test_many_requests_at_once_to_an_origin_whose_clock_is_hours_away(start, origin, method, hours):
    """Many requests at once go to an origin whose clock differs by hours. All are signed before the
    first refusal shows the difference. Each is signed again once, with the corrected time."""
    count = 40
    server = start(origin, settings={"workers": 1})
    for i in range(count):
        origin.put(f"k{i}", SIZE)
    origin.clock_s = hours * 3600
    replies = {}

    def ask_one(i):
        with server.client() as client:
            replies[i] = client.get(f"k{i}", method=method)

    threads = [threading.Thread(target=ask_one, args=(i,)) for i in range(count)]
    mark = origin.mark()
    with origin.hold(None):
        for thread in threads:
            thread.start()
        origin.wait_for(count, since=mark)
    for thread in threads:
        thread.join()
    assert [replies[i].status for i in range(count)] == [200] * count
    if method == "GET":
        for i in range(count):
            judge(replies[i], origin, f"k{i}", 0, SIZE)
    assert max(len(origin.requests(key=f"k{i}", since=mark)) for i in range(count)) <= 2
    with server.client() as client:  # known from now on
        origin.put("later", SIZE)
        assert client.head("later").status == 200
    assert len(origin.requests(key="later")) == 1


# --- ranges and lengths ---------------------------------------------------------------------------


def read_in_parts(client, origin, key, size):
    """Reads the whole object, by HEAD and in ranges of each kind. Judges every byte."""
    whole = client.get(key)
    assert whole.status == 200, whole
    judge(whole, origin, key, 0, size)
    assert client.head(key).status == 200
    for headers, first, length in (
        ([("Range", "bytes=0-9")], 0, 10),
        ([("Range", "bytes=100-199")], 100, 100),
        ([("Range", "bytes=-50")], size - 50, 50),
    ):
        reply = client.get(key, headers=headers)
        assert reply.status == 206, (headers, reply)
        assert bytes(reply.body) == origin.bytes_of(key, first, length), headers


@pytest.mark.parametrize("text", ["bytes {0}-{1}/*", "bytes {0}-{1}/* ", "Bytes {0}-{1}/*"])
def test_a_range_of_unknown_total_passes_through(start, origin, text):
    origin.put("a", SIZE)
    origin.fault("a", "content_range", text, times=None)
    server = start(origin, settings={"cache.ttl": "1h"})
    with server.client() as client:
        for turn in range(2):
            mark = origin.mark()
            read_in_parts(client, origin, "a", SIZE)
            assert len(origin.requests(since=mark)) == (6 if turn == 0 else 5)
        assert client.get("a", 0, 9).header("content-range").lower() == "bytes 0-9/*"


def test_a_range_that_is_shorter_than_asked_passes_through(start, origin):
    """An origin may send a shorter range than asked for, as Content-Range says (RFC 9110, 15.3.7).
    The client gets it as it is."""
    origin.put("a", SIZE)
    origin.fault(
        "a",
        "raw",
        f"HTTP/1.1 206 Partial Content\r\nETag: {origin.version('a').etag}\r\n"
        f"Content-Range: bytes 0-99/{SIZE}\r\nContent-Length: 100\r\n\r\n".encode()
        + origin.bytes_of("a", 0, 100),
        times=None,
    )
    server = start(origin)
    with server.client() as client:
        for _ in range(2):
            reply = client.get("a", 0, 999)
            assert reply.status == 206 and reply.header("content-range") == f"bytes 0-99/{SIZE}", (
                reply
            )
            judge(reply, origin, "a", 0, 100)


@pytest.mark.parametrize(
    "text",
    ["BYTES {0}-{1}/{2}", "bytes  {0}-{1}/{2}", "bytes\t{0}-{1}/{2}", "bytes 00{0}-00{1}/00{2}"],
)
def test_other_spellings_of_a_range_are_stored(start, origin, engine, text):
    origin.put("a", SIZE)
    origin.fault("a", "content_range", text, times=None)
    server = start(origin, engine=engine, settings={"cache.ttl": "1h"})
    with server.client() as client:
        judge(client.get("a"), origin, "a", 0, SIZE)
        server.settle()
        mark = origin.mark()
        read_in_parts(client, origin, "a", SIZE)
    assert not origin.requests(since=mark)


@pytest.mark.parametrize("size", [SIZE, 20 << 20])
@pytest.mark.parametrize("word", ["no_length", "chunked", "no_etag", "weak_etag"])
def test_odd_but_complete_answers_are_readable(start, origin, word, size):
    """Answers without a length as in HTTP/1.0, in chunks, or without a strong ETag can be read."""
    origin.put("a", size)
    origin.fault("a", word, times=None)
    server = start(origin)
    with server.client() as client:
        for _ in range(2):
            read_in_parts(client, origin, "a", size)


def test_an_origin_that_speaks_http_1_0(start, origin):
    origin.put("a", SIZE)
    body = origin.bytes_of("a")
    etag = origin.version("a").etag
    origin.fault(
        "a",
        "raw",
        f"HTTP/1.0 206 OK\r\nETag: {etag}\r\nContent-Length: {SIZE}\r\n"
        f"Content-Range: bytes 0-{SIZE - 1}/{SIZE}\r\n\r\n".encode()
        + body,
        times=1,
    )
    server = start(origin, settings={"cache.ttl": "1h"})
    with server.client() as client:
        judge(client.get("a"), origin, "a", 0, SIZE)
        server.settle()
        judge(client.get("a"), origin, "a", 0, SIZE)


# --- errors ---------------------------------------------------------------------------------------

HTML = b"<html><body><h1>Not Found</h1></body></html>"


@pytest.mark.parametrize(
    "status, reason, body, code",
    [
        (404, "Not Found", HTML, "NoSuchKey"),
        (404, "Not Found", b"", "NoSuchKey"),
        (404, "Not Found", b"<Error><Code>nosuchkey</Code></Error>", "nosuchkey"),
        (403, "Forbidden", HTML, "AccessDenied"),
        (203, "Non-Authoritative", b"x" * 10, None),
    ],
)
def test_answers_that_are_no_documents_of_s3(start, origin, status, reason, body, code):
    """An error that is not an S3 document keeps its status. If it has no S3 code, the reply
    contains the origin's own text."""
    origin.fault(
        "a",
        "raw",
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: text/html\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body,
        times=None,
    )
    server = start(origin)
    with server.client() as client:
        reply = client.get("a")
        assert reply.status == status, reply
        if code is not None:
            assert reply.code == code, bytes(reply.body)


@pytest.mark.parametrize(
    "status, code, expected",
    [
        (503, "SlowDown", "SlowDown"),
        (503, "ServiceUnavailable", "ServiceUnavailable"),
        (503, "SlowDownRead", "SlowDownRead"),
        (429, "TooManyRequests", "SlowDown"),
        (429, "", "SlowDown"),
        (502, "", "ServiceUnavailable"),
        (504, "SlowDown", "ServiceUnavailable"),
    ],
)
def test_retry_after_reaches_the_client(start, origin, status, code, expected):
    """A read, a listing and an upload get the origin's Retry-After with the 503 that replaces the
    origin's status."""
    argument = (status, code, "Later", "", (("Retry-After", "7"),))
    origin.fault(None, "error", argument, times=None)
    server = start(origin, settings={"origin.retries": 0})
    with server.client() as client:
        for method, target in (("GET", "/bkt/a"), ("GET", "/bkt?list-type=2"), ("PUT", "/bkt/a")):
            reply = client.request(method, target, body=b"x" if method == "PUT" else b"")
            assert (reply.status, reply.code) == (503, expected), (method, reply)
            assert reply.all("retry-after") == ["7"], (method, reply)
            phrase = "Slow Down" if expected == "SlowDown" else "Service Unavailable"
            assert reply.reason == phrase, (method, reply)
    assert (server.metric("forebay_origin_errors_total", reason="slowdown") > 0) == (
        status == 429 or (status == 503 and code.startswith("SlowDown"))
    )


def test_a_gateway_without_a_server_is_unavailable(start, origin):
    """A load balancer answers 503 without an S3 document. That is no throttling."""
    page = b"<html><body>503 Service Unavailable: no server is available</body></html>"
    head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Length: {len(page)}\r\n\r\n"
    origin.fault("a", "raw", head.encode() + page, times=None)
    server = start(origin, settings={"origin.retries": 0})
    with server.client() as client:
        reply = client.get("a")
        assert (reply.status, reply.code) == (503, "ServiceUnavailable"), reply
        assert reply.element("Message") == "the origin says that it is unavailable", reply


# --- packed objects -------------------------------------------------------------------------------


def put_packed(origin, key):
    body = gzip.compress(origin.version("plain").body, mtime=0)
    origin.put(key, 0, body=body, headers={"Content-Encoding": "gzip"})
    return body


def test_a_store_that_unpacks_is_asked_for_what_it_stores(start, origin, engine):
    """ETag and size name the packed bytes. After an answer has shown that the store unpacks,
    Forebay asks for the packed bytes and stores those."""
    origin.put("plain", 0, body=b"some text, " * 1000)
    packed = put_packed(origin, "a")
    origin.fault("a", "unpacks", times=None)
    server = start(origin, engine=engine, settings={"cache.ttl": "1h"})
    with server.client() as client:
        first = client.get("a", headers=[("Accept-Encoding", "gzip")])
        assert first.header("content-encoding") == "gzip" and bytes(first.body) == packed
        put_packed(origin, "b")
        origin.fault("b", "unpacks", times=None)

        def read():
            for headers in ([], [("Accept-Encoding", "gzip")], [("Accept-Encoding", "identity")]):
                reply = client.get("b", headers=headers)
                assert reply.status == 200 and bytes(reply.body) == packed
                assert (
                    reply.header("content-encoding") == "gzip"
                    and reply.etag == origin.version("b").etag
                )

        read()
        server.settle()
        mark = origin.mark()
        read()
        assert client.head("b").header("content-length") == str(len(packed))
        reply = client.get("b", 5, 9)
        assert (
            bytes(reply.body) == packed[5:10]
            and reply.header("content-range") == f"bytes 5-9/{len(packed)}"
        )
    assert not origin.requests(since=mark)
    assert {e.header("accept-encoding") for e in origin.requests(key="b")} == {"gzip"}


@pytest.mark.parametrize(
    "accepted", [[], ["gzip"], ["br, gzip;q=0.5"], ["identity"], ["gzip", "br"]]
)
def test_reads_that_pass_through_go_with_their_own_accept_encoding(start, origin, accepted):
    """A relayed read keeps the client's Accept-Encoding. Other relayed requests do not, because
    Forebay reads their answers. Fetches ask for an object as it is stored."""
    origin.put("a", SIZE)
    server = start(origin)
    headers = [("Accept-Encoding", value) for value in accepted]
    with server.client() as client:
        for method in ("GET", "HEAD"):
            assert (
                client.get("a", query="versionId=1", method=method, headers=headers).status == 200
            )
            entry = origin.requests()[-1]
            sent = [value for name, value in entry.headers if name == "accept-encoding"]
            assert sent == (accepted or ["identity"])
            assert "accept-encoding" not in entry.header("authorization")
        client.request("GET", "/bkt?list-type=2", headers)
        assert origin.requests()[-1].header("accept-encoding") == "identity"
        judge(client.get("a", headers=headers), origin, "a", 0, SIZE)
        assert origin.requests(key="a")[-1].header("accept-encoding") == "identity"

# SPDX-License-Identifier: Apache-2.0
"""Which of a client's headers reach the origin: those that S3 defines, whatever Connection says; and
none of them where the answer is shared."""
import pytest

from client import Client, Connection, request_bytes
from signer import Signer
from test_auth import SECRETS, keys_file, verify

# Meant for the origin, on a request that is passed on.
KEPT = [("Cache-Control", "max-age=1"), ("Content-Disposition", "inline"),
        ("Content-Encoding", "gzip"), ("Content-Language", "en"), ("Content-Type", "text/x"),
        ("Expires", "Wed, 21 Oct 2099 07:28:00 GMT"), ("If-None-Match", "*"),
        ("User-Agent", "agent/1"), ("x-amz-acl", "private"), ("x-amz-meta-A", "b"),
        ("x-amz-storage-class", "STANDARD"), ("x-amz-tagging", "a=b"),
        ("x-amz-server-side-encryption", "AES256"), ("x-amz-something-new", "1")]
# Everybody else's.
GONE = [("Accept", "application/json"), ("Accept-Language", "de"), ("Accept-Charset", "x"),
        ("Cookie", "a=b"), ("Referer", "http://a/"), ("Forwarded", "for=1"), ("Via", "1.1 x"),
        ("X-Forwarded-For", "1.2.3.4"), ("X-Forwarded-Host", "evil"), ("X-Real-IP", "1.2.3.4"),
        ("X-HTTP-Method-Override", "DELETE"), ("X-Original-URL", "/other/k"), ("Prefer", "x"),
        ("X-Rewrite-URL", "/other/k"), ("amz-sdk-request", "attempt=1"), ("traceparent", "00-1"),
        ("x-goog-acl", "public-read"), ("x-ms-blob-type", "x"), ("x-own", "1"), ("Pragma", "x"),
        ("Proxy-Authorization", "x"), ("Destination", "/other/k"), ("Max-Forwards", "1"),
        ("Sec-Fetch-Site", "none"), ("Trailer", "x"), ("Content-Location", "/other"),
        ("Priority", "u=1")]


def test_what_goes_on(start, origin):
    server = start(origin)
    with Client(server.port) as client:
        for method, body in (("PUT", b"bytes"), ("GET", b"")):
            target = "/bkt/k" if method == "PUT" else "/bkt/k?acl"
            mark = origin.mark()
            client.request(method, target, KEPT + GONE, body)
            [entry] = origin.requests(since=mark)
            for name, value in KEPT:
                assert entry.header(name) == value, name
            for name, _ in GONE:
                assert entry.header(name) is None, name
    allowed = {name.lower() for name, _ in KEPT} | {
        "host", "authorization", "x-amz-date", "x-amz-content-sha256", "accept-encoding",
        "content-length"}
    assert {name for name, _ in entry.headers} <= allowed, entry.headers


@pytest.mark.parametrize("named", ["x-amz-acl", "if-none-match", "X-AMZ-ACL, If-None-Match",
                                   "close, x-amz-acl", "x-amz-meta-a", "host", "authorization",
                                   "content-type", "x-amz-date", "x-amz-content-sha256"])
def test_connection_takes_nothing_off(start, origin, tmp_path, named):
    """It is not signed itself: whoever stands between could take off what is."""
    server = start(origin, settings=verify(keys_file(tmp_path)))
    signer = Signer("ROOT", SECRETS["ROOT"])
    host = f"127.0.0.1:{server.port}"
    signed = signer.headers("PUT", "/bkt/k", host, [
        ("x-amz-acl", "private"), ("x-amz-meta-a", "b"), ("Content-Type", "a/b"),
        ("If-None-Match", "*")], b"bytes")
    with Connection(server.port) as connection:
        connection.send(request_bytes("PUT", "/bkt/k", host, signed + [("Connection", named)],
                                      b"bytes"))
        reply = connection.read_reply("PUT")
        assert reply.status == 400, reply
    assert not origin.requests()
    with Connection(server.port) as connection:
        connection.send(request_bytes("PUT", "/bkt/k", host, signed + [
            ("Connection", "keep-alive, te, not-there")], b"bytes"))
        assert connection.read_reply("PUT").status == 200
    [entry] = origin.requests(method="PUT")
    assert entry.header("x-amz-acl") == "private" and entry.header("if-none-match") == "*"


def test_fills_and_heads_carry_no_headers_of_clients(start, origin):
    """What every later reader is answered with was asked for nobody in particular."""
    origin.put("a", 5 << 20)
    server = start(origin, settings={"cache.ttl": "0s"})
    extra = GONE + [("User-Agent", "agent/1"), ("If-Modified-Since", "Thu, 01 Jan 2015 00:00:00 GMT"),
                    ("Content-Type", "a/b"), ("Content-Language", "de"), ("Expires", "x"),
                    ("x-amz-checksum-crc32", "AAAAAA=="), ("x-amz-user-agent", "agent/2")]
    with Client(server.port) as client:
        for method in ("GET", "HEAD", "GET", "HEAD"):
            assert client.get("a", headers=extra, method=method).status == 200
            server.settle()
    allowed = {"host", "authorization", "x-amz-date", "x-amz-content-sha256", "accept-encoding",
               "user-agent", "range", "if-match", "if-none-match", "x-amz-checksum-mode"}
    for entry in origin.requests():
        assert {name for name, _ in entry.headers} <= allowed, entry.headers
        assert entry.header("user-agent").startswith("forebay/"), entry.headers

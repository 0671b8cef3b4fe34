# SPDX-License-Identifier: Apache-2.0
"""Only headers that S3 defines reach the origin, whatever Connection says. None of them do where
the answer is shared."""

import pytest

from client import Client, Connection, request_bytes
from signer import Signer
from test_auth import SECRETS, keys_file, verify

# Meant for the origin, on a relayed request.
KEPT = [
    ("Cache-Control", "max-age=1"),
    ("Content-Disposition", "inline"),
    ("Content-Encoding", "gzip"),
    ("Content-Language", "en"),
    ("Content-Type", "text/x"),
    ("Expires", "Wed, 21 Oct 2099 07:28:00 GMT"),
    ("If-None-Match", "*"),
    ("User-Agent", "agent/1"),
    ("x-amz-acl", "private"),
    ("x-amz-meta-A", "b"),
    ("x-amz-storage-class", "STANDARD"),
    ("x-amz-tagging", "a=b"),
    ("x-amz-server-side-encryption", "AES256"),
    ("x-amz-something-new", "1"),
    ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ("tracestate", "a=b"),
    ("x-request-id", "r-1"),
]
# All other headers.
GONE = [
    ("Accept", "application/json"),
    ("Accept-Language", "de"),
    ("Accept-Charset", "x"),
    ("Cookie", "a=b"),
    ("Referer", "http://a/"),
    ("Forwarded", "for=1"),
    ("X-Forwarded-For", "1.2.3.4"),
    ("X-Forwarded-Host", "evil"),
    ("X-Real-IP", "1.2.3.4"),
    ("X-HTTP-Method-Override", "DELETE"),
    ("X-Original-URL", "/other/k"),
    ("Prefer", "x"),
    ("X-Rewrite-URL", "/other/k"),
    ("amz-sdk-request", "attempt=1"),
    ("x-goog-acl", "public-read"),
    ("x-ms-blob-type", "x"),
    ("x-own", "1"),
    ("Pragma", "x"),
    ("Proxy-Authorization", "x"),
    ("Destination", "/other/k"),
    ("Max-Forwards", "1"),
    ("Sec-Fetch-Site", "none"),
    ("Trailer", "x"),
    ("Content-Location", "/other"),
    ("Priority", "u=1"),
]


def test_headers_that_are_relayed(start, origin):
    """A relayed request keeps the headers that S3 defines, and no others."""
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
        "host",
        "authorization",
        "x-amz-date",
        "x-amz-content-sha256",
        "accept-encoding",
        "content-length",
        "via",
    }
    assert {name for name, _ in entry.headers} <= allowed, entry.headers


@pytest.mark.parametrize(
    "named",
    [
        "x-amz-acl",
        "if-none-match",
        "X-AMZ-ACL, If-None-Match",
        "close, x-amz-acl",
        "x-amz-meta-a",
        "host",
        "authorization",
        "content-type",
        "x-amz-date",
        "x-amz-content-sha256",
    ],
)
def test_connection_removes_no_header(start, origin, tmp_path, named):
    """Connection removes no header from a relayed request, because it is not signed. Otherwise
    anybody on the way could remove one."""
    server = start(origin, settings=verify(keys_file(tmp_path)))
    signer = Signer("ROOT", SECRETS["ROOT"])
    host = f"127.0.0.1:{server.port}"
    signed = signer.headers(
        "PUT",
        "/bkt/k",
        host,
        [
            ("x-amz-acl", "private"),
            ("x-amz-meta-a", "b"),
            ("Content-Type", "a/b"),
            ("If-None-Match", "*"),
        ],
        b"bytes",
    )
    with Connection(server.port) as connection:
        connection.send(
            request_bytes("PUT", "/bkt/k", host, signed + [("Connection", named)], b"bytes")
        )
        reply = connection.read_reply("PUT")
        assert reply.status == 400, reply
    assert not origin.requests()
    with Connection(server.port) as connection:
        connection.send(
            request_bytes(
                "PUT",
                "/bkt/k",
                host,
                signed + [("Connection", "keep-alive, te, not-there")],
                b"bytes",
            )
        )
        assert connection.read_reply("PUT").status == 200
    [entry] = origin.requests(method="PUT")
    assert entry.header("x-amz-acl") == "private" and entry.header("if-none-match") == "*"


def test_fills_and_heads_carry_no_headers_of_clients(start, origin):
    """A fetch for many readers carries no header of a client, except the condition of a first read,
    which the origin judges. A header whose name is invalid is not relayed."""
    origin.put("a", 5 << 20)
    server = start(origin, settings={"cache.ttl": "0s"})
    extra = GONE + [
        ("traceparent", "00-1"),
        ("tracestate", "a=b"),
        ("x-request-id", "<b>"),
        ("User-Agent", "agent/1"),
        ("If-Modified-Since", "Thu, 01 Jan 2015 00:00:00 GMT"),
        ("Content-Type", "a/b"),
        ("Content-Language", "de"),
        ("Expires", "x"),
        ("x-amz-checksum-crc32", "AAAAAA=="),
        ("x-amz-user-agent", "agent/2"),
    ]
    with Client(server.port) as client:
        for method in ("GET", "HEAD", "GET", "HEAD"):
            assert client.get("a", headers=extra, method=method).status == 200
            server.settle()
    allowed = {
        "host",
        "authorization",
        "x-amz-date",
        "x-amz-content-sha256",
        "accept-encoding",
        "user-agent",
        "range",
        "if-match",
        "if-none-match",
        "x-amz-checksum-mode",
        "via",
    }
    for number, entry in enumerate(origin.requests()):
        condition = {"if-modified-since"} if number == 0 else set()
        assert {name for name, _ in entry.headers} <= allowed | condition, entry.headers
        assert entry.header("user-agent").startswith("forebay/"), entry.headers


# --- listings -------------------------------------------------------------------------------------

SHARED = {"host", "authorization", "x-amz-date", "x-amz-content-sha256", "accept-encoding", "via"}


def test_kept_listings_are_asked_for_without_headers(start, origin):
    """Forebay fetches a listing that it keeps without client headers, because other clients get the
    same page."""
    origin.put("a", 1)
    server = start(origin, settings={"cache.list_ttl": "1h", "workers": 1})
    with Client(server.port) as client:
        plain = bytes(client.list().body)
        for i, header in enumerate(
            GONE
            + [
                ("User-Agent", "agent/1"),
                ("Content-Type", "a/b"),
                ("x-amz-user-agent", "agent/2"),
                ("Cache-Control", "no-cache"),
            ]
        ):
            query = f"list-type=2&max-keys={500 + i}"
            reply = client.request("GET", f"/bkt?{query}", [header])
            if reply.status == 200:
                assert "hit" not in reply.header("cache-status"), header
                assert "hit" in client.list(query).header("cache-status"), header
    assert plain
    for entry in origin.requests():
        assert {name for name, _ in entry.headers} <= SHARED, entry.headers


@pytest.mark.parametrize(
    "header", [("Range", "bytes=0-9"), ("If-None-Match", "*"), ("x-amz-new-thing", "1")]
)
def test_listings_that_headers_select_are_not_kept(start, origin, header):
    server = start(origin, settings={"cache.list_ttl": "1h", "workers": 1})
    with Client(server.port) as client:
        for kept in (False, True):
            if kept:
                client.list()
            for _ in range(2):
                mark = origin.mark()
                reply = client.request("GET", "/bkt?list-type=2", [header])
                assert "hit" not in reply.header("cache-status")
                [entry] = origin.requests(since=mark)
                assert entry.header(header[0]) == header[1]
        assert "hit" in client.list().header("cache-status")


# --- '+' in a query -------------------------------------------------------------------------------


def test_a_plus_in_a_query_means_what_it_means_at_the_origin(start, origin):
    """Forebay reads '+' in a query as a blank, as S3 does: in rights, scopes and the cache. It also
    sends a blank on."""
    for key in ("a b/1", "a b/2", "a+b/1", "a+b/2", "a%2Bb/1"):
        origin.put(key, 1)
    server = start(origin, settings={"cache.list_ttl": "1h", "workers": 1})
    direct, through = Client(origin.port), Client(server.port)
    origin.credentials = None
    try:
        for query in (
            "list-type=2&prefix=a+b",
            "list-type=2&start-after=a+b/1",
            "prefix=a+b%2F",
            "list-type=2&prefix=a%2Bb",
            "marker=a+b%2F1&prefix=a",
            "list-type=2&prefix=a%20b",
            "delimiter=+&prefix=a",
            "list-type=2&prefix=a%252Bb",
        ):
            want, got = direct.list(query), through.list(query)
            assert want.status == got.status == 200, (query, got)
            assert bytes(want.body) == bytes(got.body), query
        assert "hit" in through.list("prefix=a%20b%2F").header("cache-status")
        assert "hit" not in through.list("prefix=a%2Bb%2F").header("cache-status")
        # A write to an object in the listing is seen, however the listing's query was spelled.
        assert through.request("DELETE", "/bkt/a%20b/1").status == 204
        assert b"a b/1" not in bytes(through.list("list-type=2&prefix=a+b").body)
    finally:
        direct.close()
        through.close()


def test_rights_read_a_plus_as_the_origin_does(start, origin, tmp_path):
    for key in ("in mine/1", "in+mine/1"):
        origin.put(key, 1)
    allow = {"ALICE": [("bkt", "in mine/", ["list"])], "BOB": [("bkt", "in+mine/", ["list"])]}
    server = start(origin, settings=verify(keys_file(tmp_path, allow)))
    with Client(server.port) as client:
        for who, sent, signed, status in (
            ("ALICE", "in+mine%2F", "in%20mine%2F", 200),
            ("ALICE", "in%20mine%2F", "in%20mine%2F", 200),
            ("ALICE", "in%2Bmine%2F", "in%2Bmine%2F", 403),
            ("BOB", "in%2Bmine%2F", "in%2Bmine%2F", 200),
            ("BOB", "in+mine%2F", "in%20mine%2F", 403),
            # One signature has one meaning: a blank is not accepted where a plus was signed.
            ("ALICE", "in+mine%2F", "in%2Bmine%2F", 403),
            ("BOB", "in+mine%2F", "in%2Bmine%2F", 403),
        ):
            mark = origin.mark()
            headers = Signer(who, SECRETS[who]).headers("GET", f"/bkt?prefix={signed}", client.host)
            reply = client.request("GET", f"/bkt?prefix={sent}", headers)
            assert reply.status == status, (who, sent, signed, reply)
            assert len(origin.requests(since=mark)) == (status == 200)
            if status == 200:
                assert reply.element("Key") == ("in mine/1" if who == "ALICE" else "in+mine/1")

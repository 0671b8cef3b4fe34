# SPDX-License-Identifier: Apache-2.0
"""The possible effects of a request at an origin decide its rights and invalidations, and not the
name that it has in Forebay.

Each test is one case, against an origin that carries out every action a request could mean.
test_rights_matrix.py walks the whole table.
"""

from urllib.parse import quote

import pytest

from client import Truncated
from conftest import strict
from forebay import KEYS
from generous import Generous
from test_auth import Caller, SECRETS, judge_denied, keys_file, verify

ALLOW = {
    "ALICE": [("bkt", "mine/", ["read", "list", "write", "delete"])],
    "BOB": [("bkt", "mine/", ["read", "list", "write", "delete", "any"])],
    "WRITER": [
        ("bkt", "mine/", ["read", "list", "write", "delete"]),
        ("bkt", "theirs/", ["delete"]),
    ],
    "READER": [("bkt", "mine/", ["read"])],
    "ROOT": [("*", "", ["read", "list", "write", "delete", "any"])],
}
for who in ALLOW:
    SECRETS.setdefault(who, f"secret-canary-{who.lower()}-77ab")
SECRET = b"nobody else may read this"
IMMUTABLE = {"rules": [{"match": "**", "freshness": "immutable"}]}


@pytest.fixture
def generous():
    with strict(Generous(credentials=KEYS)) as made:
        made.make_bucket("secret")
        made.store("key", SECRET, "secret")
        made.store("theirs/key", SECRET, "bkt")
        yield made


@pytest.fixture
def guarded(tmp_path, generous, start, engine):
    return start(generous, engine=engine, settings=verify(keys_file(tmp_path, ALLOW)))


@pytest.fixture
def open_one(generous, start, engine):
    return start(generous, engine=engine, file=IMMUTABLE)


UNKNOWN_PUTS = [
    "z=1",
    "versionId=x",
    "partNumber=1",
    "uploadId=a&partNumber=1&z=1",
    "x-id=PutObject&x-id=PutObject",
    "uploadId=&partNumber=1",
    "uploadId=u&partNumber=0",
]


@pytest.mark.parametrize(
    "who,source",
    [
        ("ALICE", "/secret/key"),
        ("BOB", "/secret/key"),
        ("BOB", "bkt/theirs/key"),
        ("ALICE", "/bkt/mine/own"),
    ],
)
def test_unknown_parameters_hide_no_copy(guarded, generous, who, source):
    generous.store("mine/own", b"own", "bkt")
    caller = Caller(guarded, who)
    for query in UNKNOWN_PUTS:
        mark = generous.mark()
        reply = caller.ask("PUT", f"/bkt/mine/k?{query}", [("x-amz-copy-source", source)])
        judge_denied(reply, "AccessDenied")
        assert not generous.requests(since=mark), query
        assert generous.content("mine/k") is None, query


def test_the_right_any_lets_an_unknown_write_pass(guarded, generous):
    generous.store("mine/own", b"own", "bkt")
    caller = Caller(guarded, "BOB")
    for query in UNKNOWN_PUTS:
        reply = caller.ask("PUT", f"/bkt/mine/k?{query}", [("x-amz-copy-source", "bkt/mine/own")])
        assert reply.status == 200, (query, reply)
        assert bytes(caller.get("mine/k").body) == b"own"
    assert caller.ask("PUT", "/bkt/other?z=1", [], b"x").status == 403
    assert caller.ask("POST", "/bkt?z=1", [], b"x").status == 403


def test_a_source_in_the_query_is_a_source(guarded, generous):
    alice = Caller(guarded, "ALICE")
    for name in ("x-amz-copy-source", "X-Amz-Copy-Source"):
        mark = generous.mark()
        judge_denied(alice.ask("PUT", f"/bkt/mine/k?{name}=%2Fsecret%2Fkey"), "AccessDenied")
        assert not generous.requests(since=mark)
    generous.store("mine/own", b"own", "bkt")
    reply = alice.ask("PUT", "/bkt/mine/k?x-amz-copy-source=bkt%2Fmine%2Fown")
    assert reply.status == 200 and generous.content("mine/k") == b"own"
    sent = generous.requests(key="mine/k", method="PUT")[-1]
    assert sent.header("x-amz-copy-source") == "/bkt/mine/own" and not sent.query


def test_a_repeated_source_is_refused(guarded, open_one, generous):
    """A request with two copy sources is refused before the origin is asked."""
    generous.store("mine/own", b"own", "bkt")
    twice = [("x-amz-copy-source", "/bkt/mine/own"), ("x-amz-copy-source", "/secret/key")]
    root = Caller(guarded, "ROOT")
    with open_one.client() as client:
        mark = generous.mark()
        for ask in (root.ask, client.request):
            for headers in (twice, twice[::-1]):
                for query in ("", "?z=1"):
                    reply = ask("PUT", f"/bkt/mine/k{query}", headers)
                    assert reply.status == 400 and reply.code == "InvalidArgument", reply
            reply = ask("PUT", "/bkt/mine/k?x-amz-copy-source=secret%2Fkey", twice[:1])
            assert reply.status == 400 and reply.code == "InvalidArgument", reply
        assert not generous.requests(since=mark)


def test_a_rename_needs_its_source(guarded, generous):
    writer, alice, root = (Caller(guarded, who) for who in ("WRITER", "ALICE", "ROOT"))
    for query in ("renameObject", "renameObject&z=1"):
        for source in ("bkt/theirs/key", "theirs/key", "/bkt/theirs/key"):
            for caller in (writer, alice):  # WRITER may delete it, but not read it
                mark = generous.mark()
                judge_denied(
                    caller.ask("PUT", f"/bkt/mine/k?{query}", [("x-amz-rename-source", source)]),
                    "AccessDenied",
                )
                assert not generous.requests(since=mark), (query, source)
    assert (
        root.ask(
            "PUT", "/bkt/mine/k?renameObject", [("x-amz-rename-source", "bkt/theirs/key")]
        ).status
        == 200
    )
    assert generous.content("theirs/key") is None and generous.content("mine/k") == SECRET


def test_an_unknown_delete_is_seen_by_the_next_read(open_one, generous):
    generous.store("victim", b"old", "bkt")
    generous.store("other", b"kept", "bkt")
    body = b"<Delete><Object><Key>victim</Key></Object></Delete>"
    with open_one.client() as client:
        for target in ("/bkt?delete&z=1", "/bkt/x?delete", "/bkt?delete&delete"):
            generous.store("victim", b"old", "bkt")
            for key in ("victim", "other"):
                assert client.get(key).status == 200
            open_one.settle()
            assert "hit" in client.get("victim").header("cache-status")
            assert client.request("POST", target, [], body).status == 200, target
            assert client.get("victim").status == 404, target


def test_an_unknown_write_is_seen_by_the_next_read(open_one, generous):
    with open_one.client() as client:
        for number, (method, query) in enumerate(
            [("PUT", q) for q in UNKNOWN_PUTS]
            + [("DELETE", "uploadId="), ("DELETE", "z=1"), ("PUT", "renameObject&z=1")]
        ):
            key, source = f"k{number}", f"s{number}"
            for name in (key, source):
                generous.store(name, b"old " + name.encode(), "bkt")
                assert client.get(name).status == 200
            open_one.settle()
            headers = [("x-amz-rename-source", f"bkt/{source}")] if "rename" in query else []
            reply = client.request(
                method, f"/bkt/{key}?{query}", headers, b"" if headers else b"new"
            )
            assert reply.status in (200, 204), (method, query, reply)
            for name in (key, source):
                reply, want = client.get(name), generous.content(name)
                assert reply.status == 404 if want is None else bytes(reply.body) == want, (
                    method,
                    query,
                    name,
                )


def test_a_write_with_a_header_that_s3_does_not_have_is_unknown(guarded, generous):
    for who, status in (("ALICE", 403), ("BOB", 200)):
        mark = generous.mark()
        reply = Caller(guarded, who).ask("PUT", "/bkt/mine/k", [("x-amz-new", "1")], b"x")
        assert reply.status == status, reply
        assert bool(generous.requests(since=mark)) == (status == 200)


def test_a_batch_delete_without_a_body_goes_nowhere(open_one, generous):
    with open_one.client() as client:
        reply = client.request("POST", "/bkt?delete", [("Content-Length", "0")])
        assert reply.status == 400 and reply.code == "MalformedXML", reply
    assert not generous.requests(method="POST")


def test_a_form_is_one_whatever_the_query_says(guarded, open_one, generous):
    """A form upload needs a form's rights whatever its query says, because an origin may look for a
    form before it looks at the parameters."""
    generous.store("mine/k", b"own", "bkt")
    body = (
        b'--B\r\nContent-Disposition: form-data; name="key"\r\n\r\n'
        b"theirs/key\r\n--B\r\nContent-Disposition: "
        b'form-data; name="file"; filename="f"\r\n\r\nnew\r\n--B--\r\n'
    )
    types = [
        [("Content-Type", "multipart/form-data; boundary=B")],
        [("Content-Type", "Multipart/Form-Data;boundary=B")],
        [("Content-Type", "text/xml"), ("Content-Type", "multipart/form-data; boundary=B")],
    ]
    queries = [
        "mine/k?select&select-type=2",
        "mine/k?uploads",
        "mine/k?uploadId=x",
        "mine/k?restore",
        "mine/k",
        "?delete",
    ]
    for who in ("ALICE", "BOB", "READER"):
        for query in queries:
            for headers in types:
                mark = generous.mark()
                judge_denied(
                    Caller(guarded, who).ask("POST", f"/bkt/{query}", headers, body), "AccessDenied"
                )
                assert not generous.requests(since=mark), (who, query)
    with open_one.client() as client:
        for query in queries[:3]:
            generous.store("theirs/key", SECRET, "bkt")
            assert (
                client.request("POST", "/bkt/other?z=1", [], b"").status == 200
            )  # so that it is fetched again
            assert bytes(client.get("theirs/key").body) == SECRET
            open_one.settle()
            client.request("POST", f"/bkt/{query}", types[0], body)
            assert bytes(client.get("theirs/key").body) == generous.content("theirs/key"), query


SETTINGS = [
    ("PUT", "?policy", []),
    ("DELETE", "?policy", []),
    ("PUT", "?acl", []),
    ("PUT", "?publicAccessBlock", []),
    ("DELETE", "?publicAccessBlock", []),
    ("PUT", "?ownershipControls", []),
    ("PUT", "?cors", []),
    ("PUT", "?website", []),
    ("PUT", "?notification", []),
    ("PUT", "?tagging", []),
    ("PUT", "?encryption", []),
    ("POST", "?metadataConfiguration", []),
    ("PUT", "", [("x-amz-acl", "public-read")]),
    ("PUT", "?x-amz-grant-read=id%3D1", []),
]


def test_changing_access_needs_any_on_the_bucket(tmp_path, generous, start, engine):
    """Changing a bucket's policy needs the right `any` on the bucket. Write and delete are not
    enough, because the policy may open objects that its writer may not read."""
    allow = {
        "WRITER": [("bkt", "", ["write", "delete"])],
        "ALICE": [("bkt", "", ["read", "list", "write", "delete"])],
        "BOB": [("bkt", "", ["any", "write"])],
    }
    server = start(generous, engine=engine, settings=verify(keys_file(tmp_path, allow)))
    for method, query, headers in SETTINGS:
        for who in ("WRITER", "ALICE"):
            mark = generous.mark()
            judge_denied(
                Caller(server, who).ask(method, f"/bkt{query}", headers, b"<X/>" if query else b""),
                "AccessDenied",
            )
            assert not generous.requests(since=mark), (method, query)
        mark = generous.mark()
        assert (
            Caller(server, "BOB")
            .ask(method, f"/bkt{query}", headers, b"<X/>" if query else b"")
            .status
            != 403
        )
        assert generous.requests(since=mark), (method, query)
    assert Caller(server, "WRITER").ask("PUT", "/bkt?lifecycle", [], b"<X/>").status == 200


def test_opening_a_key_needs_the_read_right(tmp_path, generous, start, engine):
    """A client may write its own bytes under any ACL. Only a client with the read right may change
    the ACL of an existing object."""
    allow = {
        "WRITER": [("bkt", "", ["write", "delete"])],
        "ALICE": [("bkt", "", ["read", "write"])],
    }
    server = start(generous, engine=engine, settings=verify(keys_file(tmp_path, allow)))
    writer, alice = Caller(server, "WRITER"), Caller(server, "ALICE")
    for method, query in (
        ("PUT", "acl"),
        ("PUT", "acl&versionId=null"),
        ("PUT", "tagging"),
        ("DELETE", "tagging"),
        ("PUT", "encryption"),
    ):
        mark = generous.mark()
        judge_denied(
            writer.ask(method, f"/bkt/theirs/key?{query}", [("x-amz-acl", "public-read")]),
            "AccessDenied",
        )
        assert not generous.requests(since=mark), query
        assert alice.ask(method, f"/bkt/theirs/key?{query}").status != 403
    assert writer.ask("PUT", "/bkt/own", [("x-amz-acl", "public-read")], b"x").status == 200


def test_a_conditional_write_needs_the_read_right(tmp_path, generous, start, engine):
    """A conditional write needs the read right, because its outcome shows what the key holds."""
    allow = {
        "WRITER": [("bkt", "", ["write", "delete", "any"])],
        "ALICE": [("bkt", "", ["read", "write", "delete", "any"])],
    }
    server = start(generous, engine=engine, settings=verify(keys_file(tmp_path, allow)))
    writer, alice = Caller(server, "WRITER"), Caller(server, "ALICE")
    etag = generous.version("theirs/key", "bkt").etag
    deletes = [
        b"<Delete><Object><Key>theirs/key</Key><%s>%s</%s></Object></Delete>" % (n, v, n)
        for n, v in (
            (b"ETag", b"x"),
            (b"Size", b"1"),
            (b"LastModifiedTime", b"Wed, 21 Oct 2015 07:28:00 GMT"),
        )
    ]
    asks = [
        (method, target, [header], body)
        for header in (
            ("If-Match", etag),
            ("If-Match", '"x"'),
            ("If-None-Match", etag),
            ("If-Unmodified-Since", "Wed, 21 Oct 2015 07:28:00 GMT"),
            ("x-amz-if-match-size", "1"),
            ("x-amz-write-offset-bytes", "3"),
        )
        for method, target, body in (
            ("PUT", "/bkt/theirs/key", b"x"),
            ("DELETE", "/bkt/theirs/key", b""),
            ("PUT", "/bkt/theirs/key?z=1", b"x"),
            ("POST", "/bkt/theirs/key?uploadId=none", b"<C/>"),
            ("POST", "/bkt?delete", b"<Delete><Object><Key>theirs/key</Key></Object></Delete>"),
        )
    ]
    asks += [("POST", "/bkt?delete", [], body) for body in deletes]
    asks += [("DELETE", "/bkt/theirs/key?x-amz-if-match-size=1", [], b"")]
    for ask in asks:
        mark = generous.mark()
        judge_denied(writer.ask(*ask), "AccessDenied")
        assert not generous.requests(since=mark), ask
        assert alice.ask(*ask).status != 403 and generous.requests(since=mark), ask
        generous.store("theirs/key", SECRET, "bkt")
    assert writer.ask("PUT", "/bkt/new", [("If-None-Match", "*")], b"x").status == 200


CLIMBING = ["../x", "/../../../other/theirs/key", "u/../../theirs", "..", "\\..\\x", "a/b/.."]


def test_an_id_reaches_no_other_key(guarded, open_one, generous):
    """A version or upload id does not reach other keys. Origins on files keep versions and uploads
    in folders next to their key, named by ids that clients send."""
    alice = Caller(guarded, "ALICE")
    asked = [
        ("GET", "?versionId={}"),
        ("HEAD", "?versionId={}"),
        ("GET", "?versionId=v&VersionID={}"),
        ("GET", "?tagging&versionId={}"),
        ("GET", "?z=1&versionId={}"),
        ("DELETE", "?versionId={}"),
        ("PUT", "?acl&versionId={}"),
        ("GET", "?uploadId={}"),
        ("PUT", "?partNumber=1&uploadId={}"),
        ("POST", "?uploadId={}"),
        ("DELETE", "?uploadId={}"),
    ]
    with open_one.client() as client:
        mark = generous.mark()
        for ask in (alice.ask, client.request):
            for name in (quote(i, safe="") for i in CLIMBING):
                for method, query in asked:
                    reply = ask(
                        method,
                        "/bkt/mine/k" + query.format(name),
                        [],
                        b"x" if method == "PUT" else b"",
                    )
                    assert reply.status == 400, (method, query, name, reply)
                    assert method == "HEAD" or reply.code == "InvalidArgument", (
                        method,
                        query,
                        name,
                        reply,
                    )
                reply = ask(
                    "PUT", "/bkt/mine/k", [("x-amz-copy-source", f"bkt/mine/own?versionId={name}")]
                )
                assert reply.status == 400 and reply.code == "InvalidArgument", (name, reply)
            for name in CLIMBING:
                body = (
                    f"<Delete><Object><Key>mine/k</Key>"
                    f"<VersionId>{name}</VersionId></Object></Delete>".encode()
                )
                reply = ask("POST", "/bkt?delete", [], body)
                assert reply.status == 400 and reply.code == "InvalidArgument", (name, reply)
        assert not generous.requests(since=mark)
        # Ids that remain in that folder are the origin's business. So are two dots inside a name.
        for query in ("?versionId=a..b", "?versionId=a%2Fb%2B%3D", "?versionId=null"):
            assert client.get("theirs/key" + query).status != 400, query


def test_a_batch_with_a_denied_key_deletes_nothing_and_names_that_key(guarded, generous):
    """Wherever the denied key is in the batch, Quiet or not: the origin is not asked. Without that
    key the batch deletes the others."""
    alice = Caller(guarded, "ALICE")

    def batch(*keys, quiet=False):
        rows = "".join(f"<Object><Key>{key}</Key></Object>" for key in keys)
        return f"<Delete>{'<Quiet>true</Quiet>' * quiet}{rows}</Delete>".encode()

    own = ["mine/a", "mine/b"]
    for key in own:
        generous.store(key, b"own", "bkt")
    for at in range(3):
        keys = [*own[:at], "theirs/&lt;k", *own[at:]]
        for quiet in (False, True):
            mark = generous.mark()
            reply = alice.ask("POST", "/bkt?delete", [], batch(*keys, quiet=quiet))
            judge_denied(reply, "AccessDenied")
            assert b"lacks a right on the key theirs/&lt;k." in bytes(reply.body), reply.body
            assert not generous.requests(since=mark)
    assert alice.ask("POST", "/bkt?delete", [], batch(*own)).status == 200
    assert generous.content("mine/a") is None and generous.content("mine/b") is None


def listing(*names, encoded=False):
    """A listing of these keys (and common prefixes, which end with a slash), as the bytes of a
    whole reply."""
    rows = [
        f"<CommonPrefixes><Prefix>{n}</Prefix></CommonPrefixes>"
        if n.endswith("/")
        else f"<Contents><Key>{n}</Key><ETag>&quot;e&quot;</ETag><Size>7</Size></Contents>"
        for n in names
    ]
    body = (
        "<?xml version='1.0' encoding='UTF-8'?><ListBucketResult>"
        "<Name>bkt</Name><Prefix>mine/</Prefix>"
        + ("<EncodingType>url</EncodingType>" if encoded else "")
        + "".join(rows)
        + "</ListBucketResult>"
    ).encode()
    return (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


FOREIGN = [
    "theirs/key",
    "theirs/",
    "mine",
    "%74heirs/key",
    "&#116;heirs/key",
    "<![CDATA[mine/k]]>",
    "mine/<b/>k",
    "",
]


@pytest.mark.parametrize(
    "query",
    [
        "list-type=2&continuation-token=theirs%2F0",
        "marker=theirs%2F0",
        "versions&key-marker=theirs%2F0",
        "uploads&key-marker=theirs%2F0",
        "list-type=2&encoding-type=url&start-after=theirs%2F0",
    ],
)
def test_a_listing_shows_no_other_names(guarded, generous, query):
    """A listing shows no names outside its prefix. An origin may begin at the position in the query
    instead of the prefix."""
    alice, root = Caller(guarded, "ALICE"), Caller(guarded, "ROOT")
    target = f"/bkt?{query}&prefix=mine%2F"
    for number, name in enumerate(FOREIGN):
        generous.fault(None, "raw", listing("mine/a", name, "mine/b"))
        judge_denied(alice.ask("GET", target), "AccessDenied")
        assert guarded.metric("forebay_http_refused_total", reason="listing") == number + 1, name
        generous.fault(None, "raw", listing("mine/a", name, "mine/b"))
        reply = root.ask("GET", target)
        assert reply.status == 200 and f">{name}</".encode() in bytes(reply.body), (name, reply)
    encoded = "encoding-type" in query
    own = [
        "mine/a&amp;b",
        "mine/&#34;q&#x22;",
        "mine/dir/",
        "mine/" + "&quot;" * 1019,
        "mine/../theirs/key",
    ]
    own += ["mine%2Fa%2Bb+c", "mine%2Fdir/"] if encoded else []
    generous.fault(None, "raw", listing(*own, encoded=encoded))
    reply = alice.ask("GET", target)
    assert reply.status == 200 and bytes(reply.body) in listing(*own, encoded=encoded), reply


def test_a_long_listing_ends_in_front_of_another_name(guarded, generous):
    """If a forbidden name comes late in a listing, whose beginning was already sent, the reply is
    cut before the name. Nothing of the name is sent, wherever the pieces end."""
    alice = Caller(guarded, "ALICE")
    own = [f"mine/{i:06d}" for i in range(20000)]
    for more in range(40):
        generous.fault(
            None, "raw", listing("mine/" + "x" * (1 + 7 * more), *own, "theirs/key", *own[:50])
        )
        with pytest.raises(Truncated) as cut:
            alice.ask("GET", "/bkt?list-type=2&continuation-token=theirs%2F0&prefix=mine%2F")
        alice.http.close()
        alice = Caller(guarded, "ALICE")
        body = bytes(cut.value.reply.body)
        assert b"thei" not in body and b"</Contents>" in body, body[-200:]


def raw(status, document):
    body = document.encode()
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


POSITION = (
    "<NextMarker>{}</NextMarker>",
    "<NextKeyMarker>{}</NextKeyMarker>",
    "<NextContinuationToken>{}</NextContinuationToken>",
)
ECHO = (
    "<Marker>{}</Marker>",
    "<Prefix>{}</Prefix>",
    "<StartAfter>{}</StartAfter>",
    "<ContinuationToken>{}</ContinuationToken>",
)


@pytest.mark.parametrize("element", POSITION + ECHO)
def test_a_position_names_no_other_key(guarded, generous, element):
    """A position shows no other key: the beginning of the next page may be a name that the page
    itself does not show."""
    alice, root = Caller(guarded, "ALICE"), Caller(guarded, "ROOT")
    target = (
        "/bkt?list-type=2&start-after=other%2F0&continuation-token=other%2F0"
        if "Token" in element or "Start" in element
        else "/bkt?versions&key-marker=other%2F0"
        if "Key" in element
        else "/bkt?marker=other%2F0"
    ) + "&prefix=mine%2F"
    for name, may in (
        ("theirs/key", False),
        ("mine/b", True),
        ("", True),
        ("other/0", element in ECHO and "Prefix" not in element),
        ("1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=", "Token" in element and "Next" in element),
    ):
        answer = raw(
            "200 OK",
            "<ListBucketResult><Contents><Key>mine/a</Key><Size>1</Size></Contents>"
            f"{element.format(name)}</ListBucketResult>",
        )
        generous.fault(None, "raw", answer)
        reply = alice.ask("GET", target)
        if may:
            assert reply.status == 200 and answer.endswith(bytes(reply.body)), (
                element,
                name,
                reply,
            )
        else:
            judge_denied(reply, "AccessDenied")
        generous.fault(None, "raw", answer)
        assert root.ask("GET", target).status == 200


@pytest.mark.parametrize(
    "target,own",
    [
        ("/bkt?prefix=mine%2F", "<Prefix>mine/</Prefix>"),
        ("/bkt/mine/k?acl", "<Key>mine/k</Key>"),
        ("/bkt?prefix=mine%2F&uploads", "<Resource>/bkt</Resource>"),
    ],
)
def test_an_error_names_no_other_key(guarded, generous, target, own):
    alice, root = Caller(guarded, "ALICE"), Caller(guarded, "ROOT")
    error = "<Error><Code>Odd</Code><Message>m</Message>{}<RequestId>1</RequestId></Error>"
    for other in (
        "<Key>theirs/key</Key>",
        "<Resource>/bkt/theirs/key</Resource>",
        "<NextMarker>theirs/key</NextMarker>",
    ):
        for who, shown in ((alice, own), (root, own + other)):
            generous.fault(None, "raw", raw("409 Conflict", error.format(own + other)))
            reply = who.ask("GET", target)
            assert reply.status == 409 and bytes(reply.body).endswith(
                error.format(shown).encode()
            ), reply
    generous.fault(None, "raw", raw("409 Conflict", error.format(own)))
    assert bytes(alice.ask("GET", target).body) == error.format(own).encode()
    generous.fault(
        None, "raw", raw("409 Conflict", error.format("<Key>theirs/key</Key>" + "x" * 70000))
    )
    reply = alice.ask("GET", target)
    assert reply.status == 409 and b"theirs" not in bytes(reply.body)

# SPDX-License-Identifier: Apache-2.0
"""One object under several names. A client without rights gets it under none of them, and a write
by one name is seen by all.

Keys that an origin on files maps to one path are such names. So are several names that the
configuration gives to one bucket, and realms, each of which holds a copy of its own.
"""

import threading

import pytest

from conftest import strict
from forebay import KEYS
from generous import Generous
from test_auth import Caller, SECRETS, judge_denied, keys_file, reload, verify
from waiting import wait_for

RWLD = ["read", "list", "write", "delete"]
ALLOW = {
    "ALICE": [("bkt", "mine/", RWLD + ["any"])],
    "TEAM": [("bkt", "", RWLD)],
    "ROOT": [("*", "", RWLD + ["any"])],
}
for who in ALLOW:
    SECRETS.setdefault(who, f"secret-canary-{who.lower()}-77ab")
IMMUTABLE = {"rules": [{"match": "**", "freshness": "immutable"}]}
SECRET = b"nobody else may read this"


@pytest.fixture
def files():
    """An origin that treats a key as a path."""
    with strict(Generous(files=True, credentials=KEYS)) as made:
        made.make_bucket("secret")
        made.store("key", SECRET, "secret")
        made.store("theirs/key", SECRET, "bkt")
        made.store("mine/k", b"old", "bkt")
        yield made


def form(key):
    return (
        f'--B\r\nContent-Disposition: form-data; name="key"\r\n\r\n'
        f"{key}\r\n--B\r\nContent-Disposition: "
        f'form-data; name="file"; filename="f"\r\n\r\nnew\r\n--B--\r\n'
    ).encode()


def delete_xml(key):
    return f"<Delete><Object><Key>{key}</Key></Object></Delete>".encode()


FORM = [("Content-Type", "multipart/form-data; boundary=B")]
CLIMBING = [
    "mine/../theirs/key",
    "mine/./../theirs/key",
    "mine//../theirs/key",
    "mine/a/../../theirs/key",
    "mine/../../secret/key",
    "mine/..",
    "mine/../mine/../theirs/key",
    "mine/..\\theirs/key",
    "mine/a\\..\\..\\theirs\\key",
    "mine/a\\b/../../theirs/key",  # an origin may take "a\\b" for one name
    "mine/a/..",
]


def asking_for(key):
    name, key = key, key.replace("\\", "%5C")
    escaped = key.replace("/", "%2F")
    return [
        ("GET", f"/bkt/{key}", [], b""),
        ("HEAD", f"/bkt/{key}", [], b""),
        ("GET", f"/bkt/{key}?tagging", [], b""),
        ("GET", f"/bkt/{key.replace('..', '%2e%2E')}", [], b""),
        ("GET", f"/bkt/{escaped}", [], b""),
        ("PUT", f"/bkt/{key}", [], b"new"),
        ("PUT", f"/bkt/{key}?z=1", [], b"new"),
        ("DELETE", f"/bkt/{key}", [], b""),
        ("POST", f"/bkt/{key}?uploads", [], b""),
        ("PUT", "/bkt/mine/k", [("x-amz-copy-source", f"bkt/{key}")], b""),
        ("PUT", "/bkt/mine/k", [("x-amz-copy-source", f"bkt%2F{escaped}")], b""),
        ("PUT", "/bkt/mine/k?renameObject", [("x-amz-rename-source", key)], b""),
        ("POST", "/bkt?delete", [], delete_xml(name)),
        ("POST", "/bkt", FORM, form(name)),
        ("GET", f"/bkt?list-type=2&prefix={escaped}", [], b""),
        ("GET", f"/bkt?uploads&prefix={escaped}", [], b""),
    ]


def test_no_path_leads_out_of_the_prefix(tmp_path, files, start, engine):
    server = start(files, engine=engine, settings=verify(keys_file(tmp_path, ALLOW)))
    alice = Caller(server, "ALICE")
    for key in CLIMBING:
        for method, target, headers, body in asking_for(key):
            mark = files.mark()
            judge_denied(alice.ask(method, target, headers, body), "AccessDenied")
            assert not files.requests(since=mark), (method, target, headers)
    for method, target, headers, body in asking_for("mine/."):
        if "prefix=" not in target:  # names below "mine/" may begin with a dot
            mark = files.mark()
            judge_denied(alice.ask(method, target, headers, body), "AccessDenied")
            assert not files.requests(since=mark), (method, target, headers)
    assert files.content("theirs/key") == SECRET and files.content("mine/k") == b"old"
    for key in ("mine/a/../k", "mine//k", "mine/./k", "mine/a..b/../k"):
        assert bytes(alice.ask("GET", f"/bkt/{key}").body) == b"old", key


# A right on such a prefix is not a right on the paths that its keys stand for.
ODD_PREFIXES = ["mine//", "/mine/", "mine/.", "./", "mine\\"]


@pytest.mark.parametrize("prefix", ODD_PREFIXES)
def test_a_right_on_an_odd_prefix_opens_no_other_key(tmp_path, files, start, engine, prefix):
    allow = {"ALICE": [("bkt", prefix, RWLD + ["any"])]}
    server = start(files, engine=engine, settings=verify(keys_file(tmp_path, allow)))
    alice = Caller(server, "ALICE")
    key = {"mine/.": "mine/./k", "./": "./mine/k"}.get(prefix, prefix + "k").replace("\\", "%5C")
    for method, body in (("GET", b""), ("HEAD", b""), ("PUT", b"new"), ("DELETE", b"")):
        mark = files.mark()
        judge_denied(alice.ask(method, f"/bkt/{key}", [], body), "AccessDenied")
        assert not files.requests(since=mark), (method, key)
    assert files.content("mine/k") == b"old"


@pytest.mark.parametrize(
    "key", ["mine//k", "/mine/k", "mine/./k", "mine/x/../k", "./mine///k", "mine\\k"]
)
def test_a_write_is_seen_under_the_path_that_it_takes(files, start, engine, key):
    server = start(files, engine=engine, file=IMMUTABLE)
    path = key.replace("\\", "%5C")
    with server.client() as client:
        for method, target, headers, body in (
            ("PUT", f"/bkt/{path}", [], b"new"),
            ("DELETE", f"/bkt/{path}", [], b""),
            ("POST", "/bkt", FORM, form(key)),
            ("PUT", f"/bkt/{path}?z=1", [], b"odd"),
            ("POST", "/bkt?delete", [], delete_xml(key)),
        ):
            files.store("mine/k", b"old", "bkt")
            client.request("PUT", "/bkt/mine/k", [], b"old")
            assert bytes(client.get("mine/k").body) == b"old"
            server.settle()
            assert "hit" in client.get("mine/k").header("cache-status")
            assert client.request(method, target, headers, body).status in (200, 204), (
                method,
                target,
            )
            reply, want = client.get("mine/k"), files.content("mine/k")
            assert want != b"old"
            assert reply.status == 404 if want is None else bytes(reply.body) == want, (
                method,
                target,
                reply,
            )


def test_a_write_stays_in_its_bucket(files, start, engine):
    """A key whose path leads out of its bucket is refused before the origin is asked."""
    server = start(files, engine=engine, file=IMMUTABLE)
    with server.client() as client:
        mark = files.mark()
        for key in ("../secret/key", "mine/../../secret/key"):
            for method, target, headers, body in (
                ("PUT", f"/bkt/{key}", [], b"new"),
                ("DELETE", f"/bkt/{key}", [], b""),
                ("POST", "/bkt", FORM, form(key)),
                ("POST", "/bkt?delete", [], delete_xml(key)),
            ):
                reply = client.request(method, target, headers, body)
                assert reply.status == 400 and reply.code == "InvalidURI", (method, target, reply)
        assert not files.requests(since=mark)


def test_a_write_is_seen_under_every_name_of_its_bucket(origin, start, engine):
    server = start(
        origin,
        engine=engine,
        file={
            **IMMUTABLE,
            "buckets": [
                {"name": "own", "origin": "s3://bkt", "region": "us-east-1"},
                {"name": "other", "origin": "s3://bkt", "addressing": "path"},
                {"name": "plain", "origin": "s3://bkt"},
            ],
        },
    )
    names = ("bkt", "own", "other", "plain")
    origin.put("k", 1000)
    with server.client() as client:
        for writer in names:
            for name in names:
                assert client.get("k", bucket=name).status == 200
            server.settle()
            assert client.request("PUT", f"/{writer}/k", [], f"by {writer}".encode()).status == 200
            for name in names:
                assert bytes(client.get("k", bucket=name).body) == f"by {writer}".encode(), (
                    writer,
                    name,
                )
        for writer in names:
            client.request("PUT", "/bkt/k", [], b"there")
            for name in names:
                assert client.get("k", bucket=name).status == 200
            server.settle()
            assert client.request("POST", f"/{writer}?delete", [], delete_xml("k")).status == 200
            for name in names:
                assert client.get("k", bucket=name).status == 404, (writer, name)


def test_an_endpoint_is_the_same_however_it_is_spelt(origin, start, engine):
    """Two spellings of one endpoint are the same bucket: case, a final dot or slash, a leading
    zero."""
    spelt = {
        name: f"http://{host}:{port}{path}"
        for name, (host, port, path) in {
            "upper": ("LOCALHOST", origin.port, ""),
            "slash": ("localhost", origin.port, "/"),
            "slashes": ("LocalHost", origin.port, "//"),
            "zero": ("localhost", f"0{origin.port}", ""),
        }.items()
    }
    server = start(
        f"http://localhost:{origin.port}",
        engine=engine,
        settings={"cache.list_ttl": "1h"},
        file={
            **IMMUTABLE,
            "buckets": [
                {"name": name, "origin": "s3://bkt", "endpoint": text}
                for name, text in spelt.items()
            ],
        },
    )
    names = ("bkt", *spelt)
    with server.client() as client:

        def is_new(content, writer):
            for name in names:
                reply = client.get("k", bucket=name)
                assert content is None and reply.status == 404 or bytes(reply.body) == content, (
                    writer,
                    name,
                    reply,
                )
                reply = client.head("k", bucket=name)
                assert (
                    reply.header("content-length") == str(len(content))
                    if content
                    else reply.status == 404
                )
                assert (b"<Key>k</Key>" in bytes(client.list(bucket=name).body)) == (
                    content is not None
                ), (writer, name)
            server.settle()

        for writer in names:
            is_new(None, writer)
            assert client.request("PUT", f"/{writer}/k", [], f"by {writer}".encode()).status == 200
            is_new(f"by {writer}".encode(), writer)
            assert client.request("DELETE", f"/{writer}/k").status == 204
            is_new(None, writer)
            client.request("PUT", "/bkt/k", [], b"there")
            is_new(b"there", "bkt")
            assert (
                client.request("POST", f"/{writer}?delete&z=1", [], delete_xml("k")).status == 200
            )  # the whole bucket
            is_new(None, writer)


def test_a_realm_that_was_away_has_seen_the_writes(tmp_path, origin, start, engine):
    for name, text in zip(("id", "secret"), next(iter(KEYS.items()))):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    extra = {
        "TEAM": {
            "origin_access_key_file": str(tmp_path / "id"),
            "origin_secret_key_file": str(tmp_path / "secret"),
        }
    }
    origin.put("k", 3, body=b"old")
    server = start(
        origin,
        engine=engine,
        settings=verify(keys_file(tmp_path, ALLOW, extra=extra)),
        file=IMMUTABLE,
    )
    team, root = Caller(server, "TEAM"), Caller(server, "ROOT")

    def change(allow, status):
        keys_file(tmp_path, allow, extra=extra)
        reload(server)
        for caller in [
            Caller(server, "TEAM") for _ in range(8)
        ]:  # each worker learns of it from a message
            wait_for(lambda: caller.get("none").status == status, status)

    assert bytes(team.get("k").body) == b"old"
    server.settle()
    change({who: rows for who, rows in ALLOW.items() if who != "TEAM"}, 403)
    assert root.ask("PUT", "/bkt/k", [], b"new").status == 200
    change(ALLOW, 404)
    assert bytes(team.get("k").body) == b"new"


@pytest.mark.parametrize("end", ["stop", "kill9"])
@pytest.mark.parametrize("away", ["realm", "open", "bucket"])
def test_a_realm_absent_over_a_restart_has_seen_the_writes(
    tmp_path, origin, start, engine, away, end
):
    """Forebay remembers that a realm or a name of a bucket may hold copies, even if a restart
    removes it from the configuration. So writes in between invalidate those copies."""
    for name, text in zip(("id", "secret"), next(iter(KEYS.items()))):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    extra = {
        "TEAM": {
            "origin_access_key_file": str(tmp_path / "id"),
            "origin_secret_key_file": str(tmp_path / "secret"),
        },
        "ALICE": {"realm": "alices"},
    }
    allow = {**ALLOW, "ALICE": [("*", "", RWLD)]}
    second = {"name": "second", "origin": "s3://bkt", "region": "us-east-1"}
    origin.put("k", 3, body=b"old")
    origin.put("kept", 3, body=b"kpt")

    def run(with_it, cache=None):
        table = {
            who: rows for who, rows in allow.items() if with_it or away != "realm" or who != "TEAM"
        }
        buckets = [second] if with_it or away != "bucket" else []
        settings = (
            verify(keys_file(tmp_path, table, extra=extra)) if with_it or away != "open" else {}
        )
        server = start(
            origin,
            engine=engine,
            settings=settings,
            cache=cache,
            file={**IMMUTABLE, "buckets": buckets},
        )
        return server, {who: Caller(server, who) for who in table}

    def read(callers, who, bucket="bkt", key="k"):
        return bytes(callers[who].ask("GET", f"/{bucket}/{key}").body)

    def fetched(mark, key=None):
        """Returns the requests that a read caused. A kill leaves the bucket in doubt, so that
        cached objects are revalidated."""
        return [
            e for e in origin.requests(since=mark, key=key, method="GET") if e.status in (200, 206)
        ]

    server, callers = run(True)
    readers = [
        ("TEAM", "bkt"),
        ("ROOT", "bkt"),
        ("ALICE", "bkt"),
        ("ROOT", "second"),
        ("ALICE", "second"),
    ]
    for who, bucket in readers:
        assert read(callers, who, bucket) == b"old" and read(callers, who, bucket, "kept") == b"kpt"
    server.settle()
    getattr(server, end)()
    again, callers = run(False, server.cache)
    if away == "open":
        with again.client() as client:
            assert client.request("PUT", "/bkt/k", [], b"new").status == 200
    else:
        assert callers["ROOT"].ask("PUT", "/bkt/k", [], b"new").status == 200
    getattr(again, end)()
    last, callers = run(True, server.cache)
    for who, bucket in readers:
        assert read(callers, who, bucket) == b"new", (who, bucket)
    last.settle()
    for turn in range(2):
        mark = origin.mark()
        for who, bucket in readers:
            assert read(callers, who, bucket, "kept") == b"kpt"
        gone = {"realm": 1, "open": 3, "bucket": 2}[away] if turn == 0 else 0
        got = fetched(mark, "kept")
        # An object read just before a kill may not have been committed.
        assert len(got) == gone or end == "kill9" and len(got) > gone and turn == 0, (
            "who never was away keeps it"
        )
        last.settle()
    getattr(last, end)()
    last.start()
    mark = origin.mark()
    callers = {who: Caller(last, who) for who in allow}
    for who, bucket in readers:
        assert read(callers, who, bucket) == b"new" and read(callers, who, bucket, "kept") == b"kpt"
    assert end == "kill9" or not fetched(mark), "numbers last"


@pytest.mark.parametrize("method", ["PUT", "DELETE", "POST"])
def test_a_realm_that_comes_during_a_write_sees_it(tmp_path, origin, start, engine, method):
    """The keys file is read again while the origin works on a write. A realm that is new in it
    keeps no copy older than the write."""
    for name, text in zip(("id", "secret"), next(iter(KEYS.items()))):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    extra = {
        "TEAM": {
            "origin_access_key_file": str(tmp_path / "id"),
            "origin_secret_key_file": str(tmp_path / "secret"),
        }
    }
    origin.put("k", 3, body=b"old")
    before = {who: rows for who, rows in ALLOW.items() if who != "TEAM"}
    server = start(
        origin, engine=engine, settings=verify(keys_file(tmp_path, before)), file=IMMUTABLE
    )
    team, target = (
        [Caller(server, "TEAM") for _ in range(4)],
        "/bkt?delete" if method == "POST" else "/bkt/k",
    )
    replies = []

    def write():
        body = {"PUT": b"new", "POST": delete_xml("k")}.get(method, b"")
        replies.append(Caller(server, "ROOT").ask(method, target, [], body))

    with origin.hold(None if method == "POST" else "k", method=method):
        writer = threading.Thread(target=write)
        writer.start()
        origin.wait_for(1, method=method)
        keys_file(tmp_path, ALLOW, extra=extra)
        reload(server)
        for caller in team:  # each worker learns of it from a message
            wait_for(lambda: caller.get("k").status == 200, "the new rights")
            assert bytes(caller.get("k").body) == b"old"
    writer.join()
    assert replies[0].status in (200, 204), replies
    for caller in team:
        reply = caller.get("k")
        assert reply.status == 404 if method != "PUT" else bytes(reply.body) == b"new", reply


def test_a_form_upload_is_where_its_key_is_whatever_else_it_changes(tmp_path, files, start, engine):
    """A form upload invalidates every copy that it replaces: in all realms, and under the path that
    the key is."""
    for name, text in zip(("id", "secret"), next(iter(KEYS.items()))):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    extra = {
        "TEAM": {
            "origin_access_key_file": str(tmp_path / "id"),
            "origin_secret_key_file": str(tmp_path / "secret"),
        }
    }
    files.added_headers.append(("Location", "http://origin/elsewhere"))
    guarded = start(files, engine=engine, settings=verify(keys_file(tmp_path, ALLOW, extra=extra)))
    open_one = start(files, engine=engine)
    root = Caller(guarded, "ROOT")
    with open_one.client() as client:
        for ask, host in ((root.ask, root.http.host), (client.request, client.host)):
            for key in ("mine/k", "mine//k"):
                reply = ask("POST", "/bkt", FORM, form(key))
                assert (
                    reply.status == 204 and reply.header("location") == f"http://{host}/bkt/{key}"
                ), reply

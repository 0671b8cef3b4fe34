# SPDX-License-Identifier: Apache-2.0
"""The dir: origin serves a folder tree as buckets, and nothing outside it. Files may change while
they are read."""

import os
import threading
import time

import numpy as np
import pytest
from client import Closed, Truncated, quote
from dataset import age

MIB = 1 << 20


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "tree"
    (folder / "bkt" / "deep" / "er").mkdir(parents=True)
    (folder / "two").mkdir()
    return folder


def write(root, name, data, old=True):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    if old:
        os.utime(path, (time.time() - 3600,) * 2)
    return path


# A file that changed less than 2 s ago is streamed, not stored. Its ctime cannot be set back, but a
# server whose clock is ahead finds it old. A ttl of 1s is over by then as well.
SETTLED_S = 3


def serve(start, root, engine="auto", ahead_s=None, **settings):
    return start(f"dir:{root}", engine=engine, settings=settings, ahead_s=ahead_s)


@pytest.mark.tsan
def test_files_are_objects(start, root, engine):
    data = {
        f"deep/{i}": os.urandom(size)
        for i, size in enumerate((0, 1, 1000, 65536, MIB, MIB + 1, 5 * MIB + 3))
    }
    for name, content in data.items():
        write(root / "bkt", name, content)
    server = serve(start, root, engine, ahead_s=SETTLED_S)
    with server.client() as client:
        for turn in range(2):
            for name, content in data.items():
                reply = client.get(name)
                assert reply.status == 200 and bytes(reply.body) == content, (name, reply)
                etag = reply.etag.strip('"')
                assert len(etag) == 34 and etag.endswith("-1"), etag
                assert client.head(name).etag == reply.etag
                if len(content) > 10:
                    reply = client.get(name, 3, 8)
                    assert reply.status == 206 and bytes(reply.body) == content[3:9]
                    assert client.get(name, headers=[("If-None-Match", reply.etag)]).status == 304
            server.settle()
        received = server.metric("forebay_origin_received_bytes_total")
        assert received == sum(map(len, data.values())), received
        assert client.get("nothing").status == 404
        assert client.get("deep").status == 404
        assert client.get("deep/").status == 404
        assert client.get("deep/0/x").status == 404
        reply = client.get("a", bucket="none")
        assert (reply.status, reply.code) == (404, "NoSuchBucket")
        reply = client.request("GET", "/")
        assert b"<Name>bkt</Name>" in bytes(reply.body) and b"<Name>two</Name>" in bytes(reply.body)


def test_odd_names(start, root):
    names = [
        "a b",
        "a+b",
        "a%b",
        "a%2Fb",
        "grüße",
        "写真",
        "a?b",
        "a#b",
        "a&b;c",
        "-",
        "x" * 255,
        "...",
        "a\\b",
        'a"b',
        "a'b",
        "a\tb",
    ]
    for name in names:
        write(root / "bkt", "odd/" + name, name.encode())
    server = serve(start, root)
    with server.client() as client:
        for name in names:
            reply = client.get("odd/" + name)
            assert reply.status == 200 and bytes(reply.body) == name.encode(), (name, reply)


def test_nothing_outside_the_tree(start, root, tmp_path):
    """Symbolic links and dot segments do not lead out of the tree. Special files are not
    objects."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "file").write_bytes(b"canary-outside")
    write(root / "bkt", "inside", b"inside")
    (root / "bkt" / "link").symlink_to(secret / "file")
    (root / "bkt" / "relative").symlink_to("../../secret/file")
    (root / "bkt" / "folder").symlink_to(secret)
    (root / "bkt" / "passwd").symlink_to("/etc/passwd")
    (root / "bkt" / "root").symlink_to("/")
    (root / "bkt" / "proc").symlink_to("/proc/self/environ")
    (root / "bkt" / "dangling").symlink_to("nowhere")
    (root / "bkt" / "loop").symlink_to("loop")
    (root / "outbucket").symlink_to(secret)
    (root / "bkt" / "within").symlink_to("inside")
    os.mkfifo(root / "bkt" / "fifo")
    server = serve(start, root)
    tries = [
        "link",
        "relative",
        "folder/file",
        "passwd",
        "root/etc/passwd",
        "proc",
        "dangling",
        "loop",
        "fifo",
        "../../secret/file",
        "../../../etc/passwd",
        "./inside",
        "deep/../inside",
        "..",
        ".",
        "/etc/passwd",
        "//etc/passwd",
        "folder/",
        "\0",
        "inside\0.jpg",
    ]
    with server.client(timeout=20) as client:
        for key in tries:
            for method in ("GET", "HEAD"):
                reply = client.get(key, method=method)
                assert reply.status in (400, 403, 404), (key, reply)
                assert b"canary-outside" not in bytes(reply.body)
                assert b"root:" not in bytes(reply.body)
        for target in (
            "/bkt/%2e%2e/%2e%2e/secret/file",
            "/bkt/..%2f..%2fsecret%2ffile",
            "/../secret/file",
            "/%2e%2e/secret/file",
            "/outbucket/file",
            "/bkt/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
            "/bkt/%c0%ae%c0%ae/secret/file",
        ):
            reply = client.request("GET", target)
            assert reply.status in (400, 403, 404), (target, reply)
        assert bytes(client.get("inside").body) == b"inside"
        within = client.get("within")
        assert within.status == 404 or bytes(within.body) == b"inside"
        for query in (
            "list-type=2",
            "list-type=2&prefix=../",
            "list-type=2&prefix=folder/",
            "list-type=2&prefix=root/etc/",
            "list-type=2&prefix=/etc",
        ):
            reply = client.list(query)
            assert b"passwd</Key>" not in bytes(reply.body).replace(b"<Key>passwd</Key>", b"")
            assert b"<Key>folder/file" not in bytes(reply.body)


@pytest.mark.tsan
def test_a_file_that_changes_while_it_is_read(start, root, engine):
    """A file is rewritten, replaced, extended or truncated while it is read. A complete reply has
    one of its contents, never a mix.

    There is one exception. While a file is overwritten in place, read() itself can return a mix of
    both contents, and no time stamp shows it. Forebay may stream that, and never keeps it.
    """
    size = 6 * MIB

    def content(n):
        return (b"%08d" % n) * (size // 8)

    path = write(root / "bkt", "f", content(0))
    server = serve(start, root, engine, ahead_s=0, **{"cache.ttl": "1s"})
    stop = threading.Event()

    def change():
        n = 0
        while not stop.is_set():
            n += 1
            data = content(n)
            if n % 3 == 0:  # in place
                with open(path, "r+b", buffering=0) as file:
                    file.write(data)
            elif n % 3 == 1:  # replaced
                temporary = path.with_suffix(".new")
                temporary.write_bytes(data)
                temporary.rename(path)
            else:  # truncated and written again
                path.write_bytes(data)
            stop.wait(0.01)

    changer = threading.Thread(target=change)
    changer.start()
    try:
        with server.client() as client:
            for _ in range(60):
                try:
                    reply = client.get("f")
                except (Truncated, Closed):  # Closed: cut before its head was sent
                    continue
                if reply.status != 200:
                    assert reply.status in (404, 412, 503), reply
                    continue
                body = bytes(reply.body)
                if len(body) != size:
                    continue  # seen between truncate and write
                seen = sorted(int(n) for n in set(np.frombuffer(body, "S8")))
                if len(seen) > 1:
                    assert seen == [seen[1] - 1, seen[1]] and seen[1] % 3 == 0, f"a mix: {seen}"
    finally:
        stop.set()
        changer.join()
    with server.client() as client:
        server.settle()
        server.advance(SETTLED_S)
        data = path.read_bytes()
        for _ in range(2):
            is_last = bytes(client.get("f").body) == data
            assert is_last, "a mix was kept"
            server.settle()


def test_changes_are_seen_after_the_ttl(start, root):
    path = write(root / "bkt", "f", b"one")
    server = serve(start, root, ahead_s=SETTLED_S, **{"cache.ttl": "1s"})
    with server.client() as client:
        first = client.get("f")
        assert bytes(first.body) == b"one"
        server.settle()
        path.write_bytes(b"two two")
        server.advance(SETTLED_S)
        second = client.get("f")
        assert bytes(second.body) == b"two two" and second.etag != first.etag
        server.settle()
        path.unlink()
        server.advance(SETTLED_S)
        assert client.get("f").status == 404


def test_immutable_needs_the_directory_no_more(start, root, engine):
    """With `immutable`, the whole tree can be removed after the first read. Every object stays a
    hit."""
    data = {f"d{i % 3}/f{i}": os.urandom(1000 + i * 5000) for i in range(40)}
    for name, content in data.items():
        write(root / "bkt", name, content)
    server = start(
        f"dir:{root}",
        engine=engine,
        ahead_s=SETTLED_S,
        file={"rules": [{"match": "bkt/**", "freshness": "immutable"}]},
    )
    with server.client() as client:
        for name, content in data.items():
            assert bytes(client.get(name).body) == content
        server.settle()
        (root / "bkt").rename(root / "gone")
        for name, content in data.items():
            reply = client.get(name)
            assert reply.status == 200 and bytes(reply.body) == content, (name, reply)


def test_refusals_of_a_directory_are_in_the_access_log(start, root):
    """If a directory refuses a read, the access log has the error code, as with an S3 origin."""
    server = start(f"dir:{root}")
    with server.client() as client:
        assert client.request("PUT", "/bkt/new", body=b"x").status == 501
        assert client.request("GET", "/nobucket?list-type=2").status == 404
    (put,) = server.access_log(wait_for=lambda e: e["op"] == "PutObject")
    assert put["status"] == 501 and put["error"] == "NotImplemented", put
    (listed,) = server.access_log(wait_for=lambda e: e["op"] == "ListObjectsV2")
    assert listed["error"] == "NoSuchBucket", listed


def test_top_level_files_are_reported(start, root):
    (root / "stray.txt").write_text("x")
    server = serve(start, root)
    server.wait_stderr("stray.txt")


def test_buckets_of_the_file(start, tmp_path, origin):
    """`buckets` may map one bucket to a folder and another to S3 under another name."""
    folder = tmp_path / "elsewhere"
    write(folder, "x/y", b"from the folder")
    origin.put("k", 3000, bucket="upstream")
    server = start(
        origin,
        file={
            "buckets": [
                {"name": "local", "origin": f"dir:{folder}"},
                {"name": "renamed", "origin": "s3://upstream"},
            ]
        },
    )
    with server.client() as client:
        assert bytes(client.get("x/y", bucket="local").body) == b"from the folder"
        reply = client.get("k", bucket="renamed")
        assert bytes(reply.body) == origin.bytes_of("k", bucket="upstream")
        origin.put("k", 10)
        assert bytes(client.get("k").body) == origin.bytes_of("k")


def test_overrides_are_judged_alike_with_the_cache_and_without(start, root):
    """The response-* overrides are allowed for signed requests only. Cached and uncached objects
    give the same errors, and a value that no header can hold replaces nothing."""
    server = start(f"dir:{root}", file={"rules": [{"match": "bkt/past/**", "cache": False}]})
    for name in ("cached", "past/it"):
        write(root / "bkt", name, b"0123456789")
    signed = [("Authorization", "AWS4-HMAC-SHA256 of somebody")]
    replies = {}
    with server.client() as client:
        for name in ("cached", "past/it"):
            plain = client.get(name)
            assert plain.status == 200
            query = "response-content-type=a%2Fb&response-cache-control=c&response-expires=e"
            reply = client.get(name, query=query, headers=signed)
            said = [reply.all(h) for h in ("content-type", "cache-control", "expires")]
            assert reply.status == 200 and said == [["a/b"], ["c"], ["e"]], reply
            reply = client.get(name, 2, 4, query="response-content-type=a%2Fb", headers=signed)
            assert reply.status == 206 and reply.all("content-type") == ["a/b"], reply
            unclean = client.get(name, query="response-content-type=a%0D%0Ax:y", headers=signed)
            assert unclean.status == 200 and unclean.header("x") is None
            assert unclean.all("content-type") == plain.all("content-type") != [], unclean
            refused = client.get(name, query="response-content-type=a%2Fb")
            replies[name] = (refused.status, refused.code, refused.element("Message"))
    assert replies["cached"] == replies["past/it"]
    assert replies["cached"][:2] == (400, "InvalidRequest") and "anonymous" in replies["cached"][2]


def test_unreadable_files(start, root):
    if os.geteuid() == 0:
        from conftest import not_run

        not_run("root may read everything")
    path = write(root / "bkt", "f", b"x")
    path.chmod(0)
    server = serve(start, root)
    with server.client() as client:
        assert client.get("f").status == 403


def test_many_files_in_one_folder_listed_in_pages(start, root):
    for i in range(2500):
        (root / "bkt" / f"f{i:05d}").write_bytes(b"x")
    age(root)
    server = serve(start, root)
    import re

    seen, token = [], None
    with server.client() as client:
        for _ in range(10):
            query = "list-type=2" + (
                f"&continuation-token={quote(token).replace('/', '%2F')}" if token else ""
            )
            text = bytes(client.list(query).body).decode()
            page = re.findall("<Key>(.*?)</Key>", text)
            assert len(page) <= 1000
            seen += page
            match = re.search("<NextContinuationToken>(.*?)</NextContinuationToken>", text)
            token = match.group(1) if match else None
            if not token:
                break
    assert seen == sorted(f"f{i:05d}" for i in range(2500))


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_nobody_gets_older_bytes_after_a_read_past_the_cache(start, root, engine, method):
    """After a read past the cache, no read returns older bytes, or a file that is deleted."""
    server = serve(
        start, root, engine, SETTLED_S, **{"cache.client_directives": "all", "cache.ttl": "1h"}
    )
    past = [("Cache-Control", "no-store")]
    path = write(root / "bkt", "a", b"old" * 1000)
    with server.client() as client:

        def content():
            return bytes(client.get("a").body)

        assert content() == b"old" * 1000
        server.settle()
        path.write_bytes(b"new" * 1001)
        assert content() == b"old" * 1000
        assert client.get("a", headers=past, method=method).header("content-length") == "3003"
        assert content() == b"new" * 1001
        server.settle()
        path.unlink()
        assert content() == b"new" * 1001
        assert client.get("a", headers=past, method=method).status == 404
        assert client.get("a").status == client.head("a").status == 404


def test_conditions_and_suffixes_of_a_file_that_is_not_cached(start, root, engine):
    """Conditions and suffix ranges of an uncached file are judged with its first read."""
    data = os.urandom(3 * MIB + 5)
    server = serve(start, root, engine, ahead_s=SETTLED_S)
    before, after = "Mon, 01 Jan 2001 00:00:00 GMT", "Tue, 01 Jan 2036 00:00:00 GMT"
    asks = [
        ("If-Match", None, 200),
        ("If-Match", '"x"', 412),
        ("If-None-Match", None, 304),
        ("If-None-Match", '"x"', 200),
        ("If-Modified-Since", before, 200),
        ("If-Modified-Since", after, 304),
        ("If-Unmodified-Since", before, 412),
        ("If-Unmodified-Since", after, 200),
    ]
    with server.client() as client:
        for i, (name, value, status) in enumerate(asks):
            write(root / "bkt", f"f{i}", data)
            reply = client.get(f"f{i}", headers=[(name, value or client.head(f"f{i}").etag)])
            assert reply.status == status, (name, value, reply)
            assert status != 200 or bytes(reply.body) == data
            assert status != 304 or reply.etag == client.head(f"f{i}").etag
        for suffix in (1, 5, 6, MIB, len(data), len(data) + 9):
            write(root / "bkt", f"s{suffix}", data)
            reply = client.get(f"s{suffix}", headers=[("Range", f"bytes=-{suffix}")])
            assert reply.status == 206 and bytes(reply.body) == data[-suffix:], (suffix, reply)

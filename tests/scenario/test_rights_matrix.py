# SPDX-License-Identifier: Apache-2.0
"""Every request is denied before it reaches the origin, or allowed by the policy, and then later
reads see its effect.

The cells combine operations, parameters, sources, bodies, ways to sign and principals, in verify
and in open mode. They go to an origin that carries out every action a request could mean
(generous.py). The model below comes from the policy and from S3's API reference, independently of
the server's tables. After each cell:
  - a denied request has reached no origin;
  - the next read returns the written bytes, although everything is cached and `immutable`;
  - no bytes that the principal may not read are in the reply, or where the principal may read them.

"""

import random
import urllib.parse

import pytest

from conftest import strict
from forebay import KEYS, scaled
from generous import Generous
from test_auth import Caller, SECRETS, keys_file, quote, verify

RWLD = ["read", "list", "write", "delete"]
ALLOW = {
    "ALICE": [("bkt", "mine/", RWLD)],
    "ANNA": [("bkt", "mine/", RWLD + ["any"])],
    "READER": [("bkt", "mine/", ["read", "list"])],
    "WRITER": [("bkt", "mine/", ["write", "delete"]), ("bkt", "theirs/", ["delete"])],
    "WIDE": [("bkt", "", RWLD + ["any"])],
    "ROOT": [("*", "", RWLD + ["any"])],
}
for name in ALLOW:
    SECRETS.setdefault(name, f"secret-canary-{name.lower()}-5d0e")
PLACES = [
    ("bkt", "mine/k"),
    ("bkt", "mine/own"),
    ("bkt", "mine/victim"),
    ("bkt", "theirs/key"),
    ("bkt", "theirs/victim"),
    ("secret", "key"),
]


def content_of(bucket, key):
    return f"<<{bucket}/{key}>>".encode() * 20


# S3's operations: name, method, level, parameters that must and that may be there, rights

LISTING = ["prefix", "delimiter", "max-keys", "encoding-type"]
S3 = [
    ("GetObject", "GET", "key", [], ["versionId", "partNumber"], {"read"}),
    ("GetObjectTagging", "GET", "key", ["tagging"], ["versionId"], {"read"}),
    ("GetObjectAcl", "GET", "key", ["acl"], ["versionId"], {"read"}),
    ("ListParts", "GET", "key", ["uploadId"], ["max-parts"], {"list"}),
    ("HeadObject", "HEAD", "key", [], ["versionId", "partNumber"], {"read"}),
    ("PutObject", "PUT", "key", [], [], {"write"}),
    ("UploadPart", "PUT", "key", ["uploadId", "partNumber"], [], {"write"}),
    ("PutObjectTagging", "PUT", "key", ["tagging"], ["versionId"], {"read", "write"}),
    ("PutObjectAcl", "PUT", "key", ["acl"], ["versionId"], {"read", "write"}),
    ("RenameObject", "PUT", "key", ["renameObject"], [], {"write"}),
    ("CreateMultipartUpload", "POST", "key", ["uploads"], [], {"write"}),
    ("SelectObjectContent", "POST", "key", ["select", "select-type"], [], {"read"}),
    ("CompleteMultipartUpload", "POST", "key", ["uploadId"], [], {"write"}),
    ("DeleteObject", "DELETE", "key", [], ["versionId"], {"delete"}),
    ("DeleteObjectTagging", "DELETE", "key", ["tagging"], ["versionId"], {"read", "write"}),
    ("AbortMultipartUpload", "DELETE", "key", ["uploadId"], [], {"write"}),
    ("ListObjects", "GET", "bucket", [], [*LISTING, "marker"], {"list"}),
    ("ListObjectsV2", "GET", "bucket", ["list-type"], [*LISTING, "start-after"], {"list"}),
    (
        "ListMultipartUploads",
        "GET",
        "bucket",
        ["uploads"],
        ["prefix", "delimiter", "encoding-type"],
        {"list"},
    ),
    ("GetBucketPolicy", "GET", "bucket", ["policy"], [], {"read", "list"}),
    ("GetBucketTagging", "GET", "bucket", ["tagging"], [], {"read", "list"}),
    ("GetBucketAcl", "GET", "bucket", ["acl"], [], {"read", "list"}),
    ("HeadBucket", "HEAD", "bucket", [], [], set()),
    ("CreateBucket", "PUT", "bucket", [], [], {"write"}),
    ("PutBucketPolicy", "PUT", "bucket", ["policy"], [], {"any"}),
    ("PutBucketTagging", "PUT", "bucket", ["tagging"], [], {"any"}),
    ("PutBucketAcl", "PUT", "bucket", ["acl"], [], {"any"}),
    ("DeleteBucketPolicy", "DELETE", "bucket", ["policy"], [], {"any"}),
    ("DeleteBucketTagging", "DELETE", "bucket", ["tagging"], [], {"any"}),
    ("DeleteBucket", "DELETE", "bucket", [], [], {"write", "delete"}),
    ("DeleteObjects", "POST", "bucket", ["delete"], [], {"delete"}),
    ("PostObject", "POST", "bucket", [], [], {"write"}),
]
READS = ("GET", "HEAD")
LIVE = "LIVE"  # an upload in progress
PREFIXED = ("ListObjects", "ListObjectsV2", "ListMultipartUploads")
UNPACK = "x-amz-meta-snowball-auto-extract"
# Headers in the query of a write, which describe the object that is written.
OF_THE_OBJECT = (
    "x-amz-acl",
    "x-amz-meta-a",
    "x-amz-storage-class",
    "x-amz-checksum-crc32",
    UNPACK,
    "x-amz-copy-source",
    "x-amz-rename-source",
)

CONDITIONS = ("x-amz-if-match-size", "x-amz-write-offset-bytes")

# --- what cells are made of -----------------------------------------------------------------------

KEY_METHODS = ["GET", "HEAD", "PUT", "PUT", "PUT", "POST", "DELETE", "PATCH"]
BUCKET_METHODS = ["GET", "HEAD", "PUT", "POST", "POST", "DELETE"]
KEY_PARAMS = [
    "",
    "",
    "",
    "tagging",
    "acl",
    "uploads",
    "uploadId=gone",
    "uploadId=LIVE&partNumber=1",
    "partNumber=1",
    "renameObject",
    "delete",
    "versionId=x",
    "select&select-type=2",
]
BUCKET_PARAMS = [
    "",
    "",
    "delete",
    "delete",
    "policy",
    "tagging",
    "acl",
    "uploads",
    "list-type=2",
    "list-type=2&prefix=mine%2F",
    "prefix=mine%2F",
]
MORE = [
    "z=1",
    "z",
    "x-id=PutObject",
    "x-id=DeleteObject",
    "x-id=PutObject&x-id=PutObject",
    "versionId=x",
    "uploadId=",
    "uploadId=&partNumber=1",
    "partNumber=0",
    "tagging&tagging",
    "delete",
    "%64elete",
    "prefix=&prefix=mine%2F",
    "renameObject",
    "x-amz-acl=private",
    "x-amz-meta-a=b",
    "x-amz-new=1",
    f"{UNPACK}=true",
    "policy",
    "x-Id=a",
    "x-amz-copy-source=bkt%2Fmine%2Fown",
    "X-Amz-Copy-Source=%2Fsecret%2Fkey",
    "x-amz-copy-source=bkt/theirs/key",
    "x-amz-rename-source=bkt%2Ftheirs%2Fkey",
]
COPIES = [
    "/bkt/mine/own",
    "bkt/mine%2Fown",
    "/secret/key",
    "secret%2Fkey",
    "bkt/theirs/key",
    "bkt/theirs/key?versionId=x",
]
UNREADABLE = ["bkt", "", "//secret/key", "/secret/%zz", "secret/key?versionId=a&b=c"]
ARN = "arn:aws:s3:us-east-1:123456789012:accesspoint/secret/object/key"
RENAMES = ["bkt/mine/own", "/bkt/theirs/key", "mine/own", "theirs/key", "secret/key"]
COPY, RENAME = "x-amz-copy-source", "x-amz-rename-source"
SOURCES = (
    [[]] * 24
    + [[(COPY, v)] for v in COPIES + UNREADABLE[:3] + [ARN]]
    + [[(RENAME, v)] for v in RENAMES]
    + [
        [(COPY, "bkt/mine/own"), (COPY, "/secret/key")],
        [(COPY, "/secret/key"), (COPY, "bkt/mine/own")],
        [(RENAME, "mine/own"), (RENAME, "theirs/key")],
        [(COPY, "bkt/mine/own"), (RENAME, "mine/own")],
        [(UNPACK, "true")],
        [("x-amz-new", "1")],
        [("x-amz-acl", "private")],
        [("X-Amz-Meta-A", "b")],
    ]
    + [[(n, "1")] for n in CONDITIONS]
)


def delete_xml(*keys):
    return (
        "<Delete>" + "".join(f"<Object><Key>{k}</Key></Object>" for k in keys) + "</Delete>"
    ).encode()


def form(key):
    fields = (
        f'--B\r\nContent-Disposition: form-data; name="key"\r\n\r\n{key}\r\n'
        '--B\r\nContent-Disposition: form-data; name="file"; '
        'filename="f"\r\n\r\n<<new>>\r\n--B--\r\n'
    )
    return fields.encode()


FORM = ("Content-Type", "multipart/form-data; boundary=B")
BODIES = {
    "": (b"", []),
    "data": (b"<<new>>", None),
    "mine": (delete_xml("mine/victim"), ["mine/victim"]),
    "theirs": (delete_xml("theirs/victim"), ["theirs/victim"]),
    "both": (delete_xml("mine/victim", "theirs/victim"), ["mine/victim", "theirs/victim"]),
    "odd": (
        b"<Delete><Object><Key>mine/victim</Key></Object><Object>"
        b"<Object><Key>theirs/victim</Key></Object>"
        b"</Object></Delete>",
        None,
    ),
    "form mine": (form("mine/k"), ["mine/k"]),
    "form theirs": (form("theirs/key"), ["theirs/key"]),
    "members": (b"mine/victim=<<new>>\ntheirs/victim=<<new>>", None),
}


def draw(rng):
    """Returns (method, bucket, key, query, headers, body's name, presigned?)."""
    of_key = rng.random() < 0.7
    method = rng.choice(KEY_METHODS if of_key else BUCKET_METHODS)
    pieces = [rng.choice(KEY_PARAMS if of_key else BUCKET_PARAMS)]
    if rng.random() < 0.6:
        pieces.append(rng.choice(MORE))
    if rng.random() < 0.15:
        pieces.append(rng.choice(MORE))
    rng.shuffle(pieces)
    query = "&".join(p for p in pieces if p)
    key = rng.choice(["mine/k", "mine/k", "theirs/key"]) if of_key else ""
    if method in READS:
        body = "data" if rng.random() < 0.05 else ""
    elif method == "POST":
        body = rng.choice(list(BODIES))
    else:
        body = rng.choice(["", "data", "data", "members"])
    headers = tuple(rng.choice(SOURCES)) + ((FORM,) if body.startswith("form") else ())
    return method, "bkt", key, query, headers, body, rng.random() < 0.2


# --- the model ------------------------------------------------------------------------------------


def may(who, bucket, key, rights):
    if who is None:
        return True
    have = set()
    for row_bucket, prefix, ops in ALLOW[who]:
        if row_bucket in ("*", bucket) and key.startswith(prefix):
            have |= set(ops)
    return rights <= have


def copy_reading(value):
    """Returns (bucket, key), or None if it cannot be read."""
    path, question, query = value.partition("?")
    if question and (not query.startswith("versionId=") or "&" in query):
        return None
    if "%zz" in path:
        return None
    text = urllib.parse.unquote(path)
    bucket, slash, key = (text[1:] if text.startswith("/") else text).partition("/")
    return (bucket, key) if bucket and key and ":" not in bucket else None


def rename_readings(bucket, value):
    text = urllib.parse.unquote(value).removeprefix("/")
    first, _, rest = text.partition("/")
    readings = [(bucket, text)]
    if rest:
        readings.append((first, rest))
    return readings


def operation(method, level, pairs, copies, headers):
    """The name of the one row that fits exactly, or None for an unknown request."""
    names = [n for n, _ in pairs]
    if len(set(names)) < len(names) or method == "PATCH":
        return None
    is_write = method not in READS
    rest = {n: v for n, v in pairs if n != "x-id" and not (is_write and n.lower() in OF_THE_OBJECT)}
    if rest.get("uploadId") == "" or (is_write and rest.get("partNumber", "1") == "0"):
        return None
    for name, row_method, row_level, must, may_be, _ in S3:
        if (row_method, row_level) == (method, level) and set(must) <= rest.keys() <= {
            *must,
            *may_be,
        }:
            break
    else:
        return None
    if name in ("PutObject", "CreateBucket") and any(
        n.lower() == UNPACK for n in [*names, *(n for n, _ in headers)]
    ):
        return None
    if (is_write and any(n == "x-amz-new" for n, _ in headers)) or (
        method == "POST" and (name == "PostObject") != (FORM in headers)
    ):
        return None
    called = (
        {"PutObject": "CopyObject", "UploadPart": "UploadPartCopy"}.get(name, name)
        if copies
        else name
    )
    return None if dict(pairs).get("x-id", called) != called else name


def allowed(who, cell):
    """Whether the policy allows the request. In open mode who is None."""
    method, bucket, key, query, headers, body, _ = cell
    pairs = [
        (urllib.parse.unquote(n), urllib.parse.unquote(v))
        for n, _, v in (p.partition("=") for p in query.split("&") if p)
    ]
    of = {
        source: [v for n, v in [*headers, *((n.lower(), v) for n, v in pairs)] if n == source]
        for source in (COPY, RENAME)
    }
    level, is_read = "key" if key else "bucket", method in READS
    name = operation(method, level, pairs, of[COPY], headers)
    # A source appears once, where S3 takes one, and can be read.
    takes_any = name is None and not is_read
    if method == "PATCH" or (is_read and body) or len(of[COPY]) > 1 or len(of[RENAME]) > 1:
        return False
    if (
        (of[COPY] and name not in ("PutObject", "UploadPart") and not takes_any)
        or (of[RENAME] and name != "RenameObject" and not takes_any)
        or (name == "RenameObject" and not of[RENAME])
    ):
        return False
    for value in of[COPY]:
        reading = copy_reading(value)
        if reading is None and not (who is None and value == ARN):
            return False
        if reading and not may(who, *reading, {"read"}):
            return False
    for value in of[RENAME]:
        if not all(
            may(who, *reading, {"read", "delete"}) for reading in rename_readings(bucket, value)
        ):
            return False
    # The effect of the request on its target. The outcome of a condition would show what the key
    # holds.
    tells = {"read"} if not is_read and any(n in CONDITIONS for n, _ in headers) else set()
    if name is None and is_read:
        rights = {"read"} if key else {"list"}
        names = {n for n, _ in pairs}
        for _, row_method, row_level, must, _, row_rights in S3:
            if (row_method, row_level) == (method, level) and set(must) <= names:
                rights |= row_rights
        return may(who, bucket, key, rights)
    if name is None:
        is_wide = (
            not key or method == "POST" or any(n.lower() == UNPACK for n, _ in [*headers, *pairs])
        )
        return may(who, bucket, "" if is_wide else key, {"any"} | tells)
    if name in ("GetObject", "HeadObject") and dict(pairs).get("partNumber") == "0":
        return False
    if name == "HeadBucket":
        return who is None or any(b in ("*", bucket) for b, _, _ in ALLOW[who])
    if name in ("DeleteObjects", "PostObject"):
        keys = BODIES[body][1] if body.startswith("form") == (name == "PostObject") else []
        rights = {"delete" if name == "DeleteObjects" else "write"} | tells
        return bool(keys) and all(may(who, bucket, k, rights) for k in keys)
    rights = next(row[5] for row in S3 if row[0] == name) | tells
    if name == "CreateBucket" and any(n.lower() == "x-amz-acl" for n, _ in [*headers, *pairs]):
        rights |= {"any"}
    return may(who, bucket, dict(pairs).get("prefix", "") if name in PREFIXED else key, rights)


# --- the walk -------------------------------------------------------------------------------------


class Walk:
    def __init__(self, server, origin, who):
        self.server, self.origin, self.who = server, origin, who
        self.client = server.client()
        self.root = None if who is None else Caller(server, "ROOT")
        self.caller = None if who is None else Caller(server, who)

    def ask_as_root(self, method, bucket, key, body=b""):
        target = f"/{bucket}/{quote(key)}"
        return (
            self.root.ask(method, target, [], body)
            if self.root
            else self.client.request(method, target, [], body)
        )

    def send(self, cell):
        method, bucket, key, query, headers, body, presigned = cell
        target = f"/{bucket}" + (f"/{key}" if key else "") + (f"?{query}" if query else "")
        data, headers = BODIES[body][0], list(headers)
        if method not in READS and not data:
            headers.append(("Content-Length", "0"))
        if self.who is None:
            return self.client.request(method, target, headers, data)
        if presigned:
            signed = [h for h in headers if h[0] != "Content-Length"]
            if len({n for n, _ in signed}) == len(signed):
                target = self.caller.signer.presign(method, target, self.client.host, signed)
                return self.client.request(method, target, headers, data)
        return self.caller.ask(method, target, headers, data)

    def judge_state(self, cell):
        """Checks that every client now reads the origin's bytes."""
        for bucket, key in PLACES:
            reply, want = self.ask_as_root("GET", bucket, key), self.origin.content(key, bucket)
            seen = bytes(reply.body) if reply.status == 200 else reply.status
            assert seen == (404 if want is None else want), (self.who, cell, bucket, key, reply)

    def judge_secrets(self, cell, reply):
        """Checks that no bytes forbidden to the principal are where the principal may read."""
        if self.who is None:
            return
        marks = [content_of(b, k)[:12] for b, k in PLACES if not may(self.who, b, k, {"read"})]
        seen = [bytes(reply.body)] + [
            self.origin.content(k, b) or b"" for b, k in PLACES if may(self.who, b, k, {"read"})
        ]
        if LIVE in self.origin.uploads:
            seen += list(self.origin.uploads[LIVE]["parts"].values())
        assert not any(mark in text for mark in marks for text in seen), (self.who, cell, reply)

    def restore(self):
        """Restores everything through the server, and caches it again."""
        with self.origin.lock:
            for bucket in ("bkt", "secret"):
                self.origin.make_bucket(bucket)
            self.origin.uploads = {
                LIVE: {"bucket": "bkt", "key": "mine/k", "parts": {}, "headers": {}}
            }
            self.origin.sub_resources.clear()
            extra = [
                (b, k)
                for b in self.origin.buckets
                for k in self.origin.buckets[b]
                if (b, k) not in PLACES
            ]
        for bucket, key in extra:
            assert self.ask_as_root("DELETE", bucket, key).status == 204
        for bucket, key in PLACES:
            if self.origin.content(key, bucket) != content_of(bucket, key):
                assert self.ask_as_root("PUT", bucket, key, content_of(bucket, key)).status == 200
                assert bytes(self.ask_as_root("GET", bucket, key).body) == content_of(bucket, key)

    def cell(self, cell):
        """Sends the request of one cell and judges it. Returns whether it was allowed."""
        mark = self.origin.mark()
        reply, expected = self.send(cell), allowed(self.who, cell)
        entries = self.origin.requests(since=mark)
        if not expected:
            assert not entries and reply.status in (400, 403, 405), (self.who, cell, reply, entries)
            assert b"<<" not in bytes(reply.body), (self.who, cell, reply)
            return False
        assert entries or reply.status in (200, 206, 304), (self.who, cell, reply)
        self.judge_secrets(cell, reply)
        if cell[0] not in READS:
            self.judge_state(cell)
            self.restore()
        return True


@pytest.fixture
def generous():
    with strict(Generous(credentials=KEYS)) as made:
        made.make_bucket("secret")
        for bucket, key in PLACES:
            made.store(key, content_of(bucket, key), bucket)
        yield made


@pytest.mark.parametrize("mode", ["verify", "open"])
def test_every_request_is_judged_by_what_it_could_do(
    tmp_path, generous, start, engine, mode, figure
):
    settings = verify(keys_file(tmp_path, ALLOW)) if mode == "verify" else {}
    server = start(
        generous,
        engine=engine,
        settings=settings,
        file={"rules": [{"match": "**", "freshness": "immutable"}]},
    )
    rng = random.Random(f"{mode} {engine}")
    walks = [Walk(server, generous, who) for who in (ALLOW if mode == "verify" else [None])]
    walks[0].restore()
    walks[0].judge_state("warm")
    server.settle()
    cells, count = scaled(24000 if mode == "verify" else 6000), {True: 0, False: 0}
    seen = set()
    while len(seen) < cells:
        walk, cell = rng.choice(walks), draw(rng)
        if (walk.who, cell) not in seen:
            seen.add((walk.who, cell))
            count[walk.cell(cell)] += 1
    figure(
        f"rights matrix, {mode}, {engine}: {cells} cells, "
        f"{count[True]} allowed and {count[False]} denied"
    )
    assert count[True] > cells // 8 and count[False] > cells // 8

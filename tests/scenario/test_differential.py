# SPDX-License-Identifier: Apache-2.0
"""Forebay answers as the real server behind it does: the same status, headers and body.

The tests generate thousands of requests (operations x headers x ranges x conditionals x odd keys).
A read goes to the same object directly and through Forebay, twice. A write goes directly to a key
of one bucket and through Forebay to the same key of its twin, and both must have the same result.
REASONS lists the intended differences, each of which is counted and printed. Any other difference
fails.
"""

import email.utils
import random
import re
import time
import urllib.parse

import pytest
from client import Client
from conftest import not_run
from dataset import Minio, SeaweedFS, VersityGW
from forebay import Forebay, scaled
from signer import STREAMING, STREAMING_TRAILER, UNSIGNED, UNSIGNED_TRAILER, Signer, crc32_of

REAL = {"SeaweedFS": SeaweedFS, "MinIO": Minio, "versitygw": VersityGW}
DIRECT, TWIN = "twin-d", "twin-f"
KEYS = [
    "plain.bin",
    "deep/er/and/deeper.bin",
    "with blank",
    "plus+sign",
    "100%",
    "a%2Fb",
    "grüße",
    "写真.png",
    "tilde~'()*!",
    "semi;colon=&x",
    "@:,$",
    "dots..",
    "UPPER/lower",
    "q?mark",
    "h#sh",
    "trailing.",
    "~",
    "-",
    "x" * 200,
    "[brackets]",
    "back\\slash",
    'quo"te',
    "<xml>&amp;",
    "a=b&c",
]
SIZES = [0, 1, 2, 31, 100, 4096, 65535, 65536, 65537, 200_000]

# Allowed differences and their reasons. Headers first, which are never compared by value.
HEADERS_IGNORED = {
    "date": "each reply has its own",
    "x-amz-request-id": "each server names its own requests",
    "x-amz-id-2": "each server names its own requests",
    "x-amzn-requestid": "each server names its own requests",
    "cache-status": "added by Forebay",
    "content-security-policy": "Forebay's own, whatever the origin says to browsers",
    "x-content-type-options": "Forebay's own, whatever the origin says to browsers",
    "age": "added by Forebay to what it answers from the cache",
    "connection": "each connection is its own",
    "keep-alive": "each connection is its own",
    "transfer-encoding": "framing of the reply, the body is compared decoded",
    "content-length": "framing of the reply, the body is compared decoded",
}
# Headers that a server adds and S3 does not define. The cache does not keep them.
OWN_PREFIXES = ("seaweed-", "x-minio-", "x-seaweedfs-")
REASONS = {
    "S3's own answer": "where this server answers otherwise than S3 does, the cache answers as S3",
    "own error text": "an answer from the cache carries S3's wording of the same error code",
    "aws-chunked": "this server gives the framing of an upload back as Content-Encoding",
    "vary": "this server's own word for browsers and compressing proxies, not kept in the cache",
    "304 or error header": "S3 sends ETag and Last-Modified with 304, "
    "Content-Range with 416, and none "
    "of the object's headers with an error; this server does otherwise",
    "checksums only on request": "S3 sends checksums when asked for, and of whole objects only",
    "tags": "this server tells each tag in a header of its own",
    "transport security": "a promise about the origin's https, not about our listener",
    "server's own": "what this server says about itself, or to browsers, is not kept in the cache",
}
OWN = {"x-ratelimit-limit", "x-ratelimit-remaining", "x-xss-protection"}
UNKEPT = {
    "accept-ranges",
    "etag",
    "last-modified",
    "content-range",
    "content-type",
    "x-amz-meta-name",
    "x-amz-meta-a",
    "cache-control",
    "expires",
    "content-language",
    "content-disposition",
    "content-encoding",
    "x-amz-storage-class",
}


def quote(key):
    return urllib.parse.quote(key.encode(), safe="/-_.~")


class Side:
    """One of the two ways, with a connection of its own."""

    def __init__(self, port, access):
        self.client = Client(port)
        self.signer = Signer(*access)

    def send(self, method, target, headers=(), body=b"", how="hash"):
        host = self.client.host
        headers = list(headers)
        if how == "query":
            signed = [(n, v) for n, v in headers if n.lower().startswith("x-amz-")]
            target = self.signer.presign(method, target, host, signed)
            if body or method in ("PUT", "POST"):
                headers.append(("Content-Length", str(len(body))))
            return self.client.request(method, target, headers, body)
        if how in (STREAMING, STREAMING_TRAILER, UNSIGNED_TRAILER):
            pieces = [body[i : i + 65536] for i in range(0, len(body), 65536)]
            trailer = None if how == STREAMING else ("x-amz-checksum-crc32", crc32_of(body))
            headers, texts = self.signer.chunked(
                method, target, host, headers, pieces, how, trailer
            )
            body = b"".join(texts)
        else:
            headers = self.signer.headers(
                method, target, host, headers, body, UNSIGNED if how == UNSIGNED else None
            )
        if body or method in ("PUT", "POST"):
            headers.append(("Content-Length", str(len(body))))
        return self.client.request(method, target, headers, body)


class Differ:
    def __init__(self, server, forebay):
        self.direct = Side(server.port, server.access)
        self.through = Side(forebay.port, server.access)
        self.name = server.name
        self.counts = {}
        self.wrong = {}  # kind -> stories
        self.requests = 0

    def note(self, reason):
        assert reason in REASONS, reason
        self.counts[reason] = self.counts.get(reason, 0) + 1

    def report(self, kind, want, got, story):
        def short(reply):
            return (
                f"{reply.status} {dict(reply.headers)} "
                f"{len(reply.body)} {bytes(reply.body[:160])!r}"
            )

        self.wrong.setdefault(kind, []).append(
            f"{story}\n      direct:  {short(want)}\n      forebay: {short(got)}"
        )

    def both(self, what, *arguments, **more):
        self.requests += 1
        want = self.direct.send(*arguments, **more)
        got = self.through.send(*arguments, **more)
        self.compare(what, want, got, arguments)
        return want, got

    def compare(self, what, want, got, request, twin=False):
        method, target = request[:2]
        asked = {n.lower(): v for n, v in (request[2] if len(request) > 2 else [])}
        if want.status != got.status:
            reason = self.status_reason(method, target, asked, got)
            if reason:
                self.note(reason)
            else:
                self.report(
                    f"status {want.status} {got.status}",
                    want,
                    got,
                    f"{what}: {method} {target} {asked}",
                )
            return
        if got.status >= 300:
            if got.status == 304 or method == "HEAD":
                pass
            elif want.code != got.code:
                self.report(
                    f"code {want.code} {got.code}", want, got, f"{what}: {method} {target} {asked}"
                )
                return
            elif self.text(want, twin) != self.text(got, twin):
                self.note("own error text")
        elif self.text(want, twin) != self.text(got, twin):
            self.report("body", want, got, f"{what}: {method} {target} {asked}")
            return
        self.compare_headers(want, got, f"{what}: {method} {target} {asked}", twin)

    def text(self, reply, twin):
        body = bytes(reply.body)
        if reply.status >= 300 or b"<?xml" in body[:64]:
            body = re.sub(rb"<(RequestId|HostId|Resource)>[^<]*</\1>", b"", body)
        if twin:
            body = body.replace(DIRECT.encode(), TWIN.encode())
            body = re.sub(rb"<(LastModified|UploadId|Initiated|Location)>[^<]*</\1>", b"", body)
        return body

    def compare_headers(self, want, got, story, twin):
        def table(reply):
            out = {}
            for name, value in reply.headers:
                if name not in HEADERS_IGNORED and not name.startswith(OWN_PREFIXES):
                    out.setdefault(name, []).append(value)
            return out

        a, b = table(want), table(got)
        if twin:
            for side in (a, b):
                side.pop("last-modified", None)
                side.pop("location", None)
                side.pop("x-amz-version-id", None)
        for name in sorted(a.keys() | b.keys()):
            if a.get(name) == b.get(name):
                continue
            if name in a and name in b and a[name] == b[name] * len(a[name]):
                continue  # the server repeats itself
            if (want.status >= 400 or want.status == 304) and name in UNKEPT:
                self.note("304 or error header")
            elif name == "content-encoding" and plain(a.get(name)) == plain(b.get(name)):
                self.note("aws-chunked")
            elif name == "vary" and name not in b:
                self.note("vary")
            elif name == "strict-transport-security" and name not in b:
                self.note("transport security")
            elif (name in OWN and (name not in b or "ratelimit" in name)) or (
                name == "server" and name not in a
            ):
                self.note("server's own")
            elif name.startswith("x-amz-checksum-") and name not in b:
                self.note("checksums only on request")
            elif name.startswith("x-amz-tagging-") and name != "x-amz-tagging-count":
                self.note("tags")
            else:
                self.report("header " + name, want, got, f"{story}: {a.get(name)} {b.get(name)}")

    def status_reason(self, method, target, asked, got):
        """If the status differs from the server's, it must be the one that S3 gives for this
        object."""
        if (
            "?" in target
            and "x-id" not in target
            and "X-Amz-" not in target
            and "response-" not in target
        ):
            return None
        facts = self.direct.send("HEAD", target.partition("?")[0])
        if facts.status != 200:
            return None
        return (
            "S3's own answer"
            if got.status
            == s3_status(
                asked,
                facts.etag,
                facts.header("last-modified"),
                int(facts.header("content-length")),
            )
            else None
        )


def plain(values):
    """Removes the framing of uploads from the content codings."""
    return [
        v.strip() for value in values or [] for v in value.split(",") if v.strip() != "aws-chunked"
    ]


def s3_status(asked, etag, modified, size):
    """The status that S3 gives for a read with these headers."""

    def names_it(value):
        return value.strip() == "*" or etag.strip('"') in [
            v.strip().strip('"') for v in value.split(",")
        ]

    def seconds(text):
        return email.utils.parsedate_to_datetime(text).timestamp()

    if "if-match" in asked:
        if not names_it(asked["if-match"]):
            return 412
    elif "if-unmodified-since" in asked:
        if seconds(modified) > seconds(asked["if-unmodified-since"]):
            return 412
    if "if-none-match" in asked:
        if names_it(asked["if-none-match"]):
            return 304
    elif "if-modified-since" in asked and seconds(modified) <= seconds(asked["if-modified-since"]):
        return 304
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", asked.get("range", ""))
    if not match or match.groups() == ("", ""):
        return 200
    first, last = match.groups()
    if first == "":
        return 416 if int(last) == 0 else 206 if size else 200
    if last and int(last) < int(first):
        return 200
    return 206 if int(first) < size else 416


@pytest.fixture(params=REAL)
def differ(request, tmp_path):
    kind = REAL[request.param]
    if not kind.find():
        not_run(f"{request.param} is not installed")
    with kind(tmp_path / "server") as server:
        direct = Side(server.port, server.access)
        for bucket in (DIRECT, TWIN):
            assert direct.send("PUT", f"/{bucket}").status == 200
        forebay = Forebay(
            tmp_path / "forebay",
            server.endpoint,
            settings={"cache.ttl": "1h", "cache.block_size": "64KiB"},
            env={"AWS_ACCESS_KEY_ID": server.access[0], "AWS_SECRET_ACCESS_KEY": server.access[1]},
        )
        forebay.start()
        try:
            yield Differ(server, forebay)
            assert forebay.alive and not forebay.complaints(), forebay.output()
        finally:
            forebay.stop(code=None)


def body_of(rng, size):
    return rng.randbytes(size)


def random_range(rng, size):
    return rng.choice(
        [
            f"bytes={rng.randrange(size + 1)}-",
            f"bytes=-{rng.randrange(size + 3)}",
            f"bytes={rng.randrange(size + 2)}-{rng.randrange(size + 2)}",
            "bytes=0-0",
            "bytes=0-",
            f"bytes={size}-",
            f"bytes={size}-{size + 9}",
            f"bytes=0-{size + 1000}",
            "bytes=-0",
            f"bytes=00-{size // 2:05d}",
            "bytes=abc",
            "bytes=5-2",
            "bytes=0-0,2-3",
            "bytes= -1",
            "bytes=,",
            "foo=0-1",
            "bytes=--1",
            "bytes=1",
            "bytes=0-18446744073709551615",
            "bytes=18446744073709551616-",
            "bytes=0-99999999999999999999999",
        ]
    )


def random_conditionals(rng, etag, modified):
    other = '"00000000000000000000000000000000"'
    before, after = "Mon, 01 Jan 2018 00:00:00 GMT", "Fri, 01 Jan 2038 00:00:00 GMT"
    rows = [
        ("If-Match", etag),
        ("If-Match", other),
        ("If-Match", "*"),
        ("If-Match", etag.strip('"')),
        ("If-None-Match", etag),
        ("If-None-Match", other),
        ("If-None-Match", "*"),
        ("If-Modified-Since", before),
        ("If-Modified-Since", modified),
        ("If-Unmodified-Since", before),
        ("If-Unmodified-Since", after),
        ("If-Unmodified-Since", modified),
    ]
    picked = {}
    for _ in range(rng.choice([0, 0, 1, 1, 1, 2])):
        name, value = rng.choice(rows)
        picked[name] = value
    return list(picked.items())


def make_headers(rng):
    headers = []
    if rng.random() < 0.6:
        headers.append(
            (
                "Content-Type",
                rng.choice(["text/plain; charset=utf-8", "image/jpeg", "application/x-directory"]),
            )
        )
    if rng.random() < 0.4:
        headers.append(
            (
                "x-amz-meta-name",
                rng.choice(["value", "two  blanks", "caf\u00e9".encode().decode("latin-1"), "1"]),
            )
        )
    for name, values in (
        ("Cache-Control", ["no-cache", "max-age=60"]),
        ("Content-Disposition", ['attachment; filename="x y"']),
        ("Content-Language", ["de"]),
        ("Content-Encoding", ["gzip", "br"]),
        ("Expires", ["Fri, 01 Jan 2038 00:00:00 GMT"]),
    ):
        if rng.random() < 0.15:
            headers.append((name, rng.choice(values)))
    return headers


def usable(differ, key):
    """Whether the server can store the key. Some servers refuse some keys, and some cannot hold
    both k and k/x."""
    return not (differ.name == "versitygw" and ("\\" in key))


def write(differ, rng, method, key, query="", headers=(), body=b"", how="hash"):
    """Sends the same write to both twins, and compares the replies and the results."""
    suffix = "?" + query if query else ""
    differ.requests += 1
    paths = [f"/{bucket}/{quote(key)}{suffix}" for bucket in (DIRECT, TWIN)]
    both = [[(n, v.replace(DIRECT, bucket)) for n, v in headers] for bucket in (DIRECT, TWIN)]
    want = differ.direct.send(method, paths[0], both[0], body, how)
    got = differ.through.send(method, paths[1], both[1], body, how)
    differ.compare(f"write by {how}", want, got, (method, paths[1], both[1]), twin=True)
    same_after(differ, key)
    return want, got


def same_after(differ, key):
    """Checks that both twins hold the same, and that Forebay reports its own as the server does."""
    left = differ.direct.send("HEAD", f"/{DIRECT}/{quote(key)}")
    right = differ.direct.send("HEAD", f"/{TWIN}/{quote(key)}")
    differ.compare("left behind", left, right, ("HEAD", f"/{TWIN}/{quote(key)}"), twin=True)
    differ.both("after a write", "GET", f"/{TWIN}/{quote(key)}")


def fill(differ, rng):
    """Writes every key once, in all body forms."""
    forms = ["hash", UNSIGNED, "query", STREAMING, STREAMING_TRAILER, UNSIGNED_TRAILER]
    for i, key in enumerate(KEYS):
        write(
            differ,
            rng,
            "PUT",
            key,
            headers=make_headers(rng),
            body=body_of(rng, SIZES[i % len(SIZES)]),
            how=forms[i % len(forms)],
        )


def read_once(differ, rng, state):
    key = rng.choice(KEYS)
    etag, modified, size = state(key)
    method = rng.choice(["GET", "GET", "GET", "HEAD"])
    headers = random_conditionals(rng, etag, modified)
    if rng.random() < 0.5:
        headers.append(("Range", random_range(rng, size)))
    if rng.random() < 0.2:
        headers.append(("x-amz-checksum-mode", "ENABLED"))
    if rng.random() < 0.1:
        headers.append(("Accept-Encoding", rng.choice(["gzip", "identity", "*;q=0"])))
    query = ""
    if rng.random() < 0.05:
        query = "?x-id=GetObject"
    if rng.random() < 0.05 and not any(n == "Range" for n, _ in headers):
        query = "?response-content-type=text%2Fx&response-cache-control=no-store"
    how = "query" if rng.random() < 0.2 else "hash"
    target = f"/{TWIN}/{quote(key)}{query}"
    differ.both("read", method, target, headers, how=how)
    differ.both("read again", method, target, headers, how=how)


def read_elsewhere(differ, rng, state):
    """Reads everything that is not an object: listings, sub-resources, and keys that do not
    exist."""
    key = quote(rng.choice(KEYS))
    target = rng.choice(
        [
            f"/{TWIN}?list-type=2",
            f"/{TWIN}?list-type=2&max-keys=3",
            f"/{TWIN}?list-type=2&delimiter=%2F",
            f"/{TWIN}?list-type=2&prefix=deep%2F&encoding-type=url",
            f"/{TWIN}?prefix=p&max-keys=2",
            f"/{TWIN}/?list-type=2&start-after=m&fetch-owner=true",
            f"/{TWIN}?max-keys=0",
            f"/{TWIN}?delimiter=%2F&encoding-type=url&marker=a",
            f"/{TWIN}?list-type=2&max-keys=-1",
            f"/{TWIN}?list-type=2&max-keys=abc",
            f"/{TWIN}?location",
            f"/{TWIN}?versioning",
            f"/{TWIN}?acl",
            f"/{TWIN}?cors",
            f"/{TWIN}?lifecycle",
            f"/{TWIN}?policy",
            f"/{TWIN}?tagging",
            f"/{TWIN}?uploads",
            f"/{TWIN}?encryption",
            f"/{TWIN}?object-lock",
            f"/{TWIN}?website",
            f"/{TWIN}?unknown-thing",
            f"/{TWIN}/{key}?acl",
            f"/{TWIN}/{key}?tagging",
            f"/{TWIN}/{key}?retention",
            f"/{TWIN}/{key}?legal-hold",
            f"/{TWIN}/{key}?uploadId=none",
            f"/{TWIN}/{key}?versionId=null",
            f"/{TWIN}/nothing-here",
            f"/{TWIN}/nothing/here?tagging",
            f"/{TWIN}/nothing-here?x-id=GetObject",
            "/no-such-bucket-here/key",
            "/no-such-bucket-here",
            "/no-such-bucket-here?list-type=2",
        ]
    )
    method = "HEAD" if rng.random() < 0.15 and "?" not in target else "GET"
    differ.both("elsewhere", method, target, how="query" if rng.random() < 0.2 else "hash")


def copy_of(rng, key):
    source = f"/{DIRECT}/{quote(key)}"
    return source if rng.random() < 0.5 else source[1:]


def write_once(differ, rng, state):
    key = rng.choice(KEYS)
    what = rng.randrange(10)
    if what < 4:
        write(
            differ,
            rng,
            "PUT",
            key,
            headers=make_headers(rng),
            body=body_of(rng, rng.choice(SIZES)),
            how=rng.choice(
                ["hash", UNSIGNED, "query", STREAMING, STREAMING_TRAILER, UNSIGNED_TRAILER]
            ),
        )
    elif what == 4:
        write(differ, rng, "DELETE", key)
        write(differ, rng, "PUT", key, body=body_of(rng, rng.choice(SIZES)))
    elif what == 5:
        headers = [("x-amz-copy-source", copy_of(rng, rng.choice(KEYS)))]
        if rng.random() < 0.5:
            headers += [("x-amz-metadata-directive", "REPLACE"), ("Content-Type", "a/b")]
        write(differ, rng, "PUT", key, headers=headers)
    elif what == 6:
        write(
            differ,
            rng,
            "PUT",
            key,
            "tagging",
            body=b"<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>",
        )
        differ.both("tags", "GET", f"/{TWIN}/{quote(key)}?tagging")
        write(differ, rng, "DELETE", key, "tagging")
    elif what == 7:
        write(
            differ,
            rng,
            "PUT",
            key,
            headers=[
                rng.choice(
                    [
                        ("If-None-Match", "*"),
                        ("If-Match", '"0123"'),
                        ("Content-MD5", "AAAAAAAAAAAAAAAAAAAAAA=="),
                        ("x-amz-copy-source", "/none/none"),
                    ]
                )
            ],
            body=b"",
        )
    elif what == 8:
        multipart(differ, rng, key)
    else:
        batch_delete(differ, rng)


def multipart(differ, rng, key):
    ids = []
    parts = [body_of(rng, 5 << 20), body_of(rng, rng.choice([1, 70_000]))]
    differ.requests += 4
    for side, bucket in ((differ.direct, DIRECT), (differ.through, TWIN)):
        path = f"/{bucket}/{quote(key)}"
        made = side.send(
            "POST", path + "?uploads", [("Content-Type", "x/y"), ("x-amz-meta-a", "b")]
        )
        upload = made.element("UploadId")
        assert upload, made
        sent = [
            side.send(
                "PUT",
                f"{path}?partNumber={n}&uploadId={quote(upload)}",
                [],
                data,
                rng.choice(["hash"]),
            )
            for n, data in enumerate(parts, 1)
        ]
        listed = side.send("GET", f"{path}?uploadId={quote(upload)}")
        xml = "".join(
            f"<Part><PartNumber>{n}</PartNumber><ETag>{r.etag}</ETag></Part>"
            for n, r in enumerate(sent, 1)
        )
        done = side.send(
            "POST",
            f"{path}?uploadId={quote(upload)}",
            [],
            f"<CompleteMultipartUpload>{xml}</CompleteMultipartUpload>".encode(),
        )
        again = side.send("GET", f"{path}?uploadId={quote(upload)}")
        ids.append((path, [made, *sent, listed, done, again]))
    for want, got in zip(ids[0][1], ids[1][1]):
        differ.compare("multipart", want, got, ("POST", ids[1][0]), twin=True)
    same_after(differ, key)


def batch_delete(differ, rng):
    import base64
    import hashlib

    keys = rng.sample(KEYS, 3)
    xml = "".join(
        "<Object><Key>" + k.replace("&", "&amp;").replace("<", "&lt;") + "</Key></Object>"
        for k in keys
    )
    body = f"<Delete>{xml}</Delete>".encode()
    headers = [("Content-MD5", base64.b64encode(hashlib.md5(body).digest()).decode())]
    differ.requests += 1
    want = differ.direct.send("POST", f"/{DIRECT}?delete", headers, body)
    got = differ.through.send("POST", f"/{TWIN}?delete", headers, body)
    differ.compare("batch delete", want, got, ("POST", f"/{TWIN}?delete", headers), twin=True)
    for key in keys:
        same_after(differ, key)
        write(differ, rng, "PUT", key, body=body_of(rng, rng.choice(SIZES)))


def test_same_answers_as_the_server_itself(differ, figure):
    rng = random.Random(20240501)
    facts = {}

    def state(key):
        reply = differ.direct.send("HEAD", f"/{TWIN}/{quote(key)}")
        facts[key] = (
            reply.etag or '"none"',
            reply.header("last-modified") or "",
            int(reply.header("content-length") or 0),
        )
        return facts[key]

    KEYS[:] = [k for k in KEYS if usable(differ, k)]
    started = time.monotonic()
    fill(differ, rng)
    want = scaled(6000, 300)
    while differ.requests < want and len(differ.wrong) < 30:
        kind = rng.random()
        (read_once if kind < 0.6 else read_elsewhere if kind < 0.85 else write_once)(
            differ, rng, state
        )
    took = time.monotonic() - started
    figure(
        f"differential, {differ.name}: {differ.requests} requests in {took:.0f} s, meant "
        f"differences {differ.counts}"
    )
    story = "\n".join(
        f"  {kind} ({len(rows)} times)\n    " + "\n    ".join(rows[:2])
        for kind, rows in differ.wrong.items()
    )
    if differ.wrong:
        pytest.fail(f"{len(differ.wrong)} kinds of differences:\n{story}", pytrace=False)

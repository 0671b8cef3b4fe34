# SPDX-License-Identifier: Apache-2.0
"""No client reads, writes or learns anything that the keys file does not allow. The default is to
deny, and a hit needs the same rights as a miss.

Three tables are walked in full: rights (principals x operations x keys, warm and cold), forms of
signing (operations x header, query, form, both, none x payload kinds x faults), and tricks with
signed headers, tokens and chunks. A model in this file, independent of the server's, gives the
expected answer of each cell. Then tenants try at random to reach each other's warm objects.
"""

import base64
import calendar
import gzip
import hashlib
import hmac
import itertools
import json
import os
import random
import re
import signal
import threading
import time
import urllib.parse

import pytest

from client import Client, Connection, quote, request_bytes
from forebay import parallel, run_forebay, scaled
from signer import (
    EMPTY,
    STREAMING,
    STREAMING_TRAILER,
    UNSIGNED,
    UNSIGNED_TRAILER,
    Signer,
    crc32_of,
)
from waiting import wait_for

ALL = ["read", "list", "write", "delete", "any"]
ALLOW = {
    "ALICE": [("bkt", "alice/", ALL)],
    "BOB": [("bkt", "bob/", ALL)],
    "READER": [("bkt", "alice/", ["read"])],
    "LISTER": [("bkt", "alice/", ["list"])],
    "WRITER": [("bkt", "alice/", ["write"])],
    "DELETER": [("bkt", "alice/", ["delete"])],
    "EXACT": [("bkt", "alice/warm", ["read", "list"]), ("other", "bob/", ["read"])],
    "ROOT": [("*", "", ALL)],
    "OTHER": [("other", "", ALL)],
    "NOBODY": [],
}
SECRETS = {name: f"secret-canary-{name.lower()}-91c4" for name in ALLOW}
ECDSA = "STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"
PAYLOADS = [
    "signed",
    UNSIGNED,
    STREAMING,
    STREAMING_TRAILER,
    UNSIGNED_TRAILER,
    ECDSA,
    ECDSA + "-TRAILER",
]


def keys_file(folder, allow=None, name="keys.yaml", extra=None):
    path = folder / name
    rows = [
        {
            "id": who,
            "secret": SECRETS[who],
            **(extra or {}).get(who, {}),
            "allow": [{"bucket": b, "prefix": p, "ops": ops} for b, p, ops in rules],
        }
        for who, rules in (allow or ALLOW).items()
    ]
    path.write_text(json.dumps(rows))
    path.chmod(0o600)
    return path


def verify(path, **more):
    return {"auth.mode": "verify", "auth.keys_file": path, **more}


def signer_of(who):
    return Signer(who, SECRETS[who])


def body_of(bucket, key, size=3000):
    """Bytes that name their object in every line."""
    line = f"<<{bucket}/{key} belongs to its owner>>".encode("utf-8", "surrogateescape")
    return (line * (size // len(line) + 1))[:size]


MARK = b"belongs to its owner"


@pytest.fixture
def guarded(tmp_path, origin, start, engine):
    """A server that verifies signatures, over an origin with objects of two owners in two
    buckets."""
    origin.make_bucket("other")
    server = start(origin, engine=engine, settings=verify(keys_file(tmp_path)))
    server.origin = origin
    return server


def put(origin, bucket, key):
    body = body_of(bucket, key)
    origin.put(key, len(body), bucket, body=body)


class Caller:
    """Sends signed requests of one principal on one connection."""

    def __init__(self, server, who, **more):
        self.http = Client(server.port, **more)
        self.signer = signer_of(who)

    def ask(self, method, target, headers=(), body=b""):
        return self.http.request(
            method,
            target,
            self.signer.headers(method, target, self.http.host, headers, body),
            body,
        )

    def get(self, key, bucket="bkt"):
        return self.ask("GET", f"/{bucket}/{quote(key)}")


def warm(server, keys, bucket="bkt"):
    root = Caller(server, "ROOT")
    for key in keys:
        reply = root.get(key, bucket)
        assert reply.status == 200 and bytes(reply.body) == body_of(bucket, key), reply
    server.settle()
    for key in keys:
        assert "hit" in root.get(key, bucket).header("cache-status")
    root.http.close()


def judge_denied(reply, code, status=403):
    """Checks for a whole S3 error with that code, and for no byte of anyone's object."""
    assert reply.status == status, reply
    assert MARK not in bytes(reply.body) and reply.header("etag") is None, reply
    assert reply.header("content-range") is None and reply.header("last-modified") is None, reply
    assert reply.header("x-amz-request-id"), reply
    if reply.length:
        assert reply.header("content-type") == "application/xml", reply
        assert reply.code == code, reply


def lookups(server):
    return server.metric("forebay_index_lookup_duration_seconds_count")


# --- rights: principals x operations x keys -------------------------------------------------------

WARM = ["alice/warm", "bob/warm"]
COLD = [
    "alice/cold",
    "bob/cold",
    "alice",
    "alicf/x",
    "alice/../bob/warm",
    "alice//deep",
]
PLACES = [("bkt", key) for key in WARM + COLD] + [
    ("other", "alice/warm"),
    ("other", "bob/warm"),
]

# name: method, query, extra headers, body, rights needed on the key, changes something
KEY_OPS = {
    "GetObject": ("GET", "", [], b"", {"read"}),
    "GetObjectRange": ("GET", "", [("Range", "bytes=0-99")], b"", {"read"}),
    "HeadObject": ("HEAD", "", [], b"", {"read"}),
    "GetObjectPart": ("GET", "partNumber=1", [], b"", {"read"}),
    "GetObjectVersion": ("GET", "versionId=null", [], b"", {"read"}),
    "GetObjectIfMatch": ("GET", "", [("If-None-Match", '"x"')], b"", {"read"}),
    "GetObjectTagging": ("GET", "tagging", [], b"", {"read"}),
    "GetObjectAcl": ("GET", "acl", [], b"", {"read"}),
    "GetObjectOverride": ("GET", "response-content-type=a%2Fb", [], b"", {"read"}),
    "ListParts": ("GET", "uploadId=none", [], b"", {"list"}),
    "PutObject": ("PUT", "", [], b"new", {"write"}),
    "PutObjectTagging": ("PUT", "tagging", [], b"<Tagging/>", {"read", "write"}),
    "DeleteObjectTagging": ("DELETE", "tagging", [], b"", {"read", "write"}),
    "CreateMultipartUpload": ("POST", "uploads", [], b"", {"write"}),
    "UploadPart": ("PUT", "partNumber=1&uploadId=none", [], b"part", {"write"}),
    "CompleteMultipartUpload": ("POST", "uploadId=none", [], b"<C/>", {"write"}),
    "AbortMultipartUpload": ("DELETE", "uploadId=none", [], b"", {"write"}),
    "DeleteObject": ("DELETE", "", [], b"", {"delete"}),
    "CopyObject": (
        "PUT",
        "",
        [("x-amz-copy-source", "/bkt/alice/cold")],
        b"",
        {"write"},
    ),
    "CopyForeign": (
        "PUT",
        "",
        [("x-amz-copy-source", "/bkt/bob/warm")],
        b"",
        {"write"},
    ),
    "UnknownWrite": ("PUT", "frobnicate", [], b"x", {"any"}),
}
SOURCES = {"CopyObject": ("bkt", "alice/cold"), "CopyForeign": ("bkt", "bob/warm")}
BUCKET_OPS = {
    "HeadBucket": ("HEAD", "", b"", "any"),
    "GetBucketLocation": ("GET", "location", b"", "any"),
    "GetBucketVersioning": ("GET", "versioning", b"", {"read", "list"}),
    "PutBucketLifecycle": ("PUT", "lifecycle", b"<L/>", {"write", "delete"}),
    "DeleteBucketPolicy": ("DELETE", "policy", b"", {"any"}),
    "ListAll": ("GET", "list-type=2", b"", {"list"}),
    "ListVersions": ("GET", "versions", b"", {"list"}),
    "ListUploads": ("GET", "uploads", b"", {"list"}),
}
LISTS = ["", "alice/", "alice/w", "alice/warm", "alice", "bob/", "b", "alice/../bob/"]


def may(who, bucket, key, needed):
    """The model: each right needed is granted by some row whose bucket and prefix fit, also when
    the key is read as a path."""

    def granted(name):
        return {
            op
            for row_bucket, prefix, ops in ALLOW[who]
            if row_bucket in ("*", bucket) and name.startswith(prefix)
            for op in ops
        }

    return needed <= granted(key) and needed <= granted(key.replace("alice/../", ""))


def key_cells():
    for who in ALLOW:
        for name, (method, query, headers, body, needed) in KEY_OPS.items():
            for bucket, key in PLACES:
                allowed = may(who, bucket, key, needed)
                if name in SOURCES:
                    allowed = allowed and may(who, *SOURCES[name], {"read"})
                target = f"/{bucket}/{quote(key)}" + ("?" + query if query else "")
                yield who, name, method, target, headers, body, allowed, (bucket, key)


def bucket_cells():
    for who in ALLOW:
        for bucket in ("bkt", "other"):
            for name, (method, query, body, needed) in BUCKET_OPS.items():
                if needed == "any":
                    allowed = any(b in ("*", bucket) for b, _, _ in ALLOW[who])
                else:
                    allowed = may(who, bucket, "", needed)
                yield (
                    who,
                    name,
                    method,
                    f"/{bucket}" + ("?" + query if query else ""),
                    [],
                    body,
                    allowed,
                    (bucket, ""),
                )
            for prefix in LISTS:
                for query in (
                    f"list-type=2&prefix={urllib.parse.quote(prefix, safe='')}",
                    f"prefix={urllib.parse.quote(prefix, safe='')}&delimiter=%2F",
                ):
                    yield (
                        who,
                        "List",
                        "GET",
                        f"/{bucket}?{query}",
                        [],
                        b"",
                        may(who, bucket, prefix, {"list"}),
                        (bucket, prefix),
                    )
        yield (
            who,
            "ListBuckets",
            "GET",
            "/",
            [],
            b"",
            any("list" in ops for _, _, ops in ALLOW[who]),
            ("", ""),
        )
        for keys in (["alice/cold"], ["alice/cold", "bob/cold"], ["bob/cold"]):
            xml = (
                "<Delete>" + "".join(f"<Object><Key>{k}</Key></Object>" for k in keys) + "</Delete>"
            )
            yield (
                who,
                "DeleteObjects",
                "POST",
                "/bkt?delete",
                [],
                xml.encode(),
                all(may(who, "bkt", k, {"delete"}) for k in keys),
                ("bkt", None),
            )


def judge_allowed(reply, name, place, entries):
    """Checks that the origin was asked with its own key, or that a hit came with the right
    bytes."""
    if entries:
        assert not any("ALICE" in (e.header("authorization") or "") for e in entries)
    else:
        assert reply.status in (200, 206, 304), (name, place, reply)
    if (
        reply.status in (200, 206)
        and name.startswith("GetObject")
        and name not in ("GetObjectTagging", "GetObjectAcl")
    ):
        whole = body_of(*place)
        assert bytes(reply.body) == (
            whole[:100] if reply.status == 206 and len(reply.body) == 100 else whole
        ), (name, place)


def restore(server, origin, place):
    for bucket, key in (
        {place, ("bkt", "alice/cold"), ("bkt", "bob/cold")} if place[1] is None else {place}
    ):
        if key:
            put(origin, bucket, key)
            if (bucket, key) in (("bkt", "alice/warm"), ("bkt", "bob/warm")):
                warm(server, [key], bucket)


def test_rights_table(guarded, figure):
    origin = guarded.origin
    for bucket, key in PLACES:
        put(origin, bucket, key)
    warm(guarded, WARM)
    callers = {who: Caller(guarded, who) for who in ALLOW}
    count = {True: 0, False: 0}
    for who, name, method, target, headers, body, allowed, place in [
        *key_cells(),
        *bucket_cells(),
    ]:
        mark, before = (
            origin.mark(),
            lookups(guarded) if not allowed and count[False] % 16 == 0 else None,
        )
        reply = callers[who].ask(method, target, headers, body)
        cell = f"{who} {name} {target}"
        entries = origin.requests(since=mark)
        count[allowed] += 1
        if not allowed:
            try:
                judge_denied(reply, "AccessDenied")
            except AssertionError as error:
                raise AssertionError(f"{cell}: {error}") from None
            assert not entries, (cell, entries)
            assert before is None or lookups(guarded) == before, cell
            continue
        assert reply.status != 403, (cell, reply)
        judge_allowed(reply, name, (place[0], place[1] or ""), entries)
        if method not in ("GET", "HEAD"):
            if place == ("bkt", "") or place == ("other", "") or place[1] is None:
                for bucket in ("bkt", "other"):
                    origin.make_bucket(bucket)
            restore(guarded, origin, place)
    figure(f"rights: {count[True]} cells allowed, {count[False]} denied, as the table says")
    assert count[True] > 400 and count[False] > 1500, count


# --- forms of signing: operations x form x payload kind x fault -----------------------------------

FORMS = ["header", "query", "form", "both", "none"]
FAULTS = ["good", "signature", "date", "region", "unknown"]
SIGN_OPS = {
    "GetObject": ("GET", "/bkt/alice/warm", [], b""),
    "GetCold": ("GET", "/bkt/alice/cold", [], b""),
    "HeadObject": ("HEAD", "/bkt/alice/warm", [], b""),
    "ListObjectsV2": ("GET", "/bkt?list-type=2&prefix=alice%2F", [], b""),
    "PutObject": ("PUT", "/bkt/alice/new", [], b"hello"),
    "DeleteObject": ("DELETE", "/bkt/alice/old", [], b""),
    "DeleteObjects": (
        "POST",
        "/bkt?delete",
        [],
        b"<Delete><Object><Key>alice/old</Key></Object></Delete>",
    ),
    "CreateMultipartUpload": ("POST", "/bkt/alice/mp?uploads", [], b""),
    "UploadPart": ("PUT", "/bkt/alice/mp?partNumber=1&uploadId=UPLOAD", [], b"part"),
    "CopyObject": (
        "PUT",
        "/bkt/alice/copy",
        [("x-amz-copy-source", "/bkt/alice/warm")],
        b"",
    ),
}
STREAMED = {"PutObject", "UploadPart"}
CHUNKED = {STREAMING, STREAMING_TRAILER, UNSIGNED_TRAILER}


def break_hex(text):
    return text[:-1] + ("0" if text[-1] != "0" else "1")


def build(op, form, payload, fault, host, upload):
    """Returns (method, target, headers, body) of one cell."""
    method, target, headers, body = SIGN_OPS[op]
    target = target.replace("UPLOAD", upload)
    who = Signer(
        "NOSUCHKEY" if fault == "unknown" else "ALICE",
        SECRETS["ALICE"],
        region="eu-west-3" if fault == "region" else "us-east-1",
    )
    when = time.time() - (1200 if fault == "date" else 0)
    kind = hashlib.sha256(body).hexdigest() if payload == "signed" else payload
    trailer = (
        ("x-amz-checksum-crc32", crc32_of(body))
        if payload in (STREAMING_TRAILER, UNSIGNED_TRAILER)
        else None
    )
    headers = list(headers)
    if payload in CHUNKED and op in STREAMED:
        headers += [
            ("Content-Encoding", "aws-chunked"),
            ("x-amz-decoded-content-length", str(len(body))),
        ]
        if trailer:
            headers.append(("x-amz-trailer", trailer[0]))
    seed, moment = None, Signer.moment(when)
    if form == "none":
        headers.append(("x-amz-content-sha256", kind))
    elif form == "form":
        return form_request(who, op, kind, fault, host, when)
    if form in ("header", "both"):
        headers = who.headers(method, target, host, headers, body, payload=kind, when=when)
        seed = headers[-1][1].rpartition("Signature=")[2]
        if fault == "signature":
            headers[-1] = (headers[-1][0], break_hex(headers[-1][1]))
    if form in ("query", "both"):
        target, seed = presigned(
            who,
            method,
            target,
            host,
            headers if form == "query" else [],
            kind,
            when,
            600,
        )
        if form == "query" and kind != UNSIGNED:
            headers.append(("x-amz-content-sha256", kind))
        if fault == "signature":
            target = break_hex(target)
    if payload in CHUNKED and op in STREAMED:
        body = frame(who, moment, seed or "0" * 64, [body], payload, trailer)
    return method, target, headers, body


def presigned(who, method, target, host, headers, kind, when, expires):
    """Signs the query, with the payload's kind as a signed header unless it is the default one."""
    moment = Signer.moment(when)
    pairs = [("host", host)] + [(n.lower(), v) for n, v in headers]
    if kind != UNSIGNED:
        pairs.append(("x-amz-content-sha256", kind))
    pairs.sort()
    more = {
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{who.access}/{who.scope(moment[:8])}",
        "X-Amz-Date": moment,
        "X-Amz-Expires": str(expires),
        "X-Amz-SignedHeaders": ";".join(n for n, _ in pairs),
    }
    target += ("&" if "?" in target else "?") + urllib.parse.urlencode(
        more, quote_via=urllib.parse.quote, safe="-_.~"
    )
    signature = who.signature(moment, who.canonical(method, target, pairs, kind))
    return f"{target}&X-Amz-Signature={signature}", signature


def frame(who, moment, seed, chunks, payload, trailer=None):
    """Returns the body in aws-chunked form, with a chain that starts at SEED."""
    out, previous = b"", seed
    signed = payload != UNSIGNED_TRAILER
    for chunk in [*chunks, b""]:
        line = b"%x" % len(chunk)
        if signed:
            previous = who._chain(
                "AWS4-HMAC-SHA256-PAYLOAD",
                moment,
                previous,
                [EMPTY, hashlib.sha256(chunk).hexdigest()],
            )
            line += b";chunk-signature=" + previous.encode()
        out += line + b"\r\n" + (chunk + b"\r\n" if chunk else b"")
    if trailer:
        line = f"{trailer[0]}:{trailer[1]}".encode()
        out += line + b"\r\n"
        if signed:
            out += (
                b"x-amz-trailer-signature:"
                + who._chain(
                    "AWS4-HMAC-SHA256-TRAILER",
                    moment,
                    previous,
                    [hashlib.sha256(line + b"\n").hexdigest()],
                ).encode()
                + b"\r\n"
            )
    return out + b"\r\n"


def form_request(who, op, kind, fault, host, when, token=None, expires=600):
    """A browser form with a signed policy. OP only varies the key."""
    moment = Signer.moment(when)
    scope = who.scope(moment[:8])
    policy = json.dumps(
        {
            "expiration": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(when + expires)),
            "conditions": [{"bucket": "bkt"}, ["starts-with", "$key", "alice/"]],
        }
    )
    policy = base64.b64encode(policy.encode()).decode()
    signature = hmac.new(who.key(moment[:8]), policy.encode(), hashlib.sha256).hexdigest()
    fields = {
        "key": f"alice/form-{op}",
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{who.access}/{scope}",
        "X-Amz-Date": moment,
        "Policy": policy,
        "X-Amz-Signature": break_hex(signature) if fault == "signature" else signature,
    }
    if token:
        fields["X-Amz-Security-Token"] = token
    edge = "edge0815"
    body = "".join(
        f'--{edge}\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{v}\r\n'
        for n, v in fields.items()
    )
    body += (
        f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nform'
        f"\r\n--{edge}--\r\n"
    )
    headers = [("Content-Type", f"multipart/form-data; boundary={edge}")]
    if kind != UNSIGNED:
        headers.append(("x-amz-content-sha256", kind))
    return "POST", "/bkt", headers, body.encode()


def expected(op, form, payload, fault):
    """Returns (status, code) from the table. Status 200 stands for any success."""
    if form == "both":
        return 400, "InvalidArgument"
    if payload.startswith(ECDSA):
        return 501, "NotImplemented"
    if form in ("form", "none"):
        return 403, "AccessDenied"
    if fault == "unknown":
        return 403, "InvalidAccessKeyId"
    if fault == "date":
        return 403, "RequestTimeTooSkewed" if form == "header" else "AccessDenied"
    if fault == "signature":
        return 403, "SignatureDoesNotMatch"
    if payload in CHUNKED and op not in STREAMED:
        return 400, "InvalidArgument"
    return 200, None


def test_forms_of_signing_table(guarded, figure):
    origin = guarded.origin
    for key in WARM + ["alice/cold", "alice/old"]:
        put(origin, "bkt", key)
    warm(guarded, WARM)
    reply = Caller(guarded, "ALICE").ask("POST", "/bkt/alice/mp?uploads")
    upload = reply.element("UploadId")
    client, wrong = Client(guarded.port), []
    cells = list(itertools.product(SIGN_OPS, FORMS, PAYLOADS, FAULTS))
    allowed = 0
    for op, form, payload, fault in cells:
        method, target, headers, body = build(op, form, payload, fault, client.host, upload)
        mark = origin.mark()
        reply = client.request(method, target, headers, body)
        status, code = expected(op, form, payload, fault)
        cell = (op, form, payload, fault)
        if status == 200:
            allowed += 1
            if not 200 <= reply.status < 300:
                wrong.append((cell, reply))
            continue
        if reply.status != status or (reply.length and reply.code != code):
            wrong.append((cell, reply))
            continue
        judge_denied(reply, code, status)
        assert not origin.requests(since=mark), cell
        if code == "SignatureDoesNotMatch" and method != "HEAD":
            assert reply.element("StringToSign") is not None, reply
            assert reply.element("CanonicalRequest").startswith(method), reply
    assert not wrong, "\n".join(f"{c} {r.status} {r.code}" for c, r in wrong)
    figure(f"forms of signing: {len(cells)} cells, {allowed} succeed, as the table says")
    assert len(cells) == 1750


# --- tricks: headers that are not what was signed, tokens, times, SigV2 ---------------------------


def resign(caller, method, target, headers, signed, host=None, host_signed=True):
    """Returns a request whose SignedHeaders are only SIGNED, whatever it sends."""
    who, host = caller.signer, host or caller.http.host
    moment = Signer.moment(None)
    headers = list(headers) + [("x-amz-date", moment), ("x-amz-content-sha256", EMPTY)]
    have = {}
    for name, value in ([("host", host)] if host_signed else []) + headers:
        have[name.lower()] = have[name.lower()] + "," + value if name.lower() in have else value
    pairs = sorted((n, have.get(n, "")) for n in signed)
    signature = who.signature(moment, who.canonical(method, target, pairs, EMPTY))
    return headers + [
        (
            "Authorization",
            f"AWS4-HMAC-SHA256 Credential={who.access}/"
            f"{who.scope(moment[:8])}, SignedHeaders={';'.join(n for n, _ in pairs)}, "
            f"Signature={signature}",
        )
    ]


BASE = ["host", "x-amz-content-sha256", "x-amz-date"]


def header_tricks(caller):
    """Returns [(description, method, target, headers, status, code)]. Status 200: it must pass."""
    target = "/bkt/alice/warm"
    for method in ("GET", "HEAD", "DELETE", "PUT"):
        at = target if method in ("GET", "HEAD") else "/bkt/alice/old"
        yield (
            "host not signed",
            method,
            at,
            resign(caller, method, at, [], BASE[1:], host_signed=False),
            403,
            "AccessDenied",
        )
        yield (
            "date not signed",
            method,
            at,
            resign(caller, method, at, [], BASE[:2]),
            403,
            "AccessDenied",
        )
        yield (
            "hash not signed",
            method,
            at,
            resign(caller, method, at, [], ["host", "x-amz-date"]),
            403,
            "AccessDenied",
        )
        for name in (
            "x-amz-security-token",
            "x-amz-acl",
            "x-amz-copy-source",
            "x-amz-meta-a",
            "x-amz-request-payer",
            "X-AMZ-Storage-Class",
        ):
            value = "/bkt/bob/warm" if name == "x-amz-copy-source" else "x"
            yield (
                f"{name} not signed",
                method,
                at,
                resign(caller, method, at, [(name, value)], BASE),
                403,
                "AccessDenied",
            )
        yield (
            "added after signing",
            method,
            at,
            resign(caller, method, at, [], BASE) + [("x-amz-meta-late", "1")],
            403,
            "AccessDenied",
        )
        yield (
            "signed one sent twice",
            method,
            at,
            resign(caller, method, at, [("x-amz-meta-a", "1")], BASE + ["x-amz-meta-a"])
            + [("x-amz-meta-a", "2")],
            403,
            "SignatureDoesNotMatch",
        )
        yield (
            "signed one changed",
            method,
            at,
            [
                (n, "2" if n == "x-amz-meta-a" else v)
                for n, v in resign(
                    caller, method, at, [("x-amz-meta-a", "1")], BASE + ["x-amz-meta-a"]
                )
            ],
            403,
            "SignatureDoesNotMatch",
        )
        yield (
            "signed one left out",
            method,
            at,
            [
                h
                for h in resign(
                    caller, method, at, [("x-amz-meta-a", "1")], BASE + ["x-amz-meta-a"]
                )
                if h[0] != "x-amz-meta-a"
            ],
            403,
            "SignatureDoesNotMatch",
        )
        yield (
            "host in the signature is another",
            method,
            at,
            resign(caller, method, at, [], BASE, host="elsewhere.example"),
            403,
            "SignatureDoesNotMatch",
        )
    yield "plain", "GET", target, resign(caller, "GET", target, [], BASE), 200, None
    yield (
        "unsigned range",
        "GET",
        target,
        resign(caller, "GET", target, [], BASE) + [("Range", "bytes=0-9")],
        200,
        None,
    )
    yield (
        "range signed and changed",
        "GET",
        target,
        [
            (n, "bytes=0-99" if n == "Range" else v)
            for n, v in resign(caller, "GET", target, [("Range", "bytes=0-9")], BASE + ["range"])
        ],
        403,
        "SignatureDoesNotMatch",
    )
    good = resign(caller, "GET", target, [], BASE)
    authorization = good[-1][1]
    bad = 400, "AuthorizationHeaderMalformed"
    for what, value in (
        ("no signature", authorization.rpartition(", ")[0]),
        ("two signatures", authorization + ", Signature=" + "0" * 64),
        (
            "upper hex",
            authorization[:-64] + authorization[-64:].upper()
            if authorization[-64:].upper() != authorization[-64:]
            else authorization[:-1],
        ),
        ("short signature", authorization[:-1]),
        ("long signature", authorization + "0"),
        ("other service", authorization.replace("/s3/", "/ec2/")),
        ("no terminator", authorization.replace("/aws4_request", "/aws3_request")),
        (
            "no scope",
            authorization.replace(caller.signer.scope(Signer.moment(None)[:8]), ""),
        ),
        ("no signed headers", authorization.replace(";".join(BASE), "")),
        (
            "other algorithm",
            authorization.replace("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1"),
        ),
        ("bearer", "Bearer " + "0" * 64),
        ("basic", "Basic QUxJQ0U6eA=="),
        ("empty", ""),
        ("algorithm alone", "AWS4-HMAC-SHA256"),
    ):
        yield what, "GET", target, good[:-1] + [("Authorization", value)], *bad
    yield ("two authorizations", "GET", target, good + [good[-1]], *bad)
    yield (
        "asymmetric",
        "GET",
        target,
        good[:-1] + [("Authorization", authorization.replace("AWS4-HMAC", "AWS4-ECDSA-P256"))],
        501,
        "NotImplemented",
    )
    yield (
        "scope of another day",
        "GET",
        target,
        good[:-1] + [("Authorization", re.sub(r"/\d{8}/", "/20200101/", authorization))],
        *bad,
    )
    yield (
        "no date at all",
        "GET",
        target,
        [h for h in good if h[0] != "x-amz-date"],
        403,
        "AccessDenied",
    )
    yield (
        "no hash at all",
        "GET",
        target,
        [h for h in good if h[0] != "x-amz-content-sha256"],
        400,
        "InvalidRequest",
    )
    yield (
        "hash that is none",
        "GET",
        target,
        [(n, "cow" if n == "x-amz-content-sha256" else v) for n, v in good],
        400,
        "InvalidArgument",
    )
    yield (
        "version 2 header",
        "GET",
        target,
        [("Authorization", "AWS ALICE:c2lnbmF0dXJl")],
        400,
        "InvalidRequest",
    )
    for query in (
        "AWSAccessKeyId=ALICE&Signature=c2ln&Expires=4000000000",
        "AWSAccessKeyId=ALICE",
    ):
        yield "version 2 link", "GET", f"{target}?{query}", [], 400, "InvalidRequest"


def test_tricks_with_signed_headers(guarded, figure):
    origin = guarded.origin
    for key in WARM + ["alice/old"]:
        put(origin, "bkt", key)
    warm(guarded, WARM)
    caller, count = Caller(guarded, "ALICE"), 0
    for what, method, target, headers, status, code in header_tricks(caller):
        mark = origin.mark()
        # One connection each, because some of these heads are refused as HTTP and end their
        # connection.
        with Connection(guarded.port) as connection:
            connection.send(request_bytes(method, target, caller.http.host, headers))
            reply = connection.read_reply(method)
        count += 1
        if status == 200:
            assert reply.status in (200, 206), (what, reply)
            continue
        assert reply.status == status, (what, method, reply)
        judge_denied(reply, code, status)
        assert not origin.requests(since=mark), what
        if what.startswith("version 2"):
            assert "signature_version=s3v4" in reply.element("Message"), reply
    figure(f"signed headers: {count} tricks")
    assert count >= 60, count


def test_refused_clients_are_counted_by_reason(start, tmp_path, origin):
    """Refusals for a clock, an unknown key, a wrong signature and a missing right have counters of
    their own. Status says so for ten minutes, without an alert. A client with a wrong clock gets
    both times."""
    server = start(origin, ahead_s=0, settings=verify(keys_file(tmp_path)))
    caller, at = Caller(server, "ALICE"), "/bkt/alice/warm"
    for _ in range(3):
        headers = caller.signer.headers("GET", at, caller.http.host, when=time.time() - 1230)
        reply = caller.http.request("GET", at, headers)
        judge_denied(reply, "RequestTimeTooSkewed")
    asked, said = (
        calendar.timegm(time.strptime(reply.element(name), form))
        for name, form in (
            ("RequestTime", "%Y%m%dT%H%M%SZ"),
            ("ServerTime", "%Y-%m-%dT%H:%M:%SZ"),
        )
    )
    assert said - asked > 1200 and reply.element("MaxAllowedSkewMilliseconds") == "900000", reply
    link = caller.signer.presign("GET", at, caller.http.host, when=time.time() + 1230)
    judge_denied(caller.http.request("GET", link), "AccessDenied")
    for signer in (Signer("STRANGER", "whatever"), Signer("ALICE", "whatever")):
        caller.signer = signer
        assert caller.get("alice/warm").status == 403
    judge_denied(Caller(server, "ALICE").get("bob/warm"), "AccessDenied")
    assert Client(server.port).get("alice/warm").status == 403
    counts = {"skew": 4, "unknown-key": 1, "signature": 1, "rights": 1, "auth": 1}
    for reason, count in counts.items():
        assert server.metric("forebay_http_refused_total", reason=reason) == count, reason
    row = server.condition_rows()["clients-refused"]
    assert row["severity"] == "info", row
    assert row["text"].endswith(
        ": 4 whose clock is off (the last one 20 min ahead), 1 with an unknown access key, "
        "1 with a wrong signature"
    ), row
    server.advance(601)
    server.wait_condition("clients-refused", holds=False)


BUCKETS_SEEN = {
    "ROOT": ["bkt", "other", "secret"],
    "EXACT": ["bkt", "other"],
    "ALICE": ["bkt"],
    "LISTER": ["bkt"],
    "OTHER": ["other"],
}


def names_of_buckets(reply):
    assert reply.status == 200, reply
    return re.findall("<Name>(.*?)</Name>", bytes(reply.body).decode())


@pytest.mark.parametrize("kind", ["s3", "dir"])
def test_a_list_of_buckets_names_those_in_which_the_key_has_a_right(
    start, tmp_path, origin, engine, kind
):
    for name in ("bkt", "other", "secret"):
        origin.make_bucket(name)
        (tmp_path / "tree" / name).mkdir(parents=True)
    server = start(
        origin if kind == "s3" else f"dir:{tmp_path / 'tree'}",
        engine=engine,
        settings=verify(keys_file(tmp_path)),
    )
    for who, seen in BUCKETS_SEEN.items():
        assert names_of_buckets(Caller(server, who).ask("GET", "/")) == seen, who
    for who in ("READER", "NOBODY"):
        judge_denied(Caller(server, who).ask("GET", "/"), "AccessDenied")


def list_of_buckets(*names, end="</Buckets>", root="ListAllMyBucketsResult", rest=None):
    rest = f"</{root}>" if rest is None else rest
    body = f"<{root}><Buckets>{''.join(names)}{end}{rest}"
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def test_a_list_of_buckets_is_filtered_page_by_page_or_refused(guarded, origin):
    """The token of the next page stays. A page may be long. One that cannot be read is refused.
    A key with rights everywhere gets it as it is."""
    alice, root = Caller(guarded, "ALICE"), Caller(guarded, "ROOT")
    bucket = "<Bucket><Name>{}</Name></Bucket>".format
    token = "</Buckets><ContinuationToken>bmV4dA==</ContinuationToken>"
    many = [bucket(f"secret-{i}") for i in range(20000)]
    origin.fault(None, "raw", list_of_buckets(*many, bucket("bkt"), *many, end=token))
    reply = alice.ask("GET", "/?max-buckets=40001")
    assert names_of_buckets(reply) == ["bkt"]
    assert b"<ContinuationToken>bmV4dA==</ContinuationToken>" in bytes(reply.body)
    for page in (
        list_of_buckets(bucket("secret"), end="", rest=""),
        list_of_buckets(bucket("secret"), rest="</Other>"),
        list_of_buckets("<Bucket><Name>secret" + "x" * 20000),
        list_of_buckets(bucket("secret"), root="OfBuckets"),
    ):
        origin.fault(None, "raw", page)
        reply = alice.ask("GET", "/")
        assert reply.status >= 500 and b"secret" not in bytes(reply.body), reply
        origin.fault(None, "raw", page)
        assert b"secret" in bytes(root.ask("GET", "/").body)


def test_a_filtered_list_of_buckets_has_no_headers_of_the_unfiltered_one(guarded, origin):
    """The reply is UTF-8 and says so. Checksums, length and validators of the origin's list are
    left out, and other headers stay. A key with rights everywhere gets the list as it is."""
    page = (
        '<?xml version="1.0" encoding="ISO-8859-1"?><ListAllMyBucketsResult><Owner><DisplayName>'
        "J\xe9r\xf4me</DisplayName></Owner><Buckets><Bucket><Name>secret</Name></Bucket>"
        "<Bucket><Name>bkt</Name></Bucket></Buckets></ListAllMyBucketsResult>"
    ).encode("latin-1")
    of_bytes = {
        "Content-Type": "text/xml; charset=ISO-8859-1",
        "Content-MD5": "x9xkwDv5DS8yPc0bEDoqPg==",
        "ETag": '"c7dc64"',
        "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT",
        "x-amz-checksum-crc32": "9J8yDg==",
        "x-amz-checksum-type": "FULL_OBJECT",
        "Repr-Digest": "sha-256=:AAAA:",
        "Accept-Ranges": "bytes",
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in of_bytes.items())
    answer = f"HTTP/1.1 200 OK\r\n{head}x-other: kept\r\nContent-Length: {len(page)}\r\n\r\n"
    origin.fault(None, "raw", answer.encode() + page, times=2)
    reply = Caller(guarded, "ALICE").ask("GET", "/")
    assert names_of_buckets(reply) == ["bkt"] and "J\xe9r\xf4me" in bytes(reply.body).decode()
    shown = {name.lower(): value for name, value in reply.headers}
    assert shown["content-type"] == "application/xml" and shown["x-other"] == "kept", shown
    assert not {name.lower() for name in of_bytes}.difference(["content-type"]) & set(shown), shown
    assert shown.get("content-length") in (None, str(len(reply.body))), shown
    reply = Caller(guarded, "ROOT").ask("GET", "/")
    assert bytes(reply.body) == page, reply
    assert {name: reply.header(name) for name in of_bytes} == of_bytes, reply


def test_a_list_of_buckets_with_many_different_names_is_refused(guarded, origin):
    """An XML reader keeps each name of an element that it has not seen. Its memory has a limit, and
    the error says so."""
    names = "".join(f"<n{i}/>" for i in range(1_000_000))
    origin.fault(None, "raw", list_of_buckets("<Bucket><Name>secret</Name></Bucket>", names))
    reply = Caller(guarded, "ALICE").ask("GET", "/")
    assert reply.status == 503 and b"secret" not in bytes(reply.body), reply
    assert "more different names of elements" in reply.element("Message"), reply


def test_a_part_of_a_list_passes_no_filter_of_names(guarded, origin):
    """A part of a list may begin within a name. The origin is asked for no part, and one that it
    sends all the same is refused. A key that may see all names gets the part."""
    part = b"bob/secret</Key></Contents></ListBucketResult>"
    answer = b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 9-%d/%d\r\n" % (
        8 + len(part),
        9 + len(part),
    )
    answer += b"Content-Length: %d\r\n\r\n%s" % (len(part), part)
    for target in ("/", "/bkt?list-type=2&prefix=alice/", "/bkt?uploads&prefix=alice/"):
        origin.fault(None, "raw", answer, times=2)
        reply = Caller(guarded, "ALICE").ask("GET", target, [("Range", "bytes=9-99")])
        assert reply.status == 503 and b"secret" not in bytes(reply.body), (
            target,
            reply,
        )
        assert "only a part of the list" in reply.element("Message"), reply
        reply = Caller(guarded, "ROOT").ask("GET", target, [("Range", "bytes=9-99")])
        assert reply.status == 206 and bytes(reply.body) == part, (target, reply)
        ranges = [dict(entry.headers).get("range") for entry in origin.requests()[-2:]]
        assert ranges == [None, "bytes=9-99"], (target, ranges)


LIST_OF_BOB = "<ListBucketResult><Contents><Key>bob/secret</Key></Contents></ListBucketResult>"


def answer_with(body, status="200 OK", coding=None):
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\n"
    head += f"Content-Encoding: {coding}\r\n" if coding else ""
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    "coding, body",
    [
        ("gzip", gzip.compress(LIST_OF_BOB.encode())),
        ("identity, br", b"brotli"),
        (None, gzip.compress(LIST_OF_BOB.encode())),
        (None, LIST_OF_BOB.encode("utf-16")),
        (None, LIST_OF_BOB.encode("utf-16-be")),
        (None, f'<?xml version="1.0" encoding="latin-1"?>{LIST_OF_BOB}'.encode()),
        (None, b'{"Contents": [{"Key": "bob/secret"}]}'),
    ],
    ids=["gzip", "br", "gzip-unnamed", "utf-16", "utf-16-be", "latin-1", "json"],
)
def test_a_list_in_a_coding_that_is_not_read_passes_no_filter_of_names(
    guarded, origin, coding, body
):
    """Names in a compressed list, or in one that is not XML in UTF-8, cannot be judged. A key that
    may see all names gets the list as it is."""
    for target in ("/bkt?list-type=2&prefix=alice/", "/bkt?uploads&prefix=alice/"):
        origin.fault(None, "raw", answer_with(body, coding=coding), times=2)
        reply = Caller(guarded, "ALICE").ask("GET", target, [("Accept-Encoding", "gzip, br")])
        assert reply.status == 503 and b"<ListBucket" not in bytes(reply.body), (
            target,
            reply,
        )
        assert "this access key may not see all names" in reply.element("Message"), reply
        reply = Caller(guarded, "ROOT").ask("GET", target)
        assert reply.status == 200 and bytes(reply.body) == body, (target, reply)
        assert reply.header("content-encoding") == coding, reply
    assert guarded.metric("forebay_http_refused_total", reason="listing") == 0


def test_an_error_document_in_a_coding_names_nothing(guarded, origin):
    """A key with limited rights gets the status without the document."""
    body = gzip.compress(b"<Error><Code>NoSuchKey</Code><Key>bob/secret</Key></Error>")
    origin.fault(None, "raw", answer_with(body, "404 Not Found", "gzip"), times=2)
    target = "/bkt?list-type=2&prefix=alice/"
    reply = Caller(guarded, "ALICE").ask("GET", target)
    assert reply.status == 404 and bytes(reply.body) == b"", reply
    assert reply.header("content-encoding") is None, reply
    reply = Caller(guarded, "ROOT").ask("GET", target)
    assert reply.status == 404 and bytes(reply.body) == body, reply


def test_clock_and_expiry(guarded, start, tmp_path, origin):
    """Clock skew and expiry count on a warm object as on a cold one."""
    for key in WARM:
        put(origin, "bkt", key)
    warm(guarded, WARM)
    caller, at = Caller(guarded, "ALICE"), "/bkt/alice/warm"
    for minutes in range(-20, 21):
        headers = caller.signer.headers(
            "GET", at, caller.http.host, when=time.time() + 60 * minutes
        )
        reply = caller.http.request("GET", at, headers)
        if abs(minutes) <= 14:
            assert reply.status == 200 and "hit" in reply.header("cache-status"), minutes
        elif abs(minutes) >= 16:
            judge_denied(reply, "RequestTimeTooSkewed")
            assert reply.header("date"), reply
    for made, expires, good in (
        (0, 60, True),
        (-30, 60, True),
        (-61, 60, False),
        (-3600, 7200, True),
        (-7000, 7200, True),
        (-7300, 7200, False),
        (-604700, 604800, True),
        (-604900, 604800, False),
        (1200, 60, False),
    ):
        link = caller.signer.presign(
            "GET", at, caller.http.host, expires=expires, when=time.time() + made
        )
        reply = caller.http.request("GET", link)
        if good:
            assert bytes(reply.body) == body_of("bkt", "alice/warm"), (
                made,
                expires,
                reply,
            )
            assert "hit" in reply.header("cache-status")
        else:
            assert reply.status == 403 and MARK not in bytes(reply.body), (
                made,
                expires,
                reply,
            )
    for expires in ("0", "604801", "-1", "x", ""):
        link = caller.signer.presign("GET", at, caller.http.host, expires=expires)
        judge_denied(caller.http.request("GET", link), "AuthorizationQueryParametersError", 400)
    expired = caller.signer.presign("GET", at, caller.http.host, expires=1, when=time.time() - 5)
    assert "expired" in caller.http.request("GET", expired).element("Message").lower()


def test_white_space_in_metadata_keeps_signatures_valid(guarded):
    """Tabs and runs of blanks in metadata: the client's signature fits, the origin accepts ours,
    and the value stays as it was sent."""
    caller = Caller(guarded, "ALICE")
    for i, value in enumerate(("a\tb", "a \t b", "a   b", "\t\ta\t\tb", "a\tb  c\t \td", "a\t")):
        key = f"alice/white{i}"
        reply = caller.ask(
            "PUT",
            f"/bkt/{key}",
            [("x-amz-meta-note", value), ("x-amz-meta-z", "last")],
            b"body",
        )
        assert reply.status == 200, (value, reply)
        for _ in ("miss", "hit"):
            reply = caller.get(key)
            assert reply.status == 200 and reply.header("x-amz-meta-note") == value.strip(), (
                value,
                reply,
            )
            guarded.settle()


@pytest.mark.parametrize("count", [100, 480])
def test_put_with_many_metadata_headers_passes_through(guarded, count):
    """S3's 2 KiB of metadata may be hundreds of small headers. Forebay verifies them, signs them
    again, and the origin gets all of them."""
    caller = Caller(guarded, "ALICE")
    many = [(f"x-amz-meta-k{i * 7919 % count:03d}", f"v{i}") for i in range(count)]
    assert caller.ask("PUT", "/bkt/alice/many", many, b"body").status == 200
    assert caller.ask("POST", "/bkt/alice/parts?uploads", many).status == 200
    for entry in guarded.origin.requests(bucket="bkt")[-2:]:
        sent = [(n, v) for n, v in entry.headers if n.startswith("x-amz-meta-")]
        assert sorted(sent) == sorted(many), entry
    for _ in range(2):
        reply = caller.get("alice/many")
        assert reply.status == 200 and bytes(reply.body) == b"body"
        assert sorted((n, v) for n, v in reply.headers if n.startswith("x-amz-meta-")) == sorted(
            many
        )
    spoilt = [
        (n, v + "x" if i == count // 2 else v)
        for i, (n, v) in enumerate(
            caller.signer.headers("PUT", "/bkt/alice/many", caller.http.host, many, b"body")
        )
    ]
    reply = caller.http.request("PUT", "/bkt/alice/many", spoilt, b"body")
    assert reply.status == 403, reply


def test_tokens_and_forms(guarded):
    """A session token must be signed, is not sent to the origin, and gives no rights. A form's
    policy gives no rights on a key."""
    origin = guarded.origin
    put(origin, "bkt", "alice/warm")
    caller = Caller(guarded, "ALICE")
    caller.signer.token = token = "token-canary-55d1"
    assert caller.get("alice/warm").status == 200
    link = caller.signer.presign("GET", "/bkt/alice/warm", caller.http.host)
    assert caller.http.request("GET", link).status == 200
    assert caller.http.request("GET", link.replace(token, token + "x")).status == 403
    stranger = Caller(guarded, "ALICE")
    stranger.signer = Signer("ASIATEMPORARY", "whatever", token=token)
    judge_denied(stranger.get("alice/warm"), "InvalidAccessKeyId")
    assert not any(token in v for e in origin.log for _, v in e.headers)
    assert not any(token in e.target for e in origin.log)
    mark, client, now = origin.mark(), Client(guarded.port), time.time()
    for fault, more in itertools.product(
        ("good", "signature"),
        ({}, {"expires": -60}, {"token": token}, {"expires": -60, "token": "expired"}),
    ):
        for who in (signer_of("ALICE"), Signer("ASIATEMPORARY", "whatever")):
            ask = form_request(who, "x", UNSIGNED, fault, client.host, now, **more)
            judge_denied(client.request(*ask), "AccessDenied")
    assert not origin.requests(since=mark)


def chunk_tricks(rng):
    """Returns [(description, change)]. Each change makes a good aws-chunked body (pieces) fail."""

    def flip(at):
        def change(pieces):
            body = bytearray(b"".join(pieces))
            place = int(len(body) * at) % len(body)
            body[place] ^= 1 << rng.randrange(7)
            return bytes(body)

        return change

    for i in range(60):
        yield f"bit flipped at {i}/60", flip(i / 60)
    for i in range(4):
        yield f"chunk {i} left out", lambda p, i=i: b"".join(p[:i] + p[i + 1 :])
        yield f"chunk {i} twice", lambda p, i=i: b"".join(p[: i + 1] + p[i:])
        yield (
            f"signature {i} of zeros",
            lambda p, i=i: b"".join(
                re.sub(rb"=[0-9a-f]{64}", b"=" + b"0" * 64, x) if j == i else x
                for j, x in enumerate(p)
            ),
        )
        yield (
            f"no signature on {i}",
            lambda p, i=i: b"".join(
                re.sub(rb";chunk-signature=[0-9a-f]{64}", b"", x) if j == i else x
                for j, x in enumerate(p)
            ),
        )
    yield "chunks exchanged", lambda p: b"".join([p[1], p[0]] + p[2:])
    yield "last two exchanged", lambda p: b"".join(p[:1] + [p[2], p[1]] + p[3:])
    yield (
        "bytes after the end",
        lambda p: b"".join(p) + b"GET /bkt/bob/warm HTTP/1.1\r\n\r\n",
    )
    yield "no last chunk", lambda p: b"".join(p[:-2] + p[-1:])
    yield "cut", lambda p: b"".join(p)[:-40]
    yield "size grown", lambda p: b"".join(p).replace(b"2000;", b"2001;", 1)
    yield "size shrunk", lambda p: b"".join(p).replace(b"2000;", b"1fff;", 1)
    yield "size with a sign", lambda p: b"+" + b"".join(p)
    yield "size in C", lambda p: b"0x" + b"".join(p)
    yield "size over 64 bits", lambda p: b"1" + b"0" * 16 + b"".join(p)[4:]
    yield "bare line feeds", lambda p: b"".join(p).replace(b"\r\n", b"\n")
    yield (
        "long extension",
        lambda p: b"".join(p).replace(b";", b";a=" + b"b" * 5000 + b";", 1),
    )
    yield "plain bytes", lambda p: b"x" * 20000
    yield "empty", lambda p: b""


def test_chunked_uploads_that_lie(guarded, figure):
    """A body with a wrong chain, length or framing creates no object."""
    origin, rng, count = guarded.origin, random.Random(4), 0
    chunks = [rng.randbytes(8192), rng.randbytes(8192), rng.randbytes(3000)]
    host = f"127.0.0.1:{guarded.port}"
    at, who = "/bkt/alice/chunked", signer_of("ALICE")
    trailer = ("x-amz-checksum-crc32", crc32_of(b"".join(chunks)))
    put(origin, "bkt", "alice/chunked")
    before = origin.version("alice/chunked").number
    for payload, trail in ((STREAMING, None), (STREAMING_TRAILER, trailer)):
        for what, change in chunk_tricks(rng):
            headers, pieces = who.chunked("PUT", at, host, [], chunks, payload, trail)
            body = change(pieces)
            with Connection(guarded.port, timeout=30) as connection:
                connection.send(
                    request_bytes(
                        "PUT",
                        at,
                        host,
                        headers + [("Content-Length", str(len(body)))],
                        body,
                    )
                )
                reply = connection.read_reply("PUT")
            assert reply.status in (400, 403), (payload, what, reply)
            count += 1
    for lie in (-1, 1, -19000, 10**9):
        headers, pieces = who.chunked("PUT", at, host, [], chunks)
        headers = [h for h in headers if h[0] in ("Content-Encoding",)] + [
            ("x-amz-decoded-content-length", str(sum(map(len, chunks)) + lie))
        ]
        signed = who.headers("PUT", at, host, headers, payload=STREAMING)
        body = frame(
            who,
            dict(signed)["x-amz-date"],
            signed[-1][1].rpartition("=")[2],
            chunks,
            STREAMING,
        )
        reply = Client(guarded.port).request("PUT", at, signed, body)
        assert reply.status == 400, (lie, reply)
        count += 1
    assert origin.version("alice/chunked").number == before
    headers, pieces = who.chunked("PUT", at, host, [], chunks)
    assert Client(guarded.port).request("PUT", at, headers, b"".join(pieces)).status == 200
    assert origin.bytes_of("alice/chunked") == b"".join(chunks)
    figure(f"chunked uploads: {count} lies, none became an object")
    assert count >= 100


# --- tenants try to reach each other --------------------------------------------------------------


def test_tenants_never_meet(guarded, figure):
    """Over warm objects at random: own key, another's key, anonymous, bad signature, expired,
    unknown. No tenant gets another's bytes."""
    origin, tenants = guarded.origin, ["ALICE", "BOB", "OTHER"]
    homes = {
        "ALICE": ("bkt", "alice/"),
        "BOB": ("bkt", "bob/"),
        "OTHER": ("other", "o/"),
    }
    places = {
        who: [(bucket, f"{prefix}{i}") for i in range(20)]
        for who, (bucket, prefix) in homes.items()
    }
    for who in tenants:
        for bucket, key in places[who]:
            put(origin, bucket, key)
        warm(guarded, [k for _, k in places[who]], homes[who][0])
    total = scaled(10_000, least=1000)

    def one(index):
        rng = random.Random(index)
        clients = {who: Caller(guarded, who) for who in tenants}
        tally = {}
        for _ in range(total // 4):
            who, whose = rng.choice(tenants), rng.choice(tenants)
            bucket, key = rng.choice(places[whose])
            kind = rng.choice(
                [
                    "header",
                    "presigned",
                    "anonymous",
                    "badsig",
                    "expired",
                    "unknown",
                    "mutated",
                ]
            )
            caller, at = clients[who], f"/{bucket}/{quote(key)}"
            method = rng.choice(["GET", "GET", "HEAD"])
            headers, target = [], at
            if kind == "header":
                headers = caller.signer.headers(method, at, caller.http.host)
            elif kind in ("presigned", "expired"):
                target = caller.signer.presign(
                    method,
                    at,
                    caller.http.host,
                    expires=60,
                    when=time.time() - (600 if kind == "expired" else 0),
                )
            elif kind == "badsig":
                headers = caller.signer.headers(method, at, caller.http.host)
                headers[-1] = (headers[-1][0], break_hex(headers[-1][1]))
            elif kind == "unknown":
                headers = Signer("GHOST", SECRETS[who]).headers(method, at, caller.http.host)
            elif kind == "mutated":  # signed for one's own object, sent for another's
                own = rng.choice(places[who])
                headers = caller.signer.headers(
                    method, f"/{own[0]}/{quote(own[1])}", caller.http.host
                )
                if own == (bucket, key):
                    continue
            reply = caller.http.request(method, target, headers)
            allowed = kind in ("header", "presigned") and who == whose
            tally[kind, allowed] = tally.get((kind, allowed), 0) + 1
            if allowed:
                assert reply.status == 200, (kind, who, at, reply)
                assert method == "HEAD" or bytes(reply.body) == body_of(bucket, key)
            else:
                assert reply.status == 403, (kind, who, at, reply)
                assert MARK not in bytes(reply.body) and not reply.header("etag"), reply
        return tally

    tallies = parallel(4, one)
    denied = sum(n for t in tallies for (_, allowed), n in t.items() if not allowed)
    allowed = sum(n for t in tallies for (_, good), n in t.items() if good)
    figure(f"tenants: {denied} tries denied with 0 bytes, {allowed} allowed and right")
    assert denied > total / 2 and allowed > total / 20


def test_anonymous_gets_nothing(guarded):
    origin, keys = guarded.origin, [f"alice/{i}" for i in range(10)]
    for key in keys:
        put(origin, "bkt", key)
    warm(guarded, keys)
    mark, before, client = origin.mark(), lookups(guarded), Client(guarded.port)
    for i in range(scaled(10_000, least=500)):
        judge_denied(client.get(keys[i % len(keys)]), "AccessDenied")
    assert lookups(guarded) == before and not origin.requests(since=mark)


def test_a_denial_tells_nothing(guarded):
    """Warm, cold and absent keys give the same denial, byte for byte except for ids."""
    origin = guarded.origin
    for key in ("bob/warm", "bob/cold"):
        put(origin, "bkt", key)
    warm(guarded, ["bob/warm"])
    caller = Caller(guarded, "ALICE")

    def shape(key):
        reply = caller.get(key)
        judge_denied(reply, "AccessDenied")
        body = re.sub(rb"<(RequestId|HostId)>[^<]*", rb"<\1>", bytes(reply.body)).replace(
            key.encode(), b"KEY"
        )
        return [
            (n, v)
            for n, v in reply.headers
            if n not in ("x-amz-request-id", "x-amz-id-2", "date", "content-length")
        ], body

    assert shape("bob/warm") == shape("bob/cold") == shape("bob/gone")


# --- rights that change ---------------------------------------------------------------------------


def reload(server):
    def ends():
        return sum("reloaded" in line or "reload_failed" in line for line in server.stderr)

    count = ends()
    os.kill(server._pid(), signal.SIGHUP)
    with server.changed:
        assert server.changed.wait_for(lambda: ends() > count, 60)


def test_revoked_and_narrowed_rights_end(guarded, tmp_path):
    """After a reload a revoked key cannot read a warm object. A bad keys file leaves the old keys
    in force."""
    origin = guarded.origin
    put(origin, "bkt", "alice/warm")
    warm(guarded, ["alice/warm"])
    alice, reader = Caller(guarded, "ALICE"), Caller(guarded, "READER")
    assert alice.get("alice/warm").status == reader.get("alice/warm").status == 200
    allow = {who: rules for who, rules in ALLOW.items() if who != "ALICE"}
    allow["READER"] = [("bkt", "alice/other", ["read"])]
    keys_file(tmp_path, allow)
    reload(guarded)
    judge_denied(denial(lambda: alice.get("alice/warm")), "InvalidAccessKeyId")
    judge_denied(denial(lambda: reader.get("alice/warm")), "AccessDenied")
    (tmp_path / "keys.yaml").write_text("- {id: X, secret: y, cow: z}")
    reload(guarded)
    assert Caller(guarded, "ROOT").get("alice/warm").status == 200
    judge_denied(alice.get("alice/warm"), "InvalidAccessKeyId")


def test_a_refused_keys_file_logs_its_errors_and_not_its_warnings(guarded, tmp_path):
    """A warning is not why a reload failed."""
    (tmp_path / "keys.yaml").write_text("- {id: X, secret: y, cow: z}\n- {id: Y, secret: y}\n")
    count = len(guarded.stderr)
    reload(guarded)
    keys_file(tmp_path)
    reload(guarded)  # so that all lines of the first reload have come
    failed = [line for line in guarded.stderr[count:] if "reload_failed" in line]
    assert failed and all("cow" in line for line in failed), failed


def denial(ask):
    """Waits for the first denial. Each worker gets the new table in a message, right after the log
    line."""

    def denied():
        reply = ask()
        return reply if reply.status == 403 else None

    return wait_for(denied, "a denial")


# --- keys of a principal's own towards the origin -------------------------------------------------

ORIGIN_SECRETS = {
    "origin-alice": "origin-canary-alice-3b1e",
    "origin-bob": "origin-canary-bob-77d0",
    "origin-reader": "origin-canary-reader-e2a4",
}


def origin_keys(folder, who, realm=None):
    """The rows of a keys file that give WHO credentials of its own."""
    access = f"origin-{who.lower()}"
    row = {"realm": realm} if realm else {}
    for name, text in (("access_key", access), ("secret_key", ORIGIN_SECRETS[access])):
        path = folder / f"{access}-{name}"
        path.write_text(text + "\n")
        path.chmod(0o600)
        row[f"origin_{name}_file"] = str(path)
    return row


def used_keys(entries):
    return {re.search(r"Credential=([^/]+)/", e.header("authorization")).group(1) for e in entries}


def test_own_origin_keys_share_no_bytes(tmp_path, origin, start, engine):
    """If one principal's origin denies an object that another's allows, the client gets 403,
    although the other's bytes are cached."""
    allow = {who: [("*", "", ALL)] for who in ("ALICE", "BOB", "READER", "WRITER", "ROOT")}
    path = keys_file(
        tmp_path,
        allow,
        extra={
            "ALICE": origin_keys(tmp_path, "ALICE"),
            "BOB": origin_keys(tmp_path, "BOB"),
            "READER": origin_keys(tmp_path, "READER", realm="team"),
            "WRITER": {"realm": "team"},
        },
    )
    origin.credentials = {
        **origin.credentials,
        **{k: v for k, v in ORIGIN_SECRETS.items() if k != "origin-alice"},
    }
    server = start(origin, engine=engine, settings=verify(path, **{"cache.ttl": "1h"}))
    callers = {who: Caller(server, who) for who in allow}
    origin.put("a", 3 << 20, body=body_of("bkt", "a", 3 << 20))
    whole = body_of("bkt", "a", 3 << 20)

    def read(who, hit, key):
        mark = origin.mark()
        reply = callers[who].get("a")
        assert reply.status == 200 and bytes(reply.body) == whole, (who, reply)
        server.settle()
        entries = origin.requests(since=mark)
        assert ("hit" in reply.header("cache-status")) == hit, (who, reply)
        assert used_keys(entries) == (set() if hit else {key}), (who, entries)

    for again in (False, True):
        if again:  # a prefix is evicted for all of them, even where `ls` sees nothing cached
            read("BOB", True, "origin-bob")
            got = run_forebay(
                "evict",
                "s3://bkt/*",
                env={"FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"},
            )
            assert got.returncode == 0, got.stderr
            read("BOB", False, "origin-bob")
        mark = origin.mark()
        assert callers["ALICE"].get("a").status == 403
        assert used_keys(origin.requests(since=mark)) == {"origin-alice"}
        judge_nothing(callers["ALICE"].ask("HEAD", "/bkt/a"))
        judge_nothing(callers["ALICE"].ask("GET", "/bkt?list-type=2"))
        read("BOB", again, "origin-bob")
    judge_nothing(callers["ALICE"].ask("PUT", "/bkt/a", [], b"x"))
    read("ROOT", False, "origin-key")
    read("ROOT", True, None)
    read("READER", False, "origin-reader")
    read("WRITER", True, None)  # the operator gave them the same realm
    # All see a write through any of them at once, whatever their realm.
    for writer, key in (
        ("ROOT", "origin-key"),
        ("BOB", "origin-bob"),
        ("WRITER", "origin-key"),
    ):
        whole = os.urandom(2 << 20)
        mark = origin.mark()
        assert callers[writer].ask("PUT", "/bkt/a", [], whole).status == 200
        assert used_keys(origin.requests(since=mark)) == {key}
        for who, own in (
            ("BOB", "origin-bob"),
            ("ROOT", "origin-key"),
            ("READER", "origin-reader"),
        ):
            read(who, False, own)
            read(who, True, None)
        read("WRITER", True, None)
    xml = b"<Delete><Object><Key>a</Key></Object></Delete>"
    assert callers["BOB"].ask("POST", "/bkt?delete", [], xml).status == 200
    for who in ("BOB", "ROOT", "READER", "WRITER"):
        assert callers[who].get("a").status == 404, who
    origin.put("a", len(whole), body=whole)
    origin.credentials["origin-alice"] = ORIGIN_SECRETS["origin-alice"]
    read("ALICE", False, "origin-alice")
    read("ALICE", True, None)


def test_a_page_of_a_listing_is_of_its_realm(tmp_path, origin, start):
    """A reload gives a principal origin credentials of its own, which may list nothing. It sees no
    page that was kept before."""
    allow = {"ALICE": [("*", "", ALL)]}
    path = keys_file(tmp_path, allow)
    server = start(
        origin,
        settings=verify(path, workers=1),
        file={"rules": [{"match": "**", "list_ttl": "1h"}]},
    )
    put(origin, "bkt", "a")
    alice = Caller(server, "ALICE")
    for hit in (False, True):
        reply = alice.ask("GET", "/bkt?list-type=2")
        assert reply.status == 200 and ("hit" in reply.header("cache-status")) == hit, reply
    keys_file(tmp_path, allow, extra={"ALICE": origin_keys(tmp_path, "ALICE")})
    reload(server)
    judge_nothing(denial(lambda: alice.ask("GET", "/bkt?list-type=2")))
    keys_file(tmp_path, allow)
    reload(server)
    wait_for(
        lambda: alice.ask("GET", "/bkt?list-type=2").status == 200,
        "the origin's own keys",
    )


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_one_principals_refusal_is_not_anothers(tmp_path, origin, start, engine, method):
    """Two principals of one realm have origin credentials of their own. A client that waits for the
    first one's revalidation is not denied with it."""
    allow = {who: [("*", "", ALL)] for who in ("ALICE", "BOB", "ROOT")}
    path = keys_file(
        tmp_path,
        allow,
        extra={who: origin_keys(tmp_path, who, realm="team") for who in ("ALICE", "BOB")},
    )
    origin.credentials = {
        **origin.credentials,
        "origin-bob": ORIGIN_SECRETS["origin-bob"],
    }
    server = start(origin, engine=engine, settings=verify(path))
    replies = {}

    def ask(who, key):
        replies[who] = Caller(server, who).ask(method, f"/bkt/{key}")

    for i in range(8):
        put(origin, "bkt", f"k{i}")
        with origin.hold(f"k{i}"):
            mark = origin.mark()
            alice = threading.Thread(target=ask, args=("ALICE", f"k{i}"))
            alice.start()
            origin.wait_for(1, since=mark, key=f"k{i}")
            bob = threading.Thread(target=ask, args=("BOB", f"k{i}"))
            bob.start()
            server.wait_metric("forebay_http_requests_inflight", lambda count: count >= 2)
        alice.join()
        bob.join()
        assert (replies["ALICE"].status, replies["BOB"].status) == (403, 200), replies


def judge_nothing(reply):
    assert reply.status == 403 and MARK not in bytes(reply.body), reply
    assert reply.header("etag") is None and reply.header("last-modified") is None, reply


def test_own_origin_keys_never_mix(tmp_path, origin, start, figure):
    """Three principals send misses, writes and listings at once. The origin sees each path under
    that principal's own key."""
    names = {"ALICE": "alice", "BOB": "bob", "READER": "reader"}
    allow = {who: [("bkt", f"{low}/", ALL)] for who, low in names.items()}
    path = keys_file(tmp_path, allow, extra={who: origin_keys(tmp_path, who) for who in names})
    origin.credentials = {**origin.credentials, **ORIGIN_SECRETS}
    server = start(origin, settings=verify(path, **{"cache.ttl": "0s"}))
    for low in names.values():
        for i in range(10):
            put(origin, "bkt", f"{low}/{i}")
    mark, total = origin.mark(), scaled(10_000, least=600)

    def one(index):
        rng = random.Random(index)
        callers = {who: Caller(server, who) for who in names}
        for _ in range(total // 4):
            who = rng.choice(list(names))
            key = f"{names[who]}/{rng.randrange(10)}"
            kind = rng.randrange(10)
            if kind == 0:
                reply = callers[who].ask("PUT", f"/bkt/{key}", [], body_of("bkt", key))
                assert reply.status == 200, reply
            elif kind == 1:
                reply = callers[who].ask("GET", f"/bkt?list-type=2&prefix={names[who]}%2F")
                assert reply.status == 200, reply
            else:
                reply = callers[who].get(key)
                assert bytes(reply.body) == body_of("bkt", key), reply

    parallel(4, one)
    wrong = [
        e
        for e in origin.requests(since=mark)
        if used_keys([e]) != {f"origin-{(e.key or e.query['prefix']).split('/')[0]}"}
    ]
    assert not wrong, wrong[:3]
    figure(
        f"own origin keys: {len(origin.requests(since=mark))} "
        f"origin requests, none under another's key"
    )

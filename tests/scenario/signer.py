# SPDX-License-Identifier: Apache-2.0
"""SigV4 as an S3 client signs, written independently of the server's own signer.

    signer = Signer("key", "secret")
    headers = signer.headers("PUT", "/bkt/key?acl", host, [("x-amz-acl", "private")], body)
    target = signer.presign("GET", "/bkt/key", host, expires=60)
    headers, framed = signer.chunked(
        "PUT", "/bkt/key", host, [], [b"first", b"second"], trailer=...)

Targets are raw, as the client sends them. `when` is epoch seconds, which tests change.

"""

import base64
import datetime
import hashlib
import hmac
import time
import urllib.parse
import zlib

EMPTY = hashlib.sha256(b"").hexdigest()
UNSIGNED = "UNSIGNED-PAYLOAD"
STREAMING = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
STREAMING_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


def _quote(text, safe="-_.~"):
    return urllib.parse.quote(urllib.parse.unquote_to_bytes(text), safe=safe)


def crc32_of(data):
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


class Signer:
    def __init__(self, access, secret, region="us-east-1", token=None):
        self.access, self.secret, self.region, self.token = access, secret, region, token

    def key(self, date):
        key = ("AWS4" + self.secret).encode()
        for piece in (date, self.region, "s3", "aws4_request"):
            key = hmac.new(key, piece.encode(), hashlib.sha256).digest()
        return key

    def scope(self, date):
        return f"{date}/{self.region}/s3/aws4_request"

    @staticmethod
    def canonical(method, target, pairs, payload):
        path, _, query = target.partition("?")
        pieces = sorted(
            (_quote(p.partition("=")[0]), _quote(p.partition("=")[2]))
            for p in query.split("&")
            if p
        )
        return "\n".join(
            [
                method,
                _quote(path, safe="/-_.~"),
                "&".join(f"{n}={v}" for n, v in pieces),
                "".join(f"{n}:{' '.join(v.split())}\n" for n, v in pairs),
                ";".join(n for n, _ in pairs),
                payload,
            ]
        )

    def signature(self, moment, canonical):
        text = "\n".join(
            [
                "AWS4-HMAC-SHA256",
                moment,
                self.scope(moment[:8]),
                hashlib.sha256(canonical.encode("utf-8", "surrogateescape")).hexdigest(),
            ]
        )
        return hmac.new(self.key(moment[:8]), text.encode(), hashlib.sha256).hexdigest()

    @staticmethod
    def moment(when):
        return datetime.datetime.fromtimestamp(
            time.time() if when is None else when, datetime.timezone.utc
        ).strftime("%Y%m%dT%H%M%SZ")

    def headers(
        self, method, target, host, headers=(), body=b"", payload=None, when=None, unsigned=()
    ):
        """Returns the request's headers with x-amz-date, the payload's hash and Authorization.

        UNSIGNED names headers that are sent but left out of the signature.
        """
        moment = self.moment(when)
        out = list(headers) + [
            ("x-amz-date", moment),
            (
                "x-amz-content-sha256",
                hashlib.sha256(body).hexdigest() if payload is None else payload,
            ),
        ]
        if self.token:
            out.append(("x-amz-security-token", self.token))
        pairs = {}
        for name, value in [("host", host), *out]:
            name = name.lower()
            if (
                name in ("expect", "connection", "user-agent", "transfer-encoding")
                or name in unsigned
            ):
                continue
            pairs[name] = pairs[name] + "," + value if name in pairs else value
        pairs = sorted(pairs.items())
        signature = self.signature(
            moment,
            self.canonical(
                method, target, pairs, out[[n for n, _ in out].index("x-amz-content-sha256")][1]
            ),
        )
        out.append(
            (
                "Authorization",
                f"AWS4-HMAC-SHA256 Credential={self.access}/"
                f"{self.scope(moment[:8])}, SignedHeaders={';'.join(n for n, _ in pairs)}, "
                f"Signature={signature}",
            )
        )
        return out

    def presign(self, method, target, host, headers=(), expires=300, when=None):
        """Returns the target with its signature in the query. HEADERS must be sent with it."""
        moment = self.moment(when)
        pairs = sorted([("host", host)] + [(n.lower(), v) for n, v in headers])
        more = {
            "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
            "X-Amz-Credential": f"{self.access}/{self.scope(moment[:8])}",
            "X-Amz-Date": moment,
            "X-Amz-Expires": str(expires),
            "X-Amz-SignedHeaders": ";".join(n for n, _ in pairs),
        }
        if self.token:
            more["X-Amz-Security-Token"] = self.token
        target += ("&" if "?" in target else "?") + "&".join(
            f"{n}={urllib.parse.quote(v, safe='-_.~')}" for n, v in more.items()
        )
        signature = self.signature(moment, self.canonical(method, target, pairs, UNSIGNED))
        return target + "&X-Amz-Signature=" + signature

    def chunked(
        self, method, target, host, headers, chunks, payload=STREAMING, trailer=None, when=None
    ):
        """Returns (headers, chunk texts): one text for each chunk, for the last one and for the
        trailer.

        TRAILER is the (name, value) of a trailing checksum. The two kinds that have one need it.
        """
        size = sum(map(len, chunks))
        coding = [v for n, v in headers if n.lower() == "content-encoding"] + ["aws-chunked"]
        headers = [(n, v) for n, v in headers if n.lower() != "content-encoding"] + [
            ("Content-Encoding", ",".join(coding)),
            ("x-amz-decoded-content-length", str(size)),
        ]
        if trailer:
            headers.append(("x-amz-trailer", trailer[0]))
        signed = payload in (STREAMING, STREAMING_TRAILER)
        moment = self.moment(when)
        headers = self.headers(method, target, host, headers, payload=payload, when=when)
        moment = dict(headers)["x-amz-date"]
        previous = headers[-1][1].rpartition("Signature=")[2]
        out = []
        for chunk in [*chunks, b""]:
            text = b"%x" % len(chunk)
            if signed:
                previous = self._chain(
                    "AWS4-HMAC-SHA256-PAYLOAD",
                    moment,
                    previous,
                    [EMPTY, hashlib.sha256(chunk).hexdigest()],
                )
                text += b";chunk-signature=" + previous.encode()
            text += b"\r\n"
            out.append(text + (chunk + b"\r\n" if chunk else b""))
        tail = b""
        if trailer:
            line = f"{trailer[0]}:{trailer[1]}".encode()
            tail = line + b"\r\n"
            if signed:
                previous = self._chain(
                    "AWS4-HMAC-SHA256-TRAILER",
                    moment,
                    previous,
                    [hashlib.sha256(line + b"\n").hexdigest()],
                )
                tail += b"x-amz-trailer-signature:" + previous.encode() + b"\r\n"
        out.append(tail + b"\r\n")
        return headers, out

    def _chain(self, name, moment, previous, hashes):
        text = "\n".join([name, moment, self.scope(moment[:8]), previous, *hashes])
        return hmac.new(self.key(moment[:8]), text.encode(), hashlib.sha256).hexdigest()

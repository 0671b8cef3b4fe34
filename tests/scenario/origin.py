# SPDX-License-Identifier: Apache-2.0
"""A scripted S3 origin on a loopback port.

Bytes come from the oracle, or from what a client has PUT. Every request goes into a log that tests
query. A fault is one word:

    origin.put("a", 10 << 20)                 an object of 10 MiB in bucket "bkt", version 1
    origin.fault("a", "cut", 5000)            the next GET of it ends after 5000 body bytes
    origin.fault("a", "status", 503, at=2)    the second request from now gets 503 SlowDown
    origin.limit_rate(50, burst=8)            requests above that rate get 503 SlowDown
    with origin.hold("a"):                    requests for it wait here until the block ends
        origin.wait_for(3, key="a")           ... and three of them have arrived
    origin.requests(key="a", method="GET")    the logged requests; origin.coverage("a") the bytes
                                              sent

It has one thread per connection. `self.lock` guards all shared state, and waits use `self.changed`.
It is stricter than HTTP asks of a server: `origin.violations` lists every request that a careful
client would not send. The fixtures assert that the list is empty.

"""

import base64
import contextlib
import dataclasses
import datetime
import email.utils
import gzip
import hashlib
import hmac
import re
import socket
import ssl
import struct
import threading
import time
import urllib.parse
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from oracle import oracle_bytes, oracle_judge, oracle_pieces, name_hash  # noqa: F401 (re-exported)
from ports import free_ports
from waiting import WAIT_S

WAITING = {"delay", "hold", "overwrite", "delete"}  # faults before an object is looked up
QUIET_S = 3  # how long a count waits for replies in flight
MAX_HEAD = 256 << 10
BODY_KEPT = 64 << 10
BODY_PIECE = 1 << 20  # bytes of an object that are sent by one call
TOKEN = re.compile(rb"^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$")
REASONS = {
    100: "Continue",
    101: "Switching Protocols",
    200: "OK",
    204: "No Content",
    206: "Partial Content",
    301: "Moved Permanently",
    304: "Not Modified",
    307: "Temporary Redirect",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    411: "Length Required",
    412: "Precondition Failed",
    416: "Range Not Satisfiable",
    429: "Too Many Requests",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
SUB_RESOURCES = (
    "acl",
    "tagging",
    "cors",
    "lifecycle",
    "policy",
    "versioning",
    "legal-hold",
    "retention",
    "object-lock",
    "encryption",
    "website",
    "notification",
    "logging",
    "replication",
    "requestPayment",
    "publicAccessBlock",
    "ownershipControls",
    "torrent",
    "attributes",
    "restore",
    "select",
    "accelerate",
    "analytics",
    "inventory",
    "metrics",
    "policyStatus",
    "intelligent-tiering",
)


@dataclass
class Version:
    """One immutable content of a key."""

    size: int
    number: int
    etag: str  # with its quotes; None: the origin sends none
    mtime: float
    headers: dict = field(default_factory=dict)
    body: bytes = None  # None: oracle bytes
    parts: list = None  # sizes of the parts of a multipart upload
    checksums: dict = field(default_factory=dict)


@dataclass
class Entry:
    """One request as it was received and answered."""

    number: int
    connection: int
    method: str
    target: str
    bucket: str
    key: str
    query: dict
    headers: list
    range: tuple = None  # (first, last) of the body in the reply
    status: int = 0
    sent: int = 0  # body bytes that the socket took
    version: int = 0
    body_size: int = 0  # of the request
    body: bytes = b""  # its first BODY_KEPT bytes
    done: bool = False
    arrived: float = 0.0
    found: Version = None  # reads this object, if no fault delays it

    def header(self, name):
        for have, value in self.headers:
            if have == name.lower():
                return value
        return None

    @property
    def conditional(self):
        return any(
            self.header(h) is not None
            for h in ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since")
        )


@dataclass
class Fault:
    bucket: str
    key: str
    word: str
    argument: object
    at: int
    times: int
    method: str
    seen: int = 0

    def hits(self):
        self.seen += 1
        return self.seen >= self.at and (self.times is None or self.seen < self.at + self.times)


@dataclass
class WrongByte:
    """The argument of "wrong_byte": the byte of the object at OFFSET is wrong in one answer, the
    first that sends it."""

    offset: int
    is_sent: bool = False

    def take(self, first, length):
        """Returns where in a part of LENGTH bytes of the object from FIRST on the wrong byte is, or
        None. The part is sent with it."""
        if self.is_sent or not first <= self.offset < first + length:
            return None
        self.is_sent = True
        return self.offset - first


class Cut(Exception):
    """Ends the connection here, by FIN or (reset) by RST."""

    def __init__(self, reset=False):
        super().__init__()
        self.reset = reset


class S3Error(Exception):
    def __init__(self, status, code, message="", extra="", headers=()):
        super().__init__(code)
        self.status, self.code, self.message = status, code, message or code
        self.extra, self.headers = extra, headers


def etag_of(name, number):
    return (
        '"' + hashlib.md5(f"{name}\0{number}".encode("utf-8", "surrogateescape")).hexdigest() + '"'
    )


class Origin:
    """The scripted origin; the head of this file describes it. Use it as a context manager, or call
    start() and stop()."""

    def __init__(self, bucket="bkt", sloppy=False, credentials=None, tls=None, region="us-east-1"):
        self.host = "127.0.0.1"  # any address of the loopback network, set before start()
        self.bucket = bucket
        self.sloppy = sloppy  # it ignores conditional headers
        self.credentials = credentials  # {access key: secret}: it verifies signatures
        self.region = region
        self.tls = tls  # (certificate file, key file)
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.buckets = {bucket: {}}  # name -> {key: Version}
        self.counters = {}  # (bucket, key) -> last version number
        self.sub_resources = {}
        self.uploads = {}
        self.faults = []
        self.held = []  # [(bucket, key, method, event)]
        self.log = []
        self.violations = []
        self.threads = set()
        self.sockets = set()
        self.listener = None
        self.port = None
        self.serial = 0
        self.rate = None  # limit_rate()
        self.delay_s = 0.0  # added before every reply head
        self.replicas = {}  # key: a function of the Entry, which returns the Version to read
        self.clock_s = (
            None  # how far its clock is ahead, by which it refuses requests; None: it checks none
        )
        self.keep_alive = True
        self.connection_class = _Connection
        self.added_headers = []  # to every reply without object data: [(name, value)]

    # --- life ---------------------------------------------------------------------------------

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.port = self.port or free_ports(1)[0]  # down() closes it, until start()
        self.listener.bind((self.host, self.port))
        self.listener.listen(1024)
        context = None
        if self.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.tls)
        thread = threading.Thread(target=self._accept, args=(self.listener, context), daemon=True)
        thread.start()
        self.threads.add(thread)

    def down(self):
        """Stops listening and drops every connection. start() brings it back on the same port."""
        listener, self.listener = self.listener, None
        if listener:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self.drop_connections()

    def drop_connections(self):
        with self.lock:
            sockets = list(self.sockets)
        for sock in sockets:
            with contextlib.suppress(OSError):
                # SSLSocket.shutdown() would also end TLS, and the thread of the connection would
                # take the peer's last record for a request.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def stop(self):
        self.release()
        self.down()
        for thread in list(self.threads):
            thread.join(5)

    @property
    def endpoint(self):
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}"

    # --- what is there ------------------------------------------------------------------------

    def name(self, key, bucket=None):
        """The oracle's name of a key."""
        return f"{bucket or self.bucket}/{key}"

    def make_bucket(self, bucket):
        with self.lock:
            self.buckets.setdefault(bucket, {})

    def put(
        self,
        key,
        size,
        bucket=None,
        headers=None,
        etag=...,
        body=None,
        parts=None,
        mtime=None,
        checksums=None,
    ):
        """Makes the next version of KEY, and overwrites an existing one. Returns its number."""
        bucket = bucket or self.bucket
        with self.lock:
            number = self.counters.get((bucket, key), 0) + 1
            self.counters[bucket, key] = number
            if etag is ...:
                etag = etag_of(self.name(key, bucket), number)
                if parts:
                    etag = etag[:-1] + f'-{len(parts)}"'
            merged = {"Content-Type": "binary/octet-stream"}
            merged.update(headers or {})
            self.buckets.setdefault(bucket, {})[key] = Version(
                size=len(body) if body is not None else size,
                number=number,
                etag=etag,
                mtime=time.time() - 3600 if mtime is None else mtime,
                headers=merged,
                body=body,
                parts=parts,
                checksums=checksums or {},
            )
            return number

    def overwrite(self, key, size=None, bucket=None):
        """Makes a new version of an existing key, of the same size by default."""
        with self.lock:
            old = self.buckets[bucket or self.bucket][key]
            return self.put(
                key,
                old.size if size is None else size,
                bucket,
                old.headers,
                parts=old.parts,
                etag=None if old.etag is None else ...,
                mtime=time.time(),
            )

    def redescribe(self, key, headers=None, bucket=None, mtime=None):
        """Uploads the same bytes under the same ETag again, with other headers and a later date."""
        with self.lock:
            objects = self.buckets[bucket or self.bucket]
            old = objects[key]
            objects[key] = dataclasses.replace(
                old,
                headers={**old.headers, **(headers or {})},
                mtime=time.time() if mtime is None else mtime,
            )

    def delete(self, key, bucket=None):
        with self.lock:
            self.buckets[bucket or self.bucket].pop(key, None)

    def version(self, key, bucket=None):
        with self.lock:
            return self.buckets[bucket or self.bucket][key]

    def number_of(self, key, etag, bucket=None):
        """The version number that an ETag (without quotes or a part count) names, or None."""
        name = self.name(key, bucket)
        with self.lock:
            last = self.counters.get((bucket or self.bucket, key), 0)
        for number in range(last, 0, -1):
            if etag_of(name, number).strip('"') == etag.strip('"').split("-")[0]:
                return number
        return None

    def bytes_of(self, key, start=0, length=None, version=None, bucket=None):
        with self.lock:
            have = self.buckets[bucket or self.bucket].get(key)
        if have is not None and have.body is not None:
            return have.body[start : None if length is None else start + length]
        if length is None:
            length = have.size - start
        return oracle_bytes(self.name(key, bucket), version or have.number, start, length)

    # --- faults and barriers --------------------------------------------------------------------

    def fault(self, key, word, argument=None, at=1, times=1, method=None, bucket=None):
        """Applies fault WORD to TIMES matching requests (None: all), from the AT-th on.

        KEY None means any request. The words are in _FAULTS_* below.
        """
        assert word in FAULT_WORDS, word
        made = Fault(bucket or self.bucket, key, word, argument, at, times, method)
        with self.lock:
            self.faults.append(made)
        return made

    def limit_rate(self, per_s, burst):
        """Answers requests above PER_S a second, in bursts of up to BURST, with 503 SlowDown. None:
        no limit."""
        with self.lock:
            self.rate = per_s and (per_s, burst)
            self.tokens, self.tokens_at = burst, time.monotonic()

    def _is_too_fast(self):
        with self.lock:
            if not self.rate:
                return False
            per_s, burst = self.rate
            now = time.monotonic()
            self.tokens = min(burst, self.tokens + (now - self.tokens_at) * per_s)
            self.tokens_at = now
            is_too_fast = self.tokens < 1
            self.tokens -= not is_too_fast
            return is_too_fast

    def clear_faults(self):
        with self.lock:
            self.faults.clear()

    @contextlib.contextmanager
    def hold(self, key, method=None, bucket=None):
        """Holds requests of KEY (None: all) before their reply head until the block ends."""
        held = (bucket or self.bucket, key, method, threading.Event())
        with self.lock:
            self.held.append(held)
        try:
            yield held[3]
        finally:
            held[3].set()
            with self.lock:
                self.held.remove(held)

    def release(self):
        """Releases everything that is held or stalled."""
        with self.lock:
            for held in self.held:
                held[3].set()
            for fault in self.faults:
                if isinstance(fault.argument, tuple) and isinstance(
                    fault.argument[-1], threading.Event
                ):
                    fault.argument[-1].set()

    def wait_for(self, count, timeout=WAIT_S, done=False, **which):
        """Waits until COUNT matching requests have arrived. With done=True, until they were
        answered in full."""

        def enough():
            found = self.requests(**which)
            return sum(1 for entry in found if entry.done or not done) >= count

        with self.changed:
            if not self.changed.wait_for(enough, timeout):
                raise AssertionError(
                    f"the origin saw {len(self.requests(**which))} requests "
                    f"{which}, expected {count} within {timeout} s"
                )
        return self.requests(**which)

    # --- the log --------------------------------------------------------------------------------

    def requests(self, key=None, method=None, bucket=None, since=0, conditional=None, query=None):
        with self.lock:
            return [
                e
                for e in self.log[since:]
                if (key is None or e.key == key)
                and (method is None or e.method == method)
                and (bucket is None or e.bucket == bucket)
                and (conditional is None or e.conditional == conditional)
                and (query is None or query in e.query)
            ]

    def mark(self):
        """A position in the log, for requests(since=...)."""
        with self.lock:
            return len(self.log)

    def _answered(self, **which):
        """Returns the matching requests, after waiting until each that is not held or stalled has
        been answered in full."""
        with self.changed:
            self.changed.wait_for(lambda: all(e.done for e in self.requests(**which)), QUIET_S)
            return self.requests(**which)

    def bytes_sent(self, key=None, since=0):
        return sum(
            e.sent
            for e in self._answered(key=key, method="GET", since=since)
            if e.status in (200, 206)
        )

    def coverage(self, key, version=None, since=0):
        """Returns [(first, stop, times)]: how often each byte range of KEY was sent, without the
        gaps."""
        edges = {}
        for entry in self._answered(key=key, method="GET", since=since):
            if entry.status not in (200, 206) or not entry.range or entry.sent == 0:
                continue
            if version is not None and entry.version != version:
                continue
            first = entry.range[0]
            edges[first] = edges.get(first, 0) + 1
            edges[first + entry.sent] = edges.get(first + entry.sent, 0) - 1
        ret, depth, at = [], 0, None
        for edge in sorted(edges):
            if at is not None and depth > 0:
                ret.append((at, edge, depth))
            depth += edges[edge]
            at = edge
        return ret

    block_coverage = coverage

    def sent_twice(self, key, version=None, since=0):
        """Returns the bytes of KEY that were sent more than once."""
        return sum(
            (stop - first) * (times - 1)
            for first, stop, times in self.coverage(key, version, since)
            if times > 1
        )

    # --- serving --------------------------------------------------------------------------------

    def _accept(self, listener, context):
        number = 0
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            number += 1
            thread = threading.Thread(target=self._serve, args=(sock, context, number), daemon=True)
            with self.lock:
                self.threads = {t for t in self.threads if t.is_alive()}
                thread.start()
                self.threads.add(thread)

    def _serve(self, sock, context, number):
        reset = False
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context:
                sock = context.wrap_socket(sock, server_side=True)
            with self.lock:
                self.sockets.add(sock)
            self.connection_class(self, sock, number).run()
        except Cut as cut:
            reset = cut.reset
        except (OSError, ssl.SSLError):
            pass
        finally:
            with self.lock:
                self.sockets.discard(sock)
            if reset:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(OSError):
                if not reset:
                    sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _violation(self, text):
        with self.lock:
            self.violations.append(text)


# Faults before the reply head ("early": before the request's body is read), in the head, and in the
# body.
_FAULTS_BEFORE = {
    "delay",
    "hold",
    "reset",
    "close",
    "status",
    "error",
    "no_if_match",
    "overwrite",
    "delete",
    "raw",
    "redirect",
    "moved",
    "expired_token",
    "late_result",
    "early",
    "endless",
}
_FAULTS_HEAD = {
    "wrong_length",
    "wrong_range",
    "wrong_total",
    "wrong_etag",
    "no_etag",
    "whole",
    "two_lengths",
    "same_lengths",
    "list_length",
    "plus_length",
    "junk_length",
    "negative_length",
    "length_and_chunked",
    "bare_lf",
    "fold",
    "bare_cr",
    "nul",
    "chunked",
    "chunked_cut",
    "no_length",
    "http10_chunked",
    "te_unknown",
    "switch",
    "two_1xx",
    "header",
    "replace",
    "weak_etag",
    "no_content_range",
    "content_range",
    "unpacks",
}
_FAULTS_BODY = {
    "cut",
    "reset_at",
    "stall",
    "flip",
    "wrong_byte",
    "hold_at",
    "overwrite_at",
    "extra",
    "drip",
    "stray",
    "late_stray",
}
FAULT_WORDS = _FAULTS_BEFORE | _FAULTS_HEAD | _FAULTS_BODY


class _Connection:
    """One client connection, which runs on its own thread."""

    def __init__(self, origin, sock, number):
        self.origin, self.sock, self.number = origin, sock, number
        self.buf = b""
        self.close = False
        self.poisoned = False

    def run(self):
        while not self.close:
            head = self._read_head()
            if head is None:
                return
            self._request(head)

    def _fill(self):
        piece = self.sock.recv(1 << 18)
        if not piece:
            raise Cut()
        self.buf += piece

    def _read_head(self):
        while b"\r\n\r\n" not in self.buf:
            if len(self.buf) > MAX_HEAD:
                self.origin._violation("request head over 256 KiB")
                raise Cut()
            piece = self.sock.recv(1 << 18)
            if not piece:
                if self.buf:
                    self.origin._violation(f"connection closed inside a head: {self.buf[:80]!r}")
                return None
            self.buf += piece
        head, self.buf = self.buf.split(b"\r\n\r\n", 1)
        return head

    def _refuse(self, why, head):
        self.origin._violation(f"{why}: {head[:300]!r}")
        self.sock.sendall(
            b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        raise Cut()

    def _request(self, head):
        lines = head.split(b"\r\n")
        if b"\n" in head.replace(b"\r\n", b"") or b"\r" in head.replace(b"\r\n", b""):
            self._refuse("bare CR or LF", head)
        match = re.match(rb"^([A-Z]+) (/[!-~]*) HTTP/1\.1$", lines[0])
        if not match:
            self._refuse("bad request line", head)
        method, target = match.group(1).decode(), match.group(2).decode()
        headers = []
        for line in lines[1:]:
            name, colon, value = line.partition(b":")
            if not colon or not TOKEN.match(name):
                self._refuse("bad header line", head)
            headers.append(
                (name.decode().lower(), value.strip(b" \t").decode("utf-8", "surrogateescape"))
            )
        names = [n for n, _ in headers]
        for single in (
            "host",
            "content-length",
            "transfer-encoding",
            "range",
            "authorization",
            "if-match",
            "if-none-match",
        ):
            if names.count(single) > 1:
                self._refuse(f"two {single}", head)
        if names.count("host") != 1:
            self._refuse("no Host", head)
        lookup = dict(headers)
        chunked = lookup.get("transfer-encoding")
        if chunked is not None and (chunked.lower() != "chunked" or "content-length" in lookup):
            self._refuse("bad Transfer-Encoding", head)
        length = lookup.get("content-length")
        if length is not None and not length.isdigit():
            self._refuse("bad Content-Length", head)
        if lookup.get("connection", "").lower() == "close" or not self.origin.keep_alive:
            self.close = True
        bucket, key, query = self._route(target, lookup["host"])
        with self.origin.changed:
            entry = Entry(
                len(self.origin.log),
                self.number,
                method,
                target,
                bucket,
                key,
                query,
                headers,
                arrived=time.monotonic(),
            )
            self.origin.log.append(entry)
            faults = [
                f
                for f in self.origin.faults
                if (f.key is None or (f.key == key and f.bucket == bucket))
                and (f.method is None or f.method == method)
            ]
            faults = {f.word: f.argument for f in faults if f.hits()}
            held = [
                event
                for b, k, m, event in self.origin.held
                if (k is None or (k == key and b == bucket)) and m in (None, method)
            ]
            # A test that waits for a read in the log may change the object next. That change comes
            # after the read.
            if method in ("GET", "HEAD") and not held and not WAITING & faults.keys():
                entry.found = self.origin.buckets.get(bucket, {}).get(key)
            self.origin.changed.notify_all()
        try:
            if lookup.get("expect", "").lower() == "100-continue":
                self.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            for event in held:
                event.wait(WAIT_S)
            if self.poisoned:
                self._read_body(chunked is not None, int(length or 0))
                return self._error(entry, S3Error(499, "ClientClosedRequest"))
            if isinstance(faults.get("early"), tuple):
                self._error(entry, S3Error(*faults["early"]))
                self.poisoned = True
                self._read_body(chunked is not None, int(length or 0))
                return
            if "early" in faults:
                self._answer_early(entry, faults["early"])
            body = self._read_body(chunked is not None, int(length or 0))
            entry.body_size, entry.body = len(body), body[:BODY_KEPT]
            self._answer(entry, lookup, body, faults)
        finally:
            with self.origin.changed:
                entry.done = True
                self.origin.changed.notify_all()

    def _answer_early(self, entry, how):
        """Answers before reading the body. HOW is a status, or "reset".

        The body that follows a status is discarded. After a (status, code), see above, the
        connection stays, and every further request on it gets 499.
        """
        if how == "reset":
            raise Cut(reset=True)
        self.close = True
        self._error(entry, S3Error(how, "AccessDenied" if how == 403 else "SlowDown"))
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
            while self.sock.recv(1 << 16):
                pass
        raise Cut()

    def _route(self, target, host):
        path, _, query = target.partition("?")
        ret_query = {}
        for piece in query.split("&") if query else []:
            name, _, value = piece.partition("=")
            ret_query[urllib.parse.unquote_plus(name)] = urllib.parse.unquote_plus(value)
        raw = urllib.parse.unquote_to_bytes(path[1:]).decode("utf-8", "surrogateescape")
        name = host.rsplit(":", 1)[0]
        if name.endswith(".localhost"):
            return name[: -len(".localhost")], raw, ret_query
        bucket, _, key = raw.partition("/")
        return bucket, key, ret_query

    def _read_body(self, chunked, length):
        if not chunked:
            while len(self.buf) < length:
                self._fill()
            body, self.buf = self.buf[:length], self.buf[length:]
            return body
        out = []
        while True:
            size = int(self._line().split(b";")[0], 16)
            while len(self.buf) < size + 2:
                self._fill()
            if self.buf[size : size + 2] != b"\r\n":
                self.origin._violation("bad chunk end")
                raise Cut()
            out.append(self.buf[:size])
            self.buf = self.buf[size + 2 :]
            if size == 0:
                return b"".join(out)

    def _line(self):
        while b"\r\n" not in self.buf:
            self._fill()
        line, self.buf = self.buf.split(b"\r\n", 1)
        return line

    # --- answering ------------------------------------------------------------------------------

    def _answer(self, entry, headers, body, faults):
        origin = self.origin
        try:
            if origin.delay_s or "delay" in faults:  # a distance: it passes in real time
                time.sleep(origin.delay_s + float(faults.get("delay") or 0))
            if "hold" in faults:
                faults["hold"][-1].wait(WAIT_S)
            if origin._is_too_fast():
                raise S3Error(503, "SlowDown", "Please reduce your request rate.")
            if "reset" in faults:
                raise Cut(reset=True)
            if "close" in faults:
                raise Cut()
            if "raw" in faults:
                entry.status = -1
                self.sock.sendall(faults["raw"])
                raise Cut()
            if "endless" in faults:  # an answer that never ends
                status, piece, pause = faults["endless"]
                entry.status = status
                self.sock.sendall(
                    f"HTTP/1.1 {status} {REASONS[status]}\r\n"
                    "Content-Length: 1000000000000\r\n\r\n".encode()
                )
                while True:  # at its own pace, until the peer disconnects
                    self.sock.sendall(piece)
                    time.sleep(pause)
            if "status" in faults:
                status = int(faults["status"])
                raise S3Error(
                    status,
                    {
                        503: "SlowDown",
                        500: "InternalError",
                        403: "AccessDenied",
                        404: "NoSuchKey",
                    }.get(status, "ServiceError"),
                )
            if "error" in faults:
                raise S3Error(*faults["error"])
            if "no_if_match" in faults and "if-match" in headers:
                raise S3Error(int(faults["no_if_match"]), "PreconditionFailed")
            if "redirect" in faults:
                status, location = faults["redirect"]
                raise S3Error(
                    status,
                    "PermanentRedirect" if status == 301 else "TemporaryRedirect",
                    headers=(("Location", location), ("x-amz-bucket-region", "eu-central-1")),
                )
            if "moved" in faults:
                status, location = faults["moved"]
                raise S3Error(status, "TemporaryRedirect", headers=(("Location", location),))
            if "expired_token" in faults:
                raise S3Error(400, "ExpiredToken", "The provided token has expired.")
            if "overwrite" in faults:
                origin.overwrite(entry.key, faults["overwrite"], bucket=entry.bucket)
            if "delete" in faults:
                origin.delete(entry.key, bucket=entry.bucket)
            if origin.credentials:
                self._verify(entry, headers, body)
            self._operate(entry, headers, body, faults)
        except S3Error as error:
            self._error(entry, error)

    def _error(self, entry, error):
        xml = (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{error.code}</Code><Message>'
            f"{escape(error.message)}</Message>{error.extra}<Resource>{escape(entry.target)}"
            f"</Resource><RequestId>origin{entry.number}</RequestId></Error>"
        )
        body = xml.encode("utf-8", "surrogateescape")
        if entry.method == "HEAD" or error.status == 304:
            body = b""
        self._reply(
            entry, error.status, list(error.headers) + [("Content-Type", "application/xml")], body
        )

    def _reply(self, entry, status, headers, body=b"", length=...):
        entry.status = status
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Unknown')}"]
        lines += [f"{n}: {v}" for n, v in [*headers, *self.origin.added_headers]]
        lines += [
            f"x-amz-request-id: origin{entry.number}",
            f"Date: {_date(time.time() + (self.origin.clock_s or 0))}",
            "Server: scripted",
        ]
        if status not in (204, 304):
            lines.append(f"Content-Length: {len(body) if length is ... else length}")
        if self.close:
            lines.append("Connection: close")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape")
        self.sock.sendall(head + (body if entry.method != "HEAD" else b""))
        if entry.method != "HEAD" and status not in (204, 304):
            entry.sent += len(body)

    def _operate(self, entry, headers, body, faults):
        method, query = entry.method, entry.query
        origin = self.origin
        if not entry.bucket:
            if method in ("GET", "HEAD"):
                return self._list_buckets(entry)
            raise S3Error(405, "MethodNotAllowed")
        with origin.lock:
            exists = entry.bucket in origin.buckets
        if not entry.key:
            return self._bucket(entry, headers, body, exists)
        if not exists:
            raise S3Error(
                404, "NoSuchBucket", extra=f"<BucketName>{escape(entry.bucket)}</BucketName>"
            )
        if any(sub in query for sub in SUB_RESOURCES):
            return self._sub_resource(entry, body)
        if method in ("GET", "HEAD"):
            if "uploadId" in query:
                return self._list_parts(entry)
            return self._get(entry, headers, faults)
        if method == "PUT":
            return self._put(entry, headers, body)
        if method == "DELETE":
            if "uploadId" in query:
                with origin.lock:
                    if origin.uploads.pop(query["uploadId"], None) is None:
                        raise S3Error(404, "NoSuchUpload")
            else:
                origin.delete(entry.key, entry.bucket)
            return self._reply(entry, 204, [])
        if method == "POST":
            return self._post(entry, headers, body, faults)
        raise S3Error(405, "MethodNotAllowed")

    # --- reads ----------------------------------------------------------------------------------

    def _get(self, entry, headers, faults):
        with self.origin.lock:
            version = entry.found or self.origin.buckets[entry.bucket].get(entry.key)
            if entry.key in self.origin.replicas:
                version = self.origin.replicas[entry.key](entry)
        if version is None:
            raise S3Error(
                404,
                "NoSuchKey",
                "The specified key does not exist.",
                extra=f"<Key>{escape(entry.key)}</Key>",
            )
        entry.version = version.number
        if "unpacks" in faults and "gzip" not in headers.get("accept-encoding", ""):
            entry.status = 200
            entry.range = (0, 0)
            plain = gzip.decompress(version.body) if entry.method == "GET" else b""
            self.sock.sendall(
                (
                    f"HTTP/1.1 200 OK\r\nETag: {version.etag}\r\nTransfer-Encoding: chunked\r\n"
                    "x-goog-stored-content-encoding: gzip\r\n\r\n"
                ).encode()
                + (b"%x\r\n%s\r\n0\r\n\r\n" % (len(plain), plain) if plain else b"")
            )
            return
        if not self.origin.sloppy:
            _conditions(version, headers)
        reply = [("Last-Modified", _date(version.mtime)), ("Accept-Ranges", "bytes")]
        if version.etag is not None:
            reply.append(("ETag", version.etag))
        reply += list(version.headers.items())
        if "unpacks" in faults:
            reply.append(("x-goog-stored-content-encoding", "gzip"))
        first, last, status = 0, version.size - 1, 200
        part = entry.query.get("partNumber")
        if part is not None:
            first, last, status = _part_range(version, int(part), headers)
            if version.parts:
                reply.append(("x-amz-mp-parts-count", str(len(version.parts))))
        elif "range" in headers and "whole" not in faults:
            span = _parse_range(headers["range"], version.size)
            if span == "unsatisfiable":
                raise S3Error(
                    416,
                    "InvalidRange",
                    "The requested range is not satisfiable",
                    extra=f"<RangeRequested>{escape(headers['range'])}</RangeRequested>"
                    f"<ActualObjectSize>{version.size}</ActualObjectSize>",
                    headers=(("Content-Range", f"bytes */{version.size}"),),
                )
            if span is not None:
                first, last = span
                status = 206
        if status == 200 and headers.get("x-amz-checksum-mode", "").upper() == "ENABLED":
            reply += list(version.checksums.items())
        length = last - first + 1
        if status == 206 and length > 0:
            reply.append(("Content-Range", f"bytes {first}-{last}/{version.size}"))
        entry.range = (first, last)
        entry.status = status
        name = self.origin.name(entry.key, entry.bucket)
        if version.body is not None:
            body = memoryview(version.body)[first : last + 1]
            pieces = (body[at : at + BODY_PIECE] for at in range(0, length, BODY_PIECE))
        else:
            pieces = oracle_pieces(name, version.number, first, length)
        head, framing = _reply_head(self, entry, status, reply, length, faults)
        if entry.method == "HEAD":
            self.sock.sendall(head)
            return
        self._send_body(entry, head, pieces, length, faults, framing)

    def _send_body(self, entry, head, pieces, length, faults, framing):
        if "stray" in faults:  # the answer and unrequested bytes, at once
            self.sock.sendall(head + b"".join(map(bytes, pieces)) + faults["stray"])
            entry.sent += length
            return
        stops = []  # offsets in the body where something happens
        for word in ("cut", "reset_at", "stall", "hold_at", "overwrite_at"):
            if word in faults:
                argument = faults[word]
                at = argument[0] if isinstance(argument, tuple) else int(argument or 0)
                if at <= length:
                    stops.append((at, word, argument))
        stops.sort(key=lambda s: s[0])
        flip = faults.get("flip")
        wrong = faults.get("wrong_byte")
        at = 0
        pending = head
        for piece in pieces:
            while len(piece):
                take = len(piece)
                if stops and stops[0][0] < at + take:
                    take = stops[0][0] - at
                part, piece = piece[:take], piece[take:]
                if flip is not None and at <= flip < at + take:
                    part = bytearray(part)
                    part[flip - at] ^= 0x10
                wrong_at = wrong and wrong.take(entry.range[0] + at, take)
                if wrong_at is not None:
                    part = bytearray(part)
                    part[wrong_at] ^= 0x10
                if framing == "chunked" and take:
                    self.sock.sendall(pending + b"%x\r\n" % take + bytes(part) + b"\r\n")
                    pending = b""
                    entry.sent += take
                elif pending and take <= 65536:
                    self.sock.sendall(pending + bytes(part))
                    pending = b""
                    entry.sent += take
                else:
                    if pending:
                        self.sock.sendall(pending)
                        pending = b""
                    if take and "drip" in faults:
                        self._drip(entry, part, faults["drip"])
                    else:
                        self._send_all(entry, part)
                at += take
                while stops and stops[0][0] == at and (len(piece) or at == length):
                    _, word, argument = stops.pop(0)
                    self._body_fault(entry, word, argument)
                if not take and not len(piece):
                    break
        if pending:
            self.sock.sendall(pending)
        for _, word, argument in stops:
            self._body_fault(entry, word, argument)
        if framing == "chunked":
            if "chunked_cut" in faults:
                raise Cut()
            self.sock.sendall(b"0\r\n\r\n")
        if "extra" in faults:
            self.sock.sendall(b"X" * int(faults["extra"] or 1))
        if "late_stray" in faults:  # the same, while the connection idles
            stray, gone, go = faults["late_stray"]
            go.wait(WAIT_S)
            self.sock.sendall(stray)
            gone.set()
        if framing == "close" or "wrong_length" in faults:
            raise Cut()

    def _send_all(self, entry, part):
        """Sends everything. Counts the bytes that the socket takes, even if the client then closes
        the connection."""
        view = memoryview(part)
        while view:
            taken = self.sock.send(view)
            entry.sent += taken
            view = view[taken:]

    def _drip(self, entry, part, step):
        for at in range(0, len(part), step):
            self.sock.sendall(part[at : at + step])
            entry.sent += len(part[at : at + step])
            time.sleep(0.01)  # the pace is the fault

    def _body_fault(self, entry, word, argument):
        if word == "cut":
            raise Cut()
        if word == "reset_at":
            raise Cut(reset=True)
        if word == "overwrite_at":
            self.origin.overwrite(entry.key, bucket=entry.bucket)
        elif word == "hold_at":
            argument[-1].wait(WAIT_S)
        elif word == "stall":  # until the peer disconnects
            self.sock.settimeout(WAIT_S)
            self.sock.recv(1)
            raise Cut()

    def _list_buckets(self, entry):
        with self.origin.lock:
            names = sorted(self.origin.buckets)
        items = "".join(
            f"<Bucket><Name>{escape(n)}</Name><CreationDate>2024-01-01T00:00:00.000Z"
            "</CreationDate></Bucket>"
            for n in names
        )
        self._xml(
            entry,
            '<ListAllMyBucketsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            "<Owner><ID>origin</ID><DisplayName>origin</DisplayName></Owner>"
            f"<Buckets>{items}</Buckets></ListAllMyBucketsResult>",
        )

    def _bucket(self, entry, headers, body, exists):
        method, query, origin = entry.method, entry.query, self.origin
        if method == "PUT" and not query.keys() - {"x-id"}:
            origin.make_bucket(entry.bucket)
            return self._reply(entry, 200, [("Location", "/" + entry.bucket)])
        if not exists:
            raise S3Error(
                404, "NoSuchBucket", extra=f"<BucketName>{escape(entry.bucket)}</BucketName>"
            )
        if method == "HEAD":
            return self._reply(
                entry,
                200,
                [("x-amz-bucket-region", origin.region), ("Content-Type", "application/xml")],
            )
        if "location" in query:
            where = "" if origin.region == "us-east-1" else escape(origin.region)
            return self._xml(
                entry,
                '<LocationConstraint xmlns="http://s3.amazonaws.com/doc/'
                f'2006-03-01/">{where}</LocationConstraint>',
            )
        if method == "POST" and "delete" in query:
            return self._delete_objects(entry, self._payload(headers, body))
        if "uploads" in query:
            with origin.lock:
                items = "".join(
                    f"<Upload><Key>{escape(u['key'])}</Key><UploadId>{i}</UploadId></Upload>"
                    for i, u in origin.uploads.items()
                    if u["bucket"] == entry.bucket
                )
            return self._xml(
                entry,
                f"<ListMultipartUploadsResult><Bucket>{escape(entry.bucket)}"
                f"</Bucket><IsTruncated>false</IsTruncated>{items}"
                "</ListMultipartUploadsResult>",
            )
        if any(sub in query for sub in SUB_RESOURCES):
            return self._sub_resource(entry, body)
        if method == "DELETE":
            with origin.lock:
                if origin.buckets[entry.bucket]:
                    raise S3Error(409, "BucketNotEmpty")
                del origin.buckets[entry.bucket]
            return self._reply(entry, 204, [])
        if method == "GET":
            return self._list(entry)
        raise S3Error(405, "MethodNotAllowed")

    def _list(self, entry):
        query, origin = entry.query, self.origin
        v2 = query.get("list-type") == "2"
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        try:
            max_keys = int(query.get("max-keys", "1000") or 1000)
        except ValueError:
            max_keys = -1
        if max_keys < 0:
            raise S3Error(
                400,
                "InvalidArgument",
                extra="<ArgumentName>max-keys</ArgumentName>"
                f"<ArgumentValue>{escape(query['max-keys'])}</ArgumentValue>",
            )
        max_keys = min(max_keys, 1000)
        token = query.get("continuation-token") if v2 else None
        after = query.get("start-after", "") if v2 else query.get("marker", "")
        if token:
            after = base64.urlsafe_b64decode(token).decode("utf-8", "surrogateescape")
        with origin.lock:
            keys = sorted(
                origin.buckets[entry.bucket].items(),
                key=lambda kv: kv[0].encode("utf-8", "surrogateescape"),
            )
        encode = (
            (lambda text: urllib.parse.quote(text, safe="/"))
            if query.get("encoding-type") == "url"
            else escape
        )
        rows, prefixes, last, truncated = [], [], None, False
        for key, version in keys:
            raw = key.encode("utf-8", "surrogateescape")
            if not key.startswith(prefix) or (
                after and raw <= after.encode("utf-8", "surrogateescape")
            ):
                continue
            common = None
            if delimiter and delimiter in key[len(prefix) :]:
                common = prefix + key[len(prefix) :].split(delimiter, 1)[0] + delimiter
                if prefixes and prefixes[-1] == common:
                    last = key if v2 else last
                    continue
                if after and common <= after and after.startswith(common):
                    continue
            if len(rows) + len(prefixes) >= max_keys:
                truncated = max_keys > 0
                break
            if common is not None:
                prefixes.append(common)
                last = key if v2 else common
            else:
                rows.append((key, version))
                last = key
        xml = [
            f"<Name>{escape(entry.bucket)}</Name><Prefix>{encode(prefix)}</Prefix>"
            f"<MaxKeys>{max_keys}</MaxKeys><IsTruncated>{str(truncated).lower()}</IsTruncated>"
        ]
        if delimiter:
            xml.append(f"<Delimiter>{encode(delimiter)}</Delimiter>")
        if query.get("encoding-type") == "url":
            xml.append("<EncodingType>url</EncodingType>")
        if v2:
            xml.append(f"<KeyCount>{len(rows) + len(prefixes)}</KeyCount>")
            if token:
                xml.append(f"<ContinuationToken>{escape(token)}</ContinuationToken>")
            if query.get("start-after"):
                xml.append(f"<StartAfter>{encode(query['start-after'])}</StartAfter>")
            if truncated:
                raw = base64.urlsafe_b64encode(last.encode("utf-8", "surrogateescape")).decode()
                xml.append(f"<NextContinuationToken>{raw}</NextContinuationToken>")
        else:
            xml.append(f"<Marker>{encode(query.get('marker', ''))}</Marker>")
            if truncated and delimiter:
                xml.append(f"<NextMarker>{encode(last)}</NextMarker>")
        for key, version in rows:
            xml.append(
                f"<Contents><Key>{encode(key)}</Key><LastModified>{_iso(version.mtime)}"
                f"</LastModified><ETag>{escape(version.etag or '', {chr(34): '&quot;'})}"
                f"</ETag><Size>{version.size}</Size><StorageClass>STANDARD</StorageClass>"
                "</Contents>"
            )
        for common in prefixes:
            xml.append(f"<CommonPrefixes><Prefix>{encode(common)}</Prefix></CommonPrefixes>")
        self._xml(
            entry,
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            + "".join(xml)
            + "</ListBucketResult>",
        )

    def _xml(self, entry, xml, status=200):
        body = ('<?xml version="1.0" encoding="UTF-8"?>\n' + xml).encode("utf-8", "surrogateescape")
        self._reply(entry, status, [("Content-Type", "application/xml")], body)

    # --- writes ---------------------------------------------------------------------------------

    def _payload(self, headers, body):
        """Returns the object's bytes: removes aws-chunked framing and checks the declared
        hashes."""
        declared = headers.get("x-amz-content-sha256", "")
        coding = headers.get("content-encoding", "")
        if declared.startswith("STREAMING-") or "aws-chunked" in coding:
            out, at = [], 0
            while True:
                end = body.index(b"\r\n", at)
                size = int(body[at:end].split(b";")[0], 16)
                at = end + 2
                out.append(body[at : at + size])
                at += size
                if size == 0:
                    break
                at += 2
            body = b"".join(out)
            want = headers.get("x-amz-decoded-content-length")
            if want is not None and int(want) != len(body):
                raise S3Error(400, "IncompleteBody")
        elif re.fullmatch(r"[0-9a-f]{64}", declared):
            if hashlib.sha256(body).hexdigest() != declared:
                raise S3Error(400, "XAmzContentSHA256Mismatch")
        if "content-md5" in headers:
            if base64.b64encode(hashlib.md5(body).digest()).decode() != headers["content-md5"]:
                raise S3Error(400, "BadDigest")
        return body

    def _put(self, entry, headers, body):
        origin, query = self.origin, entry.query
        if "content-length" not in headers and "transfer-encoding" not in headers:
            raise S3Error(411, "MissingContentLength")
        source = headers.get("x-amz-copy-source")
        data = self._payload(headers, body) if source is None else None
        with origin.lock:  # a copy is a snapshot of one moment
            etag = self._store(entry, headers, source, data)
        if source is not None:
            kind = "CopyPartResult" if "uploadId" in query else "CopyObjectResult"
            return self._xml(
                entry,
                f"<{kind}><ETag>{escape(etag)}</ETag><LastModified>"
                f"{_iso(time.time())}</LastModified></{kind}>",
            )
        self._reply(entry, 200, [("ETag", etag)])

    def _store(self, entry, headers, source, data):
        """Stores an upload or a copy and returns the ETag. The caller holds the lock."""
        origin, query = self.origin, entry.query
        kept = {"Content-Type": headers.get("content-type", "binary/octet-stream")}
        if source is not None:
            raw = urllib.parse.unquote(source.lstrip("/"))
            bucket, _, key = raw.partition("/")
            key = key.split("?versionId=")[0]
            have = origin.buckets.get(bucket, {}).get(key)
            if have is None:
                raise S3Error(404, "NoSuchKey")
            data = origin.bytes_of(key, bucket=bucket)
            if headers.get("x-amz-metadata-directive") != "REPLACE":
                kept = dict(have.headers)
        for name, value in entry.headers:
            if name.startswith("x-amz-meta-") or name in (
                "cache-control",
                "content-disposition",
                "content-language",
                "expires",
            ):
                kept[name] = value
        coding = ",".join(
            c.strip()
            for c in headers.get("content-encoding", "").split(",")
            if c.strip() and c.strip() != "aws-chunked"
        )
        if coding:
            kept["Content-Encoding"] = coding
        etag = '"' + hashlib.md5(data).hexdigest() + '"'
        if "uploadId" in query:
            upload = origin.uploads.get(query["uploadId"])
            if upload is None:
                raise S3Error(404, "NoSuchUpload")
            if source is not None and "x-amz-copy-source-range" in headers:
                span = _parse_range(headers["x-amz-copy-source-range"], len(data))
                data = data[span[0] : span[1] + 1]
                etag = '"' + hashlib.md5(data).hexdigest() + '"'
            upload["parts"][int(query["partNumber"])] = data
            return etag
        have = origin.buckets[entry.bucket].get(entry.key)
        if headers.get("if-none-match") == "*" and have is not None:
            raise S3Error(412, "PreconditionFailed", extra="<Condition>If-None-Match</Condition>")
        if "if-match" in headers and (have is None or not _etag_in(have.etag, headers["if-match"])):
            raise S3Error(412, "PreconditionFailed", extra="<Condition>If-Match</Condition>")
        origin.put(
            entry.key,
            len(data),
            entry.bucket,
            kept,
            etag=etag,
            body=data,
            mtime=time.time(),
            checksums={
                n: v
                for n, v in entry.headers
                if n.startswith("x-amz-checksum-") and n != "x-amz-checksum-mode"
            },
        )
        return etag

    def _post(self, entry, headers, body, faults):
        origin, query = self.origin, entry.query
        if "uploads" in query:
            with origin.lock:
                origin.serial += 1
                upload_id = f"upload{origin.serial}"
                origin.uploads[upload_id] = {
                    "bucket": entry.bucket,
                    "key": entry.key,
                    "parts": {},
                    "headers": {
                        "Content-Type": headers.get("content-type", "binary/octet-stream"),
                        **{n: v for n, v in entry.headers if n.startswith("x-amz-meta-")},
                    },
                }
            return self._xml(
                entry,
                f"<InitiateMultipartUploadResult><Bucket>{escape(entry.bucket)}"
                f"</Bucket><Key>{escape(entry.key)}</Key><UploadId>{upload_id}"
                "</UploadId></InitiateMultipartUploadResult>",
            )
        if "uploadId" in query:
            with origin.lock:
                upload = origin.uploads.pop(query["uploadId"], None)
            if upload is None:
                raise S3Error(404, "NoSuchUpload")
            root = ElementTree.fromstring(body)
            numbers = [int(e.text) for e in root.iter() if e.tag.endswith("PartNumber")]
            if not numbers or any(n not in upload["parts"] for n in numbers):
                raise S3Error(400, "InvalidPart")
            parts = [upload["parts"][n] for n in numbers]
            digest = hashlib.md5(b"".join(hashlib.md5(p).digest() for p in parts)).hexdigest()
            etag = f'"{digest}-{len(parts)}"'
            origin.put(
                entry.key,
                0,
                entry.bucket,
                upload["headers"],
                etag=etag,
                body=b"".join(parts),
                parts=[len(p) for p in parts],
                mtime=time.time(),
            )
            result = (
                f"<CompleteMultipartUploadResult><Location>{origin.endpoint}"
                f"{escape(entry.target.partition('?')[0])}</Location><Bucket>"
                f"{escape(entry.bucket)}</Bucket><Key>{escape(entry.key)}</Key><ETag>"
                f"{escape(etag)}</ETag></CompleteMultipartUploadResult>"
            )
            if "late_result" in faults:
                return self._late(entry, result, *faults["late_result"])
            return self._xml(entry, result)
        raise S3Error(501, "NotImplemented")

    def _late(self, entry, result, blanks, go):
        """Sends 200 and blanks at once. Sends the document later, in small pieces, when the event
        is set."""

        def chunk(data):
            self.sock.sendall(b"%x\r\n%s\r\n" % (len(data), data))

        entry.status = 200
        self.sock.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        chunk(b'<?xml version="1.0"?>' if blanks is None else blanks)
        go.wait(WAIT_S)
        for at in range(0, len(result), 7):
            chunk(result[at : at + 7].encode())
        self.sock.sendall(b"0\r\n\r\n")

    def _list_parts(self, entry):
        with self.origin.lock:
            upload = self.origin.uploads.get(entry.query["uploadId"])
        if upload is None:
            raise S3Error(404, "NoSuchUpload")
        items = "".join(
            f"<Part><PartNumber>{n}</PartNumber><ETag>&quot;"
            f"{hashlib.md5(p).hexdigest()}&quot;</ETag><Size>{len(p)}</Size></Part>"
            for n, p in sorted(upload["parts"].items())
        )
        self._xml(
            entry,
            f"<ListPartsResult><Bucket>{escape(entry.bucket)}</Bucket><Key>"
            f"{escape(entry.key)}</Key><IsTruncated>false</IsTruncated>{items}"
            "</ListPartsResult>",
        )

    def _delete_objects(self, entry, body):
        root = ElementTree.fromstring(body)
        out = []
        for item in root.iter():
            if item.tag.endswith("}Key") or item.tag == "Key":
                self.origin.delete(item.text, entry.bucket)
                out.append(f"<Deleted><Key>{escape(item.text)}</Key></Deleted>")
        self._xml(entry, f"<DeleteResult>{''.join(out)}</DeleteResult>")

    def _sub_resource(self, entry, body):
        origin = self.origin
        name = next(sub for sub in SUB_RESOURCES if sub in entry.query)
        place = (entry.bucket, entry.key, name)
        with origin.lock:
            if entry.key and entry.key not in origin.buckets[entry.bucket]:
                raise S3Error(404, "NoSuchKey", extra=f"<Key>{escape(entry.key)}</Key>")
            if entry.method in ("PUT", "POST"):
                origin.sub_resources[place] = body
                return self._reply(entry, 200, [])
            if entry.method == "DELETE":
                origin.sub_resources.pop(place, None)
                return self._reply(entry, 204, [])
            have = origin.sub_resources.get(place)
        if have is None:
            raise S3Error(404, f"NoSuch{name.title().replace('-', '')}Configuration")
        self._reply(entry, 200, [("Content-Type", "application/xml")], have)

    # --- signatures -----------------------------------------------------------------------------

    def _verify(self, entry, headers, body):
        """Verifies signatures in headers only, and refuses every other form."""
        match = re.fullmatch(
            r"AWS4-HMAC-SHA256 Credential=([^/,]+)/(\d{8})/([^/]+)/s3/"
            r"aws4_request,\s*SignedHeaders=([a-z0-9;\-]+),\s*"
            r"Signature=([0-9a-f]{64})",
            headers.get("authorization", ""),
        )
        if not match:
            raise S3Error(403, "AccessDenied")
        access_key, date, region, signed, signature = match.groups()
        if self.origin.clock_s is not None:
            signed_at = datetime.datetime.strptime(
                headers["x-amz-date"] + "+0000", "%Y%m%dT%H%M%SZ%z"
            ).timestamp()
            if abs(signed_at - time.time() - self.origin.clock_s) > 900:
                raise S3Error(403, "RequestTimeTooSkewed")
        secret = self.origin.credentials.get(access_key)
        if secret is None:
            raise S3Error(403, "InvalidAccessKeyId")
        names = signed.split(";")
        for must in ["host"] + [n for n, _ in entry.headers if n.startswith("x-amz-")]:
            if must not in names:
                raise S3Error(403, "AccessDenied", f"{must} is not signed")
        path, _, query = entry.target.partition("?")
        pieces = (
            sorted((p.partition("=")[0], p.partition("=")[2]) for p in query.split("&") if p)
            if query
            else []
        )
        canonical = "\n".join(
            [
                entry.method,
                urllib.parse.quote(urllib.parse.unquote_to_bytes(path), safe="/-_.~"),
                "&".join(f"{_requote(n)}={_requote(v)}" for n, v in pieces),
                "".join(f"{n}:{' '.join(headers.get(n, '').split())}\n" for n in names),
                signed,
                headers.get("x-amz-content-sha256", ""),
            ]
        )
        if region != self.origin.region:
            raise S3Error(
                400,
                "AuthorizationHeaderMalformed",
                "The region is wrong",
                extra=f"<Region>{escape(self.origin.region)}</Region>",
            )
        scope = f"{date}/{region}/s3/aws4_request"
        to_sign = "\n".join(
            [
                "AWS4-HMAC-SHA256",
                headers.get("x-amz-date", ""),
                scope,
                hashlib.sha256(canonical.encode("utf-8", "surrogateescape")).hexdigest(),
            ]
        )
        key = ("AWS4" + secret).encode()
        for piece in (date, region, "s3", "aws4_request"):
            key = hmac.new(key, piece.encode(), hashlib.sha256).digest()
        want = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
        if not hmac.compare_digest(want, signature):
            self.origin._violation(
                f"signature mismatch on {entry.method} {entry.target}; "
                f"canonical request: {canonical!r}"
            )
            raise S3Error(403, "SignatureDoesNotMatch")


# --- pure helpers --------------------------------------------------------------------------------


def _requote(text):
    return urllib.parse.quote(urllib.parse.unquote_to_bytes(text.replace("+", "%20")), safe="-_.~")


def _date(when):
    return email.utils.formatdate(when, usegmt=True)


def _iso(when):
    moment = datetime.datetime.fromtimestamp(when, datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def _etag_in(etag, header):
    if header.strip() == "*":
        return etag is not None
    return etag is not None and etag.strip('"') in [p.strip().strip('"') for p in header.split(",")]


def _conditions(version, headers):
    since = None
    if "if-match" in headers:
        if not _etag_in(version.etag, headers["if-match"]):
            raise S3Error(412, "PreconditionFailed", extra="<Condition>If-Match</Condition>")
    elif "if-unmodified-since" in headers:
        since = email.utils.parsedate_to_datetime(headers["if-unmodified-since"]).timestamp()
        if int(version.mtime) > since:
            raise S3Error(
                412, "PreconditionFailed", extra="<Condition>If-Unmodified-Since</Condition>"
            )
    keep = [("ETag", version.etag)] if version.etag else []
    keep.append(("Last-Modified", _date(version.mtime)))
    if "if-none-match" in headers:
        if _etag_in(version.etag, headers["if-none-match"]):
            raise S3Error(304, "NotModified", headers=keep)
    elif "if-modified-since" in headers:
        since = email.utils.parsedate_to_datetime(headers["if-modified-since"]).timestamp()
        if int(version.mtime) <= since:
            raise S3Error(304, "NotModified", headers=keep)


def _parse_range(text, size):
    """Returns (first, last), None for a range to ignore, or "unsatisfiable"."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", text)
    if not match or (not match.group(1) and not match.group(2)):
        return None
    if not match.group(1):
        count = int(match.group(2))
        if count == 0:
            return "unsatisfiable"
        if size == 0:
            return None
        return max(0, size - count), size - 1
    first = int(match.group(1))
    last = int(match.group(2)) if match.group(2) else size - 1
    if match.group(2) and last < first:
        return None
    if first >= size:
        return "unsatisfiable"
    return first, min(last, size - 1)


def _part_range(version, part, headers):
    if "range" in headers:
        raise S3Error(400, "InvalidRequest")
    parts = version.parts or [version.size]
    if part < 1 or part > len(parts):
        raise S3Error(416, "InvalidPartNumber")
    first = sum(parts[: part - 1])
    if version.size == 0:
        return 0, -1, 200
    return first, first + parts[part - 1] - 1, 206


def _reply_head(connection, entry, status, reply, length, faults):
    """Returns the bytes of a GET's reply head, with faults of the head, and the framing of the
    body."""
    version = "HTTP/1.1"
    framing = "length"
    lengths = [str(length)]
    headers = list(reply)

    def alter(name, change):
        for i, (have, value) in enumerate(headers):
            if have == name:
                headers[i] = (have, change(value))

    def shift(text, by_first, by_total):
        first, last, total = map(int, re.match(r"bytes (\d+)-(\d+)/(\d+)", text).groups())
        return f"bytes {first + by_first}-{last + by_first}/{total + by_total}"

    if "wrong_length" in faults:
        lengths = [str(length + int(faults["wrong_length"] or 1))]
    if "wrong_range" in faults:
        alter("Content-Range", lambda v: shift(v, int(faults["wrong_range"] or 1), 0))
    if "wrong_total" in faults:
        alter("Content-Range", lambda v: shift(v, 0, int(faults["wrong_total"] or 1)))
    if "wrong_etag" in faults:
        alter("ETag", lambda v: '"' + "f" * 32 + '"')
    if "weak_etag" in faults:
        alter("ETag", lambda v: "W/" + v)
    if "no_etag" in faults:
        headers = [h for h in headers if h[0] != "ETag"]
    if "no_content_range" in faults:
        headers = [h for h in headers if h[0] != "Content-Range"]
    if "content_range" in faults:
        alter("Content-Range", lambda v: faults["content_range"].format(*re.split("[ /-]", v)[1:]))
    if "two_lengths" in faults:
        lengths = [str(length), str(max(0, length - 1))]
    if "same_lengths" in faults:
        lengths = [str(length), str(length)]
    if "list_length" in faults:
        lengths = [f"{length}, {length}"]
    if "plus_length" in faults:
        lengths = [f"+{length}"]
    if "junk_length" in faults:
        lengths = [f"{length}x"]
    if "negative_length" in faults:
        lengths = ["-1"]
    if {"chunked", "chunked_cut", "length_and_chunked", "http10_chunked"} & faults.keys():
        framing = "chunked"
        if "length_and_chunked" not in faults:
            lengths = []
        headers.append(("Transfer-Encoding", "chunked"))
        if "http10_chunked" in faults:
            version = "HTTP/1.0"
    if "te_unknown" in faults:
        headers.append(("Transfer-Encoding", "cow"))
        lengths = []
        framing = "close"
    if "no_length" in faults:
        lengths = []
        framing = "close"
    if "header" in faults:
        headers.append(faults["header"])
    for name, value in faults.get(
        "replace", {}
    ).items():  # None: leave the header out; or a value made from the true one
        value = value(dict(headers).get(name)) if callable(value) else value
        if name == "Content-Length":
            lengths = [value]
        else:
            headers = [h for h in headers if h[0] != name] + (
                [] if value is None else [(name, value)]
            )
    lines = [f"{version} {status} {REASONS.get(status)}"] + [f"{n}: {v}" for n, v in headers]
    lines += [f"Content-Length: {n}" for n in lengths]
    lines += [
        f"x-amz-request-id: origin{entry.number}",
        f"Date: {_date(time.time() + (connection.origin.clock_s or 0))}",
        "Server: scripted",
    ]
    if connection.close:
        lines.append("Connection: close")
    end = "\r\n"
    text = end.join(lines) + end + end
    if "bare_lf" in faults:
        text = text.replace("\r\n", "\n")
    if "fold" in faults:
        text = text.replace("Server: scripted", "Server: a\r\n folded")
    if "bare_cr" in faults:
        text = text.replace("Server: scripted", "Server: a\rb")
    if "nul" in faults:
        text = text.replace("Server: scripted", "Server: a\0b")
    if "switch" in faults:
        text = (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: cow\r\nConnection: Upgrade\r\n\r\n" + text
        )
    if "two_1xx" in faults:
        text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + text
    return text.encode("utf-8", "surrogateescape"), framing

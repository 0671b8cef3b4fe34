# SPDX-License-Identifier: Apache-2.0
"""A strict HTTP/1.1 client on a raw socket.

It rejects replies that two parsers could read differently, and it distinguishes a truncated reply
from a complete one. `Connection` is one socket. `Client` adds keep-alive, S3 paths and the oracle.
"""

import re
import socket
import struct
import time
import urllib.parse

from oracle import oracle_judge

TIMEOUT_S = 60
TOKEN = re.compile(rb"^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$")
STATUS = re.compile(rb"^HTTP/1\.1 (\d{3}) ([ -~]+)$")


class ProtocolError(AssertionError):
    """The server sent invalid or ambiguous HTTP."""


class Closed(Exception):
    """The server closed the connection before a reply began."""


class Truncated(Exception):
    """The connection ended inside a reply. Every truncation must be visible to the client in this
    way."""

    def __init__(self, reply):
        super().__init__(f"{len(reply.body)} of {reply.length} bytes")
        self.reply = reply


class Reply:
    def __init__(self, status, reason, headers, head):
        self.status, self.reason, self.headers, self.head = status, reason, headers, head
        self.body = b""
        self.length = None
        self.complete = False
        self.closes = (self.header("connection") or "").lower() == "close"

    def header(self, name):
        for have, value in self.headers:
            if have == name.lower():
                return value
        return None

    def all(self, name):
        return [value for have, value in self.headers if have == name.lower()]

    @property
    def etag(self):
        return self.header("etag")

    @property
    def code(self):
        """The S3 error code in an XML body."""
        match = re.search(rb"<Code>([^<]*)</Code>", bytes(self.body))
        return match.group(1).decode() if match else None

    def element(self, name):
        match = re.search(rb"<%s>([^<]*)</%s>" % (name.encode(), name.encode()), bytes(self.body))
        return match.group(1).decode() if match else None

    @property
    def span(self):
        """Returns (first, last, total) of Content-Range."""
        match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", self.header("content-range") or "")
        return tuple(map(int, match.groups())) if match else None

    def __repr__(self):
        return f"<{self.status} {self.reason} {dict(self.headers)} {bytes(self.body[:200])!r}>"


class Connection:
    def __init__(self, port, timeout=TIMEOUT_S, receive_buffer=None, path=None, address=None):
        if path:
            self.sock = socket.socket(socket.AF_UNIX)
        else:
            self.sock = socket.socket()
            if receive_buffer:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if address:
            self.sock.bind((address, 0))
        self.sock.settimeout(timeout)
        self.sock.connect(path or ("127.0.0.1", port))
        if not path:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buf = bytearray()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.sock.close()

    def reset(self):
        """Disconnects with RST. After a FIN alone, the server still sends the reply."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def send(self, data):
        self.sock.sendall(data)

    def finish_sending(self):
        self.sock.shutdown(socket.SHUT_WR)

    def _fill(self):
        try:
            piece = self.sock.recv(1 << 18)
        except ConnectionResetError:
            return False
        self.buf += piece
        return bool(piece)

    def read_head(self):
        """Reads one reply head, and the interim replies before it. Raises Closed at a clean end."""
        while b"\r\n\r\n" not in self.buf:
            if len(self.buf) > 320 << 10:
                raise ProtocolError("reply head over 320 KiB")
            if not self._fill():
                if self.buf:
                    raise ProtocolError(f"closed inside a head: {bytes(self.buf[:200])!r}")
                raise Closed()
        end = self.buf.index(b"\r\n\r\n")
        head = bytes(self.buf[:end])
        del self.buf[: end + 4]
        lines = head.split(b"\r\n")
        match = STATUS.match(lines[0])
        if not match:
            raise ProtocolError(f"bad status line {lines[0]!r}")
        headers = []
        for line in lines[1:]:
            name, colon, value = line.partition(b":")
            if not colon or not TOKEN.match(name) or re.search(rb"[\x00-\x08\x0a-\x1f\x7f]", value):
                raise ProtocolError(f"bad header line {line!r}")
            headers.append(
                (name.decode().lower(), value.strip(b" \t").decode("utf-8", "surrogateescape"))
            )
        reply = Reply(int(match.group(1)), match.group(2).decode(), headers, head)
        if len(reply.all("content-length")) > 1 or (
            reply.header("transfer-encoding") and reply.header("content-length")
        ):
            raise ProtocolError(f"ambiguous framing {head!r}")
        return reply

    def body_length(self, reply, method):
        if method == "HEAD" or reply.status in (204, 304) or reply.status < 200:
            return 0
        length = reply.header("content-length")
        if length is None or not length.isdigit():
            raise ProtocolError(f"no usable Content-Length: {reply.head!r}")
        return int(length)

    def read_reply(self, method="GET", interim=False):
        """Reads one whole reply. Raises Truncated if the connection ends inside its body."""
        reply = self.read_head()
        while reply.status < 200 and not interim:
            reply = self.read_head()
        if method != "HEAD" and reply.header("transfer-encoding") is not None:
            return self._read_chunked(reply)
        reply.length = self.body_length(reply, method)
        reply.body = self.read_body(reply.length, reply)
        reply.complete = True
        return reply

    def read_body(self, length, reply):
        """Reads the next LENGTH bytes of REPLY's body. Raises Truncated, with the bytes received so
        far in reply.body."""
        body = bytearray(length)
        have = min(length, len(self.buf))
        body[:have] = self.buf[:have]
        del self.buf[:have]
        view = memoryview(body)
        while have < length:
            try:
                count = self.sock.recv_into(view[have:])
            except ConnectionResetError:
                count = 0
            if count == 0:
                view.release()
                del body[have:]
                reply.body = body
                raise Truncated(reply)
            have += count
        return body

    def _read_chunked(self, reply):
        if reply.header("transfer-encoding").lower() != "chunked":
            raise ProtocolError(f"unknown coding {reply.head!r}")
        out = bytearray()
        while True:
            line = self._read_line(reply)
            if not re.fullmatch(rb"[0-9a-fA-F]{1,16}", line):
                raise ProtocolError(f"bad chunk line {line!r}")
            size = int(line, 16)
            while len(self.buf) < size + 2:
                if not self._fill():
                    reply.body = out
                    raise Truncated(reply)
            out += self.buf[:size]
            if self.buf[size : size + 2] != b"\r\n":
                raise ProtocolError("bad chunk end")
            del self.buf[: size + 2]
            if size == 0:
                reply.body, reply.complete = out, True
                return reply

    def _read_line(self, reply):
        while b"\r\n" not in self.buf:
            if not self._fill():
                raise Truncated(reply)
        end = self.buf.index(b"\r\n")
        line = bytes(self.buf[:end])
        del self.buf[: end + 2]
        return line

    def at_end(self):
        """True if the server has closed the connection and every byte has been read."""
        while True:
            if self.buf:
                return False
            try:
                if not self._fill():
                    return True
            except TimeoutError:
                return False


def quote(key):
    return urllib.parse.quote(key.encode("utf-8", "surrogateescape"), safe="/-_.~")


def request_bytes(method, target, host, headers=(), body=b""):
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"] + [f"{n}: {v}" for n, v in headers]
    if body and not any(n.lower() == "content-length" for n, _ in headers):
        lines.append(f"Content-Length: {len(body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape") + body


class Client:
    """Sends requests one after another on a kept-alive connection. Reconnects when the server has
    closed it."""

    def __init__(self, port, bucket="bkt", timeout=TIMEOUT_S, host=None):
        self.port, self.bucket, self.timeout = port, bucket, timeout
        self.host = host or f"127.0.0.1:{port}"
        self.connection = None
        self.first_byte_s = None
        self.answered = 0  # requests

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.connection:
            self.connection.close()
            self.connection = None

    def request(self, method, target, headers=(), body=b""):
        data = request_bytes(method, target, self.host, headers, body)
        fresh = self.connection is None
        while True:
            if self.connection is None:
                self.connection = Connection(self.port, self.timeout)
                fresh = True
            try:
                self.connection.send(data)
                reply = self.connection.read_reply(method)
                break
            except (Closed, BrokenPipeError, ConnectionResetError):
                self.close()
                if fresh:
                    raise
            except BaseException:
                self.close()
                raise
        self.answered += 1
        if reply.closes:
            self.close()
        return reply

    def target(self, key, bucket=None, query=""):
        return f"/{bucket or self.bucket}/{quote(key)}{'?' + query if query else ''}"

    def get(self, key, first=None, last=None, bucket=None, headers=(), query="", method="GET"):
        """Sends a GET of a key. FIRST asks for a range up to LAST (None: to the end)."""
        headers = list(headers)
        if first is not None:
            headers.append(("Range", f"bytes={first}-{'' if last is None else last}"))
        return self.request(method, self.target(key, bucket, query), headers)

    def head(self, key, **more):
        return self.get(key, method="HEAD", **more)

    def list(self, query="list-type=2", bucket=None):
        return self.request("GET", f"/{bucket or self.bucket}?{query}")


def judge(reply, origin, key, first=0, length=None, version=None, bucket=None):
    """Checks a complete 200 or 206: every byte belongs to the version that its ETag names."""
    assert reply.status in (200, 206), reply
    name = origin.name(key, bucket)
    if reply.status == 206:
        assert reply.span is not None, reply
        assert reply.span[0] == first, (reply.span, first)
    if length is not None:
        assert len(reply.body) == length, (len(reply.body), length)
    named = origin.number_of(key, reply.etag, bucket) if reply.etag else None
    if version is not None and named is not None:
        assert named == version, f"{key}: ETag {reply.etag} names version {named}, not {version}"
    return oracle_judge(name, reply.body, first, version or named)


def judge_streamed(connection, origin, key, first=0, length=None, head=None):
    """Like judge(), for a reply that is too large to keep. Reads the head unless that was done,
    then reads and judges the body piece by piece."""
    reply = head or connection.read_head()
    assert reply.status in (200, 206) and reply.etag, reply
    assert reply.status == 200 or reply.span[0] == first, (reply.span, first)
    left = connection.body_length(reply, "GET")
    assert length is None or left == length, (left, length)
    version = origin.number_of(key, reply.etag)
    while left > 0:
        piece = connection.read_body(min(left, 1 << 20), reply)
        oracle_judge(origin.name(key), piece, first, version)
        first += len(piece)
        left -= len(piece)
    return reply


def judge_truncated(reply, origin, key, first=0, bucket=None):
    """Checks that the bytes before a truncation are right too."""
    if reply.status in (200, 206) and len(reply.body):
        return oracle_judge(origin.name(key, bucket), reply.body, first)
    return None


def now():
    return time.monotonic()

# SPDX-License-Identifier: Apache-2.0
"""The HTTP front: refused requests, pipelining, Expect, limits, and slow or vanished clients."""

import shutil
import subprocess
import threading

import pytest
from client import Closed, ProtocolError, Truncated, judge
from forebay import parallel, scaled

TOKENS = set(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
TAIL = b"GET /bkt/canary HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def head(line=b"GET /bkt/a HTTP/1.1", headers=(), host=b"Host: 127.0.0.1"):
    lines = [line] + ([host] if host else []) + list(headers)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def malformed():
    """Returns [(name, bytes)]: requests that must be refused with 4xx or 5xx and a close."""
    rows = []

    def row(name, data):
        rows.append((name, data))

    # Transfer codings.
    for value in (
        b"cow",
        b"chunked, cow",
        b"cow, chunked",
        b"chunked, chunked",
        b",chunked",
        b"chunked,",
        b"chunked ,",
        b", chunked",
        b"chunked;q=1",
        b'"chunked"',
        b"chunked\x0b",
        b"\x0bchunked",
        b"\x0cchunked",
        b"x chunked",
        b"chunke",
        b"xchunked",
        b"chunkedx",
        b"identity",
        b"identity, chunked",
        b"gzip",
        b"gzip, chunked",
        b"deflate",
        b"",
        b"chunked\x00",
        b"chunked\x01",
        b"chunked\x7f",
        b"chun\tked",
        b"[chunked]",
        b"(chunked)",
        b"chunked=1",
        b"1",
        b"chunked|",
        b"CHUNKED, CHUNKED",
    ):
        row("te " + repr(value), head(headers=[b"Transfer-Encoding: " + value]) + b"0\r\n\r\n")
        row(
            "te+cl " + repr(value),
            head(headers=[b"Transfer-Encoding: " + value, b"Content-Length: 5"]) + b"0\r\n\r\n",
        )
        row(
            "put te " + repr(value),
            head(b"PUT /bkt/a HTTP/1.1", [b"Transfer-Encoding: " + value]) + b"0\r\n\r\n",
        )
    for first, second in (
        (b"Content-Length: 5", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: chunked", b"Content-Length: 5"),
        (b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"),
        (b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked"),
        (b"transfer-encoding: chunked", b"TRANSFER-ENCODING: cow"),
        (b"Content-Length: 0", b"Transfer-Encoding: chunked"),
    ):
        for method in (b"GET", b"PUT", b"POST"):
            row(
                f"{method} {first} {second}",
                head(method + b" /bkt/a HTTP/1.1", [first, second]) + b"0\r\n\r\n",
            )
    for name in (
        b"Transfer-Encoding ",
        b" Transfer-Encoding",
        b"\tTransfer-Encoding",
        b"Transfer-Encoding\t",
        b"Transfer\x00Encoding",
        b"Transfer Encoding",
    ):
        row("te name " + repr(name), head(headers=[name + b": chunked"]) + b"0\r\n\r\n")
    for folded in (
        b"Transfer-Encoding:\r\n chunked",
        b"Transfer-Encoding: x\r\n\tchunked",
        b"X: y\r\n Transfer-Encoding: chunked",
        b"Content-Length:\r\n 5",
        b"Content-Length: 1\r\n 5",
        b"Content-Length: 1\r\n\t5",
        b"X: a\r\n b",
        b"X:\r\n\tb",
        b"X: a\r\n \r\n b",
    ):
        row("fold " + repr(folded), head(headers=[folded]))
    row("te on 1.0", head(b"PUT /bkt/a HTTP/1.0", [b"Transfer-Encoding: chunked"]) + b"0\r\n\r\n")
    row(
        "te on 1.0 get",
        head(b"GET /bkt/a HTTP/1.0", [b"Transfer-Encoding: chunked"]) + b"0\r\n\r\n",
    )
    row("te hidden by cr", head(headers=[b"X: a\rTransfer-Encoding: chunked"]) + b"0\r\n\r\n")
    # Content-Length.
    for value in (
        b"+5",
        b"-1",
        b"-0",
        b"0x5",
        b"5, 5",
        b"5,5",
        b"5 5",
        b"",
        b" ",
        b"5;",
        b"5.0",
        b"1e3",
        b"abc",
        b"5a",
        b"a5",
        b"\x005",
        b"5\x00",
        b"\xb2",
        b"5\x0b",
        b"18446744073709551616",
        b"99999999999999999999999999",
        b"9" * 200,
        b"_5",
        b"5_0",
        b"'5'",
        b'"5"',
        b"0b1",
        b"5,",
        b",5",
        b"\xef\xbc\x95",
    ):
        for method in (b"GET", b"PUT"):
            row(
                f"cl {method} {value!r}",
                head(method + b" /bkt/a HTTP/1.1", [b"Content-Length: " + value]) + b"hello",
            )
    for values in (
        (b"5", b"5"),
        (b"5", b"6"),
        (b"0", b"5"),
        (b"5", b"0"),
        (b"0", b"0"),
        (b"5", b"5", b"5"),
    ):
        row(
            f"cl twice {values}", head(headers=[b"Content-Length: " + v for v in values]) + b"hello"
        )
    row("cl space before colon", head(headers=[b"Content-Length : 0"]))
    # Header lines, byte by byte.
    for byte in range(256):
        raw = bytes([byte])
        if byte not in TOKENS and raw != b":":
            row(f"name start {byte:02x}", head(headers=[raw + b"X: y"]))
            row(f"name middle {byte:02x}", head(headers=[b"X" + raw + b"Y: z"]))
            if raw not in b"\r\n":
                row(f"name end {byte:02x}", head(headers=[b"X" + raw + b": y"]))
        if (byte < 0x20 and raw != b"\t") or byte == 0x7F:
            row(f"value start {byte:02x}", head(headers=[b"X: " + raw + b"y"]))
            row(f"value middle {byte:02x}", head(headers=[b"X: a" + raw + b"b"]))
            if raw != b"\n" and raw != b"\r":
                row(f"value end {byte:02x}", head(headers=[b"X: a" + raw]))
        if byte <= 0x20 or byte >= 0x7F or raw == b"#":
            row(f"target {byte:02x}", head(b"GET /bkt/a" + raw + b"b HTTP/1.1"))
        if byte not in TOKENS and raw != b" ":
            row(f"method {byte:02x}", head(b"G" + raw + b"ET /bkt/a HTTP/1.1"))
    for line in (
        b": no name",
        b"no colon",
        b"",
        b"a b: c",
        b"\x00: x",
        b"X : y",
        b"(x): y",
        b"x,y: z",
        b"x;y: z",
        b"x=y: z",
        b"x@y: z",
        b"{x}: z",
        b'"x": y',
        b"x/y: z",
        b"x?y: z",
        b"x[1]: z",
        b"x\\y: z",
        b"<x>: z",
    ):
        if line:
            row("line " + repr(line), head(headers=[line]))
    # Ends of lines and of heads.
    row("lf only", b"GET /bkt/a HTTP/1.1\nHost: 127.0.0.1\n\n")
    row("lf after the request line", b"GET /bkt/a HTTP/1.1\nHost: 127.0.0.1\r\n\r\n")
    row("lf after a header", b"GET /bkt/a HTTP/1.1\r\nHost: 127.0.0.1\nX: y\r\n\r\n")
    row("lf at the end", b"GET /bkt/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\n")
    row("cr only", b"GET /bkt/a HTTP/1.1\rHost: 127.0.0.1\r\r\n\r\n")
    row("crlf cr x", b"GET /bkt/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\rX\r\n\r\n")
    row("cr cr lf", b"GET /bkt/a HTTP/1.1\r\r\nHost: 127.0.0.1\r\n\r\n")
    row("cr in a value", head(headers=[b"X: a\rb"]))
    row("two empty lines first", b"\r\n\r\n" + head())
    row("many empty lines first", b"\r\n" * 20 + head())
    row("blanks first", b"  " + head())
    row("lf first", b"\n" + head())
    # Hosts.
    row("no host", head(host=None))
    row("two hosts", head(headers=[b"Host: 127.0.0.1"]))
    row("two different hosts", head(headers=[b"Host: localhost"]))
    for host in (
        b"a@127.0.0.1",
        b"127.0.0.1, localhost",
        b"127.0.0.1:x",
        b"127.0.0.1:99999",
        b"127.0.0.1:80:80",
        b"127.0.0.1/",
        b"127.0.0.1?x",
        b"127.0.0.1#x",
        b"http://127.0.0.1",
        b"[::1",
        b"::1]",
        b"127.0.0.1 ",
        b"127.0.0.1:-1",
        b"127.0.0.1: 80",
        b"127.0.0.1\\x",
        b"%31%32%37.0.0.1",
        b"127.0.0.1;x",
        b"<x>",
        b"[]",
        b"[::g]",
        b"a b",
        b":80",
    ):
        if not host.endswith(b" "):
            row("host " + repr(host), head(host=b"Host: " + host))
    # Request lines.
    for line in (
        b"GET /bkt/a",
        b"GET  /bkt/a HTTP/1.1",
        b"GET /bkt/a  HTTP/1.1",
        b"GET /bkt/a HTTP/1.1 ",
        b"GET\t/bkt/a HTTP/1.1",
        b"GET /bkt/a\tHTTP/1.1",
        b"GET /bkt/a b HTTP/1.1",
        b"GET",
        b"GET ",
        b"/bkt/a HTTP/1.1",
        b"HTTP/1.1",
        b"GET /bkt/a HTTP/0.9",
        b"GET /bkt/a HTTP/1.2",
        b"GET /bkt/a HTTP/2.0",
        b"GET /bkt/a HTTP/3",
        b"GET /bkt/a HTTP/1",
        b"GET /bkt/a HTTP/1.",
        b"GET /bkt/a HTTP/.1",
        b"GET /bkt/a HTTP/11.1",
        b"GET /bkt/a HTTP/1.1x",
        b"GET /bkt/a http/1.1",
        b"GET /bkt/a HTTPS/1.1",
        b"GET /bkt/a XTTP/1.1",
        b"GET /bkt/a HTTP 1.1",
        b"GET /bkt/a HTTP/1,1",
        b"GET /bkt/a RTSP/1.0",
        b"GET /bkt/a ICE/1.0",
        b"GET /bkt/a HTTP/-1.1",
        b"GET /bkt/a HTTP/1.01",
        b"GET bkt/a HTTP/1.1",
        b"GET a HTTP/1.1",
        b"GET ? HTTP/1.1",
        b"GET * HTTP/1.1",
        b"GET \\bkt\\a HTTP/1.1",
        b"GET /bkt/a#frag HTTP/1.1",
        b"GET /bkt/%zz HTTP/1.1",
        b"GET /bkt/%2 HTTP/1.1",
        b"GET /bkt/% HTTP/1.1",
        b"get /bkt/a HTTP/1.1",
        b"Get /bkt/a HTTP/1.1",
        b"GETS /bkt/a HTTP/1.1",
        b"FOO /bkt/a HTTP/1.1",
        b"CONNECT 127.0.0.1:80 HTTP/1.1",
        b"CONNECT /bkt/a HTTP/1.1",
        b"TRACE /bkt/a HTTP/1.1",
        b"PRI * HTTP/2.0",
        b"SOURCE /bkt/a HTTP/1.1",
        b"DESCRIBE /bkt/a HTTP/1.1",
        b"PLAY /bkt/a HTTP/1.1",
        b"M-SEARCH * HTTP/1.1",
        b"PROPFIND /bkt/a HTTP/1.1",
        b"BREW /bkt/a HTTP/1.1",
        b"X" * 300 + b" /bkt/a HTTP/1.1",
        b"GET http://evil.example/bkt/a HTTP/1.1",
        b"GET http:///bkt/a HTTP/1.1",
        b"GET http://127.0.0.1@evil.example/a HTTP/1.1",
        b"GET ftp://127.0.0.1/a HTTP/1.1",
        b"GET https://evil.example/ HTTP/1.1",
        b"GET http:/bkt/a HTTP/1.1",
        b"GET //evil.example@/a\x01 HTTP/1.1",
    ):
        row("line " + repr(line[:60]), head(line))
    row("h2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    row(
        "h2 preface after an upgrade",
        head(headers=[b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: 0, 24"])
        + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    )
    for value in (b"200-ok", b"100-continued", b"x", b"100-continue, x", b""):
        row("expect " + repr(value), head(headers=[b"Expect: " + value]))
    # Sizes.
    row("long target", head(b"GET /bkt/" + b"a" * (17 << 10) + b" HTTP/1.1"))
    row("very long target", head(b"GET /bkt/" + b"a" * (200 << 10) + b" HTTP/1.1"))
    row("long header", head(headers=[b"X: " + b"a" * (17 << 10)]))
    row("large head", head(headers=[b"X%d: " % i + b"a" * 4000 for i in range(13)]))
    row("many headers", head(headers=[b"X%d: y" % i for i in range(512)]))
    row("many options of Connection", head(headers=[b"Connection: " + b"a, " * 32 + b"close"]))
    row("thousands of headers", head(headers=[b"a:"] * 9000))
    row("endless name", head(headers=[b"X" * (40 << 10) + b": y"]))
    # Bodies where the framing itself is fine.
    for body in (
        b"5\r\nhelloX\r\n0\r\n\r\n",
        b"5\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"+5\r\nhello\r\n0\r\n\r\n",
        b"-1\r\n\r\n0\r\n\r\n",
        b" 5\r\nhello\r\n0\r\n\r\n",
        b"5 \r\nhello\r\n0\r\n\r\n",
        b"\r\nhello\r\n0\r\n\r\n",
        b"g\r\nhello\r\n0\r\n\r\n",
        b"ffffffffffffffffff\r\nhello\r\n",
        b"5;" + b"x" * 20000 + b"\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\r\n0\r\n\n",
        b"5\r\nhello\r\n0\r\nX\r\n\r\n",
        b"5_0\r\nhello\r\n0\r\n\r\n",
        b"5\rX\r\nhello\r\n0\r\n\r\n",
        b"0\r\nX Y: z\r\n\r\n",
        b"0\r\nX: a\x00b\r\n\r\n",
    ):
        row(
            "chunks " + repr(body[:24]),
            head(b"PUT /bkt/a HTTP/1.1", [b"Transfer-Encoding: chunked"]) + body,
        )
    return rows


ROWS = malformed()


def refused(server, data, tail=TAIL):
    """Returns None if DATA gets one 4xx or 5xx and a close, else a description of the
    difference."""
    with server.connection(timeout=15) as connection:
        try:
            connection.send(data + tail)
        except (BrokenPipeError, ConnectionResetError):
            pass
        try:
            reply = connection.read_reply()
        except Closed:
            return "closed without an answer"
        except (ProtocolError, Truncated) as error:
            return repr(error)
        except TimeoutError:
            return "no answer"
        except ConnectionResetError:
            return None  # refused; unread bytes made the reply get lost
        if not 400 <= reply.status <= 599:
            return f"answered {reply.status}"
        try:
            extra = connection.read_reply()
            return f"{reply.status}, and then {extra.status}: it went on"
        except (Closed, ConnectionResetError):
            return None
        except (ProtocolError, Truncated) as error:
            return f"{reply.status}, and then {error!r}"
        except TimeoutError:
            return f"{reply.status}, but not closed"


def test_the_table_is_large_enough():
    assert len(ROWS) >= 300 and len({data for _, data in ROWS}) >= 300


@pytest.mark.tsan
def test_malformed_requests_are_refused_and_closed(start, origin, figure):
    """Each malformed request gets one error and a close. Nothing after it is read as a request, and
    nothing reaches the origin."""
    server = start(origin)
    origin.put("a", 100)
    origin.put("canary", 100)
    wrong = []
    for name, data in ROWS:
        why = refused(server, data)
        if why:
            wrong.append(f"{name}: {why}")
        assert server.alive, f"died on {name}: {server.output()}"
    figure(f"malformed requests: {len(ROWS)} rows, {len(wrong)} wrong")
    assert not wrong, f"{len(wrong)} of {len(ROWS)}:\n" + "\n".join(wrong[:60])
    assert not origin.requests(key="canary")
    with server.client() as client:
        judge(client.get("a"), origin, "a", 0, 100)


def test_a_tls_hello_is_closed_at_once_and_explained(start, origin):
    """A client that starts TLS on the plain port gets a close and no HTTP error, because it waits
    for a handshake. The log says which setting to use."""
    server = start(origin)
    hello = bytes.fromhex("16030100c8010000c40303") + b"\x00" * 190 + b"\r\n\r\n"
    with server.connection(timeout=15) as connection:
        connection.send(hello)
        assert connection.at_end()
    server.wait_stderr("preferred_transfer_client = classic")
    assert not origin.log


def test_refused_in_pieces_as_in_one(start, origin):
    """A malformed request is refused in the same way if it arrives in pieces."""
    server = start(origin)
    rows = ROWS[:: max(1, len(ROWS) // scaled(400, 40))]

    def one(i):
        wrong = []
        for name, data in rows[i::8]:
            data = data[:2000]
            if b"\r\n\r\n" not in data:
                continue
            for cut in sorted({1, len(data) // 3, len(data) // 2, len(data) - 1}):
                with server.connection(timeout=15) as connection:
                    try:
                        connection.send(data[:cut])
                        connection.send(data[cut:] + TAIL)
                        reply = connection.read_reply()
                        if not 400 <= reply.status < 600:
                            wrong.append(f"{name} at {cut}: {reply.status}")
                    except (Closed, ConnectionResetError, BrokenPipeError):
                        pass
        return wrong

    wrong = sum(parallel(8, one), [])
    assert not wrong, wrong[:30]
    assert not origin.requests(key="canary")


def test_good_requests_split_at_every_byte(start, origin):
    server = start(origin)
    origin.put("a", 3000)
    data = head(headers=[b"Range: bytes=5-2004", b"User-Agent: x"])
    with server.connection() as connection:
        for cut in range(1, len(data)):
            connection.send(data[:cut])
            connection.send(data[cut:])
            judge(connection.read_reply(), origin, "a", 5, 2000)
        for byte in data:  # one byte in each packet
            connection.send(bytes([byte]))
        judge(connection.read_reply(), origin, "a", 5, 2000)


@pytest.mark.tsan
def test_pipelined_requests_are_answered_in_order(forebay, origin):
    sizes = [100, 200_000, 0, 16384, 3 << 20, 1, 70_000]
    for i, size in enumerate(sizes):
        origin.put(f"k{i}", size)
    for turn in range(2):
        with forebay.connection() as connection:
            order = [(i * 5 + turn) % len(sizes) for i in range(40)]
            data = b"".join(
                head(b"GET /bkt/k%d HTTP/1.1" % i) if n % 3 else head(b"HEAD /bkt/k%d HTTP/1.1" % i)
                for n, i in enumerate(order)
            )
            sender = threading.Thread(target=connection.send, args=(data,))
            sender.start()
            for n, i in enumerate(order):
                reply = connection.read_reply("GET" if n % 3 else "HEAD")
                assert reply.status == 200
                assert reply.header("content-length") == str(sizes[i]), (n, i)
                if n % 3:
                    judge(reply, origin, f"k{i}", 0, sizes[i])
            sender.join()
    for i in range(len(sizes)):
        assert origin.sent_twice(f"k{i}") == 0


def test_keep_alive_and_close(start, origin):
    server = start(origin)
    origin.put("a", 100)
    with server.connection() as connection:
        for _ in range(50):
            connection.send(head())
            judge(connection.read_reply(), origin, "a", 0, 100)
        connection.send(head(headers=[b"Connection: close"]))
        reply = connection.read_reply()
        assert reply.closes
        assert connection.at_end()
    with server.connection() as connection:  # HTTP/1.0 closes by default
        connection.send(head(b"GET /bkt/a HTTP/1.0"))
        judge(connection.read_reply(), origin, "a", 0, 100)
        assert connection.at_end()
    with server.connection() as connection:  # one empty line before a request is fine
        connection.send(b"\r\n" + head())
        judge(connection.read_reply(), origin, "a", 0, 100)


def test_half_a_close_behind_the_last_request(start, origin, figure):
    """A client may half-close its connection after the last request. It still gets every reply,
    then the end: misses, hits, large replies, listings and uploads, alone and pipelined."""
    server = start(origin)
    origin.put("large", 3 << 20)
    asked = 0
    for i in range(scaled(200, 20)):
        origin.put(f"k{i}", 5000)
        asks = [(f"k{i}", 5000), (f"k{i}", 5000), ("large", 3 << 20)]
        for keys in (asks[:1], asks[1:2], asks[2:], asks):
            with server.connection() as connection:
                lines = [b"GET /bkt/%s HTTP/1.1" % key.encode() for key, _ in keys]
                connection.send(b"".join(head(line) for line in lines))
                connection.finish_sending()
                for key, size in keys:
                    judge(connection.read_reply(), origin, key, 0, size)
                assert connection.at_end()
                asked += len(keys)
        with server.connection() as connection:
            connection.send(
                head(b"PUT /bkt/up HTTP/1.1", headers=[b"Content-Length: 5"])
                + b"%05d" % i
                + head(b"GET /bkt?list-type=2&prefix=up HTTP/1.1")
            )
            connection.finish_sending()
            assert connection.read_reply("PUT").status == 200
            assert connection.read_reply("GET").status == 200
            assert connection.at_end()
        assert origin.bytes_of("up") == b"%05d" % i
        asked += 2
    figure(f"replies behind half a close: {asked} of {asked}")


def test_bodies_on_get_are_never_taken_for_requests(start, origin):
    server = start(origin)
    origin.put("a", 100)
    origin.put("canary", 100)
    for length in (1, len(TAIL), 4096, 1 << 20):
        body = (TAIL * (length // len(TAIL) + 1))[:length]
        with server.connection(timeout=15) as connection:
            try:
                connection.send(head(headers=[b"Content-Length: %d" % length]) + body)
                reply = connection.read_reply()
                assert reply.status == 200 or 400 <= reply.status < 600, reply
                connection.send(head(b"HEAD /bkt/a HTTP/1.1"))
                assert connection.read_reply("HEAD").header("content-length") == "100"
            except (Closed, ConnectionResetError, BrokenPipeError):
                pass
    assert not origin.requests(key="canary")


def test_expect_continue(start, origin):
    """Expect gets 100 Continue at once, or a final status and a close. The client never hangs and
    its body never stalls."""
    server = start(origin)
    for length in (0, 5):
        with server.connection(timeout=15) as connection:
            connection.send(
                head(
                    b"PUT /bkt/new HTTP/1.1",
                    [b"Expect: 100-continue", b"Content-Length: %d" % length],
                )
            )
            reply = connection.read_reply(interim=True)
            if reply.status == 100:
                assert reply.reason == "Continue"
                connection.send(b"hello"[:length])
                reply = connection.read_reply()
                assert reply.status >= 200
            else:
                assert reply.status >= 400 and (reply.closes or length == 0), reply
                if reply.closes:
                    assert connection.at_end()
    origin.put("a", 100)
    with server.connection(timeout=15) as connection:
        connection.send(head(headers=[b"Expect: 100-continue"]))
        judge(connection.read_reply(), origin, "a", 0, 100)


UPGRADES = [
    [b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__"],
    [
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        b"Sec-WebSocket-Version: 13",
    ],
    [b"Connection: TE", b"TE: trailers"],
    [b"Proxy-Connection: Keep-Alive", b"Keep-Alive: timeout=5"],
]


def test_upgrade_is_ignored_and_never_reaches_the_origin(forebay, origin):
    """Java's HttpClient and curl --http2 ask to upgrade with each request. They get their reply in
    HTTP/1.1, and the origin sees no upgrade."""
    for i, asked in enumerate(UPGRADES):
        origin.put(f"read{i}", 5000)
        with forebay.connection() as connection:
            for turn in ("miss", "hit"):
                connection.send(head(b"GET /bkt/read%d HTTP/1.1" % i, asked))
                judge(connection.read_reply(interim=True), origin, f"read{i}", 0, 5000)
            connection.send(
                head(b"PUT /bkt/write%d HTTP/1.1" % i, [*asked, b"Content-Length: 5"]) + b"%05d" % i
            )
            assert connection.read_reply("PUT").status == 200
            connection.send(head(b"GET /bkt?list-type=2&prefix=write%d HTTP/1.1" % i, asked))
            assert connection.read_reply().status == 200
        assert origin.bytes_of(f"write{i}") == b"%05d" % i
    for entry in origin.requests():
        names = {name for name, _ in entry.headers}
        assert not names & {
            "upgrade",
            "http2-settings",
            "connection",
            "te",
            "keep-alive",
            "proxy-connection",
            "sec-websocket-key",
        }, entry.headers


def test_nothing_after_an_ignored_upgrade_is_read_as_http2(start, origin):
    """A client that goes on in HTTP/2 without a 101 gets one reply, an error and a close."""
    server = start(origin)
    origin.put("a", 100)
    with server.connection(timeout=15) as connection:
        connection.send(head(headers=UPGRADES[0]) + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + TAIL)
        judge(connection.read_reply(), origin, "a", 0, 100)
        assert connection.read_reply().status == 505
        assert connection.at_end()
    assert not origin.requests(key="canary")


def test_curl_http2_reads_and_writes(start, origin, tmp_path):
    """curl --http2, which asks for h2c on the first request of each connection, can read and
    write."""
    curl = shutil.which("curl")
    if (
        curl is None
        or "HTTP2"
        not in subprocess.run(
            [curl, "--version"], capture_output=True, text=True, check=True
        ).stdout
    ):
        pytest.skip("NOT RUN: no curl with HTTP/2")
    server = start(origin)
    origin.put("a", 3000)
    url = f"http://127.0.0.1:{server.port}/bkt/"
    (tmp_path / "up").write_bytes(b"x" * 70_000)
    for _ in range(2):
        got = subprocess.run(
            [curl, "-sSf", "--noproxy", "*", "--http2", url + "a"],
            capture_output=True,
            timeout=60,
            check=True,
        ).stdout
        assert got == origin.bytes_of("a")
    subprocess.run(
        [curl, "-sSf", "--noproxy", "*", "--http2", "-T", tmp_path / "up", url + "up"],
        timeout=60,
        check=True,
    )
    assert origin.bytes_of("up") == b"x" * 70_000


def test_limits_at_minus_one_zero_plus_one(start, origin):
    """The documented limits hold exactly: target 16 KiB, head 48 KiB, 512 headers, one header 16
    KiB."""
    server = start(origin)
    origin.put("a", 100)

    def status(data):
        with server.connection(timeout=15) as connection:
            try:
                connection.send(data)
            except (BrokenPipeError, ConnectionResetError):
                pass
            return connection.read_reply().status

    assert status(head(b"GET /bkt/a?x-id=" + b"a" * 4000 + b" HTTP/1.1")) == 200
    for length, want in ((16384 - 1, (200, 400, 404)), (16384, (200, 400, 404)), (16385, (414,))):
        target = b"/bkt/a?x-id=" + b"a" * (length - len(b"/bkt/a?x-id="))
        assert status(head(b"GET " + target + b" HTTP/1.1")) in want, length
    for count, want in ((99, 200), (510, 200), (511, 200), (512, 431)):  # Host is one of them
        assert status(head(headers=[b"X-%d: y" % i for i in range(count)])) == want, count
    assert status(head(headers=[b"X: " + b"a" * 16000])) == 200
    assert status(head(headers=[b"X: " + b"a" * 16400])) == 431
    whole = [b"X%d: " % i + b"a" * 8000 for i in range(6)]
    whole.append(b"Y: " + b"a" * (49152 - len(head(headers=whole + [b"Y: "]))))
    assert len(head(headers=whole)) == 49152 and status(head(headers=whole)) == 200
    assert status(b"\r\n" + head(headers=whole)) == 200
    whole[-1] += b"a"
    assert status(head(headers=whole)) == 431
    assert server.metric("forebay_limit_reached_total", limit="request-head") == 4


def test_slow_heads_and_idle_connections_are_cut(start, origin):
    """A request head must arrive whole within limits.header_timeout, even if it arrives in small
    pieces."""
    server = start(
        origin, settings={"limits.header_timeout": "5s", "limits.idle_timeout": "5s"}, ahead_s=0
    )
    with server.connection(timeout=30) as slow, server.connection(timeout=30) as idle:
        slow.send(b"GET /bkt/a HT")
        ended = False
        for _ in range(100):  # dripping does not extend it
            try:
                slow.send(b"x")
            except (BrokenPipeError, ConnectionResetError):
                ended = True
                break
            server.advance(2)
        assert ended
        assert idle.at_end()
    assert server.wait_metric("forebay_http_timeouts_total", lambda v: v >= 1, reason="header")


@pytest.mark.tsan
def test_vanishing_clients_leave_nothing_behind(forebay, origin):
    """When clients disconnect at random moments, all gauges return to zero and other clients notice
    nothing."""
    size = 5 << 20
    for i in range(4):
        origin.put(f"k{i}", size)
    rounds = scaled(400, 40)

    def one(i):
        for n in range(rounds // 8):
            with forebay.connection() as connection:
                connection.send(head(b"GET /bkt/k%d HTTP/1.1" % ((i + n) % 4)))
                if n % 3:
                    connection.sock.recv(1 + (n * 7919) % 300_000)

    parallel(8, one)
    with forebay.client() as client:
        for i in range(4):
            judge(client.get(f"k{i}"), origin, f"k{i}", 0, size)
    forebay.wait_metric("forebay_http_requests_inflight", lambda v: v == 0)
    forebay.wait_metric("forebay_fills_inflight", lambda v: v == 0)
    forebay.wait_metric("forebay_coalesced_waiters", lambda v: v == 0)
    forebay.wait_metric("forebay_buffer_bytes", lambda v: v == 0)


def test_replies_that_forebay_makes_have_the_server_header_of_the_origin(start, origin):
    """Misses, hits and refusals have the same Server header. Cache-Status names Forebay."""
    server = start(origin)
    origin.put("a", 100)
    with server.client() as client:
        replies = [client.get("a"), client.get("a"), client.request("GET", "/bkt/a?partNumber=0")]
    with server.connection() as connection:
        connection.send(b"GET /bkt/a HTTP/1.1\nHost: 127.0.0.1\n\n")
        replies.append(connection.read_reply())
    assert [reply.status for reply in replies] == [200, 200, 400, 400]
    assert {reply.header("server") for reply in replies} == {"scripted"}
    assert all(reply.header("cache-status").startswith("forebay") for reply in replies)


def test_connection_limit_answers_503(start, origin):
    server = start(origin, settings={"limits.max_connections": 8})
    origin.put("a", 100)
    held = [server.connection() for _ in range(8)]
    try:
        for connection in held:
            connection.send(head())
            judge(connection.read_reply(), origin, "a", 0, 100)
        with server.connection(timeout=15) as extra:
            try:
                extra.send(head())
                reply = extra.read_reply()
                assert reply.status == 503 and reply.code == "SlowDown", reply
            except (Closed, ConnectionResetError, BrokenPipeError):
                pass
        held[0].send(head())
        judge(held[0].read_reply(), origin, "a", 0, 100)
    finally:
        for connection in held:
            connection.close()
    assert server.metric("forebay_http_shed_total", reason="connections") >= 1


def test_drain_finishes_what_is_in_flight(start, origin):
    """After SIGTERM the request in flight is answered in full, and the process ends with 0."""
    server = start(origin)
    origin.put("a", 8 << 20)
    gate = threading.Event()
    origin.fault("a", "hold_at", (1 << 20, gate))
    connection = server.connection()
    connection.send(head())
    origin.wait_for(1, key="a")
    ended = []
    stopper = threading.Thread(target=lambda: ended.append(server.stop()))
    stopper.start()
    with pytest.raises((ConnectionRefusedError, ConnectionResetError, Closed, AssertionError)):
        for _ in range(2000):  # the listener closes at once
            with server.connection(timeout=5) as late:
                late.send(head(b"GET /bkt/other HTTP/1.1"))
                reply = late.read_reply()
                assert reply.status != 503
    gate.set()
    judge(connection.read_reply(), origin, "a", 0, 8 << 20)
    connection.close()
    stopper.join(60)
    assert ended == [0]


def test_access_log_and_metrics_tell_the_same_story(start, origin):
    server = start(origin)
    origin.put("a", 5000)
    with server.client() as client:
        client.get("a")
        server.settle()
        second = client.get("a", 10, 19)
        client.get("nothing")
        client.list()
    wanted = second.header("x-amz-request-id")
    line = server.access_log(lambda e: e.get("id") == wanted)[0]
    assert line["op"] == "GetObject" and line["bucket"] == "bkt" and line["key"] == "a"
    assert line["status"] == 206 and line["result"] == "hit" and line["bytes"] == 10
    for name in ("ts", "client", "range", "source", "total_ms"):
        assert name in line, (name, line)
    server.access_log(lambda e: e.get("op") == "ListObjectsV2" and e["status"] == 200)
    missing = server.access_log(lambda e: e.get("key") == "nothing")[0]
    assert missing["status"] == 404 and missing["error"] == "NoSuchKey"
    assert server.metric("forebay_http_requests_total", op="GetObject") == 3
    assert server.metric("forebay_cache_requests_total", result="hit") >= 1
    assert server.metric("forebay_origin_requests_total") == len(origin.log)
    text = "\n".join(server.stdout + server.stderr) + bytes(server.admin("/metrics").body).decode()
    assert "canary-7f3a" not in text
    for path in ("/livez", "/readyz", "/startupz"):
        assert server.admin(path).status == 200

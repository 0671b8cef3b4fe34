# SPDX-License-Identifier: Apache-2.0
"""Fills: one fetch serves many readers, whichever of them leaves. The origin may cut, stall, lie or
overwrite."""

import random
import socket
import struct
import threading
import time

import pytest
from client import Closed, Truncated, judge, judge_streamed, judge_truncated, quote
from forebay import build_kind, parallel, scaled

MIB = 1 << 20


def wanted_once(origin, key, size):
    """Checks that the origin sent each byte of KEY at most once."""
    assert origin.sent_twice(key) == 0, origin.coverage(key)[:20]
    assert origin.bytes_sent(key) <= size


@pytest.mark.tsan
def test_a_hundred_readers_of_a_cold_object(forebay, origin):
    """100 clients start while the origin holds its first reply. The origin sends every byte
    once."""
    size = scaled(256 * MIB, 24 * MIB) // MIB * MIB + 5
    origin.put("big", size)
    with origin.hold("big") as gate:
        started = threading.Barrier(101)

        def one(i):
            with forebay.connection() as connection:
                connection.send("GET /bkt/big HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
                started.wait(60)
                judge_streamed(connection, origin, "big", 0, size)

        runner = threading.Thread(target=lambda: gate.set() if started.wait(60) >= 0 else None)
        runner.start()
        parallel(100, one)
        runner.join()
    wanted_once(origin, "big", size)
    assert origin.bytes_sent("big") >= size

    def read():
        with forebay.connection() as connection:
            connection.send(b"GET /bkt/big HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            judge_streamed(connection, origin, "big", 0, size)

    forebay.settle()
    mark = origin.mark()
    read()
    assert not origin.requests(since=mark, key="big")


def test_the_first_bytes_leave_with_the_head(start, origin, engine):
    """A head and body that the origin sends in one piece leave in one piece."""
    forebay = start(origin, engine=engine, settings={"workers": "1"})
    for name in ("other", "small"):
        origin.put(name, 10 << 10)
    with forebay.connection() as connection:
        for name in ("other", "small"):  # the first one opens the connection to the origin
            before = segments(connection)
            connection.send(f"GET /bkt/{name} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            judge_streamed(connection, origin, name, 0, 10 << 10)
            assert segments(connection) == before + 1


def segments(connection):
    """Returns how many TCP segments with data arrived on the connection: tcpi_data_segs_in."""
    info = connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 160)
    return struct.unpack_from("I", info, 152)[0]


def test_the_first_reader_leaves_half_way(forebay, origin):
    """When the first reader leaves, the fill goes on for the others. No byte is fetched twice."""
    size, others = scaled(256 * MIB, 24 * MIB), scaled(99, 20)
    origin.put("big", size)
    gate = threading.Event()
    origin.fault("big", "hold_at", (2 * MIB, gate))
    first = forebay.connection()
    first.send(b"GET /bkt/big HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert first.read_head().status == 200
    while len(first.buf) < MIB:
        assert first._fill()
    started = threading.Barrier(others + 1)

    def one(i):
        with forebay.connection() as connection:
            connection.send(b"GET /bkt/big HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            head = connection.read_head()
            started.wait(60)
            judge_streamed(connection, origin, "big", 0, size, head)

    def leave():
        started.wait(60)
        first.close()
        gate.set()

    leaver = threading.Thread(target=leave)
    leaver.start()
    parallel(others, one)
    leaver.join()
    wanted_once(origin, "big", size)


def test_ten_ranges_of_an_object_nobody_has_seen(forebay, origin):
    """Different blocks of an unknown object are asked for at once. Each block costs one request."""
    size, readers = scaled(256 * MIB, 40 * MIB), scaled(100, 30)
    part = size // 10
    origin.put("big", size)
    spans = [(i * part + 1000, i * part + 1000 + part // 2) for i in range(10)]
    for turn in range(2):
        with origin.hold("big") as gate:
            started = threading.Barrier(readers + 1)

            def one(i):
                first, last = spans[i % 10]
                with forebay.connection() as connection:
                    connection.send(
                        f"GET /bkt/big HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                        f"Range: bytes={first}-{last}\r\n\r\n".encode()
                    )
                    started.wait(60)
                    reply = judge_streamed(connection, origin, "big", first, last - first + 1)
                    assert reply.status == 206

            opener = threading.Thread(target=lambda: (started.wait(60), gate.set()))
            opener.start()
            parallel(readers, one)
            opener.join()
        forebay.settle()
    wanted_once(origin, "big", size)


def test_a_read_across_two_stripes_is_fetched_once(start, origin):
    """Blocks on both sides of a 64 MiB stripe belong to different workers, and still cost one
    fetch."""
    server = start(origin, settings={"workers": 3})
    edge = 64 * MIB
    origin.put("big", edge + 8 * MIB)

    def one(i):
        first = edge - 3 * MIB + i * 1000
        with server.client() as client:
            for _ in range(3):
                judge(client.get("big", first, first + 5 * MIB), origin, "big", first, 5 * MIB + 1)

    parallel(12, one)
    wanted_once(origin, "big", edge + 8 * MIB)


def test_a_fill_ends_when_its_last_reader_leaves(forebay, origin):
    """If the last reader leaves before the head, the fetch is cancelled. In the body, the current
    block is completed and the rest is not fetched."""
    size = 64 * MIB
    origin.put("big", size)
    with origin.hold("big"):
        connection = forebay.connection()
        connection.send(b"GET /bkt/big HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        origin.wait_for(1, key="big")
        connection.reset()
        forebay.wait_metric("forebay_http_requests_inflight", lambda v: v == 0)
    connection = forebay.connection()
    connection.send(b"GET /bkt/big HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    connection.sock.recv(100_000)
    connection.close()
    forebay.wait_metric("forebay_fills_inflight", lambda v: v == 0)
    assert forebay.metric("forebay_origin_received_bytes_total") < size / 2
    with forebay.client() as client:
        judge(client.get("big"), origin, "big", 0, size)


# For a reader who asks for checksums, Forebay asks for the first run without a range, and cuts the
# answer where the run ends.
CHECKSUMS = [("x-amz-checksum-mode", "ENABLED")]


@pytest.mark.tsan
@pytest.mark.parametrize("headers", [[], CHECKSUMS], ids=["range", "whole"])
def test_a_cut_body_is_resumed(forebay, origin, headers):
    """A body that is cut is resumed with Range and If-Match. The client gets the whole right
    object."""
    size = 9 * MIB + 17
    for i, at in enumerate((1, 5000, MIB - 1, MIB, MIB + 1, 3 * MIB + 77, 4 * MIB - 1)):
        for word in ("cut", "reset_at"):
            key = f"{word}/{i}/a.{word}{i}"  # each is the only one of its kind
            origin.put(key, size)
            origin.fault(key, word, at)
            with forebay.client() as client:
                judge(client.get(key, headers=headers), origin, key, 0, size)
            for entry in origin.requests(key=key, method="GET")[1:]:
                assert entry.header("range"), entry
                assert entry.header("if-match") == origin.version(key).etag, entry
            if word == "cut":
                assert origin.sent_twice(key) == 0, (key, origin.coverage(key))
    assert forebay.metric("forebay_fills_total", state="resumed") >= 7
    assert forebay.metric("forebay_checksum_requests_total", kind="whole-cut") == (
        14 if headers else 0
    )


def test_cut_past_the_budget_is_a_visible_truncation(forebay, origin):
    size = 5 * MIB
    origin.put("a", size)
    origin.fault("a", "cut", 2000, times=None)
    with forebay.client() as client:
        with pytest.raises(Truncated) as caught:
            client.get("a")
        judge_truncated(caught.value.reply, origin, "a")
        assert caught.value.reply.header("content-length") == str(size)
        origin.clear_faults()
        judge(client.get("a"), origin, "a", 0, size)


def test_a_reader_who_joins_a_broken_run_adds_retries(forebay, origin):
    """A reader who joins a run that broke off adds retries of its own."""
    size = MIB
    origin.put("a", size)
    gate = threading.Event()
    origin.fault("a", "cut", 2000, times=4)
    origin.fault("a", "hold_at", (1000, gate), at=4)

    def read():
        with forebay.client() as client:
            judge(client.get("a"), origin, "a", 0, size)

    def read_late():
        origin.wait_for(4, key="a", method="GET")  # the last attempt of the first reader
        read()

    def let_go():
        forebay.wait_metric("forebay_fills_total", lambda v: v >= 1, state="joined")
        gate.set()

    parallel(3, lambda i: (read, read_late, let_go)[i]())
    assert len(origin.requests(key="a", method="GET")) == 5


def test_resumes_stay_within_the_retry_budget(forebay, origin):
    """If the origin breaks every body, resumes stay within the retry budget. Forebay does not send
    four times as many requests."""
    count = 30
    for i in range(count):
        origin.put(f"k{i}", MIB)
        origin.fault(f"k{i}", "cut", 2000, times=None)
    began = time.monotonic()
    for i in range(count):
        with forebay.client() as client:
            with pytest.raises((Truncated, Closed)):
                client.get(f"k{i}")
    spent_s = time.monotonic() - began
    retries = len(origin.requests(method="GET")) - count
    # The budget has ten retries at the start, a tenth of the requests, and one a second.
    assert retries <= 10 + (count + retries) / 10 + spent_s + 2, (retries, spent_s)
    assert forebay.metric("forebay_origin_retries_refused_total") >= 1


def test_a_cut_reply_is_never_completed_with_a_new_version(forebay, origin):
    size = 6 * MIB
    for at in (5000, MIB + 5, 3 * MIB):
        key = f"k{at}"
        origin.put(key, size)
        origin.fault(key, "overwrite_at", at - 1)
        origin.fault(key, "cut", at)
        with forebay.client() as client:
            try:
                judge(client.get(key), origin, key, 0, size)
            except Truncated as cut:
                judge_truncated(cut.reply, origin, key)
            assert judge(client.get(key), origin, key, 0, size) == 2


def test_errors_of_the_origin(forebay, origin):
    """Errors of the origin are retried within the budget. Then every client gets an error
    that it retries, never a 404, and nothing is kept. Only a throttled client gets SlowDown."""
    for i, (word, argument, expected) in enumerate(
        (
            ("status", 503, (503, "SlowDown")),
            ("status", 500, (500, "InternalError")),
            ("status", 502, (503, "ServiceUnavailable")),
            ("status", 504, (503, "ServiceUnavailable")),
            ("status", 429, (503, "SlowDown")),
            ("reset", None, (503, "ServiceUnavailable")),
            ("close", None, (503, "ServiceUnavailable")),
        )
    ):
        once, ever = f"once{i}", f"ever{i}"
        origin.put(once, 3000)
        origin.put(ever, 3000)
        origin.fault(once, word, argument)
        origin.fault(ever, word, argument, times=None)
        with forebay.client() as client:
            reply = client.get(once)
            if reply.status != 200:  # the budget may be used up by the others
                assert reply.status == 503, reply
            reply = client.get(ever)
            assert (reply.status, reply.code) == expected, (word, argument, reply)
            assert len(origin.requests(key=ever)) <= 8
    origin.clear_faults()
    with forebay.client() as client:
        for i in range(7):
            judge(client.get(f"ever{i}"), origin, f"ever{i}", 0, 3000)
            judge(client.get(f"once{i}"), origin, f"once{i}", 0, 3000)


def test_denied_stays_denied_and_missing_stays_missing(forebay, origin):
    origin.put("a", 3000)
    origin.fault("a", "status", 403)
    with forebay.client() as client:
        reply = client.get("a")
        assert (reply.status, reply.code) == (403, "AccessDenied"), reply
        judge(client.get("a"), origin, "a", 0, 3000)
        assert client.get("later").status == 404
        origin.put("later", 10)
        judge(client.get("later"), origin, "later", 0, 10)  # a 404 is not kept


def test_origin_down_and_back(start, origin):
    server = start(origin)
    origin.put("a", 3000)
    origin.down()
    with server.client() as client:
        reply = client.get("a")
        assert (reply.status, reply.code) == (503, "ServiceUnavailable"), reply
        origin.start()
        judge(client.get("a"), origin, "a", 0, 3000)


def test_clients_do_not_notice_closed_idle_origin_connections(start, origin):
    server = start(origin)
    with server.client() as client:
        for i in range(10):
            origin.put(f"k{i}", 3000)
            judge(client.get(f"k{i}"), origin, f"k{i}", 0, 3000)
            origin.drop_connections()


# The origin's lies, and whether Forebay may keep the received bytes afterwards.
NEVER_STORED = [
    "wrong_length",
    "wrong_range",
    "no_content_range",
    "two_lengths",
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
    "whole",
    "no_etag",
    "weak_etag",
]
HARMLESS = ["two_1xx", "extra", "same_lengths"]
ONLY_OF_RANGES = [
    "wrong_range",
    "no_content_range",
    "whole",
]  # a request for the whole object is answered truly


@pytest.mark.parametrize("word", NEVER_STORED + HARMLESS)
@pytest.mark.parametrize(
    "size, headers",
    [(3 * MIB, []), (3 * MIB, CHECKSUMS), (9 * MIB, CHECKSUMS)],
    ids=["range", "whole", "cut"],
)
def test_a_lying_reply_is_never_believed(start, origin, word, size, headers):
    """A lying reply causes no wrong byte, nothing of it is stored, and other objects are unharmed.
    Later the true answer is served."""
    server = start(
        origin, settings={"origin.first_byte_timeout": "2s", "origin.idle_timeout": "2s"}
    )
    origin.put("a", size)
    origin.put("b", 5000)
    origin.fault("a", word, times=None)
    with server.client(timeout=60) as client:
        for span in ((None, None), (100, 2000), (MIB, 2 * MIB - 1)):
            try:
                reply = client.get("a", *span, headers=headers)
            except (Truncated, Closed, ConnectionResetError) as error:
                if isinstance(error, Truncated):
                    judge_truncated(error.reply, origin, "a", span[0] or 0)
                continue
            if reply.status in (200, 206):
                judge(reply, origin, "a", span[0] or 0 if reply.status == 206 else 0)
            else:
                assert reply.status in (500, 503), (word, reply)
                assert word not in HARMLESS, (word, reply)
            judge(client.get("b"), origin, "b", 0, 5000)
        origin.clear_faults()
        server.settle()
        mark = origin.mark()
        if size == 9 * MIB and word == "wrong_length":
            # Nothing contradicts the length of an answer that was cut before its end, until the
            # next range.
            with pytest.raises(Truncated):
                client.get("a")
            server.settle()
            mark = origin.mark()
        judge(client.get("a"), origin, "a", 0, size)
        if word in NEVER_STORED and not (headers and word in ONLY_OF_RANGES):
            assert origin.bytes_sent("a", since=mark) >= size, "something of a lie was stored"


@pytest.mark.parametrize("word", ["chunked", "whole"])
@pytest.mark.parametrize("size", [0, 300_000])
def test_an_answer_that_fills_no_cache_passes_through(start, origin, word, size):
    """An answer that cannot be cached reaches the client as it would directly: in chunks, HEAD
    without a length, or the whole object instead of a range."""
    server = start(origin)
    origin.put("a", size)
    origin.fault("a", word, times=None, method="GET")
    if word != "whole":
        origin.fault("a", word, times=None, method="HEAD")
    etag = origin.version("a").etag
    asked = [
        ("GET", []),
        ("HEAD", []),
        ("GET", [("Range", "bytes=-50")]),
        ("GET", [("Range", "bytes=100-199")]),
        ("GET", [("If-None-Match", '"other"')]),
        ("GET", [("If-None-Match", etag)]),
        ("GET", [("If-Match", etag)]),
        ("GET", [("Cache-Control", "no-cache")]),
        ("GET", [("Range", "bytes=9000000-")]),
    ]
    with server.client() as client:
        for turn in range(2):
            for method, headers in asked:
                reply = client.get("a", headers=headers, method=method)
                assert reply.status in (200, 206, 304, 416), (method, headers, reply)
                if reply.status in (200, 206) and method == "GET":
                    first = reply.span[0] if reply.status == 206 else 0
                    judge(reply, origin, "a", first, reply.length if reply.status == 206 else size)
                assert reply.etag == etag or reply.status == 416, (method, headers, reply)


def test_a_body_that_only_looks_chunked_is_not_resumed(start, origin):
    """The first bytes of an answer that claims to be chunked, and is not, may look like a chunk.
    Such a body is not resumed."""
    server = start(origin)
    origin.put("a", 5000)
    head = (
        f"HTTP/1.1 206 Partial Content\r\n"
        f"ETag: {origin.version('a').etag}\r\nContent-Range: bytes 0-4999/5000\r\n"
        "Transfer-Encoding: chunked\r\n\r\n"
    ).encode()
    origin.fault("a", "raw", head + b"c\x83\xff\r\nwrong bytes!\r\n\x00\x01 no chunk\r\n")
    with server.client() as client:
        try:
            reply = client.get("a")
            assert reply.status == 503, reply
        except (Truncated, Closed):
            pass
        judge(client.get("a"), origin, "a", 0, 5000)


def test_a_wrong_etag_in_mid_object(forebay, origin):
    """A later fill that names another version is not mixed into the reply."""
    origin.put("a", 12 * MIB)
    origin.fault("a", "wrong_etag", at=2, times=1)
    with forebay.client() as client:
        try:
            reply = client.get("a")
            if reply.status == 200:
                judge(reply, origin, "a", 0, 12 * MIB)
        except Truncated as cut:
            judge_truncated(cut.reply, origin, "a")
        judge(client.get("a"), origin, "a", 0, 12 * MIB)


def test_a_sloppy_origin_that_ignores_conditions(start, origin):
    """If the origin ignores If-Match, Forebay still compares the ETag of each reply."""
    origin.sloppy = True
    server = start(origin, settings={"cache.ttl": "1h"})
    size = 10 * MIB
    with server.client() as client:
        for i in range(scaled(100, 10)):
            key = f"k{i}"
            origin.put(key, size)
            origin.fault(key, "overwrite", at=2 + i % 2)
            try:
                judge(client.get(key), origin, key, 0, size)
            except Truncated as cut:
                judge_truncated(cut.reply, origin, key)


def test_stalls_end_and_are_resumed(forebay, start, origin):
    server = start(
        origin, settings={"origin.idle_timeout": "1s", "origin.first_byte_timeout": "1s"}
    )
    origin.put("a", 5 * MIB)
    origin.put("b", 5000)
    origin.fault("a", "stall", 2 * MIB + 1)
    with server.client() as client, server.client() as other:
        worker = threading.Thread(target=lambda: judge(client.get("a"), origin, "a", 0, 5 * MIB))
        worker.start()
        origin.wait_for(1, key="a")
        judge(other.get("b"), origin, "b", 0, 5000)
        worker.join(60)
        assert not worker.is_alive()
    assert server.metric("forebay_fills_total", state="resumed") >= 1


@pytest.mark.tsan
def test_overwrites_during_reads_never_mix_versions(start, origin, engine, figure):
    """The origin overwrites objects during reads. Each complete reply has the version that it
    names, and no other."""
    server = start(
        origin,
        engine=engine,
        file={
            "rules": [
                {"match": "bkt/small/**", "block_size": "64KiB", "ttl": "1h"},
                {"match": "bkt/strict/**", "freshness": "strict"},
            ]
        },
    )
    rounds = scaled(4_000 if build_kind() == "tsan" else 10_000, 400)
    counts = {"whole": 0, "cut": 0, "refused": 0}
    lock = threading.Lock()

    def one(worker):
        dice = random.Random(worker)
        with server.client() as client:
            for n in range(rounds // 8):
                kind = dice.choice(("small", "small", "strict", "large"))
                key = f"{kind}/{worker}-{n % 7}"
                size = (9 if kind == "large" else 1) * MIB + 100
                with origin.lock:
                    known = (origin.bucket, key) in origin.counters
                if not known:
                    origin.put(key, size)
                    if dice.random() < 0.7:
                        first = dice.randrange(size - 70_000)
                        judge(client.get(key, first, first + 65535), origin, key, first)
                if dice.random() < 0.5:
                    origin.fault(key, "overwrite", at=dice.randint(1, 3))
                else:
                    origin.overwrite(key)
                first = dice.choice((0, 0, dice.randrange(size)))
                try:
                    reply = client.get(key, first) if first else client.get(key)
                    if reply.status in (200, 206):
                        judge(reply, origin, key, first, size - first)
                        what = "whole"
                    else:
                        assert reply.status in (412, 503), reply
                        what = "refused"
                except Truncated as cut:
                    judge_truncated(cut.reply, origin, key, first)
                    what = "cut"
                except Closed:  # before the first byte of the head
                    what = "cut"
                with lock:
                    counts[what] += 1
                if n % 50 == 49:
                    with origin.lock:
                        origin.faults = [
                            f
                            for f in origin.faults
                            if f.seen < f.at and not f.key.endswith(f"{worker}-{n % 7}")
                        ]

    parallel(8, one)
    figure(f"overwrites during reads ({engine}): {counts}")
    assert counts["whole"] > 0


def test_deleted_in_the_middle_of_a_read(forebay, origin):
    origin.put("a", 12 * MIB)
    origin.fault("a", "delete", at=2)
    with forebay.client() as client:
        try:
            judge(client.get("a"), origin, "a", 0, 12 * MIB)
        except Truncated as cut:
            judge_truncated(cut.reply, origin, "a")
        forebay.settle()
        reply = client.get("a")
        if reply.status == 200:  # still fresh: the old version, whole
            judge(reply, origin, "a", 0, 12 * MIB, version=1)
        else:
            assert reply.status == 404


def test_a_wrong_total_is_found_out_and_forgotten(start, origin):
    """A reply with a wrong total looks valid by itself. The next answer for the version contradicts
    it, and Forebay then drops both."""
    server = start(origin)
    origin.put("a", 3 * MIB)
    origin.fault("a", "wrong_total")
    with server.client() as client:
        judge(client.get("a", MIB, 2 * MIB - 1), origin, "a", MIB)
        server.settle()
        try:
            judge(client.get("a"), origin, "a", 0, 3 * MIB)
        except Truncated as cut:
            judge_truncated(cut.reply, origin, "a")
        server.settle()
        judge(client.get("a"), origin, "a", 0, 3 * MIB)


def test_redirects_are_followed_inside_or_refused(start, origin):
    """Forebay follows a redirect to another region. It passes on a redirect to a host that it may
    not ask."""
    server = start(origin)
    origin.put("a", 3000)
    origin.fault("a", "redirect", (301, f"{origin.endpoint}/bkt/a"))
    origin.put("b", 3000)
    origin.fault("b", "redirect", (307, "http://169.254.169.254/latest"), times=None)
    with server.client() as client:
        judge(client.get("a"), origin, "a", 0, 3000)
        reply = client.get("b")
        assert reply.status == 307 and reply.header("location") == "http://169.254.169.254/latest"


def test_requests_of_one_object_are_signed_and_clean(start, origin):
    """The origin verifies the signature of each request, also for odd keys. The fixture asserts
    that there is no violation."""
    server = start(origin)
    keys = ["a b", "a+b", "a%2Fb", "grüße/ä", "a//b", "a/../b", "a=b&c", "~tilde", "(x)!'*"]
    with server.client() as client:
        for key in keys:
            origin.put(key, 100)
            judge(client.get(key), origin, key, 0, 100)
            assert client.head(key).status == 200
            client.list("list-type=2&prefix=" + quote(key))
    for entry in origin.log:
        assert entry.header("authorization"), entry


def test_many_small_objects_interleaved(forebay, origin):
    """Reused connections to the origin never give one object's bytes to another's reader."""
    count = scaled(2000, 200)
    for i in range(count):
        origin.put(f"s/{i}", 500 + i % 4000)

    def one(worker):
        dice = random.Random(worker)
        with forebay.client() as client:
            for _ in range(count // 4):
                i = dice.randrange(count)
                if dice.random() < 0.05:
                    with forebay.connection() as leaver:
                        leaver.send(
                            f"GET /bkt/s/{dice.randrange(count)} HTTP/1.1\r\n"
                            "Host: 127.0.0.1\r\n\r\n".encode()
                        )
                judge(client.get(f"s/{i}"), origin, f"s/{i}", 0, 500 + i % 4000)

    parallel(16, one)


@pytest.mark.parametrize("workers", [1, 4])
def test_objects_that_fit_a_segment_of_a_small_cache_come_in_one_request(
    start, origin, engine, workers
):
    """A run of a small cache is as long as a segment.

    The segments of a cache of 256 MiB have 4 MiB. An object of 3 MiB costs one request, even when
    the cache is full. One of 5 MiB costs two, or one if it is not stored. Afterwards each client
    that reads alone finds all of it cached.
    """
    server = start(
        origin,
        engine=engine,
        settings={
            "workers": workers,
            "cache.size": "256MiB",
            "cache.ttl": "1h",
            "cache.min_free": "0%",
        },
    )
    server.wait_metric(
        "forebay_segments", lambda segments: segments >= max(4, workers + 3)
    )  # made after the start
    sizes = {f"{size}/{i}": size * MIB for i in range(scaled(400, 60)) for size in (3, 5)}
    with server.client() as client:
        for key, size in sizes.items():
            origin.put(key, size)
            judge(client.get(key), origin, key, 0, size)
            server.settle()
    asked = {
        size: [len(origin.requests(key=key)) for key in sizes if sizes[key] == size * MIB]
        for size in (3, 5)
    }
    assert set(asked[3]) == {1} and set(asked[5]) <= {1, 2}, asked
    assert all(origin.sent_twice(key) == 0 for key in sizes)

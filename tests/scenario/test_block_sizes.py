# SPDX-License-Identifier: Apache-2.0
"""Two readers of one object use two names of its bucket, whose rules give the blocks different
sizes."""

import contextlib
import threading

import pytest
from client import judge

KIB = 1 << 10
MIB = 1 << 20
SIZE = 24 * MIB
TWO_NAMES = {
    "buckets": [{"name": "fine", "origin": "s3://bkt"}],
    "rules": [{"match": "fine/**", "block_size": "64KiB"}],
}


@pytest.fixture
def server(start, origin, engine):
    origin.put("a", SIZE)
    return start(origin, engine=engine, file=TWO_NAMES)


def send(connection, bucket, start, end):
    connection.send(
        f"GET /{bucket}/a HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Range: bytes={start}-{end - 1}\r\n\r\n".encode()
    )


def take(connection, origin, start, end):
    judge(connection.read_reply("GET"), origin, "a", start, end - start)


@contextlib.contextmanager
def two_readers(server, origin, first, second):
    """The second reader asks while the first reader's bytes are in flight, and held. Yields both
    and the gate."""
    gate = threading.Event()
    origin.fault("a", "hold_at", (1000, gate), method="GET")
    with server.connection() as one, server.connection() as other:
        send(one, *first)
        server.wait_metric("forebay_origin_received_bytes_total", lambda n: n >= 1000)
        send(other, *second)
        yield one, other, gate


@pytest.mark.tsan
@pytest.mark.parametrize(
    "first,second",
    [
        (("fine", MIB, 2 * MIB), ("bkt", 20 * MIB, 21 * MIB)),
        (("bkt", 20 * MIB, 21 * MIB), ("fine", 20 * 64 * KIB, 21 * 64 * KIB)),
    ],
)
def test_same_block_numbers_of_another_size_give_the_right_bytes(server, origin, first, second):
    """The second reader's blocks have the same numbers as those in flight but other bytes. It gets
    its own bytes."""
    with two_readers(server, origin, first, second) as (one, other, gate):
        take(other, origin, *second[1:])  # it does not wait for bytes that it has not asked for
        gate.set()
        take(one, origin, *first[1:])
    assert len(origin.requests(key="a")) == 2
    read_all(server, origin)


@pytest.mark.parametrize(
    "first,second",
    [
        (("bkt", 0, 4 * MIB), ("fine", 64 * KIB, 192 * KIB)),
        (("fine", 64 * KIB, 4 * MIB), ("bkt", MIB, 3 * MIB)),
    ],
)
def test_bytes_in_flight_serve_both_readers(server, origin, first, second):
    """Bytes in flight serve both readers, if both want them."""
    with two_readers(server, origin, first, second) as (one, other, gate):
        server.wait_metric("forebay_fills_total", lambda n: n == 1, state="joined")
        gate.set()
        take(one, origin, *first[1:])
        take(other, origin, *second[1:])
    assert len(origin.requests(key="a")) == 1
    read_all(server, origin)


def read_all(server, origin):
    with server.client() as client:
        for bucket in ("bkt", "fine"):
            judge(client.get("a", bucket=bucket), origin, "a", 0, SIZE)
        server.settle()
        mark = origin.mark()
        for bucket in ("bkt", "fine"):
            judge(client.get("a", bucket=bucket), origin, "a", 0, SIZE)
        assert not origin.requests(since=mark)

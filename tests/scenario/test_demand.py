# SPDX-License-Identifier: Apache-2.0
"""Forebay sends as many requests as clients want and the origin takes: bursts above the origin's
rate, and fair turns among clients."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from client import judge
from forebay import parallel
from waiting import wait_for

SIZE = 4096


def read_each(server, origin, keys):
    """Reads each of KEYS on a connection of its own, all at once."""

    def read(i):
        with server.client() as client:
            judge(client.get(keys[i]), origin, keys[i], 0, SIZE)

    parallel(len(keys), read)


def put(origin, name, count):
    keys = [f"{name}{i}" for i in range(count)]
    for key in keys:
        origin.put(key, SIZE)
    return keys


@pytest.mark.tsan
def test_a_burst_above_the_origin_s_rate_reaches_no_reader(start, origin, engine):
    """Far more clients read at once than the origin takes. Each gets its bytes and no 503, and
    waiting requests do not ask the origin repeatedly."""
    server = start(origin, engine=engine)
    keys = put(origin, "burst", 200)
    read_each(server, origin, keys[:1])
    origin.limit_rate(1, burst=10)
    with ThreadPoolExecutor(1) as pool:
        with origin.hold(None):
            readers = pool.submit(read_each, server, origin, keys)
            origin.wait_for(60)
        wait_for(lambda: sum(e.status == 503 for e in origin.requests()) >= 10, "ten refused")
        origin.limit_rate(
            100, burst=10
        )  # from now on at a rate that even a slow machine may ask at
        readers.result()
    asked = origin.requests(method="GET")
    refused = sum(e.status == 503 for e in asked)
    assert refused >= 10 and len(asked) == len(keys) + refused
    assert len(asked) <= 3 * len(keys), len(asked)
    assert server.metric("forebay_origin_slowdown_retries_total") == refused
    origin.limit_rate(None, 0)
    read_each(server, origin, keys)
    server.settle()
    mark = origin.mark()
    read_each(server, origin, keys)
    assert not origin.requests(since=mark)


def test_a_read_that_stays_refused_fails_in_the_end(start, origin, engine):
    """The origin refuses one key and answers all others. Forebay retries for 20 s, longer than
    after other failures, and then the client gets SlowDown."""
    server = start(origin, engine=engine, ahead_s=0, settings={"workers": 1, "origin.retries": 0})
    origin.put("hot", SIZE)
    origin.fault("hot", "status", 503, times=None)
    others = iter(put(origin, "cold", 1000))
    with server.client() as client, ThreadPoolExecutor(1) as pool:
        with origin.hold("hot"):
            reader = pool.submit(client.get, "hot")
            origin.wait_for(1, key="hot")
            read_each(server, origin, [next(others)])
        for count in range(2, 8):
            read_each(server, origin, [next(others)])
            origin.wait_for(count, key="hot")
        server.advance(21)
        reply = reader.result()
        assert (reply.status, reply.code) == (503, "SlowDown"), reply
        origin.clear_faults()
        judge(client.get("hot"), origin, "hot", 0, SIZE)
    assert server.metric("forebay_origin_slowdown_retries_total") >= 6


def test_stale_version_is_served_after_a_few_throttled_checks(start, origin, engine):
    """The origin throttles a revalidation while it answers others. Forebay asks a few times, and
    then serves the stale version."""
    server = start(origin, engine=engine, ahead_s=0, settings={"workers": 1, "origin.retries": 1})
    origin.put("held", SIZE)
    cold = put(origin, "cold", 2)
    with server.client() as client, ThreadPoolExecutor(1) as pool:
        judge(client.get("held"), origin, "held", 0, SIZE)
        server.settle()
        mark = origin.mark()
        server.advance(61)
        origin.fault("held", "status", 503, times=None)
        read_each(server, origin, cold[:1])
        with origin.hold("held"):
            reader = pool.submit(client.get, "held")
            origin.wait_for(1, key="held", since=mark)
            read_each(server, origin, cold[1:])
        judge(reader.result(), origin, "held", 0, SIZE)
    assert len(origin.requests(key="held", since=mark)) == 2


def test_usual_retries_if_the_origin_refuses_everything(start, origin, engine):
    """If the origin refuses every request, Forebay makes the usual retries and then answers the
    client."""
    server = start(origin, engine=engine, settings={"origin.retries": 2})
    origin.put("a", SIZE)
    origin.fault(None, "status", 503, times=None)
    with server.client() as client:
        reply = client.get("a")
        assert (reply.status, reply.code) == (503, "SlowDown"), reply
    assert len(origin.requests(key="a")) == 3
    assert server.metric("forebay_origin_slowdown_retries_total") == 0


@pytest.mark.tsan
def test_a_small_client_does_not_wait_for_a_busy_one(start, origin, engine):
    """One client has 60 cold objects in line, and then another asks for three: they take turns.

    One connection to the origin keeps the order of requests visible. With two, one may be slow to
    connect.
    """
    server = start(
        origin,
        engine=engine,
        settings={"workers": 1, "origin.connections": 1, "origin.first_byte_timeout": "10m"},
    )
    much, little = put(origin, "much", 62), put(origin, "little", 3)
    connections = []

    def send(key, address):
        connections.append(server.connection(address=address))
        connections[-1].send(f"GET /bkt/{key} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        server.wait_metric("forebay_fills_inflight", lambda v: v == len(connections))

    with origin.hold(None):
        for key in much:
            send(key, "127.0.0.1")
        for key in little:
            send(key, "127.0.0.2")
    for key, connection in zip(much + little, connections):
        judge(connection.read_reply(), origin, key, 0, SIZE)
        connection.close()
    order = [e.key for e in origin.requests()]
    assert max(order.index(key) for key in little) < 12, order

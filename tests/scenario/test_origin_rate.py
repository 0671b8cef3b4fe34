# SPDX-License-Identifier: Apache-2.0
"""origin.max_rate limits what an origin sends, and clients come before warm jobs."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from client import judge
from test_control import ask
from test_reload import change, serve

MIB = 1 << 20
WAITS = "forebay_origin_rate_waits_total"


def state_of_job(server):
    return json.loads(bytes(server.admin("/api/v1/jobs").body))["jobs"][-1]["state"]


@pytest.mark.both_engines
def test_bodies_wait_for_the_rate(start, origin, engine):
    """A read and a bypass of more than the rate wait until their bytes are paid for. Their bytes
    are right."""
    origin.put("a", 4 * MIB)
    origin.put("b", 4 * MIB)
    settings = {"workers": 2, "origin.max_rate": "64KiB/s"}
    server = start(origin, engine=engine, ahead_s=10, settings=settings)
    with server.client() as one, server.client() as two, ThreadPoolExecutor(2) as pool:
        hit = pool.submit(one.get, "a")
        passed = pool.submit(two.get, "b", headers=[("x-amz-expected-bucket-owner", "1")])
        server.wait_metric(WAITS, lambda v: v >= 2)
        # 8 MiB at this rate take 128 s; each held body goes on with the next advance.
        while not (hit.done() and passed.done()):
            server.advance(10)
        judge(hit.result(), origin, "a", 0, 4 * MIB)
        judge(passed.result(), origin, "b", 0, 4 * MIB)
    assert server.metric(WAITS) > 20


@pytest.mark.both_engines
def test_clients_get_their_turn_while_a_warm_job_uses_up_the_rate(start, origin, engine):
    """A warm job of 64 MiB runs at a rate of 1 MiB/s. Each miss of a client is answered meanwhile.
    Then the job ends well, and each of its objects is cached."""
    for i in range(16):
        origin.put(f"warm/{i:02}", 4 * MIB)
    for i in range(4):
        origin.put(f"k{i}", 10_000)
    settings = {"workers": 2, "origin.max_rate": "1MiB/s", "cache.ttl": "1h"}
    server = start(origin, engine=engine, ahead_s=10, settings=settings)
    ask(server, "warm", "s3://bkt/warm/")
    server.wait_metric(WAITS, lambda v: v >= 2)
    with server.client() as client:
        for i in range(4):
            judge(client.get(f"k{i}"), origin, f"k{i}", 0, 10_000)
    assert state_of_job(server) == "running", "the misses were answered before the job ended"
    while state_of_job(server) == "running":
        server.advance(10)
    assert state_of_job(server) == "done"
    server.settle()
    mark = origin.mark()
    with server.client() as client:
        for i in range(16):
            judge(client.get(f"warm/{i:02}"), origin, f"warm/{i:02}", 0, 4 * MIB)
    assert origin.bytes_sent(since=mark) == 0


@pytest.mark.parametrize("rate", ["0", "1GiB/s"])
def test_a_reload_ends_waits_that_would_last_for_hours(start, origin, rate):
    """At one byte per second, bodies and calls without a turn wait. After a reload without this
    rate, all of them are answered, although the clock does not move."""
    for key in "abcd":
        origin.put(key, 4 * MIB)
    server = serve(start, origin, {"origin": {"max_rate": "1B/s"}}, settings={"workers": 1})
    passed = [("x-amz-expected-bucket-owner", "1")]
    clients = [server.client(timeout=60) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        reads = [pool.submit(clients[0].get, "a")]
        server.wait_metric(WAITS, lambda v: v >= 1)
        reads.append(pool.submit(clients[1].get, "b", headers=passed))
        reads += [pool.submit(clients[i].get, "cd"[i - 2]) for i in (2, 3)]
        server.wait_metric("forebay_origin_connections", lambda v: v >= 2, state="waiting")
        assert not any(read.done() for read in reads)
        change(server, {"origin": {"max_rate": rate}})
        for key, read in zip("abcd", reads, strict=True):
            judge(read.result(), origin, key, 0, 4 * MIB)
    for client in clients:
        client.close()

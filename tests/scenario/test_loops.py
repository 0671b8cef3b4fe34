# SPDX-License-Identifier: Apache-2.0
"""Requests that would go round in a circle end with 508 at once. Similar but valid chains work."""

import json
import re
import socket
import threading

import pytest
import test_sts
from client import judge
from forebay import parallel
from ports import free_ports

READERS = 16


class Balancer:
    """A TCP relay with an address of its own, so that no Forebay can see where it leads."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.target = None
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self._copy, args=pair, daemon=True).start()

    @staticmethod
    def _copy(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        self.listener.close()


@pytest.fixture
def balancer():
    made = []

    def make():
        made.append(Balancer())
        return made[-1]

    yield make
    for one in made:
        one.close()


def ring(start, balancer, count, **more):
    """Starts COUNT servers, each with the next one as its origin, and the last with the first."""
    fronts = [balancer() for _ in range(count)]
    servers = []
    for i in range(count):
        servers.append(
            start(fronts[(i + 1) % count].endpoint, settings={"origin.region": "us-east-1"}, **more)
        )
        fronts[i].target = servers[i].port
    return servers, fronts


def is_loop(reply):
    assert reply.status == 508, reply
    assert reply.header("via") is None, reply
    return reply


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_ring_ends_at_once(start, balancer, engine, count):
    """In a ring of servers every kind of request ends before any timeout of the origin. No request
    is retried."""
    servers, fronts = ring(start, balancer, count, engine=engine)
    with servers[0].client() as client:
        assert is_loop(client.get("a")).code == "LoopDetected"
        is_loop(client.get("a", headers=[("Range", "bytes=0-9")]))
        is_loop(client.request("HEAD", "/bkt/a"))
        is_loop(client.request("GET", "/bkt?list-type=2"))
        is_loop(client.request("PUT", "/bkt/new", body=b"x" * 1000))
        is_loop(client.request("DELETE", "/bkt/new"))
    assert sum(front.connections for front in fronts) <= 12 * count
    assert sum(s.metric("forebay_http_refused_total", reason="loop") for s in servers) >= 6
    for server in servers:
        assert server.metric("forebay_origin_errors_total", reason="timeout") == 0
        server.settle()


@pytest.mark.parametrize("count", [2, 3])
def test_a_ring_asked_from_all_sides(start, balancer, engine, count):
    """Clients read the same objects at every server of a ring at once. None waits for another in a
    circle."""
    servers, fronts = ring(start, balancer, count, engine=engine)

    def read(i):
        with servers[i % count].client() as client:
            for key in ("a", "b", "c"):
                is_loop(client.get(key))

    parallel(READERS, read)
    for server in servers:
        assert server.metric("forebay_origin_errors_total", reason="timeout") == 0
        server.settle()
    assert sum(front.connections for front in fronts) <= 64 * 2 * count


def test_a_chain_is_no_ring(start, origin, engine):
    """A Forebay may be the origin of another. Bytes are right, both have hits, and Via is sent
    towards the origin only."""
    origin.put("a", 100_000)
    origin.put("b", 3_000_000)
    peer = start(origin, engine=engine)
    server = start(peer.endpoint, engine=engine, settings={"origin.region": "us-east-1"})
    with server.client() as client:
        for key, size in (("a", 100_000), ("b", 3_000_000), ("b", 3_000_000)):
            reply = client.get(key)
            judge(reply, origin, key, 0, size)
            assert reply.header("via") is None
    server.settle()
    peer.settle()
    asked = len(origin.requests(key="b"))
    other = start(peer.endpoint, engine=engine, settings={"origin.region": "us-east-1"})
    with other.client() as client:
        judge(client.get("b"), origin, "b", 0, 3_000_000)
    assert len(origin.requests(key="b")) == asked, "the peer answers from its cache"
    names = [re.findall(r"forebay-[0-9a-f]{16}", r.header("via") or "") for r in origin.requests()]
    assert all(names), "each request upstream says who sent it"
    assert all("via" not in (r.header("authorization") or "") for r in origin.requests())


def test_too_long_a_via_is_a_loop(start, origin):
    """A Via header with too many entries counts as a loop, whoever is in it."""
    origin.put("a", 100)
    server = start(origin)
    with server.client() as client:
        via = ", ".join(f"1.1 forebay-{i:016x}" for i in range(8))
        judge(client.get("a", headers=[("Via", via)]), origin, "a", 0, 100)
        is_loop(client.get("a", headers=[("Via", via), ("Via", "1.1 forebay-" + "f" * 16)]))
        judge(
            client.get("a", headers=[("Via", "1.0 fred, 1.1 proxy.example")] * 9),
            origin,
            "a",
            0,
            100,
        )


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
@pytest.mark.parametrize("setting", ["listen", "admin.listen"])
def test_the_start_reports_an_endpoint_that_leads_back(start, setting, host):
    """If the start-up probe comes back to its own process, log, /readyz and conditions name the
    loop and the remedy."""
    (port,) = free_ports(1)
    server = start(
        f"http://{host}:{port}",
        settings={
            setting: f"127.0.0.1:{port}",
            "origin.region": "us-east-1",
            "origin.addressing": "path",
            "origin.probe": "true",
        },
    )
    server.wait_stderr("origin_unreachable")
    (event,) = [json.loads(line) for line in server.stderr if "origin_unreachable" in line]
    assert event["why"] == "loop" and "leads back" in event["text"], event
    assert "origin.endpoint" in event["remedy"] and setting in event["remedy"], event
    assert b"leads back" in server.admin("/readyz").body
    assert "origin-unreachable" in server.conditions()
    with server.client() as client:
        assert is_loop(client.get("a")).code == "LoopDetected"


def test_the_endpoint_of_a_bucket_that_leads_back(start, origin):
    """If one bucket's endpoint leads back, reads of this bucket get 508. Other buckets work."""
    (port,) = free_ports(1)
    origin.put("a", 1000)
    server = start(
        origin,
        settings={"listen": f"127.0.0.1:{port}"},
        file={
            "buckets": [{"name": "b", "origin": "s3://b", "endpoint": f"http://127.0.0.1:{port}"}]
        },
    )
    with server.client() as client:
        is_loop(client.get("a", bucket="b"))
        judge(client.get("a"), origin, "a", 0, 1000)


def test_an_sts_endpoint_that_leads_back(start, origin):
    """The relayed STS call comes back and meets its own Via."""
    (port,) = free_ports(1)
    server = start(
        origin,
        settings={"listen": f"127.0.0.1:{port}"},
        env={"AWS_ENDPOINT_URL_STS": f"http://127.0.0.1:{port}"},
    )
    with server.client() as client:
        is_loop(client.request("POST", "/", test_sts.FORM, test_sts.call()))

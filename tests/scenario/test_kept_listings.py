# SPDX-License-Identifier: Apache-2.0
"""All workers share the kept listings (`cache.list_ttl`). Equal listings cost one request, and a
write drops them."""

import contextlib
import threading

import pytest

from client import Client
from test_auth import Caller, keys_file, verify

KEPT = {"cache.list_ttl": "1h", "workers": 4}
CONNECTIONS = 16  # the kernel spreads them over the workers
CPP_SDK = [("x-amz-api-version", "2006-03-01"), ("User-Agent", "aws-sdk-cpp/1.11")]
CRT = [
    ("x-amz-optional-object-attributes", "RestoreStatus"),
    ("User-Agent", "aws-sdk-rust CRTS3NativeClient/0.1.x"),
]


class Asker(Client):
    """A client that asks in a thread of its own. Its connection stays open until that thread has
    ended."""

    thread = reply = error = None

    def begin(self, ask):
        def run():
            try:
                self.reply = ask(self)
            except BaseException as error:  # noqa: BLE001: wait() raises it
                self.error = error

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def wait(self):
        self.thread.join()
        if self.error is not None:
            raise self.error
        return self.reply

    def __exit__(self, *raised):
        if self.thread is not None:
            self.thread.join()
        super().__exit__(*raised)


@contextlib.contextmanager
def connections(server, count=CONNECTIONS):
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Asker(server.port)) for _ in range(count)]


def at_once(clients, ask):
    """Runs ASK for all CLIENTS in threads. Returns when they have begun, and the returned call
    waits for their replies."""
    for client in clients:
        client.begin(ask)
    return lambda: [client.wait() for client in clients]


def status_of(reply):
    return reply.header("cache-status")


def asked_nobody(reply):
    """The page was kept; or it was complete, but had not reached its owner yet."""
    return "hit" in status_of(reply) or "collapsed" in status_of(reply)


@pytest.mark.tsan
def test_all_workers_share_one_listing(start, origin):
    """One request at the origin serves the workers of all connections."""
    origin.put("a", 1)
    server = start(origin, settings=KEPT)
    with connections(server) as clients:
        for query in ("list-type=2", "list-type=2&prefix=a", "prefix=b"):
            mark = origin.mark()
            replies = [client.list(query) for client in clients for _ in range(2)]
            assert len(origin.requests(since=mark)) == 1, query
            assert len({bytes(reply.body) for reply in replies}) == 1
            assert sum(map(asked_nobody, replies)) == len(replies) - 1


def one_fetch_for_all(server, clients):
    """All clients ask for one listing, and all but the first join its fetch. Returns a call that
    gives their replies."""
    join = at_once(clients, lambda client: client.list())
    server.wait_metric("forebay_listings_joined_total", lambda v: v == CONNECTIONS - 1)
    return join


@pytest.mark.tsan
def test_equal_listings_in_flight_are_joined(start, origin):
    origin.put("a", 1)
    server = start(origin, settings=KEPT)
    with connections(server) as clients:
        with origin.hold(None):
            join = one_fetch_for_all(server, clients)
        replies = join()
    assert len(origin.requests()) == 1
    assert {reply.status for reply in replies} == {200}
    assert len({bytes(reply.body) for reply in replies}) == 1 and b"<Key>a</Key>" in bytes(
        replies[0].body
    )
    assert sum("collapsed" in status_of(reply) for reply in replies) == CONNECTIONS - 1


def test_an_error_is_shared_by_those_in_flight_and_not_kept(start, origin):
    server = start(origin, settings=KEPT)
    with connections(server) as clients:
        with origin.hold(None):
            origin.fault(None, "error", (404, "NoSuchBucket"))
            join = one_fetch_for_all(server, clients)
        for reply in join():
            assert reply.status == 404 and b"NoSuchBucket" in bytes(reply.body), reply
        assert len(origin.requests()) == 1
        assert clients[0].list().status == 200


def test_an_origin_that_cannot_be_reached_fails_all_in_flight(start, origin):
    """If the origin cannot be reached, clients that joined a fetch fail with it. They do not wait
    for the same timeouts again."""
    server = start(origin, settings=KEPT | {"origin.retries": 0})
    with connections(server) as clients:
        with origin.hold(None):
            origin.fault(None, "close", times=None)
            join = one_fetch_for_all(server, clients)
        assert {reply.status for reply in join()} == {503}
        asked = len(origin.requests())
        origin.clear_faults()
        assert clients[0].list().status == 200
    assert asked < CONNECTIONS


@pytest.mark.tsan
def test_a_client_that_leaves_hands_its_fetch_on(start, origin):
    origin.put("a", 1)
    server = start(origin, settings=KEPT)
    with connections(server) as clients:
        with origin.hold(None):
            first = server.connection()
            first.send(b"GET /bkt?list-type=2 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            origin.wait_for(1)
            join = at_once(clients, lambda client: client.list())
            server.wait_metric("forebay_listings_joined_total", lambda v: v == CONNECTIONS)
            first.reset()
            origin.wait_for(2)
        replies = join()
    assert {(reply.status, bytes(reply.body)) for reply in replies} == {
        (200, bytes(replies[0].body))
    }
    assert len(origin.requests()) == 2


def test_a_slow_client_does_not_hold_up_who_joined_it(start, origin):
    """If the first client of a listing does not read, clients that joined it still get the page as
    fast as the origin sends it."""
    for i in range(1000):
        origin.put(f"{i:04d}" + "k" * 600, 1)
    server = start(origin, settings=KEPT)
    with server.connection() as first, connections(server) as clients:
        with origin.hold(None):
            first.send(b"GET /bkt?list-type=2 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            origin.wait_for(1)
            join = at_once(clients, lambda client: client.list())
            server.wait_metric("forebay_listings_joined_total", lambda v: v == CONNECTIONS)
        replies = join()
        assert {reply.status for reply in replies} == {200} and len(replies[0].body) > 700000
        assert bytes(first.read_reply("GET").body) == bytes(replies[0].body)
    assert len(origin.requests()) == 1


@pytest.mark.tsan
def test_a_listing_after_a_write_shows_it_on_every_worker(start, origin):
    server = start(origin, settings=KEPT)
    with connections(server) as clients:
        for number in range(24):
            writer = clients[number % CONNECTIONS]
            assert writer.request("PUT", f"/bkt/k{number}", body=b"x").status == 200
            mark = origin.mark()
            for client in clients:
                assert f"<Key>k{number}</Key>".encode() in bytes(client.list().body), number
            assert len(origin.requests(since=mark)) == 1
        assert clients[0].request("DELETE", "/bkt/k3").status == 204
        assert all(b"<Key>k3</Key>" not in bytes(client.list().body) for client in clients)


@pytest.mark.tsan
def test_a_listing_that_began_before_a_write_is_not_joined_after_it(start, origin):
    """A client does not join a listing that began before a write. The origin holds that listing,
    with its old answer, during the whole write."""
    origin.put("old", 1)
    server = start(origin, settings=KEPT)
    held = threading.Event()
    with connections(server) as clients:
        raw = (
            b"<ListBucketResult><Contents><Key>old</Key>"
            b"<Size>1</Size></Contents></ListBucketResult>"
        )
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\n"
            f"Content-Length: {len(raw)}\r\n\r\n".encode()
        )
        origin.fault("", "raw", head + raw, method="GET")
        with origin.hold("", method="GET") as held:
            before = at_once(clients[:8], lambda client: client.list())
            server.wait_metric("forebay_listings_joined_total", lambda v: v == 7)
            assert clients[8].request("PUT", "/bkt/new", body=b"x").status == 200
            after = at_once(clients[9:], lambda client: client.list())
            server.wait_metric(
                "forebay_listings_joined_total", lambda v: v == 7 + len(clients[9:]) - 1
            )
            held.set()
        assert all(b"<Key>old</Key>" in bytes(reply.body) for reply in before())
        assert all(b"<Key>new</Key>" in bytes(reply.body) for reply in after())
        assert all(b"<Key>new</Key>" in bytes(client.list().body) for client in clients)
    assert len(origin.requests(method="GET")) == 2


def test_no_cache_fetches_a_listing_that_is_then_kept(start, origin):
    """A listing with no-cache is fetched from the origin, and its page is kept."""
    origin.put("a", 1)
    server = start(origin, settings=KEPT)
    with connections(server) as clients:
        clients[0].list()
        origin.put("b", 1)
        for client in clients:
            assert b"<Key>b</Key>" not in bytes(client.list().body)
        reply = clients[1].request("GET", "/bkt?list-type=2", [("Cache-Control", "no-cache")])
        assert b"<Key>b</Key>" in bytes(reply.body)
        for client in clients:
            reply = client.list()
            assert b"<Key>b</Key>" in bytes(reply.body) and asked_nobody(reply)
    assert len(origin.requests()) == 2


@pytest.mark.parametrize("headers", [CPP_SDK, CRT], ids=["cpp-sdk", "crt"])
def test_listings_of_real_clients_are_kept(start, origin, headers):
    """Listings with the headers and parameters of real clients are kept."""
    origin.put("a", 1)
    server = start(origin, settings=KEPT)
    with connections(server) as clients:
        for client in clients:
            assert client.request("GET", "/bkt?list-type=2&prefix=", headers).status == 200
    [entry] = origin.requests()
    wants = headers is CRT
    assert (entry.header("x-amz-optional-object-attributes") == "RestoreStatus") == wants
    assert entry.header("x-amz-api-version") is None


def test_a_header_that_selects_the_answer_is_part_of_its_name(start, origin):
    origin.put("a", 1)
    server = start(origin, settings=KEPT)
    asked = [
        [],
        [("x-amz-optional-object-attributes", "RestoreStatus")],
        [("x-amz-optional-object-attributes", "Other")],
        [("x-amz-request-payer", "requester")],
        [("x-amz-expected-bucket-owner", "1")],
        [("x-amz-expected-bucket-owner", "12")],
        [("x-amz-request-payer", "requester"), ("x-amz-expected-bucket-owner", "1")],
    ]
    with connections(server, 2) as clients:
        for _ in range(2):
            for headers in asked:
                for client in clients:
                    assert client.request("GET", "/bkt?list-type=2", headers).status == 200
    assert len(origin.requests()) == len(asked)
    for entry, headers in zip(origin.requests(), asked):
        for name, value in headers:
            assert entry.header(name) == value


def test_a_page_belongs_to_its_access_key(start, origin, tmp_path):
    origin.put("a", 1)
    everybody = {who: [("*", "", ["list"])] for who in ("ALICE", "BOB")}
    server = start(origin, settings=verify(keys_file(tmp_path, everybody), **KEPT))
    for _ in range(CONNECTIONS):
        for who in everybody:
            caller = Caller(server, who)
            assert caller.ask("GET", "/bkt?list-type=2").status == 200
            caller.http.close()
    assert len(origin.requests()) == len(everybody)


def test_listings_stay_within_their_share_of_the_budget(start, origin):
    """Kept listings take at most an eighth of `limits.max_buffer`. A listing that does not fit is
    answered and not kept."""
    for i in range(1000):
        origin.put(f"{i:04d}" + "k" * 60, 1)
    server = start(origin, settings=KEPT | {"limits.max_buffer": "16MiB"})
    share = (16 << 20) // 8
    with connections(server, 4) as clients:
        size = len(clients[0].list("prefix=&x-id=ListObjects").body)
        pages = 3 * share // size + 4
        for number in range(pages):
            reply = clients[number % 4].list(f"list-type=2&start-after=%00{number}")
            assert reply.status == 200 and len(reply.body) > 100000
            assert server.metric("forebay_buffer_bytes", kind="listings") <= share
        mark = origin.mark()
        assert asked_nobody(clients[0].list(f"list-type=2&start-after=%00{pages - 1}"))
        assert not origin.requests(since=mark)
        # More in flight than there is room for: all are answered.
        with origin.hold(None):
            join = at_once(
                clients,
                lambda client: client.list(f"list-type=2&start-after=0{clients.index(client)}"),
            )
            origin.wait_for(mark + 4)
        assert {reply.status for reply in join()} == {200}


def test_a_listing_beyond_the_budget_is_answered_and_not_kept(start, origin):
    for i in range(1000):
        origin.put(f"{i:04d}" + "k" * 800, 1)
    server = start(origin, settings=KEPT | {"limits.max_buffer": "4MiB"})
    with connections(server) as clients:
        with origin.hold(None):
            join = one_fetch_for_all(server, clients)
        replies = join()
        assert {reply.status for reply in replies} == {200}
        assert len({bytes(reply.body) for reply in replies}) == 1 and len(replies[0].body) > (
            512 << 10
        )
        assert server.metric("forebay_limit_reached_total", limit="listings") > 0
        assert server.metric("forebay_buffer_bytes", kind="listings") <= (4 << 20) // 8
        mark = origin.mark()
        assert "hit" not in status_of(clients[0].list())
        assert len(origin.requests(since=mark)) == 1

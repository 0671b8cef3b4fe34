# SPDX-License-Identifier: Apache-2.0
"""Forebay counts, bounds and frees the memory that clients and origins make it hold.

The tests send requests that name many keys in many realms, and bodies that Forebay collects before
it relays them. They run in a pod of 128 MiB.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import ssl
import urllib.parse

import pytest

from client import Client, Closed, Connection, judge_streamed, request_bytes
from forebay import build_kind, parallel, scaled
from conftest import not_run
from signer import Signer
from test_connections import certificate
from test_control import ask
from test_memory import (
    ANONYMOUS_MAX,
    FILLED,
    MIB,
    POD,
    SlowReader,
    Tree,
    Watch,
    anonymous_of,
    group,
    settings_of_the_pod,
    sockets_of,
)

assert certificate and group  # fixtures
REALMS = 63
LEAST = 24 * 1024  # socket_room.c
COLLECTED = 2 * MIB  # PASS_COLLECT_MAX
ALL = ["read", "list", "write", "delete", "any"]
KINDS = ("bodies", "writes")


def keys_file(folder, realms):
    """A keys file with this number of principals, each in a realm of its own. The first one
    acts."""
    path = folder / "keys.yaml"
    path.write_text(
        json.dumps(
            [
                {
                    "id": f"WHO{i}",
                    "secret": f"secret-canary-{i}-5d1f",
                    "realm": f"realm-{i}",
                    "allow": [{"bucket": "*", "prefix": "", "ops": ALL}],
                }
                for i in range(realms)
            ]
        )
    )
    path.chmod(0o600)
    return {"auth.mode": "verify", "auth.keys_file": path}


class Actor:
    """Sends signed requests of the first principal, or unsigned ones where there are no keys, on
    one connection."""

    def __init__(self, server, is_signed=True):
        self.http = Client(server.port)
        self.signer = Signer("WHO0", "secret-canary-0-5d1f") if is_signed else None

    def ask(self, method, target, headers=(), body=b""):
        if self.signer:
            headers = self.signer.headers(method, target, self.http.host, headers, body)
        return self.http.request(method, target, headers, body)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.close()


def batch(keys):
    return (
        b"<Delete>"
        + b"".join(b"<Object><Key>%s</Key></Object>" % k.encode() for k in keys)
        + b"</Delete>"
    )


def memory_of(group, server):
    return group.anonymous_bytes if group else lambda: anonymous_of(server)


def nothing_is_kept(server):
    for kind in KINDS:
        server.wait_metric("forebay_buffer_bytes", lambda v: v == 0, kind=kind)


def invalidates_within_the_budget(group, server, figure, what, work, jobs, least):
    """Runs WORK in JOBS threads at once. Checks that at least LEAST names are invalidated with the
    memory of one window, which is given back."""
    read = memory_of(group, server)
    before = read()
    with Watch(read, []) as watch:
        parallel(jobs, work)
    assert watch.error is None
    grown, done = (
        watch.highest - before,
        server.metric("forebay_invalidations_total", of="key"),
    )
    figure(
        f"{what}: {grown / MIB:.1f} MiB anonymous memory more than the "
        f"{before / MIB:.1f} before, {done:.0f} invalidations"
    )
    assert done >= least
    assert grown <= 24 * MIB and watch.highest <= ANONYMOUS_MAX
    nothing_is_kept(server)
    assert server.alive and (group is None or group.kills() == 0)


def no_sanitizer():
    if build_kind() in ("asan-ubsan", "tsan"):
        not_run("memory is not judged under a sanitizer")


@pytest.mark.parametrize("long_keys", (True, False))
def test_batch_deletes_in_many_realms_stay_within_the_budget(
    group, start, origin, engine, long_keys, tmp_path, figure
):
    """One batch delete of 1,000 keys of 1,000 bytes with 63 realms, then 14 at once with 8 realms.
    Every name of every key is invalidated with the memory of one window."""
    no_sanitizer()
    realms, requests, length = (REALMS, 1, 1000) if long_keys else (8, 14, 40)
    server = start(
        origin,
        engine=engine,
        wrapper=group.wrapper if group else (),
        settings=settings_of_the_pod(group, **keys_file(tmp_path, realms), workers=2),
    )
    keys = [[f"{r}/{i}/".ljust(length, "x") for i in range(1000)] for r in range(requests)]
    origin.put(keys[0][7], 4096)
    with Actor(server) as client:
        assert client.ask("GET", f"/bkt/{keys[0][7]}").status == 200

    def delete(i):
        with Actor(server) as client:
            reply = client.ask("POST", "/bkt?delete", [], batch(keys[i]))
            assert reply.status == 200, reply

    invalidates_within_the_budget(
        group,
        server,
        figure,
        f"{engine}, {requests} x 1,000 keys of {length} bytes, {realms} realms",
        delete,
        requests,
        2 * requests * 1000 * (realms + 1),
    )
    with Actor(server) as client:
        assert client.ask("GET", f"/bkt/{keys[0][7]}").status == 404


def test_evicting_many_objects_in_many_realms_stays_within_the_budget(
    group, start, origin, engine, tmp_path, figure
):
    """Four evictions at once, of 500 objects each, with 63 realms. Each object is evicted from all
    realms with the memory of one window."""
    no_sanitizer()
    orders, objects = 4, 500
    server = start(
        origin,
        engine=engine,
        wrapper=group.wrapper if group else (),
        settings=settings_of_the_pod(group, **keys_file(tmp_path, REALMS), workers=2),
    )
    keys = [[f"{r}/{i}" for i in range(objects)] for r in range(orders)]
    origin.put(keys[3][7], 4096)
    with Actor(server) as client:
        assert client.ask("GET", f"/bkt/{keys[3][7]}").status == 200
    server.durable()

    def evict(i):
        lines = ask(server, "evict", "--allow-empty", *(f"s3://bkt/{key}" for key in keys[i]))
        assert all(line["ok"] for line in lines[:-1]), lines

    invalidates_within_the_budget(
        group,
        server,
        figure,
        f"{engine}, {orders} x {objects} objects evicted in {REALMS + 1} realms",
        evict,
        orders,
        orders * objects * (REALMS + 1),
    )
    origin.overwrite(keys[3][7], 4096)
    with Actor(server) as client:
        assert client.ask("GET", f"/bkt/{keys[3][7]}").etag == origin.version(keys[3][7]).etag


def test_collected_bodies_stay_within_their_share(group, start, origin, engine, figure):
    """40 clients upload 1.9 MiB each without a length, all but the end.

    Forebay holds at most a quarter of limits.max_buffer of them and answers the others with
    SlowDown. It stores the held ones when their end arrives.
    """
    no_sanitizer()
    server = start(
        origin,
        engine=engine,
        wrapper=group.wrapper if group else (),
        settings=settings_of_the_pod(group, workers=2),
    )
    size, count = int(1.9 * MIB), 40
    read = memory_of(group, server)
    before = read()
    share = POD // 4 // 4
    connections = [server.connection() for _ in range(count)]
    answers = [None] * count

    def send(i):
        connection = connections[i]
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.send(
                b"PUT /bkt/up/%d HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
                % i
            )
            connection.send(b"%x\r\n%s\r\n" % (size, b"x" * size))

    def finish(i):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connections[i].send(b"0\r\n\r\n")
        with contextlib.suppress(Closed, ConnectionResetError):
            answers[i] = connections[i].read_reply("PUT")

    with Watch(read, []) as watch:
        parallel(count, send)
        server.wait_metric(
            "forebay_http_requests_total", lambda v: v >= count - share // COLLECTED, code="503"
        )
        server.wait_metric(
            "forebay_http_shed_total", lambda v: v >= count - share // COLLECTED, reason="memory"
        )
        server.wait_condition("memory")
        parallel(count, finish)
    assert watch.error is None
    stored = sum(a is not None and a.status == 200 for a in answers)
    told = [a for a in answers if a is not None and a.status != 200]
    figure(
        f"{engine}: {stored} of {count} bodies of 1.9 MiB held and stored, "
        f"{(watch.highest - before) / MIB:.1f} MiB anonymous "
        f"memory more than before"
    )
    assert 1 <= stored <= share // COLLECTED
    assert told and all(a.status == 503 and b"SlowDown" in bytes(a.body) for a in told)
    assert watch.highest - before <= share + 8 * MIB
    nothing_is_kept(server)
    for connection in connections:
        connection.close()
    connections[0] = server.connection()  # memory that was given back can be used again
    send(0)
    finish(0)
    assert answers[0].status == 200
    connections[0].close()


@pytest.mark.parametrize("is_signed", (True, False))
def test_requests_with_long_targets_stay_within_the_share_of_clients(
    group, start, origin, engine, is_signed, tmp_path, figure
):
    """400 reads with targets of 14 KB wait for the origin. The memory to read, parse and sign a
    head counts, so only those with room are admitted. The others get SlowDown, and all memory is
    given back."""
    no_sanitizer()
    server = start(
        origin,
        engine=engine,
        wrapper=group.wrapper if group else (),
        settings=settings_of_the_pod(
            group, workers=2, **(keys_file(tmp_path, 1) if is_signed else {})
        ),
    )
    count, host = 400, f"127.0.0.1:{server.port}"
    query = "&".join(f"p{i}={'q' * 280}" for i in range(50))
    signer = Signer("WHO0", "secret-canary-0-5d1f")
    origin.put("k", 100)
    read = memory_of(group, server)
    before = read()
    connections = [server.connection() for _ in range(count)]

    def send(i):
        target = f"/bkt/k?{query}&i={i}"
        headers = signer.headers("GET", target, host, [], b"") if is_signed else []
        connections[i].send(request_bytes("GET", target, host, headers, b""))

    with Watch(read, []) as watch, origin.hold(None):
        parallel(count, send)
        server.wait_metric(
            "forebay_http_shed_total",
            lambda v: v + server.metric("forebay_http_requests_inflight") == count,
            reason="memory",
        )
    assert watch.error is None
    replies = [connection.read_reply("GET") for connection in connections]
    taken = sum(reply.status == 200 for reply in replies)
    grown = watch.highest - before
    figure(
        f"{engine}, {'signed' if is_signed else 'open'}: {taken} of "
        f"{count} requests with targets of 14 KB taken, "
        f"{grown / MIB:.1f} MiB anonymous memory more than before"
    )
    assert 20 <= taken < count and grown <= 32 * MIB
    assert all(reply.status == 200 or b"SlowDown" in bytes(reply.body) for reply in replies)
    for connection in connections:
        connection.close()
    server.wait_metric("forebay_buffer_bytes", lambda v: v == 0, kind="clients")


def test_requests_sent_ahead_stay_within_the_share_of_clients(group, start, origin, engine, figure):
    """2,000 connections send 45 KB of requests ahead and read no reply. Those with room for their
    sockets stay. When the share of clients is used up, the server receives only a little ahead
    from each."""
    no_sanitizer()
    server = start(
        origin,
        engine=engine,
        wrapper=group.wrapper if group else (),
        settings=settings_of_the_pod(
            group,
            workers=2,
            **{"limits.max_connections_per_source": 16000, "access_log.path": "off"},
        ),
    )
    origin.put("k", MIB)
    with server.client() as client:
        assert client.get("k").status == 200
    server.durable()
    read, count = memory_of(group, server), 2000
    before = read()
    connections = [server.connection() for _ in range(count)]
    ahead = b"GET /bkt/k HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 1100

    def send(part):
        for connection in connections[part::8]:
            connection.sock.setblocking(False)
            with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                connection.sock.send(ahead)

    with Watch(read, []) as watch, Watch(sockets_of(group), []) as sockets:
        parallel(8, send)
        server.wait_metric("forebay_http_connections", lambda v: v == 0, state="idle")
    stay = server.metric("forebay_http_connections", state="active")
    assert watch.error is None and sockets.error is None
    grown = watch.highest - before
    figure(
        f"{engine}: {stay:.0f} of {count} connections that send requests ahead: "
        f"{grown / MIB:.1f} MiB anonymous memory more than before, sockets up to "
        f"{sockets.highest / MIB:.1f} MiB"
    )
    assert grown <= 40 * MIB
    packets = 128 * 65536  # one above its room for each socket that is not written in pieces
    assert sockets.highest <= POD // 4 + packets, "more than the share of clients"
    assert stay > 128 + 256, "each has 128 KiB in half of the share, and 32 KiB in a quarter"
    assert group is None or group.kills() == 0
    for connection in connections:
        connection.close()
    server.wait_metric("forebay_buffer_bytes", lambda v: v == 0, kind="clients")


def test_connections_without_room_for_their_sockets_are_refused(
    group, start, origin, engine, certificate, figure
):
    """Idle clients take all of the room for sockets, and the next one gets SlowDown. The last two
    with room, one of them with TLS, read and write large objects through small buffers."""
    no_sanitizer()
    if group is None:
        not_run("no memory cgroup can be made here")
    server = start(
        origin,
        engine=engine,
        wrapper=group.wrapper,
        settings=settings_of_the_pod(
            group,
            workers=2,
            **{
                "listen": "127.0.0.1:0,tls:127.0.0.1:0",
                "listen_tls.cert": certificate[0],
                "listen_tls.key": certificate[1],
            },
        ),
    )
    size = 4 * MIB
    origin.put("large", size)
    idle = []

    def fill(bytes):
        while server.metric("forebay_socket_room_bytes", of="clients") <= bytes:
            idle.extend(server.connection() for _ in range(20))
            server.wait_metric(
                "forebay_http_connections",
                lambda v: v + server.metric("forebay_http_shed_total") == len(idle),
            )

    fill(POD // 4 // 4 * 3)
    last = [server.connection(), Connection(server.tls_port)]
    context = ssl.create_default_context(cafile=certificate[0])
    last[1].sock = context.wrap_socket(last[1].sock, server_hostname="127.0.0.1")
    idle += last
    fill(POD // 4 - LEAST)
    refused = server.metric("forebay_http_shed_total", reason="sockets")
    with server.connection() as connection:
        reply = connection.read_reply("GET")
        assert reply.status == 503 and reply.code == "SlowDown", reply
    assert server.metric("forebay_http_shed_total", reason="sockets") == refused + 1
    assert "requests-shed" in server.conditions()
    with Watch(sockets_of(group), []) as sockets:
        for i, connection in enumerate(last * 2):
            connection.send(b"GET /bkt/large HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            judge_streamed(connection, origin, "large", 0, size)
            connection.send(request_bytes("PUT", f"/bkt/up{i}", "127.0.0.1", [], b"u" * MIB))
            assert connection.read_reply("PUT").status == 200
    assert sockets.error is None
    room = server.metric("forebay_socket_room_bytes", of="clients")
    figure(
        f"{engine}: {len(idle) - refused:.0f} connections with room for {room / MIB:.1f} MiB, "
        f"sockets up to {sockets.highest / MIB:.1f} MiB"
    )
    assert sockets.highest <= POD // 4 and group.kills() == 0
    idle[0].close()
    server.wait_metric("forebay_socket_room_bytes", lambda v: v < room, of="clients")
    with server.client() as client:
        assert client.get("large").status == 200
    for connection in idle:
        connection.close()
    server.wait_metric("forebay_socket_room_bytes", lambda v: v == 0, of="clients")


def test_answers_with_long_headers_are_refused_when_memory_is_used_up(
    group, start, origin, engine, figure
):
    """300 objects with 40 KB of metadata have readers who read nothing. Those with room are
    answered, and the others get SlowDown. Later each of them is answered."""
    no_sanitizer()
    server = start(
        origin,
        engine=engine,
        wrapper=group.wrapper if group else (),
        settings=settings_of_the_pod(group, workers=2),
    )
    count = 300
    for i in range(count):
        origin.put(f"k{i}", 3 * MIB, headers={f"x-amz-meta-{n}": "v" * 400 for n in range(100)})
    read = memory_of(group, server)
    before = read()
    connections = [Connection(server.port, receive_buffer=4096) for _ in range(count)]

    def send(i):
        connections[i].send(f"GET /bkt/k{i} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert connections[i].sock.recv(12, socket.MSG_PEEK | socket.MSG_WAITALL) in (
            b"HTTP/1.1 200",
            b"HTTP/1.1 503",
        )

    with Watch(read, []) as watch:
        parallel(count, send)
    assert watch.error is None
    grown = watch.highest - before
    refused = server.metric("forebay_http_shed_total", reason="memory")
    figure(
        f"{engine}: {refused:.0f} of {count} answers with 40 KB of headers "
        f"refused, {grown / MIB:.1f} MiB anonymous memory "
        f"more than before"
    )
    assert 0 < refused < count and grown <= 72 * MIB
    for connection in connections:
        connection.close()
    server.wait_metric("forebay_buffer_bytes", lambda v: v == 0, kind="clients")
    with server.client() as client:
        for i in (0, count - 1):
            assert client.get(f"k{i}").status == 200


@pytest.mark.long(covered="test_kept_listings.py, and the other crowds of this file")
def test_listings_of_a_huge_folder_stay_within_the_budget(
    group, start, origin, engine, tmp_path, figure
):
    """Four clients at once list a folder of a million files with long names (100,000 at scale 0.1),
    page by page. Each gets all names in order, and Forebay holds only windows of them."""
    no_sanitizer()
    count = scaled(1_000_000, 100_000)
    tree = Tree(tmp_path / "tree")
    folder = tmp_path / "tree" / "bkt" / "huge"
    folder.mkdir(parents=True)
    names = [f"{i:07d}-".ljust(200, "n") for i in range(count)]
    for name in names:
        os.close(os.open(folder / name, os.O_CREAT | os.O_WRONLY))
    server = start(
        tree,
        engine=engine,
        wrapper=group.wrapper if group else (),
        settings=settings_of_the_pod(group, workers=2),
    )
    read = memory_of(group, server)
    before = read()

    def walk(i):
        seen, token, pages = 0, None, 0
        with server.client() as client:
            while pages < 20 and (pages == 0 or token):
                query = f"list-type=2&prefix=huge/&start-after=huge/{names[i * count // 5]}"
                query += (
                    f"&continuation-token={urllib.parse.quote(token, safe='')}" if token else ""
                )
                reply = client.request("GET", f"/bkt?{query}")
                assert reply.status == 200, reply
                keys = re.findall(rb"<Key>huge/([^<]*)</Key>", bytes(reply.body))
                first = i * count // 5 + 1 + seen
                assert keys == [n.encode() for n in names[first : first + len(keys)]]
                seen, pages = seen + len(keys), pages + 1
                more = re.search(rb"<NextContinuationToken>([^<]*)<", bytes(reply.body))
                token = more.group(1).decode() if more else None
        assert seen >= min(20_000, count - i * count // 5 - 1)

    with Watch(read, []) as watch:
        parallel(4, walk)
    assert watch.error is None
    grown = watch.highest - before
    figure(
        f"{engine}: 4 clients, a folder of {count:,} files: "
        f"{grown / MIB:.1f} MiB anonymous memory more than before"
    )
    assert grown <= 28 * MIB and watch.highest <= ANONYMOUS_MAX
    assert server.alive and (group is None or group.kills() == 0)
    shutil.rmtree(tmp_path / "tree", ignore_errors=True)


# --- all of it at once ----------------------------------------------------------------------------


class SignedReader(SlowReader):
    """A slow reader that signs its requests."""

    def __init__(self, server, origin, key, size):
        self.server, self.origin, self.key, self.size = server, origin, key, size
        self.connection = Connection(server.port, receive_buffer=4096)
        self.connection.send(signed_get(server, key))
        self.taken = 0
        self.version = None


def signed_get(server, key):
    host = f"127.0.0.1:{server.port}"
    headers = Signer("WHO0", "secret-canary-0-5d1f").headers("GET", f"/bkt/{key}", host, [], b"")
    return request_bytes("GET", f"/bkt/{key}", host, headers, b"")


def patient(server, ask):
    """Repeats a request that got SlowDown once a body of the largest size has room. Returns how
    often."""
    for told in range(200):
        reply = ask()
        if reply.status != 503:
            return reply, told
        assert b"SlowDown" in bytes(reply.body), reply
        server.wait_metric(
            "forebay_buffer_bytes", lambda v: v <= POD // 4 // 4 - COLLECTED, kind="bodies"
        )
    raise AssertionError("SlowDown for ever")


@pytest.mark.long(
    covered="test_memory.py::test_a_pod_of_128_mib, and each crowd alone in this file"
)
@pytest.mark.parametrize("kind", ("dir", "s3"))
def test_everything_at_once_in_a_pod_of_128_mib(
    group, start, origin, engine, kind, tmp_path, figure
):
    """Everything at once in a pod of 128 MiB: slow and fast readers of large objects, and listings.

    With S3 there are also batch deletes in eight realms and collected uploads; with a folder, very
    many files. The server survives, every byte is right, refused requests get SlowDown, and all
    memory is given back.
    """
    no_sanitizer()
    size, slow, fast = scaled(64 * MIB, 16 * MIB), 60, 3
    source = Tree(tmp_path / "tree") if kind == "dir" else origin
    for i in range(fast):
        source.put(f"fast/{i}", size)
    for i in range(slow):
        source.put(f"slow/{i}", 64 * MIB, FILLED) if kind == "dir" else source.put(
            f"slow/{i}", 64 * MIB
        )
    names = [
        f"huge/{i:06d}-".ljust(200, "n")
        for i in range(scaled(200_000, 30_000) if kind == "dir" else 3000)
    ]
    if kind == "dir":
        (tmp_path / "tree" / "bkt" / "huge").mkdir()
        for name in names:
            os.close(os.open(tmp_path / "tree" / "bkt" / name, os.O_CREAT | os.O_WRONLY))
    else:
        for name in names:
            origin.put(name, 10)
    server = start(
        source,
        engine=engine,
        ahead_s=3 if kind == "dir" else None,
        wrapper=group.wrapper if group else (),
        settings=settings_of_the_pod(
            group,
            **keys_file(tmp_path, 8),
            workers=4,
            **{"cache.size": "1GiB", "origin.connections": 256},
        ),
        file={"rules": [{"match": "bkt/**", "list_ttl": "60s"}]},
    )
    readers, told = [], []

    def read_whole(i):
        with server.connection() as connection:
            connection.send(signed_get(server, f"fast/{i}"))
            judge_streamed(connection, source, f"fast/{i}", 0, size)

    def walk(i):
        token = None
        with Actor(server) as client:
            for page in range(8):
                query = f"list-type=2&prefix={'huge%2F' if i % 2 else 'huge%2F0'}&max-keys=1000"
                query += (
                    f"&continuation-token={urllib.parse.quote(token, safe='')}" if token else ""
                )
                reply, times = patient(server, lambda: client.ask("GET", f"/bkt?{query}"))
                told.append(times)
                assert reply.status == 200, reply
                keys = re.findall(rb"<Key>([^<]*)</Key>", bytes(reply.body))
                assert keys == [n.encode() for n in names[page * 1000 : page * 1000 + len(keys)]]
                more = re.search(rb"<NextContinuationToken>([^<]*)<", bytes(reply.body))
                token = more.group(1).decode() if more else None
                if not token:
                    break

    def delete(i):
        keys = [f"gone/{i}/{j}".ljust(400, "d") for j in range(1000)]
        with Actor(server) as client:
            reply, times = patient(
                server, lambda: client.ask("POST", "/bkt?delete", [], batch(keys))
            )
        told.append(times)
        assert reply.status == 200, reply

    def upload(i):
        body = b"u" * int(1.5 * MIB)
        with Actor(server) as client:

            def ask():
                signed = client.signer.headers("PUT", f"/bkt/up/{i}", client.http.host, [], body)
                head = request_bytes(
                    "PUT",
                    f"/bkt/up/{i}",
                    client.http.host,
                    [*signed, ("Transfer-Encoding", "chunked")],
                    b"",
                )
                framed = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
                with server.connection() as connection:
                    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                        connection.send(head + framed)
                    return connection.read_reply("PUT")

            reply, times = patient(server, ask)
        told.append(times)
        assert reply.status == 200, reply

    jobs = [(read_whole, i) for i in range(fast)] + [(walk, i) for i in range(6)]
    if kind == "s3":
        jobs += [(delete, i) for i in range(6)] + [(upload, i) for i in range(8)]
    try:
        for i in range(slow):
            readers.append(SignedReader(server, source, f"slow/{i}", 64 * MIB))
        for reader in readers:
            reader.begin()
        with Watch(memory_of(group, server), readers) as watch:
            parallel(len(jobs), lambda i: jobs[i][0](jobs[i][1]))
        if watch.error is not None:
            raise watch.error
        for reader in readers:
            reader.drink(min(reader.taken + 65536, FILLED))
        figure(
            f"{'cgroup v%d' % group.version if group else 'no cgroup, RssAnon'}, "
            f"{engine}, {kind}: {watch.highest / MIB:.1f} MiB "
            f"anonymous memory at most, buffers up to "
            f"{server.metric('forebay_buffer_peak_bytes') / MIB:.1f} MiB, "
            f"SlowDown {sum(told)} times"
        )
        assert watch.highest <= ANONYMOUS_MAX, f"{watch.highest / MIB:.0f} MiB anonymous"
        assert group is None or group.kills() == 0
        assert server.alive
    finally:
        for reader in readers:
            reader.close()
        shutil.rmtree(tmp_path / "tree", ignore_errors=True)
    nothing_is_kept(server)

# SPDX-License-Identifier: Apache-2.0
"""Live view: the last requests of all workers, and counters for each bucket.

Both are bounded. Keys are shown as log.keys says, and only to clients with the right to see them.
"""

import contextlib
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from client import Client, Connection, request_bytes
from forebay import PATIENT, build_kind, run_forebay, scale
from waiting import wait_for

MIB = 1 << 20


def asked(server, path, name):
    reply = server.admin(path)
    assert reply.status == 200, reply
    return json.loads(reply.body)[name]


def test_the_last_requests(start, origin):
    """The live view lists the last fifty requests, newest first, of all workers."""
    origin.put("a", 100)
    server = start(origin, settings={"workers": 3, "cache.ttl": "1h"})
    clients = [server.client() for _ in range(6)]
    for i in range(60):
        assert clients[i % 6].get("a" if i < 59 else "none").status == (200 if i < 59 else 404)
    server.wait_metric(
        "forebay_http_requests_total", lambda v: v == 60
    )  # a worker may be late to count its replies
    wait_for(
        lambda: asked(server, "/api/v1/requests", "requests")[0]["key"] == "none",
        "the last request is told",
    )
    rows = asked(server, "/api/v1/requests", "requests")
    assert len(rows) == 50
    times = [row["time"] for row in rows]
    assert times == sorted(times, reverse=True)
    wait_for(lambda: len(server.access_log()) == 60, "60 lines of three workers")
    ids = {line["id"] for line in server.access_log()}
    assert len({row["id"] for row in rows} & ids) == 50
    last = rows[0]
    assert (last["key"], last["status"], last["op"], last["bucket"]) == (
        "none",
        404,
        "GetObject",
        "bkt",
    )
    hit = rows[1]
    assert (hit["key"], hit["result"], hit["bytes"]) == ("a", "hit", 100) and hit["source"] in (
        "memory",
        "disk",
    ), hit
    assert 0 < hit["total_s"] < 60 and hit["client"].startswith("127.0.0.1:")
    assert json.loads(server.admin("/api/v1/trace/" + last["id"]).body)["key"] == "none"
    assert server.admin("/api/v1/trace/0123456789abcdef").status == 404
    for client in clients:
        client.close()


def history(server, after=0):
    return json.loads(bytes(server.admin(f"/api/v1/history?after={after}").body))


def values(server, name):
    return history(server)["series"][name]["values"]


def test_the_last_two_hours_are_kept_as_numbers(start, origin):
    """The history has a row for each five seconds: rates, current values and times. While the
    machine slept it is unknown. It never holds more than two hours, and /metrics counts its
    memory."""
    origin.put("a", 4 * MIB)
    server = start(origin, ahead_s=0, settings={"cache.ttl": "1h"})
    began = time.time()
    with server.client() as client:
        for _ in range(3):
            assert client.get("a").status == 200
        assert client.get("none").status == 404
    server.settle()
    got = wait_for(lambda: sum(values(server, "requests")) and history(server), "a first step")
    assert got["step_s"] == 5 and got["steps"] == 1440
    assert {len(one["values"]) for one in got["series"].values()} == {
        (got["last"] - got["first"]) // 5 + 1
    }
    assert abs(got["last"] - began) < 120 and got["last"] % 5 == 0
    sums = {
        name: sum(v for v in one["values"] if v is not None) for name, one in got["series"].items()
    }
    assert sums["memory"] + sums["disk"] + sums["origin"] > MIB / 5, sums
    assert sums["fetched"] > MIB / 5 and sums["asked"] > 0 and sums["failed"] == 0, sums
    assert 0 < sums["first_byte_p50"] <= sums["first_byte_p99"] <= 30, sums
    assert got["events"][0][1:] == ["start", "the server started", False]
    assert history(server, got["last"])["series"]["memory"]["values"] in ([], [0])
    assert server.admin("/api/v1/history?after=x").status == 400

    server.advance(3600)
    later = wait_for(
        lambda: (h := history(server))["last"] >= got["last"] + 3600 and h, "a step after the jump"
    )
    unknown = later["series"]["held"]["values"].count(None)
    assert 700 < unknown <= 720, unknown
    server.advance(4 * 3600)
    wait_for(lambda: len(values(server, "held")) == 1440, "two hours")
    assert values(server, "held").count(None) >= 1430
    assert 0 < server.metric("forebay_history_bytes") < 256 << 10


def test_events_are_kept_with_their_times(start, origin):
    """A reload, a refused reload, and the origin that fails and returns are events."""
    server = start(origin, settings={"origin.probe": "true"}, file={"cache": {"ttl": "1m"}})

    def words():
        return [event[1] for event in history(server)["events"]]

    def reload_with(text):
        (server.folder / "forebay.yaml").write_text(text)
        server.process.send_signal(signal.SIGHUP)

    assert words() == ["start"]
    reload_with('{"cache": {"ttl": "2m"}}')
    wait_for(lambda: words() == ["start", "reload"], words)
    reload_with("cache: [")
    wait_for(lambda: words()[-1] == "reload-refused", words)
    origin.put("a", 100)
    origin.down()
    with server.client() as client:
        assert client.get("a").status == 503
    wait_for(lambda: words()[-1] == "origin-unreachable", words)
    origin.start()
    wait_for(lambda: words()[-2:] == ["origin-unreachable"] * 2, words)
    events = history(server)["events"]
    assert [event[3] for event in events] == [False, False, True, True, False], events
    times = [event[0] for event in events]
    assert times == sorted(times) and abs(times[-1] - time.time()) < 120


def many_objects(start, tmp_path, count):
    """A server whose cache holds COUNT small objects of a directory, warmed, with settings for the
    page."""
    for i in range(count):
        if i % 1000 == 0:
            (tmp_path / "tree" / "bkt" / f"{i // 1000:04}").mkdir(parents=True)
        (tmp_path / "tree" / "bkt" / f"{i // 1000:04}" / f"{i % 1000:03}").write_bytes(b"%064d" % i)
    server = start(
        f"dir:{tmp_path}/tree", settings={"cache.ttl": "1h", "cache.size": "4GiB"}, ahead_s=3
    )
    env = {"FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"}
    # A directory delivers faster than a disk writes, so the job waits.
    done = run_forebay(*PATIENT, "warm", "s3://bkt/", "--wait", "--json", env=env, wait=7200)
    assert done.returncode == 0, done.stdout[-2000:]
    assert json.loads(done.stdout.splitlines()[-1])["objects"] == count
    server.settle()
    server.wait_metric("forebay_cache_objects", lambda v: v == count)
    return server


MANY = 1_000_000 if scale() >= 1 else 10_000


def test_answers_of_a_large_cache_take_no_longer(start, tmp_path, figure):
    """With MANY objects, each answer that the page asks for is small and quick.

    The quickest of several counts, so that a busy machine does not decide.
    """
    server = many_objects(start, tmp_path, MANY)
    took = {}
    for _ in range(5):
        for path in (
            "/",
            "/api/v1/summary",
            "/api/v1/requests",
            "/api/v1/buckets",
            "/api/v1/jobs",
            "/api/v1/config",
            "/api/v1/explain?ask=origin&uri=s3://bkt/0000/007",
            "/api/v1/explain?ask=origin&uri=s3://bkt/none",
            "/api/v1/ls?uri=s3://bkt/0000/",
            "/metrics",
        ):
            began = time.monotonic()
            reply = server.admin(path)
            took_s = time.monotonic() - began
            assert reply.status == 200 and len(reply.body) < 256 << 10, (
                path,
                reply.status,
                len(reply.body),
            )
            took[path] = min(took_s, took.get(path, took_s))
    assert asked(server, "/api/v1/summary", "counters")["cache_objects"] > 0.8 * MANY
    assert max(took.values()) < 2, took
    figure(
        f"{MANY} objects: the slowest of the page's answers took "
        f"{1000 * max(took.values()):.0f} ms at its quickest"
    )


@pytest.mark.parametrize("keys", ["full", "prefix", "hash"])
def test_keys_are_shown_as_in_the_log(start, origin, keys):
    long = "d/" + "x" * 300
    for key in ("d/secret", long):
        origin.put(key, 10)
    server = start(origin, settings={"log.keys": keys})
    with server.client() as client:
        client.get("d/secret")
        client.get(long)
        client.request("PUT", "/bkt")
    _, second, first = wait_for(
        lambda: (rows := asked(server, "/api/v1/requests", "requests"))[2:] and rows,
        "three are told",
    )
    server.access_log(wait_for=lambda line: line["op"] == "CreateBucket")
    logged = [
        line["key"] for line in server.access_log(wait_for=lambda line: line["op"] == "GetObject")
    ]
    assert first["key"] == logged[0] and ("secret" in first["key"]) == (keys == "full")
    assert second["key_is_cut"] == (keys == "full") and logged[1].startswith(second["key"])


def test_clients_without_the_right_see_no_names(start, origin, tmp_path):
    """A client without the right to see names sees none."""
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)
    server = start(
        origin, settings={"admin.token_file": str(token), "admin.trust_loopback": "false"}
    )
    for path in (
        "/api/v1/requests",
        "/api/v1/trace/x",
        "/api/v1/top?by=keys",
        "/api/v1/buckets",
        "/api/v1/config",
        "/api/v1/doctor",
    ):
        assert server.admin(path).status == 401, path


def test_clients_without_the_right_see_no_detail_of_conditions(start, origin, tmp_path):
    """Conditions quote the configuration, and origins are settings. Without the right, all answers
    that are open have the words of the table, and name no origin."""
    secret, token = "TOPSECRETVALUE123", "0123456789abcdef0123456789abcdef"
    (tmp_path / "token").write_text(token)
    (tmp_path / "token").chmod(0o600)
    rights = {"admin": {"token_file": str(tmp_path / "token"), "trust_loopback": False}}
    server = start(origin, settings={"origin.connect_timeout": "1s"}, file=rights)
    origin.down()
    with server.client() as client:
        assert client.get("k").status == 503
    (server.folder / "forebay.yaml").write_text(json.dumps({**rights, secret: 1}))
    server.process.send_signal(signal.SIGHUP)
    server.wait_condition("reload-refused")
    server.wait_condition("origin-unreachable")

    def ask(path, *headers):
        with Connection(server.admin_port) as connection:
            connection.send(request_bytes("GET", path, "127.0.0.1", headers))
            assert connection.read_head().status == 200
            text = bytes(connection.buf)
            while not text.rstrip().endswith(b"}"):
                text += connection.sock.recv(65536)
        return text.decode()

    for path in ("conditions", "summary", "events"):
        detailed = ask(f"/api/v1/{path}", ("Authorization", f"Bearer {token}"))
        assert secret in detailed and origin.endpoint in detailed, (path, detailed)
        plain = ask(f"/api/v1/{path}")
        assert "reload-refused" in plain and "origin-unreachable" in plain, (path, plain)
        assert secret not in plain and origin.endpoint not in plain, (path, plain)
    assert origin.endpoint in ask("/readyz", ("Authorization", f"Bearer {token}"))
    plain = ask("/readyz")
    assert "origin-unreachable" in plain and origin.endpoint not in plain, plain


def test_streams_lose_their_right_with_the_token(start, origin, tmp_path):
    """A stream that began with a token that a reload has replaced ends if it is of the log, and
    goes on without names if it is of the totals."""
    old, new, token = "0" * 32, "f" * 32, tmp_path / "token"
    token.write_text(old)
    token.chmod(0o600)
    server = start(
        origin, settings={"admin.token_file": str(token), "admin.trust_loopback": "false"}
    )

    def begin(path, secret):
        connection = Connection(server.admin_port)
        rights = [("Authorization", f"Bearer {secret}")]
        connection.send(request_bytes("GET", f"/api/v1/{path}", "127.0.0.1", rights))
        return connection.read_head().status, connection

    def opened(path):
        status, connection = begin(path, old)
        assert status == 200
        return connection

    def has_new():
        status, connection = begin("config", new)
        connection.close()
        return status == 200

    ended, events = [opened("log"), opened("top?by=keys")], opened("events")
    while origin.endpoint.encode() not in events.buf:
        events.buf += events.sock.recv(65536)
    token.write_text(new)
    server.process.send_signal(signal.SIGHUP)
    wait_for(has_new, "the new token")
    with server.client() as client:
        client.get("a-secret-name")
    for stream in ended:
        with stream:
            text = bytes(stream.buf)
            while piece := stream.sock.recv(65536):
                text += piece
            assert b"a-secret-name" not in text
    with events:
        events.buf.clear()
        while b"event: summary" not in events.buf or not events.buf.endswith(b"\n\n\r\n"):
            events.buf += events.sock.recv(65536)
        last = bytes(events.buf).split(b"event: summary")[-1]
        assert origin.endpoint.encode() not in last


def child_of(server):
    """The id of a doctor that the server has started and that runs its own program by now; 0: there
    is none. Until then the server waits for it."""
    tasks, children = f"/proc/{server._pid()}/task", []
    for task in os.listdir(tasks):
        with contextlib.suppress(OSError):  # a thread that has ended since
            children += open(f"{tasks}/{task}/children").read().split()
    for child in children:
        with contextlib.suppress(OSError):  # a process that has ended since
            if b"\0doctor\0" in open(f"/proc/{child}/cmdline", "rb").read():
                return int(child)
    return 0


def state_of(pid):
    """T: it is stopped, Z: it has ended; None: neither."""
    state = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0]
    return state if state in "TZ" else None


def ask_doctor(server, header=("X-Forebay-Control", "1")):
    with Client(server.admin_port) as client:
        return client.request("POST", "/api/v1/doctor", [header])


def test_the_doctor_looks_at_a_server(start, origin):
    """The page can run `doctor` on this server's settings, one run at a time. No web page of
    another origin can, and a stop of the server ends the run."""
    origin.put("a", 100)
    server = start(origin)
    reply = ask_doctor(server)
    assert reply.status == 200, reply
    found = {row["check"]: row for row in json.loads(reply.body)["findings"]}
    assert (
        "in use by a running server" in found["directory"]["found"]
        and origin.endpoint in found["origin"]["found"]
    )
    assert all(row["remedy"] for row in found.values() if row["state"] != "green")
    assert ask_doctor(server, ("X-Other", "1")).status == 403
    with origin.hold(None), doctor_at_work(server) as first:
        server.stop()
        with contextlib.suppress(Exception):
            assert first.result().status == 503


@contextlib.contextmanager
def doctor_at_work(server):
    """Yields the future answer of a doctor that hangs half-way until the block ends. Its wait is
    two seconds, and then it finishes."""
    with ThreadPoolExecutor(1) as pool:
        while True:
            answer = pool.submit(ask_doctor, server)
            wait_for(lambda: answer.done() or child_of(server), "a doctor")
            pid = child_of(server)
            with contextlib.suppress(OSError):
                if pid != 0:
                    os.kill(pid, signal.SIGSTOP)
                    if wait_for(lambda: state_of(pid), "a doctor that stands") == "T":
                        break
            assert answer.result().status == 200  # the previous one had ended: another one
        try:
            yield answer
        finally:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)


def looked(server):
    reply = server.admin("/api/v1/doctor")
    assert reply.status == 200, reply
    return json.loads(reply.body)


def test_get_returns_the_last_doctor_report_for_a_minute(start, origin):
    """GET, which needs no header, runs `doctor` at most once a minute and returns the last report
    until then. POST always runs it."""
    server = start(origin, ahead_s=0)
    first = looked(server)
    assert first["age_s"] == 0 and first["findings"] != []
    mark = origin.mark()
    again = looked(server)
    assert (
        again["findings"] == first["findings"]
        and 0 <= again["age_s"] < 60
        and origin.requests(since=mark) == []
    )
    with origin.hold(None), doctor_at_work(server) as other:  # also during a run of another one
        assert looked(server)["findings"] == first["findings"]
        origin.release()
    assert json.loads(other.result().body)["age_s"] == 0
    assert server.admin("/api/v1/doctor?x=1").status == 400
    if build_kind() == "release":
        return  # its clock cannot be moved
    mark = origin.mark()
    server.advance(61)
    assert looked(server)["age_s"] == 0 and origin.requests(since=mark) != []


def buckets_when(server, requests):
    """The counters by bucket name, once REQUESTS are counted. A request is counted after its reply
    was sent, which the client sees first."""

    def look():
        rows = {row["bucket"]: row for row in asked(server, "/api/v1/buckets", "buckets")}
        return rows if sum(row["requests"] for row in rows.values()) >= requests else None

    rows = wait_for(look, f"{requests} requests are counted")
    assert sum(row["requests"] for row in rows.values()) == requests, rows
    return rows


def test_metrics_name_no_bucket_if_told_so(start, origin):
    """admin.bucket_metrics drops the metrics with names of buckets, and a reload may change it."""
    origin.put("a", 100)
    server = start(origin, file={"admin": {"bucket_metrics": False}})
    with server.client() as client:
        assert client.get("a").status == 200
    assert set(buckets_when(server, 1)) == {"bkt"}  # for those who may see names
    assert "bkt" not in "".join(server.metrics())
    (server.folder / "forebay.yaml").write_text("{}")
    server.process.send_signal(signal.SIGHUP)
    server.wait_metric("forebay_bucket_requests_total", lambda v: v == 1, bucket="bkt")


def test_buckets_are_counted_up_to_a_bound(start, origin):
    """Clients choose bucket names. The first 64 that exist have counters of their own, and names
    that do not exist have none."""
    origin.put("a", 100)
    server = start(origin, settings={"workers": 2, "cache.ttl": "1h"})
    with server.client() as client:
        for _ in range(4):
            assert client.get("a").status == 200
            server.settle()
        assert client.request("GET", "/bkt?list-type=2").status == 200
        for i in range(100):
            assert client.request("GET", f"/not-there-{i:03d}/k").status == 404
    rows = buckets_when(server, 105)
    assert set(rows) == {"bkt", "_other"} and rows["_other"]["requests"] == 100
    bkt = rows["bkt"]
    assert (
        bkt["requests"],
        bkt["hits"],
        bkt["bypassed"],
        bkt["memory_bytes"] + bkt["disk_bytes"],
    ) == (5, 3, 1, 300), bkt
    assert server.metric("forebay_bucket_requests_total", bucket="bkt", result="hit") == 3
    assert (
        server.metric("forebay_bucket_response_bytes_total", bucket="bkt", source="origin")
        == bkt["origin_bytes"]
    )
    for i in range(80):
        origin.put("k", 10, bucket=f"many-{i:02d}")
    with server.client() as client:
        for i in range(80):
            assert client.request("GET", f"/many-{i:02d}/k").status == 200
    rows = buckets_when(server, 185)
    assert len(rows) == 65 and rows["_other"]["requests"] == 100 + 80 - 63, rows

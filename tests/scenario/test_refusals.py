# SPDX-License-Identifier: Apache-2.0
"""A run that is not stored names the scarce resource with one word everywhere.

The same word is in Cache-Status, metrics, `status`, `explain`, `doctor` and the conditions that
the page shows. The tests reach each word of src/stats/refusals.def, except those that need the
store from within (index-full, index-degraded: unit/store/index/index_room_test.c).
"""

import contextlib
import json
import pathlib
import re
import socket
import ssl

import pytest
from client import Client, judge
from conftest import not_run
from forebay import build_kind, run_forebay
from test_connections import certificate  # noqa: F401 (a fixture)
from test_control import ask, said
from waiting import WAIT_S, wait_for

MIB = 1 << 20
TABLE = pathlib.Path(__file__).parents[2] / "src/stats/refusals.def"
METRIC = "forebay_cache_admission_rejected_total"


@pytest.fixture
def faults():
    if build_kind() == "release":
        not_run("a release has no fault hook")


def rows():
    """Returns {word: (text, remedy)} of the table."""
    found = re.findall(
        r'^REFUSAL(?:_STATE)?\(\w+,(?: ERR_\w+,)? "([^"]*)",(?: \w+,)?\s+"([^"]*)",\s+"([^"]*)"\)',
        TABLE.read_text(),
        re.M,
    )
    return {word: (text, remedy) for word, text, remedy in found}


def doctor(server):
    """Returns {check: [(state, found, remedy)]} of the server's own report."""
    found = {}
    with Client(server.admin_port) as client:
        report = client.request("POST", "/api/v1/doctor", [("X-Forebay-Control", "1")])
    assert report.status == 200, report
    for row in json.loads(bytes(report.body))["findings"]:
        found.setdefault(row["check"], []).append((row["state"], row["found"], row["remedy"]))
    return found


STATES = {"critical": "red", "warning": "yellow", "info": "green"}


def read_until(server, origin, word, size, most=4000):
    """Reads new objects until one is refused with WORD. Returns how many were read."""
    told = []
    with server.client() as client:
        for i in range(most):
            origin.put(f"new/{i}", size)
            told.append(client.get(f"new/{i}").header("cache-status"))
            if told[-1].endswith(f"stored=?0; detail={word}"):
                return i + 1
    raise AssertionError(
        f"{most} objects, and none was refused by {word}: {set(told)}, {server.metrics()}"
    )


def judge_now(server, word):
    """Checks the current word in every place where a person or a program looks. The condition of a
    degraded disk names the cause in addition."""
    reason = dict(zip(("text", "remedy"), rows()[word]))
    is_critical = word in ("disk-full", "disk-degraded", "index-degraded")
    where = {"FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"}

    def is_everywhere():
        summary = json.loads(bytes(server.admin("/api/v1/summary").body))
        verdict = ask(server, "explain", "s3://bkt/absent")[-1]["verdict"]
        status = run_forebay("status", env=where)
        ready = json.loads(bytes(server.admin("/readyz").body))
        shown = [row for row in summary["conditions"] if row["name"] == word]
        if len(shown) != 1:
            return False
        text, remedy = shown[0]["text"], shown[0]["remedy"]
        return (
            (text, remedy) == tuple(reason.values())
            or (word == "disk-degraded" and str(server.cache) in text)
        ) and (
            {r["word"] for r in summary["refusals"]} == set(rows())
            and verdict == {"reason": word, **reason}
            and re.search(
                f"{word} for .*: {re.escape(text)}\n *-> {re.escape(remedy)}", status.stdout
            )
            and status.returncode == (is_critical or "disk-stuck" in status.stdout)
            and (f"; {word}: {text[:200]}: {remedy}" in ready["reason"]) == is_critical
            and ready["status"] == "ok"
            and server.metric("forebay_condition", condition=word) == 1
            and (STATES[shown[0]["severity"]], f"{word}: {text}", remedy)
            in doctor(server)["server"]
        )

    wait_for(
        is_everywhere,
        lambda: f"{word} everywhere: {run_forebay('status', env=where).stdout}, {doctor(server)}",
    )


def test_index_busy_is_the_index(start, origin, engine, tmp_path, faults):
    """No sync ends, so no commit begins and the queue of the index is full. The word names the
    index, not the disk."""
    gate = tmp_path / "gate"
    gate.touch()
    origin.put("absent", 10)
    server = start(
        origin,
        engine=engine,
        ahead_s=0,
        settings={"limits.max_buffer": "4MiB", "access_log.path": "off"},
        env={"FOREBAY_DISK_FAULTS": f"sync:file={gate}:hold"},
    )
    read_until(server, origin, "index-busy", 10)
    judge_now(server, "index-busy")
    assert (
        server.metric(METRIC, reason="index-busy") > 0
        and server.metric(METRIC, reason="disk-busy") == 0
    )
    assert not server.disk_trouble()
    gate.unlink()
    server.wait_metric("forebay_buffer_bytes", lambda v: v == 0, kind="runs")
    assert "index-busy" in ask(server, "status")[-1]["unstored"]
    server.advance(60)
    server.wait_condition("index-busy", False)  # a minute after the last refusal
    assert [state for state, *_ in doctor(server)["server"]] == ["green"]


def test_buffer_full_is_a_small_buffer(start, origin, engine, faults):
    """The disk takes each write in a moment, but the buffer has no room for a burst. The word names
    the setting that is too small, not the disk."""
    origin.put("absent", 10)
    server = start(
        origin,
        engine=engine,
        settings={"limits.max_buffer": "4MiB", "access_log.path": "off"},
        env={"FOREBAY_DISK_FAULTS": "write:1+:slow:100"},
    )
    origin.put("large", 64 * MIB)
    with server.client() as client:
        judge(client.get("large"), origin, "large")
    assert server.metric(METRIC, reason="buffer-full") > 0
    row = server.condition_rows()["buffer-full"]
    assert (row["text"], row["remedy"]) == rows()["buffer-full"]
    assert "limits.max_buffer" in row["remedy"], row


def test_disk_busy_is_the_disk(start, origin, engine, tmp_path, faults):
    gate = tmp_path / "gate"
    gate.touch()
    origin.put("absent", 10)
    server = start(
        origin,
        engine=engine,
        settings={"limits.max_buffer": "16MiB", "access_log.path": "off"},
        env={"FOREBAY_DISK_FAULTS": f"write:file={gate}:hold"},
    )
    read_until(server, origin, "disk-busy", MIB)
    judge_now(server, "disk-busy")
    assert (
        server.metric(METRIC, reason="disk-busy") > 0
        and server.metric(METRIC, reason="index-busy") == 0
    )
    gate.unlink()


@pytest.mark.parametrize(
    "fault, word",
    [
        ("write:1+:eio", "disk-degraded"),
        ("write:1+:enospc", "disk-full"),
        ("store.allocate:1+:enospc", "disk-full"),
        ("store.create:1+:eio", "disk-degraded"),
        ("store.create:1+:emfile", "descriptors"),
    ],
)
def test_the_failing_resource_is_named(start, origin, engine, faults, fault, word):
    """A full disk is not reported as a broken one. A process without descriptors reports nothing
    about its disk."""
    origin.put("absent", 10)
    server = start(
        origin,
        engine=engine,
        settings={"access_log.path": "off"},
        env={"FOREBAY_DISK_FAULTS": fault},
    )
    # Until recovery has looked, no segment is ready.
    refused = f"s3://bkt/new/{read_until(server, origin, word, MIB) - 1}"
    judge_now(server, word)
    where = {"FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"}
    said = run_forebay("explain", refused, env=where).stdout
    assert word in said and "the next read stores it" not in said, said
    others = {"disk-degraded", "disk-full", "descriptors"} - {word}
    assert server.metric(METRIC, reason=word) > 0
    assert [server.metric(METRIC, reason=other) for other in others] == [0] * len(others)
    assert ("disk-errors" in server.conditions()) == (fault == "write:1+:eio")
    if word == "descriptors":
        assert not server.disk_trouble()
        assert not any("filling_off" in line for line in server.stderr)
        wait_for(
            lambda: any("descriptors_short" in line for line in server.stderr), "a line of the log"
        )


def test_not_admitted_is_the_policy(start, origin, engine):
    """A small cache full of objects that are read again refuses new ones, and names the policy."""
    server = start(
        origin, engine=engine, settings={"cache.size": "64MiB", "access_log.path": "off"}
    )
    for i in range(24):
        origin.put(f"kept/{i}", 2 * MIB)
    with server.client() as client:
        for _ in range(4):
            for i in range(24):
                client.get(f"kept/{i}")
            server.settle()
    read_until(server, origin, "not-admitted", 2 * MIB, most=200)
    assert server.metric(METRIC, reason="not-admitted") > 0
    assert ask(server, "status")[-1]["unstored"]["not-admitted"] > 0


def test_too_large_is_counted(start, origin):
    server = start(origin, settings={"cache.max_object_size": "100KiB"})
    read_until(server, origin, "too-large", MIB, most=1)
    assert server.metric(METRIC, reason="too-large") == 1
    assert ask(server, "status")[-1]["unstored"] == {"too-large": 1}


def test_too_young_is_counted(start, tmp_path):
    """A directory's file counts as young for two seconds."""
    (tmp_path / "tree" / "bkt").mkdir(parents=True)
    (tmp_path / "tree" / "bkt" / "a").write_bytes(b"young")
    server = start(f"dir:{tmp_path}/tree", ahead_s=0)
    with server.client() as client:
        assert client.get("a").header("cache-status").endswith("stored=?0; detail=too-young")
    assert server.metric(METRIC, reason="too-young") == 1


def test_memory_is_memory(start, origin, engine):
    """Readers who do not read hold limits.max_buffer. A warm job waits for memory, and says so."""
    origin.put("k/0", 100_000)
    server = start(
        origin,
        engine=engine,
        settings={"limits.max_buffer": "4MiB", "limits.min_rate": 0, "access_log.path": "off"},
        file={"rules": [{"match": "bkt/large/**", "cache": False}]},
    )
    slow = [server.connection() for _ in range(32)]
    for i, connection in enumerate(slow):
        origin.put(f"large/{i}", 64 * MIB)
        connection.send(f"GET /bkt/large/{i} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    try:
        server.wait_metric("forebay_buffer_bytes", lambda v: v > 2 * MIB, kind="payload")
        job = ask(server, "warm", "s3://bkt/k/")[-1]["job"]
        text = rows()["memory"][0]

        def waits():
            rows_now = json.loads(bytes(server.admin("/api/v1/jobs").body))["jobs"]
            return [(j["waits"], j["waits_text"]) for j in rows_now if j["id"] == job] == [
                ("memory", text)
            ]

        wait_for(waits, lambda: f"a job that waits for memory: {server.admin('/api/v1/jobs').body}")
        assert text in said(server, "jobs")
    finally:
        for connection in slow:
            connection.close()


def test_shed_requests_name_the_limit_that_refused_them(start, origin):
    """A reload that raises the limit does not change what the condition says of the refusals
    before it."""
    server = start(origin, ahead_s=0, file={"limits": {"max_connections": 1}})
    with server.client() as client:
        assert client.request("GET", "/bkt/none").status == 404
        with server.connection() as other, contextlib.suppress(ConnectionError):
            other.send(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            server.wait_metric("forebay_http_shed_total", lambda v: v == 1, reason="connections")
    (server.folder / "forebay.yaml").write_text("limits: {max_connections: 5}\n")
    said(server, "reload")
    text = server.condition_rows()["requests-shed"]["text"]
    assert "limits.max_connections (1 then, 5 now) 1 times" in text, text


@pytest.mark.parametrize("limit", ["limits.max_connections", "limits.max_connections_per_source"])
def test_a_tls_connection_beyond_a_limit_is_closed_without_a_reply(
    start, origin, certificate, limit
):
    """A TLS client beyond a limit of connections gets no 503, because no handshake is made for it.
    The access log, the condition and the setting's text say so."""
    server = start(
        origin,
        ahead_s=0,
        settings={
            "listen": "127.0.0.1:0,tls:127.0.0.1:0",
            "listen_tls.cert": certificate[0],
            "listen_tls.key": certificate[1],
            limit: 1,
        },
    )
    trust = ssl.create_default_context(cafile=certificate[0])
    with server.client() as client:
        assert client.request("GET", "/bkt/none").status == 404
        with (
            socket.create_connection(("127.0.0.1", server.tls_port), WAIT_S) as extra,
            pytest.raises((ssl.SSLEOFError, ConnectionError)),
        ):
            trust.wrap_socket(extra, server_hostname="127.0.0.1")
    why = "source" if "source" in limit else "connections"
    (line,) = server.access_log(lambda e: e.get("why") == why)
    assert (line["status"], line["error"], line["bytes"]) == (0, "SlowDown", 0), line
    server.wait_condition("requests-shed")
    assert "over TLS a close" in server.condition_rows()["requests-shed"]["text"]
    table = run_forebay("config", "docs").stdout.splitlines()
    (row,) = [row for row in table if f"`{limit}`" in row]
    assert "over TLS a close" in row, row


def test_limits_jobs_and_reloads_are_conditions(start, origin):
    """Shed requests, failed warm jobs and a refused reload are warnings. Shed requests are one for
    a minute."""
    origin.put("a", 100)
    origin.fault("a", "error", (403, "AccessDenied", "No"), times=None)
    server = start(
        origin, ahead_s=0, file={"cache": {"ttl": "1m"}}, settings={"limits.max_connections": 1}
    )
    assert server.conditions() == set()
    with server.client() as client:
        assert client.request("GET", "/bkt/none").status == 404
        with server.connection() as other, contextlib.suppress(ConnectionError):
            other.send(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            server.wait_condition("requests-shed")
            text = server.condition_rows()["requests-shed"]["text"]
            assert "limits.max_connections (1) 1 times" in text, text
    server.advance(60)
    assert said(server, "warm", "s3://bkt/a", "--wait", code=4)
    assert [state for state, *_ in doctor(server)["server"]] == ["yellow"]
    (server.folder / "forebay.yaml").write_text("cache: [")
    said(server, "reload", code=3)
    assert server.conditions() == {"warm-failed", "reload-refused"}
    status = ask(server, "status")[-1]
    assert {row["severity"] for row in status["conditions"]} == {"warning"} and status["ready"]

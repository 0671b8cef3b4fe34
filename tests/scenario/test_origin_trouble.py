# SPDX-License-Identifier: Apache-2.0
"""An unusable origin is reported at the start, once in the log, in the gauge and to clients. Its
recovery is reported too."""

import json
import re
import subprocess
from contextlib import ExitStack

import pytest
from client import judge, request_bytes
from forebay import KEYS, PATIENT, parallel, run_forebay
from origin import Origin
from test_common_options import admin_of
from test_refusals import doctor
from waiting import wait_for

REASONS = {403: "Forbidden", 503: "Service Unavailable"}
PROBE = {"origin.probe": "true", "origin.retries": 0}


def events(server, name):
    found = [json.loads(line) for line in server.stderr if line.startswith("{")]
    return [event for event in found if event["event"] == name]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "3",
            "-subj",
            "/CN=127.0.0.1",
            "-addext",
            "subjectAltName=IP:127.0.0.1,DNS:localhost",
            "-keyout",
            files[1],
            "-out",
            files[0],
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return tuple(map(str, files))


CASES = {
    # The fault: (why, in the text, in the remedy, component, status and words for the client)
    "down": (
        "connect",
        "refuses connections",
        "host and port",
        "origin",
        503,
        "The origin cannot be used: it refuses connections. Remedy, where "
        "Forebay runs: check host and port",
    ),
    "name": (
        "dns",
        "cannot be resolved",
        "name server",
        "origin",
        503,
        "its name cannot be resolved",
    ),
    "silent": (
        "timeout",
        "does not answer in time",
        "origin.first_byte_timeout",
        "origin",
        503,
        "it does not answer in time",
    ),
    "https": (
        "reset",
        "closes the connection",
        "https",
        "origin",
        503,
        "it closes the connection without an answer",
    ),
    "self-signed": (
        "tls",
        "not trusted",
        "origin.ca_file",
        "origin",
        503,
        "The origin cannot be used: its certificate is not trusted",
    ),
    "key": (
        "credentials",
        "access key",
        "credentials.source",
        "credentials",
        403,
        "refused the credentials that Forebay signs with: it does not know",
    ),
    "secret": (
        "credentials",
        "signature",
        "secret key",
        "credentials",
        403,
        "refused the credentials that Forebay signs with: it refuses",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_fault_is_reported_everywhere(start, certificate, case):
    """The fault is in the start-up text, log, conditions, /readyz, access log and the client's
    error. The server is up and ready."""
    why, text, remedy, component, status, words = CASES[case]
    tls = certificate if case in ("https", "self-signed") else None
    with Origin(credentials=KEYS, tls=tls) as origin, ExitStack() as held:
        endpoint, env = origin.endpoint, {}
        origin.put("k", 1000)
        if case == "down":
            origin.down()
        elif case == "name":
            endpoint = "http://forebay.invalid"
        elif case == "silent":
            held.enter_context(origin.hold(None))
        elif case == "https":
            endpoint = endpoint.replace("https:", "http:")
        elif case == "key":
            env = {"AWS_ACCESS_KEY_ID": "nobody"}
        elif case == "secret":
            env = {"AWS_SECRET_ACCESS_KEY": "wrong"}
        more = {"origin.region": "us-east-1", "origin.first_byte_timeout": "200ms"}
        server = start(endpoint, settings={**PROBE, **more}, env=env)
        server.wait_stderr("event.*started")
        event_name = {"origin": "origin_unreachable", "credentials": "credentials_refused"}[
            component
        ]
        server.wait_stderr(event_name)
        assert any(
            "has not answered yet" in line
            or ("NOT USABLE" in line and text in line and remedy in line)
            for line in server.stderr
        ), server.output()
        (event,) = events(server, event_name)
        assert event["why"] == why and text in event["text"] and remedy in event["remedy"], event
        conditions = {
            "origin": "origin-unreachable",
            "credentials": "credentials-refused",
        }
        assert server.conditions() == {conditions[component]}
        ready = server.admin("/readyz")
        assert ready.status == 200 and text.encode() in ready.body, ready
        with server.client() as client:
            for reply in (client.get("k"), client.request("GET", "/bkt?list-type=2")):
                assert reply.status == status, reply
                assert words.replace("'", "&apos;").encode() in reply.body, reply
                assert reply.body.count(b"Remedy, where") == 1, "the reason is said once"
                assert remedy.encode() in reply.body and b"log" not in reply.body, reply
                code = "ServiceUnavailable" if status == 503 else "AccessDenied"
                assert (reply.code, reply.reason) == (code, REASONS[status]), reply
        if status == 403:
            said = run_forebay(*PATIENT, "ls", "s3://bkt/", "--admin", admin_of(server)).stderr
            assert "signs with: forebay status has the remedy" in said
        lines = server.access_log(wait_for=lambda e: e["op"] == "ListObjectsV2")
        assert lines[0]["why"] == why, lines
        assert len(events(server, event_name)) == 1, "told once"


def test_the_remedy_for_a_bucket_names_the_setting_of_the_bucket(start, origin):
    """The endpoint of an entry of `buckets` refuses connections. Log, conditions, /readyz, status,
    explain, doctor and the client's error name the setting of this entry, and the bucket."""
    with Origin() as store:
        store.down()
        endpoint = store.endpoint
    entry = {"name": "near", "origin": "s3://bkt", "endpoint": endpoint}
    server = start(origin, settings=PROBE, file={"buckets": [entry]})
    server.wait_stderr("condition_begun.*origin-unreachable")
    setting, named = "host and port of buckets[near].endpoint", f"{endpoint}#near"
    (event,) = events(server, "origin_unreachable")
    assert setting in event["remedy"] and event["origin"] == named, event
    row = server.condition_rows()["origin-unreachable"]
    assert setting in row["remedy"] and f"origin {named}: " in row["text"], row
    ready = server.admin("/readyz").body.decode()
    assert setting in ready and named in ready, ready
    with server.client() as client:
        assert setting.encode() in client.get("k", bucket="near").body
    env = {"FOREBAY_ADMIN": admin_of(server)}
    for command in (["status"], ["explain", "s3://near/k"]):
        assert setting in run_forebay(*command, env=env).stdout, command
    checks = doctor(server)
    (found,) = (row for row in checks["origin"] if row[0] == "red")
    assert setting in found[2] and f"{named}: " in found[1], checks
    assert [row for row in checks["server"] if setting in row[2]], checks
    assert "origin.endpoint" not in json.dumps([event, row, ready, checks])


def test_the_recovery_is_noticed_and_the_probe_stops(start, origin):
    """The probe notices the recovery without any client request. At a start with a working origin
    it sends one request, and none afterwards."""
    origin.put("k", 1000)
    origin.down()
    server = start(origin, settings=PROBE)
    server.wait_stderr("origin_unreachable")
    origin.start()
    server.wait_stderr("origin_back")
    assert "origin-unreachable" not in server.conditions()
    server.stop()
    mark = origin.mark()
    server.start()
    server.wait_stderr("event.*started")
    with server.client() as client:
        for _ in range(50):
            judge(client.get("k"), origin, "k")
    server.settle()
    seen = [(e.method, e.target) for e in origin.requests(since=mark)]
    assert seen == [("GET", "/?max-buckets=1"), ("GET", "/bkt/k")], seen
    assert not events(server, "origin_unreachable")


def test_requests_notice_a_later_failure(start, origin):
    """The origin fails while the server runs. Hits go on, the first miss reports the failure, and
    the recovery is reported too."""
    for key in ("k", "l"):
        origin.put(key, 1000)
    server = start(origin, settings={**PROBE, "cache.ttl": "1h"})
    with server.client() as client:
        judge(client.get("k"), origin, "k")
        server.settle()
        origin.down()
        judge(client.get("k"), origin, "k")
        assert not events(server, "origin_unreachable")
        assert client.get("l").status == 503
        server.wait_stderr("origin_unreachable")
        origin.start()
        server.wait_stderr("origin_back")
        judge(client.get("l"), origin, "l")


def test_a_missing_object_says_nothing_of_the_origin(start, origin):
    """404, 403 AccessDenied and a refused listing are answers, and no sign of a fault of the
    origin."""
    origin.fault("secret", "error", (403, "AccessDenied", "No"), times=None)
    origin.fault(None, "error", (403, "AccessDenied", "No"), times=1)  # the probe
    server = start(origin, settings=PROBE)
    server.wait_stderr("event.*started")
    with server.client() as client:
        assert client.get("gone").status == 404
        assert client.get("secret").status == 403
    wait_for(lambda: len(origin.requests()) == 3, "three requests")
    assert not events(server, "origin_unreachable")


def test_a_store_that_throttles_from_the_start_has_one_condition(start, origin):
    """A store that answers SlowDown to everything is one fault with one word: in the conditions,
    the log and doctor. It is not called unreachable, neither by the probe nor by a read."""
    origin.limit_rate(0.001, burst=0)
    server = start(origin, settings=PROBE)
    server.wait_stderr("condition_begun.*origin-throttled")
    with server.client() as client:
        assert client.get("k").code == "SlowDown"
    said = f"origin {origin.endpoint}: it throttles: SlowDown"
    (row,) = server.condition_rows().values()
    assert row["name"] == "origin-throttled", row
    assert re.fullmatch(re.escape(said) + r" to (\d) of the last \1 requests", row["text"]), row
    (event,) = events(server, "condition_begun")
    assert event["severity"] == "warning" and event["text"].startswith(said), event
    assert not events(server, "origin_unreachable")
    checks = doctor(server)
    assert [state for state, *_ in checks["server"]] == ["yellow"], checks
    (rights,) = checks["rights"]
    assert rights[:2] == ("yellow", said) and "origin.connections" in rights[2], checks


def test_a_throttling_origin_is_named_everywhere(start, origin):
    """Clients that get the origin's SlowDown make a condition, which ends a minute after the last
    one. Such requests count neither as saved nor as misses."""
    server = start(origin, settings={"origin.retries": 0}, ahead_s=0)
    origin.put("warm", 1000)
    origin.put("cold", 1000)
    client = server.client()
    assert client.get("warm").status == 200
    misses = "forebay_http_request_duration_seconds_count"
    server.wait_metric(misses, lambda v: v == 1, result="miss")
    origin.limit_rate(0.001, burst=0)
    reply = client.get("cold")
    assert (reply.status, reply.code) == (503, "SlowDown")
    server.wait_condition("origin-throttled")
    assert server.metric("forebay_http_throttled_total") == 1
    admin = {"FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"}
    shown = run_forebay("explain", "s3://bkt/cold", env=admin)
    assert "the origin answers 503: it throttles or fails" in shown.stdout, shown
    shown = run_forebay("status", env=admin)
    assert "warning  origin-throttled for" in shown.stdout, shown
    # `explain` has asked the origin, too, for no client.
    assert "saved    0 B of the origin, and cost 1 more requests" in shown.stdout, shown
    assert server.metric(misses, result="miss") == 1
    origin.limit_rate(1000, burst=1000)
    assert client.get("cold").status == 200
    server.advance(61)
    server.wait_condition("origin-throttled", holds=False)


def test_an_origin_that_becomes_slow_is_named_everywhere(start, origin):
    """Answers that take much longer than usual make a condition, with both times. It ends when the
    answers are fast again. Hits and the server's readiness are as before."""
    for i in range(36):
        origin.put(f"k{i}", 1000)
    server = start(origin, ahead_s=0)

    def read(i):
        with server.client() as client:
            judge(client.get(f"k{i}"), origin, f"k{i}")

    parallel(12, read)
    server.advance(61)
    with origin.hold(None) as held:

        def read_held(i):
            if i < 12:
                read(12 + i)
                return
            origin.wait_for(24)
            server.advance(5)
            held.set()

        parallel(13, read_held)
    server.wait_condition("origin-slow")
    row = server.condition_rows()["origin-slow"]
    assert row["severity"] == "warning", row
    (pace,) = json.loads(server.admin("/api/v1/summary").body)["origins"]
    assert pace["name"] == origin.endpoint and pace["answers"] == 12, pace
    assert pace["first_byte_p99_s"] >= pace["first_byte_p50_s"] > 4 * pace["first_byte_usual_s"]
    said = rf"origin {origin.endpoint}: its answers begin after [\d.]+ s, usually [\d.]+ m?s: "
    assert re.match(said + "misses and cached objects past their ttl wait$", row["text"]), row
    assert "freshness: immutable" in row["remedy"], row
    admin = {"FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"}
    shown = run_forebay("status", env=admin)
    assert shown.returncode == 0 and "warning  origin-slow for" in shown.stdout, shown
    assert re.search(r"minute after [\d.]+ s, p99 [\d.]+ s, usually [\d.]+ m?s: http", shown.stdout)
    assert ("yellow", f"origin-slow: {row['text']}", row["remedy"]) in doctor(server)["server"]
    server.wait_stderr("condition_begun.*origin-slow")
    server.advance(61)
    parallel(12, lambda i: read(24 + i))
    server.wait_condition("origin-slow", holds=False)
    server.advance(61)
    assert "answers" not in run_forebay("status", env=admin).stdout
    server.wait_stderr("condition_ended.*origin-slow")


def test_explain_of_a_stale_object_says_what_a_read_gets_in_an_origins_trouble(start, origin):
    """`explain` and the next read agree while the origin must confirm a cached object and refuses
    Forebay's keys, or is away. A strict rule allows no stale bytes."""
    rules = {"rules": [{"match": "bkt/strict", "freshness": "strict"}]}
    server = start(
        origin,
        settings={"cache.ttl": "10s", "origin.retries": 0},
        file=rules,
        ahead_s=0,
    )
    client = server.client()
    for key in ("k", "strict"):
        origin.put(key, 1000)
        assert client.get(key).status == 200
    server.settle()
    server.advance(20)

    def verdict(key):
        asked = f"/api/v1/explain?uri=s3://bkt/{key}&ask=origin"
        return json.loads(server.admin(asked).body)["verdict"]

    assert (verdict("k")["reason"], verdict("strict")["reason"]) == ("stale", "strict")
    origin.fault(None, "error", (403, "InvalidAccessKeyId", "No"), times=None)
    for key in ("k", "strict"):
        assert client.get(key).status == 403
        assert "the next read fails with 403" in verdict(key)["text"], verdict(key)
    origin.clear_faults()
    assert client.get("k").status == 200
    server.advance(20)
    origin.stop()
    reply = client.get("k")
    assert "stale-if-error" in reply.header("cache-status"), reply
    server.wait_condition("origin-unreachable")
    assert verdict("k")["reason"] == "stale-if-error", verdict("k")
    assert client.get("strict").status == 503
    assert "the next read fails unless" in verdict("strict")["text"], verdict("strict")


def test_an_origin_that_begins_to_fail_is_named_everywhere(start, origin):
    """Server errors that clients get make a condition: in status, /readyz, metrics and doctor. A
    few of them make none, and neither do 403 and 404. An idle time does not end it, but good
    answers do."""
    origin.put("k", 1000)
    server = start(origin, settings=PROBE, ahead_s=0)
    origin.fault("denied", "error", (403, "AccessDenied", "No"), times=None)
    client = server.client()
    for _ in range(6):
        assert client.get("gone").status == 404
        assert client.get("denied").status == 403
    origin.fault(None, "error", (500, "InternalError", "Oops"), times=None)
    for _ in range(4):
        assert client.get("k").status == 500
    assert server.condition_rows() == {}
    env = {"FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"}
    shown = run_forebay("status", env=env)
    assert re.search(r"failed +4 of the last \d+ requests, with a server error", shown.stdout), (
        shown
    )
    assert client.get("k").status == 500
    server.wait_condition("origin-failing")
    wait_for(lambda: events(server, "origin_failing"), "the line in the log")
    assert not events(server, "origin_unreachable")
    row = server.condition_rows()["origin-failing"]
    assert row["severity"] == "critical", row
    said = f"origin {origin.endpoint}: it answers with server errors (5xx): "
    assert row["text"].startswith(said) and "of the last" in row["text"], row
    ready = server.admin("/readyz")
    assert ready.status == 200 and said.encode() in ready.body, ready
    shown = run_forebay("status", env=env)
    assert shown.returncode == 1, shown
    assert "critical origin-failing for" in shown.stdout, shown
    assert "see the store's own log and health" in shown.stdout, shown
    assert ("red", f"origin-failing: {row['text']}", row["remedy"]) in doctor(server)["server"]
    server.advance(3600)
    assert "origin-failing" in server.conditions()
    origin.clear_faults()
    server.advance(31)
    for _ in range(30):
        judge(client.get("k"), origin, "k")
        client.get("gone")
    server.advance(31)
    assert client.get("gone").status == 404
    server.wait_condition("origin-failing", holds=False)
    server.wait_stderr("condition_ended.*origin-failing")


def test_the_probe_alone_ends_server_errors(start, origin):
    """Without clients the probe shows that the origin is well again. It asks often enough that the
    errors are forgotten after about a minute."""
    server = start(origin, settings=PROBE, ahead_s=0)
    origin.fault(None, "error", (500, "InternalError", "Oops"), times=None)
    client = server.client()
    for _ in range(10):
        assert client.get("k").status == 500
    server.wait_condition("origin-failing")
    probes = len(origin.requests())
    wait_for(lambda: len(origin.requests()) > probes, "the first probe")
    origin.clear_faults()
    for _ in range(14):
        probes = len(origin.requests())
        server.advance(5)
        if "origin-failing" in server.conditions():
            wait_for(lambda: len(origin.requests()) > probes, "a probe")
    server.wait_condition("origin-failing", holds=False)


@pytest.mark.parametrize("has_phrase", [True, False])
def test_throttled_heads_are_no_server_errors(start, origin, has_phrase):
    """SlowDown to a HEAD has no document. S3 tells it by the reason phrase. For other stores a
    SlowDown to another request tells it."""
    server = start(origin, settings={**PROBE, "origin.retries": 0})
    origin.put("k", 1000)
    phrase = b"Slow Down" if has_phrase else b"Service Unavailable"
    head = b"HTTP/1.1 503 " + phrase + b"\r\nContent-Length: 0\r\n\r\n"
    origin.fault("k", "raw", head, times=None, method="HEAD")
    origin.fault("k", "error", (503, "SlowDown", "Less"), times=None, method="GET")
    with server.client() as client:
        assert has_phrase or client.get("k").code == "SlowDown"
        for _ in range(10):
            assert client.head("k").status == 503
    (row,) = server.condition_rows().values()
    assert "SlowDown" in row["text"], row


def test_an_origin_that_refuses_nearly_everything_with_slow_down_fails(start, origin):
    """The condition origin-throttled names the share of refused requests. When nearly all are
    refused, reads fail as with server errors, so the condition is origin-failing instead."""
    origin.put("k", 1000)
    server = start(origin, settings=PROBE, ahead_s=0)
    server.wait_stderr("event.*started")
    origin.fault("k", "error", (503, "SlowDown", "Less"), times=None)
    client = server.client()
    for _ in range(3):
        assert client.get("k").code == "SlowDown"
    (row,) = server.condition_rows().values()
    assert (row["name"], row["severity"]) == ("origin-throttled", "warning"), row
    assert "SlowDown to 3 of the last 4 requests" in row["text"], row
    for _ in range(20):
        assert client.get("k").code == "SlowDown"
    server.wait_condition("origin-failing")
    (row,) = server.condition_rows().values()
    assert (row["name"], row["severity"]) == ("origin-failing", "critical"), row
    said = r"it refuses nearly all requests with SlowDown: \d+ of the last \d+ requests"
    assert re.search(said, row["text"]), row
    (event,) = events(server, "origin_failing")
    assert event["why"] == "slowdown", event
    shown = run_forebay("status", env={"FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"})
    assert shown.returncode == 1 and "critical origin-failing" in shown.stdout, shown
    origin.clear_faults()
    for _ in range(20):
        client.get("gone")
    server.wait_condition("origin-failing", holds=False)
    server.wait_stderr("origin_back")


def test_an_origin_that_fails_from_the_start_is_not_called_unreachable(start, origin):
    """The probe gets 5xx: the origin answers, so its condition is the one for server errors."""
    origin.fault(None, "error", (502, "", ""), times=None)
    server = start(origin, settings=PROBE)
    server.wait_condition("origin-failing")
    assert "origin-unreachable" not in server.conditions()
    origin.clear_faults()
    server.wait_condition("origin-failing", holds=False)


@pytest.mark.parametrize("status", [500, 503])
def test_server_errors_that_a_retry_mends_make_no_condition(start, origin, status):
    """A store has single errors in normal life. Forebay retries, and clients see none."""
    server = start(origin)
    for i in range(10):
        origin.put(f"k{i}", 100)
        origin.fault(f"k{i}", "error", (status, "ServiceUnavailable", "Oops"), times=1)
    with server.client() as client:
        for i in range(10):
            judge(client.get(f"k{i}"), origin, f"k{i}")
    assert server.conditions() == set()


def test_refused_keys_end_what_is_served_with_the_ttl(start):
    """Forebay serves what is cached until its ttl ends, as the condition says, although the origin
    refuses its keys. It serves it no longer, because the right to read may have ended."""
    with Origin(credentials=KEYS) as origin:
        origin.put("k", 1000)
        server = start(origin, settings={**PROBE, "cache.ttl": "1m"}, ahead_s=0)
        with server.client() as client:
            judge(client.get("k"), origin, "k")
            server.settle()
            origin.fault(None, "error", (403, "InvalidAccessKeyId", "No"), times=None)
            assert client.get("other").status == 403
            server.wait_condition("credentials-refused")
            text = server.condition_rows()["credentials-refused"]["text"]
            judge(client.get("k"), origin, "k")
            server.advance(61)
            assert client.get("k").status == 403, text


def test_a_wait_for_a_connection_names_the_calls_that_forebay_lowered(start, origin):
    """After SlowDown fewer calls run at once than origin.connections allows. A request that waits
    too long for its turn makes no-connection, which names the lowered number. So does status."""
    for key in ("held", "waits", "slow"):
        origin.put(key, 1000)
    settings = {"workers": 1, "origin.connections": 4, "origin.retries": 0}
    server = start(origin, settings=settings, ahead_s=0)
    origin.fault("slow", "error", (503, "SlowDown", "Less"), times=3)
    with server.client() as client:
        for _ in range(3):
            assert client.get("slow").code == "SlowDown"
    with (
        server.connection() as first,
        server.connection() as second,
        origin.hold("held") as go,
    ):
        first.send(request_bytes("GET", "/bkt/held", "127.0.0.1"))
        origin.wait_for(1, key="held", method="GET")
        second.send(request_bytes("GET", "/bkt/waits", "127.0.0.1"))
        server.wait_metric("forebay_origin_connections", lambda n: n >= 1, state="waiting")
        server.advance(31)
        assert second.read_reply().status == 503
        row = server.condition_rows()["no-connection"]
        assert "lowered the calls at once to 1 of 4" in row["text"], row
        assert origin.endpoint in row["text"] and "origin.connections" not in row["remedy"], row
        shown = run_forebay("status", env={"FOREBAY_ADMIN": admin_of(server)}).stdout
        assert "lowered to 1 at once of 4" in shown, shown
        go.set()

# SPDX-License-Identifier: Apache-2.0
"""The access log reports what happened: blocks, results, times, the client, and the request ids of
both sides."""

import contextlib
import json
import os
import pty
import re
import subprocess

import pytest
from client import judge
from forebay import Forebay
from test_auth import Caller, keys_file, verify
from waiting import wait_for

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def last(server, key, method="GetObject"):
    return server.access_log(wait_for=lambda e: e.get("key") == key and e["op"] == method)[-1]


def lines_of(server, key, count):
    server.access_log(
        wait_for=lambda e: sum(x.get("key") == key for x in server.access_log()) >= count
    )
    return [e for e in server.access_log() if e.get("key") == key]


def test_blocks_beyond_the_first_window(start, origin, engine):
    """The log counts all 40 blocks of a warm object as hits. If the end of the object is not
    cached, it counts only the cached blocks as hits."""
    origin.put("warm", 40 << 20)
    origin.put("part", 40 << 20)
    server = start(origin, engine=engine, settings={"cache.ttl": "1h", "cache.readahead": "0"})
    with server.client() as client:
        judge(client.get("warm"), origin, "warm")
        judge(client.get("part", 0, (20 << 20) - 1), origin, "part", 0, 20 << 20)
        server.settle()
        judge(client.get("warm"), origin, "warm")
        judge(client.get("part"), origin, "part")
    cold, warm = lines_of(server, "warm", 2)
    assert (cold["result"], cold["blocks_hit"], cold["blocks_total"]) == ("miss", 0, 40)
    assert (warm["result"], warm["blocks_hit"], warm["blocks_total"]) == ("hit", 40, 40)
    part = lines_of(server, "part", 2)[-1]
    assert (part["result"], part["blocks_hit"], part["blocks_total"]) == ("partial", 20, 40), part


def test_an_object_is_a_hit_immediately_after_it_arrived(forebay, origin):
    """An object is a hit immediately after it arrived, both in Cache-Status and in the log."""
    origin.put("k", 1 << 20)
    with forebay.client() as client:
        says = [client.get("k").header("cache-status") for _ in range(4)]
    assert "uri-miss" in says[0] and all(s.startswith("forebay; hit") for s in says[1:]), says
    lines = lines_of(forebay, "k", 4)
    assert [e["result"] for e in lines] == ["miss", "hit", "hit", "hit"]
    assert lines[0]["source"] == "origin" and all(e["source"] != "origin" for e in lines[1:])
    assert all(0 < e["ttfb_ms"] <= e["total_ms"] for e in lines), lines


def test_reads_say_how_long_they_waited_for_the_origin(start, origin):
    """`origin_ms` covers the wait for the first answer: of a miss, of a reader that waits for
    another one's run, of a version that is confirmed, of a refusal, and of a write. A hit has
    none."""
    rules = {"rules": [{"match": "bkt/strict", "freshness": "strict"}]}
    server = start(origin, settings={"origin.retries": 0}, file=rules)
    for key in ("k", "strict"):
        origin.put(key, 1000)
    origin.fault("bad", "error", (500, "InternalError", "Oops"), times=None)
    with origin.hold("k"), server.connection() as one, server.connection() as two:
        for connection in (one, two):
            connection.send(b"GET /bkt/k HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        server.wait_metric("forebay_coalesced_waiters", lambda v: v >= 1)
        origin.release()
        for connection in (one, two):
            judge(connection.read_reply(), origin, "k")
    server.settle()
    with server.client() as client:
        hit_id = client.get("k").header("x-amz-request-id")
        for _ in range(2):
            confirmed_id = client.get("strict").header("x-amz-request-id")
            server.settle()
        client.get("bad")
        assert client.request("PUT", "/bkt/new", body=b"x" * 100).status == 200
    by_id = {
        line["id"]: line
        for key, n in (("k", 3), ("strict", 2))
        for line in lines_of(server, key, n)
    }
    hit, confirmed = by_id.pop(hit_id), by_id.pop(confirmed_id)
    first, second = (line for line in by_id.values() if line["key"] == "k")
    assert "miss" in {first["result"], second["result"]}, (first, second)
    assert hit["result"] == "hit" and "origin_ms" not in hit, hit
    assert confirmed["result"] == "revalidated", confirmed
    for line in (first, second, confirmed, last(server, "bad"), last(server, "new", "PutObject")):
        assert 0 < line["origin_ms"] <= line["total_ms"], line
        traced = json.loads(server.admin("/api/v1/trace/" + line["id"]).body)
        assert abs(traced["origin_s"] * 1e3 - line["origin_ms"]) < 0.002, (traced, line)


def test_misses_without_an_object(start, origin):
    """A 404 counts as a miss. A request that Forebay itself refuses has no result."""
    server = start(origin)
    with server.client() as client:
        reply = client.get("gone")
        assert reply.header("cache-status") == "forebay; fwd=uri-miss; fwd-status=404", reply
        client.request("GET", "/bkt/k?partNumber=none")
    line = last(server, "gone")
    assert line["result"] == "miss" and line["error"] == "NoSuchKey", line
    refused = server.access_log(wait_for=lambda e: e["status"] == 400)[-1]
    assert "result" not in refused and "why" not in refused, refused


def test_cache_status_says_why_an_object_is_not_stored(start, origin, tmp_path):
    """Cache-Status says why an object is not stored: it exceeds the size setting, or the cache
    directory fails."""
    origin.put("k", 1 << 20)
    server = start(origin, settings={"cache.max_object_size": "100KiB"})
    with server.client() as client:
        assert client.get("k").header("cache-status").endswith("stored=?0; detail=too-large")
    server = start(origin, env={"FOREBAY_DISK_FAULTS": "write:1+:eio"})
    with server.client() as client:
        said = []

        def is_said():
            key = f"k{len(said)}"
            origin.put(key, 1 << 20)
            said.append(client.get(key).header("cache-status"))
            server.settle()
            return said[-1].endswith(
                "stored=?0; detail=disk-degraded"
            )  # except one in five seconds, which tries the disk

        wait_for(is_said, lambda: f"a disk that is given up: {said[-5:]}")


def test_request_ids_are_forwarded_and_logged(start, origin):
    """Forebay forwards traceparent and x-request-id. The log has the origin's request id in
    addition to ours, for a miss, an error and a relayed request."""
    origin.put("k", 1000)
    origin.added_headers = [("x-amz-request-id", "ORIGIN-7")]
    origin.fault("k", "header", ("x-amz-request-id", "ORIGIN-8"), times=None)
    server = start(origin)
    ours = [("traceparent", TRACE), ("x-request-id", "client-1")]
    with server.client() as client:
        for key in ("k", "gone"):
            client.get(key, headers=ours)
        client.request("GET", "/bkt?list-type=2", headers=ours)
    asked = origin.requests()
    assert len(asked) == 3
    for entry in asked:
        assert (
            entry.header("traceparent") == TRACE and entry.header("x-request-id") == "client-1"
        ), entry
    listing = server.access_log(wait_for=lambda e: e["op"] == "ListObjectsV2")[-1]
    for line, answered in (
        (last(server, "k"), "ORIGIN-8"),
        (last(server, "gone"), "ORIGIN-7"),
        (listing, "ORIGIN-7"),
    ):
        assert line["request_id"] == "client-1" and line["trace_id"] == TRACE.split("-")[1], line
        assert line["origin_id"] == answered and line["id"] != answered, line
    with server.client() as client:
        ids = client.get("gone", headers=ours).all("x-amz-request-id")
    assert len(ids) == 1
    server.access_log(wait_for=lambda e: e["id"] == ids[0])


def test_a_denied_request_names_its_requester_if_its_signature_is_valid(start, origin, tmp_path):
    """A request without the right is logged with `requester`. A request with a wrong signature, of
    the same key, is logged with `claimed_key`."""
    server = start(origin, settings=verify(keys_file(tmp_path)))
    reader = Caller(server, "READER")
    assert reader.ask("DELETE", "/bkt/alice/denied").status == 403
    reader.signer.secret = "another"
    assert reader.ask("GET", "/bkt/alice/forged").status == 403
    reader.http.close()
    denied = last(server, "alice/denied", "DeleteObject")
    assert denied["requester"] == "READER" and "claimed_key" not in denied, denied
    forged = last(server, "alice/forged")
    assert forged["claimed_key"] == "READER" and "requester" not in forged, forged


FIELDS = re.compile(
    r'^(\S+) (\S+) \[([^]]+)\] (\S+) (\S+) (\S+) (\S+) (\S+) "([^"]*)" (\d+) (\S+) (\S+) (\S+) '
    r'(\S+) (\S+) "([^"]*)" "([^"]*)" (\S+) (\S+) (\S+) (\S+) (\S+) (\S+) (\S+) (\S+) (\S+)$'
)


def refusals(server, origin):
    """Has requests and connections refused before they are requests. Returns the id of each reply,
    by what refused it."""
    ids = {}
    with contextlib.ExitStack() as held:
        held.enter_context(origin.hold("held"))
        first = held.enter_context(server.connection())
        first.send(b"GET /bkt/held HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        origin.wait_for(1, key="held")
        second = held.enter_context(server.connection())
        second.send(b"GET /bkt/dir/k HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        ids["inflight"] = second.read_reply().header("x-amz-request-id")
        third = held.enter_context(server.connection())
        ids["source"] = third.read_reply().header("x-amz-request-id")
        second.send(b"GET /bkt/dir/k HTTP/1.1\nHost: 127.0.0.1\n\n")
        ids["head"] = second.read_reply().header("x-amz-request-id")
    return ids


CROWDED = {"limits.max_inflight": 1, "limits.max_connections_per_source": 2}


def test_requests_that_a_limit_or_a_bad_head_refuses_are_logged(start, origin):
    """A request beyond limits.max_inflight, a connection beyond a limit and a head that is not HTTP
    have a line each: the client, the error and the reason. `forebay trace` finds them."""
    origin.put("held", 10)
    server = start(origin, settings=CROWDED)
    ids = refusals(server, origin)
    lines = {why: server.access_log(lambda e: e["id"] == ids[why])[0] for why in ids}
    for why, line in lines.items():
        assert line["why"] == why and line["client"].startswith("127.0.0.1:"), line
        assert line["bytes"] > 0 and server.admin(f"/api/v1/trace/{ids[why]}").status == 200
    known = ("op", "bucket", "key", "status", "error")
    assert [lines["inflight"][f] for f in known] == ["GetObject", "bkt", "dir/k", 503, "SlowDown"]
    assert [lines["source"][f] for f in known] == ["Unknown", "", "", 503, "SlowDown"]
    assert [lines["head"][f] for f in known] == ["Unknown", "", "", 400, "InvalidRequest"]


def test_refused_requests_keep_the_s3_format(start, origin):
    """In the S3 format a request whose head was not accepted has no operation and no request
    line."""
    origin.put("held", 10)
    server = start(origin, settings={**CROWDED, "access_log.format": "s3"})
    ids = refusals(server, origin)
    with server.changed:
        assert server.changed.wait_for(lambda: len(server.stdout) >= 4, 30), server.stdout
    rows = {m[6]: m.groups() for m in map(FIELDS.match, server.stdout)}
    shown = {why: (*rows[ids[why]][6:9], *rows[ids[why]][9:11]) for why in ids}
    assert shown == {
        "inflight": ("REST.GET.OBJECT", "dir/k", "GET /bkt/dir/k HTTP/1.1", "503", "SlowDown"),
        "source": ("-", "-", "-", "503", "SlowDown"),
        "head": ("-", "-", "-", "400", "InvalidRequest"),
    }


def test_s3_format_has_the_fields_of_s3(start, origin):
    """The S3 format has the fields of S3's server access log, in its order. The total time differs
    from the turn-around time."""
    origin.put("dir/k", 1 << 20)
    server = start(origin, settings={"access_log.format": "s3"})
    with server.client() as client:
        client.get("dir/k")
        client.get("gone")
        client.request("GET", "/bkt?list-type=2&prefix=dir/")
    with server.changed:
        assert server.changed.wait_for(lambda: len(server.stdout) >= 3, 30), server.stdout
    rows = [FIELDS.match(line) for line in server.stdout]
    assert all(rows), server.stdout
    one, gone, listing = (row.groups() for row in rows)
    assert one[1] == "bkt" and one[6:9] == ("REST.GET.OBJECT", "dir/k", "GET /bkt/dir/k HTTP/1.1")
    assert one[9:13] == ("200", "-", str(1 << 20), str(1 << 20)) and int(one[13]) >= int(one[14])
    assert gone[9:11] == ("404", "NoSuchKey")
    assert listing[6:9] == ("REST.GET.BUCKET", "-", "GET /bkt?list-type=2&prefix=dir/ HTTP/1.1")


LONG = {
    "quotes in the query": b"/bkt/k?x=" + 15_900 * b'"',
    "a version": b"/bkt/k?versionId=" + 5_000 * b"%01",
    "a bucket": b"/" + 16_000 * b"a" + b"/k",
    "a bucket of nonsense": b"/" + 5_300 * b"%01" + b"/k",
    "a key": b"/bkt/" + 1_024 * b"%01" + b"?x=" + 12_000 * b'"',
    "many parameters": b"/bkt/k?" + b"&".join(900 * [b'"=' + 14 * b'"']),
}


@pytest.mark.parametrize("form", ["json", "s3", "text"])
def test_no_request_is_too_long_for_the_log(start, origin, form):
    """However long a client makes its headers or target, the log has a line for each request. The
    client's own values are shortened."""
    origin.put("k", 1000)
    server, lines = start(origin, settings={"access_log.format": form}), 0
    for name, target in LONG.items():
        with server.connection() as connection:
            connection.send(
                b"GET "
                + target
                + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nRange: bytes="
                + 600 * b"\x80"
                + b"\r\nReferer: "
                + 600 * b"\x80"
                + b"\r\nUser-Agent: "
                + 600 * b"\x80"
                + b"\r\nx-request-id: "
                + 600 * b"\x80"
                + b"\r\n\r\n"
            )
            connection.read_reply()
        with server.changed:
            assert server.changed.wait_for(lambda: len(server.stdout) > lines, 30), name
            line, lines = server.stdout[lines], lines + 1
        if form == "json":
            assert json.loads(line)["ua"], name
        elif form == "s3":
            assert FIELDS.match(line), (name, line[-300:])
    assert server.metric("forebay_limit_reached_total", limit="access-log") == 0


@pytest.mark.parametrize("mode", ["prefix", "hash"])
def test_no_log_shows_hidden_keys(start, origin, mode):
    """No log shows a key that log.keys hides. All logs show the same hash for the same key."""
    origin.put("dir/private", 1000, checksums={"crc32": "AAAAAA=="})
    for name in ("json", "s3", "text"):
        server = start(origin, settings={"log.keys": mode, "access_log.format": name})
        with server.client() as client:
            client.get("dir/private", headers=[("x-amz-checksum-mode", "ENABLED")])
            client.get("dir/private2")
        server.stop()
        text = "\n".join(server.stdout + server.stderr)
        assert "private" not in text, text
        assert ("dir/" in text) == (mode == "prefix"), text


def test_the_log_on_a_terminal_is_readable(tmp_path, origin):
    """With `auto` on a terminal, the access log is one short readable line for each request."""
    origin.put("k", 700)
    server = Forebay(tmp_path, origin)
    main, child = pty.openpty()
    process = subprocess.Popen(
        server.command(),
        stdout=child,
        stderr=subprocess.PIPE,
        env=server.env,
        cwd=tmp_path,
        text=True,
    )
    os.close(child)
    try:
        server.stderr = []
        while not (server.port and any("hint" in line for line in server.stderr)):
            server.stderr.append(process.stderr.readline())
            server.port = server._port_in(r"^\s*listening\s+https?://[^\s/]*:(\d+)")
        with server.client() as client:
            client.get("k")
        line = os.read(main, 4096).decode()
        assert re.match(
            r"^\d\d:\d\d:\d\d 200 miss +700 B +[\d.]+ ms +[\d.]+ ms GetObject bkt/k\r?\n$", line
        ), line
        assert len(line) < 100
    finally:
        process.terminate()
        process.wait(30)
        process.stderr.close()
        os.close(main)

# SPDX-License-Identifier: Apache-2.0
"""The control interface as people use it: the commands that ask a running server, what they print for people and,
with --json, for programs; who may; what a server that is busy, degraded or gone makes of it."""
import json
import os
import threading

import pytest

from client import Connection, request_bytes
from forebay import run_forebay

MIB = 1 << 20


def has_shape(value, shape, path="$"):
    """VALUE is what SHAPE says: a type, a tuple of types, [SHAPE] for lists, {name: SHAPE} for objects with exactly these."""
    if isinstance(shape, dict):
        assert isinstance(value, dict) and set(value) == set(shape), (path, value)
        for name, inner in shape.items():
            has_shape(value[name], inner, f"{path}.{name}")
    elif isinstance(shape, list):
        assert isinstance(value, list), (path, value)
        for i, one in enumerate(value):
            has_shape(one, shape[0], f"{path}[{i}]")
    else:
        kinds = shape if isinstance(shape, tuple) else (shape,)
        assert type(value) in kinds, (path, value, shape)


NUMBER, MAYBE = (int, float), (int, float, type(None))
RESULT = {"type": str, "ok": bool, "exit": int}
SUMS = {"objects": int, "cached_objects": int, "bytes": int, "cached_bytes": int}
SHAPES = {
    "status": {"result": {**RESULT, "version": str, "uptime_s": float, "ready": bool, "reason": str, "degraded": [str],
                          "byte_hit_ratio": float, "request_hit_ratio": float, "cache_bytes": int,
                          "cache_capacity_bytes": int, "cache_objects": int, "cache_blocks": int, "requests": int,
                          "requests_inflight": int, "fills_inflight": int, "served_memory_bytes": int,
                          "served_disk_bytes": int, "served_origin_bytes": int, "origin_requests": int,
                          "origin_received_bytes": int}},
    "stats": {"item": {"type": str, "time": float, "interval_s": float, "requests_per_s": float, "hit_ratio": float,
                       "memory_bytes_per_s": float, "disk_bytes_per_s": float, "origin_bytes_per_s": float,
                       "fetched_bytes_per_s": float, "first_byte_p50_s": float, "first_byte_p99_s": float,
                       "evicted_blocks_per_s": float, "requests_inflight": float},
              "result": {**RESULT, "lines": int}},
    "explain": {"result": {**RESULT, "uri": str, "origin": str, "origin_bucket": str, "known": bool,
                           "etag": (str, type(None)), "size": int, "block_size": int, "age_s": MAYBE, "fresh": bool,
                           "rebuilt": bool, "in_doubt": bool, "would_keep": bool, "home_worker": int, "blocks": int,
                           "cached_blocks": int, "cached_bytes": int,
                           "rule": {"match": str, "where": str, "cache": bool, "freshness": str, "ttl_s": float,
                                    "block_size": int, "max_object_size": int, "priority": int},
                           "range": {"first": int, "end": int, "blocks": int, "cached_blocks": int, "cells": [[int]]},
                           "verdict": {"reason": str, "text": str, "remedy": str}}},
    "ls": {"item": {"type": str, "uri": str, "key": str, "size": int, "known": bool, "cached_bytes": int,
                    "blocks": int, "cached_blocks": int, "fresh": bool, "changed": bool, "age_s": MAYBE},
           "result": {**RESULT, **SUMS}},
    "du": {"item": {"type": str, "uri": str, **SUMS}, "result": {**RESULT, **SUMS}},
    "evict": {"item": {"type": str, "uri": str, "ok": bool, "cached_bytes": int},
              "result": {**RESULT, "objects": int, "bytes": int, "failed": int, "buckets": int, "dry_run": bool}},
    "reload": {"result": {**RESULT, "errors": [str], "needs_restart": [str]}},
    "loglevel": {"result": {**RESULT, "level": str}},
    "drain": {"result": {**RESULT, "draining": bool}},
}


def ask(server, *words, code=0, **more):
    """Runs a command against SERVER with --json; its lines, the last one a result with that exit code."""
    got = run_forebay(*words, "--json", env={"FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}", **more})
    assert got.returncode == code, (words, got.returncode, got.stdout, got.stderr)
    lines = [json.loads(line) for line in got.stdout.splitlines()]
    assert lines[-1]["type"] == "result" and lines[-1]["exit"] == code and lines[-1]["ok"] == (code == 0)
    for line in lines:
        if code in (0, 5):
            has_shape(line, SHAPES[words[0]][line["type"]])
    return lines


def said(server, *words, code=0):
    """The same for people."""
    got = run_forebay(*words, env={"FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"})
    assert got.returncode == code, (words, got.returncode, got.stdout, got.stderr)
    return got.stdout + got.stderr


def read(server, *keys):
    with server.client() as client:
        for key in keys:
            assert client.get(key).status == 200
    server.settle()


# --- numbers --------------------------------------------------------------------------------------

def test_status_and_stats(forebay, origin):
    origin.put("a", 3 * MIB)
    read(forebay, "a", "a")
    forebay.wait_metric("forebay_cache_objects", lambda v: v == 1)
    status = ask(forebay, "status")[-1]
    assert status["ready"] and status["degraded"] == [] and status["requests"] == 2
    assert status["served_origin_bytes"] == 3 * MIB and status["byte_hit_ratio"] == 0.5
    assert status["request_hit_ratio"] == 0.5 and status["cache_objects"] == 1
    lines = ask(forebay, "stats", "-n", "2")
    assert [line["type"] for line in lines] == ["item", "item", "result"] and lines[-1]["lines"] == 2
    text = said(forebay, "status")
    assert "ready" in text and "50.0 % of bytes" in text and "3.0 MiB from the origin" in text
    head, line = said(forebay, "stats", "-n", "1").splitlines()
    assert head.split()[:2] == ["req/s", "hit%"] and line.split()[0] == "0.0"


def test_a_degraded_server_says_so(start, origin, tmp_path):
    """The cache directory lies behind a file: everything passes through, and status ends with 1."""
    (tmp_path / "file").write_text("")
    server = start(origin, settings={"cache.dir": str(tmp_path / "file" / "cache")})
    assert "disk" in ask(server, "status", code=1)[-1]["degraded"]
    assert "DEGRADED disk" in said(server, "status", code=1)
    origin.put("a", 100)
    assert ask(server, "explain", "s3://bkt/a")[-1]["verdict"]["reason"] == "disk-degraded"
    with server.client() as client:
        assert client.get("a").status == 200


def test_no_server(tmp_path):
    """Exit code 6 and one line that says what to do, for each command."""
    for words in (["status"], ["stats", "-n", "1"], ["explain", "s3://b/k"], ["ls", "s3://b/"], ["du", "s3://b/"],
                  ["evict", "s3://b/k"], ["reload"], ["drain"], ["loglevel", "info"]):
        got = run_forebay(*words, "--admin", f"unix:{tmp_path}/none", "--json")
        assert got.returncode == 6, (words, got)
        assert "no server answers" in got.stderr and "--admin" in got.stderr
        assert [json.loads(line)["type"] for line in got.stdout.splitlines()] == ["error", "result"]


# --- what is cached -------------------------------------------------------------------------------

def test_explain_follows_an_object(start, origin, engine):
    """Absent, partly there, there, stale; a rule that keeps it out; blocks of a range."""
    server = start(origin, engine=engine, settings={"cache.ttl": "60s"}, ahead_s=0,
                   file={"rules": [{"match": "bkt/never/**", "cache": False},
                                   {"match": "bkt/fixed/**", "freshness": "immutable"}]})
    origin.put("big", 9 * MIB + 5)
    origin.put("never/x", 1000)
    origin.put("fixed/x", 1000)

    def explain(*words):
        return ask(server, "explain", *words)[-1]
    first = explain("s3://bkt/big")
    assert not first["known"] and first["verdict"]["reason"] == "absent" and first["rule"]["where"] == "default"
    asked = len(origin.requests())
    with server.client() as client:
        assert client.get("big", 2 * MIB, 3 * MIB - 1).status == 206
    server.settle()
    part = explain("s3://bkt/big")
    assert part["known"] and part["blocks"] == 10 and part["size"] == 9 * MIB + 5
    assert part["verdict"]["reason"] == "partial" and part["fresh"]
    assert part["etag"] == origin.version("big").etag
    inside = explain("s3://bkt/big", "--range", f"{2 * MIB}-{3 * MIB - 1}")
    assert inside["range"]["blocks"] == inside["range"]["cached_blocks"] == 1
    assert inside["verdict"]["reason"] == "hit"
    outside = explain("s3://bkt/big", "--range", f"{8 * MIB}-")
    assert outside["range"]["cells"] == [[0, 1], [0, 1]] and outside["range"]["cached_blocks"] == 0
    read(server, "big")
    whole = explain("s3://bkt/big")
    assert whole["cached_blocks"] == 10 and whole["cached_bytes"] == 9 * MIB + 5
    assert whole["verdict"]["reason"] == "hit" and sum(c for c, _ in whole["range"]["cells"]) == 10
    server.advance(100)
    assert explain("s3://bkt/big")["verdict"]["reason"] == "stale"
    read(server, "never/x", "fixed/x")
    never = explain("s3://bkt/never/x")
    assert never["verdict"]["reason"] == "rule" and never["rule"]["match"] == "bkt/never/**"
    assert "forebay.yaml:" in never["rule"]["where"]
    server.advance(100000)
    assert explain("s3://bkt/fixed/x")["verdict"]["reason"] == "hit"
    before = len(origin.requests())
    text = said(server, "explain", "s3://bkt/big")
    assert "10 of 10 blocks" in text and "■■■■" in text and "remedy" in text
    assert len(origin.requests()) == before and asked == 0  # it only looks


def test_ls_and_du(forebay, origin):
    """Names come from the origin, page by page; odd ones too; what has changed there is told."""
    names = [f"set/{i // 300}/{i:04}" for i in range(1203)] + ["set/odd +&%/é\tx"]
    for name in names:
        origin.put(name, 100)
    origin.put("other", 100)
    read(forebay, "set/0/0001", "set/odd +&%/é\tx", "set/4/1201")
    mark = origin.mark()
    lines = ask(forebay, "ls", "s3://bkt/set/")
    assert [line["uri"] for line in lines[:-1]] == ["s3://bkt/set/0/0001", "s3://bkt/set/4/1201", "s3://bkt/set/odd +&%/é\tx"]
    assert all(line["fresh"] and not line["changed"] and line["cached_bytes"] == 100 for line in lines[:-1])
    assert lines[-1]["objects"] == 1204 and lines[-1]["cached_bytes"] == 300 and lines[-1]["bytes"] == 120400
    assert len(origin.requests(since=mark)) == 3
    assert len(ask(forebay, "ls", "s3://bkt/set/", "--all")) == 1205
    origin.overwrite("set/0/0001", 100)
    assert ask(forebay, "ls", "s3://bkt/set/0/")[0]["changed"]
    folders = ask(forebay, "du", "s3://bkt/set/")
    assert [line["uri"] for line in folders[:-1]] == [f"s3://bkt/set/{i}/" for i in range(5)] + ["s3://bkt/set/odd +&%/"]
    assert folders[0]["objects"] == 300 and folders[0]["cached_bytes"] == 100
    assert "3 of 1204 objects  s3://bkt/set/" in said(forebay, "du", "s3://bkt/set/")
    assert "s3://bkt/set/4/1201" in said(forebay, "ls", "s3://bkt/set/4")


def test_ls_of_what_cannot_be_listed(forebay, origin):
    assert "bucket does not exist" in said(forebay, "ls", "s3://nobody/", code=4)
    for words in (["ls", "bkt/x"], ["ls", "s3://"], ["explain", "s3://bkt"], ["explain", "s3://bkt/k", "--range", "5-4"],
                  ["evict", "http://x/y"], ["loglevel", "loud"], ["stats", "-n", "0"]):
        said(forebay, *words, code=2)
    origin.down()
    assert "the origin cannot list it" in said(forebay, "ls", "s3://bkt/", code=4)


def test_what_is_evicted_is_asked_for_again(forebay, origin):
    """An object, a prefix, a bucket; dry runs say the same and change nothing; nobody is given it after."""
    for key in ("a", "p/1", "p/2", "q/1"):
        origin.put(key, 2 * MIB)
    read(forebay, "a", "p/1", "p/2", "q/1")

    def fetched(*keys):
        mark = origin.mark()
        read(forebay, *keys)
        return sorted({e.key for e in origin.requests(method="GET", since=mark)})
    dry = ask(forebay, "evict", "s3://bkt/a", "s3://bkt/p/", "--dry-run")
    assert [line["uri"] for line in dry[:-1]] == ["s3://bkt/a", "s3://bkt/p/1", "s3://bkt/p/2"]
    assert dry[-1]["objects"] == 3 and dry[-1]["bytes"] == 6 * MIB and dry[-1]["dry_run"]
    assert fetched("a", "p/1", "p/2", "q/1") == []
    gone = ask(forebay, "evict", "s3://bkt/a", "s3://bkt/p/")
    assert gone[-1]["objects"] == 3 and gone[-1]["bytes"] == 6 * MIB and not gone[-1]["dry_run"]
    assert fetched("a", "p/1", "p/2", "q/1") == ["a", "p/1", "p/2"]
    assert ask(forebay, "evict", "s3://bkt/nothing")[-1]["objects"] == 0
    assert ask(forebay, "evict", "s3://bkt")[-1]["buckets"] == 1
    assert fetched("a", "p/1", "p/2", "q/1") == ["a", "p/1", "p/2", "q/1"]


def test_evicted_while_it_comes(start, origin, engine):
    """The reader of a run in flight has its version to the end; the next reader asks the origin anew."""
    server = start(origin, engine=engine)
    origin.put("a", 4 * MIB)
    with origin.hold("a"), server.client() as client:
        answers = []
        reader = threading.Thread(target=lambda: answers.append(client.get("a")))
        reader.start()
        origin.wait_for(1, key="a")
        ask(server, "evict", "s3://bkt/a")
        origin.overwrite("a", 4 * MIB)
        origin.release()
        reader.join()
    assert answers[0].status == 200
    with server.client() as client:
        assert client.get("a").etag == origin.version("a").etag


# --- orders ---------------------------------------------------------------------------------------

def test_reload_tells_what_became_of_it(start, origin):
    """What is applied, what waits for a restart, and a file that is refused: where, and nothing changes."""
    server = start(origin, file={"cache": {"min_free": "5%"}})
    assert ask(server, "reload")[-1]["needs_restart"] == []
    path = server.folder / "forebay.yaml"
    path.write_text(json.dumps({"cache": {"min_free": "4%", "ttl": "7s"}}))
    assert ask(server, "reload")[-1]["needs_restart"] == ["cache.ttl"]
    path.write_text('{"cache": {"min_fre": "4%"}}')
    refused = ask(server, "reload", code=3)[-1]
    assert "forebay.yaml:1:" in refused["errors"][0] and "cache.min_free" in refused["errors"][0]
    text = said(server, "reload", code=3)
    assert "forebay.yaml:1:" in text and "everything stays as it was" in text
    assert server.metric("forebay_config_last_reload_successful") == 0


def test_loglevel_and_drain(start, origin):
    server = start(origin)
    assert ask(server, "loglevel", "debug")[-1]["level"] == "debug"
    assert ask(server, "loglevel", "info")[-1]["level"] == "info"
    server.expect_failure = True    # it ends by itself
    assert ask(server, "drain")[-1]["draining"]
    assert server.process.wait(30) == 0


# --- who may --------------------------------------------------------------------------------------

def test_rights_over_socket_loopback_and_token(start, origin, tmp_path):
    """One server that trusts nobody on loopback: the socket may all, the token too, others only totals."""
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)
    socket = tmp_path / "s"
    server = start(origin, settings={"admin.socket": str(socket), "admin.token_file": str(token),
                                     "admin.trust_loopback": "false"})
    assert os.stat(socket).st_mode & 0o777 == 0o600
    tcp = f"http://127.0.0.1:{server.admin_port}"
    for address, secret, code in ((f"unix:{socket}", None, 0), (tcp, None, 1), (tcp, "wrong-wrong-wrong-wrong", 1),
                                  (tcp, token.read_text().strip(), 0)):
        for words in (["explain", "s3://bkt/k"], ["evict", "s3://bkt/k"], ["loglevel", "info"]):
            got = run_forebay(*words, env={"FOREBAY_ADMIN": address, **({"FOREBAY_ADMIN_TOKEN": secret} if secret else {})})
            assert got.returncode == code, (address, secret, words, got.stderr)
            assert code == 0 or "token" in got.stderr
        assert run_forebay("status", env={"FOREBAY_ADMIN": address}).returncode == 0
    everything = "\n".join(server.stderr + server.stdout)
    assert "0123456789abcdef0123456789abcdef" not in everything


@pytest.mark.parametrize("head, status", [
    (b"POST /api/v1/evict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n", 403),
    (b"POST /api/v1/evict HTTP/1.1\r\nHost: evil.example\r\nX-Forebay-Control: 1\r\nContent-Length: 0\r\n\r\n", 403),
    (b"GET /api/v1/explain?uri=s3://b/k HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
    (b"GET /api/v1/evict HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 405),
    (b"POST /api/v1/evict HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Forebay-Control: 1\r\nContent-Length: 9999999\r\n\r\n", 413),
])
def test_what_a_web_page_or_a_stranger_may_not(forebay, head, status):
    with Connection(forebay.admin_port) as connection:
        connection.send(head)
        assert connection.read_reply().status == status


def test_half_a_body_holds_nobody_up(forebay, origin):
    """Thirty callers that stop in the middle of a body; probes and commands go on."""
    held = [Connection(forebay.admin_port) for _ in range(30)]
    for connection in held:
        connection.send(b"POST /api/v1/evict HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Forebay-Control: 1\r\n"
                        b"Content-Length: 100\r\n\r\n{\"uris\":")
    assert forebay.admin("/livez").status == 200
    assert ask(forebay, "status")[-1]["ready"]
    origin.put("k", 10)
    read(forebay, "k")
    assert ask(forebay, "evict", "s3://bkt/k")[-1]["objects"] == 1
    for connection in held:
        connection.close()


def test_a_listing_that_hangs_holds_no_probe_up(start, origin):
    """The admin thread asks a worker and does not wait: a held listing leaves probes and totals alone."""
    server = start(origin)
    origin.put("k", 10)
    answers = []
    with origin.hold("", method="GET"):
        callers = [threading.Thread(target=lambda: answers.append(ask(server, "ls", "s3://bkt/"))) for _ in range(4)]
        for caller in callers:
            caller.start()
        origin.wait_for(4, method="GET")
        for _ in range(20):
            assert server.admin("/livez").status == 200
        assert ask(server, "status")[-1]["ready"]
        assert ask(server, "explain", "s3://bkt/k")[-1]["verdict"]["reason"] == "absent"
    for caller in callers:
        caller.join()
    assert len(answers) == 4


def test_events_tell_of_each_second(forebay, origin):
    origin.put("a", MIB)
    with Connection(forebay.admin_port) as connection:
        connection.send(request_bytes("GET", "/api/v1/events", "127.0.0.1"))
        head = connection.read_head()
        assert head.status == 200 and head.header("content-type") == "text/event-stream"
        text = b""
        while text.count(b"event: summary") < 2:
            text += connection.sock.recv(65536)
    assert b"bkt" not in text and b'"counters"' in text

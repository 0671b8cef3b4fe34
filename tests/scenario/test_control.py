# SPDX-License-Identifier: Apache-2.0
"""The control interface as people use it.

The tests cover commands that ask a running server, their output for people and, with --json, for
programs, and the rights they need. They also cover a server that is busy, degraded or ended.
"""

import json
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from client import Connection, judge, request_bytes
from forebay import PATIENT, run_forebay, scaled
from waiting import WAIT_S, wait_for

MIB = 1 << 20


def has_shape(value, shape, path="$"):
    """Whether VALUE has SHAPE: a type, a tuple of types, [SHAPE] for lists, {name: SHAPE} for
    objects with exactly these."""
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
JOB = {
    "id": int,
    "kind": str,
    "what": str,
    "state": str,
    "counted": bool,
    "objects": int,
    "objects_done": int,
    "objects_cached": int,
    "objects_failed": int,
    "objects_refused": int,
    "prefixes_failed": int,
    "bytes": int,
    "bytes_done": int,
    "bytes_fetched": int,
    "inflight": int,
    "waits": (str, type(None)),
    "waits_text": (str, type(None)),
    "elapsed_s": float,
    "rate": float,
    "eta_s": MAYBE,
    "failures": [str],
    "reasons": [{"count": int, "first": str}],
}
SAVINGS = {
    "bytes": int,
    "requests": int,
    "extra_requests": int,
    "cost_bytes": float,
    "cost_requests": float,
    "wait_s": (float, type(None)),
    "miss_s": (float, type(None)),
}
TOP_ROW = {"name": str, "requests": int, "requests_per_s": float, "hits": int, "bytes": int}
PIN = {"type": str, "uri": str, "prefix": bool, "ends_in_s": (int, type(None))}
PINS = {
    **RESULT,
    "kept": bool,
    "looking": bool,
    "pinned_bytes": int,
    "pinned_max_bytes": int,
    "count": int,
}
WARM = {
    "followed": {**RESULT, **JOB},
    "begun": {**RESULT, "job": int},
    "checked": {
        **RESULT,
        "objects": int,
        "objects_done": int,
        "objects_refused": int,
        "bytes": int,
        "bytes_done": int,
    },
}
ORIGIN = {
    "name": str,
    "answers": int,
    "first_byte_p50_s": MAYBE,
    "first_byte_p99_s": MAYBE,
    "first_byte_usual_s": MAYBE,
    "calls_limit": int,
    "calls_most": int,
    "calls_lowered": bool,
    "ended": int,
    "failed": int,
}
CONDITION = {"name": str, "severity": str, "text": str, "remedy": str, "since": float}
SHAPES = {
    "status": {
        "result": {
            **RESULT,
            "version": str,
            "uptime_s": float,
            "ready": bool,
            "reason": str,
            "conditions": [CONDITION],
            "unstored": dict,
            "byte_hit_ratio": float,
            "request_hit_ratio": float,
            "cache_bytes": int,
            "cache_held_bytes": int,
            "cache_reserved_bytes": int,
            "cache_capacity_bytes": int,
            "cache_objects": int,
            "cache_blocks": int,
            "requests": int,
            "requests_inflight": int,
            "fills_inflight": int,
            "served_memory_bytes": int,
            "served_disk_bytes": int,
            "served_origin_bytes": int,
            "origin_requests": int,
            "origin_received_bytes": int,
            "savings": SAVINGS,
            "origins": [ORIGIN],
        }
    },
    "stats": {
        "item": {
            "type": str,
            "time": float,
            "interval_s": float,
            "requests_per_s": float,
            "hit_ratio": float,
            "memory_bytes_per_s": float,
            "disk_bytes_per_s": float,
            "origin_bytes_per_s": float,
            "fetched_bytes_per_s": float,
            "first_byte_p50_s": float,
            "first_byte_p99_s": float,
            "evicted_blocks_per_s": float,
            "requests_inflight": float,
        },
        "result": {**RESULT, "lines": int},
    },
    "top": {
        "result": {
            **RESULT,
            "requests_per_s": float,
            "hit_ratio": float,
            "memory_bytes_per_s": float,
            "disk_bytes_per_s": float,
            "origin_bytes_per_s": float,
            "fetched_bytes_per_s": float,
            "first_byte_p50_s": float,
            "first_byte_p99_s": float,
            "evicted_blocks_per_s": float,
            "requests_inflight": float,
            "keys": [TOP_ROW],
            "buckets": [TOP_ROW],
            "origins": [ORIGIN],
            "reasons": [{"name": str, "requests": int, "requests_per_s": float, "remedy": str}],
        }
    },
    "log": {
        "item": None,
        "warning": {"type": str, "dropped": int},
        "result": {**RESULT, "lines": int, "dropped": int},
    },
    "trace": {
        "item": None,
        "warning": {"type": str, "dropped": int},
        "result": {**RESULT, "requests": int},
    },
    "explain": {
        "result": {
            **RESULT,
            "uri": str,
            "origin": str,
            "oddities": [{"word": str, "text": str}],
            "origin_bucket": str,
            "known": bool,
            "realms": bool,
            "answers": bool,
            "etag": (str, type(None)),
            "checksums": str,
            "size": int,
            "block_size": int,
            "age_s": MAYBE,
            "fresh": bool,
            "rebuilt": bool,
            "in_doubt": bool,
            "would_keep": bool,
            "home_worker": int,
            "blocks": int,
            "cached_blocks": int,
            "cached_bytes": int,
            "rule": {
                "match": str,
                "where": str,
                "cache": bool,
                "freshness": str,
                "ttl_s": float,
                "block_size": int,
                "max_object_size": int,
                "priority": int,
                "pin": bool,
                "share_percent": int,
            },
            "range": {
                "first": int,
                "end": int,
                "blocks": int,
                "cached_blocks": int,
                "cells": [[int]],
            },
            "policy": {
                "stores": bool,
                "keeps_up": bool,
                "learns": bool,
                "full": bool,
                "silent": bool,
                "group_bytes": int,
                "group_max_bytes": int,
                "pieces": [
                    {
                        "first_block": int,
                        "blocks": int,
                        "state": str,
                        "pinned": bool,
                        "on_probation": bool,
                        "priority": int,
                        "worth": float,
                        "bar": float,
                        "age_bytes": (int, type(None)),
                        "interval_bytes": int,
                    }
                ],
            },
            "excluded": (dict, type(None)),
            "verdict": {"reason": str, "text": str, "remedy": str},
        }
    },
    "ls": {
        "item": {
            "type": str,
            "uri": str,
            "key": str,
            "coded": bool,
            "size": int,
            "known": bool,
            "realms": bool,
            "answers": bool,
            "cached_bytes": int,
            "blocks": int,
            "cached_blocks": int,
            "fresh": bool,
            "changed": bool,
            "age_s": MAYBE,
            "excluded": (dict, type(None)),
        },
        "result": {**RESULT, **SUMS},
    },
    "du": {"item": {"type": str, "uri": str, **SUMS}, "result": {**RESULT, **SUMS}},
    "get": {
        "result": {
            **RESULT,
            "uri": str,
            "file": str,
            "bytes": int,
            "first_byte_s": float,
            "elapsed_s": float,
            "etag": str,
            "cache_status": str,
        }
    },
    "evict": {
        "item": {"type": str, "uri": str, "ok": bool, "cached_bytes": int},
        "result": {
            **RESULT,
            "objects": int,
            "bytes": int,
            "failed": int,
            "empty": int,
            "buckets": int,
            "dry_run": bool,
        },
        "warning": {"type": str, "reason": str},
    },
    "warm": {
        "item": None,
        "progress": {
            "type": str,
            "done": int,
            "total": int,
            "bytes": int,
            "rate": float,
            "eta": MAYBE,
        },
        "warning": {"type": str, "reason": str},
        "result": None,
    },
    "jobs": {"item": {"type": str, **JOB}, "result": {**RESULT, "jobs": int}},
    "scrub": {
        "progress": {
            "type": str,
            "done": int,
            "total": int,
            "bytes": int,
            "rate": float,
            "eta": MAYBE,
        },
        "result": {
            **RESULT,
            "state": str,
            "round": int,
            "segments": int,
            "segments_done": int,
            "segments_left_out": int,
            "runs": int,
            "bytes": int,
            "bad_runs": int,
            "elapsed_s": float,
            "rate": int,
            "possible": bool,
        },
    },
    "reload": {"result": {**RESULT, "errors": [str], "applied": [str], "needs_restart": [str]}},
    "loglevel": {"result": {**RESULT, "level": str}},
    "upgrade": {"result": {**RESULT, "pid": int, "next_pid": int}},
    "drain": {"result": {**RESULT, "draining": bool}},
    "pins": {"item": PIN, "result": PINS},
    "pin": {"item": {**PIN, "changed": bool}, "result": PINS},
    "unpin": {"item": {**PIN, "changed": bool}, "result": PINS},
}


def ask(server, *words, code=0, **more):
    """Runs a command against SERVER with --json. Returns its lines, the last of which is a result
    with that exit code."""
    got = run_forebay(
        *PATIENT,
        *words,
        "--json",
        env={"FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}", **more},
    )
    assert got.returncode == code, (words, got.returncode, got.stdout, got.stderr)
    lines = [json.loads(line) for line in got.stdout.splitlines()]
    assert (
        lines[-1]["type"] == "result"
        and lines[-1]["exit"] == code
        and lines[-1]["ok"] == (code == 0)
    )
    for line in lines:
        shape = SHAPES[words[0]][line["type"]] if code in (0, 5) else None
        if shape is None and words[0] == "warm" and line["type"] == "result" and code in (0, 5):
            shape = WARM[
                "checked"
                if {"--check", "--dry-run"} & set(words)
                else "followed"
                if "--wait" in words
                else "begun"
            ]
        if shape is not None:
            has_shape(line, shape)
    return lines


def said(server, *words, code=0):
    """Like ask(), with the output for people."""
    got = run_forebay(
        *PATIENT, *words, env={"FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"}
    )
    assert got.returncode == code, (words, got.returncode, got.stdout, got.stderr)
    return got.stdout + got.stderr


def read(server, *keys):
    with server.client() as client:
        for key in keys:
            assert client.get(key).status == 200
    server.settle()


# --- numbers --------------------------------------------------------------------------------------


def test_reserved_space_does_not_count_as_used(forebay):
    """A fresh cache reports no use, although it keeps space in reserve."""
    status = ask(forebay, "status")[-1]
    assert status["cache_held_bytes"] == 0 < status["cache_reserved_bytes"]
    assert "cache    0 B held of 1.0 GiB (" in said(forebay, "status")
    frame = said(forebay, "top")
    assert re.search(
        r"cache \[-*\.+\] 0 B held of 1.0 GiB \([0-9.]+ MiB reserved\), 0 objects", frame
    ), frame


def test_status_and_stats(forebay, origin):
    origin.put("a", 3 * MIB)
    read(forebay, "a", "a")
    forebay.wait_metric("forebay_cache_objects", lambda v: v == 1)
    forebay.wait_metric(
        "forebay_http_requests_total", lambda v: v == 2
    )  # their client has its reply first
    status = ask(forebay, "status")[-1]
    assert status["ready"] and status["conditions"] == [] and status["requests"] == 2
    assert status["served_origin_bytes"] == 3 * MIB and status["byte_hit_ratio"] == 0.5
    assert status["request_hit_ratio"] == 0.5 and status["cache_objects"] == 1
    assert status["cache_held_bytes"] + status["cache_reserved_bytes"] == status["cache_bytes"]
    assert status["origin_requests"] >= 1 and status["origin_received_bytes"] >= 3 * MIB
    savings = status["savings"]
    assert savings["bytes"] == 3 * MIB and savings["requests"] == 1 and savings["miss_s"] > 0
    assert savings["cost_bytes"] == pytest.approx(3 * MIB / 1e9 * 0.09)
    assert savings["cost_requests"] == pytest.approx(0.0004 / 1000)
    lines = ask(forebay, "stats", "-n", "2")
    assert [line["type"] for line in lines] == ["item", "item", "result"] and lines[-1][
        "lines"
    ] == 2
    text = said(forebay, "status")
    assert "saved    3.0 MiB and 1 requests of the origin\n" in text
    assert "worth    under $0.01 if the bytes leave the origin's region, else under $0.01" in text
    assert "ready" in text and "50.0 % of bytes" in text and "3.0 MiB from the origin" in text
    head, line = said(forebay, "stats", "--count", "1").splitlines()
    assert head.split()[:2] == ["req/s", "hit%"] and line.split()[0] == "0.0"


def test_status_says_that_readers_share_a_fetch(forebay, origin):
    """Two readers wait for the same bytes, which `status` counts for each of them. It says why the
    origin sent fewer."""
    origin.put("a", MIB)
    assert "several readers" not in said(forebay, "status")
    gate = threading.Event()
    origin.fault("a", "hold_at", (0, gate), times=None)  # after the head
    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read, forebay, "a") for _ in range(2)]
        forebay.wait_metric("forebay_coalesced_waiters", lambda v: v == 2)
        gate.set()
        for reader in readers:
            reader.result()
    forebay.wait_metric("forebay_http_requests_total", lambda v: v == 2)
    text = said(forebay, "status")
    assert "2.0 MiB from the origin" in text, text
    assert re.search(
        r"origin +[0-9]+ requests, 1\.0 MiB \(fetched once for several readers\)", text
    )


def test_status_says_what_a_cache_costs(forebay, origin):
    """If the origin got more requests than clients made, `status` does not call them saved."""
    for i in range(3):
        origin.put(f"a/{i}", 1000)
    ask(forebay, "warm", "s3://bkt/a/", "--wait")
    extra = len(origin.requests())
    text = said(forebay, "status")
    assert (
        f"saved    0 B of the origin, and cost {extra} more requests than without a cache\n" in text
    )
    assert ask(forebay, "status")[-1]["savings"]["extra_requests"] == extra >= 3
    for i in range(3):
        read(forebay, *[f"a/{i}"] * 3)
    forebay.wait_metric("forebay_http_requests_total", lambda v: v == 9)
    assert f"and {9 - extra} requests of the origin\n" in said(forebay, "status")


def test_a_degraded_server_says_so(start, origin, tmp_path):
    """If a file blocks the cache directory, the server relays everything and `status` ends with
    1."""
    (tmp_path / "file").write_text("")
    server = start(
        origin, settings={"cache.dir": str(tmp_path / "file" / "cache"), "cache.optional": "true"}
    )
    assert server.disk_trouble() == {"disk-degraded"}
    status = ask(server, "status", code=1)[-1]["conditions"][0]
    assert status["name"] == "disk-degraded" and status["severity"] == "critical"
    assert "critical disk-degraded for" in said(server, "status", code=1)
    origin.put("a", 100)
    assert ask(server, "explain", "s3://bkt/a")[-1]["verdict"]["reason"] == "disk-degraded"
    assert "nothing would be stored" in said(server, "warm", "s3://bkt/a", code=1)
    assert "there is nothing to verify" in said(server, "scrub", code=1)
    assert not origin.requests(key="a", method="GET")
    with server.client() as client:
        assert client.get("a").status == 200


@pytest.mark.parametrize(
    "words",
    [
        ["ls"],
        ["du", "x"],
        ["scrub", "--rate", "fast"],
        ["stats", "-i", "0"],
        ["warm", "x"],
        ["status", "--jsn"],
        ["loglevel", "loud"],
        ["evict", "--", "x", "y"],
        ["plan"],
    ],
)
def test_a_mistake_as_json(words):
    """The last line of JSON output is a result, even if the command failed before it began."""
    got = run_forebay(words[0], "--json", *words[1:])
    error, result = (json.loads(line) for line in got.stdout.splitlines())
    assert got.returncode == 2 and (result["type"], result["ok"], result["exit"]) == (
        "result",
        False,
        2,
    )
    assert error["type"] == "error" and error["reason"] in got.stderr


def test_no_server(tmp_path):
    """Without a server each command gives exit code 6 and one line with a remedy."""
    for words in (
        ["status"],
        ["stats", "-n", "1"],
        ["explain", "s3://b/k"],
        ["ls", "s3://b/"],
        ["du", "s3://b/"],
        ["evict", "s3://b/k"],
        ["scrub"],
        ["get", "s3://b/k", f"{tmp_path}/x"],
        ["top"],
        ["log"],
        ["trace", "x"],
        ["reload"],
        ["drain"],
        ["upgrade"],
        ["loglevel", "info"],
    ):
        got = run_forebay(*words, "--admin", f"unix:{tmp_path}/none", "--json")
        assert got.returncode == 6, (words, got)
        assert f"no server answers at unix:{tmp_path}/none (is it running?" in got.stderr
        assert [json.loads(line)["type"] for line in got.stdout.splitlines()] == ["error", "result"]
    env = {"FOREBAY_ADMIN_SOCKET": f"{tmp_path}/none", "FOREBAY_ADMIN_LISTEN": "127.0.0.1:1"}
    for words in (["status"], ["env"], ["check", "--live"]):
        got = run_forebay(*words, env=env)
        assert f"no server answers at unix:{tmp_path}/none or 127.0.0.1:1" in got.stderr


# --- what is cached -------------------------------------------------------------------------------


def test_explain_follows_an_object(start, origin, engine):
    """`explain` follows an object: absent, partly cached, cached, stale. It names a rule that
    excludes it, and the blocks of a range."""
    server = start(
        origin,
        engine=engine,
        settings={"cache.ttl": "60s"},
        ahead_s=0,
        file={
            "rules": [
                {"match": "bkt/never/**", "cache": False},
                {"match": "bkt/fixed/**", "freshness": "immutable"},
            ]
        },
    )
    origin.put("big", 9 * MIB + 5)
    origin.put("never/x", 1000)
    origin.put("fixed/x", 1000)

    def explain(*words):
        return ask(server, "explain", *words)[-1]

    first = explain("s3://bkt/big")
    assert (
        not first["known"]
        and first["verdict"]["reason"] == "absent"
        and first["rule"]["where"] == "default"
    )
    asked = [(entry.method, entry.key) for entry in origin.requests()]
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
    assert "last read" not in text  # the policy counts bytes, not time
    assert "10 of 10 blocks" in text and "■■■■" in text and "remedy" in text
    assert len(origin.requests()) == before  # it only looks,
    assert asked == [("HEAD", "big")]  # and asks whether an unknown object exists


def test_explain_suggests_no_warm_of_missing_objects(start, origin):
    """For a missing key or bucket, missing rights, or an origin that is down, `explain` does not
    suggest to warm the object."""
    origin.put("a", 100)
    origin.put("half", 4 * MIB)
    server = start(
        origin,
        settings={"origin.retries": 0, "cache.ttl": "1h"},
        file={"rules": [{"match": "bkt/n/**", "cache": False}]},
    )
    with server.client() as client:
        assert client.get("half", headers=[("Range", "bytes=0-9")]).status == 206
    server.settle()

    def explain(uri):
        said_text = said(server, "explain", uri)
        return ask(server, "explain", uri)[-1]["verdict"], said_text

    verdict, text = explain("s3://bkt/nothing")
    assert verdict["reason"] == "no-such-key" and "forebay ls" in text and "warm" not in text, text
    verdict, text = explain("s3://nobucket/a")
    assert verdict["reason"] in ("no-such-bucket", "no-such-key") and "warm" not in text, text
    assert explain("s3://bkt/a")[0]["reason"] == "absent"
    origin.fault("a", "error", (403, "AccessDenied", "No"), times=None)
    verdict, text = explain("s3://bkt/a")
    assert verdict["reason"] == "refused" and "doctor" in text, text
    origin.clear_faults()
    verdict, text = explain("s3://bkt/n/x")
    assert "): cache: false\n" in text and "blocks of" not in text and "min" not in text, text
    asked = origin.mark()
    assert ask(server, "warm", "--check", "s3://bkt/other", code=5)[-1]["objects"] == 1
    assert not origin.requests(key="other", since=asked), "to count asks nobody"
    origin.down()
    for uri in ("s3://bkt/nothing", "s3://bkt/nothing", "s3://bkt/half"):
        verdict, text = explain(uri)
        assert verdict["reason"] == "origin" and "warm" not in text, text
        assert "host and port of origin.endpoint" in text, text


def test_explain_says_what_keeps_an_unknown_object_out(start, origin):
    """Nothing is cached of an object that is too large or has a weak ETag. `explain` takes its size
    and headers from the origin, names the reason and the limit, and promises no next read."""
    origin.put("large", 3 * MIB)
    origin.put("small", MIB)
    origin.put("r/large", 2 * MIB)
    origin.put("weak", MIB)
    origin.fault("weak", "weak_etag", times=None)
    server = start(
        origin,
        settings={"cache.max_object_size": "2MiB"},
        file={"rules": [{"match": "bkt/r/**", "max_object_size": "1MiB"}]},
    )
    for _ in range(2):  # before a read, and after one
        for key, limit in (("large", "2.0 MiB"), ("r/large", "1.0 MiB")):
            text = said(server, "explain", f"s3://bkt/{key}")
            assert "verdict  too-large: " in text and "remedy   raise cache.max_object" in text, (
                text
            )
            assert f", max_object_size {limit}\n" in text and "object   " in text, text
            assert "policy  " not in text and "warm" not in text, text
        text = said(server, "explain", "s3://bkt/weak")
        assert "verdict  weak-etag: " in text and "policy  " not in text, text
        assert "verdict  absent: " in said(server, "explain", "s3://bkt/small")
        with server.client() as client:
            assert "detail=too-large" in client.get("large").header("cache-status")
            assert client.get("weak").status == 200
    told = ask(server, "explain", "s3://bkt/large")[-1]
    assert told["size"] == 3 * MIB and not told["known"] and not told["would_keep"], told


def test_a_silent_origin_delays_no_command(start, origin):
    """`explain` answers although the origin holds its request, and gives the origin as the
    reason."""
    origin.put("slow", 10)
    with origin.hold("slow"):
        server = start(origin, settings={"origin.retries": 0, "origin.first_byte_timeout": "1h"})
        verdict = ask(server, "explain", "s3://bkt/slow")[-1]["verdict"]
        assert verdict["reason"] == "origin" and "doctor" in verdict["remedy"], verdict


def test_explain_shows_how_a_full_cache_decides(start, origin):
    """A cache of 64 MiB whose objects are read repeatedly refuses a scan. `explain` shows the
    object's worth and the admission bar."""
    server = start(origin, settings={"cache.size": "64MiB", "cache.min_free": "0%"})
    hot = [f"hot/{i}" for i in range(40)]
    for key in hot:
        origin.put(key, MIB)
    for _ in range(3):
        read(server, *hot)
    told, refused = [], []
    while len(told) < 60 or not refused and len(told) < 600:
        if len(told) % 10 == 0:  # a full cache learns the worth of its objects from these reads
            read(server, *hot)
        key = f"scan/{len(told)}"
        origin.put(key, MIB)
        read(server, key)
        told.append(ask(server, "explain", f"s3://bkt/{key}")[-1])
        refused += [told[-1]] if told[-1]["verdict"]["reason"] == "not-admitted" else []
    assert refused and told[-1]["policy"]["full"] and told[-1]["policy"]["learns"]
    for one in refused:
        piece = [p for p in one["policy"]["pieces"] if p["state"] == "refused"][0]
        assert piece["worth"] <= piece["bar"] and "cache.size" in one["verdict"]["remedy"]
    kept = [
        p["state"]
        for key in hot
        for p in ask(server, "explain", f"s3://bkt/{key}")[-1]["policy"]["pieces"]
    ]
    assert kept.count("kept") > 20
    words = {
        re.search(r"^policy   (.*?)$", text, re.M)[1]
        for text in (said(server, "explain", f"bkt/{key}") for key in [*hot, "scan/1", "scan/2"])
        if "policy  " in text
    }
    known = (
        r"stored(, worth \d+\.\d times what is evicted next|, and among the next to be evicted)?"
        r"|the next read stores it|stored, not judged yet"
        r"|not stored: worth \d+ % of what would be evicted for it"
        r"|not stored: the cache is full, and no second read of it is known"
    )
    probation = r"(; on probation: it goes soon unless it is read again)?"
    assert words and all(re.fullmatch(f"({known}){probation}", text) for text in words), words


def test_ls_and_du(forebay, origin):
    """`ls` and `du` take names from the origin, page by page, including odd ones. They report
    objects that have changed there."""
    names = [f"set/{i // 300}/{i:04}" for i in range(1203)] + ["set/odd +&%/é\tx"]
    for name in names:
        origin.put(name, 100)
    origin.put("other", 100)
    read(forebay, "set/0/0001", "set/odd +&%/é\tx", "set/4/1201")
    mark = origin.mark()
    lines = ask(forebay, "ls", "s3://bkt/set/")
    assert [line["uri"] for line in lines[:-1]] == [
        "s3://bkt/set/0/0001",
        "s3://bkt/set/4/1201",
        "s3://bkt/set/odd +&%/é\tx",
    ]
    assert all(
        line["fresh"] and not line["changed"] and line["cached_bytes"] == 100 for line in lines[:-1]
    )
    assert (
        lines[-1]["objects"] == 1204
        and lines[-1]["cached_bytes"] == 300
        and lines[-1]["bytes"] == 120400
    )
    assert len(origin.requests(since=mark)) == 3
    assert len(ask(forebay, "ls", "s3://bkt/set/", "--all")) == 1205
    origin.overwrite("set/0/0001", 100)
    assert ask(forebay, "ls", "s3://bkt/set/0/")[0]["changed"]
    origin.put("none/0", 0)
    read(forebay, "none/0")
    assert ask(forebay, "ls", "s3://bkt/none/")[-1]["cached_objects"] == 1
    folders = ask(forebay, "du", "s3://bkt/set/")
    assert [line["uri"] for line in folders[:-1]] == [f"s3://bkt/set/{i}/" for i in range(5)] + [
        "s3://bkt/set/odd +&%/"
    ]
    assert folders[0]["objects"] == 300 and folders[0]["cached_bytes"] == 100
    assert "3 of 1204 objects  s3://bkt/set/" in said(forebay, "du", "s3://bkt/set/")
    assert "s3://bkt/set/4/1201" in said(forebay, "ls", "s3://bkt/set/4")
    for command in ("ls", "du"):
        assert "nothing lies below bkt/typo/: check" in said(forebay, command, "bkt/typo/")


def test_a_name_needs_no_scheme(forebay, origin, tmp_path):
    """BUCKET/KEY is short for s3://BUCKET/KEY in every command that takes a URI. A word without
    '/' is a mistake, because it would name a whole bucket."""
    origin.put("set/a", 100)
    origin.put("set/b", 200)
    assert ask(forebay, "warm", "bkt/set/", "--wait")[-1]["objects_done"] == 2
    forebay.settle()
    assert ask(forebay, "explain", "bkt/set/a")[-1]["verdict"]["reason"] == "hit"
    assert [line["uri"] for line in ask(forebay, "ls", "bkt/set/")[:-1]] == [
        "s3://bkt/set/a",
        "s3://bkt/set/b",
    ]
    assert ask(forebay, "du", "bkt/")[0]["uri"] == "s3://bkt/set/"
    ask(forebay, "get", "bkt/set/a", f"{tmp_path}/a")
    assert len((tmp_path / "a").read_bytes()) == 100
    ask(forebay, "pin", "bkt/set/a")
    ask(forebay, "unpin", "s3://bkt/set/a")
    assert ask(forebay, "evict", "bkt/set/a")[-1]["objects"] == 1
    (tmp_path / "names").write_text("bkt/set/a\n")
    assert ask(forebay, "warm", "-f", f"{tmp_path}/names", "--wait")[-1]["objects_done"] == 1
    for words in (["explain", "bkt"], ["evict", "bkt"], ["ls", "http://bkt/set/"], ["cat", "set"]):
        assert "expected s3://BUCKET/KEY or BUCKET/KEY" in said(forebay, *words, code=2)


def test_du_without_a_name_adds_up_each_bucket(forebay, origin):
    """`du` alone lists the buckets that were read since the start, and how full the cache is. A
    bucket that is gone does not hide the others."""
    assert "no bucket was read since" in said(forebay, "du")
    origin.make_bucket("other")
    origin.put("a", 100)
    origin.put("b", 300)
    origin.put("c", 700, bucket="other")
    read(forebay, "a")
    with forebay.client() as client:
        assert client.request("GET", "/other/c").status == 200
    forebay.settle()
    lines = ask(forebay, "du")
    assert {line["uri"]: line["cached_bytes"] for line in lines[:-1]} == {
        "s3://bkt/": 100,
        "s3://other/": 700,
    }
    assert lines[-1]["bytes"] == 1100 and lines[-1]["cached_bytes"] == 800
    assert re.search(r" of +1\.0 GiB  in the whole cache\n", said(forebay, "du"))


def test_names_send_no_control_characters_to_a_terminal(start, origin):
    """Control characters in keys, arguments and answers are printed in a visible form, not sent to
    the terminal. --json has them unchanged."""
    server, odd = start(origin), "o/\x1b]0;x\x07\n\x7f\x9b31m/é"
    shown = "o/\\x1b]0;x\\x07\\x0a\\x7f\\xc2\\x9b31m/"
    origin.put(odd, 100)
    read(server, odd)
    assert ask(server, "ls", "s3://bkt/o/")[0]["key"] == odd
    for words, code in (
        (("ls", "s3://bkt/o/"), 0),
        (("du", "s3://bkt/o/"), 0),
        (("evict", "s3://bkt/o/", "--dry-run"), 0),
        (("warm", f"s3://bkt/{odd}x", "--wait"), 4),
        (("jobs",), 0),
        (("evict", "s3://bkt/o/", "-v"), 0),
    ):
        text = said(server, *words, code=code)
        assert f"s3://bkt/{shown}" in text and text.replace("\n", "").isprintable(), (words, text)


def test_arguments_that_are_not_utf8_are_refused(forebay, origin, tmp_path):
    """Commands that send URIs in JSON refuse one that is not UTF-8, whether it is an operand or a
    line of a list, and also if they only read. `ls` and `loglevel` do not fail on one."""
    odd, text = os.fsdecode(b"s3://bkt/\xff"), "bkt/\\xff: not UTF-8"
    listed = tmp_path / "list"
    listed.write_bytes(b"s3://bkt/\xff\n")
    for words in (
        ("evict", odd),
        ("evict", odd, "--dry-run"),
        ("pin", odd),
        ("unpin", odd),
        ("warm", odd),
        ("warm", odd, "--check"),
        ("warm", odd, "--dry-run"),
        ("warm", odd, "--pin"),
        ("warm", odd + "/", "--dry-run"),
        ("warm", "-f", str(listed), "--dry-run"),
    ):
        assert text.removesuffix(": not UTF-8") in said(forebay, *words, code=2), words
        lines = ask(forebay, *words, code=2)
        assert "not UTF-8" in lines[0]["reason"] and "\\xff" in lines[0]["reason"], (words, lines)
    assert not [entry for entry in origin.requests() if entry.key]
    assert ask(forebay, "ls", odd)[-1]["objects"] == 0
    said(forebay, "loglevel", os.fsdecode(b"\xff"), code=2)


def test_a_file_that_is_not_utf8_is_percent_coded_in_json(forebay, origin, tmp_path):
    """The result of `get` names a file that is not UTF-8 in percent coding."""
    origin.put("k", 10)
    got = ask(forebay, "get", "s3://bkt/k", os.fsdecode(bytes(tmp_path) + b"/\xff"))[-1]
    assert got["file"].endswith("/%FF") and got["uri"] == "s3://bkt/k" and got["bytes"] == 10


def test_paths_that_are_no_text(start, tmp_path):
    """Answers are valid JSON even if they name paths that are not text: the file of a rule, the
    directory of the origin, a socket."""
    name = os.fsdecode(b"\xff")
    (tmp_path / f"o{name}").mkdir()
    server = start(
        f"dir:{tmp_path}/o{name}",
        name=name,
        file={"rules": [{"match": "bkt/*"}]},
        settings={"listen": f"127.0.0.1:0,unix:{tmp_path}/s{name}"},
    )
    assert "/%FF/forebay.yaml" in ask(server, "explain", "s3://bkt/k")[-1]["rule"]["where"]
    assert server.admin("/version").status == 200


def test_a_listing_that_leads_in_a_circle_ends(start, origin):
    """A page that names itself as the next one is an error, for commands and for a job. A NUL in a
    name is not."""

    class Circle(origin.connection_class):
        def _xml(self, entry, xml, status=200):
            end, more = (
                "<IsTruncated>false<",
                "<NextContinuationToken>AA==</NextContinuationToken><IsTruncated>true<",
            )
            super()._xml(entry, xml.replace(end, more) if turns else xml, status)

    turns, origin.connection_class = False, Circle
    server = start(origin)
    origin.put("n\0l", 10)
    assert "s3://bkt/n%00l" in said(server, "ls", "s3://bkt/", "--all")
    turns, mark = True, origin.mark()
    assert "cannot list it" in said(server, "ls", "s3://bkt/", code=4)
    ask(server, "warm", "s3://bkt/", "--wait", code=5)
    assert len(origin.requests(since=mark)) == 5  # two pages each, and the object


def test_commands_that_list_end_with_4_if_the_origin_does_not_list(forebay, origin):
    for command in ("ls", "du", "evict"):
        assert "bucket does not exist" in said(forebay, command, "s3://nobody/p/", code=4)
        assert "4 when" in " ".join(run_forebay("help", command).stdout.split()), command
    for words in (
        ["ls", "bkt"],
        ["ls", "s3://"],
        ["explain", "s3://bkt"],
        ["explain", "s3://bkt/k", "--range", "5-4"],
        ["evict", "http://x/y"],
        ["loglevel", "loud"],
        ["stats", "-n", "0"],
        ["stats", "-n", "1", "--count", "1"],
    ):
        said(forebay, *words, code=2)
    origin.down()
    assert "the origin cannot list it" in said(forebay, "ls", "s3://bkt/", code=4)


def test_evicted_objects_are_fetched_again(forebay, origin):
    """After `evict` of an object, a prefix or a bucket, the next read fetches again, and no client
    gets the old copy. A dry run prints the same and changes nothing."""
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
    for key in ("q/", "q/x*"):  # names that end as prefixes do are objects here
        origin.put(key, 100)
        read(forebay, key)
        assert ask(forebay, "explain", f"s3://bkt/{key}")[-1]["verdict"]["reason"] == "hit"
    assert ask(forebay, "evict", "s3://bkt/q/")[-1]["objects"] == 3
    assert fetched("q/", "q/1", "q/x*") == ["q/", "q/1", "q/x*"]
    assert ask(forebay, "evict", "s3://bkt")[-1]["buckets"] == 1
    assert fetched("a", "p/1", "p/2", "q/1") == ["a", "p/1", "p/2", "q/1"]


def test_an_evicted_bucket_leaves_its_room_to_what_is_stored_next(start, origin):
    """The objects of an evicted bucket do not count any more. Their bytes on disk do not keep other
    objects out of the cache, although they were read more often."""
    forebay = start(origin, settings={"cache.size": "96MiB", "cache.ttl": "1d"})
    for key in range(40):
        origin.put(f"a/{key}", MIB)
    for _ in range(3):
        ask(forebay, "warm", "s3://bkt/a/", "--wait")  # fails if an object is not kept
        read(forebay, *(f"a/{key}" for key in range(40)))
        assert ask(forebay, "evict", "s3://bkt")[-1]["objects"] == 40
        forebay.wait_metric("forebay_cache_objects", lambda v: v == 0)


def test_evict_refuses_names_that_the_origin_does_not_know(forebay, origin):
    """A URI of which nothing was cached and that the origin does not know is probably misspelt. It
    has a warning, and a non-zero exit code unless --allow-empty is given."""
    for key in ("train/1", "train/2", "trainer"):
        origin.put(key, 1000)
    read(forebay, "train/1", "train/2")
    for uri, hint in (
        ("s3://bkt/trian/", "the origin lists nothing there: check its spelling"),
        ("s3://bkt/train", "the origin lists objects below it: end the name with /"),
        ("s3://bkt/trian", "check its spelling"),
    ):
        for words in ((uri,), (uri, "--dry-run")):
            text = said(forebay, "evict", *words, code=1)
            assert hint in text and "--allow-empty accepts that" in text, (words, text)
            assert "evicted" not in text and "would" not in text, (words, text)
        lines = ask(forebay, "evict", uri, "--allow-empty")
        assert [line["type"] for line in lines] == ["result"] and lines[-1]["empty"] == 1
    assert "no such bucket" in said(forebay, "evict", "s3://bkkt", code=1)
    mark = origin.mark()
    many = [f"s3://bkt/none{i}" for i in range(40)]
    assert ask(forebay, "evict", *many, "--allow-empty")[-1]["empty"] == 40
    assert not origin.requests(since=mark)
    lines = ask(forebay, "evict", "s3://bkt/trian/", "s3://bkt/train/", code=5)
    assert lines[-1]["objects"] == 2 and lines[-1]["empty"] == 1


def test_evict_says_so_if_nothing_was_cached(forebay, origin):
    """A script that evicts what it has changed does not fail because nobody had read it."""
    for key in ("other/1", "other/10", "one"):
        origin.put(key, 1000)
    for uri in ("s3://bkt/other/", "s3://bkt/other/1", "s3://bkt/one", "s3://bkt"):
        text = said(forebay, "evict", uri)
        assert f"nothing of {uri} was cached" in text and "--allow-empty" not in text, text
        (warning, result) = ask(forebay, "evict", uri)
        assert warning["type"] == "warning" and result["empty"] == 1, (warning, result)


def test_evict_of_a_prefix_or_bucket_says_how_much_it_was(forebay, origin):
    """A prefix and a bucket have one line with the evicted bytes. -v adds a line for each object of
    a prefix. A bucket that the origin does not list is evicted too."""
    for key in ("p/1", "p/2"):
        origin.put(key, MIB)

    def evicted(*words):
        read(forebay, "p/1", "p/2")
        lines = said(forebay, "evict", *words).splitlines()
        return [line.split()[1:] for line in lines if line.startswith("evicted  ")]

    assert evicted("s3://bkt/p/") == [["2.0", "MiB", "s3://bkt/p/"]]
    assert evicted("s3://bkt/p/", "-v") == [
        ["1.0", "MiB", "s3://bkt/p/1"],
        ["1.0", "MiB", "s3://bkt/p/2"],
        ["2.0", "MiB", "s3://bkt/p/"],
    ]
    assert evicted("s3://bkt") == [["2.0", "MiB", "s3://bkt"]]
    read(forebay, "p/1", "p/2")
    origin.down()
    assert "how much of s3://bkt was cached is not known" in said(forebay, "evict", "s3://bkt")


@pytest.mark.parametrize("uri", ["s3://bkt", "s3://bkt/p/", "s3://bkt/p/1"])
def test_evict_that_fails_says_of_nothing_that_it_was_evicted(start, origin, engine, tmp_path, uri):
    """If no server answers, `evict` prints no total. If the disk refuses, neither the total nor
    the line of a prefix or bucket says that something was evicted, and the exit code is 1."""
    gate = tmp_path / "refuses"
    faults = ",".join(f"store.{what}:file={gate}:eio" for what in ("commit", "disown", "remove"))
    server = start(origin, engine=engine, env={"FOREBAY_DISK_FAULTS": faults})
    for key in ("p/1", "p/2"):
        origin.put(key, MIB)
    read(server, "p/1", "p/2")
    server.wait_metric("forebay_cache_objects", lambda v: v == 2)  # on disk by now
    gate.write_text("")
    (server.cache / "format.new").mkdir()
    text = said(server, "evict", uri, code=1)
    assert "FAILED" in text and "evicted" not in text, text
    result = ask(server, "evict", "s3://bkt", code=1)[-1]
    assert (result["objects"], result["bytes"], result["failed"]) == (0, 0, 1), result
    server.kill9()
    assert "evicted" not in said(server, "evict", "s3://bkt/p/1", code=6)


def test_evict_during_a_fetch(start, origin, engine):
    """The reader of a run in flight gets its version to the end. The next reader gets a new fetch
    from the origin."""
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


# --- warm -----------------------------------------------------------------------------------------


def test_warm_fetches_once_and_only_what_is_missing(forebay, origin):
    """`warm` fetches only missing bytes, and each once: prefixes over several pages, objects of
    several runs, ranges, a list. A second run fetches nothing."""
    for i in range(1100):
        origin.put(f"set/{i:04}", 3000)
    origin.put("big", 21 * MIB + 7)
    origin.put("part", 40 * MIB)
    origin.put("empty", 0)
    read(forebay, "set/0007")
    mark = origin.mark()
    lines = ask(forebay, "warm", "s3://bkt/set/", "s3://bkt/big", "s3://bkt/empty", "--wait", "-q")
    done = lines[-1]
    assert done["objects"] == done["objects_done"] == 1102 and done["objects_failed"] == 0
    assert done["bytes"] == done["bytes_done"] == 1100 * 3000 + 21 * MIB + 7
    assert done["objects_cached"] == 1 and done["bytes_fetched"] == 1099 * 3000 + 21 * MIB + 7
    gets = [e.key for e in origin.requests(method="GET", since=mark) if e.key]
    assert len([k for k in gets if k.startswith("set/")]) == 1099 and "set/0007" not in gets
    assert origin.sent_twice("big") == 0
    forebay.settle()
    mark = origin.mark()
    again = ask(forebay, "warm", "s3://bkt/set/", "s3://bkt/big", "s3://bkt/empty", "--wait", "-q")[
        -1
    ]
    assert (
        again["objects_cached"] == 1102
        and again["bytes_fetched"] == 0
        and again["bytes_done"] == again["bytes"]
    )
    read(forebay, "set/0000", "set/1099", "big", "empty")
    assert [e.key for e in origin.requests(method="GET", since=mark) if e.key] == []
    listed = forebay.folder / "list"
    listed.write_text(f"# a list\ns3://bkt/part {8 * MIB}-{16 * MIB - 1}\n\ns3://bkt/set/0001\n")
    part = ask(forebay, "warm", "-f", listed, "--wait", "-q")[-1]
    assert part["objects_done"] == 2 and part["bytes_fetched"] == 8 * MIB == part["bytes"] - 3000
    assert ask(forebay, "warm", "-f", listed, "--check")[-1]["objects_done"] == 2
    check = ask(forebay, "warm", "s3://bkt/part", "--check", "--min", "30%", code=5)[-1]
    assert check["bytes_done"] == 8 * MIB and check["bytes"] == 40 * MIB
    assert ask(forebay, "warm", "s3://bkt/part", "--check", "--min", "20%")[-1]["ok"]


def test_savings_do_not_take_the_fetches_of_a_warm_job_for_misses(forebay, origin):
    """After `warm` and hits only, no time is named, because the fetches of the job say nothing of
    how long a reader would have waited. The first miss of a reader is the measure."""
    for key in ("s/1", "s/2", "late"):
        origin.put(key, MIB)
    ask(forebay, "warm", "s3://bkt/s/", "--wait", "-q")
    read(forebay, "s/1", "s/2")
    savings = ask(forebay, "status")[-1]["savings"]
    assert savings["wait_s"] is None and savings["miss_s"] is None, savings
    assert "of waiting" not in said(forebay, "status")
    read(forebay, "late")
    assert ask(forebay, "status")[-1]["savings"]["miss_s"] > 0


def test_warm_follows_what_changes(forebay, origin):
    """`warm` replaces a version that the listing no longer names. Readers get the new one without a
    revalidation."""
    for i in range(20):
        origin.put(f"s/{i}", 5000)
    ask(forebay, "warm", "s3://bkt/s/", "--wait", "-q")
    forebay.settle()
    origin.overwrite("s/3", 6000)
    origin.delete("s/4")
    done = ask(forebay, "warm", "s3://bkt/s/", "--wait", "-q")[-1]
    assert done["objects"] == done["objects_done"] == 19 and done["objects_cached"] == 18
    assert done["bytes_fetched"] == 6000
    mark = origin.mark()
    with forebay.client() as client:
        assert client.get("s/3").etag == origin.version("s/3").etag
    assert origin.requests(key="s/3", since=mark) == []


def test_warm_counts_what_fails(forebay, origin):
    """`warm` reports missing and denied objects in words and by its exit code. It fetches the
    others."""
    for i in range(5):
        origin.put(f"f/{i}", 1000)
    origin.fault("f/2", "error", (403, "AccessDenied"), times=100)
    lines = ask(forebay, "warm", "s3://bkt/f/", "s3://bkt/none", "--wait", code=5)
    assert lines[-1]["objects_failed"] == 2 and lines[-1]["objects_done"] == 4
    warnings = sorted(line["reason"] for line in lines if line["type"] == "warning")
    assert [w.split(": ")[0] for w in warnings] == ["s3://bkt/f/2", "s3://bkt/none"]
    assert ask(forebay, "warm", "s3://bkt/f/", "--wait", "--min", "50%")[-1]["ok"]
    lines = ask(forebay, "warm", "s3://bkt/f", "--wait", code=4)
    assert lines[0]["reason"] == "s3://bkt/f: there is no such object; a prefix ends in / or *"
    ask(forebay, "warm", "s3://nobody/", "--wait", code=4)
    said(forebay, "warm", code=2)
    said(forebay, "warm", "s3://bkt/x", "--rate", "1", code=2)


def test_only_an_idle_job_makes_room_for_another(start, origin):
    """Of 32 jobs, one that works makes no room for a new one, even while it waits for its second
    page. An idle job without names does."""

    class Slow(origin.connection_class):
        def _xml(self, entry, xml, status=200):
            assert "continuation-token" not in entry.query or go.wait(60)
            super()._xml(entry, xml, status)

    go, origin.connection_class = threading.Event(), Slow
    server = start(origin)
    for i in range(501):
        origin.put(f"w/{i:03}", 10)
    origin.put("k", 10)
    idle = b'{"uris": [], "more": true}'
    with Connection(server.admin_port) as connection:
        connection.send(
            b"POST /api/v1/warm HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Forebay-Control: 1\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(idle), idle)
        )
        assert connection.read_reply().status == 200
    for _ in range(31):
        ask(server, "warm", "s3://bkt/w/")
    wait_for(
        lambda: all(j["objects_done"] == 500 for j in ask(server, "jobs")[1:-1]), "the first pages"
    )
    ask(server, "warm", "s3://bkt/w/")
    assert {job["id"] for job in ask(server, "jobs")[:-1]} == set(range(2, 34))
    assert "too many jobs" in said(server, "warm", "s3://bkt/k", code=1)
    go.set()
    wait_for(lambda: all(j["state"] == "done" for j in ask(server, "jobs")[:-1]), "the end of all")


def test_warm_refuses_objects_that_a_rule_excludes(start, origin):
    """Objects that a rule excludes are no failure of the origin. `warm` refuses them, sends no
    request, and its exit code is 5."""
    server = start(
        origin,
        file={
            "rules": [
                {"match": "bkt/no/*", "cache": False},
                {"match": "bkt/big/*", "max_object_size": 10},
            ]
        },
    )
    origin.put("no/1", 100)
    origin.put("big/1", 100)
    for what in ("no", "big"):
        done = ask(server, "warm", f"s3://bkt/{what}/", "--wait", code=5)[-1]
        assert (done["objects_refused"], done["objects_failed"]) == (1, 0)
    assert not origin.requests(key="no/1") + origin.requests(key="big/1")


def test_warm_goes_on_without_its_command_and_can_be_cancelled(start, origin):
    """A warm job keeps its concurrency, and readers go first. It is listed, can be cancelled, and
    its server can stop during it."""
    server = start(origin, settings={"origin.connections": "64"})
    for i in range(60):
        origin.put(f"h/{i:02}", 1000)
    origin.put("demand", 100)
    holds = [origin.hold(f"h/{i:02}") for i in range(60)]
    for hold in holds:
        hold.__enter__()
    job = ask(server, "warm", "s3://bkt/h/", "--jobs", "8")[-1]["job"]
    origin.wait_for(8, method="GET", query=None)
    shown = ask(server, "jobs")[0]
    assert shown["id"] == job and shown["state"] == "running" and shown["inflight"] == 8
    read_now = []
    with server.client() as client:
        read_now.append(client.get("demand").status)
    assert read_now == [200]
    assert ask(server, "jobs")[0]["inflight"] == 8
    said(server, "jobs", "cancel", job)
    server.wait_metric("forebay_fills_inflight", lambda v: v == 0)
    assert ask(server, "jobs")[0]["state"] == "cancelled"
    said(server, "jobs", "cancel", 77, code=1)
    assert "cancelled" in said(server, "jobs")
    ask(server, "warm", "s3://bkt/h/", "--jobs", "4")
    server.wait_metric("forebay_fills_inflight", lambda v: v == 4)
    server.stop()  # does not wait for the requests of a job
    for hold in holds:
        hold.__exit__(None, None, None)


def test_warm_resumes_after_a_crash(start, origin, engine):
    """After kill -9 during a job, the same command fetches only the rest."""
    server = start(origin, engine=engine)
    for i in range(200):
        origin.put(f"k/{i:03}", 20000)
    with origin.hold("k/150"):
        ask(server, "warm", "s3://bkt/k/", "--jobs", "1")
        origin.wait_for(1, key="k/150")
        server.wait_metric("forebay_cache_objects", lambda v: v == 150)  # on disk by now
        server.kill9()
    server.start()
    mark = origin.mark()
    done = ask(server, "warm", "s3://bkt/k/", "--wait", "-q")[-1]
    assert done["objects_done"] == 200 and done["objects_cached"] == 150
    assert len([e for e in origin.requests(method="GET", since=mark) if e.key]) == 50


def test_warm_keeps_its_slots_at_the_origin_busy(start, origin, figure):
    """With an origin that takes 30 ms, all requests of a job are in flight at any time between its
    first and last page."""
    server = start(origin, settings={"access_log.path": "off"})
    count, jobs, seen = scaled(10000, least=1500), 16, []
    for i in range(count):
        origin.put(f"c/{i:05}", 100)
    origin.delay_s = 0.03
    job = ask(server, "warm", "s3://bkt/c/", "--jobs", jobs)[-1]["job"]
    while (now := json.loads(bytes(server.admin(f"/api/v1/jobs/{job}").body)))[
        "state"
    ] == "running":
        if jobs < now["objects_done"] < count - 2 * jobs:
            seen.append(now["inflight"])
    assert now["objects_done"] == count
    busy = sum(seen) / len(seen) / jobs
    figure(
        f"warm, {count} objects from 30 ms: {busy:.2f} of its {jobs} places busy, "
        f"{count * 0.03 / now['elapsed_s'] / jobs:.2f} of what 30 ms each would allow"
    )
    assert busy >= 0.95, busy


# --- orders ---------------------------------------------------------------------------------------


def test_reload_reports_its_result(start, origin):
    """`reload` names the applied settings and those that wait for a restart. For a refused file it
    names the place, and nothing changes."""
    server = start(origin, file={"cache": {"min_free": "5%"}})
    assert ask(server, "reload")[-1]["needs_restart"] == []
    path = server.folder / "forebay.yaml"
    path.write_text(
        json.dumps(
            {"cache": {"min_free": "4%", "ttl": "7s", "policy": "lru"}, "io": {"threads": 3}}
        )
    )
    answer = ask(server, "reload")[-1]
    assert answer["applied"] == ["cache.min_free", "cache.ttl"]
    assert answer["needs_restart"] == ["cache.policy", "io.threads"]
    assert "needs a restart: cache.policy, io.threads\n" in said(server, "reload")
    assert ask(server, "reload")[-1]["applied"] == []  # nothing has changed since
    path.write_text('{"cache": {"min_fre": "4%"}}')
    refused = ask(server, "reload", code=3)[-1]
    assert "forebay.yaml:1:" in refused["errors"][0] and "cache.min_free" in refused["errors"][0]
    text = said(server, "reload", code=3)
    assert "forebay.yaml:1:" in text and "everything stays as it was" in text
    assert "reload-refused" in server.conditions()


def test_loglevel_and_drain(start, origin):
    server = start(origin)
    assert ask(server, "loglevel", "debug")[-1]["level"] == "debug"
    assert ask(server, "loglevel", "info")[-1]["level"] == "info"
    server.expect_failure = True  # it ends by itself
    assert ask(server, "drain")[-1]["draining"]
    assert server.process.wait(WAIT_S) == 0


def test_drain_waits_for_the_end_of_the_server(start, origin):
    """`drain --wait` returns when the server has ended its requests, and released its ports and its
    cache: a server with the same ones starts at once."""
    server = start(origin)
    origin.put("a", 8 << 20)
    gate = threading.Event()
    origin.fault("a", "hold_at", (1 << 20, gate))
    client = server.connection()
    client.send(request_bytes("GET", "/bkt/a", "127.0.0.1"))
    origin.wait_for(1, key="a")
    server.expect_failure = True  # it ends by itself
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, server, "drain", "--wait")
        server.wait_condition("draining")
        assert not waiting.done()
        gate.set()
        judge(client.read_reply(), origin, "a", 0, 8 << 20)
        client.close()
        result = waiting.result(WAIT_S)[-1]
    assert result["draining"]
    assert server.wait_exit() == 0
    server.start()


# --- who may --------------------------------------------------------------------------------------


def test_rights_over_socket_loopback_and_token(start, origin, tmp_path):
    """The server trusts no loopback client. The socket has all rights, the token too, and others
    see only totals."""
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)
    socket = tmp_path / "s"
    server = start(
        origin,
        settings={
            "admin.socket": str(socket),
            "admin.token_file": str(token),
            "admin.trust_loopback": "false",
        },
    )
    assert os.stat(socket).st_mode & 0o777 == 0o600
    tcp = f"http://127.0.0.1:{server.admin_port}"
    for address, secret, code in (
        (f"unix:{socket}", None, 0),
        (tcp, None, 1),
        (tcp, "wrong-wrong-wrong-wrong", 1),
        (tcp, token.read_text().strip(), 0),
    ):
        for words in (
            ["explain", "s3://bkt/k"],
            ["evict", "--allow-empty", "s3://bkt/k"],
            ["loglevel", "info"],
        ):
            got = run_forebay(
                *PATIENT,
                *words,
                env={
                    "FOREBAY_ADMIN": address,
                    **({"FOREBAY_ADMIN_TOKEN": secret} if secret else {}),
                },
            )
            assert got.returncode == code, (address, secret, words, got.stderr)
            assert code == 0 or "token" in got.stderr
            if address == tcp and secret is None:
                assert "from this machine" not in got.stderr, "the setting forbids that"
                assert f"--admin unix:{socket}, as root" in got.stderr
        assert run_forebay(*PATIENT, "status", env={"FOREBAY_ADMIN": address}).returncode == 0
    everything = "\n".join(server.stderr + server.stdout)
    assert "0123456789abcdef0123456789abcdef" not in everything


@pytest.mark.parametrize(
    "head, status",
    [
        (b"POST /api/v1/evict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n", 403),
        (
            b"POST /api/v1/evict HTTP/1.1\r\nHost: evil.example\r\n"
            b"X-Forebay-Control: 1\r\nContent-Length: 0\r\n\r\n",
            403,
        ),
        (b"GET /api/v1/explain?uri=s3://b/k HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
        (b"GET /api/v1/evict HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 405),
        (b"GET /api/v1/requests HTTP/1.1\r\nHost: 127.0.0.1:80@evil.example\r\n\r\n", 403),
        (b"GET /api/v1/requests HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n", 400),
        (
            b"GET /api/v1/requests HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            b"Authorization: a\r\nAuthorization: b\r\n\r\n",
            400,
        ),
        (
            b"GET /api/v1/ls?uri=s3://bkt/ HTTP/1.1\r\n"
            b"Host: 127.0.0.1\r\nSec-Fetch-Site: cross-site\r\n\r\n",
            403,
        ),
        (b"GET /api/v1/log HTTP/1.1\r\nHost: 127.0.0.1\r\nSec-Fetch-Site: same-site\r\n\r\n", 403),
        (
            b"GET /api/v1/requests HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            b"Sec-Fetch-Site: same-origin\r\n\r\n",
            200,
        ),
        (
            b"GET /api/v1/requests HTTP/1.1\r\n"
            b"Host: localhost:9001\r\nSec-Fetch-Site: none\r\n\r\n",
            200,
        ),
        (
            b"POST /api/v1/evict HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            b"X-Forebay-Control: 1\r\nContent-Length: 9999999\r\n\r\n",
            413,
        ),
    ],
)
def test_web_pages_and_strangers_have_no_rights(forebay, head, status):
    with Connection(forebay.admin_port) as connection:
        connection.send(head)
        assert connection.read_reply().status == status


def test_half_a_body_holds_nobody_up(forebay, origin):
    """Thirty callers stop in the middle of a body. Probes and commands still work."""
    held = [Connection(forebay.admin_port) for _ in range(30)]
    for connection in held:
        connection.send(
            b"POST /api/v1/evict HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Forebay-Control: 1\r\n"
            b'Content-Length: 100\r\n\r\n{"uris":'
        )
    assert forebay.admin("/livez").status == 200
    assert ask(forebay, "status")[-1]["ready"]
    origin.put("k", 10)
    read(forebay, "k")
    assert ask(forebay, "evict", "s3://bkt/k")[-1]["objects"] == 1
    for connection in held:
        connection.close()


def test_a_listing_that_hangs_holds_no_probe_up(start, origin):
    """The admin thread asks a worker and does not wait. A listing that hangs does not delay probes
    and totals."""
    server = start(origin)
    origin.put("k", 10)
    answers = []
    with origin.hold("", method="GET"):
        callers = [
            threading.Thread(target=lambda: answers.append(ask(server, "ls", "s3://bkt/")))
            for _ in range(4)
        ]
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


def test_events_report_each_second(forebay, origin):
    origin.put("a", MIB)
    with Connection(forebay.admin_port) as connection:
        connection.send(request_bytes("GET", "/api/v1/events", "127.0.0.1"))
        head = connection.read_head()
        assert head.status == 200 and head.header("content-type") == "text/event-stream"
        text = b""
        while text.count(b"event: summary") < 2:
            text += connection.sock.recv(65536)
    assert b"bkt" not in text and b'"counters"' in text

# SPDX-License-Identifier: Apache-2.0
"""Every command with --json prints objects of one shape. The last is of type result, with ok and
the exit code.

SHAPES in test_control.py has the shapes of commands that ask a server. The others are here.
"""

import json
import re

import pytest
from forebay import KEYS, run_forebay
from test_control import NUMBER, RESULT, SHAPES, has_shape

TEXT = (str, type(None))
SETTING = {"type": str, "key": str, "value": str, "source": str, "reload": str, "now": TEXT}
REPLAYED = {"hit_ratio": float, "origin_bytes": int, "origin_requests": int, "cost": float}
ALONE = {
    "check": {
        "item": SETTING,
        "bucket": {"type": str, "name": str, "origin": str, "source": str, "fields": dict},
        "rule": {"type": str, "match": str, "source": str, "fields": dict},
        "result": {**RESULT, "file": TEXT},
    },
    "check --explain": {
        "item": {
            "type": str,
            "match": TEXT,
            "source": TEXT,
            "cache": bool,
            "freshness": str,
            "ttl_s": float,
            "stale_if_error_s": float,
            "list_ttl_s": float,
            "block_size": int,
            "max_object_size": int,
            "readahead": int,
            "priority": int,
            "pin": bool,
            "share_percent": int,
        },
        "result": {**RESULT, "file": TEXT},
    },
    "doctor": {
        "item": {"type": str, "check": str, "state": str, "found": str, "remedy": str},
        "result": {**RESULT, "green": int, "yellow": int, "red": int},
    },
    "bench": {
        "result": {
            **RESULT,
            "disk": int,
            "origin_one": int,
            "origin": int,
            "origin_connections": int,
            "cold": int,
            "warm": int,
            "random_per_second": float,
            "first_byte_p50": float,
            "first_byte_p99": float,
            "bytes": int,
            "bucket": str,
            "key": str,
        }
    },
    "plan": {
        "item": {
            "type": str,
            "cache": int,
            "each_reads_all": REPLAYED,
            "nodes_share": REPLAYED,
            "gateway": REPLAYED,
        },
        "result": {
            **RESULT,
            "holds_all": int,
            "price_gb": NUMBER,
            "price_requests": NUMBER,
            "request_bytes": int,
            "uncached_cost": float,
        },
    },
    "profile": {
        "item": None,
        "result": {
            **RESULT,
            "lines": int,
            "unreadable": int,
            "left_out": int,
            "bytes": int,
            "different": int,
        },
    },
    "keys": {
        "result": {
            **RESULT,
            "name": str,
            "id": str,
            "secret": str,
            "allow": [{"bucket": str, "prefix": str, "ops": [str]}],
        }
    },
    "prepare": {"result": {**RESULT, "text": str}},
    "version": {
        "result": {
            **RESULT,
            "version": str,
            "revision": str,
            "build": str,
            "kernel": str,
            "libraries": None,
        }
    },
}
ERROR = {"type": str, "reason": str}
PROFILED = [
    {"type": str, "cache": int, "hit_ratio": float, "byte_hit_ratio": float, "origin_bytes": int},
    {"type": str, "prefix": str, "bytes": int, "reads": int},
]
LINE = {
    "ts": "2026-01-01T00:00:00.000Z",
    "op": "GetObject",
    "bucket": "b",
    "key": "k",
    "status": 200,
    "bytes": 5,
    "object_size": 5,
    "result": "miss",
}
# command line: (exit code, shape); DIR is the test's folder
RUNS = {
    "check": (0, "check"),
    "check -T -c DIR/good.yaml": (0, "check"),
    "check -c DIR/bad.yaml": (3, "check"),
    "check --explain b/k -c DIR/good.yaml": (0, "check --explain"),
    "check --explain c/k": (0, "check --explain"),
    "check --live --admin 127.0.0.1:1": (6, "check"),
    "doctor --origin.endpoint dir:DIR/data --cache.dir DIR/cache "
    "--cache.size 64MiB --listen 127.0.0.1:0 --admin.listen off": (
        0,
        "doctor",
    ),
    "bench --quick --disk --cache.dir DIR/cache --origin.endpoint dir:DIR/data": (0, "bench"),
    "plan --dataset 1GB --cache 100MB --nodes 3": (0, "plan"),
    "profile DIR/access.log": (0, "profile"),
    "profile DIR/good.yaml": (1, "profile"),
    "profile DIR/none": (1, "profile"),
    "bench -c DIR/bad.yaml": (3, "bench"),
    "doctor -c DIR/bad.yaml": (3, "doctor"),
    "keys new me --allow b/p/:read": (0, "keys"),
    "prepare DIR/cache": (0, "prepare"),
    "prepare DIR/data": (1, "prepare"),
    "version": (0, "version"),
}


@pytest.mark.parametrize("command", RUNS)
def test_the_shape_of(tmp_path, command):
    code, name = RUNS[command]
    (tmp_path / "data" / "b").mkdir(parents=True)
    (tmp_path / "data" / "b" / "k").write_text("hello")
    (tmp_path / "access.log").write_text(2 * (json.dumps(LINE) + "\n"))
    (tmp_path / "good.yaml").write_text(
        f"buckets: [{{name: b, origin: 'dir:{tmp_path}/data/b'}}]\nrules: "
        f"[{{match: 'b/**', freshness: immutable}}]\n"
    )
    (tmp_path / "empty.yaml").write_text("{}\n")
    (tmp_path / "bad.yaml").write_text("cache: {sise: 1GiB}\n")
    env = {
        "AWS_ACCESS_KEY_ID": next(iter(KEYS)),
        "AWS_SECRET_ACCESS_KEY": next(iter(KEYS.values())),
        "AWS_EC2_METADATA_DISABLED": "true",
        "FOREBAY_CONFIG": str(tmp_path / "empty.yaml"),
    }
    got = run_forebay(*command.replace("DIR", str(tmp_path)).split(), "--json", env=env)
    assert got.returncode == code, (got.stdout, got.stderr)
    lines = [json.loads(line) for line in got.stdout.splitlines()]
    assert [line["type"] for line in lines].count("result") == 1 and lines[-1]["type"] == "result"
    assert (lines[-1]["ok"], lines[-1]["exit"]) == (code == 0, code)
    for line in lines:
        shape = ERROR if line["type"] == "error" else ALONE[name][line["type"]]
        if name == "profile" and line["type"] == "item":
            shape = PROFILED["prefix" in line]
        if line["type"] == "result" and code != 0:  # absent: `doctor` could not find it out
            shape = {key: kind for key, kind in shape.items() if key in RESULT or key in line}
        if name == "version":
            assert all(type(text) is str for text in line.pop("libraries").values())
            shape = {key: kind for key, kind in shape.items() if key != "libraries"}
        has_shape(line, shape)
    if code == 0 and "item" in ALONE[name] and ALONE[name]["item"] is not SETTING:
        assert any(line["type"] == "item" for line in lines)
    assert command != "check -T -c DIR/good.yaml" or {"bucket", "rule", "item"} <= {
        line["type"] for line in lines
    }


def test_no_command_is_left_out():
    """A new command with --json needs a row that describes its lines."""
    listed = re.findall(r"^  (\w+)  ", run_forebay("help").stdout, re.MULTILINE)
    takes = {name for name in listed if "--json" in run_forebay("help", name).stdout}
    assert takes == set(SHAPES) | {name.split()[0] for name in ALONE}

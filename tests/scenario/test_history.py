# SPDX-License-Identifier: Apache-2.0
"""Clients write and read at once through Forebay, and others write past it. No read goes back in
time.

No read that begins after a write's reply sees older bytes or headers. None sees older ones than
another read saw before it began, and none mixes two versions. A third of the writes past Forebay,
and some of those through it, change only an object's metadata. At full scale there are one million
operations.
"""

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from forebay import scaled
from history import LISTED, judge, write_past

PROCESSES, THREADS = 2, 6
PAST_NUMBERS = 900_000_000  # above those of every session
KEYS = [f"{LISTED}{i}" for i in range(6)] + [f"k/{i}" for i in range(10)]


def test_the_judge_sees_what_is_wrong():
    """The judge finds a stale read, a read from the future and a lost write, and accepts what is
    allowed."""
    first, second = ["w", "a", 1, 1.0, 2.0], ["w", "a", 2, 3.0, 4.0]
    assert judge([first, second, ["r", "a", 1, 4.5, 5.0]], {})
    assert judge([first, second, ["r", "a", 0, 2.5, 2.8]], {})
    assert judge([first, second, ["r", "a", 2, 2.1, 2.9]], {})
    assert judge([first, second, ["r", "a", 3, 4.5, 5.0]], {})
    assert judge([first, ["w", "a", 0, 3.0, 4.0], ["r", "a", 1, 4.1, 5.0]], {})
    assert judge([first, second, ["r", "a", ["etag", "x"], 4.5, 5.0]], {"x": 1})
    past = ["p", "a", 2, 3.0, 4.0]
    assert not judge([first, past, ["r", "a", 1, 4.5, 5.0], ["r", "a", 2, 4.6, 5.1]], {})
    assert judge([first, past, ["r", "a", 2, 4.5, 5.0], ["r", "a", 1, 5.1, 5.2]], {})
    for good in (
        [1, 1.5, 1.6],
        [0, 0.5, 0.6],
        [0, 1.5, 1.6],
        [1, 2.5, 2.6],
        [1, 3.5, 9.0],
        [2, 3.5, 3.6],
        [2, 4.5, 5.0],
        [1, 2.5, 5.0],
    ):
        assert not judge([first, second, ["r", "a", *good]], {}), good
    shown = [
        ["s", "a", [1, 1], 0, 0],
        ["s", "a", [7, 1], 0, 0],
        ["s", "a", [7, ["etag", "x"]], 0, 0],
    ]
    assert not judge([first, second, *shown], {"x": 1})
    assert judge([first, second, *shown], {"x": 2})
    assert judge([first, second, ["s", "a", [1, 2], 0, 0]], {})
    lost = ["w", "a", 3, 5.0, None]
    assert not judge([first, second, lost, ["r", "a", 2, 6.0, 7.0], ["r", "a", 3, 8.0, 9.0]], {})
    assert judge([first, second, lost, ["r", "a", 3, 6.0, 7.0], ["r", "a", 2, 8.0, 9.0]], {})


@pytest.mark.parametrize("list_ttl", ["0s", "1h"])
def test_no_stale_read_after_a_write(start, origin, engine, tmp_path, figure, list_ttl):
    server = start(
        origin,
        engine=engine,
        settings={
            "cache.block_size": "64KiB",
            "cache.ttl": "1h",
            "cache.size": "128MiB",
            "cache.list_ttl": list_ttl,
            "access_log.path": "off",
        },
    )
    total = scaled(1_000_000) // 4 // (8 if scaled(1000) < 1000 else 1)
    each = max(50, total // (PROCESSES * THREADS))
    running = []
    for number in range(PROCESSES):
        plan = tmp_path / f"plan{number}.json"
        plan.write_text(
            json.dumps(
                {
                    "port": server.port,
                    "keys": KEYS,
                    "operations": each,
                    "seeds": [1 + number * THREADS + i for i in range(THREADS)],
                }
            )
        )
        running.append(
            subprocess.Popen(
                [
                    sys.executable,
                    str(Path(__file__).parent / "history.py"),
                    str(plan),
                    str(tmp_path / f"record{number}"),
                ],
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    rows, etags, counts = [], {}, Counter()
    while any(process.poll() is None for process in running):
        write_past(origin, KEYS, PAST_NUMBERS + counts["past"], rows, etags)
        counts["past"] += 1
        time.sleep(0.01)
    for process in running:
        _, errors = process.communicate(timeout=3600)
        assert process.returncode == 0, errors[-2000:]
    for number in range(PROCESSES):
        record = json.loads((tmp_path / f"record{number}").read_text())
        assert not record["failures"], record["failures"][:3]
        rows += record["rows"]
        etags.update(record["etags"])
        counts.update(record["counts"])
    figure(
        f"history, {engine}, list_ttl {list_ttl}: "
        f"{sum(counts.values())} operations {dict(counts)}, "
        f"hits {server.metric('forebay_cache_requests_total', result='hit'):.0f}"
    )
    wrong = judge(rows, etags)
    assert not wrong, f"{len(wrong)} wrong reads:\n" + "\n".join(wrong[:5])
    assert (
        counts["read"] > (sum(counts.values()) - counts["past"]) // 3
    )  # writes past it go on as long as the others take
    assert not any(name.startswith("status 4") for name in counts if name != "status 416"), counts

# SPDX-License-Identifier: Apache-2.0
"""An index of --objects small objects: its size, how long look-ups and commits last, how soon a
server that holds them answers after a start, and how fast it rebuilds the index from the segments
while it serves.

The slope has two points, after half of the objects and after all. The file grows in steps, so small
counts say little. A start lasts from the command to the first answered hit. Look-ups and commits
are the server's own figures: upper bounds from its histograms."""

import math
import re
import signal
import socket
import time
from pathlib import Path

from lib.rig import Failure

OBJECT_BYTES = 200
DISK_BYTES = 2048  # for each, with headroom: what it takes up is less
TIMES_MAX = 10
MANY = 300_000  # the index is larger than its steps, and than what a start looks at
LOOKUP, COMMIT = "forebay_index_lookup_duration_seconds", "forebay_index_commit_duration_seconds"


def run(rig, report, args):
    count = args.objects or (20_000 if args.quick else 100_000)
    origin, paths = rig.directory(count, OBJECT_BYTES)
    size = max(256 << 20, count * DISK_BYTES)
    forebay = rig.forebay(origin, engine=args.engine, size=str(size))
    points = []
    began = time.monotonic()
    for some in (paths[: count // 2], paths[count // 2 :]):
        store(rig, forebay, some, len(points) * (count // 2) + len(some))
        points.append(rig.metrics(forebay))
    rate = count / (time.monotonic() - began)
    slope = (points[1]["forebay_index_bytes"] - points[0]["forebay_index_bytes"]) / (
        count - count // 2
    )
    report.head(
        "objects",
        "stored/s",
        "index bytes each, all",
        "slope",
        "anonymous MiB",
        "descriptors",
        "commit us, p50",
        "commit us, longest",
    )
    report.row(
        count,
        rate,
        points[1]["forebay_index_bytes"] / count,
        slope,
        forebay.memory_mib()[0],
        len(list(Path(f"/proc/{forebay.process.pid}/fd").iterdir())),
        quantile(points[1], COMMIT, 0.5),
        quantile(points[1], COMMIT, 1),
    )
    report.head(
        "start",
        "first hit ms",
        "anonymous MiB",
        "found/s",
        "look-up us, mean",
        "look-up us, p50",
        "look-up us, p99",
        "verifying the index s",
    )
    for how, name in ((signal.SIGTERM, "clean"), (signal.SIGKILL, "after kill -9")):
        forebay, first_ms = again(rig, forebay, origin, args, size, how, paths)
        before = rig.metrics(forebay)
        got = rig.load(forebay, paths, 16, seconds=3, random=True, blind=True)
        after = rig.metrics(forebay)
        rounds_s = wait(
            rig,
            forebay,
            lambda m: m['forebay_store_events_total{event="index-round"}'] > 0,
            900 if count >= MANY else 1,
        )
        lookup_us = mean(after, before, LOOKUP)
        lookups = {row: value - before.get(row, 0) for row, value in after.items()}
        p99_us = quantile(lookups, LOOKUP, 0.99)
        report.row(
            name,
            first_ms,
            forebay.memory_mib()[0],
            got["rps"],
            lookup_us,
            quantile(lookups, LOOKUP, 0.5),
            p99_us,
            rounds_s,
        )
        report.wanted(
            f"scale: first hit, {name}, ms", first_ms, most=100 if how == signal.SIGTERM else 1000
        )
        report.wanted(f"scale: look-up, p99, {name}, us", p99_us, most=15)
    rebuild(rig, report, forebay, origin, args, size, paths)
    if count >= MANY:
        report.wanted("scale: index bytes for each object", slope, most=190)


def rebuild(rig, report, forebay, origin, args, size, paths):
    """The index is gone: nothing is known at first, and all of it is found again behind serving."""
    report.head("rebuild", "objects/s", "hits % during it", "anonymous MiB")
    forebay.process.send_signal(signal.SIGTERM)
    forebay.process.wait()
    rig.stop(forebay)
    (forebay.cache / "index" / "data.mdb").unlink()
    began = time.monotonic()
    forebay = rig.forebay(origin, engine=args.engine, size=str(size), place=forebay.place)
    got = rig.load(forebay, paths, 4, seconds=2, random=True, blind=True)
    wait(
        rig,
        forebay,
        lambda m: m['forebay_condition{condition="index-rebuilding",severity="warning"}'] == 0,
        3600,
    )
    took_s = time.monotonic() - began
    stored(rig, forebay, len(paths))
    report.row(
        "", len(paths) / took_s, 100 * got["hits"] / got["requests"], forebay.memory_mib()[0]
    )


def again(rig, forebay, origin, args, size, how, paths):
    """The server on the same cache, ended by HOW; and when the first hit was answered."""
    place = forebay.place
    forebay.process.send_signal(how)
    forebay.process.wait()
    rig.stop(forebay)
    began = time.monotonic()
    forebay = rig.forebay(origin, engine=args.engine, size=str(size), place=place)
    hit = is_hit(forebay, paths[0][0])
    return forebay, (time.monotonic() - began) * 1000 if hit else float("nan")


def is_hit(forebay, path):
    """By a socket of our own: the client that loads takes longer to start than the server does."""
    with socket.create_connection(("127.0.0.1", forebay.port), 10) as sock:
        sock.sendall(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{forebay.port}\r\nConnection: "
            f"close\r\n\r\n".encode()
        )
        reply = b"".join(iter(lambda: sock.recv(65536), b""))
    return re.search(rb"^cache-status: forebay; hit", reply, re.I | re.M) is not None


def wait(rig, forebay, reached, most_s):
    """Seconds until REACHED(metrics), NaN if not in MOST_S."""
    began = time.monotonic()
    while time.monotonic() - began < most_s:
        if reached(rig.metrics(forebay)):
            return time.monotonic() - began
        time.sleep(0.1)
    return float("nan")


def store(rig, forebay, some, count):
    """SOME are read until COUNT objects are there: a directory gives them faster than the index
    takes them, and what it was behind with is read once more."""
    for _ in range(TIMES_MAX):
        rig.load(forebay, some, 64, blind=True)
        rig.settle(forebay)
        if rig.metrics(forebay)["forebay_cache_objects"] >= count:
            return
    stored(rig, forebay, count)


def stored(rig, forebay, count):
    if math.isnan(wait(rig, forebay, lambda m: m["forebay_cache_objects"] >= count, 60)):
        raise Failure(
            f"{rig.metrics(forebay)['forebay_cache_objects']:.0f} of {count} objects are stored"
        )


def mean(after, before, name):
    """Microseconds, of what was observed in between."""
    seconds, count = (
        after[f"{name}_{what}"] - before.get(f"{name}_{what}", 0) for what in ("sum", "count")
    )
    return seconds * 1e6 / max(count, 1)


def quantile(metrics, name, share):
    """Microseconds that SHARE of what was observed took at most."""
    rows = sorted(
        (float(re.search(r'le="([^"]+)"', row).group(1)), value)
        for row, value in metrics.items()
        if row.startswith(f"{name}_bucket")
    )
    return next(least for least, seen in rows if seen >= share * rows[-1][1]) * 1e6

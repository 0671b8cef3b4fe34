# SPDX-License-Identifier: Apache-2.0
"""A full cache of 64 segments that receives ten times its size. Is all of it stored, what does
freeing a segment cost, and does `cache.size` hold?

The objects have 1 MiB, 0.5 to 1.5 MB and 3 MiB, at most 500 MiB/s of them, and 10 KB without a
limit. `epoch` admits few of them, because nothing says that somebody reads them again. `lru` admits
all, so that each segment that is filled was freed before. Runs that the disk's backlog kept out are
not stored by design, and have a column of their own.

Then hits are measured while objects come: a client of its own reads a hot set of 10 KB objects,
alone and while another client feeds new objects as before (small ones at 10,000/s). `epoch` keeps
the hot set, which is pinned. `lru` loses it again and again; the figure that counts is how long
hits take. In `as fast as they go`, eight connections send the next request as soon as they have the
reply, as in `fairness`. They and the feed then share a core that is always busy. `1,000/s` leaves
room for both. In this part the server has one worker on its core, as it would choose itself. Two
workers on one core wait for each other for a tick of the kernel, with and without a feed."""

import functools
import random
import re
import subprocess
import threading
import time
from pathlib import Path

from lib.rig import Load, Pairs

SIZE = 256 << 20
THREADS = ("store-supply", "store-free", "index-writer")
HOT = [(f"/bench/hot/{i}.10K", None, None) for i in range(1000)]
PINNED = ({"match": "bench/hot/**", "freshness": "immutable", "pin": True},)
CONNECTIONS, HOT_PACE = 8, 1000
FEED_SECONDS_MORE = 1.0


def mixed(number):
    """The same sizes in every run."""
    return str(random.Random(number).randrange(500_000, 1_500_001))


def run(rig, report, args):
    times = 3 if args.quick else 10
    # name, mean size, size of the object of a number, connections, MB/s of each, objects/s beside
    # hits
    for name, mean, size, connections, rate, pace in (
        ("1M", 1 << 20, lambda number: "1M", 8, 65.5, None),
        ("0.5-1.5 MB", 1_000_000, mixed, 8, 65.5, None),
        ("3M", 3 << 20, lambda number: "3M", 8, 65.5, None),
        ("10K", 10 << 10, lambda number: "10K", 64, None, 10_000),
    ):
        if args.only and args.only not in name:
            continue
        origin = rig.origin()
        binaries = {
            "epoch": (args.forebay, "epoch"),
            "lru": (args.forebay, "lru"),
            **({"former": (args.former, "epoch")} if args.former else {}),
        }
        report.head(
            f"objects of {name}",
            "requests/s",
            "MB/s",
            "not stored %, no segment",
            "not stored %, backlog",
            "most over cache.size bytes",
            "freed segments",
            "KiB read per freed segment",
            "CPU ms per freed segment, its threads",
            "CPU ms per freed segment, index writer",
            "segments to forget",
            "unused %",
            "fills per object",
        )
        count = times * SIZE // mean

        def measure(side, number):
            binary, policy = binaries[side]
            serve = functools.partial(
                rig.forebay,
                origin,
                engine=args.engine,
                size=str(SIZE),
                binary=binary,
                rules=PINNED,
                extra=("--cache.policy", policy, "--log.level", "debug"),
            )
            forebay = serve(workers=2)

            def paths(what, count):
                return [
                    (f"/bench/full/{what}{side}{number}/{i}.{size(i)}", None, None)
                    for i in range(count)
                ]

            got = feed(rig, forebay, paths, count, connections, rate)
            rig.stop(forebay)
            forebay = serve(place=forebay.place)
            got.update(
                hits_meanwhile(rig, forebay, paths, connections, rate, pace, 1 if args.quick else 3)
            )
            rig.stop(forebay)
            return got

        pairs = Pairs(args.rounds, binaries, measure)
        for side in binaries:
            report.row(
                side,
                *(
                    pairs.median(side, figure)
                    for figure in (
                        "rps",
                        "mbps",
                        "no_segment",
                        "behind",
                        "over",
                        "freed",
                        "read_kib",
                        "free_ms",
                        "write_ms",
                        "left",
                        "unused",
                        "runs",
                    )
                ),
            )
        report.head(
            f"hits while objects of {name} come",
            "fed/s",
            "fed MB/s",
            "hits %",
            "alone/s",
            "alone p50 us",
            "alone p99 us",
            "fed: hits/s",
            "fed p50 us",
            "fed p99 us",
            "p99 fed / alone",
            "1,000/s alone p50 us",
            "1,000/s alone p99 us",
            "1,000/s fed p50 us",
            "1,000/s fed p99 us",
            "1,000/s p99 fed / alone",
        )
        for side in binaries:
            report.row(
                side,
                *(
                    pairs.median(side, figure)
                    for figure in (
                        "fed_rps",
                        "fed_mbps",
                        "hits",
                        "alone_rps",
                        "alone_p50",
                        "alone_p99",
                        "beside_rps",
                        "beside_p50",
                        "beside_p99",
                    )
                ),
                pairs.spread_text(side, "times"),
                *(
                    pairs.median(side, figure)
                    for figure in (
                        "paced_alone_p50",
                        "paced_alone_p99",
                        "paced_beside_p50",
                        "paced_beside_p99",
                    )
                ),
                pairs.spread_text(side, "paced_times"),
            )
        for side in ("epoch", "lru"):
            what = f"full, {name}, {side}"
            report.wanted(
                f"{what}: runs not stored for want of a segment, %",
                pairs.median(side, "no_segment"),
                most=0.1,
            )
            report.wanted(f"{what}: most bytes over cache.size", pairs.median(side, "over"), most=0)
            report.wanted(
                f"{what}: unused of sealed segments, %", pairs.median(side, "unused"), most=3
            )
            for how, figure in (("as fast as they go", "times"), ("1,000/s", "paced_times")):
                report.wanted(
                    f"{what}: p99 of hits while fed / alone, {how}",
                    pairs.median(side, figure),
                    most=1.2,
                    text=pairs.spread_text(side, figure),
                )
        rig.stop(origin)


def hits_meanwhile(rig, forebay, paths, connections, rate, pace, seconds):
    for _ in range(3):
        rig.load(forebay, HOT, CONNECTIONS, blind=True)
        rig.settle(forebay)
    got, asked, found, fed = {}, 0, 0, []
    for prefix, hot_pace in (("", None), ("paced_", HOT_PACE)):
        figures = {}
        for where in ("alone", "beside"):
            feeding = None
            if where == "beside":
                per_second = pace or 700  # more than come
                fresh = paths(f"{prefix}hits-", int(per_second * (seconds + FEED_SECONDS_MORE)))
                feeding = Load(
                    rig,
                    forebay,
                    fresh,
                    connections,
                    seconds=seconds + FEED_SECONDS_MORE,
                    rate=rate,
                    pace=pace,
                    discard=True,
                )
                time.sleep(FEED_SECONDS_MORE / 2)
            hot = rig.load(
                forebay,
                HOT,
                CONNECTIONS,
                seconds=seconds,
                random=True,
                blind=True,
                first=True,
                pace=hot_pace,
            )
            if feeding:
                fed.append(feeding.result())
                rig.settle(forebay)
            asked, found = asked + hot["requests"], found + hot["hits"]
            figures[where] = hot
            got.update(
                {
                    f"{prefix}{where}_p50": hot["hit_p50"],
                    f"{prefix}{where}_p99": hot["hit_p99"],
                    f"{prefix}{where}_rps": hot["rps"],
                }
            )
        got[f"{prefix}times"] = figures["beside"]["hit_p99"] / figures["alone"]["hit_p99"]
    return {
        **got,
        "hits": 100 * found / asked,
        "fed_rps": sum(f["rps"] for f in fed) / len(fed),
        "fed_mbps": sum(f["mb_s"] for f in fed) / len(fed),
    }


def feed(rig, forebay, paths, count, connections, rate):
    watch = Watch(rig, forebay)
    rig.load(forebay, paths("first-", count // 8), connections, discard=True)  # full now
    rig.settle(forebay)
    before, threads = rig.metrics(forebay), thread_figures(forebay)
    requests = paths("", count)
    with watch:
        got = rig.load(forebay, requests, connections, rate=rate, discard=True)
    rig.settle(forebay)
    after, later = rig.metrics(forebay), thread_figures(forebay)
    grown = {name: after.get(name, 0) - before.get(name, 0) for name in after}
    rejected = {
        reason: grown.get(f'forebay_cache_admission_rejected_total{{reason="{reason}"}}', 0)
        for reason in ("no-segment", "disk-full", "index-busy", "disk-busy", "disk-degraded")
    }
    freed = max(watch.freed(), 1)
    own = [later[n][k] - threads[n][k] for k in (0, 1) for n in THREADS[:2] if n in later]
    read, cpu = sum(own[: len(own) // 2]), sum(own[len(own) // 2 :])
    return {
        "rps": got["rps"],
        "mbps": got["bytes"] / got["us"],
        "freed": freed,
        "no_segment": 100 * rejected["no-segment"] / len(requests),
        "behind": 100 * (sum(rejected.values()) - rejected["no-segment"]) / len(requests),
        "over": max(0, watch.most - SIZE),
        "read_kib": read / freed / 1024,
        "free_ms": cpu / freed / 1e6,
        "write_ms": (later["index-writer"][1] - threads["index-writer"][1]) / freed / 1e6,
        "unused": 100
        * grown.get('forebay_segment_bytes_total{of="unused"}', 0)
        / max(1, grown.get('forebay_segment_bytes_total{of="sealed"}', 0)),
        "runs": grown.get('forebay_fills_total{state="started"}', 0) / len(requests),
        "left": after.get("forebay_index_forgets_waiting", 0),
    }


def thread_figures(forebay):
    """Returns the bytes read and the CPU time in ns of each thread of the store."""
    found = {}
    for task in Path(f"/proc/{forebay.process.pid}/task").iterdir():
        name = (task / "comm").read_text().strip()
        if name in THREADS:
            read = re.search(r"rchar: (\d+)", (task / "io").read_text()).group(1)
            found[name] = int(read), int((task / "schedstat").read_text().split()[0])
    return found


class Watch:
    """The most that the cache directory took up within the block, as the disk counts it, and what
    was freed."""

    def __init__(self, rig, forebay):
        self.forebay, self.most, self.over = forebay, 0, threading.Event()
        self.log = forebay.place / "stderr"

    def __enter__(self):
        self.before = self.log.read_text(errors="replace").count("segment_freed")
        self.thread = threading.Thread(target=self.look)
        self.thread.start()

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    def look(self):
        while not self.over.wait(0.05):
            done = subprocess.run(
                ["du", "-s", "-B1", str(self.forebay.cache)],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            self.most = max(self.most, int(done.stdout.split()[0]) if done.stdout else 0)

    def freed(self):
        return self.log.read_text(errors="replace").count("segment_freed") - self.before

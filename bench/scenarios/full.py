# SPDX-License-Identifier: Apache-2.0
"""A full cache of 64 segments that is fed ten times its size: is all of it stored, what does freeing a segment cost, is
`cache.size` kept? Objects of 1 MiB, at most 500 MiB/s of them, and of 10 KB, as many as go. What the disk is behind with
is not stored by design, and stands apart."""
import re
import subprocess
import threading
from pathlib import Path

from lib.rig import Pairs

SIZE = 256 << 20
THREADS = ("store-supply", "store-free", "index-writer")


def run(rig, report, args):
    times = 3 if args.quick else 10
    for name, size, connections, rate in (("1M", 1 << 20, 8, 65.5), ("10K", 10 << 10, 64, None)):
        if args.only and args.only not in name:
            continue
        origin = rig.origin()
        binaries = {"forebay": args.forebay, **({"former": args.former} if args.former else {})}
        report.head(f"objects of {name}", "side", "asked/s", "MB/s", "not stored %: no segment", "disk or index behind",
                    "most over cache.size bytes", "freed segments", "KiB read for each", "CPU ms for each: its threads",
                    "index writer", "left to forget", "unused %")
        count = times * SIZE // size

        def measure(side, number):
            forebay = rig.forebay(origin, workers=2, engine=args.engine, size=str(SIZE), binary=binaries[side])
            got = feed(rig, forebay, [(f"/bench/full/{side}{number}/{i}.{name}", None, None) for i in range(count)],
                       connections, rate)
            rig.stop(forebay)
            return got

        pairs = Pairs(args.rounds, binaries, measure)
        for side in binaries:
            report.row(name, side, *(pairs.median(side, figure) for figure in (
                "rps", "mbps", "no_segment", "behind", "over", "freed", "read_kib", "free_ms", "write_ms", "left", "unused")))
        report.wanted(f"full, {name}: runs not stored for want of a segment, %", pairs.median("forebay", "no_segment"), most=0.1)
        report.wanted(f"full, {name}: most bytes over cache.size", pairs.median("forebay", "over"), most=0)
        rig.stop(origin)


def feed(rig, forebay, requests, connections, rate):
    watch = Watch(rig, forebay)
    rig.load(forebay, [(p.replace("/full/", "/full/first-"), a, b) for p, a, b in requests[:len(requests) // 8]], connections,
             discard=True)                                   # full now
    rig.settle(forebay)
    before, threads = rig.metrics(forebay), thread_figures(forebay)
    with watch:
        got = rig.load(forebay, requests, connections, rate=rate, discard=True)
    rig.settle(forebay)
    after, later = rig.metrics(forebay), thread_figures(forebay)
    grown = {name: after.get(name, 0) - before.get(name, 0) for name in after}
    rejected = {reason: grown.get(f'forebay_cache_admission_rejected_total{{reason="{reason}"}}', 0)
                for reason in ("space", "index-busy", "disk-busy", "error")}
    freed = max(watch.freed(), 1)
    own = [later[n][k] - threads[n][k] for k in (0, 1) for n in THREADS[:2] if n in later]
    read, cpu = sum(own[:len(own) // 2]), sum(own[len(own) // 2:])
    return {"rps": got["rps"], "mbps": got["bytes"] / got["us"], "freed": freed,
            "no_segment": 100 * rejected["space"] / len(requests),
            "behind": 100 * (sum(rejected.values()) - rejected["space"]) / len(requests),
            "over": max(0, watch.most - SIZE), "read_kib": read / freed / 1024, "free_ms": cpu / freed / 1e6,
            "write_ms": (later["index-writer"][1] - threads["index-writer"][1]) / freed / 1e6,
            "unused": 100 * grown.get("forebay_segment_unused_bytes_total", 0) / max(1, grown.get(
                "forebay_segment_sealed_bytes_total", 0)),
            "left": after.get("forebay_index_forgets_waiting", 0)}


def thread_figures(forebay):
    """Of each of the store's threads: bytes that it has read, CPU time in ns."""
    found = {}
    for task in Path(f"/proc/{forebay.process.pid}/task").iterdir():
        name = (task / "comm").read_text().strip()
        if name in THREADS:
            read = re.search(r"rchar: (\d+)", (task / "io").read_text()).group(1)
            found[name] = int(read), int((task / "schedstat").read_text().split()[0])
    return found


class Watch:
    """The most that the cache directory took up within the block, as the disk counts it, and what was freed."""

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
            done = subprocess.run(["du", "-s", "-B1", str(self.forebay.cache)], stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, text=True)
            self.most = max(self.most, int(done.stdout.split()[0]) if done.stdout else 0)

    def freed(self):
        return self.log.read_text(errors="replace").count("segment_freed") - self.before

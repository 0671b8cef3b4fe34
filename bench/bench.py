#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Forebay beside nginx (slice + proxy_cache) and beside direct access, on the same data in the same
run.

    bench/bench.py [hit stream miss herd ...] [--rounds 3] [--quick] [--results FILE]

Without names all scenarios run. Sides are measured in interleaved rounds; what is printed are
medians and the median, least and most of the paired ratios: absolute figures of a shared machine
mean little. CPU times are the kernel's, of all threads of the server. --results writes the tables
to FILE (bench/RESULTS.md is made so), over those of the same scenarios. A scenario that fails is
reported and the others go on. --charts runs nothing: it draws the pictures of README.md and
deploy/guide from the figures in bench/results.
"""

import argparse
import importlib
import os
import platform
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))
from lib import charts  # noqa: E402
from lib.rig import Rig  # noqa: E402
from lib.table import Report  # noqa: E402

SCENARIOS = [
    "hit",
    "stream",
    "ranges",
    "scattered",
    "miss",
    "slowdown",
    "herd",
    "fairness",
    "loader",
    "memory",
    "device",
    "tls",
    "cores",
    "weights",
    "index",
    "scale",
    "full",
    "policy",
    "disk",
    "multipart",
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("scenarios", nargs="*", choices=[*SCENARIOS, []], help="which (all)")
    parser.add_argument("--all", action="store_true", help="all of them, as without names")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="shorter and smaller: for a look, not for a judgement"
    )
    parser.add_argument("--only", help="of a scenario's rows those whose name has this in it")
    parser.add_argument(
        "--forebay",
        default=os.environ.get("FOREBAY_BIN", str(ROOT / "build" / "release" / "forebay")),
    )
    parser.add_argument("--objects", type=int, help="how many `scale` makes")
    parser.add_argument(
        "--gib", type=int, help="size of the object of `weights` (8, or what memory and disk hold)"
    )
    parser.add_argument(
        "--workers", type=int, default=1, help="workers of each server, each with a core of its own"
    )
    parser.add_argument(
        "--former", help="another binary of Forebay, measured beside it where a scenario can"
    )
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--folder", default="/var/tmp", help="where caches go")
    parser.add_argument(
        "--results", help="write the tables to this file, over those of the same scenarios"
    )
    parser.add_argument(
        "--charts",
        action="store_true",
        help="only draw the pictures of deploy/guide from bench/results",
    )
    args = parser.parse_args()
    if args.charts:
        charts.write()
        return 0
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # servers end with the rig, whoever ends it
    former = f"; former: {version(args.former)}" if args.former else ""
    report = Report(
        f"{version(args.forebay)}{former}; {os.cpu_count()} cores ({model()}), Linux "
        f"{platform.release()}, "
        f"{time.strftime('%Y-%m-%d')}; {args.rounds} rounds{', quick' if args.quick else ''}, "
        f"engine {args.engine}, workers: {args.workers}. "
        f"Medians; after ratios the least and the most of the rounds."
    )
    for name in args.scenarios or SCENARIOS:
        run(name, report, args)
        if args.results:
            report.write(Path(args.results))
    print("", *report.summary(), sep="\n")
    return 1 if report.failures else 0


def version(binary):
    out = subprocess.run([binary, "version"], capture_output=True, text=True, check=True).stdout
    return out.splitlines()[0]


def model():
    found = [
        line
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return found[0].partition(":")[2].strip() if found else platform.machine()


def run(name, report, args):
    scenario = importlib.import_module(f"scenarios.{name}")
    report.begin(name, scenario.__doc__)
    began = time.monotonic()
    try:
        with Rig(args) as rig:
            scenario.run(rig, report, args)
    except (
        Exception,
        SystemExit,
    ) as failure:  # any failure: measure the other scenarios nevertheless
        traceback.print_exc()
        report.failed(name, str(failure).strip().partition("\n")[0] or type(failure).__name__)
    report.say(f"It took {time.monotonic() - began:.0f} s.")


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Small warm hits on one worker, alone and together with four streams of 64 MiB on the same worker.

Eight connections request 10 KB each, and again as soon as they have the reply. The client of the
streams drops the bodies inside the kernel, and runs after the other client on their core, so that
both wait for the server. Cold streams come from an origin that answers after 15 ms and gives each
connection 90 MB/s. `least / most` compares the slowest stream with the fastest."""

import time

from lib.rig import Load, Pairs

SMALL = [(f"/bench/small/{i}.10K", None, None) for i in range(1000)]
WARM = [(f"/bench/large/{i}.64M", None, None) for i in range(4)]
STREAMS, CONNECTIONS = 4, 8


def run(rig, report, args):
    seconds = 1 if args.quick else 2
    fast, slow = rig.origin(), rig.origin(latency=15, rate=90)
    for kind in ("warm", "cold"):
        if args.only and args.only not in kind:
            continue
        origin = fast if kind == "warm" else slow
        sides = {"forebay": rig.forebay(origin, engine=args.engine), "nginx": rig.nginx(origin)}
        if args.former:
            sides["former"] = rig.forebay(origin, engine=args.engine, binary=args.former)

        def measure(side, number):
            server = sides[side]
            alone = rig.load(
                server, SMALL, CONNECTIONS, seconds=seconds, random=True, blind=True, first=True
            )
            paths = (
                WARM
                if kind == "warm"
                else [(f"/bench/cold/{side}{number}.{i}.64M", None, None) for i in range(96)]
            )
            streams = Load(rig, server, paths, STREAMS, seconds=seconds + 1, discard=True)
            time.sleep(0.5)
            beside = rig.load(
                server, SMALL, CONNECTIONS, seconds=seconds, random=True, blind=True, first=True
            )
            big = streams.result()
            return {
                "alone_p50": alone["last_p50"],
                "alone_p99": alone["last_p99"],
                "p50": beside["last_p50"],
                "p99": beside["last_p99"],
                "times": beside["last_p99"] / alone["last_p99"],
                "even": big["conn_least"] / big["conn_most"],
                "small_even": beside["conn_least"] / beside["conn_most"],
                "mb_s": big["mb_s"],
                "rps": beside["rps"],
            }

        for server in sides.values():
            for _ in range(2):
                rig.load(server, SMALL, CONNECTIONS)
                rig.load(server, WARM if kind == "warm" else SMALL, STREAMS)
        pairs = Pairs(args.rounds, sides, measure)
        report.head(
            f"with {STREAMS} {kind} streams",
            "alone p50 us",
            "alone p99 us",
            "with streams p50 us",
            "with streams p99 us",
            "p99 with streams / alone",
            "small req/s",
            "streams MB/s",
            "streams least / most",
            "small least / most",
        )
        for side in sides:
            report.row(
                side,
                *(pairs.median(side, f) for f in ("alone_p50", "alone_p99", "p50", "p99")),
                pairs.spread_text(side, "times"),
                pairs.median(side, "rps"),
                pairs.median(side, "mb_s"),
                pairs.spread_text(side, "even"),
                pairs.spread_text(side, "small_even"),
            )
        what = f"p99 of small hits beside {STREAMS} {kind} streams / alone"
        report.compare(what, pairs.values("times"), "nginx", most=2)
        rig.stop(*sides.values())

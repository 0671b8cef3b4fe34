# SPDX-License-Identifier: Apache-2.0
"""Cold ranges of 8 MiB of one object, in order, as CRT clients request them on many connections.
`busy disk`: another program writes to the disk of the caches all the time."""

import contextlib

from lib.rig import Pairs

MIB = 1 << 20
ROWS = {  # name: (latency ms, MB/s of a connection, core of the origin, connections)
    "15 ms, 60 MB/s": (15, 60, "client", (1, 4, 16)),
    "15 ms, 60 MB/s, busy disk": (15, 60, "client", (1, 4, 16)),
    "15 ms, 90 MB/s": (15, 90, "client", (1, 16, 64)),
    "no limits, server's core": (0, 0, "server", (1, 4, 16)),
    "no limits, client's core": (0, 0, "client", (1, 4, 16)),
}
WANTED = {  # MB/s of direct's, by connections
    "15 ms, 60 MB/s": {1: 8.0, 4: 3.0, 16: 1.0},
    "15 ms, 60 MB/s, busy disk": {1: 8.0, 4: 3.0, 16: 1.0},
    "15 ms, 90 MB/s": {1: 8.0, 16: 1.5, 64: 1.0},
}


def judge(report, name, connections, pairs):
    what = f"cold ranges, {name}, {connections} connections: MB/s"
    if name in WANTED:
        values = pairs.values("mb_s", over="direct")
        report.compare(f"{what} / direct", values, "nginx", least=WANTED[name][connections])
    elif "server's core" in name:
        report.compare(f"{what} / nginx", pairs.values("mb_s", over="nginx"), "nginx", least=2)


def run(rig, report, args):
    report.head(
        "origin, connections",
        "direct MB/s",
        "forebay MB/s",
        "nginx MB/s",
        "forebay / direct",
        "forebay / nginx",
        "forebay CPU ms/MiB",
        "origin bytes",
        "readers detached",
        "forebay / former",
    )
    for name, (latency, rate, core, counts) in ROWS.items():
        if args.only and args.only not in name:
            continue
        for connections in counts:
            total = max(256, 16 * connections) * (1 if args.quick else 2)
            origin = rig.origin(latency, rate, core=rig.server_core if core == "server" else None)
            sides = {
                "direct": origin,
                "forebay": rig.forebay(origin, engine=args.engine),
                "nginx": rig.nginx(origin),
            }
            if args.former:
                sides["former"] = rig.forebay(origin, engine=args.engine, binary=args.former)
            asked = []

            def measure(side, number):
                ranges = [
                    (f"/bench/ranges/{side}{number}.{total}M", i * 8 * MIB, (i + 1) * 8 * MIB - 1)
                    for i in range(total // 8)
                ]
                for server in (
                    side for name, side in sides.items() if name in ("forebay", "former")
                ):
                    rig.settle(server)
                rig.stats(origin)
                got = rig.load(sides[side], ranges, connections)
                if side == "forebay":
                    asked.append(rig.stats(origin)["bytes"] / got["bytes"])
                return got

            for side in sides:
                rig.load(sides[side], [("/bench/warm.1K", None, None)], 1)
            with rig.busy_disk() if "busy disk" in name else contextlib.nullcontext():
                pairs = Pairs(args.rounds, sides, measure)
            left = sum(v for k, v in rig.metrics(sides["forebay"]).items() if "detached" in k)
            report.row(
                f"{name}, {connections}",
                *(pairs.median(s, "mb_s") for s in ("direct", "forebay", "nginx")),
                pairs.ratio_text("forebay", "direct", "mb_s"),
                pairs.ratio_text("forebay", "nginx", "mb_s"),
                pairs.median("forebay", "cpu_per_mib") / 1000,
                f"{max(asked):.2f}x",
                left,
                pairs.ratio_text("forebay", "former", "mb_s") if args.former else "",
            )
            report.wanted(
                f"cold ranges, {name}, {connections} connections: origin bytes",
                max(asked),
                most=1.005,
            )
            judge(report, name, connections, pairs)
            rig.stop(*sides.values())

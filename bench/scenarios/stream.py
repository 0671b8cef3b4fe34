# SPDX-License-Identifier: Apache-2.0
"""Whole objects, cold, on one client connection unless the row says more. `origin` says what the
origin gives: latency, bandwidth of a connection, core. `busy disk`: another program writes to the
disk of the caches all the time.

Without limits, the cost of a byte decides. On a virtual machine that gets memory from its host on
demand, the first use of a page costs more than all the rest: 1 to 4 ms for each MiB were measured,
for any program that writes. So these rows use full caches, where new bytes take the pages of
evicted ones. The client runs before the origin on the core that they share."""

import contextlib

from lib.rig import Pairs

# name: (size, objects in a round, latency ms, MB/s of a connection, origin's core, connections)
ROWS = {
    "1 GiB, 15 ms, 90 MB/s": ("1G", 1, 15, 90, "client", 1),
    "1 GiB, 15 ms, 90 MB/s, busy disk": ("1G", 1, 15, 90, "client", 1),
    "64 MiB, no limits, server's core": ("64M", 8, 0, 0, "server", 1),
    "256 MiB, no limits, client's core": ("256M", 3, 0, 0, "client", 1),
    "256 MiB, no limits, client's core, 16 connections": ("256M", 16, 0, 0, "client", 16),
    "64 MiB, no limits, client's core": ("64M", 8, 0, 0, "client", 1),
}


def judge(report, name, pairs):
    what = f"cold, {name}"
    if name.startswith("1 GiB"):
        report.compare(
            f"{what}: MB/s / direct", pairs.values("mb_s", over="direct"), "nginx", least=8
        )
        return
    if "server's core" in name:
        report.compare(
            f"{what}: MB/s / nginx", pairs.values("mb_s", over="nginx"), "nginx", least=1.5
        )
    if name.startswith("256 MiB"):
        report.compare(
            f"{what}: CPU ms/MiB", pairs.values("cpu_per_mib", unit=1000), "nginx", most=0.5
        )
        if "former" in pairs.rows:
            rates = pairs.values("mb_s", over="former")
            report.compare(f"{what}: MB/s / former", rates, "nginx", least=2)
    if "16 connections" not in name:
        above = pairs.values("first_p50", above="direct", unit=1000)
        most = 0.3 if "server's core" in name else 0.2
        report.compare(f"{what}: first byte above direct, ms", above, "nginx", most=most)


def run(rig, report, args):
    report.head(
        "object",
        "direct MB/s",
        "forebay MB/s",
        "nginx MB/s",
        "forebay / direct",
        "nginx / direct",
        "first byte ms, direct",
        "first byte ms, forebay",
        "first byte ms, nginx",
        "forebay CPU ms/MiB",
        "nginx CPU ms/MiB",
        "origin bytes",
        *(("forebay / former", "first byte ms, former") if args.former else ()),
    )
    for name, (size, count, latency, rate, core, connections) in ROWS.items():
        if args.only and args.only not in name:
            continue
        origin = rig.origin(latency, rate, core=rig.server_core if core == "server" else None)
        gib = 4 if connections > 1 else 1  # of a full cache: more than is read at once
        small = {} if rate else {"size": f"{gib}GiB", "extra": ("--cache.policy", "lru")}
        sides = {
            "direct": origin,
            "forebay": rig.forebay(origin, engine=args.engine, **small),
            "nginx": rig.nginx(origin, size="8g" if rate else f"{gib}g"),
        }
        if args.former:
            sides["former"] = rig.forebay(origin, engine=args.engine, binary=args.former, **small)
        asked = {side: [] for side in sides}

        def measure(side, number):
            for server in (sides[name] for name in ("forebay", "former") if name in sides):
                rig.settle(server)
            rig.stats(origin)
            got = rig.load(
                sides[side],
                [(f"/bench/stream/{side}{number}-{i}.{size}", None, None) for i in range(count)],
                connections,
                first=True,
            )
            asked[side].append(rig.stats(origin)["bytes"] / got["bytes"])
            return got

        for side in sides:
            warm = [("/bench/warm.1K", None, None)]
            rig.load(
                sides[side],
                warm
                if rate
                else warm + [(f"/bench/full/{i}.64M", None, None) for i in range(20 * gib)],
                1,
            )
        with rig.busy_disk() if "busy disk" in name else contextlib.nullcontext():
            pairs = Pairs(args.rounds, sides, measure)
        report.row(
            name,
            *(pairs.median(s, "mb_s") for s in ("direct", "forebay", "nginx")),
            pairs.ratio_text("forebay", "direct", "mb_s"),
            pairs.ratio_text("nginx", "direct", "mb_s"),
            *(pairs.median(s, "first_p50") / 1000 for s in ("direct", "forebay", "nginx")),
            pairs.median("forebay", "cpu_per_mib") / 1000,
            pairs.median("nginx", "cpu_per_mib") / 1000,
            f"{max(asked['forebay']):.2f}x",
            *(
                (
                    pairs.ratio_text("forebay", "former", "mb_s"),
                    pairs.median("former", "first_p50") / 1000,
                )
                if args.former
                else ()
            ),
        )
        judge(report, name, pairs)
        rig.stop(*sides.values())

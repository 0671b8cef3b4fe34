# SPDX-License-Identifier: Apache-2.0
"""Whole objects, cold, on one client connection. `origin` says what the origin gives: latency,
bandwidth of a connection, core.

Without limits, the cost of a byte decides. On a virtual machine that gets memory from its host on
demand, the first use of a page costs more than all the rest: 1 to 4 ms for each MiB were measured,
for any program that writes. So these rows use full caches of 1 GiB, where new bytes take the pages
of evicted ones. The client runs before the origin on the core that they share."""

from lib.rig import Pairs

ROWS = {  # name: (size, objects in a round, latency ms, MB/s of a connection, core of the origin)
    "1 GiB, 15 ms, 90 MB/s": ("1G", 1, 15, 90, "client"),
    "64 MiB, no limits, server's core": ("64M", 8, 0, 0, "server"),
    "256 MiB, no limits, client's core": ("256M", 3, 0, 0, "client"),
    "64 MiB, no limits, client's core": ("64M", 8, 0, 0, "client"),
}


def judge(report, name, pairs):
    def ratio(other, least):
        report.wanted(
            f"cold, {name}: MB/s / {other}",
            pairs.ratio("forebay", other, "mb_s")[0],
            least=least,
            text=pairs.ratio_text("forebay", other, "mb_s"),
        )

    if name.startswith("1 GiB"):
        ratio("direct", 8)
    elif "server's core" in name:
        ratio("nginx", 1.0)
    elif name.startswith("256 MiB"):
        ratio("direct", 0.9)
        report.wanted(
            f"cold, {name}: CPU ms/MiB", pairs.median("forebay", "cpu_per_mib") / 1000, most=0.9
        )
    if "no limits" in name:
        above = (pairs.median("forebay", "first_p50") - pairs.median("direct", "first_p50")) / 1000
        report.wanted(f"cold, {name}: first byte above direct, ms", above, most=0.2)


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
    for name, (size, count, latency, rate, core) in ROWS.items():
        if args.only and args.only not in name:
            continue
        origin = rig.origin(latency, rate, core=rig.server_core if core == "server" else None)
        small = {} if rate else {"size": "1GiB", "extra": ("--cache.policy", "lru")}
        sides = {
            "direct": origin,
            "forebay": rig.forebay(origin, engine=args.engine, **small),
            "nginx": rig.nginx(origin, size="8g" if rate else "1g"),
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
                1,
                first=True,
            )
            asked[side].append(rig.stats(origin)["bytes"] / got["bytes"])
            return got

        for side in sides:
            warm = [("/bench/warm.1K", None, None)]
            rig.load(
                sides[side],
                warm if rate else warm + [(f"/bench/full/{i}.64M", None, None) for i in range(20)],
                1,
            )
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

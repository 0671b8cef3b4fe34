# SPDX-License-Identifier: Apache-2.0
"""Small objects, each requested once: the first byte compared with direct access, then many readers
at once."""

from lib.rig import Pairs

SHARES = {64: 0.95, 256: 0.98, 1000: 0.95}  # of direct's requests/s, by connections


def judge(report, args, connections, pairs):
    what = f"cold 4 KB, origin 30 ms, {connections} connections"
    if connections in SHARES:
        rates = pairs.values("rps", over="direct")
        report.compare(f"{what}: requests/s / direct", rates, "nginx", least=SHARES[connections])
    else:
        each = pairs.values("rps", unit=args.workers)
        report.compare(f"{what}: requests/s for each worker", each, "nginx", least=15000)
        shares = pairs.values("cpu_share", unit=args.workers)
        report.compare(f"{what}: share of the cores in use", shares, "nginx", least=0.9)
    if connections > 64:
        cost = pairs.values("cpu_per_request")
        report.compare(f"{what}: CPU us for each", cost, "nginx", most=60)


def run(rig, report, args):
    report.head(
        "one connection",
        "direct first byte us",
        "forebay first byte us",
        "nginx first byte us",
        "forebay - direct us",
        "nginx - direct us",
        "forebay CPU us/request",
        "nginx CPU us/request",
    )
    for size in ("10K", "112K"):
        if args.only and args.only not in size:
            continue
        origin = rig.origin()
        sides = {
            "direct": origin,
            "forebay": rig.forebay(origin, engine=args.engine),
            "nginx": rig.nginx(origin),
        }
        if args.former:
            sides["former"] = rig.forebay(origin, engine=args.engine, binary=args.former)

        def measure(side, number):
            return rig.load(
                sides[side],
                [(f"/bench/miss/{side}{number}/{i}.{size}", None, None) for i in range(1000)],
                1,
            )

        pairs = Pairs(args.rounds, sides, measure)
        first = {side: pairs.median(side, "first_p50") for side in sides}
        report.row(
            size,
            *(first[side] for side in ("direct", "forebay", "nginx")),
            first["forebay"] - first["direct"],
            first["nginx"] - first["direct"],
            pairs.median("forebay", "cpu_per_request"),
            pairs.median("nginx", "cpu_per_request"),
        )
        above = pairs.values("first_p50", above="direct")
        report.compare(f"cold {size}: first byte above direct, us", above, "nginx", most=200)
        rig.stop(*sides.values())
    report.head(
        "4 KB, origin 30 ms, connections",
        "direct req/s",
        "forebay req/s",
        "nginx req/s",
        "forebay / direct",
        "forebay / nginx",
        "forebay CPU us/request",
        "nginx CPU us/request",
        "origin connections",
        "forebay / former",
    )
    for connections in (*SHARES, 4000):
        if args.only and args.only not in str(connections):
            continue
        origin = rig.origin(latency=30)
        sides = {
            "direct": origin,
            "forebay": rig.forebay(origin, engine=args.engine),
            "nginx": rig.nginx(origin),
        }
        if args.former:
            sides["former"] = rig.forebay(origin, engine=args.engine, binary=args.former)
        seen = []

        def measure(side, number):
            rig.stats(origin)
            count = min(connections, 2000) * (20 if args.quick else 60)
            requests = [(f"/bench/miss/{side}{number}/{i}.4K", None, None) for i in range(count)]
            got = rig.load(sides[side], requests, connections)
            got["cpu_share"] = got["server_cpu_us"] / got["us"]
            if side == "forebay":
                seen.append(rig.stats(origin)["connections"])
            return got

        pairs = Pairs(args.rounds, sides, measure)
        report.row(
            str(connections),
            *(pairs.median(s, "rps") for s in ("direct", "forebay", "nginx")),
            pairs.ratio_text("forebay", "direct", "rps"),
            pairs.ratio_text("forebay", "nginx", "rps"),
            pairs.median("forebay", "cpu_per_request"),
            pairs.median("nginx", "cpu_per_request"),
            max(seen),
            pairs.ratio_text("forebay", "former", "rps") if args.former else "",
        )
        judge(report, args, connections, pairs)
        rig.stop(*sides.values())

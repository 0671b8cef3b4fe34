# SPDX-License-Identifier: Apache-2.0
"""Small objects, each requested once: the first byte compared with direct access, then many readers
at once."""

from lib.rig import Pairs


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
            *first.values(),
            first["forebay"] - first["direct"],
            first["nginx"] - first["direct"],
            pairs.median("forebay", "cpu_per_request"),
            pairs.median("nginx", "cpu_per_request"),
        )
        report.wanted(
            f"cold {size}: first byte above direct, us",
            first["forebay"] - first["direct"],
            most=200,
        )
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
    for connections in (64, 256, 1000):
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
            count = connections * (20 if args.quick else 60)
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
        # While it has CPU to spare it is to keep up with direct access; when it has not, nginx has
        # none either.
        direct, nginx = (pairs.ratio("forebay", other, "rps")[0] for other in ("direct", "nginx"))
        what = f"cold 4 KB, origin 30 ms, {connections} connections"
        if direct >= 0.95 or pairs.median("forebay", "cpu_share") < 0.9:
            report.wanted(
                f"{what}: requests/s / direct",
                direct,
                least=0.95,
                text=pairs.ratio_text("forebay", "direct", "rps"),
            )
        else:
            report.wanted(
                f"{what}: requests/s / nginx (CPU is full)",
                nginx,
                least=1.5,
                text=pairs.ratio_text("forebay", "nginx", "rps"),
            )
        rig.stop(*sides.values())

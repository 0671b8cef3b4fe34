# SPDX-License-Identifier: Apache-2.0
"""An origin that behaves like S3: each reply begins after 10 or 100 ms, and requests above its
limit get SlowDown.

Enough readers request cold 4 KB objects to exceed the limit twice. `refused` counts the replies
with 503 that readers saw; the clients here do not retry."""

from lib.rig import Pairs

MAX_RPS = 1500


def run(rig, report, args):
    report.head(
        f"4 KB, origin takes {MAX_RPS:,} requests/s",
        "direct served/s",
        "direct refused %",
        "forebay served/s",
        "forebay refused %",
        "origin refused forebay %",
        "forebay / origin's limit",
    )
    for latency in (10, 100):
        connections = 2 * MAX_RPS * latency // 1000
        if args.only and args.only not in str(latency):
            continue
        origin = rig.origin(latency=latency, max_rps=MAX_RPS)
        sides = {"direct": origin, "forebay": rig.forebay(origin, engine=args.engine)}
        seen = []

        def measure(side, number):
            rig.stats(origin)
            count = MAX_RPS * (4 if args.quick else 12)
            requests = [
                (f"/bench/slow{latency}/{side}{number}/{i}.4K", None, None) for i in range(count)
            ]
            got = rig.load(sides[side], requests, connections, refusals=True)
            got["right_per_s"] = (got["requests"] - got["refused"]) * 1e6 / got["us"]
            got["refused_share"] = 100 * got["refused"] / got["requests"]
            if side == "forebay":
                asked = rig.stats(origin)
                seen.append(100 * asked["slowdowns"] / max(asked["requests"], 1))
            return got

        pairs = Pairs(args.rounds, sides, measure)
        used = pairs.median("forebay", "right_per_s") / MAX_RPS
        report.row(
            f"{latency} ms, {connections} connections",
            *(pairs.median(s, f) for s in sides for f in ("right_per_s", "refused_share")),
            sorted(seen)[len(seen) // 2],
            used,
        )
        report.wanted(
            f"origin with SlowDown, {latency} ms: refused to readers, %",
            pairs.median("forebay", "refused_share"),
            most=0,
        )
        report.wanted(
            f"origin with SlowDown, {latency} ms: share of its limit that is used", used, least=0.8
        )
        rig.stop(*sides.values())

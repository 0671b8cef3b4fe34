# SPDX-License-Identifier: Apache-2.0
"""Warm hits: CPU microseconds per request of the server, one worker on a core of its own."""
from lib.rig import Pairs

KIB, MIB = 1 << 10, 1 << 20
SHAPES = {                       # name: (connections, requests, seconds of one measurement)
    "10 KB": (16, [(f"/bench/small/{i}.10K", None, None) for i in range(1000)]),
    "112 KB": (16, [(f"/bench/medium/{i}.112K", None, None) for i in range(500)]),
    "256 KB ranges": (16, [("/bench/big.512M", i * 256 * KIB, (i + 1) * 256 * KIB - 1) for i in range(2048)]),
    "64 MiB": (4, [(f"/bench/large/{i}.64M", None, None) for i in range(8)]),
}


def run(rig, report, args):
    origin = rig.origin()
    for signed in (False, True):
        for logs in (False, True):
            if logs and args.quick:
                continue
            report.head(f"{'signatures verified' if signed else 'open'}, logs {'on' if logs else 'off'}", "forebay us",
                        "nginx us", "CPU ratio", "forebay req/s", "nginx req/s", "forebay p99 us", "nginx p99 us")
            sides = {"forebay": rig.forebay(origin, logs=logs, signed=signed, engine=args.engine),
                     "nginx": rig.nginx(origin, logs=logs)}
            if args.former:
                sides["former"] = rig.forebay(origin, logs=logs, signed=signed, engine=args.engine, binary=args.former)
            for name, (connections, requests) in SHAPES.items():
                if args.only and args.only not in name:
                    continue

                def measure(side, _):
                    return rig.load(sides[side], requests, connections, seconds=1 if args.quick else 3, random=True,
                                    signed=signed and side != "nginx", blind=True)

                for server in sides.values():
                    for _ in range(2):
                        rig.load(server, requests, connections, signed=signed and server.name != "nginx")
                for side in sides:
                    if sides[side].name == "forebay":
                        rig.settle(sides[side])
                pairs = Pairs(args.rounds, sides, measure)
                report.row(name, pairs.median("forebay", "cpu_per_request"), pairs.median("nginx", "cpu_per_request"),
                           pairs.ratio_text("forebay", "nginx", "cpu_per_request"), pairs.median("forebay", "rps"),
                           pairs.median("nginx", "rps"), pairs.median("forebay", "last_p99"),
                           pairs.median("nginx", "last_p99"))
                if args.former:
                    report.row(name + ", former / now", pairs.median("former", "cpu_per_request"), "",
                               pairs.ratio_text("former", "forebay", "cpu_per_request"), "", "", "", "")
            rig.stop(*sides.values())

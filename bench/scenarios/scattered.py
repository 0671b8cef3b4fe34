# SPDX-License-Identifier: Apache-2.0
"""4 KB at random places in 2 GiB, with blocks of 64 KiB: bytes from the origin for each byte
read."""

import random

KIB = 1 << 10
SIZE, READ = 2 << 30, 4 * KIB


def run(rig, report, args):
    dice = random.Random(11)
    origin = rig.origin(latency=15)
    forebay = rig.forebay(origin, engine=args.engine, extra=("--cache.block_size", "64KiB"))
    places = [dice.randrange(SIZE // READ) * READ for _ in range(1000 if args.quick else 4000)]
    reads = [("/bench/scattered.2G", at, at + READ - 1) for at in places]
    report.head(
        "pass",
        "reads",
        "req/s",
        "origin requests",
        "origin bytes / read",
        "first byte p50 us",
        "forebay CPU us/request",
    )
    for name, most in (("cold", 16), ("warm", 0)):
        got, seen = rig.load(forebay, reads, 16), rig.stats(origin)
        rig.settle(forebay)
        times = seen["bytes"] / got["bytes"]
        report.row(
            name,
            got["requests"],
            got["rps"],
            seen["requests"],
            f"{times:.2f}",
            got["first_p50"],
            got["cpu_per_request"],
        )
        report.wanted(
            f"random 4 KB reads over 2 GiB, {name}: origin bytes / read", times, most=most
        )

# SPDX-License-Identifier: Apache-2.0
"""100 readers request one cold object at once: what the origin is asked for."""


def run(rig, report, args):
    report.head(
        "object",
        "readers",
        "MB/s of all",
        "origin requests",
        "origin bytes / object",
        "forebay CPU ms/MiB",
    )
    for size, length in (
        (("64M", 64 << 20),) if args.quick else (("64M", 64 << 20), ("1G", 1 << 30))
    ):
        for rate in (0, 90):
            origin = rig.origin(latency=15, rate=rate)
            forebay = rig.forebay(origin, engine=args.engine)
            got = rig.load(forebay, [(f"/bench/herd.{size}", None, None)] * 100, 100)
            seen = rig.stats(origin)
            report.row(
                f"{size}, origin {f'{rate} MB/s a connection' if rate else 'without limits'}",
                100,
                got["mb_s"],
                seen["requests"],
                f"{seen['bytes'] / length:.2f}",
                got["cpu_per_mib"] / 1000,
            )
            report.wanted(
                f"100 readers of one cold {size}B, {rate or 'any'} MB/s: origin bytes / object",
                seen["bytes"] / length,
                most=1.005,
            )
            rig.stop(origin, forebay)

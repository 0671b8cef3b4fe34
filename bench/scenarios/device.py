# SPDX-License-Identifier: Apache-2.0
"""Hits that are not in memory, and misses that do not stay there. Each server has a memory group of
its own, and holds more data than that, or less: data / memory. Objects or their ranges are read at
random; misses are objects that nobody has read before."""

import contextlib
import os
import sys

from lib.rig import ROOT, Pairs

sys.path.insert(0, str(ROOT / "tests" / "scenario"))
from cgroup import MemoryCgroup  # noqa: E402

MIB = 1 << 20
MEMORY_MIB = 512
SHARES = (0.5, 1, 2, 4, 16)
READS = {  # name: (MiB of an object, bytes of a range, connections)
    "1 MiB objects, 16 connections": (1, None, 16),
    "256 KiB ranges, 16 connections": (1, MIB // 4, 16),
    "64 MiB objects, 1 connection": (64, None, 1),
}
MISSES = {  # name: (MiB of an object, connections)
    "misses of 1 MiB objects, 16 connections": (1, 16),
    "misses of 64 MiB objects, 1 connection": (64, 1),
}


def requests(data_mib, object_mib, length):
    """All objects, or all of their ranges of LENGTH bytes."""
    for number in range(max(data_mib // object_mib, 1)):
        path = f"/bench/device/{number}.{object_mib}M"
        if length is None:
            yield path, None, None
        else:
            whole = object_mib * MIB
            yield from ((path, at, at + length - 1) for at in range(0, whole, length))


def judge(report, share, name, pairs):
    if share != SHARES[-2] or name in MISSES:
        return
    what = f"hits not in memory, {name}"
    report.compare(f"{what}: CPU ms/MiB", pairs.values("cpu_per_mib", unit=1000), "nginx", most=0.4)
    report.compare(f"{what}: MB/s / nginx", pairs.values("mb_s", over="nginx"), "nginx", least=1)


def measure_share(rig, report, args, share):
    memory = MEMORY_MIB // 4 if args.quick else MEMORY_MIB
    data_mib = int(memory * share)
    for object_mib in sorted({shape[0] for shape in READS.values()}):
        with contextlib.ExitStack() as groups:

            def group(side):
                name = f"device-{os.getpid()}-{side}"
                return groups.enter_context(MemoryCgroup(name, memory * MIB)).wrapper

            origin = rig.origin()
            options = {"engine": args.engine, "size": "20GiB"}
            sides = {
                "forebay": rig.forebay(origin, wrapper=group("forebay"), **options),
                "nginx": rig.nginx(origin, size="20g", wrapper=group("nginx")),
            }
            if args.former:
                sides["former"] = rig.forebay(
                    origin, wrapper=group("former"), binary=args.former, **options
                )
            groups.callback(rig.stop, *sides.values(), origin)
            for side, server in sides.items():
                rig.load(server, list(requests(data_mib, object_mib, None)), 4)
                if side != "nginx":
                    rig.settle(server)
            for name, (size, length, connections) in READS.items():
                if size == object_mib:
                    plan = list(requests(data_mib, size, length))
                    seconds = 1 if args.quick else 4

                    def measure(side, number):
                        return rig.load(
                            sides[side], plan, connections, seconds=seconds, random=True
                        )

                    for side in sides:
                        measure(side, None)  # until memory has what it keeps
                    show(report, args, share, name, Pairs(args.rounds, sides, measure))
            for name, (size, connections) in MISSES.items():
                if size == object_mib:

                    def measure(side, number):
                        count = memory // 2 // size
                        paths = [f"/bench/miss{number}/{n}.{size}M" for n in range(count)]
                        plan = [(path, None, None) for path in paths]
                        result = rig.load(sides[side], plan, connections)
                        if side != "nginx":
                            rig.settle(sides[side])
                        return result

                    show(report, args, share, name, Pairs(args.rounds, sides, measure))


def show(report, args, share, name, pairs):
    report.row(
        f"{share}",
        name,
        *(pairs.median(side, "mb_s") for side in ("forebay", "nginx")),
        pairs.ratio_text("forebay", "nginx", "mb_s"),
        *(pairs.median(side, "cpu_per_mib") / 1000 for side in ("forebay", "nginx")),
        *(
            (
                pairs.ratio_text("forebay", "former", "mb_s"),
                pairs.ratio_text("forebay", "former", "cpu_per_mib"),
            )
            if args.former
            else ()
        ),
    )
    judge(report, share, name, pairs)


def run(rig, report, args):
    report.head(
        "data / memory",
        "reads",
        "forebay MB/s",
        "nginx MB/s",
        "forebay / nginx",
        "forebay CPU ms/MiB",
        "nginx CPU ms/MiB",
        *(("forebay / former, MB/s", "forebay / former, CPU") if args.former else ()),
    )
    for share in SHARES:
        if not args.only or args.only == str(share):
            measure_share(rig, report, args, share)

# SPDX-License-Identifier: Apache-2.0
"""Many small objects: how fast they are stored and found, and how soon a server that holds them
answers after a start.

The objects have 4 KB and come from a `dir:` origin. `found` are random warm hits over all objects,
and over the first thousand. A start lasts from the command to the first answered hit, after an
orderly stop and after kill -9."""

import signal
import time


def run(rig, report, args):
    count = 20_000 if args.quick else 100_000
    origin, paths = rig.directory(count)
    forebay = rig.forebay(origin, engine=args.engine)
    report.head(
        "objects",
        "stored/s",
        "CPU us each",
        "found/s, first 1,000",
        "found/s, all",
        "CPU us, first 1,000",
        "CPU us, all",
        "index MiB",
        "first answer after a start ms",
        "first answer after kill -9 ms",
    )
    put = rig.load(forebay, paths, 64, blind=True)
    rig.settle(forebay)
    few, every = (
        rig.load(forebay, some, 16, seconds=3, random=True, blind=True)
        for some in (paths[:1000], paths)
    )
    metrics = rig.metrics(forebay)
    starts = []
    for how in (signal.SIGTERM, signal.SIGKILL):
        place = forebay.place
        forebay.process.send_signal(how)
        forebay.process.wait()
        rig.stop(forebay)
        began = time.monotonic()
        forebay = rig.forebay(origin, engine=args.engine, place=place)
        got = rig.load(forebay, paths[:1], 1, blind=True)
        starts.append((time.monotonic() - began) * 1000)
        if not got["hits"]:
            report.say("The first answer after a start was no hit.")
    report.row(
        count,
        put["rps"],
        put["cpu_per_request"],
        few["rps"],
        every["rps"],
        few["cpu_per_request"],
        every["cpu_per_request"],
        metrics["forebay_index_bytes"] / (1 << 20),
        *starts,
    )

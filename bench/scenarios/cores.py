# SPDX-License-Identifier: Apache-2.0
"""One worker, two, four and so on, each with a core of its own, until half of the cores have one.
Clients and origin have the other half. With each worker come as many more connections. `scale` is
the rate divided by that of one worker. CPU and percentiles are those of a request."""

from lib.rig import Pairs, listed

READS = {  # name: (path, objects, connections for each worker); cold ones have no number of objects
    "warm, 10 KB": ("/bench/small/{}.10K", 1000, 16),
    "warm, 64 MiB": ("/bench/large/{}.64M", 8, 4),
    "cold, 4 KB, origin 30 ms": ("/bench/cold/{}.4K", None, 512),
}


def counts(most):
    """1, 2, 4 and so on, and MOST."""
    return sorted({most, *(1 << i for i in range(most.bit_length()))})


def measure_workers(rig, report, args, workers, most, single):
    """SINGLE has the rates of one worker, {(read, side): requests/s}, once they are measured."""
    cores, others = listed(rig.cpus[:workers]), listed(rig.cpus[most:])
    origin = rig.origin(latency=30, core=others, processes=max(1, most // 2))
    options = {"core": cores, "workers": workers}
    sides = {
        "forebay": rig.forebay(origin, engine=args.engine, **options),
        "nginx": rig.nginx(origin, **options),
    }
    if args.former:
        sides["former"] = rig.forebay(origin, engine=args.engine, binary=args.former, **options)
    client = {"core": others, "clients": most}
    for name, (path, objects, each) in READS.items():
        if args.only and args.only not in name:
            continue
        connections = each * workers

        def measure(side, number):
            if objects:
                more = {"seconds": 1 if args.quick else 3, "random": True, "blind": True}
                keys = range(objects)
            else:
                more = {}
                keys = (
                    f"{side}{number}-{i}" for i in range(connections * (10 if args.quick else 60))
                )
            plan = [(path.format(key), None, None) for key in keys]
            got = rig.load(sides[side], plan, connections, **client, **more)
            return {**got, "tail": got["last_p99"] / got["last_p50"]}

        for server in sides.values() if objects else ():
            for _ in range(2):
                plan = [(path.format(i), None, None) for i in range(objects)]
                rig.load(server, plan, connections, **client)
            if server.name == "forebay":
                rig.settle(server)
        pairs = Pairs(args.rounds, sides, measure)
        for side in sides:
            single.setdefault((name, side), pairs.median(side, "rps"))
        scales = {side: pairs.median(side, "rps") / single[name, side] for side in sides}
        show(report, workers, name, pairs, scales)
        if workers == most:
            judge(report, name, pairs, scales, workers)
    rig.stop(*sides.values(), origin)


def show(report, workers, name, pairs, scales):
    former = "former" in scales
    report.row(
        f"{workers}, {name}",
        *(pairs.median(side, "rps") for side in scales),
        *scales.values(),
        *(pairs.median(side, "last_p50") for side in scales),
        *(pairs.median(side, "last_p99") for side in scales),
        *(pairs.median(side, "cpu_per_request") for side in scales),
        *((pairs.ratio_text("forebay", "former", "cpu_per_request"),) if former else ()),
    )


def judge(report, name, pairs, scales, workers):
    if name == "warm, 10 KB":
        tails = pairs.values("tail")
        report.compare(f"{name}, all workers: p99 / p50", tails, "nginx", most=2)
    if workers > 1 and name.startswith("warm"):
        shares = {
            side: (scale / workers, f"{scale / workers:.2f}") for side, scale in scales.items()
        }
        what = f"{name}: scale for each worker, {workers} workers"
        report.compare(what, shares, "nginx", least=0.94)


def run(rig, report, args):
    most = max(1, len(rig.cpus) // 2)
    sides = ["forebay", "nginx", *(["former"] if args.former else [])]
    report.head(
        "workers, read",
        *(f"{side} req/s" for side in sides),
        *(f"{side} scale" for side in sides),
        *(f"{side} p50 us" for side in sides),
        *(f"{side} p99 us" for side in sides),
        *(f"{side} CPU us" for side in sides),
        *(("CPU / former",) if args.former else ()),
    )
    single = {}
    for workers in counts(most):
        measure_workers(rig, report, args, workers, most, single)
    if most == 1:
        report.say(
            f"This machine has {len(rig.cpus)} cores, and clients and origin need as many as the "
            "workers. So it ran one worker only, which says nothing about how workers scale."
        )

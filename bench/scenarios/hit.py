# SPDX-License-Identifier: Apache-2.0
"""Warm hits: CPU time of the server for each request, with one worker on a core of its own,
signatures off and on, logs off and on. Varnish takes part where it is installed and can do the
same. Then the cost of a request in system calls and in TCP segments with data (up to 64 KiB each on
the loopback), and Forebay's disk engines and workers compared."""

from lib.rig import Pairs, SystemCalls

KIB, MIB = 1 << 10, 1 << 20
SHAPES = {  # name: (connections, requests)
    "10 KB": (16, [(f"/bench/small/{i}.10K", None, None) for i in range(1000)]),
    "112 KB": (16, [(f"/bench/medium/{i}.112K", None, None) for i in range(500)]),
    "256 KB ranges": (
        16,
        [("/bench/big.512M", i * 256 * KIB, (i + 1) * 256 * KIB - 1) for i in range(2048)],
    ),
    "64 MiB": (4, [(f"/bench/large/{i}.64M", None, None) for i in range(8)]),
}
WANTED = {
    False: (0.60, 0.72, 0.65, 0.75),
    True: (0.65, 0.75, 0.70, 0.75),
}  # CPU of nginx's, by signatures
CALLS = {"10 KB": 3, "112 KB": 3, "256 KB ranges": 3, "64 MiB": 2 * 64 * MIB / (512 * KIB)}


def run(rig, report, args):
    origin = rig.origin()
    for signed in (False, True):
        for logs in (False, True):
            if not (logs and args.quick):
                mode(rig, report, args, origin, signed, logs)
    if not args.quick:
        engines(rig, report, args, origin)


def shapes(args):
    return {name: shape for name, shape in SHAPES.items() if not args.only or args.only in name}


def warm(rig, sides, connections, requests, signed):
    for side, server in sides.items():
        for _ in range(2):
            rig.load(server, requests, connections, signed=signed and server.name == "forebay")
    for server in sides.values():
        if server.name == "forebay":
            rig.settle(server)


def mode(rig, report, args, origin, signed, logs):
    text = f"{'signatures verified' if signed else 'open'}, logs {'on' if logs else 'off'}"
    sides = {
        "forebay": rig.forebay(origin, logs=logs, signed=signed, engine=args.engine),
        "nginx": rig.nginx(origin, logs),
    }
    varnish = None if signed or logs else rig.varnish(origin)
    if varnish:
        sides["varnish"] = varnish
    elif not signed and not logs:
        report.say("varnish: not installed.")
    if args.former:
        sides["former"] = rig.forebay(
            origin, logs=logs, signed=signed, engine=args.engine, binary=args.former
        )
    others = [s for s in sides if s != "forebay"]
    rows = []
    report.head(
        text,
        *(f"{s} CPU us" for s in sides),
        *(f"CPU / {s}" for s in others),
        *(f"{s} req/s" for s in sides),
        *(f"{s} p99 us" for s in sides),
    )
    for (name, (connections, requests)), most in zip(SHAPES.items(), WANTED[signed]):
        if name not in shapes(args):
            continue

        def measure(side, _, seconds=1 if args.quick or logs else 2):
            got = rig.load(
                sides[side],
                requests,
                connections,
                seconds=seconds,
                random=True,
                blind=True,
                signed=signed and sides[side].name == "forebay",
            )
            return {**got, "segments_each": got["segments"] / got["requests"]}

        warm(rig, sides, connections, requests, signed)
        pairs = Pairs(args.rounds, sides, measure)
        report.row(
            name,
            *(pairs.median(s, "cpu_per_request") for s in sides),
            *(pairs.ratio_text("forebay", s, "cpu_per_request") for s in others),
            *(pairs.median(s, "rps") for s in sides),
            *(pairs.median(s, "last_p99") for s in sides),
        )
        if not logs:
            values = pairs.values("cpu_per_request", over="nginx")
            report.compare(f"CPU per warm hit / nginx, {name}, {text}", values, "nginx", most=most)
        calls = {}
        for side in sides:
            with SystemCalls(rig, sides[side]) as counted:
                got = measure(side, 0, seconds=0.5)
            calls[side] = counted.count / got["requests"] if counted.count else None
        rows.append(
            (
                name,
                *(number(calls[s]) for s in sides),
                *(pairs.median(s, "segments_each") for s in sides),
            )
        )
        if calls["forebay"] and not logs:
            report.wanted(
                f"system calls per warm hit, {name}, {text}", calls["forebay"], most=CALLS[name]
            )
    report.head(
        f"{text}: per request",
        *(f"{s} system calls" for s in sides),
        *(f"{s} segments" for s in sides),
    )
    for row in rows:
        report.row(*row)
    rig.stop(*sides.values())


def number(calls):
    return "" if calls is None else f"{calls:.2f}" if calls < 100 else f"{calls:.0f}"


def engines(rig, report, args, origin):
    """One core for all: a second worker shares it with the first."""
    sides = {
        "io_uring": rig.forebay(origin, engine="io_uring", workers=1),
        "threads": rig.forebay(origin, engine="threads", workers=1),
        "two workers": rig.forebay(origin, engine="io_uring", workers=2),
    }
    report.head("Forebay, CPU us per hit", *sides, "threads / io_uring", "two workers / one")
    for name, (connections, requests) in shapes(args).items():

        def measure(side, _):
            return rig.load(sides[side], requests, connections, seconds=1, random=True, blind=True)

        warm(rig, sides, connections, requests, False)
        pairs = Pairs(args.rounds, sides, measure)
        report.row(
            name,
            *(pairs.median(s, "cpu_per_request") for s in sides),
            *(
                pairs.ratio_text(s, "io_uring", "cpu_per_request")
                for s in ("threads", "two workers")
            ),
        )
        for side, most in (("threads", 1.25), ("two workers", 1.1)):
            report.wanted(
                f"CPU per warm hit, {name}: {side} / io_uring, one worker",
                pairs.ratio(side, "io_uring", "cpu_per_request")[0],
                most=most,
                text=pairs.ratio_text(side, "io_uring", "cpu_per_request"),
            )
    rig.stop(*sides.values())

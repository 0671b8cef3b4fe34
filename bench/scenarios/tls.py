# SPDX-License-Identifier: Apache-2.0
"""Cold reads from an https origin and from a plain one in the same run, next to nginx (`proxy_ssl`
with certificates verified and sessions reused). Then warm hits over https and plain, next to nginx
(`listen ssl`). All speak TLS 1.3 with AES-128-GCM. CPU is the server's. Large objects fill a cache
that was full before, as in `stream`."""

from lib.rig import Pairs

STREAMS = {  # name: (size, objects in a round, connections, latency ms, MB/s of a connection)
    "1 GiB, 15 ms, 90 MB/s": ("1G", 1, 1, 15, 90),
    "256 MiB, no limits": ("256M", 3, 1, 0, 0),
    "64 MiB, no limits, 16 connections": ("64M", 32, 16, 0, 0),
}
SMALL = {
    "10 KB, no limits, 1 connection": ("10K", 1000, 1, 0, 0),
    "4 KB, 30 ms, 256 connections": ("4K", 15000, 256, 30, 0),
}
HITS = {  # name: (size, objects, connections)
    "10 KB, 16 connections": ("10K", 1000, 16),
    "64 MiB, 4 connections": ("64M", 8, 4),
}
LARGE_COLUMNS = {"MB/s": ("mb_s", 1), "CPU ms/MiB": ("cpu_per_mib", 1000)}
SMALL_COLUMNS = {"requests/s": ("rps", 1), "CPU us/request": ("cpu_per_request", 1)}
FIRST_BYTE = {"first byte ms": ("first_p50", 1000)}


def encrypted(values):
    """Of the values of all sides those over TLS, by the names of the servers."""
    return {side[:-4]: value for side, value in values.items() if side.endswith(" TLS")}


def both(side):
    return side, f"{side} TLS"


def head(report, title, columns):
    names = [f"{name}, {kind}" for name in columns for kind in ("plain", "TLS")]
    report.head(title, "server", *names, "CPU, TLS / plain")


def rows(report, name, pairs, columns):
    for side in (side for side in pairs.rows if not side.endswith(" TLS")):
        cells = [
            pairs.median(one, figure) / unit
            for figure, unit in columns.values()
            for one in both(side)
        ]
        ratio = pairs.ratio_text(f"{side} TLS", side, "cpu_per_request")
        report.row(name, side, *cells, "" if side == "direct" else ratio)


def judge(report, what, pairs, rate):
    costs = encrypted(pairs.values("cpu_per_request", over="nginx TLS"))
    report.compare(f"{what}: CPU / nginx", costs, "nginx", most=1)
    rates = encrypted(pairs.values(rate, over="nginx TLS"))
    report.compare(
        f"{what}: {'MB/s' if rate == 'mb_s' else 'requests/s'} / nginx", rates, "nginx", least=1
    )


def cold(rig, report, args, name, shape, columns):
    size, count, connections, latency, rate = shape
    count = max(count // 4, 1) if args.quick else count
    large = columns is LARGE_COLUMNS
    options = {"size": "2GiB", "extra": ("--cache.policy", "lru")} if large else {}
    sides = {}
    for tls in (False, True):
        origin = rig.origin(latency, rate, tls=tls)
        servers = {
            "direct": origin,
            "forebay": rig.forebay(origin, engine=args.engine, **options),
            "nginx": rig.nginx(origin, size="2g" if large else "8g"),
        }
        if args.former:
            servers["former"] = rig.forebay(
                origin, engine=args.engine, binary=args.former, **options
            )
        sides |= {both(side)[tls]: server for side, server in servers.items()}
    # As many as open the connections to the origin, which are kept.
    first = [(f"/bench/warm/{i}.1K", None, None) for i in range(2 * connections)]
    full = [(f"/bench/full/{i}.64M", None, None) for i in range(40 if large and not rate else 0)]

    def load(side, requests):
        server = sides[side]
        got = rig.load(server, requests, connections, tls=side == "direct TLS", first=True)
        if server.name == "forebay":
            rig.settle(server)
        return got

    def measure(side, number):
        paths = (f"/bench/tls/{number}/{i}.{size}" for i in range(count))
        return load(side, [(path, None, None) for path in paths])

    for side in sides:
        load(side, first + full)
    pairs = Pairs(args.rounds, sides, measure)
    rows(report, name, pairs, columns | FIRST_BYTE)
    judge(report, f"cold from https, {name}", pairs, next(iter(columns.values()))[0])
    rig.stop(*sides.values())


def hits(rig, report, args):
    origin = rig.origin()
    servers = {
        "forebay": rig.forebay(origin, engine=args.engine, tls=True),
        "nginx": rig.nginx(origin, tls=True),
    }
    if args.former:
        servers["former"] = rig.forebay(origin, engine=args.engine, tls=True, binary=args.former)
    sides = {name: server for side, server in servers.items() for name in both(side)}
    columns = SMALL_COLUMNS | {"p99 us": ("last_p99", 1)}
    head(report, "warm hits over https", columns)
    for name, (size, count, connections) in HITS.items():
        if args.only and args.only not in name:
            continue
        requests = [(f"/bench/hits/{i}.{size}", None, None) for i in range(count)]
        for side, server in sides.items():
            rig.load(server, requests, connections, tls=side.endswith(" TLS"))
            if server.name == "forebay":
                rig.settle(server)

        def measure(side, _):
            return rig.load(
                sides[side],
                requests,
                connections,
                seconds=1 if args.quick else 2,
                random=True,
                blind=True,
                tls=side.endswith(" TLS"),
            )

        pairs = Pairs(args.rounds, sides, measure)
        rows(report, name, pairs, columns)
        judge(report, f"warm hits over https, {name}", pairs, "rps")
    rig.stop(*servers.values())


def run(rig, report, args):
    for title, shapes, columns in (
        ("large objects, cold from https", STREAMS, LARGE_COLUMNS),
        ("small objects, cold from https", SMALL, SMALL_COLUMNS),
    ):
        head(report, title, columns | FIRST_BYTE)
        for name, shape in shapes.items():
            if not args.only or args.only in name:
                cold(rig, report, args, name, shape, columns)
    hits(rig, report, args)

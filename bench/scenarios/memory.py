# SPDX-License-Identifier: Apache-2.0
"""Forebay's memory: anonymous, and resident, which also counts mapped files (the index). All
figures are MiB.

Objects of 4 KB come from a `dir:` origin, each a block. Then 512 connections are busy. Then
connections that have sent one request are idle. At the end, on a server of its own, 500 readers
read cold objects at 0.2 MB/s each."""

import socket
import time

from lib.rig import Load

IDLE = 10_000


def run(rig, report, args):
    count = 50_000 if args.quick else 1_000_000
    origin, paths = rig.directory(count)
    forebay = rig.forebay(origin, engine=args.engine, size="16GiB")
    report.head("", "anonymous", "resident", "blocks")

    def show(what, figures=None):
        anonymous, resident = figures or forebay.memory_mib()
        report.row(what, anonymous, resident, int(rig.metrics(forebay)["forebay_cache_blocks"]))
        return anonymous, resident

    show("started")
    rig.load(forebay, paths, 64, blind=True)
    rig.settle(forebay)
    show(f"{count:,} objects stored")
    busy = Load(rig, forebay, paths, 512, seconds=4, random=True, blind=True)
    most = watch(forebay, 4)
    busy.result()
    anonymous, resident = show("most with 512 busy connections", most[0])
    report.wanted(f"anonymous MiB, {count:,} blocks and 512 connections", anonymous, most=64)
    report.wanted(
        f"resident MiB with the index's pages, {count:,} blocks and 512 connections",
        resident,
        most=64,
    )
    idle(forebay, paths, report, show)
    rig.stop(forebay)
    slow_readers(rig, report, args)


def watch(server, seconds):
    """Of SECONDS: the most that memory was, and what it was at the first and the last look."""
    looks = []
    for _ in range(int(seconds * 5)):
        time.sleep(0.2)
        looks.append(server.memory_mib())
    return tuple(map(max, zip(*looks))), looks[0], looks[-1]


def idle(forebay, paths, report, show):
    before, sockets = forebay.memory_mib(), []
    try:
        for number in range(IDLE):
            sock = socket.socket()
            sockets.append(sock)
            sock.bind(
                (f"127.0.0.{1 + number % 2}", 0)
            )  # two addresses, because one has too few ports
            sock.connect(("127.0.0.1", forebay.port))
            sock.sendall(
                f"GET {paths[number % len(paths)][0]} HTTP/1.1\r\nHost: "
                f"127.0.0.1:{forebay.port}\r\n\r\n".encode()
            )
            left = None
            got = b""
            while left is None or len(got) < left:
                got += sock.recv(65536)
                head, end, _ = got.partition(b"\r\n\r\n")
                if end:
                    length = head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]
                    left = len(head) + 4 + int(length)
        anonymous, resident = show(f"{IDLE:,} idle connections")
        report.wanted(
            f"growth of anonymous MiB by {IDLE:,} idle connections", anonymous - before[0], most=20
        )
        report.wanted(
            f"growth of resident MiB by {IDLE:,} idle connections", resident - before[1], most=20
        )
    finally:
        for sock in sockets:
            sock.close()


def slow_readers(rig, report, args):
    origin = rig.origin(latency=15, rate=90)
    forebay = rig.forebay(origin, engine=args.engine)
    report.head("500 slow readers of 50 cold objects of 64 MiB, after", "anonymous", "resident")
    load = Load(
        rig,
        forebay,
        [(f"/bench/slow/{i % 50}.64M", None, None) for i in range(500)],
        500,
        seconds=60,
        rate=0.2,
        blind=True,
    )
    times, most = (2, 4, 6) if args.quick else (6, 12, 18), {}
    try:
        for after in times:
            most[after], _, last = watch(forebay, times[0])
            report.row(f"{after} s", *last)
    finally:
        load.stop()
    report.wanted(
        f"anonymous MiB beside 500 slow readers: most in {times[1]}-{times[2]} s / before",
        most[times[2]][0] / most[times[1]][0],
        most=1.1,
    )

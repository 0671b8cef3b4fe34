# SPDX-License-Identifier: Apache-2.0
"""One large object, as the weights of a model are: 16 readers read its ranges of 8 MiB, each into
memory of its own. The origin has 15 ms of latency and gives each connection 90 MB/s. `cold`: a new
cache; `warm`: the third time. Between them a client compares every byte. `local file`: the same
reads of a file that is in the page cache. CPU seconds are the server's, or the reader's, for each
8 GiB. The size is --gib, by default 8 or what memory and disk hold twice."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from lib.rig import ROOT, Pairs

MIB = 1 << 20
READERS = 16
RANGE = 8 * MIB
SIDES = {"direct": "direct", "forebay": "forebay", "former": "former", "local": "local file"}


def fitting(rig, args):
    """GiB of the object."""
    if args.gib:
        return args.gib
    memory = Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()[0]
    room = min(int(memory) * 1024, shutil.disk_usage(rig.folder).free)
    return max(1, min(1 if args.quick else 8, int(room * 0.8 / 2) >> 30))


def write_file(path, gib):
    block = os.urandom(64 * MIB)
    with open(path, "wb") as out:
        for _ in range(gib * 16):
            out.write(block)
        os.fsync(out.fileno())


def read_local(rig, path):
    """Reads the file, and returns the reader's figures."""
    reader = str(ROOT / "bench" / "tools" / "local_reader.py")
    command = [sys.executable, reader, str(path), str(READERS), str(RANGE)]
    done = subprocess.run(
        ["taskset", "-c", rig.client_core, *command], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


def figures(kind, bytes_read, us, cpu_us):
    return {kind: bytes_read / us / 1000, f"{kind}_cpu": cpu_us / 1e6 * (8 << 30) / bytes_read}


def read(rig, server, plan, kind):
    got = rig.load(server, plan, READERS, keep=True)
    return figures(kind, got["bytes"], got["us"], got["server_cpu_us"])


def through(rig, args, origin, plan, gib, binary):
    """Reads through a Forebay with an empty cache: cold, to compare, and warm."""
    options = {"size": f"{gib + gib // 4 + 1}GiB", "engine": args.engine, "binary": binary}
    server = rig.forebay(origin, **options)
    cold = read(rig, server, plan, "cold")
    rig.settle(server)
    rig.load(server, plan, READERS)
    warm = read(rig, server, plan, "warm")
    rig.stop(server)
    shutil.rmtree(server.place)
    return cold | warm


def run(rig, report, args):
    gib = fitting(rig, args)
    origin = rig.origin(latency=15, rate=90)
    file = rig.folder / "weights"
    write_file(file, gib)
    read_local(rig, file)

    def measure(side, number):
        if side == "local":
            got = read_local(rig, file)
            return figures("warm", got["bytes"], got["us"], got["cpu_us"])
        path = f"/bench/weights/{side}{number}.{gib}G"
        plan = [(path, at, at + RANGE - 1) for at in range(0, gib << 30, RANGE)]
        if side == "direct":
            return read(rig, origin, plan, "cold")
        return through(rig, args, origin, plan, gib, args.former if side == "former" else None)

    sides = [side for side in SIDES if side != "former" or args.former]
    pairs = Pairs(args.rounds, sides, measure)
    report.head("", "cold GB/s", "CPU s", "warm GB/s", "CPU s")
    for side in sides:
        shown = ("cold", "cold_cpu", "warm", "warm_cpu")
        has = pairs.rows[side][0]
        cells = (pairs.spread_text(side, figure) if figure in has else "" for figure in shown)
        report.row(f"{SIDES[side]}, {gib} GiB", *cells)
    judge(report, pairs)
    rig.stop(origin)


def judge(report, pairs):
    cold, warm = pairs.values("cold"), pairs.values("warm", over="local")
    report.compare("weights, cold: GB/s", cold, "direct", least=5)
    report.compare("weights, cold: CPU s for each 8 GiB", pairs.values("cold_cpu"), most=5)
    report.compare("weights, warm: GB/s / local file", warm, "local", least=0.9)

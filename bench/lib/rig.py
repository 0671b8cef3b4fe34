# SPDX-License-Identifier: Apache-2.0
"""What every benchmark stands on: an origin, the servers that are compared, a client, and figures of pairs.

    with Rig(args) as rig:
        origin = rig.origin(latency=15, rate=90)
        forebay = rig.forebay(origin)
        result = rig.load(forebay, rig.plan(paths), connections=16)

Everything listens on loopback, on ports that the system chooses, and ends with the rig. A server has the first core,
the client the second and what follows; the origin is on the client's unless told otherwise.
"""
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "scenario"))
from signer import Signer  # noqa: E402

ACCESS = ("AKIABENCHMARK", "secret-of-the-benchmark")
NGINX = """
worker_processes 1;
error_log {dir}/error.log warn;
pid {dir}/nginx.pid;
worker_rlimit_nofile 65536;
events {{ worker_connections 8192; }}
http {{
  log_format json escape=json '{{"ts":"$time_iso8601","id":"$request_id","client":"$remote_addr:$remote_port",'
    '"op":"GetObject","key":"$uri","range":"$http_range","status":$status,"result":'
    '"$upstream_cache_status","bytes":$body_bytes_sent,"etag":"$sent_http_etag","total_ms":'
    '$request_time,"method":"$request_method","ua":"$http_user_agent"}}';
  access_log {log};
  client_body_temp_path {dir}/t1; proxy_temp_path {dir}/t2; fastcgi_temp_path {dir}/t3;
  uwsgi_temp_path {dir}/t4; scgi_temp_path {dir}/t5;
  sendfile on;
  tcp_nodelay on;
  keepalive_timeout 75s;
  keepalive_requests 100000000;
  open_file_cache max=100000 inactive=1h;
  open_file_cache_valid 1h;
  proxy_cache_path {dir}/cache levels=1:2 keys_zone=c:64m max_size={size} inactive=1d use_temp_path=off;
  upstream origin {{ server 127.0.0.1:{origin}; keepalive 1024; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      slice 1m;
      proxy_cache c;
      proxy_cache_key $uri$slice_range;
      proxy_set_header Range $slice_range;
      proxy_set_header Connection "";
      proxy_http_version 1.1;
      proxy_cache_valid 200 206 1d;
      proxy_pass http://origin;
    }}
  }}
}}
"""


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Process:
    """Something that runs: its port, and the CPU time and memory of all of its processes."""

    def __init__(self, name, command, port=None, core=None, **popen):
        self.name, self.port = name, port
        if core is not None:
            command = ["taskset", "-c", str(core), *command]
        self.process = subprocess.Popen(command, start_new_session=True, **popen)

    def pids(self):
        found = [self.process.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                found += [int(p) for p in task.read_text().split() if int(p) not in found]
        return found

    def cpu_us(self):
        total = 0
        for pid in self.pids():
            for task in Path(f"/proc/{pid}/task").iterdir():
                total += int((task / "schedstat").read_text().split()[0])
        return total / 1000

    def resident_mib(self):
        pages = sum(int(Path(f"/proc/{p}/statm").read_text().split()[1]) for p in self.pids())
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

    def wait_listening(self):
        for _ in range(400):
            if self.process.poll() is not None:
                sys.exit(f"{self.name} ended with {self.process.returncode}")
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        sys.exit(f"{self.name} does not listen")

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Rig:
    def __init__(self, args):
        self.args = args
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) < 2:
            sys.exit("two cores are needed: one for the server, one for the client")
        self.server_core, self.client_core = str(cpus[0]), ",".join(map(str, cpus[1:]))
        for tool in ("nginx", "taskset", "cc"):
            if not shutil.which(tool):
                sys.exit(f"{tool} is missing: sh deploy/packages.sh --install bench build")
        self.running = []
        self.folder = Path(tempfile.mkdtemp(prefix="forebay-bench-", dir=args.folder))
        self.folder.chmod(0o755)         # nginx's workers may run as another user
        for tool in ("load", "origin"):
            subprocess.run(["cc", "-O2", "-D_GNU_SOURCE", "-o", str(self.folder / tool),
                            str(ROOT / "bench" / "tools" / f"{tool}.c")], check=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for server in reversed(self.running):
            server.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def stop(self, *servers):
        for server in servers:
            server.stop()
            self.running.remove(server)

    def origin(self, latency=0, rate=0, max_rps=0, core=None):
        command = [str(self.folder / "origin"), "--latency", str(latency), "--rate", str(rate), "--max-rps", str(max_rps)]
        server = Process("origin", command, core=core or self.client_core, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        server.port = int(server.process.stdout.readline())
        self.running.append(server)
        return server

    def stats(self, origin):
        """What the origin has seen since it was last asked."""
        with urllib.request.urlopen(f"http://127.0.0.1:{origin.port}/-/stats", timeout=30) as reply:
            return json.load(reply)

    def nginx(self, origin, logs=False, size="8g", core=None):
        place = Path(tempfile.mkdtemp(prefix="nginx-", dir=self.folder))
        place.chmod(0o755)
        port = free_port()
        log = f"{place}/access.log json buffer=64k flush=1s" if logs else "off"
        (place / "nginx.conf").write_text(NGINX.format(dir=place, log=log, origin=origin.port, port=port, size=size))
        server = Process("nginx", ["nginx", "-p", str(place), "-c", str(place / "nginx.conf"), "-g", "daemon off;"],
                         port, core=core or self.server_core)
        self.running.append(server)
        server.wait_listening()
        return server

    def forebay(self, origin, logs=False, signed=False, workers=1, engine="auto", size="8GiB", core=None, extra=(),
                binary=None):
        place = Path(tempfile.mkdtemp(prefix="forebay-", dir=self.folder))
        rules = {"rules": [{"match": "bench/plain/**", "cache": False}, {"match": "bench/**", "freshness": "immutable"}]}
        (place / "forebay.yaml").write_text(json.dumps(rules))
        command = [binary or self.args.forebay, "serve", "-c", str(place / "forebay.yaml"), "--origin.endpoint",
                   f"http://127.0.0.1:{origin.port}", "--origin.region", "us-east-1", "--credentials.source", "anonymous",
                   "--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0", "--workers", str(workers),
                   "--io.engine", engine, "--cache.dir", str(place / "cache"), "--cache.size", size,
                   "--access_log.path", str(place / "access.log") if logs else "off", *extra]
        if signed:
            allow = [{"bucket": "bench", "prefix": "", "ops": ["read"]}]
            (place / "keys.yaml").write_text(json.dumps([{"id": ACCESS[0], "secret": ACCESS[1], "allow": allow}]))
            (place / "keys.yaml").chmod(0o600)
            command += ["--auth.mode", "verify", "--auth.keys_file", str(place / "keys.yaml")]
        with open(place / "stderr", "wb") as errors:
            server = Process("forebay", command, core=core or self.server_core, stdout=subprocess.DEVNULL, stderr=errors,
                             env={"PATH": os.environ["PATH"], "HOME": str(place)})
        self.running.append(server)
        for what in ("listening", "admin"):
            for _ in range(400):
                text = (place / "stderr").read_text(errors="replace")
                found = re.search(rf"^\s*{what}\s+http://[^\s/]*:(\d+)", text, re.M)
                if found or server.process.poll() is not None:
                    break
                time.sleep(0.05)
            if not found:
                sys.exit(f"forebay does not serve: {text}")
            setattr(server, "port" if what == "listening" else "admin", int(found.group(1)))
        server.cache = place / "cache"
        return server

    def metrics(self, forebay):
        with urllib.request.urlopen(f"http://127.0.0.1:{forebay.admin}/metrics", timeout=30) as reply:
            rows = reply.read().decode().splitlines()
        return {row.rpartition(" ")[0]: float(row.rpartition(" ")[2]) for row in rows if row and not row.startswith("#")}

    def settle(self, forebay):
        """Nothing is in flight and nothing is owed to the disk."""
        for _ in range(1200):
            if self.metrics(forebay)["forebay_fills_inflight"] == 0:
                break
            time.sleep(0.05)
        subprocess.run(["sync", "-f", str(forebay.cache)], check=True)

    def load(self, server, requests, connections, seconds=None, count=None, random=False, rate=None, blind=False,
             signed=False, core=None):
        """The client's figures, and the server's CPU: requests are (path, first, last) or (path, None, None)."""
        host, signer = f"127.0.0.1:{server.port}", Signer(*ACCESS)
        parts = []
        for path, first, last in requests:
            headers = [] if first is None else [("Range", f"bytes={first}-{last}")]
            if signed:
                headers = signer.headers("GET", path, host, headers)
            lines = "".join(f"{n}: {v}\r\n" for n, v in headers)
            parts.append(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: bench\r\n{lines}\r\n\0")
        plan = self.folder / "plan"
        plan.write_bytes("".join(parts).encode())
        command = ["taskset", "-c", core or self.client_core, str(self.folder / "load"), "--port", str(server.port), "--plan",
                   str(plan), "--connections", str(connections)]
        for option, value in (("--seconds", seconds), ("--requests", count), ("--rate", rate)):
            command += [option, str(value)] if value is not None else []
        command += ["--random"] if random else []
        command += ["--blind"] if blind else []
        before = server.cpu_us()
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"load against {server.name}: {done.stderr}")
        got = json.loads(done.stdout)
        if got["wrong"] or got["failed"] or not got["requests"]:
            sys.exit(f"{server.name}: {got}")
        got["server_cpu_us"] = server.cpu_us() - before
        got["cpu_per_request"] = got["server_cpu_us"] / got["requests"]
        got["cpu_per_mib"] = got["server_cpu_us"] / max(got["bytes"] / (1 << 20), 1e-9)
        got["rps"] = got["requests"] * 1e6 / got["us"]
        got["mb_s"] = got["bytes"] / got["us"]
        return got


class Pairs:
    """Figures of interleaved rounds: each round measures every side once, every other one the other way round."""

    def __init__(self, rounds, sides, measure):
        self.rows = {side: [] for side in sides}
        for number in range(rounds):
            for side in list(sides) if number % 2 == 0 else list(sides)[::-1]:
                self.rows[side].append(measure(side, number))

    def median(self, side, figure):
        return statistics.median(row[figure] for row in self.rows[side])

    def ratio(self, side, other, figure):
        """Median, least and most of the paired ratios."""
        some = sorted(a[figure] / b[figure] for a, b in zip(self.rows[side], self.rows[other]))
        return statistics.median(some), some[0], some[-1]

    def ratio_text(self, side, other, figure):
        return "{:.2f} ({:.2f}-{:.2f})".format(*self.ratio(side, other, figure))

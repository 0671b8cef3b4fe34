#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Warm hits: Forebay beside nginx (slice + proxy_cache, tuned) over the same origin in one run.

    bench/hit/hit.py [--seconds 5] [--pairs 5] [--forebay BINARY] [--workers 1] [--keep]

One process each on core 0, wrk on the other cores; access logs of both go to a file, about equally long
lines, buffered. Pairs are interleaved (Forebay, nginx, Forebay, ...), so that a machine whose speed drifts
harms both alike. Printed for each shape: server CPU microseconds per request (user + system of every
process and thread of the server), requests per second, and the ratios Forebay / nginx of the medians.
The origin is a second nginx with static files; neither server asks it during the measurement.
"""
import argparse
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TICKS = os.sysconf("SC_CLK_TCK")
SHAPES = {                      # name: (connections, lua that makes one request's path and range)
    "10 KB objects": (16, 'return wrk.format("GET", "/bench/small/" .. math.random(0, 999))'),
    "112 KB objects": (16, 'return wrk.format("GET", "/bench/medium/" .. math.random(0, 499))'),
    "256 KB ranges of 1 GiB": (
        16, 'local a = math.random(0, 4095) * 262144\n'
        '  return wrk.format("GET", "/bench/big", {["Range"] = "bytes=" .. a .. "-" .. '
        '(a + 262143)})'),
    "64 MiB objects": (4, 'return wrk.format("GET", "/bench/large/" .. math.random(0, 7))'),
}
NGINX = """
worker_processes {workers};
{affinity}
error_log {dir}/error.log warn;
pid {dir}/nginx.pid;
worker_rlimit_nofile 65536;
events {{ worker_connections 4096; }}
http {{
  log_format json escape=json '{{"ts":"$time_iso8601","id":"$request_id","client":"$remote_addr:$remote_port",'
    '"op":"GetObject","key":"$uri","range":"$http_range","status":$status,"result":'
    '"$upstream_cache_status","bytes":$body_bytes_sent,"etag":"$sent_http_etag","total_ms":'
    '$request_time,"method":"$request_method","ua":"$http_user_agent"}}';
  access_log {log};
  client_body_temp_path {dir}/t1; proxy_temp_path {dir}/t2; fastcgi_temp_path {dir}/t3;
  uwsgi_temp_path {dir}/t4; scgi_temp_path {dir}/t5;
  sendfile on;
  tcp_nopush off;
  tcp_nodelay on;
  keepalive_timeout 75s;
  keepalive_requests 100000000;
  open_file_cache max=100000 inactive=1h;
  open_file_cache_valid 1h;
  default_type application/octet-stream;
  {body}
}}
"""
CACHE = """
  proxy_cache_path {dir}/cache levels=1:2 keys_zone=c:64m max_size=8g inactive=1d use_temp_path=off;
  upstream origin {{ server 127.0.0.1:{origin}; keepalive 32; }}
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
"""
STATIC = "server {{ listen 127.0.0.1:{port}; root {data}; }}"


def free_ports(count):
    socks = [socket.socket() for _ in range(count)]
    for sock in socks:
        sock.bind(("127.0.0.1", 0))
    ports = [sock.getsockname()[1] for sock in socks]
    for sock in socks:
        sock.close()
    return ports


def make_data(data):
    rng = random.Random(1)
    bucket = data / "bench"
    for name, count, size in (("small", 1000, 10_240), ("medium", 500, 114_688)):
        (bucket / name).mkdir(parents=True)
        for i in range(count):
            (bucket / name / str(i)).write_bytes(rng.randbytes(size))
    (bucket / "large").mkdir()
    block = rng.randbytes(1 << 20)
    for path, blocks in [(bucket / "large" / str(i), 64) for i in range(8)] + [(bucket / "big",
                                                                               1024)]:
        with open(path, "wb") as out:
            for n in range(blocks):
                out.write(n.to_bytes(8, "little") + block[8:])
    then = time.time() - 3600
    for path in bucket.rglob("*"):
        os.utime(path, (then, then))


def wait_for(port, process, what):
    for _ in range(400):
        if process.poll() is not None:
            sys.exit(f"{what} ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    sys.exit(f"{what} does not listen")


class Server:
    def __init__(self, name, command, port, env=None, out=None):
        self.name, self.port = name, port
        self.process = subprocess.Popen(command, env=env, stdout=out or subprocess.DEVNULL,
                                        stderr=out or subprocess.DEVNULL, start_new_session=True)
        wait_for(port, self.process, name)

    def pids(self):
        ret = [self.process.pid]
        for pid in ret:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                ret += [int(p) for p in task.read_text().split() if int(p) not in ret]
        return ret

    def cpu_seconds(self):
        total = 0
        for pid in self.pids():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / TICKS

    def resident_mib(self):
        pages = sum(int(Path(f"/proc/{p}/statm").read_text().split()[1]) for p in self.pids())
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_nginx(folder, name, body, port, workers, log, core):
    place = folder / name
    place.mkdir()
    affinity = f"worker_cpu_affinity {'auto' if core is None else format(1 << core, 'b')};"
    config = place / "nginx.conf"
    config.write_text(NGINX.format(dir=place, workers=workers, affinity=affinity, log=log, body=body))
    return Server(name, ["nginx", "-p", str(place), "-c", str(config), "-g", "daemon off;"], port)


def script(folder, name, request):
    path = folder / f"{name.replace(' ', '_')}.lua"
    path.write_text(f"""
local thread_number = 1
function setup(thread) thread:set("id", thread_number); thread_number = thread_number + 1 end
function init(args) math.randomseed(id * 7919) end
function request()
  {request}
end
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('\\nJSON {{"requests":%d,"us":%d,"bytes":%d,"errors":%d,"p50":%d,"p99":%d}}\\n',
    summary.requests, summary.duration, summary.bytes,
    e.connect + e.read + e.write + e.status + e.timeout, latency:percentile(50),
    latency:percentile(99)))
end
""")
    return path


def measure(server, lua, connections, seconds, cores):
    before = server.cpu_seconds()
    done = subprocess.run(["taskset", "-c", cores, "wrk", "-t", "1", "-c", str(connections), "-d",
                           f"{seconds}s", "--timeout", "30s", "-s", str(lua),
                           f"http://127.0.0.1:{server.port}"], capture_output=True, text=True)
    cpu = server.cpu_seconds() - before
    line = [x for x in done.stdout.splitlines() if x.startswith("JSON ")]
    if not line:
        sys.exit(f"wrk against {server.name} failed: {done.stdout} {done.stderr}")
    ret = json.loads(line[0][5:])
    if ret["errors"] or not ret["requests"]:
        sys.exit(f"{server.name}: {ret}")
    return {"cpu_us": cpu * 1e6 / ret["requests"], "rps": ret["requests"] * 1e6 / ret["us"],
            "p50_us": ret["p50"], "p99_us": ret["p99"],
            "mib_s": ret["bytes"] / ret["us"] * 1e6 / (1 << 20)}


def warm(server, data):
    """Reads everything twice in order; the bytes are compared."""
    import http.client
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    for turn in range(2):
        for path in sorted(data.rglob("*")):
            if not path.is_file():
                continue
            target = "/" + str(path.relative_to(data))
            connection.request("GET", target)
            reply = connection.getresponse()
            if reply.status != 200:
                sys.exit(f"{server.name}: {target}: {reply.status}")
            with open(path, "rb") as want:
                while True:
                    piece = reply.read(1 << 20)
                    if piece != want.read(len(piece) or 1):
                        sys.exit(f"{server.name}: {target}: wrong bytes")
                    if not piece:
                        break


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--forebay", default=os.environ.get(
        "FOREBAY_BIN", str(ROOT / "build" / "release" / "forebay")))
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("--keep", action="store_true", help="keep the working folder")
    parser.add_argument("--folder", help="where data and caches go (about 4.5 GB)")
    given = parser.parse_args()
    for tool in ("nginx", "wrk", "taskset"):
        if not shutil.which(tool):
            sys.exit(f"{tool} is missing: sh deploy/packages.sh --install bench")
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        sys.exit("two cores are needed: one for the server, one for wrk")
    server_core, load_cores = str(cpus[0]), ",".join(map(str, cpus[1:]))
    folder = Path(tempfile.mkdtemp(prefix="forebay-hit-", dir=given.folder))
    folder.chmod(0o755)          # nginx's workers may run as another user
    running = []
    try:
        data = folder / "data"
        make_data(data)
        origin_port, nginx_port, port, admin = free_ports(4)
        log = "{}/access.log json buffer=64k flush=1s"
        running.append(start_nginx(folder, "origin", STATIC.format(port=origin_port, data=data),
                                   origin_port, 1, "off", None))
        nginx = start_nginx(folder, "nginx", CACHE.format(dir=folder / "nginx", origin=origin_port,
                                                          port=nginx_port), nginx_port,
                            given.workers, log.format(folder / "nginx"), cpus[0])
        running.append(nginx)
        config = folder / "forebay.yaml"
        config.write_text("rules: [{match: 'bench/**', freshness: immutable}]\n")
        with open(folder / "forebay.log", "wb") as out:
            forebay = Server("forebay", [
                "taskset", "-c", server_core, given.forebay, "serve", "-c", str(config),
                "--origin.endpoint", f"http://127.0.0.1:{origin_port}", "--origin.region", "x",
                "--credentials.source", "anonymous", "--listen", f"127.0.0.1:{port}",
                "--admin.listen", f"127.0.0.1:{admin}", "--workers", str(given.workers),
                "--io.engine", given.engine, "--cache.dir", str(folder / "cache"), "--cache.size",
                "4GiB", "--access_log.path", str(folder / "access.log")], port,
                env={"PATH": os.environ["PATH"], "HOME": str(folder)}, out=out)
        running.append(forebay)
        for server in (forebay, nginx):
            warm(server, data)
        print(f"{given.pairs} interleaved pairs of {given.seconds} s, {given.workers} worker(s) on "
              f"core {server_core}, wrk on {load_cores}; medians\n")
        print(f"{'':24} {'CPU us per request':>26}  {'requests/s':>22}  {'p99 us':>17}")
        print(f"{'':24} {'forebay':>9} {'nginx':>9} {'ratio':>6}  {'forebay':>8} {'nginx':>8} "
              f"{'':>4}  {'forebay':>8} {'nginx':>8}")
        figures = {}
        for name, (connections, request) in SHAPES.items():
            lua = script(folder, name, request)
            rows = {"forebay": [], "nginx": []}
            for server in (forebay, nginx):
                measure(server, lua, connections, 1, load_cores)
            for _ in range(given.pairs):
                for server in (forebay, nginx):
                    rows[server.name].append(measure(server, lua, connections, given.seconds,
                                                     load_cores))
            mid = {who: {k: statistics.median(r[k] for r in some) for k in some[0]}
                   for who, some in rows.items()}
            ours, theirs = mid["forebay"], mid["nginx"]
            ratio = statistics.median(a["cpu_us"] / b["cpu_us"]
                                      for a, b in zip(rows["forebay"], rows["nginx"]))
            figures[name] = {**mid, "cpu_ratio": ratio, "rps_ratio": ours["rps"] / theirs["rps"]}
            print(f"{name:24} {ours['cpu_us']:9.1f} {theirs['cpu_us']:9.1f} {ratio:6.2f}  "
                  f"{ours['rps']:8.0f} {theirs['rps']:8.0f} {ours['rps'] / theirs['rps']:4.2f}  "
                  f"{ours['p99_us']:8.0f} {theirs['p99_us']:8.0f}", flush=True)
        print(f"\nresident memory: forebay {forebay.resident_mib():.0f} MiB, nginx "
              f"{nginx.resident_mib():.0f} MiB")
        if given.json:
            Path(given.json).write_text(json.dumps(figures, indent=1))
    finally:
        for server in reversed(running):
            server.stop()
        if given.keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

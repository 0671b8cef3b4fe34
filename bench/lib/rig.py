# SPDX-License-Identifier: Apache-2.0
"""The parts that every benchmark uses: an origin, the servers that are compared, a client, and
figures of pairs.

    with Rig(args) as rig:
        origin = rig.origin(latency=15, rate=90)
        forebay = rig.forebay(origin)
        result = rig.load(forebay, rig.plan(paths), connections=16)

Everything listens on loopback, on free ports, and ends with the rig. A server has the first core,
or as many as it has workers; client and origin share the others unless told otherwise. A server
that has TLS has a `tls_port` beside its port.
"""

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "scenario"))
from ports import free_ports  # noqa: E402
from signer import Signer  # noqa: E402

from .table import number  # noqa: E402

NAMES_OF_A_FILE = 50000  # file systems have a limit
EVENT = "raw_syscalls:sys_enter"
ACCESS = ("AKIABENCHMARK", "secret-of-the-benchmark")
NGINX = """
worker_processes {workers};
error_log {dir}/error.log warn;
pid {dir}/nginx.pid;
worker_rlimit_nofile 65536;
events {{ worker_connections 16384; }}
http {{
  log_format json escape=json '{{"ts":"$time_iso8601","id":"$request_id",'
    '"client":"$remote_addr:$remote_port",'
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
  proxy_cache_path {dir}/cache levels=1:2 keys_zone=c:64m max_size={size} inactive=1d
    use_temp_path=off;
  upstream origin {{ server 127.0.0.1:{origin}; keepalive 4096; }}
  server {{
    listen 127.0.0.1:{port};
    {listen_tls}
    location / {{
      slice 1m;
      proxy_cache c;
      proxy_cache_key $uri$slice_range;
      proxy_set_header Range $slice_range;
      proxy_set_header Connection "";
      proxy_http_version 1.1;
      proxy_cache_valid 200 206 1d;
      proxy_pass {scheme}://origin;
      {origin_tls}
    }}
  }}
}}
"""


NGINX_LISTENS_TLS = """listen 127.0.0.1:{port} ssl;
    ssl_certificate {chain}; ssl_certificate_key {chain};
    ssl_protocols TLSv1.3; ssl_session_cache shared:s:1m;"""
NGINX_ORIGIN_TLS = """proxy_ssl_session_reuse on; proxy_ssl_protocols TLSv1.3;
      proxy_ssl_verify on; proxy_ssl_trusted_certificate {chain};
      proxy_ssl_name localhost; proxy_ssl_server_name on;"""


def python(*names):
    """The first that there is: one of the NAMES below the build folder, the tests', this one."""
    build = Path(os.environ.get("FOREBAY_BUILD_ROOT", ROOT / "build"))
    found = [
        str(p) for p in (build / name / "bin" / "python" for name in (*names, "venv")) if p.exists()
    ]
    return (found or [sys.executable])[0]


class Failure(Exception):
    """A part that a scenario needs did not work."""


class Process:
    """A running server: its port, and the CPU time and memory of all its processes."""

    def __init__(self, name, command, port=None, core=None, wrapper=(), **popen):
        self.name, self.port, self.tls_port = name, port, None
        command = [*wrapper, *command]
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
        """By the clock of each process, which has its ended threads too: the kernel's for io_uring
        come and go."""
        return sum(time.clock_gettime_ns(~pid << 3 | 2) for pid in self.pids()) / 1000

    def memory_mib(self):
        """(anonymous, resident): the second has mapped files as well, the index's pages above
        all."""
        texts = [Path(f"/proc/{p}/status").read_text() for p in self.pids()]
        return tuple(
            sum(int(re.search(rf"{name}:\s+(\d+)", t).group(1)) for t in texts) / 1024
            for name in ("RssAnon", "VmRSS")
        )

    def wait_listening(self):
        for _ in range(400):
            if self.process.poll() is not None:
                raise Failure(f"{self.name} ended with {self.process.returncode}")
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise Failure(f"{self.name} does not listen")

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def url(origin):
    """The endpoint of what origin() gave."""
    return f"{'https' if origin.tls_port else 'http'}://127.0.0.1:{origin.port}"


def listed(cpus):
    """CPUS as taskset takes them."""
    return ",".join(map(str, cpus))


class Rig:
    def __init__(self, args):
        self.args = args
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) <= args.workers:
            sys.exit("more cores are needed: one for each worker, and one for the client")
        self.cpus = cpus
        self.server_core = listed(cpus[: args.workers])
        self.client_core = listed(cpus[args.workers :])
        # The client and the origin are to be faster than the servers, where there are cores.
        self.clients = max(1, (len(cpus) - args.workers) // 2)
        for tool in ("nginx", "taskset", "cc", "openssl"):
            if not shutil.which(tool):
                sys.exit(f"{tool} is missing: sh deploy/packages.sh --install bench build")
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self.running = []
        self.folder = Path(tempfile.mkdtemp(prefix="forebay-bench-", dir=args.folder))
        self.folder.chmod(0o755)  # nginx's workers may run as another user
        for tool in ("load", "origin"):
            subprocess.run(
                [
                    "cc",
                    "-O2",
                    "-D_GNU_SOURCE",
                    "-o",
                    str(self.folder / tool),
                    str(ROOT / "bench" / "tools" / f"{tool}.c"),
                    "-lssl",
                    "-lcrypto",
                ],
                check=True,
            )
        self.chain = self.folder / "chain.pem"  # a certificate and its key
        self._make_certificate()

    def _make_certificate(self):
        key = self.folder / "key.pem"
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "30"),
                *("-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=localhost"),
                *("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
                *("-keyout", str(key), "-out", str(self.chain)),
            ],
            check=True,
            capture_output=True,
        )
        self.chain.chmod(0o600)
        self.chain.write_text(self.chain.read_text() + key.read_text())

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

    def origin(self, latency=0, rate=0, max_rps=0, core=None, file=None, tls=False, processes=None):
        command = [
            str(self.folder / "origin"),
            "--latency",
            str(latency),
            "--rate",
            str(rate),
            "--max-rps",
            str(max_rps),
        ]
        command += ["--tar", str(file)] if file else []
        command += ["--tls", str(self.chain)] if tls else []
        processes = processes or (1 if max_rps or core else self.clients)
        command += ["--processes", str(processes)]
        server = Process(
            "origin",
            command,
            core=core or self.client_core,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        server.port = int(server.process.stdout.readline())
        server.tls_port = server.port if tls else None
        self.running.append(server)
        return server

    def stats(self, origin):
        """Returns the origin's counts since the last call."""
        context = ssl.create_default_context(cafile=self.chain)
        with urllib.request.urlopen(f"{url(origin)}/-/stats", timeout=30, context=context) as reply:
            return json.load(reply)

    def nginx(self, origin, logs=False, size="8g", core=None, wrapper=(), workers=None, tls=False):
        place = Path(tempfile.mkdtemp(prefix="nginx-", dir=self.folder))
        place.chmod(0o755)
        port, tls_port = free_ports(2)
        log = f"{place}/access.log json buffer=64k flush=1s" if logs else "off"
        (place / "nginx.conf").write_text(
            NGINX.format(
                dir=place,
                log=log,
                workers=workers or self.args.workers,
                origin=origin.port,
                scheme=url(origin).partition(":")[0],
                origin_tls=NGINX_ORIGIN_TLS.format(chain=self.chain) if origin.tls_port else "",
                port=port,
                listen_tls=NGINX_LISTENS_TLS.format(port=tls_port, chain=self.chain) if tls else "",
                size=size,
            )
        )
        server = Process(
            "nginx",
            ["nginx", "-p", str(place), "-c", str(place / "nginx.conf"), "-g", "daemon off;"],
            port,
            core=core or self.server_core,
            wrapper=wrapper,
        )
        self.running.append(server)
        server.wait_listening()
        server.tls_port = tls_port if tls else None
        return server

    def forebay(
        self,
        origin,
        logs=False,
        signed=False,
        tls=False,
        workers=None,
        engine="auto",
        size="8GiB",
        core=None,
        extra=(),
        binary=None,
        place=None,
        rules=(),
        wrapper=(),
    ):
        """ORIGIN is what origin() gave, or an endpoint in words. PLACE: the folder of one that was
        stopped. RULES come before those for all of the bench's."""
        place = place or Path(tempfile.mkdtemp(prefix="forebay-", dir=self.folder))
        rules = {
            "rules": [
                *rules,
                {"match": "bench/plain/**", "cache": False},
                {"match": "bench/**", "freshness": "immutable"},
            ]
        }
        (place / "forebay.yaml").write_text(json.dumps(rules))
        endpoint = origin if isinstance(origin, str) else url(origin)
        listen = ["127.0.0.1:0", *(["tls:127.0.0.1:0"] if tls else [])]
        command = [
            binary or self.args.forebay,
            "serve",
            "-c",
            str(place / "forebay.yaml"),
            "--origin.endpoint",
            endpoint,
            "--origin.region",
            "us-east-1",
            "--credentials.source",
            "anonymous",
            "--listen",
            ",".join(listen),
            "--admin.listen",
            "127.0.0.1:0",
            "--workers",
            str(workers or self.args.workers),
            "--io.engine",
            engine,
            "--cache.dir",
            str(place / "cache"),
            "--cache.size",
            size,
            "--access_log.path",
            str(place / "access.log") if logs else "off",
            *extra,
        ]
        if signed:
            allow = [{"bucket": "bench", "prefix": "", "ops": ["read"]}]
            (place / "keys.yaml").write_text(
                json.dumps([{"id": ACCESS[0], "secret": ACCESS[1], "allow": allow}])
            )
            (place / "keys.yaml").chmod(0o600)
            command += ["--auth.mode", "verify", "--auth.keys_file", str(place / "keys.yaml")]
        if endpoint.startswith("https:"):
            command += ["--origin.ca_file", str(self.chain)]
        if tls:
            command += ["--listen_tls.cert", str(self.chain), "--listen_tls.key", str(self.chain)]
        with open(place / "stderr", "wb") as errors:
            server = Process(
                "forebay",
                command,
                core=core or self.server_core,
                wrapper=wrapper,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={"PATH": os.environ["PATH"], "HOME": str(place)},
            )
        self.running.append(server)
        ports = {"port": "listening +http:", "admin": "admin +http:"}
        ports |= {"tls_port": "listening +https:"} if tls else {}
        for name, begins in ports.items():
            for _ in range(4000):
                text = (place / "stderr").read_text(errors="replace")
                found = re.search(rf"^\s*{begins}//[^\s/]*:(\d+)", text, re.M)
                if found or server.process.poll() is not None:
                    break
                time.sleep(0.005)
            if not found:
                raise Failure(f"forebay does not serve: {text}")
            setattr(server, name, int(found.group(1)))
        server.place, server.cache = place, place / "cache"
        return server

    def metrics(self, forebay):
        with urllib.request.urlopen(
            f"http://127.0.0.1:{forebay.admin}/metrics", timeout=30
        ) as reply:
            rows = reply.read().decode().splitlines()
        return {
            row.rpartition(" ")[0]: float(row.rpartition(" ")[2])
            for row in rows
            if row and not row.startswith("#")
        }

    def settle(self, forebay):
        """Waits until nothing is in flight and all writes have reached the disk."""
        for _ in range(1200):
            if self.metrics(forebay)["forebay_fills_inflight"] == 0:
                break
            time.sleep(0.05)
        subprocess.run(["sync", "-f", str(forebay.cache)], check=True)

    def load(self, *args, **options):
        """Runs a Load with these arguments. Returns the client's figures and the server's CPU."""
        return Load(self, *args, **options).result()

    def varnish(self, origin):
        """Starts Varnish, or returns None if it is not installed. It writes no log."""
        if not shutil.which("varnishd"):
            return None
        place = Path(tempfile.mkdtemp(prefix="varnish-", dir=self.folder))
        (port,) = free_ports(1)
        server = Process(
            "varnish",
            [
                "varnishd",
                "-F",
                "-j",
                "none",
                "-n",
                str(place / "work"),
                "-a",
                f"127.0.0.1:{port}",
                "-T",
                "none",
                "-b",
                f"127.0.0.1:{origin.port}",
                "-s",
                "malloc,4g",
                "-t",
                "86400",
                "-p",
                "thread_pools=1",
            ],
            port,
            core=self.server_core,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.running.append(server)
        server.wait_listening()
        return server

    def directory(self, count, size=4096):
        """A `dir:` origin of COUNT objects of SIZE bytes, and their paths: names of a few files."""
        place = Path(tempfile.mkdtemp(prefix="objects-", dir=self.folder)) / "bench"
        place.mkdir()
        paths = []
        for number in range(count):
            if number % 1000 == 0:
                (place / f"{number // 1000}").mkdir()
            if number % NAMES_OF_A_FILE == 0:
                data = place.parent / f"data{number}"
                data.write_bytes(os.urandom(size))
            name = f"{number // 1000}/{number}"
            os.link(data, place / name)
            paths.append((f"/bench/{name}", None, None))
        time.sleep(3)  # Forebay keeps nothing of a file that was changed just now
        return f"dir:{place.parent}", paths

    def program(self, name, *options):
        """Runs bench/NAME/NAME.py and returns its figures."""
        out = self.folder / f"{name}.json"
        done = subprocess.run(
            [
                python(),
                str(ROOT / "bench" / name / f"{name}.py"),
                "--forebay",
                self.args.forebay,
                "--json",
                str(out),
                *options,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise Failure(done.stdout.strip().rpartition("\n")[2])
        return json.loads(out.read_text())

    @contextlib.contextmanager
    def busy_disk(self):
        """Another program writes to the caches' disk all the time, past the page cache."""
        dd = 'dd if=/dev/zero of="$0" bs=1M count=512 oflag=direct conv=notrunc status=none'
        writer = subprocess.Popen(
            [
                *("taskset", "-c", self.client_core),
                *("sh", "-c", f"while {dd}; do :; done", str(self.folder / "busy")),
            ],
            start_new_session=True,
        )
        try:
            yield
            if writer.poll() is not None:
                raise Failure("dd does not write to the disk of --folder")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(writer.pid, signal.SIGKILL)
            writer.wait()

    def may_go_first(self):
        return (
            subprocess.run(["chrt", "-f", "1", "true"], stderr=subprocess.DEVNULL).returncode == 0
        )


class Load:
    """A client at work: requests are (path, first, last) or (path, None, None). `first`: before
    others on its core. `refusals`: error replies are allowed. `keep`: bodies go into memory that
    holds them. `clients`: processes, by default those that the rig's cores have room for."""

    number = 0

    def __init__(
        self,
        rig,
        server,
        requests,
        connections,
        seconds=None,
        count=None,
        random=False,
        rate=None,
        blind=False,
        discard=False,
        keep=False,
        tls=False,
        clients=None,
        signed=False,
        first=False,
        core=None,
        refusals=False,
        pace=None,
    ):
        Load.number += 1
        self.refusals = refusals
        self.server, self.plan = server, rig.folder / f"plan{Load.number}"
        self._write_plan(requests, signed)
        command = [
            str(rig.folder / "load"),
            "--port",
            str(server.tls_port if tls else server.port),
            "--plan",
            str(self.plan),
            "--connections",
            str(connections),
            "--processes",
            str(min(clients or rig.clients, connections)),
        ]
        for option, value in (
            ("--seconds", seconds),
            ("--requests", count),
            ("--rate", rate),
            ("--pace", pace),
        ):
            command += [option, str(value)] if value is not None else []
        for option, wanted in (
            ("--random", random),
            ("--blind", blind),
            ("--discard", discard),
            ("--keep", keep),
            ("--tls", tls),
        ):
            command += [option] if wanted else []
        if first and rig.may_go_first():
            command = ["chrt", "-f", "1", *command]
        self.before = server.cpu_us()
        self.process = subprocess.Popen(
            ["taskset", "-c", core or rig.client_core, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _write_plan(self, requests, signed):
        host, signer = f"127.0.0.1:{self.server.port}", Signer(*ACCESS)
        with open(self.plan, "w", encoding="ascii") as out:
            for path, first, last in requests:
                headers = [] if first is None else [("Range", f"bytes={first}-{last}")]
                if signed:
                    headers = signer.headers("GET", path, host, headers)
                lines = "".join(f"{n}: {v}\r\n" for n, v in headers)
                out.write(
                    f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: bench\r\n{lines}\r\n\0"
                )

    def result(self):
        out, errors = self.process.communicate()
        cpu_us = self.server.cpu_us() - self.before
        self.plan.unlink()
        if self.process.returncode:
            raise Failure(f"load against {self.server.name}: {errors}")
        got = json.loads(out)
        if (
            got["wrong"]
            or got["failed"]
            or (got["refused"] and not self.refusals)
            or not got["requests"]
        ):
            raise Failure(f"{self.server.name}: {got}")
        got["server_cpu_us"] = cpu_us
        got["cpu_per_request"] = cpu_us / got["requests"]
        got["cpu_per_mib"] = cpu_us / max(got["bytes"] / (1 << 20), 1e-9)
        got["rps"] = got["requests"] * 1e6 / got["us"]
        got["mb_s"] = got["bytes"] / got["us"]
        return got

    def stop(self):
        """Ends the client without figures."""
        self.process.kill()
        self.process.communicate()
        self.plan.unlink()


class SystemCalls:
    """How many a server makes within the block: counted by the kernel, or by strace, which slows
    it."""

    def __init__(self, rig, server):
        self.count, self.out = None, rig.folder / "calls"
        pids = [str(p) for p in server.pids()]
        self.perf = (
            shutil.which("perf")
            and not subprocess.run(
                ["perf", "stat", "-e", EVENT, "true"], capture_output=True
            ).returncode
        )
        if self.perf:
            self.command = [
                "perf",
                "stat",
                "-x",
                ",",
                "-o",
                str(self.out),
                "-e",
                EVENT,
                "-p",
                ",".join(pids),
            ]
        elif shutil.which("strace"):
            self.command = [
                "strace",
                "-f",
                "-c",
                "-o",
                str(self.out),
                *(w for p in pids for w in ("-p", p)),
            ]
        else:
            self.command = None

    def __enter__(self):
        if self.command:
            self.process = subprocess.Popen(
                self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            time.sleep(
                0.4
            )  # until it is attached; the server idles, which costs no calls to speak of
        return self

    def __exit__(self, *_):
        if self.command:
            self.process.send_signal(signal.SIGINT)
            self.process.wait()
            found = re.search(
                rf"^(\d+),.*{EVENT}" if self.perf else r"^100\.00\s+\S+\s+\S+\s+(\d+).*total",
                self.out.read_text(),
                re.M,
            )
            self.count = int(found.group(1)) if found else None


class Pairs:
    """Figures of interleaved rounds: each round measures every side once, every other one the other
    way round."""

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

    def values(self, figure, over=None, above=None, unit=1):
        """{side: (number, text)} of the median of FIGURE in UNITs, divided by that of the side OVER
        or less that of the side ABOVE. A side without the figure is left out."""
        sides = [side for side, rows in self.rows.items() if figure in rows[0]]
        if over:
            ratios = {side: self.ratio_text(side, over, figure) for side in sides}
            ratios[over] = "1"
            return {side: (self.ratio(side, over, figure)[0], ratios[side]) for side in sides}
        if above:
            less = self.median(above, figure)
            numbers = {side: (self.median(side, figure) - less) / unit for side in sides}
            return {side: (value, number(value)) for side, value in numbers.items()}
        out = {}
        for side in sides:
            some = sorted(row[figure] / unit for row in self.rows[side])
            value = statistics.median(some)
            out[side] = (value, f"{number(value)} ({number(some[0])}-{number(some[-1])})")
        return out

    def spread_text(self, side, figure):
        some = sorted(row[figure] for row in self.rows[side])
        return f"{statistics.median(some):.2f} ({some[0]:.2f}-{some[-1]:.2f})"

    def ratio_text(self, side, other, figure):
        return "{:.2f} ({:.2f}-{:.2f})".format(*self.ratio(side, other, figure))

# SPDX-License-Identifier: Apache-2.0
"""Forebays behind Debian's HAProxy, in a network namespace of their own: the tier of
deploy/haproxy/haproxy.cfg, which is taken as it stands, on the very addresses and ports that it
names.

HAProxy's log names the node of a request; the node's own metrics count what it fetched."""

import contextlib
import hashlib
import http.client
import io
import re
import shutil
import signal
import socket
import struct
import subprocess
import threading

import boto3
import yaml
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from conftest import made, not_run
from forebay import ROOT, Forebay, binary, scaled
from kubelet import POD_IP
from signer import Signer
from waiting import WAIT_S, wait_for

CONFIG = ROOT / "deploy/haproxy/haproxy.cfg"
LINE = re.compile(
    r"^(?P<client>\S+) \[[^]]+\] (?P<node>\S+) (?P<times>\S+) (?P<status>-?\d+) (?P<bytes>\d+) "
    r"(?P<end>\S{2}) (?P<retries>\+?\d+) (?P<method>\S+) (?P<path>\S+)$"
)
# The defaults but for what takes threads: a test has many of them.
TRANSFER = TransferConfig(
    multipart_threshold=8 << 20, multipart_chunksize=8 << 20, max_concurrency=4
)


def haproxy():
    found = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin:/usr/bin")
    if found is None:
        not_run("no haproxy here")
    return found


class Balancer:
    """HAProxy with this configuration; its log, line by line."""

    def __init__(self, network, folder, text, ports=(8080, 8404)):
        self.network, self.lines, self.ports = network, [], ports
        path = folder / f"haproxy-{ports[0]}.cfg"
        path.write_text(text)
        self.said = folder / f"haproxy-{ports[0]}.stderr"
        with self.said.open("wb") as errors:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", network.name, haproxy(), "-db", "-f", str(path)],
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.decode(errors="replace").rstrip("\n"))

    def states(self):
        """Returns {node: "UP", ...} from the balancer's metrics."""
        status, text = self.network.get("/metrics", self.ports[1])
        if status != 200:
            return {}
        rows = re.findall(
            r'^haproxy_server_status\{proxy="nodes",server="([^"]+)",state="([A-Z]+)"\} 1$',
            text.decode(),
            re.M,
        )
        return dict(rows)

    def wait_up(self, *names):
        """Waits until exactly these nodes take requests."""
        wait_for(
            lambda: {n for n, s in self.states().items() if s == "UP"} == set(names),
            lambda: f"nodes {names}: {self.states()} {self.said.read_text()[-500:]}",
        )

    def mark(self):
        return len(self.lines)

    def seen(self, since=0):
        """Returns the parsed log lines of requests that have ended."""
        return [match.groupdict() for line in self.lines[since:] if (match := LINE.match(line))]

    def homes(self, since=0):
        """{path: names of the nodes that its requests went to}, of those that a node has
        answered."""
        out = {}
        for entry in self.seen(since):
            if entry["node"] != "<NOSRV>" and entry["status"] != "-1":
                out.setdefault(entry["path"], set()).add(entry["node"])
        return out

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.process.wait(WAIT_S)
        self.reader.join(WAIT_S)
        self.process.stdout.close()


class PodBalancer(Balancer):
    """A balancer in a container that the caller starts and removes."""

    def __init__(self, network, container):
        self.network, self.said, self.ports = network, container.log, (8080, 8404)

    @property
    def lines(self):
        return self.said.read_text(errors="replace").splitlines()

    def stop(self):
        pass


class Names:
    """A DNS of A records, for names that may change; of what is not here it says so."""

    ADDRESS = "192.0.2.53"

    def __init__(self, network, names):
        made("ip", "-n", network.name, "address", "add", f"{self.ADDRESS}/32", "dev", "lo")
        self.names = dict(names)

        def bind():
            listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            listener.bind((self.ADDRESS, 53))
            listener.settimeout(0.2)
            return listener

        self.socket = network.inside(bind)
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _serve(self):
        while not self.ended.is_set():
            try:
                query, client = self.socket.recvfrom(4096)
            except TimeoutError:
                continue
            self.socket.sendto(self._answer(query), client)

    def _answer(self, query):
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode())
            at += 1 + query[at]
        question = query[12 : at + 5]
        address = self.names.get(".".join(labels).lower())
        is_a = question[-4:-2] == b"\0\1"
        found = address is not None and is_a
        head = (
            query[:2]
            + (b"\x81\x80" if address else b"\x81\x83")
            + struct.pack(">HHHH", 1, int(found), 0, 0)
        )
        return (
            head
            + question
            + (
                b"\xc0\x0c\0\1\0\1" + struct.pack(">IH", 5, 4) + socket.inet_aton(address)
                if found
                else b""
            )
        )

    def close(self):
        self.ended.set()
        self.thread.join(WAIT_S)
        self.socket.close()


class Tier:
    def __init__(self, network, folder, origin, rules=(), count=3):
        self.network, self.folder, self.origin = network, folder, origin
        self.addresses = re.findall(
            r"^    server (\S+) (\S+):9000 id \d+$", CONFIG.read_text(), re.M
        )
        assert len(self.addresses) == 4
        self.at = dict(self.addresses)  # may change
        for _, address in self.addresses:
            made("ip", "-n", network.name, "address", "add", f"{address}/32", "dev", "lo")
        entry = made(
            binary(),
            "keys",
            "new",
            "reader",
            *(
                word
                for bucket in ("bkt", "scratch")
                for word in ("--allow", f"{bucket}:read,list,write,delete,any")
            ),
        )
        key = yaml.safe_load(entry)[0]
        self.access = key["id"], key["secret"]
        self.keys = folder / "keys.yaml"
        self.keys.write_text(entry)
        self.keys.chmod(0o600)
        self.rules = list(rules)
        self.nodes, self.balancer = {}, None
        for name, _ in self.addresses[:count]:
            self.start(name)

    def start(self, name, **settings):
        """Starts a node. A node that ran before keeps its cache."""
        address = self.at[name]
        if name not in self.nodes:
            self.nodes[name] = Forebay(
                self.folder / name,
                self.origin,
                wrapper=["ip", "netns", "exec", self.network.name],
                file={"rules": self.rules},
                settings={
                    "listen": f"{address}:9000",
                    "listen_plaintext": "network",
                    "admin.listen": f"{address}:9001",
                    "admin.socket": str(self.folder / name / "admin"),
                    "auth.mode": "verify",
                    "auth.keys_file": self.keys,
                    "cache.size": "512MiB",
                    **settings,
                },
            )
        self.nodes[name].start()

    def balance(self, text=None):
        self.balancer = Balancer(self.network, self.folder, text or CONFIG.read_text())
        self.balancer.wait_up(*(name for name, node in self.nodes.items() if node.alive))

    def metric(self, name, row, **labels):
        status, text = self.network.get("/metrics", 9001, self.at[name])
        assert status == 200
        return sum(
            float(line.rpartition(" ")[2])
            for line in text.decode().splitlines()
            if line.partition("{")[0].partition(" ")[0] == row
            and all(f'{k}="{v}"' in line for k, v in labels.items())
        )

    def fetched(self):
        """Returns {node: body bytes that it got from the origin}."""
        return {
            name: self.metric(name, "forebay_origin_received_bytes_total")
            for name, node in self.nodes.items()
            if node.alive
        }

    def late_runs(self):
        """{node: how many runs it has only streamed, because the machine was too slow to store
        them}"""
        return {
            name: sum(
                self.metric(name, "forebay_cache_admission_rejected_total", reason=reason)
                for reason in ("no-segment", "disk-full", "disk-busy", "buffer-full", "index-busy")
            )
            for name, node in self.nodes.items()
            if node.alive
        }

    def settle(self):
        for name, node in self.nodes.items():
            if node.alive:
                wait_for(
                    lambda name=name: self.metric(name, "forebay_fills_inflight") == 0,
                    f"{name}: fills",
                )

    def client(self, **more):
        """Returns a boto3 client with its default retries."""
        return boto3.client(
            "s3",
            endpoint_url=f"http://{POD_IP}:8080",
            region_name="us-east-1",
            aws_access_key_id=self.access[0],
            aws_secret_access_key=self.access[1],
            config=Config(max_pool_connections=32, **more),
        )

    def inside(self, what):
        return self.network.inside(what)

    def ask(self, method, target, host=f"{POD_IP}:8080", headers=(), body=b"", port=8080):
        """(status, body, headers) of one request by hand, signed, the target as it is."""
        signed = Signer(*self.access).headers(method, target, host, headers, body)

        def go():
            connection = http.client.HTTPConnection(POD_IP, port, timeout=30)
            connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in [("Host", host), *signed, ("Content-Length", str(len(body)))]:
                connection.putheader(name, value)
            connection.endheaders(body)
            reply = connection.getresponse()
            out = reply.status, reply.read(), reply.headers
            connection.close()
            return out

        return self.inside(go)

    def stop(self):
        if self.balancer:
            self.balancer.stop()
        for node in self.nodes.values():
            with contextlib.suppress(AssertionError):
                node.stop()
            node.kill9()
            node.wipe_cache()


def download(client, key, into=None):
    """The hash of what came. Into a file that can be sought in: only there boto3 writes again what
    it has asked for again."""
    into = io.BytesIO() if into is None else into
    client.download_fileobj("bkt", key, into, Config=TRANSFER)
    return hashlib.sha256(into.getvalue()).digest()


class Load:
    """THREADS clients that read all keys, each in an order of its own, round after round until told
    to end."""

    def __init__(self, tier, sums, threads=scaled(8, 3)):
        self.tier, self.sums, self.failed, self.rounds = tier, sums, [], [0] * threads
        self.ending = threading.Event()
        self.threads = []

        def begin():
            client = tier.client()
            for number in range(threads):
                self.threads.append(
                    threading.Thread(target=self._run, args=(client, number), daemon=True)
                )
                self.threads[-1].start()

        tier.inside(begin)

    def _run(self, client, number):
        keys = sorted(self.sums)
        step = [1, 7, 11, 13, 17, 19, 23, 29][number % 8]
        while len(keys) % step == 0 and step > 1:
            step += 1
        while not self.ending.is_set():
            for i in range(len(keys)):
                key = keys[(i * step + number * 5) % len(keys)]
                try:
                    if download(client, key) != self.sums[key]:
                        self.failed.append(f"{key}: wrong bytes")
                except Exception as e:  # noqa: BLE001: judged by the test
                    self.failed.append(f"{key}: {e!r}")
            self.rounds[number] += 1

    def wait_rounds(self, more):
        """Waits until each client has begun and ended this many more rounds."""
        wanted = [n + more + 1 for n in self.rounds]
        wait_for(
            lambda: self.failed or all(have >= want for have, want in zip(self.rounds, wanted)),
            "rounds of the load",
            3 * WAIT_S,
        )

    def end(self):
        self.ending.set()
        for thread in self.threads:
            thread.join(WAIT_S)
            assert not thread.is_alive(), "a client hangs"
        assert self.failed == []

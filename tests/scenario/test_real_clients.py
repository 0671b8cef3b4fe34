# SPDX-License-Identifier: Apache-2.0
"""Upgrades and reloads under real clients that do not retry. No request fails and no byte is wrong.

The clients are boto3 (plain, TLS, a slow reader), s5cmd, rclone and the AWS command line. They
read, list and upload, also in parts. Each client's own retries are off, as far as it allows.
Additional clients of our own measure the longest wait.
"""

import json
import os
import random
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
import upgrading
from forebay import parallel, scaled
from test_origin_trouble import certificate  # noqa: F401 (a fixture)
from test_reload import merged
from test_control import ask as command
from upgrading import Installed, upgrade
from waiting import wait_for

MIB = 1 << 20
SIZES = (900, 70_000, 1_200_000, 9 * MIB)


class Clients:
    """Each client is a function that runs until the test is over. It counts what it has done, and
    raises what failed."""

    def __init__(self, server, origin, tls, trust, folder):
        self.server, self.origin, self.tls, self.trust, self.folder = (
            server,
            origin,
            tls,
            trust,
            folder,
        )
        self.plain = f"http://127.0.0.1:{server.port}"
        self.over = threading.Event()
        self.counts, self.longest = {}, 0.0
        self.keys = [f"data/{i}" for i in range(16)]
        for i, key in enumerate(self.keys):
            origin.put(key, SIZES[i % len(SIZES)])
        self.env = {
            **os.environ,
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "y",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL_S3": self.plain,
            "AWS_CONFIG_FILE": "/dev/null",
            "HOME": str(folder),
        }
        for part, value in (
            ("TYPE", "s3"),
            ("PROVIDER", "Other"),
            ("ACCESS_KEY_ID", "x"),
            ("SECRET_ACCESS_KEY", "y"),
            ("REGION", "us-east-1"),
            ("ENDPOINT", self.plain),
            ("NO_CHECK_BUCKET", "true"),
            ("FORCE_PATH_STYLE", "true"),
            ("CHUNK_SIZE", "5Mi"),
            ("UPLOAD_CUTOFF", "5Mi"),
        ):
            self.env[f"RCLONE_CONFIG_FB_{part}"] = value

    def did(self, name, count=1):
        self.counts[name] = self.counts.get(name, 0) + count

    def truth(self, key, first=0, length=None):
        return self.origin.bytes_of(
            key, first, self.origin.version(key).size if length is None else length
        )

    def _boto3(self, endpoint):
        import boto3
        from boto3.s3.transfer import TransferConfig
        from botocore.config import Config

        config = Config(
            retries={"total_max_attempts": 1},
            s3={"addressing_style": "path"},
            max_pool_connections=8,
            connect_timeout=60,
            read_timeout=120,
        )
        s3 = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id="x",
            aws_secret_access_key="y",
            region_name="us-east-1",
            config=config,
            verify=self.trust,
        )
        return s3, TransferConfig(
            multipart_threshold=5 * MIB,
            multipart_chunksize=5 * MIB,
            max_concurrency=3,
            num_download_attempts=1,
        )

    def boto3_with(self, name, endpoint):
        s3, transfer = self._boto3(endpoint)
        dice = random.Random(name)
        while not self.over.is_set():
            key = dice.choice(self.keys)
            size = self.origin.version(key).size
            if dice.random() < 0.3:
                first = dice.randrange(size)
                last = dice.randrange(first, size)
                got = s3.get_object(Bucket="bkt", Key=key, Range=f"bytes={first}-{last}")
                assert got["Body"].read() == self.truth(key, first, last - first + 1)
            else:
                assert s3.get_object(Bucket="bkt", Key=key)["Body"].read() == self.truth(key)
            self.did(name)
            if dice.random() < 0.3:  # with Expect: 100-continue
                body = dice.randbytes(dice.randrange(1, 200_000))
                s3.put_object(Bucket="bkt", Key=f"{name}/small", Body=body)
                assert s3.get_object(Bucket="bkt", Key=f"{name}/small")["Body"].read() == body
                self.did(name, 2)
            if dice.random() < 0.08:
                path = self.folder / name
                path.write_bytes(dice.randbytes(11 * MIB))
                s3.upload_file(str(path), "bkt", f"{name}/parts", Config=transfer)
                s3.download_file("bkt", f"{name}/parts", f"{path}.back", Config=transfer)
                assert Path(f"{path}.back").read_bytes() == path.read_bytes()
                self.did(name, 8)
            if dice.random() < 0.1:
                assert len(s3.list_objects_v2(Bucket="bkt", Prefix="data/")["Contents"]) == len(
                    self.keys
                )
                self.did(name)

    def slow_reader(self):
        """Takes two seconds for each object, some of it after the upgrade during the read."""
        s3, _ = self._boto3(self.plain)
        key = self.keys[3]
        while not self.over.is_set():
            body, got = s3.get_object(Bucket="bkt", Key=key)["Body"], b""
            while piece := body.read(MIB // 4):
                got += piece
                time.sleep(0.05)  # it is a slow reader
            assert got == self.truth(key)
            self.did("slow reader")

    def _run(self, name, *words, requests):
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0 and "ERROR" not in done.stderr, (
            words,
            done.stdout[-2000:],
            done.stderr[-2000:],
        )
        self.did(name, requests)

    def _down_and_up(self, name, down, up, back):
        folder = self.folder / name
        while not self.over.is_set():
            shutil.rmtree(folder, ignore_errors=True)
            (folder / "up").mkdir(parents=True)
            self._run(name, *down(folder / "down"), requests=len(self.keys) + 1)
            for key in self.keys:
                assert (folder / "down" / key.removeprefix("data/")).read_bytes() == self.truth(
                    key
                ), key
            for i, size in enumerate((1000, 11 * MIB)):
                (folder / "up" / str(i)).write_bytes(random.randbytes(size))
            self._run(name, *up(folder / "up"), requests=6)
            self._run(name, *back(folder / "back"), requests=3)
            for i in range(2):
                assert (folder / "back" / str(i)).read_bytes() == (
                    folder / "up" / str(i)
                ).read_bytes()

    def s5cmd(self):
        tool = [
            shutil.which("s5cmd"),
            "--endpoint-url",
            self.plain,
            "--retry-count",
            "0",
            "--log",
            "error",
        ]
        self._down_and_up(
            "s5cmd",
            lambda to: [*tool, "cp", "s3://bkt/data/*", f"{to}/"],
            lambda of: [*tool, "cp", "--part-size", "5", f"{of}/", "s3://bkt/s5cmd/"],
            lambda to: [*tool, "cp", "s3://bkt/s5cmd/*", f"{to}/"],
        )

    def rclone(self):
        tool = [
            shutil.which("rclone"),
            "--retries",
            "1",
            "--low-level-retries",
            "1",
            "--ignore-times",
            "--ignore-checksum",
            "-q",
        ]
        self._down_and_up(
            "rclone",
            lambda to: [*tool, "copy", "fb:bkt/data", str(to)],
            lambda of: [*tool, "copy", str(of), "fb:bkt/rclone"],
            lambda to: [*tool, "copy", "fb:bkt/rclone", str(to)],
        )

    def aws(self):
        tool = [shutil.which("aws"), "s3", "cp", "--recursive", "--only-show-errors"]
        self._down_and_up(
            "aws",
            lambda to: [*tool, "s3://bkt/data/", str(to)],
            lambda of: [*tool, str(of), "s3://bkt/aws/"],
            lambda to: [*tool, "s3://bkt/aws/", str(to)],
        )

    def waiter(self):
        """Reads small hits on connections of its own, one after another, and measures the
        longest."""
        key = self.keys[0]
        while not self.over.is_set():
            began = time.monotonic()
            with self.server.client() as client:
                reply = client.get(key)
                assert reply.status == 200 and bytes(reply.body) == self.truth(key)
            self.longest = max(self.longest, time.monotonic() - began)
            self.did("small hits")
            time.sleep(0.005)  # it measures waits and causes no load

    def all(self):
        out = [
            lambda: self.boto3_with("boto3-a", self.plain),
            lambda: self.boto3_with("boto3-b", self.plain),
            lambda: self.boto3_with("boto3-tls", self.tls),
            self.slow_reader,
            self.waiter,
        ]
        return out + [
            getattr(self, name) for name in ("s5cmd", "rclone", "aws") if shutil.which(name)
        ]

    def run_while(self, work):
        """Runs WORK while all clients run."""
        runners = self.all()

        def guarded(i):
            try:
                return runners[i]() if i < len(runners) else work(self)
            finally:
                self.over.set()

        parallel(len(runners) + 1, guarded, wait=6000)

    def settle(self):
        """Waits until each client has completed another request."""
        before = dict(self.counts)
        wait_for(
            lambda: (
                self.over.is_set()
                or all(
                    self.counts.get(name, 0) > before.get(name, 0)
                    for name in ("boto3-a", "boto3-b", "boto3-tls", "small hits")
                )
            ),
            "every client",
            300,
        )


@pytest.fixture
def clients(start, origin, certificate, tmp_path):
    pytest.importorskip("boto3", reason="NOT RUN: boto3 is not installed")
    upgrading.adopt_orphans(True)
    installed = Installed(tmp_path / "installed")
    server = start(
        origin,
        run=False,
        file={"rules": [{"match": "bkt/data/**", "freshness": "immutable"}]},
        settings={
            "listen": "127.0.0.1:0,tls:127.0.0.1:0",
            "listen_tls.cert": certificate[0],
            "listen_tls.key": certificate[1],
        },
    )
    server.binary_path = str(installed.path)
    server.start()
    tls = server.tls_endpoint
    yield Clients(server, origin, tls, certificate[0], tmp_path)
    upgrading.adopt_orphans(False)


def tell(figure, clients, what):
    total = sum(clients.counts.values())
    figure(
        f"{what}: {total} requests at least "
        f"({', '.join(f'{n} {c}' for n, c in sorted(clients.counts.items()))}), 0 failed; "
        f"a small hit waited {clients.longest * 1000:.0f} ms at most"
    )


@pytest.mark.timeout(7200)
def test_upgrades(clients, figure):
    count = scaled(50, 3)

    def work(c):
        for _ in range(count):
            c.settle()
            if c.over.is_set():
                return
            upgrade(c.server)
        c.settle()

    clients.run_while(work)
    tell(figure, clients, f"{count} upgrades under real clients")
    assert len([line for line in clients.server.stderr if '"upgraded"' in line]) == count


@pytest.mark.timeout(7200)
def test_reloads(clients, figure):
    """Reloads switch between files that differ in rules, limits, buckets and logs."""
    count = scaled(100, 10)
    server = clients.server
    base = server.file
    other = {
        "rules": [{"match": "bkt/data/**", "freshness": "strict", "block_size": "256KiB"}],
        "buckets": [
            {"name": "elsewhere", "origin": "s3://bkt", "endpoint": clients.origin.endpoint}
        ],
        "limits": {"max_inflight": "2000", "max_connections": "2000", "max_buffer": "96MiB"},
        "log": {"keys": "hash"},
        "cache": {"list_ttl": "1s"},
    }
    # A bucket gets an origin of its own at the same endpoint: cold, and not another object.
    moved = merged(
        base,
        {
            "buckets": [
                {
                    "name": "bkt",
                    "origin": "s3://bkt",
                    "endpoint": clients.origin.endpoint,
                    "region": "us-east-1",
                }
            ]
        },
    )

    def work(c):
        for turn in range(count):
            if turn % 5 == 0:
                c.settle()
            if c.over.is_set():
                return
            (server.folder / "forebay.yaml").write_text(json.dumps((other, moved, base)[turn % 3]))
            command(server, "reload")
        c.settle()

    clients.run_while(work)
    tell(figure, clients, f"{count} reloads under real clients")

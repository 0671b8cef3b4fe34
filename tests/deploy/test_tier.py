# SPDX-License-Identifier: Apache-2.0
"""A tier of three Forebays behind HAProxy by deploy/haproxy/haproxy.cfg, really run: what it keeps
of a single node's promises, while it stands and while nodes come and go, and where
deploy/haproxy/README.md says that it does not."""

import collections
import hashlib
import http.client
import io
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import charts
import pytest
from botocore.exceptions import ClientError
from conftest import KEYS, made, not_run
from forebay import binary, scaled
from kubelet import Pod
from origin import Origin
from pods import network  # noqa: F401 (a fixture)
from tier import CONFIG, TRANSFER, Balancer, Load, Names, PodBalancer, Tier, download, haproxy
from waiting import wait_for

IMMUTABLE = [{"match": "bkt/**", "freshness": "immutable"}]
NODES = {"forebay-0", "forebay-1", "forebay-2"}


@pytest.fixture
def origin(network):
    made_here = Origin(bucket="bkt", credentials=KEYS)
    made_here.make_bucket("scratch")
    network.inside(made_here.start)
    yield made_here
    made_here.stop()
    assert not made_here.violations, made_here.violations[:5]


@pytest.fixture
def tier(network, origin, tmp_path):
    made_here = []

    def make(rules=IMMUTABLE, config=None, balance=True, **more):
        made_here.append(Tier(network, tmp_path, origin, rules, **more))
        if balance:
            made_here[-1].balance(config)
        return made_here[-1]

    yield make
    for one in made_here:
        one.stop()


def data_set(origin, count=None, seed=7):
    """Small objects, and one in eight of several runs; {key: sha256}."""
    dice = random.Random(seed)
    out = {}
    for i in range(count or scaled(640, 64)):
        size = 4 << 20 | dice.randrange(1 << 20) if i % 8 == 0 else dice.randrange(1, 200 << 10)
        key = f"train/shard-{i:05}.tar"
        origin.put(key, size)
        out[key] = hashlib.sha256(origin.bytes_of(key)).digest()
    return out


def read_all(tier, sums, order=None):
    client = tier.client()
    for key in order or sums:
        assert download(client, key) == sums[key], key


def homes(tier, since=0):
    """Returns {key: its node}. Each key has one node."""
    out = {}
    for path, nodes in tier.balancer.homes(since).items():
        assert len(nodes) == 1, (path, nodes)
        out[path.removeprefix("/bkt/")] = next(iter(nodes))
    return out


def warm(tier, sums):
    """Reads everything once, waits until it is stored, and returns the node of each key."""
    since = tier.balancer.mark()
    tier.inside(lambda: read_all(tier, sums))
    tier.settle()
    wait_for(lambda: len(tier.balancer.homes(since)) >= len(sums), "the balancer's log")
    return homes(tier, since)


def get_count(origin, since):
    """Returns {key: number of GETs at the origin}."""
    out = {}
    for entry in origin.requests(method="GET", since=since):
        if entry.key:
            out[entry.key] = out.get(entry.key, 0) + 1
    return out


# --- A tier that stands ---------------------------------------------------------------------------


def test_each_byte_is_asked_of_the_origin_once_by_the_whole_tier(tier, origin, figure):
    """Many clients read whole objects and ranges at once. Each node has its share."""
    sums = data_set(origin)
    one = tier()
    load = Load(one, sums)
    load.wait_rounds(1)
    load.end()
    total = sum(origin.version(key).size for key in sums)
    assert [key for key in sums if origin.sent_twice(key)] == []
    assert sum(origin.bytes_sent(key) for key in sums) == total
    fetched = one.fetched()
    assert set(fetched) == NODES and sum(fetched.values()) == total, (fetched, total)
    placed = homes(one)
    shares = {name: sum(node == name for node in placed.values()) / len(placed) for name in NODES}
    assert all(0.15 < share < 0.55 for share in shares.values()), shares
    figure(
        f"tier: {len(sums)} objects, {total >> 20} MiB, origin bytes 1.00x, objects for each node "
        + " ".join(f"{shares[name]:.0%}" for name in sorted(shares))
    )


def test_shares_are_equal_and_a_new_node_takes_its_own(network, tmp_path, figure):
    """The map alone, for many names, with nodes that answer nothing: what HAProxy makes of the
    ring."""

    def mapped(count):
        nodes = "".join(
            f"    server n{i} 127.0.0.1:7999 id {i + 1} no-check\n" for i in range(count)
        )
        text = re.sub(r"(?s)    # nodes begin.*# nodes end\n", nodes, CONFIG.read_text())
        balancer = Balancer(
            network,
            tmp_path,
            text + "\nfrontend stub\n    bind 127.0.0.1:7999\n    http-request return status 200\n",
        )

        def ask():
            wait_for(lambda: network.get("/livez", 8404)[0] == 200, "the balancer")
            connection = http.client.HTTPConnection("127.0.0.1", 8080, timeout=30)
            for i in range(4000):
                connection.request("GET", f"/imagenet/train/shard-{i:06}.tar")
                connection.getresponse().read()
            connection.close()

        try:
            network.inside(ask)
            wait_for(lambda: len(balancer.homes()) == 4000, "the log")
            return {path: next(iter(nodes)) for path, nodes in balancer.homes().items()}
        finally:
            balancer.stop()

    three, four = mapped(3), mapped(4)
    for placed, count in ((three, 3), (four, 4)):
        shares = collections.Counter(placed.values())
        assert len(shares) == count and all(
            0.88 < shares[name] * count / 4000 < 1.12 for name in shares
        ), shares
    moved = [path for path in three if three[path] != four[path]]
    assert {four[path] for path in moved} == {"n3"} and 0.22 < len(moved) / 4000 < 0.28
    figure(f"tier, 4000 names: a fourth node takes {len(moved) / 40:.1f} % of them, all to it")


def test_signatures_reach_the_nodes_whole(tier, origin):
    """In headers, in the query, in chunks, of odd names; and what is wrong is refused behind the
    balancer as without it."""
    one = tier()
    odd = "a b/c+d/ä,;:@&=$!*'()~"
    body = os.urandom(300 << 10)

    def with_boto3():
        client = one.client()
        client.put_object(Bucket="bkt", Key=odd, Body=body, Metadata={"x": "  many   blanks "})
        assert client.get_object(Bucket="bkt", Key=odd)["Body"].read() == body
        url = one.client(signature_version="s3v4").generate_presigned_url(
            "get_object", Params={"Bucket": "bkt", "Key": odd}
        )
        client.upload_fileobj(io.BytesIO(40 * body), "bkt", "parts", Config=TRANSFER)
        assert client.get_object(Bucket="bkt", Key="parts")["Body"].read() == 40 * body
        assert (
            client.get_object(Bucket="bkt", Key="parts", Range="bytes=5-9")["Body"].read()
            == (40 * body)[5:10]
        )
        client.copy_object(Bucket="bkt", Key="copy", CopySource={"Bucket": "bkt", "Key": odd})
        assert client.get_object(Bucket="bkt", Key="copy")["Body"].read() == body
        assert {o["Key"] for o in client.list_objects_v2(Bucket="bkt")["Contents"]} == {
            odd,
            "parts",
            "copy",
        }
        with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
            wrong = one.client()
            wrong._request_signer._credentials.secret_key = "wrong"
            wrong.get_object(Bucket="bkt", Key=odd)
        with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
            wrong.put_object(Bucket="bkt", Key=odd, Body=100 * body)
        return url

    url = one.inside(with_boto3)
    got = one.inside(
        lambda: subprocess.run(
            ["curl", "-sS", "-w", "%{http_code}", "-o", "/dev/null", url],
            capture_output=True,
            text=True,
            timeout=60,
        )
    )
    assert got.stdout == "200", got
    assert not [line for line in one.balancer.lines if "Signature" in line], (
        "a signature in the log"
    )
    # A head as long as Forebay takes one.
    status, _, _ = one.ask(
        "GET", "/bkt/copy", headers=[(f"x-long-{i}", 1000 * "x") for i in range(28)]
    )
    assert status == 200


def test_one_name_has_one_home_however_it_is_spelled(tier, origin):
    """Escapes, the bucket in Host, queries and ranges: one node, one fetch."""
    one = tier()
    origin.put("a/b c/d.tar", 70000)
    spellings = [
        ("/bkt/a/b%20c/d.tar", None),
        ("/bkt/a%2Fb%20c%2fd.tar", None),
        ("/bkt/a/b%20c/d%2Etar", None),
        ("/%62kt/a/b%20c/d.tar", None),
        ("/bkt/a/b%20c/d.tar?x-id=GetObject", None),
        ("/bkt/a/b%20c/d.tar?response-content-type=text%2Fplain", None),
        ("/a/b%20c/d.tar", "bkt.localhost:8080"),
        ("/a/b%20c/d.tar", "bkt.LocalHost"),
        ("/a/b%20c/d.tar", "bkt.192.0.2.10:8080"),
    ]
    for target, host in spellings:
        status, body, _ = one.ask("GET", target, *([host] if host else []))
        assert status == 200 and body == origin.bytes_of("a/b c/d.tar"), (
            target,
            host,
            status,
            body[:300],
        )
        one.settle()
    wait_for(lambda: len(one.balancer.seen()) >= len(spellings), "the log")
    assert len({entry["node"] for entry in one.balancer.seen()}) == 1, one.balancer.lines
    line = one.balancer.mark()
    for target in ("/bkt/n%00%2Ful", "/bkt/%6E%00/ul", "/bkt/n%00/u%6c"):
        assert one.ask("GET", target)[0] == 404
    wait_for(lambda: len(one.balancer.seen(line)) >= 3, "the log")
    assert len({entry["node"] for entry in one.balancer.seen(line)}) == 1
    # A name of which the balancer does not know what it is has no home.
    for target in ("/bkt/a%zz", "/bkt/a%", "/b%kt/a"):
        status, body, _ = one.ask("GET", target)
        assert status == 400 and b"<Code>InvalidURI</Code>" in body, (target, status, body)
    assert origin.sent_twice("a/b c/d.tar") == 0 and origin.bytes_sent("a/b c/d.tar") == 70000


def test_writes_of_keys_are_seen_by_the_next_read(tier, origin):
    """Of objects that are cached for ever: each kind of write that names one key, under each of its
    spellings."""
    one = tier()
    small = [f"k{i}" for i in range(24)]

    def check():
        client = one.client()

        def reads(key):
            try:
                return client.get_object(Bucket="bkt", Key=key)["Body"].read()
            except ClientError as e:
                return e.response["Error"]["Code"]

        for key in small:
            client.put_object(Bucket="bkt", Key=key, Body=b"first " + key.encode())
            assert reads(key) == reads(key) == b"first " + key.encode()
        for i, key in enumerate(small):
            kind = i % 4
            if kind == 0:
                client.put_object(Bucket="bkt", Key=key, Body=b"second")
                assert reads(key) == b"second"
            elif kind == 1:
                client.copy_object(
                    Bucket="bkt", Key=key, CopySource={"Bucket": "bkt", "Key": small[0]}
                )
                assert reads(key) == b"second"
            elif kind == 2:
                client.delete_object(Bucket="bkt", Key=key)
                assert reads(key) == "NoSuchKey"
            else:
                client.upload_fileobj(io.BytesIO((9 << 20) * b"x"), "bkt", key, Config=TRANSFER)
                assert reads(key) == (9 << 20) * b"x"
        return reads

    reads = one.inside(check)
    status, *_ = one.ask("PUT", "/k1", host="bkt.localhost", body=b"by host")
    assert status == 200 and one.inside(lambda: reads("k1")) == b"by host"
    status, *_ = one.ask("PUT", "/bkt/%6B1", body=b"by escape")
    assert status == 200 and one.inside(lambda: reads("k1")) == b"by escape"


REFUSED = [
    ("POST", "/bkt?delete", (), b"<Delete><Object><Key>k</Key></Object></Delete>"),
    ("POST", "/bkt/?delete=", (), b"<Delete/>"),
    ("POST", "/bkt?%64elete", (), b"<Delete/>"),
    ("POST", "/bkt", (("Content-Type", "multipart/form-data; boundary=x"),), b"--x--"),
    ("DELETE", "/bkt", (), b""),
    ("DELETE", "/bkt/", (), b""),
    ("PUT", "/bkt?lifecycle", (), b"<x/>"),
    ("DELETE", "/bkt?policy", (), b""),
    ("PUT", "/bkt?whatever", (), b""),
    ("POST", "/bkt/k", (), b""),
    ("POST", "/bkt/k?whatever", (), b""),
    ("PUT", "/bkt/k?renameObject", (("x-amz-rename-source", "bkt/j"),), b""),
    ("PUT", "/bkt/k?x-amz-rename-source=bkt%2Fj", (), b""),
    ("PUT", "/bkt/k", (("x-amz-rename-source", "bkt/j"),), b""),
    ("PUT", "/bkt/k", (("x-amz-meta-snowball-auto-extract", "true"),), b"tar"),
]


def test_writes_that_do_not_name_one_key_are_refused(tier, origin):
    """The balancer refuses them before any node, because the node that relays a write could not
    invalidate the key on the others."""
    one = tier()
    since = origin.mark()
    for method, target, headers, body in REFUSED:
        for host, path in (
            ("192.0.2.10:8080", target),
            (
                "bkt.localhost",
                re.sub(r"^/bkt(?=/)|^/bkt", "", target)
                if target.startswith("/bkt/")
                else target.replace("/bkt", "/", 1),
            ),
        ):
            status, text, reply = one.ask(method, path, host, headers, body)
            assert (
                status == 501
                and b"<Code>NotImplemented</Code>" in text
                and reply["Content-Type"] == "application/xml"
            ), (method, path, host, status, text)
    assert origin.requests(since=since) == []
    # The client understands it, also with all the keys that one such request may have.
    with pytest.raises(ClientError, match="NotImplemented"):
        one.inside(
            lambda: one.client().delete_objects(
                Bucket="bkt",
                Delete={"Objects": [{"Key": f"{i:04}" + 500 * "k"} for i in range(1000)]},
            )
        )
    # And nothing else is: what reads, what makes a bucket, what names its key.
    one.inside(lambda: one.client().create_bucket(Bucket="scratch"))
    for method, target in (
        ("GET", "/bkt?list-type=2"),
        ("GET", "/bkt?uploads"),
        ("HEAD", "/bkt"),
        ("POST", "/bkt/k?uploads"),
        ("PUT", "/bkt/k"),
        ("DELETE", "/bkt/k"),
        ("GET", "/"),
        ("PUT", "/scratch?x-id=CreateBucket"),
    ):
        status, text, _ = one.ask(method, target, body=b"")
        assert status in (200, 204), (method, target, status, text)


def test_a_whole_bucket_takes_everything(tier, origin):
    """On one node, as with a single Forebay: what was deleted by a body is gone for the next
    read."""
    text, count = re.subn(
        r"(?m)^(    acl whole_bucket .*)$", r"\1 scratch other", CONFIG.read_text()
    )
    assert count == 1
    one = tier([{"match": "**", "freshness": "immutable"}], text)

    def check():
        client = one.client()
        for i in range(12):
            client.put_object(Bucket="scratch", Key=f"k{i}", Body=b"x")
            client.get_object(Bucket="scratch", Key=f"k{i}")["Body"].read()
        client.delete_objects(
            Bucket="scratch", Delete={"Objects": [{"Key": f"k{i}"} for i in range(12)]}
        )
        for i in range(12):
            with pytest.raises(ClientError, match="NoSuchKey"):
                client.get_object(Bucket="scratch", Key=f"k{i}")
        with pytest.raises(ClientError, match="NotImplemented"):
            client.delete_objects(Bucket="bkt", Delete={"Objects": [{"Key": "k"}]})

    one.inside(check)
    nodes = {
        node
        for path, found in one.balancer.homes().items()
        if path.startswith("/scratch")
        for node in found
    }
    assert len(nodes) == 1, nodes


class Interrupted:
    """A download on this node that another thread pauses in the middle of its body and resumes."""

    def __init__(self, tier, origin, node):
        for i in itertools.count():
            self.key = f"slow/{i}"
            origin.put(self.key, 3 << 20)
            line = tier.balancer.mark()
            tier.inside(lambda: tier.client().head_object(Bucket="bkt", Key=self.key))
            wait_for(lambda: tier.balancer.homes(line).get("/bkt/" + self.key), "the log")
            if tier.balancer.homes(line)["/bkt/" + self.key] == {node}:
                break
        self.origin, self.go, self.into, self.sums = origin, threading.Event(), io.BytesIO(), []
        since = origin.mark()
        origin.fault(self.key, "hold_at", (1 << 20, self.go), method="GET")
        tier.inside(lambda: self._begin(tier))
        wait_for(lambda: origin.bytes_sent(self.key, since) >= 1 << 20, "half of a body")

    def _begin(self, tier):
        self.thread = threading.Thread(
            target=lambda: self.sums.append(download(tier.client(), self.key, self.into))
        )
        self.thread.start()

    def end(self):
        self.thread.join(60)
        self.go.set()
        assert self.sums == [hashlib.sha256(self.origin.bytes_of(self.key)).digest()]


def test_tier_clients_behave_as_the_page_says(tier, origin, tmp_path):
    """Clients that delete key by key, clients that do not, and a warm-up by reading."""
    for i in range(10):
        origin.put(f"warm/{i}", 5000)
    one = tier()
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": one.access[0],
        "AWS_SECRET_ACCESS_KEY": one.access[1],
        "AWS_DEFAULT_REGION": "us-east-1",
        "HOME": str(tmp_path),
    }

    def run(*words):
        return subprocess.run(words, env=environment, capture_output=True, timeout=120)

    endpoint = ["--endpoint-url", "http://192.0.2.10:8080"]
    if shutil.which("s5cmd") is None or shutil.which("aws") is None:
        not_run("no s5cmd or aws here")
    done = one.inside(lambda: run("s5cmd", *endpoint, "cat", "s3://bkt/warm/*"))
    assert done.returncode == 0 and len(done.stdout) == 50000, done
    one.settle()
    assert [origin.bytes_sent(f"warm/{i}") for i in range(10)] == 10 * [5000]
    done = one.inside(lambda: run("s5cmd", *endpoint, "rm", "s3://bkt/warm/*"))
    assert done.returncode != 0 and b"NotImplemented" in done.stderr, done
    done = one.inside(lambda: run("aws", *endpoint, "s3", "rm", "--recursive", "s3://bkt/warm/"))
    assert done.returncode == 0, done
    assert origin.requests(method="POST") == []
    status, *_ = one.ask("GET", "/bkt/warm/3")
    assert status == 404


# --- Nodes come and go ----------------------------------------------------------------------------


def test_a_node_is_killed_and_comes_back(tier, origin, figure):
    """kill -9 under load: no request fails after the client's retries, only the dead node's share
    moves, and each of its objects is asked of the origin once more; the node comes back with its
    cache, and the origin is asked nothing."""
    sums = data_set(origin)
    one = tier()
    before = warm(one, sums)
    load = Load(one, sums)
    load.wait_rounds(0)
    since, line, fetched = origin.mark(), one.balancer.mark(), one.fetched()
    slow = Interrupted(one, origin, "forebay-1")
    one.nodes["forebay-1"].kill9()
    slow.end()
    one.balancer.wait_up("forebay-0", "forebay-2")
    load.wait_rounds(1)
    one.settle()
    settled = one.balancer.mark()
    load.wait_rounds(0)
    after = homes(one, settled)
    moved = {key for key in sums if before[key] != after[key]}
    assert moved == {key for key in sums if before[key] == "forebay-1"}
    assert {after[key] for key in moved} == {"forebay-0", "forebay-2"}
    # By the origin's log and by the nodes' own counts: only what moved. Twice only what was asked
    # for before HAProxy had noticed, and was sent to another node then than it lives on now.
    assert set(get_count(origin, since)) - {slow.key} == moved
    twice = {key for key in moved if origin.sent_twice(key, since=since)}
    served = one.balancer.homes(line)
    assert all(served["/bkt/" + key] >= {"forebay-0", "forebay-2"} for key in twice), twice
    more = {name: bytes_ - fetched[name] for name, bytes_ in one.fetched().items()}
    once = {
        name: sum(origin.version(key).size for key in moved if after[key] == name)
        for name in ("forebay-0", "forebay-2")
    }
    assert sum(more.values()) == sum(once.values()) + origin.version(slow.key).size + sum(
        origin.version(key).size for key in twice
    )

    since = origin.mark()
    one.start("forebay-1")
    one.balancer.wait_up(*NODES)
    settled = one.balancer.mark()
    load.wait_rounds(1)
    load.end()
    wait_for(lambda: len(one.balancer.homes(settled)) == len(sums), "the log")
    back = [entry for entry in one.balancer.seen(settled + 200)]
    assert all(entry["node"] == before[entry["path"].removeprefix("/bkt/")] for entry in back)
    assert get_count(origin, since) == {}
    seen = one.balancer.seen(line)
    retried = sum(entry["retries"] not in ("0",) for entry in seen)
    assert [
        entry["end"]
        for entry in seen
        if entry["path"] == "/bkt/" + slow.key and entry["method"] == "GET"
    ][0][0] == "S", "cut by the node"
    cut = [
        entry
        for entry in seen
        if entry["end"] != "--" or entry["status"] != "200" and entry["status"] != "206"
    ]
    figure(
        f"tier, a node killed under load: {len(moved)} of {len(sums)} objects moved, "
        f"{len(twice)} of them fetched twice, {len(seen)} requests, none failed for the "
        f"client, "
        f"{retried} retried by the balancer, {len(cut)} cut or refused and asked again by boto3"
    )


def test_a_node_is_added(tier, origin, figure):
    """Under load, on a line that was there before it: about a quarter moves, all of it to the new
    node, each object asked of the origin once. A node that has no segment ready, because the
    machine is loaded, only streams a run and fetches it once more."""
    sums = data_set(origin)
    one = tier()
    before = warm(one, sums)
    load = Load(one, sums)
    load.wait_rounds(0)
    since, fetched, late = origin.mark(), one.fetched(), one.late_runs()
    one.start("forebay-3")
    one.balancer.wait_up(*NODES, "forebay-3")
    load.wait_rounds(1)
    one.settle()
    settled = one.balancer.mark()
    load.wait_rounds(0)
    load.end()
    after = homes(one, settled)
    moved = {key for key in sums if before[key] != after[key]}
    assert {after[key] for key in moved} == {"forebay-3"}
    assert 0.12 < len(moved) / len(sums) < 0.40
    late = {name: count - late.get(name, 0) for name, count in one.late_runs().items()}
    asked = set(get_count(origin, since))
    twice = [key for key in moved if origin.sent_twice(key, since=since)]
    assert moved <= asked
    assert len(asked - moved) <= sum(late[name] for name in NODES), (asked - moved, late)
    assert len(twice) <= late["forebay-3"], (twice, late)
    if not any(late.values()):
        more = {name: bytes_ - fetched.get(name, 0) for name, bytes_ in one.fetched().items()}
        assert more == {
            **dict.fromkeys(NODES, 0),
            "forebay-3": sum(origin.version(key).size for key in moved),
        }
    figure(
        f"tier, a node added under load: {len(moved)} of {len(sums)} objects moved, all to "
        f"it, {sum(late.values()):.0f} runs only streamed"
    )


def test_a_node_that_drains_loses_no_request(tier, origin):
    """SIGTERM, as a rollout sends it. Requests in flight end there, new requests go to other nodes,
    and no client needs a retry."""
    sums = data_set(origin, 40)
    one = tier()
    warm(one, sums)
    load = Load(one, sums)
    load.wait_rounds(0)
    since = one.balancer.mark()
    one.nodes["forebay-0"].stop()
    load.wait_rounds(0)
    load.end()
    assert [
        entry
        for entry in one.balancer.seen(since)
        if entry["status"] not in ("200", "206") or entry["end"] != "--"
    ] == []


def test_a_node_that_hangs_costs_a_time_out_of_the_client(tier, origin):
    """SIGSTOP: the kernel still takes connections for it. A client that already waits asks again
    after its own time-out, and by then the node is out."""
    sums = data_set(origin, 16)
    one = tier()
    placed = warm(one, sums)
    key = next(key for key in sums if placed[key] == "forebay-1")
    os.kill(one.nodes["forebay-1"]._pid(), signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert one.inside(lambda: download(one.client(read_timeout=4), key)) == sums[key]
        one.balancer.wait_up("forebay-0", "forebay-2")
        assert time.monotonic() - began < 30
        one.inside(lambda: read_all(one, sums))
    finally:
        os.kill(one.nodes["forebay-1"]._pid(), signal.SIGCONT)
    one.balancer.wait_up(*NODES)


def test_a_listing_that_is_kept_is_old_for_its_ttl(tier, origin):
    """It lies on the node of its bucket, which does not see what other nodes write; without
    list_ttl nothing of that."""
    one = tier([{"match": "scratch/**", "list_ttl": "3s"}])

    def names(bucket):
        return {o["Key"] for o in one.client().list_objects_v2(Bucket=bucket).get("Contents", [])}

    def missed(bucket):
        """Returns how often a listing lacks a key that was just written."""
        out = len(names(bucket))
        for i in range(8):
            one.client().put_object(Bucket=bucket, Key=f"k{i}", Body=b"x")
            out += f"k{i}" not in names(bucket)
        return out

    assert one.inside(lambda: missed("bkt")) == 0
    assert one.inside(lambda: missed("scratch")) > 0, "the page says that this one is old"
    wait_for(
        lambda: one.inside(lambda: names("scratch")) == {f"k{i}" for i in range(8)},
        "the listing",
        10,
    )


def test_no_node_is_a_503_that_clients_know(tier, origin):
    one = tier(count=1)
    one.nodes["forebay-0"].kill9()
    status, body, reply = one.ask("GET", "/bkt/a")
    assert (
        status == 503
        and b"<Code>ServiceUnavailable</Code>" in body
        and reply["Content-Type"] == "application/xml"
    )
    assert one.network.get("/livez", 8404)[0] == 200
    wait_for(lambda: one.network.get("/readyz", 8404)[0] == 503, "unready")
    one.start("forebay-0")
    wait_for(lambda: one.network.get("/readyz", 8404)[0] == 200, "ready")


def test_a_write_while_its_home_is_away(tier, origin):
    """It counts as one past Forebay for the node that was away: `strict` never gives the old
    object, ttl gives it no longer than that, `immutable` until it is evicted there. The last is the
    limit that the page names."""
    one = tier(
        [
            {"match": "bkt/strict/**", "freshness": "strict"},
            {"match": "bkt/fixed/**", "freshness": "immutable"},
            {"match": "bkt/ttl/**", "ttl": "3s"},
        ]
    )
    for kind in ("strict", "fixed", "ttl"):
        for i in range(8):
            origin.put(f"{kind}/{i}", 1000)

    old = {
        f"{kind}/{i}": origin.bytes_of(f"{kind}/{i}")
        for kind in ("strict", "fixed", "ttl")
        for i in range(8)
    }

    def read(key):
        body = one.client().get_object(Bucket="bkt", Key=key)["Body"].read()
        return "old" if body == old[key] else body

    for kind in ("strict", "fixed", "ttl"):
        for i in range(8):
            assert one.inside(lambda kind=kind, i=i: read(f"{kind}/{i}")) == "old"
    one.settle()
    wait_for(lambda: len(one.balancer.homes()) == 24, "the log")
    placed = homes(one)
    chosen = {
        kind: next(key for key in placed if key.startswith(kind) and placed[key] == "forebay-2")
        for kind in ("strict", "fixed", "ttl")
    }
    mine = sum(home == "forebay-2" for home in placed.values())
    wait_for(
        lambda: one.metric("forebay-2", "forebay_cache_objects") == mine,
        "what was stored in the index on disk",
    )
    one.nodes["forebay-2"].kill9()
    one.balancer.wait_up("forebay-0", "forebay-1")

    def write():
        for key in chosen.values():
            one.client().put_object(Bucket="bkt", Key=key, Body=b"new")
            assert read(key) == b"new", "the node that has its share now"

    one.inside(write)
    one.start("forebay-2")
    one.balancer.wait_up(*NODES)
    back = time.monotonic()
    assert one.inside(lambda: read(chosen["strict"])) == b"new"

    def renewed():
        asked = time.monotonic()
        is_new = one.inside(lambda: read(chosen["ttl"])) == b"new"
        assert is_new or asked - back < 3, (
            "old beyond its ttl, which began before the node went away"
        )
        return is_new

    wait_for(renewed, "the object with a ttl")
    assert one.inside(lambda: read(chosen["fixed"])) == "old", "the page says that this one is old"
    done = subprocess.run(
        [
            binary(),
            "evict",
            "--admin",
            f"unix:{one.nodes['forebay-2'].settings['admin.socket']}",
            f"s3://bkt/{chosen['fixed']}",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done
    assert one.inside(lambda: read(chosen["fixed"])) == b"new"


def test_read_ahead_from_object_to_object(tier, origin, figure):
    """A listing is one node's, the objects in it are all nodes': what that one runs ahead of in
    vain is little, and counted."""
    sums = {}
    for i in range(40):
        origin.put(f"shards/{i:04}.tar", 5 << 20)
        sums[f"shards/{i:04}.tar"] = hashlib.sha256(origin.bytes_of(f"shards/{i:04}.tar")).digest()
    one = tier()
    keys = one.inside(
        lambda: [
            o["Key"]
            for o in one.client().list_objects_v2(Bucket="bkt", Prefix="shards/")["Contents"]
        ]
    )
    # As `aws s3 cp --recursive` does: several at a time, begun in order.
    with_pool = lambda: list(
        ThreadPoolExecutor(4).map(lambda key: read_all(one, sums, [key]), keys)
    )  # noqa: E731
    one.inside(with_pool)
    one.settle()
    extra = sum(origin.bytes_sent(key) for key in sums) / sum(
        origin.version(key).size for key in sums
    )
    ahead = sum(one.metric(name, "forebay_readahead_objects_total") for name in NODES)
    figure(
        f"tier, 40 shards of 5 MiB read in the order of a listing: origin bytes "
        f"{extra:.2f}x, {ahead:.0f} objects run ahead of"
    )
    assert extra <= 1.25


# --- The chart's ----------------------------------------------------------------------------------


@pytest.fixture
def balancer_pod(network, tmp_path, client_image):
    """balancer_pod(objects, names): the pod of the chart's Deployment, with a DNS that answers as a
    cluster's does."""
    made_here = []
    if shutil.which("runc") is None:
        not_run("no runc here")

    def make(objects, names):
        dns = Names(network, names)
        (tmp_path / "resolv.conf").write_text(f"nameserver {Names.ADDRESS}\n")
        image = {
            **client_image,
            "env": {**client_image["env"], "PATH": "/usr/sbin:/usr/bin:/bin"},
            "mounts": client_image["mounts"]
            + [
                {
                    "destination": "/etc/resolv.conf",
                    "type": "bind",
                    "source": str(tmp_path / "resolv.conf"),
                    "options": ["bind", "ro"],
                }
            ],
        }
        spec = charts.one(objects, "Deployment", "forebay-balancer")["spec"]["template"]["spec"]
        pod = Pod(tmp_path / "pod", network, spec, objects, lambda container: image)
        made_here.extend((pod.remove, dns.close))
        return pod, dns

    haproxy()
    yield make
    for done in made_here:
        done()


def test_the_charts_balancer(tier, origin, balancer_pod):
    """As rendered, with its limits: it finds the nodes by their own names; a node that comes back
    under another address keeps its objects, one that is added takes its share, without a restart of
    the balancer; asked to end, it drains."""
    objects = charts.render(
        charts.values("tier"), namespace="forebay", settings=["gateway.balancer.maxNodes=5"]
    )
    sums = data_set(origin, 40)
    one = tier(balance=False)
    assert (
        charts.one(objects, "StatefulSet")["metadata"]["name"] == "forebay"
        and charts.one(objects, "Service", "forebay-nodes")["spec"]["publishNotReadyAddresses"]
    )
    name = "{}.forebay-nodes.forebay.svc.cluster.local".format
    pod, dns = balancer_pod(objects, {name(node): address for node, address in one.addresses[:3]})
    pod.start()
    container = pod.container("haproxy")
    one.balancer = PodBalancer(one.network, container)
    one.balancer.wait_up(*NODES)
    assert [
        container.probe(which)[0] for which in ("startupProbe", "readinessProbe", "livenessProbe")
    ] == [200] * 3
    process = container.status()
    assert (
        process["Uid"].split() == ["65532"] * 4
        and process["NoNewPrivs"] == "1"
        and int(process["CapEff"], 16) == 0
    )
    before = warm(one, sums)

    since = origin.mark()
    one.nodes["forebay-1"].stop()
    one.balancer.wait_up("forebay-0", "forebay-2")
    one.nodes["forebay-1"].settings.update(
        {"listen": "192.0.2.91:9000", "admin.listen": "192.0.2.91:9001"}
    )
    one.at["forebay-1"] = "192.0.2.91"
    made("ip", "-n", one.network.name, "address", "add", "192.0.2.91/32", "dev", "lo")
    one.nodes["forebay-1"].start()
    dns.names[name("forebay-1")] = "192.0.2.91"
    one.balancer.wait_up(*NODES)
    assert warm(one, sums) == before and get_count(origin, since) == {}

    one.start("forebay-3")
    dns.names[name("forebay-3")] = one.at["forebay-3"]
    one.balancer.wait_up(*NODES, "forebay-3")
    after = warm(one, sums)
    assert {after[key] for key in sums if after[key] != before[key]} == {"forebay-3"}
    # Two balancers agree: another one, by addresses, has the same map.
    other = Balancer(
        one.network,
        one.folder,
        CONFIG.read_text()
        .replace(":8080", ":8081")
        .replace(":8404", ":8405")
        .replace("192.0.2.21", "192.0.2.91"),
        ports=(8081, 8405),
    )
    try:
        other.wait_up(*NODES, "forebay-3")
        for key in list(sums)[:20]:
            status, *_ = one.ask("HEAD", f"/bkt/{key}", port=8081)
            assert status == 200
        wait_for(lambda: len(other.homes()) == 20, "the log")
        assert all(
            nodes == {after[path.removeprefix("/bkt/")]} for path, nodes in other.homes().items()
        )
    finally:
        other.stop()
    words = container.spec["lifecycle"]["preStop"]["exec"]["command"]
    container.exec(*[word.replace("sleep 5; ", "").replace("; sleep 100", "") for word in words])
    assert container.wait() == 0


def test_the_chart_has_the_domains_and_the_whole_buckets_of_its_values(artefacts, tmp_path):
    def config(*settings):
        return charts.one(
            charts.render(charts.values("tier"), settings=settings), "ConfigMap", "forebay-balancer"
        )["data"]["haproxy.cfg"]

    plain = config()
    assert (
        len(
            re.findall(
                r"(?m)^    server forebay-(\d+) forebay-\1\.forebay-nodes\.default\.svc"
                r"\.cluster\.local:9000 id \d+$",
                plain,
            )
        )
        == 16
    )
    more = config(
        "config.s3.domains={S3.example.com}",
        "gateway.balancer.wholeBuckets={scratch,check.points}",
        "bindAddress=[::]",
        "gateway.balancer.clusterDomain=k8s.corp",
    )
    assert more.count(r"(localhost|s3\.example\.com|") == 2
    assert re.search(
        r"(?m)^    acl whole_bucket var\(txn.bucket\) -m str "
        r"(scratch check.points|check.points scratch)$",
        more,
    )
    assert (
        "bind [::]:8080" in more and ".svc.k8s.corp:9000" in more and "resolve-prefer ipv6" in more
    )
    for text in (plain, more):
        (tmp_path / "haproxy.cfg").write_text(text)
        done = subprocess.run(
            [haproxy(), "-c", "-f", tmp_path / "haproxy.cfg"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr

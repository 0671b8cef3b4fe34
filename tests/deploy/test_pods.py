# SPDX-License-Identifier: Apache-2.0
"""The pods of the chart as they are rendered, run by the real binary and read by real clients,
without a cluster."""

import copy
import json
import os
import shutil

import charts
import pytest
from kubelet import Container, Ended
from pods import (
    COPY,
    TRAIN,
    USER,
    Service,
    client_of,
    key,
    network,
    origin,
    pod,
    right,
    secrets,
    service,
    shared,
    trainer,
)
from waiting import wait_for


def test_job_with_sidecar(pod, origin, network, tmp_path):
    """Sidecar, warm and trainer as rendered: the data crosses from the origin once, in front of the
    trainer, whose bytes are right; then the pod ends by itself and leaves nothing."""
    spec, objects = trainer(origin)
    job = pod(spec, objects).start()
    total = sum(TRAIN.values())
    assert sum(origin.bytes_sent(key) for key in TRAIN) == total
    since = origin.mark()
    assert job.wait() == {"trainer": 0}, job.container("trainer").said()
    assert not [r for r in origin.requests(method="GET", since=since) if r.key], (
        "the trainer was not served from the cache"
    )
    right(origin, job.volumes["scratch"])

    server = job.container("forebay")
    status, text = network.get("/metrics", 9001)
    assert status == 200 and b"forebay_build_info" in text
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert server.probe(probe)[0] == 200, probe
    assert "threads: io_uring_setup: EPERM" in server.log.read_text()
    process = server.status()
    assert process["Uid"].split() == [str(USER)] * 4 and process["NoNewPrivs"] == "1"
    assert int(process["CapEff"], 16) == 0 and int(process["CapBnd"], 16) == 0
    # Only the pod itself reaches the S3 port and the pages that show keys.
    assert network.get("/api/v1/config", 9001)[0] in (401, 403)
    assert network.get("/", 9000)[0] == 0
    assert job.stop()["forebay"] == 0
    assert network.processes() == []


def test_sigterm_of_the_pod_leaves_nothing(pod, origin, network):
    """SIGTERM arrives while a trainer runs that would go on for an hour."""
    spec, objects = trainer(origin)
    spec["containers"][0]["command"] = [
        "sh",
        "-c",
        "trap 'exit 143' TERM; touch /scratch/here; sleep 3600 & wait",
    ]
    job = pod(spec, objects).start()
    wait_for((job.volumes["scratch"] / "here").exists, "the trainer")
    assert job.stop() == {"trainer": 143, "forebay": 0, "warm": 0}
    assert network.processes() == []


def test_warm_that_cannot_be_had_fails_the_pod_and_says_why(pod, origin, network):
    """If the requested share cannot be cached, the trainer does not start cold in silence."""
    origin.fault("train/shard-0003.tar", "status", 404, times=None)
    spec, objects = trainer(origin)
    job = pod(spec, objects)
    with pytest.raises(Ended, match="init container warm ended with [45]"):
        job.start()
    assert [c for c in job.running if c.name == "trainer"] == []


def test_restarted_sidecar_has_its_cache(pod, origin, network):
    """kill -9 ends the server inside its pod, and the kubelet restarts it. The volume and its bytes
    are unchanged."""
    spec, objects = trainer(origin)
    spec["containers"][0]["command"] = ["sleep", "3600"]
    job = pod(spec, objects).start()
    server = job.container("forebay")
    server.kill(9)
    server.process.wait(60)
    since = origin.mark()
    shutil.rmtree(server.folder)
    again = Container(job, server.spec).start()
    job.running[job.running.index(server)] = again
    again.wait_probe("startupProbe")
    check = [c for c in spec["initContainers"] if c["name"] == "warm"][0]
    check = {
        **check,
        "name": "check",
        "args": ["warm", "--check", "--min", "100%", check["args"][-1]],
    }
    done = Container(job, check).start()
    job.running.append(done)
    assert done.wait() == 0, done.said()
    assert not [r for r in origin.requests(method="GET", since=since) if r.key]


# --- Behind a Service -----------------------------------------------------------------------------


def test_daemonset(pod, origin, network, service):
    """Keys from a Secret, a folder of the node, a client by the Service's name; and a second life
    on the same folder."""
    good, stranger = key("imagenet"), key("other")
    spec, objects = shared("daemonset", origin, [good, stranger])
    node = pod(spec, objects).start()
    door = service(objects)
    assert [(c.name, c.process.returncode) for c in node.running] == [("forebay", None)], (
        node.running[0].said()
    )
    code, client = client_of(pod, objects, door, good, *COPY)
    assert code == 0, client.running[0].said()
    right(origin, client.volumes["scratch"])
    assert all(origin.sent_twice(name) == 0 for name in TRAIN)
    # A client without rights or without a key gets nothing, cached or not.
    for access in (stranger, (good[0], "wrong"), ("nobody", "nothing")):
        code, client = client_of(
            pod,
            objects,
            door,
            access,
            "aws",
            "s3",
            "cp",
            "s3://imagenet/" + next(iter(TRAIN)),
            "/scratch/x",
        )
        assert code != 0 and "403" in client.running[0].said(), client.running[0].said()

    server = node.container("forebay")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert server.probe(probe)[0] == 200, probe
    assert network.get("/api/v1/config", 9001)[0] in (401, 403)
    assert node.stop()["forebay"] == 0
    assert network.processes() == []

    # The pod's successor: the rule says immutable, so the origin is asked nothing.
    since = origin.mark()
    next_pod = pod(spec, objects)
    next_pod.volumes["forebay-cache"] = node.volumes["forebay-cache"]
    next_pod.start()
    code, client = client_of(pod, objects, door, good, *COPY)
    assert code == 0, client.running[0].said()
    right(origin, client.volumes["scratch"])
    assert not [r for r in origin.requests(since=since) if r.key]
    assert next_pod.stop()["forebay"] == 0


def test_folder_of_a_node(pod, origin, network):
    """Of root, as a kubelet makes it: the server says whose it has to be; where it is asked for, an
    init container sees to that."""
    spec, objects = shared("daemonset", origin, [key("imagenet")])
    bare = pod(spec, objects)
    os.chown(bare.volumes["forebay-cache"], 0, 0)
    with pytest.raises(Ended, match="/cache"):
        bare.start()
    spec, objects = shared("daemonset", origin, [key("imagenet")], "cache.hostPath.prepare=true")
    node = pod(spec, objects).start()
    assert [(c.name, c.process.returncode) for c in node.running] == [
        ("prepare", 0),
        ("forebay", None),
    ], node.running[0].said()
    folder = node.volumes["forebay-cache"].stat()
    assert (folder.st_uid, folder.st_mode & 0o777) == (USER, 0o700)
    assert node.stop()["forebay"] == 0


LABEL = [
    "nodeFeatures.dataSets[0].name=imagenet",
    "nodeFeatures.dataSets[0].uris={s3://imagenet/train/}",
    "nodeFeatures.every=1s",
]


def labelled(node):
    file = node.volumes["node-features"] / "forebay-forebay"
    return file.exists() and "forebay.io/warm-imagenet=true" in file.read_text().splitlines()


@pytest.mark.parametrize("user", [USER, 0])
def test_labels_of_a_node(pod, origin, network, user):
    """By the folder as the node is asked to make it, or root's as the kubelet makes it: there when
    the data set is, and the first process of a container obeys SIGTERM, which leaves the file."""
    spec, objects = shared(
        "daemonset", origin, [key("imagenet")], f"nodeFeatures.runAsUser={user}", *LABEL
    )
    node = pod(spec, objects)
    folder = node.volumes["node-features"]
    if user:
        os.chown(folder, 0, user)
        folder.chmod(0o775)
    node.start()
    assert [c.name for c in node.running] == ["forebay", "node-features"]
    wait_for((folder / "forebay-forebay").exists, "the file")
    assert not labelled(node)
    node.container("forebay").exec(
        "/usr/bin/forebay", "warm", "s3://imagenet/train/", "--wait", "-q"
    )
    wait_for(lambda: labelled(node), "the label")
    assert (
        os.listdir(folder) == ["forebay-forebay"]
        and (folder / "forebay-forebay").stat().st_mode & 0o777 == 0o644
    )
    assert node.stop() == {"forebay": 0, "node-features": 0}
    assert labelled(node) and network.processes() == []


def test_labels_that_cannot_be_written_cost_nothing_else(pod, origin, network):
    """Root owns the folder, and the container may not write to it. The log says so, and the pod and
    its cache go on."""
    spec, objects = shared("daemonset", origin, [key("imagenet")], *LABEL)
    node = pod(spec, objects).start()
    writer = node.container("node-features")
    wait_for(
        lambda: "/features.d/forebay-forebay cannot be written: Permission denied" in writer.said(),
        "the reason",
    )
    assert (
        writer.process.poll() is None
        and node.container("forebay").probe("readinessProbe")[0] == 200
    )
    assert node.stop() == {"forebay": 0, "node-features": 0}


def test_gateway(pod, origin, network, service):
    """On a claim, without a root anywhere; a key that is added to the Secret is taken after a
    reload."""
    first, second = key("imagenet"), key("imagenet/train")
    spec, objects = shared("gateway", origin, [first])
    gateway = pod(spec, objects).start()
    door = service(objects)
    code, client = client_of(pod, objects, door, first, *COPY)
    assert code == 0, client.running[0].said()
    right(origin, client.volumes["scratch"])

    # As the kubelet swaps what a Secret's volume shows.
    folder = gateway.volumes["forebay-keys"]
    shutil.copytree(folder / "..2026_01_01", folder / "..2026_01_02")
    newer = folder / "..2026_01_02/keys.yaml"
    newer.write_text(first[2] + second[2])
    os.chown(newer, 0, USER)
    (folder / "..tmp").symlink_to("..2026_01_02")
    (folder / "..tmp").rename(folder / "..data")
    gateway.container("forebay").exec("/usr/bin/forebay", "reload")
    code, client = client_of(pod, objects, door, second, *COPY)
    assert code == 0, client.running[0].said()
    assert all(origin.sent_twice(name) == 0 for name in TRAIN)
    assert gateway.stop()["forebay"] == 0
    assert network.processes() == []


def test_warm_job(pod, origin, network, service):
    """deploy/examples/warm.yaml: a job in front of all others, by the gateway's Service and the
    token of its Secret."""
    spec, objects = shared("gateway", origin, [key("imagenet")])
    gateway = pod(spec, objects).start()
    door = service(objects)
    job = charts.one(charts.load((charts.ROOT / "deploy/examples/warm.yaml").read_text()), "Job")[
        "spec"
    ]["template"]["spec"]
    done = pod(job, objects, door).start()
    assert done.wait() == {"warm": 0}, done.container("warm").said()
    assert {name: origin.bytes_sent(name) for name in TRAIN} == TRAIN
    stranger = {
        **job["containers"][0],
        "env": [e for e in job["containers"][0]["env"] if e["name"] != "FOREBAY_ADMIN_TOKEN"],
    }
    refused = pod({**job, "containers": [stranger]}, objects, door).start()
    assert refused.wait()["warm"] != 0 and "token" in refused.container("warm").said()
    assert gateway.stop()["forebay"] == 0


def test_worker_and_dataload_of_fluid(pod, origin, network, tmp_path):
    """deploy/examples/fluid-cache-runtime.yaml: the worker with the variables that Fluid puts in
    front, and the job of a DataLoad by the class's own command line and the runtime's
    configuration; the token is the policy's (test_injection.py)."""
    given = charts.load((charts.ROOT / "deploy/examples/fluid-cache-runtime.yaml").read_text())
    runtime = charts.one(given, "CacheRuntimeClass")
    spec = copy.deepcopy(runtime["topology"]["worker"]["template"]["spec"])
    server = spec["containers"][0]
    server["env"] = [
        {"name": "FLUID_DATASET_NAME", "value": "imagenet"},
        {"name": "FLUID_RUNTIME_COMPONENT_TYPE", "value": "worker"},
        *server["env"],
        {"name": "FOREBAY_ORIGIN_ENDPOINT", "value": origin.endpoint},
    ]
    server["resources"]["requests"]["ephemeral-storage"] = "256Mi"
    _, objects = shared("gateway", origin, [key("imagenet")])
    worker = pod(spec, objects).start()
    config = {"mounts": charts.one(given, "Dataset")["spec"]["mounts"]}
    objects.append(
        {
            "kind": "ConfigMap",
            "metadata": {"name": "imagenet-config"},
            "data": {"runtime.json": json.dumps(config)},
        }
    )
    load = charts.one(given, "DataLoad")["spec"]
    job = {
        **runtime["dataOperationSpecs"][0],
        "name": "dataload",
        "env": [
            {"name": "FLUID_DATALOAD_METADATA", "value": "false"},
            {"name": "FLUID_DATALOAD_PATH_REPLICAS", "value": "1"},
            {
                "name": "FLUID_DATALOAD_DATA_PATH",
                "value": ":".join(target["path"] for target in load["target"]),
            },
            {"name": "FLUID_RUNTIME_CONFIG_PATH", "value": "/etc/fluid/config/runtime.json"},
        ],
        "volumeMounts": [{"name": "config", "mountPath": "/etc/fluid/config"}],
        "securityContext": server["securityContext"],
    }
    token = {
        "name": "FOREBAY_ADMIN_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": "forebay-admin", "key": "token"}},
    }
    door = Service(network, tmp_path, "svc-imagenet-worker", {9000: 9000, 9001: 9001})
    volumes = [{"name": "config", "configMap": {"name": "imagenet-config"}}]
    for env, code in (([], 1), ([token], 0)):
        done = pod(
            {"containers": [{**job, "env": job["env"] + env}], "volumes": volumes}, objects, door
        ).start()
        assert done.wait() == {"dataload": code}, done.container("dataload").said()
    assert {name: origin.bytes_sent(name) for name in TRAIN} == TRAIN
    assert worker.stop()["forebay"] == 0


# --- From one format of the cache to the next -----------------------------------------------------


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def made_older(cache):
    """Marks the cache as format 1, as an earlier release would have left it."""
    lines = cache.read_bytes().split(b"\n")
    assert lines[0] == b"forebay-cache 2" and lines[-2].startswith(b"checksum ")
    body = b"\n".join([b"forebay-cache 1", *lines[1:-2], b""])
    cache.write_bytes(body + b"checksum %08x\n" % crc32c(body))


@pytest.mark.parametrize("mode", ["daemonset", "gateway"])
def test_cache_of_an_older_format(pod, origin, network, service, mode):
    """Forebay refuses it by name. With cache.wipeOlder it empties the cache once, and the next
    start keeps the cached objects."""
    access = key("imagenet")
    spec, objects = shared(mode, origin, [access])
    wiping = shared(mode, origin, [access], "cache.wipeOlder=true")[0]
    door = service(objects)
    first = pod(wiping, objects).start()  # there is nothing yet
    folder = first.volumes["forebay-cache"]
    assert client_of(pod, objects, door, access, *COPY)[0] == 0
    assert first.stop()["forebay"] == 0
    made_older(next(folder.rglob("format")))

    def again(spec):
        one = pod(spec, objects)
        one.volumes["forebay-cache"] = folder
        return one

    refused = again(spec)
    with pytest.raises(Ended, match="ended with 1"):
        refused.start()
    assert "format version 1, this program's is version 2" in refused.running[-1].said()
    for fetched in (1, 0):
        since = origin.mark()
        one = again(wiping).start()
        assert client_of(pod, objects, door, access, *COPY)[0] == 0
        assert bool([r for r in origin.requests(method="GET", since=since) if r.key]) == bool(
            fetched
        )
        assert one.stop()["forebay"] == 0

# SPDX-License-Identifier: Apache-2.0
"""The steps of a first trial: one training loop from the store itself, then through the
sidecar of the chart, cold and warm; fifty jobs on one node; a trainer that gets SIGTERM.

The store answers after DELAY_S, as a near one does, so what a cache saves is known beforehand.
"""

import json
import signal

import pytest
from pods import (  # noqa: F401 (fixtures)
    key,
    network,
    origin,
    pod,
    secrets,
    service,
    shared,
    trainer,
)
from waiting import wait_for

DELAY_S = 0.05
SAMPLES = {f"train/{i:03}.jpg": 100_000 + 997 * i for i in range(30)}
TOTAL = sum(SAMPLES.values())
JOBS = 50

# One reader with a real SDK, each epoch in an order of its own. A line for each: seconds, and a
# hash over all samples.
LOOP = """
import hashlib, json, random, signal, sys, time
import boto3
# The first process of a container has no default action for SIGTERM.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
s3 = boto3.client("s3")
keys = [o["Key"] for o in s3.list_objects_v2(Bucket="imagenet", Prefix="train/")["Contents"]]
for epoch in range(int(sys.argv[1])):
    random.Random(epoch).shuffle(keys)
    began, seen = time.monotonic(), {}
    for key in keys:
        body = s3.get_object(Bucket="imagenet", Key=key)["Body"].read()
        seen[key] = hashlib.sha256(body).hexdigest()
    took = time.monotonic() - began
    whole = hashlib.sha256(json.dumps(sorted(seen.items())).encode()).hexdigest()
    print(json.dumps({"epoch": epoch, "seconds": took, "whole": whole}), flush=True)
"""

# Jobs that start together, as a launcher starts them on one node.
MANY = """
import os, sys
import boto3
jobs = []
for _ in range(int(sys.argv[2])):
    if (pid := os.fork()) == 0:
        break
    jobs.append(pid)
else:
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in jobs))
"""


def put_all(origin):
    for name, size in SAMPLES.items():
        origin.put(name, size)


def epochs(container):
    return [
        json.loads(line)
        for line in container.log.read_text().splitlines()
        if line.startswith('{"epoch"')
    ]


def without_forebay(pod, origin, spec, secrets):
    """Returns the trainer of SPEC alone, with the store's own endpoint and keys."""
    data = secrets[0]["data"]
    alone = {k: v for k, v in spec["containers"][0].items() if k != "envFrom"}
    alone["env"] = alone["env"] + [
        {"name": "AWS_ENDPOINT_URL_S3", "value": origin.endpoint},
        {"name": "AWS_ACCESS_KEY_ID", "value": data["access_key_id"]},
        {"name": "AWS_SECRET_ACCESS_KEY", "value": data["secret_access_key"]},
    ]
    return pod({**spec, "initContainers": [], "containers": [alone]}, [])


@pytest.fixture
def job(origin):
    """job(epochs): (pod spec, objects) of the chart's example job, cold, with the loop as its
    command."""

    def make(count):
        spec, objects = trainer(origin, "sidecar.warm.uris=null")
        assert [c["name"] for c in spec["initContainers"]] == ["forebay"]
        spec["containers"][0]["command"] = ["python", "-c", LOOP, str(count)]
        return spec, objects

    return make


def test_a_training_loop_direct_cold_and_warm(pod, origin, network, secrets, job, figure):
    put_all(origin)
    origin.delay_s = DELAY_S
    spec, objects = job(4)
    direct = without_forebay(
        pod,
        origin,
        {**spec, "containers": [{**spec["containers"][0], "command": ["python", "-c", LOOP, "1"]}]},
        secrets,
    )
    assert direct.start().wait() == {"trainer": 0}, direct.container("trainer").said()
    (bare,) = epochs(direct.container("trainer"))

    since = origin.mark()
    cached = pod(spec, objects).start()
    assert cached.wait() == {"trainer": 0}, cached.container("trainer").said()
    cold, *warm = epochs(cached.container("trainer"))
    assert {epoch["whole"] for epoch in (bare, cold, *warm)} == {bare["whole"]}
    assert {
        name: origin.bytes_sent(name, since) for name in SAMPLES
    } == SAMPLES  # in all four epochs
    best = min(epoch["seconds"] for epoch in warm)
    figure(
        f"training loop, {len(SAMPLES)} objects of 100 KB, store at {DELAY_S * 1e3:.0f} ms: "
        f"direct {bare['seconds']:.2f} s, cold "
        f"{cold['seconds']:.2f} s, warm {best:.2f} s, {cold['seconds'] / best:.1f} x cold; "
        f"origin bytes 1.00x"
    )
    assert cold["seconds"] >= 3 * best
    assert cached.stop()["forebay"] == 0
    assert network.processes() == []


def test_fifty_jobs_on_one_node_cost_one_download(pod, origin, network, service, figure):
    """All jobs start at once with a cold cache and use the daemonset's Service."""
    put_all(origin)
    origin.delay_s = DELAY_S
    access = key("imagenet")
    spec, objects = shared("daemonset", origin, [access])
    node = pod(spec, objects).start()
    door = service(objects)
    client = {
        "name": "jobs",
        "image": "client",
        "command": ["python", "-c", MANY + LOOP, "1", str(JOBS)],
        "envFrom": [{"configMapRef": {"name": "forebay-client-env"}}],
        "env": [
            {"name": "AWS_ACCESS_KEY_ID", "value": access[0]},
            {"name": "AWS_SECRET_ACCESS_KEY", "value": access[1]},
        ],
        "securityContext": {
            "runAsUser": 1000,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    jobs = pod({"containers": [client]}, objects, door).start()
    assert jobs.container("jobs").wait(300) == 0, jobs.container("jobs").said()
    seen = epochs(jobs.container("jobs"))
    assert len(seen) == JOBS and len({epoch["whole"] for epoch in seen}) == 1
    sent = {name: origin.bytes_sent(name) for name in SAMPLES}
    figure(
        f"{JOBS} jobs on one node, first epoch of {len(SAMPLES)} objects: origin bytes "
        f"{sum(sent.values()) / TOTAL:.2f}x"
    )
    assert sent == SAMPLES
    assert node.stop()["forebay"] == 0
    assert network.processes() == []


def test_sigterm_of_the_trainer_alone_leaves_no_orphan(pod, origin, network, job):
    """SIGTERM arrives in the middle of an epoch with reads in flight. The end of the trainer ends
    the job, and then the sidecar."""
    put_all(origin)
    spec, objects = job(1000)
    running = pod(spec, objects).start()
    loop = running.container("trainer")
    wait_for(lambda: epochs(loop), loop.said)
    origin.delay_s = 0.5
    running.container("forebay").exec("/usr/bin/forebay", "evict", "s3://imagenet/train/")
    since = origin.mark()
    origin.wait_for(1, since=since, method="GET")
    loop.kill(signal.SIGTERM)
    assert loop.wait() == 143
    assert running.stop()["forebay"] == 0
    assert network.processes() == []

# SPDX-License-Identifier: Apache-2.0
"""The pods of the chart as they are rendered, run by the real binary and read by real clients, without a cluster.

kubelet.py says what of a manifest counts. The image is the root file system that goes into the real one
(deploy/image/rootfs.sh); the trainer's is this machine's Python with the AWS command line.
"""
import hashlib
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import charts
import pytest
from conftest import KEYS, ROOT, made, not_run
from forebay import binary
from kubelet import Container, Ended, Network, Pod
from origin import Origin
from waiting import wait_for

USER = 65532
NUMBERS = itertools.count(1)
TRAIN = {f"train/shard-{i:04}.tar": (1 << 20) + 137 * i for i in range(6)}


@pytest.fixture(scope="session")
def server_image(artefacts):
    folder = artefacts / "rootfs"
    shutil.rmtree(folder, ignore_errors=True)
    made("sh", ROOT / "deploy/image/rootfs.sh", binary(), folder)
    # Of the Dockerfile: what a container has unless its manifest says otherwise.
    return {"rootfs": folder, "entrypoint": ["/usr/bin/forebay"], "cmd": ["serve"],
            "env": {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "FOREBAY_CACHE_DIR": "/cache"}}


@pytest.fixture(scope="session")
def client_image(artefacts):
    """The programs of this machine, read-only, and Python's packages of the tests."""
    folder = artefacts / "client-rootfs"
    shutil.rmtree(folder, ignore_errors=True)
    packages = Path(sys.modules["pytest"].__file__).parents[1]
    mounts = []
    for name in ("usr", "bin", "lib", "lib64", "etc"):
        (folder / name).mkdir(parents=True)
        mounts.append({"destination": f"/{name}", "type": "bind", "source": os.path.realpath(f"/{name}"), "options": ["rbind", "ro"]})
    (folder / "packages").mkdir()
    mounts.append({"destination": "/packages", "type": "bind", "source": str(packages), "options": ["rbind", "ro"]})
    (folder / "programs").mkdir()
    (folder / "programs/aws").write_text('#!/bin/sh\nexec python3 -m awscli "$@"\n')
    (folder / "programs/python").write_text('#!/bin/sh\nexec python3 "$@"\n')
    for program in ("aws", "python"):
        (folder / "programs" / program).chmod(0o755)
    return {"rootfs": folder, "entrypoint": [], "cmd": [], "mounts": mounts,
            "env": {"PATH": "/programs:/usr/bin:/bin", "PYTHONPATH": "/packages", "PYTHONDONTWRITEBYTECODE": "1",
                    "AWS_DEFAULT_REGION": "us-east-1"}}


@pytest.fixture
def network(artefacts):
    made_here = Network(f"forebay-{os.getpid()}-{next(NUMBERS)}")
    yield made_here
    made_here.remove()


@pytest.fixture
def origin(network):
    """The scripted origin, on the loopback of the pod's network."""
    made_here = Origin(bucket="imagenet", credentials=KEYS)
    network.inside(made_here.start)
    for key, size in TRAIN.items():
        made_here.put(key, size)
    yield made_here
    made_here.stop()
    assert not made_here.violations, made_here.violations[:5]


@pytest.fixture
def secrets():
    key, secret = next(iter(KEYS.items()))
    return [{"kind": "Secret", "metadata": {"name": "s3-keys"}, "data": {"access_key_id": key, "secret_access_key": secret}}]


@pytest.fixture
def pod(tmp_path, network, server_image, client_image, secrets):
    """pod(spec, objects): not started yet; removed when the test ends."""
    made_here = []

    def make(spec, objects):
        images = lambda container: server_image if "forebay" in container["image"] else client_image  # noqa: E731
        made_here.append(Pod(tmp_path / f"pod{len(made_here)}", network, spec, objects + secrets, images))
        return made_here[-1]
    try:
        subprocess.run(["runc", "--version"], capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.CalledProcessError) as e:
        not_run(f"no runc here: {e}")
    yield make
    for one in made_here:
        one.remove()


def trainer(origin, *settings):
    """The example job of the sidecar, as its values file has it, small and with our origin: (pod spec, all objects)."""
    objects = charts.render(charts.values("sidecar"), settings=[
        f"origin.endpoint={origin.endpoint}", "cache.size=256Mi", "sidecar.trainer.scratch=64Mi", *settings])
    return charts.one(objects, "Job")["spec"]["template"]["spec"], objects


def test_job_with_sidecar(pod, origin, network, tmp_path):
    """Sidecar, warm and trainer as rendered: the data crosses from the origin once, in front of the trainer, whose bytes
    are right; then the pod ends by itself and leaves nothing."""
    spec, objects = trainer(origin)
    job = pod(spec, objects).start()
    total = sum(TRAIN.values())
    assert sum(origin.bytes_sent(key) for key in TRAIN) == total
    since = origin.mark()
    assert job.wait() == {"trainer": 0}, job.container("trainer").said()
    assert not [r for r in origin.requests(method="GET", since=since) if r.key], "the trainer was not served from the cache"
    for key in TRAIN:
        got = (job.volumes["scratch"] / key).read_bytes()
        assert hashlib.sha256(got).digest() == hashlib.sha256(origin.bytes_of(key, 0, TRAIN[key])).digest(), key

    server = job.container("forebay")
    status, text = network.get("/metrics", 9001)
    assert status == 200 and b"forebay_build_info" in text
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert server.probe(probe)[0] == 200, probe
    assert "threads: io_uring_setup: EPERM" in server.log.read_text()
    process = server.status()
    assert process["Uid"].split() == [str(USER)] * 4 and process["NoNewPrivs"] == "1"
    assert int(process["CapEff"], 16) == 0 and int(process["CapBnd"], 16) == 0
    # What shows keys stays with the pod; the S3 port does not leave it.
    assert network.get("/api/v1/config", 9001)[0] in (401, 403)
    assert network.get("/", 9000)[0] == 0
    assert job.stop()["forebay"] == 0
    assert network.processes() == []


def test_sigterm_of_the_pod_leaves_nothing(pod, origin, network):
    """In the middle of a trainer that would go on for an hour."""
    spec, objects = trainer(origin)
    spec["containers"][0]["command"] = ["sh", "-c", "trap 'exit 143' TERM; touch /scratch/here; sleep 3600 & wait"]
    job = pod(spec, objects).start()
    wait_for((job.volumes["scratch"] / "here").exists, "the trainer")
    assert job.stop() == {"trainer": 143, "forebay": 0, "warm": 0}
    assert network.processes() == []


def test_warm_that_cannot_be_had_fails_the_pod_and_says_why(pod, origin, network):
    """The share that was asked for is not there: the trainer never starts cold in silence."""
    origin.fault("train/shard-0003.tar", "status", 404, times=None)
    spec, objects = trainer(origin)
    job = pod(spec, objects)
    with pytest.raises(Ended, match="init container warm ended with [45]"):
        job.start()
    assert [c for c in job.running if c.name == "trainer"] == []


def test_restarted_sidecar_has_its_cache(pod, origin, network):
    """kill -9 of the server inside its pod, and the kubelet's restart: the volume is the same, so are the bytes."""
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
    check = {**check, "name": "check", "args": ["warm", "--check", "--min", "100%", check["args"][-1]]}
    done = Container(job, check).start()
    job.running.append(done)
    assert done.wait() == 0, done.said()
    assert not [r for r in origin.requests(method="GET", since=since) if r.key]

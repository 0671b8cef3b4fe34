# SPDX-License-Identifier: Apache-2.0
"""The pods of the chart as they are rendered, run by the real binary and read by real clients, without a cluster.

kubelet.py says what of a manifest counts. The image is the root file system that goes into the real one
(deploy/image/rootfs.sh); the trainer's is this machine's Python with the AWS command line.
"""
import contextlib
import hashlib
import itertools
import os
import shutil
import socket
import subprocess
import threading

import charts
import pytest
import yaml
from conftest import KEYS, made, not_run
from forebay import binary
from kubelet import POD_IP, Container, Ended, Network, Pod
from origin import Origin
from waiting import wait_for

USER = 65532
NUMBERS = itertools.count(1)
TRAIN = {f"train/shard-{i:04}.tar": (1 << 20) + 137 * i for i in range(6)}


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

    def make(spec, objects, service=None):
        hosts = [{"destination": "/etc/hosts", "type": "bind", "source": str(service.hosts), "options": ["bind", "ro"]}] if service else []
        client = {**client_image, "mounts": client_image["mounts"] + hosts}
        server = {**server_image, "mounts": hosts}
        images = lambda container: server if "forebay" in container["image"] else client  # noqa: E731
        made_here.append(Pod(tmp_path / f"pod{len(made_here)}", network, spec, objects + secrets, images))
        return made_here[-1]
    try:
        subprocess.run(["runc", "--version"], capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.CalledProcessError) as e:
        not_run(f"no runc here: {e}")
    yield make
    for one in made_here:
        one.remove()


class Service:
    """The cluster's part: a name and an address whose ports lead to those of the pod."""
    ADDRESS = "192.0.2.80"

    def __init__(self, network, folder, name, ports):
        made("ip", "-n", network.name, "address", "add", f"{self.ADDRESS}/32", "dev", "lo")
        self.hosts = folder / "hosts"
        self.hosts.write_text(f"127.0.0.1 localhost\n{self.ADDRESS} {name}\n")
        self.network = network
        # Pod and Service share one network here: where the port is the same the address is enough.
        self.listeners = {network.inside(lambda port=port: socket.create_server((self.ADDRESS, port))): target
                          for port, target in ports.items() if port != target}
        for listener, target in self.listeners.items():
            threading.Thread(target=self._accept, args=(listener, target), daemon=True).start()

    def _accept(self, listener, target):
        while True:
            try:
                client = listener.accept()[0]
                server = self.network.inside(lambda: socket.create_connection((POD_IP, target)))
            except OSError:
                return
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    @staticmethod
    def _copy(source, sink):
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 16):
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)

    def close(self):
        for listener in self.listeners:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()


@pytest.fixture
def service(network, tmp_path):
    made_here = []

    def make(objects):
        """Of the Service `forebay` of these objects, as its manifest says."""
        given = charts.one(objects, "Service", "forebay")
        ports = {p["port"]: {"s3": 9000, "admin": 9001}[p["targetPort"]] for p in given["spec"]["ports"]}
        made_here.append(Service(network, tmp_path, f"{given['metadata']['name']}.{given['metadata']['namespace']}.svc", ports))
        return made_here[-1]
    yield make
    for one in made_here:
        one.close()


def key(allow):
    """(id, secret, entry of keys.yaml) of a new access key."""
    entry = made(binary(), "keys", "new", "trainer", "--allow", allow)
    found = yaml.safe_load(entry)[0]
    return found["id"], found["secret"], entry


def shared(mode, origin, keys, *settings):
    """Gateway or daemonset as its values file has it, with our origin: (pod spec, all objects)."""
    objects = charts.render(charts.values(mode), namespace="forebay", settings=[
        f"origin.endpoint={origin.endpoint}", "cache.size=256Mi", *settings])
    objects.append({"kind": "Secret", "metadata": {"name": "forebay-admin"}, "data": {"token": "token-canary-91b2"}})
    objects.append({"kind": "Secret", "metadata": {"name": "forebay-keys"}, "data": {"keys.yaml": "".join(entry for *_, entry in keys)}})
    kind = {"daemonset": "DaemonSet", "gateway": "StatefulSet"}[mode]
    spec = charts.one(objects, kind)["spec"]
    claims = [{"name": c["metadata"]["name"], "persistentVolumeClaim": {}} for c in spec.get("volumeClaimTemplates", [])]
    return {**spec["template"]["spec"], "volumes": spec["template"]["spec"].get("volumes", []) + claims}, objects


def client_of(pod, objects, service, access, *words):
    """A client's pod: the ConfigMap, a key, and this command line. Its exit code, and the container."""
    container = {
        "name": "client", "image": "client", "command": list(words),
        "envFrom": [{"configMapRef": {"name": "forebay-client-env"}}],
        "env": [{"name": "AWS_ACCESS_KEY_ID", "value": access[0]}, {"name": "AWS_SECRET_ACCESS_KEY", "value": access[1]},
                {"name": "HOME", "value": "/scratch"}, {"name": "AWS_MAX_ATTEMPTS", "value": "1"}],
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000, "allowPrivilegeEscalation": False,
                            "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True},
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}
    one = pod({"containers": [container], "volumes": [{"name": "scratch", "emptyDir": {}}]}, objects, service)
    code = one.start().wait()["client"]
    return code, one


COPY = ("aws", "s3", "cp", "--no-progress", "--recursive", "s3://imagenet/train/", "/scratch/train/")


def right(origin, folder):
    """Every shard of the data set lies there with the bytes of the origin."""
    for name, size in TRAIN.items():
        assert hashlib.sha256((folder / name).read_bytes()).digest() == hashlib.sha256(origin.bytes_of(name, 0, size)).digest(), name


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


# --- Behind a Service -----------------------------------------------------------------------------

def test_daemonset(pod, origin, network, service):
    """Keys from a Secret, a folder of the node, a client by the Service's name; and a second life on the same folder."""
    good, stranger = key("imagenet"), key("other")
    spec, objects = shared("daemonset", origin, [good, stranger])
    node = pod(spec, objects).start()
    door = service(objects)
    assert [(c.name, c.process.returncode) for c in node.running] == [("prepare", 0), ("forebay", None)], node.running[0].said()
    folder = node.volumes["forebay-cache"].stat()
    assert (folder.st_uid, folder.st_mode & 0o777) == (USER, 0o700)
    code, client = client_of(pod, objects, door, good, *COPY)
    assert code == 0, client.running[0].said()
    right(origin, client.volumes["scratch"])
    assert all(origin.sent_twice(name) == 0 for name in TRAIN)
    # Whoever has no rights, or no key, gets nothing, cached or not.
    for access in (stranger, (good[0], "wrong"), ("nobody", "nothing")):
        code, client = client_of(pod, objects, door, access, "aws", "s3", "cp", "s3://imagenet/" + next(iter(TRAIN)), "/scratch/x")
        assert code != 0 and "403" in client.running[0].said(), client.running[0].said()

    server = node.container("forebay")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert server.probe(probe)[0] == 200, probe
    assert network.get("/api/v1/config", 9001)[0] in (401, 403)
    assert node.stop()["forebay"] == 0
    assert network.processes() == []

    # The pod's successor: prepare finds all well, the rule says immutable, so the origin is asked nothing.
    since = origin.mark()
    next_pod = pod(spec, objects)
    next_pod.volumes["forebay-cache"] = node.volumes["forebay-cache"]
    next_pod.start()
    code, client = client_of(pod, objects, door, good, *COPY)
    assert code == 0, client.running[0].said()
    right(origin, client.volumes["scratch"])
    assert not [r for r in origin.requests(since=since) if r.key]
    assert next_pod.stop()["forebay"] == 0


def test_gateway(pod, origin, network, service):
    """On a claim, without a root anywhere; a key that is added to the Secret is taken after a reload."""
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
    """deploy/examples/warm.yaml: a job in front of all others, by the gateway's Service and the token of its Secret."""
    spec, objects = shared("gateway", origin, [key("imagenet")])
    gateway = pod(spec, objects).start()
    door = service(objects)
    job = charts.one(charts.load((charts.ROOT / "deploy/examples/warm.yaml").read_text()), "Job")["spec"]["template"]["spec"]
    done = pod(job, objects, door).start()
    assert done.wait() == {"warm": 0}, done.container("warm").said()
    assert {name: origin.bytes_sent(name) for name in TRAIN} == TRAIN
    stranger = {**job["containers"][0], "env": [e for e in job["containers"][0]["env"] if e["name"] != "FOREBAY_ADMIN_TOKEN"]}
    refused = pod({**job, "containers": [stranger]}, objects, door).start()
    assert refused.wait()["warm"] != 0 and "token" in refused.container("warm").said()
    assert gateway.stop()["forebay"] == 0

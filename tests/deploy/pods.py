# SPDX-License-Identifier: Apache-2.0
"""Pods of the chart as they are rendered, with an origin and a Service in their network: fixtures
of the tests that run them.

kubelet.py says what of a manifest counts. The image is the root file system that goes into the real
one (deploy/image/rootfs.sh); the trainer's is this machine's Python with the AWS command line.
"""

import contextlib
import hashlib
import itertools
import os
import socket
import subprocess
import threading

import charts
import pytest
import yaml
from conftest import KEYS, made, namespaces, not_run
from forebay import binary
from kubelet import POD_IP, Network, Pod
from origin import Origin

USER = 65532
NUMBERS = itertools.count(1)
TRAIN = {f"train/shard-{i:04}.tar": (1 << 20) + 137 * i for i in range(6)}


@pytest.fixture
def network(artefacts):
    namespaces("net", "pid", "ipc", "uts", "mount", "fork")
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
    return [
        {
            "kind": "Secret",
            "metadata": {"name": "s3-keys"},
            "data": {"access_key_id": key, "secret_access_key": secret},
        }
    ]


@pytest.fixture
def pod(tmp_path, network, server_image, client_image, secrets):
    """pod(spec, objects): not started yet; removed when the test ends."""
    made_here = []

    def make(spec, objects, service=None, annotations=None):
        hosts = (
            [
                {
                    "destination": "/etc/hosts",
                    "type": "bind",
                    "source": str(service.hosts),
                    "options": ["bind", "ro"],
                }
            ]
            if service
            else []
        )
        client = {**client_image, "mounts": client_image["mounts"] + hosts}
        server = {**server_image, "mounts": hosts}

        def images(container):
            return server if "forebay" in container["image"] else client

        made_here.append(
            Pod(
                tmp_path / f"pod{len(made_here)}",
                network,
                spec,
                objects + secrets,
                images,
                annotations=annotations,
            )
        )
        return made_here[-1]

    try:
        subprocess.run(["runc", "--version"], capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.CalledProcessError) as e:
        not_run(f"no runc here: {e}")
    yield make
    for one in made_here:
        one.remove()


class Service:
    """Plays the cluster's Service: a name and an address whose ports lead to those of the pod."""

    ADDRESS = "192.0.2.80"

    def __init__(self, network, folder, name, ports):
        made("ip", "-n", network.name, "address", "add", f"{self.ADDRESS}/32", "dev", "lo")
        self.hosts = folder / "hosts"
        self.hosts.write_text(f"127.0.0.1 localhost\n{self.ADDRESS} {name}\n")
        self.network = network
        # Pod and Service share one network here: where the port is the same the address is enough.
        self.listeners = {
            network.inside(lambda port=port: socket.create_server((self.ADDRESS, port))): target
            for port, target in ports.items()
            if port != target
        }
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
        """Makes the Service `forebay` of these objects as its manifest says."""
        given = charts.one(objects, "Service", "forebay")
        ports = {
            p["port"]: {"s3": 9000, "admin": 9001}[p["targetPort"]] for p in given["spec"]["ports"]
        }
        made_here.append(
            Service(
                network,
                tmp_path,
                f"{given['metadata']['name']}.{given['metadata']['namespace']}.svc",
                ports,
            )
        )
        return made_here[-1]

    yield make
    for one in made_here:
        one.close()


def key(allow):
    """Makes an access key and returns (id, secret, entry of keys.yaml)."""
    entry = made(binary(), "keys", "new", "trainer", "--allow", allow)
    found = yaml.safe_load(entry)[0]
    return found["id"], found["secret"], entry


def shared(mode, origin, keys, *settings):
    """Gateway or daemonset as its values file has it, with our origin: (pod spec, all objects)."""
    objects = charts.render(
        charts.values(mode),
        namespace="forebay",
        settings=[f"origin.endpoint={origin.endpoint}", "cache.size=256Mi", *settings],
    )
    objects.append(
        {
            "kind": "Secret",
            "metadata": {"name": "forebay-admin"},
            "data": {"token": "token-canary-91b2"},
        }
    )
    objects.append(
        {
            "kind": "Secret",
            "metadata": {"name": "forebay-keys"},
            "data": {"keys.yaml": "".join(entry for *_, entry in keys)},
        }
    )
    kind = {"daemonset": "DaemonSet", "gateway": "StatefulSet"}[mode]
    spec = charts.one(objects, kind)["spec"]
    claims = [
        {"name": c["metadata"]["name"], "persistentVolumeClaim": {}}
        for c in spec.get("volumeClaimTemplates", [])
    ]
    return {
        **spec["template"]["spec"],
        "volumes": spec["template"]["spec"].get("volumes", []) + claims,
    }, objects


def client_of(pod, objects, service, access, *words):
    """A client's pod: the ConfigMap, a key, and this command line. Its exit code, and the
    container."""
    container = {
        "name": "client",
        "image": "client",
        "command": list(words),
        "envFrom": [{"configMapRef": {"name": "forebay-client-env"}}],
        "env": [
            {"name": "AWS_ACCESS_KEY_ID", "value": access[0]},
            {"name": "AWS_SECRET_ACCESS_KEY", "value": access[1]},
            {"name": "HOME", "value": "/scratch"},
            {"name": "AWS_MAX_ATTEMPTS", "value": "1"},
        ],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }
    one = pod(
        {"containers": [container], "volumes": [{"name": "scratch", "emptyDir": {}}]},
        objects,
        service,
    )
    code = one.start().wait()["client"]
    return code, one


COPY = (
    "aws",
    "s3",
    "cp",
    "--no-progress",
    "--recursive",
    "s3://imagenet/train/",
    "/scratch/train/",
)


def right(origin, folder):
    """Checks that every shard of the data set is there with the bytes of the origin."""
    for name, size in TRAIN.items():
        assert (
            hashlib.sha256((folder / name).read_bytes()).digest()
            == hashlib.sha256(origin.bytes_of(name, 0, size)).digest()
        ), name


def trainer(origin, *settings):
    """The example job of the sidecar, as its values file has it, small and with our origin: (pod
    spec, all objects)."""
    objects = charts.render(
        charts.values("sidecar"),
        settings=[
            f"origin.endpoint={origin.endpoint}",
            "cache.size=256Mi",
            "sidecar.trainer.scratch=64Mi",
            *settings,
        ],
    )
    return charts.one(objects, "Job")["spec"]["template"]["spec"], objects

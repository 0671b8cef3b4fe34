# SPDX-License-Identifier: Apache-2.0
"""A pod as its manifest says, without a cluster: containers by runc in a network namespace of the
pod's own.

Taken from the manifest: command lines, environment (fieldRef, resourceFieldRef, Secrets,
ConfigMaps, $(NAME)), volumes (emptyDir, hostPath and claims are folders; owners and modes as a
kubelet makes them; downwardAPI has annotations), users, groups, capabilities, no-new-privileges,
the read-only root, seccomp profiles (RuntimeDefault refuses io_uring, as container engines do),
probes, the order of init containers, of sidecars and of the end. Not played: limits of CPU and
memory, scheduling, a Service's own addresses.
"""

import contextlib
import ctypes
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import seccomp
from conftest import made, passable
from waiting import WAIT_S, wait_for

POD_IP = "192.0.2.10"
CLONE_NEWNET = 0x40000000
UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "": 1}


def quantity(text):
    number, unit = re.fullmatch(r"([0-9]+)([KMGT]i|)", str(text)).groups()
    return int(number) * UNITS[unit]


class Network:
    """A network namespace with loopback and the pod's address."""

    def __init__(self, name):
        self.name = name
        made("ip", "netns", "add", name)
        made("ip", "-n", name, "link", "set", "lo", "up")
        made("ip", "-n", name, "address", "add", f"{POD_IP}/32", "dev", "lo")

    @property
    def path(self):
        return f"/run/netns/{self.name}"

    def inside(self, what):
        """Calls what() in a thread that has moved into this namespace, so its sockets are made
        here."""
        box = {}

        def run():
            try:
                fd = os.open(self.path, os.O_RDONLY)
                try:
                    if ctypes.CDLL(None, use_errno=True).setns(fd, CLONE_NEWNET) != 0:
                        raise OSError(ctypes.get_errno(), "setns")
                finally:
                    os.close(fd)
                box["value"] = what()
            except BaseException as e:
                box["error"] = e

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if "error" in box:
            raise box["error"]
        return box["value"]

    def processes(self):
        return [int(pid) for pid in made("ip", "netns", "pids", self.name).split()]

    def get(self, path, port, host=POD_IP, headers=None):
        """Sends the GET of a probe and returns (status, body)."""

        def ask():
            connection = http.client.HTTPConnection(host, port, timeout=5)
            connection.request("GET", path, headers=headers or {})
            reply = connection.getresponse()
            return reply.status, reply.read()

        try:
            return self.inside(ask)
        except (ConnectionError, socket.timeout):
            return 0, b""

    def remove(self):
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        subprocess.run(["ip", "netns", "delete", self.name], check=False, timeout=60)


class Ended(AssertionError):
    """A container ended too early, or in the wrong way."""


class Container:
    def __init__(self, pod, spec):
        self.pod, self.spec, self.name = pod, spec, spec["name"]
        self.id = f"{pod.network.name}-{self.name}"
        self.folder = pod.folder / self.name
        self.folder.mkdir()
        self.log = self.folder / "log"
        self.process = None

    def _config(self):
        security = {
            **self.pod.spec.get("securityContext", {}),
            **self.spec.get("securityContext", {}),
        }
        image = self.pod.images(self.spec)
        root = self.folder / "rootfs"
        made("cp", "-al", image["rootfs"], root)
        assert security.get("runAsUser") is not None or not security.get("runAsNonRoot"), (
            "the kubelet cannot know its user"
        )
        user = security.get("runAsUser", 0)
        group = security.get("fsGroup")
        names = self.spec.get("command", image["entrypoint"]) + self.spec.get(
            "args", [] if "command" in self.spec else image["cmd"]
        )
        environment = self.pod.environment(self.spec, image["env"])
        capabilities = [f"CAP_{name}" for name in security.get("capabilities", {}).get("add", [])]
        assert "ALL" in security.get("capabilities", {}).get("drop", []), (
            f"{self.name}: what is not dropped is not played"
        )
        mounts = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {
                "destination": "/dev",
                "type": "tmpfs",
                "source": "tmpfs",
                "options": ["nosuid", "strictatime", "mode=755", "size=65536k"],
            },
            *image.get("mounts", []),
        ]
        for mount in self.spec.get("volumeMounts", []):
            mounts.append(
                {
                    "destination": mount["mountPath"],
                    "type": "bind",
                    "source": str(self.pod.volumes[mount["name"]]),
                    "options": ["rbind", "ro" if mount.get("readOnly") else "rw"],
                }
            )
        config = {
            "ociVersion": "1.0.2",
            "process": {
                "terminal": False,
                "cwd": "/",
                "user": {
                    "uid": user,
                    "gid": security.get("runAsGroup", 0),
                    "additionalGids": [group] if group else [],
                },
                "args": [expand(word, environment) for word in names],
                "env": [f"{name}={value}" for name, value in environment.items()],
                "capabilities": {
                    kind: capabilities for kind in ("bounding", "effective", "permitted")
                },
                "noNewPrivileges": not security.get("allowPrivilegeEscalation", True),
            },
            "root": {"path": "rootfs", "readonly": security.get("readOnlyRootFilesystem", False)},
            "hostname": "pod",
            "mounts": mounts,
            "linux": {
                "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
                + [{"type": "network", "path": self.pod.network.path}]
            },
        }
        kind = security.get("seccompProfile", {})
        if kind.get("type") == "RuntimeDefault":
            config["linux"]["seccomp"] = seccomp.strict()
        elif kind.get("type") == "Localhost":  # below the kubelet's folder seccomp/
            assert kind["localhostProfile"].endswith(seccomp.FILE.name), kind
            config["linux"]["seccomp"] = json.loads(seccomp.FILE.read_text())
        return config

    def start(self):
        (self.folder / "config.json").write_text(json.dumps(self._config()))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    "runc",
                    "--root",
                    str(self.pod.folder / "runc"),
                    "run",
                    "-b",
                    str(self.folder),
                    self.id,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self

    def said(self):
        return self.log.read_text(errors="replace")[-4000:]

    @property
    def alive(self):
        return self.process is not None and self.process.poll() is None

    def wait(self, seconds=WAIT_S):
        """Waits for the container's end and returns its exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Ended(f"{self.name} still runs after {seconds} s: {self.said()}") from None

    def kill(self, number):
        subprocess.run(
            ["runc", "--root", str(self.pod.folder / "runc"), "kill", self.id, str(int(number))],
            check=False,
            capture_output=True,
            timeout=60,
        )

    def exec(self, *words):
        """Runs a command in the container, as `kubectl exec` does, and returns its output."""
        return made(
            "runc", "--root", self.pod.folder / "runc", "exec", self.id, *words, wait=WAIT_S
        )

    def status(self):
        """/proc/PID/status of its first process, as a dict."""
        state = json.loads(made("runc", "--root", self.pod.folder / "runc", "state", self.id))
        lines = Path(f"/proc/{state['pid']}/status").read_text().splitlines()
        return {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}

    def probe(self, which):
        """(status, body) of one httpGet of the manifest, at the pod's address."""
        ask = self.spec[which]["httpGet"]
        ports = {port["name"]: port["containerPort"] for port in self.spec.get("ports", [])}
        return self.pod.network.get(ask["path"], ports.get(ask["port"], ask["port"]))

    def wait_probe(self, which):
        """Repeats the probe at the manifest's period, at most as often as the manifest allows."""
        probe = self.spec[which]
        allowed = probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3)

        def answered():
            if not self.alive:
                raise Ended(f"{self.name} ended with {self.process.returncode}: {self.said()}")
            return self.probe(which)[0] == 200

        wait_for(answered, lambda: f"{self.name} {which}: {self.said()}", min(allowed, WAIT_S))


def expand(text, environment):
    """Expands $(NAME) as Kubernetes does."""
    return re.sub(
        r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)", lambda m: environment.get(m.group(1), m.group(0)), text
    )


class Pod:
    """A pod of SPEC, with OBJECTS (ConfigMaps and Secrets) to refer to; IMAGES(container) says what
    its image is: {"rootfs", "entrypoint", "cmd", "env", "mounts"}."""

    def __init__(
        self,
        folder,
        network,
        spec,
        objects,
        images,
        namespace="default",
        name="pod",
        annotations=None,
    ):
        self.folder, self.network, self.spec, self.images = Path(folder), network, spec, images
        self.namespace, self.name, self.annotations = namespace, name, annotations or {}
        self.objects = {
            (o["kind"], o["metadata"]["name"]): o
            for o in objects
            if o["kind"] in ("ConfigMap", "Secret")
        }
        self.folder.mkdir()
        passable(self.folder)
        self.group = spec.get("securityContext", {}).get("fsGroup")
        self.volumes = {volume["name"]: self._volume(volume) for volume in spec.get("volumes", [])}
        self.running = []

    def _data(self, kind, name, optional=False):
        found = self.objects.get((kind, name))
        assert found or optional, f"the pod refers to {kind} {name}, which nobody made"
        return {**(found or {}).get("data", {}), **(found or {}).get("stringData", {})}

    def _volume(self, volume):
        folder = self.folder / "volumes" / volume["name"]
        folder.mkdir(parents=True)
        if {"configMap", "secret", "downwardAPI"} & set(volume):
            source, data = self._files(volume)
            inner = folder / "..2026_01_01"
            inner.mkdir()
            for name, text in data.items():
                (inner / name).write_text(text)
                mode = source.get("defaultMode", 0o644)
                os.chown(inner / name, 0, self.group or 0)
                (inner / name).chmod(mode | (mode & 0o400) >> 3 if self.group else mode)
                (folder / name).symlink_to(f"..data/{name}")
            (folder / "..data").symlink_to(inner.name)
            folder.chmod(0o755)
        elif volume.get("hostPath", {}).get("type") == "Directory":
            folder.chmod(0o700)  # as the chart's values ask the node to make it
            os.chown(folder, 65532, 65532)
        elif "hostPath" in volume:
            folder.chmod(0o755)  # as the kubelet makes it: of root
        else:
            assert {"emptyDir", "ephemeral", "persistentVolumeClaim"} & set(volume), volume
            if self.group:
                os.chown(folder, 0, self.group)
                folder.chmod(0o2775)
            elif "emptyDir" in volume:
                folder.chmod(0o777)
            else:
                folder.chmod(0o755)  # as mkfs makes the root of a file system
        return folder

    def _files(self, volume):
        """Returns the source of a volume with files, and their contents by name."""
        if "downwardAPI" in volume:
            source = volume["downwardAPI"]
            return source, {
                item["path"]: self._field(item["fieldRef"]["fieldPath"]) for item in source["items"]
            }
        kind, source = (
            ("ConfigMap", volume["configMap"])
            if "configMap" in volume
            else ("Secret", volume["secret"])
        )
        name = source.get("name") or source.get("secretName")
        return source, self._data(kind, name, source.get("optional", False))

    def _field(self, path):
        if annotation := re.fullmatch(r"metadata\.annotations\['(.*)'\]", path):
            return self.annotations[annotation.group(1)]
        return {
            "metadata.name": self.name,
            "metadata.namespace": self.namespace,
            "status.podIP": POD_IP,
            "status.hostIP": POD_IP,
            "spec.nodeName": "node",
        }[path]

    def environment(self, container, image):
        out = dict(image)
        for source in container.get("envFrom", []):
            kind, reference = (
                ("ConfigMap", source["configMapRef"])
                if "configMapRef" in source
                else ("Secret", source["secretRef"])
            )
            out.update(self._data(kind, reference["name"], reference.get("optional", False)))
        for entry in container.get("env", []):
            out[entry["name"]] = (
                expand(entry["value"], out)
                if "value" in entry
                else self._value(entry["valueFrom"], container)
            )
        return out

    def _value(self, source, container):
        if "resourceFieldRef" in source:
            assert "containerName" not in source["resourceFieldRef"], "of its own container only"
            part, name = source["resourceFieldRef"]["resource"].split(".", 1)
            return str(quantity(container["resources"][part][name]))
        if "fieldRef" in source:
            return self._field(source["fieldRef"]["fieldPath"])
        kind, reference = (
            ("Secret", source["secretKeyRef"])
            if "secretKeyRef" in source
            else ("ConfigMap", source["configMapKeyRef"])
        )
        return self._data(kind, reference["name"])[reference["key"]]

    def container(self, name):
        return next(c for c in self.running if c.name == name)

    def start(self):
        """Init containers in their order, each to its end, a sidecar to its startup probe; then the
        others."""
        for spec in self.spec.get("initContainers", []):
            one = Container(self, spec).start()
            self.running.append(one)
            if spec.get("restartPolicy") == "Always":
                one.wait_probe("startupProbe")
            elif (code := one.wait()) != 0:
                raise Ended(f"init container {one.name} ended with {code}: {one.said()}")
        for spec in self.spec["containers"]:
            self.running.append(Container(self, spec).start())
        for one in self.running:
            if "startupProbe" in one.spec and one.spec.get("restartPolicy") != "Always":
                one.wait_probe("startupProbe")
        return self

    def wait(self):
        """Waits until all containers have ended. Returns their exit codes by name."""
        names = {spec["name"] for spec in self.spec["containers"]}
        return {one.name: one.wait() for one in self.running if one.name in names}

    def stop(self):
        """SIGTERM to its containers, then to its sidecars, last first; what is left after the grace
        is killed. Exit codes by name; a killed one has -9, as a container that had to be."""
        deadline = time.monotonic() + self.spec.get("terminationGracePeriodSeconds", 30)
        names = {spec["name"] for spec in self.spec["containers"]}
        codes = {}
        main = [one for one in self.running if one.name in names]
        sidecars = [one for one in reversed(self.running) if one.name not in names]
        for batch in [main, *([one] for one in sidecars)]:
            for one in batch:
                if one.alive:
                    one.kill(signal.SIGTERM)
            for one in batch:
                try:
                    codes[one.name] = one.process.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    one.kill(signal.SIGKILL)
                    one.process.wait(WAIT_S)
                    codes[one.name] = -9
        return codes

    def remove(self):
        for one in self.running:
            if one.alive:
                one.kill(signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.process.wait(WAIT_S)
            subprocess.run(
                ["runc", "--root", str(self.folder / "runc"), "delete", "--force", one.id],
                check=False,
                capture_output=True,
                timeout=60,
            )

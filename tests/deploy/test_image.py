# SPDX-License-Identifier: Apache-2.0
"""The image: small, the same in two builds, and served by an OCI runtime as a restricted pod would
have it.

Restricted: no capabilities, no new privileges, user 65532, the root read-only, only /cache written;
with the profile of deploy/seccomp and as the default profile of containers has it.
"""

import errno
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import seccomp
from client import judge
from conftest import KEYS, ROOT, made, only_full, passable, program, refused
from forebay import Forebay, io_uring_works
from waiting import WAIT_S

LIMIT_BYTES = 25_000_000
USER = 65532
# As shipped; as strict as no runtime is, with io_uring, refused as default profiles do, and on a
# kernel that has none.
PROFILES = {
    "forebay.json": (lambda: json.loads(seccomp.FILE.read_text()), None),
    "strict": (lambda: seccomp.strict(None), None),
    "EPERM": (seccomp.strict, errno.EPERM),
    "ENOSYS": (lambda: seccomp.strict(errno.ENOSYS), errno.ENOSYS),
}


@pytest.fixture(scope="session")
def bundle(image):
    folder = image / "bundle"
    shutil.rmtree(folder, ignore_errors=True)
    made("umoci", "unpack", "--image", f"{image}/oci:latest", folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


class Container(Forebay):
    """The server in a container: runc's configuration made from the image's own, then as restricted
    asks."""

    def __init__(self, folder, bundle, origin, profile=None, **more):
        super().__init__(
            folder,
            origin,
            settings={"workers": 1, "cache.size": "64MiB", "cache.dir": "/cache", **more},
        )
        self.bundle, self.profile, self.name = (
            Path(folder) / "bundle",
            profile,
            f"forebay-test-{os.getpid()}-{id(self)}",
        )
        self.bundle.mkdir()
        (self.bundle / "rootfs").symlink_to(bundle / "rootfs")
        self.image_config = json.loads((bundle / "config.json").read_text())
        self.cache.mkdir()
        os.chown(self.cache, USER, USER)
        passable(self.folder)

    def command(self):
        config = dict(self.image_config)
        process = config["process"]
        assert process["user"] == {"uid": USER, "gid": USER}
        assert process["args"] == ["/usr/bin/forebay", "serve"]
        process["terminal"] = False
        process["noNewPrivileges"] = True
        process["capabilities"] = {kind: [] for kind in process["capabilities"]}
        process["env"] += [
            f"{name}={self.env[name]}" for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        ]
        process["env"] += [
            f"FOREBAY_{name.replace('.', '_').upper()}={value}"
            for name, value in self.settings.items()
            if name != "cache.dir"
        ]
        config["root"] = {"path": str((self.bundle / "rootfs").resolve()), "readonly": True}
        # A pod's network is the harness's here; its /sys and cgroups are not ours to mount.
        config["linux"]["namespaces"] = [
            n for n in config["linux"]["namespaces"] if n["type"] != "network"
        ]
        config["mounts"] = [
            m
            for m in config["mounts"]
            if m["destination"] not in ("/cache", "/sys", "/sys/fs/cgroup")
        ]
        config["mounts"].append(
            {
                "destination": "/cache",
                "type": "bind",
                "source": str(self.cache),
                "options": ["rbind", "rw"],
            }
        )
        config["linux"]["seccomp"] = self.profile or seccomp.strict()
        (self.bundle / "config.json").write_text(json.dumps(config))
        return [
            "runc",
            "--root",
            str(self.folder / "runc"),
            "run",
            "-b",
            str(self.bundle),
            self.name,
        ]

    def signal(self, number):
        made("runc", "--root", self.folder / "runc", "kill", self.name, str(int(number)))

    def end(self):
        """Sends SIGTERM to the container and returns its exit code."""
        self.signal(signal.SIGTERM)
        code = self.process.wait(WAIT_S)
        self._join()
        self.process = None
        return code

    def remove(self):
        """Ends all processes of the test, whatever its outcome."""
        if self.process is not None:
            subprocess.run(
                ["runc", "--root", str(self.folder / "runc"), "delete", "--force", self.name],
                timeout=60,
                check=False,
            )
            self.process.wait(WAIT_S)


@pytest.fixture(scope="session")
def runtime(bundle):
    """Whether this machine starts containers at all: a sandbox may refuse what that takes."""
    config = json.loads((bundle / "config.json").read_text())
    config["process"].update(terminal=False, args=["/usr/bin/forebay", "version"])
    config["mounts"] = [
        m for m in config["mounts"] if m["destination"] not in ("/cache", "/sys", "/sys/fs/cgroup")
    ]
    (bundle / "probe").mkdir(exist_ok=True)
    config["root"]["path"] = str(bundle / "rootfs")
    (bundle / "probe/config.json").write_text(json.dumps(config))
    done = subprocess.run(
        [
            "runc",
            "--root",
            str(bundle / "runc"),
            "run",
            "-b",
            str(bundle / "probe"),
            f"forebay-probe-{os.getpid()}",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0 and "runc" in done.stderr:
        refused(f"no containers: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0 and done.stdout.startswith("forebay "), done.stdout + done.stderr


@pytest.fixture
def contained(tmp_path, bundle, runtime):
    running = []

    def make(origin, **more):
        running.append(Container(tmp_path / f"pod{len(running)}", bundle, origin, **more))
        return running[-1].start()

    yield make
    for server in running:
        server.remove()


def test_image_is_small_and_holds_one_program(image, bundle, figure):
    root = bundle / "rootfs"
    size = sum(p.lstat().st_size for p in root.rglob("*") if p.is_file() and not p.is_symlink())
    figure(f"image: {size / 1e6:.1f} MB unpacked, {(image / 'digest').read_text().strip()}")
    assert size <= LIMIT_BYTES
    programs = [
        p for p in root.rglob("*") if p.is_file() and os.access(p, os.X_OK) and ".so" not in p.name
    ]
    assert [str(p.relative_to(root)) for p in programs] == ["usr/bin/forebay"]
    assert (root / "etc/ssl/certs/ca-certificates.crt").stat().st_size > 100_000
    assert (root / "cache").stat().st_uid == USER
    assert not [p for p in root.rglob("*") if p.is_file() and p.stat().st_mode & 0o6000]


def test_sbom_names_each_library(image, bundle):
    """Every library in the image is of a package that the bill of materials and the scanners'
    records name."""
    bill = json.loads((image / "sbom.spdx.json").read_text())
    assert bill["spdxVersion"] == "SPDX-2.3"
    named = {package["name"] for package in bill["packages"]}
    recorded = {path.name for path in (bundle / "rootfs/var/lib/dpkg/status.d").iterdir()}
    assert recorded == named - {"forebay"}
    assert {"libc6", "libcurl4", "libssl3", "liblmdb0", "liburing2", "ca-certificates"} <= recorded
    licences = bundle / "rootfs/usr/share/doc"
    assert all((licences / name / "copyright").stat().st_size > 0 for name in recorded)
    declared = {package["name"]: package["licenseDeclared"] for package in bill["packages"]}
    assert {
        name: declared[name]
        for name in (
            "forebay",
            "libcurl4",
            "libssl3",
            "liblmdb0",
            "libjansson4",
            "zlib1g",
            "libgmp10",
        )
    } == {
        "forebay": "Apache-2.0",
        "libcurl4": "curl",
        "libssl3": "Apache-2.0",
        "liblmdb0": "OLDAP-2.8",
        "libjansson4": "MIT",
        "zlib1g": "Zlib",
        "libgmp10": "GPL-2.0-or-later OR LGPL-3.0-or-later",
    }
    # Where the copyright file is for people only, nothing is claimed.
    for name in recorded:
        if (licences / name / "copyright").read_text(errors="replace").startswith("Format:"):
            continue
        assert declared[name] == "NOASSERTION", name


def test_sbom_is_valid(image, tmp_path):
    """SPDX's own tools accept it. They detect unknown licences."""
    judge_of_bills = program("pyspdxtools")
    made(judge_of_bills, "-i", image / "sbom.spdx.json")
    bad = tmp_path / "bad.spdx.json"
    bad.write_text((image / "sbom.spdx.json").read_text().replace('"OLDAP-2.8"', '"OpenLDAP-2.8"'))
    said = subprocess.run(
        [judge_of_bills, "-i", str(bad)], capture_output=True, text=True, timeout=60, check=False
    )
    assert said.returncode != 0 and "OpenLDAP-2.8" in said.stdout + said.stderr


def test_dockerfile_is_clean(tmp_path):
    made(program("hadolint"), "--no-color", ROOT / "Dockerfile")
    bad = tmp_path / "Dockerfile"
    bad.write_text((ROOT / "Dockerfile").read_text() + "RUN cd /tmp\n")
    assert (
        subprocess.run(
            ["hadolint", str(bad)], capture_output=True, timeout=60, check=False
        ).returncode
        != 0
    )


def test_two_builds_have_one_digest(image, artefacts, tmp_path):
    """The second build runs in another clone, over the same base."""
    clone = tmp_path / "clone"
    made("git", "clone", "-q", ROOT, clone)
    made("sh", clone / "deploy/image.sh", "--base", image / "base.tar", artefacts / "image-again")
    assert (artefacts / "image-again/digest").read_text() == (image / "digest").read_text()


def test_debug_image_has_tools(image, artefacts):
    """The other target, over the same base: the same binary, a shell, curl and fio."""
    only_full()
    made(
        "sh",
        ROOT / "deploy/image.sh",
        "--target",
        "debug",
        "--base",
        image / "base.tar",
        artefacts / "image-debug",
    )
    folder = artefacts / "image-debug/bundle"
    shutil.rmtree(folder, ignore_errors=True)
    made("umoci", "unpack", "--image", f"{artefacts}/image-debug/oci:latest", folder)
    config = json.loads((folder / "config.json").read_text())["process"]
    assert config["user"] == {"uid": USER, "gid": USER} and config["args"] == [
        "/usr/bin/forebay",
        "serve",
    ]
    for words in (
        ["/usr/bin/forebay", "version"],
        ["/usr/bin/curl", "--version"],
        ["/usr/bin/fio", "--version"],
        ["/bin/sh", "-c", "true"],
    ):
        made("chroot", f"--userspec={USER}:{USER}", folder / "rootfs", *words)
    shutil.rmtree(folder)


class Chrooted(Forebay):
    """Where no runtime starts containers: a chroot, user 65532, no capabilities, no new privileges.
    The root is not read-only and the kernel's whole set of calls is there."""

    def __init__(self, folder, bundle, origin):
        super().__init__(
            folder, origin, settings={"workers": 1, "cache.size": "64MiB", "cache.dir": "/cache"}
        )
        self.root = bundle / "rootfs"

    def command(self):
        name, *rest = super().command()
        return [
            "setpriv",
            "--no-new-privs",
            "--inh-caps=-all",
            "chroot",
            f"--userspec={USER}:{USER}",
            "--groups=",
            str(self.root),
            "/usr/bin/forebay",
            *rest,
        ]


def test_served_without_a_runtime(bundle, origin, tmp_path):
    """Starts the image in a second way, for machines that refuse containers."""
    origin.put("obj", 1 << 20)
    server = Chrooted(tmp_path / "server", bundle, origin).start()
    try:
        with server.client() as client:
            judge(client.get("obj"), origin, "obj", 0, 1 << 20)
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        assert f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}\n" in status and "NoNewPrivs:\t1\n" in status
        assert "CapEff:\t0000000000000000\n" in status and "CapPrm:\t0000000000000000\n" in status
    finally:
        server.stop()


@pytest.mark.parametrize("profile", PROFILES)
def test_served_as_restricted(contained, origin, profile):
    profile, refused = PROFILES[profile]
    size = 3 << 20
    origin.put("obj", size)
    server = contained(origin, profile=profile())
    with server.client() as client:
        judge(client.get("obj"), origin, "obj", 0, size)
        server.settle()
        mark = origin.mark()
        again = client.get("obj", 1000, 1 << 20)
        judge(again, origin, "obj", 1000)
        assert "; hit" in again.header("cache-status")
    assert not origin.requests(since=mark) and origin.sent_twice("obj") == 0
    said = server.output()
    if refused:
        assert f"threads: io_uring_setup: {errno.errorcode[refused]}" in said
    elif io_uring_works():
        assert "disk       io_uring" in said
    assert server.end() == 0
    assert '"event":"stopped"' in server.output() and not server.complaints()


def test_cache_outlives_its_container(contained, origin, tmp_path):
    origin.put("obj", 1 << 20)
    server = contained(origin, **{"cache.ttl": "1h"})
    with server.client() as client:
        judge(client.get("obj"), origin, "obj", 0, 1 << 20)
        server.settle()
    assert server.end() == 0
    server.start()
    with server.client() as client:
        judge(client.get("obj"), origin, "obj", 0, 1 << 20)
    assert len(origin.requests(method="GET", key="obj")) == 1
    assert server.end() == 0


def test_signed_requests_of_a_real_client(contained, origin):
    """boto3 reads a bucket of the scripted origin with keys that nobody checks."""
    import boto3
    from botocore.config import Config

    origin.put("dir/obj", 70_000)
    server = contained(origin)
    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        region_name="us-east-1",
        aws_access_key_id=next(iter(KEYS)),
        aws_secret_access_key=next(iter(KEYS.values())),
        config=Config(s3={"addressing_style": "path"}),
    )
    assert len(client.get_object(Bucket="bkt", Key="dir/obj")["Body"].read()) == 70_000
    assert [o["Key"] for o in client.list_objects_v2(Bucket="bkt", Prefix="dir/")["Contents"]] == [
        "dir/obj"
    ]
    assert server.end() == 0

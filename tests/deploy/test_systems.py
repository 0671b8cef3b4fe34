# SPDX-License-Identifier: Apache-2.0
"""Other systems than Debian 12, only with --full: the package built, installed and served on Debian
13 and on Ubuntu 24.04."""

import shutil
import subprocess

import pytest
from client import judge
from conftest import ROOT, made, namespaces, only_full, refused
from test_package import Installed

# Debian 12 has no keyring of Ubuntu's: what is built here is thrown away again.
SYSTEMS = {
    "trixie": ["deb http://deb.debian.org/debian trixie main"],
    "noble": [
        f"deb [trusted=yes] http://archive.ubuntu.com/ubuntu {suite} main universe"
        for suite in ("noble", "noble-updates")
    ],
    "bookworm": ["deb http://deb.debian.org/debian bookworm main"],
}
# /proc and the others go with the namespace.
INSIDE = [
    "unshare",
    "--mount",
    "sh",
    "-c",
    'for m in proc sys dev; do mount --rbind /$m "$0/$m"; done; exec chroot "$0" "$@"',
]
ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "DEBIAN_FRONTEND": "noninteractive",
    "HOME": "/root",
}


def inside(root, *command):
    return made(*INSIDE, root, *command, env=ENVIRONMENT, wait=3600)


@pytest.fixture
def system(artefacts):
    """system(NAME): a bare one in a folder, with this tree in /src."""
    only_full()
    namespaces("mount")
    folders = []

    def make(name):
        folder = artefacts / f"system-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        folders.append(folder)
        done = subprocess.run(
            ["mmdebstrap", "--quiet", "--variant=apt", name, folder, *SYSTEMS[name]],
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        if done.returncode != 0 and any(
            word in done.stderr for word in ("Could not connect", "Could not resolve", "403 ")
        ):
            refused(f"the archive of {name} cannot be reached: {done.stderr.strip()[-200:]}")
        assert done.returncode == 0, done.stderr[-2000:]
        shutil.copy("/etc/resolv.conf", folder / "etc/resolv.conf")
        made("git", "clone", "-q", ROOT, folder / "src")
        made(
            "git",
            "-C",
            folder / "src",
            "config",
            "--file",
            folder / "etc/gitconfig",
            "safe.directory",
            "*",
        )
        return folder

    yield make
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def served(server, origin):
    origin.put("obj", 1 << 20)
    server.start()
    with server.client() as client:
        judge(client.get("obj"), origin, "obj", 0, 1 << 20)
        server.settle()
        judge(client.get("obj"), origin, "obj", 0, 1 << 20)
    server.stop()
    assert len(origin.requests(method="GET", key="obj")) == 1


@pytest.mark.parametrize("name", ["trixie", "noble"])
def test_package_elsewhere(system, origin, tmp_path, figure, name):
    root = system(name)
    inside(root, "sh", "/src/deploy/deb.sh", "/out")
    package = next((root / "out").glob("*.deb"))
    inside(
        root, "apt-get", "-qq", "-y", "install", "--no-install-recommends", f"/out/{package.name}"
    )
    figure(f"{name}: {inside(root, 'forebay', 'version').splitlines()[0]}")
    inside(root, "forebay", "check")
    file = root / "etc/forebay/forebay.yaml"
    file.write_text(file.read_text() + "rules: [{match: 'bkt/**', freshness: immutable}]\n")
    served(Installed(tmp_path / "server", root, origin), origin)

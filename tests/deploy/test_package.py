# SPDX-License-Identifier: Apache-2.0
"""The Debian package: clean by lintian, installed, served, upgraded and purged in a bare Debian 12; the unit's exposure."""
import os
import re
import shutil
import subprocess

import pytest
from client import judge
from conftest import ROOT, made
from forebay import Forebay

EXPOSURE_TENTHS = 15
IMMUTABLE = {"rules": [{"match": "bkt/**", "freshness": "immutable"}]}


@pytest.fixture(scope="session")
def package(artefacts):
    made("sh", ROOT / "deploy/deb.sh", artefacts / "package")
    return next((artefacts / "package").glob("*.deb"))


@pytest.fixture(scope="session")
def tarball(package):
    return next(package.parent.glob("*.tar.gz"))


@pytest.fixture(scope="session")
def newer(package, tmp_path_factory):
    """The same with a higher version."""
    folder = tmp_path_factory.mktemp("newer")
    made("dpkg-deb", "--raw-extract", package, folder / "tree")
    control = folder / "tree/DEBIAN/control"
    control.write_text(re.sub("^Version: .*", "Version: 99.0.0", control.read_text(), flags=re.M))
    made("dpkg-deb", "--root-owner-group", "--build", folder / "tree", folder / "forebay_99.0.0.deb")
    return folder / "forebay_99.0.0.deb"


@pytest.fixture(scope="session")
def debian(artefacts):
    """A bare Debian 12 in a folder; its network is ours."""
    folder = artefacts / "debian"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    made("mmdebstrap", "--quiet", "--variant=apt", "bookworm", folder)
    shutil.copy("/etc/resolv.conf", folder / "etc/resolv.conf")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def inside(debian, *command, **more):
    return made("chroot", debian, *command, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", **more})


def files(debian):
    return {str(p.relative_to(debian)) for folder in ("etc", "usr/bin", "usr/lib/systemd", "usr/share") if (debian / folder).is_dir()
            for p in (debian / folder).rglob("*") if "forebay" in p.name}


def test_lintian_says_nothing(package):
    made("lintian", *(["--allow-root"] if os.geteuid() == 0 else []), "--fail-on", "error,warning", package)


def test_two_builds_have_the_same_bytes(package, artefacts, tmp_path):
    clone = tmp_path / "clone"
    made("git", "clone", "-q", ROOT, clone)
    made("sh", clone / "deploy/deb.sh", artefacts / "package-again")
    for path in package.parent.glob("*.[dt][ea][br]*"):
        assert (artefacts / "package-again" / path.name).read_bytes() == path.read_bytes(), path.name


class Installed(Forebay):
    """The server of the chroot, by the file in its /etc."""

    def __init__(self, folder, debian, origin):
        super().__init__(folder, origin, binary_path=str(debian / "usr/bin/forebay"), file=IMMUTABLE)
        self.debian = debian
        self.settings["cache.dir"] = "/var/cache/forebay"

    def command(self):
        name, *rest = super().command()
        return ["chroot", str(self.debian), "/usr/bin/forebay", *("/etc/forebay/forebay.yaml" if word.endswith("forebay.yaml") else word
                                                                for word in rest)]


def test_installed_served_upgraded_purged(debian, package, newer, origin, tmp_path, monkeypatch):
    """The file in /etc is the administrator's: an upgrade leaves it, a purge takes it, and the cache with it."""
    before = files(debian)
    for path in (package, newer):
        shutil.copy(path, debian / "tmp")
    inside(debian, "apt-get", "-qq", "update")
    inside(debian, "apt-get", "-qq", "-y", "install", "--no-install-recommends", f"/tmp/{package.name}")
    assert "usr/share/man/man1/forebay.1.gz" in files(debian) and "usr/lib/systemd/system/forebay.service" in files(debian)
    config = debian / "etc/forebay/forebay.yaml"
    inside(debian, "forebay", "check")                       # the file as shipped is valid
    config.write_text(config.read_text() + "rules: [{match: 'bkt/**', freshness: immutable}]\n")
    origin.put("obj", 1 << 20)
    server = Installed(tmp_path / "server", debian, origin)
    server.start()
    with server.client() as client:
        judge(client.get("obj"), origin, "obj", 0, 1 << 20)
        server.settle()
    server.stop()
    changed = config.read_text()
    inside(debian, "apt-get", "-qq", "-y", "install", "--no-install-recommends", f"/tmp/{newer.name}")
    assert "99.0.0" in inside(debian, "dpkg-query", "-W", "forebay")
    assert config.read_text() == changed
    server.start()
    with server.client() as client:
        judge(client.get("obj"), origin, "obj", 0, 1 << 20)
    server.stop()
    assert len(origin.requests(method="GET", key="obj")) == 1   # the cache of the package before
    inside(debian, "apt-get", "-qq", "-y", "purge", "forebay")
    assert files(debian) == before
    assert not (debian / "var/cache/forebay").exists()


def test_tarball_serves_from_anywhere(tarball, origin, tmp_path):
    made("tar", "-xzf", tarball, "-C", tmp_path)
    folder = next(p for p in tmp_path.iterdir() if p.name.startswith("forebay-"))
    origin.put("obj", 1000)
    server = Forebay(tmp_path / "server", origin, binary_path=str(folder / "usr/bin/forebay")).start()
    with server.client() as client:
        judge(client.get("obj"), origin, "obj", 0, 1000)
    server.stop()


def test_unit_is_tight():
    """systemd's own figure, at most 1.5; and what it says of the file itself."""
    if shutil.which("systemd-analyze") is None:
        pytest.fail("systemd-analyze is in Debian's package systemd")
    unit = ROOT / "deploy/systemd/forebay.service"
    made("systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE_TENTHS}", unit)
    said = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60)
    complaints = [line for line in (said.stdout + said.stderr).splitlines() if "is not executable" not in line and line.strip()]
    assert not complaints, complaints

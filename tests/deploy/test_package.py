# SPDX-License-Identifier: Apache-2.0
"""The Debian package: clean by lintian, installed, served, upgraded and purged in a bare Debian 12;
the unit's exposure."""

import os
import re
import shutil
import socket
import subprocess

import pages
import pytest
from client import judge
from conftest import ROOT, made, namespaces, passable, refused
from forebay import Forebay, binary
from waiting import WAIT_S

EXPOSURE_TENTHS = 15
UNITS = ROOT / "deploy/systemd"
IMMUTABLE = {"rules": [{"match": "bkt/**", "freshness": "immutable"}]}


@pytest.fixture(scope="session")
def newer(package, tmp_path_factory):
    """Makes the same package with a higher version."""
    folder = tmp_path_factory.mktemp("newer")
    made("dpkg-deb", "--raw-extract", package, folder / "tree")
    control = folder / "tree/DEBIAN/control"
    control.write_text(re.sub("^Version: .*", "Version: 99.0.0", control.read_text(), flags=re.M))
    made(
        "dpkg-deb", "--root-owner-group", "--build", folder / "tree", folder / "forebay_99.0.0.deb"
    )
    return folder / "forebay_99.0.0.deb"


@pytest.fixture(scope="session")
def debian(artefacts):
    """A bare Debian 12 in a folder; its network is ours."""
    namespaces("mount")
    folder = artefacts / "debian"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    made("mmdebstrap", "--quiet", "--variant=apt", "bookworm", folder)
    shutil.copy("/etc/resolv.conf", folder / "etc/resolv.conf")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def inside(debian, *command, **more):
    return made(
        "chroot",
        debian,
        *command,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", **more},
    )


def files(debian):
    return {
        str(p.relative_to(debian))
        for folder in ("etc", "usr/bin", "usr/lib/systemd", "usr/share")
        if (debian / folder).is_dir()
        for p in (debian / folder).rglob("*")
        if "forebay" in p.name
    }


def test_lintian_says_nothing(package):
    made(
        "lintian",
        *(["--allow-root"] if os.geteuid() == 0 else []),
        "--fail-on",
        "error,warning",
        package,
    )


def test_links_of_the_packaged_pages_lead_somewhere(package, tmp_path):
    """A link to a file that the package lacks is plain text in it."""
    made("dpkg-deb", "--extract", package, tmp_path)
    found = sorted((tmp_path / "usr/share/doc/forebay").glob("*/*.md"))
    assert {page.parent.name for page in found} == {"guide", "haproxy", "prometheus"}
    dead = {page.name: pages.dead_links(page) for page in found}
    assert {name: links for name, links in dead.items() if links} == {}


def test_two_builds_have_the_same_bytes(package, artefacts, tmp_path):
    clone = tmp_path / "clone"
    made("git", "clone", "-q", ROOT, clone)
    made("sh", clone / "deploy/deb.sh", artefacts / "package-again")
    assert (artefacts / "package-again" / package.name).read_bytes() == package.read_bytes()


class Installed(Forebay):
    """The server of the chroot, by the file in its /etc."""

    def __init__(self, folder, debian, origin):
        super().__init__(
            folder, origin, binary_path=str(debian / "usr/bin/forebay"), file=IMMUTABLE
        )
        self.debian = debian
        self.settings["cache.dir"] = "/var/cache/forebay"

    def command(self):
        name, *rest = super().command()
        return [
            "chroot",
            str(self.debian),
            "/usr/bin/forebay",
            *(
                "/etc/forebay/forebay.yaml" if word.endswith("forebay.yaml") else word
                for word in rest
            ),
        ]


def test_installed_served_upgraded_purged(debian, package, newer, origin, tmp_path, monkeypatch):
    """The administrator owns the file in /etc. An upgrade keeps it. A purge removes it and the
    cache, and leaves the administrator's other files."""
    before = files(debian)
    for path in (package, newer):
        shutil.copy(path, debian / "tmp")
    inside(debian, "apt-get", "-qq", "update")
    inside(
        debian, "apt-get", "-qq", "-y", "install", "--no-install-recommends", f"/tmp/{package.name}"
    )
    assert "usr/share/man/man1/forebay.1.gz" in files(
        debian
    ) and "usr/share/man/man8/forebay.8.gz" in files(debian)
    assert {f"usr/lib/systemd/system/forebay.{kind}" for kind in ("service", "socket")} <= files(
        debian
    )
    assert all(
        os.access(debian / f"usr/share/forebay/slurm/{name}.sh", os.X_OK)
        for name in ("prolog", "epilog")
    )
    docs = debian / "usr/share/doc/forebay"
    assert "### ForebayCondition" in (docs / "prometheus/README.md").read_text()
    assert (docs / "guide/failures.md").is_file()
    config = debian / "etc/forebay/forebay.yaml"
    inside(debian, "forebay", "check")  # the file as shipped is valid
    # Without settings, the shipped file stays the same from release to release. A changed one would
    # make dpkg ask, and fail where nobody answers.
    assert all(line.startswith("#") for line in config.read_text().splitlines())
    assert "#size:" not in config.read_text()
    assert "  #size:" in (docs / "examples/forebay.yaml").read_text()
    config.write_text(config.read_text() + "rules: [{match: 'bkt/**', freshness: immutable}]\n")
    origin.put("obj", 1 << 20)
    server = Installed(tmp_path / "server", debian, origin)
    server.start()
    with server.client() as client:
        judge(client.get("obj"), origin, "obj", 0, 1 << 20)
        server.settle()
    server.stop()
    changed = config.read_text()
    inside(
        debian, "apt-get", "-qq", "-y", "install", "--no-install-recommends", f"/tmp/{newer.name}"
    )
    assert "99.0.0" in inside(debian, "dpkg-query", "-W", "forebay")
    assert config.read_text() == changed
    server.start()
    with server.client() as client:
        judge(client.get("obj"), origin, "obj", 0, 1 << 20)
    server.stop()
    assert len(origin.requests(method="GET", key="obj")) == 1  # the cache of the package before
    own = [debian / "etc/forebay/env", debian / "etc/systemd/system/forebay.service.d/own.conf"]
    for path in own:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    inside(debian, "apt-get", "-qq", "-y", "purge", "forebay")
    left = {"etc/forebay", "etc/systemd/system/forebay.service.d"}
    assert files(debian) == before | left and all(path.is_file() for path in own)
    assert not (debian / "var/cache/forebay").exists()


def complaints(*units):
    """Returns systemd's complaints about unit files, except that the program is not installed
    here."""
    said = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, units)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return [
        line
        for line in (said.stdout + said.stderr).splitlines()
        if "is not executable" not in line and line.strip()
    ]


def test_units_are_tight():
    """systemd's exposure figure is at most 1.5, and systemd has no complaint about the files."""
    made(
        "systemd-analyze",
        "security",
        "--offline=true",
        "--no-pager",
        f"--threshold={EXPOSURE_TENTHS}",
        UNITS / "forebay.service",
    )
    assert complaints(UNITS / "forebay.service", UNITS / "forebay.socket") == []


def test_drop_in_for_another_disk_is_one(tmp_path):
    """systemd reads it with the unit. The user, the mount and the cache are those of its head."""
    shutil.copy(UNITS / "forebay.service", tmp_path)
    (tmp_path / "forebay.service.d").mkdir()
    drop_in = tmp_path / "forebay.service.d/other-disk.conf"
    shutil.copy(UNITS / "other-disk.conf", drop_in)
    assert complaints(tmp_path / "forebay.service") == []
    text = drop_in.read_text()
    assert "useradd --system" in text and text.count("/nvme/forebay") == 7
    drop_in.write_text(text.replace("ReadWritePaths=", "ReadWritePath="))
    assert any("ReadWritePath" in line for line in complaints(tmp_path / "forebay.service"))


def test_unit_may_read_the_keys_as_the_page_says(tmp_path):
    """The drop-in of "A shared host" is one for the unit, and names the group that the page gives
    the file of the keys."""
    page = (ROOT / "deploy/guide/host.md").read_text()
    drop_in, text = re.search(
        r"^cat >\S*/(forebay\.service\.d/\S+) <<'UNIT'\n(.*?)^UNIT$", page, re.M | re.S
    ).groups()
    shutil.copy(UNITS / "forebay.service", tmp_path)
    (tmp_path / drop_in).parent.mkdir()
    (tmp_path / drop_in).write_text(text)
    assert complaints(tmp_path / "forebay.service") == []
    (group,) = re.findall(r"^SupplementaryGroups=(\S+)$", text, re.M)
    assert f"groupadd --system {group}\n" in page
    assert f"install -g {group} -m 640 /dev/null /etc/forebay/keys.yaml\n" in page


@pytest.mark.parametrize("mode,code", [(0o640, 0), (0o600, 3), (0o644, 3)])
def test_a_user_reads_the_keys_by_a_group(tmp_path, mode, code):
    """The server accepts root's file by its group, as the unit does with its drop-in. Other modes
    are refused with the remedy."""
    if os.getuid() != 0:
        refused("it needs root")
    group = 60123
    keys = tmp_path / "keys.yaml"
    keys.write_text(made(binary(), "keys", "new", "alice", "--allow", "imagenet/"))
    os.chown(keys, 0, group)
    keys.chmod(mode)
    passable(tmp_path)
    program = shutil.copy(binary(), tmp_path / "forebay")
    done = subprocess.run(
        [
            program,
            "check",
            "--auth.mode",
            "verify",
            "--auth.keys_file",
            keys,
            "--cache.dir",
            "/tmp",
        ],
        user=61234,
        group=61234,
        extra_groups=[group],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert code == 0 or "chmod 640 it and give it a group" in done.stderr


def test_unknown_words_in_units_are_seen(tmp_path):
    """Tests the judge with unknown words."""
    for name, word in (
        ("forebay.service", "WatchdogSecs=30"),
        ("forebay.socket", "ListenStreams=9000"),
    ):
        for unit in UNITS.glob("forebay.s*"):
            shutil.copy(unit, tmp_path)
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(
            re.sub(r"^(WatchdogSec|FileDescriptorName)=", word + r"\n\g<0>", text, flags=re.M)
        )
        assert any(
            word.split("=")[0] in line
            for line in complaints(tmp_path / "forebay.service", tmp_path / "forebay.socket")
        )


def setting(unit, name):
    """Returns the one value of NAME in a unit file."""
    (value,) = re.findall(rf"^{name}=(.*)$", (UNITS / unit).read_text(), re.M)
    return value


class Activated(Forebay):
    """Started by the first connection to a socket that systemd's own tool holds, with the words of
    the units."""

    def __init__(self, folder, origin, notify):
        super().__init__(folder, origin, settings={"listen": None})
        self.env.update(
            NOTIFY_SOCKET=str(notify),
            WATCHDOG_USEC=str(int(setting("forebay.service", "WatchdogSec")) * 1_000_000),
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def command(self):
        given = [f"--setenv={name}={value}" for name, value in self.env.items()]
        return [
            "systemd-socket-activate",
            f"--listen=127.0.0.1:{self.port}",
            f"--fdname={setting('forebay.socket', 'FileDescriptorName')}",
            *given,
            *super().command(),
        ]


def test_socket_starts_the_service(origin, tmp_path):
    """The first client that connects waits for the service. READY=1 and the watchdog's messages are
    as Type=notify requires."""
    assert setting("forebay.socket", "ListenStream") == "127.0.0.1:9000", (
        "where clients without a setting of their own look"
    )
    assert setting("forebay.service", "Type") == "notify"
    origin.put("obj", 1 << 20)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(str(tmp_path / "notify"))
        notify.settimeout(WAIT_S)
        server = Activated(tmp_path / "server", origin, tmp_path / "notify")
        server.spawn()
        try:
            server.wait_stderr("Listening on 127.0.0.1")
            assert not any("forebay" in line for line in server.stdout)
            with server.client() as client:
                judge(client.get("obj"), origin, "obj", 0, 1 << 20)
            assert [notify.recv(100) for _ in range(3)] == [
                b"READY=1",
                b"WATCHDOG_USEC=30000000",
                b"WATCHDOG=1",
            ]
            assert f"listening  http://127.0.0.1:{server.port}" in server.output()
        finally:
            server.stop()
        assert notify.recv(100).startswith(b"STOPPING=1\nEXTEND_TIMEOUT_USEC=")


def test_manual_of_the_service_names_what_there_is():
    """forebay(8): clean by mandoc; its units, files, signals and numbers are those of the units."""
    page = UNITS / "forebay.8"
    said = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", str(page)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said.stdout == "", said.stdout
    text = page.read_text()
    assert (
        setting("forebay.socket", "ListenStream") in text
        and f"{setting('forebay.service', 'WatchdogSec')} seconds" in text
    )
    assert setting("forebay.service", "EnvironmentFile").removeprefix("-") in text
    assert set(setting("forebay.service", "RestartPreventExitStatus").split()) == {"2", "3", "4"}
    for command in re.findall(r"^\.Nm forebay Cm (\w+)", text, re.M):
        made(binary(), "help", command)

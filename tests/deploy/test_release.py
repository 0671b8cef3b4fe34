# SPDX-License-Identifier: Apache-2.0
"""A release: made by release.sh from a clean clone, each artefact of one version and one commit,
its sums and signature good; what does not agree is refused before anything is made.

Image, package and wheel are those that the other tests have built; at scale 1 the one command makes
all of it again.
"""

import hashlib
import json
import re
import shutil
import subprocess
import tarfile

import charts
import pytest
from conftest import ROOT, made
from forebay import scale

VERSION = re.search(
    r"^project\(forebay VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(), re.M
).group(1)
WHO = "release@example.com"


@pytest.fixture
def clone(tmp_path):
    """Of what is committed; what is not committed here is not a part of a release either."""
    made("git", "clone", "-q", ROOT, tmp_path / "clone")
    return tmp_path / "clone"


def release(clone, *words, wait=3600, **more):
    return subprocess.run(
        ["sh", str(clone / "deploy/release.sh"), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=wait,
        check=False,
        **more,
    )


def refused(clone, says, *words, code=1, **more):
    done = release(clone, *words, **more)
    assert done.returncode == code and says in done.stderr, (
        done.returncode,
        done.stdout,
        done.stderr,
    )
    assert not list((clone / "build").glob("release-[0-9]*")), "something was left"


@pytest.fixture
def prebuilt(image, package, wheel):
    return ["--image", image, "--package", package.parent, "--wheel", wheel.parent]


@pytest.fixture
def ssh_key(tmp_path):
    if shutil.which("ssh-keygen") is None:
        made("sh", ROOT / "deploy/packages.sh", "--install", "release")
    made("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", WHO, "-f", tmp_path / "key")
    return tmp_path / "key"


def signed_by(folder, key):
    """As deploy/guide/release.md has whoever takes it do it."""
    allowed = folder.parent / "allowed_signers"
    allowed.write_text(f"{WHO} {key.with_suffix('.pub').read_text()}")
    return (
        subprocess.run(
            [
                "ssh-keygen",
                "-Y",
                "verify",
                "-f",
                str(allowed),
                "-I",
                WHO,
                "-n",
                "forebay-release",
                "-s",
                str(folder / "SHA256SUMS.sig"),
            ],
            stdin=(folder / "SHA256SUMS").open("rb"),
            capture_output=True,
            timeout=60,
            check=False,
        ).returncode
        == 0
    )


def good(folder, key):
    """The artefacts that a release has, by kind, one for each processor; sums and signature are
    right."""
    names = {path.name for path in folder.iterdir()}
    found = {
        kind: sorted(n for n in names if re.fullmatch(pattern, n))
        for kind, pattern in {
            "image": rf"forebay-{re.escape(VERSION)}-image-\w+\.oci\.tar",
            "package": rf"forebay_{re.escape(VERSION)}_\w+\.deb",
            "wheel": rf"forebay-{re.escape(VERSION)}[^-]*-py3-none-manylinux_2_\d+_\w+\.whl",
            "tarball": rf"forebay-{re.escape(VERSION)}-Linux-\w+\.tar\.gz",
            "chart": rf"forebay-{re.escape(VERSION)}\.tgz",
            "bill": rf"forebay-{re.escape(VERSION)}\.spdx\.json",
            "linked": rf"forebay-{re.escape(VERSION)}-static-\w+\.spdx\.json",
            "notes": r"NOTES\.md",
        }.items()
    }
    every = {name for several in found.values() for name in several}
    assert all(found.values()) and names == every | {"SHA256SUMS", "SHA256SUMS.sig"}, names
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {
        0o644
    } and folder.stat().st_mode & 0o777 == 0o755
    listed = dict(
        reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines()
    )
    assert listed.keys() == every
    made("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=folder)
    assert signed_by(folder, key)
    return {kind: [folder / name for name in several] for kind, several in found.items()}


def test_a_release(clone, image, prebuilt, ssh_key, tmp_path, figure):
    """Everything that is shipped, by one command; each file is what its name says."""
    done = release(clone, "--sign", ssh_key, *prebuilt)
    assert done.returncode == 0, done.stderr
    folder = clone / f"build/release-{VERSION}"
    files = {kind: file for kind, (file,) in good(folder, ssh_key).items()}
    assert f"version {VERSION}" in done.stdout and "NOT SIGNED" not in done.stderr
    figure(
        f"release: {len(list(folder.iterdir()))} files, "
        f"{sum(p.stat().st_size for p in folder.iterdir()) / 1e6:.1f} MB"
    )

    # The archive is the layout, digest and all.
    with tarfile.open(files["image"]) as archive:
        index = json.load(archive.extractfile("index.json"))
        digest = index["manifests"][0]["digest"]
        assert digest == (image / "digest").read_text().strip()
        for member in archive.getmembers():
            if member.isfile() and "/sha256/" in member.name:
                assert (
                    hashlib.sha256(archive.extractfile(member).read()).hexdigest()
                    == member.name.split("/")[-1]
                )
    made(
        "umoci",
        "unpack",
        "--image",
        f"{unpacked(files['image'], tmp_path / 'oci')}:latest",
        tmp_path / "bundle",
    )
    assert (tmp_path / "bundle/rootfs/usr/bin/forebay").exists()
    assert made("dpkg-deb", "-f", files["package"], "Version").strip() == VERSION
    for bill in ("bill", "linked"):
        assert json.loads(files[bill].read_text())["spdxVersion"] == "SPDX-2.3"
    assert "### Added" in files["notes"].read_text() and "## [" not in files["notes"].read_text()
    # The chart as who installs it from the archive has it: files that are links in the tree are
    # files there.
    made(charts.tool("helm"), "lint", "--strict", files["chart"])
    more = {"settings": ["prometheusRule.enabled=true", "dashboard.enabled=true"]}
    assert charts.render(charts.values("daemonset"), chart=files["chart"], **more) == charts.render(
        charts.values("daemonset"), **more
    )

    # Nobody's release is overwritten; and a sum or a signature that is not right is seen.
    again = release(clone, "--sign", ssh_key, *prebuilt)
    assert again.returncode == 1 and "is there already" in again.stderr
    files["notes"].write_text("another")
    assert (
        subprocess.run(
            ["sha256sum", "--check", "SHA256SUMS"], cwd=folder, capture_output=True, timeout=60
        ).returncode
        != 0
    )
    (folder / "SHA256SUMS").write_text((folder / "SHA256SUMS").read_text().replace("0", "1", 1))
    assert not signed_by(folder, ssh_key)


def unpacked(archive, folder):
    folder.mkdir()
    made("tar", "-xf", archive, "-C", folder)
    return folder


def test_two_releases_have_the_same_bytes(clone, prebuilt, tmp_path):
    """Only signatures differ. Without a key the release says that it is not signed, and without a
    tag that it is not tagged."""
    for name in ("a", "b"):
        done = release(clone, *prebuilt, tmp_path / name)
        assert done.returncode == 0 and "NOT SIGNED" in done.stderr, done.stderr
        assert f"NOT TAGGED v{VERSION}" in done.stderr, done.stderr
    assert (tmp_path / "a/SHA256SUMS").read_bytes() == (tmp_path / "b/SHA256SUMS").read_bytes()
    assert not list(tmp_path.glob("*/SHA256SUMS.*"))


def test_signed_by_gpg(clone, prebuilt, tmp_path):
    home = tmp_path / "gpg"
    home.mkdir(mode=0o700)
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "GNUPGHOME": str(home),
        "HOME": str(tmp_path),
    }
    made("sh", ROOT / "deploy/packages.sh", "--install", "release")
    try:
        made(
            "gpg",
            "--batch",
            "--passphrase",
            "",
            "--quick-generate-key",
            WHO,
            "ed25519",
            "sign",
            env=environment,
        )
        done = release(clone, "--sign", WHO, *prebuilt, tmp_path / "out", env=environment)
        assert done.returncode == 0, done.stderr
        made(
            "gpg",
            "--batch",
            "--verify",
            tmp_path / "out/SHA256SUMS.asc",
            tmp_path / "out/SHA256SUMS",
            env=environment,
        )
    finally:
        subprocess.run(["gpgconf", "--kill", "all"], env=environment, timeout=60, check=False)


def test_a_key_that_cannot_sign_makes_no_release(clone, prebuilt, tmp_path):
    refused(
        clone,
        "neither a file nor a key that gpg has",
        "--sign",
        "nobody@example.com",
        *prebuilt,
    )
    (tmp_path / "no-key").write_text("no key")
    refused(clone, "could not sign", "--sign", tmp_path / "no-key", *prebuilt)


# --- What is refused ------------------------------------------------------------------------------


def test_versions_agree():
    """Checks the tree as it is now."""
    assert made("sh", ROOT / "deploy/release.sh", "--check").splitlines()[-1] == VERSION


ELSEWHERE = [
    (
        "CMakeLists.txt",
        r"(?<=^project\(forebay VERSION )[0-9.]+",
        f"Chart.yaml says version {VERSION}, CMakeLists.txt says 9.9.9",
    ),
    (
        "deploy/helm/forebay/Chart.yaml",
        r"(?<=^version: ).*",
        f"Chart.yaml says version 9.9.9, CMakeLists.txt says {VERSION}",
    ),
    (
        "deploy/helm/forebay/Chart.yaml",
        r"(?<=^appVersion: ).*",
        f"Chart.yaml says version 9.9.9, CMakeLists.txt says {VERSION}",
    ),
    ("deploy/debian/changelog", r"(?<=^forebay \()[^)]*", "debian/changelog says version 9.9.9"),
    ("deploy/CHANGELOG.md", r"(?<=^## \[)[0-9][^]]*", "CHANGELOG.md says version 9.9.9"),
    ("deploy/CHANGELOG.md", r"^## \[[0-9][^\n]*", "CHANGELOG.md names no version"),
]


def test_another_version_anywhere_is_refused(clone):
    for path, pattern, says in ELSEWHERE:
        file = clone / path
        before = file.read_text()
        text, count = re.subn(pattern, "9.9.9", before, count=1, flags=re.M)
        assert count == 1, (path, pattern)
        file.write_text(text)
        for words in (["--check"], ["--allow-dirty"]):
            refused(clone, says, *words)
        file.write_text(before)


def test_artefact_of_another_commit_is_refused(clone, prebuilt, tmp_path):
    """Changes that nobody committed; an image, a package or a tarball of another commit; folders
    that hold none."""
    shutil.copytree(prebuilt[-1], tmp_path / "wheel")
    bill = next((tmp_path / "wheel").glob("*.spdx.json"))
    bill.write_text(re.sub(r'(?<="versionInfo": ")[0-9a-f]{12}(?=")', "another", bill.read_text()))
    refused(clone, "is not of commit", *prebuilt[:-1], tmp_path / "wheel")
    (clone / "README.md").write_text("changed")
    refused(clone, "not committed", *prebuilt)
    made(
        "git",
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@example.com",
        "commit",
        "-q",
        "-a",
        "-m",
        "one more",
        cwd=clone,
    )
    refused(clone, "is of commit", *prebuilt)
    refused(clone, "holds no oci/index.json", "--image", tmp_path)
    refused(clone, "holds no package", "--package", tmp_path)
    refused(clone, "holds no wheel", "--wheel", tmp_path)
    shutil.rmtree(clone / ".git")
    refused(clone, "is no clone", *prebuilt)
    for words in (["--frob"], ["--sign"], ["a", "b"]):
        refused(clone, "release.sh: ", *words, code=2)


def test_only_a_build_of_the_tag_has_the_version_of_the_release(clone):
    """A build of another commit is -dev. Only CMake's settings are read, so nothing is built."""
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.com", "-C", clone)

    def named():
        made("cmake", "-S", clone, "-B", clone / "build", "-DFOREBAY_TESTS=OFF", "-GNinja")
        commands = json.loads((clone / "build/compile_commands.json").read_text())
        command = next(c["command"] for c in commands if c["file"].endswith("/version.c"))
        return re.search(r'FOREBAY_VERSION_TEXT=\\"([^"\\]*)', command).group(1)

    made(*git, "tag", "--force", "v9.9.9")  # not of this version
    subprocess.run([*map(str, git), "tag", "-d", f"v{VERSION}"], check=False, capture_output=True)
    assert named() == f"{VERSION}-dev"
    made(*git, "tag", "-a", "-m", "release", f"v{VERSION}")
    assert named() == VERSION
    made(*git, "commit", "-q", "--allow-empty", "-m", "one more")
    assert named() == f"{VERSION}-dev"


def test_from_a_clean_clone_by_one_command(clone, ssh_key):
    """Image, package and the wheels for both processors, too: minutes."""
    if scale() < 1:
        pytest.skip("only with tests/run.sh --full --deploy")
    done = release(clone, "--sign", ssh_key)
    assert done.returncode == 0, done.stderr
    files = good(clone / f"build/release-{VERSION}", ssh_key)
    for kind in ("wheel", "tarball", "linked"):
        arm64, x86_64 = (file.name for file in files[kind])
        assert "aarch64" in arm64 and "x86_64" in x86_64

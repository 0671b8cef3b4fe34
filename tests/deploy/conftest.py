# SPDX-License-Identifier: Apache-2.0
"""Builds the shipped artefacts by their documented commands and runs them. Uses the harness of the
scenario tests.

FOREBAY_BUILD_ROOT    where artefacts are built and kept (run.sh sets it)
FOREBAY_TEST_ALL_RUN  what is missing is a failure (run.sh, which installs it, sets it)
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scenario"))

from forebay import ROOT, binary, scale  # noqa: E402 (found by the line above)
from origin import Origin  # noqa: E402

KEYS = {"origin-key": "origin-secret-canary-7f3a"}
ARTEFACTS = Path(os.environ.get("FOREBAY_BUILD_ROOT") or ROOT / "build") / "deploy"


def passable(folder):
    """Lets other users reach FOLDER. pytest creates its folders for their owner only."""
    for parent in [folder, *folder.parents]:
        if parent.stat().st_uid == os.getuid() and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)


def made(*command, cwd=ROOT, wait=900, **more):
    """Returns what the command printed. If it fails, the test fails with its whole output."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=wait,
        **more,
    )
    assert done.returncode == 0, (
        f"{command}: exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    return done.stdout


def not_run(why):
    """A program or a package is missing: a failure where it was to be installed, else reported
    loudly at the end."""
    if os.environ.get("FOREBAY_TEST_ALL_RUN"):
        pytest.fail("NOT RUN: " + why)
    pytest.skip("NOT RUN: " + why)


def refused(why):
    """The machine itself refuses what no package brings: root, namespaces, mounts. Never a failure,
    never counted as passed."""
    pytest.skip("NOT RUN: refused by this machine: " + why)


def program(name):
    """Returns the program's path. tests/run.sh --deploy installs it."""
    found = shutil.which(name)
    if found is None:
        not_run(f"no {name} here: tests/run.sh --deploy installs it")
    return found


def only_full():
    """Skips a test that takes too long for each run of the tests."""
    if scale() < 1:
        pytest.skip("only with tests/run.sh --full --deploy")


def namespaces(*kinds):
    """Checks that this machine allows namespaces of our own. A sandbox may not."""
    done = subprocess.run(
        ["unshare", *(f"--{kind}" for kind in kinds), "true"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if os.geteuid() != 0 or done.returncode != 0:
        refused(
            f"no root, or no namespaces ({', '.join(kinds)}) of our own: "
            f"{done.stderr.strip()[-200:]}"
        )


@pytest.fixture(scope="session")
def artefacts():
    """The folder of the artefacts."""
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    return ARTEFACTS


@pytest.fixture(scope="session")
def image(artefacts):
    """The folder that image.sh fills."""
    namespaces("mount")
    made("sh", ROOT / "deploy/image.sh", artefacts / "image")
    return artefacts / "image"


@pytest.fixture(scope="session")
def package(artefacts):
    made("sh", ROOT / "deploy/deb.sh", artefacts / "package")
    return next((artefacts / "package").glob("*.deb"))


@pytest.fixture(scope="session")
def wheel(artefacts):
    """The wheel for this machine. Its folder also has the tarball and the bill of materials."""
    made("sh", ROOT / "deploy/wheel.sh", artefacts / "wheel", wait=3600)
    return next((artefacts / "wheel").glob("*.whl"))


@pytest.fixture(scope="session")
def server_image(artefacts):
    namespaces("mount")
    folder = artefacts / "rootfs"
    shutil.rmtree(folder, ignore_errors=True)
    made("sh", ROOT / "deploy/image/rootfs.sh", binary(), folder)
    # Of the Dockerfile: what a container has unless its manifest says otherwise.
    return {
        "rootfs": folder,
        "entrypoint": ["/usr/bin/forebay"],
        "cmd": ["serve"],
        "env": {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "FOREBAY_CACHE_DIR": "/cache"},
    }


@pytest.fixture(scope="session")
def client_image(artefacts):
    """The programs of this machine, read-only, and Python's packages of the tests."""
    folder = artefacts / "client-rootfs"
    shutil.rmtree(folder, ignore_errors=True)
    packages = Path(sys.modules["pytest"].__file__).parents[1]
    mounts = []
    for name in ("usr", "bin", "lib", "lib64", "etc"):
        (folder / name).mkdir(parents=True)
        mounts.append(
            {
                "destination": f"/{name}",
                "type": "bind",
                "source": os.path.realpath(f"/{name}"),
                "options": ["rbind", "ro"],
            }
        )
    (folder / "packages").mkdir()
    mounts.append(
        {
            "destination": "/packages",
            "type": "bind",
            "source": str(packages),
            "options": ["rbind", "ro"],
        }
    )
    (folder / "programs").mkdir()
    (folder / "programs/aws").write_text('#!/bin/sh\nexec python3 -m awscli "$@"\n')
    (folder / "programs/python").write_text('#!/bin/sh\nexec python3 "$@"\n')
    for program in ("aws", "python"):
        (folder / "programs" / program).chmod(0o755)
    return {
        "rootfs": folder,
        "entrypoint": [],
        "cmd": [],
        "mounts": mounts,
        "env": {
            "PATH": "/programs:/usr/bin:/bin",
            "PYTHONPATH": "/packages",
            "PYTHONDONTWRITEBYTECODE": "1",
            "AWS_DEFAULT_REGION": "us-east-1",
        },
    }


@pytest.fixture
def origin():
    made_here = Origin(credentials=KEYS)
    made_here.start()
    yield made_here
    made_here.stop()
    assert not made_here.violations, made_here.violations[:5]


@pytest.fixture
def figure(record_property):
    return lambda text: record_property("figure", text)


def pytest_terminal_summary(terminalreporter):
    for reason in {str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])}:
        terminalreporter.write_line(reason[:300])
    for report in terminalreporter.stats.get("passed", []):
        for name, text in report.user_properties:
            if name == "figure":
                terminalreporter.write_line(f"figure: {text}")

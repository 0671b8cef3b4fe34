# SPDX-License-Identifier: Apache-2.0
"""Clients that are too old for the variables of `forebay env` are named before they fail. Their
versions are those of folders, as pip, Debian and the installer of aws-cli lay them out."""

import json

import pytest
from forebay import run_forebay

SITE, DEBIAN = "lib/python3.11/site-packages", "lib/python3/dist-packages"
CASES = {
    "pip, old": (f"{SITE}/botocore-1.30.1.dist-info", None, "botocore 1.30.1"),
    "pip, new": (f"{SITE}/botocore-1.31.0.dist-info", None, None),
    "Debian": (f"{DEBIAN}/botocore-1.29.27.egg-info", None, "botocore 1.29.27"),
    "two versions": (
        f"{SITE}/botocore-1.30.1.dist-info",
        f"{SITE}/botocore-1.44.8.dist-info",
        None,
    ),
    "aws-cli v1, old": (f"{SITE}/awscli-1.28.9.dist-info", None, "awscli 1.28.9"),
    "aws-cli v1, new": (f"{SITE}/awscli-1.29.0.dist-info", None, None),
    "aws-cli v2, Debian": (f"{DEBIAN}/awscli-2.9.19.dist-info", None, "awscli 2.9.19"),
    "aws-cli v2, new": (f"{DEBIAN}/awscli-2.13.0.dist-info", None, None),
    "s3fs, old": (f"{SITE}/s3fs-0.4.2.dist-info", None, "s3fs 0.4.2"),
    "s3fs, last that fails": (f"{SITE}/s3fs-2023.1.0.dist-info", None, "s3fs 2023.1.0"),
    "s3fs, first that works": (f"{SITE}/s3fs-2023.3.0.dist-info", None, None),
    "s3fs, new": (f"{SITE}/s3fs-2026.9.0.dist-info", None, None),
    "nothing": (None, None, None),
}


@pytest.fixture
def tools(tmp_path):
    """A prefix with the programs python3 and aws, and nothing else on PATH."""
    (tmp_path / "tools/bin").mkdir(parents=True)
    for name in ("python3", "aws"):
        (tmp_path / "tools/bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "tools/bin" / name).chmod(0o755)
    return tmp_path / "tools"


def env_of(tools, **more):
    return {"PATH": str(tools / "bin"), "HOME": str(tools), **more}


def told(tools, *words):
    done = run_forebay(
        "env", "--endpoint", "http://127.0.0.1:9000", "--shell", *words, env=env_of(tools)
    )
    assert done.returncode == 0 and "AWS_ENDPOINT_URL_S3" in done.stdout, done
    assert " has " not in done.stdout
    return done.stderr


@pytest.mark.parametrize("case", CASES)
def test_old_client_is_named_by_env(tools, case):
    *folders, words = CASES[case]
    for folder in filter(None, folders):
        (tools / folder).mkdir(parents=True)
    text = told(tools, "bash")
    if words is None:
        assert text == ""
    else:
        program = "aws" if "awscli" in words else "python3"
        effect = "fails if FSSPEC_S3_ENDPOINT_URL" if "s3fs" in words else "ignores AWS_ENDPOINT"
        assert f"{tools}/bin/{program} has {words}, which {effect}" in text
        assert len(text.splitlines()) == 1
    assert told(tools, "k8s") == ""  # of a container nothing is known


def test_version_of_the_installer_is_in_the_path_of_aws(tools):
    folder = tools / "aws-cli/v2/2.12.7/dist"
    folder.mkdir(parents=True)
    (tools / "bin/aws").rename(folder / "aws")
    (tools / "bin/aws").symlink_to(folder / "aws")
    assert "has awscli 2.12.7, which ignores" in told(tools, "fish")
    folder.parent.rename(tools / "aws-cli/v2/2.13.0")
    (tools / "bin/aws").unlink()
    (tools / "bin/aws").symlink_to(tools / "aws-cli/v2/2.13.0/dist/aws")
    assert told(tools, "fish") == ""


def test_virtual_environment_hides_the_packages_of_the_user(tools):
    (tools / ".local" / SITE / "botocore-1.29.0.dist-info").mkdir(parents=True)
    assert "botocore 1.29.0" in told(tools, "bash")
    (tools / "pyvenv.cfg").touch()
    assert told(tools, "bash") == ""


def test_run_and_doctor_name_them_too(tools, tmp_path):
    (tools / SITE / "botocore-1.29.0.dist-info").mkdir(parents=True)
    (tools / SITE / "s3fs-0.4.2.dist-info").mkdir()
    (tools / SITE / "awscli-1.27.0.dist-info").mkdir()
    (tmp_path / "tree").mkdir()
    flags = (
        f"--origin.endpoint=dir:{tmp_path / 'tree'}",
        f"--cache.dir={tmp_path / 'cache'}",
        "--cache.size=64MiB",
    )
    env = env_of(tools, XDG_RUNTIME_DIR=str(tmp_path))
    for command, named in (
        ("/bin/true", {"botocore", "s3fs", "awscli"}),
        ("python3", {"botocore", "s3fs"}),
        ("aws", {"awscli"}),
        (str(tools / "bin/python3"), {"botocore", "s3fs"}),
    ):
        said = run_forebay("run", *flags, "--", command, env=env).stderr
        assert {
            name for name in ("botocore", "s3fs", "awscli") if f"has {name} " in said
        } == named, said
    rows = run_forebay("doctor", *flags, "--json", env=env).stdout.splitlines()
    found = [row for row in map(json.loads, rows) if row.get("check") == "clients"]
    assert [row["state"] for row in found] == ["yellow"] * 3, found
    assert "boto3 1.28 or newer" in found[0]["remedy"] and "aws-cli 2.13" in found[2]["remedy"]

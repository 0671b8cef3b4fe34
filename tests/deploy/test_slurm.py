# SPDX-License-Identifier: Apache-2.0
"""Slurm's prolog and epilog, run as slurmd would run them (its variables, root), for jobs of two
users on one node."""

import collections
import json
import os
import subprocess
from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from conftest import KEYS, ROOT, made, namespaces, passable, program
from forebay import binary

PROLOG, EPILOG = ROOT / "deploy/slurm/prolog.sh", ROOT / "deploy/slurm/epilog.sh"
User = collections.namedtuple("User", "pw_name pw_uid pw_gid")
ALICE, BOB = User("alice", 41001, 41001), User("bob", 41002, 41002)
# Only the scripts see that there are such users.
WITH_USERS = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/passwd && exec "$@"']


class Node:
    def __init__(self, folder, origin, program=None):
        self.folder, self.caches, self.states = folder, folder / "caches", folder / "run"
        passable(folder)
        users = Path("/etc/passwd").read_text()
        for user in (ALICE, BOB):
            home = folder / user.pw_name
            (home / ".aws").mkdir(parents=True)
            (home / ".aws/credentials").write_text(
                "[default]\naws_access_key_id = {}\naws_secret_access_key = {}\n".format(
                    *next(iter(KEYS.items()))
                )
            )
            for path in (home, home / ".aws", home / ".aws/credentials"):
                os.chown(path, user.pw_uid, user.pw_gid)
                path.chmod(0o700 if path.is_dir() else 0o600)
            users += f"{user.pw_name}:x:{user.pw_uid}:{user.pw_gid}::{home}:/bin/sh\n"
        (folder / "passwd").write_text(users)
        (folder / "slurm.yaml").write_text(
            json.dumps(
                {
                    "origin": {"endpoint": origin.endpoint, "region": "us-east-1", "probe": False},
                    "cache": {"size": "256MiB"},
                    "workers": 1,
                }
            )
        )
        (folder / "defaults").write_text(
            f"FOREBAY_SLURM_CACHE={self.caches}\nFOREBAY_SLURM_STATE={self.states}\n"
            f"FOREBAY_SLURM_CONFIG={folder}/slurm.yaml\n"
            f"FOREBAY_SLURM_BINARY={program or binary()}\n"
        )
        self.jobs = set()

    def script(self, path, job, user=ALICE, context="prolog_slurmd", **more):
        """(exit code, output, complaints); as root, or a task's as its user."""
        self.jobs.add(job)
        environment = {
            "SLURM_JOB_ID": job,
            "SLURM_JOB_UID": str(user.pw_uid),
            "SLURM_JOB_USER": user.pw_name,
            "SLURM_SCRIPT_CONTEXT": context,
            "FOREBAY_SLURM_DEFAULTS": str(self.folder / "defaults"),
            **more,
        }
        start = as_(user) if context == "prolog_task" else [*WITH_USERS, self.folder / "passwd"]
        done = subprocess.run(
            [*start, path],
            env={"PATH": os.environ["PATH"], **environment},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def begin(self, job, user=ALICE):
        """Returns the variables of the job's tasks."""
        assert self.script(PROLOG, job, user) == (0, "", "")
        code, text, said = self.script(PROLOG, job, user, "prolog_task")
        assert (code, said) == (0, "")
        lines = text.splitlines()
        assert lines.pop() == "unset AWS_SESSION_TOKEN" and all(
            line.startswith("export ") for line in lines
        )
        return dict(line.removeprefix("export ").split("=", 1) for line in lines)

    def pid(self, job):
        return int((self.states / job / "pid").read_text())

    def end(self, job):
        assert self.script(EPILOG, job, context="epilog_slurmd") == (0, "", "")

    def left(self):
        return sorted(
            str(p.relative_to(self.folder))
            for folder in (self.caches, self.states)
            if folder.exists()
            for p in folder.iterdir()
        )


def as_(user):
    return [
        "setpriv",
        "--reuid",
        str(user.pw_uid),
        "--regid",
        str(user.pw_gid),
        "--clear-groups",
        "--inh-caps=-all",
    ]


def client(environment, **more):
    own = {
        "aws_access_key_id": environment["AWS_ACCESS_KEY_ID"],
        "aws_secret_access_key": environment["AWS_SECRET_ACCESS_KEY"],
        **more,
    }
    return boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL_S3"],
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
        **own,
    )


def alive(pid):
    return (
        Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    )


@pytest.fixture
def node(tmp_path, origin):
    namespaces("mount")  # root
    made_here = Node(tmp_path, origin)
    yield made_here
    for job in made_here.jobs:
        made_here.script(EPILOG, job)


def test_scripts_are_clean():
    made(program("shellcheck"), PROLOG, EPILOG)


def test_job_has_a_cache_of_its_own(node, origin):
    """Served once from the origin; another user of the node reads neither its port nor its files;
    at its end nothing is left."""
    origin.put("a", 300_000)
    alice = node.begin("17")
    bob = node.begin("18", BOB)
    assert alice["AWS_ENDPOINT_URL_S3"] != bob["AWS_ENDPOINT_URL_S3"]
    for _ in range(2):
        assert client(alice).get_object(Bucket="bkt", Key="a")["Body"].read() == bytes(
            origin.bytes_of("a", 0, 300_000)
        )
    assert len(origin.requests(method="GET", key="a")) == 1
    for own in (
        {
            "aws_access_key_id": bob["AWS_ACCESS_KEY_ID"],
            "aws_secret_access_key": bob["AWS_SECRET_ACCESS_KEY"],
        },
        {"aws_secret_access_key": "any"},
    ):
        with pytest.raises(ClientError, match="403|InvalidAccessKeyId|SignatureDoesNotMatch"):
            client(alice, **own).get_object(Bucket="bkt", Key="a")
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{node.pid('17')}/status").read_text().splitlines()
        if ":\t" in line
    )
    assert (
        status["Uid"].split() == [str(ALICE.pw_uid)] * 4
        and int(status["CapEff"], 16) == 0
        and status["NoNewPrivs"] == "1"
    )
    for path in (
        node.states / "17/client.env",
        node.states / "17/keys.yaml",
        node.states / "17/log",
        node.caches / "job-17",
    ):
        assert (
            subprocess.run(
                [*as_(BOB), "ls" if path.is_dir() else "cat", path], capture_output=True, timeout=60
            ).returncode
            != 0
        ), path
    assert node.script(PROLOG, "17", BOB, "prolog_task") == (0, "", "")
    # Another step's prolog starts no second one.
    pid = node.pid("17")
    assert node.begin("17") == alice and node.pid("17") == pid
    node.end("17")
    assert not alive(pid) and node.left() == ["caches/job-18", "run/18"]
    node.end("18")
    assert node.left() == []


def test_end_of_a_job_that_goes_on(node, origin):
    """A transfer without an end, a server that is gone already, a job that never had one, an epilog
    twice."""
    origin.put("slow", 1 << 20)
    origin.fault("slow", "stall", 100_000)
    environment = node.begin("1")
    pid = node.pid("1")
    body = client(environment).get_object(Bucket="bkt", Key="slow")["Body"]
    assert len(body.read(50_000)) == 50_000
    node.end("1")
    origin.release()
    body.close()
    assert not alive(pid)
    node.begin("2")
    os.kill(node.pid("2"), 9)
    for job in ("2", "2", "3"):
        node.end(job)
    assert node.left() == []


def test_number_of_another_process_is_left_alone(node):
    """The server has died, and another process has its process id."""
    node.begin("5")
    os.kill(node.pid("5"), 9)
    with subprocess.Popen(["sleep", "60"]) as other:
        (node.states / "5/pid").write_text(str(other.pid))
        node.end("5")
        assert other.poll() is None
        other.kill()


def test_node_that_crashed_has_room_again(node):
    """The next job's prolog removes the caches of ended jobs, and leaves those of running jobs."""
    node.begin("6")
    (node.caches / "job-4/old").mkdir(parents=True)
    (node.caches / "job-7").mkdir()
    (node.caches / "job-7/mine").write_text("stale")  # the same number, requeued
    node.begin("7")
    assert (
        node.left() == ["caches/job-6", "caches/job-7", "run/6", "run/7"]
        and not (node.caches / "job-7/mine").exists()
    )


@pytest.mark.parametrize("trouble", ["configuration", "program", "user", "number"])
def test_job_runs_without_what_cannot_be_had(node, origin, trouble):
    """A failed Prolog would drain the node: 0 it is, with a word on why, and no variable for the
    tasks."""
    more = {}
    if trouble == "configuration":
        (node.folder / "slurm.yaml").write_text("cache: {sise: 1GiB}")
    elif trouble == "program":
        with (node.folder / "defaults").open("a") as defaults:
            defaults.write("FOREBAY_SLURM_BINARY=/nowhere/forebay\n")
    elif trouble == "user":
        more["SLURM_JOB_UID"] = "54321"
    job = "../9" if trouble == "number" else "9"
    code, text, said = node.script(PROLOG, job, **more)
    assert (code, text) == (0, "")
    assert {
        "configuration": "sise",
        "program": "/nowhere/forebay",
        "user": "54321",
        "number": "../9",
    }[trouble] in said
    assert node.script(PROLOG, job, context="prolog_task")[:2] == (0, "")
    assert node.left() == []
    assert node.script(EPILOG, job, context="epilog_slurmd")[0] == 0

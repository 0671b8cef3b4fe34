# SPDX-License-Identifier: Apache-2.0
"""The compose file, judged by Docker Compose's own loader (tests/deploy/compose); its services run
as it says, by runc."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import charts
import policy
import pytest
from conftest import KEYS, ROOT
from kubelet import Container
from test_pods import TRAIN, USER, network, origin, pod, right, secrets  # noqa: F401 (fixtures)
from waiting import wait_for

COMPOSE = ROOT / "deploy/compose/compose.yaml"
NEEDED = {
    "FOREBAY_ORIGIN_ENDPOINT": "https://s3.example.com",
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "secret",
}


@pytest.fixture(scope="module")
def loaded(artefacts):
    """Returns loaded(environment, file=...), which gives (the project, "") or (None, the error)."""
    program = charts.go_program("compose", "build", cwd=ROOT / "tests/deploy/compose")

    def load(environment, file=COMPOSE):
        done = subprocess.run(
            [program, file],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return (json.loads(done.stdout), "") if done.returncode == 0 else (None, done.stderr)

    return load


def test_only_what_there_is_is_named(loaded):
    project, wrong = loaded(NEEDED)
    assert not wrong
    server, trainer = project["services"]["forebay"], project["services"]["trainer"]
    container = {
        "args": server["command"],
        "env": [{"name": name, "value": value} for name, value in server["environment"].items()],
    }
    assert policy.unknown(container) == []
    assert (Path(server["build"]["context"]) / "Dockerfile").samefile(ROOT / "Dockerfile")
    probe = server["healthcheck"]["test"]
    assert probe[:2] == ["CMD", "/usr/bin/forebay"] and policy.unknown({"args": probe[2:]}) == []
    assert (
        trainer["network_mode"] == "service:forebay"
        and trainer["depends_on"]["forebay"]["condition"] == "service_healthy"
    )
    port = server["environment"]["FOREBAY_LISTEN"]
    assert trainer["environment"]["AWS_ENDPOINT_URL_S3"] == f"http://{port}" and port.startswith(
        "127.0.0.1:"
    )
    assert (
        "key" not in trainer["environment"].values()
        and "secret" not in trainer["environment"].values()
    )


def test_settings_of_who_starts_it(loaded, tmp_path):
    """Compose names each missing variable, accepts a folder for the volume, and takes the seccomp
    profile by one line."""
    for name in NEEDED:
        project, wrong = loaded({key: value for key, value in NEEDED.items() if key != name})
        assert project is None and name in wrong
    project, _ = loaded({**NEEDED, "FOREBAY_CACHE": "/nvme/cache", "FOREBAY_CACHE_SIZE": "7GiB"})
    (mount,) = project["services"]["forebay"]["volumes"]
    assert (mount["type"], mount["source"], mount["target"]) == ("bind", "/nvme/cache", "/cache")
    assert project["services"]["forebay"]["environment"]["FOREBAY_CACHE_SIZE"] == "7GiB"
    file = tmp_path / "compose.yaml"
    text, count = re.subn("# - seccomp", "- seccomp", COMPOSE.read_text())
    file.write_text(text)
    assert count == 1
    option = loaded(NEEDED, file)[0]["services"]["forebay"]["security_opt"][1].removeprefix(
        "seccomp:"
    )
    assert (COMPOSE.parent / option).resolve() == ROOT / "deploy/seccomp/forebay.json"


@pytest.mark.parametrize(
    "given,planted",
    [
        ("healthcheck:", "healthchek:"),
        ("read_only: true", "read_only: maybe"),
        ("service:forebay", "service:forbay"),
        ("condition: service_healthy", "condition: healthy"),
    ],
)
def test_faults_are_seen(loaded, tmp_path, given, planted):
    """Tests the judge with planted faults."""
    file = tmp_path / "compose.yaml"
    text = COMPOSE.read_text()
    assert given in text
    file.write_text(text.replace(given, planted))
    project, wrong = loaded(NEEDED, file)
    assert project is None and wrong


def container_of(name, service):
    """Returns the container as a kubelet would get it."""
    user, _, group = service.get("user", "1000:1000").partition(":")
    return {
        "name": name,
        "image": service["image"],
        "args": service["command"],
        "env": [{"name": key, "value": value} for key, value in service["environment"].items()],
        "volumeMounts": [
            {"name": mount["source"], "mountPath": mount["target"]}
            for mount in service.get("volumes", [])
        ],
        "securityContext": {
            "runAsUser": int(user),
            "runAsGroup": int(group),
            "readOnlyRootFilesystem": service.get("read_only", False),
            "capabilities": {"drop": service.get("cap_drop", ["ALL"])},
            "seccompProfile": {"type": "RuntimeDefault"},
            "allowPrivilegeEscalation": "no-new-privileges:true"
            not in service.get("security_opt", []),
        },
    }


def healthy(container, service):
    try:
        container.exec(*service["healthcheck"]["test"][1:])
    except AssertionError:
        return False
    return True


def test_trainer_is_served(loaded, pod, origin, network):
    """The cache becomes healthy by its own check, then the trainer runs in the same network. A
    stopped cache is not healthy."""
    key, secret = next(iter(KEYS.items()))
    project, wrong = loaded(
        {
            "FOREBAY_ORIGIN_ENDPOINT": origin.endpoint,
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "FOREBAY_CACHE_SIZE": "256MiB",
            "TRAINER_IMAGE": "client",
            "TRAINER_COMMAND": "aws s3 cp --no-progress --recursive "
            "s3://imagenet/train/ /scratch/train/",
        }
    )
    assert not wrong
    server, trainer = project["services"]["forebay"], project["services"]["trainer"]
    both = [container_of("forebay", server), container_of("trainer", trainer)]
    both[1]["volumeMounts"].append({"name": "scratch", "mountPath": "/scratch"})
    both[1]["env"].append({"name": "HOME", "value": "/scratch"})
    here = pod(
        {
            "containers": both,
            "volumes": [{"name": name, "emptyDir": {}} for name in ("cache", "scratch")],
        },
        [],
    )
    os.chown(here.volumes["cache"], USER, USER)  # a new volume is as the image's folder
    cache = Container(here, both[0]).start()
    here.running.append(cache)
    wait_for(lambda: healthy(cache, server), cache.said, every=0.2)
    first = Container(here, both[1]).start()
    here.running.append(first)
    assert first.wait() == 0, first.said()
    right(origin, here.volumes["scratch"])
    assert {name: origin.bytes_sent(name) for name in TRAIN} == TRAIN
    cache.kill(signal.SIGSTOP)
    assert not healthy(cache, server)
    cache.kill(signal.SIGCONT)
    assert healthy(cache, server)
    assert here.stop()["forebay"] == 0
    assert network.processes() == []

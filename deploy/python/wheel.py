#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""wheel.py TREE SAID PLATFORM EPOCH FOLDER: packs the installed files of TREE (usr/bin, usr/share)
into a wheel in FOLDER and prints its name. SAID is what `forebay version --json` printed. PLATFORM
names the oldest C library that runs the program, and the processor ("manylinux_2_34_x86_64").

pip copies the program into the environment's bin folder, so that it starts without Python. The same
TREE and EPOCH give the same bytes.
"""

import base64
import hashlib
import json
import sys
import time
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SUMMARY = "S3 read cache on local disks for training jobs"
DESCRIPTION = """\
Forebay is a small process beside your job that speaks S3 on localhost, answers from NVMe, and asks
the object store once for each byte:

    forebay run -- python train.py

The wheel holds one program that needs only the C library. `forebay help` names its commands.
"""
SHARED = ("share/man", "share/bash-completion", "share/zsh", "share/fish")


def version_of(said):
    """The version as PEP 440 writes it: a build that is no release sorts before the release."""
    return said["version"].replace("-dev", f".dev0+{said['revision']}")


def contents(tree, version, tag):
    """Returns {name in the wheel: bytes}."""
    info, data = f"forebay-{version}.dist-info", f"forebay-{version}.data"
    usr, docs = tree / "usr", tree / "usr/share/doc/forebay"
    found = {f"{data}/scripts/forebay": (usr / "bin/forebay").read_bytes()}
    for path in sorted((HERE / "forebay").glob("*.py")):
        found[f"forebay/{path.name}"] = path.read_bytes()
    for folder in SHARED:
        for path in sorted(p for p in (usr / folder).rglob("*") if p.is_file()):
            found[f"{data}/data/{path.relative_to(usr)}"] = path.read_bytes()
    found[f"{info}/licenses/LICENSE"] = (HERE.parents[1] / "LICENSE").read_bytes()
    for path in sorted((docs / "linked").iterdir()):
        found[f"{info}/licenses/{path.name}"] = path.read_bytes()
    found[f"{info}/sboms/forebay.spdx.json"] = (docs / "forebay.spdx.json").read_bytes()
    found[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: forebay\nVersion: {version}\nSummary: {SUMMARY}\n"
        "License: Apache-2.0\nRequires-Python: >=3.8\nDescription-Content-Type: text/plain\n"
        f"Classifier: Operating System :: POSIX :: Linux\n\n{DESCRIPTION}"
    ).encode()
    found[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: forebay\nRoot-Is-Purelib: false\nTag: {tag}\n"
    ).encode()
    record = "".join(f"{name},sha256={digest(body)},{len(body)}\n" for name, body in found.items())
    return {**found, f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}


def digest(body):
    return base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()


def main():
    tree, said, platform, epoch, folder = sys.argv[1:]
    tree, epoch, folder = Path(tree), int(epoch), Path(folder)
    version = version_of(json.loads(said))
    tag = f"py3-none-{platform}"
    wheel = folder / f"forebay-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        for name, body in contents(tree, version, tag).items():
            entry = zipfile.ZipInfo(name, time.gmtime(max(epoch, 315532800))[:6])  # zip's year 1980
            entry.external_attr = (0o100755 if "/scripts/" in name else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            packed.writestr(entry, body)
    print(wheel)


main()

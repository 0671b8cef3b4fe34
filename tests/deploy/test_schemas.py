# SPDX-License-Identifier: Apache-2.0
"""Every manifest by its schema: kubeconform over what the chart renders, for the oldest and the
newest Kubernetes, over what kustomize makes, and over each plain file."""

import copy
import shutil

import charts
import pytest
import schemas
import yaml
from conftest import ROOT
from test_chart import bases

ALL = ["podMonitor.enabled=true", "prometheusRule.enabled=true", "dashboard.enabled=true"]


def judged(folder, objects, version=charts.KUBERNETES):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "all.yaml").write_text(yaml.safe_dump_all(objects))
    return schemas.faults(folder, version)


@pytest.mark.parametrize("version", ["1.29", "1.32", "1.35", "1.37"])
def test_renders(artefacts, tmp_path, version):
    for mode in bases():
        old = ["service.locality=Local"] if version < "1.34" and mode == "daemonset" else []
        for more in (
            ["cache.volume=ephemeral"],
            ["cache.wipeOlder=true"],
            ["restartOnConfigChange=true", "config.cache.ttl=5m"],
        ):
            objects = charts.render(
                charts.values(mode), settings=[*ALL, *old, *more], version=version
            )
            assert judged(tmp_path / "out", objects, version) == []
    kinds = ["Kyverno", *(["MutatingAdmissionPolicy"] if version >= "1.32" else [])]
    for kind in kinds:
        objects = charts.render(settings=[f"injection.kind={kind}"], version=version)
        assert judged(tmp_path / "out", objects, version) == []


def test_plain_files(artefacts, tmp_path):
    """Judges each file alone, as a user who copies it would apply it."""
    files = [*charts.manifests(), *charts.manifests(ROOT / "tests/deploy/golden")]
    assert len(files) >= 3
    for path, objects in files:
        assert judged(tmp_path / "out", objects) == [], path.relative_to(ROOT)


def test_kustomize_trees(artefacts, tmp_path):
    """The output of each tree has no fault, whatever its components."""
    trees = [
        path.parent
        for path in (ROOT / "deploy").rglob("kustomization.yaml")
        if yaml.safe_load(path.read_text())["kind"] == "Kustomization"
    ]
    assert len(trees) >= 3
    for tree in trees:
        assert judged(tmp_path / "out", charts.kustomize(tree)) == [], tree.relative_to(ROOT)


def test_faults_are_seen(artefacts, tmp_path):
    """The judge itself: a field that nobody has, in Kubernetes' own kinds and in others', a wrong
    type, an unknown kind."""
    objects = charts.render(charts.values("daemonset"), settings=ALL)
    for kind, plant, says in [
        (
            "DaemonSet",
            lambda o: o["spec"]["template"]["spec"]["containers"][0].update(arg=["serve"]),
            "arg",
        ),
        ("Service", lambda o: o["spec"]["ports"][0].update(port="http"), "port"),
        (
            "PodMonitor",
            lambda o: o["spec"]["podMetricsEndpoints"][0].update(ports="admin"),
            "ports",
        ),
        (
            "PrometheusRule",
            lambda o: o["spec"]["groups"][0]["rules"][0].update(exprs="up"),
            "exprs",
        ),
        ("Service", lambda o: o.update(kind="Servise"), "could not find schema"),
    ]:
        bad = copy.deepcopy(charts.one(objects, kind))
        assert judged(tmp_path / "out", [bad]) == []
        plant(bad)
        found = judged(tmp_path / "out", [bad])
        assert len(found) == 1 and says in found[0][2], (kind, found)
    ray = charts.load((ROOT / "deploy/examples/ray.yaml").read_text())[0]
    ray["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["arg"] = [
        "x"
    ]
    assert "arg" in judged(tmp_path / "out", [ray])[0][2]

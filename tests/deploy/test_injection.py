# SPDX-License-Identifier: Apache-2.0
"""Injection: what the API server's own code makes of pods by the chart's MutatingAdmissionPolicy
(tests/deploy/admission), and that the pod it makes runs. Kyverno's policy has the very same
expressions; Kyverno itself is not run."""

import copy
import json
import subprocess

import charts
import policy
import pytest
import yaml
from test_pods import (  # noqa: F401 (fixtures)
    COPY,
    TRAIN,
    USER,
    network,
    origin,
    pod,
    right,
    secrets,
)

BARE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "team", "labels": {"forebay.io/inject": "true"}},
    "spec": {"containers": [{"name": "trainer", "image": "trainer"}]},
}


def rendered(kind="MutatingAdmissionPolicy", version=charts.KUBERNETES, settings=(), files=()):
    return charts.render(
        *files,
        settings=[
            f"injection.kind={kind}",
            "credentials.existingSecret=s3-keys",
            "cache.size=256Mi",
            *settings,
        ],
        version=version,
        show=["templates/injection.yaml"],
    )


@pytest.fixture(scope="module")
def admission(artefacts):
    """Returns admission(pods, policy=..., version=...), which gives each pod after admission."""
    program = charts.go_program("admission", "build", cwd=charts.ROOT / "tests/deploy/admission")

    def admit(pods, given=None, version="1.32"):
        given = given or charts.one(rendered(), "MutatingAdmissionPolicy")
        done = subprocess.run(
            [program],
            input=json.dumps({"version": version, "policy": given, "pods": pods}),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return admit


def with_(pod_, **spec):
    out = copy.deepcopy(pod_)
    out["spec"].update(spec)
    return out


@pytest.mark.parametrize("version", ["1.32", "1.37"])
def test_pods_get_the_sidecar_of_the_chart(admission, version):
    """The sidecar is the first init container in any pod. The pod also gets its volume, and each
    container the variables."""
    own = {"name": "own", "image": "x"}
    busy = with_(
        BARE,
        initContainers=[own],
        volumes=[{"name": "data", "emptyDir": {}}],
        containers=[
            {
                "name": "a",
                "image": "x",
                "env": [{"name": "AWS_ENDPOINT_URL_S3", "value": "https://mine"}],
            },
            {"name": "b", "image": "x", "env": []},
        ],
    )
    busy["metadata"]["annotations"] = {"forebay.io/warm": "s3://imagenet/train/ s3://imagenet/val/"}
    chart = charts.render(
        settings=[
            "sidecar.trainer.enabled=true",
            "sidecar.trainer.image=x",
            "credentials.existingSecret=s3-keys",
            "cache.size=256Mi",
            "sidecar.warm.uris={s3://imagenet/train/,s3://imagenet/val/}",
        ]
    )
    example = charts.one(chart, "Job")["spec"]["template"]["spec"]
    variables = charts.one(chart, "ConfigMap")["data"]
    bare, full = admission([BARE, busy], version=version)
    assert bare["spec"]["initContainers"] == example["initContainers"][:1]
    assert full["spec"]["initContainers"] == [*example["initContainers"], own]
    cache = [v for v in example["volumes"] if v["name"] == "forebay-cache"]
    assert bare["spec"]["volumes"] == cache and full["spec"]["volumes"] == [
        {"name": "data", "emptyDir": {}},
        *cache,
    ]
    for made in (bare, full):
        assert made["metadata"]["labels"]["forebay.io/sidecar"] == "true"
        for container in made["spec"]["containers"]:
            have = {entry["name"]: entry["value"] for entry in container["env"]}
            assert len(have) == len(container["env"])
            assert have == {
                **variables,
                **({"AWS_ENDPOINT_URL_S3": "https://mine"} if container["name"] == "a" else {}),
            }


@pytest.mark.parametrize("annotations", [None, {"forebay.io/warm": "s3://a/", "theirs": "x"}])
def test_config_goes_with_each_pod(admission, tmp_path, annotations):
    """The release's ConfigMap exists in one namespace only. So the pod carries the configuration as
    an annotation, which is the file of the sidecar, and nothing that it refers to is optional."""
    config = {
        "cache": {"ttl": "5m"},
        "origin": {"max_rate": "1GiB/s"},
        "rules": [
            {"match": "a/{b,c}/**", "cache": False},
            {"match": 'quotes"\\<&>ä/**', "freshness": "immutable"},
        ],
    }
    (tmp_path / "values.json").write_text(json.dumps({"config": config}))
    given = copy.deepcopy(BARE)
    if annotations:
        given["metadata"]["annotations"] = annotations
    policies = rendered(files=[tmp_path / "values.json"])
    made = admission([given], charts.one(policies, "MutatingAdmissionPolicy"))[0]
    have = dict(made["metadata"]["annotations"])
    assert yaml.safe_load(have.pop("forebay.io/config")) == config
    assert have == (annotations or {})
    (volume,) = [v for v in made["spec"]["volumes"] if v["name"] == "forebay-config"]
    (item,) = volume["downwardAPI"]["items"]
    assert item == {
        "path": "forebay.yaml",
        "fieldRef": {"fieldPath": "metadata.annotations['forebay.io/config']"},
    }
    mounts = {m["name"]: m["mountPath"] for m in made["spec"]["initContainers"][0]["volumeMounts"]}
    assert mounts["forebay-config"] == "/etc/forebay"
    assert "optional" not in json.dumps(made)


def test_pods_that_have_one_are_left_alone(admission):
    once = admission([BARE])[0]
    assert admission([once]) == [None]
    many = with_(BARE, containers=[{"name": f"c{i}", "image": "x"} for i in range(16)])
    assert all("env" in c for c in admission([many])[0]["spec"]["containers"])


def test_restricted_pods_stay_restricted(admission):
    container = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    restricted = with_(
        BARE, containers=[{"name": "trainer", "image": "x", "securityContext": container}]
    )
    assert policy.violations(restricted["spec"]) == []
    assert policy.violations(admission([restricted])[0]["spec"]) == []


def templates(node):
    """Every pod template below that asks for the sidecar."""
    if isinstance(node, dict):
        if (
            "containers" in (node.get("spec") or {})
            and (node.get("metadata") or {}).get("labels", {}).get("forebay.io/inject") == "true"
        ):
            yield node
        for value in node.values():
            yield from templates(value)
    elif isinstance(node, list):
        for value in node:
            yield from templates(value)


def test_templates_of_the_examples_get_it(admission):
    """Makes pods from the templates as their controllers would."""
    found = [
        (path.name, t)
        for path, objects in charts.manifests(charts.ROOT / "deploy/examples")
        for t in templates(objects)
    ]
    assert {name for name, _ in found} == {
        "jobset.yaml",
        "kubeflow-trainer.yaml",
        "ray.yaml",
        "volcano.yaml",
    }
    for (name, given), made in zip(
        found, admission([{"apiVersion": "v1", "kind": "Pod", **t} for _, t in found])
    ):
        uris = given["metadata"].get("annotations", {}).get("forebay.io/warm", "").split()
        assert [c["name"] for c in made["spec"]["initContainers"]] == [
            "forebay",
            *(["warm"] if uris else []),
        ], name
        assert not uris or made["spec"]["initContainers"][1]["args"][-len(uris) :] == uris
        assert policy.violations(made["spec"]) == [], name


def test_expressions_that_are_wrong_are_seen(admission):
    """Tests the judge with wrong expressions."""
    bad = charts.one(rendered(), "MutatingAdmissionPolicy")
    bad["spec"]["mutations"][0]["jsonPatch"]["expression"] += " + [1]"
    with pytest.raises(AssertionError, match="found no matching overload"):
        admission([BARE], bad)


def test_kyverno_has_the_same_expressions(artefacts):
    """A cluster without MutatingAdmissionPolicy gets an error that names Kyverno."""
    kyverno = charts.one(rendered("Kyverno", "1.29"), "MutatingPolicy")
    server = charts.one(rendered(), "MutatingAdmissionPolicy")
    assert kyverno["spec"] == server["spec"]
    assert {o["apiVersion"] for o in rendered(version="1.32")} == {
        "admissionregistration.k8s.io/v1alpha1"
    }
    assert {o["apiVersion"] for o in rendered(version="1.35")} == {
        "admissionregistration.k8s.io/v1beta1"
    }
    assert {o["apiVersion"] for o in rendered(version="1.36")} == {
        "admissionregistration.k8s.io/v1"
    }
    assert "say Kyverno" in charts.refused(
        settings=["injection.kind=MutatingAdmissionPolicy"], version="1.31"
    )


def test_injected_pod_runs(admission, pod, origin, network):  # noqa: F811
    """The pod names only the label and the objects to warm."""
    given = with_(
        BARE,
        volumes=[{"name": "scratch", "emptyDir": {}}],
        securityContext={"runAsNonRoot": True, "runAsUser": 1000},
        containers=[
            {
                "name": "trainer",
                "image": "trainer",
                "command": [*COPY],
                "env": [
                    {"name": n, "value": "any"}
                    for n in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
                ]
                + [{"name": "HOME", "value": "/scratch"}],
                "securityContext": {
                    "capabilities": {"drop": ["ALL"]},
                    "allowPrivilegeEscalation": False,
                },
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
            }
        ],
    )
    given["metadata"]["annotations"] = {"forebay.io/warm": "s3://imagenet/train/"}
    injection = charts.one(
        rendered(settings=[f"origin.endpoint={origin.endpoint}", "config.cache.ttl=7m"]),
        "MutatingAdmissionPolicy",
    )
    made = admission([given], injection)[0]
    job = pod(made["spec"], [], annotations=made["metadata"]["annotations"]).start()
    values = job.container("forebay").exec("/usr/bin/forebay", "check", "-T")
    assert "cache.ttl: 7m  # /etc/forebay/forebay.yaml" in values
    since = origin.mark()
    assert job.wait() == {"trainer": 0}, job.container("trainer").said()
    assert not [r for r in origin.requests(method="GET", since=since) if r.key]
    right(origin, job.volumes["scratch"])
    assert all(origin.sent_twice(name) == 0 for name in TRAIN)
    assert job.container("forebay").status()["Uid"].split() == [str(USER)] * 4
    assert job.stop()["forebay"] == 0
    assert network.processes() == []


def test_claims_need_a_pod_with_a_group(admission, pod, origin, network):  # noqa: F811
    """The folder of a claim belongs to root, and to the group of a pod that has one. Without a
    group the sidecar would fail again and again, so the policy fails instead, with the reason."""
    settings = [f"origin.endpoint={origin.endpoint}", "cache.volume=ephemeral"]
    injection = charts.one(rendered(settings=settings), "MutatingAdmissionPolicy")
    other = with_(BARE, securityContext={"runAsUser": 1000})
    for refused in admission([BARE, other], injection):
        assert "needs a pod with securityContext.fsGroup" in refused["error"]
    (made,) = admission([with_(BARE, securityContext={"fsGroup": 2000})], injection)
    assert made["spec"]["securityContext"] == {"fsGroup": 2000}
    here = pod({**made["spec"], "containers": []}, []).start()
    here.container("forebay").wait_probe("readinessProbe")
    assert here.stop() == {"forebay": 0}
    assert network.processes() == []


def test_dataloads_of_fluid_get_the_token(admission):
    """In deploy/examples/fluid-cache-runtime.yaml: once, in addition to all other variables of the
    container."""
    given = charts.one(
        charts.load((charts.ROOT / "deploy/examples/fluid-cache-runtime.yaml").read_text()),
        "MutatingAdmissionPolicy",
    )
    token = {
        "name": "FOREBAY_ADMIN_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": "forebay-admin", "key": "token"}},
    }
    path = {"name": "FLUID_DATALOAD_DATA_PATH", "value": "/train"}
    job = with_(
        BARE,
        containers=[
            {
                "name": "dataloader",
                "image": "forebay:0.1.0",
                "command": ["/usr/bin/forebay"],
                "env": [path],
            }
        ],
    )
    made = admission([job], given=given)[0]
    container = made["spec"]["containers"][0]
    assert container == {**job["spec"]["containers"][0], "env": [path, token]}
    assert admission([BARE], given=given)[0]["spec"]["containers"][0]["env"] == [token]
    assert admission([made], given=given) == [None]

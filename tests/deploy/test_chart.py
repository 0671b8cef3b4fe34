# SPDX-License-Identifier: Apache-2.0
"""The chart and the plain manifests: what they render to, what they refuse, and that they name only
what there is."""

import copy
import json
import os
import re
import shutil
import subprocess
import sys

import charts
import policy
import pytest
import yaml
from conftest import ROOT, made
from forebay import binary

DIGEST = "sha256:" + 64 * "0"
SET = "nodeFeatures.dataSets[0].name=a,nodeFeatures.dataSets[0].uris={s3://a/}"


def bases():
    return sorted(path.parent.name for path in charts.KUSTOMIZE.glob("base/*/values.yaml"))


def everything():
    """Returns (where, objects) of each render and of each plain file."""
    for name in bases():
        yield f"chart, {name}", charts.render(charts.values(name))
    yield from ((str(path.relative_to(ROOT)), objects) for path, objects in charts.manifests())
    for name in ("example", "own-job"):
        yield f"kustomize, {name}", charts.kustomize(charts.KUSTOMIZE / "overlays" / name)


def all_pods():
    return [
        (f"{where}: {o['kind']} {o['metadata'].get('name')}{place}", spec)
        for where, objects in everything()
        for o in objects
        for place, spec in charts.pods_of(o)
    ]


# --- Renders ------------------------------------------------------------------------------------


def test_lint(artefacts):
    for values in [None, *(charts.values(name) for name in bases())]:
        made(
            charts.tool("helm"),
            "lint",
            "--strict",
            charts.CHART,
            *(["--values", values] if values else []),
        )


def test_plain_manifests_are_renders_of_the_chart(artefacts):
    """Checks each base of kustomize. `tests/deploy/render --write` makes them again."""
    made(sys.executable, ROOT / "tests/deploy/render")


def test_chart_has_no_links():
    """Helm names each link at each install. The links are in the folders beside the chart."""
    assert [path for path in charts.CHART.rglob("*") if path.is_symlink()] == []
    for folder, name in ("prometheus", "*.rules.yaml"), ("haproxy", "*.cfg"), ("grafana", "*.json"):
        for path in (ROOT / "deploy" / folder).glob(name):
            assert path.resolve().is_relative_to(charts.CHART.resolve()), path


def test_packed_chart_is_whole(artefacts, tmp_path):
    """The archive installs without the tree."""
    made(charts.tool("helm"), "package", charts.CHART, "--destination", tmp_path)
    more = {"settings": ["prometheusRule.enabled=true", "dashboard.enabled=true"]}
    packed = charts.render(charts.values("daemonset"), chart=next(tmp_path.glob("*.tgz")), **more)
    assert packed == charts.render(charts.values("daemonset"), **more)


def test_parent_charts_have_the_sidecar_by_name(artefacts, tmp_path):
    """A chart that depends on this one can include the container, warm and the volumes in its
    pods."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "charts").mkdir()
    shutil.copytree(charts.CHART, tmp_path / "charts/forebay")
    (tmp_path / "Chart.yaml").write_text("{apiVersion: v2, name: parent, version: 1.0.0}")
    (tmp_path / "values.yaml").write_text(
        json.dumps(
            {"forebay": {"cache": {"size": "9Gi"}, "sidecar": {"warm": {"uris": ["s3://a/"]}}}}
        )
    )
    (tmp_path / "templates/pod.yaml").write_text("""
{{- $forebay := dict "Values" .Values.forebay "Chart" .Subcharts.forebay.Chart
    "Release" .Release "Capabilities" .Capabilities }}
apiVersion: v1
kind: Pod
metadata: {name: own}
spec:
  initContainers:
    {{- include "forebay.server" $forebay | nindent 4 }}
    {{- include "forebay.warm" $forebay | nindent 4 }}
  containers: [{name: own, image: own}]
  volumes:
    {{- include "forebay.volumes" $forebay | trim | nindent 4 }}
""")
    spec = charts.one(charts.render(chart=tmp_path), "Pod")["spec"]
    chart = charts.one(
        charts.render(
            settings=[
                "cache.size=9Gi",
                "sidecar.warm.uris={s3://a/}",
                "sidecar.trainer.enabled=true",
                "sidecar.trainer.image=x",
            ]
        ),
        "Job",
    )
    assert spec["initContainers"] == chart["spec"]["template"]["spec"]["initContainers"]
    assert spec["volumes"] == [{"name": "forebay-cache", "emptyDir": {"sizeLimit": "9Gi"}}]


def test_chart_is_of_this_version():
    chart = yaml.safe_load((charts.CHART / "Chart.yaml").read_text())
    version = re.search(
        r"^project\(forebay VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text(), re.M
    ).group(1)
    assert chart["appVersion"] == version == chart["version"]


def test_values_schema_has_the_option_table():
    """The chart accepts in `config` exactly what `forebay config schema` allows."""
    ours = json.loads((charts.CHART / "values.schema.json").read_text())["definitions"][
        "forebay.yaml"
    ]
    table = json.loads(made(binary(), "config", "schema"))
    table.pop("$schema")
    assert ours == table, "tests/deploy/render --write"


def test_every_value_has_a_row_in_the_schema():
    """Each value has a description in the schema, and each row of the schema has a value."""

    def walk(values, schema, at=""):
        assert set(values) == set(schema["properties"]) - (set() if at else {"global"}), at
        for key, value in values.items():
            inner = schema["properties"][key]
            if (
                isinstance(value, dict)
                and "properties" in inner
                and inner.get("additionalProperties") is False
                and key not in ("resources", "seccompProfile")
            ):
                walk(value, inner, f"{at}.{key}")

    walk(
        yaml.safe_load((charts.CHART / "values.yaml").read_text()),
        json.loads((charts.CHART / "values.schema.json").read_text()),
    )


@pytest.mark.parametrize("mode", bases())
@pytest.mark.parametrize("settings", [[], ["fullnameOverride=cache"], ["nameOverride=cache"]])
def test_alert_finds_the_job_of_every_release(artefacts, mode, settings):
    """Prometheus gives the pods of a PodMonitor the job NAMESPACE/NAME, unless a relabeling sets
    another. ForebayDown must match it, whatever the release is called."""
    objects = charts.render(
        charts.values(mode),
        release="s3",
        namespace="team",
        settings=["podMonitor.enabled=true", "prometheusRule.enabled=true", *settings],
    )
    rules = [
        rule
        for group in charts.one(objects, "PrometheusRule")["spec"]["groups"]
        for rule in group["rules"]
    ]
    (down,) = [rule["expr"] for rule in rules if rule.get("alert") == "ForebayDown"]
    (jobs,) = re.findall(r'job=~"([^"]+)"', down)
    for monitor in [o for o in objects if o["kind"] == "PodMonitor"]:
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        job = f"team/{monitor['metadata']['name']}"
        for relabeling in endpoint.get("relabelings", []):
            if relabeling["targetLabel"] == "job":
                job = relabeling["replacement"]
        assert re.fullmatch(jobs, job), (jobs, job)


def test_kustomize_gives_a_job_the_sidecar_of_the_chart(artefacts):
    """The sidecar precedes the job's own init containers, and warm follows it. The example's
    daemonset keeps all that the overlay does not name."""
    base = charts.one(charts.render(charts.values("sidecar")), "Job")["spec"]["template"]["spec"][
        "initContainers"
    ]
    objects = charts.kustomize(charts.KUSTOMIZE / "overlays/own-job")
    job = charts.one(objects, "Job")["spec"]["template"]["spec"]
    assert [c["name"] for c in job["initContainers"]] == ["forebay", "warm", "code"]
    assert [like(c) for c in job["initContainers"][:2]] == [like(c) for c in base]
    assert {c["image"] for c in job["initContainers"][:2]} == {"registry.example.com/forebay:0.1.0"}
    assert (
        job["containers"][0]["envFrom"][0]["configMapRef"]["name"]
        == charts.one(objects, "ConfigMap")["metadata"]["name"]
    )
    # The job's calls to other services of AWS would take them.
    assert not [name for name in charts.one(objects, "ConfigMap")["data"] if "KEY" in name]
    given = charts.one(charts.render(charts.values("daemonset"), namespace="forebay"), "DaemonSet")[
        "spec"
    ]["template"]["spec"]
    node = charts.one(charts.kustomize(charts.KUSTOMIZE / "overlays/example"), "DaemonSet")["spec"][
        "template"
    ]["spec"]
    assert like(node["containers"][0]) == like(given["containers"][0])
    assert node["volumes"][0]["hostPath"] == {"path": "/mnt/nvme/forebay", "type": "Directory"}


def test_kustomize_prepares_folders_where_that_is_wanted(artefacts, tmp_path):
    """components/prepare turns base/daemonset into what the chart renders with
    cache.hostPath.prepare."""
    at = os.path.relpath(charts.KUSTOMIZE, tmp_path)
    (tmp_path / "kustomization.yaml").write_text(
        json.dumps(
            {
                "apiVersion": "kustomize.config.k8s.io/v1beta1",
                "kind": "Kustomization",
                "resources": [f"{at}/base/daemonset"],
                "components": [f"{at}/components/prepare"],
            }
        )
    )
    ours = charts.one(charts.kustomize(tmp_path), "DaemonSet")["spec"]["template"]["spec"]
    golden = charts.load((ROOT / "tests/deploy/golden/daemonset-prepare.yaml").read_text())
    assert ours == charts.one(golden, "DaemonSet")["spec"]["template"]["spec"]


def test_kustomize_labels_nodes_where_that_is_wanted(artefacts, tmp_path):
    """components/node-features turns base/daemonset into what the chart renders with a data set.
    The patch that its head describes names another data set."""
    at = os.path.relpath(charts.KUSTOMIZE, tmp_path)
    whole = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"{at}/base/daemonset"],
        "components": [f"{at}/components/node-features"],
    }
    file = tmp_path / "kustomization.yaml"

    def parts(objects):
        spec = charts.one(objects, "DaemonSet")["spec"]["template"]["spec"]
        return spec["containers"], {v["name"]: v for v in spec["volumes"]}

    file.write_text(json.dumps(whole))
    ours = parts(charts.kustomize(tmp_path))
    assert ours == parts(
        charts.render(
            charts.values("daemonset"),
            namespace="forebay",
            settings=[
                "nodeFeatures.dataSets[0].name=imagenet",
                "nodeFeatures.dataSets[0].uris={s3://imagenet/train/}",
            ],
        )
    )
    text = (charts.KUSTOMIZE / "components/node-features/kustomization.yaml").read_text()
    patch = yaml.safe_load(
        "".join(line[2:] for line in text.splitlines(True) if line.startswith("#   "))
    )
    file.write_text(json.dumps({**whole, "patches": patch}))
    other = parts(charts.kustomize(tmp_path))
    ours[0][1]["args"][-1] = "NAME=s3://BUCKET/PREFIX/"
    assert other == ours


def like(container):
    """Returns the parts of our container that a site leaves alone: all but image, sizes, origin,
    keys and warm-up."""
    out = {key: value for key, value in container.items() if key not in ("image", "resources")}
    own = ("FOREBAY_ORIGIN_", "AWS_", "FOREBAY_CACHE_SIZE")
    out["env"] = sorted(
        (e for e in container.get("env", []) if not e["name"].startswith(own)),
        key=lambda e: e["name"],
    )
    out["args"] = [word for word in container["args"] if not word.startswith("s3://")]
    return out


# --- Values that are wrong ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings,says",
    [
        ("mode=proxy", "'/mode': value must be one of 'sidecar', 'gateway', 'daemonset'"),
        ("cache.size=100GB", "'/cache/size'"),
        ("cache.siez=1Gi", "'/cache': additional properties 'siez' not allowed"),
        ("config.cache.sise=1GiB", "'/config/cache': additional properties 'sise' not allowed"),
        ("config.cache.policy=best", "'/config/cache/policy': value must be one of"),
        ("config.cache.size=1GiB", "config.cache.size: the chart sets this itself, by cache.size"),
        ("config.listen=127.0.0.1:1", "config.listen: the chart sets this itself"),
        ("config.listen_tls.cert=/c", "config.listen_tls: the chart's listeners speak plain HTTP"),
        ("auth.mode=verify", "auth: a sidecar serves every client in its own pod"),
        ("auth.existingSecret=keys", "auth: a sidecar serves every client in its own pod"),
        ("config.origin.max_rate=2Gbit", "'/config/origin/max_rate': '2Gbit' does not match"),
        (
            "config.origin.max_rate=5",
            "config.origin.max_rate: 5 is not a rate: write bytes a second",
        ),
        (
            "config.rules[0].match=a,config.rules[0].pin=true,config.rules[0].share=10%",
            "config.rules[0]: a rule has a pin or a share, not both",
        ),
        ("image.tag=a:b", "'/image/tag'"),
        ("image.digest=sha256:12", "'/image/digest'"),
        ("sidecar.trainer.enabled=true", "'/sidecar/trainer/image'"),
        ("sidecar.warm.uris={imagenet/train}", "'/sidecar/warm/uris/0'"),
        ("sidecar.warm.min=0.9", "'/sidecar/warm/min'"),
        (
            "extraEnv[0].name=AWS_SECRET_ACCESS_KEY,extraEnv[0].value=x",
            "'/extraEnv/0': missing property 'valueFrom'",
        ),
        ("mode=gateway", "auth.existingSecret: mode gateway verifies its clients' signatures"),
        (
            "mode=daemonset,auth.mode=open",
            "whoever reaches the Service read, write and delete whatever Forebay's keys may",
        ),
        ("cache.volume=hostPath", "cache.volume: hostPath is not for mode sidecar"),
        ("seccompProfile.type=Localhost", "seccompProfile.localhostProfile"),
        (
            "commonLabels.app\\.kubernetes\\.io/name=x",
            "app.kubernetes.io/name is what pods are found by",
        ),
        ("origin.endpoint=https://key:secret@s3.example.com", "'/origin/endpoint'"),
        ("cache.hostPath.path=/", "'/cache/hostPath/path'"),
        (
            "extraEnv[0].name=FOREBAY_CACHE_TTL,extraEnv[0].value=5m",
            "extraEnv: FOREBAY_CACHE_TTL: settings of Forebay go into config",
        ),
        ("resources.limits.ephemeral-storage=10Gi", "past it the whole pod is evicted"),
        ("resources.limits.memory=2GB", "'/resources/limits/memory'"),
        ("resources.limits.memory=16", "'/resources/limits/memory'"),
        ("resources.limits.memory=lots", "'/resources/limits/memory'"),
        ("resources.limits.memory=20Mi", "resources.limits.memory: 20Mi is too little"),
        ("resources.requests.cpu=two", "'/resources/requests/cpu'"),
        (
            "origin.caConfigMap=ca,config.origin.ca_file=/x",
            "config.origin.ca_file: the chart sets this itself, by origin.caConfigMap",
        ),
        ("origin.proxyAuthSecret=proxy", "config.origin.proxy, which is not set"),
        (
            "origin.proxyAuthSecret=proxy,config.origin.proxy=http://p:1,injection.kind=Kyverno",
            "origin.proxyAuthSecret: an injected sidecar could not read the file",
        ),
        (
            "networkPolicy.enabled=true",
            "networkPolicy.enabled: it restricts who reaches a gateway",
        ),
        (
            "mode=daemonset,auth.existingSecret=k,injection.kind=Kyverno",
            "injection.kind: it adds sidecars to pods, and this release has none",
        ),
        (
            "mode=gateway,auth.existingSecret=k,sidecar.trainer.enabled=true,"
            "sidecar.trainer.image=x",
            "sidecar.trainer.enabled: the example job has a sidecar, the mode is gateway",
        ),
        (
            "gateway.balancer.enabled=true",
            "gateway.balancer.enabled: it stands in front of a "
            "gateway's nodes, the mode is sidecar",
        ),
        (
            "mode=gateway,auth.existingSecret=k,gateway.balancer.enabled=true,gateway.replicas=17",
            "gateway.balancer.maxNodes: 17 replicas would have nodes that no balancer knows",
        ),
        ("gateway.balancer.wholeBuckets={a b}", "'/gateway/balancer/wholeBuckets/0'"),
        ("gateway.balancer.clusterDomain=a b", "'/gateway/balancer/clusterDomain'"),
        (
            f"{SET}",
            "nodeFeatures.dataSets: it labels the nodes of a daemonset, the mode is sidecar",
        ),
        (
            f"mode=gateway,auth.existingSecret=k,{SET}",
            "nodeFeatures.dataSets: it labels the nodes of a daemonset, the mode is gateway",
        ),
        ("nodeFeatures.dataSets[0].name=a", "'/nodeFeatures/dataSets/0': missing property 'uris'"),
        (
            "nodeFeatures.dataSets[0].name=a/b,nodeFeatures.dataSets[0].uris={s3://a/}",
            "'/nodeFeatures/dataSets/0/name'",
        ),
        (
            f"nodeFeatures.dataSets[0].name={59 * 'a'},nodeFeatures.dataSets[0].uris={{s3://a/}}",
            "'/nodeFeatures/dataSets/0/name'",
        ),
        (
            "nodeFeatures.dataSets[0].name=a,nodeFeatures.dataSets[0].uris={}",
            "'/nodeFeatures/dataSets/0/uris/0'",
        ),
        (
            "nodeFeatures.dataSets[0].name=a,nodeFeatures.dataSets[0].uris={a/b}",
            "'/nodeFeatures/dataSets/0/uris/0'",
        ),
        (
            f"nodeFeatures.dataSets[0].name=a,nodeFeatures.dataSets[0].uris={{s3://a/{250 * 'b'}}}",
            "'/nodeFeatures/dataSets/0/uris/0'",
        ),
        (
            "mode=daemonset,auth.existingSecret=k,gateway.replicas=3",
            "gateway.replicas: it is the number of a gateway's pods, the mode is daemonset",
        ),
        (
            "image.repository=forebay:1",
            "image.repository: forebay:1 has a tag; put the tag into image.tag",
        ),
        ("image.repository=registry:5000/forebay:1", "image.repository: "),
        ("gateway.balancer.image.repository=haproxy:2.6", "gateway.balancer.image.repository: "),
        ("nodeFeatures.every=5", "'/nodeFeatures/every'"),
        ("nodeFeatures.every=25h", "'/nodeFeatures/every'"),
        ("nodeFeatures.min=101%", "'/nodeFeatures/min'"),
        ("nodeFeatures.path=/", "'/nodeFeatures/path'"),
        ("nodeFeatures.runAsUser=1000", "'/nodeFeatures/runAsUser'"),
        ("podAnnotations.a=1", "'/podAnnotations/a': got number, want string"),
        ("seccompProfile.type=Unconfined", "'/seccompProfile/type'"),
    ],
)
def test_wrong_values_are_named(artefacts, settings, says):
    assert says in charts.refused(settings=[settings])


@pytest.mark.parametrize(
    "repository", ["forebay", "ghcr.io/a/forebay", "registry:5000/forebay", "10.0.0.1:5000/a/b-c_d"]
)
def test_repository_may_name_the_port_of_a_registry(artefacts, repository):
    settings = ["mode=gateway", "auth.existingSecret=k", "image.tag=v1"]
    text = charts.render_text(settings=[*settings, f"image.repository={repository}"])
    assert f"image: {repository}:v1\n" in text.replace('"', "")


def test_old_kubernetes_is_refused(artefacts):
    """Without native sidecars, an init container that does not end would block its pod for ever."""
    assert "incompatible with Kubernetes" in charts.refused(version="1.28.0")


@pytest.mark.parametrize("mode", bases())
def test_proxy_password_is_a_file_that_the_server_accepts(artefacts, mode):
    """The volume of origin.proxyAuthSecret has a mode that Forebay accepts, for the group of the
    pod."""
    objects = charts.render(
        charts.values(mode),
        settings=[
            "origin.proxyAuthSecret=proxy",
            "config.origin.proxy=http://proxy:3128",
        ],
    )
    spec = next(
        spec
        for o in objects
        for _, spec in charts.pods_of(o)
        if "forebay" in [c["name"] for c in charts.containers_of(spec)]
    )
    server = next(c for c in charts.containers_of(spec) if c["name"] == "forebay")
    (volume,) = [v for v in spec["volumes"] if v["name"] == "forebay-proxy"]
    (mount,) = [m for m in server["volumeMounts"] if m["name"] == "forebay-proxy"]
    env = {e["name"]: e.get("value") for e in server["env"]}
    assert volume["secret"] == {"secretName": "proxy", "defaultMode": 0o440}
    assert env["FOREBAY_ORIGIN_PROXY_AUTH_FILE"] == f"{mount['mountPath']}/userpass"
    assert spec["securityContext"]["fsGroup"] == server["securityContext"]["runAsGroup"]


def notes(tmp_path, *settings):
    """Returns what helm prints after an installation: `helm template` does not render it."""
    chart = tmp_path / "chart"
    shutil.copytree(charts.CHART, chart)
    text = (chart / "templates/NOTES.txt").read_text()
    (chart / "templates/notes.yaml").write_text(
        '{{- define "notes" -}}' + text + "{{- end -}}\n"
        'kind: Notes\nmetadata: {name: notes}\ntext: {{ include "notes" . | toJson }}\n'
    )
    return charts.one(charts.render(settings=settings, chart=chart), "Notes")["text"]


def test_notes_warn_of_replicas_without_a_balancer(artefacts, tmp_path):
    said = notes(tmp_path, "mode=gateway", "auth.existingSecret=k", "gateway.replicas=3")
    assert "WARNING: 3 replicas without a balancer" in said and "forebay-nodes" in said


def test_notes_warn_of_rules_that_match_no_object(artefacts, tmp_path):
    """`forebay check` warns of them, too."""
    matches = ["imagenet", "/imagenet/**", "s3://imagenet/**", "imagenet/**", "**"]
    settings = [f"config.rules[{i}].match={match}" for i, match in enumerate(matches)]
    said = notes(tmp_path, *settings)
    warned = [match for match in matches if f'WARNING: config.rules: "{match}" matches' in said]
    assert warned == matches[:3]


def test_notes_name_what_each_namespace_needs(artefacts, tmp_path):
    """The pods of an injection refer to objects of their own namespaces."""
    said = notes(
        tmp_path,
        "injection.kind=Kyverno",
        "credentials.existingSecret=s3-keys",
        "origin.caConfigMap=private-ca",
        "config.cache.ttl=5m",
        "extraVolumes[0].name=more",
        "extraVolumes[0].configMap.name=theirs",
    )
    assert all(name in said for name in ("Secret s3-keys", "ConfigMap private-ca", "volume more"))


# --- Modes --------------------------------------------------------------------------------------


def test_locality_of_the_daemonset(artefacts):
    """Clients reach the node's cache first, or only it, or the address of the node. No ConfigMap
    can contain that address."""

    def service(*settings, **more):
        return charts.one(
            charts.render(charts.values("daemonset"), settings=settings, **more), "Service"
        )["spec"]

    assert (
        service()["trafficDistribution"] == "PreferSameNode"
        and "internalTrafficPolicy" not in service()
    )
    local = service("service.locality=Local", version="1.29")
    assert local["internalTrafficPolicy"] == "Local" and "trafficDistribution" not in local
    assert "service.locality: PreferSameNode is known to Kubernetes 1.34" in charts.refused(
        charts.values("daemonset"), version="1.33"
    )
    objects = charts.render(charts.values("daemonset"), settings=["service.locality=hostPort"])
    assert not [
        o for o in objects if o["kind"] == "Service" or o["metadata"]["name"].endswith("client-env")
    ]
    ports = charts.one(objects, "DaemonSet")["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert ports[0] == {"name": "s3", "containerPort": 9000, "hostPort": 9000}


def test_stopping_has_time_for_what_it_does(artefacts):
    """preStop and the drain fit into the grace period, and a cache directory never has two
    owners."""
    for mode, kind in (("daemonset", "DaemonSet"), ("gateway", "StatefulSet")):
        spec = charts.one(charts.render(charts.values(mode)), kind)["spec"]
        pod = spec["template"]["spec"]
        drain = re.search(
            r"^\| `shutdown.grace` \| `(\d+)s`", made(binary(), "config", "docs"), re.M
        ).group(1)
        assert (
            pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"] + int(drain)
            < pod["terminationGracePeriodSeconds"]
        )
    assert (
        charts.one(charts.render(charts.values("daemonset")), "DaemonSet")["spec"][
            "updateStrategy"
        ]["rollingUpdate"]["maxSurge"]
        == 0
    )
    old = charts.one(charts.render(charts.values("gateway"), version="1.29"), "StatefulSet")
    assert "lifecycle" not in old["spec"]["template"]["spec"]["containers"][0]


def test_size_is_one_number(artefacts):
    """The size is the limit, request and setting of an emptyDir, and the claim and setting of any
    other volume."""

    def of(objects, kind):
        spec = charts.one(objects, kind)["spec"]["template"]["spec"]
        server = next(c for c in charts.containers_of(spec) if c["name"] == "forebay")
        return spec, server, next(e for e in server["env"] if e["name"] == "FOREBAY_CACHE_SIZE")

    spec, server, size = of(
        charts.render(charts.values("sidecar"), settings=["cache.size=7Gi"]), "Job"
    )
    assert (
        spec["volumes"][0]["emptyDir"]["sizeLimit"]
        == server["resources"]["requests"]["ephemeral-storage"]
        == "7Gi"
    )
    assert size["valueFrom"]["resourceFieldRef"] == {"resource": "requests.ephemeral-storage"}
    assert "ephemeral-storage" not in server["resources"]["limits"]
    spec, server, size = of(
        charts.render(
            charts.values("sidecar"), settings=["cache.size=7Gi", "cache.volume=ephemeral"]
        ),
        "Job",
    )
    claim = spec["volumes"][0]["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert claim["resources"]["requests"]["storage"] == "7Gi" and size["value"] == "7GiB"
    assert "ephemeral-storage" not in server["resources"]["requests"]


def test_links_from_alerts_to_the_runbook(artefacts):
    """With prometheusRule.runbookUrl, each link of an alert is absolute."""
    more = [
        "prometheusRule.enabled=true",
        "prometheusRule.engine=true",
        "prometheusRule.runbookUrl=https://wiki.example/forebay",
    ]
    rule = charts.one(charts.render(charts.values("sidecar"), settings=more), "PrometheusRule")
    links = [
        alert["annotations"]["runbook_url"]
        for group in rule["spec"]["groups"]
        for alert in group["rules"]
        if "alert" in alert
    ]
    page = "https://wiki.example/forebay/prometheus/README.md#forebay"
    assert len(links) > 5 and all(link.startswith(page) for link in links), links


def test_monitoring_equals_the_files_in_the_tree(artefacts):
    """Rules and dashboard each exist once, and the selectors match labels that the pods have."""
    more = [
        "podMonitor.enabled=true",
        "prometheusRule.enabled=true",
        "prometheusRule.engine=true",
        "dashboard.enabled=true",
    ]
    rules = [
        group
        for name in ("forebay", "forebay-engine")
        for group in yaml.safe_load((ROOT / f"deploy/prometheus/{name}.rules.yaml").read_text())[
            "groups"
        ]
    ]
    for mode in bases():
        objects = charts.render(charts.values(mode), settings=more)
        assert charts.one(objects, "PrometheusRule")["spec"]["groups"] == rules
        dashboard = charts.one(objects, "ConfigMap", "forebay-dashboard")
        assert (
            dashboard["data"]["forebay.json"].rstrip()
            == (ROOT / "deploy/grafana/forebay.json").read_text().rstrip()
        )
        assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
        templates = [o["spec"]["template"] for o in objects if "template" in o.get("spec", {})]
        monitors = [o["spec"] for o in objects if o["kind"] == "PodMonitor"]
        assert len(monitors) == len(templates)
        for monitor in monitors:
            found = [
                t
                for t in templates
                if monitor["selector"]["matchLabels"].items() <= t["metadata"]["labels"].items()
            ]
            assert len(found) == 1
            assert monitor["podMetricsEndpoints"][0]["port"] in [
                p["name"]
                for c in charts.containers_of(found[0]["spec"])
                for p in c.get("ports", [])
            ]


def test_config_change_restarts_where_that_is_wanted(artefacts):
    def pod(*settings):
        return charts.one(
            charts.render(charts.values("daemonset"), settings=settings), "DaemonSet"
        )["spec"]["template"]

    assert pod() == pod("config.cache.ttl=5m")
    wanted = [
        pod("restartOnConfigChange=true", *more)["metadata"]["annotations"]["checksum/config"]
        for more in ((), ("config.cache.ttl=5m",))
    ]
    assert wanted[0] != wanted[1]


# --- Names, images, additions ---------------------------------------------------------------------


@pytest.mark.parametrize("mode", bases())
@pytest.mark.parametrize("release", ["forebay", "a", "1.a", "team-7.forebay", "x" * 53])
def test_odd_releases_have_names_that_are_taken(artefacts, mode, release):
    for made_here in charts.render(charts.values(mode), release=release):
        name = made_here["metadata"]["name"]
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) and len(name) <= 63, name
        assert made_here["metadata"]["labels"]["app.kubernetes.io/instance"] == release
    cluster = [
        {
            o["metadata"]["name"]
            for o in charts.render(
                charts.values(mode),
                release=release,
                namespace=63 * "n",
                settings=["injection.kind=Kyverno"] if mode == "sidecar" else [],
            )
            if "namespace" not in o["metadata"]
        }
        for release in ("a", "b")
    ]
    assert not cluster[0] & cluster[1] and all(
        len(name) <= 63 for names in cluster for name in names
    )


@pytest.mark.parametrize("mode", bases())
def test_two_releases_share_a_namespace(artefacts, mode):
    """Two releases of one name also share a cluster. No object has the name of another, and no
    selector matches pods of another."""
    rendered = [
        charts.render(charts.values(mode), release=release, namespace=namespace)
        for release, namespace in (("forebay", "a"), ("forebay-2", "a"), ("forebay", "b"))
    ]
    names = [
        {(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects}
        for objects in rendered
    ]
    assert not names[0] & names[1] and not names[0] & names[2] and not names[1] & names[2]
    selectors = [
        json.dumps(find(o, "matchLabels"), sort_keys=True)
        for objects in rendered[:2]
        for o in objects
    ]
    labels = [
        {json.dumps(find(o, "matchLabels")) for o in objects} - {"[]"} for objects in rendered[:2]
    ]
    assert not labels[0] & labels[1], selectors


def find(node, key):
    """Returns every value of KEY below NODE."""
    if isinstance(node, dict):
        return [value for name, value in node.items() if name == key] + [
            x for value in node.values() for x in find(value, key)
        ]
    return [x for value in node for x in find(value, key)] if isinstance(node, list) else []


@pytest.mark.parametrize("mode", bases())
def test_image_by_digest_and_additions(artefacts, mode):
    more = {
        "image": {
            "repository": "registry.example.com:5000/team/forebay",
            "digest": DIGEST,
            "tag": "ignored",
        },
        "imagePullSecrets": [{"name": "registry"}],
        "commonLabels": {"team": "vision"},
        "podLabels": {"a": "b"},
        "podAnnotations": {"c": "d"},
        "nodeSelector": {"disk": "nvme"},
        "tolerations": [{"operator": "Exists"}],
        "extraEnv": [{"name": "AWS_CA_BUNDLE", "value": "/ca/ca.pem"}],
        "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca", "readOnly": True}],
        "config": {"rules": [{"match": "imagenet/**", "freshness": "immutable"}]},
    }
    file = artefacts / f"more-{mode}.json"
    file.write_text(json.dumps(more))
    objects = charts.render(charts.values(mode), file)
    pods = [
        (o, spec)
        for o in objects
        for _, spec in charts.pods_of(o)
        if not o["metadata"]["name"].endswith("-balancer")
    ]
    assert pods
    for o, spec in pods:
        assert [c["image"] for c in charts.containers_of(spec) if policy.is_forebay(c)] and all(
            c["image"] == "registry.example.com:5000/team/forebay@" + DIGEST
            for c in charts.containers_of(spec)
            if "aws" not in c["image"]
        )
        server = next(c for c in charts.containers_of(spec) if c["name"] == "forebay")
        assert (
            more["extraEnv"][0] in server["env"]
            and more["extraVolumeMounts"][0] in server["volumeMounts"]
        )
        assert (
            more["extraVolumes"][0] in spec["volumes"]
            and spec["imagePullSecrets"] == more["imagePullSecrets"]
        )
        assert (
            spec["nodeSelector"]["disk"] == "nvme" and {"operator": "Exists"} in spec["tolerations"]
        )
        template = o["spec"]["template"]["metadata"]
        assert (
            template["labels"]["a"] == "b"
            and template["labels"]["team"] == "vision"
            and template["annotations"]["c"] == "d"
        )
        assert {
            m["name"] for c in charts.containers_of(spec) for m in c.get("volumeMounts", [])
        } <= {v["name"] for v in spec["volumes"]} | {
            c["metadata"]["name"] for c in o["spec"].get("volumeClaimTemplates", [])
        }
    assert (
        yaml.safe_load(charts.one(objects, "ConfigMap", "forebay")["data"]["forebay.yaml"])
        == more["config"]
    )


def test_places_of_the_balancer_are_its_own(artefacts):
    """The nodes' selectors and policies exclude the balancer, and its own exclude the nodes. The
    Service selects the balancer, and each node has its admin port."""
    settings = [
        "networkPolicy.enabled=true",
        "nodeSelector.disk=nvme",
        "gateway.balancer.nodeSelector.role=edge",
        "gateway.balancer.tolerations[0].operator=Exists",
        "imagePullSecrets[0].name=registry",
        "gateway.balancer.image.digest=" + DIGEST,
        "commonLabels.team=vision",
        "podMonitor.enabled=true",
        "admin.existingSecret=forebay-admin",
    ]
    objects = charts.render(charts.values("tier"), settings=settings)
    node, balancer = (
        charts.one(objects, kind)["spec"]["template"] for kind in ("StatefulSet", "Deployment")
    )
    spec = balancer["spec"]
    assert spec["containers"][0]["image"] == "docker.io/library/haproxy@" + DIGEST and spec[
        "imagePullSecrets"
    ] == [{"name": "registry"}]
    assert (
        spec["nodeSelector"] == {"role": "edge"}
        and spec["tolerations"] == [{"operator": "Exists"}]
        and node["spec"]["nodeSelector"] == {"disk": "nvme"}
    )
    assert policy.violations(spec) == []
    for o in objects:
        selector = (
            o["spec"].get("podSelector", o["spec"].get("selector", {})) if "spec" in o else {}
        )
        selector = selector.get("matchLabels", selector)
        if selector:
            ours = "balancer" in o["metadata"]["name"] or (o["kind"], o["metadata"]["name"]) == (
                "Service",
                "forebay",
            )
            assert [
                selector.items() <= t["metadata"]["labels"].items() for t in (node, balancer)
            ] == [not ours, ours], o["metadata"]
    assert [p["name"] for p in charts.one(objects, "Service", "forebay")["spec"]["ports"]] == ["s3"]
    assert [
        p["name"] for p in charts.one(objects, "Service", "forebay-nodes")["spec"]["ports"]
    ] == ["s3", "admin"]
    env = {e["name"]: e.get("value") for e in node["spec"]["containers"][0]["env"]}
    assert env["FOREBAY_ADMIN_ALLOWED_HOSTS"] == "$(POD_NAME).forebay-nodes.default.svc" and list(
        env
    ).index("POD_NAME") < list(env).index("FOREBAY_ADMIN_ALLOWED_HOSTS")
    rules = charts.one(objects, "NetworkPolicy", "forebay")["spec"]["ingress"]
    assert rules[0]["from"] == [
        {
            "podSelector": {
                "matchLabels": {
                    "app.kubernetes.io/name": "forebay-balancer",
                    "app.kubernetes.io/instance": "forebay",
                }
            }
        }
    ]
    assert [[p["port"] for p in rule["ports"]] for rule in rules] == [
        ["s3", "admin"],
        ["admin"],
        ["admin"],
    ]


# --- Restricted ---------------------------------------------------------------------------------

# The one departure; and, where it is asked for, what makes a folder of the kubelet's fit for it.
HOST_PATH = {"volume forebay-cache: hostPath"}
FEATURES = {"volume node-features: hostPath"}
PREPARE = {
    "container prepare: adds ['CHOWN']",
    "container prepare: runAsNonRoot",
    "container prepare: runAsUser: 0",
}


@pytest.mark.parametrize(
    "settings,departures",
    [
        ("cache.hostPath.prepare=true", HOST_PATH | PREPARE),
        ("cache.volume=ephemeral", set()),
        (SET, HOST_PATH | FEATURES),
        (f"cache.volume=ephemeral,{SET}", FEATURES),
        (
            f"nodeFeatures.runAsUser=0,{SET}",
            HOST_PATH
            | FEATURES
            | {"container node-features: runAsNonRoot", "container node-features: runAsUser: 0"},
        ),
        ("cache.volume=emptyDir", set()),
        ("cache.wipeOlder=true", HOST_PATH),
        ("service.locality=hostPort", HOST_PATH | {"container forebay: hostPort"}),
    ],
)
def test_daemonset_departs_by_its_volume_alone(artefacts, settings, departures):
    daemonset = charts.one(
        charts.render(charts.values("daemonset"), settings=[settings]), "DaemonSet"
    )
    assert set(policy.violations(daemonset["spec"]["template"]["spec"])) == departures


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["cache.hostPath.prepare=true"],
        ["cache.wipeOlder=true"],
        ["cache.volume=ephemeral"],
        ["cache.volume=emptyDir"],
        ["service.locality=hostPort"],
        [
            "nodeFeatures.runAsUser=0",
            "seccompProfile.type=Localhost",
            "seccompProfile.localhostProfile=p.json",
        ],
        [
            "bindAddress=[::]",
            "config.cache.ttl=5m",
            "extraVolumes[0].name=a",
            "extraVolumes[0].configMap.name=a",
        ],
    ],
)
def test_labels_of_nodes_come_beside_all_else(artefacts, settings):
    """The daemonset gains one container and one volume, and the rest is unchanged. All names are in
    the option table."""

    def of(*more):
        return charts.one(
            charts.render(
                charts.values("daemonset"), settings=[*settings, *more], namespace="team"
            ),
            "DaemonSet",
        )["spec"]["template"]["spec"]

    bare, spec = of(), of(SET)
    container, volume = spec["containers"].pop(), spec["volumes"].pop()
    assert spec == bare and volume == {
        "name": "node-features",
        "hostPath": {
            "path": "/etc/kubernetes/node-feature-discovery/features.d",
            "type": "DirectoryOrCreate",
        },
    }
    assert container["args"] == [
        "warm",
        "--check",
        "--node-features",
        "/features.d/team-forebay",
        "--min",
        "90%",
        "--every",
        "5m",
        "a=s3://a/",
    ]
    assert policy.unknown(container) == [] and [e["name"] for e in container["env"]] == [
        "FOREBAY_ADMIN"
    ]
    assert (
        container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        and container["securityContext"]["readOnlyRootFilesystem"] is True
    )
    token = of(SET, "admin.existingSecret=forebay-admin")["containers"][1]["env"][1]
    assert token == {
        "name": "FOREBAY_ADMIN_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": "forebay-admin", "key": "token"}},
    }


# A file system is mounted on the node by who may do anything there.
FUSE = (
    "deploy/examples/fluid-cache-runtime.yaml: CacheRuntimeClass "
    "forebay-imagenet.topology.client.template.spec"
)


def test_pods_are_restricted(artefacts):
    pods = all_pods()
    assert pods
    for where, spec in pods:
        if where == FUSE:
            assert any("privileged" in violation for violation in policy.violations(spec))
            continue
        assert set(policy.violations(spec)) == (
            HOST_PATH if any("hostPath" in v for v in spec.get("volumes", [])) else set()
        ), where
        assert (
            spec.get("automountServiceAccountToken") is False
            and spec.get("enableServiceLinks") is False
        ), where
        for container in filter(policy.is_forebay, charts.containers_of(spec)):
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, where
            resources = container["resources"]
            assert (
                resources["limits"]["memory"] == resources["requests"]["memory"]
                and "cpu" not in resources["limits"]
            ), where


def test_violations_are_seen(artefacts):
    """Tests the judge: each violation of restricted, planted in a pod that passes."""
    good = charts.one(charts.render(charts.values("sidecar")), "Job")["spec"]["template"]["spec"]
    assert policy.violations(good) == []
    first = lambda spec: spec["initContainers"][0]  # noqa: E731
    for plant in [
        lambda s: s.update(hostNetwork=True),
        lambda s: s.update(hostPID=True),
        lambda s: s["volumes"].append({"name": "h", "hostPath": {"path": "/"}}),
        lambda s: first(s)["securityContext"].update(privileged=True),
        lambda s: first(s)["securityContext"].pop("allowPrivilegeEscalation"),
        lambda s: first(s)["securityContext"]["capabilities"].pop("drop"),
        lambda s: first(s)["securityContext"]["capabilities"].update(add=["CHOWN"]),
        lambda s: first(s)["securityContext"].update(runAsUser=0),
        lambda s: first(s)["securityContext"].update(runAsNonRoot=False),
        lambda s: first(s)["securityContext"].update(seccompProfile={"type": "Unconfined"}),
        lambda s: first(s)["ports"][0].update(hostPort=9000),
        lambda s: first(s)["startupProbe"]["httpGet"].update(host="127.0.0.1"),
        lambda s: s["securityContext"].update(sysctls=[{"name": "kernel.msgmax", "value": "1"}]),
    ]:
        bad = copy.deepcopy(good)
        plant(bad)
        assert len(policy.violations(bad)) == 1, (plant, policy.violations(bad))


# --- What they name exists -----------------------------------------------------------------------


def test_pods_name_what_the_option_table_has(artefacts):
    for where, spec in all_pods():
        for container in filter(policy.is_forebay, charts.containers_of(spec)):
            assert policy.unknown(container) == [], where
            if container.get("args", ["serve"])[0] == "serve":
                judged_by_the_binary(container)


def judged_by_the_binary(container, file=None):
    """Judges the values as a start would. Files of Secrets do not exist here."""
    environment = {
        e["name"]: e.get("value", "1073741824")
        for e in container.get("env", [])
        if not e["name"].endswith("_FILE") and e["name"] != "FOREBAY_CACHE_DIR"
    }
    if (
        environment.get("FOREBAY_AUTH_MODE", "auto") != "open"
        and "FOREBAY_LISTEN_PLAINTEXT" in environment
    ):
        environment.update(FOREBAY_AUTH_MODE="open", FOREBAY_AUTH_ALLOW_OPEN_NETWORK="true")
    done = subprocess.run(
        [binary(), "check", *(["-c", str(file)] if file else ["--cache.dir", "/tmp"])],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr


def test_config_of_every_configmap_is_valid(tmp_path):
    for where, objects in everything():
        for o in objects:
            if o["kind"] == "ConfigMap" and "forebay.yaml" in o.get("data", {}):
                file = tmp_path / "forebay.yaml"
                file.write_text(o["data"]["forebay.yaml"])
                judged_by_the_binary({}, file)


def test_unknown_words_are_seen(artefacts):
    """Tests the judge with an unknown variable, flag and command."""
    good = charts.one(charts.render(charts.values("sidecar")), "Job")["spec"]["template"]["spec"][
        "initContainers"
    ]
    for index, plant in [
        (0, lambda c: c["env"].append({"name": "FOREBAY_CACHE_SISE", "value": "1"})),
        (0, lambda c: c["args"].append("--cache.sise")),
        (1, lambda c: c["args"].append("--no-such-flag")),
        (1, lambda c: c["args"].insert(0, "preheat")),
    ]:
        bad = copy.deepcopy(good[index])
        plant(bad)
        assert policy.unknown(good[index]) == [] and len(policy.unknown(bad)) == 1
    with pytest.raises(AssertionError):
        bad = copy.deepcopy(good[0])
        bad["env"].append({"name": "FOREBAY_CACHE_TTL", "value": "60"})
        judged_by_the_binary(bad)


@pytest.mark.parametrize("mode", bases())
def test_client_env_is_what_forebay_env_prints(artefacts, mode):
    objects = charts.render(
        charts.values(mode), settings=["clientEnv.anyKeys=true", "clientEnv.global=true"]
    )
    ours = charts.one(objects, "ConfigMap", "forebay-client-env")["data"]
    said = made(
        binary(),
        "env",
        "--shell",
        "k8s",
        "--any-keys",
        "--global",
        "--endpoint",
        ours["AWS_ENDPOINT_URL_S3"],
    )
    assert ours == {entry["name"]: entry["value"] for entry in yaml.safe_load(said)}


def test_no_secret_in_configmaps_or_command_lines():
    """Variables that hold secrets come from Secrets, no command line has one, no ConfigMap but
    "any" for who has none."""
    for where, objects in everything():
        for o in objects:
            if o["kind"] == "ConfigMap":
                for key, value in o.get("data", {}).items():
                    assert not re.search(r"SECRET|TOKEN|PASSWORD", key) or value == "any", (
                        where,
                        key,
                    )
                    assert not re.search(r"(?i)secret(_access)?_key\s*:|AKIA[A-Z0-9]{16}", value), (
                        where,
                        key,
                    )
            for _, spec in charts.pods_of(o):
                for container in charts.containers_of(spec):
                    for entry in container.get("env", []):
                        assert (
                            "valueFrom" in entry
                            or entry["value"] == "any"
                            or not re.search(
                                r"(SECRET(_ACCESS)?(_KEY)?|TOKEN|PASSWORD)$", entry["name"]
                            )
                        ), (where, entry)
                    words = " ".join(container.get("command", []) + container.get("args", []))
                    assert not re.search(r"(?i)secret|token|password", words), (where, words)

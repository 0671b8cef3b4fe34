# SPDX-License-Identifier: Apache-2.0
"""JSON Schemas of Kubernetes and of others' kinds, below the build folder, and kubeconform to judge
by them.

Kubernetes: from a Python package that carries its OpenAPI for every version. Others: from the
CustomResourceDefinitions in their Go modules; where the module cannot be had (Fluid's), from the
few fields in schemas.yaml that our manifests use. All are strict: a field that nobody knows is an
error.
"""

import functools
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import charts
import yaml
from conftest import ARTEFACTS, not_run, program

KUBERNETES = "kubernetes-validate==1.37.0"
KUBECONFORM = "github.com/yannh/kubeconform/cmd/kubeconform@v0.6.7"
MODULES = {
    "github.com/prometheus-operator/prometheus-operator@v0.85.0": [
        "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
        "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
    ],
    "github.com/kyverno/kyverno@v1.19.1": [
        "config/crds/policies.kyverno.io/policies.kyverno.io_mutatingpolicies.yaml"
    ],
    "sigs.k8s.io/jobset@v0.8.0": ["config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml"],
    "github.com/kubeflow/trainer/v2@v2.0.0": [
        "manifests/base/crds/trainer.kubeflow.org_clustertrainingruntimes.yaml",
        "manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml",
    ],
    "sigs.k8s.io/kueue@v0.12.3": [
        "config/components/crd/bases/kueue.x-k8s.io_resourceflavors.yaml",
        "config/components/crd/bases/kueue.x-k8s.io_clusterqueues.yaml",
        "config/components/crd/bases/kueue.x-k8s.io_localqueues.yaml",
    ],
    "volcano.sh/volcano@v1.10.0": ["config/crd/volcano/bases/batch.volcano.sh_jobs.yaml"],
    "github.com/ray-project/kuberay/ray-operator@v1.3.0": ["config/crd/bases/ray.io_rayjobs.yaml"],
    "github.com/kserve/kserve@v0.15.0": [
        "config/crd/full/serving.kserve.io_inferenceservices.yaml"
    ],
}
OWN = Path(__file__).with_suffix(".yaml")


KINDS = (
    "configmap secret service serviceaccount pod persistentvolume persistentvolumeclaim "
    "namespace daemonset-apps statefulset-apps "
    "deployment-apps job-batch cronjob-batch networkpolicy-networking "
    "poddisruptionbudget-policy priorityclass-scheduling "
    "storageclass-storage mutatingadmissionpolicy-admissionregistration "
    "mutatingadmissionpolicybinding-admissionregistration"
).split()


@functools.cache
def kubernetes(version):
    """The folder with the schemas of one version, as "1.37"."""
    folder = ARTEFACTS / "schemas" / KUBERNETES
    out = folder / version
    if not (out / "stamp").exists():
        folder.mkdir(parents=True, exist_ok=True)
        if not list(folder.glob("*.whl")):
            got = charts.ask_registry(
                [
                    sys.executable,
                    "-m",
                    "pip",
                    "-q",
                    "download",
                    "--no-deps",
                    "-d",
                    folder,
                    KUBERNETES,
                ]
            )
            if got.returncode != 0:
                not_run(f"Kubernetes' schemas cannot be had: {got.stderr.strip()[-200:]}")
        out.mkdir(exist_ok=True)
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            inside = f"kubernetes_validate/kubernetes-json-schema/v{version}.0-local-strict/"
            definitions = json.loads(wheel.read(inside + "_definitions.json"))["$defs"]
            for member in wheel.namelist():
                name = member.removeprefix(inside)
                if member.startswith(inside) and re.sub(r"-v[0-9a-z]+\.json$", "", name) in KINDS:
                    (out / name).write_text(
                        json.dumps(whole(json.loads(wheel.read(member)), definitions))
                    )
        (out / "stamp").touch()
    return out


def whole(schema, definitions):
    """Returns the schema with all definitions that it refers to. kubeconform follows no file."""
    used, left = {}, [schema]
    while left:
        for name in re.findall(r'#/\$defs/([^"]+)"', json.dumps(left.pop())):
            if name not in used:
                used[name] = definitions[name]
                left.append(definitions[name])
    schema = {key: value for key, value in schema.items() if key not in ("$id", "$schema")}
    return json.loads(json.dumps({**schema, "$defs": used}).replace("/api/_definitions.json#", "#"))


def strict(schema):
    """Turns a CRD's schema into a JSON Schema that refuses unknown fields."""
    if isinstance(schema, list):
        return [strict(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    out = {
        key: strict(value) for key, value in schema.items() if key not in ("description", "default")
    }
    if schema.get("x-kubernetes-int-or-string"):
        out.pop("type", None)
        out["type"] = ["integer", "string"]
    if (
        "properties" in schema
        and "additionalProperties" not in schema
        and not schema.get("x-kubernetes-preserve-unknown-fields")
    ):
        out["additionalProperties"] = False
    return out


def write(folder, definition):
    """Writes one CustomResourceDefinition under the name that kubeconform looks for."""
    spec = definition["spec"]
    for version in spec["versions"]:
        schema = strict(version["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {"type": "object"}
        schema["properties"].update(apiVersion={"type": "string"}, kind={"type": "string"})
        name = (
            f"{spec['names']['kind']}-{spec['group'].split('.')[0]}-{version['name']}.json".lower()
        )
        (folder / name).write_text(json.dumps(schema))


@functools.cache
def others():
    """The folder with the schemas of custom kinds."""
    folder = ARTEFACTS / "schemas" / "others"
    folder.mkdir(parents=True, exist_ok=True)
    for module, paths in MODULES.items():
        stamp = folder / (module.replace("/", "_") + ".stamp")
        if stamp.exists():
            continue
        got = charts.ask_registry([program("go"), "mod", "download", "-json", module])
        if got.returncode != 0:
            not_run(f"the schemas of {module} cannot be had: {got.stdout[-200:]}")
        root = Path(json.loads(got.stdout)["Dir"])
        for path in paths:
            write(folder, yaml.load((root / path).read_text(), Loader=LOADER))
        stamp.touch()
    definitions = json.loads((kubernetes(charts.KUBERNETES) / "job-batch-v1.json").read_text())[
        "$defs"
    ]
    for given in yaml.safe_load(OWN.read_text()):
        kind, group = given["kind"].split("/")[0].split(".", 1)
        schema = shaped(
            {
                "apiVersion": "string",
                "kind": "string",
                "metadata": {},
                **given.get("fields", {"spec": given.get("spec")}),
            }
        )
        name = f"{kind}-{group.split('.')[0]}-{given['kind'].split('/')[1]}.json".lower()
        (folder / name).write_text(json.dumps(whole(schema, definitions)))
    return folder


TYPES = {
    "string": {"type": "string"},
    "integer": {"type": "integer"},
    "boolean": {"type": "boolean"},
    "quantity": {"type": ["string", "integer"]},
    "strings": {"type": "object", "additionalProperties": {"type": "string"}},
}


def shaped(given):
    """Returns the schema of a kind from its entry in schemas.yaml."""
    if isinstance(given, list):
        return {"type": "array", "items": shaped(given[0])}
    if isinstance(given, dict):
        return {
            "type": "object",
            "properties": {key: shaped(value) for key, value in given.items()},
            **({"additionalProperties": False} if given else {}),
        }
    return TYPES[given] if given in TYPES else {"$ref": f"#/$defs/io.k8s.api.core.v1.{given}"}


LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def faults(folder, version=charts.KUBERNETES):
    """Runs kubeconform on the files of a folder. Returns (file, kind, fault) for each object with a
    fault."""
    program = charts.go_program("kubeconform", "install", KUBECONFORM)
    name = "{{.ResourceKind}}{{.KindSuffix}}.json"
    done = subprocess.run(
        [
            program,
            "-strict",
            "-output",
            "json",
            "-summary",
            "-schema-location",
            f"{kubernetes(version)}/{name}",
            "-schema-location",
            f"{others()}/{name}",
            folder,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = json.loads(done.stdout)
    counted = said["summary"]
    assert (
        counted["valid"] + counted["invalid"] + counted["errors"] > 0 and counted["skipped"] == 0
    ), counted
    return [(one["filename"], one["kind"], one["msg"]) for one in said.get("resources") or []]

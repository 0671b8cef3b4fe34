# SPDX-License-Identifier: Apache-2.0
"""The pages for people are true: what they tell to run was run, what they tell to apply is rendered
and fits its schema, what they quote is what the binary says, and what they name of ours is in its
table.

pages.py says what the comment in front of a block means.
"""

import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import charts
import pages
import policy
import pytest
import schemas
import yaml
from conftest import ROOT, made
from forebay import Forebay, binary
from ports import free_ports
from test_pods import made_older
from test_release import VERSION

IDS = [str(page.relative_to(ROOT)) for page in pages.PAGES]
BLOCKS = [block for page in pages.PAGES for block in pages.blocks(page)]
TEXT = "".join(page.read_text() for page in pages.PAGES)


def of_kind(*kinds):
    found = [b for b in BLOCKS if b.kind in kinds]
    assert found, kinds
    return found


@pytest.mark.parametrize("page", pages.PAGES, ids=IDS)
def test_each_block_says_what_it_is(page):
    languages = {
        "run": "sh",
        "cluster": "sh",
        "host": "sh",
        "config": "yaml",
        "keys": "yaml",
        "values": "yaml",
        "manifest": "yaml",
        "output": "console",
        "shown": "console",
        "said": "text",
        "python": "python",
        "theirs": "yaml",
    }
    assert [b.text[:60] for b in pages.blocks(page) if languages.get(b.kind) != b.language] == []


def test_pages_are_short():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 250 and [line for line in lines if len(line) > 120] == []
    assert [
        page.name for page in pages.GUIDE.glob("*.md") if len(page.read_text().splitlines()) > 200
    ] == []


def test_the_index_has_each_page():
    index = (pages.GUIDE / "README.md").read_text()
    assert [
        page.name
        for page in pages.GUIDE.glob("*.md")
        if page.name != "README.md" and f"]({page.name})" not in index
    ] == []


def section(page, anchor):
    """The heading of the anchor and the text under it. Without an anchor: the page."""
    text = page.read_text()
    for title, body in re.findall(r"^#+ (.*)\n((?:(?!#+ ).*\n)*)", text, re.M):
        if anchor == re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-"):
            return title + body
    return "" if anchor else text


def test_the_first_links_for_programs_lead_to_sections_that_name_them():
    page, missing = pages.GUIDE / "clients.md", []
    links = re.findall(r"\*\*([\w, ]+)\*\*: \[[^\]]*\]\(([^)]*)\)", page.read_text())
    for names, target in links:
        name, _, anchor = target.partition("#")
        text = section(pages.GUIDE / name if name else page, anchor)
        missing += [each for each in names.split(", ") if each not in text]
    assert links and missing == []


# --- Run -----------------------------------------------------------------------------------------


@pytest.fixture
def laptop(tmp_path):
    """run(NAME, code): what the blocks of NAME print in a shell whose home, ports and directories
    are ours."""
    home = tmp_path / "home"
    (home / "run").mkdir(parents=True)
    path = os.pathsep.join(
        [
            str(Path(binary()).resolve().parent),
            str(Path(shutil.which("aws") or "/").parent),
            "/usr/bin:/bin",
        ]
    )
    environment = {
        "PATH": path,
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(home / "run"),
        "LC_ALL": "C.UTF-8",
        "SHELL": "/bin/bash",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    port, admin = free_ports(2)
    server = {
        "FOREBAY_LISTEN": f"127.0.0.1:{port}",
        "FOREBAY_ADMIN_LISTEN": f"127.0.0.1:{admin}",
        "FOREBAY_CACHE_DIR": str(home / "kept"),
    }
    for block in of_kind("config"):
        if "/" not in block.name:
            (home / block.name).write_text(block.text)

    def run(name, code=0):
        script = "set -eu\n" + "".join(b.text for b in of_kind("run") if b.name == name)
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=home,
            env={**environment, **(server if name == "server" else {})},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    run.home = home
    return run


def hashes(folder):
    return {
        p.relative_to(folder): hashlib.sha256(p.read_bytes()).digest()
        for p in folder.rglob("*")
        if p.is_file()
    }


def test_laptop(laptop):
    """From an empty home: a directory as origin, a real client, two epochs; then a server that
    stays."""
    said = laptop("laptop")
    assert re.findall(r"from here ([0-9.]+) %", said) == ["0.0", "100.0"], said
    assert hashes(laptop.home / "copy") == hashes(laptop.home / "data/imagenet/train")
    said = laptop("server")
    assert "shard-3.tar" in said, said
    # The page waits for 90 %. The job goes on after that.
    assert re.search(r"^ ?(9[0-9]|100)[.][0-9] %.* of 4 objects", said, re.M), said
    assert re.search(r"^ *state +ready", said, re.M), said


def test_a_notebook_takes_the_variables_of_a_running_server(tmp_path):
    (block,) = of_kind("python")
    (tmp_path / "tree").mkdir()
    server = Forebay(tmp_path / "server", f"dir:{tmp_path / 'tree'}").start()
    folder = str(Path(binary()).resolve().parent)
    environment = {
        "PATH": f"{folder}:/usr/bin:/bin",
        "FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}",
    }
    names = "AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID"
    text = block.text + "".join(f"print(os.environ['{name}'])\n" for name in names)
    said = made(sys.executable, "-c", text, env=environment)
    server.stop()
    assert said.split() == [f"http://127.0.0.1:{server.port}", "any"]


def test_an_older_cache_is_emptied_as_the_page_says(laptop, tmp_path):
    folder = laptop.home / "older-cache"
    data = tmp_path / "data"
    data.mkdir()
    server = Forebay(tmp_path / "server", f"dir:{data}", cache=folder).start()
    server.stop()
    made_older(folder / "format")
    done = subprocess.run(
        [
            binary(),
            "serve",
            "--origin.endpoint",
            f"dir:{data}",
            "--cache.dir",
            str(folder),
            "--listen",
            "127.0.0.1:0",
            "--admin.listen",
            "off",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    told = next(b for b in of_kind("said")).text.strip()
    assert (
        done.returncode == 1
        and told in done.stderr
        and "forebay prepare DIR --wipe-older" in done.stderr
    ), done.stderr
    said = laptop("formats")
    assert told in said and "wiped a cache of an older format" in said
    assert not list(folder.glob("segments")) and not (folder / "format").exists()


def test_quoted_output_is_what_the_binary_prints():
    for block in of_kind("output"):
        command, _, text = block.text.removeprefix("$ ").partition("\n")
        assert command.startswith("forebay ")
        line = f"{shlex.quote(str(binary()))} {command.removeprefix('forebay ')}"
        assert made("sh", "-c", line) == text, command


# --- Judged ---------------------------------------------------------------------------------------


def judged(*words):
    done = subprocess.run(
        [binary(), "check", *map(str, words)],
        env={"FOREBAY_CACHE_DIR": "/tmp/none", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and "warning" not in done.stderr, (words, done.stderr)


def test_configurations_and_keys_are_valid(tmp_path):
    for block in of_kind("keys"):
        keys_file = tmp_path / block.name
        keys_file.touch(0o600)
        keys_file.write_text(block.text.replace("/secrets/", f"{tmp_path}/"))
        for name in re.findall(r"/secrets/([\w-]+)", block.text):
            (tmp_path / name).touch(0o600)
            (tmp_path / name).write_text("A-KEY-OF-ITS-OWN")
        judged("--auth.mode", "verify", "--auth.keys_file", keys_file)
    sample = (ROOT / "conf/forebay.yaml").read_text()
    for block in of_kind("config"):
        file = tmp_path / "forebay.yaml"
        for before in ("", sample):  # users append it to the file of the package, too
            file.write_text(before + block.text)
            keys = ["--auth.keys_file", keys_file] if "keys_file" in block.text else []
            judged("-c", file, *keys)


@pytest.fixture
def tree(tmp_path):
    """Where the cluster's commands are run: the top of the source tree, with the files that the
    pages have one write."""
    for path in ROOT.iterdir():
        if not path.name.startswith((".", "build")):
            (tmp_path / path.name).symlink_to(path)
    for block in of_kind("values", "keys"):
        (tmp_path / block.name).touch(0o600)
        (tmp_path / block.name).write_text(block.text)
    return tmp_path


class Cluster:
    """Plays commands of a cluster as far as one can without: what they would make is rendered and
    judged."""

    def __init__(self, tree):
        self.tree, self.objects, self.applied = tree, [], 0
        self.umask = 0o022

    def judge(self, objects):
        assert objects
        folder = self.tree / f"applied-{self.applied}"
        self.applied += 1
        folder.mkdir()
        (folder / "all.yaml").write_text(yaml.safe_dump_all(objects))
        assert schemas.faults(folder) == []
        for o in objects:
            if o["kind"] == "ConfigMap" and "forebay.yaml" in o.get("data", {}):
                (folder / "forebay.yaml").write_text(o["data"]["forebay.yaml"])
                judged("-c", folder / "forebay.yaml")
            for _, spec in charts.pods_of(o):
                assert [
                    w
                    for c in charts.containers_of(spec)
                    if policy.is_forebay(c)
                    for w in policy.unknown(c)
                ] == []
        self.objects = objects

    def run(self, *words):
        return made(*words, cwd=self.tree, wait=120)

    def play(self, line):
        words = shlex.split(line)
        namespace = words[1:3] if words[1:2] == ["-n"] else []
        verb = words[0], words[1 + len(namespace)]
        rest = words[2 + len(namespace) :]
        match verb:
            case ("helm", "install" | "upgrade"):
                rest = [w for w in rest if w != "--install"]
                self.judge(
                    charts.load(
                        self.run(
                            charts.tool("helm"),
                            "template",
                            *rest,
                            "--kube-version",
                            charts.KUBERNETES,
                        )
                    )
                )
            case ("kubectl", "apply"):
                assert len(rest) == 2 and rest[0] in ("-k", "-f"), line
                self.judge(
                    charts.kustomize(self.tree / rest[1])
                    if rest[0] == "-k"
                    else charts.load((self.tree / rest[1]).read_text())
                )
            case ("kubectl", "create"):
                if "|" in words:  # to apply it again after a change
                    pipe = words.index("|")
                    assert words[pipe:] == ["|", "kubectl", "apply", "-f", "-"], line
                    words = words[:pipe]
                self.judge(
                    charts.load(
                        self.run(
                            charts.tool("kubectl"), *words[1:], "--dry-run=client", "-o", "yaml"
                        )
                    )
                )
            case ("kubectl", "label"):
                assert re.fullmatch(r"namespace [a-z]+ [a-z.-]+/[a-z]+=[a-z]+", " ".join(rest)), (
                    line
                )
            case ("kubectl", "logs" | "exec" | "rollout"):
                self.there(rest[1] if verb[1] == "rollout" else rest[0], rest)
                assert pages.unknown_in_command(line) == [], line
            case ("umask", mask):
                self.umask = int(mask, 8)
            case ("forebay", _):
                assert pages.unknown_in_command(line) == [], line
                into = re.search(r"(>>?)(\S+)$", line)
                if into and into[1] == ">":
                    (self.tree / into[2]).unlink(missing_ok=True)
                subprocess.run(
                    [
                        "bash",
                        "-c",
                        line.replace("forebay", shlex.quote(str(Path(binary()).resolve())), 1),
                    ],
                    cwd=self.tree,
                    check=True,
                    timeout=60,
                    umask=self.umask,
                )
                if into:  # the modes of a keys file are judged, too
                    judged("--auth.mode", "verify", "--auth.keys_file", self.tree / into[2])
            case _:
                raise AssertionError(f"nobody knows how to play this: {line}")

    def there(self, target, rest):
        """job/NAME, daemonset/NAME or the pod NAME-0 of a StatefulSet was rendered last, and has
        the container that -c names."""
        names = {f"{o['kind'].lower()}/{o['metadata']['name']}": o for o in self.objects}
        names |= {
            f"{o['metadata']['name']}-0": o for o in self.objects if o["kind"] == "StatefulSet"
        }
        assert target in names or self.before and target in self.before, (target, sorted(names))
        found = names.get(target) or self.before[target]
        if "-c" in rest:
            spec = next(spec for _, spec in charts.pods_of(found))
            assert rest[rest.index("-c") + 1] in {c["name"] for c in charts.containers_of(spec)}

    before = None


def test_commands_for_a_cluster(artefacts, tree):
    """In the order of the pages: each renders, fits its schema, and asks only what is there."""
    cluster, played = Cluster(tree), 0
    for block in of_kind("cluster"):
        cluster.before, cluster.umask = {}, 0o022
        for line in block.commands():
            cluster.play(line)
            cluster.before |= {
                f"{o['kind'].lower()}/{o['metadata']['name']}": o for o in cluster.objects
            }
            cluster.before |= {
                f"{o['metadata']['name']}-0": o
                for o in cluster.objects
                if o["kind"] == "StatefulSet"
            }
            played += 1
    assert played > 15


def test_commands_that_are_wrong_are_seen(artefacts, tree):
    """The judge itself."""
    cluster = Cluster(tree)
    cluster.play("helm install resnet deploy/helm/forebay -f training.yaml")
    for wrong in (
        "helm install forebay deploy/helm/forebay -f training.yaml --set cache.sise=1Gi",
        "kubectl apply -f deploy/examples/none.yaml",
        "kubectl exec job/other -- /usr/bin/forebay status",
        "kubectl exec job/resnet-forebay-trainer -c none -- /usr/bin/forebay status",
        "kubectl exec job/resnet-forebay-trainer -- /usr/bin/forebay statsu",
        "kubectl frob",
        "kubectl create secret generic",
        "forebay keys --frob new x",
    ):
        with pytest.raises((AssertionError, FileNotFoundError)):
            cluster.play(wrong)


def test_manifests_fit_their_schema(artefacts, tmp_path):
    for number, block in enumerate(of_kind("manifest")):
        (tmp_path / f"{number}.yaml").write_text(block.text)
    assert schemas.faults(tmp_path) == []


def test_commands_for_a_host():
    """Scripts of the tree are there with their flags, `forebay` has its commands, the package has
    what the pages name."""
    for block in of_kind("host"):
        for line in block.commands():
            assert pages.unknown_in_command(line) == [], line
            words = pages.words_of(line)
            if words[0] == "sh":
                script = (ROOT / words[1]).read_text()
                assert [
                    w for w in words[2:] if w.startswith("--") and f"    {w})" not in script
                ] == [], line
    named = set(re.findall(r"(?:forebay[_:-]|release-|/forebay:)(\d+\.\d+\.\d+)", TEXT))
    assert named | {
        version for b in BLOCKS for version in re.findall(r"\bv(\d+\.\d+\.\d+)", b.text)
    } == {VERSION}


# --- What pages name ------------------------------------------------------------------------------


@functools.cache
def metrics():
    """{name: labels} of counters.def, and the names that the code writes by itself."""
    found = {}
    for name, label, value in re.findall(
        r'^(?:METRIC\("([a-z_]+)", "(\w*)"|(?:COUNTER|GAUGE|HISTOGRAM\w*)\(\w+, "([^"]+)"\))',
        (ROOT / "src/stats/counters.def").read_text(),
        re.M,
    ):
        if name:
            metric, key = found.setdefault(name, set()), label
        else:
            metric.add((key, value))
    words = re.findall(
        r'^REFUSAL\(\w+, ERR_\w+, "([^"]+)"', (ROOT / "src/stats/refusals.def").read_text(), re.M
    )
    found["forebay_cache_admission_rejected_total"] = {
        ("reason", word) for word in words
    }  # a row of counters.def each
    assert len(found) > 80 and len(words) > 10
    for path in (ROOT / "src").rglob("*.c"):
        for name in re.findall(r'"(?:# TYPE )?(forebay_[a-z0-9_]+)', path.read_text()):
            found.setdefault(name, None)
    return found


def chart_paths(node, at=""):
    for key, value in node.items():
        yield at + key
        if isinstance(value, dict):
            yield from chart_paths(value, f"{at}{key}.")


@functools.cache
def rules():
    groups = [
        g
        for path in (ROOT / "deploy/prometheus").glob("*.rules.yaml")
        for g in yaml.safe_load(path.read_text())["groups"]
    ]
    return (
        {r["alert"] for g in groups for r in g["rules"] if "alert" in r},
        {r["record"] for g in groups for r in g["rules"] if "record" in r},
    )


def unknown_metrics(text):
    out = []
    text = re.sub(r"\breplaces [^.]*\.", "", text)  # these names no longer exist
    for name, labels in re.findall(r"\b(forebay_[a-z][a-z0-9_]*[a-z0-9])\b(?:\{([^}]*)\})?", text):
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        if name not in metrics() and base not in metrics():
            out.append(name)
        elif metrics().get(name):
            out += [
                f"{name}: {key}={value}"
                for key, value in re.findall(r'(\w+)="([^".|]+)"', labels)
                if (key, value) not in metrics()[name]
            ]
    alerts, records = rules()
    out += [word for word in re.findall(r"\bForebay[A-Z]\w+", text) if word not in alerts]
    return out + [
        word for word in re.findall(r"\bforebay:[a-z_]+:\w+", text) if word not in records
    ]


def unknown_options(page):
    """Keys, variables and flags between backticks that no table of ours, nor the chart, has."""
    values = yaml.safe_load((charts.CHART / "values.yaml").read_text())
    known = policy.keys() | set(chart_paths(values))
    groups = {key.split(".")[0] for key in known if "." in key}
    flags = set().union(*(policy.flags(command) for command in pages.commands_known()))
    scripts = "".join(
        path.read_text() for folder in ("deploy", "tests") for path in (ROOT / folder).glob("*.sh")
    )
    for options in re.findall(r"^ +(-[-a-z |]*)\)", scripts, re.M):  # `--unit | --fuzz)` of a case
        flags |= set(options.split(" | "))
    out = []
    for span in pages.spans(page):
        words = pages.words_of(span)
        if not words:
            continue
        first = words[0].rstrip(":")
        if words[0] == "forebay" and len(words) > 1:
            out += pages.unknown_words(words[1:])
        elif words[0] in pages.commands_known() and len(words) > 1:
            out += pages.unknown_words(words)
        elif re.fullmatch(r"--[a-z][a-z._-]*", first) and first not in flags:
            out.append(span)
        elif (
            re.fullmatch(r"[a-z_0-9]+(\.[a-zA-Z_0-9]+)+", first)
            and first.split(".")[0] in groups
            and not first.endswith((".sh", ".yaml", ".md", ".log"))
            and first not in known
        ):
            out.append(span)
    allowed = policy.variables()
    harness = "".join(
        (ROOT / path).read_text() for path in ("CMakeLists.txt", "tests/run.sh", "Dockerfile")
    )
    text = page.read_text()
    return out + [
        name
        for name in re.findall(r"\bFOREBAY_[A-Z_]*[A-Z]\b", text)
        if name not in allowed and not re.search(rf"\b{name}\b", harness)
    ]


@pytest.mark.parametrize("page", pages.PAGES, ids=IDS)
def test_names_on_pages_exist(page):
    """Options, variables, chart values, commands with their flags; metrics with their labels,
    alerts, recording rules; links."""
    assert unknown_options(page) == []
    assert unknown_metrics(page.read_text()) == []
    assert pages.dead_links(page) == []
    for block in pages.blocks(page):
        if block.language in ("sh", "console"):
            assert [
                w
                for line in block.text.splitlines()
                for w in pages.unknown_in_command(line.removeprefix("$ "))
            ] == []


def test_each_alert_is_on_its_page():
    page = (pages.GUIDE / "observability.md").read_text()
    assert {a for a in rules()[0] if f"`{a}`" not in page} == set()


def test_a_live_scrape_has_what_the_pages_tell_to_watch(tmp_path):
    """But what only S3 origins with credentials have, or listeners with a certificate."""
    (tmp_path / "data/b").mkdir(parents=True)
    (tmp_path / "data/b/k").write_text("x")
    server = Forebay(tmp_path / "server", f"dir:{tmp_path}/data").start()
    try:
        # Bypasses are counted from the first one on, a moment after its reply.
        server.client().get("k", bucket="b", query="partNumber=2")
        server.wait_metric("forebay_cache_bypass_total", lambda v: v > 0)
        names = {re.sub(r"(_bucket|_sum|_count)?(\{.*)?$", "", row) for row in server.metrics()}
    finally:
        server.stop()
    named = set(
        re.findall(
            r"\bforebay_[a-z_]+[a-z]\b",
            "".join(page.read_text() for page in pages.GUIDE.glob("*.md")),
        )
    )
    assert len(named) > 8
    assert named - names == {"forebay_tls_certificate_expiry_timestamp_seconds"}


@pytest.mark.parametrize(
    "text,wrong",
    [
        ("`cache.sise`", 1),
        ("`cache.size: 80%`", 0),
        ("`forebay warm --frob`", 1),
        ("`forebay heat`", 1),
        ("`FOREBAY_CACHE_SISE=1`", 1),
        ("`--cache.size`", 0),
        ("`--frob`", 1),
        ("`cache.hostPath.pth`", 1),
        ("`sidecar.warm.min`", 0),
        ("`run -- CMD`", 0),
        ("`plan --data 1TB`", 1),
        ("```sh\nforebay status --frob\n```", 0),
        ("forebay_cache_bites", 0),
    ],
)
def test_wrong_words_are_seen(tmp_path, text, wrong):
    """The judge itself."""
    page = tmp_path / "page.md"
    page.write_text(f"# x\n\n{text}\n")
    assert len(unknown_options(page)) == wrong


def test_wrong_names_are_seen(tmp_path):
    assert unknown_metrics("forebay_cache_bites ForebayAsleep forebay:hits:rate5m") == [
        "forebay_cache_bites",
        "ForebayAsleep",
        "forebay:hits:rate5m",
    ]
    assert unknown_metrics('forebay_limit_reached_total{limit="mood"}') == [
        "forebay_limit_reached_total: limit=mood"
    ]
    assert unknown_metrics("`forebay_cache_gone` replaces `forebay_gone` and `forebay_lost`.") == [
        "forebay_cache_gone"
    ]
    assert (
        unknown_metrics(
            'forebay_limit_reached_total{limit="index-room"} '
            "forebay_http_first_byte_seconds_bucket ForebayDown forebay:byte_hit_ratio:rate5m"
        )
        == []
    )
    page = tmp_path / "page.md"
    page.write_text("# Here\n[a](#here) [b](#there) [c](none.md) [d](page.md#here)\n")
    assert pages.dead_links(page) == ["#there", "none.md"]

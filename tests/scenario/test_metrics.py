# SPDX-License-Identifier: Apache-2.0
"""/metrics of a live server, and the rules, alerts and dashboard of deploy/ that use it."""

import json
import re
import shutil
import subprocess
import threading
import time

import pytest

from client import Client
from conftest import not_run
from forebay import KEYS, PATIENT, ROOT, build_kind, run_forebay
from test_control import read

MIB = 1 << 20
PROMETHEUS = ROOT / "deploy/prometheus"
RULES = sorted(PROMETHEUS.glob("*.rules.yaml"))
DASHBOARD = json.loads((ROOT / "deploy/grafana/forebay.json").read_text())
ACCEPT = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,"
    "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
LABEL = r'[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*"'
SAMPLE = re.compile(
    r"([a-zA-Z_:][\w:]*)(?:\{(" + LABEL + "(?:," + LABEL + r")*)\})? (-?\d+(?:\.\d+)?)"
)
SUFFIXES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


@pytest.fixture
def served(start, origin):
    """A server that has answered a miss, a hit, a write, a warm job and a reload."""
    origin.put("a", MIB)
    origin.put("b", 3 * MIB)
    server = start(origin)
    with server.client() as client:
        for _ in range(2):
            assert client.get("a").status == 200
            server.settle()
    assert (
        run_forebay(
            *PATIENT,
            "warm",
            "s3://bkt/b",
            "--wait",
            "-q",
            env={"FOREBAY_ADMIN": f"127.0.0.1:{server.admin_port}"},
        ).returncode
        == 0
    )
    return server


def scrape(server, accept=None):
    with Client(server.admin_port) as client:
        reply = client.request("GET", "/metrics", headers=[("Accept", accept)] if accept else [])
    assert reply.status == 200
    return reply.header("Content-Type"), bytes(reply.body).decode()


def promtool(*words, text=None):
    if not shutil.which("promtool"):
        not_run(
            "no promtool on PATH (Debian package prometheus: deploy/packages.sh --install metrics)"
        )
    return subprocess.run(
        ["promtool", *map(str, words)], input=text, capture_output=True, text=True, timeout=60
    )


def families(text):
    """Returns {family: type} and every sample: (family, name, labels, value). Fails on text that no
    scraper accepts."""
    types, samples, family = {}, [], None
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            family, kind = line.split()[2:]
            assert family not in types, f"{family} comes twice"
            types[family] = kind
        elif not line.startswith("#"):
            match = SAMPLE.fullmatch(line)
            assert match, line
            samples.append((family, *match.groups()))
    assert len({sample[1:3] for sample in samples}) == len(samples), "a series comes twice"
    return types, samples


# --- the text -------------------------------------------------------------------------------------


def test_metrics_are_prometheus_text_whatever_the_scraper_accepts(served):
    kind, text = scrape(served)
    types, samples = families(text)
    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    for family, name, _, _ in samples:
        assert name in [family + suffix for suffix in SUFFIXES[types[family]]], (family, name)
    other_kind, other_text = scrape(served, ACCEPT)
    assert other_kind == kind and families(other_text)[0] == types


def test_known_events_are_counted(served):
    rows = served.metrics()
    assert abs(rows["forebay_clock_skew_seconds"]) < 60  # origin and server share a clock
    assert 0 <= time.time() - rows["forebay_config_last_reload_success_timestamp_seconds"] < 600
    assert rows['forebay_warm_objects_total{state="done"}'] == 1 and rows["forebay_warm_jobs"] == 0
    assert rows["forebay_warm_bytes_total"] == 3 * MIB
    assert 0 < rows["forebay_disk_free_bytes"]
    held = served.wait_metric("forebay_cache_held_bytes", lambda v: v >= 4 * MIB)
    assert held < rows["forebay_cache_bytes"]  # the rest is reserved
    assert "forebay_credentials_expiry_timestamp_seconds" not in rows  # these do not expire


def test_calls_at_origins_are_gauged_by_state(start, origin):
    server = start(origin, settings={"origin.connections": 1, "workers": 1})
    for key in "abc":
        origin.put(key, 100)
    readers = [threading.Thread(target=read, args=(server, key)) for key in "abc"]
    with origin.hold(None):
        for reader in readers:
            reader.start()
        server.wait_metric("forebay_origin_connections", lambda v: v == 1, state="active")
        server.wait_metric("forebay_origin_connections", lambda v: v == 2, state="waiting")
    for reader in readers:
        reader.join()
    server.wait_metric("forebay_origin_connections", lambda v: v == 0)


def test_the_origins_clock_offset_is_a_metric(start, origin):
    if build_kind() == "release":
        not_run("a release goes by no clock of a test's")
    server = start(origin, ahead_s=1200)
    with server.client() as client:
        client.get("none")
    assert -1260 < server.metric("forebay_clock_skew_seconds") < -1140
    text = server.condition_rows()["clock-skew"]["text"]
    assert re.search(r"the clock of this host is (19|20|21) min ahead of that of the", text)


def test_a_reload_and_its_time_are_metrics(start, origin):
    server = start(origin, ahead_s=0)
    name = "forebay_config_last_reload_success_timestamp_seconds"
    began = server.metric(name)
    server.advance(2)
    assert (
        run_forebay(
            *PATIENT, "reload", env={"FOREBAY_ADMIN": f"127.0.0.1:{server.admin_port}"}
        ).returncode
        == 0
    )
    assert server.metric(name) >= began + 2


def test_credentials_that_expire_without_renewal_are_a_metric(start, origin, tmp_path):
    if build_kind() == "release":
        not_run("a release goes by no clock of a test's")
    answer, config = tmp_path / "answer", tmp_path / "config"
    expires = int(time.time()) + 3600
    key, secret = next(iter(KEYS.items()))
    answer.write_text(
        json.dumps(
            {
                "Version": 1,
                "AccessKeyId": key,
                "SecretAccessKey": secret,
                "SessionToken": "t",
                "Expiration": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(expires)),
            }
        )
    )
    config.write_text(f"[default]\ncredential_process = /bin/cat {answer}\n")
    server = start(
        origin,
        ahead_s=0,
        settings={"workers": 1},
        env={
            "AWS_CONFIG_FILE": str(config),
            "AWS_PROFILE": "default",
            "AWS_ACCESS_KEY_ID": "",
            "AWS_SECRET_ACCESS_KEY": "",
        },
    )
    with (
        server.client() as client
    ):  # the worker is there, and has read the current clock when it renews
        assert client.request("GET", "/bkt/none").status == 404
    assert server.metric("forebay_credentials_expiry_timestamp_seconds") == expires
    assert server.metric("forebay_credentials_refresh_failures_total") == 0
    answer.unlink()
    server.advance(3000)
    server.wait_metric("forebay_credentials_refresh_failures_total", lambda v: v >= 1)
    assert server.metric("forebay_credentials_expiry_timestamp_seconds") == expires


# --- promtool -------------------------------------------------------------------------------------


def test_promtool_accepts_the_metrics(served):
    checked = promtool("check", "metrics", text=scrape(served)[1])
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_rules_and_their_tests():
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", *RULES)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = promtool("test", "rules", PROMETHEUS / "forebay.test.yaml")
    assert tested.returncode == 0, tested.stdout + tested.stderr


# --- rules, runbook, dashboard --------------------------------------------------------------------


def panels(within=DASHBOARD):
    for panel in within["panels"]:
        yield panel
        yield from panels(panel) if "panels" in panel else ()


def expressions():
    return [target["expr"] for panel in panels() for target in panel.get("targets", [])]


def test_every_alert_has_a_test_and_a_section_of_the_runbook():
    rules = "\n".join(path.read_text() for path in RULES)
    sections = set(re.findall(r"^### (\w+)$", (PROMETHEUS / "README.md").read_text(), re.M))
    alerts = re.findall(r"- alert: (\w+)", rules)
    links = re.findall(r"runbook_url: deploy/prometheus/README\.md#(\w+)", rules)
    tested = set(re.findall(r"alertname: (\w+)\n", (PROMETHEUS / "forebay.test.yaml").read_text()))
    assert len(alerts) == 7 and links == [name.lower() for name in alerts]
    assert sections == tested == set(alerts)


def test_every_name_in_use_is_in_a_live_scrape(served):
    types, samples = families(scrape(served)[1])
    known = set(types) | {sample[1] for sample in samples}
    recorded = {name for path in RULES for name in re.findall(r"- record: (\S+)", path.read_text())}
    used = "\n".join(
        [*expressions(), *(path.read_text() for path in RULES), json.dumps(DASHBOARD["templating"])]
    )
    names = set(re.findall(r"\b(?:forebay|process)_\w+\b", used))
    assert len(names) > 40 and names <= known, names - known
    assert set(re.findall(r"\bforebay:[\w:]+", used)) <= recorded


def test_labels_in_use_are_in_a_live_scrape(served):
    """Every label that rules and dashboard use is in a live scrape. A missing one would leave a
    panel empty without any error."""
    own = {
        name
        for _, _, labels, _ in families(scrape(served)[1])[1]
        for name in re.findall(r'(\w+)="', labels or "")
    }
    scraped = {"job", "instance", "namespace", "cluster"}
    used = "\n".join(expressions())
    matched = set(re.findall(r'(\w+)=~?"', used))
    grouped = {
        name.strip()
        for group in re.findall(r"\b(?:by|without) \(([^)]*)\)", used)
        for name in group.split(",")
    }
    assert (matched | grouped) - {""} <= own | scraped


def test_the_dashboard_is_whole(tmp_path):
    ids = [panel["id"] for panel in panels()]
    assert DASHBOARD["uid"] == "forebay" and len(ids) == len(set(ids)) > 30
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "cluster", "namespace", "instance", "price_gb", "price_get"}
    places = set()
    for panel in panels():
        assert panel["title"] and (
            panel["type"] == "row" or panel["datasource"]["uid"] == "$datasource"
        )
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & places and place["x"] + place["w"] <= 24, panel["title"]
        places |= cells
    rows = [panel["title"] for panel in panels() if panel["type"] == "row"]
    assert rows == [
        "Is training being fed?",
        "Saved",
        "Cache",
        "Why not cached",
        "Origin",
        "Disk and engine",
        "Warm-up",
        "Servers",
        "Process",
    ]
    rules = []
    for i, expr in enumerate(expressions()):
        assert 'instance=~"$instance"' in expr, expr
        for name, value in {
            "$__rate_interval": "5m",
            "$__range": "1h",
            "$price_gb": "0.09",
            "$price_get": "0.0004",
        }.items():
            expr = expr.replace(name, value)
        assert not re.findall(r"\$(?!instance|namespace|cluster)", expr), expr
        rules.append({"record": f"panel:{i}", "expr": expr})
    path = tmp_path / "panels.yaml"  # JSON is YAML
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    checked = promtool("check", "rules", path)
    assert checked.returncode == 0, checked.stdout + checked.stderr

# SPDX-License-Identifier: Apache-2.0
"""The chart and the server refuse the same settings: a value of `config` that fails the start of a
pod fails the installation first."""

import json
import re
import subprocess

import charts
import pytest
from conftest import made
from forebay import binary

UNITS = [
    [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)],
    [(unit + "iB", 1024**i) for i, unit in enumerate("KMGTPE", 1)],
    [("%", 1)],
    [("", 1)],
]
RULE = {"match": "a/**"}
BUCKET = {"name": "a"}
BY_CHART = {"cache.size", "shutdown.grace"}  # the chart sets them itself


def ranges():
    """Returns (key, low, high) of each setting and each field of a rule that has a range."""
    found = re.findall(
        r"^\| `([^`]+)` \|[^|]*\| ([0-9][^ .]*)\.\.([^ ]+) \|",
        made(binary(), "config", "docs"),
        re.M,
    )
    assert len(found) > 30
    return [row for row in found if row[0] not in BY_CHART]


def nested(key, value):
    """Returns the content of forebay.yaml with one value."""
    section, _, leaf = key.rpartition(".")
    if section == "rules[]":
        return {"rules": [{**RULE, leaf: value}]}
    return {section: {leaf: value}} if section else {leaf: value}


def spelled(number, suffix):
    """Returns the value as YAML has it: a plain number without a unit is no text."""
    return number if suffix == "" else f"{number}{suffix}"


def outside(low, high):
    """Returns values just below and just above a range."""
    suffix = "/s" if high.endswith("/s") else ""
    units = next(
        units
        for units in UNITS
        if re.fullmatch("[0-9.]+(" + "|".join(u for u, _ in units) + ")", high.removesuffix("/s"))
    )

    def number(text):
        digits, unit = re.fullmatch(r"(\d+)(.*)", text.removesuffix("/s")).groups()
        return int(digits) * dict(units).get(unit, 1)

    smallest, factor = units[0]
    if number(low) > 0:
        yield spelled((number(low) - 1) // factor, smallest + suffix)
    yield spelled(number(high) // factor + 1, smallest + suffix)


def refusals():
    for key, low, high in ranges():
        for value in outside(low, high):
            yield nested(key, value)
    for key in ("cache.block_size", "rules[].block_size"):
        yield nested(key, "96KiB")
        yield nested(key, 100_000)
    for key in ("origin.max_rate", "cache.scrub_rate", "limits.min_rate"):
        yield nested(key, 5)
        yield nested(key, "5MiB")
    yield nested("cache.ttl", 60)
    yield nested("cache.ttl", "99999999999999999999d")
    yield nested("cache.readahead", "17592186044417EiB")  # 0 after an overflow
    for size in ("1.5", "1.GiB", ".5GiB", "1.5.2GiB", "0.5B", "0.0001KiB"):
        yield nested("cache.readahead", size)
    yield nested("origin.max_rate", "0.0001KiB/s")
    yield nested("cache.ttl", "0.0001s")
    yield nested("cache.block_size", "1.5MiB")
    yield nested("cache.min_free", "10.5%")
    yield nested("cache.policy", "best")
    yield nested("access_log.sample", "50%")
    for proxy in (
        "http://user:password@proxy:3128",
        "https://proxy:3128",
        "proxy:3128",
        "http://proxy",
        "http://proxy:0",
        "http://proxy:1:2",
        "http://proxy:3128/path",
    ):
        yield nested("origin.proxy", proxy)
    yield nested("credentials.source", "config")
    for web in ("example.com", "https://example.com/path", "https://*.example.com"):
        yield nested("auth.allowed_origins", [web])
    for match in ("", "a/{b", "a/b}", "a/{b,{c}}", "a\\"):
        yield {"rules": [{"match": match}]}
    yield {"rules": [{"cache": False}]}
    yield {"rules": [{**RULE, "pin": True, "share": "10%"}]}
    for bucket in (
        {"name": "a/b"},
        {"name": ""},
        {"origin": "b"},
        {"origin": "s3://b/prefix"},
        {"origin": "dir:data"},
        {"origin": "dir:/data", "region": "x"},
        {"endpoint": "s3.example.com"},
        {"endpoint": "https://s3.example.com:443:80"},
        {"endpoint": "https://s3.example.com/?x=y"},
        {"endpoint": "https://b.s3.eu-central-1.amazonaws.com"},
        {"endpoint": "https://10.0.0.1", "addressing": "virtual"},
        {"credentials": "none"},
        {"credentials": "anonymous", "requester_pays": True},
        {"origin": "dir:/data", "requester_pays": True},
        {"credentials": {"access_key_file": "/k"}},
    ):
        yield {"buckets": [{**BUCKET, **bucket}]}
    yield {"buckets": [BUCKET, BUCKET]}
    yield {
        "buckets": [{**BUCKET, "requester_pays": True}],
        "credentials": {"source": "anonymous"},
    }


def check(config, tmp_path):
    """Returns what `forebay check` says of a file, with the exit code."""
    file = tmp_path / "forebay.yaml"
    file.write_text(json.dumps(config))
    return subprocess.run(
        [binary(), "check", "-c", file, "--cache.dir", tmp_path],
        env={},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("config", list(refusals()), ids=json.dumps)
def test_chart_refuses_what_the_server_refuses(artefacts, tmp_path, config):
    done = check(config, tmp_path)
    assert done.returncode == 3, done.stdout
    (tmp_path / "values.json").write_text(json.dumps({"config": config}))
    assert "config" in charts.refused(tmp_path / "values.json")


@pytest.mark.parametrize(
    "endpoint",
    [
        "s3.example.com",
        "https://",
        "https://:443",
        "https://s3.example.com:443:80",
        "https://s3.example.com:0",
        "https://s3.example.com?x=y",
        "https://s3.example.com/#x",
        "https://user@s3.example.com",
        "https://s3.example.com/a b",
        "https://b.s3.eu-central-1.amazonaws.com",
        "https://s3.eu-central-1.amazonaws.com/b",
        "https://s3express-use1-az4.us-east-1.amazonaws.com",
    ],
)
def test_chart_refuses_endpoints_that_the_server_refuses(artefacts, tmp_path, endpoint):
    assert check({"origin": {"endpoint": endpoint}}, tmp_path).returncode == 3
    assert "origin" in charts.refused(settings=[f"origin.endpoint={endpoint}"])


def test_chart_refuses_a_size_that_the_server_refuses(artefacts, tmp_path):
    assert check({"cache": {"size": "15MiB"}}, tmp_path).returncode == 3
    assert "cache.size" in charts.refused(settings=["cache.size=15Mi"])


def test_chart_accepts_the_ends_of_all_ranges(artefacts, tmp_path):
    """Each range includes its ends. The chart's files/ranges.json has all of them."""
    for end in (0, 1):
        config = {
            "rules": [{"match": "a/{b,c}/\\{**"}],
            "buckets": [{**BUCKET, "origin": "s3://b"}],
        }
        for key, *limits in ranges():
            value = int(limits[end]) if limits[end].isdigit() else limits[end]
            section, leaf = key.split(".") if "." in key else ("", key)
            if section == "rules[]":
                config["rules"][0][leaf] = value
            elif section:
                config.setdefault(section, {})[leaf] = value
            else:
                config[leaf] = value
        assert check(config, tmp_path).returncode == 0
        (tmp_path / "values.json").write_text(json.dumps({"config": config}))
        charts.render(tmp_path / "values.json")


@pytest.mark.parametrize(
    "settings",
    [
        ["config.origin.proxy=http://proxy:3128"],
        ["origin.endpoint=https://bucket.vpce-1.s3.us-east-1.vpce.amazonaws.com"],
        ["origin.endpoint=https://s3.example.com:9000/path"],
        ["origin.endpoint=http://[::1]:9000"],
        ["config.cache.block_size=65536"],
        ["config.limits.max_buffer=auto"],
        ["config.origin.max_rate=0"],
        ["config.origin.max_rate=1.5GB/s"],
        ["config.cache.readahead=1.5GiB"],
        ["config.cache.block_size=0.5MiB"],
        ["config.cache.ttl=1.5h"],
        ["config.auth.allowed_origins={https://example.com:8443}"],
    ],
)
def test_chart_accepts_what_the_server_accepts(artefacts, settings):
    charts.render(settings=settings)

# SPDX-License-Identifier: Apache-2.0
"""Every setting works by file, by environment and by flag: the whole table, not samples. Flags
override the environment, and the environment overrides the file."""

import json
import re

import pytest

from forebay import run_forebay
from test_origin_trouble import certificate  # noqa: F401 (a fixture)
from test_reload import set_key

# Settings for which another value does not follow from the default or the choices.
OTHERS = {
    "listen": "127.0.0.1:7001",
    "admin.listen": "127.0.0.1:7002",
    "workers": "3",
    "listen_tls.cert": "CERT",
    "listen_tls.key": "KEY",
    "s3.domains": "x.example",
    "admin.socket": "off",
    "admin.token_file": "SECRET",
    "admin.allowed_hosts": "x.example",
    "origin.endpoint": "https://127.0.0.1:9",
    "origin.region": "eu-west-1",
    "origin.ca_file": "CERT",
    "origin.max_rate": "7MiB/s",
    "origin.proxy": "http://proxy.example:3128",
    "origin.proxy_auth_file": "SECRET",
    "credentials.source": "config",
    "credentials.access_key_file": "SECRET",
    "credentials.secret_key_file": "SECRET",
    "credentials.session_token_file": "SECRET",
    "auth.mode": "verify",
    "auth.keys_file": "KEYS",
    "auth.allowed_origins": "http://x.example",
    "cache.dir": "FOLDER",
    "cache.size": "700MiB",
    "cache.scrub_rate": "7MiB/s",
    "cache.block_size": "64KiB",
    "cache.readahead": "7MiB",
    "cache.max_object_size": "7MiB",
    "limits.max_buffer": "77MiB",
    "limits.min_rate": "7KiB/s",
    "access_log.path": "LOG",
    "access_log.sample": "0.5",
    "io.threads": "7",
}


def table(*arguments, env=None):
    """Returns {key: (value, source)} as `check -T` prints it."""
    got = run_forebay("check", "-T", "--json", *arguments, env=env)
    assert got.returncode == 0, (got.stdout[-2000:], got.stderr)
    lines = [json.loads(line) for line in got.stdout.splitlines()]
    return {
        line["key"]: (line["value"], line["source"])
        for line in lines
        if line["type"] == "item" and "key" in line
    }


def another(key, default, now, accepts):
    """A valid value of the key that is not its default."""
    if key in OTHERS:
        return OTHERS[key]
    words = [word for word in accepts if word not in (default, now, "auto")]
    if words:
        return words[0]
    number, unit = re.fullmatch(r"(\d+)(s|m|h|%|)", default).groups()
    return ("7" if number != "7" else "8") + unit


def test_every_setting_works_by_file_environment_and_flag(tmp_path, certificate):
    folder = {
        "CERT": certificate[0],
        "KEY": certificate[1],
        "SECRET": tmp_path / "secret",
        "KEYS": tmp_path / "keys",
        "FOLDER": tmp_path / "cache",
        "LOG": tmp_path / "log",
    }
    folder["SECRET"].write_text("0123456789abcdef")
    folder["KEYS"].write_text(
        "- {id: someone, secret: something-long, allow: [{bucket: '*', ops: [read]}]}"
    )
    for name in ("SECRET", "KEYS"):
        folder[name].chmod(0o600)
    rows = re.findall(
        r"^\| `([a-z0-9_.]+)` \| (\S*) \| ([^|]*) \| (?:reload|restart) \|",
        run_forebay("config", "docs").stdout,
        re.M,
    )
    defaults = table()
    assert {key for key, _, _ in rows} == set(defaults) and len(rows) > 60
    wanted = {}
    for key, default, accepts in rows:
        words = (
            accepts.replace("`", "").split(", ")
            if re.fullmatch(r"`?[a-z0-9_-]+`?(, `?[a-z0-9_-]+`?)+", accepts)
            else []
        )
        value = another(key, default.strip("`"), defaults[key][0], words)
        wanted[key] = str(folder.get(value, value))

    tree = {}
    for key, value in wanted.items():
        set_key(tree, key, value)
    path = tmp_path / "forebay.yaml"
    path.write_text(json.dumps(tree, indent=1))
    env = {"FOREBAY_" + key.upper().replace(".", "_"): value for key, value in wanted.items()}
    flags = [word for key, value in wanted.items() for word in (f"--{key}", value)]

    by_file = table("-c", str(path))
    by_env = table(env=env)
    by_flag = table(*flags)
    for key, value in wanted.items():
        assert by_file[key][0] != defaults[key][0], f"{key}: {value} is what it is anyway"
        assert by_file[key][0] == by_env[key][0] == by_flag[key][0], (
            key,
            by_file[key],
            by_env[key],
            by_flag[key],
        )
        assert re.fullmatch(re.escape(str(path)) + r":\d+:\d+.*", by_file[key][1]), (
            key,
            by_file[key],
        )
        name = "FOREBAY_" + key.upper().replace(".", "_")
        assert by_env[key][1].split(",")[0] == f"env {name}", (key, by_env[key])
        assert by_flag[key][1].split(",")[0] == f"--{key}", (key, by_flag[key])
    over_file, over_all = table("-c", str(path), env=env), table("-c", str(path), *flags, env=env)
    for key in wanted:
        assert over_file[key][1].startswith("env "), (key, over_file[key])
        assert over_all[key][1].startswith("--"), (key, over_all[key])
    # The names are unique: no two keys share one, and none looks like a variable that Kubernetes
    # injects.
    assert len(env) == len(wanted)
    assert not [
        name
        for name in env
        if re.search(r"_SERVICE_HOST$|_SERVICE_PORT|_PORT$|_PORT_\d+_(TCP|UDP)", name)
    ]


@pytest.mark.parametrize("entries", ["buckets", "rules"])
def test_docs_and_sample_name_each_field_of_an_entry(entries):
    """The table and the sample file have all fields that the schema allows."""
    schema = json.loads(run_forebay("config", "schema").stdout)
    fields = set(schema["properties"][entries]["items"]["properties"])
    docs = run_forebay("config", "docs").stdout
    sample = run_forebay("config", "default").stdout.partition(f"#{entries}:")[2]
    assert len(fields) > 5
    assert [f for f in fields if f"\n| `{entries}[].{f}` |" not in docs] == []
    assert [f for f in fields if not re.search(rf"^#  [- ] {f}: ", sample, re.MULTILINE)] == []

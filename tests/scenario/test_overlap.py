# SPDX-License-Identifier: Apache-2.0
"""Every command refuses a cache directory that overlaps the objects of a directory origin, or is
among somebody else's files. Logs, sockets and secrets there cause warnings."""

import json
import subprocess

import pytest
from conftest import not_run
from forebay import run_forebay
from test_reload import change, serve

ENV = {"AWS_EC2_METADATA_DISABLED": "true"}


@pytest.fixture
def data(tmp_path):
    root = tmp_path / "data"
    (root / "bkt" / "deep").mkdir(parents=True)
    (root / "bkt" / "a").write_bytes(b"hello")
    (tmp_path / "link").symlink_to(root)
    (root / "up").symlink_to(tmp_path)
    return root


def forebay(command, data, cache, *more, config=None):
    flags = ["-c", config] if config else ["--origin.endpoint", f"dir:{data}"]
    serve = (
        ["--listen", "127.0.0.1:0", "--admin.listen", "off", "--admin.socket", "off"]
        if command != "check"
        else []
    )
    return run_forebay(
        command,
        *flags,
        "--cache.dir",
        cache,
        "--cache.size",
        "64MiB",
        *serve,
        *more,
        env=ENV,
        wait=30,
    )


def listing(root):
    return sorted(str(path) for path in root.rglob("*"))


# CASE: (cache.dir below the test's folder, words)
OVERLAPS = {
    "equal": ("data", "is the origin"),
    "equal, by another spelling": ("data/bkt/../../data/.", "is the origin"),
    "equal, by a link": ("link", "is the origin"),
    "inside": ("data/cache", "inside the origin"),
    "inside a bucket, not there yet": ("data/bkt/not/yet", "inside the origin"),
    "inside, by a link": ("link/bkt/deep", "inside the origin"),
    "around": (".", "has the origin"),
    "around, by a link": ("data/up", "has the origin"),
}


@pytest.mark.parametrize("command", ["check", "serve", "doctor"])
@pytest.mark.parametrize("case", OVERLAPS)
def test_a_cache_in_its_origin(data, tmp_path, case, command):
    cache, words = OVERLAPS[case]
    before = listing(tmp_path)
    out = forebay(command, data, f"{tmp_path}/{cache}")
    first = (out.stdout if command == "doctor" else out.stderr).splitlines()[0]
    assert out.returncode == 3, out
    assert "cache.dir" in first and words in first and str(data) in first, first
    assert "outside" in first or "of its own" in first, first
    assert listing(tmp_path) == before


def test_a_cache_in_the_directory_of_a_bucket(data, tmp_path):
    config = tmp_path / "forebay.yaml"
    config.write_text(
        "origin: {endpoint: 'http://127.0.0.1:1'}\n"
        f"buckets:\n  - {{name: set, origin: 'dir:{data}/bkt'}}\n"
    )
    for cache, words in (
        ("data/bkt", "is the origin"),
        ("link/bkt/deep", "inside"),
        ("data", "has the origin"),
    ):
        out = forebay("check", data, tmp_path / cache, config=config)
        assert out.returncode == 3 and words in out.stderr, out
    for cache in ("data/bkt2", "cache"):  # beside it
        assert forebay("check", data, tmp_path / cache, config=config).returncode == 0


def bind(what, where):
    where.mkdir(parents=True, exist_ok=True)
    if (
        subprocess.run(
            ["mount", "--bind", what, where], capture_output=True, check=False
        ).returncode
        != 0
    ):
        not_run("no bind mounts")
    return where


def test_bind_mounts_show_one_directory_twice(data, tmp_path):
    """A bind mount shows the origin's directory at another path, or the cache's below the origin.
    Forebay finds the overlap."""
    (tmp_path / "cache").mkdir()
    mounted = []
    try:
        mounted.append(bind(data, tmp_path / "mnt" / "twin"))
        for cache, words in (
            ("mnt/twin", "is the origin"),
            ("mnt/twin/bkt/deep", "inside the origin"),
        ):
            out = forebay("check", data, tmp_path / cache)
            assert out.returncode == 3 and words in out.stderr, out
        assert forebay("check", data, tmp_path / "cache").returncode == 0
        mounted.append(bind(tmp_path / "cache", data / "bkt" / "deep"))
        out = forebay("check", data, tmp_path / "cache")
        assert out.returncode == 3 and "inside the origin" in out.stderr, out
        assert forebay("check", data, tmp_path / "else").returncode == 0
    finally:
        for path in reversed(mounted):
            subprocess.run(["umount", path], check=True)


def test_a_name_that_only_begins_alike(data, tmp_path):
    for cache in ("data-cache", "dat", "cache"):
        assert forebay("check", data, tmp_path / cache).returncode == 0


def test_secrets_and_logs_in_the_origin(data, tmp_path):
    """Secrets and logs in the origin's directory cause a warning each, and the server starts."""
    for name in ("keys", "token", "access", "secret"):
        (data / "bkt" / name).write_text("- {id: AK, secret: ssssssss, allow: [{bucket: bkt}]}\n")
        (data / "bkt" / name).chmod(0o600)
    (data / "bkt/token").write_text("0123456789abcdef0123456789abcdef\n")
    inside = {
        "auth.keys_file": "keys",
        "admin.token_file": "token",
        "credentials.access_key_file": "access",
        "credentials.secret_key_file": "secret",
        "access_log.path": "access.log",
        "admin.socket": "socket",
    }
    flags = [f"--{key}={tmp_path}/link/bkt/{name}" for key, name in inside.items()]
    out = run_forebay(
        "check", f"--origin.endpoint=dir:{data}", f"--cache.dir={tmp_path}/cache", *flags, env=ENV
    )
    assert out.returncode == 0, out
    for key in inside:
        line = next(
            (line for line in out.stderr.splitlines() if line.startswith(f"{key}: warning: ")), ""
        )
        assert "inside the origin" in line and ("Move it out" in line), (key, out.stderr)
    out = run_forebay(
        "check", f"--origin.endpoint=dir:{data}", f"--cache.dir={tmp_path}/cache", env=ENV
    )
    assert "warning" not in out.stderr, out


def test_a_reload_refuses_an_overlap(start, data):
    """A reload into an overlap is refused. Nothing changes, and the server goes on."""
    server = serve(start, f"dir:{data}")
    answer = change(
        server, {"buckets": [{"name": "set", "origin": f"dir:{server.cache}/segments"}]}, code=3
    )
    assert "has the origin" in json.dumps(answer), answer
    with server.client() as client:
        assert bytes(client.get("a").body) == b"hello"


# --- somebody's directory -------------------------------------------------------------------------


def test_a_directory_that_holds_something_else(data, tmp_path):
    """Forebay refuses a non-empty directory that is not a cache, and leaves nothing in it.
    Leftovers of a new file system and of a failed start are accepted."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "thesis.tex").write_text("x")
    out = forebay("serve", data, home)
    assert out.returncode == 1, out
    first = [line for line in out.stderr.splitlines() if line.startswith("forebay: ")][0]
    for word in (str(home), "thesis.tex", "not empty", "cache.dir"):
        assert word in first, out.stderr
    assert [path.name for path in home.iterdir()] == ["thesis.tex"]
    assert "so the server refuses to start" in forebay("doctor", data, home).stdout


def test_an_empty_file_system(start, data):
    server = start(f"dir:{data}", run=False)
    server.cache.mkdir(mode=0o700, parents=True)
    (server.cache / "lost+found").mkdir()
    (server.cache / "lock").write_text("")
    server.start()
    with server.client() as client:
        assert bytes(client.get("a").body) == b"hello"
    server.stop()
    (server.cache / "note").write_text("somebody's, later")  # a cache stays a cache
    server.start()

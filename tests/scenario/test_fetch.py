# SPDX-License-Identifier: Apache-2.0
"""The commands cat and get fetch an object through the cache, as a whole or not at all."""

import os
import stat
import subprocess
import threading

import pytest

from forebay import binary, run_forebay
from test_control import MIB, ask, said


def cat(server, *words, code=0, **env):
    got = subprocess.run(
        [binary(), "cat", *words],
        capture_output=True,
        env={**os.environ, "FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}", **env},
    )
    assert got.returncode == code, got
    return got.stdout if code == 0 else got.stderr.decode()


def test_errors_are_printed_as_text(forebay, origin):
    origin.fault("k", "error", (403, "AccessDenied", "It isn't yours & that's \"it\""), times=None)
    told = cat(forebay, "s3://bkt/k", code=4)
    assert "&apos;" not in told and "&amp;" not in told and "'" in told, told


def test_cat_and_get_give_what_the_origin_has(forebay, origin, tmp_path):
    key = "a b/ü+%2F?&.bin"
    number = origin.put(key, 3 * MIB + 7)
    whole = origin.bytes_of(key, 0, 3 * MIB + 7)
    assert (
        cat(
            forebay,
            f"s3://bkt/{key}",
            HTTP_PROXY="http://127.0.0.1:1",
            http_proxy="http://127.0.0.1:1",
        )
        == whole
    )
    assert cat(forebay, f"s3://bkt/{key}", "--range", "1048570-1048580") == whole[1048570:1048581]
    forebay.settle()
    file = tmp_path / "out"
    file.write_text("old")
    result = ask(forebay, "get", f"s3://bkt/{key}", str(file))[-1]
    assert (
        file.read_bytes() == whole
        and result["bytes"] == len(whole)
        and "hit" in result["cache_status"]
    )

    told = said(forebay, "get", f"s3://bkt/{key}", str(tmp_path), "-v")
    assert "3.0 MiB, first byte after" in told and "hit" in told
    assert (tmp_path / "ü+%2F?&.bin").read_bytes() == whole
    assert sorted(path.name for path in tmp_path.iterdir() if ".part" in path.name) == []
    assert len(origin.requests(key=key, method="GET")) <= 4 and number


@pytest.mark.parametrize("command", ["cat", "get"])
def test_a_folder_is_no_object(forebay, origin, tmp_path, command):
    """A name that ends in a slash and is no object fails like any other missing object, and the
    error names `ls`."""
    origin.put("folder/a", 10)
    operands = [str(tmp_path / "out")] if command == "get" else []
    told = said(forebay, command, "s3://bkt/folder/", *operands, code=1)
    assert "404 NoSuchKey" in told and "`forebay ls s3://bkt/folder/`" in told, told
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "fault, code, words",
    [
        (("status", 403), 4, "403 AccessDenied"),
        (("status", 404), 1, "404 NoSuchKey"),
        (("cut", 2 * MIB), 4, "in the middle"),
    ],
)
def test_a_failed_transfer_replaces_nothing(start, origin, tmp_path, fault, code, words):
    """A transfer that fails does not replace the existing file."""
    server = start(origin, settings={"origin.retries": 0})
    origin.put("a", 3 * MIB)
    if fault[0] == "cut":
        origin.fault("a", *fault)
        fault = ("status", 403)
        origin.fault("a", *fault, at=2, times=None)
    else:
        origin.fault("a", *fault, times=None)
    file = tmp_path / "sub" / "out"
    file.parent.mkdir()
    file.write_text("old")
    assert words in said(server, "get", "s3://bkt/a", str(file), code=code)
    assert [path.name for path in file.parent.iterdir()] == ["out"] and file.read_text() == "old"


def test_a_file_that_cannot_be_written(forebay, origin, tmp_path):
    origin.put("a", MIB)
    origin.put("dir/", 0)
    assert "No such file" in said(
        forebay, "get", "s3://bkt/a", str(tmp_path / "no" / "out"), code=1
    )
    assert "name a FILE" in said(forebay, "get", "s3://bkt/dir/", code=2)
    assert (
        "No space left"
        in subprocess.run(
            ["sh", "-c", f"{binary()} cat s3://bkt/a >/dev/full"],
            capture_output=True,
            text=True,
            env={**os.environ, "FOREBAY_ADMIN": f"http://127.0.0.1:{forebay.admin_port}"},
        ).stderr
    )
    assert origin.requests(key="dir/") == []


def read_fifo(path):
    """Returns a thread that reads PATH to its end, and the list that receives its contents."""
    got = []
    reader = threading.Thread(target=lambda: got.append(path.read_bytes()), daemon=True)
    reader.start()
    return reader, got


def test_a_device_or_a_fifo_is_written_to(forebay, origin, tmp_path):
    """`get` writes to a device or FIFO and never replaces it by a regular file. As root it would
    otherwise replace /dev/null."""
    origin.put("a", 3 * MIB + 7)
    fifo = tmp_path / "sub" / "fifo"
    fifo.parent.mkdir()
    os.mkfifo(fifo)
    reader, got = read_fifo(fifo)
    result = ask(forebay, "get", "s3://bkt/a", str(fifo))[-1]
    reader.join(60)
    assert got == [origin.bytes_of("a", 0, 3 * MIB + 7)] and result["bytes"] == 3 * MIB + 7
    assert stat.S_ISFIFO(fifo.stat().st_mode) and [path.name for path in fifo.parent.iterdir()] == [
        "fifo"
    ]
    link = tmp_path / "full"
    link.symlink_to("/dev/full")
    assert "No space left" in said(forebay, "get", "s3://bkt/a", str(link), code=1)
    assert stat.S_ISCHR(link.stat().st_mode) and link.is_symlink()


def test_keys_are_used_where_they_are_wanted(start, origin, tmp_path):
    made = run_forebay("keys", "new", "me", "--allow", "bkt/train/").stdout
    keys = tmp_path / "keys.yaml"
    keys.write_text(made)
    keys.chmod(0o600)
    env = dict(
        line.split("export ")[1].split("=", 1)
        for line in made.splitlines()
        if "export AWS_" in line
    )
    env = {name: value.strip().strip("'") for name, value in env.items()}
    origin.put("train/a b", 100)
    origin.put("other", 100)
    server = start(origin, settings={"auth.mode": "verify", "auth.keys_file": keys})
    assert "the server wants keys" in cat(
        server, "s3://bkt/train/a b", code=4, AWS_ACCESS_KEY_ID=""
    )
    assert cat(server, "s3://bkt/train/a b", **env) == origin.bytes_of("train/a b", 0, 100)
    assert cat(server, "s3://bkt/train/a b", "--range", "3-5", **env) == origin.bytes_of(
        "train/a b", 3, 3
    )
    assert "403 AccessDenied" in cat(server, "s3://bkt/other", code=4, **env)

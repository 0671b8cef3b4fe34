# SPDX-License-Identifier: Apache-2.0
"""`warm --check --node-features` labels a node with the data sets cached there, and with nothing
else.

No label outlives its data: not after an eviction, not after the end of the server or of the writer,
not on a full disk.
"""

import datetime
import fcntl
import json
import os
import subprocess
import time

import pytest
from disks import SmallMemory
from forebay import binary, build_kind, run_forebay, scaled
from test_control import ask
from waiting import wait_for

HOUR = 3600


def labels(file, at=None):
    """Returns the lines of the file as Node Feature Discovery reads it, by its documentation.

    It ignores a line without a future expiry time above it, a file larger than 64 KiB, and a file
    whose name begins with a dot.
    """
    at = at or time.time()
    ends, found = 0, {}
    assert file.stat().st_size <= 65536 and not file.name.startswith(".")
    for line in file.read_text().splitlines():
        if line.startswith("# +expiry-time="):
            ends = datetime.datetime.fromisoformat(
                line.split("=", 1)[1].replace("Z", "+00:00")
            ).timestamp()
        elif line and not line.startswith("#") and ends > at:
            name, value = line.split("=", 1)
            found[name] = value
    return found


def command(server, file, *words, admin=None):
    env = {
        "PATH": os.environ["PATH"],
        "FOREBAY_ADMIN": admin or f"http://127.0.0.1:{server.admin_port}",
    }
    if server is not None and "FOREBAY_CLOCK_FILE" in server.env:
        env["FOREBAY_CLOCK_FILE"] = server.env["FOREBAY_CLOCK_FILE"]
    return [binary(), "warm", "--check", "--node-features", str(file), *words], env


def once(server, file, *words, code=0):
    """Runs one round. Returns its lines of JSON and its stderr."""
    argv, env = command(server, file, *words, "--json")
    got = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, umask=0o077)
    assert got.returncode == code, (words, got.stdout, got.stderr)
    lines = [json.loads(line) for line in got.stdout.splitlines()]
    assert lines[-1]["type"] == "result" and lines[-1]["exit"] == code
    return lines, got.stderr


@pytest.fixture
def file(tmp_path):
    (tmp_path / "features.d").mkdir()
    return tmp_path / "features.d" / "forebay"


@pytest.fixture
def repeated():
    """Starts a command that repeats by itself. The fixture ends each."""
    running = []

    def begin(argv_env):
        running.append(
            subprocess.Popen(
                argv_env[0],
                env=argv_env[1],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()


def test_labels_say_what_is_cached(start, origin, file):
    for key in ("a/1", "a/2", "b/1", "c/1"):
        origin.put(key, 100_000)
    server = start(origin, settings={"access_log.path": "off"})
    ask(server, "warm", "s3://bkt/a/", "s3://bkt/c/1", "--wait", "-q")
    wanted = [
        "a=s3://bkt/a/",
        "b=s3://bkt/b/",
        "both=s3://bkt/a/",
        "both=s3://bkt/b/",
        "one.object=s3://bkt/c/1",
    ]
    lines, _ = once(server, file, *wanted, code=5)
    assert labels(file) == {"forebay.io/warm-a": "true", "forebay.io/warm-one.object": "true"}
    items = {line["name"]: line for line in lines if line["type"] == "item"}
    assert {name: item["labelled"] for name, item in items.items()} == {
        "a": True,
        "b": False,
        "both": False,
        "one.object": True,
    }
    assert items["both"] == {
        "type": "item",
        "name": "both",
        "labelled": False,
        "share": pytest.approx(2 / 3),
        "objects": 3,
        "objects_done": 2,
        "bytes": 300_000,
        "bytes_done": 200_000,
    }
    assert lines[-1] == {"type": "result", "ok": False, "exit": 5, "data_sets": 4, "labelled": 2}
    assert (
        once(server, file, "--min", "60%", "both=s3://bkt/a/", "both=s3://bkt/b/")[0][-1][
            "labelled"
        ]
        == 1
    )
    assert labels(file) == {"forebay.io/warm-both": "true"}
    assert file.stat().st_mode & 0o777 == 0o644, "who reads it is another user, whatever the umask"
    assert os.listdir(file.parent) == [file.name]
    assert labels(file, time.time() + HOUR - 60) and not labels(file, time.time() + HOUR + 60)
    once(server, file, "--ttl", "10m", "a=s3://bkt/a/")
    assert labels(file, time.time() + 540) and not labels(file, time.time() + 660)
    # Neither evicted nor overwritten objects count as held by the node.
    ask(server, "evict", "s3://bkt/c/1")
    origin.overwrite("a/1")
    once(server, file, *wanted, code=5)
    assert labels(file) == {}


def test_a_prefix_without_objects_is_not_labelled(start, origin, file):
    """A prefix without objects gets no label. Otherwise a misspelled prefix would count as
    cached."""
    origin.put("a/1", 100_000)
    server = start(origin, settings={"access_log.path": "off"})
    ask(server, "warm", "s3://bkt/a/", "--wait", "-q")
    _, said = once(server, file, "a=s3://bkt/a/", "empty=s3://bkt/A/", code=5)
    assert labels(file) == {"forebay.io/warm-a": "true"} and "empty: nothing lies below" in said
    once(server, file, "a=s3://bkt/a/", "a=s3://bkt/A/", code=5)
    assert labels(file) == {}, "one of its prefixes is empty"
    once(server, file, "a=s3://bkt/a/", "a=s3://bkt/A/", "--allow-empty")
    assert labels(file) == {"forebay.io/warm-a": "true"}
    once(server, file, "a=s3://bkt/a/1", "a=s3://bkt/a/none", code=5)
    assert labels(file) == {}, "an object of which not even the size is known"
    assert (
        ask(server, "warm", "--check", "s3://bkt/a/1", "s3://bkt/a/none", code=5)[-1][
            "objects_done"
        ]
        == 1
    )


def test_labels_follow_the_cache(start, origin, file, repeated):
    """A label appears when the data set is cached and disappears with it. While the server is down
    it stays until its expiry time. SIGTERM ends the command."""
    origin.put("a/1", 100_000)
    server = start(origin, settings={"access_log.path": "off"})
    writer = repeated(command(server, file, "--every", "1s", "a=s3://bkt/a/"))
    wait_for(file.exists, "the first file")
    assert labels(file) == {}
    ask(server, "warm", "s3://bkt/a/", "--wait", "-q")
    wait_for(lambda: labels(file), "the label")
    assert labels(file, time.time() + 150) and not labels(file, time.time() + 200), (
        "at least three minutes"
    )
    ask(server, "evict", "s3://bkt/a/")
    wait_for(lambda: not labels(file), "the label to go")
    ask(server, "warm", "s3://bkt/a/", "--wait", "-q")
    wait_for(lambda: labels(file), "the label again")
    server.kill9()
    for line in writer.stdout:
        if "no server answers" in line:
            break
    before = file.read_text()
    assert labels(file) and writer.poll() is None
    writer.terminate()
    assert writer.wait(10) == 0
    assert file.read_text() == before and os.listdir(file.parent) == [file.name]


def test_a_label_that_cannot_be_counted_stays_until_it_expires(start, origin, file, repeated):
    """If one data set cannot be counted, its label stays until it expires. The other labels are
    renewed."""
    for key in ("a/1", "b/1"):
        origin.put(key, 100_000, bucket=key[0])
    server = start(origin, settings={"access_log.path": "off"}, ahead_s=0)
    ask(server, "warm", "s3://a/", "s3://b/", "--wait", "-q")
    writer = repeated(
        command(server, file, "--every", "1s", "--ttl", "1m", "a=s3://a/", "b=s3://b/")
    )
    wait_for(lambda: file.exists() and len(labels(file)) == 2, "two labels")
    origin.fault("", "error", (403, "AccessDenied"), times=None, bucket="b")
    for line in writer.stdout:
        if "b: cannot be counted" in line:
            break
    assert len(labels(file)) == 2
    server.advance(65)
    ahead = 0 if build_kind() == "release" else 65  # a process whose clock nobody moves
    wait_for(
        lambda: labels(file, time.time() + ahead) == {"forebay.io/warm-a": "true"},
        "the one that is counted alone",
    )
    assert writer.poll() is None


def test_no_server(tmp_path, file):
    file.write_text("as it was\n")
    argv, env = command(None, file, "a=s3://bkt/a/", admin=f"unix:{tmp_path}/none")
    got = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    assert got.returncode == 6 and "no server answers" in got.stderr
    assert file.read_text() == "as it was\n"


def test_a_file_that_cannot_be_written(start, origin, tmp_path, file, repeated):
    """If the file cannot be written, a single round reports it and fails. A repeating command
    reports it and tries again, because the pod's cache still works."""
    origin.put("a/1", 100_000)
    server = start(origin, settings={"access_log.path": "off"})
    ask(server, "warm", "s3://bkt/a/", "--wait", "-q")
    for path, why in (
        (tmp_path / "none" / "x", "No such file or directory"),
        (file.parent, "Is a directory"),
        (tmp_path / ("x" * 255), "File name too long"),
        ("/proc/forebay", "No such file or directory"),
    ):
        assert f"cannot be written: {why}" in once(server, path, "a=s3://bkt/a/", code=1)[1]
    once(server, "/" + "y/" * 2100 + "x", "a=s3://bkt/a/", code=1)
    assert [name for name in os.listdir(tmp_path) if name.endswith(".new")] == []
    writer = repeated(command(server, tmp_path / "later" / "x", "--every", "1s", "a=s3://bkt/a/"))
    for line in writer.stdout:
        if "cannot be written" in line:
            break
    (tmp_path / "later").mkdir()
    wait_for((tmp_path / "later" / "x").exists, "the file, once there is a folder")


def test_a_full_file_system(start, origin, tmp_path):
    """On a full file system the old file stays, whole, and no other file does."""
    origin.put("a/1", 100_000)
    server = start(origin, settings={"access_log.path": "off"})
    ask(server, "warm", "s3://bkt/a/", "--wait", "-q")
    with SmallMemory(tmp_path / "small", 16384, 16) as small:
        file = small.mount / "forebay"
        once(server, file, "a=s3://bkt/a/")
        before = file.read_text()
        with open(small.mount / "other", "wb", buffering=0) as other, pytest.raises(OSError):
            while True:
                other.write(b"x" * 4096)
        assert (
            "cannot be written: No space left on device"
            in once(server, file, "a=s3://bkt/a/", code=1)[1]
        )
        assert file.read_text() == before and sorted(os.listdir(small.mount)) == [
            "forebay",
            "other",
        ]
        subprocess.run(["mount", "-o", "remount,ro", small.mount], check=True)
        assert (
            "cannot be written: Read-only file system"
            in once(server, file, "a=s3://bkt/a/", code=1)[1]
        )


def test_several_write_one_file(start, origin, file, repeated):
    """Several writers of one file do not fail. The file is complete whenever it is read, the last
    writer wins, and no other file is left there."""
    origin.put("a/1", 1000)
    server = start(origin, settings={"access_log.path": "off"})
    ask(server, "warm", "s3://bkt/a/", "--wait", "-q")
    name = "a=s3://bkt/a/"
    once(server, file, name)
    for _ in range(scaled(150, least=15)):
        writers = [repeated(command(server, file, name)) for _ in range(4)]
        while any(writer.poll() is None for writer in writers):
            assert labels(file) == {"forebay.io/warm-a": "true"}
        assert [writer.returncode for writer in writers] == [0] * 4, [
            writer.stdout.read() for writer in writers
        ]
    assert os.listdir(file.parent) == [file.name]


def test_leftover_files_do_not_disturb(start, origin, file):
    """Leftovers of a killed writer do not disturb the next one: a temporary file, a FIFO or a link
    in its place, which is neither followed nor opened to wait.

    A directory, or a file that another writer has locked, gives an error.
    """
    origin.put("a/1", 1000)
    server = start(origin, settings={"access_log.path": "off"})
    ask(server, "warm", "s3://bkt/a/", "--wait", "-q")
    fresh, other = file.parent / f".{file.name}.new", file.parent.parent / "other"
    other.write_text("as it was")
    for leave in (
        lambda: fresh.write_text("x" * 1000),
        lambda: os.mkfifo(fresh),
        lambda: fresh.symlink_to(other),
        lambda: fresh.hardlink_to(other),
    ):
        leave()
        once(server, file, "a=s3://bkt/a/")
        assert labels(file) == {"forebay.io/warm-a": "true"} and os.listdir(file.parent) == [
            file.name
        ]
        assert other.read_text() == "as it was" and file.is_file() and not file.is_symlink()
    fresh.mkdir()
    assert "cannot be written: Is a directory" in once(server, file, "a=s3://bkt/a/", code=1)[1]
    fresh.rmdir()
    with open(fresh, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert (
            "cannot be written: Device or resource busy"
            in once(server, file, "a=s3://bkt/a/", code=1)[1]
        )
    once(server, file, "a=s3://bkt/a/")
    assert os.listdir(file.parent) == [file.name]


def test_a_device_is_not_replaced(tmp_path):
    """A FIFO, or a link to a device, in the place of the file is refused and not replaced. As root,
    a rename would replace /dev/full or /dev/stdout for the whole machine."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/dev/full")
    for name in ("fifo", "link"):
        kind = (tmp_path / name).lstat().st_mode
        got = run_forebay(
            "warm",
            "--check",
            "--node-features",
            tmp_path / name,
            "a=s3://bkt/a/",
            env={"FOREBAY_ADMIN": f"unix:{tmp_path}/none"},
        )
        assert got.returncode == 2 and "is not a regular file" in got.stderr
        assert (tmp_path / name).lstat().st_mode == kind


@pytest.mark.parametrize(
    "words,says",
    [
        (["s3://bkt/a/"], "it is NAME=URI"),
        (["=s3://bkt/a/"], "it is NAME=URI"),
        (["a=/mnt/a"], "a=/mnt/a: "),
        (["_a=s3://bkt/a/"], "the name is part of a label"),
        (["a.=s3://bkt/a/"], "the name is part of a label"),
        (["a b=s3://bkt/a/"], "the name is part of a label"),
        (["a/b=s3://bkt/a/"], "the name is part of a label"),
        (["ä=s3://bkt/a/"], "the name is part of a label"),
        (["a\n=s3://bkt/a/"], "the name is part of a label"),
        (["x" * 59 + "=s3://bkt/a/"], "the name is part of a label: at most 58"),
        ([f"{i}=s3://bkt/a/" for i in range(257)], "more than 256 data sets"),
        (["a=s3://bkt/a/", "--every", "999ms"], "--every is a time from 1s to 1d"),
        (["a=s3://bkt/a/", "--every", "25h"], "--every is a time from 1s to 1d"),
        (["a=s3://bkt/a/", "--every", "5"], "--every is a time from 1s to 1d"),
        (
            ["a=s3://bkt/a/", "--every", "5m", "--ttl", "5m"],
            "--ttl of a label is a time, longer than --every",
        ),
        (["a=s3://bkt/a/", "--ttl", "31d"], "at most 30d"),
        (["a=s3://bkt/a/", "--min", "101%"], "--min is a share"),
        (["a=s3://bkt/a/", "-f", "list"], "not for a list"),
        (["a=s3://bkt/a/", "--pin"], "--node-features goes with --check"),
        (["a=s3://bkt/a/", "--fluid"], "--node-features goes with --check"),
        (["a=s3://bkt/a/", "--dry-run"], "--node-features goes with --check"),
        ([], "name what to fetch"),
    ],
)
def test_an_invalid_label_is_refused(tmp_path, file, words, says):
    """An invalid label is reported before any request, and nothing is written."""
    argv, env = command(None, file, *words, admin=f"unix:{tmp_path}/none")
    got = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    assert got.returncode == 2 and says in got.stderr, (got.returncode, got.stderr)
    assert os.listdir(file.parent) == []


def test_names_that_are_no_file_of_it(tmp_path):
    for path in (tmp_path / ".hidden", f"{tmp_path}/", "."):
        got = run_forebay(
            "warm",
            "--check",
            "--node-features",
            path,
            "a=s3://bkt/a/",
            env={"FOREBAY_ADMIN": f"unix:{tmp_path}/none"},
        )
        assert got.returncode == 2 and "must not be empty or begin with a dot" in got.stderr
    got = run_forebay("warm", "--node-features", tmp_path / "x", "a=s3://bkt/a/")
    assert got.returncode == 2 and "goes with --check" in got.stderr
    got = run_forebay("warm", "--check", "--every", "5m", "s3://bkt/a/")
    assert got.returncode == 2 and "--every is for --node-features" in got.stderr


def test_the_greatest_number_of_labels_fits(start, origin, file):
    """256 names of the greatest length fit in the 64 KiB that Node Feature Discovery reads."""
    origin.put("a/1", 1000)
    server = start(origin, settings={"access_log.path": "off"})
    ask(server, "warm", "s3://bkt/a/", "--wait", "-q")
    once(server, file, *[f"{i:03}{'x' * 55}=s3://bkt/a/" for i in range(256)])
    assert len(labels(file)) == 256

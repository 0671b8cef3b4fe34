# SPDX-License-Identifier: Apache-2.0
"""While the store accepts nothing for a moment, a warm job waits, and asks the origin once for each
byte. Final refusals, and a disk that stays broken, are reported with their reason."""

import json
import os
import subprocess

import pytest
import upgrading
from client import request_bytes
from conftest import not_run
from forebay import PATIENT, binary, build_kind
from test_control import ask, said
from waiting import wait_for

MIB = 1 << 20
QUIET = {"access_log.path": "off"}


@pytest.fixture(autouse=True)
def faults():
    if build_kind() == "release":
        not_run("a release has no fault hook")


def begin(server, *words):
    """Runs `warm --wait` as a user does."""
    env = {"PATH": os.environ["PATH"], "FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"}
    return subprocess.Popen(
        [server.binary_path, *PATIENT, "warm", *words, "--wait", "-q", "--json"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def result(command, code=0):
    out = command.communicate(timeout=120)[0]
    lines = [json.loads(line) for line in out.splitlines()]
    assert command.returncode == code, out[-2000:]
    return lines


def jobs(server):
    return json.loads(bytes(server.admin("/api/v1/jobs").body))["jobs"]


def newest(server):
    return (jobs(server) or [{"id": 0, "state": "not begun", "waits": None, "objects": 0}])[-1]


def wait_until_it_waits(server, *why):
    """Waits until the newest job waits for the store and none of its requests is in flight."""

    def waits():
        job = newest(server)
        return job["state"] == "running" and job["waits"] in why and job["inflight"] == 0 and job

    return wait_for(waits, lambda: f"a job that waits: {jobs(server)}")


def gets(origin, keys):
    """How often each key was asked for."""
    return [len(origin.requests(key=key, method="GET")) for key in keys]


# --- what passes ----------------------------------------------------------------------------------


def test_a_disk_whose_last_write_was_slow_is_tried_again(start, origin, engine):
    """After a slow write, the job tries the disk again. It is the only writer, so waiting for a
    faster write would never end."""
    keys = [f"k/{i}" for i in range(20)]
    for key in ("before", *keys):
        origin.put(key, 100_000)
    server = start(
        origin, engine=engine, settings=QUIET, env={"FOREBAY_DISK_FAULTS": "write:1:slow:400"}
    )
    with server.client() as client:
        client.get("before")
    server.settle()
    done = result(begin(server, "s3://bkt/k/"))[-1]
    assert done["objects_done"] == len(keys) and done["objects_refused"] == 0
    assert gets(origin, keys) == [1] * len(keys)


@pytest.mark.parametrize("workers", [1, 4])
def test_an_index_that_is_behind_is_waited_for(start, origin, engine, tmp_path, workers):
    """No sync ends, so nothing becomes durable. The job waits before it asks the origin, and leaves
    room to a reader. Then it goes on."""
    keys = [f"k/{i:04}" for i in range(1500)]
    for key in keys:
        origin.put(key, 100)
    origin.put("demand", 100)
    gate = tmp_path / "gate"
    gate.touch()
    server = start(
        origin,
        engine=engine,
        settings={**QUIET, "workers": workers, "limits.max_buffer": "4MiB"},
        env={"FOREBAY_DISK_FAULTS": f"sync:file={gate}:hold"},
    )
    command = begin(server, "s3://bkt/k/", "--jobs", "16")
    waiting = wait_until_it_waits(server, "index-busy")
    assert 0 < waiting["objects_done"] < len(keys) and waiting["objects_refused"] == 0
    assert "the index is behind" in said(server, "jobs")
    with server.client() as client:
        assert client.get("demand").header("cache-status").endswith("stored")
    gate.unlink()
    done = result(command)[-1]
    assert done["objects_done"] == len(keys) and done["waits"] is None
    assert gets(origin, keys) == [1] * len(keys)


def test_a_disk_that_is_behind_is_waited_for(start, origin, engine, tmp_path, figure):
    """No write ends. Of the requests in flight a little is fetched twice, and none of the rest is
    asked for."""
    keys = [f"k/{i:02}" for i in range(24)]
    for key in keys:
        origin.put(key, 8 * MIB)
    gate = tmp_path / "gate"
    gate.touch()
    server = start(
        origin,
        engine=engine,
        settings={**QUIET, "limits.max_buffer": "16MiB"},
        env={"FOREBAY_DISK_FAULTS": f"write:file={gate}:hold"},
    )
    command = begin(server, "s3://bkt/k/", "--jobs", "4")
    wait_for(
        lambda: newest(server)["waits"] == "disk-busy", lambda: f"a job that waits: {jobs(server)}"
    )
    gate.unlink()
    done = result(command)[-1]
    assert done["objects_done"] == len(keys) and done["bytes_done"] == len(keys) * 8 * MIB
    twice = sum(origin.sent_twice(key) for key in keys)
    figure(
        f"warm, a disk that stands still ({engine}): "
        f"{twice / MIB:.1f} of {len(keys) * 8} MiB sent twice"
    )
    assert twice <= 2 * 4 * 4 * MIB


@pytest.mark.parametrize("listed, size", [(False, 2000), (True, 2000), (False, 0), (True, 0)])
def test_a_disk_that_fails_for_a_while_is_waited_for(start, origin, engine, tmp_path, listed, size):
    """Writes fail for a while. The runs fetched then are fetched once more, one at a time, and
    everything is cached in the end, including empty objects."""
    keys = [f"k/{i:03}" for i in range(200)]
    for key in keys:
        origin.put(key, size)
    gate = tmp_path / "gate"
    gate.touch()
    names = tmp_path / "names"
    names.write_text("".join(f"s3://bkt/{key}\n" for key in keys))
    server = start(
        origin,
        engine=engine,
        settings=QUIET,
        ahead_s=0,
        env={"FOREBAY_DISK_FAULTS": f"write:file={gate}:eio"},
    )
    command = begin(server, *(["-f", str(names)] if listed else ["s3://bkt/k/"]), "--jobs", "8")
    wait_until_it_waits(server, "disk-degraded")
    gate.unlink()
    server.advance(6)
    assert result(command)[-1]["objects_done"] == len(keys)
    counts, each = (
        gets(origin, keys),
        2 if size == 0 else 1,
    )  # an empty object has no range, so the origin is asked once more
    assert max(counts) <= 2 * each and sum(counts) <= (len(keys) + 2 * 8) * each, counts
    server.settle()
    with server.client() as client:
        assert all(client.get(key).header("cache-status").endswith("hit") for key in keys)
    assert gets(origin, keys) == counts


def test_a_list_that_goes_on_while_the_disk_fails(start, origin, tmp_path):
    """A job waits for the disk and still accepts more names, from a list that arrives in batches of
    2,000."""
    keys = [f"k/{i:04}" for i in range(2100)]
    for key in keys:
        origin.put(key, 100)
    gate, names = tmp_path / "gate", tmp_path / "names"
    gate.touch()
    os.mkfifo(names)
    server = start(
        origin, settings=QUIET, ahead_s=0, env={"FOREBAY_DISK_FAULTS": f"write:file={gate}:eio"}
    )
    command = begin(server, "-f", str(names))
    with open(names, "w", encoding="ascii") as more:
        for count, key in enumerate(keys):
            if count == 2000:
                more.flush()
                wait_until_it_waits(server, "disk-degraded")
            more.write(f"s3://bkt/{key}\n")
    wait_for(
        lambda: newest(server)["objects"] == len(keys) or command.poll() is not None,
        "the second batch",
    )
    gate.unlink()
    server.advance(6)
    assert result(command)[-1]["objects_done"] == len(keys)


def test_a_job_waits_for_a_connection(start, origin):
    """All connections to the origin are in use for longer than a request waits for one. The job
    asks for the objects again, and none is failed."""
    keys = [f"k/{i}" for i in range(6)]
    for key in keys:
        origin.put(key, 1000)
    server = start(origin, settings={**QUIET, "workers": 1, "origin.connections": 1}, ahead_s=0)
    with origin.hold("k/0") as go:
        command = begin(server, "s3://bkt/k/", "--jobs", "6")
        origin.wait_for(1, key="k/0", method="GET")
        server.wait_metric("forebay_origin_connections", lambda n: n >= 5, state="waiting")
        server.advance(31)
        wait_for(lambda: newest(server)["waits"] == "no-connection", "requests that ended without")
        go.set()
    assert result(command)[-1]["objects_done"] == len(keys)


def test_a_listing_waits_for_a_connection(start, origin):
    """A client uses the only connection to the origin for longer than a request waits for one. The
    job asks for its listing again, and the prefix is not failed."""
    keys = [f"k/{i}" for i in range(6)]
    for key in [*keys, "long"]:
        origin.put(key, 1000)
    server = start(origin, settings={**QUIET, "workers": 1, "origin.connections": 1}, ahead_s=0)
    with server.connection() as client, origin.hold("long") as go:
        client.send(request_bytes("GET", "/bkt/long", "127.0.0.1"))
        origin.wait_for(1, key="long", method="GET")
        command = begin(server, "s3://bkt/k/")
        server.wait_metric("forebay_origin_connections", lambda n: n >= 1, state="waiting")
        server.advance(31)
        wait_for(lambda: newest(server)["waits"] == "no-connection", "a listing without")
        go.set()
        client.read_reply()
    lines = result(command)
    assert lines[-1]["objects_done"] == len(keys) and lines[-1]["objects_failed"] == 0


def test_a_file_that_has_just_changed_is_waited_for(start, tmp_path):
    """A directory's file counts as young for two seconds, after which the job asks again."""
    folder = tmp_path / "tree" / "bkt"
    folder.mkdir(parents=True)
    for i in range(20):
        (folder / f"{i:02}").write_bytes(b"%064d" % i)
    server = start(f"dir:{tmp_path}/tree", settings=QUIET, ahead_s=0)
    command = begin(server, "s3://bkt/")
    wait_for(lambda: newest(server)["objects"] == 20, "the listing")
    server.advance(3)
    assert result(command)[-1]["objects_done"] == 20


# --- what does not --------------------------------------------------------------------------------


def test_a_disk_that_stays_broken_is_reported(start, origin, engine):
    """If nothing was stored for a minute, the job cancels the rest without fetching it, with the
    reason and exit code 5."""
    keys = [f"k/{i:03}" for i in range(300)]
    for key in keys:
        origin.put(key, 2000)
    server = start(
        origin,
        engine=engine,
        settings=QUIET,
        ahead_s=0,
        env={"FOREBAY_DISK_FAULTS": "write:1+:eio"},
    )
    command = begin(server, "s3://bkt/k/", "--jobs", "8")
    wait_until_it_waits(server, "disk-degraded")
    server.advance(70)
    lines = result(command, code=5)
    assert lines[-1]["objects_refused"] == len(keys) and lines[-1]["objects_done"] == 0
    assert any("the disk" in line["reason"] for line in lines if line["type"] == "warning"), lines
    assert sum(gets(origin, keys)) <= 8 + 8 + 4


def test_a_rule_is_final_at_once(start, origin, tmp_path):
    """A rule that forbids storing ends the wait at once, even if a reload brings it while objects
    wait. Retries use the rule in force then."""
    keys = [f"k/{i:02}" for i in range(40)]
    for key in keys:
        origin.put(key, 2000)
    gate = tmp_path / "gate"
    gate.touch()
    server = start(
        origin,
        settings=QUIET,
        file={"rules": []},
        ahead_s=0,
        env={"FOREBAY_DISK_FAULTS": f"write:file={gate}:eio"},
    )
    command = begin(server, "s3://bkt/k/", "--jobs", "4")
    wait_until_it_waits(server, "disk-degraded")
    (server.folder / "forebay.yaml").write_text(
        json.dumps({"rules": [{"match": "bkt/k/*", "cache": False}]})
    )
    assert "rules" in ask(server, "reload")[-1]["applied"]
    gate.unlink()
    server.advance(6)
    lines = result(command, code=5)
    assert lines[-1]["objects_refused"] == len(keys)
    assert all("cache: false" in line["reason"] for line in lines if line["type"] == "warning")


@pytest.mark.parametrize("how", ["cancel", "upgrade", "stop", "kill"])
def test_a_job_that_waits_ends(start, origin, tmp_path, request, how):
    """However a waiting job ends, it ends at once. The same command then fetches the rest."""
    keys = [f"k/{i:03}" for i in range(200)]
    for key in keys:
        origin.put(key, 2000)
    gate = tmp_path / "gate"
    server = start(
        origin,
        run=False,
        settings=QUIET,
        ahead_s=0,
        env={"FOREBAY_DISK_FAULTS": f"write:file={gate}:eio"},
    )
    if how == "upgrade":
        upgrading.adopt_orphans(True)
        request.addfinalizer(lambda: upgrading.adopt_orphans(False))
        installed = upgrading.Installed(tmp_path / "installed")
        installed.link(binary())
        server.binary_path = str(installed.path)
    server.start()
    half = ask(server, "warm", *(f"s3://bkt/{key}" for key in keys[:100]), "--wait", "-q")[-1]
    assert half["objects_done"] == 100
    server.durable()
    gate.touch()
    command = begin(server, "s3://bkt/k/", "--jobs", "4")
    wait_until_it_waits(server, "disk-degraded")
    if how == "cancel":
        said(server, "jobs", "cancel", newest(server)["id"])
        assert result(command, code=5)[-1]["state"] == "cancelled"
        server.wait_metric("forebay_warm_jobs", lambda v: v == 0)
        server.wait_metric("forebay_warm_memory_bytes", lambda v: v == 0)
    elif how == "upgrade":
        upgrading.upgrade(server)
        command.communicate(timeout=60)
    else:
        server.stop() if how == "stop" else server.kill9()
        command.communicate(timeout=60)
    gate.unlink()
    if how in ("stop", "kill"):
        server.start()
    server.advance(6)
    done = ask(server, "warm", "s3://bkt/k/", "--wait", "-q")[-1]
    assert done["objects_done"] == 200 and done["objects_cached"] >= 100
    assert sum(gets(origin, keys)) <= 200 + 2 * 4

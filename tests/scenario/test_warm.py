# SPDX-License-Identifier: Apache-2.0
"""Warm jobs are interrupted at any moment, on either side, and resumed. Bytes that have arrived are
not fetched again."""

import contextlib
import json
import os
import random
import subprocess
import threading

import pytest

from client import Client, Connection
from forebay import PATIENT, scaled
from test_control import ask, said
from waiting import wait_for

MIB = 1 << 20
CALLS = 12  # calls to the admin port that only look, at once


def warm_in_the_middle(server, origin, count, dice):
    """Runs `warm --wait` as a user does. Chooses how far the origin is when it should end: at any
    object, in the middle of one."""
    env = {"PATH": os.environ["PATH"], "FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"}
    command = subprocess.Popen(
        [server.binary_path, *PATIENT, "warm", "s3://bkt/k/", "--wait", "-q", "--jobs", "8"],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    mark = origin.mark()
    enough = dice.randrange(1, max(2, count // 4))
    wait_for(
        lambda: (
            len([e for e in origin.requests(method="GET", since=mark) if e.key]) >= enough
            or command.poll() is not None
        ),
        "some objects to be asked for",
        every=0.001,
    )
    return command


def put_to_warm(origin, count):
    for i in range(count):
        origin.put(f"k/{i:04}", (20_000, 300_000, 3 * MIB)[i % 3])
    return sum(origin.version(f"k/{i:04}").size for i in range(count))


@pytest.mark.both_engines
def test_warm_resumes_after_kills_at_any_moment(start, origin, engine, figure):
    """The server is killed with kill -9 again and again. A finished object is never fetched again.
    Only bytes of the eight requests in flight that were not yet written may be."""
    dice, count, kills = random.Random(11), scaled(600, least=90), scaled(40, least=6)
    size = put_to_warm(origin, count)
    server = start(origin, engine=engine, settings={"access_log.path": "off"})
    for _ in range(kills):
        command = warm_in_the_middle(server, origin, count, dice)
        before = server.metric("forebay_cache_objects")
        server.kill9()
        command.wait(60)
        server.start()
        mark = origin.mark()
        check = ask(server, "warm", "s3://bkt/k/", "--check", "--min", "0%")[-1]
        assert check["objects_done"] >= before, "what was there is there"
        assert not [e for e in origin.requests(method="GET", since=mark) if e.key]
    done = ask(server, "warm", "s3://bkt/k/", "--wait", "-q")[-1]
    assert done["objects_done"] == count and done["objects_failed"] == 0
    server.settle()
    twice = sum(origin.sent_twice(f"k/{i:04}") for i in range(count))
    again = [
        n
        for n in (len(origin.requests(key=f"k/{i:04}", method="GET")) for i in range(count))
        if n > 1
    ]
    figure(
        f"warm, {kills} kills of the server ({engine}): {twice} of {size} "
        f"bytes sent twice, {len(again)} of {count} objects"
    )
    assert twice <= kills * 8 * 3 * MIB and len(again) <= kills * 12
    mark = origin.mark()
    assert ask(server, "warm", "s3://bkt/k/", "--wait", "-q")[-1]["bytes_fetched"] == 0
    assert not [e for e in origin.requests(method="GET", since=mark) if e.key]


def test_warm_whose_command_is_killed(start, origin, engine):
    """The command is killed at any moment and run again at once, while the first job goes on. Each
    byte is sent once."""
    dice, count = random.Random(12), scaled(600, least=120)
    size = put_to_warm(origin, count)
    server = start(origin, engine=engine, settings={"access_log.path": "off"})
    for _ in range(scaled(20, least=4)):
        command = warm_in_the_middle(server, origin, count, dice)
        command.kill()
        command.wait(60)
    done = ask(server, "warm", "s3://bkt/k/", "--wait", "-q")[-1]
    assert done["objects_done"] == count
    server.settle()
    assert sum(origin.sent_twice(f"k/{i:04}") for i in range(count)) == 0
    assert server.metric("forebay_origin_received_bytes_total") >= size


def test_warm_whose_origin_goes_away(start, origin, engine, figure):
    """The origin's connections are cut at any moment. Bodies resume where they broke, so nothing
    that has arrived is fetched again."""
    dice, count = random.Random(13), scaled(300, least=60)
    size = put_to_warm(origin, count)
    server = start(
        origin,
        engine=engine,
        settings={"access_log.path": "off", "origin.retries": 10, "origin.retry_budget": "100%"},
    )
    cuts = scaled(20, least=4)
    for _ in range(cuts):
        command = warm_in_the_middle(server, origin, count, dice)
        origin.drop_connections()
        command.wait(120)
    done = ask(server, "warm", "s3://bkt/k/", "--wait", "-q")[-1]
    assert done["objects_done"] == count and done["objects_failed"] == 0
    server.settle()
    received = server.metric("forebay_origin_received_bytes_total")
    figure(
        f"warm, {cuts} cuts of the origin ({engine}): {received} "
        f"bytes received of {size} and the listings"
    )
    assert received < size * 1.02 + 200_000 * (cuts + 1)


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("was, now", [(0, 100_000), (100_000, 0), (0, 0)])
def test_warm_of_objects_that_were_or_become_empty(start, origin, engine, was, now, listed):
    """An empty object has all of its bytes before anything is known of it. `warm` still asks for
    it, once, also if it was or becomes empty."""
    uri = "s3://bkt/k/" if listed else "s3://bkt/k/a"
    server = start(origin, engine=engine, settings={"access_log.path": "off"}, ahead_s=0)
    for size in (was, now):
        origin.put("k/a", size)
        server.advance(3600)
        done = ask(server, "warm", uri, "--wait", "-q")[-1]
        assert done["objects_done"] == 1 and done["bytes"] == done["bytes_done"] == size, done
        server.settle()
    mark = origin.mark()
    assert ask(server, "warm", uri, "--wait", "-q")[-1]["objects_cached"] == 1
    with server.client() as client:
        assert client.get("k/a").header("cache-status").endswith("hit")
    assert not origin.requests(key="k/a", method="GET", since=mark)


def test_a_server_with_many_calls_is_asked_again(start, origin):
    """If more calls wait than the server takes (32 pods that warm at once), the command waits and
    does not lose its job."""
    origin.put("a", 1000)
    origin.put("b", 1000, bucket="slow")
    server = start(origin, settings={"access_log.path": "off"})
    go = threading.Event()
    origin.fault("", "hold", (go,), times=None, bucket="slow")
    with contextlib.ExitStack() as stack:
        stack.callback(go.set)
        for _ in range(CALLS):
            stack.enter_context(Connection(server.admin_port)).send(
                b"GET /api/v1/ls?uri=s3://slow/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            )
        wait_for(
            lambda: (
                len(origin.requests(bucket="slow")) >= CALLS
                or server.metric("forebay_limit_reached_total", limit="admin-calls") > 0
            ),
            "the calls to be held",
        )
        before = server.metric("forebay_limit_reached_total", limit="admin-calls")
        env = {"PATH": os.environ["PATH"], "FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"}
        command = subprocess.Popen(
            [server.binary_path, *PATIENT, "warm", "s3://bkt/a", "--wait", "-q"],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        wait_for(
            lambda: (
                server.metric("forebay_limit_reached_total", limit="admin-calls") > before
                or command.poll() is not None
            ),
            "a refusal",
        )
        go.set()
        said = command.communicate(timeout=60)[0]
        assert command.returncode == 0 and "1 of 1 objects" in said, said


# --- what jobs hold -------------------------------------------------------------------------------

ROOM = 4 * MIB  # for names, in all jobs: a sixteenth of limits.max_buffer, and no less than this


def order(server, job=None, **more):
    """Sends POST /api/v1/warm and returns the reply."""
    body = json.dumps({**({"job": job} if job else {}), **more}).encode()
    with Client(server.admin_port) as client:
        return client.request("POST", "/api/v1/warm", [("X-Forebay-Control", "1")], body)


def test_names_of_all_jobs_together_are_bounded(start, origin, engine, tmp_path):
    """The names of all jobs together are bounded. Each new job may take half of the room that is
    left.

    A job without room gets an error with the free room and a remedy. The command prints it, waits,
    and completes even a list that is larger than the room. At the end no memory is held.
    """
    keys = [f"{i}-" + "n" * 900 for i in range(4)]
    for key in keys:
        origin.put(key, 100)
    uris = [f"s3://bkt/{keys[i % 4]}" for i in range(200)]
    names = tmp_path / "names"
    names.write_text("\n".join(uris * 25))  # 5 MB
    server = start(
        origin, engine=engine, settings={"access_log.path": "off", "limits.max_buffer": "16MiB"}
    )
    with origin.hold(None) as go:
        begun, taken = [], 0
        while (reply := order(server, uris=uris, concurrency=1, more=True)).status == 200:
            begun.append(json.loads(bytes(reply.body))["id"])
            calls = 1
            while (reply := order(server, job=begun[-1], uris=uris, more=True)).status == 200:
                calls += 1
            assert (
                reply.status == 429
                and server.metric("forebay_warm_memory_bytes", kind="names") <= ROOM
            )
            taken = max(taken, calls)
        assert reply.status == 429
        reason = json.loads(bytes(reply.body))["reason"]
        assert "of 4.0 MiB (limits.max_buffer)" in reason and "name a prefix" in reason, reason
        assert len(begun) >= 3 and 8 <= taken <= 11, (
            begun,
            taken,
        )  # about 0.2 MB each; the first has half of the room
        held = server.metric("forebay_warm_memory_bytes", kind="names")
        assert ROOM * 0.8 < held <= ROOM
        assert server.metric("forebay_limit_reached_total", limit="warm-names") >= len(begun) + 1
        env = {"PATH": os.environ["PATH"], "FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"}
        assert order(server, uris=uris[:100], concurrency=1).status in (
            200,
            429,
        )  # now less is left than the command begins with
        command = subprocess.Popen(
            [server.binary_path, *PATIENT, "warm", "-f", str(names), "--wait", "-q", "--json"],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        told = json.loads(command.stdout.readline())
        assert (
            told["type"] == "warning"
            and "waits: the names that warm jobs have yet to do" in told["reason"]
        ), told
        go.set()
    out = command.communicate(timeout=60)[0]
    assert command.returncode == 0, out[-2000:]
    assert json.loads(out.splitlines()[-1])["objects_done"] == 5000
    for kind in ("names", "objects"):
        server.wait_metric("forebay_warm_memory_bytes", lambda v: v == 0, kind=kind)
    assert [len(origin.requests(key=key, method="GET")) for key in keys] == [1] * 4


def test_objects_of_all_jobs_together_are_bounded(start, origin, engine):
    """Twenty jobs of a listing each may have 1,024 requests at once. Their objects at hand are
    bounded, each job makes progress, and all end."""
    count = scaled(20_000, least=1200)
    for i in range(count):
        origin.put(f"p/{i:05}" + "n" * 800, 10)
    server = start(
        origin,
        engine=engine,
        settings={"access_log.path": "off", "limits.max_buffer": "16MiB", "origin.connections": 16},
    )
    with origin.hold(f"p/{0:05}" + "n" * 800) as go:
        started = [ask(server, "warm", "s3://bkt/p/", "--jobs", 1024)[-1]["job"] for _ in range(20)]
        server.wait_metric("forebay_warm_memory_bytes", lambda v: v > 0, kind="objects")
        for _ in range(20):
            assert (
                server.metric("forebay_warm_memory_bytes", kind="objects") <= ROOM + 20 * 16 * 4096
            )
            assert (
                server.metric("forebay_warm_memory_bytes", kind="names") <= ROOM + 20 * 500 * 1200
            )
        go.set()
    jobs = lambda: {job["id"]: job for job in ask(server, "jobs")[:-1]}  # noqa: E731
    wait_for(lambda: all(jobs()[i]["state"] == "done" for i in started), "the end of all jobs")
    ended = jobs()
    short = [ended[i] for i in started if ended[i]["objects_done"] != count]
    why = [text.replace("n" * 800, "") for job in short for text in job["failures"]]
    assert not short, (why[:3], server.troubles())
    for kind in ("names", "objects"):
        server.wait_metric("forebay_warm_memory_bytes", lambda v: v == 0, kind=kind)


def test_a_failed_warm_job_is_a_condition_until_the_same_job_succeeds(start, origin):
    """Objects that the origin does not have are no condition. A failed object is one, until a later
    job for the same URIs succeeds."""
    server = start(origin)
    for i in range(2):
        origin.put(f"k/{i}", 10_000)
    assert ask(server, "warm", "s3://bkt/k/9", "--wait", code=4)
    assert ask(server, "warm", "s3://nowhere/k/", "--wait", code=4)
    assert ask(server, "warm", *(f"s3://bkt/typo{i}" for i in range(20)), "--wait", code=4)
    shown = said(server, "jobs")
    assert "20 failures, first s3://bkt/typo" in shown, shown
    assert "    s3://bkt/k/9: there is no such object" in shown, shown
    assert server.conditions() == set()
    origin.fault("k/1", "error", (403, "AccessDenied", "No"), times=None)
    ask(server, "warm", "s3://bkt/k/", "s3://bkt/typo", "--wait", code=5)
    server.wait_stderr("condition_begun.*warm-failed")
    ask(server, "warm", "s3://bkt/k/0", "--wait")
    assert server.conditions() == {"warm-failed"}
    origin.clear_faults()
    ask(server, "warm", "s3://bkt/k/", "s3://bkt/typo", "--wait", code=5)
    assert server.conditions() == set()
    server.wait_stderr("condition_ended.*warm-failed")


def reasons(lines):
    return {line["reason"] for line in lines if line["type"] == "warning"}


def test_a_dry_run_of_warm_says_what_the_rules_do_not_store(start, origin):
    """The dry run has the reasons, counts and exit codes of the job. Objects that their rules do
    not store are no condition, because the same job would never succeed."""
    server = start(
        origin,
        file={
            "rules": [
                {"match": "bkt/k/no/**", "cache": False},
                {"match": "bkt/k/large/**", "max_object_size": "1KiB"},
            ]
        },
    )
    for key in ("k/no/1", "k/no/2", "k/large/1", "k/yes"):
        origin.put(key, 10_000)
    dry = ask(server, "warm", "s3://bkt/k/", "--dry-run", code=5)
    assert [line["uri"] for line in dry if line["type"] == "item"] == ["s3://bkt/k/yes"]
    text = said(server, "warm", "s3://bkt/k/", "--dry-run", code=5)
    assert "of 1 of 4 objects, 3 not kept" in text, text
    ask(server, "warm", "s3://bkt/k/", "--dry-run", "--min", "25%")
    ask(server, "warm", "s3://bkt/k/yes", "--dry-run")
    one = ask(server, "warm", "s3://bkt/k/no/1", "--dry-run", code=5)
    assert one[-1]["objects_refused"] == 1 and len(reasons(one)) == 1
    assert not origin.requests("k/yes"), "a dry run fetches nothing"
    job = ask(server, "warm", "s3://bkt/k/", "--wait", code=5)
    assert reasons(dry) == reasons(job) and len(reasons(job)) == 3
    assert dry[-1]["objects_refused"] == job[-1]["objects_refused"] == 3
    origin.put("k/no-access", 100)
    origin.fault("k/no-access", "error", (403, "AccessDenied", "No"), times=None)
    ask(server, "warm", "s3://bkt/k/no-access", "--wait", code=4)
    server.wait_stderr("condition_begun.*warm-failed")
    origin.clear_faults()
    ask(server, "warm", "s3://bkt/k/no-access", "--wait")
    server.wait_stderr("condition_ended.*warm-failed")
    assert server.conditions() == set()


# --- prefixes without objects ---------------------------------------------------------------------


def warmed(server, *words, code=0):
    """Runs `warm -q --wait`. Returns its result and its warnings."""
    lines = ask(server, "warm", "-q", "--wait", *words, code=code)
    return lines[-1], [line["reason"] for line in lines if line["type"] == "warning"]


def test_a_prefix_without_objects_fails_the_warm_job(start, origin):
    """`warm --wait` ends with 4 if nothing lies below the prefix, and with 5 if it has warmed
    others. --min makes no difference. --allow-empty accepts it."""
    server = start(origin, settings={"access_log.path": "off"})
    origin.put("k/1", 10_000)
    typo = "nothing lies below s3://bkt/typo/"
    for words in ((), ("--min", "90%"), ("--min", "0%")):
        done, warnings = warmed(server, "s3://bkt/typo/", *words, code=4)
        assert done["prefixes_failed"] == 1 and len(warnings) == 1
        assert warnings[0].startswith(typo) and "--allow-empty" in warnings[0]
        assert server.conditions() == set(), "the caller's mistake"
    told = said(server, "warm", "--wait", "s3://bkt/typo/", code=4)
    assert typo in told and "objects" not in told
    done, warnings = warmed(server, "s3://bkt/k/", "s3://bkt/typo/", "--min", "50%", code=5)
    assert warnings[0].startswith(typo) and done["objects_done"] == 1
    done, warnings = warmed(server, "s3://bkt/k/", "s3://bkt/typo/", "--allow-empty")
    assert warnings == [] and done["objects"] == done["objects_done"] == 1
    warmed(server, "s3://bkt/typo/", "--allow-empty")
    begun = ask(server, "warm", "s3://bkt/typo/")[-1]["job"]
    wait_for(
        lambda: any(
            j["id"] == begun and j["failures"] and j["failures"][0].startswith(typo)
            for j in ask(server, "jobs")[:-1]
        ),
        "the job that nobody follows to name the prefix",
    )
    assert f"   {typo}" in said(server, "jobs")


def test_a_prefix_that_cannot_be_listed_fails_whatever_share_is_enough(start, origin):
    """How much lies below a prefix that was not listed is unknown, so --min cannot be met."""
    server = start(origin, settings={"access_log.path": "off"})
    origin.put("k/1", 10_000)
    done, _ = warmed(server, "s3://bkt/k/", "s3://nobody/", "--min", "10%", code=5)
    assert done["objects_done"] == 1 and done["prefixes_failed"] == 1


def test_warm_check_and_dry_run_fail_for_a_prefix_without_objects(start, origin):
    """--check and --dry-run fail for the prefix that would fail the job."""
    server = start(origin, settings={"access_log.path": "off"})
    origin.put("k/1", 10_000)
    warmed(server, "s3://bkt/k/")
    for mode in ("--check", "--dry-run"):
        lines = ask(server, "warm", mode, "s3://bkt/typo/", code=4)
        assert "100.0 %" not in said(server, "warm", mode, "s3://bkt/typo/", code=4)
        assert lines[0]["reason"].startswith("nothing lies below s3://bkt/typo/")
        ask(server, "warm", mode, "s3://bkt/k/", "s3://bkt/typo/", "--min", "50%", code=5)
        ask(server, "warm", mode, "s3://bkt/k/", "s3://bkt/typo/", "--allow-empty")


def test_a_list_without_names_fails_the_warm_job(start, origin, tmp_path):
    """A list that names nothing is as suspect as a prefix without objects. A prefix in a list
    counts as one on the command line."""
    server = start(origin, settings={"access_log.path": "off"})
    names = tmp_path / "names"
    names.write_text("# nothing yet\n\n")
    lines = ask(server, "warm", "--wait", "-f", str(names), code=4)
    assert lines[0]["reason"] == f"{names} names nothing to fetch; --allow-empty accepts that"
    assert ask(server, "jobs")[-1]["jobs"] == 0, "no job has begun"
    warmed(server, "-f", str(names), "--allow-empty")
    names.write_text("s3://bkt/typo/\n")
    assert "nothing lies below" in warmed(server, "-f", str(names), code=4)[1][0]
    warmed(server, "-f", str(names), "--allow-empty")


def test_a_listing_whose_first_or_last_page_is_empty_is_not_empty(start, origin):
    """S3 may send a page without keys although more pages follow."""

    class Sparse(origin.connection_class):
        def _xml(self, entry, xml, status=200):
            if "prefix=sparse" in entry.query and "continuation-token" not in entry.query:
                xml = (
                    "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>"
                    "AA==</NextContinuationToken></ListBucketResult>"
                )
            super()._xml(entry, xml, status)

    origin.connection_class = Sparse
    server = start(origin, settings={"access_log.path": "off"})
    origin.put("sparse/1", 10_000)
    assert warmed(server, "s3://bkt/sparse/")[0]["objects_done"] == 1
    assert "nothing lies below" in warmed(server, "s3://bkt/sparser/", code=4)[1][0]


# --- Fluid ----------------------------------------------------------------------------------------

FLUID = {
    "mounts": [
        {"mountPoint": "s3://bkt/k/", "name": "data", "path": "/data"},
        {"mountPoint": "s3://bkt", "name": "all"},
        {"mountPoint": "s3://bkt/k/deep", "path": "/data/deep/"},
    ]
}


def fluid(tmp_path, paths, config=None):
    """The environment variables of a DataLoad."""
    config = json.dumps(FLUID) if config is None else config
    file = tmp_path / f"{len(config)}-config.json"
    file.write_text(config)
    return {
        "FLUID_DATALOAD_DATA_PATH": paths,
        "FLUID_RUNTIME_CONFIG_PATH": str(file),
        "FLUID_DATALOAD_METADATA": "true",
        "FLUID_DATALOAD_PATH_REPLICAS": "1",
    }


def test_paths_of_a_fluid_dataload_are_warmed(start, origin, tmp_path):
    """A path of Fluid is a folder or a file of a mount, by its path or its name. For nested mounts
    the inner one counts."""
    keys = ("k/a", "k/ab/1", "k/ab/2", "k/abc", "k/deep/x", "other/b")
    for key in keys:
        origin.put(key, 10_000)
    server = start(origin, settings={"access_log.path": "off"})
    for paths, wanted in (
        (":/data/a::", {"k/a"}),
        ("/data/ab/:/data/deep/x", {"k/ab/1", "k/ab/2", "k/deep/x"}),
        ("/all/other", {"other/b"}),
        ("data", {"k/abc"}),
        ("/", set()),
    ):
        mark = origin.mark()
        done = ask(server, "warm", "--fluid", "--wait", "-q", **fluid(tmp_path, paths))[-1]
        assert done["objects_failed"] == 0, done
        assert {e.key for e in origin.requests(method="GET", since=mark) if e.key} == wanted, paths
    assert ask(server, "warm", "--check", "--fluid", **fluid(tmp_path, "/all"))[-1][
        "objects_done"
    ] == len(keys)


def test_invalid_paths_of_a_fluid_dataload_are_reported(start, origin, tmp_path):
    server = start(origin, settings={"access_log.path": "off"})
    for variables, code, words in (
        ({}, 2, "FLUID_DATALOAD_DATA_PATH is not set"),
        (fluid(tmp_path, "/nowhere"), 2, '"/nowhere" of FLUID_DATALOAD_DATA_PATH is in no mount'),
        (fluid(tmp_path, "/databases"), 2, "is in no mount"),
        (fluid(tmp_path, "/data/" + "x" * 5000), 2, "too long"),
        (fluid(tmp_path, "/data", "{"), 3, "config.json: "),
        (fluid(tmp_path, "/data", '{"mounts": {}}'), 3, "names no mounts"),
        (
            fluid(
                tmp_path, "/data", '{"mounts": [{"mountPoint": "hdfs://a/b", "path": "/data"}, 7]}'
            ),
            3,
            'mountPoint "hdfs://a/b" is no s3://',
        ),
        (
            {**fluid(tmp_path, "/data"), "FLUID_RUNTIME_CONFIG_PATH": str(tmp_path / "none")},
            3,
            "none",
        ),
    ):
        lines = ask(server, "warm", "--fluid", code=code, **variables)
        assert any(line["type"] == "error" and words in line["reason"] for line in lines), (
            words,
            lines,
        )

# SPDX-License-Identifier: Apache-2.0
"""Commands that stay connected to a running server: log, trace, top and scrub. They end cleanly if
the server, they themselves or their reader ends."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import time

import pytest

from client import Connection, request_bytes
from conftest import not_run
from disks import direct_works
from forebay import PATIENT, binary, parallel
from test_control import MIB, ask, read, said
from waiting import WAIT_S, wait_for

# --- log, trace -----------------------------------------------------------------------------------


class Follower:
    """A command that follows SERVER's requests. The server knows of it before the test goes on."""

    def __init__(self, server, *words):
        before = server.metric("forebay_admin_streams")
        self.child = subprocess.Popen(
            [binary(), *PATIENT, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"},
        )
        server.wait_metric("forebay_admin_streams", lambda v: v == before + 1)

    def end(self, code=0, interrupt=True, wait=WAIT_S):
        if interrupt:
            self.child.send_signal(signal.SIGINT)
        out, err = self.child.communicate(timeout=wait)
        assert self.child.returncode == code, (self.child.returncode, out, err)
        return out if code == 0 else out + err

    def ended(self, count, code=0):
        """Waits until the command ends by itself. Returns its lines as JSON, COUNT of them before
        the result."""
        lines = [json.loads(line) for line in self.end(code, interrupt=False).splitlines()]
        assert [line["type"] for line in lines] == ["item"] * count + ["result"]
        return lines


def within(server, interval_s, words, work):
    """Runs a `top` whose interval includes the whole of work(client).

    The interval may be up to one second shorter than asked for. If a busy machine made the work
    take longer, it is repeated with a longer interval.
    """
    while True:
        began = time.monotonic()
        top = Follower(server, "top", *words, "-i", str(interval_s))
        before = server.metric("forebay_http_requests_total")
        with server.client() as client:
            work(client)
            count = client.answered
        server.wait_metric("forebay_http_requests_total", lambda v: v >= before + count)
        if time.monotonic() - began < interval_s - 1:
            return top
        assert interval_s < 600, "far too slow"
        top.end()
        interval_s *= 4


def test_top_ranks_what_is_asked_for(start, origin):
    """`top` ranks keys, prefixes, buckets, clients and reasons by frequency. With --where it counts
    only matching requests."""
    server = start(
        origin,
        settings={"cache.max_object_size": "1MiB"},
        file={"rules": [{"match": "bkt/never/**", "cache": False}]},
    )
    for key in ("hot/a", "hot/b", "never/x"):
        origin.put(key, 1000)
    origin.put("large", 2 << 20)

    def refused(client):
        for _ in range(2):
            assert "detail=too-large" in client.get("large").header("cache-status")
        assert client.get("never/x").status == 200

    def six(client):
        for key in ("hot/a", "hot/b", "hot/a", "never/x", "hot/b", "hot/a"):
            assert client.get(key).status == 200

    def ranked(*words):
        """The output of `top` for three reads of hot/a, two of hot/b and one of never/x."""
        return within(server, 2, words, six).end(interrupt=False)

    result = json.loads(ranked("keys", "--json").splitlines()[-1])
    assert [(row["name"], row["requests"], row["bytes"]) for row in result["rows"]] == [
        ("bkt/hot/a", 3, 3000),
        ("bkt/hot/b", 2, 2000),
        ("bkt/never/x", 1, 1000),
    ], result
    assert result["requests"] == 6 and result["dropped"] == 0 and result["exit"] == 0
    assert [row["over"] for row in result["rows"]] == [0, 0, 0] and not result["is_full"]
    text = ranked("prefixes")
    assert re.search(r" 5 .* bkt/hot/\n.* 1 .* bkt/never/\n$", text), text
    assert re.search(r" 6 .* bkt\n$", ranked("buckets"))
    assert re.search(r" 6 .* 127.0.0.1\n$", ranked("clients"))
    text = ranked("reasons")
    assert re.search(r" 1 .* rule: a rule says cache: false: change it", text), text
    text = within(server, 2, ["reasons"], refused).end(interrupt=False)
    assert re.search(r" 2 .* too-large: raise cache.max_object_size", text), text
    assert re.search(r" 1 .* rule: a rule says cache: false", text), text
    text = within(server, 2, ["keys", "--where", "unstored=too-large"], refused)
    text = text.end(interrupt=False)
    assert "bkt/large" in text and "never" not in text, text
    lines = server.access_log(wait_for=lambda e: e.get("key") == "large")
    assert {line.get("unstored") for line in lines if line.get("key") == "large"} == {"too-large"}
    text = ranked("keys", "--where", "result=bypass")
    assert "bkt/never/x" in text and "hot" not in text, text
    assert "no such field" in said(server, "top", "keys", "--where", "kye=a", code=2)
    assert "one of keys" in said(server, "top", "sizes", code=2)
    server.wait_metric("forebay_admin_streams", lambda v: v == 0)


def test_top_is_bounded(start, origin):
    """With more keys than `top` can count, the frequent ones are listed, with the largest possible
    error. Further watchers are refused."""
    origin.put("hot", 10)
    server = start(origin, settings={"cache.ttl": "1h"})
    held = [Follower(server, "top", "keys", "--json", "-i", "3600") for _ in range(3)]
    assert "too many clients watch already; try again later" in said(server, "top", "keys", code=1)
    for one in held:
        one.end()

    def many(client):
        for i in range(1800):
            client.get("hot" if i % 3 == 0 else f"cold/{i}")

    result = json.loads(
        within(server, 12, ("keys", "--json"), many).end(interrupt=False, wait=700).splitlines()[-1]
    )
    first = result["rows"][0]
    assert result["is_full"] and first["name"] == "bkt/hot" and len(result["rows"]) == 50, result
    assert first["requests"] - first["over"] <= 600 <= first["requests"] + result["dropped"], (
        first,
        result["dropped"],
    )


def test_log_shows_the_requests_that_its_filter_selects(forebay, origin):
    """`log` shows only the requests that its filter selects."""
    for key in ("a", "b c", 'q"'):
        origin.put(key, MIB)
    every = Follower(forebay, "log", "--json", "-n", "4")
    misses = Follower(
        forebay,
        "log",
        "--where",
        "result=miss and not key=a",
        "--fields",
        "key,status,result,checksums",
        "-n",
        "2",
    )
    fast = Follower(forebay, "log", "--where", "ttfb>100s or bytes>1GiB or status=777")
    with forebay.client() as client:
        for key in ("a", "a", "b c", 'q"'):
            assert client.get(key).status == 200
            forebay.settle()
    assert misses.end(interrupt=False) == 'b c\t200\tmiss\t-\nq"\t200\tmiss\t-\n'
    text = every.end(interrupt=False)
    assert not re.search(r"[0-9][.][0-9]*(0000000|9999999)", text), (
        text
    )  # numbers as the log has them
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["key"] for line in lines[:-1]] == ["a", "a", "b c", 'q"'] and lines[-1][
        "lines"
    ] == 4
    assert [line["result"] for line in lines[:-1]] == ["miss", "hit", "miss", "miss"]
    assert fast.end() == ""
    forebay.wait_metric("forebay_admin_streams", lambda v: v == 0)
    # Each member of a line is a field.
    for name, value in lines[0].items():
        if name != "type":
            assert "no such field" not in said(
                forebay, "log", "-n", "1", "--where", f"{name}~x y", code=2
            ), name
    assert "no such field: kye; fields are" in said(forebay, "log", "--where", "kye=a", code=2)


def test_log_prints_the_fields_that_it_is_asked_for(forebay, origin):
    """`--fields` takes the names of `--where`, in the same units, and refuses others with all that
    it takes."""
    origin.put("a", MIB)
    follower = Follower(forebay, "log", "--fields", "key,ttfb_ms,ttfb", "-n", "1")
    with forebay.client() as client:
        assert client.get("a").status == 200
    key, milliseconds, seconds = follower.end(interrupt=False).split()
    assert key == "a" and float(seconds) == pytest.approx(float(milliseconds) / 1000), seconds
    for names, bad in (("bogus", "bogus"), ("key,ttfbms", "ttfbms"), ("key,", ""), ("", "")):
        text = " ".join(said(forebay, "log", "--fields", names, code=2).split())
        assert f"--fields: no such field: {bad}; fields are ts, id, " in text, text


def test_log_without_an_access_log_on_many_workers(start, origin):
    """`log` works without an access log, on many workers. After its end the server has no
    follower."""
    server = start(
        origin, settings={"access_log.path": "off", "access_log.format": "s3", "workers": 4}
    )
    origin.put("a", 100)
    text = Follower(server, "log", "-n", "40")

    def one(worker):
        with server.client() as client:
            for _ in range(5):
                assert client.get("a").status == 200

    parallel(8, one)
    lines = text.end(interrupt=False).splitlines()
    assert len(lines) == 40 and all(
        " GetObject bkt/a" in line and " 200 " in line for line in lines
    )
    last = Follower(server, "log", "--json")
    server.stop()
    told = last.end(6, interrupt=False)
    assert '"exit":6' in told and "has ended" in told


def test_a_slow_follower_learns_how_many_lines_it_missed(start, origin):
    """A follower that does not read holds up nobody. Others see each line, and the lines that did
    not fit are counted and reported to it."""
    server = start(origin, settings={"workers": 1})
    origin.put("a", 10)
    slow = Connection(server.admin_port)
    slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    slow.send(request_bytes("GET", "/api/v1/log", "127.0.0.1"))
    assert slow.read_head().header("content-type") == "application/x-ndjson"
    with server.client() as client:
        agent = [("User-Agent", "x" * 8000)]
        wait_for(
            lambda: (
                [client.get("a", headers=agent) for _ in range(200)]
                and server.metric("forebay_limit_reached_total", limit="live-log")
            ),
            "a line that does not fit",
        )
        sent = server.metric("forebay_http_requests_total", op="GetObject", code="200")
        quick = Follower(server, "log", "-n", "20", "--json")
        for _ in range(20):
            assert client.get("a").status == 200
        assert quick.ended(20)[-1]["dropped"] == 0
    text = b""
    with server.client() as client:
        while b'"dropped":' not in text:
            client.get("a")
            text += slow.sock.recv(1 << 20)
    while not text.endswith(b"\n\r\n"):
        text += slow.sock.recv(1 << 20)
    assert 0 < int(text.split(b'"dropped":')[1].split(b"}")[0]) < sent + 1000
    slow.close()
    server.wait_metric("forebay_admin_streams", lambda v: v == 0)


def test_the_number_of_followers_is_limited(forebay, origin):
    """At most four commands follow at once. A further one gets an error, and probes and `status`
    still work."""
    held = [Follower(forebay, "log") for _ in range(4)]
    assert "too many clients watch already; try again later" in said(forebay, "log", code=1)
    assert forebay.admin("/livez").status == 200 and ask(forebay, "status")[-1]["ready"]
    for one in held:
        one.end()
    forebay.wait_metric("forebay_admin_streams", lambda v: v == 0)


def test_trace_shows_where_the_time_went(forebay, origin):
    """Each phase has its time: the wait for the origin and the body, which names its source if it
    has one."""
    origin.put("x/a", 3 * MIB)
    origin.put("y", 10)
    by_key = Follower(forebay, "trace", "s3://bkt/x/a", "-n", "2")
    by_prefix = Follower(forebay, "trace", "s3://bkt/x/", "-n", "2", "--json")
    by_id = Follower(forebay, "trace", "step-7", "-n", "1", "--json")
    failed = Follower(forebay, "trace", "s3://bkt/none", "-n", "1")
    with forebay.client() as client:
        assert client.get("none").status == 404
        assert client.get("y").status == 200
        assert client.get("x/a", headers=[("x-request-id", "step-7")]).status == 200
        forebay.settle()
        assert client.get("x/a").status == 200
    miss, hit = by_key.end(interrupt=False).split("\n\n")[0].split("GetObject")[1:]
    assert (
        " 200 s3://bkt/x/a miss" in miss
        and "3.0 MiB from origin" in miss
        and "0 of 3 blocks" in miss
    )
    assert re.search(r"waited for the origin +[0-9.]+ ms  1 attempt(, id .*)?\n", miss), miss
    assert " 200 s3://bkt/x/a hit" in hit and "3 of 3 blocks" in hit and "from origin" not in hit
    assert "waited for the origin" not in hit
    error = failed.end(interrupt=False)
    assert "waited for the origin" in error and " from " not in error, error
    assert [line["key"] for line in by_prefix.ended(2)[:-1]] == ["x/a", "x/a"]
    assert by_id.ended(1)[0]["request_id"] == "step-7"


# --- top ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["interrupt", "gone"])
def test_top_redraws_one_screen_on_a_terminal(start, origin, end):
    """`top` cuts its frames to the size of the terminal, and does not change the terminal's
    settings."""
    server = start(origin)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["FOREBAY_ADMIN"] = f"http://127.0.0.1:{server.admin_port}"
        os.read(0, 1)  # until its size is set
        os.execv(binary(), [str(binary()), *PATIENT, "top"])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 8, 30, 0, 0))
    before = termios.tcgetattr(terminal)
    os.write(terminal, b"\n")
    clear, seen = b"\x1b[H\x1b[J", b""
    while seen.count(clear) < 3:
        assert select.select([terminal], [], [], WAIT_S)[0], seen
        seen += os.read(terminal, 65536)
    frame = seen.split(clear)[2].replace(b"\r", b"")
    assert frame.startswith(b"forebay ") and frame.count(b"\n") == 7, frame
    assert all(len(line) <= 30 for line in frame.split(b"\n")), frame
    if end == "gone":
        server.stop()
    else:
        os.write(terminal, b"\x03")
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == (6 if end == "gone" else 0)
    assert termios.tcgetattr(terminal) == before
    os.close(terminal)


def test_top_is_one_frame_where_there_is_no_terminal(forebay, origin):
    origin.put("a", MIB)
    read(forebay, "a", "a")
    text = said(forebay, "top")
    assert (
        "\x1b" not in text
        and "ready" in text.splitlines()[0]
        and "hit%" in text
        and "cache [" in text
    )
    result = ask(forebay, "top", "--once")[-1]
    assert [(row["name"], row["requests"], row["hits"]) for row in result["buckets"]] == [
        ("bkt", 2, 1)
    ]
    assert result["keys"] == [] and result["reasons"] == []


def test_top_shows_the_rest_where_keys_are_not_counted(start):
    """A server counts keys for three clients at once. The next one still gets figures."""
    server = start()
    held = [Follower(server, "top", "keys", "--json", "-i", "3600") for _ in range(3)]
    env = {**os.environ, "FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"}
    told = subprocess.run(
        [binary(), *PATIENT, "top", "--once"], env=env, capture_output=True, text=True
    )
    assert told.returncode == 0 and "too many clients" in told.stderr, told
    assert "cache [" in told.stdout and "key, since" not in told.stdout
    for one in held:
        one.end()


# --- scrub (what it finds: test_store.py) ---------------------------------------------------------


def test_scrub_starts_a_round_and_reports_it(start, origin, tmp_path):
    """`scrub` starts a round of the server. The round outlives its command, the next command joins
    it, and it can be cancelled."""
    if not direct_works(tmp_path):
        not_run("no direct I/O on this file system")
    server = start(origin, settings={"cache.size": "64MiB", "workers": 1})
    assert ask(server, "scrub", "--status")[-1]["state"] == "none"
    assert "nothing was verified" in said(server, "scrub", "--status")
    for i in range(12):
        origin.put(f"k{i}", MIB)
    read(server, *(f"k{i}" for i in range(12)))
    server.durable()  # the data to verify no longer changes
    wait_for(lambda: ask(server, "scrub", "-q")[-1]["runs"], "a full segment")
    rounds = ask(server, "scrub", "--status")[-1]["round"]
    child = subprocess.Popen(
        [binary(), *PATIENT, "scrub", "--rate", "1KiB/s"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"},
    )
    wait_for(lambda: ask(server, "scrub", "--status")[-1]["state"] == "running", "the round")
    child.kill()
    child.wait()
    now = ask(server, "scrub", "--status")[-1]
    assert now["state"] == "running" and now["rate"] == 1024 and now["round"] == rounds + 1
    assert ask(server, "scrub", "--cancel")[-1]["round"] == rounds + 1
    wait_for(lambda: "cancelled: " in said(server, "scrub", "--cancel"), "its end")
    said(server, "scrub", "--status", code=1)
    done = ask(server, "scrub", "--rate", "10GiB/s")[-1]
    assert (
        done["state"] == "done"
        and done["round"] == rounds + 2
        and done["bad_runs"] == 0
        and done["rate"] == 0
    )
    assert (
        done["segments_done"] == done["segments"] > done["segments_left_out"] and done["runs"] > 0
    )
    assert f"{done['runs']} runs, 0 bad" in said(server, "scrub", "-q")

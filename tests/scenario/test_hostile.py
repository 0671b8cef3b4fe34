# SPDX-License-Identifier: Apache-2.0
"""The control interface and the commands withstand hostile input.

The input has numbers at the end of their range, bodies of the wrong kind, malformed lists, endless
listings and names that are not text. No process dies, no command reports success falsely, and
nothing is hidden.
"""

import contextlib
import http.client
import http.server
import json
import os
import subprocess
import threading

import pytest

from client import Connection
from forebay import PATIENT, binary, run_forebay, scaled
from test_control import ask, said
from waiting import WAIT_S, wait_for

OLD_S = 30  # age of a job that is older than any job of a server that has just started


def post(server, path, body):
    """Returns status and answer for a body sent as it is."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    with Connection(server.admin_port) as connection:
        connection.send(
            b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            b"X-Forebay-Control: 1\r\nContent-Length: %d\r\n\r\n%s"
            % (path.encode(), len(body), body)
        )
        reply = connection.read_reply()
        return reply.status, json.loads(bytes(reply.body))


def piped(server, text, *words, code):
    """Runs a command with TEXT (bytes) on a pipe, and returns its output."""
    got = subprocess.run(
        [binary(), *words],
        input=text,
        capture_output=True,
        timeout=WAIT_S,
        env={"PATH": os.environ["PATH"], "FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"},
    )
    assert got.returncode == code, (words, text[:40], got.returncode, got.stdout, got.stderr)
    return (got.stdout + got.stderr).decode()


@pytest.mark.parametrize("key", ["k", "empty", "missing"])
def test_ranges_behind_every_object(start, origin, key):
    """A range beyond the end of every object causes no overflow. It is refused, or selects
    nothing."""
    server = start(origin, settings={"workers": 1})
    origin.put("k", 3 << 20)
    origin.put("empty", 0)
    for first in (2**63, 2**64 - 16 * 2**20, 2**64 - 16, 2**64 - 2, 2**64 - 1, 2**64, 10**30):
        for text in (f"{first}-", f"{first}-{first}"):
            assert (
                post(server, "/api/v1/warm", {"uris": [{"uri": f"s3://bkt/{key}", "range": text}]})[
                    0
                ]
                == 400
            )
            assert server.admin(f"/api/v1/explain?uri=s3://bkt/{key}&range={text}").status == 400
    for text in (f"{2**63 - 1}-", f"{2**62}-{2**64 - 1}", f"{2**63 - 1}-{2**63 - 1}"):
        assert (
            post(server, "/api/v1/warm", {"uris": [{"uri": f"s3://bkt/{key}", "range": text}]})[0]
            == 200
        )
        assert server.admin(f"/api/v1/explain?uri=s3://bkt/{key}&range={text}").status == 200
    wait_for(
        lambda: all(job["state"] == "done" for job in ask(server, "jobs")[:-1]),
        "the end of all jobs",
    )


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"uris": None},
        {"uris": "s3://bkt/k"},
        {"uris": {"uri": "s3://bkt/k"}},
        {"uris": [["s3://bkt/k"]]},
        {"uris": [{"uri": "s3://bkt/k", "rnage": "0-1"}]},
        {"uris": [{"uri": "s3://bkt/k", "range": "0-1", "more": True}]},
        {"uris": ["s3://bkt/k"], "more": "yes"},
        {"uris": ["s3://bkt/k"], "more": 1},
    ],
)
def test_a_warm_body_of_the_wrong_kind_is_refused(start, origin, body):
    """A warm body of the wrong kind is refused. It never starts an empty job, or a job larger than
    the request."""
    server = start(origin)
    status, answer = post(server, "/api/v1/warm", body)
    assert status == 400 and answer["reason"]
    assert ask(server, "jobs")[-1]["jobs"] == 0


def test_a_job_that_is_closed_takes_no_more(start, origin):
    """A closed job refuses further names instead of dropping them: it has all of its names, was
    cancelled, or has ended."""
    server = start(origin)
    origin.put("k", 10)
    more = {"uris": ["s3://bkt/k"], "job": 1}
    with origin.hold("k"):
        assert post(server, "/api/v1/warm", {"uris": ["s3://bkt/k"]})[0] == 200
        assert post(server, "/api/v1/warm", more) == (
            503,
            {
                "status": "refused",
                "reason": "the job accepts no more URIs: it was closed or cancelled",
            },
        )
    wait_for(lambda: ask(server, "jobs")[0]["state"] == "done", "the end of the job")
    assert post(server, "/api/v1/warm", more)[0] == 503
    assert post(server, "/api/v1/warm", {"uris": [], "more": True})[0] == 200
    said(server, "jobs", "cancel", 2)
    assert post(server, "/api/v1/warm", {**more, "job": 2})[0] == 503


def test_malformed_lists_are_reported_as_such(forebay, origin, tmp_path):
    """A malformed list is reported as what it is. It is never taken for an empty one, or for its
    first name."""
    origin.put("a", 10)
    origin.put("b", 10)
    warm = ["warm", "--wait", "-f", "-"]
    assert "line 1: it has a NUL" in piped(forebay, b"s3://bkt/a\0s3://bkt/b\0", *warm, code=1)
    assert "line 2: it has a NUL" in piped(forebay, b"s3://bkt/a\ns3://bkt/b\0\n", *warm, code=1)
    assert "line 1: it is too long" in piped(
        forebay, b"s3://bkt/" + b"y" * 9000 + b"\n", *warm, code=1
    )
    assert "Is a directory" in said(forebay, "warm", "--wait", "-f", tmp_path, code=1)
    good = b"\xef\xbb\xbfs3://bkt/a\r\n#" + b"x" * 9000 + b" s3://bkt/c\n\n  s3://bkt/b"
    assert "2 of 2 objects" in piped(forebay, good, *warm, code=0)


def test_a_list_longer_than_a_job_takes_at_once(start, origin, tmp_path):
    """If a list is longer than a job takes at once, the command waits. It ends when the job is
    cancelled."""
    server = start(origin, file={"rules": [{"match": "none/**", "cache": False}]})
    count = scaled(1_000_000, 200_000)
    names = b"".join(b"s3://none/%07d\n" % i for i in range(count))
    piped(server, names, "warm", "-f", "-", code=0)
    wait_for(lambda: ask(server, "jobs")[0]["state"] == "done", "the end of the job", 120)
    job = ask(server, "jobs")[0]
    assert job["objects"] == job["objects_refused"] == count
    (tmp_path / "list").write_bytes(b"".join(b"s3://bkt/%07d\n" % i for i in range(70_000)))
    with origin.hold(None):
        process = subprocess.Popen(
            [binary(), "warm", "-f", tmp_path / "list"],
            stderr=subprocess.PIPE,
            env={"FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"},
        )
        try:
            wait_for(
                lambda: ask(server, "jobs")[1:-1] and ask(server, "jobs")[1]["objects"] >= 64_000,
                "a full job",
            )
            assert process.poll() is None
            said(server, "jobs", "cancel", 2)
            assert (
                "accepts no more URIs" in process.communicate(timeout=WAIT_S)[1].decode()
                and process.returncode == 1
            )
        finally:
            process.kill()


def test_circular_listings_end(start, origin):
    """Listings that go in a circle (A, B, C, A, ...) are detected within a dozen pages, by commands
    and by a job."""

    class Circle(origin.connection_class):
        def _list(self, entry):
            self.token = entry.query.pop("continuation-token", None)
            super()._list(entry)

        def _xml(self, entry, xml, status=200):
            after = {None: "A", "A": "B", "B": "C", "C": "A"}[self.token]
            more = f"<NextContinuationToken>{after}</NextContinuationToken><IsTruncated>true<"
            super()._xml(entry, xml.replace("<IsTruncated>false<", more), status)

    def pages():
        return [entry for entry in origin.requests(since=mark) if "list-type" in entry.query]

    origin.connection_class = Circle
    server = start(origin)
    origin.put("k", 10)
    for words, code in (("ls", 4), ("du", 4), ("evict", 4)):
        mark = origin.mark()
        assert "circle" in said(
            server, words, "s3://bkt/p*" if words == "evict" else "s3://bkt/", code=code
        )
        assert 4 <= len(pages()) <= 12
    mark = origin.mark()
    assert any(
        "circle" in line.get("reason", "")
        for line in ask(server, "warm", "s3://bkt/", "--wait", code=5)
    )
    assert 4 <= len(pages()) <= 12


def test_no_key_hides_a_request(start, origin):
    """A NUL in a key hides its request neither from the log nor from the trace."""
    server = start(origin)
    env = {"PATH": os.environ["PATH"], "FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"}
    words = (
        ["log", "-n", "2"],
        ["log", "--fields", "key,status", "-n", "2"],
        ["log", "--json", "-n", "2"],
        ["trace", "s3://bkt/n*", "-n", "2"],
    )
    followers = [
        subprocess.Popen([binary(), *line], stdout=subprocess.PIPE, text=True, env=env)
        for line in words
    ]
    try:
        with server.client() as client:

            def have_ended():  # a follower that begins between two requests shows the next two
                for target in ("/bkt/n%00hidden", "/bkt/n"):
                    assert client.request("GET", target).status == 404
                return all(follower.poll() is not None for follower in followers)

            wait_for(have_ended, "followers that have shown two requests")
        told = [follower.communicate(timeout=WAIT_S)[0] for follower in followers]
    finally:
        for follower in followers:
            follower.kill()
    for text in (told[0], told[1], told[3]):
        assert "n\\x00hidden" in text
    assert {json.loads(line).get("key") for line in told[2].splitlines()} == {
        "n\0hidden",
        "n",
        None,
    }


def test_a_key_that_is_not_text_can_be_evicted(start, tmp_path):
    """A key that is not valid text is evicted below its prefix by its own bytes. The key that
    spells its percent coding stays."""
    folder = tmp_path / "o" / "bkt" / "p"
    folder.mkdir(parents=True)
    for name in (b"\xff\xfe", b"%FF%FE", b"a b"):
        (folder / os.fsdecode(name)).write_bytes(b"x" * 1000)
        os.utime(folder / os.fsdecode(name), (1_600_000_000, 1_600_000_000))
    server = start(f"dir:{tmp_path}/o", ahead_s=5)  # a file younger than two seconds is not kept
    with server.client() as client:
        for target in ("/bkt/p/%FF%FE", "/bkt/p/%25FF%25FE", "/bkt/p/a%20b"):
            assert client.request("GET", target).status == 200
    server.settle()
    rows = ask(server, "ls", "s3://bkt/p/")[:-1]
    assert sorted((row["key"], row["coded"], row["cached_bytes"]) for row in rows) == [
        ("p/%FF%FE", False, 1000),
        ("p/%FF%FE", True, 1000),
        ("p/a b", False, 1000),
    ]
    assert ask(server, "evict", "s3://bkt/p/")[-1]["objects"] == 3
    assert [row["cached_bytes"] for row in ask(server, "ls", "s3://bkt/p/", "--all")[:-1]] == [
        0,
        0,
        0,
    ]
    for coded in ("s3://bkt/%zz", "s3://bkt/", "s3://", "", 5):
        assert post(server, "/api/v1/evict", {"uris": [{"coded": coded}]})[0] == 400


class Gate(http.server.ThreadingHTTPServer):
    """An HTTP relay to the admin port of SERVER. While it is closed, requests wait at it."""

    daemon_threads = True

    def __init__(self, server):
        super().__init__(("127.0.0.1", 0), AtGate)
        self.forebay = server
        self.changed = threading.Condition()
        self.is_open = True
        self.waiting = 0  # requests that have arrived and have not passed
        self.answers = []  # bodies that have passed

    def close_until_one_waits(self):
        with self.changed:
            self.is_open = False
            assert self.changed.wait_for(lambda: self.waiting, WAIT_S), "nobody asks"

    def open(self):
        with self.changed:
            self.is_open = True
            self.changed.notify_all()

    def pass_one(self):
        with self.changed:
            self.waiting += 1
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.is_open, WAIT_S)
            self.waiting -= 1


class AtGate(http.server.BaseHTTPRequestHandler):
    """One request at a gate."""

    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.pass_one()
        port = self.server.forebay.admin_port
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as onward:
            onward.request(self.command, self.path, body, dict(self.headers))
            reply = onward.getresponse()
            answer = reply.read()
        self.server.answers.append(answer)
        self.send_response(reply.status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_GET

    def log_message(self, *_):
        """Logs nothing."""


@contextlib.contextmanager
def gate_to(server):
    with Gate(server) as gate:
        threading.Thread(target=gate.serve_forever, daemon=True).start()
        yield gate
        gate.shutdown()


def test_the_job_of_another_server_is_not_followed(start, origin):
    """A command does not follow the job of another server. After a kill and a restart, the same
    number may belong to a different job."""
    server = start(origin, ahead_s=0)
    origin.put("mine", 10)
    origin.put("theirs", 10)
    with origin.hold("mine"), origin.hold("theirs"), gate_to(server) as gate:
        process = subprocess.Popen(
            [binary(), *PATIENT, "warm", "--wait", "s3://bkt/mine"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"FOREBAY_ADMIN": f"http://127.0.0.1:{gate.server_port}"},
        )
        try:
            wait_for(lambda: ask(server, "jobs")[-1]["jobs"] == 1, "the job")
            server.advance(OLD_S)
            wait_for(
                lambda: any(json.loads(a).get("elapsed_s", 0) >= OLD_S for a in gate.answers),
                "the command to see how old the job is",
            )
            gate.close_until_one_waits()
            server.kill9()
            server.start()
            assert post(server, "/api/v1/warm", {"uris": ["s3://bkt/theirs"]})[1]["id"] == 1
            gate.open()
            said_last = process.communicate(timeout=WAIT_S)
            assert "server has restarted" in said_last[1] and process.returncode == 1, said_last
        finally:
            process.kill()


def test_hanging_listings_do_not_block_other_commands(start, origin):
    """Listings that hang at the origin use up only the admin calls for commands that look; more of
    them get 429. Commands that cancel a job or drain still work."""
    server = start(origin, settings={"workers": 1, "shutdown.grace": "1s"})
    origin.put("k", 10)
    with origin.hold(None):
        assert post(server, "/api/v1/warm", {"uris": ["s3://bkt/k"]})[0] == 200
        asked = [Connection(server.admin_port) for _ in range(14)]
        for connection in asked:
            connection.send(b"GET /api/v1/ls?uri=s3://bkt/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        refused = [connection for connection in asked[12:] if connection.read_reply().status == 429]
        assert len(refused) == 2
        assert post(server, "/api/v1/loglevel", {"level": "info"})[0] == 200
        said(server, "jobs", "cancel", 1)
        assert post(server, "/api/v1/drain", {})[0] == 200
        assert server.process.wait(WAIT_S) == 0
        for connection in asked:
            connection.close()
    server.stop()


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"short\n",
        b"\xef\xbb\xbf" + b"a" * 32,
        b"a" * 32 + b"\n" + b"b" * 32,
        b"a" * 20 + b"\0" + b"b" * 20,
        b"a" * 600,
    ],
)
def test_check_reads_the_token_file(start, origin, tmp_path, token):
    """`check` reads the token file as the start does, which would refuse it."""
    path = tmp_path / "token"
    path.write_bytes(token)
    path.chmod(0o600)
    got = run_forebay(
        "check",
        "--admin.token_file",
        path,
        "--origin.endpoint",
        origin.endpoint,
        "--origin.region",
        "us-east-1",
    )
    assert got.returncode == 3 and "one line of 16 to 512 printable characters" in got.stderr
    server = start(origin, run=False, settings={"admin.token_file": path})
    server.expect_failure = True
    server.spawn()
    assert server.wait_exit() != 0
    path.write_bytes(b"a" * 32 + b"\r\n")
    assert (
        run_forebay(
            "check",
            "--admin.token_file",
            path,
            "--origin.endpoint",
            origin.endpoint,
            "--origin.region",
            "us-east-1",
        ).returncode
        == 0
    )

# SPDX-License-Identifier: Apache-2.0
"""The options -q, -v and --no-color, which every command takes, and other options in front of a
command."""

import contextlib
import json
import os
import pty
import re
import subprocess

import pytest

from client import Connection
from forebay import Forebay, binary, run_forebay
from test_commands import COMMANDS
from upgrading import Successor, adopt_orphans
from waiting import WAIT_S, wait_for


def admin_of(server):
    return f"http://127.0.0.1:{server.admin_port}"


def rest_of(terminal):
    """Reads until the other end is closed, which the terminal reports as an error; then closes."""
    seen = b""
    with contextlib.suppress(OSError):
        while piece := os.read(terminal, 4096):
            seen += piece
    os.close(terminal)
    return seen


# --- where they stand -----------------------------------------------------------------------------


@pytest.mark.parametrize("front", [["-q"], ["--no-color", "-v"]])
def test_every_command_takes_them_on_either_side(front):
    """Every command takes these options before and after its name. Without a server or
    configuration each command ends at once; serve and run would not."""
    env = {
        "FOREBAY_ADMIN": "unix:/dev/null/none/socket",
        "FOREBAY_CONFIG": "/dev/null/none/forebay.yaml",
    }
    for name in COMMANDS:
        words = {
            "config": ["schema"],
            "completion": ["bash"],
            "keys": ["new", "me"],
            "run": ["--", "true"],
            "support": ["-o", "-"],
            "profile": ["/dev/null/none"],
            "prepare": ["/dev/null/none/x"],
            "loglevel": ["info"],
            "top": ["--once"],
            "jobs": ["cancel", "1"],
            "plan": ["--dataset", "1GB", "--cache", "1GB"],
            "pins": [],
            "log": [],
            "help": [],
        }
        operand = (
            []
            if name
            in (
                "serve",
                "check",
                "env",
                "doctor",
                "bench",
                "status",
                "stats",
                "scrub",
                "reload",
                "drain",
                "upgrade",
                "version",
            )
            else ["s3://bkt/key"]
        )
        rest = words.get(name, operand)
        before = run_forebay(*front, name, *rest, env=env)
        behind = run_forebay(name, *front, *rest, env=env)
        assert before.returncode == behind.returncode and before.returncode != 2, (
            name,
            before,
            behind,
        )
        assert "no such option" not in before.stderr + behind.stderr
        if name not in ("keys", "support"):  # their output is never the same twice
            assert before.stdout == behind.stdout, name


@pytest.mark.parametrize(
    "words, code, line",
    [
        (
            ["--admin", "127.0.0.1:1", "status"],
            6,
            "forebay status: no server answers at 127.0.0.1:1",
        ),
        (
            ["--admin=127.0.0.1:1", "--timeout", "1", "-q", "status"],
            6,
            "forebay status: no server answers at 127.0.0.1:1",
        ),
        (["-c", "/dev/null/none", "check"], 3, "/dev/null/none: "),
        (["--timeout", "x", "status"], 2, 'forebay status: --timeout is a number, not "x"'),
        (["--json", "cat", "s3://b/k"], 2, "forebay cat: --json: cat does not take it, but"),
        (["-c", "x", "version"], 2, "forebay version: -c: version does not take it, but"),
        (["--admin"], 2, "forebay: --admin needs a value: ADDRESS"),
        (
            ["--admin", "status"],
            2,
            'forebay: no command follows the options, because "status" is the value of --admin; ',
        ),
        (["-q"], 2, "forebay: no command follows the options; `forebay help` lists them"),
        (["-q", "status", "-q"], 2, "forebay status: -q is given twice; remove one"),
        (["-v", "status", "-q"], 2, "forebay status: -q or -v, not both"),
        (["-q=", "status"], 2, "forebay status: -q has no value"),
        (["status", "-qv"], 2, "forebay status: -qv: no such option"),
        (["-qv", "status"], 2, "forebay: -qv: not an option that may precede a command"),
        (
            ["-v", "--cache.size", "1GiB", "serve"],
            2,
            "forebay: --cache.size: not an option that may precede a command",
        ),
        (["-v", "--", "status"], 2, "forebay: --: not an option that may precede a command"),
        (["-v", ""], 2, "forebay: : no such command"),
        (["-c", "-q", "status"], 2, 'forebay: -c needs a value: FILE; "-q" is an option'),
        (
            ["status", "--admin", "--timeout"],
            2,
            'forebay status: --admin needs a value: ADDRESS; "--timeout" is an option',
        ),
        (
            ["keys", "new", "me", "--allow", "-q"],
            2,
            'forebay keys: --allow needs a value: BUCKET[/PREFIX][:OPS]; "-q" is an option',
        ),
        # A value stays a value, unless it is an option of the command.
        (["log", "--where", "-x", "--admin", "127.0.0.1:1"], 6, "forebay log: no server answers"),
        (["log", "--where=-v", "--admin", "127.0.0.1:1"], 6, "forebay log: no server answers"),
        (["--admin=-v", "status"], 6, "forebay status: no server answers at -v"),
    ],
)
def test_mistakes_in_front_of_a_command_give_one_line(words, code, line):
    """A mistake in front of a command gives a message of one line."""
    got = run_forebay(*words)
    assert (got.returncode, got.stdout) == (code, "") and got.stderr.startswith(line), got


def test_results_are_the_same_in_front():
    """Common options have the same effect in front of a command as after it."""
    assert run_forebay("--json", "version").stdout == run_forebay("version", "--json").stdout
    assert run_forebay("-q", "-h").stdout == run_forebay("help").stdout
    assert run_forebay("--no-color", "--version").stdout == run_forebay("version").stdout
    told = run_forebay("help").stdout
    for flag in (
        "-q",
        "-v",
        "--no-color",
        "-c FILE",
        "--admin ADDRESS",
        "--timeout SECONDS",
        "--json",
    ):
        assert f"  {flag}" in told, flag


def test_a_command_behind_run_keeps_its_own(origin, tmp_path):
    """Options after `run`'s own command belong to that command."""
    env = {
        "AWS_ENDPOINT_URL_S3": origin.endpoint,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_EC2_METADATA_DISABLED": "true",
        "HOME": str(tmp_path),
    }
    got = run_forebay("-q", "run", "--", "printf", "%s ", "-q", "-v", "--json", env=env)
    assert (got.returncode, got.stdout, got.stderr) == (0, "-q -v --json ", "")
    got = run_forebay("run", "-v", "--", "true", env=env)
    assert got.returncode == 0 and re.search(
        rf"forebay run: http://127.0.0.1:\d+ answers from {tmp_path}", got.stderr
    ), got.stderr


# --- what they do ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [["status"], ["top", "--once"], ["env"], ["check", "--live"], ["doctor"], ["jobs"]],
    ids=" ".join,
)
def test_commands_find_the_server_by_a_configuration_that_is_not_valid(
    start, origin, tmp_path, words
):
    """A command that only asks a running server needs no more of the configuration than where its
    admin port is. It warns of the errors elsewhere in the file."""
    server = start(origin)
    file = tmp_path / "a.yaml"
    address = f"127.0.0.1:{server.admin_port}"
    file.write_text(f"cache: {{sise: 1GiB}}\nadmin: {{socket: off, listen: '{address}'}}\n")
    got = run_forebay(*words, env={"FOREBAY_CONFIG": str(file)})
    assert got.returncode == 0 and got.stdout, got
    assert f'{file}:1:9: error: unknown key "cache.sise"' in got.stderr
    assert "warning: only the admin address of this configuration is used" in got.stderr
    got = run_forebay("env", "--cache.sise=1", env={"FOREBAY_CONFIG": str(file)})
    assert got.returncode == 3 and "only the admin address" not in got.stderr, got


def test_without_a_readable_file_commands_look_at_the_default_address(start, origin, tmp_path):
    """They find the server there, but change nothing: the user may mean another server."""
    server = start(origin)
    env = {
        "FOREBAY_CONFIG": str(tmp_path / "none.yaml"),
        "FOREBAY_ADMIN_LISTEN": f"127.0.0.1:{server.admin_port}",
        "FOREBAY_ADMIN_SOCKET": "off",
    }
    got = run_forebay("status", env=env)
    assert got.returncode == 0 and "none.yaml: error: cannot be read" in got.stderr, got
    assert "warning: looking for the server without that file" in got.stderr
    got = run_forebay("pin", "s3://bkt/a", env=env)
    assert got.returncode == 3 and "name the server with --admin" in got.stderr, got
    assert "nothing is pinned" in run_forebay("pins", env=env).stdout
    got = run_forebay("pin", "s3://bkt/a", "--admin", admin_of(server), env=env)
    assert got.returncode == 0, got


def test_c_says_where_the_server_is(start, origin, tmp_path):
    """-c names the file of the server to commands that ask one, too."""
    server = start(origin)
    file = tmp_path / "a.yaml"
    file.write_text(f"admin: {{socket: off, listen: '127.0.0.1:{server.admin_port}'}}\n")
    for words in (["status", "-c", file], ["-c", file, "pins"], ["env", "-c", file]):
        got = run_forebay(*words)
        assert got.returncode == 0, got


def test_v_says_what_is_asked(start, origin, tmp_path):
    """-v prints each request that a command sends."""
    server = start(origin)
    got = run_forebay("status", "--json", "-v", env={"FOREBAY_ADMIN": admin_of(server)})
    assert got.returncode == 0 and json.loads(got.stdout.splitlines()[-1])["type"] == "result"
    assert f"forebay: GET /api/v1/summary at {admin_of(server)}: 200\n" in got.stderr
    file = tmp_path / "a.yaml"
    file.write_text(
        json.dumps({"admin": {"socket": "off", "listen": f"127.0.0.1:{server.admin_port}"}})
    )
    got = run_forebay("-v", "status", env={"FOREBAY_CONFIG": str(file)})
    assert got.stderr.splitlines()[:2] == [
        f"forebay: configuration: {file}",
        f"forebay: GET /api/v1/summary at 127.0.0.1:{server.admin_port}: 200",
    ]
    got = run_forebay("-v", "check", "--live", "-c", file)
    assert f"forebay: GET /livez at 127.0.0.1:{server.admin_port}: 200" in got.stderr
    # A refusal shows its status. Repeated polls are printed once. A secret is never printed.
    got = run_forebay("-v", "explain", "x://", env={"FOREBAY_ADMIN": admin_of(server)})
    assert got.returncode == 2
    got = run_forebay(
        "-v",
        "stats",
        "-i",
        "1",
        "-n",
        "2",
        env={"FOREBAY_ADMIN": admin_of(server), "FOREBAY_ADMIN_TOKEN": "canary"},
    )
    assert got.returncode == 0 and "canary" not in got.stderr
    assert len(got.stderr.splitlines()) == len(set(got.stderr.splitlines())) >= 1, got.stderr
    got = run_forebay("-v", "status", env={"FOREBAY_ADMIN": "unix:/a\x1b]0;b"})
    assert (
        "GET /api/v1/summary at unix:/a\\x1b]0;b: no answer" in got.stderr
        and "\x1b" not in got.stderr
    )


def test_q_leaves_errors_and_warnings(start, origin):
    """-q leaves errors and warnings."""
    assert "may do nothing yet" in run_forebay("keys", "new", "me").stderr
    assert run_forebay("keys", "new", "me", "-q").stderr == ""
    server = start(origin)
    env = {"FOREBAY_ADMIN": admin_of(server)}
    assert "add --any-keys" in run_forebay("env", env=env).stderr
    assert run_forebay("env", "-q", env=env).stderr == ""
    got = run_forebay("-q", "evict", "s3://bkt/a*b", "--allow-empty", env=env)
    assert got.returncode == 0 and "warning: s3://bkt/a*b: the * inside" in got.stderr
    assert "no server answers" in run_forebay("-q", "status", "--admin", "127.0.0.1:1").stderr


@pytest.mark.parametrize("quiet", [False, True])
def test_q_shows_no_progress(start, origin, quiet):
    """-q prints no progress. Without -q a terminal gets it five times a second, so the test holds
    the job until some was seen. With -q, until its request has arrived."""
    server = start(origin)
    origin.put("a", 1000)
    main, child = pty.openpty()
    seen = b""
    with origin.hold("a") as go:
        command = subprocess.Popen(
            [binary(), "warm", "s3://bkt/a", "--wait", *["-q"] * quiet],
            stdout=subprocess.PIPE,
            stderr=child,
            env={**server.env, "FOREBAY_ADMIN": admin_of(server)},
            text=True,
        )
        os.close(child)
        origin.wait_for(1, key="a")
        while not quiet and b"objects" not in seen:
            seen += os.read(main, 4096)
        go.set()
    assert "1 of 1 objects" in command.communicate(timeout=WAIT_S)[0] and command.returncode == 0
    seen += rest_of(main)
    assert (seen == b"") == quiet, seen


@pytest.mark.parametrize(
    "words, variables, coloured",
    [
        ([], {}, True),
        (["--no-color"], {}, False),
        ([], {"NO_COLOR": "1"}, False),
    ],
)
def test_no_color_switches_colours_off(words, variables, coloured, tmp_path):
    """--no-color and the environment turn colours off."""
    main, child = pty.openpty()
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "FOREBAY_ORIGIN_ENDPOINT": f"dir:{tmp_path}",
        **variables,
    }
    command = subprocess.Popen(
        [binary(), "doctor", *words], stdout=child, stderr=subprocess.DEVNULL, env=env
    )
    os.close(child)
    seen = rest_of(main)
    command.wait(WAIT_S)
    assert b"green" in seen and (b"\x1b[" in seen) == coloured, seen


def test_status_on_a_terminal_shows_critical_conditions_in_red(start):
    """On a terminal, `status` colours a critical condition, unless told otherwise."""
    server = start(
        "http://127.0.0.1:1",
        settings={"origin.retries": 0, "origin.region": "us-east-1", "origin.probe": "true"},
    )
    server.wait_stderr("origin_unreachable")
    for words, variables, word in (
        ([], {}, b"\x1b[1;31mcritical\x1b[0m origin-unreachable"),
        (["--no-color"], {}, b"  critical origin-unreachable"),
        ([], {"NO_COLOR": "1"}, b"  critical origin-unreachable"),
    ):
        main, child = pty.openpty()
        env = {**server.env, **variables, "FOREBAY_ADMIN": admin_of(server)}
        command = subprocess.Popen([binary(), "status", *words], stdout=child, env=env)
        os.close(child)
        seen = rest_of(main)
        assert command.wait(WAIT_S) == 1 and word in seen, seen


class Worded(Forebay):
    """A server with extra words after its settings. A server with -q names no port, so the test
    asks its socket."""

    words = ()

    def command(self):
        return [*super().command(), *self.words]

    def _wait_ready(self, wait):
        admin = f"unix:{self.folder}/admin"
        wait_for(
            lambda: run_forebay("check", "--live", "--admin", admin).returncode == 0,
            self.output,
            wait,
        )
        # A path alone is a socket, too, as in admin.socket.
        path = f"{self.folder}/admin"
        told = run_forebay("env", "--shell", "dotenv", "-q", "--admin", path).stdout
        self.port = int(re.search(r"AWS_ENDPOINT_URL_S3=\"?http://127.0.0.1:(\d+)", told).group(1))

    def level(self):
        with Connection(None, path=f"{self.folder}/admin") as connection:
            connection.send(b"GET /api/v1/config HTTP/1.1\r\nHost: localhost\r\n\r\n")
            settings = json.loads(connection.read_reply().body)["settings"]
        return next(row["value"] for row in settings if row["key"] == "log.level")


@pytest.mark.parametrize(
    "words, level",
    [
        (["-q"], "warn"),
        (["-v"], "debug"),
        ([], "info"),
        (["-q", "--log.level", "info"], "info"),
        (["-v", "--log.level=error"], "error"),
    ],
)
def test_serve(tmp_path, origin, words, level):
    """With -q, serve prints neither the start-up lines nor informational log lines, before and
    after an upgrade."""
    server = Worded(
        tmp_path,
        origin,
        settings={
            "admin.listen": "off",
            "admin.socket": tmp_path / "admin",
            "access_log.path": "off",
        },
        env={"FOREBAY_LOG_LEVEL": "error"},
    )
    if not words:
        server.env["FOREBAY_LOG_LEVEL"] = "info"
    server.words = words
    adopt_orphans(True)
    try:
        server.start()
        assert server.level() == level
        got = run_forebay("upgrade", "--json", "--admin", f"unix:{tmp_path}/admin")
        assert got.returncode == 0, (got.stdout, server.output())
        old = server.process
        assert old.wait(WAIT_S) == 0
        server.process = Successor(json.loads(got.stdout.splitlines()[-1])["next_pid"], old)
        assert server.level() == level
        with server.client() as client:
            assert client.get("absent").status == 404
        server.stop()
    finally:
        server.kill9()
        adopt_orphans(False)
    text = "\n".join(server.stderr)
    assert ("listening" in text) == ("-q" not in words), text
    assert ("event=started" in text or '"event":"started"' in text) == (
        level in ("info", "debug")
    ), text
    if words == ["-q"]:
        assert "info" not in text, text

# SPDX-License-Identifier: Apache-2.0
"""`doctor` finds each fault that a test plants. It names a remedy, returns the right exit code and
ends within a bounded time."""

import datetime
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from conftest import not_run
from forebay import KEYS, PATIENT, binary, build_kind, parallel, run_forebay
from origin import Origin
from ports import free_ports

ACCESS, SECRET = next(iter(KEYS.items()))
ENV = {
    "AWS_ACCESS_KEY_ID": ACCESS,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Report:
    def __init__(self, done, took_s):
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert rows[-1]["type"] == "result" and rows[-1]["exit"] == done.returncode, done.stderr
        assert all(row["remedy"] for row in rows[:-1] if row["state"] != "green")
        self.exit, self.rows, self.took_s = done.returncode, rows[:-1], took_s

    def find(self, check, state):
        """Returns the findings of that check and state, with their remedies, as one text."""
        return "\n".join(
            f"{row['found']} -> {row['remedy']}"
            for row in self.rows
            if (row["check"], row["state"]) == (check, state)
        )

    @property
    def red(self):
        return {row["check"] for row in self.rows if row["state"] == "red"}


@pytest.fixture
def doctor(tmp_path, origin):
    """doctor(*arguments, env=..., **settings) returns a report on settings that are right except
    for these. Servers that answer have plenty of time, unless the arguments say otherwise."""

    def make(*arguments, env=None, **settings):
        if not any(word.startswith("--timeout") for word in arguments):
            arguments = ("--timeout=30", *arguments)
        flags = {
            "origin.endpoint": origin.endpoint,
            "origin.region": "us-east-1",
            "cache.dir": tmp_path / "cache",
            "cache.size": "1GiB",
            "cache.min_free": "0%",
            "listen": "127.0.0.1:0",
            "admin.listen": "off",
            "workers": 2,
        }
        flags.update({name.replace("__", "."): value for name, value in settings.items()})
        words = [f"--{name}={value}" for name, value in flags.items()]
        began = time.monotonic()
        done = run_forebay("doctor", *arguments, "--json", *words, env={**ENV, **(env or {})})
        return Report(done, time.monotonic() - began)

    return make


def hurried(report_of, is_right):
    """Gives peers that never answer one second. If a busy machine makes others exceed it, they get
    more."""
    for timeout_s in (1, 5, 15):
        report = report_of(f"--timeout={timeout_s}")
        assert report.took_s < 20 * timeout_s
        if is_right(report):
            break
    return report


def test_all_checks_pass_where_nothing_is_wrong(doctor, origin):
    origin.put("a", 100)
    report = doctor()
    assert not report.red and report.exit == 0, report.rows
    assert "LIST, HEAD and ranged GET work" in report.find("rights", "green")
    assert {
        "configuration",
        "directory",
        "engine",
        "origin",
        "clock",
        "credentials",
        "exposure",
    } <= {row["check"] for row in report.rows}


def test_doctor_leaves_nothing_behind(doctor, tmp_path):
    doctor()
    assert not (tmp_path / "cache").exists()
    (tmp_path / "cache").mkdir()
    doctor()
    assert not list((tmp_path / "cache").iterdir())


def test_all_checks_pass_next_to_a_running_server(start, origin, doctor):
    server = start(origin)
    report = doctor(
        cache__dir=server.cache,
        listen=f"127.0.0.1:{server.port}",
        admin__listen=f"127.0.0.1:{server.admin_port}",
    )
    assert "in use by a running server" in report.find("directory", "green")
    assert "by the running server" in report.find("port", "green")
    assert "the running server is well" in report.find("server", "green")
    assert not report.red


def test_doctor_without_settings_uses_those_of_a_running_server(start, origin, tmp_path):
    """Without settings, the server at the configured admin address looks, with its own settings and
    environment. --local does not ask it."""
    origin.put("a", 100)
    server = start(origin)
    env = {
        "FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}",
        "HOME": str(tmp_path),
    }
    done = run_forebay("doctor", env=env)
    assert f"the server at {env['FOREBAY_ADMIN']} looks for what is wrong" in done.stderr
    assert f"{server.cache}: in use by a running server" in done.stdout, done.stdout
    assert "LIST, HEAD and ranged GET work" in done.stdout and done.returncode == 0
    rows = [
        json.loads(line)
        for line in run_forebay("doctor", "--json", env=env).stdout.split("\n")[:-1]
    ]
    assert {row["state"] for row in rows[:-1]} <= {"green", "yellow"} and rows[-1]["exit"] == 0
    assert all(bool(row["remedy"]) == (row["state"] != "green") for row in rows[:-1])
    origin.stop()
    assert run_forebay("doctor", env=env).returncode == 4
    own = run_forebay("doctor", "--local", "--origin.endpoint", "http://127.0.0.1:1", env=env)
    assert "looks for what is wrong" not in own.stderr and str(server.cache) not in own.stdout


def test_output_for_people_has_one_line_for_each_finding():
    done = run_forebay("doctor", "--cache.ttl=5", env=ENV)
    assert done.returncode == 3
    assert done.stdout.startswith(
        'red    configuration --cache.ttl: error: "5" needs a unit (5s?)\n                     -> '
    )
    assert done.stdout.endswith("\n0 green, 0 yellow, 1 red\n")


# --- this host ------------------------------------------------------------------------------------


def test_a_bad_keys_file(doctor, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("- id: x\n")
    keys.chmod(0o600)
    report = doctor(auth__mode="verify", auth__keys_file=keys)
    assert report.exit == 3 and "a key needs a secret" in report.find("configuration", "red")


def test_a_port_that_is_taken(doctor):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        report = doctor(listen="127.0.0.1:%d" % taken.getsockname()[1])
    assert report.exit == 1 and "Address already in use" in report.find("port", "red")


def test_an_address_of_nobody(doctor):
    report = doctor(
        listen="192.0.2.1:9000",
        listen_plaintext="network",
        auth__mode="open",
        auth__allow_open_network="true",
    )
    assert "no interface has that address" in report.find("port", "red")
    exposed = report.find("exposure", "yellow")
    assert "plain HTTP over a network" in exposed
    assert "reads, writes and deletes whatever Forebay's keys may" in exposed


def test_a_directory_that_cannot_be_one(doctor, tmp_path):
    (tmp_path / "file").write_text("x")
    report = doctor(cache__dir=tmp_path / "file" / "cache")
    assert report.exit == 1 and "cannot be opened" in report.find("directory", "red")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis").write_text("x")
    assert "not a Forebay cache" in doctor(cache__dir=tmp_path / "home").find("directory", "red")


def test_a_cache_larger_than_its_file_system(doctor):
    report = doctor(cache__size="1EiB")
    assert report.exit == 1 and "cache.size is 1EiB, the file system has" in report.find(
        "size", "red"
    )
    disk = os.statvfs("/tmp")
    report = doctor(cache__size=disk.f_blocks * disk.f_frsize - (1 << 20))
    assert report.exit == 0 and "has room for" in report.find("size", "yellow")


def test_memory_is_no_disk(doctor):
    if not os.access("/dev/shm", os.W_OK) or b"tmpfs" not in subprocess.check_output(
        ["stat", "-fc", "%T", "/dev/shm"]
    ):
        not_run("/dev/shm is no tmpfs")
    assert "it is memory" in doctor(cache__dir=f"/dev/shm/forebay-test-{os.getpid()}").find(
        "file system", "yellow"
    )


def test_few_open_files_and_many_workers(tmp_path, origin):
    words = [
        f"--{name}={value}"
        for name, value in {
            "origin.endpoint": origin.endpoint,
            "cache.dir": tmp_path / "cache",
            "workers": 64,
            "listen": "127.0.0.1:0",
        }.items()
    ]
    done = subprocess.run(
        [binary(), "doctor", "--json", *words],
        env={**os.environ, **ENV},
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (2000, 2000)),
        timeout=60,
    )
    found = Report(done, 0).find("limits", "yellow")
    assert "2000 open files" in found
    if len(os.sched_getaffinity(0)) < 32:
        assert "64 workers on" in found


# --- clients --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "env, state, words",
    [
        (
            {
                "AWS_ENDPOINT_URL": "http://127.0.0.1:9000",
                "AWS_WEB_IDENTITY_TOKEN_FILE": "/x",
            },
            "yellow",
            "AWS_ENDPOINT_URL moves STS",
        ),
        ({"AWS_ENDPOINT_URL_S3": "https://127.0.0.1:9"}, "red", "say http://"),
        (
            {"AWS_ENDPOINT_URL_S3": "https://127.0.0.1:9000"},
            "yellow",
            "export AWS_ENDPOINT_URL_S3=http://127.0.0.1:9",
        ),
        (
            {"AWS_ENDPOINT_URL_S3": "http://localhost:9000"},
            "yellow",
            "say http://127.0.0.1",
        ),
        (
            {"http_proxy": "http://proxy:3128", "no_proxy": "localhost,.local"},
            "yellow",
            "export no_proxy=127.0.0.1,$no_proxy",
        ),
        (
            {
                "http_proxy": "http://proxy:3128",
                "no_proxy": "localhost, 127.0.0.1",
                "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9",
            },
            "green",
            "",
        ),
        (
            {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"},
            "yellow",
            "export AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=false",
        ),
    ],
)
def test_clients_of_this_environment(doctor, env, state, words):
    found = doctor(listen="127.0.0.1:9", env=env).find("clients", state)
    assert found and words in found


def test_an_endpoint_of_clients_that_is_not_the_origin(origin, tmp_path):
    """`doctor` says that nothing but `run` takes the origin from the variable of S3 clients, unless
    it leads to the server of these settings, or an origin is set."""
    flags = [
        f"--cache.dir={tmp_path}/cache",
        "--listen=127.0.0.1:9",
        "--admin.listen=off",
    ]
    aws = "--origin.endpoint=https://127.0.0.1:1"

    def found(url, *more):
        env = {**ENV, "AWS_ENDPOINT_URL_S3": url}
        words = (*PATIENT, "--json", *flags, "--origin.proxy=http://127.0.0.1:1", *more)
        return Report(run_forebay("doctor", *words, env=env), 0).find("origin", "yellow")

    told = found(origin.endpoint)
    assert "AWS_ENDPOINT_URL_S3 names an endpoint, and only `forebay run`" in told
    assert '--origin.endpoint "$AWS_ENDPOINT_URL_S3"' in told
    assert not found("http://127.0.0.1:9/") and not found(origin.endpoint, aws)


def test_clients_whose_profile_names_an_endpoint(doctor, tmp_path):
    """The endpoint that the profile gives clients is shown with its source."""
    profiles = tmp_path / "profiles"
    profiles.write_text("[default]\nendpoint_url = http://127.0.0.1:9\n")
    found = doctor(listen="127.0.0.1:9", env={"AWS_CONFIG_FILE": str(profiles)})
    assert "http://127.0.0.1:9 (profile default)" in found.find("clients", "green")


@pytest.mark.parametrize(
    "listen, url, is_green",
    [
        ("127.0.0.1:9", "http://127.0.0.1:9/", True),
        ("0.0.0.0:9", "http://127.0.0.2:9", True),
        ("0.0.0.0:9", "http://192.0.2.1:9", False),
        ("0.0.0.0:9", "http://[::1]:9", False),
        ("[::]:9", "http://[::ffff:127.0.0.1]:9", True),
        ("[::]:9", "http://127.0.0.1:9", True),
        ("[::1]:9", "http://[0:0:0:0:0:0:0:1]:9", True),
        ("0.0.0.0:9", f"http://{socket.gethostname()}:9", True),
        ("127.0.0.1:9", "http://127.0.0.1:10", False),
        ("127.0.0.1:9", "http://127.0.0.1", False),
        ("127.0.0.1:80", "http://127.0.0.1", True),
        ("127.0.0.1:9", None, False),
    ],
)
def test_clients_that_go_past_the_server_are_found_without_one(doctor, listen, url, is_green):
    """The endpoint of clients is compared with the addresses on which a server would listen, by
    whatever name or address of this host."""
    if socket.gethostname() in (url or ""):
        try:
            socket.getaddrinfo(socket.gethostname(), 9)
        except OSError:
            not_run("the name of this host does not resolve")
    open_network = {
        "auth__mode": "open",
        "auth__allow_open_network": "true",
        "listen_plaintext": "network",
    }
    report = doctor(listen=listen, env={"AWS_ENDPOINT_URL_S3": url} if url else {}, **open_network)
    assert bool(report.find("clients", "green")) == is_green, report.rows
    if not is_green:
        own = listen.replace("0.0.0.0", "127.0.0.1")
        assert f"-> export AWS_ENDPOINT_URL_S3=http://{own}" in report.find("clients", "yellow")


# --- a running server -----------------------------------------------------------------------------


def free_address():
    return "127.0.0.1:%d" % free_ports(1)[0]


def env_of(server, tmp_path):
    return {
        "FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}",
        "HOME": str(tmp_path),
    }


def asked(*words, env):
    """Returns the report of a command without settings, with its text for people on stderr."""
    done = run_forebay("doctor", *PATIENT, "--json", *words, env=env)
    return Report(done, 0), done.stderr


def test_clients_are_checked_in_the_environment_of_the_command(start, origin, tmp_path):
    """A server that looks with its own settings says nothing of clients, which do not run in its
    environment. The command checks them in its own."""
    server = start(origin, env={"AWS_ENDPOINT_URL_S3": "https://server.example"})
    env = {**env_of(server, tmp_path), "AWS_ENDPOINT_URL_S3": "https://command.example"}
    report, _ = asked(env=env)
    assert "https://command.example" in report.find("clients", "yellow") and not report.red
    assert "https://server.example" not in str(report.rows)
    env["AWS_ENDPOINT_URL_S3"] = f"http://127.0.0.1:{server.port}"
    report, _ = asked(env=env)
    assert report.find("clients", "green") and not report.red and report.exit == 0
    kept = json.loads(server.admin("/api/v1/doctor").body)
    assert kept["exit"] == 0 and "clients" not in {row["check"] for row in kept["findings"]}


def test_clients_that_go_past_the_running_server(start, origin, tmp_path):
    """Clients that ask the store, nobody or AWS get a yellow finding with the address of the server
    that looks. Another Forebay is none of these."""
    server, other = start(origin), start(origin)
    for url in (origin.endpoint, "http://127.0.0.1:1", None):
        env = {
            **env_of(server, tmp_path),
            **({"AWS_ENDPOINT_URL_S3": url} if url else {}),
        }
        report, _ = asked(env=env)
        found = report.find("clients", "yellow")
        assert f"-> export AWS_ENDPOINT_URL_S3=http://127.0.0.1:{server.port}" in found
        assert url is None or url in found
    env["AWS_ENDPOINT_URL_S3"] = f"http://127.0.0.1:{other.port}"
    report, _ = asked(env=env)
    assert "a Forebay answers there" in report.find("clients", "green")


def test_named_buckets_are_tried_by_the_running_server(start, origin, tmp_path):
    origin.put("a", 100)
    server = start(origin)
    report, said = asked("bkt", "nowhere", env=env_of(server, tmp_path))
    assert "looks for what is wrong" in said
    assert "bkt: LIST, HEAD and ranged GET work" in report.find("rights", "green")
    assert report.exit == 4 and "no such bucket" in report.find("rights", "red")
    report, _ = asked("--", "--origin.endpoint=http://127.0.0.1:1", env=env_of(server, tmp_path))
    assert report.red == {"rights"}, report.rows  # it is a name of a bucket, and no option
    assert server.admin("/api/v1/doctor").body.find(b"nowhere") == -1  # no report is kept of names


def test_a_server_that_ends_while_it_looks_is_named_with_the_cause(start, origin, tmp_path):
    """The finding was "it sent no report", whatever had happened."""
    server = start(origin)
    env = env_of(server, tmp_path)
    mark = origin.mark()

    def ask(i):
        if i == 0:
            return asked(env=env)[0]
        origin.wait_for(1, since=mark, method="HEAD")
        server.kill9()
        return None

    with origin.hold(None, method="HEAD"):
        report = parallel(2, ask)[0]
    assert "it closed the connection without a report" in report.find("server", "red")


def test_doctors_that_ask_a_server_at_once_wait_for_each_other(start, origin, tmp_path):
    """The second one was red: "a doctor is under way"."""
    origin.put("a", 100)
    server = start(origin)
    env = env_of(server, tmp_path)
    mark = origin.mark()

    def ask(i):
        if i < 3:
            return asked(*[[], ["bkt"], []][i], env=env)[0]
        origin.wait_for(1, since=mark, method="HEAD")
        server.wait_metric("forebay_admin_connections", lambda n: n >= 4)  # one is its own
        held.set()
        return None

    with origin.hold(None, method="HEAD") as held:
        reports = parallel(4, ask)
    for report in reports[:3]:
        assert not report.red and report.exit == 0, report.rows


@pytest.mark.parametrize("words", [[], ["bkt"]])
def test_without_a_server_the_settings_in_use_are_named_first(tmp_path, words):
    file = tmp_path / "forebay.yaml"
    file.write_text("origin:\n  endpoint: http://127.0.0.1:1\n")
    env = {"FOREBAY_ADMIN": "127.0.0.1:1", "FOREBAY_CONFIG": str(file), **ENV}
    _, said = asked(*words, env=env)
    assert said == (
        "forebay doctor: no server answers at 127.0.0.1:1; checking the settings of this command: "
        f"{file}, origin http://127.0.0.1:1\n"
    )


@pytest.mark.parametrize("has_token", [False, True])
def test_a_server_that_does_not_let_the_command_in(start, origin, tmp_path, has_token):
    """The doctor names the token that the server wants, and does not check other settings in
    place of the server's."""
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("0123456789abcdef")
    access = {
        "trust_loopback": "false",
        **({"token_file": str(token)} if has_token else {}),
    }
    server = start(origin, settings={f"admin.{name}": value for name, value in access.items()})
    file = tmp_path / "forebay.yaml"
    address = {"socket": "off", "listen": f"127.0.0.1:{server.admin_port}"}
    file.write_text(json.dumps({"admin": {**access, **address}}))
    env = {"FOREBAY_CONFIG": str(file), "HOME": str(tmp_path)}
    report, _ = asked(env=env)
    assert report.red == {"server"} and report.exit == 1, report.rows
    assert {row["check"] for row in report.rows} == {"server", "clients"}, report.rows
    told = report.find("server", "red")
    assert f"the server at 127.0.0.1:{server.admin_port} was not checked: " in told
    assert "set FOREBAY_ADMIN_TOKEN to the content of admin.token_file" in told
    assert (str(token) in told) == has_token and "--local" in told
    if has_token:
        report, _ = asked(env={**env, "FOREBAY_ADMIN_TOKEN": token.read_text()})
        assert not report.red and report.find("directory", "green"), report.rows


def test_admin_may_precede_doctor(start, origin):
    server = start(origin)
    done = run_forebay("--admin", f"127.0.0.1:{server.admin_port}", *PATIENT, "doctor")
    assert f"the server at 127.0.0.1:{server.admin_port} looks" in done.stderr


def test_a_server_whose_cache_directory_was_removed(start, origin, tmp_path):
    """The server notices it although it only serves hits. Its own ports are no finding. The
    condition names the cause, and the restart that ends it, and so does the directory's row."""
    origin.put("k", 1 << 20)
    server = start(origin, settings={"listen": free_address(), "admin.listen": free_address()})
    with server.client() as client:
        assert client.get("k").status == 200
        server.wait_metric("forebay_cache_blocks", lambda v: v > 0)
        shutil.rmtree(server.cache)
        server.wait_condition("disk-degraded")
        assert client.get("k").status == 200
    report, _ = asked(env=env_of(server, tmp_path))
    assert report.red == {"server", "directory"}, report.rows
    found = report.find("server", "red")
    assert "was removed while the server used it" in found and "-> restart" in found
    found = report.find("directory", "red")
    assert "stores nothing there" in found and "-> restart the server" in found, found
    assert report.find("port", "green").count("in use by the running server") == 2


def test_a_cache_directory_that_was_read_only_at_the_start(start, origin, tmp_path):
    from disks import LoopDisk

    with LoopDisk(tmp_path / "disk", 64 << 20) as disk:
        (disk.mount / "cache").mkdir()
        if not disk.remount("ro"):
            not_run("no read-only remount")
        server = start(
            origin,
            cache=disk.mount / "cache",
            settings={
                "cache.size": "32MiB",
                "cache.optional": "true",
                "listen": free_address(),
            },
        )
        report, _ = asked(env=env_of(server, tmp_path))
        server.stop()
    assert report.red == {"directory", "server"}, report.rows
    found = report.find("server", "red")
    assert "could not be used at the start" in found and "Read-only file system" in found
    assert "repair it" in found and "restart" in found


def test_a_second_server_for_the_same_directory(start, origin, doctor):
    """A configuration that cannot start next to a running server is red: it has the same cache
    directory, or the same ports."""
    server = start(origin, settings={"listen": free_address(), "admin.listen": free_address()})
    listen, admin = (f"127.0.0.1:{port}" for port in (server.port, server.admin_port))
    report = doctor(cache__dir=server.cache, admin__listen=free_address(), listen=listen)
    assert report.red == {"directory", "port"} and report.exit == 1, report.rows
    assert "in use by another process" in report.find("directory", "red")
    report = doctor(listen=listen, admin__listen=admin)
    assert report.red == {"port"} and not report.find("server", "green"), report.rows
    report = doctor(cache__dir=server.cache, listen=listen, admin__listen=admin)
    assert not report.red, report.rows


def test_a_disk_that_hangs(doctor, tmp_path):
    """`doctor` ends although the kernel holds every write of the file system, and says which check
    did not come back."""
    from disks import LoopDisk

    if shutil.which("fsfreeze") is None:
        not_run("no fsfreeze")
    with LoopDisk(tmp_path / "disk", 64 << 20) as disk:
        if subprocess.run(["fsfreeze", "-f", disk.mount], capture_output=True).returncode:
            not_run("no frozen file system")
        try:
            report = doctor("--timeout=1", cache__dir=disk.mount / "cache", cache__size="32MiB")
        finally:
            subprocess.run(["fsfreeze", "-u", disk.mount], check=True)
    assert "did not come back" in report.find("disk", "red"), report.rows
    assert report.find("directory", "green") and report.find("origin", "green")


@pytest.mark.parametrize("trusts", [True, False])
def test_a_server_whose_reload_was_refused(start, origin, tmp_path, trusts):
    """The condition has the line of the error, and the remedy names the file. The doctor checks the
    host, the origin and the buckets of the configuration that the server runs with, although the
    file is not valid."""
    origin.put("a", 100)
    buckets = [
        {"name": "data", "origin": "s3://bkt"},
        {"name": "gone", "origin": "s3://nowhere"},
    ]
    settings = {
        "admin.socket": tmp_path / "admin.sock",
        "admin.trust_loopback": str(trusts).lower(),
    }
    server = start(origin, file={"cache": {"ttl": "5s"}, "buckets": buckets}, settings=settings)
    file = server.folder / "forebay.yaml"
    file.write_text("cache:\n  ttl: 5\n")
    server.process.send_signal(signal.SIGHUP)
    server.wait_condition("reload-refused")
    files = min(20000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])  # fewer than the defaults
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (files, files))
    env = {} if trusts else {"FOREBAY_ADMIN": f"unix:{settings['admin.socket']}"}
    report, _ = asked(env={**env_of(server, tmp_path), **env})
    assert f"{file}:2:8: error: " in report.find("configuration", "red") and report.exit == 3
    found = report.find("server", "yellow")
    assert f"former configuration is in force: {file}:2:8: error: " in found, report.rows
    assert f"forebay check -c {file} " in found
    assert report.find("configuration", "green") and report.find("clients", "yellow")
    assert f"{files} open files" in report.find("limits", "green"), report.rows
    assert f"{server.cache}: in use by a running server" in report.find("directory", "green")
    assert "bkt: LIST, HEAD and ranged GET work" in report.find("rights", "green"), report.rows
    assert "nowhere: " in report.find("rights", "red")


# --- the origin -----------------------------------------------------------------------------------


def test_an_origin_that_is_down(doctor, origin):
    origin.down()
    report = doctor()
    assert (
        report.exit == 4
        and report.red == {"origin"}
        and "nothing listens there" in report.find("origin", "red")
    )


def test_an_origin_without_a_name(doctor):
    report = doctor("--timeout=5", origin__endpoint="http://no-such-name.invalid")
    assert report.exit == 4 and report.took_s < 20
    assert "cannot be resolved" in report.find(
        "origin", "red"
    ) or "no answer in time" in report.find("origin", "red")


def test_an_origin_that_speaks_the_other_scheme(doctor, origin):
    report = doctor(origin__endpoint=origin.endpoint.replace("http:", "https:"))
    origin.stop()
    origin.violations.clear()  # TLS on a plain port is not HTTP
    assert report.exit == 4 and "say http://" in report.find("origin", "red")


def test_an_origin_that_closes_connections_gets_the_remedy_of_its_condition(doctor, origin):
    """A store that answered a minute ago does not want TLS now. Its remedy is that of the condition
    origin-unreachable."""
    for how in ("close", "reset"):
        origin.clear_faults()
        origin.fault(None, how, times=None)
        found = doctor().find("origin", "red")
        assert "it closes the connection without an answer" in found, found
        assert "if it answered before, check the store and load balancers" in found


def test_an_origin_that_never_answers(doctor):
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen()
        report = doctor(
            "--timeout=1",
            origin__endpoint="http://127.0.0.1:%d" % hole.getsockname()[1],
        )
    assert (
        report.exit == 4
        and "no answer in time" in report.find("origin", "red")
        and report.took_s < 20
    )


def test_a_signed_request_that_hangs(doctor, origin):
    origin.put("a", 100)
    with origin.hold("a"):
        report = hurried(
            lambda timeout: doctor("bkt", timeout),
            lambda report: report.red == {"rights"},
        )
    assert report.exit == 4 and report.red == {"rights"}


def test_an_origin_that_answers_late(start, origin, tmp_path):
    """The doctor waits as long for an answer as the server does. It waited for 2 s and said that a
    firewall may be in between, although reads succeeded."""
    origin.put("a", 100)
    server = start(origin, settings={"origin.first_byte_timeout": "60s"})
    origin.delay_s = 4.0
    report, _ = asked("bkt", env=env_of(server, tmp_path))
    origin.delay_s = 0.0
    assert "answers after 4." in report.find("origin", "yellow"), report.rows
    assert "bkt: LIST, HEAD and ranged GET work" in report.find("rights", "green")
    assert not report.red and report.exit == 0


def test_an_origin_that_fails(doctor, origin):
    """A server error is a fault of the origin, and no lack of rights."""
    origin.fault(None, "error", (500, "InternalError", "Oops"), times=None)
    for words, asked_for in (([], "ListBuckets"), (["bkt"], "LIST of bkt")):
        report = doctor(*words)
        assert report.exit == 4 and report.red == {"origin"}, report.rows
        found = report.find("origin", "red")
        assert f"it answers {asked_for} with a server error (status 500)" in found
        assert "the store's own log and health" in found


def test_an_origin_that_fails_some_requests_is_a_warning(doctor, origin):
    """The verdict does not change from run to run: a check whose request fails is repeated, and
    the finding says how many of the requests failed."""
    origin.put("a", 100)
    for method, asked_for in (("GET", "LIST of bkt"), ("HEAD", "HEAD of bkt")):
        origin.clear_faults()
        key = "a" if method == "HEAD" else None
        # The first request of the doctor is an unsigned HEAD of the endpoint.
        origin.fault(key, "error", (500, "InternalError", "Oops"), method=method)
        report = doctor("bkt")
        found = report.find("origin", "yellow")
        said = f"it answers {asked_for} with a server error (status 500), in 1 of 3 requests"
        assert report.exit == 0 and not report.red and said in found, report.rows
        assert "access log" in found and "forebay_origin_errors_total" in found
        assert "LIST, HEAD and ranged GET work" in report.find("rights", "green")


def test_an_untrusted_certificate(doctor, tmp_path):
    files = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "1",
            "-subj",
            "/CN=x",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-out",
            files[0],
            "-keyout",
            files[1],
        ],
        check=True,
        capture_output=True,
    )
    with Origin(credentials=KEYS, tls=tuple(map(str, files))) as secret:
        report = doctor(origin__endpoint=secret.endpoint)
        assert report.exit == 4 and "origin.ca_file" in report.find("origin", "red")
        assert not doctor(origin__endpoint=secret.endpoint, origin__ca_file=files[0]).find(
            "origin", "red"
        )
        report = doctor(origin__endpoint=secret.endpoint.replace("https:", "http:"))
        assert report.exit == 4 and "whether it wants https" in report.find("origin", "red")


@pytest.mark.parametrize("ahead_s", [400, 1200])
def test_a_clock_that_is_off_is_a_warning_as_in_status(doctor, tmp_path, ahead_s):
    if build_kind() == "release":
        not_run("a release has no movable clock")
    clock = tmp_path / "clock"
    clock.write_text(str(1000 * ahead_s))
    report = doctor(env={"FOREBAY_CLOCK_FILE": str(clock)})
    assert "ahead of" in report.find("clock", "yellow")
    assert ("signs by the origin's" in report.find("clock", "yellow")) == (ahead_s > 900)
    assert report.exit == 0


def test_credentials(doctor, origin):
    origin.put("a", 100)
    report = doctor(env={"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""})
    assert report.exit == 4 and report.red == {"credentials"}
    report = doctor(env={"AWS_SECRET_ACCESS_KEY": "wrong"})
    origin.violations.clear()  # this is what the test checks
    assert report.exit == 4 and "refuses the signature of Forebay" in report.find("rights", "red")
    report = doctor(env={"AWS_ACCESS_KEY_ID": "nobody"})
    assert report.exit == 4 and "does not know the access key of Forebay" in report.find(
        "rights", "red"
    )


class Keys(BaseHTTPRequestHandler):
    """The endpoint of a container's credentials and of an instance's. The keys of the origin that
    it returns expire after this many seconds."""

    def answer(self, text):
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        ends = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(
            seconds=self.server.lasts_s
        )
        self.answer(
            json.dumps(
                {
                    "AccessKeyId": ACCESS,
                    "SecretAccessKey": SECRET,
                    "Token": "t",
                    "Expiration": ends.strftime("%Y-%m-%dT%H:%M:%SZ"),
                }
            )
        )

    def do_PUT(self):
        self.answer("session-token")

    def log_message(self, *_):
        pass


@pytest.fixture
def service():
    with ThreadingHTTPServer(("127.0.0.1", 0), Keys) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        server.url = f"http://127.0.0.1:{server.server_port}"
        yield server
        server.shutdown()


@pytest.mark.parametrize(
    "lasts_s, state, words",
    [
        (7230, "green", "last 2 h 0 min"),
        (330, "yellow", "expire in 5 min"),
        (-60, "red", "have expired"),
    ],
)
def test_credentials_that_end(doctor, origin, service, lasts_s, state, words):
    origin.put("a", 100)
    service.lasts_s = lasts_s
    report = doctor(
        credentials__source="container",
        env={"AWS_CONTAINER_CREDENTIALS_FULL_URI": service.url + "/keys"},
    )
    origin.violations.clear()
    assert words in report.find("expiry", state), report.rows
    assert (report.exit == 4) == (state == "red")


def test_the_instance_metadata_service(doctor, origin, service):
    """The instance metadata service answers; it hangs, and is needed or not; or it is switched
    off."""
    origin.put("a", 100)
    no_keys = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        silent = {
            "AWS_EC2_METADATA_DISABLED": "",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://127.0.0.1:%d" % nobody.getsockname()[1],
        }
        assert "is not needed" in doctor(env=silent).find("metadata", "green")
        report = doctor(env={**silent, **no_keys})
        assert report.exit == 4 and "hop limit of 2" in report.find("metadata", "yellow")
    answers = {
        "AWS_EC2_METADATA_DISABLED": "",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": service.url,
    }
    assert "gives session tokens" in doctor(env=answers).find("metadata", "green")
    assert "not needed" in doctor().find("metadata", "green")
    assert "unset AWS_EC2_METADATA_DISABLED" in doctor(env=no_keys).find("metadata", "yellow")


def test_an_origin_that_is_slow(doctor, origin):
    """`doctor` reports how much a slow origin delivered within the time, and stops. It reads at
    most 48 MiB from a fast one."""
    origin.put("a", 40 << 20)
    mark = origin.mark()
    report = doctor("bkt")
    assert "by one connection" in report.find("throughput", "green") + report.find(
        "throughput", "yellow"
    )
    assert sum(entry.sent for entry in origin.requests(since=mark)) < 49 << 20
    origin.fault("a", "drip", 1000, times=None, method="GET")
    for rate in ("0", "1GB/s"):  # a limit far above the measured rate explains nothing
        report = hurried(
            lambda timeout, rate=rate: doctor("bkt", timeout, origin__max_rate=rate),
            lambda report: report.exit == 0,
        )
        assert "NAT gateway" in report.find("throughput", "yellow"), report.rows
        assert "max_rate" not in report.find("throughput", "yellow") and report.exit == 0


def test_a_limit_on_bandwidth_is_named_as_the_reason_of_a_slow_origin(doctor, origin):
    """Reads as fast as `origin.max_rate` lets them be are green, and the setting is named."""
    origin.put("a", 1 << 20)
    report = doctor("bkt", origin__max_rate="1MiB/s")
    told = report.find("throughput", "green")
    assert "origin.max_rate (1.0 MiB/s) limits this" in told, report.rows


def test_rights(doctor, origin):
    origin.put("a", 100)
    report = doctor("bkt", "nowhere")
    assert report.exit == 4 and "no such bucket" in report.find("rights", "red")
    assert "bkt: LIST, HEAD and ranged GET work" in report.find("rights", "green")
    origin.fault("a", "error", (403, "AccessDenied"), times=None)
    report = doctor("bkt")
    assert report.exit == 4 and "grant s3:GetObject" in report.find("rights", "red")
    origin.fault(None, "error", (403, "AccessDenied"), times=None)
    report = doctor("bkt")
    assert report.exit == 0 and "grant s3:ListBucket" in report.find("rights", "yellow")


def test_a_directory_as_origin(doctor, tmp_path):
    report = doctor(origin__endpoint=f"dir:{tmp_path}/data")
    assert report.exit == 4 and report.red == {"origin"}
    (tmp_path / "data" / "set").mkdir(parents=True)
    (tmp_path / "data" / "set" / "a").write_text("x")
    assert "set: LIST, HEAD and ranged GET work" in doctor(
        origin__endpoint=f"dir:{tmp_path}/data"
    ).find("rights", "green")


def test_a_directory_that_hangs(doctor, tmp_path):
    """`doctor` ends although the kernel holds a read of the directory, which not even a cancel
    ends."""
    if build_kind() != "debug":
        not_run("what hangs is never given back, and a release has no faults")
    (tmp_path / "data" / "set").mkdir(parents=True)
    (tmp_path / "data" / "set" / "a").write_text("x" * 1000)
    (tmp_path / "held").write_text("")
    report = doctor(
        "set",
        "set",
        "--timeout=1",
        origin__endpoint=f"dir:{tmp_path}/data",
        env={"FOREBAY_DISK_FAULTS": f"read:file={tmp_path}/held:hold"},
    )
    assert (
        report.exit == 4
        and "no answer in time" in report.find("rights", "red")
        and report.took_s < 20
    )


def test_every_remedy_names_what_there_is():
    """Every setting or command that a remedy names exists."""
    source = "".join(
        path.read_text()
        for path in (Path(__file__).resolve().parents[2] / "src/cli/doctor").glob(
            "command_doctor*.c"
        )
    )
    assert "forebay prepare" in source and run_forebay("help", "prepare").returncode == 0
    keys = run_forebay("config", "docs").stdout
    for key in (
        "cache.dir",
        "cache.size",
        "cache.min_free",
        "limits.max_buffer",
        "origin.ca_file",
        "auth.mode",
        "origin.region",
    ):
        assert key in source and f"`{key}`" in keys


def buckets_file(tmp_path, *entries):
    """Returns the arguments for a configuration file with these entries of `buckets`."""
    (tmp_path / "forebay.yaml").write_text(json.dumps({"buckets": entries}))
    return ("-c", str(tmp_path / "forebay.yaml"))


def test_the_region_of_a_bucket_is_in_its_host(doctor, tmp_path, origin):
    """{region} in the endpoint of a bucket, or in that of the default origin, stands for the region
    of the bucket."""
    port = origin.endpoint.rpartition(":")[2]
    own = f"http://{{region}}.localhost:{port}"
    entries = (
        {"name": "own", "origin": "s3://bkt", "endpoint": own, "region": "eu-west-1"},
        {"name": "near", "origin": "s3://bkt", "region": "eu-west-2"},
    )
    report = doctor(*buckets_file(tmp_path, *entries), origin__endpoint=own)
    found = report.find("origin", "green") + report.find("origin", "red")
    for host in ("us-east-1", "eu-west-1", "eu-west-2"):
        assert f"http://{host}.localhost:{port}" in found, found


def test_a_silent_endpoint_of_a_bucket_keeps_no_other_unchecked(doctor, tmp_path, origin):
    """The bucket at an endpoint that refuses connections gets one finding, and all others have
    their rights checked."""
    origin.put("a", 100)
    with Origin() as store:
        store.down()
        silent = store.endpoint
    entries = (
        {"name": "away", "origin": "s3://bkt", "endpoint": silent},
        {"name": "here", "origin": "s3://bkt"},
    )
    report = doctor(*buckets_file(tmp_path, *entries))
    assert f"{silent}#away: nothing listens there" in report.find("origin", "red"), report.rows
    assert "LIST, HEAD and ranged GET work" in report.find("rights", "green"), report.rows
    assert report.red == {"origin"}, report.rows
    report = doctor(
        *buckets_file(tmp_path, {**entries[1], "endpoint": origin.endpoint}),
        origin__endpoint=silent,
    )
    assert report.red == {"origin"} and report.find("rights", "green"), report.rows


def test_an_access_log_that_cannot_be_opened(doctor, start, origin, tmp_path):
    """`check` and `doctor` refuse it with the words of the start, and so does a reload."""
    path = tmp_path / "none" / "access.log"
    words = f"access_log.path {path} cannot be opened: No such file or directory"
    done = run_forebay("check", f"--origin.endpoint={origin.endpoint}", f"--access_log.path={path}")
    assert done.returncode == 3 and words in done.stderr and "a folder" in done.stderr, done
    report = doctor(access_log__path=path)
    assert words in report.find("configuration", "red") and report.exit == 3, report.rows
    off = {"access_log": {"path": "off"}}
    server = start(origin, settings={"access_log.path": None}, file=off)
    (server.folder / "forebay.yaml").write_text(json.dumps({"access_log": {"path": str(path)}}))
    server.process.send_signal(signal.SIGHUP)
    server.wait_condition("reload-refused")
    assert words in server.condition_rows()["reload-refused"]["text"]
    path.parent.mkdir()
    done = run_forebay("check", f"--origin.endpoint={origin.endpoint}", f"--access_log.path={path}")
    assert done.returncode == 0 and not list(path.parent.iterdir()), done


def test_the_limit_on_open_files_is_that_of_the_running_server(start, origin, tmp_path):
    """A command with settings looks from its own shell, whose limit on open files says nothing of
    the server that runs with these settings."""
    origin.put("a", 100)
    server = start(origin, settings={"admin.socket": tmp_path / "admin.sock"})
    report, _ = asked(*server.command()[2:], env=env_of(server, tmp_path))
    files = min(resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)[0], 1 << 20)
    assert f"{files} open files" in report.find("limits", "green"), report.rows
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (300, 300))
    report, _ = asked(*server.command()[2:], env=env_of(server, tmp_path))
    assert report.find("limits", "yellow").startswith("300 open files: "), report.rows

# SPDX-License-Identifier: Apache-2.0
"""The start of the server: its output, and each refusal with its exit code and one clear line."""

import json
import os
import signal
import socket
import ssl
import sys

import pytest
import upgrading
from client import Client, Connection, judge, request_bytes
from conftest import not_run
from disks import LoopDisk
from forebay import Failed, binary, run_forebay
from ports import free_ports
from test_origin_trouble import certificate  # noqa: F401 (a fixture)


@pytest.fixture
def data(tmp_path):
    root = tmp_path / "tree"
    (root / "bkt").mkdir(parents=True)
    (root / "bkt" / "a").write_bytes(b"hello")
    return root


def refused(server, code, *words):
    """Checks that the server ends with CODE and that stderr is a short text with all the words."""
    server.expect_failure = True
    server.spawn()
    got = server.wait_exit()
    text = "\n".join(server.stderr)
    assert got == code, f"exit {got}, expected {code}: {text}"
    for word in words:
        assert word in text, (word, text)
    assert len(text) < 4000, "a refusal is one clear line, not a dump"
    return text


def test_version_and_usage():
    out = run_forebay("version")
    assert out.returncode == 0 and "forebay" in out.stdout.lower()
    for arguments in ((), ("nosuchcommand",), ("serve", "--no.such.key", "1")):
        out = run_forebay(*arguments)
        assert out.returncode in (2, 3), (arguments, out)
        assert out.stderr.strip()
    assert run_forebay("help").returncode == 0


def test_a_cache_size_that_the_disk_has_no_room_for_is_said(start, data, tmp_path):
    """The start's text, the log, `check -T` and a reload say it. A size with room says nothing."""
    disk = os.statvfs(tmp_path)
    size = disk.f_blocks * disk.f_frsize + (1 << 30)
    file = {"cache": {"size": size}, "log": {"format": "text"}}
    server = start(f"dir:{data}", settings={"cache.size": None, "log.format": None}, file=file)
    server.wait_stderr(f"event=cache_size_beyond_disk size_bytes={size} room_bytes=[0-9]+ remedy=")
    server.wait_stderr("MORE THAN THE DISK HAS ROOM FOR")
    assert server.metric("forebay_cache_capacity_bytes") == size
    arguments = ("check", "-T", "-c", str(server.folder / "forebay.yaml"))
    rows = run_forebay(*arguments, "--cache.dir", str(server.cache)).stdout.splitlines()
    row = next(row for row in rows if row.startswith("cache.size:"))
    assert "more than the" in row, row
    before = len(server.stderr)
    server.process.send_signal(signal.SIGHUP)
    server.wait_stderr("event=reloaded")
    assert any("cache_size_beyond_disk" in line for line in server.stderr[before:])
    for enough in (256 << 20, "80%"):
        server.file = {**file, "cache": {"size": enough}}
        server.restart()
        server.wait_stderr("hint")
        assert not any("THE DISK" in line or "beyond_disk" in line for line in server.stderr)


@pytest.mark.parametrize("kib", [0, 4, 5, 6, 8, 12])
def test_a_disk_with_room_for_a_few_blocks_is_full(start, origin, tmp_path, kib):
    """Wherever the space ends, the server starts, answers without storing, and starts again."""
    origin.put("k", 1000)
    with LoopDisk(tmp_path / "disk", 64 << 20) as disk:
        with open(disk.mount / "other", "wb") as other:
            while (info := os.statvfs(disk.mount)).f_bavail > kib:
                more = (info.f_bavail - kib) * info.f_frsize
                os.posix_fallocate(other.fileno(), other.seek(0, 2), min(more, 1 << 20))
        assert info.f_frsize == 1024 and info.f_bavail == kib
        server = start(origin, cache=disk.mount / "cache")
        for _ in range(2):
            with server.client() as client:
                judge(client.get("k"), origin, "k", 0, 1000)
            assert "disk-full" in server.conditions()
            server.restart()
        server.stop()


@pytest.mark.parametrize("most, short", [(None, False), (16384, True)])
def test_the_start_names_the_page_and_does_not_warn_of_a_default(start, data, most, short):
    """At 20,000 descriptors clients get fewer than the default of limits.max_connections. That is a
    warning only if the user has set it. The start names the page."""
    server = start(
        f"dir:{data}",
        settings={"limits.max_connections": most},
        wrapper=["prlimit", "--nofile=20000:20000"],
    )
    server.wait_stderr("hint")  # the last line
    text = "\n".join(server.stdout + server.stderr)
    assert ("FEWER than configured" in text) == ("raise_ulimit_n" in text) == short, text
    assert f"  page       http://127.0.0.1:{server.admin_port}/ in a browser" in text
    assert short or text.startswith("forebay "), text


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "off"])
def test_the_start_names_a_command_that_reaches_this_server(start, data, listen, tmp_path):
    """The command that the start names works in another terminal, whatever the admin address."""
    settings = {"admin.listen": listen, "admin.socket": f"{tmp_path}/admin.sock"}
    server = start(f"dir:{data}", settings=settings, run=False).spawn()
    server.wait_stderr("hint")  # the last line
    (words,) = [line.split()[2:] for line in server.stderr if line.startswith("  status  ")]
    got = run_forebay(*words)
    assert got.returncode == 0 and "ready" in got.stdout, (words, got)


@pytest.mark.parametrize(
    "env, origin, named",
    [
        ({"AWS_ENDPOINT_URL_S3": "http://192.0.2.1:1"}, None, "AWS_ENDPOINT_URL_S3"),
        ({"AWS_ENDPOINT_URL": "http://192.0.2.1:1/"}, None, "AWS_ENDPOINT_URL"),
        ({"AWS_ENDPOINT_URL_S3": "http://192.0.2.1:1"}, "dir:{data}", None),
        ({"AWS_ENDPOINT_URL_S3": "http://localhost:{port}/"}, None, None),
        ({"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:{port}"}, None, None),
        ({}, None, None),
    ],
)
def test_the_start_names_an_endpoint_of_clients_that_is_not_the_origin(
    start, data, env, origin, named
):
    """`serve` says that it ignores the variable that `run` takes as its origin. It says nothing
    where an origin is set, or where the variable leads to the server itself."""
    (port,) = free_ports(1)
    server = start(
        origin.format(data=data) if origin else None,
        settings={"listen": f"127.0.0.1:{port}"},
        env={name: value.format(port=port) for name, value in env.items()},
    )
    server.wait_stderr("hint")  # the last line
    told = [
        line for line in server.stderr if "names an endpoint, and serve does not use it" in line
    ]
    assert len(told) == (named is not None), server.stderr
    assert not named or told[0].endswith(f' give --origin.endpoint "${named}"'), told


def test_the_start_names_the_endpoint_of_a_profile(start, data, tmp_path):
    """`serve` says the same of a profile that names an endpoint."""
    (tmp_path / "profiles").write_text("[profile lab]\nendpoint_url = http://192.0.2.1:1\n")
    env = {"AWS_CONFIG_FILE": str(tmp_path / "profiles"), "AWS_PROFILE": "lab"}
    server = start(None, env=env)
    server.wait_stderr("hint")  # the last line
    said = "profile lab names an endpoint, and serve does not use it: to read from there, give"
    assert [line for line in server.stderr if f"{said} --origin.endpoint URL" in line]


def test_nothing_but_an_origin(start, data):
    """With nothing but an origin set, the start names the listener, the origin, the cache
    directory, the engine, and how to point a client here."""
    server = start(f"dir:{data}", settings={"workers": None, "cache.size": "64MiB"})
    with server.client() as client:
        reply = client.get("a")
        assert reply.status == 200 and bytes(reply.body) == b"hello"
    server.wait_stderr("hint")  # the last line; the listeners come before it
    text = "\n".join(server.stdout + server.stderr)
    assert f"127.0.0.1:{server.port}" in text
    assert str(server.cache) in text
    assert "io_uring" in text or "threads" in text
    assert "AWS_ENDPOINT_URL" in text
    assert "immutable" in text


def test_values_from_file_environment_and_flags(start, data):
    """A flag overrides the environment, which overrides the file and then the default. `check -T`
    names the source of each."""
    config = data.parent / "c.yaml"
    config.write_text(
        "origin: {endpoint: 'dir:%s'}\ncache:\n  size: 64MiB\n  ttl: 10s\nworkers: 1\n" % data
    )
    out = run_forebay(
        "check",
        "-T",
        "-c",
        config,
        "--workers",
        "2",
        env={"FOREBAY_CACHE_TTL": "20s", "FOREBAY_WORKERS": "3"},
    )
    assert out.returncode == 0, out
    rows = {line.split()[0].rstrip(":="): line for line in out.stdout.splitlines() if line.strip()}
    text = out.stdout
    assert "20s" in text and "64MiB" in text or "67108864" in text, text
    assert any("workers" in line and "2" in line for line in rows.values()), text


BAD_FILES = [
    ("cache:\n  sise: 4GiB\n", ":2:3:", "cache.size"),
    ("cache:\n  block_size: 4MB\n", ":2:15:", "power of two"),
    ("cache: {ttl: 60}\n", ":1:", "unit"),
    ("workers: many\n", ":1:10:", "workers"),
    ("workers: 65\n", ":1:10:", "64"),
    ("cache: {size: 4MiBx}\n", ":1:", "cache.size"),
    ("cache: {size: 1GiB}\ncache: {size: 2GiB}\n", ":2:", "cache"),
    ("origin: [1\n", ":", ""),
    ("rules: [{match: 'a/**', fresness: ttl}]\n", ":1:", "freshness"),
    ("rules: [{match: 'a/**', freshness: sometimes}]\n", ":1:", "strict"),
    ("buckets: [{nme: a}]\n", ":1:", "name"),
    ("a: &x 1\nb: *x\n", ":", ""),
    ("io: {engine: aio}\n", ":1:", "io_uring"),
    ("listen: 0.0.0.0:9000\n", ":1:9:", "auth"),
]


@pytest.mark.parametrize("text,place,word", BAD_FILES)
def test_bad_configuration_is_pointed_at(tmp_path, data, text, place, word):
    config = tmp_path / "bad.yaml"
    config.write_text(text)
    for command in ("check", "serve"):
        out = run_forebay(
            command,
            "-c",
            config,
            "--origin.endpoint",
            f"dir:{data}",
            "--cache.dir",
            tmp_path / "cache",
            wait=30,
        )
        assert out.returncode == 3, (command, out)
        assert f"{config}{place}" in out.stderr, out.stderr
        assert "error:" in out.stderr and word in out.stderr, out.stderr


def test_bad_environment_and_flags(tmp_path, data):
    out = run_forebay("check", "--origin.endpoint", f"dir:{data}", env={"FOREBAY_CACHE_TTL": "60"})
    assert out.returncode == 3 and "FOREBAY_CACHE_TTL" in out.stderr, out
    assert "unit" in out.stderr
    out = run_forebay("check", "--origin.endpoint", f"dir:{data}", "--cache.ttl", "soon")
    assert out.returncode in (2, 3) and "--cache.ttl" in out.stderr, out
    out = run_forebay(
        "check", "--origin.endpoint", f"dir:{data}", env={"FOREBAY_CACHE_SISE": "1GiB"}
    )
    assert "FOREBAY_CACHE_SIZE" in out.stderr, out  # a warning with a suggestion
    out = run_forebay(
        "check",
        "--origin.endpoint",
        f"dir:{data}",
        env={"FOREBAY_PORT": "tcp://10.0.0.1:9000", "FOREBAY_SERVICE_HOST": "10.0.0.1"},
    )
    assert out.returncode == 0, out  # Kubernetes service links


def test_a_missing_file_is_an_error(tmp_path, data):
    out = run_forebay("serve", "-c", tmp_path / "none.yaml", "--origin.endpoint", f"dir:{data}")
    assert out.returncode == 3 and "none.yaml" in out.stderr, out


def test_a_missing_directory_origin(start, tmp_path):
    refused(start(f"dir:{tmp_path}/nothing", run=False), 4, str(tmp_path / "nothing"))


def test_no_credentials(start, origin):
    server = start(origin, run=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del server.env[name]
    refused(server, 4, "credentials", "anonymous")


def test_anonymous_if_configured(start, origin):
    origin.credentials = None
    origin.put("a", 100)
    server = start(origin, run=False, settings={"credentials.source": "anonymous"})
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del server.env[name]
    server.start()
    with server.client() as client:
        judge(client.get("a"), origin, "a", 0, 100)
    assert origin.requests(key="a")[0].header("authorization") is None


def test_an_origin_that_does_not_answer_is_a_warning(start, origin):
    origin.put("a", 100)
    origin.down()
    server = start(origin)
    with server.client() as client:
        assert client.get("a").status == 503
        origin.start()
        judge(client.get("a"), origin, "a", 0, 100)
    assert server.admin("/readyz").status == 200


def test_a_cache_directory_in_use(start, origin):
    first = start(origin)
    second = start(origin, run=False, cache=first.cache)
    text = refused(second, 1, str(first.cache))
    assert "use" in text or "lock" in text, text
    origin.put("a", 100)
    with first.client() as client:
        judge(client.get("a"), origin, "a", 0, 100)


def test_a_cache_directory_open_to_others(start, origin, tmp_path):
    """Others may write to the cache directory (0777, setgid), as in an emptyDir. The cache then
    uses a folder of its own in it, and finds it again."""
    cache = tmp_path / "shared"
    cache.mkdir()
    cache.chmod(0o2777)
    origin.put("a", 100)
    server = start(origin, cache=cache)
    for _ in range(2):
        with server.client() as client:
            judge(client.get("a"), origin, "a", 0, 100)
        server.wait_stderr(str(cache / "forebay"))
        server.settle()
        server.restart()
    assert len(origin.requests(key="a")) == 1
    assert {p.name for p in cache.iterdir()} == {"forebay"}
    loose = [p for p in (cache / "forebay").rglob("*") if p.lstat().st_mode & 0o077]
    assert not loose and (cache / "forebay").stat().st_mode & 0o077 == 0, loose
    server.stop()
    (cache / "forebay").chmod(0o755)
    refused(server, 1, str(cache / "forebay"), "closed to others")


def test_a_port_that_is_taken(start, origin):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        text = refused(
            start(origin, run=False, settings={"listen": f"127.0.0.1:{port}"}),
            1,
            str(port),
        )
        assert "listen" in text or "use" in text


def test_a_key_file_that_others_may_read(start, origin, tmp_path):
    keys = {}
    for name, text in (
        ("access", "origin-key"),
        ("secret", "origin-secret-canary-7f3a"),
    ):
        keys[name] = tmp_path / name
        keys[name].write_text(text + "\n")
        keys[name].chmod(0o600)
    settings = {
        "credentials.source": "config",
        "credentials.access_key_file": keys["access"],
        "credentials.secret_key_file": keys["secret"],
    }
    origin.put("a", 100)
    server = start(origin, settings=settings)
    with server.client() as client:
        judge(client.get("a"), origin, "a", 0, 100)
    keys["secret"].chmod(0o644)
    refused(start(origin, run=False, settings=settings), 3, str(keys["secret"]))
    keys["secret"].unlink()
    refused(start(origin, run=False, settings=settings), 3, str(keys["secret"]))


def test_shared_credentials_file(start, origin, tmp_path):
    path = tmp_path / "credentials"
    path.write_text(
        "[default]\naws_access_key_id = origin-key\n"
        "aws_secret_access_key = origin-secret-canary-7f3a\n[other]\n"
        "aws_access_key_id = x\naws_secret_access_key = y\n"
    )
    path.chmod(0o600)
    origin.put("a", 100)
    server = start(origin, run=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del server.env[name]
    server.env["AWS_SHARED_CREDENTIALS_FILE"] = str(path)
    server.start()
    with server.client() as client:
        judge(client.get("a"), origin, "a", 0, 100)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
def test_other_than_loopback_is_refused_without_signatures(start, origin, listen):
    refused(start(origin, run=False, settings={"listen": listen}), 3, "loopback")


def test_a_hostile_environment_does_not_reroute(start, origin):
    origin.put("a", 100)
    server = start(
        origin,
        env={
            "http_proxy": "http://127.0.0.1:1",
            "HTTP_PROXY": "http://127.0.0.1:1",
            "ALL_PROXY": "http://127.0.0.1:1",
            "all_proxy": "socks5://127.0.0.1:1",
        },
    )
    with server.client() as client:
        judge(client.get("a"), origin, "a", 0, 100)


def test_a_format_that_is_not_ours_is_refused(start, origin):
    server = start(origin)
    server.stop()
    (server.cache / "format").write_text("version=99\nid=somebody else\n")
    before = sorted(p.name for p in server.cache.rglob("*"))
    refused(server, 1, "format")
    assert sorted(p.name for p in server.cache.rglob("*")) == before


HAND_OVER = """
import ctypes, os, socket, sys
CLONE_NEWNET, CLONE_NEWUSER = 0x40000000, 0x10000000
what, folder = sys.argv[1], sys.argv[2]
def isolate():
    libc = ctypes.CDLL(None)
    if libc.unshare(CLONE_NEWNET) != 0 and libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        sys.exit(77)
def tcp(family, host, listens=True, kind=socket.SOCK_STREAM):
    made = socket.socket(family, kind)
    made.bind((host, 0))
    if listens:
        made.listen(16)
    return made
def unix(name):
    made = socket.socket(socket.AF_UNIX)
    made.bind(name)
    made.listen(16)
    return made
if what in ("any", "any6"):
    isolate()                      # it listens where nobody can reach it
made = {"any": lambda: tcp(socket.AF_INET, "0.0.0.0"), "any6": lambda: tcp(socket.AF_INET6, "::"),
        "loopback": lambda: tcp(socket.AF_INET, "127.0.0.1"),
        "idle": lambda: tcp(socket.AF_INET, "127.0.0.1", False),
        "datagram": lambda: tcp(socket.AF_INET, "127.0.0.1", False, socket.SOCK_DGRAM),
        "unix": lambda: unix(folder + "/given"), "abstract": lambda: unix("\\0" + folder),
        "file": lambda: open(folder + "/file", "w"),
        "pipe": lambda: os.fdopen(os.pipe()[0])}[what]()
os.dup2(made.fileno(), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=sys.argv[3])
os.execv(sys.argv[4], sys.argv[4:])
"""


def handed_over(start, origin, what, count="1", **settings):
    """A server, not yet running, that inherits the socket WHAT as descriptor 3."""
    server = start(origin, run=False, settings={"listen": None, **settings})
    server.binary_path = binary()
    server.wrapper = [sys.executable, "-c", HAND_OVER, what, str(server.folder), count]
    return server


def listening(server):
    server.wait_stderr(r"^\s*clients ")
    return next(line.split()[1] for line in server.stderr if line.lstrip().startswith("listening"))


def run_handed_over(server):
    """A wrapper that execs the server, so the process is the wrapper's own."""
    server._pid = lambda: server.process.pid
    server.spawn()
    return server


@pytest.mark.parametrize("what", ["loopback", "unix", "abstract"])
def test_inherited_sockets(start, origin, what):
    """The server serves the socket that it inherits by LISTEN_FDS."""
    origin.put("a", 100)
    server = run_handed_over(handed_over(start, origin, what))
    where = listening(server)
    if what == "loopback":
        with Client(int(where.rpartition(":")[2]), timeout=60) as client:
            judge(client.get("a"), origin, "a", 0, 100)
        return
    name = "\0" + str(server.folder) if what == "abstract" else str(server.folder / "given")
    with Connection(None, path=name) as connection:
        connection.send(request_bytes("GET", "/bkt/a", "127.0.0.1"))
        judge(connection.read_reply("GET"), origin, "a", 0, 100)
    server.stop()
    if what == "unix":
        assert (server.folder / "given").exists(), "the name is the giver's to remove"


def test_inherited_sockets_by_name(start, origin, certificate):
    """LISTEN_FDNAMES can name a TLS socket and one for admin.listen. A unix socket can be
    neither."""

    def named(what, name, **settings):
        server = handed_over(start, origin, what, **settings)
        server.env["LISTEN_FDNAMES"] = name
        return run_handed_over(server)

    tls = named(
        "loopback",
        "tls",
        **{"listen_tls.cert": certificate[0], "listen_tls.key": certificate[1]},
    )
    assert listening(tls).startswith("https://127.0.0.1:")
    admin = named("any", "admin", listen="127.0.0.1:0")
    assert listening(admin).startswith("http://127.0.0.1:")
    admin.wait_stderr(r"^\s*admin\s+http://0\.0\.0\.0:[0-9]+")
    for name, word in (("tls", "speaks no TLS"), ("admin", "admin.socket")):
        refused = named("unix", name)
        assert refused.wait_exit() == 3
        assert word in refused.output()


@pytest.fixture
def orphans():
    upgrading.adopt_orphans(True)
    yield
    upgrading.adopt_orphans(False)


def ask_at(where, certificate):
    """Returns the reply to one request at WHERE, as the start text names it."""
    path = where.removeprefix("unix:") if where.startswith("unix:") else None
    with Connection(int(where.rpartition(":")[2]) if not path else None, path=path) as connection:
        if where.startswith("https:"):
            trust = ssl.create_default_context(cafile=certificate[0])
            connection.sock = trust.wrap_socket(connection.sock, server_hostname="localhost")
        connection.send(request_bytes("GET", "/bkt/a", "localhost"))
        return connection.read_reply("GET")


@pytest.mark.parametrize(
    "what,name",
    [("loopback", "s3"), ("unix", "s3"), ("loopback", "tls"), ("loopback", "admin")],
)
def test_inherited_blocking_socket_survives_an_upgrade_and_a_stop(
    orphans, start, origin, certificate, what, name
):
    """A service manager hands its sockets over in blocking mode. Each kind is served again and
    again, before and after an upgrade, and the stop ends without its time limit."""
    origin.put("a", 100)
    more = {"listen_tls.cert": certificate[0], "listen_tls.key": certificate[1]}
    more = {"listen": "127.0.0.1:0"} if name == "admin" else more if name == "tls" else {}
    server = handed_over(start, origin, what, **more)
    server.env["LISTEN_FDNAMES"] = name
    run_handed_over(server)
    where = listening(server)
    server.admin_port = server._port_in(r"^\s*admin\s+http://[^\s/]*:(\d+)")
    for _ in range(2):
        for _ in range(2):
            judge(ask_at(where, certificate), origin, "a", 0, 100)
            assert server.admin("/version").status == 200
        upgrading.upgrade(server)
    server._pid = lambda: server.process.pid
    server.stop()
    assert "stop_cut_short" not in "\n".join(server.stderr)


@pytest.mark.parametrize(
    "what,settings,words",
    [
        ("any", {}, ["env LISTEN_FDS", "0.0.0.0:", "plain HTTP", "verify"]),
        ("any6", {}, ["env LISTEN_FDS", "[::]:", "plain HTTP", "verify"]),
        (
            "any",
            {"listen_plaintext": "network", "auth.mode": "open"},
            ["0.0.0.0:", "read, write and delete whatever Forebay's keys may"],
        ),
        ("any", {"listen_plaintext": "network"}, ["0.0.0.0:", "auth.keys_file"]),
        (
            "idle",
            {},
            ["env LISTEN_FDS", "descriptor 3", "not a stream socket that listens"],
        ),
        ("datagram", {}, ["descriptor 3", "not a stream socket that listens"]),
        ("file", {}, ["descriptor 3", "not a socket"]),
        ("pipe", {}, ["descriptor 3", "not a socket"]),
    ],
)
def test_inherited_sockets_follow_the_rules_of_listen(start, origin, what, settings, words):
    server = handed_over(start, origin, what, **settings)
    run_handed_over(server)
    server.expect_failure = True
    code = server.wait_exit()
    if code == 77:
        not_run("this machine gives no network namespace")
    text = "\n".join(server.stderr)
    assert code == 3, text
    for word in words:
        assert word in text, (word, text)


@pytest.mark.parametrize("count", ["x", "17", "-1"])
def test_an_invalid_number_of_inherited_sockets(start, origin, count):
    server = run_handed_over(handed_over(start, origin, "loopback", count))
    server.expect_failure = True
    assert server.wait_exit() == 3
    assert "LISTEN_FDS" in "\n".join(server.stderr)


def test_sockets_for_another_process_are_not_used(start, origin):
    server = start(origin, env={"LISTEN_PID": "1", "LISTEN_FDS": "1"})
    with server.client() as client:
        assert client.get("none").status == 404


@pytest.mark.parametrize("mode", [None, "0600", "0660", "0666"])
@pytest.mark.parametrize("mask", [0, 0o77])
def test_a_unix_listener_has_the_mode_of_its_setting(start, origin, tmp_path, mode, mask):
    path = tmp_path / "s"
    server = start(origin, run=False, settings={"listen": f"unix:{path}", "listen_unix_mode": mode})
    before = os.umask(mask)
    try:
        server.spawn()
    finally:
        os.umask(before)
    server.wait_stderr(r"^\s*clients ")
    assert path.stat().st_mode & 0o7777 == int(mode or "0600", 8)
    server.stop()
    assert not path.exists()


NO_RESOLVER = """
import ctypes, os, sys
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 4096, 16384, 1 << 18
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(CLONE_NEWNS) != 0 or libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) != 0:
    sys.exit(77)
for name in (b"/etc/hosts", b"/etc/resolv.conf", b"/etc/nsswitch.conf"):
    if libc.mount(b"/dev/null", name, None, MS_BIND, None) != 0:
        sys.exit(77)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_localhost_needs_no_resolver(start, origin):
    """A listener and origins named localhost work even if no file and no name server knows that
    name."""
    origin.put("a", 100)
    origin.make_bucket("data")
    origin.put("b", 100, bucket="data")
    port = origin.endpoint.rpartition(":")[2]
    server = start(
        f"http://localhost:{port}",
        run=False,
        settings={
            "listen": "localhost:0",
            "admin.listen": "localhost:0",
            "origin.region": "us-east-1",
        },
        file={
            "buckets": [
                {
                    "name": "other",
                    "origin": "s3://data",
                    "endpoint": f"http://localhost:{port}",
                    "addressing": "virtual",
                }
            ]
        },
    )
    server.wrapper = [sys.executable, "-c", NO_RESOLVER]
    run_handed_over(server)
    try:
        server._wait_ready(60)
    except Failed:
        if server.process is None or server.process.poll() == 77:
            server.expect_failure = True
            not_run("this machine gives no mount namespace")
        raise
    with server.client() as client:
        judge(client.get("a"), origin, "a", 0, 100)
        reply = client.get("b", bucket="other")
        judge(reply, origin, "b", 0, 100, bucket="data")
    assert origin.requests(key="b")[0].header("host").startswith("data.localhost:")


def test_readable_start_line(start, origin):
    """A script can read the start from one line: event, listener and admin address, engine."""
    server = start(origin, settings={"log.format": "json"})
    server.wait_stderr(r'"event":"started"')
    lines = [json.loads(line) for line in server.stderr if line.startswith("{")]
    line = next(line for line in lines if line.get("event") == "started")
    assert line["listen"] == f"127.0.0.1:{server.port}", line
    assert line["admin"] == f"127.0.0.1:{server.admin_port}", line
    assert line["engine"] in ("io_uring", "threads"), line

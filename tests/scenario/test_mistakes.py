# SPDX-License-Identifier: Apache-2.0
"""For usual mistakes, the first line of output names the cause and the remedy."""

import os
import re
import socket
import subprocess

import pytest
from conftest import not_run
from forebay import KEYS, binary, run_forebay
from origin import Origin
from test_control import said
from test_origin_trouble import certificate  # noqa: F401 (a fixture)

PLAIN_ENV = {
    "AWS_ACCESS_KEY_ID": next(iter(KEYS)),
    "AWS_SECRET_ACCESS_KEY": next(iter(KEYS.values())),
    "AWS_EC2_METADATA_DISABLED": "true",
}


def first_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[0] if lines else ""


def refused(code, words, command, env=None, cwd=None):
    out = run_forebay(*command, env={**PLAIN_ENV, **(env or {})}, cwd=cwd, wait=30)
    line = first_line(out.stderr or out.stdout)
    assert out.returncode == code, (out.returncode, out.stderr, out.stdout)
    for word in words:
        assert word in line, f"{word!r} is not in the first line: {line!r}"


# name: (exit code, words of the first line, arguments; DIR is the test's folder)
AT_THE_COMMAND_LINE = {
    "misspelt flag": (
        3,
        ["--cache.sise", "did you mean", "--cache.size"],
        "check --cache.sise 1GiB",
    ),
    "flag twice": (3, ["--cache.ttl", "twice"], "check --cache.ttl 5s --cache.ttl 6s"),
    "time without a unit": (3, ["60", "needs a unit", "60s"], "check --cache.ttl 60"),
    "no scheme": (3, ["localhost:8333", "http://"], "check --origin.endpoint localhost:8333"),
    "folder as endpoint": (
        3,
        ['--origin.endpoint: error: "/data"', "(dir:/data?)"],
        "check --origin.endpoint /data",
    ),
    "bucket as endpoint": (
        3,
        [
            '--origin.endpoint: error: "s3://bkt"',
            "https://s3.REGION.amazonaws.com",
            "clients name the bucket",
        ],
        "check --origin.endpoint s3://bkt",
    ),
    "cache in the origin": (
        3,
        ["cache.dir", "DIR/tree/cache", "inside the origin", "outside"],
        "serve SERVE --origin.endpoint dir:DIR/tree --cache.dir DIR/tree/cache",
    ),
    "cache among other files": (
        1,
        ["DIR/home is not empty", "thesis", "cache.dir", "empty directory"],
        "serve SERVE --origin.endpoint dir:DIR/tree --cache.dir DIR/home",
    ),
    "bucket in the endpoint": (
        3,
        [
            "my.bucket.s3.eu-west-1",
            "must not name a bucket",
            "(https://s3.eu-west-1.amazonaws.com?)",
        ],
        "check --origin.endpoint https://my.bucket.s3.eu-west-1.amazonaws.com",
    ),
    "bucket behind the endpoint": (
        3,
        ["must not name a bucket", "(https://s3.eu-west-1.amazonaws.com?)"],
        "check --origin.endpoint https://s3.eu-west-1.amazonaws.com/bkt",
    ),
    "endpoint of directory buckets": (
        3,
        ["does not support directory buckets (S3 Express)"],
        "check --origin.endpoint https://s3express-use1-az4.us-east-1.amazonaws.com",
    ),
    "bucket before an address": (
        3,
        ["is an IP address", "set addressing to path"],
        "check --origin.endpoint http://127.0.0.1:1 --origin.addressing virtual",
    ),
    "listen without a host": (3, [":9310", "127.0.0.1:9310"], "check --listen :9310"),
    "listen as a URL": (3, ["HOST:PORT", "tls:"], "check --listen http://127.0.0.1:9310"),
    "network without keys": (
        3,
        ["0.0.0.0:9310", "auth.keys_file"],
        "check --listen 0.0.0.0:9310 --listen_plaintext network",
    ),
    "tab in the file": (3, ["tab.yaml:2:1", "tab", "only spaces"], "check -c DIR/tab.yaml"),
    "misspelt key": (3, ["typo.yaml:1:9", "cache.sise", "cache.size"], "check -c DIR/typo.yaml"),
    "no such file": (3, ["nowhere.yaml", "No such file"], "check -c DIR/nowhere.yaml"),
    "keys file for all": (
        3,
        ["open.keys", "chmod 600"],
        "check --auth.mode verify --auth.keys_file DIR/open.keys",
    ),
    "keys file is none": (
        3,
        ["bad.keys:1", "list of keys"],
        "check --auth.mode verify --auth.keys_file DIR/bad.keys",
    ),
    "key without rights": (
        0,
        ["idle.keys:1:3", "may do nothing", "K"],
        "check --auth.mode verify --auth.keys_file DIR/idle.keys",
    ),
    "rule with a URL": (
        0,
        ["rule-url.yaml:1", "BUCKET/KEY", '"b/**"?'],
        "check -c DIR/rule-url.yaml",
    ),
    "rule for a bucket": (
        0,
        ["rule-bucket.yaml:1", "without its keys", '"b/**"?'],
        "check -c DIR/rule-bucket.yaml",
    ),
    "rule with a bracket": (
        0,
        ["rule-bracket.yaml:1", "bracket", "wildcard"],
        "check -c DIR/rule-bracket.yaml",
    ),
    "rule behind all": (
        0,
        ["rule-behind.yaml:3", "never reached", "comes first"],
        "check -c DIR/rule-behind.yaml",
    ),
    "no server": (6, ["no server answers", "--admin", "--endpoint"], "env --admin 127.0.0.1:1"),
    "endpoint of all addresses": (
        2,
        ["0.0.0.0", "none to connect to", "(http://127.0.0.1:9000?)"],
        "env --endpoint http://0.0.0.0:9000",
    ),
    "endpoint of all addresses, in IPv6": (
        2,
        ["[::]", "none to connect to"],
        "env --endpoint http://[::]:9000",
    ),
    "endpoint that is garbage": (2, ["garbage", "http://HOST:PORT"], "env --endpoint garbage"),
    "endpoint without a host": (2, ["http://HOST:PORT"], "env --endpoint http://:9000"),
    "endpoint with a port that is none": (
        2,
        ["99999", "1 to 65535"],
        "env --endpoint http://127.0.0.1:99999",
    ),
    "no such command": (2, ["serv", "no such command"], "serv"),
    "garbage certificate": (
        3,
        ["garbage", "listen_tls.cert", "PEM"],
        "serve SERVE --listen tls:127.0.0.1:0 --listen_tls.cert DIR/garbage.pem "
        "--listen_tls.key DIR/garbage.pem",
    ),
    "certificate that is a FIFO": (
        3,
        ["listen_tls.cert", "DIR/pipe", "regular files"],
        "serve SERVE --listen tls:127.0.0.1:0 --listen_tls.cert DIR/pipe "
        "--listen_tls.key DIR/garbage.pem",
    ),
    "configuration that is a FIFO": (3, ["DIR/pipe", "is not a file"], "check -c DIR/pipe"),
    "directory that is none": (
        4,
        ["DIR/nothing", "No such file"],
        "serve SERVE --origin.endpoint dir:DIR/nothing",
    ),
    "cache is a file": (
        1,
        ["DIR/plain", "Not a directory", "cache.optional"],
        "serve SERVE --origin.endpoint dir:DIR/tree --cache.dir DIR/plain/cache",
    ),
    "cache of another version": (
        1,
        ["DIR/old", "format", "remove the directory"],
        "serve SERVE --origin.endpoint dir:DIR/tree --cache.dir DIR/old",
    ),
    "link in the cache": (
        1,
        ["DIR/linked/index/data.mdb is a symbolic link", "remove the link", "cache.dir"],
        "serve SERVE --origin.endpoint dir:DIR/tree --cache.dir DIR/linked",
    ),
    "cache too small": (
        3,
        ["cache.size", "16MiB"],
        "serve SERVE --origin.endpoint dir:DIR/tree --cache.size 1MiB",
    ),
    "port taken": (
        1,
        ["127.0.0.1:TAKEN", "in use", "choose another port", "listen"],
        "serve SERVE --origin.endpoint dir:DIR/tree --listen 127.0.0.1:TAKEN",
    ),
    "address of nobody": (
        1,
        ["192.0.2.1:9000", "this host does not have it", "127.0.0.1"],
        "serve SERVE --origin.endpoint dir:DIR/tree --listen "
        "192.0.2.1:9000 --listen_plaintext network "
        "--auth.mode open --auth.allow_open_network true",
    ),
    "admin port taken": (
        1,
        ["127.0.0.1:TAKEN", "in use", "admin.listen", "off"],
        "serve SERVE --origin.endpoint dir:DIR/tree --admin.listen 127.0.0.1:TAKEN",
    ),
    "no credentials": (
        4,
        ["no credentials", "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "anonymous"],
        "serve SERVE --origin.endpoint http://127.0.0.1:1",
    ),
    "half credentials": (
        4,
        ["AWS_ACCESS_KEY_ID is set", "AWS_SECRET_ACCESS_KEY is not"],
        "serve SERVE --origin.endpoint http://127.0.0.1:1",
    ),
}
FILES = {
    "tab.yaml": "cache:\n\tsize: 1GiB\n",
    "typo.yaml": "cache: {sise: 1GiB}\n",
    "open.keys": "- {id: K, secret: s}\n",
    "bad.keys": "id: K\n",
    "idle.keys": "- {id: K, secret: s}\n",
    "rule-url.yaml": "rules: [{match: 's3://b/**', cache: false}]\n",
    "rule-bucket.yaml": "rules: [{match: b, cache: false}]\n",
    "rule-bracket.yaml": "rules: [{match: 'b/[a/**', cache: false}]\n",
    "rule-behind.yaml": "rules:\n  - {match: '**', ttl: 1h}\n  - {match: 'b/**', ttl: 2h}\n",
    "garbage.pem": "garbage\n",
    "plain": "",
    "old/format": "forebay-cache 99\n",
    "old/lock": "",
    "tree/bkt/a": "",
    "home/thesis": "",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o644 if name == "open.keys" else 0o600)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "linked/index").mkdir(parents=True)
    (tmp_path / "linked/index/data.mdb").symlink_to(tmp_path / "plain")
    return tmp_path


def test_warnings_follow_the_line_with_the_cause(folder):
    """Warnings follow the line that names the cause: few descriptors, files outside of buckets, a
    variable that is not a setting. Information is not printed."""
    (folder / "tree" / "stray").write_text("")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        flags = [
            "--listen",
            f"127.0.0.1:{taken.getsockname()[1]}",
            "--cache.dir",
            folder / "cache",
            "--cache.size",
            "64MiB",
            "--origin.endpoint",
            f"dir:{folder}/tree",
            "--admin.listen",
            "off",
            "--admin.socket",
            "off",
        ]
        few = ["sh", "-c", 'ulimit -n 300; exec "$@"', "sh", binary()]
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            **PLAIN_ENV,
            "FOREBAY_CACHE_SISE": "1",
        }
        out = subprocess.run(
            [*few, "serve", *map(str, flags)], capture_output=True, text=True, timeout=30, env=env
        )
        assert out.returncode == 1 and "in use" in first_line(out.stderr), out
        rest = "\n".join(out.stderr.splitlines()[1:])
        for words in ("raise_ulimit_n", "directory_files_outside_buckets", "FOREBAY_CACHE_SISE"):
            assert words in rest, out.stderr
        assert '"info"' not in rest and "retention" not in rest, out.stderr
        env["FOREBAY_CACHE_TTL"] = "60"
        out = subprocess.run(
            [*few, "serve", *map(str, flags)], capture_output=True, text=True, timeout=30, env=env
        )
        assert out.returncode == 3 and "FOREBAY_CACHE_TTL: error" in first_line(out.stderr), out
    (folder / "data").mkdir()
    (folder / "data" / "thesis").write_text("")
    out = subprocess.run(
        [
            *few,
            "run",
            "--cache.dir",
            folder / "data",
            "--origin.endpoint",
            f"dir:{folder}/tree",
            "--",
            "true",
        ],
        capture_output=True,
        text=True,
        timeout=30,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **PLAIN_ENV},
    )
    assert out.returncode == 125, out
    assert first_line(out.stderr).startswith(
        f"forebay run: the cache did not start: {folder}/data is not empty"
    ), out.stderr


@pytest.mark.parametrize("mistake", AT_THE_COMMAND_LINE)
def test_at_the_command_line(folder, mistake):
    code, words, command = AT_THE_COMMAND_LINE[mistake]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        names = {
            "SERVE": "--admin.listen off --admin.socket off --listen "
            "127.0.0.1:0 --cache.size 64MiB "
            "--cache.dir DIR/cache --origin.region us-east-1",
            "TAKEN": str(taken.getsockname()[1]),
            "DIR": str(folder),
        }

        def fill(text):
            for name, value in names.items():
                text = text.replace(name, value)
            return text

        arguments = {}
        first, *rest = fill(command).split()
        for flag, value in zip(rest[::2], rest[1::2]):  # the row's own arguments beat SERVE
            arguments[flag] = value
        line = (
            [first, *(word for pair in arguments.items() for word in pair)]
            if "SERVE" in command
            else [first, *rest]
        )
        env = {}
        if mistake == "no credentials":
            env = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
        elif mistake == "half credentials":
            env = {"AWS_SECRET_ACCESS_KEY": ""}
        refused(code, [fill(word) for word in words], line, env=env)


def test_a_directory_that_is_read_only(tmp_path, start, origin):
    """A read-only cache directory is reported as read-only. With cache.optional the server starts
    without a cache."""
    from disks import LoopDisk

    with LoopDisk(tmp_path / "disk", 64 << 20) as disk:
        (disk.mount / "cache").mkdir()
        if not disk.remount("ro"):
            not_run("no read-only remount")
        refused(
            1,
            [str(disk.mount), "Read-only file system", "EROFS", "cache.optional"],
            [
                "serve",
                "--origin.endpoint",
                "http://127.0.0.1:1",
                "--cache.dir",
                str(disk.mount / "cache"),
                "--cache.size",
                "32MiB",
                "--admin.listen",
                "off",
                "--admin.socket",
                "off",
                "--listen",
                "127.0.0.1:0",
            ],
        )


def test_a_disk_that_is_full_at_the_start(tmp_path, start, origin):
    """If the disk is full at the start, the server serves anyway. The first line says why nothing
    is stored."""
    from disks import LoopDisk

    origin.put("k", 100)
    with LoopDisk(tmp_path / "disk", 48 << 20) as disk:
        with pytest.raises(OSError), open(disk.mount / "else", "wb", buffering=0) as other:
            while True:
                other.write(bytes(1 << 20))
        with pytest.raises(OSError), open(disk.mount / "rest", "wb", buffering=0) as other:
            while True:
                other.write(bytes(512))
        server = start(origin, settings={"cache.dir": str(disk.mount / "cache")})
        line = first_line("\n".join(server.stderr))
        for word in (
            str(disk.mount),
            "No space left on device",
            "free space in that file system",
            "cache.dir",
        ):
            assert word in line, line
        with server.client() as client:
            assert client.get("k").status == 200
        server.stop()


def told_at_start(server):
    """Returns what the start says about the origin: in the log and, if it was in time, after the
    origin's name."""
    event = re.compile('"event":"(origin_unreachable|credentials_refused)"')
    server.wait_stderr(event.pattern)
    return next(line for line in server.stderr if event.search(line))


def test_the_clock_is_off(start, origin):
    """An origin that rejects our clock, and names no usable time of its own, is reported."""
    origin.fault(None, "error", (403, "RequestTimeTooSkewed", "No"), times=None)
    told = told_at_start(start(origin, settings={"origin.probe": "true"}))
    assert "clocks" in told and "NTP" in told, told


def test_expired_credentials(start, origin):
    origin.fault(None, "expired_token", times=None)
    told = told_at_start(start(origin, settings={"origin.probe": "true"}))
    assert "session token" in told and "new credentials" in told, told


def test_the_wrong_region(start):
    """The origin names its own region. Forebay uses that one, and clients notice nothing."""
    with Origin(credentials=KEYS, region="eu-west-1") as origin:
        origin.put("k", 100)
        server = start(origin, settings={"origin.probe": "true"})
        with server.client() as client:
            assert client.get("k").status == 200
        server.stop()
        assert not any("credentials_refused" in line for line in server.stderr), server.output()


def test_a_name_that_is_no_name(start):
    """An endpoint whose name does not resolve is reported."""
    told = told_at_start(
        start(
            "http://no-such-host.invalid",
            settings={"origin.probe": "true", "origin.region": "us-east-1"},
        )
    )
    assert "resolved" in told and "origin.endpoint" in told, told


def test_a_bucket_before_a_name_that_has_none_below_it(start):
    """Virtual-host style, but names below the endpoint's do not resolve. The reason may be that no
    name resolves at all."""
    server = start(
        "http://no-such-host.invalid",
        settings={
            "origin.addressing": "virtual",
            "origin.retries": 0,
            "origin.region": "us-east-1",
        },
    )
    with server.client() as client:
        assert client.get("k").status == 503
    told = told_at_start(server)
    assert "with the bucket cannot be resolved" in told and "origin.addressing to path" in told, (
        told
    )
    assert "perhaps no name can" in told and "check the name server" in told, told


def test_a_name_server_that_is_down(start):
    """When the name server is down, the message does not blame the bucket's name in virtual-host
    style, whichever of the two names fails first. It includes the region."""
    server = start(
        "http://s3.{region}.invalid",
        settings={
            "origin.addressing": "virtual",
            "origin.retries": 0,
            "origin.region": "eu-south-9",
            "origin.probe": "true",
        },
    )
    with server.client() as client:
        for _ in range(2):
            assert client.get("k").status == 503
    server.wait_stderr("its name cannot be resolved")
    told = told_at_start(server)
    assert "s3.eu-south-9.invalid" in told and "{region}" not in told, told
    assert not any(
        "with the bucket cannot be resolved" in line and "perhaps no name can" not in line
        for line in server.stderr
    ), server.output()
    assert "s3.eu-south-9.invalid" in server.admin("/readyz").body.decode()


def test_an_origin_that_wants_the_bucket_in_its_name(start, origin):
    origin.fault(None, "error", (403, "SecondLevelDomainForbidden", "No"), times=None)
    server = start(origin, settings={"origin.region": "us-east-1"})
    with server.client() as client:
        assert client.get("k").status == 403
    told = told_at_start(server)
    assert "in the host name" in told and "origin.addressing to virtual" in told, told


def test_a_state_that_is_not_well_says_what_to_do(start, tmp_path):
    """A degraded state names its remedy, and never only refers to the server log."""
    server = start(
        "http://127.0.0.1:1",
        settings={"origin.retries": 0, "origin.region": "us-east-1", "origin.probe": "true"},
    )
    server.wait_stderr("origin_unreachable")
    status = said(server, "status", code=1)
    assert re.search(
        "critical origin-unreachable for .*: it refuses connections\n *-> check host and port of "
        "origin.endpoint",
        status,
    ), status


def test_a_star_inside_is_no_wildcard(forebay, origin):
    origin.put("x*.bin", 100)
    for command in ("warm", "pin", "unpin", "evict"):
        told = said(forebay, command, "s3://bkt/x*.bin")
        assert "by the letter" in told and '("s3://bkt/x*"?)' in told, told
        assert "by the letter" not in said(forebay, command, "s3://bkt/x*")


def test_a_bucket_with_dots(start, certificate):  # noqa: F811 (the fixture)
    """With https and virtual-host style, no certificate covers a bucket name with dots. Forebay
    uses path style for it, and clients notice nothing."""
    with Origin(credentials=KEYS, tls=certificate) as origin:
        origin.make_bucket("my.bucket")
        origin.put("k", 100, bucket="my.bucket")
        port = origin.endpoint.rpartition(":")[2]
        server = start(
            f"https://localhost:{port}",
            settings={
                "origin.addressing": "virtual",
                "origin.ca_file": certificate[0],
                "origin.region": "us-east-1",
            },
        )
        with server.client(host=f"my.bucket.localhost:{server.port}") as client:
            reply = client.request("GET", "/k")
            assert reply.status == 200, reply
        assert [e.target for e in origin.requests()] == ["/my.bucket/k"]


def test_tls_on_the_plain_port_and_the_other_way(start, origin, certificate):
    """An https client on the plain port causes a hint in the log. An http client on the TLS port
    gets an explanation."""
    server = start(
        origin,
        settings={
            "listen": "127.0.0.1:0,tls:127.0.0.1:0",
            "listen_tls.cert": certificate[0],
            "listen_tls.key": certificate[1],
        },
    )
    urls = [line.split()[1] for line in server.stderr if line.strip().startswith("listening")]
    plain, tls = (int(url.rpartition(":")[2]) for url in urls)
    with socket.create_connection(("127.0.0.1", plain)) as client:
        client.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
        server.wait_stderr("tls_hello_on_plain_port.*give it an http:// endpoint")
    with socket.create_connection(("127.0.0.1", tls)) as client:
        client.sendall(b"GET /bkt/k HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = client.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400 ") and b"write https://" in answer, answer
    server.wait_stderr("plain_http_on_tls_port.*give it an https:// endpoint")


def test_a_write_to_a_directory(start, tmp_path):
    (tmp_path / "tree" / "bkt").mkdir(parents=True)
    server = start(f"dir:{tmp_path / 'tree'}")
    with server.client() as client:
        reply = client.request("PUT", "/bkt/x", [("Content-Length", "2")], b"hi")
    assert (
        reply.status == 501
        and b"only read from" in reply.body
        and b"Write to the directory" in reply.body
    )


def test_a_proxy_in_the_environment(start, origin):
    """A proxy in the environment is not used for the origin. `env` sets NO_PROXY, so that clients
    do not use it for Forebay."""
    origin.put("k", 100)
    server = start(
        origin, env={"http_proxy": "http://127.0.0.1:1", "HTTP_PROXY": "http://127.0.0.1:1"}
    )
    with server.client() as client:
        assert client.get("k").status == 200
    out = run_forebay(
        "env", "--shell", "dotenv", "--admin", f"http://127.0.0.1:{server.admin_port}"
    )
    assert "NO_PROXY=127.0.0.1\n" in out.stdout and "no_proxy=127.0.0.1\n" in out.stdout, out


def test_clients_without_keys(start, origin):
    """`env` says that any keys work where none are verified, and sets some on request."""
    server = start(origin)
    admin = f"http://127.0.0.1:{server.admin_port}"
    out = run_forebay("env", "--admin", admin)
    assert out.returncode == 0 and "auth.mode open" in out.stderr and "--any-keys" in out.stderr, (
        out
    )
    assert run_forebay("env", "--admin", admin, env={"AWS_PROFILE": "x"}).stderr == ""
    out = run_forebay("env", "--any-keys", "--shell", "dotenv", "--admin", admin)
    assert "AWS_ACCESS_KEY_ID=any\n" in out.stdout and out.stderr == "", out


def test_check_explains_the_rule_of_an_object(tmp_path):
    """`check --explain BUCKET/KEY` names the rule that applies to an object. `check -T` prints the
    effective value of settings such as 80% or the default endpoint."""
    config = tmp_path / "f.yaml"
    config.write_text(
        "rules:\n  - {match: 'b/*.tar', freshness: immutable}\n  - {match: 'b/**', ttl: 5s}\n"
    )
    for target, line in (
        ("b/x.tar", 'rule: "b/*.tar" at'),
        ("s3://b/d/x.tar", 'rule: "b/**" at'),
        ("c/x", "rule: none of 2 matches"),
    ):
        out = run_forebay("check", "-c", config, "--explain", target)
        assert out.returncode == 0 and out.stdout.startswith(line), out
    out = run_forebay(
        "check", "-T", "--cache.dir", tmp_path / "cache", env={"AWS_REGION": "eu-north-1"}
    )
    rows = {line.split(":")[0]: line for line in out.stdout.splitlines()}
    assert "80%" in rows["cache.size"] and "GiB" in rows["cache.size"], rows["cache.size"]
    assert rows["origin.endpoint"].endswith("now https://s3.eu-north-1.amazonaws.com"), rows[
        "origin.endpoint"
    ]
    assert "now eu-north-1" in rows["origin.region"] and "now" in rows["io.engine"]
    profiles = tmp_path / "profiles"
    profiles.write_text("[profile lab]\nregion = eu-west-3\n")
    env = {"AWS_CONFIG_FILE": str(profiles), "AWS_PROFILE": "lab"}
    out = run_forebay("check", "-T", "--cache.dir", tmp_path / "cache", env=env).stdout
    assert "now https://s3.eu-west-3.amazonaws.com" in out
    assert "now eu-west-3, by profile lab" in out


def test_help_is_where_one_looks_for_it():
    for arguments in (("-V",), ("--version",), ("version",)):
        assert run_forebay(*arguments).stdout.startswith("forebay ")
    for arguments in (("serve", "-h"), ("check", "--help"), ("help", "env")):
        out = run_forebay(*arguments)
        assert out.returncode == 0 and out.stdout.startswith("usage: forebay"), out

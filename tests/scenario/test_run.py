# SPDX-License-Identifier: Apache-2.0
"""`run` gives one command a cache of its own: environment, signals and exit code. Nothing is left
when either side dies."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from forebay import KEYS, binary, run_forebay
from origin import Origin
from test_connections import certificate  # noqa: F401 (a fixture)
from waiting import WAIT_S, wait_for

ACCESS, SECRET = next(iter(KEYS.items()))
READ = 'curl -sf "$AWS_ENDPOINT_URL_S3/bkt/a" -o /dev/null'


def heard():
    """A background job of a shell ignores these signals, and so do its children."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def run(tmp_path, origin):
    """run(words..., wait=False, flags=[]) runs `forebay run` over the scripted origin, with a home
    of its own."""
    running = []
    # Programs that are nowhere an old client: those on PATH may be.
    tools = tmp_path / "tools/bin"
    tools.mkdir(parents=True)
    for name in ("python3", "aws"):
        (tools / name).write_text(f'#!/bin/sh\nexec {shutil.which(name) or "false"} "$@"\n')
        (tools / name).chmod(0o755)

    def make(*words, wait=True, size="64MiB", flags=(), env=None):
        full = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "LC_ALL": "C.UTF-8",
            "XDG_RUNTIME_DIR": str(tmp_path),
            "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_S3": origin.endpoint,
        }
        for name in ("ASAN_OPTIONS", "TSAN_OPTIONS", "LSAN_OPTIONS"):
            if name in os.environ:
                full[name] = os.environ[name]
        full.update(env or {})
        process = subprocess.Popen(
            [binary(), "run", f"--cache.size={size}", "--workers=1", *flags, "--", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=full,
            cwd=tmp_path,
            start_new_session=True,
            preexec_fn=heard,
        )
        running.append(process)
        if not wait:
            return process
        out, err = process.communicate(timeout=WAIT_S)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    yield make
    for process in running:
        if process.poll() is None:
            process.kill()
        process.stdout.close()
        process.stderr.close()


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def server_of(process):
    """Returns the child process that is a server."""
    for pid in children(process.pid):
        with contextlib.suppress(OSError):  # it has ended since
            with open(f"/proc/{pid}/cmdline") as file:
                if file.read().split("\0")[1:2] == ["serve"]:
                    return pid
    return None


def line_of(process):
    return process.stdout.readline().strip()


def test_the_second_run_reads_what_the_first_has_cached(run, origin, tmp_path):
    size = 20 << 20  # read-ahead fetches some of it
    origin.put("a", size)
    first = run("sh", "-c", READ)
    assert first.returncode == 0, first.stderr
    assert "from here 0.0 % of the bytes" in first.stderr
    second = run("sh", "-c", READ)
    assert second.returncode == 0 and origin.bytes_sent("a") == size
    assert [line.split()[0] for line in second.stderr.replace("forebay: ", "", 1).splitlines()] == [
        "served",
        "from",
        "saved",
        "worth",
    ]
    assert re.search(r"served +20\.0 MiB in 1 requests", second.stderr)
    assert f"from here 100.0 % of the bytes ({tmp_path}/.cache/forebay)" in second.stderr
    # The check of the origin at the start is not a reader's request.
    saved = r"saved +(19\.\d|20\.0) MiB and 1 requests of the origin"
    assert re.search(saved, second.stderr)
    # All was warm: the second run compares with the miss of the first.
    assert re.search(
        r"worth     under \$0\.01 if the bytes leave the origin's region, else under \$0\.01"
        r"(; \d+\.\d s of waiting summed over all readers, at [1-9\d][\d.]* ms a miss)?\n",
        second.stderr,
    )
    assert "worth" not in first.stderr  # it saved nothing
    assert run("true", flags=["-q"]).stderr == ""
    # A command whose client went elsewhere: that is said, and no savings of nothing.
    lines = run("true").stderr.splitlines()
    assert re.match(r"forebay: served +nothing, .* forebay run --global$", lines[0]), lines
    assert lines[1:] == []
    assert not list(tmp_path.glob("forebay-*"))


def test_commands_inside_and_elsewhere_find_the_server(run, tmp_path):
    """A command of Forebay inside the run asks its server. One in another terminal that finds no
    server names that of the run, as -v does."""
    inside = run(binary(), "status")
    assert inside.returncode == 0 and "origin" in inside.stdout, inside
    process = run("sh", "-c", "echo ready; exec sleep 1000", wait=False, flags=["-v"])
    assert line_of(process) == "ready"
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}
    lost = run_forebay("status", "--admin", "127.0.0.1:1", env=env)
    (address,) = re.findall(r"a forebay run of yours answers at --admin (\S+)", lost.stderr)
    assert address.startswith(f"unix:{tmp_path}/forebay-"), lost
    found = run_forebay("status", "--admin", address, env=env)
    assert found.returncode == 0, found
    process.terminate()
    assert f"forebay top --admin {address}\n" in process.communicate(timeout=WAIT_S)[1]
    assert "a forebay run" not in run_forebay("status", "--admin", address, env=env).stderr


def test_a_command_that_only_writes_is_not_called_a_client_of_another_endpoint(run, origin):
    """The summary counts requests that are no reads, because the client did use this endpoint."""
    code = (
        "import boto3; c = boto3.client('s3'); c.put_object(Bucket='bkt', Key='a', Body=b'x'); "
        "c.delete_object(Bucket='bkt', Key='a')"
    )
    got = run(sys.executable, "-c", code)
    assert got.returncode == 0, got
    assert re.search(
        r"served +nothing .*: 2 requests came here, and none of them read an object\n", got.stderr
    )
    assert "endpoint" not in got.stderr


def test_the_summary_names_the_settings_that_avoid_checks(run, origin):
    """If a large part of the requests only asked the origin whether an object has changed, the
    summary says how many, and how to avoid them."""
    for i in range(12):
        origin.put(f"o{i}", 1000)
    read = 'for i in $(seq 0 11); do curl -sf "$AWS_ENDPOINT_URL_S3/bkt/o$i" -o /dev/null; done'
    assert "checks" not in run("sh", "-c", read, flags=["--cache.ttl=0s"]).stderr
    second = run("sh", "-c", read, flags=["--cache.ttl=0s"]).stderr
    assert re.search(r"checks    12 with the origin, .* --cache\.ttl 30d, or a rule", second), (
        second
    )
    assert "checks" not in run("sh", "-c", read, flags=["--cache.ttl=30d"]).stderr


def test_the_summary_names_plan_if_the_data_is_larger_than_the_cache(run, origin):
    """If a large part of the data was not stored because the cache is full, the summary says so,
    and how to find a better size. It does not where all of it fits."""
    for i in range(64):
        origin.put(f"o{i}", 1 << 20)
    read = 'for i in $(seq 0 63); do curl -sf "$AWS_ENDPOINT_URL_S3/bkt/o$i" -o /dev/null; done'
    assert "unstored" not in run("sh", "-c", read, size="256MiB").stderr
    said = run("sh", "-c", read, size="16MiB").stderr
    assert re.search(
        r"unstored  [0-9]+ % of the fetches, because the cache is full: cache.size is 16\.0 MiB\. "
        r"forebay plan --dataset SIZE",
        said,
    ), said


def test_the_last_warning_is_shown_in_words(run, origin):
    """The summary shows text and remedy of the last warning, not its line of the log."""
    origin.down()
    words = run("sh", "-c", READ)
    last = words.stderr.partition("the last:\n")[2]
    assert re.search(r"^ +origin-unreachable: .+; .+", last) and "=" not in last, words.stderr


def test_a_cache_that_must_shrink_is_a_sentence_in_the_summary(run, origin):
    """The second run has a smaller cache.size than what the first one has stored. The summary says
    that in a sentence, without keys of the log."""
    for i in range(48):
        origin.put(f"o{i}", 1 << 20)
    read = 'for i in $(seq 0 47); do curl -sf "$AWS_ENDPOINT_URL_S3/bkt/o$i" -o /dev/null; done'
    assert run("sh", "-c", read).returncode == 0
    said = run("sh", "-c", READ, size="16MiB").stderr.partition("the last:\n")[2]
    sentence = "cache shrunk: the cache was larger than cache.size, so cached data was removed"
    assert sentence in said and "bytes" not in said, said


def test_a_condition_is_printed_while_the_command_runs(run, origin):
    """A condition is printed once when it begins, because the log of this server is hidden. If the
    origin refuses the keys, the line says that they are those of the command."""
    wrong = {"AWS_ACCESS_KEY_ID": "nobody"}
    process = run("sh", "-c", f"{READ}; echo ready; exec sleep 1000", wait=False, env=wrong)
    assert line_of(process) == "ready"
    said = process.stderr.readline()
    assert said.startswith("forebay run: warning: credentials-refused: origin "), said
    assert "those of AWS_ACCESS_KEY_ID in the environment, which the command uses, too" in said
    process.terminate()
    rest = process.communicate(timeout=WAIT_S)[1]
    assert "warning: credentials-refused" not in rest and " log" not in said + rest, rest
    assert re.search(r"the last:\n +credentials-refused: ", rest), rest
    client = run("sh", "-c", READ.replace("-sf", "-s").replace(" -o /dev/null", ""), env=wrong)
    assert "Remedy, where Forebay runs: check the key id" in client.stdout, client


def test_a_run_inside_another_one_warns(run, origin):
    """`run` warns if the environment points clients to a Forebay on this host already. The inner
    command still reads."""
    origin.put("a", 1 << 20)
    inner = run(binary(), "run", "--cache.size=64MiB", "--workers=1", "--", "sh", "-c", READ)
    assert inner.returncode == 0, inner.stderr
    assert inner.stderr.count("is a Forebay already, so each byte is cached twice") == 1


PROFILES = """
[profile lab]
endpoint_url = {0}
region = eu-west-3
[profile services]
services = lab
endpoint_url = http://127.0.0.1:9
region = eu-west-3
[services lab]
s3 =
  endpoint_url = {0}
"""
BOTO3 = (
    "import boto3; c = boto3.client('s3'); "
    "print(c.meta.endpoint_url, len(c.get_object(Bucket='bkt', Key='a')['Body'].read()))"
)


@pytest.mark.parametrize("profile", ["lab", "services"])
def test_the_profile_names_the_origin_as_for_the_sdks(run, origin, tmp_path, profile):
    """endpoint_url and region of the profile are those of the origin, so that a job reads from the
    store that it would read from without forebay. The job itself asks this server, although its
    profile names another endpoint."""
    origin.put("a", 1000)
    (tmp_path / "config").write_text(PROFILES.format(origin.endpoint))
    env = {
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_PROFILE": profile,
        "AWS_ENDPOINT_URL_S3": "",
        "AWS_REGION": "",
    }
    got = run(sys.executable, "-c", BOTO3, env=env, flags=["-v"])
    (endpoint, size) = got.stdout.split()
    assert endpoint != origin.endpoint and size == "1000" and origin.bytes_sent("a") == 1000
    assert f"the origin is {origin.endpoint} (" in got.stderr, got.stderr
    assert f"profile {profile})" in got.stderr
    request = origin.requests("a", "GET")[0]
    assert "/eu-west-3/s3/" in request.header("authorization")
    # A setting wins over the profile, and a variable does, too.
    other = {**env, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    assert "the origin is http://127.0.0.1:9 (env AWS_ENDPOINT_URL)" in (
        run("true", env=other, flags=["-v"]).stderr
    )
    flags = ["-v", "--origin.endpoint=http://127.0.0.1:7"]
    assert "the origin is http://127.0.0.1:7 (--origin.endpoint" in (
        run("true", env=env, flags=flags).stderr
    )


TWO_PROFILES = """
[default]
endpoint_url = http://127.0.0.1:9
[profile other]
endpoint_url = {0}
region = eu-west-3
aws_access_key_id = {1}
aws_secret_access_key = {2}
"""


@pytest.mark.parametrize("words", [["--profile", "other"], ["--profile=other"]])
def test_the_profile_in_the_words_of_aws_names_the_origin(run, origin, tmp_path, words):
    """The endpoint, region and keys of `aws --profile other` are those of the origin, although the
    environment names another profile, and other keys, as aws uses that profile too. Another
    program's --profile has no effect."""
    origin.put("a", 1000)
    (tmp_path / "config").write_text(TWO_PROFILES.format(origin.endpoint, ACCESS, SECRET))
    (tmp_path / "aws").write_text(f"#!/bin/sh\n{READ}\n")
    (tmp_path / "aws").chmod(0o755)
    env = {
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_ACCESS_KEY_ID": "unknown",
        "AWS_PROFILE": "default",
        "AWS_ENDPOINT_URL_S3": "",
        "AWS_REGION": "",
    }
    got = run(str(tmp_path / "aws"), "s3", *words, env=env, flags=["-v"])
    assert got.returncode == 0, got
    assert f"the origin is {origin.endpoint} (profile other)" in got.stderr, got.stderr
    assert "AWS_PROFILE is other, as --profile of " in got.stderr, got.stderr
    sent = origin.requests("a", "GET")[0].header("authorization")
    assert f"Credential={ACCESS}/" in sent and "/eu-west-3/s3/" in sent, sent
    got = run("sh", "-c", "exit 0", *words, env=env, flags=["-v"])
    assert "the origin is http://127.0.0.1:9 (profile default)" in got.stderr, got.stderr


def test_run_names_another_profile_with_another_endpoint(run, tmp_path):
    """A program that chooses its profile itself reads from the origin of this environment. `run`
    says so if another profile has another endpoint, unless the user has chosen one."""
    (tmp_path / "config").write_text(TWO_PROFILES.format("http://127.0.0.1:7", ACCESS, SECRET))
    env = {"AWS_CONFIG_FILE": str(tmp_path / "config"), "AWS_ENDPOINT_URL_S3": ""}
    told = "profile other has another endpoint: set AWS_PROFILE"
    got = run("true", env=env)
    assert told in got.stderr and "reads from http://127.0.0.1:9, even if" in got.stderr, got
    assert told not in run("true", env=env, flags=["-q"]).stderr
    assert told not in run("true", env=env, flags=["--origin.endpoint=http://127.0.0.1:5"]).stderr
    for name, value in (("AWS_PROFILE", "default"), ("AWS_ENDPOINT_URL", "http://127.0.0.1:5")):
        assert told not in run("true", env={**env, name: value}).stderr


def test_the_authorities_of_the_sdks_are_those_of_the_origin(
    run,
    tmp_path,
    certificate,  # noqa: F811
):
    """AWS_CA_BUNDLE names the authority of a store with a certificate of its own, as for the SDKs.
    origin.ca_file wins over it."""
    authority, none = certificate[0], str(tmp_path / "none.pem")
    with Origin(credentials=KEYS, tls=certificate) as secret:
        secret.put("a", 1000)
        env = {"AWS_ENDPOINT_URL_S3": secret.endpoint}
        read = (sys.executable, "-c", BOTO3)
        got = run("sh", "-c", READ.replace("-sf", "-s").replace(" -o /dev/null", ""), env=env)
        assert "AWS_CA_BUNDLE" in got.stdout and not secret.requests("a"), got
        env["AWS_CA_BUNDLE"] = authority
        got = run(*read, env=env, flags=["-v"])
        assert got.stdout.split()[-1:] == ["1000"], got
        assert f"authorities are those in {authority} (env AWS_CA_BUNDLE)" in got.stderr, got
        got = run("true", env=env, flags=[f"--origin.ca_file={none}"])
        assert got.returncode == 125 and none in got.stderr, got


def test_ignored_endpoints_are_no_origin(run, tmp_path):
    """If the SDKs ignore configured endpoints, the origin is AWS, as without forebay. Such clients
    ignore this server as well, which `run` and `env` warn of."""
    (tmp_path / "config").write_text(PROFILES.format("http://127.0.0.1:9"))
    env = {
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_PROFILE": "lab",
        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "TRUE",
    }
    warned = "export AWS_IGNORE_CONFIGURED_ENDPOINT_URLS=false"
    got = run("true", env=env, flags=["-v"])
    assert "the origin is https://s3.us-east-1.amazonaws.com (default)" in got.stderr, got.stderr
    assert warned in got.stderr
    got = run_forebay("env", "--endpoint", "http://127.0.0.1:9000", "--shell", "bash", env=env)
    assert warned in got.stderr, got
    env["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"] = "false"
    assert "IGNORE" not in run("true", env=env).stderr


@pytest.mark.parametrize(
    "words, code",
    [
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -KILL $$"], 137),
        (["no-such-command"], 127),
        (["/etc"], 126),
    ],
)
def test_exit_codes_are_those_of_the_command(run, words, code):
    assert run(*words).returncode == code


def test_a_deep_runtime_directory_is_no_obstacle(run, tmp_path):
    """If the runtime directory is too deep for a socket's address, `run` creates the socket
    elsewhere."""
    deep = tmp_path / "/".join(["d" * 30] * 4)
    deep.mkdir(parents=True)
    assert run("sh", "-c", "exit 7", env={"XDG_RUNTIME_DIR": str(deep)}).returncode == 7


def test_125_when_the_cache_does_not_start(run, tmp_path):
    told = run("true", env={"AWS_ENDPOINT_URL_S3": f"dir:{tmp_path}/nowhere"})
    assert told.returncode == 125 and "must name an existing directory" in told.stderr
    assert f"the origin is dir:{tmp_path}/nowhere (env AWS_ENDPOINT_URL_S3)" in told.stderr
    told = run("true", flags=["--cache.ttl=5"])
    assert told.returncode == 125 and "needs a unit" in told.stderr
    for words in (["--cache.size=64MiB"], ["--frobnicate", "true"], ["--cache.sise=1GiB", "true"]):
        assert run_forebay("run", *words).returncode == 125, words


@pytest.mark.parametrize("flags", [[], ["--cache.ttl", "1s", "-q"]])
def test_options_after_the_command_are_its_own(origin, tmp_path, flags):
    """The options of `run` end at the command, also without "--". So -c of another program names no
    configuration file, and its --help is not that of `run`."""
    env = {
        "HOME": str(tmp_path),
        "XDG_RUNTIME_DIR": str(tmp_path),
        "AWS_ENDPOINT_URL_S3": origin.endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }
    words = ["echo", "-c", "x", "--help", "--cache.size", "1GiB", "--", "-q"]
    got = run_forebay("run", "--cache.size=64MiB", *flags, *words, env=env)
    assert (got.returncode, got.stdout.split()) == (0, words[1:]), got.stderr


def test_the_environment_points_clients_here(run):
    told = run(
        "env",
        flags=["--global", "--origin.endpoint", "http://127.0.0.1:9"],
        env={"NO_PROXY": "intranet.example"},
    )
    names = dict(line.split("=", 1) for line in told.stdout.splitlines())
    assert names["AWS_ENDPOINT_URL"] == names["AWS_ENDPOINT_URL_S3"] == names["S3_ENDPOINT_URL"]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", names["AWS_ENDPOINT_URL_S3"])
    assert (
        names["AWS_S3_ENDPOINT"]
        == names["S3_ENDPOINT"]
        == names["AWS_ENDPOINT_URL"][len("http://") :]
    )
    assert (names["AWS_HTTPS"], names["AWS_VIRTUAL_HOSTING"]) == ("NO", "FALSE")
    assert names["GDAL_DISABLE_READDIR_ON_OPEN"] == "EMPTY_DIR"
    assert "HTS_S3_HOST" not in names  # its s3:// names would mean https to a plain port
    assert names["NO_PROXY"] == names["no_proxy"] == "intranet.example,127.0.0.1"
    own = {"AWS_S3_ENDPOINT": "minio.example:9000"}  # perhaps another store than the origin
    kept = dict(line.split("=", 1) for line in run("env", env=own).stdout.splitlines())
    assert kept["AWS_S3_ENDPOINT"] == "minio.example:9000" and "AWS_HTTPS" not in kept
    assert "LISTEN_FDS" not in names and "NOTIFY_SOCKET" not in names


def test_the_command_is_as_it_would_be_without(run):
    """The command gets all of its words, however many, even words that are options of forebay. Its
    SIGPIPE is as before (Popen sets the default)."""
    ours = ["-q", "--global", "-h", "--help", "--cache.size=1", "--"]
    told = run(
        "sh",
        "-c",
        "echo $#; shift 2000; echo $*; yes | head -1",
        "sh",
        *map(str, range(2000)),
        *ours,
    )
    assert (
        told.stdout.splitlines() == [str(2000 + len(ours)), " ".join(ours), "y"]
        and told.returncode == 0
    ), told
    assert "served" in told.stderr and "Broken pipe" not in told.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reach_the_command(run, number):
    process = run(
        "sh",
        "-c",
        "trap 'echo got it; exit 9' TERM INT HUP; echo ready; while :; do sleep 0.05; done",
        wait=False,
    )
    assert line_of(process) == "ready"
    process.send_signal(number)
    assert process.wait(WAIT_S) == 9
    assert line_of(process) == "got it"


def test_no_orphans_when_run_is_killed(run):
    process = run("sh", "-c", "echo ready; exec sleep 1000", wait=False)
    assert line_of(process) == "ready"
    pids = children(process.pid)
    assert len(pids) == 2
    process.kill()
    process.wait(WAIT_S)
    for pid in pids:
        wait_for(lambda: is_gone(pid), f"the end of {pid}")


def test_a_server_that_dies_is_started_again(run, origin, tmp_path):
    origin.put("a", 1000)
    os.mkfifo(tmp_path / "go")
    process = run("sh", "-c", f"echo ready; read x <go; {READ}; echo $?", wait=False)
    assert line_of(process) == "ready"
    server = server_of(process)
    os.kill(server, signal.SIGKILL)
    wait_for(lambda: server_of(process) not in (None, server), "another server")
    (tmp_path / "go").write_text("go\n")
    assert line_of(process) == "0"
    assert process.wait(WAIT_S) == 0 and "was started again" in process.stderr.read()


def test_two_runs_have_a_directory_each(run, tmp_path):
    """The second run says that it does not have the cache of the first one, and what to do."""
    one = run("sh", "-c", "echo ready; exec sleep 1000", wait=False)
    assert line_of(one) == "ready"
    said = run("true").stderr
    assert f"({tmp_path}/.cache/forebay-2)" in said
    assert f"another forebay run or serve uses the cache {tmp_path}/.cache/forebay, " in said
    assert "`forebay serve`" in said and '`eval "$(forebay env)"`' in said
    assert run("true", flags=["-q"]).stderr == ""
    one.terminate()
    assert one.wait(WAIT_S) == 143
    alone = run("true").stderr
    assert f"({tmp_path}/.cache/forebay)" in alone and "another forebay" not in alone


def test_runs_that_start_together_do_not_fail(run, tmp_path):
    together = [run("sh", "-c", "echo ready; exec sleep 1000", wait=False) for _ in range(4)]
    assert [line_of(process) for process in together] == ["ready"] * 4
    for process in together:
        process.terminate()
    said = [process.communicate(timeout=WAIT_S)[1] for process in together]
    used = {re.search(r"\((/.*/forebay[-0-9]*)\)", text).group(1) for text in said}
    assert len(used) == 4, said


def test_the_end_is_seen_where_ends_of_children_are_ignored(origin, tmp_path):
    """`run` notices the command's end even if its parent ignores SIGCHLD, as some daemons do. The
    command inherits that setting."""
    script = (
        "import signal, os, sys; signal.signal(signal.SIGCHLD, "
        "signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    inner = (
        "import signal; print(signal.getsignal(signal.SIGCHLD) == "
        "signal.SIG_IGN); raise SystemExit(7)"
    )
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "AWS_ACCESS_KEY_ID": ACCESS,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }
    got = subprocess.run(
        [
            "python3",
            "-c",
            script,
            binary(),
            "run",
            "-q",
            "--cache.size=64MiB",
            "--workers=1",
            f"--origin.endpoint={origin.endpoint}",
            "--origin.region=us-east-1",
            "--",
            "python3",
            "-c",
            inner,
        ],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        cwd=tmp_path,
        env=env,
    )
    assert (got.returncode, got.stdout) == (7, "True\n"), got.stderr


@pytest.mark.parametrize("flag", ["--listen=127.0.0.1:9000", "--admin.socket=/tmp/s"])
def test_an_address_that_each_run_chooses_is_refused(run, flag):
    """A flag for it would have no effect. The same variable, which is for `serve`, is ignored."""
    done = run("true", flags=[flag])
    assert done.returncode == 125, done
    assert f"{flag.partition('=')[0]} has no effect here" in done.stderr, done.stderr
    name, _, value = flag.removeprefix("--").partition("=")
    variable = "FOREBAY_" + name.upper().replace(".", "_")
    assert run("true", env={variable: value}).returncode == 0


def test_the_folder_of_a_killed_run_is_removed_by_the_next(run, tmp_path):
    """A run that is killed leaves the folder of its socket. The next run removes it, and neither
    that of a run in progress nor a folder of another program."""
    waiting = "echo ready; exec sleep 1000"
    killed = run("sh", "-c", waiting, wait=False)
    assert line_of(killed) == "ready"
    (left,) = tmp_path.glob("forebay-??????")
    alive = run("sh", "-c", waiting, wait=False)
    assert line_of(alive) == "ready"
    (other,) = set(tmp_path.glob("forebay-??????")) - {left}
    foreign = tmp_path / "forebay-foreig"
    foreign.mkdir()
    (foreign / "admin.sock").write_text("of another program")
    killed.kill()
    killed.wait(timeout=WAIT_S)

    def is_gone():
        assert run("true").returncode == 0
        return not left.exists()

    wait_for(is_gone, "the folder is removed, once its server has ended")
    assert (other / "admin.sock").is_socket() and (foreign / "admin.sock").exists()
    assert set(tmp_path.glob("forebay-??????")) == {other, foreign}
    alive.terminate()
    alive.communicate(timeout=WAIT_S)

# SPDX-License-Identifier: Apache-2.0
"""The commands that need no running server, as users see them: help, the manual, completion and
error messages."""

import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import threading

import pytest

from conftest import not_run
from forebay import PATIENT, binary, run_forebay
from signer import Signer
from waiting import WAIT_S, wait_for

HELP = run_forebay("help").stdout
COMMANDS = re.findall(r"^  ([a-z]+) {2,}", HELP, re.M)


def test_help_groups_all_commands_with_two_examples_each():
    """`forebay help` fits a terminal of 80 columns. Each group has two examples."""
    groups = re.findall(r"^([A-Z].*)\n((?:  .*\n)+)", HELP.partition("\nOptions")[0], re.M)
    assert [title for title, _ in groups] == ["Serve", "Look", "Change", "Plan", "Set up"]
    for title, body in groups:
        assert len(re.findall(r"^    \$ forebay \w+", body, re.M)) == 2, title
    assert len(COMMANDS) == len(set(COMMANDS)) > 30
    assert max(len(line) for line in HELP.splitlines()) <= 80


def test_forebay_alone_says_how_to_begin():
    """Without a command, Forebay names three next steps and the list of commands, on stderr."""
    got = run_forebay()
    assert (got.returncode, got.stdout) == (2, "")
    assert re.findall(r"^  forebay (\w+)", got.stderr, re.M) == ["run", "serve", "doctor"]
    assert f"`forebay help` lists all {len(COMMANDS)} commands" in got.stderr
    assert len(got.stderr.splitlines()) < 10


def test_help_of_every_command_is_the_same_however_it_is_asked_for():
    """`forebay help COMMAND` and `forebay COMMAND -h` print the same text."""
    assert {"serve", "check", "help", "completion"} <= set(COMMANDS)
    for name in COMMANDS:
        told = run_forebay("help", name)
        assert told.returncode == 0 and told.stderr == ""
        assert told.stdout.startswith(f"usage: forebay {name}")
        asked = run_forebay(name, "--help" if name == "serve" else "-h")
        assert (asked.returncode, asked.stdout, asked.stderr) == (0, told.stdout, "")


@pytest.mark.parametrize(
    "words, code, line",
    [
        ([], 2, "Forebay keeps"),
        (
            ["sevre"],
            2,
            'forebay: sevre: no such command (did you mean "serve"?); `forebay help` lists them',
        ),
        (
            ["--lvie", "check"],
            2,
            "forebay: --lvie: not an option that may precede a command; `forebay help` lists them",
        ),
        (
            ["check", "--lvie"],
            2,
            "forebay check: --lvie: no such option (did you mean "
            '"--live"?); `forebay help check` tells more',
        ),
        (
            ["check", "--cache.sise", "1GiB"],
            3,
            'forebay check: --cache.sise: error: unknown flag (did you mean "--cache.size"?)',
        ),
        (["plan"], 2, "forebay plan: --dataset and --cache are sizes such as 2TB and 1.5TiB"),
        (["du", "--admin", "127.0.0.1:1"], 6, "forebay du: no server answers at 127.0.0.1:1 "),
        (["help", "x"], 2, "forebay: x: no such command or setting; `forebay help` lists commands"),
        (
            ["help", "cache.tll"],
            2,
            'forebay: cache.tll: no such command or setting (did you mean "cache.ttl"?); ',
        ),
        (
            ["help", "rulse"],
            2,
            'forebay: rulse: no such command or setting (did you mean "rules"?)',
        ),
        (["help", "serv"], 2, 'forebay: serv: no such command or setting (did you mean "serve"?)'),
    ],
)
def test_mistakes_give_one_line(words, code, line):
    """A mistake on the command line gives a message of one line."""
    got = run_forebay(*words)
    assert got.returncode == code and got.stdout == "" and got.stderr.startswith(line)
    assert got.stderr.count("\n") == 1 or not words


def test_help_describes_a_setting():
    """`help KEY` says what the setting means, which values it takes, and its default."""
    got = run_forebay("help", "cache.size")
    assert got.returncode == 0 and got.stdout.startswith("cache.size: "), got
    assert re.search(r"^  default     80%$", got.stdout, re.M), got.stdout


@pytest.mark.parametrize(
    "word, wanted",
    [
        ("rules", [r"^  freshness +When .*", r"^  readahead +Most", r"^    - match: "]),
        ("buckets", [r"^  endpoint +S3 endpoint", r"^  requester_pays +", r"^    - name: "]),
        ("cache", [r"^cache\.size +Hard limit", r"^cache\.ttl +", r"^rules\[\]\.cache: "]),
        ("freshness", [r"^rules\[\]\.freshness: ", r"^  values +ttl\|immutable\|strict$"]),
        ("immutable", [r"^rules\[\]\.freshness: ", r"^      freshness: immutable$"]),
        ("list_ttl", [r"^cache\.list_ttl: ", r"^rules\[\]\.list_ttl: ", r"^  default +0s$"]),
        ("rules[].pin", [r"^rules\[\]\.pin: ", r"^  values +true\|false$"]),
        (
            "cache.ttl",
            [
                r"^  flag +--cache\.ttl 60s$",
                r"^  variable +FOREBAY_CACHE_TTL=60s$",
                r"^  file +cache: \{ttl: 60s\}$",
                r"^  in lists +rules\[\]\.ttl: [^:]*freshness ttl$",
            ],
        ),
    ],
)
def test_help_describes_sections_lists_and_fields(word, wanted):
    """`help` knows every word that a configuration may have, from the tables behind its check."""
    got = run_forebay("help", word)
    assert got.returncode == 0 and got.stderr == "", got
    missing = [part for part in wanted if not re.search(part, got.stdout, re.M)]
    assert not missing, got.stdout


@pytest.mark.parametrize("flag", ["--rules", "--rules.freshness", "--buckets"])
def test_a_flag_for_a_list_gets_an_example_for_the_file(flag, tmp_path):
    """Rules and buckets have no flags. The error has lines that work in a file."""
    got = run_forebay("check", flag, "x")
    first, *example = got.stderr.splitlines()
    assert got.returncode == 3 and len(example) == 3, got
    assert first.startswith(f"forebay check: {flag}: error: no flag: "), first
    file = tmp_path / "forebay.yaml"
    file.write_text("\n".join(example))
    got = run_forebay("check", "-c", file)
    assert got.returncode == 0 and "error" not in got.stderr, got


def test_short_forms():
    """The short forms of help and version print the same as the long ones."""
    assert run_forebay("-h").stdout == run_forebay("help").stdout == run_forebay("--help").stdout
    assert (
        run_forebay("-V").stdout == run_forebay("version").stdout == run_forebay("--version").stdout
    )


# --- the manual and completion --------------------------------------------------------------------


@pytest.mark.parametrize("page", [[], ["forebay.yaml"]])
def test_the_manual_is_good_mdoc(page, tmp_path):
    """The manual is valid mdoc."""
    source = run_forebay("help", "--man", *page).stdout
    path = tmp_path / "page"
    path.write_text(source)
    if not shutil.which("mandoc"):
        not_run("mandoc is not installed")
    lint = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", path], capture_output=True, text=True
    )
    assert lint.stdout + lint.stderr == ""
    text = subprocess.run(
        ["mandoc", "-T", "ascii", "-O", "width=200", path],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    plain = "".join(c for i, c in enumerate(text) if c != "\b" and text[i + 1 : i + 2] != "\b")
    wanted = COMMANDS if not page else ["cache.size", "origin.endpoint", "shutdown.grace"]
    for word in wanted:
        assert f"     {word}" in plain, word
    assert page or "forebay warm s3://imagenet/train/ --wait" in plain
    assert "--cache.size" not in plain or page == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_of_its_shell(shell):
    """The completion script is valid in its shell."""
    got = run_forebay("completion", shell)
    assert got.returncode == 0
    for word in [*COMMANDS, "cache.size"]:
        assert word in got.stdout
    if not shutil.which(shell):
        not_run(f"{shell} is not installed")
    judged = subprocess.run([shell, "-n"], input=got.stdout, capture_output=True, text=True)
    assert (judged.returncode, judged.stderr) == (0, "")


@pytest.mark.parametrize(
    "words, offered, others",
    [
        (["ch"], {"check"}, set()),
        (["check", "--"], {"--live", "--admin", "--cache.size"}, {"--shell"}),
        (["env", "--shell", ""], {"bash", "fish", "docker"}, {"--global"}),
        (["config", ""], {"default", "schema", "docs"}, set()),
        (["help", "ser"], {"serve"}, {"check"}),
        (["serve", "--cache.policy", ""], {"epoch", "lru"}, {"--cache.size"}),
        (["version", "--"], {"--json", "--help", "--no-color"}, {"--cache.size"}),
        (["-"], {"-q", "-c", "--admin", "--help"}, {"--cache.size", "check"}),
        (["-q", "--admin", "x", "ch"], {"check"}, {"--live"}),
        (["--timeout", "=", "3", "check", "--li"], {"--live"}, {"check"}),
        (["--admin", ""], set(), {"check"}),
    ],
)
def test_bash_completes(words, offered, others):
    """Completion works in bash."""
    script = run_forebay("completion", "bash").stdout + "\n".join(
        [
            "",
            "COMP_WORDS=(forebay " + " ".join(repr(word) for word in words) + ")",
            f"COMP_CWORD={len(words)}",
            "_forebay",
            'printf "%s\\n" "${COMPREPLY[@]}"',
        ]
    )
    got = set(
        subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, check=True
        ).stdout.split()
    )
    assert offered <= got and not others & got


# --- keys, prepare --------------------------------------------------------------------------------


def test_a_new_key_opens_what_it_is_allowed_to(start, origin, tmp_path):
    """The output of `keys new` is a complete keys file. Its comments contain the client's half."""
    made = run_forebay("keys", "new", "trainer", "--allow", "bkt/train/")
    assert made.returncode == 0 and made.stderr == ""
    keys = tmp_path / "keys.yaml"
    keys.write_text(made.stdout)
    keys.chmod(0o600)
    client_side = dict(re.findall(r"export (\w+)=(\S+)", made.stdout))
    origin.put("train/a", 100)
    origin.put("other/a", 100)
    server = start(origin, settings={"auth.mode": "verify", "auth.keys_file": keys})
    signer = Signer(client_side["AWS_ACCESS_KEY_ID"], client_side["AWS_SECRET_ACCESS_KEY"])
    with server.client() as client:
        for target, status in (("/bkt/train/a", 200), ("/bkt/other/a", 403)):
            headers = signer.headers("GET", target, client.host, (), b"")
            assert client.request("GET", target, headers).status == status


@pytest.mark.parametrize("mode,warns", [(0o644, True), (0o640, False), (0o600, False)])
def test_keys_new_warns_of_a_file_that_others_may_read(tmp_path, mode, warns):
    """The server would refuse the file. The warning names the remedy."""
    keys = tmp_path / "keys.yaml"
    keys.touch()
    keys.chmod(mode)
    with keys.open("a") as file:
        done = subprocess.run(
            [binary(), "keys", "new", "a", "--allow", "bkt/"],
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
    assert done.returncode == 0
    assert ("chmod 600 it" in done.stderr) is warns, done.stderr


ETC_OF_ITS_OWN = """
set -e
mount --make-rprivate / && mount -t tmpfs none /etc || exit 77
mkdir /etc/forebay
cp "$2"/* /etc/forebay/
if [ -n "$3" ]; then
    chown "0:$3" /etc/forebay/keys.yaml
    chmod "$4" /etc/forebay/keys.yaml
fi
eval "$5"
"""


def in_etc_of_its_own(folder, script, group="", mode=""):
    """Runs a script as root, with the files of FOLDER in /etc/forebay. $1 is the binary."""
    words = ["unshare", "--mount", "sh", "-c", ETC_OF_ITS_OWN, "sh", binary(), folder, group, mode]
    done = subprocess.run(
        [*words, script],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    if os.getuid() != 0 or done.returncode == 77 or "unshare" in done.stderr:
        not_run(f"no mounts of its own here: {done.stderr.strip()}")
    return done


@pytest.mark.parametrize(
    "group,mode,says",
    [("0", "600", True), ("0", "640", True), ("7", "600", True), ("7", "640", False)],
)
def test_check_warns_of_keys_that_the_unit_cannot_read(tmp_path, group, mode, says):
    """Root may read every file. The packaged unit runs as another user, so root's check of its
    configuration names files that are root's alone."""
    (tmp_path / "forebay.yaml").write_text(
        "auth: {mode: verify, keys_file: /etc/forebay/keys.yaml}\n"
    )
    (tmp_path / "keys.yaml").write_text(run_forebay("keys", "new", "a").stdout)
    done = in_etc_of_its_own(tmp_path, '"$1" check', group, mode)
    assert done.returncode == 0, done.stderr
    warned = "auth.keys_file: only root can read /etc/forebay/keys.yaml" in done.stderr
    assert warned is says, done.stderr


SHARED_HOST = """
listen: [127.0.0.1:9000, "tls:127.0.0.1:9443"]
listen_tls: {cert: /etc/forebay/cert.pem, key: /etc/forebay/keys.yaml}
auth: {mode: verify, keys_file: /etc/forebay/keys.yaml}
admin: {trust_loopback: false, listen: "127.0.0.1:%d", token_file: /etc/forebay/keys.yaml}
cache: {dir: /nowhere/forebay, size: 20GiB}
access_log: {path: /nowhere/access.log}
"""
TWO_KEY_FILES = "{access_key_file: /etc/forebay/keys.yaml, secret_key_file: /etc/forebay/keys.yaml}"
ORDINARY_USER = """
install -d -o 1234 /etc/home && cd /etc
run() {
    setpriv --reuid 1234 --regid 1234 --clear-groups env -i PATH="$PATH" HOME=/etc/home "$@"
}
"""


@pytest.fixture
def in_shared_host(tmp_path):
    """in_shared_host(script, more) runs a script in an /etc whose configuration names files that
    the server alone may read. `run` in it runs a command as an ordinary user."""

    def make(script, port=1, more=""):
        folder = tmp_path / "etc"
        folder.mkdir()
        (folder / "forebay.yaml").write_text(SHARED_HOST % port + more)
        (folder / "keys.yaml").write_text(run_forebay("keys", "new", "a").stdout)
        (folder / "cert.pem").touch()
        return in_etc_of_its_own(folder, ORDINARY_USER + script, "7", "640")

    return make


def test_ordinary_users_commands_do_not_judge_files_of_the_server_alone(
    start, origin, in_shared_host
):
    """They only ask the server, so a secret that they may not read is no error."""
    server = start(origin)
    # The server is on loopback, and its network is the script's, too.
    done = in_shared_host(
        'for word in env status doctor "top --once"; do run "$1" $word; done',
        server.admin_port,
        f"buckets: [{{name: b, credentials: {TWO_KEY_FILES}}}]\n",
    )
    assert done.returncode == 0 and f":{server.port}" in done.stdout, done
    assert "error:" not in done.stderr and "warning: only" not in done.stderr, done.stderr


def test_run_leaves_out_what_is_of_the_hosts_server_alone(in_shared_host):
    """An ordinary user's private cache has its own folder, no clients' keys, and no secrets of the
    file that nobody has named."""
    more = f"credentials: {TWO_KEY_FILES[:-1]}, source: config}}\n"
    script = """
        run mkdir home/data home/data/bkt
        run sh -c 'echo hello >home/data/bkt/a'
        words="run --origin.endpoint dir:/etc/home/data --"
        run "$1" $words sh -c 'curl -sS "$AWS_ENDPOINT_URL_S3/bkt/a"; ls -d $HOME/.cache/forebay'
    """
    done = in_shared_host(script, more=more)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("hello\n") and "/etc/home/.cache/forebay\n" in done.stdout, done
    assert "keys.yaml" not in done.stderr, done.stderr


def test_run_names_the_way_out_of_the_file_of_the_hosts_server(in_shared_host):
    """A file that the user names is judged like that of a server. No message tells anybody to open
    a secret to all users."""
    more = f"buckets: [{{name: b, credentials: {TWO_KEY_FILES}}}]\n"
    script = 'run "$1" run -- true; code=$?; run "$1" run -c /etc/forebay/forebay.yaml -- true'
    done = in_shared_host(f"set +e; {script}; echo $code $?", more=more)
    assert done.stdout == "125 125\n", done
    assert done.stderr.count("own, which may be empty: forebay run -c FILE -- CMD") == 1, done
    assert done.stderr.count("auth.keys_file: ") == 1, done.stderr
    assert "cannot be read: Permission denied; only the server's user has to read it" in done.stderr
    assert "a group that only the server's user is in" in done.stderr


RUN_OF_ITS_OWN = """
mount --make-rprivate / && mount -t tmpfs none /run && mkdir /run/forebay || exit 77
RUNTIME_DIRECTORY=/run/forebay exec "$@"
"""


def test_commands_of_root_find_the_socket_of_the_packaged_unit(start, origin):
    """systemd tells the unit where its socket is, and no command. Root's commands try it, so they
    work where loopback has no rights. A command that names another address does not."""
    if os.getuid() != 0 or subprocess.run(["unshare", "--mount", "true"]).returncode != 0:
        not_run("no mounts of its own here")
    server = start(origin, run=False, settings={"admin.trust_loopback": "false"})
    server.wrapper = ["unshare", "--mount", "sh", "-c", RUN_OF_ITS_OWN, "sh"]
    server.start()
    inside = ["nsenter", f"--mount=/proc/{server.process.pid}/ns/mnt", binary(), *PATIENT]

    def ask(*words, **env):
        env = {"PATH": os.environ["PATH"], "HOME": str(server.home), **env}
        return subprocess.run(
            [*inside, *words], capture_output=True, text=True, timeout=WAIT_S, env=env
        )

    for words in (["explain", "s3://bkt/a"], ["ls", "s3://bkt/"], ["reload"], ["status"]):
        done = ask(*words)
        assert done.returncode == 0, (words, done.stderr)
    tcp = f"127.0.0.1:{server.admin_port}"
    for env in ({"FOREBAY_ADMIN": tcp}, {"FOREBAY_ADMIN_LISTEN": tcp}):
        done = ask("ls", "s3://bkt/", **env)
        assert done.returncode == 1, (env, done.stderr)
        assert "--admin unix:/run/forebay/forebay.sock, as root" in done.stderr, done.stderr


def test_check_and_doctor_name_variables_of_the_unit(tmp_path):
    """They do not read the variables of the packaged unit. They say so, and the command that they
    name checks with these. A file that -c names is not the unit's."""
    (tmp_path / "env").write_text("# a comment\nFOREBAY_CACHE_TTL=7\n")
    done = in_etc_of_its_own(tmp_path, '"$1" check')
    assert done.returncode == 0 and "sets FOREBAY_CACHE_TTL for the packaged unit" in done.stderr
    remedy = re.search(r"to check with it: (\(.*\))\n", done.stderr)[1]
    done = in_etc_of_its_own(tmp_path, remedy.replace("forebay check", '"$1" check'))
    assert done.returncode == 3 and "env FOREBAY_CACHE_TTL: error: " in done.stderr, done
    done = in_etc_of_its_own(
        tmp_path, '"$1" -q doctor --local --origin.endpoint=http://127.0.0.1:1'
    )
    assert "sets FOREBAY_CACHE_TTL for the packaged unit" in done.stdout, done
    done = in_etc_of_its_own(tmp_path, 'echo "{}" >/etc/a.yaml; "$1" check -c /etc/a.yaml')
    assert done.returncode == 0 and "packaged unit" not in done.stderr, done


def test_a_prepared_directory_serves(start, origin, tmp_path):
    """A server can use the directory that `prepare` made."""
    cache = tmp_path / "nvme" / "cache"
    made = run_forebay("prepare", cache, "--owner", f"{os.getuid()}:{os.getgid()}")
    assert (made.returncode, made.stdout, made.stderr) == (0, f"{cache}: ready\n", "")
    server = start(origin, settings={"cache.dir": cache})
    used = run_forebay("prepare", cache, "--wipe-older")
    assert used.returncode == 1 and "in use by another process" in used.stderr
    server.stop()
    told = run_forebay("prepare", cache, "--json")
    assert json.loads(told.stdout.splitlines()[-1]) == {
        "type": "result",
        "ok": True,
        "exit": 0,
        "text": f"{cache}: ready",
    }
    assert (cache / "format").exists()


# --- bench ----------------------------------------------------------------------------------------


def test_bench_measures_and_leaves_nothing_behind(tmp_path):
    """`bench` reports figures and leaves no files or processes."""
    (tmp_path / "data" / "b").mkdir(parents=True)
    (tmp_path / "data" / "b" / "big").write_bytes(os.urandom(16 << 20))
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}
    flags = [
        "--origin.endpoint",
        f"dir:{tmp_path}/data",
        "--cache.dir",
        tmp_path / "cache",
        "--workers",
        "1",
    ]
    told = run_forebay("bench", "--quick", "--json", *flags, env=env)
    result = json.loads(told.stdout)
    assert told.returncode == 0 and result["type"] == "result" and told.stderr.count("error") == 0
    assert (result["bucket"], result["key"], result["bytes"]) == ("b", "big", 16 << 20)
    assert all(
        result[name] > 0
        for name in ("disk", "origin_one", "origin", "cold", "warm", "random_per_second")
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
    told = run_forebay("bench", "--disk", "--quick", *flags, env=env)
    assert (
        told.returncode == 0 and "disk read ceiling" in told.stdout and "origin" not in told.stdout
    )
    told = run_forebay("bench", "--quick", "--origin=s3://b/none", *flags, env=env)
    assert told.returncode == 4 and "name an object with --origin" in told.stderr
    assert run_forebay("bench", "--origin=none").returncode == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_bench_names_the_origin_that_it_cannot_list(start, origin, tmp_path):
    """`bench` says which origin cannot be listed and why, and which one a running server uses."""
    server = start(origin)
    env = {
        "XDG_RUNTIME_DIR": str(tmp_path),
        "FOREBAY_ADMIN": f"127.0.0.1:{server.admin_port}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
    }
    told = run_forebay(
        *("bench", "--quick", "--origin.endpoint=http://127.0.0.1:1", "--origin.retries=0"),
        *("--workers=1", f"--cache.dir={tmp_path}/cache"),
        env=env,
    )
    assert told.returncode == 4
    assert "http://127.0.0.1:1: its buckets cannot be listed: " in told.stderr, told.stderr
    assert f"the running server uses {origin.endpoint}" in told.stderr, told.stderr


def test_bench_names_an_endpoint_of_clients_that_is_not_its_origin(start, origin, tmp_path):
    """`bench` says that it ignores the variable that `run` takes as its origin, unless the variable
    leads to a Forebay. It names the flag, and prints no table of nothing."""
    server = start(origin)
    env = {"XDG_RUNTIME_DIR": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    flags = ["--quick", "--workers=1", f"--cache.dir={tmp_path}/cache"]
    elsewhere = {**env, "AWS_ENDPOINT_URL_S3": "http://user:secret@192.0.2.1:1"}
    told = run_forebay("bench", *flags, env=elsewhere)
    assert told.returncode == 4 and told.stdout == ""
    note = "AWS_ENDPOINT_URL_S3 names an endpoint, and bench does not use it: "
    assert note in told.stderr and '--origin.endpoint "$AWS_ENDPOINT_URL_S3"' in told.stderr
    assert "secret" not in told.stderr
    own = {**env, "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{server.port}"}
    assert note not in run_forebay("bench", *flags, env=own).stderr
    dead = [*flags, "--origin.endpoint=http://127.0.0.1:1", "--origin.retries=0"]
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    told = run_forebay("bench", *dead, env={**elsewhere, **keys})
    assert told.returncode == 4 and told.stdout == "" and note not in told.stderr
    assert "another origin with --origin.endpoint URL" in told.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_bench_leaves_nothing_behind_when_it_is_interrupted(tmp_path, number):
    """`bench` leaves nothing behind when it is interrupted."""
    (tmp_path / "data" / "b").mkdir(parents=True)
    (tmp_path / "data" / "b" / "big").write_bytes(os.urandom(1 << 20))
    flags = [
        f"--origin.endpoint=dir:{tmp_path}/data",
        f"--cache.dir={tmp_path}/cache",
        "--workers=1",
    ]
    bench = subprocess.Popen(
        [binary(), "bench", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    wait_for(lambda: list(tmp_path.glob("cache-bench-*/segments")), "its cache")
    bench.send_signal(number)
    bench.communicate(timeout=WAIT_S)
    assert bench.returncode == -number
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_upgrade_fails_if_the_answer_names_no_process():
    """`upgrade` fails if the answer does not name the new process. It does not take a server that
    no longer answers for the new one."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        told = run_forebay("upgrade", f"--admin=127.0.0.1:{server.server_port}")
        thread.join()
    assert told.returncode == 1 and "does not name the new process" in told.stderr


# --- plan, profile --------------------------------------------------------------------------------


def rows_of(told):
    rows = [json.loads(line) for line in told.stdout.splitlines()]
    assert rows[-1]["type"] == "result" and rows[-1]["exit"] == told.returncode
    return rows


def test_plan_says_what_the_policy_reaches():
    """`plan` predicts the hit ratio of the retention policy."""
    told = run_forebay("plan", "--dataset=1TB", "--cache=500GB", "--nodes=4", "--json")
    *sizes, result = rows_of(told)
    half = next(row for row in sizes if row["cache"] == 500e9)
    assert (
        0.40 < half["each_reads_all"]["hit_ratio"] < 0.50
    )  # 45 % of the data, which no policy exceeds
    assert half["gateway"] == {
        "hit_ratio": 1.0,
        "origin_bytes": 0,
        "origin_requests": 0,
        "cost": 0,
    }  # four hold it all
    ratios = [row["each_reads_all"]["hit_ratio"] for row in sizes]
    assert ratios == sorted(ratios) and 1.1e12 < result["holds_all"] < 1.2e12
    assert (
        told.stdout
        == run_forebay("plan", "--dataset=1TB", "--cache=500GB", "--nodes=4", "--json").stdout
    )
    needs = [
        rows_of(run_forebay("plan", "--dataset=5GB", "--cache=5GB", "--json", *words))[-1]
        for words in ([], ["--node-workers=32"], ["--object=10KB"])
    ]
    assert needs[0]["holds_all"] < min(more["holds_all"] for more in needs[1:]), needs
    told = run_forebay("plan", "--dataset=1TB", "--cache=500GB").stdout
    assert "<- as asked" in told and told.startswith("1.0 TB of data") and "iB" not in told
    told = run_forebay("plan", "--dataset=1TiB", "--cache=500GB").stdout
    assert told.startswith("1.0 TiB of data") and re.search(r"^ +500.0 GB .*as asked", told, re.M)
    for words in (
        ["--dataset=1TB"],
        ["--dataset=1TB", "--cache=half"],
        ["--dataset=1TB", "--cache=1GB", "--nodes=0"],
        ["--dataset=1TB", "--cache=1GB", "--node-workers=65"],
    ):
        assert run_forebay("plan", *words).returncode == 2
    told = run_forebay("plan", "--dataset=1.2TB", "--cache=0.5TiB").stdout
    assert told.startswith("1.2 TB of data") and re.search(r"^ +512.0 GiB .*as asked", told, re.M)
    for words, why in (
        (["--dataset=1.5.2TB", "--cache=1GB"], '--dataset: "1.5.2TB" is not a size such as'),
        (["--dataset=1TB", "--cache=1.5"], '--cache: "1.5" needs a unit (1.5GiB?)'),
        (["--dataset=1TB", "--cache=1GB", "--object=2EiB"], '--object: "2EiB" is not between'),
    ):
        done = run_forebay("plan", *words)
        assert done.returncode == 2 and why in done.stderr


def test_plan_says_what_it_costs():
    """`plan` estimates costs from AWS's prices, which it names, or from given ones. Smaller objects
    make requests more expensive."""
    words = ["plan", "--dataset=1TB", "--cache=250GB", "--nodes=2"]
    row, *_, result = rows_of(run_forebay(*words, "--json"))
    assert result["uncached_cost"] == pytest.approx(
        2 * (1000 * 0.09 + 1e12 / (4 << 20) / 1000 * 0.0004), abs=0.01
    )
    shared = row["nodes_share"]
    assert shared["cost"] == pytest.approx(
        shared["origin_bytes"] / 1e9 * 0.09 + shared["origin_requests"] / 1000 * 0.0004, abs=0.01
    )
    said = run_forebay(*words).stdout
    assert f"{shared['cost']:.2f}" in said and "us-east-1" in said and "2025" in said
    own = ["--price-gb=0", "--price-requests=1", "--object=100KB"]
    *_, result = rows_of(run_forebay(*words, *own, "--json"))
    assert (
        result["uncached_cost"] == pytest.approx(2 * 1e12 / 1e5 / 1000) and result["price_gb"] == 0
    )
    assert "us-east-1" not in run_forebay(*words, *own).stdout
    for bad in (
        "--price-gb=-1",
        "--price-gb=nan",
        "--price-requests=1.2.3",
        "--object=0",
        "--price-gb=",
    ):
        assert run_forebay(*words, bad).returncode == 2


def test_profile_of_a_real_log(start, origin, tmp_path):
    """`profile` reads an access log. Over two epochs of four objects, half of the reads are not
    first reads."""
    server = start(origin)
    for i in range(3):
        origin.put(f"small/{i}", 5000)
    origin.put("large/a", 3 << 20)
    with server.client() as client:
        for _ in range(2):
            for key in ("small/0", "small/1", "small/2", "large/a"):
                assert client.get(key).status == 200
    server.access_log(wait_for=lambda line: line["key"] == "large/a" and line["result"] == "hit")
    log = tmp_path / "log"
    log.write_text("\n".join(server.stdout) + "\n")
    told = run_forebay("profile", log, "--json")
    rows = rows_of(told)
    assert told.returncode == 0 and rows[-1]["bytes"] == 2 * rows[-1]["different"] == 2 * (
        (3 << 20) + 3 * 5000
    )
    assert [row["byte_hit_ratio"] for row in rows if "cache" in row][-1] == 0.5
    assert [row["prefix"] for row in rows if "prefix" in row] == ["bkt/large/", "bkt/small/"]
    assert "<- holds all that was read" in run_forebay("profile", log).stdout
    log.write_text(log.read_text() + "no line\n")
    told = run_forebay("profile", log)
    assert told.returncode == 5 and "1 lines are no JSON objects" in told.stderr
    log.write_text("")
    assert run_forebay("profile", log).returncode == 1
    assert run_forebay("profile", tmp_path / "none").returncode == 1
    told = run_forebay("profile", tmp_path)
    assert told.returncode == 1 and "Is a directory" in told.stderr


@pytest.mark.parametrize(
    "count, size, workers",
    [(480, 984_064, 2), (120, 9_000_000, 8), (3000, 100_000, 1)],
    ids=["objects", "large-objects", "small-objects"],
)
def test_profile_and_plan_name_the_same_size_for_the_same_data(tmp_path, count, size, workers):
    """The size that holds all that was read is the one that `plan` names for that much data, in
    objects of that size. Smaller caches hold less, so not each second read is a hit."""
    log = tmp_path / "log"
    lines = [
        json.dumps(
            {"op": "GetObject", "bucket": "b", "key": f"{i}", "object_size": size, "bytes": size}
        )
        for i in range(count)
    ]
    log.write_text("\n".join(2 * lines) + "\n")
    node = f"--node-workers={workers}"
    rows = rows_of(run_forebay("profile", log, node, "--json"))
    words = ["--cache=1GB", f"--dataset={count * size}", f"--object={size}", node]
    planned = rows_of(run_forebay("plan", *words, "--json"))[-1]["holds_all"]
    caches = {row["cache"]: row["hit_ratio"] for row in rows if "cache" in row}
    assert list(caches) == sorted(caches) and len(caches) == 5
    assert list(caches)[-1] == planned and caches.pop(planned) == 0.5
    assert all(ratio < 0.5 for ratio in caches.values())


def test_profile_names_no_cache_smaller_than_forebay_allows(tmp_path):
    """The smallest cache holds all of a short log, so it is the only row."""
    log, line = tmp_path / "log", {"op": "GetObject", "bucket": "b", "key": "k", "bytes": 5000}
    log.write_text(json.dumps(line) + "\n")
    rows = rows_of(run_forebay("profile", log, "--json"))
    caches = [row["cache"] for row in rows if "cache" in row]
    assert len(caches) == 1 and 16 << 20 <= caches[0] < 32 << 20
    assert run_forebay("profile", log, "--node-workers=0").returncode == 2


def test_profile_counts_what_it_leaves_out_of_a_line(tmp_path):
    """A line that reads more than 64 GiB counts up to there. The rest counts as left out."""
    log, gib = tmp_path / "log", 1 << 30
    line = {
        "op": "GetObject",
        "bucket": "b",
        "key": "k",
        "object_size": 65 * gib,
        "bytes": 65 * gib,
    }
    log.write_text(json.dumps(line) + "\n")
    told = run_forebay("profile", log, "--json")
    result = rows_of(told)[-1]
    assert told.returncode == 5 and "1024 reads of blocks are left out" in told.stderr
    assert (result["left_out"], result["bytes"]) == (1024, 64 * gib)


# --- support --------------------------------------------------------------------------------------


def test_support_has_what_helps_and_no_secret(start, origin, tmp_path):
    """`support` collects what helps to find a fault, and no secret."""
    server = start(origin)
    origin.put("precious-key", 100)
    with server.client() as client:
        client.get("precious-key")
    env = {
        "AWS_ACCESS_KEY_ID": "origin-key",
        "AWS_SECRET_ACCESS_KEY": "origin-secret-canary",
        "FOREBAY_ADMIN_TOKEN": "token-canary",
        "FOREBAY_WORKERS": "2",
    }
    words = [
        "--interval=0",
        f"--admin=127.0.0.1:{server.admin_port}",
        f"--origin.endpoint={origin.endpoint}",
        "--origin.region=us-east-1",
        f"--cache.dir={server.cache}",
        "--listen=127.0.0.1:0",
    ]
    told = run_forebay("support", *words, env=env, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    path = tmp_path / told.stdout.partition(":")[0]
    text = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    for part in (
        "===== doctor =====",
        "libcurl",
        "origin.endpoint: http://",
        "forebay_build_info",
        "/proc/self/limits",
        "/sys/fs/cgroup/memory.high",
        "/sys/fs/cgroup/cpu.stat",
        "/proc/pressure/cpu",
        "FOREBAY_WORKERS=2",
    ):
        assert part in text, part
    assert text.count("===== /metrics =====") == 2 and "AWS_SECRET_ACCESS_KEY is set" in text
    assert "canary" not in text and "precious-key" not in text
    origin.violations.clear()  # the secret does not belong to the origin
    again = run_forebay("support", "-o", path, *words, env=env)
    assert again.returncode == 1 and path.read_text() == text
    origin.violations.clear()
    server.stop()
    told = run_forebay("support", "-o", "-", *words, env=env)
    assert told.returncode == 5 and "no server answers" in told.stdout
    origin.violations.clear()

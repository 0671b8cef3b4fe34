# SPDX-License-Identifier: Apache-2.0
"""Commands fit their output to the terminal, at 60, 80 and 200 columns, and follow its size. They
cut off no number that matters."""

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios

import pytest

from forebay import PATIENT, binary, run_forebay
from test_common_options import admin_of
from test_control import MIB, ask, read, said
from waiting import WAIT_S

COLUMNS = [60, 80, 200]
LONG = "a-folder-with-a-long-name/" * 5
CLEAR = "\x1b[H\x1b[J"


class Terminal:
    """A command on a terminal of its own. `seen` has all that it printed."""

    def __init__(self, server, columns, *words, rows=24):
        self.main, child = pty.openpty()
        self.seen, self.columns = "", columns
        self.resize(columns, rows)
        self.before = termios.tcgetattr(self.main)
        self.child = subprocess.Popen(
            [binary(), *words],
            stdin=child,
            stdout=child,
            stderr=child,
            env={**server.env, "FOREBAY_ADMIN": admin_of(server), "LC_ALL": "C.UTF-8"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(child)

    def resize(self, columns, rows=24):
        self.columns = max(columns, self.columns)  # earlier lines may be as wide
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, pattern):
        """Reads until the output since the last call matches PATTERN; returns that output."""
        new = ""
        while not re.search(pattern, new):
            assert select.select([self.main], [], [], WAIT_S)[0], new
            new += self._read()
        return new

    def end(self, code=0):
        """Waits until the command has ended. Returns its lines, which fit the terminal."""
        with contextlib.suppress(OSError):  # the other side is closed
            while self._read():
                pass
        assert self.child.wait(WAIT_S) == code, self.seen
        os.close(self.main)
        lines = lines_of(self.seen)
        assert all(len(line) <= self.columns for line in lines), lines
        return lines

    def interrupt(self):
        os.write(self.main, b"\x03")
        return self.end()

    def _read(self):
        piece = os.read(self.main, 65536).decode()
        self.seen += piece
        return piece


def lines_of(text):
    """The rows of TEXT. A row that was drawn over another one counts as well. The echo of Ctrl-C,
    which may come inside a row, does not count."""
    text = text.replace("^C", "")
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "\n", text))


@pytest.fixture
def busy(start, origin):
    """A server that has answered a few requests, some of them past the cache."""
    server = start(origin, file={"rules": [{"match": "bkt/never/**", "cache": False}]})
    for key in ("never/x", LONG + "1.tar", LONG + "2.tar"):
        origin.put(key, 3 * MIB)
        read(server, key, key)
    server.wait_metric("forebay_cache_objects", lambda v: v == 2)
    server.wait_metric("forebay_http_requests_total", lambda v: v == 6)
    return server


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize(
    "words, wanted",
    [
        (["bench", "--disk", "--quick"], [r"disk read ceiling, 1 MiB +\S+ [MG]iB/s"]),
        (
            ["status"],
            [
                r"answers +first byte in the last minute",
                r"state +ready",
                r"hits +33\.3 % of",
                r"saved +6\.0 MiB",
                r"worth +under",
            ],
        ),
        (["stats", "-n", "2"], [r"req/s", r"hit%", r"p50 ms", r"p99 ms"]),
        (["jobs"], [r"there are no jobs"]),
        (["scrub", "--status"], [r"nothing was verified"]),
        (["warm", "s3://bkt/a-folder/", "--allow-empty", "--wait"], [r"100\.0 %", r"0 failed"]),
        (["warm", f"s3://bkt/{LONG}", "--check"], [r"6\.0 MiB of 6\.0 MiB are cached"]),
        (["evict", f"s3://bkt/{LONG}", "--dry-run"], [r"would +3\.0 MiB .*long-name/1\.tar$"]),
        (
            ["top", "--once"],
            [
                r"^first byte \d.*, p99 \d.* m?s  ",
                r"p99 +\d",
                r"bytes  bucket",
                r"MiB  bkt$",
                r"not cached, why",
                r"rule: a rule says",
            ],
        ),
        (["warm", "--help"], [r"^  --wait +follow it to its end$", r"^  --json +one JSON object"]),
        (["doctor"], [r"configuration valid", r"\d+ green, \d yellow, 0 red"]),
        (["du"], [r"6\.0 MiB of .* s3://bkt/$", r"in the whole cache$"]),
        (
            ["explain", f"s3://bkt/{LONG}1.tar"],
            [r"^fresh    yes, confirmed", r"^checksum unknown; the next reader"],
        ),
        (["top", "keys", "--once"], [r"requests +now/s +hit% +bytes +name"]),
    ],
)
def test_output_fits_the_terminal(busy, columns, words, wanted):
    front = [] if words[0] == "bench" else PATIENT  # bench asks no server
    text = "\n".join(Terminal(busy, columns, *front, *words).end())
    missing = [part for part in wanted if not re.search(part, text, re.MULTILINE)]
    assert not missing, text


@pytest.mark.parametrize("columns", COLUMNS)
def test_top_shows_keys_buckets_reasons_and_their_past(busy, columns):
    """`top` on a terminal names what the server is asked for, and no metric. It has one line for
    each frame of the server, and one more when the terminal changes its size."""
    top = Terminal(busy, columns, *PATIENT, "top", "-i", "2", rows=30)
    top.until(r"key, since top began")
    for _ in range(3):
        read(busy, LONG + "1.tar", LONG + "2.tar", "never/x")
        frame = top.until(re.escape(CLEAR) + r"[^\x1b]*tar\s")
    assert "forebay_" not in frame and re.search(r"hits +\d+\.\d % +[▁-█]+", frame), frame
    assert re.search(r"\d+ +\d+\.\d +100\.0 +\S+ MiB  \S*/1\.tar\r", frame), frame
    assert re.search(r"\d+ +\d+\.\d +\d+\.\d +\S+ MiB  bkt\r", frame), frame
    assert re.search(r"\d+ +\d+\.\d  rule: a rule says cache: false", frame), frame
    assert re.search(r"p99 +\d", frame) and "cache [" in frame, frame
    top.interrupt()


@pytest.mark.parametrize("words", [["top", "-i", "3600"], ["top", "keys", "-i", "2"]])
def test_top_is_drawn_again_when_the_terminal_changes_its_size(busy, words):
    top = Terminal(busy, 200, *PATIENT, *words)
    busy.wait_metric("forebay_admin_streams", lambda v: v == 1)
    top.resize(60, rows=8)
    while True:
        frame = top.until(re.escape(CLEAR) + r"[^\x1b]*\n$").split(CLEAR)[-1]
        rows = frame.replace("\r", "").splitlines()
        if len(rows) <= 7 and all(len(row) <= 60 for row in rows):
            break
    top.interrupt()


@pytest.mark.parametrize("words", [["top"], ["top", "keys"]])
def test_q_ends_top_and_leaves_the_terminal_as_it_was(busy, words):
    top = Terminal(busy, 80, *PATIENT, *words, "-i", "1")
    top.until(re.escape(CLEAR) + r"[^\x1b]*\n")
    os.write(top.main, b"q")
    assert top.child.wait(WAIT_S) == 0
    assert termios.tcgetattr(top.main) == top.before
    top.end()


def test_top_in_a_pipe_has_no_trailing_blanks(busy):
    told = said(busy, "top", "-i", "1")
    assert re.search(r"^requests +\S+ /s {6}hits +\S+ %$", told, re.M), told
    assert not re.search(r" $", told, re.M), told


@pytest.mark.parametrize("columns", COLUMNS)
def test_log_and_trace_fit_the_terminal(busy, columns):
    log = Terminal(busy, columns, *PATIENT, "log", "-n", "3")
    fields = Terminal(
        busy, columns, *PATIENT, "log", "-n", "3", "--fields", "key,key,status,ttfb_ms"
    )
    trace = Terminal(busy, columns, *PATIENT, "trace", "s3://bkt/*", "-n", "3")
    busy.wait_metric("forebay_admin_streams", lambda v: v == 3)
    with busy.client() as client:
        for key, status in ((LONG + "1.tar", 200), (LONG + "9.tar", 404), ("never/x", 200)):
            assert client.get(key).status == status
    lines = log.end()
    assert re.search(r"200 hit .* ms .*name/1\.tar$", lines[0]), lines
    assert re.search(r"404 miss .* ms .*name/9\.tar NoSuchKey$", lines[1]), lines
    assert re.search(r"200 bypass .* ms .*bkt/never/x reason=rule$", lines[2]), lines
    assert len(fields.end()) == 4
    text = "\n".join(trace.end())
    assert "first byte" in text and "3.0 MiB from" in text and "all of it" in text, text


@pytest.mark.parametrize("columns", COLUMNS)
def test_a_waiting_warm_rewrites_one_row(start, origin, columns):
    """The progress of `warm --wait` stays in one row. A key or a reason never makes it longer."""
    server = start(origin)
    origin.put("a", MIB)
    with origin.hold("a") as go:
        warm = Terminal(server, columns, *PATIENT, "warm", "s3://bkt/a", "--wait")
        for _ in range(3):
            warm.until(r"\r\x1b\[K +0\.0 %, [^\r]*/s, ")
        assert "\n" not in warm.seen
        assert all(len(row) < columns for row in lines_of(warm.seen)), warm.seen
        go.set()
    assert "1 of 1 objects" in " ".join(warm.end())


@pytest.mark.parametrize("columns", COLUMNS)
def test_a_failed_job_and_a_failed_run_say_so_within_the_terminal(busy, columns, tmp_path):
    """`jobs` calls a job that found nothing failed. `run` shows the last warning in rows that fit,
    without the time and the level that the log has."""
    Terminal(busy, columns, *PATIENT, "warm", "s3://bkt/typo/", "--wait").end(4)
    assert [job["state"] for job in ask(busy, "jobs")[:-1]] == ["done"]  # it has ended
    lines = Terminal(busy, columns, *PATIENT, "jobs").end()
    assert re.match(r"1  failed +warm s3://bkt/typo/:", lines[0]), lines
    assert "    nothing lies below s3://bkt/typo/:" in "\n".join(lines), lines
    flags = ["--origin.endpoint=http://127.0.0.1:1", f"--cache.dir={tmp_path}/of-run"]
    read = ("sh", "-c", 'curl -s -o /dev/null "$AWS_ENDPOINT_URL_S3/bkt/a"')
    text = "\n".join(Terminal(busy, columns, "run", *flags, "--", *read).end())
    words = (
        r"warnings +1, the last:\s+origin-unreachable: origin\s+"
        r"http://127\.0\.0\.1:1:\s+it\s+refuses"
    )
    assert re.search(words, text), text


def test_evict_of_a_bucket_does_not_say_that_it_evicts_nothing(busy):
    lines = Terminal(busy, 80, *PATIENT, "evict", "s3://bkt").end()
    assert re.match(r"evicted +6\.0 MiB  s3://bkt$", lines[0]), lines
    assert lines[1].startswith("evicted 2 objects, 6.0 MiB: "), lines


def test_the_address_of_the_s3_api_and_a_folder_are_recognised(busy):
    """A command that asks the S3 API names admin.listen. `explain` of a folder names `ls`."""
    s3 = f"127.0.0.1:{busy.port}"
    text = " ".join(Terminal(busy, 80, *PATIENT, "status", "--admin", s3).end(1))
    assert f"{s3} answers 4" in text and "admin.listen" in text, text
    text = "\n".join(Terminal(busy, 200, *PATIENT, "explain", "s3://bkt/never/").end())
    assert "forebay ls s3://bkt/never/ shows those below it" in text, text


def words_of(lines):
    return " ".join(lines).split()


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize(
    "words, code",
    [
        (["help"], 0),
        (["help", "top"], 0),
        (["help", "serve"], 0),
        (["help", "cache.size"], 0),
        (["plan", "--dataset", "2TB", "--cache", "500GB", "--nodes", "8"], 0),
        (["explain", "s3://bkt/not/there/"], 6),
        (["sevre"], 2),
        (["check", "--lvie"], 2),
        (["serve", "--auth.mode", "verify", "--auth.allow_open_network", "perhaps"], 3),
    ],
)
def test_help_figures_and_errors_wrap_between_words(busy, columns, words, code):
    """On a terminal, help, `plan` and errors have the words that a pipe gets."""
    front = ["--admin", "127.0.0.1:1"] if words[0] == "explain" else []
    piped = run_forebay(*front, *words)
    lines = Terminal(busy, columns, *front, *words).end(code)
    assert words_of(lines) == words_of([piped.stderr, piped.stdout]), lines


def test_a_terminal_of_unknown_width_has_80_columns(busy):
    terminal = Terminal(busy, 0, "check", "--lvie")
    terminal.columns = 80
    assert len(terminal.end(2)) > 1


@pytest.mark.parametrize("columns", COLUMNS)
def test_the_start_fits_the_terminal(busy, columns, tmp_path):
    """`serve` wraps what it says at the start, and aligns it."""
    (tmp_path / "tree").mkdir()
    where = ["--listen=127.0.0.1:0", "--admin.listen=127.0.0.1:0", "--admin.socket=off"]
    flags = [*where, f"--cache.dir={tmp_path}/cache", "--cache.size=200MiB", "--log.level=error"]
    serve = Terminal(busy, columns, "serve", *flags, f"--origin.endpoint=dir:{tmp_path}/tree")
    serve.until(r"revalidated[ \r\n]+after[ \r\n]+\d+[ \r\n]+s")
    lines = [line for line in serve.interrupt() if line]
    assert lines[0].startswith("forebay ")
    assert all(re.match(r" {2}[a-z]+ +\S| {13}\S", line) for line in lines[1:]), lines

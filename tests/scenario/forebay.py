# SPDX-License-Identifier: Apache-2.0
"""Runs the real binary for a test: starts it, talks to it, inspects it from outside, and stops or
kills it.

    FOREBAY_BIN        the binary (default: build/debug/forebay in the source tree)
    FOREBAY_TEST_SCALE share of the full counts, default 0.1

A test always waits for an event, with an upper bound (waiting.py). No test sleeps and hopes. Tests
that depend on the passing of time move the server's clocks (ahead_s, advance()).

"""

import contextlib
import ctypes
import email.utils
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

from client import Client, Closed, Connection, judge
from waiting import WAIT_S, NeverCame, wait_for

ROOT = Path(__file__).resolve().parents[2]
KEYS = {"origin-key": "origin-secret-canary-7f3a"}
REQUEST_BYTES = 24576  # HTTP_EXCHANGE_BYTES
SANITIZER = re.compile(
    r"ERROR: (Address|Leak)Sanitizer|WARNING: ThreadSanitizer|runtime error:|"
    r"event=check_failed|check failed"
)


def scale():
    return float(os.environ.get("FOREBAY_TEST_SCALE", "0.1"))


def scaled(full, least=1):
    """FULL at scale 1, a tenth of it by default, and never less than LEAST."""
    return max(least, int(full * scale()))


def binary():
    path = os.environ.get("FOREBAY_BIN") or str(ROOT / "build" / "debug" / "forebay")
    if not os.access(path, os.X_OK):
        raise RuntimeError(f"no binary at {path}: build it or set FOREBAY_BIN")
    return path


@functools.cache
def build_kind():
    """The build that the binary reports: debug, asan-ubsan, tsan or release. '' if it reports
    none."""
    out = subprocess.run([binary(), "version"], capture_output=True, text=True, timeout=WAIT_S)
    match = re.search(r"\b(debug|asan-ubsan|tsan|release)\b", out.stdout + out.stderr)
    return match.group(1) if match else ""


def io_uring_works():
    """Whether this process can set up an io_uring on this kernel."""
    libc = ctypes.CDLL(None, use_errno=True)
    params = (ctypes.c_char * 120)()
    fd = libc.syscall(425, 4, params)
    if fd >= 0:
        os.close(fd)
    return fd >= 0


# A test holds an answer of the scripted origin until another event has happened, which takes long
# on a slow machine. So these limits exceed every wait of a test, unless the test sets its own.
ORIGIN_TIMEOUTS = {"first_byte_timeout", "idle_timeout"}


class Failed(AssertionError):
    """The server ended or did not become ready. Carries its output."""


class Forebay:
    """One server process. `start()` waits until it answers. `restart()` keeps the cache.

    With AHEAD_S, even 0, its clocks run that many seconds ahead of ours and `advance()` can move
    them.
    """

    def __init__(
        self,
        folder,
        origin=None,
        engine="auto",
        settings=None,
        file=None,
        env=None,
        binary_path=None,
        wrapper=(),
        cache=None,
        ahead_s=None,
    ):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.binary_path = binary_path or binary()
        self.wrapper = list(wrapper)
        self.cache = Path(cache) if cache else self.folder / "cache"
        self.home = self.folder / "home"
        self.home.mkdir(exist_ok=True)
        endpoint = getattr(origin, "endpoint", origin)
        self.settings = {
            "listen": "127.0.0.1:0",
            "admin.listen": "127.0.0.1:0",
            "workers": 2,
            "io.engine": engine,
            "cache.dir": self.cache,
            "cache.size": "1GiB",
            "access_log.path": "stdout",
            "origin.probe": "false",
        }  # tests count the requests at the origin
        if endpoint:
            self.settings["origin.endpoint"] = endpoint
            if not str(endpoint).startswith("dir:"):
                self.settings["origin.region"] = "us-east-1"
                for name in ORIGIN_TIMEOUTS.difference((file or {}).get("origin", ())):
                    self.settings[f"origin.{name}"] = f"{2 * WAIT_S}s"
        self.settings.update(settings or {})
        self.file = dict(file or {})
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "LC_ALL": "C.UTF-8",
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "XDG_RUNTIME_DIR": str(self.home),
            "TMPDIR": str(self.folder),
            "AWS_ACCESS_KEY_ID": next(iter(KEYS)),
            "AWS_SECRET_ACCESS_KEY": next(iter(KEYS.values())),
            "AWS_EC2_METADATA_DISABLED": "true",
            "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:exitcode=99",
            "TSAN_OPTIONS": "halt_on_error=0:exitcode=66:report_signal_unsafe=0:suppressions="
            + str(ROOT / "tests" / "tsan.supp"),
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
        for name in ("TSAN_OPTIONS", "ASAN_OPTIONS", "LSAN_OPTIONS"):
            if name in os.environ:
                self.env[name] = os.environ[name]
        self.ahead_s = ahead_s
        self.clock = self.folder / "clock"
        if ahead_s is not None:
            self.env["FOREBAY_CLOCK_FILE"] = str(self.clock)
            self._move_clock(ahead_s)
        self.env.update(env or {})
        if "FOREBAY_DISK_FAULTS" not in self.env:
            # The test decides which runs are stored, not the speed of the machine.
            self.env.setdefault("FOREBAY_TEST_STEADY", "1")
        self.process = None
        self.port = self.admin_port = None
        self.stdout, self.stderr = [], []
        self.changed = threading.Condition()
        self.readers = []
        self.expect_failure = False
        self.kills = 0

    # --- life ---------------------------------------------------------------------------------

    def command(self):
        out = self.wrapper + [self.binary_path, "serve"]
        if self.file:
            path = self.folder / "forebay.yaml"
            path.write_text(json.dumps(self.file, indent=1, ensure_ascii=False))
            out += ["-c", str(path)]
        for name, value in self.settings.items():
            if value is not None:
                out += [f"--{name}", str(value)]
        return out

    def spawn(self):
        """Starts the process without waiting for it to become ready."""
        assert self.process is None
        self.stdout, self.stderr = [], []
        self.spawned_at = time.monotonic()
        self.process = subprocess.Popen(
            self.command(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env,
            cwd=self.folder,
            start_new_session=True,
        )
        self.readers = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in (
                (self.process.stdout, self.stdout),
                (self.process.stderr, self.stderr),
            )
        ]
        for reader in self.readers:
            reader.start()
        return self

    def start(self, wait=WAIT_S):
        self.spawn()
        self._wait_ready(wait)
        return self

    def _read(self, stream, lines):
        for line in stream:
            with self.changed:
                lines.append(line.decode("utf-8", "replace").rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.changed.notify_all()

    def _pid(self):
        """The server's own process id, even below a wrapper such as strace."""
        pid = self.process.pid
        with contextlib.suppress(OSError):
            if os.path.samefile(f"/proc/{pid}/exe", self.binary_path):
                return pid  # the wrapper has become the server
        if self.wrapper:
            children = Path(f"/proc/{pid}/task/{pid}/children")
            with contextlib.suppress(OSError):
                found = children.read_text().split()
                if found:
                    return int(found[0])
        return pid

    def _wait_ready(self, wait):
        """Waits until stderr names the listeners: `listening URL`, and `admin URL` unless that is
        off."""

        def named():
            self.port = self._port_in(r"^\s*listening\s+https?://[^\s/]*:(\d+)")
            self.admin_port = self._port_in(r"^\s*admin\s+http://[^\s/]*:(\d+)")
            return self.port and (self.admin_port or self.settings.get("admin.listen") == "off")

        try:
            with self.changed:
                wait_for(
                    lambda: named() or self.process.poll() is not None,
                    self.output,
                    wait,
                    every=0.05,
                    pause=self.changed.wait,
                )
        except NeverCame as late:
            raise Failed(f"not ready {late}") from None
        if not named():
            self._join()
            raise Failed(f"the server ended with {self.process.returncode}: {self.output()}")

    def _port_in(self, pattern):
        for line in self.stderr:
            match = re.search(pattern, line)
            if match:
                return int(match.group(1))
        return None

    def stop(self, code=0, wait=WAIT_S):
        """Sends SIGTERM. The server must drain and end with CODE (None: any code)."""
        if self.process is None:
            return None
        if self.process.poll() is None:
            os.kill(self._pid(), signal.SIGTERM)
        try:
            got = self.process.wait(wait)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise Failed(f"still running {wait} s after SIGTERM: {self.output()}") from None
        self._join()
        self.process = None
        if code is not None and got != code:
            raise Failed(f"exit {got} after SIGTERM, expected {code}: {self.output()}")
        return got

    def kill9(self):
        if self.process is None:
            return
        if self.process.poll() is None:
            pid = self._pid()
            os.kill(pid, signal.SIGKILL)
        self.process.wait(WAIT_S)
        self.kills += 1
        self._join()
        self.process = None

    def wait_exit(self, wait=WAIT_S):
        """Returns the exit code of a server that must refuse to run."""
        try:
            code = self.process.wait(wait)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise Failed(f"it serves, but should have refused: {self.output()}") from None
        self._join()
        self.process = None
        return code

    def restart(self, **settings):
        self.stop()
        self.settings.update(settings)
        return self.start()

    def _join(self):
        for reader in self.readers:
            reader.join(10)
        for stream in (self.process.stdout, self.process.stderr):
            stream.close()

    @property
    def alive(self):
        return self.process is not None and self.process.poll() is None

    def output(self):
        return "\n".join(self.stderr[-60:] + [line for line in self.stdout[-20:]])

    def complaints(self):
        """Lines in which a sanitizer or a failed check complains."""
        return [line for line in self.stderr if SANITIZER.search(line)]

    # --- its clocks -------------------------------------------------------------------------------

    def _move_clock(self, seconds):
        if build_kind() == "release":
            time.sleep(seconds)  # only builds with faults have clocks that a test can move
            return
        new = self.clock.with_suffix(".new")
        new.write_text(str(int(1000 * self.ahead_s)))
        new.replace(self.clock)  # the server never sees a half-written file

    def advance(self, seconds):
        """Moves the server's clocks ahead. Returns once the server uses the new time."""
        assert seconds >= 2, "a Date tells no less"
        self.ahead_s += seconds
        self._move_clock(seconds)
        if build_kind() != "release":
            wait_for(lambda: self._goes_by_clock(seconds), "the server's clock to move")

    def _goes_by_clock(self, step):
        """Whether the Date of a reply shows the new time. The server refuses the request before it
        does any work."""
        asked = time.time()
        try:
            with self.connection() as connection:
                connection.send(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
                reply = connection.read_reply()
        except (Closed, ConnectionError):  # the jump exceeded one of its timeouts
            return False
        date = email.utils.parsedate_to_datetime(reply.header("date")).timestamp()
        return time.time() - asked < step - 1 and date >= int(asked + self.ahead_s)

    # --- looking inside -------------------------------------------------------------------------

    def client(self, **more):
        return Client(self.port, **more)

    def connection(self, **more):
        return Connection(self.port, **more)

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def tls_endpoint(self):
        """The endpoint of its one tls: listener, from the server's start-up output."""
        return next(
            line.split()[1]
            for line in self.stderr
            if line.strip().startswith("listening") and "https://" in line
        )

    @property
    def tls_port(self):
        return int(self.tls_endpoint.rpartition(":")[2])

    def admin(self, path):
        with Client(self.admin_port) as client:
            return client.request("GET", path)

    def metrics(self):
        """Returns {'name{labels}': value}. `metric()` reads a missing row as 0."""
        reply = self.admin("/metrics")
        assert reply.status == 200, reply
        out = {}
        for line in bytes(reply.body).decode().splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                out[name] = float(value)
        return out

    def metric(self, name, **labels):
        """Sum of the rows of NAME that carry all the LABELS."""
        total = 0.0
        for row, value in self.metrics().items():
            base, _, rest = row.partition("{")
            if base == name and all(f'{k}="{v}"' in rest for k, v in labels.items()):
                total += value
        return total

    def device_reads(self, name):
        """Bytes that the threads whose name begins with NAME have read from devices."""
        total = 0
        for task in Path(f"/proc/{self._pid()}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended
                if (task / "comm").read_text().startswith(name):
                    rows = (task / "io").read_text().split("\n")
                    total += sum(int(row.split()[1]) for row in rows if "read_bytes" in row)
        return total

    def condition_rows(self):
        """The conditions that hold (src/control/conditions.def), by their names."""
        reply = self.admin("/api/v1/conditions")
        assert reply.status == 200, reply
        return {row["name"]: row for row in json.loads(bytes(reply.body))["conditions"]}

    def conditions(self):
        return set(self.condition_rows())

    def wait_condition(self, name, holds=True):
        wait_for(
            lambda: (name in self.conditions()) == holds,
            lambda: f"{name} in {self.conditions()}: {holds}",
        )

    def disk_trouble(self):
        """The disk does not work, or is full: nothing is stored."""
        return self.conditions() & {"disk-full", "disk-degraded"}

    def troubles(self):
        """Why the server may have cut a reply."""
        words = ("timeout", "error", "cut", "retries", "fail", "shed", "refused")
        return {
            row: value
            for row, value in self.metrics().items()
            if value and "bucket" not in row and any(word in row for word in words)
        }

    def wait_metric(self, name, enough, wait=WAIT_S, **labels):
        """Waits until enough(value) is true, and returns the value."""
        value = None

        def reached():
            nonlocal value
            value = self.metric(name, **labels)
            return enough(value)

        wait_for(reached, lambda: f"{name}{labels} is {value}", wait)
        return value

    def settle(self, wait=WAIT_S):
        """Waits until no fill is in flight: each run has been stored or dropped."""
        self.wait_metric("forebay_fills_inflight", lambda v: v == 0, wait)

    def durable(self):
        """Waits until everything read and stored is in the index, so that a kill loses nothing."""
        self.settle()
        self.wait_metric("forebay_buffer_bytes", lambda v: v == 0, kind="runs")

    def format_state(self):
        """Returns a value that each write of the file `format` of the cache directory changes."""
        status = (self.cache / "format").stat()
        return status.st_ino, status.st_mtime_ns

    def access_log(self, wait_for=None, wait=WAIT_S):
        """Returns the parsed lines. With WAIT_FOR, waits until one line satisfies it."""

        def parse():
            return [json.loads(line) for line in self.stdout if line.startswith("{")]

        if wait_for is None:
            return parse()
        with self.changed:
            assert self.changed.wait_for(lambda: any(wait_for(e) for e in parse()), wait), (
                f"no such access log line: {self.stdout[-5:]}"
            )
        return [e for e in parse() if wait_for(e)]

    def wait_stderr(self, pattern, wait=WAIT_S):
        compiled = re.compile(pattern)
        with self.changed:
            assert self.changed.wait_for(
                lambda: any(compiled.search(line) for line in self.stderr), wait
            ), f"nothing like {pattern!r} on stderr: {self.output()}"

    def memory_bytes(self):
        """Resident memory without the map of the index."""
        total, skip = 0, False
        for line in Path(f"/proc/{self._pid()}/smaps").read_text().splitlines():
            if re.match(r"^[0-9a-f]+-[0-9a-f]+ ", line):
                skip = line.endswith("data.mdb")
            elif line.startswith("Rss:") and not skip:
                total += int(line.split()[1]) * 1024
        return total

    def cpu_seconds(self):
        fields = Path(f"/proc/{self._pid()}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def disk_bytes(self):
        """Bytes that the cache directory takes, including files that are deleted but still open."""
        total, seen = 0, set()
        for path in [self.cache, *self.cache.rglob("*")]:
            with contextlib.suppress(OSError):
                info = path.lstat()
                if (info.st_dev, info.st_ino) not in seen:
                    seen.add((info.st_dev, info.st_ino))
                    total += info.st_blocks * 512
        for link in Path(f"/proc/{self._pid()}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(link)
                if target.endswith("(deleted)") and target.startswith(str(self.cache)):
                    info = os.stat(link)
                    if (info.st_dev, info.st_ino) not in seen:
                        seen.add((info.st_dev, info.st_ino))
                        total += info.st_blocks * 512
        return total

    def segment_files(self):
        return sorted((self.cache / "segments").glob("*.seg"))

    def wipe_cache(self):
        shutil.rmtree(self.cache, ignore_errors=True)


# Goes before a command that asks a server. By default it waits three seconds, which a loaded
# machine can exceed.
PATIENT = ("--timeout", str(WAIT_S - 5))


def run_forebay(*arguments, env=None, wait=WAIT_S, cwd=None):
    """Runs one short-lived command of the binary."""
    full = {"PATH": os.environ["PATH"], "HOME": "/dev/null/none", "LC_ALL": "C.UTF-8"}
    full.update(env or {})
    return subprocess.run(
        [binary(), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=wait,
        env=full,
        cwd=cwd,
    )


def parallel(count, work, wait=600):
    """Runs work(i) on COUNT threads at once. Raises the first exception of any of them."""
    results, errors = [None] * count, []

    def one(i):
        try:
            results[i] = work(i)
        except BaseException as error:  # noqa: BLE001: carried to the caller
            errors.append(error)

    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + wait
    for thread in threads:
        thread.join(max(0.1, deadline - time.monotonic()))
        if thread.is_alive():
            raise (errors[0] if errors else AssertionError(f"a reader still hangs after {wait} s"))
    if errors:
        raise errors[0]
    return results


def read_in_parallel(readers, server, origin, key, count, part):
    """READERS connections share COUNT ranges of one object, each of PART bytes, and read each
    once."""
    ranges = iter(range(0, count * part, part))
    taking = threading.Lock()

    def read(_):
        with server.client() as client:
            while True:
                with taking:
                    first = next(ranges, None)
                if first is None:
                    return
                judge(client.get(key, first, first + part - 1), origin, key, first, part)

    parallel(readers, read)

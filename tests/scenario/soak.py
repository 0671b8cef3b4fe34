# SPDX-License-Identifier: Apache-2.0
"""Drives the fault soak: readers and writers that suffer one fault after another, and faults that
affect everybody.

A row of KINDS is one fault at the origin or at the client. Threads apply them in turn, each to keys
of its own, so that the allowed replies are known. A row of WEATHER is a fault of the disk, the
process, the clock or the whole origin. It affects every request in flight. Every reply is judged
byte by byte. `struck` counts the faults that really happened, not the planned ones.
"""

import base64
import contextlib
import hashlib
import os
import random
import signal
import threading
import time
from collections import Counter

from client import (
    Client,
    Closed,
    Connection,
    ProtocolError,
    Truncated,
    judge,
    judge_truncated,
    request_bytes,
)
from disks import PAGE, drop_pages, edit_beneath, read_beneath
from oracle import name_hash, oracle_bytes, oracle_judge
from signer import crc32_of
from waiting import wait_for

SIZES = (900, 900, 900, 900, 20_000, 20_000, 20_000, 70_000, 70_000, 300_000, 1_300_000)
MODE = [("x-amz-checksum-mode", "ENABLED")]
GONE = (Closed, OSError)
NEWEST = 6  # segments where a reader meets flipped bits
TRIES = 8
REFUSED = {
    301,
    400,
    403,
    404,
    412,
    416,
    500,
    502,
    503,
    504,
}  # 301: Forebay passes on a redirect that it may not follow
STRANGE = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad"


class Wrong(AssertionError):
    """A violation: a wrong byte, a mixed reply or a dead server."""


def half(dice, size):
    return dice.randrange(0, max(1, size - 1))


# kind -> (word of the scripted origin, its argument from the dice and the object's size)
AT_ORIGIN = {
    "delay": ("delay", lambda d, s: 0.03),
    "closed": ("close", lambda d, s: None),
    "reset": ("reset", lambda d, s: None),
    "status-500": ("status", lambda d, s: 500),
    "status-502": ("status", lambda d, s: 502),
    "slow-down": ("status", lambda d, s: 503),
    "denied": ("status", lambda d, s: 403),
    "redirect": ("redirect", lambda d, s: (301, "http://127.0.0.1:9/elsewhere")),
    "expired-token": ("expired_token", lambda d, s: None),
    "overwritten-before": ("overwrite", lambda d, s: None),
    "deleted-before": ("delete", lambda d, s: None),
    "garbage": ("raw", lambda d, s: b"\x00\x01no http at all\r\n\r\n"),
    "endless-error": ("endless", lambda d, s: (503, b"x" * 4096, 0.01)),
    "wrong-length": ("wrong_length", lambda d, s: d.choice([-1, 1, 1000])),
    "wrong-range": ("wrong_range", lambda d, s: 1),
    "wrong-total": ("wrong_total", lambda d, s: 1),
    "wrong-etag": ("wrong_etag", lambda d, s: None),
    "weak-etag": ("weak_etag", lambda d, s: None),
    "no-etag": ("no_etag", lambda d, s: None),
    "no-content-range": ("no_content_range", lambda d, s: None),
    "whole-for-range": ("whole", lambda d, s: None),
    "no-length": ("no_length", lambda d, s: None),
    "chunked": ("chunked", lambda d, s: None),
    "chunked-cut": ("chunked_cut", lambda d, s: None),
    "two-lengths": ("two_lengths", lambda d, s: None),
    "list-length": ("list_length", lambda d, s: None),
    "plus-length": ("plus_length", lambda d, s: None),
    "junk-length": ("junk_length", lambda d, s: None),
    "negative-length": ("negative_length", lambda d, s: None),
    "length-and-chunked": ("length_and_chunked", lambda d, s: None),
    "http10-chunked": ("http10_chunked", lambda d, s: None),
    "unknown-coding": ("te_unknown", lambda d, s: None),
    "bare-lf": ("bare_lf", lambda d, s: None),
    "bare-cr": ("bare_cr", lambda d, s: None),
    "fold": ("fold", lambda d, s: None),
    "nul": ("nul", lambda d, s: None),
    "switching": ("switch", lambda d, s: None),
    "two-interim": ("two_1xx", lambda d, s: None),
    "cut": ("cut", half),
    "reset-inside": ("reset_at", half),
    "stalled": ("stall", half),
    "overwritten-inside": ("overwrite_at", half),
    "dripping": ("drip", lambda d, s: max(1, s // 5)),
    "extra-bytes": ("extra", lambda d, s: 1000),
    "stray-answer": ("stray", lambda d, s: STRANGE),
}
FLIPS = "flipped-bit"  # at the origin; only a checksum shows it
AT_WRITES = {
    "write-reset": ("reset", None),
    "write-closed": ("close", None),
    "write-slow-down": ("status", 503),
    "write-refused-early": ("early", 403),
    "write-delayed": ("delay", 0.03),
}
# The script that the server runs with: kind -> (operation, what)
ON_DISK = {
    "read-eio": ("read", "eio"),
    "read-short": ("read", "short"),
    "read-slow": ("read", "slow:20"),
    "write-eio": ("write", "eio"),
    "write-enospc": ("write", "enospc"),
    "write-short": ("write", "short"),
    "write-slow": ("write", "slow:20"),
    "sync-eio": ("store.sync", "eio"),
    "commit-enospc": ("store.commit", "enospc"),
    "create-enospc": ("store.create", "enospc"),
    "allocate-enospc": ("store.allocate", "enospc"),
    "unlink-erofs": ("store.unlink", "erofs"),
    "open-emfile": ("store.open", "emfile"),
    "scan-eio": ("store.scan", "eio"),
    "mark-eio": ("store.mark", "eio"),
    "pages-gone": ("pages.gone", "eio"),
}
AT_START = {"open-emfile", "scan-eio"}
AT_CLIENT = (
    "client-leaves",
    "client-resets",
    "client-slow",
    "client-half-closes",
    "client-garbage",
    "client-half-a-head",
    "client-pipelines",
    "client-head-in-pieces",
    "client-two-framings",
    "client-strange-range",
    "client-cut-upload",
    "client-bad-digest",
)
WEATHER = (
    "killed",
    "stopped",
    "index-lost",
    "paused",
    "disk-bit-flipped",
    "clock-hour",
    "clock-day",
    "origin-down",
    "origin-cuts-all",
)
KINDS = (*AT_ORIGIN, FLIPS, *AT_WRITES, *AT_CLIENT)
ALL = (*KINDS, *ON_DISK, *WEATHER)


def disk_script(folder):
    return ",".join(f"{op}:file={folder / kind}:{what}" for kind, (op, what) in ON_DISK.items())


class Soak:
    def __init__(self, server, origin, triggers, tally, seed):
        self.server, self.origin = server, origin
        self.triggers, self.tally = triggers, tally
        self.dice = random.Random(seed)
        self.lock = threading.Lock()
        self.struck, self.outcomes, self.wrong = Counter(), Counter(), []
        self.storms = 0  # odd while a reply may be missing for a reason outside the server
        self.serial = 0
        self.stop = threading.Event()

    def note(self, kind, count=1):
        with self.lock:
            self.struck[kind] += count

    def total(self):
        with self.lock:
            return sum(self.struck.values())

    def storm(self):
        return Storm(self)

    def next_key(self):
        with self.lock:
            self.serial += 1
            return f"k/{self.serial}"

    # --- threads ----------------------------------------------------------------------------------

    def sufferer(self, seed, wanted):
        dice = random.Random(seed)
        one = Sufferer(self, dice)
        order = []
        try:
            while not self.stop.is_set() and self.total() < wanted:
                if not order:
                    order = list(KINDS)
                    dice.shuffle(order)
                kind = order.pop()
                wait_for(lambda: self.storms % 2 == 0, "the end of a storm")
                try:
                    one.suffer(kind)
                except Exception as error:  # a wrong byte, or a fault of the driver itself
                    with self.lock:
                        self.wrong.append(f"{kind}: {error!r}")
                    if len(self.wrong) > 10:
                        self.stop.set()
        finally:
            one.close()

    def run(self, threads, wanted):
        made = [
            threading.Thread(target=self.sufferer, args=(self.dice.random(), wanted))
            for _ in range(threads)
        ]
        weather = Weather(self)
        for thread in made:
            thread.start()
        try:
            weather.go(made)
        finally:
            self.stop.set()
            for thread in made:
                thread.join()
        self.count_disk()

    def count_disk(self):
        lines = Counter(self.tally.read_text().splitlines()) if self.tally.exists() else Counter()
        for kind, (op, what) in ON_DISK.items():
            self.struck[kind] = lines[f"{op}:{what.partition(':')[0]}"]


class Storm:
    """While it lasts, a reply may be missing but never wrong. The same holds for requests that
    began before it."""

    def __init__(self, soak):
        self.soak = soak

    def __enter__(self):
        with self.soak.lock:
            self.soak.storms += 1

    def __exit__(self, *_):
        with self.soak.lock:
            self.soak.storms += 1


class Sufferer:
    """One thread: applies a fault, judges the replies, and looks again at the state that it
    left."""

    def __init__(self, soak, dice):
        self.soak, self.origin, self.dice = soak, soak.origin, dice
        self.client = None
        self.refusal = ""  # the last one

    def close(self):
        if self.client:
            self.client.close()
            self.client = None

    def port(self):
        """The server's port, or None while the server is being restarted."""
        wait_for(lambda: self.soak.server.port, "a port")
        return self.soak.server.port

    def connected(self):
        port = self.port()
        if self.client is None or self.client.port != port:
            self.close()
            self.client = Client(port, timeout=30)
        return self.client

    def suffer(self, kind):
        if kind in AT_ORIGIN:
            self.at_origin(kind, *AT_ORIGIN[kind])
        elif kind == FLIPS:
            self.flipped()
        elif kind in AT_WRITES:
            self.at_write(kind, *AT_WRITES[kind])
        else:
            before = self.soak.storms
            getattr(self, kind.replace("-", "_"))()
            if before == self.soak.storms:  # else there may have been no server to suffer it
                self.soak.note(kind)

    # --- judging ----------------------------------------------------------------------------------

    def read(self, key, size, first=None, last=None, headers=()):
        """Returns "right", "refused", "cut" or "gone". Every byte that arrived must be right."""
        try:
            reply = self.connected().get(key, first, last, headers=headers)
        except Truncated as cut:
            judge_truncated(cut.reply, self.origin, key, first or 0)
            outcome = "cut"
        except ProtocolError:
            raise
        except GONE as error:
            if isinstance(error, TimeoutError):
                raise Wrong(f"{key}: no answer in 30 s") from error
            outcome = "gone"
        else:
            if reply.status in (200, 206):
                if first is not None and reply.status == 200:
                    # Only if the origin answers a range itself, with the whole object.
                    assert "fwd=bypass" in reply.header("cache-status"), reply
                    first = None
                want = size if first is None else min(size - 1, last) - first + 1
                judge(reply, self.origin, key, first or 0, want)
                outcome = "right"
            else:
                assert reply.status in REFUSED, reply
                outcome, self.refusal = "refused", f"{reply.status} {reply.element('Code')}"
        with self.soak.lock:
            self.soak.outcomes[outcome] += 1
        return outcome

    def read_clean(self, key, size):
        """Reads a key without a fault: a right reply comes soon, unless there was a storm.

        It need not come at once. A run that fetches ahead may still meet the previous fault. A
        neighbour's fault may have closed the connection to the origin. All faults together may use
        up the retries.
        """
        before = self.soak.storms
        for _ in range(TRIES):
            outcome = self.read(key, size)
            if outcome == "right":
                return
        if before == self.soak.storms and before % 2 == 0:
            raise Wrong(f"{key}: {outcome} {TRIES} times ({self.refusal}), and no reason outside")

    def object(self, **more):
        key, size = self.soak.next_key(), self.dice.choice(SIZES)
        self.origin.put(key, size, **more)
        return key, size

    # --- faults at the origin ---------------------------------------------------------------------

    def at_origin(self, kind, word, argument):
        key, size = self.object()
        fault = self.origin.fault(
            key,
            word,
            argument(self.dice, size),
            times=self.dice.choice([1, 1, 1, 2, 6]),
            method="GET",
        )
        if self.dice.random() < 0.3:
            first = self.dice.randrange(size)
            self.read(key, size, first=first, last=self.dice.randrange(first, size))
        else:
            self.read(key, size)
        self.end_fault(kind, fault)
        if word == "delete" and kind == "deleted-before":
            return
        self.read_clean(key, size)

    def end_fault(self, kind, fault):
        with self.origin.lock:
            self.origin.faults.remove(fault)
        self.soak.note(kind, min(fault.seen, fault.times))

    def flipped(self):
        key, size = self.soak.next_key(), self.dice.choice(SIZES[:-1])
        number = 1
        body = oracle_bytes(self.origin.name(key), number, 0, size)
        self.origin.put(
            key,
            size,
            checksums={
                "x-amz-checksum-crc32": crc32_of(body),
                "x-amz-checksum-type": "FULL_OBJECT",
            },
        )
        fault = self.origin.fault(key, "flip", self.dice.randrange(size), method="GET")
        reply, described_by = None, None
        try:
            # A HEAD names the checksum, which this process keeps for the read that follows.
            if (
                self.connected()
                .request("HEAD", self.connected().target(key), MODE)
                .header("x-amz-checksum-crc32")
            ):
                described_by = self.soak.server.process
            reply = self.connected().get(key, headers=MODE)
        except (Truncated, *GONE):
            pass
        self.end_fault(FLIPS, fault)
        if reply is not None and reply.status == 200 and bytes(reply.body) != body:
            may_know = described_by is not None and described_by is self.soak.server.process
            assert reply.header("x-amz-checksum-crc32") or not may_know, (
                "wrong, and the client cannot know"
            )
        self.read_clean(key, size)

    # --- writes -----------------------------------------------------------------------------------

    def put(self, key, number, size, cut=None, headers=()):
        """True: done. False: refused. None: unknown."""
        body = oracle_bytes(self.origin.name(key), number, 0, size)
        try:
            reply = self.connected().request(
                "PUT", self.connected().target(key), [*headers, ("Content-Length", str(size))], body
            )
        except (Truncated, *GONE):
            return None
        assert reply.status in (200, *REFUSED), reply
        return reply.status == 200

    def seen(self, key):
        """The version that a read shows, or None if there was no answer."""
        try:
            reply = self.connected().get(key)
        except (Truncated, *GONE):
            return None
        if reply.status != 200:
            assert reply.status in REFUSED, reply
            return None
        return oracle_judge(self.origin.name(key), reply.body, 0)

    def at_write(self, kind, word, argument):
        """After the reply to a write no read shows the previous version. Without a reply a read
        may, but never after a read of the new one."""
        key, size = self.soak.next_key(), self.dice.choice(SIZES[:-1])
        if self.put(key, 1, size) is not True or self.seen(key) is None:
            return
        fault = self.origin.fault(key, word, argument, method="PUT")
        done = self.put(key, 2, size)
        self.end_fault(kind, fault)
        last = 2 if done else 1
        for _ in range(2):
            version = self.seen(key)
            if version is None:
                continue
            assert version in (1, 2) and version >= last, f"{key}: version {version} after {last}"
            last = version

    # --- clients ----------------------------------------------------------------------------------

    def raw(self, data, **more):
        connection = Connection(self.port(), timeout=30, **more)
        connection.send(data)
        return connection

    def request(self, key, headers=()):
        host = f"127.0.0.1:{self.port()}"
        return request_bytes("GET", f"/{self.origin.bucket}/{key}", host, headers)

    def leave(self, hard):
        key, size = self.object()
        try:
            connection = self.raw(self.request(key))
            connection.sock.recv(1000)
            if hard:
                connection.reset()
            else:
                connection.close()
        except GONE:
            pass
        self.read_clean(key, size)

    def client_leaves(self):
        self.leave(False)

    def client_resets(self):
        self.leave(True)

    def client_slow(self):
        key, size = self.object()
        self.whole(key, size, self.request(key), pause=True)

    def client_half_closes(self):
        key, size = self.object()
        self.whole(key, size, self.request(key), half_close=True)
        self.read_clean(key, size)

    def client_head_in_pieces(self):
        key, size = self.object()
        data = self.request(key)
        at = self.dice.randrange(1, len(data))
        self.whole(key, size, data[:at], data[at:])

    def whole(self, key, size, *pieces, pause=False, half_close=False):
        try:
            connection = self.raw(pieces[0], receive_buffer=4096 if pause else None)
            try:
                for piece in pieces[1:]:
                    time.sleep(0.005)  # the pace is the fault
                    connection.send(piece)
                if half_close:
                    connection.finish_sending()
                if pause:
                    for _ in range(3):
                        time.sleep(0.01)
                        connection.buf += connection.sock.recv(2000)
                reply = connection.read_reply()
            finally:
                connection.close()
        except Truncated as cut:
            judge_truncated(cut.reply, self.origin, key)
        except GONE:
            pass
        else:
            if reply.status == 200:
                judge(reply, self.origin, key, 0, size)
            else:
                assert reply.status in REFUSED, reply

    def refused(self, data, statuses):
        try:
            connection = self.raw(data)
            try:
                connection.finish_sending()
                reply = connection.read_reply()
                assert reply.status in statuses, reply
            finally:
                connection.close()
        except (Truncated, *GONE):
            pass

    def client_garbage(self):
        self.refused(
            bytes(self.dice.randrange(256) for _ in range(200)) + b"\r\n\r\n", {400, 501, 505}
        )

    def client_half_a_head(self):
        key, _ = self.object()
        self.refused(self.request(key)[:-3], {400, 408})

    def client_two_framings(self):
        key, _ = self.object()
        self.refused(
            self.request(key, [("Content-Length", "4"), ("Transfer-Encoding", "chunked")])
            + b"0\r\n\r\n",
            {400},
        )

    def client_strange_range(self):
        key, size = self.object()
        value = self.dice.choice(
            [f"bytes={size}-", "bytes=5-2", "bytes=0-1,5-9", "bytes=-0", "lines=1-2"]
        )
        try:
            reply = self.connected().get(key, headers=[("Range", value)])
        except (Truncated, *GONE):
            return
        if reply.status == 200:
            judge(reply, self.origin, key, 0, size)
        else:
            assert reply.status in REFUSED, reply

    def client_pipelines(self):
        a, b = self.object(), self.object()
        try:
            connection = self.raw(self.request(a[0]) + self.request(b[0]))
            try:
                for key, size in (a, b):
                    reply = connection.read_reply()
                    if reply.status == 200:
                        judge(reply, self.origin, key, 0, size)
                    else:
                        assert reply.status in REFUSED, reply
            finally:
                connection.close()
        except (Truncated, *GONE):
            pass

    def client_cut_upload(self):
        key, size = self.object()
        self.read_clean(key, size)
        data = request_bytes(
            "PUT", f"/{self.origin.bucket}/{key}", f"127.0.0.1:{self.port()}", (), b"x" * 5000
        )
        try:
            self.raw(data[:-100]).close()
        except GONE:
            pass
        self.read_clean(key, size)

    def client_bad_digest(self):
        key, size = self.object()
        before = self.soak.storms
        digest = base64.b64encode(hashlib.md5(b"other").digest()).decode()
        done = self.put(key, 77, size, headers=[("Content-MD5", digest)])
        assert done is not True, "a body that is not what its digest says"
        if before == self.soak.storms:
            self.read_clean(key, size)


class Weather:
    """Faults that affect everybody, one after another, until the sufferers are done."""

    def __init__(self, soak):
        self.soak, self.server, self.origin = soak, soak.server, soak.origin
        self.dice = random.Random(soak.dice.random())
        self.one = Sufferer(soak, self.dice)

    def go(self, threads):
        for kind in self.rounds(threads):
            try:
                if kind in ON_DISK:
                    self.on_disk(kind)
                else:
                    getattr(self, kind.replace("-", "_"))()
                    self.soak.note(kind)
            except AssertionError as error:
                self.soak.wrong.append(f"{kind}: {error!r}")
                if kind in ON_DISK:
                    (self.soak.triggers / kind).unlink(missing_ok=True)
        self.one.close()

    def rounds(self, threads):
        """Applies each kind at least once, however long the rest takes."""
        kinds = [*ON_DISK, *WEATHER]
        first = True
        while first or any(thread.is_alive() for thread in threads):
            self.dice.shuffle(kinds)
            for kind in kinds:
                if (
                    self.soak.stop.is_set()
                    or not first
                    and not any(thread.is_alive() for thread in threads)
                ):
                    return
                yield kind
            first = False

    def strikes(self):
        try:
            return self.soak.tally.stat().st_size
        except FileNotFoundError:
            return 0

    def on_disk(self, kind):
        """Repeats a disk fault until it has struck. Clients see only misses and objects that are
        not stored."""
        trigger = self.soak.triggers / kind
        before = self.strikes()
        for _ in range(8):
            stored = self.stored()
            trigger.touch()
            if kind in AT_START:
                self.killed()
            elif kind == "mark-eio":
                self.flip_bits(stored)
            until = time.monotonic() + 0.5
            while time.monotonic() < until and self.strikes() < before + 100:
                self.pages_go()
                fresh = self.one.object()
                self.one.read(*fresh, 0, fresh[1] // 2)  # of a part: a full cache stores it too
                for key, size in [*stored, fresh]:
                    self.one.read_clean(key, size)
            trigger.unlink()
            self.ahead(70)  # the pause after a failure is over
            if self.strikes() > before:
                return

    def stored(self):
        """Returns some objects that are cached now. After every fault the server must store
        again."""
        made = []
        for _ in range(4):
            key, size = (
                self.soak.next_key(),
                self.dice.choice((70_000, 300_000)),
            )  # pages of its own
            self.origin.put(key, size)
            wait_for(lambda: self.is_held(key, size), f"a hit of {key}")  # noqa: B023
            made.append((key, size))
        return made

    def is_held(self, key, size):
        """Whether a read is a hit or one that the origin confirms. After a crash with open writes,
        Forebay confirms for a while."""
        if self.one.read(key, size) != "right":
            return False
        reply = self.one.connected().get(key)
        if (
            reply.status != 200
        ):  # perhaps the region that a redirect named: a HEAD does not learn the right one
            assert reply.status in REFUSED, reply
            return False
        judge(reply, self.origin, key, 0, size)
        return "hit" in reply.header("cache-status") or "fwd-status=304" in reply.header(
            "cache-status"
        )

    def pages_go(self):
        for path in self.server.segment_files():
            with contextlib.suppress(FileNotFoundError):
                drop_pages(path)

    def ahead(self, seconds):
        with self.soak.storm():  # waiting readers waited long
            self.server.advance(seconds)

    def clock_hour(self):
        self.ahead(3600)

    def clock_day(self):
        self.ahead(86400)

    def again(self, end, between=lambda: None):
        with self.soak.storm():
            end()
            between()
            self.server.start()

    def killed(self):
        self.again(self.server.kill9)

    def stopped(self):
        self.again(lambda: self.server.stop(code=None))

    def index_lost(self):
        self.again(
            self.server.kill9,
            lambda: [path.unlink() for path in (self.server.cache / "index").iterdir()],
        )

    def paused(self):
        os.kill(self.server.process.pid, signal.SIGSTOP)
        time.sleep(0.05)  # the pause is the fault
        os.kill(self.server.process.pid, signal.SIGCONT)

    def disk_bit_flipped(self):
        stored = self.stored()
        self.flip_bits(stored)
        for key, size in stored:
            self.one.read_clean(key, size)

    def flip_bits(self, stored):
        """Flips bits beneath the page cache, in the newest segments: one bit in each object of
        STORED, and some elsewhere."""

        def flip(data):
            data[at % PAGE] ^= 1 << self.dice.randrange(8)

        names = [name_hash(self.origin.name(key)).to_bytes(8, "little") for key, _ in stored]
        for path in self.server.segment_files()[-NEWEST:]:
            with contextlib.suppress(OSError):  # its file is deleted
                data = read_beneath(path)
                found = [data.find(name) for name in names]
                places = [at for at in found if at >= 0] + [
                    self.dice.randrange(PAGE, len(data)) for _ in range(4)
                ]
                for at in places:
                    edit_beneath(path, at // PAGE, flip)
        self.pages_go()

    def origin_down(self):
        with self.soak.storm():
            self.origin.down()
            time.sleep(0.05)  # so long
            self.origin.start()

    def origin_cuts_all(self):
        with self.soak.storm():
            self.origin.drop_connections()

# SPDX-License-Identifier: Apache-2.0
"""Concurrent writers and readers that record what they saw, and the judge of such a record.

Every write of a key has a unique number, which each cell of the bytes repeats. So a read shows
which write it saw, and whether it mixes several. A label in the object's metadata has numbers too:
a copy onto itself changes the label, but not the bytes or the ETag. The record has a row for each
operation and register. The register `k` holds the number of the bytes of key `k`, and `k label` the
number of its label. A write or a delete is a row of both:

    [kind, key, value, began, ended]

    kind w   a write of VALUE (0: the key is deleted); ENDED None: the writer got no success reply
    kind r   a read that saw VALUE (0: no such key)
    kind p   a write at the origin, past Forebay; reads need not see it, but no read that begins
             after another read saw it may see anything older
    kind s   a reply that showed label and number together, as VALUE

Times are CLOCK_MONOTONIC, one clock for all processes. `python history.py PLAN.json RECORD` runs
one process of clients. `judge()` lists the violations in all records together.

"""

import bisect
import contextlib
import hashlib
import json
import random
import re
import sys
import threading
import time
from collections import defaultdict

from client import Closed, Connection, Truncated, quote, request_bytes
from oracle import oracle_bytes, oracle_judge

BUCKET = "bkt"
SIZES = (32, 4096, 65536, 65536 + 32, 200_000)
LISTED = "list/"
LABEL = "x-amz-meta-label"


class Session:
    """One client: sends requests one after another and records each."""

    def __init__(self, port, keys, seed, rows):
        self.port, self.keys, self.rows = port, keys, rows
        self.rng = random.Random(seed)
        self.numbers = iter(range(seed * 10_000_000 + 1, (seed + 1) * 10_000_000))
        self.connection = None
        self.etags = {}  # ETag -> number, for reads without a body
        self.counts = defaultdict(int)

    def ask(self, method, target, headers=(), body=b"", cut=None):
        """Returns the reply, or None if there was none (a cut upload, a closed connection)."""
        data = request_bytes(method, target, f"127.0.0.1:{self.port}", headers, body)
        for attempt in (0, 1):
            if self.connection is None:
                self.connection = Connection(self.port)
            try:
                if cut is not None:
                    self.connection.send(data[: len(data) - cut])
                    self.close()
                    return None
                self.connection.send(data)
                reply = self.connection.read_reply(method)
                if reply.closes:
                    self.close()
                return reply
            except (Closed, ConnectionError):
                self.close()
                if method not in ("GET", "HEAD") or attempt:
                    return None
            except Truncated:
                self.close()
                return None
        return None

    def close(self):
        if self.connection:
            self.connection.close()
            self.connection = None

    # --- writes -----------------------------------------------------------------------------------

    def content(self, key, number):
        return oracle_bytes(f"{BUCKET}/{key}", number, 0, self.rng.choice(SIZES))

    def write(self, key):
        kind = self.rng.random()
        if kind < 0.55:
            return self.put(key)
        if kind < 0.70:
            return self.relabel(key)
        if kind < 0.80:
            return self.gone(key, "DELETE", f"/{BUCKET}/{quote(key)}")
        if kind < 0.86:
            body = f"<Delete><Object><Key>{key}</Key></Object></Delete>".encode()
            return self.gone(key, "POST", f"/{BUCKET}?delete", body)
        if kind < 0.93:
            return self.multipart(key)
        return self.put(key, cut=self.rng.choice([1, 20, 3000]))

    def record(self, key, number, began, done):
        ended = time.monotonic() if done else None
        self.rows += [["w", key, number, began, ended], ["w", label_of(key), number, began, ended]]

    def relabel(self, key):
        """Copies the key onto itself with other metadata. Bytes and ETag stay the same."""
        label = next(self.numbers)
        path = f"/{BUCKET}/{quote(key)}"
        began = time.monotonic()
        reply = self.ask(
            "PUT",
            path,
            [
                ("Content-Length", "0"),
                ("x-amz-copy-source", path),
                (LABEL, str(label)),
                ("x-amz-metadata-directive", "REPLACE"),
            ],
        )
        if reply is None or reply.status == 200:
            self.counts["relabel"] += 1
            self.rows.append(
                ["w", label_of(key), label, began, None if reply is None else time.monotonic()]
            )

    def put(self, key, cut=None):
        number = next(self.numbers)
        body = self.content(key, number)
        if cut is not None and cut >= len(body):
            cut = 1
        self.etags['"' + hashlib.md5(body).hexdigest() + '"'] = number
        began = time.monotonic()
        reply = self.ask(
            "PUT",
            f"/{BUCKET}/{quote(key)}",
            [("Content-Length", str(len(body))), (LABEL, str(number))],
            body,
            cut,
        )
        self.counts["cut" if cut else "put"] += 1
        self.record(key, number, began, reply is not None and reply.status == 200)

    def gone(self, key, method, target, body=b""):
        began = time.monotonic()
        reply = self.ask(method, target, [("Content-Length", str(len(body)))] if body else (), body)
        self.counts["delete"] += 1
        self.record(key, 0, began, reply is not None and reply.status in (200, 204))

    def multipart(self, key):
        path = f"/{BUCKET}/{quote(key)}"
        number = next(self.numbers)
        made = self.ask("POST", path + "?uploads", [("Content-Length", "0"), (LABEL, str(number))])
        upload = made.element("UploadId") if made is not None else None
        if not upload:
            return
        body = self.content(key, number)
        half = len(body) // 64 * 32
        for part, data in ((1, body[:half]), (2, body[half:])):
            reply = self.ask(
                "PUT",
                f"{path}?partNumber={part}&uploadId={upload}",
                [("Content-Length", str(len(data)))],
                data,
            )
            if reply is None or reply.status != 200:
                return
        sums = b"".join(hashlib.md5(data).digest() for data in (body[:half], body[half:]))
        self.etags['"' + hashlib.md5(sums).hexdigest() + '-2"'] = number
        self.etags['"' + hashlib.md5(body).hexdigest() + '"'] = number  # after a copy onto itself
        xml = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>x</ETag></Part>" for n in (1, 2))
        body = f"<CompleteMultipartUpload>{xml}</CompleteMultipartUpload>".encode()
        began = time.monotonic()
        reply = self.ask(
            "POST", f"{path}?uploadId={upload}", [("Content-Length", str(len(body)))], body
        )
        self.counts["multipart"] += 1
        self.record(key, number, began, reply is not None and reply.status == 200)

    # --- reads ------------------------------------------------------------------------------------

    def read(self, key):
        kind = self.rng.random()
        if kind < 0.10:
            return self.head(key)
        if kind < 0.13 and key.startswith(LISTED):
            return self.listing()
        headers, first = [], 0
        if kind < 0.5:
            first = self.rng.choice([0, 32, 4096 - 32, 65536, 65536 - 64, 100_000 // 32 * 32])
            headers = [("Range", f"bytes={first}-{first + self.rng.choice([31, 4095, 99_999])}")]
        if self.rng.random() < 0.2:
            headers.append(("Cache-Control", "no-cache"))
        began = time.monotonic()
        reply = self.ask("GET", f"/{BUCKET}/{quote(key)}", headers)
        ended = time.monotonic()
        if reply is None:
            self.counts["no reply"] += 1
        elif reply.status in (200, 206):
            number = oracle_judge(
                f"{BUCKET}/{key}", reply.body, first if reply.status == 206 else 0
            )
            known = self.etags.get(reply.etag)
            assert known in (None, number), f"{key}: ETag of {known}, bytes of {number}"
            self.saw(key, number, reply, began, ended)
            self.counts["read"] += 1
        elif reply.status == 404:
            self.saw(key, 0, None, began, ended)
            self.counts["not there"] += 1
        else:
            self.counts[f"status {reply.status}"] += 1

    def head(self, key):
        began = time.monotonic()
        reply = self.ask("HEAD", f"/{BUCKET}/{quote(key)}")
        ended = time.monotonic()
        if reply is not None and reply.status in (200, 404):
            value = ["etag", reply.etag] if reply.status == 200 else 0
            self.saw(key, value, reply if value else None, began, ended)
            self.counts["head"] += 1

    def saw(self, key, value, reply, began, ended):
        label = int(reply.header(LABEL)) if reply is not None else 0
        self.rows += [["r", key, value, began, ended], ["r", label_of(key), label, began, ended]]
        if label:
            self.rows.append(["s", key, [label, value], began, ended])

    def listing(self):
        began = time.monotonic()
        reply = self.ask("GET", f"/{BUCKET}?list-type=2&prefix={quote(LISTED)}")
        ended = time.monotonic()
        if reply is None or reply.status != 200:
            return
        self.counts["list"] += 1
        seen = dict(
            re.findall(r"<Key>([^<]*)</Key>.*?<ETag>([^<]*)</ETag>", bytes(reply.body).decode())
        )
        for key in self.keys:
            if key.startswith(LISTED):
                etag = seen.get(key)
                self.rows.append(
                    ["r", key, ["etag", etag.replace("&quot;", '"')] if etag else 0, began, ended]
                )

    def run(self, count):
        for _ in range(count):
            key = self.rng.choice(self.keys)
            if self.rng.random() < 0.2:
                self.write(key)
            else:
                self.read(key)
        self.close()


def label_of(key):
    """The name of the key's second register."""
    return key + " label"


def write_past(origin, keys, number, rows, etags):
    """Writes at the origin itself. Only keys that no listing shows are written, because listings
    are kept for their own time. Every third write changes only an object's metadata."""
    rng = random.Random(number)
    key = rng.choice([key for key in keys if not key.startswith(LISTED)])
    if number % 3 == 0:
        began = time.monotonic()
        with contextlib.suppress(KeyError):  # the key is deleted
            origin.redescribe(key, {LABEL: str(number)})
            rows.append(["p", label_of(key), number, began, time.monotonic()])
        return
    body = oracle_bytes(f"{BUCKET}/{key}", number, 0, rng.choice(SIZES))
    etag = '"' + hashlib.md5(body).hexdigest() + '"'
    etags[etag] = number
    began = time.monotonic()
    origin.put(key, len(body), body=body, etag=etag, headers={LABEL: str(number)})
    ended = time.monotonic()
    rows += [["p", key, number, began, ended], ["p", label_of(key), number, began, ended]]


# --- the judge ------------------------------------------------------------------------------------


def judge(rows, etags, limit=10):
    """Returns [(story)] of the reads that violate a rule: they saw a value overwritten before they
    began, one nobody had written yet, or one older than another read had seen before they began."""
    writes, reads, past = defaultdict(list), defaultdict(list), defaultdict(list)
    shown = []
    for kind, key, value, began, ended in rows:
        if kind == "w":
            writes[key].append((value, began, float("inf") if ended is None else ended))
        elif kind == "p":
            writes[key].append((value, began, float("inf")))
            past[key].append((value, began, ended))
        elif kind == "s":
            shown.append((key, *value))
        else:
            reads[key].append((value, began, ended))
    wrong = _judge_shown(
        shown, {(key, value) for key in writes for value, _, _ in writes[key]}, etags
    )
    for key, seen in reads.items():
        wrong += _judge_key(key, [(0, float("-inf"), float("-inf")), *writes[key]], seen, etags)
        wrong += _judge_steps(key, [*writes[key], *past[key]], seen, etags)
        if len(wrong) >= limit:
            break
    return wrong


def _judge_shown(shown, written, etags):
    """Checks that a label goes with the bytes of one write: its own, or those that a copy found."""
    of_label, wrong = {}, []
    for key, label, value in shown:
        number = etags.get(value[1], value[1]) if isinstance(value, list) else value
        own = label if (key, label) in written else number
        first = of_label.setdefault((key, label), own)
        if number != first:
            wrong.append(
                f"{key}: label {label} was shown with the bytes of "
                f"{number}, it belongs to those of {first}"
            )
    return wrong


def _judge_key(key, writes, reads, etags):
    # overwritten_at(t): the latest beginning of a write that had ended before t.
    by_end = sorted((ended, began) for _, began, ended in writes if ended != float("inf"))
    ends = [ended for ended, _ in by_end]
    latest, best = [], float("-inf")
    for _, began in by_end:
        best = max(best, began)
        latest.append(best)
    of_value = defaultdict(list)
    for value, began, ended in writes:
        of_value[value].append((began, ended))
    wrong = []
    for value, began, ended in reads:
        if isinstance(value, list):
            value = etags.get(value[1], value[1])
        at = bisect.bisect_left(ends, began)
        newest = latest[at - 1] if at else float("-inf")
        # A write fits if it had begun before the read ended and was not certainly overwritten.
        if any(w_began <= ended and w_ended >= newest for w_began, w_ended in of_value[value]):
            continue
        age = [
            f"write {v} {b - began:+.6f}..{e - began:+.6f}"
            for v, b, e in writes
            if b > float("-inf") and abs(b - began) < 0.5
        ][:12]
        wrong.append(
            f"{key}: a read of {ended - began:.6f} s saw {value}, which is "
            f"{'stale' if of_value[value] else 'unknown'}; around it: {age}"
        )
    return wrong


def _judge_steps(key, writes, reads, etags):
    # Deletes have no names of their own, so seeing one proves nothing.
    of_value = {value: (began, ended) for value, began, ended in writes if value}
    named = []
    for value, began, ended in reads:
        if isinstance(value, list):
            value = etags.get(value[1], value[1])
        if value in of_value:
            named.append((began, ended, value))
    by_end = sorted((ended, of_value[value][0]) for _, ended, value in named)
    wrong, at, newest = [], 0, float("-inf")
    for began, ended, value in sorted(named):
        while at < len(by_end) and by_end[at][0] < began:
            newest = max(newest, by_end[at][1])
            at += 1
        if of_value[value][1] < newest:
            wrong.append(f"{key}: a read of {ended - began:.6f} s went back to {value}")
    return wrong


def main():
    with open(sys.argv[1]) as file:
        plan = json.load(file)
    rows, sessions, failures = [], [], []

    def one(session):
        try:
            session.run(plan["operations"])
        except BaseException as error:  # noqa: BLE001: carried to the parent
            failures.append(repr(error))

    for seed in plan["seeds"]:
        sessions.append(Session(plan["port"], plan["keys"], seed, rows))
    threads = [threading.Thread(target=one, args=(s,)) for s in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts, etags = defaultdict(int), {}
    for session in sessions:
        etags.update(session.etags)
        for name, count in session.counts.items():
            counts[name] += count
    with open(sys.argv[2], "w") as file:
        json.dump({"rows": rows, "etags": etags, "counts": counts, "failures": failures}, file)


if __name__ == "__main__":
    main()

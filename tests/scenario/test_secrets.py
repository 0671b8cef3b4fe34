# SPDX-License-Identifier: Apache-2.0
"""Secrets appear nowhere. Every secret in these tests is marked. Each test searches all places for
them: logs, metrics, admin answers, replies, the command line, the cache directory and core files.
"""

import os
import re
import signal
import time
import urllib.parse
from pathlib import Path

import pytest

from client import Connection
from forebay import run_forebay
from signer import Signer
from test_auth import (
    ALL,
    SECRETS,
    Caller,
    form_request,
    keys_file,
    origin_keys,
    put,
    reload,
    verify,
    ORIGIN_SECRETS,
)

TOKEN = "session-token-canary-c0ffee"
ORIGIN_TOKEN = "origin-token-canary-5eed"
OWN_SECRET = "origin-secret-canary-7f3a"
SSE_KEY = "c3NlLWN1c3RvbWVyLWtleS1jYW5hcnkAAAAAAAAAAAA="


def marks():
    return [TOKEN, ORIGIN_TOKEN, OWN_SECRET, SSE_KEY, *SECRETS.values(), *ORIGIN_SECRETS.values()]


class Hunt:
    """Collects every place that a secret could reach, and searches it."""

    def __init__(self):
        self.places, self.more = {}, []

    def add(self, where, data):
        self.places.setdefault(where, bytearray()).extend(
            data
            if isinstance(data, (bytes, bytearray))
            else data.encode("utf-8", "surrogateescape")
        )

    def reply(self, what, reply):
        self.add(f"reply to {what}", reply.head + b"\n" + bytes(reply.body))
        return reply

    def folder(self, path):
        for file in sorted(Path(path).rglob("*")):
            if file.is_file():
                self.add(str(file), file.read_bytes())

    def search(self):
        found = [
            f"{mark!r} in {where}"
            for where, data in self.places.items()
            for mark in marks() + self.more
            if mark.encode() in data
        ]
        assert not found, found[:10]
        return sum(len(data) for data in self.places.values())


def traffic(server, origin, hunt):
    """Sends all kinds of requests, good and bad, and keeps every reply."""
    alice, host = Caller(server, "ALICE"), f"127.0.0.1:{server.port}"
    alice.signer.token = TOKEN
    at, http = "/bkt/alice/a", alice.http
    for _ in range(2):
        assert hunt.reply("GET", alice.get("alice/a")).status == 200
    hunt.reply("PUT", alice.ask("PUT", "/bkt/alice/new", [], b"body"))
    hunt.reply("list", alice.ask("GET", "/bkt?list-type=2&prefix=alice%2F"))
    hunt.reply("denied", alice.get("bob/a"))
    hunt.reply("gone", alice.get("alice/gone"))
    sse = [
        ("x-amz-server-side-encryption-customer-algorithm", "AES256"),
        ("x-amz-server-side-encryption-customer-key", SSE_KEY),
    ]
    hunt.reply("SSE-C", alice.ask("GET", at, sse))
    hunt.reply("SSE-C", alice.ask("PUT", "/bkt/alice/sse", sse, b"body"))
    for expires, when in ((60, None), (60, time.time() - 600), (0, None)):
        link = alice.signer.presign("GET", at, host, expires=expires, when=when)
        hunt.more.append(re.search(r"X-Amz-Signature=([0-9a-f]{64})", link).group(1))
        hunt.reply("presigned", http.request("HEAD", link))
        broken = link[:-1] + ("0" if link[-1] != "0" else "1")
        hunt.more.append(broken[-64:])
        http.request("GET", broken)  # its reply shows the string to sign, not the secret
    hunt.reply(
        "unknown key",
        http.request(
            "GET", at, Signer("NOSUCHKEY", SECRETS["ALICE"], token=TOKEN).headers("GET", at, host)
        ),
    )
    hunt.reply(
        "mismatch",
        http.request("GET", at, Signer("ALICE", SECRETS["BOB"]).headers("GET", at, host)),
    )
    for target, headers in (
        (at, Signer("ALICE", SECRETS["BOB"], token=TOKEN).headers("GET", at, host, sse)),
        (Signer("ALICE", SECRETS["BOB"], token=TOKEN).presign("GET", at, host), []),
    ):
        reply = hunt.reply("mismatch", http.request("GET", target, headers))
        assert "***" in reply.element("CanonicalRequest"), reply
    in_query = at + "?" + "&".join(f"{n}={urllib.parse.quote(v)}" for n, v in sse)
    http.request("GET", alice.signer.presign("GET", in_query, host))
    for query in (in_query, in_query.replace("x-amz", "X-Amz")):
        reply = hunt.reply(
            "mismatch",
            http.request("GET", Signer("ALICE", SECRETS["BOB"]).presign("GET", query, host)),
        )
        assert "Customer-Key=***&" in reply.element("CanonicalRequest").title(), reply
    hunt.more.append(urllib.parse.quote(SSE_KEY))
    hunt.reply(
        "version 2", http.request("GET", at + "?AWSAccessKeyId=ALICE&Signature=c2ln&Expires=9")
    )
    hunt.reply(
        "malformed", http.request("GET", at, [("Authorization", "AWS4-HMAC-SHA256 " + "x" * 99)])
    )
    hunt.reply("anonymous", http.request("GET", at))
    hunt.reply(
        "form",
        http.request(
            *form_request(
                alice.signer, "x", "UNSIGNED-PAYLOAD", "good", host, time.time(), token=TOKEN
            )
        ),
    )
    headers, pieces = alice.signer.chunked("PUT", "/bkt/alice/chunked", host, [], [b"x" * 9000])
    hunt.reply("chunked", http.request("PUT", "/bkt/alice/chunked", headers, b"".join(pieces)))
    hunt.reply(
        "bad chunk",
        http.request("PUT", "/bkt/alice/chunked", headers, b"".join(pieces).replace(b"x", b"y", 9)),
    )
    for word, argument in (
        ("status", 403),
        ("status", 500),
        ("expired_token", None),
        ("error", (403, "SignatureDoesNotMatch")),
    ):
        origin.fault("alice/f", word, argument, times=None)
        hunt.reply(f"origin {word}", alice.get("alice/f"))
        hunt.reply(f"origin {word}", alice.ask("GET", "/bkt/alice/f?tagging"))
        origin.clear_faults()
    with Connection(server.port) as connection:
        connection.send(
            b"GET /bkt/alice/a?X-Amz-Security-Token="
            + TOKEN.encode()
            + b" HTTP/1.1\r\nHost: a\r\nHost: b\r\nx-amz-security-token: "
            + TOKEN.encode()
            + b"\r\n\r\n"
        )
        hunt.reply("refused", connection.read_reply())
    bob = Caller(server, "BOB")
    hunt.reply("own keys", bob.get("bob/a"))
    hunt.reply("own keys", bob.ask("PUT", "/bkt/bob/b", [], b"x"))


def look(server, hunt):
    for path in (
        "/metrics",
        "/api/v1/config",
        "/livez",
        "/readyz",
        "/startupz",
        "/version",
        "/",
        "/api/v1/requests",
        "/debug",
        "/api/v1/config?x=1",
    ):
        hunt.reply(f"admin {path}", server.admin(path))
    hunt.add("command line", Path(f"/proc/{server._pid()}/cmdline").read_bytes())


@pytest.fixture
def keyed(tmp_path, origin, start):
    allow = {
        "ALICE": [("bkt", "alice/", ALL)],
        "BOB": [("bkt", "bob/", ALL)],
        "ROOT": [("*", "", ALL)],
    }
    origin.credentials = {**origin.credentials, **ORIGIN_SECRETS}

    def make(wrapper=(), **settings):
        path = keys_file(tmp_path, allow, extra={"BOB": origin_keys(tmp_path, "BOB")})
        server = start(
            origin,
            settings=verify(path, **{"log.level": "debug", **settings}),
            env={"AWS_SESSION_TOKEN": ORIGIN_TOKEN},
            wrapper=wrapper,
        )
        for key in ("alice/a", "alice/f", "bob/a"):
            put(origin, "bkt", key)
        return server

    return make


@pytest.mark.parametrize("form", ["json", "s3"])
def test_secrets_appear_nowhere(keyed, origin, tmp_path, figure, form):
    hunt = Hunt()
    server = keyed(**{"access_log.format": form})
    for _ in range(2):
        traffic(server, origin, hunt)
        look(server, hunt)
    (tmp_path / "keys.yaml").write_text("- {id: X, secret: " + SECRETS["ROOT"] + ", cow: 1}\n")
    reload(server)
    (tmp_path / "keys.yaml").write_text("- {id: X, secret: [" + SECRETS["ROOT"] + "}\n")
    reload(server)
    look(server, hunt)
    server.settle()
    server.stop()
    hunt.add("log", "\n".join(server.stderr))
    hunt.add("access log", "\n".join(server.stdout))
    assert len(server.stdout) > 30
    hunt.folder(server.cache)
    figure(
        f"secrets: {hunt.search() >> 20} MiB searched for {len(marks()) + len(hunt.more)} of them"
    )


def test_secrets_are_not_in_a_core_file(keyed, origin):
    """A process that crashes leaves no core file although cores are enabled, and its secrets would
    not be in one."""
    hunt = Hunt()
    server = keyed(wrapper=["prlimit", "--core=unlimited:unlimited"])
    traffic(server, origin, hunt)
    proc = Path(f"/proc/{server._pid()}")
    assert int((proc / "coredump_filter").read_text(), 16) == 0
    assert re.search(r"Max core file size\s+0\s+0", (proc / "limits").read_text())
    server.expect_failure = True
    os.kill(server._pid(), signal.SIGABRT)
    server.wait_exit()
    cores = [f for f in Path(server.folder).rglob("core*") if f.is_file()]
    assert not cores, cores
    hunt.search()


def test_secrets_are_not_in_complaints(tmp_path):
    """An error about the configuration names the file and the place, and never its contents."""
    hunt, secret = Hunt(), SECRETS["ROOT"]
    for i, text in enumerate(
        (
            f"- {{id: A, secret: {secret}, allow: cow}}",
            f"id: A\nsecret: {secret}\n",
            f"- id: A\n  secret: {secret}\n secret: x",
            f"- [A, {secret}]",
            f"- {{id: A, secret: [{secret}]}}",
        )
    ):
        path = tmp_path / f"keys{i}.yaml"
        path.write_text(text)
        path.chmod(0o600)
        for command in ("check", "serve"):
            done = run_forebay(
                command,
                "--listen",
                "127.0.0.1:0",
                "--auth.mode",
                "verify",
                "--auth.keys_file",
                path,
                "--origin.endpoint",
                "http://127.0.0.1:9",
                "--cache.dir",
                tmp_path / "cache",
                "--cache.size",
                "64MiB",
                env={"AWS_ACCESS_KEY_ID": "X", "AWS_SECRET_ACCESS_KEY": OWN_SECRET},
            )
            if command == "serve":
                assert done.returncode == 3, done
            hunt.add(f"{command} {i}", done.stdout + done.stderr)
    hunt.search()
    readable = tmp_path / "open.yaml"
    readable.write_text(f"- {{id: A, secret: {secret}}}")
    readable.chmod(0o644)
    done = run_forebay(
        "serve",
        "--auth.mode",
        "verify",
        "--auth.keys_file",
        readable,
        "--cache.dir",
        tmp_path / "cache",
        "--origin.endpoint",
        "http://127.0.0.1:9",
        env={"AWS_ACCESS_KEY_ID": "X", "AWS_SECRET_ACCESS_KEY": OWN_SECRET},
    )
    assert done.returncode == 3 and "chmod 600" in done.stderr and secret not in done.stderr

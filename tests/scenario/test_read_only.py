# SPDX-License-Identifier: Apache-2.0
"""Rights of clients in auth.mode open, and the two ways to serve reads only.

The guide describes both in access-control.md: access keys that may only read, and keys of Forebay's
own that may only read at the origin.
"""

import pytest

from client import judge
from test_auth import Caller, SECRETS, judge_denied, keys_file, verify

IMMUTABLE = {"rules": [{"match": "**", "freshness": "immutable"}]}
BATCH = b"<Delete><Object><Key>a</Key></Object></Delete>"
WRITES = [
    ("PUT", "/bkt/a", b"new"),
    ("DELETE", "/bkt/a", b""),
    ("POST", "/bkt/a?uploads", b""),
    ("PUT", "/bkt/a?tagging", b"<Tagging><TagSet></TagSet></Tagging>"),
    ("POST", "/bkt?delete", BATCH),
    ("PUT", "/fresh", b""),
    ("DELETE", "/bkt", b""),
]


def test_open_mode_writes_and_deletes_with_forebays_keys(start, origin):
    """A client without a key writes and deletes, and the start says so."""
    origin.put("a", 100)
    server = start(origin)
    assert "reads, writes and deletes whatever Forebay's keys may" in " ".join(
        " ".join(server.stderr).split()
    )
    with server.client() as client:
        assert client.request("PUT", "/bkt/b", [], b"new").status == 200
        assert client.request("DELETE", "/bkt/a").status == 204
    assert "a" not in origin.buckets["bkt"] and "b" in origin.buckets["bkt"]


@pytest.mark.both_engines
def test_keys_that_may_read_and_list_write_nothing(tmp_path, start, origin, engine):
    """Forebay refuses each write itself. It asks no origin, and cached objects stay."""
    SECRETS.setdefault("READS", "secret-canary-reads-77ab")
    allow = {"READS": [("*", "", ["read", "list"])]}
    server = start(
        origin, engine=engine, file=IMMUTABLE, settings=verify(keys_file(tmp_path, allow))
    )
    origin.put("a", 100)
    caller = Caller(server, "READS")
    judge(caller.get("a"), origin, "a", 0, 100)
    server.settle()
    mark = origin.mark()
    for method, target, body in WRITES:
        judge_denied(caller.ask(method, target, [], body), "AccessDenied")
    judge(caller.get("a"), origin, "a", 0, 100)
    assert not origin.requests(since=mark), "a refused write reaches no origin"
    assert caller.ask("GET", "/bkt?list-type=2").status == 200


@pytest.mark.both_engines
def test_keys_of_the_origin_that_only_read_write_nothing(start, origin, engine):
    """The origin refuses each write, and its answer reaches the client. Reads go on. An object
    whose write was refused is fetched again, because Forebay drops its copy before it asks."""
    server = start(origin, engine=engine, file=IMMUTABLE)
    origin.put("a", 100)
    for method in ("PUT", "POST", "DELETE"):
        for bucket in ("bkt", "fresh"):
            origin.fault(None, "status", 403, times=None, method=method, bucket=bucket)
    with server.client() as client:
        for method, target, body in WRITES:
            judge(client.get("a"), origin, "a", 0, 100)
            server.settle()
            reply = client.request(method, target, [], body)
            assert (reply.status, reply.code) == (403, "AccessDenied"), (method, target, reply)
        mark = origin.mark()
        for _ in range(2):
            judge(client.get("a"), origin, "a", 0, 100)
            server.settle()
        assert len(origin.requests(key="a", method="GET", since=mark)) == 1

# SPDX-License-Identifier: Apache-2.0
"""Operators see that a crash during writes left buckets in doubt, and until when."""

import re

from client import judge
from forebay import run_forebay
from test_common_options import admin_of

DOUBT_S = 300
UNTIL = re.compile(r"\d\d:\d\d:\d\d UTC at the latest")


def explained(server, key):
    done = run_forebay("explain", f"s3://bkt/{key}", env={"FOREBAY_ADMIN": admin_of(server)})
    assert done.returncode == 0, done
    return done.stdout


def test_a_kill_during_a_write_shows_as_a_doubt_until_its_end(start, origin, engine):
    """While the origin is away, the conditions and `explain` say that cached objects of the bucket
    cannot be read, why, and until when. The condition ends when the doubt does."""
    settings = {"cache.ttl": "1h", "origin.retries": 0, "origin.probe": "true"}
    server = start(origin, engine=engine, settings=settings, ahead_s=0)
    origin.put("a", 3000)
    with server.client() as client:
        judge(client.get("a"), origin, "a", 0, 3000, version=1)
    server.restart()  # a clean stop commits the copy to the index, so that the kill cannot lose it
    assert "in-doubt" not in server.conditions()
    with origin.hold("b", method="PUT"):
        mark = origin.mark()
        with server.connection() as connection:
            connection.send(b"PUT /bkt/b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\n\r\nx")
            origin.wait_for(1, since=mark, key="b", method="PUT")
            server.kill9()
    server.start()
    server.wait_condition("in-doubt")
    row = server.condition_rows()["in-doubt"]
    assert row["severity"] == "info" and "1 bucket is in doubt" in row["text"], row
    assert "without a clean stop" in row["text"] and UNTIL.search(row["text"]), row
    assert UNTIL.search(explained(server, "a"))
    origin.down()
    with server.client() as client:
        assert client.get("a").status == 503
    server.wait_condition("origin-unreachable")
    assert "buckets in doubt" in server.condition_rows()["origin-unreachable"]["text"]
    said = explained(server, "a")
    assert "killed during writes" in said and UNTIL.search(said), said
    server.advance(DOUBT_S + 5)
    server.wait_condition("in-doubt", holds=False)
    said = explained(server, "a")
    assert "killed during writes" in said and not UNTIL.search(said), said
    assert "buckets in doubt" in server.condition_rows()["origin-unreachable"]["text"]
    origin.start()
    server.wait_condition("origin-unreachable", holds=False)
    with server.client() as client:
        judge(client.get("a"), origin, "a", 0, 3000, version=1)
    assert " hit: " in explained(server, "a")

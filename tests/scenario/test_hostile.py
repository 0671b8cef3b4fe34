# SPDX-License-Identifier: Apache-2.0
"""The control interface and the commands against what means no good: numbers at the end of their range, bodies of the wrong
kind, lists that are none, listings without an end, names that are no text. Nothing dies, nothing is taken for done that was
not, and nothing is hidden."""
import json
import os
import subprocess
import time

import pytest

from client import Connection
from forebay import binary, scaled
from test_control import ask, said
from waiting import WAIT_S, wait_for


def post(server, path, body):
    """Status and answer of a body as it stands."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    with Connection(server.admin_port) as connection:
        connection.send(b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Forebay-Control: 1\r\nContent-Length: %d\r\n\r\n%s"
                        % (path.encode(), len(body), body))
        reply = connection.read_reply()
        return reply.status, json.loads(bytes(reply.body))


def piped(server, text, *words, code):
    """A command that is given TEXT (bytes) by a pipe; what it says."""
    got = subprocess.run([binary(), *words], input=text, capture_output=True, timeout=WAIT_S,
                         env={"PATH": os.environ["PATH"], "FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"})
    assert got.returncode == code, (words, text[:40], got.returncode, got.stdout, got.stderr)
    return (got.stdout + got.stderr).decode()


@pytest.mark.parametrize("key", ["k", "empty", "missing"])
def test_ranges_behind_every_object(start, origin, key):
    """What is reckoned from a range does not overflow: such a one is refused, or has nothing in it."""
    server = start(origin, settings={"workers": 1})
    origin.put("k", 3 << 20)
    origin.put("empty", 0)
    for first in (2**63, 2**64 - 16 * 2**20, 2**64 - 16, 2**64 - 2, 2**64 - 1, 2**64, 10**30):
        for text in (f"{first}-", f"{first}-{first}"):
            assert post(server, "/api/v1/warm", {"uris": [{"uri": f"s3://bkt/{key}", "range": text}]})[0] == 400
            assert server.admin(f"/api/v1/explain?uri=s3://bkt/{key}&range={text}").status == 400
    for text in (f"{2**63 - 1}-", f"{2**62}-{2**64 - 1}", f"{2**63 - 1}-{2**63 - 1}"):
        assert post(server, "/api/v1/warm", {"uris": [{"uri": f"s3://bkt/{key}", "range": text}]})[0] == 200
        assert server.admin(f"/api/v1/explain?uri=s3://bkt/{key}&range={text}").status == 200
    wait_for(lambda: all(job["state"] == "done" for job in ask(server, "jobs")[:-1]), "the end of all jobs")


def test_listings_in_a_wider_circle_end(start, origin):
    """A, B, C, A, ...: found before a dozen pages have been asked for, by commands and by a job."""
    class Circle(origin.connection_class):
        def _list(self, entry):
            self.token = entry.query.pop("continuation-token", None)
            super()._list(entry)

        def _xml(self, entry, xml, status=200):
            after = {None: "A", "A": "B", "B": "C", "C": "A"}[self.token]
            more = f"<NextContinuationToken>{after}</NextContinuationToken><IsTruncated>true<"
            super()._xml(entry, xml.replace("<IsTruncated>false<", more), status)

    def pages():
        return [entry for entry in origin.requests(since=mark) if "list-type" in entry.query]
    origin.connection_class = Circle
    server = start(origin)
    origin.put("k", 10)
    for words, code in (("ls", 4), ("du", 4), ("evict", 4)):
        mark = origin.mark()
        assert "circle" in said(server, words, "s3://bkt/p*" if words == "evict" else "s3://bkt/", code=code)
        assert 4 <= len(pages()) <= 12
    mark = origin.mark()
    assert any("circle" in line.get("reason", "") for line in ask(server, "warm", "s3://bkt/", "--wait", code=5))
    assert 4 <= len(pages()) <= 12

# SPDX-License-Identifier: Apache-2.0
"""Hits that are not in memory are read past the page cache where they would not stay in it."""

import http.client
import os
import shutil
import ssl
import tempfile

import pytest
from client import judge
from conftest import not_run
from disks import direct_works
from forebay import build_kind
from test_connections import certificate

assert certificate  # a fixture
PAGES_GONE = {"FOREBAY_DISK_FAULTS": "pages.gone:1+:eio"}
SIZES = (40_001, 65_536, 300_000, 1_048_576, 5_000_017)


@pytest.fixture(autouse=True)
def faults():
    if build_kind() == "release":
        not_run("a release has no fault hook")


def fill(server, origin):
    """Stores an object of each size, and returns the origin's requests until then."""
    for size in SIZES:
        origin.put(f"k{size}", size)
        with server.client() as client:
            judge(client.get(f"k{size}"), origin, f"k{size}", 0, size)
    server.durable()
    return len(origin.requests())


def read_all(server, origin):
    with server.client() as client:
        for size in SIZES:
            key = f"k{size}"
            judge(client.get(key), origin, key, 0, size)
            middle = size // 2
            for first, last in ((0, 0), (1, size - 2), (middle, middle + 9_999), (size - 1,) * 2):
                judge(client.get(key, first, last), origin, key, first, last - first + 1)


def by_path(server, path):
    return server.metric("forebay_hit_blocks_total", path=path)


def test_hits_that_memory_does_not_keep_are_read_past_the_page_cache(
    start, origin, engine, tmp_path
):
    """Whole objects and ranges are right, and none of them asks the origin."""
    if not direct_works(tmp_path):
        not_run("no direct I/O here")
    server = start(origin, engine=engine, settings={"cache.ttl": "1h"}, env=PAGES_GONE)
    asked = fill(server, origin)
    read_all(server, origin)
    assert len(origin.requests()) == asked
    assert by_path(server, "direct") > 2 * len(SIZES)
    assert by_path(server, "sendfile") == 0


def test_hits_are_right_on_a_file_system_in_memory(start, origin, engine):
    """A tmpfs may refuse direct I/O. Then the page cache is used, and the log says so once."""
    if not os.access("/dev/shm", os.W_OK):
        not_run("/dev/shm is missing")
    folder = tempfile.mkdtemp(prefix="forebay-test-", dir="/dev/shm")
    try:
        server = start(
            origin,
            engine=engine,
            settings={"cache.ttl": "1h", "cache.dir": f"{folder}/cache", "cache.size": "64MiB"},
            env=PAGES_GONE,
        )
        asked = fill(server, origin)
        read_all(server, origin)
        assert len(origin.requests()) == asked
        assert by_path(server, "direct") + by_path(server, "read") > 2 * len(SIZES)
        assert "".join(server.stderr).count("direct_io_unavailable") <= 1
        server.stop()
    finally:
        shutil.rmtree(folder)


def test_a_hit_from_memory_over_tls_counts_as_memory(start, origin, engine, certificate):
    """No reply over TLS is sent by sendfile, but its bytes come from memory all the same."""
    server = start(
        origin,
        engine=engine,
        settings={
            "cache.ttl": "1h",
            "listen": "127.0.0.1:0,tls:127.0.0.1:0",
            "listen_tls.cert": certificate[0],
            "listen_tls.key": certificate[1],
        },
    )
    fill(server, origin)
    trust = ssl.create_default_context(cafile=certificate[0])
    client = http.client.HTTPSConnection("127.0.0.1", server.tls_port, context=trust)
    for size in SIZES:
        client.request("GET", f"/bkt/k{size}")
        assert len(client.getresponse().read()) == size
    client.close()
    sent = {
        source: server.metric("forebay_http_response_bytes_total", source=source)
        for source in ("memory", "disk")
    }
    assert sent == {"memory": sum(SIZES), "disk": 0}

# SPDX-License-Identifier: Apache-2.0
"""A miss that is not stored costs the origin one request, as without a cache.

That holds on a full disk and in a cache that is too small. The request has the client's own range,
and the client loses no protection."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from client import Closed, Truncated
from disks import SmallMemory
from forebay import run_forebay
from signer import crc32_of
from test_checksums import MODE, describe, ranged, sums
from test_store import fill_up

MIB = 1 << 20
PART = bytes(range(251)) * 4200  # a length that fits no block, so that a shifted byte shows


def body_of(size):
    return (PART * (size // len(PART) + 1))[:size]


def put(origin, key, size, checksum=None):
    body = body_of(size)
    origin.put(key, size, body=body, checksums=describe("crc32", checksum or crc32_of(body)))
    return body


def is_stored(reply):
    return "stored=?0" not in reply.header("cache-status")


@pytest.fixture
def full(start, origin, engine, tmp_path):
    """A server whose disk was full when it started."""
    with SmallMemory(tmp_path / "memory", 300 * MIB, 4000) as disk:
        fill_up(disk.mount / "other")
        server = start(
            origin,
            engine=engine,
            cache=disk.mount / "cache",
            settings={"cache.size": "100MiB", "log.format": "text"},
        )
        server.wait_stderr("event=cache_unusable")
        yield server
        server.stop()


@pytest.mark.both_engines
@pytest.mark.parametrize("size", [1, 100_000, MIB, 3 * MIB, 20 * MIB])
@pytest.mark.parametrize("mode", [MODE, []])
def test_whole_object_on_a_full_disk_is_one_request(full, origin, size, mode):
    """The size, earlier objects of the same kind and earlier reads make no difference.

    The request has no range if the client wants checksums. Otherwise it has one, because the
    total in its answer contradicts a wrong length."""
    with full.client() as client:
        for i in range(3):
            body = put(origin, f"d/{i}.bin", size)
            for _ in range(2):
                mark = origin.mark()
                reply = client.get(f"d/{i}.bin", headers=mode)
                assert reply.status == 200 and bytes(reply.body) == body
                assert reply.header("cache-status").endswith("stored=?0; detail=disk-full")
                assert sums(reply) == (describe("crc32", crc32_of(body)) if mode else {})
                full.settle()
                (request,) = origin.requests(since=mark)
                assert request.method == "GET" and ranged(request) == (not mode)
    assert full.metric("forebay_checksum_requests_total", kind="head-with-get") == 0
    assert full.metric("forebay_cache_admission_rejected_total", reason="disk-full") == 6
    assert full.metric("forebay_origin_checksums_total", result="unjudged") == 0


@pytest.mark.parametrize(
    "asked", ["bytes=7-106", "bytes=1048570-1048585", "bytes=5000000-", "bytes=-100"]
)
def test_range_on_a_full_disk_is_asked_for_as_the_client_wants_it(full, origin, asked):
    """No byte before or after the client's range comes from the origin."""
    size = 6 * MIB
    body = put(origin, "d/a.bin", size)
    first, last = asked[len("bytes=") :].split("-")
    first, last = (size - int(last), size) if not first else (int(first), int(last or size - 1) + 1)
    with full.client() as client:
        for i in range(2):
            reply = client.get("d/a.bin", headers=[*MODE, ("Range", asked)])
            assert reply.status == 206 and bytes(reply.body) == body[first:last]
            full.settle()
            assert len(origin.requests()) == i + 1
            assert origin.bytes_sent("d/a.bin") == (i + 1) * (last - first)


def test_very_large_object_on_a_full_disk_is_one_request_for_each_64_mib(full, origin):
    body = put(origin, "d/a.bin", 70 * MIB)
    with full.client() as client:
        reply = client.get("d/a.bin", headers=MODE)
        assert bytes(reply.body) == body and sums(reply) == describe("crc32", crc32_of(body))
        full.settle()
    requests = origin.requests()
    assert [ranged(r) for r in requests] == [False, True]
    assert all(r.method == "GET" for r in requests)


def test_readers_at_once_on_a_full_disk_share_one_request(full, origin):
    body = put(origin, "d/a.bin", 60_000)

    def read(_):
        with full.client() as client:
            return bytes(client.get("d/a.bin", headers=MODE).body)

    with ThreadPoolExecutor(8) as pool, origin.hold("d/a.bin"):
        reads = [pool.submit(read, i) for i in range(8)]
        full.wait_metric("forebay_http_requests_inflight", lambda v: v == 8)
        origin.release()
        assert all(r.result() == body for r in reads)
    assert len(origin.requests()) == 1


@pytest.mark.parametrize("size", [100_000, 3 * MIB, 20 * MIB])
def test_wrong_object_on_a_full_disk_does_not_look_complete(full, origin, size):
    """The last bytes go to the client only if all bytes are what the origin's checksum says."""
    put(origin, "d/a.bin", size, checksum=crc32_of(b"other"))
    with full.client() as client:
        try:
            reply = client.get("d/a.bin", headers=MODE)
            assert reply.status >= 500, reply
        except (Truncated, Closed):
            pass
    full.settle()
    results = [full.metric("forebay_origin_checksums_total", result=r) for r in ("mismatch", "cut")]
    assert sum(results) == 1, results


@pytest.mark.parametrize("mode", [MODE, []])
@pytest.mark.parametrize("has_head", [False, True])
@pytest.mark.parametrize("difference", [-1, 1])
def test_wrong_length_on_a_full_disk_does_not_look_complete(
    full, origin, mode, has_head, difference
):
    """The total of a range, the checksum of a whole object or the size of an earlier HEAD
    contradicts the length that the origin names."""
    body = put(origin, "d/a.bin", 100_000)
    with full.client() as client:
        if has_head:
            target = client.target("d/a.bin")
            assert client.request("HEAD", target, mode).header("content-length") == "100000"
        origin.fault("d/a.bin", "wrong_length", difference, times=1, method="GET")
        try:
            reply = client.get("d/a.bin", headers=mode)
            assert reply.status >= 500 or bytes(reply.body) == body, reply
        except (Truncated, Closed):
            pass
    with full.client() as client:
        assert bytes(client.get("d/a.bin", headers=mode).body) == body


@pytest.mark.both_engines
@pytest.mark.parametrize("cache_size", ["16MiB", "64MiB", "128MiB"])
def test_miss_that_a_small_cache_does_not_store_is_one_request(start, origin, engine, cache_size):
    """A cache without room for long runs stores objects that fit in a short one, and each of them
    costs one request. An object that it does not store costs one request, whatever its size."""
    server = start(origin, engine=engine, settings={"cache.size": cache_size})
    unstored = 0
    with server.client() as client:
        for size, count in ((100_000, 40), (MIB, 40), (3 * MIB, 12), (20 * MIB, 4)):
            stored = 0
            for i in range(count):
                body = put(origin, f"{size}/{i}.bin", size)
                mark = origin.mark()
                reply = client.get(f"{size}/{i}.bin", headers=MODE)
                assert bytes(reply.body) == body
                assert sums(reply) == describe("crc32", crc32_of(body))
                server.settle()
                stored += is_stored(reply)
                if size <= MIB or not is_stored(reply):
                    (request,) = origin.requests(since=mark)
                    assert request.method == "GET" and not ranged(request)
                if not is_stored(reply):
                    assert reply.header("cache-status").endswith("stored=?0; detail=not-admitted")
                    (entry,) = server.access_log(lambda e, key=f"{size}/{i}.bin": e["key"] == key)
                    assert entry["unstored"] == "not-admitted"
            assert stored > 0 or size > MIB
            unstored += count - stored
    assert unstored > 0 or cache_size == "128MiB"


@pytest.mark.both_engines
def test_miss_is_counted_as_disk_full_where_another_file_leaves_no_room(
    start, origin, engine, tmp_path
):
    """A cache that holds nothing, because other files fill its disk, does not blame the policy."""
    body = put(origin, "a.bin", 100_000)
    with SmallMemory(tmp_path / "memory", 8 * MIB, 4000) as disk:
        (disk.mount / "other").write_bytes(bytes(7 * MIB))
        server = start(
            origin,
            engine=engine,
            cache=disk.mount / "cache",
            settings={"cache.size": "2GiB"},
        )
        server.wait_condition("disk-full")
        with server.client() as client:
            for i in range(20):
                origin.put(f"b/{i}.bin", 100_000, body=body)
                for _ in range(2):
                    reply = client.get(f"b/{i}.bin")
                    assert reply.header("cache-status").endswith("detail=disk-full"), i
        refused = "forebay_cache_admission_rejected_total"
        assert server.metric(refused, reason="not-admitted") == 0
        assert server.metric(refused, reason="disk-full") > 0
        admin = f"http://127.0.0.1:{server.admin_port}"
        told = run_forebay("explain", "s3://bkt/b/0.bin", env={"FOREBAY_ADMIN": admin}).stdout
        assert "disk-full" in told and "not-admitted" not in told, told
        server.stop()

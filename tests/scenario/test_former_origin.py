# SPDX-License-Identifier: Apache-2.0
"""A start with another origin.endpoint serves nothing that is cached of the former one. When the
former origin comes back, what is cached of it counts again: the origin confirms it once, and sends
only what has changed."""

import contextlib
import threading

import pytest
from client import Closed
from conftest import strict
from origin import Origin
from test_control import ask
from test_reload import asked, change, merged, serve
from test_reload_buckets import bucket
from waiting import wait_for

SIZE = 300_000
RULES = {"rules": [{"match": "**", "freshness": "immutable"}]}
ENDPOINT = "origin.endpoint"
WRONG = "http://127.0.0.1:1"


@pytest.fixture
def other(origin):
    """A second origin with another version of the same key."""
    with strict(Origin()) as second:
        second.put("k", SIZE)
        second.overwrite("k", SIZE)
        yield second


@pytest.mark.parametrize("end", ["stop", "kill9"])
def test_cached_objects_of_an_origin_count_again_when_it_comes_back(
    start, origin, other, engine, end
):
    """One start with a wrong endpoint, even with reads and a kill, costs a revalidation, and only
    one."""
    origin.put("k", SIZE)
    server = start(origin, engine=engine, file=RULES)
    assert asked(server, origin, "k") > 0
    server.restart(**{ENDPOINT: other.endpoint})
    assert asked(server, other, "k") > 0 and asked(server, other, "k") == 0
    server.durable()
    getattr(server, end)()
    server.settings[ENDPOINT] = origin.endpoint
    server.start()
    mark = origin.mark()
    assert asked(server, origin, "k") == 1 and asked(server, origin, "k") == 0
    assert origin.bytes_sent(since=mark) == 0
    server.restart()
    assert asked(server, origin, "k") == 0
    server.restart(**{ENDPOINT: other.endpoint})
    mark = other.mark()
    assert asked(server, other, "k") == 1 and other.bytes_sent(since=mark) == 0


def change_said(server):
    """Returns the line that names the former origin. The log may write it some time later."""
    server.wait_stderr("origin_changed")
    (line,) = [line for line in server.stderr if "origin_changed" in line]
    return line


def test_a_start_without_a_request_at_the_wrong_endpoint_costs_a_revalidation(start, origin):
    origin.put("k", SIZE)
    server = start(origin, file=RULES)
    assert asked(server, origin, "k") > 0
    server.restart(**{ENDPOINT: WRONG})
    line = change_said(server)
    # With quotes, because one may be the beginning of the other.
    assert line.index(f'"{origin.endpoint}"') < line.index(f'"{WRONG}"')
    verdict = ask(server, "explain", "s3://bkt/k")[-1]["verdict"]
    assert verdict["reason"] == "absent" and "another origin.endpoint" in verdict["text"]
    server.restart(**{ENDPOINT: origin.endpoint})
    line = change_said(server)
    assert line.index(f'"{WRONG}"') < line.index(f'"{origin.endpoint}"')
    mark = origin.mark()
    assert asked(server, origin, "k") == 1 and origin.bytes_sent(since=mark) == 0


def test_writes_under_another_spelling_of_the_endpoint_are_seen(start, origin):
    """While the server has another name of the same origin, clients overwrite one object and delete
    another through it. Afterwards no client sees the old bytes, not even of immutable objects."""
    for key in ("k", "gone", "same"):
        origin.put(key, SIZE)
    server = start(origin, file=RULES)
    for key in ("k", "gone", "same"):
        assert asked(server, origin, key) > 0
    right = origin.endpoint
    server.restart(**{ENDPOINT: right.replace("127.0.0.1", "localhost")})
    with server.client() as client:
        assert client.request("PUT", "/bkt/k", body=b"new bytes").status == 200
        assert client.request("DELETE", "/bkt/gone").status == 204
    server.restart(**{ENDPOINT: right})
    with server.client() as client:
        assert client.get("k").body == b"new bytes"
        assert client.get("gone").status == 404
    mark = origin.mark()
    assert asked(server, origin, "same") > 0
    assert origin.bytes_sent(since=mark) == SIZE, "after a write nothing of a former origin counts"


def test_a_write_in_flight_under_another_spelling_is_seen_after_a_reload(start, origin):
    """A write through another name of the origin ends only after a reload has brought the former
    name back."""
    origin.put("k", SIZE)
    alias = origin.endpoint.replace("127.0.0.1", "localhost")
    right, other_name = (
        {**RULES, "buckets": [bucket("bkt", origin, endpoint=name)]}
        for name in (origin.endpoint, alias)
    )
    status = []

    def write():
        with server.client() as client:
            status.append(client.request("PUT", "/bkt/k", body=b"new bytes").status)

    with strict(Origin()) as default:
        server = serve(start, default, right)
        assert asked(server, origin, "k") > 0
        server.file = merged(server.base, other_name)
        server.restart()
        writer = threading.Thread(target=write)
        with origin.hold("k", method="PUT"):
            writer.start()
            wait_for(lambda: origin.requests(method="PUT"), "the write at the origin")
            change(server, right)
            assert asked(server, origin, "k") > 0
        writer.join()
        assert status == [200]
        with server.client() as client:
            assert client.get("k").body == b"new bytes"


def wait_for_hit(server, origin):
    """Waits until a read asks nothing. A record that is confirmed in the last millisecond of a
    doubt is confirmed once more."""
    wait_for(lambda: asked(server, origin, "k") == 0, "a hit that asks the origin nothing")


def test_the_origin_of_a_bucket_comes_back_by_a_reload(start, origin, other):
    """A start that no longer names the origin of a bucket keeps its objects for a later reload."""
    origin.put("k", SIZE)
    server = serve(start, origin, {**RULES, "buckets": [bucket("bkt", other)]})
    assert asked(server, other, "k") > 0
    server.file = merged(server.base, RULES)
    server.restart()
    assert asked(server, origin, "k") > 0
    change(server, {**RULES, "buckets": [bucket("bkt", other)]})
    mark = other.mark()
    assert asked(server, other, "k") == 1
    wait_for_hit(server, other)
    assert other.bytes_sent(since=mark) == 0
    change(server, RULES)
    assert asked(server, origin, "k") == 1
    wait_for_hit(server, origin)


def test_other_spellings_of_an_endpoint_keep_the_cache(start, origin):
    """A slash at the end, capital letters and the default port do not make another origin."""
    origin.put("k", SIZE)
    host = origin.endpoint.replace("127.0.0.1", "localhost")
    server = start(origin, settings={ENDPOINT: host}, file=RULES)
    assert asked(server, origin, "k") > 0
    for spelling in (host + "/", host.replace("localhost", "LocalHost"), host):
        server.restart(**{ENDPOINT: spelling})
        assert asked(server, origin, "k") == 0
        assert "origin_changed" not in server.output()


def test_a_write_that_ends_long_after_its_bucket_has_moved_is_seen(start, origin):
    """The doubt of the move is over when a write through the former name of the store ends."""
    origin.put("k", SIZE)
    alias = origin.endpoint.replace("127.0.0.1", "localhost")
    moved = {**RULES, "buckets": [bucket("bkt", origin, endpoint=alias)]}
    times = {"origin.first_byte_timeout": "10m", "origin.idle_timeout": "10m"}
    server = serve(start, origin, moved, settings=times, ahead_s=0)
    status = []

    def write():
        with server.client() as client:
            status.append(client.request("PUT", "/bkt/k", body=b"new bytes").status)

    writer = threading.Thread(target=write)
    with origin.hold("k", method="PUT"):
        writer.start()
        wait_for(lambda: origin.requests(method="PUT"), "the write at the origin")
        change(server, RULES)
        assert asked(server, origin, "k") > 0 and asked(server, origin, "k") > 0
        server.advance(310)
        assert asked(server, origin, "k") > 0 and asked(server, origin, "k") == 0
    writer.join()
    assert status == [200]
    with server.client() as client:
        assert client.get("k").body == b"new bytes"


MOVES = {
    "by reloads": ("change", "change"),
    "by restarts": ("restart", "restart"),
    "by a reload and a restart": ("change", "restart"),
    "by a restart and a reload": ("restart", "change"),
    "by reloads, and is killed": ("change", "change", "kill"),
    "by a reload, and is killed": ("change", "kill"),
}


@pytest.mark.parametrize("how", MOVES)
@pytest.mark.parametrize("first", ["default", "own"])
def test_a_bucket_moves_to_another_name_of_its_store_and_back(start, origin, first, how):
    """Meanwhile a client overwrites an object by that name. The default origin has its name all the
    time, so it does not come back. Nor does the own origin of the bucket, if only reloads leave it
    out."""
    origin.put("k", SIZE)
    origin.put("same", SIZE)
    alias = origin.endpoint.replace("127.0.0.1", "localhost")
    own = {**RULES, "buckets": [bucket("bkt", origin, endpoint=alias)]}
    here, there = (RULES, own) if first == "default" else (own, RULES)
    server = serve(start, origin, here)
    assert asked(server, origin, "k") > 0 and asked(server, origin, "same") > 0
    server.durable()
    for way, file in zip(MOVES[how], (there, here, here), strict=False):
        if way == "change":
            change(server, file)
        else:
            server.kill9() if way == "kill" else server.stop()
            server.file = merged(server.base, file)
            server.start()
        if file is there:
            with server.client() as client:
                assert client.request("PUT", "/bkt/k", body=b"new bytes").status == 200
    with server.client() as client:
        assert client.get("k").body == b"new bytes"
    mark = origin.mark()
    assert asked(server, origin, "same") > 0
    if MOVES[how][0] == "change" or first == "default":  # else the write has dropped what was left
        assert origin.bytes_sent(since=mark) == 0
    if "kill" not in MOVES[how]:  # writes of a killed process may still be applied
        assert asked(server, origin, "same") == 0


@pytest.mark.parametrize("applied", ["before the kill", "after it"])
def test_a_write_over_the_move_of_its_bucket_is_seen_after_a_kill(start, origin, applied):
    """A reload moves the bucket to another name of its store, and an object is read there while a
    write through the former name is in flight. No write follows before the kill."""
    origin.put("k", SIZE)
    alias = origin.endpoint.replace("127.0.0.1", "localhost")
    moved = {**RULES, "buckets": [bucket("bkt", origin, endpoint=alias)]}
    server = serve(start, origin, RULES, ahead_s=0)
    change(server, moved)  # so that the origin's own line is in `format` already
    change(server, RULES)
    status = []

    def write():
        with server.client() as client, contextlib.suppress(OSError, Closed):
            status.append(client.request("PUT", "/bkt/k", body=b"new bytes").status)

    writer = threading.Thread(target=write)
    with origin.hold("k", method="PUT"):
        writer.start()
        wait_for(lambda: origin.requests(method="PUT"), "the write at the origin")
        saved = server.format_state()
        server.advance(10)
        change(server, moved)
        if applied == "after it":
            wait_for(lambda: server.format_state() != saved, "the doubt in the file `format`")
        assert asked(server, origin, "k") > 0
        server.durable()
        if applied == "after it":
            server.kill9()
    writer.join()
    assert status == ([200] if applied == "before the kill" else [])
    server.kill9()
    wait_for(lambda: origin.version("k").size == len(b"new bytes"), "the origin to have it")
    server.file = merged(server.base, moved)
    server.start()
    with server.client() as client:
        assert client.get("k").body == b"new bytes"


@pytest.mark.parametrize("end", ["stop", "kill9"])
@pytest.mark.parametrize("at", ["default", "own"])
def test_a_restart_gives_a_bucket_another_name_at_its_origin_and_back(start, origin, at, end):
    """Both names are of one bucket. A client overwrites an object by the other name."""
    origin.buckets["alias"] = origin.buckets["bkt"]
    origin.put("k", SIZE)
    origin.put("same", SIZE)
    where = {"endpoint": origin.endpoint, "region": "us-east-1"} if at == "own" else {}
    here, there = (
        {**RULES, "buckets": [{"name": "bkt", "origin": f"s3://{name}", **where}]}
        for name in ("bkt", "alias")
    )
    server = serve(start, origin, here)

    def restart(file):
        server.durable()
        getattr(server, end)()
        server.file = merged(server.base, file)
        server.start()

    with server.client() as client:
        assert len(client.get("k").body) == len(client.get("same").body) == SIZE
    restart(there)
    with server.client() as client:
        assert client.request("PUT", "/bkt/k", body=b"new bytes").status == 200
    restart(here)
    with server.client() as client:
        assert client.get("k").body == b"new bytes"
    mark = origin.mark()
    with server.client() as client:
        assert len(client.get("same").body) == SIZE
    assert origin.bytes_sent(since=mark) == 0
    restart(here)
    mark = origin.mark()
    with server.client() as client:
        assert len(client.get("same").body) == SIZE
    assert end == "kill9" or not origin.requests(since=mark), "it is confirmed once"


# --- an endpoint with {region} --------------------------------------------------------------------


@pytest.fixture
def there(origin, other):
    """The store of region "2" at the endpoint template(origin). `origin` is that of region "1"."""
    other.stop()
    other.host, other.port = "127.0.0.2", origin.port
    origin.region, other.region = "1", "2"
    other.start()
    return other


def template(origin):
    return origin.endpoint.replace("127.0.0.1", "127.0.0.{region}")


def test_each_region_of_an_endpoint_is_an_origin_of_its_own(start, origin, there, engine):
    """The endpoint stays the same while its region changes to that of another store and back."""
    origin.put("k", SIZE)
    where = {ENDPOINT: template(origin), "origin.region": "1"}
    server = start(origin, settings=where, engine=engine, file=RULES)
    assert asked(server, origin, "k") > 0
    server.restart(**{"origin.region": "2"})
    assert "127.0.0.1" in change_said(server)
    assert asked(server, there, "k") > 0 and asked(server, there, "k") == 0
    server.restart()
    assert asked(server, there, "k") == 0
    server.restart(**{"origin.region": "1"})
    mark = origin.mark()
    assert asked(server, origin, "k") == 1
    wait_for_hit(server, origin)
    assert origin.bytes_sent(since=mark) == 0
    server.restart(**{ENDPOINT: origin.endpoint, "origin.region": "2"})
    assert asked(server, origin, "k") == 0, "the same store, by its address without {region}"


def test_a_reload_may_change_the_region_of_a_bucket(start, origin, there):
    origin.put("k", SIZE)
    one, two = (
        {
            **RULES,
            "buckets": [bucket("bkt", origin, endpoint=template(origin), region=region)],
        }
        for region in "12"
    )
    with strict(Origin()) as default:
        server = serve(start, default, one)
        assert asked(server, origin, "k") > 0
        change(server, two)
        assert asked(server, there, "k") > 0 and asked(server, there, "k") == 0
        change(server, one)
        assert asked(server, origin, "k") == 1
        change(server, two)
        assert asked(server, there, "k") == 1
        with server.client() as client:
            assert client.get("k").header("ETag") == there.version("k").etag

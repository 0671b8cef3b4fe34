# SPDX-License-Identifier: Apache-2.0
"""Objects pinned by a rule or a command stay cached: in a full cache, over restarts and kill -9,
and while cache.size shrinks. Unpinned objects are evicted like all others."""

import json

import pytest
from forebay import PATIENT, build_kind, run_forebay
from test_control import ask
from test_retention import BLOCK, objects, read, rules, small
from waiting import wait_for

PIN_RULE = {"match": "bkt/pin/**", "pin": True}


def pins(server):
    return {line["uri"] for line in ask(server, "pins")[:-1]}


def store_all(server, client, origin, keys):
    """Reads each object until it is a hit. Nothing is stored while the index is behind, nor for a
    moment after a kill."""
    wait_for(lambda: read(client, origin, keys) == len(keys), server.output)
    server.durable()


def crowd(client, origin, others, rounds=2):
    """Reads more than the cache has room for, several times."""
    for _ in range(rounds):
        read(client, origin, others)


BY = {"rule": (PIN_RULE,), "command": ()}


@pytest.mark.parametrize("by", BY)
def test_pins_survive_kill_9(start, origin, engine, by):
    """Pins survive kill -9 although nobody reads them between the kill and other reads. Objects
    stored since the policy was saved are recognised by name."""
    server = small(start, origin, rules(*BY[by], {"match": "**"}), engine=engine)
    pinned, others = objects(origin, "pin", 30), objects(origin, "o", 300)
    if by == "command":
        assert ask(server, "pin", "s3://bkt/pin/")[0]["changed"]
    with server.client() as client:
        store_all(server, client, origin, pinned)
        server.wait_metric("forebay_cache_pinned_bytes", lambda v: v >= 30 * BLOCK)
    asked = sum(len(origin.requests(key)) for key in pinned)
    for _ in range(2):
        server.kill9()
        server.start()
        server.wait_metric("forebay_cache_pinned_bytes", lambda v: v >= 30 * BLOCK)
        with server.client() as client:
            crowd(client, origin, others)
            assert read(client, origin, pinned) == 30
        assert server.metric("forebay_cache_pins_lost_total") == 0
        assert pins(server) == ({"s3://bkt/pin/"} if by == "command" else set())
    assert sum(len(origin.requests(key)) for key in pinned) == asked


def test_pinned_and_unpinned_while_it_runs(start, origin, engine):
    """A cached object can be pinned without being read, and its space is free again when it is
    unpinned. Other pins and a clean restart do not change that."""
    server = small(start, origin, rules({"match": "**"}), engine=engine)
    first, second, others = (
        objects(origin, "pin", 20),
        objects(origin, "x", 10),
        objects(origin, "o", 300),
    )
    with server.client() as client:
        store_all(server, client, origin, first + second)
        assert server.metric("forebay_cache_pinned_bytes") == 0
        assert [
            line["changed"] for line in ask(server, "pin", "s3://bkt/pin/", "s3://bkt/x/1")[:-1]
        ] == [True, True]
        assert [line["changed"] for line in ask(server, "pin", "s3://bkt/pin/")[:-1]] == [False]
        server.wait_metric("forebay_cache_pinned_bytes", lambda v: v >= 21 * BLOCK)
        explained = ask(server, "explain", "s3://bkt/x/1")[-1]["policy"]["pieces"]
        assert [piece["pinned"] for piece in explained] == [True]
        crowd(client, origin, others)
        assert read(client, origin, first) == 20
        assert "; hit" in client.get("x/1").header("cache-status")
        assert pins(server) == {"s3://bkt/pin/", "s3://bkt/x/1"}
        server.restart()
    with server.client() as client:
        server.wait_metric("forebay_cache_pinned_bytes", lambda v: v >= 21 * BLOCK)
        crowd(client, origin, others, 1)
        assert [
            line["changed"] for line in ask(server, "unpin", "s3://bkt/pin/", "s3://bkt/none")[:-1]
        ] == [True, False]
        server.wait_metric("forebay_cache_pinned_bytes", lambda v: BLOCK <= v < 2 * BLOCK)
        assert not any(
            piece["pinned"]
            for piece in ask(server, "explain", "s3://bkt/pin/3")[-1]["policy"]["pieces"]
        )
        crowd(client, origin, others)
        assert "; hit" in client.get("x/1").header("cache-status")
        assert pins(server) == {"s3://bkt/x/1"}
        assert server.metric("forebay_cache_bytes") <= server.metric("forebay_cache_capacity_bytes")


def test_pins_use_the_names_of_clients(start, origin):
    """Pins use the bucket and key names of clients, although cached objects have the origin's names
    and the bucket's epoch. A pin matches no other bucket."""
    file = {"buckets": [{"name": "renamed", "origin": "s3://upstream"}], **rules({"match": "**"})}
    server = small(start, origin, file)
    for bucket in ("upstream", "bkt"):
        origin.put("x/k", BLOCK, bucket=bucket)
    ask(server, "evict", "s3://renamed")  # its objects have another realm from now on
    with server.client() as client:
        for bucket in ("renamed", "bkt"):
            wait_for(
                lambda b=bucket: "; hit" in client.get("x/k", bucket=b).header("cache-status"),
                server.output,
            )

        def pinned(uri):
            ask(server, "pin", uri)
            wait_for(lambda: not ask(server, "pins")[-1]["looking"], server.output)
            return ask(server, "pins")[-1]["pinned_bytes"] // BLOCK

        assert [
            pinned(uri) for uri in ("s3://ren/x/", "s3://bk/x/k", "s3://renamed/x/", "s3://bkt/x/k")
        ] == [0, 0, 1, 2]


def test_a_pin_ends(start, origin):
    if build_kind() == "release":
        pytest.skip("a release has no movable clock")
    server = small(start, origin, rules({"match": "**"}), ahead_s=0)
    pinned = objects(origin, "pin", 3)
    assert ask(server, "pin", "s3://bkt/pin/", "--ttl", "1h")[0]["ends_in_s"] in range(3590, 3601)
    with server.client() as client:
        store_all(server, client, origin, pinned)
        server.wait_metric("forebay_cache_pinned_bytes", lambda v: v >= 3 * BLOCK)
        ask(server, "pin", "s3://bkt/other")
        server.advance(3600)
        server.wait_metric("forebay_cache_pins", lambda v: v == 1)
        server.wait_metric("forebay_cache_pinned_bytes", lambda v: v == 0)
    assert pins(server) == {"s3://bkt/other"}
    server.kill9()
    server.start()
    assert pins(server) == {"s3://bkt/other"}
    ask(server, "pin", "s3://bkt/x", "--ttl", "soon", code=2)


def test_the_number_of_pins_is_limited(start, origin):
    """One pin beyond the limit changes nothing, and the message says what to do."""
    server = start(origin)
    ask(server, "pin", *[f"s3://bkt/{number}" for number in range(256)])
    ask(server, "pin", "s3://bkt/0", "--ttl", "1h")
    lines = ask(server, "pin", "s3://bkt/one", code=1)
    assert "at most 256" in lines[0]["reason"] and "unpin some" in lines[0]["reason"]
    assert server.metric("forebay_limit_reached_total", limit="pin-commands") == 1
    assert server.metric("forebay_cache_pins") == 256
    ask(server, "unpin", "s3://bkt/7")
    ask(server, "pin", "s3://bkt/one")
    server.restart()
    assert (
        len(pins(server)) == 256
        and "s3://bkt/one" in pins(server)
        and "s3://bkt/7" not in pins(server)
    )


@pytest.mark.parametrize("bytes_", (b"", b"forebay-pins 1\nprefix 0 bkt/\n", b"\xff" * 5000))
def test_a_damaged_list_costs_nothing_else(start, origin, bytes_):
    server = start(origin)
    origin.put("a", BLOCK)
    ask(server, "pin", "s3://bkt/a")
    with server.client() as client:
        store_all(server, client, origin, ["a"])
    server.stop()
    path = server.cache / "pins"
    path.write_bytes(bytes_)
    server.start()
    server.wait_stderr('"event":"pins_damaged"')
    assert pins(server) == set() and (server.cache / "pins.bad").read_bytes() == bytes_
    with server.client() as client:
        assert read(client, origin, ["a"]) == 1
    ask(server, "pin", "s3://bkt/a")
    server.restart()
    assert pins(server) == {"s3://bkt/a"}


def test_a_disk_that_does_not_take_the_list(start, origin):
    """If the disk does not accept the list of pins, the command reports it and nothing changes. The
    next command works."""
    if build_kind() == "release":
        pytest.skip("a release has no faults")
    server = start(origin, env={"FOREBAY_DISK_FAULTS": "store.pins:3:enospc"})
    ask(server, "pin", "s3://bkt/a")
    lines = ask(server, "pin", "s3://bkt/b", code=1)
    assert "No space left" in lines[0]["reason"]
    assert pins(server) == {"s3://bkt/a"}
    ask(server, "pin", "s3://bkt/c")
    server.kill9()
    server.start()
    assert pins(server) == {"s3://bkt/a", "s3://bkt/c"}


@pytest.mark.parametrize("by", BY)
def test_pins_while_the_cache_shrinks(start, origin, by):
    """When cache.size shrinks, it takes priority over pins: they shrink to what they may use. The
    limit holds, bytes stay right, and pins that fit stay."""
    everything = {"cache": {"size": "32MiB"}, **rules(*BY[by], {"match": "**"})}
    server = small(start, origin, everything, size=None)
    pinned, others = objects(origin, "pin", 200), objects(origin, "o", 300)
    if by == "command":
        ask(server, "pin", "s3://bkt/pin/")
    with server.client() as client:
        store_all(server, client, origin, pinned)
        server.wait_metric("forebay_cache_pinned_bytes", lambda v: v >= 200 * BLOCK)
        before = ask(server, "pins")[-1]["pinned_max_bytes"]
        (server.folder / "forebay.yaml").write_text(
            json.dumps({**everything, "cache": {"size": "16MiB"}})
        )
        ask(server, "reload")
        crowd(client, origin, others, 1)
        server.wait_metric("forebay_cache_bytes", lambda v: v <= 16 << 20)
        crowd(client, origin, others)

        def falls():
            after = ask(server, "pins")[-1]
            if after["pinned_bytes"] <= after["pinned_max_bytes"] < before:
                return True
            crowd(client, origin, others, 1)
            return False

        wait_for(
            falls, server.output
        )  # counted at the next tick, and where segments come late at the next crowd
        read(client, origin, pinned)
        kept = [key for key in pinned if read(client, origin, [key])]
        assert len(kept) > 50
        crowd(client, origin, others, 1)
        assert server.metric("forebay_cache_bytes") <= 16 << 20
        wait_for(
            lambda: server.disk_bytes() <= 16 << 20, server.output
        )  # once evicted files are unlinked
        server.wait_metric(
            "forebay_cache_pins_lost_total", lambda v: v > 0
        )  # reported at the next tick


def test_pins_in_all_segments_while_the_cache_shrinks(start, origin, engine):
    """If each segment has a pinned object, evictions for a smaller cache.size rewrite pinned
    objects. The limit holds, and pinned objects are lost only if they find no room."""
    everything = {"cache": {"size": "32MiB"}, **rules(PIN_RULE, {"match": "**"})}
    server = small(start, origin, everything, engine=engine, size=None)
    pinned, others = objects(origin, "pin", 60), objects(origin, "o", 240)
    mixed = [
        key
        for number, one in enumerate(pinned)
        for key in (one, *others[4 * number : 4 * number + 4])
    ]
    with server.client() as client:
        store_all(server, client, origin, mixed)
        server.wait_metric("forebay_cache_pinned_bytes", lambda v: v >= 60 * BLOCK)
        (server.folder / "forebay.yaml").write_text(
            json.dumps({**everything, "cache": {"size": "16MiB"}})
        )
        ask(server, "reload")
        server.wait_metric("forebay_cache_bytes", lambda v: v <= 16 << 20)
        crowd(client, origin, others, 1)
        assert read(client, origin, pinned) > 0
        assert server.metric("forebay_cache_bytes") <= 16 << 20


@pytest.mark.parametrize("by", BY)
def test_a_cache_too_small_for_pins(start, origin, by):
    """A cache with fewer than 9 segments records pins but keeps no space for them. The command and
    the log say so, and the cache works."""
    server = start(
        origin,
        file=rules(*BY[by], {"match": "**"}),
        settings={
            "workers": 1,
            "cache.block_size": "64KiB",
            "cache.size": "16MiB",
            "access_log.path": "off",
        },
    )
    pinned, others = objects(origin, "pin", 30), objects(origin, "o", 300)
    assert server.metric("forebay_segments") < 9
    if by == "command":
        got = run_forebay(
            *PATIENT,
            "pin",
            "s3://bkt/pin/",
            env={"FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"},
        )
        assert got.returncode == 0 and "keeps no pins" in got.stderr
    else:
        server.wait_stderr('"event":"pins_ignored"')
    with server.client() as client:
        store_all(server, client, origin, pinned)
        crowd(client, origin, others)
        read(client, origin, pinned)
        wait_for(lambda: read(client, origin, others[:10]) > 0, server.output)
        figures = ask(server, "pins")[-1]
    assert not figures["kept"] and figures["pinned_bytes"] == 0
    assert server.metric("forebay_cache_bytes") <= server.metric("forebay_cache_capacity_bytes")


def test_pinning_needs_the_control_right(start, origin, tmp_path):
    """Pinning needs the control right. Only clients that may see keys can list pins."""
    token, socket = tmp_path / "token", tmp_path / "s"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)
    server = start(
        origin,
        settings={
            "admin.socket": str(socket),
            "admin.token_file": str(token),
            "admin.trust_loopback": "false",
        },
    )
    for words in (["pin", "s3://bkt/k"], ["unpin", "s3://bkt/k"], ["pins"]):
        for address, code in ((f"unix:{socket}", 0), (f"http://127.0.0.1:{server.admin_port}", 1)):
            assert (
                run_forebay(*PATIENT, *words, env={"FOREBAY_ADMIN": address}).returncode == code
            ), (words, address)


def test_warm_pins_and_says_before_what_it_would_fetch(start, origin):
    """`warm` with pinning has a dry run that sends only listings. It names exactly the objects that
    the real run fetches and stores as pinned."""
    server = small(start, origin, rules({"match": "**"}))
    keys = objects(origin, "pin", 5)
    with server.client() as client:
        store_all(server, client, origin, keys[:2])
    mark = origin.mark()
    dry = ask(server, "warm", "s3://bkt/pin/", "--dry-run", "--pin")
    assert {(line["uri"], line["missing_bytes"]) for line in dry[:-1]} == {
        (f"s3://bkt/{key}", BLOCK) for key in keys[2:]
    }
    assert (dry[-1]["objects"], dry[-1]["objects_done"], dry[-1]["bytes_done"]) == (5, 2, 2 * BLOCK)
    assert not any(origin.requests(key=key, since=mark) for key in keys) and pins(server) == set()
    ask(server, "warm", "s3://bkt/pin/", "--pin", "--ttl", "7d", "--wait")
    assert {key for key in keys if origin.requests(key=key, method="GET", since=mark)} == set(
        keys[2:]
    )
    assert ask(server, "pins")[0]["ends_in_s"] > 600000
    server.wait_metric("forebay_cache_pinned_bytes", lambda v: v >= 5 * BLOCK)
    assert ask(server, "warm", "s3://bkt/pin/", "--dry-run")[-1]["objects_done"] == 5
    assert ask(server, "warm", "s3://bkt/other", "--dry-run")[0]["missing_bytes"] is None
    ask(server, "warm", "s3://bkt/pin/", "--ttl", "7d", code=2)
    ask(server, "warm", "-f", "/dev/null", "--pin", code=2)


def test_sizes_include_what_was_stored_just_now(start, origin):
    """`status` and `pins` count when they are asked, so they agree with a warm that has ended."""
    server = start(origin, settings={"access_log.path": "off"})
    sizes = [20_000] * 50
    for i, size in enumerate(sizes):
        origin.put(f"k/{i}", size)
    ask(server, "warm", "-q", "--pin", "--wait", "s3://bkt/k/")
    wait_for(
        lambda: server.metric("forebay_fills_total", state="stored") == len(sizes),
        "all runs to be visible",
    )
    assert ask(server, "status")[-1]["cache_held_bytes"] >= sum(sizes)
    assert ask(server, "pins")[-1]["pinned_bytes"] >= sum(sizes)

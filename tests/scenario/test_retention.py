# SPDX-License-Identifier: Apache-2.0
"""A full cache keeps objects that are read again. On a trace the proxy has as many hits as its
policy, and a restart does not lose what the policy learnt.

    FOREBAY_TRACE_RUNNER  see test_traces.py

"""

import itertools
import os
import subprocess

import pytest
from client import judge
from conftest import not_run
from forebay import build_kind, scale
from test_control import ask
from test_traces import rows, runner, tool  # noqa: F401 (a fixture)
from waiting import wait_for

KIB = 1 << 10
BLOCK = 64 * KIB
SEGMENT, RUNS_IN_SEGMENT = 512 * KIB, 7  # each run with its header
IMMUTABLE = {"rules": [{"match": "bkt/**", "freshness": "immutable"}]}
FULL = scale() >= 1
BLOCKS = 2000 if FULL else 300
AGREES = 0.01 if FULL else 0.06  # few blocks leave more to chance
TRACES = ("a_cyclic", "b1_shuffle", "d1_switch_shuf", "e1_zipf08", "f1_scan_conc")


def requests_of(trace):
    out = subprocess.run(
        [runner(), "--requests", "--traces", trace, "-n", str(BLOCKS)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    return [tuple(map(int, line.split(","))) for line in out.splitlines()[1:]]


# Each write is a few milliseconds late, as on a volume behind a network.
SLOW = {
    "FOREBAY_DISK_FAULTS": ",".join(
        f"{what}:1+:slow:3" for what in ("write", "store.sync", "store.rewrite", "store.commit")
    )
}


def half(start, origin, policy="epoch", env=(), engine=None):
    """A server whose segments have room for half the blocks."""
    size = int((BLOCKS // 2 // RUNS_IN_SEGMENT + 1) * (SEGMENT + 4 * KIB) / 0.9) + 1200 * KIB
    return start(
        origin,
        engine=engine,
        file=IMMUTABLE,
        env={"FOREBAY_SEGMENT_SIZE": str(SEGMENT), **dict(env)},
        settings={
            "workers": 1,
            "cache.block_size": "64KiB",
            "cache.policy": policy,
            "cache.size": max(size, 16 << 20),
            "access_log.path": "off",
        },
    )


def put_all(origin, requests):
    for block in sorted({block for block, _ in requests}):
        origin.put(f"b{block}", BLOCK)


def hits(client, origin, requests):
    """Returns the hits of the requests that count. Judges every reply and its report of whether the
    bytes were stored."""
    found = asked = 0
    says = set()
    for block, counts in requests:
        reply = client.get(f"b{block}")
        judge(reply, origin, f"b{block}", 0, BLOCK)
        status = reply.header("cache-status")
        found += counts and "; hit" in status
        asked += counts
        says.add(status.partition("; fwd-status=206; ")[2])
    assert says >= {"", "stored", "stored=?0; detail=not-admitted"}
    return found / asked


@pytest.mark.parametrize("disk", ("sound", "slow"))
@pytest.mark.parametrize("trace", TRACES if FULL else TRACES[:1])
def test_the_proxy_hits_as_often_as_its_policy_on_a_trace(start, origin, trace, disk, figure):
    if disk == "slow" and build_kind() == "release":
        not_run("a release has no faults")
    requests = requests_of(trace)
    put_all(origin, requests)
    server = half(start, origin, env=SLOW if disk == "slow" else {})
    with server.client() as client:
        measured = hits(client, origin, requests)
    segments = int(server.metric("forebay_segments"))
    row = rows(
        "--traces",
        trace,
        "-n",
        str(BLOCKS),
        "--capacity",
        f"{segments * RUNS_IN_SEGMENT / BLOCKS:.6f}",
        "--segment",
        str(RUNS_IN_SEGMENT * BLOCK),
        "--spares",
        "4" if segments >= 32 else "2",
        "--batch",
        "1",
        "--no-optimum",
    )[0]
    figure(
        f"{trace}, {BLOCKS} blocks, {segments} segments, {disk} disk: proxy "
        f"{measured:.4f}, runner {float(row['hit_ratio']):.4f}; rewritten "
        f"{server.metric('forebay_retention_rewritten_bytes_total') / BLOCK:.0f} "
        f"of {len(requests)} blocks asked for"
    )
    assert server.metric("forebay_limit_reached_total", limit="retention-events") == 0
    assert server.metric("forebay_store_events_total", event="index-commit-failed") == 0
    assert (
        server.metric("forebay_index_bytes") <= server.metric("forebay_cache_capacity_bytes") / 10
    )
    assert server.metric("forebay_cache_bytes") <= server.metric("forebay_cache_capacity_bytes")
    assert abs(measured - float(row["hit_ratio"])) <= AGREES


def test_a_reply_says_why_it_is_not_stored(start, origin):
    origin.put("small", 100)
    origin.put("large", 100 * KIB)
    server = start(origin, file={"rules": [{"match": "**", "max_object_size": "64KiB"}]})
    with server.client() as client:
        assert "; stored=?0; detail=too-large" in client.get("large").header("cache-status")
        assert client.get("small").header("cache-status").endswith("; stored")
        assert client.get("small").header("cache-status") == "forebay; hit"


def test_a_run_read_in_parts_is_fetched_once(start, origin):
    """A run that is read in parts is fetched once.

    A full cache that refuses unknown runs would fetch one again for each part. Without read-ahead
    such a run is not read in parts, and may be refused.
    """
    size = 16 << 20
    server = start(
        origin,
        file=IMMUTABLE,
        settings={
            "workers": 1,
            "cache.size": "256MiB",
            "cache.readahead": 0,
            "access_log.path": "off",
        },
    )
    keys = [f"whole{number}" for number in range(24)]
    for key in (*keys, "parts"):
        origin.put(key, size)

    def refused():
        return server.metric("forebay_cache_admission_rejected_total", reason="not-admitted")

    with server.client() as client:

        def is_full():
            for key in 3 * keys:
                judge(client.get(key), origin, key, 0, size)
            server.settle()
            return refused() > 0

        wait_for(is_full, "a run that is refused")
        before = refused()
        for first, end, step in (
            (0, 4 << 20, 64 * KIB),
            (4 << 20, 8 << 20, 100_000),
            (8 << 20, size, 256 * KIB),
        ):
            for at in range(first, end, step):
                judge(client.get("parts", at, min(at + step, end) - 1), origin, "parts", at)
        assert refused() == before
        assert origin.sent_twice("parts") == 0, origin.coverage("parts")


def test_newly_hot_objects_are_stored_after_a_feed_read_once(start, origin, figure):
    """A feed of several cache sizes taught the policy that nothing is read again. When objects then
    become hot, one after the other, they are stored."""
    size, feed = 512 * KIB, 400
    server = start(
        origin,
        file=IMMUTABLE,
        settings={"workers": 1, "cache.size": "64MiB", "access_log.path": "off"},
    )
    hot = [f"hot{number}" for number in range(5)]

    def reason(key):
        return ask(server, "explain", f"s3://bkt/{key}")[-1]["verdict"]["reason"]

    for key in (*(f"feed{number}" for number in range(feed)), *hot):
        origin.put(key, size)
    with server.client() as client:
        says = [client.get(f"feed{number}").header("cache-status") for number in range(feed)]
        refused = sum("not-admitted" in word for word in says)
        assert refused > feed // 4  # each is read once, and not all of it is stored
        refusals = []
        for key in hot:
            words = []
            for _ in range(20):
                reply = client.get(key)
                judge(reply, origin, key, 0, size)
                words.append(reply.header("cache-status"))
                if "; hit" in words[-1]:
                    break
                # The policy learns of a refusal a moment later.
                wait_for(
                    lambda: reason(key) != "not-admitted",
                    f"{key} that is stored at its next request",
                )  # noqa: B023
            assert "; hit" in words[-1]
            refusals.append(sum("not-admitted" in word for word in words))
    figure(
        f"64 MiB, {feed} objects of 512 KiB read once, {refused} of them "
        f"refused; refusals of new hot ones: {refusals}"
    )
    assert max(refusals) <= 1


KILLS = 30 if FULL else 2
DISKS = {
    "sound": "",
    "in trouble": ",store.rewrite:/5:enospc,store.rewrite:/3:slow:20,sync:/2:slow:5",
}


@pytest.mark.both_engines
@pytest.mark.parametrize("disk", DISKS)
def test_killed_while_survivors_are_rewritten(start, origin, engine, disk, figure, tmp_path):
    """kill -9 strikes between any two writes of a rewrite, when some survivors have moved. No byte
    is wrong, and no run counts twice."""
    if build_kind() == "release":
        not_run("a release has no faults")
    if disk != "sound" and engine != "threads" and not FULL:
        pytest.skip("all combinations run at scale 1")
    hold, tally = tmp_path / "hold", tmp_path / "tally"
    requests = requests_of("e1_zipf08")
    put_all(origin, requests)
    server = half(
        start,
        origin,
        engine=engine,
        env={
            "FOREBAY_DISK_FAULTS": f"store.rewrite:file={hold}:hold{DISKS[disk]}",
            "FOREBAY_FAULT_TALLY": str(tally),
        },
    )
    size = server.metric("forebay_cache_capacity_bytes")
    blocks = sorted({block for block, _ in requests})
    asked, moved = itertools.cycle(requests), []

    def read_until(client, reached):
        for number, (block, _) in zip(range(40 * len(requests)), asked):
            judge(client.get(f"b{block}"), origin, f"b{block}", 0, BLOCK)
            if number % 8 == 0 and reached():
                return
        raise AssertionError("survivors were not rewritten")

    for turn in range(KILLS):
        with server.client() as client:
            before = server.metric("forebay_retention_rewritten_bytes_total")
            read_until(
                client, lambda: server.metric("forebay_retention_rewritten_bytes_total") > before
            )
            held = tally.read_text().count("store.rewrite:hold") if tally.exists() else 0
            if turn % 2 == 0:  # else wherever it is now
                hold.touch()
                read_until(
                    client,
                    lambda: tally.exists() and tally.read_text().count("store.rewrite:hold") > held,
                )
            moved.append(server.metric("forebay_retention_rewritten_bytes_total"))
            server.kill9()
        hold.unlink(missing_ok=True)
        server.start()
        with server.client() as client:
            for block in blocks:
                judge(client.get(f"b{block}"), origin, f"b{block}", 0, BLOCK)
        assert server.metric("forebay_cache_checksum_failures_total") == 0
        assert server.disk_bytes() <= size
    figure(
        f"kill -9 x {KILLS} while survivors are rewritten ({engine}, {disk} disk): "
        f"{sum(moved) / BLOCK:.0f} had moved, all bytes right"
    )


def test_objects_read_once_in_parts_do_not_evict_the_reread_set(start, origin, figure):
    """Objects read once in parts, between reads of a set of twice the cache's size, do not reduce
    the hits of that set."""
    size, part, every = 128 * KIB, 32 * KIB, 4
    server = start(
        origin,
        file=IMMUTABLE,
        env={"FOREBAY_SEGMENT_SIZE": str(SEGMENT)},
        settings={
            "workers": 1,
            "cache.block_size": "64KiB",
            "cache.size": "48MiB",
            "access_log.path": "off",
        },
    )
    again = [f"again{number}" for number in range(1200)]
    once = [f"once{number}" for number in range(2 * len(again) // every)]
    for key in again:
        origin.put(key, BLOCK)
    for key in once:
        origin.put(key, size)

    def epoch(client, beside):
        found = 0
        for number, key in enumerate(again):
            reply = client.get(key)
            judge(reply, origin, key, 0, BLOCK)
            found += "; hit" in reply.header("cache-status")
            if beside and number % every == 0:
                for at in range(0, size, part):
                    other = beside[number // every]
                    judge(client.get(other, at, at + part - 1), origin, other, at)
        return found / len(again)

    def stored():
        server.settle()
        return server.metric("forebay_fills_total", state="stored")

    def steady(client):
        """Returns the hits of the first epoch that stores nothing, when the policy knows the set.
        The number of epochs depends on when its thread runs."""
        for number in range(1, 11):
            before = stored()
            found = epoch(client, ())
            if stored() == before:
                return found, number
        raise AssertionError("each of ten epochs has stored something")

    with server.client() as client:
        alone, rounds = steady(client)
        beside = [epoch(client, half) for half in (once[::2], once[1::2])]
    twice = sum(origin.sent_twice(key) for key in once)
    figure(
        f"{alone:.3f} of the set hit alone, after {rounds} epochs, "
        f"{beside[0]:.3f} and {beside[1]:.3f} beside parts; "
        f"{twice} bytes of these came twice"
    )
    assert server.metric("forebay_store_events_total", event="probation") > len(once)
    assert alone > 0.44  # its segments have room for 0.47 of the set
    assert min(beside) > alone - 0.15
    assert twice <= 4 * size


def rules(*rows):
    return {"rules": [{"freshness": "immutable", **row} for row in rows]}


def small(start, origin, file, size="16MiB", **more):
    """A server with a cache of 16 MiB, which has some 28 segments of seven blocks."""
    return start(
        origin,
        file=file,
        env={"FOREBAY_SEGMENT_SIZE": str(SEGMENT)},
        settings={
            "workers": 1,
            "cache.block_size": "64KiB",
            "cache.size": size,
            "access_log.path": "off",
        },
        **more,
    )


def objects(origin, prefix, count):
    keys = [f"{prefix}/{number}" for number in range(count)]
    for key in keys:
        origin.put(key, BLOCK)
    return keys


def read(client, origin, keys):
    """Reads the keys and returns the number of hits."""
    found = 0
    for key in keys:
        reply = client.get(key)
        judge(reply, origin, key, 0, BLOCK)
        found += "; hit" in reply.header("cache-status")
    return found


@pytest.mark.both_engines
def test_a_pinned_object_stays(start, origin, engine):
    """A pinned object that is read once stays, although other objects are read repeatedly and
    exceed the cache. A restart with other rules recognises it."""
    pin, share = {"match": "bkt/pin/**", "pin": True}, {"match": "bkt/nothing/**", "share": "5%"}
    server = small(start, origin, rules(share, pin, {"match": "**"}), engine=engine)
    pinned, plain, others = (
        objects(origin, "pin", 30),
        objects(origin, "plain", 30),
        objects(origin, "o", 300),
    )
    with server.client() as client:
        for number in range(30):
            read(
                client,
                origin,
                (pinned[number], plain[number], *others[3 * number : 3 * number + 3]),
            )
        wait_for(
            lambda: read(client, origin, pinned) == 30, server.output
        )  # not stored while the index is behind
        asked = sum(len(origin.requests(key)) for key in pinned)
        for _ in range(4):
            read(client, origin, others)

        def is_rewritten():  # by then, unless most of the others were only streamed
            read(client, origin, others)
            return server.metric("forebay_retention_rewritten_bytes_total") > 0

        wait_for(is_rewritten, "something rewritten")
        assert read(client, origin, plain) < 30  # as the pinned ones would be without a pin
        assert read(client, origin, pinned) == 30
        server.wait_metric("forebay_cache_pinned_bytes", lambda v: v > 30 * BLOCK)
        assert server.metric("forebay_cache_bytes") <= server.metric("forebay_cache_capacity_bytes")
    server.stop()
    server.file = rules(pin, share, {"match": "**"})
    server.start()
    with server.client() as client:
        for _ in range(2):
            read(client, origin, others)
        assert read(client, origin, pinned) == 30
        assert server.metric("forebay_cache_pins_lost_total") == 0
        assert server.metric("forebay_limit_reached_total", limit="pinned-bytes") == 0
    assert sum(len(origin.requests(key)) for key in pinned) == asked


def test_pins_leave_room_for_others(start, origin):
    """If more is to be pinned than allowed, the newest is not. Objects of other clients are still
    stored and hit."""
    server = small(start, origin, rules({"match": "bkt/pin/**", "pin": True}, {"match": "**"}))
    pinned, others = objects(origin, "pin", 300), objects(origin, "o", 30)
    with server.client() as client:
        wait_for(lambda: read(client, origin, pinned[:100]) == 100, server.output)

        def is_refused():  # reads again the objects that a busy machine stored late
            read(client, origin, pinned)
            return server.metric("forebay_limit_reached_total", limit="pinned-bytes") > 0

        wait_for(is_refused, "a pin that is refused")
        assert any(read(client, origin, others) for _ in range(40))
        held = server.wait_metric(
            "forebay_cache_pinned_bytes",
            lambda v: v > 0.4 * server.metric("forebay_cache_capacity_bytes"),
        )
        assert held / server.metric("forebay_cache_capacity_bytes") < 0.8
        assert read(client, origin, pinned[:100]) == 100
    server.wait_stderr('"event":"pins_full"')


def hits_by_the_end(start, origin, *rows):
    """Returns the hits of two data sets that are read alike and together exceed the cache."""
    first, second = objects(origin, "a", 150), objects(origin, "b", 150)
    server = small(start, origin, rules(*rows, {"match": "**"}))
    found = [0, 0]
    with server.client() as client:

        def one_round():
            found[:] = 0, 0
            for pair in zip(first, second, strict=True):
                for i in range(2):
                    found[i] += read(client, origin, pair[i : i + 1])

        for _ in range(8):
            one_round()
        capacity = server.metric("forebay_cache_capacity_bytes")
        assert server.metric("forebay_cache_bytes") <= capacity
    return *found, capacity


def test_a_share_is_held(start, origin):
    shared, free, capacity = hits_by_the_end(start, origin, {"match": "bkt/a/**", "share": "25%"})
    assert shared * BLOCK <= capacity / 4 + 2 * SEGMENT, (shared, free)
    assert 0 < shared < free, (shared, free)


def test_a_priority_decides(start, origin):
    low, high, _ = hits_by_the_end(
        start, origin, {"match": "bkt/a/**", "priority": 1}, {"match": "bkt/b/**", "priority": 9}
    )
    assert low < high / 2, (low, high)


@pytest.mark.parametrize("kind", ("bytes", "share"))
def test_a_restart_keeps_what_the_policy_learnt_when_the_size_moves(start, origin, kind, tmp_path):
    """A share of the file system is another number of bytes at each start, and a size in bytes may
    be changed by a little."""
    settings = {"cache.size": "2%" if kind == "share" else "256MiB", "log.level": "debug"}
    server = start(origin, settings=settings, env={"FOREBAY_SEGMENT_SIZE": str(SEGMENT)})
    sizes = {server.metric("forebay_cache_capacity_bytes")}
    for turn in range(1, 3):
        if kind == "share":
            with open(tmp_path / f"other{turn}", "wb") as file:
                os.posix_fallocate(file.fileno(), 0, 16 << 20)
            server.restart()
        else:
            server.restart(**{"cache.size": f"{256 + turn}MiB"})
        server.wait_stderr("policy_state_(loaded|refused)")
        assert not [line for line in server.stderr if "policy_state_refused" in line]
        sizes.add(server.metric("forebay_cache_capacity_bytes"))
    assert len(sizes) == 3


def test_a_much_larger_cache_learns_again_without_a_warning(start, origin):
    """After a large change of cache.size the policy forgets. That is harmless, so it is no
    warning."""
    server = start(
        origin, settings={"cache.size": "256MiB"}, env={"FOREBAY_SEGMENT_SIZE": str(SEGMENT)}
    )
    server.restart(**{"cache.size": "1GiB"})
    server.wait_stderr("policy_state_refused")
    (line,) = [line for line in server.stderr if "policy_state_refused" in line]
    assert '"level":"info"' in line, line


def shares_hit(client, origin, keys, passes=1):
    """Reads all keys in order, PASSES times. Returns the share that was hit in each pass."""
    return [read(client, origin, keys) / len(keys) for _ in range(passes)]


def test_a_set_read_in_order_is_hit_from_the_second_pass_on(start, origin, figure):
    """The first pass over a set larger than the cache does not evict what it has stored, although
    it is long enough to look like a new data set."""
    keys = objects(origin, "in-order", 1500)
    server = small(start, origin, IMMUTABLE, size="48MiB")
    with server.client() as client:
        shares = shares_hit(client, origin, keys, passes=4)
    held = server.metric("forebay_cache_bytes") / (len(keys) * BLOCK)
    figure(f"hits of a set read in order: {shares}; {held:.3f} of it fits")
    assert shares[0] == 0
    assert min(shares[1:]) > 0.5 * held


def test_restarts_of_few_requests_do_not_lose_what_was_learnt(start, origin, figure):
    """Each process reads the set once, in order. That is too few requests for the policy to judge
    them before the process ends."""
    keys = objects(origin, "in-order", 300)
    server = small(start, origin, IMMUTABLE)
    shares = []
    for _ in range(6):
        with server.client() as client:
            shares += shares_hit(client, origin, keys)
        held = server.metric("forebay_cache_bytes") / (len(keys) * BLOCK)
        server.restart()
    figure(f"hits of a set read in order, with a restart after each pass: {shares}; {held:.3f} fit")
    assert min(shares[2:]) > 0.6 * held

# SPDX-License-Identifier: Apache-2.0
"""What the process may take: a cache.size that changes, descriptors, connections, lines of log."""
import random

import pytest
from client import judge
from forebay import parallel, scaled

MIB = 1 << 20
IMMUTABLE = {"rules": [{"match": "bkt/**", "freshness": "immutable"}]}


def read_all(server, origin, keys, readers=4):
    """Reads everything, judged; waits until what is to be stored is."""
    def one(worker):
        with server.client() as client:
            for key in keys[worker::readers]:
                judge(client.get(key), origin, key, 0, origin.version(key).size)
    parallel(readers, one)
    server.settle()


def hits(server, origin, keys):
    """How many of KEYS are answered, rightly, without a word to the origin."""
    count = 0
    with server.client() as client:
        for key in keys:
            mark = origin.mark()
            judge(client.get(key), origin, key, 0, origin.version(key).size)
            count += not origin.requests(since=mark)
    return count


# --- cache.size, smaller and larger again ---------------------------------------------------------


def capacity(server):
    return int(server.metric("forebay_cache_capacity_bytes"))


def stores_and_is_within(server, origin, key):
    """A new object becomes a hit, nothing is degraded, and du stays within the limit of now."""
    assert server.disk_bytes() <= capacity(server), f"{server.disk_bytes()} > {capacity(server)}"
    origin.put(key, 300_000)
    for _ in range(200):        # while room is being made it may pass unstored
        read_all(server, origin, [key])
        if hits(server, origin, [key]) == 1:
            break
    else:
        raise AssertionError(f"never a hit: {server.output()}")
    assert server.metric("forebay_degraded", component="disk") == 0, server.output()
    assert server.disk_bytes() <= capacity(server), f"{server.disk_bytes()} > {capacity(server)}"


@pytest.mark.parametrize("end", ["stop", "kill9"])
def test_an_empty_cache_made_smaller(start, origin, engine, end):
    """Made for 50 GiB, never used, and started again with 1 GiB."""
    server = start(origin, engine=engine, file=IMMUTABLE, settings={"cache.size": "50GiB"})
    getattr(server, end)()
    server.settings["cache.size"] = "1GiB"
    server.start()
    stores_and_is_within(server, origin, "a")


def test_what_fits_stays_a_hit(start, origin, engine):
    """Few bytes in a large cache are still there in a small one, and in a large one again."""
    server = start(origin, engine=engine, file=IMMUTABLE, settings={"cache.size": "1GiB"})
    keys = [f"k{i}" for i in range(12)]
    for key in keys:
        origin.put(key, 400_000)
    read_all(server, origin, keys)
    assert hits(server, origin, keys) == len(keys)
    for end, size in (("stop", "64MiB"), ("kill9", "60MiB"), ("stop", "50GiB"), ("kill9", "64MiB"),
                      ("kill9", "1GiB")):
        getattr(server, end)()
        server.settings["cache.size"] = size
        server.start()
        assert server.disk_bytes() <= capacity(server)
        assert hits(server, origin, keys) == len(keys), f"at {size}: {server.output()}"
        stores_and_is_within(server, origin, f"more/{size}/{end}")


def test_an_index_larger_than_the_new_size(start, origin, engine):
    """Many small objects: what the index takes has to fit the new size, too; the newest stay hits."""
    server = start(origin, engine=engine, file=IMMUTABLE, settings={"cache.size": "4GiB"})
    keys = [f"small/{i:05d}" for i in range(scaled(20000, 2000))]
    for key in keys:
        origin.put(key, 50)
    read_all(server, origin, keys)
    for end, size in (("stop", "256MiB"), ("kill9", "16MiB"), ("stop", "4GiB"), ("stop", "16MiB")):
        getattr(server, end)()
        server.settings["cache.size"] = size
        server.start()
        stores_and_is_within(server, origin, f"more/{size}/{end}")


SIZES = ["16MiB", "20MiB", "64MiB", "300MiB", "1GiB", "5GiB", "50GiB", "1%", "20%"]


@pytest.mark.parametrize("seed", range(scaled(20, 2)))
def test_any_order_of_sizes(start, origin, engine, seed):
    """Empty and full, after a stop and after kill -9: it serves, stores and is within its limit."""
    dice = random.Random(seed)
    server = start(origin, run=False, engine=engine, file=IMMUTABLE)
    for turn in range(10):
        server.settings["cache.size"] = dice.choice(SIZES)
        server.start()
        stores_and_is_within(server, origin, f"{turn}/first")
        if dice.random() < 0.6:
            keys = [f"{turn}/{i}" for i in range(dice.randrange(1, 30))]
            for key in keys:
                origin.put(key, dice.choice((10, 70_000, 2 * MIB + 1)))
            read_all(server, origin, keys)
            assert server.disk_bytes() <= capacity(server)
        stores_and_is_within(server, origin, f"{turn}/last")
        dice.choice((server.stop, server.kill9))()

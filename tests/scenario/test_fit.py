# SPDX-License-Identifier: Apache-2.0
"""A cache of the size that `forebay plan` names holds the whole data set."""

import json
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from client import judge
from forebay import run_forebay

IMMUTABLE = {"rules": [{"match": "bkt/**", "freshness": "immutable"}]}
READERS = 4


def planned(total, mean, workers):
    """Returns the cache.size that holds all of the data, by `plan`."""
    words = [f"--dataset={total}", "--cache=1GB", f"--object={mean}", f"--node-workers={workers}"]
    told = run_forebay("plan", *words, "--json")
    assert told.returncode == 0, told
    return json.loads(told.stdout.splitlines()[-1])["holds_all"]


@pytest.mark.parametrize("order", ["sequential", "shuffled"])
@pytest.mark.parametrize(
    "workers, count, mean",
    [(2, 120, 549_000), (1, 1000, 60_000), (2, 12, 9_000_000)],
    ids=["objects", "small-objects", "large-objects"],
)
def test_a_cache_of_the_planned_size_holds_the_data_whole(
    start, origin, order, workers, count, mean
):
    """After one epoch every read is a hit, in the same order and in new ones, and nothing was
    evicted."""
    rng = random.Random(7)
    sizes = {f"k{i}": int(mean * rng.uniform(0.5, 1.5)) for i in range(count)}
    for key, size in sizes.items():
        origin.put(key, size)
    server = start(
        origin,
        file=IMMUTABLE,
        settings={
            "cache.size": planned(sum(sizes.values()), mean, workers),
            "workers": workers,
            "access_log.path": "off",
        },
    )

    def read(keys):
        with server.client() as client:
            for key in keys:
                judge(client.get(key), origin, key, 0, sizes[key])

    keys, misses = list(sizes), []
    for _ in range(3):
        if order == "shuffled":
            rng.shuffle(keys)
        mark = origin.mark()
        with ThreadPoolExecutor(READERS) as pool:
            list(pool.map(read, [keys[i::READERS] for i in range(READERS)]))
        server.settle()
        misses.append(len({e.key for e in origin.requests(method="GET", since=mark) if e.key}))
    assert misses == [count, 0, 0]
    assert server.metric("forebay_cache_evicted_bytes_total", of="capacity") == 0

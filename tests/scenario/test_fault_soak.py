# SPDX-License-Identifier: Apache-2.0
"""Tens of thousands of faults of all kinds at once cause no wrong byte and no mixed or falsely
complete reply. The server survives."""

import itertools

import soak
from client import judge
from conftest import not_run
from disks import direct_works
from forebay import build_kind, scaled
from waiting import wait_for

THREADS = 16
LEAST_KINDS = 46


def test_soak(start, origin, engine, figure, tmp_path):
    """50,000 faults on both engines together. Each kind strikes."""
    if build_kind() == "release":
        not_run("a release has no fault hooks")
    if not direct_works(tmp_path):
        not_run("no O_DIRECT here: bits cannot be flipped beneath the page cache")
    assert len(soak.ALL) >= LEAST_KINDS
    triggers, tally = tmp_path / "triggers", tmp_path / "tally"
    triggers.mkdir()
    server = start(
        origin,
        engine=engine,
        ahead_s=0,
        settings={
            "cache.size": "64MiB",
            "access_log.path": "off",
            "origin.first_byte_timeout": "1s",
            "origin.idle_timeout": "500ms",
            "origin.connect_timeout": "1s",
        },
        env={"FOREBAY_DISK_FAULTS": soak.disk_script(triggers), "FOREBAY_FAULT_TALLY": str(tally)},
    )
    run = soak.Soak(server, origin, triggers, tally, seed=11)
    run.run(THREADS, scaled(25_000, 2_500))
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(run.outcomes.items()))
    strikes = ", ".join(f"{kind} {run.struck[kind]}" for kind in soak.ALL)
    figure(
        f"fault soak ({engine}): {sum(run.struck.values())} faults of "
        f"{len(soak.ALL)} kinds; replies: {outcomes}; "
        f"{strikes}"
    )
    assert not run.wrong, f"{len(run.wrong)} wrong: " + "\n".join(run.wrong[:5])
    assert not [kind for kind in soak.ALL if run.struck[kind] == 0], "these never struck"
    # The server lives, and stores again as soon as the disk has caught up.
    tries = itertools.count()

    def stores_again():
        key = f"after/{next(tries)}"
        origin.put(key, 100_000)
        with server.client() as client:
            judge(client.get(key), origin, key, 0, 100_000)
            server.settle()
            judge(client.get(key), origin, key, 0, 100_000)
        return origin.sent_twice(key) == 0

    wait_for(stores_again, "an object that is stored")

# SPDX-License-Identifier: Apache-2.0
"""A server that a CPU limit of its cgroup holds back says so, and blames neither store nor disk."""

import re

import pytest

from cgroup import CpuCgroup, NoCgroup
from client import judge
from conftest import not_run
from forebay import parallel, run_forebay

PERCENT = 5


@pytest.fixture
def group():
    """A cgroup with a twentieth of a CPU. A test must ask for it before `start`, because its
    servers must have ended before it is removed."""
    try:
        made = CpuCgroup("cpu", PERCENT)
    except NoCgroup as why:
        not_run(f"no CPU cgroup can be made here: {why}")
    with made:
        yield made


def test_a_cpu_limit_that_is_used_up_is_a_condition(group, start, origin):
    """Readers that want more than the CPU limit gives make the condition cpu-short, which names
    the limit. It ends a minute after the limit is gone."""
    server = start(origin, wrapper=group.wrapper, settings={"workers": 2}, ahead_s=0)
    for i in range(8):
        origin.put(f"k{i}", 100_000)

    def read_until_short(i):
        with server.client() as client:
            while "cpu-short" not in server.conditions():
                for _ in range(20):
                    judge(client.get(f"k{i}"), origin, f"k{i}")

    parallel(8, read_until_short)
    row = server.condition_rows()["cpu-short"]
    assert row["severity"] == "warning", row
    said = r"the CPU limit of the cgroup \(0.05 CPUs\) held the server back in (\d+) of (\d+) "
    found = re.match(said + "periods of 100 ms, so all requests wait$", row["text"])
    assert found and 30 <= int(found[1]) <= int(found[2]), row
    assert "resources.limits.cpu" in row["remedy"], row
    assert server.metric("forebay_condition", condition="cpu-short", severity="warning") == 1
    late = {"worker-stuck", "origin-slow", "disk-slow"}
    assert not late & set(server.conditions())
    admin = {"FOREBAY_ADMIN": f"http://127.0.0.1:{server.admin_port}"}
    assert "warning  cpu-short for" in run_forebay("status", env=admin).stdout
    group.lift()
    server.advance(75)  # ten seconds of the window, and a minute
    server.wait_condition("cpu-short", holds=False)
    server.wait_stderr("condition_ended.*cpu-short")

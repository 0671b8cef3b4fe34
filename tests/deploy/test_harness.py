# SPDX-License-Identifier: Apache-2.0
"""The harness itself: what is missing fails where it was to be installed, and what a machine
refuses does not."""

import subprocess

import pytest
from conftest import not_run, program, refused
from forebay import ROOT


def outcome(call, monkeypatch, all_run):
    monkeypatch.setenv("FOREBAY_TEST_ALL_RUN", all_run)
    try:
        call("no Go here")
    except pytest.fail.Exception:
        return "failed"
    except pytest.skip.Exception:
        return "skipped"
    return "passed"


def test_missing_programs_fail_where_they_were_installed(monkeypatch):
    assert [outcome(not_run, monkeypatch, all_run) for all_run in ("1", "")] == [
        "failed",
        "skipped",
    ]
    assert [outcome(refused, monkeypatch, all_run) for all_run in ("1", "")] == [
        "skipped",
        "skipped",
    ]


def test_go_is_new_enough():
    """The programs of this folder need a newer Go than that of Debian 12."""
    have = subprocess.run(
        [program("go"), "env", "GOVERSION"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd="/",
    ).stdout.strip()
    number = lambda text: tuple(int(part) for part in text.split("."))  # noqa: E731
    for module in (ROOT / "tests/deploy").glob("*/go.mod"):
        wants = next(
            line.split()[1] for line in module.read_text().splitlines() if line.startswith("go ")
        )
        assert number(have.removeprefix("go")) >= number(wants), (module, have)

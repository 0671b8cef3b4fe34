# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the scenario tests, and a summary that lists tests that were not run apart from those
that passed."""

import contextlib
import os
import zlib

import pytest

from forebay import KEYS, Forebay, io_uring_works
from origin import Origin

ENGINES = ("io_uring", "threads")
SHORT = os.environ.get("FOREBAY_TEST_SHORT") == "1"  # run.sh without --full sets it


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "both_engines: touches the disk engine; the short run has it on both"
    )
    config.addinivalue_line(
        "markers",
        "long(covered): left out of the short run; COVERED names what tests the promise there",
    )
    config.addinivalue_line("markers", "tsan: also run with the tsan binary")
    config.addinivalue_line("markers", "xdist_group(name): run one after another, by one process")


# Modules whose tests share something expensive: one process makes it, once.
TOGETHER = ("test_main_job", "test_signer_vectors")


def short_engine(name):
    """The engine on which the short run runs the test NAME. Each engine gets about half of the
    tests."""
    if not io_uring_works():
        return "threads"
    return ENGINES[zlib.crc32(name.encode()) % len(ENGINES)]


def is_in_short_run(item):
    """Whether the short run includes ITEM, a test with its parameters."""
    if item.get_closest_marker("long"):
        return False
    engine = item.callspec.params.get("engine") if hasattr(item, "callspec") else None
    if (
        engine is None
        or item.get_closest_marker("both_engines")
        or os.environ.get("FOREBAY_TEST_ENGINE")
    ):
        return True
    return engine == short_engine(item.nodeid.replace(engine, "engine"))


def pytest_collection_modifyitems(config, items):
    if SHORT:
        kept = [item for item in items if is_in_short_run(item)]
        config.hook.pytest_deselected(items=[item for item in items if not is_in_short_run(item)])
        items[:] = kept
    for item in items:
        if item.module.__name__ in TOGETHER:
            item.add_marker(pytest.mark.xdist_group(item.module.__name__))


def shortened(text, lines=60, columns=300):
    """Shortens a long text: keeps some of its beginning and more of its end."""
    rows = [row if len(row) <= columns else row[:columns] + " ..." for row in text.splitlines()]
    if len(rows) > lines:  # the access log is the least useful
        logged = [i for i, row in enumerate(rows) if '","client":"' in row]
        gone = set(logged[:-5])
        rows = [row for i, row in enumerate(rows) if i not in gone]
    if len(rows) > lines:
        head = lines // 4
        tail = lines - head - 1
        rows[head:-tail] = [f"... {len(rows) - head - tail} lines left out ..."]
    return "\n".join(rows)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    """Limits the output of a failed test to a screen or two, however large its values or the
    server's log are."""
    report = (yield).get_result()
    if report.failed:
        text = str(report.longrepr)
        if text != (short := shortened(text)):
            report.longrepr = short
        report.sections = [(name, shortened(text, 20)) for name, text in report.sections]


def not_run(why):
    """Reports a test that this machine cannot run. It never counts as passed, and it fails where
    its prerequisites were installed."""
    if os.environ.get("FOREBAY_TEST_ALL_RUN"):
        pytest.fail("NOT RUN: " + why)
    pytest.skip("NOT RUN: " + why)


@pytest.fixture(params=ENGINES)
def engine(request):
    """Both disk engines, or only one of them in the short run. io_uring is not run where the kernel
    refuses it."""
    only = os.environ.get("FOREBAY_TEST_ENGINE")
    if only and request.param != only:
        pytest.skip(f"only {only} was asked for")
    if request.param == "io_uring" and not io_uring_works():
        not_run("this kernel refuses io_uring")
    return request.param


@contextlib.contextmanager
def strict(made):
    """Runs the scripted origin MADE within the block, then fails the test for every request that a
    careful client would not have sent."""
    with made:
        yield made
    assert not made.violations, made.violations[:5]


@pytest.fixture
def origin():
    with strict(Origin(credentials=KEYS)) as made:
        yield made


@pytest.fixture
def start(tmp_path, request):
    """start(origin, engine=..., settings=..., file=...) returns a running server, which the fixture
    stops at the end."""
    running = []

    def make(origin=None, run=True, name=None, **more):
        server = Forebay(tmp_path / (name or f"forebay{len(running)}"), origin, **more)
        running.append(server)
        if run:
            server.start()
        return server

    yield make
    failed = []
    for server in running:
        try:
            if server.process is not None:
                if server.process.poll() is not None and not server.expect_failure:
                    failed.append(
                        f"the server died with {server.process.returncode}: {server.output()}"
                    )
                    server.kill9()
                else:
                    server.stop(code=None if server.expect_failure else 0)
        except AssertionError as error:
            failed.append(str(error))
        finally:
            if server.alive:
                server.kill9()
        if server.complaints():
            failed.append("\n".join(server.stderr[-80:]))
        server.wipe_cache()
    assert not failed, failed[0]


@pytest.fixture
def forebay(start, origin, engine):
    """A server with default settings in front of the scripted origin, once per engine."""
    return start(origin, engine=engine)


def pytest_terminal_summary(terminalreporter):
    rows = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if "NOT RUN" in reason:
            rows.setdefault(reason.split("NOT RUN: ", 1)[1], []).append(report.nodeid)
    for reason, tests in rows.items():
        terminalreporter.write_line(f"NOT RUN ({len(tests)} tests): {reason}: {tests[0]} ...")
    for report in terminalreporter.stats.get("passed", []):
        for name, text in report.user_properties:
            if name == "figure":
                terminalreporter.write_line("figure: " + text)


@pytest.fixture
def figure(record_property):
    """figure("text") prints a measurement at the end of the run. Such figures are not judged."""
    return lambda text: record_property("figure", text)

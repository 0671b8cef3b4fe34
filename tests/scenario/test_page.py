# SPDX-License-Identifier: Apache-2.0
"""The web page at / of the admin port, in a real browser where one is installed.

The tests check its content at two widths, light and dark. It sends requests to nobody else and
reports no error. Names from requests are shown as text.

    FOREBAY_TEST_SHOTS  a folder for its screenshots; page.png is for deploy/guide/pictures

"""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest

from client import Client
from conftest import not_run
from disks import SmallMemory
from test_live import MANY, many_objects
from test_store import fill_up
from waiting import WAIT_S, wait_for

MIB = 1 << 20
EVIL = '<script>window.hit=1</script><img src=x onerror="window.hit=1">'
LOOKS = [
    (360, 780, "light"),
    (360, 780, "dark"),
    (1440, 900, "light"),
    (1440, 900, "dark"),
]


class Page:
    """A tab of headless Chromium, driven over its DevTools pipe."""

    def __init__(self, path, folder):
        to_browser, self.out = os.pipe()
        self.input, from_browser = os.pipe()
        command = [
            path,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-default-apps",
            "--disable-dev-shm-usage",
            f"--user-data-dir={folder / 'profile'}",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            "--remote-debugging-pipe",
        ]
        self.process = subprocess.Popen(
            [
                "bash",
                "-c",
                f'exec "$@" 3<&{to_browser} 4>&{from_browser}',
                "bash",
                *command,
            ],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={
                **os.environ,
                "HOME": str(folder),
                "XDG_CONFIG_HOME": str(folder / "config"),
            },
        )
        os.close(to_browser)
        os.close(from_browser)
        self.changed, self.answers, self.number, self.session = (
            threading.Condition(),
            {},
            0,
            None,
        )
        self.urls, self.errors = [], []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(domain + ".enable")
        self.send("Emulation.setScrollbarsHidden", hidden=True)

    def _read(self):
        rest = b""
        while piece := os.read(self.input, 1 << 16):
            *messages, rest = (rest + piece).split(b"\0")
            with self.changed:
                for message in map(json.loads, messages):
                    self._take(message)
                self.changed.notify_all()

    def _take(self, message):
        params = message.get("params", {})
        if "id" in message:
            self.answers[message["id"]] = message
        elif message["method"] == "Network.requestWillBeSent":
            self.urls.append(params["request"]["url"])
        elif message["method"] == "Log.entryAdded" and params["entry"]["level"] in (
            "warning",
            "error",
        ):
            self.errors.append(params["entry"]["text"])
        elif message["method"] == "Runtime.consoleAPICalled":
            self.errors.append(str(params["args"]))
        elif message["method"] == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))

    def send(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        with self.changed:
            assert self.changed.wait_for(lambda: message["id"] in self.answers, WAIT_S), method
            answer = self.answers.pop(message["id"])
        assert "result" in answer, answer
        return answer["result"]

    def value(self, expression):
        result = self.send(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, expression):
        return wait_for(lambda: self.value(expression), expression)

    def open(self, url):
        self.send("Page.navigate", url=url)
        self.wait(
            "document.getElementById('main') !== null && !document.getElementById('main').hidden"
        )

    def leave(self):
        """Opens an empty page and forgets what the one before asked for and complained about."""
        self.send("Page.navigate", url="about:blank")
        self.wait("location.href === 'about:blank'")
        self.urls.clear()
        self.errors.clear()

    def look(self, width, height, scheme):
        """Returns a screenshot, as PNG in base64. Checks that nothing extends beyond the window."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.send(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        beyond = (
            "[...document.querySelectorAll('main *')].filter(e => e.closest('.scroll') === null && "
            "e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML.slice(0, 80))"
        )
        assert self.value("document.scrollingElement.scrollWidth") <= width, self.value(beyond)
        return self.send("Page.captureScreenshot", captureBeyondViewport=True)["data"]

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait(WAIT_S)
        self.reader.join(WAIT_S)
        os.close(self.out)
        os.close(self.input)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = shutil.which("chromium")
    if path is None:
        not_run("no chromium on PATH (sh deploy/packages.sh --install page)")
    page = Page(path, tmp_path_factory.mktemp("browser"))
    yield page
    page.close()


@pytest.fixture(autouse=True)
def forget(page):
    """The page of the test before still asks a server that has gone."""
    page.leave()


def take_shots(page, name):
    """Looks at the page at both widths, light and dark. No label of a chart overlaps another one,
    none is cut, and nothing extends beyond the window."""
    shots = os.environ.get("FOREBAY_TEST_SHOTS")
    for width, height, scheme in LOOKS:
        shot = page.look(width, height, scheme)
        if shots:
            (Path(shots) / f"{name}-{width}-{scheme}.png").write_bytes(base64.b64decode(shot))
        assert page.value(CROWDED) == [], (name, width)


# The texts of charts that overlap, or that extend beyond their chart.
CROWDED = """[...document.querySelectorAll('svg')].flatMap(svg => {
    const whole = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll('text')].map(t => [t, t.getBoundingClientRect()]);
    return texts.filter(([t, a], i) => a.left < whole.left || a.right > whole.right ||
        a.top < whole.top - 1 || a.bottom > whole.bottom + 1 ||
        texts.slice(i + 1).some(([u, b]) => a.left < b.right && b.left < a.right &&
            a.top + 2 < b.bottom && b.top + 2 < a.bottom)).map(([t]) => t.textContent); })"""

# Gives the page made-up numbers: two busy hours with a few events, and totals that fit them.
BUSY = """(async () => {
    const last = Math.floor(Date.now() / 5000) * 5, steps = 1440, first = last - 5 * (steps - 1);
    const wave = (i, length, phase) => 0.5 + 0.5 * Math.sin(2 * Math.PI * (i / length + phase));
    const at = (f) => ({ unit: '', values: Array.from({ length: steps },
        (_, i) => i > 620 && i < 650 ? null : f(i)) });
    const down = (i) => i > 1000 && i < 1080;
    const G = 1 << 30;
    takeHistory({ step_s: 5, steps, first, last, series: {
        memory: at(i => 1.1 * G * wave(i, 300, 0) * Math.min(1, i / 400)),
        disk: at(i => 2.3 * G * wave(i, 220, 0.2) * Math.min(1, i / 300)),
        origin: at(i => down(i) ? 0 : 0.9 * G * Math.max(0.02, 1 - i / 500)),
        fetched: at(i => 0.9 * G * Math.max(0.02, 1 - i / 500)),
        stored: at(i => 0.8 * G * Math.max(0.02, 1 - i / 500)),
        evicted: at(i => i > 500 ? 4e7 * wave(i, 100, 0) : 0),
        requests: at(i => 3300 * wave(i, 260, 0.1) + 400), failed: at(i => down(i) ? 31 : 0),
        shed: at(i => i === 1200 ? 3 : 0), asked: at(i => 900 * Math.max(0.03, 1 - i / 500)),
        asked_failed: at(i => down(i) ? 60 : 0), asked_again: at(i => down(i) ? 45 : 1),
        held: at(i => 5e11), inflight: at(i => 64), waiting: at(i => 0),
        first_byte_p50: at(i => 0.0005 + 0.002 * wave(i, 90, 0)),
        first_byte_p99: at(i => down(i) ? 9 : 0.05 + 0.2 * wave(i, 150, 0)),
        origin_first_byte_p99: at(i => down(i) ? null : 0.1 + 0.1 * wave(i, 60, 0)),
    }, events: [
        [first + 3100, 'reload', 'the configuration was reloaded', false],
        [first + 3240, 'start', 'the server started', false],
        [first + 5000, 'origin-unreachable', 'it refuses connections', true],
        [first + 5400, 'origin-unreachable', 'it is over', false],
        [first + 6300, 'disk-short', 'the file system has too little room', true]] });
    const s = await (await fetch('api/v1/summary')).json(), c = s.counters;
    const add = (name, n) => { c[name] = (c[name] || 0) + n; };
    samples = [];
    for (let second = 0; second < 60; second++) {
        s.uptime_s = 93600 + second;
        s.time = last;
        add('response_bytes_memory', second ? 1.1e9 : 41e12);
        add('response_bytes_disk', second ? 2.3e9 : 88e12);
        add('response_bytes_origin', second ? 2e7 : 4.2e12);
        add('origin_received_bytes', second ? 2e7 : 4.3e12);
        s.requests = { 200: 3e7 + 900 * second, 206: 2e8 + 2400 * second, 503: 2480 };
        s.origin = { 206: 4e6 + 27 * second };
        s.histograms.first_byte_hit.counts[1] += second ? 3000 : 2e8;
        s.histograms.first_byte_hit.counts[4] += 40;
        s.histograms.first_byte_miss.counts[8] += 20;
        s.histograms.first_byte_miss.counts[9] += second ? 3 : 9e5;
        c.origin_errors_connect = 2480;
        take(structuredClone(s));
    }
    Object.assign(c, { cache_capacity_bytes: 9e11, cache_bytes: 8.9e11, cache_held_bytes: 8.4e11,
        cache_objects: 184320, cache_blocks: 801000, http_inflight: 64, fills_inflight: 3,
        origin_retries: 900, evicted_bytes_capacity: 3e10 });
    Object.assign(s, { uptime_s: 93660, bypass: { list: 1200, method: 310 }, savings: {
        bytes: 1.29e14, requests: 226000000, cost_bytes: 0, cost_requests: 90.4, wait_s: 2.1e7,
        miss_s: 0.12 } });
    take(s);
})()"""


def text(page, id):
    return page.value(f"document.getElementById('{id}').textContent")


def fields(page):
    """The colours of the block map, and how many pixels have each."""
    return page.value("""(() => {
        const map = document.getElementById('map'), seen = {};
        const data = map.getContext('2d').getImageData(0, 0, map.width, map.height).data;
        for (let i = 0; i < data.length; i += 4) if (data[i + 3] == 255) {
            const name = [data[i], data[i + 1], data[i + 2]].join(); \
seen[name] = (seen[name] || 0) + 1;
        }
        return seen; })()""")


def explain(page, uri):
    page.value(
        f"document.getElementById('uri').value = {json.dumps(uri)}, "
        "document.getElementById('look').requestSubmit()"
    )


def test_page_shows_what_the_server_does(start, origin, page):
    """The page shows an empty server, then reads, a job and a half-cached object. Names from
    requests stay text."""
    shots = os.environ.get("FOREBAY_TEST_SHOTS")
    server = start(origin)
    url = f"http://127.0.0.1:{server.admin_port}/"
    page.open(url)
    assert (
        text(page, "ratio") == "–"
        and text(page, "saved") == "0 B"
        and text(page, "state").startswith("Ready")
    )
    page.wait("document.getElementById('jobs-none').offsetParent !== null")
    explain(page, "s3://bkt/none")
    page.wait("document.getElementById('map-text').textContent.includes('not known')")
    origin.put("half", 16 * MIB)
    origin.put("evil/" + EVIL, 100)
    with server.client() as client:
        for _ in range(3):
            assert client.get("half", 0, 6 * MIB - 1).status == 206
            assert client.list().status == 200
        assert client.get("none/" + EVIL).status == 404
    page.wait("document.getElementById('ratio').textContent.includes('%')")
    page.wait("document.getElementById('bypass').textContent.includes('cache.list_ttl')")
    server.settle()
    explain(page, "s3://bkt/half")
    page.wait("document.getElementById('map-text').textContent.includes('of 16 blocks')")
    cached = page.value("explained.range.cells.filter(cell => cell[0] > 0).length")
    shares = sorted(fields(page).values(), reverse=True)[:2]
    assert (
        6 <= cached < 16 and abs(min(shares) / sum(shares) - min(cached, 16 - cached) / 16) < 0.02
    ), (cached, shares)
    explain(page, "bkt/evil/" + EVIL)
    page.wait("document.getElementById('facts').textContent.includes('onerror')")
    job = {"uris": ["s3://bkt/evil/", "s3://bkt/none/" + EVIL]}
    with Client(server.admin_port) as client:
        assert (
            client.request(
                "POST",
                "/api/v1/warm",
                [("X-Forebay-Control", "1")],
                json.dumps(job).encode(),
            ).status
            == 200
        )
    page.wait("document.getElementById('jobs').textContent.includes('failed')")
    assert "<script>" in text(page, "jobs")
    page.wait("document.getElementById('requests').textContent.includes('onerror')")
    page.wait("document.getElementById('buckets').textContent.includes('bkt')")
    page.wait(f"document.getElementById('origins').textContent.includes('{origin.endpoint}')")
    page.value(
        "document.getElementById('requests-pause').click(), "
        "document.getElementById('requests-filter').value = 'LIST', "
        "document.getElementById('requests-filter').dispatchEvent(new Event('input'))"
    )
    rows = page.value(
        "[...document.querySelectorAll('#requests tr')].slice(1).map(row => row.textContent)"
    )
    assert len(rows) >= 3 and all(
        "ListObjectsV2" in row and "bypass: list" in row for row in rows
    ), rows
    page.value("document.getElementById('requests-filter').value = '', showRequests()")
    page.value("document.getElementById('config').open = true")
    page.wait("document.getElementById('config-text').textContent.includes('cache.size')")
    explain(page, "s3://bkt/half")
    page.wait("document.getElementById('map-text').textContent.includes('of 16 blocks')")
    assert str(server.port) in text(page, "clients") and "any" in text(page, "clients")
    page.value("document.getElementById('doctor-run').click()")
    page.wait("document.getElementById('doctor').textContent.includes('credentials')")
    assert page.value("document.getElementById('doctor-run').disabled") is False
    for width, height, scheme in LOOKS:
        shot = page.look(width, height, scheme)
        for table in (
            "buckets",
            "doctor",
            "waits",
            "origins",
            "bypass",
        ):  # none of these needs horizontal scrolling
            assert page.value(
                f"(t => t === null || t.parentElement.scrollWidth <= t.parentElement.clientWidth)"
                f"(document.getElementById('{table}'))"
            ), (table, width)
        if shots:
            (Path(shots) / f"page-{width}-{scheme}.png").write_bytes(base64.b64decode(shot))
    assert page.value("window.hit") is None and page.value("document.images.length") == 0
    assert page.errors == []
    assert all(u.startswith((url, "data:")) for u in page.urls), page.urls
    assert any(u.endswith("/api/v1/events") for u in page.urls)


def test_page_draws_two_hours_with_axes_values_and_events(start, origin, page):
    """The charts have times and units at their axes. The pointer and the arrow keys show the values
    of a time, and the events next to it."""
    names = {"POD_NAME": "trainer-7", "NODE_NAME": "gpu-node-3"}
    server = start(origin, settings={"cache.size": "64MiB"}, env=names)
    page.open(f"http://127.0.0.1:{server.admin_port}/")
    page.wait("newest > 0 && document.querySelectorAll('#charts figure').length === 6")
    assert "the server started" in page.wait("document.getElementById('marks').textContent")
    take_shots(page, "empty")
    page.value("events.abort(), events = null, heardAt = 1e12")
    page.value(BUSY)
    assert page.value("document.getElementById('span').value") == "7200"
    take_shots(page, "busy")
    if shots := os.environ.get("FOREBAY_TEST_SHOTS"):
        page.look(1200, 900, "light")
        bottom = page.value("document.getElementById('marks').getBoundingClientRect().bottom + 16")
        shot = page.send(
            "Page.captureScreenshot",
            captureBeyondViewport=True,
            clip={"x": 0, "y": 0, "width": 1200, "height": bottom, "scale": 1},
        )["data"]
        (Path(shots) / "page.png").write_bytes(base64.b64decode(shot))
    for span, labels in (("7200", 3), ("1800", 2), ("600", 2)):
        page.value(
            f"document.getElementById('span').value = '{span}', "
            "document.getElementById('span').dispatchEvent(new Event('change'))"
        )
        for i, unit in enumerate(("iB/s", " %", "s", "/s", "/s", "iB/s")):
            shown = page.value(
                f"[...document.querySelectorAll('#charts svg')[{i}].querySelectorAll('text')]"
                ".map(t => t.textContent)"
            )
            times = [one for one in shown if ":" in one]
            assert len(times) >= labels and all(len(one) == 5 for one in times), shown
            assert sum(one.endswith(unit) for one in shown) >= 2, shown
        assert page.value(CROWDED) == [], span
    page.value(
        "document.getElementById('span').value = '7200', "
        "document.getElementById('span').dispatchEvent(new Event('change'))"
    )
    page.value("""(() => { const chart = CHARTS[3], box = chart.svg.getBoundingClientRect();
        const mark = [...marks.values()].find(m => m[1] === 'origin-unreachable');
        const x = box.left + chart.place(mark[0]);
        chart.svg.dispatchEvent(new PointerEvent('pointermove', { clientX: x + 2, \
clientY: box.top + 9 })); })()""")
    assert "origin-unreachable: it refuses connections" in text(page, "at")
    assert text(page, "said") == "", "a screen reader hears the keys only"
    assert "31/s" in page.value("CHARTS[3].svg.getAttribute('aria-label')")
    before = page.value("cursor")
    page.value(
        "CHARTS[0].svg.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' })), "
        "CHARTS[0].svg.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' }))"
    )
    assert page.value("cursor") > before
    assert "Served, by source at " in text(page, "said")
    page.value("CHARTS[0].svg.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape' }))")
    assert page.value("cursor") is None and text(page, "at").startswith("newest values")
    assert page.errors == []


def test_page_says_whose_it_is(start, origin, page):
    """Title and head name the pod, the host and the origin."""
    server = start(origin, env={"POD_NAME": "trainer-7", "NODE_NAME": "gpu-node-3"})
    page.open(f"http://127.0.0.1:{server.admin_port}/")
    page.wait("document.title === 'trainer-7 · Forebay'")
    head = text(page, "identity")
    assert "pod trainer-7" in head and "host gpu-node-3" in head, head
    assert f"127.0.0.1:{origin.port}" in head, head


def test_page_shows_what_failed_and_why(start, origin, page):
    """Requests that failed because the origin is down are counted, stand out, and say why."""
    origin.put("a", 100)
    server = start(origin, settings={"origin.probe": "true"})
    page.open(f"http://127.0.0.1:{server.admin_port}/")
    page.wait("document.getElementById('failed').textContent === '0'")
    assert page.value("document.getElementById('failure').hidden")
    origin.down()
    with server.client() as client:
        assert client.get("a").status == 503
    page.wait("document.getElementById('failed').className === 'bad'")
    page.wait("document.getElementById('failure').textContent.includes('no connection')")
    page.wait("document.querySelectorAll('#requests tr.failed').length === 1")
    row = page.value("document.querySelector('#requests tr.failed').textContent")
    assert "503" in row and "connect" in row, row
    page.wait("document.getElementById('health').className.includes('bad')")
    page.wait("document.title.startsWith('Serving, degraded: ')")
    page.wait("document.getElementById('marks').textContent.includes('origin-unreachable')")
    take_shots(page, "origin-down")
    page.value("document.getElementById('requests-failed').click()")
    assert page.value("document.querySelectorAll('#requests tr').length") == 2
    assert page.errors == []


def test_page_counts_a_refused_request_once(start, origin, page):
    """A request above a limit ends in 503. It is one failure, not one for its status and another
    for its limit."""
    origin.put("a", 100)
    server = start(origin, settings={"limits.max_inflight": 1})
    page.open(f"http://127.0.0.1:{server.admin_port}/")
    page.wait("document.getElementById('failed').textContent === '0'")
    with origin.hold("a"), server.connection() as first, server.client() as second:
        first.send(b"GET /bkt/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        origin.wait_for(1, key="a")
        assert second.get("a").status == 503
    page.wait("document.getElementById('failed').className === 'bad'")
    assert page.value("document.getElementById('failed').textContent") == "1"


def test_page_of_a_full_disk(start, origin, page, tmp_path):
    """The banner says that the disk is full, and what to do."""
    with SmallMemory(tmp_path / "memory", 300 * MIB, 4000) as disk:
        other = fill_up(disk.mount / "other")
        server = start(origin, cache=disk.mount / "cache", settings={"cache.size": "100MiB"})
        page.open(f"http://127.0.0.1:{server.admin_port}/")
        page.wait("document.getElementById('reasons').textContent.includes('disk-full: ')")
        page.wait("document.getElementById('marks').textContent.includes('disk-full')")
        take_shots(page, "disk-full")
        assert text(page, "state") == "Serving, degraded"
        assert page.errors == []
        page.leave()
        other.unlink()
        server.stop()


def test_page_of_a_large_cache(start, tmp_path, page, figure):
    """With MANY objects, and one bucket of them open, the page is drawn as soon as with none, and
    an update takes as little time."""
    server = many_objects(start, tmp_path, MANY)
    url = f"http://127.0.0.1:{server.admin_port}/"
    page.send("Page.navigate", url="about:blank")
    page.errors.clear()  # of a server that had ended
    began = time.monotonic()
    page.open(url)
    page.wait(
        "document.getElementById('fill-more').textContent.startsWith(%s)"
        % json.dumps(f"{int(server.metric('forebay_cache_objects')):,} objects")
    )
    shown_s = time.monotonic() - began
    with server.client() as client:
        for i in range(60):
            assert client.get(f"0000/{i:03}").status == 200
    explain(page, "s3://bkt/0000/007")
    page.wait("document.getElementById('verdict').textContent.includes('answered from the cache')")
    page.wait("document.querySelectorAll('#requests tr').length === 51")
    took_ms = page.value("""(async () => { const s = await (await fetch('api/v1/summary')).json(); \
const times = [];
        for (let i = 0; i < 20; i++) { const at = performance.now(); s.uptime_s += 1; take(s); \
drawCharts(); drawMap();
            showRequests(); times.push(performance.now() - at); }
        return times.sort((a, b) => a - b)[10]; })()""")
    shots = os.environ.get("FOREBAY_TEST_SHOTS")
    for width, height, scheme in LOOKS:
        shot = page.look(width, height, scheme)
        if shots:
            (Path(shots) / f"large-{width}-{scheme}.png").write_bytes(base64.b64decode(shot))
    assert page.errors == [] and shown_s < 20 and took_ms < 1000, (
        page.errors,
        shown_s,
        took_ms,
    )
    figure(f"page with {MANY} objects: shown after {shown_s:.1f} s, a turn takes {took_ms:.1f} ms")


def test_page_shows_the_age_of_evicted_objects(start, origin, page):
    """The page shows no eviction age while nothing is evicted. It shows short ages with a remedy,
    and long ones without."""
    server = start(origin)
    page.open(f"http://127.0.0.1:{server.admin_port}/")
    assert page.value("document.getElementById('age-text').hidden")
    page.value("events.abort(), events = null, heardAt = 1e12")  # the test supplies the data
    for bucket, words in (
        (3, "in the last 1 min 0 s (last minute). That is short"),
        (14, "in the last 7 d 0 h"),
    ):
        page.value(
            """(async () => { const s = await (await fetch('api/v1/summary')).json();
            s.uptime_s = samples[samples.length - 1].at + 1; \
s.histograms.eviction_age.counts[%d] = %d; take(s); })()"""
            % (bucket, 100 * bucket)
        )
        assert words in text(page, "age-text"), text(page, "age-text")
    assert page.errors == []


def test_page_says_that_the_server_has_gone_and_comes_back(start, origin, page):
    """Green turns grey, and the title says it. The charts keep what they had before a restart."""
    server = start(origin)
    server.settings["admin.listen"] = f"127.0.0.1:{server.admin_port}"
    page.open(f"http://127.0.0.1:{server.admin_port}/")
    page.wait("document.getElementById('link').textContent === 'live' && marks.size === 1")
    server.stop()
    page.wait("document.getElementById('link').textContent.includes('no connection')")
    assert page.value("document.body.className") == "gone"
    assert page.value("document.title").startswith("gone: ")
    assert text(page, "state").startswith("No answer from the server")
    assert page.value("getComputedStyle(document.getElementById('health')).borderLeftColor") == (
        page.value("getComputedStyle(document.querySelector('.soft')).color")
    )
    take_shots(page, "gone")
    server.start()
    page.wait("document.getElementById('link').textContent === 'live'")
    page.wait("document.body.className === '' && !document.title.startsWith('gone')")
    page.wait("[...marks.values()].filter(mark => mark[1] === 'start').length === 2")


def test_page_hides_names_and_details_from_users_without_the_right(start, origin, page, tmp_path):
    """Without the token the page shows conditions in the words of their table. With it, events and
    the polls between two streams bring the details. No URL has the token."""
    token = "0123456789abcdef0123456789abcdef"
    (tmp_path / "token").write_text(token + "\n")
    (tmp_path / "token").chmod(0o600)
    origin.down()
    server = start(
        origin,
        settings={
            "admin.token_file": str(tmp_path / "token"),
            "admin.trust_loopback": "false",
            "origin.probe": "true",
        },
    )
    reasons = "document.getElementById('reasons').textContent"
    page.open(f"http://127.0.0.1:{server.admin_port}/")
    page.wait(reasons + ".includes('origin-unreachable')")
    page.wait("document.getElementById('rights-why').textContent.includes('token')")
    assert page.value("[...document.querySelectorAll('.detail')].every(e => e.hidden)")
    assert origin.endpoint not in page.value(reasons)

    def give(word):
        page.value(
            f"document.getElementById('token').value = {json.dumps(word)}, "
            "document.getElementById('token-form').requestSubmit()"
        )

    give("ключ")  # no header can carry it
    assert page.value("token") == "" and page.value("document.querySelector(':invalid').id")
    give("wrong")
    page.wait("document.getElementById('rights-why').textContent.includes('is not that of')")
    page.value("isAsking = true")  # from now on only events bring conditions
    give(token)
    page.wait("[...document.querySelectorAll('.detail')].every(e => !e.hidden)")
    page.wait(f"{reasons}.includes({json.dumps(origin.endpoint)})")
    page.value("listen = () => {}, events.abort(), events = null, heardAt = -1e9")
    page.value("document.getElementById('reasons').replaceChildren()")
    page.value("document.getElementById('reasons').dataset.text = '', isAsking = false")
    page.wait(f"{reasons}.includes({json.dumps(origin.endpoint)})")  # from polls only
    assert not any(token in url for url in page.urls)

# SPDX-License-Identifier: Apache-2.0
"""/metrics as protobuf, for scrapers that ask for it: it says what the text says, and each histogram as a native one,
too; and the exemplars of OpenMetrics and of protobuf. Judged by readers of the formats of our own, and by Prometheus itself where
there is one."""

import http.client
import json
import math
import os
import re
import shutil
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import not_run
from forebay import scaled
from test_control import read
from waiting import wait_for

ACCEPT = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,"
    "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data):
    """{number: [values]} of a message."""
    out, at = {}, 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
        elif tag & 7 == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        else:
            assert tag & 7 == 2, tag
            length, at = varint(data, at)
            value, at = data[at : at + length], at + length
            assert len(value) == length
        out.setdefault(tag >> 3, []).append(value)
    return out


def signed(value):
    return (value >> 1) ^ -(value & 1)


def scrape(server, accept=ACCEPT):
    connection = http.client.HTTPConnection("127.0.0.1", server.admin_port, timeout=20)
    connection.request("GET", "/metrics", headers={"Accept": accept})
    reply = connection.getresponse()
    return reply.getheader("content-type"), reply.read()


def families(body):
    out, at = {}, 0
    while at < len(body):
        length, at = varint(body, at)
        family = fields(body[at : at + length])
        at += length
        name = family[1][0].decode()
        assert name not in out, name
        out[name] = family
    return out


def native(histogram):
    """{index: count} of a native histogram."""
    out, index, deltas, count = {}, 0, iter(histogram.get(13, [])), 0
    for span in histogram.get(12, []):
        span = fields(span)
        index += signed(span[1][0])
        for _ in range(span[2][0]):
            count += signed(next(deltas))
            out[index] = count
            index += 1
    assert next(deltas, None) is None
    return out


def labels_of(metric):
    return ",".join(
        f'{fields(pair)[1][0].decode()}="{fields(pair)[2][0].decode()}"'
        for pair in metric.get(1, [])
    )


def test_protobuf_says_what_the_text_says(forebay, origin):
    for size, key in ((100, "a"), (3 << 20, "b")):
        origin.put(key, size)
        read(forebay, key, key, key)
    kind, body = scrape(forebay)
    assert kind.startswith("application/vnd.google.protobuf") and "encoding=delimited" in kind
    text, found, natives = forebay.metrics(), families(body), 0
    moves = ("process_", "forebay_http", "forebay_log", "forebay_buffer", "forebay_worker")
    for name, family in found.items():
        for metric in map(fields, family[4]):
            labels = labels_of(metric)
            braces = f"{{{labels}}}" if labels else ""
            if family[3][0] == 4:
                histogram = fields(metric[7][0])
                buckets = native(histogram)
                assert histogram[5] == [4] and signed(histogram[5][0]) == 2, "schema"
                count = histogram[1][0]
                assert sum(buckets.values()) + histogram[7][0] == count, name
                rows = [fields(row) for row in histogram[3]]
                assert [row[1][0] for row in rows] == sorted(row[1][0] for row in rows)
                assert math.isinf(rows[-1][2][0]) and len(rows) == 17
                # What native buckets say of a bound of the text's lies between its neighbours.
                for row in rows[:-1]:
                    below = (
                        sum(
                            n
                            for index, n in buckets.items()
                            if 2 ** (index / 4) <= row[2][0] * 1.0001
                        )
                        + histogram[7][0]
                    )
                    above = (
                        sum(
                            n
                            for index, n in buckets.items()
                            if 2 ** ((index - 1) / 4) < row[2][0] * 1.0001
                        )
                        + histogram[7][0]
                    )
                    assert below <= row[1][0] <= above, (name, labels, row, buckets)
                natives += len(buckets) > 0
                if not name.startswith(moves):
                    assert text[f"{name}_count{braces}"] >= count
            else:
                (number,) = (number for number in (2, 3, 5) if number in metric)
                assert number == {0: 3, 1: 2, 3: 5}[family[3][0]]
                value = fields(metric[number][0])[1][0]
                assert f"{name}{braces}" in text, f"{name}{braces}"
                if not name.startswith(moves) and family[3][0] == 0:
                    assert value <= text[f"{name}{braces}"], name
    assert natives > 3
    rows = {row.partition("{")[0] for row in text}
    missing = {
        row
        for row in rows
        if row not in found
        and not any(row == name + end for name in found for end in ("_bucket", "_sum", "_count"))
    }
    assert not missing, missing
    # Who does not ask for it does not get it.
    assert scrape(forebay, "text/plain")[0].startswith("text/plain")
    assert scrape(forebay, "application/openmetrics-text")[0].startswith(
        "application/openmetrics-text"
    )


def test_calls_at_origins_and_the_index_map(start, origin):
    """How many have a connection, how many wait for one; what the index may come to."""
    server = start(origin, settings={"origin.connections": 1, "workers": 1})
    for key in "abc":
        origin.put(key, 100)
    assert server.metric("forebay_index_map_bytes") >= server.metric("forebay_index_bytes") > 0
    readers = [threading.Thread(target=read, args=(server, key)) for key in "abc"]
    with origin.hold(None):
        for reader in readers:
            reader.start()
        server.wait_metric("forebay_origin_connections", lambda v: v == 1, state="active")
        server.wait_metric("forebay_origin_connections", lambda v: v == 2, state="waiting")
    for reader in readers:
        reader.join()
    server.wait_metric("forebay_origin_connections", lambda v: v == 0)


# --- exemplars --------------------------------------------------------------------------------------

OPEN = "application/openmetrics-text;version=1.0.0"
LABELS = r'\{(?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\[n"\\])*"(?:,(?!\})|(?=\})))*\}'
NUMBER = r"(?:\d+(?:\.\d+)?|\+Inf)"
SAMPLE = re.compile(
    rf'([a-zA-Z_:][\w:]*)({LABELS})? ({NUMBER})(?: # \{{trace_id="([0-9a-f]{{32}})"\}} (\d+\.\d{{6}}) (\d+\.\d{{6}}))?'
)
DURATION = "forebay_http_request_duration_seconds_bucket"


def traceparent(trace, flags="01"):
    return [("traceparent", f"00-{trace}-00f067aa0ba902b7-{flags}")]


def exemplars(server):
    """[(result, bound below, bound, trace id, seconds, time)] of what OpenMetrics says, each line of which has its form."""
    kind, body = scrape(server, OPEN)
    assert kind.startswith("application/openmetrics-text") and body.endswith(b"\n# EOF\n")
    out, below = [], 0.0
    for line in body.decode().splitlines():
        if line.startswith("# "):
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample, line
        if sample[1] == DURATION:
            result, bound = re.fullmatch(r'\{result="(\w+)",le="([^"]+)"\}', sample[2]).groups()
            if sample[4]:
                out.append(
                    (result, below, float(bound), sample[4], float(sample[5]), float(sample[6]))
                )
            below = 0.0 if bound == "+Inf" else float(bound)
        else:
            assert sample[4] is None, line
    return out


def of_protobuf(server):
    """The same of protobuf."""
    out = []
    for metric in map(
        fields, families(scrape(server)[1])["forebay_http_request_duration_seconds"][4]
    ):
        below = 0.0
        for row in map(fields, fields(metric[7][0])[3]):
            if 3 in row:
                exemplar = fields(row[3][0])
                at = fields(exemplar[3][0])
                pair = fields(exemplar[1][0])
                assert pair[1] == [b"trace_id"]
                out.append(
                    (
                        labels_of(metric)[8:-1],
                        below,
                        row[2][0],
                        pair[2][0].decode(),
                        exemplar[2][0],
                        at[1][0] + at[2][0] / 1e9,
                    )
                )
            below = row[2][0]
    return out


def test_exemplars_name_the_last_trace_of_a_bucket(start, origin):
    """Of requests whose client records its trace; in both forms that have exemplars, and never in the text that has none."""
    origin.put("a", 100)
    server = start(origin, settings={"workers": 16})
    began = time.time()
    with server.client() as client:
        client.get("a")
        client.get("a", headers=traceparent("5" * 32, "00"))
        assert exemplars(server) == [] == of_protobuf(server)
        miss, hit, other = "1" * 32, "2" * 32, "3" * 32
        origin.put("b", 100)
        for key, trace in (("b", miss), ("b", hit)):
            assert client.get(key, headers=traceparent(trace)).status == 200
            server.settle()
        assert client.request("GET", "/bkt?list-type=2", traceparent(other)).status == 200
    found = wait_for(lambda: (rows := exemplars(server))[2:] and rows, "three exemplars")
    assert sorted((row[0], row[3]) for row in found) == [
        ("hit", hit),
        ("miss", miss),
        ("other", other),
    ]
    for _, below, bound, _, seconds, at in found:
        assert (
            (below < seconds or seconds == 0)
            and seconds <= bound
            and began - 1 <= at <= time.time() + 1
        )
    assert [row[:4] for row in of_protobuf(server)] == [row[:4] for row in found]
    assert all(
        abs(a[4] - b[4]) < 1e-9 and abs(a[5] - b[5]) < 1e-5
        for a, b in zip(found, of_protobuf(server))
    )
    assert b"trace_id" not in scrape(server, "text/plain")[1]


@pytest.mark.tsan
def test_exemplars_of_many_workers_and_of_hostile_clients(start, origin):
    """16 workers at once, while what is said is read; what is no trace id of W3C's form is none."""
    origin.put("a", 100)
    server = start(origin, settings={"workers": 16})
    read(server, "a")
    sent = {f"{i + 1:032x}" for i in range(16 * scaled(400, least=40))}
    hostile = [
        "00-" + "1" * 31 + '"-00f067aa0ba902b7-01',
        "00-" + "A" * 32 + "-00f067aa0ba902b7-01",
        "00-" + "0" * 32 + "-00f067aa0ba902b7-01",
        "00-" + "f" * 32 + "-0000000000000000-01",
        "ff-" + "f" * 32 + "-00f067aa0ba902b7-01",
        "00-" + "f" * 32 + "-00f067aa0ba902b7-01-",
        "00-" + "f" * 31 + "\\-00f067aa0ba902b7-01",
        "00-" + "f" * 29 + '\\"}-00f067aa0ba902b7-01',
        "-" * 55,
        "f" * 55,
        "",
        "0" * 4000,
        "00-" + "f" * 31 + "\x80-00f067aa0ba902b7-01",
        "00-" + "f" * 31 + "\t-00f067aa0ba902b7-01",
    ]
    left = sorted(sent)
    done = threading.Event()

    def look():
        while not done.is_set():
            assert {row[3] for row in exemplars(server)} <= sent
        return True

    def ask(number):
        with server.client() as client:
            for trace in left[number::16]:
                assert client.get("a", headers=traceparent(trace)).status == 200
            for value in hostile:
                assert client.get("a", headers=[("traceparent", value)]).status in (200, 400)
            assert client.get(
                "a", headers=[*traceparent("e" * 32), *traceparent("e" * 32)]
            ).status in (200, 400)

    with ThreadPoolExecutor(17) as pool:
        looked = pool.submit(look)
        for future in [pool.submit(ask, number) for number in range(16)]:
            future.result()
        done.set()
        assert looked.result()
    server.settle()
    found = exemplars(server)
    assert found and {row[3] for row in found} <= sent


@pytest.mark.parametrize("form", ["protobuf", "openmetrics"])
def test_prometheus_takes_native_histograms_and_exemplars(start, origin, tmp_path, form):
    program = shutil.which("prometheus")
    if program is None:
        not_run(
            "no prometheus on PATH (Debian package prometheus: deploy/packages.sh --install metrics)"
        )
    origin.put("a", 100)
    forebay = start(origin)
    read(forebay, "a", "a", "a")
    with forebay.client() as client:
        client.get("a", headers=traceparent("4bf92f3577b34da6a3ce929d0e0e4736"))
    config = tmp_path / "prometheus.yml"
    config.write_text(
        json.dumps(
            {
                "scrape_configs": [
                    {
                        "job_name": "f",
                        "scrape_interval": "1s",
                        "static_configs": [{"targets": [f"127.0.0.1:{forebay.admin_port}"]}],
                    }
                ]
            }
        )
    )
    log = open(tmp_path / "log", "w+")
    prometheus = subprocess.Popen(
        [
            program,
            f"--config.file={config}",
            f"--storage.tsdb.path={tmp_path}/tsdb",
            "--web.listen-address=127.0.0.1:0",
            "--enable-feature=exemplar-storage" + ",native-histograms" * (form == "protobuf"),
        ],
        stderr=log,
        stdout=log,
        env={"PATH": os.environ["PATH"]},
    )
    try:

        def address():
            text = (tmp_path / "log").read_text()
            assert prometheus.poll() is None, text
            return next(
                (
                    word.split("=")[1]
                    for line in text.splitlines()
                    if "Listening on" in line
                    for word in line.split()
                    if word.startswith("address=")
                ),
                None,
            )

        base = wait_for(address, "prometheus to listen")

        def get(path, **parameters):
            at = f"http://{base}/api/v1/{path}?" + urllib.parse.urlencode(parameters)
            try:
                with urllib.request.urlopen(at, timeout=20) as reply:
                    return json.load(reply)["data"]
            except urllib.error.HTTPError:  # it is not ready yet
                return None

        def ask(query):
            return [
                float(row["value"][1])
                for row in (get("query", query=query) or {"result": []})["result"]
                if "value" in row
            ]

        def traces():
            name = "forebay_http_request_duration_seconds" + "_bucket" * (form == "openmetrics")
            rows = (
                get("query_exemplars", query=name, start=time.time() - 600, end=time.time() + 600)
                or []
            )
            return {exemplar["labels"]["trace_id"] for row in rows for exemplar in row["exemplars"]}

        wait_for(
            lambda: traces() == {"4bf92f3577b34da6a3ce929d0e0e4736"},
            lambda: f"{traces()} {(tmp_path / 'log').read_text()[-1500:]}",
        )
        for query in (
            "up",
            "forebay_build_info",
        ):  # a scrape has a second, and one that took longer leaves a gap
            wait_for(lambda: ask(query) == [1.0], lambda: f"{query}: {ask(query)}")
        if form == "openmetrics":
            return
        hits = 'histogram_count(forebay_http_request_duration_seconds{result="hit"})'
        wait_for(
            lambda: ask(hits) == [3.0],
            lambda: f"{ask(hits)} {(tmp_path / 'log').read_text()[-1500:]}",
        )
        quantile = 'histogram_quantile(0.5, forebay_http_request_duration_seconds{result="hit"})'
        assert 0 < wait_for(lambda: ask(quantile), quantile)[0] < 10
    finally:
        prometheus.terminate()
        prometheus.wait(30)
        log.close()

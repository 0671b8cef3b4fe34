# SPDX-License-Identifier: Apache-2.0
"""/metrics as protobuf, for scrapers that ask for it: it says what the text says, and each histogram as a native one,
too. Judged by a reader of the format of our own, and by Prometheus itself where there is one."""
import http.client
import json
import math
import os
import shutil
import struct
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request

from conftest import not_run
from test_control import read
from waiting import wait_for

ACCEPT = ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,"
          "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1")


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7f) << shift
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
            value, at = data[at:at + length], at + length
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
        family = fields(body[at:at + length])
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
    return ",".join(f'{fields(pair)[1][0].decode()}="{fields(pair)[2][0].decode()}"' for pair in metric.get(1, []))


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
                    below = sum(n for index, n in buckets.items() if 2 ** (index / 4) <= row[2][0] * 1.0001) + histogram[7][0]
                    above = sum(n for index, n in buckets.items() if 2 ** ((index - 1) / 4) < row[2][0] * 1.0001) + histogram[7][0]
                    assert below <= row[1][0] <= above, (name, labels, row, buckets)
                natives += len(buckets) > 0
                if not name.startswith(moves):
                    assert text[f"{name}_count{braces}"] >= count
            else:
                number, = (number for number in (2, 3, 5) if number in metric)
                assert number == {0: 3, 1: 2, 3: 5}[family[3][0]]
                value = fields(metric[number][0])[1][0]
                assert f"{name}{braces}" in text, f"{name}{braces}"
                if not name.startswith(moves) and family[3][0] == 0:
                    assert value <= text[f"{name}{braces}"], name
    assert natives > 3
    rows = {row.partition("{")[0] for row in text}
    missing = {row for row in rows if row not in found and not any(row == name + end for name in found for end in ("_bucket", "_sum", "_count"))}
    assert not missing, missing
    # Who does not ask for it does not get it.
    assert scrape(forebay, "text/plain")[0].startswith("text/plain")
    assert scrape(forebay, "application/openmetrics-text")[0].startswith("application/openmetrics-text")


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


def test_prometheus_takes_native_histograms(start, origin, tmp_path):
    program = shutil.which("prometheus")
    if program is None:
        not_run("no prometheus on PATH (Debian package prometheus: deploy/packages.sh --install metrics)")
    origin.put("a", 100)
    forebay = start(origin)
    read(forebay, "a", "a", "a", "a")
    config = tmp_path / "prometheus.yml"
    config.write_text(json.dumps({"scrape_configs": [{"job_name": "f", "scrape_interval": "1s", "static_configs": [
        {"targets": [f"127.0.0.1:{forebay.admin_port}"]}]}]}))
    log = open(tmp_path / "log", "w+")
    prometheus = subprocess.Popen([program, f"--config.file={config}", f"--storage.tsdb.path={tmp_path}/tsdb",
                                   "--web.listen-address=127.0.0.1:0", "--enable-feature=native-histograms"],
                                  stderr=log, stdout=log, env={"PATH": os.environ["PATH"]})
    try:
        def address():
            text = (tmp_path / "log").read_text()
            assert prometheus.poll() is None, text
            return next((word.split("=")[1] for line in text.splitlines() if "Listening on" in line
                         for word in line.split() if word.startswith("address=")), None)
        base = wait_for(address, "prometheus to listen")

        def ask(query):
            at = f"http://{base}/api/v1/query?" + urllib.parse.urlencode({"query": query})
            try:
                with urllib.request.urlopen(at, timeout=20) as reply:
                    rows = json.load(reply)["data"]["result"]
            except urllib.error.HTTPError:          # it is not ready yet
                return []
            return [float(row["value"][1]) for row in rows if "value" in row]
        hits = 'histogram_count(forebay_http_request_duration_seconds{result="hit"})'
        wait_for(lambda: ask(hits) == [3.0], lambda: f"{ask(hits)} {(tmp_path / 'log').read_text()[-1500:]}")
        quantile = ask('histogram_quantile(0.5, forebay_http_request_duration_seconds{result="hit"})')
        assert 0 < quantile[0] < 10
        assert ask("up") == [1.0] and ask("forebay_build_info") == [1.0]
    finally:
        prometheus.terminate()
        prometheus.wait(30)
        log.close()

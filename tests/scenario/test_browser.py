# SPDX-License-Identifier: Apache-2.0
"""A browser on the same host: a web page from anywhere reads nothing through an open listener and
changes nothing.

The tests send the headers that browsers send, and use a real browser where one is installed.
"""

import contextlib
import http.server
import json
import os
import shutil
import subprocess
import threading

import pytest

from client import Client, request_bytes
from conftest import not_run
from signer import Signer
from test_auth import SECRETS, keys_file, verify

DELETE = b"<Delete><Object><Key>victim</Key></Object></Delete>"
SANDBOX = ("sandbox", "nosniff")
# Headers that Chromium sends for a page of another origin (recorded), and for a page on another
# port of this host.
PAGES = {
    "fetch no-cors": [
        ("Origin", "http://evil.example"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Mode", "no-cors"),
        ("Content-Type", "text/plain;charset=UTF-8"),
    ],
    "fetch cors": [
        ("Origin", "http://evil.example"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Mode", "cors"),
    ],
    "form": [
        ("Origin", "http://evil.example"),
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Mode", "navigate"),
        ("Content-Type", "text/plain"),
    ],
    "other port": [("Origin", "http://127.0.0.1:8888"), ("Sec-Fetch-Site", "same-site")],
    "sandboxed": [("Origin", "null"), ("Sec-Fetch-Site", "cross-site")],
    "old browser": [("Origin", "http://evil.example")],
    "image": [
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Mode", "no-cors"),
        ("Sec-Fetch-Dest", "image"),
    ],
    "link": [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate")],
    "own object": [("Origin", "http://127.0.0.1:9000"), ("Sec-Fetch-Site", "same-origin")],
}
ATTACKS = [
    ("POST", "/bkt?delete", DELETE),
    ("GET", "/bkt?list-type=2", b""),
    ("GET", "/", b""),
    ("GET", "/bkt/victim", b""),
    ("HEAD", "/bkt/victim", b""),
    ("PUT", "/bkt/victim", b"x"),
    ("DELETE", "/bkt/victim", b""),
    ("OPTIONS", "/bkt/victim", b""),
    ("POST", "/bkt/victim?uploads", b""),
    ("GET", "/bkt?cors", b""),
]


def test_requests_of_foreign_web_pages_are_refused(start, origin):
    """Requests from web pages of other origins are refused."""
    origin.put("victim", 1000)
    server = start(origin, settings={"cache.list_ttl": "1h"})
    with Client(server.port) as client:
        assert client.get("victim").status == 200
        client.list()
        mark, cells = origin.mark(), 0
        for page, headers in PAGES.items():
            for method, target, body in ATTACKS:
                reply = client.request(method, target, headers, body)
                assert reply.status == 403, (page, method, target, reply)
                assert reply.header("access-control-allow-origin") is None
                if method != "HEAD":
                    assert reply.code == "AccessDenied"
                    assert "auth.allowed_origins" in reply.element("Message")
                cells += 1
        assert not origin.requests(since=mark)
        assert server.metric("forebay_http_refused_total", reason="browser") == cells
        assert client.get("victim", headers=[("Sec-Fetch-Site", "none")]).status == 200
        assert client.get("victim", headers=[("Sec-Fetch-Site", "same-origin")]).status == 200


def test_listed_pages_are_answered_by_the_buckets_rules(start, origin):
    """Forebay answers listed web origins with the CORS rules of the bucket."""
    origin.put("victim", 1000)
    page = "https://console.example:8443"
    server = start(origin, settings={"auth.allowed_origins": page})
    with Client(server.port) as client:
        for _ in range(2):
            mark = origin.mark()
            reply = client.get(
                "victim", headers=[("Origin", page), ("Sec-Fetch-Site", "cross-site")]
            )
            assert reply.status == 200 and "detail=cors" in reply.header("cache-status")
            [entry] = origin.requests(since=mark)
            assert entry.header("origin") == page
        for other in ("https://console.example", "http://console.example:8443", "null"):
            assert client.get("victim", headers=[("Origin", other)]).status == 403


def test_verify_mode_asks_for_signatures_not_origins(start, origin, tmp_path):
    """With `verify`, signatures decide. Forebay does not check the web origin."""
    origin.put("victim", 1000)
    server = start(origin, settings=verify(keys_file(tmp_path), **{"cache.list_ttl": "1h"}))
    signer = Signer("ROOT", SECRETS["ROOT"])
    with Client(server.port) as client:
        for target in ("/bkt/victim", "/bkt?list-type=2"):
            for _ in range(2):
                mark = origin.mark()
                headers = signer.headers("GET", target, client.host)
                reply = client.request("GET", target, headers + PAGES["fetch cors"])
                assert reply.status == 200, reply
                [entry] = origin.requests(since=mark)
                assert entry.header("origin") == "http://evil.example"
        assert client.request("GET", "/bkt/victim", PAGES["fetch cors"]).status == 403


def test_an_object_with_many_headers_runs_in_no_browser(start, origin):
    """However many headers an object has, its reply still has the headers that sandbox it in a
    browser."""
    many = {f"x-amz-meta-{i}": "v" for i in range(120)}
    origin.put("page", 3000, headers={"Content-Type": "text/html", **many})
    server = start(origin)
    with Client(server.port) as client:
        reply = client.request(
            "GET", "/bkt/page", [("x-amz-expected-bucket-owner", "123456789012")]
        )
    assert reply.status == 200
    assert reply.all("content-security-policy") == [SANDBOX[0]], reply.headers
    assert reply.all("x-content-type-options") == [SANDBOX[1]], reply.headers
    assert reply.header("x-amz-meta-119") == "v" and len(reply.body) == 3000


@pytest.mark.parametrize("mode", ["open", "verify"])
def test_no_reply_runs_in_a_browser(start, origin, tmp_path, mode):
    """Every reply is sandboxed, whatever the origin sends: hits, misses, relayed replies, listings
    and errors."""
    origin.put(
        "page",
        3000,
        headers={
            "Content-Type": "text/html",
            "Content-Security-Policy": "default-src *",
            "X-Content-Type-Options": "sniff",
        },
    )
    server = start(origin, settings=verify(keys_file(tmp_path)) if mode == "verify" else {})
    signer = Signer("ROOT", SECRETS["ROOT"])
    with Client(server.port) as client:

        def ask(method, target, headers=(), body=b""):
            if mode == "verify":
                headers = signer.headers(method, target, client.host, headers, body)
            reply = client.request(method, target, headers, body)
            assert reply.all("content-security-policy") == [SANDBOX[0]], (method, target, reply)
            assert reply.all("x-content-type-options") == [SANDBOX[1]], (method, target, reply)
            return reply

        assert "miss" in ask("GET", "/bkt/page").header("cache-status")
        server.settle()
        assert "hit" in ask("GET", "/bkt/page").header("cache-status")
        assert ask("GET", "/bkt/page", [("Range", "bytes=0-9")]).status == 206
        assert ask("GET", "/bkt/page", [("If-None-Match", "*")]).status == 304
        assert ask("HEAD", "/bkt/page").status == 200
        assert ask("GET", "/bkt/page?versionId=null").status == 200
        assert ask("GET", "/bkt/page?x=1").status == 200
        assert ask("GET", "/bkt?list-type=2").status == 200
        assert ask("GET", "/bkt/absent").status == 404
        assert ask("PUT", "/bkt/page", [("Content-Type", "text/html")], b"<p>").status == 200
    with Client(server.port) as client:
        reply = client.get(
            "page",
            headers=[("Authorization", "AWS4-HMAC-SHA256 nonsense")]
            if mode == "verify"
            else [("Origin", "http://evil.example")],
        )
        assert reply.status in (400, 403)
        assert reply.header("content-security-policy") == SANDBOX[0]
    with Client(server.port) as client:  # refused by the front itself
        reply = client.get("page", headers=[("Connection", "If-Match"), ("If-Match", "x")])
        assert reply.status == 400
        assert reply.all("content-security-policy") == [SANDBOX[0]], reply.headers
        assert reply.all("x-content-type-options") == [SANDBOX[1]], reply.headers


def test_only_web_origins_can_be_listed(start, origin):
    for value in ("*", "null", "console.example", "http://a/b", "http://*.a", "://a", "http://"):
        server = start(origin, run=False, settings={"auth.allowed_origins": value})
        server.expect_failure = True
        server.spawn()
        assert server.wait_exit() == 3, value
        assert "no web origin" in server.output(), server.output()


# --- a real browser -------------------------------------------------------------------------------

PAGE = """<!doctype html><title>attack</title><body><script>
const target = "%(target)s", results = {};
async function attempt(name, what) {
  try { const reply = await what(); results[name] = "read " + (await reply.text()).slice(0, 100); }
  catch (error) { results[name] = "blocked"; }
}
function load(name, tag, attribute, url) {
  return new Promise(done => {
    const element = document.createElement(tag);
    element.onload = () => { results[name] = "loaded"; done(); };
    element.onerror = () => { results[name] = "blocked"; done(); };
    element[attribute] = url;
    document.body.append(element);
  });
}
function post() {
  return new Promise(done => {
    const frame = document.createElement("iframe");
    frame.name = "out";
    document.body.append(frame);
    const form = document.createElement("form"), field = document.createElement("input");
    form.method = "POST"; form.enctype = "text/plain"; form.target = "out";
    form.action = target + "/bkt?delete";
    field.name = "<Delete xmlns";
    field.value = "'http://s3.amazonaws.com/doc/2006-03-01/'><Object><Key>\
victim</Key></Object></Delete>";
    form.append(field); document.body.append(form);
    frame.onload = () => { results.form = "sent"; done(); };
    form.submit();
  });
}
(async () => {
  const body = "<Delete><Object><Key>victim</Key></Object></Delete>";
  await attempt("no-cors delete", () => fetch(target + "/bkt?delete",
                                              {method: "POST", mode: "no-cors", body}));
  await attempt("cors delete", () => fetch(target + "/bkt?delete", {method: "POST", body}));
  await attempt("listing", () => fetch(target + "/bkt?list-type=2"));
  await attempt("object", () => fetch(target + "/bkt/victim"));
  await attempt("put", () => fetch(target + "/bkt/victim", {method: "PUT", body: "x"}));
  await attempt("remove", () => fetch(target + "/bkt/victim", {method: "DELETE"}));
  await load("image", "img", "src", target + "/bkt/image.svg");
  await load("script", "script", "src", target + "/bkt/script.js");
  await load("frame", "iframe", "src", target + "/bkt/page.html");
  await post();
  await fetch("/report", {method: "POST", body: JSON.stringify(results)});
})();
</script>"""
# The listener's own URL is opened, so a script in it would have the origin of the API.
OBJECT = """<!doctype html><body>untouched<script>
document.body.textContent = "script ran";
fetch("/bkt?delete", {method: "POST", body:
      "<Delete><Object><Key>victim</Key></Object></Delete>"});
</script>"""


class Attacker:
    """Serves one page on a port of its own, and waits for the page's report."""

    def __init__(self, page):
        attacker = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer(page.encode() if self.path == "/" else b"", "text/html")

            def do_POST(self):
                attacker.report = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.answer(b"", "text/plain")
                attacker.reported.set()

            def answer(self, body, kind):
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.reported, self.report = threading.Event(), None
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def browser(tmp_path):
    """browser(url, *flags) runs a Chromium that reaches nothing but this machine."""
    path = shutil.which("chromium")
    if path is None:
        not_run("no chromium on PATH (Debian package chromium)")
    running = []

    def run(url, *flags):
        profile = tmp_path / f"profile{len(running)}"
        process = subprocess.Popen(
            [
                path,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--disable-default-apps",
                "--disable-dev-shm-usage",
                f"--user-data-dir={profile}",
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
                *flags,
                url,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
            env={**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config")},
        )
        running.append(process)
        return process

    yield run
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait(60)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_page_in_chromium_gets_nothing(start, origin, browser, host):
    """A page in Chromium reads nothing, from another site or from another port of the same host.

    The target is 127.0.0.1. HOST localhost is another site, HOST 127.0.0.1 another port of the same
    one.
    """
    origin.added_headers = [
        ("Access-Control-Allow-Origin", "*"),
        ("Access-Control-Allow-Methods", "*"),
    ]
    origin.put("victim", 1000)
    origin.put(
        "image.svg",
        0,
        body=b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        headers={"Content-Type": "image/svg+xml"},
    )
    origin.put(
        "script.js", 0, body=b"window.leaked = 1", headers={"Content-Type": "text/javascript"}
    )
    origin.put("page.html", 0, body=OBJECT.encode(), headers={"Content-Type": "text/html"})
    server = start(origin, settings={"cache.list_ttl": "1h"})
    attacker = Attacker(PAGE % {"target": f"http://127.0.0.1:{server.port}"})
    try:
        browser(f"http://{host}:{attacker.port}/", "--remote-debugging-port=0")
        assert attacker.reported.wait(120), "the page has not reported"
    finally:
        attacker.close()
    assert not origin.requests(), origin.requests()
    assert origin.version("victim").number == 1
    report = attacker.report
    assert report.pop("no-cors delete") == "read ", (
        report
    )  # sent, and answered 403 where the page cannot see it
    assert report.pop("form") == "sent", report
    assert report.pop("frame") == "loaded", report  # it loads the refusal
    assert set(report.values()) == {"blocked"}, report
    assert server.metric("forebay_http_refused_total", reason="browser") >= 9


def test_an_object_in_chromium_runs_no_script(start, origin, browser):
    """An object that the user opens in Chromium runs no script, whether it is cached or relayed."""
    origin.put("victim", 1000)
    origin.put("page.html", 0, body=OBJECT.encode(), headers={"Content-Type": "text/html"})
    server = start(origin)
    for query in ("", "", "?versionId=null"):
        mark = origin.mark()
        process = browser(
            f"http://127.0.0.1:{server.port}/bkt/page.html{query}", "--dump-dom", "--timeout=5000"
        )
        out, _ = process.communicate(timeout=120)
        assert "untouched" in out, out
        assert not origin.requests(since=mark, method="POST"), query
        server.settle()
    assert origin.version("victim").number == 1


# --- preflights -----------------------------------------------------------------------------------

ASK = [
    ("Origin", "https://console.example"),
    ("Access-Control-Request-Method", "PUT"),
    ("Access-Control-Request-Headers", "content-type"),
]
RULES = [
    ("Access-Control-Allow-Origin", "https://console.example"),
    ("Access-Control-Allow-Methods", "GET, PUT"),
    ("Access-Control-Max-Age", "3000"),
    ("Vary", "Origin, Access-Control-Request-Method"),
]


def answered(origin, status, headers=(), body=b""):
    """Returns the origin's answer to the next OPTIONS."""
    lines = [f"HTTP/1.1 {status} Whatever"] + [f"{n}: {v}" for n, v in headers]
    lines += [f"Content-Length: {len(body)}", "Server: scripted", "x-amz-secret: canary"]
    origin.fault(None, "raw", ("\r\n".join(lines) + "\r\n\r\n").encode() + body, method="OPTIONS")


@pytest.mark.parametrize("mode", ["open", "verify"])
def test_preflights_are_answered_by_the_bucket(start, origin, tmp_path, mode):
    """The bucket's own CORS rules answer a preflight."""
    origin.put("victim", 1000)
    settings = (
        verify(keys_file(tmp_path))
        if mode == "verify"
        else {"auth.allowed_origins": "https://console.example"}
    )
    server = start(origin, settings=settings)
    signer = Signer("ROOT", SECRETS["ROOT"])
    with Client(server.port) as client:

        def read():
            headers = signer.headers("GET", "/bkt/victim", client.host) if mode == "verify" else []
            return client.request("GET", "/bkt/victim", headers)

        assert read().status == 200
        server.settle()
        link = signer.presign("PUT", "/bkt/victim", client.host)
        for target in ("/bkt/victim", link, "/bkt?list-type=2", "/bkt/victim?acl"):
            for _ in range(2):
                mark = origin.mark()
                answered(origin, 200, RULES)
                reply = client.request(
                    "OPTIONS", target, ASK + [("Cookie", "a"), ("x-amz-acl", "b")]
                )
                assert reply.status == 200 and not reply.body, reply
                for name, value in RULES:
                    assert reply.header(name) == value
                assert reply.header("x-amz-secret") is None
                [entry] = origin.requests(since=mark)
                assert (entry.method, entry.target) == ("OPTIONS", target.split("?")[0])
                assert {n for n, _ in entry.headers} <= {
                    "host",
                    "origin",
                    "access-control-request-method",
                    "accept-encoding",
                    "via",
                    "access-control-request-headers",
                    "content-length",
                }, entry.headers
                origin.clear_faults()
        for status, body in ((403, b"<Error><Code>x</Code></Error>"), (404, b""), (200, b"secret")):
            answered(origin, status, RULES, body)
            reply = client.request("OPTIONS", "/bkt/victim", ASK)
            assert (reply.status, reply.code) == (403, "AccessDenied"), reply
            assert reply.header("access-control-allow-origin") is None
            assert b"secret" not in bytes(reply.body)
            origin.clear_faults()
        assert "hit" in read().header("cache-status")
        # A request that is not a preflight needs a signature or a listed web origin.
        mark = origin.mark()
        for headers in (
            ASK[1:],
            ASK[:1],
            ASK + [ASK[0]],
            ASK + [("Authorization", "x")],
            [("Origin", "null")] + ASK[1:],
        ):
            reply = client.request("OPTIONS", "/bkt/victim", headers)
            if mode == "verify" and headers[0][1] != "null":
                assert reply.status in (400, 403), (headers, reply)
                assert not origin.requests(since=mark), headers
            elif headers[0][1] == "null" and mode == "open":
                assert reply.status == 403 and reply.code == "AccessDenied"
            mark = origin.mark()


def test_preflights_are_bounded(start, origin, tmp_path):
    """At most 16 preflights are in flight. A further one gets 503, and is counted."""
    server = start(origin, settings=verify(keys_file(tmp_path), workers=1))
    clients = [server.connection() for _ in range(17)]
    ask = request_bytes("OPTIONS", "/bkt/k", f"127.0.0.1:{server.port}", ASK)
    with origin.hold(None, method="OPTIONS"):
        for client in clients[:16]:
            client.send(ask)
        origin.wait_for(16, method="OPTIONS")
        clients[16].send(ask)
        assert clients[16].read_reply("OPTIONS").status == 503
    assert server.metric("forebay_limit_reached_total", limit="preflights") == 1
    for client in clients[:16]:
        assert client.read_reply("OPTIONS").status == 403
        client.close()
    clients[16].send(ask)
    assert clients[16].read_reply("OPTIONS").status == 403
    clients[16].close()

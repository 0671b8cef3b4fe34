# SPDX-License-Identifier: Apache-2.0
"""https origins behind an HTTP proxy. The proxy alone knows the way to the origin: the endpoint's
port is one where nobody listens."""

import base64
import contextlib
import re
import socket
import threading

import pytest
from client import judge
from forebay import KEYS, run_forebay
from origin import Origin
from ports import free_ports
from test_origin_trouble import certificate, events  # noqa: F401 (a fixture)

USER = "us er:pass@word-canary-5c1"
ENDPOINT = "https://localhost:1"


class Proxy:
    """An HTTP proxy that knows CONNECT only. It leads every name to PORT."""

    def __init__(self, port, user=None, refusal=None):
        self.target, self.user, self.refusal = port, user, refusal
        self.asked = []  # the request lines
        self.sockets = []
        (own_port,) = free_ports(1)  # it stays closed after close()
        self.listener = socket.create_server(("127.0.0.1", own_port))
        self.url = f"http://127.0.0.1:{own_port}"
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # ends accept(), which keeps it open
        self.listener.close()
        for sock in self.sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client = self.listener.accept()[0]
                self.sockets.append(client)
                threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with contextlib.suppress(OSError), client:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += client.recv(1)
            lines = head.decode().split("\r\n")
            self.asked.append(lines[0])
            keys = (
                "Proxy-Authorization: Basic "
                + base64.b64encode((self.user or "").encode()).decode()
            )
            if self.refusal or (self.user and keys not in lines):
                status = self.refusal or "407 Proxy Authentication Required"
                client.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
                return
            with socket.create_connection(("127.0.0.1", self.target)) as server:
                self.sockets.append(server)
                client.sendall(b"HTTP/1.1 200 Connection established\r\nVia: proxy\r\n\r\n")
                back = threading.Thread(target=self.copy, args=(server, client), daemon=True)
                back.start()
                self.copy(client, server)
                back.join()

    @staticmethod
    def copy(source, sink):
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                sink.sendall(piece)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def secret(certificate):  # noqa: F811 (the fixture)
    with Origin(credentials=KEYS, tls=certificate) as origin:
        yield origin


def settings_of(proxy, secret, **more):
    return {
        "origin.proxy": proxy,
        "origin.ca_file": secret.tls[0],
        "origin.region": "us-east-1",
        "origin.retries": 0,
        **more,
    }


@pytest.fixture
def user_file(tmp_path):
    file = tmp_path / "proxy-user"
    file.write_text(USER + "\n")
    file.chmod(0o600)
    return str(file)


def test_https_origins_are_reached_through_the_proxy(start, secret, user_file, engine):
    """Reads, listings and uploads go through the proxy, with its user and password, over few
    tunnels. Bytes are right, and no log or page shows the password."""
    secret.put("k", 3_000_000)
    with Proxy(secret.port, user=USER) as proxy:
        settings = settings_of(proxy.url, secret, **{"origin.proxy_auth_file": user_file})
        server = start(ENDPOINT, engine=engine, settings={**settings, "origin.probe": "true"})
        with server.client() as client:
            for _ in range(2):
                judge(client.get("k"), secret, "k", 0, 3_000_000)
            assert client.request("GET", "/bkt?list-type=2").status == 200
            assert client.request("PUT", "/bkt/up", body=b"x" * 100_000).status == 200
        assert secret.bytes_of("up") == b"x" * 100_000
        assert set(proxy.asked) == {"CONNECT localhost:1 HTTP/1.1"}, proxy.asked
        assert len(proxy.asked) <= 8, "tunnels are used again"
        server.wait_stderr(f"proxy: {proxy.url}")
        config = server.admin("/api/v1/config")
        assert b"canary" not in bytes(config.body) and proxy.url.encode() in bytes(config.body)
        assert "canary" not in server.output()


CASES = {
    "down": "its proxy cannot be reached",
    "user": "its proxy refuses the user and password, or wants some",
    "denied": "its proxy refuses to connect to it",
}


@pytest.mark.parametrize("case", CASES)
def test_a_proxy_that_fails_is_named(start, secret, case):
    """The client gets ServiceUnavailable. Its message, the log and /readyz name the proxy, and not
    the origin, as what fails."""
    refusal = "403 Forbidden" if case == "denied" else None
    with Proxy(secret.port, user=USER if case == "user" else None, refusal=refusal) as proxy:
        if case == "down":
            proxy.close()
        server = start(ENDPOINT, settings=settings_of(proxy.url, secret))
        with server.client() as client:
            for reply in (client.get("k"), client.request("PUT", "/bkt/k", body=b"x")):
                assert (reply.status, reply.code) == (503, "ServiceUnavailable"), reply
                assert CASES[case] in reply.element("Message"), reply
        (event,) = events(server, "origin_unreachable")
        assert event["text"] == CASES[case] and "proxy" in event["remedy"], event
        assert CASES[case].encode() in server.admin("/readyz").body
    assert not secret.requests()


@pytest.mark.parametrize("case", ["good", "down", "denied"])
def test_the_doctor_goes_through_the_proxy(secret, tmp_path, case):
    """`forebay doctor` takes the way that the server takes, and blames the proxy if it fails."""
    secret.put("k", 1000)
    with Proxy(secret.port, refusal="403 Forbidden" if case == "denied" else None) as proxy:
        if case == "down":
            proxy.close()
        settings = {**settings_of(proxy.url, secret), "cache.dir": tmp_path / "cache"}
        words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        env = dict(zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), *KEYS.items()))
        got = run_forebay(
            "doctor", "bkt", "--timeout=5", "--origin.endpoint", ENDPOINT, *words, env=env
        )
        (line,) = [line for line in got.stdout.splitlines() if re.match(r"\w+ +origin +", line)]
        assert line.startswith("green" if case == "good" else "red"), got.stdout
        assert ("check origin.proxy" in got.stdout) == (case != "good"), got.stdout
        assert ("LIST, HEAD and ranged GET work" in got.stdout) == (case == "good"), got.stdout


def test_http_origins_are_asked_directly(start, origin, secret):
    """A bucket with an http endpoint does not go through the proxy."""
    origin.put("k", 1000)
    secret.put("k", 2000)
    with Proxy(secret.port) as proxy:
        buckets = [{"name": "near", "origin": "s3://bkt", "endpoint": origin.endpoint}]
        server = start(ENDPOINT, settings=settings_of(proxy.url, secret), file={"buckets": buckets})
        with server.client() as client:
            judge(client.get("k", bucket="near"), origin, "k")
            assert not proxy.asked
            judge(client.get("k"), secret, "k")
            assert proxy.asked


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
def test_proxies_of_the_environment_are_ignored_and_named(start, secret, variable):
    """Forebay asks the origin directly and says once which variable it ignores, without its
    value."""
    secret.put("k", 1000)
    with Proxy(secret.port) as proxy:
        server = start(
            secret.endpoint.replace("127.0.0.1", "localhost"),
            settings={"origin.ca_file": secret.tls[0], "origin.region": "us-east-1"},
            env={variable: proxy.url.replace("//", "//user:canary-77@")},
        )
        with server.client() as client:
            judge(client.get("k"), secret, "k")
        (event,) = events(server, "proxy_ignored")
        assert event["variable"] == variable and "origin.proxy" in event["remedy"], event
        assert not proxy.asked and "canary" not in server.output()


REFUSED = {
    "http://user:canary-9@proxy:3128": "belong into the file of origin.proxy_auth_file",
    "socks5://proxy:1080": "origin.proxy is no http://HOST:PORT",
    "http://": "origin.proxy is no http://HOST:PORT",
    "http://proxy": "origin.proxy is no http://HOST:PORT",
    "http://proxy:3128:80": "origin.proxy is no http://HOST:PORT",
    "http://proxy:": "origin.proxy is no http://HOST:PORT",
    "http://proxy:99999": "origin.proxy is no http://HOST:PORT",
    "http://proxy:3128/path": "origin.proxy is no http://HOST:PORT",
}


@pytest.mark.parametrize("value", REFUSED)
def test_a_proxy_that_cannot_be_meant_is_refused(start, value):
    told = refused(start, ENDPOINT, {"origin.proxy": value})
    assert REFUSED[value] in told and "canary" not in told, told


def test_a_proxy_without_an_https_origin_is_refused(start, tmp_path):
    """So are a password without a proxy, and a file that does not hold USER:PASSWORD."""
    proxy = {"origin.proxy": "http://proxy:3128"}
    assert "no origin is https" in refused(start, "http://127.0.0.1:1", proxy)
    file = tmp_path / "user"
    file.write_text("canary\n")
    file.chmod(0o600)
    auth = {"origin.proxy_auth_file": str(file)}
    assert "needs origin.proxy" in refused(start, ENDPOINT, auth)
    told = refused(start, ENDPOINT, {**proxy, **auth})
    assert "must hold one line USER:PASSWORD" in told and "canary" not in told, told


def refused(start, endpoint, settings):
    server = start(endpoint, run=False, settings=settings)
    server.expect_failure = True
    with contextlib.suppress(AssertionError):
        server.start()
    return server.output()

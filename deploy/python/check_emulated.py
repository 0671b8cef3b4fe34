# SPDX-License-Identifier: Apache-2.0
"""check_emulated.py WHEEL: checks the wheel of another processor, whose program qemu's user mode
runs here. pip unpacks the wheel. The program prints its version, checks a configuration, and
serves: curl reads an object twice through it, from an https origin of this script.

qemu's user mode has no io_uring, so disk threads do its work. The check says nothing of speed, and
nothing of these, which qemu cannot run:
- `forebay run` and `forebay upgrade`: qemu does not start the program again for them
- a `dir:` origin: no openat2
- `python -m forebay`: needs that processor's Python
- pages larger than this machine's: a mapping of a growing file ends early
"""

import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BODY = os.urandom(8 << 20)
KEYS = {"AWS_ACCESS_KEY_ID": "check", "AWS_SECRET_ACCESS_KEY": "check-secret"}


class Origin(BaseHTTPRequestHandler):
    """One object, whatever its name."""

    protocol_version = "HTTP/1.1"
    gets = 0

    def do_GET(self):
        Origin.gets += self.command == "GET"
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first = int(asked[1]) if asked else 0
        last = min(int(asked[2] or len(BODY)), len(BODY) - 1) if asked else len(BODY) - 1
        self.send_response(206 if asked else 200)
        self.send_header("ETag", '"check"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(last - first + 1))
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(BODY)}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(BODY[first : last + 1])

    do_HEAD = do_GET

    def log_message(self, *words):
        pass


def origin(folder):
    """Starts the origin. Returns its port and the file of its certificate."""
    pair = (folder / "cert.pem", folder / "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=x"]
        + ["-addext", "subjectAltName=IP:127.0.0.1", "-out", pair[0], "-keyout", pair[1]],
        check=True,
        capture_output=True,
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), Origin)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*pair)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port, pair[0]


def read(url, folder):
    """Returns the value of Cache-Status."""
    head = subprocess.run(
        ["curl", "-sSf", "-D", "-", "-o", folder / "copy", url],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    assert (folder / "copy").read_bytes() == BODY
    return re.search(r"(?im)^cache-status: (.*?)\r?$", head)[1]


def check(wheel, folder):
    platform = wheel.stem.split("-")[-1]
    machine = re.fullmatch(r"manylinux_\d+_\d+_(\w+)", platform)[1]
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    subprocess.run(
        [folder / "venv/bin/pip", "install", "-q", "--no-index", "--only-binary=:all:"]
        + ["--platform", platform, "--target", folder / "there", wheel],
        check=True,
    )
    # The C library is that of the cross compiler's package.
    program = [f"qemu-{machine}-static", "-L", f"/usr/{machine}-linux-gnu"]
    program += [folder / "there/bin/forebay"]
    subprocess.run([*program, "version"], check=True)

    port, authority = origin(folder)
    with socket.create_server(("127.0.0.1", 0)) as a, socket.create_server(("127.0.0.1", 0)) as b:
        listen, admin = (f"127.0.0.1:{held.getsockname()[1]}" for held in (a, b))
    settings = ["--origin.endpoint", f"https://127.0.0.1:{port}", "--origin.ca_file", authority]
    settings += ["--origin.region", "us-east-1", "--cache.dir", folder / "cache"]
    settings += ["--cache.size", "1GiB", "--listen", listen, "--admin.listen", admin]
    subprocess.run([*program, "check", *settings], check=True)
    serve = [*program, "serve", *settings, "--access_log.path", "off"]
    server = subprocess.Popen(serve, env={**os.environ, **KEYS})
    try:
        while subprocess.run(
            [*program, "check", "--live", "--admin", f"http://{admin}"]
        ).returncode:
            assert server.poll() is None, f"serve: exit {server.returncode}"
            time.sleep(0.1)
        cold, gets = read(f"http://{listen}/bkt/obj", folder), Origin.gets
        warm = read(f"http://{listen}/bkt/obj", folder)
        server.terminate()
        assert server.wait(60) == 0
    finally:
        server.kill()
    assert "fwd=uri-miss" in cold and Origin.gets == gets, (cold, warm, gets, Origin.gets)
    print(f"check: {machine} by qemu: version, check, serve, two reads: {cold}, then {warm}")


with tempfile.TemporaryDirectory() as made:
    check(Path(sys.argv[1]).resolve(), Path(made))

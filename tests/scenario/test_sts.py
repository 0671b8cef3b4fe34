# SPDX-License-Identifier: Apache-2.0
"""A client with one endpoint for all services can still assume its role. Forebay relays that one
call to STS, unsigned and unchanged, and no other call."""

import http.server
import threading
import urllib.parse

import pytest

from client import Client
from test_auth import keys_file, signer_of, verify

TOKEN = "web-identity-token-canary-4411"
CALL = {
    "Action": "AssumeRoleWithWebIdentity",
    "Version": "2011-06-15",
    "RoleSessionName": "session",
    "RoleArn": "arn:aws:iam::123456789012:role/r",
    "WebIdentityToken": TOKEN,
}
ANSWER = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>ASIAX</AccessKeyId><SecretAccessKey>s</SecretAccessKey>
<SessionToken>t</SessionToken><Expiration>2040-01-01T00:00:00Z</Expiration></Credentials>
</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>""".encode()
FORM = [("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")]


@pytest.fixture
def sts():
    seen = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((self.path, list(self.headers.items()), body))
            status = 400 if b"expired" in body else 200
            answer = (
                b"<ErrorResponse><Error><Code>ExpiredTokenException</Code></Error></ErrorResponse>"
                if status == 400
                else ANSWER
            )
            self.send_response(status)
            self.send_header("Content-Type", "text/xml")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    server.seen = seen
    yield server
    server.shutdown()
    server.server_close()
    thread.join(10)


def serve(start, origin, sts, settings=None):
    return start(
        origin,
        settings={"log.level": "debug", **(settings or {})},
        env={"AWS_ENDPOINT_URL_STS": f"http://127.0.0.1:{sts.server_address[1]}"},
    )


def call(**changes):
    return urllib.parse.urlencode({**CALL, **changes}).encode()


@pytest.mark.parametrize("mode", ["open", "verify"])
def test_the_sts_call_is_relayed(start, origin, sts, tmp_path, mode):
    server = serve(start, origin, sts, verify(keys_file(tmp_path)) if mode == "verify" else None)
    client = Client(server.port)
    for body, status in ((call(), 200), (call(WebIdentityToken="expired"), 400)):
        reply = client.request("POST", "/", FORM, body)
        assert reply.status == status and reply.header("content-type") == "text/xml", reply
        assert status != 200 or bytes(reply.body) == ANSWER
        path, headers, came = sts.seen[-1]
        assert path == "/" and came == body
        names = [n.lower() for n, _ in headers]
        assert "authorization" not in names and not any(n.startswith("x-amz") for n in names), (
            headers
        )
        assert dict((n.lower(), v) for n, v in headers)["content-type"] == FORM[0][1]
    count = len(sts.seen)
    assert not origin.requests()
    for what, method, target, headers, body in (
        ("another action", "POST", "/", FORM, call(Action="AssumeRole")),
        ("two actions", "POST", "/", FORM, call() + b"&Action=GetCallerIdentity"),
        ("no action", "POST", "/", FORM, b"Version=2011-06-15"),
        ("no form", "POST", "/", [], call()),
        ("a query", "POST", "/?x=1", FORM, call()),
        ("too large", "POST", "/", FORM, call() + b"&x=" + b"y" * 70000),
        (
            "signed",
            "POST",
            "/",
            signer_of("ALICE").headers("POST", "/", client.host, FORM, call()),
            call(),
        ),
        ("no body", "POST", "/", FORM, b""),
    ):
        reply = client.request(method, target, headers, body)
        assert reply.status in (400, 403, 501), (what, reply)
        if what.endswith(("action", "actions")):
            assert "AWS_ENDPOINT_URL_S3" in reply.element("Message"), (what, reply)
    assert len(sts.seen) == count and not origin.requests()
    server.stop()
    assert TOKEN not in "\n".join(server.stderr + server.stdout)


def test_the_sts_relay_can_be_switched_off(start, origin, sts):
    server = serve(start, origin, sts, {"sts.relay": "off"})
    reply = Client(server.port).request("POST", "/", FORM, call())
    assert reply.status == 501 and "AWS_ENDPOINT_URL_S3" in reply.element("Message"), reply
    assert not sts.seen


def test_an_sts_that_does_not_answer(start, origin, sts):
    """If STS does not answer, the client gets ServiceUnavailable, which every client retries."""
    server = serve(start, origin, sts)
    sts.shutdown()
    sts.server_close()
    reply = Client(server.port).request("POST", "/", FORM, call())
    assert reply.status == 503 and reply.code == "ServiceUnavailable", reply


def test_botocore_assumes_its_role(start, origin, sts):
    boto3 = pytest.importorskip("boto3")
    server = serve(start, origin, sts)
    client = boto3.client("sts", endpoint_url=server.endpoint, region_name="us-east-1")
    answer = client.assume_role_with_web_identity(
        RoleArn=CALL["RoleArn"], RoleSessionName="session", WebIdentityToken=TOKEN
    )
    assert answer["Credentials"]["AccessKeyId"] == "ASIAX"

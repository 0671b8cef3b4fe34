# SPDX-License-Identifier: Apache-2.0
"""Uploads with Expect: 100-continue. The interim answer comes at once, a refusal arrives whole, and
the next upload works."""

import hashlib
import socket
import time

import pytest

from client import Connection, request_bytes
from test_auth import Caller, keys_file, signer_of, verify

EXPECT = ("Expect", "100-continue")


def put_head(server, target, size, headers=(), signer=None, body=b""):
    host = f"127.0.0.1:{server.port}"
    headers = list(headers) + [EXPECT, ("Content-Length", str(size))]
    if signer:
        headers = signer.headers("PUT", target, host, headers, body)
    return request_bytes("PUT", target, host, headers)


def test_small_uploads_wait_for_nothing(forebay, origin, figure):
    """For 20 uploads of 5 bytes on one connection, each head alone brings 100 Continue, and each
    body its answer."""
    began = time.monotonic()
    with forebay.connection() as connection:
        for i in range(20):
            body = b"%05d" % i
            connection.send(put_head(forebay, f"/bkt/small{i}", 5))
            interim = connection.read_reply("PUT", interim=True)
            assert interim.status == 100 and interim.reason == "Continue", interim
            connection.send(body)
            reply = connection.read_reply("PUT")
            assert reply.status == 200 and not reply.closes, reply
            assert reply.etag == f'"{hashlib.md5(body).hexdigest()}"'
            assert origin.bytes_of(f"small{i}") == body
        connection.send(
            put_head(forebay, "/bkt/empty", 0)
        )  # botocore misreads the reply without it
        assert connection.read_reply("PUT", interim=True).status == 100
        assert connection.read_reply("PUT").status == 200
    figure(f"20 uploads of 5 bytes that ask first: {1000 * (time.monotonic() - began):.0f} ms")


def test_small_uploads_of_botocore(forebay, origin, figure):
    """An SDK that waits up to a second for the interim answer never has to."""
    boto3 = pytest.importorskip("boto3")
    config = pytest.importorskip("botocore.config").Config(
        s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}
    )
    times = {}
    for where, endpoint in (("direct", origin.endpoint), ("through", forebay.endpoint)):
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            config=config,
            aws_access_key_id="origin-key",
            aws_secret_access_key="origin-secret-canary-7f3a",
        )
        client.put_object(Bucket="bkt", Key="first", Body=b"first")
        began = time.monotonic()
        for i in range(20):
            client.put_object(Bucket="bkt", Key=f"{where}{i}", Body=b"12345")
        times[where] = time.monotonic() - began
        assert origin.bytes_of(f"{where}19") == b"12345"
    figure(
        "20 uploads by botocore: " + ", ".join(f"{1000 * t:.0f} ms {w}" for w, t in times.items())
    )
    # A lost interim answer costs each of them a whole second.
    assert times["through"] < times["direct"] + 10, times


@pytest.mark.parametrize("size", [5, 65536, 8 << 20])
@pytest.mark.parametrize("eager", [False, True])
def test_refused_uploads_close_cleanly(start, origin, tmp_path, size, eager):
    """An upload refused by its head gets no interim answer, the whole final one, and then the end.
    The next upload works."""
    server = start(origin, settings=verify(keys_file(tmp_path)))
    body, alice = b"x" * size, signer_of("ALICE")
    for target, signer, status in (("/bkt/bob/x", alice, 403), ("/bkt/alice/x", None, 403)):
        mark = origin.mark()
        with Connection(server.port) as connection:
            connection.send(put_head(server, target, size, signer=signer, body=body))
            if eager:
                send_what_goes(connection, body)
            reply = connection.read_reply("PUT")
            assert reply.status == status and reply.code == "AccessDenied" and reply.closes, reply
            assert connection.at_end()
        assert not origin.requests(since=mark)
    caller = Caller(server, "ALICE")
    for _ in range(2):
        assert caller.ask("PUT", "/bkt/alice/x", [], body).status == 200
    assert origin.version("alice/x").size == size


@pytest.mark.parametrize("eager", [False, True])
def test_uploads_that_the_origin_refuses(forebay, origin, eager):
    """A refusal by the origin arrives whole too, and the next upload works."""
    body = b"y" * (4 << 20)
    for status, code in (
        (403, "AccessDenied"),
        (412, "PreconditionFailed"),
        (400, "EntityTooLarge"),
    ):
        origin.fault("k", "error", (status, code), method="PUT")
        with forebay.connection() as connection:
            connection.send(put_head(forebay, "/bkt/k", len(body)))
            if not eager:
                assert connection.read_reply("PUT", interim=True).status == 100
            send_what_goes(connection, body)
            reply = connection.read_reply("PUT")
            assert reply.status == status and reply.code == code, reply
        origin.clear_faults()
        with forebay.connection() as connection:
            connection.send(put_head(forebay, "/bkt/k", 4))
            assert connection.read_reply("PUT", interim=True).status == 100
            connection.send(b"good")
            assert connection.read_reply("PUT").status == 200
        assert origin.bytes_of("k") == b"good"


HALF = b"h" * 500


def put_half(connection, server, target, size=1000):
    """Sends the head of a PUT without Expect, and half of its body."""
    host = f"127.0.0.1:{server.port}"
    connection.send(request_bytes("PUT", target, host, [("Content-Length", str(size))]) + HALF)


@pytest.mark.parametrize("how", ["down", 503, 502, 403, "reset"])
def test_the_rest_of_an_answered_upload_is_discarded(forebay, origin, how):
    """If an upload is answered in the middle of its body, the other half is discarded. The
    connection goes on unless the reply announced a close."""
    if how == "down":
        origin.down()
    else:
        origin.fault("k", "early", how, times=None, method="PUT")
    for _ in range(3):
        with forebay.connection() as connection:
            put_half(connection, forebay, "/bkt/k")
            reply = connection.read_reply("PUT")
            assert reply.status >= 400, reply
            send_what_goes(
                connection, HALF + request_bytes("GET", "/", f"127.0.0.1:{forebay.port}", [])
            )
            if reply.closes:  # the origin's own answer: the rest of the body is on its way
                assert connection.at_end()
            else:
                assert connection.read_reply("GET").status
    assert forebay.process.poll() is None


def send_what_goes(connection, body):
    """Sends as much of BODY as the server takes. It may already have answered and closed its
    side."""
    try:
        connection.send(body)
    except (BrokenPipeError, ConnectionResetError, socket.timeout):
        pass

# SPDX-License-Identifier: Apache-2.0
"""Location names the endpoint and bucket as the client addressed them, not the origin's."""

import threading
import xml.etree.ElementTree as ElementTree

import pytest

from client import Client

PART = b"p" * 1000
KEYS_AND_PATHS = [("plain", "plain"), ("a b/c&<d>", "a%20b/c%26%3Cd%3E"), ("\u00e9", "%C3%A9")]


@pytest.fixture
def renamed(start, origin):
    return start(
        origin,
        file={"buckets": [{"name": "mine", "origin": "s3://bkt"}]},
        settings={"s3.domains": "s3.example"},
    )


def begin(client, path):
    reply = client.request("POST", f"{path}?uploads")
    assert reply.status == 200, reply
    upload = reply.element("UploadId")
    assert client.request("PUT", f"{path}?partNumber=1&uploadId={upload}", body=PART).status == 200
    return upload


def complete(client, path, upload):
    body = (
        b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>x</ETag></Part>"
        b"</CompleteMultipartUpload>"
    )
    return client.request("POST", f"{path}?uploadId={upload}", body=body)


def elements(reply):
    return {e.tag: e.text for e in ElementTree.fromstring(reply.body.lstrip())}


@pytest.mark.parametrize("key,path", KEYS_AND_PATHS)
@pytest.mark.parametrize("virtual", [False, True])
def test_a_completed_upload(renamed, origin, key, path, virtual):
    """A completed upload has the client's Location: with path style and virtual-host style, any
    key, and a bucket with another name at the origin."""
    host = "mine.s3.example:8080" if virtual else f"127.0.0.1:{renamed.port}"
    target = f"/{path}" if virtual else f"/mine/{path}"
    with Client(renamed.port, host=host) as client:
        reply = complete(client, target, begin(client, target))
        assert reply.status == 200, reply
        have = elements(reply)
        assert have["Location"] == f"http://{host}{target}"
        assert have["Bucket"] == "mine" and have["Key"] == key and have["ETag"].endswith('-1"')
        assert str(origin.port).encode() not in reply.body
    assert origin.bytes_of(key) == PART


@pytest.mark.parametrize("blanks", [b" \n", b" " * 100000, None])
def test_a_result_that_comes_late(renamed, origin, blanks):
    """If the result of an upload comes late, the blanks before it are relayed at once. Its Location
    is still rewritten."""
    go = threading.Event()
    with renamed.client(timeout=60) as client, renamed.connection() as raw:
        upload = begin(client, "/mine/k")
        origin.fault("k", "late_result", (blanks, go), method="POST")
        body = (
            b"<CompleteMultipartUpload><Part>"
            b"<PartNumber>1</PartNumber></Part></CompleteMultipartUpload>"
        )
        raw.send(
            b"POST /mine/k?uploadId=%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
            % (upload.encode(), len(body), body)
        )
        reply = raw.read_head()
        assert reply.status == 200
        while raw.buf.count(b" ") < len(blanks or b"") // 2:
            assert raw._fill()  # they arrive before the result
        go.set()
        reply = raw._read_chunked(reply)
        assert elements(reply)["Location"] == "http://localhost/mine/k"
        assert len(reply.body) > len(blanks or b"")
    with renamed.client() as client:
        assert bytes(client.get("k", bucket="mine").body) == PART


def test_a_new_bucket(renamed, origin):
    """The Location of CreateBucket names the bucket as S3 does."""
    with renamed.client() as client:
        reply = client.request("PUT", "/mine")
        assert reply.status == 200 and reply.all("location") == ["/mine"], reply


def test_an_early_error_is_not_touched(renamed, origin):
    """A 200 whose document is an error is relayed unchanged."""
    page = b"<Error><Code>InternalError</Code><Message>Location of it</Message></Error>"
    with renamed.client() as client:
        upload = begin(client, "/mine/k")
        origin.fault(
            "k",
            "raw",
            b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\n"
            b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(page), page),
            method="POST",
        )
        reply = complete(client, "/mine/k", upload)
        assert reply.status == 200 and reply.body == page, reply
        page = b"<CompleteMultipartUploadResult><Location>x</Location>" + b"y" * 70000
        origin.fault(
            "k",
            "raw",
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
            % (len(page), page),
            method="POST",
        )
        assert complete(client, "/mine/k", upload).body == page


def test_a_form_upload(renamed, origin):
    """A form upload gets 201 and a document with the form's key below the bucket that it was posted
    to."""
    edge = "x" * 30
    body = (
        "".join(
            f'--{edge}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
            for name, value in (
                ("key", "up/a b"),
                ("success_action_status", "201"),
                ("file", "the bytes"),
            )
        )
        + f"--{edge}--\r\n"
    )
    page = (
        b"<PostResponse><Location>http://bkt.origin.example/up%2Fa%20b</Location>"
        b"<Bucket>bkt</Bucket><Key>up/a b</Key></PostResponse>"
    )
    origin.fault(
        "",
        "raw",
        b"HTTP/1.1 201 Created\r\nLocation: http://bkt.origin.example/up\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(page), page),
        method="POST",
    )
    with renamed.client() as client:
        reply = client.request(
            "POST",
            "/mine",
            [("Content-Type", f"multipart/form-data; boundary={edge}")],
            body.encode(),
        )
    place = f"http://127.0.0.1:{renamed.port}/mine/up/a%20b"
    assert reply.status == 201 and reply.all("location") == [place], reply
    assert elements(reply) == {"Location": place, "Bucket": "mine", "Key": "up/a b"}

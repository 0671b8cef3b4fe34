# SPDX-License-Identifier: Apache-2.0
"""An error of the origin on the cached path reaches the client with its own code, message, details
and headers."""

import xml.etree.ElementTree as ElementTree

import pytest

from client import judge, request_bytes
from forebay import parallel

# status, code, message, details, headers
VERDICTS = [
    (
        404,
        "NoSuchKey",
        "It is not there & never was",
        "<Detail>&lt;a&gt;</Detail>",
        (("x-amz-delete-marker", "true"), ("x-amz-version-id", "v.123")),
    ),
    (404, "NoSuchVersion", "No such version", "<VersionId>v9</VersionId>", ()),
    (
        405,
        "MethodNotAllowed",
        "Not allowed here",
        "<Method>GET</Method><ResourceType>DeleteMarker</ResourceType>",
        (
            ("Allow", "DELETE"),
            ("x-amz-delete-marker", "true"),
            ("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT"),
        ),
    ),
    (403, "AccessDenied", "User: arn:aws:iam::1:user/x is not authorized", "", ()),
    (
        403,
        "InvalidObjectState",
        "In the archive",
        "<StorageClass>GLACIER</StorageClass><AccessTier>ARCHIVE</AccessTier>",
        (("x-amz-storage-class", "GLACIER"),),
    ),
    (400, "KMS.DisabledException", "The key is disabled", "", ()),
    (409, "OperationAborted", "Again", "", ()),
    (401, "AccessDenied", "Who are you", "", (("WWW-Authenticate", "Basic"),)),
    (500, "InternalError", "We failed", "", ()),
    (503, "SlowDown", "Please reduce", "", (("Retry-After", "7"),)),
    (501, "NotImplemented", "Never did", "", ()),
]


def elements(reply):
    return {e.tag: e.text for e in ElementTree.fromstring(reply.body)}


def check(reply, status, code, message, details, headers, key, bucket="bkt"):
    assert reply.status == status and reply.header("content-type") == "application/xml", reply
    have = elements(reply)
    assert have["Code"] == code and have["Message"] == message, have
    for element in ElementTree.fromstring(f"<a>{details}</a>"):
        assert have[element.tag] == element.text, have
    for name, value in headers:
        assert reply.all(name) == [value], (name, reply)
    # The reply has one request id and ours. Nothing in it uses the origin's names.
    assert have["RequestId"] == reply.header("x-amz-request-id")
    assert have["HostId"] == reply.header("x-amz-id-2")
    assert have["Resource"] == f"/{bucket}/{key}"
    assert b"origin" not in reply.body.replace(message.encode(), b"")


@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda v: f"{v[0]}-{v[1]}")
def test_errors_of_the_origin_reach_the_client(start, origin, verdict):
    """A GET gets the origin's error word for word. A HEAD gets its status and headers, without a
    body. Nothing of it is kept."""
    status, code, message, details, headers = verdict
    server = start(origin, settings={"origin.retries": 0})
    origin.put("k", 1000)
    argument = (status, code, message, details + "<HostId>origin-host</HostId>", headers)
    with server.client() as client:
        origin.fault("k", "error", argument, method="GET")
        check(client.get("k"), *verdict, key="k")
        line = server.access_log(wait_for=lambda e: e.get("key") == "k")[-1]
        assert (line["status"], line["error"]) == (status, code), line
        origin.fault("k", "error", argument, times=None)
        reply = client.head("k")
        assert reply.status == status and not reply.body, reply
        for name, value in headers:
            assert reply.all(name) == [value], (name, reply)
        origin.clear_faults()
        judge(client.get("k"), origin, "k")


def test_errors_use_the_clients_names(start, origin):
    """If a bucket has another name at the origin, errors name key, bucket and resource as the
    client does."""
    server = start(origin, file={"buckets": [{"name": "mine", "origin": "s3://bkt"}]})
    with server.client() as client:
        reply = client.get("gone/a b", bucket="mine")
        check(
            reply,
            404,
            "NoSuchKey",
            "The specified key does not exist.",
            "<Key>gone/a b</Key>",
            (),
            key="gone/a%20b",
            bucket="mine",
        )
        assert b"bkt" not in reply.body
        argument = (404, "NoSuchBucket", "No bucket", "<BucketName>bkt</BucketName>")
        origin.fault("x", "error", argument)
        assert elements(client.get("x", bucket="mine"))["BucketName"] == "mine"


@pytest.mark.parametrize("code", ["SignatureDoesNotMatch", "InvalidAccessKeyId"])
def test_errors_about_our_own_keys_are_hidden(start, origin, code):
    """If the origin rejects Forebay's own credentials, the client gets AccessDenied and learns
    nothing about them. The client's own signature was valid."""
    server = start(origin)
    secrets = (
        "<AWSAccessKeyId>canary</AWSAccessKeyId><StringToSign>canary</StringToSign>"
        "<CanonicalRequest>canary</CanonicalRequest>"
    )
    origin.fault("k", "error", (403, code, "Check your key", secrets), times=None)
    with server.client() as client:
        reply = client.get("k")
    assert reply.status == 403 and reply.code == "AccessDenied", reply
    assert b"canary" not in reply.body


def test_a_write_that_meets_refused_keys_gets_the_same_error_as_a_read(start, origin):
    """A body cannot be sent twice. So a write ends when Forebay has loaded its keys again and
    found the same ones. The first write, too, makes the condition."""
    server = start(origin)
    origin.fault(None, "error", (403, "InvalidAccessKeyId", "No"), times=None)
    with server.client() as client:
        reply = client.request("PUT", "/bkt/k", body=b"x" * 100)
        assert reply.status == 403 and reply.code == "AccessDenied", reply
        server.wait_condition("credentials-refused")
        assert client.get("k").status == 403


def test_a_store_that_denies_nearly_everything_makes_a_condition_until_it_ends(start, origin):
    """A role or policy that has lost its rights makes every request end with AccessDenied. The
    conditions and the log say so until the store allows reads again. A few such answers are
    normal."""
    server = start(origin)
    origin.fault(None, "error", (403, "AccessDenied", "No"), times=None)
    with server.client() as client:
        for i in range(20):
            assert client.get(f"k{i}").status == 403
            assert i > 10 or "access-denied" not in server.conditions(), i
        server.wait_condition("access-denied")
        row = server.condition_rows()["access-denied"]
        assert row["severity"] == "warning" and "with 403 AccessDenied" in row["text"], row
        assert "rights of Forebay's keys" in row["remedy"], row
        server.wait_stderr("condition_begun.*access-denied")
        origin.clear_faults()
        for i in range(20):
            assert client.get(f"gone{i}").status == 404
        server.wait_condition("access-denied", holds=False)


@pytest.mark.parametrize("size", [10000, 60000, 100000])
def test_long_errors_are_bounded(start, origin, size):
    """An error with long details keeps its code. A detail that is too long is left out as a
    whole."""
    server = start(origin)
    for i, extra in enumerate((f"<Long>{'x' * size}</Long>", "<Many>x</Many>" * (size // 14))):
        origin.fault(f"k{i}", "error", (404, "NoSuchKey", "Gone", extra))
        with server.client() as client:
            reply = client.get(f"k{i}")
            assert reply.status == 404 and reply.code == "NoSuchKey", reply
            assert len(reply.body) < 40000
            assert (size == 10000) == (b"xxxx" in reply.body or b"<Many>" in reply.body)


def test_an_answer_that_is_no_s3_error(start, origin):
    """If the answer is a web server's page, the client gets an S3 error for its status, and nothing
    of the page."""
    server = start(origin)
    page = b"<html><body>canary</body></html>"
    origin.fault(
        "k",
        "raw",
        b"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(page), page),
        times=None,
    )
    with server.client() as client:
        reply = client.get("k")
    assert reply.status == 404 and reply.code == "NoSuchKey" and b"canary" not in reply.body, reply


def test_each_key_has_its_own_error(start, origin):
    """Many clients read several failing keys at once. Each key costs one request, and each client
    gets the error of its own key."""
    server = start(origin, settings={"workers": 4})
    for k in range(8):
        origin.fault(f"k{k}", "error", (404, "NoSuchKey", f"message {k}"), times=None)

    def one(i):
        with server.client() as client:
            reply = client.get(f"k{i % 8}")
            assert elements(reply)["Message"] == f"message {i % 8}", reply
            assert elements(reply)["RequestId"] == reply.header("x-amz-request-id")
            return reply.header("x-amz-request-id")

    assert len(set(parallel(64, one))) == 64


FLOOD, DRIP = (b" " * 65536, 0), (b" ", 0.02)


@pytest.mark.parametrize("speed", [FLOOD, DRIP], ids=["flood", "drip"])
@pytest.mark.parametrize("status", [403, 404, 500])
def test_an_endless_error_body_gets_an_answer(start, origin, status, speed):
    """If an error body does not end, the client still gets an answer for its status. Forebay stops
    reading at the size that an error document may have."""
    server = start(origin, settings={"origin.retries": 0, "origin.idle_timeout": "300ms"})
    origin.put("k", 1000)
    origin.fault(None, "endless", (status, *speed), times=None)
    with server.client() as client:
        assert client.get("k").status in (status, 503)
    origin.wait_for(1, done=True)


@pytest.mark.parametrize("status", [404, 500])
@pytest.mark.parametrize("query", ["", "uploadId=u"])
def test_an_endless_error_to_a_write_ends_with_its_client(start, origin, status, query):
    """Forebay knows a write's outcome from the head. It stops reading an endless error body when
    the client has disconnected."""
    server = start(origin, settings={"origin.retries": 0, "origin.idle_timeout": "300ms"})
    origin.fault(None, "endless", (status, *FLOOD), times=None)
    with server.connection() as wire:
        method, body = ("POST", b"<CompleteMultipartUpload/>") if query else ("PUT", b"bytes")
        wire.send(request_bytes(method, f"/bkt/k?{query}", "127.0.0.1", body=body))
        assert wire.read_head().status in (status, 503)
    origin.wait_for(1, done=True)

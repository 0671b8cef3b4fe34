# SPDX-License-Identifier: Apache-2.0
"""Buckets that S3 treats in another way: requester pays, and directory buckets."""

import pytest
from client import judge

PAYER = ("x-amz-request-payer", "requester")
EXPRESS = "data--use1-az4--x-s3"


def payers(origin, **which):
    return [dict(e.headers).get(PAYER[0]) for e in origin.requests(**which)]


def test_a_bucket_that_we_pay_for_is_cached(start, origin):
    """With `requester_pays` all requests to the origin say who pays: fetches, checks, listings and
    uploads. Reads are cached, also if the client sends the header itself."""
    buckets = [{"name": "paid", "origin": "s3://bkt", "requester_pays": True}]
    server = start(origin, file={"buckets": buckets}, ahead_s=10)
    origin.put("k", 3_000_000)
    origin.put("l", 1000)
    with server.client() as client:
        judge(client.get("k", bucket="paid"), origin, "k", 0, 3_000_000)
        judge(client.get("l", bucket="paid", headers=[PAYER]), origin, "l")
        server.settle()
        mark = origin.mark()
        judge(client.get("k", bucket="paid", headers=[PAYER]), origin, "k", 0, 3_000_000)
        judge(client.get("l", bucket="paid"), origin, "l")
        assert not origin.requests(since=mark)
        server.advance(61)
        judge(client.get("l", bucket="paid"), origin, "l")
        assert client.head("k", bucket="paid", headers=[PAYER]).status == 200
        assert client.request("GET", "/paid?list-type=2").status == 200
        assert client.request("GET", "/paid?list-type=2", headers=[PAYER]).status == 200
        assert client.request("PUT", "/paid/up", body=b"x").status == 200
    seen = payers(origin)
    assert seen and all(value == "requester" for value in seen), seen


def test_other_headers_still_pass_a_paid_bucket_by(start, origin):
    """The payer's header hides no other reason to ask the origin, and another value of it is for
    the origin to judge."""
    buckets = [{"name": "paid", "origin": "s3://bkt", "requester_pays": True}]
    server = start(origin, file={"buckets": buckets})
    origin.put("k", 1000)
    customer = ("x-amz-server-side-encryption-customer-algorithm", "AES256")
    with server.client() as client:
        judge(client.get("k", bucket="paid"), origin, "k")
        for headers in ([PAYER, customer], [customer, PAYER], [(PAYER[0], "somebody")]):
            server.settle()
            mark = origin.mark()
            client.get("k", bucket="paid", headers=headers)
            assert len(origin.requests(since=mark)) == 1, headers


def test_the_clients_header_passes_other_buckets_by(start, origin):
    """Without `requester_pays` the client's header goes to the origin, which judges it, and Forebay
    adds none of its own."""
    server = start(origin)
    origin.put("k", 1000)
    with server.client() as client:
        judge(client.get("k"), origin, "k")
        server.settle()
        mark = origin.mark()
        judge(client.get("k", headers=[PAYER]), origin, "k")
        assert payers(origin, since=mark) == ["requester"]
    assert payers(origin)[0] is None


@pytest.mark.parametrize("method", ["GET", "PUT", "LIST", "SESSION"])
def test_directory_buckets_of_aws_are_refused(start, method):
    """S3 Express needs a session, another host and another signature. Forebay says so, and asks
    nobody."""
    server = start("https://s3.us-east-1.amazonaws.com", settings={"origin.retries": 0})
    target = {"LIST": "?list-type=2", "SESSION": "?session"}.get(method, "/k")
    with server.client() as client:
        body = b"x" if method == "PUT" else b""
        verb = "PUT" if method == "PUT" else "GET"
        reply = client.request(verb, f"/{EXPRESS}{target}", body=body)
        assert (reply.status, reply.code) == (501, "NotImplemented"), reply
        assert "directory buckets" in reply.element("Message"), reply


def test_directory_buckets_of_other_stores_are_plain_names(start, origin):
    origin.make_bucket(EXPRESS)
    origin.put("k", 1000, bucket=EXPRESS)
    server = start(origin)
    with server.client() as client:
        assert bytes(client.get("k", bucket=EXPRESS).body) == origin.bytes_of("k", bucket=EXPRESS)

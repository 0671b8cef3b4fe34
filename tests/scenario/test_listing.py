# SPDX-License-Identifier: Apache-2.0
"""Listings, bucket operations: paging, delimiters, encoding, limits; over s3 and over dir."""

import re
import urllib.parse

import pytest
from client import Client

KEYS = [
    "a",
    "a-b/x",
    "a/b",
    "a/c",
    "a/d/e",
    "b b",
    "b+b",
    "b%b",
    "c&<c>",
    "grüße",
    "z/1",
    "z/2",
    "z/3/4",
    "写真/1",
]


def listed(reply):
    assert reply.status == 200, reply
    text = bytes(reply.body).decode()
    plain = "<EncodingType>url</EncodingType>" not in text

    def decode(value):
        for entity, char in (
            ("&lt;", "<"),
            ("&gt;", ">"),
            ("&quot;", '"'),
            ("&#34;", '"'),
            ("&apos;", "'"),
            ("&amp;", "&"),
        ):
            value = value.replace(entity, char)
        return value if plain else urllib.parse.unquote_plus(value)

    keys = [decode(k) for k in re.findall(r"<Contents>.*?<Key>(.*?)</Key>", text, re.S)]
    prefixes = [
        decode(p) for p in re.findall(r"<CommonPrefixes>\s*<Prefix>(.*?)</Prefix>", text, re.S)
    ]
    return keys, prefixes, text


def expected(prefix="", delimiter="", after=""):
    keys, prefixes = [], []
    for key in sorted(KEYS, key=str.encode):
        if not key.startswith(prefix) or key.encode() <= after.encode():
            continue
        if delimiter and delimiter in key[len(prefix) :]:
            common = prefix + key[len(prefix) :].split(delimiter)[0] + delimiter
            if common not in prefixes:
                prefixes.append(common)
        else:
            keys.append(key)
    return keys, prefixes


def element(text, name):
    match = re.search(f"<{name}>(.*?)</{name}>", text)
    return match.group(1) if match else None


@pytest.fixture(params=["s3", "dir"])
def lister(request, start, origin, tmp_path):
    if request.param == "s3":
        for key in KEYS:
            origin.put(key, 10)
        server = start(origin)
    else:
        root = tmp_path / "tree"
        for key in KEYS:
            if key == "a":
                continue  # a name cannot be a file and a folder
            path = root / "bkt" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"0123456789")
        server = start(f"dir:{root}")
    server.kind = request.param
    with server.client() as client:
        client.kind = request.param
        yield client


def want(client, *arguments):
    keys, prefixes = expected(*arguments)
    if client.kind == "dir":
        keys = [k for k in keys if k != "a"]
    return keys, prefixes


def test_whole_listing_in_byte_order(lister):
    for query in (
        "list-type=2",
        "",
        "list-type=2&encoding-type=url",
        "encoding-type=url",
        "list-type=2&start-after=&delimiter=&prefix=",
    ):
        keys, prefixes, text = listed(lister.list(query))
        assert (keys, prefixes) == want(lister), query
        assert element(text, "IsTruncated") == "false"
        assert element(text, "Name") == "bkt"


def test_prefix_and_delimiter(lister):
    for prefix in ("", "a", "a/", "a/d", "z/", "b", "nothing", "写", "c&<"):
        for delimiter in ("", "/", "b"):
            if delimiter == "b" and lister.kind == "dir":
                continue
            for version in ("list-type=2&", ""):
                query = f"{version}prefix={urllib.parse.quote(prefix)}&delimiter={delimiter}"
                keys, prefixes, _ = listed(lister.list(query))
                assert (keys, prefixes) == want(lister, prefix, delimiter), query


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_paging(lister, size):
    for delimiter in ("", "/"):
        all_keys, all_prefixes = [], []
        token = None
        for _ in range(40):
            query = f"list-type=2&max-keys={size}&delimiter={delimiter}&encoding-type=url"
            if token:
                query += "&continuation-token=" + urllib.parse.quote(token, safe="")
            keys, prefixes, text = listed(lister.list(query))
            assert len(keys) + len(prefixes) <= size
            assert element(text, "KeyCount") == str(len(keys) + len(prefixes))
            all_keys += keys
            all_prefixes += prefixes
            token = element(text, "NextContinuationToken")
            assert (element(text, "IsTruncated") == "true") == (token is not None), text
            if token is None:
                break
        assert (all_keys, all_prefixes) == want(lister, "", delimiter)
        all_keys, all_prefixes, marker = [], [], ""
        for _ in range(40):
            keys, prefixes, text = listed(
                lister.list(
                    f"max-keys={size}&delimiter={delimiter}&marker={urllib.parse.quote(marker)}"
                )
            )
            all_keys += keys
            all_prefixes += prefixes
            if element(text, "IsTruncated") != "true":
                break
            following = element(text, "NextMarker")
            assert (following is not None) == bool(delimiter), text
            marker = (
                keys[-1]
                if following is None
                else listed(lister.list("max-keys=0"))[2]
                and following.replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")
            )
        assert (all_keys, all_prefixes) == want(lister, "", delimiter), (delimiter, size)


def test_start_after_and_limits(lister):
    keys, _, text = listed(lister.list("list-type=2&start-after=b%20b"))
    assert keys == want(lister, "", "", "b b")[0]
    keys, prefixes, text = listed(lister.list("list-type=2&max-keys=0"))
    assert (keys, prefixes, element(text, "IsTruncated")) == ([], [], "false")
    assert element(text, "MaxKeys") == "0"
    for bad in ("list-type=2&max-keys=-1", "list-type=2&max-keys=abc", "max-keys=-5"):
        reply = lister.list(bad)
        assert (reply.status, reply.code) == (400, "InvalidArgument"), (bad, reply)
        text = bytes(reply.body).decode()
        assert (
            element(text, "ArgumentName") == "max-keys"
            and element(text, "ArgumentValue") == bad.split("=")[-1]
        )


def test_bucket_operations(lister):
    reply = lister.request("HEAD", "/bkt")
    assert reply.status == 200 and reply.header("x-amz-bucket-region"), reply
    assert lister.request("HEAD", "/bkt/").status == 200
    assert lister.request("HEAD", "/nosuchbucket").status == 404
    reply = lister.list(bucket="nosuchbucket")
    assert (reply.status, reply.code) == (404, "NoSuchBucket"), reply
    reply = lister.request("GET", "/bkt?location")
    assert reply.status == 200 and b"LocationConstraint" in bytes(reply.body)
    reply = lister.request("GET", "/")
    assert reply.status == 200 and b"<Name>bkt</Name>" in bytes(reply.body), reply
    assert b"ListAllMyBucketsResult" in bytes(reply.body)


def test_listing_is_relayed_byte_for_byte(start, origin):
    """Over s3 the origin's page goes out as it came."""
    for i in range(30):
        origin.put(f"k{i:02d}", 10)
    server = start(origin)
    with server.client() as ours, Client(origin.port) as direct:
        origin.credentials = None
        for query in (
            "list-type=2",
            "list-type=2&max-keys=7",
            "prefix=k1&delimiter=2",
            "list-type=2&fetch-owner=true&encoding-type=url",
        ):
            assert bytes(ours.list(query).body) == bytes(direct.list(query).body), query

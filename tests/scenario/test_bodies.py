# SPDX-License-Identifier: Apache-2.0
"""Forebay forwards only bodies that it understood: it reads bodies that name keys strictly, or
refuses them.

The scripted origin reads XML generously, as other origins might. A body that Forebay cannot judge
must not reach it.
"""

import base64
import hashlib
import xml.etree.ElementTree as ElementTree

import pytest

from client import Client
from signer import Signer, crc32_of
from test_auth import SECRETS, keys_file, verify

NS = "http://s3.amazonaws.com/doc/2006-03-01/"
K = "<Key>victim</Key>"
OBJECT = f"<Object>{K}</Object>"

# Each names "victim" for one kind of reader, and something else, or nothing, for another.
TWO_WAYS = [
    "<Delete><Object><Key>victim<a/></Key></Object></Delete>",
    "<Delete><Object><Key><a/>victim</Key></Object></Delete>",
    "<Delete><Object><Key>x<a>y</a></Key></Object>" + OBJECT + "</Delete>",
    f"<Delete><Wrap>{OBJECT}</Wrap></Delete>",
    f"<Delete><Object><Key>own</Key></Object><Wrap>{OBJECT}</Wrap></Delete>",
    f"<Delete><Object>{OBJECT}</Object></Delete>",
    f"<Delete><Object><Key>own</Key>{OBJECT}</Object></Delete>",
    f"<Delete><Object><Key>own</Key>{K}</Object></Delete>",
    f"<Delete><Object><Key>own</Key></Object>{K}</Delete>",
    f"<Delete>{OBJECT}<Key>own</Key></Delete>",
    f"<Wrap><Delete>{OBJECT}</Delete></Wrap>",
    f"<DeleteResult>{OBJECT}</DeleteResult>",
    f"<Delete a='b'>{OBJECT}</Delete>",
    f"<Delete><Object a='b'>{K}</Object></Delete>",
    f"<Delete xmlns='urn:other'>{OBJECT}</Delete>",
    f"<Delete xmlns='{NS}'><Object xmlns=''>{K}</Object></Delete>",
    "<Delete xmlns:o='urn:o'><Object><Key>own</Key><o:Key>victim</o:Key></Object></Delete>",
    f"<o:Delete xmlns:o='{NS}'><Object>{K}</Object></o:Delete>",
    "<Delete><Object><Key>vic<!-- -->tim</Key></Object></Delete>",
    "<Delete><Object><Key>vic<?x y?>tim</Key></Object></Delete>",
    "<Delete><Object><Key><![CDATA[victim]]></Key></Object></Delete>",
    f"<Delete><Object><Key>own</Key></Object><!-- {OBJECT} --></Delete>",
    f"<!DOCTYPE Delete><Delete>{OBJECT}</Delete>",
    f"<!DOCTYPE Delete [<!ENTITY e '{OBJECT}'>]><Delete>&e;</Delete>",
    f"<?xml version='1.1'?><Delete>{OBJECT}</Delete>",
    f"<?xml version='1.0' encoding='ISO-8859-1'?><Delete>{OBJECT}</Delete>",
    f"<Delete>{OBJECT}</Delete><Delete>{OBJECT}</Delete>",
    f"<Delete>{OBJECT}</Delete>trailing",
    f"<Delete>text{OBJECT}</Delete>",
    f"<Delete>{OBJECT}<Quiet>maybe</Quiet></Delete>",
    f"<Delete>{OBJECT}<Quiet>true</Quiet><Quiet>false</Quiet></Delete>",
    f"<Delete><Object>{K}<Other>x</Other></Object></Delete>",
    "<Delete><Object><Key></Key></Object>" + OBJECT + "</Delete>",
    "<Delete/>",
    "",
]


def bodies():
    for text in TWO_WAYS:
        if text:
            yield text.encode()
    whole = f"<Delete>{OBJECT}</Delete>"
    yield whole.encode("utf-16")
    yield whole.encode("utf-16-be")
    yield whole.encode("utf-16-le")
    yield b'<?xml version="1.0" encoding="UTF-16"?>' + whole.encode()
    yield whole.encode() + b"\0"
    yield b"<Delete><Object><Key>victim\xff</Key></Object></Delete>"


@pytest.fixture(params=["open", "verify"])
def asked(request, start, origin, tmp_path):
    """Returns ask(method, target, headers, body) of a server in either mode, with every right."""
    settings = verify(keys_file(tmp_path)) if request.param == "verify" else {}
    server = start(origin, settings={**settings, "cache.ttl": "1h"})
    client = Client(server.port)
    signer = Signer("ROOT", SECRETS["ROOT"]) if settings else None

    def ask(method, target, headers=(), body=b"", **more):
        if signer:
            headers = signer.headers(method, target, client.host, headers, body, **more)
        return client.request(method, target, headers, body)

    ask.server, ask.client = server, client
    yield ask
    client.close()


def test_ambiguous_batch_deletes_are_refused(asked, origin, figure):
    """Forebay refuses a batch delete that two XML readers could read differently."""
    origin.put("victim", 1000)
    origin.put("own", 1000)
    cells = 0
    for body in bodies():
        mark = origin.mark()
        reply = asked("POST", "/bkt?delete", [("Content-MD5", md5_of(body))], body)
        assert (reply.status, reply.code) == (400, "MalformedXML"), (body, reply)
        assert not origin.requests(since=mark), body
        cells += 1
    figure(f"{cells} bodies of DeleteObjects that read two ways, refused before the origin")


def md5_of(body):
    return base64.b64encode(hashlib.md5(body).digest()).decode()


def test_batch_deletes_reach_the_origin_in_canonical_form(asked, origin):
    """The origin receives one canonical document with its own digests, whatever form the client
    used."""
    keys = ["plain", "a b", " edge ", "<&>'\"", "é😀", "tab\tlf\ncr\r", "]]>", "a/../b", "%2F+"]
    for key in keys:
        origin.put(key, 100)
        assert asked("GET", "/bkt/" + quoted(key)).status == 200
    asked.server.settle()
    texts = "".join(f"\n <Object>\n  <Key>{reference(key)}</Key>\n </Object>" for key in keys)
    body = f"<?xml version='1.0' encoding='utf-8'?>\n<Delete>{texts}<Quiet>true</Quiet></Delete>\n"
    mark = origin.mark()
    reply = asked(
        "POST",
        "/bkt?delete",
        [
            ("x-amz-checksum-crc32", crc32_of(body.encode())),
            ("x-amz-sdk-checksum-algorithm", "CRC32"),
            ("Content-MD5", md5_of(body.encode())),
        ],
        body.encode(),
    )
    assert reply.status == 200, reply
    [entry] = origin.requests(since=mark)
    root = ElementTree.fromstring(entry.body)
    assert [e.tag for e in root] == [f"{{{NS}}}Object"] * len(keys) + [f"{{{NS}}}Quiet"]
    assert [e[0].text for e in root[:-1]] == keys
    assert entry.header("content-md5") == md5_of(entry.body)
    assert entry.header("x-amz-checksum-crc32") == crc32_of(entry.body)
    assert entry.header("content-length") == str(len(entry.body))
    for key in keys:
        assert asked("GET", "/bkt/" + quoted(key)).status == 404, key


def quoted(key):
    return "".join(f"%{b:02X}" for b in key.encode())


def reference(text):
    return "".join(c if c.isalnum() else f"&#{ord(c)};" for c in text)


def test_digests_of_batch_deletes_are_verified(asked, origin):
    """Forebay compares the digests of a batch delete with the body that arrived."""
    origin.put("victim", 100)
    body = f"<Delete>{OBJECT}</Delete>".encode()
    for name, value, code in [
        ("Content-MD5", "x", "InvalidDigest"),
        ("Content-MD5", md5_of(b"other"), "BadDigest"),
        ("x-amz-checksum-crc32", crc32_of(b"other"), "BadDigest"),
    ]:
        mark = origin.mark()
        reply = asked("POST", "/bkt?delete", [(name, value)], body)
        assert (reply.status, reply.code) == (400, code), reply
        assert not origin.requests(since=mark)


def test_restores_with_an_output_location_are_refused(asked, origin):
    """A restore request cannot write its result anywhere else."""
    origin.put("cold", 100)
    select = (
        f"<RestoreRequest xmlns='{NS}'><Type>SELECT</Type><OutputLocation><S3><BucketName>other"
        "</BucketName><Prefix>p</Prefix></S3></OutputLocation></RestoreRequest>"
    ).encode()
    mark = origin.mark()
    reply = asked("POST", "/bkt/cold?restore", [], select)
    assert (reply.status, reply.code) == (400, "MalformedXML"), reply
    assert not origin.requests(since=mark)
    good = (
        b"<RestoreRequest><Days>3</Days><GlacierJobParameters><Tier>Bulk</Tier>"
        b"</GlacierJobParameters></RestoreRequest>"
    )
    assert asked("POST", "/bkt/cold?restore", [], good).status == 200
    root = ElementTree.fromstring(origin.requests(since=mark)[0].body)
    assert [(e.tag, e.text) for e in root.iter() if e.text] == [
        (f"{{{NS}}}Days", "3"),
        (f"{{{NS}}}Tier", "Bulk"),
    ]


# --- forms ----------------------------------------------------------------------------------------


def part(disposition, value, more=""):
    return (
        f"--bound\r\nContent-Disposition: form-data; {disposition}\r\n{more}\r\n{value}\r\n"
    ).encode()


def field(name, value):
    return part(f'name="{name}"', value)


FILE = part('name="file"; filename="f"', "bytes", "Content-Type: text/plain\r\n")
END = b"--bound--\r\n"
KEY = field("key", "own")
FORM_TYPE = ("Content-Type", "multipart/form-data; boundary=bound")
FORMS = [
    (FORM_TYPE, part("name*=utf-8''key", "victim") + KEY + FILE + END),
    (FORM_TYPE, part("name=\"acl\"; name*=utf-8''key", "victim") + KEY + FILE + END),
    (FORM_TYPE, part('name="acl"; name="key"', "victim") + KEY + FILE + END),
    (FORM_TYPE, part("name=key", "victim") + FILE + END),
    (
        FORM_TYPE,
        b'--bound\r\nContent-Disposition: form-data;\r\n name="key"\r\n\r\nvictim\r\n'
        + KEY
        + FILE
        + END,
    ),
    (FORM_TYPE, part('name="\\key"', "victim") + KEY + FILE + END),
    (FORM_TYPE, field("key", "victim") + KEY + FILE + END),
    (FORM_TYPE, field("KEY", "victim") + KEY + FILE + END),
    (FORM_TYPE, KEY + FILE + field("key", "victim") + END),
    (FORM_TYPE, KEY + FILE + part("name*=utf-8''key", "victim") + END),
    (FORM_TYPE, KEY + FILE + END + field("key", "victim") + END),
    (FORM_TYPE, field("key", "${filename}") + part('name="file"; filename="a/victim"', "b") + END),
    (FORM_TYPE, KEY + part('name="file"; filename="a\\"; name=\\"key"', "b") + END),
    (FORM_TYPE, field("x-amz-copy-source", "/bkt/victim") + KEY + FILE + END),
    (FORM_TYPE, field("bucket", "other") + KEY + FILE + END),
    (FORM_TYPE, b"preamble\r\n" + KEY + FILE + END),
    (
        FORM_TYPE,
        KEY
        + FILE.replace(
            b"bytes", b'x\n--bound\nContent-Disposition: form-data; name="key"\n\nvictim'
        )
        + END,
    ),
    (FORM_TYPE, KEY + FILE),
    (("Content-Type", "multipart/form-data; boundary=bound; boundary=other"), KEY + FILE + END),
    (("Content-Type", 'multipart/form-data; boundary="bo\\und"'), KEY + FILE + END),
]


def test_ambiguous_forms_are_refused(asked, origin):
    """Forebay refuses a form upload that two readers could read differently."""
    origin.put("victim", 1000)
    for kind, body in FORMS:
        mark = origin.mark()
        reply = asked("POST", "/bkt", [kind], body)
        assert (reply.status, reply.code) == (400, "InvalidArgument"), (body, reply)
        for entry in origin.requests(since=mark):  # a wrong end: started, never completed
            assert len(entry.body) < len(body), body
    reply = asked("POST", "/bkt", [FORM_TYPE, ("content-type", "text/plain")], KEY + FILE + END)
    assert reply.status in (400, 403), reply


def test_accepted_forms_are_relayed_unchanged(asked, origin):
    """Forebay forwards an accepted form unchanged."""
    for body in (
        KEY + FILE + END,
        field("acl", "private") + KEY + FILE + END[:-2],
        field("bucket", "bkt") + KEY + FILE + field("submit", "Upload") + END,
        field("key", "up/${filename}") + FILE + END,
    ):
        mark = origin.mark()
        asked("POST", "/bkt", [FORM_TYPE], body)  # the scripted origin knows no forms
        assert [e.body for e in origin.requests(since=mark)] == [body]

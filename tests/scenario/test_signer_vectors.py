# SPDX-License-Identifier: Apache-2.0
"""The signer and the verifier agree with the published SigV4 vectors and with botocore as a second
signer.

They agree in both directions, in header and query form. No request with one changed byte ever
verifies.

    FOREBAY_SIGV4_TOOL  the test binary (default: sigv4_tool beside FOREBAY_BIN, or in build/)
    FOREBAY_TEST_CACHE  where downloads are kept (default: build/cache)

The vectors come with botocore's source distribution, which is also the second signer. It is
downloaded once.

"""

import contextlib
import datetime
import fcntl
import importlib
import os
import random
import string
import subprocess
import sys
import tarfile
import time
import types
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes

import pytest

from conftest import not_run
from forebay import ROOT, scaled

BOTOCORE = "1.40.0"
EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
VECTOR_KEY, VECTOR_SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
VECTOR_TIME = 1440938160  # 20150830T123600Z


# --- the test binary ------------------------------------------------------------------------------


def tool_path():
    beside = Path(os.environ.get("FOREBAY_BIN") or ROOT / "build" / "forebay").parent / "sigv4_tool"
    return os.environ.get("FOREBAY_SIGV4_TOOL") or str(beside)


def encode(field):
    data = field if isinstance(field, bytes) else str(field).encode()
    return data.hex() or "-"


def ask(lines):
    """Returns the tool's answers to LINES. Each is a list of fields, the first of which is the
    command."""
    text = "".join(
        " ".join([line[0]] + [encode(field) for field in line[1:]]) + "\n" for line in lines
    )
    done = subprocess.run([tool_path()], input=text, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = [line.split(" ") for line in done.stdout.splitlines()]
    assert len(answers) == len(lines)
    return answers


def decode(field):
    return b"" if field == "-" else bytes.fromhex(field)


def flat(headers):
    return [part for pair in headers for part in pair]


@pytest.fixture(scope="module", autouse=True)
def tool():
    if not os.access(tool_path(), os.X_OK):
        not_run(f"no {tool_path()}: build target sigv4_tool")


# --- botocore, from its source distribution -------------------------------------------------------


@contextlib.contextmanager
def alone(cache):
    """Keeps other test processes from CACHE, which they fill and read, too."""
    with open(cache / "botocore.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def botocore_folder():
    cache = Path(os.environ.get("FOREBAY_TEST_CACHE") or ROOT / "build" / "cache")
    folder = cache / f"botocore-{BOTOCORE}"
    archive = cache / f"botocore-{BOTOCORE}.tar.gz"
    cache.mkdir(parents=True, exist_ok=True)
    with alone(cache):
        if not (folder / "botocore" / "auth.py").exists():
            if not archive.exists():
                done = subprocess.run(
                    [
                        sys.executable,
                        "-m",
                        "pip",
                        "download",
                        "-q",
                        "--no-deps",
                        "--no-binary",
                        "botocore",
                        "-d",
                        str(cache),
                        f"botocore=={BOTOCORE}",
                    ],
                    capture_output=True,
                    text=True,
                    timeout=300,
                )
                if done.returncode != 0:
                    not_run("botocore's source distribution cannot be downloaded")
            with tarfile.open(archive) as packed:
                packed.extractall(cache)
    return folder


@pytest.fixture(scope="module")
def signer(botocore_folder):
    """The auth module of that botocore, with a clock that the test sets: signer.now."""
    cache = botocore_folder.parent
    for name in [name for name in sys.modules if name.split(".")[0] == "botocore"]:
        del sys.modules[name]
    needs = cache / "botocore-needs"
    sys.path[:0] = [str(botocore_folder), str(needs)]
    with alone(cache):
        try:
            auth = importlib.import_module("botocore.auth")
        except ImportError:
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "pip",
                    "install",
                    "-q",
                    "--target",
                    str(needs),
                    "jmespath",
                    "python-dateutil",
                    "urllib3",
                ],
                capture_output=True,
                text=True,
                timeout=300,
            )
            if done.returncode != 0:
                not_run("what botocore needs cannot be installed")
            importlib.invalidate_caches()
            auth = importlib.import_module("botocore.auth")
    assert Path(auth.__file__).is_relative_to(botocore_folder)

    class Now:
        now = 0

    class Clock(datetime.datetime):
        @classmethod
        def utcnow(cls):
            return datetime.datetime.fromtimestamp(Now.now, datetime.timezone.utc).replace(
                tzinfo=None
            )

    auth.datetime = types.SimpleNamespace(
        datetime=Clock, timezone=datetime.timezone, timedelta=datetime.timedelta
    )
    Now.auth = auth
    Now.request = importlib.import_module("botocore.awsrequest").AWSRequest
    Now.credentials = importlib.import_module("botocore.credentials").Credentials
    yield Now
    sys.path.remove(str(botocore_folder))
    sys.path.remove(str(needs))
    for name in [name for name in sys.modules if name.split(".")[0] == "botocore"]:
        del sys.modules[name]


# --- published vectors ----------------------------------------------------------------------------


class Vector:
    def __init__(self, folder):
        def read(suffix):
            return next(folder.glob(f"*.{suffix}")).read_bytes()

        self.name = folder.name
        self.general_path = folder.parent.name == "normalize-path"
        head, _, self.body = read("req").replace(b"\r\n", b"\n").partition(b"\n\n")
        lines = head.split(b"\n")
        self.method, rest = lines[0].split(b" ", 1)
        target = rest.rsplit(b" HTTP/", 1)[0]
        self.path, _, self.query = target.partition(b"?")
        self.headers = []
        for line in lines[1:]:
            if line[:1] in b" \t":  # a folded value; no parser of ours would accept it
                name, value = self.headers[-1]
                self.headers[-1] = (name, value + b" " + line.strip())
            else:
                name, _, value = line.partition(b":")
                self.headers.append((name, value))
        self.canonical = read("creq").replace(b"\r\n", b"\n")
        self.string_to_sign = read("sts").replace(b"\r\n", b"\n")
        self.authorization = read("authz")

    def payload_hash(self):
        import hashlib

        return hashlib.sha256(self.body).hexdigest()


@pytest.fixture(scope="module")
def vectors(botocore_folder):
    suite = botocore_folder / "tests" / "unit" / "auth" / "aws4_testsuite"
    found = [Vector(path.parent) for path in sorted(suite.rglob("*.req"))]
    assert len(found) >= 31
    return found


def test_published_vectors_sign(vectors):
    """The signer computes the signature of every vector, in the general form (normalised, encoded
    path; all headers signed)."""
    lines = []
    for vector in vectors:
        # Where the vector signs a token, the signer adds it.
        token = next(
            (
                line.partition(b":")[2]
                for line in vector.canonical.split(b"\n")
                if line.startswith(b"x-amz-security-token:")
            ),
            b"",
        )
        headers = [(n, v) for n, v in vector.headers if n.lower() != b"x-amz-security-token"]
        lines.append(
            [
                "sign",
                VECTOR_TIME,
                VECTOR_KEY,
                VECTOR_SECRET,
                token,
                "us-east-1",
                "service",
                "1",
                vector.method,
                vector.path,
                vector.query,
                vector.payload_hash(),
                *flat(headers),
            ]
        )
    for vector, answer in zip(vectors, ask(lines)):
        assert answer[0] == "ok", (vector.name, answer)
        assert decode(answer[1]) == vector.authorization, vector.name


def test_published_vectors_canonical_request_and_string_to_sign(vectors):
    """The verifier computes the canonical request and string to sign of every vector where S3's
    path form is the same."""
    chosen = [vector for vector in vectors if not vector.general_path]
    lines = []
    for vector in chosen:
        signed = vector.canonical.split(b"\n")[-2]
        headers = list(vector.headers)
        if b"x-amz-security-token" in signed and not any(
            n.lower() == b"x-amz-security-token" for n, _ in headers
        ):
            headers.append(
                (
                    b"X-Amz-Security-Token",
                    next(
                        line.partition(b":")[2]
                        for line in vector.canonical.split(b"\n")
                        if line.startswith(b"x-amz-security-token:")
                    ),
                )
            )
        lines.append(
            [
                "explain",
                VECTOR_TIME,
                "us-east-1",
                "service",
                vector.method,
                vector.path,
                vector.query,
                vector.payload_hash(),
                signed,
                *flat(headers),
            ]
        )
    for vector, answer in zip(chosen, ask(lines)):
        assert answer[0] == "ok", (vector.name, answer)
        assert decode(answer[2]) == vector.canonical, vector.name
        assert decode(answer[1]) == vector.string_to_sign, vector.name


# --- botocore as the second signer ----------------------------------------------------------------

KEY_BYTES = (
    string.ascii_letters
    + string.digits
    + "-._~!*'();:@&=+$,/?#[]% \"<>\\^`{|}\u00e9\u4e2d\U0001f600"
)
HEADER_BYTES = string.ascii_letters + string.digits + '-._~/=;,"() '


class Request:
    """A random request, signed by botocore. `target` and `headers` are what the client sends."""

    def __init__(self, rng, signer, presigned):
        self.secret = "".join(
            rng.choices(string.ascii_letters + "+/", k=rng.choice([1, 40, 40, 80]))
        )
        self.access_key = "AK" + "".join(rng.choices(string.ascii_uppercase, k=18))
        self.token = (
            "".join(rng.choices(string.ascii_letters + "+/=", k=60)) if rng.random() < 0.2 else ""
        )
        self.region = rng.choice(["us-east-1", "eu-central-1", "auto", "ap-southeast-4"])
        self.time = rng.randrange(1_400_000_000, 1_900_000_000)
        self.method = rng.choice(["GET", "HEAD", "PUT", "DELETE", "POST"])
        self.presigned = presigned
        host = rng.choice(["127.0.0.1:9000", "localhost:9000", "bkt.localhost", "10.1.2.3:8080"])
        key = "".join(rng.choices(KEY_BYTES, k=rng.randrange(1, 40)))
        path = ("/" if host.startswith("bkt") else "/bkt/") + quote(key, safe="/~")
        query = "&".join(
            quote("".join(rng.choices(KEY_BYTES, k=rng.randrange(1, 8))), safe="-_.~")
            + "="
            + quote("".join(rng.choices(KEY_BYTES, k=rng.randrange(0, 12))), safe="-_.~")
            for _ in range(rng.choice([0, 0, 0, 1, 2, 5]))
        )
        request = signer.request(
            method=self.method, url=f"http://{host}{path}" + ("?" + query if query else "")
        )
        for name, value in self.random_headers(rng):
            request.headers.add_header(name, value)
        signer.now = self.time
        credentials = signer.credentials(self.access_key, self.secret, self.token or None)
        if presigned:
            self.expires = rng.randrange(1, 604801)
            maker = signer.auth.S3SigV4QueryAuth(
                credentials, "s3", self.region, expires=self.expires
            )
        else:
            maker = signer.auth.S3SigV4Auth(credentials, "s3", self.region)
        maker.add_auth(request)
        self.target = request.url.split(host, 1)[1]
        self.headers = [("Host", host)]
        self.headers += [(name, value) for name, value in request.headers.items()]
        if not presigned:
            self.unsigned_target = self.target
            self.authorization = request.headers["Authorization"]

    def random_headers(self, rng):
        value = lambda: "v" + "".join(rng.choices(HEADER_BYTES, k=rng.randrange(0, 30)))
        chosen = []
        if rng.random() < 0.3:
            chosen.append(("Range", f"bytes={rng.randrange(1000)}-"))
        if rng.random() < 0.3:
            chosen.append((rng.choice(["If-Match", "if-none-match"]), value()))
        if rng.random() < 0.3:
            chosen.append(("Content-Type", value()))
        for _ in range(rng.choice([0, 0, 1, 3])):
            name = "x-amz-meta-" + "".join(rng.choices(string.ascii_letters + "-", k=4))
            chosen.append((name, value()))
            if rng.random() < 0.2:
                chosen.append((name, value()))
        if rng.random() < 0.5:
            chosen.append(("User-Agent", value()))
        rng.shuffle(chosen)
        return chosen

    def verify_line(self, **changes):
        fields = {"method": self.method, "target": self.target, "headers": self.headers, **changes}
        host = next((v for n, v in fields["headers"] if n.lower() == "host"), "")
        return [
            "verify",
            self.time,
            self.secret,
            fields["method"],
            host,
            fields["target"],
            *flat(fields["headers"]),
        ]

    def sign_line(self):
        path, _, query = self.target.partition("?")
        skip = {"authorization", "x-amz-date", "x-amz-security-token"}
        headers = [(n, v) for n, v in self.headers if n.lower() not in skip]
        payload = next(v for n, v in headers if n.lower() == "x-amz-content-sha256")
        return [
            "sign",
            self.time,
            self.access_key,
            self.secret,
            self.token,
            self.region,
            "s3",
            "0",
            self.method,
            path,
            query,
            payload,
            *flat(headers),
        ]


def requests_of(signer, count, seed):
    rng = random.Random(seed)
    for index in range(count):
        yield Request(rng, signer, presigned=index % 3 == 2)


def batches(items, size=5000):
    batch = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def test_botocore_signatures_verify_and_equal_ours(signer, figure):
    count, begin = scaled(100_000), time.monotonic()
    for batch in batches(requests_of(signer, count, seed=1)):
        for request, answer in zip(batch, ask([request.verify_line() for request in batch])):
            assert answer[0] == "ok", (
                answer[0],
                request.target,
                request.headers,
                decode(answer[3]).decode(),
            )
        ours = [request for request in batch if not request.presigned]
        for request, answer in zip(ours, ask([request.sign_line() for request in ours])):
            assert answer[0] == "ok"
            assert decode(answer[1]).decode() == request.authorization, request.target
    figure(f"signatures of botocore verified: {count} in {time.monotonic() - begin:.0f} s")


# --- one changed byte -----------------------------------------------------------------------------


def query_meaning(query):
    pairs = [piece.partition("=") for piece in query.split("&") if piece]
    return sorted((unquote_to_bytes(name), unquote_to_bytes(value)) for name, _, value in pairs)


def target_meaning(target):
    path, _, query = target.partition("?")
    return unquote_to_bytes(path), query_meaning(query)


def replace_byte(rng, text, low=0):
    at = rng.randrange(low, len(text))
    other = rng.choice([c for c in string.printable[:94] if c != text[at]])
    return text[:at] + other + text[at + 1 :]


def mutations(rng, request):
    """Returns the check of a request with one signed byte changed. None if the change has no
    meaning."""
    kind = rng.choice(["method", "target", "target", "value", "name", "authorization"])
    if kind == "method":
        return request.verify_line(method=replace_byte(rng, request.method))
    if kind == "target":
        target = replace_byte(rng, request.target, low=1)
        names_access_key = (
            "X-Amz-Credential=" in target
            and target.split("X-Amz-Credential=")[1].split("%2F", 1)[1:]
            == request.target.split("X-Amz-Credential=")[1].split("%2F", 1)[1:]
            and target.split("X-Amz-Credential=")[0] == request.target.split("X-Amz-Credential=")[0]
        )
        same = target_meaning(target) == target_meaning(request.target)
        return None if same and not names_access_key else request.verify_line(target=target)
    signed = {"host", "range", "if-match", "if-none-match", "content-type"}
    if kind in ("value", "name"):
        places = [
            i
            for i, (name, value) in enumerate(request.headers)
            if (name.lower() in signed or name.lower().startswith("x-amz-")) and value
        ]
        at = rng.choice(places)
        name, value = request.headers[at]
        headers = list(request.headers)
        if kind == "value":
            changed = replace_byte(rng, value)
            if " ".join(changed.split()) == " ".join(value.split()):
                return None
            headers[at] = (name, changed)
        else:
            changed = replace_byte(rng, name)
            if changed.lower() == name.lower():
                return None
            headers[at] = (changed, value)
        return request.verify_line(headers=headers)
    if request.presigned:
        return None
    at = next(i for i, (name, _) in enumerate(request.headers) if name == "Authorization")
    value = request.headers[at][1]
    part = rng.choice([value.index("/"), value.index("SignedHeaders="), value.index("Signature=")])
    changed = replace_byte(rng, value, low=part)
    if changed.split() == value.split():
        return None
    headers = list(request.headers)
    headers[at] = ("Authorization", changed)
    return request.verify_line(headers=headers)


def test_one_changed_byte_never_verifies(signer, figure):
    rng = random.Random(7)
    count, tried, begin = scaled(100_000), 0, time.monotonic()
    for batch in batches(requests_of(signer, count // 4, seed=2)):
        lines = [
            line
            for request in batch
            for _ in range(4)
            if (line := mutations(rng, request)) is not None
        ]
        for line, answer in zip(lines, ask(lines)):
            assert answer[0] != "ok", line
        tried += len(lines)
    figure(f"requests with one byte changed refused: {tried} in {time.monotonic() - begin:.0f} s")
    assert tried > count / 2

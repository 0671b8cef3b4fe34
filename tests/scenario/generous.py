# SPDX-License-Identifier: Apache-2.0
"""A scripted origin that carries out every action a request could mean.

It obeys copy and rename sources on any write. It takes x-amz-* query parameters for headers, in any
query. It stores, deletes and unpacks where a stricter store would refuse. So it carries out
whatever a proxy in front of it passes on. It tries every reading of a source; the first one that
names something wins. With FILES it keeps objects as a file system does: all spellings of one path
are one key.
"""

import hashlib
import posixpath
import re
import time
import urllib.parse
from xml.sax.saxutils import escape

from origin import SUB_RESOURCES, Origin, S3Error, _Connection

MAY_STAND_ALONE = {
    "uploads",
    "uploadId",
    "partNumber",
    "versionId",
    "x-id",
    "select",
    "select-type",
    "restore",
}


class Generous(Origin):
    def __init__(self, files=False, **more):
        super().__init__(**more)
        self.files = files
        self.connection_class = _Generous

    def content(self, key, bucket=None):
        """The bytes of a key, or None if there is no such key."""
        with self.lock:
            have = self.buckets.get(bucket or self.bucket, {}).get(key)
        return None if have is None else self.bytes_of(key, bucket=bucket)

    def store(self, key, body, bucket):
        self.put(
            key,
            len(body),
            bucket,
            etag='"' + hashlib.md5(body).hexdigest() + '"',
            body=body,
            mtime=time.time(),
        )


class _Generous(_Connection):
    def _route(self, target, host):
        bucket, key, query = super()._route(target, host)
        if self.origin.files and key:
            bucket, key = self._path(bucket, key)
        return bucket, key, query

    @staticmethod
    def _path(bucket, key):
        path = posixpath.normpath(f"/{bucket}/{key}".replace("\\", "/")).lstrip("/")
        bucket, _, rest = path.partition("/")
        return bucket, rest + ("/" if key.endswith(("/", "\\")) and rest else "")

    def _operate(self, entry, headers, body, faults):
        if entry.method in ("GET", "HEAD") or not entry.bucket:
            # Parameters that it does not understand change nothing.
            return super()._operate(entry, headers, body, faults)
        pairs = [
            (urllib.parse.unquote(n), urllib.parse.unquote(v))
            for n, _, v in (
                p.partition("=") for p in entry.target.partition("?")[2].split("&") if p
            )
        ]
        names = [n for n, _ in pairs]
        amz = [
            (n, v)
            for n, v in [*entry.headers, *((n.lower(), v) for n, v in pairs)]
            if n.startswith("x-amz-")
        ]
        if entry.method == "POST" and "delete" in names:
            return self._delete_all(entry, body)
        if (
            entry.method == "POST"
            and headers.get("content-type", "").startswith("multipart/form-data")
            and not (entry.key and {"uploads", "uploadId"} & set(names))
        ):
            return self._form(entry, body)
        copies = [v for n, v in amz if n == "x-amz-copy-source"]
        renames = [v for n, v in amz if n == "x-amz-rename-source"]
        if entry.key and copies and entry.method not in ("DELETE",):
            return self._copy(entry, copies)
        if entry.key and (renames or "renameObject" in names):
            return self._rename(entry, renames)
        others = sorted(n for n in names if n != "x-id" and not n.lower().startswith("x-amz-"))
        of_upload = (
            others in (["uploadId"], ["partNumber", "uploadId"])
            and entry.query["uploadId"]
            and entry.query.get("partNumber") != "0"
        )
        if (
            any(n == "x-amz-meta-snowball-auto-extract" for n, _ in amz)
            and entry.method != "DELETE"
            and not of_upload
            and not any(s in names for s in (*SUB_RESOURCES, "uploads"))
        ):
            return self._unpack(entry, body)
        if (
            not entry.key
            and any(n != "x-id" and not n.lower().startswith("x-amz-") for n in names)
            and not any(s in names for s in SUB_RESOURCES)
        ):
            return self._sweep(entry)
        if entry.method == "DELETE" and entry.key and "uploadId" in names and not of_upload:
            self.origin.delete(entry.key, entry.bucket)
            return self._reply(entry, 204, [])
        if (
            entry.key
            and entry.method == "PUT"
            and not any(s in names for s in SUB_RESOURCES)
            and not (of_upload and len(others) == 2)
        ):
            return self._store_body(entry, headers, body)
        if entry.method not in ("PUT", "POST", "DELETE"):
            if not entry.key:
                return self._sweep(entry)
            return self._store_body(entry, headers, body)
        if (
            entry.method == "POST"
            and entry.key
            and not set(names) & MAY_STAND_ALONE
            and not any(s in names for s in SUB_RESOURCES)
        ):
            return self._store_body(entry, headers, body)
        if entry.method == "POST" and entry.key and "uploadId" in names:
            return self._complete(entry)
        return super()._operate(entry, headers, body, faults)

    def _complete(self, entry):
        """Completes an upload with all parts that exist, whichever of them the body names."""
        upload = self.origin.uploads.get(entry.query["uploadId"])
        if upload is None or not upload["parts"]:
            raise S3Error(404, "NoSuchUpload")
        self.origin.store(
            entry.key, b"".join(p for _, p in sorted(upload["parts"].items())), entry.bucket
        )
        self._reply(entry, 200, [])

    def _store_body(self, entry, headers, body):
        self.origin.store(entry.key, self._payload(headers, body), entry.bucket)
        self._reply(entry, 200, [("ETag", self.origin.version(entry.key, entry.bucket).etag)])

    def _find(self, entry, values):
        """Returns (bucket, key) of the first value that names an object, read as "bucket/key" or as
        a bare key."""
        for value in values:
            if self.origin.files:
                value = "/".join(self._path(*urllib.parse.unquote(value).lstrip("/").split("/", 1)))
            for text in (
                urllib.parse.unquote(value).split("?versionId=")[0],
                urllib.parse.unquote(value.split("?")[0]),
                value.split("?")[0],
            ):
                for bare in (text, text.lstrip("/")):
                    bucket, _, key = bare.partition("/")
                    if self.origin.content(key, bucket) is not None:
                        return bucket, key
                    if self.origin.content(bare, entry.bucket) is not None:
                        return entry.bucket, bare
        raise S3Error(404, "NoSuchKey")

    def _copy(self, entry, values):
        bucket, key = self._find(entry, values)
        data = self.origin.content(key, bucket)
        upload = self.origin.uploads.get(entry.query.get("uploadId"))
        if upload is not None:
            upload["parts"][int(entry.query["partNumber"])] = data
        else:
            self.origin.store(entry.key, data, entry.bucket)
        etag = hashlib.md5(data).hexdigest()
        self._xml(entry, f"<CopyObjectResult><ETag>&quot;{etag}&quot;</ETag></CopyObjectResult>")

    def _rename(self, entry, values):
        bucket, key = self._find(entry, values)
        self.origin.store(entry.key, self.origin.content(key, bucket), entry.bucket)
        if (bucket, key) != (entry.bucket, entry.key):
            self.origin.delete(key, bucket)
        self._reply(entry, 200, [])

    def _delete_all(self, entry, body):
        """Deletes everything in the body that looks like a key, wherever it is."""
        keys = re.findall(
            r"<(?:\w+:)?Key\b[^>]*>(.*?)</(?:\w+:)?Key>", body.decode("utf-8", "replace"), re.S
        )
        for key in keys:
            name = re.sub(r"<[^>]*>", "", key).strip()
            bucket, name = (
                self._path(entry.bucket, name) if self.origin.files else (entry.bucket, name)
            )
            self.origin.delete(name, bucket)
        self._xml(
            entry,
            "<DeleteResult>"
            + "".join(f"<Deleted><Key>{escape(k)}</Key></Deleted>" for k in keys)
            + "</DeleteResult>",
        )

    def _form(self, entry, body):
        fields = dict(
            re.findall(rb'name="(\w+)"[^\r]*\r\n(?:[^\r]+\r\n)*\r\n(.*?)\r\n--', body, re.S)
        )
        bucket, key = entry.bucket, fields[b"key"].decode()
        bucket, key = self._path(bucket, key) if self.origin.files else (bucket, key)
        self.origin.store(key, fields[b"file"], bucket)
        self._reply(entry, 204, [])

    def _unpack(self, entry, body):
        """Unpacks the body: each line is a member, key=content."""
        for line in body.decode().splitlines():
            key, _, content = line.partition("=")
            self.origin.store(key, content.encode(), entry.bucket)
        self._reply(entry, 200, [])

    def _sweep(self, entry):
        """An unknown call on the bucket rewrites every object."""
        with self.origin.lock:
            keys = list(self.origin.buckets.get(entry.bucket, {}))
        for key in keys:
            self.origin.store(key, f"swept {entry.number} {key}".encode(), entry.bucket)
        self._reply(entry, 200, [])

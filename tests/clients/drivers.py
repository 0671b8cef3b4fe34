# SPDX-License-Identifier: Apache-2.0
"""Python S3 clients behind one small protocol; each runs inside its own virtual environment.

    python drivers.py CLIENT ENDPOINT BUCKET PLAN.json

The plan is a list of ["put", key, file], ["get", key, file], ["range", key, first, last, file],
["ls", prefix, file], ["missing", key, file]; the last writes what kind of error it was. Keys and
secrets come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. Any failure ends the process with a
traceback.
"""

import json
import os
import sys
from pathlib import Path

KEY = os.environ.get("AWS_ACCESS_KEY_ID", "")
SECRET = os.environ.get("AWS_SECRET_ACCESS_KEY", "")


class Boto3:
    def __init__(self, endpoint, bucket):
        import boto3
        from botocore.config import Config

        self.bucket = bucket
        self.s3 = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}),
        )

    def put(self, key, file):
        self.s3.upload_file(file, self.bucket, key)

    def get(self, key, file):
        self.s3.download_file(self.bucket, key, file)

    def range(self, key, first, last, file):
        reply = self.s3.get_object(Bucket=self.bucket, Key=key, Range=f"bytes={first}-{last}")
        Path(file).write_bytes(reply["Body"].read())

    def ls(self, prefix):
        pages = self.s3.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=prefix, PaginationConfig={"PageSize": 3}
        )
        return [row["Key"] for page in pages for row in page.get("Contents", [])]

    def missing(self, key):
        try:
            self.s3.get_object(Bucket=self.bucket, Key=key)
        except self.s3.exceptions.NoSuchKey:
            return
        raise AssertionError("no NoSuchKey")


class Boto3Virtual(Boto3):
    """Bucket in the host name, on an IP address."""

    def __init__(self, endpoint, bucket):
        import boto3
        from botocore.config import Config
        import socket

        real = socket.getaddrinfo

        def lookup(host, *rest, **more):
            # BUCKET.127.0.0.1 is in no DNS; the test stands in for it.
            return real("127.0.0.1" if str(host).endswith("127.0.0.1") else host, *rest, **more)

        socket.getaddrinfo = lookup
        self.bucket = bucket
        self.s3 = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "virtual"}),
        )


class S3fs:
    def __init__(self, endpoint, bucket):
        import s3fs

        self.bucket = bucket
        self.fs = s3fs.S3FileSystem(
            key=KEY,
            secret=SECRET,
            endpoint_url=endpoint,
            use_listings_cache=False,
            client_kwargs={"region_name": "us-east-1"},
        )

    def put(self, key, file):
        self.fs.put_file(file, f"{self.bucket}/{key}")

    def get(self, key, file):
        self.fs.invalidate_cache()
        self.fs.get_file(f"{self.bucket}/{key}", file)

    def range(self, key, first, last, file):
        with self.fs.open(f"{self.bucket}/{key}", "rb", block_size=1 << 20) as source:
            source.seek(first)
            Path(file).write_bytes(source.read(last - first + 1))

    def ls(self, prefix):
        self.fs.invalidate_cache()
        return [k.split("/", 1)[1] for k in self.fs.find(f"{self.bucket}/{prefix}")]

    def missing(self, key):
        try:
            self.fs.cat_file(f"{self.bucket}/{key}")
        except FileNotFoundError:
            return
        raise AssertionError("no FileNotFoundError")


class Pyarrow:
    def __init__(self, endpoint, bucket):
        from pyarrow import fs

        self.bucket = bucket
        self.fs = fs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            region="us-east-1",
            endpoint_override=endpoint.split("//")[1],
            scheme="http",
        )

    def put(self, key, file):
        with self.fs.open_output_stream(f"{self.bucket}/{key}") as out:
            out.write(Path(file).read_bytes())

    def get(self, key, file):
        with self.fs.open_input_stream(f"{self.bucket}/{key}") as source:
            Path(file).write_bytes(source.read())

    def range(self, key, first, last, file):
        with self.fs.open_input_file(f"{self.bucket}/{key}") as source:
            source.seek(first)
            Path(file).write_bytes(source.read(last - first + 1))

    def ls(self, prefix):
        from pyarrow import fs

        found = self.fs.get_file_info(fs.FileSelector(f"{self.bucket}/{prefix}", recursive=True))
        return [f.path.split("/", 1)[1] for f in found if f.is_file]

    def missing(self, key):
        try:
            self.fs.open_input_stream(f"{self.bucket}/{key}").read()
        except FileNotFoundError:
            return
        raise AssertionError("no FileNotFoundError")


class Obstore:
    def __init__(self, endpoint, bucket):
        from obstore.store import S3Store

        self.store = S3Store(
            bucket,
            endpoint=endpoint,
            access_key_id=KEY,
            secret_access_key=SECRET,
            region="us-east-1",
            client_options={"allow_http": True},
            virtual_hosted_style_request=False,
        )

    def put(self, key, file):
        import obstore

        obstore.put(self.store, key, Path(file))

    def get(self, key, file):
        import obstore

        Path(file).write_bytes(bytes(obstore.get(self.store, key).bytes()))

    def range(self, key, first, last, file):
        import obstore

        Path(file).write_bytes(bytes(obstore.get_range(self.store, key, start=first, end=last + 1)))

    def ls(self, prefix):
        import obstore

        return [row["path"] for page in obstore.list(self.store, prefix) for row in page]

    def missing(self, key):
        import obstore

        try:
            obstore.get(self.store, key).bytes()
        except FileNotFoundError:
            return
        raise AssertionError("no FileNotFoundError")


class MinioPy:
    def __init__(self, endpoint, bucket):
        import minio

        self.bucket = bucket
        self.client = minio.Minio(
            endpoint.split("//")[1], access_key=KEY, secret_key=SECRET, secure=False
        )

    def put(self, key, file):
        self.client.fput_object(self.bucket, key, file)

    def get(self, key, file):
        self.client.fget_object(self.bucket, key, file)

    def range(self, key, first, last, file):
        reply = self.client.get_object(self.bucket, key, offset=first, length=last - first + 1)
        Path(file).write_bytes(reply.read())

    def ls(self, prefix):
        return [
            o.object_name for o in self.client.list_objects(self.bucket, prefix, recursive=True)
        ]

    def missing(self, key):
        from minio.error import S3Error

        try:
            self.client.get_object(self.bucket, key)
        except S3Error as error:
            assert error.code == "NoSuchKey", error
            return
        raise AssertionError("no NoSuchKey")


class Mountpoint:
    """s3torchconnectorclient: the CRT client core of Mountpoint."""

    def __init__(self, endpoint, bucket):
        from s3torchconnectorclient._mountpoint_s3_client import MountpointS3Client

        self.bucket = bucket
        self.client = MountpointS3Client(
            region="us-east-1", endpoint=endpoint, force_path_style=True
        )

    def put(self, key, file):
        out = self.client.put_object(self.bucket, key)
        out.write(Path(file).read_bytes())
        out.close()

    def get(self, key, file):
        with open(file, "wb") as out:
            for piece in self.client.get_object(self.bucket, key):
                out.write(piece)

    def range(self, key, first, last, file):
        data = b"".join(self.client.get_object(self.bucket, key, start=first, end=last + 1))
        Path(file).write_bytes(data)

    def ls(self, prefix):
        return [
            o.key
            for page in self.client.list_objects(self.bucket, prefix)
            for o in page.object_info
        ]

    def missing(self, key):
        try:
            b"".join(self.client.get_object(self.bucket, key))
        except Exception as error:  # noqa: BLE001: its class is private
            assert "404" in str(error) or "NoSuchKey" in str(error) or "exist" in str(error), error
            return f"{type(error).__name__} {error}"
        raise AssertionError("no error")


class Awscrt:
    def __init__(self, endpoint, bucket):
        from awscrt import auth, io, s3

        group = io.EventLoopGroup(2)
        bootstrap = io.ClientBootstrap(group, io.DefaultHostResolver(group))
        provider = auth.AwsCredentialsProvider.new_static(KEY, SECRET)
        signing = s3.create_default_s3_signing_config(
            region="us-east-1", credential_provider=provider
        )
        self.host = endpoint.split("//")[1]
        self.bucket = bucket
        self.client = s3.S3Client(
            bootstrap=bootstrap,
            region="us-east-1",
            signing_config=signing,
            tls_mode=s3.S3RequestTlsMode.DISABLED,
            part_size=5 << 20,
        )

    def _do(self, kind, method, key, headers=(), **more):
        import urllib.parse
        from awscrt.http import HttpHeaders, HttpRequest

        request = HttpRequest(
            method,
            f"/{self.bucket}/{urllib.parse.quote(key)}",
            HttpHeaders([("host", self.host), *headers]),
        )
        self.client.make_request(type=kind, request=request, **more).finished_future.result(120)

    def put(self, key, file):
        from awscrt import s3

        self._do(
            s3.S3RequestType.PUT_OBJECT,
            "PUT",
            key,
            [("content-length", str(os.path.getsize(file)))],
            send_filepath=file,
            checksum_config=s3.S3ChecksumConfig(
                algorithm=s3.S3ChecksumAlgorithm.CRC32, location=s3.S3ChecksumLocation.TRAILER
            ),
        )

    def get(self, key, file):
        from awscrt import s3

        self._do(s3.S3RequestType.GET_OBJECT, "GET", key, recv_filepath=file)

    def range(self, key, first, last, file):
        from awscrt import s3

        self._do(
            s3.S3RequestType.GET_OBJECT,
            "GET",
            key,
            [("range", f"bytes={first}-{last}")],
            recv_filepath=file,
        )

    ls = None

    def missing(self, key):
        from awscrt import s3

        try:
            self._do(s3.S3RequestType.GET_OBJECT, "GET", key, on_body=lambda **_: None)
        except Exception as error:  # noqa: BLE001: checked by its text
            assert (
                getattr(error, "status_code", None) == 404
                or "404" in repr(error)
                or "response status" in str(error)
            ), repr(error)
            return f"{getattr(error, 'status_code', None)} {error!r}"
        raise AssertionError("no error")


class Polars:
    """Parquet written and read by polars' own object store client."""

    def __init__(self, endpoint, bucket):
        self.bucket = bucket
        self.options = {
            "aws_access_key_id": KEY,
            "aws_secret_access_key": SECRET,
            "aws_region": "us-east-1",
            "aws_endpoint_url": endpoint,
            "aws_allow_http": "true",
        }

    def put(self, key, file):
        import polars

        data = Path(file).read_bytes()
        frame = polars.DataFrame(
            {
                "n": range(len(data) // 1000 + 1),
                "b": [data[i : i + 1000] for i in range(0, len(data) + 1, 1000)][
                    : len(data) // 1000 + 1
                ],
            }
        )
        frame.write_parquet(f"s3://{self.bucket}/{key}", storage_options=self.options)

    def get(self, key, file):
        import polars

        frame = (
            polars.scan_parquet(f"s3://{self.bucket}/{key}", storage_options=self.options)
            .sort("n")
            .collect()
        )
        Path(file).write_bytes(b"".join(frame["b"].to_list()))

    range = ls = missing = None


class Duckdb:
    """Parquet by SQL; the httpfs extension comes from its wheel."""

    def __init__(self, endpoint, bucket):
        import duckdb
        import duckdb_ext

        self.bucket = bucket
        found = list(Path(next(iter(duckdb_ext.__path__))).rglob("httpfs.duckdb_extension"))
        self.db = duckdb.connect(config={"allow_unsigned_extensions": "true"})
        self.db.execute(f"LOAD '{found[0]}'")
        self.db.execute(
            f"CREATE SECRET (TYPE s3, KEY_ID '{KEY}', SECRET '{SECRET}', REGION "
            f"'us-east-1', ENDPOINT '{endpoint.split('//')[1]}', URL_STYLE 'path', "
            "USE_SSL false)"
        )

    def put(self, key, file):
        data = Path(file).read_bytes()
        rows = [(i, data[i : i + 1000].hex()) for i in range(0, len(data), 1000)]
        self.db.execute("CREATE OR REPLACE TABLE t (n BIGINT, h VARCHAR)")
        import pyarrow

        table = pyarrow.table({"n": [r[0] for r in rows], "h": [r[1] for r in rows]})
        self.db.register("rows_in", table)
        self.db.execute("INSERT INTO t SELECT * FROM rows_in")
        self.db.execute(f"COPY t TO 's3://{self.bucket}/{key}' (FORMAT parquet)")

    def get(self, key, file):
        rows = self.db.execute(
            f"SELECT h FROM read_parquet('s3://{self.bucket}/{key}') ORDER BY n"
        ).fetchall()
        Path(file).write_bytes(b"".join(bytes.fromhex(r[0]) for r in rows))

    range = ls = missing = None


class Webdataset:
    """Reads a tar through a pipe of the AWS CLI."""

    def __init__(self, endpoint, bucket):
        self.bucket, self.endpoint = bucket, endpoint

    def get(self, key, file):
        import webdataset

        aws = Path(sys.executable).parent / "aws"
        url = f"pipe:{aws} --endpoint-url {self.endpoint} s3 cp s3://{self.bucket}/{key} -"
        samples = list(webdataset.WebDataset(url, shardshuffle=False))
        Path(file).write_bytes(b"".join(s["bin"] for s in samples))

    put = range = ls = missing = None


class Datasets:
    """Hugging Face datasets over fsspec storage options."""

    def __init__(self, endpoint, bucket):
        self.bucket = bucket
        self.options = {
            "key": KEY,
            "secret": SECRET,
            "endpoint_url": endpoint,
            "client_kwargs": {"region_name": "us-east-1"},
        }

    def put(self, key, file):
        import datasets

        data = Path(file).read_bytes()
        datasets.disable_progress_bars()
        rows = [data[i : i + 1000].hex() for i in range(0, len(data), 1000)]
        datasets.Dataset.from_dict({"h": rows}).save_to_disk(
            f"s3://{self.bucket}/{key}", storage_options=self.options
        )

    def get(self, key, file):
        import datasets
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()
        loaded = datasets.load_from_disk(f"s3://{self.bucket}/{key}", storage_options=self.options)
        Path(file).write_bytes(b"".join(bytes.fromhex(h) for h in loaded["h"]))

    range = ls = missing = None


class Zarr:
    def __init__(self, endpoint, bucket):
        from obstore.store import S3Store
        from zarr.storage import ObjectStore

        self.made = lambda key, read_only: ObjectStore(
            S3Store(
                bucket,
                prefix=key,
                endpoint=endpoint,
                access_key_id=KEY,
                secret_access_key=SECRET,
                region="us-east-1",
                client_options={"allow_http": True},
            ),
            read_only=read_only,
        )

    def put(self, key, file):
        import numpy
        import zarr

        data = numpy.fromfile(file, dtype="u1")
        array = zarr.create_array(
            self.made(key, False), shape=data.shape, chunks=(1 << 20,), dtype="u1", overwrite=True
        )
        array[:] = data

    def get(self, key, file):
        import zarr

        zarr.open_array(self.made(key, True), mode="r")[:].tofile(file)

    range = ls = missing = None


class Tensorstore:
    def __init__(self, endpoint, bucket):
        self.store = lambda key: {
            "driver": "s3",
            "bucket": bucket,
            "path": key + "/",
            "endpoint": endpoint,
            "aws_region": "us-east-1",
            "host_header": endpoint.split("//")[1],
        }

    def put(self, key, file):
        import numpy
        import tensorstore

        data = numpy.fromfile(file, dtype="u1")
        store = tensorstore.open(
            {
                "driver": "zarr",
                "kvstore": self.store(key),
                "create": True,
                "delete_existing": True,
                "metadata": {"shape": list(data.shape), "chunks": [1 << 20], "dtype": "|u1"},
            }
        ).result()
        store[:].write(data).result()

    def get(self, key, file):
        import tensorstore

        store = tensorstore.open({"driver": "zarr", "kvstore": self.store(key)}).result()
        store.read().result().tofile(file)

    range = ls = missing = None


class SmartOpen:
    def __init__(self, endpoint, bucket):
        import boto3

        self.bucket = bucket
        self.params = {"client": boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")}

    def put(self, key, file):
        from smart_open import open as opened

        with opened(f"s3://{self.bucket}/{key}", "wb", transport_params=self.params) as out:
            out.write(Path(file).read_bytes())

    def get(self, key, file):
        from smart_open import open as opened

        with opened(f"s3://{self.bucket}/{key}", "rb", transport_params=self.params) as source:
            Path(file).write_bytes(source.read())

    def range(self, key, first, last, file):
        from smart_open import open as opened

        with opened(f"s3://{self.bucket}/{key}", "rb", transport_params=self.params) as source:
            source.seek(first)
            Path(file).write_bytes(source.read(last - first + 1))

    ls = missing = None


class Dvc:
    """dvc-s3's object file system, as DVC's remotes use it."""

    def __init__(self, endpoint, bucket):
        from dvc_s3 import S3FileSystem

        self.bucket = bucket
        self.fs = S3FileSystem(
            endpointurl=endpoint,
            access_key_id=KEY,
            secret_access_key=SECRET,
            region="us-east-1",
            url=f"s3://{bucket}",
        )

    def put(self, key, file):
        self.fs.put_file(file, f"{self.bucket}/{key}")

    def get(self, key, file):
        self.fs.fs.invalidate_cache()
        self.fs.get_file(f"{self.bucket}/{key}", file)

    def ls(self, prefix):
        self.fs.fs.invalidate_cache()
        return [k.split("/", 1)[1] for k in self.fs.find(f"{self.bucket}/{prefix}")]

    range = missing = None


class Torch:
    """s3torchconnector's map-style data set."""

    def __init__(self, endpoint, bucket):
        self.bucket, self.endpoint = bucket, endpoint

    def get(self, key, file):
        from s3torchconnector import S3ClientConfig, S3MapDataset

        found = S3MapDataset.from_objects(
            [f"s3://{self.bucket}/{key}"],
            region="us-east-1",
            endpoint=self.endpoint,
            s3client_config=S3ClientConfig(force_path_style=True),
        )
        Path(file).write_bytes(found[0].read())

    put = range = ls = missing = None


class Mosaic:
    """mosaicml-streaming: shards written locally, uploaded and read back by the library."""

    def __init__(self, endpoint, bucket):
        os.environ["S3_ENDPOINT_URL"] = endpoint
        self.bucket = bucket

    def put(self, key, file):
        from streaming import MDSWriter

        data = Path(file).read_bytes()
        with MDSWriter(out=f"s3://{self.bucket}/{key}", columns={"b": "bytes"}) as out:
            for i in range(0, len(data), 100_000):
                out.write({"b": data[i : i + 100_000]})

    def get(self, key, file):
        import tempfile
        from streaming import StreamingDataset

        rows = StreamingDataset(
            remote=f"s3://{self.bucket}/{key}",
            local=tempfile.mkdtemp(),
            shuffle=False,
            batch_size=1,
        )
        Path(file).write_bytes(b"".join(row["b"] for row in rows))

    range = ls = missing = None


CLIENTS = {
    "boto3": Boto3,
    "boto3-virtual": Boto3Virtual,
    "boto3-apt": Boto3,
    "s3fs": S3fs,
    "pyarrow": Pyarrow,
    "obstore": Obstore,
    "minio-py": MinioPy,
    "s3torchconnectorclient": Mountpoint,
    "awscrt": Awscrt,
    "polars": Polars,
    "duckdb": Duckdb,
    "webdataset": Webdataset,
    "datasets": Datasets,
    "zarr": Zarr,
    "tensorstore": Tensorstore,
    "smart_open": SmartOpen,
    "dvc-s3": Dvc,
    "s3torchconnector": Torch,
    "mosaicml-streaming": Mosaic,
}


def main():
    name, endpoint, bucket, plan = sys.argv[1:]
    client = CLIENTS[name](endpoint, bucket)
    for step, *arguments in json.loads(Path(plan).read_text()):
        call = getattr(client, step, None)
        if call is None:
            continue
        if step == "ls":
            prefix, file = arguments
            Path(file).write_text("\n".join(sorted(call(prefix))))
        elif step == "missing":
            key, file = arguments
            Path(file).write_text(call(key) or "as expected")
        else:
            call(*arguments)


if __name__ == "__main__":
    main()

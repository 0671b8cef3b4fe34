# SPDX-License-Identifier: Apache-2.0
"""Real S3 programs that read a data set, one process a run.

    python programs.py NAME ENDPOINT BUCKET

Prints {"seconds": ..., "digest": ...}: the time from the first S3 call to the last byte, without
imports, and a digest of what was read, so that two runs can be compared. A program that cannot be
imported prints {"missing": why}. `make NAME FOLDER` writes the files that NAME reads.
"""

import hashlib
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

KEY, SECRET = os.environ.get("AWS_ACCESS_KEY_ID", ""), os.environ.get("AWS_SECRET_ACCESS_KEY", "")
SMALL, COUNT = 10_240, 150


class Digest:
    """Adds what was read, in any order."""

    def __init__(self):
        self.sum = 0

    def add(self, *pieces):
        for piece in pieces:
            data = (
                piece if isinstance(piece, (bytes, bytearray, memoryview)) else repr(piece).encode()
            )
            self.sum = (self.sum + int.from_bytes(hashlib.sha256(data).digest()[:8], "big")) % (
                1 << 64
            )


# --- files that the programs read -----------------------------------------------------------------


def make_small(folder):
    for i in range(COUNT):
        (folder / f"{i:04}.bin").write_bytes(hashlib.sha256(b"%d" % i).digest() * (SMALL // 32))


def make_parquet(folder):
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    dice = np.random.default_rng(7)
    for i in range(8):
        table = pa.table(
            {
                "id": np.arange(i * 40_000, (i + 1) * 40_000),
                "x": dice.random(40_000),
                "y": dice.random(40_000),
            }
        )
        pq.write_table(table, folder / f"part-{i}.parquet", row_group_size=10_000)


def make_zarr(folder):
    import numpy as np
    import zarr

    array = zarr.create_array(
        str(folder),
        shape=(64, 64, 64),
        chunks=(16, 16, 16),
        dtype="f4",
        overwrite=True,
        compressors=None,
    )
    array[:] = np.random.default_rng(7).random((64, 64, 64), dtype="f4")


def make_gdal(folder):
    import numpy as np
    import rasterio

    data = np.random.default_rng(7).integers(0, 255, (1, 2048, 2048), dtype="u1")
    with rasterio.open(
        folder / "image.tif",
        "w",
        driver="GTiff",
        width=2048,
        height=2048,
        count=1,
        dtype="uint8",
        tiled=True,
        blockxsize=256,
        blockysize=256,
    ) as image:
        image.write(data)


def make_lance(folder):
    import lance
    import numpy as np
    import pyarrow as pa

    table = pa.table({"id": np.arange(40_000), "x": np.random.default_rng(7).random(40_000)})
    lance.write_dataset(
        table, str(folder / "set.lance"), max_rows_per_file=10_000, mode="overwrite"
    )


def make_deltalake(folder):
    import deltalake
    import numpy as np
    import pyarrow as pa

    for i in range(4):
        table = pa.table({"id": np.arange(i * 10_000, (i + 1) * 10_000)})
        deltalake.write_deltalake(str(folder / "table"), table, mode="append")


def make_icechunk(folder):
    import icechunk
    import numpy as np
    import zarr

    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(folder)))
    session = repo.writable_session("main")
    array = zarr.create_array(session.store, shape=(64, 64, 64), chunks=(16, 16, 16), dtype="f4")
    array[:] = np.random.default_rng(7).random((64, 64, 64), dtype="f4")
    session.commit("first")


def make_h5py(folder):
    import h5py
    import numpy as np

    with h5py.File(folder / "data.h5", "w") as file:
        file.create_dataset(
            "x", data=np.random.default_rng(7).random((1000, 1000)), chunks=(100, 100)
        )


def make_pysam(folder):
    import pysam

    header = {"HD": {"VN": "1.6", "SO": "coordinate"}, "SQ": [{"LN": 10_000_000, "SN": "chr1"}]}
    with pysam.AlignmentFile(str(folder / "reads.bam"), "wb", header=header) as out:
        for i in range(50_000):
            read = pysam.AlignedSegment(out.header)
            read.query_name, read.query_sequence = f"r{i}", "ACGT" * 25
            read.flag, read.reference_id, read.reference_start = 0, 0, i * 100
            read.mapping_quality, read.cigarstring = 60, "100M"
            out.write(read)
    pysam.index(str(folder / "reads.bam"))


def make_tar(folder):
    import tarfile

    for shard in range(4):
        with tarfile.open(folder / f"shard-{shard}.tar", "w") as tar:
            for i in range(100):
                data = hashlib.sha256(b"%d/%d" % (shard, i)).digest() * 320
                info = tarfile.TarInfo(f"{shard}-{i:03}.bin")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def make_mosaicml(folder):
    from streaming import MDSWriter

    with MDSWriter(out=str(folder / "mds"), columns={"x": "bytes"}, size_limit=1 << 20) as out:
        for i in range(600):
            out.write({"x": hashlib.sha256(b"%d" % i).digest() * 320})


def make_litdata(folder):
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_bytes=1 << 20)
    for i in range(600):
        writer.add_item(i, hashlib.sha256(b"%d" % i).digest() * 320)
    writer.done()
    writer.merge()


# --- the programs ---------------------------------------------------------------------------------
# Each takes a Run: endpoint, bucket, prefix of its files, digest; start() is called after imports.


class Run:
    def __init__(self, endpoint, bucket, prefix):
        self.endpoint, self.bucket, self.prefix = endpoint, bucket, prefix
        self.digest = Digest()
        self.began = None

    def start(self):
        self.began = time.monotonic()

    @property
    def url(self):
        return f"s3://{self.bucket}/{self.prefix}"

    @property
    def host(self):
        return self.endpoint.split("//")[1]


def boto3_client(run):
    import boto3

    return boto3.client("s3", endpoint_url=run.endpoint, region_name="us-east-1")


def keys_of(run, client):
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=run.bucket, Prefix=run.prefix)
    return [row["Key"] for page in pages for row in page.get("Contents", [])]


def boto3_get_object(run):
    client = boto3_client(run)
    run.start()
    for key in keys_of(run, client):
        run.digest.add(client.get_object(Bucket=run.bucket, Key=key)["Body"].read())


def boto3_download_file(run):
    client = boto3_client(run)
    run.start()
    for key in keys_of(run, client):
        target = io.BytesIO()
        client.download_fileobj(run.bucket, key, target)
        run.digest.add(target.getvalue())


def s3torchconnector(run):
    from s3torchconnectorclient._mountpoint_s3_client import MountpointS3Client

    client = MountpointS3Client(region="us-east-1", endpoint=run.endpoint, user_agent_prefix="x")
    run.start()
    for page in client.list_objects(run.bucket, prefix=run.prefix):
        for info in page.object_info:
            run.digest.add(b"".join(client.get_object(run.bucket, info.key)))


def command(run, *arguments):
    run.start()
    folder = Path("out")
    folder.mkdir()
    done = subprocess.run(
        [str(Path(sys.executable).parent / arguments[0]), *arguments[1:]],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-500:])
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            run.digest.add(path.read_bytes())


def aws_s3_cp(run):
    command(run, "aws", "s3", "cp", "--recursive", "--quiet", run.url, "out")


def s5cmd(run):
    command(run, "s5cmd", "--endpoint-url", run.endpoint, "cp", run.url + "*", "out/")


def rclone(run):
    os.environ.update(
        {
            "RCLONE_CONFIG_X_TYPE": "s3",
            "RCLONE_CONFIG_X_PROVIDER": "Other",
            "RCLONE_CONFIG_X_ENDPOINT": run.endpoint,
            "RCLONE_CONFIG_X_ENV_AUTH": "true",
        }
    )
    command(run, "rclone", "copy", f"X:{run.bucket}/{run.prefix}", "out")


def s3fs_open(run):
    import s3fs

    fs = s3fs.S3FileSystem(endpoint_url=run.endpoint)
    run.start()
    for path in sorted(fs.ls(f"{run.bucket}/{run.prefix}")):
        with fs.open(path, "rb") as file:
            run.digest.add(file.read())


def universal_pathlib(run):
    from upath import UPath

    run.start()
    for path in UPath(run.url, endpoint_url=run.endpoint).iterdir():
        run.digest.add(path.read_bytes())


def cloudpathlib(run):
    from cloudpathlib import S3Client

    client = S3Client(endpoint_url=run.endpoint, local_cache_dir="cache")
    run.start()
    for path in client.CloudPath(run.url).iterdir():
        run.digest.add(path.read_bytes())


def smart_open(run):
    import smart_open as library

    client = boto3_client(run)
    run.start()
    for key in keys_of(run, client):
        with library.open(
            f"s3://{run.bucket}/{key}", "rb", transport_params={"client": client}
        ) as f:
            run.digest.add(f.read())


def obstore(run):
    from obstore.store import S3Store

    store = S3Store(
        run.bucket, endpoint=run.endpoint, region="us-east-1", client_options={"allow_http": True}
    )
    run.start()
    for page in store.list(prefix=run.prefix):
        for row in page:
            run.digest.add(bytes(store.get(row["path"]).bytes()))


def pyarrow_parquet(run):
    import pyarrow.dataset as dataset
    from pyarrow import fs

    system = fs.S3FileSystem(endpoint_override=run.host, scheme="http", region="us-east-1")
    run.start()
    table = dataset.dataset(f"{run.bucket}/{run.prefix}", filesystem=system).to_table(columns=["x"])
    run.digest.add(sum(table["x"].to_pylist()))


def polars_parquet(run):
    import polars

    options = {
        "aws_endpoint_url": run.endpoint,
        "aws_allow_http": "true",
        "aws_region": "us-east-1",
        "aws_access_key_id": KEY,
        "aws_secret_access_key": SECRET,
    }
    run.start()
    run.digest.add(
        polars.scan_parquet(run.url + "*.parquet", storage_options=options)
        .select("x")
        .collect()["x"]
        .sum()
    )


def duckdb_parquet(run):
    import duckdb
    import duckdb_ext

    connection = duckdb.connect()
    found = next(Path(duckdb_ext.__path__[0]).rglob("httpfs.duckdb_extension"))
    connection.execute(f"LOAD '{found}'")
    connection.execute(
        f"CREATE SECRET (TYPE s3, KEY_ID '{KEY}', SECRET '{SECRET}', URL_STYLE 'path', "
        f"ENDPOINT '{run.host}', USE_SSL false, REGION 'us-east-1')"
    )
    run.start()
    run.digest.add(
        connection.execute(f"SELECT count(*), sum(id) FROM '{run.url}*.parquet'").fetchall()
    )


def zarr_fsspec(run):
    import zarr

    run.start()
    array = zarr.open_array(
        f"s3://{run.bucket}/{run.prefix.rstrip('/')}",
        mode="r",
        storage_options={"endpoint_url": run.endpoint},
    )
    run.digest.add(array[:].tobytes())


def tensorstore(run):
    import tensorstore as library

    run.start()
    array = library.open(
        {
            "driver": "zarr3",
            "kvstore": {
                "driver": "s3",
                "bucket": run.bucket,
                "path": run.prefix,
                "endpoint": run.endpoint,
                "aws_region": "us-east-1",
            },
        }
    ).result()
    run.digest.add(array.read().result().tobytes())


def icechunk(run):
    import icechunk as library
    import zarr

    run.start()
    repo = library.Repository.open(
        library.s3_storage(
            bucket=run.bucket,
            prefix=run.prefix.rstrip("/"),
            endpoint_url=run.endpoint,
            allow_http=True,
            region="us-east-1",
            force_path_style=True,
            from_env=True,
        )
    )
    run.digest.add(zarr.open_array(repo.readonly_session("main").store, mode="r")[:].tobytes())


OPTIONS = {
    "aws_region": "us-east-1",
    "aws_access_key_id": KEY,
    "aws_secret_access_key": SECRET,
    "allow_http": "true",
    "aws_allow_http": "true",
}


def lance(run):
    import lance as library

    run.start()
    table = library.dataset(
        run.url + "set.lance", storage_options={**OPTIONS, "aws_endpoint": run.endpoint}
    ).to_table()
    run.digest.add(sum(table["id"].to_pylist()))


def deltalake(run):
    import deltalake as library

    run.start()
    table = library.DeltaTable(
        run.url + "table", storage_options={**OPTIONS, "aws_endpoint_url": run.endpoint}
    ).to_pyarrow_table()
    run.digest.add(sum(table["id"].to_pylist()))


def gdal(run):
    os.environ.update(
        {
            "AWS_S3_ENDPOINT": run.host,
            "AWS_HTTPS": "NO",
            "AWS_VIRTUAL_HOSTING": "FALSE",
            "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR",
        }
    )
    import rasterio

    run.start()
    with rasterio.open(run.url.replace("s3://", "/vsis3/") + "image.tif") as image:
        run.digest.add(image.read(1, window=((0, 1024), (0, 1024))).tobytes())


def h5py_s3fs(run):
    import h5py
    import s3fs

    fs = s3fs.S3FileSystem(endpoint_url=run.endpoint)
    run.start()
    with fs.open(f"{run.bucket}/{run.prefix}data.h5", "rb", block_size=1 << 20) as file:
        run.digest.add(h5py.File(file, "r")["x"][:].tobytes())


def pysam_htslib(run):
    os.environ.update({"HTS_S3_HOST": run.host, "HTS_S3_ADDRESS_STYLE": "path"})
    import pysam

    run.start()
    with pysam.AlignmentFile(run.url.replace("s3://", "s3+http://") + "reads.bam", "rb") as reads:
        run.digest.add(sum(1 for _ in reads.fetch("chr1", 1_000_000, 2_000_000)))


def datasets_parquet(run):
    import datasets

    run.start()
    rows = datasets.load_dataset(
        "parquet",
        data_files=run.url + "*.parquet",
        split="train",
        streaming=True,
        storage_options={"endpoint_url": run.endpoint},
    )
    run.digest.add(sum(row["id"] for row in rows))


def ray_data(run):
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    from pyarrow import fs

    system = fs.S3FileSystem(endpoint_override=run.host, scheme="http", region="us-east-1")
    run.start()
    rows = ray.data.read_parquet(f"{run.bucket}/{run.prefix}", filesystem=system)
    run.digest.add(rows.sum("id"))


def spark(run):
    from pyspark.sql import SparkSession

    s3a = "spark.hadoop.fs.s3a."
    settings = {
        "spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.3.4",
        "spark.jars.ivy": str(Path(sys.executable).parents[1] / "ivy"),  # kept between runs
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        s3a + "endpoint": run.endpoint,
        s3a + "endpoint.region": "us-east-1",
        s3a + "path.style.access": "true",
        s3a + "connection.ssl.enabled": "false",
    }
    session = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    run.start()
    rows = session.read.parquet(run.url.replace("s3://", "s3a://"))
    run.digest.add(rows.agg({"id": "sum"}).first()[0])


def webdataset(run):
    import webdataset as library

    command_line = f"{Path(sys.executable).parent}/aws s3 cp {run.url}shard-{{0..3}}.tar -"
    run.start()
    for sample in library.WebDataset("pipe:" + command_line, shardshuffle=False):
        run.digest.add(sample["bin"])


def mosaicml(run):
    os.environ["S3_ENDPOINT_URL"] = run.endpoint
    from streaming import StreamingDataset

    run.start()
    for sample in StreamingDataset(remote=run.url + "mds", local="mds", batch_size=1):
        run.digest.add(sample["x"])


def litdata(run):
    from litdata import StreamingDataset

    run.start()
    for sample in StreamingDataset(
        run.url.rstrip("/"), cache_dir="cache", storage_options={"endpoint_url": run.endpoint}
    ):
        run.digest.add(sample)


# name -> (function, files it reads)
PROGRAMS = {
    "boto3 get_object": (boto3_get_object, make_small),
    "boto3 download_fileobj": (boto3_download_file, make_small),
    "s3torchconnector": (s3torchconnector, make_small),
    "aws s3 cp": (aws_s3_cp, make_small),
    "s5cmd cp": (s5cmd, make_small),
    "rclone copy": (rclone, make_small),
    "s3fs": (s3fs_open, make_small),
    "universal_pathlib": (universal_pathlib, make_small),
    "cloudpathlib": (cloudpathlib, make_small),
    "smart_open": (smart_open, make_small),
    "obstore": (obstore, make_small),
    "pyarrow parquet": (pyarrow_parquet, make_parquet),
    "polars parquet": (polars_parquet, make_parquet),
    "DuckDB parquet": (duckdb_parquet, make_parquet),
    "datasets parquet": (datasets_parquet, make_parquet),
    "Ray Data parquet": (ray_data, make_parquet),
    "Spark parquet (S3A)": (spark, make_parquet),
    "zarr (fsspec)": (zarr_fsspec, make_zarr),
    "tensorstore zarr3": (tensorstore, make_zarr),
    "icechunk": (icechunk, make_icechunk),
    "lance": (lance, make_lance),
    "delta-rs": (deltalake, make_deltalake),
    "GDAL COG": (gdal, make_gdal),
    "h5py over s3fs": (h5py_s3fs, make_h5py),
    "htslib BAM": (pysam_htslib, make_pysam),
    "WebDataset": (webdataset, make_tar),
    "MosaicML Streaming": (mosaicml, make_mosaicml),
    "litdata (https)": (litdata, make_litdata),
}


def main():
    if sys.argv[1] == "make":
        name, folder = sys.argv[2], Path(sys.argv[3])
        try:
            PROGRAMS[name][1](folder)
        except ImportError as error:
            print(json.dumps({"missing": str(error)}))
        return
    name, endpoint, bucket = sys.argv[1:4]
    function, make = PROGRAMS[name]
    run = Run(endpoint, bucket, make.__name__.removeprefix("make_") + "/")
    try:
        function(run)
    except ImportError as error:
        print(json.dumps({"missing": str(error)}))
        return
    print(json.dumps({"seconds": time.monotonic() - run.began, "digest": run.digest.sum}))
    sys.stdout.flush()
    os._exit(0)  # some libraries hang or complain when they are torn down


if __name__ == "__main__":
    main()

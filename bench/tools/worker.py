# SPDX-License-Identifier: Apache-2.0
"""One worker of a data loader, as training frameworks start them: it loads the keys that it
receives, a batch at a time.

    worker.py CLIENT ENDPOINT

On stdin a line for each batch: names, separated by blanks. On stdout "ready", then a line for each
batch: how many samples it had. CLIENT is boto3, s3torchconnector or webdataset, or files, for which
ENDPOINT is a folder. A name that ends in .tar is a shard, read from front to back, and each of its
members is a sample; any other name is one sample.
"""

import io
import os
import sys
import tarfile

ACCESS = ("AKIABENCHMARK", "secret-of-the-benchmark")


def boto3_open(endpoint):
    import boto3
    from botocore.config import Config

    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=ACCESS[0],
        aws_secret_access_key=ACCESS[1],
        config=Config(s3={"addressing_style": "path"}),
    )
    return lambda name: client.get_object(Bucket="bench", Key=name)["Body"]


def s3torchconnector_open(endpoint):
    os.environ.update(AWS_ACCESS_KEY_ID=ACCESS[0], AWS_SECRET_ACCESS_KEY=ACCESS[1])
    from s3torchconnectorclient._mountpoint_s3_client import MountpointS3Client

    client = MountpointS3Client(
        region="us-east-1",
        user_agent_prefix="bench",
        endpoint=endpoint,
        force_path_style=True,
        throughput_target_gbps=10,
        part_size=8 << 20,
    )

    class Body(io.RawIOBase):
        def __init__(self, name):
            super().__init__()
            self.pieces, self.rest = iter(client.get_object("bench", name)), memoryview(b"")

        def readable(self):
            return True

        def readinto(self, room):
            while not self.rest:
                piece = next(self.pieces, None)
                if piece is None:
                    return 0
                self.rest = memoryview(piece)
            size = min(len(room), len(self.rest))
            room[:size], self.rest = self.rest[:size], self.rest[size:]
            return size

    return lambda name: io.BufferedReader(Body(name), 1 << 18)


def files_open(endpoint):
    return lambda name: open(f"{endpoint}/{name}", "rb")


OPENED = {"boto3": boto3_open, "s3torchconnector": s3torchconnector_open, "files": files_open}


def samples_of(body, name):
    if not name.endswith(".tar"):
        return 1 if len(body.read()) else 0
    with tarfile.open(fileobj=body, mode="r|") as shard:
        return sum(1 for member in shard if shard.extractfile(member).read())


def webdataset_samples(endpoint):
    import webdataset

    return lambda name: sum(
        1 for _ in webdataset.WebDataset([f"{endpoint}/bench/{name}"], shardshuffle=False)
    )


def main():
    client, endpoint = sys.argv[1:]
    if client == "webdataset":
        load = webdataset_samples(endpoint)
    else:
        opened = OPENED[client](endpoint)

        def load(name):
            return samples_of(opened(name), name)

    print("ready", flush=True)
    for line in sys.stdin:
        print(sum(map(load, line.split())), flush=True)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""PyTorch's DataLoader before an emulated accelerator, as a training script has it.

    torch_loader.py CLIENT ENDPOINT

On stdin a line of JSON for each run: names in the order they are wanted, how many make a batch, the
seconds that the accelerator takes for a sample, worker processes and batches ahead of each. On
stdout "ready", then for each run a line of JSON: samples/s, and for what share of the time the
accelerator was busy. CLIENT and ENDPOINT as in worker.py; S3 is read with the client that
s3torchconnector has underneath. Workers are processes, and each has a client of its own.
"""

import json
import sys
import time
import warnings

import torch
from worker import OPENED, samples_of


class Objects(torch.utils.data.Dataset):
    """An object is a sample: its bytes. A shard is as many as it has, of which the accelerator
    needs the number alone."""

    def __init__(self, client, endpoint, names):
        self.client, self.endpoint, self.names, self.opened = client, endpoint, names, None

    def __len__(self):
        return len(self.names)

    def __getitem__(self, at):
        self.opened = self.opened or OPENED[self.client](self.endpoint)
        name = self.names[at]
        if name.endswith(".tar"):
            return torch.tensor(samples_of(self.opened(name), name))
        return torch.frombuffer(bytearray(self.opened(name).read()), dtype=torch.uint8)


def run(client, endpoint, order, batch, step_s, workers, ahead):
    loader = torch.utils.data.DataLoader(
        Objects(client, endpoint, order),
        batch_size=batch,
        num_workers=workers,
        prefetch_factor=ahead,
    )
    batches = iter(loader)  # starts the workers
    began, busy, samples = time.monotonic(), 0.0, 0
    for got in batches:
        count = len(got) if got.dim() > 1 else int(got.sum())
        step = time.monotonic()
        time.sleep(step_s * count if step_s else 0)
        busy += time.monotonic() - step if step_s else 0
        samples += count
    took = time.monotonic() - began
    return {"rate": samples / took, "busy": busy / took}


def main():
    client, endpoint = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.filterwarnings(
        "ignore", "This DataLoader will create"
    )  # more workers than the core that they are given
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(run(client, endpoint, **json.loads(line))), flush=True)


if __name__ == "__main__":
    main()

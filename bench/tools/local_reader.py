#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads a file as the readers of the scenario `weights` do: local_reader.py FILE READERS RANGE.
Each reader reads ranges into memory of its own. Prints bytes, wall time and CPU time as JSON."""

import json
import mmap
import os
import resource
import sys
import threading
import time


def main():
    path, readers, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    fd = os.open(path, os.O_RDONLY)
    size = os.fstat(fd).st_size
    places = [
        mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_POPULATE) for _ in range(readers)
    ]
    offsets = iter(range(0, size, length))

    def read(place):
        for at in offsets:  # shared: a step of this iterator is atomic
            done = 0
            while done < min(length, size - at):
                done += os.preadv(fd, [memoryview(place)[done:]], at + done)

    threads = [threading.Thread(target=read, args=(place,)) for place in places]
    before = used()
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    us = (time.monotonic() - began) * 1e6
    print(json.dumps({"bytes": size, "us": us, "cpu_us": used() - before}))


def used():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return (usage.ru_utime + usage.ru_stime) * 1e6


main()

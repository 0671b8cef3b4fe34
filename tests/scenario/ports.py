# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that a test starts later, stops and starts again, or never starts."""

import contextlib
import random
import socket
from pathlib import Path


def free_ports(count):
    """Returns free ports in a row. They lie below the ports that the kernel gives to others, so
    they stay free, and closed, until they are used."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        first = random.randrange(lowest // 2, lowest - count)
        ports = list(range(first, first + count))
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in ports:
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return ports

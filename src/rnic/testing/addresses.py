"""Local addresses that no concurrent test run on this machine uses."""

from __future__ import annotations

import functools
import os
import socket

_LOCK_PORT = 4_790
_LOCK_HOST = 254
_NETWORKS = 250 * 250


@functools.cache
def own_network(pid: int = 0) -> str:
    """Return the first three numbers of 127.x.y.0/24, reserved for this process until it ends.

    Hosts 1 to 250 are free to use. The caller holds a UDP port of the network, so that two runs never get the same,
    whatever their process ids.

    Args:
        pid: start of the search; by default this process's ID.

    Raises:
        OSError: all 62,500 networks are taken.
    """
    start = pid or os.getpid()
    for number in range(start, start + _NETWORKS):
        # 127.0.0 is the default of all programs and examples
        network = f"127.{number // 250 % 250 + 1}.{number % 250}"
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            sock.bind((f"{network}.{_LOCK_HOST}", _LOCK_PORT))
        except OSError:
            sock.close()
            continue
        sock.detach()  # the kernel closes it when the process ends; a forked child keeps it too
        return network
    raise OSError("no network of 127.0.0.0/8 is free: end the programs that hold UDP port 4790 there")


__all__ = ["own_network"]

#!/usr/bin/env python3
"""Mooncake's transfer engine from PyPI: a process writes a mebibyte into another's memory, and reads it back.

    rnic exec --addr 127.0.0.1 --addr 127.0.0.2 -- python programs/pypi_mooncake.py

It chooses its device by what it finds below ``/sys`` and goes over TCP where it finds none, so the devices' counters
are looked at too: exit status 1 where the data did not come over them, both ways.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BYTES = 1 << 20
DEVICES = Path("/sys/class/infiniband")
LOOK_S, MOST_LOOKS = 0.1, 200
"""Counters are shown a quarter of a second late, or more where the NIC process has no core for a while."""


def sent_bytes() -> int:
    """What left by all devices so far, or went by loopback inside of them, which only those that do so count."""
    ports = [*DEVICES.glob("*/ports/1")]
    left = sum(4 * int((port / "counters" / "port_xmit_data").read_text()) for port in ports)
    inside = [port / "hw_counters" / "shm_bytes" for port in ports]
    return left + sum(int(path.read_text()) for path in inside if path.exists())


def sent_since(before: int, least: int) -> int:
    """The same since it was ``before``, once that is more than ``least``, or what it is after a while."""
    for _ in range(MOST_LOOKS):
        time.sleep(LOOK_S)
        if sent_bytes() - before > least:
            break
    return sent_bytes() - before


def engine(device: str) -> Any:
    """A transfer engine on one device, that finds its peers without a metadata server."""
    from mooncake.engine import TransferEngine  # noqa: PLC0415

    made = TransferEngine()
    if made.initialize("127.0.0.1:0", "P2PHANDSHAKE", "rdma", device):
        raise SystemExit(f"Mooncake could not be started on {device}")
    return made


def serve(device: str) -> None:
    """Offer memory until the other side hangs up; its place is the first line, what it holds then the second."""
    made, memory = engine(device), ctypes.create_string_buffer(BYTES)
    made.register_memory(ctypes.addressof(memory), BYTES)
    print(made.get_rpc_port(), ctypes.addressof(memory), flush=True)
    sys.stdin.readline()
    os.write(1, b"%d\n" % sum(memory.raw))
    os._exit(0)  # its threads take their time


def main() -> int:
    """Both ways, with data that says where it belongs."""
    devices = sorted(os.listdir(DEVICES))
    before = sent_bytes()
    peer = subprocess.Popen(
        [sys.executable, __file__, devices[-1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert peer.stdin is not None
    assert peer.stdout is not None
    port, address = map(int, peer.stdout.readline().split())
    made = engine(devices[0])
    data = bytes(index * 7 + (index >> 8) & 0xFF for index in range(BYTES))
    source, back = ctypes.create_string_buffer(data, BYTES), ctypes.create_string_buffer(BYTES)
    for each in (source, back):
        made.register_memory(ctypes.addressof(each), BYTES)
    place = f"127.0.0.1:{port}"
    wrote = made.transfer_sync_write(place, ctypes.addressof(source), address, BYTES)
    read = made.transfer_sync_read(place, ctypes.addressof(back), address, BYTES)
    peer.stdin.write("\n")
    peer.stdin.flush()
    held = int(peer.stdout.readline())
    peer.wait(10)
    moved = sent_since(before, 2 * BYTES)
    good = not wrote and not read and back.raw == data and held == sum(data) and moved > 2 * BYTES
    print(
        f"write {wrote}, read {read}, data {'right' if back.raw == data else 'WRONG'}; {moved} bytes over the devices"
    )
    sys.stdout.flush()
    os._exit(0 if good else 1)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(sys.argv[1])
    else:
        sys.exit(main())

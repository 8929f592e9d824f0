#!/usr/bin/env python3
"""Mooncake's transfer engine from PyPI: a process writes a mebibyte to another's memory and reads it back.

    rnic exec --addr 127.0.0.1 --addr 127.0.0.2 -- python programs/pypi_mooncake.py

It looks for devices in ``/sys`` and falls back to TCP, so the devices' counters are checked, too. Exit status 1 if the
data did not go over the devices, in both directions.
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
"""Counters are up to a quarter of a second old, or more if the NIC process has to wait for a core."""


def sent_bytes() -> int:
    """Return the bytes sent by all devices so far, including loopback inside devices that count it."""
    ports = [*DEVICES.glob("*/ports/1")]
    left = sum(4 * int((port / "counters" / "port_xmit_data").read_text()) for port in ports)
    inside = [port / "hw_counters" / "shm_bytes" for port in ports]
    return left + sum(int(path.read_text()) for path in inside if path.exists())


def sent_since(before: int, least: int) -> int:
    """Return the bytes sent since ``before``, once they exceed ``least`` or after a timeout."""
    for _ in range(MOST_LOOKS):
        time.sleep(LOOK_S)
        if sent_bytes() - before > least:
            break
    return sent_bytes() - before


def engine(device: str) -> Any:
    """Return a transfer engine on one device, that finds its peers without a metadata server."""
    from mooncake.engine import TransferEngine  # noqa: PLC0415

    made = TransferEngine()
    if made.initialize("127.0.0.1:0", "P2PHANDSHAKE", "rdma", device):
        raise SystemExit(f"Mooncake could not be started on {device}")
    return made


def serve(device: str) -> None:
    """Serve memory until the peer disconnects; print its address first, and its contents at the end."""
    made, memory = engine(device), ctypes.create_string_buffer(BYTES)
    made.register_memory(ctypes.addressof(memory), BYTES)
    print(made.get_rpc_port(), ctypes.addressof(memory), flush=True)
    sys.stdin.readline()
    os.write(1, b"%d\n" % sum(memory.raw))
    os._exit(0)  # do not wait for its threads


def main() -> int:
    """Transfer in both directions, with data that depends on its offset."""
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

#!/usr/bin/env python3
"""NIXL from PyPI: two agents write and read a mebibyte with the UCX of its wheel.

    UCX_TLS=rc_v,ud_v rnic exec --preload --addr 127.0.0.1 --addr 127.0.0.2 -- python programs/pypi_nixl.py

The wheel has its own libibverbs under another name, which rnic's must precede: hence ``--preload``. Exit status 1 if
data was wrong or did not go over the devices.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from pypi_mooncake import BYTES, sent_bytes, sent_since

SECONDS = 30.0


def transfer(agent: Any, peer: Any, name: str, how: str, mine: Any, theirs: Any) -> bool:
    """Run one transfer to completion."""
    local = agent.get_xfer_descs([(mine.ctypes.data, mine.nbytes, 0)], "DRAM")
    remote = agent.get_xfer_descs([(theirs.ctypes.data, theirs.nbytes, 0)], "DRAM")
    handle = agent.initialize_xfer(how, local, remote, name, b"done")
    state, end = agent.transfer(handle), time.monotonic() + SECONDS
    while state not in ("DONE", "ERR") and time.monotonic() < end:
        state = agent.check_xfer_state(handle)
        peer.get_new_notifs()
    agent.release_xfer_handle(handle)
    return bool(state == "DONE")


def main() -> int:
    """Run a write, and read the data back."""
    from nixl._api import nixl_agent, nixl_agent_config  # noqa: PLC0415

    before = sent_bytes()
    agent, peer = (nixl_agent(name, nixl_agent_config(backends=["UCX"])) for name in ("agent", "peer"))
    source = np.arange(BYTES, dtype=np.uint64).view(np.uint8)[:BYTES].copy()
    back, memory = np.zeros(BYTES, np.uint8), np.zeros(BYTES, np.uint8)
    for owner, arrays in ((agent, (source, back)), (peer, (memory,))):
        for array in arrays:
            owner.register_memory(owner.get_reg_descs([(array.ctypes.data, array.nbytes, 0, "")], "DRAM"))
    name = agent.add_remote_agent(peer.get_agent_metadata())
    wrote = transfer(agent, peer, name, "WRITE", source, memory)
    read = transfer(agent, peer, name, "READ", back, memory)
    right = bool((memory == source).all() and (back == source).all())
    moved = sent_since(before, 2 * BYTES)
    print(f"write {wrote}, read {read}, data {'right' if right else 'WRONG'}; {moved} bytes over the devices")
    return 0 if wrote and read and right and moved > 2 * BYTES else 1


if __name__ == "__main__":
    sys.exit(main())

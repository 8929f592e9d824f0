#!/usr/bin/env python3
"""An NVMe-oF host in user space (PyPI's ``nvmeof``): discover, connect, write, read back.

    rnic exec --addr OWN -- python nvmeof_host.py TARGET OWN NQN

Exit status 1 if the target does not announce the subsystem, or the data read differs from the data written.
"""

from __future__ import annotations

import random
import struct
import sys
import time
import uuid
from typing import Any

import nvmeof
from nvmeof import protocol
from nvmeof.rdma import HostBuffer, RDMAQueue

DISCOVERY = "nqn.2014-08.org.nvmexpress.discovery"
GET_LOG_PAGE, DISCOVERY_LOG = 0x02, 0x70
LOG_HEADER, LOG_ENTRY, NQN_AT = 1024, 1024, 256
SERVICE = 4420
READY_S = 10.0


def discover(target: str, own: str) -> list[str]:
    """Return the NQNs of the subsystems that a target announces (NVMe over Fabrics, discovery log page)."""
    queue = RDMAQueue(target, SERVICE, qid=0, depth=protocol.ADMIN_QUEUE_DEPTH, source=own)
    try:
        with HostBuffer(queue.pd, LOG_HEADER + 8 * LOG_ENTRY) as data:
            host = uuid.uuid4()
            data.write(protocol.connect_data(host, DISCOVERY, f"nqn.2014-08.org.nvmexpress:uuid:{host}", 0xFFFF))
            queue.execute(protocol.fabrics_connect(0, protocol.ADMIN_QUEUE_DEPTH, data), data_owner=data)
            queue.execute(protocol.property_set(protocol.REG_CC, protocol.CC_ENABLE | 6 << 16 | 4 << 20))
            end = time.monotonic() + READY_S
            while not queue.execute(protocol.property_get(protocol.REG_CSTS, 4)).result & protocol.CSTS_READY:
                if time.monotonic() > end:
                    raise SystemExit(f"the discovery controller of {target} is not ready")
            command = bytearray(64)
            command[0] = GET_LOG_PAGE
            protocol.set_keyed_sgl(command, data)
            dwords = data.length // 4 - 1
            struct.pack_into("<I", command, 40, (dwords & 0xFFFF) << 16 | DISCOVERY_LOG)
            queue.execute(bytes(command), data_owner=data)
            page = data.read()
    finally:
        queue.close()
    (records,) = struct.unpack_from("<Q", page, 8)
    names = (page[LOG_HEADER + number * LOG_ENTRY + NQN_AT :][:256] for number in range(min(records, 8)))
    return [name.split(b"\0")[0].decode() for name in names]


def check(controller: Any) -> int:
    """Write and read back the first mebibyte block by block, and the rest as a whole; return the bytes checked."""
    namespace = controller.namespace(1)
    data = random.Random(1).randbytes(1 << 20)
    with controller.allocate(len(data)) as buffer:
        blocks = len(data) // namespace.info.lba_size
        buffer.write(data)
        namespace.write(buffer, slba=8, blocks=blocks)
        namespace.flush()
        buffer.write(bytes(len(data)))
        namespace.read(buffer, slba=8, blocks=blocks)
        if buffer.read() != data:
            raise SystemExit("data read differs from data written")
    return len(data)


def main(target: str, own: str, name: str) -> int:
    """Discover, connect, write, read back."""
    found = discover(target, own)
    if name not in found:
        raise SystemExit(f"{target} announces {found}, not {name}")
    with nvmeof.Controller.connect(target, name, source=own) as controller:
        size = check(controller)
    print(f"discovered {name}; {size} bytes written and read back")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

#!/usr/bin/env python3
"""A third-party verbs program: the PyPI package ``ibverbs``, a compiled module that dlopens libibverbs.

    rnic exec --addr 127.0.0.1 --addr 127.0.0.2 -- python programs/pypi_ibverbs.py
    rnic exec --addr 127.0.0.2 -- python programs/pypi_ibverbs.py HOST PORT

Without arguments it connects its two devices, and checks the data of every operation and that invalid requests are
refused. With arguments it is the client of an ``ibv_rc_pingpong`` with 200 messages of 4096 bytes.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import socket
import sys
from collections.abc import Callable
from typing import Any

import ibverbs as ib

BYTES = 65536
ACCESS = (
    ib.AccessFlags.LOCAL_WRITE | ib.AccessFlags.REMOTE_WRITE | ib.AccessFlags.REMOTE_READ | ib.AccessFlags.REMOTE_ATOMIC
)
PORT, GID_INDEX = 1, 0
ROUNDS, MESSAGE = 200, 4096


class Side:
    """A device with a connected queue pair and a registered buffer."""

    def __init__(self, device: Any) -> None:
        self.context = device.open()
        self.pd = self.context.alloc_pd()
        self.cq = self.context.create_cq(64)
        self.memory = mmap.mmap(-1, BYTES)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.mr = self.pd.reg_mr(self.address, BYTES, ACCESS)
        self.qp = self.pd.create_qp(ib.QPInitAttr(send_cq=self.cq, recv_cq=self.cq, qp_type=ib.QPType.RC))
        gid = self.context.query_gid(PORT, GID_INDEX)
        self.info = ib.local_qp_info(self.qp, self.context.query_port(PORT), gid, port=PORT, psn=0x123456)

    def connect(self, remote: Any, **options: int) -> None:
        """Bring the queue pair to RTS."""
        ib.connect_rc(
            self.qp, remote, port=PORT, sgid_index=GID_INDEX, access=ACCESS, local_psn=self.info.psn, **options
        )

    def done(self) -> Any:
        """Return the next completion."""
        while True:
            for completion in self.cq.poll(1):
                return completion

    def send(self, opcode: Any, length: int, **more: int) -> Any:
        """Post one request and wait for its completion."""
        sge = ib.SGE(self.mr, length)
        self.qp.post_send(ib.SendWR(wr_id=7, sg_list=[sge], opcode=opcode, send_flags=ib.SendFlags.SIGNALED, **more))
        return self.done()


def check(good: bool, what: str) -> None:
    """Exit with a message unless ``good``."""
    if not good:
        sys.exit(f"{what}: check failed")
    print(what)


def operations() -> None:
    """Run every operation between two devices, and check its data."""
    devices = ib.get_device_list()
    check(len(devices) == 2, "two devices")
    one, two = (Side(device) for device in devices)
    one.connect(two.info)
    two.connect(one.info)
    pattern = bytes(index * 7 & 0xFF for index in range(BYTES))
    there = {"remote_addr": two.address, "rkey": two.mr.rkey}

    one.memory[:] = pattern
    one.send(ib.WROpcode.RDMA_WRITE, BYTES, **there).raise_for_status()
    check(two.memory[:] == pattern, "WRITE of 64 KiB")
    two.memory[:] = pattern[::-1]
    one.send(ib.WROpcode.RDMA_READ, BYTES, **there).raise_for_status()
    check(one.memory[:] == pattern[::-1], "READ of 64 KiB")
    two.memory[:] = bytes(BYTES)
    two.qp.post_recv([ib.RecvWR(wr_id=9, sg_list=[ib.SGE(two.mr, BYTES)])])
    one.send(ib.WROpcode.SEND, 3001).raise_for_status()
    received = two.done()
    received.raise_for_status()
    check((received.wr_id, received.byte_len) == (9, 3001), "SEND's completion")
    check(two.memory[:3002] == one.memory[:3001] + b"\0", "SEND's data")
    two.memory[:8] = (41).to_bytes(8, "little")
    one.send(ib.WROpcode.ATOMIC_FETCH_AND_ADD, 8, **there, compare_add=1).raise_for_status()
    check((one.memory[0], two.memory[0]) == (41, 42), "FETCH_ADD")
    one.send(ib.WROpcode.ATOMIC_CMP_AND_SWP, 8, **there, compare_add=42, swap=99).raise_for_status()
    check((one.memory[0], two.memory[0]) == (42, 99), "CMP_SWAP")

    refused = []
    attempts: list[Callable[[], object]] = [
        lambda: one.pd.reg_dmabuf_mr(0, 4096, iova=0, fd=0, access=ACCESS),  # as a CUDA tensor would be
        lambda: one.pd.reg_mr(0x10, 4096, ACCESS),
    ]
    for register in attempts:
        try:
            register()
        except ib.VerbsError as error:
            refused.append(error.errno)
    check(refused == [errno.EOPNOTSUPP, errno.EFAULT], "dma-buf (CUDA) and unmapped memory refused")
    wild = one.send(ib.WROpcode.RDMA_WRITE, 8, remote_addr=0xDEAD0000, rkey=two.mr.rkey)
    check(wild.status == ib.WCStatus.REM_ACCESS_ERR, "WRITE to a wild address: remote access error")


def pingpong(host: str, port: int) -> None:
    """Run the client of ``ibv_rc_pingpong``: exchange addresses as text over TCP, then messages in both directions."""
    side = Side(ib.get_device_list()[0])
    half = BYTES // 2
    receive = [ib.RecvWR(sg_list=[ib.SGE(side.mr, MESSAGE, offset=half)])]
    with socket.create_connection((host, port)) as peer:
        mine = side.info
        text = f"{mine.lid:04x}:{mine.qp_num:06x}:{mine.psn:06x}:{mine.gid.hex()}\0"
        peer.sendall(text.encode())
        lid, qpn, psn, gid = peer.recv(len(text), socket.MSG_WAITALL).rstrip(b"\0").decode().split(":")
        mtu = ib.MTU.MTU_1024
        remote = ib.QPInfo(int(qpn, 16), int(psn, 16), int(lid, 16), bytes.fromhex(gid), PORT, mtu)
        side.connect(remote, mtu=mtu)
        side.qp.post_recv(receive)
        peer.sendall(b"done\0")
        for number in range(ROUNDS):
            side.memory[1:MESSAGE] = bytes((number & 0xFF,)) * (MESSAGE - 1)  # the peer checks the first byte
            side.send(ib.WROpcode.SEND, MESSAGE).raise_for_status()
            side.done().raise_for_status()
            if number + 1 < ROUNDS:
                side.qp.post_recv(receive)
    check(True, f"{ROUNDS} messages in each direction")


if __name__ == "__main__":
    if sys.argv[1:]:
        pingpong(sys.argv[1], int(sys.argv[2]))
    else:
        operations()

"""A program that lends a NIC of the NIC process pages of its own, finds its contexts there, and works on them."""

from __future__ import annotations

import ctypes
import json
import mmap
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rnic
from rnic.device.icm import CONTEXTS
from rnic.device.mailboxes import ICM_ENTRY, INIT_HCA
from rnic.link.base import parse_address
from rnic.runtime.attach import connect
from rnic.runtime.remote import RemoteDriver
from rnic.spec import attach
from rnic.spec import commands as cmd
from rnic.testing import QpPair, own_network
from rnic.verbs import Context
from rnic.verbs import enums as e

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="a NIC process needs Linux")]

ADDRESSES = tuple(f"{own_network()}.{host}" for host in (97, 98))
QPCS, CQCS, EQCS = 0x100000, 0x200000, 0x300000
TABLES = {"qpc_base": QPCS >> 8, "log_qpcs": 6, "cqc_base": CQCS >> 8, "log_cqcs": 6, "eqc_base": EQCS >> 8}
TABLES |= {"log_eqcs": 5}
PAGE = 4096


def lend(driver: RemoteDriver, pages: mmap.mmap) -> None:
    """Start the NIC anew on six pages of this program: four of QPCs, one of CQCs, one of EQCs."""
    anchor = ctypes.c_char.from_buffer(pages)
    host = ctypes.addressof(anchor)
    del anchor  # a mapping that is pointed to cannot be closed
    runs = ((QPCS, host, 4), (CQCS, host + 4 * PAGE, 1), (EQCS, host + 5 * PAGE, 1))
    entries = b"".join(
        ICM_ENTRY.pack({"virt": virt, "page_hi": at >> 32, "page": at >> 12 & 0xFFFFF, "npages": count})
        for virt, at, count in runs
    )
    for op, in_modifier, op_modifier, inbox in (
        (cmd.CLOSE_HCA, 0, 0, b""),
        (cmd.MAP_ICM, len(runs), CONTEXTS, entries),
        (cmd.INIT_HCA, 0, 0, INIT_HCA.pack(TABLES)),
    ):
        assert driver.command(op, in_modifier, op_modifier, inbox).status == cmd.ST_OK, cmd.COMMAND_NAMES[op]


@pytest.fixture
def lent(directory: Path) -> Iterator[tuple[QpPair, mmap.mmap]]:
    connection = connect(directory)
    assert connection is not None
    wanted = {"address": ADDRESSES[0], "port": None, "faults": None, "capture": None}
    name = connection.request(attach.MSG_ADD, json.dumps(wanted).encode())[0].rstrip(b"\0").decode()
    driver = RemoteDriver(connection, name)
    pages = mmap.mmap(-1, 6 * PAGE)
    lend(driver, pages)
    contexts = [Context(driver=driver), rnic.open(ADDRESSES[1], directory=directory)]
    nodes = [
        SimpleNamespace(
            ctx=ctx,
            counters={},
            nic=SimpleNamespace(config=SimpleNamespace(mtu=4096, address=parse_address(address), port=4791)),
        )
        for ctx, address in zip(contexts, ADDRESSES, strict=True)
    ]

    def run(until: Callable[[], bool], limit_ns: int = 0) -> bool:
        end = time.monotonic() + 10
        while not until():
            assert time.monotonic() < end, "it never came about"
        return True

    def close() -> None:
        for ctx in contexts:
            ctx.close()

    clock = SimpleNamespace(now_ns=0)
    net: Any = SimpleNamespace(nodes=nodes, driving=False, clock=clock, run=run, close=close)
    with QpPair("RC", net=net) as pair:
        yield pair, pages
    pages.close()


def test_contexts_are_in_the_programs_own_memory(lent: tuple[QpPair, mmap.mmap]) -> None:
    pair, pages = lent
    number = pair.a.qp.qp_num
    qpc = pages[number * 256 : (number + 1) * 256]
    assert qpc[0x08] >> 4 == 3  # RTS
    assert qpc[0x14:0x18] == number.to_bytes(4, "big")
    assert qpc[0x18:0x1C] == pair.b.qp.qp_num.to_bytes(4, "big")
    assert any(pages[4 * PAGE : 5 * PAGE])
    assert any(pages[5 * PAGE :])
    psn = int.from_bytes(qpc[0x6C:0x70], "big")
    for _ in range(3):
        pair.a.post_send(e.IBV_WR_RDMA_WRITE, 100)
        pair.a.wait()
    pair.a.qp.query(e.IBV_QP_STATE)  # which makes memory exact
    qpc = pages[number * 256 : (number + 1) * 256]
    assert int.from_bytes(qpc[0x6C:0x70], "big") == psn + 3
    pair.a.qp.close()
    assert pages[number * 256 + 8] >> 4 == 0


def test_the_nic_has_its_own_pages_again_when_the_lender_is_gone(
    lent: tuple[QpPair, mmap.mmap], directory: Path
) -> None:
    pair, _ = lent
    pair.a.ctx.close()
    with rnic.open(ADDRESSES[0], directory=directory) as again:
        assert rnic.verbs.CQ(again, 16).cqe >= 16

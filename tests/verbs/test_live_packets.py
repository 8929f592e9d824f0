"""Packets that a live connection would take next, with one thing wrong: cut short at every length, an ICRC bit off.

Each is dropped by a named counter and leaves all else as it was; then the whole packet is taken, which shows that
nothing else was wrong with it. Alone, and as the end of a burst whose beginning is good.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from rnic.spec.drops import DropReason
from rnic.spec.opcodes import PLACEMENT_GLOBAL, XRC
from rnic.spec.twins import FORCED_PLAIN, in_use
from rnic.testing import QpPair
from rnic.testing.pair import QKEY
from rnic.verbs import enums as e
from rnic.verbs.attrs import BindInfo, SendWR
from rnic.verbs.memory import MW, next_key
from rnic.wire.bursts import RxBurst
from rnic.wire.flow import Flow
from rnic.wire.opcode import OPCODES

MTU = 256
SIZE = 4096
ICRC_BITS = 32
PAYLOAD = bytes(range(1, 256)) * 2
DROPS = {reason.value for reason in DropReason}
WRITE = {"dma_length": 4 * MTU}
WHOLE: dict[str, dict[str, Any]] = {
    # what comes next, and the packets that were taken before it
    "RC_SEND_FIRST": {"payload": MTU},
    "RC_SEND_MIDDLE": {"payload": MTU, "before": ["RC_SEND_FIRST"]},
    "RC_SEND_LAST": {"payload": 13, "before": ["RC_SEND_FIRST"]},
    "RC_SEND_LAST_IMM": {"payload": 13, "before": ["RC_SEND_FIRST"]},
    "RC_SEND_LAST_INV": {"payload": 13, "before": ["RC_SEND_FIRST"], "inv_rkey": None},
    "RC_SEND_ONLY": {"payload": 8},
    "RC_SEND_ONLY_IMM": {"payload": 0},
    "RC_SEND_ONLY_INV": {"payload": 7, "inv_rkey": None},
    "RC_WRITE_FIRST": {"payload": MTU, **WRITE},
    "RC_WRITE_MIDDLE": {"payload": MTU, "before": ["RC_WRITE_FIRST"]},
    "RC_WRITE_LAST": {"payload": MTU, "before": ["RC_WRITE_FIRST", "RC_WRITE_MIDDLE", "RC_WRITE_MIDDLE"]},
    "RC_WRITE_LAST_IMM": {"payload": MTU, "before": ["RC_WRITE_FIRST", "RC_WRITE_MIDDLE", "RC_WRITE_MIDDLE"]},
    "RC_WRITE_ONLY": {"payload": 8, "dma_length": 8},
    "RC_WRITE_ONLY_IMM": {"payload": 5, "dma_length": 5},
    "RC_READ_REQUEST": {"dma_length": 600},
    "RC_COMPARE_SWAP": {"swap_add": 1},
    "RC_FETCH_ADD": {"swap_add": 1},
    "RC_ATOMIC_WRITE": {"payload": 8, "dma_length": 8},
    "RC_FLUSH": {"feth": PLACEMENT_GLOBAL, "dma_length": 600},
    "RC_ACKNOWLEDGE": {"posted": (e.IBV_WR_RDMA_WRITE, 8), "syndrome": 0x1F},
    "RC_READ_RESPONSE_FIRST": {"posted": (e.IBV_WR_RDMA_READ, 4 * MTU), "payload": MTU, "syndrome": 0x1F},
    "RC_READ_RESPONSE_MIDDLE": {
        "posted": (e.IBV_WR_RDMA_READ, 4 * MTU),
        "payload": MTU,
        "before": ["RC_READ_RESPONSE_FIRST"],
    },
    "RC_READ_RESPONSE_LAST": {
        "posted": (e.IBV_WR_RDMA_READ, 2 * MTU),
        "payload": MTU,
        "before": ["RC_READ_RESPONSE_FIRST"],
        "syndrome": 0x1F,
    },
    "RC_READ_RESPONSE_ONLY": {"posted": (e.IBV_WR_RDMA_READ, 21), "payload": 21, "syndrome": 0x1F},
    "RC_ATOMIC_ACKNOWLEDGE": {"posted": (e.IBV_WR_ATOMIC_FETCH_AND_ADD, 8), "syndrome": 0x1F},
    "CNP": {"payload": 16},
    "UC_SEND_FIRST": {"payload": MTU},
    "UC_SEND_MIDDLE": {"payload": MTU, "before": ["UC_SEND_FIRST"]},
    "UC_SEND_LAST": {"payload": 13, "before": ["UC_SEND_FIRST"]},
    "UC_SEND_LAST_IMM": {"payload": 13, "before": ["UC_SEND_FIRST"]},
    "UC_SEND_ONLY": {"payload": 8},
    "UC_SEND_ONLY_IMM": {"payload": 0},
    "UC_WRITE_FIRST": {"payload": MTU, **WRITE},
    "UC_WRITE_MIDDLE": {"payload": MTU, "before": ["UC_WRITE_FIRST"]},
    "UC_WRITE_LAST": {"payload": MTU, "before": ["UC_WRITE_FIRST", "UC_WRITE_MIDDLE", "UC_WRITE_MIDDLE"]},
    "UC_WRITE_LAST_IMM": {"payload": MTU, "before": ["UC_WRITE_FIRST", "UC_WRITE_MIDDLE", "UC_WRITE_MIDDLE"]},
    "UC_WRITE_ONLY": {"payload": 8, "dma_length": 8},
    "UC_WRITE_ONLY_IMM": {"payload": 5, "dma_length": 5},
    "UD_SEND_ONLY": {"payload": 8},
    "UD_SEND_ONLY_IMM": {"payload": 0},
}


def test_no_opcode_is_left_out() -> None:
    """A packet of each row of the opcode table is cut and marred; behind its XRCETH one of XRC is as one of RC."""
    assert set(WHOLE) == {row.name for row in OPCODES if row is not None and row.service != XRC}


class Live:
    """Side a of a connection that waits for one packet; its peer is silent, and packets come from :meth:`frame`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pair = QpPair(
            "RC" if name == "CNP" else name[:2], size=SIZE, depth=16, attributes={"path_mtu": e.IBV_MTU_256}
        )
        side = self.side = self.pair.a
        self.nic = side.node.nic
        self.qp = self.nic.qps[side.qp.qp_num]
        here, there = self.nic.config, side.peer.node.nic.config
        self.flow = Flow(there.address, here.address, there.port, here.port)
        self.factory = self.pair.factory(side)
        side.post_recv(1500)
        what = WHOLE[name]
        if "inv_rkey" in what:
            window = MW(side.pd, e.IBV_MW_TYPE_2)
            self.window_key = next_key(window.rkey)
            bind = SendWR(1, e.IBV_WR_BIND_MW)
            info = BindInfo(side.mr, side.mr.buf, SIZE, e.IBV_ACCESS_REMOTE_WRITE)
            bind.set_bind_wr(window, self.window_key, info)
            side.qp.post_send(bind)
            assert side.wait()[0].status == e.IBV_WC_SUCCESS
        self.psn = self.qp.ctx.expected_psn
        if self.pair.service == "RC":
            # the first packet of a connection goes another way than all that follow
            self.give(self.frame("RC_WRITE_ONLY"))
            self.psn += 1
        if "posted" in what:
            operation, length = what["posted"]
            side.post_send(operation, length, offset=2048)
            self.nic.produce(self.now)
        if "posted" in what:
            self.psn = self.qp.requester.una
        for before in what.get("before", []):
            self.give(self.frame(before))
            self.psn += 1

    @property
    def now(self) -> int:
        return int(self.pair.clock.now_ns)

    def frame(self, name: str, place: int = 0) -> bytes:
        """The next packet of this name, right in everything; or the one at ``place`` of a burst that begins with it."""
        fields = {key: value for key, value in WHOLE[name].items() if key not in ("posted", "before")}
        fields["payload"] = PAYLOAD[: fields.get("payload", 0)]
        fields |= {"va": self.side.mr.buf, "rkey": self.side.mr.rkey, "qkey": QKEY, "ackreq": name != "CNP"}
        if "inv_rkey" in fields:
            fields["inv_rkey"] = self.window_key
        return self.factory(name, self.psn + place, ident=place, **fields)

    def give(self, data: bytes, segment: int = 0) -> None:
        burst = RxBurst(self.flow, memoryview(data), segment or len(data), len(data), 0)
        self.nic.receive(burst, self.now)

    def look(self) -> tuple[object, ...]:
        """Everything that a packet may change, beside counters."""
        qp = self.qp
        return bytes(self.side.buf), qp.ctx.store(), qp.memory.image(), qp.cqs[0].tail

    def drops(self) -> int:
        return sum(count for name, count in self.nic.counters.items() if name in DROPS)

    def dropped(self, data: bytes) -> None:
        """A bad packet: one drop counter moves, and nothing else."""
        seen, counters = self.look(), dict(self.nic.counters)
        self.give(data)
        assert self.look() == seen
        moved = {
            name: count - counters.get(name, 0)
            for name, count in self.nic.counters.items()
            if count != counters.get(name, 0)
        }
        assert moved.pop("rx_packets") == 1
        assert list(moved.values()) == [1], moved
        assert set(moved) <= DROPS, moved

    def taken(self, frame: bytes) -> None:
        """The whole packet changes what it should."""
        seen, drops = self.look(), self.drops()
        self.give(frame)
        assert self.drops() == drops
        if self.name == "CNP":
            assert self.nic.counters["cnps_received"] == 1
        else:
            assert self.look() != seen
        assert self.qp.ctx.state == e.IBV_QPS_RTS


@pytest.mark.parametrize("name", WHOLE)
def test_cut_short_at_every_length(name: str) -> None:
    live = Live(name)
    with live.pair:
        frame = live.frame(name)
        for length in range(1, len(frame)):
            live.dropped(frame[:length])
        live.taken(frame)


@pytest.mark.parametrize("name", WHOLE)
def test_every_bit_of_the_icrc_wrong(name: str) -> None:
    live = Live(name)
    with live.pair:
        frame = live.frame(name)
        for bit in range(ICRC_BITS):
            wrong = int.from_bytes(frame[-4:], "little") ^ 1 << bit
            live.dropped(frame[:-4] + wrong.to_bytes(4, "little"))
        live.taken(frame)


RUNS = ["RC_SEND_MIDDLE", "RC_WRITE_MIDDLE", "UC_SEND_MIDDLE", "UC_WRITE_MIDDLE", "RC_READ_RESPONSE_MIDDLE"]


@pytest.mark.parametrize("place", range(2))
@pytest.mark.parametrize("name", RUNS)
def test_a_burst_ends_where_it_is_wrong(name: str, place: int) -> None:
    """Two middles in one burst, the one at ``place`` with an ICRC bit off: what stands before it is taken, alone."""
    for bit in range(0, ICRC_BITS, 5):
        live = Live(name)
        with live.pair:
            frames = [bytearray(live.frame(name, index)) for index in range(2)]
            frames[place][-4 + bit // 8] ^= 1 << bit % 8
            before = bytes(live.side.buf)
            live.give(b"".join(frames), len(frames[0]))
            assert live.nic.counters[DropReason.BAD_ICRC.value] == 1
            assert (bytes(live.side.buf) != before) is (place == 1)
            assert live.qp.ctx.state == e.IBV_QPS_RTS


@pytest.mark.slow
@pytest.mark.skipif(
    FORCED_PLAIN or not any(in_use.values()), reason="nothing is compiled here: they ran in plain Python"
)
def test_all_of_it_in_plain_python() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env={**os.environ, "RNIC_PLAIN": "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]

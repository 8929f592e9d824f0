"""Queue pairs of nothing but words, for congestion controls."""

from __future__ import annotations

from array import array

from rnic.cc.control import Ack
from rnic.cc.controlled import Controlled
from rnic.cc.settings import CongestionSettings
from rnic.spec.limits import NEVER
from rnic.state.queue_pair import QP
from rnic.state.record import place

MTU = 1_024
PACKET = 1_040 + 16
LINE_RATE = 100e9


class Words:
    """The words of one record, by their names."""

    cells: memoryview

    def __init__(self, most: int = 16) -> None:
        self.__dict__["cells"] = memoryview(array("Q", bytes(QP.size)))
        self.most = self.widest = self.window = most
        self.control_ns = NEVER
        self.mtu = MTU

    def __getattr__(self, name: str) -> int:
        return int(self.cells[place(QP, name)])

    def __setattr__(self, name: str, value: int) -> None:
        self.cells[place(QP, name)] = value


def controlled(
    settings: CongestionSettings, most: int = 16, packet: int = PACKET, line_rate: float = LINE_RATE
) -> tuple[Controlled, Words]:
    """A flow under a congestion control from time 0 on, and its words."""
    words = Words(most)
    return Controlled(words.cells, 1, packet, line_rate, 16, settings.make, 0), words


def ack(now_ns: int, rtt_ns: int, psn: int = 1, next_psn: int = 16, packets: int = 1, **more: object) -> Ack:
    """An acknowledgement."""
    return Ack(now_ns, psn, next_psn, packets, packets * MTU, rtt_ns, **more)  # type: ignore[arg-type]

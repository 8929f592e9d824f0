"""Join rotated stream beats to memory beats on a wide bus, with registers after the rotation and at the output."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import register_at, unreset
from rnic.gateware.interfaces import AxiStream


def by_lane(mask: Value, ones: Value, zeros: Value, lane: int) -> Value:
    """Select each lane from ``ones`` if its mask bit is set, else from ``zeros``."""
    return Cat(*(Mux(mask[at], ones.word_select(at, lane), zeros.word_select(at, lane)) for at in range(len(mask))))


class BeatJoiner(wiring.Component):
    """Take a beat while ``make`` and ``ready``, and output it in the next cycle or later, once the output slice has
    room. Lanes of ``from_now`` are its own, others are from the beat before.

    Without ``stored`` none of its lanes is written; ``begins``: the next beat has no predecessor. With ``forget``
    output beats are not written.
    """

    def __init__(self, width: int) -> None:
        lanes = width // 8
        super().__init__(
            {
                "turned": In(width),
                "turned_mask": In(lanes),
                "from_now": In(lanes),
                "stored": In(1),
                "last": In(1),
                "make": In(1),
                "ready": Out(1),
                "begins": In(1),
                "forget": In(1),
                "empty": Out(1),
                "m_axis": Out(AxiStream(width)),
            }
        )
        self.width = width

    def elaborate(self, platform: object) -> Module:
        """Build a register for the taken beat, and one for the beat before."""
        m = Module()
        lanes, out = self.width // 8, self.m_axis
        now, now_mask, stored = unreset(self.width), unreset(lanes), unreset(1)
        before, before_mask, own = unreset(self.width), unreset(lanes), unreset(lanes)
        fresh = Signal()
        last = register_at(m, out.tlast)
        written = now_mask & stored.replicate(lanes)
        m.d.comb += [
            self.ready.eq(~out.tvalid | out.tready),
            self.empty.eq(~out.tvalid),
            out.tdata.eq(by_lane(own, now, before, 8)),
            out.tkeep.eq(Mux(self.forget, 0, by_lane(own, written, before_mask, 1))),
        ]
        with m.If(self.ready):
            m.d.sync += out.tvalid.eq(self.make)
        with m.If(self.make & self.ready):
            m.d.sync += [
                now.eq(self.turned),
                now_mask.eq(self.turned_mask),
                stored.eq(self.stored),
                own.eq(self.from_now),
                last.eq(self.last),
                before.eq(now),
                before_mask.eq(Mux(fresh, 0, written)),
                fresh.eq(0),
            ]
        with m.If(self.begins):
            m.d.sync += fresh.eq(1)
        return m

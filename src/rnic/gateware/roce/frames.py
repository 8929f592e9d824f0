"""``frames``: convert Ethernet frames to packets that start with the IP header or the BTH, and back (IPv4).

Frames are stored whole first, so that a frame for another host, or without room, is dropped completely.
"""

from __future__ import annotations

from typing import Final

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import pack, unpack, unreset, words_of
from rnic.gateware.packet_fifo import PacketFifo
from rnic.gateware.roce.replies import ROUTE
from rnic.gateware.roce.responder import wire
from rnic.gateware.roce.streams import LENGTH_BITS, beat
from rnic.spec.limits import BTH_BYTES, ICRC_BYTES, MAX_UDP_PAYLOAD, ROCE_UDP_PORT
from rnic.wire.ethernet import ETHERNET, ETHERNET_BYTES, TYPE_IPV4
from rnic.wire.ip import (
    DONT_FRAGMENT,
    FRAGMENT_MASK,
    IPV4_BYTES,
    IPV4_HEADER,
    PROTO_UDP,
    UDP_BYTES,
    UDP_HEADER,
)

IP_UDP_BYTES: Final = IPV4_BYTES + UDP_BYTES
HEADERS_BYTES: Final = ETHERNET_BYTES + IP_UDP_BYTES
SOURCE: Final = data.StructLayout({"src": 32, "ecn": 2})
"""Source address and ECN bits of each packet."""
SOURCES: Final = 32
"""Packets stored at once."""
TTL: Final = 64


def sum_is_right(header: Value) -> Value:
    """Return whether the checksum of an IPv4 header in byte lanes is right: the sum of its words is all ones."""
    total = Value.cast(sum(words_of(header)))
    folded = total[:16] + total[16:]
    return (folded[:16] + folded[16:])[:16] == 0xFFFF


class Skip(wiring.Component):
    """Removes ``count`` bytes from the front of each packet, which must be longer."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__({"beats": In(stream.Signature(beat(width))), "rest": Out(stream.Signature(beat(width)))})
        self.width, self.count = width, count

    def elaborate(self, platform: object) -> Module:
        """Join the end of a beat and the beginning of the next."""
        m = Module()
        lanes, given, out = self.width // 8, self.beats, self.rest
        whole, shift = self.count // lanes, self.count % lanes
        assert shift, "whole beats alone need no joining"
        came = given.payload
        place, flush, taken = Signal(range(whole + 2)), Signal(), Signal()
        before, left = unreset(self.width), unreset(range(lanes + 1))
        joins = place == whole + 1
        beyond = came.count > shift
        m.d.comb += [
            out.valid.eq(flush | (given.valid & joins)),
            out.payload.data.eq(Cat(before[shift * 8 :], came.data[: shift * 8])),
            out.payload.last.eq(flush | (came.last & ~beyond)),
            out.payload.count.eq(
                Mux(flush, left, Mux(out.payload.last, (lanes - shift + came.count)[: len(left)], lanes))
            ),
            given.ready.eq(~flush & (~joins | out.ready)),
            taken.eq(given.valid & given.ready),
        ]
        with m.If(taken):
            m.d.sync += [
                before.eq(came.data),
                left.eq(came.count - shift),
                place.eq(Mux(came.last, 0, Mux(joins, place, place + 1))),
                flush.eq(came.last & beyond & (place >= whole)),
            ]
        with m.Elif(flush & out.ready):
            m.d.sync += flush.eq(0)
        return m


class Prefix(wiring.Component):
    """Prepends ``count`` bytes, one of ``fronts``, to each packet."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__(
            {
                "fronts": In(stream.Signature(count * 8)),
                "beats": In(stream.Signature(beat(width))),
                "whole": Out(stream.Signature(beat(width))),
            }
        )
        self.width, self.count = width, count

    def elaborate(self, platform: object) -> Module:
        """Send whole beats of the front, then the packet shifted up behind the rest of it."""
        m = Module()
        width, lanes, given, out, front = self.width, self.width // 8, self.beats, self.whole, self.fronts
        alone, shift = self.count // lanes, self.count % lanes
        assert shift, "whole beats alone need no joining"
        came = given.payload
        place, tail, begun = Signal(range(alone + 1)), Signal(), Signal()
        carried, left = unreset(shift * 8), unreset(range(lanes + 1))
        total = wire(m, came.count + shift, "total")
        spills = total > lanes
        part = Signal(shift * 8)
        m.d.comb += part.eq(Mux(begun, carried, front.payload[alone * width :]))
        moved = out.valid & out.ready
        heads = place < alone
        with m.If(tail):
            m.d.comb += [
                out.valid.eq(1), out.payload.data.eq(carried), out.payload.count.eq(left), out.payload.last.eq(1)
            ]  # fmt: skip
        with m.Elif(heads):
            m.d.comb += [out.valid.eq(front.valid), out.payload.count.eq(lanes)]
            with m.Switch(place):
                for at in range(alone):
                    with m.Case(at):
                        m.d.comb += out.payload.data.eq(front.payload[at * width : (at + 1) * width])
        with m.Else():
            m.d.comb += [
                out.valid.eq(given.valid & (begun | front.valid)),
                given.ready.eq(out.ready & (begun | front.valid)),
                out.payload.data.eq(Cat(part, came.data[: width - shift * 8])),
                out.payload.last.eq(came.last & ~spills),
                out.payload.count.eq(Mux(out.payload.last, total, lanes)),
                front.ready.eq(moved & ~begun),
            ]
        with m.If(moved):
            with m.If(out.payload.last):
                m.d.sync += [place.eq(0), tail.eq(0), begun.eq(0)]
            with m.Elif(heads):
                m.d.sync += place.eq(place + 1)
            with m.Else():
                m.d.sync += [
                    begun.eq(1), carried.eq(came.data[width - shift * 8 :]), left.eq(total - lanes), tail.eq(came.last)
                ]  # fmt: skip
        return m


class UdpParse(wiring.Component):
    """``frames`` start with the destination address and have no FCS; always ready. RoCEv2 packets to ``mac`` and ``ip``
    are output starting with the IP header (``packets``), each with a ``source``. All other frames, and those without
    room, are dropped."""

    def __init__(self, width: int, room: int) -> None:
        super().__init__(
            {
                "frames": In(stream.Signature(beat(width))),
                "mac": In(48),
                "ip": In(32),
                "packets": Out(stream.Signature(beat(width))),
                "source": Out(stream.Signature(SOURCE)),
                "dropped": Out(1),
            }
        )
        self.width, self.room = width, room

    def elaborate(self, platform: object) -> Module:
        """Write beats up to the packet's end, and commit them once the frame has ended without error."""
        m = Module()
        width, lanes = self.width, self.width // 8
        m.submodules.fifo = fifo = PacketFifo(width, self.room)
        m.submodules.skip = skip = Skip(width, ETHERNET_BYTES)
        m.submodules.sources = sources = SyncFIFOBuffered(width=SOURCE.size, depth=SOURCES)
        came, given = self.frames.payload, self.frames
        header_beats = -(-HEADERS_BYTES // lanes)
        place, kept = Signal(range(header_beats + 1)), unreset(header_beats * width)
        seen = Signal(header_beats * width)
        for at in range(header_beats):
            own = slice(at * width, (at + 1) * width)
            m.d.comb += seen[own].eq(Mux(place == at, came.data, kept[own]))
        ip_lanes = wire(m, seen[ETHERNET_BYTES * 8 : (ETHERNET_BYTES + IPV4_BYTES) * 8], "ip_lanes")

        def ip(name: str) -> Value:
            return unpack(ip_lanes, IPV4_HEADER, name)

        def udp(name: str) -> Value:
            return unpack(seen, UDP_HEADER, name, ETHERNET_BYTES + IPV4_BYTES)

        total = ip("total_length")
        end = wire(m, ETHERNET_BYTES + total, "end")
        before, lost, ended = Signal(17), Signal(), Signal()  # ended: all bytes of the packet are stored
        known = place >= header_beats - 1
        reaches = known & (before + came.count >= end)
        m.d.comb += given.ready.eq(1)
        right = wire(
            m,
            (unpack(seen, ETHERNET, "ethertype") == TYPE_IPV4)
            & (unpack(seen, ETHERNET, "dst_mac") == self.mac)
            & (ip("version") == 4)
            & (ip("ihl") == IPV4_BYTES // 4)
            & ((ip("flags_fragment") & FRAGMENT_MASK) == 0)
            & (ip("protocol") == PROTO_UDP)
            & (ip("dst") == self.ip)
            & (udp("dport") == ROCE_UDP_PORT)
            & (udp("length") + IPV4_BYTES == total)
            & (total >= IP_UDP_BYTES + BTH_BYTES + ICRC_BYTES)
            & (total <= IP_UDP_BYTES + MAX_UDP_PAYLOAD)
            & (total[:2] == 0)
            & sum_is_right(ip_lanes),
            "right",
        )
        no_room = given.valid & ~ended & ~fifo.room
        good = right & (ended | reaches) & ~lost & ~no_room & sources.w_rdy
        source = Signal(SOURCE)
        m.d.comb += [
            fifo.data.eq(came.data),
            fifo.count.eq(Mux(reaches, (end - before)[: len(fifo.count)], lanes)),
            fifo.last.eq(reaches),
            fifo.push.eq(given.valid & ~ended),
            fifo.commit.eq(given.valid & came.last & good),
            fifo.rollback.eq(given.valid & came.last & ~good),
            self.dropped.eq(fifo.rollback),
            source.src.eq(ip("src")),
            source.ecn.eq(ip("tos")),
            sources.w_data.eq(source),
            sources.w_en.eq(fifo.commit),
            skip.beats.payload.data.eq(fifo.m_axis.tdata),
            skip.beats.payload.count.eq(fifo.m_count),
            skip.beats.payload.last.eq(fifo.m_axis.tlast),
            skip.beats.valid.eq(fifo.m_axis.tvalid),
            fifo.m_axis.tready.eq(skip.beats.ready),
            Value.cast(self.source.payload).eq(sources.r_data),
            self.source.valid.eq(sources.r_rdy),
            sources.r_en.eq(self.source.ready),
        ]
        wiring.connect(m, skip.rest, wiring.flipped(self.packets))
        with m.If(given.valid):
            for at in range(header_beats):
                with m.If(place == at):
                    m.d.sync += kept[at * width : (at + 1) * width].eq(came.data)
            with m.If(came.last):
                m.d.sync += [place.eq(0), before.eq(0), ended.eq(0), lost.eq(0)]
            with m.Else():
                m.d.sync += [
                    place.eq(Mux(place == header_beats, place, place + 1)),
                    before.eq(before + came.count),
                    ended.eq(ended | reaches),
                    lost.eq(lost | no_room),
                ]
        return m


class UdpBuild(wiring.Component):
    """Builds packets that start with the IP header, from ``beats`` (BTH to pad) and a ``route`` each; ``mac`` and
    ``ip`` are ours. They have no ICRC yet, but their lengths include it."""

    def __init__(self, width: int) -> None:
        super().__init__(
            {
                "beats": In(stream.Signature(beat(width))),
                "route": In(stream.Signature(ROUTE)),
                "ip": In(32),
                "packets": Out(stream.Signature(beat(width))),
                "macs": Out(stream.Signature(48)),
            }
        )
        self.width = width

    def elaborate(self, platform: object) -> Module:
        """Build both headers, with the IP header's checksum; the frame's destination address waits for the ICRC."""
        m = Module()
        m.submodules.prefix = prefix = Prefix(self.width, IP_UDP_BYTES)
        m.submodules.macs = macs = SyncFIFOBuffered(width=48, depth=SOURCES)
        route = self.route.payload
        size = wire(m, route.bytes + ICRC_BYTES, "size")
        length = wire(m, (size + IP_UDP_BYTES)[:16], "length")
        plain = pack(
            IPV4_HEADER,
            {
                "version": Const(4), "ihl": Const(IPV4_BYTES // 4), "total_length": length,
                "flags_fragment": Const(DONT_FRAGMENT, 16), "ttl": Const(TTL), "protocol": Const(PROTO_UDP),
                "src": self.ip, "dst": route.peer,
            },
        )  # fmt: skip
        added = Value.cast(sum(words_of(wire(m, plain, "plain"))))
        folded = wire(m, added[:16] + added[16:], "folded")
        checksum = wire(m, ~(folded[:16] + folded[16:])[:16], "checksum")
        sums = pack(IPV4_HEADER, {"checksum": checksum})
        udp = pack(
            UDP_HEADER,
            {"sport": route.sport, "dport": Const(ROCE_UDP_PORT, 16), "length": (size + UDP_BYTES)[:LENGTH_BITS]},
        )
        goes = self.route.valid & macs.w_rdy
        m.d.comb += [
            prefix.fronts.payload.eq(Cat(plain | sums, udp)),
            prefix.fronts.valid.eq(goes),
            self.route.ready.eq(prefix.fronts.ready & goes),
            macs.w_data.eq(route.mac),
            macs.w_en.eq(self.route.valid & self.route.ready),
            self.macs.payload.eq(macs.r_data),
            self.macs.valid.eq(macs.r_rdy),
            macs.r_en.eq(self.macs.ready),
        ]
        wiring.connect(m, wiring.flipped(self.beats), prefix.beats)
        wiring.connect(m, prefix.whole, wiring.flipped(self.packets))
        return m


class EthernetBuild(wiring.Component):
    """Builds frames from ``packets``, which start with the IP header, and their destination addresses; ``mac`` is
    ours."""

    def __init__(self, width: int) -> None:
        super().__init__(
            {
                "packets": In(stream.Signature(beat(width))),
                "macs": In(stream.Signature(48)),
                "mac": In(48),
                "frames": Out(stream.Signature(beat(width))),
            }
        )
        self.width = width

    def elaborate(self, platform: object) -> Module:
        """Prepend the Ethernet header."""
        m = Module()
        m.submodules.prefix = prefix = Prefix(self.width, ETHERNET_BYTES)
        values = {"dst_mac": self.macs.payload, "src_mac": self.mac, "ethertype": Const(TYPE_IPV4, 16)}
        m.d.comb += [
            prefix.fronts.payload.eq(pack(ETHERNET, values)),
            prefix.fronts.valid.eq(self.macs.valid),
            self.macs.ready.eq(prefix.fronts.ready),
        ]
        wiring.connect(m, wiring.flipped(self.packets), prefix.beats)
        wiring.connect(m, prefix.whole, wiring.flipped(self.frames))
        return m

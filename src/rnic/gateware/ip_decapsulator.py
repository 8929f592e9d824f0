"""``ip_decapsulator``: RDMA packets out of Ethernet, IPv4 and UDP.

The first 70 bytes of a frame, its headers and the seven words, are gathered, then checked in the order of the
documented codes. The packet goes into a FIFO as the header parser wants it, the seven words in beats of their own and
the payload from the next beat, and shows at the output only when the frame has ended well: nothing of a bad frame
comes out.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import keep_count, keep_mask, pack, unpack
from rnic.gateware.interfaces import AxiStream, RegBus
from rnic.gateware.net_registers import NetRegisters
from rnic.gateware.params import EngineParams
from rnic.spec.engine_net_regs import (
    BROADCAST_MAC,
    DECAP_REGISTERS,
    DECAP_STATES,
    ENCAP_CTRL,
    MAX_IP_BYTES,
    NET_STATUS,
    RX_DISABLED,
    RX_FRAGMENT,
    RX_FRAME,
    RX_IP_CHECKSUM,
    RX_IP_IHL,
    RX_IP_VERSION,
    RX_LENGTH,
    RX_MAC,
    RX_NOT_IPV4,
    RX_NOT_UDP,
    RX_OK,
    RX_PORT,
)
from rnic.wire.engine_header import ENGINE_HEADER_BYTES
from rnic.wire.ethernet import ETHERNET, ETHERNET_BYTES, TYPE_IPV4
from rnic.wire.ip import FRAGMENT_MASK, IPV4_BYTES, IPV4_HEADER, PROTO_UDP, UDP_BYTES, UDP_HEADER

IP_AT = ETHERNET_BYTES
UDP_AT = IP_AT + IPV4_BYTES
PACKET_AT = UDP_AT + UDP_BYTES
PREFIX_BYTES = PACKET_AT + ENGINE_HEADER_BYTES
FIFO_BYTES = 4096
"""Two frames of the largest size: one is written while another is read."""

GATHER, SUM, CHECK, HEADER, PAYLOAD, FINISH, DRAIN = range(len(DECAP_STATES))


class PacketFifo(wiring.Component):
    """A FIFO of beats whose reader sees only committed packets.

    A beat is written where ``push`` and ``room``. ``commit`` shows all beats written before to the reader, ``rollback``
    forgets those since the last commit, ``clear`` forgets everything.
    """

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(
            {
                "data": In(width),
                "count": In(range(width // 8 + 1)),
                "last": In(1),
                "push": In(1),
                "room": Out(1),
                "commit": In(1),
                "rollback": In(1),
                "clear": In(1),
                "m_axis": Out(AxiStream(width)),
            }
        )
        self.width = width
        self.depth = depth

    def elaborate(self, platform: object) -> Module:
        """Pointers one bit longer than an address tell full from empty."""
        m = Module()
        out, lanes = self.m_axis, self.width // 8
        size = len(self.data) + len(self.count) + 1
        m.submodules.beats = beats = Memory(shape=size, depth=self.depth, init=[])
        write, read = beats.write_port(), beats.read_port()
        bits = (self.depth - 1).bit_length() + 1
        head, tail, committed = Signal(bits), Signal(bits), Signal(bits)
        m.d.comb += [
            self.room.eq((tail - head)[:bits] != self.depth),
            write.addr.eq(tail),
            write.data.eq(Cat(self.data, self.count, self.last)),
            write.en.eq(self.push & self.room),
        ]
        with m.If(write.en):
            m.d.sync += tail.eq(tail + 1)
        with m.If(self.commit):
            m.d.sync += committed.eq(tail)
        with m.If(self.rollback):
            m.d.sync += tail.eq(committed)

        load = (~out.tvalid | out.tready) & (head != committed)
        m.d.comb += [read.addr.eq(head), read.en.eq(load)]
        with m.If(load):
            m.d.sync += [head.eq(head + 1), out.tvalid.eq(1)]
        with m.Elif(out.tready):
            m.d.sync += out.tvalid.eq(0)
        data, count, last = read.data[: self.width], read.data[self.width : -1], read.data[-1]
        m.d.comb += [out.tdata.eq(data), out.tkeep.eq(keep_mask(count, lanes)), out.tlast.eq(last)]
        with m.If(self.clear):
            m.d.sync += [head.eq(0), tail.eq(0), committed.eq(0), out.tvalid.eq(0)]
        return m


class IpDecapsulator(wiring.Component):
    """Good frames become packets; each other one is a pulse of ``error``, a code in STATUS and a count in DROP_CNT."""

    def __init__(self, params: EngineParams) -> None:
        width = params.bus_width
        super().__init__(
            {
                "s_axis": In(AxiStream(width)),
                "m_axis": Out(AxiStream(width)),
                "regs": In(RegBus(8)),
                "error": Out(1),
                "reset": In(1),
            }
        )
        self.params = params
        self.state = Signal(range(len(DECAP_STATES)))

    def elaborate(self, platform: object) -> Module:
        """States as in ``DECAP_STATES``."""
        m = Module()
        params, state, source = self.params, self.state, self.s_axis
        lanes = params.bus_bytes
        prefix_beats = -(-PREFIX_BYTES // lanes)
        rest_bytes = prefix_beats * lanes - PREFIX_BYTES

        m.submodules.registers = bank = NetRegisters(DECAP_REGISTERS)
        wiring.connect(m, wiring.flipped(self.regs), bank.regs)
        value = bank.value
        m.submodules.fifo = fifo = PacketFifo(params.bus_width, FIFO_BYTES // lanes)
        wiring.connect(m, fifo.m_axis, wiring.flipped(self.m_axis))

        prefix = Signal(prefix_beats * lanes * 8)
        beat = Signal(range(prefix_beats + 1))
        got = Signal(16)  # frame bytes so far; a longer frame stays at the top
        bad = Signal()  # the MAC said so, or a beat before the last was not full
        ended = Signal()
        left = Signal(16)  # payload bytes still to come out
        rest = Signal(rest_bytes * 8)

        here = keep_count(source.tkeep)
        taken = Signal()
        m.d.comb += taken.eq(source.tvalid & source.tready)
        more = Signal(17)
        m.d.comb += more.eq(got + here)
        with m.If(taken):
            m.d.sync += [
                got.eq(Mux(more[16], 0xFFFF, more)),
                ended.eq(source.tlast),
                bad.eq(bad | (source.tlast & source.tuser) | (~source.tlast & ~source.tkeep.all())),
                rest.eq(source.tdata[-rest_bytes * 8 :]),
            ]

        # ---- fields and checks
        def ethernet(name: str) -> Value:
            return unpack(prefix, ETHERNET, name)

        def ip(name: str) -> Value:
            return unpack(prefix, IPV4_HEADER, name, IP_AT)

        def udp(name: str) -> Value:
            return unpack(prefix, UDP_HEADER, name, UDP_AT)

        ip_header = prefix[IP_AT * 8 : UDP_AT * 8]
        halves = Signal(20)
        m.d.sync += halves.eq(
            sum(Cat(ip_header[at + 8 : at + 16], ip_header[at : at + 8]) for at in range(0, IPV4_BYTES * 8, 16))
        )
        folded = Signal(17)
        m.d.comb += folded.eq(halves[:16] + halves[16:])
        local_mac = Cat(value["LOCAL_MAC_LO"], value["LOCAL_MAC_HI"])
        total, udp_length = ip("total_length"), udp("length")
        frame_bytes = Signal(17)
        m.d.comb += frame_bytes.eq(total + IP_AT)
        code = Signal(4)
        verdict: Value = Const(RX_OK, 4)
        for wrong, number in reversed(
            (
                (~value["CTRL"][ENCAP_CTRL["enable"].lsb], RX_DISABLED),
                ((ethernet("dst_mac") != local_mac) & (ethernet("dst_mac") != BROADCAST_MAC), RX_MAC),
                (ethernet("ethertype") != TYPE_IPV4, RX_NOT_IPV4),
                (ip("version") != 4, RX_IP_VERSION),
                (ip("ihl") != IPV4_BYTES // 4, RX_IP_IHL),
                ((folded[:16] + folded[16])[:16] != 0xFFFF, RX_IP_CHECKSUM),
                (ip("protocol") != PROTO_UDP, RX_NOT_UDP),
                ((ip("flags_fragment") & FRAGMENT_MASK) != 0, RX_FRAGMENT),
                (udp("dport") != value["LOCAL_PORT"], RX_PORT),
                (udp_length < UDP_BYTES + ENGINE_HEADER_BYTES, RX_LENGTH),
                (total > MAX_IP_BYTES, RX_LENGTH),
                (total != udp_length + IPV4_BYTES, RX_LENGTH),
                (ended & (got < frame_bytes), RX_FRAME),
            )
        ):
            verdict = Mux(wrong, Const(number, 4), verdict)

        drop, drop_code = Signal(), Signal(4)
        good = Signal()
        with m.Switch(state):
            with m.Case(GATHER):
                m.d.comb += source.tready.eq(1)
                with m.If(taken):
                    m.d.sync += beat.eq(beat + 1)
                    for index in range(prefix_beats):
                        low = index * lanes * 8
                        with m.If(beat == index):
                            m.d.sync += prefix[low : low + lanes * 8].eq(source.tdata)
                        with m.Elif(beat == 0):  # nothing of an earlier frame may pass for this one's
                            m.d.sync += prefix[low : low + lanes * 8].eq(0)
                    with m.If(source.tlast | (beat == prefix_beats - 1)):
                        m.d.sync += state.eq(SUM)
            with m.Case(SUM):
                m.d.sync += [beat.eq(0), state.eq(CHECK)]
            with m.Case(CHECK):
                m.d.comb += code.eq(verdict)
                m.d.sync += [beat.eq(0), left.eq(udp_length - (UDP_BYTES + ENGINE_HEADER_BYTES))]
                with m.If(code == RX_OK):
                    m.d.sync += state.eq(HEADER)
                with m.Else():
                    m.d.comb += [drop.eq(1), drop_code.eq(code)]
                    m.d.sync += state.eq(Mux(ended, GATHER, DRAIN))
            with m.Case(HEADER):
                packet = prefix[PACKET_AT * 8 : PREFIX_BYTES * 8]
                final = beat == params.header_beats - 1
                m.d.comb += [
                    fifo.push.eq(1),
                    fifo.data.eq(packet.word_select(beat, lanes * 8) if lanes < ENGINE_HEADER_BYTES else packet),
                    fifo.count.eq(Mux(final, ENGINE_HEADER_BYTES - (params.header_beats - 1) * lanes, lanes)),
                    fifo.last.eq(final & (left == 0)),
                ]
                with m.If(fifo.room):
                    m.d.sync += beat.eq(beat + 1)
                    with m.If(final):
                        m.d.sync += state.eq(Mux(left == 0, FINISH, PAYLOAD))
            with m.Case(PAYLOAD):
                from_rest = left <= rest_bytes
                m.d.comb += [
                    fifo.data.eq(Cat(rest, source.tdata)),
                    fifo.count.eq(Mux(left < lanes, left, lanes)),
                    fifo.last.eq(left <= lanes),
                ]
                with m.If(from_rest):
                    m.d.comb += fifo.push.eq(1)
                with m.Elif(~ended):
                    m.d.comb += [fifo.push.eq(source.tvalid), source.tready.eq(fifo.room)]
                with m.If(fifo.push & fifo.room):
                    m.d.sync += left.eq(left - lanes)
                    with m.If(left <= lanes):
                        m.d.sync += state.eq(FINISH)
                with m.If(ended & ~from_rest):
                    m.d.sync += state.eq(FINISH)
            with m.Case(FINISH):
                # what follows the UDP payload is Ethernet padding
                m.d.comb += source.tready.eq(~ended)
                with m.If(ended):
                    m.d.sync += state.eq(GATHER)
                    with m.If(bad | (got < frame_bytes)):
                        m.d.comb += [drop.eq(1), drop_code.eq(RX_FRAME), fifo.rollback.eq(1)]
                    with m.Else():
                        m.d.comb += [good.eq(1), fifo.commit.eq(1)]
            with m.Case(DRAIN):
                m.d.comb += source.tready.eq(1)
                with m.If(taken & source.tlast):
                    m.d.sync += state.eq(GATHER)

        # a frame begins with nothing of the one before
        between = Signal()
        m.d.comb += between.eq((state == GATHER) & (beat == 0))
        with m.If(between):
            m.d.sync += [
                got.eq(Mux(taken, here, 0)),
                ended.eq(taken & source.tlast),
                bad.eq(taken & ((source.tlast & source.tuser) | (~source.tlast & ~source.tkeep.all()))),
            ]
        with m.If((state != GATHER) & (state != HEADER)):
            m.d.sync += beat.eq(0)

        # ---- soft reset of the engine: forget all packets, and the rest of the frame that is coming in
        m.d.comb += fifo.clear.eq(self.reset)
        with m.If(self.reset):
            inside = Signal()
            m.d.comb += inside.eq(((state != GATHER) | (beat != 0)) & ~ended)
            m.d.comb += [source.tready.eq(1), drop.eq(0), good.eq(0)]
            m.d.sync += [beat.eq(0), state.eq(GATHER)]
            with m.If(Mux(taken, ~source.tlast, inside)):
                m.d.sync += state.eq(DRAIN)

        # ---- what software sees
        m.d.comb += self.error.eq(drop)
        failed, status_code = Signal(), Signal(4)
        clear = Signal()
        m.d.comb += clear.eq(bank.written["CTRL"] & bank.write_data[ENCAP_CTRL["soft_reset"].lsb])
        m.d.sync += value["HEARTBEAT"].eq(value["HEARTBEAT"] + 1)
        with m.If(bank.was_read["HDR_VALID"]):
            m.d.sync += value["HDR_VALID"].eq(0)
        with m.If(good):
            m.d.sync += [
                value["RX_SRC_IP"].eq(ip("src")),
                value["RX_DST_IP"].eq(ip("dst")),
                value["RX_SRC_PORT"].eq(udp("sport")),
                value["RX_DST_PORT"].eq(udp("dport")),
                value["RX_LEN"].eq(udp_length - UDP_BYTES),
                value["PKT_CNT"].eq(value["PKT_CNT"] + 1),
                value["HDR_VALID"].eq(1),
            ]
        with m.If(bank.written["IRQ_ACK"] | clear):
            m.d.sync += [failed.eq(0), status_code.eq(0)]
        with m.If(drop):
            m.d.sync += [failed.eq(1), status_code.eq(drop_code), value["DROP_CNT"].eq(value["DROP_CNT"] + 1)]
        with m.If(clear):
            m.d.sync += [value["PKT_CNT"].eq(0), value["DROP_CNT"].eq(0)]
        busy = (state != GATHER) | (beat != 0)
        m.d.comb += value["STATUS"].eq(
            pack(NET_STATUS, {"busy": busy, "error": failed, "code": status_code, "fsm": state})
        )
        return m

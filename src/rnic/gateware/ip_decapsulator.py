"""``ip_decapsulator``: extract RDMA packets from Ethernet, IPv4 and UDP.

The first 70 bytes of a frame, its headers and the seven words, are gathered, then checked in the order of the
documented codes. The packet goes into a FIFO in the header parser's format: the seven words in separate beats, then the
payload. It appears at the output only after the frame has ended without error: no part of a bad frame gets out.

The MAC never waits: its beats go into a FIFO of frames. A frame without room there is dropped whole and counted, and so
is one that the MAC marks as bad.
"""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, ValueLike
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import keep_count, keep_mask, pack, sum_in_two_steps, unpack, unreset, words_of
from rnic.gateware.interfaces import AxiStream, RegBus
from rnic.gateware.net_registers import NetRegisters
from rnic.gateware.packet_fifo import PacketFifo
from rnic.gateware.params import EngineParams
from rnic.spec.engine_net_regs import (
    BROADCAST_MAC,
    DECAP_REGISTERS,
    DECAP_STATES,
    ENCAP_CTRL,
    MAX_IP_BYTES,
    NET_STATUS,
    RX_ADDRESS,
    RX_DISABLED,
    RX_FRAGMENT,
    RX_FRAME,
    RX_FULL,
    RX_IP_CHECKSUM,
    RX_IP_IHL,
    RX_IP_VERSION,
    RX_LENGTH,
    RX_MAC,
    RX_MODE,
    RX_NOT_IPV4,
    RX_NOT_UDP,
    RX_OK,
    RX_PORT,
    RX_UDP_CHECKSUM,
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


class IpDecapsulator(wiring.Component):
    """Good frames become packets; every other frame pulses ``error``, sets a code in STATUS and increments DROP_CNT.
    ``accept``: the engine accepts packets from the network; otherwise arriving frames are dropped. ``pending``: a
    packet is leaving, or will.
    """

    def __init__(self, params: EngineParams) -> None:
        width = params.bus_width
        super().__init__(
            {
                "s_axis": In(AxiStream(width)),
                "m_axis": Out(AxiStream(width)),
                "regs": In(RegBus(8)),
                "accept": In(1, init=1),
                "pending": Out(1),
                "error": Out(1),
                "reset": In(1),
            }
        )
        self.params = params
        self.state = Signal(range(len(DECAP_STATES)))

    def elaborate(self, platform: object) -> Module:
        """Build the states of ``DECAP_STATES``."""
        m = Module()
        params, state = self.params, self.state
        lanes = params.bus_bytes
        reset = Signal(name="late_reset")  # so that no path from the other end of the engine ends here
        m.d.sync += reset.eq(self.reset)
        lost = self._front(m, reset)
        source = self.front.m_axis
        prefix_beats = -(-PREFIX_BYTES // lanes)
        rest_bytes = prefix_beats * lanes - PREFIX_BYTES
        spare = prefix_beats - 1 - (PACKET_AT - 1) // lanes  # of these beats follow the headers
        at_once = lanes >= PACKET_AT  # the headers are in one beat, and are summed as it arrives
        early = spare >= 3  # so the verdict is registered before their last beat

        m.submodules.registers = bank = NetRegisters(DECAP_REGISTERS)
        wiring.connect(m, wiring.flipped(self.regs), bank.regs)
        value = bank.value
        m.submodules.fifo = fifo = PacketFifo(params.bus_width, FIFO_BYTES // lanes)
        wiring.connect(m, fifo.m_axis, wiring.flipped(self.m_axis))
        closing = Signal()  # a packet is in the FIFO, and its sum is not known yet
        m.d.comb += self.pending.eq(((state >= HEADER) & (state <= FINISH)) | closing | ~fifo.empty)

        prefix = unreset(prefix_beats * lanes * 8)
        beat = Signal(range(prefix_beats + 1))
        got = Signal(16)  # frame bytes so far; a longer frame stays at the top
        bad = Signal()  # bad by the MAC, or a beat before the last was not full
        ended = Signal()
        left = unreset(16)  # payload bytes still to be output
        last_beat, from_rest = Signal(), Signal()  # they fill no more than a beat; they are all in ``rest``
        rest = unreset(rest_bytes * 8)

        here = self.front.m_count if params.broad else keep_count(source.tkeep)
        taken, gathered = Signal(), Signal()  # a beat; one in GATHER, which never waits
        m.d.comb += [
            taken.eq(source.tvalid & source.tready),
            gathered.eq(source.tvalid & (state == GATHER) & ~reset),
        ]
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

        first = gathered & (beat == 0) if at_once else None
        headers = source.tdata if at_once else prefix
        halves = unreset(20)
        m.d.sync += halves.eq(sum_in_two_steps(m, words_of(headers[IP_AT * 8 : UDP_AT * 8]), first))
        local_mac = Cat(value["LOCAL_MAC_LO"], value["LOCAL_MAC_HI"])
        total, udp_length = ip("total_length"), udp("length")
        frame_bytes = unreset(17)
        m.d.sync += frame_bytes.eq(total + IP_AT)
        code = Signal(4)

        def seen(wrong: ValueLike) -> Signal:
            """Return a registered check of the header, aligned with the header's sum."""
            flag = Signal()
            m.d.sync += flag.eq(wrong)
            return flag

        def within(count: int) -> Signal:
            """Return whether the UDP payload after the seven words has at most ``count`` bytes."""
            return seen(udp_length <= UDP_BYTES + ENGINE_HEADER_BYTES + count)

        in_a_beat, in_rest, is_none = within(lanes), within(rest_bytes), within(0)
        nothing = Signal()  # there is no payload
        verdict: Value = Const(RX_OK, 4)
        for wrong, number in reversed(
            (
                (~value["CTRL"][ENCAP_CTRL["enable"].lsb], RX_DISABLED),
                (~self.accept, RX_MODE),
                (seen((ethernet("dst_mac") != local_mac) & (ethernet("dst_mac") != BROADCAST_MAC)), RX_MAC),
                (seen(ethernet("ethertype") != TYPE_IPV4), RX_NOT_IPV4),
                (seen(ip("version") != 4), RX_IP_VERSION),
                (seen(ip("ihl") != IPV4_BYTES // 4), RX_IP_IHL),
                (halves[:16] != ~Cat(halves[16:], Const(0, 12)), RX_IP_CHECKSUM),  # no sum of ten words carries twice
                (seen(ip("protocol") != PROTO_UDP), RX_NOT_UDP),
                (seen((ip("flags_fragment") & FRAGMENT_MASK) != 0), RX_FRAGMENT),
                (seen((ip("dst") != value["LOCAL_IP"]) if params.check_address else Const(0, 1)), RX_ADDRESS),
                (seen(udp("dport") != value["LOCAL_PORT"]), RX_PORT),
                (seen(udp_length < UDP_BYTES + ENGINE_HEADER_BYTES), RX_LENGTH),
                (seen(total > MAX_IP_BYTES), RX_LENGTH),
                (seen(total != udp_length + IPV4_BYTES), RX_LENGTH),
            )
        ):
            verdict = Mux(wrong, Const(number, 4), verdict)
        judged = Signal(4)
        if early:
            m.d.sync += judged.eq(verdict)
        else:
            m.d.comb += judged.eq(verdict)
        settle = Signal(2)  # cycles in SUM until the header's sum and the verdict are known

        shown = {  # of the last frame known to be good
            "RX_SRC_IP": ip("src"),
            "RX_DST_IP": ip("dst"),
            "RX_SRC_PORT": udp("sport"),
            "RX_DST_PORT": udp("dport"),
            "RX_LEN": udp_length - UDP_BYTES,
        }
        held = {name: unreset(32 if "IP" in name else 16, name=f"{name}_held") for name in shown}
        drop, drop_code = Signal(), Signal(4)
        good = Signal()
        begins = Signal()
        written: Sequence[Value] = [fifo.count > lane for lane in range(lanes)]
        if params.broad:  # the lanes of the last beat are known in advance: all earlier beats are full
            whole, in_header = Signal(), state == HEADER
            tail = left[: (lanes - 1).bit_length()]
            last_lanes = unreset(lanes)
            m.d.sync += last_lanes.eq(keep_mask(tail, lanes) | (tail == 0).replicate(lanes))
            m.d.comb += whole.eq(Mux(in_header, beat != params.header_beats - 1, ~last_beat))
            header_lanes = (1 << ENGINE_HEADER_BYTES - (params.header_beats - 1) * lanes) - 1
            written = [whole | Mux(in_header, Const(header_lanes, lanes)[at], last_lanes[at]) for at in range(lanes)]
        summed, wrong_sum = (
            self._udp_sum(m, fifo, written, headers, begins, first)
            if params.check_udp_checksum
            else (Const(1), Const(0))
        )
        spoilt, unsummed = Signal(), Signal()
        with m.Switch(state):
            with m.Case(GATHER):
                m.d.comb += source.tready.eq(1)
                with m.If(gathered):
                    m.d.sync += beat.eq(beat + 1)
                    for index in range(prefix_beats):
                        low = index * lanes * 8
                        with m.If(beat == index):
                            m.d.sync += prefix[low : low + lanes * 8].eq(source.tdata)
                        with m.Elif(beat == 0):  # data of an earlier frame must not be taken for this one's
                            m.d.sync += prefix[low : low + lanes * 8].eq(0)
                    with m.If(beat == prefix_beats - 1):
                        m.d.sync += [settle.eq(0), state.eq(CHECK if spare >= 2 or at_once else SUM)]
                    with m.Elif(source.tlast):
                        m.d.sync += [settle.eq(2 if early else 1), state.eq(SUM)]
            with m.Case(SUM):
                m.d.sync += [beat.eq(0), settle.eq(settle - 1)]
                with m.If(settle == 0):
                    m.d.sync += state.eq(CHECK)
            with m.Case(CHECK), m.If((~closing | good) if at_once else ~closing):
                short = (judged == RX_OK) & ended & (got < frame_bytes)
                m.d.comb += [begins.eq(1), code.eq(Mux(short, RX_FRAME, judged))]
                m.d.sync += [last_beat.eq(in_a_beat), from_rest.eq(in_rest), nothing.eq(is_none)]
                m.d.sync += [beat.eq(0), left.eq(udp_length - (UDP_BYTES + ENGINE_HEADER_BYTES))]
                with m.If(code == RX_OK):
                    m.d.sync += state.eq(HEADER)
                with m.Else():
                    m.d.comb += [drop.eq(1), drop_code.eq(code)]
                    m.d.sync += state.eq(Mux(ended, GATHER, DRAIN))
            with m.Case(HEADER):
                final = beat == params.header_beats - 1
                m.d.comb += [
                    fifo.push.eq(1),
                    fifo.count.eq(Mux(final, ENGINE_HEADER_BYTES - (params.header_beats - 1) * lanes, lanes)),
                    fifo.last.eq(final & nothing),
                ]
                with m.If(fifo.room):
                    m.d.sync += beat.eq(beat + 1)
                    with m.If(final):
                        m.d.sync += state.eq(Mux(nothing, FINISH, PAYLOAD))
            with m.Case(PAYLOAD):
                m.d.comb += [
                    fifo.count.eq(Mux(last_beat, left, lanes)),
                    fifo.last.eq(last_beat),
                ]
                with m.If(from_rest):
                    m.d.comb += fifo.push.eq(1)
                with m.Elif(~ended):
                    m.d.comb += [fifo.push.eq(source.tvalid), source.tready.eq(fifo.room)]
                with m.If(fifo.push & fifo.room):
                    m.d.sync += [left.eq(left - lanes), last_beat.eq(left <= 2 * lanes)]
                    m.d.sync += from_rest.eq(left <= lanes + rest_bytes)
                    with m.If(last_beat):
                        m.d.sync += state.eq(FINISH)
                with m.If(ended & ~from_rest):
                    m.d.sync += state.eq(FINISH)
            with m.Case(FINISH):
                # bytes after the UDP payload are Ethernet padding
                m.d.comb += source.tready.eq(~ended)
                with m.If(ended):
                    m.d.sync += [
                        closing.eq(1),
                        spoilt.eq(bad | (got < frame_bytes)),
                        unsummed.eq(udp("checksum") == 0),
                        *(held[name].eq(now) for name, now in shown.items()),
                        state.eq(GATHER),
                    ]
            with m.Case(DRAIN):
                m.d.comb += source.tready.eq(1)
                with m.If(taken & source.tlast):
                    m.d.sync += state.eq(GATHER)

        # all lanes have their own enable register instead of the state
        from_prefix = Signal()
        with m.If(state == CHECK):
            m.d.sync += from_prefix.eq(1)
        with m.Elif((state == HEADER) & fifo.room & (beat == params.header_beats - 1)):
            m.d.sync += from_prefix.eq(0)
        packet = prefix[PACKET_AT * 8 : PREFIX_BYTES * 8]
        words = packet.word_select(beat, lanes * 8) if lanes < ENGINE_HEADER_BYTES else packet
        m.d.comb += fifo.data.eq(Mux(from_prefix, words, Cat(rest, source.tdata)))

        # ---- commit or drop a packet whose sum is known, while the next frame is gathered
        with m.If(closing & (spoilt | unsummed | summed)):
            m.d.sync += closing.eq(0)
            with m.If(spoilt):
                m.d.comb += [drop.eq(1), drop_code.eq(RX_FRAME), fifo.rollback.eq(1)]
            with m.Elif(wrong_sum & ~unsummed):
                m.d.comb += [drop.eq(1), drop_code.eq(RX_UDP_CHECKSUM), fifo.rollback.eq(1)]
            with m.Else():
                m.d.comb += [good.eq(1), fifo.commit.eq(1)]

        # a frame begins with cleared state
        between = Signal()
        m.d.comb += between.eq((state == GATHER) & (beat == 0))
        with m.If(between):
            m.d.sync += [
                got.eq(Mux(gathered, here, 0)),
                ended.eq(gathered & source.tlast),
                bad.eq(gathered & ((source.tlast & source.tuser) | (~source.tlast & ~source.tkeep.all()))),
            ]
        with m.If((state != GATHER) & (state != HEADER)):
            m.d.sync += beat.eq(0)

        # ---- soft reset of the engine: drop all frames and packets
        m.d.comb += fifo.clear.eq(reset)
        with m.If(reset):
            m.d.comb += [source.tready.eq(0), drop.eq(0), good.eq(0)]
            m.d.sync += [beat.eq(0), closing.eq(0), state.eq(GATHER)]

        # ---- registers
        failed, status_code = Signal(), Signal(4)
        dropped, dropped_code, missed = Signal(), Signal(4), Signal(2)  # a cycle ago
        m.d.sync += [dropped.eq(drop), dropped_code.eq(drop_code), missed.eq(lost), self.error.eq(drop | lost.any())]
        clear = Signal()
        m.d.comb += clear.eq(bank.written["CTRL"] & bank.write_data[ENCAP_CTRL["soft_reset"].lsb])
        m.d.sync += value["HEARTBEAT"].eq(value["HEARTBEAT"] + 1)
        with m.If(bank.was_read["HDR_VALID"]):
            m.d.sync += value["HDR_VALID"].eq(0)
        with m.If(good):
            m.d.sync += [value[name].eq(last) for name, last in held.items()]
            m.d.sync += [value["PKT_CNT"].eq(value["PKT_CNT"] + 1), value["HDR_VALID"].eq(1)]
        with m.If(bank.written["IRQ_ACK"] | clear):
            m.d.sync += [failed.eq(0), status_code.eq(0)]
        with m.If(missed.any()):
            m.d.sync += [failed.eq(1), status_code.eq(Mux(missed[0], RX_FULL, RX_FRAME))]
        with m.If(dropped):
            m.d.sync += [failed.eq(1), status_code.eq(dropped_code)]
        m.d.sync += value["DROP_CNT"].eq(value["DROP_CNT"] + dropped + missed.any())
        with m.If(clear):
            m.d.sync += [value["PKT_CNT"].eq(0), value["DROP_CNT"].eq(0)]
        busy = (state != GATHER) | (beat != 0) | closing
        m.d.comb += value["STATUS"].eq(
            pack(NET_STATUS, {"busy": busy, "error": failed, "code": status_code, "fsm": state})
        )
        return m

    def _front(self, m: Module, reset: Signal) -> Signal:
        """Build the FIFO of frames from the MAC; return pulses for a frame without room, and for one that the MAC
        marked bad."""
        params, mac = self.params, self.s_axis
        lanes = params.bus_bytes
        m.submodules.front = self.front = front = PacketFifo(params.bus_width, params.rx_fifo_bytes // lanes)
        full, forget = Signal(), Signal()  # the arriving frame: had no room; began before a reset
        inside = Signal()
        lost = Signal(2)
        m.d.comb += [
            mac.tready.eq(1),
            front.data.eq(mac.tdata),
            front.count.eq(keep_count(mac.tkeep)),
            front.last.eq(mac.tlast),
            front.push.eq(mac.tvalid & ~full & ~forget),
            front.clear.eq(reset),
        ]
        with m.If(mac.tvalid):
            m.d.sync += [full.eq(full | ~front.room), inside.eq(~mac.tlast)]
            with m.If(mac.tlast):
                m.d.sync += [full.eq(0), forget.eq(0)]
                with m.If(~reset & ~forget):
                    m.d.comb += [lost[0].eq(full | ~front.room), lost[1].eq(~lost[0] & mac.tuser)]
                    m.d.comb += [front.commit.eq(~lost.any()), front.rollback.eq(lost.any())]
        with m.If(reset):
            m.d.sync += [full.eq(0), forget.eq(Mux(mac.tvalid, ~mac.tlast, inside))]
        return lost

    def _udp_sum(
        self,
        m: Module,
        fifo: PacketFifo,
        written: Sequence[Value],
        headers: Value,
        begins: Signal,
        first: Value | None,
    ) -> tuple[Value, Value]:
        """Return whether the checksum of the written packet is known, and whether it is wrong. ``written``: the lanes
        of the beat at the FIFO.

        Addresses, protocol, lengths and ports are summed while the header is checked, at ``begins``; the seven words
        and the payload as they go into the FIFO: a beat's words in groups, then the groups. ``headers`` are whole, or
        in the beat of ``first``.
        """
        lanes = self.params.bus_bytes

        head = unreset(20)
        length = unpack(headers, UDP_HEADER, "length", UDP_AT)
        addresses = headers[(UDP_AT - 8) * 8 : UDP_AT * 8]
        parts = [*words_of(addresses), *words_of(headers[UDP_AT * 8 : PACKET_AT * 8]), length, Const(PROTO_UDP)]
        m.d.sync += head.eq(sum_in_two_steps(m, parts, first))

        masked = unreset(lanes * 8)
        m.d.sync += masked.eq(Cat(*(Mux(written[lane], fifo.data.word_select(lane, 8), 0) for lane in range(lanes))))
        each = words_of(masked)
        groups = [unreset(19, name=f"group_{at}") for at in range(0, len(each), 8)]
        pushed = Signal(4)  # valid bits of the stages: masked, in groups, in the total, folded
        total = unreset(32)
        m.d.sync += pushed.eq(Cat(fifo.push & fifo.room, pushed))
        m.d.sync += [group.eq(sum(each[at * 8 : at * 8 + 8])) for at, group in enumerate(groups)]
        with m.If(begins):
            m.d.sync += total.eq(head)
        with m.Elif(pushed[1]):
            m.d.sync += total.eq(total + sum(groups))
        if first is not None:
            added, wrong, settling = Signal(17), Signal(), Signal()
            m.d.comb += added.eq(total[:16] + total[16:])
            m.d.sync += [  # right if the sum with carry is FFFF: FFFF without carry, or FFFE with one
                wrong.eq(~(added[1:16].all() & (added[0] ^ added[16]))),
                settling.eq((fifo.push & fifo.room) | pushed[:2].any()),
            ]
            return ~settling, wrong
        once = unreset(17)
        m.d.sync += once.eq(total[:16] + total[16:])
        folded = Signal(16)
        m.d.comb += folded.eq(once[:16] + once[16])
        # wait for the last stage if latency does not matter: its result is registered
        return ~pushed.any(), folded != 0xFFFF

"""``ip_encapsulator``: encapsulate RDMA packets in UDP, IPv4 and Ethernet, after checking their META word.

A packet arrives from the header inserter with the seven-word header in separate beats; on the wire, header and payload
follow 42 bytes of Ethernet, IP and UDP headers without a gap. These and the seven words are gathered first: 70 bytes,
whose remainder in the last beat is the same for every packet, so that the payload needs one fixed shift.

A packet whose META is refused, or that has no endpoint, is drained, so that it never blocks the transmit path. With
several WRITEs in flight, the next packet's META is checked and its endpoint looked up while a packet is sent. Frames
are stored whole before they are sent, so none has a gap, and a frame with a bad packet is never sent. A frame whose
transmission has begun is completed even through a reset.
"""

from __future__ import annotations

from collections.abc import Mapping

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, ValueLike
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from rnic.gateware.bits import keep_count, pack, register_at, sum_in_two_steps, unreset, words_of
from rnic.gateware.interfaces import AxiStream, Endpoint, Lookup, Meta, RegBus
from rnic.gateware.net_registers import NetRegisters
from rnic.gateware.packet_fifo import PacketFifo
from rnic.gateware.params import EngineParams
from rnic.spec.engine_net_regs import (
    ENCAP_CTRL,
    ENCAP_REGISTERS,
    ENCAP_STATES,
    IP_TTL,
    MAX_UDP_PAYLOAD,
    META_DST_IP,
    META_DST_PORT,
    META_LENGTH_LONG,
    META_LENGTH_ZERO,
    META_OK,
    META_SRC_IP,
    META_SRC_PORT,
    NET_STATUS,
    TX_DISABLED,
    TX_LOOKUP_MISS,
    TX_PACKET_LENGTH,
)
from rnic.wire.engine_header import ENGINE_HEADER_BYTES
from rnic.wire.ethernet import ETHERNET, ETHERNET_BYTES, TYPE_IPV4
from rnic.wire.ip import DONT_FRAGMENT, IPV4_BYTES, IPV4_HEADER, PROTO_UDP, UDP_BYTES, UDP_HEADER

PREFIX_BYTES = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES + ENGINE_HEADER_BYTES
"""70; without the seven words 42: 11 beats of a 32-bit bus, with the payload shifted by two bytes."""

META_NAMES = ("length", "src_ip", "dst_ip", "src_port", "dst_port")

FIFO_BYTES = 4096
"""Two frames of the largest size: one is written while another leaves."""
VERDICTS = 64
"""Packets with a result not yet reported: more than the frames that the FIFO holds."""

IDLE, CHECK, LOOKUP, GATHER, PREFIX, PAYLOAD, TAIL, DRAIN = range(len(ENCAP_STATES))


def meta_code(length: Value, src_ip: Value, dst_ip: Value, src_port: Value, dst_port: Value) -> Value:
    """Return the META check: the first of the documented codes that applies, or 0."""
    code: Value = Const(META_OK, 4)
    for refused, number in reversed(
        (
            (length == 0, META_LENGTH_ZERO),
            (length > MAX_UDP_PAYLOAD, META_LENGTH_LONG),
            (src_ip == 0, META_SRC_IP),
            (dst_ip == 0, META_DST_IP),
            (src_port == 0, META_SRC_PORT),
            (dst_port == 0, META_DST_PORT),
        )
    ):
        code = Mux(refused, Const(number, 4), code)
    return code


def ip_fields(meta: Mapping[str, Value], ident: Value | int) -> dict[str, ValueLike]:
    """Return the fields of the IP header, without its checksum."""
    return {
        "version": 4,
        "ihl": IPV4_BYTES // 4,
        "total_length": (meta["length"] + (IPV4_BYTES + UDP_BYTES))[:16],
        "identification": ident,
        "flags_fragment": DONT_FRAGMENT,
        "ttl": IP_TTL,
        "protocol": PROTO_UDP,
        "src": meta["src_ip"],
        "dst": meta["dst_ip"],
    }


def ip_sum(m: Module, fields: Mapping[str, ValueLike]) -> Value:
    """Return the sum of the header's ten words, carries not folded in, a cycle late; 20 bits."""
    return sum_in_two_steps(m, words_of(pack(IPV4_HEADER, fields)))[:20]


class MetaAhead(wiring.Component):
    """The META word after the current packet's: checked, its endpoint looked up, its header summed except for the
    identification. ``code`` is the reason for refusal, or META_OK; it and the other outputs are valid with ``m_meta``.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "s_meta": In(Meta()),
                "m_meta": Out(Meta()),
                "code": Out(4),
                "sum": Out(20),
                "dst_mac": Out(48),
                "src_mac": Out(48),
                "lookup": Out(Lookup()),
                "enable": In(1),
                "clear": In(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Take a META word, check it, look up its endpoint, output it."""
        m = Module()
        empty, check, asked, shown = range(4)
        state = Signal(range(4))
        meta = {name: register_at(m, getattr(self.m_meta, name)) for name in META_NAMES}
        total, dst_mac, src_mac = (register_at(m, port) for port in (self.sum, self.dst_mac, self.src_mac))
        m.d.comb += [
            self.s_meta.ready.eq(state == empty),
            self.m_meta.valid.eq(state == shown),
            self.lookup.ip.eq(meta["dst_ip"]),
        ]
        m.d.sync += total.eq(ip_sum(m, ip_fields(meta, 0)))
        code = Signal(4)
        m.d.comb += code.eq(Mux(self.enable, meta_code(**meta), TX_DISABLED))
        with m.Switch(state):
            with m.Case(empty):
                m.d.sync += [kept.eq(getattr(self.s_meta, name)) for name, kept in meta.items()]
                with m.If(self.s_meta.valid):
                    m.d.sync += state.eq(check)
            with m.Case(check):
                m.d.comb += self.lookup.request.eq((code == META_OK) & ~self.clear)
                m.d.sync += [self.code.eq(code), state.eq(Mux(code == META_OK, asked, shown))]
            with m.Case(asked):
                m.d.sync += [dst_mac.eq(self.lookup.dst_mac), src_mac.eq(self.lookup.src_mac)]
                with m.If(self.lookup.response):
                    m.d.sync += [self.code.eq(Mux(self.lookup.hit, META_OK, TX_LOOKUP_MISS)), state.eq(shown)]
            with m.Case(shown), m.If(self.m_meta.ready):
                m.d.sync += state.eq(empty)
        with m.If(self.clear):
            m.d.sync += state.eq(empty)
        return m


class IpEncapsulator(wiring.Component):
    """One frame for each packet and META word. ``error`` pulses for each refused or bad packet.

    ``done`` is one cycle long for each packet, in order: the MAC has taken the whole frame, or there is none and
    ``done_code`` says why.
    """

    def __init__(self, params: EngineParams) -> None:
        width = params.bus_width
        super().__init__(
            {
                "s_axis": In(AxiStream(width)),
                "s_meta": In(Meta()),
                "lookup": Out(Lookup()),
                "endpoint": Out(Endpoint()),
                "m_axis": Out(AxiStream(width)),
                "regs": In(RegBus(8)),
                "error": Out(1),
                "done": Out(1),
                "done_code": Out(4),
                "reset": In(1),
            }
        )
        self.params = params
        self.state = Signal(range(len(ENCAP_STATES)))

    def elaborate(self, platform: object) -> Module:
        """Build the states of ``ENCAP_STATES``."""
        m = Module()
        params, state, out = self.params, self.state, self.m_axis
        lanes = params.bus_bytes
        prefix_beats, rest_bytes = divmod(PREFIX_BYTES, lanes)
        reset = Signal(name="late_reset")  # so that no path from the other end of the engine ends here
        m.d.sync += reset.eq(self.reset)
        untold = self.reset | reset

        m.submodules.registers = bank = NetRegisters(ENCAP_REGISTERS)
        wiring.connect(m, wiring.flipped(self.regs), bank.regs)
        value = bank.value
        for register, name in (
            ("SRC_IP", "src_ip"),
            ("DST_IP", "dst_ip"),
            ("SRC_PORT", "src_port"),
            ("DST_PORT", "dst_port"),
        ):
            m.d.comb += getattr(self.endpoint, name).eq(value[register])

        meta = {
            name: Signal.like(getattr(self.s_meta, name), name=f"meta_{name}", reset_less=True) for name in META_NAMES
        }
        code, checked = Signal(4), Signal()
        test_only = Signal()  # the current META word is that of CTRL.start
        test_wanted = Signal()
        dst_mac, src_mac = unreset(48), unreset(48)
        ident = Signal(16)

        # the frame's first 70 bytes; the checksum's sums are registered on the way from CHECK to PREFIX
        header = unreset(ENGINE_HEADER_BYTES * 8)
        checksum = unreset(16)
        fields = ip_fields(meta, ident)
        halves = unreset(20)
        ahead = MetaAhead() if params.in_flight > 1 else None
        if ahead is not None:
            m.submodules.ahead = ahead
            wiring.connect(m, wiring.flipped(self.s_meta), ahead.s_meta)
            wiring.connect(m, ahead.lookup, wiring.flipped(self.lookup))
            m.d.comb += [ahead.enable.eq(value["CTRL"][ENCAP_CTRL["enable"].lsb]), ahead.clear.eq(reset)]
        else:
            m.d.sync += halves.eq(ip_sum(m, fields))
        folded = Signal(17)
        m.d.comb += folded.eq(halves[:16] + halves[16:])
        m.d.sync += checksum.eq(~(folded[:16] + folded[16]))
        prefix = Cat(
            pack(ETHERNET, {"dst_mac": dst_mac, "src_mac": src_mac, "ethertype": TYPE_IPV4}),
            pack(IPV4_HEADER, {**fields, "checksum": checksum}),
            pack(
                UDP_HEADER,
                {"sport": meta["src_port"], "dport": meta["dst_port"], "length": meta["length"] + UDP_BYTES},
            ),
            header,
        )

        beat = Signal(range(max(params.header_beats, prefix_beats) + 1))
        rest = unreset(rest_bytes * 8)  # bytes carried into the next beat
        rest_count = Signal(range(lanes + 1))
        got = Signal(16)  # UDP payload bytes so far
        bad = Signal()
        ended = Signal()  # the packet had no payload

        # ---- output: frames go to the MAC when they are complete
        m.submodules.frames = frames = PacketFifo(params.bus_width, FIFO_BYTES // lanes, keep_begun=True, late=True)
        wiring.connect(m, frames.m_axis, wiring.flipped(out))
        push, data, count, last = Signal(), Signal(lanes * 8), Signal(range(lanes + 1)), Signal()
        # whether a frame is good is known in the cycle after its last beat, when `judging`
        spoilt, spoiled, judging = Signal(), Signal(), Signal()
        final_got, final_length, final_bad = unreset(16), Signal.like(meta["length"]), Signal()
        room = Signal()
        sent = Signal()
        m.d.comb += [
            room.eq(frames.room),
            frames.clear.eq(reset),
            sent.eq(push & room & last),
            spoilt.eq(final_bad | (final_got != final_length)),
            spoiled.eq(judging & spoilt),
            frames.commit.eq(judging & ~spoilt),
            frames.rollback.eq(spoiled),
        ]
        m.d.sync += [  # a beat is written in the cycle after it was built
            *(frames.push.eq(push & room), frames.data.eq(data), frames.count.eq(count), frames.last.eq(last)),
        ]
        m.d.sync += [judging.eq(sent), final_length.eq(meta["length"])]

        # ---- input
        source = self.s_axis
        taken = Signal()
        here = keep_count(source.tkeep)
        m.d.comb += taken.eq(source.tvalid & source.tready)
        refuse = Signal()
        refuse_code = Signal(4)
        status_code = Signal(4)
        drained_code = Signal(4)  # why the packet in DRAIN is drained
        m.submodules.verdicts = verdicts = SyncFIFOBuffered(width=4, depth=VERDICTS)
        tell, fate = Signal(), Signal(4)  # of a packet; queued in the next cycle

        ctrl_written = bank.written["CTRL"]
        start_bit, clear_bit = ENCAP_CTRL["start"].lsb, ENCAP_CTRL["soft_reset"].lsb
        clear = Signal()
        m.d.comb += clear.eq(ctrl_written & bank.write_data[clear_bit])
        with m.If(ctrl_written & bank.write_data[start_bit]):
            m.d.sync += test_wanted.eq(1)

        sum_ahead = unreset(20)
        if ahead is not None:
            with m.If(spoiled):
                m.d.sync += halves.eq(sum_ahead + ident)
        room_for_fate = Signal()
        m.d.sync += room_for_fate.eq(verdicts.level < VERDICTS - 4)  # known results are in flight

        def begin() -> None:
            """Begin the packet whose META was checked ahead, once there is one."""
            m.d.sync += state.eq(IDLE)
            if ahead is None:
                return
            m.d.sync += [beat.eq(0), got.eq(0), bad.eq(0), ended.eq(0), test_only.eq(0)]
            with m.If(ahead.m_meta.valid & ~test_wanted & room_for_fate & ~spoiled):
                m.d.comb += [
                    ahead.m_meta.ready.eq(1),
                    refuse.eq(ahead.code != META_OK),
                    refuse_code.eq(ahead.code),
                ]
                m.d.sync += [meta[name].eq(getattr(ahead.m_meta, name)) for name in meta]
                m.d.sync += [
                    dst_mac.eq(ahead.dst_mac),
                    src_mac.eq(ahead.src_mac),
                    halves.eq(ahead.sum + (ident + (sent | judging))[:16]),
                    sum_ahead.eq(ahead.sum),
                    state.eq(Mux(refuse, DRAIN, GATHER)),
                ]

        with m.Switch(state):
            with m.Case(IDLE):
                if ahead is not None:
                    begin()
                else:
                    m.d.comb += self.s_meta.ready.eq(~test_wanted & room_for_fate)
                m.d.sync += [beat.eq(0), got.eq(0), bad.eq(0), ended.eq(0), test_only.eq(test_wanted)]
                with m.If(test_wanted):
                    m.d.sync += [test_wanted.eq(0), state.eq(CHECK)]
                    m.d.sync += [
                        meta[name].eq(value[register])
                        for name, register in (("length", "META_LEN"), ("src_ip", "SRC_IP"), ("dst_ip", "DST_IP"),
                                               ("src_port", "SRC_PORT"), ("dst_port", "DST_PORT"))
                    ]  # fmt: skip
                if ahead is None:
                    with m.Elif(self.s_meta.valid & room_for_fate):
                        m.d.sync += [meta[name].eq(getattr(self.s_meta, name)) for name in meta]
                        m.d.sync += state.eq(CHECK)
            with m.Case(CHECK):
                m.d.sync += [code.eq(meta_code(**meta)), checked.eq(~checked)]
                if ahead is None:
                    m.d.comb += self.lookup.ip.eq(meta["dst_ip"])
                with m.If(~checked):
                    pass
                with m.Elif(test_only):
                    m.d.comb += [refuse.eq(code != META_OK), refuse_code.eq(code)]
                    m.d.sync += state.eq(IDLE)
                if ahead is None:
                    with m.Elif(~value["CTRL"][ENCAP_CTRL["enable"].lsb]):
                        m.d.comb += [refuse.eq(1), refuse_code.eq(TX_DISABLED)]
                        m.d.sync += state.eq(DRAIN)
                    with m.Elif(code != META_OK):
                        m.d.comb += [refuse.eq(1), refuse_code.eq(code)]
                        m.d.sync += state.eq(DRAIN)
                    with m.Else():
                        m.d.comb += self.lookup.request.eq(1)
                        m.d.sync += state.eq(LOOKUP)
            with m.Case(LOOKUP):
                m.d.sync += [dst_mac.eq(self.lookup.dst_mac), src_mac.eq(self.lookup.src_mac)]
                with m.If(self.lookup.response & self.lookup.hit):
                    m.d.sync += state.eq(GATHER)
                with m.Elif(self.lookup.response):
                    m.d.comb += [refuse.eq(1), refuse_code.eq(TX_LOOKUP_MISS)]
                    m.d.sync += state.eq(DRAIN)
            with m.Case(GATHER):
                # one verdict at a time; with META ahead, a bad frame returns its identification
                m.d.comb += source.tready.eq(~spoiled if ahead is not None and params.header_beats == 1 else ~judging)
                with m.If(taken):
                    m.d.sync += [
                        beat.eq(beat + 1),
                        got.eq(got + here),
                        bad.eq(bad | source.tuser),
                        ended.eq(source.tlast),
                    ]
                    for index in range(params.header_beats):
                        with m.If(beat == index):
                            low = index * lanes * 8
                            m.d.sync += header[low : low + lanes * 8].eq(source.tdata)
                    with m.If(beat == params.header_beats - 1):
                        m.d.sync += [beat.eq(0), state.eq(PREFIX)]
                    with m.Elif(source.tlast):
                        m.d.comb += [refuse.eq(1), refuse_code.eq(TX_PACKET_LENGTH)]
                        m.d.comb += [tell.eq(1), fate.eq(TX_PACKET_LENGTH)]
                        m.d.sync += state.eq(IDLE)
            with m.Case(PREFIX):
                m.d.comb += [push.eq(1), count.eq(lanes)]
                m.d.sync += [rest.eq(prefix[-rest_bytes * 8 :]), rest_count.eq(rest_bytes)]
                with m.If(room):
                    m.d.sync += beat.eq(beat + 1)
                    with m.If(beat == prefix_beats - 1):
                        m.d.sync += state.eq(Mux(ended, TAIL, PAYLOAD))
            with m.Case(PAYLOAD):
                m.d.comb += [
                    source.tready.eq(room),
                    push.eq(source.tvalid),
                    count.eq(Mux(here + rest_bytes > lanes, lanes, here + rest_bytes)),
                    # with the carried bytes they fill one beat
                    last.eq(source.tlast & ~source.tkeep[lanes - rest_bytes]),
                ]
                m.d.sync += [final_got.eq(got + here), final_bad.eq(bad | source.tuser)]
                with m.If(taken):
                    m.d.sync += [
                        rest.eq(source.tdata[-rest_bytes * 8 :]),
                        rest_count.eq(here + rest_bytes - lanes),
                        got.eq(got + here),
                        bad.eq(bad | source.tuser),
                    ]
                    with m.If(source.tlast):
                        m.d.sync += state.eq(TAIL)
                        with m.If(last):
                            begin()
            with m.Case(TAIL):
                m.d.comb += [push.eq(1), count.eq(rest_count), last.eq(1)]
                m.d.sync += [final_got.eq(got), final_bad.eq(bad)]
                with m.If(room):
                    begin()
            with m.Case(DRAIN):
                m.d.comb += source.tready.eq(~judging)
                with m.If(taken & source.tlast):
                    m.d.comb += [tell.eq(1), fate.eq(drained_code)]
                    m.d.sync += state.eq(IDLE)
        # all lanes have their own enable registers instead of the state
        in_prefix, in_tail = Signal(), Signal()
        with m.If(state == GATHER):
            m.d.sync += [in_prefix.eq(1), in_tail.eq(0)]
        with m.Elif((state == PREFIX) & room & (beat == prefix_beats - 1)):
            m.d.sync += [in_prefix.eq(0), in_tail.eq(ended)]
        with m.Elif((state == PAYLOAD) & taken & source.tlast):
            m.d.sync += in_tail.eq(1)
        lead = prefix.word_select(beat, lanes * 8) if prefix_beats > 1 else prefix[: lanes * 8]
        m.d.comb += data.eq(Mux(in_prefix, lead, Cat(rest, Mux(in_tail, 0, source.tdata))))
        with m.If(refuse):
            m.d.sync += drained_code.eq(refuse_code)
        with m.If(judging):
            m.d.comb += [tell.eq(1), fate.eq(Mux(spoilt, TX_PACKET_LENGTH, META_OK))]

        # ---- report each packet in order; a good one when its frame has been sent
        left, outlived, gone = Signal(range(VERDICTS + 1)), Signal(), Signal()
        told, told_fate = Signal(), Signal(4)
        m.d.comb += [verdicts.w_en.eq(told), verdicts.w_data.eq(told_fate)]
        m.d.sync += [told.eq(tell), told_fate.eq(fate)]
        m.d.comb += [
            gone.eq(out.tvalid & out.tready & out.tlast),
            self.done.eq(verdicts.r_rdy & ((verdicts.r_data != META_OK) | (left != 0)) & ~untold),
            self.done_code.eq(verdicts.r_data),
            verdicts.r_en.eq(self.done | reset),
        ]
        m.d.sync += left.eq(left + (gone & ~outlived) - (self.done & (verdicts.r_data == META_OK)))
        with m.If(gone):
            m.d.sync += outlived.eq(0)

        # ---- soft reset of the engine: a frame being sent is completed, everything else is dropped
        with m.If(reset):
            m.d.comb += [
                source.tready.eq(1),
                self.s_meta.ready.eq(1),
                self.lookup.request.eq(0),
                refuse.eq(0),
                push.eq(0),
                spoiled.eq(0),
                frames.commit.eq(0),
                tell.eq(0),
                verdicts.w_en.eq(0),
            ]
            m.d.sync += [state.eq(IDLE), test_wanted.eq(0), checked.eq(0), judging.eq(0), left.eq(0)]
            m.d.sync += outlived.eq(frames.begun & ~gone)

        # ---- registers
        failed, missed, lost, wrong_code = Signal(), Signal(), Signal(), Signal(4)
        m.d.sync += [self.error.eq(refuse | spoiled), wrong_code.eq(Mux(refuse, refuse_code, TX_PACKET_LENGTH))]
        m.d.sync += lost.eq(refuse & ~test_only | spoiled)
        with m.If(judging & ~spoilt):
            m.d.sync += ident.eq(ident + 1)
        with m.If(gone):
            m.d.sync += value["PKT_CNT"].eq(value["PKT_CNT"] + 1)
        with m.If(out.tvalid & out.tready):
            m.d.sync += Cat(value["BYTE_CNT_LO"], value["BYTE_CNT_HI"]).eq(
                Cat(value["BYTE_CNT_LO"], value["BYTE_CNT_HI"]) + frames.m_count
            )
        with m.If(lost):
            m.d.sync += value["DROP_CNT"].eq(value["DROP_CNT"] + 1)
        with m.If(bank.written["IRQ_ACK"] | clear):
            m.d.sync += [failed.eq(0), missed.eq(0), status_code.eq(0)]
        with m.If(self.error):
            m.d.sync += [
                failed.eq(1),
                status_code.eq(wrong_code),
                missed.eq(missed | (wrong_code == TX_LOOKUP_MISS)),
            ]
        with m.If(clear):
            m.d.sync += [value[name].eq(0) for name in ("PKT_CNT", "DROP_CNT", "BYTE_CNT_LO", "BYTE_CNT_HI")]
        m.d.comb += value["STATUS"].eq(
            pack(
                NET_STATUS,
                {
                    "busy": state != IDLE,
                    "error": failed,
                    "lookup_error": missed,
                    "code": status_code,
                    "fsm": state,
                },
            )
        )
        return m

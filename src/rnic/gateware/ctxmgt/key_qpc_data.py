"""``key_qpc_data``: the part of each context that the data path needs (002 5.4)."""

from __future__ import annotations

from typing import Any, Final

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from rnic.context import messages as msg
from rnic.context.cqc import CQC
from rnic.context.ctxmgt import FIRST_CQN
from rnic.context.eqc import EQC
from rnic.gateware.ctxmgt.answers import (
    KEY_BITS,
    KEY_NAMES,
    Keys,
    answer,
    key_place,
    with_reserved,
    without_reserved,
)
from rnic.gateware.ctxmgt.params import CtxMgtParams
from rnic.gateware.ctxmgt.request_controller import CHANNELS, VALID
from rnic.gateware.ctxmgt.streams import (
    EXTRACT_BITS,
    HEADER_BITS,
    PARSER_REQUEST_BITS,
    STATES,
    get,
    vector,
)
from rnic.gateware.interfaces import WordStream
from rnic.spec.layout import Layout
from rnic.spec.limits import FIRST_QPN
from rnic.spec.states import ERR

RD_REQ, DATA_WR, RESP_OUT = range(len(STATES["key_qpc_data"]))
LOOKUP: Final = 2
"""Cycles from an address to the entry's register."""
CQ_KEYS: Final = ("logsize", "comp_eqn", "pd", "lkey")
EQ_KEYS: Final = ("logsize", "msix_vector", "pd", "lkey")
WRITES: Final = {
    msg.RTC: (msg.WR_QP_NPST, "next_send_psn"),
    msg.RRC: (msg.WR_QP_UAPST, "last_acked_psn"),
    msg.EE: (msg.WR_QP_EPST, "expected_psn"),
}
"""Opcode and field of each write that an engine's channel may make."""
WITH_QUEUES: Final = (msg.RTC, msg.RRC, msg.EE)
"""Sources whose answer has fields of a CQ and its EQ."""


def asks(command: Value, type_: int, opcode: int) -> Value:
    """Return whether an engine's command is this one."""
    return (get(command, msg.ENGINE_HEADER, "type") == type_) & (get(command, msg.ENGINE_HEADER, "opcode") == opcode)


def channels() -> dict[str, Any]:
    """Return the six channels of 3.2, with the document's widths."""
    members: dict[str, Any] = {}
    for source in msg.ENGINES:
        name = msg.SOURCE_NAMES[source]
        members[f"{name}_cmd"] = In(WordStream(HEADER_BITS))
        members[f"{name}_resp"] = Out(WordStream(HEADER_BITS))
        members[f"{name}_cxt"] = Out(WordStream(msg.RESPONSES[source].size * 8))
        if source in WRITES:
            members[f"{name}_cxt_in"] = In(WordStream(HEADER_BITS))
    return members


def interface(params: CtxMgtParams) -> dict[str, wiring.Member]:
    """Return the ports; an engine's channel has a name of :data:`~rnic.context.messages.SOURCE_NAMES`."""
    members = {
        # request controller
        "selected_channel": In(8),
        "receive_req": Out(1),
        # ceu_parser
        "cmd": In(WordStream(PARSER_REQUEST_BITS)),
        "extract1": In(EXTRACT_BITS),
        "extract2": In(EXTRACT_BITS),
        "eqn": In(params.log_eqs),
        "eq_known": Out(1),
        "eq_mask": Out(32),
        "cached": Out(1),
        # ctxmdata
        "req_ctx": Out(WordStream(HEADER_BITS)),
        "forget": In(1),
        "forgotten": Out(1),
        "forgets": Out(1),
        # errors of a request
        "bad_request": Out(1),
        "bad_payload": Out(1),
        "unknown_qp": Out(1),
    }
    return members | channels()


class KeyQpcData(wiring.Component):
    """Key data of QPs, CQs and EQs in separate RAMs, with a valid bit for each entry.

    The FIFOs around it always have room for its output: the request controller skips channels whose FIFOs do not. While
    ``forget`` is high, and after a reset, every entry is cleared; ``forgets``: from this cycle on no entry is valid.
    """

    def __init__(self, params: CtxMgtParams) -> None:
        super().__init__(interface(params))
        self.params = params
        self.state = Signal(range(len(STATES["key_qpc_data"])))
        self.sweeping = Signal(init=1)
        self.sweep = Signal(params.log_qps)
        self.wait = Signal(range(LOOKUP + 1))
        self.command = Signal(HEADER_BITS)
        self.ceu = Signal(PARSER_REQUEST_BITS)

    def elaborate(self, platform: object) -> Module:
        """Build the stages of a request: the command, the QP's entry, for three channels the CQ's and EQ's entries, the
        answer."""
        m = Module()
        state, wait, command = self.state, self.wait, self.command
        names = {source: msg.SOURCE_NAMES[source] for source in msg.ENGINES}
        channel, payload = Signal(CHANNELS), Signal(HEADER_BITS)
        is_read, is_write, step = Signal(), Signal(), Signal(2)

        # ---- RD_REQ
        selected, idle, taken = self.selected_channel, Signal(), Signal()
        own_read, own_write = Signal(), Signal()
        m.d.comb += [
            idle.eq((state == RD_REQ) & ~self.sweeping),
            taken.eq(idle & selected[VALID] & ~self.forget),
            self.forgets.eq(idle & self.forget),
            self.receive_req.eq(taken),
            self.cmd.tready.eq(taken & selected[0]),
        ]
        for source, name in names.items():
            cmd, chosen = getattr(self, f"{name}_cmd"), Signal(name=f"{name}_chosen")
            m.d.comb += [chosen.eq(taken & selected[source - 1]), cmd.tready.eq(chosen)]
            with m.If(chosen):
                m.d.sync += command.eq(cmd.tdata)
                m.d.comb += own_read.eq(asks(cmd.tdata, msg.READS[source].type, msg.READS[source].opcode))
                if source in WRITES:
                    came, writes = getattr(self, f"{name}_cxt_in"), asks(cmd.tdata, msg.WR_QP_CXT, WRITES[source][0])
                    m.d.comb += [own_write.eq(writes), came.tready.eq(writes)]
                    m.d.sync += payload.eq(came.tdata)
        with m.If(taken):
            m.d.sync += [
                *(channel.eq(selected), self.ceu.eq(self.cmd.tdata), is_read.eq(own_read), is_write.eq(own_write)),
                *(wait.eq(LOOKUP), step.eq(0), state.eq(Mux(selected[0] | own_write, DATA_WR, RESP_OUT))),
            ]
        with m.Elif(wait != 0):
            m.d.sync += wait.eq(wait - 1)
        settled = wait == 0

        # ---- DATA_WR
        psn, new_state = get(payload, msg.ENGINE_WRITE, "psn"), get(payload, msg.ENGINE_WRITE, "state")
        engine_write, stores = Signal(), Signal()
        keys = self._rams(m, channel, psn, new_state, stores)
        bad_state = new_state > ERR
        m.d.comb += [
            self.cached.eq((state == DATA_WR) & channel[0]),
            engine_write.eq((state == DATA_WR) & ~channel[0] & settled),
            stores.eq(engine_write & keys.known & ~bad_state),
            self.bad_payload.eq(engine_write & keys.known & bad_state),
        ]
        with m.If(self.cached):
            m.d.sync += state.eq(RD_REQ)
        with m.If(engine_write):
            m.d.sync += state.eq(Mux(stores, RESP_OUT, RD_REQ))

        # ---- RESP_OUT
        queues = Cat(*(channel[source - 1] for source in WITH_QUEUES)).any()
        last = Mux(queues & is_read, 2, 0)  # lookups after the QP's
        ends, back = Signal(), self.req_ctx
        with m.If((state == RESP_OUT) & ~is_write & settled):
            with m.If(step == last):
                m.d.comb += ends.eq(1)
            with m.Else():
                m.d.sync += [step.eq(step + 1), wait.eq(LOOKUP - 1)]
        for source, name in names.items():
            resp, cxt, here = getattr(self, f"{name}_resp"), getattr(self, f"{name}_cxt"), channel[source - 1]
            m.d.comb += [
                resp.tdata.eq(command),
                resp.tvalid.eq(ends & here),
                cxt.tdata.eq(answer(source, keys)),
                cxt.tvalid.eq(ends & here & is_read),
            ]
        m.d.comb += [
            self.bad_request.eq(ends & ~is_read),
            self.unknown_qp.eq(~keys.known & (engine_write | (ends & is_read))),
            back.tvalid.eq((state == RESP_OUT) & is_write),
            back.tdata.eq(_write_back(command, psn, new_state, keys.qp["flags_27_24"])),
        ]
        with m.If(ends | (back.tvalid & back.tready)):
            m.d.sync += state.eq(RD_REQ)
        return m

    def _rams(self, m: Module, channel: Value, psn: Value, new_state: Value, stores: Value) -> Keys:
        """Build the RAMs and the registers of the entries that the command selects; return the written fields."""
        log, log_eqs = self.params.log_qps, self.params.log_eqs
        ports: dict[str, tuple[Any, Any]] = {}
        for name, bits, depth in (
            ("qps", KEY_BITS, log),
            ("cqs", _bits(CQC, CQ_KEYS), log),
            ("eqs", _bits(EQC, EQ_KEYS), log_eqs),
            ("eq_masks", EQC["event_mask"].width, log_eqs),
        ):
            m.submodules[name] = ram = Memory(shape=bits + 1, depth=1 << depth, init=[])
            ports[name] = ram.write_port(), ram.read_port()

        # ---- entries
        number = get(self.command, msg.ENGINE_HEADER, "addr")
        qp, known = Signal(KEY_BITS), Signal()
        words = with_reserved(qp)
        qp_fields = {name: words[key_place(name)] for name in KEY_NAMES}
        cqn = Mux(channel[msg.EE - 1], qp_fields["cqn_rcv"], qp_fields["cqn_snd"])
        cq, eq = Signal(_bits(CQC, CQ_KEYS)), Signal(_bits(EQC, EQ_KEYS))
        cq_fields, eq_fields = _parts(CQC, CQ_KEYS, cq), _parts(EQC, EQ_KEYS, eq)
        eqn = cq_fields["comp_eqn"]
        read = {name: pair[1] for name, pair in ports.items()}
        m.d.comb += [
            read["qps"].addr.eq(number),
            read["cqs"].addr.eq(cqn),
            read["eqs"].addr.eq(eqn),
            read["eq_masks"].addr.eq(self.eqn),
            Cat(self.eq_mask, self.eq_known).eq(read["eq_masks"].data),
        ]
        m.d.sync += [
            Cat(qp, known).eq(_entry(read["qps"].data, _within(number, FIRST_QPN, log))),
            cq.eq(_entry(read["cqs"].data, _within(cqn, FIRST_CQN, log))),
            eq.eq(_entry(read["eqs"].data, _within(eqn, 0, log_eqs) & known)),
        ]

        # ---- writes: a context written by the CEU, or a channel's fields of a QP
        stored = Signal(len(words))
        m.d.comb += [stored.eq(words), stored[key_place("state")].eq(new_state)]
        for source, (_, field) in WRITES.items():
            with m.If(channel[source - 1]):
                m.d.comb += stored[key_place(field)].eq(psn)
        kind, opcode = get(self.ceu, msg.PARSER_REQUEST, "type"), get(self.ceu, msg.PARSER_REQUEST, "opcode")
        written = get(self.ceu, msg.PARSER_REQUEST, "qpn")
        extract = Cat(self.extract2, self.extract1)[2 * EXTRACT_BITS - len(words) :]
        function = opcode == msg.WR_EQ_FUNC
        keep_cq, keep_eq = opcode != msg.WR_CQ_INVALID, opcode != msg.WR_EQ_INVALID
        is_qp, is_cq, is_eq = (self.cached & (kind == each) for each in (msg.WR_QP_CXT, msg.WR_CQ_CXT, msg.WR_EQ_CXT))
        mask = Mux(function, self.extract1[-64:-32], _field(EQC, "event_mask", self.extract1))
        for name, at, enable, keep, data in (
            ("qps", Mux(stores, number, written), is_qp | stores, 1, without_reserved(Mux(stores, stored, extract))),
            ("cqs", written, is_cq, keep_cq, _chosen(CQC, CQ_KEYS, self.extract1)),
            ("eqs", written, is_eq & ~function, keep_eq, _chosen(EQC, EQ_KEYS, self.extract1)),
            ("eq_masks", written, is_eq, keep_eq, mask),
        ):  # fmt: skip
            port = ports[name][0]
            m.d.comb += [
                port.addr.eq(Mux(self.sweeping, self.sweep, at)),
                port.en.eq(self.sweeping | enable),
                port.data.eq(Mux(self.sweeping | ~Value.cast(keep), 0, Cat(data, 1))),
            ]
        with m.If(self.forgets):
            m.d.sync += [self.sweeping.eq(1), self.sweep.eq(0)]
        with m.Elif(self.sweeping):
            m.d.sync += self.sweep.eq(self.sweep + 1)
            with m.If(self.sweep.all()):
                m.d.sync += self.sweeping.eq(0)
                m.d.comb += self.forgotten.eq(self.forget)
        return Keys(known, qp_fields, cqn, cq_fields, eq_fields, self.params.infiniband)


def _entry(data: Value, fits: Value) -> Value:
    """Return an entry, zero if it is not valid."""
    return Mux(data[-1] & fits, data, 0)


def _within(number: Value, first: int, log: int) -> Value:
    """Return whether ``number`` is one of the 2**log numbers starting at ``first``: no two of them share a slot."""
    wide = Value.cast(number)
    return (wide >= first) & (wide < first + (1 << log))


def _bits(layout: Layout, names: tuple[str, ...]) -> int:
    return sum(layout[name].width for name in names)


def _field(layout: Layout, name: str, words: Value) -> Value:
    """Return a field of the context that starts with ``words``."""
    field = layout[name]
    low = len(words) - 8 * (field.byte + field.unit) + field.lsb
    return words[low : low + field.width]


def _chosen(layout: Layout, names: tuple[str, ...], words: Value) -> Value:
    return Cat(*(_field(layout, name, words) for name in names))


def _parts(layout: Layout, names: tuple[str, ...], entry: Value) -> dict[str, Value]:
    """Return the fields that :func:`_chosen` combined."""
    out, at = {}, 0
    for name in names:
        out[name] = entry[at : at + layout[name].width]
        at += layout[name].width
    return out


def _write_back(command: Value, psn: Value, state: Value, flags: Value) -> Value:
    """Return the write-back request to ctxmdata."""
    return vector(
        msg.CEU_HEADER,
        {
            "type": get(command, msg.ENGINE_HEADER, "type"),
            "opcode": get(command, msg.ENGINE_HEADER, "opcode"),
            "addr": get(command, msg.ENGINE_HEADER, "addr"),
            "data": vector(msg.WRITE_BACK, {"state": state, "flags_27_24": flags, "psn": psn}),
        },
    )

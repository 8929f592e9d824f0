"""key_qpc_data: the cache of the context fields that the data path needs (002 5.4).

The entries are slots of the device's arena (:mod:`rnic.context.cache`), whose bytes the data path uses directly.
Channel responses are built from them, and channel writes change them. :data:`KEY_FIELDS` is the table of 5.4.2.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from rnic.context import messages as m
from rnic.context.cache import NO_CQ, NO_EQ, Cache, CachedCq, CachedEq, CachedQp, CqKey, EqKey, cache_of
from rnic.context.eqc import merged_mask
from rnic.context.fifo import Fifo
from rnic.context.machines import KEY_QPC_DATA, Machine
from rnic.context.qp_context import QpContext
from rnic.context.qpc import QPC, QPC_BYTES, settled
from rnic.context.request_controller import RequestController
from rnic.state import queues
from rnic.state.arena import Arena
from rnic.state.structure import Ground
from rnic.trace.counters import Counters

FIFO_DEPTH: Final = 64


class KeyField(NamedTuple):
    """One row of 5.4.2: number of cached bits, context (``qpc``, ``cqc`` or ``eqc``), readers and writers."""

    name: str
    width: int
    context: str
    fields: tuple[str, ...]
    readers: tuple[int, ...]
    writers: tuple[int, ...] = ()


KEY_FIELDS: Final = (
    KeyField("state", 4, "qpc", ("state",), (m.WP, m.RTC, m.EE, m.RRC), (m.RTC, m.EE, m.RRC)),
    KeyField("servtype", 8, "qpc", ("servtype",), (m.DB,)),
    KeyField("mtu_msgmax", 8, "qpc", ("mtu", "msgmax"), (m.DB, m.EE)),
    KeyField("rnr_retry", 8, "qpc", ("rnr_retry",), (m.EE,)),
    KeyField("remote_qpn", 32, "qpc", ("remote_qpn",), (m.DB, m.EE, m.RRC)),
    KeyField("port_pkey", 32, "qpc", ("port", "pkey_index"), (m.DB, m.FE, m.EE)),
    KeyField("qp_pd", 32, "qpc", ("pd",), (m.DB, m.EE, m.RRC)),
    KeyField("sl_tclass_flowlabel", 32, "qpc", ("sl", "tclass", "flow_label"), (m.FE,)),
    KeyField("next_send_psn", 32, "qpc", ("next_send_psn",), (m.RTC, m.RRC), (m.RTC,)),
    KeyField("qp_cqn_send", 32, "qpc", ("cqn_snd",), (m.RTC, m.RRC)),
    KeyField("snd_wqe_base_lkey", 32, "qpc", ("snd_wqe_base_lkey",), (m.DB,)),
    KeyField("last_acked_psn", 32, "qpc", ("last_acked_psn",), (m.RRC,), (m.RRC,)),
    KeyField("rnr_nextrecvpsn", 32, "qpc", ("rnr_nak_timer", "expected_psn"), (m.EE,), (m.EE,)),
    KeyField("rcv_wqe_base_lkey", 32, "qpc", ("rcv_wqe_base_lkey",), (m.EE,)),
    KeyField("rq_entry_sz_log", 8, "qpc", ("rq_entry_sz_log",), (m.EE,)),
    KeyField("sq_entry_sz_log", 8, "qpc", ("sq_entry_sz_log",), (m.DB, m.WP)),
    KeyField("smac", 48, "qpc", ("smac_hi", "slid"), (m.FE,)),
    KeyField("dmac", 48, "qpc", ("dmac_hi", "dlid"), (m.RTC, m.EE, m.FE, m.RRC)),
    KeyField("sip", 32, "qpc", ("sip",), (m.FE,)),
    KeyField("dip", 32, "qpc", ("dip",), (m.FE,)),
    KeyField("snd_wqe_length", 32, "qpc", ("snd_wqe_length",), (m.DB, m.WP)),
    KeyField("cqn_rcv", 32, "qpc", ("cqn_rcv",), (m.EE,)),
    KeyField("rcv_wqe_length", 32, "qpc", ("rcv_wqe_length",), (m.EE,)),
    KeyField("cq_sz_log", 8, "cqc", ("logsize",), (m.RTC, m.RRC, m.EE)),
    KeyField("cq_pd", 32, "cqc", ("pd",), (m.RTC, m.RRC, m.EE)),
    KeyField("cq_lkey", 32, "cqc", ("lkey",), (m.RTC, m.RRC, m.EE)),
    KeyField("eq_sz_log", 8, "eqc", ("logsize",), (m.RTC, m.RRC, m.EE)),
    KeyField("eq_pd", 32, "eqc", ("pd",), (m.RTC, m.RRC, m.EE)),
    KeyField("eq_lkey", 32, "eqc", ("lkey",), (m.RTC, m.RRC, m.EE)),
    KeyField("eqn", 8, "cqc", ("comp_eqn",), (m.RTC, m.RRC, m.EE)),
)
QPC_KEY_FIELDS: Final = frozenset(name for row in KEY_FIELDS if row.context == "qpc" for name in row.fields)


_W4 = struct.Struct("<4I")
_W8 = struct.Struct("<8I")
_WORD = struct.Struct(">I")
_WRITE_BACK = struct.Struct(">BxxxIQ")
"""A :data:`~rnic.context.messages.CEU_HEADER` with a :data:`~rnic.context.messages.WRITE_BACK`."""
_PD = 0xFFF
_QPN = 0xFFFFFF
_INFINIBAND: Final = 1 << 3

Reply = Callable[["KeyQpcData", QpContext], bytes]


def _doorbell(key: KeyQpcData, c: QpContext) -> bytes:
    qpn = c.remote_qpn
    return _W8.pack(
        c.servtype | (qpn >> 8 & 0xFF00) | (qpn & 0xFFFF) << 16,
        c.pkey_index | (c.mtu << 5 | c.msgmax) << 16,
        c.snd_wqe_base_lkey,
        c.pd,
        c.sq_entry_sz_log,
        c.snd_wqe_length,
        0,
        0,
    )


def _wqe_parser(key: KeyQpcData, c: QpContext) -> bytes:
    return _W4.pack(c.sq_entry_sz_log | c.state << 24, c.snd_wqe_length, 0, 0)


def _trans_control(key: KeyQpcData, c: QpContext) -> bytes:
    cq = key.cqs.get(c.cqn_snd, NO_CQ)
    eq = key.eqs.get(cq.comp_eqn, NO_EQ)
    return _W8.pack(
        c.state | (c.next_send_psn & _QPN) << 8,
        cq.lkey,
        cq.logsize,
        cq.pd,
        c.cqn_snd & _QPN | (cq.comp_eqn & 0xFF) << 24,
        c.dlid | (eq.msix_vector & 0xFF) << 16 | eq.logsize << 24,
        eq.pd,
        eq.lkey,
    )


def _recv_control(key: KeyQpcData, c: QpContext) -> bytes:
    cq = key.cqs.get(c.cqn_snd, NO_CQ)
    eq = key.eqs.get(cq.comp_eqn, NO_EQ)
    return (
        c.state
        | (c.last_acked_psn & _QPN) << 4
        | (c.next_send_psn & _QPN) << 28
        | (c.remote_qpn & _QPN) << 52
        | c.dlid << 76
        | cq.lkey << 92
        | (c.pd & _PD) << 124
        | (cq.pd & _PD) << 136
        | cq.logsize << 148
        | (c.cqn_snd & _QPN) << 156
        | (cq.comp_eqn & 0xFF) << 180
        | eq.logsize << 188
        | (eq.pd & _PD) << 196
        | eq.lkey << 208
        | eq.msix_vector << 240
    ).to_bytes(32, "little")


def _execution(key: KeyQpcData, c: QpContext) -> bytes:
    cq = key.cqs.get(c.cqn_rcv, NO_CQ)
    eq = key.eqs.get(cq.comp_eqn, NO_EQ)
    return (
        c.expected_psn
        | (c.rnr_retry & 7) << 24
        | c.state << 27
        | c.dlid << 31
        | c.mtu << 47
        | c.pkey_index << 50
        | c.rq_entry_sz_log << 66
        | (c.remote_qpn & _QPN) << 74
        | c.rcv_wqe_base_lkey << 98
        | cq.lkey << 130
        | (c.pd & _PD) << 162
        | (cq.pd & _PD) << 174
        | c.rcv_wqe_length << 186
        | cq.logsize << 218
        | (c.cqn_rcv & _QPN) << 226
        | (cq.comp_eqn & 0xFF) << 250
        | eq.logsize << 258
        | (eq.pd & _PD) << 266
        | eq.lkey << 278
        | (eq.msix_vector & 0xFF) << 310
    ).to_bytes(40, "little")


def _encap(key: KeyQpcData, c: QpContext) -> bytes:
    if key.infiniband:
        word = c.port | _INFINIBAND | c.sl << 4 | c.pkey_index << 16
        return _W8.pack(word, 0, 0, c.slid, c.dlid << 16, 0, 0, 0)
    dmac = c.dmac_hi << 16 | c.dlid
    return _W8.pack(
        c.port | c.sl << 4 | c.pkey_index << 16,
        c.sip,
        c.dip,
        (c.smac_hi & 0xFFFF) << 16 | c.slid,
        c.smac_hi >> 16 | (dmac & 0xFFFF) << 16,
        dmac >> 16,
        0,
        0,
    )


_READS: Final[dict[int, tuple[int, Reply, int]]] = {
    m.RD_QP_CXT << 4 | m.RD_QP_SST: (m.DB, _doorbell, 32),
    m.RD_QP_CXT << 4 | m.RD_QP_STATE: (m.WP, _wqe_parser, 16),
    m.RD_QP_CXT << 4 | m.RD_QP_NPST: (m.RTC, _trans_control, 32),
    m.RD_CQ_CXT << 4 | m.RD_CQ_CST: (m.RRC, _recv_control, 32),
    m.RD_QP_CXT << 4 | m.RD_QP_RST: (m.EE, _execution, 40),
    m.RD_QP_CXT << 4 | m.RD_ENCAP: (m.FE, _encap, 32),
}
"""Source, builder and size in bytes of each channel's response, by the command's first byte."""
_WRITES: Final[dict[int, tuple[int, str]]] = {
    m.WR_QP_CXT << 4 | m.WR_QP_NPST: (m.RTC, "next_send_psn"),
    m.WR_QP_CXT << 4 | m.WR_QP_UAPST: (m.RRC, "last_acked_psn"),
    m.WR_QP_CXT << 4 | m.WR_QP_EPST: (m.EE, "expected_psn"),
}
_STATES: Final = 7


class KeyQpcData:
    """The module.

    ``channels[0]`` is the CEU's FIFO of 35-bit requests with their extract data, ``channels[1]`` to ``[6]`` the
    engine's command FIFOs with write payloads. ``responses`` holds the responses of channels 1 to 6: the command as
    received, and the payload, empty for a reserved or malformed command. Writes have no response. ``served`` is the
    last request served. With ``infiniband``, frame encap gets LIDs instead of addresses (002 3.2).
    """

    __slots__ = (
        "channels",
        "controller",
        "counters",
        "cqs",
        "eqs",
        "infiniband",
        "key_fifo",
        "machine",
        "qps",
        "responses",
        "served",
        "touched",
    )

    def __init__(
        self, key_fifo: Fifo[bytes], counters: Counters, arena: Arena, log_qps: int, log_eqs: int, infiniband: bool
    ) -> None:
        self.machine = Machine("key_qpc_data", KEY_QPC_DATA)
        self.channels: list[Fifo[tuple[bytes, bytes]]] = [Fifo() for _ in range(7)]
        self.responses: list[Fifo[tuple[bytes, bytes]]] = [Fifo() for _ in range(7)]
        self.controller = RequestController(self.channels)
        self.key_fifo = key_fifo
        self.counters = counters
        self.infiniband = infiniband
        self.served = b""
        self.touched: Fifo[int] = Fifo()
        """Queue pairs changed by a channel's write that the manager has not reported yet."""
        ground = Ground(arena)
        self.qps: Cache[CachedQp] = cache_of(ground, log_qps, QPC, QpContext, CachedQp)
        self.cqs: Cache[CachedCq] = cache_of(ground, log_qps, queues.CQ, CqKey, CachedCq)
        self.eqs: Cache[CachedEq] = cache_of(ground, log_eqs, queues.EQ, EqKey, CachedEq)

    def step(self) -> int:
        """Serve the request that the controller selects; return its channel, or -1 if there is none."""
        channel = self.controller.select()
        if channel < 0:
            return -1
        request, data = self.channels[channel].popleft()
        self.served = request
        self.controller.receive_req()
        machine = self.machine
        if channel == 0:
            machine.step("ceu_write")
            self._ceu_write(int.from_bytes(request, "big"), data)
            machine.step("ceu_write")
            return 0
        code = request[0]
        number = int.from_bytes(request[1:4], "big")
        ctx = self.qps.get(number)
        read = _READS.get(code)
        if read is not None and read[0] == channel + 1:
            machine.step("engine_read")
            if ctx is None:
                self.counters.bump("ctx_unknown_qps")
                payload = bytes(read[2])
            else:
                payload = read[1](self, ctx)
            self.responses[channel].append((request, payload))
            machine.step("response")
            return channel
        write = _WRITES.get(code)
        if write is not None and write[0] == channel + 1:
            machine.step("engine_write")
            if ctx is None or len(data) != 16 or data[15] & 7 >= _STATES:
                self.counters.bump("ctx_unknown_qps" if ctx is None else "ctx_bad_payloads")
                machine.step("refused")
                return channel
            psn = _WORD.unpack_from(data, 12)[0] >> 8
            state = data[15] & 7
            if state != ctx.state or getattr(ctx, write[1]) & _QPN != psn:
                plain = self.qps.view(number)
                setattr(plain, write[1], psn)
                plain.state = state
                self.touched.append(number)
            machine.step("engine_write")
            self.key_fifo.append(_WRITE_BACK.pack(code, number, state << 60 | ctx.flags_27_24 << 56 | psn))
            machine.step("write_back")
            return channel
        machine.step("refused")
        self.counters.bump("ctx_bad_requests")
        self.responses[channel].append((request, b""))
        return channel

    def _ceu_write(self, request: int, data: bytes) -> None:
        """Cache the key fields of a context after it is written to host memory."""
        kind, opcode, number = request >> 31, request >> 27 & 15, request & _QPN
        if kind == m.WR_QP_CXT:
            self._load(number, data)
        elif kind == m.WR_CQ_CXT:
            if opcode == m.WR_CQ_INVALID:
                self.cqs.forget(number)
            else:
                self.cqs.fill(number, data)
        elif opcode == m.WR_EQ_ALL:
            self.eqs.fill(number, data)
            self.eqs.view(number).enabled = 1
        elif opcode == m.WR_EQ_INVALID:
            self.eqs.forget(number)
        else:
            self._event_function(number, int.from_bytes(data[:4], "big"), int.from_bytes(data[4:], "big"))

    def _load(self, number: int, extract: bytes) -> None:
        """Load key words from the two extract FIFOs. Other fields are unchanged until RD_QP_ALL loads them."""
        image = bytearray(self.qps[number].store() if number in self.qps else bytes(QPC_BYTES))
        for index, at in enumerate(m.KEY_WORDS):
            image[at : at + 4] = extract[4 * index : 4 * index + 4]
        self.qps.fill(number, settled(image))

    def _event_function(self, number: int, addr: int, types: int) -> None:
        if number not in self.eqs:
            return
        eq = self.eqs.view(number)
        disable = bool(addr & m.EQ_DISABLE)
        eq.event_mask = merged_mask(eq.event_mask, types, disable)
        # without types, disable the whole event function; in 002 the mask is unchanged
        eq.enabled = int(bool(eq.enabled and types)) if disable else 1

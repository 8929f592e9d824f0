"""``ceu_parser``: parse the command unit's requests (002 5.1)."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rnic.context import messages as msg
from rnic.context.qpc import QPC_BYTES
from rnic.gateware.ctxmgt.params import CtxMgtParams
from rnic.gateware.ctxmgt.streams import (
    BEAT_BITS,
    BEAT_BYTES,
    DMA_ERROR,
    EXTRACT_BITS,
    EXTRACT_WORDS,
    HEADER_BITS,
    OK,
    PARSER_REQUEST_BITS,
    REFUSED,
    STATES,
    ContextStream,
    get,
    vector,
)
from rnic.gateware.interfaces import WordStream

PARSE_REQ, TRANS_REQ_DATA = range(len(STATES["ceu_parser"]))
MAX_BEATS = max(size for row in msg.REQUESTS for size in row.payloads) // BEAT_BYTES
STATUS_BITS = 2
BEAT_WORDS = BEAT_BYTES // 4
_ROWS = [row for row in msg.REQUESTS if msg.CEU in row.sources]


class CeuParser(wiring.Component):
    """One request at a time, from its first beat to its status on ``ceu_status``.

    A request without payload is one beat with ``tkeep`` low, whose data is ignored. The request to key_qpc_data,
    ``cmd`` with the extracts, waits until host memory has stored the context: a write that is refused or fails does not
    change the cache.

    ``parsed``: this cycle ends TRANS_REQ_DATA, with ``refused`` if the request is rejected. ``eqn`` looks up an EQ's
    ``eq_known`` and ``eq_mask``, which are valid a cycle later.
    """

    def __init__(self, params: CtxMgtParams) -> None:
        super().__init__(
            {
                "ceu_req": In(ContextStream(keep=True)),
                "ceu_status": Out(WordStream(STATUS_BITS)),
                # to ctxmdata
                "req": Out(WordStream(HEADER_BITS)),
                "beat": Out(BEAT_BITS),
                "mdata_push": Out(1),
                "beats": Out(range(MAX_BEATS + 2)),
                # to writectx
                "ctxdata_push": Out(1),
                "clear": Out(1),
                # to key_qpc_data, through the request controller
                "cmd": Out(WordStream(PARSER_REQUEST_BITS)),
                "extract1": Out(EXTRACT_BITS),
                "extract2": Out(EXTRACT_BITS),
                "eqn": Out(params.log_eqs),
                "eq_known": In(1),
                "eq_mask": In(32),
                # outcome
                "mdata_done": In(1),
                "mdata_refused": In(1),
                "read_done": In(1),
                "read_failed": In(1),
                "write_done": In(1),
                "write_failed": In(1),
                "cached": In(1),
                "parsed": Out(1),
                "refused": Out(1),
            }
        )
        self.params = params
        self.state = Signal(range(len(STATES["ceu_parser"])))

    def elaborate(self, platform: object) -> Module:
        """Build the states: pass beats on as they arrive, and decide at the last one."""
        m = Module()
        state, beats = self.state, self.beats
        header, last, full, step = Signal(HEADER_BITS), Signal(), Signal(), Signal(2)
        keep, whole = Signal(), Signal()  # the current beat has data
        busy = Signal()  # a forwarded request has no status yet
        kind, opcode = get(header, msg.CEU_HEADER, "type"), get(header, msg.CEU_HEADER, "opcode")
        number, types = get(header, msg.CEU_HEADER, "addr"), header[:32]
        status = self.ceu_status
        room = ~busy & ~status.tvalid

        function = (kind == msg.WR_EQ_CXT) & (opcode == msg.WR_EQ_FUNC)
        disable = number[-1]
        m.d.comb += [
            self.ceu_req.tready.eq(Mux(state == PARSE_REQ, room, ~full & (step == 0))),
            self.eqn.eq(number),
            self.clear.eq((state == PARSE_REQ) & ~busy),
            whole.eq(full & keep),
            self.mdata_push.eq(whole & _is(kind, msg.WR_ICMMAP_CXT, msg.MAP_ICM_CXT) & (beats < MAX_BEATS)),
            self.ctxdata_push.eq(
                whole & _is(kind, msg.WR_QP_CXT, msg.WR_CQ_CXT, msg.WR_EQ_CXT) & (beats < QPC_BYTES // BEAT_BYTES)
            ),
        ]
        with m.If(self.ceu_req.tready & self.ceu_req.tvalid):
            m.d.sync += [
                *(self.beat.eq(self.ceu_req.tdata), keep.eq(self.ceu_req.tkeep), last.eq(self.ceu_req.tlast)),
                full.eq(1),
            ]
        with m.If(full):
            m.d.sync += [full.eq(0), beats.eq(Mux(beats > MAX_BEATS, beats, beats + keep))]
        self._extract(m, whole, kind, function)

        legal, is_write = Signal(), Signal()
        eqn_in_range = number[self.params.log_eqs : 31] == 0
        m.d.sync += [
            legal.eq(self._legal(kind, opcode) & (~function | (self.eq_known & eqn_in_range))),
            is_write.eq(_is(kind, msg.WR_QP_CXT, msg.WR_CQ_CXT, msg.WR_EQ_CXT)),
        ]
        # memory gets the same content as the cache, not that of the request
        merged = Mux(disable, self.eq_mask & ~types, self.eq_mask | types)
        m.d.comb += [
            self.parsed.eq((state == TRANS_REQ_DATA) & (step == 2)),
            self.refused.eq(self.parsed & ~legal),
        ]
        with m.Switch(state):
            with m.Case(PARSE_REQ), m.If(self.ceu_req.tready & self.ceu_req.tvalid):
                m.d.sync += [header.eq(self.ceu_req.tuser), beats.eq(0), state.eq(TRANS_REQ_DATA)]
            with m.Case(TRANS_REQ_DATA):
                with m.If(full & last):
                    m.d.sync += step.eq(1)
                with m.If(step == 1):
                    m.d.sync += step.eq(2)
                with m.If(step == 2):
                    m.d.sync += [step.eq(0), state.eq(PARSE_REQ)]
                    with m.If(legal):
                        m.d.sync += [
                            busy.eq(1),
                            self.req.tvalid.eq(1),
                            self.req.tdata.eq(Cat(Mux(function, merged, types), header[32:])),
                        ]
                    with m.If(function):
                        m.d.sync += self.extract1.eq(Cat(Const(0, EXTRACT_BITS - 64), merged, number))

        with m.If(self.req.tvalid & self.req.tready):
            m.d.sync += self.req.tvalid.eq(0)
        m.d.comb += self.cmd.tdata.eq(
            vector(msg.PARSER_REQUEST, {"type": kind, "opcode": opcode, "source": msg.CEU, "qpn": number})
        )
        with m.If(self.write_done):
            m.d.sync += self.cmd.tvalid.eq(1)
        with m.If(self.cmd.tready):
            m.d.sync += self.cmd.tvalid.eq(0)

        done = self.mdata_done | self.read_done | self.cached
        failed = self.read_failed | self.write_failed
        with m.If(status.tready):
            m.d.sync += status.tvalid.eq(0)
        with m.If(self.refused | self.mdata_refused | done | failed):
            m.d.sync += [
                busy.eq(0),
                status.tvalid.eq(1),
                status.tdata.eq(Mux(done, OK, Mux(failed, DMA_ERROR, REFUSED))),
            ]
        return m

    def _extract(self, m: Module, whole: Value, kind: Value, function: Value) -> None:
        """Extract the key words of a QPC, the first 12 words of a CQC or EQC, as their beats pass."""
        words = [self.beat[BEAT_BITS - 32 * at - 32 :][:32] for at in range(BEAT_WORDS)]
        both = Cat(self.extract2, self.extract1)

        def word(index: int) -> Value:
            top = 2 * EXTRACT_BITS - 32 * index
            return both[top - 32 : top]

        with m.If(whole & (kind == msg.WR_QP_CXT)):
            for index, offset in enumerate(msg.KEY_WORDS):
                with m.If(self.beats == offset // BEAT_BYTES):
                    m.d.sync += word(index).eq(words[offset % BEAT_BYTES // 4])
        with m.Elif(whole & _is(kind, msg.WR_CQ_CXT, msg.WR_EQ_CXT) & ~function):
            for index in range(EXTRACT_WORDS):
                with m.If(self.beats == index // BEAT_WORDS):
                    m.d.sync += word(index).eq(words[index % BEAT_WORDS])

    def _legal(self, kind: Value, opcode: Value) -> Value:
        """Return whether the CEU may make this request, with a payload of this many beats."""
        ways = []
        for row in _ROWS:
            counts = [size // BEAT_BYTES for size in row.payloads]
            whole = counts == list(range(1, MAX_BEATS + 1))
            fits = (self.beats != 0) & (self.beats <= MAX_BEATS) if whole else _is(self.beats, *counts)
            ways.append((kind == row.type) & (opcode == row.opcode) & fits)
        return Cat(*ways).any()


def _is(value: Value, *these: int) -> Value:
    return Cat(*(value == each for each in these)).any()

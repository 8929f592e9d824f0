"""Random requests on all of CtxMgt's channels at once, right and wrong ones, for :class:`ctxmgt_lockstep.Lockstep`."""

from __future__ import annotations

from ctxmgt_lockstep import Lockstep

from rnic.context import messages as m
from rnic.context.cqc import CQC
from rnic.context.eqc import EQC
from rnic.context.qpc import QPC
from rnic.gateware.ctxmgt.key_qpc_data import WRITES
from rnic.gateware.ctxmgt.params import CtxMgtParams
from rnic.gateware.ctxmgt.streams import BEAT_BYTES
from rnic.spec.limits import FIRST_QPN

BASES = {"qp": 0x8000_0000, "cq": 0x9000_0000, "eq": 0xA000_0000}
HOST = 0x12_3456_7000
OPENED = 64
"""Queue pairs that are written before anything is asked."""
QUEUED = 6
"""Requests that each channel has waiting at most."""


class Streams:
    """Feeds a bench: whenever a channel has little to do, something new for it."""

    def __init__(self, bench: Lockstep, params: CtxMgtParams, wrong: float = 0.1) -> None:
        self.bench = bench
        self.params = params
        self.rng = bench.rng
        self.wrong = wrong
        self.requests = 0
        self.open()
        for number in range(min(1 << params.log_qps, OPENED)):
            qpc = QPC.pack({"state": 3, "cqn_snd": 1 + number % 4, "cqn_rcv": 1 + number % 3, "remote_qpn": number})
            bench.ceu(m.ceu_request(m.WR_QP_CXT, m.WR_QP_ALL, FIRST_QPN + number), qpc)

    def open(self) -> None:
        """Enable the tables and map every page, some in long runs."""
        tables = self.bench.golden.ctxmdata.tables
        values = {f"{kind}c_base": base >> 8 for kind, base in BASES.items()}
        self.bench.ceu(m.ceu_request(m.WR_ICMMAP_CXT, m.WR_ICMMAP_EN), m.ICMMAP.pack(values))
        runs = [(BASES[kind], (HOST >> 12) + 0x1000 * place, len(table.valid))
                for place, (kind, table) in enumerate(tables.items())]  # fmt: skip
        self._map(runs)

    def _map(self, runs: list[tuple[int, int, int]], count: int | None = None) -> None:
        data = b"".join(m.CHUNK.pack({"virt": virt, "page": page, "pages": pages}) for virt, page, pages in runs)
        number = len(runs) if count is None else count
        self.bench.ceu(m.ceu_request(m.MAP_ICM_CXT, m.MAP_ICM_EN, number), data + bytes(-len(data) % 32))

    def feed(self) -> None:
        """Top every channel up."""
        bench = self.bench
        if not bench.ceu_queue:
            self.requests += 1
            self._command()
        for source in m.ENGINES:
            if len(bench.commands[source]) < QUEUED:
                self.requests += 1
                self._engine(source)

    # ------------------------------------------------------------------------------ engines

    def _qpn(self) -> int:
        """Half of them are of those that the beginning opened: of 8,192 the rest is seldom known."""
        rng = self.rng
        if rng.random() < self.wrong:
            return rng.choice((0, FIRST_QPN - 1, FIRST_QPN + (1 << self.params.log_qps), rng.getrandbits(24)))
        queues = 1 << self.params.log_qps
        return FIRST_QPN + rng.randrange(min(queues, OPENED) if rng.random() < 0.5 else queues)

    def _engine(self, source: int) -> None:
        rng, bench = self.rng, self.bench
        qpn = self._qpn()
        if rng.random() < self.wrong:
            row = rng.choice([row for row in m.REQUESTS if source not in row.sources])
            bench.engine(source, m.engine_request(row.type, row.opcode, qpn)[:4] + rng.randbytes(12))
        elif source in WRITES and rng.random() < 0.5:
            command = m.engine_request(m.WR_QP_CXT, WRITES[source][0], qpn)
            bench.engine(source, command, m.engine_payload(rng.getrandbits(24), rng.randrange(8)))
        else:
            row = m.READS[source]
            bench.engine(source, m.engine_request(row.type, row.opcode, qpn)[:4] + rng.randbytes(12))

    # ------------------------------------------------------------------------------ the command unit

    def _command(self) -> None:
        rng, bench = self.rng, self.bench
        choice = rng.random()
        if choice < 0.35:
            size = rng.choice(m.QPC_PAYLOADS)
            qpc = bytearray(rng.randbytes(size))
            QPC.put(qpc, "cqn_snd", self._number("cq"))
            QPC.put(qpc, "cqn_rcv", self._number("cq"))
            self._send(m.WR_QP_CXT, m.WR_QP_ALL, self._qpn(), bytes(qpc))
        elif choice < 0.45:
            self._send(m.RD_QP_CXT, m.RD_QP_ALL, self._qpn())
        elif choice < 0.65:
            opcode = rng.choice((m.WR_CQ_ALL, m.WR_CQ_MODIFY, m.WR_CQ_INVALID))
            cqc = bytearray(rng.randbytes(CQC.size))
            CQC.put(cqc, "comp_eqn", self._number("eq") if rng.random() > self.wrong else rng.getrandbits(32))
            self._send(m.WR_CQ_CXT, opcode, self._number("cq"), b"" if opcode == m.WR_CQ_INVALID else bytes(cqc))
        elif choice < 0.82:
            opcode = rng.choice((m.WR_EQ_ALL, m.WR_EQ_ALL, m.WR_EQ_FUNC, m.WR_EQ_FUNC, m.WR_EQ_INVALID))
            payload = rng.randbytes(EQC.size) if opcode == m.WR_EQ_ALL else b""
            number = self._number("eq") | (m.EQ_DISABLE if rng.random() < 0.3 else 0)
            self._send(m.WR_EQ_CXT, opcode, number, payload)
        elif choice < 0.98:
            self._pages()
        elif choice < 0.985:
            wrong = rng.randbytes(BEAT_BYTES) if rng.random() < self.wrong else b""
            bench.ceu(m.ceu_request(m.WR_ICMMAP_CXT, m.WR_ICMMAP_DIS), wrong)
            self.open()
        else:
            self._enable()

    def _number(self, kind: str) -> int:
        rng = self.rng
        log, first = (self.params.log_eqs, 0) if kind == "eq" else (self.params.log_qps, 1)
        if rng.random() < self.wrong:
            return rng.choice((0, first + (1 << log), rng.getrandbits(31)))
        return first + rng.randrange(1 << log)

    def _send(self, kind: int, opcode: int, number: int, payload: bytes = b"") -> None:
        """Sometimes with another number of beats than right, none among them, or with an opcode that there is not."""
        rng = self.rng
        if rng.random() < self.wrong:
            right = len(payload) // BEAT_BYTES
            beats = rng.choice((0, 1, right + 1, max(right - 1, 0), rng.randrange(12)))
            payload = (payload + rng.randbytes(12 * BEAT_BYTES))[: beats * BEAT_BYTES]
        if rng.random() < self.wrong / 4:
            opcode = rng.randrange(16)
        self.bench.ceu(m.ceu_request(kind, opcode, number, rng.getrandbits(64)), payload)

    def _pages(self) -> None:
        """Map or unmap some; what is already so is refused whole."""
        rng = self.rng
        tables = self.bench.golden.ctxmdata.tables
        runs = []
        for _ in range(rng.choice((1, 1, 2, 3, 5))):
            kind = rng.choice(list(tables))
            depth = len(tables[kind].valid)
            at, pages = rng.randrange(depth), rng.randrange(1, 4)
            virt = BASES[kind] + (at << 12)
            if rng.random() < self.wrong:
                virt, pages = rng.choice(((virt + 8, pages), (virt, 0), (virt - (1 << 20), 1), ((1 << 64) - 4096, 2)))
            page = (1 << 52) - 2 if rng.random() < self.wrong / 2 else rng.getrandbits(36)
            runs.append((virt, page, pages))
        if rng.random() < 0.5:
            virt, _, pages = runs[0]
            count = rng.choice((pages, pages, 1 << 20)) if rng.random() < self.wrong else pages
            wrong = rng.randbytes(BEAT_BYTES * rng.randrange(1, 3)) if rng.random() < self.wrong else b""
            self.bench.ceu(m.ceu_request(m.MAP_ICM_CXT, m.MAP_ICM_DIS, count, virt), wrong)
        else:
            self._map(runs, rng.choice((0, len(runs) + 2, 99)) if rng.random() < self.wrong else None)

    def _enable(self) -> None:
        """Other sizes, and bases that may not be."""
        rng = self.rng
        values = {f"{kind}c_base": base >> 8 for kind, base in BASES.items()}
        if rng.random() < 0.5:
            values[rng.choice(list(values))] = rng.choice(
                (BASES["cq"] >> 8, (BASES["cq"] + 256) >> 8, (1 << 56) - 16, (1 << 56) - 32)
            )
        values |= {"log_qps": rng.randrange(self.params.log_qps + 2), "log_cqs": rng.randrange(3)}
        payload = m.ICMMAP.pack(values)
        if rng.random() < self.wrong:
            payload = rng.choice((b"", payload + payload))
        self.bench.ceu(m.ceu_request(m.WR_ICMMAP_CXT, m.WR_ICMMAP_EN), payload)
        self.open()

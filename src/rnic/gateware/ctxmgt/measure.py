"""Measure CtxMgt's cycles for each kind of request, with full queues."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from rnic.context import messages as m
from rnic.context.ctxmgt import Status
from rnic.context.qpc import QPC
from rnic.gateware.ctxmgt.driver import InProcess
from rnic.gateware.ctxmgt.key_qpc_data import WRITES
from rnic.gateware.ctxmgt.params import CtxMgtParams
from rnic.gateware.ctxmgt.top import CtxMgt
from rnic.gateware.verilated import build

LOG_QPS: Final = 8
"""The cycle counts do not depend on the size; a large CtxMgt takes minutes to export."""
QPS: Final = 16
COUNT: Final = 400
LATENCIES: Final = (1, 120)
BASES: Final = {"qpc_base": 0x8000_0000 >> 8, "cqc_base": 0x9000_0000 >> 8, "eqc_base": 0xA000_0000 >> 8}


def measure(directory: Path) -> list[dict[str, Any]]:
    """Return name, memory latency in cycles, and cycles per request, for every channel's requests and the CEU's.

    Raises:
        ToolError: CtxMgt cannot be compiled into ``directory`` here.
    """
    params = CtxMgtParams(log_qps=LOG_QPS)
    library = build(CtxMgt(params), "ctxmgt", directory)
    rows = []
    for latency in LATENCIES:
        memory: dict[int, int] = {}

        def read(addr: int, count: int, held: dict[int, int] = memory) -> bytes:
            return bytes(held.get(addr + at, 0) for at in range(count))

        def write(addr: int, data: bytes, held: dict[int, int] = memory) -> bool:
            held.update(enumerate(data, addr))
            return True

        ctxmgt = InProcess(library, read, write, latency)
        try:
            _open(ctxmgt)
            rows += [{"what": what, "latency": latency, "cycles": round(cycles, 1)} for what, cycles in _rows(ctxmgt)]
        finally:
            ctxmgt.close()
    return rows


def _open(ctxmgt: InProcess) -> None:
    chunk = m.CHUNK.pack({"virt": BASES["qpc_base"] << 8, "page": 1, "pages": 1}).ljust(32, b"\0")
    assert ctxmgt.ceu(m.ceu_request(m.WR_ICMMAP_CXT, m.WR_ICMMAP_EN), m.ICMMAP.pack(BASES))[0] == Status.OK
    assert ctxmgt.ceu(m.ceu_request(m.MAP_ICM_CXT, m.MAP_ICM_EN, 1), chunk)[0] == Status.OK


def _rows(ctxmgt: InProcess) -> list[tuple[str, float]]:
    rows = []
    qpc = QPC.pack({"state": 3, "cqn_snd": 1, "cqn_rcv": 1})
    qpns = [1 << LOG_QPS | at for at in range(QPS)]  # slots of the first page
    for what, opcode, payload in (("WR_QP_ALL", m.WR_QP_ALL, qpc), ("RD_QP_ALL", m.RD_QP_ALL, b"")):
        began = ctxmgt.cycles
        for qpn in qpns:
            kind = m.WR_QP_CXT if payload else m.RD_QP_CXT
            assert ctxmgt.ceu(m.ceu_request(kind, opcode, qpn), payload)[0] == Status.OK
        rows.append((f"CEU, {what}", (ctxmgt.cycles - began) / QPS))
    for source in m.ENGINES:
        row = m.READS[source]
        rows.append((f"{_name(source)}, {row.name}", _stream(ctxmgt, [source], row.type, row.opcode, qpns)))
    for source, (opcode, _) in WRITES.items():
        name = m.BY_CODE[m.WR_QP_CXT, opcode].name
        rows.append((f"{_name(source)}, {name}", _stream(ctxmgt, [source], m.WR_QP_CXT, opcode, qpns)))
    rows.append(("all six channels, reads", _stream(ctxmgt, list(m.ENGINES), 0, 0, qpns)))
    return rows


def _name(source: int) -> str:
    return m.SOURCE_NAMES[source].replace("_", " ")


def _stream(ctxmgt: InProcess, sources: list[int], kind: int, opcode: int, qpns: list[int]) -> float:
    """Measure the cycles per request of COUNT requests in a row; kind 0 is each channel's own read."""
    for at in range(COUNT):
        source = sources[at % len(sources)]
        row = m.READS[source]
        command = m.engine_request(kind or row.type, opcode or row.opcode, qpns[at % QPS])
        ctxmgt.request(source, command, m.engine_payload(at, 3))
    done, began = ctxmgt.counted["received"] + COUNT, ctxmgt.cycles
    wrote = ctxmgt.counted["wrote"] + (COUNT if kind == m.WR_QP_CXT else 0)
    while ctxmgt.counted["received"] < done or ctxmgt.counted["wrote"] < wrote:
        ctxmgt.cycle()
    cycles = ctxmgt.cycles - began
    ctxmgt.settle()
    return cycles / COUNT

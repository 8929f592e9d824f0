"""Channel requests per second of the context manager in message form, in plain Python.

Every row is one request of one channel; a read includes its response, a write its transfer to host memory. The data
path has no such cost, since it uses typed views of the same cache. Times are processor time of this process, so that
other load does not count. Exit status 1 if all requests in turn are fewer than 100,000 per second.
"""

from __future__ import annotations

import time
from functools import partial

import harness
from harness import Row

from rnic.context import messages as m
from rnic.context.cqc import CQC
from rnic.context.ctxmgt import ContextManager, Status
from rnic.context.eqc import EQC
from rnic.context.key_qpc_data import FIFO_DEPTH
from rnic.context.qpc import QPC
from rnic.device.icm_pages import lend_pages
from rnic.spec.states import RTS
from rnic.trace.counters import Counters

WANTED = 100_000
QPNS = range(16, 16 + 64)
ROUNDS = 5


def manager() -> ContextManager:
    """Return a context manager with 64 queue pairs, one CQ and one EQ."""
    contexts = ContextManager(13, Counters())
    lend_pages(contexts, {"qp": 0, "cq": 0, "eq": 0})
    assert contexts.write_eq(0, EQC.pack({"logsize": 8})) == Status.OK
    assert contexts.write_cq(1, CQC.pack({"logsize": 8})) == Status.OK
    for qpn in QPNS:
        values = {"local_qpn": qpn, "state": RTS, "mtu": 5, "cqn_snd": 1, "cqn_rcv": 1, "remote_qpn": qpn}
        assert contexts.write_qp(qpn, QPC.pack(values)) == Status.OK
    return contexts


def rate(contexts: ContextManager, rows: list[m.Request], requests: int) -> float:
    """Measure requests per second: fill the FIFOs, run to completion, take the responses."""
    payload = m.engine_payload(7, RTS)
    work = []
    for index in range(requests):
        row = rows[index % len(rows)]
        data = payload if row.kind == m.WRITE else b""
        work.append((row.sources[0], m.engine_request(row.type, row.opcode, QPNS[index % len(QPNS)]), data))
    sources = [row.sources[0] for row in rows]
    batch = FIFO_DEPTH // max(map(sources.count, sources)) * len(rows)  # as much as the FIFOs hold
    start = time.process_time()
    answered = 0
    for at in range(0, len(work), batch):
        part = work[at : at + batch]
        for source, command, data in part:
            contexts.request(source, command, data)
        contexts.run()
        for source in set(sources):
            while contexts.response(source) is not None:
                answered += 1
    speed = len(work) / (time.process_time() - start)
    assert answered == sum(1 for _, _, data in work if not data)
    return speed


def main(argv: list[str]) -> int:
    """Print a row for each request, one for all reads in turn and one for all."""
    channels = [row for row in m.REQUESTS if row.sources and m.CEU not in row.sources]
    parts = {f"{m.SOURCE_NAMES[row.sources[0]]} {row.name}": [row] for row in channels}
    parts["all six channels, reads in turn"] = [row for row in channels if row.kind == m.READ]
    parts["all six channels, reads and writes"] = channels
    parser = harness.Parser("ctx", __doc__, rounds=ROUNDS, rows=parts, json=True)
    parser.add_argument("requests", nargs="?", type=harness.at_least_one, default=30_000, help="of each row; 30000")
    given = parser.read(argv)
    contexts = manager()
    takes = [
        (what, partial(rate, contexts, part, given.requests)) for what, part in parts.items() if given.only in what
    ]
    rows = [Row(what, what, "requests/s", WANTED if part is channels else None) for what, part in parts.items()]
    return harness.report(given, rows, *harness.in_turn(takes, given.rounds))


if __name__ == "__main__":
    harness.run(main)

"""Random requests of the command unit and of all six channels against a small model, with faults of host memory."""

from __future__ import annotations

import random

import pytest

from rnic.context import messages as m
from rnic.context.cqc import CQC
from rnic.context.ctxmgt import ContextManager, Status
from rnic.context.eqc import EQC
from rnic.context.machines import MACHINES
from rnic.context.qpc import QPC
from rnic.device.icm_pages import IcmPages, lend_pages
from rnic.trace.counters import Counters

WRITES = {
    m.RTC: (m.WR_QP_NPST, "next_send_psn"),
    m.RRC: (m.WR_QP_UAPST, "last_acked_psn"),
    m.EE: (m.WR_QP_EPST, "expected_psn"),
}
READS = [row for row in m.REQUESTS if row.kind == m.READ and m.CEU not in row.sources]


class Faulty:
    """A DMA port in front of the lent pages that fails when it is told to, and counts."""

    def __init__(self, pages: IcmPages) -> None:
        self.pages = pages
        self.failing = False
        self.failed = 0

    def read(self, va: int, buf: bytearray | memoryview) -> bool:
        self.failed += self.failing
        return not self.failing and self.pages.read(va, buf)

    def write(self, va: int, data: bytes | bytearray | memoryview) -> bool:
        self.failed += self.failing
        return not self.failing and self.pages.write(va, data)

    def views(self, va: int, length: int) -> memoryview | None:
        return None


class Stream:
    """One run: 16 QPs and CQs, 4 EQs; the model is a dict of values for each context that exists."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.contexts = ContextManager(4, Counters(), log_eqs=2)
        self.port = Faulty(lend_pages(self.contexts, {"qp": 0, "cq": 0, "eq": 0}))
        tables = self.contexts.ctxmdata.tables
        for table in tables.values():
            table.ports[:] = [self.port] * len(table.ports)
        self.page = tables["qp"].base
        self.qps: dict[int, dict[str, int]] = {}
        self.cqs: dict[int, dict[str, int]] = {}
        self.eqs: dict[int, dict[str, int]] = {}

    def ceu(self, kind: int, opcode: int, addr: int, payload: bytes = b"", data: int = 0) -> bool:
        """One command; whether it was carried out, which only what the model knows may prevent."""
        return self.contexts.ceu(m.ceu_request(kind, opcode, addr, data), payload, self.port)[0] == Status.OK

    @property
    def mapped(self) -> bool:
        return bool(self.contexts.ctxmdata.tables["qp"].valid[0])

    def command(self) -> None:
        rng = self.rng
        able = not self.port.failing
        number = rng.randrange(0, 36)
        choice = rng.randrange(8)
        if choice == 0:
            psns = ("next_send_psn", "last_acked_psn", "expected_psn")
            values = {"state": rng.randrange(7), "remote_qpn": rng.getrandbits(24), "cqn_snd": rng.randrange(1, 17)}
            values |= {"local_qpn": number} | {name: rng.getrandbits(24) for name in psns}
            done = self.contexts.write_qp(number, QPC.pack(values)) == Status.OK
            assert done == (able and self.mapped and 16 <= number < 32)
            if done:
                self.qps[number] = values
        elif choice in (1, 2):
            values = {"logsize": rng.randrange(1, 17), "comp_eqn": rng.randrange(4), "lkey": rng.getrandbits(32)}
            opcode = rng.choice((m.WR_CQ_ALL, m.WR_CQ_MODIFY))
            done = self.ceu(m.WR_CQ_CXT, opcode, number, CQC.pack(values))
            assert done == (able and 1 <= number <= 16)
            if done:
                self.cqs[number] = values
        elif choice == 3:
            done = self.ceu(m.WR_CQ_CXT, m.WR_CQ_INVALID, number)
            assert done == (able and 1 <= number <= 16)
            if done:
                self.cqs.pop(number, None)
        elif choice == 4:
            number %= 6
            values = {"logsize": rng.randrange(1, 17), "lkey": rng.getrandbits(32), "event_mask": 0}
            done = self.ceu(m.WR_EQ_CXT, m.WR_EQ_ALL, number, EQC.pack(values))
            assert done == (able and number < 4)
            if done:
                self.eqs[number] = values
        elif choice == 5:
            number %= 6
            done = self.ceu(m.WR_EQ_CXT, m.WR_EQ_INVALID, number)
            assert done == (able and number < 4)
            if done:
                self.eqs.pop(number, None)
        elif choice == 6:
            number %= 6
            types, disable, beyond = rng.getrandbits(32), rng.random() < 0.4, rng.random() < 0.1
            # bit 31 of the address alone disables; a number beyond the table stays one
            addr = number | disable << 31 | beyond << 30
            done = self.ceu(m.WR_EQ_CXT, m.WR_EQ_FUNC, addr, data=types)
            assert done == (able and number in self.eqs and not beyond)
            if done:
                mask = self.eqs[number]["event_mask"]
                self.eqs[number]["event_mask"] = mask & ~types if disable else mask | types
        elif self.mapped:
            assert self.ceu(m.MAP_ICM_CXT, m.MAP_ICM_DIS, 1, data=self.page)
        else:
            self.map()

    def map(self) -> None:
        chunk = m.CHUNK.pack({"virt": self.page, "page": self.page >> 12, "pages": 1}).ljust(32, b"\0")
        assert self.ceu(m.MAP_ICM_CXT, m.MAP_ICM_EN, 1, chunk)

    def engine(self) -> None:
        rng, contexts = self.rng, self.contexts
        qpn = rng.randrange(14, 34)
        model = self.qps.get(qpn)
        if rng.random() < 0.5:
            source = rng.choice(list(WRITES))
            opcode, name = WRITES[source]
            psn, state = rng.getrandbits(24), rng.randrange(8)
            sent = contexts.request(
                source, m.engine_request(m.WR_QP_CXT, opcode, qpn), bytes(12) + (psn << 8 | state).to_bytes(4, "big")
            )
            contexts.stalled = rng.random() < 0.3
            contexts.run()
            assert sent
            assert contexts.response(source) is None
            if model is not None and state < 7:
                model |= {name: psn, "state": state}
        else:
            row = rng.choice(READS)
            assert contexts.request(row.sources[0], m.engine_request(row.type, row.opcode, qpn))
            contexts.run()
            answer = contexts.response(row.sources[0])
            assert answer is not None
            fields = m.RESPONSES[row.sources[0]].unpack(answer[1])
            if model is None:
                assert not any(fields.values())
            elif row.name == "RD_QP_NPST":
                cq = self.cqs.get(model["cqn_snd"], {"lkey": 0, "comp_eqn": 0})
                eq = self.eqs.get(cq["comp_eqn"], {"lkey": 0})
                wanted = {"state": model["state"], "next_psn": model["next_send_psn"], "scq_lkey": cq["lkey"]}
                wanted["eq_lkey"] = eq["lkey"]
                assert {name: fields[name] for name in wanted} == wanted
            elif row.name == "RD_QP_RST":
                assert (fields["expected_psn"], fields["dst_qpn"]) == (model["expected_psn"], model["remote_qpn"])

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.port.failing = self.rng.random() < 0.3
            (self.command if self.rng.random() < 0.4 else self.engine)()
            self.contexts.stalled = False
            self.contexts.run()
        self.port.failing = False
        if not self.mapped:
            self.map()
        self.contexts.flush()

    def bytes_at(self, kind: str, number: int, size: int) -> bytes:
        place = self.contexts.ctxmdata.tables[kind].locate(number)
        assert place is not None
        data = bytearray(size)
        assert place.port.read(place.addr, data)
        return bytes(data)

    def check(self) -> None:
        """Model, cache and host memory agree."""
        key = self.contexts.key
        assert (set(key.qps), set(key.cqs), set(key.eqs)) == (set(self.qps), set(self.cqs), set(self.eqs))
        for qpn, values in self.qps.items():
            host = self.bytes_at("qp", qpn, 256)
            assert host == key.qps[qpn].store()
            assert {name: QPC.get(host, name) for name in values} == values
        for cqn, values in self.cqs.items():
            assert self.bytes_at("cq", cqn, 64) == CQC.pack(values)
            assert {name: getattr(key.cqs[cqn], name) for name in values} == values
        for eqn, values in self.eqs.items():
            assert self.bytes_at("eq", eqn, 64) == EQC.pack(values)
            assert {name: getattr(key.eqs[eqn], name) for name in values} == values


@pytest.mark.parametrize("seed", range(12))
def test_cache_and_memory_agree_after_a_flush(seed: int) -> None:
    stream = Stream(seed)
    stream.run(200)
    stream.check()


def test_streams_meet_faults_and_every_transition() -> None:
    taken: dict[str, set[tuple[str, str]]] = {name: set() for name in MACHINES}
    failed = unmapped = 0
    for seed in range(100, 108):
        stream = Stream(seed)
        stream.run(400)
        stream.check()
        failed += stream.port.failed
        unmapped += stream.contexts.counters["ctx_unmapped"]
        for machine in stream.contexts.machines:
            taken[machine.name] |= machine.taken
    print(f"{failed} DMA transfers failed, {unmapped} write-backs found no page")
    assert failed > 50
    assert unmapped > 20
    missed = {(name, row) for name, table in MACHINES.items() for row in set(table) - taken[name]}
    assert missed == {
        ("key_qpc_data", ("RD_REQ", "refused")),  # a request on another's channel is not in these streams
    }

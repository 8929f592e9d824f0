"""``qp_state`` in front of the software's CtxMgt: every state handed out is what the update before it has left."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest
from amaranth.sim import Simulator

from rnic.context import messages as m
from rnic.context.ctxmgt import ContextManager, Status
from rnic.context.qpc import QPC
from rnic.gateware.roce.qp_state import CONTEXT, LOCKS, OWN, QpState, QpStateParams
from rnic.spec.limits import FIRST_QPN
from rnic.trace.counters import Counters

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
LOG_QPS = 4
PSN_END = 1 << 24


class HostMemory(dict[int, int]):
    """Pages that a driver lends."""

    def read(self, va: int, buf: bytearray | memoryview) -> bool:
        buf[:] = bytes(self.get(va + at, 0) for at in range(len(buf)))
        return True

    def write(self, va: int, data: bytes | bytearray | memoryview) -> bool:
        self.update(enumerate(data, va))
        return True

    def views(self, va: int, length: int) -> memoryview | None:
        return None


def contexts(rng: random.Random) -> tuple[ContextManager, HostMemory]:
    """CtxMgt with all queue pairs of the block in RTS."""
    manager, memory = ContextManager(LOG_QPS, Counters()), HostMemory()
    icmmap = m.ICMMAP.pack({"qpc_base": 0x1000 >> 8, "cqc_base": 0x8000 >> 8, "eqc_base": 0x9000 >> 8})
    assert manager.init_hca(icmmap) == Status.OK
    assert manager.map_icm(memory, [(0x1000, 0x5000, 1)]) == Status.OK
    for qpn in range(FIRST_QPN, FIRST_QPN + (1 << LOG_QPS)):
        values = {"state": 3, "expected_psn": rng.getrandbits(24), "remote_qpn": rng.getrandbits(24), "mtu": 3}
        assert manager.write_qp(qpn, QPC.pack(values)) == Status.OK
    return manager, memory


class Bench:
    """What stands around the block: packets that ask, a responder that takes its time, CtxMgt's channel."""

    def __init__(self, packets: list[int], stalls: float, seed: int) -> None:
        self.rng = random.Random(seed)
        self.stalls = stalls
        self.manager, self.memory = contexts(self.rng)
        self.packets = deque(packets)
        self.left = len(packets)
        self.model: dict[int, dict[str, int]] = {}
        self.working: deque[dict[str, Any]] = deque()
        self.most = 0
        self.answers: deque[tuple[int, int]] = deque()
        self.commands: deque[int] = deque()
        self.payloads: deque[int] = deque()
        self.cycles = 0

    def expected(self, qpn: int) -> dict[str, int]:
        """The state that a packet must find."""
        if qpn not in self.model:
            command = m.engine_request(m.READS[m.EE].type, m.READS[m.EE].opcode, qpn)
            self.manager.request(m.EE, command)
            self.manager.run()
            answer = self.manager.response(m.EE)
            assert answer is not None
            self.model[qpn] = m.EE_RESPONSE.unpack(answer[1]) | dict.fromkeys(OWN, 0)
        return self.model[qpn]

    def serve(self) -> None:
        """CtxMgt's part: commands in their order, a write with its payload."""
        while self.commands:
            command = self.commands[0].to_bytes(16, "big")
            if command[0] == m.WR_QP_CXT << 4 | m.WR_QP_EPST:
                if not self.payloads:
                    return
                assert self.manager.request(m.EE, command, self.payloads.popleft().to_bytes(16, "big"))
                self.manager.run()
            else:
                assert self.manager.request(m.EE, command)
                self.manager.run()
                answer = self.manager.response(m.EE)
                assert answer is not None
                self.answers.append((int.from_bytes(answer[0], "big"), int.from_bytes(answer[1], "little")))
            self.commands.popleft()

    def handed_out(self, qpn: int, state: dict[str, int]) -> None:
        assert state == self.expected(qpn), f"{qpn:#x}"
        assert all(each["qpn"] != qpn for each in self.working), "handed out twice"
        after = dict(state)
        changed = self.rng.random() < 0.8
        if changed:
            after |= {"expected_psn": (state["expected_psn"] + 1) % PSN_END, "msn": (state["msn"] + 1) % PSN_END}
        after["nak_sent"] = self.rng.getrandbits(1)
        self.model[qpn] = after
        self.working.append({"qpn": qpn, "state": after, "changed": int(changed)})
        self.most = max(self.most, len(self.working))

    def run(self, block: QpState, limit: int = 4_000) -> None:
        """Until every packet has had its state, and for some cycles more."""
        simulator = Simulator(block)
        simulator.add_clock(1e-8)

        async def script(ctx: Any) -> None:
            quiet = 0
            shown: set[str] = set()
            while quiet < 20:
                offers: dict[str, Any] = {
                    "asks": self.packets[0] if self.packets else None,
                    "updates": self.working[0] if self.working else None,
                    "resp": self.answers[0][0] if self.answers else None,
                    "cxt": self.answers[0][1] if self.answers else None,
                }
                for name, value in offers.items():
                    offered = value is not None and (name in shown or self.rng.random() >= self.stalls)
                    ctx.set(getattr(block, name).valid, offered)
                    if offered:
                        shown.add(name)
                        ctx.set(getattr(block, name).payload, value)
                for name in ("states", "cmd", "cxt_in"):
                    ctx.set(getattr(block, name).ready, self.rng.random() >= self.stalls)
                took = {name for name in shown if ctx.get(getattr(block, name).ready)}
                shown -= took
                gave = {
                    name: ctx.get(getattr(block, name).payload)
                    for name in ("states", "cmd", "cxt_in")
                    if ctx.get(getattr(block, name).valid & getattr(block, name).ready)
                }
                assert ("resp" in took) == ("cxt" in took)
                if "asks" in took:
                    self.packets.popleft()
                if "updates" in took:
                    self.working.popleft()
                if "resp" in took:
                    self.answers.popleft()
                if "cmd" in gave:
                    self.commands.append(gave["cmd"])
                if "cxt_in" in gave:
                    self.payloads.append(gave["cxt_in"])
                self.serve()
                if "states" in gave:
                    state = gave["states"].state
                    self.handed_out(gave["states"].qpn, {name: state[name] for name in (*CONTEXT, *OWN)})
                    self.left -= 1
                await ctx.tick()
                self.cycles += 1
                quiet = quiet + 1 if not (self.left or self.working or self.commands) else 0
                assert self.cycles < limit, f"{self.left} packets wait"

        simulator.add_testbench(script)
        simulator.run()
        for qpn, state in self.model.items():
            image = bytes(self.memory[0x5000 + (qpn - FIRST_QPN) * 256 + at] for at in range(256))
            assert QPC.get(image, "expected_psn") == state["expected_psn"]


@pytest.mark.parametrize("stalls", [0.0, 0.5])
@pytest.mark.parametrize("queue_pairs", [1, 2, 1 << LOG_QPS])
def test_a_packet_finds_what_the_one_before_it_left(queue_pairs: int, stalls: float) -> None:
    rng = random.Random(queue_pairs)
    packets = [FIRST_QPN + rng.randrange(queue_pairs) for _ in range(150)]
    bench = Bench(packets, stalls, 3)
    bench.run(QpState(QpStateParams(LOG_QPS)))
    assert 1 <= bench.most <= LOCKS


def test_a_packet_each_cycle_over_many_queue_pairs() -> None:
    """And a few for each first one, whose state is fetched; on one queue pair three each."""
    many = [FIRST_QPN + at % (1 << LOG_QPS) for at in range(320)]
    bench = Bench(many, 0.0, 1)
    bench.run(QpState(QpStateParams(LOG_QPS)))
    one = Bench([FIRST_QPN] * 100, 0.0, 1)
    one.run(QpState(QpStateParams(LOG_QPS)))
    assert bench.cycles <= len(many) + 3 * (1 << LOG_QPS) + 20
    assert one.cycles <= 3 * 100 + 30


@pytest.mark.parametrize("log_qps", [0, 15])
def test_sizes_that_cannot_be_are_refused(log_qps: int) -> None:
    with pytest.raises(ValueError, match="log_qps"):
        QpStateParams(log_qps)

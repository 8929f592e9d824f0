"""Run a world: NICs in virtual time execute a plan, and judges check the results."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rnic.cc.settings import CongestionSettings
from rnic.cm.records import ConnectionRecord
from rnic.device.faults import regions
from rnic.device.nic import Nic
from rnic.engine import use
from rnic.judge import Finding, Judge
from rnic.judge.connections import Connections
from rnic.link.base import format_address
from rnic.link.fault_script import parse_script
from rnic.link.faults import NO_FAULTS, FaultRates
from rnic.spec.limits import SELECTIVE_REPEAT
from rnic.testing.executors import executed_by, steps_alone
from rnic.testing.live_model import FindingError
from rnic.testing.net import SimNet
from rnic.testing.world.ends import DEPTH, FAILED, End, Program, Receives
from rnic.testing.world.exchange import Exchange
from rnic.testing.world.plan import AREA, ATOMICS, RELIABLE, SENDS, SLOT, XRC_FAULTS, Plan, Step
from rnic.testing.world.shadow import WORD, Direction, Work
from rnic.testing.world.tap import Tap
from rnic.trace.guard import OWN_ERRORS
from rnic.verbs import enums as e
from rnic.verbs.attrs import QPAttr
from rnic.verbs.qp import QP
from rnic.wire.bursts import RxBurst
from rnic.wire.crc import crc32

if TYPE_CHECKING:
    from rnic.engine import _engine

MOST_TURNS = 100_000
"""Turns of all NICs after which a busy world counts as livelocked."""
_FAULT_STATUSES = {e.IBV_WC_RETRY_EXC_ERR, e.IBV_WC_WR_FLUSH_ERR}
_ENOUGH = 8
"""Packet faults of the network that explain exhausted retries."""
_SELECTIVE = {"ack-gap", "nak-once", "read-retry", "read-order"}
"""IBA rules that negotiated selective repeat violates."""
_DISTORTED = {"cnp-rate", "read-retry"}
"""Rules that a bad network makes look broken: it delays one CNP and not the next, and of a READ and the shorter probe
for its answer it may lose the first."""
_DAMAGE = {"icrc", "length"}
"""Rules that a packet breaks where the network has corrupted or truncated it."""
_QUIET_STEPS = {"connect", "post", "recv", "run", "bind", "fault-rates", "lose", "settle"}
"""Steps that do not prevent messages from arriving."""
_SUPPLY_EVERY = 50
_FATAL_FOR = "5ms"
BOTH_DIFFER = "engine and reference differ"
_PSN_STEP = 0x35_1234
_EXPECTED = {
    "wrong": e.IBV_WC_REM_ACCESS_ERR,
    "pd": e.IBV_WC_REM_ACCESS_ERR,
    "queue": e.IBV_WC_REM_INV_REQ_ERR,
    "domain": e.IBV_WC_REM_INV_REQ_ERR,
}
"""Status of a request with a wrong operand."""


class Figures(NamedTuple):
    """Results of a run: seed, counts and finding."""

    seed: int
    operations: int
    packets: int
    faults: int
    virtual_ns: int
    digest: int
    """CRC-32 of every packet with its time, every completion and all memory; it does not depend on bursts."""
    finding: str
    """The violation; empty if there was none."""
    step: int
    """Step of the plan with the finding, or the number of steps."""


def described(error: Exception) -> str:
    """Return an exception as a finding: one line, with file and line unless it is a :class:`FindingError`."""
    if isinstance(error, (FindingError, TimeoutError)):
        return str(error)
    trace = traceback.extract_tb(error.__traceback__)
    place = f"{Path(trace[-1].filename).name}:{trace[-1].lineno}" if trace else "no place"
    return f"{type(error).__name__} at {place}: {error}"


def _hold_what_is_early(nic: Nic, device: _engine.Device) -> None:
    """Pass packets to the engine's device with a reorder buffer, as compiled polls do, and the rest to Python."""
    receive = nic.receive

    def receive_by_device(burst: RxBurst, now_ns: int, start: int = 0) -> None:
        if nic.enabled:
            start += device.receive(burst, start, now_ns)
        if start < burst.length:
            receive(burst, now_ns, start)

    device.selective = True
    nic.receive = receive_by_device  # type: ignore[method-assign]


class Connection:
    """Two ends and the two directions between them."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.reasons: set[int] = set()
        self.ends: list[End] = []
        self.record: ConnectionRecord | None = None
        """The first end's record, if connection management made the connection."""
        self.joined = 0
        """Number of times it was connected, each with other PSNs."""


class World:
    """Run of a plan: its NICs, programs and judges.

    Args:
        plan: the plan.
        judged: true to check every packet with the judge of ``rnic check``.
        compared: true if its results are compared with another run, so that bursts must not affect them.
    """

    def __init__(self, plan: Plan, *, judged: bool = True, compared: bool = False) -> None:
        settings = dict(plan.settings)
        ipv6 = settings.pop("ipv6", False)
        reorder = settings.pop("reorder", False)
        self._area = settings.pop("area", AREA)
        settings["congestion"] = CongestionSettings(settings.get("congestion", "none"))
        settings |= {"log_max_qps": 6, "max_mrs": 512}
        self.plan = plan
        self.net = SimNet(plan.nics, seed=plan.seed, ipv6=ipv6, settings=settings)
        self.net.receives_all = compared
        self.packets = self.digest = self.operations = 0
        self.digested_ns = -1
        self._judged = judged
        self.judge = self._new_judge()
        self.broken: list[Finding] = []
        self.corrupted: set[bytes] = set()
        """Packets corrupted by the network since the last settle, from the BTH on."""
        self.corrupted_frames: set[int] = set()
        """Numbers of the judge's frames that are such packets."""
        for node in self.net.nodes:
            node.link.inner = Tap(node.link.inner, self)
            node.link.corrupted = self.corrupted.add
            if reorder and use.COMPILED is not None and isinstance(node.nic.engine_device, use.COMPILED.Device):
                _hold_what_is_early(node.nic, node.nic.engine_device)
        self._exchange = Exchange(self.net, plan.seed)
        self.programs = [Program(node) for node in self.net.nodes]
        self.connections: dict[int, Connection] = {}
        self.event_faults = False
        """True if an event has made NICs drop packets since the last settle."""
        self._events = False
        """True if a step since the last settle may prevent messages from arriving."""
        self._faulted: set[int] = set()
        """NICs with events."""
        self.lossy = False
        """True if faults may have split bursts since the last settle: the index in a burst is then not the IP ID."""
        self._wild: set[str] = set()
        """Directions of connections with garbage since the last settle, by their names in the judge's findings."""
        self._rates = NO_FAULTS
        self._struck = 0
        self._serial = 0
        self._doers: dict[str, Callable[[Step], None]] = {
            "connect": self._connect, "post": self._post, "recv": self._recv, "run": self._run, "bind": self._bind,
            "lose": self._lose, "region-gone": self._region_gone, "async-event": self._async_event,
            "fault-rates": self._fault_rates, "fault": self._fault, "rekey": self._rekey, "stop": self._stop,
            "qp-error": self._qp_error, "completion": self._completion, "garbage": self._garbage, "end": self._end,
            "fatal": self._break, "cq-overflow": self._break, "srq-error": self._srq_error, "settle": self._settle,
        }  # fmt: skip

    def run(self) -> Figures:
        """Run all steps, and a settle at the end."""
        finding, at = "", len(self.plan.steps)
        began_ns = self.net.clock.now_ns
        try:
            for at, step in enumerate((*self.plan.steps, {"do": "settle"})):  # noqa: B007 - used after a failure
                self._events |= step["do"] not in _QUIET_STEPS
                self._doers[step["do"]](step)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is a finding
            finding = described(error)
        virtual_ns = self.net.clock.now_ns - began_ns
        return Figures(
            self.plan.seed, self.operations, self.packets, self.faults(), virtual_ns, self.digest, finding, at
        )

    def close(self) -> None:
        """Close all NICs."""
        for program in self.programs:
            if program.alive:
                program.close()
        self.net.close()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ----------------------------------------------------------------------------------------- helpers

    def number(self) -> int:
        """Return the number of the next work request."""
        self._serial += 1
        return self._serial

    def faults(self) -> int:
        """Return the number of injected faults, on packets and devices."""
        return sum(
            count for node in self.net.nodes for name, count in node.counters.items() if name.startswith("fault_")
        )

    def _new_judge(self) -> Judge | None:
        return Judge(self._broken) if self._judged else None

    def _broken(self, finding: Finding) -> None:
        self.broken.append(finding)

    def _check_wire(self) -> None:
        """Demand that the judge has found nothing since all was quiet but the packets that the network damaged."""
        passed = set(_DISTORTED) if self.lossy or self.event_faults else set()
        if passed and self._area > AREA:
            passed.add("psn-jump")  # more packets are lost, or overtake a late one, than the judge remembers
        if any(node.counters["fault_event_pkey"] for node in self.net.nodes):
            passed.add("pkey")
        if self.plan.settings.get("recovery") == SELECTIVE_REPEAT or self.plan.settings.get("reorder"):
            passed |= _SELECTIVE
        for finding in self.broken:
            damaged = finding.rule in _DAMAGE
            excused = finding.frame in self.corrupted_frames if damaged else finding.rule in passed
            if not excused and finding.queue_pair not in self._wild:
                raise FindingError(
                    f"rnic check, frame {finding.frame}, {finding.queue_pair}: {finding.rule}: {finding.detail}"
                )
        self.broken.clear()
        self.corrupted.clear()
        self._wild.clear()

    def _ends(self, step: Step) -> End | None:
        """Return the end of a step, if it exists."""
        connection = self.connections.get(step["of"])
        end = connection.ends[step["way"]] if connection is not None else None
        return end if end is not None and end.alive and not end.out.wild else None

    def _explain(self, end: End, *statuses: int) -> None:
        """Record that an event explains the failure of a connection."""
        end.reasons |= FAILED | set(statuses)

    def _poll(self) -> None:
        """Poll all completions, and check them."""
        net = self.net
        net.driving = True  # time stands still
        try:
            for program in self.programs:
                while program.alive:
                    wcs = program.cq.poll(64)[1]
                    if not wcs:
                        break
                    for wc in wcs:
                        self._take(program, wc)
        finally:
            net.driving = False

    def _take(self, program: Program, wc: Any) -> None:
        said = f"{self.net.clock.now_ns} {program.node.index} {wc!r}"
        self.digest = crc32(said.encode(), self.digest)
        end = program.ends.get(wc.qp_num)
        if end is None:
            raise FindingError(f"NIC {program.node.index}: {wc!r} is of an unknown queue pair")
        if wc.status == e.IBV_WC_RETRY_EXC_ERR and (self.event_faults or self._strikes() - self._struck >= _ENOUGH):
            end.reasons |= _FAULT_STATUSES
        end.completed(wc)

    def _strikes(self) -> int:
        """Return how many packets the network has lost, corrupted or kept back."""
        names = ("fault_tx_drop", "fault_tx_corrupt", "fault_tx_truncate", "fault_tx_delay", "fault_tx_reorder")
        return sum(node.counters[name] for node in self.net.nodes for name in names)

    # ------------------------------------------------------------------------------------------- steps

    def _connect(self, step: Step) -> None:
        if step["of"] in self.connections:
            return
        connection = self.connections[step["of"]] = Connection(step)
        self._build(connection)

    def _build(self, connection: Connection) -> None:
        """Create both ends, each with its own memory."""
        step = connection.step
        first, second = (self.programs[step[side] % len(self.programs)] for side in ("a", "b"))
        if not (first.alive and second.alive):
            del self.connections[step["of"]]
            return
        service = step["service"]
        name = f"{step['of']} ({service})"
        connection.reasons.clear()
        ways = [
            Direction(
                f"connection {name}, NIC {here.node.index} to {there.node.index}", step["service"], seed, self._area
            )
            for here, there, seed in ((first, second, step["data"]), (second, first, step["data"] + 1))
        ]
        connection.ends = [
            End(name, first, step, ways[0], ways[1], connection.reasons),
            End(name, second, step, ways[1], ways[0], connection.reasons),
        ]
        connection.ends[0].peer, connection.ends[1].peer = connection.ends[1], connection.ends[0]
        self._join(connection)

    def _join(self, connection: Connection) -> None:
        psn = connection.step["psn"] + connection.joined * _PSN_STEP
        connection.joined += 1
        psns = psn & 0xFFFFFF, psn + _PSN_STEP // 2 & 0xFFFFFF
        if connection.step.get("cm"):
            first, second = (end.program.node for end in connection.ends)
            qpns = connection.ends[0].qp.qp_num, connection.ends[1].qp.qp_num
            record = connection.record = self._exchange.connect(first, second, qpns)
            psns = record.remote.psn, record.local.psn
        connection.ends[0].to_rts(psns)
        connection.ends[1].to_rts(psns[::-1])

    def _post(self, step: Step) -> None:
        for _ in range(step.get("times", 1)):
            self._post_one(step)
        self._poll()

    def _post_one(self, step: Step) -> None:
        end = self._ends(step)
        if end is None or not end.peer.alive or len(end.pending) >= DEPTH:
            return
        out, verb = end.out, step["verb"]
        if end.service == "UD" and step["length"] > 200:
            return
        work = Work(self.number(), verb, step["length"], step["at"], step["to"])
        reliable = end.service in RELIABLE
        work.signaled, work.fence, work.imm = step["signaled"], step["fence"] and reliable, step["value"]
        work.queue = step.get("queue", 0) if end.xrc else 0
        peer = end.peer
        if verb in ATOMICS or verb == "READ":
            if out.results_used + work.length > len(out.result) - (0 if work.length <= SLOT else self._area):
                return
            work.at = out.results_used
            out.results_used += max(work.length, 1)
        if verb in ATOMICS:
            work.to &= -WORD
            work.operand, work.swap = step["value"], step["value"] * 3
            out.results_used += -out.results_used % WORD
            if verb == "CMP_SWAP" and step["value"] & 1:
                work.operand = int.from_bytes(out.target_shadow[work.to : work.to + WORD], "little")
        if verb == "ATOMIC_WRITE":
            work.to, work.operand = work.to & -WORD, step["value"] << 32 | work.number
        if verb == "SEND_INV":
            if not peer.window_key or not peer.invalidates:
                work.verb = "SEND"
            else:
                work.imm, work.fence = peer.window_key, True
                peer.window_key = 0
        key = step.get("key")
        if key == "wrong" or (key in XRC_FAULTS and end.xrc):
            work.expect, work.signaled = _EXPECTED[key], True
            if work.expect == e.IBV_WC_REM_ACCESS_ERR and (verb in SENDS or not work.length):
                return  # nothing is accessed
        if work.takes_receive and not reliable:
            work.due = len(peer.queues[0].slots.posted) > end.out.undelivered
        end.post(work, step)
        if work.expect:
            self._explain(end, work.expect)
        self.operations += 1

    def _recv(self, step: Step) -> None:
        end = self._ends(step)
        if end is not None:
            end.queues[step.get("queue", 0) % len(end.queues)].post(step["count"], self.number)
            self.operations += 1

    def _run(self, step: Step) -> None:
        for _ in range(step["turns"]):
            if not self.net.turn():
                break
        self._poll()

    def _bind(self, step: Step) -> None:
        end = self._ends(step)
        if end is not None and end.peer.alive and len(end.pending) < DEPTH:
            end.bind(self.number())
            self.operations += 1

    def _rekey(self, step: Step) -> None:
        end = self._ends(step)
        if end is None or not end.rekey():
            return
        self.operations += 1
        if end.peer.pending:
            self._explain(end, e.IBV_WC_REM_ACCESS_ERR)

    def _fault_rates(self, step: Step) -> None:
        rates = self._rates = FaultRates(**step["rates"])
        self.lossy |= any(step["rates"].values())
        for node in self.net.nodes:
            node.link.set_rates(tx=rates)
        if rates.duplicate or rates.delay or rates.reorder:
            self._disorder()

    def _lose(self, step: Step) -> None:
        end = self._ends(step)
        if end is None or not end.peer.alive:
            return
        response = "RESPONSE" in step["opcode"] or "ACK" in step["opcode"]
        there = end.peer.qp if response else end.peer.receiver
        match = {"direction": "tx", "dqpn": there.qp_num, "opcode": step["opcode"]}
        rule = {"match": match, "nth": step["nth"], "every": 1, "times": step["times"], "action": "drop"}
        if "left" in step:
            rule |= {"action": "truncate", "bytes": step["left"]}
        link = end.program.node.link
        link.rules += parse_script([rule]).rules
        link.set_rates(tx=self._rates)
        self.lossy = True

    def _region_gone(self, step: Step) -> None:
        """Have the memory that the peer may reach become invalid for a while, unless a window holds it."""
        end = self._ends(step)
        if end is None or end.bound or end.binding[0]:
            return
        node, key = end.program.node, int(end.target.rkey)
        if key not in regions(node.nic):
            return  # gone already
        self._explain(end, e.IBV_WC_REM_ACCESS_ERR, e.IBV_WC_MW_BIND_ERR)
        self._faulted.add(node.index)
        node.fault("region-gone", key, step["for"])

    def _async_event(self, step: Step) -> None:
        """Raise an asynchronous event that has no cause: it harms nothing."""
        node = self.net.nodes[step["nic"] % len(self.net.nodes)]
        if not node.nic.globals.dead:
            node.fault("async-event", step["kind"])

    def _disorder(self) -> None:
        for connection in self.connections.values():
            for end in connection.ends:
                end.out.disordered = True

    def _fault(self, step: Step) -> None:
        values = {key.replace("for", "for_"): value for key, value in step.items() if key not in ("do", "nic", "event")}
        if "peer" in values:
            peer = self.net.nodes[values["peer"] % len(self.net.nodes)].nic.config.address
            values["peer"] = format_address(peer)
        node = self.net.nodes[step["nic"] % len(self.net.nodes)]
        if node.nic.globals.dead:
            return
        node.ctx.runtime.faults().do(step["event"], **values)
        self._faulted.add(node.index)
        self.event_faults = True

    def _stop(self, step: Step) -> None:
        end = self._ends(step)
        if end is not None:
            self._explain(end)
            self._meant(end, step).modify(QPAttr(e.IBV_QPS_ERR), e.IBV_QP_STATE)

    @staticmethod
    def _meant(end: End, step: Step) -> QP:
        """Return the queue pair of an end that a step means."""
        return end.receiver if step.get("receiver") else end.qp

    def _qp_error(self, step: Step) -> None:
        end = self._ends(step)
        if end is not None:
            self._explain(end)
            end.program.node.fault("qp-error", self._meant(end, step).qp_num)

    def _completion(self, step: Step) -> None:
        end = self._ends(step)
        if end is not None and end.service == "RC":
            self._explain(end, e.IBV_WC_LOC_QP_OP_ERR)
            self._faulted.add(end.program.node.index)
            end.program.node.fault("completion-error", end.qp.qp_num, "LOC_QP_OP_ERR")

    def _end(self, step: Step) -> None:
        """End a program, with all its pending requests."""
        program = self.programs[step["nic"] % len(self.programs)]
        if not program.alive:
            return
        self._poll()
        self._leave(program)
        program.close()

    def _leave(self, program: Program) -> None:
        for end in program.ends.values():
            self._explain(end)
            end.failed = end.peer.failed = True

    def _break(self, step: Step) -> None:
        """Remove a device and bring it back, or overflow the CQ of a program's queue pairs."""
        program = self.programs[step["nic"] % len(self.programs)]
        if not program.alive:
            return
        self._poll()
        self._leave(program)
        program.alive = False
        self._faulted.add(program.node.index)
        program.node.fault(step["do"], _FATAL_FOR if step["do"] == "fatal" else program.cq.cqn)
        if step["do"] == "cq-overflow":
            program.stop_receivers()
        self.event_faults = True

    def _srq_error(self, step: Step) -> None:
        """Put an SRQ of a program into error; queue pairs that do not use it are not affected."""
        program = self.programs[step["nic"] % len(self.programs)]
        if not program.alive:
            return
        receives = program.xrc.queues[step["queue"]] if "queue" in step else program.shared
        for end in program.ends.values():
            if receives in end.queues:
                self._explain(end, *((e.IBV_WC_REM_INV_REQ_ERR,) if end.xrc else ()))
        receives.failed = True
        program.node.fault("srq-error", receives.queue.srqn)

    def _garbage(self, step: Step) -> None:
        """Write garbage into the queues of one queue pair; no other queue pair is affected."""
        end = self._ends(step)
        if end is None:
            return
        self._poll()
        if not end.garbage(step["what"], step["data"]):
            return
        self._explain(end)
        end.wild = end.out.wild = end.into.wild = end.failed = end.peer.failed = True
        self._wild |= self._wire_names(end) | self._wire_names(end.peer)
        end.program.ctx.driver.kick()

    @staticmethod
    def _wire_names(end: End) -> set[str]:
        """Return the judge's names for the streams that an end sends."""
        here, there = (each.program.node.nic.config.address for each in (end, end.peer))
        return {Connections.name(here, there, qp.qp_num) for qp in end.peer.qps}

    # ------------------------------------------------------------------------------------------- settle

    def _settle(self, step: Step) -> None:
        """Stop all faults, wait for everything to complete, check the results, and reconnect failed connections."""
        net = self.net
        self._rates = NO_FAULTS
        for node in net.nodes:
            node.link.rules.clear()
            node.link.set_rates(tx=NO_FAULTS)
        for index in sorted(self._faulted):
            net.nodes[index].fault("heal")
        for connection in self.connections.values():
            for end in connection.ends:
                if end.alive and end.out.wild:  # it may never end
                    end.qp.modify(QPAttr(e.IBV_QPS_ERR), e.IBV_QP_STATE)
        self._run_until_quiet()
        self._check_guards()
        for connection in self.connections.values():
            for end in connection.ends:
                if end.alive:
                    end.settled()
            failed = any(end.failed or not end.alive for end in connection.ends)
            for end in connection.ends:
                end.out.settle(failed, calm=not (failed or self.lossy or self._events))
                self.digest = crc32(end.out.result, crc32(end.out.target, self.digest))
        for program in self.programs:
            for receives in program.all_shared if program.alive else ():
                if receives.slots.memory != receives.slots.shadow:
                    self._judge_slots(program, receives)
        if self.judge is not None:
            self.judge.finish()
        self._check_wire()
        if self._mend():
            self.corrupted_frames.clear()
            self.judge = self._new_judge()  # a restarted queue pair would look like a continued one
        self.event_faults = self.lossy = self._events = False
        self._struck = self._strikes()

    def _check_guards(self) -> None:
        """Raise if a guard has caught an internal error of rnic."""
        for node in self.net.nodes:
            if node.counters[OWN_ERRORS]:
                caught = {name: count for name, count in node.counters.items() if name.startswith(f"{OWN_ERRORS}_")}
                places = ", ".join(f"{name.removeprefix(f'{OWN_ERRORS}_')} {count}" for name, count in caught.items())
                raise FindingError(f"NIC {node.index}: guards have caught internal errors of rnic: {places}")

    def _run_until_quiet(self) -> None:
        """Run until nothing happens anymore, poll all completions, and post the receives that messages wait for."""
        for turn in range(MOST_TURNS):
            moved = self.net.turn()
            if moved and turn % _SUPPLY_EVERY:
                continue
            self._poll()
            if not self._supply() and not moved:
                return
        raise FindingError(f"the world is still busy after {MOST_TURNS} turns without faults")

    def _judge_slots(self, program: Program, receives: Receives) -> None:
        """Report bytes of shared receive entries that no message brought, unless a failure explains them."""
        if not any(end.reasons for end in program.ends.values() if receives in end.queues):
            raise FindingError(f"NIC {program.node.index}: bytes of shared receives changed that no message brought")
        receives.slots.shadow[:] = receives.slots.memory

    def _supply(self) -> bool:
        """Post the receives that messages wait for; return whether any were posted."""
        wanted: Counter[Receives] = Counter()
        for connection in self.connections.values():
            for end in connection.ends:
                # the other direction of a failed XRC connection has queue pairs of its own
                going = (end.xrc or not (end.failed or end.peer.failed)) and end.alive and end.peer.alive
                if going:
                    wanted.update(end.queues[work.queue] for work in end.into.arrivals)
        posted = [receives.post(count - len(receives.slots.posted), self.number) for receives, count in wanted.items()]
        return any(posted)

    def _mend(self) -> bool:
        """Reconnect failed connections, with new programs for ended ones; return whether any had failed."""
        mended = False
        for index, program in enumerate(self.programs):
            if program.alive and not program.spoiled:
                continue
            program.alive = False
            if not program.ctx.closed:
                program.ctx.close()
            self.programs[index] = Program(program.node)
        for connection in list(self.connections.values()):
            ends = connection.ends
            failed = any(end.failed or not end.alive for end in ends)
            if failed and connection.record is not None:
                self._exchange.disconnect(ends[0].program.node, connection.record)
            if not all(end.alive for end in ends):
                self._part(connection)
                self._build(connection)
                mended = True
            elif failed:
                self._reconnect(connection)
                mended = True
            connection.reasons.clear()
        return mended

    def _part(self, connection: Connection) -> None:
        for end in connection.ends:
            if end.alive:
                end.close()

    def _reconnect(self, connection: Connection) -> None:
        for end in connection.ends:
            end.reset()
        self._poll()
        self._join(connection)


def run_plan(plan: Plan, *, judged: bool = True, compared: bool = False) -> Figures:
    """Run a plan with the NICs' default executor, and return the results; see :class:`World`."""
    with World(plan, judged=judged, compared=compared) as world:
        return world.run()


def run_both(plan: Plan, *, judged: bool = True) -> Figures:
    """Run a plan with the engine and with the reference; any difference is a finding, too.

    The engine must be compiled (:data:`rnic.engine.use.COMPILED`).
    """
    settings = plan.settings | {"reorder": False}  # the reference has no such buffer
    plan = replace(plan, settings=settings)
    with steps_alone():
        with executed_by(engine=True):
            first = run_plan(plan, judged=judged, compared=True)
        if first.finding:
            return first
        with executed_by(engine=False):
            second = run_plan(plan, judged=False, compared=True)
    if second.finding:
        return second._replace(finding=f"the reference alone: {second.finding}")
    if first != second:
        differ = [name for name in Figures._fields if getattr(first, name) != getattr(second, name)]
        return first._replace(finding=f"{BOTH_DIFFER} in {', '.join(differ)}")
    return first


__all__ = ["Connection", "Figures", "World", "run_both", "run_plan"]

"""A packet takes the same named steps through the engine as through the reference, in the same order."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rnic.engine
from rnic.engine import use
from rnic.spec.states import ST_UC
from rnic.transport import responder
from rnic.transport.completer import Completer
from rnic.transport.requester import Requester
from tests.scripts.conftest import Script
from tests.scripts.oracle import Image, engine_script

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(use.COMPILED is None, reason="the engine is not compiled"),
]

ENGINE = Path(rnic.engine.__file__).parent
SOURCES = sorted(
    str(path.relative_to(ENGINE)) for room in ("memory", "queue_pair") for path in ENGINE.glob(f"{room}/*.c")
)
RESPONDER = tuple(step.__name__ for step in responder.STEPS)
COMPLETER = ("check_psn", "acknowledge", "nak", "rnr", "cover", "implied_nak", "response", "took")
REQUESTER = ("fetch", "check", "send_message", "follows", "allowance", "send_data", "send_request", "probe")
LAST_IN_THE_ENGINE = "check_icrc"
"""The reference checks the ICRC before all steps."""
FULL = bytes(range(256))


@pytest.fixture(scope="module")
def library(builds: Callable[..., ctypes.CDLL], tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """``steps.c`` with the engine, its steps traced."""
    out = tmp_path_factory.mktemp("steps") / "steps.so"
    here = str(Path(__file__).with_name("steps.c"))
    made = builds(out, here, *SOURCES, flags=("-DENGINE_TRACE_STEPS", "-std=gnu11", "-O0", "-pthread"))
    made.steps_receive.restype = made.steps_send.restype = ctypes.c_char_p
    return made


class Traced(engine_script(Script)):  # type: ignore[misc]
    """A script whose packets go through both executors, one after the other on the same bytes."""

    library: ctypes.CDLL

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.taken: list[str] = []

    def place(self) -> ctypes.Array[ctypes.c_uint64]:
        """``struct place`` of steps.c."""
        memory, table, queue = self.qp.memory, self.host.memory, self.recv_cq

        def address(buffer: Any) -> int:
            return ctypes.addressof(ctypes.c_char.from_buffer(buffer))

        words = (
            address(self.host.arena.memory),
            ctypes.addressof(self.ctx),
            memory.record,
            *(8 * getattr(memory, name) for name in ("sends", "pieces", "replies", "resources", "scatters")),
            memory.entries,
            table.place,
            table.max_entries,
            self.mr.index,
            address(self.data),
            address(self.sq),
            len(self.sq),
            address(self.rq),
            len(self.rq),
            address(self.block),
            ctypes.addressof(queue.key),
            address(queue.ring),
            len(queue.ring) // 32,
            address(queue.uar.buf) + queue.queue.regs.at,
        )
        return (ctypes.c_uint64 * len(words))(*words)

    def both(self, engine: Callable[[Any], bytes], reference: Callable[[], object]) -> str:
        """The steps of both, which are the same."""
        before = Image(self)
        told = engine(self.place()).decode().split()
        before.put_back(self)
        self.taken.clear()
        reference()
        assert [step for step in told if step != LAST_IN_THE_ENGINE] == self.taken
        return " ".join(self.taken)

    def steps(self, name: str, psn: int, **fields: Any) -> str:
        """Those of a packet from the peer."""
        frame = self.frame(name, psn, **fields)
        now = ctypes.c_uint64(self.now)
        return self.both(
            lambda place: self.library.steps_receive(place, frame, ctypes.c_size_t(len(frame)), now),
            lambda: self.qp.receive(self.packet(name, psn, **fields), self.now),
        )

    def sends(self) -> str:
        """Those of what it sends now."""
        now = ctypes.c_uint64(self.now)
        return self.both(
            lambda place: self.library.steps_send(place, now), lambda: self.qp.produce_requests(self.now, 256, [])
        )


@pytest.fixture
def traced(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Traced]:
    """Makes one."""
    made: list[Traced] = []

    def note(step: Callable[..., Any], name: str) -> Callable[..., Any]:
        def noted(*args: Any, **named: Any) -> Any:
            made[-1].taken.append(name)
            return step(*args, **named)

        return noted

    monkeypatch.setattr(responder, "STEPS", tuple(note(step, step.__name__) for step in responder.STEPS))
    for half, names in ((Completer, COMPLETER), (Requester, REQUESTER)):
        for name in names:
            method = name if hasattr(half, name) else f"_{name}"
            monkeypatch.setattr(half, method, note(getattr(half, method), name))

    def make(*args: Any, **fields: Any) -> Traced:
        script = Traced(*args, **fields)
        script.library = library
        made.append(script)
        return script

    return make


def upto(last: str) -> str:
    """The responder's steps, through one."""
    return " ".join(RESPONDER[: RESPONDER.index(last) + 1])


def test_requests_that_are_carried_out(traced: Callable[..., Traced]) -> None:
    s = traced()
    s.recv(512)
    s.recv(512)
    to = {"va": s.va, "rkey": s.key}
    assert s.steps("SEND_ONLY", 100, payload=FULL, ackreq=True) == upto("acknowledge")
    assert s.steps("WRITE_FIRST", 101, payload=FULL, dma_length=600, **to) == upto("acknowledge")
    assert s.steps("WRITE_MIDDLE", 102, payload=FULL) == upto("acknowledge")
    assert s.steps("WRITE_LAST", 103, payload=FULL[:88], ackreq=True) == upto("acknowledge")
    assert s.steps("WRITE_ONLY_IMM", 104, payload=FULL[:5], dma_length=5, imm=7, **to) == upto("acknowledge")
    assert s.steps("READ_REQUEST", 105, dma_length=600, **to) == upto("execute")
    assert s.steps("FETCH_ADD", 108, swap_add=1, **to) == upto("execute")


def test_requests_that_are_answered_only(traced: Callable[..., Traced]) -> None:
    s = traced()
    to = {"va": s.va, "rkey": s.key, "dma_length": 4}
    assert s.steps("SEND_ONLY", 100, payload=b"1234") == upto("check_resources")
    assert s.steps("WRITE_ONLY", 102, payload=b"1234", **to) == upto("check_psn")
    assert s.steps("READ_REQUEST", 100, **to) == upto("execute")
    assert s.steps("READ_REQUEST", 100, **to) == upto("check_psn")
    assert s.steps("WRITE_ONLY", 100, payload=b"1234", **to) == upto("check_psn")


def test_an_unreliable_connection_s_packets(traced: Callable[..., Traced]) -> None:
    s = traced(ST_UC)
    to = {"va": s.va, "rkey": s.key, "dma_length": 300}
    assert s.steps("WRITE_MIDDLE", 100, payload=FULL) == upto("check_op_seq")
    assert s.steps("WRITE_LAST", 103, payload=b"1234") == upto("check_psn")
    assert s.steps("WRITE_FIRST", 105, payload=FULL, **to) == upto("acknowledge")
    assert s.steps("WRITE_LAST", 106, payload=FULL[:44]) == upto("acknowledge")
    s.post("WRITE", 600)
    assert s.sends() == "fetch check send_message follows send_data"


def test_requests_that_are_sent_and_what_answers_them(traced: Callable[..., Traced]) -> None:
    s = traced()
    s.post("WRITE", 600)
    s.post("SEND", 10)
    whole = "fetch check send_message follows allowance "
    assert s.sends() == whole + "send_data " + whole + "send_data"
    assert s.steps("ACKNOWLEDGE", 104, syndrome=0x1F) == "check_psn"
    assert s.steps("ACKNOWLEDGE", 100, syndrome=0x1F) == "check_psn acknowledge cover"
    assert s.steps("ACKNOWLEDGE", 99, syndrome=0x1F) == "check_psn"
    assert s.steps("ACKNOWLEDGE", 101, syndrome=0x60) == "check_psn acknowledge nak cover"
    assert s.sends() == "send_message allowance send_data send_message follows allowance send_data"
    assert s.steps("ACKNOWLEDGE", 103, syndrome=0x21) == "check_psn acknowledge rnr cover"


def test_reads_and_their_responses(traced: Callable[..., Traced]) -> None:
    s = traced()
    s.post("READ", 1000)
    assert s.sends() == "fetch check send_message follows allowance send_request"
    assert s.steps("READ_RESPONSE_FIRST", 100, payload=FULL, syndrome=0x1F) == "check_psn response took"
    assert s.steps("READ_RESPONSE_MIDDLE", 101, payload=FULL) == "check_psn response took"
    assert s.steps("READ_RESPONSE_LAST", 103, payload=FULL[:232], syndrome=0x1F) == "check_psn response implied_nak"
    s.post("WRITE", 4)
    assert s.sends().startswith("send_message allowance send_request fetch check send_message")
    assert s.steps("ACKNOWLEDGE", 104, syndrome=0x1F) == "check_psn acknowledge cover implied_nak"


def test_a_probe(traced: Callable[..., Traced]) -> None:
    s = traced()
    s.post("WRITE", 600)
    s.sends()
    s.wait(s.deadline)
    assert s.qp.requester.probe_due
    assert s.sends() == "probe"


def test_the_trace_has_every_step_of_the_engine() -> None:
    named = {
        name for source in SOURCES for name in re.findall(r"\b(?:TRACE_)?STEP\((\w+)", (ENGINE / source).read_text())
    }
    assert named - {LAST_IN_THE_ENGINE} == {*RESPONDER, *COMPLETER, *REQUESTER}

"""What is explored whole: programs of work requests, their bounds, and how many states and transitions they have."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.model.explore import Network, System
from tests.model.rc import ATOMIC, READ, SEND, WRITE, WRITE_IMM, Config, Work

QUIET = Work(WRITE, 1, signaled=False)


class Row(NamedTuple):
    """A program, ``states`` and ``transitions`` of its exploration, and bounds that are not the usual ones."""

    name: str
    program: tuple[Work, ...]
    states: int
    transitions: int
    bounds: dict[str, Any]
    capacity: int = 1
    ahead: int = 2

    def system(self) -> System:
        """Return the system to explore."""
        return System(Config(list(self.program), **self.bounds), Network(self.capacity), self.ahead)


SHORT = (
    Row("WRITE of 2, atomic", (Work(WRITE, 2), Work(ATOMIC)), 28_826, 216_426, {}),
    Row("atomic, WRITE of 2; no probe", (Work(ATOMIC), Work(WRITE, 2)), 10_774, 71_420, {"probing": False}),
    Row("three quiet WRITEs", (QUIET, QUIET, QUIET), 7_545, 53_509, {}),
    Row("READ of 2", (Work(READ, 2),), 13_162, 88_826, {}),
    Row("three READs of 1", (Work(READ), Work(READ), Work(READ)), 16_234, 113_487, {}),
)
"""In the default suite."""

FULL = (
    Row("SEND, WRITE with immediate", (Work(SEND), Work(WRITE_IMM)), 25_270, 181_432, {}),
    Row("atomic, WRITE of 2; no ACK timeout", (Work(ATOMIC), Work(WRITE, 2)), 38_726, 260_332, {"timeout": False}),
    Row(
        "atomic, WRITE of 7, atomic: PSNs wrap",
        (Work(ATOMIC), Work(WRITE, 7), Work(ATOMIC)),
        117_867,
        899_542,
        {"window": 2},
    ),
    Row("READ of 3 in one request", (Work(READ, 3),), 171_471, 1_242_454, {"read_chunk": 3}),
    Row("READ of 4 in two requests", (Work(READ, 4),), 536_021, 4_002_236, {"window": 4}),
    Row("READ of 2, atomic", (Work(READ, 2), Work(ATOMIC)), 172_550, 1_275_352, {}),
    Row(
        "READ of 2, WRITE, atomic; 3 ahead", (Work(READ, 2), Work(WRITE), Work(ATOMIC)), 2_439_579, 19_133_127, {}, 1, 3
    ),
    Row("READ of 2, fenced SEND", (Work(READ, 2), Work(SEND, fence=True)), 130_154, 960_259, {}),
    Row("quiet WRITE, READ of 2, quiet WRITE", (QUIET, Work(READ, 2), QUIET), 654_220, 5_093_156, {}),
    Row("SEND of 2, WRITE with immediate", (Work(SEND, 2), Work(WRITE_IMM)), 134_871, 1_063_360, {}),
    Row("WRITE of 9: PSNs wrap", (Work(WRITE, 9),), 132_199, 1_011_883, {}),
    Row("WRITE of 2; 2 packets each way", (Work(WRITE, 2),), 12_739, 141_332, {}, 2),
    Row("atomic, READ of 1; 2 packets each way", (Work(ATOMIC), Work(READ)), 22_684, 253_586, {}, 2),
    Row("READ of 2; 2 packets each way", (Work(READ, 2),), 224_418, 2_696_923, {}, 2),
    Row("two quiet WRITEs; 3 packets each way", (QUIET, QUIET), 80_113, 1_242_379, {}, 3),
)
"""With ``--full``."""

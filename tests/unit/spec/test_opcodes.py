"""The table of work requests, against what design.md and IBA table 39 say of each."""

from __future__ import annotations

import pytest

from rnic.spec import opcodes as op
from rnic.spec.states import ST_RC, ST_UC, ST_UD

FLAGS = {
    "send": "SEND SEND_IMM SEND_INV",
    "write": "WRITE WRITE_IMM",
    "read": "READ",
    "atomic": "CMP_SWAP FETCH_ADD",
    "response": "READ CMP_SWAP FETCH_ADD FLUSH ATOMIC_WRITE",
    "operand": "FLUSH ATOMIC_WRITE",
    "local": "BIND_MW LOCAL_INV NOP",
    "receive": "SEND SEND_IMM SEND_INV WRITE_IMM",
    "word": "SEND_IMM SEND_INV WRITE_IMM",
    "key": "SEND_INV LOCAL_INV",
}
SERVICES = {
    ST_RC: "SEND SEND_IMM SEND_INV WRITE WRITE_IMM READ CMP_SWAP FETCH_ADD FLUSH ATOMIC_WRITE BIND_MW LOCAL_INV NOP",
    ST_UC: "SEND SEND_IMM WRITE WRITE_IMM BIND_MW LOCAL_INV NOP",
    ST_UD: "SEND SEND_IMM NOP",
}


def names(opcodes: frozenset[int]) -> list[str]:
    return sorted(op.WR_NAMES[opcode] for opcode in opcodes)


@pytest.mark.parametrize("flag", FLAGS)
def test_flags(flag: str) -> None:
    assert names(op.work_requests(flag)) == sorted(FLAGS[flag].split())


@pytest.mark.parametrize("service", SERVICES)
def test_services(service: int) -> None:
    assert names(op.allowed(service)) == sorted(SERVICES[service].split())


def test_a_message_of_several_packets_is_a_send_or_a_write() -> None:
    several = {row.opcode for row in op.WORK_REQUESTS if row.packets}
    assert several == op.work_requests("send") | op.work_requests("write")
    assert {flag for row in op.WORK_REQUESTS for flag in row.flags.split()} == set(FLAGS)

"""The four machines of 002, transition by transition, typed from 5.1.4, 5.3.4, 5.4.4 and 5.6.3."""

from __future__ import annotations

import pytest

from rnic.context.machines import MACHINES, Machine, MachineError

TYPED = """
ceu_parser PARSE_REQ request TRANS_REQ_DATA
ceu_parser TRANS_REQ_DATA read PARSE_REQ
ceu_parser TRANS_REQ_DATA write PARSE_REQ
ceu_parser TRANS_REQ_DATA metadata PARSE_REQ
ceu_parser TRANS_REQ_DATA refused PARSE_REQ
ctxmdata RCV_REQ ceu MDT_PROC
ctxmdata RCV_REQ key_qpc_data MDT_PROC
ctxmdata MDT_PROC metadata RCV_REQ
ctxmdata MDT_PROC refused RCV_REQ
ctxmdata MDT_PROC translated DMA_PROC
ctxmdata DMA_PROC dma_read RCV_REQ
ctxmdata DMA_PROC dma_write RCV_REQ
key_qpc_data RD_REQ ceu_write DATA_WR
key_qpc_data RD_REQ engine_write DATA_WR
key_qpc_data RD_REQ engine_read RESP_OUT
key_qpc_data RD_REQ refused RD_REQ
key_qpc_data DATA_WR ceu_write RD_REQ
key_qpc_data DATA_WR engine_write RESP_OUT
key_qpc_data DATA_WR refused RD_REQ
key_qpc_data RESP_OUT response RD_REQ
key_qpc_data RESP_OUT write_back RD_REQ
writectx PARSE_REQ context REQ_OUT
writectx PARSE_REQ header_data REQ_OUT
writectx PARSE_REQ zeros REQ_OUT
writectx PARSE_REQ write_back REQ_OUT
writectx REQ_OUT sent PARSE_REQ
"""
ROWS = [line.split() for line in TYPED.split("\n") if line]


def test_no_transition_is_missing() -> None:
    listed = {(name, *row) for name, table in MACHINES.items() for row in table}
    assert listed == {(name, state, event) for name, state, event, _ in ROWS}


@pytest.mark.parametrize(("name", "state", "event", "following"), ROWS, ids=[".".join(row[:3]) for row in ROWS])
def test_transition(name: str, state: str, event: str, following: str) -> None:
    machine = Machine(name, MACHINES[name])
    machine.state = state
    assert machine.step(event) == machine.state == following
    assert machine.taken == {(state, event)}


@pytest.mark.parametrize("name", MACHINES)
def test_the_first_state(name: str) -> None:
    machine = Machine(name, MACHINES[name])
    assert machine.state == next(row[1] for row in ROWS if row[0] == name)
    with pytest.raises(MachineError, match="has no transition for nonsense"):
        machine.step("nonsense")

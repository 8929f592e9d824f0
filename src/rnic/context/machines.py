"""The four state machines of CtxMgt as tables (002 5.1.4, 5.3.4, 5.4.4, 5.6.3); unlisted transitions are invalid.

readctx has no state machine (5.5.3), only a queue of pending request metadata.
"""

from __future__ import annotations

from typing import Final

Table = dict[tuple[str, str], str]
"""Next state by state and input."""


class MachineError(AssertionError):
    """The table has no transition for a module's input: a bug in rnic."""


class Machine:
    """One machine: its current state, and the transitions taken."""

    __slots__ = ("_rows", "name", "state", "table")

    def __init__(self, name: str, table: Table) -> None:
        self.name = name
        self.table = table
        self.state = next(iter(table))[0]
        self._rows: dict[str, dict[str, list[str]]] = {state: {} for state, _ in table}
        for (state, event), following in table.items():
            self._rows[state][event] = [following]

    @property
    def taken(self) -> set[tuple[str, str]]:
        """State and input of each transition taken."""
        return {(state, event) for state, row in self._rows.items() for event, way in row.items() if len(way) > 1}

    def step(self, event: str) -> str:
        """Take one input; return the new state. Raise :class:`MachineError` if the table has no such row."""
        try:
            way = self._rows[self.state][event]
        except KeyError:
            raise MachineError(f"{self.name} in {self.state} has no transition for {event}") from None
        if len(way) == 1:
            way.append("taken")
        self.state = following = way[0]
        return following


CEU_PARSER: Final[Table] = {
    ("PARSE_REQ", "request"): "TRANS_REQ_DATA",
    ("TRANS_REQ_DATA", "read"): "PARSE_REQ",
    ("TRANS_REQ_DATA", "write"): "PARSE_REQ",
    ("TRANS_REQ_DATA", "metadata"): "PARSE_REQ",
    ("TRANS_REQ_DATA", "refused"): "PARSE_REQ",
}
CTXMDATA: Final[Table] = {
    ("RCV_REQ", "ceu"): "MDT_PROC",
    ("RCV_REQ", "key_qpc_data"): "MDT_PROC",
    ("MDT_PROC", "metadata"): "RCV_REQ",
    ("MDT_PROC", "refused"): "RCV_REQ",
    ("MDT_PROC", "translated"): "DMA_PROC",
    ("DMA_PROC", "dma_read"): "RCV_REQ",
    ("DMA_PROC", "dma_write"): "RCV_REQ",
}
KEY_QPC_DATA: Final[Table] = {
    ("RD_REQ", "ceu_write"): "DATA_WR",
    ("RD_REQ", "engine_write"): "DATA_WR",
    ("RD_REQ", "engine_read"): "RESP_OUT",
    ("RD_REQ", "refused"): "RD_REQ",
    ("DATA_WR", "ceu_write"): "RD_REQ",
    ("DATA_WR", "engine_write"): "RESP_OUT",
    ("DATA_WR", "refused"): "RD_REQ",
    ("RESP_OUT", "response"): "RD_REQ",
    ("RESP_OUT", "write_back"): "RD_REQ",
}
WRITECTX: Final[Table] = {
    ("PARSE_REQ", "context"): "REQ_OUT",
    ("PARSE_REQ", "header_data"): "REQ_OUT",
    ("PARSE_REQ", "zeros"): "REQ_OUT",
    ("PARSE_REQ", "write_back"): "REQ_OUT",
    ("REQ_OUT", "sent"): "PARSE_REQ",
}
MACHINES: Final[dict[str, Table]] = {
    "ceu_parser": CEU_PARSER,
    "ctxmdata": CTXMDATA,
    "key_qpc_data": KEY_QPC_DATA,
    "writectx": WRITECTX,
}

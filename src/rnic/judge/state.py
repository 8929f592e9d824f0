"""State shared by the judge and its compiled scanner, in plain Python.

:mod:`rnic.judge._scan` is the compiled twin: if it is compiled, its classes of the same names replace these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rnic.spec.twins import compiled_twin

if TYPE_CHECKING:
    from rnic.wire.opcode import OpcodeRow


class PlainJudgeState:
    """Counters that scanner and judge share."""

    __slots__ = ("__dict__", "_time_ns", "_waits", "frames", "packets")

    frames: int
    packets: int
    _time_ns: int
    _waits: bool


class PlainStreamState:
    """Fields of a stream that the scanner reads and advances."""

    __slots__ = (
        "acked",
        "base",
        "constant",
        "fatal",
        "front",
        "highest",
        "history",
        "jump",
        "late_start",
        "left",
        "lsn",
        "mtu",
        "nak_psn",
        "odd_base",
        "peer",
        "pkey",
        "reading",
        "reads",
        "refused_end",
        "response_ident",
        "response_port",
        "rnr_psn",
        "total",
    )

    acked: int
    base: int
    constant: int
    fatal: int
    front: int
    highest: int
    history: dict[int, Any]
    jump: Any
    late_start: Any
    left: int
    lsn: int
    mtu: int
    nak_psn: int
    odd_base: int
    peer: Any
    pkey: int
    reading: Any
    reads: Any
    refused_end: int
    response_ident: int
    response_port: int
    rnr_psn: int
    total: int


class PlainFormState:
    """Properties that packets of one form share."""

    __slots__ = (
        "ack",
        "constant",
        "dqpn",
        "end",
        "fit",
        "flags",
        "frag",
        "header_bytes",
        "header_sum",
        "length",
        "middle",
        "pad",
        "pkey",
        "pseudo_sum",
        "read_response",
        "request",
        "residue",
        "rest_at",
        "row",
        "seed",
        "send",
        "size",
        "solicited",
        "sport",
        "start",
        "stream",
        "tail",
        "total",
        "write",
    )

    ack: bool
    constant: int
    dqpn: int
    end: bool
    fit: int
    flags: int
    frag: int
    header_bytes: int
    header_sum: int
    length: int
    middle: bool
    pad: int
    pkey: int
    pseudo_sum: int
    read_response: bool
    request: bool
    residue: int
    rest_at: int
    row: OpcodeRow
    seed: int
    send: bool
    size: int
    solicited: bool
    sport: int
    start: bool
    stream: Any
    tail: int
    total: int
    write: bool


class PlainSeenState:
    """One packet."""

    __slots__ = (
        "done",
        "form",
        "frame",
        "header",
        "ident",
        "packets",
        "psn",
        "refused",
        "repeated",
        "tail",
        "time_ns",
        "word",
    )

    done: int
    form: Any
    frame: int
    header: bytes
    ident: int
    packets: int
    psn: int
    refused: bool
    repeated: bool
    tail: bytes
    time_ns: int
    word: int


TWIN = compiled_twin(__name__, "rnic.judge._scan")
"""The compiled scanner, or ``None``."""

if TYPE_CHECKING or TWIN is None:
    JudgeState = PlainJudgeState
    StreamState = PlainStreamState
    FormState = PlainFormState
    SeenState = PlainSeenState
else:
    JudgeState = TWIN.JudgeState
    StreamState = TWIN.StreamState
    FormState = TWIN.FormState
    SeenState = TWIN.SeenState

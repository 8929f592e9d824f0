"""The built opcode table against a list typed by hand from the standard's table 38."""

from __future__ import annotations

import pytest

from rnic.spec import opcodes as op
from rnic.wire.opcode import OPCODES

# opcode, name, bytes of headers with the BTH, flags: S start, E end, P payload, R response, W takes a receive
TABLE = """
00 RC_SEND_FIRST           12 S.P..
01 RC_SEND_MIDDLE          12 ..P..
02 RC_SEND_LAST            12 .EP.W
03 RC_SEND_LAST_IMM        16 .EP.W
04 RC_SEND_ONLY            12 SEP.W
05 RC_SEND_ONLY_IMM        16 SEP.W
06 RC_WRITE_FIRST          28 S.P..
07 RC_WRITE_MIDDLE         12 ..P..
08 RC_WRITE_LAST           12 .EP..
09 RC_WRITE_LAST_IMM       16 .EP.W
0a RC_WRITE_ONLY           28 SEP..
0b RC_WRITE_ONLY_IMM       32 SEP.W
0c RC_READ_REQUEST         28 SE...
0d RC_READ_RESPONSE_FIRST  16 S.PR.
0e RC_READ_RESPONSE_MIDDLE 12 ..PR.
0f RC_READ_RESPONSE_LAST   16 .EPR.
10 RC_READ_RESPONSE_ONLY   16 SEPR.
11 RC_ACKNOWLEDGE          16 SE.R.
12 RC_ATOMIC_ACKNOWLEDGE   24 SE.R.
13 RC_COMPARE_SWAP         40 SE...
14 RC_FETCH_ADD            40 SE...
16 RC_SEND_LAST_INV        16 .EP.W
17 RC_SEND_ONLY_INV        16 SEP.W
1c RC_FLUSH                32 SE...
1d RC_ATOMIC_WRITE         28 SEP..
20 UC_SEND_FIRST           12 S.P..
21 UC_SEND_MIDDLE          12 ..P..
22 UC_SEND_LAST            12 .EP.W
23 UC_SEND_LAST_IMM        16 .EP.W
24 UC_SEND_ONLY            12 SEP.W
25 UC_SEND_ONLY_IMM        16 SEP.W
26 UC_WRITE_FIRST          28 S.P..
27 UC_WRITE_MIDDLE         12 ..P..
28 UC_WRITE_LAST           12 .EP..
29 UC_WRITE_LAST_IMM       16 .EP.W
2a UC_WRITE_ONLY           28 SEP..
2b UC_WRITE_ONLY_IMM       32 SEP.W
64 UD_SEND_ONLY            20 SEP.W
65 UD_SEND_ONLY_IMM        24 SEP.W
81 CNP                     12 SEP..
"""
RIGHTS = {"RC_READ_REQUEST": 4, "RC_COMPARE_SWAP": 8, "RC_FETCH_ADD": 8, "RC_ATOMIC_WRITE": 2}
OWN = [line.split() for line in TABLE.strip().splitlines()]
XRC = [
    # as RC, and every request has an XRCETH (IBA annex A14)
    (f"{int(code, 16) | 0xA0:02x}", f"X{name}", str(int(size) + (0 if "R" in flags else 4)), flags)
    for code, name, size, flags in OWN
    if name.startswith("RC")
]
ROWS = [*OWN, *XRC]


def test_exactly_these_opcodes_exist() -> None:
    assert len(OPCODES) == 256
    assert [row.opcode for row in OPCODES if row is not None] == sorted(int(code, 16) for code, *_ in ROWS)


@pytest.mark.parametrize(("code", "name", "size", "flags"), ROWS, ids=[row[1] for row in ROWS])
def test_row(code: str, name: str, size: str, flags: str) -> None:
    row = OPCODES[int(code, 16)]
    assert row is not None
    assert row.opcode == int(code, 16)
    assert (row.service | row.operation) == row.opcode
    assert row.name == name
    assert row.header_bytes == int(size) == row.unpack.size + row.rest_at
    assert row.rest_at == 4 * row.xrceth == 4 * (name[0] == "X" and row.request)
    name = name.removeprefix("X")
    assert row.header_bytes == 12 + sum(header.layout.size for header in row.extended)
    found = (row.start, row.end, row.payload, row.response, row.takes_receive)
    assert "".join(mark if on else "." for mark, on in zip("SEPRW", found, strict=True)) == flags
    assert row.request is not row.response
    assert row.send == ("_SEND" in name)
    assert row.write == ("_WRITE" in name and name != "RC_ATOMIC_WRITE")
    assert row.read_response == ("READ_RESPONSE" in name)
    assert row.atomic == (name in ("RC_COMPARE_SWAP", "RC_FETCH_ADD"))
    assert row.resource == (row.atomic or name in ("RC_READ_REQUEST", "RC_FLUSH", "RC_ATOMIC_WRITE"))
    assert row.rights == (2 if row.write else RIGHTS.get(name, 0))


def test_a_last_packet_says_whose_message_it_ends() -> None:
    ended = {row.name: op.WR_NAMES[row.work_request] for row in OPCODES if row is not None and row.work_request}
    wanted = {
        f"{service}_{kind}_{place}{word}": kind + word
        for service, kind, words in (
            ("RC", "SEND", ("", "_IMM", "_INV")), ("RC", "WRITE", ("", "_IMM")),
            ("UC", "SEND", ("", "_IMM")), ("UC", "WRITE", ("", "_IMM")),
            ("XRC", "SEND", ("", "_IMM", "_INV")), ("XRC", "WRITE", ("", "_IMM")),
        )
        for word in words
        for place in ("LAST", "ONLY")
    } | {"UD_SEND_ONLY": "SEND", "UD_SEND_ONLY_IMM": "SEND_IMM"}  # fmt: skip
    assert ended == wanted


@pytest.mark.parametrize("name", [row[1] for row in ROWS])
def test_headers(name: str) -> None:
    row = next(row for row in OPCODES if row is not None and row.name == name)
    name = name.removeprefix("X")
    assert row.deth == name.startswith("UD")
    assert row.immdt == name.endswith("IMM")
    assert row.ieth == name.endswith("INV")
    assert row.reth == name.endswith(
        ("WRITE_FIRST", "WRITE_ONLY", "WRITE_ONLY_IMM", "READ_REQUEST", "FLUSH", "ATOMIC_WRITE")
    )
    assert row.feth == (name == "RC_FLUSH")
    assert row.aeth == (row.response and "MIDDLE" not in name)
    assert row.atomiceth == row.atomic
    assert row.atomicacketh == (name == "RC_ATOMIC_ACKNOWLEDGE")


def test_repr() -> None:
    assert repr(OPCODES[0x0A]) == "<OpcodeRow RC_WRITE_ONLY 0x0a>"

"""Match a script's packet lines on one connection: the frame to send, and whether a frame is the one expected."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from rnic.conform.script import NAKS, Script, ScriptError, Step, evaluate, pattern
from rnic.spec.opcodes import ACKNOWLEDGE, CNP
from rnic.spec.psn import PSN_MASK
from rnic.spec.syndromes import (
    AETH_ACK,
    AETH_RNR_NAK,
    AETH_TYPE_MASK,
    CREDITS_INVALID,
    credit_code,
)
from rnic.testing.packets import NAMES
from rnic.wire.flow import Flow
from rnic.wire.opcode import OPCODES, UNSUPPORTED, OpcodeRow
from rnic.wire.packet import Packet, build, parse, seal

_NUMBERS = (
    "va", "rkey", "feth", "swap_add", "compare", "orig", "imm", "inv_rkey", "qkey", "sqpn", "pkey", "syndrome", "msn",
    "srqn",
)  # fmt: skip
_FLAGS = ("ackreq", "solicited", "fecn", "becn")
_ACKNOWLEDGES = ("ACK", "NAK", "RNR")
QKEY = 0x1111_1111
_MAX_BYTES = 65_536


@dataclass(slots=True)
class Region:
    """A region of the peer's memory."""

    va: int
    key: int
    size: int


@dataclass(slots=True)
class Connection:
    """One connection between the tester and the peer."""

    service: str
    mtu: int
    qpn: int
    """QPN of the tester."""
    peer_qpn: int
    psn: int
    """PSN of the tester's first request."""
    peer_psn: int
    """PSN of the peer's first request."""
    flow: Flow
    """Flow from the tester to the peer."""
    regions: dict[str, Region]
    msn: int = 0
    """MSN: messages that the peer had completed before the script."""
    rnr_timer: int = 12
    numbers: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.numbers = {"mtu": self.mtu, "qkey": QKEY}

    def number(self, text: str) -> int:
        """Return the value of a number in the script."""
        return evaluate(text, self.numbers)


def connection_of(script: Script, **known: object) -> Connection:
    """Return a connection with the script's options."""
    start = int(script.options["start"], 0)
    return Connection(
        service=script.options["service"].removesuffix("_INI"),
        mtu=script.mtu,
        psn=start,
        peer_psn=start,
        rnr_timer=int(script.options["rnr_timer"]),
        **known,  # type: ignore[arg-type]
    )


def row_of(step: Step, connection: Connection) -> OpcodeRow:
    """Return the opcode of a packet line."""
    name = "ACKNOWLEDGE" if step.name in _ACKNOWLEDGES else step.name
    if name == "OPCODE":
        number = connection.number(step.words[0])
        row = OPCODES[number] or UNSUPPORTED.get(number)
        if row is None:
            raise ScriptError(f"line {step.line}: no packet can be made of opcode {number:#x}")
        return row
    number = NAMES.get(name, NAMES.get(f"{connection.service}_{name}", -1))
    row = OPCODES[number] if number >= 0 else None
    if row is None:
        raise ScriptError(f"line {step.line}: {step.name!r} is not an opcode")
    return row


def payload_of(step: Step, connection: Connection) -> bytes:
    """Return the payload of a line; zeros if it gives only the size.

    Raises:
        ScriptError: the payload does not fit into the peer's memory.
    """
    if step.payload is None:
        return b""
    size, start = connection.number(step.payload.size), connection.number(step.payload.start)
    if not (0 <= size <= _MAX_BYTES and abs(start) <= _MAX_BYTES):
        raise ScriptError(f"line {step.line}: {step.text!r}: 0 to {_MAX_BYTES} bytes of a pattern can be named")
    return pattern(step.payload.pattern, start, size) if step.payload.pattern else bytes(size)


def fields_of(step: Step, connection: Connection) -> dict[str, int]:
    """Return the header fields of a packet line, by the names of :func:`rnic.wire.packet.build`."""
    row = row_of(step, connection)
    values = step.values
    theirs = row.request == (step.kind == ">")
    base = connection.psn if theirs else connection.peer_psn
    fields: dict[str, int] = {
        "psn": 0 if row.opcode == CNP else connection.number(values.get("psn", "0")) + base & PSN_MASK,
        "dqpn": connection.peer_qpn if step.kind == ">" else connection.qpn,
    }
    if values.get("dqpn") == "other":
        fields["dqpn"] ^= 0x5A5A5
    if "at" in values:
        name, sign, offset = values["at"][0], values["at"][1:2], values["at"][2:]
        region = connection.regions[name]
        away = connection.number(offset.replace("size", str(region.size))) if offset else 0
        fields["va"] = region.va + (-away if sign == "-" else away) & 0xFFFF_FFFF_FFFF_FFFF
        fields["rkey"] = region.key
    for name in _NUMBERS:
        if name in values:
            fields[name] = connection.number(values[name])
    if "len" in values:
        fields["dma_length"] = connection.number(values["len"])
    if values.get("key") == "wrong":
        fields["rkey"] ^= 1
    for name in _FLAGS:
        if name in step.words or name in step.name:
            fields[name] = 1
    if row.opcode == CNP:
        fields["becn"] = 1
    if row.xrceth:
        fields.setdefault("srqn", connection.numbers.get("near", 0))
    if row.deth and step.kind == ">":
        fields.setdefault("qkey", QKEY)
        fields.setdefault("sqpn", connection.qpn)
    if row.aeth:
        fields["syndrome"] = fields.get("syndrome", _syndrome(step, connection))
        fields["msn"] = fields.get("msn", 0) + (connection.msn if step.kind != ">" else 0) & PSN_MASK
    if values.get("migreq") == "0":
        fields["migreq"] = 0
    return fields


def _syndrome(step: Step, connection: Connection) -> int:
    if step.name == "NAK":
        return NAKS[step.words[0].partition("|")[0]]
    if step.name == "RNR":
        return AETH_RNR_NAK | connection.number(step.values.get("timer", str(connection.rnr_timer)))
    if "credits" in step.values:
        return credit_code(connection.number(step.values["credits"]))
    return CREDITS_INVALID


def frame_of(step: Step, connection: Connection) -> bytes:
    """Return the UDP payload of a packet line, BTH to ICRC, malformed if the line says so.

    Raises:
        ScriptError: the line does not describe a packet.
    """
    try:
        return _frame_of(step, connection)
    except (ValueError, TypeError, LookupError, OverflowError, struct.error) as error:
        raise ScriptError(f"line {step.line}: {step.text!r} is not a packet: {error}") from None


def _frame_of(step: Step, connection: Connection) -> bytes:
    values = step.values
    row = row_of(step, connection)
    made = build(row, payload=payload_of(step, connection), **fields_of(step, connection))  # type: ignore[arg-type]
    if "tver" in values:
        made[1] |= connection.number(values["tver"])
    if "pad" in values:
        made[1] = made[1] & ~0x30 | connection.number(values["pad"]) << 4
    if "reserved" in step.words:
        made[4] |= 0x3F
        made[8] |= 0x7F
    if "cut" in values:
        del made[len(made) - connection.number(values["cut"]) :]
    if "grow" in values:
        made += bytes(min(connection.number(values["grow"]), _MAX_BYTES))
    flow = connection.flow if step.kind == ">" else connection.flow.reverse()
    if step.kind != ">":
        flow = Flow(flow.src, flow.dst, connection.flow.sport, connection.flow.dport)
    sealed = bytearray(seal(bytes(made), flow))
    if values.get("icrc") == "bad":
        sealed[-1] ^= 0x10
    return bytes(sealed)


def expected(step: Step, connection: Connection) -> Packet:
    """Return the packet that a line expects, parsed."""
    packet = parse(memoryview(frame_of(step, connection)))
    assert isinstance(packet, Packet), step.text
    return packet


def compared(step: Step) -> set[str]:
    """Return the fields of an expected packet that the line specifies; the peer may choose the others."""
    names = {"psn", *(name for name in _NUMBERS if name in step.values)}
    names |= {"dma_length"} if "len" in step.values else set()
    names |= {"va", "rkey"} if "at" in step.values else set()
    names |= {name for name in _FLAGS if name in step.words}
    return names


def differences(step: Step, connection: Connection, packet: Packet) -> list[str]:
    """Return the differences between a received packet and the one that a line expects; empty if it matches."""
    wanted = expected(step, connection)
    if packet.row is not wanted.row:
        return [f"{packet.row.name} and not {wanted.row.name}"]
    found = []
    if packet.row.opcode == CNP:
        return (
            [] if packet.becn and not any(packet.payload) and len(packet.payload) == 16 else ["a CNP of another form"]
        )
    for name in sorted(compared(step)):
        here, there = getattr(packet, name), getattr(wanted, name)
        if here != there:
            found.append(f"{name} {_shown(name, here)} and not {_shown(name, there)}")
    if packet.row.aeth and "syndrome" not in step.values and not _same_kind(step, packet.syndrome, wanted.syndrome):
        found.append(f"syndrome {packet.syndrome:#04x} and not {wanted.syndrome:#04x}")
    if step.payload is not None:
        found += _payload_differences(step, bytes(packet.payload), bytes(wanted.payload))
    elif len(packet.payload):
        found.append(f"{len(packet.payload)} bytes of payload and not none")
    if packet.pad != -len(packet.payload) % 4:
        found.append(f"{packet.pad} bytes of padding behind {len(packet.payload)}")
    return found


def _shown(name: str, value: int) -> str:
    return f"{value:#x}" if name in ("va", "rkey", "qkey", "imm", "orig", "compare", "swap_add") else str(int(value))


def _same_kind(step: Step, here: int, wanted: int) -> bool:
    """Return whether two packets are of one kind. An ACK may carry any credits unless the line specifies them. Of
    other syndromes all bits count, and a line may allow several.
    """
    if wanted & AETH_TYPE_MASK == AETH_ACK and "credits" not in step.values:
        return here & (0x80 | AETH_TYPE_MASK) == 0
    if step.name == "NAK":
        return here in [NAKS[kind] for kind in step.words[0].split("|")]
    return here == wanted


def _payload_differences(step: Step, here: bytes, wanted: bytes) -> list[str]:
    if len(here) != len(wanted):
        return [f"{len(here)} bytes of payload and not {len(wanted)}"]
    if step.payload is not None and step.payload.pattern and here != wanted:
        at = next(index for index in range(len(here)) if here[index] != wanted[index])
        return [f"other bytes from byte {at} on"]
    return []


def is_plain_ack(packet: Packet) -> bool:
    """Return whether a packet is a plain ACK."""
    return packet.row.operation == ACKNOWLEDGE and packet.syndrome & (0x80 | AETH_TYPE_MASK) == AETH_ACK

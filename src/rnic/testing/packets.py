"""Handmade packets: built by opcode name and field, sealed with the right ICRC, and parsed."""

from __future__ import annotations

from typing import Any

from rnic.spec.drops import DropReason
from rnic.wire.flow import Flow
from rnic.wire.opcode import OPCODES
from rnic.wire.packet import Packet, build, parse, seal

NAMES = {row.name: row.opcode for row in OPCODES if row is not None}
"""Opcode numbers by name, such as ``RC_SEND_ONLY``."""


class PacketFactory:
    """Makes packets of one path.

    Args:
        flow: the path, from sender to receiver.
        dqpn: destination queue pair of packets that name none.
    """

    def __init__(self, flow: Flow, dqpn: int = 0) -> None:
        self.flow = flow
        self.dqpn = dqpn

    def __call__(self, opcode: str | int, psn: int = 0, *, ident: int = 0, **fields: Any) -> bytes:
        """Return one packet, BTH to ICRC.

        Args:
            opcode: its name or number.
            psn: packet sequence number.
            ident: IP ID that the ICRC covers.
            fields: as :func:`rnic.wire.packet.build` takes them.

        Raises:
            ValueError: an opcode that does not exist, or a value that does not fit.
        """
        number = NAMES.get(opcode) if isinstance(opcode, str) else opcode
        if number is None:
            raise ValueError(f"opcode={opcode!r} is not in the opcode table; names are such as RC_SEND_ONLY")
        fields.setdefault("dqpn", self.dqpn)
        return seal(build(number, psn=psn, **fields), self.flow, ident)

    def parse(self, packet: bytes) -> Packet:
        """Parse a packet.

        Raises:
            ValueError: the ICRC is wrong, or it is not a packet; the message says why.
        """
        if not self.flow.check(packet, 0):
            raise ValueError(f"ICRC of {len(packet)} bytes is wrong for this path")
        parsed = parse(memoryview(packet))
        if isinstance(parsed, DropReason):
            raise ValueError(f"no packet: {parsed.value}")
        return parsed

"""One packet as the judge looks at it: what all rules ask, taken apart once. Requests are remembered so."""

from __future__ import annotations

from rnic.wire.opcode import OpcodeRow


class Seen:
    """A RoCEv2 packet of a capture whose ICRC is right, or cannot be checked.

    ``header`` is what stands between BTH and payload, ``digest`` the payload's CRC or -1 where it was cut;
    ``ident`` tells a repetition from a copy that the network made, where the sender counts idents. A request also
    knows what became of it: ``packets`` is how many PSNs it uses, 0 while that is not known, ``done`` the messages that
    have ended with it, -1 while something before it is missing, ``times`` how often it was sent, and ``refused`` that
    a sequence NAK for it or for something before it has come since.
    """

    __slots__ = (
        "ackreq",
        "digest",
        "done",
        "dqpn",
        "frame",
        "header",
        "ident",
        "packets",
        "pad",
        "pkey",
        "psn",
        "refused",
        "row",
        "size",
        "solicited",
        "time_ns",
        "times",
    )

    ackreq: bool
    digest: int
    dqpn: int
    header: bytes
    pad: int
    pkey: int
    psn: int
    size: int
    solicited: bool

    def __init__(self, frame: int, time_ns: int, row: OpcodeRow, ident: int) -> None:
        self.frame = frame
        self.time_ns = time_ns
        self.row = row
        self.ident = ident
        self.packets = 1
        self.done = -1
        self.times = 1
        self.refused = False

"""CNP, the congestion notification packet: a BTH with BECN set and 16 reserved bytes (Annex A17, 17.9.3)."""

from __future__ import annotations

from rnic.spec.layout import Layout, wide
from rnic.wire.header import Header

CNP_PAYLOAD = Layout("CNP payload", 16, "big", "Annex A17, 17.9.3", (wide("reserved128", 0, "reserved, zero", 16),))


class Cnp(Header):
    """The 16 bytes that follow the BTH of a CNP."""

    __slots__ = ("reserved128",)

    layout = CNP_PAYLOAD
    reserved128: int

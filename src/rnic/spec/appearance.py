"""Attributes that a device reports to programs: GID table, link rate, NUMA node and PCI address.

None of them changes what the device does: a reported rate of 400 Gb/s makes it no faster.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from errno import EINVAL
from typing import NamedTuple

from rnic.spec.errors import VerbsError
from rnic.spec.gids import gid_from_address
from rnic.spec.json_text import json_value

ROCE_V1, ROCE_V2 = 1, 2
"""Types of GID table entries, ``IBV_GID_TYPE_*``."""
ONE, FULL, RXE = GID_TABLES = ("one", "full", "rxe")
"""GID tables: the address alone; with the link-local address, each of RoCE v1 and v2; or both of RoCE v2 alone."""

_PCI = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
_LINK_LOCAL = bytes((0xFE, 0x80, *bytes(6)))
_UNIVERSAL = 0x02 << 56
"""Bit of an EUI-64 that is inverted in an interface identifier (RFC 4291, appendix A)."""
MAX_NUMA_NODES = 1024


class Rate(NamedTuple):
    """A link rate: ``active_speed`` and ``active_width`` of ``ibv_port_attr``, and the text of the ``rate`` file in
    sysfs."""

    speed: int
    width: int
    text: str


RATES = {
    10: Rate(4, 1, "10 Gb/sec (1X QDR)"),
    25: Rate(32, 1, "25 Gb/sec (1X EDR)"),
    40: Rate(4, 2, "40 Gb/sec (4X QDR)"),
    50: Rate(64, 1, "50 Gb/sec (1X HDR)"),
    100: Rate(32, 2, "100 Gb/sec (4X EDR)"),
    200: Rate(64, 2, "200 Gb/sec (4X HDR)"),
    400: Rate(128, 2, "400 Gb/sec (4X NDR)"),
    800: Rate(128, 4, "800 Gb/sec (8X NDR)"),
}
"""Link rates by Gb/s."""


@dataclass(frozen=True, slots=True)
class Appearance:
    """Reported attributes of one device.

    Raises:
        VerbsError: EINVAL: a value is out of range.
    """

    gids: str = ONE
    rate: int = 10
    """Link rate in Gb/s."""
    numa: int = -1
    """NUMA node, -1 for none."""
    pci: str = ""
    """PCI address, such as ``0000:18:00.0``; empty for none."""

    def __post_init__(self) -> None:
        if self.gids not in GID_TABLES:
            raise VerbsError(EINVAL, f"gids={self.gids!r} is not a GID table: use {', '.join(GID_TABLES)}")
        if self.rate not in RATES:
            raise VerbsError(EINVAL, f"rate={self.rate!r} is not a link rate: use {', '.join(map(str, RATES))} (Gb/s)")
        if type(self.numa) is not int or not -1 <= self.numa < MAX_NUMA_NODES:
            raise VerbsError(
                EINVAL, f"numa={self.numa!r} is not a NUMA node: use 0 to {MAX_NUMA_NODES - 1}, -1 for none"
            )
        if self.pci and not _PCI.fullmatch(str(self.pci)):
            raise VerbsError(EINVAL, f"pci={self.pci!r} is not a PCI address: use one such as 0000:18:00.0")

    def to_json(self) -> str:
        """Return JSON text for :func:`appearance`; equal appearances give equal text."""
        return json.dumps(asdict(self), sort_keys=True)


def appearance(text: str) -> Appearance:
    """Return the appearance that a JSON text describes; an empty text gives the default.

    Raises:
        VerbsError: EINVAL: a value is out of range.
    """
    try:
        told = json_value(text) if text else {}
        return Appearance(**told)
    except (ValueError, TypeError):
        raise VerbsError(
            EINVAL, f"{text[:60]!r} is not an appearance: use a JSON object of gids, rate, numa, pci"
        ) from None


def number_of(name: str) -> int:
    """Return the number at the end of a device's name, which its uverbs node gets if it is free."""
    found = re.search(r"\d{1,6}$", name)
    return int(found[0]) if found else 0


def gid_table(look: Appearance, address: bytes, guid: int) -> tuple[tuple[bytes, ...], tuple[int, ...]]:
    """Return the GIDs of a device's port, and their types.

    Args:
        look: attributes that select the table.
        address: IP address of the device, 4 or 16 bytes.
        guid: node GUID, from which the link-local address is derived.
    """
    own = gid_from_address(address)
    if look.gids == ONE:
        return (own,), (ROCE_V2,)
    local = _LINK_LOCAL + (guid ^ _UNIVERSAL).to_bytes(8, "big")
    each = [own] if own[:8] == _LINK_LOCAL else [local, own]
    types = (ROCE_V2,) if look.gids == RXE else (ROCE_V1, ROCE_V2)
    return tuple(gid for gid in each for _ in types), types * len(each)


__all__ = [
    "FULL",
    "GID_TABLES",
    "ONE",
    "RATES",
    "ROCE_V1",
    "ROCE_V2",
    "RXE",
    "Appearance",
    "Rate",
    "appearance",
    "gid_table",
    "number_of",
]

"""Per-packet delays of NICs and switches, by name: published figures with their sources.

A switch's delay is from the first bit in to the first bit out. Vendors and testers measure cut-through switches; the
model here stores and forwards, which adds a packet's serialization time (82 ns for 1 KB at 100 Gb/s, at each switch).
A NIC's delay is the published figure for a message from one program's memory to another's: a fabric counts the delay
of the receiving host only, so that it covers the sending and the receiving NIC together.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Profile(NamedTuple):
    """A named delay."""

    delay_ns: int
    published: str
    """The published figure and its source."""


HOSTS: Final = {
    "connectx-2": Profile(1_300, "about 1.3 us with RoCE on 10 GbE: The Register, 6 June 2011"),
    "connectx-5": Profile(
        600, "below 600 ns: ConnectX-5 EN product brief, Mellanox; the vendor's bound, not a measurement"
    ),
}
"""NICs."""
SWITCHES: Final = {
    "nexus-3548": Profile(250, "250 ns cut-through: ipSpace.net, Cisco Nexus 3548: A Victory for Custom ASICs?, 2012"),
    "arista-7150": Profile(380, "about 380 ns: the same article"),
    "spectrum-2": Profile(300, "300 ns: Linley Newsletter, Spectrum-2 Debuts 200GbE, 31 July 2017"),
}
"""Switches."""

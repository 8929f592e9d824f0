"""Types of the numbers that must not be mixed up. The data path carries them as the plain integers that they
are; they are made where a number enters: off the wire, and from the device's commands."""

from typing import NewType

Psn = NewType("Psn", int)
"""Packet sequence number, 24 bits."""
Qpn = NewType("Qpn", int)
"""Queue pair number, 24 bits."""
Lkey = NewType("Lkey", int)
"""Local key of a memory region, 32 bits."""
Rkey = NewType("Rkey", int)
"""Remote key of a memory region or window, 32 bits."""
Va = NewType("Va", int)
"""Virtual address in the process that registered the memory, 64 bits."""

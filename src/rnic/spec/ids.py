"""Distinct types for numbers that must not be mixed up. They are plain integers at run time, given their type where
they enter: from the wire and from device commands."""

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

"""Types of the numbers that must not be mixed up. They annotate; the data path never constructs them."""

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

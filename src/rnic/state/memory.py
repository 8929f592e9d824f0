"""The memory table's records: one for each key index, read by every access to registered memory (004 7.3)."""

from __future__ import annotations

from typing import Final

from rnic.state.record import record

KEY: Final = record(
    "memory key",
    "004 7.3, MR Table; design.md",
    (
        ("key", "MemoryTable", "L_Key and R_Key: index in bits 31:8, tag in 7:0"),
        ("valid", "MemoryTable", "1 while the key opens something"),
        ("window", "MemoryTable", "0 for a region, 1 or 2 for a window of that type"),
        ("pd", "MemoryTable", "protection domain"),
        ("access", "MemoryTable", "IBV_ACCESS_* bits"),
        ("start", "MemoryTable", "first address that the key opens"),
        ("end", "MemoryTable", "the address behind the last"),
        ("base", "MemoryTable", "virtual address of the first byte in its process"),
        ("qpn", "MemoryTable", "the queue pair that a bound type 2 window belongs to, else 0"),
        ("bound", "MemoryTable", "windows bound to a region"),
        ("binding", "MemoryTable", "counts the times that the entry stopped being valid"),
    ),
    16,
)

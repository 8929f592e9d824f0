"""Records of the memory table: one per key index, read at every access to registered memory (004 7.3)."""

from __future__ import annotations

from typing import Final

from rnic.state.record import record

KEY: Final = record(
    "memory key",
    "004 7.3, MR Table; design.md",
    (
        ("key", "MemoryTable", "L_Key and R_Key: index in bits 31:8, tag in 7:0"),
        ("valid", "MemoryTable", "1 while the key is valid"),
        ("window", "MemoryTable", "0 for a region, 1 or 2 for a window of that type"),
        ("pd", "MemoryTable", "protection domain"),
        ("access", "MemoryTable", "IBV_ACCESS_* bits"),
        ("start", "MemoryTable", "first address that the key covers"),
        ("end", "MemoryTable", "end address, exclusive"),
        ("base", "MemoryTable", "virtual address of the first byte in its process"),
        ("qpn", "MemoryTable", "queue pair of a bound type 2 window, else 0"),
        ("bound", "MemoryTable", "windows bound to a region"),
        ("binding", "MemoryTable", "incremented whenever the entry becomes invalid"),
    ),
    16,
)

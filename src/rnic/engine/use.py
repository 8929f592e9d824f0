"""Whether the engine is in use: where it is compiled, from the tables as they are, and nobody turned it off.

``RNIC_ENGINE=0`` takes the reference alone; ``RNIC_PLAIN=1`` implies it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rnic.engine.header import layout_hash
from rnic.spec.twins import compiled_twin, in_use

if TYPE_CHECKING:
    from rnic.mem.table import MemoryTable
    from rnic.state.arena import Arena
    from rnic.transport.host import TransportConfig

_NAME = "rnic.engine"


def _choose() -> Any:
    if os.environ.get("RNIC_ENGINE", "") == "0":
        in_use[_NAME] = False
        return None
    engine = compiled_twin(_NAME, "rnic.engine._engine")
    if engine is not None and engine.layout_hash() != layout_hash():
        in_use[_NAME] = False  # compiled from other tables: what it takes for one field is another now
        return None
    return engine


ENGINE: Any = _choose()
"""The compiled engine, or ``None``."""


def port(arena: Arena, table: MemoryTable, config: TransportConfig) -> Any:
    """What all queue pairs of a device share, told of every key from now on; ``None`` without the engine."""
    if ENGINE is None:
        return None
    made = ENGINE.Port(arena, table, config)
    table.told = made.changed
    return made

"""Clock and loop that drive a device and its link: inline, in a background thread, in virtual time.

:class:`Runtime` is loaded on first use: a client of the NIC process does not need it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rnic.runtime.loop import Runtime

__all__ = ["Runtime"]


def __getattr__(name: str) -> object:
    if name != "Runtime":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rnic.runtime.loop import Runtime  # noqa: PLC0415 - see above

    return Runtime

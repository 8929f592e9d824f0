"""Clock and loop that drive a device and its link: inline, in a background thread, in virtual time.

:class:`Runtime` is loaded when it is used first: a program's side of the NIC process does without a device.
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

"""Clock and loop that drive a device and its link: inline, in a background thread, in virtual time."""

from rnic.runtime.loop import Runtime

__all__ = ["Runtime"]

"""The per-packet inner loops over a whole message or a whole receive burst, plain and compiled.

The loops touch only the buffers and numbers handed to them.
"""

from rnic.burst import plain
from rnic.burst.loops import COMPILED, LOOPS, SMALL

__all__ = ["COMPILED", "LOOPS", "SMALL", "plain"]

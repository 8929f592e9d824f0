"""The per-packet inner loops over a whole message or a whole receive burst, plain and (later) compiled.

The loops touch only the buffers and numbers handed to them.
"""

from rnic.burst import plain

__all__ = ["plain"]

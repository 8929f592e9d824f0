"""PAXI: an AXI4 bridge to another chip's memory over RDMA (004 7.8).

One side serves memory, the other opens a window onto it::

    rnic.paxi.serve(memory, port=7472)                       # the memory's program
    window = rnic.paxi.open_window("127.0.0.1", 7472)        # the master's program
    window[0x1000:0x2000] = data

:mod:`~rnic.paxi.bridge` is the core: AXI transactions in, work requests out, no I/O. :mod:`~rnic.paxi.port` connects it
to a queue pair; masters are :class:`~rnic.paxi.window.Window` and the buses behind :mod:`~rnic.paxi.pins`.
"""

from rnic.paxi.axi import AxiError
from rnic.paxi.target import DEFAULT_PORT, Target, open_window, serve
from rnic.paxi.window import Window

__all__ = ["DEFAULT_PORT", "AxiError", "Target", "Window", "open_window", "serve"]

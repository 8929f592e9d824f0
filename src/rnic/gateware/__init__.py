"""The descriptor engine of 000 and 001 as hardware, in Amaranth (the extra ``gateware``).

Each block has the documents' name and is one module. :class:`rnic.gateware.top.Top` is the whole engine: one AXI4
master, one AXI4-Lite slave, MAC streams, one interrupt. Nothing of the software NIC imports this room.
"""

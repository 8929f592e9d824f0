"""Bus and stream interfaces of the engine's blocks, and the names that its exported ports have.

All are :class:`amaranth.lib.wiring.Signature` seen from the side that drives ``valid`` (streams) or addresses (buses);
the other side takes ``In(...)``. Ready and valid follow AXI: a source raises ``valid`` without waiting for
``ready``, and then holds it and its payload until the beat is taken.
"""

from __future__ import annotations

from amaranth.hdl import Signal, Value
from amaranth.hdl._ir import PortDirection  # the only way to say that an undriven port is an output
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from rnic.spec.axi import Burst, Resp
from rnic.spec.engine_regs import DM_STATUS, NARROW_ADDRESS_BITS, dm_command_layout
from rnic.spec.layout import Layout


def struct_of(layout: Layout) -> data.FlexibleLayout:
    """Return the same table as gateware: bit ``n`` of the structure is bit ``n % 8`` of byte ``n // 8``."""
    assert layout.endian == "little", f"{layout.name} is not little-endian"
    fields = {field.name: data.Field(field.width, field.byte * 8 + field.lsb) for field in layout.fields}
    return data.FlexibleLayout(layout.size * 8, fields)


class AxiStream(wiring.Signature):
    """AXI4-Stream of ``width`` bits. Byte 0 of a beat is ``tdata[7:0]``.

    ``tkeep`` is all ones except on the last beat of a packet, where the low lanes are set, and on the last beat of
    a seven-word header where the bus is wider than 32 bits and 28 bytes do not fill it. ``tuser``: this beat was read
    with a bus error; at a MAC port, with ``tlast``: this frame is bad.
    """

    def __init__(self, width: int) -> None:
        super().__init__(
            {
                "tdata": Out(width),
                "tkeep": Out(width // 8),
                "tlast": Out(1),
                "tuser": Out(1),
                "tvalid": Out(1),
                "tready": In(1),
            }
        )


class WordStream(wiring.Signature):
    """A stream of single ``width``-bit words: DataMover commands (72, or 104) and statuses (8)."""

    def __init__(self, width: int) -> None:
        super().__init__({"tdata": Out(width), "tvalid": Out(1), "tready": In(1)})


STATUS_BITS = DM_STATUS.size * 8


def command_bits(address_bits: int) -> int:
    """Return the number of bits of a DataMover command with addresses of ``address_bits`` bits."""
    return dm_command_layout(address_bits).size * 8


class Axi4(wiring.Signature):
    """AXI4, seen from the master. Ids of ``id_bits`` bits identify the requesting master."""

    def __init__(self, width: int, id_bits: int, address_bits: int = NARROW_ADDRESS_BITS) -> None:
        address = {
            "id": Out(id_bits),
            "addr": Out(address_bits),
            "len": Out(8),
            "size": Out(3),
            "burst": Out(2),
            "lock": Out(1),
            "cache": Out(4),
            "prot": Out(3),
            "qos": Out(4),
            "valid": Out(1),
            "ready": In(1),
        }
        members = {f"aw{name}": member for name, member in address.items()}
        members |= {
            "wdata": Out(width),
            "wstrb": Out(width // 8),
            "wlast": Out(1),
            "wvalid": Out(1),
            "wready": In(1),
            "bid": In(id_bits),
            "bresp": In(2),
            "bvalid": In(1),
            "bready": Out(1),
        }
        members |= {f"ar{name}": member for name, member in address.items()}
        members |= {
            "rid": In(id_bits),
            "rdata": In(width),
            "rresp": In(2),
            "rlast": In(1),
            "rvalid": In(1),
            "rready": Out(1),
        }
        super().__init__(members)


class Axi4Lite(wiring.Signature):
    """AXI4-Lite with 32-bit data, seen from the master; the engine has ``In(Axi4Lite(...))``."""

    def __init__(self, address_bits: int) -> None:
        super().__init__(
            {
                "awaddr": Out(address_bits),
                "awprot": Out(3),
                "awvalid": Out(1),
                "awready": In(1),
                "wdata": Out(32),
                "wstrb": Out(4),
                "wvalid": Out(1),
                "wready": In(1),
                "bresp": In(2),
                "bvalid": In(1),
                "bready": Out(1),
                "araddr": Out(address_bits),
                "arprot": Out(3),
                "arvalid": Out(1),
                "arready": In(1),
                "rdata": In(32),
                "rresp": In(2),
                "rvalid": In(1),
                "rready": Out(1),
            }
        )


class RegBus(wiring.Signature):
    """Registers of one block, behind the AXI4-Lite slave of ``registers``; seen from that slave.

    ``addr`` is a byte address inside the block's window and a multiple of 4. ``write`` and ``read`` are one cycle long
    and never both set. ``rdata`` is valid in the second cycle after ``read`` and need not hold: so block RAM's output
    goes into a register first. A block stores the bytes that ``wstrb`` names.
    """

    def __init__(self, address_bits: int) -> None:
        super().__init__(
            {
                "addr": Out(address_bits),
                "write": Out(1),
                "wdata": Out(32),
                "wstrb": Out(4),
                "read": Out(1),
                "rdata": In(32),
            }
        )


class Meta(wiring.Signature):
    """META: one word per packet, which ``ip_encapsulator`` needs before the packet's first beat.

    ``length``: bytes of the UDP payload, that is 28 plus the fragment. Addresses and ports in host order.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "length": Out(16),
                "src_ip": Out(32),
                "dst_ip": Out(32),
                "src_port": Out(16),
                "dst_port": Out(16),
                "valid": Out(1),
                "ready": In(1),
            }
        )


class Endpoint(wiring.Signature):
    """The four values that are the same in META of every packet: registers of ``ip_encapsulator``, read by ``top``."""

    def __init__(self) -> None:
        super().__init__({"src_ip": Out(32), "dst_ip": Out(32), "src_port": Out(16), "dst_port": Out(16)})


class Lookup(wiring.Signature):
    """One request at a time to ``endpoint_lookup``: MAC addresses for a destination IP.

    ``request`` is one cycle long; the answer comes with ``response``, also one cycle, at least one cycle later.
    Without ``hit`` the addresses are zero.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "request": Out(1),
                "ip": Out(32),
                "response": In(1),
                "hit": In(1),
                "dst_mac": In(48),
                "src_mac": In(48),
            }
        )


Ports = dict[str, tuple[Signal, PortDirection]]


def flat_ports(component: wiring.Component) -> Ports:
    """Return the ports of a component by the names that bus models expect: ``m_axi_awaddr``, ``mac_tx_axis_tdata``.

    For :func:`amaranth.back.verilog.convert`; its own names join the parts with two underscores.
    """
    out: Ports = {}
    for path, member, port in component.signature.flatten(component):
        signal = Value.cast(port)  # of a stream's payload with fields, all of it
        assert isinstance(signal, Signal), path
        out["_".join(map(str, path))] = (signal, PortDirection.Input if member.flow is In else PortDirection.Output)
    return out


__all__ = [
    "STATUS_BITS",
    "Axi4",
    "Axi4Lite",
    "AxiStream",
    "Burst",
    "Endpoint",
    "In",
    "Lookup",
    "Meta",
    "Out",
    "Ports",
    "RegBus",
    "Resp",
    "WordStream",
    "command_bits",
    "flat_ports",
    "struct_of",
]

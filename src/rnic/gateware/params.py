"""Parameters of an engine. Values are checked only here; the blocks rely on them."""

from __future__ import annotations

from dataclasses import dataclass

from rnic.spec.engine_net_regs import MAX_UDP_PAYLOAD
from rnic.spec.engine_regs import NARROW_ADDRESS_BITS
from rnic.wire.engine_header import ENGINE_HEADER_BYTES

BUS_WIDTHS = (32, 64, 128, 256, 512)
GROUP_LANES = 8
"""Lanes marked and counted in one step; more lanes are handled in groups of this size."""
BTT_BITS = 23
OVERLAPPED_IN_FLIGHT = 32
"""Default number of WRITEs in flight of an overlapped engine, enough for short ones to follow each other closely."""
INDEX_BITS = 16
"""Queue indices: 16 bits of the size registers are used."""


@dataclass(frozen=True, slots=True)
class EngineParams:
    """Parameters of one engine.

    Raises:
        ValueError: a value is out of range; the message names the range.
    """

    bus_width: int = 32
    """Data width of the AXI4 master and of the packet streams, in bits."""
    address_bits: int = NARROW_ADDRESS_BITS
    """Width of memory addresses in bits, 32 to 64 in steps of 4; the documented engine uses the low half."""
    block_size: int = 1024
    """Largest fragment in bytes: a power of two, 16 to 32768 (001 has 1024, 000 has 4096)."""
    boundary: int = 1024
    """Boundary of source addresses that no fragment crosses: a power of two, 16 to 65536, independent of block_size."""
    fifo_depth: int = 512
    """Beats that the loopback FIFO holds: a power of two, 8 to 65536."""
    serial: bool = True
    """One fragment at a time, as documented; False overlaps fetch, header and payload of successive fragments."""
    watchdog_cycles: int = 1_000_000
    """WATCHDOG after reset, in cycles; 0 disables it."""
    clock_mhz: float = 100.0
    """Clock that reports and constraints name; the logic does not depend on it."""
    mac_clock_mhz: float = 0.0
    """Clock of the MAC's streams in MHz; 0: the engine's clock."""
    bus_clock_mhz: float = 0.0
    """Clock of the memory bus in MHz; 0: the engine's clock."""
    max_burst: int = 64
    """Longest AXI burst in beats: a power of two, 1 to 256."""
    documented_debug: bool = False
    """Lay out debug registers 0x54 to 0x7C as in the register document, not as in the RTL."""
    documented_cqe: bool = False
    """CQ entries with only the words of 000: no opcode, vendor error or phase, and eight bits of the index."""

    in_flight: int = 1
    """WRITEs in flight at once: a power of two, 1 to 64; more than 1 only for an overlapped engine."""
    outstanding: int = 16
    """Bursts that each channel of a DataMover has on the bus at once: a power of two, 8 to 128."""
    network: bool = True
    """Build MAC ports; without them the engine has only loopback, and allows longer fragments."""
    check_address: bool = True
    """Drop frames for an IP address other than LOCAL_IP."""
    check_udp_checksum: bool = True
    """Drop frames with a wrong UDP checksum; 0 means no checksum."""
    rx_fifo_bytes: int = 8192
    """Bytes for received frames before parsing: a power of two, 2048 to 65536."""

    def __post_init__(self) -> None:
        if self.bus_width not in BUS_WIDTHS:
            raise ValueError(f"bus_width={self.bus_width}: choose one of {', '.join(map(str, BUS_WIDTHS))}")
        if not NARROW_ADDRESS_BITS <= self.address_bits <= 64 or self.address_bits % 4:
            raise ValueError(f"address_bits={self.address_bits}: 32 to 64, a multiple of 4")
        _power_of_two("block_size", self.block_size, 16, 32768)
        _power_of_two("boundary", self.boundary, 16, 65536)
        _power_of_two("fifo_depth", self.fifo_depth, 8, 65536)
        _power_of_two("max_burst", self.max_burst, 1, 256)
        _power_of_two("in_flight", self.in_flight, 1, 64)
        _power_of_two("outstanding", self.outstanding, 8, 128)
        if self.in_flight > 1 and self.serial:
            raise ValueError(f"in_flight={self.in_flight} with serial=True: one WRITE at a time, or serial=False")
        _power_of_two("rx_fifo_bytes", self.rx_fifo_bytes, 2048, 65536)
        if self.network and self.block_size + ENGINE_HEADER_BYTES > MAX_UDP_PAYLOAD:
            raise ValueError(
                f"block_size={self.block_size} with network=True: a fragment and its header fill more than the "
                f"{MAX_UDP_PAYLOAD} bytes that a frame takes; block_size at most 1024, or network=False"
            )
        if not 0 <= self.watchdog_cycles < 1 << 32:
            raise ValueError(f"watchdog_cycles={self.watchdog_cycles}: 0 to 4294967295")
        if self.clock_mhz <= 0:
            raise ValueError(f"clock_mhz={self.clock_mhz}: must be positive")
        for name, mhz in (("mac_clock_mhz", self.mac_clock_mhz), ("bus_clock_mhz", self.bus_clock_mhz)):
            if mhz < 0:
                raise ValueError(f"{name}={mhz}: must be positive, or 0 for the engine's clock")
        if self.mac_clock_mhz and not self.network:
            raise ValueError(f"mac_clock_mhz={self.mac_clock_mhz} with network=False: there is no MAC")

    @property
    def bus_bytes(self) -> int:
        """Bytes in one beat."""
        return self.bus_width // 8

    @property
    def broad(self) -> bool:
        """True if the bus is so wide that rotating, marking or counting its lanes takes an extra cycle or register."""
        return self.bus_bytes > GROUP_LANES

    @property
    def wide(self) -> bool:
        """True if addresses have a high word, which the header carries."""
        return self.address_bits > NARROW_ADDRESS_BITS

    @property
    def queue(self) -> int:
        """Commands queued in a channel behind the active one, and fragments cut ahead of their data."""
        return max(4, self.outstanding // 4)

    @property
    def header_beats(self) -> int:
        """Beats of the seven-word header: 7, 4, 2, 1, 1."""
        return -(-ENGINE_HEADER_BYTES // self.bus_bytes)


def _power_of_two(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high or value & (value - 1):
        raise ValueError(f"{name}={value}: a power of two from {low} to {high}")

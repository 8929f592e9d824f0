"""Settings of a NIC: identity, limits and transport settings."""

from __future__ import annotations

import errno
import ipaddress
from dataclasses import dataclass, field

from rnic.cc.settings import CongestionSettings
from rnic.device.mailboxes import MAX_PKEYS
from rnic.spec.appearance import ROCE_V2, Appearance, gid_table, number_of
from rnic.spec.errors import VerbsError
from rnic.spec.gids import gid_from_address
from rnic.spec.limits import (
    DEFAULT_PKEY,
    FIRST_QPN,
    GO_BACK_N,
    LOG_DEFAULT_QPS,
    LOG_MAX_QPS,
    MAX_MRS,
    MTU_CODES,
    RECOVERIES,
    ROCE_UDP_PORT,
)
from rnic.state.memory import KEY

MIN_LOG_QPS = 4


_STATE_A_QP = 64 << 10
_STATE_LEAST = 64 << 20


@dataclass(slots=True)
class NicConfig:
    """Settings of one NIC.

    Raises:
        VerbsError: ``EINVAL`` for a value out of range.
    """

    address: bytes
    """IP address, 4 or 16 bytes. Its GID is entry 0 of the GID table."""
    port: int = ROCE_UDP_PORT
    """UDP port that this NIC receives on."""
    name: str = "rnic0"
    """Name of the device, shown by programs and tools."""
    guid: int = 0
    """Node GUID, 64 bits; 0 derives one from the address."""
    log_max_qps: int = LOG_DEFAULT_QPS
    """log2 of the number of queue pairs, and of CQs, 4 to 14."""
    first_qpn: int = FIRST_QPN
    """Lowest queue pair number."""
    reference: bool = False
    """Run only the reference in this process, because another process runs the engine."""
    channels: bool = False
    """Run the reference on the responses of CtxMgt's six channels (:mod:`rnic.device.channels`); slow, for tests."""
    max_mrs: int = MAX_MRS
    """Regions and windows that may exist at once."""
    mtu: int = 4096
    """Active path MTU in bytes, which must fit the interface."""
    pkeys: tuple[int, ...] = (DEFAULT_PKEY,)
    """P_Key table; bit 15 means full member."""
    fixed_sport: bool = True
    """True if packets are sent from one of ``source_ports``, which the link has bound; else from a port derived from
    the QPNs."""
    source_ports: tuple[int, ...] = ()
    """UDP source ports of the link; empty means ``port`` alone. A queue pair uses one of them, selected by its QPNs."""
    window_packets: int = 256
    """Packets in flight per queue pair."""
    window_bytes: int = 1 << 20
    """Bytes in flight per queue pair."""
    flight_packets: int = 512
    """Packets in flight from all queue pairs together, including READ responses to this NIC."""
    ack_every: int = 64
    """Request an acknowledgement at least once in this many packets."""
    probe: bool = True
    """Tail-loss probe (``design.md``, "Loss recovery")."""
    recovery: str = GO_BACK_N
    """Loss recovery: ``"go-back-n"``, as in the standard, or ``"selective-repeat"``, which only retransmits missing
    packets to peers that support it (:mod:`rnic.transport.selective_repeat`)."""
    rq_almost_full: int = 0
    """Receive entries that a reliable connection keeps in reserve: with only these left, it sends RNR NAKs (004
    7.3)."""
    fault_events: bool = False
    """Raise an asynchronous event for each fault of a queue pair (004 7.3), even if a completion reports it."""
    profile: str = ""
    """Name of the modeled core (:mod:`rnic.device.parameters`)."""
    parameters: dict[str, int] = field(default_factory=dict)
    """Parameters of that core, including those that only matter in hardware."""
    turn_bytes: int = 262_144
    """Bytes that a queue pair may send before the program's next queue pair."""
    program_turn_bytes: int = 65_536
    """Bytes that a program may send before the next program."""
    autostart: bool = True
    """True if the NIC powers up enabled and initialized, as by firmware; else the driver sets CONTROL and runs
    INIT_HCA."""
    congestion: CongestionSettings = field(default_factory=CongestionSettings)
    """Congestion registers at power-up (004 7.4)."""
    appearance: Appearance = field(default_factory=Appearance)
    """Attributes reported to programs."""
    index: int = -1
    """Number of its uverbs node; -1 for the number in its name."""
    gid_table: tuple[bytes, ...] = field(init=False)
    """GIDs, 16 bytes each."""
    gid_types: tuple[int, ...] = field(init=False)
    """``IBV_GID_TYPE_*`` of the first entries; further ones are RoCE v2."""

    def __post_init__(self) -> None:
        self.reference |= self.channels
        if len(self.address) not in (4, 16):
            raise VerbsError(errno.EINVAL, f"address={self.address.hex()} has {len(self.address)} bytes; use 4 or 16")
        if not 0 < self.port <= 0xFFFF:
            raise VerbsError(errno.EINVAL, f"port={self.port} is not a UDP port; use 1 to 65535")
        if not MIN_LOG_QPS <= self.log_max_qps <= LOG_MAX_QPS:
            raise VerbsError(
                errno.EINVAL, f"log_max_qps={self.log_max_qps} is out of range; use {MIN_LOG_QPS} to {LOG_MAX_QPS}"
            )
        if self.mtu not in MTU_CODES:
            raise VerbsError(
                errno.EINVAL, f"mtu={self.mtu} is not a path MTU; use one of {', '.join(map(str, MTU_CODES))}"
            )
        if not 1 <= len(self.pkeys) <= MAX_PKEYS or any(not 0 < pkey <= 0xFFFF for pkey in self.pkeys):
            raise VerbsError(
                errno.EINVAL, f"pkeys={self.pkeys} is not a P_Key table; use 1 to {MAX_PKEYS} values of 1 to 0xffff"
            )
        for name in (
            "window_packets",
            "window_bytes",
            "flight_packets",
            "ack_every",
            "turn_bytes",
            "program_turn_bytes",
        ):
            if getattr(self, name) < 1:
                raise VerbsError(errno.EINVAL, f"{name}={getattr(self, name)} must be at least 1")
        if self.recovery not in RECOVERIES:
            raise VerbsError(errno.EINVAL, f"recovery={self.recovery!r} is unknown; use {' or '.join(RECOVERIES)}")
        self.source_ports = self.source_ports or (self.port,)
        if any(not 0 < port <= 0xFFFF for port in self.source_ports):
            raise VerbsError(errno.EINVAL, f"source_ports={self.source_ports}: use ports of 1 to 65535")
        if self.rq_almost_full < 0:
            raise VerbsError(errno.EINVAL, f"rq_almost_full={self.rq_almost_full} must not be negative")
        if not self.guid:
            # locally administered GUID, the same at each start; the address distinguishes NICs of one machine
            self.guid = 0x02_00_00_00_00_00_00_00 | int.from_bytes(self.address[-6:], "big") << 8 | self.port & 0xFF
        self.gid_table, self.gid_types = gid_table(self.appearance, self.address, self.guid)
        if self.index < 0:
            self.index = number_of(self.name)

    @property
    def gid(self) -> bytes:
        """The GID of the device's own address."""
        return gid_from_address(self.address)

    @property
    def gid_index(self) -> int:
        """Index of the device's own RoCE v2 GID in the GID table; 0 if it is no longer there."""
        own = self.gid
        return next((at for at, gid in enumerate(self.gid_table) if gid == own and self.gid_type(at) == ROCE_V2), 0)

    def gid_type(self, index: int) -> int:
        """Return the type of an entry of the GID table."""
        return self.gid_types[index] if index < len(self.gid_types) else ROCE_V2

    @property
    def state_bytes(self) -> int:
        """Size of the memory for the data path's state, most of which is never touched."""
        return max(_STATE_LEAST, _STATE_A_QP << self.log_max_qps) + self.max_mrs * KEY.size

    def __str__(self) -> str:
        return f"{self.name} at {ipaddress.ip_address(self.address)} port {self.port}"

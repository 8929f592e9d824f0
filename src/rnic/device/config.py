"""What a NIC is built with: identity, limits and the transport's settings."""

from __future__ import annotations

import errno
import ipaddress
from dataclasses import dataclass, field

from rnic.cc.settings import CongestionSettings
from rnic.device.mailboxes import MAX_PKEYS
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
        VerbsError: ``EINVAL`` for a value that no NIC can have.
    """

    address: bytes
    """IP address, 4 or 16 bytes. Its GID is entry 0 of the GID table."""
    port: int = ROCE_UDP_PORT
    """UDP port that this NIC receives on."""
    name: str = "rnic0"
    guid: int = 0
    """Node GUID, 64 bits; 0 makes one from the address."""
    log_max_qps: int = LOG_DEFAULT_QPS
    """log2 of the number of queue pairs, and of CQs, 4 to 14."""
    first_qpn: int = FIRST_QPN
    """The first of the queue pairs' numbers."""
    reference: bool = False
    """The reference works alone in this process, also where there is an engine: another process runs it."""
    channels: bool = False
    """The reference runs on what CtxMgt answers on its six channels (:mod:`rnic.device.channels`): slow, for tests."""
    max_mrs: int = MAX_MRS
    """Regions and windows that may exist at once."""
    mtu: int = 4096
    """Active path MTU in bytes: what fits the interface."""
    pkeys: tuple[int, ...] = (DEFAULT_PKEY,)
    """P_Key table; bit 15 says full member."""
    fixed_sport: bool = True
    """Packets leave from one of ``source_ports``, which the link has bound; else from a port made from the QPNs."""
    source_ports: tuple[int, ...] = ()
    """UDP ports of the link; empty stands for ``port`` alone. A queue pair keeps to one of several, by its QPNs."""
    window_packets: int = 256
    """Packets in flight per queue pair."""
    window_bytes: int = 1 << 20
    """Bytes in flight per queue pair."""
    flight_packets: int = 512
    """Packets in flight from all queue pairs together, READ responses to this NIC included."""
    ack_every: int = 64
    """A request asks for an acknowledgement at least each so many packets."""
    probe: bool = True
    """Tail-loss probe (``design.md``, "Loss recovery")."""
    recovery: str = GO_BACK_N
    """What is sent again after a loss: ``"go-back-n"``, as the standard has it, or ``"selective-repeat"``, only what is
    missing, towards peers that have it too (:mod:`rnic.transport.selective_repeat`)."""
    rq_almost_full: int = 0
    """Receive entries that a reliable connection keeps back: with no more left it answers RNR (004 7.3)."""
    profile: str = ""
    """The core that the NIC stands for (:mod:`rnic.device.parameters`)."""
    parameters: dict[str, int] = field(default_factory=dict)
    """That core's parameters, those included that only hardware is different for."""
    turn_bytes: int = 262_144
    """Bytes that one queue pair sends before the next of its program has its turn."""
    program_turn_bytes: int = 65_536
    """Bytes that one program sends before the next has its turn."""
    autostart: bool = True
    """The NIC comes up enabled and initialized, as after its firmware; else CONTROL and INIT_HCA are the driver's."""
    congestion: CongestionSettings = field(default_factory=CongestionSettings)
    """What the congestion registers hold at power-up (004 7.4)."""
    gid_table: tuple[bytes, ...] = field(init=False)
    """GIDs, 16 bytes each."""

    def __post_init__(self) -> None:
        self.reference |= self.channels
        if len(self.address) not in (4, 16):
            raise VerbsError(errno.EINVAL, f"address={self.address.hex()} has {len(self.address)} bytes; use 4 or 16")
        if not 0 < self.port <= 0xFFFF:
            raise VerbsError(errno.EINVAL, f"port={self.port} is no UDP port; use 1 to 65535")
        if not MIN_LOG_QPS <= self.log_max_qps <= LOG_MAX_QPS:
            raise VerbsError(
                errno.EINVAL, f"log_max_qps={self.log_max_qps} is out of range; use {MIN_LOG_QPS} to {LOG_MAX_QPS}"
            )
        if self.mtu not in MTU_CODES:
            raise VerbsError(
                errno.EINVAL, f"mtu={self.mtu} is no path MTU; use one of {', '.join(map(str, MTU_CODES))}"
            )
        if not 1 <= len(self.pkeys) <= MAX_PKEYS or any(not 0 < pkey <= 0xFFFF for pkey in self.pkeys):
            raise VerbsError(
                errno.EINVAL, f"pkeys={self.pkeys} is no P_Key table; use 1 to {MAX_PKEYS} values of 1 to 0xffff"
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
            # Locally administered, and the same each time: the address tells NICs of one machine apart.
            self.guid = 0x02_00_00_00_00_00_00_00 | int.from_bytes(self.address[-6:], "big") << 8 | self.port & 0xFF
        self.gid_table = (gid_from_address(self.address),)

    @property
    def state_bytes(self) -> int:
        """Bytes of flat memory for the data path's state, most of which are never touched."""
        return max(_STATE_LEAST, _STATE_A_QP << self.log_max_qps) + self.max_mrs * KEY.size

    def __str__(self) -> str:
        return f"{self.name} at {ipaddress.ip_address(self.address)} port {self.port}"

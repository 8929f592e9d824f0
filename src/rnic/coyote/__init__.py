"""Coyote's shell around the RoCE stack (003): structures, streams, shared virtual memory, TCP service, threads."""

from __future__ import annotations

from rnic.coyote.device import Device
from rnic.coyote.ibvq import DEF_PORT, IbvQ
from rnic.coyote.mmu import Fault, Mmu, ProcessTable, SpaceTable
from rnic.coyote.oper import CoyoteOper, rdmaSg
from rnic.coyote.shell import HostShell, Shell
from rnic.coyote.stack import RoceStack
from rnic.coyote.tcp import TcpService
from rnic.coyote.thread import CoyoteError, CThread

__all__ = [
    "DEF_PORT",
    "CThread",
    "CoyoteError",
    "CoyoteOper",
    "Device",
    "Fault",
    "HostShell",
    "IbvQ",
    "Mmu",
    "ProcessTable",
    "RoceStack",
    "Shell",
    "SpaceTable",
    "TcpService",
    "rdmaSg",
]

"""The view of a NIC process itself: its devices, and the programs that use them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rnic.link.base import format_address
from rnic.spec.states import state_name

if TYPE_CHECKING:
    from rnic.nic_process.client import Client
    from rnic.runtime.loop import Runtime

TAP = "tap "
"""Prefix of an INFO message for :meth:`rnic.runtime.tap.Tap.answer`."""


def devices(
    runtimes: Mapping[str, Runtime], clients: Iterable[Client], served: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return every device with its programs and the ends of its queue pairs.

    Each is ``{"name", "address", "udp_port", "guid", "port_state", "dead", "served", "programs": [program],
    "qps": [pair]}``, a program ``{"pid", "command"}``, a pair ``{"qpn", "pid", "state", "remote_qpn",
    "remote_address"}``; the last is empty without a peer. ``served`` devices stay without a program, as ``rnic serve``
    requires.
    """
    users = list(clients)
    return [
        {**_device(name, runtime, [user for user in users if user.device == name]), "served": name in served}
        for name, runtime in runtimes.items()
    ]


def _device(name: str, runtime: Runtime, users: list[Client]) -> dict[str, Any]:
    nic = runtime.nic
    pids = {user.pid for user in users}
    slots = [user.slot.runtime.nic for user in users if user.slot is not None]
    return {
        "name": name,
        "address": format_address(nic.config.address),
        "udp_port": nic.config.port,
        "guid": f"{nic.config.guid:016x}",
        "port_state": nic.globals.port_state,
        "dead": bool(nic.globals.dead),
        "programs": [{"pid": pid, "command": command_of(pid)} for pid in sorted(pids)],
        "qps": [
            {
                "qpn": qpn,
                "pid": qp.regs.uar.program,
                "state": state_name(qp.ctx.state),
                "remote_qpn": qp.ctx.remote_qpn,
                "remote_address": "" if qp.flow is None else format_address(qp.flow.dst),
            }
            for each in (nic, *slots)
            for qpn, qp in sorted(each.qps.items())
        ],
    }


def command_of(pid: int) -> str:
    """Return the name of a program; ``?`` if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return "?"


__all__ = ["TAP", "command_of", "devices"]

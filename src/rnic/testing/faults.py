"""Device events as methods: for a side of a pair, a node of a net, and a device of a running NIC process."""

from __future__ import annotations

from pathlib import Path

from rnic.link.fault_events import ALL
from rnic.runtime.attach import fault
from rnic.runtime.directory import runtime_directory

Duration = int | str
"""Nanoseconds, or text such as ``"2s"``, ``"150ms"``, ``"50us"``."""


class FaultMethods:
    """One method for each event of :mod:`rnic.link.fault_events`.

    What takes a duration heals by itself after it; without, :meth:`heal` ends it. Each raises ValueError for a value
    out of range and VerbsError for what is not there.
    """

    _qpn: int | str = ALL
    _cqn: int | str = ALL
    _srqn: int | str = ALL
    _key: int | str = ALL

    def fault(self, name: str, *values: object) -> None:
        """An event by its name, with its values in the table's order."""
        raise NotImplementedError

    def port_down(self, duration: Duration | None = None) -> None:
        """The port goes down: IBV_EVENT_PORT_ERR, and IBV_EVENT_PORT_ACTIVE when it comes up."""
        self.fault("port-down", duration)

    def port_up(self) -> None:
        """The port comes up at once, and flaps no more."""
        self.fault("port-up")

    def flap(self, times: int = 1, down: Duration = "100ms", up: Duration = "100ms") -> None:
        """The port goes down and up again, ``times`` times."""
        self.fault("flap", times, down, up)

    def change_gid(self, index: int, value: str, duration: Duration | None = None) -> None:
        """An entry of the GID table becomes ``value``, an IP address or ``"none"``: IBV_EVENT_GID_CHANGE."""
        self.fault("gid", index, value, duration)

    def change_pkey(self, index: int, value: int, duration: Duration | None = None) -> None:
        """An entry of the P_Key table becomes ``value``, 0 for none: IBV_EVENT_PKEY_CHANGE."""
        self.fault("pkey", index, value, duration)

    def qp_error(self, qp: int | str | None = None) -> None:
        """A queue pair (number, ``"all"``, or this side's own) goes to the error state: IBV_EVENT_QP_FATAL."""
        self.fault("qp-error", self._qpn if qp is None else qp)

    def srq_error(self, srq: int | str | None = None) -> None:
        """A shared receive queue fails: IBV_EVENT_SRQ_ERR."""
        self.fault("srq-error", self._srqn if srq is None else srq)

    def cq_overflow(self, cq: int | str | None = None) -> None:
        """A CQ overflows: IBV_EVENT_CQ_ERR."""
        self.fault("cq-overflow", self._cqn if cq is None else cq)

    def completion_error(self, status: str, qp: int | str | None = None) -> None:
        """The next send completes with ``status``, such as ``"RETRY_EXC_ERR"``."""
        self.fault("completion-error", self._qpn if qp is None else qp, status)

    def lose_path(self, peer: str, duration: Duration | None = None) -> None:
        """Packets to and from the peer at this IP address are lost."""
        self.fault("path-loss", peer, duration)

    def slow_dma(self, delay: Duration, duration: Duration | None = None) -> None:
        """The NIC reaches memory ``delay`` late."""
        self.fault("slow-dma", delay, duration)

    def lose_region(self, key: int | str | None = None, duration: Duration | None = None) -> None:
        """A memory region (L_Key, R_Key, ``"all"``, or this side's own) is gone for the NIC."""
        self.fault("region-gone", self._key if key is None else key, duration)

    def lose_interrupts(self, times: int = 1) -> None:
        """The next ``times`` interrupts get lost."""
        self.fault("interrupt-lost", times)

    def delay_interrupts(self, delay: Duration, duration: Duration | None = None) -> None:
        """Interrupts come ``delay`` late."""
        self.fault("interrupt-late", delay, duration)

    def device_fatal(self, duration: Duration | None = None) -> None:
        """The device fails, IBV_EVENT_DEVICE_FATAL, and comes back after ``duration``; contexts must be opened anew."""
        self.fault("fatal", duration)

    def heal(self) -> None:
        """Everything that lasts ends, and nothing more comes."""
        self.fault("heal")


class NicFaults(FaultMethods):
    """Events for a device of this user's running NIC process, which C programs may use meanwhile.

    Args:
        device: its name; empty for the first.
        directory: of the NIC process; the user's by default.

    Methods raise ProcessError where no NIC process runs, or it refuses.
    """

    def __init__(self, device: str = "", directory: Path | None = None) -> None:
        self._device = device
        self._directory = directory

    def fault(self, name: str, *values: object) -> None:
        """An event by its name, with its values in the table's order."""
        words = list(values)
        while words and words[-1] is None:
            words.pop()
        fault(self._directory or runtime_directory(), self._device, [name, *words])

    def kill(self) -> None:
        """The NIC process dies at once, with all its devices."""
        self.fault("kill")

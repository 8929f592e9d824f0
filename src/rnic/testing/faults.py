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

    An event with a duration heals by itself; without one, :meth:`heal` ends it. Each method raises ValueError for a
    value out of range and VerbsError for an object that does not exist.
    """

    _qpn: int | str = ALL
    _cqn: int | str = ALL
    _srqn: int | str = ALL
    _key: int | str = ALL

    def fault(self, name: str, *values: object) -> None:
        """Inject an event by its name, with its values in the table's order."""
        raise NotImplementedError

    def port_down(self, duration: Duration | None = None) -> None:
        """Take the port down: IBV_EVENT_PORT_ERR, and IBV_EVENT_PORT_ACTIVE when it comes up."""
        self.fault("port-down", duration)

    def port_state(self, state: str, duration: Duration | None = None) -> None:
        """Put the port into ``"INIT"``, ``"ARMED"`` or ``"DOWN"``: it carries nothing, as after :meth:`port_down`."""
        self.fault("port-state", state, duration)

    def port_up(self) -> None:
        """Bring the port up at once, and end its flaps."""
        self.fault("port-up")

    def flap(self, times: int = 1, down: Duration = "100ms", up: Duration = "100ms") -> None:
        """Take the port down and up again, ``times`` times."""
        self.fault("flap", times, down, up)

    def change_gid(self, index: int, value: str, duration: Duration | None = None) -> None:
        """Change an entry of the GID table to ``value``, an IP address or ``"none"``: IBV_EVENT_GID_CHANGE."""
        self.fault("gid", index, value, duration)

    def change_pkey(self, index: int, value: int, duration: Duration | None = None) -> None:
        """Change an entry of the P_Key table to ``value``, 0 for none: IBV_EVENT_PKEY_CHANGE."""
        self.fault("pkey", index, value, duration)

    def qp_error(self, qp: int | str | None = None) -> None:
        """Take a queue pair (number, ``"all"``, or this side's own) to the error state: IBV_EVENT_QP_FATAL."""
        self.fault("qp-error", self._qpn if qp is None else qp)

    def srq_error(self, srq: int | str | None = None) -> None:
        """Fail a shared receive queue: IBV_EVENT_SRQ_ERR."""
        self.fault("srq-error", self._srqn if srq is None else srq)

    def cq_overflow(self, cq: int | str | None = None) -> None:
        """Overflow a CQ: IBV_EVENT_CQ_ERR."""
        self.fault("cq-overflow", self._cqn if cq is None else cq)

    def completion_error(self, status: str, qp: int | str | None = None) -> None:
        """Complete the next send with ``status``, such as ``"RETRY_EXC_ERR"``."""
        self.fault("completion-error", self._qpn if qp is None else qp, status)

    def lose_path(self, peer: str, duration: Duration | None = None) -> None:
        """Lose packets to and from the peer at this IP address."""
        self.fault("path-loss", peer, duration)

    def slow_dma(self, delay: Duration, duration: Duration | None = None) -> None:
        """Delay the NIC's memory accesses by ``delay``."""
        self.fault("slow-dma", delay, duration)

    def lose_region(self, key: int | str | None = None, duration: Duration | None = None) -> None:
        """Take a memory region (L_Key, R_Key, ``"all"``, or this side's own) away from the NIC."""
        self.fault("region-gone", self._key if key is None else key, duration)

    def lose_interrupts(self, times: int = 1) -> None:
        """Lose the next ``times`` interrupts."""
        self.fault("interrupt-lost", times)

    def delay_interrupts(self, delay: Duration, duration: Duration | None = None) -> None:
        """Delay interrupts by ``delay``."""
        self.fault("interrupt-late", delay, duration)

    def async_event(self, event: str, number: int | str = ALL) -> None:
        """Raise an asynchronous event such as ``"QP_FATAL"`` without a cause."""
        self.fault("async-event", event, number)

    def device_fatal(self, duration: Duration | None = None) -> None:
        """Fail the device, with IBV_EVENT_DEVICE_FATAL, and bring it back after ``duration``; contexts must be
        reopened."""
        self.fault("fatal", duration)

    def heal(self) -> None:
        """End all active faults and cancel scheduled ones."""
        self.fault("heal")


class NicFaults(FaultMethods):
    """Events for a device of this user's running NIC process, which C programs may use meanwhile.

    Args:
        device: its name; empty for the first.
        directory: runtime directory of the NIC process; the user's by default.

    Methods raise ProcessError if no NIC process runs, or it refuses.
    """

    def __init__(self, device: str = "", directory: Path | None = None) -> None:
        self._device = device
        self._directory = directory

    def fault(self, name: str, *values: object) -> None:
        """Inject an event by its name, with its values in the table's order."""
        words = list(values)
        while words and words[-1] is None:
            words.pop()
        fault(self._directory or runtime_directory(), self._device, [name, *words])

    def fail_verb(self, verb: str, action: str = "fail", **rule: object) -> None:
        """Make a verb of the device's programs fail by one rule, until :meth:`heal`.

        Rules for posts and completions apply to programs that open the device later.

        Args:
            verb: a function's name without ``ibv_``.
            action: ``"fail"``, ``"status"``, ``"late"``, ``"limit"``, or an event.
            rule: the rule's other keys (:mod:`rnic.link.verbs_faults`), such as ``nth=2, errno="EAGAIN"``.
        """
        rules = [{"verb": verb, "action": action, **rule}]
        fault(self._directory or runtime_directory(), self._device, [], rules)

    def kill(self) -> None:
        """Kill the NIC process at once, with all its devices."""
        self.fault("kill")

"""Congestion control of the device: ECN marks received, CNPs sent and received, the registers (004 7.3, 7.4).

The receive path reports packets with ECN CE. The queue pair gets a CNP tag, and its next turn sends the CNP ahead of
data. :mod:`rnic.cc` reacts to CNPs from the peer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from rnic.cc.control import CONTROL_DCQCN, CONTROL_FIXED, Control, FixedRate, Flow
from rnic.cc.controlled import Controlled
from rnic.cc.dcqcn import ALPHA_BITS, Dcqcn
from rnic.cc.settings import CongestionSettings
from rnic.device.refusal import Refused
from rnic.spec import commands as cmd
from rnic.spec import congestion_regs as reg
from rnic.spec.events import CONGESTION
from rnic.spec.limits import NEVER
from rnic.spec.registers import IRQ_CNP
from rnic.spec.states import RTS, SQD, ST_RC

if TYPE_CHECKING:
    from rnic.device.commands import Answer
    from rnic.device.host import CongestionHost
    from rnic.device.queue_pair import DeviceQp
    from rnic.device.uar import Uar

_SENDING = frozenset({RTS, SQD})
_WIDE = 8
BURST_WINDOWS = 64
"""Token bucket depth, in windows, of a rate set by software: 65,536 ns, the longest of the core's successor."""
Make = Callable[[Flow, int, memoryview], Control]
_FOUND = (reg.QP_ALPHA, reg.QP_BYTE_CNT, reg.QP_ROUNDS, reg.QP_CC_RATE)
"""Read-only registers with the state of a queue pair's reaction point."""
_MODE_BITS = {"none": 0, "limit": reg.OST_LIMIT, "dcqcn": reg.HW_EN}


class Congestion:
    """Notification point and reaction point of one device, and its congestion registers.

    ``settings`` are the register values, initially a copy of the configuration's. ``setter`` is the program that
    changed them; its changes apply only while no other program uses the device.
    """

    __slots__ = ("_nic", "_start", "settings", "setter")

    def __init__(self, nic: CongestionHost, settings: CongestionSettings) -> None:
        self._nic = nic
        self._start = dataclasses.replace(settings)
        self.settings = dataclasses.replace(settings)
        self.setter: int | None = None

    def publish(self) -> None:
        """Pass the settings to the engine."""
        device = self._nic.engine_device
        if device is not None:
            device.set_congestion(self.settings)

    # ------------------------------------------------------------------------------------- the data path

    def marked(self, qp: DeviceQp, now_ns: int) -> None:
        """Tag an RC queue pair for a CNP after a good packet with ECN CE, once per merge period."""
        counters = self._nic.counters
        counters.bump("ecn_marked_packets")
        if now_ns < qp.cnp_merge_ns:
            counters.bump("cnps_merged")
            return
        qp.cnp_merge_ns = now_ns + self.settings.merge_ns
        qp.cnp_tag = 1
        self._nic.schedule(qp)

    def notified(self, qp: DeviceQp, now_ns: int) -> None:
        """Handle a CNP for ``qp``: raise the interrupt, and an event if the CNP lowers its rate limit."""
        nic = self._nic
        nic.counters.bump("cnps_received")
        nic.globals.raise_cause(IRQ_CNP)
        if qp.ctx.state not in _SENDING:
            return
        controlled, first = qp.controlled, qp.controlled is None
        if controlled is None:
            if not self.settings.kind.waits_for_cnp:
                return
            controlled = self._control(qp)
        elif controlled.control.number == CONTROL_FIXED:
            return  # software set its rate
        lowered = controlled.notified(now_ns)
        if qp.paced:
            nic.counters.bump("cnp_rate_cuts")
        if lowered:
            nic.counters.bump("cnp_limits")
        if lowered or (first and qp.paced):
            nic.event(CONGESTION, qp.ctx.local_qpn)
        qp.rearm()

    def begin(self, qp: DeviceQp) -> None:
        """Start congestion control of a queue pair that may send now."""
        controlled = qp.controlled
        if controlled is not None and controlled.control.number in (CONTROL_DCQCN, CONTROL_FIXED):
            return  # it keeps its rate from before RESET
        self._drop(qp)
        kind = self.settings.kind
        if kind is not Control and not kind.waits_for_cnp and qp.ctx.servtype == ST_RC:
            self._control(qp)

    def control(self, words: memoryview, number: int, packet_bytes: int, make: Make | None = None) -> Controlled:
        """Attach the configured congestion control to a queue pair, or the one that ``make`` creates.

        Args:
            words: the words of its record.
            number: queue pair number.
            packet_bytes: bytes of its largest packet.
            make: function that creates a control, or ``None``.
        """
        settings, nic = self.settings, self._nic
        every = nic.config.ack_every
        return Controlled(words, number, packet_bytes, settings.line_rate, every, make or settings.make, nic.now_ns)

    def _control(self, qp: DeviceQp, make: Make | None = None) -> Controlled:
        qp.controlled = made = self.control(qp.words, qp.ctx.local_qpn, qp.largest_packet, make)
        return made

    @staticmethod
    def _drop(qp: DeviceQp) -> None:
        if qp.controlled is not None:
            qp.controlled.stop()
            qp.controlled = None

    # --------------------------------------------------------------------------------------- registers

    def read(self, offset: int) -> int:
        """Return the value of a register; 0 for a missing register or queue pair."""
        settings = self.settings
        if offset == reg.CNP_TIMER_THRD:
            return settings.timer_windows
        if offset == reg.CONGESTION_CTRL:
            limit = _MODE_BITS.get(settings.mode, 0)
            return settings.merge_windows | limit | (reg.LIMITER if settings.limiter else 0)
        if offset == reg.DCQCN_CTRL:
            return self._read_dcqcn()
        if offset == reg.ALPHA_TIMER:
            return _windows(settings.dcqcn.alpha_ns)
        base, qp = self.queue_pair(offset)
        if qp is None:
            return 0
        if base in _FOUND:
            return self._read_found(base, qp)
        if base == reg.QP_CTRL:
            runs = reg.TIMER_RUNS if qp.requester.control_ns != NEVER else 0
            return runs | (reg.SQ_ARB_MASK if qp.masked else 0)
        if base == reg.QP_RATE:
            return qp.rate
        left = qp.cnp_merge_ns - self._nic.now_ns
        return min(reg.TIME_MASK, -(-left // reg.WINDOW_NS)) if left > 0 else 0

    def _read_dcqcn(self) -> int:
        dcqcn = self.settings.dcqcn
        points = [point for qp in self._nic.qps.values() if (point := _dcqcn(qp)) is not None]
        busy = reg.TIMER_BUSY if any(not point.recovered for point in points) else 0
        counter = min(reg.BYTE_CNT_MASK, max(1, dcqcn.counter_bytes // reg.BYTE_CNT_UNIT))
        rate = min(reg.MAX_RATE_MASK, dcqcn.line_rate)
        return _windows(dcqcn.timer_ns) | rate << reg.MAX_RATE_SHIFT | counter << reg.BYTE_CNT_SHIFT | busy

    def _read_found(self, base: int, qp: DeviceQp) -> int:
        """Read the state of a queue pair's reaction point, as of its last transmission; 0 without one."""
        point = _dcqcn(qp)
        if point is None:
            return 0
        if base == reg.QP_ALPHA:
            return min((1 << reg.ALPHA_REGISTER_BITS) - 1, point.dcqcn_alpha >> ALPHA_BITS - reg.ALPHA_REGISTER_BITS)
        if base == reg.QP_BYTE_CNT:
            return min(reg.BYTE_CNT_MASK, point.dcqcn_counted // reg.BYTE_CNT_UNIT)
        if base == reg.QP_ROUNDS:
            rounds = point.dcqcn_timer_rounds, point.dcqcn_counter_rounds
            timer, counter = (min(reg.ROUNDS_MASK, each) for each in rounds)
            return timer | counter << reg.ROUNDS_SHIFT
        return 0 if point.recovered else point.window_bytes

    def write(self, offset: int, value: int) -> None:
        """Store a value; stores to read-only or missing registers are ignored."""
        settings = self.settings
        if offset == reg.CNP_TIMER_THRD:
            settings.timer_windows = value & reg.TIME_MASK
        elif offset == reg.DCQCN_CTRL:
            line_rate = max(1, value >> reg.MAX_RATE_SHIFT & reg.MAX_RATE_MASK)
            self._set_dcqcn(
                timer_ns=max(1, value & reg.TIME_MASK) * reg.WINDOW_NS,
                line_rate=line_rate,
                least_rate=min(line_rate, settings.dcqcn.least_rate),
                counter_bytes=max(1, value >> reg.BYTE_CNT_SHIFT & reg.BYTE_CNT_MASK) * reg.BYTE_CNT_UNIT,
            )
        elif offset == reg.ALPHA_TIMER:
            self._set_dcqcn(alpha_ns=max(1, value & reg.TIME_MASK) * reg.WINDOW_NS)
        elif offset == reg.CONGESTION_CTRL:
            settings.merge_windows = value & reg.TIME_MASK
            others = settings.mode if settings.mode not in _MODE_BITS else "none"
            settings.mode = "limit" if value & reg.OST_LIMIT else "dcqcn" if value & reg.HW_EN else others
            settings.limiter = bool(value & reg.LIMITER)
            for each in self._nic.qps.values():
                self.apply_rate(each)
        else:
            base, qp = self.queue_pair(offset)
            if qp is not None and base == reg.QP_CTRL:
                qp.masked = bool(value & reg.SQ_ARB_MASK)
                self._nic.schedule(qp)
            elif qp is not None and base == reg.QP_RATE:
                qp.rate = value & reg.RATE_MASK
                self.apply_rate(qp)
        self.publish()

    def _set_dcqcn(self, **values: int) -> None:
        """Change settings and restart all reaction points."""
        self.settings.dcqcn = dataclasses.replace(self.settings.dcqcn, **values)
        for each in self._nic.qps.values():
            if _dcqcn(each) is not None:
                self.apply_rate(each)

    def add_uar(self, uar: Uar) -> None:
        """Restore settings changed by another program, since a context was opened."""
        if self.setter is not None and self.setter != uar.program:
            self._restore()

    def remove_uar(self, uar: Uar) -> None:
        """Restore settings changed by a program once its last context is closed."""
        if self.setter == uar.program and all(other.program != uar.program for other in self._nic.resources.uars):
            self._restore()

    def _restore(self) -> None:
        self.setter = None
        self.settings = dataclasses.replace(self._start)
        for each in self._nic.qps.values():
            self.apply_rate(each)
        self.publish()

    def apply_rate(self, qp: DeviceQp) -> None:
        """Pace ``qp`` by its rate register, or restart its congestion control."""
        self._drop(qp)
        rate = qp.rate
        if self.settings.limiter and rate:
            burst = max(qp.largest_packet, rate * BURST_WINDOWS)

            def fixed(flow: Flow, now_ns: int, words: memoryview) -> Control:
                return FixedRate(flow, now_ns, rate=rate * (8e9 / reg.WINDOW_NS), burst_bytes=burst)

            self._control(qp, fixed)
        elif qp.ctx.state in _SENDING:
            self.begin(qp)
        self._nic.schedule(qp)

    def queue_pair(self, offset: int) -> tuple[int, DeviceQp | None]:
        """Return the offset of the same register for queue pair 1, and the queue pair, or ``None`` without one."""
        for base in (reg.QP_CTRL, reg.QP_CNP_MERGE, reg.QP_RATE, *_FOUND):
            index, rest = divmod(offset - base, reg.QP_STRIDE)
            if not rest and 0 <= index < reg.QP_REGISTERS:
                return base, self._nic.qps.get(index + 1)
        return offset, None


def _dcqcn(qp: DeviceQp) -> Dcqcn | None:
    control = None if qp.controlled is None else qp.controlled.control
    return control if isinstance(control, Dcqcn) else None


def _windows(time_ns: int) -> int:
    """Convert a time to register units."""
    return min(reg.TIME_MASK, max(1, round(time_ns / reg.WINDOW_NS)))


def read_cfg(nic: CongestionHost, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
    """Return a 64-bit congestion register in the output parameter. Registers of other programs' queue pairs read 0."""
    _, qp = nic.congestion.queue_pair(in_modifier)
    return 0 if qp is not None and qp.uar is not uar else nic.congestion.read(in_modifier), b""


def write_cfg(nic: CongestionHost, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
    """Set a congestion register of the caller's own queue pair, or of the device if no other program has a context
    open."""
    if len(inbox) != _WIDE:
        raise Refused(cmd.ST_BAD_SIZE)
    if in_modifier < reg.QP_CTRL:
        if any(other.program != uar.program for other in nic.resources.uars):
            raise Refused(cmd.ST_RESOURCE_BUSY)
        nic.congestion.setter = uar.program
    else:
        _, qp = nic.congestion.queue_pair(in_modifier)
        if qp is None or qp.uar is not uar:
            raise Refused(cmd.ST_BAD_INDEX)
    nic.congestion.write(in_modifier, int.from_bytes(inbox, "big"))
    return 0, b""

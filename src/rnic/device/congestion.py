"""Congestion at the device: marks that arrive, notifications that leave and arrive, the registers (004 7.3, 7.4).

The receive unit tells of packets with ECN 11; the queue pair gets a CNP tag, and with its next turn the CNP is
built ahead of its data. What a notification from the peer does is :mod:`rnic.cc`'s business.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from rnic.cc.dcqcn import ALPHA_BITS, DcqcnPace
from rnic.cc.limit import notified
from rnic.cc.pacing import Pace
from rnic.cc.settings import CongestionSettings
from rnic.device.refusal import Refused
from rnic.spec import commands as cmd
from rnic.spec import congestion_regs as reg
from rnic.spec.events import CONGESTION
from rnic.spec.limits import NEVER
from rnic.spec.registers import IRQ_CNP
from rnic.spec.states import RTS, SQD

if TYPE_CHECKING:
    from rnic.device.commands import Answer
    from rnic.device.host import CongestionHost
    from rnic.device.queue_pair import DeviceQp
    from rnic.device.uar import Uar

_SENDING = frozenset({RTS, SQD})
_WIDE = 8
_FOUND = (reg.QP_ALPHA, reg.QP_BYTE_CNT, reg.QP_ROUNDS, reg.QP_CC_RATE)
"""Registers of what a queue pair's reaction point found."""
_MODE_BITS = {"none": 0, "limit": reg.OST_LIMIT, "dcqcn": reg.HW_EN}


class Congestion:
    """Notification point and reaction point of one device, and its congestion registers.

    ``settings`` is what the registers hold; the device starts with a copy of its configuration's. ``setter`` is the
    program that changed them: what it chose holds for it alone.
    """

    __slots__ = ("_nic", "_start", "settings", "setter")

    def __init__(self, nic: CongestionHost, settings: CongestionSettings) -> None:
        self._nic = nic
        self._start = dataclasses.replace(settings)
        self.settings = dataclasses.replace(settings)
        self.setter: int | None = None

    # ------------------------------------------------------------------------------------- the data path

    def marked(self, qp: DeviceQp, now_ns: int) -> None:
        """A good packet of an RC queue pair arrived with ECN 11: tag it for a CNP, one a merge period."""
        counters = self._nic.counters
        counters.bump("ecn_marked_packets")
        if now_ns < qp.cnp_merge_ns:
            counters.bump("cnps_merged")
            return
        qp.cnp_merge_ns = now_ns + self.settings.merge_ns
        qp.cnp_tag = 1
        self._nic.schedule(qp)

    def notified(self, qp: DeviceQp, now_ns: int) -> None:
        """A CNP arrived for ``qp``: interrupt; where its limit is lowered thereby, an event says so."""
        nic = self._nic
        nic.counters.bump("cnps_received")
        nic.globals.raise_cause(IRQ_CNP)
        if qp.ctx.state not in _SENDING:
            return
        if self.settings.mode == "dcqcn":
            self._slow_down(qp, now_ns)
        elif notified(qp.requester, self.settings, now_ns):
            nic.counters.bump("cnp_limits")
            nic.event(CONGESTION, qp.ctx.local_qpn)
            qp.rearm()

    def _slow_down(self, qp: DeviceQp, now_ns: int) -> None:
        """DCQCN: the first notification gives the queue pair a reaction point, each lowers its rate."""
        pace = qp.pace
        if not isinstance(pace, DcqcnPace):
            if pace is not None:
                return  # software has set its rate
            pace = qp.pace = DcqcnPace(self.settings.dcqcn, now_ns, qp.largest_packet)
            self._nic.event(CONGESTION, qp.ctx.local_qpn)
        pace.notified(now_ns)
        self._nic.counters.bump("cnp_rate_cuts")

    # --------------------------------------------------------------------------------------- registers

    def read(self, offset: int) -> int:
        """A load: 0 where there is no register, or no such queue pair."""
        settings = self.settings
        if offset == reg.CNP_TIMER_THRD:
            return settings.timer_windows
        if offset == reg.CONGESTION_CTRL:
            limit = _MODE_BITS[settings.mode]
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
            runs = reg.TIMER_RUNS if qp.requester.relief_ns != NEVER else 0
            return runs | (reg.SQ_ARB_MASK if qp.masked else 0)
        if base == reg.QP_RATE:
            return qp.rate
        left = qp.cnp_merge_ns - self._nic.now_ns
        return min(reg.TIME_MASK, -(-left // reg.WINDOW_NS)) if left > 0 else 0

    def _read_dcqcn(self) -> int:
        dcqcn = self.settings.dcqcn
        points = [qp.pace.point for qp in self._nic.qps.values() if isinstance(qp.pace, DcqcnPace)]
        busy = reg.TIMER_BUSY if any(not point.recovered for point in points) else 0
        counter = min(reg.BYTE_CNT_MASK, max(1, dcqcn.counter_bytes // reg.BYTE_CNT_UNIT))
        rate = min(reg.MAX_RATE_MASK, dcqcn.line_rate)
        return _windows(dcqcn.timer_ns) | rate << reg.MAX_RATE_SHIFT | counter << reg.BYTE_CNT_SHIFT | busy

    def _read_found(self, base: int, qp: DeviceQp) -> int:
        """What a queue pair's reaction point knows, as of when it last sent; 0 where it has none."""
        if not isinstance(qp.pace, DcqcnPace):
            return 0
        point = qp.pace.point
        if base == reg.QP_ALPHA:
            return min((1 << reg.ALPHA_REGISTER_BITS) - 1, point.alpha >> ALPHA_BITS - reg.ALPHA_REGISTER_BITS)
        if base == reg.QP_BYTE_CNT:
            return min(reg.BYTE_CNT_MASK, point.counted // reg.BYTE_CNT_UNIT)
        if base == reg.QP_ROUNDS:
            timer, counter = (min(reg.ROUNDS_MASK, rounds) for rounds in point.rounds)
            return timer | counter << reg.ROUNDS_SHIFT
        return 0 if point.recovered else point.window_bytes

    def write(self, offset: int, value: int) -> None:
        """A store; what is no register, or read-only, does not change."""
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
            settings.mode = "limit" if value & reg.OST_LIMIT else "dcqcn" if value & reg.HW_EN else "none"
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

    def _set_dcqcn(self, **values: int) -> None:
        """From now on these hold; rates that were found begin anew."""
        self.settings.dcqcn = dataclasses.replace(self.settings.dcqcn, **values)
        for each in self._nic.qps.values():
            if isinstance(each.pace, DcqcnPace):
                self.apply_rate(each)

    def add_uar(self, uar: Uar) -> None:
        """A context was opened: what another program set ends."""
        if self.setter is not None and self.setter != uar.program:
            self._restore()

    def remove_uar(self, uar: Uar) -> None:
        """A context was closed: what a program that is gone had set ends."""
        if self.setter == uar.program and all(other.program != uar.program for other in self._nic.resources.uars):
            self._restore()

    def _restore(self) -> None:
        self.setter = None
        self.settings = dataclasses.replace(self._start)
        for each in self._nic.qps.values():
            self.apply_rate(each)

    def apply_rate(self, qp: DeviceQp) -> None:
        """Pace ``qp`` by its rate register, or let it go."""
        paced = self.settings.limiter and qp.rate
        qp.pace = Pace(qp.rate, self._nic.now_ns, qp.largest_packet) if paced else None
        self._nic.schedule(qp)

    def queue_pair(self, offset: int) -> tuple[int, DeviceQp | None]:
        """Which register of queue pair 1 ``offset`` stands for, and whose it is; ``None`` if nobody's."""
        for base in (reg.QP_CTRL, reg.QP_CNP_MERGE, reg.QP_RATE, *_FOUND):
            index, rest = divmod(offset - base, reg.QP_STRIDE)
            if not rest and 0 <= index < reg.QP_REGISTERS:
                return base, self._nic.qps.get(index + 1)
        return offset, None


def _windows(time_ns: int) -> int:
    """A time as its register shows it."""
    return min(reg.TIME_MASK, max(1, round(time_ns / reg.WINDOW_NS)))


def read_cfg(nic: CongestionHost, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
    """A congestion register, 64 bits: the output parameter. Those of other programs' queue pairs read 0."""
    _, qp = nic.congestion.queue_pair(in_modifier)
    return 0 if qp is not None and qp.uar is not uar else nic.congestion.read(in_modifier), b""


def write_cfg(nic: CongestionHost, uar: Uar, in_modifier: int, op_modifier: int, inbox: bytes) -> Answer:
    """Set a congestion register: of an own queue pair, or the device's while no other program has a context open."""
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

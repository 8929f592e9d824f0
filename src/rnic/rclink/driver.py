"""Register sequences of a host: set-up of a QP, and recovery of a stopped one (``hardware.md`` §4).

They access an endpoint only through its registers, so they would run on hardware with these registers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from rnic.rclink import registers as r
from rnic.rclink.numbers import MAX_LENGTH_THR, psn_add

BUSY_WAIT_NS = 1_000
"""Wait between setting the QP's rate to 0 and reading whether buffers are being freed."""


class Registers(Protocol):
    """Owner of the registers: an endpoint."""

    def read(self, offset: int) -> int:
        """Load a register."""

    def write(self, offset: int, value: int) -> None:
        """Store into a register."""


@dataclass(frozen=True, slots=True)
class Path:
    """Address of a QP's peer, and values that both ends must agree on."""

    address: bytes
    """4 or 16 bytes."""
    qpid: int
    """QP number of the peer."""
    port: int = 0
    """UDP port of the peer; 0 for 4793."""
    psn: int = 0
    """PSN of the first packet sent."""
    remote_psn: int = 0
    """PSN of the first packet expected."""
    pkey: int = 0xFF
    """Partition key of both directions."""
    sport: int = 0
    """Preferred UDP source port."""
    speed: int = MAX_LENGTH_THR
    """``length_thr``: bytes per rate window."""


def set_up(registers: Registers, qpid: int, path: Path) -> None:
    """Connect a disabled QP to ``path``, in the order of the steps of §4.

    Raises:
        RcLinkError: the QP is enabled, or a value is invalid.
    """
    ipv6 = int.from_bytes(path.address, "big") if len(path.address) == 16 else 0
    ipv4 = int.from_bytes(path.address, "big") if len(path.address) == 4 else 0
    steps: tuple[tuple[int, dict[str, int]], ...] = (
        (r.QP_ID_SET, {"qp_id_set": qpid}),
        (r.TX_EPSN, {"tx_psn": path.psn}),
        (r.EXPECT_RESP, {"expect_resp_psn": path.psn}),
        (r.TX_LAST_PSN, {"tx_last_psn": psn_add(path.psn, -1)}),
        (r.TX_MAX_FW, {"max_forward_psn": psn_add(path.psn, -1)}),
        (r.REQ_CHK, {"rx_req_epsn": path.remote_psn}),
        (r.TX_ACK_SN, {"tx_epsn": path.remote_psn}),
        (r.TX_SPEED, {"tx_speed_cfg": path.speed}),
        (r.DEST_IP, {"dest_ip_addr": ipv4, "dest_qpid": path.qpid}),
        (r.DEST_IP6_HI, {"high": ipv6 >> 64}),
        (r.DEST_IP6_LO, {"low": ipv6 & (1 << 64) - 1}),
        (r.UDP_SRC_PORT, {"udp_src_port": path.sport, "qp_p_key": path.pkey, "udp_dest_port": path.port}),
        (r.RX_PKEY, {"qp_p_key": path.pkey}),
        (r.RETRY_CNT, {}),
        (r.QP_CONTROL, {"qp_en": 1}),
    )
    for offset, fields in steps:
        registers.write(offset, r.AT[offset].pack(**fields))


def disable(registers: Registers, qpid: int) -> None:
    """Set ``qp_en`` to 0."""
    registers.write(r.QP_ID_SET, qpid)
    registers.write(r.QP_CONTROL, 0)


def expect(registers: Registers, qpid: int, psn: int) -> None:
    """Expect ``psn`` from a peer that restarts there after a recovery. The sending side is not changed.

    A stopped or disabled QP stays so; its own recovery or set-up enables it.
    """
    registers.write(r.QP_ID_SET, qpid)
    control = r.AT[r.QP_CONTROL]
    before = registers.read(r.QP_CONTROL)
    registers.write(r.QP_CONTROL, 0)
    registers.write(r.REQ_CHK, psn)
    registers.write(r.TX_ACK_SN, psn)
    if control.get(before, "qp_en") and not control.get(before, "stopped"):
        registers.write(r.QP_CONTROL, control.pack(qp_en=1))


class Step(Enum):
    """Step of a recovery."""

    DISABLE = "qp_en = 0"
    STOP = "tx_speed_cfg = 0"
    WAIT = "1 us, and until type1_free_busy is 0"
    FREE = "free_buf_set = 1"
    DRAIN = "until free_buf_set is 0"
    READ = "tx_psn"
    SET_UP = "set-up from tx_psn + 1"
    DONE = "the QP runs"


class Recovery:
    """Non-blocking recovery procedure of one QP, a few register writes at a time.

    Call :meth:`advance` until :attr:`done`. With ``path`` the QP is set up again, with a PSN one past the next one it
    would have used; the peer must :func:`expect` that ``psn``, which it learns in the same way as at the first set-up.
    Receiving continues where it was. Without ``path`` the procedure ends at ``SET_UP``, and the QP stays disabled.

    Args:
        registers: the endpoint.
        qpid: the QP.
        path: as for :func:`set_up`; its PSNs are ignored.
    """

    def __init__(self, registers: Registers, qpid: int, path: Path | None = None) -> None:
        self.step = Step.DISABLE
        self.psn = 0
        """First PSN after recovery, known from step ``SET_UP`` on."""
        self._registers = registers
        self._qpid = qpid
        self._path = path
        self._wait_until_ns = 0
        self._steps: dict[Step, Callable[[int], Step]] = {
            Step.DISABLE: self._disable,
            Step.STOP: self._stop,
            Step.WAIT: self._wait,
            Step.FREE: self._free,
            Step.DRAIN: self._drain,
            Step.READ: self._read,
            Step.SET_UP: self._set_up,
        }

    @property
    def done(self) -> bool:
        """True once the QP runs again or, without a path, waits for its set-up."""
        return self.step is Step.DONE or (self.step is Step.SET_UP and self._path is None)

    def advance(self, now_ns: int) -> int | None:
        """Run all steps that are possible now.

        Returns:
            Time of the next call in nanoseconds; ``None`` once done.
        """
        while not self.done:
            # another host program may have selected another QP meanwhile
            self._registers.write(r.QP_ID_SET, self._qpid)
            before = self.step
            self.step = self._steps[before](now_ns)
            if self.step is before:
                return max(self._wait_until_ns, now_ns + BUSY_WAIT_NS) if before is Step.DRAIN else self._wait_until_ns
        return None

    def _disable(self, now_ns: int) -> Step:
        self._registers.write(r.QP_CONTROL, 0)
        return Step.STOP

    def _stop(self, now_ns: int) -> Step:
        self._registers.write(r.TX_SPEED, 0)
        self._wait_until_ns = now_ns + BUSY_WAIT_NS
        return Step.WAIT

    def _wait(self, now_ns: int) -> Step:
        if now_ns < self._wait_until_ns:
            return Step.WAIT
        register = r.AT[r.XON_THR_RDMA]
        if register.get(self._registers.read(r.XON_THR_RDMA), "type1_free_busy"):
            self._wait_until_ns = now_ns + BUSY_WAIT_NS
            return Step.WAIT
        return Step.FREE

    def _free(self, now_ns: int) -> Step:
        self._registers.write(r.QP_CONTROL, r.AT[r.QP_CONTROL].pack(free_buf_set=1))
        return Step.DRAIN

    def _drain(self, now_ns: int) -> Step:
        register = r.AT[r.QP_CONTROL]
        return Step.DRAIN if register.get(self._registers.read(r.QP_CONTROL), "free_buf_set") else Step.READ

    def _read(self, now_ns: int) -> Step:
        self.psn = psn_add(r.AT[r.TX_EPSN].get(self._registers.read(r.TX_EPSN), "tx_psn"), 1)
        return Step.SET_UP

    def _set_up(self, now_ns: int) -> Step:
        path = self._path
        assert path is not None
        remote_psn = r.AT[r.REQ_CHK].get(self._registers.read(r.REQ_CHK), "rx_req_epsn")
        set_up(self._registers, self._qpid, replace(path, psn=self.psn, remote_psn=remote_psn))
        return Step.DONE

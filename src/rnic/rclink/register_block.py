"""Reads and writes of an endpoint's registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rnic.rclink import registers as r
from rnic.rclink.numbers import CC_WINDOW_NS, REFUSED, RETRY_UNIT_NS, RcLinkError
from rnic.rclink.qp import QueuePair
from rnic.spec.registers import WideRegister

if TYPE_CHECKING:
    from rnic.rclink.endpoint import RcLinkEndpoint

_PSN_SLOTS = {
    r.EXPECT_RESP: "expect_resp",
    r.TX_LAST_PSN: "last_psn",
    r.TX_ACK_SN: "ack_sn",
    r.TX_EPSN: "tx_epsn",
    r.REQ_CHK: "rx_epsn",
    r.TX_MAX_FW: "max_fw_psn",
}
"""QP attribute of each PSN register."""
_WORDS = {r.DEST_MAC: "dest_mac", r.RX_PKEY: "rx_pkey"}
_WORD = (1 << 64) - 1
_STATUS_BITS = {1: r.INTR_OVERSIZE, 2: r.INTR_RETRY_OUT, 3: r.INTR_OVER_CREDIT, 4: r.INTR_TX_DISABLED,
                5: r.INTR_RX_DISABLED}  # fmt: skip
"""Bit of INTR_STATUS that each interrupt message sets."""


class RegisterBlock:
    """The registers of one endpoint."""

    def __init__(self, endpoint: RcLinkEndpoint) -> None:
        self._endpoint = endpoint
        self._qpid = 0
        self._intr_status = 0
        self._pending: dict[tuple[int, int], None] = {}
        """Pending interrupt messages, (code, QP), each at most once."""
        self._stores: dict[int, Callable[[int], None]] = {
            r.RETRY_TIMER_CFG: self._store_retry,
            r.INTR_STATUS: self._store_intr_status,
            r.CC_WINDOW: self._store_window,
            r.ACK_MERGE: self._store_ack_merge,
            r.CNP_MERGE: self._store_cnp_merge,
            r.TX_CFG: self._store_tx_cfg,
            r.QP_ID_SET: self._store_qp_id,
        }

    # ------------------------------------------------------------------------------------------- interrupts

    @property
    def line(self) -> bool:
        """Interrupt line: true if a bit of INTR_STATUS is set."""
        return self._intr_status != 0

    def interrupt(self, code: int, qpid: int) -> None:
        """Raise an interrupt, unless the same one is still pending."""
        self._intr_status |= _STATUS_BITS[code]
        self._pending[code, qpid] = None

    def next_interrupt(self) -> tuple[int, int] | None:
        """Return the oldest pending interrupt message: its code and QP."""
        if not self._pending:
            return None
        first = next(iter(self._pending))
        del self._pending[first]
        return first

    # ------------------------------------------------------------------------------------------------ reads

    def read(self, offset: int) -> int:
        """Return the value of the register at ``offset``; 0 if there is none."""
        register = r.AT.get(offset)
        if register is None:
            return 0
        if offset >= r.QP_BLOCK and offset != r.QP_ID_SET:
            return self._read_qp(offset, self._endpoint.qps[self._qpid])
        return self._read_global(register)

    def _read_global(self, register: WideRegister) -> int:
        endpoint, config = self._endpoint, self._endpoint.config
        offset = register.offset
        if offset == r.XON_THR_RDMA:
            return register.pack(type1_free_busy=endpoint.sender.freeing)
        if offset == r.RETRY_TIMER_CFG:
            return register.pack(
                retry_timer=config.retry_timer_ns // RETRY_UNIT_NS,
                retry_limit=config.retry_limit,
                rnr_limit=config.rnr_limit,
            )
        if offset == r.INTR_STATUS:
            return self._intr_status
        if offset == r.CC_WINDOW:
            return config.cc_window
        if offset == r.ACK_MERGE:
            return config.ack_merge_ns
        if offset == r.CNP_MERGE:
            return register.pack(timer_thr=config.cnp_timer_ns, enable=config.cnp_merge)
        if offset == r.TX_CFG:
            return register.pack(
                bank_rr=config.bank_rr,
                ack_time=config.ack_time,
                cnp_halves=config.cnp_halves,
                icrc=config.icrc,
                tclass=config.tclass,
            )
        if offset == r.PORT:
            return register.pack(type1=config.port, type2=config.type2_port)
        if offset == r.OST_FREE:
            return endpoint.sender.free
        if offset == r.IRQ_INFO:
            taken = self.next_interrupt()
            return 0 if taken is None else register.pack(code=taken[0], qpid=taken[1], type=1)
        assert offset == r.QP_ID_SET, register.name
        return self._qpid

    def _read_qp(self, offset: int, qp: QueuePair) -> int:
        register = r.AT[offset]
        if offset in _PSN_SLOTS:
            return int(getattr(qp, _PSN_SLOTS[offset]))
        if offset in _WORDS:
            return int(getattr(qp, _WORDS[offset]))
        if offset == r.DEST_IP:
            return register.pack(dest_ip_addr=qp.dest_ip, dest_qpid=qp.dest_qp)
        if offset == r.DEST_IP6_HI:
            return qp.dest_ip6 >> 64
        if offset == r.DEST_IP6_LO:
            return qp.dest_ip6 & _WORD
        if offset == r.UDP_SRC_PORT:
            return register.pack(udp_src_port=qp.udp_sport, qp_p_key=qp.tx_pkey, udp_dest_port=qp.udp_dport)
        if offset == r.QP_CONTROL:
            return register.pack(qp_en=qp.enabled, stopped=qp.stopped, free_buf_set=qp.freeing)
        if offset == r.TX_SPEED:
            return qp.rate.length_thr
        if offset == r.ACC_CNT:
            return qp.rate.acc_cnt
        assert offset == r.RETRY_CNT, register.name
        return register.pack(retry_counter=qp.retry_count, rnr_retry_counter=qp.rnr_count)

    # ----------------------------------------------------------------------------------------------- writes

    def write(self, offset: int, value: int) -> None:
        """Write the register at ``offset``; bits outside writable fields are ignored.

        Raises:
            RcLinkError: a register of an unsupported feature, an invalid value, or a register that cannot be written in
                the QP's state.
        """
        for first, last, what in r.REFUSED_AT:
            if first <= offset <= last:
                raise RcLinkError(f"register {offset:#06x}={value:#x}: {REFUSED[what]}")
        register = r.AT.get(offset)
        if register is None or all(field.access == "RO" for field in register.fields):
            return
        if offset in self._stores:
            self._stores[offset](value)
        else:
            self._write_qp(register, value, self._endpoint.qps[self._qpid])

    def _store_retry(self, value: int) -> None:
        register, config = r.AT[r.RETRY_TIMER_CFG], self._endpoint.config
        timer = register.get(value, "retry_timer")
        rnr_limit = register.get(value, "rnr_limit")
        if not timer or rnr_limit > 7:
            raise RcLinkError(f"RETRY_TIMER_CFG={value:#x}: retry_timer is 1 to 8191 and rnr_limit 0 to 7")
        config.retry_timer_ns = timer * RETRY_UNIT_NS
        config.retry_limit = register.get(value, "retry_limit")
        config.rnr_limit = rnr_limit

    def _store_intr_status(self, value: int) -> None:
        self._intr_status &= ~value

    def _store_window(self, value: int) -> None:
        if value >= len(CC_WINDOW_NS):
            raise RcLinkError(f"CC_WINDOW={value:#x}: use 0 to {len(CC_WINDOW_NS) - 1}")
        self._endpoint.set_window(value)

    def _store_ack_merge(self, value: int) -> None:
        self._endpoint.config.ack_merge_ns = r.AT[r.ACK_MERGE].get(value, "time")

    def _store_cnp_merge(self, value: int) -> None:
        register = r.AT[r.CNP_MERGE]
        self._endpoint.set_cnp_merge(register.get(value, "timer_thr"), bool(register.get(value, "enable")))

    def _store_tx_cfg(self, value: int) -> None:
        register, config = r.AT[r.TX_CFG], self._endpoint.config
        for name in ("bank_rr", "ack_time", "cnp_halves"):
            setattr(config, name, bool(register.get(value, name)))
        config.tclass = register.get(value, "tclass")

    def _store_qp_id(self, value: int) -> None:
        if not 0 <= value < len(self._endpoint.qps):
            raise RcLinkError(f"QP_ID_SET={value}: this endpoint has QPs 0 to {len(self._endpoint.qps) - 1}")
        self._qpid = value

    def _write_qp(self, register: WideRegister, value: int, qp: QueuePair) -> None:
        offset = register.offset
        if offset in r.FIXED_WHILE_ENABLED and qp.enabled:
            raise RcLinkError(f"{register.name} of QP {qp.qpid}: disable the QP first")
        if offset in r.FIXED_WHILE_HELD and (qp.enabled or qp.slots):
            raise RcLinkError(f"{register.name} of QP {qp.qpid}: disable the QP and free its slots first")
        if offset in _PSN_SLOTS:
            setattr(qp, _PSN_SLOTS[offset], value & 0xFFF)
        elif offset in _WORDS:
            setattr(qp, _WORDS[offset], value & register.fields[0].mask)
        elif offset == r.DEST_IP:
            qp.dest_ip, qp.dest_qp = register.get(value, "dest_ip_addr"), register.get(value, "dest_qpid")
        elif offset == r.DEST_IP6_HI:
            qp.dest_ip6 = value << 64 | qp.dest_ip6 & _WORD
        elif offset == r.DEST_IP6_LO:
            qp.dest_ip6 = qp.dest_ip6 >> 64 << 64 | value
        elif offset == r.UDP_SRC_PORT:
            qp.udp_sport = register.get(value, "udp_src_port")
            qp.udp_dport = register.get(value, "udp_dest_port")
            qp.tx_pkey = register.get(value, "qp_p_key")
        elif offset == r.TX_SPEED:
            self._endpoint.set_rate(qp, register.get(value, "tx_speed_cfg"))
        elif offset == r.RETRY_CNT:
            qp.retry_count = register.get(value, "retry_counter")
            qp.rnr_count = register.get(value, "rnr_retry_counter")
        else:
            assert offset == r.QP_CONTROL, register.name
            self._endpoint.control(qp, bool(register.get(value, "qp_en")), bool(register.get(value, "free_buf_set")))

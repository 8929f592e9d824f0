"""A queue pair's state, by the names of its registers, and a send WQE."""

from __future__ import annotations

from collections import deque

from rnic.rclink.numbers import psn_add
from rnic.rclink.rate import RateWindow
from rnic.rclink.slots import SlotInput, SlotState, next_state
from rnic.wire.flow import Flow


class Slot:
    """A packet to send. ``serial`` is its position in the order of all QPs."""

    __slots__ = ("fack", "payload", "psn", "qpid", "serial", "state", "tag")

    def __init__(self, serial: int, qpid: int, psn: int, payload: bytes, fack: bool, tag: object) -> None:
        self.state = SlotState.EMPTY
        self.serial = serial
        self.qpid = qpid
        self.psn = psn
        self.payload = payload
        self.fack = fack
        self.tag = tag

    def happen(self, what: SlotInput) -> None:
        """Apply a transition of the table."""
        self.state = next_state(self.state, what)


class QueuePair:
    """State of one QP: first the fields of the sender, then of the receiver, then of the driver."""

    __slots__ = (
        "ack_sn",
        "dest_ip",
        "dest_ip6",
        "dest_mac",
        "dest_qp",
        "echo",
        "enabled",
        "expect_resp",
        "flow",
        "freeing",
        "last_psn",
        "max_fw_psn",
        "nak_sent",
        "qpid",
        "rate",
        "retry_count",
        "rnr_count",
        "rnr_wait",
        "rtt_ns",
        "rx_epsn",
        "rx_pkey",
        "stopped",
        "tx_epsn",
        "tx_pkey",
        "udp_dport",
        "udp_sport",
        "unacked",
        "waiting",
    )

    def __init__(self, qpid: int, window_ns: int) -> None:
        self.qpid = qpid

        self.tx_epsn = 0
        """PSN of the next packet written into a slot."""
        self.expect_resp = 0
        """The oldest PSN that is not acknowledged."""
        self.last_psn = psn_add(0, -1)
        """PSN sent last."""
        self.max_fw_psn = psn_add(0, -1)
        """Highest PSN ever sent."""
        self.retry_count = 0
        self.rnr_count = 0
        self.rnr_wait = False
        self.stopped = False
        """True once the retry limit was reached."""
        self.freeing = False
        self.unacked: deque[Slot] = deque()
        """Slots in WAIT_ACK, in order of PSN."""
        self.waiting: deque[Slot] = deque()
        """Slots in WAIT_GRANT after them; the first may be in WAIT_CRD."""
        self.rate = RateWindow(window_ns)
        self.rtt_ns = 0
        """Round-trip time measured with the last timestamp."""

        self.rx_epsn = 0
        """PSN expected next."""
        self.ack_sn = 0
        """PSN after the last one acknowledged."""
        self.nak_sent = False
        self.echo = 0
        """Timestamp of the last SEND."""

        self.enabled = False
        self.flow: Flow | None = None
        """Flow to the peer while enabled."""
        self.dest_ip = 0
        self.dest_ip6 = 0
        self.dest_mac = 0
        self.dest_qp = 0
        self.udp_sport = 0
        self.udp_dport = 0
        self.tx_pkey = 0
        self.rx_pkey = 0

    @property
    def slots(self) -> int:
        """Number of slots that the QP holds."""
        return len(self.unacked) + len(self.waiting)

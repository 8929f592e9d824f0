"""View of a QPC for the transport: an object that overlays the 256 bytes, with fields as attributes.

A queue pair's context overlays its slot of the key-data cache in the device's arena; a draft has its own bytes. There
is no other copy: a store to an attribute changes the bytes, and vice versa.
"""

from __future__ import annotations

import ctypes
import struct
from typing import ClassVar, Self

from rnic.context.qpc import QPC, QPC_BYTES, QPC_DOCUMENTED_BYTES, settled
from rnic.spec.limits import MAX_MSG_BYTES, MTU_BYTES
from rnic.state.structure import Ground, double, structure

_RAW = struct.Struct(f"{QPC_BYTES}s")
_KNOWN = int.from_bytes(QPC.pack({field.name: field.mask for field in QPC.fields}), "little")
"""Mask of all bits that are not reserved."""
_MTU_BYTES = tuple(MTU_BYTES.get(code, 0) for code in range(QPC["mtu"].mask + 1))


class QpContext(ctypes.BigEndianStructure):
    """One queue pair's context; attribute names are the field names of :data:`~rnic.context.qpc.QPC`.

    ``mtu_bytes`` is the path MTU in bytes for the ``mtu`` code (0 if the code is invalid).

    Args:
        data: initial bytes of a draft, at least 256. :meth:`at` makes a view of other memory.
    """

    __slots__ = ("_ground",)
    _pack_ = 1
    _layout_ = "ms"  # packed; Python 3.14 requires it to be explicit
    _fields_: ClassVar = structure(QPC)

    # declarations for type checkers; the layout table defines the attributes
    opt_param_mask: int
    state: int
    flags_27_24: int
    servtype: int
    flags_15_13: int
    mig_state: int
    flags_10_0: int
    mtu: int
    msgmax: int
    rq_entry_sz_log: int
    sq_entry_sz_log: int
    rlkey_arbel_sched_queue: int
    usr_page: int
    local_qpn: int
    remote_qpn: int
    port: int
    pkey_index: int
    rnr_retry: int
    has_grh: int
    my_lmc: int
    ackto: int
    mgid_index: int
    static_rate: int
    hop_limit: int
    sl: int
    tclass: int
    flow_label: int
    dlid: int
    slid: int
    smac_hi: int
    dmac_hi: int
    sip: int
    dip: int
    pd: int
    wqe_base: int
    wqe_lkey: int
    next_send_psn: int
    cqn_snd: int
    snd_wqe_base_lkey: int
    snd_wqe_length: int
    last_acked_psn: int
    ssn: int
    rnr_nak_timer: int
    expected_psn: int
    ra_buff_indx: int
    cqn_rcv: int
    rcv_wqe_base_lkey: int
    rcv_wqe_length: int
    qkey: int
    rmsn: int
    rq_wqe_counter: int
    sq_wqe_counter: int
    sq_base: int
    rq_base: int
    access_flags: int
    retry_cnt: int
    options: int
    sq_draining: int
    max_rd_atomic: int
    max_dest_rd_atomic: int
    udp_sport: int
    udp_dport: int
    sq_max_sge: int
    rq_max_sge: int
    srqn: int
    sq_slab_bytes: int
    window_packets: int
    extension_valid: int
    xrcd: int

    rgid = double("rgid", QPC["rgid"].doc)
    sgid = double("sgid", QPC["sgid"].doc)

    def __init__(self, data: bytes | bytearray | memoryview = bytes(QPC_BYTES)) -> None:
        super().__init__()
        self.load(data)

    @classmethod
    def at(cls, ground: Ground, place: int) -> Self:
        """Return the context whose 256 bytes begin at offset ``place`` of an arena."""
        ctx = cls.from_address(ground.address + place)
        ctx._ground = ground
        return ctx

    @property
    def mtu_bytes(self) -> int:
        """Path MTU in bytes."""
        return _MTU_BYTES[self.mtu]

    @property
    def max_msg_bytes(self) -> int:
        """Longest message in bytes, sent or received; ``msgmax`` 0 means no limit of the queue pair."""
        return 1 << self.msgmax if self.msgmax else MAX_MSG_BYTES

    def load(self, data: bytes | bytearray | memoryview) -> None:
        """Load every field from QPC bytes; raise ``struct.error`` if there are fewer than 256."""
        known = int.from_bytes(_RAW.unpack_from(data)[0], "little") & _KNOWN
        ctypes.memmove(ctypes.addressof(self), known.to_bytes(QPC_BYTES, "little"), QPC_BYTES)

    def settle(self) -> None:
        """Treat an invalid extension as absent; leave the documented words unchanged."""
        if not self.extension_valid:
            rest = settled(self.store())[QPC_DOCUMENTED_BYTES:]
            ctypes.memmove(ctypes.addressof(self) + QPC_DOCUMENTED_BYTES, rest, len(rest))

    def store(self) -> bytes:
        """Return the QPC bytes; reserved bits are zero."""
        return bytes(self)

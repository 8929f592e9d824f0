"""The typed view of one QPC that ``transport`` works on: every field a plain ``int`` slot.

``load`` and ``store`` convert from and to the 256 bytes of :data:`rnic.context.qpc.QPC`. 32-bit words are read
with one ``struct`` call and split by a table that is made from the layout, since thousands of QPs are made at
a time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from rnic.context.qpc import QPC, QPC_BYTES
from rnic.spec.limits import MTU_BYTES

_WORDS = struct.Struct(">64I")
_NARROW = tuple(
    (field.name, field.byte // 4, field.lsb + (32 - 8 * field.unit - 8 * (field.byte % 4)), field.mask)
    for field in QPC.fields
    if field.unit <= 4
)
_WIDE = tuple((field.name, field.byte, field.unit) for field in QPC.fields if field.unit > 4)
_NAMES = tuple(field.name for field in QPC.fields)


class QpContext:
    """One queue pair's context; attribute names are the field names of :data:`~rnic.context.qpc.QPC`.

    ``mtu_bytes`` is the path MTU in bytes that the ``mtu`` code stands for (0 where the code is invalid).
    """

    __slots__ = (*_NAMES, "mtu_bytes")

    # Declared for type checkers; the slots themselves come from the layout table.
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
    rgid: int
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
    sgid: int
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
    mtu_bytes: int

    def __init__(self, data: bytes | bytearray | memoryview = bytes(QPC_BYTES)) -> None:
        self.load(data)

    def load(self, data: bytes | bytearray | memoryview) -> None:
        """Take every field from QPC bytes; ``struct.error`` if there are fewer than 256."""
        words = _WORDS.unpack_from(data)
        for name, index, shift, mask in _NARROW:
            setattr(self, name, words[index] >> shift & mask)
        for name, byte, size in _WIDE:
            setattr(self, name, int.from_bytes(data[byte : byte + size], "big"))
        self.mtu_bytes = MTU_BYTES.get(self.mtu, 0)

    def store(self) -> bytes:
        """The QPC bytes; reserved bits are zero."""
        words = [0] * 64
        for name, index, shift, mask in _NARROW:
            words[index] |= (getattr(self, name) & mask) << shift
        out = bytearray(_WORDS.pack(*words))
        for name, byte, size in _WIDE:
            out[byte : byte + size] = getattr(self, name).to_bytes(size, "big")
        return bytes(out)

    def update(self, data: bytes | bytearray | memoryview, names: Iterable[str]) -> None:
        """Take only the named fields from QPC bytes."""
        for name in names:
            setattr(self, name, QPC.get(data, name))
        self.mtu_bytes = MTU_BYTES.get(self.mtu, 0)

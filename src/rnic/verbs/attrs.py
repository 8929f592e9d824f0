"""Attribute and work-request objects, with pyverbs' names. Plain data: nothing here talks to a NIC."""

from __future__ import annotations

import difflib
import functools
import ipaddress
import warnings
from errno import EINVAL
from typing import TYPE_CHECKING, Any, ClassVar

from rnic.spec.errors import VerbsError
from rnic.spec.opcodes import LEVEL_SHIFT
from rnic.verbs import enums as e

MAX_DM_BYTES = 1 << 20
"""Device memory of a context."""


class _Attrs:
    """Base of attribute objects: prints its attributes, one per line.

    Classes with millions of objects have slots, which refuse a misspelled name at no cost; the others are sealed.
    """

    __slots__: tuple[str, ...] = ()

    def _shown(self) -> list[tuple[str, object]]:
        names = self.__slots__ or vars(self)
        return [(name, getattr(self, name)) for name in names if not name.startswith("_")]

    def __str__(self) -> str:
        return "\n".join(f"{name:<22}: {value}" for name, value in self._shown())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._shown())})"


class _Sealed(_Attrs):
    """Attribute objects that refuse attributes that do not exist, so that a misspelled name is an error."""

    _renamed: ClassVar[dict[str, str]] = {}
    """Former names of attributes, which still work until the next release, with a warning."""

    def __init_subclass__(cls) -> None:
        make = cls.__init__

        def sealing(self: Any, *args: Any, **more: Any) -> None:
            make(self, *args, **more)
            self.__dict__["_sealed"] = True

        cls.__init__ = functools.wraps(make)(sealing)  # type: ignore[method-assign]

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> object:
            now = self._current(name)
            if now == name:
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}", name=name, obj=self)
            return getattr(self, now)

        def _current(self, name: str) -> str:
            now = self._renamed.get(name, name)
            if now != name:
                owner = type(self).__name__
                warnings.warn(f"{owner}.{name} is {owner}.{now} now", DeprecationWarning, stacklevel=3)
            return now

        def __setattr__(self, name: str, value: object) -> None:
            known = self.__dict__
            name = self._current(name)
            if "_sealed" in known and name not in known:
                near = difflib.get_close_matches(name, known, 1)
                advice = (
                    f"did you mean {near[0]}?" if near else f"there are {', '.join(n for n in known if n[0] != '_')}"
                )
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}; {advice}", name=name, obj=self)
            known[name] = value


class GID:
    """A global identifier: 16 bytes, an IPv6 address or ``::ffff:a.b.c.d``.

    Args:
        value: text of an IPv6 or IPv4 address, or 4 or 16 bytes.
    """

    __slots__ = ("raw",)

    def __init__(self, value: str | bytes | GID = bytes(16)) -> None:
        if isinstance(value, GID):
            self.raw: bytes = value.raw
            return
        if isinstance(value, str):
            try:
                value = ipaddress.ip_address(value).packed
            except ValueError:
                raise VerbsError(EINVAL, f"gid={value!r} is not an IPv4 or IPv6 address") from None
        if len(value) == 4:
            value = bytes(10) + b"\xff\xff" + value
        if len(value) != 16:
            raise VerbsError(EINVAL, f"gid has {len(value)} bytes: give 4 or 16")
        self.raw = value

    @property
    def gid(self) -> str:
        """Text form, eight groups of four digits."""
        return ":".join(self.raw[i : i + 2].hex() for i in range(0, 16, 2))

    @property
    def address(self) -> bytes:
        """The IP address of the GID: 4 bytes if it is IPv4-mapped, else 16."""
        return self.raw[12:] if self.raw[:12] == bytes(10) + b"\xff\xff" else self.raw

    def __str__(self) -> str:
        return self.gid

    def __repr__(self) -> str:
        return f"GID('{ipaddress.ip_address(self.address)}')"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GID) and other.raw == self.raw

    def __hash__(self) -> int:
        return hash(self.raw)


class GlobalRoute(_Sealed):
    """The global part of an address vector.

    Args:
        dgid: the peer's GID.
        sgid_index: index of the source GID in the GID table.
        flow_label: IPv6 flow label, 20 bits.
        hop_limit: hop limit, or time to live, 1 to 255.
        traffic_class: traffic class, or DSCP and ECN, 8 bits.
    """

    def __init__(
        self,
        dgid: GID | str | bytes = bytes(16),
        sgid_index: int = 0,
        flow_label: int = 0,
        hop_limit: int = 64,
        traffic_class: int = 0,
    ) -> None:
        self.dgid = GID(dgid)
        self.sgid_index = sgid_index
        self.flow_label = flow_label
        self.hop_limit = hop_limit
        self.traffic_class = traffic_class


class AHAttr(_Sealed):
    """An address vector.

    Args:
        gr: global route: addresses, hop limit, traffic class.
        port_num: the device's port, 1.
        is_global: 1, as on every RoCE port.
        sl: service level, 0 to 15.
        dlid: for pyverbs compatibility: RoCE has none.
        src_path_bits: for pyverbs compatibility: RoCE has none.
        static_rate: ``IBV_RATE_*``.
        udp_dport: the peer's UDP port if it is not 4791. Not in pyverbs.
    """

    def __init__(
        self,
        gr: GlobalRoute | None = None,
        port_num: int = 1,
        is_global: int = 1,
        sl: int = 0,
        dlid: int = 0,
        src_path_bits: int = 0,
        static_rate: int = 0,
        udp_dport: int = 0,
    ) -> None:
        self.gr = gr if gr is not None else GlobalRoute()
        self.port_num = port_num
        self.is_global = is_global
        self.sl = sl
        self.dlid = dlid
        self.src_path_bits = src_path_bits
        self.static_rate = static_rate
        self.udp_dport = udp_dport


class QPCap(_Sealed):
    """Capacities of a queue pair.

    Args:
        max_send_wr: send requests that may be posted.
        max_recv_wr: receive requests that may be posted.
        max_send_sge: scatter/gather entries of a send.
        max_recv_sge: scatter/gather entries of a receive.
        max_inline_data: bytes of inline data.
    """

    def __init__(
        self,
        max_send_wr: int = 1,
        max_recv_wr: int = 10,
        max_send_sge: int = 1,
        max_recv_sge: int = 1,
        max_inline_data: int = 0,
    ) -> None:
        self.max_send_wr = max_send_wr
        self.max_recv_wr = max_recv_wr
        self.max_send_sge = max_send_sge
        self.max_recv_sge = max_recv_sge
        self.max_inline_data = max_inline_data


class QPInitAttr(_Sealed):
    """Attributes to create a queue pair.

    Args:
        qp_type: ``IBV_QPT_RC``, ``IBV_QPT_UC``, ``IBV_QPT_UD``, ``IBV_QPT_XRC_SEND`` or ``IBV_QPT_XRC_RECV``.
        qp_context: any object of the program's.
        cap: capacities of the queues.
        scq: CQ of sends.
        rcq: CQ of receives.
        srq: shared receive queue, instead of a receive queue.
        sq_sig_all: 1: every send request raises a completion.
        xrcd: domain of an XRC queue pair that receives, which has no CQs and queues of its own.
    """

    def __init__(
        self,
        qp_type: int = e.IBV_QPT_RC,
        qp_context: object = None,
        cap: QPCap | None = None,
        scq: object = None,
        rcq: object = None,
        srq: object = None,
        sq_sig_all: int = 0,
        xrcd: object = None,
    ) -> None:
        self.qp_type = qp_type
        self.qp_context = qp_context
        self.cap = cap if cap is not None else QPCap()
        self.scq = scq
        self.rcq = rcq
        self.srq = srq
        self.sq_sig_all = sq_sig_all
        self.xrcd = xrcd


class QPAttr(_Sealed):
    """Attributes of a queue pair for modify and query.

    Args:
        qp_state: ``IBV_QPS_*``.
        cur_qp_state: ``IBV_QPS_*`` that the queue pair must be in, with ``IBV_QP_CUR_STATE``.
        port_num: the device's port, 1.
        path_mtu: ``IBV_MTU_*``.
    """

    _renamed: ClassVar[dict[str, str]] = {"keeps": "selective_repeat"}

    def __init__(
        self,
        qp_state: int = e.IBV_QPS_INIT,
        cur_qp_state: int = e.IBV_QPS_RESET,
        port_num: int = 1,
        path_mtu: int = e.IBV_MTU_1024,
    ) -> None:
        self.qp_state = qp_state
        self.cur_qp_state = cur_qp_state
        self.path_mtu = path_mtu
        self.path_mig_state = 0
        self.qkey = 0
        self.rq_psn = 0
        self.sq_psn = 0
        self.dest_qp_num = 0
        self.qp_access_flags = 0
        self.cap = QPCap(0, 0, 0, 0, 0)
        self.ah_attr = AHAttr()
        self.pkey_index = 0
        self.en_sqd_async_notify = 0
        self.sq_draining = 0
        self.max_rd_atomic = 1
        self.max_dest_rd_atomic = 1
        self.min_rnr_timer = 12
        self.port_num = port_num
        self.timeout = 14
        """Local ACK timeout of every try: 4.096 us x 2^n; 0 waits forever (IBA vol. 1, 9.7.6.1.3)."""
        self.retry_cnt = 7
        self.rnr_retry = 7
        self.gso = False
        """Extension: the peer agreed to segmentation offload (``design.md``, UDP link)."""
        self.selective_repeat = False
        """Extension: both ends agreed to keep out-of-order packets, so that only a lost packet is retransmitted. Each
        assumes that the other's window is no larger than its own, and may lend it the pages of READ responses."""
        self.probe = True
        """Extension: use the tail-loss probe."""
        self.credits = False
        """Extension: send end-to-end credits."""


class SrqAttr(_Sealed):
    """Attributes of a shared receive queue.

    Args:
        max_wr: receive requests that may be posted.
        max_sge: scatter entries of a receive.
        srq_limit: number of entries below which the limit event is raised; 0 for none.
    """

    def __init__(self, max_wr: int = 100, max_sge: int = 1, srq_limit: int = 0) -> None:
        self.max_wr = max_wr
        self.max_sge = max_sge
        self.srq_limit = srq_limit


class SrqInitAttr(_Sealed):
    """Attributes to create a shared receive queue.

    Args:
        attr: capacities of the queue.
        srq_context: any object of the program's.
        srq_type: ``IBV_SRQT_BASIC``, or ``IBV_SRQT_XRC`` for one that XRC queue pairs receive into.
        xrcd: domain of an XRC SRQ.
        cq: CQ of the receives of an XRC SRQ.
    """

    def __init__(
        self,
        attr: SrqAttr | None = None,
        srq_context: object = None,
        srq_type: int = e.IBV_SRQT_BASIC,
        xrcd: object = None,
        cq: object = None,
    ) -> None:
        self.attr = attr if attr is not None else SrqAttr()
        self.srq_context = srq_context
        self.srq_type = srq_type
        self.xrcd = xrcd
        self.cq = cq


class AllocDmAttr(_Sealed):
    """Attributes to allocate device memory.

    Args:
        length: bytes.
        log_align_req: log2 of the alignment, 0 to 12; it is a page anyway.
        comp_mask: for pyverbs compatibility: all attributes count.
    """

    def __init__(self, length: int, log_align_req: int = 0, comp_mask: int = 0) -> None:
        self.length = length
        self.log_align_req = log_align_req
        self.comp_mask = comp_mask


class XRCDInitAttr(_Sealed):
    """Attributes to open an XRC domain.

    Args:
        comp_mask: for pyverbs compatibility: all attributes count.
        oflags: ``os.O_CREAT``, ``os.O_EXCL``, as in :func:`os.open`.
        fd: descriptor of the file that names the domain; -1 for a domain of this context alone.
    """

    def __init__(self, comp_mask: int = 0, oflags: int = 0, fd: int = -1) -> None:
        self.comp_mask = comp_mask
        self.oflags = oflags
        self.fd = fd


class SGE(_Attrs):
    """A scatter/gather entry.

    Args:
        addr: address of the first byte, 64 bits.
        length: bytes, 32 bits.
        lkey: local key of the region, 32 bits.
    """

    __slots__ = ("addr", "length", "lkey")

    def __init__(self, addr: int, length: int, lkey: int) -> None:
        self.addr = addr
        self.length = length
        self.lkey = lkey

    def __str__(self) -> str:
        return f"addr {self.addr:#x}, length {self.length}, lkey {self.lkey:#x}"

    def __repr__(self) -> str:
        return f"SGE({self.addr:#x}, {self.length}, {self.lkey:#x})"


class RecvWR(_Attrs):
    """A receive work request.

    Args:
        wr_id: identifier of the completion, 64 bits.
        num_sge: for pyverbs compatibility: the list has its own length.
        sg: scatter entries.
        next_wr: the next request of a chain.
    """

    __slots__ = ("wr_id", "sg", "next")

    def __init__(
        self, wr_id: int = 0, num_sge: int = 0, sg: list[SGE] | None = None, next_wr: RecvWR | None = None
    ) -> None:
        self.wr_id = wr_id
        self.sg = sg if sg is not None else []
        self.next = next_wr


class SendWR(_Attrs):
    """A send work request.

    Args:
        wr_id: identifier of the completion, 64 bits.
        opcode: ``IBV_WR_*``.
        num_sge: for pyverbs compatibility: the list has its own length.
        imm_data: immediate data, or the key to invalidate, 32 bits.
        send_flags: ``IBV_SEND_*``.
        sg: gather entries.
        next_wr: the next request of a chain.
    """

    __slots__ = (
        "wr_id", "opcode", "imm_data", "invalidate_rkey", "send_flags", "sg", "next", "remote_addr", "rkey",
        "compare_add", "swap", "ah", "rqpn", "rqkey", "bind_info", "remote_srqn",
    )  # fmt: skip

    def __init__(
        self,
        wr_id: int = 0,
        opcode: int = e.IBV_WR_SEND,
        num_sge: int = 0,
        imm_data: int = 0,
        send_flags: int = e.IBV_SEND_SIGNALED,
        sg: list[SGE] | None = None,
        next_wr: SendWR | None = None,
    ) -> None:
        self.wr_id = wr_id
        self.opcode = opcode
        self.imm_data = imm_data
        self.invalidate_rkey = 0
        self.send_flags = send_flags
        self.sg = sg if sg is not None else []
        self.next = next_wr
        self.remote_addr = 0
        self.rkey = 0
        self.compare_add = 0
        self.swap = 0
        self.ah: object = None
        self.rqpn = 0
        self.rqkey = 0
        self.bind_info: BindInfo | None = None
        self.remote_srqn = 0

    def set_qp_type_xrc(self, remote_srqn: int) -> None:
        """Set the shared receive queue of a request on an XRC queue pair.

        Args:
            remote_srqn: number of the peer's SRQ (:attr:`rnic.SRQ.srqn`), 24 bits.
        """
        self.remote_srqn = remote_srqn

    def set_wr_rdma(self, rkey: int, addr: int) -> None:
        """Set the remote memory of a WRITE or READ.

        Args:
            rkey: the peer's key, 32 bits.
            addr: address in the peer's memory, 64 bits.
        """
        self.rkey = rkey
        self.remote_addr = addr

    def set_wr_atomic(self, rkey: int, addr: int, compare_add: int, swap: int = 0) -> None:
        """Set the remote memory and the operands of an atomic.

        Args:
            rkey: the peer's key, 32 bits.
            addr: address in the peer's memory, a multiple of 8.
            compare_add: number to add, or to compare with, 64 bits.
            swap: number to store if they are equal, 64 bits.
        """
        self.rkey = rkey
        self.remote_addr = addr
        self.compare_add = compare_add
        self.swap = swap

    def set_wr_flush(
        self,
        rkey: int,
        addr: int,
        length: int,
        placement: int = e.IBV_FLUSH_GLOBAL,
        level: int = e.IBV_FLUSH_RANGE,
    ) -> None:
        """Set the remote memory of a FLUSH: when it completes, earlier writes there are visible to all.

        Args:
            rkey: the peer's key, 32 bits; its region needs ``IBV_ACCESS_FLUSH_GLOBAL``.
            addr: address in the peer's memory, 64 bits.
            length: bytes, 32 bits; ignored with ``IBV_FLUSH_MR``.
            placement: ``IBV_FLUSH_*`` bits: the required guarantee.
            level: ``IBV_FLUSH_RANGE`` for these bytes, ``IBV_FLUSH_MR`` for the whole region.
        """
        self.set_wr_rdma(rkey, addr)
        self.swap = length
        self.imm_data = placement | level << LEVEL_SHIFT

    def set_wr_atomic_write(self, rkey: int, addr: int, data: bytes) -> None:
        """Set the remote memory and the bytes of an ATOMIC WRITE, which readers see completely or not at all.

        Args:
            rkey: the peer's key, 32 bits; its region needs ``IBV_ACCESS_REMOTE_WRITE``.
            addr: address in the peer's memory, a multiple of 8.
            data: 8 bytes.

        Raises:
            VerbsError: EINVAL for another number of bytes.
        """
        if len(data) != 8:
            raise VerbsError(EINVAL, f"data has {len(data)} bytes; an ATOMIC WRITE has 8")
        self.set_wr_rdma(rkey, addr)
        self.swap = int.from_bytes(data, "little")

    def set_wr_ud(self, ah: object, rqpn: int, rqkey: int) -> None:
        """Set the destination of a datagram.

        Args:
            ah: address handle.
            rqpn: queue pair, 24 bits.
            rqkey: its Q_Key, 32 bits.
        """
        self.ah = ah
        self.rqpn = rqpn
        self.rqkey = rqkey

    def set_bind_wr(self, mw: object, rkey: int, bind_info: BindInfo) -> None:
        """Set the memory to which a type 2 window is bound.

        Args:
            mw: the window.
            rkey: its new key, 32 bits.
            bind_info: region, address, length and rights.
        """
        bind_info.mw = mw
        self.rkey = rkey
        self.bind_info = bind_info


class BindInfo(_Attrs):
    """Memory range and rights to which a memory window is bound.

    Args:
        mr: the region.
        addr: first address of the window, inside the region.
        length: bytes of the window.
        mw_access_flags: ``IBV_ACCESS_*`` of the window.
    """

    __slots__ = ("mr", "addr", "length", "mw_access_flags", "mw")

    def __init__(self, mr: object, addr: int, length: int, mw_access_flags: int) -> None:
        self.mr = mr
        self.addr = addr
        self.length = length
        self.mw_access_flags = mw_access_flags
        self.mw: object = None


class WC:
    """A work completion.

    Args:
        wr_id: identifier of the request, 64 bits.
        status: ``IBV_WC_*``.
        opcode: ``IBV_WC_*``; valid for a successful completion.
        vendor_err: the NIC's syndrome of an error.
        byte_len: bytes that were received or read.
        qp_num: the local queue pair.
        src_qp: the sender's queue pair (UD).
        imm_data: immediate data, or the invalidated key, 32 bits.
        wc_flags: flags of the completion (IBA 11.4.2.1).
    """

    __slots__ = (
        "byte_len",
        "imm_data",
        "opcode",
        "pkey_index",
        "qp_num",
        "src_qp",
        "status",
        "vendor_err",
        "wc_flags",
        "wr_id",
    )

    def __init__(
        self,
        wr_id: int = 0,
        status: int = 0,
        opcode: int = 0,
        vendor_err: int = 0,
        byte_len: int = 0,
        qp_num: int = 0,
        src_qp: int = 0,
        imm_data: int = 0,
        wc_flags: int = 0,
    ) -> None:
        self.wr_id = wr_id
        self.status = status
        self.opcode = opcode
        self.vendor_err = vendor_err
        self.byte_len = byte_len
        self.qp_num = qp_num
        self.src_qp = src_qp
        self.imm_data = imm_data
        """Immediate data in host byte order, or the key that was invalidated, as ``wc_flags`` says."""
        self.wc_flags = wc_flags
        self.pkey_index = 0

    @property
    def status_name(self) -> str:
        """Name of the status, such as ``SUCCESS`` or ``RETRY_EXC_ERR``."""
        return e.WC_STATUS_NAMES.get(self.status, str(self.status))

    def __repr__(self) -> str:
        opcode = e.WC_OPCODE_NAMES.get(self.opcode, str(self.opcode))
        return f"<WC wr_id={self.wr_id} {self.status_name} {opcode} {self.byte_len} bytes qp {self.qp_num}>"


class DeviceAttr(_Attrs):
    """Limits and features of a device."""

    def __init__(self) -> None:
        self.fw_ver = ""
        self.node_guid = ""
        self.sys_image_guid = ""
        self.vendor_id = 0
        self.vendor_part_id = 0
        self.hw_ver = 0
        self.max_mr_size = 0
        self.max_qp = 0
        self.max_qp_wr = 0
        self.device_cap_flags = 0
        self.max_sge = 0
        self.max_cq = 0
        self.max_cqe = 0
        self.max_mr = 0
        self.max_pd = 0
        self.max_qp_rd_atom = 0
        self.max_qp_init_rd_atom = 0
        self.atomic_caps = 0
        self.max_mw = 0
        self.max_mcast_grp = 0
        self.max_mcast_qp_attach = 0
        self.max_ah = 0
        self.max_srq = 0
        self.max_srq_wr = 0
        self.max_srq_sge = 0
        self.max_pkeys = 0
        self.max_dm_size = 0
        self.local_ca_ack_delay = 0
        self.phys_port_cnt = 0


class PortAttr(_Attrs):
    """The state of a port."""

    def __init__(self) -> None:
        self.state = 0
        self.max_mtu = 0
        self.active_mtu = 0
        self.gid_tbl_len = 0
        self.max_msg_sz = 0
        self.pkey_tbl_len = 0
        self.lid = 0
        self.sm_lid = 0
        self.link_layer = e.IBV_LINK_LAYER_ETHERNET
        self.phys_state = 5
        self.active_speed = 4
        self.active_width = 1
        self.udp_port = 0

"""Coyote's RoCE stack (003) as a front door: a device driven by the structures of its shell interfaces alone.

Connections come in as ``qpContext`` and ``ifConnReq``, work as ``s_rdma_sq`` commands; acknowledgements go out as
``m_rdma_ack``, and all host memory is reached by ``m_rdma_rd_req`` and ``m_rdma_wr_req`` with 64-byte beats of
data. Behind the door stands the same NIC as behind the verbs, so its peer may be any RoCEv2 device.

Every queue pair has a driver context, and so an address space, of its own: that is what ``pid`` and ``vfid``
in a memory request tell the shell.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from errno import EFAULT, EINVAL, ENOENT
from typing import Any, Protocol

from rnic.cm.exchange import BufferInfo, Endpoint, LineSocket, parse_endpoint
from rnic.link.base import Link
from rnic.link.beats import Beat, payload_of, to_beats
from rnic.mem.aliases import AliasTable
from rnic.mem.mpt import MPT_ENTRY, MPT_REGION, flags_from_access
from rnic.mem.space import AddressSpace
from rnic.rings import coyote as c
from rnic.rings.sqe import FLAG_SIGNALED
from rnic.spec import commands as cmd
from rnic.spec import opcodes as op
from rnic.spec.errors import VerbsError
from rnic.spec.layout import Layout
from rnic.spec.limits import MTU_CODES
from rnic.verbs import enums as e
from rnic.verbs.attrs import GID, SGE, AHAttr, GlobalRoute, QPAttr, QPCap, QPInitAttr, RecvWR
from rnic.verbs.context import Context, runtime_on
from rnic.verbs.cq import CQ
from rnic.verbs.memory import MR, PD
from rnic.verbs.qp import QP

DEPTH = 64
"""Commands in flight on one queue pair."""
RECEIVES = 16
SEND_BYTES = 1 << 16
"""Longest SEND that is taken: messages are put together here before they go to the shell as a stream."""
ADDRESS_END = 1 << c.ADDRESS_BITS
_TIMEOUT = 14
_RETRIES = 7
_RD_ATOMIC = 16
_LARGEST = 1 << 31
_REMOTE = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
_WORK = {c.APP_READ: op.WR_READ, c.APP_WRITE: op.WR_WRITE, c.APP_SEND: op.WR_SEND}
_RAW_READ = 0x0C
_RAW = {0x04: op.WR_SEND, 0x0A: op.WR_WRITE, _RAW_READ: op.WR_READ}
"""BTH opcodes of messages of one packet: what a raw command may be."""


class Shell(Protocol):
    """What stands around the stack: memory and streams."""

    def m_rdma_rd_req(self, request: bytes, /) -> Sequence[Beat] | None:
        """Answer a read request with its data (``s_axis_rdma_rd``); ``None`` where the memory is not there."""

    def m_rdma_wr_req(self, request: bytes, data: Iterable[Beat], /) -> bool:
        """Take a write request and its data (``m_axis_rdma_wr``); false where the memory is not there."""


class HostShell:
    """A shell over one address space; messages that arrive as streams wait in :attr:`streams`.

    Args:
        space: host memory, by address.
    """

    def __init__(self, space: AddressSpace) -> None:
        self.space = space
        self.streams: deque[tuple[int, bytes]] = deque()
        """Short QP number and payload of each message that arrived as a stream."""
        self.outgoing: dict[int, bytes] = {}
        """By short QP number, what the stream of commands with ``host`` 0 gives."""

    def m_rdma_rd_req(self, request: bytes) -> Sequence[Beat] | None:
        """See :class:`Shell`."""
        said = c.RDMA_RD_REQ.unpack(request)
        length = said["len"]
        if said["stream"]:
            start = said["vaddr"]
            data = self.outgoing.get(c.join_qpn(said["pid"], said["vfid"]), b"")[start : start + length]
            return list(to_beats(data)) if len(data) == length else None
        found = bytearray(length)
        return list(to_beats(found)) if self.space.read(said["vaddr"], found) else None

    def m_rdma_wr_req(self, request: bytes, data: Iterable[Beat]) -> bool:
        """See :class:`Shell`."""
        said = c.RDMA_WR_REQ.unpack(request)
        payload = payload_of(data)
        if said["stream"]:
            self.streams.append((c.join_qpn(said["pid"], said["vfid"]), payload))
            return True
        return self.space.write(said["vaddr"], payload)


class _Port(AddressSpace):
    """One queue pair's way to memory: the stack's own buffers directly, everything else by memory requests."""

    __slots__ = ("_pid", "_shell", "_vfid")

    def __init__(self, shell: Shell, qpn: int) -> None:
        super().__init__()
        self._shell = shell
        self._pid, self._vfid = c.split_qpn(qpn)

    def _requests(self, layout: Layout, va: int, length: int, host: bool) -> Iterator[tuple[bytes, int, int]]:
        """The memory requests of a transfer, each with the part of the data that it is for."""
        for start in range(0, length, c.MAX_REQUEST_BYTES):
            end = min(start + c.MAX_REQUEST_BYTES, length)
            values = {
                "vfid": self._vfid,
                "pid": self._pid,
                "vaddr": va + start,
                "len": end - start,
                "stream": int(not host),
                "host": int(host),
                "ctl": int(end == length),
            }
            yield layout.pack(values), start, end

    def fetch(self, va: int, buf: bytearray | memoryview, host: bool) -> bool:
        """Fill ``buf`` from host memory, or from the queue pair's stream; false where the shell has no such data."""
        if va + len(buf) > ADDRESS_END:
            return False
        for request, start, end in self._requests(c.RDMA_RD_REQ, va, len(buf), host):
            beats = self._shell.m_rdma_rd_req(request)
            data = None if beats is None else payload_of(beats)
            if data is None or len(data) != end - start:
                return False
            buf[start:end] = data
        return True

    def store(self, va: int, data: bytes | bytearray | memoryview, host: bool) -> bool:
        """Hand data to host memory, or to the queue pair's stream; false where the shell refuses them."""
        if va + len(data) > ADDRESS_END:
            return False
        view = memoryview(data)
        return all(
            self._shell.m_rdma_wr_req(request, to_beats(view[start:end]))
            for request, start, end in self._requests(c.RDMA_WR_REQ, va, len(data), host)
        )

    def read(self, va: int, buf: bytearray | memoryview) -> bool:
        """See :class:`~rnic.mem.dma.DmaPort`."""
        return super().read(va, buf) or self.fetch(va, buf, True)

    def write(self, va: int, data: bytes | bytearray | memoryview) -> bool:
        """See :class:`~rnic.mem.dma.DmaPort`."""
        return super().write(va, data) or self.store(va, data, True)


class _Flight:
    """A command under way; ``staging`` holds its data where they belong to a stream."""

    __slots__ = ("command", "staging")

    def __init__(self, command: dict[str, int], staging: MR | None) -> None:
        self.command = command
        self.staging = staging


class _Pair:
    """One queue pair behind the door."""

    def __init__(self, stack: RoceStack, number: int) -> None:
        self.number = number
        self.port = _Port(stack.shell, number)
        self.context = Context(runtime=stack.runtime, space=self.port)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 2 * DEPTH + RECEIVES)
        cap = QPCap(DEPTH, RECEIVES)
        self.qp = QP(self.pd, QPInitAttr(e.IBV_QPT_RC, cap=cap, scq=self.cq, rcq=self.cq))
        self.regions: list[tuple[int, int, int]] = []
        """Start, end and key of the host memory that is registered."""
        self.staging = MR(self.pd, RECEIVES * SEND_BYTES, e.IBV_ACCESS_LOCAL_WRITE)
        self.mtu = self.context.nic.config.mtu
        self.target = c.RESET
        self.said: dict[str, int] = {}
        self.peer: dict[str, int] = {}
        self.held: list[dict[str, int]] = []
        self.flying: dict[int, _Flight] = {}
        self._next = 0

    def advance(self) -> None:
        """Go as far towards the state that ``qpContext`` asked for as what is known allows."""
        qp, said = self.qp, self.said
        if self.target == c.RESET or self.target == c.ERROR:
            state = e.IBV_QPS_RESET if self.target == c.RESET else e.IBV_QPS_ERR
            qp.modify(QPAttr(state), e.IBV_QP_STATE)
            return
        attr = QPAttr()
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
        if qp.qp_state == e.IBV_QPS_RESET:
            qp.to_init(attr)
            for slot in range(RECEIVES):
                self.post_receive(slot)
        if self.target == c.INIT or not self.peer:
            return
        attr.path_mtu = MTU_CODES[self.mtu]
        attr.dest_qp_num = self.peer["remote_qpn"]
        attr.rq_psn, attr.sq_psn = said["remote_psn"], said["local_psn"]
        attr.timeout, attr.retry_cnt, attr.rnr_retry = _TIMEOUT, _RETRIES, _RETRIES
        attr.max_rd_atomic = attr.max_dest_rd_atomic = _RD_ATOMIC
        gid = GID(self.peer["remote_ip_address"].to_bytes(16, "big"))
        attr.ah_attr = AHAttr(GlobalRoute(gid), udp_dport=self.peer["remote_udp_port"])
        if qp.qp_state == e.IBV_QPS_INIT:
            qp.to_rtr(attr)
        if self.target == c.READY_SEND and qp.qp_state == e.IBV_QPS_RTR:
            qp.to_rts(attr)

    def post_receive(self, slot: int) -> None:
        """Let a message arrive in a slot of the staging memory."""
        address = self.staging.buf + slot * SEND_BYTES
        self.qp.post_recv(RecvWR(slot, 1, [SGE(address, SEND_BYTES, self.staging.lkey)]))

    def post(self, command: dict[str, int], opcode: int, rkey: int) -> None:
        """Make a descriptor of a command.

        Raises:
            VerbsError: ``ENOMEM`` where the queue is full, ``EFAULT`` where the local memory is not there.
        """
        local, size = command["local_vaddr"], command["message_size"]
        staging = None
        if size and command["host"]:
            lkey = next((key for start, end, key in self.regions if start <= local and local + size <= end), None)
        elif size:
            staging = MR(self.pd, size, e.IBV_ACCESS_LOCAL_WRITE)
            if opcode != op.WR_READ and not self.port.fetch(local, staging.buffer, False):
                staging.close()
                staging = None
            lkey, local = (staging.lkey, staging.buf) if staging is not None else (None, local)
        else:
            lkey = 0
        if lkey is None:
            raise VerbsError(EFAULT, f"local_vaddr={local:#x}: {size} bytes from there on are not registered")
        number = self._next
        self.qp.post_rdma(opcode, local, size, lkey, command["remote_vaddr"], rkey, number, FLAG_SIGNALED)
        self._next += 1
        self.flying[number] = _Flight(command, staging)

    def close(self) -> None:
        """Destroy it and what was registered for it."""
        self.qp.close()
        for _, _, key in self.regions:
            self.context.command(cmd.HW2SW_MPT, key)
            self.context.free(cmd.RES_MPT, key)
        self.context.close()

    def landed(self, number: int, ok: bool) -> tuple[dict[str, int], bool]:
        """A command completed: the command, and whether it and what the shell had to take of it are well."""
        flight = self.flying.pop(number)
        staging, command = flight.staging, flight.command
        if staging is not None:
            if ok and is_read(command):
                ok = self.port.store(command["local_vaddr"], staging.buffer, False)
            staging.close()
        return command, ok


def is_read(command: dict[str, int]) -> bool:
    """Whether a command is a READ, in either mode."""
    return command["opcode"] == (c.APP_READ if command["mode"] == c.MODE_PARSE else _RAW_READ)


class RoceStack:
    """The stack of 003 on a link.

    Args:
        link: the network; a :class:`~rnic.link.beats.BeatLink` for the 512-bit data path, or any other.
        shell: memory and streams.
        settings: ``seed`` and ``clock``, and fields of :class:`~rnic.device.config.NicConfig`.

    :attr:`m_rdma_ack` holds the acknowledgements, oldest first. Short QP numbers are the caller's choice; short
    keys come from :attr:`keys`.
    """

    def __init__(self, link: Link, shell: Shell, **settings: Any) -> None:
        self.shell = shell
        self.runtime = runtime_on(link, **settings)
        self.m_rdma_ack: deque[bytes] = deque()
        self.qpns = AliasTable("qpn", c.QPN_BITS)
        """Full QPNs by short number."""
        self.keys = AliasTable("r_key", c.KEY_BITS, first=1)
        """Full R_Keys by short number: those of peers, as ``qpContext`` names them."""
        self._pairs: dict[int, _Pair] = {}

    # --------------------------------------------------------------------------- connection set-up

    def s_axis_qp_interface(self, data: bytes) -> None:
        """Take a ``qpContext``: queue pair ``qp_num`` is made when it is new, and brought to ``new_state``.

        READY_RECV and READY_SEND wait for the ``ifConnReq`` where that has not come yet; the order does not count.

        Raises:
            VerbsError: ``EINVAL`` for a state that cannot be asked for or a number beyond 12 bits, ``ENOENT`` for an
                ``r_key`` that stands for nothing; nothing is changed then.
        """
        said = _unpack(c.QP_CONTEXT, data)
        state, number = said["new_state"], said["qp_num"]
        if state >= len(c.QP_STATES) or state == c.SQ_ERROR:
            raise VerbsError(EINVAL, f"new_state={state} cannot be asked for: use RESET to READY_SEND, or ERROR")
        if state in (c.READY_RECV, c.READY_SEND):
            self.keys.full(said["r_key"])
        pair = self._pair(number)
        pair.said, pair.target = said, state
        pair.advance()
        if state == c.RESET:
            pair.close()
            del self._pairs[number]
            self.qpns.remove(number)

    def s_axis_qp_conn_interface(self, data: bytes) -> None:
        """Take an ``ifConnReq``: where the peer of queue pair ``qpn`` is.

        Raises:
            VerbsError: ``EINVAL`` for a number beyond 12 bits or a queue pair whose peer cannot change any more.
        """
        said = _unpack(c.IF_CONN_REQ, data)
        pair = self._pair(said["qpn"])
        if pair.qp.qp_state not in (e.IBV_QPS_RESET, e.IBV_QPS_INIT):
            raise VerbsError(EINVAL, f"qpn={said['qpn']:#x} is connected: bring it to RESET before it gets a peer")
        pair.peer = said
        if pair.target != c.RESET:
            pair.advance()

    def register(self, number: int, vaddr: int, length: int) -> int:
        """Open host memory to queue pair ``number`` and to its peer; the full R_Key, to be told to the peer.

        Raises:
            VerbsError: ``EINVAL`` for a range beyond 48 bits, or one that the shell does not have.
        """
        if length < 1 or vaddr < 0 or vaddr + length > ADDRESS_END:
            raise VerbsError(EINVAL, f"vaddr={vaddr:#x} length={length}: use at least 1 byte below 2**48")
        pair = self._pair(number)
        key = _register(pair.pd, vaddr, length, _REMOTE)
        pair.regions.append((vaddr, vaddr + length, key))
        return key

    # ------------------------------------------------------------------------------------ commands

    def s_rdma_sq(self, data: bytes) -> None:
        """Take a command. One that cannot be carried out is answered by an acknowledgement with ``cmplt`` 0.

        Raises:
            VerbsError: ``EINVAL`` for a command of another length.
        """
        command = _unpack(c.RDMA_SQ, data)
        pair = self._pairs.get(command["qpn"])
        if pair is None:
            self._acknowledge(command, False)
            return
        pair.held.append(command)
        if not command["last"] and len(pair.held) < DEPTH:
            return
        held, pair.held = pair.held, []
        for each in held:
            try:
                pair.post(each, *self._work(pair, each))
            except VerbsError:
                self._acknowledge(each, False)

    def _work(self, pair: _Pair, command: dict[str, int]) -> tuple[int, int]:
        """Work-request opcode and full remote key of a command."""
        size = command["message_size"]
        if command["mode"] == c.MODE_PARSE:
            opcode = _WORK.get(command["opcode"])
        else:
            opcode = _RAW.get(command["opcode"])
            if size > pair.mtu:
                opcode = None
        if opcode is None or command["mode"] > c.MODE_RAW or command["offs"] or size > _LARGEST:
            raise VerbsError(EINVAL, f"command {command} is not one that this stack carries out")
        if command["local_vaddr"] + size > ADDRESS_END or command["remote_vaddr"] + size > ADDRESS_END:
            raise VerbsError(EINVAL, f"command {command} has an address beyond 48 bits")
        if opcode == op.WR_SEND:
            return opcode, 0
        return opcode, self.keys.full(pair.said.get("r_key", 0))

    def _acknowledge(self, command: dict[str, int], done: bool) -> None:
        pid, vfid = c.split_qpn(command["qpn"])
        values = {"ssn": command["ssn"], "vfid": vfid, "pid": pid, "cmplt": int(done), "rd": int(is_read(command))}
        self.m_rdma_ack.append(c.RDMA_ACK.pack(values))

    # ------------------------------------------------------------------------------------- driving

    def progress(self) -> bool:
        """One round: the network, then completions. True if something happened."""
        did = self.runtime.progress()
        for pair in list(self._pairs.values()):
            count, found = pair.cq.poll(DEPTH) if pair.cq.ready() else (0, [])
            did = did or bool(count)
            for wc in found:
                if wc.opcode & e.IBV_WC_RECV:
                    self._received(pair, wc)
                    continue
                command, ok = pair.landed(wc.wr_id, wc.status == e.IBV_WC_SUCCESS)
                if command["cmplt"] or not ok:
                    self._acknowledge(command, ok)
        return did

    def _received(self, pair: _Pair, wc: Any) -> None:
        if wc.status != e.IBV_WC_SUCCESS:
            return
        at = wc.wr_id * SEND_BYTES
        if not pair.port.store(0, memoryview(pair.staging.buffer)[at : at + wc.byte_len], False):
            self.runtime.nic.counters.bump("drop_shell_refused")
        pair.post_receive(wc.wr_id)

    def state(self, number: int) -> int:
        """``qpState`` of a queue pair as it is now; RESET for one that does not exist."""
        pair = self._pairs.get(number)
        if pair is None:
            return c.RESET
        return _STATE[pair.qp.qp_state]

    def close(self) -> None:
        """Close the device; a second call does nothing."""
        for pair in self._pairs.values():
            pair.close()
        self._pairs.clear()
        self.runtime.close()

    def _pair(self, number: int) -> _Pair:
        if number >> c.QPN_BITS:
            raise VerbsError(EINVAL, f"qp_num={number:#x} does not fit in {c.QPN_BITS} bits, which commands have")
        pair = self._pairs.get(number)
        if pair is None:
            pair = self._pairs[number] = _Pair(self, number)
            self.qpns.add(pair.qp.qp_num, number)
        return pair


_STATE = {
    e.IBV_QPS_RESET: c.RESET,
    e.IBV_QPS_INIT: c.INIT,
    e.IBV_QPS_RTR: c.READY_RECV,
    e.IBV_QPS_RTS: c.READY_SEND,
    e.IBV_QPS_SQD: c.READY_SEND,
    e.IBV_QPS_SQE: c.SQ_ERROR,
    e.IBV_QPS_ERR: c.ERROR,
}


def _unpack(layout: Layout, data: bytes) -> dict[str, int]:
    if len(data) != layout.size:
        raise VerbsError(EINVAL, f"{layout.name} has {layout.size} bytes, not {len(data)}")
    return layout.unpack(data)


def _register(pd: PD, vaddr: int, length: int, access: int) -> int:
    """Register a range of addresses behind the DMA port; its key."""
    key = pd.ctx.allocate(cmd.RES_MPT)
    entry = bytearray(MPT_ENTRY.size)
    entry[:4] = (flags_from_access(access) | MPT_REGION).to_bytes(4, "big")
    for name, value in (("key", key), ("pd", pd.handle), ("start", vaddr), ("length", length), ("address", vaddr)):
        MPT_ENTRY.put(entry, name, value)
    pd.ctx.command(cmd.SW2HW_MPT, key, inbox=bytes(entry))
    return key


def connect(
    stack: RoceStack, number: int, vaddr: int, length: int, lines: LineSocket, *, passive: bool, psn: int
) -> BufferInfo:
    """Connect queue pair ``number`` out of band, as the hosts of 003 do: exchange over TCP, then the two structures.

    Args:
        vaddr: first byte of the host memory that the peer may reach, ``length`` bytes of it.
        lines: a TCP connection to the peer, which speaks the exchange of :mod:`rnic.cm.exchange`.
        passive: this side answers; else it speaks first.
        psn: PSN of the first packet sent, 0 to 2**24 - 1.

    Returns:
        The peer's memory; its key has a short number in ``stack.keys``.

    Raises:
        ExchangeError: the peer is gone or sends nonsense.
        VerbsError: ``ENOENT`` where the peer shares no memory.
    """
    rkey = stack.register(number, vaddr, length)
    pair = stack._pair(number)
    config = stack.runtime.nic.config
    own = Endpoint(
        qpn=pair.qp.qp_num,
        psn=psn,
        gid=config.gid_table[0],
        udp_port=config.port,
        mtu=config.mtu,
        max_rd_atomic=_RD_ATOMIC,
        message_bytes=SEND_BYTES,
        receives=RECEIVES,
        buffers=(BufferInfo("memory", vaddr, length, rkey, "|u1", (length,)),),
    )
    if not passive:
        lines.send(own.to_line())
    peer = parse_endpoint(lines.receive(), lines.where)
    if not peer.buffers:
        raise VerbsError(ENOENT, f"{lines.where} shares no memory: let it share a buffer first")
    memory = peer.buffers[0]
    context = {
        "qp_num": number,
        "remote_psn": peer.psn,
        "local_psn": psn,
        "r_key": stack.keys.add(memory.rkey),
        "virtual_address": memory.addr & ADDRESS_END - 1,
    }
    request = {
        "qpn": number,
        "remote_qpn": peer.qpn,
        "remote_ip_address": int.from_bytes(peer.gid, "big"),
        "remote_udp_port": peer.udp_port,
    }
    stack.s_axis_qp_interface(c.QP_CONTEXT.pack(context | {"new_state": c.INIT}))
    stack.s_axis_qp_conn_interface(c.IF_CONN_REQ.pack(request))
    stack.s_axis_qp_interface(c.QP_CONTEXT.pack(context | {"new_state": c.READY_SEND}))
    if passive:
        lines.send(own.to_line())
    return memory

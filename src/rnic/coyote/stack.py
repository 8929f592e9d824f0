"""Coyote's RoCE stack (003) as a front door: a device driven by the structures of its shell interfaces alone.

Connections come in as ``qpContext`` and ``ifConnReq``, work as ``s_rdma_sq`` commands; acknowledgements go out as
``m_rdma_ack``, and all host memory is reached by ``m_rdma_rd_req`` and ``m_rdma_wr_req`` with 64-byte beats of
data. Behind the door stands the same NIC as behind the verbs, so its peer may be any RoCEv2 device.

Every queue pair has a driver context, and so an address space, of its own: that is what ``pid`` and ``vfid``
in a memory request tell the shell.
"""

from __future__ import annotations

from collections import deque
from errno import EINVAL
from typing import Any

from rnic.coyote.pair import DEPTH, Admit, Flight, Pair, is_read
from rnic.coyote.shell import ADDRESS_END, Shell
from rnic.link.base import Link
from rnic.mem.aliases import AliasTable
from rnic.mem.mpt import MPT_ENTRY, MPT_REGION, flags_from_access
from rnic.rings import coyote as c
from rnic.spec import commands as cmd
from rnic.spec import opcodes as op
from rnic.spec.errors import VerbsError
from rnic.spec.layout import Layout
from rnic.verbs import enums as e
from rnic.verbs.devices import runtime_on
from rnic.verbs.memory import PD

_LARGEST = 1 << 31
_REMOTE = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
_WORK = {c.APP_READ: op.WR_READ, c.APP_WRITE: op.WR_WRITE, c.APP_SEND: op.WR_SEND}
_RAW = {0x04: op.WR_SEND, 0x0A: op.WR_WRITE, 0x0C: op.WR_READ}
"""BTH opcodes of messages of one packet: what a raw command may be."""


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
        self.runtime.users += 1  # it stays when its last queue pair goes
        self.m_rdma_ack: deque[bytes] = deque()
        self.qpns = AliasTable("qpn", c.QPN_BITS)
        """Full QPNs by short number."""
        self.keys = AliasTable("r_key", c.KEY_BITS, first=1)
        """Full R_Keys by short number: those of peers, as ``qpContext`` names them. 0 is R_Key 0, as Coyote's hosts
        have it: the peer translates addresses itself."""
        self._pairs: dict[int, Pair] = {}

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
            self._full_key(said["r_key"])
        pair = self.pair(number)
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
        pair = self.pair(said["qpn"])
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
        pair = self.pair(number)
        key = _register(pair.pd, vaddr, length, _REMOTE)
        pair.regions.append(key)
        return key

    def open_space(self, number: int, admit: Admit) -> None:
        """Let the peer of queue pair ``number`` use addresses of the process as they are, under R_Key 0.

        Args:
            admit: asked with address, length and whether it is a WRITE, before a message of the peer begins and before
                each access of it.
        """
        self.pair(number).admit = admit

    # ------------------------------------------------------------------------------------ commands

    def s_rdma_sq(self, data: bytes) -> bool:
        """Take a command, if the stack is ready for one: false where it is not, and then nothing has happened.

        Commands are acknowledged in the order in which they were taken. One that cannot be carried out is answered, in
        its turn, by an acknowledgement with ``cmplt`` 0.

        Raises:
            VerbsError: ``EINVAL`` for a command of another length.
        """
        command = _unpack(c.RDMA_SQ, data)
        with self.runtime.lock:
            pair = self._pairs.get(command["qpn"])
            if pair is None:
                self._acknowledge(command, False)
                return True
            if not pair.room(command):
                return False
            pair.held.append(command)
            if not command["last"] and len(pair.held) < DEPTH:
                return True
            held, pair.held = pair.held, []
            for each in held:
                flight = Flight(each)
                pair.flights.append(flight)
                try:
                    pair.post(flight, *self._work(pair, each))
                except VerbsError:
                    pair.end(flight, False)
            self._drain(pair)
        return True

    def _full_key(self, short: int) -> int:
        return self.keys.full(short) if short else 0

    def _work(self, pair: Pair, command: dict[str, int]) -> tuple[int, int]:
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
        return opcode, self._full_key(pair.said.get("r_key", 0))

    def _acknowledge(self, command: dict[str, int], done: bool) -> None:
        pid, vfid = c.split_qpn(command["qpn"])
        values = {"ssn": command["ssn"], "vfid": vfid, "pid": pid, "cmplt": int(done), "rd": int(is_read(command))}
        self.m_rdma_ack.append(c.RDMA_ACK.pack(values))

    # ------------------------------------------------------------------------------------- driving

    def _drain(self, pair: Pair) -> None:
        """Acknowledge what is done, up to the first command that is not."""
        while pair.flights and (done := pair.flights[0].done) is not None:
            command = pair.flights.popleft().command
            if command["cmplt"] or not done:
                self._acknowledge(command, done)

    def progress(self) -> bool:
        """One round: the network, then completions. True if something happened."""
        did = self.runtime.progress()
        with self.runtime.lock:
            for pair in list(self._pairs.values()):
                count, found = pair.cq.poll(DEPTH) if pair.cq.ready() else (0, [])
                did = did or bool(count)
                for wc in found:
                    if not wc.opcode & e.IBV_WC_RECV:
                        pair.landed(wc.wr_id, wc.status == e.IBV_WC_SUCCESS)
                    elif wc.status == e.IBV_WC_SUCCESS:
                        pair.arrived.append((wc.wr_id, wc.byte_len))
                self._drain(pair)
                did = pair.deliver() or did
        return did

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

    def pair(self, number: int) -> Pair:
        """The queue pair of a short number, made when it is new. ``VerbsError`` EINVAL for a number beyond 12 bits."""
        if number >> c.QPN_BITS:
            raise VerbsError(EINVAL, f"qp_num={number:#x} does not fit in {c.QPN_BITS} bits, which commands have")
        pair = self._pairs.get(number)
        if pair is None:
            pair = self._pairs[number] = Pair(self, number)
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

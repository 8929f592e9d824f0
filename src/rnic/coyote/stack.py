"""Coyote's RoCE stack (003): a device driven only through the structures of its shell interfaces.

``qpContext`` and ``ifConnReq`` set up connections, ``s_rdma_sq`` commands request work, ``m_rdma_ack`` acknowledges it.
All host memory is accessed through ``m_rdma_rd_req`` and ``m_rdma_wr_req`` with 64-byte beats of data. The NIC is the
same as under the verbs, so its peer may be any RoCEv2 device.

Every queue pair has a driver context, and so an address space, of its own: that is what ``pid`` and ``vfid``
in a memory request tell the shell.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EINVAL
from typing import TYPE_CHECKING, Any, Protocol

from rnic.coyote.mmu import Mmu
from rnic.coyote.oper import CoyoteOper, rdmaSg
from rnic.coyote.pair import DEPTH, OWN_KINDS, Admit, Flight, Pair, is_read
from rnic.coyote.shell import ADDRESS_END, Shell
from rnic.engine import use
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

if TYPE_CHECKING:
    from rnic.engine._engine import TransferQueue

_LARGEST = 1 << 31
_REMOTE = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ
_WORK = {c.APP_READ: op.WR_READ, c.APP_WRITE: op.WR_WRITE, c.APP_SEND: op.WR_SEND}
_RAW = {0x04: op.WR_SEND, 0x0A: op.WR_WRITE, 0x0C: op.WR_READ}
"""Work-request opcodes of raw commands by BTH opcode, which must be of a one-packet message."""


class Buffer(Protocol):
    """Memory that one host has announced to the other."""

    @property
    def vaddr(self) -> int:
        """Virtual address of the memory."""

    @property
    def rkey(self) -> int:
        """R_Key of the memory."""


class RoceStack:
    """The stack of 003 on a link.

    Args:
        link: the network; a :class:`~rnic.link.beats.BeatLink` for the 512-bit data path, or any other.
        shell: memory and streams.
        mmu: the memory of processes. The engine accesses memory opened with :meth:`~rnic.coyote.pair.Pair.open`
            directly, without the shell. Without it the shell inspects each request.
        settings: ``seed`` and ``clock``, and fields of :class:`~rnic.device.config.NicConfig`.

    :attr:`m_rdma_ack` holds the acknowledgements, oldest first. Short QP numbers are the caller's choice; short
    keys come from :attr:`keys`.
    """

    def __init__(self, link: Link, shell: Shell, mmu: Mmu | None = None, **settings: Any) -> None:
        self.shell = shell
        self.mmu = mmu
        self.runtime = runtime_on(link, **settings)
        loop = self.runtime.engine_loop
        self._progress = self.runtime.progress if loop is None else loop.progress
        self.lock = threading.RLock()
        """Held around commands and their completions; :meth:`held` also takes the device's lock, after this one.

        Code that holds the device's lock, such as a shell or the host side of an MMU, never waits for this lock.
        """
        self._later: deque[dict[str, int]] = deque()
        """Commands that arrived while another thread held the lock, oldest first."""
        self.runtime.users += 1  # the runtime outlives its last queue pair
        self.m_rdma_ack: deque[bytes] = deque()
        self.acknowledged: Callable[[int, bool, bool], None] | None = None
        """Called with each acknowledgement, which then is not added to :attr:`m_rdma_ack`.

        Arguments: short QP number, whether it is of a READ, and whether it is complete.
        """
        self.qpns = AliasTable("qpn", c.QPN_BITS)
        """Full QPNs by short number."""
        self.keys = AliasTable("r_key", c.KEY_BITS, first=1)
        """Full R_Keys of peers by short number, as ``qpContext`` names them. 0 is R_Key 0, which Coyote's hosts use:
        the peer translates addresses itself."""
        self._pairs: dict[int, Pair] = {}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the stack and its device: nothing moves meanwhile. Not for code that runs under the device's lock."""
        with self.lock, self.runtime.lock:
            yield

    # --------------------------------------------------------------------------- connection set-up

    def s_axis_qp_interface(self, data: bytes) -> None:
        """Take a ``qpContext``: create queue pair ``qp_num`` if it is new, and bring it to ``new_state``.

        READY_RECV and READY_SEND wait for the ``ifConnReq``, which may come before or after.

        Raises:
            VerbsError: ``EINVAL`` for a state that cannot be asked for or a number beyond 12 bits, ``ENOENT`` for an
                unknown ``r_key``; nothing is changed then.
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
        """Take an ``ifConnReq``, the address of the peer of queue pair ``qpn``.

        Raises:
            VerbsError: ``EINVAL`` for a number beyond 12 bits or a queue pair whose peer can no longer change.
        """
        said = _unpack(c.IF_CONN_REQ, data)
        pair = self.pair(said["qpn"])
        if pair.qp.qp_state not in (e.IBV_QPS_RESET, e.IBV_QPS_INIT):
            raise VerbsError(EINVAL, f"qpn={said['qpn']:#x} is connected: bring it to RESET before it gets a peer")
        pair.peer = said
        if pair.target != c.RESET:
            pair.advance()

    def register(self, number: int, vaddr: int, length: int) -> int:
        """Register host memory for queue pair ``number`` and its peer; return the full R_Key, for the peer.

        Raises:
            VerbsError: ``EINVAL`` for a range beyond 48 bits, or one that the shell cannot access.
        """
        if length < 1 or vaddr < 0 or vaddr + length > ADDRESS_END:
            raise VerbsError(EINVAL, f"vaddr={vaddr:#x} length={length}: use at least 1 byte below 2**48")
        pair = self.pair(number)
        key = _register(pair.pd, vaddr, length, _REMOTE)
        pair.regions.append(key)
        pair.look()
        return key

    def open_space(self, number: int, admit: Admit) -> None:
        """Let the peer of queue pair ``number`` use virtual addresses of the process under R_Key 0.

        Args:
            admit: asked with address, length and whether it is a WRITE, before a message of the peer begins and before
                each access of it.
        """
        pair = self.pair(number)
        pair.admit = admit
        pair.look()

    def known(self, number: int) -> Pair | None:
        """Return the queue pair with a short number, if it exists."""
        return self._pairs.get(number)

    # ------------------------------------------------------------------------------------ commands

    def s_rdma_sq(self, data: bytes) -> bool:
        """Take a command if the stack is ready for one; otherwise return false and do nothing.

        Commands are acknowledged in the order in which they were taken. A command that fails is acknowledged in its
        turn with ``cmplt`` 0.

        Raises:
            VerbsError: ``EINVAL`` for a command of another length.
        """
        return self.take(_unpack(c.RDMA_SQ, data))

    def take(self, command: dict[str, int]) -> bool:
        """Take an unpacked command; see :meth:`s_rdma_sq`.

        This never waits for a thread that is processing commands: that thread, or :meth:`progress`, executes this one.
        """
        if self.lock.acquire(blocking=False):
            try:
                done = self._take_later() and self._take(command)
            finally:
                self.lock.release()
        elif done := len(self._later) < DEPTH:
            self._later.append(command)
        # the other thread may have checked the queue, below, before this command was added; then the lock is free
        while self._later and self.lock.acquire(blocking=False):
            try:
                if not self._take_later():
                    break
            finally:
                self.lock.release()
        return done

    def _take_later(self) -> bool:
        """Take the waiting commands; return false if there is no room for one of them."""
        while self._later:
            command = self._later.popleft()
            if not self._take(command):
                self._later.appendleft(command)
                return False
        return True

    def _take(self, command: dict[str, int]) -> bool:
        pair = self._pairs.get(command["qpn"])
        if pair is None:
            self._acknowledge(Flight(command, is_read(command), None), False)
            return True
        flight = Flight(command, is_read(command), pair.region(command))
        if not pair.room(flight):
            return False
        if pair.held or not command["last"]:
            pair.held.append(flight)
            if not command["last"] and len(pair.held) < DEPTH:
                return True
            held = pair.held[:]
            pair.held.clear()
            for each in held:
                self._post(pair, each)
        else:
            self._post(pair, flight)
        if pair.flights[0].done is not None:
            self._drain(pair)
        return True

    def _post(self, pair: Pair, flight: Flight) -> None:
        flight.behind = 0 if pair.transfers is None else pair.transfers.started
        pair.flights.append(flight)
        try:
            pair.post(flight, *self._work(pair, flight.command))
        except VerbsError:
            pair.end(flight, False)

    def transfers(
        self,
        number: int,
        opcodes: dict[CoyoteOper, int],
        local: Buffer,
        remote: Buffer,
        longest: int,
        counts: dict[str, int],
    ) -> TransferQueue | None:
        """Post and count a connected thread's plain transfers in C from now on.

        Args:
            number: its queue pair.
            opcodes: operations that may be plain, and their work request opcodes.
            local: its buffer.
            remote: its peer's buffer.
            longest: bytes of the longest transfer.
            counts: counters to which signaled transfers are added, ``rdma_read`` and ``rdma_write``.

        Returns:
            The queue that starts them; ``None`` if Python drives the device, or inspects each request.
        """
        pair = self.pair(number)
        driver: Any = pair.context.driver
        if use.ENGINE is None or driver.doorbell is None or pair.translation is None:
            return None
        pair.transfers = use.ENGINE.TransferQueue(
            pair.qp._queue, pair.cq._ring, self.lock, (self._later, pair.held), pair.flights, DEPTH,
            opcodes, rdmaSg, local, remote, longest, counts,
        )  # fmt: skip
        return pair.transfers

    def _full_key(self, short: int) -> int:
        return self.keys.full(short) if short else 0

    def _work(self, pair: Pair, command: dict[str, int]) -> tuple[int, int]:
        """Return the work-request opcode and the full remote key of a command."""
        size = command["message_size"]
        if command["mode"] == c.MODE_PARSE:
            opcode = _WORK.get(command["opcode"])
        else:
            opcode = _RAW.get(command["opcode"])
            if size > pair.mtu:
                opcode = None
        if opcode is None or command["mode"] > c.MODE_RAW or size > _LARGEST:
            raise VerbsError(EINVAL, f"command {command} is not supported by this stack")
        if command["local_vaddr"] + size > ADDRESS_END or command["remote_vaddr"] + size > ADDRESS_END:
            raise VerbsError(EINVAL, f"command {command} has an address beyond 48 bits")
        if opcode == op.WR_SEND:
            return opcode, 0
        return opcode, self._full_key(pair.said.get("r_key", 0))

    def _acknowledge(self, flight: Flight, done: bool) -> None:
        command = flight.command
        if self.acknowledged is not None:
            self.acknowledged(command["qpn"], flight.reads, done)
            return
        pid, vfid = c.split_qpn(command["qpn"])
        values = {"ssn": command["ssn"], "vfid": vfid, "pid": pid, "cmplt": int(done), "rd": int(flight.reads)}
        self.m_rdma_ack.append(c.RDMA_ACK.pack(values))

    # ------------------------------------------------------------------------------------- driving

    def _drain(self, pair: Pair) -> None:
        """Acknowledge commands that are done, up to the first that is not."""
        while pair.flights and (done := pair.flights[0].done) is not None and pair.has_turn(pair.flights[0]):
            flight = pair.flights.popleft()
            if flight.command["cmplt"] or not done:
                self._acknowledge(flight, done)

    def progress(self) -> bool:
        """Do one round: the network, then completions. Return whether anything happened.

        Completions are skipped while another thread processes them.
        """
        did = self._progress()
        if not self.lock.acquire(blocking=False):
            return did
        try:
            for pair in list(self._pairs.values()):
                own = pair.transfers
                moved, others = (False, True) if own is None else own.take()
                if others and pair.cq.ready():
                    moved = self._complete(pair) or moved
                elif pair.flights:
                    self._drain(pair)
                if pair.arrived:
                    moved = pair.deliver() or moved
                did = did or moved
            if self._later:
                self._take_later()
            if self.mmu is not None:
                self.mmu.count()
        finally:
            self.lock.release()
        return did

    def _complete(self, pair: Pair) -> bool:
        """Handle completions; return whether there were any."""
        count, found = pair.cq.poll(DEPTH)
        for wc in found:
            ok = wc.status == e.IBV_WC_SUCCESS
            if wc.opcode & e.IBV_WC_RECV:
                if ok:
                    pair.arrived.append((wc.wr_id, wc.byte_len))
            elif wc.wr_id >= OWN_KINDS:
                pair.landed(wc.wr_id, ok)
            elif pair.transfers is not None:
                pair.transfers.landed(wc.wr_id, ok)
                if not ok and self.acknowledged is not None:
                    self.acknowledged(pair.number, wc.opcode == e.IBV_WC_RDMA_READ, False)
        self._drain(pair)
        return bool(count)

    def state(self, number: int) -> int:
        """Return the present ``qpState`` of a queue pair; RESET for one that does not exist."""
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
        """Return the queue pair with a short number; create it if it is new.

        Raises:
            VerbsError: ``EINVAL`` for a number beyond 12 bits.
        """
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
    """Register a range of addresses behind the DMA port; return its key."""
    key = pd.ctx.allocate(cmd.RES_MPT)
    entry = bytearray(MPT_ENTRY.size)
    entry[:4] = (flags_from_access(access) | MPT_REGION).to_bytes(4, "big")
    for name, value in (("key", key), ("pd", pd.handle), ("start", vaddr), ("length", length), ("address", vaddr)):
        MPT_ENTRY.put(entry, name, value)
    pd.ctx.command(cmd.SW2HW_MPT, key, inbox=bytes(entry))
    return key

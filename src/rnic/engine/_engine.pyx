# cython: language_level=3, boundscheck=False, wraparound=False
"""The engine for Python: where a device's state lies, handed to C, and the effects that C tells of, carried out.

:class:`Port` is what all queue pairs of a device share, :class:`Executor` one queue pair. They keep pointers: a view
that they were given is kept with its pointer, memory of a key is forgotten when the key is told to have changed.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

import ctypes

from rnic.state.flights import FRACTION_BITS
from rnic.wire.bursts import TxBurst

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *thing)
    PyObject *PyList_GET_ITEM(object items, Py_ssize_t place)

cdef extern from "crc32.h" nogil:
    uint32_t engine_crc32(uint32_t state, const uint8_t *data, uint64_t length) noexcept

cdef extern from "state.h" nogil:
    struct memory_key:
        pass
    struct completion_queue:
        uint64_t logsize
    struct queue_pair:
        uint64_t batch_limit
        uint64_t flying
        uint64_t window
    struct send_slot:
        pass
    struct read_piece:
        pass
    struct reply:
        pass
    struct scatter:
        pass

cdef extern from "engine.h" nogil:
    ctypedef uint32_t (*engine_crc)(uint32_t state, const uint8_t *data, uint64_t length) noexcept nogil
    ctypedef uint32_t atomic_word "_Atomic uint32_t"
    struct engine_reach:
        uint8_t *bytes
    struct engine_port:
        const memory_key *keys
        const engine_reach *reach
        uint64_t key_count
        engine_crc crc
        uint64_t ack_every
        uint64_t probe
        uint64_t rq_almost_full
    struct engine_cq:
        completion_queue *record
        uint8_t *ring
        uint64_t entries
        atomic_word *block
    struct engine_flow:
        uint8_t source[16]
        uint8_t destination[16]
        uint16_t source_port
        uint16_t destination_port
        uint16_t address_bytes
    struct engine_qp:
        uint8_t *qpc
        queue_pair *record
        send_slot *sends
        read_piece *pieces
        reply *replies
        scatter *scatters
        uint64_t send_slots
        const uint8_t *sq
        uint64_t sq_bytes
        const uint8_t *rq
        uint64_t rq_bytes
        atomic_word *block
        engine_cq *send_cq
        engine_cq *recv_cq
        uint32_t send_cqn
        uint32_t recv_cqn
        uint64_t signal_all
        engine_flow flow
    struct engine_flight:
        uint64_t peer_limit, peer_inflight, peer_promised, peer_waiting
        uint64_t nic_limit, nic_inflight, nic_promised, nic_queued
        uint64_t srtt, rttvar
    struct engine_meta:
        engine_flow flow
        uint32_t ident
        uint32_t frag
    struct engine_effects:
        uint32_t effects
        uint32_t end
        uint64_t packets, acknowledged, landed, flown, admitted, sample, grounded
        uint32_t counts[32]
    struct engine_burst:
        uint64_t offset
        uint64_t length
        uint32_t segment
        uint32_t count
    struct engine_out:
        uint8_t *bytes
        uint64_t room
        uint64_t used
        uint64_t max_segments
        uint32_t open
        uint32_t count
        engine_burst bursts[256]
    enum:
        ENGINE_BURSTS
        ENGINE_DONE
        ENGINE_TOLD
        IDENT_UNSEEN
        EFFECT_SCHEDULE
        EFFECT_ACKNOWLEDGED
        EFFECT_NOTIFY_SEND
        EFFECT_NOTIFY_RECV
        EFFECT_NO_ROOM
        EFFECT_ARM
        EFFECT_GO_ON
        EFFECT_LOST
        EFFECT_SILENT
        ENGINE_COUNTS
        MAX_PATH_MTU
        MAX_TRANSPORT_HEADERS
        ICRC_BYTES
        NO_SUCH "NONE"
    uint64_t engine_layout_hash()
    size_t engine_receive(const engine_port *port, engine_qp *qp, const uint8_t *buffer, size_t length, size_t segment,
                          size_t start, const engine_meta *meta, const engine_flight *flight, uint64_t now,
                          engine_effects *effects)
    uint64_t engine_send(const engine_port *port, engine_qp *qp, uint64_t now, uint64_t budget, engine_flight *flight,
                         engine_out *out, engine_effects *effects)
    void engine_timeout(const engine_port *port, engine_qp *qp, const engine_flight *flight, uint64_t now,
                        engine_effects *effects)
    uint64_t engine_reply(const engine_port *port, engine_qp *qp, uint64_t budget, engine_out *out,
                          engine_effects *effects)

cdef int FRACTION = FRACTION_BITS
COUNTERS = (
    "acks_received",
    "acks_coalesced",
    "retransmitted_packets",
    "retransmitted_requests",
    "drop_psn_gap",
    "drop_naked",
    "drop_duplicate",
    "drop_stale_response",
    "drop_ghost_response",
    "sequence_naks_sent",
    "rnr_naks_sent",
    "sequence_naks_received",
    "rnr_naks_received",
    "rewinds",
    "ack_timeouts",
    "probes",
)
assert len(COUNTERS) == ENGINE_COUNTS
cdef uint64_t NONE_WORD = 0xFFFFFFFFFFFFFFFFULL
DEF MAX_PACKETS = 256
DEF OUT_BYTES = MAX_PACKETS * 4132
DEF POOL = 8
DEF COPY_BELOW = 4096
DEF KEEP_LOCK_BELOW = 16384

# Where packets are made. Bursts of some length stay where they were made, and a buffer is used again once nobody holds
# it any more; short ones are copied out, so that no lone ACK keeps a large buffer.
cdef list _pool = [None] * POOL
cdef int _next = 0

cdef bytes _buffer():
    global _next
    cdef int step, place
    cdef PyObject *kept
    for step in range(POOL):
        place = (_next + step) % POOL
        kept = PyList_GET_ITEM(_pool, place)
        if kept != <PyObject *> None and Py_REFCNT(kept) == 1:
            _next = place
            return <bytes> kept
    made = PyBytes_FromStringAndSize(NULL, OUT_BYTES)
    _next = (_next + 1) % POOL
    _pool[_next] = made
    return made


cdef uint8_t *_address(object view, Py_ssize_t *length) except? NULL:
    """Where a buffer lies. It stays there as long as the object lives that was asked."""
    cdef Py_buffer found
    PyObject_GetBuffer(view, &found, PyBUF_SIMPLE)
    cdef uint8_t *at = <uint8_t *> found.buf
    if length != NULL:
        length[0] = found.len
    PyBuffer_Release(&found)
    return at


cdef int _take_flow(engine_flow *to, object flow) except -1:
    cdef bytes source = flow.src, destination = flow.dst
    cdef size_t size = len(source)
    if (size != 4 and size != 16) or len(destination) != <Py_ssize_t> size:
        raise ValueError(f"addresses of {len(source)} and {len(destination)} bytes")
    to.address_bytes = <uint16_t> size
    memcpy(to.source, PyBytes_AS_STRING(source), size)
    memcpy(to.destination, PyBytes_AS_STRING(destination), size)
    to.source_port = flow.sport
    to.destination_port = flow.dport
    return 0


def layout_hash():
    """The layout hash that the engine was compiled with."""
    return engine_layout_hash()


cdef class Port:
    """What all queue pairs of a device share.

    Args:
        arena: its memory.
        table: its memory table, whose records lie in ``arena``.
        config: settings of the transport.
    """

    cdef engine_port port
    cdef engine_reach *reach
    cdef object arena
    cdef uint8_t *base
    cdef object guards

    def __cinit__(self, arena, table, config):
        self.arena = arena.memory
        self.guards = table.guards
        self.base = _address(self.arena, NULL)
        self.port.keys = <const memory_key *> (self.base + <size_t> table.place)
        self.port.key_count = table.max_entries
        self.reach = <engine_reach *> calloc(<size_t> table.max_entries, sizeof(engine_reach))
        if self.reach == NULL:
            raise MemoryError("no memory for pointers to registered memory")
        self.port.reach = self.reach
        self.port.crc = engine_crc32
        self.port.ack_every = config.ack_every
        self.port.probe = config.probe
        self.port.rq_almost_full = config.rq_almost_full

    def __dealloc__(self):
        free(self.reach)

    def changed(self, entry):
        """A memory key opens something else from now on, or nothing."""
        cdef size_t index = entry.index
        if index >= self.port.key_count:
            raise IndexError(f"index={index}: the memory table has {self.port.key_count} keys")
        view = entry.view
        self.reach[index].bytes = _address(view, NULL) if entry.valid and view is not None else NULL


cdef class _Cq:
    """A completion queue whose ring is in reach, as it was when it was looked at."""

    cdef engine_cq cq
    cdef object queue, view

    def __cinit__(self, queue):
        cdef Py_ssize_t ring = 0, block = 0
        self.queue = queue
        self.view = queue.view
        self.cq.record = <completion_queue *> <uintptr_t> ctypes.addressof(queue.key)
        self.cq.ring = _address(self.view, &ring)
        self.cq.entries = ring >> 5
        self.cq.block = <atomic_word *> (_address(queue.regs.buf, &block) + <Py_ssize_t> queue.regs.at)


cdef class Executor:
    """One queue pair. What it does not know it leaves to ``qp`` itself, on the same bytes.

    Args:
        port: the device's.
        qp: the queue pair, a :class:`~rnic.transport.qp.QueuePair`.
        block: its queue block as 32-bit words, or ``None``: then it takes no receive entries.

    ``punted`` says whether :meth:`send` left something to the reference.
    """

    cdef Port port
    cdef engine_qp place
    cdef engine_meta meta
    cdef object qp, host, ctx, requester, responder, counters, flights
    cdef object block, send_ring, rq, sq_view, rq_view, flow, in_flow
    cdef _Cq send_cq, recv_cq
    cdef readonly bint punted
    cdef readonly int end

    def __cinit__(self, Port port, qp, block):
        cdef Py_ssize_t length = 0
        memory = qp.memory
        self.port = port
        self.qp, self.host, self.ctx = qp, qp.host, qp.ctx
        self.requester, self.responder = qp.requester, qp.responder
        self.counters, self.flights = qp.host.counters, qp.host.flights
        self.send_ring = qp.send_ring
        self.rq = None if qp.uses_srq else qp.rq
        self.place.qpc = <uint8_t *> <uintptr_t> ctypes.addressof(qp.ctx)
        self.place.record = <queue_pair *> (port.base + <size_t> memory.record)
        self.place.sends = <send_slot *> (port.base + 8 * <size_t> memory.sends)
        self.place.pieces = <read_piece *> (port.base + 8 * <size_t> memory.pieces)
        self.place.replies = <reply *> (port.base + 8 * <size_t> memory.replies)
        self.place.scatters = <scatter *> (port.base + 8 * <size_t> memory.scatters)
        self.place.send_slots = memory.entries
        self.place.signal_all = qp.signal_all
        self.block = block
        if block is not None:
            self.place.block = <atomic_word *> _address(block, NULL)

    # ------------------------------------------------------------------- where things lie that Python may move

    cdef int _find_flow(self) except -1:
        flow = self.qp.flow
        if flow is self.flow:
            return 0
        self.flow = None
        if flow is not None:
            _take_flow(&self.place.flow, flow)
        self.flow = flow
        return 0

    cdef int _find_rings(self) except -1:
        cdef Py_ssize_t length = 0
        view = self.send_ring.view
        if view is not self.sq_view:
            self.place.sq = NULL
            self.sq_view = view
            if view is not None:
                self.place.sq = _address(view, &length)
            self.place.sq_bytes = length
        return 0

    cdef int _find_receive_ring(self) except -1:
        cdef Py_ssize_t length = 0
        if self.rq is None:
            return 0
        view = self.rq.view
        if view is not self.rq_view:
            self.place.rq = NULL
            self.rq_view = view
            if view is not None:
                self.place.rq = _address(view, &length)
            self.place.rq_bytes = length
        return 0

    cdef int _find_send_cq(self) except -1:
        cdef uint32_t number = self.ctx.cqn_snd
        queue = self.qp.send_cq.queue
        if self.send_cq is None or queue is None or self.send_cq.queue is not queue or self.send_cq.view is not queue.view:
            self.place.send_cq = NULL
            self.send_cq = None if queue is None or queue.view is None else _Cq(queue)
            if self.send_cq is not None:
                self.place.send_cq = &self.send_cq.cq
        self.place.send_cqn = number
        return 0

    cdef int _find_recv_cq(self) except -1:
        cdef uint32_t number = self.ctx.cqn_rcv
        queue = self.qp.recv_cq.queue
        if self.recv_cq is None or queue is None or self.recv_cq.queue is not queue or self.recv_cq.view is not queue.view:
            self.place.recv_cq = NULL
            self.recv_cq = None if queue is None or queue.view is None else _Cq(queue)
            if self.recv_cq is not None:
                self.place.recv_cq = &self.recv_cq.cq
        self.place.recv_cqn = number
        return 0

    # ------------------------------------------------------------------- receiving

    def receive(self, burst, Py_ssize_t start, uint64_t now):
        """Take packets for this queue pair from ``start`` of a burst from its peer; the bytes taken, 0 for a punt."""
        cdef Py_buffer source
        cdef engine_effects effects
        cdef engine_flight flight
        cdef size_t taken, at = start, length, segment
        if self.port.guards or self.responder.guarded is not None:
            return 0
        flow = burst.flow
        if flow is not self.in_flow:
            self.in_flow = None
            _take_flow(&self.meta.flow, flow)
            self.in_flow = flow
        ident = burst.ident
        self.meta.ident = IDENT_UNSEEN if ident is None else ident
        self.meta.frag = burst.frag
        self._find_receive_ring()
        self._find_send_cq()
        self._find_recv_cq()
        peer = self.requester.peer
        PyObject_GetBuffer(burst.buf, &source, PyBUF_SIMPLE)
        try:
            length = burst.length
            segment = burst.segment if burst.segment > 0 else length
            if length > <size_t> source.len or start < 0:
                raise ValueError(f"{length} bytes from {start} on of a buffer of {source.len}")
            while at < length:
                memset(&effects, 0, sizeof(effects))
                flight.srtt, flight.rttvar = peer.srtt, peer.rttvar
                if length - at < KEEP_LOCK_BELOW:
                    taken = engine_receive(&self.port.port, &self.place, <const uint8_t *> source.buf, length, segment,
                                           at, &self.meta, &flight, now, &effects)
                else:
                    with nogil:
                        taken = engine_receive(&self.port.port, &self.place, <const uint8_t *> source.buf, length,
                                               segment, at, &self.meta, &flight, now, &effects)
                at += taken
                self._received(&effects, now)
                if effects.end != ENGINE_TOLD:
                    break
        finally:
            PyBuffer_Release(&source)
        self.end = effects.end
        return at - start

    cdef int _count(self, engine_effects *effects) except -1:
        cdef int i
        for i in range(ENGINE_COUNTS):
            if effects.counts[i]:
                self.counters[COUNTERS[i]] += effects.counts[i]
        return 0

    cdef int _received(self, engine_effects *effects, uint64_t now) except -1:
        cdef uint32_t told = effects.effects
        requester = self.requester
        self._count(effects)
        if told & EFFECT_NOTIFY_RECV:
            self.recv_cq.queue.notify()
        if told & EFFECT_ACKNOWLEDGED:
            peer = requester.peer
            if effects.sample != NONE_WORD:
                peer.measured(effects.sample, now)
            peer.acknowledged(effects.acknowledged)
            if effects.landed:
                self.flights.give(peer, effects.landed)
            if told & EFFECT_NOTIFY_SEND:
                self.send_cq.queue.notify()
        if told & EFFECT_GO_ON:
            requester.go_on()
        return self._after(effects, now)

    cdef int _after(self, engine_effects *effects, uint64_t now) except -1:
        """What the peer's account learns of losses, and what follows from deadlines that moved."""
        cdef uint32_t told = effects.effects
        if told & EFFECT_SILENT:
            self.requester.peer.silent(now)
        if told & EFFECT_LOST:
            self.requester.peer.lost(now)
        if effects.grounded:
            self.flights.give(self.requester.peer, effects.grounded)
        if told & EFFECT_SCHEDULE:
            self.host.schedule(self.qp)
        if told & EFFECT_ARM:
            self.qp.rearm()
        return 0

    def timeout(self, uint64_t now):
        """Handle a deadline that may have come, as the queue pair's ``handle_timer``; false for a punt."""
        cdef engine_effects effects
        cdef engine_flight flight
        peer = self.requester.peer
        flight.srtt, flight.rttvar = peer.srtt, peer.rttvar
        memset(&effects, 0, sizeof(effects))
        engine_timeout(&self.port.port, &self.place, &flight, now, &effects)
        self.end = effects.end
        if effects.end != ENGINE_DONE:
            return False
        self._count(&effects)
        self._after(&effects, now)
        return True

    # ------------------------------------------------------------------- sending

    cdef bytes _begin(self, engine_out *out):
        buffer = _buffer()
        out.bytes = <uint8_t *> PyBytes_AS_STRING(buffer)
        out.room = OUT_BYTES
        out.used = 0
        out.open = 0
        out.count = 0
        out.max_segments = self.place.record.batch_limit
        return buffer

    cdef int _emit(self, engine_out *result, bytes buffer, list out) except -1:
        cdef uint32_t i
        cdef engine_burst *burst
        view = None
        for i in range(result.count):
            burst = &result.bursts[i]
            if result.used < COPY_BELOW:
                data = PyBytes_FromStringAndSize(<char *> result.bytes + burst.offset, <Py_ssize_t> burst.length)
            else:
                if view is None:
                    view = memoryview(buffer)
                data = view[burst.offset : burst.offset + burst.length]
            out.append(TxBurst(self.flow, [data], burst.segment, burst.count, burst.length))
        return 0

    def send(self, uint64_t now, uint64_t budget, list out):
        """Send requests as :meth:`~rnic.transport.requester.Requester.produce` does; the number of packets.

        Where ``punted``, the requester is to go on with what is left of the budget.
        """
        cdef engine_effects effects
        cdef engine_flight flight
        cdef engine_out result
        requester, flights = self.requester, self.flights
        self.punted = True
        self._find_flow()
        self._find_rings()
        if self.flow is None or requester.flow is not self.flow:
            return 0
        peer = requester.peer
        flight.peer_limit = <uint64_t> peer.limit_16 >> FRACTION
        flight.peer_inflight, flight.peer_promised, flight.peer_waiting = peer.inflight, peer.promised, peer.waiting
        flight.nic_limit, flight.nic_inflight, flight.nic_promised = flights.limit, flights.inflight, flights.promised
        flight.nic_queued = flights.queued
        flight.srtt, flight.rttvar = peer.srtt, peer.rttvar
        memset(&effects, 0, sizeof(effects))
        buffer = self._begin(&result)
        if budget > MAX_PACKETS:
            budget = MAX_PACKETS
        if self.place.record.window - self.place.record.flying < 8:
            made = engine_send(&self.port.port, &self.place, now, budget, &flight, &result, &effects)
        else:
            with nogil:
                made = engine_send(&self.port.port, &self.place, now, budget, &flight, &result, &effects)
        self.end = effects.end
        self.punted = effects.end != ENGINE_DONE
        if made:
            self._emit(&result, buffer, out)
            flights.took(peer, effects.flown, effects.admitted)
            self._count(&effects)
        if effects.effects & EFFECT_NO_ROOM:
            flights.wait(requester)
        if effects.effects & EFFECT_ARM:
            self.qp.rearm()
        if not self.punted:
            flights.turn_over(requester)
        return made

    def reply(self, uint64_t budget, list out):
        """Send the ACKs and NAKs that are due, where nothing else waits with them; the number sent."""
        cdef engine_effects effects
        cdef engine_out result
        self._find_flow()
        if self.flow is None:
            return 0
        memset(&effects, 0, sizeof(effects))
        buffer = self._begin(&result)
        made = engine_reply(&self.port.port, &self.place, budget, &result, &effects)
        if made:
            self._emit(&result, buffer, out)
        return made

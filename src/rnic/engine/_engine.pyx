# cython: language_level=3, boundscheck=False, wraparound=False
"""The engine for Python: where a device's state lies, handed to C, and the effects that C tells of, carried out.

:class:`Port` is what all queue pairs of a device share, :class:`Executor` one queue pair. They keep pointers: a view
that they were given is kept with its pointer, memory of a key is forgotten when the key is told to have changed.
"""

from cpython.buffer cimport PyBUF_ND, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

import ctypes

from rnic.spec.states import ST_UD
from rnic.state.counters import PACKET_COUNTERS
from rnic.wire.bursts import TxBurst
from rnic.wire.ident import learn

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *thing)
    PyObject *PyList_GET_ITEM(object items, Py_ssize_t place)

cdef extern from "queue_pair/crc32.h" nogil:
    uint32_t engine_crc32(uint32_t state, const uint8_t *data, uint64_t length) noexcept
    uint32_t engine_crc32_copy(uint32_t state, uint8_t *to, const uint8_t *data, uint64_t length) noexcept

cdef extern from "memory/backends.h" nogil:
    struct proc_mem:
        int fd
    struct proc_mem_checked_self "proc_mem_checked":
        proc_mem memory
        int maps
    const engine_memory proc_mem_checked
    struct in_process_self "in_process":
        uint8_t *bytes
        uint64_t base
    const engine_memory in_process

cdef extern from "io/poll.h" nogil:
    struct tx_socket:
        int fd
        int ipv4, tclass, hop_limit
    struct loopback:
        pass
    struct tx_path:
        tx_socket *socket
        loopback *loopback
        uint8_t name[28]
        uint32_t name_bytes, max_segments, flow_label
        int tclass, hop_limit
    struct rx_buffer:
        uint8_t *buffer
        size_t size
        uint32_t segment, name_bytes
        uint8_t name[28]
        uint8_t tclass, hop_limit
        uint32_t flow_label
    struct tx_counts:
        uint64_t sent, drop_tx_too_long, drop_tx_unreachable, drop_tx_blocked, drop_tx_error, gso_refused, link_errors
    struct tx_loss:
        uint64_t seed, asked, one_in
    struct io_poll_state "io_poll":
        loopback *loopback
        uint32_t phase, received, rx_index, gathers, inflight_floor, socket_checks, may_splice
        uint64_t rx_offset, sent, rx_bytes, tx_bytes, too_short, socket_errors, lost, spliced
        tx_loss loss
        tx_counts counts
        engine_out out
        engine_sending sending
        rx_buffer rx_buffers[4]
    enum:
        POLL_RECEIVE_LIMIT
        POLL_BUFFER_BYTES
        POLL_TIMERS_AT_LEAST_EVERY
        POLL_OUT_BYTES
        POLL_BUDGET
        GATHERED
    int io_poll_ring(io_poll_state *round, engine_qp *qp, uint64_t length)
    void io_poll_init(io_poll_state *round, engine_device *device, int fd, uint8_t *buffers, uint8_t *out)
    void io_poll_end(io_poll_state *round)
    void io_poll_add_sender(io_poll_state *round, const uint8_t *name, uint32_t name_bytes, const engine_flow *flow)
    void io_poll_forget_sender(io_poll_state *round, const uint8_t *name, uint32_t name_bytes)
    uint64_t io_poll_good_packets(io_poll_state *round, const uint8_t *name, uint32_t name_bytes)
    void io_poll_run "io_poll"(io_poll_state *round, uint64_t now, uint64_t budget, engine_stop_info *told)
    void io_poll_drop(io_poll_state *round, uint64_t at)
    void io_poll_send(io_poll_state *round, uint64_t now, uint64_t budget, engine_stop_info *told)

ctypedef void (*io_poll_call)(io_poll_state *round, uint64_t now, uint64_t budget, engine_stop_info *told) noexcept nogil

cdef uint64_t NONE_WORD = 0xFFFFFFFFFFFFFFFFULL
DEF MAX_PACKETS = 256
DEF OUT_BYTES = MAX_PACKETS * 4132
DEF POOL = 8
DEF MAX_ROUTES = 4096
DEF COPY_BELOW = 4096
DEF KEEP_LOCK_BELOW = 16384
DEF TELL_NS = 50000
DEF WRITE_BACK_EVERY = 1023
DEF OUTS = 16

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


cdef int _take_dcqcn(engine_congestion *to, settings) except -1:
    """What :class:`~rnic.cc.dcqcn.DcqcnSettings` say."""
    to.line_rate, to.least_rate, to.g_shift = settings.line_rate, settings.least_rate, settings.g_shift
    to.alpha_ns, to.timer_ns, to.counter_bytes = settings.alpha_ns, settings.timer_ns, settings.counter_bytes
    to.recovery_rounds = settings.recovery_rounds
    to.additive_rate, to.hyper_rate = settings.additive_rate, settings.hyper_rate
    return 0


def layout_hash():
    """The layout hash that the engine was compiled with."""
    return engine_layout_hash()


cdef class _Segment:
    """A program's memory, by descriptors that are its own as long as it lives."""

    cdef engine_segment segment
    cdef proc_mem_checked_self program

    def __cinit__(self, int memory, int maps):
        self.program.memory.fd, self.program.maps = memory, maps
        self.segment.memory = &proc_mem_checked
        self.segment.self = &self.program


cdef class _Near:
    """A region at hand, by the addresses of its key."""

    cdef in_process_self near

    def __cinit__(self, view, uint64_t base):
        self.near.bytes, self.near.base = _address(view, NULL), base


cdef class Port:
    """What all queue pairs of a device share.

    Args:
        arena: its memory.
        table: its memory table, whose records lie in ``arena``.
        config: settings of the transport.
    """

    def __cinit__(self, arena, table, config):
        self.arena = arena.memory
        self.guards = table.guards
        self.segments = {}
        self.base = _address(self.arena, NULL)
        self.port.keys = <const memory_key *> (self.base + <size_t> table.place)
        self.port.key_count = table.max_entries
        self.reach = <engine_mapping *> calloc(<size_t> table.max_entries, sizeof(engine_mapping))
        if self.reach == NULL:
            raise MemoryError("no memory for pointers to registered memory")
        self.port.reach = self.reach
        self.port.crc = engine_crc32
        self.port.crc_copy = engine_crc32_copy
        self.port.ack_every = config.ack_every
        self.port.probe = config.probe
        self.port.rq_almost_full = config.rq_almost_full
        self.port.icrc_cache = <engine_icrc_cache *> calloc(ENGINE_ICRC_CACHE, sizeof(engine_icrc_cache))

    def __dealloc__(self):
        free(self.reach)
        free(self.ways)
        free(self.port.icrc_cache)
        free(self.ahead.staging)

    def look_ahead(self):
        """From now on regions are reached several pieces at once, as a program reaches its own by system calls."""
        self.ahead.staging = <uint8_t *> calloc(ENGINE_PREFETCH, ENGINE_PREFETCH_BYTES)
        self.ways = <engine_segment *> calloc(<size_t> self.port.key_count, sizeof(engine_segment))
        if self.ahead.staging == NULL or self.ways == NULL:
            raise MemoryError("no memory to look ahead")
        self.port.prefetch = &self.ahead

    def strip(self):
        """From now on packets are headers and lengths, as a simulated fabric carries them."""
        self.port.bare = 1

    def react(self, settings):
        """From now on queue pairs whose rate the engine keeps react to notifications as these say.

        Args:
            settings: :class:`~rnic.cc.settings.CongestionSettings` of mode ``"none"`` or ``"dcqcn"``.
        """
        cdef engine_congestion *here = &self.port.congestion
        _take_dcqcn(here, settings.dcqcn)
        here.dcqcn, here.merge_ns = settings.mode == "dcqcn", settings.merge_ns

    def changed(self, entry):
        """A memory key opens something else from now on, or nothing."""
        cdef size_t index = entry.index
        if index >= self.port.key_count:
            raise IndexError(f"index={index}: the memory table has {self.port.key_count} keys")
        cdef _Segment segment
        view = entry.view
        self.reach[index].bytes = _address(view, NULL) if entry.valid and view is not None else NULL
        self.reach[index].segment = NULL
        self.segments.pop(index, None)
        if self.reach[index].bytes != NULL and self.port.prefetch != NULL:
            near = self.segments[index] = _Near(view, entry.base)
            self.ways[index].memory, self.ways[index].self = &in_process, &(<_Near> near).near
            self.reach[index].bytes, self.reach[index].segment = NULL, &self.ways[index]
        if entry.valid and view is None:
            descriptors = getattr(entry.port, "descriptors", None)
            if descriptors is not None:
                segment = self.segments[index] = _Segment(*descriptors)
                self.reach[index].segment = &segment.segment


cdef class _Cq:
    """A completion queue whose ring is in reach, as it was when it was looked at."""

    def __cinit__(self, queue):
        cdef Py_ssize_t ring = 0, block = 0
        self.queue = queue
        self.view = queue.view
        self.cq.record = <completion_queue *> <uintptr_t> ctypes.addressof(queue.key)
        self.cq.ring = _address(self.view, &ring)
        self.cq.entries = ring >> 5
        self.cq.block = <atomic_word *> (_address(queue.regs.buf, &block) + <Py_ssize_t> queue.regs.at)


cdef class Pump


cdef class _Route:
    """Where the packets of a flow go."""

    cdef tx_path path
    cdef object flow
    cdef Wire wire  # while C has the pointer


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
    cdef object qp, host, ctx, requester, responder, counters, inflight
    cdef object block, send_ring, rq, sq_view, rq_view, flow, in_flow
    cdef _Cq send_cq, recv_cq
    cdef readonly bint punted
    cdef readonly int end
    cdef Device device
    cdef object door
    cdef list leads

    def __cinit__(self, Port port, qp, block):
        cdef Py_ssize_t length = 0
        memory = qp.memory
        self.port = port
        self.qp, self.host, self.ctx = qp, qp.host, qp.ctx
        self.requester, self.responder = qp.requester, qp.responder
        self.counters, self.inflight = qp.host.counters, qp.host.inflight
        self.send_ring = qp.send_ring
        srq = getattr(qp, "srq", None)
        self.rq = qp.rq if not qp.uses_srq else None if srq is None else srq.ring
        self.place.qpc = <uint8_t *> <uintptr_t> ctypes.addressof(qp.ctx)
        self.place.record = <queue_pair *> (port.base + <size_t> memory.record)
        self.place.sends = <send_slot *> (port.base + 8 * <size_t> memory.sends)
        self.place.pieces = <read_piece *> (port.base + 8 * <size_t> memory.pieces)
        self.place.replies = <reply *> (port.base + 8 * <size_t> memory.replies)
        self.place.resources = <resource *> (port.base + 8 * <size_t> memory.resources)
        self.place.scatters = <scatter *> (port.base + 8 * <size_t> memory.scatters)
        self.place.send_slots = memory.entries
        self.place.signal_all = qp.signal_all
        if srq is not None:
            self.place.srq = <shared_receive_queue *> (port.base + <size_t> srq.record)
            self.place.srq_block = <atomic_word *> (_address(srq.regs.buf, &length) + <Py_ssize_t> srq.regs.at)
        self.block = block
        if block is not None:
            self.place.block = <atomic_word *> _address(block, NULL)
        if qp.ctx.servtype == ST_UD:
            self.place.destinations = <engine_destination *> calloc(ENGINE_DESTINATIONS, sizeof(engine_destination))
            self.leads = [None] * ENGINE_DESTINATIONS

    def __dealloc__(self):
        free(self.place.destinations)

    # ------------------------------------------------------------------- where things lie that Python may move

    cdef int find(self) except -1:
        """Find everything at once, for the device."""
        cdef Device device = self.device
        self.place.route = NULL
        self._find_flow()
        self._find_rings()
        self._find_receive_ring()
        self._find_send_cq()
        self._find_recv_cq()
        if self.flow is not None and self.requester.flow is self.flow:
            # a fabric goes by the addresses alone
            self.place.route = &self.place if self.port.port.bare else device.route(self.flow)
        self.place.found = device.device.changes
        return 0

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

    def know(self, message, flow, uint64_t max_segments):
        """A datagram's destination: ``flow`` leads to it, ``max_segments`` packets a burst."""
        cdef uint64_t[2] gid
        cdef engine_destination *place
        cdef _Route route
        if self.place.destinations == NULL:
            return
        gid[0], gid[1] = message.entry_5, message.entry_6
        cdef uint64_t at = engine_destination_place(message.entry_2, gid)
        place = &self.place.destinations[at]
        place.max_segments = 0
        if self.device is None:
            route = _Route()
            route.flow = flow
        else:
            if self.device.route(flow) == NULL:
                return
            route = self.device.routes[flow]
        self.leads[at] = route  # while C has the pointer
        place.route = &route.path
        _take_flow(&place.flow, flow)
        place.path, place.hop_limit = message.entry_2, message.hop_limit
        place.gid[0], place.gid[1] = gid[0], gid[1]
        place.found = self.place.found
        place.max_segments = max_segments

    # ------------------------------------------------------------------- receiving

    def receive(self, burst, Py_ssize_t start, uint64_t now):
        """Take packets for this queue pair from ``start`` of a burst from its peer; the bytes taken, 0 for a punt."""
        cdef Py_buffer source
        cdef engine_effects effects
        cdef engine_inflight flight
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
        self.meta.tclass, self.meta.hop_limit, self.meta.flow_label = burst.tclass, burst.hop_limit, burst.flow_label
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
                flight.srtt, flight.rttvar, flight.alone = peer.srtt, peer.rttvar, peer.users == 1
                if length - at < KEEP_LOCK_BELOW:
                    taken = engine_receive(&self.port.port, &self.place, <const uint8_t *> source.buf, length, segment,
                                           at, &self.meta, &flight, now, &effects)
                else:
                    with nogil:
                        taken = engine_receive(&self.port.port, &self.place, <const uint8_t *> source.buf, length,
                                               segment, at, &self.meta, &flight, now, &effects)
                at += taken
                self._received(&effects, now)
                if effects.end != ENGINE_ATTENTION and effects.end != ENGINE_AGAIN:
                    break
        finally:
            PyBuffer_Release(&source)
        self.end = effects.end
        return at - start

    cdef int _count(self, engine_effects *effects) except -1:
        cdef int i
        for i in range(ENGINE_COUNTS):
            if effects.counts[i]:
                self.counters[PACKET_COUNTERS[i]] += effects.counts[i]
        return 0

    cdef int _received(self, engine_effects *effects, uint64_t now) except -1:
        cdef uint32_t told = effects.effects
        requester = self.requester
        self._count(effects)
        if told & EFFECT_FIRST:
            self.host.schedule(self.qp)
        if told & EFFECT_NOTIFY_RECV:
            self.recv_cq.queue.notify()
        if told & EFFECT_ACKNOWLEDGED:
            peer = requester.peer
            if effects.sample != NONE_WORD:
                peer.measured(effects.sample, now)
            peer.acknowledged(effects.acknowledged)
            if effects.landed:
                self.inflight.release(peer, effects.landed)
            if told & EFFECT_NOTIFY_SEND:
                self.send_cq.queue.notify()
        if told & EFFECT_GO_ON:
            requester.resume()
        if told & EFFECT_BEGUN:
            self.host.schedule(self.qp)
        return self._after(effects, now)

    cdef int _after(self, engine_effects *effects, uint64_t now) except -1:
        """What the peer's account learns of losses, and what follows from deadlines that moved."""
        cdef uint32_t told = effects.effects
        if told & EFFECT_SILENT:
            self.requester.peer.timed_out(now)
        if told & EFFECT_LOST:
            self.requester.peer.lost(now)
        if effects.grounded:
            self.inflight.release(self.requester.peer, effects.grounded)
        if told & EFFECT_SCHEDULE:
            self.host.schedule(self.qp)
        if told & EFFECT_ARM:
            self.qp.rearm()
        return 0

    def timeout(self, uint64_t now):
        """Handle a deadline that may have come, as the queue pair's ``handle_timer``; false for a punt."""
        cdef engine_effects effects
        cdef engine_inflight flight
        peer = self.requester.peer
        flight.srtt, flight.rttvar, flight.alone = peer.srtt, peer.rttvar, peer.users == 1
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
        out.route = NULL
        out.carry = NULL
        out.turned = NULL
        out.carried = 0
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
            out.append(TxBurst(self._flow_of(burst.route), [data], burst.segment, burst.count, burst.length))
        return 0

    cdef object _flow_of(self, const void *to):
        """The path of a burst: the peer's, or a datagram's destination."""
        cdef _Route route
        if to != NULL:
            for route in self.leads:
                if route is not None and <const void *> &route.path == to:
                    return route.flow
        return self.flow

    def send(self, uint64_t now, uint64_t budget, list out):
        """Send requests as :meth:`~rnic.transport.requester.Requester.produce` does; the number of packets.

        Where ``punted``, the requester is to go on with what is left of the budget.
        """
        cdef engine_effects effects
        cdef engine_inflight flight
        cdef engine_out result
        requester, inflight = self.requester, self.inflight
        self.punted = True
        self._find_flow()
        self._find_rings()
        self._find_send_cq()
        if self.flow is None or requester.flow is not self.flow:
            return 0
        peer = requester.peer
        flight.peer_limit = inflight.limit_to(peer)
        flight.peer_inflight, flight.peer_promised, flight.peer_waiting = peer.inflight, peer.promised, peer.waiting
        flight.nic_limit, flight.nic_inflight = inflight.limit_of_all(), inflight.packets
        flight.nic_promised, flight.others = inflight.promised, inflight.crowded()
        flight.nic_queued = inflight.queued
        flight.nic_slipped = inflight.slipped
        flight.srtt, flight.rttvar, flight.alone = peer.srtt, peer.rttvar, peer.users == 1
        memset(&effects, 0, sizeof(effects))
        buffer = self._begin(&result)
        if budget > MAX_PACKETS:
            budget = MAX_PACKETS
        if self.place.record.window - self.place.record.inflight < 8:
            made = engine_send(&self.port.port, &self.place, now, budget, &flight, &result, &effects)
        else:
            with nogil:
                made = engine_send(&self.port.port, &self.place, now, budget, &flight, &result, &effects)
        self.end = effects.end
        self.punted = effects.end != ENGINE_DONE
        if made:
            self._emit(&result, buffer, out)
            if effects.flown:
                inflight.took(peer, effects.flown, effects.admitted)
            self._count(&effects)
        if effects.effects & EFFECT_NOTIFY_SEND:
            self.send_cq.queue.notify()
        if effects.effects & EFFECT_NO_ROOM:
            inflight.wait(requester)
        if effects.effects & EFFECT_ARM:
            self.qp.rearm()
        if not self.punted:
            inflight.turn_over(requester)
        return made

    def reply(self, uint64_t budget, list out):
        """Send up to ``budget`` packets of the replies that are due; 0 where the reference is to."""
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


cdef class Device:
    """All queue pairs of a device: receiving and turns without Python, as far as the engine knows what is asked.

    Args:
        port: what they share.
        nic: the device, which takes over what the engine leaves.

    """

    def __cinit__(self, Port port, nic):
        self.port, self.nic, self.sending, self.counters = port, nic, nic.sending, nic.counters
        self.device.shared = &port.port
        engine_device_find(&self.device, port.base)
        self.device.changes = 1
        self.qps = <engine_qp **> calloc(<size_t> 1 << self.device.log_qps, sizeof(engine_qp *))
        if self.qps == NULL:
            raise MemoryError("no memory for pointers to queue pairs")
        self.device.qps = self.qps
        self.routes, self.executors, self.doors = {}, {}, {}

    def __dealloc__(self):
        free(self.qps)

    def share(self, budget):
        """Keep to what the whole device may have in flight, by a :class:`~rnic.transport.budget.Budget`, or, with
        ``None``, to the NIC's own accounts."""
        self.device.sched.budget = NULL
        self.budget = budget  # while C has the address of its page
        if budget is not None:
            self.device.sched.slot = budget.slot
            self.device.sched.budget = _address(budget.page, NULL)

    def enroll(self, qp, block):
        """Make the executor that a queue pair has from now on; ``block`` is its queue block."""
        cdef Executor executor = Executor(self.port, qp, block)
        cdef size_t slot = <size_t> executor.qp.number & ((<size_t> 1 << self.device.log_qps) - 1)
        executor.device = self
        executor.door = executor.qp.regs.block
        self.doors[executor.door] = executor
        self.executors[slot] = executor  # while C has the pointer
        self.qps[slot] = &executor.place
        return executor

    def dismiss(self, number):
        """A queue pair has no executor any more."""
        cdef size_t slot = <size_t> number & ((<size_t> 1 << self.device.log_qps) - 1)
        cdef Executor executor = self.executors.pop(slot, None)
        self.qps[slot] = NULL
        if executor is not None:
            del self.doors[executor.door]

    def drop(self, uint64_t record):
        """A queue pair is destroyed: it has no turn any more."""
        if self.pump is not None:
            io_poll_drop((<Pump> self.pump).round_state, record)

    def invalidate(self):
        """Queues, their rings or paths may lie elsewhere than before: all is found anew when it is needed."""
        self.device.changes += 1

    cdef const void *route(self, flow) except? NULL:
        cdef _Route route = self.routes.get(flow)
        if route is None:
            if len(self.routes) >= MAX_ROUTES:
                # whoever has one of these finds another before it is used
                self.routes.clear()
                self.device.changes += 1
            route = self.routes[flow] = _Route()
            route.flow = flow
        if self.pump is not None and not (<Pump> self.pump).lead(route):
            return NULL
        return &route.path

    # ------------------------------------------------------------------- what C leaves to others

    cdef int _stopped(self, engine_stop_info *told) except -1:
        """Do what it asks for that concerns one queue pair."""
        cdef Executor executor
        qp = self.sending.qps[told.qp]
        try:
            if told.stop == STOP_MAP_QP:
                executor = qp.executor
                executor.find()
                return 0
            if told.effects & EFFECT_NOTIFY_RECV:
                qp.recv_cq.queue.notify()
            if told.effects & EFFECT_NOTIFY_SEND:
                qp.send_cq.queue.notify()
        except Exception as error:
            if told.stop == STOP_MAP_QP:
                executor.place.route = NULL
                executor.place.found = self.device.changes
            self.nic.internal_error("packet", qp, error)
        return 0

    cdef object _take_over(self, uint64_t now, engine_sending *sending, list out):
        """Python takes an open turn over; packets made."""
        cdef uint64_t count
        self.nic.now_ns = now
        if not self.device.sched.inflight.spare_line:
            self.nic.inflight.reserve_line()
        count, polite = self.sending.take_over(
            now, out, sending.qp, sending.limit, sending.step, sending.count, sending.bytes, sending.room
        )
        if polite:
            sending.deferred[sending.deferred_count] = sending.qp
            sending.deferred_count += 1
        sending.sent += count if count else 1
        sending.qp = 0
        self.device.counts.tx_packets += count

    cdef int _count(self, uint64_t now) except -1:
        """What C counted is counted by the device."""
        cdef int i
        cdef engine_counts *counts = &self.device.counts
        counters = self.counters
        if counts.rx_packets or counts.tx_packets:
            if counts.rx_packets:
                counters["rx_packets"] += counts.rx_packets
            if counts.tx_packets:
                counters["tx_packets"] += counts.tx_packets
            self.nic.note_traffic(now)
        for i in range(ENGINE_COUNTS):
            if counts.events[i]:
                counters[PACKET_COUNTERS[i]] += counts.events[i]
        memset(counts, 0, sizeof(counts[0]))
        if not self.device.sched.inflight.spare_line:
            self.nic.inflight.reserve_line()
        return 0

    # ------------------------------------------------------------------- sans I/O

    def receive(self, burst, Py_ssize_t start, uint64_t now):
        """Take packets from ``start`` of a burst on; the bytes taken, up to the first that is the reference's."""
        cdef Py_buffer source
        cdef engine_stop_info told
        cdef engine_meta meta
        cdef size_t at = start
        if self.port.guards or burst.ecn == 3:
            return 0
        _take_flow(&meta.flow, burst.flow)
        ident = burst.ident
        meta.ident = IDENT_UNSEEN if ident is None else ident
        meta.frag = burst.frag
        meta.tclass, meta.hop_limit, meta.flow_label = burst.tclass, burst.hop_limit, burst.flow_label
        self.nic.now_ns = now
        PyObject_GetBuffer(burst.buf, &source, PyBUF_SIMPLE)
        try:
            if burst.length > source.len or start < 0 or burst.segment < 1:
                raise ValueError(f"{burst.length} bytes from {start} on of a buffer of {source.len}")
            while True:
                at += engine_device_receive(&self.device, <const uint8_t *> source.buf, burst.length, burst.segment, at,
                                          &meta, now, &told)
                if told.stop != STOP_NOTIFY and told.stop != STOP_MAP_QP:
                    break
                self._stopped(&told)
        finally:
            PyBuffer_Release(&source)
        self.end = told.end
        self._count(now)
        return at - start

    def send(self, uint64_t now, uint64_t budget, list out):
        """Turns, as :meth:`~rnic.device.sending.Sending.produce` gives them once everything before them is done."""
        cdef engine_stop_info told
        cdef engine_out result
        cdef engine_sending *sending = <engine_sending *> calloc(1, sizeof(engine_sending))
        cdef _Route route
        if sending == NULL:
            raise MemoryError("no memory for a round of turns")
        flows = {}
        if budget > POLL_BUDGET:
            budget = POLL_BUDGET
        buffer = PyBytes_FromStringAndSize(NULL, POLL_OUT_BYTES)
        view = memoryview(buffer)
        result.bytes = <uint8_t *> PyBytes_AS_STRING(buffer)
        result.room = POLL_OUT_BYTES
        result.used = result.open = result.count = result.carried = 0
        result.carry = NULL
        result.turned = NULL
        try:
            while True:
                first = result.count
                engine_device_send(&self.device, now, budget, &result, sending, &told)
                for i in range(first, result.count):
                    at = result.bursts[i].offset
                    for route in self.routes.values():
                        if <const void *> &route.path == result.bursts[i].route:
                            flows[at] = route.flow
                    data = bytes(view[at : at + result.bursts[i].length])
                    out.append(TxBurst(flows[at], [data], result.bursts[i].segment, result.bursts[i].count, len(data)))
                if told.stop == STOP_OUT_FULL:
                    result.used = result.open = result.count = 0
                elif told.stop == STOP_MAP_QP or told.stop == STOP_NOTIFY:
                    self._stopped(&told)
                elif told.stop == STOP_PUNT_TURN:
                    if told.effects:
                        self._stopped(&told)
                    self._take_over(now, sending, out)
                else:
                    break
            engine_device_sent(&self.device, sending)
        finally:
            free(sending)
        self._count(now)

    def due(self, uint64_t now, uint64_t most):
        """Handle deadlines, up to one that is the reference's.

        Returns:
            The record of its queue pair, 0 for none; and how many of ``most`` are left.
        """
        cdef uint64_t record = engine_device_due(&self.device, now, &most)
        self._count(now)
        return record, most

    @property
    def deadline(self):
        """When :meth:`due` wants to be called, or ``NEVER``."""
        return engine_device_deadline(&self.device)


cdef uint8_t *_OUT[OUTS]
"""Buffers of POLL_OUT_BYTES that nobody uses, the one used last at the end."""
cdef int _outs = 0


cdef object _view(memory, const rx_buffer *slot):
    """The bytes of a slot: those in memory of ours as they lie there, a copy of those that a sender has handed over."""
    cdef Py_ssize_t length = 0
    cdef uint8_t *base = _address(memory, &length)
    cdef Py_ssize_t first = slot.buffer - base
    if slot.buffer < base or first >= length:
        return memoryview(PyBytes_FromStringAndSize(<char *> slot.buffer, <Py_ssize_t> slot.size))
    return memory[first : first + <Py_ssize_t> slot.size]


cdef int _at_work = 0
"""Pumps that there are and that go on."""


cdef class Pump:
    """A device's rounds on a UDP socket, or on a wire in memory.

    Args:
        device: the device.
        link: a :class:`~rnic.link.udp.UdpLink`, whose sockets it uses, or a :class:`~rnic.link.loopback.LoopbackLink`,
            which gets a wire; link and pump take turns.
        send: hands packets that Python made to the link.

    ``off``: something was asked for that the pump cannot do; the device takes the link alone from now on.
    """

    cdef Device device
    cdef io_poll_state *round_state
    cdef object link, nic, send, counters, memory, guards, sending, doorbells, rung, gsi, frames
    cdef list failed_cqs, final_bursts, waiting
    cdef Wire wire
    cdef dict of_link, of_nic
    cdef dict outlets
    cdef tx_socket *shapes
    cdef readonly bint off
    cdef bint counted
    cdef uint32_t rounds
    cdef uint64_t told_at
    cdef bint visited  # Python ran under a lock that C had taken: what the rounds rely on may have changed

    def __cinit__(self, Device device, link, send):
        cdef int place
        self.device, self.nic, self.link, self.send = device, device.nic, link, send
        self.counters, self.guards = device.counters, device.port.guards
        self.sending, self.gsi, self.doorbells = device.nic.sending, device.nic.gsi, device.nic.resources.doorbells
        self.rung = self.doorbells.rung
        self.failed_cqs, self.final_bursts, self.waiting = self.sending.failed_cqs, self.sending.final_bursts, self.gsi.waiting
        self.of_link, self.of_nic = link.__dict__, device.nic.__dict__
        self.frames = () if link.frames is None else link.frames
        self.round_state = <io_poll_state *> calloc(1, sizeof(io_poll_state))
        self.outlets = {outlet: place for place, outlet in enumerate(link.outlets)}
        self.shapes = <tx_socket *> calloc(len(self.outlets) or 1, sizeof(tx_socket))
        if self.round_state == NULL or self.shapes == NULL:
            raise MemoryError("no memory for rounds")
        for outlet, place in self.outlets.items():
            self.shapes[place].fd = outlet.descriptor
            self.shapes[place].ipv4 = len(link.address) == 4
        if link.wired:
            self.wire = link.use_wire(Wire(link.window_bytes))
            self.memory = self.wire.memory
        else:
            self.memory = memoryview(bytearray(POLL_RECEIVE_LIMIT * POLL_BUFFER_BYTES))
        io_poll_init(self.round_state, &device.device, -1 if link.wired else link.fileno(),
                        _address(self.memory, NULL), NULL)
        if self.wire is not None:
            self.round_state.loopback = self.wire.wire
        self.round_state.may_splice = not link.wired and link.lends
        device.pump = self
        self._join()
        device.device.piggyback_acks = 1  # one system call, and one datagram to take, less for each message that is answered
        device.device.changes += 1
        self._borrow()

    def __dealloc__(self):
        self._leave()
        io_poll_end(self.round_state)
        free(self.round_state)
        free(self.shapes)

    cdef void _join(self) noexcept:
        global _at_work
        self.counted = True
        _at_work += 1

    cdef void _leave(self) noexcept:
        global _at_work
        _at_work -= self.counted
        self.counted = False

    def stop(self):
        """The device takes the link alone from now on."""
        if not self.off:
            self._give_back()
            self._tell(self.told_at)
        self._leave()
        self.off = True
        self.device.pump = None
        self.device.device.piggyback_acks = 0
        self.device.device.changes += 1

    cdef bint lead(self, _Route route) except -1:
        """Where a route's packets leave, and where they go; false where the link alone knows."""
        flow = route.flow
        if flow.sl and self.wire is None:
            return False
        outlet, raw, segments = self.link.tx_path(flow)
        cdef bytes name = raw
        if self.wire is None:
            route.path.socket = &self.shapes[<int> self.outlets[outlet]]
        elif outlet is None:
            return False
        else:
            route.wire = outlet
            route.path.loopback, route.path.flow_label = route.wire.wire, flow.flow_label
        route.path.name_bytes = <uint32_t> len(name)
        memcpy(route.path.name, PyBytes_AS_STRING(name), len(name))
        route.path.max_segments = segments
        route.path.tclass, route.path.hop_limit = flow.tclass, flow.hop_limit
        return True

    # ------------------------------------------------------------------- the sockets' options are the link's too

    cdef int _borrow(self) except -1:
        cdef int place
        for outlet, place in self.outlets.items():
            self.shapes[place].tclass, self.shapes[place].hop_limit = outlet.tclass, outlet.hop_limit
        if any([outlet.sl for outlet in self.outlets]):
            self.stop()  # packets of service level 0 would leave with the priority of others
        return 0

    cdef int _give_back(self) except -1:
        cdef int place
        for outlet, place in self.outlets.items():
            outlet.tclass, outlet.hop_limit = self.shapes[place].tclass, self.shapes[place].hop_limit
        return 0

    @property
    def spliced(self):
        """Bursts that left by their pages, without being copied once more."""
        return self.round_state.spliced

    def lose(self, uint64_t one_in, uint64_t seed):
        """Lose one in ``one_in`` of the packets that come, none for 0; the seed says which."""
        self.round_state.loss.seed, self.round_state.loss.asked, self.round_state.loss.one_in = seed, 0, one_in

    def carry(self, list bursts):
        """Send what Python made."""
        self._give_back()
        try:
            self.send(bursts)
        finally:
            self._borrow()

    # ------------------------------------------------------------------- rounds

    def takes(self, link):
        """Whether this round is its own: it knows all that may be needed, and nobody looks at packets or delays them."""
        return self._takes(link)

    cdef bint _takes(self, link) except -1:
        if self.off or link is not self.link:
            return False
        if <object> self.guards:
            self.stop()
            return False
        # a device that is not enabled is held
        return (
            _of(self.of_link, "up") is True and _of(self.of_link, "lone") is True and _of(self.of_nic, "held") is False
            and _of(self.of_nic, "tracer").enabled is False and not self.frames
        )

    @property
    def owes(self):
        """Whether there is something to do before turns are taken that the device does."""
        return self._owes()

    cdef bint _owes(self) except -1:
        return self.failed_cqs or self.final_bursts or self.waiting

    def late(self, uint64_t now):
        """Whether a deadline of the device has come."""
        return self._late(now)

    cdef bint _late(self, uint64_t now) except -1:
        if engine_device_deadline(&self.device.device) <= now:
            return True
        nic = self.nic
        at = nic.write_back_at
        if at is not None and at <= now and nic.qps:
            return True
        agent = self.gsi.agent
        if agent is None:
            return False
        at = agent.next_deadline_ns()
        return at is not None and at <= now

    cdef int _take_doorbells(self) except -1:
        cdef Executor executor
        for _ in range(len(self.rung)):
            block = self.doorbells.take()
            executor = self.device.doors.get(block)
            if executor is None or engine_device_ring(&self.device.device, &executor.place):
                self.sending.ring(block)
        return 0

    def round(self, uint64_t now, uint64_t budget):
        """Receive and take, else send; bursts that came, and whether anything happened."""
        self._round(now, budget)
        return self.round_state.received, self.round_state.received or self.round_state.sent

    cdef uint8_t *_lend(self) except NULL:
        """What leaves is laid out in memory that the pumps share: that of many NICs would not stay in the cache.

        What was there before is to be put back afterwards, since a round may come within a round: from a signal's handler.
        """
        global _outs
        cdef uint8_t *lent
        if _outs:
            _outs -= 1
            lent = _OUT[_outs]
        else:
            lent = <uint8_t *> malloc(POLL_OUT_BYTES)
            if lent == NULL:
                raise MemoryError("no memory for what leaves")
        return lent

    cdef void _give(self, uint8_t *before) noexcept:
        """Give back what the round has now, which need not be what was lent: wires trade it."""
        global _outs
        cdef uint8_t *lent = self.round_state.out.bytes
        self.round_state.out.bytes = before
        if _outs < OUTS:
            _OUT[_outs] = lent
            _outs += 1
        else:
            free(lent)

    cdef int _run(self, io_poll_call call, bint short, uint64_t now, uint64_t budget) except -1:
        """A round, or turns alone, until they are over. ``short``: the interpreter is kept meanwhile."""
        cdef engine_stop_info told
        cdef uint8_t *before = self.round_state.out.bytes
        if self.rung:
            self.nic.now_ns = now
            self._take_doorbells()
        self.round_state.out.bytes = self._lend()
        try:
            while True:
                if short:
                    call(self.round_state, now, budget, &told)
                else:
                    with nogil:
                        call(self.round_state, now, budget, &told)
                if told.stop == STOP_DONE:
                    return 0
                self.nic.now_ns = now
                self._stopped(&told, now)
        finally:
            self._give(before)

    cdef int _round(self, uint64_t now, uint64_t budget) except -1:
        self._run(io_poll_run, False, now, budget)
        if self.round_state.received or self.round_state.sent:
            self._count(now)
        return 0

    def turns(self, uint64_t now, uint64_t budget):
        """Send what waits; whether anything was."""
        return self._turns(now, budget, False)

    cdef bint _turns(self, uint64_t now, uint64_t budget, bint short) except -1:
        """``short``: a short message alone, for which to let go of the interpreter takes longer than what others gain."""
        self.round_state.sent = 0
        self._run(io_poll_send, short, now, budget)
        self._count(now)
        return self.round_state.sent != 0

    cdef int _stopped(self, engine_stop_info *told, uint64_t now) except -1:
        cdef io_poll_state *state = self.round_state
        cdef list out
        self.visited = True
        if told.stop == STOP_PUNT_PACKET:
            at, state.rx_index, state.rx_offset = state.rx_offset, state.rx_index + 1, 0
            self._reference(&state.rx_buffers[state.rx_index - 1], at, now)
        elif told.stop == STOP_PUNT_TURN:
            if told.effects:
                self.device._stopped(told)
            out = []
            sent = state.sending.sent
            self.device._take_over(now, &state.sending, out)
            if out:
                state.sent += len(out)
                self.carry(out)
        else:
            self.device._stopped(told)
        return 0

    cdef int _reference(self, rx_buffer *slot, uint64_t at, uint64_t now) except -1:
        """The rest of a burst is the reference's."""
        cdef engine_flow reverse
        cdef bytes name = PyBytes_FromStringAndSize(<char *> slot.name, slot.name_bytes)
        view = _view(self.memory, slot)
        burst = self.link.make_burst(name, view, slot.segment, slot.tclass, slot.hop_limit, slot.flow_label)
        flow = burst.flow
        right = io_poll_good_packets(self.round_state, slot.name, slot.name_bytes)
        if right and flow.idents is not None:
            learn(flow, right)  # those that the engine took since then had the idents that it expected
        self.nic.receive(burst, now, at)
        if flow.settled or (flow.idents is not None and flow.idents.small):
            _take_flow(&reverse, flow)
            io_poll_add_sender(self.round_state, slot.name, slot.name_bytes, &reverse)
        else:
            io_poll_forget_sender(self.round_state, slot.name, slot.name_bytes)
        return 0

    cdef int _count(self, uint64_t now) except -1:
        """What C counted is told Python, not each time but at once where something is out of the common."""
        cdef tx_counts *counts = &self.round_state.counts
        self.rounds += 1
        if (
            now - self.told_at < TELL_NS and not counts.link_errors and not counts.gso_refused
            and self.device.device.sched.inflight.spare_line
        ):
            return 0
        return self._tell(now)

    cdef int _tell(self, uint64_t now) except -1:
        cdef io_poll_state *state = self.round_state
        cdef tx_counts *counts = &state.counts
        counters = self.counters
        self.told_at = now
        if state.rx_bytes:
            counters["rx_bytes"] += state.rx_bytes
        if state.tx_bytes:
            counters["tx_bytes"] += state.tx_bytes
        if state.too_short or state.socket_errors:
            self.link.failed(too_short=state.too_short, rx_socket_error=state.socket_errors)
        if counts.drop_tx_too_long or counts.drop_tx_unreachable or counts.drop_tx_blocked or counts.drop_tx_error:
            self.link.failed(
                drop_tx_too_long=counts.drop_tx_too_long,
                drop_tx_unreachable=counts.drop_tx_unreachable,
                drop_tx_blocked=counts.drop_tx_blocked,
                drop_tx_error=counts.drop_tx_error,
            )
        if state.lost:
            counters["fault_rx_drop"] += state.lost
            state.lost = 0
        if self.wire is not None:
            lost = loopback_lost(self.wire.wire)
            if lost:
                self.link.failed(drop_rx_queue_full=lost)
        if counts.link_errors:
            self.visited = True
            self.link.check_interface()
            if self.wire is not None:
                self.device.device.changes += 1  # a wire has ended: another may lead there now
        if counts.gso_refused:
            self.link.failed(gso_refused=counts.gso_refused)
            self._refused()
        state.rx_bytes = state.tx_bytes = state.too_short = state.socket_errors = 0
        memset(counts, 0, sizeof(counts[0]))
        if self.rounds > WRITE_BACK_EVERY:
            self.rounds = 0
            self.device.sending.write_back()
        return self.device._count(now)

    cdef int _refused(self) except -1:
        """The system refused a burst: the link sends packet by packet to there as well."""
        cdef _Route route
        for route in list(self.device.routes.values()):
            if route.path.socket != NULL and route.path.max_segments == 1:
                self.link.refused(route.flow)
        return 0


include "_loopback.pxi"
include "_device_lock.pxi"
include "_loop.pxi"
include "_queues.pxi"
include "_bypass_driver.pxi"
include "_idle_wait.pxi"

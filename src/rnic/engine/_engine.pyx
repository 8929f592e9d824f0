# cython: language_level=3, boundscheck=False, wraparound=False
"""The engine for Python: pass the addresses of a device's state to C, and perform the effects that C reports.

:class:`Shared` is what all queue pairs of a device share, :class:`Executor` one queue pair, :class:`Device` all of
them, :class:`IoPoll` a device with its link. Each keeps a view for each pointer. :meth:`Shared.key_changed` drops the
memory of a key.
"""

from cpython.buffer cimport PyBUF_ND, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

import ctypes

from rnic.cc.control import CONTROL_OTHER
from rnic.spec.states import ST_UD
from rnic.state.counters import PACKET_COUNTERS
from rnic.state.fault_table import ACTION_NAMES as _FAULT_NAMES
from rnic.wire.bursts import TxBurst

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *thing)
    PyObject *PyList_GET_ITEM(object items, Py_ssize_t place)

cdef extern from "queue_pair/crc32.h" nogil:
    uint32_t engine_crc32(uint32_t state, const uint8_t *data, uint64_t length) noexcept
    uint32_t engine_crc32_copy(uint32_t state, uint8_t *to, const uint8_t *data, uint64_t length) noexcept

cdef extern from "queue_pair/translation.h" nogil:
    uint64_t engine_tlb_use_first(const engine_translation *by, uint64_t va, uint64_t length, uint64_t need)
    uint64_t engine_tlb_insert(const engine_translation *by, uint64_t first, uint64_t pages, uint64_t rights)

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
        int ipv4, tclass, hop_limit, priority
    struct loopback:
        pass
    struct tx_path:
        tx_socket *socket
        loopback *loopback
        uint8_t name[28]
        uint32_t name_bytes, max_segments, flow_label, source_port
        int tclass, hop_limit, priority
    struct rx_buffer:
        uint8_t *buffer
        size_t size
        uint32_t segment, name_bytes
        uint8_t name[28]
        uint8_t tclass, hop_limit
        uint32_t flow_label
    struct tx_counts:
        uint64_t sent, drop_tx_too_long, drop_tx_unreachable, drop_tx_blocked, drop_tx_error, gso_refused, link_errors
        uint64_t priority_refused
    struct fault_run:
        uint8_t tclass
    struct faults_state "faults":
        const engine_shared *shared
        uint8_t address[16]
        uint32_t address_bytes
        uint16_t port
        uint64_t counted[2][7]
        uint64_t full[2]
        uint64_t port_down
    struct io_poll_state "io_poll":
        loopback *loopback
        uint32_t phase, received, rx_index, gathers, inflight_floor, socket_checks, may_splice
        uint64_t rx_offset, sent, rx_bytes, tx_bytes, too_short, socket_errors, spliced
        fault_run rx_run
        faults_state *faults
        tx_counts counts
        engine_out out
        engine_sending sending
        rx_buffer rx_buffers[4]
    enum:
        POLL_RECEIVE_LIMIT
        POLL_BUFFER_BYTES
        POLL_TIMERS_AT_LEAST_EVERY
        POLL_PARTIAL_ROUND
        POLL_OUT_BYTES
        POLL_BUDGET
        GATHERED
    int io_poll_ring(io_poll_state *round, engine_qp *qp, uint64_t length)
    void io_poll_init(io_poll_state *round, engine_device *device, int fd, uint8_t *buffers, uint8_t *out)
    void io_poll_end(io_poll_state *round)
    void io_poll_set_faults(io_poll_state *round, faults_state *faults)
    const rx_buffer *io_poll_punt(io_poll_state *round, uint64_t *start, uint64_t *end)
    uint64_t io_poll_deadline(const io_poll_state *round)
    void io_poll_add_sender(io_poll_state *round, const uint8_t *name, uint32_t name_bytes, const engine_flow *flow)
    void io_poll_forget_sender(io_poll_state *round, const uint8_t *name, uint32_t name_bytes)
    uint64_t io_poll_good_packets(io_poll_state *round, const uint8_t *name, uint32_t name_bytes)
    void io_poll_run "io_poll"(io_poll_state *round, uint64_t now, uint64_t budget, engine_stop_info *told)
    void io_poll_drop(io_poll_state *round, uint64_t at)
    void io_poll_send(io_poll_state *round, uint64_t now, uint64_t budget, engine_stop_info *told)

cdef extern from "io/own_fd.h" nogil:
    struct own_fds:
        pass
    void own_fds_init(own_fds *group)
    void own_fds_watch(own_fds *group, int fd)

cdef extern from "io/faults.h" nogil:
    void faults_init(faults_state *faults, const uint8_t *table, uint8_t *counts)
    void faults_free(faults_state *faults)
    void faults_expire(faults_state *faults)
    uint64_t faults_deadline(const faults_state *faults)

cdef extern from "state.h" nogil:
    const uint64_t NEVER
    enum:
        FAULT_ACTIONS
        FAULT_TABLE_BYTES
        FAULT_COUNT_BYTES

ctypedef void (*io_poll_call)(io_poll_state *poll, uint64_t now, uint64_t budget,
                              engine_stop_info *told) noexcept nogil

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

# Output buffers. A long burst stays in its buffer, which is reused once nothing references it. A short burst is copied
# out, so that a single ACK does not keep a large buffer alive.
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


cdef uint8_t *buffer_address(object view, Py_ssize_t *length) except? NULL:
    """Return the address of a buffer, valid as long as the object lives."""
    cdef Py_buffer found
    PyObject_GetBuffer(view, &found, PyBUF_SIMPLE)
    cdef uint8_t *at = <uint8_t *> found.buf
    if length != NULL:
        length[0] = found.len
    PyBuffer_Release(&found)
    return at


cdef int fill_flow(engine_flow *to, object flow) except -1:
    """Copy a :class:`~rnic.wire.flow.Flow` into its C structure."""
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
    """Copy :class:`~rnic.cc.dcqcn.DcqcnSettings` into their C structure."""
    to.line_rate, to.least_rate, to.g_shift = settings.line_rate, settings.least_rate, settings.g_shift
    to.alpha_ns, to.timer_ns, to.counter_bytes = settings.alpha_ns, settings.timer_ns, settings.counter_bytes
    to.recovery_rounds = settings.recovery_rounds
    to.additive_rate, to.hyper_rate = settings.additive_rate, settings.hyper_rate
    return 0


def layout_hash():
    """Return the layout hash of the tables that the engine was compiled from."""
    return engine_layout_hash()


def use_tlb(tlb, uint64_t number, uint64_t va, uint64_t length, uint64_t need, lock=None):
    """Return the number of leading pages of a range that a :class:`~rnic.mem.tlb.Tlb` has with rights ``need``.

    They become the most recently used. Empty and wrapping ranges have none. ``lock`` is the device's lock, or ``None``
    if the caller holds it.
    """
    cdef engine_translation by
    cdef DeviceLock held
    if not length or va + (length - 1) < va:
        return 0
    _tlb_of(&by, tlb, number)
    if not isinstance(lock, DeviceLock):
        return engine_tlb_use_first(&by, va, length, need)
    held = lock
    held.take()
    try:
        return engine_tlb_use_first(&by, va, length, need)
    finally:
        device_lock_release(&held.c_lock)


def insert_tlb(tlb, uint64_t number, uint64_t first, uint64_t pages, uint64_t rights):
    """Insert pages as :meth:`~rnic.mem.tlb.Tlb.insert_run` does; return the number of evictions."""
    cdef engine_translation by
    _tlb_of(&by, tlb, number)
    return engine_tlb_insert(&by, first, pages, rights)


cdef int _tlb_of(engine_translation *by, tlb, uint64_t number) except -1:
    by.number, by.tlb = number, <uint64_t *> buffer_address(tlb.words, NULL)
    by.tlb_sets, by.tlb_ways = tlb.sets, tlb.ways
    return 0


cdef class DeviceLock


cdef class _ProcMem:
    """Memory of another process, accessed through file descriptors of its ``/proc`` entry."""

    cdef engine_segment segment
    cdef proc_mem_checked_self program

    def __cinit__(self, int memory, int maps):
        self.program.memory.fd, self.program.maps = memory, maps
        self.segment.memory = &proc_mem_checked
        self.segment.self = &self.program


cdef class _InProcess:
    """A region of this process, accessed by the addresses of its key."""

    cdef in_process_self near

    def __cinit__(self, view, uint64_t base):
        self.near.bytes, self.near.base = buffer_address(view, NULL), base


cdef class Shared:
    """State that all queue pairs of a device share.

    Args:
        arena: its memory.
        table: its memory table, whose records are in ``arena``.
        config: transport settings.
    """

    def __cinit__(self, arena, table, config):
        self.arena = arena.memory
        self.guards, self.translations = table.guards, table.translations
        self.segments = {}
        self.base = buffer_address(self.arena, NULL)
        self.c_shared.keys = <const memory_key *> (self.base + <size_t> table.place)
        self.c_shared.key_count = table.max_entries
        self.reach = <engine_mapping *> calloc(<size_t> table.max_entries, sizeof(engine_mapping))
        if self.reach == NULL:
            raise MemoryError("no memory for pointers to registered memory")
        self.c_shared.reach = self.reach
        self.c_shared.crc = engine_crc32
        self.c_shared.crc_copy = engine_crc32_copy
        self.c_shared.ack_every = config.ack_every
        self.c_shared.probe = config.probe
        self.c_shared.rq_almost_full = config.rq_almost_full
        self.c_shared.icrc_cache = <engine_icrc_cache *> calloc(ENGINE_ICRC_CACHE, sizeof(engine_icrc_cache))

    def __dealloc__(self):
        free(self.reach)
        free(self.prefetch_memory)
        free(self.c_shared.icrc_cache)
        free(self.prefetch.staging)

    def enable_prefetch(self):
        """Access several pieces of regions per system call, as for a program's own memory."""
        self.prefetch.staging = <uint8_t *> calloc(ENGINE_PREFETCH, ENGINE_PREFETCH_BYTES)
        self.prefetch_memory = <engine_segment *> calloc(<size_t> self.c_shared.key_count, sizeof(engine_segment))
        if self.prefetch.staging == NULL or self.prefetch_memory == NULL:
            raise MemoryError("no memory for prefetching")
        self.c_shared.prefetch = &self.prefetch

    def send_headers_only(self):
        """Build packets with headers and lengths only, for a simulated fabric."""
        self.c_shared.bare = 1

    def set_congestion(self, settings):
        """Set how queue pairs react to congestion notifications.

        Args:
            settings: :class:`~rnic.cc.settings.CongestionSettings`.
        """
        cdef engine_congestion *here = &self.c_shared.congestion
        _take_dcqcn(here, settings.dcqcn)
        kind = settings.kind
        here.control = kind.number if kind.waits_for_cnp and kind.number < CONTROL_OTHER else 0
        here.merge_ns, here.hold_ns = settings.merge_ns, settings.timer_ns

    def key_changed(self, entry):
        """Look up the memory of a key again; the key may have become invalid."""
        cdef size_t index = entry.index
        if index >= self.c_shared.key_count:
            raise IndexError(f"index={index}: the memory table has {self.c_shared.key_count} keys")
        cdef _ProcMem segment
        view = entry.view
        self.reach[index].bytes = buffer_address(view, NULL) if entry.valid and view is not None else NULL
        self.reach[index].segment = NULL
        self.segments.pop(index, None)
        if self.reach[index].bytes != NULL and self.c_shared.prefetch != NULL:
            near = self.segments[index] = _InProcess(view, entry.base)
            self.prefetch_memory[index].memory = &in_process
            self.prefetch_memory[index].self = &(<_InProcess> near).near
            self.reach[index].bytes, self.reach[index].segment = NULL, &self.prefetch_memory[index]
        if entry.valid and view is None:
            descriptors = getattr(entry.port, "descriptors", None)
            if descriptors is not None:
                segment = self.segments[index] = _ProcMem(*descriptors)
                self.reach[index].segment = &segment.segment


cdef class CompletionQueue:
    """A completion queue with an accessible ring, as of its last lookup."""

    def __cinit__(self, queue):
        cdef Py_ssize_t ring = 0, block = 0
        self.queue = queue
        self.view = queue.view
        self.c_cq.record = <completion_queue *> <uintptr_t> ctypes.addressof(queue.key)
        self.c_cq.ring = buffer_address(self.view, &ring)
        self.c_cq.entries = ring >> 5
        self.c_cq.block = <atomic_word *> (buffer_address(queue.regs.buf, &block) + <Py_ssize_t> queue.regs.at)


cdef bint _is_current(CompletionQueue found, queue) except -1:
    """Return whether a queue is still at the same address."""
    return found is not None and queue is not None and found.queue is queue and found.view is queue.view


cdef class IoPoll


cdef class _TxPath:
    """Transmit path of a flow's packets."""

    cdef tx_path c_path
    cdef object flow
    cdef Loopback loopback  # while C has the pointer


cdef class Executor:
    """A queue pair in the engine. It punts cases that it does not handle to ``qp``, which works on the same bytes.

    Args:
        shared: the device's.
        qp: the queue pair, a :class:`~rnic.transport.qp.QueuePair`.
        block: its queue block as 32-bit words; ``None`` if it takes no receive entries.

    Attributes:
        punted: whether :meth:`send` punted to the reference.
        end: result of the last call, a number of ``enum engine_end``.
    """

    cdef Shared shared
    cdef engine_qp c_qp
    cdef engine_meta meta
    cdef object qp, host, ctx, requester, responder, counters, inflight
    cdef object block, send_ring, rq, sq_view, rq_view, flow, in_flow
    cdef CompletionQueue send_cq, recv_cq
    cdef readonly bint punted
    cdef readonly int end
    cdef Device device
    cdef object block_number
    cdef list destination_paths
    cdef engine_translation c_translation
    cdef object translation

    def __cinit__(self, Shared shared, qp, block):
        cdef Py_ssize_t length = 0
        memory = qp.memory
        self.shared = shared
        self.qp, self.host, self.ctx = qp, qp.host, qp.ctx
        self.requester, self.responder = qp.requester, qp.responder
        self.counters, self.inflight = qp.host.counters, qp.host.inflight
        self.send_ring = qp.send_ring
        srq = getattr(qp, "srq", None)
        self.rq = qp.rq if not qp.uses_srq else None if srq is None else srq.ring
        self.c_qp.qpc = <uint8_t *> <uintptr_t> ctypes.addressof(qp.ctx)
        self.c_qp.record = <queue_pair *> (shared.base + <size_t> memory.record)
        self.c_qp.sends = <send_wqe *> (shared.base + 8 * <size_t> memory.sends)
        self.c_qp.pieces = <read_piece *> (shared.base + 8 * <size_t> memory.pieces)
        self.c_qp.replies = <reply *> (shared.base + 8 * <size_t> memory.replies)
        self.c_qp.resources = <resource *> (shared.base + 8 * <size_t> memory.resources)
        self.c_qp.scatters = <scatter *> (shared.base + 8 * <size_t> memory.scatters)
        self.c_qp.send_wqes = memory.entries
        self.c_qp.signal_all = qp.signal_all
        if srq is not None:
            self.c_qp.srq = <shared_receive_queue *> (shared.base + <size_t> srq.record)
            self.c_qp.srq_block = <atomic_word *> (buffer_address(srq.regs.buf, &length) + <Py_ssize_t> srq.regs.at)
        self.block = block
        if block is not None:
            self.c_qp.block = <atomic_word *> buffer_address(block, NULL)
        if qp.ctx.servtype == ST_UD:
            self.c_qp.destinations = <engine_destination *> calloc(ENGINE_DESTINATIONS, sizeof(engine_destination))
            self.destination_paths = [None] * ENGINE_DESTINATIONS

    def __dealloc__(self):
        free(self.c_qp.destinations)

    # ------------------------------------------------------------------- addresses that Python may move

    cdef int resolve(self) except -1:
        """Look up all addresses, for the device."""
        cdef Device device = self.device
        self.c_qp.route = NULL
        self._resolve_flow()
        self._resolve_rings()
        self._resolve_receive_ring()
        self._resolve_send_cq()
        self._resolve_recv_cq()
        self._resolve_translation()
        if self.flow is not None and self.requester.flow is self.flow:
            # a simulated fabric uses the addresses only
            self.c_qp.route = &self.c_qp if self.shared.c_shared.bare else device.path_of(self.flow)
        self.c_qp.found = device.c_device.changes
        return 0

    cdef int _resolve_flow(self) except -1:
        flow = self.qp.flow
        if flow is self.flow:
            return 0
        self.flow = None
        if flow is not None:
            fill_flow(&self.c_qp.flow, flow)
        self.flow = flow
        return 0

    cdef int _resolve_rings(self) except -1:
        cdef Py_ssize_t length = 0
        view = self.send_ring.view
        if view is not self.sq_view:
            self.c_qp.sq = NULL
            self.sq_view = view
            if view is not None:
                self.c_qp.sq = buffer_address(view, &length)
            self.c_qp.sq_bytes = length
        return 0

    cdef int _resolve_receive_ring(self) except -1:
        cdef Py_ssize_t length = 0
        if self.rq is None:
            return 0
        view = self.rq.view
        if view is not self.rq_view:
            self.c_qp.rq = NULL
            self.rq_view = view
            if view is not None:
                self.c_qp.rq = buffer_address(view, &length)
            self.c_qp.rq_bytes = length
        return 0

    cdef int _resolve_send_cq(self) except -1:
        cdef uint32_t number = self.ctx.cqn_snd
        queue = self.qp.send_cq.queue
        if not _is_current(self.send_cq, queue):
            self.c_qp.send_cq = NULL
            self.send_cq = None if queue is None or queue.view is None else CompletionQueue(queue)
            if self.send_cq is not None:
                self.c_qp.send_cq = &self.send_cq.c_cq
        self.c_qp.send_cqn = number
        return 0

    cdef int _resolve_recv_cq(self) except -1:
        cdef uint32_t number = self.ctx.cqn_rcv
        queue = self.qp.recv_cq.queue
        if not _is_current(self.recv_cq, queue):
            self.c_qp.recv_cq = NULL
            self.recv_cq = None if queue is None or queue.view is None else CompletionQueue(queue)
            if self.recv_cq is not None:
                self.c_qp.recv_cq = &self.recv_cq.c_cq
        self.c_qp.recv_cqn = number
        return 0

    cdef int _resolve_translation(self) except -1:
        """Look up the guard of the peer's accesses, or the translation of R_Key 0."""
        number = self.ctx.local_qpn
        # a message that a guard accepted may be open, or have responses pending
        self.c_qp.guarded = (
            number in self.shared.guards or self.responder.guarded is not None or bool(self.responder.replies.guarded)
        )
        self.translation = translation = self.shared.translations.get(number)
        self.c_qp.translation = NULL
        if translation is not None:
            tlb = translation.tlb
            self.c_translation.words = <uint64_t *> buffer_address(translation.words, NULL)
            self.c_translation.tlb = <uint64_t *> buffer_address(tlb.words, NULL)
            self.c_translation.tlb_sets, self.c_translation.tlb_ways = tlb.sets, tlb.ways
            self.c_translation.number = translation.number
            self.c_translation.handles = bool(translation.engine_handles())
            self.c_qp.translation = &self.c_translation
        return 0

    def add_destination(self, message, flow, uint64_t max_segments):
        """Add the destination of a datagram, with its ``flow`` and bursts of at most ``max_segments`` packets."""
        cdef uint64_t[2] gid
        cdef engine_destination *destination
        cdef _TxPath path
        if self.c_qp.destinations == NULL:
            return
        gid[0], gid[1] = message.entry_5, message.entry_6
        cdef uint64_t at = engine_destination_place(message.entry_2, gid)
        destination = &self.c_qp.destinations[at]
        destination.max_segments = 0
        if self.device is None:
            path = _TxPath()
            path.flow = flow
        else:
            if self.device.path_of(flow) == NULL:
                return
            path = self.device.paths[flow]
        self.destination_paths[at] = path  # while C has the pointer
        destination.route = &path.c_path
        fill_flow(&destination.flow, flow)
        destination.path, destination.hop_limit = message.entry_2, message.hop_limit
        destination.gid[0], destination.gid[1] = gid[0], gid[1]
        destination.found = self.c_qp.found
        destination.max_segments = max_segments

    # ------------------------------------------------------------------- receiving

    def receive(self, burst, Py_ssize_t start, uint64_t now):
        """Process packets for this queue pair from byte ``start`` of a burst; return the bytes taken, 0 for a punt."""
        cdef Py_buffer source
        cdef engine_effects effects
        cdef engine_inflight flight
        cdef size_t taken, at = start, length, segment
        flow = burst.flow
        if flow is not self.in_flow:
            self.in_flow = None
            fill_flow(&self.meta.flow, flow)
            self.in_flow = flow
        ident = burst.ident
        self.meta.ident = IDENT_UNSEEN if ident is None else ident
        self.meta.frag = burst.frag
        self.meta.known_mask, self.meta.known_bits = burst.known
        self.meta.tclass, self.meta.hop_limit, self.meta.flow_label = burst.tclass, burst.hop_limit, burst.flow_label
        self._resolve_receive_ring()
        self._resolve_send_cq()
        self._resolve_recv_cq()
        self._resolve_translation()
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
                    taken = engine_receive(&self.shared.c_shared, &self.c_qp, <const uint8_t *> source.buf, length,
                                           segment, at, &self.meta, &flight, now, &effects)
                else:
                    with nogil:
                        taken = engine_receive(&self.shared.c_shared, &self.c_qp, <const uint8_t *> source.buf, length,
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
            if effects.inflight_acked:
                self.inflight.release(peer, effects.inflight_acked)
            if told & EFFECT_NOTIFY_SEND:
                self.send_cq.queue.notify()
        if told & EFFECT_GO_ON:
            requester.resume()
        if told & EFFECT_BEGUN:
            self.host.schedule(self.qp)
        return self._after(effects, now)

    cdef int _after(self, engine_effects *effects, uint64_t now) except -1:
        """Report losses to the peer's account, and arm deadlines that moved."""
        cdef uint32_t told = effects.effects
        if told & EFFECT_SILENT:
            self.requester.peer.timed_out(now)
        if told & EFFECT_LOST:
            self.requester.peer.lost(now)
        if effects.inflight_resend:
            self.inflight.release(self.requester.peer, effects.inflight_resend)
        if told & EFFECT_SCHEDULE:
            self.host.schedule(self.qp)
        if told & EFFECT_ARM:
            self.qp.rearm()
        return 0

    def timeout(self, uint64_t now):
        """Handle a timer that may have expired, like the queue pair's ``handle_timer``; return false for a punt."""
        cdef engine_effects effects
        cdef engine_inflight flight
        peer = self.requester.peer
        flight.srtt, flight.rttvar, flight.alone = peer.srtt, peer.rttvar, peer.users == 1
        memset(&effects, 0, sizeof(effects))
        engine_timeout(&self.shared.c_shared, &self.c_qp, &flight, now, &effects)
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
        out.max_segments = self.c_qp.record.batch_limit
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
        """Return the flow of a burst: the peer's, or that of a datagram's destination."""
        cdef _TxPath path
        if to != NULL:
            for path in self.destination_paths:
                if path is not None and <const void *> &path.c_path == to:
                    return path.flow
        return self.flow

    def send(self, uint64_t now, uint64_t budget, list out):
        """Send requests as :meth:`~rnic.transport.requester.Requester.produce` does; return the number of packets.

        If ``punted``, the requester continues with the rest of the budget.
        """
        cdef engine_effects effects
        cdef engine_inflight flight
        cdef engine_out result
        requester, inflight = self.requester, self.inflight
        self.punted = True
        self._resolve_flow()
        self._resolve_rings()
        self._resolve_send_cq()
        if self.flow is None or requester.flow is not self.flow:
            return 0
        peer = requester.peer
        flight.peer_limit = inflight.limit_to(peer)
        flight.peer_inflight, flight.peer_promised, flight.peer_waiting = peer.inflight, peer.promised, peer.waiting
        flight.nic_limit, flight.nic_inflight = inflight.limit_of_all(), inflight.packets
        flight.nic_promised, flight.others = inflight.promised, inflight.crowded()
        flight.nic_queued = inflight.queued
        flight.nic_overtaken = inflight.overtaken
        flight.srtt, flight.rttvar, flight.alone = peer.srtt, peer.rttvar, peer.users == 1
        memset(&effects, 0, sizeof(effects))
        buffer = self._begin(&result)
        if budget > MAX_PACKETS:
            budget = MAX_PACKETS
        if self.c_qp.record.window - self.c_qp.record.inflight < 8:
            made = engine_send(&self.shared.c_shared, &self.c_qp, now, budget, &flight, &result, &effects)
        else:
            with nogil:
                made = engine_send(&self.shared.c_shared, &self.c_qp, now, budget, &flight, &result, &effects)
        self.end = effects.end
        self.punted = effects.end != ENGINE_DONE
        if made:
            self._emit(&result, buffer, out)
            if effects.inflight_sent:
                inflight.took(peer, effects.inflight_sent, effects.admitted)
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
        """Send up to ``budget`` packets of waiting replies; return their number, 0 for a punt."""
        cdef engine_effects effects
        cdef engine_out result
        self._resolve_flow()
        self._resolve_translation()
        if self.flow is None:
            return 0
        memset(&effects, 0, sizeof(effects))
        buffer = self._begin(&result)
        made = engine_reply(&self.shared.c_shared, &self.c_qp, budget, &result, &effects)
        if made:
            self._emit(&result, buffer, out)
        return made


cdef class Device:
    """All queue pairs of a device: handles the cases that the engine supports without Python.

    Args:
        shared: their shared state.
        nic: the device, which handles punts.

    Attributes:
        selective: :meth:`receive` uses a reorder buffer, as compiled polls do.
    """

    def __cinit__(self, Shared shared, nic):
        self.shared, self.nic, self.sending, self.counters = shared, nic, nic.sending, nic.counters
        self.c_device.shared = &shared.c_shared
        engine_device_find(&self.c_device, shared.base)
        self.c_device.changes = 1
        self.qps = <engine_qp **> calloc(<size_t> 1 << self.c_device.log_qps, sizeof(engine_qp *))
        if self.qps == NULL:
            raise MemoryError("no memory for pointers to queue pairs")
        self.c_device.qps = self.qps
        self.paths, self.executors, self.by_block = {}, {}, {}

    def __dealloc__(self):
        free(self.qps)
        free(self.reorder)

    def set_congestion(self, settings):
        """See :meth:`Shared.set_congestion`."""
        self.shared.set_congestion(settings)

    def set_budget(self, budget):
        """Use the device-wide limit of packets in flight, or the NIC's own with ``None``.

        Args:
            budget: :class:`~rnic.transport.budget.Budget`, whose page all executors of the device share.
        """
        self.c_device.sched.budget = NULL
        self.budget = budget  # while C has the address of its page
        if budget is not None:
            self.c_device.sched.slot = budget.slot
            self.c_device.sched.budget = buffer_address(budget.page, NULL)

    def add(self, qp, block):
        """Add a queue pair with its queue block; return its executor."""
        cdef Executor executor = Executor(self.shared, qp, block)
        cdef size_t slot = <size_t> executor.qp.number & ((<size_t> 1 << self.c_device.log_qps) - 1)
        executor.device = self
        executor.block_number = executor.qp.regs.block
        self.by_block[executor.block_number] = executor
        self.executors[slot] = executor  # while C has the pointer
        self.qps[slot] = &executor.c_qp
        return executor

    def remove(self, number):
        """Remove the executor of a queue pair."""
        cdef size_t slot = <size_t> number & ((<size_t> 1 << self.c_device.log_qps) - 1)
        cdef Executor executor = self.executors.pop(slot, None)
        self.qps[slot] = NULL
        if executor is not None:
            del self.by_block[executor.block_number]

    def drop(self, uint64_t record):
        """Abandon the open turn of a queue pair that is destroyed."""
        if self.releasing_qp == record:
            self.releasing_qp = 0
        if self.io_poll is not None:
            io_poll_drop((<IoPoll> self.io_poll).c_poll, record)

    def invalidate(self):
        """Look up queues, rings and paths again before their next use, since they may have moved."""
        self.c_device.changes += 1

    cdef const void *path_of(self, flow) except? NULL:
        cdef _TxPath path = self.paths.get(flow)
        if path is None:
            if len(self.paths) >= MAX_ROUTES:
                # users of these paths look them up again before the next use
                self.paths.clear()
                self.c_device.changes += 1
            path = self.paths[flow] = _TxPath()
            path.flow = flow
        if self.io_poll is not None and not (<IoPoll> self.io_poll).resolve(path):
            return NULL
        return &path.c_path

    # ------------------------------------------------------------------- punts from C

    cdef int handle_stop(self, engine_stop_info *told) except -1:
        """Handle a stop of C that concerns one queue pair."""
        cdef Executor executor
        qp = self.sending.qps[told.qp]
        try:
            if told.stop == STOP_MAP_QP:
                executor = qp.executor
                executor.resolve()
                return 0
            if told.effects & EFFECT_NOTIFY_RECV:
                qp.recv_cq.queue.notify()
            if told.effects & EFFECT_NOTIFY_SEND:
                qp.send_cq.queue.notify()
        except Exception as error:
            if told.stop == STOP_MAP_QP:
                executor.c_qp.route = NULL
                executor.c_qp.found = self.c_device.changes
            self.nic.internal_error("packet", qp, error)
        return 0

    cdef object run_reference_turn(self, uint64_t now, engine_sending *sending, list out):
        """Let the reference continue an open turn; append its packets to ``out``."""
        cdef uint64_t count
        self.nic.now_ns = now
        if not self.c_device.sched.inflight.spare_line:
            self.nic.inflight.reserve_line()
        count, deferred = self.sending.take_over(
            now, out, sending.qp, sending.limit, sending.step, sending.count, sending.bytes, sending.room
        )
        if deferred:
            sending.deferred[sending.deferred_count] = sending.qp
            sending.deferred_count += 1
        sending.sent += count if count else 1
        sending.qp = 0
        self.c_device.counts.tx_packets += count

    cdef int flush_counters(self, uint64_t now) except -1:
        """Add what C counted to the counters of the device."""
        cdef int i
        cdef engine_counts *counts = &self.c_device.counts
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
        if not self.c_device.sched.inflight.spare_line:
            self.nic.inflight.reserve_line()
        return 0

    # ------------------------------------------------------------------- sans I/O

    def receive(self, burst, Py_ssize_t start, uint64_t now):
        """Process packets from byte ``start`` of a burst; return the bytes taken, up to a packet for the reference."""
        cdef Py_buffer source
        cdef engine_stop_info told
        cdef engine_meta meta
        cdef size_t length, at = start
        if burst.ecn == 3:
            return 0
        fill_flow(&meta.flow, burst.flow)
        ident = burst.ident
        meta.ident = IDENT_UNSEEN if ident is None else ident
        meta.frag = burst.frag
        meta.known_mask, meta.known_bits = burst.known
        meta.tclass, meta.hop_limit, meta.flow_label = burst.tclass, burst.hop_limit, burst.flow_label
        self.nic.now_ns = now
        PyObject_GetBuffer(burst.buf, &source, PyBUF_SIMPLE)
        try:
            if burst.length > source.len or start < 0 or burst.segment < 1:
                raise ValueError(f"{burst.length} bytes from {start} on of a buffer of {source.len}")
            length = burst.length
            while True:
                if self.selective:
                    told.stop = STOP_DONE
                    if reorder_resume(self.reorder, &self.releasing_qp, &self.c_device, now, &told):
                        if at >= length:
                            break
                        at += reorder_receive(&self.reorder, &self.releasing_qp, &self.c_device,
                                              <const uint8_t *> source.buf, length, burst.segment, at, &meta, now,
                                              &told)
                        if told.stop == STOP_DONE:
                            continue
                else:
                    at += engine_device_receive(&self.c_device, <const uint8_t *> source.buf, length, burst.segment,
                                                at, &meta, now, &told)
                if told.stop != STOP_NOTIFY and told.stop != STOP_MAP_QP:
                    break
                self.handle_stop(&told)
        finally:
            PyBuffer_Release(&source)
        self.end = told.end
        self.flush_counters(now)
        return at - start

    def send(self, uint64_t now, uint64_t budget, list out):
        """Schedule queue pairs, like the last part of :meth:`~rnic.device.sending.Sending.produce`."""
        cdef engine_stop_info told
        cdef engine_out result
        cdef engine_sending *sending = <engine_sending *> calloc(1, sizeof(engine_sending))
        cdef _TxPath path
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
                engine_device_send(&self.c_device, now, budget, &result, sending, &told)
                for i in range(first, result.count):
                    at = result.bursts[i].offset
                    for path in self.paths.values():
                        if <const void *> &path.c_path == result.bursts[i].route:
                            flows[at] = path.flow
                    data = bytes(view[at : at + result.bursts[i].length])
                    out.append(TxBurst(flows[at], [data], result.bursts[i].segment, result.bursts[i].count, len(data)))
                if told.stop == STOP_OUT_FULL:
                    result.used = result.open = result.count = 0
                elif told.stop == STOP_MAP_QP or told.stop == STOP_NOTIFY:
                    self.handle_stop(&told)
                elif told.stop == STOP_PUNT_TURN:
                    if told.effects:
                        self.handle_stop(&told)
                    self.run_reference_turn(now, sending, out)
                else:
                    break
            engine_device_sent(&self.c_device, sending)
        finally:
            free(sending)
        self.flush_counters(now)

    def handle_deadlines(self, uint64_t now, uint64_t most):
        """Handle up to ``most`` timers, up to one for the reference.

        Returns:
            The record of that queue pair, 0 for none, and the rest of ``most``.
        """
        cdef uint64_t record = engine_device_due(&self.c_device, now, &most)
        self.flush_counters(now)
        return record, most

    @property
    def deadline(self):
        """The time of the next :meth:`handle_deadlines`, or ``NEVER``."""
        return engine_device_deadline(&self.c_device)


cdef uint8_t *_OUT[OUTS]
"""Free buffers of POLL_OUT_BYTES, the last used one at the end."""
cdef int _outs = 0


cdef object _view(memory, const rx_buffer *slot):
    """Return the bytes of an rx buffer: a view of our memory, or a copy of a buffer lent by a sender."""
    cdef Py_ssize_t length = 0
    cdef uint8_t *base = buffer_address(memory, &length)
    cdef Py_ssize_t first = slot.buffer - base
    if slot.buffer < base or first >= length:
        return memoryview(PyBytes_FromStringAndSize(<char *> slot.buffer, <Py_ssize_t> slot.size))
    return memory[first : first + <Py_ssize_t> slot.size]


cdef int _active = 0
"""Number of running :class:`IoPoll`."""


cdef class IoPoll:
    """Poll loop of a device on its UDP sockets or on an in-memory link: receives, sends and handles timers.

    Args:
        device: the device.
        link: a :class:`~rnic.link.udp.UdpLink`, whose sockets it uses, or a :class:`~rnic.link.loopback.LoopbackLink`,
            which gets a :class:`Loopback`.
        send: function that passes packets built in Python to the link.

    Attributes:
        stopped: a feature that C lacks was requested; only Python uses the link from now on.
        judging: the link in front of ``link`` whose fault rules C applies, or ``None``.
    """

    cdef Device device
    cdef io_poll_state *c_poll
    cdef object link, nic, send, counters, memory, sending, doorbells, rung, gsi, frames
    cdef list failed_cqs, final_bursts, waiting
    cdef Loopback loopback
    cdef dict of_link, of_nic
    cdef dict socket_places
    cdef faults_state *faults
    cdef tuple fault_memory
    cdef tx_socket *sockets
    cdef own_fds *own
    cdef readonly bint stopped
    cdef public object judging
    cdef bint counted
    cdef uint32_t rounds
    cdef uint64_t flushed_at
    cdef bint python_ran  # under a lock that C took: the assumptions of polls may have changed

    def __cinit__(self, Device device, link, send):
        cdef int place
        self.device, self.nic, self.link, self.send = device, device.nic, link, send
        self.counters = device.counters
        self.sending, self.gsi, self.doorbells = device.nic.sending, device.nic.gsi, device.nic.resources.doorbells
        self.rung = self.doorbells.rung
        self.failed_cqs, self.final_bursts = self.sending.failed_cqs, self.sending.final_bursts
        self.waiting = self.gsi.waiting
        self.of_link, self.of_nic = link.__dict__, device.nic.__dict__
        self.frames = () if link.frames is None else link.frames
        self.c_poll = <io_poll_state *> calloc(1, sizeof(io_poll_state))
        self.socket_places = {outlet: place for place, outlet in enumerate(link.outlets)}
        self.sockets = <tx_socket *> calloc(len(self.socket_places) or 1, sizeof(tx_socket))
        self.own = <own_fds *> calloc(1, sizeof(own_fds))
        if self.c_poll == NULL or self.sockets == NULL or self.own == NULL:
            raise MemoryError("no memory for polls")
        own_fds_init(self.own)
        for outlet, place in self.socket_places.items():
            self.sockets[place].fd = outlet.descriptor
            own_fds_watch(self.own, outlet.descriptor)
            self.sockets[place].ipv4 = len(link.address) == 4
        if link.wired:
            self.loopback = link.use_wire(Loopback(link.window_bytes))
            self.memory = self.loopback.memory
        else:
            self.memory = memoryview(bytearray(POLL_RECEIVE_LIMIT * POLL_BUFFER_BYTES))
        io_poll_init(self.c_poll, &device.c_device, -1 if link.wired else link.fileno(),
                        buffer_address(self.memory, NULL), NULL)
        if self.loopback is not None:
            self.c_poll.loopback = self.loopback.c_loopback
        self.c_poll.may_splice = not link.wired and link.lends
        device.io_poll = self
        self._begin()
        # saves a system call and a received datagram for each answered message
        device.c_device.piggyback_acks = 1
        device.c_device.changes += 1
        self._read_socket_options()

    def __dealloc__(self):
        self._end()
        io_poll_end(self.c_poll)
        free(self.c_poll)
        if self.faults != NULL:
            faults_free(self.faults)
            free(self.faults)
        free(self.sockets)
        free(self.own)

    cdef void _begin(self) noexcept:
        global _active
        self.counted = True
        _active += 1

    cdef void _end(self) noexcept:
        global _active
        _active -= self.counted
        self.counted = False

    def stop(self):
        """Leave the link to Python."""
        if not self.stopped:
            self._write_socket_options()
            self._flush_counters(self.flushed_at)
        self._end()
        self.stopped = True
        self.device.io_poll = None
        self.device.c_device.piggyback_acks = 0
        self.device.c_device.changes += 1

    cdef bint resolve(self, _TxPath path) except -1:
        """Look up socket and address of a path; return false if only the link knows them."""
        flow = path.flow
        outlet, raw, segments = self.link.tx_path(flow)
        cdef bytes name = raw
        if self.loopback is None:
            path.c_path.socket = &self.sockets[<int> self.socket_places[outlet]]
        elif outlet is None:
            return False
        else:
            path.loopback = outlet
            path.c_path.loopback, path.c_path.flow_label = path.loopback.c_loopback, flow.flow_label
        path.c_path.name_bytes, path.c_path.source_port = <uint32_t> len(name), flow.sport
        memcpy(path.c_path.name, PyBytes_AS_STRING(name), len(name))
        path.c_path.max_segments = segments
        path.c_path.tclass, path.c_path.hop_limit, path.c_path.priority = flow.tclass, flow.hop_limit, flow.sl
        return True

    # ------------------------------------------------------------------- socket options, which the link sets as well

    cdef int _read_socket_options(self) except -1:
        cdef int place
        for outlet, place in self.socket_places.items():
            self.sockets[place].tclass, self.sockets[place].hop_limit = outlet.tclass, outlet.hop_limit
            self.sockets[place].priority = outlet.sl
        return 0

    cdef int _write_socket_options(self) except -1:
        cdef int place
        for outlet, place in self.socket_places.items():
            outlet.tclass, outlet.hop_limit = self.sockets[place].tclass, self.sockets[place].hop_limit
            outlet.sl = self.sockets[place].priority
        return 0

    @property
    def spliced(self):
        """Bursts sent by splicing their pages, without a copy."""
        return self.c_poll.spliced

    def set_faults(self, bytes table, counts):
        """Apply fault rules to packets from now on.

        Args:
            table: of the rules, as :func:`rnic.link.fault_rules.pack_rules` makes it.
            counts: memory for the counts of the rules.
        """
        cdef bytes address = self.link.address
        cdef Py_ssize_t length = 0
        cdef const uint8_t *rules
        if self.faults == NULL:
            self.faults = <faults_state *> calloc(1, sizeof(faults_state))
            if self.faults == NULL:
                raise MemoryError("no memory for fault rules")
        self._flush_counters(self.flushed_at)
        faults_free(self.faults)
        memset(self.faults, 0, sizeof(faults_state))
        self.fault_memory = bytearray(table.ljust(FAULT_TABLE_BYTES, b"\0")), counts
        rules = buffer_address(self.fault_memory[0], &length)
        if buffer_address(counts, &length) == NULL or length < FAULT_COUNT_BYTES:
            raise ValueError(f"{length} bytes to count in: fault rules take {FAULT_COUNT_BYTES}")
        faults_init(self.faults, rules, buffer_address(counts, NULL))
        memcpy(self.faults.address, PyBytes_AS_STRING(address), min(len(address), 16))
        self.faults.address_bytes, self.faults.port = <uint32_t> len(address), self.link.port
        io_poll_set_faults(self.c_poll, self.faults)

    def expire_held(self):
        """Release all packets delayed by fault rules in the next round."""
        if self.faults != NULL:
            faults_expire(self.faults)

    def held_deadline_ns(self):
        """Return the time at which packets delayed by fault rules are due; ``None`` if there are none."""
        cdef uint64_t deadline = NEVER if self.faults == NULL else faults_deadline(self.faults)
        return None if deadline == NEVER else deadline

    def send_bursts(self, list bursts):
        """Send bursts built in Python."""
        self._write_socket_options()
        try:
            self.send(bursts)
        finally:
            self._read_socket_options()

    # ------------------------------------------------------------------- polls

    def can_run(self, link):
        """Return whether C can poll this link: it is up, and nothing observes packets except fault rules that C
        applies."""
        return self._can_run(link)

    cdef bint _can_run(self, link) except -1:
        if self.stopped or (link is not self.link and link is not self.judging):
            return False
        # a disabled device is held
        return (
            _of(self.of_link, "up") is True and _of(self.of_link, "lone") is True and _of(self.of_nic, "held") is False
            and _of(self.of_nic, "tracer").enabled is False and not self.frames
        )

    @property
    def has_pending(self):
        """Return whether Python has work to do before the next turns."""
        return self._has_pending()

    cdef bint _has_pending(self) except -1:
        return self.failed_cqs or self.final_bursts or self.waiting

    def is_due(self, uint64_t now):
        """Return whether a deadline of the device has passed."""
        return self._is_due(now)

    cdef bint _is_due(self, uint64_t now) except -1:
        if engine_device_deadline(&self.device.c_device) <= now:
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
            executor = self.device.by_block.get(block)
            if executor is None or engine_device_ring(&self.device.c_device, &executor.c_qp):
                self.sending.ring(block)
        return 0

    def poll(self, uint64_t now, uint64_t budget):
        """Receive packets, or else send; return the number of received bursts, and whether anything happened."""
        self._poll(now, budget)
        return self.c_poll.received, self.c_poll.received or self.c_poll.sent

    cdef uint8_t *_take_out_buffer(self) except NULL:
        """Take one of the few output buffers shared by all polls: with a buffer per NIC, many NICs would not fit the
        cache.

        The caller restores the previous one afterward, since a signal handler may poll within a poll.
        """
        global _outs
        cdef uint8_t *lent
        if _outs:
            _outs -= 1
            lent = _OUT[_outs]
        else:
            lent = <uint8_t *> malloc(POLL_OUT_BYTES)
            if lent == NULL:
                raise MemoryError("no memory for packets to send")
        return lent

    cdef void _return_out_buffer(self, uint8_t *before) noexcept:
        """Return the poll's output buffer, which may differ from the one taken, since a loopback swaps buffers."""
        global _outs
        cdef uint8_t *lent = self.c_poll.out.bytes
        self.c_poll.out.bytes = before
        if _outs < OUTS:
            _OUT[_outs] = lent
            _outs += 1
        else:
            free(lent)

    cdef int _run(self, io_poll_call call, bint short, uint64_t now, uint64_t budget) except -1:
        """Call a poll, or its sending part, until it is done. ``short``: do not release the GIL."""
        cdef engine_stop_info told
        cdef uint8_t *before = self.c_poll.out.bytes
        if not io_fds_valid(self.own, self.c_poll, now):
            self.c_poll.received = self.c_poll.sent = 0
            self.python_ran = True
            self.stop()  # Python finds the lost descriptors
            return 0
        if self.rung:
            self.nic.now_ns = now
            self._take_doorbells()
        self.c_poll.out.bytes = self._take_out_buffer()
        try:
            while True:
                if short:
                    call(self.c_poll, now, budget, &told)
                else:
                    with nogil:
                        call(self.c_poll, now, budget, &told)
                if told.stop == STOP_DONE:
                    return 0
                self.nic.now_ns = now
                self._handle_stop(&told, now)
        finally:
            self._return_out_buffer(before)

    cdef int _poll(self, uint64_t now, uint64_t budget) except -1:
        self._run(io_poll_run, False, now, budget)
        if self.c_poll.received or self.c_poll.sent:
            self._count_poll(now)
        return 0

    def transmit(self, uint64_t now, uint64_t budget):
        """Send pending packets; return whether anything was sent."""
        return self._send(now, budget, False)

    cdef bint _send(self, uint64_t now, uint64_t budget, bint short) except -1:
        """Do the same as :meth:`transmit`. ``short``: one short message, too short to release the GIL for."""
        self.c_poll.sent = 0
        self._run(io_poll_send, short, now, budget)
        self._count_poll(now)
        return self.c_poll.sent != 0

    cdef int _handle_stop(self, engine_stop_info *told, uint64_t now) except -1:
        cdef io_poll_state *state = self.c_poll
        cdef list out
        self.python_ran = True
        if told.stop == STOP_PUNT_PACKET:
            self._run_reference(now)
        elif told.stop == STOP_PUNT_TURN:
            if told.effects:
                self.device.handle_stop(told)
            out = []
            sent = state.sending.sent
            self.device.run_reference_turn(now, &state.sending, out)
            if out:
                state.sent += len(out)
                self.send_bursts(out)
        else:
            self.device.handle_stop(told)
        return 0

    cdef int _run_reference(self, uint64_t now) except -1:
        """Pass the rest of a run of packets to the reference."""
        cdef engine_flow reverse
        cdef uint64_t at, end
        cdef const rx_buffer *slot = io_poll_punt(self.c_poll, &at, &end)
        cdef bytes name = PyBytes_FromStringAndSize(<char *> slot.name, slot.name_bytes)
        view = _view(self.memory, slot)
        tclass = self.c_poll.rx_run.tclass
        burst = self.link.make_burst(name, view[:end], slot.segment, tclass, slot.hop_limit, slot.flow_label)
        flow = burst.flow
        right = io_poll_good_packets(self.c_poll, slot.name, slot.name_bytes)
        if right and flow.idents is not None:
            self.nic.learn_idents(burst, right)  # the engine processed those; they had the expected idents
        self.nic.receive(burst, now, at)
        if flow.settled or (flow.idents is not None and flow.idents.small):
            fill_flow(&reverse, flow)
            io_poll_add_sender(self.c_poll, slot.name, slot.name_bytes, &reverse)
        else:
            io_poll_forget_sender(self.c_poll, slot.name, slot.name_bytes)
        return 0

    cdef int _count_poll(self, uint64_t now) except -1:
        """Add C's counts to Python's, periodically or at once for an unusual count."""
        cdef tx_counts *counts = &self.c_poll.counts
        self.rounds += 1
        if (
            now - self.flushed_at < TELL_NS and not counts.link_errors and not counts.gso_refused
            and self.device.c_device.sched.inflight.spare_line
        ):
            return 0
        return self._flush_counters(now)

    cdef int _flush_counters(self, uint64_t now) except -1:
        cdef io_poll_state *state = self.c_poll
        cdef tx_counts *counts = &state.counts
        counters = self.counters
        self.flushed_at = now
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
        if self.faults != NULL:
            self._flush_faults()
        if self.loopback is not None:
            lost = loopback_lost(self.loopback.c_loopback)
            if lost:
                self.link.failed(drop_rx_queue_full=lost)
        if counts.link_errors:
            self.python_ran = True
            self.link.check_interface()
            if self.loopback is not None:
                self.device.c_device.changes += 1  # a loopback was closed: paths may lead to another one now
        if counts.priority_refused:
            self.link.failed(priority_refused=counts.priority_refused)
        if counts.gso_refused:
            self.link.failed(gso_refused=counts.gso_refused)
            self._refused()
        state.rx_bytes = state.tx_bytes = state.too_short = state.socket_errors = 0
        memset(counts, 0, sizeof(counts[0]))
        if self.rounds > WRITE_BACK_EVERY:
            self.rounds = 0
            self.device.sending.write_back()
        return self.device.flush_counters(now)

    cdef int _flush_faults(self) except -1:
        """Report packets hit by fault rules."""
        cdef faults_state *faults = self.faults
        cdef int way, action
        for way, name in enumerate(("tx", "rx")):
            for action in range(FAULT_ACTIONS):
                if faults.counted[way][action]:
                    self.counters[f"fault_{name}_{_FAULT_NAMES[action]}"] += faults.counted[way][action]
                    faults.counted[way][action] = 0
            if faults.full[way]:
                self.counters[f"fault_{name}_full"] += faults.full[way]
                faults.full[way] = 0
        return 0

    cdef int _refused(self) except -1:
        """Tell the link that the kernel refused a burst, so it also sends packet by packet on that path."""
        cdef _TxPath path
        for path in list(self.device.paths.values()):
            if path.c_path.socket != NULL and path.c_path.max_segments == 1:
                self.link.refused(path.flow)
        return 0


include "_loopback.pxi"
include "_device_lock.pxi"
include "_loop.pxi"
include "_queues.pxi"
include "_transfers.pxi"
include "_bypass_driver.pxi"
include "_idle_wait.pxi"

# A runtime's rounds and doorbells without Python's way round, where nothing out of the common happens: included by
# _engine.pyx. What is out of the common the runtime does (runtime/loop.py), asked by the same conditions.

from time import monotonic_ns, sleep

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    enum:
        CLOCK_MONOTONIC
    int clock_gettime(int clock, timespec *now)

cdef extern from "Python.h":
    PyObject *PyDict_GetItemWithError(object names, object name) except NULL

cdef extern from "<sched.h>" nogil:
    int sched_yield()

from rnic.rings.cqe import CQ_ENTRY
from rnic.rings.ring import PhaseConsumer

cdef extern from "state.h" nogil:
    enum:
        STATE_RTS "QP_STATE_RTS"
        IDLE_BEFORE_YIELD "ROUND_IDLE_BEFORE_YIELD"
        ROUND_GATHER_BYTES
        BLOCK_SHIFT
        QUEUE_STATE "REG_QUEUE_STATE"
        SQ_TAIL "REG_SQ_TAIL"
        SQE_BYTES
        FLAG_SIGNALED
        FLAG_SOLICITED
        FLAG_FENCE
        CQE_BYTES
        CQE_PHASE
        CQE_RECEIVE

cdef extern from "<stdatomic.h>" nogil:
    enum memory_order:
        memory_order_acquire
        memory_order_release
    uint32_t atomic_load_explicit(atomic_word *word, memory_order order)
    void atomic_store_explicit(atomic_word *word, uint32_t value, memory_order order)

DEF ASK_NS = 50000

cdef enum:
    PLAIN_FLAGS = FLAG_SIGNALED | FLAG_SOLICITED | FLAG_FENCE

cdef size_t FLAGS_WORD = CQ_ENTRY["phase"].byte >> 2, QPN_WORD = CQ_ENTRY["qpn"].byte >> 2

# A descriptor's flags by those of verbs: IBV_SEND_FENCE 1, SIGNALED 2, SOLICITED 4 (verbs/qp.py FLAG_TABLE).
cdef uint32_t[8] _flags
for _verbs in range(8):
    _flags[_verbs] = (
        (FLAG_FENCE if _verbs & 1 else 0) | (FLAG_SIGNALED if _verbs & 2 else 0) | (FLAG_SOLICITED if _verbs & 4 else 0)
    )


cdef inline object _of(dict names, object name):
    """An attribute that an object is known to keep in its ``__dict__``; what Python's way there takes is twice that."""
    return <object> PyDict_GetItemWithError(names, name)


cdef class Drive:
    """Rounds of a runtime whose device and socket the engine has; made once its pump is there.

    Args:
        runtime: whose lock is held around everything.
        pump: its pump, until the runtime has none any more.
        full: bursts of a round from which on there may be more.
    """

    cdef object runtime, nic, sending, interrupts, groups, clock, acquire, release
    cdef dict of_runtime
    cdef Pump pump
    cdef uint64_t polled, asked
    cdef uint32_t idle, full, full_rounds
    cdef bint monotonic

    def __cinit__(self, runtime, Pump pump, uint32_t full):
        self.runtime, self.pump, self.full = runtime, pump, full
        self.nic = nic = runtime.nic
        self.sending = nic.sending
        self.interrupts, self.groups = nic.resources.interrupts, nic.resources.groups
        self.clock, self.of_runtime = runtime.clock, runtime.__dict__
        self.monotonic = self.clock is monotonic_ns
        self.acquire, self.release = runtime.lock.acquire, runtime.lock.release

    @property
    def last_poll(self):
        """When an application drove the NIC last."""
        return self.polled

    cdef uint64_t now(self) except? 0:
        cdef timespec time_now
        if not self.monotonic:
            return self.clock()
        clock_gettime(CLOCK_MONOTONIC, &time_now)
        return <uint64_t> time_now.tv_sec * 1000000000 + <uint64_t> time_now.tv_nsec

    def progress(self):
        """:meth:`~rnic.runtime.loop.Runtime.progress`."""
        cdef bint did
        if _of(self.of_runtime, "_pump") is not self.pump:
            return self.runtime.progress()
        cdef uint64_t now = self.now()
        self.polled = now
        if not self.acquire(False):
            sleep(0)
            return False
        try:
            if self.pump._takes(_of(self.of_runtime, "link")):
                self.pump.round_state.gathers = _of(self.of_runtime, "_thread") is not None
                did = self._round(now)
            else:
                did = self.runtime._round(now)
        finally:
            self.release()
        if did:
            self.idle = 0
            return True
        self.idle += 1
        if self.idle > IDLE_BEFORE_YIELD:
            with nogil:
                sched_yield()
        return False

    def busy(self):
        """:meth:`~rnic.runtime.loop.Runtime.busy`."""
        self.idle = 0

    def rest(self):
        """The application stops polling."""
        self.polled = 0

    def round(self, uint64_t now):
        """One round, that the pump takes; the lock is held. Nothing gathers any longer."""
        self.pump.round_state.gathers = False
        return self._round(now)

    cdef bint _round(self, uint64_t now) except -1:
        cdef bint did = False, full
        cdef Pump pump = self.pump
        if pump._owes():
            did = self.runtime.carry_away(self.sending.prepare(now))
        pump._round(now, _of(self.of_runtime, "budget"))
        did = did or pump.round_state.came or pump.round_state.sent
        # What arrived in time is not late because this process did not run: nothing is overdue before all is read.
        full = pump.round_state.came >= self.full
        self.full_rounds = self.full_rounds + 1 if full else 0
        if (self.full_rounds % ROUND_TIMERS_AT_LEAST_EVERY == 0 and self._late(now)) or self.interrupts:
            did = self.runtime._end(now, self.full_rounds % ROUND_TIMERS_AT_LEAST_EVERY != 0, did)
        return did

    cdef bint _late(self, uint64_t now) except -1:
        """Whether a deadline has come: those of queue pairs at once, the device's other ones are asked for now and then."""
        if engine_port_deadline(&self.pump.device.device) > now and self.monotonic and now - self.asked < ASK_NS:
            return False
        self.asked = now
        return self.pump._late(now)

    def kick(self):
        """:meth:`~rnic.runtime.loop.Runtime.kick`."""
        if _of(self.of_runtime, "_pump") is not self.pump:
            return self.runtime.kick()
        self.acquire()
        try:
            self._kick(self._plain())
        finally:
            self.release()

    cdef bint _plain(self) except -1:
        """Whether there is nothing but turns to do after a doorbell, and the pump does them. The lock is held."""
        cdef Pump pump = self.pump
        return (
            _of(self.of_runtime, "_pump") is pump and pump._takes(_of(self.of_runtime, "link"))
            and not self.groups.changes and not pump._owes()
        )

    cdef int _ring(self, block, uint64_t length) except -1:
        """A doorbell was stored to in a queue block, for ``length`` bytes: take it, and send, if that does not gather."""
        cdef Executor executor
        cdef Pump pump = self.pump
        cdef bint plain
        cdef int rung = -1
        self.acquire()
        try:
            plain = self._plain()
            executor = pump.device.doors.get(block) if plain and not pump.rung else None
            if executor is not None:
                # while the thread sleeps for longer than the application pauses between two polls, nothing gathers
                pump.round_state.gathers = (
                    _of(self.of_runtime, "_thread") is not None and _of(self.of_runtime, "_sleep_until") is None
                )
                rung = pump_round_ring(pump.round_state, &executor.place, length)
            if rung < 0:
                pump.doorbells.ring(block)
            if rung != GATHERED:
                self._kick(plain)
        finally:
            self.release()
        return 0

    cdef int _kick(self, bint plain) except -1:
        cdef Pump pump = self.pump
        cdef dict of_runtime = self.of_runtime
        if not plain:
            self.runtime.kick()
            return 0
        pump._turns(self.now(), _of(of_runtime, "budget"))
        if _of(pump.of_link, "up") is not _of(of_runtime, "_link_up"):
            self.runtime._look_at_link()
        if self.interrupts:
            self.runtime._interrupts()
        if _of(of_runtime, "_sleep_until") is not None:
            self.runtime._wake_if_late()
        return 0


cdef class SendQueue:
    """What software has of a send queue: identifiers, where the next descriptor goes, the doorbell; compiled, it posts.

    It is :class:`rnic.verbs.posting.SendQueue`, whose words hold; :meth:`post` and :meth:`post_send` take what is plain.

    Args:
        drive: of the runtime whose device has the queue.
        lock: held around what changes the queue.
        block: number of its queue block.
        registers: the window that the block lies in.
        ring: its descriptors.
        entries: how many.
        plain: what a plain work request's opcode says in a descriptor, by the opcode of verbs.
        batched: opcodes of descriptors that may come by the array.
        request: the class of work requests.
    """

    cdef readonly uint32_t entries
    cdef public uint32_t head, tail
    cdef public list ids
    cdef Drive drive
    cdef object acquire, release, block, registers, view, request
    cdef dict plain
    cdef uint8_t *ring
    cdef atomic_word *words
    cdef bint closed
    cdef uint8_t batched[256]

    def __cinit__(self, Drive drive, lock, block, registers, ring, uint32_t entries, dict plain, batched, request):
        cdef Py_ssize_t length = 0, window = 0, at = block << BLOCK_SHIFT
        self.drive, self.block, self.registers, self.view = drive, block, registers, ring
        self.acquire, self.release = lock.acquire, lock.release
        self.plain, self.request = plain, request
        for opcode in batched:
            self.batched[<uint8_t> opcode] = 1
        self.entries = entries
        self.ring = _address(ring, &length)
        self.words = <atomic_word *> (_address(registers, &window) + at)
        if length < <Py_ssize_t> entries * SQE_BYTES or window < at + (1 << BLOCK_SHIFT):
            raise ValueError(f"{entries} entries of a ring of {length} bytes, block {block} of {window} bytes")
        self.reset()

    def reset(self):
        """The queue is empty."""
        self.head = self.tail = 0
        self.ids = [0] * self.entries

    def close(self):
        """Its block may be another queue's from now on."""
        self.closed = True

    cdef bint _put(self, uint32_t opcode, uint32_t flags, uint64_t local, uint64_t remote, uint32_t length,
                   uint32_t lkey, uint32_t rkey, uint32_t imm, object wr_id, uint32_t wqe_id) except -1:
        """Write a descriptor and its doorbell's value; false where the queue is full."""
        cdef uint32_t index = self.tail, after = index + 1
        cdef uint32_t *at = <uint32_t *> (self.ring + <size_t> index * SQE_BYTES)
        if after == self.entries:
            after = 0
        if after == self.head or index >= self.entries:
            return False
        self.ids[index] = wr_id
        at[0] = wqe_id
        at[1] = opcode | flags << 16
        memcpy(at + 2, &local, 8)
        memcpy(at + 4, &remote, 8)
        at[6], at[7], at[8], at[9] = length, lkey, rkey, imm
        self.tail = after
        atomic_store_explicit(self.words + (SQ_TAIL >> 2), after, memory_order_release)
        return True

    def post(self, uint32_t opcode, uint64_t local, uint64_t length, uint32_t lkey, uint64_t remote, uint32_t rkey,
             wr_id, uint32_t flags, uint32_t imm):
        """Post one work request of one buffer; false, with nothing changed, where it is full or closed."""
        cdef uint32_t wqe_id = <uint32_t> (<object> wr_id & 0xFFFFFFFF)
        cdef bint put
        if self.closed or opcode > 0xFFFF or flags > 0xFFFF or length > 0xFFFFFFFFu:
            return False
        self.acquire()
        try:
            put = self._put(opcode, flags, local, remote, <uint32_t> length, lkey, rkey, imm, wr_id, wqe_id)
        finally:
            self.release()
        if put:
            self.drive._ring(self.block, length)
        return put

    cdef bint _sends(self) noexcept:
        """Whether sends may be posted, and the device takes them at once."""
        return not self.closed and atomic_load_explicit(self.words + (QUEUE_STATE >> 2), memory_order_acquire) == STATE_RTS

    def post_send(self, wr):
        """Post a work request of at most one buffer; false, with nothing changed, for anything else."""
        cdef uint32_t opcode, lkey = 0, rkey, imm, wqe_id, verbs_flags
        cdef uint64_t local = 0, length = 0, remote
        cdef bint put
        if type(wr) is not self.request or wr.next is not None or not self._sends():
            return False
        operation = self.plain.get(wr.opcode)
        flags, sges, wr_id, immediate = wr.send_flags, wr.sg, wr.wr_id, wr.imm_data
        if (
            operation is None or type(flags) is not int or not 0 <= flags <= PLAIN_FLAGS or type(sges) is not list
            or type(wr_id) is not int or not 0 <= wr_id <= 0xFFFFFFFFFFFFFFFF
            or type(immediate) is not int or not 0 <= immediate <= 0xFFFFFFFF
        ):
            return False
        if len(<list> sges) == 1:
            sge = (<list> sges)[0]
            local, length, lkey = sge.addr, sge.length, sge.lkey
        elif len(<list> sges):
            return False
        if length > 0xFFFFFFFFu:
            return False
        opcode, verbs_flags, imm, remote, rkey = operation, flags, immediate, wr.remote_addr, wr.rkey
        wqe_id = <uint32_t> <uint64_t> wr_id
        self.acquire()
        try:
            put = self._put(opcode, _flags[verbs_flags], local, remote, <uint32_t> length, lkey, rkey, imm, wr_id, wqe_id)
        finally:
            self.release()
        if put:
            self.drive._ring(self.block, length)
        return put

    def post_words(self, array):
        """Post descriptors of an array, as many as there is room for; -1, with nothing posted, where one is special."""
        cdef Py_buffer given
        cdef const uint8_t *at
        cdef size_t count, index
        cdef uint32_t word, free
        if not self._sends():
            return -1
        try:
            PyObject_GetBuffer(array, &given, PyBUF_SIMPLE)
        except (BufferError, ValueError):
            return -1
        try:
            at = <const uint8_t *> given.buf
            count = <size_t> given.len // SQE_BYTES
            for index in range(count):
                memcpy(&word, at + index * SQE_BYTES + 4, 4)
                if word & 0xFF00 or not self.batched[word & 0xFF] or word >> 16 & ~<uint32_t> PLAIN_FLAGS:
                    return -1
            self.acquire()
            try:
                if self.tail >= self.entries or self.head >= self.entries:
                    return -1
                free = (self.head + self.entries - self.tail - 1) % self.entries
                if count > free:
                    count = free
                for index in range(count):
                    memcpy(self.ring + <size_t> self.tail * SQE_BYTES, at, SQE_BYTES)
                    memcpy(&word, at, 4)
                    self.ids[self.tail] = word
                    at += SQE_BYTES
                    self.tail = 0 if self.tail + 1 == self.entries else self.tail + 1
                atomic_store_explicit(self.words + (SQ_TAIL >> 2), self.tail, memory_order_release)
            finally:
                self.release()
        finally:
            PyBuffer_Release(&given)
        if count:
            self.drive._ring(self.block, ROUND_GATHER_BYTES + 1)
        return count


cdef class CompletionRing:
    """:class:`rnic.rings.ring.PhaseConsumer`, compiled. Arguments as there.

    ``owner`` and ``last``: the queue pair whose sends were all that :meth:`take` took last, or -1, and the last's index.
    """

    cdef readonly object view
    cdef readonly uint32_t size, head
    cdef readonly uint32_t phase
    cdef readonly int64_t owner
    cdef readonly uint32_t last
    cdef uint8_t *ring

    def __cinit__(self, view, uint32_t size):
        cdef Py_ssize_t length = 0
        PhaseConsumer(view, size)  # what it says of sizes
        self.view = view.cast("B")
        self.ring = _address(self.view, &length)
        self.size, self.head, self.phase, self.owner = size, 0, CQE_PHASE, -1

    cdef bint _ready(self) noexcept:
        cdef atomic_word *word = <atomic_word *> (self.ring + <size_t> self.head * CQE_BYTES) + FLAGS_WORD
        return atomic_load_explicit(word, memory_order_acquire) & CQE_PHASE == self.phase

    cdef void _skip(self) noexcept:
        self.head += 1
        if self.head == self.size:
            self.head = 0
            self.phase ^= CQE_PHASE

    def ready(self):
        """Whether the entry at the head is valid."""
        return self._ready()

    def pop(self):
        """Take the next entry, or ``None``."""
        cdef uint32_t *at = <uint32_t *> (self.ring + <size_t> self.head * CQE_BYTES)
        if not self._ready():
            return None
        entry = (at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7])
        self._skip()
        return entry

    def skip(self, uint32_t count):
        """Take the next ``count`` entries, which are valid and none of them behind the ring's end."""
        self.head += count
        if self.head == self.size:
            self.head = 0
            self.phase ^= CQE_PHASE

    def take(self, array, size_t start):
        """Take entries into an array of them from ``start`` on; how many there were."""
        cdef Py_buffer given
        cdef uint32_t *at
        cdef uint32_t owner = 0, flags = 0
        cdef size_t count = 0, most
        PyObject_GetBuffer(array, &given, PyBUF_WRITABLE)
        most = <size_t> given.len // CQE_BYTES
        while start + count < most and self._ready():
            at = <uint32_t *> (<uint8_t *> given.buf + (start + count) * CQE_BYTES)
            memcpy(at, self.ring + <size_t> self.head * CQE_BYTES, CQE_BYTES)
            owner = owner if count else at[QPN_WORD] & 0xFFFFFF
            flags |= at[FLAGS_WORD] & CQE_RECEIVE | <uint32_t> (owner != at[QPN_WORD] & 0xFFFFFF) << 31
            self.last = at[0]
            self._skip()
            count += 1
        PyBuffer_Release(&given)
        self.owner = <int64_t> owner if count and not flags & (CQE_RECEIVE | 1u << 31) else -1
        return count

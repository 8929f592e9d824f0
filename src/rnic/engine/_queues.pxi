# Compiled software side of queues: post and poll the common cases; included by _engine.pyx. The Python classes handle
# the other cases and have the documentation (verbs/posting.py, verbs/srq.py, rings/ring.py).

from rnic.rings.cqe import CQ_ENTRY
from rnic.rings.ring import PhaseConsumer

cdef extern from "state.h" nogil:
    enum:
        STATE_INIT "QP_STATE_INIT"
        STATE_RTR "QP_STATE_RTR"
        STATE_RTS "QP_STATE_RTS"
        POLL_GATHER_BYTES
        BLOCK_SHIFT
        QUEUE_STATE "REG_QUEUE_STATE"
        SQ_TAIL "REG_SQ_TAIL"
        RQ_TAIL "REG_RQ_TAIL"
        CQ_HEAD "REG_CQ_HEAD"
        SQE_BYTES
        SGE_BYTES
        FLAG_SIGNALED
        FLAG_SOLICITED
        FLAG_FENCE
        CQE_BYTES
        CQE_PHASE
        CQE_RECEIVE
        CQE_IMM
        CQE_INV
        CQE_GRH

cdef extern from "<stdatomic.h>" nogil:
    enum memory_order:
        memory_order_acquire
        memory_order_release
        memory_order_seq_cst
    uint32_t atomic_load_explicit(atomic_word *word, memory_order order)
    void atomic_store_explicit(atomic_word *word, uint32_t value, memory_order order)

cdef enum:
    PLAIN_FLAGS = FLAG_SIGNALED | FLAG_SOLICITED | FLAG_FENCE

cdef size_t FLAGS_WORD = CQ_ENTRY["phase"].byte >> 2, QPN_WORD = CQ_ENTRY["qpn"].byte >> 2

# Descriptor flags by verbs flags: IBV_SEND_FENCE 1, SIGNALED 2, SOLICITED 4 (verbs/qp.py FLAG_TABLE).
cdef uint32_t[8] _flags
for _verbs in range(8):
    _flags[_verbs] = (
        (FLAG_FENCE if _verbs & 1 else 0) | (FLAG_SIGNALED if _verbs & 2 else 0) | (FLAG_SOLICITED if _verbs & 4 else 0)
    )


cdef class SendQueue:
    """Software side of a send queue, like :class:`rnic.verbs.posting.SendQueue`: identifiers, tail and doorbell.

    :meth:`post`, :meth:`post_send` and :meth:`post_words` post plain work requests.

    Args:
        doorbell: the loop or bypass driver of the queue.
        lock: held around changes of the queue.
        block: number of its queue block.
        registers: the window that contains the block.
        ring: its descriptors.
        entries: number of entries.
        plain: descriptor opcode of a plain work request, by verbs opcode.
        batched: descriptor opcodes that may be posted as an array.
        request: the class of work requests.
    """

    cdef readonly uint32_t entries
    cdef public uint32_t head, tail
    cdef public list ids
    cdef Doorbell doorbell
    cdef DeviceLock lock
    cdef object block, registers, view, request
    cdef dict plain
    cdef uint8_t *ring
    cdef atomic_word *words
    cdef bint closed
    cdef uint8_t batched[256]

    def __cinit__(self, Doorbell doorbell, DeviceLock lock not None, block, registers, ring, uint32_t entries,
                  dict plain, batched, request):
        cdef Py_ssize_t length = 0, window = 0, at = block << BLOCK_SHIFT
        self.doorbell, self.block, self.registers, self.view = doorbell, block, registers, ring
        self.lock = lock
        self.plain, self.request = plain, request
        for opcode in batched:
            self.batched[<uint8_t> opcode] = 1
        self.entries = entries
        self.ring = buffer_address(ring, &length)
        self.words = <atomic_word *> (buffer_address(registers, &window) + at)
        if length < <Py_ssize_t> entries * SQE_BYTES or window < at + (1 << BLOCK_SHIFT):
            raise ValueError(f"{entries} entries of a ring of {length} bytes, block {block} of {window} bytes")
        self.reset()

    def reset(self):
        """Empty the queue."""
        self.head = self.tail = 0
        self.ids = [0] * self.entries

    def close(self):
        """Close the queue: its block may be reused by another one."""
        self.closed = True

    cdef bint _put(self, uint32_t opcode, uint32_t flags, uint64_t local, uint64_t remote, uint32_t length,
                   uint32_t lkey, uint32_t rkey, uint32_t imm, object wr_id, uint32_t wqe_id) except -1:
        """Write a descriptor and the tail; return false if the queue is full."""
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
        """Post a work request with one buffer; return false, with nothing changed, if the queue is full or closed."""
        cdef uint32_t wqe_id = <uint32_t> (<object> wr_id & 0xFFFFFFFF)
        cdef bint put
        if self.closed or opcode > 0xFFFF or flags > 0xFFFF or length > 0xFFFFFFFFu:
            return False
        self.lock.take()
        try:
            put = self._put(opcode, flags, local, remote, <uint32_t> length, lkey, rkey, imm, wr_id, wqe_id)
        finally:
            device_lock_release(&self.lock.c_lock)
        if put:
            self.doorbell.ring(self.block, length)
        return put

    cdef bint _sends(self) noexcept:
        """Return whether the queue pair is in RTS, so the device processes sends at once."""
        cdef uint32_t state = atomic_load_explicit(self.words + (QUEUE_STATE >> 2), memory_order_acquire)
        return not self.closed and state == STATE_RTS

    def post_send(self, wr):
        """Post a work request with at most one buffer; return false, with nothing changed, for any other."""
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
        self.lock.take()
        try:
            put = self._put(opcode, _flags[verbs_flags], local, remote, <uint32_t> length, lkey, rkey, imm, wr_id,
                            wqe_id)
        finally:
            device_lock_release(&self.lock.c_lock)
        if put:
            self.doorbell.ring(self.block, length)
        return put

    def post_words(self, array, kind):
        """Post descriptors of an array of type ``kind``, limited by free entries.

        Returns:
            Number posted; -1, with nothing posted, if the array or a descriptor is not plain, or sends cannot be
            posted.
        """
        cdef Py_buffer given
        cdef const uint8_t *at
        cdef size_t count, index
        cdef uint32_t word, free
        if not self._sends() or getattr(array, "dtype", None) is not kind:
            return -1
        try:
            PyObject_GetBuffer(array, &given, PyBUF_ND)
        except (BufferError, ValueError):
            return -1
        try:
            if given.ndim != 1:
                return -1
            at = <const uint8_t *> given.buf
            count = <size_t> given.len // SQE_BYTES
            for index in range(count):
                memcpy(&word, at + index * SQE_BYTES + 4, 4)
                if word & 0xFF00 or not self.batched[word & 0xFF] or word >> 16 & ~<uint32_t> PLAIN_FLAGS:
                    return -1
            self.lock.take()
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
                device_lock_release(&self.lock.c_lock)
        finally:
            PyBuffer_Release(&given)
        if count:
            self.doorbell.ring(self.block, POLL_GATHER_BYTES + 1)
        return count


cdef class ReceiveQueue:
    """Software side of a queue pair's own receive queue, like :class:`rnic.verbs.srq.Receives`.

    Args:
        lock: held around changes of the queue.
        block: number of its queue block.
        registers: the window that contains the block.
        ring: its descriptors, of ``stride`` bytes each.
        entries: number of entries.
        limit: most entries that may be posted at a time.
        request: the class of work requests.
    """

    cdef public uint32_t tail, posted
    cdef public list ids
    cdef readonly uint32_t entries
    cdef object acquire, release, registers, view, request
    cdef uint8_t *ring
    cdef atomic_word *words
    cdef uint32_t limit, stride, max_sge
    cdef bint closed

    def __cinit__(self, lock, block, registers, ring, uint32_t entries, uint32_t limit, uint32_t stride,
                  uint32_t max_sge, request):
        cdef Py_ssize_t length = 0, window = 0, at = block << BLOCK_SHIFT
        self.acquire, self.release = lock.acquire, lock.release
        self.registers, self.view, self.request = registers, ring, request
        self.entries, self.limit, self.stride, self.max_sge = entries, limit, stride, max_sge
        self.ring = buffer_address(ring, &length)
        self.words = <atomic_word *> (buffer_address(registers, &window) + at)
        if length < <Py_ssize_t> entries * stride or stride < SGE_BYTES or window < at + (1 << BLOCK_SHIFT):
            raise ValueError(f"{entries} entries of a ring of {length} bytes, block {block} of {window} bytes")
        self.reset()

    def reset(self):
        """Empty the queue."""
        self.tail = self.posted = 0
        self.ids = [None] * self.entries

    def close(self):
        """Close the queue: its block may be reused by another one."""
        self.closed = True

    cdef bint _receives(self) noexcept:
        """Return whether posting a receive requires only stores to entry and tail."""
        cdef uint32_t state = atomic_load_explicit(self.words + (QUEUE_STATE >> 2), memory_order_acquire)
        return not self.closed and (state == STATE_RTS or state == STATE_RTR or state == STATE_INIT)

    cdef bint _put(self, wr) except -1:
        """Write a descriptor with non-empty scatter entries only; return false, with nothing changed, for any other."""
        cdef uint8_t *at = self.ring + <size_t> self.tail * self.stride
        cdef uint64_t addr, length
        cdef uint32_t key, size
        cdef list pieces
        if type(wr) is not self.request or self.tail >= self.entries or self.posted >= self.limit:
            return False
        sg, wr_id = wr.sg, wr.wr_id
        if type(sg) is not list or type(wr_id) is not int or self.ids[self.tail] is not None:
            return False
        pieces = sg
        if len(pieces) > <Py_ssize_t> self.max_sge:
            return False
        for sge in pieces:
            addr, length, key = sge.addr, sge.length, sge.lkey
            if not 0 < length <= 0xFFFFFFFF:
                return False
            size = <uint32_t> length
            memcpy(at, &addr, 8)
            memcpy(at + 8, &size, 4)
            memcpy(at + 12, &key, 4)
            at += SGE_BYTES
        if len(pieces) * SGE_BYTES < self.stride:
            memset(at, 0, SGE_BYTES)
        self.ids[self.tail] = wr_id
        self.posted += 1
        self.tail = 0 if self.tail + 1 == self.entries else self.tail + 1
        return True

    def post(self, wr):
        """Post a work request, or the leading plain ones of a list; return the number posted, and whether these are
        all."""
        cdef Py_ssize_t done = 0
        cdef bint whole
        if not self._receives():
            return 0, False
        self.acquire()
        try:
            if type(wr) is list:
                for each in <list> wr:
                    if not self._put(each):
                        break
                    done += 1
                whole = done == len(<list> wr)
            else:
                done = type(wr) is self.request and wr.next is None and self._put(wr)
                whole = done == 1
            atomic_store_explicit(self.words + (RQ_TAIL >> 2), self.tail, memory_order_release)
        finally:
            self.release()
        # in the error state, posted requests must be flushed; the state may have changed in the meantime
        return done, whole and self._receives()


cdef object _retire(uint32_t *at, tuple pair):
    """Free the completed entry (for a send, also all before it); return its identifier, ``None`` if there is no such
    entry."""
    cdef uint32_t index = at[0]
    cdef SendQueue sends
    cdef ReceiveQueue receives
    if at[FLAGS_WORD] & CQE_RECEIVE:
        receives = pair[1]
        if receives is None or index >= receives.entries or receives.ids[index] is None:
            return None
        wr_id = receives.ids[index]
        receives.ids[index] = None
        receives.posted -= 1
        return wr_id
    sends = pair[0]
    if index >= sends.entries:
        return None
    sends.head = 0 if index + 1 == sends.entries else index + 1
    return sends.ids[index]


cdef class CompletionRing:
    """Compiled :class:`rnic.rings.ring.PhaseConsumer`, with the same arguments."""

    cdef readonly object view
    cdef readonly uint32_t size, head
    cdef readonly uint32_t phase
    cdef object registers, progress, acquire, release
    cdef Doorbell doorbell
    cdef atomic_word *block_words
    cdef uint8_t *ring

    def __cinit__(self, view, uint32_t size):
        cdef Py_ssize_t length = 0
        PhaseConsumer(view, size)  # checks the size
        self.view = view.cast("B")
        self.ring = buffer_address(self.view, &length)
        self.size, self.head, self.phase = size, 0, CQE_PHASE

    cdef bint _ready(self) noexcept:
        cdef atomic_word *word = <atomic_word *> (self.ring + <size_t> self.head * CQE_BYTES) + FLAGS_WORD
        return atomic_load_explicit(word, memory_order_acquire) & CQE_PHASE == self.phase

    cdef void _skip(self) noexcept:
        self.head += 1
        if self.head == self.size:
            self.head = 0
            self.phase ^= CQE_PHASE

    def ready(self):
        """True if the entry at the head is valid."""
        return self._ready()

    def attach(self, Doorbell doorbell, progress, registers, block, lock):
        """Enable polling of entries in this class.

        Args:
            doorbell: the loop or bypass driver of the queue.
            progress: function that drives the device.
            registers: a window with the queue block.
            block: number of the queue block, which has the consumer index.
            lock: held around changes of the queue.
        """
        cdef Py_ssize_t window = 0, at = block << BLOCK_SHIFT
        cdef uint8_t *base = buffer_address(registers, &window)
        if window < at + (1 << BLOCK_SHIFT):
            raise ValueError(f"block {block} of {window} bytes")
        self.doorbell, self.progress, self.registers = doorbell, progress, registers
        self.acquire, self.release = lock.acquire, lock.release
        self.block_words = <atomic_word *> (base + at)

    def detach(self):
        """Disable polling, since the queue gets another ring or none. Its lock is held."""
        self.block_words = NULL

    cpdef bint poll_ready(self) except -1:
        """Return whether an entry is valid; poll the device first if none is."""
        if self._ready():
            return True
        self.progress()
        return self._ready()

    def poll(self, Py_ssize_t most, dict queues, dict opcodes, receive_opcode, kind, list found):
        """Take successful completions with nothing but a length, up to the first of another kind.

        Args:
            most: most completions to take.
            queues: :class:`SendQueue` and :class:`ReceiveQueue` (or ``None``) by queue pair number.
            opcodes: completion opcodes of sends.
            receive_opcode: completion opcode of a receive without immediate.
            kind: the class of completions, whose attributes are slots.
            found: list to append them to.
        """
        cdef uint32_t *at
        while len(found) < most and self._ready():
            at = <uint32_t *> (self.ring + <size_t> self.head * CQE_BYTES)
            if at[1] & 0xFFFF or at[FLAGS_WORD] & (CQE_IMM | CQE_INV | CQE_GRH):
                break
            number = at[QPN_WORD] & 0xFFFFFF
            pair = queues.get(number)
            if pair is None:
                break
            opcode = receive_opcode if at[FLAGS_WORD] & CQE_RECEIVE else opcodes.get(at[FLAGS_WORD] & 0xFF)
            wr_id = _retire(at, pair) if opcode is not None else None
            if wr_id is None:
                break
            wc = kind.__new__(kind)
            wc.wr_id, wc.status, wc.opcode, wc.vendor_err, wc.byte_len = wr_id, 0, opcode, 0, at[2]
            wc.qp_num, wc.src_qp, wc.imm_data, wc.wc_flags, wc.pkey_index = number, 0, 0, 0, 0
            found.append(wc)
            self._skip()
        if self.block_words is not NULL:
            self.doorbell.seen = True
            atomic_store_explicit(self.block_words + (CQ_HEAD >> 2), self.head, memory_order_release)

    def pop(self):
        """Take the next entry, or ``None``."""
        cdef uint32_t *at = <uint32_t *> (self.ring + <size_t> self.head * CQE_BYTES)
        if not self._ready():
            return None
        entry = (at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7])
        self._skip()
        return entry

    def skip(self, uint32_t count):
        """Take the next ``count`` entries, which are valid and do not pass the ring's end."""
        self.head += count
        if self.head == self.size:
            self.head = 0
            self.phase ^= CQE_PHASE

    def poll_array(self, array, kind, dict queues):
        """Take entries into an array of type ``kind``; poll the device first if there is none.

        Args:
            queues: as for :meth:`poll`.

        Returns:
            Number taken, up to the first of another queue; -1, with nothing taken, if that is the first entry or the
            array is not plain.
        """
        cdef Py_buffer given
        cdef Py_ssize_t count
        if getattr(array, "dtype", None) is not kind:
            return -1
        try:
            PyObject_GetBuffer(array, &given, PyBUF_WRITABLE | PyBUF_ND)
        except (BufferError, ValueError):
            return -1
        try:
            if given.ndim != 1 or self.block_words is NULL:
                return -1
            if not self.poll_ready():
                return 0
            self.acquire()
            try:
                count = self._take_array(<uint8_t *> given.buf, given.len // CQE_BYTES, queues)
            finally:
                self.release()
            return count if count else -1
        finally:
            PyBuffer_Release(&given)

    cdef Py_ssize_t _take_array(self, uint8_t *to, Py_ssize_t most, dict queues) except -1:
        """Take at most ``most`` entries of these queues; return their number. The lock is held."""
        cdef uint32_t *at
        cdef uint32_t number = 0, before = 0
        cdef Py_ssize_t count = 0
        if self.block_words is NULL:
            return 0
        while count < most and self._ready():
            at = <uint32_t *> (self.ring + <size_t> self.head * CQE_BYTES)
            number = at[QPN_WORD] & 0xFFFFFF
            if not count or number != before:
                pair, before = queues.get(number), number
            if pair is None or _retire(at, pair) is None:
                break
            memcpy(to + count * CQE_BYTES, at, CQE_BYTES)
            self._skip()
            count += 1
        if count:
            self.doorbell.seen = True
            atomic_store_explicit(self.block_words + (CQ_HEAD >> 2), self.head, memory_order_release)
        return count

# Compiled transfers of a Coyote thread (003): included by _engine.pyx. Plain transfers are posted and counted here;
# coyote/thread.py handles the others and has the documentation.

cdef extern from "queue_pair/translation.h" nogil:
    const memory_key *engine_remote_key(const engine_shared *shared, const engine_qp *qp, uint32_t rkey, uint64_t va,
                                        uint64_t length, uint64_t rights)
    int engine_tlb_ready(const engine_translation *by, const memory_key *key, uint64_t va, uint64_t length,
                         uint64_t need)
    void engine_pages_use(const engine_qp *qp, uint32_t rkey, uint64_t va, uint64_t length)

cdef extern from "state.h" nogil:
    enum:
        WR_READ
        ACCESS_LOCAL_WRITE

DEF TLB_READ = 1
DEF TLB_WRITE = 2
DEF ADDRESS_END = 1 << 48
DEF IS_READ = 1
DEF IS_COUNTED = 2
DEF KINDS = 4


cdef class TransferQueue:
    """A send queue for transfers between the buffers of two hosts.

    Work request identifiers below ``KINDS`` are its own: their bits tell whether it is a READ and whether it is
    counted.

    Args:
        sends: the send queue, driven by the device's loop.
        ring: completion ring of the queue pair only.
        lock: held around commands and their completions; if it is held, a transfer is not plain.
        first: collections of waiting commands; if there are any, a transfer is not plain.
        others: outstanding commands.
        depth: most outstanding commands and transfers.
        opcodes: work request opcodes by operation, for those that may be plain.
        kind: the class of scatter entries.
        local: this side's buffer: address ``vaddr``.
        remote: the peer's: address ``vaddr`` and R_Key ``rkey``.
        longest: length of the longest transfer in bytes.
        counts: counters for ``rdma_read`` and ``rdma_write``.

    Attributes:
        started: transfers so far.
        ended: completed transfers.
    """

    cdef SendQueue sends
    cdef CompletionRing ring
    cdef Loop loop
    cdef readonly uint64_t started, ended
    cdef object acquire, release, kind, local, remote, others
    cdef tuple first
    cdef dict opcodes, counts
    cdef uint64_t local_va, remote_va
    cdef int64_t longest
    cdef uint32_t rkey
    cdef Py_ssize_t depth
    cdef uint64_t posted[KINDS]
    cdef uint64_t completed[KINDS]
    cdef tuple told

    def __cinit__(self, SendQueue sends not None, CompletionRing ring not None, lock, tuple first, others,
                  Py_ssize_t depth, dict opcodes, kind, local, remote, int64_t longest, dict counts):
        self.sends, self.ring, self.loop = sends, ring, sends.doorbell
        self.acquire, self.release = lock.acquire, lock.release
        self.first, self.others, self.depth = first, others, depth
        self.opcodes, self.kind = opcodes, kind
        self.local, self.remote, self.longest, self.counts = local, remote, longest, counts
        self.local_va, self.remote_va, self.rkey = local.vaddr, remote.vaddr, remote.rkey
        self.told = 0, 0

    def invoke(self, oper, sg, bint counted, local, remote):
        """Start a transfer between two buffers; return false, with nothing changed, if it is not plain."""
        cdef tuple fields
        opcode = self.opcodes.get(oper)
        if opcode is None or type(sg) is not self.kind or local is not self.local or remote is not self.remote:
            return False
        fields = <tuple> sg
        length, here, there = fields[0], fields[1], fields[2]
        if type(length) is not int or type(here) is not int or type(there) is not int:
            return False
        if not (0 < length <= self.longest and 0 <= here < ADDRESS_END and 0 <= there < ADDRESS_END):
            return False
        if fields[3] != 1 or fields[4] != 0 or not self.acquire(False):
            return False
        try:
            return self._invoke(opcode, length, self.local_va + <uint64_t> here, self.remote_va + <uint64_t> there,
                                counted)
        finally:
            self.release()

    cdef bint _invoke(self, uint32_t opcode, uint64_t length, uint64_t local, uint64_t remote, bint counted) except -1:
        cdef bint read = opcode == WR_READ
        cdef int kind = (IS_READ if read else 0) | (IS_COUNTED if counted else 0)
        cdef uint32_t key
        if local + length > ADDRESS_END or remote + length > ADDRESS_END:
            return False
        if _of(self.loop.of_runtime, "_io_poll") is not self.loop.io_poll:  # closed, or in a forked child
            return False
        for each in self.first:
            if len(each):
                return False
        if <Py_ssize_t> (self.started - self.ended) + len(self.others) >= self.depth:
            return False
        key = self._region(local, length, read)
        if not key or not self.sends.post(opcode, local, length, key, remote, self.rkey, kind, FLAG_SIGNALED, 0):
            return False
        self.posted[kind] += 1
        self.started += 1
        return True

    cdef uint32_t _region(self, uint64_t va, uint64_t length, bint write) except? 0:
        """Return the key of the region that contains a range, and use its pages; 0 if only Python may insert them."""
        cdef Device device = self.loop.io_poll.device
        cdef Executor executor
        cdef const memory_key *found
        self.loop.lock.take()
        try:
            executor = device.by_block.get(self.sends.block)
            if executor is None or executor.c_qp.found != device.c_device.changes or executor.c_qp.translation == NULL:
                return 0
            found = engine_remote_key(&device.shared.c_shared, &executor.c_qp, 0, va, length,
                                      ACCESS_LOCAL_WRITE if write else 0)
            if found == NULL or not engine_tlb_ready(
                executor.c_qp.translation, found, va, length, TLB_WRITE if write else TLB_READ
            ):
                return 0
            engine_pages_use(&executor.c_qp, 0, va, length)
            return <uint32_t> found.key
        finally:
            device_lock_release(&self.loop.lock.c_lock)

    def take(self):
        """Take the successful completions of such transfers at the head of the ring.

        Returns:
            Whether there were any, and whether another completion follows.
        """
        cdef uint32_t *at
        cdef bint any = False, others = False
        cdef uint64_t completed[KINDS]
        cdef int kind
        memset(completed, 0, sizeof(completed))
        while self.ring._ready():
            at = <uint32_t *> (self.ring.ring + <size_t> self.ring.head * CQE_BYTES)
            others = at[1] & 0xFFFF or at[FLAGS_WORD] & CQE_RECEIVE or at[0] >= self.sends.entries
            wr_id = None if others else self.sends.ids[at[0]]
            if others or wr_id >= KINDS:
                others = True
                break
            self.sends.head = 0 if at[0] + 1 == self.sends.entries else at[0] + 1
            completed[<int> wr_id] += 1
            self.ring._skip()
            any = True
        if any:
            for kind in range(KINDS):
                self._count(kind, completed[kind])
        if any and self.ring.block_words is not NULL:
            self.ring.doorbell.seen = True
            atomic_store_explicit(self.ring.block_words + (CQ_HEAD >> 2), self.ring.head, memory_order_release)
        return any, others

    def landed(self, int kind, bint ok):
        """Count a completion that other code took out of the ring."""
        if ok:
            self._count(kind, 1)
        else:
            self.ended += 1

    cdef int _count(self, int kind, uint64_t completed) except -1:
        self.ended += completed
        self.completed[kind] += completed
        if kind & IS_COUNTED and completed:
            name = "rdma_read" if kind & IS_READ else "rdma_write"
            self.counts[name] += completed
        return 0

    def take_counts(self):
        """Return the number of messages written to this side's memory and read from it since the last call."""
        written, read = self.told
        self.told = (
            self.completed[IS_READ] + self.completed[IS_READ | IS_COUNTED], self.posted[0] + self.posted[IS_COUNTED]
        )
        return self.told[0] - written, self.told[1] - read

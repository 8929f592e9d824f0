# The engine in a program with a bypass slot of the NIC process, as under `rnic exec --bypass` (bypass/driver.h):
# included by _engine.pyx. Every call releases the GIL, since C may have to wait for the NIC process.

cimport cython
from libc.errno cimport EINTR, EIO, errno
from posix.fcntl cimport fcntl
from posix.unistd cimport close

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1

cdef extern from "<sys/socket.h>" nogil:
    enum:
        SHUT_RDWR
    int shutdown(int socket, int how)

cdef extern from "<fcntl.h>" nogil:
    enum:
        F_DUPFD_CLOEXEC

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events, revents
    enum:
        POLLHUP
        POLLERR
    int poll(pollfd *each, unsigned long count, int timeout)

cdef extern from "state.h" nogil:
    enum:
        STATE_ERR "QP_STATE_ERR"
        BLOCK_BYTES
        QUEUE_NUMBER "REG_QUEUE_NUMBER"
        SQ_DOORBELL "REG_SQ_DOORBELL"
        CQ_TAIL "REG_CQ_TAIL"
        CQ_DOORBELL "REG_CQ_DOORBELL"
        SRQ_LIMIT "REG_SRQ_LIMIT"
        ATTACH_OPEN_SLOT_SIZE

cdef extern from "io/own_fd.h" nogil:
    struct own_fd:
        int fd
        uint32_t word
    enum:
        OWN_FD_PRIVATE
        OWN_FD_WATCHED
    void own_fd_take(own_fd *own, int fd, int kind)
    int own_fd_valid(const own_fd *own)
    void own_fd_close(own_fd *own)
    void own_fd_close_inherited(own_fd *own)

cdef extern from "bypass/driver.h" nogil:
    ctypedef uint8_t atomic_byte "_Atomic uint8_t"
    enum:
        DRIVER_FDS
        RPC_BYTES
        RPC_FDS
    struct rpc_reply:
        uint32_t error
        uint8_t body[65536]
        size_t bytes
        int fds[8]
        int fd_count
    struct driver_event_queue:
        uint32_t vector
        own_fd fd
        int (*waits)(driver_event_queue *events) noexcept nogil
    struct driver_setup:
        own_fd socket
        uint8_t *blocks
        const uint8_t *answer
        const int *fds
        int (*is_gone)(void *self) noexcept nogil
        void (*lost)(void *self) noexcept nogil
        void *self
    struct bypass_driver:
        pass
    int driver_open(const driver_setup *setup, bypass_driver **made)
    void driver_stop(bypass_driver *slot)
    void driver_close(bypass_driver *slot)
    int driver_request(bypass_driver *slot, uint32_t kind, const void *body, size_t bytes, const int *fds, int fd_count,
                 rpc_reply *said)
    int driver_enable_shm_loopback(bypass_driver *slot)
    void driver_join(bypass_driver *slot, uint32_t number)
    int driver_ring(bypass_driver *slot, uint32_t number, uint32_t block)
    int driver_ring_doorbell(atomic_byte *rung, atomic_word *asleep, const own_fd *wake_fd,
                             uint32_t block)
    int driver_poll(bypass_driver *slot)
    void driver_prepare_to_sleep(bypass_driver *slot)
    void driver_add_events(bypass_driver *slot, driver_event_queue *events)
    int driver_await(bypass_driver *slot, driver_event_queue *events, int other)


cdef struct driver_events:
    driver_event_queue fired  # first: C passes a pointer to it
    atomic_word *block  # queue block


cdef int _events_wait(driver_event_queue *events) noexcept nogil:
    """Return whether there are entries that software has not polled yet."""
    cdef atomic_word *block = (<driver_events *> events).block
    return (
        atomic_load_explicit(block + (CQ_TAIL >> 2), memory_order_acquire)
        != atomic_load_explicit(block + (CQ_HEAD >> 2), memory_order_acquire)
    )


cdef struct driver_socket:
    own_fd own
    atomic_word lost  # the program has closed descriptors of the driver


cdef int _has_hung_up(void *socket) noexcept nogil:
    cdef pollfd each
    cdef driver_socket *connection = <driver_socket *> socket
    each.fd, each.events = connection.own.fd, 0
    return (atomic_load_explicit(&connection.lost, memory_order_acquire) != 0 or not own_fd_valid(&connection.own)
            or (poll(&each, 1, 0) == 1 and each.revents & (POLLHUP | POLLERR)))


cdef void _note_lost(void *socket) noexcept nogil:
    cdef driver_socket *connection = <driver_socket *> socket
    atomic_store_explicit(&connection.lost, 1, memory_order_release)
    if own_fd_valid(&connection.own):
        shutdown(connection.own.fd, SHUT_RDWR)  # wakes the threads that wait


@cython.no_gc  # its thread may work on the memory that it holds: only its own end releases that
cdef class BypassDriver(Doorbell):
    """The engine of a program with a bypass slot of a device of the NIC process.

    Args:
        socket: connection to the NIC process; it is duplicated.
        window: memory shared with the NIC process.
        blocks_at: offset of the queue blocks in the window.
        rung_at: offset of the doorbell bytes, one per block.
        asleep_at: offset of the word that is set while the NIC process sleeps.
        wake: descriptor that wakes it then; the caller keeps it open.
        answer: the NIC process's answer to OPEN.
        fds: the descriptors passed with the answer; they are closed with this driver.

    Raises:
        OSError: a system call failed; EPROTO if the NIC process uses other layout tables.
        ValueError: the answer does not fit.
    """

    cdef bypass_driver *c_driver
    cdef driver_events events
    cdef uint8_t *base
    cdef atomic_word *asleep
    cdef atomic_byte *rung
    cdef uint32_t blocks
    cdef driver_socket socket
    cdef own_fd wake
    cdef int inside
    cdef bint ended
    cdef list kept

    def __cinit__(self, int socket, window, size_t blocks_at, size_t rung_at, size_t asleep_at, int wake, bytes answer,
                  list fds):
        cdef driver_setup setup
        cdef int[DRIVER_FDS] given
        cdef Py_ssize_t size = 0
        cdef uint8_t *base = buffer_address(window, &size)
        cdef int error
        self.socket.own.fd, self.kept = -1, [window]
        own_fd_take(&self.wake, wake, OWN_FD_WATCHED)
        if len(fds) != DRIVER_FDS or len(answer) < ATTACH_OPEN_SLOT_SIZE or not rung_at < blocks_at < <size_t> size:
            for fd in fds:
                close(fd)
            raise ValueError(f"{len(fds)} descriptors and {len(answer)} bytes, a window of {size}")
        for place in range(DRIVER_FDS):
            given[place] = fds[place]
        own_fd_take(&self.socket.own, fcntl(socket, F_DUPFD_CLOEXEC, 0), OWN_FD_PRIVATE)
        if self.socket.own.fd < 0:
            error = errno
            for fd in fds:
                close(fd)
            raise OSError(error, "no descriptor for the connection")
        self.base, self.blocks = base + blocks_at, <uint32_t> ((size - blocks_at) >> BLOCK_SHIFT)
        self.rung, self.asleep = <atomic_byte *> (base + rung_at), <atomic_word *> (base + asleep_at)
        setup.socket, setup.blocks, setup.fds = self.socket.own, self.base, given
        setup.answer = <const uint8_t *> PyBytes_AS_STRING(answer)
        setup.is_gone, setup.lost, setup.self = _has_hung_up, _note_lost, &self.socket
        error = driver_open(&setup, &self.c_driver)
        if error:
            raise OSError(error, "this program cannot run the data path itself")

    def __dealloc__(self):
        self._end()

    cdef void _end(self) noexcept:
        cdef bypass_driver *driver = self.c_driver
        self.c_driver = NULL
        if driver != NULL:
            with nogil:
                driver_close(driver)
        own_fd_close(&self.socket.own)

    cdef bint _enter(self) noexcept:
        """Return whether the driver still works; if so, the caller ends with :meth:`_leave`."""
        if self.ended or self.c_driver == NULL:
            return False
        self.inside += 1
        return True

    cdef void _leave(self) noexcept:
        self.inside -= 1
        if self.ended and not self.inside:
            self._end()

    @property
    def lost(self):
        """True once the program has closed descriptors of the driver, which stops it."""
        return atomic_load_explicit(&self.socket.lost, memory_order_acquire) != 0

    def keep_alive(self, memory):
        """Keep memory alive while the engine runs, since it may contain rings."""
        self.kept.append(memory)

    def close(self):
        """Stop the driver after its connection is shut down: threads that wait in it return, and the last one closes
        it."""
        if self.ended or self.c_driver == NULL:
            return
        self.ended = True
        self.inside += 1
        with nogil:
            driver_stop(self.c_driver)
        self._leave()

    def forget(self):
        """Close it in a child process, which does not have its thread."""
        self.ended, self.inside = True, 0
        own_fd_close_inherited(&self.socket.own)
        self._end()

    def request(self, uint32_t kind, bytes body, list fds):
        """Send one message; the NIC process may work on the arena until it answers.

        Returns:
            The error number, whether the NIC process explained it, the body of its answer, and its descriptors.
        """
        cdef rpc_reply *said
        cdef int[RPC_FDS] sent
        cdef int count = <int> len(fds), error
        cdef const char *data = PyBytes_AS_STRING(body)
        cdef size_t size = <size_t> len(body)
        if count > RPC_FDS:
            raise ValueError(f"{count} descriptors in one message")
        for place in range(count):
            sent[place] = fds[place]
        said = <rpc_reply *> calloc(1, sizeof(rpc_reply))
        if said == NULL:
            raise MemoryError("no memory for an answer")
        try:
            if not self._enter():
                return EIO, False, b"", []
            with nogil:
                error = driver_request(self.c_driver, kind, data, size, sent, count, said)
            self._leave()
            got = [said.fds[place] for place in range(said.fd_count)]
            return error, said.error != 0, PyBytes_FromStringAndSize(<char *> said.body, <Py_ssize_t> said.bytes), got
        finally:
            free(said)

    def add_event_queue(self, uint32_t vector, int fd, uint32_t block, uint32_t word):
        """Add the event queue of a context: the engine signals ``fd`` for it; ``block`` is its queue block.

        ``word`` is that by which the descriptor is registered (``link/own_fd.py``).
        """
        if self.events.fired.waits != NULL or block >= self.blocks:
            raise ValueError(f"event queue {vector} with block {block} of {self.blocks}")
        self.events.fired.vector, self.events.fired.waits = vector, _events_wait
        own_fd_take(&self.events.fired.fd, fd, OWN_FD_WATCHED)
        self.events.fired.fd.word = word
        self.events.block = self._words(block)
        if self._enter():
            with nogil:
                driver_add_events(self.c_driver, &self.events.fired)
            self._leave()

    def enable_shm_loopback(self):
        """Enable loopback between local programs by shared memory; return the error number."""
        cdef int error = 0
        if self._enter():
            with nogil:
                error = driver_enable_shm_loopback(self.c_driver)
            self._leave()
        return error

    def join(self, uint32_t number):
        """Record that a reliable connection has a peer, which may be a local program."""
        if self._enter():
            with nogil:
                driver_join(self.c_driver, number)
            self._leave()

    # ------------------------------------------------------------------- the data path

    cdef atomic_word *_words(self, uint32_t block) noexcept:
        return <atomic_word *> (self.base + (<size_t> block << BLOCK_SHIFT))

    cdef int _ring(self, uint32_t number, uint32_t block) except -1:
        """Handle a store to a doorbell register; ``number`` is that of the block's queue pair, or 0."""
        cdef int here
        if self._enter():
            with nogil:
                here = driver_ring(self.c_driver, number, block)
                if not here:
                    driver_ring_doorbell(self.rung, self.asleep, &self.wake, block)
            self._leave()
        return 0

    cdef int ring(self, block, uint64_t length) except -1:
        cdef uint32_t place = block
        return self._ring(atomic_load_explicit(self._words(place) + (QUEUE_NUMBER >> 2), memory_order_acquire), place)

    def store(self, uint32_t block, uint32_t register, uint32_t value):
        """Store to a register of a queue block, with its effect."""
        cdef atomic_word *words = self._words(block)
        cdef uint32_t number
        if block >= self.blocks or register >= BLOCK_BYTES or register & 3:
            raise ValueError(f"register {register:#x} of block {block} of {self.blocks}")
        if register == CQ_DOORBELL:
            # the engine stores an entry, then checks if the queue is armed; the program arms, then polls
            atomic_store_explicit(words + (register >> 2), value, memory_order_seq_cst)
            self.prepare_to_sleep()
            return
        atomic_store_explicit(words + (register >> 2), value, memory_order_release)
        number = atomic_load_explicit(words + (QUEUE_NUMBER >> 2), memory_order_acquire)
        if register == SQ_TAIL or register == SQ_DOORBELL:
            self._ring(number, block)
        elif register == SRQ_LIMIT:
            self._ring(0, block)
        elif register == RQ_TAIL:
            # the engine reads the tail when messages arrive; in the error state it must flush receives now
            if atomic_load_explicit(words + (QUEUE_STATE >> 2), memory_order_acquire) == STATE_ERR:
                self._ring(number, block)

    def poll(self):
        """Poll the device; return whether anything happened."""
        cdef int did = 0
        if self._enter():
            with nogil:
                did = driver_poll(self.c_driver)
            self._leave()
        return did != 0

    def prepare_to_sleep(self):
        """Record that the program is about to sleep until an event arrives."""
        if self._enter():
            driver_prepare_to_sleep(self.c_driver)
            self._leave()

    def wait(self, int other):
        """Run the engine and sleep until there may be an event, ``other`` becomes readable, or a signal arrives.

        Returns:
            Whether the NIC process is still running.
        """
        cdef int error = EIO
        if self._enter():
            with nogil:
                error = driver_await(self.c_driver, &self.events.fired, other)
            self._leave()
        if error == EINTR:
            PyErr_CheckSignals()
        return error != EIO

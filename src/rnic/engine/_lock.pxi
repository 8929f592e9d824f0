# The lock around a device that C takes as well, without Python, and what its thread does in C: included by _engine.pyx.

cdef extern from "io/progress_thread.h" nogil:
    struct pump_lock:
        uint32_t depth, visits
    struct pump_watch:
        pump_round_state *round
        pump_lock *lock
        int runs, python
        int sockets[8]
        uint32_t socket_count
        uint64_t tell_within
        uint32_t leased, pending
        engine_told told
        uint32_t stirred
        uint64_t polled, sleeps_until
    enum:
        WATCH_DESCRIPTORS
        STOP_DEADLINE
    int pump_lock_init(pump_lock *lock)
    void pump_lock_destroy(pump_lock *lock)
    int pump_lock_try(pump_lock *lock)
    void pump_lock_take(pump_lock *lock)
    int pump_lock_own(pump_lock *lock)
    void pump_lock_free(pump_lock *lock)
    uint64_t pump_now()
    uint64_t pump_about_now()
    void clock_look()
    int pump_watch_start(pump_watch *watch)
    void pump_watch_stop(pump_watch *watch)
    bint pump_watch_oversleeps(const pump_watch *watch, uint64_t now)
    void pump_watch_ring(pump_watch *watch)


cdef class PortLock:
    """A lock that its holder may take again, as :class:`threading.RLock` is; C takes it, too, and needs no interpreter.

    Who comes from Python finds nothing half done, and what C may do afterwards is decided when they leave.
    """

    cdef pump_lock lock
    cdef Drive drive

    def __cinit__(self):
        if pump_lock_init(&self.lock):
            raise MemoryError("no memory for a lock")

    def __dealloc__(self):
        pump_lock_destroy(&self.lock)

    cdef void take(self) noexcept:
        """Take it as C does."""
        if not pump_lock_try(&self.lock):
            with nogil:
                pump_lock_take(&self.lock)

    def acquire(self, bint blocking=True):
        """Take it: whether that was possible, or could be waited for."""
        if blocking:
            self.take()
        elif not pump_lock_try(&self.lock):
            return False
        self.lock.visits += 1
        if self.drive is not None and self.drive.state.pending:
            self.drive.catch_up()
        return True

    def release(self):
        """Let go.

        Raises:
            RuntimeError: the caller does not hold it.
        """
        if not pump_lock_own(&self.lock) or not self.lock.visits:
            raise RuntimeError("cannot release a lock that is not held")
        if self.lock.visits == 1 and self.drive is not None:
            self.drive.leave()
        self.lock.visits -= 1
        pump_lock_free(&self.lock)
        if self.drive is not None and self.drive.state.sleeps_until:
            pump_watch_ring(&self.drive.state)

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *raised):
        self.release()

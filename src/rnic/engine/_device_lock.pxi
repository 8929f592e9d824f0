# The lock around a device that C takes as well, without Python, and what its thread does in C: included by _engine.pyx.

cdef extern from "io/progress_thread.h" nogil:
    struct device_lock:
        uint32_t depth, visits
    struct progress_thread:
        io_poll_state *round
        device_lock *lock
        int running, python_fd
        int sockets[8]
        uint32_t socket_count
        uint64_t report_within
        uint32_t leased, pending
        engine_stop_info pending_stop
        uint32_t others_sent
        uint64_t polled, sleeps_until
    enum:
        PROGRESS_THREAD_SOCKETS
        STOP_PUNT_DEADLINE
    int device_lock_init(device_lock *lock)
    void device_lock_destroy(device_lock *lock)
    int device_lock_try(device_lock *lock)
    void device_lock_take(device_lock *lock)
    int device_lock_is_held(device_lock *lock)
    void device_lock_release(device_lock *lock)
    uint64_t clock_now()
    uint64_t clock_approximate_now()
    void clock_calibrate()
    int progress_thread_start(progress_thread *watch)
    void progress_thread_stop(progress_thread *watch)
    bint progress_thread_oversleeps(const progress_thread *watch, uint64_t now)
    void progress_thread_wake(progress_thread *watch)


cdef class PortLock:
    """A lock that its holder may take again, as :class:`threading.RLock` is; C takes it, too, and needs no interpreter.

    Who comes from Python finds nothing half done, and what C may do afterwards is decided when they leave.
    """

    cdef device_lock lock
    cdef Drive drive

    def __cinit__(self):
        if device_lock_init(&self.lock):
            raise MemoryError("no memory for a lock")

    def __dealloc__(self):
        device_lock_destroy(&self.lock)

    cdef void take(self) noexcept:
        """Take it as C does."""
        if not device_lock_try(&self.lock):
            with nogil:
                device_lock_take(&self.lock)

    def acquire(self, bint blocking=True):
        """Take it: whether that was possible, or could be waited for."""
        if blocking:
            self.take()
        elif not device_lock_try(&self.lock):
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
        if not device_lock_is_held(&self.lock) or not self.lock.visits:
            raise RuntimeError("cannot release a lock that is not held")
        if self.lock.visits == 1 and self.drive is not None:
            self.drive.leave()
        self.lock.visits -= 1
        device_lock_release(&self.lock)
        if self.drive is not None and self.drive.state.sleeps_until:
            progress_thread_wake(&self.drive.state)

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *raised):
        self.release()

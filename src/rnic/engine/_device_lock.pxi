# The lock of a device, shared by Python, C and the progress thread: included by _engine.pyx.

cdef extern from "io/progress_thread.h" nogil:
    struct device_lock:
        uint32_t depth, visits
    struct progress_thread:
        io_poll_state *round
        device_lock *lock
        int running, python_fd
        own_fds *own
        int sockets[8]
        uint32_t socket_count
        uint64_t report_within
        uint32_t leased, pending, lost
        engine_stop_info pending_stop
        uint32_t others_sent
        uint64_t polled, sleeps_until
    enum:
        PROGRESS_THREAD_SOCKETS
        STOP_PUNT_DEADLINE
    bint io_fds_valid(own_fds *own, io_poll_state *poll, uint64_t now)
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


cdef class DeviceLock:
    """A recursive lock like :class:`threading.RLock` that C can take without the GIL.

    Before Python gets the lock, pending stops of C are handled. When Python releases it, :class:`Loop` decides whether
    C may poll.
    """

    cdef device_lock c_lock
    cdef Loop loop

    def __cinit__(self):
        if device_lock_init(&self.c_lock):
            raise MemoryError("no memory for a lock")

    def __dealloc__(self):
        device_lock_destroy(&self.c_lock)

    cdef void take(self) noexcept:
        """Take the lock as C does."""
        if not device_lock_try(&self.c_lock):
            with nogil:
                device_lock_take(&self.c_lock)

    def acquire(self, bint blocking=True):
        """Take the lock; return false if another thread holds it and ``blocking`` is false."""
        if blocking:
            self.take()
        elif not device_lock_try(&self.c_lock):
            return False
        self.c_lock.visits += 1
        if self.loop is not None and self.loop.thread.pending:
            self.loop.finish_stopped()
        return True

    def release(self):
        """Release the lock.

        Raises:
            RuntimeError: the caller does not hold it.
        """
        if not device_lock_is_held(&self.c_lock) or not self.c_lock.visits:
            raise RuntimeError("cannot release a lock that is not held")
        if self.c_lock.visits == 1 and self.loop is not None:
            self.loop.release_to_c()
        self.c_lock.visits -= 1
        device_lock_release(&self.c_lock)
        if self.loop is not None and self.loop.thread.sleeps_until:
            progress_thread_wake(&self.loop.thread)

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *raised):
        self.release()

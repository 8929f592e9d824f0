# Compiled common path of a runtime's loop (runtime/rounds.py and loop.py): included by _engine.pyx. The runtime handles
# the other cases.

from time import monotonic_ns, sleep

cdef extern from "Python.h":
    PyObject *PyDict_GetItemWithError(object names, object name) except NULL

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from "state.h" nogil:
    enum:
        IDLE_BEFORE_YIELD "POLL_IDLE_BEFORE_YIELD"
        POLL_GATHER_AFTER
        POLL_SOCKET_CHECKS
        POLL_GATHER_PAUSE_NS
        POLL_GATHER_SETBACK
        POLL_GATHER_STEADY

DEF ASK_NS = 50000

cdef inline object _of(dict names, object name):
    """Return an attribute from an object's ``__dict__``, in half the time of an attribute lookup."""
    return <object> PyDict_GetItemWithError(names, name)


cdef class Doorbell:
    """Doorbell of a queue, which also learns when completions are polled.

    Attributes:
        seen: completions were polled since the last doorbell.
    """

    cdef public bint seen

    cdef int ring(self, block, uint64_t length) except -1:
        """Handle a doorbell in a queue block, for a message of ``length`` bytes."""
        raise NotImplementedError


cdef class Loop(Doorbell):
    """Compiled loop of a :class:`~rnic.runtime.loop.Runtime`, and its progress thread in C.

    Args:
        runtime: the runtime, whose lock protects everything.
        io_poll: its polls, until the runtime stops them.
        full: number of bursts from one poll that suggests more are waiting.

    Attributes:
        pause_ns: longest pause between two messages of a stream.
        stream: consecutive messages, each after a poll and less than ``pause_ns`` after the previous one, less
            setbacks.
        steady: such messages with exactly one poll in between.
        needs_python: the last poll stopped at a case that C does not handle.
    """

    cdef public uint64_t pause_ns
    cdef object runtime, nic, sending, interrupts, changes, clock
    cdef dict of_runtime
    cdef IoPoll io_poll
    cdef DeviceLock lock
    cdef progress_thread thread
    cdef uint64_t asked, posted
    cdef public uint32_t stream, steady
    cdef uint32_t idle, full, backlog
    cdef bint monotonic, trusted
    cdef bint gathered  # the last message is gathered, without a poll since
    cdef readonly bint needs_python

    def __cinit__(self, runtime, IoPoll io_poll, uint32_t full):
        self.runtime, self.io_poll, self.full, self.pause_ns = runtime, io_poll, full, POLL_GATHER_PAUSE_NS
        self.nic = nic = runtime.nic
        self.sending = nic.sending
        self.interrupts, self.changes = nic.resources.interrupts, nic.resources.groups.changes
        self.clock, self.of_runtime = runtime.clock, runtime.__dict__
        self.monotonic = self.clock is monotonic_ns
        clock_calibrate()
        self.lock = runtime.lock
        self.lock.loop = self
        self.thread.round, self.thread.lock = io_poll.c_poll, &self.lock.c_lock
        self.thread.own = io_poll.own

    def __dealloc__(self):
        progress_thread_stop(&self.thread)

    @property
    def last_poll(self):
        """The time of the last poll by the application, in nanoseconds."""
        return self.thread.polled

    @property
    def sleeps_until(self):
        """The time at which the thread wakes up by itself; 0 while it is awake or about to check for polls."""
        return self.thread.sleeps_until

    @property
    def pending(self):
        """True if the thread in C waits for Python."""
        return self.thread.pending != 0

    cdef uint64_t now(self) except? 0:
        return clock_approximate_now() if self.monotonic else self.clock()

    def count(self):
        """Report C's counts, unless C is running."""
        if device_lock_try(&self.lock.c_lock):
            try:
                self.io_poll._flush_counters(self.now())
            finally:
                device_lock_release(&self.lock.c_lock)

    def progress(self):
        """:meth:`~rnic.runtime.loop.Runtime.progress`."""
        cdef bint did, alone
        cdef uint64_t now
        if not self.thread.leased and _of(self.of_runtime, "_io_poll") is not self.io_poll:
            return self.runtime.progress()
        if self.gathered:
            # the message just posted is gathered: a poll between two messages of a stream costs more than both
            self.gathered, self.seen = False, True
            return False
        now = self.now()
        self.thread.polled, self.trusted = now, False
        if not device_lock_try(&self.lock.c_lock):
            sleep(0)
            return False
        try:
            if self.seen:
                self.steady = self.io_poll.c_poll.inflight_floor = 0  # the program waits for a completion
            self.seen = True
            # a program that polls several devices in turn finds packets sooner with one socket check each
            alone = _active == 1 and self.stream < POLL_GATHER_AFTER
            self.io_poll.c_poll.socket_checks = POLL_SOCKET_CHECKS if alone else 0
            did = self._poll(now) if self._c_may_poll() else self.runtime._round(now)
        finally:
            device_lock_release(&self.lock.c_lock)
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

    def prepare_to_sleep(self):
        """Record that the application stops polling, so the thread takes over."""
        self.thread.polled = 0

    def poll(self, uint64_t now):
        """Poll once, for the runtime's thread, with its lock held. Gathered messages are sent."""
        self.io_poll.c_poll.gathers = False
        return self._poll(now)

    cdef bint _poll(self, uint64_t now) except -1:
        cdef bint did = False, idents = False
        cdef uint32_t received
        cdef IoPoll io_poll = self.io_poll
        if self.thread.pending:
            self.finish_stopped()
        if io_poll._has_pending():
            did = self.runtime.send_bursts(self.sending.prepare(now))
        io_poll._poll(now, _of(self.of_runtime, "budget"))
        if (
            _of(self.of_runtime, "idents") is not None
            and self.runtime.receive_idents(now, io_poll.c_poll.received == 0)
        ):
            did = idents = io_poll.python_ran = True
        self.needs_python = io_poll.python_ran
        if io_poll.python_ran:
            self.release_to_c()
        did = did or io_poll.c_poll.received or io_poll.c_poll.sent
        # this process may not have run for a while: read packets that arrived in time before any timer expires
        received = io_poll.c_poll.received
        if received >= POLL_RECEIVE_LIMIT:
            self.backlog += 1
        else:
            self.backlog = self.backlog + POLL_PARTIAL_ROUND if received >= self.full or idents else 0
        if self.backlog >= POLL_TIMERS_AT_LEAST_EVERY:
            self.backlog = 0
        if (not self.backlog and self._is_due(now)) or self.interrupts:
            did = self.runtime._end(now, not self.backlog, did)
        return did

    cdef bint _is_due(self, uint64_t now) except -1:
        """Return whether a timer has expired: of a queue pair or, checked every ASK_NS, another one of the device."""
        if io_poll_deadline(self.io_poll.c_poll) > now and self.monotonic and now - self.asked < ASK_NS:
            return False
        self.asked = now
        return self.io_poll._is_due(now)

    def kick(self):
        """:meth:`~rnic.runtime.loop.Runtime.kick`."""
        if _of(self.of_runtime, "_io_poll") is not self.io_poll:
            return self.runtime.kick()
        self.lock.take()
        try:
            self._kick(self._only_turns(), False, self.now())
        finally:
            device_lock_release(&self.lock.c_lock)

    cdef bint _only_turns(self) except -1:
        """Return whether C can do everything that a doorbell requires, which is only turns. The lock is held."""
        cdef IoPoll io_poll = self.io_poll
        if self.thread.pending:
            self.finish_stopped()
        return self._c_may_poll() and not self.changes and not io_poll._has_pending()

    cdef bint _c_may_poll(self) except -1:
        """Return whether C may poll; if not, decide again: this only changes under the lock, when Python releases
        it."""
        if not self.thread.leased:
            self.release_to_c()
        return self.thread.leased

    cdef int ring(self, block, uint64_t length) except -1:
        """Handle the doorbell, and send at once unless the message is gathered."""
        cdef Executor executor
        cdef IoPoll io_poll = self.io_poll
        cdef bint only_turns, single
        cdef int rung = -1
        cdef uint64_t now
        if not self.thread.leased and _of(self.of_runtime, "_io_poll") is not io_poll:  # in a child process
            io_poll.doorbells.ring(block)
            return self.runtime.kick() is not None
        self.lock.take()
        try:
            only_turns = self._only_turns()
            now = self.now()
            executor = io_poll.device.by_block.get(block) if only_turns and not io_poll.rung else None
            if executor is not None:
                io_poll.c_poll.gathers = self._is_stream(now)
                rung = io_poll_ring(io_poll.c_poll, &executor.c_qp, length)
            self.gathered = rung == GATHERED
            if rung < 0:
                io_poll.doorbells.ring(block)
            if rung != GATHERED:
                single = io_poll.device.c_device.sched.scheduler.count == 1
                self._kick(only_turns, single and length <= POLL_GATHER_BYTES, now)
        finally:
            device_lock_release(&self.lock.c_lock)
        return 0

    cdef bint _is_stream(self, uint64_t now) except -1:
        """Return whether the application alternates posts and polls without a pause. The thread sends messages left
        over."""
        cdef bint soon = now - self.posted < self.pause_ns
        if not self.seen:
            self.stream = self.steady = 0
        elif soon:
            self.stream = min(self.stream + 1, 2 * POLL_GATHER_AFTER)
            self.steady = min(self.steady + 1, POLL_GATHER_AFTER)
        else:
            self.stream -= min(self.stream, POLL_GATHER_SETBACK)
        self.io_poll.c_poll.inflight_floor = POLL_GATHER_STEADY if self.steady >= POLL_GATHER_AFTER else 0
        self.posted, self.seen = now, False
        if not self.trusted and _of(self.of_runtime, "listens") is False:
            self.trusted = True
            self.thread.polled = now  # it will poll soon: the thread backs off once
        return (
            soon and self.stream >= POLL_GATHER_AFTER and self.thread.running and not self.thread.sleeps_until
        )

    cdef int _kick(self, bint only_turns, bint short, uint64_t now) except -1:
        cdef IoPoll io_poll = self.io_poll
        cdef dict of_runtime = self.of_runtime
        if not only_turns:
            self.runtime.kick()
            return 0
        io_poll._send(now, _of(of_runtime, "budget"), short)
        if io_poll.python_ran:
            self.release_to_c()
            if _of(io_poll.of_link, "up") is not _of(of_runtime, "_link_up"):
                self.runtime._check_link()
        if self.interrupts:
            self.runtime._interrupts()
        self.thread.others_sent = 1
        if progress_thread_oversleeps(&self.thread, now):
            progress_thread_wake(&self.thread)
        elif not self.thread.running and _of(of_runtime, "_sleep_until") is not None:
            self.runtime._wake_if_late()
        return 0

    # ------------------------------------------------------------------- progress thread

    def start_thread(self, list descriptors, int python, uint64_t tell_within):
        """Start the thread that polls the device in C while the application does not; the lock is held.

        Args:
            descriptors: sockets of received packets.
            python: a pipe; the thread writes a byte to it when it stops at a case that C does not handle.
            tell_within: nanoseconds after packets moved within which it does the same.

        Returns:
            False if the thread cannot run: more than 8 descriptors, or no more threads available.
        """
        cdef Py_ssize_t place
        if len(descriptors) > PROGRESS_THREAD_SOCKETS or not self.monotonic:
            return False
        for place in range(len(descriptors)):
            self.thread.sockets[place] = descriptors[place]
        self.thread.socket_count = <uint32_t> len(descriptors)
        self.thread.python_fd, self.thread.report_within = python, tell_within
        return progress_thread_start(&self.thread) == 0

    def wake_thread(self):
        """Wake the thread."""
        progress_thread_wake(&self.thread)

    def stop_thread(self):
        """Stop the thread; the lock must not be held."""
        with nogil:
            progress_thread_stop(&self.thread)

    def forget_thread(self):
        """Forget the thread in a child process, which does not have it."""
        self.thread.running = self.thread.leased = 0
        self.thread.sleeps_until = 0

    cdef int release_to_c(self) except -1:
        """Decide whether C may poll from now on, when Python releases the lock."""
        cdef bint before = self.thread.leased
        self.io_poll.python_ran = False
        try:
            self.thread.leased = (
                _of(self.of_runtime, "_io_poll") is self.io_poll and self.io_poll._can_run(_of(self.of_runtime, "link"))
            )
        except Exception as error:
            self.thread.leased = False
            self.runtime.guard.caught("round", error)
        if before and not self.thread.leased and _of(self.of_runtime, "_thread") is not None:
            self.runtime._wake()
        return 0

    cdef int finish_stopped(self) except -1:
        """Handle the stop of the thread in C, and finish its open turn.

        The next holder of the lock may destroy the queue pair of that turn.
        """
        cdef engine_stop_info told = self.thread.pending_stop
        cdef uint64_t now = self.now()
        self.thread.pending = False
        self.nic.now_ns = now
        try:
            if told.stop == STOP_PUNT_DEADLINE:
                self.nic.handle_deadline(self.sending.qps[told.qp], now)
            else:
                self.io_poll._handle_stop(&told, now)
            if self.io_poll.c_poll.sending.qp or self.io_poll.c_poll.sending.deferred_count:
                self.io_poll._send(now, _of(self.of_runtime, "budget"), False)
        except Exception as error:
            self.runtime.guard.caught("round", error)
        return 0

# In-memory links between NICs of one process, for Python: included by _engine.pyx.

import mmap as _mmap
import sys as _sys

cdef extern from "io/loopback.h" nogil:
    struct loopback:
        pass
    loopback *loopback_make(uint8_t *bytes, uint64_t room)
    void loopback_free(loopback *wire)
    void loopback_close(loopback *wire)
    int loopback_put(loopback *wire, const rx_buffer *what)
    unsigned loopback_take(loopback *wire, rx_buffer *slots, unsigned count)
    uint64_t loopback_lost(loopback *wire)
    void loopback_notify(loopback *wire)


def _pages(uint64_t room):
    """Map private zero pages, which a forked child gets a copy of."""
    if _sys.platform == "win32":
        return _mmap.mmap(-1, room)
    return _mmap.mmap(-1, room, flags=_mmap.MAP_PRIVATE | _mmap.MAP_ANONYMOUS)


cdef class Loopback:
    """A queue of bursts to one NIC of this process: any number of threads put, one at a time takes.

    Args:
        room: most bytes that may wait.

    Attributes:
        memory: storage of bursts until they are taken.

    Raises:
        MemoryError: no memory is available.
    """

    cdef loopback *c_loopback
    cdef readonly object memory

    def __cinit__(self, uint64_t room):
        self.memory = memoryview(_pages(room))
        self.c_loopback = loopback_make(buffer_address(self.memory, NULL), room)
        if self.c_loopback == NULL:
            raise MemoryError("no memory for a link in memory")

    def __dealloc__(self):
        loopback_free(self.c_loopback)

    def close(self):
        """Close the queue: no more bursts are accepted."""
        loopback_close(self.c_loopback)

    def put(self, bytes name, data, uint32_t segment, uint8_t tclass, uint8_t hop_limit, uint32_t flow_label):
        """Put a burst of sender ``name``, which has at most 28 bytes; return false if the queue is closed."""
        cdef rx_buffer what
        cdef Py_ssize_t length = 0
        if len(name) > sizeof(what.name):
            raise ValueError(f"a name of {len(name)} bytes: give at most {sizeof(what.name)}")
        memset(&what, 0, sizeof(what))
        what.buffer = buffer_address(data, &length)
        what.size, what.segment = <size_t> length, segment
        what.name_bytes = <uint32_t> len(name)
        memcpy(what.name, PyBytes_AS_STRING(name), len(name))
        what.tclass, what.hop_limit, what.flow_label = tclass, hop_limit, flow_label
        cdef bint there = loopback_put(self.c_loopback, &what) == 0
        loopback_notify(self.c_loopback)
        return there

    def take(self, unsigned limit):
        """Take up to ``limit`` bursts, at most 64.

        Returns:
            Sender, bytes (valid until the next call), segment, traffic class, hop limit and flow label of each burst.
        """
        cdef rx_buffer[64] slots
        cdef unsigned i
        cdef rx_buffer *slot
        cdef list out = []
        for i in range(loopback_take(self.c_loopback, slots, min(limit, 64u))):
            slot = &slots[i]
            name = PyBytes_FromStringAndSize(<char *> slot.name, slot.name_bytes)
            out.append((name, _view(self.memory, slot), slot.segment, slot.tclass, slot.hop_limit, slot.flow_label))
        return out

    def lost(self):
        """Return the number of packets lost for lack of room since the last call."""
        return loopback_lost(self.c_loopback)

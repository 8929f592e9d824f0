# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Compiled twin of rnic.burst.plain. Every length is checked on entry; the loops then run without the GIL."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy, memmove

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    typedef uint32_t (*rnic_isal_crc)(uint32_t, const unsigned char *, uint64_t);
    typedef unsigned long (*rnic_zlib_crc)(unsigned long, const unsigned char *, unsigned int);

    /* The C function behind rnic.wire.crc, of one of two signatures. */
    static void *rnic_crc_function = 0;
    static int rnic_crc_is_zlib = 0;

    static inline uint32_t rnic_crc(uint32_t state, const unsigned char *data, size_t length) {
        if (rnic_crc_is_zlib)
            return (uint32_t)((rnic_zlib_crc)rnic_crc_function)(state, data, (unsigned int)length);
        return ((rnic_isal_crc)rnic_crc_function)(state, data, length);
    }
    static inline void rnic_put32(unsigned char *to, uint32_t value) {
        to[0] = (unsigned char)(value >> 24); to[1] = (unsigned char)(value >> 16);
        to[2] = (unsigned char)(value >> 8); to[3] = (unsigned char)value;
    }
    static inline uint32_t rnic_get32(const unsigned char *from) {
        return (uint32_t)from[0] << 24 | (uint32_t)from[1] << 16 | (uint32_t)from[2] << 8 | from[3];
    }
    static inline void rnic_put_icrc(unsigned char *to, uint32_t value) {
        to[0] = (unsigned char)value; to[1] = (unsigned char)(value >> 8);
        to[2] = (unsigned char)(value >> 16); to[3] = (unsigned char)(value >> 24);
    }
    """
    void *rnic_crc_function
    int rnic_crc_is_zlib
    uint32_t rnic_crc(uint32_t state, const unsigned char *data, size_t length) nogil
    void rnic_put32(unsigned char *to, uint32_t value) nogil
    uint32_t rnic_get32(const unsigned char *frm) nogil
    void rnic_put_icrc(unsigned char *to, uint32_t value) nogil

DEF MAX_PACKETS = 64
DEF MAX_SEGMENT = 65535
DEF POOL = 32
DEF POOL_FROM = 16384

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *thing)
    PyObject *PyList_GET_ITEM(object items, Py_ssize_t place)

# Long buffers are used again once nobody else holds them: fresh memory costs a page fault for each 4 KiB, more than
# all the rest. At most POOL of 64 KiB are kept.
cdef list _pool = [None] * POOL
cdef Py_ssize_t _next = 0


cdef bytes _frames_of(Py_ssize_t size):
    """A bytes object to fill that nobody else sees."""
    global _next
    cdef Py_ssize_t place, step
    cdef PyObject *kept
    if size < POOL_FROM:
        return PyBytes_FromStringAndSize(NULL, size)
    for step in range(POOL):
        place = (_next + step) % POOL
        kept = PyList_GET_ITEM(_pool, place)
        if kept != <PyObject *> None and Py_REFCNT(kept) == 1 and PyBytes_GET_SIZE(<bytes> kept) == size:
            _next = (place + 1) % POOL
            return <bytes> kept
    made = PyBytes_FromStringAndSize(NULL, size)
    _pool[_next] = made
    _next = (_next + 1) % POOL
    return made


def use_crc(address, zlib_signature):
    """Take the C function at ``address``: zlib's crc32, or ISA-L's, which has its arguments wider."""
    global rnic_crc_function, rnic_crc_is_zlib
    rnic_crc_function = <void *> <uintptr_t> address
    rnic_crc_is_zlib = 1 if zlib_signature else 0


cdef int _load_seeds(tuple seeds, Py_ssize_t first, Py_ssize_t count, uint32_t *into) except -1:
    cdef Py_ssize_t place
    if rnic_crc_function == NULL:
        raise RuntimeError("no CRC function was given")
    if not 0 <= count <= MAX_PACKETS:
        raise ValueError(f"count={count}: a run has 0 to {MAX_PACKETS} packets")
    if first < 0 or first > len(seeds) - count:
        raise IndexError(f"first={first}: no seeds for {count} packets from there on")
    for place in range(count):
        into[place] = <uint32_t> seeds[first + place]
    return 0


def segment_run(
    uint64_t head, uint32_t psn, Py_ssize_t count, payload, Py_ssize_t mtu, tuple seeds not None, Py_ssize_t first,
    uint32_t delta, uint32_t ack_every, list buffers not None,
):
    """See rnic.burst.plain.segment_run. The packets are copied into one buffer: cheaper than two iov entries each."""
    cdef uint32_t states[MAX_PACKETS]
    cdef Py_buffer source
    cdef Py_ssize_t place
    cdef uint32_t word, crc
    cdef unsigned char *to
    cdef const unsigned char *frm
    _load_seeds(seeds, first, count, states)
    if not 0 <= mtu <= MAX_SEGMENT - 16:
        raise ValueError(f"mtu={mtu}: 0 to {MAX_SEGMENT - 16}")
    PyObject_GetBuffer(payload, &source, PyBUF_SIMPLE)
    try:
        if source.len < count * mtu:
            raise ValueError(f"payload of {source.len} bytes is less than {count} packets of {mtu}")
        frames = _frames_of(count * (mtu + 16))
        to = <unsigned char *> PyBytes_AS_STRING(frames)
        frm = <const unsigned char *> source.buf
        with nogil:
            for place in range(count):
                word = psn
                if ack_every != 0 and psn % ack_every == 0:
                    word |= <uint32_t> 1 << 31
                rnic_put32(to, <uint32_t> (head >> 32))
                rnic_put32(to + 4, <uint32_t> head)
                rnic_put32(to + 8, word)
                memcpy(to + 12, frm, mtu)
                crc = rnic_crc(states[place], to, 12 + mtu)
                rnic_put_icrc(to + 12 + mtu, crc ^ delta)
                to += mtu + 16
                frm += mtu
                psn = (psn + 1) & 0xFFFFFF
    finally:
        PyBuffer_Release(&source)
    buffers.append(frames)


def place_run(
    buf, Py_ssize_t start, Py_ssize_t segment, Py_ssize_t count, uint64_t head, uint32_t psn, tuple seeds not None,
    Py_ssize_t first, uint32_t residue, dest,
):
    """See rnic.burst.plain.place_run."""
    cdef uint32_t states[MAX_PACKETS]
    cdef Py_buffer source, target
    cdef Py_ssize_t taken = 0
    cdef Py_ssize_t size = segment - 16
    cdef uint32_t word, ack = 0
    cdef uint32_t high = <uint32_t> (head >> 32), low = <uint32_t> head
    cdef unsigned char *to
    cdef const unsigned char *at
    _load_seeds(seeds, first, count, states)
    if not 16 <= segment <= MAX_SEGMENT:
        raise ValueError(f"segment={segment}: 16 to {MAX_SEGMENT}")
    PyObject_GetBuffer(buf, &source, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(dest, &target, PyBUF_SIMPLE | PyBUF_WRITABLE)
        try:
            if start < 0 or start > source.len or count * segment > source.len - start:
                raise ValueError(f"{count} packets of {segment} bytes from {start} on leave a buffer of {source.len}")
            if count * size > target.len:
                raise ValueError(f"{count} payloads of {size} bytes do not fit {target.len}")
            at = <const unsigned char *> source.buf + start
            to = <unsigned char *> target.buf
            with nogil:
                while taken < count:
                    word = rnic_get32(at + 8)
                    if rnic_get32(at) != high or rnic_get32(at + 4) != low or word & 0xFFFFFF != psn:
                        break
                    if rnic_crc(states[taken], at, segment) != residue:
                        break
                    memmove(to, at + 12, size)
                    ack |= word >> 31
                    at += segment
                    to += size
                    psn = (psn + 1) & 0xFFFFFF
                    taken += 1
        finally:
            PyBuffer_Release(&target)
    finally:
        PyBuffer_Release(&source)
    return taken, ack != 0

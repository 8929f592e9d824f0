# cython: language_level=3
"""Compiled counterpart of rnic.mem.order: release stores, acquire loads and a full barrier on shared memory."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint32_t, uintptr_t

cdef extern from *:
    """
    #include <stdint.h>
    #if defined(__GNUC__) || defined(__clang__)
    #define rnic_store(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
    #define rnic_load(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
    #define rnic_fence() __atomic_thread_fence(__ATOMIC_SEQ_CST)
    #else
    #error "this compiler has no __atomic builtins; rnic runs without the compiled twins"
    #endif
    """
    void rnic_store(uint32_t *word, uint32_t value) nogil
    uint32_t rnic_load(uint32_t *word) nogil
    void rnic_fence() nogil


cdef int _check(Py_buffer *view, Py_ssize_t offset) except -1:
    if offset < 0 or offset & 3 or view.len < 4 or offset > view.len - 4:
        raise ValueError(f"offset={offset}: a multiple of 4 within {view.len} bytes")
    if <uintptr_t> view.buf & 3:
        raise ValueError("buf does not start on a multiple of 4 bytes")
    return 0


def store32(buf, Py_ssize_t offset, value):
    cdef Py_buffer view
    cdef uint32_t word = <uint32_t> (value & 0xFFFFFFFF)
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        _check(&view, offset)
        rnic_store(<uint32_t *> (<char *> view.buf + offset), word)
    finally:
        PyBuffer_Release(&view)


def load32(buf, Py_ssize_t offset):
    cdef Py_buffer view
    PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE)
    try:
        _check(&view, offset)
        return rnic_load(<uint32_t *> (<char *> view.buf + offset))
    finally:
        PyBuffer_Release(&view)


def fence():
    rnic_fence()

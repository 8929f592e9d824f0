# cython: language_level=3, boundscheck=False, wraparound=False
"""Compiled system calls of the UDP link (Linux): sendmsg and recvmsg without the GIL, errors as numbers."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

cdef extern from "<arpa/inet.h>" nogil:
    uint32_t ntohl(uint32_t value)

cdef extern from "<sys/socket.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len
    struct msghdr:
        void *msg_name
        unsigned int msg_namelen
        iovec *msg_iov
        size_t msg_iovlen
        void *msg_control
        size_t msg_controllen
        int msg_flags
    struct cmsghdr:
        size_t cmsg_len
        int cmsg_level
        int cmsg_type
    int SOL_SOCKET
    ssize_t sendmsg(int fd, const msghdr *message, int flags)
    ssize_t recvmsg(int fd, msghdr *message, int flags)
    cmsghdr *CMSG_FIRSTHDR(msghdr *message)
    cmsghdr *CMSG_NXTHDR(msghdr *message, cmsghdr *header)
    unsigned char *CMSG_DATA(cmsghdr *header)
    size_t CMSG_LEN(size_t length)
    size_t CMSG_SPACE(size_t length)

DEF SOL_UDP = 17
DEF UDP_SEGMENT = 103
DEF UDP_GRO = 104
DEF IPPROTO_IP = 0
DEF IP_TOS = 1
DEF IPPROTO_IPV6 = 41
DEF IP_TTL = 2
DEF IPV6_TCLASS = 67
DEF IPV6_HOPLIMIT = 52
DEF IPV6_FLOWINFO = 11
DEF LABEL_MASK = 0xFFFFF
DEF UNTOLD_HOP_LIMIT = 64
DEF MAX_BUFFERS = 64
DEF NAME_BYTES = 28
DEF CONTROL_WORDS = 16
DEF SO_TIMESTAMPNS = 35


def send(int fd, bytes to not None, list buffers not None, int segment):
    """Send buffers as one message to the raw socket address ``to``, segmented at ``segment`` bytes unless that is 0.

    Returns 0 or the error number.
    """
    cdef Py_buffer views[MAX_BUFFERS]
    cdef iovec iov[MAX_BUFFERS]
    cdef msghdr message
    cdef cmsghdr *header
    cdef size_t control[8]
    cdef uint16_t size
    cdef Py_ssize_t held = 0, count = len(buffers)
    cdef ssize_t sent = 0
    cdef int error = 0
    if count > MAX_BUFFERS:
        buffers = [b"".join(buffers)]
        count = 1
    memset(&message, 0, sizeof(message))
    try:
        while held < count:
            PyObject_GetBuffer(buffers[held], &views[held], PyBUF_SIMPLE)
            iov[held].iov_base = views[held].buf
            iov[held].iov_len = views[held].len
            held += 1
        message.msg_name = PyBytes_AS_STRING(to)
        message.msg_namelen = <unsigned int> PyBytes_GET_SIZE(to)
        message.msg_iov = iov
        message.msg_iovlen = count
        if segment:
            memset(control, 0, sizeof(control))
            message.msg_control = control
            message.msg_controllen = CMSG_SPACE(sizeof(uint16_t))
            header = CMSG_FIRSTHDR(&message)
            header.cmsg_level = SOL_UDP
            header.cmsg_type = UDP_SEGMENT
            header.cmsg_len = CMSG_LEN(sizeof(uint16_t))
            size = <uint16_t> segment
            memcpy(CMSG_DATA(header), &size, sizeof(size))
        with nogil:
            sent = sendmsg(fd, &message, 0)
            if sent < 0:
                error = errno
    finally:
        while held:
            held -= 1
            PyBuffer_Release(&views[held])
    return error


cdef class Receiver:
    """Receives on one descriptor; caches the last sender's address, which is usually also the next one's.

    ``stamp`` is the arrival time of the last message in nanoseconds; 0 if the kernel does not report it.
    """

    cdef int fd
    cdef bytes last
    cdef readonly uint64_t stamp

    def __init__(self, int fd):
        self.fd = fd
        self.last = b""

    def receive(self, buf):
        """Receive one message into ``buf``.

        Returns ``(size, segment, sender's raw socket address, traffic class, hop limit, flow label)``; ``None`` if
        nothing waits; the error number if receiving fails.
        """
        cdef Py_buffer view
        cdef iovec iov
        cdef msghdr message
        cdef cmsghdr *header
        cdef char name[NAME_BYTES]
        cdef size_t control[CONTROL_WORDS]
        cdef ssize_t size
        cdef int number, segment, tclass = 0, hop_limit = UNTOLD_HOP_LIMIT, label = 0, error = 0
        cdef size_t room
        cdef long when[2]
        memset(&message, 0, sizeof(message))
        memset(name, 0, sizeof(name))
        message.msg_name = name
        message.msg_namelen = NAME_BYTES
        message.msg_iov = &iov
        message.msg_iovlen = 1
        message.msg_control = control
        message.msg_controllen = sizeof(control)
        PyObject_GetBuffer(buf, &view, PyBUF_SIMPLE | PyBUF_WRITABLE)
        iov.iov_base = view.buf
        iov.iov_len = view.len
        with nogil:
            size = recvmsg(self.fd, &message, 0)
            if size < 0:
                error = errno
        PyBuffer_Release(&view)
        if error:
            return None if error == EAGAIN or error == EINTR else error
        segment = <int> size
        self.stamp = 0
        header = CMSG_FIRSTHDR(&message)
        while header != NULL:
            room = header.cmsg_len - CMSG_LEN(0)
            if room >= 4:
                memcpy(&number, CMSG_DATA(header), 4)
            else:
                number = CMSG_DATA(header)[0] if room else 0
            if header.cmsg_level == SOL_UDP and header.cmsg_type == UDP_GRO:
                if 0 < number < segment:
                    segment = number
            elif header.cmsg_level == IPPROTO_IP and header.cmsg_type == IP_TOS:
                tclass = number & 0xFF
            elif header.cmsg_level == IPPROTO_IP and header.cmsg_type == IP_TTL:
                hop_limit = number & 0xFF
            elif header.cmsg_level == IPPROTO_IPV6 and header.cmsg_type == IPV6_TCLASS:
                tclass = number & 0xFF
            elif header.cmsg_level == IPPROTO_IPV6 and header.cmsg_type == IPV6_HOPLIMIT:
                hop_limit = number & 0xFF
            elif header.cmsg_level == IPPROTO_IPV6 and header.cmsg_type == IPV6_FLOWINFO:
                label = ntohl(<uint32_t> number) & LABEL_MASK
            elif header.cmsg_level == SOL_SOCKET and header.cmsg_type == SO_TIMESTAMPNS and room == sizeof(when):
                memcpy(when, CMSG_DATA(header), sizeof(when))
                self.stamp = <uint64_t> when[0] * 1000000000 + <uint64_t> when[1]
            header = CMSG_NXTHDR(&message, header)
        if message.msg_namelen > NAME_BYTES:
            message.msg_namelen = NAME_BYTES
        if (
            PyBytes_GET_SIZE(self.last) != <Py_ssize_t> message.msg_namelen
            or memcmp(PyBytes_AS_STRING(self.last), name, message.msg_namelen) != 0
        ):
            self.last = PyBytes_FromStringAndSize(name, message.msg_namelen)
        return size, segment, self.last, tclass, hop_limit, label

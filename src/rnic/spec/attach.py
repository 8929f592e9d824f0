"""The process boundary: messages between a program and its user's NIC process, and their shared register window.

The Python codec, the C header and the documentation are generated from these tables. All integers are little-endian;
GIDs and GUIDs are in network byte order. Messages go over an AF_UNIX SOCK_SEQPACKET socket, one connection per open
context. A request is a header and a body. Its answer repeats kind and token and carries an errno, then a body, or one
line of text if the errno is not 0. Closing the connection closes the context.
"""

from __future__ import annotations

from rnic.spec.layout import Field, Layout, half, wide, word

MAGIC = 0x4349_4E52
"""``RNIC``."""
VERSION = 8
SOCKET_NAME = "nic.sock"
LOCK_NAME = "nic.lock"

MSG_HELLO, MSG_LIST, MSG_OPEN, MSG_COMMAND, MSG_VECTOR, MSG_SHARE, MSG_UNSHARE, MSG_INFO, MSG_ADD, MSG_BYE = range(
    1, 11
)
MSG_FAULT = 11
"""JSON ``{"device": NAME, "event": [WORD, ...]}``, words as ``rnic fault`` takes them; without words, only list active
faults. A list ``rules`` installs fault rules for verbs (:mod:`rnic.link.verbs_faults`)."""
MSG_REGISTER = 12
"""Load or store a register of the global block, which is not mapped in the window."""
MSG_PUNT = 13
"""From a program with its own slot: hand work that its engine does not do to the reference, together with the arena."""

MSG_SHM_RING = 14
"""From a program with its own slot: join shared-memory loopback; then, for each connected queue pair, ask for the rings
of the program at the other end."""

MSG_EXPLAIN = 15
"""Pass the program's stderr. The NIC process writes a line there for each failed request and each missed message of its
queue pairs (:mod:`rnic.spec.reasons`)."""

MSG_VERBS_RULES = 16
"""Ask for the fault rules that the library applies (:data:`rnic.spec.verbs_faults.VERBS_RULE`). Only sent if the
window's header counts any."""

MSG_NETLINK = 17
"""Pass the peer of the socket that stands for the program's NETLINK_RDMA socket. The body is its device names,
separated by commas; empty for all."""

MSG_CAPTURE = 18
"""Pass the write end of a pipe or FIFO, to which a device's packets are written as pcapng until either end closes it or
the connection. The body is the device's name; empty for the first."""

MSG_SOURCE_PORT = 19
"""From a program with its own slot: ask for a socket bound to one of the device's source ports."""

MSG_UMAD = 20
"""Opens a device's umad file, whose other end it brings, or says what ioctl asks of one. The body: UMAD_*, the device's
number or what opening answered, and the kernel's structure. The answer is a word: the file, or an agent's number."""
UMAD_OPEN, UMAD_REGISTER, UMAD_REGISTER2, UMAD_UNREGISTER = range(4)

DMA_PROC_MEM = 0
"""OPEN passes the program's ``/proc/self/mem``, open for reading and writing."""
DMA_COPIER = 1
"""OPEN passes one end of a socket pair; a thread of the program serves copies at the other end."""

DMA_SLOT = 0x100
"""Flag in the mode of OPEN: the program asks for a slot, to run the engine itself. An answer with a slot passes these
descriptors after the window and the NIC process's eventfd: socket, arena, shared record and budget page of the
device."""
DMA_UNFIT = 0x200
"""With DMA_PROC_MEM or DMA_COPIER: the program had a slot, but a system call that the bypass needs is refused."""
DMA_NO_ENGINE = 0x400
"""With DMA_PROC_MEM: the program could have a slot, but has no compiled engine."""

NAME_BYTES = 16
MAX_MESSAGE = 65_536
MAX_SOURCE_PORTS = 256
"""Most source ports of a device; more would cost descriptors and spread traffic no better."""
PAGE_BYTES = 4096


def _layout(name: str, size: int, *fields: Field) -> Layout:
    return Layout(name, size, "little", "process boundary", fields)


HEADER = _layout("message header", 8, word("kind", 0, "MSG_* number"), word("token", 4, "repeated by the answer"))
REPLY_HEADER = _layout(
    "answer header",
    12,
    word("kind", 0, "as asked"),
    word("token", 4, "as asked"),
    word("error", 8, "errno, 0 for success; else the body is one line of UTF-8 text"),
)
HELLO = _layout(
    "HELLO", 12, word("magic", 0, "MAGIC"), word("version", 4, "VERSION"), word("pid", 8, "process ID of the program")
)
HELLO_REPLY = _layout(
    "HELLO answer",
    12,
    word("version", 0, "VERSION of the NIC process"),
    word("pid", 4, "process ID of the NIC process"),
    word("devices", 8, "number of devices"),
)
LIST_RECORD = _layout(
    "LIST record",
    56,
    wide("name", 0, "device name, zero-terminated", 16),
    wide("gid", 16, "GID 0", 16),
    wide("guid", 32, "node GUID, most significant byte first", 8),
    half("udp_port", 40, "UDP port"),
    half("active_mtu", 42, "path MTU in bytes"),
    word("port_state", 44, "1 down, 4 active"),
    word("index", 48, "number of its uverbs node"),
)
OPEN = _layout(
    "OPEN",
    28,
    wide("name", 0, "device name", 16),
    word("mode", 16, "DMA_* number"),
    word("page", 20, "page size of the program in bytes"),
    word("copier", 24, "DMA_COPIER: ID of the copying thread, 0 if unknown"),
)
OPEN_REPLY = _layout(
    "OPEN answer",
    32,
    word("blocks", 0, "queue blocks in the window"),
    word("block_bytes", 4, "size of a queue block"),
    wide("window_bytes", 8, "size of the window"),
    wide("rung_offset", 16, "offset of the rung bytes, one for each block"),
    wide("blocks_offset", 24, "offset of the queue blocks"),
)
OPEN_SLOT = _layout(
    "OPEN answer, of a slot",
    580,
    wide("layout", 0, "hash of the layout tables of the arena", 8),
    wide("arena_bytes", 8, "size of the arena"),
    wide("shared_bytes", 16, "size of the shared record and the receive buffers"),
    word("first_qpn", 24, "the slot's first queue pair number"),
    word("slot", 28, "slot number, from 1"),
    word("udp_port", 32, "the device's UDP port"),
    word("address_bytes", 36, "4 or 16"),
    wide("address", 40, "the device's IP address", 16),
    wide("budget_bytes", 56, "size of the device's budget page", 8),
    word("source_ports", 64, "number of UDP source ports, at most MAX_SOURCE_PORTS"),
    wide(
        "source_port_list",
        68,
        "the source ports, two bytes each; SOURCE_PORT asks for a socket of one",
        512,
    ),
)
"""Follows the OPEN answer if the program got a slot."""
PUNT_PACKET, PUNT_TURN, PUNT_NOTIFY, PUNT_DOORBELL, PUNT_TIMER = range(1, 6)
PUNT_NOTIFY_SEND, PUNT_NOTIFY_RECV = 4, 8
"""Completion queues that PUNT_NOTIFY is about."""
PUNT = _layout(
    "PUNT",
    112,
    word("kind", 0, "PUNT_* number"),
    word("effects", 4, "of PUNT_NOTIFY: PUNT_NOTIFY_SEND, PUNT_NOTIFY_RECV"),
    wide("qp", 8, "offset of the queue pair's record in the arena; of PUNT_DOORBELL the block"),
    wide("limit", 16, "of a turn: packet budget"),
    wide("count", 24, "packets built before; of packets: packets taken from their sender since the last PUNT"),
    wide("bytes", 32, "their bytes"),
    wide("room", 40, "packets that its requests may use"),
    word("step", 48, "step at which to continue"),
    word("buffer", 52, "of packets: index of their receive buffer"),
    word("length", 56, "bytes in it"),
    word("at", 60, "bytes already processed"),
    word("segment", 64, "bytes of each packet except the last"),
    word("sender_bytes", 68, "length of the sender's raw socket address, which follows these fields"),
    word("tclass", 72, "traffic class"),
    word("hop_limit", 76, "hop limit"),
    word("flow_label", 80, "IPv6 flow label"),
)
PUNT_SENDER_AT = 84
PUNT_SENDER_MAX = 28
PUNT_REPLY = _layout(
    "PUNT answer",
    16,
    wide("count", 0, "packets sent in the turn"),
    word("reschedule", 8, "1: schedule another turn"),
    word("settled", 12, "1: the engine may process further packets of this sender"),
)
SHM_RING = _layout(
    "SHM_RING",
    16,
    word("qpn", 0, "a connected queue pair; 0 to join"),
    wide("cookie_va", 8, "with QPN 0: address of the program's cookie, COOKIE_BYTES long"),
)
SHM_RING_REPLY = _layout(
    "SHM_RING answer",
    48,
    word("numbers", 0, "size of that program's QPN range, 0 if it does not take part"),
    word("first_qpn", 4, "first QPN of the range"),
    word("pid", 8, "its process"),
    word("ring", 12, "ring to send on"),
    wide("bytes", 16, "size of the ring file"),
    wide("cookie_va", 24, "address of its cookie"),
    wide("cookie", 32, "its cookie; of QPN 0 the program's own", 16),
)
"""The answer for QPN 0 passes the datagram socket of the program's own doorbell; for other QPNs the ring file and the
peer's doorbell, if there is a peer."""
SOURCE_PORT = _layout("SOURCE_PORT", 4, word("port", 0, "one of the source ports"))
COMMAND = _layout(
    "COMMAND",
    24,
    half("op", 0, "command opcode"),
    half("op_modifier", 2, "opcode modifier"),
    word("in_modifier", 4, "input modifier"),
    wide("in_param", 8, "not used"),
    word("inbox_bytes", 16, "bytes of inbox that follow"),
)
"""A message holds one or more commands, each followed by its inbox. They are executed in order until one fails. The
answer holds one answer per executed command, in order."""
COMMAND_REPLY = _layout(
    "COMMAND answer",
    16,
    word("status", 0, "command status"),
    word("outbox_bytes", 4, "bytes of outbox that follow; of the reason if the command failed"),
    wide("out_param", 8, "output parameter"),
)
"""Its outbox follows, then the answer to the next command. If a command fails for a reason of :mod:`rnic.spec.reasons`,
the outbox holds the reason's number (32 bits) and one line of UTF-8, ``VERB: TEXT``."""
VECTOR = _layout("VECTOR", 4, word("vector", 0, "interrupt vector; the answer brings an eventfd"))
REGISTER = _layout(
    "REGISTER",
    12,
    word("offset", 0, "byte offset of the register in the global block"),
    word("store", 4, "1 to store a value, 0 to load"),
    word("value", 8, "value to store"),
)
REGISTER_REPLY = _layout("REGISTER answer", 4, word("value", 0, "value that a load reads there now"))
SHARE = _layout(
    "SHARE",
    32,
    wide("va", 0, "address of the program's mapping of the file"),
    wide("bytes", 8, "length of the mapping"),
    wide("offset", 16, "offset in the file"),
    word("writable", 24, "1 if the NIC may write"),
)
UNSHARE = _layout("UNSHARE", 16, wide("va", 0, "as in SHARE"), wide("bytes", 8, "as in SHARE"))
WINDOW = _layout(
    "window header",
    64,
    word("magic", 0, "MAGIC"),
    word("version", 4, "VERSION"),
    word("blocks", 8, "queue blocks"),
    word("asleep", 12, "not 0 while the NIC sleeps: after ringing a doorbell, write to the wake eventfd"),
    word("alive", 16, "1 while the NIC process serves this window"),
    word("verbs_rules", 20, "fault rules that VERBS_RULES returns"),
)
"""Page 0 of the window; rung bytes start at page 1, then the queue blocks follow."""

COPY_READ, COPY_WRITE, COPY_CHECK, COPY_CHECK_WRITE = range(4)
MAX_COPY = 32_768
"""Largest copy in bytes."""
COPY = _layout(
    "copy request",
    24,
    wide("va", 0, "address in the program"),
    wide("bytes", 8, "length: at most MAX_COPY to copy, any to check"),
    word("kind", 16, "COPY_* number; the data follows COPY_WRITE"),
)
"""Request of the NIC process to a copying thread (``DMA_COPIER``), one at a time over the socket pair of OPEN."""
COPY_REPLY = _layout("copy answer", 4, word("error", 0, "0 or an errno; after COPY_READ, the data follows"))

INFO_WHY = "why "
"""Name suffix of INFO, followed by a queue pair number: the reason of its last failure, as JSON."""

REQUEST_BYTES: dict[int, tuple[int, int]] = {
    MSG_HELLO: (HELLO.size, HELLO.size),
    MSG_LIST: (0, 0),
    MSG_OPEN: (OPEN.size, OPEN.size),
    MSG_COMMAND: (COMMAND.size, MAX_MESSAGE),
    MSG_VECTOR: (VECTOR.size, VECTOR.size),
    MSG_SHARE: (SHARE.size, SHARE.size),
    MSG_UNSHARE: (UNSHARE.size, UNSHARE.size),
    MSG_INFO: (1, 512),
    MSG_ADD: (2, MAX_MESSAGE),
    MSG_FAULT: (2, MAX_MESSAGE),
    MSG_REGISTER: (REGISTER.size, REGISTER.size),
    MSG_PUNT: (PUNT.size, PUNT.size),
    MSG_SHM_RING: (SHM_RING.size, SHM_RING.size),
    MSG_EXPLAIN: (0, 0),
    MSG_VERBS_RULES: (0, 0),
    MSG_NETLINK: (0, MAX_MESSAGE),
    MSG_CAPTURE: (0, NAME_BYTES),
    MSG_SOURCE_PORT: (SOURCE_PORT.size, SOURCE_PORT.size),
    MSG_UMAD: (8, 48),
}
"""Smallest and largest body of each request."""
INFO_REPLY = _layout("INFO answer", 8, wide("bytes", 0, "length of the JSON text in the file that is passed along"))

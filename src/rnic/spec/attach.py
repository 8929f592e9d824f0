"""The process boundary: messages between a program and its user's NIC process, and the window that they share.

Python, the C header and the documentation come from these tables. All numbers are little-endian; GIDs and GUIDs
keep their bytes. Messages go over an AF_UNIX SOCK_SEQPACKET socket, one connection for each opened context; each
is a header and a body, and each answer repeats kind and token, says an errno, and has a body or, where the errno
is not 0, one line of text. Closing the connection, in whatever way, closes the context.
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
"""JSON ``{"device": NAME, "event": [WORD, ...]}``, words as ``rnic fault`` takes them; none only asks what holds. With
``rules``, a list of them, verbs fail by these from now on (:mod:`rnic.link.verbs_faults`)."""
MSG_REGISTER = 12
"""A load or store of the global block, whose registers are no memory: they stand in no window."""
MSG_PUNT = 13
"""From a program with its own slot: what its engine leaves to the reference; its arena is lent with the message."""

MSG_SHM_RING = 14
"""From a program with its own slot: it would take part in loopback inside the NIC. Then, for each connected queue pair,
the program at its other end."""

MSG_EXPLAIN = 15
"""Brings the program's stderr: from now on it gets a line for each request of its queue pairs that fails, and for each
message that is missed (:mod:`rnic.spec.reasons`)."""

MSG_VERBS_RULES = 16
"""Asks for the rules for verbs that the library applies (:data:`rnic.spec.verbs_faults.VERBS_RULE`), if the
window's header says that there are any."""

MSG_NETLINK = 17
"""Brings the other end of what the program takes for a NETLINK_RDMA socket; the body are the names of its devices, with
commas, none for all."""

MSG_CAPTURE = 18
"""Brings the writing end of a pipe or FIFO, which gets a device's packets as pcapng until either end closes it or the
connection; the body is the device's name, empty for the first."""

MSG_SOURCE_PORT = 19
"""From a program with its own slot: it would send from one of the device's source ports. The answer brings a socket."""

MSG_UMAD = 20
"""Opens a device's umad file, whose other end it brings, or says what ioctl asks of one. The body: UMAD_*, the device's
number or what opening answered, and the kernel's structure. The answer is a word: the file, or an agent's number."""
UMAD_OPEN, UMAD_REGISTER, UMAD_REGISTER2, UMAD_UNREGISTER = range(4)

DMA_PROC_MEM = 0
"""OPEN brings the program's ``/proc/self/mem``, open for reading and writing."""
DMA_COPIER = 1
"""OPEN brings one end of a socket pair, at whose other end a thread of the program copies."""

DMA_SLOT = 0x100
"""With the mode of OPEN: the program would run the engine itself, in a slot. An answer with a slot brings its socket,
its arena, its shared record and the page of the device's budget, in this order, behind the window and the NIC
process's eventfd."""
DMA_UNFIT = 0x200
"""With DMA_PROC_MEM or DMA_COPIER: it had a slot and may not use it, since its system refuses it what that takes."""
DMA_NO_ENGINE = 0x400
"""With DMA_PROC_MEM: it would have a slot, and has no compiled engine to run."""

NAME_BYTES = 16
MAX_MESSAGE = 65_536
MAX_SOURCE_PORTS = 256
"""Ports that a device sends from; more would spread no better and cost descriptors."""
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
HELLO = _layout("HELLO", 12, word("magic", 0, "MAGIC"), word("version", 4, "VERSION"), word("pid", 8, "of the program"))
HELLO_REPLY = _layout(
    "HELLO answer",
    12,
    word("version", 0, "of the NIC process"),
    word("pid", 4, "of the NIC process"),
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
    word("page", 20, "bytes of a page of the program"),
    word("copier", 24, "DMA_COPIER: which thread of the program copies, 0 where it cannot say"),
)
OPEN_REPLY = _layout(
    "OPEN answer",
    32,
    word("blocks", 0, "queue blocks in the window"),
    word("block_bytes", 4, "bytes of a queue block"),
    wide("window_bytes", 8, "bytes of the window"),
    wide("rung_offset", 16, "where the rung bytes begin, one for each block"),
    wide("blocks_offset", 24, "where the queue blocks begin"),
)
OPEN_SLOT = _layout(
    "OPEN answer, of a slot",
    580,
    wide("layout", 0, "hash of the tables that the arena is laid out by", 8),
    wide("arena_bytes", 8, "bytes of the arena"),
    wide("shared_bytes", 16, "bytes of the shared record with the receive buffers"),
    word("first_qpn", 24, "the slot's first queue pair number"),
    word("slot", 28, "its number, 1 and up"),
    word("udp_port", 32, "the device's UDP port"),
    word("address_bytes", 36, "4 or 16"),
    wide("address", 40, "the device's IP address", 16),
    wide("budget_bytes", 56, "bytes of the page of the device's budget", 8),
    word("source_ports", 64, "UDP ports that it sends from, at most MAX_SOURCE_PORTS"),
    wide(
        "source_port_list",
        68,
        "these, of two bytes each; sockets of others than the device's come with SOURCE_PORT",
        512,
    ),
)
"""Behind the OPEN answer, where there is one."""
PUNT_PACKET, PUNT_TURN, PUNT_NOTIFY, PUNT_DOORBELL, PUNT_TIMER = range(1, 6)
PUNT_NOTIFY_SEND, PUNT_NOTIFY_RECV = 4, 8
"""Bits that tell for which completion queue PUNT_NOTIFY asks."""
PUNT = _layout(
    "PUNT",
    112,
    word("kind", 0, "PUNT_* number"),
    word("effects", 4, "of PUNT_NOTIFY: PUNT_NOTIFY_SEND, PUNT_NOTIFY_RECV"),
    wide("qp", 8, "offset of the queue pair's record in the arena; of PUNT_DOORBELL the block"),
    wide("limit", 16, "of a turn: packets that it may send"),
    wide("count", 24, "packets made before; of packets: those of their sender that were taken since the last PUNT"),
    wide("bytes", 32, "their bytes"),
    wide("room", 40, "packets that its requests may be"),
    word("step", 48, "where it goes on"),
    word("buffer", 52, "of packets: number of the receive buffer that they are in"),
    word("length", 56, "bytes in it"),
    word("at", 60, "bytes taken of it"),
    word("segment", 64, "bytes of each packet but the last"),
    word("sender_bytes", 68, "bytes of the sender's raw socket address, which follows these fields"),
    word("tclass", 72, "traffic class"),
    word("hop_limit", 76, "hop limit"),
    word("flow_label", 80, "IPv6 flow label"),
)
PUNT_SENDER_AT = 84
PUNT_SENDER_MAX = 28
PUNT_REPLY = _layout(
    "PUNT answer",
    16,
    wide("count", 0, "packets of the turn"),
    word("reschedule", 8, "it is to have another turn in the end"),
    word("settled", 12, "the engine may take what comes from the packets' sender"),
)
SHM_RING = _layout(
    "SHM_RING",
    16,
    word("qpn", 0, "a connected queue pair; 0 to take part from now on"),
    wide("cookie_va", 8, "with 0: where the program's cookie will lie, COOKIE_BYTES of its memory"),
)
SHM_RING_REPLY = _layout(
    "SHM_RING answer",
    48,
    word("numbers", 0, "queue pairs of that program, 0 for none that shares rings"),
    word("first_qpn", 4, "the first of them"),
    word("pid", 8, "its process"),
    word("ring", 12, "the ring to send on"),
    wide("bytes", 16, "bytes of the file of rings"),
    wide("cookie_va", 24, "where its cookie lies"),
    wide("cookie", 32, "its cookie; of QPN 0 the program's own", 16),
)
"""With QPN 0 comes the datagram socket of the program's own doorbell; with others the file of rings and the doorbell of
the peer, if there is a peer."""
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
"""A message holds one command or several, each with its inbox behind it. They are executed in order until one
fails; the answer is theirs, one after the other, as far as they were executed."""
COMMAND_REPLY = _layout(
    "COMMAND answer",
    16,
    word("status", 0, "command status"),
    word("outbox_bytes", 4, "bytes of outbox that follow; of a command that failed: of its reason"),
    wide("out_param", 8, "output parameter"),
)
"""Its outbox follows, and behind that the answer to the next command of the message. Where a command fails for a reason
of :mod:`rnic.spec.reasons`, the outbox is the reason's number, a word, and one line of UTF-8: ``VERB: TEXT``."""
VECTOR = _layout("VECTOR", 4, word("vector", 0, "interrupt vector; the answer brings an eventfd"))
REGISTER = _layout(
    "REGISTER",
    12,
    word("offset", 0, "byte offset of the register in the global block"),
    word("store", 4, "1 to store a value, 0 to load"),
    word("value", 8, "what to store"),
)
REGISTER_REPLY = _layout("REGISTER answer", 4, word("value", 0, "what a load shows there now"))
SHARE = _layout(
    "SHARE",
    32,
    wide("va", 0, "where the program has the file mapped"),
    wide("bytes", 8, "length of the mapping"),
    wide("offset", 16, "offset in the file"),
    word("writable", 24, "1 where the NIC may write"),
)
UNSHARE = _layout("UNSHARE", 16, wide("va", 0, "as in SHARE"), wide("bytes", 8, "as in SHARE"))
WINDOW = _layout(
    "window header",
    64,
    word("magic", 0, "MAGIC"),
    word("version", 4, "VERSION"),
    word("blocks", 8, "queue blocks"),
    word("asleep", 12, "not 0 while the NIC sleeps: who rings a doorbell then writes to the wake eventfd"),
    word("alive", 16, "1 while the NIC process serves this window"),
    word("verbs_rules", 20, "rules of a fault script for VERBS_RULES to bring"),
)
"""Page 0 of the window; rung bytes follow from page 1 on, then the queue blocks."""

COPY_READ, COPY_WRITE, COPY_CHECK, COPY_CHECK_WRITE = range(4)
MAX_COPY = 32_768
"""Most bytes of one copy."""
COPY = _layout(
    "copy request",
    24,
    wide("va", 0, "address in the program"),
    wide("bytes", 8, "to copy, at most MAX_COPY; to check, any number"),
    word("kind", 16, "COPY_* number; the data follows COPY_WRITE"),
)
"""Request of the NIC process to a copying thread (``DMA_COPIER``), one at a time over the socket pair of OPEN."""
COPY_REPLY = _layout("copy answer", 4, word("error", 0, "0 or an errno; the data follows COPY_READ's"))

INFO_WHY = "why "
"""INFO of a device and this and a queue pair number: why something failed there the last time, as JSON text."""

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
INFO_REPLY = _layout("INFO answer", 8, wide("bytes", 0, "of JSON in the file that comes along"))

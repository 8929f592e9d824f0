"""Refusal reasons of the NIC: one catalog for Python's exceptions, the C libraries, the tools and the manual.

A reason has a text with named values, a cause and a remedy. ``reason(value=...)`` returns its line. ``{name}`` takes a
text, ``{name:d}`` a number, ``{name:#x}`` a number in hexadecimal. No other format is allowed, since
:mod:`rnic.abi.header` generates a C function with ``printf`` for each reason. Numbers of reasons are not stable.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MOST_LINES: Final = 10
"""Lines of each kind to show to a program; further ones are only counted."""

VALUE: Final = re.compile(r"\{(\w+)(?::(d|#x))?\}")
"""A value in a text: name and format."""


class Reason(NamedTuple):
    """One kind of refusal. ``section`` is its section of the manual."""

    number: int
    name: str
    section: str
    text: str
    cause: str
    remedy: str

    def __call__(self, **values: object) -> str:
        """Return the text with these values filled in."""
        return self.text.format(**values)

    @property
    def values(self) -> list[tuple[str, str]]:
        """Names of its values in the order of the text, without repeats, each with ``""``, ``"d"`` or ``"#x"``."""
        return list(dict.fromkeys((name, form) for name, form in VALUE.findall(self.text)))


REASONS: Final[dict[str, Reason]] = {}
"""All reasons by name."""


def _reason(section: str, name: str, text: str, cause: str, remedy: str) -> Reason:
    made = Reason(len(REASONS) + 1, name, section, text, cause, remedy)
    REASONS[name] = made
    return made


# ------------------------------------------------------------------------------------ verbs that are refused

_QP = "Queue pairs: create, modify"

MASK_LACKS = _reason(
    _QP,
    "MASK_LACKS",
    "{state} lacks {attributes} (mask {mask:#x})",
    "the attribute mask lacks bits that this transition requires",
    "set the attributes, and their bits in the mask",
)
MASK_EXTRA = _reason(
    _QP,
    "MASK_EXTRA",
    "{state} does not take {attributes} (mask {mask:#x})",
    "the attribute mask has bits that this transition does not allow: often the mask of RTR used for RTS",
    "leave the bits out",
)
NO_TRANSITION = _reason(
    _QP,
    "NO_TRANSITION",
    "queue pair {qpn:#x} cannot go from {source} to {target}",
    "transitions in the wrong order, or the queue pair has failed in the meantime",
    "RESET, INIT, RTR, RTS, in this order; from ERR to RESET first",
)
CONTEXT_VALUE = _reason(
    _QP,
    "CONTEXT_VALUE",
    "{field}={value:#x} in the context of queue pair {qpn:#x}: the device cannot run on that",
    "a direct store to the key-data cache, which bypasses the checks of commands and messages",
    "write a whole context (WR_QP_ALL), which is checked first; or destroy the queue pair with RESET",
)
CURRENT_STATE = _reason(
    _QP,
    "CURRENT_STATE",
    "cur_qp_state={given}: the queue pair is in {state}",
    "the queue pair is not in the state that IBV_QP_CUR_STATE names",
    "leave the bit out, or query the state first",
)
RESET_ALONE = _reason(
    _QP,
    "RESET_ALONE",
    "RESET takes no attributes (mask {mask:#x})",
    "the mask for RESET has more bits than IBV_QP_STATE",
    "pass IBV_QP_STATE alone",
)
ATTRIBUTE_RANGE = _reason(
    _QP,
    "ATTRIBUTE_RANGE",
    "{name}={value:d}: use {least:d} to {most:d}",
    "a value exceeds the limit of the device or of the field: often it was never set",
    "clear the structure first; ask ibv_query_device for limits",
)
RNR_TIMER_BITS = _reason(
    _QP,
    "RNR_TIMER_BITS",
    "min_rnr_timer={value:d} has more than 5 bits: {taken:d} is taken, as Soft-RoCE does",
    "the RNR NAK field has 5 bits; values from 32 on are often meant as milliseconds",
    "use a code of 0 to 31: 12 is 0.64 ms, 14 is 1.28 ms, 0 is 655.36 ms",
)
ACCESS_FLAGS = _reason(
    _QP,
    "ACCESS_FLAGS",
    "{name}={flags:#x} has rights that are not supported: {extra:#x}",
    "access flags of another kind of object, or of a newer device",
    "leave them out",
)
GID_INDEX = _reason(
    _QP,
    "GID_INDEX",
    "GID index {index:d}: this port has 0 to {last:d}",
    "sgid_index is not in the port's GID table: often an index such as 3, copied from another machine",
    "use index 0; `rnic devinfo` and ibv_query_gid show the table",
)
GID_EMPTY = _reason(
    _QP,
    "GID_EMPTY",
    "GID index {index:d} is empty",
    "the entry of the port's GID table has no address, or lost it",
    "use another index; `rnic devinfo` and ibv_query_gid show the table",
)
GID_TYPE = _reason(
    _QP,
    "GID_TYPE",
    "GID index {index:d} is of RoCE v1, which has no UDP: use index {own:d}",
    "sgid_index is an entry of RoCE v1: adapters list both versions of each address",
    "use the RoCE v2 entry of the address; `rnic devinfo` and ibv_query_gid_ex show the types",
)
GID_ELSEWHERE = _reason(
    _QP,
    "GID_ELSEWHERE",
    "GID index {index:d} is a link-local address that this device cannot send from: use index {own:d}",
    "the device's UDP socket is bound to one address",
    "use the index of that address, or create a device on the link-local address",
)
PORT_NUMBER = _reason(
    _QP,
    "PORT_NUMBER",
    "port {port:d}: this device has port 1 only",
    "port_num was left at 0, or numbered from 0",
    "set port_num to 1",
)
PKEY_INDEX = _reason(
    _QP,
    "PKEY_INDEX",
    "P_Key index {index:d}: this port has 0 to {last:d}",
    "pkey_index is not in the port's P_Key table",
    "use index 0",
)
PATH_MTU = _reason(
    _QP,
    "PATH_MTU",
    "path_mtu {size:d}: this port carries up to {most:d} bytes",
    "the path MTU is larger than the port's",
    "use the smaller of both ends' active_mtu",
)
NO_GRH = _reason(
    _QP,
    "NO_GRH",
    "is_global is 0: RoCE reaches peers by GID alone",
    "the address has a LID, as for InfiniBand, and no GID",
    "set is_global to 1, and grh.dgid to the peer's GID (-g 0 of many programs)",
)
PEER_GID = _reason(
    _QP,
    "PEER_GID",
    "peer GID {gid} is {problem}",
    "the GID that was exchanged is not the peer's, or belongs to another network",
    "send the peer ibv_query_gid's answer; use addresses of one IP version",
)
DEST_QPN = _reason(
    _QP,
    "DEST_QPN",
    "dest_qp_num is 0: that is no queue pair of a program",
    "the peer's number was not exchanged yet, or not converted from network byte order",
    "exchange qp_num before RTR",
)
NOT_SUPPORTED = _reason(
    _QP,
    "NOT_SUPPORTED",
    "{what} is not supported: {instead}",
    "the program uses a feature that this NIC lacks",
    "see the line's text",
)
NO_CQ = _reason(
    _QP,
    "NO_CQ",
    "{which} is missing: each queue pair completes to two CQs, or twice to one",
    "a queue pair is created without send_cq or recv_cq",
    "create the CQ first, and check what ibv_create_cq returned",
)
BAD_VALUE = _reason(
    _QP,
    "BAD_VALUE",
    "{what} is invalid",
    "an argument contradicts the others, or belongs to another device",
    "see the manual page of the verb",
)

_POST = "Posting"

NOT_IN_RTS = _reason(
    _POST,
    "NOT_IN_RTS",
    "queue pair {qpn:#x} is not in RTS yet: sends cannot be posted",
    "the queue pair was not moved to RTS, or that failed",
    "check what ibv_modify_qp returned",
)
IN_RESET = _reason(
    _POST,
    "IN_RESET",
    "queue pair {qpn:#x} is in RESET: receives can be posted from INIT on",
    "receives are posted before the first ibv_modify_qp",
    "move the queue pair to INIT first",
)
USES_SRQ = _reason(
    _POST,
    "USES_SRQ",
    "queue pair {qpn:#x} receives from a shared queue: post there",
    "it was created with a shared receive queue",
    "ibv_post_srq_recv",
)
SEND_QUEUE_FULL = _reason(
    _POST,
    "SEND_QUEUE_FULL",
    "send queue of {entries:d} is full: poll completions first",
    "max_send_wr requests are posted already; unsignaled ones are freed by the next signaled completion",
    "poll the CQ, signal at least one in max_send_wr requests, or raise max_send_wr",
)
RECEIVE_QUEUE_FULL = _reason(
    _POST,
    "RECEIVE_QUEUE_FULL",
    "receive queue of {entries:d} is full: poll completions first",
    "more receives are posted than max_recv_wr (max_wr of a shared queue)",
    "poll the CQ before posting more, or raise max_recv_wr",
)
NUM_SGE = _reason(
    _POST,
    "NUM_SGE",
    "num_sge={count:d} is more than {limit}={most:d}",
    "the scatter list is longer than the queue was created for",
    "raise the limit in ibv_create_qp, or split the request",
)
INLINE_LENGTH = _reason(
    _POST,
    "INLINE_LENGTH",
    "{length:d} bytes inline are more than max_inline_data={most:d}",
    "IBV_SEND_INLINE with more data than the queue was created for; the default is 0",
    "set cap.max_inline_data in ibv_create_qp, or send without IBV_SEND_INLINE",
)
LENGTH = _reason(
    _POST,
    "LENGTH",
    "length={length:d} does not fit a work request",
    "the scatter entries add up to 4 GiB or more",
    "split the request",
)
OPCODE = _reason(
    _POST,
    "OPCODE",
    "opcode={opcode:d} is not a send work request",
    "the work request was not cleared, or its opcode is not supported",
    "clear it, then set IBV_WR_*",
)
SEND_FLAGS = _reason(
    _POST,
    "SEND_FLAGS",
    "send_flags={flags:#x}: only fence, signaled, solicited and inline exist",
    "the flags were not cleared, or request checksum offload, which RoCE does not have",
    "use IBV_SEND_FENCE, SIGNALED, SOLICITED and INLINE",
)
NO_ADDRESS_HANDLE = _reason(
    _POST,
    "NO_ADDRESS_HANDLE",
    "a datagram needs an address handle: {how}",
    "a UD work request names no destination",
    "ibv_create_ah, then wr.ud.ah, remote_qpn and remote_qkey",
)
BIND_REGION = _reason(
    _POST,
    "BIND_REGION",
    "a bind of {length:d} bytes needs a memory region",
    "bind_info.mr is missing",
    "set it to the region that the window is for",
)

_MEMORY = "Memory regions and windows"

MR_RIGHTS = _reason(
    _MEMORY,
    "MR_RIGHTS",
    "access={access:#x} lets peers write: add IBV_ACCESS_LOCAL_WRITE",
    "remote write or atomics without local write, which the standard forbids",
    "add IBV_ACCESS_LOCAL_WRITE",
)
MR_LENGTH = _reason(
    _MEMORY,
    "MR_LENGTH",
    "length={length:d}: a memory region has at least one byte",
    "the length is 0",
    "register at least one byte",
)
MR_RANGE = _reason(
    _MEMORY,
    "MR_RANGE",
    "{length:d} bytes at {address:#x} are not all mapped{writable}",
    "the buffer was freed, is shorter than the length says, or is read-only memory",
    "register what malloc or mmap returned; for read-only memory leave out LOCAL_WRITE",
)
WINDOW_TYPE = _reason(
    _MEMORY,
    "WINDOW_TYPE",
    "mw_type={kind:d}: {rule}",
    "a window of the wrong type for this call",
    "type 1 is bound by ibv_bind_mw, type 2 by a work request",
)

NO_DEVICE_MEMORY = _reason(
    _MEMORY,
    "NO_DEVICE_MEMORY",
    "length={length:d} is more device memory than the {left:d} bytes that are left",
    "all allocations of a context share max_dm_size of ibv_query_device_ex",
    "allocate less, or free some first",
)
NOT_PERSISTENT = _reason(
    _MEMORY,
    "NOT_PERSISTENT",
    "access={access:#x} has IBV_ACCESS_FLUSH_PERSISTENT, and this memory does not outlast a loss of power",
    "a FLUSH would promise that data is durable, and it would not be",
    "register without it, use IBV_FLUSH_GLOBAL, and let the peer's program write to storage",
)
_END = "Limits, and the end of objects"

XRCD_MISSING = _reason(
    _END,
    "XRCD_MISSING",
    "no XRC domain has this file's name: add O_CREAT to oflags",
    "ibv_open_xrcd without O_CREAT, and no context of the device has this domain open",
    "open it with O_CREAT",
)
XRCD_EXISTS = _reason(
    _END,
    "XRCD_EXISTS",
    "an XRC domain of this file's name is open already, and oflags has O_EXCL",
    "ibv_open_xrcd with O_EXCL, and a context of the device has the domain open",
    "leave O_EXCL out",
)
IN_USE = _reason(
    _END,
    "IN_USE",
    "{what} {number:#x} is in use by {users}: destroy them first",
    "objects that were created with it still exist",
    "destroy in the reverse order of creation: queue pairs, then CQs and regions, then the protection domain",
)
EXHAUSTED = _reason(
    _END,
    "EXHAUSTED",
    "all {count:d} {what} are in use: destroy some first",
    "the device has no free number, often because of a leak",
    "destroy objects that are no longer needed",
)
DEVICE_GONE = _reason(
    _END,
    "DEVICE_GONE",
    "device {name} is dead: its NIC process has ended, or this is a forked child",
    "a context ends with the NIC process, and a forked child does not inherit it",
    "open the device again",
)
ON_COMMAND = _reason(
    "Fault scripts",
    "ON_COMMAND",
    "fails with {code} on command (fault rule {rule:d})",
    "a rule of `--faults` makes this verb fail",
    "none: the failure is injected",
)
CM_REFUSED = _reason(
    _END,
    "CM_REFUSED",
    "{text}",
    "the connection manager refused the request",
    "see the line's text",
)

# ------------------------------------------------------------------------- requests that fail, at the responder

_RESPONDER = "Completions in error, at the responder"
_KEYS = "{kind} {key:#x} "

KEY_UNKNOWN = _reason(
    _RESPONDER,
    "KEY_UNKNOWN",
    _KEYS + "is not a key of this NIC",
    "the key was never issued here: an lkey used as rkey, a wrong byte order, or a key of another process",
    "exchange mr->rkey, and convert its byte order like the address's",
)
KEY_ZERO = _reason(
    _RESPONDER,
    "KEY_ZERO",
    "R_Key 0 does not open the {bytes:d} bytes from {va:#x} on for {right}",
    "no buffer that this thread has mapped holds the whole range with this right",
    "map it by getMem or userMap before the peer uses it, and unmap it afterwards",
)
KEY_GONE = _reason(
    _RESPONDER,
    "KEY_GONE",
    _KEYS + "is of memory that was deregistered",
    "the region or window was destroyed before the peer was done",
    "tell the peer before ibv_dereg_mr",
)
KEY_DOMAIN = _reason(
    _RESPONDER,
    "KEY_DOMAIN",
    _KEYS + "is of another protection domain",
    "region and queue pair were created in different protection domains",
    "create both in the same one",
)
KEY_QP = _reason(
    _RESPONDER,
    "KEY_QP",
    _KEYS + "is of a window that queue pair {qpn:#x} has bound",
    "a type 2 window only serves the queue pair that bound it",
    "bind the window on the queue pair that uses it",
)
KEY_RIGHTS = _reason(
    _RESPONDER,
    "KEY_RIGHTS",
    _KEYS + "is of a region that lacks {right}",
    "the region was registered without this right",
    "register it with IBV_ACCESS_{REMOTE_READ, REMOTE_WRITE, REMOTE_ATOMIC} or LOCAL_WRITE",
)
KEY_BEYOND = _reason(
    _RESPONDER,
    "KEY_BEYOND",
    "beyond its region by {bytes:d} bytes",
    "address plus length goes past the end of the region",
    "check offset and length against the length that was registered",
)
KEY_BEFORE = _reason(
    _RESPONDER,
    "KEY_BEFORE",
    "before its region by {bytes:d} bytes",
    "the address lies below the region: another buffer's address, or an offset in place of an address",
    "exchange the address together with its rkey",
)
MEMORY_GONE = _reason(
    _RESPONDER,
    "MEMORY_GONE",
    "memory at {va:#x} is not mapped, or may not be written",
    "the program unmapped or freed a buffer that is still registered",
    "deregister first, then free",
)
QP_RIGHTS = _reason(
    _RESPONDER,
    "QP_RIGHTS",
    "the queue pair lacks {right} in its qp_access_flags",
    "INIT or RTR did not grant the queue pair this right, which it needs besides the region's",
    "set qp_access_flags in ibv_modify_qp",
)
NO_XRC_SRQ = _reason(
    _RESPONDER,
    "NO_XRC_SRQ",
    "SRQ {number:#x} is not in the XRC domain of this queue pair, or not that of the message's first packet",
    "remote_srqn is not an XRC SRQ in the receiver's domain, or that SRQ was destroyed",
    "use the number that ibv_get_srq_num returns for an SRQ of that domain",
)
READ_DEPTH = _reason(
    _RESPONDER,
    "READ_DEPTH",
    "more than max_dest_rd_atomic={most:d} READs and atomics at once",
    "the peer's max_rd_atomic is larger than this end's max_dest_rd_atomic",
    "use the smaller of the two",
)
UNALIGNED = _reason(
    _RESPONDER,
    "UNALIGNED",
    "atomics need an address of 8 bytes' alignment, {va:#x} is none",
    "the remote address of an atomic is not a multiple of 8",
    "align the variable",
)
FLUSH_UNKNOWN = _reason(
    _RESPONDER,
    "FLUSH_UNKNOWN",
    "FETH {feth:#x} is no FLUSH that the standard defines",
    "the peer requests no placement type, or a reserved one",
    "use IBV_FLUSH_GLOBAL, with IBV_FLUSH_RANGE or IBV_FLUSH_MR",
)
RECEIVE_RING = _reason(
    _RESPONDER,
    "RECEIVE_RING",
    "a receive is posted and its ring cannot be read",
    "the region that holds the receive ring was deregistered, or its memory is gone",
    "destroy the queue pair first, then the memory of its rings",
)
SHORT_RECEIVE = _reason(
    _RESPONDER,
    "SHORT_RECEIVE",
    "the message is longer than its receive of {room:d} bytes",
    "the receive buffer is too small for the message",
    "post larger receives",
)
SHORT_DATAGRAM_RECEIVE = _reason(
    _RESPONDER,
    "SHORT_DATAGRAM_RECEIVE",
    "a datagram of {length:d} bytes and the 40 before it do not fit a receive of {room:d} bytes",
    "receives of UD need 40 bytes more than the message, for the GRH",
    "post receives of the message's length plus 40",
)
MTU_MISMATCH = _reason(
    _RESPONDER,
    "MTU_MISMATCH",
    "a packet of {length:d} bytes, where this end's path_mtu is {mtu:d}",
    "both ends were given different path MTUs",
    "exchange path_mtu, and use the smaller one at both ends",
)
WRONG_LENGTH = _reason(
    _RESPONDER,
    "WRONG_LENGTH",
    "{length:d} bytes, where the rest of the message is {left:d}",
    "the packets of a message do not add up to the length in its first packet",
    "a peer that breaks the protocol: `rnic check` a capture",
)
MESSAGE_LENGTH = _reason(
    _RESPONDER,
    "MESSAGE_LENGTH",
    "a message of {length:d} bytes: this end takes up to {most:d}",
    "the message is longer than the device allows",
    "split it",
)
WRONG_SEQUENCE = _reason(
    _RESPONDER,
    "WRONG_SEQUENCE",
    "it does not continue the message that is open",
    "FIRST, MIDDLE and LAST packets in an order that the standard forbids",
    "a peer that breaks the protocol: `rnic check` a capture",
)
NOT_OF_SERVICE = _reason(
    _RESPONDER,
    "NOT_OF_SERVICE",
    "{operation} is not of service {service}",
    "the operation does not exist on this type of queue pair: READs and atomics need RC",
    "use RC, or another operation",
)
NO_RECEIVE = _reason(
    _RESPONDER,
    "NO_RECEIVE",
    "no receive is posted: {answer}",
    "messages arrive faster than receives are posted, or none was ever posted",
    "post receives before the peer sends; rnr_retry 7 at the peer waits forever",
)
NO_WINDOW = _reason(
    _RESPONDER,
    "NO_WINDOW",
    "key {key:#x} cannot be invalidated: it is no type 2 window that this queue pair has bound",
    "SEND with invalidate names the wrong key",
    "name the window's rkey after its last bind",
)
CQ_FULL = _reason(
    _RESPONDER,
    "CQ_FULL",
    "CQ {cqn:#x} is full: its {entries:d} entries wait to be polled",
    "the program polls too seldom, or the CQ is smaller than the queues that complete to it",
    "poll, or give ibv_create_cq the sum of max_send_wr and max_recv_wr of its queue pairs",
)
WRONG_QKEY = _reason(
    _RESPONDER,
    "WRONG_QKEY",
    "a datagram of queue pair {qpn:#x} was dropped: its Q_Key {got:#x} is not this end's {own:#x}",
    "both ends of a UD service must use the same Q_Key",
    "set wr.ud.remote_qkey to the receiver's qkey",
)
PSN_UNKNOWN = _reason(
    _RESPONDER,
    "PSN_UNKNOWN",
    "PSN {psn:#x} is not the expected {expected:#x}, and nothing came before it",
    "the peer's sq_psn is not this end's rq_psn",
    "exchange the PSNs; mask them to 24 bits",
)
WRONG_PEER = _reason(
    _RESPONDER,
    "WRONG_PEER",
    "packets come from {got}, where the queue pair's peer is {peer}",
    "the GID set at RTR is not the sender's address",
    "exchange GIDs; if the machine has several addresses, set the device's (`--addr`)",
)

# ------------------------------------------------------------------------- requests that fail, at the requester

_REQUESTER = "Completions in error, at the requester"

LOCAL_LENGTH = _reason(
    _REQUESTER,
    "LOCAL_LENGTH",
    "{length:d} bytes: {rule}",
    "the message is too long for the service, or an atomic is not 8 bytes long",
    "UD carries up to the port's MTU in a message; split longer ones",
)
NO_READS = _reason(
    _REQUESTER,
    "NO_READS",
    "max_rd_atomic is 0: READs and atomics cannot be sent",
    "RTS set the limit of outstanding READs to 0",
    "set max_rd_atomic at RTS, and max_dest_rd_atomic at the peer's RTR",
)
BAD_ENTRY = _reason(
    _REQUESTER,
    "BAD_ENTRY",
    "its entry in the send ring contradicts itself",
    "something other than the library wrote to the ring's memory",
    "look for out-of-bounds writes",
)
BIND_REFUSED = _reason(
    _REQUESTER,
    "BIND_REFUSED",
    "window {window:d} was not bound: wrong key, domain, range or rights, or a region without MW_BIND",
    "the bind requests more than the region grants",
    "register the region with IBV_ACCESS_MW_BIND and the rights of the window",
)
INVALIDATE_REFUSED = _reason(
    _REQUESTER,
    "INVALIDATE_REFUSED",
    "key {key:#x} is no type 2 window that this queue pair has bound",
    "local invalidate names the wrong key",
    "name the window's rkey after its last bind",
)
BAD_RESPONSE = _reason(
    _REQUESTER,
    "BAD_RESPONSE",
    "the peer's response {opcode} does not answer it",
    "a response of the wrong kind or length",
    "a peer that breaks the protocol: `rnic check` a capture; check that both ends have one path_mtu",
)
REFUSED_THERE = _reason(
    _REQUESTER,
    "REFUSED_THERE",
    "{status}: {why}",
    "the responder refused the request",
    "see the reasons of responders above; across a network, only the responder's end reports it",
)
RNR_EXHAUSTED = _reason(
    _REQUESTER,
    "RNR_EXHAUSTED",
    "the peer had no receive posted, {tries:d} times (rnr_retry)",
    "no receive was posted at the peer in time",
    "post receives first; rnr_retry 7 waits forever",
)
NO_ANSWER = _reason(
    _REQUESTER,
    "NO_ANSWER",
    "queue pair {qpn:#x} of {peer} did not answer {tries:d} sendings: {why}",
    "packets are lost, the peer is gone or not in RTR, or its PSN, address or QP number differs",
    "check dest_qp_num, PSNs and GIDs of both ends; UDP port 4791; `rnic counters` at the peer",
)

THERE: Final = "the peer's end gives the reason"
"""Reason that a requester reports if the responder is in another NIC process."""
NOBODY: Final = "is it in RTR, with this end's address, number and PSN?"
"""Reason that a requester reports for a peer that never answers."""

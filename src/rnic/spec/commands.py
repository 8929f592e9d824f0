"""Device commands: opcodes, status codes and resource kinds (``hardware.md`` 2a, ``design.md`` "Commands")."""

QUERY_DEV_LIM = 0x003
QUERY_ADAPTER = 0x006
INIT_HCA = 0x007
CLOSE_HCA = 0x008
INIT_PORT = 0x009
CLOSE_PORT = 0x00A
SW2HW_MPT = 0x00D
QUERY_MPT = 0x00E
HW2SW_MPT = 0x00F
WRITE_MTT = 0x011
MAP_EQ = 0x012
SW2HW_EQ = 0x013
HW2SW_EQ = 0x014
SW2HW_CQ = 0x016
HW2SW_CQ = 0x017
RST2INIT = 0x019
INIT2RTR = 0x01A
RTR2RTS = 0x01B
RTS2RTS = 0x01C
SQERR2RTS = 0x01D
TOERR = 0x01E
RTS2SQD = 0x01F
SQD2RTS = 0x020
ERR2RST = 0x021
QUERY_QP = 0x022
CONF_SPECIAL_QP = 0x023
MAD_IFC = 0x024
READ_MGM = 0x025
WRITE_MGM = 0x026
MGID_HASH = 0x027
RESIZE_CQ = 0x02C
INIT2INIT = 0x02D
NOP = 0x031
SW2HW_SRQ = 0x035
HW2SW_SRQ = 0x036
QUERY_SRQ = 0x037
SQD2SQD = 0x038
ARM_SRQ = 0x040
ALLOC_MW = 0xF00
DEALLOC_MW = 0xF01
ALLOC_RES = 0xF10
"""Allocate a number: in_modifier is a ``RES_*`` kind, out_param returns the number. An extension of rnic, as is
FREE_RES."""
FREE_RES = 0xF11
TOERR_ON_COMMAND = 1
"""op_modifier of a TOERR that follows a completion failed by a fault rule, as opposed to a modify verb."""
SET_WEIGHT = 0xF12
"""Set a queue pair's scheduler weight: in_modifier is the QPN, op_modifier the weight, 1 to 16. An extension of
rnic."""
READ_NON_RDMA = 0xF13
"""Read the oldest non-RDMA frame from byte in_modifier on; op_modifier 1 then removes it. An extension of rnic."""
READ_CFG = 0xF14
"""Read a 64-bit configuration register: in_modifier is its offset. An extension of rnic, as is WRITE_CFG."""
WRITE_CFG = 0xF15
WRITE_NON_RDMA = 0xF16
"""Send a non-RDMA frame: in_modifier is its length, the mailbox the whole packet. An extension of rnic."""
OPEN_XRCD = 0xF17
"""Open an XRC domain: the output parameter is its number. An extension of rnic, as is CLOSE_XRCD."""
CLOSE_XRCD = 0xF18
UNMAP_ICM = 0xFF9
MAP_ICM = 0xFFA

COMMAND_NAMES = {
    value: name
    for name, value in list(globals().items())
    if name.isupper() and isinstance(value, int) and name != "TOERR_ON_COMMAND"
}

# --- status, HCR bits 31:24
ST_OK = 0x00
ST_INTERNAL_ERR = 0x01
ST_BAD_OP = 0x02
ST_BAD_PARAM = 0x03
ST_BAD_SYS_STATE = 0x04
ST_BAD_RESOURCE = 0x05
ST_RESOURCE_BUSY = 0x06
ST_EXCEED_LIM = 0x08
ST_BAD_RES_STATE = 0x09
ST_BAD_INDEX = 0x0A
ST_BAD_NVMEM = 0x0B
ST_BAD_QP_STATE = 0x10
ST_BAD_SIZE = 0x40
ST_ERRNO = 0x80
"""A fault rule failed the command (:mod:`rnic.link.verbs_faults`); bits 6:0 hold the errno."""

STATUS_NAMES = {
    ST_OK: "OK",
    ST_INTERNAL_ERR: "INTERNAL_ERR",
    ST_BAD_OP: "BAD_OP",
    ST_BAD_PARAM: "BAD_PARAM",
    ST_BAD_SYS_STATE: "BAD_SYS_STATE",
    ST_BAD_RESOURCE: "BAD_RESOURCE",
    ST_RESOURCE_BUSY: "RESOURCE_BUSY",
    ST_EXCEED_LIM: "EXCEED_LIM",
    ST_BAD_RES_STATE: "BAD_RES_STATE",
    ST_BAD_INDEX: "BAD_INDEX",
    ST_BAD_NVMEM: "BAD_NVMEM",
    ST_BAD_QP_STATE: "BAD_QP_STATE",
    ST_BAD_SIZE: "BAD_SIZE",
    ST_ERRNO: "ERRNO",
}

# --- kinds of number that ALLOC_RES allocates
RES_UAR_BLOCK = 1
RES_PD = 2
RES_QP = 3
RES_CQ = 4
RES_SRQ = 5
RES_EQ = 6
RES_MPT = 7
"""A key index together with a random tag: out_param is the whole 32-bit key."""
RES_MTT = 8
"""A page list, filled by WRITE_MTT and named in the ``mtt_seg`` of regions."""
RESOURCE_NAMES = {
    RES_UAR_BLOCK: "queue blocks",
    RES_PD: "protection domains",
    RES_QP: "queue pairs",
    RES_CQ: "completion queues",
    RES_SRQ: "shared receive queues",
    RES_EQ: "event queues",
    RES_MPT: "memory keys",
    RES_MTT: "page lists",
}
"""Use of each kind of number, by kind."""

COMMAND_DOCS: dict[int, tuple[str, str, str]] = {
    QUERY_DEV_LIM: ("", "", "limits, port, P_Key and GID tables"),
    QUERY_ADAPTER: ("", "", "vendor, device, version, GUID"),
    INIT_HCA: ("", "", "start: set the context table addresses, open the port"),
    CLOSE_HCA: ("", "", "stop; only without objects and other open contexts"),
    INIT_PORT: ("port, 1", "", "open the port"),
    CLOSE_PORT: ("port, 1", "", "close the port: send nothing, drop what arrives"),
    SW2HW_MPT: ("key", "", "create a region with an allocated key"),
    QUERY_MPT: ("key", "", "the entry of a region or window"),
    HW2SW_MPT: ("key", "", "destroy a region; BUSY while windows are bound to it"),
    WRITE_MTT: ("entries", "", "fill a page list"),
    MAP_EQ: ("EQN, bit 31 unmaps", "", "map event types to an EQ; the mailbox is their mask"),
    SW2HW_EQ: ("EQN", "", "create an event queue"),
    HW2SW_EQ: ("EQN", "", "destroy it; BUSY while CQs report to it"),
    SW2HW_CQ: ("CQN", "", "create a completion queue"),
    HW2SW_CQ: ("CQN", "", "destroy it; BUSY while queue pairs complete there"),
    RST2INIT: ("QPN", "", "create a queue pair with its rings"),
    INIT2RTR: ("QPN", "", "set path and peer; enables receiving"),
    RTR2RTS: ("QPN", "", "set timers and limits; enables sending"),
    RTS2RTS: ("QPN", "", "change attributes in RTS"),
    SQERR2RTS: ("QPN", "", "resume sending after a send error"),
    TOERR: ("QPN", "", "go to ERR: flush all posted requests"),
    RTS2SQD: ("QPN", "", "drain the send queue: finish started requests, start none"),
    SQD2RTS: ("QPN", "", "go on"),
    ERR2RST: ("QPN", "", "destroy from any state, without flush completions"),
    QUERY_QP: ("QPN", "", "read the up-to-date context"),
    CONF_SPECIAL_QP: ("QPN", "", "make a queue pair QP0 or QP1; RoCE has no QP0, and QP1 is the NIC's own"),
    MAD_IFC: ("port, 1", "", "pass a management datagram to the NIC's agent"),
    READ_MGM: ("", "", "read this context's members of a multicast group"),
    WRITE_MGM: ("", "", "set the members; an empty list leaves the group"),
    MGID_HASH: ("", "", "hash a group's GID"),
    RESIZE_CQ: ("CQN", "", "switch to another ring and move unread entries there"),
    INIT2INIT: ("QPN", "", "change attributes before RTR"),
    NOP: ("", "", "nothing"),
    SW2HW_SRQ: ("SRQN", "", "create a shared receive queue"),
    HW2SW_SRQ: ("SRQN", "", "destroy it; BUSY while queue pairs use it"),
    QUERY_SRQ: ("SRQN", "", "its context"),
    SQD2SQD: ("QPN", "", "change attributes while drained"),
    ARM_SRQ: ("SRQN", "", "set the limit that raises SRQ_LIMIT"),
    ALLOC_MW: ("PD", "type, 1 or 2", "create a memory window; its key is the output parameter"),
    DEALLOC_MW: ("window", "", "destroy a window, by the index of its keys"),
    ALLOC_RES: ("RES_* kind", "", "allocate a number, returned in the output parameter"),
    FREE_RES: ("number", "RES_* kind", "free a number; BUSY while it is in use"),
    SET_WEIGHT: ("QPN", "weight, 1 to 16", "set a queue pair's scheduler weight"),
    READ_NON_RDMA: ("first byte", "1 removes it", "read the oldest frame of the non-RDMA channel"),
    READ_CFG: ("offset", "", "read a congestion register into the output parameter"),
    WRITE_NON_RDMA: ("length", "", "send the packet in the mailbox on the non-RDMA channel"),
    WRITE_CFG: ("offset", "", "write a register from the mailbox; a device's own only without other programs"),
    OPEN_XRCD: ("", "", "open an XRC domain; the mailbox may identify its file"),
    CLOSE_XRCD: ("XRCD", "", "close an XRC domain; BUSY while this context has objects in it"),
    UNMAP_ICM: ("entries", "", "unmap pages of context memory"),
    MAP_ICM: ("entries", "1 contexts, 2 memory tables", "map pages as context memory"),
}
"""For documentation: meaning of ``in_modifier`` and ``op_modifier`` (empty: ignored), and effect of each command."""

STATUS_DOCS: dict[int, str] = {
    ST_OK: "done",
    ST_INTERNAL_ERR: "memory of a mailbox cannot be accessed",
    ST_BAD_OP: "no such command",
    ST_BAD_PARAM: "value out of range, or memory not accessible",
    ST_BAD_SYS_STATE: "not allowed before INIT_HCA, in this state, or in a closed context",
    ST_BAD_RESOURCE: "number reserved by the device",
    ST_RESOURCE_BUSY: "still in use",
    ST_EXCEED_LIM: "no more of that kind",
    ST_BAD_RES_STATE: "object not created, already created, or failed",
    ST_BAD_INDEX: "number not owned by this context",
    ST_BAD_NVMEM: "context memory is not mapped or not accessible",
    ST_BAD_QP_STATE: "not allowed in this queue pair state",
    ST_BAD_SIZE: "a mailbox or ring of the wrong size",
    ST_ERRNO: "failed by a fault rule; bits 6:0 hold an errno",
}
"""For documentation: meaning of each status. A failed command changes nothing."""

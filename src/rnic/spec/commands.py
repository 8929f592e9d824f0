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
"""Allocate a number: in_modifier is a ``RES_*`` kind, out_param the number. An extension of rnic, as is FREE_RES."""
FREE_RES = 0xF11
TOERR_ON_COMMAND = 1
"""TOERR with this op_modifier follows a completion that had to fail: it is no verb of the program."""
SET_WEIGHT = 0xF12
"""Set a queue pair's weight: in_modifier is the QPN, op_modifier its share, 1 to 16. An extension of rnic."""
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
"""With an errno in bits 6:0: a rule of a fault script had the command fail (:mod:`rnic.link.verbs_faults`)."""

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

# --- kinds of number that ALLOC_RES hands out
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
    INIT_HCA: ("", "", "start: where the context tables lie; the port opens"),
    CLOSE_HCA: ("", "", "stop; only where nothing exists and no other context is open"),
    INIT_PORT: ("port, 1", "", "open the port"),
    CLOSE_PORT: ("port, 1", "", "close the port: nothing is sent, what arrives is dropped"),
    SW2HW_MPT: ("key", "", "make a region of an allocated key"),
    QUERY_MPT: ("key", "", "the entry of a region or window"),
    HW2SW_MPT: ("key", "", "destroy a region; BUSY while windows are bound to it"),
    WRITE_MTT: ("entries", "", "fill a page list"),
    MAP_EQ: ("EQN, bit 31 takes away", "", "send event types to an EQ; the mailbox is a mask of them"),
    SW2HW_EQ: ("EQN", "", "create an event queue"),
    HW2SW_EQ: ("EQN", "", "destroy it; BUSY while CQs report to it"),
    SW2HW_CQ: ("CQN", "", "create a completion queue"),
    HW2SW_CQ: ("CQN", "", "destroy it; BUSY while queue pairs complete there"),
    RST2INIT: ("QPN", "", "create a queue pair with its rings"),
    INIT2RTR: ("QPN", "", "path, peer: may receive"),
    RTR2RTS: ("QPN", "", "timers, limits: may send"),
    RTS2RTS: ("QPN", "", "change attributes at work"),
    SQERR2RTS: ("QPN", "", "send again after a send error"),
    TOERR: ("QPN", "", "stop: everything posted is flushed"),
    RTS2SQD: ("QPN", "", "finish what was begun, begin nothing"),
    SQD2RTS: ("QPN", "", "go on"),
    ERR2RST: ("QPN", "", "destroy from any state: what is posted is forgotten"),
    QUERY_QP: ("QPN", "", "the context, brought up to date"),
    CONF_SPECIAL_QP: ("QPN", "", "make a queue pair QP0 or QP1; RoCE has no QP0, and QP1 is the NIC's own"),
    MAD_IFC: ("port, 1", "", "hand a management datagram to the NIC's agent"),
    READ_MGM: ("", "", "this context's members of a multicast group"),
    WRITE_MGM: ("", "", "set them; none leaves the group"),
    MGID_HASH: ("", "", "the hash of a group's GID"),
    RESIZE_CQ: ("CQN", "", "go on in another ring; unread entries move along"),
    INIT2INIT: ("QPN", "", "change attributes before RTR"),
    NOP: ("", "", "nothing"),
    SW2HW_SRQ: ("SRQN", "", "create a shared receive queue"),
    HW2SW_SRQ: ("SRQN", "", "destroy it; BUSY while queue pairs use it"),
    QUERY_SRQ: ("SRQN", "", "its context"),
    SQD2SQD: ("QPN", "", "change attributes while drained"),
    ARM_SRQ: ("SRQN", "", "set the limit that raises SRQ_LIMIT"),
    ALLOC_MW: ("PD", "type, 1 or 2", "create a memory window; its key is the output parameter"),
    DEALLOC_MW: ("window", "", "destroy a window, by the index of its keys"),
    ALLOC_RES: ("RES_* kind", "", "hand out a number: the output parameter"),
    FREE_RES: ("number", "RES_* kind", "give a number back; BUSY while something has it"),
    SET_WEIGHT: ("QPN", "weight, 1 to 16", "a queue pair's share of the turns"),
    READ_NON_RDMA: ("first byte", "1 takes it away", "the oldest frame of the non-RDMA channel"),
    READ_CFG: ("offset", "", "a congestion register: the output parameter"),
    WRITE_NON_RDMA: ("length", "", "send the mailbox's packet, which is not RDMA, by the non-RDMA channel"),
    WRITE_CFG: ("offset", "", "set it to the mailbox's 8 bytes; a device's own while no other program is there"),
    OPEN_XRCD: ("", "", "open an XRC domain, which the mailbox may name by a file"),
    CLOSE_XRCD: ("XRCD", "", "close it; BUSY while something of this context is in it"),
    UNMAP_ICM: ("entries", "", "take context memory back"),
    MAP_ICM: ("entries", "1 contexts, 2 memory tables", "lend pages for context memory"),
}
"""For people: what ``in_modifier`` and ``op_modifier`` are (empty: ignored), and what each command does."""

STATUS_DOCS: dict[int, str] = {
    ST_OK: "done",
    ST_INTERNAL_ERR: "a mailbox's memory did not answer",
    ST_BAD_OP: "no such command",
    ST_BAD_PARAM: "a value out of range, or memory that cannot be reached",
    ST_BAD_SYS_STATE: "not before INIT_HCA, or not now, or the context is closed",
    ST_BAD_RESOURCE: "a number that the device keeps for itself",
    ST_RESOURCE_BUSY: "still in use",
    ST_EXCEED_LIM: "no more of that kind",
    ST_BAD_RES_STATE: "not created yet, created already, or failed",
    ST_BAD_INDEX: "a number that this context does not own",
    ST_BAD_NVMEM: "context memory is not mapped, or does not answer",
    ST_BAD_QP_STATE: "not from this state of the queue pair",
    ST_BAD_SIZE: "a mailbox or ring of the wrong size",
    ST_ERRNO: "and an errno in bits 6 to 0: a fault script has it fail",
}
"""For people: what each status says. A command that fails has changed nothing."""

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
"""Hand out a number: in_modifier is a ``RES_*`` kind, out_param the number. Ours, as is FREE_RES."""
FREE_RES = 0xF11
SET_WEIGHT = 0xF12
"""Turns of a queue pair: in_modifier is the QPN, op_modifier 1 to 16 its share against others. Ours."""
READ_NON_RDMA = 0xF13
"""The oldest frame of the non-RDMA channel, from byte in_modifier on; op_modifier 1 then takes it away. Ours."""
UNMAP_ICM = 0xFF9
MAP_ICM = 0xFFA

COMMAND_NAMES = {value: name for name, value in list(globals().items()) if name.isupper() and isinstance(value, int)}

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

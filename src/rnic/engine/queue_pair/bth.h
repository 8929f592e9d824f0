/* Offsets of the fields of a BTH (IBA 9.2; wire/bth.py). */
#ifndef RNIC_ENGINE_BTH_H
#define RNIC_ENGINE_BTH_H

#include <stdint.h>

/* Byte offsets in a packet. */
#define PKEY_AT 2
#define DQPN_AT 5
#define ACK_REQ_AT 8
#define PSN_AT 9

/* Bits of the first eight bytes, as one big-endian number. */
#define BTH_OPCODE_SHIFT 56
#define BTH_SOLICITED ((uint64_t)1 << 55)
#define BTH_PAD_SHIFT 52

/* A bit of the last four bytes, as one big-endian number. */
#define BTH_ACK_REQ ((uint64_t)1 << 31)

#endif

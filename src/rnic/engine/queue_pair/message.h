/* A message is a send work request: its SQ entry and its progress (transport/message.py). */
#ifndef RNIC_ENGINE_MESSAGE_H
#define RNIC_ENGINE_MESSAGE_H

#include "queue_pair/arithmetic.h"
#include "queue_pair/byteorder.h"
#include "state.h"

#define SQE_WORDS 8u

/* A field of the SQ entry in a send WQE: entry_get(wqe, SQE_OPCODE). The entry's words come first in the WQE. */
static inline uint64_t entry_get(const struct send_wqe *wqe, unsigned word, unsigned lsb, unsigned width)
{
	return (&wqe->entry_0)[word] >> lsb & bits_of(width);
}

/* Copy an SQ entry from the send ring to a WQE. */
static inline void entry_fetch(struct send_wqe *wqe, const uint8_t *entry)
{
	for (unsigned i = 0; i < SQE_WORDS; i++)
		(&wqe->entry_0)[i] = le_load(entry + 8 * i, 8);
}

static inline int is_write(uint64_t opcode)
{
	return opcode == WR_WRITE || opcode == WR_WRITE_IMM;
}

static inline int is_atomic(uint64_t opcode)
{
	return opcode == WR_CMP_SWAP || opcode == WR_FETCH_ADD;
}

/* Return whether its data is in the send entry and its response has no payload. */
static inline int has_operand(uint64_t opcode)
{
	return opcode == WR_FLUSH || opcode == WR_ATOMIC_WRITE;
}

static inline int has_immediate(uint64_t opcode)
{
	return opcode == WR_WRITE_IMM || opcode == WR_SEND_IMM;
}

/* Return whether it consumes a receive entry of the peer. */
static inline int takes_receive(uint64_t opcode)
{
	return opcode < 64 && WR_TAKES_RECEIVE >> opcode & 1;
}

/* Return whether a message has responses: a READ, an atomic, a FLUSH or an ATOMIC WRITE. */
static inline int is_answered(const struct send_wqe *wqe)
{
	uint64_t opcode = entry_get(wqe, SQE_OPCODE);
	return opcode == WR_READ || is_atomic(opcode) || has_operand(opcode);
}

/* Return the PSN of the next expected response of a message, or of one of its READ or atomic requests. */
static inline uint64_t message_due(const struct send_wqe *wqe)
{
	return (wqe->first_psn + wqe->received) & PSN_MASK;
}

static inline uint64_t piece_due(const struct read_piece *piece)
{
	return (piece->first_psn + piece->got) & PSN_MASK;
}

/* Return the number of request packets with an SSN of a message: a long READ uses several. */
static inline uint64_t engine_requests_of(const struct queue_pair *record, const struct send_wqe *wqe)
{
	if (entry_get(wqe, SQE_OPCODE) != WR_READ)
		return 1;
	return ceil_div(wqe->packets, record->read_chunk);
}

#endif

/* What the files of the engine share and nobody else sees. */
#ifndef RNIC_ENGINE_PARTS_H
#define RNIC_ENGINE_PARTS_H

#include <stdatomic.h>
#include <string.h>

#include "engine.h"

/* ------------------------------------------------------------------ numbers in bytes of another order */

static inline uint64_t be_load(const uint8_t *at, unsigned bytes)
{
	uint64_t value = 0;
	for (unsigned i = 0; i < bytes; i++)
		value = value << 8 | at[i];
	return value;
}

static inline void be_store(uint8_t *at, unsigned bytes, uint64_t value)
{
	for (unsigned i = bytes; i--; value >>= 8)
		at[i] = (uint8_t)value;
}

static inline uint64_t bits_of(unsigned width)
{
	return width < 64 ? ((uint64_t)1 << width) - 1 : ~(uint64_t)0;
}

/* A field of a big-endian layout: be_get(qpc, QPC_STATE). */
static inline uint64_t be_get(const uint8_t *base, unsigned byte, unsigned unit, unsigned lsb, unsigned width)
{
	return be_load(base + byte, unit) >> lsb & bits_of(width);
}

static inline void be_put(uint8_t *base, unsigned byte, unsigned unit, unsigned lsb, unsigned width, uint64_t value)
{
	uint64_t mask = bits_of(width) << lsb;
	be_store(base + byte, unit, (be_load(base + byte, unit) & ~mask) | (value << lsb & mask));
}

/* A field of an SQ entry that lies in a send slot: entry_get(slot, SQE_OPCODE). The words come first in it. */
static inline uint64_t entry_get(const struct send_slot *slot, unsigned word, unsigned lsb, unsigned width)
{
	return (&slot->entry_0)[word] >> lsb & bits_of(width);
}

static inline uint64_t le_load(const uint8_t *at, unsigned bytes)
{
	uint64_t value = 0;
	for (unsigned i = bytes; i--;)
		value = value << 8 | at[i];
	return value;
}

static inline uint64_t lesser(uint64_t one, uint64_t other)
{
	return one < other ? one : other;
}

static inline uint64_t greater(uint64_t one, uint64_t other)
{
	return one > other ? one : other;
}

/* ------------------------------------------------------------------ PSNs (IBA vol. 1, chapter 9) */

/* Signed distance from b to a: negative where a lies before b. */
static inline int64_t psn_diff(uint64_t a, uint64_t b)
{
	return (int64_t)((a - b + (1u << 23)) & PSN_MASK) - (1 << 23);
}

/* PSNs that `length` bytes use: at least one. */
static inline uint64_t psn_count(uint64_t length, uint64_t mtu)
{
	return length ? (length + mtu - 1) / mtu : 1;
}

/* ------------------------------------------------------------------ the context's fields with a meaning of their own */

static inline uint64_t context_mtu(const uint8_t *qpc)
{
	return mtu_bytes[be_get(qpc, QPC_MTU)];
}

static inline uint64_t context_longest(const uint8_t *qpc)
{
	uint64_t log = be_get(qpc, QPC_MSGMAX);
	return log ? (uint64_t)1 << log : MAX_MSG_BYTES;
}

/* ------------------------------------------------------------------ icrc.c */

/* CRC state behind the masked headers of a packet of `length` bytes, BTH to ICRC, and its first eight bytes. */
uint32_t engine_icrc_begin(engine_crc crc, const struct engine_flow *flow, uint64_t length, uint32_t ident, uint32_t frag,
		    const uint8_t *bth);
/* Whether a whole packet carries the right ICRC. */
int engine_icrc_right(engine_crc crc, const struct engine_flow *flow, const uint8_t *packet, uint64_t length, uint32_t ident,
	       uint32_t frag);

#define DONT_FRAGMENT 0x4000u
/* Segments of one send whose idents count from 0: wire/flow.py MAX_IDENTS */
#define MAX_IDENTS 64u

/* ------------------------------------------------------------------ memory.c */

/* The record of a key that lets a queue pair of `pd` access `length` bytes, at least 1, at `va`; NULL if none does.
 * `local`: it is an L_Key, so that windows do not count. */
const struct memory_key *engine_key_check(const struct engine_port *port, uint32_t key, uint64_t pd, uint64_t va,
				   uint64_t length, uint64_t rights, uint64_t qpn, int local);
/* Move bytes that key_check let through; 0, or -1 where they are not in reach. */
int engine_key_read(const struct engine_port *port, const struct memory_key *key, uint64_t va, uint8_t *to, uint64_t length);
int engine_key_write(const struct engine_port *port, const struct memory_key *key, uint64_t va, const uint8_t *from,
	      uint64_t length);

/* ------------------------------------------------------------------ completion.c */

struct completion {
	uint32_t index, status, length, word3, wqe_id, requested, qpn, imm;
};

/* Room for `count` entries, looked up once. */
struct cq_room {
	struct engine_cq *cq;
	uint64_t left;
};
/* 0, or -1 where they do not fit, the CQ is not in reach, or more than one of them might raise an event. */
int engine_cq_reserve(struct engine_cq *cq, uint64_t count, struct cq_room *room);
/* Store one entry that was reserved; 1 where the CQ was armed for it. */
int engine_cq_push(struct cq_room *room, const struct completion *entry);

/* ------------------------------------------------------------------ frames.c */

/* Begin a packet of `header` and `payload` bytes; where its header goes, or NULL where there is no room. `run`: it is
 * one of a run of equal ones, which never ends a burst of longer packets. */
uint8_t *engine_frame_begin(struct engine_out *out, uint64_t header, uint64_t payload, int run);
/* Its bytes are there: pad it and seal it. */
void engine_frame_end(struct engine_out *out, const struct engine_port *port, const struct engine_flow *flow, uint8_t *frame,
	       uint64_t header, uint64_t payload);
/* No packet joins the last burst any more. */
void engine_frames_flush(struct engine_out *out);

/* ------------------------------------------------------------------ requests.c, responses.c, replies.c, outstanding.c */

/* A packet as receive.c found it. */
struct packet {
	const uint8_t *bytes;
	uint64_t length; /* with the ICRC */
	const struct opcode_row *row;
	uint8_t opcode;
	uint64_t psn;
	int ask; /* it asks for an ACK */
	int solicited;
	const uint8_t *payload;
	uint64_t size; /* of the payload, without pad */
	const struct engine_meta *meta;
	uint32_t ident;
};

/* Whether its ICRC is right: asked last, once everything else is. */
int engine_packet_right(const struct engine_port *port, const struct packet *packet);

/* Take one packet; ENGINE_DONE, ENGINE_TOLD, or a punt with nothing changed. */
enum engine_end engine_request_receive(const struct engine_port *port, struct engine_qp *qp, const struct packet *packet,
				struct engine_effects *effects);
enum engine_end engine_response_receive(const struct engine_port *port, struct engine_qp *qp, const struct packet *packet,
				 const struct engine_flight *flight, uint64_t now, struct engine_effects *effects);

/* Queue an ACK or NAK. */
void engine_reply_acknowledge(struct engine_qp *qp, uint64_t psn, uint64_t syndrome, struct engine_effects *effects);

/* The SQ index behind one. */
static inline uint64_t sq_after(const struct engine_qp *qp, uint64_t index)
{
	return index + 1 == qp->record->sq_entries ? 0 : index + 1;
}

/* Whether the indices of the send ring are in it, and it has a slot for each entry. */
int engine_sq_sound(const struct engine_qp *qp);
/* The newest message all of which was sent, if it has not completed, or NULL. */
struct send_slot *engine_sq_last(const struct engine_qp *qp);
/* Everything before `psn` is acknowledged; ENGINE_TOLD, or a punt with nothing changed. */
enum engine_end engine_advance(const struct engine_port *port, struct engine_qp *qp, uint64_t psn,
			const struct engine_flight *flight, uint64_t now, struct engine_effects *effects);
/* A packet was lost: go back to `psn`. The caller has made sure that a retry is left and that no READ waits. */
void engine_retry(const struct engine_port *port, struct engine_qp *qp, uint64_t psn, struct engine_effects *effects);
/* Go back: the next packet sent is `psn` (Go-Back-N). No READ waits. */
void engine_rewind(struct engine_qp *qp, uint64_t psn, struct engine_effects *effects);
/* Start the timers that are not running. */
void engine_watch(const struct engine_port *port, struct engine_qp *qp, const struct engine_flight *flight, uint64_t now,
	   struct engine_effects *effects);

#endif

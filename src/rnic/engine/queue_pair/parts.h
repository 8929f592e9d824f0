/* What the files of the engine share and nobody else sees. */
#ifndef RNIC_ENGINE_PARTS_H
#define RNIC_ENGINE_PARTS_H

#include <stdatomic.h>
#include <string.h>

#include "queue_pair/by_reference.h"
#include "queue_pair/division.h"
#include "engine.h"

#define DQPN_AT 5 /* the three bytes of a BTH that say for whom it is */
#define PSN_AT 9 /* its three bytes of PSN */
#define ACK_REQ ((uint64_t)1 << 31) /* in the word of its PSN */

/* ------------------------------------------------------------------ numbers in bytes of another order */

/* The engine is compiled where the lowest byte comes first; with a constant size these are one instruction or two. */
static inline uint64_t be_load(const uint8_t *at, unsigned bytes)
{
	uint64_t value = 0;
	if (bytes == 8) {
		memcpy(&value, at, 8);
		return __builtin_bswap64(value);
	}
	if (bytes == 4) {
		uint32_t word;
		memcpy(&word, at, 4);
		return __builtin_bswap32(word);
	}
	for (unsigned i = 0; i < bytes; i++)
		value = value << 8 | at[i];
	return value;
}

static inline void be_store(uint8_t *at, unsigned bytes, uint64_t value)
{
	if (bytes == 8) {
		value = __builtin_bswap64(value);
		memcpy(at, &value, 8);
		return;
	}
	if (bytes == 4) {
		uint32_t word = __builtin_bswap32((uint32_t)value);
		memcpy(at, &word, 4);
		return;
	}
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
	if (bytes == 8 || bytes == 4) {
		memcpy(&value, at, bytes);
		return value;
	}
	for (unsigned i = bytes; i--;)
		value = value << 8 | at[i];
	return value;
}

static inline void le_store(uint8_t *at, unsigned bytes, uint64_t value)
{
	memcpy(at, &value, bytes);
}

static inline uint64_t lesser(uint64_t one, uint64_t other)
{
	return one < other ? one : other;
}

static inline uint64_t greater(uint64_t one, uint64_t other)
{
	return one > other ? one : other;
}

/* Packets that one turn may want at a peer's limit: transport/inflight.py. */
static inline uint64_t quantum(uint64_t limit, int is_shared)
{
	uint64_t small = lesser(INFLIGHT_SMALL_QUANTUM, limit);
	return is_shared ? greater(small, lesser(INFLIGHT_QUANTUM, limit >> 1)) : small;
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
	return ceil_div(length, mtu);
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

/* Whether a queue pair has requests that a turn may send (device/device.c). */
int engine_unsent(const struct queue_pair *record);

/* ------------------------------------------------------------------ queue_pair/icrc.c */

/* CRC state behind the masked headers of a packet of `length` bytes, BTH to ICRC, and its first `covered` bytes: eight
 * at least. */
uint32_t engine_icrc_begin(engine_crc crc, const struct engine_flow *flow, uint64_t length, uint32_t ident, uint32_t frag,
		    const uint8_t *bth, uint64_t covered);
/* The same with a port's CRC, for one of many packets. */
uint32_t engine_icrc(const struct engine_shared *port, const struct engine_flow *flow, const uint8_t *packet, uint64_t length,
		     uint32_t ident, uint32_t frag, uint64_t covered);
/* The same up to the end of the BTH of packets that are alike but for their ident and the last word of that, `packet` the first. */
struct engine_alike {
	const struct engine_shared *port;
	const struct engine_flow *flow;
	const struct engine_icrc_cache *heads; /* where what is known of them is kept, or NULL */
	uint64_t length;
	uint32_t frag, common;
};
struct engine_alike engine_icrc_alike(const struct engine_shared *port, const struct engine_flow *flow, const uint8_t *packet,
				      uint64_t length, uint32_t frag);
uint32_t engine_icrc_of_alike(const struct engine_alike *alike, const uint8_t *packet, uint32_t ident);
/* Whether a whole packet carries the right ICRC. */
int engine_icrc_check(const struct engine_shared *port, const struct engine_flow *flow, const uint8_t *packet, uint64_t length,
		      uint32_t ident, uint32_t frag);

#define DONT_FRAGMENT 0x4000u
/* Segments of one send whose idents count from 0: wire/flow.py MAX_IDENTS */
#define MAX_IDENTS 64u

/* ------------------------------------------------------------------ queue_pair/prefetch.c */

/* Store the payloads of packets from `at` on that come in order and are allowed, as far as that can be seen ahead. */
void engine_prefetch_store(const struct engine_shared *port, const struct engine_qp *qp, const uint8_t *buffer, size_t length,
		       size_t segment, size_t at, const struct engine_meta *meta);
/* Read the payloads of `count` packets of `size` bytes from `va` on, the first of which is begun at `frame`. */
void engine_prefetch_fill(const struct engine_shared *port, const struct engine_out *out, uint8_t *frame, uint64_t header,
		       const struct memory_key *key, uint64_t va, uint64_t size, uint64_t count);
/* Whether these were: then they count as used. */
int engine_prefetch_filled(struct engine_prefetch *ahead, const uint8_t *to, uint64_t va, uint64_t size);
/* Read the bytes of messages that are short and wait in the send ring, `most` at most. */
void engine_prefetch_fetch(const struct engine_shared *port, const struct engine_qp *qp, uint64_t most);
/* The bytes of a message if they were read, or NULL. */
const uint8_t *engine_prefetch_fetched(struct engine_prefetch *ahead, const struct send_slot *slot, uint64_t index);

/* Whether the payload of a packet in a receive buffer has been stored, or what lies at `at` in it. */
static inline int engine_prefetch_stored(const struct engine_shared *port, const uint8_t *at)
{
	return port->ahead && at >= port->ahead->taken && at < port->ahead->taken_end;
}

/* Buffers are used anew. */
static inline void engine_prefetch_forget(const struct engine_shared *port)
{
	if (port->ahead) {
		port->ahead->taken = port->ahead->taken_end = NULL;
		port->ahead->filled_count = port->ahead->fetched_count = 0;
	}
}

/* ------------------------------------------------------------------ memory/memory_key.c */

/* The record of a key that lets a queue pair of `pd` access `length` bytes, at least 1, at `va`; NULL if none does.
 * `local`: it is an L_Key, so that windows do not count. */
const struct memory_key *engine_key_check(const struct engine_shared *port, uint32_t key, uint64_t pd, uint64_t va,
				   uint64_t length, uint64_t rights, uint64_t qpn, int local);
/* Move bytes that key_check let through; 0, or -1 where they are not in reach. */
int engine_key_read(const struct engine_shared *port, const struct memory_key *key, uint64_t va, uint8_t *to, uint64_t length);
int engine_key_write(const struct engine_shared *port, const struct memory_key *key, uint64_t va, const uint8_t *from,
	      uint64_t length);

/* ------------------------------------------------------------------ queue_pair/completion.c */

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

/* ------------------------------------------------------------------ queue_pair/encap.c */

/* Begin a packet of `header` and `payload` bytes; where its header goes, or NULL where there is no room. `run`: it is
 * one of a run of equal ones, which never ends a burst of longer packets. */
uint8_t *engine_packet_begin(struct engine_out *out, uint64_t header, uint64_t payload, int run);
/* Bytes of such a packet. */
uint64_t engine_packet_bytes(uint64_t header, uint64_t payload);
/* How many of so many bytes lie one behind the other from the one on that was begun, before another burst begins. */
uint64_t engine_packets_contiguous(const struct engine_out *out, uint64_t length);
/* Its bytes are there: pad it and seal it. */
void engine_packet_seal(struct engine_out *out, const struct engine_shared *port, const struct engine_flow *flow, uint8_t *frame,
	       uint64_t header, uint64_t payload);
/* Where a payload is to be copied from while its packet is sealed: bytes of this process, or a segment's; or neither. */
struct origin {
	const uint8_t *bytes;
	const struct engine_segment *segment;
	uint64_t va;
};
/* Where bytes of a key are, as far as one pass may take them from there. */
struct origin engine_origin(const struct engine_shared *port, const struct memory_key *key, uint64_t va);
/* Have `work` done with bytes there; 0, or -1 where that is not possible. */
int engine_origin_within(const struct origin *origin, uint64_t length, engine_visitor work, void *with);
static inline int engine_origin_known(const struct origin *origin)
{
	return origin->bytes || origin->segment;
}
/* The same for a payload that comes from `from`, or is there where that is nowhere. 0, or -1 with no packet more where it
 * cannot be read. */
int engine_packet_fill(struct engine_out *out, const struct engine_shared *port, const struct engine_flow *flow, uint8_t *frame,
	      uint64_t header, const struct origin *from, uint64_t payload);
/* Middles of a message or of a READ's responses, which differ in their PSN alone: up to `count` of `mtu` bytes, as many as
 * join one burst, from `psn` on; `ack_every` has those ask for an ACK, 0 none. How many; 0 where they are to be made one by
 * one, which tells why. */
uint64_t engine_packets_run(struct engine_out *out, const struct engine_shared *port, const struct engine_flow *flow, uint64_t head,
			   uint64_t psn, uint64_t ack_every, const struct origin *from, uint64_t mtu, uint64_t count);
/* No packet joins the last burst any more. */
void engine_packets_flush(struct engine_out *out);

/* ------------------------------------------------------------------ queue_pair/sge.c */

/* Bytes of a message that one L_Key opens. */
struct span {
	const struct memory_key *key;
	uint64_t va, length;
};

/* A send work request's bytes, or the places for what its responses bring. */
struct source {
	const uint8_t *bytes; /* they are inline, else NULL */
	uint64_t length;
	unsigned count;
	struct span spans[QP_SCATTERS];
};

/* Whether the send ring and its slab are in reach as far as its record says they go. */
int engine_ring_reachable(const struct engine_qp *qp);
/* Find the bytes of the message of SQ entry `index`, with `rights` to them; ENGINE_DONE, or why the reference must look. */
enum engine_end engine_sge_resolve(const struct engine_shared *port, const struct engine_qp *qp, const struct send_slot *slot,
				   uint64_t index, uint64_t rights, struct source *source);
/* Whether there is a way to all of them: this process's own memory, or another's by its segment. */
int engine_sge_reachable(const struct engine_shared *port, const struct source *source);
/* Move bytes from `offset` on, in range by contract; 0, or -1 where they are not in reach. */
int engine_sge_read(const struct engine_shared *port, const struct source *source, uint64_t offset, uint8_t *to,
		       uint64_t size);
/* Where `size` bytes from `offset` on may be taken from in one pass, or nowhere. */
struct origin engine_sge_origin(const struct engine_shared *port, const struct source *source, uint64_t offset,
				   uint64_t size);
int engine_sge_write(const struct engine_shared *port, const struct source *source, uint64_t offset, const uint8_t *from,
			uint64_t size);
/* The key and the place of bytes where one part of the list has them all, or NULL. */
const struct memory_key *engine_sge_key(const struct source *source, uint64_t offset, uint64_t size, uint64_t *va);

/* ------------------------------------------------------------------ requests, reads, responses, replies, outstanding */

/* A packet as queue_pair/dispatch.c found it. */
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
	uint64_t more; /* PSNs that it takes beyond its own: of packets that came as one */
	const struct engine_by_reference *bulk; /* which has no payload, else NULL */
	struct engine_pull *pull; /* then this reads it */
};

/* engine_receive, going on in the buffer of the call before. `adds_up`: what responses that follow each other acknowledge
 * may be carried out together. */
size_t engine_receive_on(const struct engine_shared *port, struct engine_qp *qp, const uint8_t *buffer, size_t length,
			 size_t segment, size_t start, const struct engine_meta *meta,
			 const struct engine_inflight *flight, int adds_up, uint64_t now, struct engine_effects *effects);
/* Read the packet at `at` of a buffer of segments; ENGINE_DONE, or a punt where it is not one for this queue pair. */
enum engine_end engine_packet_parse(const struct engine_qp *qp, const struct engine_meta *meta, const uint8_t *buffer,
				   size_t length, size_t segment, size_t at, struct packet *packet);
/* Whether its ICRC is right: asked last, once everything else is. */
int engine_packet_check_icrc(const struct engine_shared *port, const struct packet *packet);

/* Take one packet; ENGINE_DONE, ENGINE_ATTENTION, or a punt with nothing changed. `srtt` is the mean round trip to the peer. */
enum engine_end engine_request_receive(const struct engine_shared *port, struct engine_qp *qp, const struct packet *packet,
				uint64_t srtt, uint64_t now, struct engine_effects *effects);
/* Acknowledge what came and did not ask for it; there is room for a reply, or one that this joins. */
void engine_settle(const struct engine_shared *port, struct engine_qp *qp, struct engine_effects *effects);
/* Whether `next`, of at most `size` bytes, is the middle of a READ's responses that is due, and has, as what came before it,
 * no effect but that it is acknowledged: the sum of such effects is carried out as they would be one by one. */
int engine_response_goes_on(const struct engine_qp *qp, const struct engine_effects *effects, const uint8_t *next,
			    size_t size);
enum engine_end engine_response_receive(const struct engine_shared *port, struct engine_qp *qp, const struct packet *packet,
				 const struct engine_inflight *flight, uint64_t now, struct engine_effects *effects);

enum engine_end engine_datagram_receive(const struct engine_shared *port, struct engine_qp *qp, const struct packet *packet,
					struct engine_effects *effects);
/* Where a datagram goes, or NULL where that is not known. */
const struct engine_destination *engine_destination_of(const struct engine_qp *qp, const struct send_slot *slot);
/* Send a message of a UD queue pair, whose bytes are `source`; ENGINE_DONE with how many packets, or a punt. */
enum engine_end engine_datagram_send(const struct engine_shared *port, struct engine_qp *qp, struct send_slot *slot,
				     const struct source *source, struct engine_out *out, uint64_t *sent);

/* What a READ or atomic request asks for: in order, and, told by `again`, once more. As engine_request_receive, which
 * calls it where the state lets the request in. */
enum engine_end engine_read_receive(const struct engine_shared *port, struct engine_qp *qp, const struct packet *packet,
				    struct engine_effects *effects);
enum engine_end engine_read_again(const struct engine_shared *port, struct engine_qp *qp, const struct packet *packet,
				  struct engine_effects *effects);

/* Entries to take for a consumer at `head` when the producer says that it stands at `tail`. */
static inline uint64_t engine_waiting(uint64_t head, uint64_t tail, uint64_t entries)
{
	if (tail >= entries || head >= entries)
		return 0;
	return tail < head ? tail + entries - head : tail - head;
}
/* Receive entries posted and not taken; 0 also where the ring is not in reach. */
uint64_t engine_receives_left(const struct engine_qp *qp);

/* ------------------------------------------------------------------ queue_pair/receive_queue.c */

/* A receive entry: the one in use, or the next of the ring. */
struct receive {
	int fresh; /* it is to be taken from the ring */
	uint64_t place; /* where in the ring it is; of a shared one, whose order lies behind its slots, not its index */
	uint64_t index, sges, bytes;
	struct scatter scatters[QP_SCATTERS];
};
/* Read the next entry of the receive queue; ENGINE_DONE, ENGINE_ATTENTION where none is posted, or a punt. */
enum engine_end engine_receive_next(const struct engine_shared *port, const struct engine_qp *qp, struct receive *receive);
/* The entry in use, or else the next. */
enum engine_end engine_receive_find(const struct engine_shared *port, const struct engine_qp *qp, struct receive *receive);
/* The entry that was read is taken: the ring's slot is software's again. */
void engine_receive_pass(struct engine_qp *qp, const struct receive *receive);
/* The same, and a message goes on in it. */
void engine_receive_use(struct engine_qp *qp, const struct receive *receive);
/* Whether its keys open all of it, and there is a way to its bytes. */
int engine_scatter_check(const struct engine_shared *port, const struct engine_qp *qp, const struct receive *receive);
/* Store bytes from `offset` of it on, which is open: 0, or -1 where any byte is out of reach. */
int engine_scatter(const struct engine_shared *port, const struct engine_qp *qp, const struct receive *receive,
		   uint64_t offset, const uint8_t *from, uint64_t size);
/* The key of the entry's one part that takes `size` bytes from `offset` on, which go to `*va`; NULL where none does. */
const struct memory_key *engine_scatter_key(const struct engine_shared *port, const struct engine_qp *qp,
					    const struct receive *receive, uint64_t offset, uint64_t size, uint64_t *va);

/* Whether an ACK that says how many there are can. */
int engine_credits_known(const struct engine_qp *qp);
/* The syndrome of an ACK: end-to-end credits where they are on, else the invalid code. */
uint64_t engine_ack_syndrome(const struct engine_shared *port, const struct engine_qp *qp);
/* Queue an ACK or NAK. */
void engine_response_ack(struct engine_qp *qp, uint64_t psn, uint64_t syndrome, struct engine_effects *effects);
/* Queue the responses to a READ, or an atomic's; `again` if they answer a duplicate. Its slot, or NULL where there is no
 * room: then nothing is said. */
struct reply *engine_response_new(struct engine_qp *qp, uint64_t kind, uint64_t psn, uint64_t packets, uint64_t syndrome,
			       int again);
/* Whether the ring of replies is in its slots. */
int engine_response_queue_valid(const struct engine_qp *qp);
/* The reply at a place of the ring, oldest first. */
static inline struct reply *engine_response_at(const struct engine_qp *qp, uint64_t place)
{
	return &qp->replies[(qp->record->reply_first + place) % QP_REPLIES];
}

static inline int is_atomic(uint64_t opcode)
{
	return opcode == WR_CMP_SWAP || opcode == WR_FETCH_ADD;
}

/* The operation of a message's packet (queue_pair/requester.c), and of a READ's response (queue_pair/response_queue.c). */
uint8_t engine_request_opcode(uint64_t opcode, int first, int last);
uint8_t engine_response_opcode(int first, int last);

/* Whether a message's packets are responses. */
static inline int is_answered(const struct send_slot *slot)
{
	uint64_t opcode = entry_get(slot, SQE_OPCODE);
	return opcode == WR_READ || is_atomic(opcode);
}

/* PSN of the response that is due of a READ or atomic request, and of a whole message. */
static inline uint64_t piece_due(const struct read_piece *piece)
{
	return (piece->first_psn + piece->got) & PSN_MASK;
}

static inline uint64_t message_due(const struct send_slot *slot)
{
	return (slot->first_psn + slot->received) & PSN_MASK;
}

/* Requests that a message goes out as, each with a sequence number: a long READ takes several. */
static inline uint64_t engine_requests_of(const struct queue_pair *record, const struct send_slot *slot)
{
	if (entry_get(slot, SQE_OPCODE) != WR_READ)
		return 1;
	return ceil_div(slot->packets, record->read_chunk);
}

/* READ or atomic request number `place` of those that wait for responses, oldest first. */
static inline struct read_piece *engine_piece(const struct engine_qp *qp, uint64_t place)
{
	return &qp->pieces[(qp->record->piece_first + place) % QP_PIECES];
}

/* The SQ index behind one. */
static inline uint64_t sq_after(const struct engine_qp *qp, uint64_t index)
{
	return index + 1 == qp->record->sq_entries ? 0 : index + 1;
}

/* Whether the indices of the send ring are in it, it has a slot for each entry, and READ pieces are in theirs. */
int engine_sq_valid(const struct engine_qp *qp);
/* The newest message all of which was sent, if it has not completed, or NULL. */
struct send_slot *engine_sq_last(const struct engine_qp *qp);
/* Everything before `psn` is acknowledged; ENGINE_ATTENTION, or a punt with nothing changed. */
enum engine_end engine_sq_advance(const struct engine_shared *port, struct engine_qp *qp, uint64_t psn,
			const struct engine_inflight *flight, uint64_t now, struct engine_effects *effects);
/* Whether engine_sq_advance may; ENGINE_DONE, and room for what then completes, or what it would punt for. */
enum engine_end engine_sq_advance_check(struct engine_qp *qp, uint64_t psn, struct cq_room *room);
/* Then it does, whatever the program has done to the CQ since, and cannot punt; `psn` lies after what was acknowledged. */
void engine_sq_advance_into(const struct engine_shared *port, struct engine_qp *qp, uint64_t psn, struct cq_room *room,
			 const struct engine_inflight *flight, uint64_t now, struct engine_effects *effects);
/* Whether there is room for a message's completion, so that engine_sq_complete_sent may; ENGINE_DONE, or a punt. */
enum engine_end engine_sq_complete_check(struct engine_qp *qp, const struct send_slot *slot);
/* Complete what was sent unreliably; ENGINE_DONE, or a punt with nothing changed. */
enum engine_end engine_sq_complete_sent(struct engine_qp *qp, struct engine_effects *effects);
/* Whether the tail-loss probe is on. */
int engine_probe_enabled(const struct engine_shared *port, const struct engine_qp *qp);
/* Whether somebody wants to know that a message has completed. */
int engine_signaled(const struct engine_qp *qp, const struct send_slot *slot);
/* Nanoseconds in which what was repeated should have been answered. */
uint64_t engine_repeat_interval(const struct queue_pair *record, uint64_t alone, uint64_t srtt, uint64_t rttvar);
/* Mean round trip and its deviation with one more sample. */
void engine_rtt_update(uint64_t *srtt, uint64_t *rttvar, uint64_t sample);
/* A packet was lost: go back to `psn`. The caller has made sure that a retry is left. */
/* A packet was lost: by one in `part` fewer in flight. */
void engine_sq_narrow(const struct engine_shared *port, struct queue_pair *record, uint64_t part);
void engine_sq_retry(const struct engine_shared *port, struct engine_qp *qp, uint64_t psn, struct engine_effects *effects);
/* Go back: the next packet sent is `psn` (Go-Back-N). */
void engine_sq_rewind(struct engine_qp *qp, uint64_t psn, struct engine_effects *effects);
/* Start the timers that are not running. */
void engine_sq_arm_timers(const struct engine_shared *port, struct engine_qp *qp, const struct engine_inflight *flight, uint64_t now,
	   struct engine_effects *effects);

/* ------------------------------------------------------------------ queue_pair/by_reference.c */

/* Packets of the next part of a message that is to be made so: few enough for some to be in flight, and no fewer, since
 * each costs the taker a system call. 0 where they have to be packets. */
uint64_t by_reference_chunk(const struct engine_qp *qp, const struct send_slot *slot, const struct source *source);
/* Make the next `count` packets of a message as one without its bytes; how many, 0 where they have to be packets. */
uint64_t by_reference_make(const struct engine_shared *port, struct engine_qp *qp, struct send_slot *slot,
			  const struct source *source, uint64_t count, int ask, struct engine_out *out);
/* The same for the next `count` responses of a READ. */
uint64_t by_reference_respond(const struct engine_shared *port, struct engine_qp *qp, struct reply *reply,
			    const struct memory_key *key, uint64_t mtu, uint64_t count, struct engine_out *out);
/* Read the bytes of such packets to a receive entry from `offset` on, or where that is NULL to the memory of a key; 0, or
 * -1 where any byte is out of reach. */
int by_reference_execute(const struct engine_shared *port, const struct engine_qp *qp, const struct packet *packet,
		      const struct receive *receive, const struct memory_key *key, uint64_t at);
/* Read the bytes of such responses to the places of a READ from `offset` on; 0, or -1 where any byte is out of reach. */
int by_reference_read_response(const struct engine_shared *port, const struct packet *packet, const struct source *source,
		      uint64_t offset);
/* What one is as a packet, whose header goes to BY_REFERENCE_HEADER `bytes`; 0, or -1 for none that makes sense. */
#define BY_REFERENCE_HEADER 32u
int by_reference_parse(const struct engine_by_reference *bulk, uint8_t *bytes, struct packet *packet);

#endif

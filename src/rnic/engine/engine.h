/* The engine: the common path of a RoCEv2 NIC on the bytes of `state`, sans I/O (design.md, "One state, two
 * executors").
 *
 * A call receives or makes packets. At the first one that it does not know it stops and returns why, with the state as
 * it was before that packet; the reference, rnic.transport, then takes it on the same bytes. After either the bytes are
 * equal. No call allocates, blocks, or calls back except into the tables passed in; the work of each is bounded by the
 * buffers passed in.
 *
 * Pointers to what is not in the arena belong to the owner of the device.
 */
#ifndef RNIC_ENGINE_H
#define RNIC_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "memory/memory.h"
#include "state.h"

/* CRC-32 of zlib: `state` is 0, or the CRC of what came before. */
typedef uint32_t (*engine_crc)(uint32_t state, const uint8_t *data, uint64_t length);
/* The same, and copy the bytes: what is covered is what was copied, even if another thread changes them meanwhile. */
typedef uint32_t (*engine_crc_copy)(uint32_t state, uint8_t *to, const uint8_t *from, uint64_t length);

/* Reaction to a congestion notification (cc/settings.py, cc/dcqcn.py). Rates are in bytes per window. */
struct engine_congestion {
	uint64_t dcqcn; /* it lowers the rate; else it is only counted */
	uint64_t merge_ns; /* one notification in this time */
	uint64_t line_rate, least_rate, g_shift, alpha_ns, timer_ns, counter_bytes, recovery_rounds, additive_rate,
		hyper_rate;
};

/* The bucket and the reaction point of one queue pair (cc/pacing.py, cc/dcqcn.py). */
struct engine_rate_limit {
	int64_t credit; /* in bytes times a window */
	uint64_t rate, most, since_ns; /* of the bucket */
	uint64_t point_rate, target, alpha; /* with PACE_RATE_BITS and PACE_ALPHA_BITS */
	uint64_t counted, counter_rounds, timer_rounds, alpha_at, timer_at;
};

/* One direction of a path, as the ICRC sees it. */
struct engine_flow {
	uint8_t source[16];
	uint8_t destination[16];
	uint16_t source_port;
	uint16_t destination_port;
	uint16_t address_bytes; /* 4 or 16 */
};

/* CRC states behind the headers of equally long packets of one flow, for each ident. */
#define ENGINE_ICRC_CACHE 8u
struct engine_icrc_cache {
	struct engine_flow flow;
	uint64_t length;
	uint64_t known; /* a bit for each ident */
	uint32_t states[64];
	uint32_t behind[64]; /* and behind a BTH of zeros */
};

/* What was moved for several packets or messages in one call, before the turn of each (queue_pair/prefetch.h,
 * memory/memory_key.h). */
#define ENGINE_PREFETCH 64u
#define ENGINE_PREFETCH_BYTES 256u /* of a message that is short enough */
struct engine_prefetch {
	const uint8_t *taken, *taken_end; /* packets with the right ICRC, whose payload has been stored */
	uint8_t *filled; /* the next payload that was read into a packet to come, */
	uint64_t filled_va, filled_bytes, filled_stride, filled_count; /* and how many of them */
	uint64_t fetched, fetched_count; /* messages whose bytes were read: the next and how many */
	uint64_t index[ENGINE_PREFETCH]; /* of each in the send ring */
	struct engine_piece pieces[ENGINE_PREFETCH]; /* and its bytes */
	uint8_t *staging; /* ENGINE_PREFETCH * ENGINE_PREFETCH_BYTES */
};

/* What all queue pairs of a NIC share. */
struct engine_shared {
	const struct memory_key *keys; /* the memory table, by key index */
	const struct engine_mapping *reach; /* as many */
	uint64_t key_count;
	engine_crc crc;
	uint64_t ack_every; /* ask for an ACK at least every so many packets */
	uint64_t probe; /* tail-loss probes are on */
	uint64_t rq_almost_full; /* receive entries that are not used */
	engine_crc_copy crc_copy; /* or NULL */
	uint64_t bare; /* packets are headers and lengths, without payload and ICRC (sim/native/fabric.h) */
	struct engine_congestion congestion; /* for queue pairs with a `rate_limit` */
	struct engine_prefetch *prefetch; /* or NULL */
	struct engine_icrc_cache *icrc_cache; /* ENGINE_ICRC_CACHE of them, or NULL */
};

/* A completion queue whose ring is in reach. */
struct engine_cq {
	struct completion_queue *record;
	uint8_t *ring;
	uint64_t entries; /* a power of two, as it was when `ring` was found */
	_Atomic uint32_t *block; /* its queue block */
};

/* The path of datagrams that were sent lately, as their send entries name it. */
struct engine_destination {
	uint64_t path; /* word 2 of the entry: service level, traffic class, flow label, ports */
	uint64_t gid[2]; /* words 5 and 6 */
	uint64_t hop_limit;
	uint64_t found; /* the queue pair's `found` at that time */
	struct engine_flow flow;
	const void *route;
	uint64_t max_segments; /* packets of one burst; 0: no destination here */
};
#define ENGINE_LOG_DESTINATIONS 4u
#define ENGINE_DESTINATIONS (1u << ENGINE_LOG_DESTINATIONS)
/* Return the place of a destination in that table. */
uint64_t engine_destination_place(uint64_t path, const uint64_t gid[2]);

/* Pointers to everything of one queue pair. */
struct engine_qp {
	uint8_t *qpc; /* its context: QPC_SIZE bytes of the key-data cache */
	struct queue_pair *record;
	struct send_wqe *sends; /* one for each SQ entry, `send_wqes` of them */
	struct read_piece *pieces; /* QP_PIECES */
	struct reply *replies; /* QP_REPLIES */
	struct resource *resources; /* QP_RESOURCES */
	struct scatter *scatters; /* QP_SCATTERS */
	uint64_t send_wqes;
	const uint8_t *sq; /* the send ring, its slab behind it; NULL if it is out of reach */
	uint64_t sq_bytes;
	const uint8_t *rq; /* the receive ring, its own or the shared one; NULL if it is out of reach */
	uint64_t rq_bytes;
	struct shared_receive_queue *srq; /* or NULL: the ring is its own */
	_Atomic uint32_t *srq_block; /* the shared queue's block */
	_Atomic uint32_t *block; /* its queue block, or NULL */
	struct engine_cq *send_cq; /* the CQ of number send_cqn, or NULL */
	struct engine_cq *recv_cq;
	uint32_t send_cqn;
	uint32_t recv_cqn;
	uint64_t signal_all; /* every send work request is signaled */
	struct engine_flow flow; /* to the peer */
	uint64_t found; /* the device's `changes` when all of these pointers were found */
	const void *route; /* to the peer, for the carrier of its packets: each burst names it */
	struct engine_destination *destinations; /* of a UD queue pair, ENGINE_DESTINATIONS of them; or NULL */
	struct engine_rate_limit *rate_limit; /* if the engine keeps it to its rate; NULL if the reference does */
	struct engine_peer_path *peer_path; /* to a peer that may read this program's memory, or NULL */
};

/* The accounts of what is in flight: the NIC's and the peer's, at the beginning of a turn. */
struct engine_inflight {
	uint64_t peer_limit, peer_inflight, peer_promised, peer_waiting;
	uint64_t nic_limit, nic_inflight, nic_promised, nic_queued, nic_overtaken;
	uint64_t others; /* slots of the device that have packets in flight as well, or wait for room */
	uint64_t srtt, rttvar;
	uint64_t alone; /* no other queue pair sends to the peer */
};

/* What came with a buffer of packets. */
struct engine_meta {
	struct engine_flow flow; /* from the peer to here */
	uint32_t ident; /* IPv4 identification of the first segment, one higher for each following; or one of these */
	uint32_t frag; /* IPv4 flags and fragment offset, if the ident was seen */
	uint32_t known_mask, known_bits; /* bits of an ident that was not seen */
	uint32_t flow_label; /* of IPv6, as it arrived, and so the two below */
	uint8_t tclass, hop_limit;
};
#define IDENT_UNSEEN 0xffffffffu
#define IDENT_CHECKED 0xfffffffeu /* the ICRC was checked before, and no other process can write the bytes */

/* Why a call ended. */
enum engine_end {
	ENGINE_DONE, /* nothing is left, or the budget is used up */
	ENGINE_AGAIN, /* effects must be carried out before the same packet, which is half done, goes on */
	ENGINE_ATTENTION, /* effects must be carried out before it goes on */
	PUNT_REASONS /* the reference takes the next packet or work request (state/slot.py) */
};

/* Effects beyond the state's bytes, for the caller. */
enum engine_effect {
	EFFECT_SCHEDULE = 1, /* the queue pair has something to send: schedule a turn */
	EFFECT_ACKNOWLEDGED = 2, /* account for `acknowledged`, `landed`, `sample`; its deadline may be earlier */
	EFFECT_NOTIFY_SEND = 4, /* the send CQ was armed for what it got */
	EFFECT_NOTIFY_RECV = 8, /* the receive CQ was */
	EFFECT_NO_ROOM = 16, /* it waits in line for room in flight */
	EFFECT_ARM = 32, /* its deadline may be earlier than it was */
	EFFECT_GO_ON = 64, /* what waited for a response may be sent */
	EFFECT_LOST = 128, /* a packet to the peer was lost: tell its account before taking `grounded` back */
	EFFECT_SILENT = 256, /* nothing comes from the peer: tell its account before the loss */
	EFFECT_FIRST = 1024, /* schedule a turn before all other effects */
	EFFECT_BEGUN = 512, /* messages wait for responses behind one that came: schedule a turn before the loss */
};

struct engine_effects {
	uint32_t effects;
	uint32_t end;
	uint64_t packets; /* taken or made */
	uint64_t acknowledged; /* PSNs */
	uint64_t landed; /* packets that are not in flight any more */
	uint64_t flown; /* packets that are from now on */
	uint64_t admitted; /* of these, promised before */
	uint64_t sample; /* a round trip in nanoseconds, or NONE */
	uint64_t grounded; /* packets that are not in flight any more since they are sent again */
	uint32_t counts[ENGINE_COUNTS]; /* by enum engine_count */
	uint32_t counted; /* a bit for each of these that is not 0: rarely any */
};

static inline void engine_count(struct engine_effects *effects, enum engine_count which, uint32_t much)
{
	effects->counts[which] += much;
	effects->counted |= (uint32_t)(much != 0) << which;
}
_Static_assert(ENGINE_COUNTS <= 32, "there is a bit for each");

/* Packets that were made, in the order to send them. Segments of one burst are equally long, except the last. */
struct engine_burst {
	uint64_t offset; /* in `bytes` */
	uint64_t length;
	uint32_t segment; /* 0: a struct engine_by_reference */
	uint32_t count;
	const void *route; /* `route` below, as it was */
};
#define ENGINE_BURSTS 288u /* those of 256 packets, and what a turn may send beyond its budget */
struct engine_out {
	uint8_t *bytes;
	uint64_t room;
	uint64_t used;
	uint64_t max_segments; /* packets in one burst */
	const void *route; /* of the packets that are made now */
	uint32_t open; /* the last burst may grow */
	uint32_t count;
	/* Or NULL: called between two packets once ENGINE_CARRY bytes wait in closed bursts. It sends all of them, so
	 * that the next packets are made in the same, cached bytes. Room for ENGINE_CARRY bytes and one burst is enough
	 * then. */
	void (*carry)(struct engine_out *out);
	/* Or NULL: called before packets of another queue pair are made. */
	void (*turned)(struct engine_out *out, const struct engine_qp *qp);
	uint64_t carried; /* bytes that `carry` sent so far */
	struct engine_burst bursts[ENGINE_BURSTS];
};
#define ENGINE_CARRY 32768u

/* Return the STATE_LAYOUT_HASH that the engine was compiled with: compare it with the tables before anything else. */
uint64_t engine_layout_hash(void);

/* Take packets for `qp` from `start` on, in a buffer of segments; the bytes taken. Stops at a packet for another queue
 * pair, and behind one with effects that must be carried out before the next; or within it (ENGINE_AGAIN): then it is
 * the first of the next call, and the reference may take it as well. */
size_t engine_receive(const struct engine_shared *shared, struct engine_qp *qp, const uint8_t *buffer, size_t length,
		      size_t segment, size_t start, const struct engine_meta *meta,
		      const struct engine_inflight *flight, uint64_t now, struct engine_effects *effects);

/* Send requests: up to `budget` packets of WRITEs, SENDs, READs and atomics, new or again; the number made. What is
 * sent unreliably completes at once. */
uint64_t engine_send(const struct engine_shared *shared, struct engine_qp *qp, uint64_t now, uint64_t budget,
		     struct engine_inflight *flight, struct engine_out *out, struct engine_effects *effects);

/* Return when engine_timeout has something to do, or NEVER. */
uint64_t engine_deadline(const struct engine_qp *qp);

/* Handle a deadline that may have come: of an RNR wait, an ACK timeout, a tail-loss probe, an ACK that is owed. */
void engine_timeout(const struct engine_shared *shared, struct engine_qp *qp, const struct engine_inflight *flight,
		    uint64_t now, struct engine_effects *effects);

/* Send the responses that are due, up to `budget` packets; the number made. */
uint64_t engine_reply(const struct engine_shared *shared, struct engine_qp *qp, uint64_t budget, struct engine_out *out,
		      struct engine_effects *effects);

#endif

/* The engine: the common path of a RoCEv2 NIC on the bytes of `state`, sans I/O (design.md, "One state, two
 * executors").
 *
 * A call receives or builds packets. At the first packet that it does not support, it stops and returns the reason,
 * with the state as before that packet. The reference, rnic.transport, then processes that packet on the same bytes,
 * with the same result. No call allocates, blocks, or calls back except through the tables passed in; its work is
 * bounded by the buffers passed in.
 *
 * Memory outside the arena belongs to the owner of the device.
 */
#ifndef RNIC_ENGINE_H
#define RNIC_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "memory/memory.h"
#include "state.h"

/* CRC-32 of zlib: `state` is 0, or the CRC of the preceding bytes. */
typedef uint32_t (*engine_crc)(uint32_t state, const uint8_t *data, uint64_t length);
/* The same while copying: the CRC covers exactly the copied bytes, even if another thread changes the source. */
typedef uint32_t (*engine_crc_copy)(uint32_t state, uint8_t *to, const uint8_t *from, uint64_t length);

/* Settings of congestion control (cc/settings.py, cc/dcqcn.py). Rates are in bytes per window of 1,024 ns. */
struct engine_congestion {
	uint64_t control; /* control of a queue pair from its first CNP on; CONTROL_NONE: CNPs are only counted */
	uint64_t merge_ns; /* period in which at most one CNP counts */
	uint64_t hold_ns; /* time for which a CNP lowers the outstanding limit */
	uint64_t line_rate, least_rate, g_shift, alpha_ns, timer_ns, counter_bytes, recovery_rounds, additive_rate,
		hyper_rate;
};

/* An acknowledgement, for a congestion control (cc/control.py). */
struct engine_ack {
	uint64_t now, psn, next_psn, packets, rtt_ns;
};

/* Callbacks of a congestion control outside the engine (CONTROL_OTHER). The owner sets on_ack, on_loss and on_sent to
 * NULL if the control ignores them. */
struct engine_control_calls {
	void (*on_ack)(void *self, struct queue_pair *record, const struct engine_ack *ack);
	void (*on_cnp)(void *self, struct queue_pair *record, uint64_t now);
	void (*on_loss)(void *self, struct queue_pair *record, uint64_t now);
	void (*on_timer)(void *self, struct queue_pair *record, uint64_t now);
	void (*on_sent)(void *self, struct queue_pair *record, uint64_t bytes);
	void *self;
};

/* One direction of a path: the fields covered by the ICRC. */
struct engine_flow {
	uint8_t source[16];
	uint8_t destination[16];
	uint16_t source_port;
	uint16_t destination_port;
	uint16_t address_bytes; /* 4 or 16 */
};

/* CRC states after the headers of packets of the same length and flow, for each ident. */
#define ENGINE_ICRC_CACHE 8u
struct engine_icrc_cache {
	struct engine_flow flow;
	uint64_t length;
	uint64_t known; /* a bit for each ident */
	uint32_t states[64];
	uint32_t behind[64]; /* states after a BTH of zeros */
};

/* Results of batched copies for several packets or messages, made before each is processed (queue_pair/prefetch.h,
 * memory/memory_key.h). */
#define ENGINE_PREFETCH 64u
#define ENGINE_PREFETCH_BYTES 256u /* longest message to prefetch */
struct engine_prefetch {
	const uint8_t *taken, *taken_end; /* packets with the right ICRC, whose payload has been stored */
	uint8_t *filled; /* next payload that was read ahead into a future packet */
	uint64_t filled_va, filled_bytes, filled_stride, filled_count; /* and number of such payloads */
	uint64_t fetched, fetched_count; /* messages whose payload was read: next one, and number */
	uint64_t index[ENGINE_PREFETCH]; /* of each message in the send ring */
	struct engine_piece pieces[ENGINE_PREFETCH]; /* and its payload */
	uint8_t *staging; /* ENGINE_PREFETCH * ENGINE_PREFETCH_BYTES */
};

/* Memory behind R_Key 0 for the peer of a queue pair (mem/translation.py, mem/tlb.py). */
struct engine_translation {
	uint64_t *words; /* TRANSLATION_* below */
	uint64_t number; /* number of the process in the TLB */
	uint64_t *tlb; /* TLB_* below */
	uint64_t tlb_sets, tlb_ways; /* the number of sets is a power of two */
	uint64_t handles; /* page faults in open regions are handled in C */
};

/* State that all queue pairs of a NIC share. */
struct engine_shared {
	const struct memory_key *keys; /* the memory table, by key index */
	const struct engine_mapping *reach; /* addresses of each key's memory in this process */
	uint64_t key_count;
	engine_crc crc;
	uint64_t ack_every; /* request an ACK at least once in this many packets */
	uint64_t probe; /* tail-loss probes are on */
	uint64_t rq_almost_full; /* receive entries to keep back */
	engine_crc_copy crc_copy; /* or NULL */
	uint64_t bare; /* packets are headers and lengths, without payload and ICRC (sim/native/fabric.h) */
	struct engine_congestion congestion; /* or zeros: the reference handles DCQCN events */
	const struct engine_control_calls
		*control_calls; /* or NULL: the reference serves queue pairs of CONTROL_OTHER */
	struct engine_prefetch *prefetch; /* or NULL */
	struct engine_icrc_cache *icrc_cache; /* ENGINE_ICRC_CACHE of them, or NULL */
};

/* A completion queue whose ring is accessible. */
struct engine_cq {
	struct completion_queue *record;
	uint8_t *ring;
	uint64_t entries; /* a power of two, from the lookup of `ring` */
	_Atomic uint32_t *block; /* its queue block */
};

/* The path of recent datagrams, identified by fields of their send entries. */
struct engine_destination {
	uint64_t path; /* word 2 of the entry: service level, traffic class, flow label, ports */
	uint64_t gid[2]; /* words 5 and 6 */
	uint64_t hop_limit;
	uint64_t found; /* the queue pair's `found` at the lookup */
	struct engine_flow flow;
	const void *route;
	uint64_t max_segments; /* most packets in one burst; 0: empty entry */
};
#define ENGINE_LOG_DESTINATIONS 4u
#define ENGINE_DESTINATIONS (1u << ENGINE_LOG_DESTINATIONS)
/* Return the index of a destination in that table. */
uint64_t engine_destination_place(uint64_t path, const uint64_t gid[2]);

/* Pointers to the state of a queue pair. */
struct engine_qp {
	uint8_t *qpc; /* its context: QPC_SIZE bytes of the key-data cache */
	struct queue_pair *record;
	struct send_wqe *sends; /* one for each SQ entry, `send_wqes` of them */
	struct read_piece *pieces; /* QP_PIECES */
	struct reply *replies; /* QP_REPLIES */
	struct resource *resources; /* QP_RESOURCES */
	struct scatter *scatters; /* QP_SCATTERS */
	uint64_t send_wqes;
	const uint8_t *sq; /* the send ring, followed by its slab; NULL if not accessible */
	uint64_t sq_bytes;
	const uint8_t *rq; /* the receive ring, its own or the shared one; NULL if not accessible */
	uint64_t rq_bytes;
	struct shared_receive_queue *srq; /* NULL if the ring is its own */
	_Atomic uint32_t *srq_block; /* the shared queue's block */
	_Atomic uint32_t *block; /* its queue block, or NULL */
	struct engine_cq *send_cq; /* the CQ of number send_cqn, or NULL */
	struct engine_cq *recv_cq;
	uint32_t send_cqn;
	uint32_t recv_cqn;
	uint64_t signal_all; /* every send work request is signaled */
	struct engine_flow flow; /* to the peer */
	uint64_t found; /* the device's `changes` when all of these pointers were found */
	const void *route; /* to the peer, for the transmit code: each burst has it */
	struct engine_destination *destinations; /* of a UD queue pair, ENGINE_DESTINATIONS of them; or NULL */
	struct engine_peer_path *peer_path; /* to a peer that may read this program's memory, or NULL */
	const struct engine_translation *translation; /* memory behind R_Key 0, or NULL */
	uint64_t guarded; /* Python checks each remote access: punt them all */
};

/* In-flight accounts of the NIC and of the peer at the start of a turn. */
struct engine_inflight {
	uint64_t peer_limit, peer_inflight, peer_promised, peer_waiting;
	uint64_t nic_limit, nic_inflight, nic_promised, nic_queued, nic_overtaken;
	uint64_t others; /* other slots of the device that have packets in flight or wait for room */
	uint64_t srtt, rttvar;
	uint64_t alone; /* no other queue pair sends to the peer */
};

/* Metadata of a buffer of packets. */
struct engine_meta {
	struct engine_flow flow; /* from the peer to here */
	uint32_t ident; /* IPv4 identification of the first segment, counting up; or one of these */
	uint32_t frag; /* IPv4 flags and fragment offset, if the ident is known */
	uint32_t known_mask, known_bits; /* known bits of an ident that is not known */
	uint32_t flow_label; /* of IPv6, as received, like the two below */
	uint8_t tclass, hop_limit;
};
#define IDENT_UNSEEN 0xffffffffu
#define IDENT_CHECKED 0xfffffffeu /* the ICRC is already checked, and no other process can write the bytes */

/* Reason why a call ended. */
enum engine_end {
	ENGINE_DONE, /* nothing is left to do, or the budget is used up */
	ENGINE_AGAIN, /* perform the effects, then continue with the same, partly processed packet */
	ENGINE_ATTENTION, /* perform the effects, then continue */
	PUNT_REASONS /* the reference takes the next packet or work request (state/slot.py) */
};

/* Effects beyond the state's bytes, for the caller. */
enum engine_effect {
	EFFECT_SCHEDULE = 1, /* the queue pair has something to send: schedule a turn */
	EFFECT_ACKNOWLEDGED =
		2, /* account for `acknowledged`, `inflight_acked`, `sample`; its deadline may be earlier */
	EFFECT_NOTIFY_SEND = 4, /* the send CQ was armed for the new entry */
	EFFECT_NOTIFY_RECV = 8, /* the receive CQ was */
	EFFECT_NO_ROOM = 16, /* the queue pair waits for room in flight */
	EFFECT_ARM = 32, /* its deadline may have become earlier */
	EFFECT_GO_ON = 64, /* requests that waited for a response can be sent */
	EFFECT_LOST =
		128, /* a packet to the peer was lost: report it to the peer's limit before subtracting `inflight_resend` */
	EFFECT_SILENT = 256, /* the peer is silent: report that to its limit before the loss */
	EFFECT_FIRST = 1024, /* schedule a turn before all other effects */
	EFFECT_BEGUN = 512, /* further messages await a response: schedule a turn before the loss is reported */
};

struct engine_effects {
	uint32_t effects;
	uint32_t end;
	uint64_t packets; /* received or built */
	uint64_t acknowledged; /* PSNs */
	uint64_t inflight_acked; /* packets no longer in flight */
	uint64_t inflight_sent; /* packets newly in flight */
	uint64_t admitted; /* of these, promised before */
	uint64_t sample; /* a round trip in nanoseconds, or NONE */
	uint64_t inflight_resend; /* packets no longer in flight because they are retransmitted */
	uint32_t counts[ENGINE_COUNTS]; /* by enum engine_count */
	uint32_t counted; /* a bit for each nonzero count: rarely any */
};

static inline void engine_count(struct engine_effects *effects, enum engine_count which, uint32_t much)
{
	effects->counts[which] += much;
	effects->counted |= (uint32_t)(much != 0) << which;
}
_Static_assert(ENGINE_COUNTS <= 32, "there is a bit for each counter");

/* Packets to send, in order. Segments of one burst have equal length, except the last. */
struct engine_burst {
	uint64_t offset; /* in `bytes` */
	uint64_t length;
	uint32_t segment; /* 0: a struct engine_by_reference */
	uint32_t count;
	const void *route; /* value of `route` below */
};
#define ENGINE_BURSTS 288u /* 256 packets, and those that a turn may send beyond its budget */
struct engine_out {
	uint8_t *bytes;
	uint64_t room;
	uint64_t used;
	uint64_t max_segments; /* packets in one burst */
	const void *route; /* of the packets being built */
	uint32_t open; /* the last burst may grow */
	uint32_t count;
	/* Or NULL: called between two packets once closed bursts have ENGINE_CARRY bytes. It sends all of them, so that
	 * the next packets are built in the same, cached memory. Room for ENGINE_CARRY bytes and one burst then
	 * suffices. */
	void (*carry)(struct engine_out *out);
	/* Or NULL: called before packets of another queue pair are built. */
	void (*turned)(struct engine_out *out, const struct engine_qp *qp);
	uint64_t carried; /* bytes that `carry` sent so far */
	struct engine_burst bursts[ENGINE_BURSTS];
};
#define ENGINE_CARRY 32768u

/* Return the STATE_LAYOUT_HASH that the engine was compiled with: compare it with the tables before anything else. */
uint64_t engine_layout_hash(void);

/* Process packets for `qp` from `start` on, in a buffer of segments. Returns the bytes taken. Stops before a packet for
 * another queue pair; after a packet whose effects must be performed before the next; or within a packet
 * (ENGINE_AGAIN), which is then the first one of the next call and may also be processed by the reference. */
size_t engine_receive(const struct engine_shared *shared, struct engine_qp *qp, const uint8_t *buffer, size_t length,
		      size_t segment, size_t start, const struct engine_meta *meta,
		      const struct engine_inflight *flight, uint64_t now, struct engine_effects *effects);

/* Send requests: up to `budget` packets of WRITEs, SENDs, READs and atomics, new or retransmitted. Returns the number
 * of packets. Unreliable messages complete at once. */
uint64_t engine_send(const struct engine_shared *shared, struct engine_qp *qp, uint64_t now, uint64_t budget,
		     struct engine_inflight *flight, struct engine_out *out, struct engine_effects *effects);

/* Return the time of the next engine_timeout, or NEVER. */
uint64_t engine_deadline(const struct engine_qp *qp);

/* Handle timers that may have expired: RNR wait, ACK timeout, tail-loss probe, or delayed ACK. */
void engine_timeout(const struct engine_shared *shared, struct engine_qp *qp, const struct engine_inflight *flight,
		    uint64_t now, struct engine_effects *effects);

/* Send due responses, up to `budget` packets. Returns the number of packets. */
uint64_t engine_reply(const struct engine_shared *shared, struct engine_qp *qp, uint64_t budget, struct engine_out *out,
		      struct engine_effects *effects);

#endif

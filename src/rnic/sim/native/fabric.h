/* A network of NICs in virtual time: links, switches and events (rnic.sim is the reference, event for event).
 *
 * Packets are headers and lengths. Links here drop and mark packets but do not modify them, so payload and ICRC of the
 * engine's packets are neither made nor checked (`bare` in engine_shared). A reader gets a complete packet: zeros as
 * payload, and the correct ICRC. Unlike the rest of the engine, this code allocates: its pools grow. */
#ifndef RNIC_ENGINE_FABRIC_H
#define RNIC_ENGINE_FABRIC_H

#include "device/device.h"
#include "telemetry.h"

#define FABRIC_NONE UINT32_MAX
#define FABRIC_HEADER 44u
#define FABRIC_DRAWS 64u
#define FABRIC_PRIORITIES 8u
#define FABRIC_QUANTUM 4608 /* bytes per unit of weight in deficit round robin, at least the largest packet */

/* A packet in the fabric. */
struct fabric_packet {
	uint32_t next; /* in its queue */
	uint32_t wire; /* bytes on the wire */
	uint32_t way; /* ECMP hash */
	uint32_t source, target; /* hosts */
	uint16_t source_port, target_port;
	uint16_t length; /* of the UDP payload */
	uint16_t ingress; /* link of the switch that holds it */
	uint8_t tclass;
	uint8_t priority;
	uint8_t ce;
	uint8_t header_bytes;
	uint8_t header[FABRIC_HEADER];
};

struct fabric_queue {
	uint32_t first, last, count;
};

/* Random numbers from 0 to 1 of one Python generator, in its order. */
struct fabric_draws {
	uint32_t at, count;
	double values[FABRIC_DRAWS];
};

/* One end of a link: rnic.sim.port. */
struct fabric_port {
	uint64_t bits_s, delay_ns, rest;
	uint64_t queued_bytes, peak_bytes, sent, sent_bytes, lost, marked, pauses, paused_ns, since_ns;
	double loss;
	struct fabric_draws *draws; /* for loss, or NULL */
	struct fabric_queue queues[FABRIC_PRIORITIES], wire;
	uint64_t class_bytes[FABRIC_PRIORITIES]; /* queued */
	int64_t deficits[FABRIC_PRIORITIES];
	uint32_t weights[FABRIC_PRIORITIES]; /* 0 for strict */
	uint32_t peer;
	uint32_t owner; /* host or switch */
	uint32_t number; /* index at its switch, or FABRIC_NONE at a host */
	uint32_t free_actor, wire_actor;
	uint32_t signal_actors; /* first of one actor for each priority, or FABRIC_NONE if not needed yet */
	uint32_t waiting; /* queued packets of all priorities */
	/* a bit for each priority: strict, with packets, stopped by PFC, next PFC frame to arrive is a resume */
	uint8_t strict, filled, stopped, go_on;
	uint8_t turn, current; /* priority of the round robin, priority of the packet in transmission */
	uint8_t busy, tapped, recorded;
	uint8_t down; /* sent packets are lost */
	uint64_t *stops;
	uint32_t stop_count, stop_room;
};

/* One link of a switch, and its bytes in the buffers by priority. */
struct fabric_ingress {
	uint64_t shared[FABRIC_PRIORITIES], headroom[FABRIC_PRIORITIES];
	uint64_t headroom_bytes; /* room of each priority, beside the shared buffer */
	uint32_t port;
	uint8_t pausing; /* a bit for each priority */
};

struct fabric_ways {
	uint32_t first, count; /* in `ways` */
};

/* rnic.sim.switch */
struct fabric_switch {
	uint64_t buffer_bytes, kmin_bytes, kmax_bytes, xoff_bytes, xon_bytes;
	double pmax, alpha;
	uint64_t dropped, peak_bytes, shared, in_headroom;
	struct fabric_draws *draws; /* for marking, or NULL */
	struct fabric_ingress *links;
	struct fabric_ways *routes; /* by host */
	uint32_t *ways; /* ports */
	uint32_t link_count, way_count, way_room;
	uint32_t salt;
	uint32_t turn; /* of the equal ways, where it sprays */
	uint8_t spray;
	uint8_t lossless; /* a bit for each priority */
};

/* A NIC at its link: rnic.sim.host. */
struct fabric_host {
	struct engine_device *device;
	const struct completion_queue *cq; /* its only one, or NULL */
	uint64_t cq_tail; /* at the last check */
	struct fabric_queue inbox;
	struct fabric_queue words; /* last packets of ended bare flows, sent first */
	uint64_t due; /* time of its next event, or NEVER */
	uint64_t deadline; /* next deadline of the NIC's timers, as of its last round */
	uint64_t timer; /* time of the next timer event, or NEVER; if before the deadline, it is armed again */
	uint64_t write_back_at; /* of its device, or NEVER */
	uint8_t *bare; /* queue pairs of bare flows by the low bits of their numbers, or NULL */
	struct fabric_telemetry *echoes; /* telemetry of the last request, by the same index, or NULL */
	uint64_t rx_bytes, tx_bytes; /* since the caller read them */
	uint32_t port, actor, timer_actor;
	uint32_t silent, full_rounds, turns;
	uint8_t owes; /* Python has work to do before QPs are scheduled */
	uint8_t stale; /* Python must be asked again: it was called, or has rung a doorbell since */
	uint8_t told; /* its completions may have changed */
	uint8_t has_qps;
	uint8_t priorities; /* priorities of its flows, a bit for each */
};

/* Event and its time. */
struct fabric_event {
	uint64_t time, key; /* order and actor */
};
#define FABRIC_ACTOR_BITS 24u

struct fabric_actor {
	uint32_t kind, index;
};

/* Callbacks to Python. Each returns 0, or -1 to end the run. */
struct fabric_calls {
	int (*act)(void *self, uint32_t actor);
	int (*told)(void *self, uint32_t host, struct engine_stop_info *told);
	int (*packet)(void *self, uint32_t host, const struct fabric_packet *packet);
	int (*turn)(void *self, uint32_t host, struct engine_stop_info *told);
	int (*prepare)(void *self, uint32_t host, int *sent);
	int (*timer)(void *self, uint32_t host, uint64_t record);
	int (*write_back)(void *self, uint32_t host);
	int (*look)(void *self, uint32_t host); /* get work for the host */
	int (*after)(void *self, uint32_t host);
	int (*draw)(void *self, struct fabric_draws *draws);
	int (*tap)(void *self, uint32_t port, const struct fabric_packet *packet);
};

struct fabric {
	uint64_t now, events, entered;
	uint64_t calls; /* number of calls to Python that may have changed anything */
	struct fabric_event *heap;
	struct fabric_actor *actors;
	struct fabric_packet *packets;
	struct fabric_port *ports;
	struct fabric_switch *switches;
	struct fabric_host *hosts;
	uint32_t heap_count, heap_room, actor_count, actor_room, packet_count, packet_room, port_count, port_room;
	uint32_t switch_count, switch_room, host_count, host_room;
	uint32_t spare; /* free list of packets */
	uint32_t failed; /* out of memory, or a callback failed */
	uint8_t control; /* priority of ACKs and CNPs */
	uint8_t burst; /* packets that a NIC makes at a time */
	const struct fabric_calls *to;
	void *self;
	struct engine_sending sending;
	struct engine_out out;
	uint8_t *scratch; /* a packet for the engine, zeros after its header */
	uint32_t measures, telemetry_room; /* packets carry telemetry */
	struct fabric_telemetry *telemetry; /* by packet */
	const struct fabric_telemetry *arrived; /* telemetry of the response that a host is processing, or NULL */
};

/* Limits of a fabric and its hosts (rnic.sim.host). */
#define FABRIC_ROOM 2u
#define FABRIC_BURST 64u
#define FABRIC_ROUNDS 64u
#define FABRIC_OUT_BYTES ((FABRIC_BURST + 4u * ENGINE_MIN_REPLIES) * 4160u)
#define FABRIC_SCRATCH 8192u
#define FABRIC_NET 0x0A000000u /* address of host n: this + n + 1 */

enum fabric_kind { FABRIC_PYTHON, FABRIC_PORT_FREE, FABRIC_PORT_WIRE, FABRIC_PORT_SIGNAL, FABRIC_HOST, FABRIC_TIMER };

/* Add an object. Return its number, or FABRIC_NONE without memory. */
uint32_t fabric_actor_add(struct fabric *fabric, enum fabric_kind kind, uint32_t index);
uint32_t fabric_port_add(struct fabric *fabric);
uint32_t fabric_switch_add(struct fabric *fabric, uint32_t links, uint32_t hosts);
uint32_t fabric_host_add(struct fabric *fabric);
/* Add a port to a host's ways. Returns 0, or -1 without memory. */
int fabric_way_add(struct fabric_switch *owner, uint32_t host, uint32_t port);
/* Give a host the same ways as another. */
void fabric_way_share(struct fabric_switch *owner, uint32_t host, uint32_t other);
void fabric_free(struct fabric *fabric);

/* Schedule an actor at a time. */
void fabric_at(struct fabric *fabric, uint64_t time, uint32_t actor);
/* Run up to `count` events, none later than `end`, until Python is called or none is left. Returns their number. */
uint64_t fabric_run(struct fabric *fabric, uint64_t count, uint64_t end);

void fabric_queue_append(struct fabric *fabric, struct fabric_queue *queue, uint32_t packet);
uint32_t fabric_queue_take(struct fabric *fabric, struct fabric_queue *queue);
/* Make a packet from its first bytes, `header`. Returns its number, or FABRIC_NONE. */
uint32_t fabric_packet_make(struct fabric *fabric, const uint8_t *header, uint64_t length,
			    const struct engine_flow *flow, uint8_t tclass);
void fabric_packet_drop(struct fabric *fabric, uint32_t packet);
/* Write a complete packet to `bytes`, which has room for `length`. */
void fabric_packet_whole(const struct fabric_packet *packet, uint8_t *bytes);

void fabric_port_put(struct fabric *fabric, uint32_t port, uint32_t packet);
void fabric_port_stop(struct fabric *fabric, uint32_t port, unsigned priority, int stop);
void fabric_port_pause(struct fabric *fabric, uint32_t port, unsigned priority);
void fabric_switch_arrive(struct fabric *fabric, uint32_t owner, uint32_t packet, uint32_t ingress);
void fabric_switch_left(struct fabric *fabric, struct fabric_switch *owner, const struct fabric_packet *packet);

/* sim/native/hosts.c */
void fabric_host_act(struct fabric *fabric, uint32_t host);
void fabric_host_timed(struct fabric *fabric, uint32_t host);
void fabric_host_arrive(struct fabric *fabric, uint32_t host, uint32_t packet);
void fabric_host_left(struct fabric *fabric, uint32_t host);
void fabric_host_wake(struct fabric *fabric, uint32_t host, uint64_t time);

/* ------------------------------------------------------------------ bare flows (sim/native/bare.c) */

/* A queue pair in its state just after connecting, and its place in the arena of a host. */
struct fabric_pattern {
	const uint8_t *record, *context;
	uint64_t entries, signal_all;
};
struct fabric_place {
	uint64_t record, context, slots; /* offsets: the record, the QPC, then the ring and send WQEs or the replies */
	uint64_t program_record, turn, peer_record, path;
	uint32_t number, remote, target; /* its QPN, its peer's, the host of the peer */
	uint32_t pd, cqn;
	uint16_t source_port, target_port;
	uint8_t *shared; /* slots that stay empty, and a queue block */
	struct engine_cq *cq;
};
/* Return the size in bytes of the slots of a sender with these entries, of a receiver, and of the shared part. */
uint64_t fabric_sender_bytes(const struct fabric_pattern *pattern);
uint64_t fabric_receiver_bytes(void);
uint64_t fabric_shared_bytes(void);

/* Make a bare flow's queue pair as a copy of a pattern, scheduled as if it had just been connected. */
void fabric_bare_make(struct fabric *fabric, uint32_t host, struct engine_qp *qp, const struct fabric_pattern *pattern,
		      const struct fabric_place *place, int sends);
/* Post one WRITE. */
void fabric_bare_write(struct fabric *fabric, uint32_t host, struct engine_qp *qp, const uint8_t *descriptor,
		       uint64_t size, uint64_t from, uint32_t lkey, uint64_t to, uint32_t rkey);
/* Destroy a queue pair; the ACKs that it owes are sent. */
void fabric_bare_end(struct fabric *fabric, uint32_t host, struct engine_qp *qp);
/* Write the engine's path record from a host to another. */
void fabric_bare_path(struct fabric *fabric, uint32_t host, uint64_t place, uint32_t target, uint8_t tclass);
/* Return the traffic class of a queue pair's packets. */
uint8_t fabric_tclass(const struct fabric_host *host, const struct engine_qp *qp);
/* Return the expected PSN of a queue pair. */
uint32_t fabric_bare_expected(const struct engine_qp *qp);

#endif

/* A network of NICs in virtual time: links, switches, and what happens when (rnic.sim is the truth, event for event).
 *
 * Packets are headers and lengths: links in here lose packets and mark them, but change none, so that payload bytes and
 * ICRCs of the engine's packets are neither made nor looked at (`bare` in engine_shared). Who looks at one gets it whole:
 * zeros as payload, with the right ICRC. Unlike the rest of the engine this allocates: its pools grow. */
#ifndef RNIC_ENGINE_FABRIC_H
#define RNIC_ENGINE_FABRIC_H

#include "device/device.h"

#define FABRIC_NONE UINT32_MAX
#define FABRIC_HEADER 44u
#define FABRIC_DRAWS 64u

/* A packet on its way. */
struct fabric_packet {
	uint32_t next; /* in whatever queue it is in */
	uint32_t wire; /* bytes on the wire */
	uint32_t way; /* the hash that ECMP goes by */
	uint32_t source, target; /* hosts */
	uint16_t source_port, target_port;
	uint16_t length; /* of the UDP payload */
	uint16_t ingress; /* of the switch that holds it */
	uint8_t tclass;
	uint8_t ce;
	uint8_t in_headroom;
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
	struct fabric_draws *draws; /* where there is loss */
	struct fabric_queue queue, wire;
	uint32_t peer;
	uint32_t owner; /* host or switch */
	uint32_t number; /* at its switch, or FABRIC_NONE at a host */
	uint32_t free_actor, wire_actor, signal_actor;
	uint32_t signals; /* PFC frames on their way to the other end; every other one says stop */
	uint8_t next_signal;
	uint8_t busy, paused, tapped, recorded;
	uint64_t *stops;
	uint32_t stop_count, stop_room;
};

/* One link of a switch. */
struct fabric_ingress {
	uint64_t held, in_headroom;
	uint32_t port;
	uint8_t pausing;
};

struct fabric_ways {
	uint32_t first, count; /* in `ways` */
};

/* rnic.sim.switch */
struct fabric_switch {
	uint64_t buffer_bytes, kmin_bytes, kmax_bytes, xoff_bytes, xon_bytes, headroom_bytes;
	double pmax;
	uint64_t dropped, peak_bytes, held, in_headroom;
	struct fabric_draws *draws; /* where it marks */
	struct fabric_ingress *links;
	struct fabric_ways *routes; /* by host */
	uint32_t *ways; /* ports */
	uint32_t link_count, way_count, way_room;
	uint32_t salt;
};

/* A NIC at its link: rnic.sim.host. */
struct fabric_host {
	struct engine_device *device;
	const struct completion_queue *cq; /* the only one that it has, or NULL */
	uint64_t cq_tail; /* as it was when somebody looked */
	struct fabric_queue inbox;
	struct fabric_queue words; /* of bare flows that are over: they go first */
	uint64_t due; /* when it acts, or NEVER */
	uint64_t write_back_at; /* of its device, or NEVER */
	uint8_t *bare; /* by the low bits of their numbers: queue pairs of bare flows, or NULL */
	uint64_t rx_bytes, tx_bytes; /* since the caller took them */
	uint32_t port, actor;
	uint32_t silent, full_rounds, turns;
	uint8_t owes; /* Python has something to do before turns are taken */
	uint8_t stale; /* Python is to be asked for these: it was called, or has rung since */
	uint8_t told; /* its completions may have changed */
	uint8_t has_qps;
};

/* What happens and when. */
struct fabric_event {
	uint64_t time, key; /* order and actor */
};
#define FABRIC_ACTOR_BITS 24u

struct fabric_actor {
	uint32_t kind, index;
};

/* What the fabric leaves to Python. Each returns 0, or -1: the run ends. */
struct fabric_calls {
	int (*act)(void *self, uint32_t actor);
	int (*told)(void *self, uint32_t host, struct engine_stop_info *told);
	int (*packet)(void *self, uint32_t host, const struct fabric_packet *packet);
	int (*turn)(void *self, uint32_t host, struct engine_stop_info *told);
	int (*prepare)(void *self, uint32_t host, int *sent);
	int (*timer)(void *self, uint32_t host, uint64_t record);
	int (*write_back)(void *self, uint32_t host);
	int (*look)(void *self, uint32_t host); /* what it has for the host to do */
	int (*after)(void *self, uint32_t host);
	int (*draw)(void *self, struct fabric_draws *draws);
	int (*tap)(void *self, uint32_t port, const struct fabric_packet *packet);
};

struct fabric {
	uint64_t now, events, entered;
	uint64_t calls; /* how often Python was called that may have changed anything */
	struct fabric_event *heap;
	struct fabric_actor *actors;
	struct fabric_packet *packets;
	struct fabric_port *ports;
	struct fabric_switch *switches;
	struct fabric_host *hosts;
	uint32_t heap_count, heap_room, actor_count, actor_room, packet_count, packet_room, port_count, port_room;
	uint32_t switch_count, switch_room, host_count, host_room;
	uint32_t spare; /* packets that are not in use */
	uint32_t failed; /* no memory, or Python said so */
	uint8_t tclass; /* of what the engine sends */
	const struct fabric_calls *to;
	void *self;
	struct engine_sending sending;
	struct engine_out out;
	uint8_t *scratch; /* a packet for the engine, zeros behind its header */
};

/* What is measured by: rnic.sim.host */
#define FABRIC_ROOM 2u
#define FABRIC_BURST 64u
#define FABRIC_ROUNDS 64u
#define FABRIC_OUT_BYTES ((FABRIC_BURST + 4u * ENGINE_MIN_REPLIES) * 4160u)
#define FABRIC_SCRATCH 8192u
#define FABRIC_NET 0x0A000000u /* host n has the address this + n + 1 */

enum fabric_kind { FABRIC_PYTHON, FABRIC_PORT_FREE, FABRIC_PORT_WIRE, FABRIC_PORT_SIGNAL, FABRIC_HOST };

/* Numbers of new things, or FABRIC_NONE without memory. */
uint32_t fabric_actor_add(struct fabric *fabric, enum fabric_kind kind, uint32_t index);
uint32_t fabric_port_add(struct fabric *fabric);
uint32_t fabric_switch_add(struct fabric *fabric, uint32_t links, uint32_t hosts);
uint32_t fabric_host_add(struct fabric *fabric);
/* 0, or -1 without memory. */
int fabric_way_add(struct fabric_switch *owner, uint32_t host, uint32_t port);
/* A host's ways are another's. */
void fabric_way_share(struct fabric_switch *owner, uint32_t host, uint32_t other);
void fabric_free(struct fabric *fabric);

/* An actor acts at a time. */
void fabric_at(struct fabric *fabric, uint64_t time, uint32_t actor);
/* Things happen, at most `count`, none later than `end`, until Python was called or there is nothing more; how many. */
uint64_t fabric_run(struct fabric *fabric, uint64_t count, uint64_t end);

void fabric_queue_append(struct fabric *fabric, struct fabric_queue *queue, uint32_t packet);
uint32_t fabric_queue_take(struct fabric *fabric, struct fabric_queue *queue);
/* A packet of which `header` is the beginning, or FABRIC_NONE. */
uint32_t fabric_packet_make(struct fabric *fabric, const uint8_t *header, uint64_t length,
			    const struct engine_flow *flow, uint8_t tclass);
void fabric_packet_drop(struct fabric *fabric, uint32_t packet);
/* A packet whole; `bytes` has room for `length`. */
void fabric_packet_whole(const struct fabric_packet *packet, uint8_t *bytes);

void fabric_port_put(struct fabric *fabric, uint32_t port, uint32_t packet);
void fabric_port_stop(struct fabric *fabric, uint32_t port, int stop);
void fabric_port_pause(struct fabric *fabric, uint32_t port, int stop);
void fabric_switch_arrive(struct fabric *fabric, uint32_t owner, uint32_t packet, uint32_t ingress);
void fabric_switch_left(struct fabric *fabric, struct fabric_switch *owner, const struct fabric_packet *packet);

/* sim/native/hosts.c */
void fabric_host_act(struct fabric *fabric, uint32_t host);
void fabric_host_arrive(struct fabric *fabric, uint32_t host, uint32_t packet);
void fabric_host_left(struct fabric *fabric, uint32_t host);
void fabric_host_wake(struct fabric *fabric, uint32_t host, uint64_t time);

/* ------------------------------------------------------------------ bare flows (sim/native/bare.c) */

/* What a queue pair is when it has just been connected, and where a new one of a host lies in its arena. */
struct fabric_pattern {
	const uint8_t *record, *context;
	uint64_t entries, signal_all;
};
struct fabric_place {
	uint64_t record, context,
		slots; /* offsets: the record, the QPC, behind it the ring and send WQEs or the replies */
	uint64_t program_record, turn, peer_record, path;
	uint32_t number, remote, target; /* its own, its peer's, the host that it leads to */
	uint32_t pd, cqn;
	uint16_t source_port, target_port;
	struct engine_rate_limit *pace; /* of this queue pair */
	uint8_t *shared; /* runs of slots that nothing comes to lie in, and a queue block */
	struct engine_cq *cq;
};
/* Bytes of the slots of a sender with so many entries of so many bytes, of a receiver, and of what all share. */
uint64_t fabric_sender_bytes(const struct fabric_pattern *pattern);
uint64_t fabric_receiver_bytes(void);
uint64_t fabric_shared_bytes(void);

/* A queue pair like another, of a bare flow: the engine's alone, and scheduled as it is when it is connected. */
void fabric_bare_make(struct fabric *fabric, uint32_t host, struct engine_qp *qp, const struct fabric_pattern *pattern,
		      const struct fabric_place *place, int sends);
/* Post one WRITE. */
void fabric_bare_write(struct fabric *fabric, uint32_t host, struct engine_qp *qp, const uint8_t *descriptor,
		       uint64_t size, uint64_t from, uint32_t lkey, uint64_t to, uint32_t rkey);
/* It is no more; the ACKs that it owes are sent. */
void fabric_bare_end(struct fabric *fabric, uint32_t host, struct engine_qp *qp);
/* The path from a host to another, as the engine sees it. */
void fabric_bare_path(struct fabric *fabric, uint32_t host, uint64_t place, uint32_t target);
/* The PSN that it expects. */
uint32_t fabric_bare_expected(const struct engine_qp *qp);

#endif

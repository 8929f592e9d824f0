/* The in-flight budget: limits on packets in flight, per peer and in total, and the queue pairs that wait for room
 * (transport/inflight.py). */
#ifndef RNIC_ENGINE_INFLIGHT_H
#define RNIC_ENGINE_INFLIGHT_H

#include "device/records.h"

/* Packets that may be in flight to a peer and in total, considering other programs of the device. */
struct engine_limits {
	uint64_t peer, nic;
	uint64_t others; /* other slots that have packets in flight or wait for room */
};
void engine_inflight_limits(const struct engine_sched *sched, const struct peer *peer, struct engine_limits *limits);
/* Add `packets` to those in flight to a peer; `own` of them were promised. */
void engine_inflight_take(const struct engine_sched *sched, struct peer *peer, uint64_t packets, uint64_t own);
/* Subtract `packets`, and give turns to queue pairs that wait for room. */
void engine_inflight_release(const struct engine_sched *sched, struct peer *peer, uint64_t packets);
/* Queue a queue pair for room in flight. Returns 0, or -1 with nothing changed if it needs a line and none is free. */
int engine_inflight_wait(const struct engine_sched *sched, uint64_t qp);
/* Remove a waiting queue pair, and revoke its promised packets. */
void engine_inflight_leave(const struct engine_sched *sched, uint64_t qp);
/* After a turn of a queue pair, give its unused promised packets to others. */
void engine_inflight_turn_over(const struct engine_sched *sched, uint64_t qp);
/* Note a measured round trip. */
void engine_peer_measured(struct peer *peer, uint64_t sample, uint64_t now);
/* Note acknowledged packets: the limit may grow. */
void engine_peer_acknowledged(struct peer *peer, uint64_t packets);
/* Note a lost packet. */
void engine_peer_lost(struct peer *peer, uint64_t now);
/* Note an ACK timeout without any packet from the peer. */
void engine_peer_silent(struct peer *peer, uint64_t now);

#endif

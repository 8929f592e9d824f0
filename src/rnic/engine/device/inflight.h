/* The in-flight budget: how many packets may be in flight, to each peer and in all, and who waits for room
 * (transport/inflight.py). */
#ifndef RNIC_ENGINE_INFLIGHT_H
#define RNIC_ENGINE_INFLIGHT_H

#include "device/records.h"

/* Packets that may be in flight to a peer and in all, as what others of the device have there leaves room. */
struct engine_limits {
	uint64_t peer, nic;
	uint64_t others; /* slots that have packets in flight as well, or wait for room */
};
void engine_inflight_limits(const struct engine_sched *sched, const struct peer *peer, struct engine_limits *limits);
/* `packets` more are in flight to a peer, of which `own` had been promised. */
void engine_inflight_take(const struct engine_sched *sched, struct peer *peer, uint64_t packets, uint64_t own);
/* `packets` fewer are; who waits is given turns. */
void engine_inflight_release(const struct engine_sched *sched, struct peer *peer, uint64_t packets);
/* No room: a queue pair waits in line. 0, or -1 where it would need a line and none is spare: nothing has changed. */
int engine_inflight_wait(const struct engine_sched *sched, uint64_t qp);
/* A queue pair waits no more, and was promised nothing. */
void engine_inflight_leave(const struct engine_sched *sched, uint64_t qp);
/* A queue pair has had a turn: what it was promised and did not take is for others. */
void engine_inflight_turn_over(const struct engine_sched *sched, uint64_t qp);
/* A round trip was measured. */
void engine_peer_measured(struct peer *peer, uint64_t sample, uint64_t now);
/* Packets arrived: more may be in flight. */
void engine_peer_acknowledged(struct peer *peer, uint64_t packets);
/* A packet was lost. */
void engine_peer_lost(struct peer *peer, uint64_t now);
/* Nothing came for an ACK timeout. */
void engine_peer_silent(struct peer *peer, uint64_t now);

#endif

/* Where the records, rings and queue blocks of queue pairs lie in this process, found anew whenever the NIC process may
 * have moved them. */
#ifndef RNIC_ENGINE_ARENA_MAP_H
#define RNIC_ENGINE_ARENA_MAP_H

#include "bypass/bypass_private.h"

/* A queue pair with all that its pointers lead to. */
struct place {
	struct engine_qp qp;
	struct engine_cq send_cq, recv_cq;
	struct tx_path path;
	struct leads *leads; /* of one that sends datagrams */
	struct shm_loopback_path lane; /* of one whose peer is a program of the same device */
};

/* Where datagrams went lately. */
struct leads {
	struct engine_destination destinations[ENGINE_DESTINATIONS];
	struct tx_path paths[ENGINE_DESTINATIONS];
};

/* Whoever held the arena before may have moved things. */
void bypass_arena_changed(struct bypass *bypass);
/* Find all that the pointers of a queue pair lead to. */
void bypass_map_qp(struct bypass *bypass, uint64_t at);
/* Find where the next datagram of a queue pair goes; 0, or -1 where the NIC process has to look. */
int bypass_map_destination(struct bypass *bypass, struct place *place);
/* The path of a flow with these fields of its headers. */
void bypass_set_path(struct bypass *bypass, struct tx_path *path, const struct engine_flow *flow, uint64_t flow_label,
		 uint64_t tclass, uint64_t hop_limit, uint32_t max_segments);
/* Where a packet came from, by the sender's raw socket address; 0, or -1 for none that the device's packets have. */
int bypass_flow_of(const struct bypass *bypass, const uint8_t *name, uint32_t name_bytes, struct engine_flow *flow);

#endif

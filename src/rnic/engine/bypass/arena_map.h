/* Addresses, in this process, of the records, rings and queue blocks of queue pairs. They are looked up again whenever
 * the NIC process may have moved them. */
#ifndef RNIC_ENGINE_ARENA_MAP_H
#define RNIC_ENGINE_ARENA_MAP_H

#include "bypass/bypass_private.h"

/* A queue pair and the targets of its pointers. */
struct mapped_qp {
	struct engine_qp qp;
	struct engine_cq send_cq, recv_cq;
	struct tx_path path;
	struct destination_cache *destination_cache; /* of a UD queue pair */
	struct shm_loopback_path peer_path; /* if the peer is a program of the same device */
};

/* Destinations of recent datagrams. */
struct destination_cache {
	struct engine_destination destinations[ENGINE_DESTINATIONS];
	struct tx_path paths[ENGINE_DESTINATIONS];
};

/* Map the queue pairs again if the arena changed, since its last holder may have moved records. */
void bypass_arena_changed(struct bypass *bypass);
/* Look up the targets of all pointers of a queue pair. */
void bypass_map_qp(struct bypass *bypass, uint64_t at);
/* Find the destination of a queue pair's next datagram; 0, or -1 if the NIC process must. */
int bypass_map_destination(struct bypass *bypass, struct mapped_qp *mapped);
/* Return the interface of a socket's local address if that has link scope, else 0. */
uint32_t bypass_scope_of(int fd);
/* Set the path of a flow with these fields in its headers. */
void bypass_set_path(struct bypass *bypass, struct tx_path *path, const struct engine_flow *flow, uint64_t flow_label,
		     uint64_t tclass, uint64_t hop_limit, uint64_t priority, uint32_t max_segments);
/* Find the flow of a packet by its sender's raw socket address; 0, or -1 for an address of another family. */
int bypass_flow_of(const struct bypass *bypass, const uint8_t *name, uint32_t name_bytes, struct engine_flow *flow);

#endif

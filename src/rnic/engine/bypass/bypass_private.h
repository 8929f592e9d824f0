/* What the files of a slot's engine share (bypass/bypass.h). */
#ifndef RNIC_ENGINE_BYPASS_PARTS_H
#define RNIC_ENGINE_BYPASS_PARTS_H

#include "bypass/bypass.h"
#include "bypass/shm_loopback.h"
#include "queue_pair/datagram.h"
#include "queue_pair/icrc.h"
#include "memory/backends.h"
#include "io/poll.h"

#include <pthread.h>
#include <stdatomic.h>

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

struct bypass {
	struct bypass_setup setup;
	struct slot *slot;
	struct engine_shared port;
	struct engine_device device;
	struct engine_segment segment;
	struct own_process own;
	struct engine_prefetch ahead;
	struct engine_icrc_cache heads[ENGINE_ICRC_CACHE];
	struct engine_mapping *reach;
	struct place **places;
	struct tx_socket outlet;
	struct io_poll *round;
	struct shm_loopback *hairpin; /* NULL for who did not ask for it */
	uint8_t *out;
	pthread_mutex_t mutex; /* among the program's own threads */
	uint64_t posted_ns, came_ns; /* when the program sent last, when packets came last, */
	uint64_t hold_ns; /* and how long they may wait for an answer */
	uint32_t answers; /* messages of the program's in a row before whose next one came a message from elsewhere, */
	int answered; /* and whether one came since the last */
	int guarded; /* faults are caught: the program's memory is copied without system calls */
	int gone; /* nobody answers any more */
	int timed; /* deadlines were handled */
	int took_time; /* bypass_took_time */
	uint32_t full; /* rounds in a row that found as much as one takes */
};

static inline const struct device *bypass_root(const struct bypass *bypass)
{
	return (const struct device *)(const void *)bypass->setup.arena;
}

static inline _Atomic uint64_t *bypass_word(uint64_t *field)
{
	return (_Atomic uint64_t *)(void *)field;
}

static inline _Atomic uint32_t *bypass_block(const struct bypass *bypass, uint64_t block)
{
	return (_Atomic uint32_t *)(void *)(bypass->setup.blocks + (block << BLOCK_SHIFT));
}

/* ------------------------------------------------------------------ bypass/arena_map.c */

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

/* ------------------------------------------------------------------ bypass/punt.c */

/* Ask the NIC process for it, counted by `reason`. */
void bypass_punt_to_nic(struct bypass *bypass, const struct bypass_punt *punted, struct bypass_answer *answer, uint64_t *reason);
/* Do what a round stopped for; 0, or -1 where nobody answers. */
int bypass_handle_stop(struct bypass *bypass, const struct engine_stop_info *told);

#endif

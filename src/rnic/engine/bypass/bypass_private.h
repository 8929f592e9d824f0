/* The state of a slot's engine, which its files share (bypass/bypass.h). */
#ifndef RNIC_ENGINE_BYPASS_PRIVATE_H
#define RNIC_ENGINE_BYPASS_PRIVATE_H

#include "bypass/bypass.h"
#include "bypass/shm_loopback.h"
#include "io/poll.h"
#include "memory/backends.h"
#include "queue_pair/parts.h"

#include <pthread.h>
#include <stdatomic.h>

struct place;

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

#endif

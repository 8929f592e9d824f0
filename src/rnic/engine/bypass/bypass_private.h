/* The state of a program's engine, which the files of bypass/ share (bypass/bypass.h). */
#ifndef RNIC_ENGINE_BYPASS_PRIVATE_H
#define RNIC_ENGINE_BYPASS_PRIVATE_H

#include "bypass/bypass.h"
#include "bypass/shm_loopback.h"
#include "queue_pair/datagram.h"
#include "queue_pair/icrc.h"
#include "memory/backends.h"
#include "io/poll.h"
#include "memory/backends.h"

#include <pthread.h>
#include <stdatomic.h>

struct bypass {
	struct bypass_setup setup;
	struct slot *slot;
	struct engine_shared shared;
	struct engine_device device;
	struct engine_segment segment;
	struct own_process own;
	struct engine_prefetch prefetch;
	struct engine_icrc_cache icrc_cache[ENGINE_ICRC_CACHE];
	struct engine_mapping *reach;
	struct mapped_qp **mapped_qps;
	struct tx_socket
		sources[ATTACH_MAX_SOURCE_PORTS]; /* of setup.source_ports; without a descriptor until it is used */
	uint32_t scope; /* the interface of the address, if that is of link scope; else 0 */
	int uses_levels; /* a service level other than 0 was used: the NIC process may have set the socket's priority */
	struct io_poll *round;
	struct faults faults;
	struct capture capture;
	struct shm_loopback *shm; /* NULL if the program did not enable it */
	uint8_t *out;
	pthread_mutex_t mutex; /* among the program's own threads */
	uint64_t posted_ns, received_ns; /* times of the last send and of the last received packets */
	uint64_t hold_ns; /* longest wait of replies to these packets for the program's next message */
	uint32_t answers_in_row; /* consecutive messages of the program that were answered before its next one */
	int answered; /* a message was received since the program's last one */
	int guarded; /* faults are caught, so the program's memory is accessed without system calls */
	int gone; /* the NIC process has gone */
	int timers_ran; /* deadlines were handled */
	int took_time; /* bypass_took_time */
	uint32_t backlog; /* consecutive rounds with possibly more input, partial ones counted as POLL_PARTIAL_ROUND */
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

/* An opened device: its connection to the NIC process, its window of registers, and the objects that it owns. */
#ifndef RNIC_CONTEXT_H
#define RNIC_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "events.h"
#include "layout.h"
#include "ring_memory.h"
#include "rnic_hw.h"
#include "verbs_abi.h"

struct on_command;
struct rnic_qp;
struct rnic_cq;
struct rnic_srq;

struct rnic_context {
	struct verbs_context verbs;
	struct rnic_context *next; /* list of all, for fork */
	struct own_fd socket;
	bool dead; /* inherited, in a forked child; or the NIC process is gone */
	pthread_mutex_t command_lock;
	uint32_t token;
	int nic_pid;
	pthread_mutex_t lock; /* tables and lists */
	size_t dm_bytes; /* device memory in use */
	uint32_t dm_count; /* allocations of it so far */
	uint8_t *window;
	size_t window_bytes;
	volatile _Atomic uint8_t *rung;
	uint8_t *blocks;
	_Atomic uint32_t *asleep;
	struct own_fd wake_fd, cmd_fd;
	_Atomic bool
		fatal; /* the program has closed the device's descriptors, and no IBV_EVENT_DEVICE_FATAL says so yet */
	uint8_t limits[RNIC_DEV_LIM_SIZE], adapter[RNIC_ADAPTER_SIZE]; /* as last read */
	bool adapter_read, forked; /* whether it was read; whether the context is a parent's */
	struct event_queue async;
	struct rnic_qp **qps; /* by the low bits of the number */
	struct rnic_cq **cqs;
	struct rnic_srq **srqs;
	uint32_t qp_mask, cq_mask, srq_mask;
	struct copier *copier;
	struct ring_store rings;
	uint32_t yield_after; /* consecutive empty polls; the NIC process may need this core */
	bool yields_always; /* in all threads */
	pthread_t opener; /* the thread that opened it */
	_Atomic bool shared; /* another one polls */
	struct on_command *on_command; /* rules of a fault script, NULL if there are none for the library */
	struct bypass_driver *slot; /* the engine in this process; NULL if the NIC process runs the data path */
};

static inline struct rnic_context *context_of(struct ibv_context *context)
{
	return (struct rnic_context *)verbs_get_ctx(context);
}

/* Read one of the device's limits, a field of DEV_LIM. */
static inline uint32_t dev_lim(const struct rnic_context *context, unsigned at, unsigned unit, unsigned lsb,
			       unsigned width)
{
	return (uint32_t)rnic_get_be(context->limits, at, unit, lsb, width);
}

/* Return the index of the GID of the device's own address, the source of its packets. */
static inline uint32_t own_gid_index(const struct rnic_context *context)
{
	return dev_lim(context, RNIC_DEV_LIM_OWN_GID);
}

/* Return whether a GID is of RoCE v1: packets cannot be sent from it. */
static inline bool gid_is_v1(const struct rnic_context *context, uint32_t index)
{
	return dev_lim(context, RNIC_DEV_LIM_GIDS_OF_V1) >> index & 1;
}

static inline const uint8_t *gid_at(const struct rnic_context *context, uint32_t index)
{
	return context->limits + RNIC_DEV_LIM_GID0_AT + 16 * index;
}

static inline const uint8_t *own_gid(const struct rnic_context *context)
{
	return gid_at(context, own_gid_index(context));
}

#endif

/* Registers of queue blocks, and the doorbell. */
#ifndef RNIC_DOORBELL_H
#define RNIC_DOORBELL_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "bypass/driver.h"
#include "cmd.h"
#include "context.h"

static inline _Atomic uint32_t *queue_reg(const struct rnic_context *context, uint32_t block, uint32_t offset)
{
	return (_Atomic uint32_t *)(void *)(context->blocks + ((size_t)block << RNIC_REG_BLOCK_SHIFT) + offset);
}

static inline void queue_reg_store(const struct rnic_context *context, uint32_t block, uint32_t offset, uint32_t value)
{
	atomic_store_explicit(queue_reg(context, block, offset), value, memory_order_release);
}

/* Notify the NIC of a store to a doorbell register of this block; `number` is its queue pair's, or 0. */
static inline void ring_doorbell(struct rnic_context *context, uint32_t number, uint32_t block)
{
	if ((!context->slot || !driver_ring(context->slot, number, block)) &&
	    driver_ring_doorbell(context->rung, context->asleep, &context->wake_fd, block))
		nic_lost(context);
}

#endif

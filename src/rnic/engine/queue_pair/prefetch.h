/* Payloads and messages that are moved several at a time, before the turn of each: where memory lies behind a system
 * call, calls cost more than bytes. What is read for packets to come is memory/memory_key.h's. */
#ifndef RNIC_ENGINE_PREFETCH_H
#define RNIC_ENGINE_PREFETCH_H

#include "engine.h"

/* Store the payloads of packets from `at` on that come in order and are allowed, as far as that can be seen ahead. */
void engine_prefetch_store(const struct engine_shared *shared, const struct engine_qp *qp, const uint8_t *buffer,
			   size_t length, size_t segment, size_t at, const struct engine_meta *meta);
/* Read the bytes of up to `most` short messages that wait in the send ring. */
void engine_prefetch_fetch(const struct engine_shared *shared, const struct engine_qp *qp, uint64_t most);
/* Return the bytes of a message if they were read, or NULL. */
const uint8_t *engine_prefetch_fetched(struct engine_prefetch *prefetch, const struct send_wqe *wqe, uint64_t index);

#endif

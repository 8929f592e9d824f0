/* Batched copies of payloads and messages, before each is processed: if accesses to memory are system calls, calls cost
 * more than bytes. Reading ahead for future packets is in memory/memory_key.h. */
#ifndef RNIC_ENGINE_PREFETCH_H
#define RNIC_ENGINE_PREFETCH_H

#include "engine.h"

/* Store the payloads of in-order, permitted packets from `at` on, as far as this can be predicted. */
void engine_prefetch_store(const struct engine_shared *shared, const struct engine_qp *qp, const uint8_t *buffer,
			   size_t length, size_t segment, size_t at, const struct engine_meta *meta);
/* Read the payloads of up to `most` short messages that wait in the send ring. */
void engine_prefetch_fetch(const struct engine_shared *shared, const struct engine_qp *qp, uint64_t most);
/* Return the payload of a message if it was read, or NULL. */
const uint8_t *engine_prefetch_fetched(struct engine_prefetch *prefetch, const struct send_wqe *wqe, uint64_t index);

#endif

/* Split a buffer of segments into packets, and pass each to requester or responder. */
#ifndef RNIC_ENGINE_DISPATCH_H
#define RNIC_ENGINE_DISPATCH_H

#include "engine.h"

/* Continue engine_receive in the buffer of the previous call. `adds_up`: acknowledgments of consecutive responses may
 * be merged. */
size_t engine_receive_on(const struct engine_shared *shared, struct engine_qp *qp, const uint8_t *buffer, size_t length,
			 size_t segment, size_t start, const struct engine_meta *meta,
			 const struct engine_inflight *flight, int adds_up, uint64_t now,
			 struct engine_effects *effects);

#endif

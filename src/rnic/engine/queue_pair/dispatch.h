/* From a buffer of segments to one packet after another, each to its half of the queue pair. */
#ifndef RNIC_ENGINE_DISPATCH_H
#define RNIC_ENGINE_DISPATCH_H

#include "engine.h"

/* engine_receive, continued in the buffer of the call before. `adds_up`: acknowledgments of responses that follow each
 * other may be performed together. */
size_t engine_receive_on(const struct engine_shared *shared, struct engine_qp *qp, const uint8_t *buffer, size_t length,
			 size_t segment, size_t start, const struct engine_meta *meta,
			 const struct engine_inflight *flight, int adds_up, uint64_t now,
			 struct engine_effects *effects);

#endif

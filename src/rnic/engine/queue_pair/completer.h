/* The completer (transport/completer.py). */
#ifndef RNIC_ENGINE_COMPLETER_H
#define RNIC_ENGINE_COMPLETER_H

#include "queue_pair/packet.h"

/* Process one response; ENGINE_DONE, ENGINE_ATTENTION, ENGINE_AGAIN, or a punt with nothing changed. */
enum engine_end engine_response_receive(const struct engine_shared *shared, struct engine_qp *qp,
					const struct packet *packet, const struct engine_inflight *flight, uint64_t now,
					struct engine_effects *effects);
/* Return whether `next`, of at most `size` bytes, is the next expected MIDDLE of a READ response and only acknowledges,
 * like the packet before it: the effects of both can be merged. */
int engine_response_goes_on(const struct engine_qp *qp, const struct engine_effects *effects, const uint8_t *next,
			    size_t size);

#endif

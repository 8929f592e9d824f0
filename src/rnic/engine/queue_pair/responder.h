/* The responder (transport/responder.py). */
#ifndef RNIC_ENGINE_RESPONDER_H
#define RNIC_ENGINE_RESPONDER_H

#include "queue_pair/packet.h"

/* Process one request; ENGINE_DONE, ENGINE_ATTENTION, or a punt with nothing changed. `srtt` is the mean round trip to
 * the peer. */
enum engine_end engine_request_receive(const struct engine_shared *shared, struct engine_qp *qp,
				       const struct packet *packet, uint64_t srtt, uint64_t now,
				       struct engine_effects *effects);

#endif

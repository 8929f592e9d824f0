/* The responder's READs and atomics (transport/responder.py, transport/resources.py). */
#ifndef RNIC_ENGINE_RESPONDER_READS_H
#define RNIC_ENGINE_RESPONDER_READS_H

#include "queue_pair/packet.h"

/* Process a READ or atomic request with the expected PSN, or a duplicate of one, for engine_request_receive. */
enum engine_end engine_read_receive(const struct engine_shared *shared, struct engine_qp *qp,
				    const struct packet *packet, struct engine_effects *effects);
enum engine_end engine_read_duplicate(const struct engine_shared *shared, struct engine_qp *qp,
				      const struct packet *packet, struct engine_effects *effects);

#endif

/* The responder's READs and atomics (transport/responder.py, transport/resources.py). */
#ifndef RNIC_ENGINE_RESPONDER_READS_H
#define RNIC_ENGINE_RESPONDER_READS_H

#include "queue_pair/packet.h"

/* Take a READ or atomic request with the expected PSN, and a duplicate of one; as engine_request_receive, which calls
 * them. */
enum engine_end engine_read_receive(const struct engine_shared *shared, struct engine_qp *qp,
				    const struct packet *packet, struct engine_effects *effects);
enum engine_end engine_read_duplicate(const struct engine_shared *shared, struct engine_qp *qp,
				      const struct packet *packet, struct engine_effects *effects);

#endif

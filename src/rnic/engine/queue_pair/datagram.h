/* Unreliable datagrams (transport/datagram.py). */
#ifndef RNIC_ENGINE_DATAGRAM_H
#define RNIC_ENGINE_DATAGRAM_H

#include "queue_pair/packet.h"
#include "queue_pair/sge.h"

/* Process one datagram; ENGINE_DONE, ENGINE_ATTENTION, or a punt with nothing changed. */
enum engine_end engine_datagram_receive(const struct engine_shared *shared, struct engine_qp *qp,
					const struct packet *packet, struct engine_effects *effects);
/* Return the destination of a datagram, or NULL if it is unknown. */
const struct engine_destination *engine_destination_of(const struct engine_qp *qp, const struct send_wqe *wqe);
/* Send a message of a UD queue pair with payload `sges`; ENGINE_DONE with the number of packets, or a punt. */
enum engine_end engine_datagram_send(const struct engine_shared *shared, struct engine_qp *qp, struct send_wqe *wqe,
				     const struct sge_list *sges, struct engine_out *out, uint64_t *sent);

#endif

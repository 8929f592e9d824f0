/* Split a buffer of segments into packets, and pass each to requester or responder (004 7.3). */
#include "queue_pair/dispatch.h"

#include "memory/memory_key.h"
#include "queue_pair/byteorder.h"
#include "queue_pair/completer.h"
#include "queue_pair/congestion.h"
#include "queue_pair/datagram.h"
#include "queue_pair/packet.h"
#include "queue_pair/prefetch.h"
#include "queue_pair/responder.h"

uint64_t engine_layout_hash(void)
{
	return STATE_LAYOUT_HASH;
}

size_t engine_receive_on(const struct engine_shared *shared, struct engine_qp *qp, const uint8_t *buffer, size_t length,
			 size_t segment, size_t start, const struct engine_meta *meta,
			 const struct engine_inflight *flight, int adds_up, uint64_t now,
			 struct engine_effects *effects)
{
	uint64_t state = be_get(qp->qpc, QPC_STATE), bits = engine_service_bits(qp);
	size_t at = start;

	if (bits == NONE || (state != QP_STATE_RTR && state != QP_STATE_RTS) || !segment) {
		effects->end = PUNT_STATE;
		return 0;
	}
	effects->end = ENGINE_DONE;
	while (at < length) {
		struct packet packet;
		size_t size = length - at < segment ? length - at : segment;
		if (shared->prefetch && size < length - at && !engine_prefetch_stored(shared, buffer + at))
			engine_prefetch_store(shared, qp, buffer, length, segment, at, meta);
		enum engine_end end = engine_packet_parse(qp, meta, buffer, length, segment, at, &packet);
		if (end == ENGINE_DONE) {
			if (bits == SERVICE_UD)
				end = engine_datagram_receive(shared, qp, &packet, effects);
			else if (!(packet.row->flags & ROW_RESPONSE))
				end = engine_request_receive(shared, qp, &packet, flight->srtt, now, effects);
			else if (state == QP_STATE_RTS && engine_congestion_known(shared, qp->record))
				end = engine_response_receive(shared, qp, &packet, flight, now, effects);
			else
				end = PUNT_STATE;
		}
		effects->end = end;
		if (end > ENGINE_ATTENTION || end == ENGINE_AGAIN)
			break;
		at += size;
		effects->packets++;
		if (end == ENGINE_ATTENTION &&
		    !(adds_up && engine_response_goes_on(qp, effects, buffer + at, length - at)))
			break;
	}
	return at - start;
}

size_t engine_receive(const struct engine_shared *shared, struct engine_qp *qp, const uint8_t *buffer, size_t length,
		      size_t segment, size_t start, const struct engine_meta *meta,
		      const struct engine_inflight *flight, uint64_t now, struct engine_effects *effects)
{
	engine_prefetch_forget(shared);
	return engine_receive_on(shared, qp, buffer, length, segment, start, meta, flight, 0, now, effects);
}

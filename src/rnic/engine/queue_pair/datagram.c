/* Unreliable datagrams: one packet per message, a Q_Key instead of a connection (IBA 9.8; 004 "UD RX";
 * transport/datagram.py). The send entry has the path. A table caches recent paths; the reference adds missing ones. */
#include "queue_pair/datagram.h"

#include "queue_pair/bth.h"
#include "queue_pair/completion.h"
#include "queue_pair/context.h"
#include "queue_pair/encap.h"
#include "queue_pair/icrc.h"
#include "queue_pair/message.h"
#include "queue_pair/receive_queue.h"

#define HEADERS (BTH_BYTES + 8u) /* BTH and DETH; an immediate word may follow */
#define GRH_IPV4_AT 20u
#define PROTOCOL_UDP 17u
#define UDP_BYTES 8u
#define IPV4_BYTES 20u
#define QKEY_FROM_QP 0x80000000u

/* ------------------------------------------------------------------ receiving */

/* Fill in the 40 bytes before a receive: an IPv6 header, or 20 zeros and an IPv4 header (A17.4.5.1; wire/ip.py). */
static void fill_grh(uint8_t *to, const struct engine_meta *meta, uint64_t length)
{
	const struct engine_flow *flow = &meta->flow;
	memset(to, 0, GRH_BYTES);
	if (flow->address_bytes == 16) {
		be_store(to, 4, (uint64_t)6 << 28 | (uint64_t)meta->tclass << 20 | meta->flow_label);
		be_store(to + 4, 2, length + UDP_BYTES);
		to[6] = PROTOCOL_UDP;
		to[7] = meta->hop_limit;
		memcpy(to + 8, flow->source, 16);
		memcpy(to + 24, flow->destination, 16);
		return;
	}
	uint8_t *at = to + GRH_IPV4_AT;
	uint64_t sum = 0;
	at[0] = 0x45;
	at[1] = meta->tclass;
	be_store(at + 2, 2, length + UDP_BYTES + IPV4_BYTES);
	be_store(at + 6, 2, DONT_FRAGMENT);
	at[8] = meta->hop_limit;
	at[9] = PROTOCOL_UDP;
	memcpy(at + 12, flow->source, 4);
	memcpy(at + 16, flow->destination, 4);
	for (unsigned i = 0; i < IPV4_BYTES; i += 2)
		sum += be_load(at + i, 2);
	while (sum >> 16)
		sum = (sum & 0xFFFF) + (sum >> 16);
	be_store(at + 10, 2, ~sum & 0xFFFF);
}

enum engine_end engine_datagram_receive(const struct engine_shared *shared, struct engine_qp *qp,
					const struct packet *packet, struct engine_effects *effects)
{
	const uint8_t *deth = packet->bytes + BTH_BYTES;
	int imm = (packet->row->flags & ROW_IMMDT) != 0;
	uint8_t header[GRH_BYTES];
	struct receive receive;
	struct cq_room room;

	if (be_load(deth, 4) != be_get(qp->qpc, QPC_QKEY))
		return PUNT_HEADER;
	if (packet->size > context_mtu(qp->qpc))
		return PUNT_LENGTH;
	enum engine_end end = engine_receive_next(shared, qp, &receive);
	if (end != ENGINE_DONE)
		return end == ENGINE_ATTENTION ? PUNT_REQUEST : end;
	if (receive.bytes < packet->size + GRH_BYTES)
		return PUNT_LENGTH;
	if (!engine_scatter_check(shared, qp, &receive))
		return PUNT_KEY;
	int known = qp->recv_cq && qp->recv_cqn == be_get(qp->qpc, QPC_CQN_RCV);
	if (engine_cq_reserve(known ? qp->recv_cq : NULL, 1, &room))
		return PUNT_CQ;
	if (!engine_packet_check_icrc(shared, packet))
		return PUNT_ICRC;
	fill_grh(header, packet->meta, packet->length);
	if (engine_scatter(shared, qp, &receive, 0, header, GRH_BYTES) ||
	    engine_scatter(shared, qp, &receive, GRH_BYTES, packet->payload, packet->size))
		return PUNT_MEMORY;
	engine_receive_consume(qp, &receive);
	struct completion entry = {
		.index = (uint32_t)receive.index,
		.status = SYN_SUCCESS,
		.length = (uint32_t)(packet->size + GRH_BYTES),
		.word3 = CQE_RECEIVE | CQE_GRH | (imm ? CQE_IMM | WR_SEND_IMM : WR_SEND),
		.wqe_id = (uint32_t)be_load(deth + 5, 3),
		.qpn = (uint32_t)be_get(qp->qpc, QPC_LOCAL_QPN),
	};
	if (imm)
		entry.imm = (uint32_t)be_load(packet->payload - 4, 4);
	if (packet->solicited)
		entry.word3 |= CQE_SOLICITED;
	if (!engine_cq_push(&room, &entry))
		return ENGINE_DONE;
	effects->effects |= EFFECT_NOTIFY_RECV;
	return ENGINE_ATTENTION;
}

/* ------------------------------------------------------------------ sending */

uint64_t engine_destination_place(uint64_t path, const uint64_t gid[2])
{
	uint64_t mixed = (path ^ gid[0] * 0x9E3779B97F4A7C15ull ^ gid[1]) * 0xC2B2AE3D27D4EB4Full;
	return mixed >> (64 - ENGINE_LOG_DESTINATIONS);
}

const struct engine_destination *engine_destination_of(const struct engine_qp *qp, const struct send_wqe *wqe)
{
	const uint64_t gid[2] = { wqe->entry_5, wqe->entry_6 };
	const struct engine_destination *known;

	if (!qp->destinations)
		return NULL;
	known = &qp->destinations[engine_destination_place(wqe->entry_2, gid)];
	if (known->found != qp->found || !known->max_segments || known->path != wqe->entry_2 ||
	    known->gid[0] != gid[0] || known->gid[1] != gid[1] || known->hop_limit != entry_get(wqe, SQE_UD_HOP_LIMIT))
		return NULL;
	return known;
}

enum engine_end engine_datagram_send(const struct engine_shared *shared, struct engine_qp *qp, struct send_wqe *wqe,
				     const struct sge_list *sges, struct engine_out *out, uint64_t *sent)
{
	struct queue_pair *record = qp->record;
	int imm = entry_get(wqe, SQE_OPCODE) == WR_SEND_IMM;
	uint64_t header = HEADERS + (imm ? 4 : 0), size = sges->length, psn = wqe->first_psn;
	const struct engine_destination *to = engine_destination_of(qp, wqe);

	*sent = 0;
	if (!to)
		return PUNT_PATH;
	if (out->route != to->route) {
		engine_packets_flush(out);
		out->route = to->route;
		out->max_segments = to->max_segments;
	}
	uint8_t *frame = engine_packet_begin(out, header, size, 0);
	if (!frame)
		return ENGINE_DONE;
	if (engine_sge_read(shared, sges, 0, frame + header, size))
		return PUNT_MEMORY;
	uint64_t head = record->head | entry_get(wqe, SQE_UD_DQPN) | (-size & 3) << BTH_PAD_SHIFT;
	uint64_t qkey = entry_get(wqe, SQE_UD_QKEY);
	if (entry_get(wqe, SQE_SOLICITED))
		head |= BTH_SOLICITED;
	be_store(frame, 8, head | (uint64_t)(SERVICE_UD | (imm ? BTH_SEND_ONLY_IMM : BTH_SEND_ONLY)) << 56);
	be_store(frame + 8, 4, psn);
	be_store(frame + 12, 4, qkey & QKEY_FROM_QP ? be_get(qp->qpc, QPC_QKEY) : qkey);
	be_store(frame + 16, 4, be_get(qp->qpc, QPC_LOCAL_QPN));
	if (imm)
		be_store(frame + HEADERS, 4, entry_get(wqe, SQE_IMM));
	engine_packet_seal(out, shared, &to->flow, frame, header, size);
	wqe->begun = wqe->sent = 1;
	record->una = record->sent_psn = (psn + 1) & PSN_MASK;
	*sent = 1;
	return ENGINE_DONE;
}

/* Batched copies of payloads and messages, before each is processed.
 *
 * Nothing is decided here. A payload is stored ahead if its packet is in order and for this queue pair, its key permits
 * the access, and its ICRC is right. The step that processes the packet later reaches the same result, skips the store,
 * and does everything else. If this cannot be predicted, or the batched call fails, each payload is copied when its
 * packet is processed. */
#include "queue_pair/prefetch.h"

#include "queue_pair/context.h"
#include "queue_pair/icrc.h"
#include "queue_pair/packet.h"
#include "queue_pair/psn.h"
#include "queue_pair/receive_queue.h"
#include "queue_pair/send_queue.h"
#include "queue_pair/sge.h"

/* A run of in-order packets: the expected next packet, and the destination of its payload. */
struct run {
	uint16_t kind; /* ROW_WRITE, ROW_SEND or ROW_READ_RESPONSE */
	uint64_t psn, mtu;
	const struct memory_key *key; /* of the open message */
	uint64_t va, left; /* destination of its next bytes, and number of bytes left */
	struct receive receive; /* receive entry of a SEND */
	uint64_t offset; /* offset in it */
	struct sge_list sges; /* destination of a READ, also with `offset` */
	uint64_t responses; /* number of responses before the last */
};

static int begin_write(const struct engine_shared *shared, const struct engine_qp *qp, struct run *run)
{
	const struct queue_pair *record = qp->record;

	if (qp->guarded || !(be_get(qp->qpc, QPC_ACCESS_FLAGS) & ACCESS_REMOTE_WRITE))
		return -1;
	if (record->open == OPEN_NOTHING)
		return 0;
	if (record->open != OPEN_WRITE || record->offset >= record->write_length)
		return -1;
	run->key = engine_key_check(shared, (uint32_t)record->write_rkey, be_get(qp->qpc, QPC_PD), record->write_va,
				    record->write_length, ACCESS_REMOTE_WRITE, be_get(qp->qpc, QPC_LOCAL_QPN), 0);
	if (!run->key || (record->write_binding != NONE && run->key->binding != record->write_binding))
		return -1;
	run->va = record->write_va + record->offset;
	run->left = record->write_length - record->offset;
	return 0;
}

static int begin_response(const struct engine_shared *shared, const struct engine_qp *qp, struct run *run)
{
	const struct queue_pair *record = qp->record;
	const struct read_piece *piece = engine_piece(qp, 0);

	if (!engine_sq_valid(qp) || !record->piece_count || piece->index >= record->sq_entries ||
	    piece->got >= piece->packets || piece->asked || be_get(qp->qpc, QPC_STATE) != QP_STATE_RTS)
		return -1;
	const struct send_wqe *wqe = &qp->sends[piece->index];
	if (entry_get(wqe, SQE_OPCODE) != WR_READ || !wqe->received || piece_due(piece) != record->una ||
	    engine_sge_resolve(shared, qp, wqe, piece->index, ACCESS_LOCAL_WRITE, &run->sges) != ENGINE_DONE)
		return -1;
	run->psn = piece_due(piece);
	int64_t asked = psn_diff(record->sent_psn, run->psn);
	run->responses = asked > 0 ? lesser(piece->packets - piece->got - 1, (uint64_t)asked) : 0;
	run->offset = piece->offset + piece->got * record->mtu;
	return 0;
}

static int begin_run(const struct engine_shared *shared, const struct engine_qp *qp, const struct packet *packet,
		     struct run *run)
{
	const struct queue_pair *record = qp->record;

	run->kind = packet->row->flags & (ROW_WRITE | ROW_SEND | ROW_READ_RESPONSE);
	run->psn = be_get(qp->qpc, QPC_EXPECTED_PSN) & PSN_MASK;
	run->mtu = context_mtu(qp->qpc);
	run->key = NULL;
	run->left = 0;
	if (!record->established || packet->row->flags & ROW_IETH)
		return -1;
	switch (run->kind) {
	case ROW_WRITE:
		return begin_write(shared, qp, run);
	case ROW_SEND:
		run->offset = record->offset;
		if (record->open != OPEN_SEND || record->receive_index == NONE ||
		    engine_receive_find(shared, qp, &run->receive) != ENGINE_DONE)
			return -1;
		return 0;
	case ROW_READ_RESPONSE:
		return begin_response(shared, qp, run);
	default:
		return -1;
	}
}

/* Find the destination of a WRITE's payload. */
static const struct memory_key *place_write(const struct engine_shared *shared, const struct engine_qp *qp,
					    const struct packet *packet, struct run *run, uint64_t *va)
{
	uint16_t flags = packet->row->flags;

	if (flags & ROW_START) {
		const uint8_t *reth = packet->bytes + BTH_BYTES;
		uint64_t length = be_load(reth + 12, 4);
		if (run->left || !length || length > context_max_message(qp->qpc))
			return NULL;
		run->va = be_load(reth, 8);
		run->left = length;
		run->key = engine_key_check(shared, (uint32_t)be_load(reth + 8, 4), be_get(qp->qpc, QPC_PD), run->va,
					    length, ACCESS_REMOTE_WRITE, be_get(qp->qpc, QPC_LOCAL_QPN), 0);
	}
	if (!run->key || (flags & ROW_END ? packet->size != run->left || packet->size > run->mtu :
					    packet->size != run->mtu || packet->size >= run->left))
		return NULL;
	*va = run->va;
	run->va += packet->size;
	run->left -= packet->size;
	return run->key;
}

/* Find the destination of the payload of the run's next packet: its key, or NULL if it does not continue the run, as
 * with immediate data, which generates a completion. */
static const struct memory_key *place_payload(const struct engine_shared *shared, const struct engine_qp *qp,
					      const struct packet *packet, struct run *run, uint64_t *va)
{
	uint16_t flags = packet->row->flags;
	const struct memory_key *key;

	if (!(flags & run->kind) || flags & (ROW_IMMDT | ROW_IETH) || packet->psn != run->psn || !packet->size)
		return NULL;
	if (run->kind == ROW_WRITE)
		return place_write(shared, qp, packet, run, va);
	if (flags & (ROW_START | ROW_END) || packet->size != run->mtu)
		return NULL;
	if (run->kind == ROW_SEND) {
		key = engine_scatter_key(shared, qp, &run->receive, run->offset, packet->size, va);
	} else {
		if (!run->responses)
			return NULL;
		run->responses--;
		key = engine_sge_key(&run->sges, run->offset, packet->size, va);
	}
	run->offset += packet->size;
	return key;
}

void engine_prefetch_store(const struct engine_shared *shared, const struct engine_qp *qp, const uint8_t *buffer,
			   size_t length, size_t segment, size_t at, const struct engine_meta *meta)
{
	struct engine_prefetch *prefetch = shared->prefetch;
	const struct engine_segment *to = NULL;
	struct packet packet;
	struct run run;
	size_t count = 0, next = at;

	if (shared->bare || engine_packet_parse(qp, meta, buffer, length, segment, at, &packet) != ENGINE_DONE ||
	    begin_run(shared, qp, &packet, &run))
		return;
	while (next < length && count < ENGINE_PREFETCH) {
		uint32_t frag = meta->ident == IDENT_UNSEEN ? DONT_FRAGMENT : meta->frag;
		uint64_t va;
		if (count && engine_packet_parse(qp, meta, buffer, length, segment, next, &packet) != ENGINE_DONE)
			break;
		const struct memory_key *key = place_payload(shared, qp, &packet, &run, &va);
		const struct engine_segment *its = key ? engine_key_segment(shared, key, &va) : NULL;
		if (!its || (to && its != to) ||
		    !engine_icrc_check(shared, &meta->flow, packet.bytes, packet.length, packet.ident, frag))
			break;
		to = its;
		prefetch->pieces[count++] =
			(struct engine_piece){ va, (uint8_t *)(uintptr_t)packet.payload, packet.size };
		run.psn = (run.psn + 1) & PSN_MASK;
		next += packet.length;
	}
	if (count < 2 || to->memory->write_all(to->self, prefetch->pieces, count))
		return;
	prefetch->taken = buffer + at;
	prefetch->taken_end = buffer + next;
}

/* ------------------------------------------------------------------ sending */

void engine_prefetch_fetch(const struct engine_shared *shared, const struct engine_qp *qp, uint64_t most)
{
	const struct queue_pair *record = qp->record;
	struct engine_prefetch *prefetch = shared->prefetch;
	const struct engine_segment *from = NULL;
	uint64_t index = record->fetch_index, count = 0;
	uint8_t *at = prefetch->staging;

	prefetch->fetched = prefetch->fetched_count = 0;
	for (most = lesser(most, ENGINE_PREFETCH); count < most && index != record->tail; index = sq_after(qp, index)) {
		struct send_wqe wqe = { 0 };
		struct sge_list sges;
		entry_fetch(&wqe, qp->sq + (index << record->sq_shift));
		uint64_t length = entry_get(&wqe, SQE_LENGTH);
		if (is_answered(&wqe) || entry_get(&wqe, SQE_INLINE) || entry_get(&wqe, SQE_LIST) || !length ||
		    length > ENGINE_PREFETCH_BYTES ||
		    engine_sge_resolve(shared, qp, &wqe, index, 0, &sges) != ENGINE_DONE)
			break;
		uint64_t va = sges.entries[0].va;
		const struct engine_segment *its = engine_key_segment(shared, sges.entries[0].key, &va);
		if (!its || (from && its != from))
			break;
		from = its;
		prefetch->index[count] = index;
		prefetch->pieces[count++] = (struct engine_piece){ va, at, length };
		at += length;
	}
	if (count < 2 || from->memory->read_all(from->self, prefetch->pieces, count))
		return;
	prefetch->fetched_count = count;
}

const uint8_t *engine_prefetch_fetched(struct engine_prefetch *prefetch, const struct send_wqe *wqe, uint64_t index)
{
	while (prefetch->fetched < prefetch->fetched_count && prefetch->index[prefetch->fetched] != index)
		prefetch->fetched++;
	if (prefetch->fetched >= prefetch->fetched_count || is_answered(wqe))
		return NULL;
	return prefetch->pieces[prefetch->fetched].length == entry_get(wqe, SQE_LENGTH) ?
		       prefetch->pieces[prefetch->fetched].here :
		       NULL;
}

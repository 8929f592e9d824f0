/* What packets and messages want of memory, several at a time and ahead of the turn of each: where memory lies behind a
 * system call, calls cost more than bytes.
 *
 * Nothing is decided here. A payload is stored ahead where its packet comes in order, is for this queue pair, has a key
 * that opens its place and the right ICRC; whoever takes the packet after that finds the same, stores it no more, and does
 * all the rest. Where it cannot be seen ahead, or one call for all fails, each goes by itself when its turn comes. */
#include "queue_pair/prefetch.h"

#include "queue_pair/context.h"
#include "queue_pair/icrc.h"
#include "queue_pair/packet.h"
#include "queue_pair/psn.h"
#include "queue_pair/receive_queue.h"
#include "queue_pair/send_queue.h"
#include "queue_pair/sge.h"

/* Packets that are looked at ahead: what the next of them has to be, and where its payload goes. */
struct run {
	uint16_t kind; /* ROW_WRITE, ROW_SEND or ROW_READ_RESPONSE */
	uint64_t psn, mtu;
	const struct memory_key *key; /* of the message that is open, */
	uint64_t va, left; /* where its next bytes go, and how many come */
	struct receive receive; /* of a SEND, with */
	uint64_t offset; /* the place in it */
	struct source source; /* of a READ, with the same; */
	uint64_t responses; /* those before the last */
};

static int begin_write(const struct engine_shared *port, const struct engine_qp *qp, struct run *run)
{
	const struct queue_pair *record = qp->record;

	if (!(be_get(qp->qpc, QPC_ACCESS_FLAGS) & ACCESS_REMOTE_WRITE))
		return -1;
	if (record->open == OPEN_NOTHING)
		return 0;
	if (record->open != OPEN_WRITE || record->offset >= record->write_length)
		return -1;
	run->key = engine_key_check(port, (uint32_t)record->write_rkey, be_get(qp->qpc, QPC_PD), record->write_va,
				    record->write_length, ACCESS_REMOTE_WRITE, be_get(qp->qpc, QPC_LOCAL_QPN), 0);
	if (!run->key || (record->write_binding != NONE && run->key->binding != record->write_binding))
		return -1;
	run->va = record->write_va + record->offset;
	run->left = record->write_length - record->offset;
	return 0;
}

static int begin_response(const struct engine_shared *port, const struct engine_qp *qp, struct run *run)
{
	const struct queue_pair *record = qp->record;
	const struct read_piece *piece = engine_piece(qp, 0);

	if (!engine_sq_valid(qp) || !record->piece_count || piece->index >= record->sq_entries ||
	    piece->got >= piece->packets || piece->asked || be_get(qp->qpc, QPC_STATE) != QP_STATE_RTS)
		return -1;
	const struct send_slot *slot = &qp->sends[piece->index];
	if (entry_get(slot, SQE_OPCODE) != WR_READ || !slot->received || piece_due(piece) != record->una ||
	    engine_sge_resolve(port, qp, slot, piece->index, ACCESS_LOCAL_WRITE, &run->source) != ENGINE_DONE)
		return -1;
	run->psn = piece_due(piece);
	int64_t asked = psn_diff(record->sent_psn, run->psn);
	run->responses = asked > 0 ? lesser(piece->packets - piece->got - 1, (uint64_t)asked) : 0;
	run->offset = piece->offset + piece->got * record->mtu;
	return 0;
}

static int begin(const struct engine_shared *port, const struct engine_qp *qp, const struct packet *packet, struct run *run)
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
		return begin_write(port, qp, run);
	case ROW_SEND:
		run->offset = record->offset;
		if (record->open != OPEN_SEND || record->receive_index == NONE ||
		    engine_receive_find(port, qp, &run->receive) != ENGINE_DONE)
			return -1;
		return 0;
	case ROW_READ_RESPONSE:
		return begin_response(port, qp, run);
	default:
		return -1;
	}
}

/* Of a WRITE: any packet without immediate data, which would complete something. */
static const struct memory_key *place_write(const struct engine_shared *port, const struct engine_qp *qp,
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
		run->key = engine_key_check(port, (uint32_t)be_load(reth + 8, 4), be_get(qp->qpc, QPC_PD), run->va, length,
					    ACCESS_REMOTE_WRITE, be_get(qp->qpc, QPC_LOCAL_QPN), 0);
	}
	if (!run->key || (flags & ROW_END ? packet->size != run->left || packet->size > run->mtu :
					    packet->size != run->mtu || packet->size >= run->left))
		return NULL;
	*va = run->va;
	run->va += packet->size;
	run->left -= packet->size;
	return run->key;
}

/* Where the payload of the run's next packet goes: its key, or NULL where it is not one that goes on so. */
static const struct memory_key *place(const struct engine_shared *port, const struct engine_qp *qp,
				      const struct packet *packet, struct run *run, uint64_t *va)
{
	uint16_t flags = packet->row->flags;
	const struct memory_key *key;

	if (!(flags & run->kind) || flags & (ROW_IMMDT | ROW_IETH) || packet->psn != run->psn || !packet->size)
		return NULL;
	if (run->kind == ROW_WRITE)
		return place_write(port, qp, packet, run, va);
	if (flags & (ROW_START | ROW_END) || packet->size != run->mtu)
		return NULL;
	if (run->kind == ROW_SEND) {
		key = engine_scatter_key(port, qp, &run->receive, run->offset, packet->size, va);
	} else {
		if (!run->responses)
			return NULL;
		run->responses--;
		key = engine_sge_key(&run->source, run->offset, packet->size, va);
	}
	run->offset += packet->size;
	return key;
}

void engine_prefetch_store(const struct engine_shared *port, const struct engine_qp *qp, const uint8_t *buffer, size_t length,
		       size_t segment, size_t at, const struct engine_meta *meta)
{
	struct engine_prefetch *ahead = port->ahead;
	const struct engine_segment *to = NULL;
	struct packet packet;
	struct run run;
	size_t count = 0, next = at;

	if (port->bare || engine_packet_parse(qp, meta, buffer, length, segment, at, &packet) != ENGINE_DONE ||
	    begin(port, qp, &packet, &run))
		return;
	while (next < length && count < ENGINE_PREFETCH) {
		uint32_t frag = meta->ident == IDENT_UNSEEN ? DONT_FRAGMENT : meta->frag;
		uint64_t va;
		if (count && engine_packet_parse(qp, meta, buffer, length, segment, next, &packet) != ENGINE_DONE)
			break;
		const struct memory_key *key = place(port, qp, &packet, &run, &va);
		const struct engine_segment *its = key ? engine_key_segment(port, key, &va) : NULL;
		if (!its || (to && its != to) ||
		    !engine_icrc_check(port, &meta->flow, packet.bytes, packet.length, packet.ident, frag))
			break;
		to = its;
		ahead->pieces[count++] = (struct engine_piece){ va, (uint8_t *)(uintptr_t)packet.payload, packet.size };
		run.psn = (run.psn + 1) & PSN_MASK;
		next += packet.length;
	}
	if (count < 2 || to->memory->write_all(to->self, ahead->pieces, count))
		return;
	ahead->taken = buffer + at;
	ahead->taken_end = buffer + next;
}

/* ------------------------------------------------------------------ what is sent */

void engine_prefetch_fetch(const struct engine_shared *port, const struct engine_qp *qp, uint64_t most)
{
	const struct queue_pair *record = qp->record;
	struct engine_prefetch *ahead = port->ahead;
	const struct engine_segment *from = NULL;
	uint64_t index = record->fetch_index, count = 0;
	uint8_t *at = ahead->desk;

	ahead->fetched = ahead->fetched_count = 0;
	for (most = lesser(most, ENGINE_PREFETCH); count < most && index != record->tail; index = sq_after(qp, index)) {
		struct send_slot slot = { 0 };
		struct source source;
		entry_fetch(&slot, qp->sq + (index << record->sq_shift));
		uint64_t length = entry_get(&slot, SQE_LENGTH);
		if (is_read_or_atomic(&slot) || entry_get(&slot, SQE_INLINE) || entry_get(&slot, SQE_LIST) || !length ||
		    length > ENGINE_PREFETCH_BYTES || engine_sge_resolve(port, qp, &slot, index, 0, &source) != ENGINE_DONE)
			break;
		uint64_t va = source.spans[0].va;
		const struct engine_segment *its = engine_key_segment(port, source.spans[0].key, &va);
		if (!its || (from && its != from))
			break;
		from = its;
		ahead->index[count] = index;
		ahead->pieces[count++] = (struct engine_piece){ va, at, length };
		at += length;
	}
	if (count < 2 || from->memory->read_all(from->self, ahead->pieces, count))
		return;
	ahead->fetched_count = count;
}

const uint8_t *engine_prefetch_fetched(struct engine_prefetch *ahead, const struct send_slot *slot, uint64_t index)
{
	while (ahead->fetched < ahead->fetched_count && ahead->index[ahead->fetched] != index)
		ahead->fetched++;
	if (ahead->fetched >= ahead->fetched_count || is_read_or_atomic(slot))
		return NULL;
	return ahead->pieces[ahead->fetched].length == entry_get(slot, SQE_LENGTH) ? ahead->pieces[ahead->fetched].here : NULL;
}

/* The responder's READs and atomics: the rest of RC_CHK for them, the answer, and what is kept of it so that a duplicate is
 * answered alike (IBA C9-105; transport/resources.py). */
#include "queue_pair/responder_reads.h"

#include "memory/memory_key.h"
#include "queue_pair/context.h"
#include "queue_pair/psn.h"
#include "queue_pair/response_queue.h"

/* What a request asks for: of an atomic `length` is 8. */
struct wanted {
	uint64_t va, length, swap_add, compare;
	uint32_t rkey;
	int atomic;
	uint64_t packets; /* PSNs that it takes */
	const struct memory_key *key; /* NULL where it asks for no bytes */
};

/* Read a request and look for its memory; ENGINE_DONE, or a punt. */
static enum engine_end understand(const struct engine_qp *qp, const struct packet *packet,
				  struct wanted *wanted)
{
	const uint8_t *header = packet->bytes + BTH_BYTES;
	uint64_t mtu = context_mtu(qp->qpc);

	*wanted = (struct wanted){ .va = be_load(header, 8), .rkey = (uint32_t)be_load(header + 8, 4), .packets = 1 };
	wanted->atomic = (packet->row->flags & ROW_ATOMIC) != 0;
	if (wanted->atomic) {
		wanted->length = 8;
		wanted->swap_add = be_load(header + 12, 8);
		wanted->compare = be_load(header + 20, 8);
	} else {
		wanted->length = be_load(header + 12, 4);
		if (!mtu || wanted->length > context_max_message(qp->qpc))
			return PUNT_LENGTH;
		wanted->packets = psn_count(wanted->length, mtu);
		if (wanted->packets > PSN_WINDOW)
			return PUNT_LENGTH;
	}
	return ENGINE_DONE;
}

/* Whether the key lets the peer at what it wants. */
static int opens(const struct engine_shared *port, const struct engine_qp *qp, struct wanted *wanted)
{
	if (!wanted->length)
		return 1;
	wanted->key = engine_key_check(port, wanted->rkey, be_get(qp->qpc, QPC_PD), wanted->va, wanted->length,
				       wanted->atomic ? ACCESS_REMOTE_ATOMIC : ACCESS_REMOTE_READ,
				       be_get(qp->qpc, QPC_LOCAL_QPN), 0);
	return wanted->key != NULL;
}

static void answer(const struct engine_shared *port, struct engine_qp *qp, const struct packet *packet, const struct wanted *wanted, uint64_t orig,
		   int again, struct engine_effects *effects)
{
	struct reply *reply = engine_response_new(qp, wanted->atomic ? REPLY_ATOMIC : REPLY_READ, packet->psn, wanted->packets,
					       engine_ack_syndrome(port, qp), again);
	effects->effects |= EFFECT_SCHEDULE;
	if (!reply)
		return;
	if (wanted->atomic) {
		reply->orig = orig;
		return;
	}
	reply->total = wanted->length;
	reply->va = wanted->key ? wanted->va : 0;
	reply->rkey = wanted->key ? wanted->rkey : 0;
	reply->binding = wanted->key ? wanted->key->binding : NONE;
}

/* ------------------------------------------------------------------ what is kept */

static int kept_sound(const struct queue_pair *record)
{
	return record->resource_first < QP_RESOURCES && record->resource_count <= QP_RESOURCES;
}

static struct resource *resource_at(const struct engine_qp *qp, uint64_t place)
{
	return &qp->resources[(qp->record->resource_first + place) % QP_RESOURCES];
}

/* Keep a request in the slot of the oldest. */
static void keep(struct engine_qp *qp, const struct packet *packet, const struct wanted *wanted, uint64_t orig)
{
	struct queue_pair *record = qp->record;
	uint64_t slots = lesser(greater(1, be_get(qp->qpc, QPC_MAX_DEST_RD_ATOMIC)), QP_RESOURCES);

	while (record->resource_count >= slots) {
		record->resource_first = (record->resource_first + 1) % QP_RESOURCES;
		record->resource_count--;
	}
	*resource_at(qp, record->resource_count++) = (struct resource){
		.psn = packet->psn,
		.packets = wanted->packets,
		.opcode = packet->opcode,
		.atomic = (uint64_t)wanted->atomic,
		.va = wanted->va,
		.rkey = wanted->rkey,
		.length = wanted->length,
		.swap_add = wanted->swap_add,
		.compare = wanted->compare,
		.orig = orig,
	};
	be_put(qp->qpc, QPC_RA_BUFF_INDX, (be_get(qp->qpc, QPC_RA_BUFF_INDX) + 1) % slots);
}

/* The kept request that a duplicate repeats, in whole or from a later packet on, or NULL. */
static const struct resource *kept(const struct engine_qp *qp, const struct packet *packet, const struct wanted *wanted)
{
	for (uint64_t i = 0; i < qp->record->resource_count; i++) {
		const struct resource *resource = resource_at(qp, i);
		int64_t skipped = psn_diff(packet->psn, resource->psn);
		if (resource->opcode != packet->opcode || resource->rkey != wanted->rkey || skipped < 0 ||
		    (uint64_t)skipped >= resource->packets)
			continue;
		if (resource->atomic)
			return wanted->va == resource->va && wanted->swap_add == resource->swap_add &&
					       wanted->compare == resource->compare ? resource : NULL;
		uint64_t offset = (uint64_t)skipped * context_mtu(qp->qpc);
		return wanted->va == resource->va + offset && offset <= resource->length &&
				       wanted->length <= resource->length - offset ? resource : NULL;
	}
	return NULL;
}

/* ------------------------------------------------------------------ in order */

/* Carry out an atomic, on 64 bits in the host's byte order; 0, or -1 where memory is out of reach. */
static int swap(const struct engine_shared *port, const struct packet *packet, const struct wanted *wanted, uint64_t *orig)
{
	uint8_t bytes[8];
	uint64_t value;
	if (engine_key_read(port, wanted->key, wanted->va, bytes, 8))
		return -1;
	memcpy(orig, bytes, 8);
	if ((packet->opcode & BTH_OPERATION_MASK) == BTH_COMPARE_SWAP)
		value = *orig == wanted->compare ? wanted->swap_add : *orig;
	else
		value = *orig + wanted->swap_add;
	memcpy(bytes, &value, 8);
	return engine_key_write(port, wanted->key, wanted->va, bytes, 8);
}

enum engine_end engine_read_receive(const struct engine_shared *port, struct engine_qp *qp, const struct packet *packet,
				    struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	uint64_t orig = 0;
	struct wanted wanted;

	if (record->open != OPEN_NOTHING)
		return PUNT_SEQUENCE;
	enum engine_end end = understand(qp, packet, &wanted);
	if (end != ENGINE_DONE)
		return end;
	uint64_t rights = be_get(qp->qpc, QPC_ACCESS_FLAGS);
	if (!(rights & (wanted.atomic ? ACCESS_REMOTE_ATOMIC : ACCESS_REMOTE_READ)) || (wanted.atomic && wanted.va & 7))
		return PUNT_KEY;
	if (!engine_response_queue_valid(qp) || !kept_sound(record) ||
	    record->pending_reads >= be_get(qp->qpc, QPC_MAX_DEST_RD_ATOMIC))
		return PUNT_REPLY;
	if (!opens(port, qp, &wanted))
		return PUNT_KEY;
	if (!engine_packet_check_icrc(port, packet))
		return PUNT_ICRC;
	if (wanted.atomic && swap(port, packet, &wanted, &orig))
		return PUNT_MEMORY;

	record->established = 1;
	record->nak_sent = 0;
	record->msn = (record->msn + 1) & PSN_MASK;
	keep(qp, packet, &wanted, orig);
	answer(port, qp, packet, &wanted, orig, 0, effects);
	be_put(qp->qpc, QPC_EXPECTED_PSN, (packet->psn + wanted.packets) & PSN_MASK);
	be_put(qp->qpc, QPC_RMSN, record->msn);
	return ENGINE_DONE;
}

/* ------------------------------------------------------------------ once more */

/* Whether the answer to a request waits and is not begun. */
static int waits(const struct engine_qp *qp, uint64_t psn)
{
	for (uint64_t i = 0; i < qp->record->reply_count; i++) {
		const struct reply *reply = engine_response_at(qp, i);
		if (reply->psn == psn && reply->kind != REPLY_ACK && !reply->sent)
			return 1;
	}
	return 0;
}

enum engine_end engine_read_again(const struct engine_shared *port, struct engine_qp *qp, const struct packet *packet,
				  struct engine_effects *effects)
{
	struct queue_pair *record = qp->record;
	struct wanted wanted;

	if (!engine_response_queue_valid(qp) || !kept_sound(record))
		return PUNT_REPLY;
	enum engine_end end = understand(qp, packet, &wanted);
	if (end != ENGINE_DONE)
		return end;
	if (!engine_packet_check_icrc(port, packet))
		return PUNT_ICRC;
	record->established = 1;
	const struct resource *resource = kept(qp, packet, &wanted);
	/* the network may repeat a READ long after its memory is gone: that must not fail the queue pair */
	if (!resource || record->reply_count == QP_REPLIES || waits(qp, packet->psn) ||
	    (!wanted.atomic && !opens(port, qp, &wanted))) {
		engine_count(effects, COUNT_DUPLICATE_UNMATCHED, 1);
		return ENGINE_DONE;
	}
	engine_count(effects, wanted.atomic ? COUNT_DUPLICATE_ATOMICS : COUNT_DUPLICATE_READS, 1);
	answer(port, qp, packet, &wanted, resource->orig, 1, effects);
	return ENGINE_DONE;
}

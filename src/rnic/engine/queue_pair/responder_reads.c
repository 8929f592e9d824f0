/* The responder's READs and atomics: their named steps, their responses, and the saved requests for answering
 * duplicates (IBA C9-105; transport/resources.py). */
#include "queue_pair/responder_reads.h"

#include "memory/memory_key.h"
#include "queue_pair/context.h"
#include "queue_pair/psn.h"
#include "queue_pair/response_queue.h"
#include "queue_pair/step.h"
#include "queue_pair/translation.h"

/* A READ or atomic request during the steps. */
struct request {
	const struct engine_shared *shared;
	struct engine_qp *qp;
	const struct packet *packet;
	struct engine_effects *effects;
	enum engine_end end; /* result of the steps */
	int atomic;
	int again; /* it is a duplicate */
	uint64_t va, length; /* requested range; 8 bytes for an atomic */
	uint64_t swap_add, compare;
	uint32_t rkey;
	uint64_t packets; /* PSNs that it uses */
	const struct memory_key *key; /* NULL if the length is 0 */
};

static struct request parse_request(const struct engine_shared *shared, struct engine_qp *qp,
				    const struct packet *packet, struct engine_effects *effects)
{
	const uint8_t *header = packet->bytes + BTH_BYTES;
	struct request request = {
		.shared = shared,
		.qp = qp,
		.packet = packet,
		.effects = effects,
		.atomic = (packet->row->flags & ROW_ATOMIC) != 0,
		.va = be_load(header, 8),
		.rkey = (uint32_t)be_load(header + 8, 4),
		.length = 8,
		.packets = 1,
	};

	if (request.atomic) {
		request.swap_add = be_load(header + 12, 8);
		request.compare = be_load(header + 20, 8);
	} else {
		request.length = be_load(header + 12, 4);
	}
	return request;
}

/* Return whether the engine executes a request: FLUSH and ATOMIC WRITE are left to the reference. */
static int is_known(const struct packet *packet)
{
	return !(packet->row->flags & (ROW_FETH | ROW_PAYLOAD));
}

/* End the steps. */
static int end_steps(struct request *request, enum engine_end end)
{
	request->end = end;
	return 0;
}

static int check_icrc(struct request *request)
{
	return engine_packet_check_icrc(request->shared, request->packet) || end_steps(request, PUNT_ICRC);
}

/* ------------------------------------------------------------------ saved requests */

static int resources_valid(const struct queue_pair *record)
{
	return record->resource_first < QP_RESOURCES && record->resource_count <= QP_RESOURCES;
}

static struct resource *resource_at(const struct engine_qp *qp, uint64_t place)
{
	return &qp->resources[(qp->record->resource_first + place) % QP_RESOURCES];
}

/* Save a request in the slot of the oldest. */
static void keep_request(const struct request *request, uint64_t orig)
{
	struct engine_qp *qp = request->qp;
	struct queue_pair *record = qp->record;
	uint64_t slots = lesser(greater(1, be_get(qp->qpc, QPC_MAX_DEST_RD_ATOMIC)), QP_RESOURCES);

	while (record->resource_count >= slots) {
		record->resource_first = (record->resource_first + 1) % QP_RESOURCES;
		record->resource_count--;
	}
	*resource_at(qp, record->resource_count++) = (struct resource){
		.psn = request->packet->psn,
		.packets = request->packets,
		.opcode = request->packet->opcode,
		.atomic = (uint64_t)request->atomic,
		.va = request->va,
		.rkey = request->rkey,
		.length = request->length,
		.swap_add = request->swap_add,
		.compare = request->compare,
		.orig = orig,
	};
	be_put(qp->qpc, QPC_RA_BUFF_INDX, (be_get(qp->qpc, QPC_RA_BUFF_INDX) + 1) % slots);
}

/* Find the saved request that a duplicate repeats, fully or from a later packet on, or NULL. The newest match counts:
 * an older one may have the same PSN, from before a wraparound. */
static const struct resource *find_resource(const struct request *request)
{
	const struct engine_qp *qp = request->qp;
	const struct packet *packet = request->packet;

	for (uint64_t i = qp->record->resource_count; i-- > 0;) {
		const struct resource *resource = resource_at(qp, i);
		int64_t skipped = psn_diff(packet->psn, resource->psn);
		if (resource->opcode != packet->opcode || resource->rkey != request->rkey || skipped < 0 ||
		    (uint64_t)skipped >= resource->packets)
			continue;
		if (resource->atomic)
			return request->va == resource->va && request->swap_add == resource->swap_add &&
					       request->compare == resource->compare ?
				       resource :
				       NULL;
		uint64_t offset = (uint64_t)skipped * context_mtu(qp->qpc);
		return request->va == resource->va + offset && offset <= resource->length &&
				       request->length <= resource->length - offset ?
			       resource :
			       NULL;
	}
	return NULL;
}

/* Queue the responses to a request; `again` if it is a duplicate. */
static void queue_response(const struct request *request, uint64_t orig, int again)
{
	struct reply *response = engine_response_new(request->qp, request->atomic ? REPLY_ATOMIC : REPLY_READ,
						     request->packet->psn, request->packets,
						     engine_ack_syndrome(request->shared, request->qp), again);
	request->effects->effects |= EFFECT_SCHEDULE;
	if (!response)
		return;
	if (request->atomic) {
		response->orig = orig;
		return;
	}
	response->total = request->length;
	response->va = request->key ? request->va : 0;
	response->rkey = request->key ? request->rkey : 0;
	response->binding = request->key ? engine_remote_binding(request->rkey, request->key) : NONE;
}

/* ------------------------------------------------------------------ the named steps */

/* Opcode sequence check (IBA 9.7): no message is open. */
static int check_op_seq(struct request *request)
{
	return request->qp->record->open == OPEN_NOTHING || end_steps(request, PUNT_SEQUENCE);
}

/* Opcode validation (IBA 9.7): the access flags allow it. */
static int check_op_valid(struct request *request)
{
	uint64_t right = request->atomic ? ACCESS_REMOTE_ATOMIC : ACCESS_REMOTE_READ;
	if (!(be_get(request->qp->qpc, QPC_ACCESS_FLAGS) & right) || (request->atomic && request->va & 7))
		return end_steps(request, PUNT_KEY);
	return 1;
}

/* Resource check (IBA 9.7): room for one more READ or atomic. */
static int check_resources(struct request *request)
{
	const struct engine_qp *qp = request->qp;
	if (!engine_response_queue_valid(qp) || !resources_valid(qp->record) ||
	    qp->record->pending_reads >= be_get(qp->qpc, QPC_MAX_DEST_RD_ATOMIC))
		return end_steps(request, PUNT_REPLY);
	return 1;
}

/* Length validation; counts the responses. */
static int check_length(struct request *request)
{
	uint64_t mtu = context_mtu(request->qp->qpc);

	if (request->atomic)
		return 1;
	if (!mtu || request->length > context_max_message(request->qp->qpc))
		return end_steps(request, PUNT_LENGTH);
	request->packets = psn_count(request->length, mtu);
	return request->packets <= PSN_WINDOW || end_steps(request, PUNT_LENGTH);
}

/* R_Key validation (IBA C9-88): key, PD, rights and range. Zero length needs no key. */
static int check_rkey(struct request *request)
{
	const struct engine_qp *qp = request->qp;

	if (!request->length)
		return 1;
	uint64_t rights = request->atomic ? ACCESS_REMOTE_ATOMIC : ACCESS_REMOTE_READ;
	request->key = engine_remote_key(request->shared, qp, request->rkey, request->va, request->length, rights);
	if (!request->key || (!request->again && !engine_pages_ready(qp, request->key, request->rkey, request->va,
								     request->length, rights)))
		return end_steps(request, PUNT_KEY);
	return 1;
}

/* Execute an atomic on 64 bits in host byte order; 0, or -1 if the memory is not accessible. */
static int execute_atomic(const struct request *request, uint64_t *orig)
{
	uint8_t bytes[8];
	uint64_t value;
	if (engine_key_read(request->shared, request->key, request->va, bytes, 8))
		return -1;
	memcpy(orig, bytes, 8);
	if ((request->packet->opcode & BTH_OPERATION_MASK) == BTH_COMPARE_SWAP)
		value = *orig == request->compare ? request->swap_add : *orig;
	else
		value = *orig + request->swap_add;
	memcpy(bytes, &value, 8);
	return engine_key_write(request->shared, request->key, request->va, bytes, 8);
}

/* Execute an atomic, and queue the responses. */
static int execute(struct request *request)
{
	struct engine_qp *qp = request->qp;
	struct queue_pair *record = qp->record;
	uint64_t orig = 0;

	if (request->atomic && execute_atomic(request, &orig))
		return end_steps(request, PUNT_MEMORY);
	record->established = 1;
	record->nak_sent = 0;
	record->msn = (record->msn + 1) & PSN_MASK;
	if (request->key)
		engine_pages_use(qp, request->rkey, request->va, request->length);
	keep_request(request, orig);
	queue_response(request, orig, 0);
	be_put(qp->qpc, QPC_EXPECTED_PSN, (request->packet->psn + request->packets) & PSN_MASK);
	be_put(qp->qpc, QPC_RMSN, record->msn);
	return end_steps(request, ENGINE_DONE);
}

enum engine_end engine_read_receive(const struct engine_shared *shared, struct engine_qp *qp,
				    const struct packet *packet, struct engine_effects *effects)
{
	struct request request = parse_request(shared, qp, packet, effects);

	if (!is_known(packet))
		return PUNT_REQUEST;
	if (STEP(check_op_seq, &request) && STEP(check_op_valid, &request) && STEP(check_resources, &request) &&
	    STEP(check_length, &request) && STEP(check_rkey, &request) && STEP(check_icrc, &request))
		STEP(execute, &request);
	return request.end;
}

/* ------------------------------------------------------------------ duplicates */

/* Return whether the response to a request is queued and not started. */
static int response_waits(const struct engine_qp *qp, uint64_t psn)
{
	for (uint64_t i = 0; i < qp->record->reply_count; i++) {
		const struct reply *response = engine_response_at(qp, i);
		if (response->psn == psn && response->kind != REPLY_ACK && !response->sent)
			return 1;
	}
	return 0;
}

enum engine_end engine_read_duplicate(const struct engine_shared *shared, struct engine_qp *qp,
				      const struct packet *packet, struct engine_effects *effects)
{
	struct request request = parse_request(shared, qp, packet, effects);

	if (!is_known(packet))
		return PUNT_REQUEST;
	request.again = 1;
	if (!engine_response_queue_valid(qp) || !resources_valid(qp->record))
		return PUNT_REPLY;
	if (!check_length(&request) || !STEP(check_icrc, &request))
		return request.end;
	/* Python checks accesses with a guard, and reports accesses that R_Key 0 does not cover */
	int asked = qp->guarded || (!request.rkey && qp->translation);
	if (asked && !request.atomic && !check_rkey(&request))
		return PUNT_KEY;
	qp->record->established = 1;
	const struct resource *resource = find_resource(&request);
	/* the network may duplicate a READ long after its memory is gone, which must not fail the queue pair */
	if (!resource || qp->record->reply_count == QP_REPLIES || response_waits(qp, packet->psn) ||
	    (!request.atomic && !check_rkey(&request))) {
		engine_count(effects, COUNT_DROP_DUPLICATE_UNMATCHED, 1);
		return ENGINE_DONE;
	}
	engine_count(effects, request.atomic ? COUNT_DUPLICATE_ATOMICS : COUNT_DUPLICATE_READS, 1);
	queue_response(&request, resource->orig, 1);
	return ENGINE_DONE;
}

/* Flows whose queue pairs exist only in the engine: a record, a context and slots, as if verbs had created and the
 * reference connected them, and no Python objects. They cost a hundredth of the time and a quarter of the memory. */
#include "fabric.h"
#include "device/inflight.h"
#include "device/scheduler.h"
#include "device/timers.h"
#include "queue_pair/byteorder.h"

#define BLOCK_WORDS 32u

static struct queue_pair *record_of(const struct fabric_host *host, uint64_t at)
{
	return engine_record(&host->device->sched, at);
}

uint64_t fabric_sender_bytes(const struct fabric_pattern *pattern)
{
	const struct queue_pair *record = (const struct queue_pair *)(const void *)pattern->record;
	return pattern->entries * sizeof(struct send_wqe) + (record->sq_entries << record->sq_shift);
}

uint64_t fabric_receiver_bytes(void)
{
	return QP_REPLIES * sizeof(struct reply);
}

uint64_t fabric_shared_bytes(void)
{
	return QP_PIECES * sizeof(struct read_piece) + QP_REPLIES * sizeof(struct reply) +
	       QP_RESOURCES * sizeof(struct resource) + QP_SCATTERS * sizeof(struct scatter) +
	       8 * sizeof(struct send_wqe) + BLOCK_WORDS * sizeof(uint32_t);
}

static uint64_t slot_of(const struct engine_device *device, uint64_t number)
{
	return number & (((uint64_t)1 << device->log_qps) - 1);
}

void fabric_bare_path(struct fabric *fabric, uint32_t at, uint64_t place, uint32_t target, uint8_t tclass)
{
	struct flow *path = engine_record(&fabric->hosts[at].device->sched, place);
	memset(path, 0, sizeof *path);
	path->family = 4;
	path->tclass = tclass;
	be_store((uint8_t *)&path->src_0, 4, FABRIC_NET + 1 + at);
	be_store((uint8_t *)&path->dst_0, 4, FABRIC_NET + 1 + target);
}

void fabric_bare_make(struct fabric *fabric, uint32_t at, struct engine_qp *qp, const struct fabric_pattern *pattern,
		      const struct fabric_place *place, int sends)
{
	struct fabric_host *host = &fabric->hosts[at];
	struct engine_device *device = host->device;
	struct queue_pair *record = record_of(host, place->record);
	uint8_t *context = engine_record(&device->sched, place->context);
	uint8_t *slots = engine_record(&device->sched, place->slots), *shared = place->shared;

	memcpy(record, pattern->record, sizeof *record);
	record->number = place->number;
	record->context = place->context;
	record->program_record = place->program_record;
	record->turn = place->turn;
	record->peer_record = place->peer_record;
	record->path = place->path;
	record->scheduled = record->next_ready = record->previous_ready = record->deficit = 0;
	record->line = record->next_waiting = record->previous_waiting = record->timer_place = 0;
	record->armed_ns = record->pace_ns = record->owed_ns = NEVER;
	record->control_ns = NEVER;
	record->cnp_tag = record->paced = record->cnp_merge_ns = record->control = 0;
	memcpy(context, pattern->context, QPC_SIZE);
	be_put(context, QPC_LOCAL_QPN, place->number);
	be_put(context, QPC_REMOTE_QPN, place->remote);
	be_put(context, QPC_PD, place->pd);
	be_put(context, QPC_CQN_SND, place->cqn);
	be_put(context, QPC_CQN_RCV, place->cqn);

	memset(qp, 0, sizeof *qp);
	qp->qpc = context;
	qp->record = record;
	qp->pieces = (struct read_piece *)(void *)shared;
	shared += QP_PIECES * sizeof(struct read_piece);
	qp->replies = (struct reply *)(void *)(sends ? shared : slots);
	shared += QP_REPLIES * sizeof(struct reply);
	qp->resources = (struct resource *)(void *)shared;
	shared += QP_RESOURCES * sizeof(struct resource);
	qp->scatters = (struct scatter *)(void *)shared;
	shared += QP_SCATTERS * sizeof(struct scatter);
	qp->block = (_Atomic uint32_t *)(void *)shared;
	shared += BLOCK_WORDS * sizeof(uint32_t);
	qp->sends = (struct send_wqe *)(void *)(sends ? slots : shared);
	qp->send_wqes = pattern->entries;
	memset(slots, 0, sends ? fabric_sender_bytes(pattern) : 0);
	if (sends) {
		qp->sq = slots + pattern->entries * sizeof(struct send_wqe);
		qp->sq_bytes = (record->sq_entries << record->sq_shift) + record->sq_entries * record->sq_slab_bytes;
	}
	qp->signal_all = pattern->signal_all;
	qp->send_cq = qp->recv_cq = place->cq;
	qp->send_cqn = qp->recv_cqn = place->cqn;
	be_store(qp->flow.source, 4, FABRIC_NET + 1 + at);
	be_store(qp->flow.destination, 4, FABRIC_NET + 1 + place->target);
	qp->flow.source_port = place->source_port;
	qp->flow.destination_port = place->target_port;
	qp->flow.address_bytes = 4;
	qp->found = device->changes;
	qp->route = qp;

	uint64_t slot = slot_of(device, place->number);
	device->directory[slot] = place->record;
	device->qps[slot] = qp;
	host->bare[slot] = 1;
	engine_schedule(&device->sched, place->record);
}

void fabric_bare_write(struct fabric *fabric, uint32_t at, struct engine_qp *qp, const uint8_t *descriptor,
		       uint64_t size, uint64_t from, uint32_t lkey, uint64_t to, uint32_t rkey)
{
	const struct fabric_host *host = &fabric->hosts[at];
	struct queue_pair *record = qp->record;
	uint8_t *entry = (uint8_t *)(uintptr_t)qp->sq; /* in this host's arena */
	uint64_t words[8];

	for (unsigned i = 0; i < 8; i++)
		words[i] = le_load(descriptor + 8 * i, 8);
	words[1] = from;
	words[2] = to;
	words[3] = size | (uint64_t)lkey << 32;
	words[4] = (words[4] & ~(uint64_t)UINT32_MAX) | rkey;
	for (unsigned i = 0; i < 64; i++)
		entry[i] = (uint8_t)(words[i / 8] >> 8 * (i % 8));
	record->tail = 1;
	engine_schedule(&host->device->sched, (uint64_t)((uint8_t *)record - host->device->sched.arena));
}

void fabric_bare_end(struct fabric *fabric, uint32_t at, struct engine_qp *qp)
{
	struct fabric_host *host = &fabric->hosts[at];
	struct engine_device *device = host->device;
	const struct engine_sched *sched = &device->sched;
	struct queue_pair *record = qp->record;
	uint64_t place = (uint64_t)((uint8_t *)record - sched->arena), slot = slot_of(device, record->number);

	if (record->reply_count) {
		struct engine_effects effects = { .sample = NONE };
		struct engine_out *out = &fabric->out;
		out->used = out->count = out->open = 0;
		out->max_segments = 1;
		engine_reply(device->shared, qp, record->reply_count, out, &effects);
		for (uint32_t i = 0; i < out->count; i++) {
			uint32_t packet = fabric_packet_make(fabric, out->bytes + out->bursts[i].offset,
							     out->bursts[i].length, &qp->flow, fabric_tclass(host, qp));
			if (packet == FABRIC_NONE)
				fabric->failed = 1;
			else
				fabric_queue_append(fabric, &host->words, packet);
			host->tx_bytes += out->bursts[i].length;
		}
		out->used = out->count = out->open = 0;
	}
	engine_timers_forget(sched, place);
	if (record->inflight)
		engine_inflight_release(sched, engine_record(sched, record->peer_record), record->inflight);
	record->inflight = 0;
	engine_inflight_leave(sched, place);
	if (record->scheduled)
		engine_scheduler_remove(sched, place);
	device->qps[slot] = NULL;
	device->directory[slot] = 0;
	host->bare[slot] = 0;
}

uint32_t fabric_bare_expected(const struct engine_qp *qp)
{
	return (uint32_t)be_get(qp->qpc, QPC_EXPECTED_PSN);
}

/* Addresses, in this process, of the queue pairs that a program's engine works on (bypass/arena_map.h). */
#if defined(__linux__)
#define _GNU_SOURCE
#include "bypass/arena_map.h"
#include "bypass/bypass_private.h"
#include "queue_pair/byteorder.h"
#include "queue_pair/message.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SEGMENTS 64u
#define DATAGRAM_HOP_LIMIT 64u /* if the entry gives none: device/paths.py */

/* Return whether the engine knows queue pairs of this service and state (device/queue_pair.py, _choose_executor). */
static int is_known(const uint8_t *qpc)
{
	uint64_t service = be_get(qpc, QPC_SERVTYPE), state = be_get(qpc, QPC_STATE);
	return (service == ST_RC || service == ST_UC || service == ST_UD) &&
	       (state == QP_STATE_RTR || state == QP_STATE_RTS || state == QP_STATE_SQD || state == QP_STATE_SQE);
}

/* Map a queue pair of the directory; NULL if the reference must handle it. */
static struct engine_qp *map_known_qp(struct bypass *bypass, uint64_t index, uint64_t at)
{
	uint8_t *arena = bypass->setup.arena;
	struct queue_pair *record = (struct queue_pair *)(void *)(arena + at);

	if (!at || !is_known(arena + record->context)) {
		if (bypass->mapped_qps[index]) /* the path's state belongs to an earlier connection */
			bypass->mapped_qps[index]->peer_path = (struct shm_loopback_path){ 0 };
		return NULL;
	}
	if (!bypass->mapped_qps[index])
		bypass->mapped_qps[index] = calloc(1, sizeof *bypass->mapped_qps[index]);
	if (!bypass->mapped_qps[index])
		return NULL;
	struct engine_qp *qp = &bypass->mapped_qps[index]->qp;
	qp->record = record;
	qp->qpc = arena + record->context;
	qp->sends = (struct send_wqe *)(void *)(arena + record->sends);
	qp->pieces = (struct read_piece *)(void *)(arena + record->pieces);
	qp->replies = (struct reply *)(void *)(arena + record->replies);
	qp->resources = (struct resource *)(void *)(arena + record->resources);
	qp->scatters = (struct scatter *)(void *)(arena + record->scatters);
	qp->block = bypass_block(bypass, record->block);
	qp->found = 0;
	qp->peer_path = NULL; /* its peer may be gone: bypass_map_qp looks it up */
	return qp;
}

void bypass_arena_changed(struct bypass *bypass)
{
	uint64_t changes = atomic_load_explicit(bypass_word(&bypass->slot->changes), memory_order_acquire);
	if (changes == bypass->device.changes)
		return;
	bypass->device.changes = changes;
	/* socket options, which the NIC process may also set */
	for (uint32_t i = 0; i < bypass->setup.source_port_count; i++) {
		struct tx_socket *source = &bypass->sources[i];
		source->tclass = source->hop_limit = source->segment = -1;
		if (bypass->uses_levels)
			source->priority = -1;
	}
	for (uint64_t i = 0; i < (uint64_t)1 << bypass->device.log_qps; i++)
		bypass->device.qps[i] = map_known_qp(bypass, i, bypass->device.directory[i]);
}

/* Find a completion queue by its number, if its ring is memory of this program; else NULL. */
static struct engine_cq *find_cq(const struct bypass *bypass, uint32_t number, struct engine_cq *cq)
{
	const struct device *root = bypass_root(bypass);
	uint64_t index = number & (((uint64_t)1 << root->log_qps) - 1);
	struct completion_queue *record =
		(struct completion_queue *)(void *)(bypass->setup.arena + root->cqs + index * sizeof *record);
	if (!record->start || record->lkey)
		return NULL;
	*cq = (struct engine_cq){
		.record = record,
		.ring = (uint8_t *)(uintptr_t)record->start,
		.entries = (uint64_t)1 << record->logsize,
		.block = bypass_block(bypass, record->usrpage),
	};
	return cq;
}

uint32_t bypass_scope_of(int fd)
{
	struct sockaddr_in6 mine = { .sin6_family = AF_UNSPEC };
	socklen_t bytes = sizeof mine;

	if (getsockname(fd, (struct sockaddr *)&mine, &bytes) || mine.sin6_family != AF_INET6)
		return 0;
	return mine.sin6_scope_id;
}

static int is_link_local(const uint8_t *address)
{
	return address[0] == 0xFE && (address[1] & 0xC0) == 0x80;
}

/* Return the socket of a source port, or NULL. The NIC process opens it on first use. */
static struct tx_socket *find_source(struct bypass *bypass, uint64_t port)
{
	for (uint32_t i = 0; i < bypass->setup.source_port_count; i++) {
		struct tx_socket *source = &bypass->sources[i];
		if (bypass->setup.source_ports[i] != port)
			continue;
		if (source->fd < 0)
			source->fd = bypass->setup.open_source(bypass->setup.self, (uint32_t)port);
		return source->fd < 0 ? NULL : source;
	}
	return NULL;
}

/* Return the source port of a datagram (device/paths.py): that of its entry, or one computed from the queue pair's
 * numbers. */
static uint16_t source_port_of(const struct bypass *bypass, const struct engine_qp *qp, uint64_t wished)
{
	uint32_t count = bypass->setup.source_port_count;
	uint64_t hashed = be_get(qp->qpc, QPC_LOCAL_QPN) * 0x9E37u ^ be_get(qp->qpc, QPC_REMOTE_QPN);

	if (!wished)
		wished = 0xC000u | (hashed & 0x3FFFu);
	for (uint32_t i = 0; i < count; i++)
		if (bypass->setup.source_ports[i] == wished)
			return (uint16_t)wished;
	return bypass->setup.source_ports[wished % count];
}

void bypass_set_path(struct bypass *bypass, struct tx_path *path, const struct engine_flow *flow, uint64_t flow_label,
		     uint64_t tclass, uint64_t hop_limit, uint64_t priority, uint32_t max_segments)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(flow->destination_port) };
	struct sockaddr_in6 to6 = { .sin6_family = AF_INET6, .sin6_port = htons(flow->destination_port) };

	*path = (struct tx_path){
		.socket = find_source(bypass, flow->source_port),
		.source_port = flow->source_port,
		.max_segments = max_segments,
		.tclass = (int32_t)tclass,
		.hop_limit = (int32_t)hop_limit,
		.priority = (int32_t)priority,
	};
	if (flow->address_bytes == 4) {
		memcpy(&to.sin_addr, flow->destination, 4);
		path->name_bytes = sizeof to;
		memcpy(path->name, &to, sizeof to);
	} else {
		memcpy(&to6.sin6_addr, flow->destination, 16);
		to6.sin6_flowinfo = htonl((uint32_t)flow_label);
		to6.sin6_scope_id = is_link_local(flow->destination) ? bypass->scope : 0;
		path->name_bytes = sizeof to6;
		memcpy(path->name, &to6, sizeof to6);
	}
}

/* Return whether an address is unicast on a known interface; the reference handles multicast. */
static int is_plain(const struct bypass *bypass, const uint8_t *address, uint32_t bytes)
{
	static const uint8_t unspecified[16];

	if (bytes == 4)
		return address[0] && address[0] < 224;
	return memcmp(address, unspecified, sizeof unspecified) && address[0] != 0xFF &&
	       (bypass->scope || !is_link_local(address));
}

int bypass_flow_of(const struct bypass *bypass, const uint8_t *name, uint32_t name_bytes, struct engine_flow *flow)
{
	struct sockaddr_in from;
	struct sockaddr_in6 from6;
	uint32_t bytes = bypass->setup.address_bytes;

	*flow = (struct engine_flow){ .address_bytes = (uint16_t)bytes,
				      .destination_port = (uint16_t)bypass->setup.port };
	memcpy(flow->destination, bypass->setup.address, bytes);
	if (bytes == 4 && name_bytes == sizeof from) {
		memcpy(&from, name, sizeof from);
		memcpy(flow->source, &from.sin_addr, 4);
		flow->source_port = ntohs(from.sin_port);
	} else if (bytes == 16 && name_bytes == sizeof from6) {
		memcpy(&from6, name, sizeof from6);
		memcpy(flow->source, &from6.sin6_addr, 16);
		flow->source_port = ntohs(from6.sin6_port);
	} else {
		return -1;
	}
	return 0;
}

/* Find the path of a queue pair's packets; NULL if only the link can find it. */
static const void *find_route(struct bypass *bypass, struct engine_qp *qp, struct tx_path *path)
{
	const struct flow *flow = engine_record(&bypass->device.sched, qp->record->path);
	uint32_t bytes = flow->family == 4 ? 4 : 16;

	qp->flow.address_bytes = (uint16_t)bytes;
	memcpy(qp->flow.source, &flow->src_0, bytes);
	memcpy(qp->flow.destination, &flow->dst_0, bytes);
	qp->flow.source_port = (uint16_t)flow->sport;
	qp->flow.destination_port = (uint16_t)flow->dport;
	if (bytes != bypass->setup.address_bytes || !is_plain(bypass, qp->flow.destination, bytes))
		return NULL;
	bypass->uses_levels |= flow->sl != 0;
	uint32_t segments = path->max_segments ? path->max_segments : MAX_SEGMENTS;
	bypass_set_path(bypass, path, &qp->flow, flow->flow_label, flow->tclass, flow->hop_limit, flow->sl & 0xF,
			segments);
	return path->socket ? path : NULL;
}

/* Map the destination that a queue pair's next send entry names (device/paths.py, datagram): 0, or -1 if it is the
 * reference's, as groups and addresses of the other family are. */
int bypass_map_destination(struct bypass *bypass, struct mapped_qp *mapped)
{
	static const uint8_t v4_mapped[12] = { [10] = 0xFF, [11] = 0xFF };
	struct engine_qp *qp = &mapped->qp;
	const struct queue_pair *record = qp->record;
	uint64_t index = record->fetch_index;

	if (record->service != SERVICE_UD || index >= record->sq_entries || !engine_ring_reachable(qp))
		return -1;
	const uint8_t *raw = qp->sq + (index << record->sq_shift), *gid = raw + 40;
	const struct send_wqe entry = { .entry_2 = le_load(raw + 16, 8), .entry_7 = le_load(raw + 56, 8) };
	const uint64_t words[2] = { le_load(gid, 8), le_load(gid + 8, 8) };
	uint32_t bytes = memcmp(gid, v4_mapped, sizeof v4_mapped) ? 16 : 4;
	const uint8_t *address = bytes == 4 ? gid + sizeof v4_mapped : gid;
	if (bytes != bypass->setup.address_bytes || !is_plain(bypass, address, bytes))
		return -1;
	bypass->uses_levels |= entry_get(&entry, SQE_UD_SL) != 0;
	if (!mapped->destination_cache)
		mapped->destination_cache = calloc(1, sizeof *mapped->destination_cache);
	if (!mapped->destination_cache)
		return -1;
	qp->destinations = mapped->destination_cache->destinations;
	uint64_t at = engine_destination_place(entry.entry_2, words), port = entry_get(&entry, SQE_UD_UDP_DPORT);
	uint64_t hop_limit = entry_get(&entry, SQE_UD_HOP_LIMIT);
	struct engine_destination *to = &mapped->destination_cache->destinations[at];
	if (!port)
		port = bypass->setup.port;
	*to = (struct engine_destination){
		.path = entry.entry_2,
		.gid = { words[0], words[1] },
		.hop_limit = hop_limit,
		.found = qp->found,
		.flow = { .source_port = source_port_of(bypass, qp, entry_get(&entry, SQE_UD_UDP_SPORT)),
			  .destination_port = (uint16_t)port,
			  .address_bytes = (uint16_t)bytes },
		.route = &mapped->destination_cache->paths[at],
		.max_segments = 1,
	};
	memcpy(to->flow.source, bypass->setup.address, bytes);
	memcpy(to->flow.destination, address, bytes);
	bypass_set_path(bypass, &mapped->destination_cache->paths[at], &to->flow, entry_get(&entry, SQE_UD_FLOW_LABEL),
			entry_get(&entry, SQE_UD_TCLASS), hop_limit ? hop_limit : DATAGRAM_HOP_LIMIT,
			entry_get(&entry, SQE_UD_SL), 1);
	return mapped->destination_cache->paths[at].socket ? 0 : -1;
}

void bypass_map_qp(struct bypass *bypass, uint64_t at)
{
	struct queue_pair *record = engine_record(&bypass->device.sched, at);
	uint64_t index = record->number & (((uint64_t)1 << bypass->device.log_qps) - 1);
	struct mapped_qp *mapped = bypass->mapped_qps[index];
	struct engine_qp *qp = &mapped->qp;

	qp->send_wqes = record->sq_entries;
	qp->signal_all = record->signal_all;
	qp->sq = be_get(qp->qpc, QPC_SND_WQE_BASE_LKEY) ? NULL : (const uint8_t *)(uintptr_t)record->sq_base;
	qp->sq_bytes = (record->sq_entries << record->sq_shift) + record->sq_entries * record->sq_slab_bytes;
	qp->srq = NULL;
	qp->srq_block = NULL;
	if (record->srq_record) {
		qp->srq = engine_record(&bypass->device.sched, record->srq_record);
		qp->srq_block = bypass_block(bypass, qp->srq->block);
		qp->rq = (const uint8_t *)(uintptr_t)qp->srq->base;
		qp->rq_bytes = qp->srq->entries * (qp->srq->stride + SRQ_ORDER_BYTES);
	} else {
		int keyed = be_get(qp->qpc, QPC_RCV_WQE_BASE_LKEY) != 0;
		qp->rq = keyed ? NULL : (const uint8_t *)(uintptr_t)record->rq_base;
		qp->rq_bytes = record->rq_entries * record->rq_stride;
	}
	qp->send_cqn = (uint32_t)be_get(qp->qpc, QPC_CQN_SND);
	qp->recv_cqn = (uint32_t)be_get(qp->qpc, QPC_CQN_RCV);
	qp->send_cq = find_cq(bypass, qp->send_cqn, &mapped->send_cq);
	qp->recv_cq = find_cq(bypass, qp->recv_cqn, &mapped->recv_cq);
	qp->destinations = mapped->destination_cache ? mapped->destination_cache->destinations : NULL;
	if (record->service == SERVICE_UD) {
		mapped->path = (struct tx_path){ 0 };
		qp->route = &mapped->path; /* each datagram has its own path */
	} else {
		qp->route = record->path ? find_route(bypass, qp, &mapped->path) : NULL;
	}
	qp->peer_path = NULL;
	if (bypass->shm && qp->route && be_get(qp->qpc, QPC_SERVTYPE) == ST_RC) {
		qp->peer_path = shm_loopback_path_of(bypass->shm, qp, &mapped->peer_path);
		mapped->path.divert = qp->peer_path ? shm_loopback_divert : NULL;
		mapped->path.divert_arg = &mapped->peer_path;
	}
	qp->found = bypass->device.changes;
}
#endif

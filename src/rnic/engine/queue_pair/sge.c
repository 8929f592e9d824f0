/* Where the bytes of a send work request lie: in its entry's region, in a scatter list, or in the send ring itself
 * (transport/sge.py; transport/wqe.py, SendRing). The list is read once, since software may change it meanwhile. */
#include "queue_pair/sge.h"

#include "queue_pair/message.h"

/* The slab slot of an entry, or NULL where it is not in reach. */
static const uint8_t *slab(const struct engine_qp *qp, uint64_t index)
{
	const struct queue_pair *record = qp->record;
	if (!engine_ring_reachable(qp) || index >= record->sq_entries)
		return NULL;
	return qp->sq + (record->sq_entries << record->sq_shift) + index * record->sq_slab_bytes;
}

int engine_ring_reachable(const struct engine_qp *qp)
{
	const struct queue_pair *record = qp->record;
	return qp->sq && record->sq_shift >= SQE_SHIFT && record->sq_shift <= 16 && record->sq_entries <= qp->send_slots &&
	       record->sq_slab_bytes <= qp->sq_bytes &&
	       (record->sq_entries << record->sq_shift) + record->sq_entries * record->sq_slab_bytes <= qp->sq_bytes;
}

/* One more span; 0, or -1 where its key does not open it. */
static int add(const struct engine_shared *port, const struct engine_qp *qp, uint32_t lkey, uint64_t va, uint64_t length,
	       uint64_t rights, struct source *source)
{
	struct span *span = &source->spans[source->count++];
	span->key = engine_key_check(port, lkey, be_get(qp->qpc, QPC_PD), va, length, rights, 0, 1);
	span->va = va;
	span->length = length;
	return span->key ? 0 : -1;
}

static enum engine_end find_list(const struct engine_shared *port, const struct engine_qp *qp, const struct send_slot *slot,
				 uint64_t index, uint64_t rights, struct source *source)
{
	uint64_t entries = entry_get(slot, SQE_LKEY), total = 0;
	const uint8_t *at = slab(qp, index);
	if (!at || entries > QP_SCATTERS || entries * SGE_BYTES > qp->record->sq_slab_bytes)
		return PUNT_REQUEST;
	for (; entries--; at += SGE_BYTES) {
		uint64_t va = le_load(at, 8), length = le_load(at + 8, 4);
		if (!length)
			continue;
		if (add(port, qp, (uint32_t)le_load(at + 12, 4), va, length, rights, source))
			return PUNT_KEY;
		total += length;
	}
	return total == source->length ? ENGINE_DONE : PUNT_REQUEST;
}

enum engine_end engine_sge_resolve(const struct engine_shared *port, const struct engine_qp *qp, const struct send_slot *slot,
				   uint64_t index, uint64_t rights, struct source *source)
{
	source->bytes = NULL;
	source->count = 0;
	source->length = entry_get(slot, SQE_LENGTH);
	if (entry_get(slot, SQE_INLINE)) {
		source->bytes = slab(qp, index);
		return source->bytes && !rights && source->length <= qp->record->sq_slab_bytes ? ENGINE_DONE : PUNT_REQUEST;
	}
	if (entry_get(slot, SQE_LIST))
		return find_list(port, qp, slot, index, rights, source);
	if (source->length && add(port, qp, (uint32_t)entry_get(slot, SQE_LKEY), entry_get(slot, SQE_LOCAL_ADDR), source->length,
				  rights, source))
		return PUNT_KEY;
	return ENGINE_DONE;
}

int engine_sge_reachable(const struct engine_shared *port, const struct source *source)
{
	for (unsigned i = 0; i < source->count; i++) {
		const struct engine_mapping *reach = &port->reach[source->spans[i].key - port->keys];
		if (!reach->bytes && !reach->segment)
			return 0;
	}
	return 1;
}

/* Read into `to`, or write from `from`; 0, or -1 where any byte is out of reach. */
static int move(const struct engine_shared *port, const struct source *source, uint64_t offset, uint8_t *to,
		const uint8_t *from, uint64_t size)
{
	for (unsigned i = 0; size && i < source->count; i++) {
		const struct span *span = &source->spans[i];
		if (offset >= span->length) {
			offset -= span->length;
			continue;
		}
		uint64_t part = lesser(size, span->length - offset);
		if (to ? engine_key_read(port, span->key, span->va + offset, to, part) :
			 engine_key_write(port, span->key, span->va + offset, from, part))
			return -1;
		if (to)
			to += part;
		else
			from += part;
		size -= part;
		offset = 0;
	}
	return size ? -1 : 0;
}

struct origin engine_sge_origin(const struct engine_shared *port, const struct source *source, uint64_t offset,
				   uint64_t size)
{
	const struct span *span = source->spans;

	if (source->bytes)
		return (struct origin){ .bytes = source->bytes + offset };
	if (source->count != 1 || !size || offset > span->length || size > span->length - offset)
		return (struct origin){ 0 };
	return engine_origin(port, span->key, span->va + offset);
}

int engine_sge_read(const struct engine_shared *port, const struct source *source, uint64_t offset, uint8_t *to,
		       uint64_t size)
{
	if (!source->bytes)
		return move(port, source, offset, to, NULL, size);
	memcpy(to, source->bytes + offset, size);
	return 0;
}

int engine_sge_write(const struct engine_shared *port, const struct source *source, uint64_t offset, const uint8_t *from,
			uint64_t size)
{
	return move(port, source, offset, NULL, from, size);
}

const struct memory_key *engine_sge_key(const struct source *source, uint64_t offset, uint64_t size, uint64_t *va)
{
	for (unsigned i = 0; i < source->count; i++) {
		const struct span *span = &source->spans[i];
		if (offset < span->length) {
			*va = span->va + offset;
			return size <= span->length - offset ? span->key : NULL;
		}
		offset -= span->length;
	}
	return NULL;
}

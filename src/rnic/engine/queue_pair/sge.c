/* Resolve the payload of a send work request: in its entry's region, in a scatter list, or in the send ring itself
 * (transport/sge.py; transport/wqe.py, SendRing). The list is read once, since software may change it. */
#include "queue_pair/sge.h"

#include "queue_pair/message.h"

/* Return the slab slot of an entry, or NULL if it is not accessible. */
static const uint8_t *slab_slot(const struct engine_qp *qp, uint64_t index)
{
	const struct queue_pair *record = qp->record;
	if (!engine_ring_reachable(qp) || index >= record->sq_entries)
		return NULL;
	return qp->sq + (record->sq_entries << record->sq_shift) + index * record->sq_slab_bytes;
}

int engine_ring_reachable(const struct engine_qp *qp)
{
	const struct queue_pair *record = qp->record;
	return qp->sq && record->sq_shift >= SQE_SHIFT && record->sq_shift <= 16 &&
	       record->sq_entries <= qp->send_wqes && record->sq_slab_bytes <= qp->sq_bytes &&
	       (record->sq_entries << record->sq_shift) + record->sq_entries * record->sq_slab_bytes <= qp->sq_bytes;
}

/* Add a scatter entry; 0, or -1 if its key does not cover it. */
static int add_sge(const struct engine_shared *shared, const struct engine_qp *qp, uint32_t lkey, uint64_t va,
		   uint64_t length, uint64_t rights, struct sge_list *sges)
{
	struct sge *sge = &sges->entries[sges->count++];
	sge->key = engine_key_check(shared, lkey, be_get(qp->qpc, QPC_PD), va, length, rights, 0, 1);
	sge->va = va;
	sge->length = length;
	return sge->key ? 0 : -1;
}

static enum engine_end find_sges(const struct engine_shared *shared, const struct engine_qp *qp,
				 const struct send_wqe *wqe, uint64_t index, uint64_t rights, struct sge_list *sges)
{
	uint64_t entries = entry_get(wqe, SQE_LKEY), total = 0;
	const uint8_t *at = slab_slot(qp, index);
	if (!at || entries > QP_SCATTERS || entries * SGE_BYTES > qp->record->sq_slab_bytes)
		return PUNT_REQUEST;
	for (; entries--; at += SGE_BYTES) {
		uint64_t va = le_load(at, 8), length = le_load(at + 8, 4);
		if (!length)
			continue;
		if (add_sge(shared, qp, (uint32_t)le_load(at + 12, 4), va, length, rights, sges))
			return PUNT_KEY;
		total += length;
	}
	return total == sges->length ? ENGINE_DONE : PUNT_REQUEST;
}

enum engine_end engine_sge_resolve(const struct engine_shared *shared, const struct engine_qp *qp,
				   const struct send_wqe *wqe, uint64_t index, uint64_t rights, struct sge_list *sges)
{
	sges->bytes = NULL;
	sges->count = 0;
	sges->length = entry_get(wqe, SQE_LENGTH);
	if (entry_get(wqe, SQE_INLINE)) {
		sges->bytes = slab_slot(qp, index);
		return sges->bytes && !rights && sges->length <= qp->record->sq_slab_bytes ? ENGINE_DONE : PUNT_REQUEST;
	}
	if (entry_get(wqe, SQE_LIST))
		return find_sges(shared, qp, wqe, index, rights, sges);
	if (sges->length && add_sge(shared, qp, (uint32_t)entry_get(wqe, SQE_LKEY), entry_get(wqe, SQE_LOCAL_ADDR),
				    sges->length, rights, sges))
		return PUNT_KEY;
	return ENGINE_DONE;
}

int engine_sge_reachable(const struct engine_shared *shared, const struct sge_list *sges)
{
	for (unsigned i = 0; i < sges->count; i++) {
		const struct engine_mapping *reach = &shared->reach[sges->entries[i].key - shared->keys];
		if (!reach->bytes && !reach->segment)
			return 0;
	}
	return 1;
}

/* Read into `to`, or write from `from`; 0, or -1 if any byte is not accessible. */
static int move_bytes(const struct engine_shared *shared, const struct sge_list *sges, uint64_t offset, uint8_t *to,
		      const uint8_t *from, uint64_t size)
{
	for (unsigned i = 0; size && i < sges->count; i++) {
		const struct sge *sge = &sges->entries[i];
		if (offset >= sge->length) {
			offset -= sge->length;
			continue;
		}
		uint64_t part = lesser(size, sge->length - offset);
		if (to ? engine_key_read(shared, sge->key, sge->va + offset, to, part) :
			 engine_key_write(shared, sge->key, sge->va + offset, from, part))
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

struct origin engine_sge_origin(const struct engine_shared *shared, const struct sge_list *sges, uint64_t offset,
				uint64_t size)
{
	const struct sge *sge = sges->entries;

	if (sges->bytes)
		return (struct origin){ .bytes = sges->bytes + offset };
	if (sges->count != 1 || !size || offset > sge->length || size > sge->length - offset)
		return (struct origin){ 0 };
	return engine_origin(shared, sge->key, sge->va + offset);
}

int engine_sge_read(const struct engine_shared *shared, const struct sge_list *sges, uint64_t offset, uint8_t *to,
		    uint64_t size)
{
	if (!sges->bytes)
		return move_bytes(shared, sges, offset, to, NULL, size);
	memcpy(to, sges->bytes + offset, size);
	return 0;
}

int engine_sge_write(const struct engine_shared *shared, const struct sge_list *sges, uint64_t offset,
		     const uint8_t *from, uint64_t size)
{
	return move_bytes(shared, sges, offset, NULL, from, size);
}

const struct memory_key *engine_sge_key(const struct sge_list *sges, uint64_t offset, uint64_t size, uint64_t *va)
{
	for (unsigned i = 0; i < sges->count; i++) {
		const struct sge *sge = &sges->entries[i];
		if (offset < sge->length) {
			*va = sge->va + offset;
			return size <= sge->length - offset ? sge->key : NULL;
		}
		offset -= sge->length;
	}
	return NULL;
}

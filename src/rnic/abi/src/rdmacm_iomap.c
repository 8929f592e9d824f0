/* Memory that one end of a stream maps and the other writes to: riomap, riounmap, riowrite. */
#define _GNU_SOURCE
#include "rdmacm_rs.h"

#include <sys/mman.h>

/* Tells the peer of memory that it may write to. */
int stream_say_mapped(struct rsocket *rs, int flags)
{
	for (uint32_t i = 0; rs->unsaid && i < rs->remote_iomap.length; i++) {
		struct rs_mapped *mapped = &rs->mapped[i];
		struct rs_iomap iomap;

		if (!mapped->mr || mapped->said)
			continue;
		if (stream_wait_to_send(rs, flags))
			return -1;
		iomap.offset = rs->swap ? __builtin_bswap64(mapped->offset) : mapped->offset;
		iomap.target = stream_as_peer_has_it(rs, (uintptr_t)mapped->mr->addr, mapped->mr->rkey, (uint32_t)mapped->mr->length);
		rs->sends++;
		rs->sent++;
		stream_post(rs, RS_OP_IOMAP, i, &iomap, sizeof iomap, 0, rs->remote_iomap.addr + i * sizeof iomap,
			   rs->remote_iomap.key);
		mapped->said = true;
	}
	rs->unsaid = false;
	return 0;
}

static int make_mapped(struct rsocket *rs)
{
	if (!rs->mapped && rs->remote_iomap.length)
		rs->mapped = calloc(rs->remote_iomap.length, sizeof *rs->mapped);
	return rs->mapped ? 0 : ENOMEM;
}

off_t stream_map(struct rsocket *rs, void *data, size_t bytes, int protection, off_t offset)
{
	uint32_t i = 0;

	if (!rs->id || !rs->id->pd || protection & ~PROT_WRITE)
		return minus(EINVAL);
	if (offset == -1)
		offset = (off_t)(uintptr_t)data;
	if (!(protection & PROT_WRITE))
		return offset; /* only this side knows of it, and copies */
	if (make_mapped(rs))
		return minus(ENOMEM);
	while (i < rs->remote_iomap.length && rs->mapped[i].mr)
		i++;
	if (i == rs->remote_iomap.length)
		return minus(ENOMEM);
	rs->mapped[i] = (struct rs_mapped){
		ibv_reg_mr(rs->id->pd, data, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE), (uint64_t)offset, false
	};
	if (!rs->mapped[i].mr)
		return -1;
	rs->unsaid = true;
	return offset;
}

int stream_unmap(struct rsocket *rs, const void *data, size_t bytes)
{
	for (uint32_t i = 0; rs->mapped && i < rs->remote_iomap.length; i++) {
		struct rs_mapped *mapped = &rs->mapped[i];

		if (!mapped->mr || mapped->mr->addr != data || mapped->mr->length != bytes)
			continue;
		ibv_dereg_mr(mapped->mr);
		mapped->mr = NULL;
		return 0;
	}
	return 0;
}

static struct rs_iomap *find_mapped(struct rsocket *rs, uint64_t offset)
{
	struct rs_iomap *maps = (struct rs_iomap *)(void *)(rs->targets + RS_TARGETS);

	for (unsigned i = 0; i < rs->iomap_size; i++)
		if (offset >= maps[i].offset && offset - maps[i].offset < maps[i].target.length)
			return &maps[i];
	return NULL;
}

size_t stream_write_at(struct rsocket *rs, const void *data, size_t bytes, off_t offset, int flags)
{
	size_t done = 0;

	if (rs->unsaid && stream_say_mapped(rs, flags))
		return (size_t)-1;
	while (done < bytes) {
		uint64_t to = (uint64_t)offset + done;
		struct rs_iomap *map = find_mapped(rs, to);
		uint32_t size;
		uint8_t *at;

		if (!map)
			break;
		if (stream_wait_to_send(rs, flags))
			return done ? done : (size_t)-1;
		size = rs_least(rs_least(stream_room(rs), RS_LONGEST_WRITE), (uint32_t)(map->target.length - (to - map->offset)));
		size = (uint32_t)(bytes - done < size ? bytes - done : size);
		at = rs->send_ring + rs->send_head;
		memcpy(at, (const uint8_t *)data + done, size);
		rs->send_head += size;
		rs->send_used += size;
		rs->sends++;
		if (stream_post(rs, RS_OP_WRITE, size, at, size, rs->send_mr->lkey, map->target.addr + (to - map->offset),
			       map->target.key))
			return done ? done : (size_t)minus(rs->error);
		done += size;
	}
	return done;
}

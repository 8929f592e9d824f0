/* Memory that one end of a stream maps and the other writes to: riomap, riounmap, riowrite. */
#include "rdmacm_iomap.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "compiler.h"
#include "errors.h"
#include "rdmacm_stream.h"

int stream_send_iomaps(struct rsocket *rs, int flags)
{
	for (uint32_t i = 0; rs->iomaps_pending && i < rs->remote_iomap.length; i++) {
		struct rs_iomap_mr *iomap_mr = &rs->iomap_mrs[i];
		struct rs_iomap iomap;

		if (!iomap_mr->mr || iomap_mr->sent)
			continue;
		if (stream_wait_can_send(rs, flags))
			return -1;
		iomap.offset = rs->swap_sgl ? __builtin_bswap64(iomap_mr->offset) : iomap_mr->offset;
		iomap.sge = stream_peer_sge(rs, (uintptr_t)iomap_mr->mr->addr, iomap_mr->mr->rkey,
					    (uint32_t)iomap_mr->mr->length);
		rs->sends++;
		rs->sseq_no++;
		stream_post_write(rs, RS_OP_IOMAP_SGL, i, &iomap, sizeof iomap, 0,
				  rs->remote_iomap.addr + i * sizeof iomap, rs->remote_iomap.key);
		iomap_mr->sent = true;
	}
	rs->iomaps_pending = false;
	return 0;
}

static int alloc_iomap_mrs(struct rsocket *rs)
{
	if (!rs->iomap_mrs && rs->remote_iomap.length)
		rs->iomap_mrs = calloc(rs->remote_iomap.length, sizeof *rs->iomap_mrs);
	return rs->iomap_mrs ? 0 : ENOMEM;
}

static off_t map_memory(struct rsocket *rs, void *data, size_t bytes, int protection, off_t offset)
{
	uint32_t i = 0;

	if (!rs->id || !rs->id->pd || protection & ~PROT_WRITE)
		return rdma_seterrno(EINVAL);
	if (offset == -1)
		offset = (off_t)(uintptr_t)data;
	if (!(protection & PROT_WRITE))
		return offset; /* read-only memory is not announced to the peer */
	if (alloc_iomap_mrs(rs))
		return rdma_seterrno(ENOMEM);
	while (i < rs->remote_iomap.length && rs->iomap_mrs[i].mr)
		i++;
	if (i == rs->remote_iomap.length)
		return rdma_seterrno(ENOMEM);
	rs->iomap_mrs[i] = (struct rs_iomap_mr){ ibv_reg_mr(rs->id->pd, data, bytes,
							    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE),
						 (uint64_t)offset, false };
	if (!rs->iomap_mrs[i].mr)
		return -1;
	rs->iomaps_pending = true;
	return offset;
}

static int unmap_memory(struct rsocket *rs, const void *data, size_t bytes)
{
	for (uint32_t i = 0; rs->iomap_mrs && i < rs->remote_iomap.length; i++) {
		struct rs_iomap_mr *iomap_mr = &rs->iomap_mrs[i];

		if (!iomap_mr->mr || iomap_mr->mr->addr != data || iomap_mr->mr->length != bytes)
			continue;
		ibv_dereg_mr(iomap_mr->mr);
		iomap_mr->mr = NULL;
		return 0;
	}
	return 0;
}

static struct rs_iomap *find_iomap(struct rsocket *rs, uint64_t offset)
{
	struct rs_iomap *maps = (struct rs_iomap *)(void *)(rs->target_sgl + RS_SGL_SIZE);

	for (unsigned i = 0; i < rs->iomap_size; i++)
		if (offset >= maps[i].offset && offset - maps[i].offset < maps[i].sge.length)
			return &maps[i];
	return NULL;
}

static size_t write_at(struct rsocket *rs, const void *data, size_t bytes, off_t offset, int flags)
{
	size_t done = 0;

	if (rs->iomaps_pending && stream_send_iomaps(rs, flags))
		return (size_t)-1;
	while (done < bytes) {
		uint64_t to = (uint64_t)offset + done;
		struct rs_iomap *map = find_iomap(rs, to);
		uint32_t size;
		uint8_t *at;

		if (!map)
			break;
		if (stream_wait_can_send(rs, flags))
			return done ? done : (size_t)-1;
		at = stream_claim_sbuf(rs, bytes - done, (uint32_t)(map->sge.length - (to - map->offset)), &size);
		memcpy(at, (const uint8_t *)data + done, size);
		if (stream_post_write(rs, RS_OP_WRITE, size, at, size, rs->smr->lkey,
				      map->sge.addr + (to - map->offset), map->sge.key))
			return done ? done : (size_t)rdma_seterrno(rs->error);
		done += size;
	}
	return done;
}

EXPORT off_t riomap(int fd, void *data, size_t bytes, int protection, int flags UNUSED, off_t offset)
{
	ENTER(fd);
	LEAVE(rs->ops->type == SOCK_STREAM ? map_memory(rs, data, bytes, protection, offset) :
					     (off_t)rdma_seterrno(EOPNOTSUPP));
}

EXPORT int riounmap(int fd, void *data, size_t bytes)
{
	ENTER(fd);
	LEAVE(rs->ops->type == SOCK_STREAM ? unmap_memory(rs, data, bytes) : rdma_seterrno(EOPNOTSUPP));
}

EXPORT size_t riowrite(int fd, const void *data, size_t bytes, off_t offset, int flags)
{
	ENTER(fd);
	LEAVE(rs->ops->type == SOCK_STREAM ? write_at(rs, data, bytes, offset, flags) :
					     (size_t)rdma_seterrno(EOPNOTSUPP));
}

/* Buffers that the library allocates (rdma-core 64 and later): plain memory, since a device needs no other kind. */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "compiler.h"
#include "errors.h"
#include "mr.h"
#include "rnic_reasons.h"
#include "verbs_abi.h"

struct ibv_buf { /* opaque to programs */
	struct ibv_pd *pd;
	void *addr;
	size_t size;
};

static const char register_verb[] = "ibv_reg_mr_ex";

EXPORT void *ibv_alloc_buf(struct ibv_pd *pd, size_t size, struct ibv_buf **made)
{
	struct ibv_buf *buf = malloc(sizeof *buf);
	int error;

	if (!buf)
		return fail_null(ENOMEM);
	*buf = (struct ibv_buf){ .pd = pd, .size = size };
	error = posix_memalign(&buf->addr, (size_t)sysconf(_SC_PAGESIZE), size);
	if (error) {
		free(buf);
		return fail_null(error);
	}
	*made = buf;
	return buf->addr;
}

EXPORT void ibv_free_buf(struct ibv_buf *buf)
{
	free(buf->addr);
	free(buf);
}

/* No buffer is a dma-buf. */
EXPORT int ibv_export_buf_dmabuf_fd(struct ibv_buf *buf UNUSED)
{
	errno = ENODATA;
	return -1;
}

static bool is_in_buf(const struct ibv_buf *buf, const struct ibv_mr_init_attr *attr)
{
	size_t before = (uintptr_t)attr->addr - (uintptr_t)buf->addr;

	return (uintptr_t)attr->addr >= (uintptr_t)buf->addr && before <= buf->size &&
	       attr->length <= buf->size - before;
}

EXPORT struct ibv_mr *ibv_reg_mr_ex(struct ibv_pd *pd, struct ibv_mr_init_attr *attr)
{
	const uint64_t of_fd = IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET;
	uint64_t mask = attr->comp_mask;

	if (mask & IBV_REG_MR_MASK_BUF) {
		if (attr->buf->pd != pd || !(mask & IBV_REG_MR_MASK_ADDR) || mask & of_fd ||
		    !is_in_buf(attr->buf, attr))
			return fail_null(why_bad_value(EINVAL, register_verb,
						       "a range beyond the buffer, or another domain's buffer,"));
		mask &= ~(uint64_t)IBV_REG_MR_MASK_BUF;
	}
	if (mask & ~(of_fd | IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_IOVA))
		return fail_null(why_not_supported(EOPNOTSUPP, register_verb, "what comp_mask asks for",
						   "ADDR, IOVA, FD with FD_OFFSET, and BUF are supported"));
	if (mask == (of_fd | IBV_REG_MR_MASK_IOVA))
		return ibv_reg_dmabuf_mr(pd, attr->fd_offset, attr->length, attr->iova, attr->fd, attr->access);
	if (mask & of_fd || !(mask & IBV_REG_MR_MASK_ADDR))
		return fail_null(why_bad_value(EINVAL, register_verb,
					       "comp_mask without ADDR, or FD without FD_OFFSET and IOVA,"));
	return ibv_reg_mr_iova2(pd, attr->addr, attr->length,
				mask & IBV_REG_MR_MASK_IOVA ? attr->iova : (uintptr_t)attr->addr,
				(unsigned)attr->access);
}

EXPORT struct ibv_mr *ibv_reg_buf_mr(struct ibv_pd *pd, struct ibv_buf *buf, void *addr, size_t length, int access)
{
	struct ibv_mr_init_attr attr = { .length = length,
					 .access = access,
					 .comp_mask = IBV_REG_MR_MASK_BUF | IBV_REG_MR_MASK_ADDR,
					 .addr = addr,
					 .buf = buf };

	return ibv_reg_mr_ex(pd, &attr);
}

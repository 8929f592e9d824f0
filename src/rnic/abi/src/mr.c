/* Protection domains, memory regions and windows, address handles. */
#include "rnic.h"

#include <arpa/inet.h>
#include <limits.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- protection domains */

EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *verbs)
{
	struct rnic_pd *pd = calloc(1, sizeof *pd);
	int error;

	if (!pd)
		return NULL;
	error = nic_allocate(context_of(verbs), RNIC_CMD_RES_PD, &pd->verbs.handle);
	if (error) {
		free(pd);
		return fail_null(error);
	}
	pd->verbs.context = verbs;
	return &pd->verbs;
}

EXPORT int ibv_dealloc_pd(struct ibv_pd *verbs)
{
	struct rnic_pd *pd = (struct rnic_pd *)verbs;

	if (pd->users && !context_of(verbs->context)->dead)
		return fail(EBUSY);
	if (pd->parent)
		pd->parent->users--;
	else
		nic_free(context_of(verbs->context), RNIC_CMD_RES_PD, verbs->handle);
	free(pd);
	return 0;
}

/* A parent domain is its protection domain under another name: there are no locks here to leave out. */
struct ibv_pd *rnic_alloc_parent_domain(struct ibv_context *verbs, struct ibv_parent_domain_init_attr *attr)
{
	struct rnic_pd *pd;

	if (!attr->pd)
		return fail_null(EINVAL);
	if (attr->comp_mask & ~3u)
		return fail_null(EOPNOTSUPP);
	pd = calloc(1, sizeof *pd);
	if (!pd)
		return NULL;
	pd->verbs.context = verbs;
	pd->verbs.handle = attr->pd->handle;
	pd->parent = (struct rnic_pd *)attr->pd;
	pd->parent->users++;
	return &pd->verbs;
}

struct ibv_td *rnic_alloc_td(struct ibv_context *verbs, void *attr)
{
	struct ibv_td *td;
	uint32_t comp_mask;

	memcpy(&comp_mask, attr, sizeof comp_mask);
	if (comp_mask)
		return fail_null(EOPNOTSUPP);
	td = calloc(1, sizeof *td);
	if (td)
		td->context = verbs;
	return td;
}

int rnic_dealloc_td(struct ibv_td *td)
{
	free(td);
	return 0;
}

/* ---- regions */

enum {
	RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
		 IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED,
	IGNORED = IBV_ACCESS_OPTIONAL_RANGE | IBV_ACCESS_HUGETLB,
};

static int check_rights(unsigned int access)
{
	if (access & ~(unsigned)(RIGHTS | IGNORED))
		return access & IBV_ACCESS_ON_DEMAND ? EOPNOTSUPP : EINVAL;
	if (access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) && !(access & IBV_ACCESS_LOCAL_WRITE))
		return EINVAL;
	return 0;
}

static int enable(struct rnic_mr *mr)
{
	uint8_t entry[RNIC_MPT_SIZE] = { 0 };
	unsigned int access = mr->access;

	rnic_put_be(entry, RNIC_MPT_REGION, 1);
	rnic_put_be(entry, RNIC_MPT_NULL, mr->null);
	rnic_put_be(entry, RNIC_MPT_LOCAL_WRITE, !!(access & IBV_ACCESS_LOCAL_WRITE));
	rnic_put_be(entry, RNIC_MPT_REMOTE_WRITE, !!(access & IBV_ACCESS_REMOTE_WRITE));
	rnic_put_be(entry, RNIC_MPT_REMOTE_READ, !!(access & IBV_ACCESS_REMOTE_READ));
	rnic_put_be(entry, RNIC_MPT_ATOMIC, !!(access & IBV_ACCESS_REMOTE_ATOMIC));
	rnic_put_be(entry, RNIC_MPT_BIND_ENABLE, !!(access & IBV_ACCESS_MW_BIND));
	rnic_put_be(entry, RNIC_MPT_RELATIVE, !!(access & IBV_ACCESS_ZERO_BASED));
	rnic_put_be(entry, RNIC_MPT_ABSOLUTE, !(access & IBV_ACCESS_ZERO_BASED));
	rnic_put_be(entry, RNIC_MPT_KEY, mr->verbs.lkey);
	rnic_put_be(entry, RNIC_MPT_PD, mr->verbs.pd->handle);
	rnic_put_be(entry, RNIC_MPT_START, access & IBV_ACCESS_ZERO_BASED ? 0 : mr->iova);
	rnic_put_be(entry, RNIC_MPT_LENGTH, mr->verbs.length);
	rnic_put_be(entry, RNIC_MPT_ADDRESS, (uintptr_t)mr->memory);
	return nic_command(context_of(mr->verbs.context), RNIC_CMD_SW2HW_MPT, 0, mr->verbs.lkey, entry, sizeof entry, NULL,
			   0, NULL);
}

static int disable(struct rnic_mr *mr)
{
	return nic_command(context_of(mr->verbs.context), RNIC_CMD_HW2SW_MPT, 0, mr->verbs.lkey, NULL, 0, NULL, 0, NULL);
}

/* `like` says what is to be registered; what is returned is a copy with its key. */
static struct ibv_mr *register_like(struct ibv_pd *pd, const struct rnic_mr *like)
{
	struct rnic_context *context = context_of(pd->context);
	size_t length = like->verbs.length;
	struct rnic_mr *mr;
	int error = check_rights(like->access);

	if (error)
		return fail_null(error);
	mr = malloc(sizeof *mr);
	if (!mr)
		return NULL;
	*mr = *like;
	mr->verbs.context = pd->context;
	mr->verbs.pd = pd;
	error = nic_allocate(context, RNIC_CMD_RES_MPT, &mr->verbs.lkey);
	if (error)
		goto out;
	mr->verbs.rkey = mr->verbs.handle = mr->verbs.lkey;
	error = enable(mr);
	if (error)
		nic_free(context, RNIC_CMD_RES_MPT, mr->verbs.lkey);
	if (error == EINVAL && length)
		error = EFAULT; /* what the device finds wrong with a range: not all mapped, or not writable */
out:
	if (error) {
		free(mr);
		return fail_null(error);
	}
	((struct rnic_pd *)pd)->users++;
	return &mr->verbs;
}

static struct ibv_mr *register_memory(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	struct rnic_mr mr = { .verbs = { .addr = addr, .length = length }, .iova = iova, .access = access, .memory = addr };

	return register_like(pd, &mr);
}

/* For scatter lists: a message's part that nobody wants, and zeros where nobody has any. Its device opens half of all
 * addresses by it, and in that half are all that a program has. */
struct ibv_mr *rnic_alloc_null_mr(struct ibv_pd *pd)
{
	struct rnic_mr mr = { .verbs = { .length = 1ull << 63 }, .access = IBV_ACCESS_LOCAL_WRITE, .null = true };

	return register_like(pd, &mr);
}

/* Whether a descriptor is of memory that may be shared: a dma-buf, or what memfd_create makes. */
static bool is_buffer(int fd)
{
	char path[64], target[PATH_MAX];
	ssize_t length;

	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	length = readlink(path, target, sizeof target - 1);
	if (length < 0)
		return false;
	target[length] = 0;
	return strncmp(target, "/memfd:", 7) == 0 || strncmp(target, "/dmabuf:", 8) == 0;
}

/* A dma-buf that its exporter lets a program map, as udmabuf's, is reached through a mapping like any other memory. */
EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
					int access)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), before = offset & (page - 1);
	int protection = access & IBV_ACCESS_LOCAL_WRITE ? PROT_READ | PROT_WRITE : PROT_READ;
	struct rnic_mr mr = { .verbs = { .addr = (void *)(uintptr_t)offset, .length = length }, .iova = iova,
			      .access = (unsigned)access, .map_bytes = length + before };
	struct ibv_mr *made;
	off_t end;

	if (!is_buffer(fd))
		return fail_null(EOPNOTSUPP);
	end = lseek(fd, 0, SEEK_END);
	if (end < 0 || !length || offset > (uint64_t)end || length > (uint64_t)end - offset || (iova ^ offset) & (page - 1))
		return fail_null(EINVAL);
	mr.map = mmap(NULL, mr.map_bytes, protection, MAP_SHARED, fd, (off_t)(offset - before));
	if (mr.map == MAP_FAILED)
		return fail_null(errno == ENODEV ? EOPNOTSUPP : errno);
	mr.memory = (uint8_t *)mr.map + before;
	made = register_like(pd, &mr);
	if (!made) {
		int error = errno;

		munmap(mr.map, mr.map_bytes);
		errno = error;
	}
	return made;
}

EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return register_memory(pd, addr, length, (uintptr_t)addr, (unsigned)access);
}

EXPORT struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	return register_memory(pd, addr, length, iova, (unsigned)access);
}

EXPORT struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	return register_memory(pd, addr, length, iova, access);
}

EXPORT int ibv_dereg_mr(struct ibv_mr *verbs)
{
	struct rnic_mr *mr = (struct rnic_mr *)verbs;
	struct rnic_context *context = context_of(verbs->context);
	int error = disable(mr);

	if (error && !context->dead)
		return fail(error);
	if (!context->dead)
		nic_free(context, RNIC_CMD_RES_MPT, verbs->lkey);
	((struct rnic_pd *)verbs->pd)->users--;
	if (mr->map)
		munmap(mr->map, mr->map_bytes);
	free(mr);
	return 0;
}

EXPORT int ibv_rereg_mr(struct ibv_mr *verbs, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct rnic_mr *mr = (struct rnic_mr *)verbs, old = *mr;

	if (!flags || flags & ~7 || mr->map || mr->null || (flags & IBV_REREG_MR_CHANGE_TRANSLATION && (!addr || !length)) ||
	    (flags & IBV_REREG_MR_CHANGE_PD && !pd) ||
	    (flags & IBV_REREG_MR_CHANGE_ACCESS && check_rights((unsigned)access))) {
		errno = EINVAL;
		return IBV_REREG_MR_ERR_INPUT;
	}
	errno = disable(mr);
	if (errno)
		return IBV_REREG_MR_ERR_CMD;
	if (flags & IBV_REREG_MR_CHANGE_PD)
		verbs->pd = pd;
	if (flags & IBV_REREG_MR_CHANGE_ACCESS)
		mr->access = (unsigned)access;
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
		verbs->addr = addr;
		mr->memory = addr;
		verbs->length = length;
		mr->iova = (uintptr_t)addr;
	}
	errno = enable(mr);
	if (errno) {
		int error = errno;

		*mr = old;
		if (enable(mr))
			complain("memory region %#x is lost: it could not be put back after a change failed", verbs->lkey);
		errno = error;
		return IBV_REREG_MR_ERR_CMD;
	}
	((struct rnic_pd *)old.verbs.pd)->users--;
	((struct rnic_pd *)verbs->pd)->users++;
	return 0;
}

/* ---- windows */

struct ibv_mw *rnic_alloc_mw(struct ibv_pd *pd, int type)
{
	struct rnic_mw *mw;
	uint64_t key = 0;
	int error;

	if (type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2)
		return fail_null(EINVAL);
	mw = calloc(1, sizeof *mw);
	if (!mw)
		return NULL;
	error = nic_command(context_of(pd->context), RNIC_CMD_ALLOC_MW, (uint16_t)type, pd->handle, NULL, 0, NULL, 0, &key);
	if (error) {
		free(mw);
		return fail_null(error);
	}
	mw->verbs = (struct ibv_mw){ .context = pd->context, .pd = pd, .rkey = (uint32_t)key, .type = type };
	mw->key = mw->before = (uint32_t)key;
	((struct rnic_pd *)pd)->users++;
	return &mw->verbs;
}

int rnic_bind_mw(struct ibv_qp *qp, struct ibv_mw *verbs, struct ibv_mw_bind *bind)
{
	struct ibv_send_wr wr = { .wr_id = bind->wr_id, .opcode = IBV_WR_BIND_MW, .send_flags = bind->send_flags }, *bad;
	int error;

	if (verbs->type != IBV_MW_TYPE_1 || (bind->bind_info.mr && bind->bind_info.mr->pd != verbs->pd))
		return fail(verbs->type != IBV_MW_TYPE_1 ? EINVAL : EPERM);
	wr.bind_mw.mw = verbs;
	wr.bind_mw.rkey = (verbs->rkey & ~0xFFu) | ((verbs->rkey + 1) & 0xFF);
	wr.bind_mw.bind_info = bind->bind_info;
	error = rnic_post_send(qp, &wr, &bad);
	if (!error)
		verbs->rkey = wr.bind_mw.rkey;
	return error;
}

int rnic_dealloc_mw(struct ibv_mw *verbs)
{
	struct rnic_mw *mw = (struct rnic_mw *)verbs;
	struct rnic_context *context = context_of(verbs->context);
	int error = nic_command(context, RNIC_CMD_DEALLOC_MW, 0, mw->key, NULL, 0, NULL, 0, NULL);

	if (error && mw->before != mw->key)
		error = nic_command(context, RNIC_CMD_DEALLOC_MW, 0, mw->before, NULL, 0, NULL, 0, NULL);
	if (error && !context->dead)
		return fail(error);
	((struct rnic_pd *)verbs->pd)->users--;
	free(mw);
	return 0;
}

/* ---- address handles */

EXPORT struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	static const union ibv_gid none;
	struct rnic_context *context = context_of(pd->context);
	const uint8_t *own = context->limits + RNIC_DEV_LIM_GID0_AT;
	struct rnic_ah *ah;

	/* RoCE has no local routes: a handle needs a GID, and one of the port's IP version (Annex A17, 17.4.4). */
	if (!attr->is_global || attr->port_num != 1 ||
	    attr->grh.sgid_index >= rnic_get_be(context->limits, RNIC_DEV_LIM_GID_COUNT) ||
	    memcmp(attr->grh.dgid.raw, none.raw, 16) == 0 || is_ipv4(attr->grh.dgid.raw) != is_ipv4(own))
		return fail_null(EINVAL);
	ah = calloc(1, sizeof *ah);
	if (!ah)
		return NULL;
	ah->verbs.context = pd->context;
	ah->verbs.pd = pd;
	memcpy(ah->dgid, attr->grh.dgid.raw, 16);
	ah->path = (attr->sl & 0xFu) << 28 | (uint32_t)attr->grh.traffic_class << 20 | (attr->grh.flow_label & 0xFFFFF);
	ah->hop_limit = attr->grh.hop_limit;
	ah->sgid_index = attr->grh.sgid_index;
	((struct rnic_pd *)pd)->users++;
	return &ah->verbs;
}

EXPORT int ibv_destroy_ah(struct ibv_ah *verbs)
{
	((struct rnic_pd *)verbs->pd)->users--;
	free(verbs);
	return 0;
}

enum { IPV4_AT = 20, IPV4_SOURCE_AT = 12, IPV4_DESTINATION_AT = 16, IPV4_TOS_AT = 1, REPLY_HOPS = 255 };

/* The 40 bytes before a datagram hold an IPv6 header, or an IPv4 header in the last 20 (Annex A17, 17.4.5.2), as the family of
 * the device's address is: an IPv6 address may look like the beginning of an IPv4 header. */
EXPORT int ibv_init_ah_from_wc(struct ibv_context *verbs, uint8_t port, struct ibv_wc *wc, struct ibv_grh *grh,
			       struct ibv_ah_attr *attr)
{
	struct rnic_context *context = context_of(verbs);
	const uint8_t *own = context->limits + RNIC_DEV_LIM_GID0_AT, *ip = (const uint8_t *)grh + IPV4_AT;
	union ibv_gid to = { .raw = { 0 } };

	memset(attr, 0, sizeof *attr);
	attr->port_num = port;
	if (!(wc->wc_flags & IBV_WC_GRH)) {
		errno = EINVAL;
		return -1;
	}
	attr->is_global = 1;
	attr->grh.hop_limit = REPLY_HOPS;
	if (is_ipv4(own)) {
		attr->grh.dgid.raw[10] = attr->grh.dgid.raw[11] = to.raw[10] = to.raw[11] = 0xFF;
		memcpy(attr->grh.dgid.raw + 12, ip + IPV4_SOURCE_AT, 4);
		memcpy(to.raw + 12, ip + IPV4_DESTINATION_AT, 4);
		attr->grh.traffic_class = ip[IPV4_TOS_AT];
	} else {
		uint32_t first = ntohl(grh->version_tclass_flow);

		attr->grh.dgid = grh->sgid;
		to = grh->dgid;
		attr->grh.traffic_class = (uint8_t)(first >> 20);
		attr->grh.flow_label = first & 0xFFFFF;
	}
	if (memcmp(own, to.raw, 16) != 0 && to.raw[0] != 0xFF && (to.raw[12] & 0xF0) != 0xE0) {
		errno = EINVAL; /* not for this port's GID, nor for a group */
		return -1;
	}
	return 0;
}

EXPORT struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port)
{
	struct ibv_ah_attr attr;

	return ibv_init_ah_from_wc(pd->context, port, wc, grh, &attr) ? NULL : ibv_create_ah(pd, &attr);
}

/* Memory regions. */
#include "mr.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cmd.h"
#include "compiler.h"
#include "context.h"
#include "dm.h"
#include "errors.h"
#include "pd.h"
#include "rnic_reasons.h"

enum {
	SUPPORTED_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND |
		IBV_ACCESS_FLUSH_GLOBAL,
	IGNORED_ACCESS = IBV_ACCESS_OPTIONAL_RANGE | IBV_ACCESS_HUGETLB,
};

static const char register_verb[] = "ibv_reg_mr";

static int check_access(unsigned int access)
{
	unsigned extra = access & ~(unsigned)(SUPPORTED_ACCESS | IGNORED_ACCESS);

	if (access & IBV_ACCESS_FLUSH_PERSISTENT)
		return why_not_persistent(EOPNOTSUPP, register_verb, access);
	if (extra)
		return why_access_flags(EINVAL, register_verb, "access", access, extra);
	if (access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) && !(access & IBV_ACCESS_LOCAL_WRITE))
		return why_mr_rights(EINVAL, register_verb, access);
	return 0;
}

static int enable_mr(struct rnic_mr *mr)
{
	uint8_t entry[RNIC_MPT_SIZE] = { 0 };
	unsigned int access = mr->access;

	rnic_put_be(entry, RNIC_MPT_REGION, 1);
	rnic_put_be(entry, RNIC_MPT_NULL, mr->null);
	rnic_put_be(entry, RNIC_MPT_LOCAL_WRITE, !!(access & IBV_ACCESS_LOCAL_WRITE));
	rnic_put_be(entry, RNIC_MPT_REMOTE_WRITE, !!(access & IBV_ACCESS_REMOTE_WRITE));
	rnic_put_be(entry, RNIC_MPT_REMOTE_READ, !!(access & IBV_ACCESS_REMOTE_READ));
	rnic_put_be(entry, RNIC_MPT_ATOMIC, !!(access & IBV_ACCESS_REMOTE_ATOMIC));
	rnic_put_be(entry, RNIC_MPT_FLUSH_GLOBAL, !!(access & IBV_ACCESS_FLUSH_GLOBAL));
	rnic_put_be(entry, RNIC_MPT_ON_DEMAND, !!(access & IBV_ACCESS_ON_DEMAND));
	rnic_put_be(entry, RNIC_MPT_BIND_ENABLE, !!(access & IBV_ACCESS_MW_BIND));
	rnic_put_be(entry, RNIC_MPT_RELATIVE, !!(access & IBV_ACCESS_ZERO_BASED));
	rnic_put_be(entry, RNIC_MPT_ABSOLUTE, !(access & IBV_ACCESS_ZERO_BASED));
	rnic_put_be(entry, RNIC_MPT_KEY, mr->verbs.lkey);
	rnic_put_be(entry, RNIC_MPT_PD, mr->verbs.pd->handle);
	rnic_put_be(entry, RNIC_MPT_START, access & IBV_ACCESS_ZERO_BASED ? 0 : mr->iova);
	rnic_put_be(entry, RNIC_MPT_LENGTH, mr->verbs.length);
	rnic_put_be(entry, RNIC_MPT_ADDRESS, (uintptr_t)mr->memory);
	return nic_command(context_of(mr->verbs.context), RNIC_CMD_SW2HW_MPT, 0, mr->verbs.lkey, entry, sizeof entry,
			   NULL, 0, NULL);
}

static int disable_mr(struct rnic_mr *mr)
{
	return nic_command(context_of(mr->verbs.context), RNIC_CMD_HW2SW_MPT, 0, mr->verbs.lkey, NULL, 0, NULL, 0,
			   NULL);
}

/* Register memory as `like` describes it. Returns a copy with its key. */
static struct ibv_mr *register_mr(struct ibv_pd *pd, const struct rnic_mr *like)
{
	struct rnic_context *context = context_of(pd->context);
	size_t length = like->verbs.length;
	struct rnic_mr *mr;
	int error = check_access(like->access);

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
	error = enable_mr(mr);
	if (error)
		nic_free(context, RNIC_CMD_RES_MPT, mr->verbs.lkey);
	if (error == EINVAL && length)
		error = EFAULT; /* the range is not all mapped, or not writable */
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
	struct rnic_mr mr = {
		.verbs = { .addr = addr, .length = length }, .iova = iova, .access = access, .memory = addr
	};

	return register_mr(pd, &mr);
}

/* Allocate a null MR: writes to it are discarded, reads of it return zeros. It covers the half of the address space
 * in which all of a program's addresses are. */
struct ibv_mr *rnic_alloc_null_mr(struct ibv_pd *pd)
{
	struct rnic_mr mr = { .verbs = { .length = 1ull << 63 }, .access = IBV_ACCESS_LOCAL_WRITE, .null = true };

	return register_mr(pd, &mr);
}

/* Register a range of device memory, whose addresses begin at 0. */
struct ibv_mr *rnic_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *verbs, uint64_t offset, size_t length,
			      unsigned int access)
{
	struct rnic_dm *dm = (struct rnic_dm *)verbs;
	struct rnic_mr mr = { .verbs = { .length = length }, .access = access, .dm = dm };
	struct ibv_mr *made;

	if (!(access & IBV_ACCESS_ZERO_BASED) || verbs->context != pd->context || offset > dm->length ||
	    length > dm->length - offset)
		return fail_null(why_bad_value(EINVAL, "ibv_reg_dm_mr",
					       "a region without IBV_ACCESS_ZERO_BASED, or beyond the device memory,"));
	mr.memory = dm->memory + offset;
	if (!length) { /* as on ConnectX: a region without rights, on the page's first byte */
		mr.memory = dm->memory;
		mr.verbs.length = 1;
		mr.access = IBV_ACCESS_ZERO_BASED;
	}
	made = register_mr(pd, &mr);
	if (!made)
		return NULL;
	made->length = length;
	dm->users++;
	return made;
}

/* Return whether a descriptor is a dma-buf or a memfd. */
static bool is_shared_memory_fd(int fd)
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

/* Register a dma-buf that its exporter lets a program map, as udmabuf does, through a mapping. */
EXPORT struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd,
					int access)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), before = offset & (page - 1);
	int protection = access & IBV_ACCESS_LOCAL_WRITE ? PROT_READ | PROT_WRITE : PROT_READ;
	struct rnic_mr mr = { .verbs = { .addr = (void *)(uintptr_t)offset, .length = length },
			      .iova = iova,
			      .access = (unsigned)access,
			      .map_bytes = length + before };
	struct ibv_mr *made;
	off_t end;

	if (!is_shared_memory_fd(fd))
		return fail_null(why_not_supported(EOPNOTSUPP, "ibv_reg_dmabuf_mr", "this kind of descriptor",
						   "give a dma-buf that can be mapped, or a memfd"));
	end = lseek(fd, 0, SEEK_END);
	if (end < 0 || !length || offset > (uint64_t)end || length > (uint64_t)end - offset ||
	    (iova ^ offset) & (page - 1))
		return fail_null(why_bad_value(EINVAL, "ibv_reg_dmabuf_mr",
					       "a range beyond the buffer, or an iova on another place in its page,"));
	mr.map = mmap(NULL, mr.map_bytes, protection, MAP_SHARED, fd, (off_t)(offset - before));
	if (mr.map == MAP_FAILED)
		return fail_null(errno == ENODEV ? EOPNOTSUPP : errno);
	mr.memory = (uint8_t *)mr.map + before;
	made = register_mr(pd, &mr);
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
	int error = disable_mr(mr);

	if (error && !context->dead)
		return fail(error);
	if (!context->dead)
		nic_free(context, RNIC_CMD_RES_MPT, verbs->lkey);
	((struct rnic_pd *)verbs->pd)->users--;
	if (mr->map)
		munmap(mr->map, mr->map_bytes);
	if (mr->dm)
		mr->dm->users--;
	free(mr);
	return 0;
}

EXPORT int ibv_rereg_mr(struct ibv_mr *verbs, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct rnic_mr *mr = (struct rnic_mr *)verbs, old = *mr;

	if (!flags || flags & ~7 || mr->map || mr->null || mr->dm ||
	    (flags & IBV_REREG_MR_CHANGE_TRANSLATION && (!addr || !length)) ||
	    (flags & IBV_REREG_MR_CHANGE_PD && !pd) ||
	    (flags & IBV_REREG_MR_CHANGE_ACCESS && check_access((unsigned)access))) {
		errno = why_bad_value(EINVAL, "ibv_rereg_mr", "a change of flags, memory, domain or rights");
		return IBV_REREG_MR_ERR_INPUT;
	}
	errno = disable_mr(mr);
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
	errno = enable_mr(mr);
	if (errno) {
		int error = errno;

		*mr = old;
		if (enable_mr(mr))
			log_error("memory region %#x is lost: it could not be put back after a change failed",
				  verbs->lkey);
		errno = error;
		return IBV_REREG_MR_ERR_CMD;
	}
	((struct rnic_pd *)old.verbs.pd)->users--;
	((struct rnic_pd *)verbs->pd)->users++;
	return 0;
}

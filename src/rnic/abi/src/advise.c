/* Advice on memory regions: bring pages in before they are used. */
#define _GNU_SOURCE
#include "advise.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cmd.h"
#include "compiler.h"
#include "context.h"
#include "errors.h"
#include "rnic_reasons.h"

static const char advise_verb[] = "ibv_advise_mr";

/* Numbers of Linux 5.14, whose headers may be older. */
#define POPULATE_READ 22
#define POPULATE_WRITE 23

/* Have the kernel read a byte of each page, so that no fault raises a signal. */
static int touch(uintptr_t from, uintptr_t end, uintptr_t page)
{
	for (; from < end; from += page) {
		char byte;
		struct iovec near = { &byte, 1 }, far = { (void *)from, 1 };

		if (process_vm_readv(getpid(), &near, 1, &far, 1, 0) != 1)
			return EFAULT;
	}
	return 0;
}

static int bring_in(const struct ibv_sge *sge, bool writes)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)sge->addr & ~(page - 1);
	uintptr_t end = ((uintptr_t)sge->addr + sge->length + page - 1) & ~(page - 1);

	if (!sge->length)
		return 0;
	if (!madvise((void *)from, end - from, writes ? POPULATE_WRITE : POPULATE_READ))
		return 0;
	if (errno == EINVAL) /* an older kernel, or memory of a device */
		return touch(from, end, page);
	return errno == EAGAIN ? EAGAIN : EFAULT;
}

/* Check that an entry lies in an on-demand region of the protection domain, with the right to write if it is needed. */
static int check_range(struct ibv_pd *pd, const struct ibv_sge *sge, bool writes)
{
	uint8_t entry[RNIC_MPT_SIZE];
	uint64_t offset, length;
	int error = nic_command(context_of(pd->context), RNIC_CMD_QUERY_MPT, 0, sge->lkey, NULL, 0, entry, sizeof entry,
				NULL);

	if (error || !rnic_get_be(entry, RNIC_MPT_REGION) || rnic_get_be(entry, RNIC_MPT_PD) != pd->handle ||
	    !rnic_get_be(entry, RNIC_MPT_ON_DEMAND))
		return why_bad_value(EINVAL, advise_verb,
				     "an entry whose key is of no on-demand region of the domain,");
	if (writes && !rnic_get_be(entry, RNIC_MPT_LOCAL_WRITE))
		return why_bad_value(EPERM, advise_verb, "PREFETCH_WRITE for a region without IBV_ACCESS_LOCAL_WRITE,");
	offset = sge->addr - rnic_get_be(entry, RNIC_MPT_START);
	length = rnic_get_be(entry, RNIC_MPT_LENGTH);
	if (offset > length || sge->length > length - offset)
		return why_bad_value(EINVAL, advise_verb, "an entry that lies not in its region,");
	return 0;
}

int rnic_advise_mr(struct ibv_pd *pd, int advice, uint32_t flags, struct ibv_sge *list, uint32_t count)
{
	bool writes = advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;

	if (advice < IBV_ADVISE_MR_ADVICE_PREFETCH || advice > IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
		return why_bad_value(EOPNOTSUPP, advise_verb, "another advice than to prefetch");
	if (flags & ~(uint32_t)IBV_ADVISE_MR_FLAG_FLUSH || !count)
		return why_bad_value(EINVAL, advise_verb,
				     "other flags than IBV_ADVISE_MR_FLAG_FLUSH, or an empty list,");
	for (uint32_t i = 0; i < count; i++) {
		int error = check_range(pd, &list[i], writes);

		if (error)
			return error;
	}
	if (advice == IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
		return 0; /* resident pages need nothing */
	for (uint32_t i = 0; i < count; i++) {
		int error = bring_in(&list[i], writes);

		if (error && flags & IBV_ADVISE_MR_FLAG_FLUSH) /* otherwise it is only advice */
			return error;
	}
	return 0;
}

/* Device memory. This device is software, so this is memory of the program that only the device's functions access. */
#include "dm.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "compiler.h"
#include "context.h"
#include "errors.h"
#include "rnic_reasons.h"

enum { UNIT = 4, MOST_LOG_ALIGN = 12 }; /* offsets and lengths of copies are multiples of UNIT, as on ConnectX */

static const char alloc_verb[] = "ibv_alloc_dm";

/* Return whether a copy is inside the memory. */
static bool is_inside(const struct rnic_dm *dm, uint64_t offset, size_t length)
{
	return offset <= dm->length && length <= dm->length - offset && offset % UNIT == 0 && length % UNIT == 0;
}

static int refuse_copy(const char *verb)
{
	return why_bad_value(EINVAL, verb, "a range beyond the device memory, or one that is no multiple of 4,");
}

static int copy_to_dm(struct ibv_dm *verbs, uint64_t offset, const void *from, size_t length)
{
	struct rnic_dm *dm = (struct rnic_dm *)verbs;

	if (!is_inside(dm, offset, length))
		return refuse_copy("ibv_memcpy_to_dm");
	memcpy(dm->memory + offset, from, length);
	return 0;
}

static int copy_from_dm(void *to, struct ibv_dm *verbs, uint64_t offset, size_t length)
{
	struct rnic_dm *dm = (struct rnic_dm *)verbs;

	if (!is_inside(dm, offset, length))
		return refuse_copy("ibv_memcpy_from_dm");
	memcpy(to, dm->memory + offset, length);
	return 0;
}

struct ibv_dm *rnic_alloc_dm(struct ibv_context *verbs, struct ibv_alloc_dm_attr *attr)
{
	struct rnic_context *context = context_of(verbs);
	struct rnic_dm *dm;

	if (attr->comp_mask || !attr->length || attr->log_align_req > MOST_LOG_ALIGN)
		return fail_null(why_bad_value(EINVAL, alloc_verb, "comp_mask, a length of 0, or log_align_req"));
	if (attr->length > DM_BYTES)
		return fail_null(why_no_device_memory(ENOMEM, alloc_verb, (long long)attr->length, DM_BYTES));
	dm = calloc(1, sizeof *dm);
	if (!dm)
		return NULL;
	pthread_mutex_lock(&context->lock);
	size_t left = DM_BYTES - context->dm_bytes;
	bool fits = attr->length <= left;
	context->dm_bytes += fits ? attr->length : 0;
	dm->verbs.handle = context->dm_count++;
	pthread_mutex_unlock(&context->lock);
	if (!fits) {
		free(dm);
		return fail_null(why_no_device_memory(ENOMEM, alloc_verb, (long long)attr->length, (long long)left));
	}
	dm->memory = mmap(NULL, attr->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	dm->length = attr->length;
	dm->verbs.context = verbs;
	dm->verbs.memcpy_to_dm = copy_to_dm;
	dm->verbs.memcpy_from_dm = copy_from_dm;
	if (dm->memory == MAP_FAILED) {
		dm->memory = NULL;
		rnic_free_dm(&dm->verbs);
		return fail_null(ENOMEM);
	}
	return &dm->verbs;
}

int rnic_free_dm(struct ibv_dm *verbs)
{
	struct rnic_dm *dm = (struct rnic_dm *)verbs;
	struct rnic_context *context = context_of(verbs->context);

	if (dm->users)
		return fail(why_in_use(EBUSY, "ibv_free_dm", "device memory", verbs->handle, "regions"));
	if (dm->memory)
		munmap(dm->memory, dm->length);
	pthread_mutex_lock(&context->lock);
	context->dm_bytes -= dm->length;
	pthread_mutex_unlock(&context->lock);
	free(dm);
	return 0;
}

/* XRC domains: a file may name one, as in the kernel. */
#include "xrc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "cmd.h"
#include "compiler.h"
#include "context.h"
#include "errors.h"
#include "rnic_reasons.h"

struct ibv_xrcd *rnic_open_xrcd(struct ibv_context *verbs, struct ibv_xrcd_init_attr *attr)
{
	uint32_t all = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
	uint8_t inbox[RNIC_OPEN_XRCD_SIZE] = { 0 };
	struct rnic_xrcd *xrcd;
	uint64_t number = 0;
	struct stat file;
	int error;

	if (attr->comp_mask != all)
		return fail_null(why_not_supported(EINVAL, "ibv_open_xrcd", "a comp_mask without FD and OFLAGS",
						   "set both, and nothing else"));
	if (attr->fd != -1) {
		if (fstat(attr->fd, &file))
			return fail_null(why_bad_value(EBADF, "ibv_open_xrcd", "a descriptor of no open file,"));
		rnic_put_be(inbox, RNIC_OPEN_XRCD_NAMED, 1);
		rnic_put_be(inbox, RNIC_OPEN_XRCD_DEVICE, file.st_dev);
		rnic_put_be(inbox, RNIC_OPEN_XRCD_INODE, file.st_ino);
	}
	rnic_put_be(inbox, RNIC_OPEN_XRCD_CREATE, !!(attr->oflags & O_CREAT));
	rnic_put_be(inbox, RNIC_OPEN_XRCD_EXCLUSIVE, !!(attr->oflags & O_EXCL));
	xrcd = calloc(1, sizeof *xrcd);
	if (!xrcd)
		return NULL;
	error = nic_command(context_of(verbs), RNIC_CMD_OPEN_XRCD, 0, 0, inbox, sizeof inbox, NULL, 0, &number);
	if (error) {
		free(xrcd);
		return fail_null(error);
	}
	xrcd->number = (uint32_t)number;
	xrcd->verbs.context = verbs;
	return &xrcd->verbs;
}

int rnic_close_xrcd(struct ibv_xrcd *verbs)
{
	struct rnic_xrcd *xrcd = (struct rnic_xrcd *)verbs;
	struct rnic_context *context = context_of(verbs->context);
	int error;

	if (xrcd->users)
		return fail(why_in_use(EBUSY, "ibv_close_xrcd", "XRC domain", xrcd->number, "SRQs or queue pairs"));
	error = nic_command(context, RNIC_CMD_CLOSE_XRCD, 0, xrcd->number, NULL, 0, NULL, 0, NULL);
	if (error && !context->dead)
		return fail(error);
	free(xrcd);
	return 0;
}

/*
 * Stubs of unsupported functions. They declare only the arguments up to their last out parameter; with C's calling convention, callers may pass more.
 */
#ifndef RNIC_STUBS_H
#define RNIC_STUBS_H

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "compiler.h"

void refused(int error);

UNUSED static void clear_out(void *at, size_t bytes)
{
	if (at)
		memset(at, 0, bytes);
}

/* Size of a structure newer than this library, given by another argument. */
UNUSED static size_t size_argument(const void *bytes)
{
	return (size_t)bytes < 64 ? (size_t)bytes : 64;
}

static inline long refuse_errno(int error)
{
	refused(error);
	return error;
}

static inline long refuse_minus_one(int error)
{
	refused(error);
	return -1;
}

static inline void *refuse_null(int error)
{
	refused(error);
	return NULL;
}

#endif

/*
 * Functions that only refuse. They take no arguments, whatever callers pass: that is all the same to the C ABI.
 */
#ifndef RNIC_STUBS_H
#define RNIC_STUBS_H

#include <errno.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))
#define UNUSED __attribute__((unused))

void refused(int error);

static inline long refuse(int error)
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

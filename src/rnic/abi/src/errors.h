/* Error messages and error returns, for both libraries. */
#ifndef RNIC_ERRORS_H
#define RNIC_ERRORS_H

#include <errno.h>

/* Print a line for the user on stderr. */
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

int fail(int error) __attribute__((cold)); /* sets errno; returns it */
void *fail_null(int error) __attribute__((cold));

/* Set errno and return -1, or return 0 if there is no error. */
static inline int rdma_seterrno(int error)
{
	if (!error)
		return 0;
	errno = error;
	return -1;
}

#endif

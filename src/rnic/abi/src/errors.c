/* Error messages and error returns, for both libraries. */
#include "errors.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

void log_error(const char *format, ...)
{
	char line[1024];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(line, sizeof line, format, arguments);
	va_end(arguments);
	fprintf(stderr, "rnic: %s\n", line);
}

int fail(int error)
{
	errno = error;
	return error;
}

void *fail_null(int error)
{
	errno = error;
	return NULL;
}

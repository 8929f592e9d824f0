/* Files below /sys, which exist if `rnic exec` gives the program device paths. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "compiler.h"
#include "errors.h"

EXPORT const char *ibv_get_sysfs_path(void)
{
	return "/sys";
}

/* Read a file's text without its newline. Returns its length, or -1 with errno. */
static int read_line(const char *path, char *buffer, size_t size)
{
	int file = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got;

	if (file < 0)
		return -1;
	got = read(file, buffer, size);
	close(file);
	if (got <= 0)
		return -1;
	if (buffer[got - 1] == '\n')
		buffer[--got] = 0;
	else if ((size_t)got < size)
		buffer[got] = 0;
	else
		return fail(E2BIG), -1;
	return (int)got;
}

EXPORT int ibv_read_sysfs_file(const char *directory, const char *file, char *buffer, size_t size)
{
	char path[PATH_MAX];

	if (snprintf(path, sizeof path, "%s/%s", directory, file) >= (int)sizeof path)
		return fail(ENAMETOOLONG), -1;
	return read_line(path, buffer, size);
}

EXPORT int ibv_read_ibdev_sysfs_file(char *buffer UNUSED, size_t size UNUSED, void *sysfs UNUSED,
				     const char *format UNUSED, ...)
{
	errno = ENOENT;
	return -1;
}

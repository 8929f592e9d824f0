/* Paths in the runtime directory, and of files beside a library. */
#ifndef RNIC_OWN_PATHS_H
#define RNIC_OWN_PATHS_H

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Write the path of a file in this user's runtime directory. Returns 0 or ENAMETOOLONG. */
static inline int runtime_path(char *path, size_t bytes, const char *name)
{
	const char *directory = secure_getenv("RNIC_RUNTIME_DIR"), *base = secure_getenv("XDG_RUNTIME_DIR");
	int length;

	if (directory && *directory)
		length = snprintf(path, bytes, "%s/%s", directory, name);
	else if (base && *base)
		length = snprintf(path, bytes, "%s/rnic/%s", base, name);
	else
		length = snprintf(path, bytes, "/tmp/rnic-%u/%s", (unsigned)getuid(), name);
	return length > 0 && (size_t)length < bytes ? 0 : ENAMETOOLONG;
}

/* Write the path of the file next to this library that `rnic cdi` writes for containers: variables for a NIC process that the library starts. Returns 0 or an errno; the file need not exist. */
static inline int settings_path(char *path, size_t bytes)
{
	static const char name[] = "environment";
	const char *slash;
	Dl_info library;
	int length;

	if (!dladdr(name, &library) || !library.dli_fname)
		return ENOENT;
	slash = strrchr(library.dli_fname, '/');
	if (!slash)
		return ENOENT;
	length = snprintf(path, bytes, "%.*s/%s", (int)(slash - library.dli_fname), library.dli_fname, name);
	return length > 0 && (size_t)length < bytes ? 0 : ENAMETOOLONG;
}

#endif

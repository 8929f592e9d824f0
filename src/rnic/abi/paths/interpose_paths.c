/*
 * What `rnic exec` preloads: a program that looks for RDMA devices under /sys and /dev finds this user's.
 *
 * RNIC_PATHS names a directory with a "sys" and a "dev" of its own, which the NIC process keeps. Calls of the C library
 * with a path of the few that a RoCE device has go there; all other paths, and everything without RNIC_PATHS, are
 * handed on untouched. Each function is declared by its symbol, since headers make inline functions of some.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "dlsym_next.h"

#ifdef __GLIBC__ /* others name their 64-bit forms otherwise, and are left alone */

#define EXPORT __attribute__((visibility("default")))
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
_Static_assert(sizeof(off_t) == 8 && sizeof(struct stat) == sizeof(struct stat64), "the 64-bit forms are the others");

enum { ROOT_BYTES = PATH_MAX };

static char root[ROOT_BYTES], real_root[ROOT_BYTES]; /* as it was named, and without links */
static size_t root_bytes, real_root_bytes;
static int looked; /* 1 while, 2 after RNIC_PATHS was looked at */

static const char *const places[] = {
	"/sys/class/infiniband",
	"/sys/class/infiniband_verbs",
	"/sys/class/infiniband_mad",
	"/sys/devices/virtual/infiniband",
	"/sys/devices/virtual/infiniband_verbs",
	"/dev/infiniband",
};

/* ---- the paths */

NEXT(char *, realpath, (const char *, char *))

static void look(void)
{
	int before = 0, error = errno;
	const char *named;
	char devices[ROOT_BYTES + 16], found[PATH_MAX];

	if (__atomic_load_n(&looked, __ATOMIC_ACQUIRE) == 2)
		return;
	if (!__atomic_compare_exchange_n(&looked, &before, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return; /* another thread looks, or this one: its paths are not turned yet */
	named = getenv("RNIC_PATHS");
	if (named && *named == '/' && strlen(named) < ROOT_BYTES) {
		strcpy(root, named);
		root_bytes = strlen(root);
		/* A view's devices are links into the whole tree, which is where real paths lead. */
		snprintf(devices, sizeof devices, "%s/sys/devices", root);
		if (next_realpath() && next_realpath()(devices, found)) {
			size_t bytes = strlen(found), ending = strlen("/sys/devices");

			if (bytes > ending && strcmp(found + bytes - ending, "/sys/devices") == 0) {
				memcpy(real_root, found, bytes - ending);
				real_root_bytes = bytes - ending;
			}
		}
	}
	errno = error;
	__atomic_store_n(&looked, 2, __ATOMIC_RELEASE);
}

__attribute__((constructor)) static void look_early(void)
{
	look();
}

/* Where a path goes on behind a place, NULL if it does not begin with it. Slashes may stand doubled. */
static const char *after(const char *path, const char *place)
{
	while (*place) {
		if (*path != *place)
			return NULL;
		if (*path == '/')
			while (path[1] == '/')
				path++;
		path++;
		place++;
	}
	return path;
}

static bool ends(char next, bool pattern)
{
	return !next || next == '/' || (pattern && strchr("*?[{", next));
}

static bool is_ours(const char *path, bool pattern)
{
	if (!path || path[0] != '/')
		return false;
	while (path[1] == '/')
		path++;
	if (path[1] != 's' && path[1] != 'd')
		return false;
	for (size_t i = 0; i < COUNT(places); i++) {
		const char *rest = after(path, places[i]);

		if (rest && ends(*rest, pattern)) {
			look();
			return root_bytes != 0;
		}
	}
	return false;
}

static size_t turned_bytes(const char *path)
{
	return root_bytes + strlen(path) + 1;
}

static const char *turned(const char *path, char *buffer)
{
	if (!buffer)
		return path;
	memcpy(buffer, root, root_bytes);
	strcpy(buffer + root_bytes, path);
	return buffer;
}

/* On the stack, and only for a path that goes elsewhere: signal handlers have little of it. */
#define TURN(path) turned((path), is_ours((path), false) ? __builtin_alloca(turned_bytes(path)) : NULL)

/* The same path as the program knows it, in place. */
static void turn_back(char *path)
{
	size_t bytes = 0;

	if (real_root_bytes && strncmp(path, real_root, real_root_bytes) == 0 && path[real_root_bytes] == '/')
		bytes = real_root_bytes;
	else if (root_bytes && strncmp(path, root, root_bytes) == 0 && path[root_bytes] == '/')
		bytes = root_bytes;
	if (bytes)
		memmove(path, path + bytes, strlen(path + bytes) + 1);
}

#define OURS(type, name, symbol, arguments)                                                                            \
	NEXT(type, symbol, arguments)                                                                                  \
	EXPORT type name arguments __asm__(#symbol);                                                                   \
	EXPORT type name arguments
#define CALL(symbol, none, ...) (next_##symbol() ? next_##symbol()(__VA_ARGS__) : (errno = ENOSYS, (none)))

/* ---- opening */

typedef unsigned int Mode;

#define OPEN(name, symbol)                                                                                             \
	typedef int (*symbol##_type)(const char *, int, ...);                                                          \
	static symbol##_type next_##symbol(void)                                                                       \
	{                                                                                                              \
		static void *found;                                                                                    \
		if (!found)                                                                                            \
			found = behind(#symbol);                                                                       \
		return (symbol##_type)found;                                                                           \
	}                                                                                                              \
	EXPORT int name(const char *path, int flags, ...) __asm__(#symbol);                                            \
	EXPORT int name(const char *path, int flags, ...)                                                              \
	{                                                                                                              \
		va_list rest;                                                                                          \
		Mode mode;                                                                                             \
                                                                                                                       \
		va_start(rest, flags);                                                                                 \
		mode = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, Mode) : 0;                   \
		va_end(rest);                                                                                          \
		return CALL(symbol, -1, TURN(path), flags, mode);                                                      \
	}

#define OPEN_AT(name, symbol)                                                                                          \
	typedef int (*symbol##_type)(int, const char *, int, ...);                                                     \
	static symbol##_type next_##symbol(void)                                                                       \
	{                                                                                                              \
		static void *found;                                                                                    \
		if (!found)                                                                                            \
			found = behind(#symbol);                                                                       \
		return (symbol##_type)found;                                                                           \
	}                                                                                                              \
	EXPORT int name(int at, const char *path, int flags, ...) __asm__(#symbol);                                    \
	EXPORT int name(int at, const char *path, int flags, ...)                                                      \
	{                                                                                                              \
		va_list rest;                                                                                          \
		Mode mode;                                                                                             \
                                                                                                                       \
		va_start(rest, flags);                                                                                 \
		mode = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, Mode) : 0;                   \
		va_end(rest);                                                                                          \
		return CALL(symbol, -1, at, TURN(path), flags, mode);                                                  \
	}

OPEN(our_open, open)
OPEN(our_open64, open64)
OPEN_AT(our_openat, openat)
OPEN_AT(our_openat64, openat64)

#define PATH_AND_FLAGS(name, symbol)                                                                                   \
	OURS(int, name, symbol, (const char *path, int flags))                                                         \
	{                                                                                                              \
		return CALL(symbol, -1, TURN(path), flags);                                                            \
	}
#define AT_PATH_AND_FLAGS(name, symbol)                                                                                \
	OURS(int, name, symbol, (int at, const char *path, int flags))                                                 \
	{                                                                                                              \
		return CALL(symbol, -1, at, TURN(path), flags);                                                        \
	}

PATH_AND_FLAGS(our_open_2, __open_2)
PATH_AND_FLAGS(our_open64_2, __open64_2)
AT_PATH_AND_FLAGS(our_openat_2, __openat_2)
AT_PATH_AND_FLAGS(our_openat64_2, __openat64_2)

#define FOPEN(name, symbol)                                                                                            \
	OURS(FILE *, name, symbol, (const char *path, const char *mode))                                               \
	{                                                                                                              \
		return CALL(symbol, NULL, TURN(path), mode);                                                           \
	}
#define FREOPEN(name, symbol)                                                                                          \
	OURS(FILE *, name, symbol, (const char *path, const char *mode, FILE *file))                                   \
	{                                                                                                              \
		return CALL(symbol, NULL, TURN(path), mode, file);                                                     \
	}

FOPEN(our_fopen, fopen)
FOPEN(our_fopen64, fopen64)
FREOPEN(our_freopen, freopen)
FREOPEN(our_freopen64, freopen64)

/* ---- directories */

OURS(DIR *, our_opendir, opendir, (const char *path))
{
	return CALL(opendir, NULL, TURN(path));
}

typedef int (*Filter)(const void *);
typedef int (*Compare)(const void *, const void *);

#define SCANDIR(name, symbol)                                                                                          \
	OURS(int, name, symbol, (const char *path, void *list, Filter filter, Compare compare))                        \
	{                                                                                                              \
		return CALL(symbol, -1, TURN(path), list, filter, compare);                                            \
	}

SCANDIR(our_scandir, scandir)
SCANDIR(our_scandir64, scandir64)

OURS(int, our_chdir, chdir, (const char *path))
{
	return CALL(chdir, -1, TURN(path));
}

typedef int (*GlobError)(const char *, int);

/* A pattern in which the directory's own name stands for itself. Returns its length. */
static size_t quote(char *to, const char *from)
{
	size_t bytes = 0;

	for (; *from; from++) {
		if (strchr("*?[]{}\\~", *from))
			to[bytes++] = '\\';
		to[bytes++] = *from;
	}
	return bytes;
}

static int globbed(int (*next)(const char *, int, GlobError, glob_t *), const char *pattern, int flags, GlobError error,
		   glob_t *found)
{
	char *inner;
	size_t before = flags & GLOB_APPEND ? found->gl_pathc : 0, offset = flags & GLOB_DOOFFS ? found->gl_offs : 0;
	int result;

	if (!is_ours(pattern, true) || flags & (GLOB_NOESCAPE | GLOB_ALTDIRFUNC))
		return next(pattern, flags, error, found);
	inner = malloc(2 * root_bytes + strlen(pattern) + 1);
	if (!inner)
		return GLOB_NOSPACE;
	strcpy(inner + quote(inner, root), pattern);
	result = next(inner, flags & ~(GLOB_NOCHECK | GLOB_NOMAGIC), error, found);
	free(inner);
	if (result == GLOB_NOMATCH && flags & (GLOB_NOCHECK | GLOB_NOMAGIC))
		return next(pattern, flags, error, found);
	for (size_t i = before; !result && i < found->gl_pathc; i++)
		turn_back(found->gl_pathv[offset + i]);
	return result;
}

#define GLOB(name, symbol)                                                                                             \
	OURS(int, name, symbol, (const char *pattern, int flags, GlobError error, glob_t *found))                      \
	{                                                                                                              \
		return next_##symbol() ? globbed(next_##symbol(), pattern, flags, error, found) : GLOB_ABORTED;        \
	}

GLOB(our_glob, glob)
GLOB(our_glob64, glob64)

/* ---- what is there */

#define STAT(name, symbol)                                                                                             \
	OURS(int, name, symbol, (const char *path, struct stat *found))                                                \
	{                                                                                                              \
		return CALL(symbol, -1, TURN(path), found);                                                            \
	}
#define STAT_AT(name, symbol)                                                                                          \
	OURS(int, name, symbol, (int at, const char *path, struct stat *found, int flags))                             \
	{                                                                                                              \
		return CALL(symbol, -1, at, TURN(path), found, flags);                                                 \
	}
#define XSTAT(name, symbol)                                                                                            \
	OURS(int, name, symbol, (int version, const char *path, struct stat *found))                                   \
	{                                                                                                              \
		return CALL(symbol, -1, version, TURN(path), found);                                                   \
	}
#define XSTAT_AT(name, symbol)                                                                                         \
	OURS(int, name, symbol, (int version, int at, const char *path, struct stat *found, int flags))                \
	{                                                                                                              \
		return CALL(symbol, -1, version, at, TURN(path), found, flags);                                        \
	}

STAT(our_stat, stat)
STAT(our_stat64, stat64)
STAT(our_lstat, lstat)
STAT(our_lstat64, lstat64)
STAT_AT(our_fstatat, fstatat)
STAT_AT(our_fstatat64, fstatat64)
XSTAT(our_xstat, __xstat)
XSTAT(our_xstat64, __xstat64)
XSTAT(our_lxstat, __lxstat)
XSTAT(our_lxstat64, __lxstat64)
XSTAT_AT(our_fxstatat, __fxstatat)
XSTAT_AT(our_fxstatat64, __fxstatat64)

OURS(int, our_statx, statx, (int at, const char *path, int flags, unsigned int mask, void *found))
{
	return CALL(statx, -1, at, TURN(path), flags, mask, found);
}

PATH_AND_FLAGS(our_access, access)
PATH_AND_FLAGS(our_eaccess, eaccess)
PATH_AND_FLAGS(our_euidaccess, euidaccess)

OURS(int, our_faccessat, faccessat, (int at, const char *path, int mode, int flags))
{
	return CALL(faccessat, -1, at, TURN(path), mode, flags);
}

#define ATTRIBUTE(name, symbol)                                                                                        \
	OURS(ssize_t, name, symbol, (const char *path, const char *attribute, void *value, size_t bytes))              \
	{                                                                                                              \
		return CALL(symbol, -1, TURN(path), attribute, value, bytes);                                          \
	}
#define ATTRIBUTES(name, symbol)                                                                                       \
	OURS(ssize_t, name, symbol, (const char *path, char *list, size_t bytes))                                      \
	{                                                                                                              \
		return CALL(symbol, -1, TURN(path), list, bytes);                                                      \
	}

ATTRIBUTE(our_getxattr, getxattr)
ATTRIBUTE(our_lgetxattr, lgetxattr)
ATTRIBUTES(our_listxattr, listxattr)
ATTRIBUTES(our_llistxattr, llistxattr)

/* ---- links and real paths */

OURS(ssize_t, our_readlink, readlink, (const char *path, char *buffer, size_t bytes))
{
	return CALL(readlink, -1, TURN(path), buffer, bytes);
}

OURS(ssize_t, our_readlinkat, readlinkat, (int at, const char *path, char *buffer, size_t bytes))
{
	return CALL(readlinkat, -1, at, TURN(path), buffer, bytes);
}

OURS(ssize_t, our_readlink_chk, __readlink_chk, (const char *path, char *buffer, size_t bytes, size_t room))
{
	return CALL(__readlink_chk, -1, TURN(path), buffer, bytes, room);
}

OURS(ssize_t, our_readlinkat_chk, __readlinkat_chk, (int at, const char *path, char *buffer, size_t bytes, size_t room))
{
	return CALL(__readlinkat_chk, -1, at, TURN(path), buffer, bytes, room);
}

/* Turned back only where it was turned: a program that names the tree itself sees it as it is. */
static char *came_back(const char *path, char *real)
{
	if (real && is_ours(path, false))
		turn_back(real);
	return real;
}

EXPORT char *our_realpath(const char *path, char *real) __asm__("realpath");
EXPORT char *our_realpath(const char *path, char *real)
{
	return came_back(path, CALL(realpath, NULL, TURN(path), real));
}

OURS(char *, our_realpath_chk, __realpath_chk, (const char *path, char *real, size_t room))
{
	return came_back(path, CALL(__realpath_chk, NULL, TURN(path), real, room));
}

OURS(char *, our_canonicalize, canonicalize_file_name, (const char *path))
{
	return came_back(path, CALL(canonicalize_file_name, NULL, TURN(path)));
}

#endif

/*
 * `rnic exec` preloads this library, so that programs find this user's RDMA devices under /sys and /dev.
 *
 * RNIC_PATHS names a directory with its own "sys" and "dev", which the NIC process maintains. Calls of the C library
 * with a path of an RDMA device are redirected there. All other paths, and all calls without RNIC_PATHS, pass through
 * unchanged. Each function is declared by its symbol, since headers make inline functions of some.
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
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "compiler.h"
#include "dlsym_next.h"
#include "nic_process.h"
#include "own_paths.h"

#ifdef __GLIBC__ /* other C libraries name their 64-bit functions differently: nothing is redirected there */

_Static_assert(sizeof(off_t) == 8 && sizeof(struct stat) == sizeof(struct stat64), "the 64-bit forms are the others");

enum { ROOT_BYTES = PATH_MAX };

static char root[ROOT_BYTES], real_root[ROOT_BYTES]; /* as RNIC_PATHS names it, and without symbolic links */
static size_t root_bytes, real_root_bytes;
static int init_state; /* 1 while RNIC_PATHS is read, 2 after that */
static int view_state; /* 1 while the real root is resolved, 2 once there is a view, or the NIC process has answered */

static const char *const prefixes[] = {
	"/sys/class/infiniband",	   "/sys/class/infiniband_verbs",	    "/sys/class/infiniband_mad",
	"/sys/devices/virtual/infiniband", "/sys/devices/virtual/infiniband_verbs", "/dev/infiniband",
};

/* ---- the paths */

NEXT(char *, realpath, (const char *, char *))

static bool exists(const char *path);

/* Without `rnic exec`, in a container of `rnic cdi`: the tree of all devices, which the NIC process makes later. */
static void take_own_root(void)
{
	char path[PATH_MAX];

	if (settings_path(path, sizeof path) || !exists(path) || runtime_path(root, sizeof root, "paths/all"))
		return;
	root_bytes = real_root_bytes = strlen(root);
	memcpy(real_root, root, root_bytes + 1);
	view_state = 2;
}

/* A view's devices are symbolic links into the whole tree: find out where real paths lead. */
static void find_real_root(void)
{
	char devices[ROOT_BYTES + 16], found[PATH_MAX];
	size_t bytes, ending = strlen("/sys/devices");

	snprintf(devices, sizeof devices, "%s/sys/devices", root);
	if (!next_realpath() || !next_realpath()(devices, found))
		return;
	bytes = strlen(found);
	if (bytes > ending && strcmp(found + bytes - ending, "/sys/devices") == 0) {
		memcpy(real_root, found, bytes - ending);
		real_root_bytes = bytes - ending;
	}
	__atomic_store_n(&view_state, 2, __ATOMIC_RELEASE);
}

static void init_root(void)
{
	int before = 0, error = errno;
	const char *named;

	if (__atomic_load_n(&init_state, __ATOMIC_ACQUIRE) == 2)
		return;
	if (!__atomic_compare_exchange_n(&init_state, &before, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return; /* it is being read, in this thread or another: do not redirect yet */
	named = secure_getenv("RNIC_PATHS");
	if (!named) {
		take_own_root();
	} else if (*named == '/' && strlen(named) < ROOT_BYTES) {
		strcpy(root, named);
		root_bytes = strlen(root);
		find_real_root();
	}
	errno = error;
	__atomic_store_n(&init_state, 2, __ATOMIC_RELEASE);
}

__attribute__((constructor)) static void init_early(void)
{
	init_root();
}

/* Return whether there is a view. The first call waits for the NIC process to make it, if that is starting. */
static bool has_view(void)
{
	int before = 0, error = errno;

	init_root();
	if (root_bytes && __atomic_load_n(&view_state, __ATOMIC_ACQUIRE) != 2) {
		await_nic_process(); /* done by every thread that gets here: a signal handler may, and must not wait for a lock */
		if (__atomic_compare_exchange_n(&view_state, &before, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
			find_real_root();
			__atomic_store_n(&view_state, 2, __ATOMIC_RELEASE);
		}
	}
	errno = error;
	return root_bytes != 0;
}

/* Return the rest of a path after a prefix, NULL if it does not begin with it. Slashes may be doubled. */
static const char *skip_prefix(const char *path, const char *prefix)
{
	while (*prefix) {
		if (*path != *prefix)
			return NULL;
		if (*path == '/')
			while (path[1] == '/')
				path++;
		path++;
		prefix++;
	}
	return path;
}

static bool ends_component(char next, bool pattern)
{
	return !next || next == '/' || (pattern && strchr("*?[{", next));
}

enum { PCI_ADDRESS = 12, PCI_BUS = 7 }; /* characters of 0000:18:00.0 and of its bus */

static bool exists(const char *path)
{
	return syscall(SYS_faccessat, AT_FDCWD, path, F_OK) == 0;
}

/* Return whether a path belongs to the PCI function of one of the devices; all other functions are the machine's. */
static bool is_pci_function(const char *path)
{
	char place[ROOT_BYTES + 64];
	const char *rest = skip_prefix(path, "/sys/bus/pci/devices/");
	size_t bytes = PCI_ADDRESS;
	const char *before = "sys/bus/pci/devices/";

	if (!rest) {
		rest = skip_prefix(path, "/sys/devices/pci");
		before = "sys/devices/pci";
		bytes = PCI_BUS + 1 + PCI_ADDRESS;
	}
	/* Programs that resolve links themselves also read the bus, which is the machine's if it exists there. */
	if (rest && strnlen(rest, PCI_BUS + 1) == PCI_BUS) {
		if (exists(path))
			return false;
		bytes = PCI_BUS;
	}
	if (!rest || strnlen(rest, bytes) < bytes || !ends_component(rest[bytes], false))
		return false;
	if (!has_view())
		return false;
	snprintf(place, sizeof place, "%s/%s%.*s", root, before, (int)bytes, rest);
	return exists(place);
}

static bool is_pci_path(const char *path)
{
	int error = errno;
	bool found = is_pci_function(path);

	errno = error;
	return found;
}

static bool is_redirected(const char *path, bool pattern)
{
	if (!path || path[0] != '/')
		return false;
	while (path[1] == '/')
		path++;
	if (path[1] != 's' && path[1] != 'd')
		return false;
	for (size_t i = 0; i < COUNT(prefixes); i++) {
		const char *rest = skip_prefix(path, prefixes[i]);

		if (rest && ends_component(*rest, pattern)) {
			return has_view();
		}
	}
	return path[1] == 's' && !pattern && is_pci_path(path);
}

/* Open a device's umad file. Returns -2 for any other path. */
static int open_umad(const char *path, int flags)
{
	const char *number = path ? skip_prefix(path, "/dev/infiniband/umad") : NULL;
	char place[ROOT_BYTES + 64];

	if (!number || strspn(number, "0123456789") != strlen(number) || !*number || strlen(number) > 4 || !has_view())
		return -2;
	snprintf(place, sizeof place, "%s/dev/infiniband/umad%s", root, number);
	if (!exists(place)) {
		errno = ENOENT;
		return -1;
	}
	return make_umad((uint32_t)atoi(number), flags);
}

static size_t redirected_bytes(const char *path)
{
	return root_bytes + strlen(path) + 1;
}

static const char *redirect_path(const char *path, char *buffer)
{
	if (!buffer)
		return path;
	memcpy(buffer, root, root_bytes);
	strcpy(buffer + root_bytes, path);
	return buffer;
}

/* Redirect a path in a buffer on the stack, allocated only if needed: signal handlers have little stack. */
#define REDIRECT(path) \
	redirect_path((path), is_redirected((path), false) ? __builtin_alloca(redirected_bytes(path)) : NULL)

/* Turn a redirected path into the one that the program knows, in place. */
static void restore_path(char *path)
{
	size_t bytes = 0;

	if (real_root_bytes && strncmp(path, real_root, real_root_bytes) == 0 && path[real_root_bytes] == '/')
		bytes = real_root_bytes;
	else if (root_bytes && strncmp(path, root, root_bytes) == 0 && path[root_bytes] == '/')
		bytes = root_bytes;
	if (bytes)
		memmove(path, path + bytes, strlen(path + bytes) + 1);
}

#define INTERPOSE(type, name, symbol, arguments) \
	NEXT(type, symbol, arguments) \
	EXPORT type name arguments __asm__(#symbol); \
	EXPORT type name arguments
#define CALL(symbol, none, ...) (next_##symbol() ? next_##symbol()(__VA_ARGS__) : (errno = ENOSYS, (none)))

/* ---- opening */

/* Return the mode argument of an open call, which has one only if it may create a file. */
#define TAKE_MODE(mode, flags) \
	do { \
		va_list rest_; \
\
		va_start(rest_, flags); \
		if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) \
			mode = va_arg(rest_, unsigned int); \
		va_end(rest_); \
	} while (0)

#define OPEN(name, symbol) \
	INTERPOSE(int, name, symbol, (const char *path, int flags, ...)) \
	{ \
		unsigned int mode = 0; \
		int umad = open_umad(path, flags); \
\
		TAKE_MODE(mode, flags); \
		return umad != -2 ? umad : CALL(symbol, -1, REDIRECT(path), flags, mode); \
	}

#define OPEN_AT(name, symbol) \
	INTERPOSE(int, name, symbol, (int at, const char *path, int flags, ...)) \
	{ \
		unsigned int mode = 0; \
		int umad = open_umad(path, flags); \
\
		TAKE_MODE(mode, flags); \
		return umad != -2 ? umad : CALL(symbol, -1, at, REDIRECT(path), flags, mode); \
	}

OPEN(our_open, open)
OPEN(our_open64, open64)
OPEN_AT(our_openat, openat)
OPEN_AT(our_openat64, openat64)

#define PATH_AND_FLAGS(name, symbol) \
	INTERPOSE(int, name, symbol, (const char *path, int flags)) \
	{ \
		return CALL(symbol, -1, REDIRECT(path), flags); \
	}
#define AT_PATH_AND_FLAGS(name, symbol) \
	INTERPOSE(int, name, symbol, (int at, const char *path, int flags)) \
	{ \
		return CALL(symbol, -1, at, REDIRECT(path), flags); \
	}

#define OPEN_2(name, symbol) \
	INTERPOSE(int, name, symbol, (const char *path, int flags)) \
	{ \
		int umad = open_umad(path, flags); \
\
		return umad != -2 ? umad : CALL(symbol, -1, REDIRECT(path), flags); \
	}

OPEN_2(our_open_2, __open_2)
OPEN_2(our_open64_2, __open64_2)
AT_PATH_AND_FLAGS(our_openat_2, __openat_2)
AT_PATH_AND_FLAGS(our_openat64_2, __openat64_2)

#define FOPEN(name, symbol) \
	INTERPOSE(FILE *, name, symbol, (const char *path, const char *mode)) \
	{ \
		return CALL(symbol, NULL, REDIRECT(path), mode); \
	}
#define FREOPEN(name, symbol) \
	INTERPOSE(FILE *, name, symbol, (const char *path, const char *mode, FILE *file)) \
	{ \
		return CALL(symbol, NULL, REDIRECT(path), mode, file); \
	}

FOPEN(our_fopen, fopen)
FOPEN(our_fopen64, fopen64)
FREOPEN(our_freopen, freopen)
FREOPEN(our_freopen64, freopen64)

/* ---- directories */

INTERPOSE(DIR *, our_opendir, opendir, (const char *path))
{
	return CALL(opendir, NULL, REDIRECT(path));
}

typedef int (*Filter)(const void *);
typedef int (*Compare)(const void *, const void *);

#define SCANDIR(name, symbol) \
	INTERPOSE(int, name, symbol, (const char *path, void *list, Filter filter, Compare compare)) \
	{ \
		return CALL(symbol, -1, REDIRECT(path), list, filter, compare); \
	}

SCANDIR(our_scandir, scandir)
SCANDIR(our_scandir64, scandir64)

INTERPOSE(int, our_chdir, chdir, (const char *path))
{
	return CALL(chdir, -1, REDIRECT(path));
}

typedef int (*GlobError)(const char *, int);

/* Quote a directory's name for use in a pattern. Returns its length. */
static size_t quote_glob(char *to, const char *from)
{
	size_t bytes = 0;

	for (; *from; from++) {
		if (strchr("*?[]{}\\~", *from))
			to[bytes++] = '\\';
		to[bytes++] = *from;
	}
	return bytes;
}

static int redirect_glob(int (*next)(const char *, int, GlobError, glob_t *), const char *pattern, int flags,
			 GlobError error, glob_t *found)
{
	char *inner;
	size_t before = flags & GLOB_APPEND ? found->gl_pathc : 0, offset = flags & GLOB_DOOFFS ? found->gl_offs : 0;
	int result;

	if (!is_redirected(pattern, true) || flags & (GLOB_NOESCAPE | GLOB_ALTDIRFUNC))
		return next(pattern, flags, error, found);
	inner = malloc(2 * root_bytes + strlen(pattern) + 1);
	if (!inner)
		return GLOB_NOSPACE;
	strcpy(inner + quote_glob(inner, root), pattern);
	result = next(inner, flags & ~(GLOB_NOCHECK | GLOB_NOMAGIC), error, found);
	free(inner);
	if (result == GLOB_NOMATCH && flags & (GLOB_NOCHECK | GLOB_NOMAGIC))
		return next(pattern, flags, error, found);
	for (size_t i = before; !result && i < found->gl_pathc; i++)
		restore_path(found->gl_pathv[offset + i]);
	return result;
}

#define GLOB(name, symbol) \
	INTERPOSE(int, name, symbol, (const char *pattern, int flags, GlobError error, glob_t *found)) \
	{ \
		return next_##symbol() ? redirect_glob(next_##symbol(), pattern, flags, error, found) : GLOB_ABORTED; \
	}

GLOB(our_glob, glob)
GLOB(our_glob64, glob64)

/* ---- stat and access */

#define STAT(name, symbol) \
	INTERPOSE(int, name, symbol, (const char *path, struct stat *found)) \
	{ \
		return CALL(symbol, -1, REDIRECT(path), found); \
	}
#define STAT_AT(name, symbol) \
	INTERPOSE(int, name, symbol, (int at, const char *path, struct stat *found, int flags)) \
	{ \
		return CALL(symbol, -1, at, REDIRECT(path), found, flags); \
	}
#define XSTAT(name, symbol) \
	INTERPOSE(int, name, symbol, (int version, const char *path, struct stat *found)) \
	{ \
		return CALL(symbol, -1, version, REDIRECT(path), found); \
	}
#define XSTAT_AT(name, symbol) \
	INTERPOSE(int, name, symbol, (int version, int at, const char *path, struct stat *found, int flags)) \
	{ \
		return CALL(symbol, -1, version, at, REDIRECT(path), found, flags); \
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

INTERPOSE(int, our_statx, statx, (int at, const char *path, int flags, unsigned int mask, void *found))
{
	return CALL(statx, -1, at, REDIRECT(path), flags, mask, found);
}

PATH_AND_FLAGS(our_access, access)
PATH_AND_FLAGS(our_eaccess, eaccess)
PATH_AND_FLAGS(our_euidaccess, euidaccess)

INTERPOSE(int, our_faccessat, faccessat, (int at, const char *path, int mode, int flags))
{
	return CALL(faccessat, -1, at, REDIRECT(path), mode, flags);
}

#define ATTRIBUTE(name, symbol) \
	INTERPOSE(ssize_t, name, symbol, (const char *path, const char *attribute, void *value, size_t bytes)) \
	{ \
		return CALL(symbol, -1, REDIRECT(path), attribute, value, bytes); \
	}
#define ATTRIBUTES(name, symbol) \
	INTERPOSE(ssize_t, name, symbol, (const char *path, char *list, size_t bytes)) \
	{ \
		return CALL(symbol, -1, REDIRECT(path), list, bytes); \
	}

ATTRIBUTE(our_getxattr, getxattr)
ATTRIBUTE(our_lgetxattr, lgetxattr)
ATTRIBUTES(our_listxattr, listxattr)
ATTRIBUTES(our_llistxattr, llistxattr)

/* ---- links and real paths */

INTERPOSE(ssize_t, our_readlink, readlink, (const char *path, char *buffer, size_t bytes))
{
	return CALL(readlink, -1, REDIRECT(path), buffer, bytes);
}

INTERPOSE(ssize_t, our_readlinkat, readlinkat, (int at, const char *path, char *buffer, size_t bytes))
{
	return CALL(readlinkat, -1, at, REDIRECT(path), buffer, bytes);
}

INTERPOSE(ssize_t, our_readlink_chk, __readlink_chk, (const char *path, char *buffer, size_t bytes, size_t room))
{
	return CALL(__readlink_chk, -1, REDIRECT(path), buffer, bytes, room);
}

INTERPOSE(ssize_t, our_readlinkat_chk, __readlinkat_chk,
	  (int at, const char *path, char *buffer, size_t bytes, size_t room))
{
	return CALL(__readlinkat_chk, -1, at, REDIRECT(path), buffer, bytes, room);
}

/* Restore a real path only if the path was redirected: a program that names the tree itself sees it as it is. */
static char *restore_real(const char *path, char *real)
{
	if (real && is_redirected(path, false))
		restore_path(real);
	return real;
}

EXPORT char *our_realpath(const char *path, char *real) __asm__("realpath");
EXPORT char *our_realpath(const char *path, char *real)
{
	return restore_real(path, CALL(realpath, NULL, REDIRECT(path), real));
}

INTERPOSE(char *, our_realpath_chk, __realpath_chk, (const char *path, char *real, size_t room))
{
	return restore_real(path, CALL(__realpath_chk, NULL, REDIRECT(path), real, room));
}

INTERPOSE(char *, our_canonicalize, canonicalize_file_name, (const char *path))
{
	return restore_real(path, CALL(canonicalize_file_name, NULL, REDIRECT(path)));
}

#endif
